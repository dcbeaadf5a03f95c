//! Rows of repositories, for work on git data outside of the writer: reads from the store, changes through the writer.

use std::io;
use std::sync::Arc;

use grasp_core::repo::{PackManifest, Refs, RepoPath, RepoRow};
use grasp_git::repo_rows::RepoRows;
use grasp_store::{Store, StoreError};

/// Asks the writer to record why a repository is degraded, and its refs if its row is damaged. Returns whether that is on
/// disk.
pub(crate) type DegradeFn = Arc<dyn Fn(&RepoPath, &str, Option<Refs>) -> bool + Send + Sync>;

/// Asks the writer to record the packs of a pool. Returns whether they are on disk.
pub(crate) type SetPacksFn = Arc<dyn Fn(&RepoPath, PackManifest) -> bool + Send + Sync>;

/// The rows of repositories. A damaged one is that of a degraded repository without refs.
pub(crate) struct StoredRepoRows {
    pub(crate) store: Store,
    pub(crate) degrade: DegradeFn,
    pub(crate) set_packs: SetPacksFn,
}

impl RepoRows for StoredRepoRows {
    fn row(&self, repo_path: &RepoPath) -> io::Result<Option<RepoRow>> {
        match self.store.repo(repo_path) {
            Err(StoreError::Damaged(reason)) => Ok(Some(RepoRow::damaged(reason))),
            row => row.map_err(io::Error::other),
        }
    }

    fn set_degraded(&self, repo_path: &RepoPath, reason: &str) -> io::Result<()> {
        // Recording it again would start the same work again.
        if self.row(repo_path)?.is_some_and(|row| row.version > 0 && row.degraded.as_deref() == Some(reason)) {
            return Ok(());
        }
        written((self.degrade)(repo_path, reason, None))
    }

    fn packs(&self, repo_path: &RepoPath) -> io::Result<Option<PackManifest>> {
        self.store.packs(repo_path).map_err(io::Error::other)
    }

    fn set_packs(&self, repo_path: &RepoPath, packs: PackManifest) -> io::Result<()> {
        written((self.set_packs)(repo_path, packs))
    }
}

fn written(is_on_disk: bool) -> io::Result<()> {
    if is_on_disk { Ok(()) } else { Err(io::Error::other("the store cannot write")) }
}

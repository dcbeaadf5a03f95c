//! Rows of repositories, for work on git data outside of the writer: reads from the store, changes through the writer.

use std::io;
use std::sync::Arc;

use grasp_core::repo::{PackManifest, RepoPath, RepoRow};
use grasp_git::repo_rows::RepoRows;
use grasp_store::{Store, StoreError};

/// Asks the writer to record why a repository is degraded. Returns whether it is on disk.
pub(crate) type DegradeFn = Arc<dyn Fn(&RepoPath, &str) -> bool + Send + Sync>;

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
            Err(StoreError::Damaged(reason)) => {
                Ok(Some(RepoRow { degraded: Some(reason.to_owned()), ..RepoRow::default() }))
            }
            row => row.map_err(io::Error::other),
        }
    }

    fn set_degraded(&self, repo_path: &RepoPath, reason: &str) -> io::Result<()> {
        written((self.degrade)(repo_path, reason))
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

//! Checks repositories for damage and repairs them.
//!
//! Maintenance checks each repository once a week, and `graspd repair` at once. What cannot be repaired here is fetched
//! from other git servers: the writer is told which repositories are degraded. Blocks.

use std::io;
use std::sync::Arc;

use grasp_core::repo::RepoPath;
use grasp_git::action_error::ActionError;
use grasp_git::layout::Layout;
use grasp_git::refs::read_refs;
use grasp_git::repair::{RepairReport, RepoRepairer};
use grasp_store::{Store, StoreError};
use tracing::{error, info};

use super::ref_cache::RefCache;
use super::repo_rows::DegradeFn;

/// Checks and repairs repositories of the running server.
pub(crate) struct RepoRepair {
    pub(crate) repairer: RepoRepairer,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) store: Store,
    pub(crate) degrade: DegradeFn,
}

impl RepoRepair {
    /// Checks and repairs a repository.
    pub(crate) fn repair(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        self.check_row(repo_path);
        let snapshot = self.ref_cache.snapshot(repo_path);
        let snapshot =
            snapshot.map_err(|source| ActionError::Io { action: "read the refs of a repository", source })?;
        let report = if self.layout.repo_dir(repo_path).join("HEAD").exists() {
            self.repairer.repair(repo_path)?
        } else if snapshot.exists {
            self.repairer.recreate(repo_path)?
        } else {
            RepairReport::default()
        };
        for pack in &report.indexed_packs {
            info!(target: "git", repo = %repo_path, pack, "damaged pack index repaired");
        }
        for pack in &report.missing_packs {
            error!(target: "git", repo = %repo_path, pack, "pack is missing");
        }
        for pack in &report.damaged_packs {
            error!(target: "git", repo = %repo_path, pack, "damaged pack moved away");
        }
        self.report_degraded(&report.degraded);
        Ok(report)
    }

    /// Replaces the row of a repository if it is damaged. The ref files have the refs that it had, unless they are
    /// damaged, too; branches and tags are set again from the signed state.
    pub(crate) fn check_row(&self, repo_path: &RepoPath) {
        if let Err(StoreError::Damaged(reason)) = self.store.repo(repo_path) {
            error!(target: "git", repo = %repo_path, reason, "repository is degraded");
            let refs = read_refs(&self.layout.repo_dir(repo_path)).unwrap_or_default();
            (self.degrade)(repo_path, reason, Some(refs));
        }
    }

    /// Repairs a repository if its pool has other packs than it should have.
    ///
    /// # Errors
    /// If a file cannot be read or written, or if git cannot be run.
    pub(crate) fn check_packs(&self, repo_path: &RepoPath) -> Result<(), ActionError> {
        let read = || -> io::Result<bool> {
            let recorded = self.store.packs(repo_path).map_err(io::Error::other)?.unwrap_or_default();
            Ok(recorded == self.layout.packs(repo_path)?)
        };
        match read() {
            Ok(true) => Ok(()),
            Ok(false) => self.repair(repo_path).map(drop),
            Err(source) => Err(ActionError::Io { action: "compare the packs of a pool", source }),
        }
    }

    /// Logs that repositories are degraded, which the writer has recorded, and drops answers that were made before.
    pub(crate) fn report_degraded(&self, repo_paths: &[RepoPath]) {
        for repo_path in repo_paths {
            let reason = self.degraded_reason(repo_path).unwrap_or_default();
            error!(target: "git", repo = %repo_path, reason, "repository is degraded");
            self.ref_cache.on_prune(repo_path.identifier());
        }
    }

    /// Searches the missing objects of a degraded repository again.
    pub(crate) fn recheck(&self, repo_path: &RepoPath, reason: &str) {
        (self.degrade)(repo_path, reason, None);
    }

    /// Returns why a repository is degraded; `None` if it is not.
    pub(crate) fn degraded_reason(&self, repo_path: &RepoPath) -> Option<String> {
        self.ref_cache.snapshot(repo_path).ok()?.degraded.clone()
    }
}

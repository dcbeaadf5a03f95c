//! Checks repositories for damage and repairs them.
//!
//! Maintenance checks each repository once a week, and `graspd repair` at once. What cannot be repaired here is fetched
//! from other git servers: the writer is told which repositories are degraded. Blocks.

use std::sync::Arc;

use grasp_core::repo::RepoPath;
use grasp_core::repo::catalog::EventStatus;
use grasp_git::action_error::ActionError;
use grasp_git::layout::Layout;
use grasp_git::repair::{RepairReport, RepoRepairer};
use tracing::{error, info};

use super::maintenance::NeededFn;
use super::ref_cache::RefCache;

/// Checks and repairs repositories of the running server.
pub(crate) struct RepoRepair {
    pub(crate) repairer: RepoRepairer,
    pub(crate) layout: Arc<Layout>,
    pub(crate) ref_cache: Arc<RefCache>,
    /// Returns the objects that the events of repositories name.
    pub(crate) needed: NeededFn,
    /// Tells the writer that a repository is degraded.
    pub(crate) on_degraded: Box<dyn Fn(RepoPath) + Send + Sync>,
}

impl RepoRepair {
    /// Checks and repairs a repository.
    pub(crate) fn repair(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        let report = if self.layout.repo_dir(repo_path).join("HEAD").exists() {
            self.repairer.repair(repo_path)?
        } else if self.has_lost_folder(repo_path) {
            self.repairer.recreate(repo_path)?
        } else {
            RepairReport::default()
        };
        for pack in &report.indexed_packs {
            info!(target: "git", repo = %repo_path, pack, "damaged pack index repaired");
        }
        for pack in &report.damaged_packs {
            error!(target: "git", repo = %repo_path, pack, "damaged pack moved away");
        }
        self.report_degraded(&report.degraded);
        Ok(report)
    }

    /// Makes the marks of degraded repositories effective.
    pub(crate) fn report_degraded(&self, repo_paths: &[RepoPath]) {
        for repo_path in repo_paths {
            let reason = self.layout.degraded_reason(repo_path).ok().flatten().unwrap_or_default();
            error!(target: "git", repo = %repo_path, reason, "repository is degraded");
            self.ref_cache.on_prune(repo_path.identifier());
            self.ref_cache.forget(repo_path);
            (self.on_degraded)(repo_path.clone());
        }
    }

    /// Returns whether a repository has no folder although it is served and its states name objects.
    fn has_lost_folder(&self, repo_path: &RepoPath) -> bool {
        let is_served = self.ref_cache.open_repo(repo_path).is_some_and(|open| open.status == EventStatus::Served);
        let named = || (self.needed)(std::slice::from_ref(repo_path)).is_some_and(|oids| !oids.is_empty());
        matches!(repo_path, RepoPath::Announced(_)) && is_served && named()
    }
}

//! Removes a repository.

use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::crash_point;
use crate::files::remove_if_exists;
use crate::pool_readers::orphaned;
use crate::refs::Refs;

impl GitJobRunner {
    /// Removes a repository. Its pool stays as long as several other repositories read it; a single one takes over its
    /// packs.
    pub(super) fn delete(&self, repo_path: &RepoPath, changed: &mut Vec<(RepoPath, Refs)>) -> Result<(), ActionError> {
        let (folder, pool) = (self.layout.repo_dir(repo_path), self.layout.pool(repo_path));
        if !folder.exists() {
            return Ok(());
        }
        let foreign_pools = Alternates::read(&folder).context("read alternates")?.foreign_pools();
        self.layout.remove_refs(&folder).context("remove a repository")?;
        changed.push((repo_path.clone(), Refs::default()));
        // The pools of other deleted repositories may have had no other reader.
        for pool in orphaned(foreign_pools) {
            self.layout.release_pool(&pool, repo_path.identifier()).context("remove a pool")?;
        }
        crash_point::point("delete.released");
        if !self.layout.release_pool(&pool, repo_path.identifier()).context("remove a pool")? {
            remove_if_exists(&folder.join("objects/info/alternates")).context("remove a repository")?;
        }
        Ok(())
    }
}

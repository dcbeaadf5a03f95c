//! Removes the folder of a repository that has no row any more.

use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::crash_point;
use crate::files::remove_if_exists;

impl GitJobRunner {
    /// Removes a repository. Its pool stays as long as several other repositories read it; a single one takes over its
    /// packs.
    pub(super) fn delete(&self, repo_path: &RepoPath) -> Result<(), ActionError> {
        let (folder, pool) = (self.layout.repo_dir(repo_path), self.layout.pool(repo_path));
        if !folder.exists() {
            return Ok(());
        }
        // Maintenance decides what becomes of the pool if the disk is full.
        let can_link = !(self.is_disk_full)();
        let foreign_pools = Alternates::read(&folder).context("read alternates")?.foreign_pools();
        self.layout.remove_refs(&folder).context("remove a repository")?;
        // Repositories do not begin to read its pool any more, also if a push was checked with it.
        self.layout.record_prune();
        let readers = self.layout.pool_readers(repo_path.identifier()).context("find the readers of pools")?;
        // The pools of other deleted repositories may have had no other reader.
        for pool in foreign_pools {
            self.layout.release_pool(&pool, &readers, can_link, &*self.rows).context("remove a pool")?;
        }
        crash_point::point("delete.released");
        if !self.layout.release_pool(&pool, &readers, can_link, &*self.rows).context("remove a pool")? {
            remove_if_exists(&folder.join("objects/info/alternates")).context("remove a repository")?;
        }
        Ok(())
    }
}

//! Merges small packs into one. No object is removed.

use grasp_core::repo::{PackHash, RepoPath};

use super::index::{FileChange, IndexChanges, RefTips};
use super::inspection::{PoolInspection, PoolPack};
use super::scratch_dir::ScratchDir;
use super::swap::PoolSwap;
use super::{LOCK_TIMEOUT, MaintenanceOutcome, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::process::ProcessInput;

impl PoolMaintainer {
    /// Returns whether a pool has too many packs, or its index covers too few objects. Reads file names and a few
    /// bytes.
    #[must_use]
    pub fn is_repack_due(&self, repo_path: &RepoPath) -> bool {
        PoolInspection::read(&self.layout.pool(repo_path).join("pack")).is_ok_and(|inspection| {
            let merged = inspection.packs_to_merge();
            !merged.is_empty() || inspection.is_index_due(&merged)
        })
    }

    /// Merges the small packs of a pool if it has many, and writes an index over all packs if there are enough objects.
    ///
    /// # Errors
    /// If the pool or the scratch folder cannot be read or written, or if git fails.
    pub fn repack(&self, repo_path: &RepoPath) -> Result<MaintenanceOutcome, ActionError> {
        if !self.has_pool(repo_path) {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        let pool = self.layout.pool(repo_path);
        let inspection = PoolInspection::read(&pool.join("pack")).context("read a pool")?;
        let removed = inspection.packs_to_merge();
        let is_index_due = inspection.is_index_due(&removed);
        if removed.is_empty() && !is_index_due {
            return Ok(MaintenanceOutcome::NothingToDo);
        }
        let packs: Vec<PoolPack> = inspection.normal().cloned().collect();
        let scratch = ScratchDir::with_packs(&self.layout, &pool, &packs).context("create a scratch folder")?;
        let mut swap = PoolSwap { added: self.merge_packs(&scratch, &removed)?, removed, ..PoolSwap::default() };
        if is_index_due {
            scratch.link_index(&pool).context("create a scratch folder")?;
            let tips = RefTips::new(&*self.refs(repo_path)?, None);
            let midx = self.write_midx(&scratch, &swap.remaining(&packs), &tips)?;
            // An old commit-graph stays valid: the commits that it contains still exist.
            let graph = Some(self.write_graph(&scratch, &tips)?).filter(|graph| *graph != FileChange::Remove);
            swap.indexes = IndexChanges { midx, graph: graph.unwrap_or(FileChange::Keep) };
        } else if inspection.index_covers_any(&swap.removed) {
            swap.indexes.midx = FileChange::Remove;
        }
        swap.sync(&scratch).context("sync packs to disk")?;
        // A backup takes a snapshot of the list of packs, and then links the packs.
        let _removal = self.layout.begin_removal();
        let Some(_lock) = self.layout.repo_locks.lock_within(repo_path.identifier(), LOCK_TIMEOUT) else {
            return Ok(MaintenanceOutcome::Deferred);
        };
        if !swap.is_applicable(&pool, &packs) {
            return Ok(MaintenanceOutcome::Deferred);
        }
        let record = |removed: &[PackHash]| self.record_packs_without(repo_path, removed);
        swap.apply(&scratch, &pool, record).context("move packs into the pool")?;
        Ok(MaintenanceOutcome::Done)
    }

    /// Merges some packs into one.
    fn merge_packs(&self, scratch: &ScratchDir, packs: &[PoolPack]) -> Result<Vec<PoolPack>, ActionError> {
        if packs.is_empty() {
            return Ok(Vec::new());
        }
        let input: String = packs.iter().map(|pack| format!("{}.pack\n", pack.name)).collect();
        scratch.pack_objects(self, &["--stdin-packs"], ProcessInput::Bytes(input.as_bytes()))
    }
}

impl PoolSwap {
    /// Returns the packs of needed objects that the pool has after the swap.
    pub(super) fn remaining<'s>(&'s self, packs: &'s [PoolPack]) -> Vec<&'s PoolPack> {
        let is_removed = |pack: &&PoolPack| self.removed.iter().any(|removed| removed.name == pack.name);
        let added = self.added.iter().filter(|pack| !pack.is_cruft);
        let kept =
            packs.iter().filter(|pack| !pack.is_cruft && !self.added.iter().any(|added| added.name == pack.name));
        kept.filter(|pack| !is_removed(pack)).chain(added).collect()
    }
}

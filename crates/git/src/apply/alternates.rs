//! Sets which pools a repository reads.

use std::path::PathBuf;

use grasp_core::limits;
use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use super::copy_objects::CopyRequest;
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::crash_point;
use crate::refs::Refs;

impl GitJobRunner {
    /// Returns the pools that a repository should read: its own, those of its maintainers' repositories, and those that
    /// it has read before; and whether it is degraded from now on.
    pub(super) fn alternates(
        &self,
        repo_path: &RepoPath,
        maintainers: &[RepoPath],
        refs: &Refs,
    ) -> Result<(Alternates, bool), ActionError> {
        let alternates = Alternates::for_repo(&self.layout, repo_path, maintainers).context("read alternates")?;
        let required: Vec<PathBuf> = maintainers.iter().map(|other| self.layout.pool(other)).collect();
        let mut retained = alternates.foreign_pools();
        retained.retain(|pool| !required.contains(pool));
        if retained.len() <= limits::MAX_RETAINED_POOLS {
            return Ok((alternates, false));
        }
        self.limit_alternates(repo_path, &alternates, &retained, refs)
    }

    /// Reduces the pools that a repository has read before to the limit: first those that its refs do not need. If that
    /// is not enough, the repository is degraded. Copies of objects would let anyone multiply the data of others.
    fn limit_alternates(
        &self,
        repo_path: &RepoPath,
        alternates: &Alternates,
        retained: &[PathBuf],
        refs: &Refs,
    ) -> Result<(Alternates, bool), ActionError> {
        let tips: Vec<&str> = refs.iter().map(|(_, target)| target.oid.as_str()).collect();
        let kept = alternates.without(retained);
        let mut needed =
            self.needed_pools(&CopyRequest { tips: &tips, known: &[], from: retained, kept: &kept.pools() })?;
        let is_degraded = needed.len() > limits::MAX_RETAINED_POOLS;
        if is_degraded {
            // Before the first pool is dropped.
            let reason = "its refs need objects of too many repositories of former maintainers";
            self.rows.set_degraded(repo_path, reason).context("record a degraded repository")?;
            needed.truncate(limits::MAX_RETAINED_POOLS);
        }
        // A push may have been checked with the pools that are not read any more.
        self.layout.record_prune();
        Ok((kept.with(&self.layout, &needed), is_degraded))
    }

    /// Sets the alternates of a repository.
    pub(super) fn set_alternates(&self, wanted: &Alternates) -> Result<(), ActionError> {
        if wanted.write().context("write alternates")? {
            crash_point::point("align.alternates");
        }
        Ok(())
    }
}

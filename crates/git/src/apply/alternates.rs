//! Sets which pools a repository reads.

use std::path::{Path, PathBuf};

use grasp_core::limits;
use grasp_core::repo::RepoPath;

use super::GitJobRunner;
use super::copy_objects::CopyRequest;
use crate::action_error::{ActionContext, ActionError};
use crate::alternates::Alternates;
use crate::crash_point;
use crate::layout::pack_bytes;
use crate::refs::Refs;

impl GitJobRunner {
    /// Returns the pools that a repository should read: its own, those of its maintainers' repositories, and those that
    /// it has read before.
    pub(super) fn alternates(&self, repo_path: &RepoPath, maintainers: &[RepoPath]) -> Result<Alternates, ActionError> {
        let alternates = Alternates::for_repo(&self.layout, repo_path, maintainers).context("read alternates")?;
        let required: Vec<PathBuf> = maintainers.iter().map(|other| self.layout.pool(other)).collect();
        let mut retained = alternates.foreign_pools();
        retained.retain(|pool| !required.contains(pool));
        if retained.len() <= limits::MAX_RETAINED_POOLS {
            return Ok(alternates);
        }
        self.limit_alternates(&self.layout.repo_dir(repo_path), &alternates, retained)
    }

    /// Reduces the pools that a repository has read before to the limit: first those that its refs do not need. Of more
    /// needed ones, the objects of the smallest are copied.
    fn limit_alternates(
        &self,
        folder: &Path,
        alternates: &Alternates,
        retained: Vec<PathBuf>,
    ) -> Result<Alternates, ActionError> {
        let refs = Refs::read(folder).context("read refs")?;
        let tips: Vec<&str> = refs.iter().map(|(_, target)| target.oid.as_str()).collect();
        let kept = alternates.without(&retained);
        let mut needed =
            self.needed_pools(&CopyRequest { tips: &tips, known: &[], from: &retained, kept: &kept.pools() })?;
        needed.sort_by_key(|pool| std::cmp::Reverse(pack_bytes(pool).unwrap_or(0)));
        let copied = needed.split_off(needed.len().min(limits::MAX_RETAINED_POOLS));
        let limited = kept.with(&self.layout, &needed);
        if !copied.is_empty() {
            self.copy_objects(&CopyRequest { tips: &tips, known: &[], from: &copied, kept: &limited.pools() })?;
        }
        Ok(limited)
    }

    /// Sets the alternates of a repository.
    pub(super) fn set_alternates(&self, wanted: &Alternates) -> Result<(), ActionError> {
        if wanted.write().context("write alternates")? {
            crash_point::point("align.alternates");
        }
        Ok(())
    }
}

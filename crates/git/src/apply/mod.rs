//! Runs git jobs: changes the repositories on disk as the admission machine decides.
//!
//! | file | content |
//! |---|---|
//! | `update` | aligns the refs of a repository with a signed state, in steps that are each durable before the next |
//! | `connectivity` | checks whether everything that an object refers to can be read |
//! | `alternates` | sets which pools a repository reads |
//! | `copy_objects` | copies objects from some pools to another |
//! | `adopt_packs` | moves received packs into a pool, or to the staged uploads |
//! | `delete` | removes a repository |
//!
//! One thread runs a job from beginning to end; graspd has a pool of such threads (`repos::workers`). A job describes a
//! state to reach, so running it again changes nothing, whether the first run succeeded or was interrupted.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::git_job::{GitJob, GitJobOutcome, GitOperation};
use grasp_core::repo::RepoPath;

use crate::layout::Layout;
use crate::process::Git;
use crate::refs::Refs;

pub(crate) mod adopt_packs;
mod alternates;
mod connectivity;
mod copy_objects;
mod delete;
mod update;

/// Returns a limit in bytes under the current settings.
pub type MaxBytesFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Returns whether the disk budget is used up.
pub type DiskFullFn = Arc<dyn Fn() -> bool + Send + Sync>;

/// Runs git jobs on a git data folder.
#[derive(Clone)]
pub struct GitJobRunner {
    git: Git,
    layout: Arc<Layout>,
    /// Time limit of each git process.
    timeout: Duration,
    /// Largest pack that is written to copy objects from other repositories.
    max_copy_bytes: MaxBytesFn,
    is_disk_full: DiskFullFn,
}

/// The result of a git job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GitJobResult {
    /// The outcome for the admission machine.
    pub outcome: GitJobOutcome,
    /// The refs of every repository whose refs on disk may differ from the served ones, or that has a new folder. A
    /// removed repository has no refs. They are served after the outcome has been committed. A failed job has entries
    /// only if it failed in the middle.
    pub refs: Vec<(RepoPath, Refs)>,
}

impl GitJobRunner {
    /// Returns a runner for a git data folder. No git process takes longer than `timeout`.
    #[must_use]
    pub fn new(git: Git, layout: Arc<Layout>, timeout: Duration) -> Self {
        Self { git, layout, timeout, max_copy_bytes: Arc::new(|| u64::MAX), is_disk_full: Arc::new(|| false) }
    }

    /// Returns the same runner with a limit on the pack that is written to copy objects from other repositories. Each
    /// copy uses the limit of that moment.
    #[must_use]
    pub fn with_max_copy_bytes(self, max_copy_bytes: MaxBytesFn) -> Self {
        Self { max_copy_bytes, ..self }
    }

    /// Returns the same runner with a function that tells whether the disk is full. A deleted repository then does not
    /// leave its packs to the only repository that reads them.
    #[must_use]
    pub fn with_disk_full(self, is_disk_full: DiskFullFn) -> Self {
        Self { is_disk_full, ..self }
    }

    /// Runs a job. At most one job per repository identifier may run at a time.
    #[must_use]
    pub fn run(&self, job: &GitJob) -> GitJobResult {
        // Waits for a running snapshot. This comes before the repository lock, which the snapshot takes too.
        let _removal = matches!(job.operation, GitOperation::Delete).then(|| self.layout.begin_removal());
        let _lock = self.layout.repo_locks.lock(job.repo_path.identifier());
        let folder = self.layout.repo_dir(&job.repo_path);
        let is_new = !update::repo_exists(&folder);
        let mut refs = Vec::new();
        let result = match &job.operation {
            GitOperation::Align(alignment) => {
                self.align(&job.repo_path, alignment, &mut refs).map(GitJobOutcome::Aligned)
            }
            GitOperation::StageUploads(moves) => self.stage(moves).map(|()| GitJobOutcome::Staged),
            GitOperation::Delete => self.delete(&job.repo_path, &mut refs).map(|()| GitJobOutcome::Deleted),
        };
        if is_new && refs.is_empty() && update::repo_exists(&folder) {
            // Reported so that the new repository is removed later if it is not needed.
            refs.extend(Refs::read(&folder).map(|read| (job.repo_path.clone(), read)));
        }
        let outcome = result.unwrap_or_else(|error| GitJobOutcome::Failed(format!("{}: {error}", job.repo_path)));
        GitJobResult { outcome, refs }
    }
}

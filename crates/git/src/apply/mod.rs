//! Runs git jobs: adds objects to repositories as the admission machine decides, and finds out which refs a repository
//! should have. The writer stores these refs; [`write_ref_files`](GitJobRunner::write_ref_files) then writes them to the
//! repository's folder.
//!
//! | file | content |
//! |---|---|
//! | `update` | aligns a repository with a signed state: adds objects, durably, and determines its refs |
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

use crate::action_error::{ActionContext, ActionError};
use crate::layout::{Layout, create_bare_repo};
use crate::process::Git;
use crate::refs::write_refs;
use crate::repo_rows::RepoRows;

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
    rows: Arc<dyn RepoRows>,
    /// Time limit of each git process.
    timeout: Duration,
    /// Largest pack that is written to copy objects from other repositories.
    max_copy_bytes: MaxBytesFn,
    is_disk_full: DiskFullFn,
}

/// The result of writing the ref files of a repository.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefFiles {
    /// They had the content of this version of the row; 0 if the repository has no row.
    Unchanged(u64),
    /// They were different, and have the content of this version now.
    Written(u64),
    /// Other work on the repository took too long.
    Busy,
    /// The folder of the repository is lost, with its objects.
    FolderMissing,
}

impl GitJobRunner {
    /// Returns a runner for a git data folder. No git process takes longer than `timeout`.
    #[must_use]
    pub fn new(git: Git, layout: Arc<Layout>, rows: Arc<dyn RepoRows>, timeout: Duration) -> Self {
        Self { git, layout, rows, timeout, max_copy_bytes: Arc::new(|| u64::MAX), is_disk_full: Arc::new(|| false) }
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

    /// Runs a job and passes its outcome to `on_done`, before other work on repositories with this identifier can begin.
    /// At most one job per repository identifier may run at a time.
    pub fn run<R>(&self, job: &GitJob, on_done: impl FnOnce(GitJobOutcome) -> R) -> R {
        // Waits for a running snapshot. This comes before the repository lock, which the snapshot takes too.
        let _removal = matches!(job.operation, GitOperation::Delete).then(|| self.layout.begin_removal());
        let _lock = self.layout.repo_locks.lock(job.repo_path.identifier());
        let result = match &job.operation {
            GitOperation::Align(alignment) => self.align(&job.repo_path, alignment).map(GitJobOutcome::Aligned),
            GitOperation::StageUploads(moves) => self.stage(moves).map(|()| GitJobOutcome::Staged),
            GitOperation::Delete => self.delete(&job.repo_path).map(|()| GitJobOutcome::Deleted),
        };
        on_done(result.unwrap_or_else(|error| GitJobOutcome::Failed(format!("{}: {error}", job.repo_path))))
    }

    /// Makes the ref files in the folder of a repository equal to its row. Waits at most `timeout` for other work on
    /// repositories with this identifier.
    ///
    /// # Errors
    /// If the store or the folder cannot be read or written.
    pub fn write_ref_files(&self, repo_path: &RepoPath, timeout: Duration) -> Result<RefFiles, ActionError> {
        let Some(_lock) = self.layout.repo_locks.lock_within(repo_path.identifier(), timeout) else {
            return Ok(RefFiles::Busy);
        };
        let Some(row) = self.rows.row(repo_path).context("read the refs of a repository")? else {
            return Ok(RefFiles::Unchanged(0));
        };
        let folder = self.layout.repo_dir(repo_path);
        if !update::repo_exists(&folder) && !row.refs.is_empty() {
            return Ok(RefFiles::FolderMissing);
        }
        create_bare_repo(&folder).context("create a repository")?;
        let is_changed = write_refs(&folder, &row.refs).context("write refs")?;
        Ok(if is_changed { RefFiles::Written(row.version) } else { RefFiles::Unchanged(row.version) })
    }
}

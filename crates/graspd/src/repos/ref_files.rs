//! Writes the refs of repositories to their folders, where git and people read them.
//!
//! The store has the refs; the files follow. The writer reports each repository whose refs it has changed, after the
//! commit. At the start all repositories are compared with their rows, because a crash, or another program, may have
//! left other files. A repository whose row is damaged, whose folder is lost or whose packs are missing is repaired.
//! Refs are served from the store and objects by their ids; git reads the files for a few options of a fetch, so the
//! files of a repository are compared before its first fetch, too, and before a fetch that follows a change.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use grasp_core::repo::RepoPath;
use grasp_git::apply::{GitJobRunner, RefFiles};
use tracing::{info, warn};

use super::ref_cache::RefCache;
use super::repair::RepoRepair;

/// How long the worker waits before it compares all repositories: the requests that waited for the start come first.
const START_DELAY: Duration = Duration::from_secs(1);

/// How long the worker waits before it tries again what has failed: the disk may be full.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// How long the worker, and a fetch, wait for other work on a repository. Most takes milliseconds; a repair takes minutes,
/// and the files of other repositories must not wait for it.
const BUSY_TIMEOUT: Duration = Duration::from_millis(500);

/// Reports repositories whose refs have changed.
#[derive(Clone)]
pub(crate) struct RefFilesHandle(Sender<RepoPath>);

/// Writes ref files that are not current.
pub(crate) struct RefFileWriter {
    pub(crate) job_runner: Arc<GitJobRunner>,
    pub(crate) ref_cache: Arc<RefCache>,
}

/// Writes all ref files, on its own thread.
pub(crate) struct RefFilesWorker {
    pub(crate) changed: Receiver<RepoPath>,
    pub(crate) writer: Arc<RefFileWriter>,
    pub(crate) repair: Arc<RepoRepair>,
}

/// Repositories whose files could not be written.
struct FailedRepos {
    repo_paths: BTreeSet<RepoPath>,
    retry_at: Instant,
}

impl RefFilesHandle {
    /// Returns the handle and its receiving end.
    pub(crate) fn new() -> (Self, Receiver<RepoPath>) {
        // Not bounded: there is at most one entry per change of refs, and the worker is faster than commits.
        let (sender, changed) = crossbeam_channel::unbounded();
        (Self(sender), changed)
    }

    /// Reports a repository after the commit of its refs.
    pub(crate) fn refs_changed(&self, repo_path: &RepoPath) {
        let _ = self.0.send(repo_path.clone());
    }
}

impl RefFileWriter {
    /// Makes the ref files of a repository current before git reads them, unless they are known to be. If that fails, git
    /// works with the files as they are.
    pub(crate) fn update(&self, repo_path: &RepoPath) {
        if self.ref_cache.has_current_files(repo_path) {
            return;
        }
        if let Err(error) = self.write(repo_path) {
            warn!(target: "git", repo = %repo_path, %error, "cannot write the refs of a repository to its folder");
        }
    }

    fn write(&self, repo_path: &RepoPath) -> Result<RefFiles, grasp_git::action_error::ActionError> {
        let files = self.job_runner.write_ref_files(repo_path, BUSY_TIMEOUT)?;
        if let RefFiles::Unchanged(version) | RefFiles::Written(version) = files {
            self.ref_cache.files_written(repo_path, version);
        }
        Ok(files)
    }
}

impl RefFilesWorker {
    /// Compares the files of all repositories with their refs, and writes those that are reported, until the handle is
    /// dropped and everything that was reported is written. What fails is tried again.
    pub(crate) fn run(self, all: BTreeSet<RepoPath>) {
        let mut failed = FailedRepos { repo_paths: BTreeSet::new(), retry_at: Instant::now() + RETRY_DELAY };
        let start_at = Instant::now() + START_DELAY;
        loop {
            match self.changed.recv_timeout(start_at.saturating_duration_since(Instant::now())) {
                Ok(reported) => drop(self.write(&reported, &mut failed)),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        for repo_path in all {
            loop {
                match self.changed.try_recv() {
                    Ok(reported) => drop(self.write(&reported, &mut failed)),
                    Err(TryRecvError::Empty) => break,
                    // The next start compares them again.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.check(&repo_path);
            if matches!(self.write(&repo_path, &mut failed), Some(RefFiles::Written(_))) {
                info!(target: "git", repo = %repo_path, "ref files differed from the event store and were written again");
            }
        }
        loop {
            let timeout = failed.retry_at.saturating_duration_since(Instant::now());
            match self.changed.recv_timeout(timeout) {
                Ok(repo_path) => drop(self.write(&repo_path, &mut failed)),
                Err(RecvTimeoutError::Timeout) => {
                    failed.retry_at = Instant::now() + RETRY_DELAY;
                    for repo_path in std::mem::take(&mut failed.repo_paths) {
                        self.write(&repo_path, &mut failed);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Checks what can be checked quickly: the row, and whether all packs are here. What is wrong is repaired.
    fn check(&self, repo_path: &RepoPath) {
        self.repair.check_row(repo_path);
        if let Err(error) = self.repair.check_packs(repo_path) {
            warn!(target: "git", repo = %repo_path, %error, "cannot check the packs of a repository");
        }
    }

    /// Writes the files of a repository. Returns the result, or `None` if it must be tried again.
    fn write(&self, repo_path: &RepoPath, failed: &mut FailedRepos) -> Option<RefFiles> {
        let result = match self.writer.write(repo_path) {
            Ok(RefFiles::FolderMissing) => self.repair.repair(repo_path).map(|_| RefFiles::FolderMissing),
            result => result,
        };
        match result {
            Ok(RefFiles::Busy) => {}
            Ok(files) => return Some(files),
            Err(error) => {
                warn!(target: "git", repo = %repo_path, %error, "cannot write the refs of a repository to its folder");
            }
        }
        failed.repo_paths.insert(repo_path.clone());
        None
    }
}

//! Writes the refs of repositories to their folders, where git and people read them.
//!
//! The store has the refs; the files follow. The writer reports each repository whose refs it has changed, after the
//! commit. At the start all repositories are compared with their rows, because a crash, or another program, may have
//! left other files. A repository whose
//! row is damaged or whose folder is lost is repaired. No request waits for this: refs are served from the store, and objects by their ids.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::repo::RepoPath;
use grasp_git::apply::{GitJobRunner, RefFiles};
use tracing::{info, warn};

use super::repair::RepoRepair;

/// How long the worker waits before it tries again what has failed: the disk may be full.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Reports repositories whose refs have changed.
#[derive(Clone)]
pub(crate) struct RefFilesHandle(Sender<RepoPath>);

/// Writes the files, on its own thread.
pub(crate) struct RefFilesWorker {
    pub(crate) changed: Receiver<RepoPath>,
    pub(crate) job_runner: Arc<GitJobRunner>,
    pub(crate) repair: Arc<RepoRepair>,
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

impl RefFilesWorker {
    /// Compares the files of all repositories with their refs, and writes those that are reported, until the handle is
    /// dropped and everything is written. What fails is tried again.
    pub(crate) fn run(self, all: BTreeSet<RepoPath>) {
        let mut failed = BTreeSet::new();
        for repo_path in all {
            self.write_reported(self.changed.try_iter(), &mut failed);
            self.repair.check_row(&repo_path);
            if self.write(&repo_path, &mut failed) == RefFiles::Written {
                info!(target: "git", repo = %repo_path, "ref files differed from the event store and were written again");
            }
        }
        loop {
            let reported = match self.changed.recv_timeout(RETRY_DELAY) {
                Ok(repo_path) => std::iter::once(repo_path).chain(self.changed.try_iter()).collect(),
                Err(RecvTimeoutError::Timeout) => std::mem::take(&mut failed),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.write_reported(reported.into_iter(), &mut failed);
        }
    }

    fn write_reported(&self, reported: impl Iterator<Item = RepoPath>, failed: &mut BTreeSet<RepoPath>) {
        // A repository that was reported several times is written once.
        for repo_path in reported.collect::<BTreeSet<_>>() {
            self.write(&repo_path, failed);
        }
    }

    /// Writes the files of a repository.
    fn write(&self, repo_path: &RepoPath, failed: &mut BTreeSet<RepoPath>) -> RefFiles {
        let result = match self.job_runner.write_ref_files(repo_path) {
            Ok(RefFiles::FolderMissing) => self.repair.repair(repo_path).map(|_| RefFiles::FolderMissing),
            result => result,
        };
        result.unwrap_or_else(|error| {
            warn!(target: "git", repo = %repo_path, %error, "cannot write the refs of a repository to its folder");
            failed.insert(repo_path.clone());
            RefFiles::Unchanged
        })
    }
}

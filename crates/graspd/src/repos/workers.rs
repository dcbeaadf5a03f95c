//! Threads that run the git jobs of the writer, and one thread that removes files.
//!
//! Both mostly wait for the disk. The writer bounds the number of jobs; removal is bounded by what exists.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use grasp_core::admission::git_job::{GitJob, GitJobOutcome, GitOperation, ReceivedPack};
use grasp_core::limits;
use grasp_git::apply::GitJobRunner;
use grasp_git::layout::Layout;
use grasp_git::receive::Quarantine;
use tracing::{debug, warn};

/// Receives the result of a job.
pub(crate) type JobDoneFn = Arc<dyn Fn(GitJob, GitJobOutcome) + Send + Sync>;

/// Something to be removed. It may take a while, and no request waits for it.
enum CleanupTask {
    /// Moves received packs to the trash and empties it.
    Discard(Vec<ReceivedPack>),
    /// Drops packs, which removes their folders.
    Drop(Vec<Quarantine>),
    EmptyTrash,
}

/// Sends jobs to the git workers and tasks to the cleanup worker.
#[derive(Clone)]
pub(crate) struct GitWorkers {
    jobs: Sender<GitJob>,
    cleanup: Sender<CleanupTask>,
}

/// One thread that runs git jobs.
pub(crate) struct GitWorker {
    jobs: Receiver<GitJob>,
    cleanup: Sender<CleanupTask>,
    job_runner: Arc<GitJobRunner>,
    on_done: JobDoneFn,
}

/// The thread that removes files.
pub(crate) struct CleanupWorker {
    tasks: Receiver<CleanupTask>,
    layout: Arc<Layout>,
}

impl GitWorkers {
    /// Returns the handle and the workers, each of which is to be run on its own thread.
    pub(crate) fn new(
        job_runner: &Arc<GitJobRunner>,
        layout: &Arc<Layout>,
        on_done: &JobDoneFn,
    ) -> (Self, Vec<GitWorker>, CleanupWorker) {
        let (jobs, job_receiver) = crossbeam_channel::unbounded();
        let (cleanup, tasks) = crossbeam_channel::unbounded();
        let new_worker = |_| GitWorker {
            jobs: job_receiver.clone(),
            cleanup: cleanup.clone(),
            job_runner: job_runner.clone(),
            on_done: on_done.clone(),
        };
        let workers = (0..limits::MAX_CONCURRENT_GIT_JOBS).map(new_worker).collect();
        (Self { jobs, cleanup }, workers, CleanupWorker { tasks, layout: layout.clone() })
    }

    /// Queues a job. Its result goes to the function that the workers were created with.
    pub(crate) fn submit(&self, job: GitJob) {
        let _ = self.jobs.send(job);
    }

    /// Removes received packs that admission does not need.
    pub(crate) fn discard(&self, received_packs: Vec<ReceivedPack>) {
        if !received_packs.is_empty() {
            let _ = self.cleanup.send(CleanupTask::Discard(received_packs));
        }
    }

    /// Drops packs on the cleanup thread, because that removes files.
    pub(crate) fn drop_packs(&self, packs: Vec<Quarantine>) {
        if !packs.is_empty() {
            let _ = self.cleanup.send(CleanupTask::Drop(packs));
        }
    }
}

impl GitWorker {
    /// Runs jobs until the handle is dropped.
    pub(crate) fn run(self) {
        for job in &self.jobs {
            let is_deletion = matches!(job.operation, GitOperation::Delete);
            self.job_runner.run(&job, |outcome| {
                log_outcome(&job, &outcome);
                (self.on_done)(job.clone(), outcome);
            });
            if is_deletion {
                let _ = self.cleanup.send(CleanupTask::EmptyTrash);
            }
        }
    }
}

fn log_outcome(job: &GitJob, outcome: &GitJobOutcome) {
    let repo = &job.repo_path;
    match outcome {
        GitJobOutcome::Failed(error) => warn!(target: "git", %repo, %error, "git job failed, it will be tried again"),
        GitJobOutcome::Aligned(_) => debug!(target: "git", %repo, outcome = "aligned", "git job done"),
        GitJobOutcome::Staged => debug!(target: "git", %repo, outcome = "staged", "git job done"),
        GitJobOutcome::Deleted => debug!(target: "git", %repo, outcome = "deleted", "git job done"),
    }
}

impl CleanupWorker {
    /// Runs tasks until the handle is dropped.
    pub(crate) fn run(self) {
        for task in &self.tasks {
            match task {
                CleanupTask::Discard(received_packs) => {
                    let _removal = self.layout.begin_removal();
                    for received_pack in received_packs {
                        let folder = self.layout.received_pack(&received_pack);
                        if let Err(error) = self.layout.move_to_trash(&folder) {
                            warn!(target: "git", %error, "cannot remove upload");
                        }
                    }
                    self.empty_trash();
                }
                CleanupTask::Drop(packs) => drop(packs),
                CleanupTask::EmptyTrash => self.empty_trash(),
            }
        }
    }

    fn empty_trash(&self) {
        if let Err(error) = self.layout.empty_trash() {
            warn!(target: "git", %error, "cannot empty trash folder");
        }
    }
}

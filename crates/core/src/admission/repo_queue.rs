//! Queues of git work. Git jobs run one at a time for all repositories with the same identifier, because they read each
//! other's objects, and for a limited number of identifiers at a time, because they share one disk.
//!
//! In each queue received pushes go first, because clients wait for them. Tasks form a set, so that adding one twice
//! has no effect (docs/design/admission.md#git-jobs-per-repository).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::git_job::GitJobId;
use super::io::{FetchedPack, PushId, ReceivedPush};
use super::push::PushPermit;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoPath};
use crate::time::MonoTime;

/// Work that needs a git job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RepoTask {
    /// Create the ref of a pull request in a repository, or remove it.
    PullRequest(RepoPath, EventId),
    /// Align a repository with the signed events, or delete it if it is not hosted.
    Align(RepoPath),
    /// Delete a repository that has no refs left.
    Delete(RepoPath),
    /// Adopt a fetched pack and align its repository.
    Adopt(FetchedPack),
}

impl RepoTask {
    pub(super) fn repo_path(&self) -> &RepoPath {
        match self {
            Self::PullRequest(repo_path, _) | Self::Align(repo_path) | Self::Delete(repo_path) => repo_path,
            Self::Adopt(fetched_pack) => &fetched_pack.repo_path,
        }
    }
}

/// The work that a running git job belongs to.
#[derive(Clone, Debug)]
pub(super) enum RunningJob {
    /// A push. Its uploads are staged first; `staged` has the numbers of their folders.
    Push { received_push: Box<ReceivedPush>, permit: PushPermit, staged: Vec<(EventId, u64)> },
    /// A task.
    Task(RepoTask),
}

impl RunningJob {
    pub(super) fn repo_path(&self) -> &RepoPath {
        match self {
            Self::Push { received_push, .. } => &received_push.push.repo_path,
            Self::Task(task) => task.repo_path(),
        }
    }
}

/// The queues of all identifiers, and the running jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct RepoQueues {
    queues: BTreeMap<Identifier, RepoQueue>,
    /// Identifiers whose queue has a task, in the order in which they became ready. One whose queue is busy when it is
    /// reached is skipped; it is added again when the queue is released.
    ready: VecDeque<Identifier>,
    /// Identifiers whose queue has a push, in the same order.
    ready_for_push: VecDeque<Identifier>,
    running: BTreeMap<GitJobId, (Identifier, RunningJob)>,
    /// The number of running jobs that are not pushes.
    running_tasks: usize,
    /// Failed tasks with the time of their next attempt.
    delayed: BTreeSet<(MonoTime, RepoTask)>,
    last_job: u64,
}

/// The queue of one identifier.
#[derive(Clone, Debug, Default)]
struct RepoQueue {
    pushes: VecDeque<Box<ReceivedPush>>,
    /// Tasks in the order of their arrival, without duplicates.
    tasks: VecDeque<RepoTask>,
    /// The same tasks, as a set.
    task_set: BTreeSet<RepoTask>,
    /// Whether its identifier is in [`RepoQueues::ready`].
    is_ready: bool,
    /// Whether its identifier is in [`RepoQueues::ready_for_push`].
    is_ready_for_push: bool,
    /// Whether work was taken from it that has not ended.
    is_busy: bool,
}

impl RepoQueues {
    /// Adds a task, unless it is queued already.
    pub(super) fn add(&mut self, task: RepoTask) {
        let identifier = task.repo_path().identifier().clone();
        let queue = self.queues.entry(identifier.clone()).or_default();
        if queue.task_set.insert(task.clone()) {
            queue.tasks.push_back(task);
        }
        self.mark_ready(&identifier);
    }

    /// Queues a received push. Returns its id as the error if too many pushes are queued for its identifier.
    pub(super) fn enqueue_push(&mut self, received_push: Box<ReceivedPush>) -> Result<(), PushId> {
        let identifier = received_push.push.repo_path.identifier().clone();
        let queue = self.queues.entry(identifier.clone()).or_default();
        if queue.pushes.len() >= limits::MAX_QUEUED_PUSHES {
            return Err(received_push.push.id);
        }
        queue.pushes.push_back(received_push);
        self.mark_ready(&identifier);
        Ok(())
    }

    /// Takes the next push that may start now. Its queue is busy until [`release`](Self::release).
    pub(super) fn next_push(&mut self) -> Option<Box<ReceivedPush>> {
        if self.running.len() >= limits::MAX_CONCURRENT_GIT_JOBS {
            return None;
        }
        while let Some(identifier) = self.ready_for_push.pop_front() {
            let Some(queue) = self.queues.get_mut(&identifier) else { continue };
            queue.is_ready_for_push = false;
            if queue.is_busy {
                continue;
            }
            if let Some(received_push) = queue.pushes.pop_front() {
                queue.is_busy = true;
                return Some(received_push);
            }
        }
        None
    }

    /// Takes the next task that may start now. Its queue is busy until [`release`](Self::release).
    pub(super) fn next_task(&mut self) -> Option<RepoTask> {
        if !self.can_start_task() {
            return None;
        }
        while let Some(identifier) = self.ready.pop_front() {
            let Some(queue) = self.queues.get_mut(&identifier) else { continue };
            queue.is_ready = false;
            if queue.is_busy {
                continue;
            }
            if let Some(task) = queue.tasks.pop_front() {
                queue.task_set.remove(&task);
                queue.is_busy = true;
                return Some(task);
            }
        }
        None
    }

    /// Whether a task may start now.
    pub(super) fn has_ready_task(&self) -> bool {
        let is_ready = |identifier: &Identifier| {
            self.queues.get(identifier).is_some_and(|queue| !queue.is_busy && !queue.tasks.is_empty())
        };
        self.can_start_task() && self.ready.iter().any(is_ready)
    }

    /// Whether the limits of running jobs allow another task. Clients wait for pushes, so tasks leave some jobs free for
    /// them.
    fn can_start_task(&self) -> bool {
        self.running.len() < limits::MAX_CONCURRENT_GIT_JOBS
            && self.running_tasks < limits::MAX_CONCURRENT_GIT_JOBS - limits::GIT_JOBS_RESERVED_FOR_PUSHES
    }

    /// Records a running job for the work that was taken from the queue of this identifier.
    pub(super) fn start_job(&mut self, identifier: Identifier, job: RunningJob) -> GitJobId {
        self.last_job += 1;
        let id = GitJobId(self.last_job);
        self.running_tasks += usize::from(matches!(job, RunningJob::Task(_)));
        self.running.insert(id, (identifier, job));
        id
    }

    /// Removes a job that has ended. Its queue stays busy until [`release`](Self::release).
    pub(super) fn end_job(&mut self, id: GitJobId) -> Option<(Identifier, RunningJob)> {
        let ended = self.running.remove(&id)?;
        self.running_tasks -= usize::from(matches!(ended.1, RunningJob::Task(_)));
        Some(ended)
    }

    /// Ends the work that was taken from the queue of this identifier, so that the next may start.
    pub(super) fn release(&mut self, identifier: &Identifier) {
        if let Some(queue) = self.queues.get_mut(identifier) {
            queue.is_busy = false;
        }
        self.mark_ready(identifier);
        self.remove_if_idle(identifier);
    }

    /// Adds a task at a later time.
    pub(super) fn delay(&mut self, task: RepoTask, until: MonoTime) {
        self.delayed.insert((until, task));
    }

    /// Adds the delayed tasks whose time has come.
    pub(super) fn wake(&mut self, now: MonoTime) {
        while let Some((_, task)) = self.delayed.first().filter(|(until, _)| *until <= now).cloned() {
            self.delayed.pop_first();
            self.add(task);
        }
    }

    /// Returns the time of the next delayed task.
    pub(super) fn alarm(&self) -> Option<MonoTime> {
        self.delayed.first().map(|(until, _)| *until)
    }

    /// Whether a task is queued.
    pub(super) fn has(&self, task: &RepoTask) -> bool {
        self.queues.get(task.repo_path().identifier()).is_some_and(|queue| queue.task_set.contains(task))
    }

    /// Whether work for repositories with this identifier is queued or running. It may release held events.
    pub(super) fn is_in_use(&self, identifier: &Identifier) -> bool {
        self.queues
            .get(identifier)
            .is_some_and(|queue| queue.is_busy || !queue.tasks.is_empty() || !queue.pushes.is_empty())
    }

    /// Returns the number of queued pushes, queued tasks and delayed tasks.
    pub(super) fn queued_count(&self) -> usize {
        let queued = self.queues.values().map(|queue| queue.pushes.len() + queue.tasks.len()).sum::<usize>();
        queued + self.delayed.len()
    }

    /// Whether no job is running and none may start now.
    pub(super) fn is_idle(&self) -> bool {
        let can_start = |queue: &RepoQueue| !queue.is_busy && (!queue.tasks.is_empty() || !queue.pushes.is_empty());
        self.running.is_empty() && !self.queues.values().any(can_start)
    }

    fn mark_ready(&mut self, identifier: &Identifier) {
        let Some(queue) = self.queues.get_mut(identifier) else { return };
        if queue.is_busy {
            return;
        }
        if !queue.pushes.is_empty() && !std::mem::replace(&mut queue.is_ready_for_push, true) {
            self.ready_for_push.push_back(identifier.clone());
        }
        if !queue.tasks.is_empty() && !std::mem::replace(&mut queue.is_ready, true) {
            self.ready.push_back(identifier.clone());
        }
    }

    fn remove_if_idle(&mut self, identifier: &Identifier) {
        let idle = |queue: &RepoQueue| !queue.is_busy && queue.tasks.is_empty() && queue.pushes.is_empty();
        if self.queues.get(identifier).is_some_and(idle) {
            self.queues.remove(identifier);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::PublicKey;
    use crate::repo::RepoId;

    fn align(owner: u8) -> RepoTask {
        let identifier = Identifier::new("tool").expect("valid");
        RepoTask::Align(RepoPath::Announced(RepoId { owner: PublicKey([owner; 32]), identifier }))
    }

    #[test]
    fn task_is_queued_until_it_is_taken() {
        let mut queues = RepoQueues::default();
        for owner in [1, 2, 1] {
            queues.add(align(owner));
        }
        assert_eq!(queues.queued_count(), 2);
        for owner in [1, 2] {
            assert!(queues.has(&align(owner)));
            let task = queues.next_task().expect("a task is queued");
            assert_eq!(task, align(owner));
            assert!(!queues.has(&task), "a task that was taken is not queued");
            // A task can be queued again while it runs.
            queues.add(task.clone());
            assert!(queues.has(&task));
            queues.release(task.repo_path().identifier());
        }
        assert!(!queues.has(&align(3)));
    }
}

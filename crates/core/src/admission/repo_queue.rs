//! Whose turn it is in the git room: one order at a time for all repositories of one name, because they read each other's
//! objects; a few names at a time, because the disk is one.
//!
//! Inside a lane complete pushes go first: somebody waits for them. Other work is a set, so that asking twice costs nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::git_job::GitJobId;
use super::io::{FetchedPack, PushId, ReceivedPush};
use super::push::PushPermit;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, RepoPath};
use crate::time::MonoTime;

/// Something to be done when a lane is free.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum RepoTask {
    /// A pull request's ref should come to a site.
    PullRequest(RepoPath, EventId),
    /// A site should be as what is signed says.
    Align(RepoPath),
    /// A site that has no refs left should go.
    Delete(RepoPath),
    /// The hunt has brought objects to a site, which should then be as what is signed says.
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

/// What a lane is doing.
#[derive(Clone, Debug)]
pub(super) enum RunningJob {
    /// A push. Its uploads are put aside first; the numbers are those of their folders.
    Push {
        received_push: Box<ReceivedPush>,
        permit: PushPermit,
        staged: Vec<(EventId, u64)>,
    },
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

/// All lanes.
#[derive(Clone, Debug, Default)]
pub(super) struct RepoQueues {
    queues: BTreeMap<Identifier, RepoQueue>,
    /// Lanes that have something to do, in the order in which they came to be so. One that has been taken meanwhile is
    /// passed over.
    ready: VecDeque<Identifier>,
    /// The same for lanes in which a push waits.
    pushed: VecDeque<Identifier>,
    orders: BTreeMap<GitJobId, (Identifier, RunningJob)>,
    /// How many of the orders are no pushes.
    working: usize,
    /// What failed, and when it may be tried again.
    later: BTreeSet<(MonoTime, RepoTask)>,
    last_order: u64,
}

#[derive(Clone, Debug, Default)]
struct RepoQueue {
    arrivals: VecDeque<Box<ReceivedPush>>,
    /// First come, first served, and nothing twice.
    tasks: VecDeque<RepoTask>,
    noted: BTreeSet<RepoTask>,
    /// It stands among the ready ones.
    queued: bool,
    /// It stands among those in which a push waits.
    pushed: bool,
    busy: bool,
}

/// What a lane may do next.
#[derive(Clone, Debug)]
pub(super) enum QueuedWork {
    Arrival(Box<ReceivedPush>),
    Task(RepoTask),
}

impl RepoQueues {
    /// Notes something to do.
    pub(super) fn add(&mut self, task: RepoTask) {
        let identifier = task.repo_path().identifier().clone();
        let queue = self.queues.entry(identifier.clone()).or_default();
        if queue.noted.insert(task.clone()) {
            queue.tasks.push_back(task);
        }
        self.queue(&identifier);
    }

    /// Lets a complete push wait for its turn; gives it back if too many do.
    pub(super) fn join(&mut self, received_push: Box<ReceivedPush>) -> Result<(), PushId> {
        let identifier = received_push.push.repo_path.identifier().clone();
        let queue = self.queues.entry(identifier.clone()).or_default();
        if queue.arrivals.len() >= limits::MAX_QUEUED_PUSHES {
            return Err(received_push.push.id);
        }
        queue.arrivals.push_back(received_push);
        self.queue(&identifier);
        Ok(())
    }

    /// Takes the next thing that may be done now.
    pub(super) fn next(&mut self) -> Option<QueuedWork> {
        if self.orders.len() >= limits::MAX_CONCURRENT_GIT_JOBS {
            return None;
        }
        while let Some(identifier) = self.pushed.pop_front() {
            let Some(queue) = self.queues.get_mut(&identifier) else { continue };
            queue.pushed = false;
            if queue.busy {
                continue;
            }
            if let Some(received_push) = queue.arrivals.pop_front() {
                queue.busy = true;
                return Some(QueuedWork::Arrival(received_push));
            }
        }
        // Somebody waits for a push; whatever else there is leaves room for some.
        if self.working >= limits::MAX_CONCURRENT_GIT_JOBS - limits::GIT_JOBS_RESERVED_FOR_PUSHES {
            return None;
        }
        while let Some(identifier) = self.ready.pop_front() {
            let Some(queue) = self.queues.get_mut(&identifier) else { continue };
            queue.queued = false;
            if queue.busy {
                continue;
            }
            if let Some(task) = queue.tasks.pop_front() {
                queue.noted.remove(&task);
                queue.busy = true;
                return Some(QueuedWork::Task(task));
            }
        }
        None
    }

    /// Notes that an order is under way for what was taken last from this lane.
    pub(super) fn begin(&mut self, identifier: Identifier, job: RunningJob) -> GitJobId {
        self.last_order += 1;
        let id = GitJobId(self.last_order);
        self.working += usize::from(matches!(job, RunningJob::Task(_)));
        self.orders.insert(id, (identifier, job));
        id
    }

    /// Takes an order that is done out of the books. The lane stays taken until [`free`](Self::free).
    pub(super) fn end(&mut self, order: GitJobId) -> Option<(Identifier, RunningJob)> {
        let ended = self.orders.remove(&order)?;
        self.working -= usize::from(matches!(ended.1, RunningJob::Task(_)));
        Some(ended)
    }

    /// Lets a lane go on with the next thing.
    pub(super) fn free(&mut self, identifier: &Identifier) {
        if let Some(queue) = self.queues.get_mut(identifier) {
            queue.busy = false;
        }
        self.queue(identifier);
        self.forget_if_idle(identifier);
    }

    /// Does something again, later.
    pub(super) fn delay(&mut self, task: RepoTask, until: MonoTime) {
        self.later.insert((until, task));
    }

    /// Takes up what was delayed until now.
    pub(super) fn wake(&mut self, now: MonoTime) {
        while let Some((_, task)) = self.later.first().filter(|(until, _)| *until <= now).cloned() {
            self.later.pop_first();
            self.add(task);
        }
    }

    pub(super) fn alarm(&self) -> Option<MonoTime> {
        self.later.first().map(|(until, _)| *until)
    }

    /// Whether something waits for its turn.
    pub(super) fn has(&self, task: &RepoTask) -> bool {
        self.queues.get(task.repo_path().identifier()).is_some_and(|queue| queue.tasks.contains(task))
    }

    /// The sites of a name that git is at work on.
    pub(super) fn at_work(&self, identifier: &Identifier) -> Vec<RepoPath> {
        let jobs = self.orders.values().filter(|(name, _)| name == identifier);
        jobs.map(|(_, job)| job.repo_path().clone()).collect()
    }

    /// Whether work that may decide about repositories of this name is under way or waits.
    pub(super) fn is_in_use(&self, identifier: &Identifier) -> bool {
        self.queues
            .get(identifier)
            .is_some_and(|queue| queue.busy || !queue.tasks.is_empty() || !queue.arrivals.is_empty())
    }

    /// How much waits for its turn or for another try.
    pub(super) fn held_event(&self) -> usize {
        let queues = self.queues.values().map(|queue| queue.arrivals.len() + queue.tasks.len()).sum::<usize>();
        queues + self.later.len()
    }

    /// Whether anything is under way or may begin at once.
    pub(super) fn is_idle(&self) -> bool {
        let waits = |queue: &RepoQueue| !queue.busy && (!queue.tasks.is_empty() || !queue.arrivals.is_empty());
        self.orders.is_empty() && !self.queues.values().any(waits)
    }

    fn queue(&mut self, identifier: &Identifier) {
        let Some(queue) = self.queues.get_mut(identifier) else { return };
        if queue.busy {
            return;
        }
        if !queue.arrivals.is_empty() && !std::mem::replace(&mut queue.pushed, true) {
            self.pushed.push_back(identifier.clone());
        }
        if !queue.tasks.is_empty() && !std::mem::replace(&mut queue.queued, true) {
            self.ready.push_back(identifier.clone());
        }
    }

    fn forget_if_idle(&mut self, identifier: &Identifier) {
        let idle = |queue: &RepoQueue| !queue.busy && queue.tasks.is_empty() && queue.arrivals.is_empty();
        if self.queues.get(identifier).is_some_and(idle) {
            self.queues.remove(identifier);
        }
    }
}

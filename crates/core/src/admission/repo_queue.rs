//! Whose turn it is in the git room: one order at a time for all repositories of one name, because they read each other's
//! objects; a few names at a time, because the disk is one.
//!
//! Inside a lane complete pushes go first: somebody waits for them. Other work is a set, so that asking twice costs nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::git_job::OrderId;
use super::io::{Arrival, Haul, PushId};
use super::push::Permit;
use crate::limits;
use crate::nostr::event::EventId;
use crate::repo::{Identifier, Site};
use crate::time::Moment;

/// Something to be done when a lane is free.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Task {
    /// A pull request's ref should come to a site.
    Pull(Site, EventId),
    /// A site should be as what is signed says.
    Align(Site),
    /// A site that has no refs left should go.
    Retire(Site),
    /// The hunt has brought objects to a site, which should then be as what is signed says.
    Adopt(Haul),
}

impl Task {
    pub(super) fn site(&self) -> &Site {
        match self {
            Self::Pull(site, _) | Self::Align(site) | Self::Retire(site) => site,
            Self::Adopt(haul) => &haul.site,
        }
    }
}

/// What a lane is doing.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// A push. Its uploads are put aside first; the numbers are those of their folders.
    Push {
        arrival: Box<Arrival>,
        permit: Permit,
        staged: Vec<(EventId, u64)>,
    },
    Task(Task),
}

impl Job {
    pub(super) fn site(&self) -> &Site {
        match self {
            Self::Push { arrival, .. } => &arrival.push.site,
            Self::Task(task) => task.site(),
        }
    }
}

/// All lanes.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    lanes: BTreeMap<Identifier, Lane>,
    /// Lanes that have something to do, in the order in which they came to be so. One that has been taken meanwhile is
    /// passed over.
    ready: VecDeque<Identifier>,
    /// The same for lanes in which a push waits.
    pushed: VecDeque<Identifier>,
    orders: BTreeMap<OrderId, (Identifier, Job)>,
    /// How many of the orders are no pushes.
    working: usize,
    /// What failed, and when it may be tried again.
    later: BTreeSet<(Moment, Task)>,
    last_order: u64,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    arrivals: VecDeque<Box<Arrival>>,
    /// First come, first served, and nothing twice.
    tasks: VecDeque<Task>,
    noted: BTreeSet<Task>,
    /// It stands among the ready ones.
    queued: bool,
    /// It stands among those in which a push waits.
    pushed: bool,
    busy: bool,
}

/// What a lane may do next.
#[derive(Clone, Debug)]
pub(super) enum Next {
    Arrival(Box<Arrival>),
    Task(Task),
}

impl Lanes {
    /// Notes something to do.
    pub(super) fn add(&mut self, task: Task) {
        let identifier = task.site().identifier().clone();
        let lane = self.lanes.entry(identifier.clone()).or_default();
        if lane.noted.insert(task.clone()) {
            lane.tasks.push_back(task);
        }
        self.queue(&identifier);
    }

    /// Lets a complete push wait for its turn; gives it back if too many do.
    pub(super) fn join(&mut self, arrival: Box<Arrival>) -> Result<(), PushId> {
        let identifier = arrival.push.site.identifier().clone();
        let lane = self.lanes.entry(identifier.clone()).or_default();
        if lane.arrivals.len() >= limits::MAX_ARRIVALS {
            return Err(arrival.push.id);
        }
        lane.arrivals.push_back(arrival);
        self.queue(&identifier);
        Ok(())
    }

    /// Takes the next thing that may be done now.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.orders.len() >= limits::MAX_ORDERS {
            return None;
        }
        while let Some(identifier) = self.pushed.pop_front() {
            let Some(lane) = self.lanes.get_mut(&identifier) else { continue };
            lane.pushed = false;
            if lane.busy {
                continue;
            }
            if let Some(arrival) = lane.arrivals.pop_front() {
                lane.busy = true;
                return Some(Next::Arrival(arrival));
            }
        }
        // Somebody waits for a push; whatever else there is leaves room for some.
        if self.working >= limits::MAX_ORDERS - limits::ORDERS_FOR_PUSHES {
            return None;
        }
        while let Some(identifier) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&identifier) else { continue };
            lane.queued = false;
            if lane.busy {
                continue;
            }
            if let Some(task) = lane.tasks.pop_front() {
                lane.noted.remove(&task);
                lane.busy = true;
                return Some(Next::Task(task));
            }
        }
        None
    }

    /// Notes that an order is under way for what was taken last from this lane.
    pub(super) fn begin(&mut self, identifier: Identifier, job: Job) -> OrderId {
        self.last_order += 1;
        let id = OrderId(self.last_order);
        self.working += usize::from(matches!(job, Job::Task(_)));
        self.orders.insert(id, (identifier, job));
        id
    }

    /// Takes an order that is done out of the books. The lane stays taken until [`free`](Self::free).
    pub(super) fn end(&mut self, order: OrderId) -> Option<(Identifier, Job)> {
        let ended = self.orders.remove(&order)?;
        self.working -= usize::from(matches!(ended.1, Job::Task(_)));
        Some(ended)
    }

    /// Lets a lane go on with the next thing.
    pub(super) fn free(&mut self, identifier: &Identifier) {
        if let Some(lane) = self.lanes.get_mut(identifier) {
            lane.busy = false;
        }
        self.queue(identifier);
        self.forget_if_idle(identifier);
    }

    /// Does something again, later.
    pub(super) fn delay(&mut self, task: Task, until: Moment) {
        self.later.insert((until, task));
    }

    /// Takes up what was delayed until now.
    pub(super) fn wake(&mut self, now: Moment) {
        while let Some((_, task)) = self.later.first().filter(|(until, _)| *until <= now).cloned() {
            self.later.pop_first();
            self.add(task);
        }
    }

    pub(super) fn alarm(&self) -> Option<Moment> {
        self.later.first().map(|(until, _)| *until)
    }

    /// Whether something waits for its turn.
    pub(super) fn has(&self, task: &Task) -> bool {
        self.lanes.get(task.site().identifier()).is_some_and(|lane| lane.tasks.contains(task))
    }

    /// The sites of a name that git is at work on.
    pub(super) fn at_work(&self, identifier: &Identifier) -> Vec<Site> {
        let jobs = self.orders.values().filter(|(name, _)| name == identifier);
        jobs.map(|(_, job)| job.site().clone()).collect()
    }

    /// Whether work that may decide about repositories of this name is under way or waits.
    pub(super) fn is_engaged(&self, identifier: &Identifier) -> bool {
        self.lanes.get(identifier).is_some_and(|lane| lane.busy || !lane.tasks.is_empty() || !lane.arrivals.is_empty())
    }

    /// How much waits for its turn or for another try.
    pub(super) fn waiting(&self) -> usize {
        let lanes = self.lanes.values().map(|lane| lane.arrivals.len() + lane.tasks.len()).sum::<usize>();
        lanes + self.later.len()
    }

    /// Whether anything is under way or may begin at once.
    pub(super) fn is_idle(&self) -> bool {
        let waits = |lane: &Lane| !lane.busy && (!lane.tasks.is_empty() || !lane.arrivals.is_empty());
        self.orders.is_empty() && !self.lanes.values().any(waits)
    }

    fn queue(&mut self, identifier: &Identifier) {
        let Some(lane) = self.lanes.get_mut(identifier) else { return };
        if lane.busy {
            return;
        }
        if !lane.arrivals.is_empty() && !std::mem::replace(&mut lane.pushed, true) {
            self.pushed.push_back(identifier.clone());
        }
        if !lane.tasks.is_empty() && !std::mem::replace(&mut lane.queued, true) {
            self.ready.push_back(identifier.clone());
        }
    }

    fn forget_if_idle(&mut self, identifier: &Identifier) {
        let idle = |lane: &Lane| !lane.busy && lane.tasks.is_empty() && lane.arrivals.is_empty();
        if self.lanes.get(identifier).is_some_and(idle) {
            self.lanes.remove(identifier);
        }
    }
}

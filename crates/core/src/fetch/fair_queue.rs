//! The queue of jobs that wait for one host. Owners take turns, then their repositories; dormant jobs come last.
//!
//! The n-th waiting job of an owner is placed n positions behind the last job that was served, so that a thousand jobs
//! of one owner interleave with the few of another. A job keeps its position while it is busy at another host.

use std::collections::{BTreeMap, BTreeSet};

use super::JobId;
use crate::nostr::PublicKey;

/// Priority of a job. Active jobs come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Priority {
    /// At least one event of the job is not dormant.
    Active,
    /// All events of the job are dormant.
    Dormant,
}

/// A position in a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct QueuePosition {
    pub(super) priority: Priority,
    number: u64,
}

/// The queue of one host.
#[derive(Clone, Debug, Default)]
pub(super) struct FairQueue {
    waiting: BTreeSet<(QueuePosition, JobId)>,
    /// The last number that was served, by priority.
    served: BTreeMap<Priority, u64>,
    /// The last number given to each owner, as long as it is greater than the one that was served last.
    last_of_owner: BTreeMap<(Priority, PublicKey), u64>,
}

impl FairQueue {
    /// Returns a new position for a job of an owner. The job is not queued yet.
    pub(super) fn new_position(&mut self, priority: Priority, owner: PublicKey) -> QueuePosition {
        let served = self.served.get(&priority).copied().unwrap_or_default();
        let last = self.last_of_owner.entry((priority, owner)).or_default();
        *last = (*last).max(served) + 1;
        QueuePosition { priority, number: *last }
    }

    /// Adds a job at a position.
    pub(super) fn join(&mut self, position: QueuePosition, job: JobId) {
        self.waiting.insert((position, job));
    }

    /// Removes a job. It may join again at the same position.
    pub(super) fn leave(&mut self, position: QueuePosition, job: JobId) {
        self.waiting.remove(&(position, job));
        if self.waiting.is_empty() {
            self.last_of_owner.clear();
        }
    }

    /// Removes a job because it was served.
    pub(super) fn mark_served(&mut self, position: QueuePosition, job: JobId) {
        let served = self.served.entry(position.priority).or_default();
        *served = (*served).max(position.number);
        let served = *served;
        // Entries that are not ahead have no effect. They are removed only now and then, because each job adds at most
        // one.
        if self.last_of_owner.len() > 2 * self.waiting.len() + 16 {
            self.last_of_owner.retain(|(priority, _), last| *priority != position.priority || *last > served);
        }
        self.leave(position, job);
    }

    /// Returns the job that is first in the queue.
    pub(super) fn first(&self) -> Option<JobId> {
        self.waiting.first().map(|(_, job)| *job)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(queue: &mut FairQueue, positions: &BTreeMap<JobId, QueuePosition>) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(job) = queue.first() {
            queue.mark_served(positions[&job], job);
            order.push(job.0);
        }
        order
    }

    #[test]
    fn owners_take_turns_and_dormant_jobs_come_last() {
        let (mut queue, mut positions) = (FairQueue::default(), BTreeMap::new());
        let owner = |n| PublicKey([n; 32]);
        // One owner has four repositories, another comes later with two, and a third has a dormant job.
        for (job, priority, who) in [
            (9, Priority::Dormant, 3),
            (1, Priority::Active, 1),
            (2, Priority::Active, 1),
            (3, Priority::Active, 1),
            (4, Priority::Active, 1),
            (5, Priority::Active, 2),
            (6, Priority::Active, 2),
        ] {
            let position = queue.new_position(priority, owner(who));
            queue.join(position, JobId(job));
            positions.insert(JobId(job), position);
        }
        assert_eq!(queue.len(), 7);
        assert_eq!(served(&mut queue, &positions), [1, 5, 2, 6, 3, 4, 9]);
    }

    #[test]
    fn a_position_is_kept_and_a_new_owner_is_not_delayed_by_many_jobs() {
        let (mut queue, mut positions) = (FairQueue::default(), BTreeMap::new());
        for job in 1..=5 {
            let position = queue.new_position(Priority::Active, PublicKey([1; 32]));
            queue.join(position, JobId(job));
            positions.insert(JobId(job), position);
        }
        queue.mark_served(positions[&JobId(1)], JobId(1));
        queue.leave(positions[&JobId(2)], JobId(2));
        queue.mark_served(positions[&JobId(3)], JobId(3));
        queue.join(positions[&JobId(2)], JobId(2));
        let position = queue.new_position(Priority::Active, PublicKey([2; 32]));
        queue.join(position, JobId(8));
        positions.insert(JobId(8), position);
        assert_eq!(served(&mut queue, &positions), [2, 4, 8, 5]);
    }
}

//! Virtual time: what happens next, and in which order.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Milliseconds since the world began. Every clock in it is made from this.
pub type Time = u64;

/// A second.
pub const SECOND: Time = 1_000;
/// A minute.
pub const MINUTE: Time = 60 * SECOND;
/// An hour.
pub const HOUR: Time = 60 * MINUTE;
/// A day.
pub const DAY: Time = 24 * HOUR;

struct Entry<T> {
    at: Time,
    nth: u64,
    what: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first: that must be the earliest.
        (other.at, other.nth).cmp(&(self.at, self.nth))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

/// What is to happen, the earliest first; of the same moment, what was planned first.
pub struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    planned: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<T> Queue<T> {
    /// Plans something.
    pub fn plan(&mut self, at: Time, what: T) {
        self.planned += 1;
        self.heap.push(Entry { at, nth: self.planned, what });
    }

    /// The next thing, unless it comes later than `end`.
    pub fn next(&mut self, end: Time) -> Option<(Time, T)> {
        if self.heap.peek()?.at > end {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.what))
    }

    /// How much is planned.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_ties_keep_their_order() {
        let mut queue = Queue::default();
        for (at, what) in [(5, "c"), (3, "a"), (5, "d"), (3, "b"), (9, "e")] {
            queue.plan(at, what);
        }
        let mut seen = Vec::new();
        while let Some((_, what)) = queue.next(8) {
            seen.push(what);
        }
        assert_eq!((seen, queue.len()), (vec!["a", "b", "c", "d"], 1));
    }
}

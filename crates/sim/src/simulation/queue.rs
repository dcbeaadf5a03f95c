//! Virtual time and the queue of scheduled items.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Milliseconds since the start of the world. All simulated clocks derive from it.
pub type Time = u64;

/// One second.
pub const SECOND: Time = 1_000;
/// One minute.
pub const MINUTE: Time = 60 * SECOND;
/// One hour.
pub const HOUR: Time = 60 * MINUTE;
/// One day.
pub const DAY: Time = 24 * HOUR;

struct Entry<T> {
    at: Time,
    order: u64,
    item: T,
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap returns the greatest entry first, which must be the earliest.
        (other.at, other.order).cmp(&(self.at, self.order))
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

/// Scheduled items, ordered by time; items of the same time keep the order in which they were scheduled.
pub struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    scheduled: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0 }
    }
}

impl<T> Queue<T> {
    /// Schedules an item.
    pub fn schedule(&mut self, at: Time, item: T) {
        self.scheduled += 1;
        self.heap.push(Entry { at, order: self.scheduled, item });
    }

    /// Removes and returns the next item, unless it is later than `end`.
    pub fn next(&mut self, end: Time) -> Option<(Time, T)> {
        if self.heap.peek()?.at > end {
            return None;
        }
        self.heap.pop().map(|entry| (entry.at, entry.item))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_comes_first_and_ties_keep_their_order() {
        let mut queue = Queue::default();
        for (at, item) in [(5, "c"), (3, "a"), (5, "d"), (3, "b"), (9, "e")] {
            queue.schedule(at, item);
        }
        let mut seen = Vec::new();
        while let Some((_, item)) = queue.next(8) {
            seen.push(item);
        }
        assert_eq!((seen, queue.next(9)), (vec!["a", "b", "c", "d"], Some((9, "e"))));
    }
}

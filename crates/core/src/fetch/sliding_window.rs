//! What was asked within the last minute.

use std::collections::VecDeque;

use crate::time::{Moment, Now, Timestamp};

/// A minute.
const MILLIS: u64 = 60_000;

/// Requests of the last minute, as the moments at which each stops counting, the earliest first. So they can be of a time
/// before the process began.
#[derive(Clone, Debug, Default)]
pub(super) struct Window(VecDeque<Moment>);

impl Window {
    /// Forgets what is over.
    pub(super) fn prune(&mut self, now: Moment) {
        while self.0.front().is_some_and(|end| *end <= now) {
            self.0.pop_front();
        }
    }

    /// Counts a request that begins now.
    pub(super) fn count(&mut self, now: Moment) {
        self.insert(Moment(now.0.saturating_add(MILLIS)));
    }

    fn insert(&mut self, end: Moment) {
        let at = self.0.partition_point(|other| *other <= end);
        self.0.insert(at, end);
    }

    /// Counts another's requests, too.
    pub(super) fn join(&mut self, other: &Self) {
        for end in &other.0 {
            self.insert(*end);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// When fewer than so many count. At once if that is so now.
    pub(super) fn free_at(&self, limit: usize) -> Option<Moment> {
        let last = self.0.len().checked_sub(limit.max(1))?;
        self.0.get(last).copied()
    }

    /// The wall time of each request, for its row. No later than the second in which it was, none earlier.
    pub(super) fn asked(&self, now: Now) -> Vec<Timestamp> {
        let wall = |end: &Moment| {
            let began = now.mono.0.saturating_add(MILLIS);
            match began.checked_sub(end.0) {
                Some(ago) => Timestamp(now.wall.0.saturating_sub(ago / 1_000)),
                None => now.wall.plus_secs((end.0 - began).div_ceil(1_000)),
            }
        };
        self.0.iter().map(wall).collect()
    }

    /// Restores what a row says. A second is taken for its end, and a clock that was set back changes little.
    pub(super) fn restore(&mut self, now: Now, asked: &[Timestamp], ahead: u64) {
        for at in asked {
            let left = at.plus_secs(1 + MILLIS / 1_000).secs_since(now.wall).min(1 + MILLIS / 1_000 + ahead);
            if left > 0 {
                self.insert(now.mono.plus_secs(left));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Now {
        Now { mono: Moment(millis), wall: Timestamp(1_000 + millis / 1_000) }
    }

    #[test]
    fn a_sliding_minute() {
        let mut window = Window::default();
        assert_eq!(window.free_at(1), None);
        for millis in [0, 10, 20] {
            window.count(Moment(millis));
        }
        assert_eq!(
            (window.free_at(4), window.free_at(3), window.free_at(1)),
            (None, Some(Moment(60_000)), Some(Moment(60_020)))
        );
        window.prune(Moment(59_999));
        assert_eq!(window.len(), 3);
        window.prune(Moment(60_010));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn a_restart_never_makes_it_shorter() {
        for asked in [5_000, 5_001, 5_999] {
            for stopped in [6_000, 6_500, 30_250] {
                let mut window = Window::default();
                window.count(Moment(asked));
                let row = window.asked(at(stopped));
                // The process begins again, and so does its clock.
                for again in [stopped, stopped + 700, stopped + 20_000] {
                    let mut restored = Window::default();
                    let now = Now { mono: Moment(3), wall: at(again).wall };
                    restored.restore(now, &row, 0);
                    let end = restored.free_at(1).expect("still counts").0 - 3 + again;
                    assert!((asked + 60_000..asked + 63_000).contains(&end), "{asked} {stopped} {again}: {end}");
                }
            }
        }
        let mut restored = Window::default();
        restored.restore(at(100_000), &[Timestamp(1), Timestamp(u64::MAX)], 5);
        assert_eq!(restored.free_at(1), Some(Moment(166_000)));
    }
}

//! A sliding window over the requests of the last minute.

use std::collections::VecDeque;

use crate::time::{MonoTime, Now, Timestamp};

/// Length of the window.
const WINDOW_MILLIS: u64 = 60_000;

/// The requests of the last minute, each as the time at which it stops counting, the earliest first. This form can also
/// represent requests made before the process began.
#[derive(Clone, Debug, Default)]
pub(super) struct SlidingWindow(VecDeque<MonoTime>);

impl SlidingWindow {
    /// Removes requests that do not count any more.
    pub(super) fn prune(&mut self, now: MonoTime) {
        while self.0.front().is_some_and(|end| *end <= now) {
            self.0.pop_front();
        }
    }

    /// Counts a request that begins now.
    pub(super) fn record(&mut self, now: MonoTime) {
        self.insert(MonoTime(now.0.saturating_add(WINDOW_MILLIS)));
    }

    fn insert(&mut self, end: MonoTime) {
        let at = self.0.partition_point(|other| *other <= end);
        self.0.insert(at, end);
    }

    /// Counts the requests of another window too.
    pub(super) fn merge(&mut self, other: &Self) {
        for end in &other.0 {
            self.insert(*end);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns when fewer than `limit` requests count, or `None` if that is the case now.
    pub(super) fn free_at(&self, limit: usize) -> Option<MonoTime> {
        let last = self.0.len().checked_sub(limit.max(1))?;
        self.0.get(last).copied()
    }

    /// Returns the wall time of each request, for the stored row. Rounded up to the second, so that a request never
    /// stops counting too early.
    pub(super) fn request_times(&self, now: Now) -> Vec<Timestamp> {
        let wall = |end: &MonoTime| {
            let began = now.mono.0.saturating_add(WINDOW_MILLIS);
            match began.checked_sub(end.0) {
                Some(ago) => Timestamp(now.wall.0.saturating_sub(ago / 1_000)),
                None => now.wall.plus_secs((end.0 - began).div_ceil(1_000)),
            }
        };
        self.0.iter().map(wall).collect()
    }

    /// Restores requests from a stored row. A second is taken as its end, and the result is bounded, so that a clock
    /// that was set back has little effect.
    pub(super) fn restore(&mut self, now: Now, asked: &[Timestamp], ahead: u64) {
        for at in asked {
            let left =
                at.plus_secs(1 + WINDOW_MILLIS / 1_000).secs_since(now.wall).min(1 + WINDOW_MILLIS / 1_000 + ahead);
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
        Now { mono: MonoTime(millis), wall: Timestamp(1_000 + millis / 1_000) }
    }

    #[test]
    fn requests_count_for_one_minute() {
        let mut window = SlidingWindow::default();
        assert_eq!(window.free_at(1), None);
        for millis in [0, 10, 20] {
            window.record(MonoTime(millis));
        }
        assert_eq!(
            (window.free_at(4), window.free_at(3), window.free_at(1)),
            (None, Some(MonoTime(60_000)), Some(MonoTime(60_020)))
        );
        window.prune(MonoTime(59_999));
        assert_eq!(window.len(), 3);
        window.prune(MonoTime(60_010));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn restored_requests_count_for_at_least_a_minute() {
        for asked in [5_000, 5_001, 5_999] {
            for stopped in [6_000, 6_500, 30_250] {
                let mut window = SlidingWindow::default();
                window.record(MonoTime(asked));
                let row = window.request_times(at(stopped));
                // The process restarts, and with it its clock.
                for again in [stopped, stopped + 700, stopped + 20_000] {
                    let mut restored = SlidingWindow::default();
                    let now = Now { mono: MonoTime(3), wall: at(again).wall };
                    restored.restore(now, &row, 0);
                    let end = restored.free_at(1).expect("still counts").0 - 3 + again;
                    assert!((asked + 60_000..asked + 63_000).contains(&end), "{asked} {stopped} {again}: {end}");
                }
            }
        }
        let mut restored = SlidingWindow::default();
        restored.restore(at(100_000), &[Timestamp(1), Timestamp(u64::MAX)], 5);
        assert_eq!(restored.free_at(1), Some(MonoTime(166_000)));
    }
}

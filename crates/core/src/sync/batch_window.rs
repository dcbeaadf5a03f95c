//! The batch window: changed needs are gathered before relays are asked for them.

use std::time::Duration;

use crate::limits;
use crate::time::MonoTime;

/// The batch window of all relays. It opens with the first change and ends after its length, however many changes
/// follow. It ends earlier if nothing changed for 1/25 of its length: the changes that belong together have arrived
/// then. The number of early ends is limited; further windows have their full length.
#[derive(Clone, Debug, Default)]
pub(super) struct BatchWindow {
    open: Option<OpenWindow>,
    /// Early ends that are used up. One is regained per length of a window.
    used: u64,
    /// When the last one was regained.
    regained_at: MonoTime,
}

#[derive(Clone, Copy, Debug)]
struct OpenWindow {
    opened_at: MonoTime,
    changed_at: MonoTime,
    length_millis: u64,
}

impl OpenWindow {
    fn ends_at(&self) -> MonoTime {
        self.opened_at.plus(Duration::from_millis(self.length_millis))
    }
}

impl BatchWindow {
    /// Records a change. Opens a window of this length if none is open.
    pub(super) fn record_change(&mut self, now: MonoTime, length_millis: u64) {
        self.regain(now, length_millis);
        let new = OpenWindow { opened_at: now, changed_at: now, length_millis };
        self.open.get_or_insert(new).changed_at = now;
    }

    fn regain(&mut self, now: MonoTime, length_millis: u64) {
        let regained = now.0.saturating_sub(self.regained_at.0) / length_millis.max(1);
        if self.used <= regained {
            (self.used, self.regained_at) = (0, now);
        } else {
            self.used -= regained;
            self.regained_at = self.regained_at.plus(Duration::from_millis(regained * length_millis));
        }
    }

    /// Returns when the open window closes if nothing changes until then.
    pub(super) fn closes_at(&self) -> Option<MonoTime> {
        let open = self.open?;
        let quiet = Duration::from_millis(open.length_millis / limits::BATCH_WINDOW_QUIET_DIVISOR);
        let can_end_early = self.used < limits::MAX_EARLY_BATCH_WINDOWS;
        Some(if can_end_early { open.changed_at.plus(quiet).min(open.ends_at()) } else { open.ends_at() })
    }

    /// Closes the window. `leads_to_requests` says whether relays are asked for something because of it.
    pub(super) fn close(&mut self, now: MonoTime, leads_to_requests: bool) {
        if let Some(open) = self.open.take()
            && leads_to_requests
            && now < open.ends_at()
        {
            self.used += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 5_000;

    fn changed_at(window: &mut BatchWindow, times: &[u64]) -> Option<u64> {
        times.iter().for_each(|at| window.record_change(MonoTime(*at), LENGTH));
        window.closes_at().map(|at| at.0)
    }

    #[test]
    fn window_ends_after_a_quiet_time_and_never_later_than_its_length() {
        let mut window = BatchWindow::default();
        assert_eq!(window.closes_at(), None);
        assert_eq!(changed_at(&mut window, &[10_000]), Some(10_200));
        assert_eq!(changed_at(&mut window, &[10_100, 10_200]), Some(10_400));
        let all: Vec<u64> = (10_300..14_900).step_by(100).collect();
        assert_eq!(changed_at(&mut window, &all), Some(15_000), "five seconds after the first change");
        window.close(MonoTime(15_000), true);
        assert_eq!(window.closes_at(), None);
    }

    #[test]
    fn number_of_early_ends_is_limited_and_regained() {
        let mut window = BatchWindow::default();
        let mut now = 100_000;
        for _ in 0..limits::MAX_EARLY_BATCH_WINDOWS {
            assert_eq!(changed_at(&mut window, &[now]), Some(now + 200));
            window.close(MonoTime(now + 200), true);
            // The next change follows faster than an early end is regained.
            now += 1_000;
        }
        let (from, mut early) = (now, 0);
        while now < from + 20 * LENGTH {
            let close_at = changed_at(&mut window, &[now]).expect("a window is open");
            early += u64::from(close_at == now + 200);
            window.close(MonoTime(close_at), true);
            now = close_at + 500;
        }
        let regained = (now - 100_000) / LENGTH;
        assert!((regained - 5..=regained + 1).contains(&early), "one per length of a window: {early} of {regained}");
        now += (limits::MAX_EARLY_BATCH_WINDOWS + 1) * LENGTH;
        assert_eq!(changed_at(&mut window, &[now]), Some(now + 200));
        assert_eq!(window.used, 0);
    }

    #[test]
    fn window_without_requests_uses_up_nothing() {
        let mut window = BatchWindow::default();
        for now in 0..2 * limits::MAX_EARLY_BATCH_WINDOWS {
            assert_eq!(changed_at(&mut window, &[now]), Some(now + 200));
            window.close(MonoTime(now), false);
        }
    }
}

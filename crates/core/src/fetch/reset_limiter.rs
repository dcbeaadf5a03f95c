//! Limits how often new events of one owner may bring a round forward.

use std::collections::{BTreeMap, VecDeque};

use crate::limits;
use crate::nostr::PublicKey;
use crate::time::MonoTime;

/// The times of recent and planned rounds that were brought forward, by owner.
#[derive(Clone, Debug, Default)]
pub(super) struct ResetLimiter(BTreeMap<PublicKey, VecDeque<MonoTime>>);

impl ResetLimiter {
    /// Returns the time for a round that a new event requests at `due`.
    pub(super) fn schedule(&mut self, now: MonoTime, owner: PublicKey, due: MonoTime) -> MonoTime {
        if self.0.len() >= limits::MAX_IDLE_GIT_HOSTS {
            self.0.retain(|_, times| times.back().is_some_and(|last| last.plus_secs(60) > now));
        }
        let times = self.0.entry(owner).or_default();
        let full = times.len() >= limits::MAX_FETCH_RESETS_PER_MINUTE;
        let free = times.front().filter(|_| full).map_or(now, |first| first.plus_secs(60));
        let at = due.max(free);
        if full {
            times.pop_front();
        }
        times.push_back(at.max(times.back().copied().unwrap_or_default()));
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_resets_a_minute_and_further_ones_wait() {
        let mut limiter = ResetLimiter::default();
        let (owner, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let now = MonoTime(1_000_000);
        let mut schedule = |owner, due| limiter.schedule(now, owner, MonoTime(due)).0;
        for _ in 0..6 {
            assert_eq!(schedule(owner, 1_000_500), 1_000_500);
        }
        assert_eq!(schedule(owner, 1_000_500), 1_060_500);
        assert_eq!(schedule(owner, 1_180_000), 1_180_000);
        assert_eq!(schedule(other, 1_000_500), 1_000_500);
    }
}

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
        if !self.0.contains_key(&owner) {
            self.make_space(now);
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

    /// Removes owners without a round in the last minute if there are too many, or else the one inactive for longest.
    fn make_space(&mut self, now: MonoTime) {
        if self.0.len() < limits::MAX_FETCH_RESET_OWNERS {
            return;
        }
        self.0.retain(|_, times| times.back().is_some_and(|last| last.plus_secs(60) > now));
        if self.0.len() >= limits::MAX_FETCH_RESET_OWNERS {
            let oldest = self.0.iter().min_by_key(|(_, times)| times.back()).map(|(owner, _)| *owner);
            oldest.map(|owner| self.0.remove(&owner));
        }
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

    #[test]
    fn number_of_owners_is_bounded() {
        let mut limiter = ResetLimiter::default();
        for number in 0..limits::MAX_FETCH_RESET_OWNERS as u64 + 10 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            limiter.schedule(MonoTime(number), PublicKey(key), MonoTime(number));
            assert!(limiter.0.len() <= limits::MAX_FETCH_RESET_OWNERS);
        }
        limiter.schedule(MonoTime(1_000_000), PublicKey([1; 32]), MonoTime(1_000_000));
        assert_eq!(limiter.0.len(), 1, "only owners of the last minute are kept");
    }
}

//! How often an owner's new events may hurry the hunt (rule M18).

use std::collections::{BTreeMap, VecDeque};

use crate::limits;
use crate::nostr::PublicKey;
use crate::time::Moment;

/// When each owner's new events have hurried, or will.
#[derive(Clone, Debug, Default)]
pub(super) struct Resets(BTreeMap<PublicKey, VecDeque<Moment>>);

impl Resets {
    /// The time for a hunt that a new event wants at `due`.
    pub(super) fn hurry(&mut self, now: Moment, owner: PublicKey, due: Moment) -> Moment {
        if self.0.len() >= limits::HUNT_HOSTS {
            self.0.retain(|_, times| times.back().is_some_and(|last| last.plus_secs(60) > now));
        }
        let times = self.0.entry(owner).or_default();
        let full = times.len() >= limits::HUNT_RESETS;
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
    fn six_a_minute_and_the_rest_waits() {
        let mut resets = Resets::default();
        let (owner, other) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let now = Moment(1_000_000);
        let mut hurry = |owner, due| resets.hurry(now, owner, Moment(due)).0;
        for _ in 0..6 {
            assert_eq!(hurry(owner, 1_000_500), 1_000_500);
        }
        assert_eq!(hurry(owner, 1_000_500), 1_060_500);
        assert_eq!(hurry(owner, 1_180_000), 1_180_000);
        assert_eq!(hurry(other, 1_000_500), 1_000_500);
    }
}

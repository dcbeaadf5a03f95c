//! Who waits for a host, and whose turn it is: owners in turn, then their repositories, and those that sleep last.
//!
//! Each owner's n-th wish stands n places behind the one that was served last, so that a thousand wishes of one owner
//! interleave with the few of another. A place is kept while its quarry is busy elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use super::QuarryId;
use crate::nostr::PublicKey;

/// Who goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Rank {
    /// Somebody waits for it.
    Awake,
    /// Nobody does any more.
    Dormant,
}

/// A place in a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Seat {
    pub(super) rank: Rank,
    number: u64,
}

/// The line of one host.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    waiting: BTreeSet<(Seat, QuarryId)>,
    /// The number that was served last.
    served: BTreeMap<Rank, u64>,
    /// The last number of each owner, as long as it is ahead of that.
    owners: BTreeMap<(Rank, PublicKey), u64>,
}

impl Line {
    /// A new place for an owner's wish. It is not taken yet.
    pub(super) fn seat(&mut self, rank: Rank, owner: PublicKey) -> Seat {
        let served = self.served.get(&rank).copied().unwrap_or_default();
        let last = self.owners.entry((rank, owner)).or_default();
        *last = (*last).max(served) + 1;
        Seat { rank, number: *last }
    }

    /// Waits at a place.
    pub(super) fn join(&mut self, seat: Seat, quarry: QuarryId) {
        self.waiting.insert((seat, quarry));
    }

    /// Waits no more, for now or for ever.
    pub(super) fn leave(&mut self, seat: Seat, quarry: QuarryId) {
        self.waiting.remove(&(seat, quarry));
        if self.waiting.is_empty() {
            self.owners.clear();
        }
    }

    /// It was this one's turn.
    pub(super) fn serve(&mut self, seat: Seat, quarry: QuarryId) {
        let served = self.served.entry(seat.rank).or_default();
        *served = (*served).max(seat.number);
        let served = *served;
        // Whoever is not ahead begins here anyway. Looked at now and then: each wish adds one entry at most.
        if self.owners.len() > 2 * self.waiting.len() + 16 {
            self.owners.retain(|(rank, _), last| *rank != seat.rank || *last > served);
        }
        self.leave(seat, quarry);
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<QuarryId> {
        self.waiting.first().map(|(_, quarry)| *quarry)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(line: &mut Line, seats: &BTreeMap<QuarryId, Seat>) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(quarry) = line.first() {
            line.serve(seats[&quarry], quarry);
            order.push(quarry.0);
        }
        order
    }

    #[test]
    fn round_robin_fairness() {
        let (mut line, mut seats) = (Line::default(), BTreeMap::new());
        let owner = |n| PublicKey([n; 32]);
        // One owner has four repositories, another comes later with two, a third sleeps.
        for (quarry, rank, who) in [
            (9, Rank::Dormant, 3),
            (1, Rank::Awake, 1),
            (2, Rank::Awake, 1),
            (3, Rank::Awake, 1),
            (4, Rank::Awake, 1),
            (5, Rank::Awake, 2),
            (6, Rank::Awake, 2),
        ] {
            let seat = line.seat(rank, owner(who));
            line.join(seat, QuarryId(quarry));
            seats.insert(QuarryId(quarry), seat);
        }
        assert_eq!(line.len(), 7);
        assert_eq!(served(&mut line, &seats), [1, 5, 2, 6, 3, 4, 9]);
    }

    #[test]
    fn a_place_is_kept_and_a_latecomer_does_not_wait_for_a_crowd() {
        let (mut line, mut seats) = (Line::default(), BTreeMap::new());
        for quarry in 1..=5 {
            let seat = line.seat(Rank::Awake, PublicKey([1; 32]));
            line.join(seat, QuarryId(quarry));
            seats.insert(QuarryId(quarry), seat);
        }
        line.serve(seats[&QuarryId(1)], QuarryId(1));
        line.leave(seats[&QuarryId(2)], QuarryId(2));
        line.serve(seats[&QuarryId(3)], QuarryId(3));
        line.join(seats[&QuarryId(2)], QuarryId(2));
        let seat = line.seat(Rank::Awake, PublicKey([2; 32]));
        line.join(seat, QuarryId(8));
        seats.insert(QuarryId(8), seat);
        assert_eq!(served(&mut line, &seats), [2, 4, 8, 5]);
    }
}

//! What a relay has.

use grasp_core::nostr::{Filter, kinds};

use super::corpus::{EPOCH, Ix, corpus};
use super::event_set::Bits;
use super::queue::{SECOND, Time};

/// The events of a relay, and what it may not take again.
#[derive(Clone, Debug, Default)]
pub struct Book {
    present: Bits,
    deleted: Bits,
}

/// A filter as a relay keeps it: the events that it means, and how many of them are wanted.
#[derive(Clone, Debug)]
pub struct Matcher {
    /// Which events.
    pub events: Bits,
    /// How many of the newest.
    pub limit: Option<usize>,
}

impl Matcher {
    /// Reads a filter.
    #[must_use]
    pub fn new(filter: &Filter) -> Self {
        Self { events: corpus().matching(filter), limit: filter.limit }
    }
}

impl Book {
    /// Takes an event in. False if nothing becomes visible: it is there, deleted, or loses against a newer version.
    pub fn put(&mut self, ix: Ix) -> bool {
        let corpus = corpus();
        let event = corpus.event(ix);
        if self.present.contains(ix) || self.deleted.contains(ix) || !self.present.and(corpus.rivals(ix)).is_empty() {
            return false;
        }
        self.present = self.present.without(corpus.losers(ix));
        if event.kind == kinds::DELETION {
            self.deleted.extend(corpus.victims(ix));
            self.present = self.present.without(corpus.victims(ix));
        }
        if kinds::class(event.kind) == kinds::KindClass::Ephemeral {
            return true;
        }
        self.present.insert(ix)
    }

    /// Has exactly these events.
    pub fn set(&mut self, present: Bits) {
        self.present = present;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// What can be seen at a time, by a clock that is wrong by so many seconds.
    #[must_use]
    pub fn visible(&self, now: Time, skew: i64) -> Bits {
        let mut visible = self.present;
        for (at, ix) in corpus().expiring() {
            if *at > (EPOCH + now / SECOND).saturating_add_signed(skew) {
                break;
            }
            visible.remove(*ix);
        }
        visible
    }

    /// Whether it has an event.
    #[must_use]
    pub fn has(&self, ix: Ix) -> bool {
        self.present.contains(ix)
    }

    /// How many events it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether it has nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }
}

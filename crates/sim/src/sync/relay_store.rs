//! Events of a simulated relay.

use grasp_core::nostr::{Filter, kinds};

use super::corpus::{EventIndex, corpus};
use super::event_set::EventSet;
use crate::simulation::WORLD_START;
use crate::simulation::queue::{SECOND, Time};

/// Events of a relay, and those that were deleted and must not be accepted again.
#[derive(Clone, Debug, Default)]
pub struct RelayStore {
    present: EventSet,
    deleted: EventSet,
}

/// A filter of an open subscription.
#[derive(Clone, Debug)]
pub(super) struct StoredFilter {
    /// All events that match it.
    pub events: EventSet,
    /// Its limit.
    pub limit: Option<usize>,
}

impl StoredFilter {
    /// Converts a filter.
    pub(super) fn new(filter: &Filter) -> Self {
        Self { events: corpus().matching(filter), limit: filter.limit }
    }
}

impl RelayStore {
    /// Stores an event. Returns `false` if nothing becomes visible, because the event is present, deleted or
    /// superseded.
    pub fn insert(&mut self, index: EventIndex) -> bool {
        let corpus = corpus();
        let event = corpus.event(index);
        if self.present.contains(index)
            || self.deleted.contains(index)
            || !self.present.and(corpus.newer_versions(index)).is_empty()
        {
            return false;
        }
        self.present = self.present.without(corpus.older_versions(index));
        if event.kind == kinds::DELETION {
            self.deleted.extend(corpus.deletion_targets(index));
            self.present = self.present.without(corpus.deletion_targets(index));
        }
        if kinds::class(event.kind) == kinds::KindClass::Ephemeral {
            return true;
        }
        self.present.insert(index)
    }

    /// Replaces all events.
    pub fn set(&mut self, present: EventSet) {
        self.present = present;
    }

    /// Deletes all events, and the knowledge of deleted ones.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the events that have not expired, according to a clock that is off by `skew` seconds.
    pub fn visible(&self, now: Time, skew: i64) -> EventSet {
        let mut visible = self.present;
        for (at, index) in corpus().expiring() {
            if *at > (WORLD_START + now / SECOND).saturating_add_signed(skew) {
                break;
            }
            visible.remove(*index);
        }
        visible
    }

    /// Returns whether an event is present.
    pub fn has(&self, index: EventIndex) -> bool {
        self.present.contains(index)
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }
}

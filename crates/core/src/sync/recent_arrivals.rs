//! Recently served events, to detect dependencies that arrive while an event is in flight.
//!
//! An event may be rejected because of a dependency that arrives directly after it, in the same commit. The machine
//! gets the arrival first and the rejection afterwards, so the arrival would not wake the rejected event, which would
//! then be remembered for a week. Therefore recent arrivals are checked when an event is rejected.

use std::collections::{BTreeMap, VecDeque};

use super::io::ServedEvent;
use super::rejected::Dependency;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::kinds;
use crate::repo::Identifier;

/// Position in the order of arrivals.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct ArrivalTick(u64);

/// Something that arrived, or that an arrival references.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ArrivalKey {
    Arrived(Dependency),
    RefersToEvent(EventId),
    RefersToCoordinate(Coordinate),
}

/// Recent arrivals, at most [`limits::MAX_RECENT_ARRIVALS`].
#[derive(Debug, Default)]
pub(super) struct RecentArrivals {
    tick: u64,
    latest: BTreeMap<ArrivalKey, u64>,
    order: VecDeque<(u64, ArrivalKey)>,
}

impl RecentArrivals {
    /// Returns the current position.
    pub(super) fn current_tick(&self) -> ArrivalTick {
        ArrivalTick(self.tick)
    }

    /// Records a served event.
    pub(super) fn record(&mut self, served: &ServedEvent) {
        self.tick += 1;
        self.insert(ArrivalKey::Arrived(Dependency::Event(served.id)));
        self.insert(ArrivalKey::Arrived(Dependency::Author(served.author)));
        if let Some(coordinate) = &served.coordinate {
            self.insert(ArrivalKey::Arrived(Dependency::Coordinate(coordinate.clone())));
            if coordinate.kind == kinds::ANNOUNCEMENT
                && let Some(identifier) = Identifier::new(&coordinate.d)
            {
                self.insert(ArrivalKey::Arrived(Dependency::Identifier(identifier)));
            }
        }
        for id in served.ids.iter().take(limits::MAX_EVENT_REFERENCES) {
            self.insert(ArrivalKey::RefersToEvent(*id));
        }
        for coordinate in served.coordinates.iter().take(limits::MAX_EVENT_REFERENCES) {
            self.insert(ArrivalKey::RefersToCoordinate(coordinate.clone()));
        }
    }

    /// Records that the needs of repositories with an identifier changed.
    pub(super) fn record_needs_change(&mut self, identifier: &Identifier) {
        self.tick += 1;
        self.insert(ArrivalKey::Arrived(Dependency::Identifier(identifier.clone())));
    }

    fn insert(&mut self, key: ArrivalKey) {
        self.latest.insert(key.clone(), self.tick);
        self.order.push_back((self.tick, key));
        while self.order.len() > limits::MAX_RECENT_ARRIVALS
            && let Some((tick, key)) = self.order.pop_front()
        {
            if self.latest.get(&key) == Some(&tick) {
                self.latest.remove(&key);
            }
        }
    }

    /// Whether something arrived since then that may change the rejection of an event.
    pub(super) fn may_change_rejection(&self, event: &Event, since: ArrivalTick) -> bool {
        let is_later = |key: &ArrivalKey| self.latest.get(key).is_some_and(|tick| *tick > since.0);
        let is_referenced =
            event.coordinate().is_some_and(|coordinate| is_later(&ArrivalKey::RefersToCoordinate(coordinate)));
        is_referenced
            || is_later(&ArrivalKey::RefersToEvent(event.id))
            || Dependency::from_event(event).into_iter().any(|need| is_later(&ArrivalKey::Arrived(need)))
    }
}

//! What has come while events were on their way to a verdict.
//!
//! An event may be refused for want of something that came a moment after it, in the same commit. Whoever is told of the
//! arrival first and of the refusal then would remember the refusal for a week; so what came lately is looked at once more.

use std::collections::{BTreeMap, VecDeque};

use super::io::Arrived;
use super::rejected::Dependency;
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::kinds;
use crate::repo::Identifier;

/// A moment in the order in which sync is told of things.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Tick(u64);

/// Something that came, or that something refers to.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Key {
    Came(Dependency),
    RefersToEvent(EventId),
    RefersTo(Coordinate),
}

/// What came lately.
#[derive(Debug, Default)]
pub(super) struct Recent {
    tick: u64,
    latest: BTreeMap<Key, u64>,
    order: VecDeque<(u64, Key)>,
}

impl Recent {
    /// Now.
    pub(super) fn now(&self) -> Tick {
        Tick(self.tick)
    }

    /// An event is served.
    pub(super) fn arrive(&mut self, arrived: &Arrived) {
        self.tick += 1;
        self.note(Key::Came(Dependency::Event(arrived.id)));
        self.note(Key::Came(Dependency::Author(arrived.author)));
        if let Some(coordinate) = &arrived.coordinate {
            self.note(Key::Came(Dependency::Coordinate(coordinate.clone())));
            if coordinate.kind == kinds::ANNOUNCEMENT
                && let Some(name) = Identifier::new(&coordinate.d)
            {
                self.note(Key::Came(Dependency::Name(name)));
            }
        }
        for id in arrived.ids.iter().take(limits::MAX_REFERENCES) {
            self.note(Key::RefersToEvent(*id));
        }
        for coordinate in arrived.coordinates.iter().take(limits::MAX_REFERENCES) {
            self.note(Key::RefersTo(coordinate.clone()));
        }
    }

    /// What is followed under a name has changed.
    pub(super) fn follow(&mut self, name: &Identifier) {
        self.tick += 1;
        self.note(Key::Came(Dependency::Name(name.clone())));
    }

    fn note(&mut self, key: Key) {
        self.latest.insert(key.clone(), self.tick);
        self.order.push_back((self.tick, key));
        while self.order.len() > limits::MAX_RECENT
            && let Some((tick, key)) = self.order.pop_front()
        {
            if self.latest.get(&key) == Some(&tick) {
                self.latest.remove(&key);
            }
        }
    }

    /// Whether something has come since then that may change a refusal.
    pub(super) fn changes(&self, event: &Event, since: Tick) -> bool {
        let later = |key: &Key| self.latest.get(key).is_some_and(|tick| *tick > since.0);
        let own = event.coordinate().is_some_and(|coordinate| later(&Key::RefersTo(coordinate)));
        own || later(&Key::RefersToEvent(event.id))
            || Dependency::all_of(event).into_iter().any(|need| later(&Key::Came(need)))
    }
}

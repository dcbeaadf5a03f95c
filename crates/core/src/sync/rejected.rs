//! Events that are not wanted: remembered, so that they are neither fetched again nor seen as missing, until something
//! comes that may change it (rules B3, M6, M7). (The rejected events index of earlier designs.)
//!
//! For a short while such an event is kept in whole, because what it needs often comes a moment later. After that only a
//! row is left, and when it wakes the event is fetched again from a relay that offered it.

mod hot_cache;
mod index;
mod matching;
mod packed;
mod row;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::row::{Dependency, Layer, RefusedRow, Why};
use super::io::Arrived;
use super::rejected::hot_cache::Hot;
use super::rejected::index::Shelf;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::negentropy::Item;
use crate::nostr::rejection::Refusal;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;
use crate::time::{Now, Timestamp};

/// How much is remembered, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefusedConfig {
    /// Seconds that an event is kept in whole.
    pub hot_secs: u64,
    /// Seconds that an event is remembered which waits for something else to come.
    pub cold_secs: u64,
    /// Events that are kept in whole.
    pub hot_events: usize,
    /// Bytes of those.
    pub hot_bytes: usize,
    /// Events that are remembered.
    pub cold_rows: usize,
}

impl Default for RefusedConfig {
    fn default() -> Self {
        Self {
            hot_secs: limits::REFUSED_HOT_SECS,
            cold_secs: limits::REFUSED_SECS,
            hot_events: limits::MAX_REFUSED_HOT,
            hot_bytes: limits::MAX_REFUSED_HOT_BYTES,
            cold_rows: limits::MAX_REFUSED,
        }
    }
}

/// What is known of an event that a relay offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Offered {
    /// Nothing.
    Unknown,
    /// It is not wanted. Its row, to be written down, if that another relay has it is news.
    Refused(Option<RefusedRow>),
}

/// What may be wanted now. It is no longer remembered as refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Woken {
    /// Events that are here, the oldest first, and who has them: judge them again.
    pub hot: Vec<(Arc<Event>, Vec<RelayUrl>)>,
    /// Events that are not, and who has them: fetch them.
    pub cold: Vec<(EventId, Vec<RelayUrl>)>,
    /// Rows that are no longer to be written down; those of all the others are among them.
    pub forgotten: Vec<EventId>,
}

/// Everything that is not wanted.
#[derive(Debug)]
pub struct RefusedIndex {
    config: RefusedConfig,
    hot: Hot,
    shelf: Shelf,
    /// What has come and has not been looked up to its end: the next row to look at.
    calls: BTreeMap<Call, u32>,
    /// Rows that gave way and are still written down.
    dropped: BTreeSet<EventId>,
}

/// Something came.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Call {
    /// A reference to this event.
    ReferenceTo(EventId),
    /// Something that rows hang on.
    Dependency(Dependency),
}

impl RefusedIndex {
    /// Nothing is refused yet.
    #[must_use]
    pub fn new(config: RefusedConfig) -> Self {
        Self { config, hot: Hot::default(), shelf: Shelf::default(), calls: BTreeMap::new(), dropped: BTreeSet::new() }
    }

    /// Takes in a row of an earlier life. One whose time is over comes back from [`expire`](Self::expire).
    pub fn restore(&mut self, mut row: RefusedRow, now: Now) {
        if row.until <= now.wall || self.config.cold_rows == 0 {
            self.dropped.insert(row.id);
        } else if !self.contains(&row.id) {
            row.needs.retain(Dependency::is_kept);
            row.needs.truncate(limits::MAX_REFUSED_NEEDS);
            self.insert(&row, now.wall);
        }
    }

    /// An event that this relay has is not wanted. The row to be written down, if there is news.
    ///
    /// What only lacked room is not remembered, nor is what was not the event that it claimed to be.
    pub fn refuse(
        &mut self,
        event: Arc<Event>,
        why: &Refusal,
        relay: &RelayUrl,
        layer: Layer,
        now: Now,
    ) -> Option<RefusedRow> {
        let why = Why::of(why)?;
        let until = why.until(event.created_at, now.wall, &self.config);
        if until <= now.wall || self.config.cold_rows == 0 {
            return None;
        }
        let mut offered_by = Vec::new();
        if let Some(number) = self.shelf.find(&event.id) {
            let known = self.shelf.get(number)?;
            if (known.why, known.until) == (why, until) {
                return self.offer(number, relay);
            }
            offered_by = self.shelf.relays.urls(known.offers);
            self.remove(number);
        }
        if !offered_by.contains(relay) && offered_by.len() < limits::MAX_REFUSED_RELAYS {
            offered_by.push(relay.clone());
        }
        let needs = Dependency::all_of(&event);
        let row = RefusedRow { id: event.id, created_at: event.created_at, why, needs, offered_by, layer, until };
        self.insert(&row, now.wall);
        if why.waits() {
            self.hot.keep(event, now.wall, &self.config);
        }
        Some(row)
    }

    /// A relay offers an event: note that it has it, if it is one of these.
    pub fn offered(&mut self, id: &EventId, relay: &RelayUrl) -> Offered {
        match self.shelf.find(id) {
            Some(number) => Offered::Refused(self.offer(number, relay)),
            None => Offered::Unknown,
        }
    }

    /// Whether an event is known not to be wanted.
    #[must_use]
    pub fn contains(&self, id: &EventId) -> bool {
        self.shelf.find(id).is_some()
    }

    /// An event is served. What hangs on it, and what it refers to, may be wanted now. There may be [`more`](Self::more).
    pub fn wake(&mut self, arrived: &Arrived) -> Woken {
        let own = self.shelf.find(&arrived.id).and_then(|number| self.remove(number));
        self.call(Dependency::Event(arrived.id));
        self.call(Dependency::Author(arrived.author));
        if let Some(coordinate) = &arrived.coordinate {
            self.call(Dependency::Coordinate(coordinate.clone()));
            // States change nothing about who may speak for a repository.
            let name = Identifier::new(&coordinate.d).filter(|_| arrived.kind == kinds::ANNOUNCEMENT);
            name.into_iter().for_each(|name| self.call(Dependency::Name(name)));
        }
        for id in &arrived.ids {
            if self.contains(id) {
                self.calls.insert(Call::ReferenceTo(*id), 0);
            }
        }
        for coordinate in &arrived.coordinates {
            self.call(Dependency::Itself(coordinate.clone()));
        }
        let mut woken = self.more();
        woken.forgotten.extend(own);
        woken
    }

    /// Something changed about who may speak for repositories of this name, also if it is not served yet.
    pub fn wake_name(&mut self, name: &Identifier) -> Woken {
        self.call(Dependency::Name(name.clone()));
        self.more()
    }

    /// An author is known here from now on, by being named as a maintainer: requests to delete and to vanish may count.
    pub fn wake_author(&mut self, author: &PublicKey) -> Woken {
        self.call(Dependency::Author(*author));
        self.more()
    }

    /// What else may be wanted because of what came before: at most [`limits::WAKE_SLICE`] rows are looked at in one go.
    pub fn more(&mut self) -> Woken {
        let mut woken = Woken::default();
        let mut left = limits::WAKE_SLICE;
        while left > 0
            && let Some((call, from)) = self.calls.pop_first()
        {
            left -= 1;
            match &call {
                Call::ReferenceTo(id) => {
                    let number = self.shelf.find(id);
                    let waits = |number: &u32| self.shelf.get(*number).is_some_and(|row| row.why == Why::Unlinked);
                    number.filter(waits).into_iter().for_each(|number| self.rouse(number, &mut woken));
                }
                Call::Dependency(dependency) => {
                    let numbers: Vec<u32> = self.shelf.hanging_on(dependency, from).take(left).collect();
                    left -= numbers.len();
                    for number in &numbers {
                        let row = self.shelf.get(*number);
                        if row.is_some_and(|row| row.why.waits_for(dependency) && row.hangs_on(dependency)) {
                            self.rouse(*number, &mut woken);
                        }
                    }
                    // That may have been all; then the next look finds nothing.
                    if left == 0 {
                        self.calls.insert(call, numbers.last().map_or(from, |last| last.saturating_add(1)));
                    }
                }
            }
        }
        woken.hot.sort_by_key(|(event, _)| (event.created_at, event.id));
        woken.cold.sort_unstable();
        woken.forgotten.sort_unstable();
        woken
    }

    /// Whether [`more`](Self::more) has anything to look at.
    #[must_use]
    pub fn has_more(&self) -> bool {
        !self.calls.is_empty()
    }

    /// When [`expire`](Self::expire) has something to do.
    #[must_use]
    pub fn due(&self) -> Option<Timestamp> {
        if !self.dropped.is_empty() {
            return Some(Timestamp::default());
        }
        let row = self.shelf.first().map(|(at, _)| at);
        [row, self.hot.due()].into_iter().flatten().min()
    }

    /// Forgets what has been remembered for long enough. The rows that are no longer to be written down, those that gave
    /// way to others included; at most [`limits::REFUSED_EXPIRY_SLICE`] in one go.
    pub fn expire(&mut self, now: Now) -> Vec<EventId> {
        self.hot.expire(now.wall);
        let mut gone = Vec::new();
        for _ in 0..limits::REFUSED_EXPIRY_SLICE {
            if let Some(id) = self.dropped.pop_first() {
                gone.push(id);
                continue;
            }
            let Some((_, number)) = self.shelf.first().filter(|(at, _)| *at <= now.wall) else { break };
            match self.shelf.get(number).map(|row| row.until) {
                Some(until) if until > now.wall => self.shelf.put_off(number, until.min(self.latest(now.wall))),
                _ => gone.extend(self.remove(number)),
            }
        }
        gone
    }

    /// There are other rules: what they forbade, or nobody had a right to, may be wanted. The rows come back from
    /// [`expire`](Self::expire).
    pub fn clear_ruled(&mut self) {
        let ruled = |why: Why| matches!(why, Why::Policy | Why::Unauthorised);
        let numbers = self.shelf.iter().filter(|(_, row)| ruled(row.why)).map(|(number, _)| number);
        for number in numbers.collect::<Vec<u32>>() {
            let id = self.remove(number);
            self.dropped.extend(id);
        }
    }

    /// What this relay has that is not wanted and that the filter matches, as far as rows can tell: so that a
    /// reconciliation does not see it as missing.
    #[must_use]
    pub fn items(&self, relay: &RelayUrl, filter: &Filter) -> Vec<Item> {
        let Some(relay) = self.shelf.relays.number(relay) else { return Vec::new() };
        let rows: Box<dyn Iterator<Item = &index::Row>> = match matching::candidates(&self.shelf, filter) {
            Some(numbers) => Box::new(numbers.into_iter().filter_map(|number| self.shelf.get(number))),
            None => Box::new(self.shelf.iter().map(|(_, row)| row)),
        };
        let its = rows.filter(|row| row.offers.contains(relay) && matching::may_match(row, filter));
        let mut items: Vec<Item> = its.map(index::Row::item).collect();
        items.sort_unstable();
        items
    }

    /// How many events are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shelf.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them are here in whole.
    #[must_use]
    pub fn hot_len(&self) -> usize {
        self.hot.len()
    }

    /// The memory of what is remembered, roughly, without what is here in whole.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shelf.bytes()
    }

    fn insert(&mut self, row: &RefusedRow, now: Timestamp) {
        let bytes = Shelf::weight(row);
        while self.len() >= self.config.cold_rows || self.bytes() + bytes > limits::MAX_REFUSED_BYTES {
            let Some((_, oldest)) = self.shelf.first() else { break };
            let id = self.remove(oldest);
            self.dropped.extend(id);
        }
        self.dropped.remove(&row.id);
        self.shelf.insert(row, row.until.min(self.latest(now)));
    }

    /// What has no end of its own gives way like what is refused now.
    fn latest(&self, now: Timestamp) -> Timestamp {
        now.plus_secs(self.config.cold_secs.max(limits::REFUSED_SECS))
    }

    fn remove(&mut self, number: u32) -> Option<EventId> {
        let row = self.shelf.remove(number)?;
        self.hot.take(&row.id);
        Some(row.id)
    }

    fn offer(&mut self, number: u32, relay: &RelayUrl) -> Option<RefusedRow> {
        if self.shelf.offer(number, relay) { self.shelf.written(number) } else { None }
    }

    /// Something came; nothing to do unless something hangs on it.
    fn call(&mut self, dependency: Dependency) {
        if self.shelf.hanging_on(&dependency, 0).next().is_some() {
            self.calls.insert(Call::Dependency(dependency), 0);
        }
    }

    fn rouse(&mut self, number: u32, woken: &mut Woken) {
        let Some((id, offers)) = self.shelf.get(number).map(|row| (row.id, row.offers)) else { return };
        let relays = self.shelf.relays.urls(offers);
        match self.hot.take(&id) {
            Some(event) => woken.hot.push((event, relays)),
            None => woken.cold.push((id, relays)),
        }
        woken.forgotten.push(id);
        self.remove(number);
    }
}

#[cfg(test)]
mod tests;

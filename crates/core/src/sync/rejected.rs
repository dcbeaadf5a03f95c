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

pub use self::row::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use super::io::ServedEvent;
use super::rejected::hot_cache::HotCache;
use super::rejected::index::RejectedRows;
use super::relay_url::RelayUrl;
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::negentropy::NegentropyItem;
use crate::nostr::rejection::Rejection;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;
use crate::time::{Now, Timestamp};

/// How much is remembered, and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RejectedEventsConfig {
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

impl Default for RejectedEventsConfig {
    fn default() -> Self {
        Self {
            hot_secs: limits::REJECTED_HOT_CACHE_SECS,
            cold_secs: limits::REJECTED_INDEX_SECS,
            hot_events: limits::MAX_REJECTED_HOT_CACHE_EVENTS,
            hot_bytes: limits::MAX_REJECTED_HOT_CACHE_BYTES,
            cold_rows: limits::MAX_REJECTED_EVENTS,
        }
    }
}

/// What is known of an event that a relay offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OfferResult {
    /// Nothing.
    Unknown,
    /// It is not wanted. Its row, to be written down, if that another relay has it is news.
    Rejected(Option<RejectedRecord>),
}

/// What may be wanted now. It is no longer remembered as refused.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WokenEvents {
    /// Events that are here, the oldest first, and who has them: judge them again.
    pub cached: Vec<(Arc<Event>, Vec<RelayUrl>)>,
    /// Events that are not, and who has them: fetch them.
    pub to_fetch: Vec<(EventId, Vec<RelayUrl>)>,
    /// Rows that are no longer to be written down; those of all the others are among them.
    pub removed: Vec<EventId>,
}

/// Everything that is not wanted.
#[derive(Debug)]
pub struct RejectedEventsIndex {
    config: RejectedEventsConfig,
    hot: HotCache,
    rows: RejectedRows,
    /// What has come and has not been looked up to its end: the next row to look at.
    pending_wakes: BTreeMap<WakeTrigger, u32>,
    /// Rows that gave way and are still written down.
    dropped: BTreeSet<EventId>,
}

/// Something came.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WakeTrigger {
    /// A reference to this event.
    ReferenceTo(EventId),
    /// Something that rows hang on.
    Dependency(Dependency),
}

impl RejectedEventsIndex {
    /// Nothing is refused yet.
    #[must_use]
    pub fn new(config: RejectedEventsConfig) -> Self {
        Self {
            config,
            hot: HotCache::default(),
            rows: RejectedRows::default(),
            pending_wakes: BTreeMap::new(),
            dropped: BTreeSet::new(),
        }
    }

    /// Takes in a row of an earlier life. One whose time is over comes back from [`expire`](Self::expire).
    pub fn restore(&mut self, mut row: RejectedRecord, now: Now) {
        if row.expires_at <= now.wall || self.config.cold_rows == 0 {
            self.dropped.insert(row.id);
        } else if !self.contains(&row.id) {
            row.dependencies.retain(Dependency::is_storable);
            row.dependencies.truncate(limits::MAX_REJECTED_DEPENDENCIES);
            self.insert(&row, now.wall);
        }
    }

    /// An event that this relay has is not wanted. The row to be written down, if there is news.
    ///
    /// What only lacked room is not remembered, nor is what was not the event that it claimed to be.
    pub fn reject(
        &mut self,
        event: Arc<Event>,
        rejection: &Rejection,
        relay: &RelayUrl,
        layer: RejectedLayer,
        now: Now,
    ) -> Option<RejectedRecord> {
        let class = RejectionClass::from_rejection(rejection)?;
        let expires_at = class.expires_at(event.created_at, now.wall, &self.config);
        if expires_at <= now.wall || self.config.cold_rows == 0 {
            return None;
        }
        let mut offered_by = Vec::new();
        if let Some(number) = self.rows.find(&event.id) {
            let known = self.rows.get(number)?;
            if (known.class, known.expires_at) == (class, expires_at) {
                return self.add_offer(number, relay);
            }
            offered_by = self.rows.relays.urls(known.offers);
            self.remove(number);
        }
        if !offered_by.contains(relay) && offered_by.len() < limits::MAX_REJECTED_RELAYS {
            offered_by.push(relay.clone());
        }
        let dependencies = Dependency::from_event(&event);
        let row = RejectedRecord {
            id: event.id,
            created_at: event.created_at,
            class,
            dependencies,
            offered_by,
            layer,
            expires_at,
        };
        self.insert(&row, now.wall);
        if class.can_be_resolved() {
            self.hot.keep(event, now.wall, &self.config);
        }
        Some(row)
    }

    /// A relay offers an event: note that it has it, if it is one of these.
    pub fn record_offer(&mut self, id: &EventId, relay: &RelayUrl) -> OfferResult {
        match self.rows.find(id) {
            Some(number) => OfferResult::Rejected(self.add_offer(number, relay)),
            None => OfferResult::Unknown,
        }
    }

    /// Whether an event is known not to be wanted.
    #[must_use]
    pub fn contains(&self, id: &EventId) -> bool {
        self.rows.find(id).is_some()
    }

    /// An event is served. What hangs on it, and what it refers to, may be wanted now. There may be [`more`](Self::more).
    pub fn wake_on_event(&mut self, arrived: &ServedEvent) -> WokenEvents {
        let own = self.rows.find(&arrived.id).and_then(|number| self.remove(number));
        self.queue_wake(Dependency::Event(arrived.id));
        self.queue_wake(Dependency::Author(arrived.author));
        if let Some(coordinate) = &arrived.coordinate {
            self.queue_wake(Dependency::Coordinate(coordinate.clone()));
            // States change nothing about who may speak for a repository.
            let name = Identifier::new(&coordinate.d).filter(|_| arrived.kind == kinds::ANNOUNCEMENT);
            name.into_iter().for_each(|name| self.queue_wake(Dependency::Identifier(name)));
        }
        for id in &arrived.ids {
            if self.contains(id) {
                self.pending_wakes.insert(WakeTrigger::ReferenceTo(*id), 0);
            }
        }
        for coordinate in &arrived.coordinates {
            self.queue_wake(Dependency::OwnCoordinate(coordinate.clone()));
        }
        let mut woken = self.wake_next();
        woken.removed.extend(own);
        woken
    }

    /// Something changed about who may speak for repositories of this name, also if it is not served yet.
    pub fn wake_on_identifier(&mut self, name: &Identifier) -> WokenEvents {
        self.queue_wake(Dependency::Identifier(name.clone()));
        self.wake_next()
    }

    /// An author is known here from now on, by being named as a maintainer: requests to delete and to vanish may count.
    pub fn wake_on_author(&mut self, author: &PublicKey) -> WokenEvents {
        self.queue_wake(Dependency::Author(*author));
        self.wake_next()
    }

    /// What else may be wanted because of what came before: at most [`limits::REJECTED_RETRY_SLICE_EVENTS`] rows are looked at in one go.
    pub fn wake_next(&mut self) -> WokenEvents {
        let mut woken = WokenEvents::default();
        let mut left = limits::REJECTED_RETRY_SLICE_EVENTS;
        while left > 0
            && let Some((trigger, from)) = self.pending_wakes.pop_first()
        {
            left -= 1;
            match &trigger {
                WakeTrigger::ReferenceTo(id) => {
                    let number = self.rows.find(id);
                    let waits =
                        |number: &u32| self.rows.get(*number).is_some_and(|row| row.class == RejectionClass::Unrelated);
                    number.filter(waits).into_iter().for_each(|number| self.wake_row(number, &mut woken));
                }
                WakeTrigger::Dependency(dependency) => {
                    let numbers: Vec<u32> = self.rows.dependents(dependency, from).take(left).collect();
                    left -= numbers.len();
                    for number in &numbers {
                        let row = self.rows.get(*number);
                        if row.is_some_and(|row| row.class.is_resolved_by(dependency) && row.depends_on(dependency)) {
                            self.wake_row(*number, &mut woken);
                        }
                    }
                    // That may have been all; then the next look finds nothing.
                    if left == 0 {
                        self.pending_wakes.insert(trigger, numbers.last().map_or(from, |last| last.saturating_add(1)));
                    }
                }
            }
        }
        woken.cached.sort_by_key(|(event, _)| (event.created_at, event.id));
        woken.to_fetch.sort_unstable();
        woken.removed.sort_unstable();
        woken
    }

    /// Whether [`more`](Self::more) has anything to look at.
    #[must_use]
    pub fn has_pending_wakes(&self) -> bool {
        !self.pending_wakes.is_empty()
    }

    /// When [`expire`](Self::expire) has something to do.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        if !self.dropped.is_empty() {
            return Some(Timestamp::default());
        }
        let row = self.rows.next_due().map(|(at, _)| at);
        [row, self.hot.due()].into_iter().flatten().min()
    }

    /// Forgets what has been remembered for long enough. The rows that are no longer to be written down, those that gave
    /// way to others included; at most [`limits::REJECTED_EXPIRY_SLICE_EVENTS`] in one go.
    pub fn expire(&mut self, now: Now) -> Vec<EventId> {
        self.hot.expire(now.wall);
        let mut gone = Vec::new();
        for _ in 0..limits::REJECTED_EXPIRY_SLICE_EVENTS {
            if let Some(id) = self.dropped.pop_first() {
                gone.push(id);
                continue;
            }
            let Some((_, number)) = self.rows.next_due().filter(|(at, _)| *at <= now.wall) else { break };
            match self.rows.get(number).map(|row| row.expires_at) {
                Some(expires_at) if expires_at > now.wall => {
                    self.rows.reschedule(number, expires_at.min(self.latest_expiry(now.wall)))
                }
                _ => gone.extend(self.remove(number)),
            }
        }
        gone
    }

    /// There are other rules: what they forbade, or nobody had a right to, may be wanted. The rows come back from
    /// [`expire`](Self::expire).
    pub fn clear_policy_rejections(&mut self) {
        let by_policy = |class: RejectionClass| matches!(class, RejectionClass::Policy | RejectionClass::Unauthorised);
        let numbers = self.rows.iter().filter(|(_, row)| by_policy(row.class)).map(|(number, _)| number);
        for number in numbers.collect::<Vec<u32>>() {
            let id = self.remove(number);
            self.dropped.extend(id);
        }
    }

    /// What this relay has that is not wanted and that the filter matches, as far as rows can tell: so that a
    /// reconciliation does not see it as missing.
    #[must_use]
    pub fn negentropy_items(&self, relay: &RelayUrl, filter: &Filter) -> Vec<NegentropyItem> {
        let Some(relay) = self.rows.relays.number(relay) else { return Vec::new() };
        let rows: Box<dyn Iterator<Item = &index::RejectedRow>> = match matching::candidates(&self.rows, filter) {
            Some(numbers) => Box::new(numbers.into_iter().filter_map(|number| self.rows.get(number))),
            None => Box::new(self.rows.iter().map(|(_, row)| row)),
        };
        let its = rows.filter(|row| row.offers.contains(relay) && matching::may_match(row, filter));
        let mut items: Vec<NegentropyItem> = its.map(index::RejectedRow::item).collect();
        items.sort_unstable();
        items
    }

    /// How many events are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
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
        self.rows.bytes()
    }

    fn insert(&mut self, row: &RejectedRecord, now: Timestamp) {
        let bytes = RejectedRows::row_bytes(row);
        while self.len() >= self.config.cold_rows || self.bytes() + bytes > limits::MAX_REJECTED_INDEX_BYTES {
            let Some((_, oldest)) = self.rows.next_due() else { break };
            let id = self.remove(oldest);
            self.dropped.extend(id);
        }
        self.dropped.remove(&row.id);
        self.rows.insert(row, row.expires_at.min(self.latest_expiry(now)));
    }

    /// What has no end of its own gives way like what is refused now.
    fn latest_expiry(&self, now: Timestamp) -> Timestamp {
        now.plus_secs(self.config.cold_secs.max(limits::REJECTED_INDEX_SECS))
    }

    fn remove(&mut self, number: u32) -> Option<EventId> {
        let row = self.rows.remove(number)?;
        self.hot.take(&row.id);
        Some(row.id)
    }

    fn add_offer(&mut self, number: u32, relay: &RelayUrl) -> Option<RejectedRecord> {
        if self.rows.add_offer(number, relay) { self.rows.to_record(number) } else { None }
    }

    /// Something came; nothing to do unless something hangs on it.
    fn queue_wake(&mut self, dependency: Dependency) {
        if self.rows.dependents(&dependency, 0).next().is_some() {
            self.pending_wakes.insert(WakeTrigger::Dependency(dependency), 0);
        }
    }

    fn wake_row(&mut self, number: u32, woken: &mut WokenEvents) {
        let Some((id, offers)) = self.rows.get(number).map(|row| (row.id, row.offers)) else { return };
        let relays = self.rows.relays.urls(offers);
        match self.hot.take(&id) {
            Some(event) => woken.cached.push((event, relays)),
            None => woken.to_fetch.push((id, relays)),
        }
        woken.removed.push(id);
        self.remove(number);
    }
}

#[cfg(test)]
mod tests;

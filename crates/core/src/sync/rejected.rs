//! Rejected-events index: events that admission rejected, so that they are neither fetched again nor seen as missing in
//! a reconciliation until one of their dependencies arrives.
//!
//! For a short time the complete event is kept in the hot cache, because a dependency often arrives moments later.
//! After that only a row with its id and dependencies remains (the cold index). When a dependency arrives, the event is
//! woken: submitted again from the hot cache, or fetched again from a relay that offered it.
//!
//! A pure data structure owned by the sync machine. Its records are stored by `grasp-store`. See
//! `docs/design/sync.md#rejected-events-index`.

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

/// Bounds of the rejected-events index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RejectedEventsConfig {
    /// Seconds that a complete event stays in the hot cache.
    pub hot_secs: u64,
    /// Seconds that an event stays in the index which waits for a dependency.
    pub cold_secs: u64,
    /// Maximum number of events in the hot cache.
    pub hot_events: usize,
    /// Maximum bytes of the hot cache.
    pub hot_bytes: usize,
    /// Maximum number of events in the index.
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

/// Result of looking up an event that a relay offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OfferResult {
    /// The event is not in the index.
    Unknown,
    /// The event was rejected before. Contains its record if it must be stored again, because this relay was added to
    /// it.
    Rejected(Option<RejectedRecord>),
}

/// Events that may be accepted now. They have been removed from the index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WokenEvents {
    /// Events of the hot cache with the relays that have them, the oldest event first. To be submitted again.
    pub cached: Vec<(Arc<Event>, Vec<RelayUrl>)>,
    /// Other events with the relays that have them. To be fetched again.
    pub to_fetch: Vec<(EventId, Vec<RelayUrl>)>,
    /// Ids of all removed rows, including those of the events above. Their stored records must be deleted.
    pub removed: Vec<EventId>,
}

/// The rejected-events index.
#[derive(Debug)]
pub struct RejectedEventsIndex {
    config: RejectedEventsConfig,
    hot: HotCache,
    rows: RejectedRows,
    /// Triggers whose rows have not all been checked, with the number of the next row to check.
    pending_wakes: BTreeMap<WakeTrigger, u32>,
    /// Rows that were evicted and whose stored records must be deleted.
    dropped: BTreeSet<EventId>,
}

/// An arrival that may wake rejected events.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WakeTrigger {
    /// A served event references this event.
    ReferenceTo(EventId),
    /// A dependency of rejected events arrived.
    Dependency(Dependency),
}

impl RejectedEventsIndex {
    /// Creates an empty index.
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

    /// Restores a stored record at startup. An expired one is returned by [`expire`](Self::expire).
    pub fn restore(&mut self, mut row: RejectedRecord, now: Now) {
        if row.expires_at <= now.wall || self.config.cold_rows == 0 {
            self.dropped.insert(row.id);
        } else if !self.contains(&row.id) {
            row.dependencies.retain(Dependency::is_storable);
            row.dependencies.truncate(limits::MAX_REJECTED_DEPENDENCIES);
            self.insert(&row, now.wall);
        }
    }

    /// Records the rejection of an event that `relay` has. Returns the record to store, or `None` if nothing changed.
    ///
    /// Temporary rejections are not recorded, and neither are forged or malformed events, because nothing can be
    /// concluded about the real event with that id.
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

    /// Looks up an event that a relay offers, and records that the relay has it.
    pub fn record_offer(&mut self, id: &EventId, relay: &RelayUrl) -> OfferResult {
        match self.rows.find(id) {
            Some(number) => OfferResult::Rejected(self.add_offer(number, relay)),
            None => OfferResult::Unknown,
        }
    }

    /// Returns whether an event is in the index.
    #[must_use]
    pub fn contains(&self, id: &EventId) -> bool {
        self.rows.find(id).is_some()
    }

    /// Wakes events that depend on a newly served event or that it references. More may follow from
    /// [`wake_next`](Self::wake_next).
    pub fn wake_on_event(&mut self, arrived: &ServedEvent) -> WokenEvents {
        let own = self.rows.find(&arrived.id).and_then(|number| self.remove(number));
        self.queue_wake(Dependency::Event(arrived.id));
        self.queue_wake(Dependency::Author(arrived.author));
        if let Some(coordinate) = &arrived.coordinate {
            self.queue_wake(Dependency::Coordinate(coordinate.clone()));
            // Only announcements change maintainer sets; states do not.
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

    /// Wakes events after a change to the maintainer set of this identifier, also by an announcement that is only held.
    pub fn wake_on_identifier(&mut self, name: &Identifier) -> WokenEvents {
        self.queue_wake(Dependency::Identifier(name.clone()));
        self.wake_next()
    }

    /// Wakes deletion and vanish requests of an author who has become known, because a maintainer set names the author.
    pub fn wake_on_author(&mut self, author: &PublicKey) -> WokenEvents {
        self.queue_wake(Dependency::Author(*author));
        self.wake_next()
    }

    /// Continues pending wakes. Checks at most [`limits::REJECTED_RETRY_SLICE_EVENTS`] rows per call.
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
                    let is_unrelated =
                        |number: &u32| self.rows.get(*number).is_some_and(|row| row.class == RejectionClass::Unrelated);
                    number.filter(is_unrelated).into_iter().for_each(|number| self.wake_row(number, &mut woken));
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
                    // There may be no more rows; then the next call finds nothing.
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

    /// Returns whether [`wake_next`](Self::wake_next) has rows to check.
    #[must_use]
    pub fn has_pending_wakes(&self) -> bool {
        !self.pending_wakes.is_empty()
    }

    /// Returns the time at which [`expire`](Self::expire) must be called.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Timestamp> {
        if !self.dropped.is_empty() {
            return Some(Timestamp::default());
        }
        let row = self.rows.next_due().map(|(at, _)| at);
        [row, self.hot.due()].into_iter().flatten().min()
    }

    /// Removes expired rows. Returns the ids whose stored records must be deleted, including evicted rows, at most
    /// [`limits::REJECTED_EXPIRY_SLICE_EVENTS`] per call.
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

    /// Removes rejections by policy or for lack of authorisation after a change of the policy. The ids are returned by
    /// [`expire`](Self::expire).
    pub fn clear_policy_rejections(&mut self) {
        let by_policy = |class: RejectionClass| matches!(class, RejectionClass::Policy | RejectionClass::Unauthorised);
        let numbers = self.rows.iter().filter(|(_, row)| by_policy(row.class)).map(|(number, _)| number);
        for number in numbers.collect::<Vec<u32>>() {
            let id = self.remove(number);
            self.dropped.extend(id);
        }
    }

    /// Returns the rejected events of a relay that may match a filter. A reconciliation adds them to our items, so that
    /// they do not count as missing.
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

    /// Returns the number of events in the index.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the index is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of events in the hot cache.
    #[must_use]
    pub fn hot_len(&self) -> usize {
        self.hot.len()
    }

    /// Returns the approximate memory of the index in bytes, without the hot cache.
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

    /// Returns the latest eviction time. Rows that never expire are evicted in the same order as events rejected now.
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

    /// Queues a wake if any row depends on `dependency`.
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

//! Submitted events without a result, and the batches that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::batch::BatchId;
use super::io::{
    EventPresence, ServedEvent, SessionId, SubmitResult, SubscriptionId, SyncNote, SyncOutput, SyncRow, SyncRowKey,
    SyncSource, SyncSubmission, SyncSubmissionId,
};
use super::rejected::{Dependency, OfferResult, RejectionClass, WokenEvents};
use super::relay::RelayId;
use super::relay_url::RelayUrl;
use super::{SyncMachine, rejected_layer};
use crate::limits;
use crate::nostr::event::{Coordinate, Event, EventId};
use crate::nostr::kinds;
use crate::nostr::rejection::Rejection;
use crate::repo::Identifier;
use crate::time::Timestamp;

/// Identity of an event in flight. It includes the signature, so that a forged copy cannot hide the real event.
type Identity = (EventId, [u8; 64]);

/// All submitted events without a result.
#[derive(Debug, Default)]
pub(super) struct InFlightEvents {
    events: BTreeMap<SyncSubmissionId, InFlightEvent>,
    ids: BTreeMap<Identity, SyncSubmissionId>,
}

/// One submitted event without a result.
#[derive(Debug)]
struct InFlightEvent {
    event: Arc<Event>,
    waiters: Vec<EventWaiter>,
    /// Relays that offered it when it was rejected before, connected or not.
    offered: Vec<RelayUrl>,
    /// When it was submitted.
    submitted_at: ArrivalTick,
}

/// A delivery of an event that waits for its result. Its batch ends with its session.
#[derive(Clone, Copy, Debug)]
struct EventWaiter {
    relay: RelayId,
    batch: Option<BatchId>,
    source: SyncSource,
    is_wide: bool,
}

impl InFlightEvents {
    pub(super) fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns, per relay, the creation time of the oldest live event without a result. No batch waits for such an
    /// event, so after a crash nothing else would lead to it.
    pub(super) fn oldest_pending_live_events(&self) -> BTreeMap<RelayId, Timestamp> {
        let mut oldest = BTreeMap::new();
        for entry in self.events.values() {
            for waiter in entry.waiters.iter().filter(|waiter| waiter.batch.is_none()) {
                let at = entry.event.created_at;
                oldest.entry(waiter.relay).and_modify(|oldest: &mut Timestamp| *oldest = at.min(*oldest)).or_insert(at);
            }
        }
        oldest
    }
}

impl SyncMachine {
    /// Handles an event from a relay.
    pub(super) fn on_event(
        &mut self,
        id: RelayId,
        session: SessionId,
        (sub, event, presence): (SubscriptionId, Arc<Event>, EventPresence),
    ) {
        let Some((delivery, source)) = self.with_relay(id, |relay, ctx| {
            let delivery = relay.attribute_event(ctx, sub, &event);
            let source = delivery.batch.and_then(|batch| relay.historic.source(batch)).unwrap_or(SyncSource::Live);
            (delivery, source)
        }) else {
            return;
        };
        if delivery.is_late || delivery.is_flood {
            self.disconnect(id);
        }
        if delivery.is_unsolicited {
            if let Some(relay) = self.relays.get(&id) {
                self.outputs.push_back(SyncOutput::Note(SyncNote::Unsolicited(relay.url.clone())));
            }
            if presence == EventPresence::New {
                self.outputs.push_back(SyncOutput::ReleasePermit(session));
            }
            return;
        }
        if presence != EventPresence::New {
            if presence == EventPresence::Held {
                self.outputs.push_back(SyncOutput::HeldEventSeen(event.id));
            }
            self.count_wide_delivery(id, delivery.is_wide, true);
            return;
        }
        let waiter = EventWaiter { relay: id, batch: delivery.batch, source, is_wide: delivery.is_wide };
        let url = self.relays.get(&id).map(|relay| relay.url.clone()).unwrap_or_default();
        if let OfferResult::Rejected(row) = self.rejected.record_offer(&event.id, &url) {
            if let Some(row) = row {
                self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Rejected(row)));
            }
            self.count_wide_delivery(id, delivery.is_wide, false);
            return self.outputs.push_back(SyncOutput::ReleasePermit(session));
        }
        let identity = (event.id, event.sig);
        if let Some(entry) = self.in_flight.ids.get(&identity).and_then(|id| self.in_flight.events.get_mut(id)) {
            entry.waiters.push(waiter);
            self.count_pending(waiter);
            return self.outputs.push_back(SyncOutput::ReleasePermit(session));
        }
        self.submit(event, Some(session), vec![waiter], Vec::new());
        self.count_pending(waiter);
    }

    /// Handles an event that is larger than this server accepts. It counts for its request and is remembered as
    /// rejected, so that a reconciliation does not see it as missing.
    pub(super) fn on_oversized_event(
        &mut self,
        id: RelayId,
        sub: SubscriptionId,
        event: Arc<Event>,
        rejection: &Rejection,
    ) {
        let Some(delivery) = self.with_relay(id, |relay, ctx| relay.attribute_event(ctx, sub, &event)) else { return };
        if delivery.is_late || delivery.is_flood {
            self.disconnect(id);
        }
        self.count_wide_delivery(id, delivery.is_wide, false);
        let url = self.relays.get(&id).map(|relay| relay.url.clone()).unwrap_or_default();
        self.remember_rejected(&event, rejection, &url);
    }

    /// Records a rejected event and a relay that offers it.
    fn remember_rejected(&mut self, event: &Arc<Event>, rejection: &Rejection, relay: &RelayUrl) {
        if let Some(row) = self.rejected.reject(event.clone(), rejection, relay, rejected_layer(event), self.now) {
            self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Rejected(row)));
        }
    }

    /// Counts an event for the batch that waits for it.
    fn count_pending(&mut self, waiter: EventWaiter) {
        if let (Some(relay), Some(batch)) = (self.relays.get_mut(&waiter.relay), waiter.batch) {
            relay.historic.count_pending(batch);
        }
    }

    /// Submits an event to admission.
    fn submit(
        &mut self,
        event: Arc<Event>,
        session: Option<SessionId>,
        waiters: Vec<EventWaiter>,
        offered: Vec<RelayUrl>,
    ) -> SyncSubmissionId {
        self.next_id += 1;
        let id = SyncSubmissionId(self.next_id);
        let source = waiters.first().map_or(SyncSource::CatchUp, |waiter| waiter.source);
        let url = waiters.first().and_then(|waiter| self.relays.get(&waiter.relay)).map(|relay| relay.url.clone());
        let url = url.or_else(|| offered.first().cloned());
        let identity = (event.id, event.sig);
        self.in_flight.ids.insert(identity, id);
        self.in_flight.events.insert(
            id,
            InFlightEvent { event: event.clone(), waiters, offered, submitted_at: self.recent_arrivals.current_tick() },
        );
        let url = url.unwrap_or_default();
        self.outputs.push_back(SyncOutput::Submit(SyncSubmission { id, event, session, relay: url, source }));
        id
    }

    /// Handles the result of a submitted event.
    pub(super) fn on_submit_result(&mut self, id: SyncSubmissionId, result: SubmitResult) {
        let Some(InFlightEvent { event, waiters, offered, submitted_at }) = self.in_flight.events.remove(&id) else {
            return;
        };
        let identity = (event.id, event.sig);
        if self.in_flight.ids.get(&identity) == Some(&id) {
            self.in_flight.ids.remove(&identity);
        }
        if let SubmitResult::Rejected(rejection) = &result
            && RejectionClass::from_rejection(rejection).is_some_and(RejectionClass::can_be_resolved)
            && self.recent_arrivals.may_change_rejection(&event, submitted_at)
        {
            // The dependency may have arrived while the event was in flight, so it is submitted again.
            let relays: Vec<RelayId> = waiters.iter().map(|waiter| waiter.relay).collect();
            let new_id = self.submit(event, None, waiters, offered);
            for relay in relays {
                if let Some(relay) = self.relays.get_mut(&relay) {
                    relay.historic.replace_resubmitted(id, new_id);
                }
            }
            return;
        }
        // A new event counts once: for the first of its relays, and for the first batch that still waits for it.
        let mut is_new_for_relay = matches!(result, SubmitResult::Stored | SubmitResult::Held);
        let mut is_new_for_batch = is_new_for_relay;
        for waiter in &waiters {
            let Some(relay) = self.relays.get_mut(&waiter.relay) else { continue };
            relay.totals.received += u64::from(std::mem::take(&mut is_new_for_relay));
            let Some(connection) = relay.connection_mut() else { continue };
            if result == SubmitResult::InvalidSignature {
                connection.session.record_invalid();
            }
            relay.historic.finish_resubmitted(id);
            is_new_for_batch &= match waiter.batch {
                Some(batch) => !relay.historic.record_result(batch, &event, &result, is_new_for_batch),
                None => false,
            };
            let is_useful = !matches!(
                &result,
                SubmitResult::Rejected(
                    Rejection::Unrelated
                        | Rejection::NotListed { .. }
                        | Rejection::NoAnnouncement
                        | Rejection::RepositoryBanned
                        | Rejection::EventBanned
                        | Rejection::NotWhitelisted
                        | Rejection::NotArchived
                )
            );
            self.count_wide_delivery(waiter.relay, waiter.is_wide, is_useful);
            self.runnable.insert(waiter.relay);
        }
        if let SubmitResult::Rejected(rejection) = &result {
            let relays =
                waiters.iter().filter_map(|waiter| self.relays.get(&waiter.relay)).map(|relay| relay.url.clone());
            let relay_urls: Vec<RelayUrl> = relays.chain(offered).collect();
            for url in &relay_urls {
                self.remember_rejected(&event, rejection, url);
            }
        }
    }

    /// Counts an event of the wide live set. If few of them are useful, the relay is followed with tags on its next
    /// connection.
    fn count_wide_delivery(&mut self, id: RelayId, is_wide: bool, is_useful: bool) {
        if !is_wide {
            return;
        }
        let Some(relay) = self.relays.get_mut(&id) else { return };
        let Some(connection) = relay.connection_mut() else { return };
        if connection.live.record_wide_delivery(is_useful, self.config.limits.wide_sample_events) {
            relay.limits.disable_wide();
            relay.is_unsaved = true;
            self.disconnect(id);
        }
    }

    /// Submits or fetches rejected events whose dependency has arrived.
    pub(super) fn resubmit_woken(&mut self, woken: WokenEvents) {
        for id in woken.removed {
            self.outputs.push_back(SyncOutput::DeleteRow(SyncRowKey::Rejected(id)));
        }
        for (event, relay_urls) in woken.cached {
            let is_connected = |id: &RelayId| self.relays.get(id).is_some_and(|relay| relay.connection().is_some());
            let mut ids = relay_urls.iter().filter_map(|url| self.relay_ids.get(url.without_scheme()).copied());
            let relay = ids.find(is_connected);
            let identity = (event.id, event.sig);
            if self.in_flight.ids.contains_key(&identity) {
                continue;
            }
            let source = SyncSource::CatchUp;
            let waiter = relay.map(|relay| EventWaiter { relay, batch: None, source, is_wide: false });
            let id = self.submit(event, None, waiter.into_iter().collect(), relay_urls);
            if let Some(relay) = relay.and_then(|relay| self.relays.get_mut(&relay)) {
                relay.historic.add_resubmitted(id);
            }
        }
        for (id, relay_urls) in woken.to_fetch {
            let relays: Vec<RelayId> =
                relay_urls.iter().filter_map(|url| self.relay_ids.get(url.without_scheme()).copied()).collect();
            let connection =
                relays.iter().find(|id| self.relays.get(id).is_some_and(|relay| relay.connection().is_some()));
            let Some(relay) = connection.or(relays.first()).and_then(|id| self.relays.get_mut(id)) else { continue };
            if relay.historic.fetch_later(id) {
                let id = relay.id;
                self.runnable.insert(id);
            }
        }
    }
}

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

/// Recently served events, at most [`limits::MAX_RECENT_ARRIVALS`], to detect dependencies that arrive while an event is in
/// flight.
///
/// An event may be rejected because of a dependency that arrives directly after it, in the same commit. The machine gets
/// the arrival first and the rejection afterwards, so the arrival would not wake the rejected event, which would then be
/// remembered for a week. Therefore recent arrivals are checked when an event is rejected.
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

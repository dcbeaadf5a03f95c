//! Submitted events without a result, and the batches that wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::BatchId;
use super::io::{
    EventPresence, SessionId, SubmitResult, SubscriptionId, SyncOutput, SyncRow, SyncRowKey, SyncSource,
    SyncSubmission, SyncSubmissionId,
};
use super::recent_arrivals::ArrivalTick;
use super::rejected::{OfferResult, RejectionClass, WokenEvents};
use super::relay::RelayId;
use super::relay_url::RelayUrl;
use super::{SyncMachine, rejected_layer};
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::rejection::Rejection;
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

/// A delivery of an event that waits for its result. It is ignored if its session has ended.
#[derive(Clone, Copy, Debug)]
struct EventWaiter {
    relay: RelayId,
    session: SessionId,
    batch: Option<BatchId>,
    source: SyncSource,
    is_wide: bool,
    /// Whether it was resubmitted after a rejection. Then the historic run waits for it.
    is_resubmitted: bool,
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
            let batch =
                delivery.batch.and_then(|id| relay.connection().and_then(|connection| connection.batches.get(&id)));
            let source = batch.map_or(SyncSource::Live, |batch| batch.source);
            (delivery, source)
        }) else {
            return;
        };
        if delivery.is_late {
            self.disconnect(id);
        }
        if presence == EventPresence::Known {
            self.count_wide_delivery(id, delivery.is_wide, true);
            return;
        }
        let waiter = EventWaiter {
            relay: id,
            session,
            batch: delivery.batch,
            source,
            is_wide: delivery.is_wide,
            is_resubmitted: false,
        };
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

    /// Counts an event for the batch or historic run that waits for it.
    fn count_pending(&mut self, waiter: EventWaiter) {
        let Some(connection) = self.relays.get_mut(&waiter.relay).and_then(|relay| relay.connection_of(waiter.session))
        else {
            return;
        };
        if let Some(batch) = waiter.batch.and_then(|batch| connection.batches.get_mut(&batch)) {
            batch.pending_events += 1;
        }
        if waiter.is_resubmitted {
            connection.resubmitted += 1;
        }
    }

    /// Submits an event to admission.
    fn submit(
        &mut self,
        event: Arc<Event>,
        session: Option<SessionId>,
        waiters: Vec<EventWaiter>,
        offered: Vec<RelayUrl>,
    ) {
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
            return self.submit(event, None, waiters, offered);
        }
        let now = self.now;
        let is_new = matches!(result, SubmitResult::Stored | SubmitResult::Held);
        let mut is_first = true;
        for waiter in &waiters {
            let Some(relay) = self.relays.get_mut(&waiter.relay) else { continue };
            if is_new && is_first {
                relay.totals.received += 1;
            }
            let historic_sync_completed_at = relay.historic_sync_completed_at;
            let absent_since = relay.catch_up_since;
            let Some(connection) = relay.connection_of(waiter.session) else { continue };
            if waiter.is_resubmitted {
                connection.resubmitted = connection.resubmitted.saturating_sub(1);
                relay.has_ready_repos = true;
            }
            let Some(connection) = relay.connection_of(waiter.session) else { continue };
            if result == SubmitResult::InvalidSignature {
                connection.invalid_messages += 1;
            }
            if let Some(batch) = waiter.batch.and_then(|batch| connection.batches.get_mut(&batch)) {
                batch.pending_events = batch.pending_events.saturating_sub(1);
                if is_new && is_first {
                    batch.events += 1;
                    // A gap: it was created while everything of this relay was live and complete.
                    let from = historic_sync_completed_at.map(|at| at.plus_secs(limits::SYNC_OVERLAP_SECS));
                    let is_gap = from.is_some_and(|from| event.created_at > from)
                        && absent_since.is_none_or(|since| event.created_at < since);
                    if is_gap
                        && event.created_at < now.wall
                        && batch.since.is_none() == (batch.source == SyncSource::Daily)
                    {
                        batch.gaps.0 += 1;
                        if batch.gaps.1.len() < 3 {
                            batch.gaps.1.push(event.id);
                        }
                    }
                }
                if let SubmitResult::Rejected(rejection) = &result
                    && rejection.is_temporary()
                {
                    batch.fail("no space for the events of the relay");
                }
            }
            is_first = false;
            let is_useful = !matches!(
                &result,
                SubmitResult::Rejected(
                    Rejection::Unrelated
                        | Rejection::NotListed
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
                if let Some(row) = self.rejected.reject(event.clone(), rejection, url, rejected_layer(&event), now) {
                    self.outputs.push_back(SyncOutput::StoreRow(SyncRow::Rejected(row)));
                }
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
        connection.wide_deliveries.0 += 1;
        connection.wide_deliveries.1 += u32::from(is_useful);
        let (seen, useful) = connection.wide_deliveries;
        if seen >= limits::WIDE_SUBSCRIPTION_SAMPLE_EVENTS {
            connection.wide_deliveries = (0, 0);
            if useful * 2 < seen {
                relay.learned.wide_disabled = true;
                relay.is_unsaved = true;
                self.disconnect(id);
            }
        }
    }

    /// Submits or fetches rejected events whose dependency has arrived.
    pub(super) fn resubmit_woken(&mut self, woken: WokenEvents) {
        for id in woken.removed {
            self.outputs.push_back(SyncOutput::DeleteRow(SyncRowKey::Rejected(id)));
        }
        for (event, relay_urls) in woken.cached {
            let relay = relay_urls.iter().find_map(|url| {
                let id = self.relay_ids.get(url.without_scheme())?;
                let session = self.relays.get(id)?.connection()?.session;
                Some((*id, session))
            });
            let waiters: Vec<EventWaiter> = relay
                .into_iter()
                .map(|(relay, session)| EventWaiter {
                    relay,
                    session,
                    batch: None,
                    source: SyncSource::CatchUp,
                    is_wide: false,
                    is_resubmitted: true,
                })
                .collect();
            let identity = (event.id, event.sig);
            if self.in_flight.ids.contains_key(&identity) {
                continue;
            }
            self.submit(event, None, waiters.clone(), relay_urls);
            for waiter in waiters {
                self.count_pending(waiter);
            }
        }
        for (id, relay_urls) in woken.to_fetch {
            let relays: Vec<RelayId> =
                relay_urls.iter().filter_map(|url| self.relay_ids.get(url.without_scheme()).copied()).collect();
            let connection =
                relays.iter().find(|id| self.relays.get(id).is_some_and(|relay| relay.connection().is_some()));
            let Some(relay) = connection.or(relays.first()).and_then(|id| self.relays.get_mut(id)) else { continue };
            if relay.ids_to_fetch.len() < limits::MAX_QUEUED_IDS_PER_RELAY {
                relay.ids_to_fetch.insert(id);
                let id = relay.id;
                self.runnable.insert(id);
            }
        }
    }
}

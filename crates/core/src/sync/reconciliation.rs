//! Runs negentropy reconciliations with a relay: queries local ids, compares them with the relay, and fetches the
//! difference.
//!
//! Part of historic sync. See `docs/design/sync.md#negentropy`.

use super::batch::{ActiveRequest, AnswerState, BatchId, QueuedRequest, RequestId, RequestKind};
use super::filters::is_state_filter;
use super::io::{LocalIds, OutgoingMessage, SubscriptionId, SyncNote, SyncOutput, SyncSource};
use super::negentropy::{NegentropySession, NegentropyStep};
use super::relay::{ConnectionState, RelayState, SubscriptionPurpose};
use super::scheduler::{fallback_request, is_one_second};
use super::{SyncContext, limits};
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

impl RelayState {
    /// Queries the store for the ids among `ids` that are missing here.
    pub(super) fn query_missing(&mut self, ctx: &mut SyncContext<'_>, batch: BatchId, ids: Vec<EventId>, round: u8) {
        let relay = self.id;
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(pending) = connection.batches.get_mut(&batch) else { return };
        pending.active_requests += 1;
        let id = RequestId(ctx.new_id());
        let query = ctx.new_query(relay, id);
        ctx.outputs.push_back(SyncOutput::QueryMissingIds(query, ids));
        let (kind, started_at) = (RequestKind::QueryingMissingIds(round), ctx.now.mono);
        let request =
            ActiveRequest { batch, sub: None, kind, started_at, deadline: None, answer: AnswerState::Pending };
        connection.requests.insert(id, request);
    }

    /// Handles the answer of the store to [`query_missing`](Self::query_missing): queues the missing ids to be fetched.
    /// After two rounds the batch fails.
    pub(super) fn on_missing_ids(&mut self, ctx: &mut SyncContext<'_>, id: RequestId, mut ids: Vec<EventId>) {
        let Some(request) = self.remove_request(ctx, id) else { return };
        let RequestKind::QueryingMissingIds(round) = request.kind else { return };
        ids.retain(|id| !ctx.rejected.contains(id));
        let Some(batch) = self.connection_mut().and_then(|connection| connection.batches.get_mut(&request.batch))
        else {
            return;
        };
        match round {
            _ if ids.is_empty() => {}
            0 | 1 => batch.queue.push_front(QueuedRequest::FetchIds(ids, round)),
            _ => batch.fail("relay does not serve the events that it offers"),
        }
    }

    /// Handles the local ids from the store: opens a reconciliation with them, or falls back to pages.
    pub(super) fn on_local_ids(&mut self, ctx: &mut SyncContext<'_>, id: RequestId, ids: LocalIds) {
        let in_cooldown = self.is_in_cooldown(ctx.now);
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(request) = connection.requests.get_mut(&id) else { return };
        let RequestKind::QueryingLocalIds(filter) = &request.kind else { return };
        let mut filter = filter.clone();
        let batch_id = request.batch;
        let mut items = ids.items;
        let complete_since =
            ids.complete_since.filter(|from| from.0 > 0 && filter.since.is_none_or(|since| *from > since));
        if complete_since.is_none() {
            items.extend(ctx.rejected.negentropy_items(&self.url, &filter));
        }
        items.sort_unstable();
        items.dedup();
        let second = is_one_second(&filter);
        let frame = connection
            .relay_limits
            .frame_bytes_beside(super::live::json_bytes(&filter))
            .filter(|_| second || !items.is_empty());
        // Live subscriptions may have used the free subscription in the meantime.
        let reserve = connection.relay_limits.reserved_subscriptions as usize;
        let has_free_subscription =
            connection.subscriptions.len() + reserve < connection.relay_limits.max_subscriptions as usize;
        let Some(frame) = frame.filter(|_| {
            !in_cooldown && has_free_subscription && connection.unsent_bytes < limits::SYNC_MAX_UNSENT_BYTES
        }) else {
            self.remove_request(ctx, id);
            self.history_incomplete |= second && frame.is_none();
            let Some(batch) = self.connection_mut().and_then(|connection| connection.batches.get_mut(&batch_id)) else {
                return;
            };
            match frame {
                None if second => {}
                None => batch.unmatched_filters.push(batch.page_filter(filter)),
                Some(_) => batch.requeue(Some(QueuedRequest::Compare(filter))),
            }
            return;
        };
        if let Some(from) = complete_since
            && let Some(batch) = connection.batches.get_mut(&batch_id)
        {
            // Compare this window now, and everything before it as another one.
            batch
                .requeue(Some(QueuedRequest::Compare(Filter { until: Some(Timestamp(from.0 - 1)), ..filter.clone() })));
            filter.since = Some(from);
        }
        let (session, first) = NegentropySession::start(&items, frame);
        let sub = ctx.next_subscription_id();
        connection.subscriptions.insert(
            sub,
            super::relay::OpenSubscription { purpose: SubscriptionPurpose::Request(id), is_answered: false },
        );
        if let Some(request) = connection.requests.get_mut(&id) {
            request.sub = Some(sub);
            request.deadline = Some(ctx.now.mono.plus_secs(limits::NEGENTROPY_ROUND_TIMEOUT_SECS));
            request.kind = RequestKind::Negentropy(filter.clone(), Box::new(session));
        }
        ctx.send(connection, OutgoingMessage::NegOpen(sub, filter, first));
    }

    /// Handles a negentropy message of the relay: continues or ends the reconciliation.
    pub(super) fn on_neg_msg(&mut self, ctx: &mut SyncContext<'_>, sub: SubscriptionId, message: &[u8]) {
        let in_cooldown = self.is_in_cooldown(ctx.now);
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(SubscriptionPurpose::Request(id)) = connection.subscriptions.get(&sub).map(|sub| sub.purpose) else {
            return;
        };
        let Some(request) = connection.requests.get_mut(&id) else { return };
        let batch_id = request.batch;
        let RequestKind::Negentropy(filter, session) = &mut request.kind else { return };
        let step = session.handle_message(message);
        request.deadline = Some(ctx.now.mono.plus_secs(limits::NEGENTROPY_ROUND_TIMEOUT_SECS));
        if let NegentropyStep::Send(_) = step
            && in_cooldown
        {
            // No requests are sent during a cooldown. The reconciliation starts again later.
            let filter = filter.clone();
            return self.stop_reconciliation(ctx, id, sub, Some(QueuedRequest::Compare(filter)));
        }
        match step {
            NegentropyStep::Send(message) => ctx.send(connection, OutgoingMessage::NegMsg(sub, message)),
            NegentropyStep::Done => {
                let need = session.take_needed();
                let lacking = session.missing_remotely().len() as u64;
                let compared = session.item_count() as u64;
                self.totals.compared += compared;
                self.totals.shared += compared.saturating_sub(lacking);
                if is_state_filter(filter) {
                    let (shared, lacking) = (session.shared(), session.missing_remotely().to_vec());
                    ctx.note(SyncNote::StatesCompared { relay: self.url.clone(), shared, lacking });
                }
                if let Some(batch) =
                    connection.batches.get_mut(&batch_id).filter(|batch| batch.source == SyncSource::Daily)
                {
                    batch.lacking.get_or_insert_default().extend(session.missing_remotely());
                }
                connection.concurrency = (connection.concurrency + 1).min(limits::MAX_CONCURRENT_REQUESTS);
                connection.close(ctx, sub, true);
                // NEG-CLOSE has no answer to wait for.
                connection.subscriptions.remove(&sub);
                self.remove_request(ctx, id);
                if !need.is_empty() {
                    self.query_missing(ctx, batch_id, need, 0);
                }
            }
            NegentropyStep::TooDifferent | NegentropyStep::TooLarge | NegentropyStep::ProtocolError => {
                let filter =
                    connection.batches.get(&batch_id).map_or(filter.clone(), |batch| batch.page_filter(filter.clone()));
                let request = fallback_request(filter, connection.relay_limits.page_size, &mut self.history_incomplete);
                self.stop_reconciliation(ctx, id, sub, request);
            }
        }
    }

    /// Ends a reconciliation before it is done and queues `fallback_request` instead.
    pub(super) fn stop_reconciliation(
        &mut self,
        ctx: &mut SyncContext<'_>,
        id: RequestId,
        sub: SubscriptionId,
        fallback_request: Option<QueuedRequest>,
    ) {
        let Some(request) = self.remove_request(ctx, id) else { return };
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        connection.close(ctx, sub, true);
        if let Some(batch) = connection.batches.get_mut(&request.batch) {
            batch.requeue(fallback_request);
        }
    }
}

//! Handling of messages from a relay.

use std::sync::Arc;

use super::batch::{AnswerState, BatchId, QueuedRequest, RequestId, RequestKind};
use super::io::{EoseHint, IncomingMessage, SubscriptionId};
use super::pagination::PageOutcome;
use super::relay::{ConnectionState, EmptyAnswer, LateDelivery, RelayState, SubscriptionPurpose};
use super::scheduler::first_page;
use super::{SyncContext, limits};
use crate::nostr::event::Event;

/// What an event from a relay belongs to.
pub(super) struct DeliveredEvent {
    pub(super) batch: Option<BatchId>,
    /// Whether it came from a live subscription after EOSE.
    pub(super) is_live: bool,
    /// Whether it came from the wide live set.
    pub(super) is_wide: bool,
    /// Whether it shows that the relay sends stored events after EOSE. Then earlier answers were incomplete, and the
    /// connection must end so that the next one requests everything.
    pub(super) is_late: bool,
}

impl RelayState {
    /// Handles any message except an event. Returns `true` if the connection must end.
    pub(super) fn on_message(&mut self, ctx: &mut SyncContext<'_>, message: IncomingMessage) -> bool {
        match message {
            IncomingMessage::Eose(sub, hint) => self.on_eose(ctx, sub, hint),
            IncomingMessage::Closed(sub, text) => return self.on_closed(ctx, sub, &text),
            IncomingMessage::NegErr(sub, text, _) => return self.on_closed(ctx, sub, &text),
            IncomingMessage::NegMsg(sub, message) => self.on_neg_msg(ctx, sub, &message),
            IncomingMessage::Notice(text) => return self.on_notice(ctx, &text),
            IncomingMessage::Ok(accepted, text) => return self.on_auth_reply(ctx, accepted, &text),
            IncomingMessage::Auth(challenge) => self.on_auth_challenge(ctx, challenge),
            IncomingMessage::Invalid => {
                let Some(connection) = self.connection_mut() else { return false };
                connection.invalid_messages += 1;
                return connection.invalid_messages > limits::MAX_UNPARSEABLE_MESSAGES;
            }
            IncomingMessage::TooLarge(sub) => {
                // It counts as progress: requesting it again would have the same result.
                self.extend_deadline(ctx, sub);
            }
            IncomingMessage::Alive | IncomingMessage::Event(..) => {}
        }
        false
    }

    /// Extends the deadline of the request of a subscription, because it made progress. Returns the request.
    pub(super) fn extend_deadline(&mut self, ctx: &SyncContext<'_>, sub: SubscriptionId) -> Option<RequestId> {
        let connection = self.connection_mut()?;
        let SubscriptionPurpose::Request(id) = connection.subscriptions.get(&sub)?.purpose else { return None };
        let request = connection.requests.get_mut(&id)?;
        let wait_secs = if request.answer == AnswerState::Pending {
            limits::SYNC_REQUEST_STALL_SECS
        } else {
            limits::LATE_EVENT_WINDOW_SECS
        };
        request.deadline = Some(
            ctx.now.mono.plus_secs(wait_secs).min(request.started_at.plus_secs(limits::SYNC_REQUEST_TIMEOUT_SECS)),
        );
        Some(id)
    }

    /// Counts an event for its request or live set, and returns what it belongs to.
    pub(super) fn attribute_event(
        &mut self,
        ctx: &SyncContext<'_>,
        sub: SubscriptionId,
        event: &Arc<Event>,
    ) -> DeliveredEvent {
        let request = self.extend_deadline(ctx, sub);
        let wall = ctx.now.wall;
        let mut delivery = DeliveredEvent { batch: None, is_live: false, is_wide: false, is_late: false };
        let ConnectionState::Connected(connection) = &mut self.connection else { return delivery };
        let Some(subscription) = connection.subscriptions.get(&sub) else {
            if self.late_delivery == LateDelivery::No
                && connection.record_late_event(sub, event.created_at, ctx.now.mono)
            {
                self.late_delivery = LateDelivery::JustDetected;
                delivery.is_late = true;
            }
            return delivery;
        };
        if let SubscriptionPurpose::Live(key) = subscription.purpose {
            delivery.is_live = subscription.is_answered;
            delivery.is_wide = connection.wide == Some(key);
            if subscription.is_answered {
                let age_secs = wall.secs_since(event.created_at);
                self.clock_ahead_secs = Some(self.clock_ahead_secs.map_or(age_secs, |least| least.min(age_secs)));
            }
            return delivery;
        }
        let Some(request) = request.and_then(|id| connection.requests.get_mut(&id)) else { return delivery };
        delivery.batch = Some(request.batch);
        match &mut request.kind {
            RequestKind::Group(_, count) => *count += 1,
            RequestKind::Page(pages) => pages.record_event(event.id, event.created_at),
            RequestKind::FetchIds { missing, .. } => drop(missing.remove(&event.id)),
            _ => {}
        }
        delivery
    }

    /// Handles EOSE: confirms a live set, or ends a request.
    pub(super) fn on_eose(&mut self, ctx: &mut SyncContext<'_>, sub: SubscriptionId, hint: Option<EoseHint>) {
        let late_delivery = self.late_delivery;
        let Some(connection) = self.connection_mut() else { return };
        let Some(subscription) = connection.subscriptions.get_mut(&sub) else { return };
        let is_first = !std::mem::replace(&mut subscription.is_answered, true);
        match subscription.purpose {
            SubscriptionPurpose::Closing(_) => drop(connection.subscriptions.remove(&sub)),
            SubscriptionPurpose::Live(key) => {
                let Some(set) = connection.live.get_mut(&key) else { return };
                set.awaiting_eose.remove(&sub);
                set.timed_out &= !is_first;
                connection.consecutive_rejections = 0;
                if set.awaiting_eose.is_empty() {
                    self.on_live_confirmed(ctx, key);
                }
            }
            SubscriptionPurpose::Request(id) if is_first => {
                connection.concurrency = (connection.concurrency + 1).min(limits::MAX_CONCURRENT_REQUESTS);
                connection.consecutive_rejections = 0;
                let Some(request) = connection.requests.get_mut(&id) else { return };
                let until = ctx.now.mono.plus_secs(limits::LATE_EVENT_WINDOW_SECS);
                if late_delivery == LateDelivery::Known {
                    request.answer = AnswerState::Ended(hint);
                    request.deadline = Some(until);
                    return;
                }
                if request.is_empty() {
                    connection.empty_answers.truncate(limits::MAX_LATE_REQUESTS - 1);
                    connection.empty_answers.push_front(EmptyAnswer {
                        sub,
                        answered_at: ctx.now.wall,
                        until,
                        late_events: 0,
                    });
                }
                self.finish_request(ctx, id, Some(sub), hint);
            }
            SubscriptionPurpose::Request(_) => {}
        }
    }

    /// Closes the subscription of a request and handles its answer.
    pub(super) fn finish_request(
        &mut self,
        ctx: &mut SyncContext<'_>,
        id: RequestId,
        sub: Option<SubscriptionId>,
        hint: Option<EoseHint>,
    ) {
        if let Some((connection, sub)) = self.connection_mut().zip(sub) {
            connection.close(ctx, sub, false);
        }
        self.on_request_answered(ctx, id, hint);
    }

    /// Handles the complete answer of a request: queues further pages or ids, or fails the batch.
    pub(super) fn on_request_answered(&mut self, ctx: &mut SyncContext<'_>, id: RequestId, hint: Option<EoseHint>) {
        let can_compare = self.can_use_negentropy(ctx.now, ctx.config.use_negentropy);
        let Some(request) = self.remove_request(ctx, id) else { return };
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let limit = connection.relay_limits.page_size;
        let Some(batch) = connection.batches.get_mut(&request.batch) else { return };
        match request.kind {
            RequestKind::Group(filters, count) => {
                let is_short = hint.is_none() && count < limit as usize && connection.page_sizes.is_short(count);
                let is_complete = hint == Some(EoseHint::Complete) || is_short;
                if !is_complete {
                    // The answer of some filter may have been cut, and it is unknown of which. Each is paged alone.
                    batch.queue.extend(filters.into_iter().map(|filter| first_page(filter, limit)));
                }
            }
            RequestKind::Page(mut pages) => match pages.finish_page(hint, &mut connection.page_sizes) {
                PageOutcome::Done => {}
                PageOutcome::Next => batch.queue.push_front(QueuedRequest::Page(pages)),
                PageOutcome::Split(filters) => {
                    for filter in filters.into_iter().rev() {
                        batch.queue.push_front(first_page(filter, limit));
                    }
                }
                PageOutcome::SteppedOver(second) => {
                    // Negentropy needs no pages. Without it, the rest of this second cannot be fetched.
                    match pages.one_second(second) {
                        filter if can_compare => batch.queue.push_back(QueuedRequest::Compare(filter)),
                        _ => self.history_incomplete = true,
                    }
                    batch.queue.push_front(QueuedRequest::Page(pages));
                }
                PageOutcome::GaveUp => batch.fail("too many pages for one filter"),
            },
            RequestKind::FetchIds { missing, count, remaining, round } => {
                if !remaining.is_empty() {
                    batch.queue.push_front(QueuedRequest::FetchIds(remaining, round));
                }
                if !missing.is_empty() && round != u8::MAX {
                    // If the answer may have been cut, the missing events are not withheld, and this attempt does not
                    // count.
                    let is_cut = missing.len() < count && !connection.page_sizes.is_short(count - missing.len());
                    self.query_missing(
                        ctx,
                        request.batch,
                        missing.into_iter().collect(),
                        if is_cut { round } else { round + 1 },
                    );
                }
            }
            RequestKind::QueryingLocalIds(_) | RequestKind::Negentropy(..) | RequestKind::QueryingMissingIds(_) => {}
        }
    }
}

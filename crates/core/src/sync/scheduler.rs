//! Chooses the next action of a connection: live subscriptions first, then queued requests of batches, then new
//! batches.

use std::collections::BTreeSet;

use super::batch::{
    ActiveRequest, AnswerState, BatchId, BatchOrigin, BatchPhase, QueuedRequest, RequestId, RequestKind,
};
use super::filters::{BatchCapacity, ID_BYTES, is_state_filter};
use super::io::{OutgoingMessage, SubscriptionId, SyncOutput};
use super::live::pack_requests;
use super::pagination::PaginationState;
use super::relay::{
    AuthState, Connection, ConnectionState, OpenSubscription, PageCursor, RelayState, SubscriptionPurpose,
};
use super::relay_limits::RelayLimits;
use super::{SyncContext, limits};
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::time::Timestamp;

impl RelayState {
    /// Takes all actions that are possible now.
    pub(super) fn run(&mut self, ctx: &mut SyncContext<'_>) {
        let Some(connection) = self.connection_mut() else { return };
        connection.bytes_this_step = 0;
        // Each iteration sends or completes something, of which there is a finite amount. The bound protects against a
        // bug.
        for _ in 0..limits::SYNC_STEP_ACTIONS_PER_RELAY {
            self.free_slots(ctx);
            if self.can_send(ctx) && self.start_next(ctx) {
                continue;
            }
            if !self.complete_next(ctx) {
                return;
            }
        }
    }

    /// Whether requests may be sent now.
    pub(super) fn can_send(&self, ctx: &SyncContext<'_>) -> bool {
        let Some(connection) = self.connection() else { return false };
        let is_authenticating = matches!(connection.auth.state, AuthState::Required(_) | AuthState::Sent(_));
        !connection.is_closing
            && !self.is_in_cooldown(ctx.now)
            && !is_authenticating
            && connection.unsent_bytes + connection.bytes_this_step < limits::SYNC_MAX_UNSENT_BYTES
            && connection.retry_after <= ctx.now.mono
    }

    /// Frees the slots of closed subscriptions whose EOSE or CLOSED did not arrive in time.
    pub(super) fn free_slots(&mut self, ctx: &SyncContext<'_>) {
        if let Some(connection) = self.connection_mut() {
            connection
                .subscriptions
                .retain(|_, sub| !matches!(sub.purpose, SubscriptionPurpose::Closing(until) if until <= ctx.now.mono));
        }
    }

    /// Starts one action. Returns `false` if there is none.
    pub(super) fn start_next(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        self.open_wide_live_set(ctx)
            || self.open_next_live_set(ctx)
            || self.start_queued_request(ctx)
            || self.next_batch(ctx)
            || self.consolidate(ctx)
    }

    /// Consolidation: merges live sets if they have many more filters than necessary.
    pub(super) fn consolidate(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        self.needs_consolidation() && self.merge_live_sets(ctx)
    }

    /// Starts the next queued request of a batch. Returns `false` if there is none, or no free slot.
    pub(super) fn start_queued_request(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let reserve = connection.relay_limits.reserved_subscriptions as usize;
        let waiting = connection.requests.values().filter(|request| request.sub.is_none()).count();
        let free = (connection.relay_limits.max_subscriptions as usize)
            .saturating_sub(reserve + connection.subscriptions.len() + waiting);
        let max_requests = connection.concurrency.min(connection.relay_limits.max_requests) as usize;
        if free == 0 || connection.requests.len() >= max_requests {
            return false;
        }
        let comparing = connection.requests.values().filter(|request| request.is_negentropy()).count();
        let can_compare = comparing < connection.relay_limits.max_negentropy as usize
            && *ctx.open_negentropy < limits::MAX_CONCURRENT_RECONCILIATIONS;
        let mut is_waiting = false;
        let found = connection.batches.iter_mut().find_map(|(id, batch)| {
            if batch.phase != BatchPhase::Historic
                || (batch.is_serial() && (batch.active_requests > 0 || batch.pending_events > 0))
            {
                return None;
            }
            match batch.queue.front() {
                Some(QueuedRequest::Compare(_)) if !can_compare => {
                    is_waiting |= *ctx.open_negentropy >= limits::MAX_CONCURRENT_RECONCILIATIONS;
                    None
                }
                Some(_) => batch.queue.pop_front().map(|queued| (*id, queued)),
                None => None,
            }
        });
        if is_waiting {
            ctx.waiting_for_negentropy.insert(self.id);
        }
        let Some((batch, queued)) = found else { return false };
        self.start_request(ctx, batch, queued);
        true
    }

    /// Starts a request of a batch.
    pub(super) fn start_request(&mut self, ctx: &mut SyncContext<'_>, batch_id: BatchId, queued: QueuedRequest) {
        let can_compare = self.can_use_negentropy(ctx.now, ctx.config.use_negentropy);
        let overlap_secs = self.overlap_secs();
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(batch) = connection.batches.get_mut(&batch_id) else { return };
        let id = RequestId(ctx.new_id());
        let limit = connection.relay_limits.page_size as usize;
        let deadline = Some(ctx.now.mono.plus_secs(limits::SYNC_REQUEST_STALL_SECS));
        let (kind, filters, deadline) = match queued {
            QueuedRequest::Group(filters) => {
                let first = filters.iter().map(|filter| Filter { limit: Some(limit), ..filter.clone() }).collect();
                (RequestKind::Group(filters, 0), Some(first), deadline)
            }
            QueuedRequest::Page(mut pages) => {
                let key = without_cursor(&pages.next_filter());
                let cursor = self
                    .page_cursors
                    .remove(&key)
                    .filter(|old| ctx.now.mono.since(old.saved_at).as_secs() < limits::QUICK_RECONNECT_SECS);
                if let Some(PageCursor { until, started_at, .. }) = cursor
                    && pages.cursor().is_none()
                {
                    // Events that arrived since then are newer than the cursor, so they are requested separately.
                    let since =
                        Some(Timestamp(started_at.0.saturating_sub(overlap_secs)).max(key.since.unwrap_or_default()));
                    batch
                        .queue
                        .push_back(first_page(Filter { since, ..key.clone() }, connection.relay_limits.page_size));
                    pages = Box::new(PaginationState::new(key, limit, Some(until)));
                }
                let filters = vec![pages.next_filter()];
                (RequestKind::Page(pages), Some(filters), deadline)
            }
            QueuedRequest::Compare(filter) if !can_compare => {
                if is_one_second(&filter) {
                    self.history_incomplete = true;
                } else {
                    batch.unmatched_filters.push(filter);
                }
                return group_unmatched_filters(connection, batch_id);
            }
            QueuedRequest::Compare(filter) => {
                let query = ctx.new_query(self.id, id);
                ctx.outputs.push_back(SyncOutput::QueryLocalIds(query, filter.clone()));
                *ctx.open_negentropy += 1;
                (RequestKind::QueryingLocalIds(filter), None, None)
            }
            QueuedRequest::FetchIds(mut ids, round) => {
                // A relay limits the answer to ids like a page.
                let max_ids =
                    (connection.relay_limits.filter_bytes / ID_BYTES).min(limit).clamp(1, limits::MAX_IDS_PER_REQUEST);
                let remaining = ids.split_off(ids.len().min(max_ids));
                let filter = Filter { ids: Some(ids.clone()), ..Filter::default() };
                let missing: BTreeSet<EventId> = ids.into_iter().collect();
                let count = missing.len();
                (RequestKind::FetchIds { missing, count, remaining, round }, Some(vec![filter]), deadline)
            }
        };
        batch.active_requests += 1;
        let sub = filters.map(|filters| {
            let sub = ctx.next_subscription_id();
            connection
                .subscriptions
                .insert(sub, OpenSubscription { purpose: SubscriptionPurpose::Request(id), is_answered: false });
            ctx.send(connection, OutgoingMessage::Req(sub, filters));
            sub
        });
        let answer = AnswerState::Pending;
        connection
            .requests
            .insert(id, ActiveRequest { batch: batch_id, sub, kind, started_at: ctx.now.mono, deadline, answer });
    }

    /// Queues the historic requests of a batch, whose live set is confirmed or has no free slot.
    pub(super) fn start_historic_requests(&mut self, ctx: &mut SyncContext<'_>, id: BatchId) {
        let can_compare = self.can_use_negentropy(ctx.now, ctx.config.use_negentropy);
        let capacity = self.batch_capacity(ctx);
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let Some(batch) = connection.batches.get_mut(&id) else { return };
        batch.phase = BatchPhase::Historic;
        let since = batch.since;
        let with_since = |filter: Filter| Filter { since, ..filter };
        let filters: Vec<Filter> =
            batch.scope.filters(ctx.repo_index, capacity.values).into_iter().map(with_since).collect();
        // Needs that were never requested mostly match nothing here, and `since` brings few events: pages are cheaper.
        // Otherwise both sides have nearly the same events, and they are compared.
        let is_full = since.is_none()
            && matches!(batch.origin, BatchOrigin::Announcements | BatchOrigin::Pass | BatchOrigin::Retry(_));
        let is_first_request = since.is_none() && batch.origin == BatchOrigin::New && batch.in_historic_run;
        if batch.is_serial() {
            // One request after the other. Filters without local events are paged. States are compared once per
            // process, because it is not stored which states a relay has.
            for filter in filters {
                batch.queue.push_back(if can_compare && is_full {
                    QueuedRequest::Compare(filter)
                } else if can_compare && !self.states_compared && is_state_filter(&filter) {
                    QueuedRequest::Compare(Filter { since: None, ..filter })
                } else {
                    first_page(filter, connection.relay_limits.page_size)
                });
            }
        } else if can_compare && (is_full || is_first_request) {
            batch.queue.extend(filters.into_iter().map(QueuedRequest::Compare));
        } else {
            let groups =
                pack_requests(filters, connection.relay_limits.max_filters as usize, connection.relay_limits.req_bytes);
            batch.queue.extend(groups.into_iter().map(QueuedRequest::Group));
        }
    }

    /// Returns how large a batch may be.
    pub(super) fn batch_capacity(&self, ctx: &SyncContext<'_>) -> BatchCapacity {
        let relay_limits = self
            .connection()
            .map_or_else(|| RelayLimits::new(None, &self.learned), |connection| connection.relay_limits);
        BatchCapacity::new(&relay_limits, ctx.config.values_per_filter, self.total_size)
    }
}

impl Connection {
    /// Closes a subscription or negentropy exchange. Its slot is free at once if the relay has answered it.
    pub(super) fn close(&mut self, ctx: &mut SyncContext<'_>, id: SubscriptionId, is_negentropy: bool) {
        let Some(sub) = self.subscriptions.get_mut(&id) else { return };
        let message = if is_negentropy { OutgoingMessage::NegClose(id) } else { OutgoingMessage::Close(id) };
        if sub.is_answered {
            self.subscriptions.remove(&id);
        } else {
            sub.purpose = SubscriptionPurpose::Closing(ctx.now.mono.plus_secs(limits::SYNC_CLOSE_GRACE_SECS));
        }
        ctx.send(self, message);
    }
}

/// Queues the filters of a batch that match no local event: in shared requests, or in pages if the batch is serial.
pub(super) fn group_unmatched_filters(connection: &mut Connection, id: BatchId) {
    let (max_filters, max_bytes) = (connection.relay_limits.max_filters as usize, connection.relay_limits.req_bytes);
    let page_size = connection.relay_limits.page_size as usize;
    let Some(batch) = connection.batches.get_mut(&id) else { return };
    let has_comparisons = batch.queue.iter().any(|queued| matches!(queued, QueuedRequest::Compare(_)));
    if batch.is_serial() {
        let unmatched_filters = std::mem::take(&mut batch.unmatched_filters);
        for filter in unmatched_filters.into_iter().rev() {
            batch.queue.push_front(QueuedRequest::Page(Box::new(PaginationState::new(filter, page_size, None))));
        }
    } else if !has_comparisons {
        let unmatched_filters = std::mem::take(&mut batch.unmatched_filters);
        batch
            .queue
            .extend(pack_requests(unmatched_filters, max_filters, max_bytes).into_iter().map(QueuedRequest::Group));
    }
}

/// Whether a filter is about a single second. Pages cannot fetch all of it, so it is compared or given up.
pub(super) fn is_one_second(filter: &Filter) -> bool {
    filter.since.is_some() && filter.since == filter.until
}

/// Returns the request that replaces a failed comparison: pages, or nothing for a single second.
pub(super) fn fallback_request(filter: Filter, limit: u32, history_incomplete: &mut bool) -> Option<QueuedRequest> {
    let is_second = is_one_second(&filter);
    *history_incomplete |= is_second;
    (!is_second).then(|| first_page(filter, limit))
}

/// Returns a request for the first page of a filter.
pub(super) fn first_page(filter: Filter, limit: u32) -> QueuedRequest {
    QueuedRequest::Page(Box::new(PaginationState::new(filter, limit as usize, None)))
}

/// Returns a filter without the cursor and limit of its pages.
pub(super) fn without_cursor(filter: &Filter) -> Filter {
    Filter { until: None, limit: None, ..filter.clone() }
}

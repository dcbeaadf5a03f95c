//! Requests of batches: pages, negentropy and ids. Starts them, and handles their answers, rejections and timeouts.

use super::super::batch::{AnswerState, BatchFailure};
use super::super::filters::{ID_BYTES, is_state_filter, json_bytes, pack_requests};
use super::super::io::{EoseHint, LocalIds, OutgoingMessage, SyncOutput};
use super::super::negentropy::{NegentropySession, NegentropyStep};
use super::super::pagination::PageOutcome;
use super::super::rejection_text::RelayRejection;
use super::super::session::SubscriptionPurpose;
use super::*;

impl HistoricSync {
    /// Starts the next queued request of a batch. Returns `false` if there is none, or no free slot.
    pub(in crate::sync) fn start_queued_request(&mut self, link: &mut Link<'_, '_>) -> bool {
        let ConnectionSync { batches, requests, .. } = &mut self.connection;
        let relay_limits = link.limits.current();
        let waiting = requests.values().filter(|request| request.sub.is_none()).count();
        let free = (relay_limits.max_subscriptions as usize)
            .saturating_sub(relay_limits.reserved_subscriptions as usize + link.session.slot_count() + waiting);
        let max_requests = link.session.concurrency().min(relay_limits.max_requests) as usize;
        if free == 0 || requests.len() >= max_requests {
            return false;
        }
        let comparing = requests.values().filter(|request| request.is_negentropy()).count();
        let is_negentropy_full = *link.ctx.open_negentropy >= link.ctx.config.limits.max_reconciliations;
        let can_compare = comparing < relay_limits.max_negentropy as usize && !is_negentropy_full;
        // A request that is too large even alone is sent all the same: the rejection tells whether it must be split.
        let max_bytes = relay_limits.subscription_bytes;
        let fits = |queued: &QueuedRequest| {
            requests.is_empty()
                || max_bytes == usize::MAX
                || link.session.open_bytes() + queued.bytes(relay_limits.filter_bytes) <= max_bytes
        };
        let mut is_waiting = false;
        let found = batches.iter_mut().find_map(|(id, batch)| {
            if batch.phase != BatchPhase::Historic
                || (batch.is_serial() && (batch.active_requests > 0 || batch.pending_events > 0))
            {
                return None;
            }
            match batch.queue.front() {
                Some(QueuedRequest::Compare(_)) if !can_compare => {
                    is_waiting |= is_negentropy_full;
                    None
                }
                Some(queued) if !fits(queued) => None,
                Some(_) => batch.queue.pop_front().map(|queued| (*id, queued)),
                None => None,
            }
        });
        if is_waiting {
            link.ctx.waiting_for_negentropy.insert(link.id);
        }
        let Some((batch, queued)) = found else { return false };
        self.start_request(link, batch, queued);
        true
    }

    /// Starts a request of a batch.
    fn start_request(&mut self, link: &mut Link<'_, '_>, batch_id: BatchId, queued: QueuedRequest) {
        let can_compare = link.can_use_negentropy();
        let overlap_secs = self.overlap_secs(link.limits.is_grasp());
        let Some(batch) = self.connection.batches.get_mut(&batch_id) else { return };
        let now = link.ctx.now.mono;
        let id = RequestId(link.ctx.new_id());
        let page_size = link.limits.current().page_size;
        let limit = page_size as usize;
        let (kind, filters) = match queued {
            QueuedRequest::Group(filters) => {
                let first = filters.iter().map(|filter| Filter { limit: Some(limit), ..filter.clone() }).collect();
                (RequestKind::Group(filters, 0), Some(first))
            }
            QueuedRequest::Page(mut pages) => {
                let key = without_cursor(&pages.next_filter());
                let cursor = self
                    .page_cursors
                    .remove(&key)
                    .filter(|old| now.since(old.saved_at).as_secs() < limits::QUICK_RECONNECT_SECS);
                if let Some(PageCursor { until, started_at, .. }) = cursor
                    && pages.cursor().is_none()
                {
                    // Events that arrived since then are newer than the cursor, so they are requested separately.
                    let since =
                        Some(Timestamp(started_at.0.saturating_sub(overlap_secs)).max(key.since.unwrap_or_default()));
                    batch.queue.push_back(first_page(Filter { since, ..key.clone() }, page_size));
                    pages = Box::new(PaginationState::new(key, limit, Some(until)));
                }
                let filters = vec![pages.next_filter()];
                (RequestKind::Page(pages), Some(filters))
            }
            QueuedRequest::Compare(filter) if !can_compare => {
                if is_one_second(&filter) {
                    self.is_incomplete = true;
                } else {
                    batch.unmatched_filters.push(filter);
                }
                return self.group_unmatched_filters(link.limits, batch_id);
            }
            QueuedRequest::Compare(filter) => {
                let query = link.ctx.new_query(link.id, id);
                link.ctx.outputs.push_back(SyncOutput::QueryLocalIds(query, filter.clone()));
                *link.ctx.open_negentropy += 1;
                (RequestKind::QueryingLocalIds(filter), None)
            }
            QueuedRequest::FetchIds(mut ids, round) => {
                // Another relay may have delivered some of them since they were looked up.
                ids.retain(|id| !link.ctx.rejected.contains(id));
                if ids.is_empty() {
                    return;
                }
                // A relay limits the answer to ids like a page.
                let max_ids =
                    (link.limits.current().filter_bytes / ID_BYTES).min(limit).clamp(1, limits::MAX_IDS_PER_REQUEST);
                let remaining = ids.split_off(ids.len().min(max_ids));
                let filter = Filter { ids: Some(ids.clone()), ..Filter::default() };
                let missing: BTreeSet<EventId> = ids.into_iter().collect();
                let count = missing.len();
                (RequestKind::FetchIds { missing, count, remaining, round }, Some(vec![filter]))
            }
        };
        batch.active_requests += 1;
        let deadline = filters.is_some().then(|| now.plus_secs(limits::SYNC_REQUEST_STALL_SECS));
        let sub = filters.map(|filters| {
            link.session.open(link.ctx, SubscriptionPurpose::Request(id), |sub| OutgoingMessage::Req(sub, filters))
        });
        let answer = AnswerState::Pending;
        let request = ActiveRequest { batch: batch_id, sub, kind, started_at: now, deadline, answer };
        self.connection.requests.insert(id, request);
    }

    /// Queues the historic requests of a batch after its live set was confirmed or found no free slot.
    pub(super) fn start_historic_requests(&mut self, link: &mut Link<'_, '_>, id: BatchId) {
        let can_compare = link.can_use_negentropy();
        let capacity = self.batch_capacity(link.ctx, link.limits);
        let relay_limits = link.limits.current();
        let Some(batch) = self.connection.batches.get_mut(&id) else { return };
        batch.phase = BatchPhase::Historic;
        let since = batch.since;
        let with_since = |filter: Filter| Filter { since, ..filter };
        let max_values =
            if batch.scope.is_descendants() { BatchCapacity::packed(relay_limits).values } else { capacity.values };
        let mut filters: Vec<Filter> =
            batch.scope.filters(link.ctx.repo_index, max_values).into_iter().map(with_since).collect();
        if let Some(only) = batch.only_filter {
            filters = filters.into_iter().skip(only).take(1).collect();
        }
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
                    first_page(filter, relay_limits.page_size)
                });
            }
        } else if can_compare && (is_full || is_first_request) {
            batch.queue.extend(filters.into_iter().map(QueuedRequest::Compare));
        } else {
            batch.queue.extend(pack_requests(filters, relay_limits).into_iter().map(QueuedRequest::Group));
        }
    }

    /// Queues the filters of a batch that match no local event: in shared requests, or in pages if the batch is serial.
    pub(super) fn group_unmatched_filters(&mut self, limits: &RelayLimits, id: BatchId) {
        let relay_limits = limits.current();
        let Some(batch) = self.connection.batches.get_mut(&id) else { return };
        let has_comparisons = batch.queue.iter().any(|queued| matches!(queued, QueuedRequest::Compare(_)));
        if batch.is_serial() {
            for filter in std::mem::take(&mut batch.unmatched_filters).into_iter().rev() {
                batch.queue.push_front(first_page(filter, relay_limits.page_size));
            }
        } else if !has_comparisons {
            let filters = std::mem::take(&mut batch.unmatched_filters);
            batch.queue.extend(pack_requests(filters, relay_limits).into_iter().map(QueuedRequest::Group));
        }
    }

    /// Extends the deadline of the request of a subscription, because it made progress. Returns the request.
    pub(in crate::sync) fn extend_deadline(&mut self, link: &Link<'_, '_>, sub: SubscriptionId) -> Option<RequestId> {
        let id = link.session.request(sub)?;
        let request = self.connection.requests.get_mut(&id)?;
        let wait_secs = if request.answer == AnswerState::Pending {
            limits::SYNC_REQUEST_STALL_SECS
        } else {
            limits::LATE_EVENT_WINDOW_SECS
        };
        let latest = request.started_at.plus_secs(limits::SYNC_REQUEST_TIMEOUT_SECS);
        request.deadline = Some(link.ctx.now.mono.plus_secs(wait_secs).min(latest));
        Some(id)
    }

    /// Counts an event of a request. Returns the batch that it belongs to.
    pub(in crate::sync) fn record_event(
        &mut self,
        link: &Link<'_, '_>,
        sub: SubscriptionId,
        event: &Event,
    ) -> Option<BatchId> {
        let id = self.extend_deadline(link, sub)?;
        if let Some(compared) = self.compared_mut() {
            compared.add_remote(&event.id);
        }
        let request = self.connection.requests.get_mut(&id)?;
        match &mut request.kind {
            RequestKind::Group(_, count) => *count += 1,
            RequestKind::Page(pages) => pages.record_event(event.id, event.created_at),
            RequestKind::FetchIds { missing, .. } => drop(missing.remove(&event.id)),
            _ => {}
        }
        Some(request.batch)
    }

    /// Counts a delivery of a request that is not a valid event. It takes a place in the page, and the relay does not
    /// withhold the id that it claims: requesting it again would have the same result.
    pub(in crate::sync) fn record_invalid_event(
        &mut self,
        link: &Link<'_, '_>,
        sub: SubscriptionId,
        claimed: Option<EventId>,
    ) {
        let request = self.extend_deadline(link, sub).and_then(|id| self.connection.requests.get_mut(&id));
        match request.map(|request| &mut request.kind) {
            Some(RequestKind::Group(_, count)) => *count += 1,
            Some(RequestKind::Page(pages)) => pages.record_invalid_event(),
            Some(RequestKind::FetchIds { missing, .. }) => drop(claimed.map(|id| missing.remove(&id))),
            _ => {}
        }
    }

    /// Counts an event that arrives for an ended request. Returns whether it shows that the relay sends stored events
    /// after EOSE. Then earlier answers were incomplete, and the next connection requests everything again.
    pub(in crate::sync) fn record_late_event(&mut self, sub: SubscriptionId, event: Timestamp, now: MonoTime) -> bool {
        if self.late_delivery != LateDelivery::No {
            return false;
        }
        let answers = &mut self.connection.empty_answers;
        let Some(empty) = answers.iter_mut().find(|empty| empty.sub == sub && empty.until > now) else {
            return false;
        };
        empty.late_events += u32::from(event < empty.answered_at);
        let is_late = empty.late_events >= limits::MIN_LATE_EVENTS;
        if is_late {
            self.late_delivery = LateDelivery::JustDetected;
        }
        is_late
    }

    /// Handles the first EOSE of a request.
    pub(in crate::sync) fn on_eose(
        &mut self,
        link: &mut Link<'_, '_>,
        (id, sub): (RequestId, SubscriptionId),
        hint: Option<EoseHint>,
    ) {
        link.session.raise_concurrency();
        link.session.record_answer();
        let Some(request) = self.connection.requests.get_mut(&id) else { return };
        let until = link.ctx.now.mono.plus_secs(limits::LATE_EVENT_WINDOW_SECS);
        if self.late_delivery == LateDelivery::Known {
            request.answer = AnswerState::Ended(hint);
            request.deadline = Some(until);
            return;
        }
        if request.is_empty() {
            let answers = &mut self.connection.empty_answers;
            answers.truncate(limits::MAX_LATE_REQUESTS - 1);
            answers.push_front(EmptyAnswer { sub, answered_at: link.ctx.now.wall, until, late_events: 0 });
        }
        self.finish_request(link, id, Some(sub), hint);
    }

    /// Handles requests whose deadline has passed.
    pub(in crate::sync) fn handle_deadlines(&mut self, link: &mut Link<'_, '_>) {
        let now = link.ctx.now.mono;
        let is_late = |request: &ActiveRequest| request.deadline.is_some_and(|at| at <= now);
        let late: Vec<_> = self
            .connection
            .requests
            .iter()
            .filter(|(_, request)| is_late(request))
            .map(|(id, request)| (*id, request.sub, request.answer))
            .collect();
        for (id, sub, answer) in late {
            match answer {
                AnswerState::Pending => self.abandon_request(link, id, sub),
                AnswerState::Ended(hint) => self.finish_request(link, id, sub, hint),
            }
        }
    }

    /// Ends a request that made no progress. Negentropy falls back to pages; any other request fails its batch.
    fn abandon_request(&mut self, link: &mut Link<'_, '_>, id: RequestId, sub: Option<SubscriptionId>) {
        let Some(request) = self.remove_request(link.ctx, id) else { return };
        link.session.halve_concurrency();
        if let Some(sub) = sub {
            link.session.close(link.ctx, sub, matches!(request.kind, RequestKind::Negentropy(..)));
        }
        let Some(batch) = self.connection.batches.get_mut(&request.batch) else { return };
        match request.kind {
            RequestKind::Negentropy(filter, session) => {
                let page_size = link.limits.current().page_size;
                batch.requeue(fallback_request(batch.page_filter(filter), page_size, &mut self.is_incomplete));
                if session.rounds() == 0 {
                    link.disable_negentropy();
                }
            }
            RequestKind::Page(pages) => {
                batch.fail(BatchFailure::NoAnswer);
                let started_at = batch.started_at;
                self.save_page_cursor(&pages, started_at, link.ctx.now.mono);
            }
            _ => batch.fail(BatchFailure::NoAnswer),
        }
    }

    /// Removes a request that has ended or failed.
    fn remove_request(&mut self, ctx: &mut SyncContext<'_>, id: RequestId) -> Option<ActiveRequest> {
        let request = self.connection.requests.remove(&id)?;
        if request.is_negentropy() {
            *ctx.open_negentropy = ctx.open_negentropy.saturating_sub(1);
        }
        if let Some(batch) = self.connection.batches.get_mut(&request.batch) {
            batch.active_requests = batch.active_requests.saturating_sub(1);
        }
        Some(request)
    }

    /// Closes the subscription of a request and handles its complete answer: queues further pages or ids, or fails the
    /// batch.
    fn finish_request(
        &mut self,
        link: &mut Link<'_, '_>,
        id: RequestId,
        sub: Option<SubscriptionId>,
        hint: Option<EoseHint>,
    ) {
        if let Some(sub) = sub {
            link.session.close(link.ctx, sub, false);
        }
        let can_compare = link.can_use_negentropy();
        let limit = link.limits.current().page_size;
        let Some(request) = self.remove_request(link.ctx, id) else { return };
        let ConnectionSync { batches, page_sizes, .. } = &mut self.connection;
        let Some(batch) = batches.get_mut(&request.batch) else { return };
        match request.kind {
            RequestKind::Group(filters, count) => {
                let is_short = hint.is_none() && count < limit as usize && page_sizes.is_short(count);
                if hint != Some(EoseHint::Complete) && !is_short {
                    // The answer of some filter may have been cut, and it is unknown of which. Each is paged alone.
                    batch.queue.extend(filters.into_iter().map(|filter| first_page(filter, limit)));
                }
            }
            RequestKind::Page(mut pages) => match pages.finish_page(hint, page_sizes) {
                PageOutcome::Done => {}
                PageOutcome::Next => batch.queue.push_front(QueuedRequest::Page(pages)),
                PageOutcome::Split(filters) => {
                    for filter in filters.into_iter().rev() {
                        batch.queue.push_front(first_page(filter, limit));
                    }
                }
                PageOutcome::SteppedOver(second) => {
                    // Negentropy needs no pages. Without it, the rest of this second cannot be fetched.
                    if can_compare {
                        batch.queue.push_back(QueuedRequest::Compare(pages.one_second(second)));
                    } else {
                        self.is_incomplete = true;
                    }
                    batch.queue.push_front(QueuedRequest::Page(pages));
                }
                PageOutcome::GaveUp => batch.fail(BatchFailure::TooManyPages),
            },
            RequestKind::FetchIds { missing, count, remaining, round } => {
                if !remaining.is_empty() {
                    batch.queue.push_front(QueuedRequest::FetchIds(remaining, round));
                }
                if !missing.is_empty() && round != u8::MAX {
                    // If the answer may have been cut, the missing events are not withheld, and this attempt does not
                    // count.
                    let is_cut = missing.len() < count && !page_sizes.is_short(count - missing.len());
                    let round = if is_cut { round } else { round + 1 };
                    self.query_missing(link, request.batch, missing.into_iter().collect(), round);
                }
            }
            RequestKind::QueryingLocalIds(_) | RequestKind::Negentropy(..) | RequestKind::QueryingMissingIds(_) => {}
        }
    }

    /// Handles the rejection of a request: queues it again, in another form if necessary, or fails its batch.
    pub(in crate::sync) fn on_rejected(&mut self, link: &mut Link<'_, '_>, id: RequestId, rejection: RelayRejection) {
        let Some(request) = self.remove_request(link.ctx, id) else { return };
        let limit = link.limits.current().page_size;
        let Some(batch) = self.connection.batches.get_mut(&request.batch) else { return };
        let is_lasting = matches!(
            rejection,
            RelayRejection::UnsupportedFilter
                | RelayRejection::NotAllowed
                | RelayRejection::Unclassified
                | RelayRejection::ConnectionClosing
        );
        match request.kind {
            RequestKind::Negentropy(filter, _) => batch.requeue(match rejection {
                RelayRejection::RateLimited | RelayRejection::TooManySubscriptions | RelayRejection::AuthRequired => {
                    Some(QueuedRequest::Compare(filter))
                }
                _ => fallback_request(batch.page_filter(filter), limit, &mut self.is_incomplete),
            }),
            _ if is_lasting => batch.fail(BatchFailure::Rejected),
            RequestKind::Group(filters, _)
                if matches!(
                    rejection,
                    RelayRejection::TooManyFilters
                        | RelayRejection::ResultTooLarge
                        | RelayRejection::SubscriptionBytes(_)
                ) =>
            {
                batch.queue.extend(filters.into_iter().map(|filter| first_page(filter, limit)));
            }
            RequestKind::Group(filters, _) => batch.queue.push_front(QueuedRequest::Group(filters)),
            RequestKind::Page(pages)
                if matches!(rejection, RelayRejection::SubscriptionBytes(_)) && self.connection.requests.is_empty() =>
            {
                match pages.split_filter() {
                    Some(halves) => batch.queue.extend(halves.into_iter().map(|filter| first_page(filter, limit))),
                    None => batch.fail(BatchFailure::Rejected),
                }
            }
            RequestKind::Page(pages) => batch.queue.push_front(QueuedRequest::Page(pages)),
            RequestKind::FetchIds { count: 1, .. }
                if matches!(rejection, RelayRejection::SubscriptionBytes(_)) && self.connection.requests.is_empty() =>
            {
                batch.fail(BatchFailure::Rejected);
            }
            RequestKind::FetchIds { missing, remaining, round, .. } => {
                let ids = missing.into_iter().chain(remaining).collect();
                batch.queue.push_front(QueuedRequest::FetchIds(ids, round));
            }
            RequestKind::QueryingLocalIds(filter) => batch.requeue(Some(QueuedRequest::Compare(filter))),
            RequestKind::QueryingMissingIds(_) => {}
        }
    }

    /// Whether a request is an open negentropy exchange.
    pub(in crate::sync) fn is_negentropy_request(&self, id: RequestId) -> bool {
        self.connection.requests.get(&id).is_some_and(|request| matches!(request.kind, RequestKind::Negentropy(..)))
    }

    /// Queries the store for the ids among `ids` that are missing here.
    fn query_missing(&mut self, link: &mut Link<'_, '_>, batch: BatchId, ids: Vec<EventId>, round: u8) {
        let Some(pending) = self.connection.batches.get_mut(&batch) else { return };
        pending.active_requests += 1;
        let id = RequestId(link.ctx.new_id());
        let query = link.ctx.new_query(link.id, id);
        link.ctx.outputs.push_back(SyncOutput::QueryMissingIds(query, ids));
        let (kind, started_at) = (RequestKind::QueryingMissingIds(round), link.ctx.now.mono);
        let request =
            ActiveRequest { batch, sub: None, kind, started_at, deadline: None, answer: AnswerState::Pending };
        self.connection.requests.insert(id, request);
    }

    /// Handles the answer of the store to [`query_missing`](Self::query_missing): queues the missing ids to be fetched.
    /// After two rounds the batch fails.
    pub(in crate::sync) fn on_missing_ids(&mut self, link: &mut Link<'_, '_>, id: RequestId, mut ids: Vec<EventId>) {
        let Some(request) = self.remove_request(link.ctx, id) else { return };
        let RequestKind::QueryingMissingIds(round) = request.kind else { return };
        ids.retain(|id| !link.ctx.rejected.contains(id));
        let Some(batch) = self.connection.batches.get_mut(&request.batch) else { return };
        match round {
            _ if ids.is_empty() => {}
            0 | 1 => batch.queue.push_front(QueuedRequest::FetchIds(ids, round)),
            _ => batch.fail(BatchFailure::EventsWithheld),
        }
    }

    /// Handles the local ids from the store: opens a reconciliation with them, or falls back to pages.
    pub(in crate::sync) fn on_local_ids(&mut self, link: &mut Link<'_, '_>, id: RequestId, ids: LocalIds) {
        if let Some(compared) = self.compared_mut() {
            ids.items.iter().for_each(|item| compared.add_local(EventId(item.id)));
        }
        let Some(request) = self.connection.requests.get_mut(&id) else { return };
        let RequestKind::QueryingLocalIds(filter) = &request.kind else { return };
        let mut filter = filter.clone();
        let batch_id = request.batch;
        let mut items = ids.items;
        let complete_since =
            ids.complete_since.filter(|from| from.0 > 0 && filter.since.is_none_or(|since| *from > since));
        if complete_since.is_none() {
            items.extend(link.ctx.rejected.negentropy_items(link.url, &filter));
        }
        items.sort_unstable();
        items.dedup();
        let is_second = is_one_second(&filter);
        let relay_limits = link.limits.current();
        let frame = relay_limits.frame_bytes_beside(json_bytes(&filter)).filter(|_| is_second || !items.is_empty());
        // Live subscriptions may have used the free subscription in the meantime.
        let has_free_subscription = link.session.slot_count() + (relay_limits.reserved_subscriptions as usize)
            < relay_limits.max_subscriptions as usize;
        let can_open = has_free_subscription && !link.is_in_cooldown() && link.session.has_buffer_space();
        let Some(frame_bytes) = frame.filter(|_| can_open) else {
            self.remove_request(link.ctx, id);
            self.is_incomplete |= is_second && frame.is_none();
            let Some(batch) = self.connection.batches.get_mut(&batch_id) else { return };
            match frame {
                None if is_second => {}
                None => batch.unmatched_filters.push(batch.page_filter(filter)),
                Some(_) => batch.requeue(Some(QueuedRequest::Compare(filter))),
            }
            return;
        };
        if let Some(from) = complete_since
            && let Some(batch) = self.connection.batches.get_mut(&batch_id)
        {
            // Compare this window now, and everything before it as another one.
            let older = Filter { until: Some(Timestamp(from.0 - 1)), ..filter.clone() };
            batch.requeue(Some(QueuedRequest::Compare(older)));
            filter.since = Some(from);
        }
        let (session, first) = NegentropySession::start(&items, frame_bytes);
        request.deadline = Some(link.ctx.now.mono.plus_secs(limits::NEGENTROPY_ROUND_TIMEOUT_SECS));
        request.kind = RequestKind::Negentropy(filter.clone(), Box::new(session));
        let purpose = SubscriptionPurpose::Request(id);
        request.sub = Some(link.session.open(link.ctx, purpose, |sub| OutgoingMessage::NegOpen(sub, filter, first)));
    }

    /// Handles a negentropy message of the relay: continues or ends the reconciliation.
    pub(in crate::sync) fn on_neg_msg(&mut self, link: &mut Link<'_, '_>, sub: SubscriptionId, message: &[u8]) {
        let Some(id) = link.session.request(sub) else { return };
        let Some(request) = self.connection.requests.get_mut(&id) else { return };
        let batch_id = request.batch;
        let RequestKind::Negentropy(filter, session) = &mut request.kind else { return };
        request.deadline = Some(link.ctx.now.mono.plus_secs(limits::NEGENTROPY_ROUND_TIMEOUT_SECS));
        match session.handle_message(message) {
            NegentropyStep::Send(_) if link.is_in_cooldown() => {
                // No requests are sent during a cooldown. The reconciliation starts again later.
                let again = QueuedRequest::Compare(filter.clone());
                self.stop_reconciliation(link, id, sub, Some(again));
            }
            NegentropyStep::Send(message) => link.session.send(link.ctx, OutgoingMessage::NegMsg(sub, message)),
            NegentropyStep::Done => {
                let (need, shared) = (session.take_needed(), session.shared());
                let states_lacking = is_state_filter(filter).then(|| session.missing_remotely().to_vec());
                if let Some(compared) = self.compared_mut() {
                    shared.iter().for_each(|id| compared.add_remote(id));
                }
                if let Some(lacking) = states_lacking {
                    link.ctx.note(SyncNote::StatesCompared { relay: link.url.clone(), shared, lacking });
                }
                link.session.raise_concurrency();
                link.session.close(link.ctx, sub, true);
                // NEG-CLOSE has no answer to wait for.
                link.session.remove(sub);
                self.remove_request(link.ctx, id);
                if !need.is_empty() {
                    self.query_missing(link, batch_id, need, 0);
                }
            }
            NegentropyStep::TooDifferent | NegentropyStep::TooLarge | NegentropyStep::ProtocolError => {
                let filter = filter.clone();
                let batch = self.connection.batches.get(&batch_id);
                let filter = batch.map_or_else(|| filter.clone(), |batch| batch.page_filter(filter.clone()));
                let fallback = fallback_request(filter, link.limits.current().page_size, &mut self.is_incomplete);
                self.stop_reconciliation(link, id, sub, fallback);
            }
        }
    }

    /// Ends a reconciliation before it is done and queues `fallback` instead.
    fn stop_reconciliation(
        &mut self,
        link: &mut Link<'_, '_>,
        id: RequestId,
        sub: SubscriptionId,
        fallback: Option<QueuedRequest>,
    ) {
        let Some(request) = self.remove_request(link.ctx, id) else { return };
        link.session.close(link.ctx, sub, true);
        if let Some(batch) = self.connection.batches.get_mut(&request.batch) {
            batch.requeue(fallback);
        }
    }
}

/// Whether a filter is about a single second. Pages cannot fetch all of it, so it is compared or given up.
fn is_one_second(filter: &Filter) -> bool {
    filter.since.is_some() && filter.since == filter.until
}

/// Returns the request that replaces a failed comparison: pages, or nothing for a single second.
fn fallback_request(filter: Filter, limit: u32, is_incomplete: &mut bool) -> Option<QueuedRequest> {
    let is_second = is_one_second(&filter);
    *is_incomplete |= is_second;
    (!is_second).then(|| first_page(filter, limit))
}

/// Returns a request for the first page of a filter.
fn first_page(filter: Filter, limit: u32) -> QueuedRequest {
    QueuedRequest::Page(Box::new(PaginationState::new(filter, limit as usize, None)))
}

/// Returns a filter without the cursor and limit of its pages.
pub(super) fn without_cursor(filter: &Filter) -> Filter {
    Filter { until: None, limit: None, ..filter.clone() }
}

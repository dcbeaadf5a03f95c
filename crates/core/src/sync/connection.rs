//! Start and end of a connection, and its deadlines.

use std::collections::{BTreeMap, VecDeque};

use super::batch::{AnswerState, QueuedRequest, RequestKind};
use super::earlier;
use super::io::{ReconnectKind, SessionId, SyncNote, SyncSource};
use super::live::{LiveSetId, close_live_set};
use super::pagination::PageSizeTracker;
use super::relay::{
    AuthState, Authentication, Connection, ConnectionState, CoveragePass, HistoricRun, LateDelivery, LayerOneState,
    PageCursor, RelayState, RepoCoverage,
};
use super::relay_limits::RelayLimits;
use super::scheduler::{fallback_request, without_cursor};
use crate::limits;
use crate::nostr::nip11::Nip11Info;
use crate::time::{MonoTime, Timestamp};

impl RelayState {
    /// Starts a new connection: chooses quick, long or fresh reconnect, and resets coverage if needed.
    pub(super) fn on_connected(
        &mut self,
        ctx: &mut super::SyncContext<'_>,
        session: SessionId,
        nip11: Option<Nip11Info>,
    ) {
        self.update_time_totals(ctx.now);
        self.health.record_connected(ctx.now);
        let absence_secs = self
            .last_message
            .filter(|_| self.late_delivery != LateDelivery::JustDetected)
            .map(|message| ctx.now.mono.since(message.mono).as_secs());
        let kind = match absence_secs {
            Some(secs)
                if secs < limits::QUICK_RECONNECT_SECS
                    && (self.announcements_synced || self.coverage.values().any(|coverage| coverage.tags_complete)) =>
            {
                ReconnectKind::Quick
            }
            Some(_) => ReconnectKind::Long,
            None => ReconnectKind::Fresh,
        };
        if self.late_delivery == LateDelivery::JustDetected {
            self.late_delivery = LateDelivery::Known;
        }
        let relay_limits = RelayLimits::new(nip11.as_ref(), &self.learned);
        let is_grasp = nip11.as_ref().is_some_and(|nip11| nip11.is_grasp);
        let overlap_secs = self.overlap_secs_for(is_grasp);
        if kind == ReconnectKind::Quick {
            let last_message = self.last_message.map_or(ctx.now.wall, |message| message.wall);
            self.catch_up_since =
                Some(earlier(self.catch_up_since, Timestamp(last_message.0.saturating_sub(overlap_secs))));
        } else {
            self.catch_up_since = None;
            self.announcements_synced = false;
            self.restored_up_to = None;
            self.daily_cursor = None;
            for (key, coverage) in &mut self.coverage {
                *coverage = RepoCoverage::default();
                self.dirty.insert(*key);
            }
            self.page_cursors.clear();
        }
        self.clock_ahead_secs = None;
        self.failed_batches.clear();
        self.historic_sync_completed_at =
            if kind == ReconnectKind::Quick { self.historic_sync_completed_at } else { None };
        let next_full_sync = if kind == ReconnectKind::Quick {
            // `since` misses events that are older than the overlap, so a full pass has to follow. Where that is
            // is_cheap, it is moved to within one to three hours; the jitter spreads relays that reconnected together.
            let soon = ctx.now.mono.plus_secs(3_600 + ctx.rng.next_u64() % 7_200);
            let is_cheap = nip11.as_ref().and_then(|nip11| nip11.negentropy) == Some(true)
                && self.learned.no_negentropy_at.is_none();
            if is_cheap { self.next_full_sync.min(soon) } else { self.next_full_sync }
        } else {
            ctx.now.mono.plus_secs(ctx.daily_interval_secs())
        };
        self.next_full_sync = next_full_sync.max(ctx.now.mono.plus_secs(1));
        let pass = (kind == ReconnectKind::Quick).then(|| CoveragePass {
            source: SyncSource::CatchUp,
            since: self.catch_up_since,
            position: self.coverage.keys().next().map(|key| (*key, 0)),
            open_batches: 0,
        });
        self.is_unsaved = true;
        self.has_ready_repos = true;
        self.last_message = Some(ctx.now);
        self.connection = ConnectionState::Connected(Box::new(Connection {
            session,
            nip11,
            relay_limits,
            unsent_bytes: 0,
            bytes_this_step: 0,
            subscriptions: BTreeMap::new(),
            live: BTreeMap::new(),
            pending_live_sets: VecDeque::new(),
            wide: None,
            polled: VecDeque::new(),
            poll_at: None,
            batches: BTreeMap::new(),
            requests: BTreeMap::new(),
            historic_run: Some(HistoricRun { source: SyncSource::CatchUp, events: 0 }),
            pass,
            layer_one: LayerOneState::Todo,
            requested_identifiers: None,
            cannot_merge: false,
            consecutive_rejections: 0,
            concurrency: limits::INITIAL_CONCURRENT_REQUESTS,
            retry_after: ctx.now.mono,
            page_sizes: PageSizeTracker::default(),
            empty_answers: VecDeque::new(),
            auth: Authentication::default(),
            wide_deliveries: (0, 0),
            resubmitted: 0,
            is_closing: false,
            invalid_messages: 0,
        }));
        ctx.note(SyncNote::Connected(self.url.clone(), kind));
    }

    /// Ends a connection. Cursors and unfinished needs are kept, so that the next connection continues with them.
    pub(super) fn on_disconnected(&mut self, connection: Connection, now: MonoTime) {
        let is_grasp = connection.nip11.as_ref().is_some_and(|nip11| nip11.is_grasp);
        let failed_since = self.failed_batches.iter().filter_map(|failed| failed.since);
        self.catch_up_since = self
            .catch_up_since
            .into_iter()
            .chain(failed_since)
            .chain(connection.missed_since(self.overlap_secs_for(is_grasp)))
            .min();
        for request in connection.requests.into_values() {
            let started_at = connection.batches.get(&request.batch).map_or(Timestamp(0), |batch| batch.started_at);
            if let RequestKind::Page(pages) = &request.kind {
                self.save_page_cursor(pages, started_at, now);
            }
        }
        for batch in connection.batches.into_values() {
            for queued in &batch.queue {
                if let QueuedRequest::Page(pages) = queued {
                    self.save_page_cursor(pages, batch.started_at, now);
                }
            }
        }
        if let Some(pass) = connection.pass.filter(|pass| pass.source == SyncSource::Daily) {
            self.daily_cursor = pass.position;
            // It continues on the next connection.
            self.next_full_sync = now;
        }
        for (key, coverage) in &mut self.coverage {
            coverage.open_batches = 0;
            coverage.roots_requested = coverage.roots_complete;
            coverage.tags_requested = coverage.tags_complete;
            self.dirty.insert(*key);
        }
    }

    /// Keeps the position of interrupted pagination, so that it can be continued.
    pub(super) fn save_page_cursor(
        &mut self,
        pages: &super::pagination::PaginationState,
        started_at: Timestamp,
        now: MonoTime,
    ) {
        if let Some(until) = pages.cursor()
            && self.page_cursors.len() < limits::MAX_RESUMABLE_PAGES
        {
            self.page_cursors
                .insert(without_cursor(&pages.next_filter()), PageCursor { until, started_at, saved_at: now });
        }
    }

    /// Handles deadlines that have passed. Returns `true` if the connection must end.
    pub(super) fn handle_deadlines(&mut self, ctx: &mut super::SyncContext<'_>) -> bool {
        let now = ctx.now.mono;
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        if connection.is_closing {
            return false;
        }
        if let AuthState::Required(at) | AuthState::Sent(at) = connection.auth.state
            && at <= now
        {
            ctx.note(SyncNote::Parked(self.url.clone(), "authentication was not answered in time".to_owned()));
            self.health.park(ctx.now, ctx.rng.next_u64());
            return true;
        }
        let late: Vec<_> = connection
            .live
            .iter()
            .filter(|(_, set)| !set.awaiting_eose.is_empty() && set.deadline <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            if self.on_live_unconfirmed(ctx, key) {
                return true;
            }
        }
        let Some(connection) = self.connection_mut() else { return false };
        let late: Vec<_> = connection
            .requests
            .iter()
            .filter(|(_, request)| request.deadline.is_some_and(|at| at <= now))
            .map(|(id, request)| (*id, request.sub, request.answer))
            .collect();
        for (id, sub, answer) in late {
            match answer {
                AnswerState::Pending => self.abandon_request(ctx, id, sub),
                AnswerState::Ended(hint) => self.finish_request(ctx, id, sub, hint),
            }
        }
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        if self.next_full_sync <= now && connection.historic_run.is_none() {
            self.start_daily_reconciliation(ctx);
        }
        false
    }

    /// Handles a live set that was not confirmed in time, so that it is unknown whether the relay follows it. Returns
    /// `true` if the connection must end.
    fn on_live_unconfirmed(&mut self, ctx: &mut super::SyncContext<'_>, key: LiveSetId) -> bool {
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(set) = connection.live.get_mut(&key) else { return false };
        set.awaiting_eose.clear();
        set.timed_out = true;
        if connection.wide == Some(key) {
            // The next connection does not use it.
            self.learned.wide_disabled = true;
            return true;
        }
        if set.batches.is_empty() && !set.replaces.is_empty() {
            // Only a merge failed. The subscriptions that it would have replaced are still open.
            close_live_set(connection, ctx, key);
            connection.cannot_merge = true;
            return false;
        }
        for batch in set.batches.clone() {
            if let Some(batch) = connection.batches.get_mut(&batch) {
                batch.fail("live subscription not confirmed in time");
                batch.unconfirmed_live_set = Some(key);
            }
        }
        self.on_live_confirmed(ctx, key);
        false
    }

    /// Ends a request that made no progress. Negentropy falls back to pages; any other request fails its batch.
    pub(super) fn abandon_request(
        &mut self,
        ctx: &mut super::SyncContext<'_>,
        id: super::batch::RequestId,
        sub: Option<super::io::SubscriptionId>,
    ) {
        let Some(request) = self.remove_request(ctx, id) else { return };
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        let page_size = connection.relay_limits.page_size;
        connection.concurrency = (connection.concurrency / 2).max(1);
        if let Some(sub) = sub {
            let is_negentropy = matches!(request.kind, RequestKind::Negentropy(..));
            connection.close(ctx, sub, is_negentropy);
        }
        let Some(batch) = connection.batches.get_mut(&request.batch) else { return };
        match request.kind {
            RequestKind::Negentropy(filter, session) => {
                batch.requeue(fallback_request(batch.page_filter(filter), page_size, &mut self.history_incomplete));
                if session.rounds() == 0 {
                    self.disable_negentropy(ctx);
                }
            }
            RequestKind::Page(pages) => {
                batch.fail("request not answered in time");
                let started_at = batch.started_at;
                self.save_page_cursor(&pages, started_at, ctx.now.mono);
            }
            _ => batch.fail("request not answered in time"),
        }
    }
}

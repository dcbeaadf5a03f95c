//! Creates the next batch of a relay from the needs that are neither covered nor pending.

use std::collections::BTreeSet;

use super::batch::{BatchId, BatchOrigin, BatchPhase, PendingBatch, QueuedRequest};
use super::filters::{IdentifierSet, ScopeBuilder, SyncScope};
use super::io::SyncSource;
use super::live::{LiveSetId, PolledScope};
use super::relay::{ConnectionState, LayerOneState, LiveSetStatus, RelayState};
use super::{SyncContext, limits};
use crate::nostr::event::EventId;
use crate::time::Timestamp;

impl RelayState {
    /// Creates the next batch. Returns `false` if there is none, or the limit of concurrent batches is reached.
    pub(super) fn next_batch(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let Some(connection) = self.connection() else { return false };
        let active = connection.batches.values().filter(|batch| batch.has_requests()).count();
        if active >= limits::MAX_CONCURRENT_BATCHES_PER_RELAY || connection.layer_one == LayerOneState::Running {
            return false;
        }
        // The identifiers change, for example, when a served repository starts to list a relay of held repositories.
        if connection.layer_one == LayerOneState::Todo
            || connection.requested_identifiers.as_ref() != Some(&self.announcement_identifiers(ctx))
        {
            return self.start_layer_one(ctx);
        }
        self.fetch_by_id(ctx)
            || self.retry_failed(ctx)
            || self.continue_pass(ctx)
            || self.request_new(ctx)
            || self.poll_next(ctx)
    }

    /// Starts layer 1: announcements and states.
    pub(super) fn start_layer_one(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let since = self.catch_up_since.filter(|_| self.announcements_synced);
        let identifiers = self.announcement_identifiers(ctx);
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let is_repeat = connection.requested_identifiers.replace(identifiers.clone()).is_some();
        if connection.wide.is_some() && ((since.is_some() && self.states_compared) || is_repeat) {
            // The pass without tags includes announcements.
            connection.layer_one = LayerOneState::Done;
            return true;
        }
        connection.layer_one = LayerOneState::Running;
        let mut batch = PendingBatch::new(
            SyncScope::announcements(identifiers),
            BatchOrigin::Announcements,
            SyncSource::CatchUp,
            ctx.now.wall,
        );
        batch.since = since;
        self.add_batch(ctx, batch, true);
        true
    }

    /// Returns the identifiers whose announcements are requested from this relay.
    pub(super) fn announcement_identifiers(&self, ctx: &SyncContext<'_>) -> IdentifierSet {
        if self.is_bootstrap || !self.coverage.is_empty() {
            return IdentifierSet::All;
        }
        let identifiers =
            self.held_repos.iter().filter_map(|key| ctx.repo_index.repo(*key)).map(|repo| repo.id.identifier.clone());
        IdentifierSet::Only(identifiers.collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Adds a batch. If `live`, its historic requests start when its live set is confirmed.
    pub(super) fn add_batch(&mut self, ctx: &mut SyncContext<'_>, mut batch: PendingBatch, live: bool) {
        let id = BatchId(ctx.new_id());
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        batch.in_historic_run = connection.historic_run.is_some();
        let wide = connection.wide;
        let is_confirmed =
            wide.and_then(|key| connection.live.get(&key)).is_some_and(|set| set.awaiting_eose.is_empty());
        match (live, wide) {
            (true, Some(key)) if !is_confirmed => {
                batch.phase = BatchPhase::AwaitingLive(key);
                connection.batches.insert(id, batch);
                if let Some(set) = connection.live.get_mut(&key) {
                    set.batches.push(id);
                } else if let Some(pending) = connection.pending_live_sets.iter_mut().find(|pending| pending.key == key)
                {
                    pending.batches.push(id);
                } else {
                    self.start_historic_requests(ctx, id);
                }
            }
            (true, None) => {
                let scope = batch.scope.clone();
                // Layer 1 may request other identifiers than before; its new live set replaces the old one.
                let old = connection
                    .live
                    .iter()
                    .filter(|(_, set)| set.scope.announcements.is_some() && scope.announcements.is_some());
                let old = old.map(|(key, _)| *key).collect();
                connection.batches.insert(id, batch);
                let key = self.queue_live_set(ctx, scope, Some(id), old);
                if let Some(batch) = self.connection_mut().and_then(|connection| connection.batches.get_mut(&id)) {
                    batch.phase = BatchPhase::AwaitingLive(key);
                }
            }
            _ => {
                connection.batches.insert(id, batch);
                self.start_historic_requests(ctx, id);
            }
        }
    }

    /// Adds a batch with a new live set that replaces one which the relay did not confirm.
    fn add_batch_replacing(&mut self, ctx: &mut SyncContext<'_>, mut batch: PendingBatch, old: LiveSetId) {
        let id = BatchId(ctx.new_id());
        let key = self.queue_live_set(ctx, batch.scope.clone(), Some(id), vec![old]);
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        batch.in_historic_run = connection.historic_run.is_some();
        batch.phase = BatchPhase::AwaitingLive(key);
        connection.batches.insert(id, batch);
    }

    /// Fetches rejected events whose dependency has arrived.
    pub(super) fn fetch_by_id(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        if self.ids_to_fetch.is_empty() {
            return false;
        }
        let ids: Vec<EventId> = std::mem::take(&mut self.ids_to_fetch).into_iter().collect();
        let mut batch = PendingBatch::new(SyncScope::default(), BatchOrigin::Ids, SyncSource::CatchUp, ctx.now.wall);
        // A relay may have deleted an event that it offered, so a missing event is no failure.
        batch.queue.push_back(QueuedRequest::FetchIds(ids, u8::MAX));
        self.add_batch(ctx, batch, false);
        true
    }

    /// Retries a failed batch that is due.
    pub(super) fn retry_failed(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let Some(at) = self.failed_batches.iter().position(|failed| failed.retry_at <= ctx.now.mono) else {
            return false;
        };
        let failed = self.failed_batches.swap_remove(at);
        let mut batch =
            PendingBatch::new(failed.scope, BatchOrigin::Retry(failed.attempts), failed.source, ctx.now.wall);
        batch.since = failed.since;
        if batch.scope.announcements.is_none() && !batch.scope.wide {
            batch.scope.retain(|repo| self.coverage.contains_key(&repo));
            if batch.scope.is_empty() {
                return true;
            }
        }
        let has_timed_out = |key: &LiveSetId| {
            self.connection().and_then(|connection| connection.live.get(key)).is_some_and(|set| set.timed_out)
        };
        match failed.live_set {
            LiveSetStatus::Unconfirmed(key) if has_timed_out(&key) => self.add_batch_replacing(ctx, batch, key),
            LiveSetStatus::Closed => self.add_batch(ctx, batch, true),
            LiveSetStatus::Open | LiveSetStatus::Unconfirmed(_) => self.add_batch(ctx, batch, false),
        }
        true
    }

    /// Creates the next batch of the current pass.
    pub(super) fn continue_pass(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let capacity = self.batch_capacity(ctx);
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(pass) = &mut connection.pass else { return false };
        let Some((mut key, mut after)) = pass.position else { return false };
        let is_daily = pass.source == SyncSource::Daily;
        let (source, since) = (pass.source, pass.since);
        if connection.wide.is_some() && since.is_some() {
            pass.position = None;
            pass.open_batches += 1;
            let mut batch = PendingBatch::new(SyncScope::wide(), BatchOrigin::Pass, source, ctx.now.wall);
            batch.since = since;
            self.add_batch(ctx, batch, true);
            return true;
        }
        let mut builder = ScopeBuilder::new(ctx.repo_index, capacity);
        let mut position = None;
        for (repo, coverage) in self.coverage.range(key..) {
            if *repo != key {
                (key, after) = (*repo, 0);
            }
            if !coverage.tags_complete {
                continue;
            }
            if after == 0 && !builder.add_repo(key) {
                position = Some((key, 0));
                break;
            }
            let reached = builder.add_roots(key, after, coverage.roots_complete);
            if reached < coverage.roots_complete
                && ctx
                    .repo_index
                    .repo(key)
                    .is_some_and(|repo| !repo.roots_between(reached, coverage.roots_complete).is_empty())
            {
                // At least 1, because 0 would include the repository itself again.
                position = Some((key, reached.max(1)));
                break;
            }
        }
        pass.position = position;
        let scope = builder.scope;
        if scope.is_empty() {
            return true;
        }
        pass.open_batches += 1;
        let mut batch = PendingBatch::new(scope, BatchOrigin::Pass, source, ctx.now.wall);
        batch.since = since;
        self.add_batch(ctx, batch, !is_daily);
        true
    }

    /// Creates a batch of needs that were never requested from this relay.
    pub(super) fn request_new(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        if self.dirty.is_empty() || !self.has_ready_repos {
            return false;
        }
        let capacity = self.batch_capacity(ctx);
        let Some(connection) = self.connection() else { return false };
        // A catch-up does not wait for the batch window: when nothing else of it is left, the needs that its own events
        // caused belong to it.
        let skips_window = connection.historic_run.is_some()
            && connection.resubmitted == 0
            && connection.batches.values().all(|batch| !batch.in_historic_run || batch.is_complete());
        let mut builder = ScopeBuilder::new(ctx.repo_index, capacity);
        let mut requested = Vec::new();
        for key in &self.dirty {
            let (Some(repo), Some(coverage)) = (ctx.repo_index.repo(*key), self.coverage.get_mut(key)) else {
                requested.push(*key);
                continue;
            };
            let is_in_window = ctx.repo_index.changed_repos.contains(key);
            if !repo.roots_loaded || (is_in_window && !skips_window) {
                continue;
            }
            if !coverage.tags_requested {
                if !builder.add_repo(*key) {
                    break;
                }
                coverage.tags_requested = true;
                coverage.open_batches += 1;
            }
            let newest_root = repo.newest_root_seq();
            let before = coverage.roots_requested;
            let reached = if newest_root > before {
                builder.add_roots(*key, before, newest_root)
            } else {
                newest_root.max(before)
            };
            if reached > before {
                if builder.scope.repos.last() != Some(key) {
                    coverage.open_batches += 1;
                }
                coverage.roots_requested = reached;
            }
            if reached < newest_root {
                break;
            }
            requested.push(*key);
        }
        for key in requested {
            self.dirty.remove(&key);
        }
        let scope = builder.scope;
        if scope.is_empty() {
            self.has_ready_repos = false;
            return false;
        }
        let batch = PendingBatch::new(scope, BatchOrigin::New, SyncSource::CatchUp, ctx.now.wall);
        self.add_batch(ctx, batch, true);
        true
    }

    /// Requests the next polled scope. It gets a live set if a slot has become free.
    pub(super) fn poll_next(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let overlap_secs = self.overlap_secs();
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        if connection.poll_at.is_none_or(|at| at > ctx.now.mono) {
            return false;
        }
        let Some(mut polled) = connection.polled.pop_front() else {
            connection.poll_at = None;
            return false;
        };
        connection.poll_at = Some(ctx.now.mono.plus_secs(limits::SYNC_POLL_INTERVAL_SECS));
        polled.scope.retain(|repo| self.coverage.contains_key(&repo));
        if polled.scope.is_empty() {
            return true;
        }
        let open_live: usize = connection.live.values().map(|set| set.subscriptions.len()).sum();
        let has_free_slot = open_live < connection.relay_limits.max_live_subscriptions as usize;
        let mut batch = PendingBatch::new(polled.scope.clone(), BatchOrigin::Poll, SyncSource::CatchUp, ctx.now.wall);
        batch.since = Some(Timestamp(polled.requested_at.0.saturating_sub(overlap_secs)));
        if !has_free_slot {
            connection.polled.push_back(PolledScope { scope: polled.scope, requested_at: ctx.now.wall });
        }
        self.add_batch(ctx, batch, has_free_slot);
        true
    }
}

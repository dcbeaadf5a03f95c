//! Completion of batches, catch-ups and daily reconciliations.

use std::collections::BTreeSet;

use super::batch::{ActiveRequest, BatchOrigin, PendingBatch, QueuedRequest, RequestId, RequestKind};
use super::filters::{IdentifierSet, SyncScope};
use super::io::{SyncNote, SyncSource};
use super::relay::{ConnectionState, CoveragePass, FailedBatch, HistoricRun, LayerOneState, LiveSetStatus, RelayState};
use super::scheduler::group_unmatched_filters;
use super::targets::RepoKey;
use super::{SyncContext, limits};

impl RelayState {
    /// Completes one batch, or else the historic run. Returns `false` if there is nothing to complete.
    pub(super) fn complete_next(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let unmatched = connection.batches.iter().find(|(_, batch)| {
            let is_compared =
                batch.is_serial() || !batch.queue.iter().any(|queued| matches!(queued, QueuedRequest::Compare(_)));
            !batch.unmatched_filters.is_empty() && is_compared
        });
        if let Some(id) = unmatched.map(|(id, _)| *id)
            && !connection
                .requests
                .values()
                .any(|request| request.batch == id && matches!(request.kind, RequestKind::QueryingLocalIds(_)))
        {
            group_unmatched_filters(connection, id);
            return true;
        }
        let complete = connection.batches.iter().find(|(_, batch)| batch.is_complete()).map(|(id, _)| *id);
        match complete.and_then(|id| connection.batches.remove(&id)) {
            Some(batch) => {
                self.complete_batch(ctx, batch);
                true
            }
            None => self.complete_historic_run(ctx),
        }
    }

    /// Records the result of a batch: coverage if it succeeded, a retry if it failed.
    pub(super) fn complete_batch(&mut self, ctx: &mut SyncContext<'_>, batch: PendingBatch) {
        self.is_unsaved = true;
        self.has_ready_repos = true;
        if batch.gaps.0 > 0 {
            self.totals.gaps += batch.gaps.0;
            let (count, examples) = batch.gaps.clone();
            ctx.note(SyncNote::Gaps { relay: self.url.clone(), source: batch.source, count, examples });
        }
        if let (Some(lacking), None) = (&batch.lacking, batch.failure) {
            // If the batch has several repositories, it is not known to which of them the events belong.
            let (repo_index, count) = (ctx.repo_index, lacking.len() as u64);
            let repos = batch.scope.repos.iter().filter(|_| count == 0 || batch.scope.repos.len() == 1);
            for repo in repos.filter_map(|repo| repo_index.repo(*repo)) {
                ctx.note(SyncNote::RelayLacksEvents(self.url.clone(), repo.id.clone(), count));
            }
        }
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        if let Some(historic_run) = connection.historic_run.as_mut().filter(|_| batch.in_historic_run) {
            historic_run.events += batch.events;
        }
        if batch.origin == BatchOrigin::Pass
            && let Some(pass) = &mut connection.pass
        {
            pass.open_batches = pass.open_batches.saturating_sub(1);
        }
        if batch.scope.announcements.is_some() && batch.origin == BatchOrigin::Announcements {
            connection.layer_one = LayerOneState::Done;
        }
        if let Some(reason) = batch.failure {
            ctx.note(SyncNote::BatchFailed(self.url.clone(), reason));
            let attempts = if let BatchOrigin::Retry(attempts) = batch.origin { attempts + 1 } else { 1 };
            if batch.origin == BatchOrigin::Ids {
                return;
            }
            let wait_secs = limits::BATCH_RETRY_SECS
                .saturating_mul(1 << attempts.saturating_sub(1).min(8))
                .min(limits::MAX_BATCH_RETRY_SECS);
            let PendingBatch { scope, since, source, origin, unconfirmed_live_set, .. } = batch;
            if attempts > limits::MAX_BATCH_RETRIES {
                // The daily reconciliation will request it again.
                self.history_incomplete = true;
                return self.mark_complete(ctx, &scope);
            }
            // Its repositories are not complete until the retry succeeds.
            if matches!(origin, BatchOrigin::Pass | BatchOrigin::Poll) {
                for repo in scope_repos(&scope) {
                    self.coverage.entry(repo).and_modify(|coverage| coverage.open_batches += 1);
                }
            }
            let retry_at = ctx.now.mono.plus_secs(ctx.jitter(wait_secs));
            let live_set = unconfirmed_live_set.map_or(LiveSetStatus::Open, LiveSetStatus::Unconfirmed);
            self.failed_batches.push(FailedBatch { scope, since, source, retry_at, attempts, live_set });
            return;
        }
        if matches!(batch.origin, BatchOrigin::New | BatchOrigin::Retry(_)) {
            self.mark_complete(ctx, &batch.scope);
        }
        if matches!(batch.origin, BatchOrigin::Retry(_)) {
            self.clear_catch_up_since();
        }
        self.states_compared |= batch.scope.announcements.is_some();
        if batch.since.is_none()
            && let Some(IdentifierSet::All) = batch.scope.announcements
        {
            self.announcements_synced = true;
        }
    }

    /// Marks the repositories of a scope as complete, unless other batches of them are open.
    pub(super) fn mark_complete(&mut self, ctx: &SyncContext<'_>, scope: &SyncScope) {
        for repo in scope_repos(scope) {
            let Some(coverage) = self.coverage.get_mut(&repo) else { continue };
            coverage.open_batches = coverage.open_batches.saturating_sub(1);
            if coverage.open_batches == 0 {
                coverage.tags_complete = coverage.tags_requested;
                coverage.roots_complete = coverage.roots_requested;
            }
            if ctx
                .repo_index
                .repo(repo)
                .is_some_and(|repo| repo.newest_root_seq() > coverage.roots_requested || !coverage.tags_requested)
            {
                self.dirty.insert(repo);
            }
        }
    }

    /// Ends the historic run if nothing of it is left. Returns whether it ended.
    pub(super) fn complete_historic_run(&mut self, ctx: &mut SyncContext<'_>) -> bool {
        let is_waiting = |key: &RepoKey| ctx.repo_index.repo(*key).is_some_and(|repo| !repo.roots_loaded);
        let has_new_needs = self.dirty.iter().any(|key| !is_waiting(key));
        let ConnectionState::Connected(connection) = &mut self.connection else { return false };
        let Some(historic_run) = connection.historic_run else { return false };
        let has_batches = connection.batches.values().any(|batch| batch.in_historic_run) || connection.resubmitted > 0;
        let is_passing = connection.pass.as_ref().is_some_and(|pass| pass.position.is_some() || pass.open_batches > 0);
        if has_batches
            || is_passing
            || has_new_needs
            || connection.layer_one != LayerOneState::Done
            || !self.ids_to_fetch.is_empty()
            || !connection.pending_live_sets.is_empty()
        {
            return false;
        }
        connection.historic_run = None;
        connection.pass = None;
        self.is_unsaved = true;
        self.clear_catch_up_since();
        self.historic_sync_completed_at = Some(ctx.now.wall);
        self.daily_cursor = None;
        let is_complete = !self.has_failures();
        self.health.unpark();
        ctx.note(SyncNote::CaughtUp {
            relay: self.url.clone(),
            source: historic_run.source,
            events: historic_run.events,
            is_complete,
        });
        true
    }

    /// Forgets the start of the last absence if everything since then has been requested.
    pub(super) fn clear_catch_up_since(&mut self) {
        let is_running = self.connection().is_none_or(|connection| connection.historic_run.is_some());
        if !is_running && self.failed_batches.iter().all(|failed| failed.since.is_none()) {
            self.catch_up_since = None;
        }
    }

    /// Starts the daily reconciliation.
    pub(super) fn start_daily_reconciliation(&mut self, ctx: &mut SyncContext<'_>) {
        let first = self.daily_cursor.take().or_else(|| self.coverage.keys().next().map(|key| (*key, 0)));
        self.next_full_sync = ctx.now.mono.plus_secs(ctx.daily_interval_secs());
        self.history_incomplete = false;
        self.is_unsaved = true;
        let identifiers = self.announcement_identifiers(ctx);
        let ConnectionState::Connected(connection) = &mut self.connection else { return };
        connection.historic_run = Some(HistoricRun { source: SyncSource::Daily, events: 0 });
        connection.pass =
            Some(CoveragePass { source: SyncSource::Daily, since: None, position: first, open_batches: 1 });
        connection.wide_deliveries = (0, 0);
        (self.totals.compared, self.totals.shared) = (0, 0);
        // Announcements too. Live subscriptions are not touched.
        let batch = PendingBatch::new(
            SyncScope::announcements(identifiers),
            BatchOrigin::Pass,
            SyncSource::Daily,
            ctx.now.wall,
        );
        self.add_batch(ctx, batch, false);
    }

    /// Removes a request that has ended or failed.
    pub(super) fn remove_request(&mut self, ctx: &mut SyncContext<'_>, id: RequestId) -> Option<ActiveRequest> {
        let ConnectionState::Connected(connection) = &mut self.connection else { return None };
        let request = connection.requests.remove(&id)?;
        if request.is_negentropy() {
            *ctx.open_negentropy = ctx.open_negentropy.saturating_sub(1);
        }
        if let Some(batch) = connection.batches.get_mut(&request.batch) {
            batch.active_requests = batch.active_requests.saturating_sub(1);
        }
        Some(request)
    }
}

/// Returns the repositories of a scope, each once.
pub(super) fn scope_repos(scope: &SyncScope) -> BTreeSet<RepoKey> {
    scope.repos.iter().copied().chain(scope.roots.iter().map(|span| span.repo)).collect()
}

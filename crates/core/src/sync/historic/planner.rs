//! Creates the next batch of a relay from the needs that are neither covered nor pending.

use std::collections::BTreeSet;

use super::super::filters::ScopeBuilder;
use super::super::live::DuePoll;
use super::*;

impl HistoricSync {
    /// Creates the next batch. Returns `false` if there is none, or the limit of concurrent batches is reached.
    pub(in crate::sync) fn next_batch(&mut self, link: &mut Link<'_, '_>) -> bool {
        let active = self.connection.batches.values().filter(|batch| batch.has_requests()).count();
        if active >= limits::MAX_CONCURRENT_BATCHES_PER_RELAY {
            return false;
        }
        match &self.connection.layer_one {
            LayerOne::Running(_) => return false,
            // The identifiers change, for example, when a served repository starts to list a relay of held ones.
            LayerOne::Done(identifiers) if *identifiers == self.announcement_identifiers(link) => {}
            LayerOne::Todo | LayerOne::Done(_) => return self.start_layer_one(link),
        }
        self.fetch_by_id(link)
            || self.retry_failed(link)
            || self.continue_pass(link)
            || self.request_new(link)
            || self.request_descendants(link)
            || self.poll_next(link)
    }

    /// Starts layer 1: announcements and states.
    fn start_layer_one(&mut self, link: &mut Link<'_, '_>) -> bool {
        let since = self.catch_up_since.filter(|_| self.announcements_synced);
        let identifiers = self.announcement_identifiers(link);
        let is_repeat = matches!(self.connection.layer_one, LayerOne::Done(_));
        if link.live.is_wide() && ((since.is_some() && self.states_compared) || is_repeat) {
            // The pass without tags includes announcements.
            self.connection.layer_one = LayerOne::Done(identifiers);
            return true;
        }
        self.connection.layer_one = LayerOne::Running(identifiers.clone());
        let scope = SyncScope::announcements(identifiers);
        let mut batch = PendingBatch::new(scope, BatchOrigin::Announcements, SyncSource::CatchUp, link.ctx.now.wall);
        batch.since = since;
        batch.live_until = since.and(self.connection.live_until);
        self.add_batch(link, batch, true);
        true
    }

    /// Returns the identifiers whose announcements are requested from this relay.
    pub(super) fn announcement_identifiers(&self, link: &Link<'_, '_>) -> IdentifierSet {
        if link.is_bootstrap || !self.coverage.is_empty() {
            return IdentifierSet::All;
        }
        let repos = self.held_repos.iter().filter_map(|key| link.ctx.repo_index.repo(*key));
        let identifiers: BTreeSet<_> = repos.map(|repo| repo.id.identifier.clone()).collect();
        IdentifierSet::Only(identifiers.into_iter().collect())
    }

    /// Adds a batch. If `live`, its historic requests start when its live set is confirmed.
    pub(super) fn add_batch(&mut self, link: &mut Link<'_, '_>, mut batch: PendingBatch, live: bool) {
        let id = BatchId(link.ctx.new_id());
        batch.in_historic_run = !self.connection.phase.is_idle();
        let is_waiting = live && link.live.subscribe(link.ctx, &batch.scope, id);
        if is_waiting {
            batch.phase = BatchPhase::AwaitingLive;
        }
        self.connection.batches.insert(id, batch);
        if !is_waiting {
            self.start_historic_requests(link, id);
        }
    }

    /// Fetches rejected events whose dependency has arrived.
    fn fetch_by_id(&mut self, link: &mut Link<'_, '_>) -> bool {
        if self.ids_to_fetch.is_empty() {
            return false;
        }
        let ids: Vec<EventId> = std::mem::take(&mut self.ids_to_fetch).into_iter().collect();
        let mut batch =
            PendingBatch::new(SyncScope::default(), BatchOrigin::Ids, SyncSource::CatchUp, link.ctx.now.wall);
        // A relay may have deleted an event that it offered, so a missing event is no failure.
        batch.queue.push_back(QueuedRequest::FetchIds(ids, u8::MAX));
        self.add_batch(link, batch, false);
        true
    }

    /// Retries a failed batch that is due.
    fn retry_failed(&mut self, link: &mut Link<'_, '_>) -> bool {
        let now = link.ctx.now;
        let Some(at) = self.failed_batches.iter().position(|failed| failed.retry_at <= now.mono) else {
            return false;
        };
        let failed = self.failed_batches.swap_remove(at);
        let mut batch = PendingBatch::new(failed.scope, BatchOrigin::Retry(failed.attempts), failed.source, now.wall);
        batch.since = failed.since;
        batch.live_until = failed.live_until;
        batch.scope.retain(|repo| self.coverage.contains_key(&repo));
        if batch.scope.is_empty() {
            return true;
        }
        match failed.live_set {
            LiveSetStatus::Unconfirmed(old) if link.live.has_timed_out(old) => {
                let id = BatchId(link.ctx.new_id());
                link.live.resubscribe(link.ctx, batch.scope.clone(), id, old);
                batch.in_historic_run = !self.connection.phase.is_idle();
                batch.phase = BatchPhase::AwaitingLive;
                self.connection.batches.insert(id, batch);
            }
            LiveSetStatus::Closed => self.add_batch(link, batch, true),
            LiveSetStatus::Open | LiveSetStatus::Unconfirmed(_) => self.add_batch(link, batch, false),
        }
        true
    }

    /// Creates the next batch of the current pass.
    fn continue_pass(&mut self, link: &mut Link<'_, '_>) -> bool {
        let capacity = self.batch_capacity(link.ctx, link.limits);
        let Some((source, HistoricRun { pass: Some(pass), .. })) = self.connection.phase.run_mut() else {
            return false;
        };
        let Some(position) = pass.position else { return false };
        let since = pass.since;
        let (scope, is_live) = if link.live.is_wide() && since.is_some() {
            pass.position = None;
            (SyncScope::wide(), true)
        } else {
            let (scope, next) = if position.is_descendants {
                let builder = ScopeBuilder::new(link.ctx.repo_index, BatchCapacity::packed(link.limits.current()));
                pass_descendants(&self.coverage, builder, position)
            } else {
                pass_roots(&self.coverage, ScopeBuilder::new(link.ctx.repo_index, capacity), position)
            };
            pass.position = next;
            (scope, source != SyncSource::Daily)
        };
        if scope.is_empty() {
            return true;
        }
        pass.open_batches += 1;
        let mut batch = PendingBatch::new(scope, BatchOrigin::Pass, source, link.ctx.now.wall);
        batch.since = since;
        batch.live_until = match source {
            SyncSource::Daily => (!link.live.is_polled(&batch.scope)).then_some(link.ctx.now.wall),
            _ => self.connection.live_until,
        };
        self.add_batch(link, batch, is_live);
        true
    }

    /// Creates a batch of needs that were never requested from this relay.
    fn request_new(&mut self, link: &mut Link<'_, '_>) -> bool {
        if self.dirty.is_empty() || !self.has_ready_repos {
            return false;
        }
        let capacity = self.batch_capacity(link.ctx, link.limits);
        // A catch-up does not wait for the batch window: when nothing else of it is left, the needs that its own events
        // caused belong to it.
        let skips_window = !self.connection.phase.is_idle()
            && self.connection.resubmitted.is_empty()
            && self.connection.batches.values().all(|batch| !batch.in_historic_run || batch.is_complete());
        let repo_index = link.ctx.repo_index;
        let mut builder = ScopeBuilder::new(repo_index, capacity);
        let mut requested = Vec::new();
        for key in &self.dirty {
            let (Some(repo), Some(coverage)) = (repo_index.repo(*key), self.coverage.get_mut(key)) else {
                requested.push(*key);
                continue;
            };
            let is_in_window = repo_index.changed_repos.contains(key);
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
            if repo.descendants.newest_seq() > coverage.descendants_requested {
                self.dirty_descendants.insert(*key);
            }
        }
        for key in requested {
            self.dirty.remove(&key);
        }
        if builder.scope.is_empty() {
            self.has_ready_repos = false;
            return false;
        }
        let batch = PendingBatch::new(builder.scope, BatchOrigin::New, SyncSource::CatchUp, link.ctx.now.wall);
        self.add_batch(link, batch, true);
        true
    }

    /// Creates a batch of descendants that were never requested from this relay.
    fn request_descendants(&mut self, link: &mut Link<'_, '_>) -> bool {
        if self.dirty_descendants.is_empty() {
            return false;
        }
        let repo_index = link.ctx.repo_index;
        let mut builder = ScopeBuilder::new(repo_index, BatchCapacity::packed(link.limits.current()));
        while let Some(key) = self.dirty_descendants.first().copied() {
            let (Some(repo), Some(coverage)) = (repo_index.repo(key), self.coverage.get_mut(&key)) else {
                self.dirty_descendants.remove(&key);
                continue;
            };
            let (before, newest) = (coverage.descendants_requested, repo.descendants.newest_seq());
            let reached = builder.add_descendants(key, before, newest.max(before));
            if reached > before {
                coverage.open_batches += 1;
                coverage.descendants_requested = reached;
            }
            if reached < newest {
                break;
            }
            self.dirty_descendants.remove(&key);
        }
        if builder.scope.is_empty() {
            return false;
        }
        let batch = PendingBatch::new(builder.scope, BatchOrigin::New, SyncSource::CatchUp, link.ctx.now.wall);
        self.add_batch(link, batch, true);
        true
    }

    /// Requests the next polled scope. It gets a live set if a slot has become free.
    fn poll_next(&mut self, link: &mut Link<'_, '_>) -> bool {
        let is_followed = |repo| self.coverage.contains_key(&repo);
        let Some(DuePoll { scope, requested_at, has_free_slot, filter }) =
            link.live.next_poll(link.ctx, link.limits.current(), is_followed)
        else {
            return false;
        };
        if !scope.is_empty() {
            let mut batch = PendingBatch::new(scope, BatchOrigin::Poll, SyncSource::CatchUp, link.ctx.now.wall);
            let overlap_secs = self.overlap_secs(link.limits.is_grasp());
            batch.since = Some(Timestamp(requested_at.0.saturating_sub(overlap_secs)));
            batch.only_filter = filter;
            self.add_batch(link, batch, has_free_slot);
        }
        true
    }
}

/// Returns the next scope of repositories and root events of a pass, and the position after it.
fn pass_roots(
    coverage: &BTreeMap<RepoKey, RepoCoverage>,
    mut builder: ScopeBuilder<'_>,
    position: PassPosition,
) -> (SyncScope, Option<PassPosition>) {
    let at = |repo, after| Some(PassPosition { is_descendants: false, repo, after });
    for (repo, coverage) in coverage.range(position.repo..) {
        let after = if *repo == position.repo { position.after } else { 0 };
        if !coverage.tags_complete {
            continue;
        }
        if after == 0 && !builder.add_repo(*repo) {
            return (builder.scope, at(*repo, 0));
        }
        let reached = builder.add_roots(*repo, after, coverage.roots_complete);
        if reached < coverage.roots_complete {
            // At least 1, because 0 would include the repository itself again.
            return (builder.scope, at(*repo, reached.max(1)));
        }
    }
    let first = coverage.keys().next();
    (builder.scope, first.map(|repo| PassPosition { is_descendants: true, repo: *repo, after: 0 }))
}

/// Returns the next scope of descendants of a pass, and the position after it.
fn pass_descendants(
    coverage: &BTreeMap<RepoKey, RepoCoverage>,
    mut builder: ScopeBuilder<'_>,
    position: PassPosition,
) -> (SyncScope, Option<PassPosition>) {
    for (repo, coverage) in coverage.range(position.repo..) {
        let after = if *repo == position.repo { position.after } else { 0 };
        let reached = builder.add_descendants(*repo, after, coverage.descendants_complete);
        if reached < coverage.descendants_complete {
            return (builder.scope, Some(PassPosition { is_descendants: true, repo: *repo, after: reached }));
        }
    }
    (builder.scope, None)
}

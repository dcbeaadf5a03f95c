//! Historic sync from one relay: which stored events have been requested and received.
//!
//! Needs that are not covered become batches (`planner`), each with requests for pages, negentropy or ids (`requests`).
//! Coverage and failed batches outlive a connection; batches and requests end with it.

mod peer_coverage;
mod planner;
mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::peer_coverage::{ComparedEvents, PeerCoverage};
use super::batch::{
    ActiveRequest, BatchFailure, BatchId, BatchOrigin, BatchPhase, PendingBatch, QueuedRequest, RequestId, RequestKind,
};
use super::filters::{BatchCapacity, FilterSize, IdentifierSet, SyncScope};
use super::io::{
    ReconnectKind, Seq, ServedEvent, SubmitResult, SubscriptionId, SyncNote, SyncOutput, SyncSource, SyncSubmissionId,
};
use super::live::LiveSetId;
use super::pagination::{PageSizeTracker, PaginationState};
use super::relay::Link;
use super::relay_limits::RelayLimits;
use super::relay_record::CoverageRecord;
use super::targets::{IndexedRepo, RepoKey, RepoSyncIndex};
use super::view::{CatchUpProgress, RepoSyncStatus};
use super::{SyncContext, earlier, limits};
use crate::nostr::event::{Event, EventId};
use crate::nostr::filter::Filter;
use crate::time::{MonoTime, Now, Timestamp};

/// Progress of historic sync from one relay.
#[derive(Debug)]
pub(super) struct HistoricSync {
    /// Coverage of the served repositories that list the relay.
    coverage: BTreeMap<RepoKey, RepoCoverage>,
    /// Held repositories that list the relay.
    held_repos: BTreeSet<RepoKey>,
    /// Repositories with needs that have not been requested from the relay.
    dirty: BTreeSet<RepoKey>,
    /// Repositories with descendants that have not been requested from the relay. Their other needs have been.
    dirty_descendants: BTreeSet<RepoKey>,
    /// Whether some of the dirty repositories may be ready to be requested. Saves a search through all of them.
    has_ready_repos: bool,
    /// Size of the filters for all needs of the relay.
    total_size: FilterSize,
    /// Whether all announcements have been requested without `since` and received.
    announcements_synced: bool,
    /// Whether the states of the relay have been compared with the local ones, or requested, in this process.
    states_compared: bool,
    /// Sequence number up to which an earlier process was complete. Valid for repositories that arrived before it.
    restored_up_to: Option<Seq>,
    /// Start of the last absence, less the overlap: what the relay received since then has not been requested.
    catch_up_since: Option<Timestamp>,
    /// Seconds by which the local clock seems to be ahead, from the youngest live event.
    clock_ahead_secs: Option<u64>,
    /// Time of the next full reconciliation.
    next_full_sync: MonoTime,
    /// Position of the daily reconciliation when the connection ended.
    daily_cursor: Option<PassPosition>,
    /// When historic sync was last completed.
    completed_at: Option<Timestamp>,
    /// Batches that failed and are retried.
    failed_batches: Vec<FailedBatch>,
    /// Whether part of the history cannot be fetched: one second of a single value has more events than a page, or a
    /// batch failed too often.
    is_incomplete: bool,
    /// Cursors of pagination that was interrupted.
    page_cursors: BTreeMap<Filter, PageCursor>,
    /// Rejected events whose dependency has arrived and that are fetched by id.
    ids_to_fetch: BTreeSet<EventId>,
    late_delivery: LateDelivery,
    /// The comparison of the last full run, while the store looks up which of its events are served.
    compared: Option<(RequestId, ComparedEvents)>,
    connection: ConnectionSync,
}

/// The part that lives as long as one connection.
#[derive(Debug, Default)]
struct ConnectionSync {
    phase: HistoricPhase,
    layer_one: LayerOne,
    batches: BTreeMap<BatchId, PendingBatch>,
    requests: BTreeMap<RequestId, ActiveRequest>,
    page_sizes: PageSizeTracker,
    /// The most recent requests with an empty answer.
    empty_answers: VecDeque<EmptyAnswer>,
    /// Resubmitted events without a result. The historic run waits for them.
    resubmitted: BTreeSet<SyncSubmissionId>,
    /// After a short absence: what was created before this time should have been delivered by the live subscriptions
    /// of the connection before.
    live_until: Option<Timestamp>,
}

/// Phase of historic sync on a connection.
#[derive(Debug, Default)]
enum HistoricPhase {
    /// Everything that was to be requested has been requested, or there is no connection.
    #[default]
    Idle,
    /// After connecting. The pass exists if only newer events are requested of what was covered before.
    CatchUp(HistoricRun),
    Daily(HistoricRun),
}

/// A catch-up or daily reconciliation. It ends when all batches that its own events lead to have ended.
#[derive(Debug, Default)]
struct HistoricRun {
    /// Number of new events of its completed batches.
    events: u64,
    pass: Option<CoveragePass>,
    /// Local events that were compared with the relay. Only in a run over everything that began on this connection.
    compared: Option<ComparedEvents>,
    /// Whether one of its batches failed.
    has_failed: bool,
}

/// Iteration over all needs that are already covered, to request them again.
#[derive(Debug)]
struct CoveragePass {
    since: Option<Timestamp>,
    /// Up to where batches have been created; `None` at the end.
    position: Option<PassPosition>,
    /// Number of its open batches.
    open_batches: u32,
}

/// Position of a pass: first all repositories and their root events, then all descendants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PassPosition {
    is_descendants: bool,
    repo: RepoKey,
    /// Arrival of the root events or descendants of the repository up to which batches have been created.
    after: Seq,
}

/// State of layer 1 (announcements and states) on a connection, with the identifiers that were requested.
#[derive(Debug, Default)]
enum LayerOne {
    #[default]
    Todo,
    Running(IdentifierSet),
    Done(IdentifierSet),
}

/// How far one repository is synced from one relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct RepoCoverage {
    /// Whether events that reference the repository itself have been requested.
    tags_requested: bool,
    /// Whether those events have all been received and have a result.
    tags_complete: bool,
    /// Arrival up to which events that reference its root events have been requested.
    roots_requested: Seq,
    /// Arrival up to which those events have all been received and have a result.
    roots_complete: Seq,
    /// Arrival up to which events that reference its descendants have been requested.
    descendants_requested: Seq,
    /// Arrival up to which those events have all been received and have a result.
    descendants_complete: Seq,
    /// Number of open batches that include it.
    open_batches: u32,
}

/// Whether a relay sends stored events after its EOSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LateDelivery {
    #[default]
    No,
    /// Just detected: everything must be requested again on a new connection.
    JustDetected,
    /// Known: a request ends some time after its EOSE.
    Known,
}

/// A request whose answer was empty. Used to detect [`LateDelivery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct EmptyAnswer {
    sub: SubscriptionId,
    answered_at: Timestamp,
    /// Events that arrive for it before this time count as late.
    until: MonoTime,
    late_events: u32,
}

/// A batch that failed and is retried.
#[derive(Clone, Debug)]
struct FailedBatch {
    scope: SyncScope,
    since: Option<Timestamp>,
    source: SyncSource,
    retry_at: MonoTime,
    attempts: u32,
    live_set: LiveSetStatus,
    /// See [`PendingBatch::live_until`].
    live_until: Option<Timestamp>,
}

/// State of the live set of a failed batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LiveSetStatus {
    Open,
    Closed,
    /// It was not confirmed in time. If it is still not confirmed at the retry, it is opened again.
    Unconfirmed(LiveSetId),
}

/// Position of interrupted pagination of one filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageCursor {
    until: Timestamp,
    started_at: Timestamp,
    saved_at: MonoTime,
}

impl HistoricPhase {
    /// Returns the current run and its source.
    fn run(&self) -> Option<(SyncSource, &HistoricRun)> {
        match self {
            Self::Idle => None,
            Self::CatchUp(run) => Some((SyncSource::CatchUp, run)),
            Self::Daily(run) => Some((SyncSource::Daily, run)),
        }
    }

    fn run_mut(&mut self) -> Option<(SyncSource, &mut HistoricRun)> {
        match self {
            Self::Idle => None,
            Self::CatchUp(run) => Some((SyncSource::CatchUp, run)),
            Self::Daily(run) => Some((SyncSource::Daily, run)),
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }
}

impl RepoCoverage {
    /// Returns the coverage of everything that an earlier process has completed.
    fn restored(up_to: Seq) -> Self {
        Self {
            tags_requested: true,
            tags_complete: true,
            roots_requested: up_to,
            roots_complete: up_to,
            descendants_requested: up_to,
            descendants_complete: up_to,
            open_batches: 0,
        }
    }

    /// Returns how far a repository with this coverage is synced.
    fn status(&self, repo: &IndexedRepo) -> RepoSyncStatus {
        let is_complete = self.tags_complete
            && repo.newest_root_seq() <= self.roots_complete
            && repo.descendants.newest_seq() <= self.descendants_complete;
        if is_complete {
            RepoSyncStatus::Complete
        } else if self.open_batches > 0 {
            RepoSyncStatus::InProgress { batches: self.open_batches }
        } else {
            RepoSyncStatus::NotRequested
        }
    }

    /// Whether it has needs that have not been requested.
    fn has_new_needs(&self, repo: &IndexedRepo) -> bool {
        !self.tags_requested
            || repo.newest_root_seq() > self.roots_requested
            || repo.descendants.newest_seq() > self.descendants_requested
    }

    /// Forgets what has been requested but not received.
    fn reset_requests(&mut self) {
        self.open_batches = 0;
        self.tags_requested = self.tags_complete;
        self.roots_requested = self.roots_complete;
        self.descendants_requested = self.descendants_complete;
    }
}

impl HistoricSync {
    /// Creates the state of a relay with the coverage that an earlier process has stored, if it is still valid.
    pub(super) fn new(now: MonoTime, covered: Option<CoverageRecord>, next_full_sync_secs: u64) -> Self {
        Self {
            coverage: BTreeMap::new(),
            held_repos: BTreeSet::new(),
            dirty: BTreeSet::new(),
            dirty_descendants: BTreeSet::new(),
            has_ready_repos: true,
            total_size: FilterSize::default(),
            announcements_synced: covered.is_some_and(|covered| covered.announcements),
            states_compared: false,
            restored_up_to: covered.map(|covered| covered.up_to),
            catch_up_since: covered.and_then(|covered| covered.since),
            clock_ahead_secs: None,
            next_full_sync: now.plus_secs(next_full_sync_secs),
            daily_cursor: None,
            completed_at: None,
            failed_batches: Vec::new(),
            is_incomplete: covered.is_some_and(|covered| covered.failed),
            page_cursors: BTreeMap::new(),
            ids_to_fetch: BTreeSet::new(),
            late_delivery: LateDelivery::No,
            compared: None,
            connection: ConnectionSync::default(),
        }
    }

    /// Returns the coverage to store. `None` if the announcements are not complete. `missed_since` is the earliest time
    /// since which something must be requested again, such as a live event without a result.
    pub(super) fn to_record(
        &self,
        now: Now,
        epoch: u64,
        repo_index: &RepoSyncIndex,
        lost_at: Timestamp,
        missed_since: Option<Timestamp>,
    ) -> Option<CoverageRecord> {
        self.announcements_synced.then(|| CoverageRecord {
            epoch,
            announcements: true,
            up_to: self.covered_up_to(repo_index),
            lost_at,
            since: missed_since,
            next_full_at: now.wall.plus_secs(self.next_full_sync.since(now.mono).as_secs()),
            failed: self.has_failures(),
        })
    }

    /// Replaces the repositories that list the relay. Returns the served ones that no longer do.
    pub(super) fn set_repos(
        &mut self,
        served: &BTreeSet<RepoKey>,
        held: BTreeSet<RepoKey>,
        repo_index: &RepoSyncIndex,
    ) -> Vec<RepoKey> {
        let gone: Vec<RepoKey> = self.coverage.keys().filter(|key| !served.contains(key)).copied().collect();
        for key in &gone {
            self.coverage.remove(key);
            self.dirty.remove(key);
            self.dirty_descendants.remove(key);
        }
        for key in served {
            let Some(repo) = repo_index.repo(*key) else { continue };
            if self.coverage.contains_key(key) {
                continue;
            }
            // An earlier process may have covered all of it.
            let restored = self.restored_up_to.filter(|up_to| repo.seq <= *up_to);
            self.coverage.insert(*key, restored.map_or(RepoCoverage::default(), RepoCoverage::restored));
            self.dirty.insert(*key);
            self.has_ready_repos = true;
            self.total_size = self.total_size.plus(FilterSize::from_repo(repo));
        }
        self.held_repos = held;
        if !gone.is_empty() {
            let repos = self.coverage.keys().filter_map(|key| repo_index.repo(*key));
            self.total_size = repos.fold(FilterSize::default(), |size, repo| size.plus(FilterSize::from_repo(repo)));
        }
        gone
    }

    /// Adds new root events to the size of all needs.
    pub(super) fn add_roots(&mut self, count: usize) {
        self.total_size = self.total_size.with_roots(count);
    }

    /// Marks a repository as changed: it has needs that have not been requested.
    pub(super) fn mark_dirty(&mut self, key: RepoKey) {
        self.dirty.insert(key);
    }

    /// Records that the batch window has closed, so that changed repositories may be requested.
    pub(super) fn on_window_closed(&mut self) {
        self.has_ready_repos = true;
    }

    /// Records that all repositories of the last process have been restored. Repositories that are added later were
    /// not covered by it.
    pub(super) fn end_restore(&mut self) {
        self.restored_up_to = None;
    }

    /// Discards the claim that announcements and restored repositories are complete.
    pub(super) fn discard_coverage(&mut self) {
        self.announcements_synced = false;
        self.restored_up_to = None;
    }

    /// Schedules the next full reconciliation for now.
    pub(super) fn reconcile_now(&mut self, now: MonoTime) {
        self.next_full_sync = now;
    }

    /// Queues a rejected event to be fetched by id. Returns `false` if the queue is full.
    pub(super) fn fetch_later(&mut self, id: EventId) -> bool {
        let has_space = self.ids_to_fetch.len() < limits::MAX_QUEUED_IDS_PER_RELAY;
        if has_space {
            self.ids_to_fetch.insert(id);
        }
        has_space
    }

    /// Returns the number of served and held repositories that list the relay.
    pub(super) fn repo_counts(&self) -> (usize, usize) {
        (self.coverage.len(), self.held_repos.len())
    }

    /// Whether a served repository lists the relay.
    pub(super) fn is_followed(&self, key: RepoKey) -> bool {
        self.coverage.contains_key(&key)
    }

    /// Iterates over the held repositories that list the relay.
    pub(super) fn held_repos(&self) -> impl Iterator<Item = RepoKey> {
        self.held_repos.iter().copied()
    }

    /// Iterates over the served repositories that list the relay.
    pub(super) fn repos(&self) -> impl Iterator<Item = RepoKey> {
        self.coverage.keys().copied()
    }

    /// Returns how far a repository is synced from the relay, and `None` if it does not list the relay.
    pub(super) fn repo_status(&self, repo_index: &RepoSyncIndex, key: RepoKey) -> Option<RepoSyncStatus> {
        if self.held_repos.contains(&key) {
            return Some(RepoSyncStatus::Held);
        }
        Some(self.coverage.get(&key)?.status(repo_index.repo(key)?))
    }

    /// Returns the number of repositories that are completely synced.
    pub(super) fn complete_count(&self, repo_index: &RepoSyncIndex) -> usize {
        let is_complete = |key: &&RepoKey| self.repo_status(repo_index, **key).is_some_and(RepoSyncStatus::is_complete);
        self.coverage.keys().filter(is_complete).count()
    }

    /// Returns the arrival up to which all needs of the relay are covered.
    fn covered_up_to(&self, repo_index: &RepoSyncIndex) -> Seq {
        let mut up_to = repo_index.newest_seq;
        for (key, coverage) in &self.coverage {
            let Some(repo) = repo_index.repo(*key) else { continue };
            if !coverage.tags_complete {
                up_to = up_to.min(repo.seq.saturating_sub(1));
            }
            let next = repo.roots.partition_point(|root| root.seq <= coverage.roots_complete);
            if let Some(root) = repo.roots.get(next) {
                up_to = up_to.min(root.seq.saturating_sub(1));
            }
            if let Some(event) = repo.descendants.between(coverage.descendants_complete, Seq::MAX).first() {
                up_to = up_to.min(event.seq.saturating_sub(1));
            }
        }
        up_to
    }

    /// Returns by how many seconds `since` reaches back before the last message, because events are often older than
    /// their arrival. A GRASP server needs more, because it releases events when their git data arrives.
    pub(super) fn overlap_secs(&self, is_grasp: bool) -> u64 {
        let base = if is_grasp { limits::SYNC_GRASP_OVERLAP_SECS } else { limits::SYNC_OVERLAP_SECS };
        base + self.clock_ahead_secs.unwrap_or(0).min(limits::MAX_CLOCK_SKEW_SECS)
    }

    /// Records the age of a live event, from which the skew of the clocks is estimated.
    pub(super) fn record_live_event_age(&mut self, age_secs: u64) {
        self.clock_ahead_secs = Some(self.clock_ahead_secs.map_or(age_secs, |least| least.min(age_secs)));
    }

    /// Returns the earliest time since which something has not been requested: because of an absence, a failed batch,
    /// or a batch that is still requesting.
    pub(super) fn missed_since(&self) -> Option<Timestamp> {
        let failed = self.failed_batches.iter().filter_map(|failed| failed.since);
        let batches = self.connection.batches.values().filter_map(|batch| batch.since);
        self.catch_up_since.into_iter().chain(failed).chain(batches).min()
    }

    /// Whether part of the history could not be fetched.
    pub(super) fn has_failures(&self) -> bool {
        let is_retried = |batch: &PendingBatch| matches!(batch.origin, BatchOrigin::Retry(attempts) if attempts > 0);
        self.is_incomplete
            || self.failed_batches.iter().any(|failed| failed.attempts > 0)
            || self.connection.batches.values().any(is_retried)
    }

    /// Returns the number of failed batches that are retried.
    pub(super) fn failed_count(&self) -> usize {
        self.failed_batches.len()
    }

    /// Returns when historic sync was last completed.
    pub(super) fn completed_at(&self) -> Option<Timestamp> {
        self.completed_at
    }

    /// Returns the seconds until the next full reconciliation.
    pub(super) fn next_full_sync_secs(&self, now: MonoTime) -> u64 {
        self.next_full_sync.since(now).as_secs()
    }

    /// Returns what the current run is for, if there is one.
    pub(super) fn running(&self) -> Option<SyncSource> {
        self.connection.phase.run().map(|(source, _)| source)
    }

    /// Returns the number of requests and repositories that wait.
    pub(super) fn queued_count(&self) -> usize {
        self.connection.batches.values().map(|batch| batch.queue.len()).sum::<usize>()
            + self.dirty.len()
            + self.dirty_descendants.len()
    }

    /// Returns the progress of the current run. During a pass, a repository is done when the pass has left it behind
    /// and no batch of it is open.
    pub(super) fn progress(&self, covered: usize) -> Option<CatchUpProgress> {
        let (source, run) = self.connection.phase.run()?;
        let batches = self.connection.batches.values();
        let total = self.coverage.len();
        let done = match &run.pass {
            Some(pass) => {
                let at = pass.position.filter(|position| !position.is_descendants);
                let passed = at.map_or(total, |position| self.coverage.range(..position.repo).count());
                let open: BTreeSet<RepoKey> = batches.clone().flat_map(|batch| batch.scope.all_repos()).collect();
                passed.saturating_sub(open.len())
            }
            None => covered,
        };
        let events = run.events + batches.map(|batch| batch.events).sum::<u64>();
        Some(CatchUpProgress { source, done, total, events })
    }

    /// Returns how large a batch may be.
    pub(super) fn batch_capacity(&self, ctx: &SyncContext<'_>, relay_limits: &RelayLimits) -> BatchCapacity {
        BatchCapacity::new(relay_limits.current(), ctx.config.values_per_filter, self.total_size)
    }

    /// Returns the bytes of the filters for all needs.
    pub(super) fn filter_bytes(&self) -> usize {
        self.total_size.bytes
    }

    /// Returns the number of open negentropy exchanges.
    pub(super) fn negentropy_count(&self) -> usize {
        self.connection.requests.values().filter(|request| request.is_negentropy()).count()
    }

    /// Returns the times at which a request, retry or reconciliation is due.
    pub(super) fn wake_times(&self, now: MonoTime) -> impl Iterator<Item = MonoTime> {
        let requests = self.connection.requests.values().filter_map(|request| request.deadline);
        let retry = self.failed_batches.iter().map(|failed| failed.retry_at).min().filter(|at| *at > now);
        requests.chain(retry).chain(self.connection.phase.is_idle().then_some(self.next_full_sync))
    }

    /// Starts a connection: chooses quick, long or fresh reconnect, and resets coverage if needed.
    pub(super) fn on_connected(
        &mut self,
        ctx: &mut SyncContext<'_>,
        last_message: Option<Now>,
        relay_limits: &RelayLimits,
    ) -> ReconnectKind {
        let last_message = last_message.filter(|_| self.late_delivery != LateDelivery::JustDetected);
        if self.late_delivery == LateDelivery::JustDetected {
            self.late_delivery = LateDelivery::Known;
        }
        let has_coverage = self.announcements_synced || self.coverage.values().any(|coverage| coverage.tags_complete);
        let absence_secs = |message: Now| ctx.now.mono.since(message.mono).as_secs();
        let mut live_until = None;
        let kind = match last_message {
            Some(message) if absence_secs(message) < limits::QUICK_RECONNECT_SECS && has_coverage => {
                let absent_since = earlier(self.catch_up_since, message.wall);
                live_until = Some(gap_end(absent_since, relay_limits.is_grasp()));
                let since = message.wall.0.saturating_sub(self.overlap_secs(relay_limits.is_grasp()));
                self.catch_up_since = Some(earlier(self.catch_up_since, Timestamp(since)));
                ReconnectKind::Quick
            }
            _ => {
                self.catch_up_since = None;
                self.discard_coverage();
                self.daily_cursor = None;
                for (key, coverage) in &mut self.coverage {
                    *coverage = RepoCoverage::default();
                    self.dirty.insert(*key);
                }
                self.page_cursors.clear();
                self.completed_at = None;
                // After a short absence without coverage everything is requested because nothing was complete before.
                let is_long = last_message.is_some_and(|at| absence_secs(at) >= limits::QUICK_RECONNECT_SECS);
                if is_long { ReconnectKind::Long } else { ReconnectKind::Fresh }
            }
        };
        self.clock_ahead_secs = None;
        self.failed_batches.clear();
        let mut pass = None;
        let next_full_sync = if kind == ReconnectKind::Quick {
            pass = Some(CoveragePass { since: self.catch_up_since, position: self.first_position(), open_batches: 0 });
            // `since` misses events that are older than the overlap, so a full pass has to follow. Where that is cheap,
            // it is moved to within one to three hours; the jitter spreads relays that reconnected together.
            let soon = ctx.now.mono.plus_secs(3_600 + ctx.rng.next_u64() % 7_200);
            if relay_limits.has_reliable_negentropy() { self.next_full_sync.min(soon) } else { self.next_full_sync }
        } else {
            ctx.now.mono.plus_secs(ctx.daily_interval_secs())
        };
        self.next_full_sync = next_full_sync.max(ctx.now.mono.plus_secs(1));
        self.has_ready_repos = true;
        let compared = pass.is_none().then(ComparedEvents::default);
        let phase = HistoricPhase::CatchUp(HistoricRun { pass, compared, ..HistoricRun::default() });
        self.connection = ConnectionSync { phase, live_until, ..Default::default() };
        kind
    }

    /// Ends a connection. Cursors and unfinished needs are kept, so that the next connection continues with them.
    /// `missed_since` is the time since which polled scopes have not been requested.
    pub(super) fn on_disconnected(&mut self, now: MonoTime, missed_since: Option<Timestamp>) {
        self.catch_up_since = self.missed_since().into_iter().chain(missed_since).min();
        let connection = std::mem::take(&mut self.connection);
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
        if let HistoricPhase::Daily(HistoricRun { pass: Some(pass), .. }) = connection.phase {
            self.daily_cursor = pass.position;
            // It continues on the next connection.
            self.next_full_sync = now;
        }
        for (key, coverage) in &mut self.coverage {
            coverage.reset_requests();
            self.dirty.insert(*key);
        }
    }

    /// Returns where a pass begins.
    fn first_position(&self) -> Option<PassPosition> {
        let repo = *self.coverage.keys().next()?;
        Some(PassPosition { is_descendants: false, repo, after: 0 })
    }

    /// Keeps the position of interrupted pagination, so that it can be continued.
    fn save_page_cursor(&mut self, pages: &PaginationState, started_at: Timestamp, now: MonoTime) {
        if let Some(until) = pages.cursor()
            && self.page_cursors.len() < limits::MAX_RESUMABLE_PAGES
        {
            let filter = requests::without_cursor(&pages.next_filter());
            self.page_cursors.insert(filter, PageCursor { until, started_at, saved_at: now });
        }
    }

    /// Starts the daily reconciliation if it is due.
    pub(super) fn start_daily_if_due(&mut self, link: &mut Link<'_, '_>) {
        if self.next_full_sync > link.ctx.now.mono || !self.connection.phase.is_idle() {
            return;
        }
        let compared = self.daily_cursor.is_none().then(ComparedEvents::default);
        let position = self.daily_cursor.take().or_else(|| self.first_position());
        self.next_full_sync = link.ctx.now.mono.plus_secs(link.ctx.daily_interval_secs());
        self.is_incomplete = false;
        *link.is_unsaved = true;
        let pass = Some(CoveragePass { since: None, position, open_batches: 1 });
        self.connection.phase = HistoricPhase::Daily(HistoricRun { pass, compared, ..HistoricRun::default() });
        link.live.reset_wide_deliveries();
        // Announcements too. Live subscriptions are not touched.
        let scope = SyncScope::announcements(self.announcement_identifiers(link));
        let mut batch = PendingBatch::new(scope, BatchOrigin::Pass, SyncSource::Daily, link.ctx.now.wall);
        batch.live_until = (!link.live.is_polled(&batch.scope)).then_some(link.ctx.now.wall);
        self.add_batch(link, batch, false);
    }

    /// Completes one batch, or else the historic run. Returns `false` if there is nothing to complete.
    pub(super) fn complete_next(&mut self, link: &mut Link<'_, '_>) -> bool {
        let connection = &mut self.connection;
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
            self.group_unmatched_filters(link.limits, id);
            return true;
        }
        let complete = connection.batches.iter().find(|(_, batch)| batch.is_complete()).map(|(id, _)| *id);
        match complete.and_then(|id| connection.batches.remove(&id)) {
            Some(batch) => {
                self.complete_batch(link, batch);
                true
            }
            None => self.complete_run(link),
        }
    }

    /// Records the result of a batch: coverage if it succeeded, a retry if it failed.
    fn complete_batch(&mut self, link: &mut Link<'_, '_>, batch: PendingBatch) {
        *link.is_unsaved = true;
        self.has_ready_repos = true;
        if batch.gaps.0 > 0 {
            link.totals.gaps += batch.gaps.0;
            let (count, examples) = batch.gaps.clone();
            link.ctx.note(SyncNote::Gaps { relay: link.url.clone(), source: batch.source, count, examples });
        }
        if let Some((_, run)) = self.connection.phase.run_mut() {
            if batch.in_historic_run {
                run.events += batch.events;
                run.has_failed |= batch.failure.is_some();
            }
            if batch.origin == BatchOrigin::Pass
                && let Some(pass) = &mut run.pass
            {
                pass.open_batches = pass.open_batches.saturating_sub(1);
            }
        }
        if batch.origin == BatchOrigin::Announcements
            && let LayerOne::Running(identifiers) = &self.connection.layer_one
        {
            self.connection.layer_one = LayerOne::Done(identifiers.clone());
        }
        match batch.failure {
            Some(failure) => self.fail_batch(link, batch, failure),
            None => self.confirm_batch(link.ctx, &batch),
        }
    }

    /// Records the success of a batch.
    fn confirm_batch(&mut self, ctx: &SyncContext<'_>, batch: &PendingBatch) {
        if matches!(batch.origin, BatchOrigin::New | BatchOrigin::Retry(_)) {
            self.mark_complete(ctx, &batch.scope);
        }
        if matches!(batch.origin, BatchOrigin::Retry(_)) {
            self.clear_catch_up_since();
        }
        self.states_compared |= batch.scope.announcements.is_some();
        self.announcements_synced |=
            batch.since.is_none() && matches!(batch.scope.announcements, Some(IdentifierSet::All));
    }

    /// Schedules the retry of a failed batch. After too many of them its history counts as incomplete.
    fn fail_batch(&mut self, link: &mut Link<'_, '_>, batch: PendingBatch, failure: BatchFailure) {
        link.ctx.note(SyncNote::BatchFailed(link.url.clone(), failure.label()));
        let attempts = match batch.origin {
            BatchOrigin::Ids => return,
            BatchOrigin::Retry(attempts) => attempts + 1,
            _ => 1,
        };
        let PendingBatch { scope, since, source, origin, unconfirmed_live_set, is_live_refused, live_until, .. } =
            batch;
        if attempts > limits::MAX_BATCH_RETRIES && !is_live_refused {
            // The daily reconciliation will request it again.
            self.is_incomplete = true;
            return self.mark_complete(link.ctx, &scope);
        }
        // Its repositories are not complete until the retry succeeds.
        if matches!(origin, BatchOrigin::Pass | BatchOrigin::Poll) {
            self.count_open_batch(&scope);
        }
        let retry_at = link.ctx.now.mono.plus_secs(link.ctx.jitter(failure.retry_secs(attempts)));
        // Without a live subscription, events with an old date may have arrived in the meantime.
        let since = since.filter(|_| unconfirmed_live_set.is_none());
        let live_set = unconfirmed_live_set.map_or(LiveSetStatus::Open, LiveSetStatus::Unconfirmed);
        let live_set = if is_live_refused { LiveSetStatus::Closed } else { live_set };
        let attempts = attempts.min(limits::MAX_BATCH_RETRIES);
        self.failed_batches.push(FailedBatch { scope, since, source, retry_at, attempts, live_set, live_until });
    }

    /// Schedules a scope whose live subscription has ended to be followed again. `was_live` if the relay had confirmed
    /// that subscription.
    pub(super) fn reopen_live(
        &mut self,
        ctx: &SyncContext<'_>,
        scope: SyncScope,
        relay_limits: &RelayLimits,
        wait_secs: u64,
        was_live: bool,
    ) {
        self.count_open_batch(&scope);
        let overlap_secs = self.overlap_secs(relay_limits.is_grasp());
        let live_until = was_live.then(|| gap_end(ctx.now.wall, relay_limits.is_grasp()));
        self.failed_batches.push(FailedBatch {
            scope,
            since: Some(Timestamp(ctx.now.wall.0.saturating_sub(overlap_secs))),
            source: SyncSource::CatchUp,
            retry_at: ctx.now.mono.plus_secs(wait_secs),
            attempts: 0,
            live_set: LiveSetStatus::Closed,
            live_until,
        });
    }

    /// Counts an open batch for the repositories of a scope.
    fn count_open_batch(&mut self, scope: &SyncScope) {
        for repo in scope.all_repos() {
            self.coverage.entry(repo).and_modify(|coverage| coverage.open_batches += 1);
        }
    }

    /// Marks the repositories of a scope as complete, unless other batches of them are open.
    fn mark_complete(&mut self, ctx: &SyncContext<'_>, scope: &SyncScope) {
        for repo in scope.all_repos() {
            let Some(coverage) = self.coverage.get_mut(&repo) else { continue };
            coverage.open_batches = coverage.open_batches.saturating_sub(1);
            if coverage.open_batches == 0 {
                coverage.tags_complete = coverage.tags_requested;
                coverage.roots_complete = coverage.roots_requested;
                coverage.descendants_complete = coverage.descendants_requested;
            }
            if ctx.repo_index.repo(repo).is_some_and(|repo| coverage.has_new_needs(repo)) {
                self.dirty.insert(repo);
            }
        }
    }

    /// Ends the current run if nothing of it is left. Returns whether it ended.
    fn complete_run(&mut self, link: &mut Link<'_, '_>) -> bool {
        let Some((source, run)) = self.connection.phase.run() else { return false };
        let repo_index = link.ctx.repo_index;
        let is_loading = |key: &RepoKey| repo_index.repo(*key).is_some_and(|repo| !repo.roots_loaded);
        let has_batches = self.connection.batches.values().any(|batch| batch.in_historic_run)
            || !self.connection.resubmitted.is_empty();
        let is_passing = run.pass.as_ref().is_some_and(|pass| pass.position.is_some() || pass.open_batches > 0);
        if has_batches
            || is_passing
            || self.dirty.iter().any(|key| !is_loading(key))
            || !self.dirty_descendants.is_empty()
            || !matches!(self.connection.layer_one, LayerOne::Done(_))
            || !self.ids_to_fetch.is_empty()
            || link.live.has_pending()
        {
            return false;
        }
        let events = run.events;
        let phase = std::mem::take(&mut self.connection.phase);
        self.query_compared(link, phase);
        *link.is_unsaved = true;
        self.clear_catch_up_since();
        self.completed_at = Some(link.ctx.now.wall);
        self.daily_cursor = None;
        link.health.unpark();
        let is_complete = !self.has_failures();
        link.ctx.note(SyncNote::CaughtUp { relay: link.url.clone(), source, events, is_complete });
        true
    }

    /// After a run over everything without failures: looks up which of the compared events are served.
    fn query_compared(&mut self, link: &mut Link<'_, '_>, phase: HistoricPhase) {
        let (HistoricPhase::CatchUp(run) | HistoricPhase::Daily(run)) = phase else { return };
        let Some(compared) = run.compared.filter(|_| !run.has_failed && link.can_use_negentropy()) else { return };
        let request = RequestId(link.ctx.new_id());
        let query = link.ctx.new_query(link.id, request);
        link.ctx.outputs.push_back(SyncOutput::QueryServedEvents(query, compared.ids()));
        self.compared = Some((request, compared));
    }

    /// Returns the result of the comparison that a query belongs to.
    pub(super) fn finish_coverage(
        &mut self,
        query: RequestId,
        served: &[ServedEvent],
        repo_index: &RepoSyncIndex,
    ) -> Option<PeerCoverage> {
        let (_, compared) = self.compared.take_if(|(request, _)| *request == query)?;
        Some(compared.result(served, repo_index, |key| self.coverage.contains_key(&key)))
    }

    /// Returns the comparison of the current run, if it is one over everything.
    fn compared_mut(&mut self) -> Option<&mut ComparedEvents> {
        self.connection.phase.run_mut().and_then(|(_, run)| run.compared.as_mut())
    }

    /// Forgets the start of the last absence if everything since then has been requested.
    fn clear_catch_up_since(&mut self) {
        if self.connection.phase.is_idle() && self.failed_batches.iter().all(|failed| failed.since.is_none()) {
            self.catch_up_since = None;
        }
    }

    /// Starts the historic requests of batches after their live set was confirmed or found no free slot.
    pub(super) fn start_batches(&mut self, link: &mut Link<'_, '_>, batches: Vec<BatchId>) {
        for batch in batches {
            self.start_historic_requests(link, batch);
        }
    }

    /// Fails batches and starts their requests nevertheless. With a live set, it was not confirmed in time; without one,
    /// it was rejected.
    pub(super) fn start_batches_without_live(
        &mut self,
        link: &mut Link<'_, '_>,
        batches: Vec<BatchId>,
        unconfirmed: Option<LiveSetId>,
    ) {
        for id in &batches {
            let Some(batch) = self.connection.batches.get_mut(id) else { continue };
            match unconfirmed {
                Some(_) => {
                    batch.fail(BatchFailure::LiveUnconfirmed);
                    batch.unconfirmed_live_set = unconfirmed;
                }
                None => batch.fail(BatchFailure::LiveRejected),
            }
        }
        self.start_batches(link, batches);
    }

    /// Records that the relay refused the live set of these batches. Their retries open it again.
    pub(super) fn mark_live_refused(&mut self, batches: &[BatchId]) {
        for id in batches {
            self.connection.batches.entry(*id).and_modify(|batch| batch.is_live_refused = true);
        }
    }

    /// Returns the part of the needs that a request is for.
    pub(super) fn request_scope(&self, id: RequestId) -> Option<SyncScope> {
        let request = self.connection.requests.get(&id)?;
        self.connection.batches.get(&request.batch).map(|batch| batch.scope.clone())
    }

    /// Returns how events of a batch are received.
    pub(super) fn source(&self, batch: BatchId) -> Option<SyncSource> {
        self.connection.batches.get(&batch).map(|batch| batch.source)
    }

    /// Whether an event matches the scope of a request, or is one that it requests by id.
    pub(super) fn is_requested(&self, request: RequestId, repo_index: &RepoSyncIndex, event: &Event) -> bool {
        let Some(request) = self.connection.requests.get(&request) else { return false };
        let is_requested_by_id = matches!(
            &request.kind,
            RequestKind::FetchIds { missing, .. } if missing.contains(&event.id)
        );
        let batch = self.connection.batches.get(&request.batch);
        is_requested_by_id || batch.is_some_and(|batch| batch.scope.matches(repo_index, event))
    }

    /// Whether an event matches the scope of a batch that has not ended.
    pub(super) fn matches_batch(&self, repo_index: &RepoSyncIndex, event: &Event) -> bool {
        self.connection.batches.values().any(|batch| batch.scope.matches(repo_index, event))
    }

    /// Counts a submitted event for the batch.
    pub(super) fn count_pending(&mut self, batch: BatchId) {
        if let Some(batch) = self.connection.batches.get_mut(&batch) {
            batch.pending_events += 1;
        }
    }

    /// Records that an event was submitted again after a rejection.
    pub(super) fn add_resubmitted(&mut self, id: SyncSubmissionId) {
        self.connection.resubmitted.insert(id);
    }

    /// Records that an event which was submitted again has its result.
    pub(super) fn finish_resubmitted(&mut self, id: SyncSubmissionId) {
        self.has_ready_repos |= self.connection.resubmitted.remove(&id);
    }

    /// Records that an event which was submitted again is submitted once more.
    pub(super) fn replace_resubmitted(&mut self, id: SyncSubmissionId, new_id: SyncSubmissionId) {
        if self.connection.resubmitted.remove(&id) {
            self.connection.resubmitted.insert(new_id);
        }
    }

    /// Records the result of an event of a batch. `is_new` if it was not known and no other batch has counted it. Returns
    /// whether the batch exists.
    pub(super) fn record_result(&mut self, batch: BatchId, event: &Event, result: &SubmitResult, is_new: bool) -> bool {
        if *result == SubmitResult::Stored
            && let Some(compared) = self.compared_mut()
        {
            compared.add_local(event.id);
            compared.add_remote(&event.id);
        }
        let Some(batch) = self.connection.batches.get_mut(&batch) else { return false };
        batch.pending_events = batch.pending_events.saturating_sub(1);
        if is_new {
            batch.events += 1;
            // A gap: it was created while everything of this relay was complete and its scope was live.
            let from = self.completed_at.map(|at| at.plus_secs(limits::SYNC_OVERLAP_SECS));
            if from.is_some_and(|from| event.created_at > from)
                && batch.live_until.is_some_and(|until| event.created_at < until)
            {
                batch.gaps.0 += 1;
                if batch.gaps.1.len() < 3 {
                    batch.gaps.1.push(event.id);
                }
            }
        }
        if let SubmitResult::Rejected(rejection) = result
            && rejection.is_temporary()
        {
            batch.fail(BatchFailure::NoSpace);
        }
        true
    }
}

/// Returns the time before which events should have arrived on a live subscription that ended at `ended_at`. Events are
/// older than their arrival, most of all on a GRASP server, which holds them until their git data arrives.
fn gap_end(ended_at: Timestamp, is_grasp: bool) -> Timestamp {
    let delay_secs = if is_grasp { limits::PURGATORY_EXPIRY_SECS } else { limits::SYNC_ARRIVAL_DELAY_SECS };
    Timestamp(ended_at.0.saturating_sub(delay_secs))
}

#[cfg(test)]
mod tests {
    use super::super::relay_record::LearnedLimits;
    use super::super::tests::{at, with_relay};
    use super::*;

    fn covered() -> CoverageRecord {
        CoverageRecord {
            epoch: 1,
            announcements: true,
            up_to: 7,
            lost_at: at(0).wall,
            since: None,
            next_full_at: at(1_000).wall,
            failed: false,
        }
    }

    #[test]
    fn only_a_short_absence_keeps_the_coverage() {
        with_relay(|_, ctx| {
            let relay_limits = RelayLimits::new(LearnedLimits::default());
            for (absence_secs, covered, kind) in [
                (Some(10), Some(covered()), ReconnectKind::Quick),
                (Some(10), None, ReconnectKind::Fresh),
                (Some(limits::QUICK_RECONNECT_SECS), Some(covered()), ReconnectKind::Long),
                (None, Some(covered()), ReconnectKind::Fresh),
            ] {
                ctx.now = at(100_000);
                let mut historic = HistoricSync::new(ctx.now.mono, covered, 1_000);
                let last_message = absence_secs.map(|secs| at(100_000 - secs));
                assert_eq!(historic.on_connected(ctx, last_message, &relay_limits), kind);
                assert_eq!(historic.announcements_synced, kind == ReconnectKind::Quick);
                assert_eq!(historic.missed_since().is_some(), kind == ReconnectKind::Quick);
                assert_eq!(historic.running(), Some(SyncSource::CatchUp));
            }
        });
    }

    #[test]
    fn relay_with_late_events_is_requested_again_from_the_start() {
        with_relay(|_, ctx| {
            let mut historic = HistoricSync::new(ctx.now.mono, Some(covered()), 1_000);
            let (sub, answered_at) = (SubscriptionId(1), at(10).wall);
            let answer = EmptyAnswer { sub, answered_at, until: at(20).mono, late_events: 0 };
            historic.connection.empty_answers.push_front(answer);
            assert!(!historic.record_late_event(sub, at(11).wall, at(12).mono), "a new event");
            let late: Vec<bool> = (0..limits::MIN_LATE_EVENTS)
                .map(|_| historic.record_late_event(sub, at(5).wall, at(12).mono))
                .collect();
            assert_eq!(late.iter().filter(|is_late| **is_late).count(), 1);
            historic.on_disconnected(at(13).mono, None);
            ctx.now = at(14);
            let kind = historic.on_connected(ctx, Some(at(13)), &RelayLimits::new(LearnedLimits::default()));
            assert_eq!((kind, historic.late_delivery), (ReconnectKind::Fresh, LateDelivery::Known));
        });
    }

    #[test]
    fn coverage_is_stored_only_when_announcements_are_complete() {
        let index = RepoSyncIndex::default();
        let mut historic = HistoricSync::new(at(0).mono, Some(covered()), 1_000);
        let record = historic.to_record(at(100), 1, &index, at(90).wall, None).expect("complete");
        assert_eq!((record.lost_at, record.next_full_at), (at(90).wall, at(1_000).wall));
        historic.discard_coverage();
        assert_eq!(historic.to_record(at(100), 1, &index, at(90).wall, None), None);
    }

    #[test]
    fn queue_of_ids_is_bounded() {
        let mut historic = HistoricSync::new(at(0).mono, None, 1_000);
        let ids = (0..limits::MAX_QUEUED_IDS_PER_RELAY as u64 + 1).map(|number| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            EventId(id)
        });
        let accepted = ids.filter(|id| historic.fetch_later(*id)).count();
        assert_eq!(accepted, limits::MAX_QUEUED_IDS_PER_RELAY);
    }
}

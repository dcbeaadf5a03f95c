//! The writer: decides about events and pushes, and is the only part of the server that writes to the store.
//!
//! One thread ([`ReadyWriter::run`]) takes batches of verified events and commands from the [`EventQueue`]. For each
//! batch it runs [`Admission`] inside one store transaction ([`transaction`]), commits, and only then applies the
//! [`effects`]: replies to clients, broadcast, ref cache, git jobs, updates for sync and fetch. Before the writer, a
//! pool of threads parses events and verifies signatures ([`EventQueue::run_verifier`]).
//!
//! | module | contents |
//! |---|---|
//! | `queue` | queue of events and commands, verification of signatures |
//! | `submission` | events before and after verification |
//! | `command` | commands to the writer, and the functions that send them |
//! | `transaction`, `lookups` | one batch: decisions, reads and writes inside the transaction |
//! | `effects` | what follows from a batch after its commit |
//! | `policy` | the current admission policy, and how it is changed while the server runs |
//! | `sync_feed`, `fetch_feed` | coalesced updates for the drivers of sync and fetch |
//!
//! What makes the writer slow, and therefore delays every `OK` and every push:
//!
//! - the fsync of each commit, which is why many events share one commit (`limits::MAX_BATCH_EVENTS`), and the two
//!   milliseconds that a commit waits for more events while commits follow each other closely;
//! - the lookups of each event inside the transaction, from disk if the pages are not in memory;
//! - slices of longer work at the beginning of a transaction: expiry, removal of vanished authors, moderation scans
//!   (`limits::EXPIRY_SLICE_EVENTS`, `REMOVAL_SLICE_EVENTS`, `REVIEW_SLICE_REPOS`);
//! - views of repository pages, a millisecond or two each (`limits::MAX_WAITING_PAGES`), and the statistics of the health
//!   monitor, which visit all held events once a second;
//! - a rebuild of admission from the store after a failed transaction.
//!
//! `ngit_commit_duration_seconds` measures transactions, `ngit_writer_turn_seconds` the single inputs in them, and
//! `ngit_queue_depth` counts waiting events and commands.
//!
//! The features above (relay sessions, git handlers, sync, fetch, admin, web) call the writer through
//! [`EventQueue`] and [`PolicyHandle`](policy::PolicyHandle). They get results through reply channels, feeds and
//! [`CommitListener`]. May use `repos`, `monitor` (types of its statistics), `metrics`, `config` and `clock`.

pub(crate) mod command;
mod effects;
pub(crate) mod fetch_feed;
pub(crate) mod lookups;
pub(crate) mod policy;
pub(crate) mod queue;
pub(crate) mod submission;
pub(crate) mod sync_feed;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitJobId;
use grasp_core::admission::io::{AdmissionInput, PushId};
use grasp_core::admission::moderation::ModerationScan;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::fetch::io::FetchId;
use grasp_core::limits;
use grasp_core::nostr::SignedEvent;
use grasp_core::nostr::rejection::Rejection;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::state_machine::StateMachine;
use grasp_core::time::Timestamp;
use grasp_git::layout::Layout;
use grasp_git::receive::Quarantine;
use grasp_store::{Store, StoreError};
use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use self::command::{PendingPush, WriterCommand};
use self::effects::Effects;
use self::fetch_feed::{FetchFeed, FetchUpdate};
use self::policy::CurrentPolicy;
use self::queue::{EventQueue, WriterBatch};
use self::sync_feed::{SyncFeed, SyncUpdate};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::monitor::writer_stats::WriterStats;
use crate::repos::maintenance::MaintenanceHandle;
use crate::repos::ref_cache::RefCache;
use crate::repos::ref_files::RefFilesHandle;
use crate::repos::workers::GitWorkers;

/// How long a commit that directly follows another waits for more events.
const GATHER_TIME: Duration = Duration::from_millis(2);

/// After a batch of this size the next one does not wait for more events.
const LARGE_BATCH: usize = 256;

/// How long to wait after a failed transaction before the writer tries again without a request.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// How long the writer waits before it ends the process, so that clients get the answers that it has just given.
const ABORT_DELAY: Duration = Duration::from_millis(200);

/// How long a start waits, before the server accepts requests, for the removal of events that the operator has banned.
const SCAN_TIMEOUT: Duration = Duration::from_secs(20);

/// Receives what becomes visible with a commit. Implemented by the relay's broadcast.
pub(crate) trait CommitListener: Send {
    /// New events can be read from the store.
    fn on_commit(&self);

    /// An ephemeral event was accepted. It is not in the store.
    fn on_ephemeral(&self, event: Arc<SignedEvent>);
}

/// The writer before it has read the store.
pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) queue: Arc<EventQueue>,
    pub(crate) commit_listener: Box<dyn CommitListener>,
    pub(crate) clock: Clock,
    pub(crate) policy: Arc<CurrentPolicy>,
    pub(crate) ref_cache: Arc<RefCache>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) git_workers: GitWorkers,
    pub(crate) ref_files: RefFilesHandle,
    pub(crate) maintenance: MaintenanceHandle,
    pub(crate) sync_feed: Arc<SyncFeed>,
    pub(crate) fetch_feed: Arc<FetchFeed>,
    pub(crate) metrics: Metrics,
}

/// State of the writer thread between batches.
struct WriterState {
    admission: Admission,
    /// When the next served event expires (NIP-40).
    next_expiry: Option<Timestamp>,
    /// Whether events of a vanished author are still being removed.
    is_purging: bool,
    /// The policy that admission has and whose consequences are on disk. If [`Writer::policy`] is another one,
    /// admission receives it with the next batch.
    policy: Arc<AdmissionPolicy>,
    /// How many repositories that policy banned when it was applied.
    banned_repos: usize,
    /// Scan for stored events that the policy bans.
    moderation_scan: ModerationScan,
    /// After a failed transaction: when the writer may try again without an event or a command.
    retry_at: Option<Instant>,
    /// Whether admission has made decisions that were not committed and must therefore be rebuilt from the store.
    is_stale: bool,
    /// Whether admission has not received [`AdmissionInput::Ready`] yet.
    is_starting: bool,
    /// Requests for push permits that are not decided.
    push_requests: HashMap<PushId, oneshot::Sender<Result<PushPermit, PushRejection>>>,
    pending_pushes: HashMap<PushId, PendingPush>,
    /// Packs of fetches that admission has not adopted yet.
    fetched_packs: HashMap<FetchId, Quarantine>,
    /// Jobs that the git workers have, with their repositories.
    running_jobs: HashMap<GitJobId, RepoPath>,
    disk_level: DiskLevel,
    /// Whether the disk has less free space than its reserve, so that admission accepts only what frees space.
    is_below_reserve: bool,
    /// Commands that could not be handled because the disk was full. They are handled before all others.
    deferred_commands: Vec<WriterCommand>,
}

impl WriterState {
    /// Whether the scan for banned events is unfinished.
    fn is_scanning(&self) -> bool {
        !self.moderation_scan.is_done(&self.admission)
    }
}

impl Writer {
    /// Reads the store, and removes what the operator has banned. Afterwards the server may accept requests. Work that a
    /// crash has interrupted continues then: what is served is consistent without it,
    /// except after a migration: the refs of an earlier version may be newer than its events.
    ///
    /// # Errors
    ///
    /// Returns the error of the store if it cannot be read, or an error if the git data of all repositories is missing.
    pub(crate) fn prepare(self, has_migrated: bool) -> Result<ReadyWriter> {
        let mut ready = ReadyWriter { state: self.load_state(self.policy.policy())?, writer: self };
        ready.writer.check_git_data(&ready.state)?;
        ready.writer.send_all_repo_needs(&ready.state)?;
        ready.writer.send_all_wanted_git_data(&ready.state)?;
        let deadline = Instant::now() + SCAN_TIMEOUT;
        let is_migrating = |state: &WriterState| has_migrated && !state.admission.is_idle();
        while ready.state.is_starting || ready.state.is_scanning() || is_migrating(&ready.state) {
            let commands = if ready.has_work() { Vec::new() } else { ready.writer.queue.take_commands(deadline) };
            ready.writer.process_batch(&mut ready.state, WriterBatch { events: Vec::new(), commands });
            if ready.state.is_starting {
                // The first transaction failed, for example because the disk is full: do not try again at once.
                std::thread::sleep(RETRY_DELAY / 10);
            }
            if Instant::now() >= deadline {
                warn!(target: "writer", "banned events are still being removed, starting anyway");
                break;
            }
        }
        Ok(ready)
    }

    /// Checks that the git folder is not empty if it should have repositories.
    fn check_git_data(&self, state: &WriterState) -> Result<()> {
        if self.layout.has_repos() {
            return Ok(());
        }
        let mut repos = state.admission.repos_with_refs().peekable();
        let Some(first) = repos.peek().map(|repo| RepoPath::Announced(repo.clone()).to_string()) else { return Ok(()) };
        bail!(
            "the git data folder {} is empty, but the event store has refs of {} repositories, for example {first}. \
             No event was changed. If the folder is on another disk, mount it; if it was moved, set NGIT_GIT_DATA_PATH. \
             Otherwise see \"When data is lost\" in docs/how-to.md",
            self.layout.root().display(),
            repos.count(),
        );
    }

    /// Reads the store into a new state.
    fn load_state(&self, policy: Arc<AdmissionPolicy>) -> Result<WriterState, StoreError> {
        let moderation_scan = ModerationScan::new(&policy.lists);
        let mut admission = Admission::new(AdmissionPolicy::clone(&policy));
        let now = self.clock.now();
        let unreadable = self.store.restore(|restored| admission.handle(now, AdmissionInput::Restored(restored)))?;
        if unreadable > 0 {
            warn!(target: "writer", unreadable, "some events in the store are unreadable");
        }
        info!(target: "writer", repositories = admission.catalog().repositories().count(),
            held = admission.purgatory().len(),
            "store loaded"
        );
        for (repo, _) in admission.catalog().repositories() {
            self.load_hosting(&admission, &repo);
        }
        for repo_path in admission.degraded_repos() {
            warn!(target: "writer", repo = %repo_path, "repository is degraded");
        }
        let staged: BTreeSet<u64> = admission.uploads().map(|upload| upload.folder).collect();
        if let Err(error) = self.layout.retain_staged(&staged) {
            warn!(target: "writer", %error, "cannot remove expired uploads");
        }
        // With these values the first batch continues an interrupted removal and finds what expired meanwhile.
        Ok(WriterState {
            admission,
            next_expiry: Some(Timestamp(0)),
            is_purging: true,
            policy,
            banned_repos: 0,
            moderation_scan,
            retry_at: None,
            is_stale: false,
            is_starting: true,
            push_requests: HashMap::new(),
            pending_pushes: HashMap::new(),
            fetched_packs: HashMap::new(),
            running_jobs: HashMap::new(),
            disk_level: DiskLevel::Free,
            is_below_reserve: false,
            deferred_commands: Vec::new(),
        })
    }

    /// Sends the needs of all repositories to sync. Not needed after a failed transaction: what sync received last was
    /// committed and is still true.
    fn send_all_repo_needs(&self, state: &WriterState) -> Result<(), StoreError> {
        let txn = self.store.begin()?;
        let identifiers: BTreeSet<Identifier> =
            state.admission.catalog().repositories().map(|(repo, _)| repo.identifier).collect();
        let mut repo_needs = BTreeMap::new();
        for identifier in identifiers {
            let needs = lookups::repo_needs(&state.admission, &txn, &identifier)?;
            if !needs.is_empty() {
                repo_needs.insert(identifier, needs);
            }
        }
        self.sync_feed.send(SyncUpdate { repo_needs, ..SyncUpdate::default() }, self.store.last_seq());
        Ok(())
    }

    /// Sends all wanted git data and all served repositories to fetch.
    fn send_all_wanted_git_data(&self, state: &WriterState) -> Result<(), StoreError> {
        if !self.policy.policy().fetches_git_data {
            return Ok(());
        }
        let txn = self.store.begin()?;
        let mut update = FetchUpdate::default();
        let degraded = state.admission.degraded_repos().map(RepoPath::identifier);
        let identifiers: BTreeSet<&Identifier> = state.admission.purgatory().identifiers().chain(degraded).collect();
        for identifier in identifiers {
            let wanted = lookups::wanted_git_data(&state.admission, &txn, identifier)?;
            update.wanted.insert(identifier.clone(), wanted);
        }
        for (repo, _) in state.admission.catalog().repositories() {
            let served = |identifier: &Identifier| state.admission.served_repos(identifier);
            update.served.entry(repo.identifier).or_insert_with_key(served);
        }
        self.fetch_feed.send(update);
        Ok(())
    }

    /// Tells the ref cache whether a repository is hosted.
    fn load_hosting(&self, admission: &Admission, repo: &RepoId) {
        self.ref_cache.set_hosted(repo, admission.hosted_repo(repo).map(|hosted| (hosted.status, hosted.alternates)));
    }

    /// Updates the ref cache after a change of what is hosted, and logs the change.
    fn update_hosting(&self, admission: &Admission, repo: &RepoId) {
        let before = self.ref_cache.open_repo(&RepoPath::Announced(repo.clone())).map(|open| open.status);
        let hosted = admission.hosted_repo(repo).map(|hosted| (hosted.status, hosted.alternates));
        match (before, hosted.as_ref().map(|(status, _)| *status)) {
            (None, Some(EventStatus::Held)) => {
                info!(target: "writer", %repo, reason = "announcement held until its git data arrives", "repository added");
            }
            (None, Some(EventStatus::Served)) => {
                info!(target: "writer", %repo, reason = "announcement accepted", "repository added");
            }
            (Some(EventStatus::Held), Some(EventStatus::Served)) => {
                info!(target: "writer", %repo, reason = "git data complete", "repository served");
            }
            (Some(_), None) => {
                info!(target: "writer", %repo, reason = removal_reason(admission, repo), "repository removed");
            }
            _ => {}
        }
        self.ref_cache.set_hosted(repo, hosted);
    }

    /// Processes one batch: decides and writes inside one transaction, commits, applies the effects.
    fn process_batch(&self, state: &mut WriterState, batch: WriterBatch) {
        let WriterBatch { events, commands } = batch;
        let mut effects = Effects { commands: std::mem::take(&mut state.deferred_commands), ..Effects::default() };
        effects.commands.extend(commands);
        if state.is_stale {
            self.reject_waiting(state, std::mem::take(&mut effects.commands));
            // Reading the whole store is too expensive to try it with every batch, and a rebuilt admission would not
            // know the jobs that are still running.
            let is_too_early = state.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
            if is_too_early || !state.running_jobs.is_empty() {
                return self.reject_events(events, &Rejection::StoreFailed);
            }
        }
        let (started, event_count) = (Instant::now(), events.len());
        let outcome = self
            .rebuild_if_stale(state)
            .and_then(|()| self.prepare_for_disk_space(state, &mut effects))
            .and_then(|is_below_reserve| self.run_transaction(state, &events, is_below_reserve, &mut effects));
        match outcome {
            Ok(()) => {
                self.metrics.server().observe_commit(started.elapsed(), event_count, true);
                state.retry_at = None;
                state.next_expiry = effects.next_expiry;
                state.is_purging = effects.is_purging;
                self.apply_effects(state, events, effects);
            }
            Err(error) => {
                let reason = if matches!(error, StoreError::DiskFull { .. }) {
                    Rejection::DiskFull
                } else {
                    Rejection::StoreFailed
                };
                if !events.is_empty() || state.retry_at.is_none() {
                    warn!(target: "writer", %error, events = event_count, "batch could not be stored");
                }
                // A failed write of the first page, for example, closes the store for this process. Everything that was
                // acknowledged is on disk and is found at the next start.
                let is_unusable = error.is_fatal() || self.store.begin().is_err_and(|error| error.is_fatal());
                if is_unusable {
                    error!(target: "writer", %error, "unrecoverable store error, shutting down");
                }
                self.metrics.server().observe_commit(started.elapsed(), event_count, false);
                state.retry_at = Some(Instant::now() + RETRY_DELAY);
                let unhandled = std::mem::take(&mut effects.commands);
                if state.is_stale {
                    self.reject_waiting(state, unhandled)
                } else {
                    self.defer_commands(state, unhandled)
                }
                self.reject_events(events, &reason);
                if is_unusable {
                    std::thread::sleep(ABORT_DELAY);
                    std::process::abort();
                }
            }
        }
    }

    /// Returns whether the disk has less free space than its reserve. If so, takes from the batch the commands that need
    /// space, and that must wait or are rejected. Admission rejects the events that need space.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::DiskFull`] if there is not even enough space to remove something.
    fn prepare_for_disk_space(&self, state: &mut WriterState, effects: &mut Effects) -> Result<bool, StoreError> {
        let (free_bytes, reserve_bytes) = match self.store.check_free_space() {
            Err(StoreError::DiskFull { free, reserve }) if free >= limits::MIN_REMOVAL_BYTES => (free, reserve),
            checked => return checked.map(|()| false),
        };
        if !state.is_below_reserve {
            warn!(target: "writer", free_bytes, reserve_bytes, "free disk space is below the reserve, accepting only removals");
        }
        let (allowed, mut others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut effects.commands).into_iter().partition(is_allowed_below_reserve);
        effects.commands = allowed;
        // Hints about what could be fetched. They are repeated, and would only pile up while nothing is fetched.
        others.retain(|command| !matches!(command, WriterCommand::HeldEventsSeen(_) | WriterCommand::SourcesTried(_)));
        self.defer_commands(state, others);
        Ok(true)
    }

    /// Handles the commands of a batch that failed before admission saw any of it: keeps those that admission must
    /// receive, and rejects the others, for example new pushes.
    fn defer_commands(&self, state: &mut WriterState, commands: Vec<WriterCommand>) {
        for command in commands {
            match command {
                WriterCommand::GitJobDone(..)
                | WriterCommand::PushEnded(_)
                | WriterCommand::FetchStarted(..)
                | WriterCommand::PackFetched(..)
                | WriterCommand::GitDataAdded(_)
                | WriterCommand::FetchEnded(_)
                | WriterCommand::SourcesTried(_)
                | WriterCommand::HeldEventsSeen(_)
                | WriterCommand::PolicyChanged(..)
                | WriterCommand::DiskLevelChanged(_) => state.deferred_commands.push(command),
                other => self.reject_command(other),
            }
        }
    }

    /// Rejects everything that waits for an admission which is stale and will be rebuilt. The rebuilt admission finds
    /// the results of git jobs by itself.
    fn reject_waiting(&self, state: &mut WriterState, commands: Vec<WriterCommand>) {
        for (_, reply) in state.push_requests.drain() {
            let _ = reply.send(Err(store_failed()));
        }
        for command in commands {
            match command {
                WriterCommand::GitJobDone(job, _) => drop(state.running_jobs.remove(&job.id)),
                // The rebuilt admission receives it.
                WriterCommand::DiskLevelChanged(level) => state.disk_level = level,
                other => self.reject_command(other),
            }
        }
        // A running job may still be moving these packs.
        if state.running_jobs.is_empty() {
            state.pending_pushes.drain().for_each(|(_, pending)| self.reject_push(pending));
            self.git_workers.drop_packs(state.fetched_packs.drain().map(|(_, pack)| pack).collect());
        }
    }

    /// Answers a command that is not handled. A sender without an answer sees that its channel was closed.
    fn reject_command(&self, command: WriterCommand) {
        match command {
            WriterCommand::PushRequested(_, reply) => drop(reply.send(Err(store_failed()))),
            WriterCommand::PushReceived(_, pending) => self.reject_push(pending),
            WriterCommand::PackFetched(_, pack) => self.git_workers.drop_packs(vec![pack]),
            _ => {}
        }
    }

    fn reject_push(&self, pending: PendingPush) {
        let _ = pending.reply.send(Err(store_failed()));
        self.git_workers.drop_packs(pending.packs);
    }

    /// After a failed transaction: replaces the state by what is in the store.
    fn rebuild_if_stale(&self, state: &mut WriterState) -> Result<(), StoreError> {
        if state.is_stale {
            let disk_level = state.disk_level;
            *state = WriterState { disk_level, ..self.load_state(state.policy.clone())? };
            state.admission.handle(self.clock.now(), AdmissionInput::DiskLevel(disk_level));
            self.ref_cache.all_jobs_ended();
            // Running fetches and their packs are lost with the old state, so fetch must start again.
            self.send_all_wanted_git_data(state)?;
        }
        Ok(())
    }
}

/// A writer that has read the store.
pub(crate) struct ReadyWriter {
    writer: Writer,
    state: WriterState,
}

impl ReadyWriter {
    /// Processes batches until the queue is closed and empty. Runs on the writer thread.
    pub(crate) fn run(mut self) {
        let mut last_commit: Option<(Instant, usize)> = None;
        loop {
            let until = self.wake_at();
            let is_busy = last_commit
                .is_some_and(|(at, events)| at.elapsed() < GATHER_TIME && (2..LARGE_BATCH).contains(&events));
            let is_expecting = !self.state.running_jobs.is_empty();
            let gather = is_busy.then_some(GATHER_TIME);
            let Some(batch) = self.writer.queue.next_batch(until, gather, is_expecting) else { break };
            let (batch, stats_requests) = split_stats_requests(batch);
            let events = batch.events.len();
            let is_due = until.is_some_and(|until| Instant::now() >= until) || !self.state.deferred_commands.is_empty();
            if is_due || stats_requests.is_empty() || events > 0 || !batch.commands.is_empty() {
                self.writer.process_batch(&mut self.state, batch);
            }
            for reply in stats_requests {
                let _ = reply.send(self.stats());
            }
            last_commit = Some((Instant::now(), events));
            if events > 0 {
                debug!(target: "writer", events, "batch processed");
            }
        }
        self.writer.queue.end();
    }

    /// Returns the writer's statistics. Tests whether a transaction can begin.
    fn stats(&self) -> WriterStats {
        let Self { writer, state } = self;
        let can_write = writer.store.check_free_space().and_then(|()| writer.store.begin().map(drop));
        let stale = state.is_stale.then(|| "the last batch could not be stored".to_owned());
        WriterStats {
            store_error: can_write.err().map(|error| error.to_string()).or(stale),
            running_git_jobs: state.running_jobs.len(),
            ..WriterStats::from_admission(&state.admission, writer.clock.mono())
        }
    }

    /// Whether there is work now even without an event or a command.
    fn has_work(&self) -> bool {
        let now = self.writer.clock.mono();
        let is_due = self.state.admission.alarm().is_some_and(|(at, _)| at <= now) || self.state.is_scanning();
        let is_too_early = self.state.retry_at.is_some_and(|retry_at| Instant::now() < retry_at);
        self.state.is_starting || (is_due && !is_too_early)
    }

    /// Returns when there will be work even without an event or a command.
    fn wake_at(&self) -> Option<Instant> {
        let now = self.writer.clock.now();
        let alarm = self.state.admission.alarm().map(|(at, _)| at.since(now.mono));
        let expiry = self.state.next_expiry.map(|at| Duration::from_secs(at.secs_since(now.wall)));
        let removal = (self.state.is_purging || self.state.is_scanning()).then_some(Duration::ZERO);
        // At most an hour, because the wall clock may step.
        let wait = [alarm, expiry, removal].into_iter().flatten().min()?.min(Duration::from_secs(3_600));
        let due = Instant::now() + wait;
        Some(self.state.retry_at.map_or(due, |retry_at| due.max(retry_at)))
    }
}

/// Separates requests for statistics, which are answered even if the store fails, from the rest of a batch.
fn split_stats_requests(batch: WriterBatch) -> (WriterBatch, Vec<crossbeam_channel::Sender<WriterStats>>) {
    let WriterBatch { events, commands } = batch;
    let mut stats_requests = Vec::new();
    let commands = commands.into_iter().filter_map(|command| match command {
        WriterCommand::ReportStats(reply) => {
            stats_requests.push(reply);
            None
        }
        other => Some(other),
    });
    let commands = commands.collect();
    (WriterBatch { events, commands }, stats_requests)
}

/// Whether a command needs little or no disk space. Admission rejects requested pushes, with the reason. Commands of
/// fetches are not allowed, because fetched packs need space and the order of these commands must be kept.
fn is_allowed_below_reserve(command: &WriterCommand) -> bool {
    match command {
        WriterCommand::GitJobDone(..)
        | WriterCommand::PushRequested(..)
        | WriterCommand::PushEnded(_)
        | WriterCommand::DropHeld(..)
        | WriterCommand::PolicyChanged(_)
        | WriterCommand::DiskLevelChanged(_)
        | WriterCommand::RepoDegraded(..)
        | WriterCommand::PacksChanged(..)
        | WriterCommand::ReportStats(_)
        | WriterCommand::Read(_) => true,
        WriterCommand::PushReceived(..)
        | WriterCommand::SaveSyncRows(..)
        | WriterCommand::SaveHostRows(..)
        | WriterCommand::FetchStarted(..)
        | WriterCommand::PackFetched(..)
        | WriterCommand::GitDataAdded(_)
        | WriterCommand::FetchEnded(_)
        | WriterCommand::SourcesTried(_)
        | WriterCommand::HeldEventsSeen(_) => false,
    }
}

fn store_failed() -> PushRejection {
    PushRejection::Failed("the store cannot write".to_owned())
}

/// Returns why a repository is no longer hosted.
fn removal_reason(admission: &Admission, repo: &RepoId) -> &'static str {
    if admission.policy().lists.is_repo_banned(repo) {
        "banned by the operator"
    } else if admission.catalog().announcement(repo).is_some() {
        "newest announcement does not list this server"
    } else {
        "announcement deleted or expired"
    }
}

#[cfg(test)]
mod tests;

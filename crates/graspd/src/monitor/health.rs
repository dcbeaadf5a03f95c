//! The health monitor: a thread that takes a [`HealthSnapshot`] of the whole server once a second.
//!
//! Gauges, health checks and the status page are computed from the latest snapshot, so requests for them do not touch
//! the threads that are observed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::nostr::hex;
use grasp_core::time::{MonoTime, Timestamp};
use grasp_git::layout::Layout;
use grasp_git::process::Git;
use grasp_git::version::find_program;
use grasp_store::{DiskSpace, Store};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::disk_budget::{DiskBudgetStatus, DiskBudgetTracker};
use super::disk_usage::LatestDiskUsage;
use super::free_memory::FreeMemory;
pub(crate) use super::writer_stats::{ExpiringEvent, WriterStats};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::metrics::Metrics;
use crate::metrics::server::PurgatoryCounts;

/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for the writer's reply. A later reply is read with the next snapshot.
const WRITER_TIMEOUT: Duration = Duration::from_millis(500);

/// Number of snapshots between two measurements of what is expensive to measure, such as open file descriptors.
const SLOW_MEASUREMENT_PERIOD: u64 = 5;

/// Time between two ticks of the event loop probe.
const TICK: Duration = Duration::from_millis(500);

/// State of the server at one point in time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct HealthSnapshot {
    pub(crate) taken_at: MonoTime,
    /// The same as wall time.
    pub(crate) wall_time: Timestamp,
    /// Latest statistics of the writer. `None` before its first reply.
    pub(crate) writer_stats: Option<WriterStats>,
    /// When the writer last replied, and how long the reply took.
    pub(crate) writer_reply: Option<(MonoTime, Duration)>,
    /// Depth of each queue.
    pub(crate) queues: Vec<(&'static str, usize)>,
    /// Use and limit of each budget.
    pub(crate) budgets: Vec<(&'static str, u64, u64)>,
    /// Free bytes and reserved bytes of the volumes of events and of git data. With less free space than the reserve,
    /// nothing new is accepted.
    pub(crate) volumes: Vec<(&'static str, u64, u64)>,
    pub(crate) disk_budget: DiskBudgetStatus,
    /// Latest report of the disk usage scanner. `None` before its first scan has ended.
    pub(crate) disk_usage: LatestDiskUsage,
    /// Number of served events.
    pub(crate) served_events: u64,
    /// Number of events in purgatory.
    pub(crate) held_events: u64,
    /// The git program is in `PATH`.
    pub(crate) has_git: bool,
    /// Why the git data folder cannot be used; `None` if it can.
    pub(crate) git_folder_problem: Option<String>,
    /// When the event loop last ran the probe, and how late that was.
    pub(crate) event_loop: (MonoTime, Duration),
    /// Resident memory of the process.
    pub(crate) resident_bytes: u64,
    /// Number of hosted repositories.
    pub(crate) repositories: usize,
}

/// Depth of each queue. `None` if a queue cannot be read at the moment; its last depth is kept.
pub(crate) type QueueDepths = Vec<(&'static str, Option<usize>)>;

/// Use and limit of each budget.
pub(crate) type BudgetLoads = Vec<(&'static str, u64, u64)>;

/// Everything that the health monitor observes.
pub(crate) struct HealthSources {
    pub(crate) queues: Box<dyn Fn() -> QueueDepths + Send>,
    pub(crate) budgets: Box<dyn Fn() -> BudgetLoads + Send>,
    /// Requests the statistics of the writer.
    pub(crate) request_writer_stats: Box<dyn Fn(Sender<WriterStats>) + Send>,
    /// Notifies the writer that another limit of the disk budget is reached.
    pub(crate) disk_level_changed: Box<dyn Fn(DiskLevel) + Send>,
    /// Bytes of cached packs.
    pub(crate) cached_pack_bytes: Box<dyn Fn() -> u64 + Send>,
    /// Sets how many bytes cached packs may use.
    pub(crate) set_pack_cache_limit: Box<dyn Fn(u64) + Send>,
    /// Number of hosted repositories.
    pub(crate) repositories: Box<dyn Fn() -> usize + Send>,
    pub(crate) store: Store,
    pub(crate) settings: SettingsReceiver,
    /// The folder of the events, and the free space that is reserved there.
    pub(crate) events: (PathBuf, u64),
    /// The folder of git data, and the free space that is reserved there.
    pub(crate) git: (PathBuf, u64),
    pub(crate) layout: Arc<Layout>,
    pub(crate) disk_budget: Arc<DiskBudgetTracker>,
    pub(crate) disk_usage: watch::Receiver<LatestDiskUsage>,
    pub(crate) event_loop_probe: watch::Receiver<(MonoTime, Duration)>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
}

/// The thread that takes the snapshots.
pub(crate) struct HealthMonitor {
    sources: HealthSources,
    published: watch::Sender<Arc<HealthSnapshot>>,
    /// A request to the writer without a reply yet, and when it was sent.
    pending_request: Option<(Receiver<WriterStats>, MonoTime)>,
    latest: HealthSnapshot,
    snapshots_taken: u64,
    free_memory: FreeMemory,
}

impl HealthMonitor {
    /// Creates a monitor and takes the first snapshot. Also returns the channel with the latest snapshot.
    pub(crate) fn new(sources: HealthSources) -> (Self, watch::Receiver<Arc<HealthSnapshot>>) {
        let (published, receiver) = watch::channel(Arc::default());
        let latest = HealthSnapshot::default();
        let free_memory = FreeMemory::new();
        let mut monitor = Self { sources, published, pending_request: None, latest, snapshots_taken: 0, free_memory };
        monitor.take_snapshot();
        (monitor, receiver)
    }

    /// Takes snapshots until `stop` is closed.
    pub(crate) fn run(mut self, stop: &Receiver<()>) {
        loop {
            self.take_snapshot();
            if !matches!(stop.recv_timeout(SNAPSHOT_INTERVAL), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    fn take_snapshot(&mut self) {
        self.poll_writer();
        let sources = &self.sources;
        let (at, wall) = (sources.clock.mono(), sources.clock.wall());
        let snapshot = &mut self.latest;
        (snapshot.taken_at, snapshot.wall_time) = (at, wall);
        update_queues(snapshot, (sources.queues)());
        snapshot.budgets = (sources.budgets)();
        let ((events, events_reserve), (git, git_reserve)) = (&sources.events, &sources.git);
        let free = |folder: &Path| DiskSpace::read(folder).map_or(0, |space| space.free);
        snapshot.volumes = vec![("events", free(events), *events_reserve), ("git", free(git), *git_reserve)];
        snapshot.disk_usage = sources.disk_usage.borrow().clone();
        // The minimum, because both volumes may be on the same disk.
        let available = snapshot.volumes.iter().map(|(_, free, reserve)| free.saturating_sub(*reserve));
        let available = available.min().unwrap_or_default();
        let level_before = snapshot.disk_budget.level;
        let (disk_settings, pack_cache_setting) = {
            let settings = sources.settings.borrow();
            (settings.disk, settings.git.pack_cache_bytes)
        };
        let cached = (sources.cached_pack_bytes)();
        snapshot.disk_budget = sources.disk_budget.update(disk_settings, available, cached);
        (sources.set_pack_cache_limit)(snapshot.disk_budget.allowed_cache_bytes(cached).min(pack_cache_setting));
        snapshot.budgets.push(("disk_bytes", snapshot.disk_budget.used_bytes, snapshot.disk_budget.budget.hard_bytes));
        if snapshot.disk_budget.level != level_before {
            log_disk_level(&snapshot.disk_budget);
            (sources.disk_level_changed)(snapshot.disk_budget.level);
        }
        snapshot.event_loop = *sources.event_loop_probe.borrow();
        snapshot.repositories = (sources.repositories)();
        if self.snapshots_taken.is_multiple_of(SLOW_MEASUREMENT_PERIOD) {
            // Values that cannot be read now keep their last value.
            snapshot.served_events = sources.store.served_count().unwrap_or(snapshot.served_events);
            snapshot.held_events = sources.store.held_count().unwrap_or(snapshot.held_events);
            snapshot.has_git = find_program(Path::new("git"), &Git::search_path()).is_some();
            let problem = sources.layout.check_access(&hex::encode(&sources.store.id())).err();
            log_git_folder(snapshot.git_folder_problem.as_deref(), problem.as_ref());
            snapshot.git_folder_problem = problem.map(|error| error.to_string());
            sources.metrics.process().update(Path::new("/"), at.0 / 1_000, wall.0);
            snapshot.resident_bytes = sources.metrics.process().resident_bytes();
            self.free_memory.release_if_grown(at);
        }
        self.snapshots_taken += 1;
        export(snapshot, &sources.metrics);
        let degraded = snapshot.writer_stats.as_ref().map_or(0, |stats| stats.degraded);
        sources.metrics.git().update_repositories(snapshot.repositories, degraded);
        self.published.send_replace(Arc::new(snapshot.clone()));
    }

    /// Requests the statistics of the writer, or reads the reply to the last request. There is at most one request at a
    /// time, so that a stuck writer does not find a queue of them.
    fn poll_writer(&mut self) {
        let (replies, sent_at) = match self.pending_request.take() {
            Some(pending) => pending,
            None => {
                let (reply, replies) = crossbeam_channel::bounded(1);
                (self.sources.request_writer_stats)(reply);
                (replies, self.sources.clock.mono())
            }
        };
        match replies.recv_timeout(WRITER_TIMEOUT) {
            Ok(stats) => {
                let now = self.sources.clock.mono();
                self.sources.metrics.server().observe_writer_round_trip(now.since(sent_at));
                self.latest.writer_reply = Some((now, now.since(sent_at)));
                self.latest.writer_stats = Some(stats);
            }
            Err(RecvTimeoutError::Timeout) => self.pending_request = Some((replies, sent_at)),
            // The request was dropped: the writer is shutting down, or the store failed in its batch.
            Err(RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// Stores the depths of the queues, and adds those that the writer reports itself.
fn update_queues(snapshot: &mut HealthSnapshot, depths: QueueDepths) {
    let before = |name: &str| snapshot.queues.iter().find(|(queue, _)| *queue == name).map_or(0, |(_, depth)| *depth);
    let mut queues: Vec<_> =
        depths.into_iter().map(|(name, depth)| (name, depth.unwrap_or_else(|| before(name)))).collect();
    let stats = snapshot.writer_stats.as_ref();
    let (queued, running) = stats.map_or((0, 0), |stats| (stats.queued_git_jobs, stats.running_git_jobs));
    queues.extend([("repo_queue", queued), ("git_jobs", running)]);
    snapshot.queues = queues;
}

/// Sets the gauges from a snapshot.
fn export(snapshot: &HealthSnapshot, metrics: &Metrics) {
    let server = metrics.server();
    snapshot.queues.iter().for_each(|(queue, depth)| server.set_queue_depth(queue, *depth));
    snapshot.budgets.iter().for_each(|(budget, used, limit)| server.set_budget(budget, *used, *limit));
    snapshot.volumes.iter().for_each(|(volume, free, reserve)| server.set_volume(volume, *free, *reserve));
    if let Some(report) = &snapshot.disk_usage {
        server.set_disk_usage(&report.bytes_by_kind, report.measured_at);
    }
    server.set_stored_events(snapshot.served_events, snapshot.held_events);
    if let Some(stats) = &snapshot.writer_stats {
        server.set_purgatory(&PurgatoryCounts {
            kinds: stats.kinds(),
            bytes: stats.bytes,
            dormant: stats.dormant,
            oldest: stats.oldest,
            uploads: stats.uploads,
        });
    }
}

fn log_git_folder(before: Option<&str>, problem: Option<&io::Error>) {
    match (before, problem) {
        (None, Some(error)) => error!(target: "admin", %error, "the git data folder cannot be used"),
        (Some(_), None) => info!(target: "admin", "the git data folder can be used again"),
        _ => {}
    }
}

fn log_disk_level(status: &DiskBudgetStatus) {
    let DiskBudgetStatus { used_bytes, budget, level } = status;
    let (soft_bytes, hard_bytes) = (budget.soft_bytes, budget.hard_bytes);
    match level {
        DiskLevel::Free => {
            info!(target: "admin", used_bytes, soft_bytes, "disk budget is below its soft limit again")
        }
        DiskLevel::Soft => {
            warn!(target: "admin", used_bytes, hard_bytes, "disk budget nearly used up, rejecting new repositories")
        }
        DiskLevel::Hard => {
            warn!(target: "admin", used_bytes, hard_bytes, "disk budget used up, rejecting new data")
        }
    }
}

/// Starts the task that measures how late timers of the event loop are, in the runtime of the caller. Returns when its last
/// tick was, and how late that was.
pub(crate) fn start_event_loop_probe(clock: Clock, metrics: Metrics) -> watch::Receiver<(MonoTime, Duration)> {
    let (last_tick, receiver) = watch::channel((clock.mono(), Duration::ZERO));
    tokio::spawn(async move {
        loop {
            let began = tokio::time::Instant::now();
            tokio::time::sleep(TICK).await;
            let late = began.elapsed().saturating_sub(TICK);
            metrics.server().observe_event_loop_lag(late);
            last_tick.send_replace((clock.mono(), late));
        }
    });
    receiver
}

//! The watchman: a thread that goes round all rooms every second and writes down how they are. Measurements, health checks
//! and the status page are made of what it has seen, so that nobody who asks costs the rooms anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::time::{MonoTime, Timestamp};
use grasp_store::{DiskSpace, Store};
use tokio::sync::watch;
use tracing::{info, warn};

use super::disk_budget::{Budget, Standing};
pub(crate) use super::disk_usage::DiskUse;
use super::disk_usage::LatestDiskUsage;
pub(crate) use super::writer_stats::{ExpiringEvent, WriterStats};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::metrics::Metrics;
use crate::metrics::server::PurgatoryCounts;

/// How often it goes round.
const BEAT: Duration = Duration::from_secs(1);

/// How long it waits for the writer before it goes on; it hears the answer at a later round.
const PATIENCE: Duration = Duration::from_millis(500);

/// Rounds between two looks at what is dearer to look at: descriptors are counted one by one.
const SLOW: u64 = 5;

/// How often the event loop is asked to do something, to see how late it is.
const TICK: Duration = Duration::from_millis(500);

/// What the watchman has seen in one round.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct HealthSnapshot {
    /// When.
    pub(crate) at: MonoTime,
    /// The same for people.
    pub(crate) wall: Timestamp,
    /// What the writer said last, if it ever did.
    pub(crate) vitals: Option<WriterStats>,
    /// When that was, and how long it took.
    pub(crate) writer: Option<(MonoTime, Duration)>,
    /// What waits, by queue.
    pub(crate) queues: Vec<(&'static str, usize)>,
    /// What is used of budgets, and what they allow.
    pub(crate) budgets: Vec<(&'static str, u64, u64)>,
    /// Free disk space, and below which nothing new is taken, by what it is for.
    pub(crate) volumes: Vec<(&'static str, u64, u64)>,
    /// What is used of the disk budget.
    pub(crate) budget: Standing,
    /// What disk space is used for.
    pub(crate) disk: Option<Arc<DiskUse>>,
    /// Events that are served.
    pub(crate) served: u64,
    /// Events that are held.
    pub(crate) held: u64,
    /// Whether the git program can be found.
    pub(crate) git: bool,
    /// When the event loop last turned, and how late it was.
    pub(crate) turned: (MonoTime, Duration),
    /// Memory of the process.
    pub(crate) resident: u64,
    /// Repositories that are open.
    pub(crate) repositories: usize,
}

/// Number of entries in each queue. `None` if a queue cannot be read at the moment; its last depth stays.
pub(crate) type QueueDepths = Vec<(&'static str, Option<usize>)>;

/// Use and limit of each budget.
pub(crate) type BudgetLoads = Vec<(&'static str, u64, u64)>;

/// What the watchman looks at.
pub(crate) struct HealthSources {
    pub(crate) queues: Box<dyn Fn() -> QueueDepths + Send>,
    pub(crate) budgets: Box<dyn Fn() -> BudgetLoads + Send>,
    /// Asks the writer for its statistics.
    pub(crate) ask_writer: Box<dyn Fn(Sender<WriterStats>) + Send>,
    /// Tells the writer how full the disk budget is.
    pub(crate) disk_mark_changed: Box<dyn Fn(DiskLevel) + Send>,
    /// Bytes of cached packs.
    pub(crate) cached_pack_bytes: Box<dyn Fn() -> u64 + Send>,
    /// Sets how many bytes cached packs may use.
    pub(crate) limit_cached_packs: Box<dyn Fn(u64) + Send>,
    /// Number of open repositories.
    pub(crate) repositories: Box<dyn Fn() -> usize + Send>,
    pub(crate) store: Store,
    pub(crate) settings: SettingsReceiver,
    /// The folder of the events, and the free space that is kept there.
    pub(crate) events: (PathBuf, u64),
    /// The folder of git data, and the free space that is kept there.
    pub(crate) git: (PathBuf, u64),
    pub(crate) budget: Arc<Budget>,
    pub(crate) measured: LatestDiskUsage,
    pub(crate) pulse: Pulse,
    pub(crate) clock: Clock,
    pub(crate) meter: Metrics,
}

/// The watchman.
pub(crate) struct HealthMonitor {
    sights: HealthSources,
    rounds: watch::Sender<Arc<HealthSnapshot>>,
    /// A question to the writer that is not answered yet, and when it was asked.
    asked: Option<(Receiver<WriterStats>, MonoTime)>,
    last: HealthSnapshot,
    beats: u64,
}

impl HealthMonitor {
    /// A watchman who has gone round once, and where its newest round is.
    pub(crate) fn new(sights: HealthSources) -> (Self, watch::Receiver<Arc<HealthSnapshot>>) {
        let (rounds, newest) = watch::channel(Arc::default());
        let mut watchman = Self { sights, rounds, asked: None, last: HealthSnapshot::default(), beats: 0 };
        watchman.go_round();
        (watchman, newest)
    }

    /// The thread's life: until `stop` is dropped.
    pub(crate) fn run(mut self, stop: &Receiver<()>) {
        loop {
            self.go_round();
            if !matches!(stop.recv_timeout(BEAT), Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    fn go_round(&mut self) {
        self.ask_writer();
        let sights = &self.sights;
        let (at, wall) = (sights.clock.mono(), sights.clock.wall());
        let round = &mut self.last;
        (round.at, round.wall) = (at, wall);
        queues(round, (sights.queues)());
        round.budgets = (sights.budgets)();
        let ((events, events_mark), (git, git_mark)) = (&sights.events, &sights.git);
        let free = |folder: &Path| DiskSpace::read(folder).map_or(0, |space| space.free);
        round.volumes = vec![("events", free(events), *events_mark), ("git", free(git), *git_mark)];
        round.disk = sights.measured.get();
        // As much as both rooms would still take; they may share a disk.
        let room = round.volumes.iter().map(|(_, free, mark)| free.saturating_sub(*mark)).min().unwrap_or_default();
        let before = round.budget.mark;
        let (allowance, answers) = {
            let settings = sights.settings.borrow();
            (settings.disk, settings.git.pack_cache_bytes)
        };
        let kept = (sights.cached_pack_bytes)();
        round.budget = sights.budget.look(allowance, room, kept);
        (sights.limit_cached_packs)(round.budget.room_for_answers(kept).min(answers));
        round.budgets.push(("disk_bytes", round.budget.used, round.budget.budget.hard_bytes));
        if round.budget.mark != before {
            warn_of(&round.budget);
            (sights.disk_mark_changed)(round.budget.mark);
        }
        round.turned = sights.pulse.last();
        round.repositories = (sights.repositories)();
        if self.beats.is_multiple_of(SLOW) {
            // What cannot be read now is as it was.
            round.served = sights.store.served_count().unwrap_or(round.served);
            round.held = sights.store.held_count().unwrap_or(round.held);
            round.git = is_found("git", std::env::var_os("PATH").as_deref());
            sights.meter.process().look(Path::new("/"), at.0 / 1_000, wall.0);
            round.resident = sights.meter.process().resident();
        }
        self.beats += 1;
        export(round, &sights.meter);
        sights.meter.git().look(round.repositories);
        self.rounds.send_replace(Arc::new(round.clone()));
    }

    /// Asks the writer how it is. It is asked again only when it has answered.
    fn ask_writer(&mut self) {
        let (answer, since) = match self.asked.take() {
            Some(asked) => asked,
            None => {
                let (reply, answer) = crossbeam_channel::bounded(1);
                (self.sights.ask_writer)(reply);
                (answer, self.sights.clock.mono())
            }
        };
        match answer.recv_timeout(PATIENCE) {
            Ok(vitals) => {
                let now = self.sights.clock.mono();
                self.sights.meter.house().round_trip(now.since(since));
                self.last.writer = Some((now, now.since(since)));
                self.last.vitals = Some(vitals);
            }
            Err(RecvTimeoutError::Timeout) => self.asked = Some((answer, since)),
            // It was dropped: the writer is going down, or could not hear it.
            Err(RecvTimeoutError::Disconnected) => {}
        }
    }
}

/// Takes over the depths of queues, and adds those that the writer reports itself.
fn queues(round: &mut HealthSnapshot, depths: QueueDepths) {
    let before = |name: &str| round.queues.iter().find(|(queue, _)| *queue == name).map_or(0, |(_, depth)| *depth);
    let mut queues: Vec<_> =
        depths.into_iter().map(|(name, depth)| (name, depth.unwrap_or_else(|| before(name)))).collect();
    let (lanes, orders) = round.vitals.as_ref().map_or((0, 0), |vitals| (vitals.lanes, vitals.orders));
    queues.extend([("lanes", lanes), ("orders", orders)]);
    round.queues = queues;
}

/// Sets the metrics that a round has measured.
fn export(round: &HealthSnapshot, meter: &Metrics) {
    let server = meter.house();
    round.queues.iter().for_each(|(queue, depth)| server.queue(queue, *depth));
    round.budgets.iter().for_each(|(budget, used, limit)| server.budget(budget, *used, *limit));
    round.volumes.iter().for_each(|(volume, free, mark)| server.volume(volume, *free, *mark));
    if let Some(disk) = &round.disk {
        server.disk(&disk.kinds, disk.at);
    }
    server.events(round.served, round.held);
    if let Some(vitals) = &round.vitals {
        server.purgatory(&PurgatoryCounts {
            kinds: vitals.kinds(),
            bytes: vitals.bytes,
            dormant: vitals.dormant,
            oldest: vitals.oldest,
            uploads: vitals.uploads,
        });
    }
}

/// Tells whoever reads the log what the disk has come to.
fn warn_of(standing: &Standing) {
    let Standing { used, budget, mark } = standing;
    match mark {
        DiskLevel::Free => info!(used, soft = budget.soft_bytes, "the disk budget has room again"),
        DiskLevel::Soft => {
            warn!(used, hard = budget.hard_bytes, "the disk budget is nearly used up: no new repositories are taken")
        }
        DiskLevel::Hard => {
            warn!(used, hard = budget.hard_bytes, "the disk budget is used up: nothing that grows is taken")
        }
    }
}

/// Whether a program is in one of the folders of a search path.
fn is_found(program: &str, path: Option<&std::ffi::OsStr>) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_program = |file: PathBuf| {
        std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    match path {
        Some(path) => std::env::split_paths(path).any(|folder| is_program(folder.join(program))),
        // Then the system has a path of its own.
        None => ["/usr/local/bin", "/usr/bin", "/bin"].iter().any(|folder| is_program(Path::new(folder).join(program))),
    }
}

/// How late the event loop is, told by a task that does nothing else.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<Beats>);

#[derive(Debug, Default)]
struct Beats {
    at_millis: AtomicU64,
    late_micros: AtomicU64,
}

impl Pulse {
    /// Starts the task, in the runtime of the caller.
    pub(crate) fn start(clock: Clock, meter: Metrics) -> Self {
        let pulse = Self::default();
        pulse.0.at_millis.store(clock.mono().0, Ordering::Relaxed);
        let beats = pulse.0.clone();
        tokio::spawn(async move {
            loop {
                let began = tokio::time::Instant::now();
                tokio::time::sleep(TICK).await;
                let late = began.elapsed().saturating_sub(TICK);
                meter.house().lag(late);
                beats.late_micros.store(u64::try_from(late.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
                beats.at_millis.store(clock.mono().0, Ordering::Relaxed);
            }
        });
        pulse
    }

    fn last(&self) -> (MonoTime, Duration) {
        let late = Duration::from_micros(self.0.late_micros.load(Ordering::Relaxed));
        (MonoTime(self.0.at_millis.load(Ordering::Relaxed)), late)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_where_the_system_does() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::TempDir::new().expect("a folder");
        let program = folder.path().join("git");
        assert!(!is_found("git", Some(folder.path().as_os_str())));
        std::fs::write(&program, "").expect("a file");
        assert!(!is_found("git", Some(folder.path().as_os_str())), "it cannot be run");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("permissions");
        assert!(is_found("git", Some(folder.path().as_os_str())));
    }
}

//! The watchman: a thread that goes round all rooms every second and writes down how they are. Measurements, health checks
//! and the status page are made of what it has seen, so that nobody who asks costs the rooms anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};
use grasp_core::disk_budget::Mark;
use grasp_core::limits;
use grasp_core::time::{Moment, Timestamp};
use grasp_store::{DiskUse as Space, Store};
use tokio::sync::watch;
use tracing::{info, warn};

use super::disk_budget::Standing;
pub(crate) use super::disk_usage::DiskUse;
use super::disk_usage::Measured;
use crate::clock::Clock;
use crate::git::fair_semaphore::Turns;
use crate::git::handlers::{FETCH_UNIT_BYTES, FETCH_UNITS, GitHouse};
use crate::http::connection_limit::Places;
use crate::metrics::Meter;
use crate::relay::broadcast::LiveDoor;
use crate::relay::negentropy_cache::LibraryDoor;
use crate::relay::query_pool::ReadersDoor;
use crate::reload::Settings;
use crate::writer::command::Note;
use crate::writer::queue::Line;
pub(crate) use crate::writer::stats::{Soonest, Vitals};

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
pub(crate) struct Round {
    /// When.
    pub(crate) at: Moment,
    /// The same for people.
    pub(crate) wall: Timestamp,
    /// What the writer said last, if it ever did.
    pub(crate) vitals: Option<Vitals>,
    /// When that was, and how long it took.
    pub(crate) writer: Option<(Moment, Duration)>,
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
    pub(crate) turned: (Moment, Duration),
    /// Memory of the process.
    pub(crate) resident: u64,
    /// Repositories that are open.
    pub(crate) repositories: usize,
}

/// What the watchman looks at.
pub(crate) struct Sights {
    pub(crate) line: Arc<Line>,
    pub(crate) live: LiveDoor,
    pub(crate) readers: ReadersDoor,
    pub(crate) library: LibraryDoor,
    pub(crate) store: Store,
    pub(crate) git: Arc<GitHouse>,
    /// Places for connections.
    pub(crate) places: Arc<Places>,
    pub(crate) settings: Settings,
    /// The folder of the events, and the free space that is kept there.
    pub(crate) events: (PathBuf, u64),
    pub(crate) measured: Measured,
    pub(crate) pulse: Pulse,
    pub(crate) clock: Clock,
    pub(crate) meter: Meter,
}

/// The watchman.
pub(crate) struct Watchman {
    sights: Sights,
    rounds: watch::Sender<Arc<Round>>,
    /// A question to the writer that is not answered yet, and when it was asked.
    asked: Option<(Receiver<Vitals>, Moment)>,
    last: Round,
    beats: u64,
}

impl Watchman {
    /// A watchman who has gone round once, and where its newest round is.
    pub(crate) fn new(sights: Sights) -> (Self, watch::Receiver<Arc<Round>>) {
        let (rounds, newest) = watch::channel(Arc::default());
        let mut watchman = Self { sights, rounds, asked: None, last: Round::default(), beats: 0 };
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
        let lengths = sights.line.lengths();
        queues(round, sights, lengths);
        round.budgets = budgets(sights);
        let (folder, mark) = &sights.events;
        let free = |folder: &Path| Space::of(folder).map_or(0, |space| space.free);
        round.volumes =
            vec![("events", free(folder), *mark), ("git", free(sights.git.layout.root()), sights.git.reserve_bytes)];
        round.disk = sights.measured.get();
        // As much as both rooms would still take; they may share a disk.
        let room = round.volumes.iter().map(|(_, free, mark)| free.saturating_sub(*mark)).min().unwrap_or_default();
        let before = round.budget.mark;
        let (allowance, answers) = {
            let settings = sights.settings.borrow();
            (settings.disk, settings.git.pack_cache_bytes)
        };
        let (kept, _) = sights.git.packs.load();
        round.budget = sights.git.budget.look(allowance, room, kept);
        sights.git.packs.allow(round.budget.room_for_answers(kept).min(answers));
        round.budgets.push(("disk_bytes", round.budget.used, round.budget.budget.hard));
        if round.budget.mark != before {
            warn_of(&round.budget);
            sights.line.post(Note::Space(round.budget.mark));
        }
        round.turned = sights.pulse.last();
        round.repositories = sights.git.directory.repositories();
        if self.beats.is_multiple_of(SLOW) {
            // What cannot be read now is as it was.
            round.served = sights.store.served().unwrap_or(round.served);
            round.held = sights.store.held().unwrap_or(round.held);
            round.git = is_found("git", std::env::var_os("PATH").as_deref());
            sights.meter.process().look(Path::new("/"), at.0 / 1_000, wall.0);
            round.resident = sights.meter.process().resident();
        }
        self.beats += 1;
        sights.meter.house().look(round);
        sights.meter.git().look(round.repositories);
        self.rounds.send_replace(Arc::new(round.clone()));
    }

    /// Asks the writer how it is. It is asked again only when it has answered.
    fn ask_writer(&mut self) {
        let (answer, since) = match self.asked.take() {
            Some(asked) => asked,
            None => {
                let (reply, answer) = crossbeam_channel::bounded(1);
                self.sights.line.post(Note::Pulse(reply));
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

fn queues(round: &mut Round, sights: &Sights, lengths: Option<[usize; 3]>) {
    let git = &sights.git;
    let before = |name: &str| round.queues.iter().find(|(queue, _)| *queue == name).map_or(0, |(_, depth)| *depth);
    // If the line is being moved at this moment it is looked at again in a second.
    let [clients, relays, notes] = lengths.unwrap_or_else(|| ["line_clients", "line_relays", "line_notes"].map(before));
    let (lanes, orders) = round.vitals.as_ref().map_or((0, 0), |vitals| (vitals.lanes, vitals.orders));
    let waiting = |turns: &Turns| turns.load().waiting;
    round.queues = vec![
        ("line_clients", clients),
        ("line_relays", relays),
        ("line_notes", notes),
        ("lanes", lanes),
        ("orders", orders),
        ("readers", sights.readers.len()),
        ("live", sights.live.len()),
        ("librarian", sights.library.len()),
        ("push_receive", waiting(&git.receiving)),
        ("push_check", waiting(&git.checking)),
        ("push_check_unsigned", waiting(&git.checking_unsigned)),
        ("fetch", waiting(&git.serving)),
        ("fetch_large", waiting(&git.serving_large)),
        ("pages", waiting(&git.viewing)),
    ];
}

fn budgets(sights: &Sights) -> Vec<(&'static str, u64, u64)> {
    let git = &sights.git;
    let (connections, most) = sights.places.load();
    let (pack_bytes, pack_most) = git.packs.load();
    let turns = |name, turns: &Turns| {
        let load = turns.load();
        (name, load.busy as u64, load.places as u64)
    };
    let bytes = |name, used: usize, most: usize| (name, used as u64, most as u64);
    let unused = git.fetch_bytes.available_permits();
    vec![
        bytes("connections", connections, most),
        bytes("filter_bytes", sights.live.filter_bytes(), limits::MAX_FILTER_BYTES_TOTAL),
        bytes("negentropy_bytes", sights.library.bytes(), limits::MAX_NEGENTROPY_BYTES),
        ("pack_cache_bytes", pack_bytes, pack_most),
        bytes("ref_bytes", git.directory.bytes(), crate::git::ref_cache::MAX_BYTES),
        bytes("fetch_request_bytes", (FETCH_UNITS - unused) * FETCH_UNIT_BYTES, FETCH_UNITS * FETCH_UNIT_BYTES),
        turns("push_receive", &git.receiving),
        turns("push_check", &git.checking),
        turns("push_check_unsigned", &git.checking_unsigned),
        turns("fetch", &git.serving),
        turns("fetch_large", &git.serving_large),
    ]
}

/// Tells whoever reads the log what the disk has come to.
fn warn_of(standing: &Standing) {
    let Standing { used, budget, mark } = standing;
    match mark {
        Mark::Free => info!(used, soft = budget.soft, "the disk budget has room again"),
        Mark::Soft => {
            warn!(used, hard = budget.hard, "the disk budget is nearly used up: no new repositories are taken")
        }
        Mark::Hard => warn!(used, hard = budget.hard, "the disk budget is used up: nothing that grows is taken"),
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
    pub(crate) fn start(clock: Clock, meter: Meter) -> Self {
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

    fn last(&self) -> (Moment, Duration) {
        let late = Duration::from_micros(self.0.late_micros.load(Ordering::Relaxed));
        (Moment(self.0.at_millis.load(Ordering::Relaxed)), late)
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

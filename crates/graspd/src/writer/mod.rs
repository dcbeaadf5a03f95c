//! The driver of the registrar: one thread, one transaction per batch, answers after the commit.

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

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitJobId;
use grasp_core::admission::io::{AdmissionInput, PushId};
use grasp_core::admission::moderation::ModerationScan;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::push::{PushPermit, PushRejection};
use grasp_core::disk_budget::DiskLevel;
use grasp_core::fetch::io::FetchId;
use grasp_core::nostr::SignedEvent;
use grasp_core::nostr::rejection::Rejection;
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::state_machine::StateMachine;
use grasp_core::time::Timestamp;
use grasp_git::layout::Layout;
use grasp_git::receive::Incoming;
use grasp_store::{Store, StoreError};
use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use super::writer::command::{FetchCommand, WriterCommand};
use super::writer::fetch_feed::{FetchFeed, FetchUpdate};
use super::writer::policy::CurrentPolicy;
use super::writer::queue::{EventQueue, Taken};
use super::writer::sync_feed::{SyncFeed, SyncUpdate};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::monitor::writer_stats::WriterStats;
use crate::repos::maintenance::MaintenanceHandle;
use crate::repos::ref_cache::RefCache;
use crate::repos::workers::GitWorkers;
use effects::Effects;

/// How long a commit that directly follows another waits for company.
const GATHER: Duration = Duration::from_millis(2);

/// A batch this large needs no company.
const LARGE_BATCH: usize = 256;

/// How long to wait before trying again what failed without anybody asking.
const RETRY: Duration = Duration::from_secs(1);

/// How long the doors stay shut at a start while repositories are brought into line that a crash left behind.
const REPAIR: Duration = Duration::from_secs(20);

/// Receives what becomes visible with a commit. Implemented by the relay's broadcast.
pub(crate) trait CommitListener: Send {
    /// New events can be read from the store.
    fn committed(&self);

    /// An ephemeral event was accepted. It is not in the store.
    fn pass(&self, event: Arc<SignedEvent>);
}

/// The registrar's hands.
pub(crate) struct Writer {
    pub(crate) store: Store,
    pub(crate) line: Arc<EventQueue>,
    pub(crate) live: Box<dyn CommitListener>,
    pub(crate) clock: Clock,
    pub(crate) rules: Arc<CurrentPolicy>,
    pub(crate) directory: Arc<RefCache>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) room: GitWorkers,
    pub(crate) maintenance: MaintenanceHandle,
    pub(crate) sync: Arc<SyncFeed>,
    pub(crate) hunt: Arc<FetchFeed>,
    pub(crate) meter: Metrics,
}

/// A push whose packs the desk has.
struct Arrived {
    packs: Vec<Incoming>,
    reply: oneshot::Sender<Result<(), PushRejection>>,
}

/// What the thread carries from batch to batch.
struct State {
    admission: Admission,
    /// When the next served event expires on its own account.
    next_expiry: Option<Timestamp>,
    /// Whether an author's shelves are still being emptied.
    purging: bool,
    /// The rules that the registrar was told and that are on disk. If others hold, it is told of them with the next batch.
    rules: Arc<AdmissionPolicy>,
    /// How many repositories they banned when they came.
    banned: usize,
    /// What is left to look up of what has no place here any more.
    sweep: ModerationScan,
    /// Nothing unasked is tried before this time, after it failed once.
    not_before: Option<Instant>,
    /// Whether the machine decided something that did not come to pass and has not been told the truth since.
    stale: bool,
    /// Whether the registrar has yet to hear that it knows everything.
    begins: bool,
    /// Who waits for a permit.
    asked: HashMap<PushId, oneshot::Sender<Result<PushPermit, PushRejection>>>,
    /// Whose packs wait for their turn.
    arrived: HashMap<PushId, Arrived>,
    /// What the hunt has brought and the registrar has yet to take over.
    hauls: HashMap<FetchId, Incoming>,
    /// Orders that the git room has, with the site that they are about.
    orders: HashMap<GitJobId, RepoPath>,
    /// How full the disk budget is.
    space: DiskLevel,
    /// What could not be heard because the store had no room, and must be heard before anything else.
    unheard: Vec<WriterCommand>,
}

impl State {
    /// Whether something is left to look up of what has no place here any more.
    fn sweeps(&self) -> bool {
        !self.sweep.is_done(&self.admission)
    }
}

impl Writer {
    /// Reads what the store has and repairs what a crash left behind; afterwards the doors may open.
    pub(crate) fn prepare(self) -> Result<ReadyWriter, StoreError> {
        let mut ready = ReadyWriter { state: self.boot(self.rules.rules())?, desk: self };
        ready.desk.tell_sync(&ready.state)?;
        ready.desk.tell_hunt(&ready.state)?;
        let repaired = Instant::now() + REPAIR;
        while ready.state.begins || !ready.state.admission.is_idle() || ready.state.sweeps() {
            let notes = if ready.has_work() { Vec::new() } else { ready.desk.line.take_notes(repaired) };
            ready.desk.turn(&mut ready.state, Taken { batch: Vec::new(), notes });
            if ready.state.begins {
                // Nothing could be written: the disk may be full, and will not be empty at once.
                std::thread::sleep(RETRY / 10);
            }
            if Instant::now() >= repaired {
                warn!("some repositories are still being brought into line");
                break;
            }
        }
        Ok(ready)
    }

    fn boot(&self, rules: Arc<AdmissionPolicy>) -> Result<State, StoreError> {
        let sweep = ModerationScan::new(&rules.lists);
        let mut admission = Admission::new(AdmissionPolicy::clone(&rules));
        let now = self.clock.now();
        let unreadable = self.store.restore(|restored| admission.handle(now, AdmissionInput::Restored(restored)))?;
        if unreadable > 0 {
            warn!(unreadable, "some announcements, states or held events could not be read back");
        }
        info!(
            repositories = admission.catalog().repositories().count(),
            held = admission.purgatory().len(),
            "read the store"
        );
        for (repo, _) in admission.catalog().repositories() {
            self.host(&admission, &repo);
        }
        let staged: BTreeSet<u64> = admission.uploads().map(|upload| upload.folder).collect();
        if let Err(problem) = self.layout.keep_staged(&staged) {
            warn!(%problem, "uploads that nobody waits for could not be removed");
        }
        // An interrupted removal goes on, and what expired meanwhile is noticed, with the first batch.
        Ok(State {
            admission,
            next_expiry: Some(Timestamp(0)),
            purging: true,
            rules,
            banned: 0,
            sweep,
            not_before: None,
            stale: false,
            begins: true,
            asked: HashMap::new(),
            arrived: HashMap::new(),
            hauls: HashMap::new(),
            orders: HashMap::new(),
            space: DiskLevel::Free,
            unheard: Vec::new(),
        })
    }

    /// Tells sync of everything that is followed. After a failure there is no need to: what it was told last is what is so.
    fn tell_sync(&self, state: &State) -> Result<(), StoreError> {
        let txn = self.store.begin()?;
        let names: BTreeSet<Identifier> =
            state.admission.catalog().repositories().map(|(repo, _)| repo.identifier).collect();
        let mut interest = BTreeMap::new();
        for name in names {
            let followed = lookups::followed(&state.admission, &txn, &name)?;
            if !followed.is_empty() {
                interest.insert(name, followed);
            }
        }
        self.sync.send(SyncUpdate { interest, ..SyncUpdate::default() }, self.store.last_seq());
        Ok(())
    }

    /// Tells the hunt of everything that is sought and served.
    fn tell_hunt(&self, state: &State) -> Result<(), StoreError> {
        if !self.rules.rules().fetches_git_data {
            return Ok(());
        }
        let txn = self.store.begin()?;
        let mut mail = FetchUpdate::default();
        for name in state.admission.purgatory().identifiers() {
            mail.sought.insert(name.clone(), lookups::quarries(&state.admission, &txn, name)?);
        }
        for (repo, _) in state.admission.catalog().repositories() {
            mail.kept.entry(repo.identifier).or_insert_with_key(|name| state.admission.served_repos(name));
        }
        self.hunt.send(mail);
        Ok(())
    }

    /// Shows the doors whether a repository is open.
    fn host(&self, admission: &Admission, repo: &RepoId) {
        self.directory.host(repo, admission.hosted_repo(repo).map(|hosted| (hosted.status, hosted.alternates)));
    }

    /// One turn: take what waits, decide and write inside one transaction, commit, speak.
    fn turn(&self, state: &mut State, taken: Taken) {
        let Taken { batch, notes } = taken;
        let mut settled = Effects::new(batch.len());
        settled.unheard = std::mem::take(&mut state.unheard);
        settled.unheard.extend(notes);
        if state.stale {
            self.forget(state, std::mem::take(&mut settled.unheard));
            // Reading everything back is too dear to be tried with every batch, and the new registrar would know nothing
            // of work that is under way.
            let too_early = state.not_before.is_some_and(|not_before| Instant::now() < not_before);
            if too_early || !state.orders.is_empty() {
                return self.refuse(batch, &Rejection::StoreFailed);
            }
        }
        let (began, events) = (Instant::now(), batch.len());
        let outcome = self
            .refresh(state)
            .and_then(|()| self.store.check_free_space())
            .and_then(|()| self.settle(state, &batch, &mut settled));
        match outcome {
            Ok(()) => {
                self.meter.house().committed(began.elapsed(), events, true);
                state.not_before = None;
                state.next_expiry = settled.next_expiry;
                state.purging = settled.purging;
                self.act(state, batch, settled);
            }
            Err(problem) if problem.is_fatal() => {
                error!(%problem, "the store is lost to this process; a new start will find all that was acknowledged");
                std::process::abort();
            }
            Err(problem) => {
                let refusal = if matches!(problem, StoreError::DiskFull { .. }) {
                    Rejection::DiskFull
                } else {
                    Rejection::StoreFailed
                };
                if !batch.is_empty() || state.not_before.is_none() {
                    warn!(%problem, events = batch.len(), "nothing of a batch was stored");
                }
                self.meter.house().committed(began.elapsed(), events, false);
                state.not_before = Some(Instant::now() + RETRY);
                let unheard = std::mem::take(&mut settled.unheard);
                if state.stale {
                    self.forget(state, unheard)
                } else {
                    self.put_off(state, unheard)
                }
                self.refuse(batch, &refusal);
            }
        }
    }

    /// The store has no room. The registrar has heard nothing of this: new pushes are turned away, what it must know is
    /// kept for it.
    fn put_off(&self, state: &mut State, notes: Vec<WriterCommand>) {
        for note in notes {
            match note {
                WriterCommand::Hunt(FetchCommand::Remember(..)) => {}
                WriterCommand::Ordered(..)
                | WriterCommand::Ended(_)
                | WriterCommand::Hunt(_)
                | WriterCommand::Rules(..)
                | WriterCommand::Space(_) => state.unheard.push(note),
                other => self.turn_away(other),
            }
        }
    }

    /// The registrar believes what did not come to pass and will be made anew: whatever waits for it is told so, and what
    /// the git room has done it will find out for itself.
    fn forget(&self, state: &mut State, notes: Vec<WriterCommand>) {
        for (_, reply) in state.asked.drain() {
            let _ = reply.send(Err(cannot_write()));
        }
        for note in notes {
            match note {
                WriterCommand::Ordered(order, _) => drop(state.orders.remove(&order.id)),
                // The new registrar is told.
                WriterCommand::Space(mark) => state.space = mark,
                other => self.turn_away(other),
            }
        }
        // An order that is under way may be moving their packs.
        if state.orders.is_empty() {
            for (_, arrived) in state.arrived.drain() {
                let _ = arrived.reply.send(Err(cannot_write()));
                self.room.drop_packs(arrived.packs);
            }
            self.room.drop_packs(state.hauls.drain().map(|(_, pack)| pack).collect());
        }
    }

    fn turn_away(&self, note: WriterCommand) {
        match note {
            WriterCommand::Ask(_, reply) => drop(reply.send(Err(cannot_write()))),
            WriterCommand::Arrived(arrived) => {
                let _ = arrived.reply.send(Err(cannot_write()));
                self.room.drop_packs(arrived.packs);
            }
            WriterCommand::Hunt(FetchCommand::Arrived(_, pack)) => self.room.drop_packs(vec![pack]),
            _ => {}
        }
    }

    /// After a failure: forgets the machine's memory of what did not happen and reads the store's.
    fn refresh(&self, state: &mut State) -> Result<(), StoreError> {
        if state.stale {
            let space = state.space;
            *state = State { space, ..self.boot(state.rules.clone())? };
            state.admission.handle(self.clock.now(), AdmissionInput::DiskLevel(space));
            self.directory.unpin_all();
            // What it was told of fetches is forgotten, and packs that were on their way are lost.
            self.tell_hunt(state)?;
        }
        Ok(())
    }
}

/// A desk whose registrar knows everything that the store has.
pub(crate) struct ReadyWriter {
    desk: Writer,
    state: State,
}

impl ReadyWriter {
    /// The writer's life: until the line is closed and empty.
    pub(crate) fn run(mut self) {
        let mut last_commit: Option<(Instant, usize)> = None;
        loop {
            let until = self.wake_at();
            let busy =
                last_commit.is_some_and(|(at, events)| at.elapsed() < GATHER && (2..LARGE_BATCH).contains(&events));
            let expecting = !self.state.orders.is_empty();
            let Some(taken) = self.desk.line.take(until, busy.then_some(GATHER), expecting) else { break };
            let (taken, pulses) = part(taken);
            let events = taken.batch.len();
            let due = until.is_some_and(|until| Instant::now() >= until) || !self.state.unheard.is_empty();
            if due || pulses.is_empty() || events > 0 || !taken.notes.is_empty() {
                self.desk.turn(&mut self.state, taken);
            }
            for reply in pulses {
                let _ = reply.send(self.vitals());
            }
            last_commit = Some((Instant::now(), events));
            if events > 0 {
                debug!(events, "a batch is done");
            }
        }
    }

    /// How the writer is.
    fn vitals(&self) -> WriterStats {
        let Self { desk, state } = self;
        let written = desk.store.check_free_space().and_then(|()| desk.store.begin().map(drop));
        let stuck = state.stale.then(|| "the last batch could not be stored".to_owned());
        WriterStats {
            problem: written.err().map(|problem| problem.to_string()).or(stuck),
            orders: state.orders.len(),
            ..WriterStats::of(&state.admission, desk.clock.mono())
        }
    }

    /// Whether there is something to do now although nobody asks.
    fn has_work(&self) -> bool {
        let now = self.desk.clock.mono();
        let due = self.state.admission.alarm().is_some_and(|(at, _)| at <= now) || self.state.sweeps();
        let failed = self.state.not_before.is_some_and(|not_before| Instant::now() < not_before);
        self.state.begins || (due && !failed)
    }

    /// When there is something to do although nobody asks.
    fn wake_at(&self) -> Option<Instant> {
        let now = self.desk.clock.now();
        let mono = self.state.admission.alarm().map(|(moment, _)| moment.since(now.mono));
        let wall = self.state.next_expiry.map(|at| Duration::from_secs(at.secs_since(now.wall)));
        let purge = (self.state.purging || self.state.sweeps()).then_some(Duration::ZERO);
        // A far expiry is looked at again in an hour: the wall clock may step.
        let wait = [mono, wall, purge].into_iter().flatten().min()?.min(Duration::from_secs(3_600));
        let due = Instant::now() + wait;
        Some(self.state.not_before.map_or(due, |not_before| due.max(not_before)))
    }
}

/// Who wants to know how the writer is, apart from everything else.
fn part(taken: Taken) -> (Taken, Vec<crossbeam_channel::Sender<WriterStats>>) {
    let Taken { batch, notes } = taken;
    let mut pulses = Vec::new();
    let notes = notes.into_iter().filter_map(|note| match note {
        WriterCommand::Pulse(reply) => {
            pulses.push(reply);
            None
        }
        other => Some(other),
    });
    let notes = notes.collect();
    (Taken { batch, notes }, pulses)
}

fn cannot_write() -> PushRejection {
    PushRejection::Failed("the store cannot write".to_owned())
}

#[cfg(test)]
mod tests;

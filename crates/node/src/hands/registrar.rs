//! The driver of the registrar: one thread, one transaction per batch, answers after the commit.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::machine::Machine;
use grasp_core::nostr::message;
use grasp_core::nostr::reason::{Refusal, Verdict};
use grasp_core::nostr::{EventId, Signed};
use grasp_core::registrar::Registrar;
use grasp_core::registrar::io::{Input, Output, PushId, Source, Submission, Ticket};
use grasp_core::registrar::order::{Order, OrderId, Outcome, Parcel};
use grasp_core::registrar::policy::Rules;
use grasp_core::registrar::push::{Permit, PushRefusal};
use grasp_core::repo::{RepoId, Site};
use grasp_core::time::{Now, Timestamp};
use grasp_git::crash;
use grasp_git::layout::Layout;
use grasp_git::receive::Incoming;
use grasp_git::refs::Refs;
use grasp_store::{Batch, Store, StoreError};
use tokio::sync::oneshot;
use tracing::{debug, error, info, warn};

use super::directory::Directory;
use super::facts;
use super::git_room::GitRoom;
use super::line::{Checked, Line, Rejected, Taken};
use super::live::LiveDoor;
use super::mail::Letter;
use super::maintenance::MaintenanceDoor;
use super::notes::{Needed, Note, SiteView};
use crate::clock::Clock;

/// How long a commit that directly follows another waits for company.
const GATHER: Duration = Duration::from_millis(2);

/// A batch this large needs no company.
const LARGE_BATCH: usize = 256;

/// How long to wait before trying again what failed without anybody asking.
const RETRY: Duration = Duration::from_secs(1);

/// How long the doors stay shut at a start while repositories are brought into line that a crash left behind.
const REPAIR: Duration = Duration::from_secs(20);

/// The registrar's hands.
pub(crate) struct Desk {
    pub(crate) store: Store,
    pub(crate) line: Arc<Line>,
    pub(crate) live: LiveDoor,
    pub(crate) clock: Clock,
    pub(crate) rules: Rules,
    pub(crate) directory: Arc<Directory>,
    pub(crate) layout: Arc<Layout>,
    pub(crate) room: GitRoom,
    pub(crate) maintenance: MaintenanceDoor,
}

/// A push whose packs the desk has.
struct Arrived {
    packs: Vec<Incoming>,
    reply: oneshot::Sender<Result<(), PushRefusal>>,
}

/// What the thread carries from batch to batch.
struct State {
    registrar: Registrar,
    /// When the next served event expires on its own account.
    next_expiry: Option<Timestamp>,
    /// Whether an author's shelves are still being emptied.
    purging: bool,
    /// Nothing unasked is tried before this time, after it failed once.
    not_before: Option<Instant>,
    /// Whether the machine decided something that did not come to pass and has not been told the truth since.
    stale: bool,
    /// Whether the registrar has yet to hear that it knows everything.
    begins: bool,
    /// Who waits for a permit.
    asked: HashMap<PushId, oneshot::Sender<Result<Permit, PushRefusal>>>,
    /// Whose packs wait for their turn.
    arrived: HashMap<PushId, Arrived>,
    /// Orders that the git room has, with the site that they are about.
    orders: HashMap<OrderId, Site>,
    /// What could not be heard because the store had no room, and must be heard before anything else.
    unheard: Vec<Note>,
}

impl Desk {
    /// Reads what the store has and repairs what a crash left behind; afterwards the doors may open.
    pub(crate) fn prepare(self) -> Result<ReadyDesk, StoreError> {
        let mut ready = ReadyDesk { state: self.boot()?, desk: self };
        let repaired = Instant::now() + REPAIR;
        while ready.state.begins || !ready.state.registrar.is_idle() {
            let notes = if ready.state.begins { Vec::new() } else { ready.desk.line.take_notes(repaired) };
            ready.desk.turn(&mut ready.state, Taken { batch: Vec::new(), notes });
            if Instant::now() >= repaired {
                warn!("some repositories are still being brought into line");
                break;
            }
        }
        Ok(ready)
    }

    fn boot(&self) -> Result<State, StoreError> {
        let mut registrar = Registrar::new(self.rules.clone());
        let now = self.clock.now();
        let unreadable = self.store.restore(|restored| registrar.handle(now, Input::Restored(restored)))?;
        if unreadable > 0 {
            warn!(unreadable, "some announcements, states or held events could not be read back");
        }
        info!(
            repositories = registrar.catalog().repositories().count(),
            held = registrar.purgatory().len(),
            "read the store"
        );
        for (repo, _) in registrar.catalog().repositories() {
            self.host(&registrar, &repo);
        }
        let staged: BTreeSet<u64> = registrar.uploads().map(|upload| upload.parcel).collect();
        if let Err(problem) = self.layout.keep_staged(&staged) {
            warn!(%problem, "uploads that nobody waits for could not be removed");
        }
        // An interrupted removal goes on, and what expired meanwhile is noticed, with the first batch.
        Ok(State {
            registrar,
            next_expiry: Some(Timestamp(0)),
            purging: true,
            not_before: None,
            stale: false,
            begins: true,
            asked: HashMap::new(),
            arrived: HashMap::new(),
            orders: HashMap::new(),
            unheard: Vec::new(),
        })
    }

    /// Shows the doors whether a repository is open.
    fn host(&self, registrar: &Registrar, repo: &RepoId) {
        self.directory.host(repo, registrar.hosted(repo).map(|hosted| (hosted.place, hosted.lenders)));
    }

    /// One turn: take what waits, decide and write inside one transaction, commit, speak.
    fn turn(&self, state: &mut State, taken: Taken) {
        let Taken { batch, notes } = taken;
        let mut settled = Settled::new(batch.len());
        settled.unheard = std::mem::take(&mut state.unheard);
        settled.unheard.extend(notes);
        if state.stale {
            self.forget(state, std::mem::take(&mut settled.unheard));
            // Reading everything back is too dear to be tried with every batch, and the new registrar would know nothing
            // of work that is under way.
            let too_early = state.not_before.is_some_and(|not_before| Instant::now() < not_before);
            if too_early || !state.orders.is_empty() {
                return refuse(batch, &Refusal::StoreFailed);
            }
        }
        let outcome = self
            .refresh(state)
            .and_then(|()| self.store.check_room())
            .and_then(|()| self.settle(state, &batch, &mut settled));
        match outcome {
            Ok(()) => {
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
                    Refusal::DiskFull
                } else {
                    Refusal::StoreFailed
                };
                if !batch.is_empty() || state.not_before.is_none() {
                    warn!(%problem, events = batch.len(), "nothing of a batch was stored");
                }
                state.not_before = Some(Instant::now() + RETRY);
                let unheard = std::mem::take(&mut settled.unheard);
                if state.stale {
                    self.forget(state, unheard)
                } else {
                    self.put_off(state, unheard)
                }
                refuse(batch, &refusal);
            }
        }
    }

    /// The store has no room. The registrar has heard nothing of this: new pushes are turned away, what it must know is
    /// kept for it.
    fn put_off(&self, state: &mut State, notes: Vec<Note>) {
        for note in notes {
            match note {
                Note::Ordered(..) | Note::Ended(_) => state.unheard.push(note),
                other => self.turn_away(other),
            }
        }
    }

    /// The registrar believes what did not come to pass and will be made anew: whatever waits for it is told so, and what
    /// the git room has done it will find out for itself.
    fn forget(&self, state: &mut State, notes: Vec<Note>) {
        for (_, reply) in state.asked.drain() {
            let _ = reply.send(Err(cannot_write()));
        }
        for note in notes {
            match note {
                Note::Ordered(order, _) => drop(state.orders.remove(&order.id)),
                other => self.turn_away(other),
            }
        }
        // An order that is under way may be moving their packs.
        if state.orders.is_empty() {
            for (_, arrived) in state.arrived.drain() {
                let _ = arrived.reply.send(Err(cannot_write()));
                self.room.drop_packs(arrived.packs);
            }
        }
    }

    fn turn_away(&self, note: Note) {
        match note {
            Note::Ask(_, reply) => drop(reply.send(Err(cannot_write()))),
            Note::Arrived(arrived) => {
                let _ = arrived.reply.send(Err(cannot_write()));
                self.room.drop_packs(arrived.packs);
            }
            _ => {}
        }
    }

    /// After a failure: forgets the machine's memory of what did not happen and reads the store's.
    fn refresh(&self, state: &mut State) -> Result<(), StoreError> {
        if state.stale {
            *state = self.boot()?;
            self.directory.unpin_all();
        }
        Ok(())
    }

    fn settle(&self, state: &mut State, batch: &[Checked], settled: &mut Settled) -> Result<(), StoreError> {
        let now = self.clock.now();
        let mut txn = self.store.begin()?;
        state.stale = true;
        let mut hearing = Hearing { desk: self, registrar: &mut state.registrar, txn: &mut txn, now, settled };
        if std::mem::take(&mut state.begins) {
            hearing.tell(Input::Ready)?;
        }
        hearing.registrar.wake(now);
        hearing.drain()?;
        for summary in hearing.txn.expired(now.wall, limits::REMOVAL_SLICE)? {
            hearing.tell(Input::Expired(summary))?;
        }
        // One at a time, so that those behind one that fails are not lost.
        hearing.settled.unheard.reverse();
        while let Some(note) = hearing.settled.unheard.pop() {
            let input = match note {
                Note::Ask(push, reply) => {
                    state.asked.insert(push.id, reply);
                    Input::PushAsked(push)
                }
                Note::Arrived(arrived) => {
                    let super::notes::Arrived { arrival, packs, reply } = *arrived;
                    state.arrived.insert(arrival.push.id, Arrived { packs, reply });
                    Input::PushArrived(arrival)
                }
                Note::Ended(push) => Input::PushEnded(push),
                Note::Ordered(order, carried) => {
                    state.orders.remove(&order.id);
                    let exists = carried.outcome != Outcome::Retired;
                    let refs = carried.refs.into_iter();
                    hearing.settled.refs.extend(refs.map(|(site, refs)| {
                        let exists = exists || site != order.site;
                        (site, refs, exists)
                    }));
                    hearing.settled.unpinned.push(order.site);
                    Input::Ordered(order.id, carried.outcome)
                }
                Note::View(site, reply) => {
                    let view = facts::view(hearing.registrar, hearing.txn, now, &site)?;
                    hearing.settled.views.push((reply, view));
                    continue;
                }
                Note::Needs(sites, reply) => {
                    let needed = facts::needed(hearing.registrar, hearing.txn, &sites)?;
                    hearing.settled.needed.push((reply, needed));
                    continue;
                }
            };
            hearing.tell(input)?;
        }
        for (nth, checked) in batch.iter().enumerate() {
            let Ok(event) = &checked.result else { continue };
            let facts = hearing.txn.facts(event, hearing.registrar.rules().questions(event))?;
            hearing.tell(Input::Submitted(Submission {
                ticket: Ticket(nth as u64),
                event: event.clone(),
                source: Source::Client(checked.keys.to_vec()),
                facts,
            }))?;
        }
        hearing.settled.purging = hearing.txn.purge()?;
        for summary in hearing.txn.take_removed_pulls() {
            hearing.tell(Input::Purged(summary))?;
        }
        settled.next_expiry = txn.next_expiry()?;
        crash::point("desk.commit");
        txn.commit()?;
        crash::point("desk.committed");
        state.stale = false;
        Ok(())
    }

    /// After the commit: show, answer, ring the live bell, order.
    fn act(&self, state: &mut State, batch: Vec<Checked>, settled: Settled) {
        for repo in &settled.hosting {
            self.host(&state.registrar, repo);
        }
        for (site, refs, exists) in settled.refs {
            self.directory.publish(&site, refs, exists);
        }
        for site in &settled.unpinned {
            self.directory.unpin(site);
            self.maintenance.worked_on(site);
        }
        self.live.ring();
        for event in settled.passed {
            self.live.pass(event);
        }
        crash::point("desk.shown");
        for (checked, verdict) in batch.into_iter().zip(settled.verdicts) {
            checked.from.send(match (checked.result, verdict) {
                (Ok(event), Some(verdict)) => answer(event.id, &verdict),
                (Ok(event), None) => answer(event.id, &Verdict::Refuse(Refusal::StoreFailed)),
                (Err(rejected), _) => rejected.answer(),
            });
        }
        // Whoever asked may have gone; then nobody hears the answer.
        for (push, result) in settled.permits {
            let _ = state.asked.remove(&push).map(|reply| reply.send(result));
        }
        for (push, result) in settled.done {
            if let Some(arrived) = state.arrived.remove(&push) {
                let _ = arrived.reply.send(result);
                self.room.drop_packs(arrived.packs);
            }
        }
        for (reply, needed) in settled.needed {
            let _ = reply.send(needed);
        }
        for (reply, view) in settled.views {
            let _ = reply.send(view);
        }
        crash::point("desk.answered");
        for order in settled.orders {
            if let Err(problem) = self.directory.pin(&order.site) {
                warn!(site = %order.site, %problem, "cannot read the refs of a repository");
            }
            // Going down: what is to be done is written down and will be done after the next start.
            if self.line.is_closed() {
                continue;
            }
            state.orders.insert(order.id, order.site.clone());
            self.room.carry_out(order);
        }
        self.room.discard(settled.discards);
    }
}

fn cannot_write() -> PushRefusal {
    PushRefusal::Failed("the store cannot write".to_owned())
}

/// A transaction in which the registrar is told facts and heard out.
struct Hearing<'h, 's> {
    desk: &'h Desk,
    registrar: &'h mut Registrar,
    txn: &'h mut Batch<'s>,
    now: Now,
    settled: &'h mut Settled,
}

impl Hearing<'_, '_> {
    fn tell(&mut self, input: Input) -> Result<(), StoreError> {
        self.registrar.handle(self.now, input);
        self.drain()
    }

    fn drain(&mut self) -> Result<(), StoreError> {
        while let Some(output) = self.registrar.poll() {
            let settled = &mut *self.settled;
            match output {
                Output::Write(write) => self.txn.write(&write)?,
                Output::Reply(Ticket(nth), verdict) => {
                    if let Some(slot) = settled.verdicts.get_mut(nth as usize) {
                        *slot = Some(verdict);
                    }
                }
                Output::Pass(event) => settled.passed.push(event),
                Output::Ask(question) => {
                    let known = settled.refs.iter().rev().find(|(site, _, _)| *site == question.site);
                    let known = known.map(|(_, refs, exists)| (refs, *exists));
                    let rules = self.registrar.rules();
                    let told = facts::told(rules, self.txn, &self.desk.directory, &question, known)?;
                    self.registrar.handle(self.now, Input::Told(told));
                }
                Output::Permit(push, result) => settled.permits.push((push, result)),
                Output::PushDone(push, result) => settled.done.push((push, result)),
                Output::Order(order) => settled.orders.push(order),
                Output::Discard(parcel) => settled.discards.push(parcel),
                Output::Hosting(repo) => drop(settled.hosting.insert(repo)),
                // The rooms that hear these (sync, hunt) do not exist yet.
                Output::Interest(_) | Output::Quarry(_) => {}
            }
        }
        Ok(())
    }
}

/// A desk whose registrar knows everything that the store has.
pub(crate) struct ReadyDesk {
    desk: Desk,
    state: State,
}

impl ReadyDesk {
    /// The writer's life: until the line is closed and empty.
    pub(crate) fn run(mut self) {
        let mut last_commit: Option<(Instant, usize)> = None;
        loop {
            let until = self.wake_at();
            let busy =
                last_commit.is_some_and(|(at, events)| at.elapsed() < GATHER && (2..LARGE_BATCH).contains(&events));
            let expecting = !self.state.orders.is_empty();
            let Some(taken) = self.desk.line.take(until, busy.then_some(GATHER), expecting) else { break };
            let events = taken.batch.len();
            self.desk.turn(&mut self.state, taken);
            last_commit = Some((Instant::now(), events));
            if events > 0 {
                debug!(events, "a batch is done");
            }
        }
    }

    /// When there is something to do although nobody asks.
    fn wake_at(&self) -> Option<Instant> {
        let now = self.desk.clock.now();
        let mono = self.state.registrar.alarm().map(|(moment, _)| moment.since(now.mono));
        let wall = self.state.next_expiry.map(|at| Duration::from_secs(at.secs_since(now.wall)));
        let purge = self.state.purging.then_some(Duration::ZERO);
        // A far expiry is looked at again in an hour: the wall clock may step.
        let wait = [mono, wall, purge].into_iter().flatten().min()?.min(Duration::from_secs(3_600));
        let due = Instant::now() + wait;
        Some(self.state.not_before.map_or(due, |not_before| due.max(not_before)))
    }
}

/// What a batch leads to once it is on disk.
struct Settled {
    verdicts: Vec<Option<Verdict>>,
    passed: Vec<Arc<Signed>>,
    next_expiry: Option<Timestamp>,
    purging: bool,
    /// Notes that were not heard because something failed before.
    unheard: Vec<Note>,
    permits: Vec<(PushId, Result<Permit, PushRefusal>)>,
    done: Vec<(PushId, Result<(), PushRefusal>)>,
    orders: Vec<Order>,
    discards: Vec<Parcel>,
    hosting: BTreeSet<RepoId>,
    /// Refs that have changed on disk and may be seen after the commit.
    refs: Vec<(Site, Refs, bool)>,
    unpinned: Vec<Site>,
    views: Vec<(oneshot::Sender<SiteView>, SiteView)>,
    needed: Vec<(crossbeam_channel::Sender<Option<Needed>>, Option<Needed>)>,
}

impl Settled {
    fn new(events: usize) -> Self {
        Self {
            verdicts: vec![None; events],
            passed: Vec::new(),
            next_expiry: None,
            purging: false,
            unheard: Vec::new(),
            permits: Vec::new(),
            done: Vec::new(),
            orders: Vec::new(),
            discards: Vec::new(),
            hosting: BTreeSet::new(),
            refs: Vec::new(),
            unpinned: Vec::new(),
            views: Vec::new(),
            needed: Vec::new(),
        }
    }
}

/// Answers a batch of which nothing was stored. What was no event stays none.
fn refuse(batch: Vec<Checked>, why: &Refusal) {
    for checked in batch {
        checked.from.send(match checked.result {
            Ok(event) => answer(event.id, &Verdict::Refuse(why.clone())),
            Err(rejected) => rejected.answer(),
        });
    }
}

impl Rejected {
    fn answer(self) -> Letter {
        match self.id {
            Some(id) => answer(id, &Verdict::Refuse(self.why)),
            None => Letter::Answer { text: message::notice(&self.why.to_string()), challenge: false },
        }
    }
}

fn answer(id: EventId, verdict: &Verdict) -> Letter {
    let (accepted, text) = verdict.answer();
    let challenge = *verdict == Verdict::Refuse(Refusal::Protected);
    Letter::Answer { text: message::ok(id, accepted, &text), challenge }
}

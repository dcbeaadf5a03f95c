//! The driver of the registrar: one thread, one transaction per batch, answers after the commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::machine::Machine;
use grasp_core::nostr::message;
use grasp_core::nostr::reason::{Refusal, Verdict};
use grasp_core::nostr::{EventId, Signed};
use grasp_core::registrar::Registrar;
use grasp_core::registrar::io::{Input, Output, Source, Submission, Ticket};
use grasp_core::registrar::policy::Rules;
use grasp_core::time::Timestamp;
use grasp_store::{Batch, Store, StoreError};
use tracing::{debug, error, info, warn};

use super::line::{Checked, Line, Rejected};
use super::live::LiveDoor;
use super::mail::Letter;
use crate::clock::Clock;

/// How long a commit that directly follows another waits for company.
const GATHER: Duration = Duration::from_millis(2);

/// A batch this large needs no company.
const LARGE_BATCH: usize = 256;

/// How long to wait before trying again what failed without anybody asking.
const RETRY: Duration = Duration::from_secs(1);

/// The registrar's hands.
pub(crate) struct Desk {
    pub(crate) store: Store,
    pub(crate) line: Arc<Line>,
    pub(crate) live: LiveDoor,
    pub(crate) clock: Clock,
    pub(crate) rules: Rules,
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
}

impl Desk {
    /// Reads what the store has; afterwards the doors may open.
    pub(crate) fn prepare(self) -> Result<ReadyDesk, StoreError> {
        let state = self.boot()?;
        Ok(ReadyDesk { desk: self, state })
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
        // An interrupted removal goes on, and what expired meanwhile is noticed, with the first batch.
        Ok(State { registrar, next_expiry: Some(Timestamp(0)), purging: true, not_before: None, stale: false })
    }

    /// One turn: take what waits, decide and write inside one transaction, commit, speak.
    fn turn(&self, state: &mut State, batch: Vec<Checked>) {
        // Reading everything back is too dear to be tried with every batch.
        if state.stale && state.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return refuse(batch, &Refusal::StoreFailed);
        }
        let outcome =
            self.refresh(state).and_then(|()| self.store.check_room()).and_then(|()| self.settle(state, &batch));
        match outcome {
            Ok(settled) => {
                state.not_before = None;
                state.next_expiry = settled.next_expiry;
                state.purging = settled.purging;
                self.act(batch, settled);
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
                refuse(batch, &refusal);
            }
        }
    }

    /// After a failure: forgets the machine's memory of what did not happen and reads the store's.
    fn refresh(&self, state: &mut State) -> Result<(), StoreError> {
        if state.stale {
            *state = self.boot()?;
        }
        Ok(())
    }

    fn settle(&self, state: &mut State, batch: &[Checked]) -> Result<Settled, StoreError> {
        let now = self.clock.now();
        let mut settled =
            Settled { verdicts: vec![None; batch.len()], passed: Vec::new(), next_expiry: None, purging: false };
        let mut txn = self.store.begin()?;
        state.stale = true;
        let registrar = &mut state.registrar;
        registrar.wake(now);
        drain(registrar, &mut txn, &mut settled)?;
        for summary in txn.expired(now.wall, limits::REMOVAL_SLICE)? {
            registrar.handle(now, Input::Expired(summary));
            drain(registrar, &mut txn, &mut settled)?;
        }
        for (nth, checked) in batch.iter().enumerate() {
            let Ok(event) = &checked.result else { continue };
            let facts = txn.facts(event, registrar.rules().questions(event))?;
            let submission = Submission {
                ticket: Ticket(nth as u64),
                event: event.clone(),
                source: Source::Client(checked.keys.to_vec()),
                facts,
            };
            registrar.handle(now, Input::Submitted(submission));
            drain(registrar, &mut txn, &mut settled)?;
        }
        settled.purging = txn.purge()?;
        settled.next_expiry = txn.next_expiry()?;
        txn.commit()?;
        state.stale = false;
        Ok(settled)
    }

    /// After the commit: answer, ring the live bell.
    fn act(&self, batch: Vec<Checked>, settled: Settled) {
        self.live.ring();
        for event in settled.passed {
            self.live.pass(event);
        }
        for (checked, verdict) in batch.into_iter().zip(settled.verdicts) {
            checked.from.send(match (checked.result, verdict) {
                (Ok(event), Some(verdict)) => answer(event.id, &verdict),
                (Ok(event), None) => answer(event.id, &Verdict::Refuse(Refusal::StoreFailed)),
                (Err(rejected), _) => rejected.answer(),
            });
        }
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
            let Some(batch) = self.desk.line.take(until, busy.then_some(GATHER)) else { break };
            let events = batch.len();
            self.desk.turn(&mut self.state, batch);
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
}

fn drain(registrar: &mut Registrar, txn: &mut Batch<'_>, settled: &mut Settled) -> Result<(), StoreError> {
    while let Some(output) = registrar.poll() {
        match output {
            Output::Write(write) => txn.write(&write)?,
            Output::Reply(Ticket(nth), verdict) => {
                if let Some(slot) = settled.verdicts.get_mut(nth as usize) {
                    *slot = Some(verdict);
                }
            }
            Output::Pass(event) => settled.passed.push(event),
            // The rooms that hear these (git, sync, hunt) do not exist yet: what is held waits and expires.
            Output::Look(_) | Output::Interest(_) | Output::Quarry(_) => {}
        }
    }
    Ok(())
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

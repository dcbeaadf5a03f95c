//! The line in which offered events wait: checked by many, let through in the order in which they came.
//!
//! Signatures are checked by a pool, but the registrar meets events in order of arrival: a client may send an issue and a
//! comment on it in one breath. So there is one queue; workers take what nobody has taken yet and put the result back in
//! its place, and the writer takes finished ones from the front.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::nostr::reason::Refusal;
use grasp_core::nostr::{Event, EventId, PublicKey, Signed, Verifier};
use grasp_core::registrar::policy::Rules;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::mail::Postbox;
use super::notes::Note;
use crate::clock::Clock;

/// Units of the line's budget: every event takes at least eight, and one for each kilobyte beyond, so that neither many
/// small nor few large ones fill the memory.
const UNIT_BYTES: usize = 1_024;
const UNITS_EACH: usize = 8;

/// How many events a worker takes at a time: few, so that both cores share a small burst.
const CLAIM: usize = 8;

/// An event that somebody offers.
pub(crate) struct Offer {
    /// The event's text as it was sent.
    pub(crate) text: String,
    /// Who waits for the answer.
    pub(crate) from: Postbox,
    /// Keys that the connection has shown to hold.
    pub(crate) keys: Arc<[PublicKey]>,
    /// The place in the line, given back with the answer.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// An offer whose text has been read and whose signature has been checked.
pub(crate) struct Checked {
    pub(crate) from: Postbox,
    pub(crate) keys: Arc<[PublicKey]>,
    pub(crate) result: Result<Arc<Signed>, Rejected>,
    pub(crate) bytes: usize,
    _permit: OwnedSemaphorePermit,
}

/// An offer that need not be judged.
pub(crate) struct Rejected {
    /// The id, if the text claims one.
    pub(crate) id: Option<EventId>,
    pub(crate) why: Refusal,
}

enum Slot {
    Waiting(Offer),
    Taken,
    Done(Checked),
}

#[derive(Default)]
struct Queue {
    slots: VecDeque<Slot>,
    /// How many have left at the front, so that a taken slot is found again.
    left: u64,
    /// The first slot that may be waiting, counted like `left`.
    unclaimed: u64,
    /// What others than clients have to say. It does not wait for signatures.
    notes: Vec<Note>,
    /// No more offers come; workers end when nothing is left to check.
    closed: bool,
}

/// What the writer takes at a time.
pub(crate) struct Taken {
    pub(crate) batch: Vec<Checked>,
    pub(crate) notes: Vec<Note>,
}

/// The line. Its lock guards the queue alone and is held for moves, never for work.
pub(crate) struct Line {
    queue: Mutex<Queue>,
    work: Condvar,
    ready: Condvar,
    budget: Arc<Semaphore>,
}

impl Line {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
            budget: Arc::new(Semaphore::new(limits::MAX_IN_LINE * UNITS_EACH)),
        })
    }

    /// Waits for a place for a text of this size. `None` when the server is going down.
    pub(crate) async fn place(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = (bytes / UNIT_BYTES).clamp(UNITS_EACH, limits::MAX_MESSAGE_BYTES / UNIT_BYTES);
        self.budget.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }

    /// Joins the line.
    pub(crate) fn join(&self, offer: Offer) {
        let mut queue = self.lock();
        if !queue.closed {
            queue.slots.push_back(Slot::Waiting(offer));
            self.work.notify_one();
        }
    }

    /// Tells the writer something. Whoever does so waits for an answer or has a place elsewhere, which bounds them.
    pub(crate) fn post(&self, note: Note) {
        self.lock().notes.push(note);
        self.ready.notify_one();
    }

    /// Takes no more offers and lets workers and writer finish what is there.
    pub(crate) fn close(&self) {
        self.budget.close();
        self.lock().closed = true;
        self.work.notify_all();
        self.ready.notify_all();
    }

    /// A worker's life: until the line is closed and empty.
    pub(crate) fn check(&self, rules: &Rules, clock: Clock) {
        let mut verifier = Verifier::default();
        let mut claimed = Vec::with_capacity(CLAIM);
        while self.claim(&mut claimed) {
            let checked: Vec<(u64, Checked)> =
                claimed.drain(..).map(|(place, offer)| (place, offer.check(&mut verifier, rules, clock))).collect();
            let mut queue = self.lock();
            let left = queue.left;
            for (place, done) in checked {
                queue.slots[(place - left) as usize] = Slot::Done(done);
            }
            if matches!(queue.slots.front(), Some(Slot::Done(_))) {
                self.ready.notify_one();
            }
        }
    }

    fn claim(&self, claimed: &mut Vec<(u64, Offer)>) -> bool {
        let mut queue = self.lock();
        loop {
            let from = (queue.unclaimed - queue.left) as usize;
            let end = queue.slots.len().min(from + CLAIM);
            for place in from..end {
                if let Slot::Waiting(offer) = std::mem::replace(&mut queue.slots[place], Slot::Taken) {
                    claimed.push((queue.left + place as u64, offer));
                }
            }
            queue.unclaimed = queue.left + end as u64;
            if !claimed.is_empty() {
                return true;
            }
            if queue.closed {
                return false;
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the writer what is finished at the front, and all notes: at once if there is something, else when something
    /// is or when `until` has come. `gather` is how long to wait for more than a little. `None` when the line is closed and
    /// empty and the writer expects no more notes.
    pub(crate) fn take(&self, until: Option<Instant>, gather: Option<Duration>, expecting: bool) -> Option<Taken> {
        let mut queue = self.lock();
        while queue.notes.is_empty() && !matches!(queue.slots.front(), Some(Slot::Done(_))) {
            if queue.closed && queue.slots.is_empty() && !expecting {
                return None;
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Some(Taken { batch: Vec::new(), notes: Vec::new() }),
                Some(left) => queue = self.ready.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0,
                None => queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
        if let Some(gather) = gather.filter(|_| !queue.closed && queue.notes.is_empty()) {
            drop(queue);
            // Commits follow each other back to back: a moment's patience makes them larger and the whole cheaper.
            std::thread::sleep(gather);
            queue = self.lock();
        }
        let notes = std::mem::take(&mut queue.notes);
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < limits::MAX_BATCH_EVENTS && bytes < limits::MAX_BATCH_BYTES {
            match queue.slots.pop_front() {
                Some(Slot::Done(checked)) => {
                    queue.left += 1;
                    bytes += checked.bytes;
                    batch.push(checked);
                }
                Some(unfinished) => {
                    queue.slots.push_front(unfinished);
                    break;
                }
                None => break,
            }
        }
        Some(Taken { batch, notes })
    }

    /// Whether no more offers are taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Gives the writer notes alone, when there are some or when the time is over.
    pub(crate) fn take_notes(&self, until: Instant) -> Vec<Note> {
        let mut queue = self.lock();
        while queue.notes.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.ready.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut queue.notes)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A thread that panicked while it moved a slot left the queue as it was.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offer {
    fn check(self, verifier: &mut Verifier, rules: &Rules, clock: Clock) -> Checked {
        let bytes = self.text.len();
        let result = read(&self.text, verifier, rules, clock);
        Checked { from: self.from, keys: self.keys, result, bytes, _permit: self.permit }
    }
}

fn read(text: &str, verifier: &mut Verifier, rules: &Rules, clock: Clock) -> Result<Arc<Signed>, Rejected> {
    let event =
        Event::parse(text).map_err(|why| Rejected { id: Event::claimed_id(text), why: Refusal::Malformed(why) })?;
    let id = Some(event.id);
    if let Some(why) = rules.precheck(&event, text.len(), clock.wall()) {
        return Err(Rejected { id, why });
    }
    verifier.check(event).map(Arc::new).map_err(|why| Rejected { id, why: Refusal::Forged(why) })
}

//! The line in which offered events wait: checked by many, let through in the order in which they came.
//!
//! Signatures are checked by a pool, but the registrar meets events in order of arrival: a client may send an issue and a
//! comment on it in one breath. So there is one queue; workers take what nobody has taken yet and put the result back in
//! its place, and the writer takes finished ones from the front.
//!
//! What sync brings waits in a queue of its own, behind clients: it is checked when no client's offer is left to check,
//! and has at most half of a batch while clients' offers are ready.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::nostr::Verifier;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::command::WriterCommand;
use super::policy::CurrentPolicy;
use super::submission::{CheckedEvent, QueuedEvent};
use crate::clock::Clock;

/// Units of the line's budget: every event takes at least eight, and one for each kilobyte beyond, so that neither many
/// small nor few large ones fill the memory.
const UNIT_BYTES: usize = 1_024;
const UNITS_EACH: usize = 8;

/// How many events a worker takes at a time: few, so that both cores share a small burst.
const CLAIM: usize = 8;

/// How long notes that nobody waits for may wait for company, so that they never cause more than one commit in this time.
const PATIENCE: Duration = Duration::from_secs(1);

enum Slot {
    Waiting(QueuedEvent),
    Taken,
    Done(CheckedEvent),
}

/// Offers in order of arrival.
#[derive(Default)]
struct Inbox {
    slots: VecDeque<Slot>,
    /// How many have left at the front, so that a taken slot is found again.
    left: u64,
    /// The first slot that may be waiting, counted like `left`.
    unclaimed: u64,
}

impl Inbox {
    /// Takes a few offers that nobody has taken, with their places.
    fn claim(&mut self) -> Vec<(u64, QueuedEvent)> {
        let from = (self.unclaimed - self.left) as usize;
        let end = self.slots.len().min(from + CLAIM);
        let mut claimed = Vec::with_capacity(end - from);
        for place in from..end {
            if let Slot::Waiting(offer) = std::mem::replace(&mut self.slots[place], Slot::Taken) {
                claimed.push((self.left + place as u64, offer));
            }
        }
        self.unclaimed = self.left + end as u64;
        claimed
    }

    /// Puts a checked offer back in its place.
    fn put(&mut self, place: u64, done: CheckedEvent) {
        self.slots[(place - self.left) as usize] = Slot::Done(done);
    }

    /// Whether there is something to take.
    fn is_ready(&self) -> bool {
        matches!(self.slots.front(), Some(Slot::Done(_)))
    }

    /// Takes what is finished at the front, as long as there are fewer than so many events and bytes.
    fn take(&mut self, events: usize, bytes: usize) -> Vec<CheckedEvent> {
        let mut taken = Vec::new();
        let mut size = 0;
        while taken.len() < events && size < bytes && self.is_ready() {
            if let Some(Slot::Done(checked)) = self.slots.pop_front() {
                self.left += 1;
                size += checked.bytes;
                taken.push(checked);
            }
        }
        taken
    }
}

#[derive(Default)]
struct Queue {
    clients: Inbox,
    relays: Inbox,
    /// What others than clients have to say. It does not wait for signatures.
    notes: Vec<WriterCommand>,
    /// What need not be heard at once, and when it has waited long enough.
    patient: Vec<WriterCommand>,
    patient_until: Option<Instant>,
    /// No more offers come; workers end when nothing is left to check.
    closed: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.clients.slots.is_empty() && self.relays.slots.is_empty()
    }

    fn is_ready(&self) -> bool {
        !self.notes.is_empty() || self.clients.is_ready() || self.relays.is_ready()
    }

    fn take(&mut self) -> Taken {
        let mut notes = std::mem::take(&mut self.notes);
        notes.append(&mut self.patient);
        self.patient_until = None;
        let share = if self.clients.is_ready() { 2 } else { 1 };
        let mut relays = self.relays.take(limits::MAX_BATCH_EVENTS / share, limits::MAX_BATCH_BYTES / share);
        relays.sort_by_key(CheckedEvent::rank);
        let bytes: usize = relays.iter().map(|checked| checked.bytes).sum();
        let mut batch = self
            .clients
            .take(limits::MAX_BATCH_EVENTS.saturating_sub(relays.len()), limits::MAX_BATCH_BYTES.saturating_sub(bytes));
        batch.append(&mut relays);
        Taken { batch, notes }
    }
}

/// What the writer takes at a time.
pub(crate) struct Taken {
    /// Clients' offers in order of arrival, then what relays brought: announcements, states, what others answer to, the
    /// rest.
    pub(crate) batch: Vec<CheckedEvent>,
    pub(crate) notes: Vec<WriterCommand>,
}

/// The line. Its lock guards the queue alone and is held for moves, never for work.
pub(crate) struct EventQueue {
    queue: Mutex<Queue>,
    work: Condvar,
    ready: Condvar,
    budget: Arc<Semaphore>,
}

impl EventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            work: Condvar::new(),
            ready: Condvar::new(),
            budget: Arc::new(Semaphore::new(limits::MAX_VERIFY_QUEUE_EVENTS * UNITS_EACH)),
        })
    }

    /// Waits for a place for a client's text of this size. `None` when the server is going down.
    pub(crate) async fn place(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = (bytes / UNIT_BYTES).clamp(UNITS_EACH, limits::MAX_MESSAGE_BYTES / UNIT_BYTES);
        self.budget.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }

    /// Joins the line. Never waits: whoever offers something has a place already.
    pub(crate) fn join(&self, offer: QueuedEvent) {
        let mut queue = self.lock();
        if !queue.closed {
            let inbox = if offer.is_of_relay() { &mut queue.relays } else { &mut queue.clients };
            inbox.slots.push_back(Slot::Waiting(offer));
            self.work.notify_one();
        }
    }

    /// Tells the writer something. Whoever does so waits for an answer or has a place elsewhere, which bounds them.
    pub(crate) fn post(&self, note: WriterCommand) {
        let mut queue = self.lock();
        if note.is_patient() {
            queue.patient.push(note);
            if queue.patient_until.is_some() {
                return;
            }
            queue.patient_until = Some(Instant::now() + PATIENCE);
        } else {
            queue.notes.push(note);
        }
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
    pub(crate) fn check(&self, book: &CurrentPolicy, clock: Clock) {
        let mut verifier = Verifier::default();
        while let Some((claimed, of_relays)) = self.claim() {
            let rules = &*book.rules();
            let checked: Vec<(u64, CheckedEvent)> =
                claimed.into_iter().map(|(place, offer)| (place, offer.check(&mut verifier, rules, clock))).collect();
            let mut queue = self.lock();
            let inbox = if of_relays { &mut queue.relays } else { &mut queue.clients };
            for (place, done) in checked {
                inbox.put(place, done);
            }
            if inbox.is_ready() {
                self.ready.notify_one();
            }
        }
    }

    /// Takes a few offers to check, clients' first, and says whether they are relays'. `None` when the line is closed and
    /// nothing is left to check.
    fn claim(&self) -> Option<(Vec<(u64, QueuedEvent)>, bool)> {
        let mut queue = self.lock();
        loop {
            let clients = queue.clients.claim();
            if !clients.is_empty() {
                return Some((clients, false));
            }
            let relays = queue.relays.claim();
            if !relays.is_empty() {
                return Some((relays, true));
            }
            if queue.closed {
                return None;
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the writer what is finished at the front, and all notes: at once if there is something, else when something
    /// is or when `until` has come. `gather` is how long to wait for more than a little. `None` when the line is closed and
    /// empty and the writer expects no more notes.
    pub(crate) fn take(&self, until: Option<Instant>, gather: Option<Duration>, expecting: bool) -> Option<Taken> {
        let mut queue = self.lock();
        while !queue.is_ready() {
            if queue.closed && queue.is_empty() && !expecting {
                return if queue.patient.is_empty() { None } else { Some(queue.take()) };
            }
            let until = until.into_iter().chain(queue.patient_until).min();
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Some(queue.take()),
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
        Some(queue.take())
    }

    /// How many offers of clients and of relays wait, and how many notes; nothing if somebody moves them at this moment.
    pub(crate) fn lengths(&self) -> Option<[usize; 3]> {
        let queue = self.queue.try_lock().ok()?;
        Some([queue.clients.slots.len(), queue.relays.slots.len(), queue.notes.len() + queue.patient.len()])
    }

    /// Whether no more offers are taken.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Gives the writer notes alone, when there are some or when the time is over.
    pub(crate) fn take_notes(&self, until: Instant) -> Vec<WriterCommand> {
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

#[cfg(test)]
mod tests;

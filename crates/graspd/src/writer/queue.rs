//! Queue of submitted events and of commands to the writer.
//!
//! Signatures are verified by a pool of threads ([`EventQueue::run_verifier`]), but the writer must see events in order
//! of arrival, because a client may send an issue and directly after it a comment on that issue. So there is one queue:
//! verifier threads claim events that no thread has claimed yet and put the result back at the same position, and the
//! writer takes verified events from the front.
//!
//! Events that sync receives from relays wait in a queue of their own with a lower priority: they are verified when no
//! client's event is left to verify, and they get at most half of a batch while clients' events are ready.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::nostr::{EventId, Verifier};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::command::WriterCommand;
use super::policy::CurrentPolicy;
use super::submission::{CheckedEvent, QueuedEvent};
use crate::clock::Clock;

/// Size of one unit of the memory budget. Every event takes one unit per started kilobyte, but at least
/// [`MIN_UNITS_PER_EVENT`], so that neither many small nor a few large events can fill the memory.
const UNIT_BYTES: usize = 1_024;
const MIN_UNITS_PER_EVENT: usize = 8;

/// How many events a verifier thread claims at a time: few, so that all cores share a small burst.
const CLAIM_EVENTS: usize = 8;

/// How long commands without an answer may wait to share a commit, so that they cause at most one commit in this time.
const MAX_COMMAND_DELAY: Duration = Duration::from_secs(1);

enum Slot {
    /// Not verified yet.
    Waiting(QueuedEvent),
    /// Being verified.
    Claimed,
    Done(CheckedEvent),
}

/// Events in order of arrival.
#[derive(Default)]
struct SlotQueue {
    slots: VecDeque<Slot>,
    /// How many slots have left at the front. Positions are counted from the first slot ever, so that a claimed slot is
    /// found again.
    removed: u64,
    /// Position of the first slot that may be waiting.
    first_unclaimed: u64,
}

impl SlotQueue {
    /// Claims a few waiting events; returns them with their positions.
    fn claim(&mut self) -> Vec<(u64, QueuedEvent)> {
        let from = (self.first_unclaimed - self.removed) as usize;
        let end = self.slots.len().min(from + CLAIM_EVENTS);
        let mut claimed = Vec::with_capacity(end - from);
        for index in from..end {
            if let Slot::Waiting(event) = std::mem::replace(&mut self.slots[index], Slot::Claimed) {
                claimed.push((self.removed + index as u64, event));
            }
        }
        self.first_unclaimed = self.removed + end as u64;
        claimed
    }

    /// Puts the result of a claimed event back at its position.
    fn set_done(&mut self, position: u64, checked: CheckedEvent) {
        self.slots[(position - self.removed) as usize] = Slot::Done(checked);
    }

    /// Whether the event at the front is verified.
    fn is_ready(&self) -> bool {
        matches!(self.slots.front(), Some(Slot::Done(_)))
    }

    /// Removes verified events from the front until one of the limits is reached. The last event may exceed
    /// `max_bytes`.
    fn take(&mut self, max_events: usize, max_bytes: usize) -> Vec<CheckedEvent> {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while taken.len() < max_events && bytes < max_bytes && self.is_ready() {
            if let Some(Slot::Done(checked)) = self.slots.pop_front() {
                self.removed += 1;
                bytes += checked.bytes;
                taken.push(checked);
            }
        }
        taken
    }
}

#[derive(Default)]
struct Queues {
    clients: SlotQueue,
    relays: SlotQueue,
    /// Commands for the next batch.
    commands: Vec<WriterCommand>,
    /// Commands that may wait to share a commit, and when they have waited long enough.
    delayed: Vec<WriterCommand>,
    delayed_until: Option<Instant>,
    /// Held events that relays serve. A set, so that relays that repeat an event cannot fill the queue.
    seen: BTreeSet<EventId>,
    /// No more events are accepted; verifier threads end when nothing is left to verify.
    is_closed: bool,
    /// The writer has ended. Commands are dropped, so that their senders see a closed channel.
    has_ended: bool,
}

impl Queues {
    fn has_no_events(&self) -> bool {
        self.clients.slots.is_empty() && self.relays.slots.is_empty()
    }

    fn is_ready(&self) -> bool {
        !self.commands.is_empty() || !self.seen.is_empty() || self.clients.is_ready() || self.relays.is_ready()
    }

    fn next_batch(&mut self) -> WriterBatch {
        let mut commands = std::mem::take(&mut self.commands);
        commands.append(&mut self.delayed);
        self.delayed_until = None;
        if !self.seen.is_empty() {
            commands.push(WriterCommand::HeldEventsSeen(std::mem::take(&mut self.seen).into_iter().collect()));
        }
        let share = if self.clients.is_ready() { 2 } else { 1 };
        let mut relays = self.relays.take(limits::MAX_BATCH_EVENTS / share, limits::MAX_BATCH_BYTES / share);
        relays.sort_by_key(CheckedEvent::rank);
        let bytes: usize = relays.iter().map(|checked| checked.bytes).sum();
        let mut events = self
            .clients
            .take(limits::MAX_BATCH_EVENTS.saturating_sub(relays.len()), limits::MAX_BATCH_BYTES.saturating_sub(bytes));
        events.append(&mut relays);
        WriterBatch { events, commands }
    }
}

/// Events and commands that the writer handles in one transaction.
pub(crate) struct WriterBatch {
    /// Events of clients in order of arrival, then events from relays in order of their rank: announcements, states,
    /// roots of threads, all others.
    pub(crate) events: Vec<CheckedEvent>,
    pub(crate) commands: Vec<WriterCommand>,
}

/// The queue. Its lock is held only to move entries, never while an event is verified or handled.
pub(crate) struct EventQueue {
    queues: Mutex<Queues>,
    /// Signalled when there is something to verify.
    verifiers: Condvar,
    /// Signalled when there is something for the writer.
    writer: Condvar,
    budget: Arc<Semaphore>,
    pub(super) next_push_id: AtomicU64,
}

impl EventQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            queues: Mutex::default(),
            verifiers: Condvar::new(),
            writer: Condvar::new(),
            budget: Arc::new(Semaphore::new(limits::MAX_VERIFY_QUEUE_EVENTS * MIN_UNITS_PER_EVENT)),
            next_push_id: AtomicU64::new(1),
        })
    }

    /// Waits until the memory budget has space for an event of this size. Returns `None` when the server is shutting
    /// down.
    pub(crate) async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = (bytes / UNIT_BYTES).clamp(MIN_UNITS_PER_EVENT, limits::MAX_MESSAGE_BYTES / UNIT_BYTES);
        self.budget.clone().acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }

    /// Adds an event. Never waits: the event contains the permit that bounds the queue.
    pub(crate) fn push(&self, event: QueuedEvent) {
        let mut queues = self.lock();
        if !queues.is_closed {
            let queue = if event.is_from_relay() { &mut queues.relays } else { &mut queues.clients };
            queue.slots.push_back(Slot::Waiting(event));
            self.verifiers.notify_one();
        }
    }

    /// Adds a command. Never waits and has no limit of its own: every sender waits for an answer, or holds a permit of
    /// another limit.
    pub(crate) fn send(&self, command: WriterCommand) {
        let mut queues = self.lock();
        if queues.has_ended {
            // Dropped after the lock, because dropping a command can send another one.
            drop(queues);
        } else if command.can_wait() {
            queues.delayed.push(command);
            if queues.delayed_until.is_some() {
                return;
            }
            queues.delayed_until = Some(Instant::now() + MAX_COMMAND_DELAY);
        } else {
            queues.commands.push(command);
        }
        self.writer.notify_one();
    }

    /// Reports that a relay serves a held event. Never waits; there are at most as many ids as held events.
    pub(crate) fn report_seen(&self, id: EventId) {
        if self.lock().seen.insert(id) {
            self.writer.notify_one();
        }
    }

    /// Drops all commands, now and from now on. Called by the writer when it ends.
    pub(super) fn end(&self) {
        let mut queues = self.lock();
        queues.has_ended = true;
        let commands = (std::mem::take(&mut queues.commands), std::mem::take(&mut queues.delayed));
        drop(queues);
        drop(commands);
    }

    /// Accepts no more events, and lets the verifiers and the writer finish what is queued.
    pub(crate) fn close(&self) {
        self.budget.close();
        self.lock().is_closed = true;
        self.verifiers.notify_all();
        self.writer.notify_all();
    }

    /// Verifies events until the queue is closed and nothing is left to verify. Runs on each verifier thread.
    pub(crate) fn run_verifier(&self, policy: &CurrentPolicy, clock: Clock) {
        let mut verifier = Verifier::default();
        while let Some((claimed, are_from_relays)) = self.claim() {
            let policy = &*policy.policy();
            let checked: Vec<(u64, CheckedEvent)> = claimed
                .into_iter()
                .map(|(position, event)| (position, event.check(&mut verifier, policy, clock)))
                .collect();
            let mut queues = self.lock();
            let queue = if are_from_relays { &mut queues.relays } else { &mut queues.clients };
            for (position, checked) in checked {
                queue.set_done(position, checked);
            }
            if queue.is_ready() {
                self.writer.notify_one();
            }
        }
    }

    /// Waits for events to verify and claims a few, clients' events first. Returns them and whether they are from
    /// relays; `None` when the queue is closed and nothing is left to verify.
    fn claim(&self) -> Option<(Vec<(u64, QueuedEvent)>, bool)> {
        let mut queues = self.lock();
        loop {
            let clients = queues.clients.claim();
            if !clients.is_empty() {
                return Some((clients, false));
            }
            let relays = queues.relays.claim();
            if !relays.is_empty() {
                return Some((relays, true));
            }
            if queues.is_closed {
                return None;
            }
            queues = self.verifiers.wait(queues).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the verified events at the front and all commands. Waits until there are some, but not longer than
    /// `until`.
    ///
    /// `gather` is how long to wait for more after the first. Returns `None` when the queue is closed and empty and the
    /// writer expects no more commands (`is_expecting`).
    pub(crate) fn next_batch(
        &self,
        until: Option<Instant>,
        gather: Option<Duration>,
        is_expecting: bool,
    ) -> Option<WriterBatch> {
        let mut queues = self.lock();
        while !queues.is_ready() {
            if queues.is_closed && queues.has_no_events() && !is_expecting {
                return if queues.delayed.is_empty() { None } else { Some(queues.next_batch()) };
            }
            let until = until.into_iter().chain(queues.delayed_until).min();
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Some(queues.next_batch()),
                Some(left) => queues = self.writer.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0,
                None => queues = self.writer.wait(queues).unwrap_or_else(PoisonError::into_inner),
            }
        }
        if let Some(gather) = gather.filter(|_| !queues.is_closed && queues.commands.is_empty()) {
            drop(queues);
            // Commits follow each other directly: a short wait makes batches larger and all of them together cheaper.
            std::thread::sleep(gather);
            queues = self.lock();
        }
        Some(queues.next_batch())
    }

    /// Returns the numbers of queued client events, relay events and commands; `None` if the lock is taken at the
    /// moment.
    pub(crate) fn lengths(&self) -> Option<[usize; 3]> {
        let queues = self.queues.try_lock().ok()?;
        Some([queues.clients.slots.len(), queues.relays.slots.len(), queues.commands.len() + queues.delayed.len()])
    }

    /// Whether no more events are accepted.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Waits for commands until `until` and returns them without events.
    pub(crate) fn take_commands(&self, until: Instant) -> Vec<WriterCommand> {
        let mut queues = self.lock();
        while queues.commands.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queues = self.writer.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut queues.commands)
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        // A poisoned lock is safe to use: no step under it leaves the queues half changed.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

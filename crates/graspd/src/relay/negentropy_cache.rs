//! The librarian: sets of items for reconciliations, shared by all who ask the same at the same time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::nostr::Filter;
use grasp_core::time::Timestamp;
use grasp_store::{Scan, Store};

use super::outbox::{Held, SessionMessage, SessionSender, SubscriptionKey};
use super::query_pool::{ItemSetJob, Job, QueryPool};
use crate::clock::Clock;

/// Why there is no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemSetError {
    /// More items than one reconciliation may have.
    TooBig,
    /// The memory for sets is used up by others.
    NoMemory,
    /// The store could not be read.
    Failed,
}

pub(crate) enum Request {
    /// A session wants the items that match a filter.
    Open { filter: Filter, sub: SubscriptionKey, to: SessionSender },
    /// A reader has finished a set.
    Built { question: Question, set: Result<Arc<Held>, ItemSetError> },
}

/// Where requests are handed in.
#[derive(Clone)]
pub(crate) struct NegentropyCache {
    sender: Sender<Request>,
    /// Bytes of all sets.
    budget: Arc<AtomicUsize>,
}

impl NegentropyCache {
    pub(crate) fn new() -> (Self, Receiver<Request>) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self { sender, budget: Arc::default() }, receiver)
    }

    pub(crate) fn open(&self, filter: Filter, sub: SubscriptionKey, to: SessionSender) {
        let _ = self.sender.send(Request::Open { filter, sub, to });
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.sender.len()
    }

    /// Bytes of all sets.
    pub(crate) fn bytes(&self) -> usize {
        self.budget.load(Ordering::Relaxed)
    }

    pub(crate) fn built(&self, question: Question, set: Result<Arc<Held>, ItemSetError>) {
        let _ = self.sender.send(Request::Built { question, set });
    }
}

/// What a set answers: a filter, the newest event that was there, and the second in which it was asked, because events
/// also go, by their own expiry for one, without a new one coming.
pub(crate) type Question = (Filter, u64, Timestamp);

/// Who waits for a set that is being read. The librarian adds to it while a reader looks whether anybody is left; the
/// lock is held for that alone.
#[derive(Clone, Default)]
pub(crate) struct Waiting(Arc<Mutex<Vec<(SubscriptionKey, SessionSender)>>>);

impl Waiting {
    fn list(&self) -> MutexGuard<'_, Vec<(SubscriptionKey, SessionSender)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.list().iter().all(|(_, to)| to.is_gone())
    }
}

/// What is known of a set.
enum Shelf {
    /// It is being read; these wait for it.
    Making(Waiting),
    /// It exists as long as a session holds it.
    Ready(Weak<Held>),
}

/// The librarian's thread.
pub(crate) struct NegentropyCacheWorker {
    pub(crate) store: Store,
    pub(crate) readers: QueryPool,
    pub(crate) requests: Receiver<Request>,
    pub(crate) door: NegentropyCache,
    pub(crate) clock: Clock,
}

impl NegentropyCacheWorker {
    /// The thread's life: until `stop` is dropped.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        let budget = self.door.budget.clone();
        let mut shelves: HashMap<Question, Shelf> = HashMap::new();
        loop {
            crossbeam_channel::select! {
                recv(self.requests) -> request => match request {
                    Ok(Request::Open { filter, sub, to }) => self.open(&mut shelves, &budget, filter, (sub, to)),
                    Ok(Request::Built { question, set }) => built(&mut shelves, question, &set),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
        }
    }

    fn open(
        &self,
        shelves: &mut HashMap<Question, Shelf>,
        budget: &Arc<AtomicUsize>,
        filter: Filter,
        reader: (SubscriptionKey, SessionSender),
    ) {
        shelves.retain(|_, shelf| !matches!(shelf, Shelf::Ready(set) if set.strong_count() == 0));
        let seq = self.store.last_seq();
        let question = (filter.clone(), seq, self.clock.wall());
        let ready = match shelves.get_mut(&question) {
            Some(Shelf::Making(waiting)) => return waiting.list().push(reader),
            Some(Shelf::Ready(set)) => set.upgrade(),
            None => None,
        };
        match ready {
            Some(set) => reader.1.send(SessionMessage::Set { sub: reader.0, set: Ok(set) }),
            None => {
                let readers = Waiting::default();
                readers.list().push(reader);
                shelves.insert(question.clone(), Shelf::Making(readers.clone()));
                self.readers.submit(Job::Set(Box::new(ItemSetJob {
                    scan: Scan::new(vec![filter], usize::MAX, seq),
                    question,
                    items: Vec::new(),
                    budget: budget.clone(),
                    counted: 0,
                    library: self.door.clone(),
                    readers,
                })));
            }
        }
    }
}

fn built(shelves: &mut HashMap<Question, Shelf>, question: Question, set: &Result<Arc<Held>, ItemSetError>) {
    if let Some(Shelf::Making(waiting)) = shelves.remove(&question) {
        for (sub, to) in waiting.list().drain(..) {
            to.send(SessionMessage::Set { sub, set: set.clone() });
        }
    }
    if let Ok(set) = set {
        shelves.insert(question, Shelf::Ready(Arc::downgrade(set)));
    }
}

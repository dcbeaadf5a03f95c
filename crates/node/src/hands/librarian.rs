//! The librarian: sets of items for reconciliations, shared by all who ask the same at the same time.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::nostr::Filter;
use grasp_store::{Scan, Store};

use super::mail::{Held, Letter, Postbox, SubKey};
use super::readers::{Job, ReadersDoor, SetJob};

/// Why there is no set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SetProblem {
    /// More items than one reconciliation may have.
    TooBig,
    /// The memory for sets is used up by others.
    NoMemory,
    /// The store could not be read.
    Failed,
}

pub(crate) enum Request {
    /// A session wants the items that match a filter.
    Open { filter: Filter, sub: SubKey, to: Postbox },
    /// A reader has finished a set.
    Built { filter: Filter, seq: u64, set: Result<Arc<Held>, SetProblem> },
}

/// Where requests are handed in.
#[derive(Clone)]
pub(crate) struct LibraryDoor(Sender<Request>);

impl LibraryDoor {
    pub(crate) fn new() -> (Self, Receiver<Request>) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self(sender), receiver)
    }

    pub(crate) fn open(&self, filter: Filter, sub: SubKey, to: Postbox) {
        let _ = self.0.send(Request::Open { filter, sub, to });
    }

    pub(crate) fn built(&self, filter: Filter, seq: u64, set: Result<Arc<Held>, SetProblem>) {
        let _ = self.0.send(Request::Built { filter, seq, set });
    }
}

/// What is known of a set.
enum Shelf {
    /// It is being read; these wait for it.
    Making(Vec<(SubKey, Postbox)>),
    /// It exists as long as a session holds it.
    Ready(Weak<Held>),
}

/// The librarian's thread.
pub(crate) struct Librarian {
    pub(crate) store: Store,
    pub(crate) readers: ReadersDoor,
    pub(crate) requests: Receiver<Request>,
    pub(crate) door: LibraryDoor,
}

impl Librarian {
    /// The thread's life: until `stop` is dropped.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        let budget = Arc::new(AtomicUsize::new(0));
        let mut shelves: HashMap<(Filter, u64), Shelf> = HashMap::new();
        loop {
            crossbeam_channel::select! {
                recv(self.requests) -> request => match request {
                    Ok(Request::Open { filter, sub, to }) => self.open(&mut shelves, &budget, filter, (sub, to)),
                    Ok(Request::Built { filter, seq, set }) => built(&mut shelves, filter, seq, &set),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
        }
    }

    fn open(
        &self,
        shelves: &mut HashMap<(Filter, u64), Shelf>,
        budget: &Arc<AtomicUsize>,
        filter: Filter,
        reader: (SubKey, Postbox),
    ) {
        shelves.retain(|_, shelf| !matches!(shelf, Shelf::Ready(set) if set.strong_count() == 0));
        let seq = self.store.last_seq();
        let ready = match shelves.get_mut(&(filter.clone(), seq)) {
            Some(Shelf::Making(waiting)) => return waiting.push(reader),
            Some(Shelf::Ready(set)) => set.upgrade(),
            None => None,
        };
        match ready {
            Some(set) => reader.1.send(Letter::Set { sub: reader.0, set: Ok(set) }),
            None => {
                shelves.insert((filter.clone(), seq), Shelf::Making(vec![reader]));
                self.readers.submit(Job::Set(Box::new(SetJob {
                    scan: Scan::new(vec![filter.clone()], usize::MAX, seq),
                    filter,
                    seq,
                    items: Vec::new(),
                    budget: budget.clone(),
                    counted: 0,
                    library: self.door.clone(),
                })));
            }
        }
    }
}

fn built(shelves: &mut HashMap<(Filter, u64), Shelf>, filter: Filter, seq: u64, set: &Result<Arc<Held>, SetProblem>) {
    let place = (filter, seq);
    if let Some(Shelf::Making(waiting)) = shelves.remove(&place) {
        for (sub, to) in waiting {
            to.send(Letter::Set { sub, set: set.clone() });
        }
    }
    if let Ok(set) = set {
        shelves.insert(place, Shelf::Ready(Arc::downgrade(set)));
    }
}

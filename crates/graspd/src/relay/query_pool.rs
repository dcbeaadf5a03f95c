//! The threads that read the store. Each job runs a slice and, if it is not done, goes to the back of the queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::limits;
use grasp_core::nostr::negentropy::Item;
use grasp_core::nostr::{message, negentropy};
use grasp_store::{Progress, Scan, Store};
use tracing::error;

use super::negentropy_cache::{LibraryDoor, Question, SetProblem, Waiting};
use super::outbox::{Head, Held, Letter, Next, Postbox, SubKey};
use crate::clock::Clock;

/// Bytes of one part of a stored answer: large enough that a socket write carries many events, small enough that a few
/// of them for each of many connections fit in memory and that the allocator keeps such buffers at hand.
const PART_BYTES: usize = 64 * 1024;

/// A part is sent when it is this full, so that an ordinary event does not make its buffer grow.
const PART_FULL: usize = PART_BYTES - 8 * 1024;

/// In steps of how many items a set in the making is counted against the budget.
const COUNT_EVERY: usize = 512;

/// A stored answer in the making.
pub(crate) struct ScanJob {
    pub(crate) scan: Scan,
    pub(crate) sub: SubKey,
    pub(crate) head: Head,
    pub(crate) to: Postbox,
    /// What is ready but not yet worth sending.
    pub(crate) frames: Vec<u8>,
}

/// A count in the making.
pub(crate) struct CountJob {
    pub(crate) scan: Scan,
    pub(crate) sub: SubKey,
    pub(crate) to: Postbox,
    pub(crate) count: u64,
}

/// A set of items in the making.
pub(crate) struct SetJob {
    pub(crate) scan: Scan,
    pub(crate) question: Question,
    pub(crate) items: Vec<Item>,
    pub(crate) budget: Arc<AtomicUsize>,
    /// Bytes that were counted for it so far.
    pub(crate) counted: usize,
    pub(crate) library: LibraryDoor,
    /// Who waits for it.
    pub(crate) readers: Waiting,
}

/// A message of a reconciliation to be answered.
pub(crate) struct ReconcileJob {
    pub(crate) set: Arc<Held>,
    pub(crate) message: Vec<u8>,
    pub(crate) sub: SubKey,
    pub(crate) name: String,
    pub(crate) to: Postbox,
}

pub(crate) enum Job {
    Scan(Box<ScanJob>),
    Count(Box<CountJob>),
    Set(Box<SetJob>),
    Reconcile(Box<ReconcileJob>),
}

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct ReadersDoor(Sender<Job>);

impl ReadersDoor {
    /// The door and what stands behind it. The queue has no bound of its own: every connection has at most
    /// [`limits::MAX_SCANS_PER_CONNECTION`] scans and counts and as many reconciliations as it may keep, and jobs of
    /// connections that have gone are dropped.
    pub(crate) fn new() -> (Self, Receiver<Job>) {
        let (sender, receiver) = crossbeam_channel::unbounded();
        (Self(sender), receiver)
    }

    /// How many jobs wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn submit(&self, job: Job) {
        // The readers are gone only when the server is going down.
        let _ = self.0.send(job);
    }
}

/// One reading thread.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) jobs: Receiver<Job>,
    pub(crate) again: ReadersDoor,
    pub(crate) clock: Clock,
}

impl Reader {
    /// The thread's life: until the server goes down and the doors are gone.
    pub(crate) fn run(self) {
        while let Ok(job) = self.jobs.recv() {
            if let Some(unfinished) = self.work(job) {
                self.again.submit(unfinished);
            }
        }
    }

    fn work(&self, job: Job) -> Option<Job> {
        match job {
            // What nobody waits for is not worth reading.
            Job::Scan(job) if job.to.is_gone() => None,
            Job::Count(job) if job.to.is_gone() => None,
            Job::Set(job) if job.readers.are_gone() => {
                job.finish(Some(SetProblem::Failed));
                None
            }
            Job::Scan(job) => self.scan(job),
            Job::Count(job) => self.count(job),
            Job::Set(job) => self.set(job),
            Job::Reconcile(job) => {
                reconcile(&job);
                None
            }
        }
    }

    fn scan(&self, mut job: Box<ScanJob>) -> Option<Job> {
        let ScanJob { scan, frames, head, .. } = &mut *job;
        frames.reserve(PART_BYTES.saturating_sub(frames.len()));
        let progress = scan.slice(&self.store, self.clock.wall(), |record| {
            head.push_event(frames, record.json());
            if frames.len() < PART_FULL { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let next = match progress {
            Ok(Progress::More) if job.frames.len() < PART_FULL => return Some(Job::Scan(job)),
            Ok(Progress::More) => None,
            Ok(Progress::Done) => Some(Next::End),
            Ok(Progress::Exhausted) => Some(Next::TooMuch),
            Err(problem) => {
                error!(%problem, "a query failed");
                Some(Next::Failed)
            }
        };
        let (to, sub, frames) = (job.to.clone(), job.sub, std::mem::take(&mut job.frames));
        to.send(Letter::Stored { sub, frames, next: next.unwrap_or(Next::More(job)) });
        None
    }

    fn count(&self, mut job: Box<CountJob>) -> Option<Job> {
        let CountJob { scan, count, .. } = &mut *job;
        let progress = scan.slice(&self.store, self.clock.wall(), |_| {
            *count += 1;
            ControlFlow::Continue(())
        });
        let count = match progress {
            Ok(Progress::More) => return Some(Job::Count(job)),
            Ok(Progress::Done) => Some(job.count),
            Ok(Progress::Exhausted) => None,
            Err(problem) => {
                error!(%problem, "a count failed");
                None
            }
        };
        job.to.send(Letter::Counted { sub: job.sub, count });
        None
    }

    fn set(&self, mut job: Box<SetJob>) -> Option<Job> {
        let SetJob { scan, items, .. } = &mut *job;
        let progress = scan.slice(&self.store, self.clock.wall(), |record| {
            items.push(Item { created_at: record.created_at().0, id: record.id().0 });
            if items.len() > limits::MAX_NEGENTROPY_ITEMS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let problem = match progress {
            _ if job.items.len() > limits::MAX_NEGENTROPY_ITEMS => Some(SetProblem::TooBig),
            Ok(Progress::More) if job.fits() => return Some(Job::Set(job)),
            Ok(Progress::More) => Some(SetProblem::NoMemory),
            Ok(Progress::Done) if job.fits() => None,
            Ok(Progress::Done) => Some(SetProblem::NoMemory),
            Ok(Progress::Exhausted) => Some(SetProblem::TooBig),
            Err(problem) => {
                error!(%problem, "a set of items could not be read");
                Some(SetProblem::Failed)
            }
        };
        job.finish(problem);
        None
    }
}

impl SetJob {
    /// Counts what has been gathered against the budget, now and then, and says whether it fits.
    fn fits(&mut self) -> bool {
        let bytes = self.items.len().next_multiple_of(COUNT_EVERY) * size_of::<Item>();
        let more = bytes.saturating_sub(self.counted);
        self.counted += more;
        self.budget.fetch_add(more, Ordering::Relaxed) + more <= limits::MAX_NEGENTROPY_BYTES
    }

    fn finish(self, problem: Option<SetProblem>) {
        let set = match problem {
            Some(problem) => Err(problem),
            None => {
                let items = negentropy::ItemSet::seal(self.items);
                self.budget.fetch_add(items.bytes(), Ordering::Relaxed);
                Ok(Arc::new(Held { items, budget: self.budget.clone() }))
            }
        };
        self.budget.fetch_sub(self.counted, Ordering::Relaxed);
        self.library.built(self.question, set);
    }
}

fn reconcile(job: &ReconcileJob) {
    let (text, over) = match negentropy::respond(&job.set.items, &job.message, limits::NEGENTROPY_FRAME_BYTES) {
        Ok(answer) => (message::neg_msg(&job.name, &answer), false),
        Err(problem) => (message::neg_err(&job.name, &format!("invalid: {problem}")), true),
    };
    job.to.send(Letter::Reconciled { sub: job.sub, text, over });
}

//! The threads that read the store. Each job runs a slice and, if it is not done, goes to the back of the queue.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::limits;
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{message, negentropy};
use grasp_store::{ScanProgress, Scan, Store};
use tracing::error;

use super::negentropy_cache::{ItemSetError, NegentropyCache, Question, Waiting};
use super::outbox::{Head, Held, Next, SessionMessage, SessionSender, SubscriptionKey};
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
    pub(crate) sub: SubscriptionKey,
    pub(crate) head: Head,
    pub(crate) to: SessionSender,
    /// What is ready but not yet worth sending.
    pub(crate) frames: Vec<u8>,
}

/// A count in the making.
pub(crate) struct CountJob {
    pub(crate) scan: Scan,
    pub(crate) sub: SubscriptionKey,
    pub(crate) to: SessionSender,
    pub(crate) count: u64,
}

/// A set of items in the making.
pub(crate) struct ItemSetJob {
    pub(crate) scan: Scan,
    pub(crate) question: Question,
    pub(crate) items: Vec<NegentropyItem>,
    pub(crate) budget: Arc<AtomicUsize>,
    /// Bytes that were counted for it so far.
    pub(crate) counted: usize,
    pub(crate) library: NegentropyCache,
    /// Who waits for it.
    pub(crate) readers: Waiting,
}

/// A message of a reconciliation to be answered.
pub(crate) struct ReconcileJob {
    pub(crate) set: Arc<Held>,
    pub(crate) message: Vec<u8>,
    pub(crate) sub: SubscriptionKey,
    pub(crate) name: String,
    pub(crate) to: SessionSender,
}

pub(crate) enum Job {
    Scan(Box<ScanJob>),
    Count(Box<CountJob>),
    Set(Box<ItemSetJob>),
    Reconcile(Box<ReconcileJob>),
}

/// Where jobs are handed in.
#[derive(Clone)]
pub(crate) struct QueryPool(Sender<Job>);

impl QueryPool {
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
    pub(crate) again: QueryPool,
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
                job.finish(Some(ItemSetError::Failed));
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
        let progress = scan.run_slice(&self.store, self.clock.wall(), |record| {
            head.push_event(frames, record.json());
            if frames.len() < PART_FULL { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let next = match progress {
            Ok(ScanProgress::More) if job.frames.len() < PART_FULL => return Some(Job::Scan(job)),
            Ok(ScanProgress::More) => None,
            Ok(ScanProgress::Done) => Some(Next::End),
            Ok(ScanProgress::Exhausted) => Some(Next::TooMuch),
            Err(problem) => {
                error!(%problem, "a query failed");
                Some(Next::Failed)
            }
        };
        let (to, sub, frames) = (job.to.clone(), job.sub, std::mem::take(&mut job.frames));
        to.send(SessionMessage::Stored { sub, frames, next: next.unwrap_or(Next::More(job)) });
        None
    }

    fn count(&self, mut job: Box<CountJob>) -> Option<Job> {
        let CountJob { scan, count, .. } = &mut *job;
        let progress = scan.run_slice(&self.store, self.clock.wall(), |_| {
            *count += 1;
            ControlFlow::Continue(())
        });
        let count = match progress {
            Ok(ScanProgress::More) => return Some(Job::Count(job)),
            Ok(ScanProgress::Done) => Some(job.count),
            Ok(ScanProgress::Exhausted) => None,
            Err(problem) => {
                error!(%problem, "a count failed");
                None
            }
        };
        job.to.send(SessionMessage::Counted { sub: job.sub, count });
        None
    }

    fn set(&self, mut job: Box<ItemSetJob>) -> Option<Job> {
        let ItemSetJob { scan, items, .. } = &mut *job;
        let progress = scan.run_slice(&self.store, self.clock.wall(), |record| {
            items.push(NegentropyItem { created_at: record.created_at().0, id: record.id().0 });
            if items.len() > limits::MAX_NEGENTROPY_ITEMS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let problem = match progress {
            _ if job.items.len() > limits::MAX_NEGENTROPY_ITEMS => Some(ItemSetError::TooBig),
            Ok(ScanProgress::More) if job.fits() => return Some(Job::Set(job)),
            Ok(ScanProgress::More) => Some(ItemSetError::NoMemory),
            Ok(ScanProgress::Done) if job.fits() => None,
            Ok(ScanProgress::Done) => Some(ItemSetError::NoMemory),
            Ok(ScanProgress::Exhausted) => Some(ItemSetError::TooBig),
            Err(problem) => {
                error!(%problem, "a set of items could not be read");
                Some(ItemSetError::Failed)
            }
        };
        job.finish(problem);
        None
    }
}

impl ItemSetJob {
    /// Counts what has been gathered against the budget, now and then, and says whether it fits.
    fn fits(&mut self) -> bool {
        let bytes = self.items.len().next_multiple_of(COUNT_EVERY) * size_of::<NegentropyItem>();
        let more = bytes.saturating_sub(self.counted);
        self.counted += more;
        self.budget.fetch_add(more, Ordering::Relaxed) + more <= limits::MAX_NEGENTROPY_BYTES
    }

    fn finish(self, problem: Option<ItemSetError>) {
        let set = match problem {
            Some(problem) => Err(problem),
            None => {
                let items = negentropy::NegentropySet::from_items(self.items);
                self.budget.fetch_add(items.memory_bytes(), Ordering::Relaxed);
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
    job.to.send(SessionMessage::Reconciled { sub: job.sub, text, over });
}

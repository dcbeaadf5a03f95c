//! Reads the store for REQ, COUNT and negentropy.
//!
//! A fixed pool of threads ([`QueryWorker::run`]) runs jobs in slices: a job that is not done after its slice goes to
//! the back of the queue of its network, so that a long query does not delay short ones. Networks take turns. A job
//! holds no store transaction between slices.
//!
//! Sessions, the broadcast thread and the negentropy cache submit jobs; results go to the outboxes of sessions. Calls
//! the store only.

use std::ops::ControlFlow;
use std::sync::{Arc, Weak};

use grasp_core::limits;
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{message, negentropy};
use grasp_store::{Scan, ScanProgress, Store};
use tracing::error;

use super::negentropy::ReceivedMessage;
use super::negentropy_cache::{ItemSetError, ItemSetKey, ItemSetWaiters, NegentropyCache};
use super::outbox::{CachedItemSet, EventPrefix, ScanStatus, SessionMessage, SessionSender, SubscriptionKey};
use crate::clock::Clock;
use crate::http::network_limits::ClientNetwork;
use crate::http::network_queue::NetworkQueue;
use crate::http::shared_budget::BudgetReservation;

/// Bytes of one part of stored events: large enough that one socket write has many events, small enough that a few
/// parts for each of many connections fit in memory, and that the allocator reuses such buffers.
const PART_BYTES: usize = 64 * 1024;

/// A part is sent when it has this size, so that an ordinary event does not make its buffer grow.
const PART_SEND_BYTES: usize = PART_BYTES - 8 * 1024;

/// An item set under construction reserves memory for this many items at a time.
const RESERVE_ITEMS: usize = 512;

/// Query for the stored events of a subscription.
pub(crate) struct ScanJob {
    pub(crate) scan: Scan,
    pub(crate) key: SubscriptionKey,
    pub(crate) prefix: EventPrefix,
    pub(crate) session: SessionSender,
    /// Frames that are ready but too few to be sent.
    pub(crate) frames: Vec<u8>,
    /// The subscription id that the client chose. Only the session keeps it, until the subscription is closed.
    pub(crate) id: Weak<str>,
    /// The memory of the filters.
    pub(crate) _reservation: Arc<BudgetReservation>,
}

/// Query of a COUNT.
pub(crate) struct CountJob {
    pub(crate) scan: Scan,
    pub(crate) key: SubscriptionKey,
    pub(crate) session: SessionSender,
    pub(crate) count: u64,
    /// The memory of the filters.
    pub(crate) _reservation: Arc<BudgetReservation>,
}

/// Query that builds an item set for negentropy.
pub(crate) struct ItemSetJob {
    pub(crate) scan: Scan,
    pub(crate) key: ItemSetKey,
    pub(crate) items: Vec<NegentropyItem>,
    /// The memory of the filter.
    pub(crate) filter_bytes: usize,
    /// The memory of the filter and of `items`, reserved in steps.
    pub(crate) reservation: BudgetReservation,
    pub(crate) cache: NegentropyCache,
    pub(crate) waiters: ItemSetWaiters,
}

/// Reply to a message of a reconciliation.
pub(crate) struct ReconcileJob {
    pub(crate) set: Arc<CachedItemSet>,
    pub(crate) message: ReceivedMessage,
    pub(crate) key: SubscriptionKey,
    /// The subscription id that the client chose.
    pub(crate) id: String,
    pub(crate) session: SessionSender,
}

pub(crate) enum QueryJob {
    Scan(Box<ScanJob>),
    Count(Box<CountJob>),
    ItemSet(Box<ItemSetJob>),
    Reconcile(Box<ReconcileJob>),
}

impl QueryJob {
    /// Network of the client that the job is for.
    fn network(&self) -> Option<ClientNetwork> {
        match self {
            Self::Scan(job) => job.session.network(),
            Self::Count(job) => job.session.network(),
            Self::ItemSet(job) => job.reservation.network(),
            Self::Reconcile(job) => job.session.network(),
        }
    }
}

/// The jobs of the pool. Clones share them.
///
/// There is no limit of their number, because every connection has at most [`limits::MAX_SCANS_PER_CONNECTION`] scans
/// and counts and a limited number of reconciliations, and jobs of closed connections are dropped.
#[derive(Clone)]
pub(crate) struct QueryPool(Arc<NetworkQueue<QueryJob>>);

impl QueryPool {
    pub(crate) fn new() -> Self {
        Self(Arc::new(NetworkQueue::new()))
    }

    /// Returns the number of queued jobs.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn submit(&self, job: QueryJob) {
        self.0.push(job.network(), job);
    }
}

/// One thread of the pool.
pub(crate) struct QueryWorker {
    pub(crate) store: Store,
    pub(crate) pool: QueryPool,
    pub(crate) clock: Clock,
}

impl QueryWorker {
    /// Runs slices of jobs until the process ends.
    pub(crate) fn run(self) {
        loop {
            if let Some(unfinished) = self.run_slice(self.pool.0.pop()) {
                self.pool.submit(unfinished);
            }
        }
    }

    /// Runs one slice of a job. Returns the job if it is not done.
    fn run_slice(&self, job: QueryJob) -> Option<QueryJob> {
        match job {
            // Jobs of closed sessions are dropped.
            QueryJob::Scan(job) if job.session.is_closed() => None,
            QueryJob::Count(job) if job.session.is_closed() => None,
            // The session counts the scans that it has not heard of.
            QueryJob::Scan(job) if job.id.strong_count() == 0 => {
                job.session.send(SessionMessage::StoredEvents {
                    key: job.key,
                    frames: Vec::new(),
                    status: ScanStatus::Done,
                });
                None
            }
            QueryJob::ItemSet(job) if job.waiters.are_all_closed() => {
                job.finish(Some(ItemSetError::Failed));
                None
            }
            QueryJob::Scan(job) => self.scan(job),
            QueryJob::Count(job) => self.count(job),
            QueryJob::ItemSet(job) => self.build_item_set(job),
            QueryJob::Reconcile(job) => {
                reconcile(&job);
                None
            }
        }
    }

    fn scan(&self, mut job: Box<ScanJob>) -> Option<QueryJob> {
        let ScanJob { scan, frames, prefix, .. } = &mut *job;
        frames.reserve(PART_BYTES.saturating_sub(frames.len()));
        let progress = scan.run_slice(&self.store, self.clock.wall(), |record| {
            prefix.push_event(frames, record.json());
            if frames.len() < PART_SEND_BYTES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let status = match progress {
            Ok(ScanProgress::More) if job.frames.len() < PART_SEND_BYTES => return Some(QueryJob::Scan(job)),
            Ok(ScanProgress::More) => None,
            Ok(ScanProgress::Done) => Some(ScanStatus::Done),
            Ok(ScanProgress::Exhausted) => Some(ScanStatus::TooExpensive),
            Err(error) => {
                error!(target: "relay", %error, "query failed");
                Some(ScanStatus::Failed)
            }
        };
        let (session, key, frames) = (job.session.clone(), job.key, std::mem::take(&mut job.frames));
        let status = status.unwrap_or(ScanStatus::More(job));
        session.send(SessionMessage::StoredEvents { key, frames, status });
        None
    }

    fn count(&self, mut job: Box<CountJob>) -> Option<QueryJob> {
        let CountJob { scan, count, .. } = &mut *job;
        let progress = scan.run_slice(&self.store, self.clock.wall(), |_| {
            *count += 1;
            ControlFlow::Continue(())
        });
        let count = match progress {
            Ok(ScanProgress::More) => return Some(QueryJob::Count(job)),
            Ok(ScanProgress::Done) => Ok(job.count),
            Ok(ScanProgress::Exhausted) => Err("rate-limited: the count touches too many events, narrow it"),
            Err(error) => {
                error!(target: "relay", %error, "count failed");
                Err("error: the store cannot be read")
            }
        };
        job.session.send(SessionMessage::Count { key: job.key, count });
        None
    }

    fn build_item_set(&self, mut job: Box<ItemSetJob>) -> Option<QueryJob> {
        let ItemSetJob { scan, items, .. } = &mut *job;
        let progress = scan.run_slice(&self.store, self.clock.wall(), |record| {
            items.push(NegentropyItem { created_at: record.created_at().0, id: record.id().0 });
            if items.len() > limits::MAX_NEGENTROPY_ITEMS { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let error = match progress {
            _ if job.items.len() > limits::MAX_NEGENTROPY_ITEMS => Some(ItemSetError::TooLarge),
            Ok(ScanProgress::More) => match job.reserve() {
                Ok(()) => return Some(QueryJob::ItemSet(job)),
                Err(error) => Some(error),
            },
            Ok(ScanProgress::Done) => job.reserve().err(),
            Ok(ScanProgress::Exhausted) => Some(ItemSetError::TooLarge),
            Err(error) => {
                error!(target: "relay", %error, "query for negentropy items failed");
                Some(ItemSetError::Failed)
            }
        };
        job.finish(error);
        None
    }
}

impl ItemSetJob {
    /// Reserves memory for the items found so far, in steps.
    fn reserve(&mut self) -> Result<(), ItemSetError> {
        let items = self.items.len().next_multiple_of(RESERVE_ITEMS);
        resize(&mut self.reservation, self.filter_bytes + items * size_of::<NegentropyItem>())
    }

    fn finish(self, error: Option<ItemSetError>) {
        let Self { items, filter_bytes, mut reservation, key, cache, .. } = self;
        let build = || {
            let items = negentropy::NegentropySet::from_items(items);
            resize(&mut reservation, filter_bytes + items.memory_bytes())?;
            Ok(Arc::new(CachedItemSet { items, _reservation: reservation }))
        };
        cache.set_built(key, error.map_or_else(build, Err));
    }
}

/// Changes the memory that is reserved for an item set.
fn resize(reservation: &mut BudgetReservation, bytes: usize) -> Result<(), ItemSetError> {
    reservation.resize(bytes).map_err(|error| ItemSetError::new(error, reservation.network()))
}

fn reconcile(job: &ReconcileJob) {
    let (text, is_over) = match negentropy::respond(&job.set.items, &job.message.bytes, limits::NEGENTROPY_FRAME_BYTES)
    {
        Ok(reply) => (message::neg_msg(&job.id, &reply), false),
        Err(error) => (message::neg_err(&job.id, &format!("invalid: {error}")), true),
    };
    job.session.send(SessionMessage::NegentropyReply { key: job.key, text, is_over });
}

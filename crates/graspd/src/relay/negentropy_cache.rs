//! Item sets for negentropy, shared by all reconciliations with the same filter at the same time.
//!
//! Runs on one thread ([`NegentropyCacheWorker::run`]). The query pool builds the sets; a set lives as long as a
//! session uses it. All sets together, and those of each network, are bounded by a
//! [budget](super::budgets::RelayBudgets::negentropy).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::nostr::Filter;
use grasp_core::time::Timestamp;
use grasp_store::{Scan, Store};

use super::outbox::{CachedItemSet, SessionMessage, SessionSender, SubscriptionKey};
use super::query_pool::{ItemSetJob, QueryJob, QueryPool};
use crate::clock::Clock;
use crate::http::network_limits::ClientNetwork;
use crate::http::shared_budget::{BudgetError, SharedBudget};

/// Reason why an item set could not be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemSetError {
    /// The filter matches more items than one reconciliation may have.
    TooLarge,
    /// The memory for item sets is used up.
    NoMemory,
    /// The network that the set counts for has its share of the memory for item sets.
    NetworkShare(Option<ClientNetwork>),
    /// The store could not be read.
    Failed,
}

impl ItemSetError {
    /// Returns the error for memory that could not be reserved for a client in this network.
    pub(crate) fn new(error: BudgetError, network: Option<ClientNetwork>) -> Self {
        match error {
            BudgetError::Total => Self::NoMemory,
            BudgetError::Network => Self::NetworkShare(network),
        }
    }
}

pub(crate) enum ItemSetRequest {
    /// A session needs the items that match a filter.
    Open { filter: Filter, waiter: ItemSetWaiter },
    /// The query pool has finished a set.
    Built { key: ItemSetKey, set: Result<Arc<CachedItemSet>, ItemSetError> },
}

/// Sends requests to the cache thread.
#[derive(Clone)]
pub(crate) struct NegentropyCache {
    requests: Sender<ItemSetRequest>,
}

impl NegentropyCache {
    pub(crate) fn new() -> (Self, Receiver<ItemSetRequest>) {
        let (requests, receiver) = crossbeam_channel::unbounded();
        (Self { requests }, receiver)
    }

    /// Requests the item set of a filter. The session receives it as [`SessionMessage::ItemSet`].
    pub(crate) fn open(&self, filter: Filter, waiter: ItemSetWaiter) {
        let _ = self.requests.send(ItemSetRequest::Open { filter, waiter });
    }

    /// Returns the number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Reports the result of a finished [`ItemSetJob`].
    pub(crate) fn set_built(&self, key: ItemSetKey, set: Result<Arc<CachedItemSet>, ItemSetError>) {
        let _ = self.requests.send(ItemSetRequest::Built { key, set });
    }
}

/// Key of an item set: the filter, the sequence number of the newest event, and the second of the request. The time is
/// part of it because events can also disappear, for example by expiry, without a new one being stored.
pub(crate) type ItemSetKey = (Filter, u64, Timestamp);

/// A session that waits for an item set.
pub(crate) struct ItemSetWaiter {
    pub(crate) key: SubscriptionKey,
    pub(crate) session: SessionSender,
}

/// Sessions that wait for a set under construction. The cache thread adds sessions while the query pool checks whether
/// any is still open; the lock is held only for these two steps.
#[derive(Clone, Default)]
pub(crate) struct ItemSetWaiters(Arc<Mutex<Vec<ItemSetWaiter>>>);

impl ItemSetWaiters {
    fn lock(&self) -> MutexGuard<'_, Vec<ItemSetWaiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all sessions that waited have ended.
    pub(crate) fn are_all_closed(&self) -> bool {
        self.lock().iter().all(|waiter| waiter.session.is_closed())
    }
}

enum CacheEntry {
    /// Under construction.
    Building(ItemSetWaiters),
    /// Exists as long as a session uses it.
    Ready(Weak<CachedItemSet>),
}

/// State of the cache thread.
pub(crate) struct NegentropyCacheWorker {
    pub(crate) store: Store,
    pub(crate) query_pool: QueryPool,
    pub(crate) requests: Receiver<ItemSetRequest>,
    pub(crate) cache: NegentropyCache,
    /// Memory of all sets.
    pub(crate) budget: Arc<SharedBudget>,
    pub(crate) clock: Clock,
}

impl NegentropyCacheWorker {
    /// Handles requests until the sender of `stop` is dropped.
    pub(crate) fn run(self, stop: &Receiver<()>) {
        let mut entries: HashMap<ItemSetKey, CacheEntry> = HashMap::new();
        loop {
            crossbeam_channel::select! {
                recv(self.requests) -> request => match request {
                    Ok(ItemSetRequest::Open { filter, waiter }) => self.open(&mut entries, filter, waiter),
                    Ok(ItemSetRequest::Built { key, set }) => self.finish_entry(&mut entries, key, &set),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
        }
    }

    fn open(&self, entries: &mut HashMap<ItemSetKey, CacheEntry>, filter: Filter, waiter: ItemSetWaiter) {
        entries.retain(|_, entry| !matches!(entry, CacheEntry::Ready(set) if set.strong_count() == 0));
        let seq = self.store.last_seq();
        let key = (filter.clone(), seq, self.clock.wall());
        let ready = match entries.get_mut(&key) {
            Some(CacheEntry::Building(waiters)) => return waiters.lock().push(waiter),
            Some(CacheEntry::Ready(set)) => set.upgrade(),
            None => None,
        };
        match ready {
            Some(set) => waiter.session.send(SessionMessage::ItemSet { key: waiter.key, set: Ok(set) }),
            None => {
                let (filter_bytes, network) = (filter.memory_bytes(), waiter.session.network());
                let reservation = match self.budget.reserve(network, filter_bytes) {
                    Ok(reservation) => reservation,
                    Err(error) => {
                        let set = Err(ItemSetError::new(error, network));
                        return waiter.session.send(SessionMessage::ItemSet { key: waiter.key, set });
                    }
                };
                let waiters = ItemSetWaiters::default();
                waiters.lock().push(waiter);
                entries.insert(key.clone(), CacheEntry::Building(waiters.clone()));
                self.query_pool.submit(QueryJob::ItemSet(Box::new(ItemSetJob {
                    scan: Scan::new(vec![filter], usize::MAX, seq),
                    key,
                    items: Vec::new(),
                    filter_bytes,
                    reservation,
                    cache: self.cache.clone(),
                    waiters,
                })));
            }
        }
    }

    /// Sends a finished set to the sessions that wait for it, and keeps a weak reference for later requests.
    fn finish_entry(
        &self,
        entries: &mut HashMap<ItemSetKey, CacheEntry>,
        key: ItemSetKey,
        set: &Result<Arc<CachedItemSet>, ItemSetError>,
    ) {
        let waiters = match entries.remove(&key) {
            Some(CacheEntry::Building(waiters)) => std::mem::take(&mut *waiters.lock()),
            _ => Vec::new(),
        };
        if let Ok(set) = set {
            entries.insert(key.clone(), CacheEntry::Ready(Arc::downgrade(set)));
        }
        for waiter in waiters {
            match set {
                // The share of another network does not concern this one.
                Err(ItemSetError::NetworkShare(network)) if *network != waiter.session.network() => {
                    self.open(entries, key.0.clone(), waiter);
                }
                set => waiter.session.send(SessionMessage::ItemSet { key: waiter.key, set: set.clone() }),
            }
        }
    }
}

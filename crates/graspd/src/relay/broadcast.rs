//! Sends new events to the open subscriptions whose filters match.
//!
//! Runs on one thread ([`Broadcaster::run`]). Each filter is indexed by one of its conditions, the most selective one;
//! the candidates found there are then checked in full. So the cost of an event depends on the number of subscriptions
//! that could match it, not on the number of all subscriptions. The thread reads new events from the store, starting
//! after the last sequence number that it has seen: the writer only sends a wake-up, so no events can pile up between
//! the two.
//!
//! Sessions and the writer call it through [`BroadcastHandle`]. It calls the store, the query pool and the outboxes of
//! sessions.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::nostr::{Filter, SignedEvent};
use grasp_store::{EventRecord, PreparedFilter, Scan, Store};
use tracing::error;

use super::outbox::{EventPrefix, SessionSender, SubscriptionKey};
use super::query_pool::{QueryJob, QueryPool, ScanJob};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::shared_budget::BudgetReservation;
use crate::writer::CommitListener;

/// Ephemeral events that may wait to be broadcast. Beyond this number they are dropped.
const MAX_QUEUED_EPHEMERAL: usize = 1_024;

/// Number of entries up to which the tables of subscriptions keep their memory when entries are removed.
const MIN_TABLE_ENTRIES: usize = 1_024;

/// How many events are read from the store at a time.
const READ_BATCH_EVENTS: usize = 1_000;

pub(crate) enum BroadcastRequest {
    Subscribe(Box<Subscription>),
    Unsubscribe(SubscriptionKey),
    /// There are new events in the store.
    Committed,
    /// An event that is not stored.
    Ephemeral(Arc<SignedEvent>),
}

/// A subscription to be opened.
pub(crate) struct Subscription {
    pub(crate) key: SubscriptionKey,
    pub(crate) prefix: EventPrefix,
    pub(crate) filters: Vec<Filter>,
    /// The memory of the filters.
    pub(crate) reservation: BudgetReservation,
    pub(crate) session: SessionSender,
}

/// Sends requests to the broadcast thread.
#[derive(Clone)]
pub(crate) struct BroadcastHandle {
    requests: Sender<BroadcastRequest>,
    /// Ephemeral events have a bounded queue of their own.
    ephemeral: Sender<BroadcastRequest>,
    /// Whether a [`BroadcastRequest::Committed`] is queued.
    is_commit_queued: Arc<AtomicBool>,
}

impl CommitListener for BroadcastHandle {
    fn on_commit(&self) {
        if !self.is_commit_queued.swap(true, Ordering::AcqRel) {
            self.send(BroadcastRequest::Committed);
        }
    }

    fn on_ephemeral(&self, event: Arc<SignedEvent>) {
        let _ = self.ephemeral.try_send(BroadcastRequest::Ephemeral(event));
    }
}

/// Receiving end of a [`BroadcastHandle`].
pub(crate) struct BroadcastInbox {
    requests: Receiver<BroadcastRequest>,
    ephemeral: Receiver<BroadcastRequest>,
    is_commit_queued: Arc<AtomicBool>,
}

impl BroadcastHandle {
    pub(crate) fn new() -> (Self, BroadcastInbox) {
        let (request_sender, requests) = crossbeam_channel::unbounded();
        let (ephemeral_sender, ephemeral) = crossbeam_channel::bounded(MAX_QUEUED_EPHEMERAL);
        let is_commit_queued = Arc::new(AtomicBool::new(false));
        let handle =
            Self { requests: request_sender, ephemeral: ephemeral_sender, is_commit_queued: is_commit_queued.clone() };
        (handle, BroadcastInbox { requests, ephemeral, is_commit_queued })
    }

    /// Returns the number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.ephemeral.len()
    }

    /// Opens a subscription: it receives every event that becomes visible from now on, and a scan sends those that are
    /// stored already. The two meet at one sequence number, so that no event is missing and none is sent twice.
    pub(crate) fn subscribe(&self, subscription: Subscription) {
        self.send(BroadcastRequest::Subscribe(Box::new(subscription)));
    }

    pub(crate) fn unsubscribe(&self, key: SubscriptionKey) {
        self.send(BroadcastRequest::Unsubscribe(key));
    }

    fn send(&self, request: BroadcastRequest) {
        // An error means that the server is shutting down.
        let _ = self.requests.send(request);
    }
}

/// The condition by which a filter is indexed.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IndexKey {
    Id([u8; 32]),
    Tag(u8, Box<[u8]>),
    Author([u8; 32]),
    Kind(u16),
    /// A filter without conditions.
    Any,
}

struct OpenSubscription {
    filters: Vec<PreparedFilter>,
    session: SessionSender,
    /// Events up to this sequence number are sent by the scan of stored events.
    after_seq: u64,
    /// Returns the memory of the filters to its budget.
    _reservation: BudgetReservation,
}

/// State of the broadcast thread.
pub(crate) struct Broadcaster {
    store: Store,
    query_pool: QueryPool,
    clock: Clock,
    /// Contains how many stored events one filter may return.
    settings: SettingsReceiver,
    /// Sequence number of the last event that was broadcast.
    last_seq: u64,
    subscriptions: HashMap<SubscriptionKey, OpenSubscription>,
    index: HashMap<IndexKey, HashSet<SubscriptionKey>>,
}

impl Broadcaster {
    pub(crate) fn new(store: Store, query_pool: QueryPool, clock: Clock, settings: SettingsReceiver) -> Self {
        let last_seq = store.last_seq();
        let (subscriptions, index) = (HashMap::new(), HashMap::new());
        Self { store, query_pool, clock, settings, last_seq, subscriptions, index }
    }

    /// Handles requests until the sender of `stop` is dropped.
    pub(crate) fn run(mut self, inbox: &BroadcastInbox, stop: &Receiver<()>) {
        loop {
            crossbeam_channel::select! {
                recv(inbox.requests) -> request => match request {
                    Ok(request) => self.handle(request, &inbox.is_commit_queued),
                    Err(_) => break,
                },
                recv(inbox.ephemeral) -> request => match request {
                    Ok(request) => self.handle(request, &inbox.is_commit_queued),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
        }
    }

    fn handle(&mut self, request: BroadcastRequest, is_commit_queued: &AtomicBool) {
        match request {
            BroadcastRequest::Subscribe(subscription) => self.subscribe(*subscription),
            BroadcastRequest::Unsubscribe(key) => self.unsubscribe(key),
            BroadcastRequest::Committed => {
                // Cleared before the store is read, so that a commit from now on queues a new request.
                is_commit_queued.store(false, Ordering::Release);
                self.broadcast_new_events();
            }
            BroadcastRequest::Ephemeral(event) => {
                let bytes = EventRecord::write(&event);
                if let Ok(record) = EventRecord::read(&bytes) {
                    self.broadcast(u64::MAX, &record);
                }
            }
        }
    }

    fn subscribe(&mut self, subscription: Subscription) {
        let Subscription { key, prefix, filters, reservation, session } = subscription;
        let filter_limit = self.settings.borrow().filter_limit;
        let scan = Scan::new(filters.clone(), filter_limit, self.last_seq);
        let filters: Vec<PreparedFilter> = filters.into_iter().map(PreparedFilter::new).collect();
        for index_key in filters.iter().flat_map(index_keys) {
            self.index.entry(index_key).or_default().insert(key);
        }
        let (after_seq, open_session) = (self.last_seq, session.clone());
        let open = OpenSubscription { filters, session: open_session, after_seq, _reservation: reservation };
        self.subscriptions.insert(key, open);
        self.query_pool.submit(QueryJob::Scan(Box::new(ScanJob::new(scan, key, prefix, session, None))));
    }

    fn unsubscribe(&mut self, key: SubscriptionKey) {
        let Some(subscription) = self.subscriptions.remove(&key) else { return };
        for index_key in subscription.filters.iter().flat_map(index_keys) {
            if let Some(keys) = self.index.get_mut(&index_key) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.index.remove(&index_key);
                }
            }
        }
        release_unused(&mut self.index);
        release_unused(&mut self.subscriptions);
    }

    /// Broadcasts all events that became visible since the last call.
    fn broadcast_new_events(&mut self) {
        let store = self.store.clone();
        loop {
            let before = self.last_seq;
            let read = store.events_since(before, READ_BATCH_EVENTS, |seq, record| {
                self.broadcast(seq, &record);
                // Recorded for each event, so that none is sent twice if a later one cannot be read.
                self.last_seq = seq;
            });
            if let Err(error) = read {
                error!(target: "relay", %error, "cannot read new events for broadcast");
                break;
            }
            if self.last_seq == before {
                break;
            }
        }
    }

    fn broadcast(&self, seq: u64, record: &EventRecord<'_>) {
        if record.expires_at().is_some_and(|expires_at| expires_at <= self.clock.wall()) {
            return;
        }
        let mut json: Option<Arc<[u8]>> = None;
        for key in self.candidates(record) {
            let Some(subscription) = self.subscriptions.get(&key) else { continue };
            if seq > subscription.after_seq && subscription.filters.iter().any(|filter| filter.matches(record)) {
                subscription.session.send_live(key, json.get_or_insert_with(|| record.json().into()));
            }
        }
    }

    /// Returns the subscriptions that are indexed by one of the event's fields.
    fn candidates(&self, record: &EventRecord<'_>) -> Vec<SubscriptionKey> {
        if self.index.is_empty() {
            return Vec::new();
        }
        let mut keys = Vec::new();
        let tags = record.tags().map(|(tag_name, value)| IndexKey::Tag(tag_name, value.into()));
        let fields = [
            IndexKey::Id(record.id().0),
            IndexKey::Author(record.author().0),
            IndexKey::Kind(record.kind()),
            IndexKey::Any,
        ];
        for index_key in fields.into_iter().chain(tags) {
            keys.extend(self.index.get(&index_key).into_iter().flatten());
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Frees the memory of a table of which less than a quarter is in use. The cost per removed entry is constant.
fn release_unused<K: Eq + Hash, V>(table: &mut HashMap<K, V>) {
    if table.capacity() > MIN_TABLE_ENTRIES && table.len() < table.capacity() / 4 {
        table.shrink_to(2 * table.len());
    }
}

/// Returns the keys by which a filter is indexed: each value of its most selective condition.
fn index_keys(prepared: &PreparedFilter) -> Vec<IndexKey> {
    let filter = prepared.filter();
    if let Some(ids) = &filter.ids {
        ids.iter().map(|id| IndexKey::Id(id.0)).collect()
    } else if let Some((tag_name, values)) = prepared.tags().iter().min_by_key(|(_, values)| values.len()) {
        values.iter().map(|value| IndexKey::Tag(*tag_name, value.as_bytes().into())).collect()
    } else if let Some(authors) = &filter.authors {
        authors.iter().map(|author| IndexKey::Author(author.0)).collect()
    } else if let Some(kinds) = &filter.kinds {
        kinds.iter().map(|kind| IndexKey::Kind(*kind)).collect()
    } else {
        vec![IndexKey::Any]
    }
}

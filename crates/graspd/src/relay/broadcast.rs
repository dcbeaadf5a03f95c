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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::nostr::{Filter, SignedEvent};
use grasp_store::{EventRecord, PreparedFilter, Scan, Store};
use tracing::error;

use super::outbox::{EventPrefix, SessionSender, SubscriptionKey};
use super::query_pool::{QueryJob, QueryPool, ScanJob};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::network_limits::ClientNetwork;
use crate::http::network_queue::NetworkQueue;
use crate::http::shared_budget::BudgetReservation;
use crate::writer::CommitListener;

/// Ephemeral events that may wait to be broadcast. Beyond this number they are dropped.
const MAX_QUEUED_EPHEMERAL: usize = 1_024;

/// Number of entries up to which the tables of subscriptions keep their memory when entries are removed.
const MIN_TABLE_ENTRIES: usize = 1_024;

/// How many events are read from the store at a time.
const READ_BATCH_EVENTS: usize = 1_000;

/// How many subscriptions are opened or closed before ephemeral events are looked for again.
const REQUESTS_PER_TURN: usize = 64;

enum BroadcastRequest {
    Subscribe(Box<Subscription>),
    Unsubscribe(SubscriptionKey),
}

/// A subscription to be opened.
pub(crate) struct Subscription {
    pub(crate) key: SubscriptionKey,
    /// The subscription id that the client chose. Only the session keeps it, until the subscription is closed.
    pub(crate) id: Weak<str>,
    pub(crate) prefix: EventPrefix,
    pub(crate) filters: Vec<Filter>,
    /// The memory of the filters.
    pub(crate) reservation: Arc<BudgetReservation>,
    pub(crate) session: SessionSender,
}

/// Sends requests to the broadcast thread.
#[derive(Clone)]
pub(crate) struct BroadcastHandle {
    /// Subscriptions to be opened and closed. Networks take turns, so that one that changes large subscriptions all the
    /// time does not delay others.
    requests: Arc<NetworkQueue<BroadcastRequest>>,
    /// Events that are not stored, in a bounded queue.
    ephemeral: Sender<Arc<SignedEvent>>,
    /// Whether there are new events in the store.
    has_new_events: Arc<AtomicBool>,
    /// Wakes the thread up. One message is enough, however much there is to do.
    wake: Sender<()>,
}

impl CommitListener for BroadcastHandle {
    fn on_commit(&self) {
        if !self.has_new_events.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    fn on_ephemeral(&self, event: Arc<SignedEvent>) {
        let _ = self.ephemeral.try_send(event);
    }
}

/// Receiving end of a [`BroadcastHandle`].
pub(crate) struct BroadcastInbox {
    handle: BroadcastHandle,
    ephemeral: Receiver<Arc<SignedEvent>>,
    woken: Receiver<()>,
}

impl BroadcastHandle {
    pub(crate) fn new() -> (Self, BroadcastInbox) {
        let (ephemeral_sender, ephemeral) = crossbeam_channel::bounded(MAX_QUEUED_EPHEMERAL);
        let (wake, woken) = crossbeam_channel::bounded(1);
        let (requests, has_new_events) = (Arc::new(NetworkQueue::new()), Arc::new(AtomicBool::new(false)));
        let handle = Self { requests, ephemeral: ephemeral_sender, has_new_events, wake };
        (handle.clone(), BroadcastInbox { handle, ephemeral, woken })
    }

    /// Returns the number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.requests.len() + self.ephemeral.len()
    }

    /// Opens a subscription: it receives every event that becomes visible from now on, and a scan sends those that are
    /// stored already. The two meet at one sequence number, so that no event is missing and none is sent twice.
    pub(crate) fn subscribe(&self, subscription: Subscription) {
        self.send(subscription.session.network(), BroadcastRequest::Subscribe(Box::new(subscription)));
    }

    /// Closes a subscription of a client in this network.
    pub(crate) fn unsubscribe(&self, network: Option<ClientNetwork>, key: SubscriptionKey) {
        self.send(network, BroadcastRequest::Unsubscribe(key));
    }

    fn send(&self, network: Option<ClientNetwork>, request: BroadcastRequest) {
        self.requests.push(network, request);
        self.wake();
    }

    fn wake(&self) {
        // If the queue is full, the thread is about to wake up anyway.
        let _ = self.wake.try_send(());
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
    /// The memory of the filters, which the scan of stored events may use longer.
    _reservation: Arc<BudgetReservation>,
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
                recv(inbox.woken) -> woken => match woken {
                    Ok(()) => self.take_turn(&inbox.handle),
                    Err(_) => break,
                },
                recv(inbox.ephemeral) -> event => match event {
                    Ok(event) => self.broadcast_ephemeral(&event),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
        }
    }

    /// Broadcasts new events, and opens and closes some subscriptions.
    fn take_turn(&mut self, handle: &BroadcastHandle) {
        for _ in 0..REQUESTS_PER_TURN {
            let request = handle.requests.try_pop();
            // After the request was taken, because a client expects to find what it published before. Cleared before
            // the store is read, so that a commit from now on wakes the thread again.
            if handle.has_new_events.swap(false, Ordering::AcqRel) {
                self.broadcast_new_events();
            }
            match request {
                Some(BroadcastRequest::Subscribe(subscription)) => self.subscribe(*subscription),
                Some(BroadcastRequest::Unsubscribe(key)) => self.unsubscribe(key),
                None => return,
            }
        }
        handle.wake();
    }

    fn broadcast_ephemeral(&self, event: &SignedEvent) {
        let bytes = EventRecord::write(event);
        if let Ok(record) = EventRecord::read(&bytes) {
            self.broadcast(u64::MAX, &record);
        }
    }

    fn subscribe(&mut self, subscription: Subscription) {
        let Subscription { key, id, prefix, filters, reservation, session } = subscription;
        let filter_limit = self.settings.borrow().filter_limit;
        let scan = Scan::new(filters.clone(), filter_limit, self.last_seq);
        let filters: Vec<PreparedFilter> = filters.into_iter().map(PreparedFilter::new).collect();
        for index_key in filters.iter().flat_map(index_keys) {
            self.index.entry(index_key).or_default().insert(key);
        }
        let (after_seq, open_session) = (self.last_seq, session.clone());
        let open = OpenSubscription { filters, session: open_session, after_seq, _reservation: reservation.clone() };
        self.subscriptions.insert(key, open);
        let (frames, _reservation) = (Vec::new(), reservation);
        self.query_pool.submit(QueryJob::Scan(Box::new(ScanJob {
            scan,
            key,
            id,
            prefix,
            session,
            frames,
            _reservation,
        })));
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

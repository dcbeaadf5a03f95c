//! The live room: who hears of an event that has just become visible.
//!
//! A filter stands in the index under one of its conditions only, the most selective; what is found there is then
//! checked in full. So an event costs as much as there are subscriptions that could want it, not as there are
//! subscriptions. The room reads new events from the store, from the last sequence number it has seen: the writer only
//! rings a bell, and nothing can pile up between them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender};
use grasp_core::limits;
use grasp_core::nostr::{Filter, SignedEvent};
use grasp_store::{PreparedFilter, EventRecord, Scan, Store};
use tracing::error;

use super::outbox::{Head, SessionMessage, SessionSender, SubscriptionKey};
use super::query_pool::{Job, QueryPool, ScanJob};
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::writer::CommitListener;

/// Events that go to listeners only and were not stored; beyond this many waiting they are dropped.
const MAX_PASSING: usize = 1_024;

/// How many events the room reads at a time.
const READ_AT_ONCE: usize = 1_000;

pub(crate) enum Request {
    Subscribe(Box<Subscription>),
    Unsubscribe(SubscriptionKey),
    /// There are new events in the store.
    Bell,
    /// An event that is not stored.
    Pass(Arc<SignedEvent>),
}

/// A subscription as a session orders it.
pub(crate) struct Subscription {
    pub(crate) key: SubscriptionKey,
    pub(crate) head: Head,
    pub(crate) filters: Vec<Filter>,
    pub(crate) to: SessionSender,
}

/// Where requests are handed in.
#[derive(Clone)]
pub(crate) struct BroadcastHandle {
    sender: Sender<Request>,
    /// Events that pass through have their own, bounded way.
    passing: Sender<Request>,
    /// Whether the bell has been rung and not yet been heard.
    rung: Arc<AtomicBool>,
    /// Filter memory of all subscriptions, for who wants to know.
    filter_bytes: Arc<AtomicUsize>,
}

impl CommitListener for BroadcastHandle {
    fn committed(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.send(Request::Bell);
        }
    }

    fn pass(&self, event: Arc<SignedEvent>) {
        let _ = self.passing.try_send(Request::Pass(event));
    }
}

/// What stands behind the door.
pub(crate) struct BroadcastInbox {
    requests: Receiver<Request>,
    passing: Receiver<Request>,
    rung: Arc<AtomicBool>,
    filter_bytes: Arc<AtomicUsize>,
}

impl BroadcastHandle {
    pub(crate) fn new() -> (Self, BroadcastInbox) {
        let (sender, requests) = crossbeam_channel::unbounded();
        let (passing, passing_inbox) = crossbeam_channel::bounded(MAX_PASSING);
        let rung = Arc::new(AtomicBool::new(false));
        let filter_bytes = Arc::new(AtomicUsize::new(0));
        let door = Self { sender, passing, rung: rung.clone(), filter_bytes: filter_bytes.clone() };
        (door, BroadcastInbox { requests, passing: passing_inbox, rung, filter_bytes })
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.sender.len() + self.passing.len()
    }

    /// Filter memory of all subscriptions.
    pub(crate) fn filter_bytes(&self) -> usize {
        self.filter_bytes.load(Ordering::Relaxed)
    }

    /// Begins a subscription: it hears everything that becomes visible from now on, and a scan shows what was visible
    /// before. The two meet at one sequence number, so nothing is missing and nothing comes twice.
    pub(crate) fn subscribe(&self, subscription: Subscription) {
        self.send(Request::Subscribe(Box::new(subscription)));
    }

    pub(crate) fn unsubscribe(&self, key: SubscriptionKey) {
        self.send(Request::Unsubscribe(key));
    }

    fn send(&self, request: Request) {
        let _ = self.sender.send(request);
    }
}

/// The condition under which a filter stands in the index.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Field {
    Id([u8; 32]),
    Tag(u8, Box<[u8]>),
    Author([u8; 32]),
    Kind(u16),
    Any,
}

struct Listener {
    matchers: Vec<PreparedFilter>,
    to: SessionSender,
    /// It hears what is later than this.
    after_seq: u64,
    bytes: usize,
}

/// The live room's thread.
pub(crate) struct Live {
    store: Store,
    readers: QueryPool,
    clock: Clock,
    /// Where it stands how many stored events one filter may bring.
    settings: SettingsReceiver,
    seen: u64,
    listeners: HashMap<SubscriptionKey, Listener>,
    index: HashMap<Field, HashSet<SubscriptionKey>>,
    /// Filter memory of all subscriptions.
    bytes: usize,
}

impl Live {
    pub(crate) fn new(store: Store, readers: QueryPool, clock: Clock, settings: SettingsReceiver) -> Self {
        let seen = store.last_seq();
        Self { store, readers, clock, settings, seen, listeners: HashMap::new(), index: HashMap::new(), bytes: 0 }
    }

    /// The thread's life: until `stop` is dropped.
    pub(crate) fn run(mut self, inbox: &BroadcastInbox, stop: &Receiver<()>) {
        loop {
            crossbeam_channel::select! {
                recv(inbox.requests) -> request => match request {
                    Ok(request) => self.handle(request, &inbox.rung),
                    Err(_) => break,
                },
                recv(inbox.passing) -> request => match request {
                    Ok(request) => self.handle(request, &inbox.rung),
                    Err(_) => break,
                },
                recv(stop) -> _ => break,
            }
            inbox.filter_bytes.store(self.bytes, Ordering::Relaxed);
        }
    }

    fn handle(&mut self, request: Request, rung: &AtomicBool) {
        match request {
            Request::Subscribe(subscription) => self.subscribe(*subscription),
            Request::Unsubscribe(key) => self.unsubscribe(key),
            Request::Bell => {
                // Cleared before reading: what is committed from here on rings again.
                rung.store(false, Ordering::Release);
                self.catch_up();
            }
            Request::Pass(event) => {
                let bytes = EventRecord::write(&event);
                if let Ok(record) = EventRecord::read(&bytes) {
                    self.publish(u64::MAX, &record);
                }
            }
        }
    }

    fn subscribe(&mut self, subscription: Subscription) {
        let Subscription { key, head, filters, to } = subscription;
        let bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
        if self.bytes + bytes > limits::MAX_TOTAL_FILTER_BYTES {
            to.send(SessionMessage::NoRoom { sub: key });
            return;
        }
        let filter_limit = self.settings.borrow().filter_limit;
        let scan = Scan::new(filters.clone(), filter_limit, self.seen);
        let matchers: Vec<PreparedFilter> = filters.into_iter().map(PreparedFilter::new).collect();
        for field in matchers.iter().flat_map(fields) {
            self.index.entry(field).or_default().insert(key);
        }
        self.bytes += bytes;
        self.listeners.insert(key, Listener { matchers, to: to.clone(), after_seq: self.seen, bytes });
        self.readers.submit(Job::Scan(Box::new(ScanJob { scan, sub: key, head, to, frames: Vec::new() })));
    }

    fn unsubscribe(&mut self, key: SubscriptionKey) {
        let Some(listener) = self.listeners.remove(&key) else { return };
        self.bytes -= listener.bytes;
        for field in listener.matchers.iter().flat_map(fields) {
            if let Some(keys) = self.index.get_mut(&field) {
                keys.remove(&key);
                if keys.is_empty() {
                    self.index.remove(&field);
                }
            }
        }
    }

    /// Shows everything that has become visible since the last time.
    fn catch_up(&mut self) {
        let store = self.store.clone();
        loop {
            let before = self.seen;
            let read = store.events_since(before, READ_AT_ONCE, |seq, record| {
                self.publish(seq, &record);
                // Noted at once: what was shown is not shown again, whatever comes of the rest.
                self.seen = seq;
            });
            if let Err(problem) = read {
                error!(%problem, "the live room cannot read the store");
                break;
            }
            if self.seen == before {
                break;
            }
        }
    }

    fn publish(&self, seq: u64, record: &EventRecord<'_>) {
        if record.expires_at().is_some_and(|expires_at| expires_at <= self.clock.wall()) {
            return;
        }
        let mut json: Option<Arc<[u8]>> = None;
        for key in self.candidates(record) {
            let Some(listener) = self.listeners.get(&key) else { continue };
            if seq > listener.after_seq && listener.matchers.iter().any(|matcher| matcher.matches(record)) {
                listener.to.send_live(key, json.get_or_insert_with(|| record.json().into()));
            }
        }
    }

    /// The subscriptions that stand under one of the event's fields.
    fn candidates(&self, record: &EventRecord<'_>) -> Vec<SubscriptionKey> {
        if self.index.is_empty() {
            return Vec::new();
        }
        let mut keys = Vec::new();
        let tags = record.tags().map(|(letter, value)| Field::Tag(letter, value.into()));
        let own = [Field::Id(record.id().0), Field::Author(record.author().0), Field::Kind(record.kind()), Field::Any];
        for field in own.into_iter().chain(tags) {
            keys.extend(self.index.get(&field).into_iter().flatten());
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// Where a filter stands: under each value of its most selective condition.
fn fields(matcher: &PreparedFilter) -> Vec<Field> {
    let filter = matcher.filter();
    if let Some(ids) = &filter.ids {
        ids.iter().map(|id| Field::Id(id.0)).collect()
    } else if let Some((letter, values)) = matcher.tags().iter().min_by_key(|(_, values)| values.len()) {
        values.iter().map(|value| Field::Tag(*letter, value.as_bytes().into())).collect()
    } else if let Some(authors) = &filter.authors {
        authors.iter().map(|author| Field::Author(author.0)).collect()
    } else if let Some(kinds) = &filter.kinds {
        kinds.iter().map(|kind| Field::Kind(*kind)).collect()
    } else {
        vec![Field::Any]
    }
}

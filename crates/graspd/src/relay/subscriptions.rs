//! Subscriptions (REQ) and counts (COUNT) of one session.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{Filter, message};
use grasp_core::time::MonoTime;
use grasp_store::Scan;

use super::session::{SessionIo, WriteBuffer};
use crate::http::shared_budget::{BudgetError, BudgetReservation};
use crate::relay::broadcast::Subscription;
use crate::relay::outbox::{EventPrefix, ScanStatus, SubscriptionKey};
use crate::relay::query_pool::{CountJob, QueryJob, ScanJob};

/// Open subscriptions and unanswered counts of a session.
#[derive(Default)]
pub(crate) struct Subscriptions {
    keys_by_id: HashMap<String, SubscriptionKey>,
    subscriptions: HashMap<SubscriptionKey, SessionSubscription>,
    /// Unanswered counts: subscription id and filter memory.
    counts: HashMap<SubscriptionKey, (String, usize)>,
    /// Queries that wait because too many are running.
    queued: VecDeque<QueuedQuery>,
    /// Number of running scans and counts, including those of closed subscriptions.
    running: usize,
    filter_bytes: usize,
}

struct SessionSubscription {
    /// The subscription id that the client chose. The scan of stored events ends when it is dropped.
    id: Arc<str>,
    prefix: EventPrefix,
    filter_bytes: usize,
    /// Why the subscription ends after its stored events; `None` if live events follow.
    ends_because: Option<&'static str>,
    /// Live events that arrived before EOSE; `None` after EOSE.
    early_events: Option<Vec<Arc<[u8]>>>,
    requested_at: MonoTime,
}

struct QueuedQuery {
    key: SubscriptionKey,
    kind: QueryKind,
    filters: Vec<Filter>,
    /// The memory of the filters.
    reservation: Arc<BudgetReservation>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum QueryKind {
    /// Stored events and then live events.
    Live,
    /// Stored events only.
    StoredOnly,
    Count,
}

/// Text of CLOSED for queries that cannot be answered because their filters need too much memory.
const NO_QUERY_MEMORY: &str = "rate-limited: too many large queries at once, try again later";

/// Returns the text of CLOSED for a subscription that gets its stored events only.
fn no_live_events(error: BudgetError) -> &'static str {
    match error {
        BudgetError::Total => "rate-limited: the server holds as many filters as it can, no live events follow",
        BudgetError::Network => "rate-limited: the filters of your network take too much memory, no live events follow",
    }
}

impl Subscriptions {
    /// Handles REQ. Replaces a subscription with the same id.
    pub(crate) fn req(&mut self, io: &mut SessionIo, id: String, filters: Vec<Filter>) {
        self.close(io, &id);
        let filter_bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
        let limit = io.context.settings.borrow().max_subscriptions;
        if self.subscriptions.len() >= limit {
            let text = format!("rate-limited: at most {limit} subscriptions are kept");
            return io.out.push_text(&message::closed(&id, &text));
        }
        if self.reject_large_filters(filter_bytes, &mut io.out, &id) {
            return;
        }
        // A client over the share of its network still gets its stored events.
        let budgets = &io.context.budgets;
        let (reservation, ends_because) = match budgets.live_filters.reserve(io.sender.network(), filter_bytes) {
            Ok(reservation) => (Ok(reservation), None),
            Err(error) => {
                (budgets.query_filters.reserve(io.sender.network(), filter_bytes), Some(no_live_events(error)))
            }
        };
        let Ok(reservation) = reservation else { return io.out.push_text(&message::closed(&id, NO_QUERY_MEMORY)) };
        let kind = if ends_because.is_none() { QueryKind::Live } else { QueryKind::StoredOnly };
        let key = io.context.new_subscription_key();
        self.filter_bytes += filter_bytes;
        self.keys_by_id.insert(id.clone(), key);
        self.subscriptions.insert(
            key,
            SessionSubscription {
                prefix: EventPrefix::new(&id),
                id: id.into(),
                filter_bytes,
                ends_because,
                early_events: Some(Vec::new()),
                requested_at: io.context.clock.mono(),
            },
        );
        self.queued.push_back(QueuedQuery { key, kind, filters, reservation: Arc::new(reservation) });
        self.start_queries(io);
    }

    /// Handles COUNT.
    pub(crate) fn count(&mut self, io: &mut SessionIo, id: String, filters: Vec<Filter>) {
        if self.counts.len() >= io.context.settings.borrow().max_subscriptions {
            return io.out.push_text(&message::closed(&id, "rate-limited: too many counts at once"));
        }
        let filter_bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
        if self.reject_large_filters(filter_bytes, &mut io.out, &id) {
            return;
        }
        let Ok(reservation) = io.context.budgets.query_filters.reserve(io.sender.network(), filter_bytes) else {
            return io.out.push_text(&message::closed(&id, NO_QUERY_MEMORY));
        };
        let key = io.context.new_subscription_key();
        self.filter_bytes += filter_bytes;
        self.counts.insert(key, (id, filter_bytes));
        let filters = filters.into_iter().map(|filter| Filter { limit: None, ..filter }).collect();
        let reservation = Arc::new(reservation);
        self.queued.push_back(QueuedQuery { key, kind: QueryKind::Count, filters, reservation });
        self.start_queries(io);
    }

    /// Sends CLOSED and returns true if new filters would exceed the memory limit of the connection.
    fn reject_large_filters(&self, filter_bytes: usize, out: &mut WriteBuffer, id: &str) -> bool {
        let limit = limits::MAX_FILTER_BYTES_PER_CONNECTION;
        let is_too_large = self.filter_bytes + filter_bytes > limit;
        if is_too_large {
            let text = format!("rate-limited: active subscriptions exceed max size {limit} bytes");
            out.push_text(&message::closed(id, &text));
        }
        is_too_large
    }

    /// Handles CLOSE.
    pub(crate) fn close(&mut self, io: &SessionIo, id: &str) {
        if let Some(key) = self.keys_by_id.remove(id) {
            self.remove(io, key);
        }
    }

    fn remove(&mut self, io: &SessionIo, key: SubscriptionKey) {
        let Some(subscription) = self.subscriptions.remove(&key) else { return };
        self.keys_by_id.retain(|_, other| *other != key);
        self.filter_bytes -= subscription.filter_bytes;
        for json in subscription.early_events.into_iter().flatten() {
            io.sender.release_live(json.len());
        }
        let before = self.queued.len();
        self.queued.retain(|query| query.key != key);
        // A query that was still queued has not been opened at the broadcast.
        if self.queued.len() == before {
            io.context.broadcast.unsubscribe(io.sender.network(), key);
        }
    }

    /// Closes all subscriptions at the end of the session.
    pub(crate) fn close_all(&mut self, io: &SessionIo) {
        for key in self.subscriptions.keys() {
            io.context.broadcast.unsubscribe(io.sender.network(), *key);
        }
    }

    /// Whether no query for stored events and no count is running or queued.
    pub(crate) fn are_answered(&self) -> bool {
        self.running == 0 && self.queued.is_empty()
    }

    /// Handles a part of the stored events of a subscription.
    pub(crate) fn on_stored_events(
        &mut self,
        io: &mut SessionIo,
        key: SubscriptionKey,
        part: Vec<u8>,
        status: ScanStatus,
    ) {
        let Some(subscription) = self.subscriptions.get_mut(&key) else {
            // Closed or replaced meanwhile: the rest of the scan is dropped.
            self.running -= 1;
            return self.start_queries(io);
        };
        io.out.push_stored(part);
        let end = match status {
            ScanStatus::More(scan) => return io.out.resume_after_write(scan),
            ScanStatus::Done => {
                io.out.push_text(&message::eose(&subscription.id));
                io.context.metrics.relay().observe_query(io.context.clock.mono().since(subscription.requested_at));
                for json in subscription.early_events.take().into_iter().flatten() {
                    io.out.push_live(&subscription.prefix, &json);
                }
                subscription.ends_because
            }
            ScanStatus::TooExpensive => Some("rate-limited: the query touches too many events, narrow it"),
            ScanStatus::Failed => Some("error: the query failed"),
        };
        if let Some(reason) = end {
            io.out.push_text(&message::closed(&subscription.id, reason));
            self.remove(io, key);
        }
        self.running -= 1;
        self.start_queries(io);
    }

    /// Handles a live event.
    pub(crate) fn on_live_event(&mut self, io: &mut SessionIo, key: SubscriptionKey, json: Arc<[u8]>) {
        match self.subscriptions.get_mut(&key) {
            Some(SessionSubscription { early_events: Some(early_events), .. }) => early_events.push(json),
            Some(SessionSubscription { prefix, .. }) => io.out.push_live(prefix, &json),
            None => io.sender.release_live(json.len()),
        }
    }

    /// Handles the result of a count.
    pub(crate) fn on_count(&mut self, io: &mut SessionIo, key: SubscriptionKey, count: Result<u64, &str>) {
        if let Some((id, filter_bytes)) = self.counts.remove(&key) {
            self.filter_bytes -= filter_bytes;
            io.out.push_text(&match count {
                Ok(count) => message::count(&id, count),
                Err(reason) => message::closed(&id, reason),
            });
        }
        self.running -= 1;
        self.start_queries(io);
    }

    /// Starts queued queries up to the limit per connection.
    fn start_queries(&mut self, io: &SessionIo) {
        while self.running < limits::MAX_SCANS_PER_CONNECTION
            && let Some(query) = self.queued.pop_front()
        {
            let QueuedQuery { key, kind, filters, reservation } = query;
            let session = io.sender.clone();
            let subscription = self.subscriptions.get(&key);
            let subscription =
                subscription.map(|subscription| (Arc::downgrade(&subscription.id), subscription.prefix.clone()));
            let job = match (kind, subscription) {
                (QueryKind::Count, _) => {
                    let scan = Scan::new(filters, usize::MAX, io.context.store.last_seq());
                    QueryJob::Count(Box::new(CountJob { scan, key, session, count: 0, _reservation: reservation }))
                }
                (QueryKind::StoredOnly, Some((id, prefix))) => {
                    let limit = io.context.settings.borrow().filter_limit;
                    let scan = Scan::new(filters, limit, io.context.store.last_seq());
                    let (frames, _reservation) = (Vec::new(), reservation);
                    QueryJob::Scan(Box::new(ScanJob { scan, key, id, prefix, session, frames, _reservation }))
                }
                (QueryKind::Live, Some((id, prefix))) => {
                    self.running += 1;
                    io.context.broadcast.subscribe(Subscription { key, id, prefix, filters, reservation, session });
                    continue;
                }
                (QueryKind::StoredOnly | QueryKind::Live, None) => continue,
            };
            self.running += 1;
            io.context.query_pool.submit(job);
        }
    }
}

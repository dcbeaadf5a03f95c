//! Metrics of relay clients and of HTTP requests. The names are those of ngit-grasp.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::nostr::rejection::{Decision, Rejection};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::labels::{DIRECTIONS, EVENT_KINDS, event_kind};
use super::registry::{MetricRegistry, any_of, label_set};
use super::{Metrics, gauge_value};

/// Types of messages from clients.
pub(crate) const RECEIVED_TYPES: [&str; 9] =
    ["event", "req", "close", "count", "auth", "neg_open", "neg_msg", "neg_close", "other"];

/// Types of messages to clients.
const SENT_TYPES: [&str; 10] =
    ["event", "eose", "ok", "notice", "closed", "count", "auth", "neg_msg", "neg_err", "other"];

/// Sent messages that are not counted yet, by their index in the table of types.
pub(crate) type SentCounts = [u64; SENT_TYPES.len()];

/// Index of EVENT in [`SentCounts`].
pub(crate) const SENT_EVENT: usize = 0;

/// Classes of HTTP status codes.
const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Kind of an HTTP request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HttpRoute {
    /// The root: websocket, NIP-11 document and landing page.
    Relay,
    /// Metrics, health checks and the status page.
    Monitoring,
    InfoRefs,
    UploadPack,
    ReceivePack,
    /// The JSON documents about a repository.
    RepositoryJson,
    /// The page of a repository.
    Repository,
    Other,
}

grasp_core::label_table! {
    /// Returns the `route` label.
    HttpRoute {
        Self::Relay => "relay",
        Self::Monitoring => "monitoring",
        Self::InfoRefs => "info_refs",
        Self::UploadPack => "upload_pack",
        Self::ReceivePack => "receive_pack",
        Self::RepositoryJson => "repository_json",
        Self::Repository => "repository",
        Self::Other => "other",
    }
}

label_set! {
    struct ReceivedLabels { r#type: &'static str = [any_of(&RECEIVED_TYPES)] }
}

label_set! {
    struct SentLabels { r#type: &'static str = [any_of(&SENT_TYPES)] }
}

label_set! {
    struct MessageDirectionLabels { direction: &'static str = [any_of(&DIRECTIONS)] }
}

label_set! {
    struct EventKindLabels { kind: &'static str = [any_of(EVENT_KINDS)] }
}

label_set! {
    struct RejectionLabels {
        kind: &'static str = [any_of(EVENT_KINDS)],
        reason: &'static str = [any_of(Rejection::LABELS)],
    }
}

label_set! {
    struct ResponseLabels {
        route: &'static str = [any_of(HttpRoute::LABELS)],
        class: &'static str = [any_of(&STATUS_CLASSES)],
    }
}

/// Metrics of relay clients and of HTTP requests.
#[derive(Debug)]
pub(crate) struct RelayMetrics {
    connections: Counter,
    active: Gauge,
    duration: Histogram,
    unique_ips: Gauge,
    abusers: Gauge,
    messages_received: [Counter; RECEIVED_TYPES.len()],
    messages_sent: [Counter; SENT_TYPES.len()],
    bytes_in: Counter,
    bytes_out: Counter,
    received: Family<EventKindLabels, Counter>,
    stored: Family<EventKindLabels, Counter>,
    held: Family<EventKindLabels, Counter>,
    rejected: Family<RejectionLabels, Counter>,
    queries: Histogram,
    requests: Family<ResponseLabels, Counter>,
    /// Number of connections above which an address is flagged as an abuser.
    abuse_threshold: usize,
    /// Addresses of connected clients, at most one per connection. Only counts of them are exported.
    addresses: Mutex<ClientAddresses>,
    /// Rejected events by reason, for the status page.
    rejections_by_reason: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct ClientAddresses {
    connections: HashMap<IpAddr, usize>,
    abusers: i64,
}

impl RelayMetrics {
    pub(super) fn new(registry: &mut MetricRegistry, abuse_threshold: usize) -> Self {
        let received = registry.register(
            "ngit_websocket_messages_received_total",
            "Websocket messages from clients",
            Family::<ReceivedLabels, Counter>::default(),
        );
        let sent = registry.register(
            "ngit_websocket_messages_sent_total",
            "Websocket messages to clients",
            Family::<SentLabels, Counter>::default(),
        );
        let bytes = registry.register(
            "ngit_websocket_bytes_total",
            "Bytes of websocket messages from clients (in) and to clients (out)",
            Family::<MessageDirectionLabels, Counter>::default(),
        );
        let [bytes_in, bytes_out] =
            DIRECTIONS.map(|direction| bytes.get_or_create_owned(&MessageDirectionLabels { direction }));
        Self {
            connections: registry.add(
                "ngit_websocket_connections_total",
                "Websocket connections of clients since the start of the process",
            ),
            active: registry.add("ngit_websocket_connections_active", "Open websocket connections of clients"),
            duration: registry.register(
                "ngit_websocket_connection_duration_seconds",
                "Duration of websocket connections of clients",
                Histogram::new([1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0]),
            ),
            unique_ips: registry.add("ngit_websocket_unique_ips", "IP addresses with an open websocket connection"),
            abusers: registry.add(
                "ngit_websocket_flagged_abusers",
                "IP addresses with more open websocket connections than NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD",
            ),
            messages_received: RECEIVED_TYPES.map(|r#type| received.get_or_create_owned(&ReceivedLabels { r#type })),
            messages_sent: SENT_TYPES.map(|r#type| sent.get_or_create_owned(&SentLabels { r#type })),
            bytes_in,
            bytes_out,
            received: registry.add("ngit_events_received_total", "Events from clients"),
            stored: registry.add(
                "ngit_events_stored_total",
                "Events from clients that were served at once, and events from any source released from purgatory",
            ),
            held: registry.add(
                "ngit_events_held_total",
                "Events from clients that were put into purgatory until their git data arrives",
            ),
            rejected: registry.add("ngit_events_rejected_total", "Events from clients that were rejected"),
            queries: registry.register(
                "ngit_req_duration_seconds",
                "Time from a REQ to its EOSE",
                Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            ),
            requests: registry
                .add("ngit_http_responses_total", "Responses to HTTP requests by route and class of the status code"),
            abuse_threshold,
            addresses: Mutex::default(),
            rejections_by_reason: Mutex::default(),
        }
    }

    /// Counts a message from a client by the index of its type in [`RECEIVED_TYPES`].
    pub(crate) fn count_received(&self, type_index: usize, bytes: usize) {
        if let Some(counter) = self.messages_received.get(type_index) {
            counter.inc();
        }
        self.bytes_in.inc_by(bytes as u64);
    }

    /// Counts sent messages and bytes, and resets `sent` to zero.
    pub(crate) fn count_sent(&self, sent: &mut SentCounts, bytes: usize) {
        for (count, counter) in sent.iter_mut().zip(&self.messages_sent).filter(|(count, _)| **count > 0) {
            counter.inc_by(std::mem::take(count));
        }
        self.bytes_out.inc_by(bytes as u64);
    }

    /// Records the time between a REQ and its EOSE.
    pub(crate) fn observe_query(&self, duration: Duration) {
        self.queries.observe(duration.as_secs_f64());
    }

    /// Counts the decision about an event from a client. `kind` is `None` if the kind could not be read.
    pub(crate) fn count_decision(&self, kind: Option<u16>, decision: &Decision) {
        let kind = event_kind(kind);
        self.received.get_or_create(&EventKindLabels { kind }).inc();
        match decision {
            Decision::Accept => {
                self.stored.get_or_create(&EventKindLabels { kind }).inc();
            }
            Decision::Hold(_) => {
                self.held.get_or_create(&EventKindLabels { kind }).inc();
            }
            Decision::Reject(rejection) => self.count_rejection(kind, rejection),
            Decision::Broadcast | Decision::Known(_) => {}
        }
    }

    /// Counts an event that was released from purgatory.
    pub(crate) fn count_released(&self, kind: u16) {
        self.stored.get_or_create(&EventKindLabels { kind: event_kind(Some(kind)) }).inc();
    }

    fn count_rejection(&self, kind: &'static str, rejection: &Rejection) {
        let reason = rejection.label();
        let mut by_reason = self.rejections_by_reason.lock().unwrap_or_else(PoisonError::into_inner);
        *by_reason.entry(reason.to_owned()).or_default() += 1;
        self.rejected.get_or_create(&RejectionLabels { kind, reason }).inc();
    }

    /// Returns the number of rejected events from clients by reason since the start of the process.
    pub(crate) fn rejections_by_reason(&self) -> BTreeMap<String, u64> {
        self.rejections_by_reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts the response to an HTTP request.
    pub(crate) fn count_response(&self, route: HttpRoute, status: u16) {
        let [informational, success, redirection, client_error, server_error] = STATUS_CLASSES;
        let class = match status / 100 {
            1 => informational,
            2 => success,
            3 => redirection,
            4 => client_error,
            _ => server_error,
        };
        self.requests.get_or_create(&ResponseLabels { route: route.label(), class }).inc();
    }

    /// Returns the number of open websocket connections.
    pub(crate) fn active_connections(&self) -> i64 {
        self.active.get()
    }

    fn connection_opened(&self, address: IpAddr) {
        self.connections.inc();
        self.active.inc();
        let mut addresses = self.addresses();
        let count = addresses.connections.entry(address).or_default();
        *count += 1;
        let crosses_threshold = *count == self.abuse_threshold + 1;
        addresses.abusers += i64::from(crosses_threshold);
        self.export_addresses(&addresses);
    }

    fn connection_closed(&self, address: IpAddr, duration: Duration) {
        self.active.dec();
        self.duration.observe(duration.as_secs_f64());
        let mut addresses = self.addresses();
        let Some(count) = addresses.connections.get_mut(&address) else { return };
        let crosses_threshold = *count == self.abuse_threshold + 1;
        *count -= 1;
        if *count == 0 {
            addresses.connections.remove(&address);
        }
        addresses.abusers -= i64::from(crosses_threshold);
        self.export_addresses(&addresses);
    }

    fn export_addresses(&self, addresses: &ClientAddresses) {
        self.unique_ips.set(gauge_value(addresses.connections.len() as u64));
        self.abusers.set(addresses.abusers);
    }

    fn addresses(&self) -> MutexGuard<'_, ClientAddresses> {
        // No code panics in the middle of a change, so the value behind a poisoned lock is consistent.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a websocket connection as open until it is dropped.
pub(crate) struct SessionGuard {
    metrics: Metrics,
    address: IpAddr,
    opened_at: Instant,
}

impl SessionGuard {
    pub(crate) fn new(metrics: &Metrics, address: IpAddr) -> Self {
        metrics.relay().connection_opened(address);
        Self { metrics: metrics.clone(), address, opened_at: Instant::now() }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.metrics.relay().connection_closed(self.address, self.opened_at.elapsed());
    }
}

/// Returns the index in [`SentCounts`] of a message to a client.
pub(crate) fn sent_type_index(text: &str) -> usize {
    let name = text.strip_prefix("[\"").and_then(|text| text.split('"').next()).unwrap_or_default();
    let label = match name {
        "EVENT" => "event",
        "EOSE" => "eose",
        "OK" => "ok",
        "NOTICE" => "notice",
        "CLOSED" => "closed",
        "COUNT" => "count",
        "AUTH" => "auth",
        "NEG-MSG" => "neg_msg",
        "NEG-ERR" => "neg_err",
        _ => "other",
    };
    SENT_TYPES.iter().position(|known| *known == label).unwrap_or(SENT_TYPES.len() - 1)
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::{EventId, message};

    use super::*;

    fn address(last_byte: u8) -> IpAddr {
        [203, 0, 113, last_byte].into()
    }

    #[test]
    fn open_connections_are_counted_by_address() {
        let metrics = Metrics::with_limits(crate::config::MetricsLimits { abuse_threshold: 2, ..Default::default() });
        let guards: Vec<SessionGuard> = [1, 1, 1, 2].map(|nth| SessionGuard::new(&metrics, address(nth))).into();
        let text = metrics.encode();
        for line in [
            "ngit_websocket_connections_total 4\n",
            "ngit_websocket_connections_active 4\n",
            "ngit_websocket_unique_ips 2\n",
            "ngit_websocket_flagged_abusers 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        drop(guards);
        let text = metrics.encode();
        for line in [
            "ngit_websocket_connections_total 4\n",
            "ngit_websocket_connections_active 0\n",
            "ngit_websocket_unique_ips 0\n",
            "ngit_websocket_flagged_abusers 0\n",
            "ngit_websocket_connection_duration_seconds_count 4\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("203.0.113"), "addresses of clients are private");
    }

    #[test]
    fn every_message_has_a_type() {
        let id = EventId([7; 32]);
        for (text, expected) in [
            (message::ok(id, true, ""), "ok"),
            (message::notice("x"), "notice"),
            (message::eose("s"), "eose"),
            (message::closed("s", "x"), "closed"),
            (message::count("s", 1), "count"),
            (message::auth("x"), "auth"),
            (message::neg_err("s", "x"), "neg_err"),
            (message::neg_msg("s", &[1]), "neg_msg"),
            ("nonsense".to_owned(), "other"),
        ] {
            assert_eq!(SENT_TYPES[sent_type_index(&text)], expected, "{text}");
        }
        assert_eq!(SENT_TYPES[SENT_EVENT], "event");
    }

    #[test]
    fn decisions_are_counted_by_kind_and_reason() {
        let metrics = Metrics::new();
        metrics.relay().count_decision(Some(1), &Decision::Accept);
        metrics.relay().count_decision(Some(30617), &Decision::Reject(Rejection::NotListed));
        metrics.relay().count_decision(None, &Decision::Reject(Rejection::RateLimited));
        metrics
            .relay()
            .count_decision(Some(40_000), &Decision::Hold(grasp_core::nostr::rejection::AwaitedData::GitData));
        metrics.relay().count_released(30618);
        let text = metrics.encode();
        for line in [
            "ngit_events_stored_total{kind=\"30618\"} 1\n",
            "ngit_events_received_total{kind=\"1\"} 1\n",
            "ngit_events_stored_total{kind=\"1\"} 1\n",
            "ngit_events_held_total{kind=\"other\"} 1\n",
            "ngit_events_rejected_total{kind=\"30617\",reason=\"not_listed\"} 1\n",
            "ngit_events_rejected_total{kind=\"unknown\",reason=\"too_fast\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(metrics.relay().rejections_by_reason()["not_listed"], 1);
    }
}

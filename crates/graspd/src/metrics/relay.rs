//! Metrics of relay clients and of HTTP requests. The names are those of ngit-grasp.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::nostr::rejection::{Decision, Rejection};

use super::labels::{DIRECTIONS, EVENT_KINDS, event_kind};
use super::registry::{Counter, Family, Gauge, Histogram, MetricRegistry, any_of, label_sets, metric_set};
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

label_sets! {
    struct ReceivedLabels { r#type: &'static str = [any_of(&RECEIVED_TYPES)] }
    struct SentLabels { r#type: &'static str = [any_of(&SENT_TYPES)] }
    struct MessageDirectionLabels { direction: &'static str = [any_of(&DIRECTIONS)] }
    struct EventKindLabels { kind: &'static str = [any_of(EVENT_KINDS)] }
    struct RejectionLabels {
        kind: &'static str = [any_of(EVENT_KINDS)],
        reason: &'static str = [any_of(Rejection::LABELS)],
    }
    struct ResponseLabels {
        route: &'static str = [any_of(HttpRoute::LABELS)],
        class: &'static str = [any_of(&STATUS_CLASSES)],
    }
}

metric_set! {
    /// Metrics of relay clients and of HTTP requests.
    pub(crate) struct RelayMetrics(registry, threshold: usize) {
        connections: Counter, "ngit_websocket_connections_total",
            "Websocket connections of clients since the start of the process";
        active: Gauge, "ngit_websocket_connections_active", "Open websocket connections of clients";
        duration: Histogram = Histogram::new([1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0]),
            "ngit_websocket_connection_duration_seconds", "Duration of websocket connections of clients";
        unique_ips: Gauge, "ngit_websocket_unique_ips", "IP addresses with an open websocket connection";
        abusers: Gauge, "ngit_websocket_flagged_abusers",
            "IP addresses with more open websocket connections than NGIT_METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD";
        received: Family<EventKindLabels, Counter>, "ngit_events_received_total", "Events from clients";
        stored: Family<EventKindLabels, Counter>, "ngit_events_stored_total",
            "Events from clients that were served at once, and events from any source released from purgatory";
        held: Family<EventKindLabels, Counter>, "ngit_events_held_total",
            "Events from clients that were put into purgatory until their git data arrives";
        rejected: Family<RejectionLabels, Counter>, "ngit_events_rejected_total",
            "Events from clients that were rejected";
        queries: Histogram = Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            "ngit_req_duration_seconds", "Time from a REQ to its EOSE";
        requests: Family<ResponseLabels, Counter>, "ngit_http_responses_total",
            "Responses to HTTP requests by route and class of the status code";
    }
    with {
        messages_received: [Counter; RECEIVED_TYPES.len()] = registry.add_series(
            "ngit_websocket_messages_received_total", "Websocket messages from clients",
            RECEIVED_TYPES, |r#type| ReceivedLabels { r#type },
        );
        messages_sent: [Counter; SENT_TYPES.len()] = registry.add_series(
            "ngit_websocket_messages_sent_total", "Websocket messages to clients",
            SENT_TYPES, |r#type| SentLabels { r#type },
        );
        /// Bytes in each of [`DIRECTIONS`].
        bytes: [Counter; 2] = registry.add_series(
            "ngit_websocket_bytes_total", "Bytes of websocket messages from clients (in) and to clients (out)",
            DIRECTIONS, |direction| MessageDirectionLabels { direction },
        );
        /// Number of connections above which an address is flagged as an abuser.
        abuse_threshold: usize = threshold;
        /// Addresses of connected clients, at most one per connection. Only counts of them are exported.
        addresses: Mutex<ClientAddresses> = Mutex::default();
        /// Rejected events by reason, for the status page.
        rejections_by_reason: Mutex<BTreeMap<String, u64>> = Mutex::default();
    }
}

#[derive(Debug, Default)]
struct ClientAddresses {
    connections: HashMap<IpAddr, usize>,
    abusers: i64,
}

impl RelayMetrics {
    /// Registers the metrics and creates the series of all fixed labels with value zero, so that a query can tell zero
    /// from a missing metric. Of the pairs of kind and reason there are about a thousand, so each kind and each reason is
    /// in one of them.
    pub(super) fn new(registry: &mut MetricRegistry, abuse_threshold: usize) -> Self {
        let metrics = Self::register(registry, abuse_threshold);
        for kind in EVENT_KINDS {
            for family in [&metrics.received, &metrics.stored, &metrics.held] {
                family.get_or_create(&EventKindLabels { kind }).inc_by(0);
            }
            let reason = Rejection::Unrelated.label();
            metrics.rejected.get_or_create(&RejectionLabels { kind, reason }).inc_by(0);
        }
        for reason in Rejection::LABELS {
            metrics.rejected.get_or_create(&RejectionLabels { kind: event_kind(None), reason }).inc_by(0);
        }
        for route in HttpRoute::LABELS {
            for class in STATUS_CLASSES {
                metrics.requests.get_or_create(&ResponseLabels { route, class }).inc_by(0);
            }
        }
        metrics
    }

    /// Counts a message from a client by the index of its type in [`RECEIVED_TYPES`].
    pub(crate) fn count_received(&self, type_index: usize, bytes: usize) {
        if let Some(counter) = self.messages_received.get(type_index) {
            counter.inc();
        }
        self.bytes[0].inc_by(bytes as u64);
    }

    /// Counts sent messages and bytes, and resets `sent` to zero.
    pub(crate) fn count_sent(&self, sent: &mut SentCounts, bytes: usize) {
        for (count, counter) in sent.iter_mut().zip(&self.messages_sent).filter(|(count, _)| **count > 0) {
            counter.inc_by(std::mem::take(count));
        }
        self.bytes[1].inc_by(bytes as u64);
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
            Decision::Remember | Decision::Broadcast | Decision::Known(_) => {}
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
        let class = STATUS_CLASSES[usize::from(status / 100).clamp(1, STATUS_CLASSES.len()) - 1];
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
    let upper_case = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_uppercase() };
    let label = SENT_TYPES.iter().position(|label| label.bytes().map(upper_case).eq(name.bytes()));
    label.unwrap_or(SENT_TYPES.len() - 1)
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
        metrics.relay().count_decision(Some(30617), &Decision::Reject(Rejection::InvalidIdentifier));
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
            "ngit_events_rejected_total{kind=\"30617\",reason=\"identifier\"} 1\n",
            "ngit_events_rejected_total{kind=\"unknown\",reason=\"too_fast\"} 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert_eq!(metrics.relay().rejections_by_reason()["identifier"], 1);
    }
}

//! What is measured about clients of the relay, and about requests. The names are those that operators know.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grasp_core::nostr::rejection::{Decision, Rejection};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::labels::NO_KIND;
use super::{MetricRegistry, Metrics, counter, gauge, histogram, labels};

/// What clients say.
pub(crate) const HEARD: [&str; 9] =
    ["event", "req", "close", "count", "auth", "neg_open", "neg_msg", "neg_close", "other"];

/// What clients are told.
pub(crate) const SAID: [&str; 10] =
    ["event", "eose", "ok", "notice", "closed", "count", "auth", "neg_msg", "neg_err", "other"];

/// Messages that were said and not yet counted, by their place in [`SAID`].
pub(crate) type Said = [u64; SAID.len()];

/// The place of an event in [`SAID`].
pub(crate) const SAID_EVENT: usize = 0;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Type {
    r#type: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct RejectionLabels {
    kind: &'static str,
    reason: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Answered {
    route: &'static str,
    class: &'static str,
}

/// What is measured about clients.
#[derive(Debug)]
pub(crate) struct RelayMetrics {
    connections: Counter,
    active: Gauge,
    duration: Histogram,
    unique_ips: Gauge,
    abusers: Gauge,
    heard: [Counter; HEARD.len()],
    said: [Counter; SAID.len()],
    bytes_in: Counter,
    bytes_out: Counter,
    received: Family<Kind, Counter>,
    stored: Family<Kind, Counter>,
    held: Family<Kind, Counter>,
    rejected: Family<RejectionLabels, Counter>,
    queries: Histogram,
    requests: Family<Answered, Counter>,
    /// Connections of an address above which it counts as an abuser.
    threshold: usize,
    /// Only counts of them are ever told. There are at most as many as connections.
    addresses: Mutex<Addresses>,
    /// Refused events by reason, for people.
    reasons: Mutex<BTreeMap<String, u64>>,
}

#[derive(Debug, Default)]
struct Addresses {
    connections: HashMap<IpAddr, usize>,
    abusers: i64,
}

impl RelayMetrics {
    pub(super) fn new(to: &mut MetricRegistry, threshold: usize) -> Self {
        let heard = counter(
            to,
            "ngit_websocket_messages_received_total",
            "Messages of clients, by type",
            Family::<Type, Counter>::default(),
        );
        let said = counter(
            to,
            "ngit_websocket_messages_sent_total",
            "Messages to clients, by type",
            Family::<Type, Counter>::default(),
        );
        let bytes = counter(
            to,
            "ngit_websocket_bytes_total",
            "Bytes of messages of clients (in) and to them (out)",
            Family::<Direction, Counter>::default(),
        );
        let way = |direction| bytes.get_or_create_owned(&Direction { direction });
        Self {
            connections: counter(
                to,
                "ngit_websocket_connections_total",
                "Websocket connections since the start",
                Counter::default(),
            ),
            active: gauge(to, "ngit_websocket_connections_active", "Websocket connections now", Gauge::default()),
            duration: histogram(
                to,
                "ngit_websocket_connection_duration_seconds",
                "How long websocket connections lasted",
                Histogram::new([1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0]),
            ),
            unique_ips: gauge(
                to,
                "ngit_websocket_unique_ips",
                "Addresses that have a websocket connection now",
                Gauge::default(),
            ),
            abusers: gauge(
                to,
                "ngit_websocket_flagged_abusers",
                "Addresses with more websocket connections than METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD",
                Gauge::default(),
            ),
            heard: HEARD.map(|r#type| heard.get_or_create_owned(&Type { r#type })),
            said: SAID.map(|r#type| said.get_or_create_owned(&Type { r#type })),
            bytes_in: way("in"),
            bytes_out: way("out"),
            received: counter(
                to,
                "ngit_events_received_total",
                "Events that clients offered, by kind",
                Family::default(),
            ),
            stored: counter(
                to,
                "ngit_events_stored_total",
                "Events of clients that were served at once, and events of anybody whose git data has come, by kind",
                Family::default(),
            ),
            held: counter(
                to,
                "ngit_events_held_total",
                "Events of clients that wait for git data, by kind",
                Family::default(),
            ),
            rejected: counter(
                to,
                "ngit_events_rejected_total",
                "Events of clients that were refused, by kind and reason",
                Family::default(),
            ),
            queries: histogram(
                to,
                "ngit_req_duration_seconds",
                "From a REQ to its EOSE",
                Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]),
            ),
            requests: counter(
                to,
                "ngit_http_responses_total",
                "Answers to HTTP requests, by route and class of status",
                Family::default(),
            ),
            threshold,
            addresses: Mutex::default(),
            reasons: Mutex::default(),
        }
    }

    /// A client has said something of the type at this place of [`HEARD`].
    pub(crate) fn heard(&self, place: usize, bytes: usize) {
        if let Some(counter) = self.heard.get(place) {
            counter.inc();
        }
        self.bytes_in.inc_by(bytes as u64);
    }

    /// Something was written.
    pub(crate) fn said(&self, said: &mut Said, bytes: usize) {
        for (count, counter) in said.iter_mut().zip(&self.said).filter(|(count, _)| **count > 0) {
            counter.inc_by(std::mem::take(count));
        }
        self.bytes_out.inc_by(bytes as u64);
    }

    /// A stored answer is complete.
    pub(crate) fn answered(&self, took: Duration) {
        self.queries.observe(took.as_secs_f64());
    }

    /// A client's event has been judged. The kind is unknown if it was no event.
    pub(crate) fn judged(&self, kind: Option<u16>, verdict: &Decision) {
        let kind = kind.map_or(NO_KIND, labels::kind);
        self.received.get_or_create(&Kind { kind }).inc();
        match verdict {
            Decision::Accept => {
                self.stored.get_or_create(&Kind { kind }).inc();
            }
            Decision::Hold(_) => {
                self.held.get_or_create(&Kind { kind }).inc();
            }
            Decision::Reject(why) => self.rejected(kind, why),
            Decision::Broadcast | Decision::Known(_) => {}
        }
    }

    /// An event that waited for git data is served.
    pub(crate) fn released(&self, kind: u16) {
        self.stored.get_or_create(&Kind { kind: labels::kind(kind) }).inc();
    }

    fn rejected(&self, kind: &'static str, why: &Rejection) {
        let reason = why.label().to_owned();
        *self.reasons.lock().unwrap_or_else(PoisonError::into_inner).entry(reason.clone()).or_default() += 1;
        self.rejected.get_or_create(&RejectionLabels { kind, reason }).inc();
    }

    /// Refused events of clients since the start, by reason.
    pub(crate) fn reasons(&self) -> BTreeMap<String, u64> {
        self.reasons.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A request was answered.
    pub(crate) fn request(&self, route: &'static str, status: u16) {
        let class = match status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        self.requests.get_or_create(&Answered { route, class }).inc();
    }

    /// Websocket connections now.
    pub(crate) fn active(&self) -> i64 {
        self.active.get()
    }

    fn enter(&self, address: IpAddr) {
        self.connections.inc();
        self.active.inc();
        let mut addresses = self.addresses();
        let count = addresses.connections.entry(address).or_default();
        *count += 1;
        let crossed = *count == self.threshold + 1;
        addresses.abusers += i64::from(crossed);
        self.show(&addresses);
    }

    fn leave(&self, address: IpAddr, stayed: Duration) {
        self.active.dec();
        self.duration.observe(stayed.as_secs_f64());
        let mut addresses = self.addresses();
        let Some(count) = addresses.connections.get_mut(&address) else { return };
        let crossed = *count == self.threshold + 1;
        *count -= 1;
        if *count == 0 {
            addresses.connections.remove(&address);
        }
        addresses.abusers -= i64::from(crossed);
        self.show(&addresses);
    }

    fn show(&self, addresses: &Addresses) {
        self.unique_ips.set(i64::try_from(addresses.connections.len()).unwrap_or(i64::MAX));
        self.abusers.set(addresses.abusers);
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        // Nothing in here panics half-way through a change.
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A websocket connection, for as long as it lasts.
pub(crate) struct SessionGuard {
    meter: Metrics,
    address: IpAddr,
    since: Instant,
}

impl SessionGuard {
    pub(crate) fn new(meter: &Metrics, address: IpAddr) -> Self {
        meter.relay().enter(address);
        Self { meter: meter.clone(), address, since: Instant::now() }
    }
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.meter.relay().leave(self.address, self.since.elapsed());
    }
}

/// The place in [`SAID`] of a message that is told.
pub(crate) fn said(text: &str) -> usize {
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
    SAID.iter().position(|known| *known == label).unwrap_or(SAID.len() - 1)
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::{EventId, message};

    use super::*;

    fn address(n: u8) -> IpAddr {
        [203, 0, 113, n].into()
    }

    #[test]
    fn connections_are_counted_while_they_last() {
        let meter = Metrics::with(crate::config::MetricsLimits { abuse_threshold: 2, ..Default::default() });
        let sittings: Vec<SessionGuard> = [1, 1, 1, 2].map(|n| SessionGuard::new(&meter, address(n))).into();
        let text = meter.encode();
        for line in [
            "ngit_websocket_connections_total 4\n",
            "ngit_websocket_connections_active 4\n",
            "ngit_websocket_unique_ips 2\n",
            "ngit_websocket_flagged_abusers 1\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        drop(sittings);
        let text = meter.encode();
        for line in [
            "ngit_websocket_connections_total 4\n",
            "ngit_websocket_connections_active 0\n",
            "ngit_websocket_unique_ips 0\n",
            "ngit_websocket_flagged_abusers 0\n",
            "ngit_websocket_connection_duration_seconds_count 4\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(!text.contains("203.0.113"), "an address is nobody's business");
    }

    #[test]
    fn every_message_has_its_place() {
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
            assert_eq!(SAID[said(&text)], expected, "{text}");
        }
        assert_eq!(SAID[SAID_EVENT], "event");
    }

    #[test]
    fn verdicts_are_told_by_kind_and_reason() {
        let meter = Metrics::new();
        meter.relay().judged(Some(1), &Decision::Accept);
        meter.relay().judged(Some(30617), &Decision::Reject(Rejection::NotListed));
        meter.relay().judged(None, &Decision::Reject(Rejection::RateLimited));
        meter.relay().judged(Some(40_000), &Decision::Hold(grasp_core::nostr::rejection::AwaitedData::GitData));
        meter.relay().released(30618);
        let text = meter.encode();
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
        assert_eq!(meter.relay().reasons()["not_listed"], 1);
    }
}

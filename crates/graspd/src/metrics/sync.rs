//! What is measured about other relays. The names are those that operators know; see also `sync/log.rs`.
//!
//! `relay` is a name that strangers choose: [`limits::MAX_RELAY_LABELS`] relays have a label of their own, configured ones
//! first, then by their repositories; the rest is `other`. What a gauge says of `other` is the sum, or for states the
//! worst. A relay that loses its label loses its counts with it: they were counted once and must not be again.

mod relay;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grasp_core::limits;
use grasp_core::sync::io::{ReconnectKind, SubmitResult, SyncNote, SyncSource};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::sync::{RelaySnapshot, SyncSnapshot, health};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use super::label_limit::{OTHER, Own};
use super::sync::relay::Sample;
use super::{MetricRegistry, counter, gauge};

/// A ratio from 0 to 1.
type Ratio = Gauge<f64, AtomicU64>;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Relay {
    relay: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Attempt {
    relay: String,
    result: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Subscription {
    relay: String,
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Source {
    source: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, EncodeLabelSet)]
struct Verdict {
    verdict: &'static str,
}

const SUCCESS: &str = "success";
const FAILURE: &str = "failure";
const LIVE: &str = "live";
const REQUEST: &str = "request";
const DIRECT: &str = "direct";

/// What is measured about other relays.
#[derive(Debug)]
pub(crate) struct SyncMetrics {
    connected: Family<Relay, Gauge>,
    status: Family<Relay, Gauge>,
    failures: Family<Relay, Gauge>,
    uptime: Family<Relay, Ratio>,
    coverage: Family<Relay, Ratio>,
    subscriptions: Family<Subscription, Gauge>,
    received: Family<Relay, Counter>,
    attempts: Family<Attempt, Counter>,
    gaps: Family<Relay, Counter>,
    rate_limited: Family<Relay, Counter>,
    policy_refusals: Family<Relay, Counter>,
    synced: Counter,
    events: Family<Source, Counter>,
    judged: Family<Verdict, Counter>,
    reconnects: Family<Kind, Counter>,
    relays_tracked: Gauge,
    relays_connected: Gauge,
    relays_dead: Gauge,
    rejected_hot: Gauge,
    rejected_cold: Gauge,
    in_flight: Gauge,
    relays: Mutex<Relays>,
}

/// Which relays there are.
#[derive(Debug)]
struct Relays {
    own: Own<RelayUrl>,
    /// What each had brought in all when it was last looked at.
    received: BTreeMap<RelayUrl, u64>,
}

impl SyncMetrics {
    /// Everything at zero, and known to the registry.
    pub(super) fn new(to: &mut MetricRegistry) -> Self {
        let meter = Self {
            connected: gauge(
                to,
                "ngit_sync_relay_connected",
                "Connection: 0 disconnected, 1 connecting, 2 syncing, 3 connected, 4 connected and history incomplete, -1 \
                 paused or this server itself",
                Family::default(),
            ),
            status: gauge(
                to,
                "ngit_sync_relay_status",
                "Health: 1 healthy, 2 disconnected, 3 degraded, 4 dead, 5 rate limited",
                Family::default(),
            ),
            failures: gauge(to, "ngit_sync_relay_failures", "Failures in a row", Family::default()),
            uptime: gauge(
                to,
                "ngit_sync_peer_uptime_ratio",
                "Share of the time connected, of the time in which the relay was wanted, over restarts",
                Family::default(),
            ),
            coverage: gauge(
                to,
                "ngit_sync_peer_coverage_ratio",
                "Share of the events here that the relay has too, from the last reconciliation",
                Family::default(),
            ),
            subscriptions: gauge(
                to,
                "ngit_sync_subscriptions",
                "Open live subscriptions and other requests",
                Family::default(),
            ),
            received: counter(
                to,
                "ngit_sync_peer_events_received_total",
                "Events that were new here, those that wait for git data included, over restarts",
                Family::default(),
            ),
            attempts: counter(to, "ngit_sync_connection_attempts_total", "Connection attempts", Family::default()),
            gaps: counter(
                to,
                "ngit_sync_gap_events_total",
                "Events that should have come live and were found by asking again",
                Family::default(),
            ),
            rate_limited: counter(
                to,
                "ngit_sync_rate_limited_total",
                "Times that a relay wanted less of us",
                Family::default(),
            ),
            policy_refusals: counter(
                to,
                "ngit_sync_policy_refusals_total",
                "Times that a relay wanted nothing to do with us",
                Family::default(),
            ),
            synced: counter(
                to,
                "ngit_sync_events_synced_total",
                "Events that were new here, those that wait for git data included, from all relays",
                Counter::default(),
            ),
            events: counter(
                to,
                "ngit_sync_events_total",
                "New events by how they came; catchup and daily should have come live",
                Family::default(),
            ),
            judged: counter(to, "ngit_sync_judged_total", "Events of relays by what became of them", Family::default()),
            reconnects: counter(
                to,
                "ngit_sync_reconnects_total",
                "Connections by what they follow: nothing, a short absence, a long one",
                Family::default(),
            ),
            relays_tracked: gauge(to, "ngit_sync_relays_tracked_total", "Relays that are known", Gauge::default()),
            relays_connected: gauge(to, "ngit_sync_relays_connected_total", "Relays connected now", Gauge::default()),
            relays_dead: gauge(
                to,
                "ngit_sync_relays_dead_total",
                "Relays that have not been reached for a day",
                Gauge::default(),
            ),
            rejected_hot: gauge(
                to,
                "ngit_sync_rejected_hot_cache_current",
                "Refused events that are kept whole",
                Gauge::default(),
            ),
            rejected_cold: gauge(
                to,
                "ngit_sync_rejected_cold_index_current",
                "Refused events that are remembered",
                Gauge::default(),
            ),
            in_flight: gauge(to, "ngit_sync_in_flight", "Events of relays that wait for a verdict", Gauge::default()),
            relays: Mutex::new(Relays { own: Own::new(limits::MAX_RELAY_LABELS), received: BTreeMap::new() }),
        };
        meter.begin_at_zero();
        meter
    }

    /// A moment of sync: all gauges.
    pub(crate) fn view(&self, view: &SyncSnapshot) {
        let connected = view.relays.iter().filter(|link| relay::is_up(link.status)).count();
        let dead = view.relays.iter().filter(|link| link.health == health::HealthStatus::Dead).count();
        for (metric, count) in [
            (&self.relays_tracked, view.relays.len()),
            (&self.relays_connected, connected),
            (&self.relays_dead, dead),
            (&self.rejected_cold, view.rejected.0),
            (&self.rejected_hot, view.rejected.1),
            (&self.in_flight, view.in_flight),
        ] {
            metric.set(relay::number(count));
        }

        let mut relays = self.relays();
        let mut links: Vec<&RelaySnapshot> = view.relays.iter().collect();
        // Among equals, whoever has a label keeps it.
        links.sort_by_cached_key(|link| {
            (Reverse((link.is_bootstrap, link.repositories, relays.own.has(&link.url))), &link.url)
        });
        for gone in relays.own.rank(links.iter().map(|link| &link.url)) {
            self.forget(&gone.to_string());
        }
        let (own, rest): (Vec<&RelaySnapshot>, Vec<_>) = links.into_iter().partition(|link| relays.own.has(&link.url));
        for link in &own {
            let label = Relay { relay: link.url.to_string() };
            self.received.get_or_create(&label).inner().store(link.totals.received, Ordering::Relaxed);
            self.set(label, Sample::of(link));
        }
        let other = Relay { relay: OTHER.to_owned() };
        for link in &rest {
            let before = relays.received.get(&link.url).copied().unwrap_or(link.totals.received);
            self.received.get_or_create(&other).inc_by(link.totals.received.saturating_sub(before));
        }
        match rest.iter().map(|link| Sample::of(link)).reduce(Sample::and) {
            Some(sample) => self.set(other, sample),
            None => self.forget_gauges(&other),
        }
        relays.received = view.relays.iter().map(|link| (link.url.clone(), link.totals.received)).collect();
    }

    /// Something that people may want to know.
    pub(crate) fn note(&self, note: &SyncNote) {
        match note {
            SyncNote::Connected(relay, how) => {
                self.attempt(relay, SUCCESS);
                self.reconnects.get_or_create(&Kind { kind: reconnect(*how) }).inc();
            }
            SyncNote::ConnectionFailed { relay, .. } => self.attempt(relay, FAILURE),
            SyncNote::RateLimited(relay, ..) => self.count(relay, |label| {
                self.rate_limited.get_or_create(&label).inc();
            }),
            SyncNote::Parked(relay, _) => self.count(relay, |label| {
                self.policy_refusals.get_or_create(&label).inc();
            }),
            SyncNote::Gaps { relay, count, .. } => self.count(relay, |label| {
                self.gaps.get_or_create(&label).inc_by(*count);
            }),
            SyncNote::ConnectionLost(..)
            | SyncNote::Dead(..)
            | SyncNote::NoNegentropy(_)
            | SyncNote::IsSelf(_)
            | SyncNote::CaughtUp { .. }
            | SyncNote::RelayLacksEvents(..)
            | SyncNote::StatesCompared { .. }
            | SyncNote::BatchFailed(..) => {}
        }
    }

    /// What became of a relay's event.
    pub(crate) fn judged(&self, via: SyncSource, judgement: &SubmitResult) {
        self.judged.get_or_create(&Verdict { verdict: verdict(judgement) }).inc();
        if matches!(judgement, SubmitResult::Stored | SubmitResult::Held) {
            self.synced.inc();
            self.events.get_or_create(&Source { source: source(via) }).inc();
        }
    }

    /// So many events of clients were stored, or wait for git data.
    pub(crate) fn direct(&self, count: u64) {
        self.events.get_or_create(&Source { source: DIRECT }).inc_by(count);
    }

    /// What has few labels has all of them from the beginning: an absence is no zero to whoever watches.
    fn begin_at_zero(&self) {
        for source in [DIRECT, source(SyncSource::Live), source(SyncSource::CatchUp), source(SyncSource::Daily)] {
            self.events.get_or_create(&Source { source }).inc_by(0);
        }
        for kind in [ReconnectKind::Fresh, ReconnectKind::Quick, ReconnectKind::Long].map(reconnect) {
            self.reconnects.get_or_create(&Kind { kind }).inc_by(0);
        }
        for verdict in VERDICTS {
            self.judged.get_or_create(&Verdict { verdict }).inc_by(0);
        }
    }

    fn attempt(&self, relay: &RelayUrl, result: &'static str) {
        self.count(relay, |Relay { relay }| {
            self.attempts.get_or_create(&Attempt { relay, result }).inc();
        });
    }

    /// Counts something under a relay's label. Nobody takes the label away meanwhile: the series would stay for ever.
    fn count(&self, relay: &RelayUrl, count: impl FnOnce(Relay)) {
        let mut relays = self.relays();
        let is_own = relays.own.admit(relay);
        count(Relay { relay: if is_own { relay.to_string() } else { OTHER.to_owned() } });
    }

    fn set(&self, label: Relay, sample: Sample) {
        self.connected.get_or_create(&label).set(sample.connected);
        self.status.get_or_create(&label).set(sample.status);
        self.failures.get_or_create(&label).set(sample.failures);
        set_ratio(&self.uptime, &label, sample.uptime());
        set_ratio(&self.coverage, &label, sample.coverage());
        for (kind, count) in [(LIVE, sample.live), (REQUEST, sample.requests)] {
            let label = Subscription { relay: label.relay.clone(), kind };
            self.subscriptions.get_or_create(&label).set(count);
        }
    }

    /// Removes all series of a relay.
    fn forget(&self, relay: &str) {
        let label = Relay { relay: relay.to_owned() };
        self.forget_gauges(&label);
        for family in [&self.received, &self.gaps, &self.rate_limited, &self.policy_refusals] {
            family.remove(&label);
        }
        for result in [SUCCESS, FAILURE] {
            self.attempts.remove(&Attempt { relay: relay.to_owned(), result });
        }
    }

    fn forget_gauges(&self, label: &Relay) {
        for family in [&self.connected, &self.status, &self.failures] {
            family.remove(label);
        }
        for family in [&self.uptime, &self.coverage] {
            family.remove(label);
        }
        for kind in [LIVE, REQUEST] {
            self.subscriptions.remove(&Subscription { relay: label.relay.clone(), kind });
        }
    }

    fn relays(&self) -> MutexGuard<'_, Relays> {
        // Whoever panicked here left nothing half done that numbers depend on.
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A ratio of nothing is none.
fn set_ratio(family: &Family<Relay, Ratio>, label: &Relay, ratio: Option<f64>) {
    match ratio {
        Some(ratio) => {
            family.get_or_create(label).set(ratio);
        }
        None => {
            family.remove(label);
        }
    }
}

fn source(via: SyncSource) -> &'static str {
    match via {
        SyncSource::Live => LIVE,
        SyncSource::CatchUp => "catchup",
        SyncSource::Daily => "daily",
    }
}

fn reconnect(how: ReconnectKind) -> &'static str {
    match how {
        ReconnectKind::Fresh => "fresh",
        ReconnectKind::Quick => "quick",
        ReconnectKind::Long => "long",
    }
}

const VERDICTS: [&str; 5] = ["stored", "held", "known", "refused", "forged"];

fn verdict(judgement: &SubmitResult) -> &'static str {
    let [stored, held, known, refused, forged] = VERDICTS;
    match judgement {
        SubmitResult::Stored => stored,
        SubmitResult::Held => held,
        SubmitResult::Known => known,
        SubmitResult::Rejected(_) => refused,
        SubmitResult::InvalidSignature => forged,
    }
}

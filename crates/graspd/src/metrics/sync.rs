//! Metrics of sync with other relays. The `ngit_sync_*` names are those of ngit-grasp.
//!
//! The values of `relay` come from announcements. [`limits::MAX_RELAY_LABELS`] relays have a label of their own:
//! configured relays first, then those with the most repositories. The others share `other`; its gauges are sums, or
//! the worst value for states. A relay that loses its label loses its counts too: they are not added to `other`, which
//! would count them twice.

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

use self::relay::RelaySample;
use super::gauge_value;
use super::label_limit::{LabelLimit, OTHER};
use super::registry::{Counter, Family, Gauge, MetricRegistry, any_of, label_sets, metric_set};

/// A ratio from 0 to 1.
type RatioGauge = Gauge<f64, AtomicU64>;

const SUCCESS: &str = "success";
const FAILURE: &str = "failure";
const LIVE: &str = "live";
const REQUEST: &str = "request";

/// Source of events from clients.
const DIRECT: &str = "direct";

/// Sources of events: clients, and those of [`SyncSource`].
const SOURCES: &[&str] = &{
    let mut labels = [DIRECT; SyncSource::LABELS.len() + 1];
    let mut index = 0;
    while index < SyncSource::LABELS.len() {
        labels[index + 1] = SyncSource::LABELS[index];
        index += 1;
    }
    labels
};

label_sets! {
    struct RelayLabels { relay: String = [] }
    struct AttemptLabels { relay: String = [], result: &'static str = [any_of(&[SUCCESS, FAILURE])] }
    struct SubscriptionLabels { relay: String = [], kind: &'static str = [any_of(&[LIVE, REQUEST])] }
    struct SourceLabels { source: &'static str = [any_of(SOURCES)] }
    struct ReconnectLabels { kind: &'static str = [any_of(ReconnectKind::LABELS)] }
    struct ResultLabels { verdict: &'static str = [any_of(SubmitResult::LABELS)] }
}

metric_set! {
    /// Metrics of sync with other relays.
    pub(crate) struct SyncMetrics(registry) {
        connected: Family<RelayLabels, Gauge>, "ngit_sync_relay_connected",
            "Connection status: 0 disconnected, 1 connecting, 2 syncing, 3 connected, 4 connected with incomplete \
             history, -1 paused or this server itself";
        status: Family<RelayLabels, Gauge>, "ngit_sync_relay_status",
            "Health status: 1 healthy, 2 disconnected or connected for less than five minutes, 3 degraded, 4 dead, 5 rate limited";
        failures: Family<RelayLabels, Gauge>, "ngit_sync_relay_failures", "Consecutive connection failures";
        lag: Family<RelayLabels, Gauge>, "ngit_sync_relay_lag_seconds",
            "Seconds for which events of the relay may be missing here, 0 if it is in sync";
        uptime: Family<RelayLabels, RatioGauge>, "ngit_sync_peer_uptime_ratio",
            "Connected share of the time in which the relay was followed, across restarts";
        coverage: Family<RelayLabels, RatioGauge>, "ngit_sync_peer_coverage_ratio",
            "Share of the served events of its repositories that the relay also has, from the last full reconciliation";
        subscriptions: Family<SubscriptionLabels, Gauge>, "ngit_sync_subscriptions",
            "Open subscriptions: live ones and requests for stored events";
        received: Family<RelayLabels, Counter>, "ngit_sync_peer_events_received_total",
            "New events from the relay, including those in purgatory, across restarts";
        attempts: Family<AttemptLabels, Counter>, "ngit_sync_connection_attempts_total",
            "Connection attempts by result";
        gaps: Family<RelayLabels, Counter>, "ngit_sync_gap_events_total",
            "Events that a live subscription should have delivered and a later request found";
        rate_limited: Family<RelayLabels, Counter>, "ngit_sync_rate_limited_total",
            "Times that the relay limited the rate of requests";
        policy_refusals: Family<RelayLabels, Counter>, "ngit_sync_policy_refusals_total",
            "Times that the relay rejected this server by policy";
        unsolicited: Family<RelayLabels, Counter>, "ngit_sync_unsolicited_events_total",
            "Events from the relay that match no open filter and were dropped";
        floods: Family<RelayLabels, Counter>, "ngit_sync_floods_total",
            "Connections that were closed because the relay sent too much that was not requested";
        synced: Counter, "ngit_sync_events_synced_total", "New events from all relays, including those in purgatory";
        events: Family<SourceLabels, Counter>, "ngit_sync_events_total",
            "New events by source: clients (direct), live sync, historic sync (catchup), daily reconciliation";
        results: Family<ResultLabels, Counter>, "ngit_sync_judged_total", "Events from relays by result";
        reconnects: Family<ReconnectLabels, Counter>, "ngit_sync_reconnects_total",
            "Connections: the first one (fresh), after a short absence (quick), after a long absence (long)";
        relays_tracked: Gauge, "ngit_sync_relays_tracked_total", "Followed relays";
        relays_connected: Gauge, "ngit_sync_relays_connected_total", "Connected relays";
        relays_dead: Gauge, "ngit_sync_relays_dead_total", "Relays that could not be reached for a day";
        rejected_hot: Gauge, "ngit_sync_rejected_hot_cache_current",
            "Rejected events that are kept in memory to be submitted again";
        rejected_cold: Gauge, "ngit_sync_rejected_cold_index_current",
            "Rejected events in the index, which are not requested again";
        in_flight: Gauge, "ngit_sync_in_flight", "Events from relays that are submitted and not decided yet";
    }
    with {
        relays: Mutex<KnownRelays> =
            Mutex::new(KnownRelays { labelled: LabelLimit::new(limits::MAX_RELAY_LABELS), received: BTreeMap::new() });
    }
}

/// The known relays.
#[derive(Debug)]
struct KnownRelays {
    labelled: LabelLimit<RelayUrl>,
    /// Total events received from each relay at the last update.
    received: BTreeMap<RelayUrl, u64>,
}

impl SyncMetrics {
    /// Registers the metrics and creates the series of all fixed labels with value zero, so that a query can tell zero
    /// from a missing metric.
    pub(super) fn new(registry: &mut MetricRegistry) -> Self {
        let metrics = Self::register(registry);
        for source in SOURCES {
            metrics.events.get_or_create(&SourceLabels { source }).inc_by(0);
        }
        for kind in ReconnectKind::LABELS {
            metrics.reconnects.get_or_create(&ReconnectLabels { kind }).inc_by(0);
        }
        for verdict in SubmitResult::LABELS {
            metrics.results.get_or_create(&ResultLabels { verdict }).inc_by(0);
        }
        metrics
    }

    /// Sets all gauges from a snapshot.
    pub(crate) fn update(&self, snapshot: &SyncSnapshot) {
        let connected = snapshot.relays.iter().filter(|relay| relay::is_connected(relay.status)).count();
        let dead = snapshot.relays.iter().filter(|relay| relay.health == health::HealthStatus::Dead).count();
        for (metric, count) in [
            (&self.relays_tracked, snapshot.relays.len()),
            (&self.relays_connected, connected),
            (&self.relays_dead, dead),
            (&self.rejected_cold, snapshot.rejected.0),
            (&self.rejected_hot, snapshot.rejected.1),
            (&self.in_flight, snapshot.in_flight),
        ] {
            metric.set(gauge_value(count as u64));
        }

        let mut known = self.known_relays();
        let mut relays: Vec<&RelaySnapshot> = snapshot.relays.iter().collect();
        // Among equally important relays, those that have a label keep it.
        relays.sort_by_cached_key(|relay| {
            (Reverse((relay.is_bootstrap, relay.repositories, known.labelled.contains(&relay.url))), &relay.url)
        });
        for url in known.labelled.rank(relays.iter().map(|relay| &relay.url)) {
            self.remove_series(&url.to_string());
        }
        let (labelled, others): (Vec<&RelaySnapshot>, Vec<_>) =
            relays.into_iter().partition(|relay| known.labelled.contains(&relay.url));
        for relay in &labelled {
            let labels = RelayLabels { relay: relay.url.to_string() };
            self.create_counters(&labels);
            self.received.get_or_create(&labels).inner().store(relay.totals.received, Ordering::Relaxed);
            self.set_gauges(labels, RelaySample::new(relay, snapshot.at));
        }
        let other = RelayLabels { relay: OTHER.to_owned() };
        for relay in &others {
            let before = known.received.get(&relay.url).copied().unwrap_or(relay.totals.received);
            self.received.get_or_create(&other).inc_by(relay.totals.received.saturating_sub(before));
        }
        match others.iter().map(|relay| RelaySample::new(relay, snapshot.at)).reduce(RelaySample::combine) {
            Some(sample) => {
                self.create_counters(&other);
                self.set_gauges(other, sample);
            }
            None => self.remove_gauges(&other),
        }
        known.received = snapshot.relays.iter().map(|relay| (relay.url.clone(), relay.totals.received)).collect();
    }

    /// Counts a note of the sync machine.
    pub(crate) fn count_note(&self, note: &SyncNote) {
        match note {
            SyncNote::Connected(relay, kind) => {
                self.count_attempt(relay, SUCCESS);
                self.reconnects.get_or_create(&ReconnectLabels { kind: kind.label() }).inc();
            }
            SyncNote::ConnectionFailed { relay, .. } => self.count_attempt(relay, FAILURE),
            SyncNote::RateLimited(relay, ..) => self.count(relay, |labels| {
                self.rate_limited.get_or_create(&labels).inc();
            }),
            SyncNote::Unsolicited(relay) => self.count(relay, |labels| {
                self.unsolicited.get_or_create(&labels).inc();
            }),
            SyncNote::Flooded(relay, _) => self.count(relay, |labels| {
                self.floods.get_or_create(&labels).inc();
            }),
            SyncNote::Parked(relay, _) => self.count(relay, |labels| {
                self.policy_refusals.get_or_create(&labels).inc();
            }),
            SyncNote::Gaps { relay, count, .. } => self.count(relay, |labels| {
                self.gaps.get_or_create(&labels).inc_by(*count);
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

    /// Counts the result of an event from a relay.
    pub(crate) fn count_result(&self, source: SyncSource, result: &SubmitResult) {
        self.results.get_or_create(&ResultLabels { verdict: result.label() }).inc();
        if matches!(result, SubmitResult::Stored | SubmitResult::Held) {
            self.synced.inc();
            self.events.get_or_create(&SourceLabels { source: source.label() }).inc();
        }
    }

    /// Counts events from clients that were stored or put into purgatory.
    pub(crate) fn count_direct(&self, events: u64) {
        self.events.get_or_create(&SourceLabels { source: DIRECT }).inc_by(events);
    }

    /// Creates the counters of a relay with value zero.
    fn create_counters(&self, labels: &RelayLabels) {
        for family in [&self.gaps, &self.rate_limited, &self.policy_refusals, &self.unsolicited, &self.floods] {
            family.get_or_create(labels).inc_by(0);
        }
        for result in [SUCCESS, FAILURE] {
            self.attempts.get_or_create(&AttemptLabels { relay: labels.relay.clone(), result }).inc_by(0);
        }
    }

    fn count_attempt(&self, relay: &RelayUrl, result: &'static str) {
        self.count(relay, |RelayLabels { relay }| {
            self.attempts.get_or_create(&AttemptLabels { relay, result }).inc();
        });
    }

    /// Calls `count` with the labels of a relay. The lock is held meanwhile: if the relay lost its label between the
    /// two steps, its series would never be removed.
    fn count(&self, relay: &RelayUrl, count: impl FnOnce(RelayLabels)) {
        let mut known = self.known_relays();
        let is_labelled = known.labelled.admit(relay);
        count(RelayLabels { relay: if is_labelled { relay.to_string() } else { OTHER.to_owned() } });
    }

    fn set_gauges(&self, labels: RelayLabels, sample: RelaySample) {
        self.connected.get_or_create(&labels).set(sample.connected);
        self.status.get_or_create(&labels).set(sample.status);
        self.failures.get_or_create(&labels).set(sample.failures);
        match sample.lag_secs {
            Some(secs) => {
                self.lag.get_or_create(&labels).set(secs);
            }
            None => {
                self.lag.remove(&labels);
            }
        }
        set_ratio(&self.uptime, &labels, sample.uptime());
        set_ratio(&self.coverage, &labels, sample.coverage());
        for (kind, count) in [(LIVE, sample.live), (REQUEST, sample.requests)] {
            let labels = SubscriptionLabels { relay: labels.relay.clone(), kind };
            self.subscriptions.get_or_create(&labels).set(count);
        }
    }

    /// Removes all series of a relay.
    fn remove_series(&self, relay: &str) {
        let labels = RelayLabels { relay: relay.to_owned() };
        self.remove_gauges(&labels);
        for family in
            [&self.received, &self.gaps, &self.rate_limited, &self.policy_refusals, &self.unsolicited, &self.floods]
        {
            family.remove(&labels);
        }
        for result in [SUCCESS, FAILURE] {
            self.attempts.remove(&AttemptLabels { relay: relay.to_owned(), result });
        }
    }

    fn remove_gauges(&self, labels: &RelayLabels) {
        for family in [&self.connected, &self.status, &self.failures, &self.lag] {
            family.remove(labels);
        }
        for family in [&self.uptime, &self.coverage] {
            family.remove(labels);
        }
        for kind in [LIVE, REQUEST] {
            self.subscriptions.remove(&SubscriptionLabels { relay: labels.relay.clone(), kind });
        }
    }

    fn known_relays(&self) -> MutexGuard<'_, KnownRelays> {
        // No code panics in the middle of a change, so the value behind a poisoned lock is consistent.
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets a ratio, or removes its series if there is none.
fn set_ratio(family: &Family<RelayLabels, RatioGauge>, labels: &RelayLabels, ratio: Option<f64>) {
    match ratio {
        Some(ratio) => {
            family.get_or_create(labels).set(ratio);
        }
        None => {
            family.remove(labels);
        }
    }
}

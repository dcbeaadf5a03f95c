use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::rejection::Rejection;
use grasp_core::sync::io::DisconnectReason;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::sync::relay_record::{LearnedLimits, RelayTotals};
use grasp_core::time::Timestamp;

use super::super::Metrics;
use super::*;

fn url(nth: usize) -> RelayUrl {
    RelayUrl::parse(&format!("wss://r{nth:03}.example")).expect("an invalid relay URL")
}

fn relay(nth: usize, repositories: usize) -> RelaySnapshot {
    RelaySnapshot {
        url: url(nth),
        status: ConnectionStatus::Connected,
        health: health::HealthStatus::Healthy,
        failures: 0,
        repositories,
        covered: 0,
        held: 0,
        subscriptions: (3, 2),
        filters: 0,
        polled: 0,
        is_wide: false,
        queued: 0,
        dial_in_millis: None,
        cooldown_secs: None,
        failed_batches: 0,
        historic_sync_completed_at: None,
        last_message_at: None,
        next_full_sync_secs: 0,
        is_reconciling: false,
        progress: None,
        learned: LearnedLimits::default(),
        totals: RelayTotals::default(),
        is_paused: false,
        is_self: false,
        is_bootstrap: false,
    }
}

fn update(metrics: &Metrics, relays: Vec<RelaySnapshot>) {
    metrics.sync().update(&SyncSnapshot { relays, ..SyncSnapshot::default() });
}

/// Returns every series with its value.
fn series(metrics: &Metrics) -> BTreeMap<String, String> {
    let text = metrics.encode();
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut series = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a line without a value");
        assert!(series.insert(name.to_owned(), value.to_owned()).is_none(), "{name} occurs twice");
    }
    series
}

fn value(metrics: &Metrics, name: &str) -> Option<String> {
    series(metrics).get(name).cloned()
}

/// Returns all values of the label `relay`.
fn relay_labels(metrics: &Metrics) -> BTreeSet<String> {
    let names = series(metrics).into_keys();
    names.filter_map(|name| Some(name.split_once("relay=\"")?.1.split_once('"')?.0.to_owned())).collect()
}

fn notes(nth: usize) -> Vec<SyncNote> {
    vec![
        SyncNote::Connected(url(nth), ReconnectKind::Quick),
        SyncNote::ConnectionFailed {
            relay: url(nth),
            reason: DisconnectReason::Unreachable,
            attempt: 1,
            failures: 1,
            backoff_millis: 5_000,
        },
        SyncNote::RateLimited(url(nth), String::new(), 65),
        SyncNote::Parked(url(nth), String::new()),
        SyncNote::Unsolicited(url(nth)),
        SyncNote::Flooded(url(nth), 40),
        SyncNote::Gaps { relay: url(nth), source: SyncSource::CatchUp, count: 7, examples: Vec::new() },
    ]
}

#[test]
fn every_metric_is_declared_once() {
    let metrics = Metrics::new();
    let text = metrics.encode();
    for (name, kind) in [
        ("ngit_sync_relay_connected", "gauge"),
        ("ngit_sync_relay_status", "gauge"),
        ("ngit_sync_relay_failures", "gauge"),
        ("ngit_sync_relay_lag_seconds", "gauge"),
        ("ngit_sync_connection_attempts", "counter"),
        ("ngit_sync_events_synced", "counter"),
        ("ngit_sync_events", "counter"),
        ("ngit_sync_gap_events", "counter"),
        ("ngit_sync_relays_tracked_total", "gauge"),
        ("ngit_sync_relays_connected_total", "gauge"),
        ("ngit_sync_relays_dead_total", "gauge"),
        ("ngit_sync_reconnects", "counter"),
        ("ngit_sync_rejected_hot_cache_current", "gauge"),
        ("ngit_sync_rejected_cold_index_current", "gauge"),
        ("ngit_sync_peer_uptime_ratio", "gauge"),
        ("ngit_sync_peer_coverage_ratio", "gauge"),
        ("ngit_sync_peer_events_received", "counter"),
        ("ngit_sync_subscriptions", "gauge"),
        ("ngit_sync_in_flight", "gauge"),
        ("ngit_sync_rate_limited", "counter"),
        ("ngit_sync_policy_refusals", "counter"),
        ("ngit_sync_unsolicited_events", "counter"),
        ("ngit_sync_floods", "counter"),
        ("ngit_sync_judged", "counter"),
    ] {
        let line = format!("# TYPE {name} {kind}\n");
        assert_eq!(text.matches(&line).count(), 1, "{line}{text}");
        assert_eq!(text.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
    }
    assert_eq!(text.matches("# TYPE ngit_sync_").count(), 24, "{text}");
    assert!(!text.contains("_total_total"), "{text}");
}

#[test]
fn series_with_fixed_labels_start_at_zero() {
    let metrics = Metrics::new();
    let zeros = series(&metrics).into_iter().filter(|(name, value)| value == "0" && name.starts_with("ngit_sync_"));
    let zeros: Vec<_> = zeros.map(|(name, _)| name).collect();
    for name in [
        r#"ngit_sync_events_total{source="direct"}"#,
        r#"ngit_sync_events_total{source="live"}"#,
        r#"ngit_sync_events_total{source="catchup"}"#,
        r#"ngit_sync_events_total{source="daily"}"#,
        r#"ngit_sync_reconnects_total{kind="fresh"}"#,
        r#"ngit_sync_reconnects_total{kind="quick"}"#,
        r#"ngit_sync_reconnects_total{kind="long"}"#,
        r#"ngit_sync_judged_total{verdict="stored"}"#,
        r#"ngit_sync_judged_total{verdict="held"}"#,
        r#"ngit_sync_judged_total{verdict="known"}"#,
        r#"ngit_sync_judged_total{verdict="refused"}"#,
        r#"ngit_sync_judged_total{verdict="forged"}"#,
        "ngit_sync_events_synced_total",
        "ngit_sync_relays_tracked_total",
        "ngit_sync_relays_connected_total",
        "ngit_sync_relays_dead_total",
        "ngit_sync_rejected_hot_cache_current",
        "ngit_sync_rejected_cold_index_current",
        "ngit_sync_in_flight",
    ] {
        assert!(zeros.contains(&name.to_owned()), "{name} is not in {zeros:?}");
    }
    assert_eq!(zeros.len(), 19);
    assert_eq!(relay_labels(&metrics), BTreeSet::new());
}

#[test]
fn snapshot_sets_every_gauge() {
    let metrics = Metrics::new();
    let mut dead = relay(2, 1);
    dead.status = ConnectionStatus::Disconnected;
    dead.health = health::HealthStatus::Dead;
    dead.failures = 31;
    let mut good = relay(1, 1);
    good.status = ConnectionStatus::Syncing;
    good.totals =
        RelayTotals { up_secs: 30, down_secs: 10, received: 5, compared: 8, shared: 6, ..RelayTotals::default() };
    good.last_message_at = Some(Timestamp(70));
    let relays = vec![good, dead];
    let at = Timestamp(100);
    metrics.sync().update(&SyncSnapshot { at, relays, repositories: 1, in_flight: 4, rejected: (9, 2) });
    for (name, wanted) in [
        (r#"ngit_sync_relay_connected{relay="wss://r001.example"}"#, Some("2")),
        (r#"ngit_sync_relay_connected{relay="wss://r002.example"}"#, Some("0")),
        (r#"ngit_sync_relay_status{relay="wss://r001.example"}"#, Some("1")),
        (r#"ngit_sync_relay_status{relay="wss://r002.example"}"#, Some("4")),
        (r#"ngit_sync_relay_failures{relay="wss://r002.example"}"#, Some("31")),
        (r#"ngit_sync_relay_lag_seconds{relay="wss://r001.example"}"#, Some("30")),
        (r#"ngit_sync_relay_lag_seconds{relay="wss://r002.example"}"#, None),
        (r#"ngit_sync_peer_uptime_ratio{relay="wss://r001.example"}"#, Some("0.75")),
        (r#"ngit_sync_peer_uptime_ratio{relay="wss://r002.example"}"#, None),
        (r#"ngit_sync_peer_coverage_ratio{relay="wss://r001.example"}"#, Some("0.75")),
        (r#"ngit_sync_peer_coverage_ratio{relay="wss://r002.example"}"#, None),
        (r#"ngit_sync_peer_events_received_total{relay="wss://r001.example"}"#, Some("5")),
        (r#"ngit_sync_subscriptions{relay="wss://r001.example",kind="live"}"#, Some("3")),
        (r#"ngit_sync_subscriptions{relay="wss://r001.example",kind="request"}"#, Some("2")),
        ("ngit_sync_relays_tracked_total", Some("2")),
        ("ngit_sync_relays_connected_total", Some("1")),
        ("ngit_sync_relays_dead_total", Some("1")),
        ("ngit_sync_rejected_cold_index_current", Some("9")),
        ("ngit_sync_rejected_hot_cache_current", Some("2")),
        ("ngit_sync_in_flight", Some("4")),
    ] {
        assert_eq!(value(&metrics, name).as_deref(), wanted, "{name}");
    }
}

#[test]
fn connection_and_health_have_documented_numbers() {
    let metrics = Metrics::new();
    let states = [
        (ConnectionStatus::Disconnected, "0"),
        (ConnectionStatus::Connecting, "1"),
        (ConnectionStatus::Syncing, "2"),
        (ConnectionStatus::Connected, "3"),
        (ConnectionStatus::ConnectedHistoricSyncFailures, "4"),
    ];
    let healths = [
        (health::HealthStatus::Healthy, "1"),
        (health::HealthStatus::Stabilising, "2"),
        (health::HealthStatus::Disconnected, "2"),
        (health::HealthStatus::Degraded, "3"),
        (health::HealthStatus::Dead, "4"),
        (health::HealthStatus::RateLimited, "5"),
    ];
    for ((status, connected), (health, healthy)) in states.into_iter().zip(healths) {
        update(&metrics, vec![RelaySnapshot { status, health, ..relay(1, 1) }]);
        let name = r#"ngit_sync_relay_connected{relay="wss://r001.example"}"#;
        assert_eq!(value(&metrics, name).as_deref(), Some(connected));
        let name = r#"ngit_sync_relay_status{relay="wss://r001.example"}"#;
        assert_eq!(value(&metrics, name).as_deref(), Some(healthy));
        let up = if status >= ConnectionStatus::Syncing { "1" } else { "0" };
        assert_eq!(value(&metrics, "ngit_sync_relays_connected_total").as_deref(), Some(up));
    }
}

#[test]
fn notes_are_counted() {
    let metrics = Metrics::new();
    for note in notes(1).iter().chain(&notes(1)) {
        metrics.sync().count_note(note);
    }
    for (name, wanted) in [
        (r#"ngit_sync_connection_attempts_total{relay="wss://r001.example",result="success"}"#, "2"),
        (r#"ngit_sync_connection_attempts_total{relay="wss://r001.example",result="failure"}"#, "2"),
        (r#"ngit_sync_rate_limited_total{relay="wss://r001.example"}"#, "2"),
        (r#"ngit_sync_policy_refusals_total{relay="wss://r001.example"}"#, "2"),
        (r#"ngit_sync_unsolicited_events_total{relay="wss://r001.example"}"#, "2"),
        (r#"ngit_sync_floods_total{relay="wss://r001.example"}"#, "2"),
        (r#"ngit_sync_gap_events_total{relay="wss://r001.example"}"#, "14"),
        (r#"ngit_sync_reconnects_total{kind="quick"}"#, "2"),
        (r#"ngit_sync_reconnects_total{kind="long"}"#, "0"),
    ] {
        assert_eq!(value(&metrics, name).as_deref(), Some(wanted), "{name}");
    }
}

#[test]
fn only_new_events_count_as_synced() {
    let metrics = Metrics::new();
    let rejected = SubmitResult::Rejected(Rejection::Unrelated);
    for result in
        [SubmitResult::Stored, SubmitResult::Held, SubmitResult::Known, rejected, SubmitResult::InvalidSignature]
    {
        metrics.sync().count_result(SyncSource::Live, &result);
    }
    metrics.sync().count_result(SyncSource::CatchUp, &SubmitResult::Stored);
    metrics.sync().count_result(SyncSource::Daily, &SubmitResult::Stored);
    metrics.sync().count_direct(5);
    for (name, wanted) in [
        ("ngit_sync_events_synced_total", "4"),
        (r#"ngit_sync_events_total{source="direct"}"#, "5"),
        (r#"ngit_sync_events_total{source="live"}"#, "2"),
        (r#"ngit_sync_events_total{source="catchup"}"#, "1"),
        (r#"ngit_sync_events_total{source="daily"}"#, "1"),
        (r#"ngit_sync_judged_total{verdict="stored"}"#, "3"),
        (r#"ngit_sync_judged_total{verdict="held"}"#, "1"),
        (r#"ngit_sync_judged_total{verdict="known"}"#, "1"),
        (r#"ngit_sync_judged_total{verdict="refused"}"#, "1"),
        (r#"ngit_sync_judged_total{verdict="forged"}"#, "1"),
    ] {
        assert_eq!(value(&metrics, name).as_deref(), Some(wanted), "{name}");
    }
}

#[test]
fn relays_beyond_the_label_limit_share_a_label() {
    let metrics = Metrics::new();
    // The second half of 200 relays has more repositories.
    let mut relays: Vec<_> = (0..200).map(|nth| relay(nth, nth)).collect();
    relays[7].status = ConnectionStatus::Disconnected;
    relays[8].health = health::HealthStatus::Dead;
    relays[9].failures = 12;
    relays[10].totals = RelayTotals { up_secs: 1, down_secs: 3, compared: 2, shared: 1, ..RelayTotals::default() };
    for nth in 0..200 {
        notes(nth).iter().for_each(|note| metrics.sync().count_note(note));
    }
    update(&metrics, relays.clone());
    for nth in 0..200 {
        notes(nth).iter().for_each(|note| metrics.sync().count_note(note));
    }
    update(&metrics, relays);
    let wanted: BTreeSet<_> = (100..200).map(|nth| url(nth).to_string()).chain([OTHER.to_owned()]).collect();
    assert_eq!(relay_labels(&metrics), wanted);
    for (name, wanted) in [
        (r#"ngit_sync_relay_connected{relay="other"}"#, "0"),
        (r#"ngit_sync_relay_status{relay="other"}"#, "4"),
        (r#"ngit_sync_relay_failures{relay="other"}"#, "12"),
        (r#"ngit_sync_peer_uptime_ratio{relay="other"}"#, "0.25"),
        (r#"ngit_sync_peer_coverage_ratio{relay="other"}"#, "0.5"),
        (r#"ngit_sync_subscriptions{relay="other",kind="live"}"#, "300"),
        // The second half had no label before the first ranking, and the first half none after it.
        (r#"ngit_sync_rate_limited_total{relay="other"}"#, "200"),
        (r#"ngit_sync_rate_limited_total{relay="wss://r150.example"}"#, "1"),
        ("ngit_sync_relays_tracked_total", "200"),
    ] {
        assert_eq!(value(&metrics, name).as_deref(), Some(wanted), "{name}");
    }
}

#[test]
fn series_of_removed_relays_are_removed() {
    let metrics = Metrics::new();
    let before = series(&metrics).into_keys().collect::<BTreeSet<_>>();
    for round in 0..5 {
        let relays = round * 200..(round + 1) * 200;
        update(&metrics, relays.clone().map(|nth| relay(nth, 1)).collect());
        for nth in relays {
            notes(nth).iter().for_each(|note| metrics.sync().count_note(note));
        }
        assert_eq!(relay_labels(&metrics).len(), 101);
    }
    update(&metrics, Vec::new());
    assert_eq!(relay_labels(&metrics), BTreeSet::from([OTHER.to_owned()]), "the counts of all others remain");
    let after: BTreeSet<_> = series(&metrics).into_keys().filter(|name| !name.contains(r#"relay="other""#)).collect();
    assert_eq!(after, before);
    for gauge in ["relay_connected", "relay_status", "relay_failures", "peer_uptime_ratio", "peer_coverage_ratio"] {
        assert_eq!(value(&metrics, &format!(r#"ngit_sync_{gauge}{{relay="other"}}"#)), None, "{gauge}");
    }
}

#[test]
fn ratio_is_removed_without_compared_events() {
    let metrics = Metrics::new();
    let name = r#"ngit_sync_peer_coverage_ratio{relay="wss://r001.example"}"#;
    update(
        &metrics,
        vec![RelaySnapshot { totals: RelayTotals { compared: 4, shared: 4, ..RelayTotals::default() }, ..relay(1, 1) }],
    );
    assert_eq!(value(&metrics, name).as_deref(), Some("1.0"));
    update(&metrics, vec![relay(1, 1)]);
    assert_eq!(value(&metrics, name), None);
}

#[test]
fn configured_relays_are_labelled_first_and_equal_relays_keep_labels() {
    let metrics = Metrics::new();
    update(&metrics, (100..200).map(|nth| relay(nth, 1)).collect());
    let configured = RelaySnapshot { is_bootstrap: true, ..relay(0, 0) };
    update(&metrics, [configured].into_iter().chain((1..200).map(|nth| relay(nth, 1))).collect());
    let wanted: BTreeSet<_> =
        [0].into_iter().chain(100..199).map(|nth| url(nth).to_string()).chain([OTHER.to_owned()]).collect();
    assert_eq!(relay_labels(&metrics), wanted);
}

#[test]
fn events_of_unlabelled_relays_are_counted_once() {
    let metrics = Metrics::new();
    let name = r#"ngit_sync_peer_events_received_total{relay="other"}"#;
    let relays = |received: u64, repositories: usize| {
        let totals = RelayTotals { received, ..RelayTotals::default() };
        let late = RelaySnapshot { totals, ..relay(500, repositories) };
        (0..100).map(|nth| relay(nth, 5)).chain([late]).collect::<Vec<_>>()
    };
    // Events from before this process are not counted.
    update(&metrics, relays(1_000, 1));
    assert_eq!(value(&metrics, name).as_deref(), Some("0"));
    update(&metrics, relays(1_007, 1));
    assert_eq!(value(&metrics, name).as_deref(), Some("7"));
    // With a label of its own the relay has its total, and the count of the others remains.
    update(&metrics, relays(1_010, 9));
    assert_eq!(value(&metrics, name).as_deref(), Some("7"));
    let own = r#"ngit_sync_peer_events_received_total{relay="wss://r500.example"}"#;
    assert_eq!(value(&metrics, own).as_deref(), Some("1010"));
    update(&metrics, relays(1_011, 1));
    assert_eq!((value(&metrics, name).as_deref(), value(&metrics, own)), (Some("8"), None));
    // The operator can reset the totals of a relay; a counter does not decrease.
    update(&metrics, relays(0, 1));
    assert_eq!(value(&metrics, name).as_deref(), Some("8"));
}

#[test]
fn url_is_escaped_in_its_label() {
    let metrics = Metrics::new();
    for text in ["wss://x.example/\"} 1\nngit_sync_in_flight 9", "wss://x.example/\\\"\u{7f}\u{1}é"] {
        let url = RelayUrl::parse(text).expect("the parser accepts such URLs");
        metrics.sync().count_note(&SyncNote::Connected(url, ReconnectKind::Fresh));
    }
    let text = metrics.encode();
    assert_eq!(relay_labels(&metrics).len(), 2, "{text}");
    assert!(!text.contains("} 1\nngit_sync_in_flight 9") && text.is_ascii(), "{text}");
    assert_eq!(value(&metrics, "ngit_sync_in_flight").as_deref(), Some("0"));
}

#[test]
fn relay_that_is_not_dialled_has_its_own_status() {
    let metrics = Metrics::new();
    let mut relays: Vec<_> = (0..limits::MAX_RELAY_LABELS + 2).map(|nth| relay(nth, 999 - nth)).collect();
    relays[1].is_paused = true;
    relays[2].is_self = true;
    for not_dialled in &mut relays[1..3] {
        not_dialled.status = ConnectionStatus::Disconnected;
    }
    let last = relays.len() - 1;
    (relays[last].is_paused, relays[last].status) = (true, ConnectionStatus::Disconnected);
    update(&metrics, relays.clone());
    for (relay, wanted) in [("wss://r000.example", "3"), ("wss://r001.example", "-1"), ("wss://r002.example", "-1")] {
        let name = format!("ngit_sync_relay_connected{{relay=\"{relay}\"}}");
        assert_eq!(value(&metrics, &name).as_deref(), Some(wanted), "{relay}");
    }
    // In the combined value it is not worse than the others.
    assert_eq!(value(&metrics, r#"ngit_sync_relay_connected{relay="other"}"#).as_deref(), Some("3"));
}

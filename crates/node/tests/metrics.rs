//! `GET /metrics` of a running server.

mod support;

use support::Server;

/// Status, head and body of an answer.
fn request(server: &Server, method: &str, path: &str) -> (u16, String, String) {
    let answer = server.http(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// What stands after `# TYPE`: a counter's name is there without its `_total`.
const FAMILIES: [(&str, &str); 21] = [
    ("ngit_sync_relay_connected", "gauge"),
    ("ngit_sync_relay_status", "gauge"),
    ("ngit_sync_relay_failures", "gauge"),
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
    ("ngit_sync_judged", "counter"),
];

/// Series that are there from the beginning.
const SERIES: [&str; 9] = [
    "ngit_sync_events_synced_total ",
    "ngit_sync_events_total{source=\"direct\"} ",
    "ngit_sync_relays_tracked_total ",
    "ngit_sync_relays_connected_total ",
    "ngit_sync_relays_dead_total ",
    "ngit_sync_reconnects_total{kind=\"long\"} ",
    "ngit_sync_rejected_hot_cache_current ",
    "ngit_sync_in_flight ",
    "ngit_sync_judged_total{verdict=\"stored\"} ",
];

#[test]
fn everything_that_is_measured_has_its_name() {
    let server = Server::start(&[]);
    let (status, head, body) = request(&server, "GET", "/metrics");
    assert_eq!(status, 200, "{head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(head.contains("access-control-allow-origin: *"), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    for (name, kind) in FAMILIES {
        assert_eq!(body.matches(&format!("# TYPE {name} {kind}\n")).count(), 1, "{name} in {body}");
        assert_eq!(body.matches(&format!("# HELP {name} ")).count(), 1, "{name} in {body}");
    }
    for series in SERIES {
        assert_eq!(body.lines().filter(|line| line.starts_with(series)).count(), 1, "{series} in {body}");
    }
}

#[test]
fn only_reading_is_possible() {
    let server = Server::start(&[]);
    let (status, head, body) = request(&server, "HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
    assert!(head.contains("content-length: "), "{head}");
    for method in ["POST", "PUT", "DELETE"] {
        let (status, head, _) = request(&server, method, "/metrics");
        assert_eq!(status, 405, "{method}: {head}");
        assert!(head.contains("allow: get, head, options"), "{head}");
        assert!(head.contains("access-control-allow-origin: *"), "{head}");
    }
    assert_eq!(request(&server, "OPTIONS", "/metrics").0, 204);
    for path in ["/metrics/", "/metrics/x", "/Metrics", "/metricsx"] {
        assert_eq!(request(&server, "GET", path).0, 404, "{path}");
    }
}

#[test]
fn a_service_below_a_path_answers_at_the_root_too() {
    let server = Server::start(&[("BASE_PATH", "/grasp")]);
    for path in ["/metrics", "/grasp/metrics"] {
        assert_eq!(request(&server, "GET", path).0, 200, "{path}");
    }
    assert_eq!(request(&server, "GET", "/other/metrics").0, 404);
}

#[test]
fn an_operator_can_close_it() {
    let server = Server::start(&[("METRICS_ENABLED", "false")]);
    for method in ["GET", "HEAD", "POST"] {
        let (status, head, body) = request(&server, method, "/metrics");
        assert_eq!(status, 404, "{method}: {head}");
        assert!(!body.contains("ngit_sync"), "{body}");
    }
    assert_eq!(request(&server, "GET", "/").0, 200, "the rest is as it was");
}

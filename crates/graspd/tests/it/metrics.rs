//! Tests `GET /metrics` of a running server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::git::{WorkTree, repo_path};
use crate::support::peers::scripted_relay::{RejectionForm, RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now};
use crate::support::{DEADLINE, Server, eventually};

/// Returns status, lower-case head and body of a response.
fn request(server: &Server, method: &str, path: &str) -> (u16, String, String) {
    request_accepting(server, method, path, "application/openmetrics-text")
}

fn request_accepting(server: &Server, method: &str, path: &str, accept: &str) -> (u16, String, String) {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    let response = server.http(&head);
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("no status in the response");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// Names and types after `# TYPE`. The name of a counter has no `_total` there.
const FAMILIES: [(&str, &str); 24] = [
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
    ("ngit_sync_unsolicited_events", "counter"),
    ("ngit_sync_floods", "counter"),
    ("ngit_sync_judged", "counter"),
    ("ngit_writer_turn_seconds", "histogram"),
];

/// Series that exist from the start.
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
fn metric_names_are_those_of_ngit_grasp() {
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
fn format_of_metrics_follows_the_accept_header() {
    let server = Server::start(&[]);
    let (status, head, body) = request_accepting(&server, "GET", "/metrics", "*/*");
    assert_eq!(status, 200, "{head}");
    for expected in ["content-type: text/plain; version=0.0.4", "vary: accept", "cache-control: no-store"] {
        assert!(head.contains(expected), "{expected} in {head}");
    }
    assert!(body.contains("# TYPE ngit_sync_gap_events_total counter\n"), "{body}");
    assert!(!body.contains("# EOF") && !body.contains("# UNIT"), "{body}");
}

/// Prometheus' own linter reads the metrics and has no complaint except about names that ngit-grasp prescribes.
#[test]
#[ignore = "needs promtool"]
fn promtool_accepts_the_metrics_and_alerts() {
    let server = Server::start(&[]);
    let (_, _, body) = request_accepting(&server, "GET", "/metrics", "*/*");
    let complaints = promtool(&["check", "metrics"], &body);
    for complaint in complaints.lines() {
        assert!(LINTS_OF_PRESCRIBED_NAMES.iter().any(|known| complaint.starts_with(known)), "{complaints}");
    }
    let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/alerts.yml");
    // One of three servers is down: its own alert fires, and the alert for missing metrics does not.
    let folder = tempfile::tempdir().expect("cannot create a folder");
    let test = folder.path().join("test.yml");
    std::fs::write(&test, format!("rule_files: [{:?}]\n{ONE_OF_THREE_DOWN}", alerts)).expect("cannot write the test");
    let output = promtool(&["test", "rules", test.to_str().expect("a path in UTF-8")], "");
    assert!(output.contains("SUCCESS"), "{output}");
}

/// Test of the alert rules in the format of promtool.
const ONE_OF_THREE_DOWN: &str = r#"
tests:
  - interval: 1m
    input_series:
      - { series: 'up{job="graspd",instance="a"}', values: '1x10' }
      - { series: 'up{job="graspd",instance="b"}', values: '0x10' }
      - { series: 'up{job="graspd",instance="c"}', values: '1x10' }
      - { series: 'ngit_build_info{job="graspd",instance="a"}', values: '1x10' }
    alert_rule_test:
      - eval_time: 5m
        alertname: GraspdDown
        exp_alerts:
          - exp_labels: { severity: critical, job: graspd, instance: b }
            exp_annotations:
              summary: no metrics from b
              description: >-
                Prometheus cannot read /metrics of this server. Check that the service runs and that /healthz answers. The
                rule expects the scrape job to be named graspd.
      - eval_time: 5m
        alertname: GraspdMetricsMissing
        exp_alerts: []
"#;

/// Beginnings of the lints about names that ngit-grasp and the GRASP documents prescribe.
const LINTS_OF_PRESCRIBED_NAMES: [&str; 4] = [
    "ngit_repositories_total non-counter",
    "ngit_sync_relays_connected_total non-counter",
    "ngit_sync_relays_dead_total non-counter",
    "ngit_sync_relays_tracked_total non-counter",
];

/// Runs promtool with a text on its standard input and returns what it prints.
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cannot run promtool");
    child.stdin.take().expect("no standard input").write_all(input.as_bytes()).expect("cannot write to promtool");
    let output = child.wait_with_output().expect("promtool did not end");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn only_get_and_head_are_allowed() {
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
fn metrics_are_also_served_outside_the_base_path() {
    let server = Server::start(&[("BASE_PATH", "/grasp")]);
    for path in ["/metrics", "/grasp/metrics"] {
        assert_eq!(request(&server, "GET", path).0, 200, "{path}");
    }
    assert_eq!(request(&server, "GET", "/other/metrics").0, 404);
}

#[test]
fn metrics_can_be_disabled() {
    let server = Server::start(&[("METRICS_ENABLED", "false")]);
    for method in ["GET", "HEAD", "POST"] {
        let (status, head, body) = request(&server, method, "/metrics");
        assert_eq!(status, 404, "{method}: {head}");
        assert!(!body.contains("ngit_sync"), "{body}");
    }
    assert_eq!(request(&server, "GET", "/").0, 200, "other paths still work");
}

/// With `METRICS_TOKEN` a bearer token is required. With `METRICS_BIND_ADDRESS` the main port does not serve metrics.
#[test]
fn metrics_can_be_restricted() {
    let server = Server::start(&[("METRICS_TOKEN", "secret")]);
    let (status, head, body) = request(&server, "GET", "/metrics");
    assert_eq!(status, 401, "{head}");
    assert!(head.contains("www-authenticate: bearer") && !body.contains("ngit_"), "{head}{body}");
    assert!(server.get("/metrics", "Authorization: Bearer wrong\r\n").starts_with("HTTP/1.1 401"));
    assert!(server.get("/metrics", "Authorization: Bearer secret\r\n").contains("ngit_uptime_seconds "));
    // The token protects nothing else, and the documents say so.
    for path in ["/healthz", "/readyz", "/status", "/status.json"] {
        assert_eq!(request(&server, "GET", path).0, 200, "{path}");
    }
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for (page, text) in [
        ("settings.md", "It does not protect /status, /healthz and /readyz."),
        ("how-to.md", "`NGIT_METRICS_TOKEN`, which protects `/metrics` and nothing else"),
    ] {
        assert!(std::fs::read_to_string(docs.join(page)).expect("cannot read the page").contains(text), "{page}");
    }

    let side = crate::support::peers::unused_address();
    let mut server = Server::start(&[("METRICS_BIND_ADDRESS", &side.to_string())]);
    assert_eq!(request(&server, "GET", "/metrics").0, 404);
    assert_eq!(request(&server, "GET", "/healthz").0, 200);
    let main = std::mem::replace(&mut server.address, side);
    assert!(request(&server, "GET", "/metrics").2.contains("ngit_uptime_seconds "));
    for path in ["/healthz", "/readyz", "/status", "/status.json"] {
        assert_eq!(request(&server, "GET", path).0, 200, "{path}");
    }
    assert_eq!(request(&server, "GET", "/").0, 404, "the monitoring port is no relay");
    assert_eq!(request(&server, "POST", "/metrics").0, 405);
    let (status, head, body) = request(&server, "HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
    server.address = main;
    assert_eq!(server.stop(), Some(0));
}

/// Returns metric families by name, with their type and their series.
fn families(body: &str) -> BTreeMap<String, (String, Vec<(String, f64)>)> {
    let mut families = BTreeMap::new();
    let mut last = String::new();
    for line in body.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            last = name.to_owned();
            families.insert(last.clone(), (kind.to_owned(), Vec::new()));
        } else if !line.starts_with('#')
            && let Some((series, value)) = line.rsplit_once(' ')
        {
            let family = families.get_mut(&last).unwrap_or_else(|| panic!("{line} before its type line"));
            family.1.push((series.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}"))));
        }
    }
    families
}

/// Returns the names of metrics in a text with queries.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = ["ngit_", "process_", "purgatory_"];
    words.filter(|word| ours.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

/// Returns the queries of the dashboard and of the alerts.
fn queries() -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let dashboard = std::fs::read_to_string(deploy.join("grafana/graspd.json")).expect("cannot read the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).expect("invalid JSON");
    let mut all = std::fs::read_to_string(deploy.join("prometheus/alerts.yml")).expect("cannot read the alerts");
    for target in
        dashboard["panels"].as_array().expect("no panels").iter().flat_map(|panel| panel["targets"].as_array())
    {
        for target in target {
            all += target["expr"].as_str().expect("a target without a query");
            all.push('\n');
        }
    }
    all
}

/// Returns all label values in a response that differ from the tables in docs/metrics.md, as `metric label value`.
/// Labels without a table are ignored.
fn undocumented_values(body: &str) -> BTreeSet<String> {
    let reference = include_str!("../../../../docs/metrics.md");
    let (_, tables) = reference.split_once("## Label values").expect("no label values in docs/metrics.md");
    let quoted = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    // The values by metric and label, of all rows together.
    let mut documented: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for line in tables.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [label, metrics, values] = cells[..] else { panic!("unexpected row: {line}") };
        let label = quoted(label).swap_remove(0);
        for metric in quoted(metrics) {
            documented.entry((metric, label.clone())).or_default().extend(quoted(values));
        }
    }
    assert!(documented.len() > 20, "{documented:?}");
    let mut unknown = BTreeSet::new();
    for (series, _) in families(body).values().flat_map(|(_, series)| series) {
        let Some((name, labels)) = series.trim_end_matches('}').split_once('{') else { continue };
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        for (label, value) in labels.split(',').filter_map(|pair| pair.split_once('=')) {
            let value = value.trim_matches('"');
            let values = documented.get(&(name.to_owned(), label.to_owned()));
            if values.is_some_and(|values| !values.contains(value)) {
                unknown.insert(format!("{name} {label} {value}"));
            }
        }
    }
    unknown
}

/// Metrics without values in this test: a gap is found at the earliest a quarter of an hour after the connection was
/// complete (tested in metrics/sync/tests.rs), not every machine has a control group (tested in metrics/process.rs), and the
/// relays of this test send only what was requested (tested in dos_sync.rs).
const UNTESTED: [&str; 5] = [
    "ngit_sync_gap_events",
    "ngit_cgroup_cpu_seconds",
    "ngit_cgroup_memory_current_bytes",
    "ngit_sync_unsolicited_events",
    "ngit_sync_floods",
];

#[test]
fn every_metric_has_values_and_is_on_the_dashboard() {
    let mut here = SyncServer::start(&[]);
    let mut there = SyncServer::start(&[]);
    // A relay that limits the rate of requests, and a relay that rejects them by policy.
    let rejecting_relay =
        |form| ScriptedRelay::start(RelayScript { rejects_from: Some((1, form)), ..RelayScript::default() });
    let (rate_limiting, restricted) =
        (rejecting_relay(RejectionForm::Closed), rejecting_relay(RejectionForm::Restricted));
    let own = Project::new(2, "own", &[here.address], &[&rate_limiting.url(), &restricted.url()]);
    here.host(&own);
    for (kind, count) in [("30617", 1.0), ("30618", 1.0)] {
        let stored = here.metric(&format!("ngit_events_stored_total{{kind=\"{kind}\"}}"));
        assert_eq!(stored, Some(count), "{kind}");
    }
    // Only the other server has the data of this repository: its state is synced and its commits are fetched.
    let project = Project::new(1, "common", &[here.address, there.address], &[]);
    there.host(&project);
    here.publish(&project.announcement);
    here.eventually_served(&[&project.announcement, &project.state]);
    assert!(here.metric("ngit_sync_events_synced_total") >= Some(1.0), "the state was synced from a relay");
    assert_eq!(here.metric("ngit_events_stored_total{kind=\"30618\"}"), Some(2.0));
    // No server has the data of this repository, so fetching goes on.
    let lost = Project::new(3, "lost", &[here.address, there.address], &[]);
    here.publish(&lost.announcement);
    here.publish(&lost.state);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    there.publish(&issue);
    here.eventually_served(&[&issue]);
    let comment = author.comment(now(), &issue);
    here.publish(&comment);
    here.eventually_state(&there.relay_url(), 3.0);
    // A full reconciliation, then a short disconnection.
    here.process.run(&["sync", &there.relay_url()]).expect_success();
    there.stop();
    there.start_again();
    here.eventually_state(&there.relay_url(), 3.0);

    // A rejected event, a COUNT request, an invalid message.
    let unrelated = author.sign(1, now(), &[], "unrelated");
    assert!(!here.client().publish(&unrelated).0);
    here.client().send(&json!(["COUNT", "c", {"kinds": [1621]}]));
    here.client().send(&json!(["NONSENSE"]));
    // Two clones of the same repository, and a push without a signed state.
    let url = format!("http://{}{}", here.address, repo_path(&project.owner.key().npub(), &project.d));
    WorkTree::clone(&url);
    let work = WorkTree::clone(&url);
    let oid = work.commit("file", "unsigned");
    work.push(&url, &[&format!("{oid}:refs/heads/main")]).expect_failure(&["E-STATE-MISSING"]);
    // A connection that has been closed.
    drop(here.process.connect());

    let queries = queries();
    let mentioned = named_in(&queries);
    assert!(mentioned.len() > 60, "{mentioned:?}");
    let began = Instant::now();
    let missing = eventually("every metric has a value", || {
        let (status, _, body) = request(&here.process, "GET", "/metrics");
        assert_eq!(status, 200);
        let families = families(&body);
        let mut missing = Vec::new();
        for (name, (kind, series)) in &families {
            let has_value = match kind.as_str() {
                "gauge" => !series.is_empty(),
                _ => series.iter().any(|(_, value)| *value > 0.0),
            };
            if !has_value && !UNTESTED.contains(&name.as_str()) {
                missing.push(format!("{name} has no value"));
            }
        }
        let all: BTreeSet<&str> = families
            .values()
            .flat_map(|(_, series)| series)
            .map(|(series, _)| series.split('{').next().unwrap_or(series))
            .collect();
        for name in &mentioned {
            let base = name.strip_suffix("_total").unwrap_or(name);
            let declared = UNTESTED.contains(&base) && families.contains_key(base);
            if !declared && !all.contains(name.as_str()) {
                missing.push(format!("{name} is used in a query and does not exist"));
            }
        }
        // Some metrics are measured every few seconds. What is still missing after half of the deadline is reported.
        (missing.is_empty() || began.elapsed() > DEADLINE / 2).then_some(missing)
    });
    assert_eq!(missing, Vec::<String>::new());
    let unknown = undocumented_values(&request(&here.process, "GET", "/metrics").2);
    assert_eq!(unknown, BTreeSet::new(), "label values that are not in docs/metrics.md");
    // The budgets that alerts exclude exist.
    let body = request(&here.process, "GET", "/metrics").2;
    for budget in queries
        .split("budget!~\"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .expect("no excluded budgets")
        .split('|')
    {
        assert!(body.contains(&format!("ngit_budget_used{{budget=\"{budget}\"}}")), "{budget}");
    }
    // A build from a git checkout contains the commit.
    let commit = body.split("commit=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("no commit label");
    let is_commit = commit.len() == 12 && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{commit}");

    let queried: BTreeSet<String> = mentioned.iter().map(|name| name.replace("_bucket", "")).collect();
    for name in families(&request(&here.process, "GET", "/metrics").2).keys() {
        let is_queried =
            queried.iter().any(|query| query.trim_end_matches("_total") == name.trim_end_matches("_total"));
        let not_on_dashboard = [
            "ngit_build_info",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
            "ngit_disk_measured_timestamp_seconds",
        ];
        let parts = [format!("{name}_sum"), format!("{name}_count")];
        let has_queried_part = parts.iter().any(|part| queried.contains(part));
        assert!(
            is_queried || has_queried_part || not_on_dashboard.contains(&name.as_str()),
            "{name} is not on the dashboard"
        );
    }
}

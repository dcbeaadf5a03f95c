//! `GET /metrics` of a running server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::git::{Work, repo_path};
use crate::support::peers::scripted_relay::{Fake, Manners, RejectionForm};
use crate::support::peers::{Neighbour, Project, now};
use crate::support::{Server, eventually};

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

/// A token has to be shown where one is set; a port of its own takes measurements away from the main one.
#[test]
fn measurements_can_be_kept_from_others() {
    let server = Server::start(&[("METRICS_TOKEN", "hush")]);
    let (status, head, body) = request(&server, "GET", "/metrics");
    assert_eq!(status, 401, "{head}");
    assert!(head.contains("www-authenticate: bearer") && !body.contains("ngit_"), "{head}{body}");
    assert!(server.get("/metrics", "Authorization: Bearer wrong\r\n").starts_with("HTTP/1.1 401"));
    assert!(server.get("/metrics", "Authorization: Bearer hush\r\n").contains("ngit_uptime_seconds "));

    let side = crate::support::peers::place();
    let mut server = Server::start(&[("METRICS_BIND_ADDRESS", &side.to_string())]);
    assert_eq!(request(&server, "GET", "/metrics").0, 404);
    assert_eq!(request(&server, "GET", "/healthz").0, 200);
    let main = std::mem::replace(&mut server.address, side);
    assert!(request(&server, "GET", "/metrics").2.contains("ngit_uptime_seconds "));
    for path in ["/healthz", "/readyz", "/status", "/status.json"] {
        assert_eq!(request(&server, "GET", path).0, 200, "{path}");
    }
    assert_eq!(request(&server, "GET", "/").0, 404, "it is no relay");
    assert_eq!(request(&server, "POST", "/metrics").0, 405);
    let (status, head, body) = request(&server, "HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""), "{head}");
    server.address = main;
    assert_eq!(server.stop(), Some(0));
}

/// Families by name, with their type and their series.
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
            let family = families.get_mut(&last).unwrap_or_else(|| panic!("{line} before its family"));
            family.1.push((series.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}"))));
        }
    }
    families
}

/// Names of metrics in a text, as people write them in queries.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = ["ngit_", "process_", "purgatory_"];
    words.filter(|word| ours.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

/// Queries of the dashboard and of the alerts.
fn queries() -> String {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let board = std::fs::read_to_string(deploy.join("grafana/graspd.json")).expect("a dashboard");
    let board: serde_json::Value = serde_json::from_str(&board).expect("JSON");
    let mut all = std::fs::read_to_string(deploy.join("prometheus/alerts.yml")).expect("alerts");
    for target in board["panels"].as_array().expect("panels").iter().flat_map(|panel| panel["targets"].as_array()) {
        for target in target {
            all += target["expr"].as_str().expect("a query");
            all.push('\n');
        }
    }
    all
}

/// What cannot be fed here: a gap is found a quarter of an hour after the connection was complete at the earliest
/// (meter/sync/tests.rs), and not every machine has a control group (meter/process.rs).
const RARE: [&str; 3] = ["ngit_sync_gap_events", "ngit_cgroup_cpu_seconds", "ngit_cgroup_memory_current_bytes"];

#[test]
fn everything_is_fed_and_boards_and_alerts_show_only_what_there_is() {
    let mut here = Neighbour::start(&[]);
    let mut there = Neighbour::start(&[]);
    // Relays that want less of us, and nothing to do with us.
    let moody = |complaint| Fake::start(Manners { tired: Some((1, complaint)), ..Manners::default() });
    let (tired, closed) = (moody(RejectionForm::Closed), moody(RejectionForm::Restricted));
    let own = Project::new(2, "own", &[here.place], &[&tired.url(), &closed.url()]);
    here.host(&own);
    for (kind, count) in [("30617", 1.0), ("30618", 1.0)] {
        let stored = here.metric(&format!("ngit_events_stored_total{{kind=\"{kind}\"}}"));
        assert_eq!(stored, Some(count), "{kind}");
    }
    // Only the other server has the data of this one: its state and its commits are looked for.
    let project = Project::new(1, "common", &[here.place, there.place], &[]);
    there.host(&project);
    here.publish(&project.announcement);
    here.eventually_served(&[&project.announcement, &project.state]);
    assert!(here.metric("ngit_sync_events_synced_total") >= Some(1.0), "the state came from a relay");
    assert_eq!(here.metric("ngit_events_stored_total{kind=\"30618\"}"), Some(2.0));
    // Nobody has the data of this one, so that the search goes on.
    let lost = Project::new(3, "lost", &[here.place, there.place], &[]);
    here.publish(&lost.announcement);
    here.publish(&lost.state);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    there.publish(&issue);
    here.eventually_served(&[&issue]);
    let comment = author.comment(now(), &issue);
    here.publish(&comment);
    here.eventually_state(&there.relay(), 3.0);
    // Everything is compared, and then the connection ends for a while.
    here.server.run(&["sync", &there.relay()]).well();
    there.stop();
    there.again();
    here.eventually_state(&there.relay(), 3.0);

    // A refused event, a question, something that is no message.
    let stray = author.sign(1, now(), &[], "who cares");
    assert!(!here.client().publish(&stray).0);
    here.client().send(&json!(["COUNT", "c", {"kinds": [1621]}]));
    here.client().send(&json!(["NONSENSE"]));
    // Two clones of the same, and a push that nobody has signed.
    let url = format!("http://{}{}", here.place, repo_path(&project.owner.key().npub(), &project.d));
    Work::clone(&url);
    let work = Work::clone(&url);
    let oid = work.commit("file", "unsigned");
    work.push(&url, &[&format!("{oid}:refs/heads/main")]).refused(&["E-STATE-MISSING"]);
    // A connection that has ended.
    drop(here.server.connect());

    let queries = queries();
    let mentioned = named_in(&queries);
    assert!(mentioned.len() > 60, "{mentioned:?}");
    let began = Instant::now();
    let missing = eventually("everything is fed", || {
        let (status, _, body) = request(&here.server, "GET", "/metrics");
        assert_eq!(status, 200);
        let families = families(&body);
        let mut missing = Vec::new();
        for (name, (kind, series)) in &families {
            let fed = match kind.as_str() {
                "gauge" => !series.is_empty(),
                _ => series.iter().any(|(_, value)| *value > 0.0),
            };
            if !fed && !RARE.contains(&name.as_str()) {
                missing.push(format!("{name} is not fed"));
            }
        }
        let all: BTreeSet<&str> = families
            .values()
            .flat_map(|(_, series)| series)
            .map(|(series, _)| series.split('{').next().unwrap_or(series))
            .collect();
        for name in &mentioned {
            let rare = name.strip_suffix("_total").unwrap_or(name);
            let declared = RARE.contains(&rare) && families.contains_key(rare);
            if !declared && !all.contains(name.as_str()) {
                missing.push(format!("{name} is shown and does not exist"));
            }
        }
        // What is measured every few seconds is waited for; what is still missing then is told.
        (missing.is_empty() || began.elapsed() > Duration::from_secs(20)).then_some(missing)
    });
    assert_eq!(missing, Vec::<String>::new());
    // What alerts leave out exists.
    let body = request(&here.server, "GET", "/metrics").2;
    for budget in queries.split("budget!~\"").nth(1).and_then(|rest| rest.split('"').next()).expect("some").split('|') {
        assert!(body.contains(&format!("ngit_budget_used{{budget=\"{budget}\"}}")), "{budget}");
    }
    // Whoever builds from a checkout knows what is built, if git lets it.
    let commit = body.split("commit=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("it is there");
    let is_commit = commit.len() == 12 && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{commit}");

    let board: BTreeSet<String> = mentioned.iter().map(|name| name.replace("_bucket", "")).collect();
    for name in families(&request(&here.server, "GET", "/metrics").2).keys() {
        let on_board = board.iter().any(|shown| shown.trim_end_matches("_total") == name.trim_end_matches("_total"));
        let quiet = ["ngit_build_info", "process_start_time_seconds", "process_virtual_memory_bytes"];
        let parts = [format!("{name}_sum"), format!("{name}_count")];
        let by_parts = parts.iter().any(|part| board.contains(part));
        let other = ["ngit_disk_measured_timestamp_seconds"];
        assert!(
            on_board || by_parts || quiet.contains(&name.as_str()) || other.contains(&name.as_str()),
            "{name} is on no board"
        );
    }
}

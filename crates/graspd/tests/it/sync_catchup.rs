//! Historic sync: events that a relay stored before the connection are fetched, and after a short disconnection only newer
//! events are requested.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::eventually;
use crate::support::git::BASE_TIME;
use crate::support::peers::independent_relay::IndependentRelay;
use crate::support::peers::scripted_relay::{ClientAction, RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now, unused_address};

/// Returns issues of a repository and a comment on each.
fn history(project: &Project, issues: u64) -> Vec<Arc<SignedEvent>> {
    let (author, other) = (Author::new(8), Author::new(9));
    let mut events = project.issues(&author, BASE_TIME + 10, issues);
    let comments: Vec<_> = events.iter().map(|issue| other.comment(issue.created_at.0 + 1, issue)).collect();
    events.extend(comments);
    events
}

/// Starts two servers that host the same repository. The first has a history and does not sync; the second is new and
/// syncs from it. Returns the second, after it has synced everything, and the first.
fn sync_two_servers(settings: &[(&str, &str)]) -> (SyncServer, SyncServer) {
    let (here, there) = (unused_address(), unused_address());
    let project = Project::new(1, "old", &[here, there], &[]);
    let events = history(&project, 150);
    let mut first = SyncServer::start_at(there, &[("SYNC_ENABLE", "false")]);
    first.host(&project);
    for event in &events {
        first.publish(event);
    }
    let mut second = SyncServer::start_at(here, settings);
    second.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    second.eventually_served(&all);
    let relay = first.relay_url();
    second.eventually_state(&relay, 3.0);
    // The state may be synced before it is published here.
    let caught_up = second.received_count("catchup");
    assert!((0.0..=1.0).contains(&(caught_up - all.len() as f64)), "{caught_up}: {}", second.log());
    assert_eq!(second.received_count("live"), 0.0);

    let fresh = project.issue(&Author::new(7), now());
    first.publish(&fresh);
    second.eventually_served(&[&fresh]);
    eventually("the live event is counted", || (second.received_count("live") == 1.0).then_some(()));
    assert_eq!(second.received_count("catchup"), caught_up, "{}", second.log());
    for bad in ["ERROR", "sync gap", "batch failed", "rate limited"] {
        assert!(!second.log().contains(bad), "{}", second.log());
    }
    (second, first)
}

#[test]
fn history_is_synced_and_then_live_events() {
    let (mut second, mut first) = sync_two_servers(&[]);
    let relay = first.relay_url();
    second.stop();
    let project = Project::new(1, "old", &[second.address, first.address], &[]);
    let missed = project.issue(&Author::new(7), now() + 1);
    first.publish(&missed);
    second.start_again();
    second.eventually_served(&[&missed]);
    second.eventually_metric("ngit_sync_reconnects_total{kind=\"quick\"}", 1.0);
    second.eventually_state(&relay, 3.0);
}

#[test]
fn history_is_synced_in_pages_without_negentropy() {
    let (second, first) = sync_two_servers(&[("SYNC_DISABLE_NEGENTROPY", "true")]);
    assert_eq!(
        second.relay_metric("ngit_sync_peer_coverage_ratio", &first.relay_url()),
        None,
        "negentropy was not used"
    );
}

#[test]
fn common_history_is_compared_by_negentropy() {
    let (here, there) = (unused_address(), unused_address());
    let project = Project::new(1, "both", &[here, there], &[]);
    let events = history(&project, 100);
    let mut first = SyncServer::start_at(there, &[("SYNC_ENABLE", "false")]);
    first.host(&project);
    let mut second = SyncServer::start_at(here, &[("SYNC_ENABLE", "false")]);
    second.host(&project);
    for (n, event) in events.iter().enumerate() {
        first.publish(event);
        // Comments on issues that are missing here are rejected.
        if n % 5 != 0 {
            let _ = second.client().publish(event);
        }
    }
    second.stop();
    second.set("SYNC_ENABLE", "true");
    second.start_again();
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    second.eventually_served(&all);
    let relay = first.relay_url();
    second.eventually_state(&relay, 3.0);
    eventually("the coverage is measured", || second.relay_metric("ngit_sync_peer_coverage_ratio", &relay));
    assert!(!second.log().contains("does not support negentropy"), "{}", second.log());
}

#[test]
fn history_of_an_independent_relay_is_synced() {
    let independent = IndependentRelay::start();
    let here = unused_address();
    let project = Project::new(1, "foreign", &[here], &[&independent.url()]);
    let events = history(&project, 150);
    let mut client = independent.client();
    for event in &events {
        assert!(client.publish(event).0);
    }
    let mut server = SyncServer::start_at(here, &[]);
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&independent.url(), 3.0);
    assert_eq!(server.received_count("catchup"), all.len() as f64, "{}", server.log());
    let fresh = project.issue(&Author::new(7), now());
    assert!(client.publish(&fresh).0);
    server.eventually_served(&[&fresh]);
    eventually("the live event is counted", || (server.received_count("live") == 1.0).then_some(()));
}

fn is_live(filter: &Value) -> bool {
    filter["limit"] == 0
}

#[test]
fn quick_reconnect_requests_only_newer_events() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let url = relay.url();
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "short", &[server.address], &[&url]);
    let events = history(&project, 30);
    for event in &events {
        relay.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&url, 3.0);
    assert!(
        relay.filters(0).iter().any(|filter| !is_live(filter) && filter["since"].is_null()),
        "the first sync has no `since`"
    );

    // After a stop and after a crash: the progress that the stop has written is used in both cases. Events that were
    // received between the stop and the crash are requested again.
    let mut new_values = Vec::new();
    for (connection, end) in [(2, SyncServer::stop as fn(&mut SyncServer)), (3, SyncServer::kill)] {
        let before = now();
        end(&mut server);
        relay.eventually("the server has disconnected", |action| matches!(action, ClientAction::Disconnected(_)));
        let missed = project.issue(&Author::new(7), now());
        let late = Author::new(6).comment(now(), &missed);
        relay.publish(&missed);
        relay.publish(&late);
        server.start_again();
        server.eventually_served(&[&missed, &late]);
        server.eventually_state(&url, 3.0);
        server.eventually_metric("ngit_sync_reconnects_total{kind=\"quick\"}", 1.0);
        assert_eq!(relay.connections(), connection);

        let filters = relay.filters(connection);
        new_values.extend([&missed, &late].map(|event| Value::from(event.id.to_string())));
        new_values.extend([7, 6].map(|author| Value::from(Author::new(author).hex())));
        for filter in filters.iter().filter(|filter| !is_live(filter)) {
            // Events that refer to a new root or comment, or are by a new author, were never requested before.
            let has_only_new = |values: &Vec<Value>| values.iter().all(|value| new_values.contains(value));
            let is_new =
                ["#e", "#E", "#q", "authors"].iter().any(|name| filter[*name].as_array().is_some_and(has_only_new));
            let since = filter["since"].as_u64();
            assert!(is_new || since.is_some(), "unexpected full request: {filter}");
            let newest = before - 15 * 60 + 60;
            assert!(since.is_none_or(|since| since <= newest), "the overlap is missing: {filter} {newest}");
        }
        // The live subscriptions cover everything again.
        for tag in ["#a", "#A", "#q", "#e", "#E"] {
            assert!(filters.iter().any(|filter| is_live(filter) && filter[tag].is_array()), "{tag}: {filters:?}");
        }
        assert!(filters.iter().any(|filter| is_live(filter) && filter["kinds"].as_array().is_some()), "{filters:?}");
    }
}

#[test]
fn crash_during_historic_sync_loses_nothing() {
    let relay = ScriptedRelay::start(RelayScript { page_size: 50, ..RelayScript::default() });
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "crash", &[server.address], &[&relay.url()]);
    let events = history(&project, 200);
    for event in &events {
        relay.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    eventually("some events are synced", || (server.count_served(&all) >= 50).then_some(()));
    server.kill();
    server.start_again();
    server.eventually_served(&all);
    server.eventually_state(&relay.url(), 3.0);
}

#[test]
fn sync_continues_where_a_disconnecting_relay_stopped() {
    let relay = ScriptedRelay::start(RelayScript { page_size: 50, max_events_sent: 150, ..RelayScript::default() });
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "parts", &[server.address], &[&relay.url()]);
    // More than the relay sends on one connection: sync must continue where it stopped.
    let events = project.issues(&Author::new(9), BASE_TIME, 400);
    for event in &events {
        relay.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    assert!(relay.connections() <= 8, "{}", relay.connections());
}

#[test]
fn stop_closes_relay_connections_properly() {
    let (relay, other) = (ScriptedRelay::start(RelayScript::default()), ScriptedRelay::start(RelayScript::default()));
    let mut server = SyncServer::start(&[("SHUTDOWN_GRACE_SECS", "10")]);
    let project = Project::new(1, "bye", &[server.address], &[&relay.url(), &other.url()]);
    server.host(&project);
    for relay in [&relay, &other] {
        server.eventually_state(&relay.url(), 3.0);
    }
    let start = std::time::Instant::now();
    server.stop();
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    for relay in [&relay, &other] {
        relay.eventually("the connection is closed with code 1000", |action| {
            *action == ClientAction::Disconnected(Some(1000))
        });
    }
}

/// The size limit of the servers in the tests of larger events.
const SIZE_LIMIT: (&str, &str) = ("RELAY_MAX_EVENT_SIZE_BYTES", "4096");

/// Returns an issue of a repository that is larger than [`SIZE_LIMIT`].
fn large_issue(project: &Project, at: u64) -> Arc<SignedEvent> {
    Author::new(8).sign(1621, at, &[&["a", &project.coordinate()], &["subject", "large"]], &"x".repeat(5_000))
}

/// A relay counts events above our limit as part of its page. If they were not counted, the page would look shorter than
/// the one before and therefore like the last one, and all older events would be missing.
#[test]
fn events_above_the_size_limit_count_in_pages() {
    let relay = ScriptedRelay::start(RelayScript { page_size: 50, ..RelayScript::default() });
    let mut server = SyncServer::start(&[SIZE_LIMIT]);
    let project = Project::new(1, "large", &[server.address], &[&relay.url()]);
    let mut events = Vec::new();
    for nth in 0..200 {
        let at = BASE_TIME + 10 + nth;
        // In the second page, counted from the newest event.
        if (105..130).contains(&nth) {
            relay.publish(&large_issue(&project, at));
        } else {
            let issue = project.issue(&Author::new(9), at);
            relay.publish(&issue);
            events.push(issue);
        }
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&relay.url(), 3.0);
    server.eventually_metric("ngit_sync_rejected_cold_index_current", 25.0);
}

/// A relay offers events above our limit in a reconciliation. They are downloaded once and remembered as rejected, so the
/// relay does not seem to withhold them.
#[test]
fn events_above_the_size_limit_do_not_fail_a_reconciliation() {
    let (here, there) = (unused_address(), unused_address());
    let project = Project::new(1, "both", &[here, there], &[]);
    let events = history(&project, 30);
    let mut first = SyncServer::start_at(there, &[("SYNC_ENABLE", "false")]);
    first.host(&project);
    let mut second = SyncServer::start_at(here, &[("SYNC_ENABLE", "false"), SIZE_LIMIT]);
    second.host(&project);
    for event in &events {
        first.publish(event);
        second.publish(event);
    }
    for nth in 0..3 {
        first.publish(&large_issue(&project, BASE_TIME + 500 + nth));
    }
    let missing = project.issue(&Author::new(7), BASE_TIME + 600);
    first.publish(&missing);
    second.stop();
    second.set("SYNC_ENABLE", "true");
    second.start_again();
    second.eventually_served(&[&missing]);
    second.eventually_state(&first.relay_url(), 3.0);
    second.eventually_metric("ngit_sync_rejected_cold_index_current", 3.0);
    assert!(!second.log().contains("batch failed"), "{}", second.log());

    // They are requested again when the limit has been raised.
    second.stop();
    second.set(SIZE_LIMIT.0, "100000");
    second.start_again();
    second.eventually_served(&[&large_issue(&project, BASE_TIME + 500)]);
}

/// The share counts each served event once. Events that this server rejected, and announcements of repositories that do
/// not name the relay, do not count.
#[test]
fn coverage_and_missing_events_are_counted_per_event_and_repository() {
    let (here, there) = (unused_address(), unused_address());
    let mut first = SyncServer::start_at(there, &[("SYNC_ENABLE", "false")]);
    let mut second = SyncServer::start_at(here, &[("SYNC_ENABLE", "false")]);
    let projects = [Project::new(1, "one", &[here, there], &[]), Project::new(2, "two", &[here, there], &[])];
    for (project, lacking) in projects.iter().zip([3, 5]) {
        first.host(project);
        second.host(project);
        let issues = project.issues(&Author::new(9), BASE_TIME + 10, 10);
        for (nth, issue) in issues.iter().enumerate() {
            second.publish(issue);
            if nth >= lacking {
                first.publish(issue);
            }
        }
    }
    // Rejected here.
    for owner in 3..8 {
        first.host(&Project::new(owner, "elsewhere", &[there], &[]));
    }
    // Not expected there.
    second.host(&Project::new(8, "only-here", &[here], &[]));
    second.stop();
    second.set("SYNC_ENABLE", "true");
    second.start_again();
    let relay = first.relay_url();
    second.eventually_state(&relay, 3.0);
    let coverage =
        eventually("the coverage is measured", || second.relay_metric("ngit_sync_peer_coverage_ratio", &relay));
    // Of two announcements, two states and twenty issues, eight issues are missing.
    assert_eq!(coverage, 16.0 / 24.0, "{}", second.log());
    let log = second.log();
    for (project, count) in projects.iter().zip(["count=3", "count=5"]) {
        let is_about = |line: &&str| line.contains("relay lacks events") && line.contains(&format!("/{}", project.d));
        let line = log.lines().find(is_about).unwrap_or_else(|| panic!("nothing about {}: {log}", project.d));
        assert!(line.contains(count), "{line}");
    }
    assert_eq!(second.relay_metric("ngit_sync_gap_events_total", &relay), Some(0.0), "exists before the first gap");
}

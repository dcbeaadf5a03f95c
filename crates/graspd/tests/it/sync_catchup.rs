//! Catching up: everything that a relay had before there was a connection comes, and after a short absence only what is
//! newer is asked for.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::eventually;
use crate::support::git::THEN;
use crate::support::peers::independent_relay::Independent;
use crate::support::peers::scripted_relay::{Deed, Fake, Manners};
use crate::support::peers::{Neighbour, Project, now, place};

/// Issues of a repository and a comment on each.
fn history(project: &Project, issues: u64) -> Vec<Arc<SignedEvent>> {
    let (author, other) = (Author::new(8), Author::new(9));
    let mut events = project.issues(&author, THEN + 10, issues);
    let comments: Vec<_> = events.iter().map(|issue| other.comment(issue.created_at.0 + 1, issue)).collect();
    events.extend(comments);
    events
}

/// Two servers that list each other. The first has a history, and follows nobody; the second is new. Gives the second,
/// which has everything then, and the first.
fn two_servers(settings: &[(&str, &str)]) -> (Neighbour, Neighbour) {
    let (here, there) = (place(), place());
    let project = Project::new(1, "old", &[here, there], &[]);
    let events = history(&project, 150);
    let mut first = Neighbour::start_at(there, &[("SYNC_ENABLE", "false")]);
    first.host(&project);
    for event in &events {
        first.publish(event);
    }
    let mut second = Neighbour::start_at(here, settings);
    second.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    second.eventually_served(&all);
    let relay = first.relay();
    second.eventually_state(&relay, 3.0);
    // The state may come from there before it comes from here.
    let caught_up = second.came("catchup");
    assert!((0.0..=1.0).contains(&(caught_up - all.len() as f64)), "{caught_up}: {}", second.log());
    assert_eq!(second.came("live"), 0.0);

    let fresh = project.issue(&Author::new(7), now());
    first.publish(&fresh);
    second.eventually_served(&[&fresh]);
    eventually("it came by itself", || (second.came("live") == 1.0).then_some(()));
    assert_eq!(second.came("catchup"), caught_up, "{}", second.log());
    for bad in ["ERROR", "sync gap", "could not be had", "wants fewer"] {
        assert!(!second.log().contains(bad), "{}", second.log());
    }
    (second, first)
}

#[test]
fn everything_comes_and_then_what_is_new() {
    let (mut second, mut first) = two_servers(&[]);
    let relay = first.relay();
    second.stop();
    let project = Project::new(1, "old", &[second.place, first.place], &[]);
    let missed = project.issue(&Author::new(7), now() + 1);
    first.publish(&missed);
    second.again();
    second.eventually_served(&[&missed]);
    second.eventually_metric("ngit_sync_reconnects_total{kind=\"quick\"}", 1.0);
    second.eventually_state(&relay, 3.0);
}

#[test]
fn everything_comes_in_pages() {
    let (second, first) = two_servers(&[("SYNC_DISABLE_NEGENTROPY", "true")]);
    assert_eq!(second.metric_of("ngit_sync_peer_coverage_ratio", &first.relay()), None, "nothing was compared");
}

#[test]
fn what_both_have_is_compared() {
    let (here, there) = (place(), place());
    let project = Project::new(1, "both", &[here, there], &[]);
    let events = history(&project, 100);
    let mut first = Neighbour::start_at(there, &[("SYNC_ENABLE", "false")]);
    first.host(&project);
    let mut second = Neighbour::start_at(here, &[("SYNC_ENABLE", "false")]);
    second.host(&project);
    for (n, event) in events.iter().enumerate() {
        first.publish(event);
        // The answers to what is missing here are not taken.
        if n % 5 != 0 {
            let _ = second.client().publish(event);
        }
    }
    second.stop();
    second.set("SYNC_ENABLE", "true");
    second.again();
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    second.eventually_served(&all);
    let relay = first.relay();
    second.eventually_state(&relay, 3.0);
    eventually("what was compared is counted", || second.metric_of("ngit_sync_peer_coverage_ratio", &relay));
    assert!(!second.log().contains("does not speak negentropy"), "{}", second.log());
}

#[test]
fn an_independent_relay_is_caught_up_with() {
    let independent = Independent::start();
    let here = place();
    let project = Project::new(1, "foreign", &[here], &[&independent.url()]);
    let events = history(&project, 150);
    let mut client = independent.client();
    for event in &events {
        assert!(client.publish(event).0);
    }
    let mut server = Neighbour::start_at(here, &[]);
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&independent.url(), 3.0);
    assert_eq!(server.came("catchup"), all.len() as f64, "{}", server.log());
    let fresh = project.issue(&Author::new(7), now());
    assert!(client.publish(&fresh).0);
    server.eventually_served(&[&fresh]);
    eventually("it came by itself", || (server.came("live") == 1.0).then_some(()));
}

fn is_live(filter: &Value) -> bool {
    filter["limit"] == 0
}

#[test]
fn after_a_short_stop_only_what_is_newer_is_asked_for() {
    let fake = Fake::start(Manners::default());
    let url = fake.url();
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "short", &[server.place], &[&url]);
    let events = history(&project, 30);
    for event in &events {
        fake.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&url, 3.0);
    assert!(fake.filters(0).iter().any(|filter| !is_live(filter) && filter["since"].is_null()), "a first time");

    // However it ends: what was written down when it was asked to end is good for both. What has come after that is new
    // to the life after the crash.
    let mut roots = Vec::new();
    for (connection, end) in [(2, Neighbour::stop as fn(&mut Neighbour)), (3, Neighbour::kill)] {
        let before = now();
        end(&mut server);
        fake.eventually("it has left", |deed| matches!(deed, Deed::Left(_)));
        let missed = project.issue(&Author::new(7), now());
        let late = Author::new(6).comment(now(), &missed);
        fake.publish(&missed);
        fake.publish(&late);
        server.again();
        server.eventually_served(&[&missed, &late]);
        server.eventually_state(&url, 3.0);
        server.eventually_metric("ngit_sync_reconnects_total{kind=\"quick\"}", 1.0);
        assert_eq!(fake.connections(), connection);

        let filters = fake.filters(connection);
        roots.push(Value::from(missed.id.to_string()));
        for filter in filters.iter().filter(|filter| !is_live(filter)) {
            // What refers to a root that is new here was never asked for.
            let is_new = ["#e", "#E", "#q"]
                .iter()
                .any(|tag| filter[*tag].as_array().is_some_and(|ids| ids.iter().all(|id| roots.contains(id))));
            let since = filter["since"].as_u64();
            assert!(is_new || since.is_some(), "no full pass: {filter}");
            let newest = before - 15 * 60 + 60;
            assert!(since.is_none_or(|since| since <= newest), "the overlap is in it: {filter} {newest}");
        }
        // The live subscriptions follow everything again.
        for tag in ["#a", "#A", "#q", "#e", "#E"] {
            assert!(filters.iter().any(|filter| is_live(filter) && filter[tag].is_array()), "{tag}: {filters:?}");
        }
        assert!(filters.iter().any(|filter| is_live(filter) && filter["kinds"].as_array().is_some()), "{filters:?}");
    }
}

#[test]
fn a_crash_in_the_middle_loses_nothing() {
    let fake = Fake::start(Manners { page: 50, ..Manners::default() });
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "crash", &[server.place], &[&fake.url()]);
    let events = history(&project, 200);
    for event in &events {
        fake.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    eventually("a part has come", || (server.served(&all) >= 50).then_some(()));
    server.kill();
    server.again();
    server.eventually_served(&all);
    server.eventually_state(&fake.url(), 3.0);
}

#[test]
fn a_relay_that_breaks_off_is_had_in_parts() {
    let fake = Fake::start(Manners { page: 50, breaks_off: 150, ..Manners::default() });
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "parts", &[server.place], &[&fake.url()]);
    // More than fits into a connection: it must go on where it stood.
    let events = project.issues(&Author::new(9), THEN, 400);
    for event in &events {
        fake.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    assert!(fake.connections() <= 8, "{}", fake.connections());
}

#[test]
fn whoever_is_asked_to_stop_says_goodbye() {
    let (fake, other) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    let mut server = Neighbour::start(&[("SHUTDOWN_GRACE_SECS", "10")]);
    let project = Project::new(1, "bye", &[server.place], &[&fake.url(), &other.url()]);
    server.host(&project);
    for relay in [&fake, &other] {
        server.eventually_state(&relay.url(), 3.0);
    }
    let start = std::time::Instant::now();
    server.stop();
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    for relay in [&fake, &other] {
        relay.eventually("the end is proper", |deed| *deed == Deed::Left(Some(1000)));
    }
}

//! What the operator sees and wants of relays: `graspd relays`, `graspd sync`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::eventually;
use crate::support::peers::{Neighbour, Project, now, place, relay};

/// A server that follows another, and what both host.
fn pair() -> (Neighbour, Neighbour, Project) {
    let (mut a, mut b) = (Neighbour::start(&[]), Neighbour::start(&[]));
    let project = Project::new(1, "common", &[a.place, b.place], &[]);
    a.host(&project);
    b.host(&project);
    let (of_a, of_b) = (a.relay(), b.relay());
    a.eventually_state(&of_b, 3.0);
    b.eventually_state(&of_a, 3.0);
    (a, b, project)
}

/// What is known of a relay.
fn known(server: &Neighbour, url: &str) -> Option<Value> {
    let relays = server.server.run(&["relays", "--json"]).json();
    relays.into_iter().find(|relay| relay["url"] == url)
}

fn eventually_known(server: &Neighbour, url: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || known(server, url).filter(|relay| is_so(relay)))
}

#[test]
fn relays_are_listed() {
    let (a, b, _) = pair();
    let url = b.relay();
    let relay = eventually_known(&a, &url, "it is complete", |relay| relay["covered"] == 1);
    assert_eq!(relay["state"], "connected");
    assert_eq!(relay["repositories"], 1);
    for arguments in [&["relays"][..], &["relays", "list"]] {
        let text = a.server.run(arguments).well();
        let line = text.lines().find(|line| line.contains(&url)).unwrap_or_else(|| panic!("{text}"));
        assert!(text.starts_with("RELAY") && line.contains("connected") && line.contains("1/1"), "{text}");
    }
    assert_eq!(
        a.server.run(&["relays", "list", "--json"]).json().len(),
        a.server.run(&["relays", "--json"]).json().len()
    );
}

#[test]
fn a_relay_is_paused_over_a_restart_and_resumed() {
    let (mut a, mut b, project) = pair();
    let url = b.relay();
    let said = a.server.run(&["relays", "pause", &url]).well();
    assert!(said.contains(&url) && said.contains("restart"), "{said}");
    eventually_known(&a, &url, "it is hung up", |relay| relay["paused"] == true && relay["state"] == "disconnected");
    a.server.run(&["relays", "resume", &url]).well();
    a.eventually_state(&url, 3.0);
    // An order is on disk before the command ends.
    a.server.run(&["relays", "pause", &url]).well();
    a.kill();
    a.again();
    eventually_known(&a, &url, "it is still paused", |relay| relay["paused"] == true);
    assert!(a.server.run(&["relays"]).well().contains("paused"));
    let refused = a.server.run(&["sync", &url]).badly(1);
    assert!(refused.contains("paused") && refused.contains("relays resume"), "{refused}");
    let issue = project.issue(&Author::new(9), now());
    b.publish(&issue);
    assert_eq!(known(&a, &url).map(|relay| relay["state"].clone()), Some("disconnected".into()));

    let resumed = a.server.run(&["relays", "resume", &url, "--json"]).object();
    assert_eq!(resumed["url"], url.as_str());
    a.eventually_served(&[&issue]);
    eventually_known(&a, &url, "it is followed", |relay| relay["paused"] == false && relay["state"] == "connected");
}

#[test]
fn a_relay_that_rests_is_retried_at_once() {
    let mut a = Neighbour::start(&[("SYNC_BASE_BACKOFF_SECS", "600"), ("SYNC_MAX_BACKOFF_SECS", "3600")]);
    let there = place();
    let project = Project::new(1, "common", &[a.place, there], &[]);
    a.host(&project);
    let url = relay(there);
    let resting = eventually_known(&a, &url, "it has failed", |relay| relay["why"].is_string());
    assert!(resting["retry_in_seconds"].as_u64() > Some(30), "{resting}");
    let text = a.server.run(&["relays"]).well();
    assert!(text.contains("no connection"), "{text}");
    // Nobody is there.
    let failed = a.server.run(&["sync", &url]).badly(1);
    assert!(failed.contains("no connection") && failed.contains(&url), "{failed}");
    let _b = Neighbour::start_at(there, &[]);
    a.server.run(&["relays", "retry", &url]).well();
    a.eventually_state(&url, 3.0);
}

#[test]
fn what_is_known_of_a_relay_is_forgotten() {
    let (a, b, _) = pair();
    let url = b.relay();
    eventually_known(&a, &url, "it has a past", |relay| relay["uptime_ratio"].as_f64().is_some());
    a.server.run(&["relays", "forget", &url]).well();
    // It is still named, so that it is met again, as a stranger.
    a.eventually_state(&url, 3.0);
    eventually_known(&a, &url, "it is known again", |relay| relay["failures"] == 0 && relay["covered"] == 1);
}

#[test]
fn a_name_that_is_not_known_is_refused_with_the_nearest() {
    let (a, b, _) = pair();
    let url = b.relay();
    let wrong = url.replace("7077", "7078");
    for arguments in [["relays", "retry", &wrong], ["relays", "pause", &wrong], ["relays", "forget", &wrong]] {
        let said = a.server.run(&arguments).badly(1);
        assert!(said.contains("not known") && said.contains(&format!("did you mean {url}?")), "{said}");
    }
    let said = a.server.run(&["sync", "wss://nothing.like.it.example"]).badly(1);
    assert!(said.contains("not known") && said.contains("graspd relays"), "{said}");
    assert!(a.server.run(&["sync", "no url at all"]).badly(1).contains("not the URL of a relay"));
    a.server.run(&["sync"]).badly(2);
    assert_eq!(a.server.run(&["relays", "--json"]).json().len(), 1, "nothing was invented");
}

#[test]
fn everything_is_reconciled_now() {
    let (mut a, mut b, project) = pair();
    let url = b.relay();
    // While it is paused something comes to the other that is older than what `since` reaches back to.
    let author = Author::new(9);
    let issues = project.issues(&author, crate::support::git::THEN, 40);
    a.server.run(&["relays", "pause", &url]).well();
    eventually_known(&a, &url, "it is hung up", |relay| relay["state"] == "disconnected");
    for issue in &issues {
        b.publish(issue);
    }
    a.server.run(&["relays", "resume", &url]).well();
    a.eventually_state(&url, 3.0);
    let issues: Vec<_> = issues.iter().collect();
    let served = a.served(&issues);
    let said = a.server.run(&["sync", &url]).well();
    assert!(said.contains("Everything of 1 repositories") && said.contains(&url), "{said}");
    assert_eq!(a.served(&issues), issues.len(), "{served} were there before");

    // The same for programs: lines of progress, then what came.
    let lines = a.server.run(&["sync", &url, "--json"]).json();
    let (last, before) = lines.split_last().expect("lines");
    assert_eq!(last["events"], 0);
    assert_eq!(last["compared"], last["shared"], "{last}");
    assert!(!before.is_empty() && before.iter().all(|line| line["progress"]["what"].is_string()), "{before:?}");
}

#[test]
fn what_was_begun_goes_on_when_nobody_watches() {
    let (a, b, _) = pair();
    let url = b.relay();
    let passes = |server: &Neighbour| server.log().matches("caught up").count();
    let before = passes(&a);
    let mut command = a.server.operator(&["sync", &url, "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("graspd runs");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("a line");
    child.kill().expect("it runs or has ended");
    child.wait().expect("it ends");
    eventually("it ends by itself", || {
        let relay = known(&a, &url)?;
        (relay["daily"] == false && relay["state"] == "connected").then_some(())
    });
    assert!(passes(&a) >= before);
    a.server.run(&["sync", &url]).well();
}

#[test]
fn a_relay_that_goes_away_ends_the_wait() {
    let (a, mut b, _) = pair();
    let url = b.relay();
    b.kill();
    let said = a.server.run(&["sync", &url]).badly(1);
    assert!(said.contains(&url) && said.contains("connection"), "{said}");
}

#[test]
fn without_sync_there_are_no_relays() {
    let server = crate::support::Server::start(&[]);
    for arguments in [&["relays"][..], &["sync", "wss://a.example"], &["relays", "pause", "wss://a.example"]] {
        assert!(server.run(arguments).badly(1).contains("SYNC_ENABLE is false"), "{arguments:?}");
    }
}

//! Commands for the relays that the server syncs from: `graspd relays` and `graspd sync`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use grasp_sim::signer::Author;
use serde_json::Value;

use crate::support::eventually;
use crate::support::peers::{Project, SyncServer, now, relay_url, unused_address};

/// Starts two servers that sync from each other, and a repository that both host.
fn start_pair() -> (SyncServer, SyncServer, Project) {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let project = Project::new(1, "common", &[a.address, b.address], &[]);
    a.host(&project);
    b.host(&project);
    let (url_a, url_b) = (a.relay_url(), b.relay_url());
    a.eventually_state(&url_b, 3.0);
    b.eventually_state(&url_a, 3.0);
    (a, b, project)
}

/// Returns what `graspd relays --json` prints for a relay.
fn relay_info(server: &SyncServer, url: &str) -> Option<Value> {
    let relays = server.process.run(&["relays", "--json"]).json_lines();
    relays.into_iter().find(|relay| relay["url"] == url)
}

/// Waits until what is printed for a relay meets a condition.
fn eventually_relay_info(server: &SyncServer, url: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    eventually(what, || relay_info(server, url).filter(|relay| condition(relay)))
}

#[test]
fn relays_are_listed() {
    let (a, b, _) = start_pair();
    let url = b.relay_url();
    let relay = eventually_relay_info(&a, &url, "the repository is synced", |relay| relay["covered"] == 1);
    assert_eq!(relay["state"], "connected");
    assert_eq!(relay["repositories"], 1);
    for arguments in [&["relays"][..], &["relays", "list"]] {
        let text = a.process.run(arguments).expect_success();
        let line = text.lines().find(|line| line.contains(&url)).unwrap_or_else(|| panic!("{text}"));
        assert!(text.starts_with("RELAY") && line.contains("connected") && line.contains("1/1"), "{text}");
    }
    assert_eq!(
        a.process.run(&["relays", "list", "--json"]).json_lines().len(),
        a.process.run(&["relays", "--json"]).json_lines().len()
    );
}

#[test]
fn paused_relay_stays_paused_over_a_restart_until_resumed() {
    let (mut a, mut b, project) = start_pair();
    let url = b.relay_url();
    let printed = a.process.run(&["relays", "pause", &url]).expect_success();
    assert!(printed.contains(&url) && printed.contains("restart"), "{printed}");
    eventually_relay_info(&a, &url, "the relay is disconnected", |relay| {
        relay["paused"] == true && relay["state"] == "disconnected"
    });
    a.process.run(&["relays", "resume", &url]).expect_success();
    a.eventually_state(&url, 3.0);
    // The pause is on disk before the command ends.
    a.process.run(&["relays", "pause", &url]).expect_success();
    a.kill();
    a.start_again();
    eventually_relay_info(&a, &url, "the relay is still paused", |relay| relay["paused"] == true);
    assert!(a.process.run(&["relays"]).expect_success().contains("paused"));
    let failed = a.process.run(&["sync", &url]).expect_failure(1);
    assert!(failed.contains("paused") && failed.contains("relays resume"), "{failed}");
    let issue = project.issue(&Author::new(9), now());
    b.publish(&issue);
    assert_eq!(relay_info(&a, &url).map(|relay| relay["state"].clone()), Some("disconnected".into()));

    let resumed = a.process.run(&["relays", "resume", &url, "--json"]).json_object();
    assert_eq!(resumed["url"], url.as_str());
    a.eventually_served(&[&issue]);
    eventually_relay_info(&a, &url, "the relay is connected again", |relay| {
        relay["paused"] == false && relay["state"] == "connected"
    });
}

#[test]
fn retry_ends_the_backoff_of_a_relay() {
    let mut a = SyncServer::start(&[("SYNC_BASE_BACKOFF_SECS", "600"), ("SYNC_MAX_BACKOFF_SECS", "3600")]);
    let other_address = unused_address();
    let project = Project::new(1, "common", &[a.address, other_address], &[]);
    a.host(&project);
    let url = relay_url(other_address);
    let failing = eventually_relay_info(&a, &url, "the connection has failed", |relay| relay["why"].is_string());
    assert!(failing["retry_in_seconds"].as_u64() > Some(30), "{failing}");
    let text = a.process.run(&["relays"]).expect_success();
    assert!(text.contains("connection failed"), "{text}");
    // No server listens at this address yet.
    let failed = a.process.run(&["sync", &url]).expect_failure(1);
    assert!(failed.contains("connection failed") && failed.contains(&url), "{failed}");
    let _b = SyncServer::start_at(other_address, &[]);
    a.process.run(&["relays", "retry", &url]).expect_success();
    a.eventually_state(&url, 3.0);
}

#[test]
fn forget_discards_the_record_of_a_relay() {
    let (a, b, _) = start_pair();
    let url = b.relay_url();
    eventually_relay_info(&a, &url, "the relay has an uptime record", |relay| relay["uptime_ratio"].as_f64().is_some());
    a.process.run(&["relays", "forget", &url]).expect_success();
    // The repository still lists the relay, so it is connected again, with a new record.
    a.eventually_state(&url, 3.0);
    eventually_relay_info(&a, &url, "the relay is synced again", |relay| {
        relay["failures"] == 0 && relay["covered"] == 1
    });
}

#[test]
fn unknown_relay_is_an_error_that_suggests_the_nearest() {
    let (a, b, _) = start_pair();
    let url = b.relay_url();
    let wrong = url.replace("7077", "7078");
    for arguments in [["relays", "retry", &wrong], ["relays", "pause", &wrong], ["relays", "forget", &wrong]] {
        let printed = a.process.run(&arguments).expect_failure(1);
        assert!(printed.contains("not known") && printed.contains(&format!("did you mean {url}?")), "{printed}");
    }
    let printed = a.process.run(&["sync", "wss://nothing.like.it.example"]).expect_failure(1);
    assert!(printed.contains("not known") && printed.contains("graspd relays"), "{printed}");
    assert!(a.process.run(&["sync", "no url at all"]).expect_failure(1).contains("not the URL of a relay"));
    a.process.run(&["sync"]).expect_failure(2);
    assert_eq!(a.process.run(&["relays", "--json"]).json_lines().len(), 1, "failed commands add no relay");
}

#[test]
fn sync_command_reconciles_at_once() {
    let (mut a, mut b, project) = start_pair();
    let url = b.relay_url();
    // While the relay is paused, it receives events that are older than the `since` of a quick reconnect.
    let author = Author::new(9);
    let issues = project.issues(&author, crate::support::git::BASE_TIME, 40);
    a.process.run(&["relays", "pause", &url]).expect_success();
    eventually_relay_info(&a, &url, "the relay is disconnected", |relay| relay["state"] == "disconnected");
    for issue in &issues {
        b.publish(issue);
    }
    a.process.run(&["relays", "resume", &url]).expect_success();
    a.eventually_state(&url, 3.0);
    let issues: Vec<_> = issues.iter().collect();
    let served = a.count_served(&issues);
    let printed = a.process.run(&["sync", &url]).expect_success();
    assert!(printed.contains("1 repositories have everything that") && printed.contains(&url), "{printed}");
    assert_eq!(a.count_served(&issues), issues.len(), "{served} were served before");

    // With --json: lines of progress, then the summary.
    let lines = a.process.run(&["sync", &url, "--json"]).json_lines();
    let (last, before) = lines.split_last().expect("no lines");
    assert_eq!(last["events"], 0);
    assert_eq!(last["compared"], last["shared"], "{last}");
    assert!(!before.is_empty() && before.iter().all(|line| line["progress"]["what"].is_string()), "{before:?}");
}

#[test]
fn sync_continues_after_the_command_is_interrupted() {
    let (a, b, _) = start_pair();
    let url = b.relay_url();
    let passes = |server: &SyncServer| server.log().matches("caught up").count();
    let before = passes(&a);
    let mut command = a.process.cli_command(&["sync", &url, "--json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("cannot run graspd");
    let mut first = String::new();
    BufReader::new(child.stdout.take().expect("output is piped")).read_line(&mut first).expect("no line");
    child.kill().expect("cannot kill the process");
    child.wait().expect("cannot wait for the process");
    eventually("the reconciliation ends", || {
        let relay = relay_info(&a, &url)?;
        (relay["daily"] == false && relay["state"] == "connected").then_some(())
    });
    assert!(passes(&a) >= before);
    a.process.run(&["sync", &url]).expect_success();
}

#[test]
fn sync_command_ends_when_the_relay_disconnects() {
    let (a, mut b, _) = start_pair();
    let url = b.relay_url();
    b.kill();
    let printed = a.process.run(&["sync", &url]).expect_failure(1);
    assert!(printed.contains(&url) && printed.contains("connection"), "{printed}");
}

#[test]
fn relay_commands_fail_when_sync_is_disabled() {
    let server = crate::support::Server::start(&[]);
    for arguments in [&["relays"][..], &["sync", "wss://a.example"], &["relays", "pause", "wss://a.example"]] {
        assert!(server.run(arguments).expect_failure(1).contains("SYNC_ENABLE is false"), "{arguments:?}");
    }
}

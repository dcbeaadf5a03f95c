//! Which relays are dialled and followed if some of them cannot be reached, refuse requests, are private, or are not
//! needed.

use std::net::TcpListener;

use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::eventually;
use crate::support::git::BASE_TIME;
use crate::support::peers::scripted_relay::{ClientAction, RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now, relay_url, unused_address};

/// Returns the URLs of two relays whose text sorts before that of every test server. The first refuses connections, the
/// second accepts them and never answers.
fn two_dead_relays() -> ([String; 2], TcpListener) {
    let refusing = TcpListener::bind("127.0.0.2:0").expect("cannot bind an address");
    let silent = TcpListener::bind("127.0.0.2:0").expect("cannot bind an address");
    let url = |listener: &TcpListener| relay_url(listener.local_addr().expect("no local address"));
    ([url(&refusing), url(&silent)], silent)
}

fn attempts(server: &SyncServer, relay: &str, result: &str) -> f64 {
    let series = format!("ngit_sync_connection_attempts_total{{relay=\"{relay}\",result=\"{result}\"}}");
    server.metric(&series).unwrap_or(0.0)
}

/// The repository exists on one server and is added to another by a new announcement. The second server has to find the
/// state and the git data on the first.
#[test]
fn held_repository_is_released_although_two_dead_relays_sort_first() {
    let (dead, _silent) = two_dead_relays();
    let mut first = SyncServer::start(&[]);
    let mut second = SyncServer::start(&[]);
    let project = Project::new(1, "moved", &[first.address, second.address], &[&dead[0], &dead[1]]);
    first.host(&project);
    second.publish(&project.announcement);
    second.eventually_served(&[&project.announcement, &project.state]);
}

/// The same, if the relay that has the state is not a GRASP server and is listed last.
#[test]
fn every_relay_of_a_held_repository_is_tried() {
    let (dead, _silent) = two_dead_relays();
    let relay = ScriptedRelay::start(RelayScript::default());
    let others: Vec<ScriptedRelay> = (0..3).map(|_| ScriptedRelay::start(RelayScript::default())).collect();
    let mut listed: Vec<String> = others.iter().map(ScriptedRelay::url).collect();
    listed.extend(dead);
    listed.push(relay.url());
    let listed: Vec<&str> = listed.iter().map(String::as_str).collect();
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "found", &[server.address], &listed);
    relay.publish(&project.state);
    server.publish(&project.announcement);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 1.0);
    server.push(&project);
    server.eventually_served(&[&project.announcement, &project.state]);
}

#[test]
fn only_peer_that_refuses_connections_is_degraded_and_warned_about_once() {
    let url = relay_url(unused_address());
    let backoff =
        [("SYNC_BASE_BACKOFF_SECS", "1"), ("SYNC_MAX_BACKOFF_SECS", "60"), ("SYNC_BOOTSTRAP_RELAY_URL", &url)];
    let server = SyncServer::start(&backoff);
    eventually("three attempts", || (attempts(&server, &url, "failure") >= 3.0).then_some(()));
    server.eventually_metric(&format!("ngit_sync_relay_status{{relay=\"{url}\"}}"), 3.0);
    eventually("the failures are counted", || {
        server.relay_metric("ngit_sync_relay_failures", &url).filter(|failures| *failures >= 3.0)
    });
    let log = server.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("relay connection failed")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for part in ["WARN", "attempt=1", "retry_in=", "reason=\"refused\""] {
        assert!(warnings[0].contains(part), "{part} missing in {}", warnings[0]);
    }
}

/// A relay refuses the requests for one of two repositories.
#[test]
fn refusal_of_one_repository_does_not_end_live_sync() {
    let refused = "refused-repository";
    let relay = ScriptedRelay::start(RelayScript {
        refused_text: Some(format!(":{refused}")),
        greeting: Some("restricted: ask the operator for access"),
        ..RelayScript::default()
    });
    let mut server = SyncServer::start(&[]);
    let served = Project::new(1, "served", &[server.address], &[&relay.url()]);
    server.host(&served);
    server.eventually_state(&relay.url(), 3.0);
    let other = Project::new(1, refused, &[server.address], &[&relay.url()]);
    server.host(&other);
    relay.eventually("a refused request", |action| *action == ClientAction::WasRejected);
    server.eventually_state(&relay.url(), 4.0);
    let issue = served.issue(&Author::new(9), now());
    relay.publish(&issue);
    server.eventually_served(&[&issue]);
    assert_eq!(relay.connections(), 1, "{}", server.log());
    assert!(!server.log().contains("relay rejects this server"), "{}", server.log());
}

/// The operator's relay may have a private address. Addresses that events name must not, even on the same host.
#[test]
fn only_the_configured_relay_may_have_a_private_address() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let listener = TcpListener::bind((relay.address.ip(), 0)).expect("cannot bind an address");
    listener.set_nonblocking(true).expect("cannot make the socket non-blocking");
    let trap = relay_url(listener.local_addr().expect("no local address"));
    let other_path = format!("{}/other", relay.url());
    let settings = [("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false"), ("SYNC_BOOTSTRAP_RELAY_URL", &relay.url())];
    let mut server = SyncServer::start(&settings);
    server.eventually_state(&relay.url(), 3.0);
    let project = Project::new(1, "trap", &[server.address], &[&trap, &other_path]);
    relay.publish(&project.announcement);
    relay.publish(&project.state);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 2.0);
    server.push(&project);
    server.eventually_served(&[&project.announcement, &project.state]);
    for url in [&trap, &other_path] {
        eventually("the failure is counted", || (attempts(&server, url, "failure") >= 1.0).then_some(()));
    }
    let error = listener.accept().expect_err("the server has connected");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
    assert_eq!(relay.connections(), 1);
}

/// "A public service SHOULD NOT pull from GRASP-08 peers."
#[test]
fn private_service_is_not_dialled() {
    let document = json!({"name": "private", "supported_grasps": ["GRASP-01", "GRASP-08"]});
    let relay = ScriptedRelay::start(RelayScript { nip11: Some(document), ..RelayScript::default() });
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "public", &[server.address], &[&relay.url()]);
    relay.publish(&project.issue(&Author::new(9), BASE_TIME));
    server.host(&project);
    eventually("the relay is parked", || server.log().contains("private service (GRASP-08)").then_some(()));
    server.eventually_metric(&format!("ngit_sync_relay_status{{relay=\"{}\"}}", relay.url()), 3.0);
    assert_eq!(relay.messages(0), Vec::<serde_json::Value>::new());
    let is_connected = relay.records().iter().any(|record| record.action == ClientAction::Connected);
    assert!(!is_connected, "the websocket was opened");
}

/// The lines that tell what sync does with each event, and when a repository is complete.
#[test]
fn events_of_relays_and_complete_git_data_are_logged() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let mut server = SyncServer::start(&[("LOG_LEVEL", "info,writer=debug")]);
    let project = Project::new(1, "logged", &[server.address], &[&relay.url()]);
    server.host(&project);
    server.eventually_state(&relay.url(), 3.0);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    relay.publish(&issue);
    let unrelated = author.announcement_elsewhere("unrelated", now(), &[]);
    relay.publish(&unrelated);
    let (url, issue, unrelated) = (relay.url(), issue.id.to_string(), unrelated.id.to_string());
    let expected: [(&str, &[&str]); 3] = [
        ("repository served", &["INFO", "writer", "logged", "git data complete"]),
        // It may have been published before the catch-up has ended.
        ("event accepted", &["DEBUG", "writer", &issue, "source=", &url]),
        ("event rejected", &["DEBUG", "writer", &unrelated, "reason=", &url]),
    ];
    for (message, parts) in expected {
        eventually(&format!("`{message}` with {parts:?} is logged"), || {
            let log = server.log();
            log.lines().any(|line| line.contains(message) && parts.iter().all(|part| line.contains(part))).then_some(())
        });
    }
}

//! Relays are not trusted: their events are verified and admitted like those of clients, in any order, and the addresses of
//! listed relays are checked before a connection.

use std::net::TcpListener;
use std::sync::Arc;

use grasp_core::nostr::{Event, SignedEvent};
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::BASE_TIME;
use crate::support::peers::scripted_relay::{RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now, relay_url, series_of, unused_address};

/// Starts a server that hosts a repository which lists two relays, and waits until it is connected to both.
fn server_between(one: &ScriptedRelay, other: &ScriptedRelay) -> (SyncServer, Project) {
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "between", &[server.address], &[&one.url(), &other.url()]);
    server.host(&project);
    for relay in [one, other] {
        server.eventually_state(&relay.url(), 3.0);
    }
    (server, project)
}

/// Returns a changed event, with the id and signature of the original unless they are changed.
fn altered(event: &SignedEvent, alter: impl FnOnce(&mut Event)) -> SignedEvent {
    let mut event = event.event().clone();
    alter(&mut event);
    SignedEvent::from_trusted(event)
}

#[test]
fn events_before_their_parents_are_served_later() {
    let (one, other) = (ScriptedRelay::start(RelayScript::default()), ScriptedRelay::start(RelayScript::default()));
    let (mut server, project) = server_between(&one, &other);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    // The parent of these comments is on no relay yet.
    let id = issue.id.to_string();
    let coordinate = format!("30617:{}:elsewhere", author.hex());
    let comment = author.sign(1111, now(), &[&["E", &id], &["e", &id], &["a", &coordinate]], "early");
    let reply = author.sign(1111, now(), &[&["E", &id], &["e", &comment.id.to_string()]], "earlier");
    one.publish(&reply);
    one.publish(&comment);
    // They match no filter as long as their parent is unknown. If the relay sends them anyway, they are dropped.
    one.send_unrequested(&reply);
    one.send_unrequested(&comment);
    server.eventually_metric(&series_of("ngit_sync_unsolicited_events_total", &one), 2.0);
    assert_eq!(server.count_served(&[&comment, &reply]), 0);
    other.publish(&issue);
    server.eventually_served(&[&issue, &comment, &reply]);
}

#[test]
fn protected_events_are_not_synced() {
    let (one, other) = (ScriptedRelay::start(RelayScript::default()), ScriptedRelay::start(RelayScript::default()));
    let author = Author::new(9);
    let before = Project::new(1, "between", &[], &[]);
    let old = author.sign(1621, BASE_TIME, &[&["a", &before.coordinate()], &["-"]], "mine");
    one.publish(&old);
    let (mut server, project) = server_between(&one, &other);
    let live = author.sign(1621, now(), &[&["a", &project.coordinate()], &["-"]], "mine");
    one.publish(&live);
    let issue = project.issue(&author, now());
    one.publish(&issue);
    server.eventually_served(&[&issue]);
    assert_eq!(server.count_served(&[&old, &live]), 0);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"refused\"}", 2.0);
    assert_eq!(server.count_served(&[&old, &live]), 0);
}

#[test]
fn forged_events_are_not_served_and_do_not_block_genuine_ones() {
    let (one, other) = (ScriptedRelay::start(RelayScript::default()), ScriptedRelay::start(RelayScript::default()));
    let (mut server, project) = server_between(&one, &other);
    let issues = project.issues(&Author::new(9), now(), 4);
    // A wrong signature with the right id, before the genuine copy from another relay, and from the same one.
    for (n, honest) in [(0, &other), (1, &one)] {
        let forged = altered(&issues[n], |event| event.sig[7] ^= 1);
        one.publish(&forged);
        honest.publish(&issues[n]);
        server.eventually_served(&[&issues[n]]);
    }
    // Another content with the right id.
    let wrong = altered(&issues[2], |event| event.content.push_str(" send money"));
    one.publish(&wrong);
    other.publish(&issues[2]);
    server.eventually_served(&[&issues[2]]);
    // An id that is not the hash of the event.
    let unknown = altered(&issues[3], |event| event.id.0[0] ^= 1);
    one.publish(&unknown);
    one.publish(&issues[3]);
    server.eventually_served(&[&issues[3]]);
    assert_eq!(server.count_served(&[&Arc::new(unknown)]), 0);
    let found = server.client().query(&[json!({"kinds": [1621]})]);
    assert_eq!(found.len(), 4, "{found:?}");
    let mut client = server.process.connect();
    client.send(&json!(["REQ", "x", {"ids": [issues[2].id.to_string()]}]));
    assert_eq!(client.receive()[2]["content"], issues[2].content.as_str());
    for relay in [&one, &other] {
        assert_eq!(relay.connections(), 1, "a few forged events do not end the connection");
    }
}

#[test]
fn forged_stored_events_do_not_block_genuine_ones() {
    let (forging, honest) =
        (ScriptedRelay::start(RelayScript::default()), ScriptedRelay::start(RelayScript::default()));
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "history", &[server.address], &[&forging.url(), &honest.url()]);
    let issues = project.issues(&Author::new(9), BASE_TIME, 20);
    for issue in &issues {
        forging.publish(&altered(issue, |event| event.sig[0] ^= 1));
        honest.publish(issue);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = issues.iter().collect();
    server.eventually_served(&all);
}

fn is_announcement_or_state_filter(filter: &Value, d: &str) -> bool {
    let kinds =
        filter["kinds"].as_array().is_some_and(|kinds| kinds.iter().all(|kind| *kind == 30617 || *kind == 30618));
    kinds && filter["#d"] == json!([d])
}

#[test]
fn only_announcements_and_states_are_requested_for_held_repositories() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "held", &[server.address], &[&relay.url()]);
    relay.publish(&project.state);
    let issue = project.issue(&Author::new(9), BASE_TIME);
    relay.publish(&issue);
    server.publish(&project.announcement);
    server.eventually_state(&relay.url(), 3.0);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 1.0);
    let filters = relay.filters(0);
    assert!(!filters.is_empty());
    for filter in &filters {
        assert!(is_announcement_or_state_filter(filter, "held"), "{filter}");
    }
    // The state was synced, so the data can be pushed. Then all events are requested.
    server.push(&project);
    server.eventually_served(&[&project.announcement, &project.state, &issue]);
    relay.eventually_requested("all announcements", |filter| {
        filter["kinds"] == json!([30617, 10317]) && filter["#d"].is_null()
    });
}

#[test]
fn own_address_under_another_name_is_not_synced() {
    // An address that also has a host name.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], {
        let free = TcpListener::bind("127.0.0.1:0").expect("cannot bind a port");
        free.local_addr().expect("no local address").port()
    }));
    let mut server = SyncServer::start_at(address, &[]);
    let alias = format!("ws://localhost:{}", address.port());
    let relay = ScriptedRelay::start(RelayScript::default());
    let project = Project::new(1, "self", &[address], &[&alias, &relay.url()]);
    server.host(&project);
    server.eventually_state(&relay.url(), 3.0);
    eventually("the server has recognised itself", || {
        server.log().contains("relay URL leads to this server").then_some(())
    });
    server.eventually_state(&alias, -1.0);
    assert_eq!(
        server.relay_metric("ngit_sync_relay_connected", &server.relay_url()),
        None,
        "the exact own URL is never dialled"
    );
    // The result survives a restart.
    server.stop();
    server.start_again();
    server.eventually_state(&relay.url(), 3.0);
    let dialled =
        server.metric(&format!("ngit_sync_connection_attempts_total{{relay=\"{alias}\",result=\"success\"}}"));
    assert_eq!(dialled.unwrap_or_default(), 0.0);
    assert_eq!(server.log().matches("relay URL leads to this server").count(), 1, "{}", server.log());
}

#[test]
fn non_public_addresses_are_not_dialled() {
    let address = unused_address();
    let listener = TcpListener::bind(address).expect("cannot bind an address");
    listener.set_nonblocking(true).expect("cannot make the socket non-blocking");
    let port = address.port();
    let url = relay_url(address);
    let named = format!("ws://localhost:{port}");
    let mapped = format!("ws://[::ffff:{}]:{port}", address.ip());
    let mut server = SyncServer::start(&[("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false")]);
    let project = Project::new(1, "trap", &[server.address], &[&url, &named, &mapped]);
    server.host(&project);
    for url in [&url, &named] {
        let series = format!("ngit_sync_connection_attempts_total{{relay=\"{url}\",result=\"failure\"}}");
        eventually("the failure is counted", || server.metric(&series).filter(|count| *count >= 1.0));
    }
    eventually("all three URLs are rejected", || {
        (server.log().matches("reason=\"forbidden\"").count() >= 3).then_some(())
    });
    let error = listener.accept().expect_err("the server has connected");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
}

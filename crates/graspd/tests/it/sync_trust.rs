//! Relays are strangers: what they bring is judged like anybody's, in whatever order it comes, and what they name is
//! looked at before it is dialled.

use std::net::TcpListener;
use std::sync::Arc;

use grasp_core::nostr::{Event, SignedEvent};
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::THEN;
use crate::support::peers::scripted_relay::{Fake, Manners};
use crate::support::peers::{Neighbour, Project, now, place, relay};

/// A server that hosts a repository which names two relays, and is connected to both.
fn between(one: &Fake, other: &Fake) -> (Neighbour, Project) {
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "between", &[server.place], &[&one.url(), &other.url()]);
    server.host(&project);
    for fake in [one, other] {
        server.eventually_state(&fake.url(), 3.0);
    }
    (server, project)
}

fn altered(event: &SignedEvent, alter: impl FnOnce(&mut Event)) -> SignedEvent {
    let mut event = event.event().clone();
    alter(&mut event);
    SignedEvent::from_trusted(event)
}

#[test]
fn what_comes_before_what_it_answers_is_served_in_the_end() {
    let (one, other) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    let (mut server, project) = between(&one, &other);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    // Sent by the repository's own name, so that it is asked for; what it answers is nowhere yet.
    let id = issue.id.to_string();
    let coordinate = format!("30617:{}:elsewhere", author.hex());
    let comment = author.sign(1111, now(), &[&["E", &id], &["e", &id], &["a", &coordinate]], "early");
    let reply = author.sign(1111, now(), &[&["E", &id], &["e", &comment.id.to_string()]], "earlier");
    // It is nothing that the server has asked for; relays that send it anyway are heard.
    one.thrust(&reply);
    one.thrust(&comment);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"refused\"}", 2.0);
    assert_eq!(server.served(&[&comment, &reply]), 0);
    other.publish(&issue);
    server.eventually_served(&[&issue, &comment, &reply]);
}

#[test]
fn what_is_protected_is_not_imported() {
    let (one, other) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    let author = Author::new(9);
    let before = Project::new(1, "between", &[], &[]);
    let old = author.sign(1621, THEN, &[&["a", &before.coordinate()], &["-"]], "mine");
    one.publish(&old);
    let (mut server, project) = between(&one, &other);
    let live = author.sign(1621, now(), &[&["a", &project.coordinate()], &["-"]], "mine");
    one.publish(&live);
    let issue = project.issue(&author, now());
    one.publish(&issue);
    server.eventually_served(&[&issue]);
    assert_eq!(server.served(&[&old, &live]), 0);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"refused\"}", 2.0);
    assert_eq!(server.served(&[&old, &live]), 0);
}

#[test]
fn lies_are_not_served_and_the_truth_is() {
    let (one, other) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    let (mut server, project) = between(&one, &other);
    let issues = project.issues(&Author::new(9), now(), 4);
    // A wrong signature under a right id, before the honest copy of another relay, and of the same one.
    for (n, honest) in [(0, &other), (1, &one)] {
        let forged = altered(&issues[n], |event| event.sig[7] ^= 1);
        one.publish(&forged);
        honest.publish(&issues[n]);
        server.eventually_served(&[&issues[n]]);
    }
    // Another text under a right id.
    let wrong = altered(&issues[2], |event| event.content.push_str(" send money"));
    one.publish(&wrong);
    other.publish(&issues[2]);
    server.eventually_served(&[&issues[2]]);
    // An id that is nobody's.
    let unknown = altered(&issues[3], |event| event.id.0[0] ^= 1);
    one.publish(&unknown);
    one.publish(&issues[3]);
    server.eventually_served(&[&issues[3]]);
    assert_eq!(server.served(&[&Arc::new(unknown)]), 0);
    let found = server.client().query(&[json!({"kinds": [1621]})]);
    assert_eq!(found.len(), 4, "{found:?}");
    let mut client = server.server.connect();
    client.send(&json!(["REQ", "x", {"ids": [issues[2].id.to_string()]}]));
    assert_eq!(client.receive()[2]["content"], issues[2].content.as_str());
    for fake in [&one, &other] {
        assert_eq!(fake.connections(), 1, "a lie or two end nothing");
    }
}

#[test]
fn lies_in_history_do_not_hide_the_truth() {
    let (liar, honest) = (Fake::start(Manners::default()), Fake::start(Manners::default()));
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "history", &[server.place], &[&liar.url(), &honest.url()]);
    let issues = project.issues(&Author::new(9), THEN, 20);
    for issue in &issues {
        liar.publish(&altered(issue, |event| event.sig[0] ^= 1));
        honest.publish(issue);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = issues.iter().collect();
    server.eventually_served(&all);
}

fn is_first_layer_of(filter: &Value, d: &str) -> bool {
    let kinds =
        filter["kinds"].as_array().is_some_and(|kinds| kinds.iter().all(|kind| *kind == 30617 || *kind == 30618));
    kinds && filter["#d"] == json!([d])
}

#[test]
fn for_what_is_held_only_what_releases_it_is_asked_for() {
    let fake = Fake::start(Manners::default());
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "held", &[server.place], &[&fake.url()]);
    fake.publish(&project.state);
    let issue = project.issue(&Author::new(9), THEN);
    fake.publish(&issue);
    server.publish(&project.announcement);
    server.eventually_state(&fake.url(), 3.0);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 1.0);
    let filters = fake.filters(0);
    assert!(!filters.is_empty());
    for filter in &filters {
        assert!(is_first_layer_of(filter, "held"), "{filter}");
    }
    // The state came from there, so data can be brought. Then everything is asked for.
    server.push(&project);
    server.eventually_served(&[&project.announcement, &project.state, &issue]);
    fake.eventually_asked("all announcements", |filter| filter["kinds"] == json!([30617]) && filter["#d"].is_null());
}

#[test]
fn our_own_address_is_not_followed_whatever_it_is_called() {
    // One that has another name.
    let place = std::net::SocketAddr::from(([127, 0, 0, 1], {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        free.local_addr().expect("it is bound").port()
    }));
    let mut server = Neighbour::start_at(place, &[]);
    let alias = format!("ws://localhost:{}", place.port());
    let fake = Fake::start(Manners::default());
    let project = Project::new(1, "self", &[place], &[&alias, &fake.url()]);
    server.host(&project);
    server.eventually_state(&fake.url(), 3.0);
    eventually("it has noticed", || server.log().contains("this is our own address").then_some(()));
    server.eventually_state(&alias, -1.0);
    assert_eq!(server.metric_of("ngit_sync_relay_connected", &server.relay()), None, "not even dialled");
    // It is remembered.
    server.stop();
    server.again();
    server.eventually_state(&fake.url(), 3.0);
    let dialled =
        server.metric(&format!("ngit_sync_connection_attempts_total{{relay=\"{alias}\",result=\"success\"}}"));
    assert_eq!(dialled, None);
    assert_eq!(server.log().matches("this is our own address").count(), 1, "{}", server.log());
}

#[test]
fn addresses_that_are_not_public_are_not_dialled() {
    let place = place();
    let listener = TcpListener::bind(place).expect("a free address");
    listener.set_nonblocking(true).expect("an option");
    let port = place.port();
    let url = relay(place);
    let named = format!("ws://localhost:{port}");
    let mapped = format!("ws://[::ffff:{}]:{port}", place.ip());
    let mut server = Neighbour::start(&[("SYNC_ALLOW_NON_GLOBAL_TARGETS", "false")]);
    let project = Project::new(1, "trap", &[server.place], &[&url, &named, &mapped]);
    server.host(&project);
    for url in [&url, &named] {
        let series = format!("ngit_sync_connection_attempts_total{{relay=\"{url}\",result=\"failure\"}}");
        eventually("it was considered", || server.metric(&series).filter(|count| *count >= 1.0));
    }
    eventually("all three", || (server.log().matches("Forbidden").count() >= 3).then_some(()));
    let problem = listener.accept().expect_err("nobody came");
    assert_eq!(problem.kind(), std::io::ErrorKind::WouldBlock, "{problem}");
}

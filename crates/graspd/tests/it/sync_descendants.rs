//! Events that reach a thread only through a comment or a reaction, deletions of such events by their authors, and relays
//! with few subscriptions.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::eventually;
use crate::support::git::BASE_TIME;
use crate::support::peers::scripted_relay::{RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now};

/// Starts a server that hosts a repository which lists a relay.
fn server_with(relay: &ScriptedRelay, settings: &[(&str, &str)]) -> (SyncServer, Project) {
    let mut server = SyncServer::start(settings);
    let project = Project::new(1, "there", &[server.address], &[&relay.url()]);
    server.host(&project);
    (server, project)
}

/// Returns an event that references others with one tag.
fn reference(kind: u16, tag: &str, target: &str, text: &str) -> Arc<SignedEvent> {
    Author::new(30).sign(kind, now(), &[&[tag, target]], text)
}

#[track_caller]
fn eventually_gone(server: &mut SyncServer, event: &Arc<SignedEvent>) {
    eventually("the event is not served any more", || (server.count_served(&[event]) == 0).then_some(()));
}

/// "Events that reach a thread only through a comment or a reaction (`e`, `E`, `q`, or `a`, `A`, `q` of an addressable
/// member) … Follow them, historic and live, generation by generation, derived from the store at start."
#[test]
fn events_below_comments_are_synced() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let (mut server, project) = server_with(&relay, &[]);
    let author = Author::new(9);
    let issue = project.issue(&author, BASE_TIME);
    let comment = author.comment(BASE_TIME + 1, &issue);
    let id = comment.id.to_string();
    let reaction = reference(7, "e", &id, "+");
    let label = reference(1985, "e", &id, "");
    let reply = reference(1111, "e", &id, "only its parent");
    let quote = reference(1, "q", &reply.id.to_string(), "a quote of the reply");
    let article = author.sign(30_023, BASE_TIME + 2, &[&["d", "summary"], &["E", &id]], "a summary");
    let on_article = reference(1111, "A", &author.coordinate(30_023, "summary"), "on the article");
    let below = reference(7, "e", &on_article.id.to_string(), "+");
    let all = [&issue, &comment, &reaction, &label, &reply, &quote, &article, &on_article, &below];
    for event in all {
        relay.publish(event);
    }
    server.eventually_served(&all);

    server.eventually_state(&relay.url(), 3.0);
    let before = server.received_count("live");
    let live = reference(7, "e", &quote.id.to_string(), "live");
    // The subscription for the newest events opens shortly after them.
    relay.eventually_requested("a live subscription to events below the quote", |filter| {
        filter["limit"] == 0 && filter["#e"].as_array().is_some_and(|ids| ids.contains(&json!(quote.id.to_string())))
    });
    relay.publish(&live);
    server.eventually_served(&[&live]);
    assert!(server.received_count("live") > before, "{}", server.log());

    // The next process derives them from the store.
    server.stop();
    server.start_again();
    server.eventually_state(&relay.url(), 3.0);
    let later = reference(7, "e", &below.id.to_string(), "after the restart");
    relay.publish(&later);
    server.eventually_served(&[&later]);
}

/// "At most 500 per event that tags a root (`NGIT_SYNC_RECURSIVE_DESCENDANT_LIMIT`)".
#[test]
fn number_of_descendants_is_limited() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let (mut server, project) = server_with(&relay, &[("SYNC_RECURSIVE_DESCENDANT_LIMIT", "1")]);
    let issue = project.issue(&Author::new(9), BASE_TIME);
    let comment = Author::new(9).comment(BASE_TIME + 1, &issue);
    let reply = reference(1111, "e", &comment.id.to_string(), "the only descendant");
    let second = reference(1111, "e", &reply.id.to_string(), "fetched, but not followed");
    let third = reference(1111, "e", &second.id.to_string(), "not fetched");
    for event in [&issue, &comment, &reply, &second, &third] {
        relay.publish(event);
    }
    server.eventually_served(&[&issue, &comment, &reply, &second]);
    server.eventually_state(&relay.url(), 3.0);
    let other = project.issue(&Author::new(9), now());
    relay.publish(&other);
    server.eventually_served(&[&other]);
    assert_eq!(server.count_served(&[&third]), 0);
    let is_followed = |id: String| relay.filters(0).iter().any(|filter| filter.to_string().contains(&id));
    assert!(is_followed(reply.id.to_string()) && !is_followed(second.id.to_string()));
}

/// "A peer relay has a comment and its author's kind 5. Sync fetches the comment but never the deletion."
#[test]
fn deletions_by_authors_of_comments_are_synced() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let (mut server, project) = server_with(&relay, &[]);
    let (author, commenter) = (Author::new(9), Author::new(10));
    let issue = project.issue(&author, BASE_TIME);
    let comment = commenter.comment(BASE_TIME + 1, &issue);
    let deletion = commenter.delete(BASE_TIME + 2, &[&comment]);
    let kept = author.comment(BASE_TIME + 3, &issue);
    for event in [&issue, &comment, &deletion, &kept] {
        relay.publish(event);
    }
    server.eventually_served(&[&issue, &kept, &deletion]);
    eventually_gone(&mut server, &comment);

    // Live, also below a comment.
    server.eventually_state(&relay.url(), 3.0);
    let reply = Author::new(11).sign(1111, now(), &[&["e", &kept.id.to_string()]], "a reply");
    relay.publish(&reply);
    server.eventually_served(&[&reply]);
    relay.publish(&Author::new(11).delete(now() + 1, &[&reply]));
    eventually_gone(&mut server, &reply);
    assert_eq!(server.count_served(&[&issue, &kept]), 2);
}

/// "Request kind 5 (and 62) events that concern anything served under a followed repository."
#[test]
fn requests_to_vanish_of_participants_are_synced() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let (mut server, project) = server_with(&relay, &[]);
    let issue = project.issue(&Author::new(9), BASE_TIME);
    let comment = Author::new(10).comment(BASE_TIME + 1, &issue);
    let other_issue = project.issue(&Author::new(11), BASE_TIME + 2);
    for event in [&issue, &comment, &other_issue] {
        relay.publish(event);
    }
    server.eventually_served(&[&issue, &comment, &other_issue]);
    relay.publish(&Author::new(10).vanish(now(), &["ALL_RELAYS"]));
    eventually_gone(&mut server, &comment);
    relay.publish(&Author::new(11).vanish(now(), &["ALL_RELAYS"]));
    eventually_gone(&mut server, &other_issue);
    assert_eq!(server.count_served(&[&issue]), 1);
}

/// "Kind 10317 also belongs to layer 1."
#[test]
fn lists_of_grasp_servers_are_synced() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let list = |author: u8| Author::new(author).sign(10_317, now(), &[&["g", "wss://grasp.test"]], "");
    let (stored, live) = (list(9), list(10));
    relay.publish(&stored);
    let (mut server, _) = server_with(&relay, &[]);
    server.eventually_served(&[&stored]);
    server.eventually_state(&relay.url(), 3.0);
    relay.publish(&live);
    server.eventually_served(&[&live]);
}

/// "Merge announcements and repositories into the available slots."
#[test]
fn relay_with_four_subscriptions_is_followed_live() {
    for max_subscriptions in [3, 4] {
        let relay = ScriptedRelay::start(RelayScript {
            nip11: Some(json!({"limitation": {"max_subscriptions": max_subscriptions}})),
            max_subscriptions,
            ..RelayScript::default()
        });
        let (mut server, project) = server_with(&relay, &[]);
        let author = Author::new(9);
        let issue = project.issue(&author, BASE_TIME);
        relay.publish(&issue);
        server.eventually_served(&[&issue]);
        server.eventually_state(&relay.url(), 3.0);
        let live = project.issue(&author, now());
        relay.publish(&live);
        server.eventually_served(&[&live]);
        let comment = author.comment(now(), &live);
        relay.eventually_requested("a live subscription to comments on the new issue", |filter| {
            let has_id = |ids: &Vec<serde_json::Value>| ids.contains(&json!(live.id.to_string()));
            filter["limit"] == 0 && filter["#E"].as_array().is_some_and(has_id)
        });
        relay.publish(&comment);
        server.eventually_served(&[&comment]);
        // The first comment may be the answer to the request for stored comments. The second one arrives after it.
        let second = author.comment(now() + 1, &live);
        relay.publish(&second);
        server.eventually_served(&[&second]);
        eventually("both events are counted", || (server.received_count("live") >= 2.0).then_some(()));
        assert!(relay.max_open_subscriptions() <= max_subscriptions);
        assert!(!server.log().contains("batch failed"), "{}", server.log());
    }
}

/// A deletion that a relay delivers before the comment that it deletes, by an author that has nothing here, keeps the
/// comment out, also after a crash, and is served then (`docs/protocol.md#requests-before-their-targets`).
#[test]
fn deletion_that_arrives_before_its_comment_keeps_it_out() {
    let relay = ScriptedRelay::start(RelayScript::default());
    let (mut server, project) = server_with(&relay, &[]);
    let commenter = Author::new(10);
    let issue = project.issue(&Author::new(9), BASE_TIME);
    let comment = commenter.comment(BASE_TIME + 1, &issue);
    // The reference to the issue is why the relay delivers it.
    let deletion = commenter.delete(BASE_TIME + 2, &[&comment, &issue]);
    relay.publish(&issue);
    relay.publish(&deletion);
    server.eventually_served(&[&issue]);
    server.eventually_metric("ngit_sync_judged_total{verdict=\"refused\"}", 1.0);
    assert_eq!(server.count_served(&[&deletion]), 0);
    server.kill();
    server.start_again();
    relay.publish(&comment);
    server.eventually_served(&[&issue, &deletion]);
    assert_eq!(server.count_served(&[&comment]), 0);
    let (is_accepted, text) = server.client().publish(&comment);
    assert_eq!((is_accepted, text.as_str()), (false, "invalid: this event is deleted"));
}

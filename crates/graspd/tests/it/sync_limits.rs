//! Relays with limits: a rejected form of request is not repeated, and rate limits are respected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::BASE_TIME;
use crate::support::peers::scripted_relay::{ClientAction, RejectionForm, RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now, series_of};

/// Starts a server that hosts a repository which lists a relay.
fn server_with(relay: &ScriptedRelay) -> (SyncServer, Project) {
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "there", &[server.address], &[&relay.url()]);
    server.host(&project);
    (server, project)
}

fn is_request(value: &Value) -> bool {
    ["REQ", "NEG-OPEN", "NEG-MSG"].iter().any(|verb| value[0] == *verb)
}

/// Asserts that a relay with a rate limit gets no further request, whatever happens on the server.
fn expect_rate_limit_is_respected(rejection_form: RejectionForm) {
    // The first request is for live announcements, the second for stored ones; the third is rejected.
    let relay = ScriptedRelay::start(RelayScript { rejects_from: Some((3, rejection_form)), ..RelayScript::default() });
    let (mut server, project) = server_with(&relay);
    server.eventually_metric(&series_of("ngit_sync_rate_limited_total", &relay), 1.0);
    let before = relay.records().len();
    // Reasons for requests: new roots, each of which would be requested after a tenth of a second.
    let author = Author::new(9);
    let start = Instant::now();
    let mut second = BASE_TIME;
    eventually("some seconds have passed", || {
        second += 1;
        server.publish(&project.issue(&author, second));
        (start.elapsed() > Duration::from_secs(4)).then_some(())
    });
    let records = relay.records();
    let late: Vec<_> = records[before..]
        .iter()
        .filter(|record| {
            matches!(&record.action, ClientAction::Sent(value) if is_request(value))
                || record.action == ClientAction::Connected
        })
        .collect();
    assert!(late.is_empty(), "{late:?}");
    server.eventually_metric(&series_of("ngit_sync_relay_status", &relay), 5.0);
    // The connection stays open.
    assert_eq!(relay.connections(), 1);
    assert!(!records.iter().any(|record| matches!(record.action, ClientAction::Disconnected(_))), "{records:?}");
    // The cooldown survives a restart.
    server.stop();
    server.start_again();
    server.eventually_metric(&series_of("ngit_sync_relay_status", &relay), 5.0);
    assert_eq!(relay.connections(), 1);
}

#[test]
fn rate_limit_notice_pauses_requests() {
    expect_rate_limit_is_respected(RejectionForm::Notice);
}

#[test]
fn rate_limit_closed_pauses_requests() {
    expect_rate_limit_is_respected(RejectionForm::Closed);
}

/// Syncs from a relay that rejects every `limit` up to `max_rejected`. Returns all filters that it received.
fn filters_with_rejected_limits(max_rejected: usize) -> Vec<Value> {
    let relay =
        ScriptedRelay::start(RelayScript { largest_rejected_limit: Some(max_rejected), ..RelayScript::default() });
    // An old event that arrives later is not delivered live to a filter with `since`.
    let issue = Project::new(1, "there", &[], &[]).issue(&Author::new(9), BASE_TIME);
    relay.publish(&issue);
    let (mut server, project) = server_with(&relay);
    server.eventually_served(&[&issue]);
    server.eventually_state(&relay.url(), 3.0);
    let live = project.issue(&Author::new(9), now());
    relay.publish(&live);
    server.eventually_served(&[&live]);
    eventually("the live event is counted", || (server.received_count("live") > 0.0).then_some(()));
    // Each form is rejected once and then not used again.
    let rejections = relay.records().iter().filter(|record| record.action == ClientAction::WasRejected).count();
    assert_eq!(rejections, max_rejected + 1);
    relay.filters(0)
}

#[test]
fn limit_one_is_used_where_limit_zero_is_rejected() {
    let filters = filters_with_rejected_limits(0);
    assert!(filters.iter().any(|filter| filter["limit"] == 1), "{filters:?}");
}

#[test]
fn since_45_minutes_is_used_where_small_limits_are_rejected() {
    let filters = filters_with_rejected_limits(1);
    let live = filters.iter().find(|filter| filter["limit"].is_null() && filter["since"].is_u64());
    let since = live.and_then(|live| live["since"].as_u64()).expect("no live filter with `since`");
    assert!((44 * 60..46 * 60).contains(&(now() - since)), "{filters:?}");
}

#[test]
fn required_authentication_uses_the_key_of_the_service() {
    let relay = ScriptedRelay::start(RelayScript { requires_auth: true, ..RelayScript::default() });
    let (mut server, project) = server_with(&relay);
    let issue = project.issue(&Author::new(9), BASE_TIME);
    relay.publish(&issue);
    server.eventually_served(&[&issue]);
    let auth_events = relay.auth_events();
    let [(auth_event, challenge)] = &auth_events[..] else { panic!("not one authentication event: {auth_events:?}") };
    assert_eq!(auth_event.kind, 22242);
    assert_eq!(auth_event.tag("challenge"), Some(challenge.as_str()));
    assert_eq!(auth_event.tag("relay"), Some(relay.url().as_str()));
    assert!(auth_event.created_at.0.abs_diff(now()) < 60);
    let document = server.process.get("/", "Accept: application/nostr+json\r\n");
    assert!(document.contains(&auth_event.pubkey.to_string()), "{document}");
    let live = project.issue(&Author::new(9), now());
    relay.publish(&live);
    server.eventually_served(&[&live]);
}

#[test]
fn optional_challenge_is_not_answered() {
    // The relay sends a challenge on every connection, as many relays do, but does not require authentication.
    let relay = ScriptedRelay::start(RelayScript { sends_challenge: true, ..RelayScript::default() });
    let (server, _) = server_with(&relay);
    server.eventually_state(&relay.url(), 3.0);
    assert!(relay.auth_events().is_empty());
}

#[test]
fn small_pages_deliver_everything() {
    let relay = ScriptedRelay::start(RelayScript { page_size: 20, ..RelayScript::default() });
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "pages", &[server.address], &[&relay.url()]);
    let mut events = project.issues(&Author::new(9), BASE_TIME, 130);
    let comments: Vec<_> = events.iter().map(|issue| Author::new(8).comment(BASE_TIME + 500, issue)).take(15).collect();
    // Almost a page of events with the same second.
    events.extend(comments);
    for event in &events {
        relay.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&relay.url(), 3.0);
}

/// Syncs from a relay that accepts ten subscriptions, with this NIP-11 document. Returns the number of its rejections.
fn rejections_with_ten_subscriptions(document: Option<Value>) -> usize {
    let relay = ScriptedRelay::start(RelayScript { max_subscriptions: 10, nip11: document, ..RelayScript::default() });
    let (mut server, project) = server_with(&relay);
    let author = Author::new(9);
    server.eventually_state(&relay.url(), 3.0);
    // Each issue gets its own subscription, until they are consolidated.
    let issues = project.issues(&author, BASE_TIME, 15);
    for issue in &issues {
        server.publish(issue);
        let id = issue.id.to_string();
        relay.eventually_requested("the issue is subscribed", |filter| {
            filter["#E"].as_array().is_some_and(|ids| ids.contains(&Value::from(id.as_str())))
        });
    }
    let comments: Vec<_> = issues.iter().map(|issue| author.comment(now(), issue)).collect();
    for comment in &comments {
        relay.publish(comment);
    }
    let comments: Vec<&Arc<SignedEvent>> = comments.iter().collect();
    server.eventually_served(&comments);
    assert!(relay.max_open_subscriptions() <= 10, "{}", relay.max_open_subscriptions());
    relay.records().iter().filter(|record| record.action == ClientAction::WasRejected).count()
}

#[test]
fn stated_subscription_limit_is_respected() {
    let rejections = rejections_with_ten_subscriptions(Some(json!({"limitation": {"max_subscriptions": 10}})));
    assert_eq!(rejections, 0, "the limit is in the NIP-11 document");
}

#[test]
fn unstated_subscription_limit_is_learned() {
    rejections_with_ten_subscriptions(None);
}

#[test]
fn backoff_applies_to_a_relay_that_disconnects() {
    let relay = ScriptedRelay::start(RelayScript { closes_at_once: true, ..RelayScript::default() });
    let (_server, _) = server_with(&relay);
    eventually("three attempts", || (relay.connections() >= 3).then_some(()));
    let connected_at: Vec<Instant> = relay
        .records()
        .iter()
        .filter(|record| record.action == ClientAction::Connected)
        .map(|record| record.at)
        .collect();
    for pair in connected_at.windows(2) {
        let between = pair[1].duration_since(pair[0]);
        assert!(between >= Duration::from_millis(1_500), "{between:?}");
    }
}

#[test]
fn relay_without_eose_is_synced() {
    let relay = ScriptedRelay::start(RelayScript { sends_eose: false, ..RelayScript::default() });
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "endless", &[server.address], &[&relay.url()]);
    let announcement = Author::new(2).announcement_elsewhere("there", BASE_TIME, &[&project.owner]);
    relay.publish(&announcement);
    server.host(&project);
    // The live subscription is not confirmed by EOSE, so history is requested ten seconds later.
    relay.eventually_requested("history", |filter| filter["kinds"][0] == 30617 && filter["limit"] != 0);
    let records = relay.records();
    let requested_at = |is_live: bool| {
        let record = records.iter().find(|record| {
            matches!(&record.action, ClientAction::Sent(value) if is_request(value) && (value[2]["limit"] == 0) == is_live)
        });
        record.map(|record| record.at).expect("no such request")
    };
    assert!(requested_at(false).duration_since(requested_at(true)) >= Duration::from_secs(9));
    // The relay is connected, but historic sync is not complete.
    server.eventually_state(&relay.url(), 2.0);
}

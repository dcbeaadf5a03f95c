//! Relays with moods: what they refuse is not asked for again in the same way, and nobody is hurried.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::git::THEN;
use crate::support::peers::scripted_relay::{Deed, Fake, Manners, RejectionForm};
use crate::support::peers::{Neighbour, Project, now};

/// A server that hosts a repository which names a relay.
fn server_with(fake: &Fake) -> (Neighbour, Project) {
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "there", &[server.place], &[&fake.url()]);
    server.host(&project);
    (server, project)
}

fn of(series: &str, fake: &Fake) -> String {
    format!("{series}{{relay=\"{}\"}}", fake.url())
}

fn is_request(value: &Value) -> bool {
    ["REQ", "NEG-OPEN", "NEG-MSG"].iter().any(|verb| value[0] == *verb)
}

/// Whatever happens here, nothing but goodbyes is said to a relay that has complained.
fn left_in_peace(complaint: RejectionForm) {
    // The first request is for live announcements, the second for those that are stored; the third is too much.
    let fake = Fake::start(Manners { tired: Some((3, complaint)), ..Manners::default() });
    let (mut server, project) = server_with(&fake);
    server.eventually_metric(&of("ngit_sync_rate_limited_total", &fake), 1.0);
    let before = fake.records().len();
    // Reasons to ask: new roots, each of which would be asked about after a tenth of a second.
    let author = Author::new(9);
    let start = Instant::now();
    let mut second = THEN;
    eventually("some seconds have passed", || {
        second += 1;
        server.publish(&project.issue(&author, second));
        (start.elapsed() > Duration::from_secs(4)).then_some(())
    });
    let records = fake.records();
    let late: Vec<_> = records[before..]
        .iter()
        .filter(|record| matches!(&record.deed, Deed::Said(value) if is_request(value)) || record.deed == Deed::Came)
        .collect();
    assert!(late.is_empty(), "{late:?}");
    server.eventually_metric(&of("ngit_sync_relay_status", &fake), 5.0);
    // It has complained, not gone.
    assert_eq!(fake.connections(), 1);
    assert!(!records.iter().any(|record| matches!(record.deed, Deed::Left(_))), "{records:?}");
    // Whoever begins anew does not forget it.
    server.stop();
    server.again();
    server.eventually_metric(&of("ngit_sync_relay_status", &fake), 5.0);
    assert_eq!(fake.connections(), 1);
}

#[test]
fn after_a_notice_a_relay_is_left_in_peace() {
    left_in_peace(RejectionForm::Notice);
}

#[test]
fn after_a_refusal_a_relay_is_left_in_peace() {
    left_in_peace(RejectionForm::Closed);
}

/// A relay that refuses a `limit` up to this is followed all the same. Gives all filters that it was asked for.
fn followed_without_limit(most: usize) -> Vec<Value> {
    let fake = Fake::start(Manners { refused_limit: Some(most), ..Manners::default() });
    let (mut server, project) = server_with(&fake);
    let issue = project.issue(&Author::new(9), THEN);
    fake.publish(&issue);
    server.eventually_served(&[&issue]);
    server.eventually_state(&fake.url(), 3.0);
    let live = project.issue(&Author::new(9), now());
    fake.publish(&live);
    server.eventually_served(&[&live]);
    eventually("it came by itself", || (server.came("live") > 0.0).then_some(()));
    // It is learned with the first refusal of each form, not with every request.
    let scolded = fake.records().iter().filter(|record| record.deed == Deed::Scolded).count();
    assert_eq!(scolded, most + 1);
    fake.filters(0)
}

#[test]
fn where_a_limit_of_zero_is_refused_it_is_one() {
    let filters = followed_without_limit(0);
    assert!(filters.iter().any(|filter| filter["limit"] == 1), "{filters:?}");
}

#[test]
fn where_no_small_limit_is_taken_the_last_three_quarters_of_an_hour_are_asked_for() {
    let filters = followed_without_limit(1);
    let live = filters.iter().find(|filter| filter["limit"].is_null() && filter["since"].is_u64());
    let since = live.and_then(|live| live["since"].as_u64()).expect("another form");
    assert!((44 * 60..46 * 60).contains(&(now() - since)), "{filters:?}");
}

#[test]
fn a_challenge_is_answered_with_the_key_of_the_service() {
    let fake = Fake::start(Manners { auth: true, ..Manners::default() });
    let (mut server, project) = server_with(&fake);
    let issue = project.issue(&Author::new(9), THEN);
    fake.publish(&issue);
    server.eventually_served(&[&issue]);
    let proofs = fake.proofs();
    let [(proof, challenge)] = &proofs[..] else { panic!("one answer: {proofs:?}") };
    assert_eq!(proof.kind, 22242);
    assert_eq!(proof.tag("challenge"), Some(challenge.as_str()));
    assert_eq!(proof.tag("relay"), Some(fake.url().as_str()));
    assert!(proof.created_at.0.abs_diff(now()) < 60);
    let document = server.server.get("/", "Accept: application/nostr+json\r\n");
    assert!(document.contains(&proof.pubkey.to_string()), "{document}");
    let live = project.issue(&Author::new(9), now());
    fake.publish(&live);
    server.eventually_served(&[&live]);
}

#[test]
fn a_challenge_that_nobody_insists_on_is_not_answered() {
    // It sends a challenge to everybody, as many relays do, and serves all the same.
    let fake = Fake::start(Manners { challenge: true, ..Manners::default() });
    let (server, _) = server_with(&fake);
    server.eventually_state(&fake.url(), 3.0);
    assert!(fake.proofs().is_empty());
}

#[test]
fn small_pages_bring_everything() {
    let fake = Fake::start(Manners { page: 20, ..Manners::default() });
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "pages", &[server.place], &[&fake.url()]);
    let mut events = project.issues(&Author::new(9), THEN, 130);
    let comments: Vec<_> = events.iter().map(|issue| Author::new(8).comment(THEN + 500, issue)).take(15).collect();
    // Nearly a page of one second.
    events.extend(comments);
    for event in &events {
        fake.publish(event);
    }
    server.host(&project);
    let all: Vec<&Arc<SignedEvent>> = events.iter().collect();
    server.eventually_served(&all);
    server.eventually_state(&fake.url(), 3.0);
}

/// A relay that takes ten subscriptions and says so, or not, is followed in all. Gives how often it has complained.
fn followed_with_ten(document: Option<Value>) -> usize {
    let fake = Fake::start(Manners { slots: 10, document, ..Manners::default() });
    let (mut server, project) = server_with(&fake);
    let author = Author::new(9);
    server.eventually_state(&fake.url(), 3.0);
    // Each is followed by a subscription of its own, until they are merged.
    let issues = project.issues(&author, THEN, 15);
    for issue in &issues {
        server.publish(issue);
        let id = issue.id.to_string();
        fake.eventually_asked("the issue is followed", |filter| {
            filter["#E"].as_array().is_some_and(|ids| ids.contains(&Value::from(id.as_str())))
        });
    }
    let comments: Vec<_> = issues.iter().map(|issue| author.comment(now(), issue)).collect();
    for comment in &comments {
        fake.publish(comment);
    }
    let comments: Vec<&Arc<SignedEvent>> = comments.iter().collect();
    server.eventually_served(&comments);
    assert!(fake.most_open() <= 10, "{}", fake.most_open());
    fake.records().iter().filter(|record| record.deed == Deed::Scolded).count()
}

#[test]
fn ten_subscriptions_are_enough() {
    let scolded = followed_with_ten(Some(json!({"limitation": {"max_subscriptions": 10}})));
    assert_eq!(scolded, 0, "it had said how many");
}

#[test]
fn ten_subscriptions_that_nobody_has_stated_are_enough() {
    followed_with_ten(None);
}

#[test]
fn a_relay_that_hangs_up_is_not_dialled_at_once() {
    let fake = Fake::start(Manners { hangs_up: true, ..Manners::default() });
    let (_server, _) = server_with(&fake);
    eventually("three attempts", || (fake.connections() >= 3).then_some(()));
    let came: Vec<Instant> =
        fake.records().iter().filter(|record| record.deed == Deed::Came).map(|record| record.at).collect();
    for pair in came.windows(2) {
        let between = pair[1].duration_since(pair[0]);
        assert!(between >= Duration::from_millis(1_500), "{between:?}");
    }
}

#[test]
fn a_relay_that_never_ends_its_answers_is_heard_all_the_same() {
    let fake = Fake::start(Manners { eose: false, ..Manners::default() });
    let mut server = Neighbour::start(&[]);
    let project = Project::new(1, "endless", &[server.place], &[&fake.url()]);
    let announcement = Author::new(2).unlisted("there", THEN, &[&project.owner]);
    fake.publish(&announcement);
    server.host(&project);
    // Its live subscription is not confirmed: history is asked for ten seconds later.
    fake.eventually_asked("history", |filter| filter["kinds"] == json!([30617]) && filter["limit"] != 0);
    let records = fake.records();
    let asked = |is_live: bool| {
        let record = records.iter().find(|record| {
            matches!(&record.deed, Deed::Said(value) if is_request(value) && (value[2]["limit"] == 0) == is_live)
        });
        record.map(|record| record.at).expect("asked for")
    };
    assert!(asked(false).duration_since(asked(true)) >= Duration::from_secs(9));
    // It is there, and not all of it is known: still syncing.
    server.eventually_state(&fake.url(), 2.0);
}

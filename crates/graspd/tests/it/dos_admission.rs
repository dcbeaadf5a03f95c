//! Attacks on purgatory and on the maintainer exception: owners of served repositories are not affected.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::json;

use crate::support::bystander::Bystander;
use crate::support::git::{BASE_TIME, Maintainer};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{BEHIND_PROXY, Client, eventually};

pub(crate) fn connect(server: &TestServer, address: &str) -> Client {
    server.process.connect_from(Some(address)).unwrap_or_else(|status| panic!("{address} is rejected: {status:?}"))
}

/// Publishes events without waiting for single answers. Returns the number of events for each answer.
pub(crate) fn publish_all(
    client: &mut Client,
    events: impl Iterator<Item = Arc<SignedEvent>>,
) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    let mut receive = |client: &mut Client| {
        let message = client.receive();
        assert_eq!(message[0], "OK", "{message}");
        *answers.entry(message[3].as_str().expect("a text").to_owned()).or_default() += 1;
    };
    let mut unanswered = 0;
    for event in events {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
        unanswered += 1;
        if unanswered == limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION / 2 {
            receive(client);
            unanswered -= 1;
        }
    }
    (0..unanswered).for_each(|_| receive(client));
    answers
}

/// Returns the announcements of one key: as many as purgatory holds of one author.
fn spam(server: &TestServer, group: u8, key: u8) -> impl Iterator<Item = Arc<SignedEvent>> {
    let author = Maintainer::from_author(Author::in_group(group, key), &server.service);
    (0..limits::MAX_HELD_EVENTS_PER_AUTHOR).map(move |nth| author.announce(&format!("spam-{nth}"), BASE_TIME, &[]))
}

/// The flood of announcements used to fill purgatory: twenty keys with a thousand announcements each. After that owners of
/// served repositories could not push.
#[test]
fn flood_of_announcements_does_not_stop_pushes() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    // From one network: it fills its share.
    let mut attacker = connect(&server, "203.0.113.5");
    let mut held = 0;
    for key in 0..3 {
        for (answer, count) in publish_all(&mut attacker, spam(&server, 5, key)) {
            match answer.as_str() {
                "purgatory: won't be served until git data arrives" => held += count,
                "rate-limited: too many events from your network are waiting for git data, try again later" => {}
                _ => panic!("{count} events are answered {answer:?}"),
            }
        }
    }
    assert_eq!(held, limits::MAX_HELD_EVENTS_PER_NETWORK);
    bystander.expect_unaffected(&server, "a flood from one network");

    // From twenty networks: everything that is not reserved is full.
    for key in 0..20 {
        let mut attacker = connect(&server, &format!("203.1.{key}.5"));
        publish_all(&mut attacker, spam(&server, 6, key));
    }
    let full = limits::MAX_HELD_EVENTS - limits::RESERVED_HELD_EVENTS;
    let line = format!("ngit_purgatory_events{{kind=\"announcement\"}} {full}");
    eventually("what is not reserved is full", || {
        server.process.get("/metrics", "").lines().any(|found| found.trim() == line).then_some(())
    });
    bystander.expect_unaffected(&server, "a flood from twenty networks");

    // A new user can still create a repository, although the attack goes on.
    let mut attacker = connect(&server, "203.1.0.5");
    publish_all(&mut attacker, spam(&server, 7, 0));
    let new = server.maintainer(2);
    let (work, oid) = one_commit("new");
    let mut client = connect(&server, "198.51.100.1");
    for event in [new.announce("new", BASE_TIME, &[]), new.state("new", BASE_TIME, &main_at(&oid))] {
        let (is_accepted, text) = client.publish(&event);
        assert!(is_accepted, "{text}");
    }
    publish_all(&mut attacker, spam(&server, 7, 1));
    work.git(&["push", "--quiet", &server.url(&new, "new"), "HEAD:refs/heads/main"]).expect_success();
}

/// Small announcements, replaced by large ones: the replacements used to be held without a check of their size.
#[test]
fn larger_replacements_are_limited_to_the_share_of_their_author() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let author = server.maintainer(2);
    let mut attacker = connect(&server, "203.0.113.5");
    let announce = |nth: usize, at: u64, bytes: usize| {
        let more = vec![vec!["description".to_owned(), "x".repeat(bytes)]];
        author.announce_with(&format!("spam-{nth}"), at, more)
    };
    let large = 190_000;
    let count = limits::MAX_HELD_EVENTS_PER_AUTHOR - 1;
    publish_all(&mut attacker, (0..count).map(|nth| announce(nth, BASE_TIME, 1)));
    let answers = publish_all(&mut attacker, (0..count).map(|nth| announce(nth, BASE_TIME + 1, large)));
    let held = answers.get("purgatory: won't be served until git data arrives").copied().unwrap_or_default();
    assert!(held > 0 && held * large <= limits::MAX_HELD_BYTES_PER_AUTHOR, "{answers:?}");
    bystander.expect_unaffected(&server, "large replacements");
}

/// A held announcement, which needs no git data, let the announcements of the maintainers that it names be served. Notes
/// that tag them were accepted and stayed after it had expired.
#[test]
fn held_announcement_serves_nothing() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("PURGATORY_EXPIRY_SECS", "5")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let (owner, maintainer) = (server.maintainer(2), server.maintainer(3));
    let mut attacker = connect(&server, "203.0.113.5");
    let announcement = owner.announce("spam", BASE_TIME, &[&maintainer]);
    let exception = maintainer.author.announcement_elsewhere("spam", BASE_TIME, &[]);
    for event in [&announcement, &exception] {
        let (is_accepted, text) = attacker.publish(event);
        assert!(is_accepted && text.starts_with("purgatory: "), "{text}");
    }
    let tag = |nth: u64| {
        let tags: [&[&str]; 2] = [&["e", &exception.id.to_string()], &["a", &maintainer.author.repo("spam")]];
        Author::new(9).note(BASE_TIME + nth, &tags, "spam")
    };
    for nth in 0..200 {
        let (is_accepted, text) = attacker.publish(&tag(nth));
        assert!(!is_accepted && text.starts_with("restricted: "), "{text}");
    }
    bystander.expect_unaffected(&server, "notes that tag a held announcement");
    eventually("both announcements expire", || {
        let (is_accepted, _) = attacker.publish(&maintainer.author.announcement_elsewhere("spam", BASE_TIME + 1, &[]));
        (!is_accepted).then_some(())
    });
    let attackers = [&owner.author, &maintainer.author, &Author::new(9)].map(Author::hex);
    assert!(attacker.query(&[json!({"authors": attackers})]).is_empty());

    // Once the repository is served, so is the announcement of its maintainer.
    let (work, oid) = one_commit("real");
    let invited = maintainer.author.announcement_elsewhere("real", BASE_TIME, &[]);
    let announcement = owner.announce("real", BASE_TIME, &[&maintainer]);
    let state = owner.state("real", BASE_TIME, &main_at(&oid));
    for event in [&announcement, &state, &invited] {
        server.publish(event);
    }
    assert!(!server.is_served(&invited));
    work.git(&["push", "--quiet", &server.url(&owner, "real"), "HEAD:refs/heads/main"]).expect_success();
    server.expect_served(&[&announcement, &state, &invited]);
    assert_eq!(attacker.query(&[json!({"kinds": [kinds::ANNOUNCEMENT], "#d": ["real"]})]).len(), 2);
}

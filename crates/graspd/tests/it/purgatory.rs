//! What waits for git data: answered with a promise, shown to nobody, remembered across a crash, forgotten in time.

use std::slice;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::{Author, owned, pair};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::{Client, Server, eventually};

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

/// A name that stays the same when the server gets another port.
const SETTINGS: [(&str, &str); 2] = [("POLICY", "grasp"), ("DOMAIN", "grasp.test")];

const FRESH: &str = "purgatory: won't be served until git data arrives";
const HELD: &str = "purgatory: already waiting for git data";
const NOTHING: [&str; 0] = [];

fn service() -> ServiceAddress {
    ServiceAddress::new("grasp.test", "").expect("a host name")
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

fn main_at(oid: char) -> String {
    oid.to_string().repeat(40)
}

fn state(author: &Author, d: &str, at: u64) -> Arc<SignedEvent> {
    author.state(d, at, &[("refs/heads/main", &main_at('a'))])
}

/// Publishes something that must be kept back, and was not known.
fn hold(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, FRESH.to_owned()), "{}", event.json());
}

fn accept(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

fn refuse(client: &mut Client, event: &SignedEvent, reason: &str) {
    let (accepted, why) = client.publish(event);
    assert!(!accepted && why.starts_with(reason), "{accepted} {why:?} instead of {reason:?}: {}", event.json());
}

/// How many events a REQ, a COUNT and a reconciliation show for a filter.
fn shown(client: &mut Client, filter: &Value) -> [usize; 3] {
    let found = client.query(slice::from_ref(filter)).len();
    client.send(&json!(["COUNT", "c", filter]));
    let counted = client.receive();
    assert_eq!(counted[0], "COUNT", "{counted}");
    let counted = counted[2]["count"].as_u64().expect("a number") as usize;
    let mut storage = NegentropyStorageVector::new();
    storage.seal().expect("sealed once");
    let mut party = Negentropy::owned(storage, 0).expect("no limit");
    let opening: String = party.initiate().expect("first use").iter().map(|byte| format!("{byte:02x}")).collect();
    client.send(&json!(["NEG-OPEN", "n", filter, opening]));
    let answer = client.receive();
    assert_eq!(answer[0], "NEG-MSG", "{answer}");
    let hex = answer[2].as_str().expect("hex");
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect();
    let (mut have, mut need): (Vec<Id>, Vec<Id>) = (Vec::new(), Vec::new());
    // So few items come in one message.
    assert_eq!(party.reconcile_with_ids(&bytes, &mut have, &mut need), Ok(None));
    client.send(&json!(["NEG-CLOSE", "n"]));
    [found, counted, need.len()]
}

#[test]
fn g1_37_announcements_and_states_are_promised() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let announcement = owner.listed(&service(), "r", THEN, &[]);
    hold(&mut client, &announcement);
    hold(&mut client, &state(&owner, "r", THEN));
    // G1-40: several versions of a state wait side by side.
    hold(&mut client, &state(&owner, "r", THEN + 1));
    hold(&mut client, &state(&owner, "r", THEN - 1));
    // G1-39: sending again is no failure.
    for event in [&announcement, &state(&owner, "r", THEN), &state(&owner, "r", THEN + 1)] {
        assert_eq!(client.publish(event), (true, HELD.to_owned()));
    }
}

#[test]
fn g1_38_held_events_are_shown_to_nobody() {
    let server = Server::start(&SETTINGS);
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let mut listener = server.connect();
    assert_eq!(listener.subscribe("live", &[json!({})]), NOTHING);
    let mut client = server.connect();
    let announcement = owner.listed(&service(), "r", THEN, &[&maintainer]);
    let states = [state(&owner, "r", THEN), state(&maintainer, "r", THEN)];
    hold(&mut client, &announcement);
    for state in &states {
        hold(&mut client, state);
    }
    let ids = [id(&announcement), id(&states[0]), id(&states[1])];
    for filter in [
        json!({}),
        json!({"ids": ids}),
        json!({"authors": [owner.hex(), maintainer.hex()]}),
        json!({"kinds": [kinds::ANNOUNCEMENT, kinds::STATE]}),
        json!({"#d": ["r"]}),
    ] {
        assert_eq!(shown(&mut client, &filter), [0, 0, 0], "{filter}");
    }
    // The first thing that is heard is something that is served.
    let exception = maintainer.unlisted("r", THEN, &[]);
    accept(&mut client, &exception);
    let live = listener.receive();
    assert_eq!((&live[0], &live[2]["id"]), (&json!("EVENT"), &json!(id(&exception))));
    assert_eq!(shown(&mut client, &json!({})), [1, 1, 1]);
}

#[test]
fn g1_42_held_events_survive_a_crash() {
    let mut server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let announcement = owner.listed(&service(), "r", THEN, &[&maintainer]);
    let states = [state(&owner, "r", THEN), state(&maintainer, "r", THEN)];
    hold(&mut client, &announcement);
    for state in &states {
        hold(&mut client, state);
    }
    server.kill();
    let server = Server::start_in(server.folder(), &SETTINGS);
    let mut client = server.connect();
    assert_eq!(shown(&mut client, &json!({})), [0, 0, 0]);
    for event in [&announcement, &states[0], &states[1]] {
        assert_eq!(client.publish(event), (true, HELD.to_owned()));
    }
    // The announcement still gives the right to speak.
    hold(&mut client, &state(&maintainer, "r", THEN + 1));
    accept(&mut client, &maintainer.unlisted("r", THEN, &[]));
    refuse(&mut client, &state(&Author::new(3), "r", THEN), "restricted: ");
}

#[test]
fn held_events_are_forgotten_in_time() {
    let settings = [SETTINGS[0], SETTINGS[1], ("PURGATORY_EXPIRY_SECS", "3")];
    let server = Server::start(&settings);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let announcement = owner.listed(&service(), "r", THEN, &[&maintainer]);
    let state = state(&owner, "r", THEN);
    hold(&mut client, &announcement);
    hold(&mut client, &state);
    accept(&mut client, &maintainer.unlisted("r", THEN, &[]));
    // The state goes after its announcement; then it has nothing to belong to.
    eventually("both expire", || match client.publish(&state) {
        (true, text) => {
            assert_eq!(text, HELD);
            None
        }
        (false, why) => {
            assert!(why.starts_with("invalid: no announcement exists"), "{why}");
            Some(())
        }
    });
    // An announcement that was served only because of the expired one has gone with it.
    assert_eq!(shown(&mut client, &json!({})), [0, 0, 0]);
    refuse(&mut client, &maintainer.unlisted("r", THEN + 1, &[]), "invalid: ");
    // Whoever comes too late may come again, and waits anew.
    hold(&mut client, &announcement);
    hold(&mut client, &state);
    eventually("a resent state expires", || (!client.publish(&state).0).then_some(()));
    hold(&mut client, &announcement);
}

#[test]
fn after_a_restart_everybody_has_a_little_time_to_go_on() {
    let settings = [SETTINGS[0], SETTINGS[1], ("PURGATORY_EXPIRY_SECS", "3")];
    let mut server = Server::start(&settings);
    let owner = Author::new(1);
    let announcement = owner.listed(&service(), "r", THEN, &[]);
    hold(&mut server.connect(), &announcement);
    server.kill();
    let server = Server::start_in(server.folder(), &settings);
    let mut client = server.connect();
    // Something else, held later and for the ordinary second, shows that this much time has passed.
    let clock = owner.listed(&service(), "clock", THEN, &[]);
    hold(&mut client, &clock);
    eventually("the other one expires", || (client.publish(&clock).1 == FRESH).then_some(()));
    assert_eq!(client.publish(&announcement), (true, HELD.to_owned()));
}

#[test]
fn g1_13_of_held_announcements_the_newest_counts() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let superseded = (true, "duplicate: superseded by a newer event".to_owned());
    let old = owner.listed(&service(), "r", THEN, &[&maintainer]);
    let new = owner.listed(&service(), "r", THEN + 1, &[]);
    hold(&mut client, &old);
    hold(&mut client, &state(&maintainer, "r", THEN));
    hold(&mut client, &new);
    assert_eq!(client.publish(&old), superseded);
    assert_eq!(client.publish(&new), (true, HELD.to_owned()));
    refuse(&mut client, &state(&maintainer, "r", THEN + 1), "restricted: ");
    // Of the same second the lower id.
    let (lower, higher) = pair(|word| owner.listed_with(&service(), "s", THEN, owned(&[&["name", word]])));
    hold(&mut client, &higher);
    hold(&mut client, &lower);
    assert_eq!(client.publish(&higher), superseded);
    assert_eq!(client.publish(&lower), (true, HELD.to_owned()));
}

#[test]
fn g1_14_a_withdrawn_repository_stays_withdrawn() {
    let mut server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let old = owner.listed(&service(), "r", THEN, &[]);
    hold(&mut client, &old);
    // An older one that does not name the service takes nothing away.
    refuse(&mut client, &owner.unlisted("r", THEN - 1, &[]), "invalid: ");
    assert_eq!(client.publish(&old), (true, HELD.to_owned()));
    refuse(&mut client, &owner.unlisted("r", THEN + 1, &[]), "invalid: ");
    refuse(&mut client, &state(&owner, "r", THEN), "invalid: no announcement exists");
    refuse(&mut client, &old, "invalid: ");
    server.kill();
    let server = Server::start_in(server.folder(), &SETTINGS);
    let mut client = server.connect();
    refuse(&mut client, &old, "invalid: ");
    hold(&mut client, &owner.listed(&service(), "r", THEN + 2, &[]));
}

#[test]
fn g1_06_announcements_must_name_this_service() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let npub = owner.key().npub();
    let own_clone = format!("https://grasp.test/{npub}/r.git");
    let announce = |clone: &str, relay: &str| {
        owner.sign(kinds::ANNOUNCEMENT, THEN, &[&["d", "r"], &["clone", clone], &["relays", relay]], "")
    };
    for (clone, relay) in [
        ("https://elsewhere.example/r.git", "wss://elsewhere.example"),
        (own_clone.as_str(), "wss://elsewhere.example"),
        ("https://elsewhere.example/r.git", "wss://grasp.test"),
        (&format!("https://grasp.test.evil.example/{npub}/r.git"), "wss://grasp.test"),
        (&format!("https://grasp.test/{}/r.git", Author::new(2).key().npub()), "wss://grasp.test"),
        (&format!("https://grasp.test/{npub}/other.git"), "wss://grasp.test"),
        (&own_clone, "wss://grasp.test:7000"),
        (&own_clone, "https://grasp.test"),
        (&own_clone, "wss://grasp.test/elsewhere"),
    ] {
        refuse(&mut client, &announce(clone, relay), "invalid: ");
    }
    for d in ["", ".", "..", "a/b", "a\\b", "a\u{0}b"] {
        let event = owner.sign(
            kinds::ANNOUNCEMENT,
            THEN,
            &[&["d", d], &["clone", &own_clone], &["relays", "wss://grasp.test"]],
            "",
        );
        refuse(&mut client, &event, "invalid: ");
    }
    assert_eq!(shown(&mut client, &json!({})), [0, 0, 0]);
    // None of them was kept, or this would not be fresh.
    hold(&mut client, &announce(&own_clone, "wss://GRASP.test/"));
}

#[test]
fn g1_08_a_maintainers_own_announcement_is_served_at_once() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer, further, stranger) = (Author::new(1), Author::new(2), Author::new(3), Author::new(4));
    let of_maintainer = maintainer.unlisted("r", THEN, &[&further]);
    let of_further = further.unlisted("r", THEN, &[]);
    // Nobody has asked for them yet.
    refuse(&mut client, &of_maintainer, "invalid: ");
    hold(&mut client, &owner.listed(&service(), "r", THEN, &[&maintainer]));
    // The chain is walked from the owner outwards.
    refuse(&mut client, &of_further, "invalid: ");
    accept(&mut client, &of_maintainer);
    accept(&mut client, &of_further);
    refuse(&mut client, &stranger.unlisted("r", THEN, &[&owner]), "invalid: ");
    refuse(&mut client, &maintainer.unlisted("another name", THEN, &[]), "invalid: ");
    let mut served = client.query(&[json!({"kinds": [kinds::ANNOUNCEMENT]})]);
    served.sort_unstable();
    let mut expected = [id(&of_maintainer), id(&of_further)];
    expected.sort_unstable();
    assert_eq!(served, expected);
    // G1-28: both may speak for the owner's repository.
    hold(&mut client, &state(&maintainer, "r", THEN));
    hold(&mut client, &state(&further, "r", THEN));
    refuse(&mut client, &state(&stranger, "r", THEN), "restricted: author not authorized");
}

#[test]
fn g1_24_states_need_an_announcement_and_a_maintainer() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, stranger) = (Author::new(1), Author::new(2));
    refuse(&mut client, &state(&owner, "r", THEN), "invalid: no announcement exists for this repository");
    hold(&mut client, &owner.listed(&service(), "r", THEN, &[]));
    refuse(&mut client, &state(&stranger, "r", THEN), "restricted: author not authorized for this repository");
    refuse(&mut client, &state(&owner, "R", THEN), "invalid: no announcement exists");
    hold(&mut client, &state(&owner, "r", THEN));
    // An announcement and its state in one breath.
    let (announcement, state) = (owner.listed(&service(), "s", THEN, &[]), state(&owner, "s", THEN));
    for event in [&announcement, &state] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in [&announcement, &state] {
        assert_eq!(client.receive(), json!(["OK", id(event), true, FRESH]));
    }
}

#[test]
fn g1_33_what_belongs_to_nothing_is_refused() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer, guest) = (Author::new(1), Author::new(2), Author::new(3));
    hold(&mut client, &owner.listed(&service(), "r", THEN, &[&maintainer]));
    let orphans = |at| {
        [
            guest.issue(at, &owner.repo("nowhere")),
            // G1-34: what is only held is nothing to belong to.
            guest.issue(at, &owner.repo("r")),
            guest.note(at, &[], "hello"),
            guest.note(at, &[&["q", &maintainer.repo("r")]], "look"),
            guest.comment(at, &guest.issue(at, &owner.repo("r"))),
            guest.pull_request(at, &[&owner.repo("r")], &main_at('c')),
            guest.sign(kinds::PROFILE, at, &[], "{}"),
        ]
    };
    for event in orphans(THEN) {
        refuse(&mut client, &event, "restricted: ");
    }
    assert_eq!(shown(&mut client, &json!({})), [0, 0, 0]);

    // With something served, the same kinds of events belong to it, also in one breath.
    accept(&mut client, &maintainer.unlisted("r", THEN, &[]));
    let issue = guest.issue(THEN, &maintainer.repo("r"));
    let comment = guest.comment(THEN, &issue);
    let quote = guest.note(THEN, &[&["q", &maintainer.repo("r")]], "look");
    for event in [&issue, &comment, &quote] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in [&issue, &comment, &quote] {
        assert_eq!(client.receive(), json!(["OK", id(event), true, ""]));
    }
    // A pull request waits for its commit, and its answer says for which.
    let request = guest.pull_request(THEN, &[&maintainer.repo("r")], &main_at('c'));
    let (accepted, text) = client.publish(&request);
    assert!(accepted && text.starts_with("purgatory: ") && text.contains(&main_at('c')), "{text}");
    let without_commit = guest.sign(kinds::PULL_REQUEST, THEN, &[&["a", &maintainer.repo("r")]], "");
    refuse(&mut client, &without_commit, "invalid: ");
    assert_eq!(shown(&mut client, &json!({})), [4, 4, 4]);
    // And what was refused before was not kept.
    for event in &orphans(THEN)[..3] {
        refuse(&mut client, event, "restricted: ");
    }
}

//! Events that wait for git data: they are acknowledged, not served, survive a crash and expire
//! (`docs/protocol.md#purgatory`).

use std::slice;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::{Author, owned_tags, tied_versions};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::test_server::{main_at, one_commit};
use crate::support::{Client, Server, eventually};

/// The time, in the past, from which tests count the `created_at` of their events.
const BASE_TIME: u64 = 1_700_000_000;

/// The domain is set, so that it stays the same when the port changes.
const SETTINGS: [(&str, &str); 2] = [("POLICY", "grasp"), ("DOMAIN", "grasp.test")];

/// The message to an event that is held and was not known.
const NEWLY_HELD: &str = "purgatory: won't be served until git data arrives";
/// The message to an event that is already held.
const ALREADY_HELD: &str = "purgatory: already waiting for git data";
/// The message to the announcement of a maintainer that only held announcements name.
const INVITED: &str = "purgatory: won't be served until a repository that names its author as a maintainer is served";
const NO_IDS: [&str; 0] = [];

fn service() -> ServiceAddress {
    ServiceAddress::new("grasp.test", "").expect("valid host name")
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

fn repeated_oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

fn state(author: &Author, d: &str, at: u64) -> Arc<SignedEvent> {
    author.state(d, at, &[("refs/heads/main", &repeated_oid('a'))])
}

/// Publishes an event that must be held and was not known.
fn expect_held(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, NEWLY_HELD.to_owned()), "{}", event.json());
}

fn expect_accepted(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

/// Publishes the announcement of a maintainer that only held announcements name.
fn expect_invited(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, INVITED.to_owned()), "{}", event.json());
}

fn expect_rejected(client: &mut Client, event: &SignedEvent, reason: &str) {
    let (accepted, text) = client.publish(event);
    assert!(!accepted && text.starts_with(reason), "{accepted} {text:?} instead of {reason:?}: {}", event.json());
}

/// Returns how many events REQ, COUNT and negentropy return for a filter.
fn visible_counts(client: &mut Client, filter: &Value) -> [usize; 3] {
    let found = client.query(slice::from_ref(filter)).len();
    client.send(&json!(["COUNT", "c", filter]));
    let counted = client.receive();
    assert_eq!(counted[0], "COUNT", "{counted}");
    let counted = counted[2]["count"].as_u64().expect("value is a number") as usize;
    let mut storage = NegentropyStorageVector::new();
    storage.seal().expect("cannot seal the storage");
    let mut negentropy = Negentropy::owned(storage, 0).expect("cannot create the session");
    let opening: String = negentropy
        .initiate()
        .expect("cannot create the first message")
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    client.send(&json!(["NEG-OPEN", "n", filter, opening]));
    let message = client.receive();
    assert_eq!(message[0], "NEG-MSG", "{message}");
    let hex = message[2].as_str().expect("valid hex");
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("valid hex")).collect();
    let (mut have, mut need): (Vec<Id>, Vec<Id>) = (Vec::new(), Vec::new());
    // So few items fit into one message.
    assert_eq!(negentropy.reconcile_with_ids(&bytes, &mut have, &mut need), Ok(None));
    client.send(&json!(["NEG-CLOSE", "n"]));
    [found, counted, need.len()]
}

#[test]
fn announcements_and_states_are_held() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let announcement = owner.announcement(&service(), "r", BASE_TIME, &[]);
    expect_held(&mut client, &announcement);
    expect_held(&mut client, &state(&owner, "r", BASE_TIME));
    // Several versions of a state are held at the same time.
    expect_held(&mut client, &state(&owner, "r", BASE_TIME + 1));
    expect_held(&mut client, &state(&owner, "r", BASE_TIME - 1));
    // Sending a held event again is `OK true`.
    for event in [&announcement, &state(&owner, "r", BASE_TIME), &state(&owner, "r", BASE_TIME + 1)] {
        assert_eq!(client.publish(event), (true, ALREADY_HELD.to_owned()));
    }
}

#[test]
fn held_events_are_not_served() {
    let server = Server::start(&SETTINGS);
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let mut listener = server.connect();
    assert_eq!(listener.subscribe("live", &[json!({})]), NO_IDS);
    let mut client = server.connect();
    let announcement = owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]);
    let states = [state(&owner, "r", BASE_TIME), state(&maintainer, "r", BASE_TIME)];
    expect_held(&mut client, &announcement);
    for state in &states {
        expect_held(&mut client, state);
    }
    let ids = [id(&announcement), id(&states[0]), id(&states[1])];
    for filter in [
        json!({}),
        json!({"ids": ids}),
        json!({"authors": [owner.hex(), maintainer.hex()]}),
        json!({"kinds": [kinds::ANNOUNCEMENT, kinds::STATE]}),
        json!({"#d": ["r"]}),
    ] {
        assert_eq!(visible_counts(&mut client, &filter), [0, 0, 0], "{filter}");
    }
    // The first live event is one that is served.
    let list = maintainer.sign(kinds::GRASP_LIST, BASE_TIME, &[&["g", "wss://elsewhere.example"]], "");
    expect_accepted(&mut client, &list);
    let live = listener.receive();
    assert_eq!((&live[0], &live[2]["id"]), (&json!("EVENT"), &json!(id(&list))));
    assert_eq!(visible_counts(&mut client, &json!({})), [1, 1, 1]);
}

#[test]
fn held_events_survive_a_crash() {
    let mut server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let announcement = owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]);
    let states = [state(&owner, "r", BASE_TIME), state(&maintainer, "r", BASE_TIME)];
    expect_held(&mut client, &announcement);
    for state in &states {
        expect_held(&mut client, state);
    }
    server.kill();
    let server = Server::start_in(server.folder(), &SETTINGS);
    let mut client = server.connect();
    assert_eq!(visible_counts(&mut client, &json!({})), [0, 0, 0]);
    for event in [&announcement, &states[0], &states[1]] {
        assert_eq!(client.publish(event), (true, ALREADY_HELD.to_owned()));
    }
    // The held announcement still authorises its maintainer.
    expect_held(&mut client, &state(&maintainer, "r", BASE_TIME + 1));
    expect_invited(&mut client, &maintainer.announcement_elsewhere("r", BASE_TIME, &[]));
    expect_rejected(&mut client, &state(&Author::new(3), "r", BASE_TIME), "restricted: ");
}

#[test]
fn held_events_expire() {
    let settings = [SETTINGS[0], SETTINGS[1], ("PURGATORY_EXPIRY_SECS", "3")];
    let server = Server::start(&settings);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let announcement = owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]);
    let state = state(&owner, "r", BASE_TIME);
    expect_held(&mut client, &announcement);
    expect_held(&mut client, &state);
    expect_invited(&mut client, &maintainer.announcement_elsewhere("r", BASE_TIME, &[]));
    // The state expires after its announcement; then there is no announcement for it.
    eventually("both expire", || match client.publish(&state) {
        (true, text) => {
            assert_eq!(text, ALREADY_HELD);
            None
        }
        (false, text) => {
            assert!(text.starts_with("invalid: no announcement exists"), "{text}");
            Some(())
        }
    });
    // An announcement that was held because of the maintainer exception is removed with the expired one.
    assert_eq!(visible_counts(&mut client, &json!({})), [0, 0, 0]);
    expect_rejected(&mut client, &maintainer.announcement_elsewhere("r", BASE_TIME + 1, &[]), "invalid: ");
    // The events can be published again, and are held for the whole time again.
    expect_held(&mut client, &announcement);
    expect_held(&mut client, &state);
    eventually("the state expires again", || (!client.publish(&state).0).then_some(()));
    expect_held(&mut client, &announcement);
}

#[test]
fn restart_extends_the_expiry_of_held_events() {
    let settings = [SETTINGS[0], SETTINGS[1], ("PURGATORY_EXPIRY_SECS", "3")];
    let mut server = Server::start(&settings);
    let owner = Author::new(1);
    let announcement = owner.announcement(&service(), "r", BASE_TIME, &[]);
    expect_held(&mut server.connect(), &announcement);
    server.kill();
    let server = Server::start_in(server.folder(), &settings);
    let mut client = server.connect();
    // Another event, which is held from now on for the usual time, shows when that time has passed.
    let later = owner.announcement(&service(), "later", BASE_TIME, &[]);
    expect_held(&mut client, &later);
    eventually("the other event expires", || (client.publish(&later).1 == NEWLY_HELD).then_some(()));
    assert_eq!(client.publish(&announcement), (true, ALREADY_HELD.to_owned()));
}

/// A replacement of a held announcement replaces it and stays held; an older version changes nothing.
#[test]
fn newer_announcement_replaces_a_held_one() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let superseded = (true, "duplicate: superseded by a newer event".to_owned());
    let old = owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]);
    let new = owner.announcement(&service(), "r", BASE_TIME + 1, &[]);
    expect_held(&mut client, &old);
    expect_held(&mut client, &state(&maintainer, "r", BASE_TIME));
    expect_held(&mut client, &new);
    assert_eq!(client.publish(&old), superseded);
    assert_eq!(client.publish(&new), (true, ALREADY_HELD.to_owned()));
    expect_rejected(&mut client, &state(&maintainer, "r", BASE_TIME + 1), "restricted: ");
    // Within the same second the lower id wins.
    let (lower, higher) =
        tied_versions(|word| owner.announcement_with(&service(), "s", BASE_TIME, owned_tags(&[&["name", word]])));
    expect_held(&mut client, &higher);
    expect_held(&mut client, &lower);
    let (is_accepted, text) = client.publish(&higher);
    assert!(is_accepted && text.contains("the same created_at and a lower id"), "{text}");
    assert_eq!(client.publish(&lower), (true, ALREADY_HELD.to_owned()));
}

/// A newer announcement that does not name this service evicts the held one; the older one, sent again, stays out.
#[test]
fn withdrawn_announcement_stays_rejected() {
    let mut server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let old = owner.announcement(&service(), "r", BASE_TIME, &[]);
    expect_held(&mut client, &old);
    // An older announcement that does not name the service changes nothing.
    expect_rejected(&mut client, &owner.announcement_elsewhere("r", BASE_TIME - 1, &[]), "invalid: ");
    assert_eq!(client.publish(&old), (true, ALREADY_HELD.to_owned()));
    expect_rejected(&mut client, &owner.announcement_elsewhere("r", BASE_TIME + 1, &[]), "invalid: ");
    expect_rejected(&mut client, &state(&owner, "r", BASE_TIME), "invalid: no announcement exists");
    expect_rejected(&mut client, &old, "invalid: ");
    server.kill();
    let server = Server::start_in(server.folder(), &SETTINGS);
    let mut client = server.connect();
    expect_rejected(&mut client, &old, "invalid: ");
    expect_held(&mut client, &owner.announcement(&service(), "r", BASE_TIME + 2, &[]));
}

/// URLs are compared by scheme, host, port and path (`docs/protocol.md#listing-which-urls-name-this-service`).
#[test]
fn announcement_must_name_this_service_in_clone_and_relays() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let owner = Author::new(1);
    let npub = owner.key().npub();
    let own_clone = format!("https://grasp.test/{npub}/r.git");
    let announce = |clone: &str, relay: &str| {
        owner.sign(kinds::ANNOUNCEMENT, BASE_TIME, &[&["d", "r"], &["clone", clone], &["relays", relay]], "")
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
        expect_rejected(&mut client, &announce(clone, relay), "invalid: ");
    }
    for d in ["", ".", "..", "a/b", "a\\b", "a\u{0}b"] {
        let event = owner.sign(
            kinds::ANNOUNCEMENT,
            BASE_TIME,
            &[&["d", d], &["clone", &own_clone], &["relays", "wss://grasp.test"]],
            "",
        );
        expect_rejected(&mut client, &event, "invalid: ");
    }
    assert_eq!(visible_counts(&mut client, &json!({})), [0, 0, 0]);
    // None of them is held, otherwise this one would not be new.
    expect_held(&mut client, &announce(&own_clone, "wss://GRASP.test/"));
}

/// See `docs/protocol.md#maintainer-exception` and `docs/protocol.md#recursive-rule`.
#[test]
fn announcement_of_a_listed_maintainer_waits_for_the_repository() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer, further, outsider) = (Author::new(1), Author::new(2), Author::new(3), Author::new(4));
    let maintainer_announcement = maintainer.announcement_elsewhere("r", BASE_TIME, &[&further]);
    let further_announcement = further.announcement_elsewhere("r", BASE_TIME, &[]);
    // No announcement lists them yet.
    expect_rejected(&mut client, &maintainer_announcement, "invalid: ");
    expect_held(&mut client, &owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]));
    // The maintainer set is the closure that starts at the owner, so the middle of the chain must be known first.
    expect_rejected(&mut client, &further_announcement, "invalid: ");
    expect_invited(&mut client, &maintainer_announcement);
    expect_invited(&mut client, &further_announcement);
    expect_rejected(&mut client, &outsider.announcement_elsewhere("r", BASE_TIME, &[&owner]), "invalid: ");
    expect_rejected(&mut client, &maintainer.announcement_elsewhere("another name", BASE_TIME, &[]), "invalid: ");
    assert_eq!(client.query(&[json!({"kinds": [kinds::ANNOUNCEMENT]})]), NO_IDS);
    // States of both are authoritative for the owner's repository.
    expect_held(&mut client, &state(&maintainer, "r", BASE_TIME));
    expect_held(&mut client, &state(&further, "r", BASE_TIME));
    expect_rejected(&mut client, &state(&outsider, "r", BASE_TIME), "restricted: author not authorized");
}

#[test]
fn state_needs_an_announcement_and_an_authorised_author() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, outsider) = (Author::new(1), Author::new(2));
    expect_rejected(&mut client, &state(&owner, "r", BASE_TIME), "invalid: no announcement exists for this repository");
    expect_held(&mut client, &owner.announcement(&service(), "r", BASE_TIME, &[]));
    expect_rejected(
        &mut client,
        &state(&outsider, "r", BASE_TIME),
        "restricted: author not authorized for this repository",
    );
    expect_rejected(&mut client, &state(&owner, "R", BASE_TIME), "invalid: no announcement exists");
    expect_held(&mut client, &state(&owner, "r", BASE_TIME));
    // An announcement and its state, sent without waiting.
    let (announcement, state) = (owner.announcement(&service(), "s", BASE_TIME, &[]), state(&owner, "s", BASE_TIME));
    for event in [&announcement, &state] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in [&announcement, &state] {
        assert_eq!(client.receive(), json!(["OK", id(event), true, NEWLY_HELD]));
    }
}

/// Any other event is accepted if it references a served event, or a served event references it
/// (`docs/protocol.md#related-events`).
#[test]
fn unrelated_events_are_rejected() {
    let server = Server::start(&SETTINGS);
    let mut client = server.connect();
    let (owner, maintainer, contributor) = (Author::new(1), Author::new(2), Author::new(3));
    expect_held(&mut client, &owner.announcement(&service(), "r", BASE_TIME, &[&maintainer]));
    let unrelated = |at| {
        [
            contributor.issue(at, &owner.repo("nowhere")),
            // Held events do not count as links.
            contributor.issue(at, &owner.repo("r")),
            contributor.note(at, &[], "hello"),
            contributor.note(at, &[&["q", &maintainer.repo("r")]], "look"),
            contributor.comment(at, &contributor.issue(at, &owner.repo("r"))),
            contributor.pull_request(at, &[&owner.repo("r")], &repeated_oid('c')),
            contributor.sign(kinds::PROFILE, at, &[], "{}"),
        ]
    };
    for event in unrelated(BASE_TIME) {
        expect_rejected(&mut client, &event, "restricted: ");
    }
    assert_eq!(visible_counts(&mut client, &json!({})), [0, 0, 0]);

    // The same kinds of events are accepted if they reference a served event, also if they are sent without waiting.
    let (work, oid) = one_commit("first");
    expect_held(&mut client, &owner.state("r", BASE_TIME + 1, &main_at(&oid)));
    let url = format!("http://{}/{}/r.git", server.address, owner.key().npub());
    work.git(&["push", "--quiet", &url, "HEAD:refs/heads/main"]).expect_success();
    expect_accepted(&mut client, &maintainer.announcement_elsewhere("r", BASE_TIME, &[]));
    let issue = contributor.issue(BASE_TIME, &maintainer.repo("r"));
    let comment = contributor.comment(BASE_TIME, &issue);
    let quote = contributor.note(BASE_TIME, &[&["q", &maintainer.repo("r")]], "look");
    for event in [&issue, &comment, &quote] {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for event in [&issue, &comment, &quote] {
        assert_eq!(client.receive(), json!(["OK", id(event), true, ""]));
    }
    // A pull request is held until its commit is there, and the answer names the commit.
    let request = contributor.pull_request(BASE_TIME, &[&maintainer.repo("r")], &repeated_oid('c'));
    let (accepted, text) = client.publish(&request);
    assert!(accepted && text.starts_with("purgatory: ") && text.contains(&repeated_oid('c')), "{text}");
    let without_commit = contributor.sign(kinds::PULL_REQUEST, BASE_TIME, &[&["a", &maintainer.repo("r")]], "");
    expect_rejected(&mut client, &without_commit, "invalid: ");
    assert_eq!(visible_counts(&mut client, &json!({})), [6, 6, 6]);
    // The rejected events were not stored.
    let [elsewhere, _, unlinked, ..] = unrelated(BASE_TIME);
    for event in [&elsewhere, &unlinked] {
        expect_rejected(&mut client, event, "restricted: ");
    }
}

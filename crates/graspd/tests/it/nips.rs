//! NIP-09, 40, 42, 45, 62 and 70 over the websocket.

use std::slice;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::Author;
use grasp_store::{Store, StoreOptions};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::test_server::{main_at, one_commit};
use crate::support::{Client, Server, eventually};

/// The base of the timestamps of all events.
const BASE_TIME: u64 = 1_700_000_000;

const NO_IDS: [&str; 0] = [];

fn start_open_server() -> Server {
    Server::start(&[("POLICY", "open")])
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// Publishes an event that must be accepted.
fn expect_accepted(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

/// Publishes an event that must be rejected with a reason that starts with `reason`.
fn expect_rejected(client: &mut Client, event: &SignedEvent, reason: &str) {
    let (accepted, text) = client.publish(event);
    assert!(!accepted && text.starts_with(reason), "{accepted} {text:?} instead of {reason:?}: {}", event.json());
}

/// Publishes many events in batches; all must be accepted.
fn expect_all_accepted(client: &mut Client, events: &[Arc<SignedEvent>]) {
    for part in events.chunks(300) {
        for event in part {
            client.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in part {
            assert_eq!(client.receive(), json!(["OK", id(event), true, ""]));
        }
    }
}

fn count(client: &mut Client, filters: &[Value]) -> u64 {
    let mut request = vec![json!("COUNT"), json!("c")];
    request.extend_from_slice(filters);
    client.send(&Value::Array(request));
    let response = client.receive();
    assert_eq!((&response[0], &response[1]), (&json!("COUNT"), &json!("c")), "{response}");
    response[2]["count"].as_u64().expect("not a number")
}

/// Returns the ids of the matching events, found by NIP-77 with an empty set. The session stays open.
fn reconcile(client: &mut Client, sub: &str, filter: &Value) -> Vec<String> {
    let mut storage = NegentropyStorageVector::new();
    storage.seal().expect("the storage is already sealed");
    let mut session = Negentropy::owned(storage, 0).expect("invalid frame size limit");
    let mut message = session.initiate().expect("the session is already initiated");
    let (mut have, mut need): (Vec<Id>, Vec<Id>) = (Vec::new(), Vec::new());
    let mut request = json!(["NEG-OPEN", sub, filter, hex(&message)]);
    loop {
        client.send(&request);
        let response = client.receive();
        assert_eq!((&response[0], &response[1]), (&json!("NEG-MSG"), &json!(sub)), "{response}");
        let bytes = unhex(response[2].as_str().expect("not hexadecimal"));
        match session.reconcile_with_ids(&bytes, &mut have, &mut need).expect("invalid negentropy message") {
            Some(next) => message = next,
            None => break,
        }
        request = json!(["NEG-MSG", sub, hex(&message)]);
    }
    assert_eq!(have.len(), 0);
    let mut need: Vec<String> = need.iter().map(|id| hex(&id.to_bytes())).collect();
    need.sort_unstable();
    need
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("not hexadecimal")).collect()
}

/// Creates a served repository, and the announcement of a maintainer who lists another server. Events that reference it
/// are accepted. Returns its coordinate.
fn served_repository(client: &mut Client, server: &Server, owner: &Author, maintainer: &Author, d: &str) -> String {
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("no address");
    let (work, oid) = one_commit("first");
    for event in [owner.announcement(&service, d, BASE_TIME, &[maintainer]), owner.state(d, BASE_TIME, &main_at(&oid))]
    {
        assert!(client.publish(&event).1.starts_with("purgatory:"));
    }
    let url = format!("http://{}/{}/{d}.git", server.address, owner.key().npub());
    work.git(&["push", "--quiet", &url, "HEAD:refs/heads/main"]).expect_success();
    expect_accepted(client, &maintainer.announcement_elsewhere(d, BASE_TIME, &[]));
    maintainer.repo(d)
}

// ---- NIP-09 -----------------------------------------------------------------------------------

#[test]
fn nip_09_deletes_by_id() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let [gone, also_gone, kept] = [0, 1, 2].map(|nth| author.note(BASE_TIME + nth, &[&["t", "x"]], ""));
    for event in [&gone, &also_gone, &kept] {
        expect_accepted(&mut client, event);
    }
    // Older than one of its targets, which does not matter for deletion by id.
    let deletion = author.delete(BASE_TIME, &[&gone, &also_gone]);
    expect_accepted(&mut client, &deletion);
    assert_eq!(client.query(&[json!({"#t": ["x"]})]), [id(&kept)]);
    assert_eq!(client.query(&[json!({"ids": [id(&gone), id(&also_gone)]})]), NO_IDS);
    assert_eq!(count(&mut client, &[json!({"kinds": [1]})]), 1);
    assert_eq!(reconcile(&mut client, "n", &json!({"kinds": [1]})), [id(&kept)]);
    assert_eq!(client.query(&[json!({"kinds": [5]})]), [id(&deletion)]);
    for event in [&gone, &also_gone] {
        expect_rejected(&mut client, event, "invalid: this event is deleted");
    }
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&kept)]);
}

#[test]
fn nip_09_deletes_versions_up_to_its_own_time_by_coordinate() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let version = |at, d: &str| author.sign(30_023, at, &[&["d", d]], "");
    let other = version(BASE_TIME, "other");
    expect_accepted(&mut client, &version(BASE_TIME + 5, "x"));
    expect_accepted(&mut client, &other);
    expect_accepted(&mut client, &author.deletion(BASE_TIME + 10, &[&["a", &author.coordinate(30_023, "x")]]));
    assert_eq!(client.query(&[json!({"kinds": [30_023]})]), [id(&other)]);
    // Also versions that were never received, up to the second of the request.
    for at in [BASE_TIME, BASE_TIME + 5, BASE_TIME + 10] {
        expect_rejected(&mut client, &version(at, "x"), "invalid: this event is deleted");
    }
    let newer = version(BASE_TIME + 11, "x");
    expect_accepted(&mut client, &newer);
    assert_eq!(client.query(&[json!({"kinds": [30_023]})]), [id(&newer), id(&other)]);
    // A request that is older than the stored version deletes nothing, also for replaceable kinds.
    expect_accepted(
        &mut client,
        &author.deletion(BASE_TIME + 10, &[&["a", &author.coordinate(30_023, "x")], &["k", "30023"]]),
    );
    let list = author.sign(10_002, BASE_TIME + 20, &[], "");
    expect_accepted(&mut client, &list);
    expect_accepted(&mut client, &author.deletion(BASE_TIME + 19, &[&["a", &author.coordinate(10_002, "")]]));
    assert_eq!(client.query(&[json!({"kinds": [30_023, 10_002]})]), [id(&list), id(&newer), id(&other)]);
    expect_accepted(&mut client, &author.deletion(BASE_TIME + 20, &[&["a", &author.coordinate(10_002, "")]]));
    assert_eq!(client.query(&[json!({"kinds": [10_002]})]), NO_IDS);
}

#[test]
fn nip_09_rejects_targets_that_arrive_later() {
    let server = start_open_server();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let event = author.note(BASE_TIME, &[], "");
    // A request by another author has no effect.
    expect_accepted(&mut client, &other.delete(BASE_TIME + 1, &[&event]));
    let deletion = author.delete(BASE_TIME + 1, &[&event]);
    expect_accepted(&mut client, &deletion);
    expect_rejected(&mut client, &event, "invalid: this event is deleted");
    let foreign = author.note(BASE_TIME + 2, &[], "");
    expect_accepted(&mut client, &other.delete(BASE_TIME + 3, &[&foreign]));
    expect_accepted(&mut client, &foreign);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&foreign)]);
}

#[test]
fn nip_09_ignores_targets_of_other_authors() {
    let server = start_open_server();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let note = author.note(BASE_TIME, &[], "");
    let article = author.sign(30_023, BASE_TIME, &[&["d", "x"]], "");
    let own = other.note(BASE_TIME, &[], "");
    for event in [&note, &article, &own] {
        expect_accepted(&mut client, event);
    }
    // A request with foreign targets only is rejected; foreign targets beside own ones are ignored.
    let foreign = other.delete(BASE_TIME + 1, &[&note]);
    expect_rejected(&mut client, &foreign, "invalid: cannot delete event authored by another pubkey");
    let coordinate = author.coordinate(30_023, "x");
    let mixed = other.deletion(BASE_TIME + 1, &[&["a", &coordinate], &["e", &id(&note)], &["e", &id(&own)]]);
    expect_accepted(&mut client, &mixed);
    let served = client.query(&[json!({"kinds": [1, 30_023]})]);
    assert_eq!(served.len(), 2);
    assert!(served.contains(&id(&note)) && served.contains(&id(&article)));
    expect_accepted(&mut client, &author.sign(30_023, BASE_TIME + 1, &[&["d", "x"]], "still mine"));
}

#[test]
fn nip_09_requests_cannot_be_deleted() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = author.note(BASE_TIME, &[], "");
    expect_accepted(&mut client, &event);
    let deletion = author.delete(BASE_TIME + 1, &[&event]);
    expect_accepted(&mut client, &deletion);
    let deletion_of_it = author.delete(BASE_TIME + 2, &[&deletion]);
    expect_accepted(&mut client, &deletion_of_it);
    assert_eq!(client.query(&[json!({"kinds": [5]})]), [id(&deletion_of_it), id(&deletion)]);
    expect_rejected(&mut client, &event, "invalid: this event is deleted");
    expect_rejected(&mut client, &author.deletion(BASE_TIME + 3, &[]), "invalid: ");
}

#[test]
fn nip_09_survives_a_restart() {
    let mut server = start_open_server();
    let author = Author::new(1);
    let (gone, never_seen) = (author.note(BASE_TIME, &[], ""), author.note(BASE_TIME + 1, &[], ""));
    let mut client = server.connect();
    expect_accepted(&mut client, &gone);
    let deletion = author.delete(BASE_TIME + 2, &[&gone, &never_seen]);
    expect_accepted(&mut client, &deletion);
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    assert_eq!(client.query(&[json!({})]), [id(&deletion)]);
    for event in [&gone, &never_seen] {
        expect_rejected(&mut client, event, "invalid: this event is deleted");
    }
}

#[test]
fn nip_09_deletes_held_events_and_remembers_unrelated_requests() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let (owner, maintainer, outsider) = (Author::new(1), Author::new(2), Author::new(3));
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("no address");
    let announcement = owner.announcement(&service, "r", BASE_TIME, &[&maintainer]);
    let oid = "ab".repeat(20);
    let state = |at| maintainer.state("r", at, &[("refs/heads/main", &oid)]);
    for event in [&announcement, &state(BASE_TIME), &state(BASE_TIME + 1)] {
        assert!(client.publish(event).1.starts_with("purgatory: won't"), "{}", event.json());
    }
    // The maintainer may delete a held state without an announcement of their own.
    expect_accepted(&mut client, &maintainer.delete(BASE_TIME, &[&state(BASE_TIME)]));
    expect_rejected(&mut client, &state(BASE_TIME), "invalid: this event is deleted");
    assert!(client.publish(&state(BASE_TIME + 1)).1.starts_with("purgatory: already"));
    expect_accepted(
        &mut client,
        &maintainer.deletion(BASE_TIME + 1, &[&["a", &maintainer.coordinate(kinds::STATE, "r")]]),
    );
    expect_rejected(&mut client, &state(BASE_TIME + 1), "invalid: this event is deleted");
    assert!(client.publish(&state(BASE_TIME + 2)).1.starts_with("purgatory: won't"));
    // Without the announcement, states of the repository are rejected.
    expect_accepted(&mut client, &owner.deletion(BASE_TIME, &[&["a", &owner.repo("r")]]));
    expect_rejected(&mut client, &announcement, "invalid: this event is deleted");
    expect_rejected(&mut client, &state(BASE_TIME + 3), "invalid: no announcement exists");
    assert!(client.publish(&owner.announcement(&service, "r", BASE_TIME + 1, &[])).1.starts_with("purgatory: won't"));
    // A request by an unknown author for unknown events is remembered and not served.
    let unrelated = outsider.deletion(BASE_TIME, &[&["e", &"ab".repeat(32)]]);
    expect_accepted(&mut client, &unrelated);
    assert_eq!(client.query(&[json!({"authors": [outsider.hex()]})]), NO_IDS);
}

// ---- NIP-40 -----------------------------------------------------------------------------------

fn expiring(author: &Author, at: u64, kind: u16) -> Arc<SignedEvent> {
    author.sign(kind, BASE_TIME, &[&["expiration", &at.to_string()], &["t", "x"]], "")
}

#[test]
fn nip_40_rejects_expired_events() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    for at in [0, 1, BASE_TIME, now() - 1] {
        expect_rejected(&mut client, &expiring(&author, at, 1), "invalid: the event has expired");
        expect_rejected(&mut client, &expiring(&author, at, 20_000), "invalid: the event has expired");
    }
    expect_accepted(&mut client, &expiring(&author, now() + 3_600, 1));
    // An expiration that is not a number is ignored.
    for invalid in ["soon", "", "-1", "1e3"] {
        expect_accepted(&mut client, &author.sign(1, BASE_TIME, &[&["expiration", invalid]], ""));
    }
    assert_eq!(client.query(&[json!({})]).len(), 5);
}

#[test]
fn nip_40_expired_event_is_in_no_response() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = expiring(&author, now() + 2, 1);
    let kept = author.note(BASE_TIME + 1, &[&["t", "x"]], "");
    expect_accepted(&mut client, &event);
    expect_accepted(&mut client, &kept);
    eventually("the event expires", || (client.query(&[json!({"#t": ["x"]})]) == [id(&kept)]).then_some(()));
    assert!(now() >= event.event().expires_at().expect("no expiration").0, "the event expired too early");
    for filter in [json!({}), json!({"ids": [id(&event), id(&kept)]}), json!({"authors": [author.hex()]})] {
        assert_eq!(client.query(slice::from_ref(&filter)), [id(&kept)], "{filter}");
        assert_eq!(count(&mut client, slice::from_ref(&filter)), 1, "{filter}");
        assert_eq!(reconcile(&mut client, "late", &filter), [id(&kept)], "{filter}");
    }
    expect_rejected(&mut client, &event, "invalid: the event has expired");
}

/// Sessions with the same filter share a cached set, which must not be reused after one of its events has expired.
#[test]
fn nip_40_cached_negentropy_set_omits_expired_events() {
    let server = start_open_server();
    let (mut early, mut late) = (server.connect(), server.connect());
    let author = Author::new(1);
    let event = expiring(&author, now() + 2, 1);
    let kept = author.note(BASE_TIME + 1, &[], "");
    expect_accepted(&mut early, &event);
    expect_accepted(&mut early, &kept);
    let filter = json!({"kinds": [1]});
    assert!(reconcile(&mut early, "stays open", &filter).contains(&id(&kept)));
    eventually("the event expires", || (late.query(slice::from_ref(&filter)) == [id(&kept)]).then_some(()));
    assert_eq!(reconcile(&mut late, "n", &filter), [id(&kept)]);
}

#[test]
fn nip_40_expired_version_does_not_block_an_older_one() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let short = author.sign(10_002, BASE_TIME + 1, &[&["expiration", &(now() + 2).to_string()]], "");
    let older = author.sign(10_002, BASE_TIME, &[], "");
    expect_accepted(&mut client, &short);
    eventually("the newer version expires", || {
        let (accepted, text) = client.publish(&older);
        assert!(accepted);
        text.is_empty().then_some(())
    });
    assert_eq!(client.query(&[json!({"kinds": [10_002]})]), [id(&older)]);
}

#[test]
fn nip_40_expired_events_are_removed_from_disk() {
    let mut server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let first = expiring(&author, now() + 3, 1);
    // The removal may be a second late, so the test waits for the expiry of another, later event.
    let later = expiring(&author, now() + 6, 1);
    expect_accepted(&mut client, &first);
    expect_accepted(&mut client, &later);
    eventually("both expire", || client.query(&[json!({})]).is_empty().then_some(()));
    assert_eq!(server.stop(), Some(0));
    let path = server.folder().path().join("data/relay/events");
    let store = Store::open(&path, StoreOptions::default()).expect("the store is still in use");
    assert!(store.served_count().expect("cannot read the store") <= 1);
}

// ---- NIP-42 and NIP-70 ------------------------------------------------------------------------

fn protected(author: &Author, at: u64) -> Arc<SignedEvent> {
    author.note(at, &[&["-"]], "mine alone")
}

/// Publishes a protected event, which must be rejected; returns the challenge that came with the rejection.
fn challenge(client: &mut Client, event: &SignedEvent) -> String {
    challenge_for(client, event, event.json())
}

fn challenge_for(client: &mut Client, event: &SignedEvent, text: &str) -> String {
    client.send_text(&format!("[\"EVENT\",{text}]"));
    let mut challenge = None;
    let mut response = None;
    while challenge.is_none() || response.is_none() {
        let message = client.receive();
        match message[0].as_str() {
            Some("AUTH") => challenge = Some(message[1].as_str().expect("no challenge").to_owned()),
            Some("OK") => response = Some(message),
            _ => panic!("unexpected {message}"),
        }
    }
    let rejection = json!(["OK", id(event), false, "auth-required: this event may only be published by its author"]);
    assert_eq!(response, Some(rejection));
    challenge.expect("no challenge")
}

fn auth_event(author: &Author, challenge: &str, relay: &str, at: u64) -> Arc<SignedEvent> {
    author.sign(kinds::AUTH, at, &[&["relay", relay], &["challenge", challenge]], "")
}

fn authenticate(client: &mut Client, response: &SignedEvent) -> (bool, String) {
    client.send_text(&format!("[\"AUTH\",{}]", response.json()));
    let message = client.receive();
    assert_eq!((&message[0], &message[1]), (&json!("OK"), &json!(id(response))), "{message}");
    (message[2].as_bool().expect("not a boolean"), message[3].as_str().expect("not text").to_owned())
}

#[test]
fn nip_70_authenticated_author_may_publish() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = protected(&author, BASE_TIME);
    let challenge = challenge(&mut client, &event);
    assert_eq!(client.query(&[json!({})]), NO_IDS);
    // One challenge is enough for a connection.
    client.send_text(&format!("[\"EVENT\",{}]", protected(&author, BASE_TIME + 1).json()));
    assert_eq!(client.receive()[0], "OK");
    assert_eq!(
        authenticate(&mut client, &auth_event(&author, &challenge, &server.url(), now())),
        (true, String::new())
    );
    expect_accepted(&mut client, &event);
    let mut other = server.connect();
    assert_eq!(other.query(&[json!({})]), [id(&event)]);
    // Authentication is per connection.
    expect_rejected(&mut other, &protected(&author, BASE_TIME + 2), "auth-required: ");
    // Ordinary events need no authentication.
    expect_accepted(&mut other, &author.note(BASE_TIME + 3, &[], ""));
}

#[test]
fn nip_70_other_authenticated_keys_may_not_publish() {
    let server = start_open_server();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let event = protected(&author, BASE_TIME);
    let challenge = challenge(&mut client, &event);
    assert!(authenticate(&mut client, &auth_event(&other, &challenge, &server.url(), now())).0);
    expect_rejected(&mut client, &event, "auth-required: ");
    expect_accepted(&mut client, &protected(&other, BASE_TIME));
    // A connection may authenticate several keys.
    assert!(authenticate(&mut client, &auth_event(&author, &challenge, &server.url(), now())).0);
    expect_accepted(&mut client, &event);
    expect_accepted(&mut client, &protected(&other, BASE_TIME + 1));
}

#[test]
fn nip_42_rejects_invalid_responses() {
    let server = start_open_server();
    let author = Author::new(1);
    let event = protected(&author, BASE_TIME);
    let url = server.url();
    let mut other_connection = server.connect();
    let other_challenge = challenge(&mut other_connection, &event);
    let mut client = server.connect();
    // Without a challenge, no response is valid.
    assert!(!authenticate(&mut client, &auth_event(&author, &other_challenge, &url, now())).0);
    let challenge = challenge(&mut client, &event);
    assert_ne!(challenge, other_challenge);
    let mut forged = auth_event(&Author::new(2), &challenge, &url, now()).event().clone();
    forged.pubkey = author.key();
    let relay_less = author.sign(kinds::AUTH, now(), &[&["challenge", &challenge]], "");
    let wrong_kind = author.sign(1, now(), &[&["relay", &url], &["challenge", &challenge]], "");
    for wrong in [
        auth_event(&author, "guess", &url, now()),
        auth_event(&author, "", &url, now()),
        auth_event(&author, &other_challenge, &url, now()),
        auth_event(&author, &challenge, "ws://elsewhere.example", now()),
        auth_event(&author, &challenge, &format!("{url}.evil.example"), now()),
        auth_event(&author, &challenge, &url, now() - 3_600),
        auth_event(&author, &challenge, &url, now() + 3_600),
        Arc::new(SignedEvent::from_trusted(forged)),
        relay_less,
        wrong_kind,
    ] {
        let (accepted, reason) = authenticate(&mut client, &wrong);
        assert!(!accepted && reason.starts_with("invalid: "), "{reason}: {}", wrong.json());
        expect_rejected(&mut client, &event, "auth-required: ");
    }
    // The right response is still accepted; a trailing slash and wss do not matter.
    let own = format!("{}/", url.replace("ws://", "wss://"));
    assert!(authenticate(&mut client, &auth_event(&author, &challenge, &own, now())).0);
    expect_accepted(&mut client, &event);
    // Authentication events cannot be published.
    expect_rejected(&mut client, &auth_event(&author, &challenge, &url, now()), "invalid: ");
}

/// A client that must authenticate gets a challenge, in whatever form the `-` tag was written.
#[test]
fn nip_70_challenge_is_sent_for_every_form_of_the_tag() {
    let server = start_open_server();
    let author = Author::new(1);
    let event = protected(&author, BASE_TIME);
    for form in ["[ \"-\" ]", "[\n\"-\"]", "[\"\\u002d\"]"] {
        let text = event.json().replace("[\"-\"]", form);
        assert_ne!(text, event.json());
        let mut client = server.connect();
        let challenge = challenge_for(&mut client, &event, &text);
        assert!(authenticate(&mut client, &auth_event(&author, &challenge, &server.url(), now())).0, "{form}");
    }
}

#[test]
fn nip_70_rejects_reposts_of_protected_events() {
    let server = start_open_server();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let event = protected(&author, BASE_TIME);
    let open_event = author.note(BASE_TIME, &[], "for all");
    for kind in [6, 16] {
        expect_rejected(&mut client, &other.sign(kind, BASE_TIME, &[], event.json()), "auth-required: ");
        expect_accepted(&mut client, &other.sign(kind, BASE_TIME, &[], open_event.json()));
        expect_accepted(&mut client, &other.sign(kind, BASE_TIME, &[], "{\"tags\":[[\"-\"]]}"));
    }
}

#[test]
fn nip_70_applies_to_announcements() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let author = Author::new(1);
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("no address");
    let announcement = author.announcement_with(&service, "r", BASE_TIME, vec![vec!["-".to_owned()]]);
    let challenge = challenge(&mut client, &announcement);
    let state = author.state("r", BASE_TIME, &[]);
    expect_rejected(&mut client, &state, "invalid: no announcement exists");
    assert!(authenticate(&mut client, &auth_event(&author, &challenge, &server.url(), now())).0);
    assert!(client.publish(&announcement).1.starts_with("purgatory: won't"));
    assert!(client.publish(&state).1.starts_with("purgatory: won't"));
}

// ---- NIP-45 -----------------------------------------------------------------------------------

#[test]
fn nip_45_counts_matching_events() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10")]);
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events: Vec<_> =
        (0..40).map(|nth| alice.note(BASE_TIME + nth, &[&["t", &(nth % 4).to_string()]], "")).collect();
    expect_all_accepted(&mut client, &events);
    expect_accepted(&mut client, &bob.sign(7, BASE_TIME, &[], ""));
    for (filters, expected) in [
        (vec![json!({})], 41),
        (vec![json!({"kinds": [1]})], 40),
        (vec![json!({"authors": [bob.hex()]})], 1),
        (vec![json!({"#t": ["0"]})], 10),
        (vec![json!({"#t": ["0", "3"]})], 20),
        // Filters are joined by or; an event that matches several counts once.
        (vec![json!({"#t": ["0"]}), json!({"since": BASE_TIME + 36, "kinds": [1]})], 13),
        (vec![json!({"kinds": [1], "since": BASE_TIME + 10, "until": BASE_TIME + 19})], 10),
        (vec![json!({"kinds": [2]})], 0),
        (vec![json!({"ids": []})], 0),
    ] {
        assert_eq!(count(&mut client, &filters), expected, "{filters:?}");
    }
    client.send(&json!(["COUNT", "bad", {"search": "x"}]));
    let rejection = client.receive();
    assert_eq!((&rejection[0], &rejection[1]), (&json!("CLOSED"), &json!("bad")));
    assert!(rejection[2].as_str().expect("no reason").starts_with("unsupported: "), "{rejection}");
}

#[test]
fn nip_45_does_not_affect_subscriptions() {
    let server = start_open_server();
    let mut client = server.connect();
    client.subscribe("c", &[json!({})]);
    // COUNT ids and subscription ids are different namespaces.
    assert_eq!(count(&mut client, &[json!({})]), 0);
    let mut publisher = server.connect();
    let event = Author::new(1).note(BASE_TIME, &[], "");
    expect_accepted(&mut publisher, &event);
    let live = client.receive();
    assert_eq!((&live[0], &live[1], &live[2]["id"]), (&json!("EVENT"), &json!("c"), &json!(id(&event))));
}

// ---- NIP-62 -----------------------------------------------------------------------------------

/// Returns more events than are removed in one transaction.
fn many_notes(author: &Author) -> Vec<Arc<SignedEvent>> {
    (0..3_500).map(|nth| author.note(BASE_TIME + nth, &[&["t", "x"]], "")).collect()
}

#[test]
fn nip_62_removes_thousands_of_events_at_once() {
    let mut server = start_open_server();
    let mut client = server.connect();
    let (author, friend) = (Author::new(1), Author::new(2));
    expect_all_accepted(&mut client, &many_notes(&author));
    let by_friend = friend.note(BASE_TIME, &[&["p", &author.hex()], &["t", "x"]], "about the author");
    let deletion = author.deletion(BASE_TIME + 5_000, &[&["e", &"ab".repeat(32)]]);
    let list = author.sign(10_002, BASE_TIME + 5_000, &[], "");
    let newer = author.note(BASE_TIME + 20_000, &[&["t", "x"]], "already newer");
    for event in [&by_friend, &deletion, &list, &newer] {
        expect_accepted(&mut client, event);
    }
    let vanish = author.vanish(BASE_TIME + 10_000, &["ALL_RELAYS"]);
    expect_accepted(&mut client, &vanish);

    let mine = json!({"authors": [author.hex()]});
    assert_eq!(client.query(slice::from_ref(&mine)), [id(&newer), id(&vanish)]);
    assert_eq!(count(&mut client, slice::from_ref(&mine)), 2);
    let mut left = [id(&newer), id(&vanish)];
    left.sort_unstable();
    assert_eq!(reconcile(&mut client, "n", &mine), left);
    assert_eq!(client.query(&[json!({"#t": ["x"]})]), [id(&newer), id(&by_friend)]);
    assert_eq!(client.query(&[json!({"kinds": [5, 10_002]})]), NO_IDS);

    // The events are removed from disk in the background; a crash does not bring any of them back.
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    assert_eq!(client.query(slice::from_ref(&mine)), [id(&newer), id(&vanish)]);
    assert_eq!(count(&mut client, &[mine]), 2);
}

#[test]
fn nip_62_removes_gift_wraps_to_the_author_at_once() {
    let server = start_open_server();
    let mut client = server.connect();
    let (author, friend) = (Author::new(1), Author::new(2));
    let wrap = |at, who: &Author| friend.sign(kinds::GIFT_WRAP, at, &[&["p", &who.hex()]], "wrapped");
    expect_all_accepted(&mut client, &many_notes(&author));
    let (gone, newer, other) = (wrap(BASE_TIME, &author), wrap(BASE_TIME + 20_000, &author), wrap(BASE_TIME, &friend));
    expect_all_accepted(&mut client, &[gone, newer.clone(), other.clone()]);
    expect_accepted(&mut client, &author.vanish(BASE_TIME + 10_000, &["ALL_RELAYS"]));
    assert_eq!(client.query(&[json!({"kinds": [kinds::GIFT_WRAP]})]), [id(&newer), id(&other)]);
    assert_eq!(client.query(&[json!({"#p": [author.hex()]})]), [id(&newer)]);
}

#[test]
fn nip_62_removed_events_cannot_be_published_again() {
    let mut server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let events = many_notes(&author);
    expect_all_accepted(&mut client, &events);
    expect_accepted(&mut client, &author.vanish(BASE_TIME + 10_000, &["ALL_RELAYS"]));
    // The oldest are removed from disk last; they must not be answered as duplicates.
    for event in [&events[0], &events[1], &events[3_499]] {
        expect_rejected(&mut client, event, "invalid: this pubkey has requested to vanish");
    }
    let unseen = author.note(BASE_TIME + 10_000, &[], "never seen, of the request's own second");
    expect_rejected(&mut client, &unseen, "invalid: this pubkey has requested to vanish");
    let welcome = author.note(BASE_TIME + 10_001, &[], "back again");
    expect_accepted(&mut client, &welcome);
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    expect_rejected(&mut client, &events[0], "invalid: this pubkey has requested to vanish");
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&welcome)]);
}

#[test]
fn nip_62_applies_to_the_named_relays_only() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = author.note(BASE_TIME, &[], "");
    expect_accepted(&mut client, &event);
    expect_rejected(&mut client, &author.vanish(BASE_TIME + 1, &[]), "invalid: ");
    let elsewhere = author.vanish(BASE_TIME + 1, &["wss://elsewhere.example"]);
    expect_accepted(&mut client, &elsewhere);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&event)]);
    let here = author.vanish(BASE_TIME + 2, &["wss://elsewhere.example", &format!("{}/", server.url())]);
    expect_accepted(&mut client, &here);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), NO_IDS);
    // The request cannot be deleted.
    expect_accepted(&mut client, &author.delete(BASE_TIME + 3, &[&here]));
    assert!(client.query(&[json!({"kinds": [kinds::VANISH]})]).contains(&id(&here)));
    expect_rejected(&mut client, &event, "invalid: this pubkey has requested to vanish");
}

#[test]
fn nip_62_removes_repositories_and_held_events() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let (owner, maintainer, guest) = (Author::new(1), Author::new(2), Author::new(3));
    let repository = served_repository(&mut client, &server, &owner, &maintainer, "r");
    let (issue, foreign_issue) = (maintainer.issue(BASE_TIME, &repository), guest.issue(BASE_TIME, &repository));
    expect_accepted(&mut client, &issue);
    expect_accepted(&mut client, &foreign_issue);
    let state = maintainer.state("r", BASE_TIME, &[("refs/heads/main", &"ab".repeat(20))]);
    assert!(client.publish(&state).1.starts_with("purgatory: won't"));

    // The request of an unknown author is remembered and not served.
    expect_accepted(&mut client, &Author::new(9).vanish(BASE_TIME + 1, &["ALL_RELAYS"]));
    assert_eq!(client.query(&[json!({"authors": [Author::new(9).hex()]})]), NO_IDS);
    expect_rejected(&mut client, &maintainer.vanish(BASE_TIME + 1, &["wss://elsewhere.example"]), "restricted: ");
    let vanish = maintainer.vanish(BASE_TIME + 1, &[&server.url()]);
    expect_accepted(&mut client, &vanish);
    assert_eq!(client.query(&[json!({"authors": [maintainer.hex()]})]), [id(&vanish)]);
    assert_eq!(client.query(&[json!({"authors": [guest.hex()]})]), [id(&foreign_issue)]);
    for event in [&state, &issue, &maintainer.announcement_elsewhere("r", BASE_TIME, &[])] {
        expect_rejected(&mut client, event, "invalid: this pubkey has requested to vanish");
    }
    // The owner still lists the maintainer, so a newer announcement is accepted.
    expect_accepted(&mut client, &maintainer.announcement_elsewhere("r", BASE_TIME + 2, &[]));
    // The owner vanishes as well: the maintainer exception no longer applies.
    expect_accepted(&mut client, &owner.vanish(BASE_TIME + 1, &["ALL_RELAYS"]));
    assert_eq!(client.query(&[json!({"kinds": [kinds::ANNOUNCEMENT]})]), NO_IDS);
    expect_rejected(&mut client, &maintainer.state("r", BASE_TIME + 3, &[]), "invalid: no announcement exists");
}

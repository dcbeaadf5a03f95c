//! NIP-09, 40, 42, 45, 62 and 70 over the wire.

use std::slice;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::signer::Author;
use grasp_store::{StoreOptions, Store};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::{Client, Server, eventually};

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

const NOTHING: [&str; 0] = [];

fn open() -> Server {
    Server::start(&[("POLICY", "open")])
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// Publishes something that must be taken.
fn accept(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

/// Publishes something that must be refused with a reason that begins like this.
fn refuse(client: &mut Client, event: &SignedEvent, reason: &str) {
    let (accepted, why) = client.publish(event);
    assert!(!accepted && why.starts_with(reason), "{accepted} {why:?} instead of {reason:?}: {}", event.json());
}

/// Publishes many that must be taken, several hundred at a time.
fn accept_all(client: &mut Client, events: &[Arc<SignedEvent>]) {
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
    let answer = client.receive();
    assert_eq!((&answer[0], &answer[1]), (&json!("COUNT"), &json!("c")), "{answer}");
    answer[2]["count"].as_u64().expect("a number")
}

/// What a client that has nothing is told to need, by NIP-77. The reconciliation stays open.
fn reconcile(client: &mut Client, sub: &str, filter: &Value) -> Vec<String> {
    let mut storage = NegentropyStorageVector::new();
    storage.seal().expect("sealed once");
    let mut party = Negentropy::owned(storage, 0).expect("no limit");
    let mut message = party.initiate().expect("first use");
    let (mut have, mut need): (Vec<Id>, Vec<Id>) = (Vec::new(), Vec::new());
    let mut request = json!(["NEG-OPEN", sub, filter, hex(&message)]);
    loop {
        client.send(&request);
        let answer = client.receive();
        assert_eq!((&answer[0], &answer[1]), (&json!("NEG-MSG"), &json!(sub)), "{answer}");
        let bytes = unhex(answer[2].as_str().expect("hex"));
        match party.reconcile_with_ids(&bytes, &mut have, &mut need).expect("the server speaks negentropy") {
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
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// A hosted repository whose announcement is served although there is no git data: its maintainer's, who keeps his own
/// copy elsewhere. Events that belong to it are accepted. Gives its coordinate.
fn served_repository(client: &mut Client, server: &Server, owner: &Author, maintainer: &Author, d: &str) -> String {
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("an address");
    assert!(client.publish(&owner.listed(&service, d, THEN, &[maintainer])).1.starts_with("purgatory:"));
    accept(client, &maintainer.unlisted(d, THEN, &[]));
    maintainer.repo(d)
}

// ---- NIP-09 -----------------------------------------------------------------------------------

#[test]
fn nip_09_by_id() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let [gone, also_gone, kept] = [0, 1, 2].map(|nth| author.note(THEN + nth, &[&["t", "x"]], ""));
    for event in [&gone, &also_gone, &kept] {
        accept(&mut client, event);
    }
    // Older than one of its targets: by id that does not matter.
    let deletion = author.delete(THEN, &[&gone, &also_gone]);
    accept(&mut client, &deletion);
    assert_eq!(client.query(&[json!({"#t": ["x"]})]), [id(&kept)]);
    assert_eq!(client.query(&[json!({"ids": [id(&gone), id(&also_gone)]})]), NOTHING);
    assert_eq!(count(&mut client, &[json!({"kinds": [1]})]), 1);
    assert_eq!(reconcile(&mut client, "n", &json!({"kinds": [1]})), [id(&kept)]);
    assert_eq!(client.query(&[json!({"kinds": [5]})]), [id(&deletion)]);
    for event in [&gone, &also_gone] {
        refuse(&mut client, event, "invalid: this event is deleted");
    }
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&kept)]);
}

#[test]
fn nip_09_by_coordinate_older_versions_go_and_newer_ones_come() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let version = |at, d: &str| author.sign(30_023, at, &[&["d", d]], "");
    let other = version(THEN, "other");
    accept(&mut client, &version(THEN + 5, "x"));
    accept(&mut client, &other);
    accept(&mut client, &author.deletion(THEN + 10, &[&["a", &author.coordinate(30_023, "x")]]));
    assert_eq!(client.query(&[json!({"kinds": [30_023]})]), [id(&other)]);
    // Also versions that were never seen here, up to the request's own second.
    for at in [THEN, THEN + 5, THEN + 10] {
        refuse(&mut client, &version(at, "x"), "invalid: this event is deleted");
    }
    let newer = version(THEN + 11, "x");
    accept(&mut client, &newer);
    assert_eq!(client.query(&[json!({"kinds": [30_023]})]), [id(&newer), id(&other)]);
    // A request that is older than what stands there takes nothing away, in replaceable kinds too.
    accept(&mut client, &author.deletion(THEN + 10, &[&["a", &author.coordinate(30_023, "x")], &["k", "30023"]]));
    let list = author.sign(10_002, THEN + 20, &[], "");
    accept(&mut client, &list);
    accept(&mut client, &author.deletion(THEN + 19, &[&["a", &author.coordinate(10_002, "")]]));
    assert_eq!(client.query(&[json!({"kinds": [30_023, 10_002]})]), [id(&list), id(&newer), id(&other)]);
    accept(&mut client, &author.deletion(THEN + 20, &[&["a", &author.coordinate(10_002, "")]]));
    assert_eq!(client.query(&[json!({"kinds": [10_002]})]), NOTHING);
}

#[test]
fn nip_09_before_its_target() {
    let server = open();
    let mut client = server.connect();
    let (author, stranger) = (Author::new(1), Author::new(2));
    let event = author.note(THEN, &[], "");
    // Somebody else's word about it counts for nothing.
    accept(&mut client, &stranger.delete(THEN + 1, &[&event]));
    let deletion = author.delete(THEN + 1, &[&event]);
    accept(&mut client, &deletion);
    refuse(&mut client, &event, "invalid: this event is deleted");
    let foreign = author.note(THEN + 2, &[], "");
    accept(&mut client, &stranger.delete(THEN + 3, &[&foreign]));
    accept(&mut client, &foreign);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&foreign)]);
}

#[test]
fn nip_09_foreign_targets_stay() {
    let server = open();
    let mut client = server.connect();
    let (author, stranger) = (Author::new(1), Author::new(2));
    let note = author.note(THEN, &[], "");
    let article = author.sign(30_023, THEN, &[&["d", "x"]], "");
    let own = stranger.note(THEN, &[], "");
    for event in [&note, &article, &own] {
        accept(&mut client, event);
    }
    // A request about nothing of its author's own is a mistake; foreign targets beside own ones are passed over.
    let foreign = stranger.delete(THEN + 1, &[&note]);
    refuse(&mut client, &foreign, "invalid: cannot delete event authored by another pubkey");
    let coordinate = author.coordinate(30_023, "x");
    let mixed = stranger.deletion(THEN + 1, &[&["a", &coordinate], &["e", &id(&note)], &["e", &id(&own)]]);
    accept(&mut client, &mixed);
    let served = client.query(&[json!({"kinds": [1, 30_023]})]);
    assert_eq!(served.len(), 2);
    assert!(served.contains(&id(&note)) && served.contains(&id(&article)));
    accept(&mut client, &author.sign(30_023, THEN + 1, &[&["d", "x"]], "still mine"));
}

#[test]
fn nip_09_requests_themselves_stay() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = author.note(THEN, &[], "");
    accept(&mut client, &event);
    let deletion = author.delete(THEN + 1, &[&event]);
    accept(&mut client, &deletion);
    let deletion_of_it = author.delete(THEN + 2, &[&deletion]);
    accept(&mut client, &deletion_of_it);
    assert_eq!(client.query(&[json!({"kinds": [5]})]), [id(&deletion_of_it), id(&deletion)]);
    refuse(&mut client, &event, "invalid: this event is deleted");
    refuse(&mut client, &author.deletion(THEN + 3, &[]), "invalid: ");
}

#[test]
fn nip_09_survives_a_restart() {
    let mut server = open();
    let author = Author::new(1);
    let (gone, never_seen) = (author.note(THEN, &[], ""), author.note(THEN + 1, &[], ""));
    let mut client = server.connect();
    accept(&mut client, &gone);
    let deletion = author.delete(THEN + 2, &[&gone, &never_seen]);
    accept(&mut client, &deletion);
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    assert_eq!(client.query(&[json!({})]), [id(&deletion)]);
    for event in [&gone, &never_seen] {
        refuse(&mut client, event, "invalid: this event is deleted");
    }
}

#[test]
fn nip_09_takes_held_events_and_strangers_requests_are_refused() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let (owner, maintainer, stranger) = (Author::new(1), Author::new(2), Author::new(3));
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("an address");
    let announcement = owner.listed(&service, "r", THEN, &[&maintainer]);
    let oid = "ab".repeat(20);
    let state = |at| maintainer.state("r", at, &[("refs/heads/main", &oid)]);
    for event in [&announcement, &state(THEN), &state(THEN + 1)] {
        assert!(client.publish(event).1.starts_with("purgatory: won't"), "{}", event.json());
    }
    // D-06: the maintainer has no announcement of his own.
    accept(&mut client, &maintainer.delete(THEN, &[&state(THEN)]));
    refuse(&mut client, &state(THEN), "invalid: this event is deleted");
    assert!(client.publish(&state(THEN + 1)).1.starts_with("purgatory: already"));
    accept(&mut client, &maintainer.deletion(THEN + 1, &[&["a", &maintainer.coordinate(kinds::STATE, "r")]]));
    refuse(&mut client, &state(THEN + 1), "invalid: this event is deleted");
    assert!(client.publish(&state(THEN + 2)).1.starts_with("purgatory: won't"));
    // The announcement goes, and with it the right to speak of the repository.
    accept(&mut client, &owner.deletion(THEN, &[&["a", &owner.repo("r")]]));
    refuse(&mut client, &announcement, "invalid: this event is deleted");
    refuse(&mut client, &state(THEN + 3), "invalid: no announcement exists");
    assert!(client.publish(&owner.listed(&service, "r", THEN + 1, &[])).1.starts_with("purgatory: won't"));
    // Who has nothing here and speaks of nothing here would only fill the books.
    refuse(&mut client, &stranger.deletion(THEN, &[&["e", &"ab".repeat(32)]]), "restricted: ");
}

// ---- NIP-40 -----------------------------------------------------------------------------------

fn expiring(author: &Author, at: u64, kind: u16) -> Arc<SignedEvent> {
    author.sign(kind, THEN, &[&["expiration", &at.to_string()], &["t", "x"]], "")
}

#[test]
fn nip_40_expired_events_are_refused() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    for at in [0, 1, THEN, now() - 1] {
        refuse(&mut client, &expiring(&author, at, 1), "invalid: the event has expired");
        refuse(&mut client, &expiring(&author, at, 20_000), "invalid: the event has expired");
    }
    accept(&mut client, &expiring(&author, now() + 3_600, 1));
    // What is no number means nothing.
    for odd in ["soon", "", "-1", "1e3"] {
        accept(&mut client, &author.sign(1, THEN, &[&["expiration", odd]], ""));
    }
    assert_eq!(client.query(&[json!({})]).len(), 5);
}

#[test]
fn nip_40_when_its_time_has_come_an_event_is_nowhere() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = expiring(&author, now() + 2, 1);
    let kept = author.note(THEN + 1, &[&["t", "x"]], "");
    accept(&mut client, &event);
    accept(&mut client, &kept);
    eventually("the event expires", || (client.query(&[json!({"#t": ["x"]})]) == [id(&kept)]).then_some(()));
    assert!(now() >= event.event().expires_at().expect("it expires").0, "it went too early");
    for filter in [json!({}), json!({"ids": [id(&event), id(&kept)]}), json!({"authors": [author.hex()]})] {
        assert_eq!(client.query(slice::from_ref(&filter)), [id(&kept)], "{filter}");
        assert_eq!(count(&mut client, slice::from_ref(&filter)), 1, "{filter}");
        assert_eq!(reconcile(&mut client, "late", &filter), [id(&kept)], "{filter}");
    }
    refuse(&mut client, &event, "invalid: the event has expired");
}

/// Those who ask the same at the same time share a set; time passes without anything being stored.
#[test]
fn nip_40_a_reconciliation_does_not_lend_what_has_expired_since() {
    let server = open();
    let (mut early, mut late) = (server.connect(), server.connect());
    let author = Author::new(1);
    let event = expiring(&author, now() + 2, 1);
    let kept = author.note(THEN + 1, &[], "");
    accept(&mut early, &event);
    accept(&mut early, &kept);
    let filter = json!({"kinds": [1]});
    assert!(reconcile(&mut early, "stays open", &filter).contains(&id(&kept)));
    eventually("the event expires", || (late.query(slice::from_ref(&filter)) == [id(&kept)]).then_some(()));
    assert_eq!(reconcile(&mut late, "n", &filter), [id(&kept)]);
}

#[test]
fn nip_40_an_expired_version_makes_room_for_an_older_one() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let short = author.sign(10_002, THEN + 1, &[&["expiration", &(now() + 2).to_string()]], "");
    let older = author.sign(10_002, THEN, &[], "");
    accept(&mut client, &short);
    eventually("the newer version expires", || {
        let (accepted, text) = client.publish(&older);
        assert!(accepted);
        text.is_empty().then_some(())
    });
    assert_eq!(client.query(&[json!({"kinds": [10_002]})]), [id(&older)]);
}

#[test]
fn nip_40_expired_events_leave_the_disk_though_nobody_asks() {
    let mut server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let first = expiring(&author, now() + 3, 1);
    // The sweep may come a second late, so the clock that tells when to look is another event's.
    let clock = expiring(&author, now() + 6, 1);
    accept(&mut client, &first);
    accept(&mut client, &clock);
    eventually("both expire", || client.query(&[json!({})]).is_empty().then_some(()));
    assert_eq!(server.stop(), Some(0));
    let path = server.folder().path().join("data/relay/events");
    let store = Store::open(&path, Options::default()).expect("the server has let go");
    assert!(store.served().expect("readable") <= 1);
}

// ---- NIP-42 and NIP-70 ------------------------------------------------------------------------

fn protected(author: &Author, at: u64) -> Arc<SignedEvent> {
    author.note(at, &[&["-"]], "mine alone")
}

/// Offers a protected event; gives the challenge that came with the refusal.
fn challenge(client: &mut Client, event: &SignedEvent) -> String {
    challenge_for(client, event, event.json())
}

fn challenge_for(client: &mut Client, event: &SignedEvent, text: &str) -> String {
    client.send_text(&format!("[\"EVENT\",{text}]"));
    let mut challenge = None;
    let mut answer = None;
    while challenge.is_none() || answer.is_none() {
        let message = client.receive();
        match message[0].as_str() {
            Some("AUTH") => challenge = Some(message[1].as_str().expect("a challenge").to_owned()),
            Some("OK") => answer = Some(message),
            _ => panic!("unexpected {message}"),
        }
    }
    let refusal = json!(["OK", id(event), false, "auth-required: this event may only be published by its author"]);
    assert_eq!(answer, Some(refusal));
    challenge.expect("it came")
}

fn answer_to(author: &Author, challenge: &str, relay: &str, at: u64) -> Arc<SignedEvent> {
    author.sign(kinds::AUTH, at, &[&["relay", relay], &["challenge", challenge]], "")
}

fn authenticate(client: &mut Client, answer: &SignedEvent) -> (bool, String) {
    client.send_text(&format!("[\"AUTH\",{}]", answer.json()));
    let message = client.receive();
    assert_eq!((&message[0], &message[1]), (&json!("OK"), &json!(id(answer))), "{message}");
    (message[2].as_bool().expect("a flag"), message[3].as_str().expect("a text").to_owned())
}

#[test]
fn nip_70_the_author_who_authenticates_may_publish() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = protected(&author, THEN);
    let challenge = challenge(&mut client, &event);
    assert_eq!(client.query(&[json!({})]), NOTHING);
    // One challenge is enough for a connection.
    client.send_text(&format!("[\"EVENT\",{}]", protected(&author, THEN + 1).json()));
    assert_eq!(client.receive()[0], "OK");
    assert_eq!(authenticate(&mut client, &answer_to(&author, &challenge, &server.url(), now())), (true, String::new()));
    accept(&mut client, &event);
    let mut other = server.connect();
    assert_eq!(other.query(&[json!({})]), [id(&event)]);
    // What one connection has shown is not another's.
    refuse(&mut other, &protected(&author, THEN + 2), "auth-required: ");
    // Ordinary events need no proof.
    accept(&mut other, &author.note(THEN + 3, &[], ""));
}

#[test]
fn nip_70_somebody_else_may_not() {
    let server = open();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let event = protected(&author, THEN);
    let challenge = challenge(&mut client, &event);
    assert!(authenticate(&mut client, &answer_to(&other, &challenge, &server.url(), now())).0);
    refuse(&mut client, &event, "auth-required: ");
    accept(&mut client, &protected(&other, THEN));
    // A connection may show several keys.
    assert!(authenticate(&mut client, &answer_to(&author, &challenge, &server.url(), now())).0);
    accept(&mut client, &event);
    accept(&mut client, &protected(&other, THEN + 1));
}

#[test]
fn nip_42_wrong_answers() {
    let server = open();
    let author = Author::new(1);
    let event = protected(&author, THEN);
    let url = server.url();
    let mut other_connection = server.connect();
    let other_challenge = challenge(&mut other_connection, &event);
    let mut client = server.connect();
    // Before there is a challenge nothing can answer it.
    assert!(!authenticate(&mut client, &answer_to(&author, &other_challenge, &url, now())).0);
    let challenge = challenge(&mut client, &event);
    assert_ne!(challenge, other_challenge);
    let mut forged = answer_to(&Author::new(2), &challenge, &url, now()).event().clone();
    forged.pubkey = author.key();
    let relay_less = author.sign(kinds::AUTH, now(), &[&["challenge", &challenge]], "");
    let wrong_kind = author.sign(1, now(), &[&["relay", &url], &["challenge", &challenge]], "");
    for wrong in [
        answer_to(&author, "guess", &url, now()),
        answer_to(&author, "", &url, now()),
        answer_to(&author, &other_challenge, &url, now()),
        answer_to(&author, &challenge, "ws://elsewhere.example", now()),
        answer_to(&author, &challenge, &format!("{url}.evil.example"), now()),
        answer_to(&author, &challenge, &url, now() - 3_600),
        answer_to(&author, &challenge, &url, now() + 3_600),
        Arc::new(SignedEvent::from_trusted(forged)),
        relay_less,
        wrong_kind,
    ] {
        let (accepted, why) = authenticate(&mut client, &wrong);
        assert!(!accepted && why.starts_with("invalid: "), "{why}: {}", wrong.json());
        refuse(&mut client, &event, "auth-required: ");
    }
    // None of it spoils the right answer; a slash at the end and wss do not matter.
    let own = format!("{}/", url.replace("ws://", "wss://"));
    assert!(authenticate(&mut client, &answer_to(&author, &challenge, &own, now())).0);
    accept(&mut client, &event);
    // Answers are not things to publish.
    refuse(&mut client, &answer_to(&author, &challenge, &url, now()), "invalid: ");
}

/// Who is told to authenticate must be told how, however the tag was written.
#[test]
fn nip_70_the_challenge_comes_whatever_form_the_event_has() {
    let server = open();
    let author = Author::new(1);
    let event = protected(&author, THEN);
    for form in ["[ \"-\" ]", "[\n\"-\"]", "[\"\\u002d\"]"] {
        let text = event.json().replace("[\"-\"]", form);
        assert_ne!(text, event.json());
        let mut client = server.connect();
        client.socket.get_mut().set_read_timeout(Some(std::time::Duration::from_secs(5))).expect("an option");
        let challenge = challenge_for(&mut client, &event, &text);
        assert!(authenticate(&mut client, &answer_to(&author, &challenge, &server.url(), now())).0, "{form}");
    }
}

#[test]
fn nip_70_reposts_of_protected_events() {
    let server = open();
    let mut client = server.connect();
    let (author, other) = (Author::new(1), Author::new(2));
    let event = protected(&author, THEN);
    let open_event = author.note(THEN, &[], "for all");
    for kind in [6, 16] {
        refuse(&mut client, &other.sign(kind, THEN, &[], event.json()), "auth-required: ");
        accept(&mut client, &other.sign(kind, THEN, &[], open_event.json()));
        accept(&mut client, &other.sign(kind, THEN, &[], "{\"tags\":[[\"-\"]]}"));
    }
}

#[test]
fn nip_70_announcements_too() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let author = Author::new(1);
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("an address");
    let announcement = author.listed_with(&service, "r", THEN, vec![vec!["-".to_owned()]]);
    let challenge = challenge(&mut client, &announcement);
    let state = author.state("r", THEN, &[]);
    refuse(&mut client, &state, "invalid: no announcement exists");
    assert!(authenticate(&mut client, &answer_to(&author, &challenge, &server.url(), now())).0);
    assert!(client.publish(&announcement).1.starts_with("purgatory: won't"));
    assert!(client.publish(&state).1.starts_with("purgatory: won't"));
}

// ---- NIP-45 -----------------------------------------------------------------------------------

#[test]
fn nip_45_counts_what_a_question_would_find() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10")]);
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events: Vec<_> = (0..40).map(|nth| alice.note(THEN + nth, &[&["t", &(nth % 4).to_string()]], "")).collect();
    accept_all(&mut client, &events);
    accept(&mut client, &bob.sign(7, THEN, &[], ""));
    for (filters, expected) in [
        (vec![json!({})], 41),
        (vec![json!({"kinds": [1]})], 40),
        (vec![json!({"authors": [bob.hex()]})], 1),
        (vec![json!({"#t": ["0"]})], 10),
        (vec![json!({"#t": ["0", "3"]})], 20),
        // Filters are joined by or; what several match counts once.
        (vec![json!({"#t": ["0"]}), json!({"since": THEN + 36, "kinds": [1]})], 13),
        (vec![json!({"kinds": [1], "since": THEN + 10, "until": THEN + 19})], 10),
        (vec![json!({"kinds": [2]})], 0),
        (vec![json!({"ids": []})], 0),
    ] {
        assert_eq!(count(&mut client, &filters), expected, "{filters:?}");
    }
    client.send(&json!(["COUNT", "bad", {"search": "x"}]));
    let refusal = client.receive();
    assert_eq!((&refusal[0], &refusal[1]), (&json!("CLOSED"), &json!("bad")));
    assert!(refusal[2].as_str().expect("a reason").starts_with("unsupported: "), "{refusal}");
}

#[test]
fn nip_45_leaves_subscriptions_alone() {
    let server = open();
    let mut client = server.connect();
    client.subscribe("c", &[json!({})]);
    // The same name, but another namespace.
    assert_eq!(count(&mut client, &[json!({})]), 0);
    let mut publisher = server.connect();
    let event = Author::new(1).note(THEN, &[], "");
    accept(&mut publisher, &event);
    let live = client.receive();
    assert_eq!((&live[0], &live[1], &live[2]["id"]), (&json!("EVENT"), &json!("c"), &json!(id(&event))));
}

// ---- NIP-62 -----------------------------------------------------------------------------------

/// More than are removed in one transaction.
fn thousands(author: &Author) -> Vec<Arc<SignedEvent>> {
    (0..3_500).map(|nth| author.note(THEN + nth, &[&["t", "x"]], "")).collect()
}

#[test]
fn nip_62_thousands_of_events_are_gone_at_once() {
    let mut server = open();
    let mut client = server.connect();
    let (author, friend) = (Author::new(1), Author::new(2));
    accept_all(&mut client, &thousands(&author));
    let by_friend = friend.note(THEN, &[&["p", &author.hex()], &["t", "x"]], "about the author");
    let deletion = author.deletion(THEN + 5_000, &[&["e", &"ab".repeat(32)]]);
    let list = author.sign(10_002, THEN + 5_000, &[], "");
    let newer = author.note(THEN + 20_000, &[&["t", "x"]], "already newer");
    for event in [&by_friend, &deletion, &list, &newer] {
        accept(&mut client, event);
    }
    let vanish = author.vanish(THEN + 10_000, &["ALL_RELAYS"]);
    accept(&mut client, &vanish);

    let mine = json!({"authors": [author.hex()]});
    assert_eq!(client.query(slice::from_ref(&mine)), [id(&newer), id(&vanish)]);
    assert_eq!(count(&mut client, slice::from_ref(&mine)), 2);
    let mut left = [id(&newer), id(&vanish)];
    left.sort_unstable();
    assert_eq!(reconcile(&mut client, "n", &mine), left);
    assert_eq!(client.query(&[json!({"#t": ["x"]})]), [id(&newer), id(&by_friend)]);
    assert_eq!(client.query(&[json!({"kinds": [5, 10_002]})]), NOTHING);

    // The disk is emptied behind the marker; a crash does not undo any of it.
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    assert_eq!(client.query(slice::from_ref(&mine)), [id(&newer), id(&vanish)]);
    assert_eq!(count(&mut client, &[mine]), 2);
}

#[test]
fn nip_62_what_was_wrapped_for_the_author_goes_in_the_same_moment() {
    let server = open();
    let mut client = server.connect();
    let (author, friend) = (Author::new(1), Author::new(2));
    let wrap = |at, who: &Author| friend.sign(kinds::GIFT_WRAP, at, &[&["p", &who.hex()]], "wrapped");
    accept_all(&mut client, &thousands(&author));
    let (gone, newer, other) = (wrap(THEN, &author), wrap(THEN + 20_000, &author), wrap(THEN, &friend));
    accept_all(&mut client, &[gone, newer.clone(), other.clone()]);
    accept(&mut client, &author.vanish(THEN + 10_000, &["ALL_RELAYS"]));
    assert_eq!(client.query(&[json!({"kinds": [kinds::GIFT_WRAP]})]), [id(&newer), id(&other)]);
    assert_eq!(client.query(&[json!({"#p": [author.hex()]})]), [id(&newer)]);
}

#[test]
fn nip_62_what_vanished_cannot_be_sent_again() {
    let mut server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let events = thousands(&author);
    accept_all(&mut client, &events);
    accept(&mut client, &author.vanish(THEN + 10_000, &["ALL_RELAYS"]));
    // The oldest leave the disk last: they must not be taken for something that is still here.
    for event in [&events[0], &events[1], &events[3_499]] {
        refuse(&mut client, event, "invalid: this pubkey has requested to vanish");
    }
    let unseen = author.note(THEN + 10_000, &[], "never seen, of the request's own second");
    refuse(&mut client, &unseen, "invalid: this pubkey has requested to vanish");
    let welcome = author.note(THEN + 10_001, &[], "back again");
    accept(&mut client, &welcome);
    server.kill();
    let server = Server::start_in(server.folder(), &[("POLICY", "open")]);
    let mut client = server.connect();
    refuse(&mut client, &events[0], "invalid: this pubkey has requested to vanish");
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&welcome)]);
}

#[test]
fn nip_62_is_for_the_relays_it_names() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let event = author.note(THEN, &[], "");
    accept(&mut client, &event);
    refuse(&mut client, &author.vanish(THEN + 1, &[]), "invalid: ");
    let elsewhere = author.vanish(THEN + 1, &["wss://elsewhere.example"]);
    accept(&mut client, &elsewhere);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), [id(&event)]);
    let here = author.vanish(THEN + 2, &["wss://elsewhere.example", &format!("{}/", server.url())]);
    accept(&mut client, &here);
    assert_eq!(client.query(&[json!({"kinds": [1]})]), NOTHING);
    // The request cannot be taken back.
    accept(&mut client, &author.delete(THEN + 3, &[&here]));
    assert!(client.query(&[json!({"kinds": [kinds::VANISH]})]).contains(&id(&here)));
    refuse(&mut client, &event, "invalid: this pubkey has requested to vanish");
}

#[test]
fn nip_62_takes_repositories_and_what_is_held() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let (owner, maintainer, guest) = (Author::new(1), Author::new(2), Author::new(3));
    let repository = served_repository(&mut client, &server, &owner, &maintainer, "r");
    let (issue, foreign_issue) = (maintainer.issue(THEN, &repository), guest.issue(THEN, &repository));
    accept(&mut client, &issue);
    accept(&mut client, &foreign_issue);
    let state = maintainer.state("r", THEN, &[("refs/heads/main", &"ab".repeat(20))]);
    assert!(client.publish(&state).1.starts_with("purgatory: won't"));

    refuse(&mut client, &Author::new(9).vanish(THEN + 1, &["ALL_RELAYS"]), "restricted: ");
    refuse(&mut client, &maintainer.vanish(THEN + 1, &["wss://elsewhere.example"]), "restricted: ");
    let vanish = maintainer.vanish(THEN + 1, &[&server.url()]);
    accept(&mut client, &vanish);
    assert_eq!(client.query(&[json!({"authors": [maintainer.hex()]})]), [id(&vanish)]);
    assert_eq!(client.query(&[json!({"authors": [guest.hex()]})]), [id(&foreign_issue)]);
    for event in [&state, &issue, &maintainer.unlisted("r", THEN, &[])] {
        refuse(&mut client, event, "invalid: this pubkey has requested to vanish");
    }
    // The owner still names the maintainer, who may come back.
    accept(&mut client, &maintainer.unlisted("r", THEN + 2, &[]));
    // The owner goes as well: the held announcement is no anchor any more.
    accept(&mut client, &owner.vanish(THEN + 1, &["ALL_RELAYS"]));
    assert_eq!(client.query(&[json!({"kinds": [kinds::ANNOUNCEMENT]})]), NOTHING);
    refuse(&mut client, &maintainer.state("r", THEN + 3, &[]), "invalid: no announcement exists");
}

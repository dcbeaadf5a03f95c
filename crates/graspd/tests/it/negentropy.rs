//! NIP-77 over the websocket, with the `negentropy` crate as the client.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Rng;
use grasp_sim::signer::Author;
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::{Client, Server};

/// The base of the timestamps of all events.
const BASE_TIME: u64 = 1_700_000_000;

/// Maximal bytes of a message of the server, before hex encoding doubles them.
const SERVER_FRAME: usize = 60_000;

fn start_open_server() -> Server {
    Server::start(&[("POLICY", "open")])
}

/// Publishes many events in batches.
fn publish(client: &mut Client, events: &[Arc<SignedEvent>]) {
    for part in events.chunks(300) {
        for event in part {
            client.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in part {
            assert_eq!(client.receive(), json!(["OK", event.id.to_string(), true, ""]));
        }
    }
}

/// Returns `number` events, of which many have the same second.
fn notes(number: u64, seed: u64) -> Vec<Arc<SignedEvent>> {
    let mut rng = Rng::new(seed);
    let author = Author::new(1);
    (0..number).map(|nth| author.note(BASE_TIME + rng.below(1_000) as u64, &[], &format!("{seed} {nth}"))).collect()
}

/// The client side of one reconciliation.
struct ClientSession<'a> {
    name: &'a str,
    negentropy: Negentropy<'a, NegentropyStorageVector>,
    /// Maximal bytes of a message of the client; 0 means no limit.
    limit: u64,
    have: Vec<Id>,
    need: Vec<Id>,
    rounds: usize,
}

impl<'a> ClientSession<'a> {
    fn new<'e>(name: &'a str, events: impl IntoIterator<Item = &'e Arc<SignedEvent>>, limit: u64) -> Self {
        let mut storage = NegentropyStorageVector::new();
        for event in events {
            storage.insert(event.created_at.0, Id::from_byte_array(event.id.0)).expect("the storage is sealed");
        }
        storage.seal().expect("the storage is already sealed");
        let negentropy = Negentropy::owned(storage, limit).expect("invalid frame size limit");
        Self { name, negentropy, limit, have: Vec::new(), need: Vec::new(), rounds: 0 }
    }

    /// Returns the message that opens the reconciliation.
    fn open_message(&mut self, filter: &Value) -> Value {
        let message = self.negentropy.initiate().expect("the session is already initiated");
        json!(["NEG-OPEN", self.name, filter, hex(&message)])
    }

    /// Handles a response; returns the next message, or `None` at the end.
    fn handle_response(&mut self, response: &Value) -> Option<Value> {
        assert_eq!((&response[0], &response[1]), (&json!("NEG-MSG"), &json!(self.name)), "{response}");
        let bytes = unhex(response[2].as_str().expect("not hexadecimal"));
        assert!(bytes.len() <= SERVER_FRAME, "a frame of {} bytes", bytes.len());
        self.rounds += 1;
        assert!(self.rounds < 1_000, "the reconciliation does not end");
        let next = self.negentropy.reconcile_with_ids(&bytes, &mut self.have, &mut self.need);
        let next = next.expect("invalid negentropy message")?;
        assert!(self.limit == 0 || next.len() as u64 <= self.limit);
        Some(json!(["NEG-MSG", self.name, hex(&next)]))
    }

    /// Runs the reconciliation from beginning to end.
    fn run(mut self, client: &mut Client, filter: &Value) -> Self {
        let mut message = Some(self.open_message(filter));
        while let Some(next) = message {
            client.send(&next);
            message = self.handle_response(&client.receive());
        }
        client.send(&json!(["NEG-CLOSE", self.name]));
        self
    }

    /// Asserts the result: the events that only the client has, and those that only the server has.
    fn check<'e>(
        self,
        have: impl IntoIterator<Item = &'e Arc<SignedEvent>>,
        need: impl IntoIterator<Item = &'e Arc<SignedEvent>>,
        what: &str,
    ) {
        let learned = |ids: Vec<Id>| ids.iter().map(|id| hex(&id.to_bytes())).collect::<BTreeSet<_>>();
        assert!(learned(self.have) == ids(have), "{what}: what only the client has");
        assert!(learned(self.need) == ids(need), "{what}: what only the server has");
    }
}

fn ids<'e>(events: impl IntoIterator<Item = &'e Arc<SignedEvent>>) -> BTreeSet<String> {
    events.into_iter().map(|event| event.id.to_string()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("not hexadecimal")).collect()
}

/// An empty server and one with thousands of events, and clients with different sets.
#[test]
fn differences_are_found_exactly() {
    let server = start_open_server();
    let mut client = server.connect();
    let everything = json!({});
    let all = notes(6_000, 1);
    let (stored, unsent) = all.split_at(5_000);
    for limit in [0, 4_096] {
        ClientSession::new("n", [], limit).run(&mut client, &everything).check([], [], "both empty");
        ClientSession::new("n", stored, limit).run(&mut client, &everything).check(
            stored,
            [],
            "the server has nothing",
        );
    }
    publish(&mut client, stored);
    for limit in [0, 4_096] {
        let run = |events: &mut dyn Iterator<Item = &Arc<SignedEvent>>, client: &mut Client| {
            ClientSession::new("n", events, limit).run(client, &everything)
        };
        run(&mut [].iter(), &mut client).check([], stored, "the client has nothing");
        let equal = run(&mut stored.iter(), &mut client);
        assert!(limit > 0 || equal.rounds == 1, "{} rounds for equal sets", equal.rounds);
        equal.check([], [], "equal");
        run(&mut all.iter(), &mut client).check(unsent, [], "the client has more");
        run(&mut stored[..4_999].iter(), &mut client).check([], &stored[4_999..], "one is missing");
        let even = |events: &mut dyn Iterator<Item = usize>| events.map(|nth| &all[nth]).collect::<Vec<_>>();
        let (mine, missing) = (even(&mut (0..6_000).step_by(2)), even(&mut (1..5_000).step_by(2)));
        run(&mut mine.into_iter(), &mut client).check(unsent.iter().step_by(2), missing, "every other one");
        run(&mut unsent.iter(), &mut client).check(unsent, stored, "nothing in common");
    }
}

#[test]
fn filter_selects_the_compared_events() {
    let server = start_open_server();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let issues: Vec<_> = (0..200).map(|nth| alice.sign(kinds::ISSUE, BASE_TIME + nth, &[&["t", "x"]], "")).collect();
    let patches: Vec<_> = (0..200).map(|nth| bob.sign(kinds::PATCH, BASE_TIME + nth, &[], "")).collect();
    publish(&mut client, &issues);
    publish(&mut client, &patches);
    let mut check = |filter: Value, expected: Vec<&Arc<SignedEvent>>| {
        ClientSession::new("n", &issues[..50], 0).run(&mut client, &filter).check(
            issues[..50].iter().filter(|mine| !expected.contains(mine)),
            expected.iter().copied().filter(|theirs| !issues[..50].contains(theirs)),
            &filter.to_string(),
        );
    };
    check(json!({"kinds": [kinds::ISSUE]}), issues.iter().collect());
    check(json!({"kinds": [kinds::PATCH]}), patches.iter().collect());
    check(json!({"kinds": [kinds::PATCH, kinds::ISSUE]}), issues.iter().chain(&patches).collect());
    check(json!({"kinds": [1]}), vec![]);
    check(json!({"kinds": []}), vec![]);
    check(json!({"authors": [bob.hex()]}), patches.iter().collect());
    check(json!({"#t": ["x"]}), issues.iter().collect());
    check(
        json!({"kinds": [kinds::ISSUE], "since": BASE_TIME + 10, "until": BASE_TIME + 99}),
        issues[10..100].iter().collect(),
    );
    check(json!({"ids": [issues[0].id.to_string(), patches[0].id.to_string()]}), vec![&issues[0], &patches[0]]);
    // With a `limit`, the newest events. The only other limit is that on the number of items.
    check(json!({"kinds": [kinds::ISSUE], "limit": 20}), issues[180..].iter().collect());
}

#[test]
fn new_session_with_the_same_id_replaces_the_old_one() {
    let server = start_open_server();
    let mut client = server.connect();
    let all = notes(3_000, 2);
    publish(&mut client, &all);
    let everything = json!({});
    let mut old = ClientSession::new("n", &all[..100], 4_096);
    client.send(&old.open_message(&everything));
    assert!(old.handle_response(&client.receive()).is_some(), "the result does not fit into one message");
    // Opened twice without waiting: the first may be answered or not, the second must be.
    let patches = json!({"kinds": [kinds::PATCH]});
    client.send(&ClientSession::new("n", [], 0).open_message(&everything));
    let mut new = ClientSession::new("n", &all[..100], 0);
    client.send(&new.open_message(&patches));
    // The set of the new session is empty and its response short; that of the replaced one would be long.
    let mut response = client.receive();
    if response[2].as_str().is_some_and(|hex| hex.len() > 10_000) {
        response = client.receive();
    }
    let mut message = new.handle_response(&response);
    while let Some(next) = message {
        client.send(&next);
        message = new.handle_response(&client.receive());
    }
    new.check(&all[..100], [], "the new session");
    client.send(&json!(["NEG-CLOSE", "n"]));
    for _ in 0..2 {
        client.send(&json!(["NEG-MSG", "n", "6100000200"]));
        let response = client.receive();
        assert_eq!((&response[0], &response[1]), (&json!("NEG-ERR"), &json!("n")));
        assert!(response[2].as_str().expect("no reason").starts_with("closed: "), "{response}");
    }
}

#[test]
fn concurrent_sessions_are_independent() {
    let server = start_open_server();
    let all = notes(3_000, 3);
    let mut clients = [server.connect(), server.connect()];
    publish(&mut clients[0], &all);
    let everything = json!({});
    // Two sessions on each of two connections, with equal and with different filters; their messages alternate.
    let halves = [&all[..1_000], &all[2_000..], &all[500..2_500], &all[..0]];
    let mut sessions: Vec<ClientSession<'_>> =
        halves.iter().zip(["a", "b", "a", "b"]).map(|(half, name)| ClientSession::new(name, *half, 4_096)).collect();
    let filters = [everything.clone(), everything.clone(), everything.clone(), json!({"kinds": [1]})];
    let mut messages: Vec<Option<Value>> =
        sessions.iter_mut().zip(&filters).map(|(session, filter)| Some(session.open_message(filter))).collect();
    // A subscription with the same id is independent.
    clients[0].subscribe("a", &[json!({"limit": 0})]);
    while messages.iter().any(Option::is_some) {
        for (nth, (session, message)) in sessions.iter_mut().zip(&mut messages).enumerate() {
            if let Some(next) = message.take() {
                clients[nth / 2].send(&next);
                *message = session.handle_response(&clients[nth / 2].receive());
            }
        }
    }
    for (session, half) in sessions.into_iter().zip(halves) {
        session.check([], all.iter().filter(|event| !half.contains(event)), "concurrent");
    }
}

/// Two sessions with the same filter at the same time, and one that is opened after more events were stored.
#[test]
fn session_uses_the_snapshot_of_its_opening() {
    let server = start_open_server();
    let all = notes(3_000, 4);
    let (before, later) = all.split_at(2_000);
    let mut publisher = server.connect();
    publish(&mut publisher, before);
    let everything = json!({});
    let (mut one, mut two) = (server.connect(), server.connect());
    let mut early = ClientSession::new("n", [], 4_096);
    let mut same = ClientSession::new("n", &before[..500], 4_096);
    one.send(&early.open_message(&everything));
    two.send(&same.open_message(&everything));
    let mut early_message = early.handle_response(&one.receive());
    let mut same_message = same.handle_response(&two.receive());
    assert!(early_message.is_some() && same_message.is_some(), "the result does not fit into one message");

    publish(&mut publisher, later);
    let deletion = Author::new(1).delete(BASE_TIME, &[&before[0]]);
    publish(&mut publisher, std::slice::from_ref(&deletion));
    let after = ClientSession::new("n", before, 0).run(&mut publisher, &everything);
    after.check(&before[..1], later.iter().chain([&deletion]), "opened afterwards");

    while let Some(next) = early_message {
        one.send(&next);
        early_message = early.handle_response(&one.receive());
    }
    early.check([], before, "opened before, with nothing");
    while let Some(next) = same_message {
        two.send(&next);
        same_message = same.handle_response(&two.receive());
    }
    same.check([], &before[500..], "opened before, with something");
}

#[test]
fn held_events_are_not_compared() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("no address");
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let held = [owner.announcement(&service, "r", BASE_TIME, &[&maintainer]), owner.state("r", BASE_TIME, &[])];
    for event in &held {
        assert!(client.publish(event).1.starts_with("purgatory: "), "{}", event.json());
    }
    // A list of servers is served without a repository, and so is what references it.
    let list = maintainer.sign(kinds::GRASP_LIST, BASE_TIME, &[&["g", "wss://elsewhere.example"]], "");
    let note = maintainer.sign(kinds::ISSUE, BASE_TIME, &[&["e", &list.id.to_string()]], "");
    let served = [list, note];
    publish(&mut client, &served);
    for filter in [json!({}), json!({"kinds": [kinds::ANNOUNCEMENT, kinds::STATE, kinds::GRASP_LIST, kinds::ISSUE]})] {
        ClientSession::new("n", [], 0).run(&mut client, &filter).check([], &served, "with nothing");
        ClientSession::new("n", &held, 0).run(&mut client, &filter).check(&held, &served, "with the held events");
    }
}

#[test]
fn invalid_messages_end_the_session_and_not_the_connection() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_MAX_NEG_SESSIONS", "2")]);
    let mut client = server.connect();
    let all = notes(100, 5);
    publish(&mut client, &all);
    for (request, reason) in [
        (json!(["NEG-OPEN", "n", {}, "not hex"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "61000"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, ""]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "ff"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {}, "61000003"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {"ids": "x"}, "6100000200"]), "invalid: "),
        (json!(["NEG-OPEN", "n", {"search": "x"}, "6100000200"]), "unsupported: "),
        (json!(["NEG-MSG", "n", "6100000200"]), "closed: "),
    ] {
        client.send(&request);
        let response = client.receive();
        assert_eq!((&response[0], &response[1]), (&json!("NEG-ERR"), &json!("n")), "{request}");
        assert!(response[2].as_str().expect("no reason").starts_with(reason), "{request}: {response}");
    }
    // At most two sessions at a time; a replaced one does not count.
    let everything = json!({});
    for name in ["a", "b", "a"] {
        client.send(&ClientSession::new(name, [], 0).open_message(&everything));
        assert_eq!(client.receive()[0], "NEG-MSG");
    }
    client.send(&ClientSession::new("c", [], 0).open_message(&everything));
    let response = client.receive();
    assert_eq!((&response[0], &response[1]), (&json!("NEG-ERR"), &json!("c")));
    client.send(&json!(["NEG-CLOSE", "a"]));
    ClientSession::new("c", [], 0).run(&mut client, &everything).check([], &all, "after all");
}

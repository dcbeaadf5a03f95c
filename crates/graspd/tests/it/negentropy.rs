//! NIP-77 over the websocket, with the `negentropy` crate as the client.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Chance;
use grasp_sim::signer::Author;
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};

use crate::support::{Client, Server};

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

/// Bytes of one message of the server, before hex doubles them.
const SERVER_FRAME: usize = 60_000;

fn open() -> Server {
    Server::start(&[("POLICY", "open")])
}

/// Publishes many events, some hundred at a time.
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

/// Events of which many share a second.
fn notes(number: u64, seed: u64) -> Vec<Arc<SignedEvent>> {
    let mut chance = Chance::new(seed);
    let author = Author::new(1);
    (0..number).map(|nth| author.note(THEN + chance.below(1_000) as u64, &[], &format!("{seed} {nth}"))).collect()
}

/// The client's side of one reconciliation.
struct Party<'a> {
    name: &'a str,
    negentropy: Negentropy<'a, NegentropyStorageVector>,
    /// Bytes of one message of the client; zero for any number.
    limit: u64,
    have: Vec<Id>,
    need: Vec<Id>,
    rounds: usize,
}

impl<'a> Party<'a> {
    fn new<'e>(name: &'a str, events: impl IntoIterator<Item = &'e Arc<SignedEvent>>, limit: u64) -> Self {
        let mut storage = NegentropyStorageVector::new();
        for event in events {
            storage.insert(event.created_at.0, Id::from_byte_array(event.id.0)).expect("not sealed yet");
        }
        storage.seal().expect("sealed once");
        let negentropy = Negentropy::owned(storage, limit).expect("a limit that is allowed");
        Self { name, negentropy, limit, have: Vec::new(), need: Vec::new(), rounds: 0 }
    }

    /// The message that opens the reconciliation.
    fn opening(&mut self, filter: &Value) -> Value {
        let message = self.negentropy.initiate().expect("first use");
        json!(["NEG-OPEN", self.name, filter, hex(&message)])
    }

    /// Reads an answer; gives the next message, if there is more to say.
    fn answer(&mut self, answer: &Value) -> Option<Value> {
        assert_eq!((&answer[0], &answer[1]), (&json!("NEG-MSG"), &json!(self.name)), "{answer}");
        let bytes = unhex(answer[2].as_str().expect("hex"));
        assert!(bytes.len() <= SERVER_FRAME, "a frame of {} bytes", bytes.len());
        self.rounds += 1;
        assert!(self.rounds < 1_000, "it does not end");
        let next = self.negentropy.reconcile_with_ids(&bytes, &mut self.have, &mut self.need);
        let next = next.expect("the server speaks negentropy")?;
        assert!(self.limit == 0 || next.len() as u64 <= self.limit);
        Some(json!(["NEG-MSG", self.name, hex(&next)]))
    }

    /// From beginning to end.
    fn run(mut self, client: &mut Client, filter: &Value) -> Self {
        let mut message = Some(self.opening(filter));
        while let Some(next) = message {
            client.send(&next);
            message = self.answer(&client.receive());
        }
        client.send(&json!(["NEG-CLOSE", self.name]));
        self
    }

    /// Asserts what the client has learned: what only it has, and what only the server has.
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
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// A server with nothing, and one with thousands of events, against clients with all kinds of sets.
#[test]
fn differences_are_found_exactly() {
    let server = open();
    let mut client = server.connect();
    let everything = json!({});
    let all = notes(6_000, 1);
    let (stored, unsent) = all.split_at(5_000);
    for limit in [0, 4_096] {
        Party::new("n", [], limit).run(&mut client, &everything).check([], [], "both empty");
        Party::new("n", stored, limit).run(&mut client, &everything).check(stored, [], "the server has nothing");
    }
    publish(&mut client, stored);
    for limit in [0, 4_096] {
        let run = |events: &mut dyn Iterator<Item = &Arc<SignedEvent>>, client: &mut Client| {
            Party::new("n", events, limit).run(client, &everything)
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
fn a_filter_chooses_what_is_compared() {
    let server = open();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let issues: Vec<_> = (0..200).map(|nth| alice.sign(kinds::ISSUE, THEN + nth, &[&["t", "x"]], "")).collect();
    let patches: Vec<_> = (0..200).map(|nth| bob.sign(kinds::PATCH, THEN + nth, &[], "")).collect();
    publish(&mut client, &issues);
    publish(&mut client, &patches);
    let mut check = |filter: Value, expected: Vec<&Arc<SignedEvent>>| {
        Party::new("n", &issues[..50], 0).run(&mut client, &filter).check(
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
    check(json!({"kinds": [kinds::ISSUE], "since": THEN + 10, "until": THEN + 99}), issues[10..100].iter().collect());
    check(json!({"ids": [issues[0].id.to_string(), patches[0].id.to_string()]}), vec![&issues[0], &patches[0]]);
    // The newest, if so many are asked for; there is no other limit than that on the number of items.
    check(json!({"kinds": [kinds::ISSUE], "limit": 20}), issues[180..].iter().collect());
}

#[test]
fn a_new_reconciliation_under_the_same_name_replaces_the_old_one() {
    let server = open();
    let mut client = server.connect();
    let all = notes(3_000, 2);
    publish(&mut client, &all);
    let everything = json!({});
    let mut old = Party::new("n", &all[..100], 4_096);
    client.send(&old.opening(&everything));
    assert!(old.answer(&client.receive()).is_some(), "so much does not fit into one message");
    // Opened twice in one breath: the first may be answered or not, the second is.
    let patches = json!({"kinds": [kinds::PATCH]});
    client.send(&Party::new("n", [], 0).opening(&everything));
    let mut new = Party::new("n", &all[..100], 0);
    client.send(&new.opening(&patches));
    // The set of the new one is empty, and the answer to it short; that to the replaced one would be long.
    let mut answer = client.receive();
    if answer[2].as_str().is_some_and(|hex| hex.len() > 10_000) {
        answer = client.receive();
    }
    let mut message = new.answer(&answer);
    while let Some(next) = message {
        client.send(&next);
        message = new.answer(&client.receive());
    }
    new.check(&all[..100], [], "the new one");
    client.send(&json!(["NEG-CLOSE", "n"]));
    for _ in 0..2 {
        client.send(&json!(["NEG-MSG", "n", "6100000200"]));
        let answer = client.receive();
        assert_eq!((&answer[0], &answer[1]), (&json!("NEG-ERR"), &json!("n")));
        assert!(answer[2].as_str().expect("a reason").starts_with("closed: "), "{answer}");
    }
}

#[test]
fn reconciliations_side_by_side_do_not_disturb_each_other() {
    let server = open();
    let all = notes(3_000, 3);
    let mut clients = [server.connect(), server.connect()];
    publish(&mut clients[0], &all);
    let everything = json!({});
    // Two on each connection, from two connections, of the same filter and of another; message by message in turn.
    let halves = [&all[..1_000], &all[2_000..], &all[500..2_500], &all[..0]];
    let mut parties: Vec<Party<'_>> =
        halves.iter().zip(["a", "b", "a", "b"]).map(|(half, name)| Party::new(name, *half, 4_096)).collect();
    let filters = [everything.clone(), everything.clone(), everything.clone(), json!({"kinds": [1]})];
    let mut messages: Vec<Option<Value>> =
        parties.iter_mut().zip(&filters).map(|(party, filter)| Some(party.opening(filter))).collect();
    // A subscription of the same name is something else.
    clients[0].subscribe("a", &[json!({"limit": 0})]);
    while messages.iter().any(Option::is_some) {
        for (nth, (party, message)) in parties.iter_mut().zip(&mut messages).enumerate() {
            if let Some(next) = message.take() {
                clients[nth / 2].send(&next);
                *message = party.answer(&clients[nth / 2].receive());
            }
        }
    }
    for (party, half) in parties.into_iter().zip(halves) {
        party.check([], all.iter().filter(|event| !half.contains(event)), "side by side");
    }
}

/// Two who ask the same at the same time, and one who asks when there is more.
#[test]
fn a_reconciliation_sees_the_moment_in_which_it_was_opened() {
    let server = open();
    let all = notes(3_000, 4);
    let (before, later) = all.split_at(2_000);
    let mut publisher = server.connect();
    publish(&mut publisher, before);
    let everything = json!({});
    let (mut one, mut two) = (server.connect(), server.connect());
    let mut early = Party::new("n", [], 4_096);
    let mut same = Party::new("n", &before[..500], 4_096);
    one.send(&early.opening(&everything));
    two.send(&same.opening(&everything));
    let mut early_message = early.answer(&one.receive());
    let mut same_message = same.answer(&two.receive());
    assert!(early_message.is_some() && same_message.is_some(), "so much does not fit into one message");

    publish(&mut publisher, later);
    let deletion = Author::new(1).delete(THEN, &[&before[0]]);
    publish(&mut publisher, std::slice::from_ref(&deletion));
    let after = Party::new("n", before, 0).run(&mut publisher, &everything);
    after.check(&before[..1], later.iter().chain([&deletion]), "opened afterwards");

    while let Some(next) = early_message {
        one.send(&next);
        early_message = early.answer(&one.receive());
    }
    early.check([], before, "opened before, with nothing");
    while let Some(next) = same_message {
        two.send(&next);
        same_message = same.answer(&two.receive());
    }
    same.check([], &before[500..], "opened before, with something");
}

#[test]
fn held_events_are_not_compared() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let mut client = server.connect();
    let service = ServiceAddress::new(&server.address.to_string(), "").expect("an address");
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let held = [owner.listed(&service, "r", THEN, &[&maintainer]), owner.state("r", THEN, &[])];
    for event in &held {
        assert!(client.publish(event).1.starts_with("purgatory: "), "{}", event.json());
    }
    let served = [maintainer.unlisted("r", THEN, &[]), maintainer.issue(THEN, &maintainer.repo("r"))];
    publish(&mut client, &served);
    for filter in [json!({}), json!({"kinds": [kinds::ANNOUNCEMENT, kinds::STATE, kinds::ISSUE]})] {
        Party::new("n", [], 0).run(&mut client, &filter).check([], &served, "with nothing");
        Party::new("n", &held, 0).run(&mut client, &filter).check(&held, &served, "with what is held");
    }
}

#[test]
fn mistakes_end_the_reconciliation_and_not_the_connection() {
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
        let answer = client.receive();
        assert_eq!((&answer[0], &answer[1]), (&json!("NEG-ERR"), &json!("n")), "{request}");
        assert!(answer[2].as_str().expect("a reason").starts_with(reason), "{request}: {answer}");
    }
    // At most two at a time, and a replaced one does not count.
    let everything = json!({});
    for name in ["a", "b", "a"] {
        client.send(&Party::new(name, [], 0).opening(&everything));
        assert_eq!(client.receive()[0], "NEG-MSG");
    }
    client.send(&Party::new("c", [], 0).opening(&everything));
    let answer = client.receive();
    assert_eq!((&answer[0], &answer[1]), (&json!("NEG-ERR"), &json!("c")));
    client.send(&json!(["NEG-CLOSE", "a"]));
    Party::new("c", [], 0).run(&mut client, &everything).check([], &all, "after all");
}

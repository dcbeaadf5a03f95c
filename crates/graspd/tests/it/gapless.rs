//! Whoever subscribes while others publish gets every event exactly once: stored before EOSE or live after it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use grasp_core::nostr::SignedEvent;
use grasp_sim::random::Chance;
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::{Client, Server};

const EVENTS: usize = 3_000;
const CONNECTIONS: usize = 20;

/// How many events the writer sends before it reads their answers.
const BREATH: usize = 100;

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

fn server() -> Server {
    Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000")])
}

/// Events in no order of time, tagged in turn as odd and even.
fn events(chance: &mut Chance) -> Vec<Arc<SignedEvent>> {
    let author = Author::new(1);
    let parity = ["even", "odd"];
    (0..EVENTS)
        .map(|nth| author.note(THEN + chance.below(500) as u64, &[&["t", parity[nth % 2]]], &nth.to_string()))
        .collect()
}

/// One subscriber's part in the game.
struct Part {
    client: Client,
    /// Says when to begin.
    begin: Receiver<()>,
    complete: Completion,
}

/// A subscriber's word that everything that should come has come; or, when it gives up, that it has not.
struct Completion(Sender<bool>);

impl Drop for Completion {
    fn drop(&mut self) {
        if thread::panicking() {
            // The game may be over already.
            let _ = self.0.send(false);
        }
    }
}

/// Publishes everything, a breath at a time, and lets a subscriber begin when as many events as it waits for have been
/// answered.
fn publish_all(writer: &mut Client, events: &[Arc<SignedEvent>], waiting: &mut Vec<(usize, Sender<()>)>) {
    let mut answered = 0;
    for breath in events.chunks(BREATH) {
        for event in breath {
            writer.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in breath {
            assert_eq!(writer.receive(), json!(["OK", event.id.to_string(), true, ""]));
            answered += 1;
            waiting.retain(|(when, go)| *when >= answered || go.send(()).is_err());
        }
    }
}

/// Publishes all events while subscribers begin at random moments; when all of them have what they should have, one last
/// event goes out, behind which nothing more may be on its way.
fn play(seed: u64, subscriber: fn(Part, &[Arc<SignedEvent>], &SignedEvent)) {
    let mut chance = Chance::new(seed);
    let mut server = server();
    let events = events(&mut chance);
    let last = Author::new(2).note(THEN, &[&["t", "even"], &["t", "odd"]], "the last");
    let (complete, completed) = channel();
    thread::scope(|scope| {
        // A subscriber begins when so many events have been answered.
        let mut waiting: Vec<(usize, Sender<()>)> = Vec::new();
        for _ in 0..CONNECTIONS {
            let (go, begin) = channel();
            waiting.push((chance.below(EVENTS), go));
            let part = Part { client: server.connect(), begin, complete: Completion(complete.clone()) };
            let (events, last) = (&events, &last);
            scope.spawn(move || subscriber(part, events, last));
        }
        let mut writer = server.connect();
        publish_all(&mut writer, &events, &mut waiting);
        assert_eq!(waiting.len(), 0);
        for _ in 0..CONNECTIONS {
            if !completed.recv().expect("every subscriber says something") {
                // The others need not wait for what will not come.
                server.kill();
                panic!("a subscriber did not get what it should");
            }
        }
        assert_eq!(writer.publish(&last), (true, String::new()));
    });
}

/// A subscription and what it must be sent.
struct Expected {
    name: &'static str,
    wanted: HashSet<String>,
    /// What earlier questions under the same name asked for. It may come, but never after something that is wanted.
    replaced: HashSet<String>,
    /// How often it was asked under this name: so many EOSEs there may be, and one there must be.
    questions: usize,
}

impl Expected {
    fn new(name: &'static str, wanted: HashSet<String>) -> Self {
        Self { name, wanted, replaced: HashSet::new(), questions: 1 }
    }
}

/// What one subscription has been sent.
#[derive(Default)]
struct Heard {
    ids: HashSet<String>,
    eose: usize,
}

impl Heard {
    fn event(&mut self, expected: &Expected, id: &str) {
        let name = expected.name;
        if expected.replaced.contains(id) {
            assert!(self.ids.is_empty(), "{name} goes on after it was replaced");
            return;
        }
        assert!(expected.wanted.contains(id), "{name} did not ask for {id}");
        assert!(self.ids.insert(id.to_owned()), "{name} got {id} twice");
    }
}

fn ids<'a>(events: impl Iterator<Item = &'a Arc<SignedEvent>>) -> HashSet<String> {
    events.map(|event| event.id.to_string()).collect()
}

/// Follows subscriptions until each has what it should have, and then until the last event.
fn follow(part: Part, last: &SignedEvent, expected: &[Expected]) {
    let Part { mut client, complete, .. } = part;
    let last = last.id.to_string();
    let mut heard: Vec<Heard> = expected.iter().map(|_| Heard::default()).collect();
    let mut ended = HashSet::new();
    let mut told = false;
    while ended.len() < expected.len() {
        let message = client.receive();
        let place =
            expected.iter().position(|expected| message[1] == expected.name).expect("a name that is subscribed");
        let id = message[2]["id"].as_str();
        match (message[0].as_str(), id) {
            (Some("EVENT"), Some(id)) if id == last => assert!(ended.insert(place), "the last came twice"),
            (Some("EVENT"), Some(id)) => heard[place].event(&expected[place], id),
            (Some("EOSE"), None) => heard[place].eose += 1,
            _ => panic!("unexpected {message}"),
        }
        let done = |(heard, expected): (&Heard, &Expected)| heard.eose > 0 && heard.ids.len() == expected.wanted.len();
        if !told && heard.iter().zip(expected).all(done) {
            told = true;
            complete.0.send(true).expect("somebody waits");
        }
    }
    for (heard, expected) in heard.iter().zip(expected) {
        assert!((1..=expected.questions).contains(&heard.eose), "{}: {} times EOSE", expected.name, heard.eose);
    }
}

#[test]
fn one_subscription_on_each_connection() {
    play(1, |mut part, events, last| {
        part.begin.recv().expect("the writer says when");
        part.client.send(&json!(["REQ", "all", {"kinds": [1]}]));
        follow(part, last, &[Expected::new("all", ids(events.iter()))]);
    });
}

#[test]
fn several_subscriptions_on_each_connection() {
    play(2, |mut part, events, last| {
        part.begin.recv().expect("the writer says when");
        let authors = [Author::new(1).hex(), Author::new(2).hex()];
        let all = || ids(events.iter());
        let (even, odd) = (ids(events.iter().step_by(2)), ids(events.iter().skip(1).step_by(2)));
        // Filters that overlap, from several indexes, and more questions than run at the same time on one connection.
        let questions = [
            (vec![json!({})], Expected::new("all", all())),
            (vec![json!({"#t": ["even"]})], Expected::new("even", even)),
            (vec![json!({"#t": ["odd"]}), json!({"#t": ["odd"], "kinds": [1]})], Expected::new("odd", odd)),
            (vec![json!({"authors": authors}), json!({"kinds": [1]})], Expected::new("author", all())),
            (vec![json!({"kinds": [1, 2, 3]})], Expected::new("kind", all())),
            (vec![json!({"#t": ["odd"]}), json!({"#t": ["even"]})], Expected::new("both", all())),
        ];
        for (filters, expected) in &questions {
            let mut request = vec![json!("REQ"), json!(expected.name)];
            request.extend_from_slice(filters);
            part.client.send(&Value::Array(request));
        }
        follow(part, last, &questions.map(|(_, expected)| expected));
    });
}

#[test]
fn a_subscription_that_was_replaced() {
    play(3, |mut part, events, last| {
        // One that has long been open when it is replaced, and one that has hardly begun.
        part.client.send(&json!(["REQ", "settled", {"#t": ["odd"]}]));
        part.begin.recv().expect("the writer says when");
        for _ in 0..5 {
            part.client.send(&json!(["REQ", "hasty", {"#t": ["odd"]}]));
        }
        for name in ["settled", "hasty"] {
            part.client.send(&json!(["REQ", name, {"#t": ["even"]}]));
        }
        let expected = |name, questions| Expected {
            name,
            wanted: ids(events.iter().step_by(2)),
            replaced: ids(events.iter().skip(1).step_by(2)),
            questions,
        };
        follow(part, last, &[expected("settled", 2), expected("hasty", 6)]);
    });
}

#[test]
fn a_subscription_that_was_closed_and_opened_again() {
    play(4, |mut part, events, last| {
        part.begin.recv().expect("the writer says when");
        for _ in 0..3 {
            part.client.send(&json!(["REQ", "again", {"#t": ["odd"]}]));
            part.client.send(&json!(["CLOSE", "again"]));
        }
        part.client.send(&json!(["REQ", "again", {"kinds": [1], "#t": ["even"]}]));
        let expected = Expected {
            name: "again",
            wanted: ids(events.iter().step_by(2)),
            replaced: ids(events.iter().skip(1).step_by(2)),
            questions: 4,
        };
        follow(part, last, &[expected]);
    });
}

/// Things are replaced under the eyes of those who are reading them: whatever moment a subscriber begins in, in the end
/// it has been sent the newest version of everything, as the last version and once.
#[test]
fn what_is_replaced_while_it_is_read() {
    const THINGS: u64 = 1_500;
    const VERSIONS: u64 = 3;
    let server = server();
    let author = Author::new(1);
    let version = |thing: u64, nth: u64| author.sign(30_023, THEN + nth, &[&["d", &thing.to_string()]], "");
    let versions: Vec<Arc<SignedEvent>> = (0..VERSIONS)
        .flat_map(|nth| (0..THINGS).map(move |thing| (thing, nth)))
        .map(|(thing, nth)| version(thing, nth))
        .collect();
    let newest = ids(versions[versions.len() - THINGS as usize..].iter());
    // One question is answered from one long range, the other from many short ones, which are all begun before the first
    // of them is read.
    let names: Vec<String> = (0..THINGS).map(|thing| thing.to_string()).collect();
    let filters = [json!({"kinds": [30_023]}), json!({"#d": names})];
    let mut chance = Chance::new(5);
    thread::scope(|scope| {
        let mut waiting: Vec<(usize, Sender<()>)> = Vec::new();
        for nth in 0..CONNECTIONS {
            let (go, begin) = channel();
            waiting.push((chance.below(versions.len()), go));
            let (mut client, newest, filter) = (server.connect(), &newest, &filters[nth % 2]);
            scope.spawn(move || {
                begin.recv().expect("the writer says when");
                client.send(&json!(["REQ", "all", filter]));
                let mut seen = HashSet::new();
                let mut latest = std::collections::HashMap::new();
                let mut eose = 0;
                while eose == 0 || !newest.is_subset(&seen) {
                    let message = client.receive();
                    if message[0] == "EOSE" {
                        eose += 1;
                        continue;
                    }
                    assert_eq!(message[0], "EVENT", "{message}");
                    let event = &message[2];
                    assert!(seen.insert(event["id"].as_str().expect("an id").to_owned()), "twice: {message}");
                    let (thing, at) = (event["tags"][0][1].to_string(), event["created_at"].as_u64().expect("a time"));
                    let before = latest.insert(thing, at);
                    assert!(before.is_none_or(|before| before < at), "an older version after a newer one: {message}");
                }
                assert_eq!(eose, 1);
            });
        }
        publish_all(&mut server.connect(), &versions, &mut waiting);
    });
}

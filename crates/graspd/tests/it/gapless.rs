//! A client that subscribes while others publish receives every event exactly once, either stored before EOSE or live
//! after it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use grasp_core::nostr::SignedEvent;
use grasp_sim::random::Rng;
use grasp_sim::signer::Author;
use serde_json::{Value, json};

use crate::support::{Client, Server};

const EVENTS: usize = 3_000;
const CONNECTIONS: usize = 20;

/// Number of events that the publisher sends before it reads their answers.
const BATCH: usize = 100;

/// The time, in the past, from which tests count the `created_at` of their events.
const BASE_TIME: u64 = 1_700_000_000;

fn start_server() -> Server {
    Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000")])
}

/// Returns events with random times, tagged alternately `even` and `odd`.
fn events(rng: &mut Rng) -> Vec<Arc<SignedEvent>> {
    let author = Author::new(1);
    let parity = ["even", "odd"];
    (0..EVENTS)
        .map(|nth| author.note(BASE_TIME + rng.below(500) as u64, &[&["t", parity[nth % 2]]], &nth.to_string()))
        .collect()
}

/// A client that subscribes when it receives a start message.
struct Subscriber {
    client: Client,
    /// Receives a message when the client should subscribe.
    start: Receiver<()>,
    completion: Completion,
}

/// Reports `true` when a subscriber has received all expected events, or `false` if it panics before.
struct Completion(Sender<bool>);

impl Drop for Completion {
    fn drop(&mut self) {
        if thread::panicking() {
            // The test may have ended already.
            let _ = self.0.send(false);
        }
    }
}

/// Publishes all events in batches. Starts each waiting subscriber as soon as its number of events has been answered.
fn publish_all(publisher: &mut Client, events: &[Arc<SignedEvent>], waiting: &mut Vec<(usize, Sender<()>)>) {
    let mut answered = 0;
    for batch in events.chunks(BATCH) {
        for event in batch {
            publisher.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in batch {
            assert_eq!(publisher.receive(), json!(["OK", event.id.to_string(), true, ""]));
            answered += 1;
            waiting.retain(|(count, start)| *count >= answered || start.send(()).is_err());
        }
    }
}

/// Publishes all events while clients subscribe at random moments. When all of them have received the expected events,
/// one last event is published: no other event may arrive before it.
fn run(seed: u64, subscribe: fn(Subscriber, &[Arc<SignedEvent>], &SignedEvent)) {
    let mut rng = Rng::new(seed);
    let mut server = start_server();
    let events = events(&mut rng);
    let last = Author::new(2).note(BASE_TIME, &[&["t", "even"], &["t", "odd"]], "the last");
    let (sender, completions) = channel();
    thread::scope(|scope| {
        // Subscribers that have not started, with the number of answered events at which they start.
        let mut waiting: Vec<(usize, Sender<()>)> = Vec::new();
        for _ in 0..CONNECTIONS {
            let (start_sender, start) = channel();
            waiting.push((rng.below(EVENTS), start_sender));
            let subscriber = Subscriber { client: server.connect(), start, completion: Completion(sender.clone()) };
            let (events, last) = (&events, &last);
            scope.spawn(move || subscribe(subscriber, events, last));
        }
        let mut publisher = server.connect();
        publish_all(&mut publisher, &events, &mut waiting);
        assert_eq!(waiting.len(), 0);
        for _ in 0..CONNECTIONS {
            if !completions.recv().expect("every subscriber reports its completion") {
                // Ends the other subscribers, which would wait for the last event.
                server.kill();
                panic!("a subscriber did not receive the expected events");
            }
        }
        assert_eq!(publisher.publish(&last), (true, String::new()));
    });
}

/// A subscription and the events that it must receive.
struct ExpectedSubscription {
    name: &'static str,
    ids: HashSet<String>,
    /// Events of earlier requests with the same subscription id. They may arrive, but not after an event of the last
    /// request.
    replaced: HashSet<String>,
    /// Number of requests with this subscription id: the maximum number of EOSE messages. The minimum is one.
    requests: usize,
}

impl ExpectedSubscription {
    fn new(name: &'static str, ids: HashSet<String>) -> Self {
        Self { name, ids, replaced: HashSet::new(), requests: 1 }
    }
}

/// The messages that one subscription has received.
#[derive(Default)]
struct ReceivedMessages {
    ids: HashSet<String>,
    eose: usize,
}

impl ReceivedMessages {
    fn add_event(&mut self, expected: &ExpectedSubscription, id: &str) {
        let name = expected.name;
        if expected.replaced.contains(id) {
            assert!(self.ids.is_empty(), "{name} received an event of a replaced request");
            return;
        }
        assert!(expected.ids.contains(id), "{name} received {id}, which does not match");
        assert!(self.ids.insert(id.to_owned()), "{name} received {id} twice");
    }
}

fn ids<'a>(events: impl Iterator<Item = &'a Arc<SignedEvent>>) -> HashSet<String> {
    events.map(|event| event.id.to_string()).collect()
}

/// Reads until each subscription has received its expected events, and then until the last event.
fn receive_all(subscriber: Subscriber, last: &SignedEvent, expected: &[ExpectedSubscription]) {
    let Subscriber { mut client, completion, .. } = subscriber;
    let last = last.id.to_string();
    let mut received: Vec<ReceivedMessages> = expected.iter().map(|_| ReceivedMessages::default()).collect();
    let mut ended = HashSet::new();
    let mut is_reported = false;
    while ended.len() < expected.len() {
        let message = client.receive();
        let index = expected.iter().position(|expected| message[1] == expected.name).expect("unknown subscription");
        let id = message[2]["id"].as_str();
        match (message[0].as_str(), id) {
            (Some("EVENT"), Some(id)) if id == last => {
                assert!(ended.insert(index), "the last event was received twice")
            }
            (Some("EVENT"), Some(id)) => received[index].add_event(&expected[index], id),
            (Some("EOSE"), None) => received[index].eose += 1,
            _ => panic!("unexpected {message}"),
        }
        let is_complete = |(received, expected): (&ReceivedMessages, &ExpectedSubscription)| {
            received.eose > 0 && received.ids.len() == expected.ids.len()
        };
        if !is_reported && received.iter().zip(expected).all(is_complete) {
            is_reported = true;
            completion.0.send(true).expect("the test has ended");
        }
    }
    for (received, expected) in received.iter().zip(expected) {
        assert!((1..=expected.requests).contains(&received.eose), "{}: {} times EOSE", expected.name, received.eose);
    }
}

#[test]
fn one_subscription_per_connection() {
    run(1, |mut subscriber, events, last| {
        subscriber.start.recv().expect("the publisher starts every subscriber");
        subscriber.client.send(&json!(["REQ", "all", {"kinds": [1]}]));
        receive_all(subscriber, last, &[ExpectedSubscription::new("all", ids(events.iter()))]);
    });
}

#[test]
fn several_subscriptions_per_connection() {
    run(2, |mut subscriber, events, last| {
        subscriber.start.recv().expect("the publisher starts every subscriber");
        let authors = [Author::new(1).hex(), Author::new(2).hex()];
        let all = || ids(events.iter());
        let (even, odd) = (ids(events.iter().step_by(2)), ids(events.iter().skip(1).step_by(2)));
        // Overlapping filters that use several indexes, and more requests than one connection runs at the same time.
        let requests = [
            (vec![json!({})], ExpectedSubscription::new("all", all())),
            (vec![json!({"#t": ["even"]})], ExpectedSubscription::new("even", even)),
            (vec![json!({"#t": ["odd"]}), json!({"#t": ["odd"], "kinds": [1]})], ExpectedSubscription::new("odd", odd)),
            (vec![json!({"authors": authors}), json!({"kinds": [1]})], ExpectedSubscription::new("author", all())),
            (vec![json!({"kinds": [1, 2, 3]})], ExpectedSubscription::new("kind", all())),
            (vec![json!({"#t": ["odd"]}), json!({"#t": ["even"]})], ExpectedSubscription::new("both", all())),
        ];
        for (filters, expected) in &requests {
            let mut request = vec![json!("REQ"), json!(expected.name)];
            request.extend_from_slice(filters);
            subscriber.client.send(&Value::Array(request));
        }
        receive_all(subscriber, last, &requests.map(|(_, expected)| expected));
    });
}

#[test]
fn replaced_subscription_receives_events_of_the_last_request() {
    run(3, |mut subscriber, events, last| {
        // One subscription that has been open for a while when it is replaced, and one that has just begun.
        subscriber.client.send(&json!(["REQ", "long", {"#t": ["odd"]}]));
        subscriber.start.recv().expect("the publisher starts every subscriber");
        for _ in 0..5 {
            subscriber.client.send(&json!(["REQ", "short", {"#t": ["odd"]}]));
        }
        for name in ["long", "short"] {
            subscriber.client.send(&json!(["REQ", name, {"#t": ["even"]}]));
        }
        let expected = |name, requests| ExpectedSubscription {
            name,
            ids: ids(events.iter().step_by(2)),
            replaced: ids(events.iter().skip(1).step_by(2)),
            requests,
        };
        receive_all(subscriber, last, &[expected("long", 2), expected("short", 6)]);
    });
}

#[test]
fn reopened_subscription_receives_events_of_the_last_request() {
    run(4, |mut subscriber, events, last| {
        subscriber.start.recv().expect("the publisher starts every subscriber");
        for _ in 0..3 {
            subscriber.client.send(&json!(["REQ", "again", {"#t": ["odd"]}]));
            subscriber.client.send(&json!(["CLOSE", "again"]));
        }
        subscriber.client.send(&json!(["REQ", "again", {"kinds": [1], "#t": ["even"]}]));
        let expected = ExpectedSubscription {
            name: "again",
            ids: ids(events.iter().step_by(2)),
            replaced: ids(events.iter().skip(1).step_by(2)),
            requests: 4,
        };
        receive_all(subscriber, last, &[expected]);
    });
}

/// Replaceable events are replaced while clients read them: every client receives the newest version of each coordinate
/// once, and no older version after it.
#[test]
fn newest_versions_are_received_while_events_are_replaced() {
    const COORDINATES: u64 = 1_500;
    const VERSIONS: u64 = 3;
    let server = start_server();
    let author = Author::new(1);
    let version =
        |coordinate: u64, nth: u64| author.sign(30_023, BASE_TIME + nth, &[&["d", &coordinate.to_string()]], "");
    let versions: Vec<Arc<SignedEvent>> = (0..VERSIONS)
        .flat_map(|nth| (0..COORDINATES).map(move |coordinate| (coordinate, nth)))
        .map(|(coordinate, nth)| version(coordinate, nth))
        .collect();
    let newest = ids(versions[versions.len() - COORDINATES as usize..].iter());
    // One filter is answered from one long index range, the other from many short ones, which are all opened before the
    // first is read.
    let names: Vec<String> = (0..COORDINATES).map(|coordinate| coordinate.to_string()).collect();
    let filters = [json!({"kinds": [30_023]}), json!({"#d": names})];
    let mut rng = Rng::new(5);
    thread::scope(|scope| {
        let mut waiting: Vec<(usize, Sender<()>)> = Vec::new();
        for nth in 0..CONNECTIONS {
            let (start_sender, start) = channel();
            waiting.push((rng.below(versions.len()), start_sender));
            let (mut client, newest, filter) = (server.connect(), &newest, &filters[nth % 2]);
            scope.spawn(move || {
                start.recv().expect("the publisher starts every subscriber");
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
                    assert!(
                        seen.insert(event["id"].as_str().expect("event has an id").to_owned()),
                        "received twice: {message}"
                    );
                    let (coordinate, at) =
                        (event["tags"][0][1].to_string(), event["created_at"].as_u64().expect("event has a time"));
                    let before = latest.insert(coordinate, at);
                    assert!(before.is_none_or(|before| before < at), "an older version after a newer one: {message}");
                }
                assert_eq!(eose, 1);
            });
        }
        publish_all(&mut server.connect(), &versions, &mut waiting);
    });
}

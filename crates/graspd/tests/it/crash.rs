//! Kills the relay with SIGKILL while clients publish: every event that was acknowledged with `OK true` is there
//! afterwards, once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use grasp_core::nostr::{SignedEvent, kinds, supersedes};
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Rng;
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, Server};

/// Kills per test.
const ROUNDS: usize = 10;
const CONNECTIONS: usize = 4;

/// Number of unanswered events per connection.
const MAX_UNANSWERED: usize = 60;

/// The time, in the past, from which tests count the `created_at` of their events.
const BASE_TIME: u64 = 1_700_000_000;

/// The events that one connection publishes in one round, in order.
type Script = Vec<Arc<SignedEvent>>;

/// An event that was answered with `OK true`, and the text of the `OK` message.
type Acknowledged = (Arc<SignedEvent>, String);

/// Publishes a script with several events in flight and sends the acknowledged ones to `results`, until the script or
/// the server has ended.
fn publish(mut client: Client, script: &Script, results: &Sender<Acknowledged>) {
    let by_id: HashMap<String, &Arc<SignedEvent>> = script.iter().map(|event| (event.id.to_string(), event)).collect();
    let mut unsent = script.iter();
    let mut unanswered = 0;
    let mut open = true;
    loop {
        while open && unanswered < MAX_UNANSWERED {
            let Some(event) = unsent.next() else { break };
            // Sending fails if the server was killed; earlier answers can still be read.
            open = client.socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).is_ok();
            unanswered += 1;
        }
        if unanswered == 0 {
            return;
        }
        let Ok(Message::Text(text)) = client.socket.read() else { return };
        let message: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!((&message[0], &message[2]), (&json!("OK"), &json!(true)), "{message}");
        let event = by_id[message[1].as_str().expect("event has an id")];
        let text = message[3].as_str().expect("value is a string").to_owned();
        let _ = results.send((event.clone(), text));
        unanswered -= 1;
    }
}

/// Publishes scripts in parallel and kills the server when a random number of events has been acknowledged. Returns all
/// acknowledged events.
fn publish_and_kill(
    mut server: Server,
    scripts: &[Script],
    rng: &mut Rng,
    kill_after: Range<usize>,
) -> Vec<Acknowledged> {
    let kill_after = kill_after.start + rng.below(kill_after.len());
    let (sender, results) = channel();
    let mut acknowledged = Vec::new();
    thread::scope(|scope| {
        for script in scripts {
            let (client, sender) = (server.connect(), sender.clone());
            scope.spawn(move || publish(client, script, &sender));
        }
        drop(sender);
        acknowledged.extend(results.iter().take(kill_after));
        assert_eq!(acknowledged.len(), kill_after, "the scripts ended before the server was killed");
        server.kill();
        acknowledged.extend(results.iter());
    });
    acknowledged
}

/// Returns the served events that match, and asserts that none is served twice.
fn query_events(client: &mut Client, filter: &Value) -> Vec<Value> {
    client.send(&json!(["REQ", "q", filter]));
    let mut events = Vec::new();
    let mut seen = HashSet::new();
    loop {
        let message = client.receive();
        if message[0] == "EOSE" {
            client.send(&json!(["CLOSE", "q"]));
            return events;
        }
        assert_eq!(message[0], "EVENT", "{message}");
        let id = message[2]["id"].as_str().expect("event has an id").to_owned();
        assert!(seen.insert(id), "served twice: {message}");
        events.push(message[2].clone());
    }
}

fn ids(events: &[Value]) -> BTreeSet<String> {
    events.iter().map(|event| event["id"].as_str().expect("event has an id").to_owned()).collect()
}

/// Asserts that every coordinate has one served version, and that it is not older than any acknowledged one.
fn check_versions(served: &[Value], acknowledged: &[Arc<SignedEvent>]) {
    let mut versions: BTreeMap<String, grasp_core::nostr::Event> = BTreeMap::new();
    for event in served {
        let event = grasp_core::nostr::Event::parse(&event.to_string()).expect("valid event");
        let coordinate = event.coordinate().expect("event is replaceable").to_string();
        let other = versions.insert(coordinate, event);
        assert!(other.is_none(), "two versions at one coordinate: {other:?}");
    }
    for event in acknowledged {
        let current = &versions[&event.coordinate().expect("event is replaceable").to_string()];
        let current = current.version();
        assert!(current == event.version() || supersedes(current, event.version()), "{} was lost", event.json());
    }
}

// ---- Policy `open` ----------------------------------------------------------------------------

const OPEN: [(&str, &str); 2] = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000")];
const REGULAR: u16 = 1;
const REPLACEABLE: [u16; 2] = [10_002, 30_023];

/// Returns notes mixed with versions of a few replaceable events. The authors are the same in every round, so that
/// later rounds replace events of earlier ones.
fn open_script(rng: &mut Rng, round: usize, connection: usize) -> Script {
    let author = Author::new(connection as u8);
    (0..350)
        .map(|nth| {
            let at = BASE_TIME + (round * 1_000 + rng.below(400)) as u64;
            let content = format!("{round} {connection} {nth}");
            match rng.below(10) {
                0 => author.sign(10_002, at, &[], &content),
                1 | 2 => author.sign(30_023, at, &[&["d", &rng.below(5).to_string()]], &content),
                _ => author.note(at, &[&["t", "x"], &["p", &author.hex()]], &content),
            }
        })
        .collect()
}

#[test]
fn acknowledged_events_of_an_open_relay_survive_kills() {
    let mut rng = Rng::new(20_261);
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let mut notes: BTreeSet<String> = BTreeSet::new();
    let mut sent: BTreeSet<String> = BTreeSet::new();
    let mut versions: Vec<Arc<SignedEvent>> = Vec::new();
    let mut server = Server::start_in(&folder, &OPEN);
    for nth in 0..ROUNDS {
        let scripts: Vec<Script> = (0..CONNECTIONS).map(|connection| open_script(&mut rng, nth, connection)).collect();
        sent.extend(scripts.iter().flatten().map(|event| event.id.to_string()));
        for (event, _) in publish_and_kill(server, &scripts, &mut rng, 1..1_100) {
            match event.kind {
                REGULAR => drop(notes.insert(event.id.to_string())),
                _ => versions.push(event),
            }
        }
        server = Server::start_in(&folder, &OPEN);
        let mut client = server.connect();
        let found = ids(&query_events(&mut client, &json!({"kinds": [REGULAR]})));
        let lost: Vec<_> = notes.difference(&found).collect();
        assert!(lost.is_empty(), "round {nth}: lost {lost:?}");
        assert!(found.is_subset(&sent), "round {nth}: an event is served that was not sent");
        // Queries that use other indexes return the same events.
        for filter in [json!({"kinds": [REGULAR], "#t": ["x"]}), json!({"ids": found})] {
            assert_eq!(ids(&query_events(&mut client, &filter)), found, "round {nth}");
        }
        check_versions(&query_events(&mut client, &json!({"kinds": REPLACEABLE})), &versions);
        // Events that were stored but not acknowledged must stay, too.
        notes.extend(found);
    }
    assert!(notes.len() > 1_000, "only {} notes were stored", notes.len());
}

// ---- Policy `grasp` ---------------------------------------------------------------------------

/// The domain is set, so that it stays the same when the port changes.
const GRASP: [(&str, &str); 3] = [("POLICY", "grasp"), ("RELAY_FILTER_LIMIT", "10000"), ("DOMAIN", "grasp.test")];

/// Returns announcements with their states, which are held; for every third one also announcements of a maintainer, which
/// are held, too, and lists of servers with events that reference them, which are served.
fn grasp_script(rng: &mut Rng, round: usize, connection: usize) -> Script {
    let service = ServiceAddress::new("grasp.test", "").expect("valid host name");
    let who = (round * CONNECTIONS + connection) as u8;
    let (owner, maintainer) = (Author::new(who), Author::new(255 - who));
    let mut script = Vec::new();
    for nth in 0..40_u64 {
        let d = format!("{round}-{connection}-{nth}");
        let at = BASE_TIME + nth * 10;
        script.push(owner.announcement(&service, &d, at, &[&maintainer]));
        for version in 0..=rng.below(3) as u64 {
            let author = if rng.one_in(2) { &owner } else { &maintainer };
            script.push(author.state(&d, at + version, &[("refs/heads/main", &"ab".repeat(20))]));
        }
        if rng.one_in(3) {
            script.push(maintainer.announcement_elsewhere(&d, at, &[]));
            let list = maintainer.sign(kinds::GRASP_LIST, at, &[&["g", "wss://elsewhere.example"]], "");
            script.push(list.clone());
            for issue in 0..3 {
                script.push(owner.sign(kinds::ISSUE, at + issue, &[&["e", &list.id.to_string()]], &d));
            }
            script.push(maintainer.sign(kinds::GRASP_LIST, at + 1, &[&["g", "wss://elsewhere.example"]], ""));
            script.push(maintainer.announcement_elsewhere(&d, at + 1, &[]));
        }
        if rng.one_in(5) {
            script.push(owner.announcement(&service, &d, at + 1, &[&maintainer]));
        }
    }
    script
}

#[test]
fn acknowledged_held_events_survive_kills() {
    let mut rng = Rng::new(20_262);
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let mut issues: BTreeSet<String> = BTreeSet::new();
    let mut lists: Vec<Arc<SignedEvent>> = Vec::new();
    let mut held: Vec<Arc<SignedEvent>> = Vec::new();
    let mut server = Server::start_in(&folder, &GRASP);
    for nth in 0..ROUNDS {
        let scripts: Vec<Script> = (0..CONNECTIONS).map(|connection| grasp_script(&mut rng, nth, connection)).collect();
        for (event, text) in publish_and_kill(server, &scripts, &mut rng, 1..450) {
            match (event.kind, text.as_str()) {
                (_, text) if text.starts_with("purgatory: won't be served until") => held.push(event),
                (kinds::ISSUE, "") => drop(issues.insert(event.id.to_string())),
                (kinds::GRASP_LIST, "") => lists.push(event),
                _ => panic!("unexpected {text:?} for {}", event.json()),
            }
        }
        server = Server::start_in(&folder, &GRASP);
        let mut client = server.connect();
        let found = ids(&query_events(&mut client, &json!({"kinds": [kinds::ISSUE]})));
        let lost: Vec<_> = issues.difference(&found).collect();
        assert!(lost.is_empty(), "round {nth}: lost {lost:?}");
        check_versions(&query_events(&mut client, &json!({"kinds": [kinds::GRASP_LIST]})), &lists);
        assert_eq!(query_events(&mut client, &json!({"kinds": [kinds::ANNOUNCEMENT, kinds::STATE]})).len(), 0);
        check_held(&mut client, &held, nth);
        issues.extend(found);
    }
    assert!(
        issues.len() > 200 && held.len() > 500,
        "only {} issues and {} held events were stored",
        issues.len(),
        held.len()
    );
}

/// Publishes the held events again and asserts that they are known. An announcement may be superseded by a newer one.
fn check_held(client: &mut Client, held: &[Arc<SignedEvent>], round: usize) {
    // Events that were sent after the last acknowledgement may have been stored, so a newer announcement may be held
    // that was not acknowledged. A newer version of a script is one second newer than the first, whose time is a
    // multiple of ten.
    for part in held.chunks(200) {
        for event in part {
            client.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in part {
            let message = client.receive();
            let text = message[3].as_str().expect("value is a string");
            assert_eq!(
                (&message[0], &message[1], &message[2]),
                (&json!("OK"), &json!(event.id.to_string()), &json!(true))
            );
            let is_superseded = event.kind == kinds::ANNOUNCEMENT && text == "duplicate: superseded by a newer event";
            let is_newer = event.kind == kinds::ANNOUNCEMENT && !event.created_at.0.is_multiple_of(10);
            assert!(
                text == "purgatory: already waiting for git data" || (is_superseded && !is_newer),
                "round {round}: {text:?} for {}",
                event.json()
            );
        }
    }
}

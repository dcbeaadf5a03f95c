//! `OK true`, then `kill -9`: what was acknowledged is there afterwards, once.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use grasp_core::nostr::{SignedEvent, kinds, supersedes};
use grasp_core::repo::ServiceAddress;
use grasp_sim::random::Chance;
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, Server};

/// Ten here and ten under the other policy.
const ROUNDS: usize = 10;
const CONNECTIONS: usize = 4;

/// How many events a connection has under way at a time.
const AHEAD: usize = 60;

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

/// What one connection publishes in one round, in this order.
type Script = Vec<Arc<SignedEvent>>;

/// An event that was answered with `OK true`, and the text of the answer.
type Acknowledged = (Arc<SignedEvent>, String);

/// Publishes a script, always some events ahead of the answers, and passes on what is acknowledged, until the script or
/// the server has ended.
fn publish(mut client: Client, script: &Script, tell: &Sender<Acknowledged>) {
    let by_id: HashMap<String, &Arc<SignedEvent>> = script.iter().map(|event| (event.id.to_string(), event)).collect();
    let mut unsent = script.iter();
    let mut unanswered = 0;
    let mut open = true;
    loop {
        while open && unanswered < AHEAD {
            let Some(event) = unsent.next() else { break };
            // A server that was killed does not take it; what it answered before can still be read.
            open = client.socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).is_ok();
            unanswered += 1;
        }
        if unanswered == 0 {
            return;
        }
        let Ok(Message::Text(text)) = client.socket.read() else { return };
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&answer[0], &answer[2]), (&json!("OK"), &json!(true)), "{answer}");
        let event = by_id[answer[1].as_str().expect("an id")];
        let text = answer[3].as_str().expect("a text").to_owned();
        // Nobody counts any more when the server is being killed, but what is told still counts.
        let _ = tell.send((event.clone(), text));
        unanswered -= 1;
    }
}

/// Publishes scripts side by side and kills the server when a random number of events has been acknowledged. Gives what
/// was.
fn round(mut server: Server, scripts: &[Script], chance: &mut Chance, enough: Range<usize>) -> Vec<Acknowledged> {
    let enough = enough.start + chance.below(enough.len());
    let (tell, told) = channel();
    let mut acknowledged = Vec::new();
    thread::scope(|scope| {
        for script in scripts {
            let (client, tell) = (server.connect(), tell.clone());
            scope.spawn(move || publish(client, script, &tell));
        }
        drop(tell);
        acknowledged.extend(told.iter().take(enough));
        assert_eq!(acknowledged.len(), enough, "the scripts ended before the server was killed");
        server.kill();
        acknowledged.extend(told.iter());
    });
    acknowledged
}

/// Everything that is served, with nothing served twice.
fn served(client: &mut Client, filter: &Value) -> Vec<Value> {
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
        let id = message[2]["id"].as_str().expect("an id").to_owned();
        assert!(seen.insert(id), "served twice: {message}");
        events.push(message[2].clone());
    }
}

fn ids(events: &[Value]) -> BTreeSet<String> {
    events.iter().map(|event| event["id"].as_str().expect("an id").to_owned()).collect()
}

/// Asserts that there is one version at each coordinate, and that none is older than one that was acknowledged.
fn check_versions(served: &[Value], acknowledged: &[Arc<SignedEvent>]) {
    let mut at: BTreeMap<String, grasp_core::nostr::Event> = BTreeMap::new();
    for event in served {
        let event = grasp_core::nostr::Event::parse(&event.to_string()).expect("an event");
        let coordinate = event.coordinate().expect("replaceable").to_string();
        let other = at.insert(coordinate, event);
        assert!(other.is_none(), "two versions side by side: {other:?}");
    }
    for event in acknowledged {
        let current = &at[&event.coordinate().expect("replaceable").to_string()];
        let current = current.version();
        assert!(current == event.version() || supersedes(current, event.version()), "{} was lost", event.json());
    }
}

// ---- Open -------------------------------------------------------------------------------------

const OPEN: [(&str, &str); 2] = [("POLICY", "open"), ("RELAY_FILTER_LIMIT", "10000")];
const REGULAR: u16 = 1;
const REPLACEABLE: [u16; 2] = [10_002, 30_023];

/// Notes, with versions of a few replaceable things among them. Authors are the same in every round, so that later
/// rounds replace what earlier ones left.
fn open_script(chance: &mut Chance, round: usize, connection: usize) -> Script {
    let author = Author::new(connection as u8);
    (0..350)
        .map(|nth| {
            let at = THEN + (round * 1_000 + chance.below(400)) as u64;
            let content = format!("{round} {connection} {nth}");
            match chance.below(10) {
                0 => author.sign(10_002, at, &[], &content),
                1 | 2 => author.sign(30_023, at, &[&["d", &chance.below(5).to_string()]], &content),
                _ => author.note(at, &[&["t", "x"], &["p", &author.hex()]], &content),
            }
        })
        .collect()
}

#[test]
fn ten_rounds_as_an_open_relay() {
    let mut chance = Chance::new(20_261);
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let mut notes: BTreeSet<String> = BTreeSet::new();
    let mut sent: BTreeSet<String> = BTreeSet::new();
    let mut versions: Vec<Arc<SignedEvent>> = Vec::new();
    let mut server = Server::start_in(&folder, &OPEN);
    for nth in 0..ROUNDS {
        let scripts: Vec<Script> =
            (0..CONNECTIONS).map(|connection| open_script(&mut chance, nth, connection)).collect();
        sent.extend(scripts.iter().flatten().map(|event| event.id.to_string()));
        for (event, _) in round(server, &scripts, &mut chance, 1..1_100) {
            match event.kind {
                REGULAR => drop(notes.insert(event.id.to_string())),
                _ => versions.push(event),
            }
        }
        server = Server::start_in(&folder, &OPEN);
        let mut client = server.connect();
        let found = ids(&served(&mut client, &json!({"kinds": [REGULAR]})));
        let lost: Vec<_> = notes.difference(&found).collect();
        assert!(lost.is_empty(), "round {nth}: lost {lost:?}");
        assert!(found.is_subset(&sent), "round {nth}: served what nobody sent");
        // The indexes tell the same.
        for filter in [json!({"kinds": [REGULAR], "#t": ["x"]}), json!({"ids": found})] {
            assert_eq!(ids(&served(&mut client, &filter)), found, "round {nth}");
        }
        check_versions(&served(&mut client, &json!({"kinds": REPLACEABLE})), &versions);
        // What came through although nobody was told is there for good as well.
        notes.extend(found);
    }
    assert!(notes.len() > 1_000, "{} is too few to prove anything", notes.len());
}

// ---- Grasp ------------------------------------------------------------------------------------

/// The name stays the same when the server gets another port.
const GRASP: [(&str, &str); 3] = [("POLICY", "grasp"), ("RELAY_FILTER_LIMIT", "10000"), ("DOMAIN", "grasp.test")];

/// Repositories with their states, which are held; and of every third one a maintainer's own announcement with issues,
/// which are served.
fn grasp_script(chance: &mut Chance, round: usize, connection: usize) -> Script {
    let service = ServiceAddress::new("grasp.test", "").expect("a host name");
    let who = (round * CONNECTIONS + connection) as u8;
    let (owner, maintainer) = (Author::new(who), Author::new(255 - who));
    let mut script = Vec::new();
    for nth in 0..40_u64 {
        let d = format!("{round}-{connection}-{nth}");
        let at = THEN + nth * 10;
        script.push(owner.listed(&service, &d, at, &[&maintainer]));
        for version in 0..=chance.below(3) as u64 {
            let author = if chance.one_in(2) { &owner } else { &maintainer };
            script.push(author.state(&d, at + version, &[("refs/heads/main", &"ab".repeat(20))]));
        }
        if chance.one_in(3) {
            script.push(maintainer.unlisted(&d, at, &[]));
            for issue in 0..3 {
                script.push(owner.issue(at + issue, &maintainer.repo(&d)));
            }
            script.push(maintainer.unlisted(&d, at + 1, &[]));
        }
        if chance.one_in(5) {
            script.push(owner.listed(&service, &d, at + 1, &[&maintainer]));
        }
    }
    script
}

#[test]
fn ten_rounds_with_held_events() {
    let mut chance = Chance::new(20_262);
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let mut issues: BTreeSet<String> = BTreeSet::new();
    let mut announcements: Vec<Arc<SignedEvent>> = Vec::new();
    let mut held: Vec<Arc<SignedEvent>> = Vec::new();
    let mut server = Server::start_in(&folder, &GRASP);
    for nth in 0..ROUNDS {
        let scripts: Vec<Script> =
            (0..CONNECTIONS).map(|connection| grasp_script(&mut chance, nth, connection)).collect();
        for (event, text) in round(server, &scripts, &mut chance, 1..450) {
            match (event.kind, text.as_str()) {
                (_, "purgatory: won't be served until git data arrives") => held.push(event),
                (kinds::ISSUE, "") => drop(issues.insert(event.id.to_string())),
                (kinds::ANNOUNCEMENT, "") => announcements.push(event),
                _ => panic!("unexpected {text:?} for {}", event.json()),
            }
        }
        server = Server::start_in(&folder, &GRASP);
        let mut client = server.connect();
        let found = ids(&served(&mut client, &json!({"kinds": [kinds::ISSUE]})));
        let lost: Vec<_> = issues.difference(&found).collect();
        assert!(lost.is_empty(), "round {nth}: lost {lost:?}");
        check_versions(&served(&mut client, &json!({"kinds": [kinds::ANNOUNCEMENT]})), &announcements);
        assert_eq!(served(&mut client, &json!({"kinds": [kinds::STATE]})).len(), 0);
        check_held(&mut client, &held, nth);
        issues.extend(found);
    }
    assert!(issues.len() > 200 && held.len() > 500, "{} and {} prove too little", issues.len(), held.len());
}

/// Sends again what is held: it is known, and an announcement gives way only to a newer one.
fn check_held(client: &mut Client, held: &[Arc<SignedEvent>], round: usize) {
    // What was sent after the last acknowledgement may have been kept as well, so a newer announcement can be there that
    // nobody told us of; all versions of a script are one second apart.
    for part in held.chunks(200) {
        for event in part {
            client.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        for event in part {
            let answer = client.receive();
            let text = answer[3].as_str().expect("a text");
            assert_eq!(
                (&answer[0], &answer[1], &answer[2]),
                (&json!("OK"), &json!(event.id.to_string()), &json!(true))
            );
            let gave_way = event.kind == kinds::ANNOUNCEMENT && text == "duplicate: superseded by a newer event";
            let newer = event.kind == kinds::ANNOUNCEMENT && !event.created_at.0.is_multiple_of(10);
            assert!(
                text == "purgatory: already waiting for git data" || (gave_way && !newer),
                "round {round}: {text:?} for {}",
                event.json()
            );
        }
    }
}

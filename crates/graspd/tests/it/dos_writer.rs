//! Attacks on the writer thread: single events that concern very many repositories. All other events and pushes would
//! wait for them.

use std::sync::Arc;
use std::thread;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;

use crate::dos_admission::{connect, publish_all};
use crate::support::BEHIND_PROXY;
use crate::support::bystander::Bystander;
use crate::support::git::{BASE_TIME, Maintainer};
use crate::support::test_server::TestServer;

const HELD: &str = "purgatory: won't be served until git data arrives";
const HELD_EXCEPTION: &str =
    "purgatory: won't be served until a repository that names its author as a maintainer is served";

/// Returns the `nth` of many keys.
fn attacker(server: &TestServer, nth: usize) -> Maintainer {
    Maintainer::from_author(Author::in_group(20 + (nth / 250) as u8, (nth % 250) as u8), &server.service)
}

/// Publishes events from as many networks as purgatory has shares for. Returns how many have this answer.
fn publish_from_networks(server: &TestServer, events: Vec<Arc<SignedEvent>>, answer: &str) -> usize {
    let mut count = 0;
    for (nth, events) in events.chunks(1_000).enumerate() {
        let mut client = connect(server, &format!("203.2.{nth}.5"));
        let answers = publish_all(&mut client, events.iter().cloned());
        count += answers.get(answer).copied().unwrap_or_default();
    }
    count
}

/// Publishes events while a round of the uninvolved user is measured.
fn publish_during(server: &TestServer, bystander: &mut Bystander, what: &str, events: Vec<Arc<SignedEvent>>) {
    let mut client = connect(server, "203.0.113.5");
    thread::scope(|scope| {
        let publishing = scope.spawn(move || publish_all(&mut client, events.into_iter()));
        while !publishing.is_finished() {
            bystander.expect_unaffected(server, what);
        }
        let answers = publishing.join().expect("the attacker's client failed");
        assert!(answers.keys().all(|answer| answer.is_empty() || answer.starts_with("purgatory: ")), "{answers:?}");
    });
    print_turns(server);
}

/// Prints how long the turns of the writer took.
fn print_turns(server: &TestServer) {
    let metrics = server.process.get("/metrics", "");
    let turns = metrics.lines().filter(|line| line.starts_with("ngit_writer_turn_seconds"));
    eprintln!("{}", turns.collect::<Vec<_>>().join("\n"));
}

/// Very many held announcements name A. A single event of A used to keep the writer busy for seconds.
#[test]
fn one_event_does_not_block_the_writer() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let named = server.maintainer(2);
    let count = 3_000;
    let naming = (0..count).map(|nth| attacker(&server, nth).announce("popular", BASE_TIME, &[&named])).collect();
    assert_eq!(publish_from_networks(&server, naming, HELD), count);
    bystander.expect_unaffected(&server, "many announcements");
    // Each announcement has other maintainers, so that the maintainer sets of all repositories change.
    let others: Vec<Maintainer> = (0..3).map(|nth| attacker(&server, nth)).collect();
    let events = (1..=6).map(|nth| named.announce("popular", BASE_TIME + nth, &[&others[nth as usize % 3]])).collect();
    publish_during(&server, &mut bystander, "announcements of the key that all name", events);
    let oid = "a".repeat(40);
    let states = (1..=4).map(|nth| named.state("popular", BASE_TIME + nth, &[("refs/heads/main", &oid)])).collect();
    publish_during(&server, &mut bystander, "states of the key that all name", states);
}

/// Announcements of the maintainer exception that lead to each other. Every event with their identifier used to decide
/// about all of them again, and each decision walked through the whole graph.
#[test]
fn graph_of_exceptions_does_not_block_the_writer() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let (owners, layer, next) = (10, 60, 4);
    let keys = |range: std::ops::Range<usize>| range.map(|nth| attacker(&server, nth)).collect::<Vec<_>>();
    let announce_owner = |nth: usize, at: u64| {
        let named = keys(100 + layer * nth..100 + layer * (nth + 1));
        attacker(&server, nth).announce("graph", at, &named.iter().collect::<Vec<_>>())
    };
    let first = (0..owners).map(|nth| announce_owner(nth, BASE_TIME)).collect();
    assert_eq!(publish_from_networks(&server, first, HELD), owners);
    let middle = owners * layer;
    let second = (0..middle).map(|nth| {
        let named = keys(1_000 + next * nth..1_000 + next * (nth + 1));
        attacker(&server, 100 + nth).announce_elsewhere("graph", BASE_TIME, &named.iter().collect::<Vec<_>>())
    });
    assert_eq!(publish_from_networks(&server, second.collect(), HELD_EXCEPTION), middle);
    let last = (0..middle * 3).map(|nth| {
        let back = attacker(&server, 100 + nth % middle);
        attacker(&server, 1_000 + nth).announce_elsewhere("graph", BASE_TIME, &[&back])
    });
    let held = publish_from_networks(&server, last.collect(), HELD_EXCEPTION);
    assert!(held > middle, "{held} of the last layer are held");
    bystander.expect_unaffected(&server, "a graph of announcements");
    let events = (0..owners).map(|nth| announce_owner(nth, BASE_TIME + 1)).collect();
    publish_during(&server, &mut bystander, "announcements in the graph", events);
}

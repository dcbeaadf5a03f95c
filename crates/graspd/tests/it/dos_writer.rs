//! Attacks on the writer thread: single events that concern very many repositories, and requests to push to repositories
//! with very large states. All other events and pushes would wait for them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use grasp_core::limits;
use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;

use crate::dos_admission::{connect, publish_all};
use crate::support::bystander::Bystander;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, repo_path};
use crate::support::test_server::TestServer;
use crate::support::{BEHIND_PROXY, eventually, wire};

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
        loop {
            let is_over = publishing.is_finished();
            // The last round is measured while what follows from the events is still processed.
            bystander.expect_unaffected(server, what);
            if is_over {
                break;
            }
        }
        let answers = publishing.join().expect("the attacker's client failed");
        assert!(answers.keys().all(|answer| answer.is_empty() || answer.starts_with("purgatory: ")), "{answers:?}");
    });
    print_turns(server);
}

/// Prints how long the turns of the writer took, for the log of the test only.
fn print_turns(server: &TestServer) {
    let metrics = server.process.get("/metrics", "");
    let turns = metrics.lines().filter(|line| line.starts_with("ngit_writer_turn_seconds"));
    eprintln!("{}", turns.collect::<Vec<_>>().join("\n"));
}

/// Very many held announcements name one key. A single event of that key used to keep the writer busy for seconds.
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

/// The number of refs in a state of about a megabyte.
const LARGE_STATE_REFS: usize = 12_000;

/// Clients that repeat a request to push to a repository with many large states. Each request used to read and parse all
/// of them in the writer.
#[test]
fn push_requests_do_not_delay_events() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let (owner, other) = (server.maintainer(2), server.maintainer(3));
    server.publish(&owner.announce("large", BASE_TIME, &[&other]));
    let names: Vec<String> = (0..LARGE_STATE_REFS).map(|nth| format!("refs/heads/branch-{nth}")).collect();
    for (network, author) in [&owner, &other].into_iter().enumerate() {
        let mut client = connect(&server, &format!("203.0.{network}.5"));
        for nth in 0..limits::MAX_HELD_STATE_VERSIONS as u64 {
            let oid = format!("{:040x}", nth + 1);
            let refs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), oid.as_str())).collect();
            let (is_accepted, text) = client.publish(&author.state("large", BASE_TIME + nth, &refs));
            assert!(is_accepted && text == HELD, "{text}");
        }
    }
    let path = repo_path(&owner.npub(), "large");
    let oid = "c".repeat(40);
    let body = wire::push_body(&[[wire::ZERO, &oid, MAIN]], wire::CAPABILITIES, wire::EMPTY_PACK);
    let is_over = AtomicBool::new(false);
    let requests = AtomicUsize::new(0);
    thread::scope(|scope| {
        for nth in 0..64 {
            let (server, path, body, is_over, requests) = (&server.process, &path, &body, &is_over, &requests);
            scope.spawn(move || {
                let from = format!("X-Forwarded-For: 203.3.{}.7", nth / 8);
                while !is_over.load(Ordering::Relaxed) {
                    let target = format!("{path}/git-receive-pack");
                    let text = wire::request_with_body(server, &target, &[wire::RECEIVE_REQUEST, &from], body).text();
                    assert!(text.contains("E-STATE-MISMATCH") && text.contains("refs/heads/branch-0"), "{text}");
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("all clients repeat requests", || (requests.load(Ordering::Relaxed) > 100).then_some(()));
        let result = catch_unwind(AssertUnwindSafe(|| bystander.expect_unaffected(&server, "requests to push")));
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| resume_unwind(panic));
    });
    eprintln!("{} requests", requests.load(Ordering::Relaxed));
    print_turns(&server);
}

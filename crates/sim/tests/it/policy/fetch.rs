//! The decisions of admission about fetching: which git data is wanted, from which sources, and how long held events
//! are kept (docs/design/fetch.md).

use grasp_core::admission::io::{AdmissionInput, EventSource};
use grasp_core::fetch::io::{FetchId, GitSource, WantedEvent, WantedKind};
use grasp_core::limits;
use grasp_sim::signer::owned_tags;

use super::common::*;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

fn fetching_policy() -> AdmissionPolicy {
    AdmissionPolicy { fetches_git_data: true, ..default_policy() }
}

fn relay() -> EventSource {
    EventSource::Relay("wss://other.example".to_owned())
}

/// An announcement that also names other servers.
fn elsewhere(author: &Author, at: u64, more: &[&[&str]]) -> Arc<SignedEvent> {
    author.announcement_with(&service(), "tool", at, owned_tags(more))
}

fn wanted_events(server: &TestServer) -> Vec<(RepoPath, Vec<WantedEvent>)> {
    server.wanted_git_data(&name("tool")).into_iter().map(|data| (data.repo_path, data.events)).collect()
}

fn urls(need: &WantedEvent) -> Vec<(&str, bool)> {
    need.sources.iter().map(|GitSource { url, is_grasp }| (url.as_str(), *is_grasp)).collect()
}

fn name(text: &str) -> Identifier {
    Identifier::new(text).expect("valid identifier")
}

#[test]
fn wanted_objects_come_from_held_events_and_sources_from_maintainers() {
    let mut server = TestServer::new(fetching_policy());
    let npub = owner().key().npub();
    let grasp = format!("https://grasp.example/{npub}/tool.git");
    let tags: &[&[&str]] = &[
        &["clone", "https://git.example/tool.git", &grasp, "https://code.example/elsewhere.git"],
        &["relays", "wss://grasp.example"],
        &["maintainers", &maintainer().hex()],
    ];
    expect_reply(&mut server, &elsewhere(&owner(), 100, tags), HELD);
    assert_eq!(wanted_events(&server), [], "an announcement names no object");
    let theirs =
        maintainer().announcement_with(&service(), "tool", 100, owned_tags(&[&["clone", "https://m.example/tool"]]));
    expect_reply(&mut server, &theirs, HELD);
    let state = main_state(&owner(), 101, 'a');
    assert!(server.submit_from(&state, relay()).ok_reply().0);
    let found = wanted_events(&server);
    let [(repo_path, wanted)] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(*repo_path, RepoPath::Announced(owner().repo_id("tool")));
    let [need] = wanted.as_slice() else { panic!("{wanted:?}") };
    assert_eq!(
        (need.id, need.kind, need.oids.clone(), need.is_dormant),
        (state.id, WantedKind::State, vec![oid('a')], false)
    );
    let places = urls(need);
    assert_eq!(
        places,
        [("https://git.example/tool.git", false), (grasp.as_str(), true), ("https://m.example/tool", false)],
        "the sources of the whole maintainer set, without this service"
    );
    // Another member's state belongs to the same wanted git data: one per maintainer set.
    let other = main_state(&maintainer(), 102, 'b');
    assert!(server.submit_from(&other, relay()).ok_reply().0);
    let found = wanted_events(&server);
    assert_eq!(
        found.iter().map(|(repo_path, needs)| (repo_path.clone(), needs.len())).collect::<Vec<_>>(),
        [(repo_path.clone(), 2)]
    );
}

#[test]
fn pull_request_is_fetched_from_its_own_clone_url_first() {
    let (mut server, ..) = hosting_server(fetching_policy(), &[]);
    let repo = owner().repo("tool");
    let tags: &[&[&str]] = &[&["a", &repo], &["c", &oid('c')], &["clone", "https://fork.example/x.git"]];
    let pull = outsider().sign(kinds::PULL_REQUEST, 200, tags, "");
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    let found = wanted_events(&server);
    let [(_, wanted)] = found.as_slice() else { panic!("{found:?}") };
    let [need] = wanted.as_slice() else { panic!("{wanted:?}") };
    assert_eq!((need.id, need.kind, need.oids.clone()), (pull.id, WantedKind::PullRequest, vec![oid('c')]));
    assert_eq!(urls(need)[0], ("https://fork.example/x.git", false));
    server.add_objects_of_event(pull.id, owner().repo_id("tool"));
    assert_eq!(wanted_events(&server), []);
}

#[test]
fn fetch_delay_is_three_minutes_for_clients_and_half_a_second_for_relays() {
    let mut server = TestServer::new(fetching_policy());
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 100, &[]), HELD);
    let (slow, fast) = (main_state(&owner(), 101, 'a'), main_state(&owner(), 102, 'b'));
    let due = |server: &TestServer, event: &SignedEvent| {
        let found = wanted_events(server);
        let need = found.iter().flat_map(|(_, needs)| needs).find(|need| need.id == event.id).expect("is wanted");
        need.due.since(server.now().mono).as_millis()
    };
    expect_reply(&mut server, &slow, HELD);
    assert_eq!(due(&server, &slow), 180_000);
    assert!(server.submit_from(&fast, relay()).ok_reply().0);
    assert_eq!(due(&server, &fast), 500);
    assert_eq!(due(&server, &slow), 180_000, "each event has its own delay");
    // Received from a relay, which serves it, so its data exists.
    server.submit_from(&slow, relay());
    assert_eq!(due(&server, &slow), 500);
    server.submit(&slow);
    assert_eq!(due(&server, &slow), 500, "the delay is never extended");
    // A relay serves an event that is held already: sync reports it without submitting it.
    let seen = main_state(&owner(), 103, 'c');
    expect_reply(&mut server, &seen, HELD);
    assert_eq!(due(&server, &seen), 180_000);
    server.handle(AdmissionInput::HeldEventsSeen(vec![seen.id, outsider().note(1, &[], "").id]));
    assert_eq!(due(&server, &seen), 500);
}

/// A held event expires only after the first round over all sources and after running fetches have ended; then it is
/// dormant and fetched hourly (docs/design/fetch.md#expiry-and-dormancy).
#[test]
fn held_event_does_not_expire_before_all_sources_were_tried() {
    let mut server = TestServer::new(fetching_policy());
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    server.advance(2 * HOUR);
    expect_events(&server, &[], &[&announcement, &state]);
    server.handle(AdmissionInput::FetchStarted(FetchId(1), vec![state.id]));
    server.handle(AdmissionInput::SourcesTried(vec![state.id]));
    server.advance(2 * HOUR);
    expect_events(&server, &[], &[&announcement, &state]);
    assert!(wanted_events(&server).iter().all(|(_, needs)| !needs[0].is_dormant), "a fetch is running");
    server.handle(AdmissionInput::FetchEnded(FetchId(1)));
    server.advance(2 * MINUTE);
    // It is the newest version: from now on it is dormant and fetched once an hour, and its announcement stays with
    // it.
    expect_events(&server, &[], &[&announcement, &state]);
    assert!(wanted_events(&server)[0].1[0].is_dormant);
    server.advance(HOUR);
    server.restart();
    assert!(wanted_events(&server)[0].1[0].is_dormant, "also after a restart");
    server.advance(limits::DORMANT_SECS - 2 * HOUR);
    expect_events(&server, &[], &[&announcement, &state]);
    server.advance(2 * HOUR);
    expect_events(&server, &[], &[]);
}

/// A held event is dormant after at most 24 hours, even if no source was tried
/// (docs/design/fetch.md#expiry-and-dormancy).
#[test]
fn held_event_is_dormant_after_at_most_24_hours() {
    let mut server = TestServer::new(fetching_policy());
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 100, &[]), HELD);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &state, HELD);
    server.advance(limits::MAX_HELD_SECS - 2 * MINUTE);
    assert!(!wanted_events(&server)[0].1[0].is_dormant);
    server.advance(4 * MINUTE);
    assert!(wanted_events(&server)[0].1[0].is_dormant, "no source was tried within a day");
}

/// A superseded state is dropped instead of becoming dormant, and a new submission ends the dormancy of an event
/// (docs/design/fetch.md#expiry-and-dormancy).
#[test]
fn replaced_state_is_not_dormant_and_a_resubmission_ends_dormancy() {
    let mut server = TestServer::new(fetching_policy());
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    let (old, new) = (main_state(&owner(), 101, 'a'), main_state(&owner(), 102, 'b'));
    expect_reply(&mut server, &old, HELD);
    expect_reply(&mut server, &new, HELD);
    server.handle(AdmissionInput::SourcesTried(vec![old.id, new.id]));
    server.advance(31 * MINUTE);
    expect_events(&server, &[], &[&announcement, &new]);
    assert!(wanted_events(&server)[0].1[0].is_dormant);
    expect_reply(&mut server, &new, ALREADY_HELD);
    let need = wanted_events(&server).remove(0).1.remove(0);
    assert!(!need.is_dormant);
    assert_eq!(need.due.since(server.now().mono).as_secs(), limits::FETCH_DELAY_CLIENT_SECS);
    server.handle(AdmissionInput::SourcesTried(vec![new.id]));
    server.advance(29 * MINUTE);
    assert!(!wanted_events(&server)[0].1[0].is_dormant, "its 30 minutes start again");
    server.advance(2 * MINUTE);
    assert!(wanted_events(&server)[0].1[0].is_dormant);
    add_git_data(&mut server, &new, &owner());
    expect_events(&server, &[&announcement, &new], &[]);
    assert_eq!(wanted_events(&server), []);
}

#[test]
fn held_events_expire_after_30_minutes_if_fetching_is_disabled() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &main_state(&owner(), 101, 'a'), HELD);
    server.advance(30 * MINUTE);
    expect_events(&server, &[], &[]);
}

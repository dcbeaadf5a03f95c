//! Purgatory: which events are held, for how long, and how they are released.

use grasp_core::admission::io::AdmissionInput;

use super::common::*;

/// New announcements, states and pull requests (30617, 30618, 1618, 1619) wait in purgatory for their git data
/// (docs/protocol.md#purgatory).
#[test]
fn announcements_states_and_pull_requests_are_held() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    add_git_data(&mut server, &state, &owner());
    let repo = owner().repo("tool");
    let pull = outsider().pull_request(200, &[&repo], &oid('b'));
    let tags: &[&[&str]] = &[&["a", &repo], &["E", &pull.id.to_string()], &["c", &oid('c')]];
    let update = outsider().sign(kinds::PULL_REQUEST_UPDATE, 201, tags, "");
    server.take_git_jobs();
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    expect_reply(&mut server, &update, HELD_FOR_COMMIT);
    let pull_requests = |order: GitJob| match order.operation {
        GitOperation::Align(align) => {
            (order.repo_path, align.pull_requests.into_iter().map(|pull| (pull.event, pull.tip)).collect())
        }
        work => panic!("{work:?}"),
    };
    let requested: Vec<(RepoPath, Vec<_>)> = server.take_git_jobs().into_iter().map(pull_requests).collect();
    let here = RepoPath::Announced(owner().repo_id("tool"));
    assert_eq!(requested, [(here.clone(), vec![(pull.id, oid('b'))]), (here, vec![(update.id, oid('c'))])]);
    expect_events(&server, &[&announcement, &state], &[&pull, &update]);
    server.add_objects_of_event(pull.id, maintainer().repo_id("tool"));
    expect_events(&server, &[&announcement, &state], &[&pull, &update]);
    for event in [&pull, &update] {
        server.add_objects_of_event(event.id, owner().repo_id("tool"));
    }
    expect_events(&server, &[&announcement, &state, &pull, &update], &[]);
}

/// A held event is in no answer and is dropped after 30 minutes (docs/protocol.md#purgatory).
#[test]
fn held_events_are_not_queried_and_expire_after_30_minutes() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    server.advance(60);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &state, HELD);
    let now = server.now().wall;
    assert_eq!(server.store().query(&[Filter::default()], 500, now), []);
    assert_eq!(server.store().count(&[Filter::default()], now), 0);
    // An announcement is held for as long as a state that could release it.
    server.advance(30 * 60 - 1);
    expect_events(&server, &[], &[&announcement, &state]);
    server.advance(1);
    expect_events(&server, &[], &[]);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &announcement, HELD);
    server.advance(30 * 60 - 1);
    expect_events(&server, &[], &[&announcement]);
    server.advance(1);
    expect_events(&server, &[], &[]);
    // A state of an unrelated author does not extend it.
    expect_reply(&mut server, &announcement, HELD);
    server.advance(60);
    let unrelated = outsider().announcement(&service(), "tool", 100, &[]);
    let theirs = main_state(&outsider(), 101, 'a');
    expect_reply(&mut server, &unrelated, HELD);
    expect_reply(&mut server, &theirs, HELD);
    server.advance(30 * 60 - 60);
    expect_events(&server, &[], &[&unrelated, &theirs]);
    add_git_data(&mut server, &theirs, &owner());
    expect_events(&server, &[], &[&unrelated, &theirs]);
}

/// Sending a held event again is `OK true` (docs/protocol.md#purgatory).
#[test]
fn resending_a_held_event_is_ok() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    for event in [&announcement, &state] {
        expect_reply(&mut server, event, HELD);
        expect_reply(&mut server, event, ALREADY_HELD);
    }
    expect_events(&server, &[], &[&announcement, &state]);
    add_git_data(&mut server, &state, &owner());
    for event in [&announcement, &state] {
        expect_reply(&mut server, event, ALREADY_SERVED);
    }
    expect_events(&server, &[&announcement, &state], &[]);
}

/// One announcement per coordinate waits, and several versions of a state side by side (docs/protocol.md#purgatory).
#[test]
fn one_announcement_and_several_states_are_held() {
    let mut server = TestServer::default();
    let [a1, a2] = [100, 200].map(|at| owner().announcement(&service(), "tool", at, &[&maintainer()]));
    let states = [
        main_state(&owner(), 101, 'a'),
        main_state(&owner(), 102, 'b'),
        main_state(&maintainer(), 101, 'c'),
        main_state(&maintainer(), 102, 'd'),
    ];
    expect_reply(&mut server, &a1, HELD);
    for state in &states {
        expect_reply(&mut server, state, HELD);
    }
    expect_reply(&mut server, &a2, HELD);
    let [o1, o2, m1, m2] = states.each_ref();
    expect_events(&server, &[], &[&a2, o1, o2, m1, m2]);
    // A push may release the state of either author; the other states stay held.
    add_git_data(&mut server, m1, &owner());
    expect_events(&server, &[&a2, m1], &[o1, o2, m2]);
    // The versions of one author's state are bounded: the oldest is dropped.
    let more: Vec<_> =
        (0..limits::MAX_HELD_STATE_VERSIONS as u64).map(|nth| main_state(&owner(), 300 + nth, 'e')).collect();
    for state in &more {
        expect_reply(&mut server, state, HELD);
    }
    let held: Vec<&Arc<SignedEvent>> = more.iter().chain([m2]).collect();
    expect_events(&server, &[&a2, m1], &held);
}

/// Releasing a state also releases its announcement, which gets the lower sequence number (docs/protocol.md#release).
#[test]
fn announcement_is_served_before_its_state() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    assert_eq!(server.store().served(), [announcement.id, state.id]);
}

/// A restart loses no event that was answered with `OK true` (docs/protocol.md#purgatory).
#[test]
fn held_events_survive_a_restart() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let waiting = outsider().announcement(&service(), "tool", 150, &[]);
    let newer = main_state(&maintainer(), 200, 'b');
    let pull = outsider().pull_request(201, &[&owner().repo("tool")], &oid('c'));
    expect_reply(&mut server, &waiting, HELD);
    expect_reply(&mut server, &newer, HELD);
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    server.restart();
    expect_events(&server, &[&announcement, &state], &[&waiting, &newer, &pull]);
    expect_reply(&mut server, &newer, ALREADY_HELD);
    add_git_data(&mut server, &newer, &owner());
    server.add_objects_of_event(pull.id, owner().repo_id("tool"));
    expect_events(&server, &[&announcement, &state, &newer, &pull], &[&waiting]);
}

#[test]
fn held_event_dropped_by_the_operator_can_be_sent_again() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let newer = main_state(&owner(), 200, 'b');
    let pull = outsider().pull_request(201, &[&owner().repo("tool")], &oid('c'));
    let waiting = outsider().announcement(&service(), "tool", 150, &[]);
    expect_reply(&mut server, &newer, HELD);
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    expect_reply(&mut server, &waiting, HELD);
    server.handle(AdmissionInput::HeldEventDropped(newer.id));
    expect_events(&server, &[&announcement, &state], &[&pull, &waiting]);
    // A served event is not dropped.
    server.handle(AdmissionInput::HeldEventDropped(state.id));
    server.handle(AdmissionInput::HeldEventDropped(pull.id));
    server.handle(AdmissionInput::HeldEventDropped(waiting.id));
    expect_events(&server, &[&announcement, &state], &[]);
    server.restart();
    expect_events(&server, &[&announcement, &state], &[]);
    expect_reply(&mut server, &newer, HELD);
    add_git_data(&mut server, &newer, &owner());
    expect_events(&server, &[&announcement, &newer], &[]);
}

//! Deletion and vanish requests that arrive before their targets, from keys that have nothing here
//! (docs/protocol.md#requests-before-their-targets).

use super::common::*;

fn from_relay() -> EventSource {
    EventSource::Relay("wss://relay.example".to_owned())
}

/// Returns a deletion request with this many targets that do not exist.
fn with_targets(author: &Author, at: u64, targets: usize) -> Arc<SignedEvent> {
    let tags = (0..targets).map(|nth| vec!["e".to_owned(), format!("{:064x}", 9_000 * at + nth as u64)]).collect();
    author.sign_owned(kinds::DELETION, at, tags, "")
}

/// A request keeps its target out, and is served in the transaction that rejects the target, so that the result is the
/// same as if it had arrived after its target.
#[test]
fn request_is_served_when_it_keeps_its_target_out() {
    let repo = owner().repo("tool");
    let issue = outsider().issue(200, &repo);
    let own = outsider().announcement(&service(), "own", 250, &[]);
    let old = outsider().issue(100, &repo);
    let cases = [
        (outsider().delete(300, &[&issue]), issue, DELETED),
        (outsider().deletion(300, &[&["a", &outsider().repo("own")]]), own, DELETED),
        (outsider().vanish(300, &["ALL_RELAYS"]), old, VANISHED),
    ];
    for (request, target, reason) in cases {
        for source in [EventSource::Client(Vec::new()), from_relay()] {
            let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
            for _ in 0..2 {
                assert_eq!(server.submit_from(&request, source.clone()), Decision::Remember);
            }
            expect_events(&server, &[&announcement, &state], &[]);
            server.restart();
            assert_reply(&reply_text(&server.submit_from(&target, source.clone())), reason);
            expect_events(&server, &[&announcement, &state, &request], &[]);
            server.restart();
            expect_reply(&mut server, &target, reason);
            expect_reply(&mut server, &request, ALREADY_SERVED);
        }
    }
}

/// Newer versions and events of other authors are not kept out. The first event of the author makes the key known, so
/// all of its requests are served.
#[test]
fn requests_are_served_when_their_key_is_known() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let repo = owner().repo("tool");
    let (issue, foreign) = (outsider().issue(200, &repo), nested_maintainer().issue(200, &repo));
    let deletion = outsider().delete(210, &[&foreign]);
    let at_coordinate = outsider().deletion(300, &[&["a", &outsider().repo("own")]]);
    let vanish = outsider().vanish(150, &["ALL_RELAYS"]);
    let before_vanishing = outsider().deletion(140, &[&["a", &outsider().repo("own")]]);
    for request in [&deletion, &at_coordinate, &vanish, &before_vanishing] {
        expect_reply(&mut server, request, REMEMBERED);
    }
    // An event that is rejected anyway changes nothing.
    expect_reply(&mut server, &outsider().note(100, &[], "unrelated"), UNRELATED);
    expect_reply(&mut server, &foreign, SERVED);
    expect_events(&server, &[&announcement, &state, &foreign], &[]);
    expect_reply(&mut server, &issue, SERVED);
    // As if the requests had arrived now: the request to vanish removes the older request.
    let served = [&announcement, &state, &foreign, &issue, &deletion, &at_coordinate, &vanish];
    expect_events(&server, &served, &[]);
    expect_reply(&mut server, &outsider().announcement(&service(), "own", 300, &[]), DELETED);
    let newer = outsider().announcement(&service(), "own", 301, &[]);
    expect_reply(&mut server, &newer, HELD);
    server.restart();
    expect_events(&server, &served, &[&newer]);
}

/// An announcement that lists the key as a maintainer makes it known, too.
#[test]
fn requests_of_a_listed_maintainer_are_served() {
    let mut server = TestServer::default();
    let request = maintainer().deletion(200, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &request, REMEMBERED);
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    expect_reply(&mut server, &announcement, HELD);
    expect_events(&server, &[&request], &[&announcement]);
    expect_reply(&mut server, &main_state(&maintainer(), 200, 'a'), DELETED);
}

/// A target that is rejected for another reason is not reported as deleted, so that sync submits it again when that
/// reason no longer applies.
#[test]
fn rejected_target_keeps_its_reason() {
    let mut server = TestServer::default();
    let issue = outsider().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &outsider().delete(300, &[&issue]), REMEMBERED);
    expect_reply(&mut server, &issue, UNRELATED);
    expect_events(&server, &[], &[]);
}

/// An ephemeral event of a key that requested to vanish is not broadcast.
#[test]
fn ephemeral_event_of_a_vanished_key_is_rejected() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    expect_reply(&mut server, &outsider().vanish(300, &["ALL_RELAYS"]), REMEMBERED);
    expect_reply(&mut server, &outsider().sign(20_001, 200, &[], ""), VANISHED);
    assert_eq!(server.take_broadcasts(), []);
    expect_events(&server, &[&announcement, &state], &[]);
}

/// With `ignores_deletions`, requests of unknown keys are rejected as before, and remembered ones have no effect.
#[test]
fn ignored_requests_are_not_remembered() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let issue = outsider().issue(200, &owner().repo("tool"));
    let request = outsider().delete(300, &[&issue]);
    expect_reply(&mut server, &request, REMEMBERED);
    server.restart_with(AdmissionPolicy { ignores_deletions: true, ..default_policy() });
    expect_reply(&mut server, &nested_maintainer().deletion(300, &[&["e", &"ab".repeat(32)]]), UNRELATED);
    expect_reply(&mut server, &issue, SERVED);
    expect_events(&server, &[&announcement, &state, &issue], &[]);
}

/// Returns the bytes that a request with this number of targets is charged with.
fn charged_bytes(targets: usize) -> usize {
    with_targets(&outsider(), 0, targets).json().len() + 2 * targets * size_of::<String>()
}

/// Requests are bounded per key. One that comes from a relay is rejected like other unrelated events, which sync
/// remembers.
#[test]
fn requests_are_bounded_per_key() {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    server.skip_invariants(true);
    for nth in 0..limits::MAX_EARLY_REQUESTS_PER_KEY as u64 {
        expect_reply(&mut server, &with_targets(&outsider(), nth, 1), REMEMBERED);
    }
    expect_reply(&mut server, &with_targets(&outsider(), 100, 1), TOO_MANY_REQUESTS);
    assert_reply(&reply_text(&server.submit_from(&with_targets(&outsider(), 100, 1), from_relay())), UNRELATED);
    // A known one is still answered.
    expect_reply(&mut server, &with_targets(&outsider(), 0, 1), REMEMBERED);
    // Large requests reach the bound of bytes first.
    for nth in 0..(limits::MAX_EARLY_REQUEST_BYTES_PER_KEY / charged_bytes(1_999)) as u64 {
        expect_reply(&mut server, &with_targets(&nested_maintainer(), nth, 1_999), REMEMBERED);
    }
    expect_reply(&mut server, &with_targets(&nested_maintainer(), 100, 1_999), TOO_MANY_REQUESTS);
}

/// A network above its bound loses its oldest requests, and other networks do not.
#[test]
fn network_with_too_many_requests_loses_its_oldest() {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    server.skip_invariants(true);
    let issues = [5, 6].map(|author| Author::new(author).issue(200, &owner().repo("tool")));
    expect_reply(&mut server, &Author::new(5).delete(300, &[&issues[0]]), REMEMBERED);
    let elsewhere = Author::new(6).delete(300, &[&issues[1]]);
    assert_eq!(server.submit_from(&elsewhere, from_relay()), Decision::Remember);
    for nth in 0..(limits::MAX_EARLY_REQUEST_BYTES_PER_NETWORK / charged_bytes(1_999)) as u64 + 1 {
        server.advance(1);
        expect_reply(&mut server, &with_targets(&Author::new(100 + nth as u8), nth, 1_999), REMEMBERED);
    }
    expect_reply(&mut server, &issues[0], SERVED);
    expect_reply(&mut server, &issues[1], DELETED);
    server.skip_invariants(false);
    server.restart();
}

/// When all requests together take too much space, the largest network loses its oldest.
#[test]
fn largest_network_loses_its_oldest_requests_when_there_are_too_many() {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    server.skip_invariants(true);
    let issues = [5, 6].map(|author| Author::new(author).issue(200, &owner().repo("tool")));
    let from = |nth: u64| EventSource::Relay(format!("wss://relay{}.example", nth / 4));
    expect_reply(&mut server, &Author::new(5).delete(300, &[&issues[0]]), REMEMBERED);
    assert_eq!(server.submit_from(&Author::new(6).delete(300, &[&issues[1]]), from(0)), Decision::Remember);
    for nth in 0..(limits::MAX_EARLY_REQUEST_BYTES / charged_bytes(1_999)) as u64 + 1 {
        server.advance(1);
        let request = with_targets(&Author::new(50 + (nth / 2) as u8), nth, 1_999);
        assert_eq!(server.submit_from(&request, from(nth)), Decision::Remember);
    }
    expect_reply(&mut server, &issues[0], DELETED);
    expect_reply(&mut server, &issues[1], SERVED);
    server.skip_invariants(false);
    server.restart();
}

/// A request whose key stays unknown is deleted after 210 days.
#[test]
fn unused_requests_expire() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let issues = [5, 6].map(|author| Author::new(author).issue(200, &owner().repo("tool")));
    let requests = [5, 6].map(|author| Author::new(author).delete(300, &[&issues[usize::from(author) - 5]]));
    for request in &requests {
        expect_reply(&mut server, request, REMEMBERED);
    }
    let day = 24 * 3_600;
    server.advance(100 * day);
    server.restart();
    server.advance(109 * day);
    expect_reply(&mut server, &issues[0], DELETED);
    server.advance(2 * day);
    expect_reply(&mut server, &issues[1], SERVED);
    expect_reply(&mut server, &issues[0], DELETED);
    expect_events(&server, &[&announcement, &state, &issues[1], &requests[0]], &[]);
}

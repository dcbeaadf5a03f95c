//! Results of a submission, batches, order-independence, maintainer exceptions, deletion, expiry, and the open mode.

use super::common::*;

/// Purgatory is only for events that lack git data. An event whose announcement or parent is unknown is rejected
/// (docs/design/admission.md#results-of-a-submission).
#[test]
fn event_without_a_known_announcement_is_rejected_not_held() {
    let mut server = TestServer::default();
    for event in [
        main_state(&owner(), 100, 'a'),
        owner().announcement_elsewhere("tool", 100, &[]),
        owner().issue(100, &owner().repo("tool")),
        owner().pull_request(100, &[&owner().repo("tool")], &oid('a')),
    ] {
        assert!(matches!(server.submit(&event), Decision::Reject(_)));
    }
    expect_events(&server, &[], &[]);
}

/// A known event is `OK true`; each rejection has its own prefix (docs/design/admission.md#results-of-a-submission).
#[test]
fn duplicates_are_ok_and_rejections_have_their_own_prefix() {
    for (known, text) in [
        (KnownAs::Served, "duplicate: already have this event"),
        (KnownAs::Held, "purgatory: already waiting for git data"),
        (KnownAs::Superseded, "duplicate: superseded by a newer event"),
        (
            KnownAs::LostTie,
            "duplicate: superseded by an event with the same created_at and a lower id; this event has no effect, \
             publish it again with a later created_at",
        ),
    ] {
        assert_eq!(Decision::Known(known).ok_reply(), (true, text.to_owned()));
    }
    for (rejection, prefix) in [
        (Rejection::NoAnnouncement, "invalid: "),
        (Rejection::NotMaintainer, "restricted: "),
        (Rejection::Unrelated, "restricted: "),
        (Rejection::Protected, "auth-required: "),
        (Rejection::RateLimited, "rate-limited: "),
        (Rejection::StoreFailed, "error: "),
    ] {
        assert!(rejection.to_string().starts_with(prefix), "{rejection}");
    }
}

/// A batch commits or fails as a whole; after a failed commit the machine is rebuilt from the store
/// (docs/design/admission.md#decisions-inside-the-write-transaction).
#[test]
fn batch_sees_its_own_writes_and_fails_as_a_whole() {
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    let mut server = TestServer::default();
    let decisions = server.submit_batch(&[&announcement, &state], false);
    assert_eq!(decisions, [const { Decision::Reject(Rejection::StoreFailed) }; 2]);
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &state, NO_ANNOUNCEMENT);
    let decisions = server.submit_batch(&[&announcement, &state], true);
    assert_eq!(decisions.iter().map(reply_text).collect::<Vec<_>>(), [HELD, HELD]);
    expect_events(&server, &[], &[&announcement, &state]);
    add_git_data(&mut server, &state, &owner());
    // After a failed commit, neither the deletion nor the event after it in the batch has an effect.
    let deletion = owner().deletion(200, &[&["a", &owner().repo("tool")]]);
    let again = owner().announcement(&service(), "tool", 201, &[]);
    server.submit_batch(&[&deletion, &again], false);
    expect_events(&server, &[&announcement, &state], &[]);
    expect_reply(&mut server, &again, SERVED);
    // Links are seen within a batch.
    let issue = outsider().issue(300, &owner().repo("tool"));
    let comment = nested_maintainer().comment(301, &issue);
    let decisions = server.submit_batch(&[&issue, &comment, &issue], true);
    assert_eq!(decisions.iter().map(reply_text).collect::<Vec<_>>(), [SERVED, SERVED, ALREADY_SERVED]);
}

/// Only a served newer version supersedes (docs/design/admission.md#order-independent-results).
#[test]
fn newer_held_state_does_not_supersede() {
    for order in [[0, 1], [1, 0]] {
        let (mut server, announcement, _) = hosting_server(default_policy(), &[]);
        let states = [main_state(&owner(), 200, 'b'), main_state(&owner(), 300, 'c')];
        for nth in order {
            expect_reply(&mut server, &states[nth], HELD);
        }
        add_git_data(&mut server, &states[0], &owner());
        expect_events(&server, &[&announcement, &states[0]], &[&states[1]]);
    }
}

/// A withdrawal is remembered (docs/design/admission.md#order-independent-results).
#[test]
fn withdrawal_survives_a_restart() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    expect_reply(&mut server, &owner().announcement_elsewhere("tool", 200, &[]), DELISTED);
    expect_events(&server, &[], &[&state]);
    server.restart();
    expect_reply(&mut server, &announcement, WITHDRAWN);
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 199, &[]), WITHDRAWN);
    expect_reply(&mut server, &main_state(&owner(), 201, 'b'), NO_ANNOUNCEMENT);
    let again = owner().announcement(&service(), "tool", 201, &[]);
    expect_reply(&mut server, &again, HELD);
    expect_events(&server, &[], &[&again, &state]);
}

/// Authority uses the newer of the served and the held announcement, links the served one only
/// (docs/design/admission.md#catalog-and-authority).
#[test]
fn authority_uses_the_newer_of_served_and_held_announcement() {
    // M's announcement elsewhere is served; its newer one here is held and lists R.
    let (mut server, a, s) = hosting_server(default_policy(), &[&maintainer()]);
    let served = maintainer().announcement_elsewhere("tool", 200, &[&outsider()]);
    let held = maintainer().announcement(&service(), "tool", 201, &[&nested_maintainer()]);
    expect_reply(&mut server, &served, SERVED);
    expect_reply(&mut server, &main_state(&nested_maintainer(), 300, 'b'), NOT_MAINTAINER);
    expect_reply(&mut server, &held, HELD);
    expect_events(&server, &[&a, &s, &served], &[&held]);
    expect_reply(&mut server, &main_state(&outsider(), 300, 'b'), NOT_MAINTAINER);
    let state = main_state(&nested_maintainer(), 300, 'b');
    expect_reply(&mut server, &state, HELD);
    // Only served events count as links; the version elsewhere is served.
    expect_reply(&mut server, &outsider().issue(301, &maintainer().repo("tool")), SERVED);
    expect_reply(&mut server, &outsider().note(301, &[&["e", &held.id.to_string()]], ""), UNRELATED);
    add_git_data(&mut server, &state, &maintainer());
    assert_eq!(server.store().status_and_tombstone(&served).0, None);
    assert!(server.event_ids().0.is_superset(&BTreeSet::from([held.id, state.id])));
}

/// An announcement accepted by the maintainer exception stays only as long as a hosted repository's maintainers name
/// its author (docs/design/admission.md#maintainer-exception-announcements).
#[test]
fn maintainer_exceptions_end_with_their_chain() {
    let exceptions = [
        maintainer().announcement_elsewhere("tool", 200, &[&nested_maintainer()]),
        nested_maintainer().announcement_elsewhere("tool", 201, &[]),
    ];
    let enter = |server: &mut TestServer, expected: &str| {
        for exception in &exceptions {
            expect_reply(server, exception, expected);
        }
    };
    // The announcement that lists M expires.
    let mut server = TestServer::default();
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 100, &[&maintainer()]), HELD);
    enter(&mut server, INVITED);
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    expect_events(&server, &[], &[]);
    // It is deleted.
    let (mut server, _, state) = hosting_server(default_policy(), &[&maintainer()]);
    enter(&mut server, SERVED);
    let deletion = owner().deletion(300, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&deletion], &[&state]);
    // It is replaced by one that no longer lists M.
    let (mut server, _, state) = hosting_server(default_policy(), &[&maintainer()]);
    enter(&mut server, SERVED);
    let alone = owner().announcement(&service(), "tool", 300, &[]);
    expect_reply(&mut server, &alone, SERVED);
    expect_events(&server, &[&alone, &state], &[]);
    // M no longer lists R: R's is removed, M's stays.
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    enter(&mut server, SERVED);
    let changed = maintainer().announcement_elsewhere("tool", 300, &[]);
    expect_reply(&mut server, &changed, SERVED);
    expect_events(&server, &[&announcement, &state, &changed], &[]);
    // Another announcement that lists M keeps them.
    let (mut server, _, state) = hosting_server(default_policy(), &[&maintainer()]);
    enter(&mut server, SERVED);
    let other = outsider().announcement(&service(), "tool", 250, &[&maintainer()]);
    expect_reply(&mut server, &other, HELD);
    let alone = owner().announcement(&service(), "tool", 300, &[]);
    expect_reply(&mut server, &alone, SERVED);
    expect_events(&server, &[&alone, &state, &exceptions[0], &exceptions[1]], &[&other]);
}

/// A deletion writes tombstones for unknown targets too, but only for authors with events or a role here. Requests of
/// other authors are remembered and not served (docs/design/admission.md#deletion-and-vanishing).
#[test]
fn requests_of_unknown_authors_are_not_served() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let unknown = format!("{:064x}", 7);
    expect_reply(&mut server, &outsider().deletion(200, &[&["e", &unknown]]), REMEMBERED);
    expect_reply(&mut server, &outsider().deletion(200, &[&["a", &outsider().repo("tool")]]), REMEMBERED);
    expect_reply(&mut server, &outsider().deletion(200, &[&["a", &owner().repo("tool")]]), REMEMBERED);
    // A maintainer without events here.
    let named = maintainer().deletion(200, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &named, SERVED);
    // An author with events here may delete events that have not arrived yet.
    let early = owner().deletion(200, &[&["e", &unknown]]);
    expect_reply(&mut server, &early, SERVED);
    expect_events(&server, &[&announcement, &state, &named, &early], &[]);
}

/// A deletion does not cascade to events that reference its target and need no git data (docs/design/admission.md#deletion-and-vanishing).
#[test]
fn deletion_does_not_cascade() {
    let (mut server, _, state) = hosting_server(default_policy(), &[]);
    let issue = outsider().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &issue, SERVED);
    let deletion = owner().deletion(300, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&issue, &deletion], &[&state]);
}

/// A state with a ref name that git rejects, with conflicting names, or with a value that is no object id is held,
/// never looked for, and expires (docs/design/admission.md#states-that-can-never-be-satisfied).
#[test]
fn unsatisfiable_state_is_held_without_git_jobs() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    server.take_git_jobs();
    let bad = [
        owner().state("tool", 200, &[("refs/heads/main", "abc123")]),
        owner().state("tool", 201, &[("refs/heads/a..b", &oid('a'))]),
        owner().state("tool", 202, &[("refs/heads/a", &oid('a')), ("refs/heads/a/b", &oid('a'))]),
        owner().state("tool", 203, &[("refs/heads/main", &"0".repeat(40))]),
    ];
    for event in &bad {
        expect_reply(&mut server, event, HELD);
    }
    let candidates = |order: GitJob| match order.operation {
        GitOperation::Align(align) => align.candidates,
        work => panic!("{work:?}"),
    };
    let requested: BTreeSet<_> =
        server.take_git_jobs().into_iter().flat_map(candidates).map(|state| state.event).collect();
    assert_eq!(requested, BTreeSet::from([state.id]));
    expect_events(&server, &[&announcement, &state], &bad.each_ref());
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    expect_events(&server, &[&announcement, &state], &[]);
}

/// After a start every held event has at least five minutes left, and a step of the wall clock expires nothing
/// (docs/design/admission.md#expiry-and-dormancy).
#[test]
fn downtime_and_clock_steps_expire_nothing_early() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    expect_reply(&mut server, &announcement, HELD);
    // A step of the wall clock by a day, both ways.
    for wall in [100_000, 1_000, 10_000] {
        server.set_wall(Timestamp(wall));
        expect_events(&server, &[], &[&announcement]);
    }
    // A day of downtime: five minutes are left.
    server.set_wall(Timestamp(10_000 + 86_400));
    server.restart();
    server.advance(limits::PURGATORY_STARTUP_GRACE_SECS - 1);
    expect_events(&server, &[], &[&announcement]);
    server.advance(1);
    expect_events(&server, &[], &[]);
    // A clock that was set back does not extend the deadline beyond its maximum.
    expect_reply(&mut server, &announcement, HELD);
    server.set_wall(Timestamp(1_000));
    server.restart();
    server.advance(limits::PURGATORY_EXPIRY_SECS);
    expect_events(&server, &[], &[]);
    // A short restart keeps the deadline.
    expect_reply(&mut server, &announcement, HELD);
    server.advance(600);
    server.restart();
    server.advance(limits::PURGATORY_EXPIRY_SECS - 601);
    expect_events(&server, &[], &[&announcement]);
    server.advance(1);
    expect_events(&server, &[], &[]);
}

#[test]
fn open_mode_accepts_any_valid_event() {
    let mut server = TestServer::new(AdmissionPolicy { mode: AdmissionMode::Open, ..default_policy() });
    let note = outsider().note(100, &[], "hello");
    let announcement = owner().announcement_elsewhere("tool", 100, &[]);
    let newer = owner().announcement_elsewhere("tool", 101, &[]);
    let state = main_state(&owner(), 100, 'a');
    for event in [&note, &announcement, &state, &newer] {
        expect_reply(&mut server, event, SERVED);
    }
    expect_reply(&mut server, &announcement, SUPERSEDED);
    let deletion = outsider().delete(200, &[&note]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_reply(&mut server, &note, DELETED);
    let other_relay = owner().vanish(200, &["wss://other.example"]);
    expect_reply(&mut server, &other_relay, SERVED);
    expect_events(&server, &[&state, &newer, &deletion, &other_relay], &[]);
    let vanish = owner().vanish(201, &["ALL_RELAYS"]);
    expect_reply(&mut server, &vanish, SERVED);
    expect_events(&server, &[&deletion, &other_relay, &vanish], &[]);
    expect_reply(&mut server, &newer, VANISHED);
}

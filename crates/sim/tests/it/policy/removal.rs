//! Replacement, deletion, vanishing, expiration, protection.

use super::common::*;

/// Replacement: the greater `created_at` wins, then the lower id (docs/protocol.md#replacement-and-ties).
#[test]
fn newer_version_replaces_the_older() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    // A held version does not hide the served one; after its release the older one is removed.
    let newer = main_state(&owner(), 200, 'b');
    expect_reply(&mut server, &newer, HELD);
    expect_events(&server, &[&announcement, &state], &[&newer]);
    add_git_data(&mut server, &newer, &owner());
    expect_events(&server, &[&announcement, &newer], &[]);
    // Regular kinds are never replaced.
    let repo = owner().repo("tool");
    let statuses = [1_630, 1_632].map(|kind| owner().sign(kind, 300, &[&["a", &repo]], ""));
    let twin = owner().sign(1_630, 301, &[&["a", &repo]], "");
    for event in [&statuses[0], &statuses[1], &twin] {
        expect_reply(&mut server, event, SERVED);
    }
    expect_events(&server, &[&announcement, &newer, &statuses[0], &statuses[1], &twin], &[]);
    // A `created_at` far in the future is rejected, a near one is not.
    let now = server.now().wall.0;
    expect_reply(
        &mut server,
        &main_state(&owner(), now + limits::MAX_FUTURE_SECS + 1, 'c'),
        "false invalid: created_at is more than…",
    );
    expect_reply(&mut server, &main_state(&owner(), now + limits::MAX_FUTURE_SECS, 'c'), HELD);
}

/// Events are limited in size and number of tags; states may be larger, because every ref is a tag.
#[test]
fn size_and_tag_limits() {
    let (mut server, ..) = hosting_server(AdmissionPolicy { max_event_bytes: 2_000, ..default_policy() }, &[]);
    let repo = owner().repo("tool");
    let tags = |count: usize, tag: &[&str]| -> Vec<Vec<String>> {
        let mut tags = owned_tags(&[&["d", "tool"], &["a", &repo]]);
        tags.extend(std::iter::repeat_n(tag.iter().map(|value| (*value).to_owned()).collect(), count));
        tags
    };
    expect_reply(
        &mut server,
        &owner().sign_owned(1, 200, tags(0, &[]), &"x".repeat(2_000)),
        "false invalid: the event has…",
    );
    expect_reply(&mut server, &owner().sign_owned(kinds::STATE, 200, tags(0, &[]), &"x".repeat(2_000)), HELD);
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    let many = limits::MAX_EVENT_TAGS + 1;
    expect_reply(
        &mut server,
        &owner().sign_owned(1, 200, tags(many, &["t", "x"]), ""),
        "false invalid: the event has more than 2000 tags…",
    );
    expect_reply(
        &mut server,
        &owner().sign_owned(kinds::STATE, 200, tags(many, &["x", "y"]), ""),
        "false invalid: the event has more than 2000 tags…",
    );
    let refs = tags(many, &["refs/heads/main", &oid('b')]);
    expect_reply(&mut server, &owner().sign_owned(kinds::STATE, 200, refs, ""), HELD);
}

/// A deletion request (kind 5) removes its author's referenced events; the request itself stays served
/// (docs/protocol.md#deletion-requests).
#[test]
fn author_deletes_own_event() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let issue = outsider().issue(200, &owner().repo("tool"));
    let comment = nested_maintainer().comment(201, &issue);
    expect_reply(&mut server, &issue, SERVED);
    expect_reply(&mut server, &comment, SERVED);
    let deletion = outsider().delete(300, &[&issue]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&announcement, &state, &comment, &deletion], &[]);
    expect_reply(&mut server, &issue, DELETED);
    expect_reply(&mut server, &deletion, ALREADY_SERVED);
    expect_events(&server, &[&announcement, &state, &comment, &deletion], &[]);
}

/// An `a` target means all versions up to the request's `created_at`; newer ones survive
/// (docs/protocol.md#deletion-requests).
#[test]
fn deletion_by_coordinate_spares_newer_versions() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let [at_200, at_300] = [(200, 'b'), (300, 'c')].map(|(at, digit)| main_state(&owner(), at, digit));
    expect_reply(&mut server, &at_300, HELD);
    expect_reply(&mut server, &at_200, HELD);
    let deletion = owner().deletion(200, &[&["a", &owner().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&announcement, &deletion], &[&at_300]);
    expect_reply(&mut server, &state, DELETED);
    expect_reply(&mut server, &at_200, DELETED);
    expect_reply(&mut server, &main_state(&owner(), 201, 'd'), HELD);
    // A request that is older than the served version does not remove it.
    add_git_data(&mut server, &at_300, &owner());
    let late = owner().deletion(299, &[&["a", &owner().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &late, SERVED);
    expect_events(&server, &[&announcement, &at_300, &deletion, &late], &[]);
}

/// Deleting an announcement ends hosting until a newer announcement arrives (docs/protocol.md#deletion-requests).
#[test]
fn deleting_an_announcement_ends_hosting_until_a_newer_one() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let deletion = owner().deletion(200, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&deletion], &[&state]);
    expect_reply(&mut server, &main_state(&owner(), 201, 'b'), NO_ANNOUNCEMENT);
    expect_reply(&mut server, &announcement, DELETED);
    let again = owner().announcement(&service(), "tool", 201, &[]);
    expect_reply(&mut server, &again, HELD);
    expect_events(&server, &[&deletion], &[&again, &state]);
}

/// With `ignores_deletions`, deletion and vanish requests are stored and have no effect, and earlier ones lose theirs.
#[test]
fn ignored_deletion_requests_are_stored_only() {
    let policy = AdmissionPolicy { ignores_deletions: true, ..default_policy() };
    let (mut server, announcement, state) = hosting_server(policy, &[]);
    let issue = owner().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &issue, SERVED);
    let deletion = owner().delete(300, &[&issue, &announcement, &state]);
    let vanish = owner().vanish(301, &["ALL_RELAYS"]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_reply(&mut server, &vanish, SERVED);
    expect_events(&server, &[&announcement, &state, &issue, &deletion, &vanish], &[]);
    assert_eq!(server.hosted_repos(), [owner().repo_id("tool")]);
    expect_reply(&mut server, &owner().issue(201, &owner().repo("tool")), SERVED);
}

/// Targets by other authors are ignored; a request with too many targets, or with only foreign targets, is rejected
/// (docs/protocol.md#deletion-requests).
#[test]
fn deletion_with_foreign_or_too_many_targets() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let own = maintainer().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &own, SERVED);
    expect_reply(&mut server, &maintainer().delete(300, &[&state]), FOREIGN_TARGET);
    let foreign = maintainer().deletion(300, &[&["a", &owner().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &foreign, SERVED);
    expect_events(&server, &[&announcement, &state, &own, &foreign], &[]);
    let both = maintainer().delete(300, &[&own, &announcement]);
    expect_reply(&mut server, &both, SERVED);
    expect_events(&server, &[&announcement, &state, &foreign, &both], &[]);
    expect_reply(
        &mut server,
        &maintainer().deletion(300, &[]),
        "false invalid: a deletion request must name its targets in e or a tags",
    );
    expect_reply(
        &mut server,
        &maintainer().deletion(300, &[&["p", "x"]]),
        "false invalid: a deletion request must name its targets…",
    );
    let many = |count: usize| {
        let tags = (0..count).map(|nth| vec!["e".to_owned(), format!("{nth:064x}")]).collect();
        maintainer().sign_owned(kinds::DELETION, 301, tags, "")
    };
    let (mut server, ..) =
        hosting_server(AdmissionPolicy { max_event_bytes: 1_000_000, ..default_policy() }, &[&maintainer()]);
    expect_reply(&mut server, &maintainer().issue(200, &owner().repo("tool")), SERVED);
    // Whichever limit applies first, the request is rejected and nothing is stored.
    expect_reply(&mut server, &many(limits::MAX_DELETION_TARGETS + 1), "false invalid: …");
    expect_reply(&mut server, &many(1_999), SERVED);
}

/// Deletion and vanish requests cannot be deleted (docs/protocol.md#deletion-requests).
#[test]
fn deletion_and_vanish_requests_cannot_be_deleted() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let issue = owner().issue(200, &owner().repo("tool"));
    expect_reply(&mut server, &issue, SERVED);
    let first = owner().delete(300, &[&issue]);
    let second = owner().delete(301, &[&first]);
    expect_reply(&mut server, &first, SERVED);
    expect_reply(&mut server, &second, SERVED);
    expect_events(&server, &[&announcement, &state, &first, &second], &[]);
    expect_reply(&mut server, &issue, DELETED);
    // The same in the other order.
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    for event in [&second, &first] {
        expect_reply(&mut server, event, SERVED);
    }
    expect_events(&server, &[&announcement, &state, &first, &second], &[]);
    expect_reply(&mut server, &issue, DELETED);
    // Nor can a request to vanish.
    let vanish = owner().vanish(400, &["ALL_RELAYS"]);
    let third = owner().delete(401, &[&vanish]);
    expect_reply(&mut server, &vanish, SERVED);
    expect_reply(&mut server, &third, SERVED);
    expect_events(&server, &[&vanish, &third], &[]);
    expect_reply(&mut server, &issue, VANISHED);
}

/// A request for an event that is not known yet keeps that event out later (docs/protocol.md#deletion-requests).
#[test]
fn deletion_keeps_out_events_that_arrive_later() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let issue = owner().issue(200, &owner().repo("tool"));
    let next = main_state(&owner(), 200, 'b');
    let by_id = owner().delete(300, &[&issue]);
    let by_coordinate = owner().deletion(300, &[&["a", &owner().coordinate(kinds::STATE, "tool")]]);
    expect_reply(&mut server, &by_id, SERVED);
    expect_reply(&mut server, &by_coordinate, SERVED);
    expect_reply(&mut server, &issue, DELETED);
    expect_reply(&mut server, &next, DELETED);
    expect_reply(&mut server, &state, DELETED);
    // A request by another author for an unknown id has no effect.
    let theirs = maintainer().issue(200, &owner().repo("tool"));
    let foreign_request = owner().delete(301, &[&theirs]);
    expect_reply(&mut server, &foreign_request, SERVED);
    expect_reply(&mut server, &theirs, SERVED);
    expect_events(&server, &[&announcement, &by_id, &by_coordinate, &foreign_request, &theirs], &[]);
}

/// Held events can be deleted too, also by a maintainer without an announcement (docs/protocol.md#deletion-requests).
#[test]
fn held_events_can_be_deleted() {
    for by_id in [true, false] {
        // M has no announcement of its own.
        let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
        let held = main_state(&maintainer(), 200, 'b');
        expect_reply(&mut server, &held, HELD);
        let deletion = if by_id {
            maintainer().delete(300, &[&held])
        } else {
            maintainer().deletion(300, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]])
        };
        expect_reply(&mut server, &deletion, SERVED);
        expect_events(&server, &[&announcement, &state, &deletion], &[]);
        expect_reply(&mut server, &held, DELETED);
        add_git_data(&mut server, &held, &owner());
        expect_events(&server, &[&announcement, &state, &deletion], &[]);
    }
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    let deletion = owner().deletion(300, &[&["a", &owner().repo("tool")]]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&deletion], &[&state]);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&deletion], &[&state]);
}

/// A held pull request can be deleted (docs/protocol.md#deletion-requests).
#[test]
fn held_pull_request_can_be_deleted() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    let deletion = outsider().delete(300, &[&pull]);
    expect_reply(&mut server, &deletion, SERVED);
    expect_events(&server, &[&announcement, &state, &deletion], &[]);
    server.add_objects_of_event(pull.id, owner().repo_id("tool"));
    expect_events(&server, &[&announcement, &state, &deletion], &[]);
}

/// A request to vanish (kind 62) that names this relay or `ALL_RELAYS` removes everything by its author up to its time,
/// and keeps it out (docs/protocol.md#requests-to-vanish).
#[test]
fn vanish_request_removes_all_events_up_to_its_time() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[&maintainer()]);
    let repo = owner().repo("tool");
    let issue = maintainer().issue(200, &repo);
    let deletion = maintainer().delete(201, &[&maintainer().issue(5, &repo)]);
    let pull = maintainer().pull_request(202, &[&repo], &oid('b'));
    let elsewhere = maintainer().announcement_elsewhere("tool", 203, &[]);
    let own = maintainer().announcement(&service(), "mine", 204, &[]);
    let held = main_state(&maintainer(), 205, 'c');
    let wrap = outsider().sign(kinds::GIFT_WRAP, 206, &[&["p", &maintainer().hex()], &["a", &repo]], "");
    let mention = outsider().note(207, &[&["p", &maintainer().hex()], &["a", &repo]], "");
    for event in [&issue, &deletion, &elsewhere, &wrap, &mention] {
        expect_reply(&mut server, event, SERVED);
    }
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    expect_reply(&mut server, &own, HELD);
    expect_reply(&mut server, &held, HELD);
    let later = maintainer().issue(500, &repo);
    expect_reply(&mut server, &later, SERVED);
    for (relays, expected) in [
        (vec![], "false invalid: a request to vanish must name relays in relay tags"),
        (vec!["wss://other.example"], "false restricted: the request to vanish does not name this relay"),
    ] {
        expect_reply(&mut server, &maintainer().vanish(300, &relays), expected);
    }
    let vanish = maintainer().vanish(300, &["wss://other.example", "ws://code.example/"]);
    expect_reply(&mut server, &vanish, SERVED);
    expect_events(&server, &[&announcement, &state, &mention, &later, &vanish], &[]);
    for event in [&issue, &deletion, &elsewhere, &own, &held, &pull] {
        expect_reply(&mut server, event, VANISHED);
    }
    expect_reply(&mut server, &maintainer().vanish(299, &["ALL_RELAYS"]), SUPERSEDED);
    expect_reply(&mut server, &main_state(&maintainer(), 301, 'c'), HELD);
    server.restart();
    expect_reply(&mut server, &issue, VANISHED);
}

/// A request to vanish ends hosting of its author's repositories (docs/protocol.md#requests-to-vanish).
#[test]
fn vanish_request_ends_hosting_of_the_owners_repositories() {
    let (mut server, _, _) = hosting_server(default_policy(), &[&maintainer()]);
    let exception = maintainer().announcement_elsewhere("tool", 200, &[]);
    expect_reply(&mut server, &exception, SERVED);
    let vanish = owner().vanish(300, &["ALL_RELAYS"]);
    expect_reply(&mut server, &vanish, SERVED);
    expect_events(&server, &[&vanish], &[]);
    expect_reply(&mut server, &main_state(&maintainer(), 301, 'b'), NO_ANNOUNCEMENT);
    let again = owner().announcement(&service(), "tool", 301, &[]);
    expect_reply(&mut server, &again, HELD);
}

/// A request to vanish by an author without events here is remembered and not served.
#[test]
fn vanish_request_of_an_unknown_author_is_not_served() {
    let mut server = TestServer::default();
    expect_reply(&mut server, &outsider().vanish(300, &["ALL_RELAYS"]), REMEMBERED);
    expect_events(&server, &[], &[]);
    expect_reply(&mut server, &outsider().vanish(300, &["wss://elsewhere.example"]), "false restricted: …");
}

/// An event with a `-` tag (NIP-70) is accepted only from a connection that is authenticated as its author
/// (docs/protocol.md#protected-events).
#[test]
fn protected_event_is_accepted_from_its_author_only() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let repo = owner().repo("tool");
    let protected = outsider().note(200, &[&["-"], &["a", &repo]], "");
    expect_reply(&mut server, &protected, PROTECTED);
    for source in [EventSource::Client(vec![owner().key()]), EventSource::Relay("wss://other.example".into())] {
        assert_reply(&reply_text(&server.submit_from(&protected, source)), PROTECTED);
    }
    expect_events(&server, &[&announcement, &state], &[]);
    for kind in [6, 16] {
        let repost = outsider().sign(kind, 201, &[&["a", &repo]], protected.json());
        assert_reply(&reply_text(&server.submit_from(&repost, EventSource::Client(vec![outsider().key()]))), PROTECTED);
    }
    let harmless = outsider().sign(6, 201, &[&["a", &repo]], announcement.json());
    expect_reply(&mut server, &harmless, SERVED);
    let author = EventSource::Client(vec![owner().key(), outsider().key()]);
    assert_reply(&reply_text(&server.submit_from(&protected, author)), SERVED);
    expect_events(&server, &[&announcement, &state, &harmless, &protected], &[]);
    expect_reply(&mut server, &protected, ALREADY_SERVED);
}

/// NIP-40: an event is removed when it expires, and rejected afterwards.
#[test]
fn expired_events_are_removed_and_rejected() {
    let (mut server, _, state) = hosting_server(default_policy(), &[&maintainer()]);
    let now = server.now().wall.0;
    let repo = owner().repo("tool");
    let note = |at: &str| outsider().note(200, &[&["a", &repo], &["expiration", at]], "");
    expect_reply(&mut server, &note(&now.to_string()), EXPIRED);
    expect_reply(&mut server, &note("1"), EXPIRED);
    let soon = note(&(now + 10).to_string());
    let nonsense = note("soon");
    expect_reply(&mut server, &soon, SERVED);
    expect_reply(&mut server, &nonsense, SERVED);
    // The expiry of an announcement ends hosting, and removes the exceptions that depend on it.
    let brief = owner().announcement_with(
        &service(),
        "tool",
        201,
        owned_tags(&[&["maintainers", &maintainer().hex()], &["expiration", &(now + 20).to_string()]]),
    );
    let exception = maintainer().announcement_elsewhere("tool", 202, &[]);
    expect_reply(&mut server, &brief, SERVED);
    expect_reply(&mut server, &exception, SERVED);
    expect_events(&server, &[&brief, &exception, &state, &soon, &nonsense], &[]);
    server.advance(10);
    expect_events(&server, &[&brief, &exception, &state, &nonsense], &[]);
    expect_reply(&mut server, &soon, EXPIRED);
    server.advance(10);
    expect_events(&server, &[&nonsense], &[&state]);
    expect_reply(&mut server, &main_state(&owner(), 300, 'b'), NO_ANNOUNCEMENT);
}

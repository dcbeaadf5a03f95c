//! Related events: comments, issues, lists and all other kinds.

use super::common::*;

/// Links that count: `a`, `A`, `q`, `e`, `E` of the event, and `e`, `E`, `q`, `a`, `A` of served events
/// (docs/protocol.md#related-events).
#[test]
fn every_kind_of_link_is_accepted() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let repo = owner().repo("tool");
    let quoted = outsider().note(90, &[], "named later by the issue");
    let answered = outsider().sign(1111, 91, &[], "named later by a comment");
    let mentioned = outsider().note(92, &[], "named later by a note");
    for orphan in [&quoted, &answered, &mentioned] {
        expect_reply(&mut server, orphan, UNRELATED);
    }
    let issue = nested_maintainer().sign(kinds::ISSUE, 200, &[&["a", &repo], &["q", &quoted.id.to_string()]], "");
    let comment = nested_maintainer().sign(1111, 201, &[&["A", &repo], &["e", &answered.id.to_string()]], "");
    let note = nested_maintainer().note(202, &[&["q", &repo], &["e", &mentioned.id.to_string()]], "");
    let quoting = nested_maintainer().sign(kinds::ISSUE, 203, &[&["q", &issue.id.to_string()]], "");
    let deep = nested_maintainer().comment(204, &issue);
    let reply = nested_maintainer().note(205, &[&["e", &deep.id.to_string()]], "");
    let events = [&issue, &comment, &note, &quoting, &deep, &reply, &quoted, &answered, &mentioned];
    for event in events {
        expect_reply(&mut server, event, SERVED);
        expect_reply(&mut server, event, ALREADY_SERVED);
    }
    let all: Vec<&Arc<SignedEvent>> = [&announcement, &state].into_iter().chain(events).collect();
    expect_events(&server, &all, &[]);
}

/// An event without such a link is rejected with `restricted:` (docs/protocol.md#related-events).
#[test]
fn events_without_a_link_are_rejected() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let unhosted = maintainer().repo("other");
    for orphan in [
        outsider().issue(200, &unhosted),
        outsider().note(200, &[], "hello"),
        outsider().sign(1111, 200, &[&["A", &unhosted], &["q", &unhosted]], ""),
        outsider().note(200, &[&["e", &"b".repeat(64)]], ""),
        outsider().note(200, &[&["e", "x", &announcement.id.to_string()]], "only the first value is a link"),
        outsider().note(200, &[&["p", &owner().hex()]], ""),
        outsider().sign(0, 200, &[], "{}"),
    ] {
        expect_reply(&mut server, &orphan, UNRELATED);
    }
    expect_events(&server, &[&announcement, &state], &[]);
}

/// Held events do not count as links, and an event whose parent is only held is rejected
/// (docs/protocol.md#related-events).
#[test]
fn held_events_are_not_links() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[]);
    let state = main_state(&owner(), 101, 'a');
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &state, HELD);
    let issue = outsider().issue(200, &owner().repo("tool"));
    let note = outsider().note(200, &[&["e", &announcement.id.to_string()]], "");
    let pull = outsider().pull_request(200, &[&owner().repo("tool")], &oid('b'));
    for event in [&issue, &note, &pull] {
        expect_reply(&mut server, event, UNRELATED);
    }
    expect_events(&server, &[], &[&announcement, &state]);
    add_git_data(&mut server, &state, &owner());
    expect_reply(&mut server, &issue, SERVED);
    expect_reply(&mut server, &note, SERVED);
    expect_reply(&mut server, &pull, HELD_FOR_COMMIT);
    expect_events(&server, &[&announcement, &state, &issue, &note], &[&pull]);
}

/// The served state of a hosted repository counts as a link (docs/protocol.md#related-events).
#[test]
fn state_of_a_hosted_repository_is_a_link() {
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    expect_reply(&mut server, &outsider().note(200, &[&["a", &owner().coordinate(kinds::STATE, "tool")]], ""), SERVED);
    expect_reply(
        &mut server,
        &outsider().note(200, &[&["a", &maintainer().coordinate(kinds::STATE, "tool")]], ""),
        UNRELATED,
    );
}

/// User grasp lists need no link, authentication events are rejected, and a pull request must name its commit
/// (docs/protocol.md#related-events).
#[test]
fn kinds_with_their_own_rules() {
    let mut server = TestServer::default();
    let list = outsider().sign(kinds::GRASP_LIST, 100, &[&["g", "wss://code.example"]], "");
    expect_reply(&mut server, &list, SERVED);
    let newer = outsider().sign(kinds::GRASP_LIST, 101, &[], "");
    expect_reply(&mut server, &newer, SERVED);
    expect_reply(&mut server, &list, SUPERSEDED);
    expect_events(&server, &[&newer], &[]);
    for credential in [kinds::AUTH, kinds::HTTP_AUTH] {
        expect_reply(
            &mut server,
            &outsider().sign(credential, 100, &[], ""),
            "false invalid: authentication events cannot be published",
        );
    }
    let (mut server, ..) = hosting_server(default_policy(), &[]);
    let unlinked = outsider().sign(kinds::PULL_REQUEST, 200, &[&["a", &owner().repo("tool")]], "");
    for bad in [
        unlinked,
        outsider().pull_request(200, &[&owner().repo("tool")], ""),
        outsider().pull_request(200, &[&owner().repo("tool")], "not hex"),
        outsider().pull_request(200, &[&owner().repo("tool")], &"a".repeat(65)),
    ] {
        expect_reply(&mut server, &bad, "false invalid: a pull request must name its commit in a c tag");
    }
    expect_reply(&mut server, &outsider().pull_request(200, &[&maintainer().repo("tool")], &oid('b')), UNRELATED);
    expect_reply(
        &mut server,
        &outsider().pull_request(200, &[&maintainer().repo("tool"), &owner().repo("tool")], &"b".repeat(64)),
        HELD_FOR_COMMIT,
    );
}

/// Ephemeral events are broadcast to subscribers and never stored (docs/design/admission.md#results-of-a-submission).
#[test]
fn ephemeral_events_are_broadcast_and_not_stored() {
    let mut server = TestServer::default();
    let event = outsider().sign(20_001, 100, &[], "typing");
    assert_eq!(server.submit(&event), Decision::Broadcast);
    assert_eq!(Decision::Broadcast.ok_reply(), (true, String::new()));
    expect_events(&server, &[], &[]);
    assert_eq!(server.take_broadcasts(), std::slice::from_ref(&event));
    assert_eq!(server.submit(&event), Decision::Broadcast, "it was not stored");
}

//! Which states are accepted, and from which authors.

use super::common::*;

/// A state is accepted if its author is in the maintainer set of an announcement with the same identifier, served or
/// held (docs/protocol.md#states-which-are-accepted).
#[test]
fn state_of_a_maintainer_is_accepted() {
    let mut server = TestServer::default();
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    expect_reply(&mut server, &announcement, HELD);
    let (own, theirs) = (main_state(&owner(), 101, 'a'), main_state(&maintainer(), 102, 'b'));
    expect_reply(&mut server, &own, HELD);
    expect_reply(&mut server, &theirs, HELD);
    expect_events(&server, &[], &[&announcement, &own, &theirs]);
}

/// A state without an announcement of its identifier is rejected with `invalid:`, one by an author outside every
/// maintainer set with `restricted:` (docs/protocol.md#states-which-are-accepted).
#[test]
fn other_states_are_rejected() {
    let mut server = TestServer::default();
    expect_reply(&mut server, &main_state(&owner(), 101, 'a'), NO_ANNOUNCEMENT);
    let announcement = owner().announcement(&service(), "tool", 100, &[&maintainer()]);
    expect_reply(&mut server, &announcement, HELD);
    expect_reply(&mut server, &main_state(&outsider(), 101, 'a'), NOT_MAINTAINER);
    expect_reply(&mut server, &owner().state("other", 101, &[]), NO_ANNOUNCEMENT);
    expect_reply(&mut server, &owner().state("Tool", 101, &[]), NO_ANNOUNCEMENT);
    expect_events(&server, &[], &[&announcement]);
}

/// A state whose objects are all present is applied and served on arrival, without a push
/// (docs/protocol.md#states-which-are-accepted).
#[test]
fn state_with_present_objects_is_applied_on_arrival() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    server.take_git_jobs();
    server.set_manual_git(true);
    let emptied = owner().state("tool", 200, &[("HEAD", "ref: refs/heads/main")]);
    expect_reply(&mut server, &emptied, HELD);
    let order = server.take_git_jobs().pop().expect("git job");
    let GitOperation::Align(align) = order.operation else { panic!("{order:?}") };
    let candidates: Vec<_> = align.candidates.iter().map(|state| (state.event, state.refs.clone())).collect();
    let served = (state.id, vec![("refs/heads/main".to_owned(), oid('a'))]);
    assert_eq!(
        (order.repo_path, candidates),
        (RepoPath::Announced(owner().repo_id("tool")), vec![(emptied.id, vec![]), served])
    );
    expect_events(&server, &[&announcement, &state], &[&emptied]);
    server.run_git_jobs().expect("no crash is injected");
    expect_events(&server, &[&announcement, &emptied], &[]);
}

/// A state whose objects are missing is held (docs/protocol.md#states-which-are-accepted).
#[test]
fn state_with_missing_objects_is_held() {
    let (mut server, announcement, state) = hosting_server(default_policy(), &[]);
    let newer = main_state(&owner(), 200, 'b');
    expect_reply(&mut server, &newer, HELD);
    expect_events(&server, &[&announcement, &state], &[&newer]);
}

/// A state that is older than a served state of its author is a duplicate; a held one supersedes nothing
/// (docs/protocol.md#states-which-are-accepted).
#[test]
fn state_is_superseded_by_a_served_state_only() {
    let (mut server, announcement, _) = hosting_server(default_policy(), &[]);
    let [s1, s2, s3] = [(200, 'b'), (201, 'c'), (202, 'd')].map(|(at, digit)| main_state(&owner(), at, digit));
    for state in [&s3, &s1, &s2] {
        expect_reply(&mut server, state, HELD);
    }
    add_git_data(&mut server, &s2, &owner());
    expect_events(&server, &[&announcement, &s2], &[&s3]);
    expect_reply(&mut server, &s1, SUPERSEDED);
    expect_events(&server, &[&announcement, &s2], &[&s3]);
}

/// Recursive rule: the maintainer set is the closure over the `maintainers` tags, starting at the owner, over served
/// and held announcements (docs/protocol.md#recursive-rule).
#[test]
fn recursive_rule_includes_nested_maintainers() {
    let mut server = TestServer::default();
    let held = [
        owner().announcement(&service(), "tool", 100, &[&maintainer()]),
        maintainer().announcement(&service(), "tool", 101, &[&nested_maintainer()]),
        outsider().announcement(&service(), "tool", 102, &[&owner()]),
    ];
    for announcement in &held {
        expect_reply(&mut server, announcement, HELD);
    }
    let identifier = Identifier::new("tool").expect("valid");
    for (author, owners) in [
        (owner(), vec![owner(), outsider()]),
        (maintainer(), vec![owner(), maintainer(), outsider()]),
        (nested_maintainer(), vec![owner(), maintainer(), outsider()]),
        (outsider(), vec![outsider()]),
    ] {
        let expected: BTreeSet<_> = owners.iter().map(|owner| owner.repo_id("tool")).collect();
        let repos = server.repos_maintained_by(&identifier, author.key());
        assert_eq!(repos.into_iter().collect::<BTreeSet<_>>(), expected, "{author:?}");
        expect_reply(&mut server, &main_state(&author, 200, 'a'), HELD);
    }
}

/// A state is released only by git data in a repository whose maintainer set contains its author
/// (docs/protocol.md#recursive-rule).
#[test]
fn state_is_released_by_data_in_repositories_it_is_authoritative_for() {
    let mut server = TestServer::default();
    // If O named M, O's repository would read the objects of M's.
    let (a, b) =
        (owner().announcement(&service(), "tool", 100, &[]), maintainer().announcement(&service(), "tool", 101, &[]));
    let state = main_state(&owner(), 102, 'a');
    for event in [&a, &b, &state] {
        expect_reply(&mut server, event, HELD);
    }
    for wrong in [maintainer().repo_id("tool"), owner().repo_id("other"), nested_maintainer().repo_id("tool")] {
        server.add_objects_of_event(state.id, wrong);
    }
    server.add_objects_of_event(a.id, owner().repo_id("tool"));
    expect_events(&server, &[], &[&a, &b, &state]);
    add_git_data(&mut server, &state, &owner());
    expect_events(&server, &[&a, &state], &[&b]);
}

/// Role tags use the reciprocal rule; if an announcement has any `M`, `m` or `o` tag, its `maintainers` tag is ignored
/// (docs/protocol.md#role-tags).
#[test]
fn role_tags_are_reciprocal_and_override_the_maintainers_tag() {
    let mut server = TestServer::default();
    let roles = owned_tags(&[&["m", &maintainer().hex()], &["maintainers", &outsider().hex()]]);
    expect_reply(&mut server, &owner().announcement_with(&service(), "tool", 100, roles), HELD);
    expect_reply(&mut server, &main_state(&outsider(), 101, 'a'), NOT_MAINTAINER);
    expect_reply(&mut server, &main_state(&maintainer(), 101, 'a'), NOT_MAINTAINER);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 102, &[&owner()]), HELD);
    expect_reply(&mut server, &main_state(&maintainer(), 101, 'a'), HELD);
    assert_eq!(server.repos_maintained_by(&Identifier::new("tool").expect("valid"), maintainer().key()).len(), 2);
}

/// The strict setting uses the reciprocal rule for plain `maintainers` tags too (docs/protocol.md#reciprocal-rule).
#[test]
fn strict_setting_uses_the_reciprocal_rule() {
    let mut server = TestServer::new(strict_policy());
    expect_reply(&mut server, &owner().announcement(&service(), "tool", 100, &[&maintainer()]), HELD);
    expect_reply(&mut server, &main_state(&maintainer(), 101, 'a'), NOT_MAINTAINER);
    expect_reply(&mut server, &maintainer().announcement(&service(), "tool", 102, &[&owner()]), HELD);
    expect_reply(&mut server, &main_state(&maintainer(), 101, 'a'), HELD);
}

//! States whose objects are all present: they are applied and served on arrival, without a push
//! (`docs/protocol.md#states-which-are-accepted`).

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::git::{BASE_TIME, DEVELOP, MAIN, Maintainer, OLD, WorkTree, refs};
use crate::support::test_server::{TestServer, main_at, one_commit};

/// Publishes a state whose objects are present and waits until it is served and applied.
#[track_caller]
fn apply(server: &mut TestServer, who: &Maintainer, state: &Arc<SignedEvent>, declared: &[(&str, &str)]) {
    server.publish(state);
    server.eventually_served(state);
    server.eventually_refs(who, "tool", declared);
}

/// Creates a repository with two branches at two commits; returns its owner, the working tree and the commits.
fn create_two_branches(server: &mut TestServer) -> (Maintainer, WorkTree, [String; 2]) {
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.create_repo(&owner, "tool", &[], &work, &[(MAIN, &c2), (OLD, &c1)]);
    (owner, work, [c1, c2])
}

#[test]
fn state_can_change_head_only() {
    let mut server = TestServer::new();
    let (owner, _, [c1, c2]) = create_two_branches(&mut server);
    assert_eq!(server.ls_remote(&owner, "tool").head.as_deref(), Some(MAIN));
    let declared = [(MAIN, c2.as_str()), (OLD, c1.as_str())];
    // With and without the prefix `ref: `: some clients leave it out.
    for (at, head, expected) in [
        (1, Some("ref: refs/heads/old"), OLD),
        (2, Some("refs/heads/main"), MAIN),
        // A HEAD that is absent or names an undeclared branch changes nothing.
        (3, Some("ref: refs/heads/other"), MAIN),
        (4, None, MAIN),
        (5, Some("refs/heads/old"), OLD),
    ] {
        let state = owner.state_with_head("tool", BASE_TIME + at, &declared, head);
        apply(&mut server, &owner, &state, &declared);
        server.eventually_head(&owner, "tool", expected);
    }
}

#[test]
fn state_can_remove_a_branch_only() {
    let mut server = TestServer::new();
    let (owner, work, [_, c2]) = create_two_branches(&mut server);
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&c2));
    apply(&mut server, &owner, &state, &main_at(&c2));
    // The next push does not need to delete the branch.
    let c3 = work.commit("file", "three");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 2, &work, &main_at(&c3));
}

#[test]
fn state_can_create_a_branch_at_a_present_commit() {
    let mut server = TestServer::new();
    let (owner, _, [c1, _]) = create_two_branches(&mut server);
    // Both other branches are removed and HEAD changes. HEAD has the form that the conformance suite grasp-audit uses.
    let state = owner.state_with_head("tool", BASE_TIME + 1, &[(DEVELOP, &c1)], Some(DEVELOP));
    apply(&mut server, &owner, &state, &[(DEVELOP, &c1)]);
    server.eventually_head(&owner, "tool", DEVELOP);
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    assert_eq!((clone.oid("HEAD"), clone.git(&["symbolic-ref", "HEAD"]).text()), (c1, DEVELOP.to_owned()));
    clone.fsck();
}

/// HEAD follows the state as soon as the declared branch exists (`docs/protocol.md#after-a-push`).
#[test]
fn head_changes_with_the_push_of_its_branch() {
    let mut server = TestServer::new();
    let (owner, work, [c1, _]) = create_two_branches(&mut server);
    let develop = owner.state_with_head("tool", BASE_TIME + 1, &[(DEVELOP, &c1)], Some(DEVELOP));
    apply(&mut server, &owner, &develop, &[(DEVELOP, &c1)]);
    // Only the new branch is pushed, because the other one exists.
    work.branch("develop1");
    let c3 = work.commit("file", "three");
    let declared = [("refs/heads/develop1", c3.as_str()), (DEVELOP, c1.as_str())];
    let state = owner.state_with_head("tool", BASE_TIME + 2, &declared, Some("refs/heads/develop1"));
    server.publish_held(&state);
    // HEAD does not point to a branch that does not exist yet.
    assert_eq!(server.ls_remote(&owner, "tool").head.as_deref(), Some(DEVELOP));
    work.push(&server.url(&owner, "tool"), &["develop1"]).expect_success();
    let remote = server.ls_remote(&owner, "tool");
    assert_eq!((remote.refs, remote.head.as_deref()), (refs(&declared), Some("refs/heads/develop1")));
    server.expect_served(&[&state]);
}

/// A state without refs empties the repository: heads and tags are removed, pull request refs and HEAD stay.
#[test]
fn state_without_refs_empties_the_repository() {
    let mut server = TestServer::new();
    let (owner, work, [c1, _]) = create_two_branches(&mut server);
    let contributor = server.maintainer(5);
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], &c1, &[]);
    server.publish(&request);
    let pull_ref = format!("refs/nostr/{}", request.id);
    work.push(&server.url(&owner, "tool"), &[&format!("{c1}:{pull_ref}")]).expect_success();
    let empty = owner.state("tool", BASE_TIME + 1, &[]);
    // Pull request refs stay.
    apply(&mut server, &owner, &empty, &[(&pull_ref, &c1)]);
    server.expect_served(&[&request]);
    // The refs can be declared again; the objects are still present.
    let full = owner.state("tool", BASE_TIME + 2, &main_at(&c1));
    apply(&mut server, &owner, &full, &[(MAIN, &c1), (&pull_ref, &c1)]);
    WorkTree::clone(&server.url(&owner, "tool")).fsck();
}

#[test]
fn state_before_its_announcement_is_rejected_and_can_be_sent_again() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let state = owner.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_rejected(&state, "invalid: no announcement exists");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    server.publish_held(&state);
    work.push(&server.url(&owner, "tool"), &["main"]).expect_success();
    server.expect_served(&[&state]);
}

#[test]
fn state_at_the_commit_of_a_pull_request_needs_no_push() {
    let mut server = TestServer::new();
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], &c2, &[]);
    server.publish_held(&request);
    let pull_ref = format!("refs/nostr/{}", request.id);
    work.push(&server.url(&owner, "tool"), &[&format!("{c2}:{pull_ref}")]).expect_success();
    server.expect_served(&[&request]);
    // The owner merges the pull request with a state alone.
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&c2));
    apply(&mut server, &owner, &state, &[(MAIN, &c2), (&pull_ref, &c2)]);
}

#[test]
fn serving_a_held_state_drops_older_held_states() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let [c2, c3] = ["two", "three"].map(|content| work.commit("file", content));
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let states = [(1, &c1), (2, &c2), (3, &c3)].map(|(at, oid)| owner.state("tool", BASE_TIME + at, &main_at(oid)));
    // The order of arrival does not matter.
    for n in [2, 0, 1] {
        server.publish_held(&states[n]);
    }
    let url = server.url(&owner, "tool");
    let push = |oid: &str| work.push(&url, &[&format!("+{oid}:{MAIN}")]);
    push(&c2).expect_success();
    server.expect_served(&[&states[1]]);
    push(&c1).expect_failure(&["E-STATE-MISMATCH"]);
    let (accepted, text) = server.client.publish(&states[0]);
    assert!(accepted && text.starts_with("duplicate: "), "{text}");
    push(&c3).expect_success();
    server.expect_served(&[&states[2]]);
    assert!(!server.is_served(&states[1]) && !server.is_served(&states[0]));
}

/// Held events do not count as links, so related events are rejected until the announcement is served
/// (`docs/protocol.md#related-events`).
#[test]
fn related_events_are_accepted_once_the_announcement_is_served() {
    let mut server = TestServer::new();
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    let issue = contributor.author.issue(BASE_TIME, &owner.repo("tool"));
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    server.publish_rejected(&issue, "restricted: ");
    server.push_state(&owner, &owner, "tool", BASE_TIME, &work, &main_at(&c1));
    assert_eq!(server.client.publish(&issue), (true, String::new()));
    // The served state counts as a link, too.
    let state = owner.author.coordinate(kinds::STATE, "tool");
    let note = contributor.author.note(BASE_TIME, &[&["q", &state]], "look");
    assert_eq!(server.client.publish(&note), (true, String::new()));
    server.expect_served(&[&issue, &note]);
}

//! States that need no push: what they declare is here already, so they take effect when they come.

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::git::{DEVELOP, MAIN, Maintainer, OLD, THEN, Work, refs};
use crate::support::test_server::{Stage, main_at, one_commit};

/// Publishes a state whose data is here and waits until it is served and followed.
#[track_caller]
fn apply(stage: &mut Stage, who: &Maintainer, state: &Arc<SignedEvent>, declared: &[(&str, &str)]) {
    stage.publish(state);
    stage.eventually_served(state);
    stage.eventually_refs(who, "tool", declared);
}

/// A repository with two branches of two commits, and a tree that has both.
fn two_branches(stage: &mut Stage) -> (Maintainer, Work, [String; 2]) {
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.found(&owner, "tool", &[], &work, &[(MAIN, &c2), (OLD, &c1)]);
    (owner, work, [c1, c2])
}

#[test]
fn g1_25_a_state_that_only_moves_head() {
    let mut stage = Stage::new();
    let (owner, _, [c1, c2]) = two_branches(&mut stage);
    assert_eq!(stage.remote(&owner, "tool").head.as_deref(), Some(MAIN));
    let declared = [(MAIN, c2.as_str()), (OLD, c1.as_str())];
    // With `ref: ` and, as it occurs in the wild, without.
    for (at, head, expected) in [
        (1, Some("ref: refs/heads/old"), OLD),
        (2, Some("refs/heads/main"), MAIN),
        // §16 item 8, G1-62: what is not declared or not said leaves it alone.
        (3, Some("ref: refs/heads/other"), MAIN),
        (4, None, MAIN),
        (5, Some("refs/heads/old"), OLD),
    ] {
        let state = owner.state_with_head("tool", THEN + at, &declared, head);
        apply(&mut stage, &owner, &state, &declared);
        stage.eventually_head(&owner, "tool", expected);
    }
}

#[test]
fn g1_25_a_state_that_only_removes() {
    let mut stage = Stage::new();
    let (owner, work, [_, c2]) = two_branches(&mut stage);
    let state = owner.state("tool", THEN + 1, &main_at(&c2));
    apply(&mut stage, &owner, &state, &main_at(&c2));
    // The next push has nothing to delete.
    let c3 = work.commit("file", "three");
    stage.advance(&owner, &owner, "tool", THEN + 2, &work, &main_at(&c3));
}

#[test]
fn g1_62_a_branch_at_a_commit_that_is_here() {
    let mut stage = Stage::new();
    let (owner, _, [c1, _]) = two_branches(&mut stage);
    // Both other branches go, HEAD follows; the value of HEAD is the audit's.
    let state = owner.state_with_head("tool", THEN + 1, &[(DEVELOP, &c1)], Some(DEVELOP));
    apply(&mut stage, &owner, &state, &[(DEVELOP, &c1)]);
    stage.eventually_head(&owner, "tool", DEVELOP);
    let clone = Work::clone(&stage.url(&owner, "tool"));
    assert_eq!((clone.oid("HEAD"), clone.git(&["symbolic-ref", "HEAD"]).text()), (c1, DEVELOP.to_owned()));
    clone.fsck();
}

#[test]
fn g1_62_head_follows_the_push_at_once() {
    let mut stage = Stage::new();
    let (owner, work, [c1, _]) = two_branches(&mut stage);
    let develop = owner.state_with_head("tool", THEN + 1, &[(DEVELOP, &c1)], Some(DEVELOP));
    apply(&mut stage, &owner, &develop, &[(DEVELOP, &c1)]);
    // Only the new branch is pushed: the other one is there.
    work.branch("develop1");
    let c3 = work.commit("file", "three");
    let declared = [("refs/heads/develop1", c3.as_str()), (DEVELOP, c1.as_str())];
    let state = owner.state_with_head("tool", THEN + 2, &declared, Some("refs/heads/develop1"));
    stage.hold(&state);
    // A branch that is not there yet is nothing to point to.
    assert_eq!(stage.remote(&owner, "tool").head.as_deref(), Some(DEVELOP));
    work.push(&stage.url(&owner, "tool"), &["develop1"]).done();
    let remote = stage.remote(&owner, "tool");
    assert_eq!((remote.refs, remote.head.as_deref()), (refs(&declared), Some("refs/heads/develop1")));
    stage.expect_served(&[&state]);
}

#[test]
fn s16_item_7_an_empty_state_empties_the_repository() {
    let mut stage = Stage::new();
    let (owner, work, [c1, _]) = two_branches(&mut stage);
    let guest = stage.person(5);
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &c1, &[]);
    stage.publish(&request);
    let nostr = format!("refs/nostr/{}", request.id);
    work.push(&stage.url(&owner, "tool"), &[&format!("{c1}:{nostr}")]).done();
    let empty = owner.state("tool", THEN + 1, &[]);
    // Pull requests are not of this.
    apply(&mut stage, &owner, &empty, &[(&nostr, &c1)]);
    stage.expect_served(&[&request]);
    // It can be filled again; what it had is still here.
    let full = owner.state("tool", THEN + 2, &main_at(&c1));
    apply(&mut stage, &owner, &full, &[(MAIN, &c1), (&nostr, &c1)]);
    Work::clone(&stage.url(&owner, "tool")).fsck();
}

#[test]
fn a_state_may_come_before_its_announcement_is_refused_and_come_again() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    let state = owner.state("tool", THEN, &main_at(&c1));
    stage.refuse(&state, "invalid: no announcement exists");
    stage.hold(&owner.announce("tool", THEN, &[]));
    stage.hold(&state);
    work.push(&stage.url(&owner, "tool"), &["main"]).done();
    stage.expect_served(&[&state]);
}

#[test]
fn git_first_the_commit_came_with_a_pull_request() {
    let mut stage = Stage::new();
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &c2, &[]);
    stage.hold(&request);
    let nostr = format!("refs/nostr/{}", request.id);
    work.push(&stage.url(&owner, "tool"), &[&format!("{c2}:{nostr}")]).done();
    stage.expect_served(&[&request]);
    // Merging it is saying so.
    let state = owner.state("tool", THEN + 1, &main_at(&c2));
    apply(&mut stage, &owner, &state, &[(MAIN, &c2), (&nostr, &c2)]);
}

#[test]
fn several_states_wait_and_serving_one_drops_the_older() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    let [c2, c3] = ["two", "three"].map(|content| work.commit("file", content));
    stage.hold(&owner.announce("tool", THEN, &[]));
    let states = [(1, &c1), (2, &c2), (3, &c3)].map(|(at, oid)| owner.state("tool", THEN + at, &main_at(oid)));
    // The order in which they come does not matter.
    for n in [2, 0, 1] {
        stage.hold(&states[n]);
    }
    let url = stage.url(&owner, "tool");
    let push = |oid: &str| work.push(&url, &[&format!("+{oid}:{MAIN}")]);
    push(&c2).done();
    stage.expect_served(&[&states[1]]);
    push(&c1).refused(&["E-STATE-MISMATCH"]);
    let (accepted, text) = stage.client.publish(&states[0]);
    assert!(accepted && text.starts_with("duplicate: "), "{text}");
    push(&c3).done();
    stage.expect_served(&[&states[2]]);
    assert!(!stage.served(&states[1]) && !stage.served(&states[0]));
}

#[test]
fn g1_34_what_belongs_to_a_repository_comes_after_its_data() {
    let mut stage = Stage::new();
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    let issue = guest.author.issue(THEN, &owner.repo("tool"));
    stage.hold(&owner.announce("tool", THEN, &[]));
    stage.refuse(&issue, "restricted: ");
    stage.advance(&owner, &owner, "tool", THEN, &work, &main_at(&c1));
    assert_eq!(stage.client.publish(&issue), (true, String::new()));
    // G1-35: a state is something to belong to, too.
    let state = owner.author.coordinate(kinds::STATE, "tool");
    let note = guest.author.note(THEN, &[&["q", &state]], "look");
    assert_eq!(stage.client.publish(&note), (true, String::new()));
    stage.expect_served(&[&issue, &note]);
}

//! Deletion: refs go back to what is still said, or away, and so do repositories.

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::eventually;
use crate::support::git::{MAIN, Maintainer, OLD, THEN, Work, fetchable};
use crate::support::test_server::{End, Stage, main_at, one_commit};

/// O's repository at O's `c1`, then at M's `c2`, thirty seconds later.
struct Two {
    stage: Stage,
    owner: Maintainer,
    maintainer: Maintainer,
    work: Work,
    commits: [String; 2],
    states: [Arc<SignedEvent>; 2],
}

impl Two {
    fn new() -> Self {
        let mut stage = Stage::new();
        let [owner, maintainer, ..] = stage.cast();
        let (work, c1) = one_commit("one");
        let (_, s1) = stage.found(&owner, "tool", &[&maintainer], &work, &main_at(&c1));
        let c2 = work.commit("file", "two");
        let s2 = stage.advance(&owner, &maintainer, "tool", THEN + 30, &work, &main_at(&c2));
        Self { stage, owner, maintainer, work, commits: [c1, c2], states: [s1, s2] }
    }

    /// Demands that M's state is gone for good and that the repository follows O's.
    fn expect_back_at_the_first(mut self) {
        self.stage.eventually_gone(&self.states[1]);
        self.stage.eventually_refs(&self.owner, "tool", &main_at(&self.commits[0]));
        self.stage.expect_served(&[&self.states[0]]);
        self.stage.refuse(&self.states[1], "invalid: this event is deleted");
        // It says so after a crash, too, and can go on.
        let mut stage = self.stage.again(End::Killed);
        stage.expect_refs(&self.owner, "tool", &main_at(&self.commits[0]));
        Work::clone(&stage.url(&self.owner, "tool")).fsck();
        let c3 = self.work.commit("file", "three");
        stage.advance(&self.owner, &self.maintainer, "tool", THEN + 200, &self.work, &main_at(&c3));
    }
}

#[test]
fn s15_8_a_state_deleted_by_coordinate() {
    let mut two = Two::new();
    let deletion = two.maintainer.delete_all(THEN + 100, kinds::STATE, "tool");
    two.stage.publish(&deletion);
    two.expect_back_at_the_first();
}

#[test]
fn s15_8_a_state_deleted_by_id() {
    let mut two = Two::new();
    let deletion = two.maintainer.delete(THEN + 100, &[&two.states[1]]);
    two.stage.publish(&deletion);
    two.expect_back_at_the_first();
}

#[test]
fn s15_8_what_is_newer_or_somebody_elses_stays() {
    let mut two = Two::new();
    let c3 = two.work.commit("file", "three");
    let newer = two.stage.advance(&two.owner, &two.maintainer, "tool", THEN + 101, &two.work, &main_at(&c3));
    let deletion = two.maintainer.delete_all(THEN + 100, kinds::STATE, "tool");
    two.stage.publish(&deletion);
    let (accepted, text) = two.stage.client.publish(&two.maintainer.delete(THEN + 100, &[&two.states[0]]));
    assert!(!accepted, "{text}");
    // Somebody else's coordinate is nothing to delete either, whatever is answered.
    let foreign = two.owner.author.coordinate(kinds::STATE, "tool");
    two.stage.client.publish(&two.maintainer.author.deletion(THEN + 100, &[&["a", &foreign]]));
    // Later than all of that, so it has been dealt with.
    let c4 = two.work.commit("file", "four");
    let last = two.stage.advance(&two.owner, &two.owner, "tool", THEN + 102, &two.work, &main_at(&c4));
    two.stage.expect_served(&[&newer, &last]);
    two.stage.refuse(&two.states[1], "invalid: this event is deleted");
}

#[test]
fn when_nothing_is_said_any_more_the_refs_go() {
    for by_id in [true, false] {
        let mut stage = Stage::new();
        let owner = stage.person(1);
        let (work, c1) = one_commit("one");
        let t1 = work.tag("v1");
        let (announcement, state) =
            stage.found(&owner, "tool", &[], &work, &[(MAIN, &c1), (OLD, &c1), ("refs/tags/v1", &t1)]);
        let deletion = if by_id { owner.delete(THEN, &[&state]) } else { owner.delete_all(THEN, kinds::STATE, "tool") };
        stage.publish(&deletion);
        stage.eventually_gone(&state);
        stage.eventually_refs(&owner, "tool", &[]);
        stage.expect_served(&[&announcement]);
        Work::clone(&stage.url(&owner, "tool"));
        // Saying it again, with something newer.
        let state = owner.state("tool", THEN + 1, &main_at(&c1));
        stage.publish(&state);
        work.push(&stage.url(&owner, "tool"), &["main"]).done();
        stage.eventually_served(&state);
        stage.eventually_refs(&owner, "tool", &main_at(&c1));
    }
}

#[test]
fn a_deleted_announcement_ends_hosting() {
    for by_id in [true, false] {
        let mut stage = Stage::new();
        let owner = stage.person(1);
        let (work, c1) = one_commit("one");
        let (announcement, _) = stage.found(&owner, "tool", &[], &work, &main_at(&c1));
        let deletion = if by_id {
            owner.delete(THEN, &[&announcement])
        } else {
            owner.delete_all(THEN, kinds::ANNOUNCEMENT, "tool")
        };
        stage.publish(&deletion);
        stage.eventually_gone(&announcement);
        eventually("the repository is gone", || (!stage.exists(&owner, "tool")).then_some(()));
        let url = stage.url(&owner, "tool");
        assert!(!Work::try_clone(&[], &url, &[]).1.success);
        for protocol in ["0", "2"] {
            assert!(!fetchable(protocol, &url, &c1));
        }
        let mut stage = stage.again(End::Killed);
        assert!(!stage.exists(&owner, "tool"));
        stage.refuse(&announcement, "invalid: this event is deleted");

        // D: recreating later works, from the beginning.
        stage.publish(&owner.announce("tool", THEN + 1, &[]));
        let (other, c2) = one_commit("something else");
        stage.publish(&owner.state("tool", THEN + 1, &main_at(&c2)));
        other.push(&stage.url(&owner, "tool"), &["+main"]).done();
        stage.expect_refs(&owner, "tool", &main_at(&c2));
    }
}

#[test]
fn a_deleted_repository_leaves_its_followers_whole() {
    let mut stage = Stage::new();
    let [owner, _, _, follower] = stage.cast();
    let (work, c1) = one_commit("one");
    let (announcement, _) = stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    stage.publish(&follower.announce("tool", THEN, &[&owner]));
    stage.eventually_refs(&follower, "tool", &main_at(&c1));
    stage.publish(&owner.delete(THEN, &[&announcement]));
    eventually("the repository is gone", || (!stage.exists(&owner, "tool")).then_some(()));
    let expect_whole = |stage: &Stage| {
        let clone = Work::clone(&stage.url(&follower, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c1);
    };
    expect_whole(&stage);
    expect_whole(&stage.again(End::Killed));
}

#[test]
fn d_07_whoever_vanishes_takes_the_repositories_along() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let (announcement, state) = stage.found(&maintainer, "other", &[&owner], &work, &main_at(&c1));
    let relay = format!("wss://{}", stage.service.domain());
    stage.publish(&owner.author.vanish(THEN + 1, &[&relay]));
    eventually("the repository is gone", || (!stage.exists(&owner, "tool")).then_some(()));
    stage.expect_served(&[&announcement, &state]);
    stage.expect_refs(&maintainer, "other", &main_at(&c1));
}

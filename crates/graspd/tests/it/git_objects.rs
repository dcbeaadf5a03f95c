//! Who can have which objects by their ids: objects are shared where a maintainer set shares them, and nowhere else.

use crate::support::eventually;
use crate::support::git::{THEN, Work, fetchable};
use crate::support::test_server::{Stage, main_at, one_commit};

const PROTOCOLS: [&str; 2] = ["0", "2"];

/// Demands that an object can be had, or cannot, with both protocols.
#[track_caller]
fn expect_fetchable(url: &str, oid: &str, expected: bool) {
    for protocol in PROTOCOLS {
        assert_eq!(fetchable(protocol, url, oid), expected, "protocol {protocol}: {oid} at {url}");
    }
}

#[test]
fn owners_and_followers_read_strangers_do_not() {
    let mut stage = Stage::new();
    let [owner, _, stranger, follower] = stage.cast();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.found(&owner, "tool", &[], &work, &main_at(&c2));
    stage.publish(&follower.announce("tool", THEN, &[&owner]));
    stage.eventually_refs(&follower, "tool", &main_at(&c2));
    // The same name, nothing else in common; once with data of its own and once without.
    stage.hold(&stranger.announce("tool", THEN, &[]));
    let [of_owner, of_follower, of_stranger] = [&owner, &follower, &stranger].map(|who| stage.url(who, "tool"));
    for oid in [&c1, &c2] {
        expect_fetchable(&of_owner, oid, true);
        expect_fetchable(&of_follower, oid, true);
        expect_fetchable(&of_stranger, oid, false);
    }
    let (theirs, s1) = one_commit("stranger's");
    stage.advance(&stranger, &stranger, "tool", THEN, &theirs, &main_at(&s1));
    expect_fetchable(&of_stranger, &s1, true);
    for oid in [&c1, &c2] {
        expect_fetchable(&of_stranger, oid, false);
    }
    // What is the follower's own is not the owner's: the follower listed the owner, not the other way round.
    let (own, f1) = one_commit("follower's");
    stage.advance(&follower, &follower, "tool", THEN + 1, &own, &main_at(&f1));
    expect_fetchable(&of_follower, &f1, true);
    expect_fetchable(&of_owner, &f1, false);
    expect_fetchable(&of_stranger, &f1, false);
    expect_fetchable(&of_owner, &s1, false);
}

#[test]
fn objects_of_a_set_are_not_uploaded_twice() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[&maintainer], &work, &main_at(&c1));
    // M's repository may not read O's: M does not name O. O's may read M's.
    stage.hold(&maintainer.announce("tool", THEN, &[]));
    let c2 = work.commit("file", "two");
    stage.advance(&maintainer, &maintainer, "tool", THEN + 1, &work, &main_at(&c2));
    stage.eventually_refs(&owner, "tool", &main_at(&c2));
    let c3 = work.commit("file", "three");
    let state = owner.state("tool", THEN + 2, &main_at(&c3));
    stage.hold(&state);
    // The clone of the other one is enough to push from, without its history.
    let (shallow, said) = Work::try_clone(&[], &stage.url(&maintainer, "tool"), &["--depth=1"]);
    said.done();
    assert_eq!(shallow.commit("file", "three"), c3);
    shallow.push(&stage.url(&owner, "tool"), &["main"]).done();
    stage.expect_served(&[&state]);
    let clone = Work::clone(&stage.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD~2"), c1);
}

#[test]
fn former_followers_read_nothing_new() {
    let mut stage = Stage::new();
    let [owner, _, _, former] = stage.cast();
    let (own, f1) = one_commit("own");
    stage.found(&former, "tool", &[], &own, &main_at(&f1));
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", THEN, &[]);
    stage.hold(&announcement);
    stage.publish(&former.announce("tool", THEN + 1, &[&owner]));
    stage.advance(&owner, &owner, "tool", THEN + 1, &work, &main_at(&c1));
    stage.eventually_refs(&former, "tool", &main_at(&c1));
    // Alone again.
    let alone = former.announce("tool", THEN + 2, &[]);
    stage.publish(&alone);
    stage.eventually_served(&alone);
    stage.eventually_refs(&former, "tool", &main_at(&f1));
    let c2 = work.commit("file", "two");
    stage.advance(&owner, &owner, "tool", THEN + 3, &work, &main_at(&c2));
    let [of_owner, of_former] = [&owner, &former].map(|who| stage.url(who, "tool"));
    expect_fetchable(&of_owner, &c2, true);
    expect_fetchable(&of_former, &c2, false);
    expect_fetchable(&of_former, &f1, true);
    Work::clone(&of_former).fsck();
}

#[test]
fn members_who_left_leave_what_was_built_on() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    // The data comes to M's repository and O's follows.
    stage.hold(&maintainer.announce("tool", THEN, &[]));
    let announcement = owner.announce("tool", THEN, &[&maintainer]);
    stage.hold(&announcement);
    stage.advance(&maintainer, &maintainer, "tool", THEN, &work, &main_at(&c1));
    stage.eventually_refs(&owner, "tool", &main_at(&c1));
    // O says the same and goes on alone; then M's repository goes away.
    let state = owner.state("tool", THEN + 1, &main_at(&c1));
    stage.publish(&state);
    stage.eventually_served(&state);
    let alone = owner.announce("tool", THEN + 2, &[]);
    stage.publish(&alone);
    stage.eventually_served(&alone);
    stage.eventually_refs(&owner, "tool", &main_at(&c1));
    stage.publish(&maintainer.delete_all(THEN + 2, grasp_core::nostr::kinds::ANNOUNCEMENT, "tool"));
    eventually("it is gone", || (!stage.exists(&maintainer, "tool")).then_some(()));
    let url = stage.url(&owner, "tool");
    Work::clone(&url).fsck();
    expect_fetchable(&url, &c1, true);
    for protocol in PROTOCOLS {
        assert!(!fetchable(protocol, &stage.url(&maintainer, "tool"), &c1), "it is deleted");
    }
}

#[test]
fn nobody_can_have_what_nobody_signed() {
    let mut stage = Stage::new();
    let [owner, _, _, follower] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    stage.publish(&follower.announce("tool", THEN, &[&owner]));
    stage.eventually_refs(&follower, "tool", &main_at(&c1));
    let urls = [&owner, &follower].map(|who| stage.url(who, "tool"));
    // An upload without its event, and a push that was refused.
    let upload = work.commit("file", "upload");
    work.push(&urls[0], &[&format!("{upload}:refs/nostr/{}", "ab".repeat(32))]).done();
    let refused = work.orphan("refused", "refused");
    work.push(&urls[0], &[&format!("{refused}:refs/heads/mine")]).refused(&["E-STATE-MISSING"]);
    for url in &urls {
        expect_fetchable(url, &upload, false);
        expect_fetchable(url, &refused, false);
    }
    // What is built on the upload cannot be smuggled in either: the state is complete only with its data.
    let on_top = work.git(&["commit-tree", "-p", &upload, "-m", "on top", &format!("{upload}^{{tree}}")]).done().text();
    let state = owner.state("tool", THEN + 1, &main_at(&on_top));
    stage.hold(&state);
    work.push(&urls[0], &[&format!("{on_top}:refs/heads/main")]).done();
    stage.expect_served(&[&state]);
    Work::clone(&urls[0]).fsck();
}

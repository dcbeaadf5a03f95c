//! Which objects can be fetched from which repository: a repository reads the pools of its own maintainers only
//! (`docs/design/admission.md#refs-and-objects`).

use crate::support::eventually;
use crate::support::git::{BASE_TIME, WorkTree, can_fetch};
use crate::support::test_server::{TestServer, main_at, one_commit};

const PROTOCOLS: [&str; 2] = ["0", "2"];

/// Asserts that an object can be fetched, or cannot, with both protocol versions.
#[track_caller]
fn expect_can_fetch(url: &str, oid: &str, expected: bool) {
    for protocol in PROTOCOLS {
        assert_eq!(can_fetch(protocol, url, oid), expected, "protocol {protocol}: {oid} at {url}");
    }
}

#[test]
fn only_owner_and_followers_can_fetch() {
    let mut server = TestServer::new();
    let [owner, _, unrelated, follower] = server.maintainers();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c2));
    server.publish(&follower.announce("tool", BASE_TIME, &[&owner]));
    server.eventually_refs(&follower, "tool", &main_at(&c2));
    // A repository that only has the same identifier; first without data of its own, then with data.
    server.publish_held(&unrelated.announce("tool", BASE_TIME, &[]));
    let [owner_url, follower_url, unrelated_url] = [&owner, &follower, &unrelated].map(|who| server.url(who, "tool"));
    for oid in [&c1, &c2] {
        expect_can_fetch(&owner_url, oid, true);
        expect_can_fetch(&follower_url, oid, true);
        expect_can_fetch(&unrelated_url, oid, false);
    }
    let (theirs, s1) = one_commit("unrelated");
    server.push_state(&unrelated, &unrelated, "tool", BASE_TIME, &theirs, &main_at(&s1));
    expect_can_fetch(&unrelated_url, &s1, true);
    for oid in [&c1, &c2] {
        expect_can_fetch(&unrelated_url, oid, false);
    }
    // The owner cannot read the follower's objects: the follower lists the owner, not the other way round.
    let (own, f1) = one_commit("follower");
    server.push_state(&follower, &follower, "tool", BASE_TIME + 1, &own, &main_at(&f1));
    expect_can_fetch(&follower_url, &f1, true);
    expect_can_fetch(&owner_url, &f1, false);
    expect_can_fetch(&unrelated_url, &f1, false);
    expect_can_fetch(&owner_url, &s1, false);
}

#[test]
fn objects_of_maintainers_need_not_be_pushed_again() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[&maintainer], &work, &main_at(&c1));
    // M does not list O, so M's repository does not read O's pool. O's repository reads M's.
    server.publish_held(&maintainer.announce("tool", BASE_TIME, &[]));
    let c2 = work.commit("file", "two");
    server.push_state(&maintainer, &maintainer, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    server.eventually_refs(&owner, "tool", &main_at(&c2));
    let c3 = work.commit("file", "three");
    let state = owner.state("tool", BASE_TIME + 2, &main_at(&c3));
    server.publish_held(&state);
    // A shallow clone of M's repository is enough to push to O's, because O's repository reads M's pool.
    let (shallow, output) = WorkTree::try_clone(&[], &server.url(&maintainer, "tool"), &["--depth=1"]);
    output.expect_success();
    assert_eq!(shallow.commit("file", "three"), c3);
    shallow.push(&server.url(&owner, "tool"), &["main"]).expect_success();
    server.expect_served(&[&state]);
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD~2"), c1);
}

/// A repository goes on reading a pool that it has read, but it follows only its own maintainers.
#[test]
fn former_follower_follows_only_its_own_state() {
    let mut server = TestServer::new();
    let [owner, _, _, former] = server.maintainers();
    let (own, f1) = one_commit("own");
    server.create_repo(&former, "tool", &[], &own, &main_at(&f1));
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    server.publish_held(&announcement);
    server.publish(&former.announce("tool", BASE_TIME + 1, &[&owner]));
    server.push_state(&owner, &owner, "tool", BASE_TIME + 1, &work, &main_at(&c1));
    server.eventually_refs(&former, "tool", &main_at(&c1));
    // The follower no longer lists the owner.
    let alone = former.announce("tool", BASE_TIME + 2, &[]);
    server.publish(&alone);
    server.eventually_served(&alone);
    server.eventually_refs(&former, "tool", &main_at(&f1));
    let c2 = work.commit("file", "two");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 3, &work, &main_at(&c2));
    let [owner_url, former_url] = [&owner, &former].map(|who| server.url(who, "tool"));
    expect_can_fetch(&owner_url, &c2, true);
    server.expect_refs(&former, "tool", &main_at(&f1));
    expect_can_fetch(&former_url, &f1, true);
    WorkTree::clone(&former_url).fsck();
}

#[test]
fn objects_of_a_removed_maintainer_stay_if_refs_need_them() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    // The data is pushed to M's repository, and O's repository follows.
    server.publish_held(&maintainer.announce("tool", BASE_TIME, &[]));
    let announcement = owner.announce("tool", BASE_TIME, &[&maintainer]);
    server.publish_held(&announcement);
    server.push_state(&maintainer, &maintainer, "tool", BASE_TIME, &work, &main_at(&c1));
    server.eventually_refs(&owner, "tool", &main_at(&c1));
    // O declares the same commit and removes M; then M's repository is deleted.
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&c1));
    server.publish(&state);
    server.eventually_served(&state);
    let alone = owner.announce("tool", BASE_TIME + 2, &[]);
    server.publish(&alone);
    server.eventually_served(&alone);
    server.eventually_refs(&owner, "tool", &main_at(&c1));
    server.publish(&maintainer.delete_coordinate(BASE_TIME + 2, grasp_core::nostr::kinds::ANNOUNCEMENT, "tool"));
    eventually("the repository is removed", || (!server.repo_exists(&maintainer, "tool")).then_some(()));
    let url = server.url(&owner, "tool");
    WorkTree::clone(&url).fsck();
    expect_can_fetch(&url, &c1, true);
    for protocol in PROTOCOLS {
        assert!(!can_fetch(protocol, &server.url(&maintainer, "tool"), &c1), "the repository is deleted");
    }
}

#[test]
fn objects_without_a_signed_event_cannot_be_fetched() {
    let mut server = TestServer::new();
    let [owner, _, _, follower] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    server.publish(&follower.announce("tool", BASE_TIME, &[&owner]));
    server.eventually_refs(&follower, "tool", &main_at(&c1));
    let urls = [&owner, &follower].map(|who| server.url(who, "tool"));
    // An upload whose event is unknown, and a push that was rejected.
    let upload = work.commit("file", "upload");
    work.push(&urls[0], &[&format!("{upload}:refs/nostr/{}", "ab".repeat(32))]).expect_success();
    let rejected = work.commit_orphan("rejected", "rejected");
    work.push(&urls[0], &[&format!("{rejected}:refs/heads/mine")]).expect_failure(&["E-STATE-MISSING"]);
    for url in &urls {
        expect_can_fetch(url, &upload, false);
        expect_can_fetch(url, &rejected, false);
    }
    // A push of a commit on top of the upload does not use the staged objects: the pack must contain all objects.
    let on_top = work
        .git(&["commit-tree", "-p", &upload, "-m", "on top", &format!("{upload}^{{tree}}")])
        .expect_success()
        .text();
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&on_top));
    server.publish_held(&state);
    work.push(&urls[0], &[&format!("{on_top}:refs/heads/main")]).expect_success();
    server.expect_served(&[&state]);
    WorkTree::clone(&urls[0]).fsck();
}

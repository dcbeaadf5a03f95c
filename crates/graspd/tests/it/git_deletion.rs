//! Deletion of states and announcements: refs follow the remaining states, or are removed with the repository.

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::eventually;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, OLD, WorkTree, can_fetch};
use crate::support::integrity::repo_folders;
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

/// A repository of `owner` with a state of the owner (the first commit) and, thirty seconds later, a state of
/// `maintainer` (the second commit), which is in force. The example of `docs/protocol.md#deletion-requests`.
struct RepoWithTwoStates {
    server: TestServer,
    owner: Maintainer,
    maintainer: Maintainer,
    work: WorkTree,
    commits: [String; 2],
    states: [Arc<SignedEvent>; 2],
}

impl RepoWithTwoStates {
    fn new() -> Self {
        let mut server = TestServer::new();
        let [owner, maintainer, ..] = server.maintainers();
        let (work, c1) = one_commit("one");
        let (_, s1) = server.create_repo(&owner, "tool", &[&maintainer], &work, &main_at(&c1));
        let c2 = work.commit("file", "two");
        let s2 = server.push_state(&owner, &maintainer, "tool", BASE_TIME + 30, &work, &main_at(&c2));
        Self { server, owner, maintainer, work, commits: [c1, c2], states: [s1, s2] }
    }

    /// Asserts that the maintainer's state is deleted permanently and that the repository follows the owner's state.
    fn expect_first_state_in_force(mut self) {
        self.server.eventually_gone(&self.states[1]);
        self.server.eventually_refs(&self.owner, "tool", &main_at(&self.commits[0]));
        self.server.expect_served(&[&self.states[0]]);
        self.server.publish_rejected(&self.states[1], "invalid: this event is deleted");
        // Also after a crash; and a newer state of the maintainer is accepted again.
        let mut server = self.server.restart(StopSignal::Kill);
        server.expect_refs(&self.owner, "tool", &main_at(&self.commits[0]));
        WorkTree::clone(&server.url(&self.owner, "tool")).fsck();
        let c3 = self.work.commit("file", "three");
        server.push_state(&self.owner, &self.maintainer, "tool", BASE_TIME + 200, &self.work, &main_at(&c3));
    }
}

#[test]
fn state_deleted_by_coordinate_is_no_longer_in_force() {
    let mut repo = RepoWithTwoStates::new();
    let deletion = repo.maintainer.delete_coordinate(BASE_TIME + 100, kinds::STATE, "tool");
    repo.server.publish(&deletion);
    repo.expect_first_state_in_force();
}

#[test]
fn state_deleted_by_id_is_no_longer_in_force() {
    let mut repo = RepoWithTwoStates::new();
    let deletion = repo.maintainer.delete(BASE_TIME + 100, &[&repo.states[1]]);
    repo.server.publish(&deletion);
    repo.expect_first_state_in_force();
}

/// Below the disk reserve, requests that free space are accepted, and their space is freed.
#[test]
fn repository_can_be_deleted_below_the_disk_reserve() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, commit) = one_commit("one");
    for who in [&owner, &maintainer] {
        server.create_repo(who, "tool", &[], &work, &main_at(&commit));
    }
    let held = owner.announce("held", BASE_TIME, &[]);
    server.publish_held(&held);
    let folders = |server: &TestServer| repo_folders(&server.git_folder()).len();
    assert!(folders(&server) >= 2);
    let full_disk = [("STORE_RESERVE_BYTES", "1099511627776"), ("LOG_LEVEL", "off")];
    let mut server = server.restart_with(StopSignal::Term, &full_disk);
    let full = "error: the disk is full, nothing was stored";
    server.publish_rejected(&owner.state("tool", BASE_TIME + 5, &main_at(&commit)), full);
    work.push(&server.url(&owner, "tool"), &[&format!(":{MAIN}")]).expect_failure(&["E-DISK-FULL"]);
    let deletion = owner.delete_coordinate(BASE_TIME + 10, kinds::ANNOUNCEMENT, "tool");
    server.publish(&deletion);
    server.publish(&owner.delete(BASE_TIME + 10, &[&held]));
    assert!(!server.repo_exists(&owner, "tool") && !server.repo_exists(&owner, "held"));
    eventually("the folders of both repositories are removed", || (folders(&server) == 1).then_some(()));
    server.expect_refs(&maintainer, "tool", &main_at(&commit));
    // Also a request to vanish, and it is permanent.
    let vanish = maintainer.author.sign(kinds::VANISH, BASE_TIME + 20, &[&["relay", "ALL_RELAYS"]], "");
    server.publish(&vanish);
    eventually("the last folder is removed", || (folders(&server) == 0).then_some(()));
    let mut server = server.restart_with(StopSignal::Kill, &[]);
    assert!(!server.repo_exists(&owner, "tool") && !server.repo_exists(&maintainer, "tool"));
    server.expect_served(&[&deletion, &vanish]);
}

/// A deletion by coordinate removes versions up to its own `created_at`. Events of other authors are not deleted.
#[test]
fn deletion_keeps_newer_events_and_events_of_others() {
    let mut repo = RepoWithTwoStates::new();
    let c3 = repo.work.commit("file", "three");
    let newer =
        repo.server.push_state(&repo.owner, &repo.maintainer, "tool", BASE_TIME + 101, &repo.work, &main_at(&c3));
    let deletion = repo.maintainer.delete_coordinate(BASE_TIME + 100, kinds::STATE, "tool");
    repo.server.publish(&deletion);
    let (accepted, text) = repo.server.client.publish(&repo.maintainer.delete(BASE_TIME + 100, &[&repo.states[0]]));
    assert!(!accepted, "{text}");
    // A coordinate of another author is not deleted either. The answer is not specified.
    let foreign = repo.owner.author.coordinate(kinds::STATE, "tool");
    repo.server.client.publish(&repo.maintainer.author.deletion(BASE_TIME + 100, &[&["a", &foreign]]));
    // This push comes after the requests, so they have been processed when it is done.
    let c4 = repo.work.commit("file", "four");
    let last = repo.server.push_state(&repo.owner, &repo.owner, "tool", BASE_TIME + 102, &repo.work, &main_at(&c4));
    repo.server.expect_served(&[&newer, &last]);
    repo.server.publish_rejected(&repo.states[1], "invalid: this event is deleted");
}

#[test]
fn refs_are_removed_with_the_last_state() {
    for by_id in [true, false] {
        let mut server = TestServer::new();
        let owner = server.maintainer(1);
        let (work, c1) = one_commit("one");
        let t1 = work.tag("v1");
        let (announcement, state) =
            server.create_repo(&owner, "tool", &[], &work, &[(MAIN, &c1), (OLD, &c1), ("refs/tags/v1", &t1)]);
        let deletion = if by_id {
            owner.delete(BASE_TIME, &[&state])
        } else {
            owner.delete_coordinate(BASE_TIME, kinds::STATE, "tool")
        };
        server.publish(&deletion);
        server.eventually_gone(&state);
        server.eventually_refs(&owner, "tool", &[]);
        server.expect_served(&[&announcement]);
        WorkTree::clone(&server.url(&owner, "tool"));
        // A newer state brings the refs back.
        let state = owner.state("tool", BASE_TIME + 1, &main_at(&c1));
        server.publish(&state);
        work.push(&server.url(&owner, "tool"), &["main"]).expect_success();
        server.eventually_served(&state);
        server.eventually_refs(&owner, "tool", &main_at(&c1));
    }
}

#[test]
fn repository_is_removed_with_its_announcement() {
    for by_id in [true, false] {
        let mut server = TestServer::new();
        let owner = server.maintainer(1);
        let (work, c1) = one_commit("one");
        let (announcement, _) = server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
        let deletion = if by_id {
            owner.delete(BASE_TIME, &[&announcement])
        } else {
            owner.delete_coordinate(BASE_TIME, kinds::ANNOUNCEMENT, "tool")
        };
        server.publish(&deletion);
        server.eventually_gone(&announcement);
        eventually("the repository is removed", || (!server.repo_exists(&owner, "tool")).then_some(()));
        let url = server.url(&owner, "tool");
        assert!(!WorkTree::try_clone(&[], &url, &[]).1.success);
        for protocol in ["0", "2"] {
            assert!(!can_fetch(protocol, &url, &c1));
        }
        let mut server = server.restart(StopSignal::Kill);
        assert!(!server.repo_exists(&owner, "tool"));
        server.publish_rejected(&announcement, "invalid: this event is deleted");

        // The repository can be announced again later. It starts empty.
        server.publish(&owner.announce("tool", BASE_TIME + 1, &[]));
        let (other, c2) = one_commit("something else");
        server.publish(&owner.state("tool", BASE_TIME + 1, &main_at(&c2)));
        other.push(&server.url(&owner, "tool"), &["+main"]).expect_success();
        server.expect_refs(&owner, "tool", &main_at(&c2));
    }
}

#[test]
fn followers_of_a_deleted_repository_stay_complete() {
    let mut server = TestServer::new();
    let [owner, _, _, follower] = server.maintainers();
    let (work, c1) = one_commit("one");
    let (announcement, _) = server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    server.publish(&follower.announce("tool", BASE_TIME, &[&owner]));
    server.eventually_refs(&follower, "tool", &main_at(&c1));
    server.publish(&owner.delete(BASE_TIME, &[&announcement]));
    eventually("the repository is removed", || (!server.repo_exists(&owner, "tool")).then_some(()));
    let expect_complete = |server: &TestServer| {
        let clone = WorkTree::clone(&server.url(&follower, "tool"));
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), c1);
    };
    expect_complete(&server);
    expect_complete(&server.restart(StopSignal::Kill));
}

/// A request to vanish (kind 62) that names this relay removes everything by its author
/// (`docs/protocol.md#requests-to-vanish`).
#[test]
fn request_to_vanish_removes_repositories() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let (announcement, state) = server.create_repo(&maintainer, "other", &[&owner], &work, &main_at(&c1));
    let relay = format!("wss://{}", server.service.domain());
    server.publish(&owner.author.vanish(BASE_TIME + 1, &[&relay]));
    eventually("the repository is removed", || (!server.repo_exists(&owner, "tool")).then_some(()));
    server.expect_served(&[&announcement, &state]);
    server.expect_refs(&maintainer, "other", &main_at(&c1));
}

/// With `DELETION_REQUEST_DISRESPECTOR` requests of kinds 5 and 62 are served and have no effect, and NIP-11 does not
/// claim to support them.
#[test]
fn ignored_deletion_and_vanish_requests_have_no_effect() {
    let mut server = TestServer::with_settings(&[("DELETION_REQUEST_DISRESPECTOR", "true")]);
    let owner = server.maintainer(1);
    let (work, commit) = one_commit("one");
    let (announcement, state) = server.create_repo(&owner, "tool", &[], &work, &main_at(&commit));
    let deletion = owner.author.delete(BASE_TIME + 10, &[&announcement, &state]);
    let vanish = owner.author.vanish(BASE_TIME + 10, &["ALL_RELAYS"]);
    for request in [&deletion, &vanish] {
        server.publish(request);
    }
    let mut server = server.restart(StopSignal::Kill);
    server.expect_served(&[&announcement, &state, &deletion, &vanish]);
    server.expect_refs(&owner, "tool", &main_at(&commit));
    let response = server.process.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = response.split_once("\r\n\r\n").expect("a response with a body");
    let document: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let nips: Vec<u64> =
        document["supported_nips"].as_array().expect("a list").iter().filter_map(|nip| nip.as_u64()).collect();
    assert!(nips.contains(&11) && !nips.contains(&9) && !nips.contains(&62), "{nips:?}");
}

/// A request that arrives before its target, from a key that has nothing here, is answered with `OK true` and keeps the
/// target out, also after a crash. It is served when it has kept its target out
/// (`docs/protocol.md#requests-before-their-targets`).
#[test]
fn request_before_its_target_keeps_the_target_out() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (author, vanishing) = (server.maintainer(5), server.maintainer(6));
    let (work, commit) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&commit));
    let repo = owner.repo("tool");
    let (issue, old) = (author.author.issue(BASE_TIME, &repo), vanishing.author.issue(BASE_TIME, &repo));
    let deletion = author.author.delete(BASE_TIME + 10, &[&issue]);
    let vanish = vanishing.author.vanish(BASE_TIME + 10, &["ALL_RELAYS"]);
    for request in [&deletion, &vanish] {
        server.publish(request);
        assert!(!server.is_served(request));
    }
    let mut server = server.restart(StopSignal::Kill);
    server.publish(&deletion);
    assert!(!server.is_served(&deletion), "sending it again changes nothing");
    server.publish_rejected(&issue, "invalid: this event is deleted");
    server.expect_served(&[&deletion]);
    server.publish_rejected(&old, "invalid: this pubkey has requested to vanish");
    server.expect_served(&[&vanish]);
    let mut server = server.restart(StopSignal::Kill);
    server.expect_served(&[&deletion, &vanish]);
    server.publish_rejected(&issue, "invalid: this event is deleted");
    server.publish_rejected(&old, "invalid: this pubkey has requested to vanish");
    let later = vanishing.author.issue(BASE_TIME + 11, &repo);
    server.publish(&later);
    server.expect_served(&[&later]);
}

/// With `DELETION_REQUEST_DISRESPECTOR` a request that was remembered before has no effect, and none is remembered.
#[test]
fn remembered_requests_have_no_effect_if_requests_are_ignored() {
    let mut server = TestServer::new();
    let (owner, author) = (server.maintainer(1), server.maintainer(5));
    let (work, commit) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&commit));
    let issue = author.author.issue(BASE_TIME, &owner.repo("tool"));
    server.publish(&author.author.delete(BASE_TIME + 10, &[&issue]));
    let mut server = server.restart_with(StopSignal::Kill, &[("DELETION_REQUEST_DISRESPECTOR", "true")]);
    server.publish_rejected(&server.maintainer(6).author.delete(BASE_TIME, &[&issue]), "restricted: ");
    server.publish(&issue);
    server.expect_served(&[&issue]);
}

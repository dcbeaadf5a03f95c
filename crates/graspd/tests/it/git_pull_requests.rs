//! Pull request refs, `refs/nostr/<event id>`: any client may push them, and the event says which commit they have
//! (`docs/protocol.md#pull-request-refs`).

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, can_fetch};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

/// A server with a repository of `owner`, and a contributor's working tree with one more commit, `tip`.
struct Contribution {
    server: TestServer,
    owner: Maintainer,
    contributor: Maintainer,
    work: WorkTree,
    base: String,
    tip: String,
}

impl Contribution {
    fn new() -> Self {
        let mut server = TestServer::new();
        let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
        let (work, base) = one_commit("one");
        server.create_repo(&owner, "tool", &[], &work, &main_at(&base));
        work.branch("feature");
        let tip = work.commit("feature", "two");
        Self { server, owner, contributor, work, base, tip }
    }

    fn pull_request(&self, tip: &str) -> Arc<SignedEvent> {
        self.contributor.pull_request(
            BASE_TIME,
            &[&self.owner.repo("tool")],
            tip,
            &["https://elsewhere.example/fork.git"],
        )
    }

    fn url(&self) -> String {
        self.server.url(&self.owner, "tool")
    }

    fn push(&self, oid: &str, name: &str) -> crate::support::git::GitOutput {
        self.work.push(&self.url(), &[&format!("+{oid}:{name}")])
    }

    /// Asserts that the repository has its branch and the ref of this pull request.
    #[track_caller]
    fn expect_pull_ref(&self, request: &SignedEvent, tip: &str) {
        self.server.expect_refs(&self.owner, "tool", &[(MAIN, &self.base), (&pull_ref(request), tip)]);
    }

    /// Asserts that the repository has its branch and no other ref.
    #[track_caller]
    fn expect_no_pull_ref(&self) {
        self.server.expect_refs(&self.owner, "tool", &main_at(&self.base));
    }
}

fn pull_ref(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

/// A push to `refs/nostr/<id>` is rejected if the known event names another commit; if it names this one, the event is
/// released.
#[test]
fn pull_request_event_before_its_push() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    let (accepted, text) = contribution.server.client.publish(&request);
    assert!(accepted && text.starts_with("purgatory: ") && text.contains(&contribution.tip), "{text}");
    assert!(!contribution.server.is_served(&request));
    // Another commit is rejected, and the report names both commits.
    let wrong = contribution.work.commit("feature", "three");
    contribution.push(&wrong, &pull_ref(&request)).expect_failure(&["E-PR-COMMIT", &contribution.tip, &wrong]);
    contribution.expect_no_pull_ref();
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution.server.expect_served(&[&request]);
    contribution.expect_pull_ref(&request, &contribution.tip);
    // The ref can be fetched by its name.
    let clone = WorkTree::clone(&contribution.url());
    clone.fetch("2", &contribution.url(), &[&pull_ref(&request)]).expect_success();
    assert_eq!(clone.oid("FETCH_HEAD"), contribution.tip);
    // After the release another commit is rejected too; the same commit can be pushed again.
    contribution.push(&wrong, &pull_ref(&request)).expect_failure(&["E-PR-COMMIT"]);
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution.expect_pull_ref(&request, &contribution.tip);
}

/// Any client may push `refs/nostr/<id>` before the event exists.
#[test]
fn pull_request_push_before_its_event() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    // Without an event the commit cannot be fetched.
    contribution.expect_no_pull_ref();
    for protocol in ["0", "2"] {
        assert!(!can_fetch(protocol, &contribution.url(), &contribution.tip), "protocol {protocol}");
    }
    contribution.server.publish(&request);
    contribution.server.eventually_served(&request);
    contribution.expect_pull_ref(&request, &contribution.tip);
    for protocol in ["0", "2"] {
        assert!(can_fetch(protocol, &contribution.url(), &contribution.tip), "protocol {protocol}");
    }
}

/// If the event arrives after an upload of another commit, the upload is removed and the event is held.
#[test]
fn pull_request_push_of_a_wrong_commit_before_its_event() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    let wrong = contribution.work.commit_orphan("wrong", "wrong");
    contribution.push(&wrong, &pull_ref(&request)).expect_success();
    contribution.server.publish_held(&request);
    contribution.expect_no_pull_ref();
    contribution.push(&wrong, &pull_ref(&request)).expect_failure(&["E-PR-COMMIT"]);
    assert!(!contribution.server.is_served(&request));
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution.server.expect_served(&[&request]);
    contribution.expect_pull_ref(&request, &contribution.tip);
    for protocol in ["0", "2"] {
        assert!(!can_fetch(protocol, &contribution.url(), &wrong), "protocol {protocol}");
    }
}

#[test]
fn upload_can_be_replaced_before_its_event_arrives() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    let wrong = contribution.work.commit_orphan("wrong", "wrong");
    contribution.push(&wrong, &pull_ref(&request)).expect_success();
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution.server.publish(&request);
    contribution.server.eventually_served(&request);
    contribution.expect_pull_ref(&request, &contribution.tip);
}

#[test]
fn pull_request_ref_with_a_malformed_event_id_is_rejected() {
    let contribution = Contribution::new();
    for bad in ["123", &"AB".repeat(32), &"ab".repeat(31), &"ab".repeat(33), &"xy".repeat(32), "not-a-valid-event-id"] {
        contribution.push(&contribution.tip, &format!("refs/nostr/{bad}")).expect_failure(&["E-PR-ID", "64 hex"]);
    }
    contribution.push(&contribution.tip, &format!("refs/nostr/{}/x", "ab".repeat(32))).expect_failure(&["E-PR-ID"]);
    contribution.expect_no_pull_ref();
}

#[test]
fn pull_request_ref_of_another_kind_of_event_is_rejected() {
    let mut contribution = Contribution::new();
    let issue = contribution.contributor.author.issue(BASE_TIME, &contribution.owner.repo("tool"));
    contribution.server.publish(&issue);
    contribution.push(&contribution.tip, &pull_ref(&issue)).expect_failure(&["E-PR-KIND"]);
    contribution.expect_no_pull_ref();
    // Also if the event is held.
    let state = contribution.owner.state("tool", BASE_TIME + 1, &main_at(&contribution.tip));
    contribution.server.publish_held(&state);
    contribution.push(&contribution.tip, &pull_ref(&state)).expect_failure(&["E-PR-KIND"]);
}

#[test]
fn only_the_author_can_delete_a_pull_request() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    contribution.server.publish_held(&request);
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution
        .work
        .push(&contribution.url(), &[&format!(":{}", pull_ref(&request))])
        .expect_failure(&["E-PR-DELETE", "deletion request"]);
    contribution.expect_pull_ref(&request, &contribution.tip);
    let (accepted, _) = contribution.server.client.publish(&contribution.owner.delete(BASE_TIME, &[&request]));
    assert!(!accepted);
    contribution.expect_pull_ref(&request, &contribution.tip);
    contribution.server.publish(&contribution.contributor.delete(BASE_TIME, &[&request]));
    contribution.server.eventually_gone(&request);
    contribution.server.eventually_refs(&contribution.owner, "tool", &main_at(&contribution.base));
    // Neither the event nor its ref come back.
    contribution.server.publish_rejected(&request, "invalid: this event is deleted");
    let mut server = contribution.server.restart(StopSignal::Kill);
    server.expect_refs(&contribution.owner, "tool", &main_at(&contribution.base));
    assert!(!server.is_served(&request));
}

#[test]
fn held_pull_request_can_be_deleted() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    contribution.server.publish_held(&request);
    contribution.server.publish(&contribution.contributor.delete(BASE_TIME, &[&request]));
    // This push is now an upload without an event.
    contribution.push(&contribution.tip, &pull_ref(&request));
    contribution.server.publish_rejected(&request, "invalid: this event is deleted");
    contribution.expect_no_pull_ref();
}

#[test]
fn pull_request_with_a_present_commit_needs_no_push() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.base);
    contribution.server.publish(&request);
    contribution.server.eventually_served(&request);
    contribution.server.eventually_refs(
        &contribution.owner,
        "tool",
        &[(MAIN, &contribution.base), (&pull_ref(&request), &contribution.base)],
    );
}

#[test]
fn pull_request_update_has_its_own_ref() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    contribution.server.publish_held(&request);
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    let next = contribution.work.commit("feature", "three");
    let update = contribution.contributor.pull_request_event(
        kinds::PULL_REQUEST_UPDATE,
        BASE_TIME + 1,
        &[&contribution.owner.repo("tool")],
        &next,
        &[],
    );
    contribution.server.publish_held(&update);
    contribution.push(&next, &pull_ref(&update)).expect_success();
    contribution.server.expect_served(&[&request, &update]);
    let expected = [(MAIN, &contribution.base), (&pull_ref(&request), &contribution.tip), (&pull_ref(&update), &next)];
    contribution.server.expect_refs(&contribution.owner, "tool", &expected.map(|(name, oid)| (name, oid.as_str())));
}

/// A pull request may name several repositories, hosted here or not.
#[test]
fn every_hosted_target_gets_the_ref() {
    let mut contribution = Contribution::new();
    let [_, other, _, not_hosted] = contribution.server.maintainers();
    // Another owner, unrelated to the first, and a third whose repository is not hosted here.
    let (work, theirs) = one_commit("theirs");
    contribution.server.create_repo(&other, "fork", &[], &work, &main_at(&theirs));
    let targets = [contribution.owner.repo("tool"), other.repo("fork"), not_hosted.repo("tool")];
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let request = contribution.contributor.pull_request(BASE_TIME, &targets, &contribution.tip, &[]);
    contribution.server.publish_held(&request);
    contribution.push(&contribution.tip, &pull_ref(&request)).expect_success();
    contribution.server.expect_served(&[&request]);
    contribution.expect_pull_ref(&request, &contribution.tip);
    contribution.server.eventually_refs(&other, "fork", &[(MAIN, &theirs), (&pull_ref(&request), &contribution.tip)]);
    let clone = WorkTree::clone(&contribution.server.url(&other, "fork"));
    clone.fetch("2", &contribution.server.url(&other, "fork"), &[&pull_ref(&request)]).expect_success();
    clone.fsck();
}

#[test]
fn push_of_branch_and_pull_request_is_atomic() {
    let mut contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    contribution.server.publish_held(&request);
    let next = contribution.work.commit("feature", "three");
    let state = contribution.owner.state("tool", BASE_TIME + 1, &main_at(&next));
    contribution.server.publish_held(&state);
    let push = |main: &str, tip: &str| {
        let refspecs = [format!("+{main}:{MAIN}"), format!("+{tip}:{}", pull_ref(&request))];
        contribution.work.push(&contribution.url(), &[&refspecs[0], &refspecs[1]])
    };
    push(&next, &next).expect_failure(&["E-PR-COMMIT"]);
    push(&contribution.tip, &contribution.tip).expect_failure(&["E-STATE-MISMATCH"]);
    contribution.expect_no_pull_ref();
    push(&next, &contribution.tip).expect_success();
    contribution.server.expect_served(&[&request, &state]);
    contribution.server.expect_refs(
        &contribution.owner,
        "tool",
        &[(MAIN, &next), (&pull_ref(&request), &contribution.tip)],
    );
}

#[test]
fn held_repository_accepts_uploads() {
    let mut server = TestServer::new();
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], &c1, &[]);
    let refspec = format!("{c1}:{}", pull_ref(&request));
    work.push(&server.url(&owner, "tool"), &[&refspec]).expect_success();
    // But the event is rejected, because held events do not count as links.
    server.publish_rejected(&request, "restricted: ");
    server.expect_refs(&owner, "tool", &[]);
    server.push_state(&owner, &owner, "tool", BASE_TIME, &work, &main_at(&c1));
    server.publish(&request);
    server.eventually_served(&request);
}

#[test]
fn pull_request_push_cannot_create_other_refs() {
    let contribution = Contribution::new();
    let request = contribution.pull_request(&contribution.tip);
    for name in ["refs/nostr", "refs/pull/1/head", "refs/for/main", "refs/remotes/origin/main", "refs/nostrum/x"] {
        contribution.push(&contribution.tip, name).expect_failure(&["E-REF-"]);
    }
    let refspecs =
        [format!("{}:{}", contribution.tip, pull_ref(&request)), format!("{}:refs/heads/mine", contribution.tip)];
    contribution.work.push(&contribution.url(), &[&refspecs[0], &refspecs[1]]).expect_failure(&["E-STATE-MISSING"]);
    contribution.expect_no_pull_ref();
}

//! `refs/nostr/<event id>`: anybody may bring a commit, and the event that names it says which.

use std::sync::Arc;

use grasp_core::nostr::{SignedEvent, kinds};

use crate::support::git::{MAIN, Maintainer, THEN, Work, fetchable};
use crate::support::test_server::{End, Stage, main_at, one_commit};

/// O's repository `tool` at a commit, and a guest's clone with one more.
struct Offer {
    stage: Stage,
    owner: Maintainer,
    guest: Maintainer,
    work: Work,
    base: String,
    tip: String,
}

impl Offer {
    fn new() -> Self {
        let mut stage = Stage::new();
        let (owner, guest) = (stage.person(1), stage.person(5));
        let (work, base) = one_commit("one");
        stage.found(&owner, "tool", &[], &work, &main_at(&base));
        work.branch("feature");
        let tip = work.commit("feature", "two");
        Self { stage, owner, guest, work, base, tip }
    }

    fn request(&self, tip: &str) -> Arc<SignedEvent> {
        self.guest.pull_request(THEN, &[&self.owner.repo("tool")], tip, &["https://elsewhere.example/fork.git"])
    }

    fn url(&self) -> String {
        self.stage.url(&self.owner, "tool")
    }

    fn push(&self, oid: &str, name: &str) -> crate::support::git::Said {
        self.work.push(&self.url(), &[&format!("+{oid}:{name}")])
    }

    /// Demands that the repository has its branch and this pull request.
    #[track_caller]
    fn expect_offered(&self, request: &SignedEvent, tip: &str) {
        self.stage.expect_refs(&self.owner, "tool", &[(MAIN, &self.base), (&name(request), tip)]);
    }

    #[track_caller]
    fn expect_nothing_offered(&self) {
        self.stage.expect_refs(&self.owner, "tool", &main_at(&self.base));
    }
}

fn name(event: &SignedEvent) -> String {
    format!("refs/nostr/{}", event.id)
}

#[test]
fn g1_58_event_first() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    let (accepted, text) = offer.stage.client.publish(&request);
    assert!(accepted && text.starts_with("purgatory: ") && text.contains(&offer.tip), "{text}");
    assert!(!offer.stage.served(&request));
    // Another commit is refused, with both named.
    let wrong = offer.work.commit("feature", "three");
    offer.push(&wrong, &name(&request)).refused(&["E-PR-COMMIT", &offer.tip, &wrong]);
    offer.expect_nothing_offered();
    offer.push(&offer.tip, &name(&request)).done();
    offer.stage.expect_served(&[&request]);
    offer.expect_offered(&request, &offer.tip);
    // Anybody can have it, by name and by id.
    let clone = Work::clone(&offer.url());
    clone.fetch("2", &offer.url(), &[&name(&request)]).done();
    assert_eq!(clone.oid("FETCH_HEAD"), offer.tip);
    // A served one takes no other commit either; the same again is fine.
    offer.push(&wrong, &name(&request)).refused(&["E-PR-COMMIT"]);
    offer.push(&offer.tip, &name(&request)).done();
    offer.expect_offered(&request, &offer.tip);
}

#[test]
fn g1_57_git_first() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    offer.push(&offer.tip, &name(&request)).done();
    // Nobody has signed it, so nobody can have it.
    offer.expect_nothing_offered();
    for protocol in ["0", "2"] {
        assert!(!fetchable(protocol, &offer.url(), &offer.tip), "protocol {protocol}");
    }
    offer.stage.publish(&request);
    offer.stage.eventually_served(&request);
    offer.expect_offered(&request, &offer.tip);
    for protocol in ["0", "2"] {
        assert!(fetchable(protocol, &offer.url(), &offer.tip), "protocol {protocol}");
    }
}

#[test]
fn g1_59_git_first_with_the_wrong_commit() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    let wrong = offer.work.orphan("wrong", "wrong");
    offer.push(&wrong, &name(&request)).done();
    offer.stage.hold(&request);
    offer.expect_nothing_offered();
    offer.push(&wrong, &name(&request)).refused(&["E-PR-COMMIT"]);
    assert!(!offer.stage.served(&request));
    offer.push(&offer.tip, &name(&request)).done();
    offer.stage.expect_served(&[&request]);
    offer.expect_offered(&request, &offer.tip);
    for protocol in ["0", "2"] {
        assert!(!fetchable(protocol, &offer.url(), &wrong), "protocol {protocol}");
    }
}

#[test]
fn an_upload_may_be_corrected_before_its_event_comes() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    let wrong = offer.work.orphan("wrong", "wrong");
    offer.push(&wrong, &name(&request)).done();
    offer.push(&offer.tip, &name(&request)).done();
    offer.stage.publish(&request);
    offer.stage.eventually_served(&request);
    offer.expect_offered(&request, &offer.tip);
}

#[test]
fn g1_57_names_that_are_no_event_ids() {
    let offer = Offer::new();
    for bad in ["123", &"AB".repeat(32), &"ab".repeat(31), &"ab".repeat(33), &"xy".repeat(32), "not-a-valid-event-id"] {
        offer.push(&offer.tip, &format!("refs/nostr/{bad}")).refused(&["E-PR-ID", "64 hex"]);
    }
    offer.push(&offer.tip, &format!("refs/nostr/{}/x", "ab".repeat(32))).refused(&["E-PR-ID"]);
    offer.expect_nothing_offered();
}

#[test]
fn s16_item_5_events_that_are_no_pull_requests() {
    let mut offer = Offer::new();
    let issue = offer.guest.author.issue(THEN, &offer.owner.repo("tool"));
    offer.stage.publish(&issue);
    offer.push(&offer.tip, &name(&issue)).refused(&["E-PR-KIND"]);
    offer.expect_nothing_offered();
    // A state that waits is known, too.
    let state = offer.owner.state("tool", THEN + 1, &main_at(&offer.tip));
    offer.stage.hold(&state);
    offer.push(&offer.tip, &name(&state)).refused(&["E-PR-KIND"]);
}

#[test]
fn pull_requests_are_deleted_by_their_authors_only() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    offer.stage.hold(&request);
    offer.push(&offer.tip, &name(&request)).done();
    offer.work.push(&offer.url(), &[&format!(":{}", name(&request))]).refused(&["E-PR-DELETE", "deletion event"]);
    offer.expect_offered(&request, &offer.tip);
    let (accepted, _) = offer.stage.client.publish(&offer.owner.delete(THEN, &[&request]));
    assert!(!accepted);
    offer.expect_offered(&request, &offer.tip);
    offer.stage.publish(&offer.guest.delete(THEN, &[&request]));
    offer.stage.eventually_gone(&request);
    offer.stage.eventually_refs(&offer.owner, "tool", &main_at(&offer.base));
    // It does not come back, neither the event nor its data.
    offer.stage.refuse(&request, "invalid: this event is deleted");
    let mut stage = offer.stage.again(End::Killed);
    stage.expect_refs(&offer.owner, "tool", &main_at(&offer.base));
    assert!(!stage.served(&request));
}

#[test]
fn a_held_pull_request_can_be_deleted() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    offer.stage.hold(&request);
    offer.stage.publish(&offer.guest.delete(THEN, &[&request]));
    // What comes now is an upload that nobody has signed, and nobody will.
    offer.push(&offer.tip, &name(&request));
    offer.stage.refuse(&request, "invalid: this event is deleted");
    offer.expect_nothing_offered();
}

#[test]
fn a_commit_that_is_here_needs_no_push() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.base);
    offer.stage.publish(&request);
    offer.stage.eventually_served(&request);
    offer.stage.eventually_refs(&offer.owner, "tool", &[(MAIN, &offer.base), (&name(&request), &offer.base)]);
}

#[test]
fn updates_are_pull_requests_with_refs_of_their_own() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    offer.stage.hold(&request);
    offer.push(&offer.tip, &name(&request)).done();
    let next = offer.work.commit("feature", "three");
    let update = offer.guest.offer(kinds::PULL_REQUEST_UPDATE, THEN + 1, &[&offer.owner.repo("tool")], &next, &[]);
    offer.stage.hold(&update);
    offer.push(&next, &name(&update)).done();
    offer.stage.expect_served(&[&request, &update]);
    let expected = [(MAIN, &offer.base), (&name(&request), &offer.tip), (&name(&update), &next)];
    offer.stage.expect_refs(&offer.owner, "tool", &expected.map(|(name, oid)| (name, oid.as_str())));
}

#[test]
fn s16_item_9_every_hosted_target_gets_the_ref() {
    let mut offer = Offer::new();
    let [_, other, _, stranger] = offer.stage.cast();
    // Another owner who has nothing to do with the first, and a third whose repository is elsewhere.
    let (work, theirs) = one_commit("theirs");
    offer.stage.found(&other, "fork", &[], &work, &main_at(&theirs));
    let targets = [offer.owner.repo("tool"), other.repo("fork"), stranger.repo("tool")];
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let request = offer.guest.pull_request(THEN, &targets, &offer.tip, &[]);
    offer.stage.hold(&request);
    offer.push(&offer.tip, &name(&request)).done();
    offer.stage.expect_served(&[&request]);
    offer.expect_offered(&request, &offer.tip);
    offer.stage.eventually_refs(&other, "fork", &[(MAIN, &theirs), (&name(&request), &offer.tip)]);
    let clone = Work::clone(&offer.stage.url(&other, "fork"));
    clone.fetch("2", &offer.stage.url(&other, "fork"), &[&name(&request)]).done();
    clone.fsck();
}

#[test]
fn mixed_pushes_are_all_or_nothing() {
    let mut offer = Offer::new();
    let request = offer.request(&offer.tip);
    offer.stage.hold(&request);
    let next = offer.work.commit("feature", "three");
    let state = offer.owner.state("tool", THEN + 1, &main_at(&next));
    offer.stage.hold(&state);
    let push = |main: &str, tip: &str| {
        let refspecs = [format!("+{main}:{MAIN}"), format!("+{tip}:{}", name(&request))];
        offer.work.push(&offer.url(), &[&refspecs[0], &refspecs[1]])
    };
    push(&next, &next).refused(&["E-PR-COMMIT"]);
    push(&offer.tip, &offer.tip).refused(&["E-STATE-MISMATCH"]);
    offer.expect_nothing_offered();
    push(&next, &offer.tip).done();
    offer.stage.expect_served(&[&request, &state]);
    offer.stage.expect_refs(&offer.owner, "tool", &[(MAIN, &next), (&name(&request), &offer.tip)]);
}

#[test]
fn a_repository_that_waits_takes_uploads_too() {
    let mut stage = Stage::new();
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    stage.hold(&owner.announce("tool", THEN, &[]));
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &c1, &[]);
    let refspec = format!("{c1}:{}", name(&request));
    work.push(&stage.url(&owner, "tool"), &[&refspec]).done();
    // But a pull request belongs to something that is served (G1-34).
    stage.refuse(&request, "restricted: ");
    stage.expect_refs(&owner, "tool", &[]);
    stage.advance(&owner, &owner, "tool", THEN, &work, &main_at(&c1));
    stage.publish(&request);
    stage.eventually_served(&request);
}

#[test]
fn nobody_gets_a_branch_by_the_way_of_a_pull_request() {
    let offer = Offer::new();
    let request = offer.request(&offer.tip);
    for name in ["refs/nostr", "refs/pull/1/head", "refs/for/main", "refs/remotes/origin/main", "refs/nostrum/x"] {
        offer.push(&offer.tip, name).refused(&["E-REF-"]);
    }
    let refspecs = [format!("{}:{}", offer.tip, name(&request)), format!("{}:refs/heads/mine", offer.tip)];
    offer.work.push(&offer.url(), &[&refspecs[0], &refspecs[1]]).refused(&["E-STATE-MISSING"]);
    offer.expect_nothing_offered();
}

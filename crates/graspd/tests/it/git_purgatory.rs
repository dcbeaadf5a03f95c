//! Waiting for git data: how it is told, how it ends, and that a restart changes nothing.

use std::fs;

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::Value;

use crate::support::git::{MAIN, Maintainer, THEN, Work, repo_path};
use crate::support::test_server::{End, Stage, main_at, one_commit};
use crate::support::{eventually, wire};

/// What is said about what waits at a repository.
#[track_caller]
fn waiting(stage: &Stage, who: &Maintainer, d: &str) -> String {
    let path = format!("{}/purgatory", repo_path(&who.npub(), d));
    let answer = wire::ask(&stage.server, "GET", &path, &[]);
    assert_eq!(answer.status, 200, "{}", answer.head);
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")), "{}", answer.head);
    answer.expect_open_to_everybody();
    let document: Value = serde_json::from_slice(&answer.body).expect("JSON");
    document.to_string()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

#[test]
fn a_client_can_ask_why_its_event_is_not_visible() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", THEN, &[&maintainer]);
    let states =
        [owner.state("tool", THEN, &main_at(&c1)), maintainer.state("tool", THEN - 1, &main_at(&"b".repeat(40)))];
    stage.hold(&announcement);
    let text = waiting(&stage, &owner, "tool");
    assert!(text.contains(&id(&announcement)), "{text}");
    for state in &states {
        stage.hold(state);
    }
    let text = waiting(&stage, &owner, "tool");
    for word in [&id(&announcement), &id(&states[0]), &id(&states[1]), &c1, &"b".repeat(40)] {
        assert!(text.contains(word.as_str()), "no {word} in {text}");
    }
    // The page says the same.
    let page = wire::ask(&stage.server, "GET", &repo_path(&owner.npub(), "tool"), &[]);
    assert_eq!(page.status, 200);
    assert!(page.text().contains(&c1[..7]), "{}", page.text());

    work.push(&stage.url(&owner, "tool"), &["main"]).done();
    let text = waiting(&stage, &owner, "tool");
    assert!(!text.contains(&id(&announcement)) && !text.contains(&id(&states[0])), "{text}");
    // A pull request that waits is told, too.
    let request = stage.person(5).pull_request(THEN, &[&owner.repo("tool")], &"d".repeat(40), &[]);
    stage.hold(&request);
    let text = waiting(&stage, &owner, "tool");
    assert!(text.contains(&id(&request)) && text.contains(&"d".repeat(40)), "{text}");
    // Where there is no repository there is nothing to tell.
    let path = format!("{}/purgatory", repo_path(&owner.npub(), "other"));
    assert_eq!(wire::ask(&stage.server, "GET", &path, &[]).status, 404);
}

/// Long enough for an announcement, a state and a push on a busy machine, short enough to wait for.
const EXPIRY: (&str, &str) = ("PURGATORY_EXPIRY_SECS", "4");

#[test]
fn g1_38_an_expired_state_allows_nothing_and_what_is_served_stays() {
    let mut stage = Stage::with(&[EXPIRY]);
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    let c3 = work.commit("file", "three");
    let (announcement, s1) = stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let s2 = owner.state("tool", THEN + 1, &main_at(&c2));
    stage.hold(&s2);
    let url = stage.url(&owner, "tool");
    // The wrong commit shows which states wait, without fulfilling any.
    eventually("the state expires", || {
        let said = work.push(&url, &[&format!("{c3}:{MAIN}")]);
        assert!(!said.success, "{}", said.err);
        said.err.contains("E-STATE-MISSING").then_some(())
    });
    work.push(&url, &[&format!("{c2}:{MAIN}")]).refused(&["E-STATE-MISSING"]);
    stage.expect_served(&[&announcement, &s1]);
    stage.expect_refs(&owner, "tool", &main_at(&c1));
    // Whoever comes too late may come again.
    stage.hold(&s2);
    work.push(&url, &[&format!("{c2}:{MAIN}")]).done();
    stage.expect_served(&[&s2]);
}

#[test]
fn g1_38_an_expired_announcement_takes_its_empty_repository_with_it() {
    let mut stage = Stage::with(&[EXPIRY]);
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", THEN, &[]);
    stage.hold(&announcement);
    assert!(stage.exists(&owner, "tool"));
    eventually("it expires", || (!stage.exists(&owner, "tool")).then_some(()));
    work.push(&stage.url(&owner, "tool"), &["main"]).refused(&["not found"]);
    stage.refuse(&owner.state("tool", THEN, &main_at(&c1)), "invalid: no announcement exists");
    // And again from the beginning.
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
}

#[test]
fn uploads_that_nobody_signs_are_dropped() {
    let mut stage = Stage::with(&[EXPIRY]);
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &c2, &[]);
    let refspec = format!("{c2}:refs/nostr/{}", request.id);
    work.push(&stage.url(&owner, "tool"), &[&refspec]).done();
    let staged = stage.git_folder().join("staged");
    assert!(fs::read_dir(&staged).expect("a folder").next().is_some(), "it is kept apart");
    eventually("it is dropped", || fs::read_dir(&staged).expect("a folder").next().is_none().then_some(()));
    // The event waits now like any other.
    stage.hold(&request);
    work.push(&stage.url(&owner, "tool"), &[&refspec]).done();
    stage.expect_served(&[&request]);
}

#[test]
fn d_06_deleted_states_allow_nothing() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    // A maintainer who has no announcement.
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    let url = stage.url(&owner, "tool");
    let by_id = maintainer.state("tool", THEN, &main_at(&c1));
    stage.hold(&by_id);
    stage.publish(&maintainer.delete(THEN, &[&by_id]));
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING"]);
    stage.refuse(&by_id, "invalid: this event is deleted");

    let by_coordinate = maintainer.state("tool", THEN + 1, &main_at(&c1));
    stage.hold(&by_coordinate);
    stage.publish(&maintainer.delete_all(THEN + 1, kinds::STATE, "tool"));
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING"]);
    stage.refuse(&by_coordinate, "invalid: this event is deleted");
    stage.expect_refs(&owner, "tool", &[]);

    // Of others nothing can be deleted.
    let state = owner.state("tool", THEN + 2, &main_at(&c1));
    stage.hold(&state);
    let (accepted, text) = stage.client.publish(&maintainer.delete(THEN + 2, &[&state]));
    assert!(!accepted, "{text}");
    work.push(&url, &["main"]).done();
    stage.expect_served(&[&state]);
}

#[test]
fn g1_14_a_withdrawn_announcement_takes_its_empty_repository_with_it() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let announcement = owner.announce("tool", THEN, &[]);
    stage.hold(&announcement);
    assert!(stage.exists(&owner, "tool"));
    stage.refuse(&owner.announce_elsewhere("tool", THEN + 1, &[]), "invalid: ");
    assert!(!stage.exists(&owner, "tool"));
    // By deletion, too.
    let announcement = owner.announce("tool", THEN + 2, &[]);
    stage.hold(&announcement);
    assert!(stage.exists(&owner, "tool"));
    stage.publish(&owner.delete_all(THEN + 2, kinds::ANNOUNCEMENT, "tool"));
    assert!(!stage.exists(&owner, "tool"));
}

#[test]
fn g1_42_a_restart_changes_nothing() {
    for end in [End::Asked, End::Killed] {
        let mut stage = Stage::new();
        let [owner, maintainer, ..] = stage.cast();
        let guest = stage.person(5);
        let (work, c1) = one_commit("one");
        let t1 = work.tag("v1");
        let declared = [(MAIN, c1.as_str()), ("refs/tags/v1", t1.as_str())];
        let (announcement, s1) = stage.found(&owner, "tool", &[&maintainer], &work, &declared);
        let c2 = work.commit("file", "two");
        let c3 = work.commit("file", "three");
        let [served, upload] = [&c2, &c3].map(|oid| guest.pull_request(THEN, &[&owner.repo("tool")], oid, &[]));
        stage.hold(&served);
        let [served_ref, upload_ref] = [&served, &upload].map(|event| format!("refs/nostr/{}", event.id));
        // One that is served, one that nobody has signed, and a state that waits.
        let url = stage.url(&owner, "tool");
        work.push(&url, &[&format!("{c2}:{served_ref}")]).done();
        work.push(&url, &[&format!("{c3}:{upload_ref}")]).done();
        let held_announcement = owner.announce("other", THEN, &[]);
        stage.hold(&held_announcement);
        let s2 = maintainer.state("tool", THEN + 1, &main_at(&c2));
        let c4 = work.orphan("elsewhere", "four");
        let s3 = maintainer.state("tool", THEN + 2, &main_at(&c4));
        stage.hold(&s3);

        let mut stage = stage.again(end);
        stage.expect_served(&[&announcement, &s1, &served]);
        stage.expect_refs(&owner, "tool", &[declared[0], declared[1], (&served_ref, &c2)]);
        assert_eq!(stage.remote(&owner, "tool").head.as_deref(), Some(MAIN));
        assert!(stage.exists(&owner, "other"), "{end:?}");
        let url = stage.url(&owner, "tool");
        let clone = Work::clone(&url);
        clone.fsck();
        assert_eq!(clone.oid("v1"), t1);
        // What waited goes on waiting, and what was uploaded still is.
        stage.publish(&upload);
        stage.eventually_served(&upload);
        work.push(&url, &[&format!("+{c4}:{MAIN}"), ":refs/tags/v1"]).done();
        stage.expect_served(&[&s3]);
        // What is older than that is of no use any more.
        stage.publish(&s2);
        assert!(!stage.served(&s2));

        let stage = stage.again(end);
        stage.expect_refs(&owner, "tool", &[(MAIN, &c4), (&served_ref, &c2), (&upload_ref, &c3)]);
        Work::clone(&stage.url(&owner, "tool")).fsck();
    }
}

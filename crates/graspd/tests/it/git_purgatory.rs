//! Events that wait for git data: the purgatory page, expiry, deletion and restarts (`docs/protocol.md#purgatory`).

use std::fs;

use grasp_core::nostr::{SignedEvent, kinds};
use serde_json::Value;

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, repo_path};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};
use crate::support::{eventually, wire};

/// Returns the purgatory document of a repository as text.
#[track_caller]
fn purgatory(server: &TestServer, who: &Maintainer, d: &str) -> String {
    let path = format!("{}/purgatory", repo_path(&who.npub(), d));
    let response = wire::request(&server.process, "GET", &path, &[]);
    assert_eq!(response.status, 200, "{}", response.head);
    assert!(
        response.header("content-type").is_some_and(|kind| kind.starts_with("application/json")),
        "{}",
        response.head
    );
    response.expect_cors_headers();
    let document: Value = serde_json::from_slice(&response.body).expect("valid JSON");
    document.to_string()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

#[test]
fn purgatory_page_lists_held_events() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", BASE_TIME, &[&maintainer]);
    let states = [
        owner.state("tool", BASE_TIME, &main_at(&c1)),
        maintainer.state("tool", BASE_TIME - 1, &main_at(&"b".repeat(40))),
    ];
    server.publish_held(&announcement);
    let text = purgatory(&server, &owner, "tool");
    assert!(text.contains(&id(&announcement)), "{text}");
    for state in &states {
        server.publish_held(state);
    }
    let text = purgatory(&server, &owner, "tool");
    for word in [&id(&announcement), &id(&states[0]), &id(&states[1]), &c1, &"b".repeat(40)] {
        assert!(text.contains(word.as_str()), "no {word} in {text}");
    }
    // The repository page shows the same.
    let page = wire::request(&server.process, "GET", &repo_path(&owner.npub(), "tool"), &[]);
    assert_eq!(page.status, 200);
    assert!(page.text().contains(&c1[..7]), "{}", page.text());

    work.push(&server.url(&owner, "tool"), &["main"]).expect_success();
    let text = purgatory(&server, &owner, "tool");
    assert!(!text.contains(&id(&announcement)) && !text.contains(&id(&states[0])), "{text}");
    // A held pull request is listed, too.
    let request = server.maintainer(5).pull_request(BASE_TIME, &[&owner.repo("tool")], &"d".repeat(40), &[]);
    server.publish_held(&request);
    let text = purgatory(&server, &owner, "tool");
    assert!(text.contains(&id(&request)) && text.contains(&"d".repeat(40)), "{text}");
    // A repository that does not exist has no purgatory page.
    let path = format!("{}/purgatory", repo_path(&owner.npub(), "other"));
    assert_eq!(wire::request(&server.process, "GET", &path, &[]).status, 404);
}

/// Long enough for an announcement, a state and a push on a busy machine, short enough to wait for.
const EXPIRY: (&str, &str) = ("PURGATORY_EXPIRY_SECS", "4");

/// A held event is given up after the expiry time. Served events are not affected.
#[test]
fn expired_state_authorises_no_push() {
    let mut server = TestServer::with_settings(&[EXPIRY]);
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    let c3 = work.commit("file", "three");
    let (announcement, s1) = server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let s2 = owner.state("tool", BASE_TIME + 1, &main_at(&c2));
    server.publish_held(&s2);
    let url = server.url(&owner, "tool");
    // A push of another commit is rejected with a code that tells whether a state is held, and does not release it.
    eventually("the state expires", || {
        let output = work.push(&url, &[&format!("{c3}:{MAIN}")]);
        assert!(!output.success, "{}", output.stderr);
        output.stderr.contains("E-STATE-MISSING").then_some(())
    });
    work.push(&url, &[&format!("{c2}:{MAIN}")]).expect_failure(&["E-STATE-MISSING"]);
    server.expect_served(&[&announcement, &s1]);
    server.expect_refs(&owner, "tool", &main_at(&c1));
    // The state can be published again.
    server.publish_held(&s2);
    work.push(&url, &[&format!("{c2}:{MAIN}")]).expect_success();
    server.expect_served(&[&s2]);
}

#[test]
fn empty_repository_is_removed_with_its_expired_announcement() {
    let mut server = TestServer::with_settings(&[EXPIRY]);
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    server.publish_held(&announcement);
    assert!(server.repo_exists(&owner, "tool"));
    eventually("the announcement expires", || (!server.repo_exists(&owner, "tool")).then_some(()));
    work.push(&server.url(&owner, "tool"), &["main"]).expect_failure(&["not found"]);
    server.publish_rejected(&owner.state("tool", BASE_TIME, &main_at(&c1)), "invalid: no announcement exists");
    // The repository can be announced again.
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
}

#[test]
fn uploads_without_event_expire() {
    let mut server = TestServer::with_settings(&[EXPIRY]);
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let c2 = work.commit("file", "two");
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], &c2, &[]);
    let refspec = format!("{c2}:refs/nostr/{}", request.id);
    work.push(&server.url(&owner, "tool"), &[&refspec]).expect_success();
    let staged = server.git_folder().join("staged");
    assert!(fs::read_dir(&staged).expect("cannot read the folder").next().is_some(), "the upload is not staged");
    eventually("the upload expires", || {
        fs::read_dir(&staged).expect("cannot read the folder").next().is_none().then_some(())
    });
    // The event is held now, like one without an upload.
    server.publish_held(&request);
    work.push(&server.url(&owner, "tool"), &[&refspec]).expect_success();
    server.expect_served(&[&request]);
}

/// Held events can be deleted too, also by a maintainer without an announcement; the matching push is then rejected.
#[test]
fn deleted_held_state_authorises_no_push() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    // The maintainer has no announcement.
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    let url = server.url(&owner, "tool");
    let by_id = maintainer.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_held(&by_id);
    server.publish(&maintainer.delete(BASE_TIME, &[&by_id]));
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING"]);
    server.publish_rejected(&by_id, "invalid: this event is deleted");

    let by_coordinate = maintainer.state("tool", BASE_TIME + 1, &main_at(&c1));
    server.publish_held(&by_coordinate);
    server.publish(&maintainer.delete_coordinate(BASE_TIME + 1, kinds::STATE, "tool"));
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING"]);
    server.publish_rejected(&by_coordinate, "invalid: this event is deleted");
    server.expect_refs(&owner, "tool", &[]);

    // Events of others cannot be deleted.
    let state = owner.state("tool", BASE_TIME + 2, &main_at(&c1));
    server.publish_held(&state);
    let (accepted, text) = server.client.publish(&maintainer.delete(BASE_TIME + 2, &[&state]));
    assert!(!accepted, "{text}");
    work.push(&url, &["main"]).expect_success();
    server.expect_served(&[&state]);
}

/// A newer announcement that does not name this service evicts the held one.
#[test]
fn empty_repository_is_removed_with_its_withdrawn_announcement() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let announcement = owner.announce("tool", BASE_TIME, &[]);
    server.publish_held(&announcement);
    assert!(server.repo_exists(&owner, "tool"));
    server.publish_rejected(&owner.announce_elsewhere("tool", BASE_TIME + 1, &[]), "invalid: ");
    assert!(!server.repo_exists(&owner, "tool"));
    // A deletion does the same.
    let announcement = owner.announce("tool", BASE_TIME + 2, &[]);
    server.publish_held(&announcement);
    assert!(server.repo_exists(&owner, "tool"));
    server.publish(&owner.delete_coordinate(BASE_TIME + 2, kinds::ANNOUNCEMENT, "tool"));
    assert!(!server.repo_exists(&owner, "tool"));
}

/// Purgatory is durable: a restart loses no event that was answered with `OK true`.
#[test]
fn restart_keeps_served_and_held_events_and_uploads() {
    for signal in [StopSignal::Term, StopSignal::Kill] {
        let mut server = TestServer::new();
        let [owner, maintainer, ..] = server.maintainers();
        let contributor = server.maintainer(5);
        let (work, c1) = one_commit("one");
        let t1 = work.tag("v1");
        let declared = [(MAIN, c1.as_str()), ("refs/tags/v1", t1.as_str())];
        let (announcement, s1) = server.create_repo(&owner, "tool", &[&maintainer], &work, &declared);
        let c2 = work.commit("file", "two");
        let c3 = work.commit("file", "three");
        let [served, upload] =
            [&c2, &c3].map(|oid| contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], oid, &[]));
        server.publish_held(&served);
        let [served_ref, upload_ref] = [&served, &upload].map(|event| format!("refs/nostr/{}", event.id));
        // A served pull request, an upload without event, and a held state.
        let url = server.url(&owner, "tool");
        work.push(&url, &[&format!("{c2}:{served_ref}")]).expect_success();
        work.push(&url, &[&format!("{c3}:{upload_ref}")]).expect_success();
        let held_announcement = owner.announce("other", BASE_TIME, &[]);
        server.publish_held(&held_announcement);
        let s2 = maintainer.state("tool", BASE_TIME + 1, &main_at(&c2));
        let c4 = work.commit_orphan("elsewhere", "four");
        let s3 = maintainer.state("tool", BASE_TIME + 2, &main_at(&c4));
        server.publish_held(&s3);

        let mut server = server.restart(signal);
        server.expect_served(&[&announcement, &s1, &served]);
        server.expect_refs(&owner, "tool", &[declared[0], declared[1], (&served_ref, &c2)]);
        assert_eq!(server.ls_remote(&owner, "tool").head.as_deref(), Some(MAIN));
        assert!(server.repo_exists(&owner, "other"), "{signal:?}");
        let url = server.url(&owner, "tool");
        let clone = WorkTree::clone(&url);
        clone.fsck();
        assert_eq!(clone.oid("v1"), t1);
        // The held state and the upload are still there.
        server.publish(&upload);
        server.eventually_served(&upload);
        work.push(&url, &[&format!("+{c4}:{MAIN}"), ":refs/tags/v1"]).expect_success();
        server.expect_served(&[&s3]);
        // A state older than the served one is not served.
        server.publish(&s2);
        assert!(!server.is_served(&s2));

        let server = server.restart(signal);
        server.expect_refs(&owner, "tool", &[(MAIN, &c4), (&served_ref, &c2), (&upload_ref, &c3)]);
        WorkTree::clone(&server.url(&owner, "tool")).fsck();
    }
}

/// The landing page counts only repositories that are served, not those that wait for git data.
#[test]
fn landing_page_counts_served_repositories() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let counts = |server: &TestServer| {
        let page = server.process.get("/", "Accept: text/html\r\n");
        ["hosts 0 repositories", "hosts one repository"].map(|text| page.contains(text))
    };
    assert_eq!(counts(&server), [true, false]);
    let (work, c1) = one_commit("one");
    server.publish_held(&owner.announce("waiting", BASE_TIME, &[]));
    assert_eq!(counts(&server), [true, false], "it waits for git data");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    assert_eq!(counts(&server), [false, true]);
}

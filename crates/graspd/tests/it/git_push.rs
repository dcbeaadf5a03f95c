//! Push authorisation by states (`docs/protocol.md#push-authorisation`), and the reports of rejected pushes.

use std::thread;

use grasp_core::nostr::SignedEvent;
use serde_json::json;

use crate::support::git::{BASE_TIME, DEVELOP, MAIN, OLD, WorkTree, incompressible_text, repo_path};
use crate::support::test_server::{TestServer, is_served, main_at, one_commit};
use crate::support::wire::{EMPTY_PACK, ZERO};
use crate::support::{Server, eventually, wire};

const NO_IDS: [&str; 0] = [];

/// The example of `docs/protocol.md#first-publication`.
#[test]
fn first_publication_is_released_by_the_push() {
    // Without settings, the domain is the address that the server listens on.
    let mut server = TestServer::with_only(&[]);
    let [owner, maintainer, ..] = server.maintainers();
    let d = "my 🚀 repo";
    let (work, c1) = one_commit("one");
    let announcement = owner.announce(d, BASE_TIME, &[&maintainer]);
    let state = owner.state(d, BASE_TIME + 1, &main_at(&c1));
    server.publish_held(&announcement);
    server.publish_held(&state);
    let mut listener = server.process.connect();
    assert_eq!(listener.subscribe("q", &[json!({"kinds": [30617, 30618], "#d": [d]})]), NO_IDS);

    let url = server.url(&owner, d);
    assert!(url.ends_with("/my%20%F0%9F%9A%80%20repo.git"), "{url}");
    work.push(&url, &["main"]).expect_success();

    // Both events were sent before git ended, so they arrive before the response to a later request; the announcement
    // first.
    listener.send(&json!(["REQ", "later", {"ids": [state.id.to_string()]}]));
    for event in [&announcement, &state] {
        let live = listener.receive();
        assert_eq!((&live[0], &live[1], &live[2]["id"]), (&json!("EVENT"), &json!("q"), &json!(event.id.to_string())));
    }
    let later = listener.receive();
    assert_eq!((&later[0], &later[1]), (&json!("EVENT"), &json!("later")));
    server.expect_served(&[&announcement, &state]);
    let remote = server.ls_remote(&owner, d);
    assert_eq!((remote.refs, remote.head.as_deref()), (crate::support::git::refs(&main_at(&c1)), Some(MAIN)));
    let clone = WorkTree::clone(&url);
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c1);
    assert_eq!(clone.git(&["symbolic-ref", "HEAD"]).text(), MAIN);
}

/// A push is rejected without a state that authorises it.
#[test]
fn push_without_a_state_is_rejected() {
    let mut server = TestServer::new();
    let [owner, maintainer, _, outsider] = server.maintainers();
    let (work, c1) = one_commit("one");
    let url = server.url(&owner, "tool");
    // The repository does not exist yet.
    work.push(&url, &["main"]).expect_failure(&["not found"]);
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    // A push before the state is rejected, and the report says what to do.
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING", "kind 30618"]);
    server.publish_rejected(&outsider.state("tool", BASE_TIME, &main_at(&c1)), "restricted: ");
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING"]);
    // The rejected pushes changed nothing.
    server.expect_refs(&owner, "tool", &[]);
    let state = owner.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_held(&state);
    work.push(&url, &["main"]).expect_success();
    server.expect_served(&[&state]);
}

/// A push is accepted if the refs after it equal exactly what an authoritative state declares.
#[test]
fn push_that_differs_from_the_state_is_rejected() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c0) = one_commit("zero");
    work.git(&["branch", "old"]).expect_success();
    let c1 = work.commit("file", "one");
    server.create_repo(&owner, "tool", &[&maintainer], &work, &[(MAIN, &c1), (OLD, &c0)]);
    let c2 = work.commit("file", "two");
    let c3 = work.commit("file", "three");
    let c9 = work.commit("file", "nine");
    let s2 = maintainer.state("tool", BASE_TIME + 2, &main_at(&c2));
    server.publish_held(&s2);

    let url = server.url(&owner, "tool");
    let [c2_main, c3_main, c2_feature, c2_notes] =
        [(&c2, MAIN), (&c3, MAIN), (&c2, "refs/heads/feature"), (&c2, "refs/notes/x")]
            .map(|(oid, name)| format!("{oid}:{name}"));
    let mismatch = ["E-STATE-MISMATCH", "push exactly what the state declares"];
    let undeclared = ["E-STATE-MISMATCH", "the newest state does not declare this ref"];
    for (refspecs, words) in [
        (&[c2_main.as_str()][..], &[&undeclared[..], &[":refs/heads/old", &c0]].concat()),
        (&[&c3_main, ":refs/heads/old"], &[&mismatch[..], &[MAIN, &c2, &c3]].concat()),
        (&[&c2_feature], &undeclared.to_vec()),
        (&[&c2_notes], &vec!["E-REF-NAMESPACE", "refs/notes/x", "refs/heads/"]),
        // A push is atomic: commands that match are rejected with the others.
        (&[&c2_main, ":refs/heads/old", &c2_notes], &vec!["E-REF-NAMESPACE"]),
    ] {
        work.push(&url, refspecs).expect_failure(words);
        server.expect_refs(&owner, "tool", &[(MAIN, &c1), (OLD, &c0)]);
        assert!(!server.is_served(&s2), "{refspecs:?}");
    }
    // The same push may contain a pull request ref, also one without an event.
    let pull_request = format!("{c9}:refs/nostr/{}", "ab".repeat(32));
    work.push(&url, &[&c2_main, ":refs/heads/old", &pull_request]).expect_success();
    server.expect_served(&[&s2]);
    server.expect_refs(&owner, "tool", &main_at(&c2));
}

/// `git push --all` pushes branches only. If the state declares a tag too, the rejection names the tag and a command
/// that works.
#[test]
fn rejected_push_of_all_branches_names_the_missing_tag() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let tag = work.tag("v1");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let state = owner.state("tool", BASE_TIME, &[(MAIN, &c1), ("refs/tags/v1", &tag)]);
    server.publish_held(&state);
    let url = server.url(&owner, "tool");
    let command = "git push <remote> 'refs/heads/*' 'refs/tags/*'";
    work.push(&url, &["--all"]).expect_failure(&["E-STATE-MISMATCH", "refs/tags/v1", &tag, command]);
    work.push(&url, &["refs/heads/*", "refs/tags/*"]).expect_success();
    server.expect_served(&[&state]);
}

#[test]
fn push_that_equals_the_state_is_accepted() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c0) = one_commit("zero");
    work.git(&["branch", "old"]).expect_success();
    let c1 = work.commit("file", "one");
    let (_, s1) = server.create_repo(&owner, "tool", &[&maintainer], &work, &[(MAIN, &c1), (OLD, &c0)]);
    let c2 = work.commit("file", "two");
    let s2 = maintainer.state("tool", BASE_TIME + 2, &main_at(&c2));
    server.publish_held(&s2);
    let url = server.url(&owner, "tool");
    work.push(&url, &["main", ":old"]).expect_success();
    // The state of the other maintainer is still served.
    server.expect_served(&[&s1, &s2]);
    server.expect_refs(&owner, "tool", &main_at(&c2));
    // The same push again changes nothing and succeeds.
    work.push(&url, &["main"]).expect_success();
    server.expect_refs(&owner, "tool", &main_at(&c2));
}

/// A command whose effect is already there is a no-op, not a conflict, whatever old value the client sends.
#[test]
fn push_without_effect_is_accepted() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let push = |commands: &[[&str; 3]], pack: &[u8]| wire::push(&server.process, &repo, commands, pack).text();
    let report = push(&[[&c1, &c1, MAIN]], EMPTY_PACK);
    assert!(report.contains("unpack ok") && report.contains(&format!("ok {MAIN}")), "{report}");
    // With a wrong old value.
    let report = push(&[[&"a".repeat(40), &c1, MAIN]], EMPTY_PACK);
    assert!(report.contains(&format!("ok {MAIN}")), "{report}");
    let report = push(&[[&c1, ZERO, OLD]], b"");
    assert!(report.contains(&format!("ok {OLD}")), "{report}");
    server.expect_refs(&owner, "tool", &main_at(&c1));
}

#[test]
fn annotated_tag_is_declared_by_its_tag_object() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let t1 = work.tag("v1");
    assert_ne!(t1, c1);
    let v1 = "refs/tags/v1";
    let state = owner.state("tool", BASE_TIME + 1, &[(MAIN, &c1), (v1, &t1)]);
    server.publish_held(&state);
    let url = server.url(&owner, "tool");
    work.push(&url, &[&format!("{c1}:{v1}")]).expect_failure(&["E-STATE-MISMATCH", &t1, &c1]);
    work.push(&url, &["v1"]).expect_success();
    server.expect_served(&[&state]);
    server.expect_refs(&owner, "tool", &[(MAIN, &c1), (v1, &t1)]);
    let clone = WorkTree::clone(&url);
    assert_eq!((clone.oid("v1"), clone.oid("v1^{commit}")), (t1, c1));
    clone.fsck();
}

/// See `docs/protocol.md#rejection-of-a-push`.
#[test]
fn rejection_is_reported_with_any_capabilities() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let repo = repo_path(&owner.npub(), "tool");
    let pack = work.pack(&[&c1]);
    for capabilities in ["report-status side-band-64k", "report-status", "side-band-64k", "agent=git/2.47.3"] {
        let response = wire::push_with_capabilities(&server.process, &repo, &[[ZERO, &c1, MAIN]], capabilities, &pack);
        let report = response.text();
        assert!(report.contains("E-STATE-MISSING"), "{capabilities}: {report}");
        if capabilities.contains("report-status") {
            assert!(report.contains("unpack ") && report.contains(&format!("ng {MAIN}")), "{capabilities}: {report}");
        } else {
            assert!(report.contains("ERR "), "{capabilities}: {report}");
        }
        // git fails with "bad band #69" if a pkt-line has no band although side-band was requested.
        let banded = matches!(response.body[4], 1..=3);
        assert_eq!(banded, capabilities.contains("side-band-64k"), "{capabilities}: {report}");
    }
    // The body of a large push is discarded, but the client receives the reason.
    work.commit("large", &incompressible_text(8 << 20));
    work.push(&server.url(&owner, "tool"), &["main"]).expect_failure(&["E-STATE-MISSING"]);
    // A ref name that git would neither send nor store.
    let report = wire::push(&server.process, &repo, &[[ZERO, &c1, "refs/heads/a..b"]], &pack).text();
    assert!(report.contains("E-REF-NAME"), "{report}");
    server.expect_refs(&owner, "tool", &[]);
}

/// Of two states with the same `created_at`, the one with the lower id wins (`docs/protocol.md#replacement-and-ties`).
#[test]
fn state_with_the_lower_id_wins_within_the_same_second() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let [c2, c3, c4] = ["two", "three", "four"].map(|content| work.commit("file", content));
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    let url = server.url(&owner, "tool");
    let push = |oid: &str| work.push(&url, &[&format!("+{oid}:{MAIN}")]);

    // An id in the middle of the range, so that lower and higher ones are easy to find.
    let middle = |event: &SignedEvent| (0x40..0xc0).contains(&event.id.0[0]);
    let a = owner.state_matching("tool", BASE_TIME, &c1, middle);
    server.publish_held(&a);
    push(&c1).expect_success();
    server.expect_served(&[&a]);
    let c = owner.state_matching("tool", BASE_TIME, &c3, |event| event.id > a.id);
    let (accepted, text) = server.client.publish(&c);
    assert!(accepted && text.starts_with("duplicate: "), "{text}");
    push(&c3).expect_failure(&["E-STATE-"]);
    let b = owner.state_matching("tool", BASE_TIME, &c2, |event| event.id < a.id);
    server.publish_held(&b);
    push(&c2).expect_success();
    server.expect_served(&[&b]);
    assert!(!server.is_served(&a), "both versions are served");

    // The same across authors.
    let higher = maintainer.state_matching("tool", BASE_TIME, &c3, |event| event.id > b.id);
    server.publish(&higher);
    push(&c3).expect_failure(&["E-STATE-"]);
    let lower = maintainer.state_matching("tool", BASE_TIME, &c4, |event| event.id < b.id);
    server.publish_held(&lower);
    push(&c4).expect_success();
    server.expect_served(&[&b, &lower]);
    server.expect_refs(&owner, "tool", &main_at(&c4));
}

/// A state older than the authoritative one cannot roll the repository back.
#[test]
fn older_state_does_not_roll_back() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    let older = maintainer.state("tool", BASE_TIME - 1, &main_at(&c2));
    server.publish_held(&older);
    server.push_state(&owner, &owner, "tool", BASE_TIME, &work, &main_at(&c1));
    let url = server.url(&owner, "tool");
    work.push(&url, &[&format!("+{c2}:{MAIN}")]).expect_failure(&["E-STATE-"]);
    server.expect_refs(&owner, "tool", &main_at(&c1));
    assert!(!server.is_served(&older));
}

#[test]
fn force_push_and_unrelated_history_are_accepted_with_a_state() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c2));
    server.push_state(
        &owner,
        &owner,
        "tool",
        BASE_TIME + 1,
        &work,
        &[(MAIN, &c2), (DEVELOP, &work.commit_orphan("new", "begin"))],
    );
    let c3 = work.commit("file", "three");
    // One branch goes back, the other to an unrelated history.
    server.push_state(&owner, &owner, "tool", BASE_TIME + 2, &work, &[(MAIN, &c3), (DEVELOP, &c1)]);
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    clone.fsck();
    assert_eq!((clone.oid("HEAD"), clone.oid("origin/develop")), (c3, c1));
}

#[test]
fn ten_thousand_refs_in_one_state_and_one_push() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let names: Vec<String> = (0..10_000).map(|n| format!("refs/heads/branch-{n:05}")).collect();
    let declared: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), c1.as_str())).collect();
    // Pushed by object id: with ten thousand local branches the git client needs a minute to match their names.
    server.create_repo(&owner, "tool", &[], &work, &declared);
    // Half of them are removed by a state alone.
    let fewer = owner.state("tool", BASE_TIME + 1, &declared[..5_000]);
    server.publish(&fewer);
    server.eventually_served(&fewer);
    server.eventually_refs(&owner, "tool", &declared[..5_000]);
}

#[test]
fn concurrent_pushes_to_two_repositories_succeed() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    let ((ours, c1), (theirs, c2)) = (one_commit("ours"), one_commit("theirs"));
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    server.publish_held(&maintainer.announce("tool", BASE_TIME, &[]));
    // The owner's state is the newer one, so neither push supersedes the other. If the maintainer's push is faster, the
    // owner's repository has the maintainer's state for a moment, and the owner has to try again.
    let states =
        [owner.state("tool", BASE_TIME + 1, &main_at(&c1)), maintainer.state("tool", BASE_TIME, &main_at(&c2))];
    for state in &states {
        server.publish_held(state);
    }
    let urls = [server.url(&owner, "tool"), server.url(&maintainer, "tool")];
    let process = &server.process;
    thread::scope(|scope| {
        for ((work, url), state) in [&ours, &theirs].into_iter().zip(&urls).zip(&states) {
            scope.spawn(move || push_until_accepted(process, work, url, state));
        }
    });
    server.eventually_refs(&owner, "tool", &main_at(&c1));
    server.eventually_refs(&maintainer, "tool", &main_at(&c2));
}

/// Pushes until it succeeds. A push may only fail because of the concurrent one.
fn push_until_accepted(server: &Server, work: &WorkTree, url: &str, state: &SignedEvent) {
    eventually("the push of the newer state is accepted", || {
        let output = work.push(url, &["+main"]);
        if output.success {
            assert!(is_served(&mut server.connect(), state), "git reported success, but the state is not served");
            return Some(());
        }
        let is_conflict = ["E-REF-MOVED", "E-STATE-CHANGED", "E-BUSY"].iter().any(|code| output.stderr.contains(code));
        assert!(is_conflict, "{}", output.stderr);
        None
    });
}

#[test]
fn concurrent_pushes_to_one_repository_keep_the_newer_state() {
    let mut server = TestServer::new();
    let [owner, maintainer, ..] = server.maintainers();
    server.publish_held(&owner.announce("tool", BASE_TIME, &[&maintainer]));
    let url = server.url(&owner, "tool");
    for round in 0..5 {
        let ((ours, c1), (theirs, c2)) = (one_commit(&format!("o{round}")), one_commit(&format!("m{round}")));
        let older = owner.state("tool", BASE_TIME + 2 * round, &main_at(&c1));
        let newer = maintainer.state("tool", BASE_TIME + 2 * round + 1, &main_at(&c2));
        server.publish_held(&older);
        server.publish_held(&newer);
        let process = &server.process;
        thread::scope(|scope| {
            scope.spawn(|| {
                // This push succeeds first or is rejected, but never undoes the newer one.
                let output = ours.push(&url, &["+main"]);
                assert!(output.success || output.stderr.contains("E-"), "{}", output.stderr);
            });
            scope.spawn(|| push_until_accepted(process, &theirs, &url, &newer));
        });
        server.expect_served(&[&newer]);
        server.expect_refs(&owner, "tool", &main_at(&c2));
        WorkTree::clone(&url).fsck();
    }
}

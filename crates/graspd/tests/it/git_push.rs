//! Pushes: what a signed state allows, and what is said when it does not.

use std::thread;

use grasp_core::nostr::SignedEvent;
use serde_json::json;

use crate::support::git::{DEVELOP, MAIN, OLD, THEN, Work, noise, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit, served};
use crate::support::wire::{EMPTY_PACK, ZERO};
use crate::support::{Server, eventually, wire};

const NOTHING: [&str; 0] = [];

#[test]
fn s15_1_first_publication() {
    // The address that it listens on is its name, as with no configuration at all.
    let mut stage = Stage::bare(&[]);
    let [owner, maintainer, ..] = stage.cast();
    let d = "my 🚀 repo";
    let (work, c1) = one_commit("one");
    let announcement = owner.announce(d, THEN, &[&maintainer]);
    let state = owner.state(d, THEN + 1, &main_at(&c1));
    stage.hold(&announcement);
    stage.hold(&state);
    let mut listener = stage.server.connect();
    assert_eq!(listener.subscribe("q", &[json!({"kinds": [30617, 30618], "#d": [d]})]), NOTHING);

    let url = stage.url(&owner, d);
    assert!(url.ends_with("/my%20%F0%9F%9A%80%20repo.git"), "{url}");
    work.push(&url, &["main"]).done();

    // Both were on their way before git ended: what is asked now is answered after them, the announcement first.
    listener.send(&json!(["REQ", "later", {"ids": [state.id.to_string()]}]));
    for event in [&announcement, &state] {
        let live = listener.receive();
        assert_eq!((&live[0], &live[1], &live[2]["id"]), (&json!("EVENT"), &json!("q"), &json!(event.id.to_string())));
    }
    let later = listener.receive();
    assert_eq!((&later[0], &later[1]), (&json!("EVENT"), &json!("later")));
    stage.expect_served(&[&announcement, &state]);
    let remote = stage.remote(&owner, d);
    assert_eq!((remote.refs, remote.head.as_deref()), (crate::support::git::refs(&main_at(&c1)), Some(MAIN)));
    let clone = Work::clone(&url);
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c1);
    assert_eq!(clone.git(&["symbolic-ref", "HEAD"]).text(), MAIN);
}

#[test]
fn g1_55_without_a_state_nothing_is_taken() {
    let mut stage = Stage::new();
    let [owner, maintainer, _, stranger] = stage.cast();
    let (work, c1) = one_commit("one");
    let url = stage.url(&owner, "tool");
    // There is no such repository yet.
    work.push(&url, &["main"]).refused(&["not found"]);
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    // Git first: refused, and it says what to do.
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING", "kind 30618"]);
    stage.refuse(&stranger.state("tool", THEN, &main_at(&c1)), "restricted: ");
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING"]);
    // What was refused left nothing behind.
    stage.expect_refs(&owner, "tool", &[]);
    let state = owner.state("tool", THEN, &main_at(&c1));
    stage.hold(&state);
    work.push(&url, &["main"]).done();
    stage.expect_served(&[&state]);
}

#[test]
fn s15_4_push_matching() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c0) = one_commit("zero");
    work.git(&["branch", "old"]).done();
    let c1 = work.commit("file", "one");
    stage.found(&owner, "tool", &[&maintainer], &work, &[(MAIN, &c1), (OLD, &c0)]);
    let c2 = work.commit("file", "two");
    let c3 = work.commit("file", "three");
    let c9 = work.commit("file", "nine");
    let s2 = maintainer.state("tool", THEN + 2, &main_at(&c2));
    stage.hold(&s2);

    let url = stage.url(&owner, "tool");
    let [c2_main, c3_main, c2_feature, c2_notes] =
        [(&c2, MAIN), (&c3, MAIN), (&c2, "refs/heads/feature"), (&c2, "refs/notes/x")]
            .map(|(oid, name)| format!("{oid}:{name}"));
    let mismatch = ["E-STATE-MISMATCH", "push exactly what the state declares"];
    for (refspecs, words) in [
        (&[c2_main.as_str()][..], &[&mismatch[..], &[OLD, &c0]].concat()),
        (&[&c3_main, ":refs/heads/old"], &[&mismatch[..], &[MAIN, &c2, &c3]].concat()),
        (&[&c2_feature], &mismatch.to_vec()),
        (&[&c2_notes], &vec!["E-REF-NAMESPACE", "refs/notes/x", "refs/heads/"]),
        // All or nothing: what would be right alone goes with what is wrong.
        (&[&c2_main, ":refs/heads/old", &c2_notes], &vec!["E-REF-NAMESPACE"]),
    ] {
        work.push(&url, refspecs).refused(words);
        stage.expect_refs(&owner, "tool", &[(MAIN, &c1), (OLD, &c0)]);
        assert!(!stage.served(&s2), "{refspecs:?}");
    }
    // Everybody may bring a pull request beside it, also one that nobody has signed yet.
    let pull_request = format!("{c9}:refs/nostr/{}", "ab".repeat(32));
    work.push(&url, &[&c2_main, ":refs/heads/old", &pull_request]).done();
    stage.expect_served(&[&s2]);
    stage.expect_refs(&owner, "tool", &main_at(&c2));
}

#[test]
fn s15_4_the_push_that_equals_the_state() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c0) = one_commit("zero");
    work.git(&["branch", "old"]).done();
    let c1 = work.commit("file", "one");
    let (_, s1) = stage.found(&owner, "tool", &[&maintainer], &work, &[(MAIN, &c1), (OLD, &c0)]);
    let c2 = work.commit("file", "two");
    let s2 = maintainer.state("tool", THEN + 2, &main_at(&c2));
    stage.hold(&s2);
    let url = stage.url(&owner, "tool");
    work.push(&url, &["main", ":old"]).done();
    // The state of somebody else stays: it is that one's word.
    stage.expect_served(&[&s1, &s2]);
    stage.expect_refs(&owner, "tool", &main_at(&c2));
    // The same again changes nothing and is no failure.
    work.push(&url, &["main"]).done();
    stage.expect_refs(&owner, "tool", &main_at(&c2));
}

#[test]
fn s15_4_what_is_already_so_is_taken_without_a_state() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let push = |commands: &[[&str; 3]], pack: &[u8]| wire::push(&stage.server, &repo, commands, pack).text();
    let said = push(&[[&c1, &c1, MAIN]], EMPTY_PACK);
    assert!(said.contains("unpack ok") && said.contains(&format!("ok {MAIN}")), "{said}");
    // G1-53: what somebody else was faster to do is no obstacle, whatever the client thought.
    let said = push(&[[&"a".repeat(40), &c1, MAIN]], EMPTY_PACK);
    assert!(said.contains(&format!("ok {MAIN}")), "{said}");
    let said = push(&[[&c1, ZERO, OLD]], b"");
    assert!(said.contains(&format!("ok {OLD}")), "{said}");
    stage.expect_refs(&owner, "tool", &main_at(&c1));
}

#[test]
fn s15_4_annotated_tags_are_their_tag_objects() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let t1 = work.tag("v1");
    assert_ne!(t1, c1);
    let v1 = "refs/tags/v1";
    let state = owner.state("tool", THEN + 1, &[(MAIN, &c1), (v1, &t1)]);
    stage.hold(&state);
    let url = stage.url(&owner, "tool");
    work.push(&url, &[&format!("{c1}:{v1}")]).refused(&["E-STATE-MISMATCH", &t1, &c1]);
    work.push(&url, &["v1"]).done();
    stage.expect_served(&[&state]);
    stage.expect_refs(&owner, "tool", &[(MAIN, &c1), (v1, &t1)]);
    let clone = Work::clone(&url);
    assert_eq!((clone.oid("v1"), clone.oid("v1^{commit}")), (t1, c1));
    clone.fsck();
}

#[test]
fn s15_5_refusals_reach_every_kind_of_client() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.hold(&owner.announce("tool", THEN, &[]));
    let repo = repo_path(&owner.npub(), "tool");
    let pack = work.pack(&[&c1]);
    for capabilities in ["report-status side-band-64k", "report-status", "side-band-64k", "agent=git/2.47.3"] {
        let answer = wire::push_capable(&stage.server, &repo, &[[ZERO, &c1, MAIN]], capabilities, &pack);
        let said = answer.text();
        assert!(said.contains("E-STATE-MISSING"), "{capabilities}: {said}");
        if capabilities.contains("report-status") {
            assert!(said.contains("unpack ") && said.contains(&format!("ng {MAIN}")), "{capabilities}: {said}");
        } else {
            assert!(said.contains("ERR "), "{capabilities}: {said}");
        }
        // A pkt whose first byte is no band would be "bad band #69".
        let banded = matches!(answer.body[4], 1..=3);
        assert_eq!(banded, capabilities.contains("side-band-64k"), "{capabilities}: {said}");
    }
    // A large body is thrown away, but the reason is seen.
    work.commit("large", &noise(8 << 20));
    work.push(&stage.url(&owner, "tool"), &["main"]).refused(&["E-STATE-MISSING"]);
    // A name that git could not keep, which no git would send.
    let said = wire::push(&stage.server, &repo, &[[ZERO, &c1, "refs/heads/a..b"]], &pack).text();
    assert!(said.contains("E-REF-NAME"), "{said}");
    stage.expect_refs(&owner, "tool", &[]);
}

#[test]
fn s15_6_of_the_same_second_the_lower_id_wins() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let [c2, c3, c4] = ["two", "three", "four"].map(|content| work.commit("file", content));
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    let url = stage.url(&owner, "tool");
    let push = |oid: &str| work.push(&url, &[&format!("+{oid}:{MAIN}")]);

    // Somewhere in the middle, so that there are lower and higher ones.
    let middle = |event: &SignedEvent| (0x40..0xc0).contains(&event.id.0[0]);
    let a = owner.state_ranked("tool", THEN, &c1, middle);
    stage.hold(&a);
    push(&c1).done();
    stage.expect_served(&[&a]);
    let c = owner.state_ranked("tool", THEN, &c3, |event| event.id > a.id);
    let (accepted, text) = stage.client.publish(&c);
    assert!(accepted && text.starts_with("duplicate: "), "{text}");
    push(&c3).refused(&["E-STATE-"]);
    let b = owner.state_ranked("tool", THEN, &c2, |event| event.id < a.id);
    stage.hold(&b);
    push(&c2).done();
    stage.expect_served(&[&b]);
    assert!(!stage.served(&a), "both versions are served");

    // Across authors: the higher id does not roll back, the lower one goes on.
    let higher = maintainer.state_ranked("tool", THEN, &c3, |event| event.id > b.id);
    stage.publish(&higher);
    push(&c3).refused(&["E-STATE-"]);
    let lower = maintainer.state_ranked("tool", THEN, &c4, |event| event.id < b.id);
    stage.hold(&lower);
    push(&c4).done();
    stage.expect_served(&[&b, &lower]);
    stage.expect_refs(&owner, "tool", &main_at(&c4));
}

#[test]
fn g1_54_an_older_state_does_not_roll_back() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    let older = maintainer.state("tool", THEN - 1, &main_at(&c2));
    stage.hold(&older);
    stage.advance(&owner, &owner, "tool", THEN, &work, &main_at(&c1));
    let url = stage.url(&owner, "tool");
    work.push(&url, &[&format!("+{c2}:{MAIN}")]).refused(&["E-STATE-"]);
    stage.expect_refs(&owner, "tool", &main_at(&c1));
    assert!(!stage.served(&older));
}

#[test]
fn force_pushes_and_new_histories_follow_the_state() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.found(&owner, "tool", &[], &work, &main_at(&c2));
    stage.advance(&owner, &owner, "tool", THEN + 1, &work, &[(MAIN, &c2), (DEVELOP, &work.orphan("new", "begin"))]);
    let c3 = work.commit("file", "three");
    // Back, and to a history that has nothing in common.
    stage.advance(&owner, &owner, "tool", THEN + 2, &work, &[(MAIN, &c3), (DEVELOP, &c1)]);
    let clone = Work::clone(&stage.url(&owner, "tool"));
    clone.fsck();
    assert_eq!((clone.oid("HEAD"), clone.oid("origin/develop")), (c3, c1));
}

#[test]
fn ten_thousand_refs_in_one_state_and_one_push() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let names: Vec<String> = (0..10_000).map(|n| format!("refs/heads/branch-{n:05}")).collect();
    let declared: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), c1.as_str())).collect();
    // By object id: a client that has ten thousand branches of its own spends a minute on comparing their names.
    stage.found(&owner, "tool", &[], &work, &declared);
    // Half of them go, without a push.
    let fewer = owner.state("tool", THEN + 1, &declared[..5_000]);
    stage.publish(&fewer);
    stage.eventually_served(&fewer);
    stage.eventually_refs(&owner, "tool", &declared[..5_000]);
}

#[test]
fn two_maintainers_push_to_their_own_repositories_at_once() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    let ((ours, c1), (theirs, c2)) = (one_commit("ours"), one_commit("theirs"));
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    stage.hold(&maintainer.announce("tool", THEN, &[]));
    // The owner's is the newer one, so neither push can overtake the other.
    let states = [owner.state("tool", THEN + 1, &main_at(&c1)), maintainer.state("tool", THEN, &main_at(&c2))];
    for state in &states {
        stage.hold(state);
    }
    let urls = [stage.url(&owner, "tool"), stage.url(&maintainer, "tool")];
    let server = &stage.server;
    thread::scope(|scope| {
        for ((work, url), state) in [&ours, &theirs].into_iter().zip(&urls).zip(&states) {
            scope.spawn(move || {
                work.push(url, &["main"]).done();
                assert!(served(&mut server.connect(), state), "git said it was done");
            });
        }
    });
    stage.eventually_refs(&owner, "tool", &main_at(&c1));
    stage.eventually_refs(&maintainer, "tool", &main_at(&c2));
}

/// Pushes until it is taken; on the way there only somebody else's success stands.
fn push_until_done(server: &Server, work: &Work, url: &str, state: &SignedEvent) {
    eventually("the newer state's push is taken", || {
        let said = work.push(url, &["+main"]);
        if said.success {
            assert!(served(&mut server.connect(), state), "git said it was done");
            return Some(());
        }
        let moved = ["E-REF-MOVED", "E-STATE-CHANGED", "E-BUSY"].iter().any(|code| said.err.contains(code));
        assert!(moved, "{}", said.err);
        None
    });
}

#[test]
fn two_maintainers_push_to_one_repository_at_once() {
    let mut stage = Stage::new();
    let [owner, maintainer, ..] = stage.cast();
    stage.hold(&owner.announce("tool", THEN, &[&maintainer]));
    let url = stage.url(&owner, "tool");
    for round in 0..5 {
        let ((ours, c1), (theirs, c2)) = (one_commit(&format!("o{round}")), one_commit(&format!("m{round}")));
        let older = owner.state("tool", THEN + 2 * round, &main_at(&c1));
        let newer = maintainer.state("tool", THEN + 2 * round + 1, &main_at(&c2));
        stage.hold(&older);
        stage.hold(&newer);
        let server = &stage.server;
        thread::scope(|scope| {
            scope.spawn(|| {
                // It comes first or too late, but never does it undo the newer one.
                let said = ours.push(&url, &["+main"]);
                assert!(said.success || said.err.contains("E-"), "{}", said.err);
            });
            scope.spawn(|| push_until_done(server, &theirs, &url, &newer));
        });
        stage.expect_served(&[&newer]);
        stage.expect_refs(&owner, "tool", &main_at(&c2));
        Work::clone(&url).fsck();
    }
}

//! What is inside a push: packs that are whole, packs that are not, and clients with habits of their own.

use std::fs;

use crate::support::git::{DEVELOP, MAIN, THEN, Work, fetchable, noise, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{RECEIVE_REQUEST, ZERO};
use crate::support::{eventually, wire};

/// Demands that nothing of pushes that failed is left in the git folder.
fn expect_no_leftovers(stage: &Stage) {
    let incoming = stage.git_folder().join("incoming");
    eventually("nothing is left of failed pushes", || {
        fs::read_dir(&incoming).expect("a folder").next().is_none().then_some(())
    });
}

#[test]
fn packs_that_lack_something_or_are_damaged_are_refused() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    let (tree, blob) = (work.oid("HEAD^{tree}"), work.oid("HEAD:file"));
    stage.hold(&owner.announce("tool", THEN, &[]));
    let state = owner.state("tool", THEN, &main_at(&c2));
    stage.hold(&state);
    let repo = repo_path(&owner.npub(), "tool");
    let whole =
        work.pack(&[&c1, &work.oid(&format!("{c1}^{{tree}}")), &work.oid(&format!("{c1}:file")), &c2, &tree, &blob]);
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    for (what, pack) in [
        ("its parent is missing", work.pack(&[&c2, &tree, &blob])),
        ("its tree is missing", work.pack(&[&c1, &c2, &blob])),
        ("its file is missing", work.pack(&[&c1, &c2, &tree])),
        ("cut off", whole[..whole.len() - 30].to_vec()),
        ("damaged", damaged),
        ("nothing at all", Vec::new()),
        ("no pack", b"hello".to_vec()),
    ] {
        let said = wire::push(&stage.server, &repo, &[[ZERO, &c2, MAIN]], &pack).text();
        assert!(said.contains(&format!("ng {MAIN}")) || said.contains("ERR "), "{what}: {said}");
        assert!(!stage.served(&state), "{what}");
        assert!(stage.remote(&owner, "tool").refs.is_empty(), "{what}");
    }
    expect_no_leftovers(&stage);
    // The same with everything is taken: none of the failures stands in the way.
    let said = wire::push(&stage.server, &repo, &[[ZERO, &c2, MAIN]], &whole).text();
    assert!(said.contains(&format!("ok {MAIN}")), "{said}");
    stage.expect_served(&[&state]);
    Work::clone(&stage.url(&owner, "tool")).fsck();
    expect_no_leftovers(&stage);
}

#[test]
fn a_branch_is_a_commit() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    for (at, oid) in [(1, work.tag("v1")), (2, work.oid("HEAD^{tree}"))] {
        let state = owner.state("tool", THEN + at, &[(MAIN, &c1), (DEVELOP, &oid)]);
        stage.publish(&state);
        work.push(&stage.url(&owner, "tool"), &[&format!("{oid}:{DEVELOP}")]).refused(&["E-"]);
        assert!(!stage.served(&state));
        stage.expect_refs(&owner, "tool", &main_at(&c1));
    }
}

#[test]
fn states_that_git_cannot_hold_are_never_satisfied() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.hold(&owner.announce("tool", THEN, &[]));
    let url = stage.url(&owner, "tool");
    for (at, refs) in [
        &[(MAIN, "abc123")][..],
        &[(MAIN, &c1), ("refs/heads/a..b", &c1)],
        &[(MAIN, &c1), ("refs/heads/main/sub", &c1)],
        &[(MAIN, ZERO)],
    ]
    .into_iter()
    .enumerate()
    {
        let state = owner.state("tool", THEN + at as u64, refs);
        stage.hold(&state);
        work.push(&url, &["main"]).refused(&["E-STATE-"]);
        assert!(!stage.served(&state));
    }
    // Peeled entries and symbolic values are not refs (§1.2).
    let tags = [(MAIN, c1.as_str()), ("refs/tags/v1^{}", "abc123"), ("refs/heads/alias", "ref: refs/heads/main")];
    let state = owner.state("tool", THEN + 9, &tags);
    stage.hold(&state);
    work.push(&url, &["main"]).done();
    stage.expect_served(&[&state]);
}

#[test]
fn shallow_clones_push_what_the_server_lacks_nothing_of() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, _) = one_commit("one");
    let c2 = work.commit("file", "two");
    stage.found(&owner, "tool", &[], &work, &main_at(&c2));
    let url = stage.url(&owner, "tool");
    let (shallow, said) = Work::try_clone(&[], &url, &["--depth=1"]);
    said.done();
    let c3 = shallow.commit("file", "three");
    assert_eq!(shallow.git(&["rev-list", "--count", "HEAD"]).text(), "2");
    stage.advance(&owner, &owner, "tool", THEN + 1, &shallow, &main_at(&c3));
    assert_eq!(Work::clone(&url).git(&["rev-list", "--count", "HEAD"]).text(), "3");

    // To a repository that has not what lies below, it cannot be pushed.
    stage.hold(&owner.announce("other", THEN, &[]));
    let state = owner.state("other", THEN, &main_at(&c3));
    stage.hold(&state);
    let said = shallow.push(&stage.url(&owner, "other"), &["main"]);
    assert!(!said.success, "{}", said.err);
    assert!(!stage.served(&state));
    stage.expect_refs(&owner, "other", &[]);
    expect_no_leftovers(&stage);
}

#[test]
fn push_options_and_atomic_pushes_are_taken() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    let advertised = wire::info_refs(&stage.server, &repo_path(&owner.npub(), "tool"), "git-receive-pack", &[]);
    assert_eq!(advertised.status, 404);
    stage.hold(&owner.announce("tool", THEN, &[]));
    let state = owner.state("tool", THEN, &main_at(&c1));
    stage.hold(&state);
    let url = stage.url(&owner, "tool");
    let said = work.push_with(&["--push-option=secret=none", "--atomic", "--quiet"], &url, &["main"]).done();
    assert_eq!(said.err, "", "--quiet means it");
    stage.expect_served(&[&state]);
}

#[test]
fn thin_packs_and_large_ones_are_taken() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let work = Work::new();
    let line = |n: usize| format!("{n} {:x}\n", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let text: String = (0..20_000).map(line).collect();
    let c1 = work.commit("large", &text);
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    // A small change of a large file is a delta to an object that is not in the pack.
    let c2 = work.commit("large", &(text.clone() + "the end"));
    stage.advance(&owner, &owner, "tool", THEN + 1, &work, &main_at(&c2));
    // More than a megabyte comes in chunks, behind a probe.
    let noise: String = (0..200_000).map(line).collect();
    let c3 = work.commit("noise", &noise);
    stage.advance(&owner, &owner, "tool", THEN + 2, &work, &main_at(&c3));
    let clone = Work::clone(&stage.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c3);
}

#[test]
fn g1_47_bodies_come_in_every_dress() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let receive = format!("{repo}/git-receive-pack");
    // The probe before a chunked push.
    let answer = wire::post(&stage.server, &receive, &[RECEIVE_REQUEST], b"0000");
    assert_eq!(
        (answer.status, answer.header("content-type"), answer.body.as_slice()),
        (200, Some("application/x-git-receive-pack-result"), &b""[..])
    );
    // The same push, four ways; each after the first finds it done.
    let c2 = work.commit("file", "two");
    stage.hold(&owner.state("tool", THEN + 1, &main_at(&c2)));
    let pack = work.pack(&[&c2, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let body = wire::push_body(&[[&c1, &c2, MAIN]], wire::CAPABILITIES, &pack);
    let zipped = gzip(&work, &body);
    let gzip_header = "Content-Encoding: gzip";
    for (what, answer) in [
        ("chunked and zipped", {
            let head = wire::head(
                &stage.server,
                "POST",
                &receive,
                &[RECEIVE_REQUEST, gzip_header, "Transfer-Encoding: chunked"],
            );
            wire::send(&stage.server, &[head.as_bytes(), &wire::chunked(&zipped, 7)].concat())
        }),
        ("chunked", {
            let head = wire::head(&stage.server, "POST", &receive, &[RECEIVE_REQUEST, "Transfer-Encoding: chunked"]);
            wire::send(&stage.server, &[head.as_bytes(), &wire::chunked(&body, 100)].concat())
        }),
        ("zipped", wire::post(&stage.server, &receive, &[RECEIVE_REQUEST, gzip_header], &zipped)),
        ("plain", wire::post(&stage.server, &receive, &[RECEIVE_REQUEST], &body)),
    ] {
        assert_eq!(answer.status, 200, "{what}: {}", answer.head);
        assert!(answer.text().contains(&format!("ok {MAIN}")), "{what}: {}", answer.text());
        stage.expect_refs(&owner, "tool", &main_at(&c2));
    }
    // What claims to be zipped and is not is the client's mistake.
    let answer = wire::post(&stage.server, &receive, &[RECEIVE_REQUEST, gzip_header], &body);
    assert!(!answer.text().contains(&format!("ok {MAIN}")), "{}", answer.text());
    assert!(answer.status < 500, "{}", answer.head);
}

fn gzip(work: &Work, bytes: &[u8]) -> Vec<u8> {
    let path = work.tree().join("../zipped");
    fs::write(&path, bytes).expect("a file");
    let output = std::process::Command::new("gzip").arg("-c").arg(&path).output().expect("gzip runs");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn nothing_of_a_refused_push_can_be_had() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let url = stage.url(&owner, "tool");
    let c2 = work.commit("file", "two");
    work.push(&url, &["main"]).refused(&["E-STATE-MISSING"]);
    for protocol in ["0", "2"] {
        assert!(!fetchable(protocol, &url, &c2), "protocol {protocol}");
        assert!(fetchable(protocol, &url, &c1), "protocol {protocol}");
    }
    expect_no_leftovers(&stage);
}

#[test]
fn pushes_have_a_size() {
    let mut stage = Stage::with(&[("GIT_MAX_PUSH_BYTES", "6000000"), ("GIT_MAX_UNSIGNED_PUSH_BYTES", "20000")]);
    let (owner, guest) = (stage.person(1), stage.person(5));
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let url = stage.url(&owner, "tool");
    // Whoever signs first may bring more.
    let c2 = work.commit("medium", &noise(60_000));
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &c2, &[]);
    let refspec = format!("{c2}:refs/nostr/{}", request.id);
    work.push(&url, &[&refspec]).refused(&["E-PACK-TOO-LARGE", "20000"]);
    stage.hold(&request);
    work.push(&url, &[&refspec]).done();
    stage.expect_served(&[&request]);
    // Too much is heard to its end, within reason, so that the client hears why.
    let large = work.commit("large", &noise(18_000_000));
    let state = owner.state("tool", THEN + 1, &main_at(&large));
    stage.hold(&state);
    work.push(&url, &["main"]).refused(&["E-PACK-TOO-LARGE", "6000000"]);
    assert!(!stage.served(&state));
    expect_no_leftovers(&stage);
}

#[test]
fn pushes_have_a_number_of_objects_and_of_uploads() {
    let mut stage = Stage::with(&[("GIT_MAX_OBJECTS", "50")]);
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let url = stage.url(&owner, "tool");
    let refspecs: Vec<String> = (0..17).map(|n| format!("{c1}:refs/nostr/{n:064x}")).collect();
    let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
    work.push(&url, &refspecs).refused(&["E-PR-MANY"]);
    work.push(&url, &refspecs[..16]).done();
    for n in 0..20 {
        work.commit("file", &n.to_string());
    }
    let state = owner.state("tool", THEN + 1, &main_at(&work.oid("HEAD")));
    stage.hold(&state);
    work.push(&url, &["main"]).refused(&["E-PACK-OBJECTS", "60"]);
    stage.expect_refs(&owner, "tool", &main_at(&c1));
}

//! Packs and request bodies of pushes: incomplete and damaged packs, limits, and variants of real clients.

use std::fs;

use crate::support::git::{BASE_TIME, DEVELOP, MAIN, WorkTree, can_fetch, incompressible_text, repo_path};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{RECEIVE_REQUEST, ZERO};
use crate::support::{eventually, wire};

/// Asserts that rejected pushes leave nothing in the folder `incoming`.
fn expect_no_leftovers(server: &TestServer) {
    let incoming = server.git_folder().join("incoming");
    eventually("the folder `incoming` is empty", || {
        fs::read_dir(&incoming).expect("cannot read the folder").next().is_none().then_some(())
    });
}

#[test]
fn incomplete_and_damaged_packs_are_rejected() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let c2 = work.commit("file", "two");
    let (tree, blob) = (work.oid("HEAD^{tree}"), work.oid("HEAD:file"));
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let state = owner.state("tool", BASE_TIME, &main_at(&c2));
    server.publish_held(&state);
    let repo = repo_path(&owner.npub(), "tool");
    let complete =
        work.pack(&[&c1, &work.oid(&format!("{c1}^{{tree}}")), &work.oid(&format!("{c1}:file")), &c2, &tree, &blob]);
    let mut damaged = complete.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    for (what, pack) in [
        ("parent missing", work.pack(&[&c2, &tree, &blob])),
        ("tree missing", work.pack(&[&c1, &c2, &blob])),
        ("blob missing", work.pack(&[&c1, &c2, &tree])),
        ("truncated", complete[..complete.len() - 30].to_vec()),
        ("damaged", damaged),
        ("empty", Vec::new()),
        ("not a pack", b"hello".to_vec()),
    ] {
        let report = wire::push(&server.process, &repo, &[[ZERO, &c2, MAIN]], &pack).text();
        assert!(report.contains(&format!("ng {MAIN}")) || report.contains("ERR "), "{what}: {report}");
        assert!(!server.is_served(&state), "{what}");
        assert!(server.ls_remote(&owner, "tool").refs.is_empty(), "{what}");
    }
    expect_no_leftovers(&server);
    // The complete pack is accepted.
    let report = wire::push(&server.process, &repo, &[[ZERO, &c2, MAIN]], &complete).text();
    assert!(report.contains(&format!("ok {MAIN}")), "{report}");
    server.expect_served(&[&state]);
    WorkTree::clone(&server.url(&owner, "tool")).fsck();
    expect_no_leftovers(&server);
}

#[test]
fn branch_that_is_not_a_commit_is_rejected() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    for (at, oid) in [(1, work.tag("v1")), (2, work.oid("HEAD^{tree}"))] {
        let state = owner.state("tool", BASE_TIME + at, &[(MAIN, &c1), (DEVELOP, &oid)]);
        server.publish(&state);
        work.push(&server.url(&owner, "tool"), &[&format!("{oid}:{DEVELOP}")]).expect_failure(&["E-"]);
        assert!(!server.is_served(&state));
        server.expect_refs(&owner, "tool", &main_at(&c1));
    }
}

/// A state with a ref name that git rejects, with conflicting names, or with a value that is not an object id is held
/// and never released (`docs/design/admission.md#states-that-can-never-be-satisfied`).
#[test]
fn states_that_can_never_be_satisfied_stay_held() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let url = server.url(&owner, "tool");
    for (at, refs) in [
        &[(MAIN, "abc123")][..],
        &[(MAIN, &c1), ("refs/heads/a..b", &c1)],
        &[(MAIN, &c1), ("refs/heads/main/sub", &c1)],
        &[(MAIN, ZERO)],
    ]
    .into_iter()
    .enumerate()
    {
        let state = owner.state("tool", BASE_TIME + at as u64, refs);
        server.publish_held(&state);
        work.push(&url, &["main"]).expect_failure(&["E-STATE-"]);
        assert!(!server.is_served(&state));
    }
    // Peeled entries and symbolic values are not refs (`docs/protocol.md#repository-state`).
    let tags = [(MAIN, c1.as_str()), ("refs/tags/v1^{}", "abc123"), ("refs/heads/alias", "ref: refs/heads/main")];
    let state = owner.state("tool", BASE_TIME + 9, &tags);
    server.publish_held(&state);
    work.push(&url, &["main"]).expect_success();
    server.expect_served(&[&state]);
}

#[test]
fn shallow_clone_can_push_if_the_server_has_the_history() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, _) = one_commit("one");
    let c2 = work.commit("file", "two");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c2));
    let url = server.url(&owner, "tool");
    let (shallow, output) = WorkTree::try_clone(&[], &url, &["--depth=1"]);
    output.expect_success();
    let c3 = shallow.commit("file", "three");
    assert_eq!(shallow.git(&["rev-list", "--count", "HEAD"]).text(), "2");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 1, &shallow, &main_at(&c3));
    assert_eq!(WorkTree::clone(&url).git(&["rev-list", "--count", "HEAD"]).text(), "3");

    // It cannot be pushed to a repository without the history.
    server.publish_held(&owner.announce("other", BASE_TIME, &[]));
    let state = owner.state("other", BASE_TIME, &main_at(&c3));
    server.publish_held(&state);
    let output = shallow.push(&server.url(&owner, "other"), &["main"]);
    assert!(!output.success, "{}", output.stderr);
    assert!(!server.is_served(&state));
    server.expect_refs(&owner, "other", &[]);
    expect_no_leftovers(&server);
}

#[test]
fn push_options_and_atomic_pushes_are_accepted() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    let advertised = wire::info_refs(&server.process, &repo_path(&owner.npub(), "tool"), "git-receive-pack", &[]);
    assert_eq!(advertised.status, 404);
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let state = owner.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_held(&state);
    let url = server.url(&owner, "tool");
    let output =
        work.push_with(&["--push-option=secret=none", "--atomic", "--quiet"], &url, &["main"]).expect_success();
    assert_eq!(output.stderr, "", "--quiet must not print anything");
    server.expect_served(&[&state]);
}

#[test]
fn thin_and_large_packs_are_accepted() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let work = WorkTree::new();
    let line = |n: usize| format!("{n} {:x}\n", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let text: String = (0..20_000).map(line).collect();
    let c1 = work.commit("large", &text);
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    // A small change of a large file makes a thin pack: a delta whose base is not in the pack.
    let c2 = work.commit("large", &(text.clone() + "the end"));
    server.push_state(&owner, &owner, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    // git sends more than a megabyte in chunks, after a probe request.
    let longer: String = (0..200_000).map(line).collect();
    let c3 = work.commit("noise", &longer);
    server.push_state(&owner, &owner, "tool", BASE_TIME + 2, &work, &main_at(&c3));
    let clone = WorkTree::clone(&server.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), c3);
}

/// Bodies of pushes may be chunked or compressed with gzip, and the probe body `0000` is accepted
/// (`docs/protocol.md#request-bodies`).
#[test]
fn push_bodies_are_accepted_in_every_encoding() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let receive = format!("{repo}/git-receive-pack");
    // The probe that git sends before a chunked push.
    let response = wire::request_with_body(&server.process, &receive, &[RECEIVE_REQUEST], b"0000");
    assert_eq!(
        (response.status, response.header("content-type"), response.body.as_slice()),
        (200, Some("application/x-git-receive-pack-result"), &b""[..])
    );
    // The same push in four encodings; all after the first have no effect.
    let c2 = work.commit("file", "two");
    server.publish_held(&owner.state("tool", BASE_TIME + 1, &main_at(&c2)));
    let pack = work.pack(&[&c2, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let body = wire::push_body(&[[&c1, &c2, MAIN]], wire::CAPABILITIES, &pack);
    let zipped = gzip(&work, &body);
    let gzip_header = "Content-Encoding: gzip";
    for (what, response) in [
        ("chunked and compressed", {
            let head = wire::request_head(
                &server.process,
                "POST",
                &receive,
                &[RECEIVE_REQUEST, gzip_header, "Transfer-Encoding: chunked"],
            );
            wire::send(&server.process, &[head.as_bytes(), &wire::chunked(&zipped, 7)].concat())
        }),
        ("chunked", {
            let head =
                wire::request_head(&server.process, "POST", &receive, &[RECEIVE_REQUEST, "Transfer-Encoding: chunked"]);
            wire::send(&server.process, &[head.as_bytes(), &wire::chunked(&body, 100)].concat())
        }),
        ("compressed", wire::request_with_body(&server.process, &receive, &[RECEIVE_REQUEST, gzip_header], &zipped)),
        ("plain", wire::request_with_body(&server.process, &receive, &[RECEIVE_REQUEST], &body)),
    ] {
        assert_eq!(response.status, 200, "{what}: {}", response.head);
        assert!(response.text().contains(&format!("ok {MAIN}")), "{what}: {}", response.text());
        server.expect_refs(&owner, "tool", &main_at(&c2));
    }
    // A body that is not compressed although its header says so is a client error.
    let response = wire::request_with_body(&server.process, &receive, &[RECEIVE_REQUEST, gzip_header], &body);
    assert!(!response.text().contains(&format!("ok {MAIN}")), "{}", response.text());
    assert!(response.status < 500, "{}", response.head);
}

fn gzip(work: &WorkTree, bytes: &[u8]) -> Vec<u8> {
    let path = work.tree().join("../zipped");
    fs::write(&path, bytes).expect("cannot write the file");
    let output = std::process::Command::new("gzip").arg("-c").arg(&path).output().expect("cannot run gzip");
    assert!(output.status.success());
    output.stdout
}

#[test]
fn objects_of_a_rejected_push_cannot_be_fetched() {
    let mut server = TestServer::new();
    let [owner, ..] = server.maintainers();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let url = server.url(&owner, "tool");
    let c2 = work.commit("file", "two");
    work.push(&url, &["main"]).expect_failure(&["E-STATE-MISSING"]);
    for protocol in ["0", "2"] {
        assert!(!can_fetch(protocol, &url, &c2), "protocol {protocol}");
        assert!(can_fetch(protocol, &url, &c1), "protocol {protocol}");
    }
    expect_no_leftovers(&server);
}

#[test]
fn size_of_pushes_is_limited() {
    let mut server =
        TestServer::with_settings(&[("GIT_MAX_PUSH_BYTES", "6000000"), ("GIT_MAX_UNSIGNED_PUSH_BYTES", "20000")]);
    let (owner, contributor) = (server.maintainer(1), server.maintainer(5));
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let url = server.url(&owner, "tool");
    // The limit is higher if the event is published first.
    let c2 = work.commit("medium", &incompressible_text(60_000));
    let request = contributor.pull_request(BASE_TIME, &[&owner.repo("tool")], &c2, &[]);
    let refspec = format!("{c2}:refs/nostr/{}", request.id);
    work.push(&url, &[&refspec]).expect_failure(&["E-PACK-TOO-LARGE", "20000"]);
    server.publish_held(&request);
    work.push(&url, &[&refspec]).expect_success();
    server.expect_served(&[&request]);
    // A body that is too large is read up to a bound, so that the client receives the reason.
    let large = work.commit("large", &incompressible_text(18_000_000));
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&large));
    server.publish_held(&state);
    work.push(&url, &["main"]).expect_failure(&["E-PACK-TOO-LARGE", "6000000"]);
    assert!(!server.is_served(&state));
    expect_no_leftovers(&server);
}

#[test]
fn number_of_objects_and_uploads_in_a_push_is_limited() {
    let mut server = TestServer::with_settings(&[("GIT_MAX_OBJECTS", "50")]);
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let url = server.url(&owner, "tool");
    let refspecs: Vec<String> = (0..17).map(|n| format!("{c1}:refs/nostr/{n:064x}")).collect();
    let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
    work.push(&url, &refspecs).expect_failure(&["E-PR-MANY"]);
    work.push(&url, &refspecs[..16]).expect_success();
    for n in 0..20 {
        work.commit("file", &n.to_string());
    }
    let state = owner.state("tool", BASE_TIME + 1, &main_at(&work.oid("HEAD")));
    server.publish_held(&state);
    work.push(&url, &["main"]).expect_failure(&["E-PACK-OBJECTS", "60"]);
    server.expect_refs(&owner, "tool", &main_at(&c1));
}

//! Clones and fetches with all protocol versions and with the request variants of real clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::git::{BASE_TIME, DEVELOP, MAIN, Maintainer, PROTOCOLS, WorkTree, can_fetch, refs, repo_path};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{UPLOAD_REQUEST, VERSION_2, ls_refs, packet};
use crate::support::{DEADLINE, wire};

/// A server with one repository: five commits on `main`, a branch and a tag.
struct ServerWithHistory {
    server: TestServer,
    owner: Maintainer,
    commits: Vec<String>,
    tag: String,
}

impl ServerWithHistory {
    fn new() -> Self {
        let mut server = TestServer::new();
        let owner = server.maintainer(1);
        let work = WorkTree::new();
        let commits: Vec<String> = (0..5).map(|n| work.commit(&format!("file{n}"), &n.to_string())).collect();
        let tag = work.tag("v1");
        let declared = [(MAIN, commits[4].as_str()), (DEVELOP, &commits[2]), ("refs/tags/v1", &tag)];
        server.create_repo(&owner, "tool", &[], &work, &declared);
        Self { server, owner, commits, tag }
    }

    fn url(&self) -> String {
        self.server.url(&self.owner, "tool")
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }
}

/// Returns the number of commits of HEAD.
fn commit_count(work: &WorkTree) -> String {
    work.git(&["rev-list", "--count", "HEAD"]).expect_success().text()
}

#[test]
fn clone_works_with_every_protocol_version() {
    let repo = ServerWithHistory::new();
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        let clone = |args: &[&str]| {
            let (work, output) = WorkTree::try_clone(&["-c", &version], &repo.url(), args);
            output.expect_success();
            work
        };
        let full = clone(&[]);
        full.fsck();
        assert_eq!((full.oid("HEAD"), full.oid("v1")), (repo.commits[4].clone(), repo.tag.clone()));
        assert_eq!(full.git(&["symbolic-ref", "HEAD"]).text(), MAIN);
        assert_eq!(commit_count(&full), "5");
        assert_eq!(full.oid("origin/develop"), repo.commits[2]);

        // A shallow clone, deepened, then completed.
        let shallow = clone(&["--depth=1"]);
        assert_eq!(commit_count(&shallow), "1");
        shallow.git(&["-c", &version, "fetch", "--quiet", "--deepen=2"]).expect_success();
        assert_eq!(commit_count(&shallow), "3");
        shallow.git(&["-c", &version, "fetch", "--quiet", "--unshallow"]).expect_success();
        assert_eq!(commit_count(&shallow), "5");
        shallow.fsck();
        let since = clone(&["--shallow-exclude=develop"]);
        assert_eq!(commit_count(&since), "2");

        // Partial clones without blobs or trees; missing objects are fetched on demand.
        for filter in ["blob:none", "tree:0"] {
            let partial = clone(&["--no-checkout", &format!("--filter={filter}")]);
            assert_eq!(commit_count(&partial), "5");
            let missing = partial.git(&["rev-list", "--objects", "--missing=print", "HEAD"]).expect_success().text();
            assert!(missing.lines().any(|line| line.starts_with('?')), "protocol {protocol} {filter}: {missing}");
            assert_eq!(partial.git(&["-c", &version, "show", "HEAD:file4"]).expect_success().text(), "4");
        }
        // A single branch, and a mirror.
        assert_eq!(commit_count(&clone(&["--single-branch", "--branch=develop"])), "3");
        let mirror = clone(&["--mirror"]);
        assert_eq!(mirror.oid("refs/tags/v1"), repo.tag);
    }
}

/// Partial clones (`filter`) work, also in a shallow clone.
#[test]
fn filter_works_in_a_shallow_clone() {
    let repo = ServerWithHistory::new();
    let (shallow, output) = WorkTree::try_clone(&[], &repo.url(), &["--depth=1"]);
    output.expect_success();
    shallow.git(&["fetch", "--filter=tree:0", "origin"]).expect_success();
}

#[test]
fn fetch_updates_and_prunes_branches() {
    let mut repo = ServerWithHistory::new();
    let clone = WorkTree::clone(&repo.url());
    let work = WorkTree::clone(&repo.url());
    let next = work.commit("file5", "5");
    repo.server.push_state(&repo.owner, &repo.owner, "tool", BASE_TIME + 1, &work, &main_at(&next));
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        clone.git(&["-c", &version, "fetch", "--prune", "origin"]).expect_success();
        assert_eq!(clone.oid("origin/main"), next);
        assert!(!clone.git(&["rev-parse", "--verify", "origin/develop"]).success);
    }
    // A fetch without news works, also for a client with many commits of its own.
    for n in 0..40 {
        clone.commit("own", &n.to_string());
    }
    clone.git(&["fetch", "origin"]).expect_success();
}

/// An empty repository can be cloned and does not advertise an unborn `main`: a client that commits and then creates
/// the branch `main` would otherwise fail, because it would already be on it.
#[test]
fn empty_repository_can_be_cloned_without_unborn_main() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        let (clone, output) = WorkTree::try_clone(&["-c", &version], &server.url(&owner, "tool"), &[]);
        output.expect_success();
        clone.commit("file", "one");
        clone.git(&["branch", "main"]).expect_success();
    }
    WorkTree::new().fetch("2", &server.url(&owner, "tool"), &["main"]).expect_failure(&["main"]);
}

/// Any stored object can be fetched by its id, whether a ref reaches it or not.
#[test]
fn any_stored_object_can_be_fetched_by_its_id() {
    let mut repo = ServerWithHistory::new();
    let url = repo.url();
    let work = WorkTree::clone(&url);
    // A commit that no ref reaches now.
    let abandoned = work.commit("file5", "5");
    repo.server.push_state(&repo.owner, &repo.owner, "tool", BASE_TIME + 1, &work, &main_at(&abandoned));
    let back = owner_state(&repo, 2, &repo.commits[3]);
    repo.server.publish(&back);
    repo.server.eventually_refs(&repo.owner, "tool", &main_at(&repo.commits[3]));
    for protocol in PROTOCOLS {
        for oid in [&repo.commits[3], &repo.commits[1], &abandoned] {
            assert!(can_fetch(protocol, &url, oid), "protocol {protocol} {oid}");
        }
        let unknown = "c".repeat(40);
        WorkTree::new().fetch(protocol, &url, &[&unknown]).expect_failure(&["not our ref", &unknown]);
    }
}

fn owner_state(repo: &ServerWithHistory, later: u64, oid: &str) -> std::sync::Arc<grasp_core::nostr::SignedEvent> {
    repo.owner.state("tool", BASE_TIME + later, &main_at(oid))
}

/// See `docs/protocol.md#advertisements`.
#[test]
fn advertisements_contain_the_expected_capabilities() {
    let repo = ServerWithHistory::new();
    let advertise = |service: &str, headers: &[&str]| {
        let response = wire::info_refs(&repo.server.process, &repo.path(), service, headers);
        assert_eq!(response.status, 200, "{}", response.head);
        assert_eq!(response.header("content-type"), Some(format!("application/x-{service}-advertisement").as_str()));
        assert!(response.header("cache-control").is_some_and(|value| value.contains("no-cache")), "{}", response.head);
        response.expect_cors_headers();
        response.text()
    };
    let v0 = advertise("git-upload-pack", &[]);
    assert!(v0.starts_with("001e# service=git-upload-pack\n0000"), "{v0}");
    for word in [
        "allow-tip-sha1-in-want",
        "allow-reachable-sha1-in-want",
        " filter",
        " shallow",
        "symref=HEAD:refs/heads/main",
        "object-format=sha1",
        &format!("{} {MAIN}\n", repo.commits[4]),
        &format!("{} refs/tags/v1\n", repo.tag),
        &format!("{} refs/tags/v1^{{}}\n", repo.commits[4]),
    ] {
        assert!(v0.contains(word), "no {word:?} in {v0}");
    }
    let v1 = advertise("git-upload-pack", &["Git-Protocol: version=1"]);
    assert!(v1.contains("version 1\n") && v1.contains("allow-tip-sha1-in-want"), "{v1}");
    let v2 = advertise("git-upload-pack", &[VERSION_2]);
    for word in ["version 2\n", "ls-refs", "fetch=", "filter", "shallow", "object-format=sha1"] {
        assert!(v2.contains(word), "no {word:?} in {v2}");
    }
    assert!(!v2.contains(MAIN), "{v2}");
    let receive = advertise("git-receive-pack", &[]);
    assert!(receive.starts_with("001f# service=git-receive-pack\n0000"), "{receive}");
    for word in ["report-status", "side-band-64k", "delete-refs", "ofs-delta", "atomic", "push-options", MAIN] {
        assert!(receive.contains(word), "no {word:?} in {receive}");
    }
    // Unknown values of the header are ignored.
    for odd in ["Git-Protocol: version=2:version=1", "Git-Protocol: hello", "Git-Protocol: version=9"] {
        advertise("git-upload-pack", &[odd]);
    }
    // An empty repository advertises capabilities, too.
    let mut server = repo.server;
    server.publish_held(&repo.owner.announce("empty", BASE_TIME, &[]));
    let response = wire::info_refs(&server.process, &repo_path(&repo.owner.npub(), "empty"), "git-upload-pack", &[]);
    for word in ["capabilities^{}", "allow-tip-sha1-in-want", "allow-reachable-sha1-in-want", "filter"] {
        assert!(response.text().contains(word), "no {word:?} in {}", response.text());
    }
}

#[test]
fn unchanged_advertisement_is_answered_with_not_modified() {
    let mut repo = ServerWithHistory::new();
    let path = repo.path();
    let advertise =
        |server: &TestServer, headers: &[&str]| wire::info_refs(&server.process, &path, "git-upload-pack", headers);
    let first = advertise(&repo.server, &[]);
    let tag = first.header("etag").expect("response has an ETag").to_owned();
    let header = format!("If-None-Match: {tag}");
    let again = advertise(&repo.server, &[&header]);
    assert_eq!((again.status, again.body.len()), (304, 0));
    again.expect_cors_headers();
    assert_eq!(advertise(&repo.server, &["If-None-Match: \"other\""]).status, 200);
    // Another protocol version has another advertisement.
    assert_eq!(advertise(&repo.server, &[&header, VERSION_2]).status, 200);

    let state = owner_state(&repo, 1, &repo.commits[1]);
    repo.server.publish(&state);
    repo.server.eventually_refs(&repo.owner, "tool", &main_at(&repo.commits[1]));
    let changed = advertise(&repo.server, &[&header]);
    assert_eq!(changed.status, 200);
    assert!(changed.text().contains(&repo.commits[1]));
}

#[test]
fn head_request_is_answered_like_get_without_a_body() {
    let repo = ServerWithHistory::new();
    let path = format!("{}/info/refs?service=git-upload-pack", repo.path());
    for path in [path, repo.path(), format!("{}/purgatory", repo.path())] {
        let [get, head] = ["GET", "HEAD"].map(|method| wire::request(&repo.server.process, method, &path, &[]));
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        head.expect_cors_headers();
    }
}

/// Asserts the response to `ls-refs`.
#[track_caller]
fn expect_ls_refs(repo: &ServerWithHistory, response: &wire::HttpResponse) {
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("application/x-git-upload-pack-result")),
        "{}",
        response.head
    );
    let text = response.text();
    for (name, oid) in refs(&[(MAIN, &repo.commits[4]), (DEVELOP, &repo.commits[2])]) {
        assert!(text.contains(&format!("{oid} {name}")), "{text}");
    }
    assert!(text.contains("HEAD symref-target:refs/heads/main") && text.ends_with("0000"), "{text}");
}

/// Request bodies may be chunked or compressed with gzip, and `Expect: 100-continue` is answered.
#[test]
fn request_bodies_are_accepted_in_every_encoding() {
    let repo = ServerWithHistory::new();
    let process = &repo.server.process;
    let path = format!("{}/git-upload-pack", repo.path());
    let body = ls_refs();
    let plain = [UPLOAD_REQUEST, VERSION_2];
    expect_ls_refs(&repo, &wire::request_with_body(process, &path, &plain, body.as_bytes()));

    let head = wire::request_head(process, "POST", &path, &[&plain[..], &["Transfer-Encoding: chunked"]].concat());
    for size in [1, 5, 1_000] {
        let request = [head.as_bytes(), &wire::chunked(body.as_bytes(), size)].concat();
        expect_ls_refs(&repo, &wire::send(process, &request));
    }

    let folder = tempfile::TempDir::new().expect("cannot create a temporary folder");
    let file = folder.path().join("body");
    std::fs::write(&file, &body).expect("cannot write the file");
    let zipped = Command::new("gzip").arg("-c").arg(&file).output().expect("cannot run gzip").stdout;
    for coding in ["gzip", "x-gzip"] {
        let coding = format!("Content-Encoding: {coding}");
        expect_ls_refs(&repo, &wire::request_with_body(process, &path, &[&plain[..], &[&coding]].concat(), &zipped));
    }

    // The client waits for an interim response before it sends the body.
    let length = format!("Content-Length: {}", body.len());
    let head = wire::request_head(process, "POST", &path, &[&plain[..], &[&length, "Expect: 100-continue"]].concat());
    let mut stream = TcpStream::connect(process.address).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.write_all(head.as_bytes()).expect("cannot write to the connection");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("cannot read the interim response");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).expect("cannot write to the connection");
    expect_ls_refs(&repo, &wire::read_response(stream));
}

#[test]
fn ls_refs_of_protocol_2_respects_prefixes() {
    let repo = ServerWithHistory::new();
    let path = format!("{}/git-upload-pack", repo.path());
    let body = packet("command=ls-refs\n") + "0001" + &packet("ref-prefix refs/tags/\n") + "0000";
    let text =
        wire::request_with_body(&repo.server.process, &path, &[UPLOAD_REQUEST, VERSION_2], body.as_bytes()).text();
    assert!(text.contains("refs/tags/v1") && !text.contains(MAIN), "{text}");
}

#[test]
fn malformed_requests_are_not_server_errors() {
    let repo = ServerWithHistory::new();
    let path = format!("{}/git-upload-pack", repo.path());
    for body in ["", "0000", "zzzz", "0008abc", &packet("command=nonsense\n"), &(packet("want nothing\n") + "0000")] {
        for headers in [&[UPLOAD_REQUEST][..], &[UPLOAD_REQUEST, VERSION_2]] {
            let response = wire::request_with_body(&repo.server.process, &path, headers, body.as_bytes());
            assert!(response.status < 500, "{body:?}: {}", response.head);
            response.expect_cors_headers();
        }
    }
    // The server still works.
    WorkTree::clone(&repo.url());
    let (work, c1) = one_commit("other");
    work.push(&repo.url(), &[&format!("{c1}:refs/heads/other")]).expect_failure(&["E-STATE-MISSING"]);
}

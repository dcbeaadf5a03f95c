//! Fetching, with every protocol and every habit of real clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use crate::support::git::{DEVELOP, MAIN, Maintainer, PROTOCOLS, THEN, Work, fetchable, refs, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{UPLOAD_REQUEST, VERSION_2, ls_refs, packet};
use crate::support::{DEADLINE, wire};

/// A repository with a history: five commits on `main`, a branch, a tag.
struct Story {
    stage: Stage,
    owner: Maintainer,
    commits: Vec<String>,
    tag: String,
}

impl Story {
    fn new() -> Self {
        let mut stage = Stage::new();
        let owner = stage.person(1);
        let work = Work::new();
        let commits: Vec<String> = (0..5).map(|n| work.commit(&format!("file{n}"), &n.to_string())).collect();
        let tag = work.tag("v1");
        let declared = [(MAIN, commits[4].as_str()), (DEVELOP, &commits[2]), ("refs/tags/v1", &tag)];
        stage.found(&owner, "tool", &[], &work, &declared);
        Self { stage, owner, commits, tag }
    }

    fn url(&self) -> String {
        self.stage.url(&self.owner, "tool")
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }
}

/// How many commits a tree has.
fn commits(work: &Work) -> String {
    work.git(&["rev-list", "--count", "HEAD"]).done().text()
}

#[test]
fn clones_with_every_protocol() {
    let story = Story::new();
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        let clone = |args: &[&str]| {
            let (work, said) = Work::try_clone(&["-c", &version], &story.url(), args);
            said.done();
            work
        };
        let full = clone(&[]);
        full.fsck();
        assert_eq!((full.oid("HEAD"), full.oid("v1")), (story.commits[4].clone(), story.tag.clone()));
        assert_eq!(full.git(&["symbolic-ref", "HEAD"]).text(), MAIN);
        assert_eq!(commits(&full), "5");
        assert_eq!(full.oid("origin/develop"), story.commits[2]);

        // Shallow, deeper, and whole again.
        let shallow = clone(&["--depth=1"]);
        assert_eq!(commits(&shallow), "1");
        shallow.git(&["-c", &version, "fetch", "--quiet", "--deepen=2"]).done();
        assert_eq!(commits(&shallow), "3");
        shallow.git(&["-c", &version, "fetch", "--quiet", "--unshallow"]).done();
        assert_eq!(commits(&shallow), "5");
        shallow.fsck();
        let since = clone(&["--shallow-exclude=develop"]);
        assert_eq!(commits(&since), "2");

        // Without files and without trees; what is missing is fetched when it is needed.
        for filter in ["blob:none", "tree:0"] {
            let partial = clone(&["--no-checkout", &format!("--filter={filter}")]);
            assert_eq!(commits(&partial), "5");
            let missing = partial.git(&["rev-list", "--objects", "--missing=print", "HEAD"]).done().text();
            assert!(missing.lines().any(|line| line.starts_with('?')), "protocol {protocol} {filter}: {missing}");
            assert_eq!(partial.git(&["-c", &version, "show", "HEAD:file4"]).done().text(), "4");
        }
        // Only one branch, and a mirror with everything.
        assert_eq!(commits(&clone(&["--single-branch", "--branch=develop"])), "3");
        let mirror = clone(&["--mirror"]);
        assert_eq!(mirror.oid("refs/tags/v1"), story.tag);
    }
}

#[test]
fn g1_50_shallow_and_filter_meet() {
    let story = Story::new();
    let (shallow, said) = Work::try_clone(&[], &story.url(), &["--depth=1"]);
    said.done();
    shallow.git(&["fetch", "--filter=tree:0", "origin"]).done();
}

#[test]
fn fetches_bring_what_is_new_and_drop_what_went() {
    let mut story = Story::new();
    let clone = Work::clone(&story.url());
    let work = Work::clone(&story.url());
    let next = work.commit("file5", "5");
    story.stage.advance(&story.owner, &story.owner, "tool", THEN + 1, &work, &main_at(&next));
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        clone.git(&["-c", &version, "fetch", "--prune", "origin"]).done();
        assert_eq!(clone.oid("origin/main"), next);
        assert!(!clone.git(&["rev-parse", "--verify", "origin/develop"]).success);
    }
    // Nothing to fetch is fine, also from a tree that has a lot of its own.
    for n in 0..40 {
        clone.commit("own", &n.to_string());
    }
    clone.git(&["fetch", "origin"]).done();
}

#[test]
fn g1_51_an_empty_repository_can_be_cloned_and_says_no_branch() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    stage.hold(&owner.announce("tool", THEN, &[]));
    for protocol in PROTOCOLS {
        let version = format!("protocol.version={protocol}");
        let (clone, said) = Work::try_clone(&["-c", &version], &stage.url(&owner, "tool"), &[]);
        said.done();
        // §17 item 1: a client that commits and makes `main` must not find it made.
        clone.commit("file", "one");
        clone.git(&["branch", "main"]).done();
    }
    let said = Work::new().fetch("2", &stage.url(&owner, "tool"), &["main"]);
    said.refused(&["main"]);
}

#[test]
fn g1_49_any_stored_object_can_be_had_by_its_id() {
    let mut story = Story::new();
    let url = story.url();
    let work = Work::clone(&url);
    // One that no ref has, and one that is nothing's ancestor any more.
    let abandoned = work.commit("file5", "5");
    story.stage.advance(&story.owner, &story.owner, "tool", THEN + 1, &work, &main_at(&abandoned));
    let back = owner_state(&story, 2, &story.commits[3]);
    story.stage.publish(&back);
    story.stage.eventually_refs(&story.owner, "tool", &main_at(&story.commits[3]));
    for protocol in PROTOCOLS {
        for oid in [&story.commits[3], &story.commits[1], &abandoned] {
            assert!(fetchable(protocol, &url, oid), "protocol {protocol} {oid}");
        }
        let nowhere = "c".repeat(40);
        let said = Work::new().fetch(protocol, &url, &[&nowhere]);
        said.refused(&["not our ref", &nowhere]);
    }
}

fn owner_state(story: &Story, later: u64, oid: &str) -> std::sync::Arc<grasp_core::nostr::SignedEvent> {
    story.owner.state("tool", THEN + later, &main_at(oid))
}

#[test]
fn s2_10_advertisements() {
    let story = Story::new();
    let advertise = |service: &str, headers: &[&str]| {
        let answer = wire::info_refs(&story.stage.server, &story.path(), service, headers);
        assert_eq!(answer.status, 200, "{}", answer.head);
        assert_eq!(answer.header("content-type"), Some(format!("application/x-{service}-advertisement").as_str()));
        assert!(answer.header("cache-control").is_some_and(|value| value.contains("no-cache")), "{}", answer.head);
        answer.expect_open_to_everybody();
        answer.text()
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
        &format!("{} {MAIN}\n", story.commits[4]),
        &format!("{} refs/tags/v1\n", story.tag),
        &format!("{} refs/tags/v1^{{}}\n", story.commits[4]),
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
    // A header with anything else in it is not passed on.
    for odd in ["Git-Protocol: version=2:version=1", "Git-Protocol: hello", "Git-Protocol: version=9"] {
        advertise("git-upload-pack", &[odd]);
    }
    // The empty one has its capabilities, too.
    let mut stage = story.stage;
    stage.hold(&story.owner.announce("empty", THEN, &[]));
    let answer = wire::info_refs(&stage.server, &repo_path(&story.owner.npub(), "empty"), "git-upload-pack", &[]);
    for word in ["capabilities^{}", "allow-tip-sha1-in-want", "allow-reachable-sha1-in-want", "filter"] {
        assert!(answer.text().contains(word), "no {word:?} in {}", answer.text());
    }
}

#[test]
fn advertisements_are_not_sent_twice() {
    let mut story = Story::new();
    let path = story.path();
    let ask = |stage: &Stage, headers: &[&str]| wire::info_refs(&stage.server, &path, "git-upload-pack", headers);
    let first = ask(&story.stage, &[]);
    let tag = first.header("etag").expect("something to compare").to_owned();
    let header = format!("If-None-Match: {tag}");
    let again = ask(&story.stage, &[&header]);
    assert_eq!((again.status, again.body.len()), (304, 0));
    again.expect_open_to_everybody();
    assert_eq!(ask(&story.stage, &["If-None-Match: \"other\""]).status, 200);
    // Another protocol is another answer.
    assert_eq!(ask(&story.stage, &[&header, VERSION_2]).status, 200);

    let state = owner_state(&story, 1, &story.commits[1]);
    story.stage.publish(&state);
    story.stage.eventually_refs(&story.owner, "tool", &main_at(&story.commits[1]));
    let changed = ask(&story.stage, &[&header]);
    assert_eq!(changed.status, 200);
    assert!(changed.text().contains(&story.commits[1]));
}

#[test]
fn head_requests_are_get_requests_without_a_body() {
    let story = Story::new();
    let path = format!("{}/info/refs?service=git-upload-pack", story.path());
    for path in [path, story.path(), format!("{}/purgatory", story.path())] {
        let [get, head] = ["GET", "HEAD"].map(|method| wire::ask(&story.stage.server, method, &path, &[]));
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
        head.expect_open_to_everybody();
    }
}

/// What `ls-refs` should say.
#[track_caller]
fn expect_refs(story: &Story, answer: &wire::Answer) {
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/x-git-upload-pack-result")),
        "{}",
        answer.head
    );
    let text = answer.text();
    for (name, oid) in refs(&[(MAIN, &story.commits[4]), (DEVELOP, &story.commits[2])]) {
        assert!(text.contains(&format!("{oid} {name}")), "{text}");
    }
    assert!(text.contains("HEAD symref-target:refs/heads/main") && text.ends_with("0000"), "{text}");
}

#[test]
fn g1_47_requests_in_every_dress() {
    let story = Story::new();
    let server = &story.stage.server;
    let path = format!("{}/git-upload-pack", story.path());
    let body = ls_refs();
    let plain = [UPLOAD_REQUEST, VERSION_2];
    expect_refs(&story, &wire::post(server, &path, &plain, body.as_bytes()));

    let head = wire::head(server, "POST", &path, &[&plain[..], &["Transfer-Encoding: chunked"]].concat());
    for size in [1, 5, 1_000] {
        let request = [head.as_bytes(), &wire::chunked(body.as_bytes(), size)].concat();
        expect_refs(&story, &wire::send(server, &request));
    }

    let folder = tempfile::TempDir::new().expect("a folder");
    let file = folder.path().join("body");
    std::fs::write(&file, &body).expect("a file");
    let zipped = Command::new("gzip").arg("-c").arg(&file).output().expect("gzip runs").stdout;
    for coding in ["gzip", "x-gzip"] {
        let coding = format!("Content-Encoding: {coding}");
        expect_refs(&story, &wire::post(server, &path, &[&plain[..], &[&coding]].concat(), &zipped));
    }

    // Says that it would like to hear first whether the body is wanted.
    let length = format!("Content-Length: {}", body.len());
    let head = wire::head(server, "POST", &path, &[&plain[..], &[&length, "Expect: 100-continue"]].concat());
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(head.as_bytes()).expect("writes");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("an interim answer");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body.as_bytes()).expect("writes");
    expect_refs(&story, &wire::finish(stream));
}

#[test]
fn v2_ls_refs_honours_prefixes() {
    let story = Story::new();
    let path = format!("{}/git-upload-pack", story.path());
    let body = packet("command=ls-refs\n") + "0001" + &packet("ref-prefix refs/tags/\n") + "0000";
    let text = wire::post(&story.stage.server, &path, &[UPLOAD_REQUEST, VERSION_2], body.as_bytes()).text();
    assert!(text.contains("refs/tags/v1") && !text.contains(MAIN), "{text}");
}

#[test]
fn mistakes_are_told_in_the_protocol() {
    let story = Story::new();
    let path = format!("{}/git-upload-pack", story.path());
    for body in ["", "0000", "zzzz", "0008abc", &packet("command=nonsense\n"), &(packet("want nothing\n") + "0000")] {
        for headers in [&[UPLOAD_REQUEST][..], &[UPLOAD_REQUEST, VERSION_2]] {
            let answer = wire::post(&story.stage.server, &path, headers, body.as_bytes());
            assert!(answer.status < 500, "{body:?}: {}", answer.head);
            answer.expect_open_to_everybody();
        }
    }
    // And it goes on serving.
    Work::clone(&story.url());
    let (work, c1) = one_commit("other");
    let said = work.push(&story.url(), &[&format!("{c1}:refs/heads/other")]);
    said.refused(&["E-STATE-MISSING"]);
}

//! Clones, fetches and ref listings by the installed git.

use std::path::{Path, PathBuf};

use grasp_git::refs::{RefTarget, Refs, write_refs};
use grasp_git::serve::{FetchResponseKind, ProtocolVersion, UploadPackRequest};
use tempfile::TempDir;

use super::http::{LoggedRequest, TestHttpServer};
use super::repository::{COMMITS, EVENT, ServedRepo, attempt, feed, run};

const VERSIONS: [(&str, ProtocolVersion); 3] = [
    ("protocol.version=0", ProtocolVersion::V0),
    ("protocol.version=1", ProtocolVersion::V1),
    ("protocol.version=2", ProtocolVersion::V2),
];

/// Returns a folder to clone into, and the path of the clone.
fn clone_folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("create a folder");
    let clone = folder.path().join("clone");
    (folder, clone)
}

/// Clones with a protocol version and further options.
fn clone(server: &TestHttpServer, version: &str, options: &[&str]) -> (TempDir, PathBuf) {
    let (folder, clone) = clone_folder();
    let url = server.url();
    let mut arguments = vec!["-c", version, "clone", "--quiet", "-c", version];
    arguments.extend_from_slice(options);
    arguments.extend([url.as_str(), "clone"]);
    run(folder.path(), &arguments);
    (folder, clone)
}

fn commits(folder: &Path, from: &str) -> usize {
    run(folder, &["rev-list", "--count", from]).parse().expect("a number")
}

fn listed(server: &TestHttpServer, options: &[&str], patterns: &[&str]) -> Vec<String> {
    let url = server.url();
    let mut arguments = options.to_vec();
    arguments.push(&url);
    arguments.extend_from_slice(patterns);
    run(Path::new("/"), &arguments).lines().map(str::to_owned).collect()
}

#[test]
fn all_refs_are_cloned_in_every_protocol_version() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, protocol) in VERSIONS {
        let (_keep, clone) = clone(&server, version, &[]);
        run(&clone, &["fsck", "--strict"]);
        assert_eq!(run(&clone, &["symbolic-ref", "HEAD"]), "refs/heads/main", "{version}");
        assert_eq!(commits(&clone, "HEAD"), COMMITS);
        for name in ["refs/tags/v1", "refs/tags/v2", "refs/tags/light"] {
            assert_eq!(run(&clone, &["rev-parse", name]), server.repo.oid(name), "{version}");
        }
        assert_eq!(run(&clone, &["rev-parse", "origin/side"]), server.repo.oid("refs/heads/side"));
        let requests = server.take_requests();
        assert_eq!(requests[0], LoggedRequest::Advertisement(protocol));
        let Some(LoggedRequest::UploadPack(_, UploadPackRequest::Fetch(fetch))) = requests.last() else {
            panic!("{requests:?}")
        };
        assert_eq!(
            (fetch.response_kind, fetch.wants.len()),
            (FetchResponseKind::Pack, 5),
            "{version}: main, side, three tags"
        );
    }
}

#[test]
fn pull_request_refs_can_be_fetched() {
    let server = TestHttpServer::start(ServedRepo::new());
    let name = format!("refs/nostr/{EVENT}");
    for (version, _) in VERSIONS {
        let (_keep, clone) = clone(&server, version, &[]);
        run(&clone, &["fetch", "--quiet", "origin", "+refs/nostr/*:refs/nostr/*"]);
        assert_eq!(run(&clone, &["rev-parse", &name]), server.repo.oid(&name), "{version}");
    }
}

#[test]
fn ls_remote_lists_the_same_refs_as_git() {
    let server = TestHttpServer::start(ServedRepo::new());
    let local = server.repo.folder().to_str().expect("UTF-8").to_owned();
    for (version, _) in VERSIONS {
        for (options, patterns) in [
            (&["ls-remote"][..], &[][..]),
            (&["ls-remote", "--symref"], &[]),
            (&["ls-remote", "--symref"], &["HEAD"]),
            (&["ls-remote"], &["main"]),
            (&["ls-remote"], &["refs/tags/v1", "refs/heads/side"]),
            (&["ls-remote"], &["refs/nostr/*"]),
            (&["ls-remote", "--tags"], &[]),
            (&["ls-remote", "--heads"], &["s*"]),
            (&["ls-remote"], &["refs/none"]),
        ] {
            let options: Vec<&str> = ["-c", version].iter().chain(options).copied().collect();
            let mut theirs = options.clone();
            theirs.push(&local);
            theirs.extend_from_slice(patterns);
            let theirs: Vec<String> = run(Path::new("/"), &theirs).lines().map(str::to_owned).collect();
            assert_eq!(listed(&server, &options, patterns), theirs, "{options:?} {patterns:?}");
        }
    }
}

/// An empty repository can be cloned and does not advertise an unborn `main`: docs/protocol.md#empty-repositories.
#[test]
fn empty_repository_can_be_cloned_without_an_unborn_main() {
    let server = TestHttpServer::start(ServedRepo::empty());
    for (version, protocol) in VERSIONS {
        let (_keep, clone) = clone(&server, version, &[]);
        assert_eq!(run(&clone, &["symbolic-ref", "HEAD"]), "refs/heads/master", "{version}");
        assert_eq!(listed(&server, &["-c", version, "ls-remote"], &[]), Vec::<String>::new());
        assert_eq!(server.fetches(), [], "{protocol:?}: nothing to fetch");
    }
    // If there are no refs, a client of v0 or v1 sends no request.
    let (_keep, empty_clone) = clone(&server, "protocol.version=2", &[]);
    let oid = "1".repeat(40);
    let output = attempt(&empty_clone, &["fetch", "origin", &oid]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains(&format!("not our ref {oid}")), "{stderr}");
    // The client's default branch does not matter if the server advertises HEAD.
    let (_keep, clone) = clone(&server, "init.defaultBranch=main", &[]);
    assert_eq!(run(&clone, &["symbolic-ref", "HEAD"]), "refs/heads/master");
    run(&clone, &["commit", "--quiet", "--allow-empty", "-m", "x"]);
    run(&clone, &["branch", "main"]);
}

#[test]
fn shallow_clones_can_be_deepened() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, _) in VERSIONS {
        let (_keep, clone) = clone(&server, version, &["--depth=1"]);
        assert_eq!(commits(&clone, "HEAD"), 1, "{version}");
        run(&clone, &["fetch", "--quiet", "--depth=3"]);
        assert_eq!(commits(&clone, "HEAD"), 3);
        run(&clone, &["fetch", "--quiet", "--deepen=2"]);
        assert_eq!(commits(&clone, "HEAD"), 5);
        run(&clone, &["fetch", "--quiet", "--unshallow"]);
        assert_eq!(commits(&clone, "HEAD"), COMMITS);
        run(&clone, &["fsck", "--strict"]);
    }
}

#[test]
fn shallow_since_and_shallow_exclude_work() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, _) in VERSIONS {
        let since = format!("--shallow-since={}", 1_700_000_000 + 10 * 86_400);
        let (_keep, first) = clone(&server, version, &[&since, "--single-branch", "--branch=main"]);
        assert_eq!(commits(&first, "HEAD"), COMMITS - 9, "{version}");
        let (_keep, second) = clone(&server, version, &["--shallow-exclude=v2", "--single-branch", "--branch=main"]);
        assert_eq!(commits(&second, "HEAD"), COMMITS - 9, "{version}");
        let unknown = attempt(&second, &["fetch", "--shallow-exclude=unknown"]);
        let stderr = String::from_utf8_lossy(&unknown.stderr).into_owned();
        assert!(stderr.contains("upload-pack: git refuses this request"), "{stderr}");
    }
}

#[test]
fn partial_clones_fetch_missing_objects_on_demand() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, _) in VERSIONS {
        for filter in ["--filter=blob:none", "--filter=tree:0", "--filter=blob:limit=100"] {
            let (_keep, clone) = clone(&server, version, &[filter, "--no-checkout"]);
            let absent = run(&clone, &["rev-list", "--objects", "--all", "--missing=print"]);
            assert!(absent.contains("\n?"), "{version} {filter}: no object is missing");
            server.take_requests();
            run(&clone, &["checkout", "--quiet", "main"]);
            assert_ne!(server.fetches(), [], "{version} {filter}: nothing was fetched");
            assert!(run(&clone, &["cat-file", "blob", "v1:dir1/file"]).starts_with("4 lorem"), "{version} {filter}");
        }
        // As the conformance suite grasp-audit does: first shallow, then filtered.
        let (_keep, shallow) = clone(&server, version, &["--depth=1"]);
        run(&shallow, &["fetch", "--quiet", "--filter=tree:0", "origin"]);
    }
}

#[test]
fn expensive_filters_are_rejected() {
    let server = TestHttpServer::start(ServedRepo::new());
    let (folder, _) = clone_folder();
    for (version, _) in VERSIONS {
        for (filter, reason) in [
            ("--filter=sparse:oid=main:dir1/file", "filter 'sparse:oid' not supported"),
            ("--filter=combine:blob:none+sparse:oid=main:dir1/file", "filter 'sparse:oid' not supported"),
        ] {
            let output = attempt(folder.path(), &["-c", version, "clone", filter, &server.url(), "clone"]);
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && stderr.contains(reason), "{version} {filter}: {stderr}");
        }
    }
}

#[test]
fn any_object_can_be_fetched_by_its_id() {
    let server = TestHttpServer::start(ServedRepo::new());
    let (hidden, parent) = (server.repo.hidden(), server.repo.oid("refs/heads/main~3"));
    for (version, _) in VERSIONS {
        let (folder, _) = clone_folder();
        run(folder.path(), &["init", "--quiet"]);
        run(folder.path(), &["config", "protocol.version", &version[version.len() - 1..]]);
        for oid in [&hidden, &parent] {
            run(folder.path(), &["fetch", "--quiet", &server.url(), oid]);
            assert_eq!(run(folder.path(), &["rev-parse", "FETCH_HEAD"]), *oid, "{version}");
        }
        let unknown = "2".repeat(40);
        let output = attempt(folder.path(), &["fetch", &server.url(), &unknown]);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(stderr.contains(&format!("remote error: upload-pack: not our ref {unknown}")), "{version}: {stderr}");
    }
}

#[test]
fn client_with_own_commits_negotiates() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, _) in VERSIONS {
        let (_keep, clone) = clone(&server, version, &["--single-branch", "--branch=side"]);
        // So many that the first round of the negotiation finds no common commit.
        let mut own = String::from("feature done\n");
        for number in 0..300 {
            let time = 1_800_000_000 + number;
            own.push_str(&format!("commit refs/heads/own\ncommitter a <a@example> {time} +0000\ndata 1\nx\n"));
            own.push_str(if number == 0 { "from refs/heads/side^0\n\n" } else { "\n" });
        }
        feed(&clone, &["fast-import", "--quiet"], format!("{own}done\n").as_bytes());
        run(&clone, &["checkout", "--quiet", "own"]);
        server.take_requests();
        run(&clone, &["fetch", "--quiet", "origin", "+refs/heads/*:refs/remotes/origin/*"]);
        let fetches = server.fetches();
        assert!(fetches.len() > 1, "{version}: one round only");
        assert_eq!(fetches[0].response_kind, FetchResponseKind::Negotiation, "{version}");
        assert_eq!(run(&clone, &["rev-parse", "origin/main"]), server.repo.oid("refs/heads/main"));
        run(&clone, &["fsck", "--strict"]);
    }
}

#[test]
fn equal_requests_of_different_clients_have_equal_keys() {
    let server = TestHttpServer::start(ServedRepo::new());
    for (version, _) in VERSIONS {
        let mut keys = Vec::new();
        for agent in ["git/1", "git/2"] {
            let (folder, _) = clone_folder();
            let mut command =
                super::repository::command(folder.path(), &["-c", version, "clone", "--quiet", &server.url(), "x"]);
            assert!(command.env("GIT_USER_AGENT", agent).status().expect("run git").success());
            keys.extend(server.fetches().iter().map(|fetch| fetch.key));
        }
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0], keys[1], "{version}");
    }
}

#[test]
fn ten_thousand_refs_are_served() {
    let repo = ServedRepo::new();
    let mut refs: Refs = repo.refs();
    let oids: Vec<String> = refs.iter().map(|(_, target)| target.oid.clone()).collect();
    for number in 0..10_000 {
        let target = RefTarget { oid: oids[number % 2].clone(), peeled: None };
        refs.set(&format!("refs/heads/branch/{number:05}"), target);
    }
    write_refs(repo.folder(), &refs).expect("write refs");
    let server = TestHttpServer::start(repo);
    for (version, _) in VERSIONS {
        assert_eq!(listed(&server, &["-c", version, "ls-remote", "--heads"], &[]).len(), 10_003, "{version}");
        let (_keep, clone) = clone(&server, version, &["--no-checkout"]);
        assert_eq!(run(&clone, &["for-each-ref", "refs/remotes/origin/branch"]).lines().count(), 10_000);
        // Many names at once; more would take git's client minutes.
        let names: Vec<String> =
            (0..50).map(|number| format!("+refs/heads/branch/{number:05}:refs/x/{number}")).collect();
        let mut fetch = vec!["fetch", "--quiet", "origin"];
        fetch.extend(names.iter().map(String::as_str));
        run(&clone, &fetch);
    }
}

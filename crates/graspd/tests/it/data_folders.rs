//! Data folders that do not belong together, are empty or damaged: the server does not start, changes nothing and says what
//! to do.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, ls_remote, refs, repo_path};
use crate::support::integrity::repo_folders;
use crate::support::small_disk::SmallDisk;
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{Server, command, eventually};

/// Runs a server that must not start. Returns its error message.
fn expect_no_start(mut command: Command) -> String {
    let output = command.stdout(Stdio::null()).output().expect("cannot run graspd");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("valid UTF-8")
}

#[test]
fn git_folder_of_another_server_is_refused() {
    let commits = ["one", "two"].map(one_commit);
    let servers = [0, 1].map(|nth| {
        let mut server = TestServer::new();
        let owner = server.maintainer(1);
        let (work, oid) = &commits[nth];
        server.create_repo(&owner, "tool", &[], work, &main_at(oid));
        assert_eq!(server.process.stop(), Some(0));
        server
    });
    let git = servers[1].git_folder();
    let mixed = [("DOMAIN", "grasp.test"), ("GIT_DATA_PATH", path_str(&git))];
    let message = expect_no_start(command(servers[0].process.folder().path(), &mixed));
    for expected in [path_str(&git), "belongs to another event store", "NGIT_GIT_DATA_PATH", "docs/how-to.md"] {
        assert!(message.contains(expected), "{expected} in {message}");
    }
    for (server, (_, oid)) in servers.into_iter().zip(&commits) {
        let server = server.start_after_exit();
        server.expect_refs(&server.maintainer(1), "tool", &main_at(oid));
    }
}

/// The folder may be empty because its disk is not mounted. If the git data is really lost, the events can be exported
/// from the stopped server and imported into an empty one, which gets the git data again.
#[test]
fn empty_git_folder_is_refused_and_the_server_can_be_rebuilt() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("first");
    let (announcement, state) = server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let coordinate = owner.repo("tool");
    let issue = Author::new(9).sign(kinds::ISSUE, BASE_TIME, &[&["a", &coordinate], &["subject", "x"]], "broken");
    server.publish(&issue);
    assert_eq!(server.process.stop(), Some(0));
    let folder = server.process.folder().clone();
    let git = server.git_folder();
    let settings = [("DOMAIN", "grasp.test")];
    let kept = folder.path().join("kept");
    fs::rename(&git, &kept).expect("cannot move the folder");
    for is_present in [false, true] {
        if is_present {
            fs::create_dir_all(git.join("repos")).expect("cannot create the folder");
        }
        let message = expect_no_start(command(folder.path(), &settings));
        for expected in [path_str(&git), "is empty", "1 repositories", "tool.git", "NGIT_GIT_DATA_PATH"] {
            assert!(message.contains(expected), "{expected} in {message}");
        }
        assert!(repo_folders(&git).is_empty());
        fs::remove_dir_all(&git).expect("cannot remove the folder");
    }
    // With the folder at its place nothing has changed.
    fs::rename(&kept, &git).expect("cannot move the folder");
    let mut server = server.start_after_exit();
    server.expect_served(&[&announcement, &state, &issue]);
    server.expect_refs(&owner, "tool", &main_at(&oid));

    assert_eq!(server.process.stop(), Some(0));
    fs::remove_dir_all(&git).expect("cannot remove the folder");
    let events = folder.path().join("events.jsonl");
    server.process.run(&["export", path_str(&events), "--held"]).expect_success();
    let new = TempDir::new().expect("cannot create a temporary folder").into();
    let mut rebuilt = TestServer::start_in(&new, &settings);
    let summary = rebuilt.process.run(&["import", path_str(&events), "--protected", "--json"]).json_object();
    assert_eq!((&summary["held"], &summary["deferred"]), (&json!(2), &json!(1)), "{summary}");
    work.push(&rebuilt.url(&owner, "tool"), &[&format!("{oid}:refs/heads/main")]).expect_success();
    rebuilt.expect_served(&[&announcement, &state]);
    rebuilt.eventually_served(&issue);
}

/// With a path that leads to a new, empty store, the git folder of an earlier version is not taken over.
#[test]
fn git_folder_with_repositories_and_an_empty_store_are_refused() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("first");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    assert_eq!(server.process.stop(), Some(0));
    fs::remove_file(server.git_folder().join("store-id")).expect("cannot remove the id");
    let other = server.process.folder().path().join("other");
    let settings = [("DOMAIN", "grasp.test"), ("RELAY_DATA_PATH", path_str(&other))];
    let message = expect_no_start(command(server.process.folder().path(), &settings));
    for expected in [path_str(&other), "is empty", "NGIT_RELAY_DATA_PATH"] {
        assert!(message.contains(expected), "{expected} in {message}");
    }
    let server = server.start_after_exit();
    server.expect_refs(&owner, "tool", &main_at(&oid));
}

/// A git folder of an earlier version has no id. It gets that of its store.
#[test]
fn git_folder_without_an_id_gets_one() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("first");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    assert_eq!(server.process.stop(), Some(0));
    let file = server.git_folder().join("store-id");
    let id = fs::read(&file).expect("cannot read the id");
    fs::remove_file(&file).expect("cannot remove the id");
    let server = server.start_after_exit();
    server.expect_refs(&owner, "tool", &main_at(&oid));
    assert_eq!(fs::read(&file).expect("cannot read the id"), id);
}

/// The disk of the git folder is unmounted, or becomes read-only, while the server runs.
#[test]
fn unusable_git_folder_is_reported() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("first");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let git_folder_check = |server: &TestServer| {
        let response = server.process.get("/readyz", "");
        let (head, body) = response.split_once("\r\n\r\n").expect("no body");
        let checks: Value = serde_json::from_str(body).expect("invalid JSON");
        let is_ready = head.starts_with("HTTP/1.1 200");
        (is_ready, checks["checks"]["git_folder"]["detail"].as_str().expect("no such check").to_owned())
    };
    assert_eq!(git_folder_check(&server), (true, "readable and writable".to_owned()));
    let (git, away) = (server.git_folder(), server.process.folder().path().join("away"));
    fs::rename(&git, &away).expect("cannot move the folder");
    fs::create_dir(&git).expect("cannot create the folder");
    let problem = eventually("the problem is noticed", || Some(git_folder_check(&server)).filter(|(ready, _)| !ready));
    assert!(problem.1.contains("is its disk mounted"), "{problem:?}");
    fs::remove_dir_all(&git).expect("cannot remove the folder");
    fs::rename(&away, &git).expect("cannot move the folder");
    eventually("the folder can be used again", || git_folder_check(&server).0.then_some(()));

    let Some(disk) = SmallDisk::mount() else { return };
    let path = disk.path().join("git");
    let relay = TempDir::new().expect("cannot create a temporary folder");
    let settings = [("DOMAIN", "grasp.test"), ("GIT_DATA_PATH", path_str(&path)), ("STORE_RESERVE_BYTES", "0")];
    let process = Server::spawn(command(relay.path(), &settings));
    let [first, second] = [0, 1].map(|nth| work.commit("file", &format!("content {nth}")));
    let url = format!("http://{}{}", process.address, repo_path(&owner.npub(), "tool"));
    let publish = |event: &SignedEvent| assert!(process.connect().publish(event).0);
    let push = |commit: &str| work.push(&url, &[&format!("{commit}:{MAIN}")]);
    publish(&owner.announce("tool", BASE_TIME, &[]));
    publish(&owner.state("tool", BASE_TIME, &main_at(&first)));
    push(&first).expect_success();
    publish(&owner.state("tool", BASE_TIME + 1, &main_at(&second)));
    disk.remount("ro");
    push(&second).expect_failure(&["E-PACK-SERVER", "read-only filesystem"]);
    assert_eq!(ls_remote(&url).refs, refs(&main_at(&first)));
    eventually("the problem is noticed", || process.get("/readyz", "").contains("Read-only file system").then_some(()));
    disk.remount("rw");
    eventually("the push is accepted", || push(&second).success.then_some(()));
    assert_eq!(ls_remote(&url).refs, refs(&main_at(&second)));
}

/// Bytes of a page of the database.
const PAGE: u64 = 4_096;

/// The database is truncated, or one of its pages is overwritten. LMDB ends a process that reads certain damaged pages, so
/// the server must find the damage in another way. Pages that are not in use may be damaged without consequences.
#[test]
fn damaged_event_store_is_refused() {
    let server = Server::start(&[("POLICY", "open")]);
    let author = Author::new(1);
    let mut client = server.connect();
    for nth in 0..600 {
        assert!(client.publish(&author.note(BASE_TIME + nth, &[], &"text ".repeat(100))).0);
    }
    let folder = server.folder().clone();
    drop(client);
    let mut server = server;
    assert_eq!(server.stop(), Some(0));
    let database = folder.path().join("data/relay/events/data.mdb");
    let record = folder.path().join("data/relay/clean-stop");
    assert!(record.exists());
    let intact = fs::read(&database).expect("cannot read the database");
    let pages = intact.len() as u64 / PAGE;
    let mut refused = 0;
    let overwritten = |at: u64, pages: u64, byte: u8| {
        let mut damaged = intact.clone();
        damaged[(at * PAGE) as usize..((at + pages) * PAGE) as usize].fill(byte);
        damaged
    };
    let mut damages = vec![
        ("truncated".to_owned(), intact[..intact.len() / 2].to_vec()),
        // They describe the whole database.
        ("first two pages".to_owned(), overwritten(0, 2, 0)),
    ];
    for nth in 0..8 {
        let at = 2 + nth * (pages - 2) / 8;
        damages.push((format!("page {at}"), overwritten(at, 1, if nth % 2 == 0 { 0 } else { 0xa7 })));
    }
    for (what, damaged) in &damages {
        let file = File::create(&database).expect("cannot open the database");
        file.write_all_at(damaged, 0).expect("cannot write the database");
        match start_error(&mut command(folder.path(), &[("POLICY", "open")])) {
            Some(message) => {
                refused += 1;
                for expected in ["event store", "damaged", "graspd restore", "NGIT_SYNC_BOOTSTRAP_RELAY_URL"] {
                    assert!(message.contains(expected), "{what}: {expected} in {message}");
                }
                let export = folder.path().join("events.jsonl");
                let export = command(folder.path(), &[("POLICY", "open")])
                    .args(["export", path_str(&export)])
                    .output()
                    .expect("cannot run graspd");
                assert_eq!(export.status.code(), Some(1), "{what}");
                let _ = fs::remove_file(folder.path().join("events.jsonl"));
            }
            // The page is not in use: nothing is missing.
            None => {
                let server = Server::start_in(&folder, &[("POLICY", "open")]);
                let export = folder.path().join("events.jsonl");
                server.run(&["export", path_str(&export)]).expect_success();
                let lines = fs::read_to_string(&export).expect("cannot read the export").lines().count();
                assert_eq!(lines, 600, "{what}");
                fs::remove_file(&export).expect("cannot remove the export");
            }
        }
    }
    assert!(refused >= 5, "{refused} of {} were detected", damages.len());
    fs::write(&database, &intact).expect("cannot write the database");
    let server = Server::start_in(&folder, &[("POLICY", "open")]);
    assert!(!record.exists());
    assert_eq!(server.run(&["status", "--json"]).json_object()["events"]["served"], 600);
}

/// Runs a server until it listens or ends. Returns its error message if it has ended.
fn start_error(command: &mut Command) -> Option<String> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("cannot start graspd");
    let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
    let is_listening = lines.any(|line| line.is_ok_and(|line| line.contains("listening")));
    if is_listening {
        child.kill().expect("cannot end the server");
        child.wait().expect("cannot wait for the server");
        return None;
    }
    let output = child.wait_with_output().expect("cannot wait for the server");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{message}");
    Some(message)
}

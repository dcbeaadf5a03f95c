//! Backups: taken under load, verified, restored and started as a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::admin::CommandOutput;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, ls_remote, refs, repo_path, try_ls_remote};
use crate::support::test_server::{StopSignal, TestServer, is_served, main_at, one_commit};
use crate::support::{Client, Server, command, eventually};

/// Gives the restored server the same domain as the original.
const DOMAIN_SETTING: (&str, &str) = ("DOMAIN", "grasp.test");

/// Runs a command in a folder with these settings until it ends.
fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> CommandOutput {
    CommandOutput::new(&command(folder, settings).args(arguments).output().expect("cannot run graspd"))
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("not text")
}

/// Returns a path in a temporary folder.
fn join(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

/// Restores a backup into a new folder and starts a server there.
fn restore_and_start(backup: &Path, settings: &[(&str, &str)]) -> (Arc<TempDir>, Server) {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    run(folder.path(), settings, &["restore", path_str(backup)]).expect_success();
    let server = Server::start_in(&folder, settings);
    (folder, server)
}

/// Returns the URL of a repository on a server.
fn url(server: &Server, who: &Maintainer, d: &str) -> String {
    format!("http://{}{}{}", server.address, server.base, repo_path(&who.npub(), d))
}

/// A repository that was pushed and acknowledged, and is not changed afterwards.
struct PushedRepo {
    who: u8,
    d: String,
    events: Vec<Arc<SignedEvent>>,
    oid: String,
}

/// A thread that publishes and pushes until it is stopped.
struct LoadGenerator {
    stop: Arc<AtomicBool>,
    pushed: Arc<Mutex<Vec<PushedRepo>>>,
    thread: std::thread::JoinHandle<()>,
}

/// Publishes an event that must be accepted.
fn publish(client: &mut Client, event: &SignedEvent) {
    let (accepted, reason) = client.publish(event);
    assert!(accepted, "{reason}");
}

impl LoadGenerator {
    fn start(server: &Server, service: &ServiceAddress, n: u8) -> Self {
        let (stop, pushed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, pushed_by_thread, service) = (stop.clone(), pushed.clone(), service.clone());
        let (address, relay) = (server.address, server.url());
        let base_url = format!("http://{}{}", server.address, server.base);
        let thread = std::thread::spawn(move || {
            let who = Maintainer::new(n, &service);
            let mut client = Client::connect(address, &relay);
            let url = |d: &str| format!("{base_url}{}", repo_path(&who.npub(), d));
            let work = WorkTree::new();
            publish(&mut client, &who.announce("moving", BASE_TIME, &[]));
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let oid = work.commit_orphan(&format!("b{round}"), &format!("{n} {round}"));
                // A repository that is not changed again.
                let d = format!("pushed-{round}");
                let (announcement, state) =
                    (who.announce(&d, BASE_TIME, &[]), who.state(&d, BASE_TIME, &main_at(&oid)));
                publish(&mut client, &announcement);
                publish(&mut client, &state);
                work.push(&url(&d), &[&format!("{oid}:{MAIN}")]).expect_success();
                let events = vec![announcement, state];
                pushed_by_thread.lock().expect("another thread panicked").push(PushedRepo {
                    who: n,
                    d,
                    events,
                    oid: oid.clone(),
                });
                // A repository whose history is replaced each time.
                publish(&mut client, &who.state("moving", BASE_TIME + round, &main_at(&oid)));
                work.push(&url("moving"), &[&format!("+{oid}:{MAIN}")]).expect_success();
                // A repository that is created and deleted.
                let at = BASE_TIME + 10 * round;
                publish(&mut client, &who.announce("short-lived", at, &[]));
                publish(&mut client, &who.state("short-lived", at, &main_at(&oid)));
                // The deletion of the previous round may still be in progress.
                let push = || work.push(&url("short-lived"), &[&format!("+{oid}:{MAIN}")]).success.then_some(());
                eventually("the push is accepted", push);
                publish(&mut client, &who.delete_coordinate(at + 1, kinds::STATE, "short-lived"));
                publish(&mut client, &who.delete_coordinate(at + 1, kinds::ANNOUNCEMENT, "short-lived"));
            }
        });
        Self { stop, pushed, thread }
    }

    fn count(&self) -> usize {
        self.pushed.lock().expect("another thread panicked").len()
    }

    fn finish(self) -> Vec<PushedRepo> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the load generator panicked");
        std::mem::take(&mut self.pushed.lock().expect("another thread panicked"))
    }
}

/// Returns the stored events that match a filter.
fn query_events(client: &mut Client, filter: &Value) -> Vec<Value> {
    client.send(&json!(["REQ", "all", filter]));
    let mut events = Vec::new();
    loop {
        let response = client.receive();
        match response[0].as_str() {
            Some("EVENT") => events.push(response[2].clone()),
            Some("EOSE") => return events,
            _ => {}
        }
    }
}

fn tag<'e>(event: &'e Value, name: &str) -> Option<&'e str> {
    let tags = event["tags"].as_array()?;
    tags.iter().find(|tag| tag[0] == name).and_then(|tag| tag[1].as_str())
}

#[test]
fn backup_under_load_is_complete_and_can_be_restored() {
    // Maintenance repacks and prunes at once, without a grace period.
    let settings = [DOMAIN_SETTING, ("GRASPD_TEST_NO_DELAYS", "1")];
    let original = TestServer::with_only(&settings);
    let backups = TempDir::new().expect("cannot create a temporary folder");
    let generators = [31, 32].map(|n| LoadGenerator::start(&original.process, &original.service, n));
    for (nth, name) in ["first", "second"].into_iter().enumerate() {
        let needed = 3 * (nth + 1);
        eventually("enough repositories are pushed", || {
            generators.iter().all(|generator| generator.count() >= needed).then_some(())
        });
        let acknowledged: Vec<usize> = generators.iter().map(LoadGenerator::count).collect();
        let into = join(&backups, name);
        let output = original.process.run(&["backup", path_str(&into), "--json", "--copy"]).json_object();
        assert_eq!((output["key"].as_bool(), output["linked"].as_bool()), (Some(true), Some(false)), "{output}");
        let verified = original.process.run(&["verify", path_str(&into), "--json"]).json_object();
        for same in ["served", "held", "last_seq"] {
            assert_eq!(output[same], verified[same], "{same}");
        }
        assert!(!join(&backups, &format!("{name}.partial")).exists());
        fs::write(backups.path().join(format!("{name}.count")), format!("{acknowledged:?}")).expect("cannot write");
    }
    let during = generators.iter().map(LoadGenerator::count).sum::<usize>();
    let acknowledged = |name: &str| -> Vec<usize> {
        let text = fs::read_to_string(backups.path().join(format!("{name}.count"))).expect("cannot read");
        serde_json::from_str(&text).expect("not a list of numbers")
    };
    let pushed: Vec<Vec<PushedRepo>> = generators.into_iter().map(LoadGenerator::finish).collect();
    assert!(during > 6, "only {during} repositories were pushed meanwhile");
    // The original server is intact too.
    original.process.run(&["verify"]).expect_success();
    for name in ["first", "second"] {
        let (_folder, server) = restore_and_start(&join(&backups, name), &[DOMAIN_SETTING]);
        let mut client = server.connect();
        for (pushed, count) in pushed.iter().zip(acknowledged(name)) {
            for PushedRepo { who, d, events, oid } in &pushed[..count] {
                let who = Maintainer::new(*who, &original.service);
                for event in events {
                    assert!(is_served(&mut client, event), "{name}: {d} was acknowledged before the backup began");
                }
                assert_eq!(ls_remote(&url(&server, &who, d)).refs, refs(&main_at(oid)), "{name}: {d}");
            }
        }
        // Every served state has exactly its git data.
        let states = query_events(&mut client, &json!({"kinds": [kinds::STATE]}));
        assert!(states.len() >= acknowledged(name).iter().sum(), "{name}: {}", states.len());
        for state in &states {
            let d = tag(state, "d").expect("no name");
            let n = [31, 32].into_iter().find(|n| {
                Maintainer::new(*n, &original.service).author.key().to_string()
                    == state["pubkey"].as_str().expect("no key")
            });
            let who = Maintainer::new(n.expect("state by an unknown author"), &original.service);
            let oid = tag(state, MAIN).expect("no branch");
            let remote = try_ls_remote(&url(&server, &who, d)).map(|remote| remote.refs);
            assert_eq!(remote, Some(refs(&main_at(oid))), "{name}: {d}: {state}");
            let clone = WorkTree::clone(&url(&server, &who, d));
            assert_eq!(clone.oid("HEAD"), oid);
            clone.fsck();
        }
        server.run(&["verify"]).expect_success();
    }
}

#[test]
fn backup_of_a_stopped_server_shares_files_and_damage_is_detected() {
    let mut original = TestServer::new();
    let [owner, ..] = original.maintainers();
    let (work, oid) = one_commit("first");
    let (announcement, state) = original.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let nip11 = |server: &Server| -> Value {
        let response = server.get("/", "Accept: application/nostr+json\r\n");
        serde_json::from_str(response.split_once("\r\n\r\n").expect("no body").1).expect("invalid JSON")
    };
    let before = nip11(&original.process);
    assert_eq!(original.process.stop(), Some(0));
    let folder = original.process.folder().clone();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let output = run(folder.path(), &[DOMAIN_SETTING], &["backup", "first"]).expect_success();
    assert!(output.contains("does not protect against the loss of that disk"), "{output}");
    assert!(
        run(folder.path(), &[DOMAIN_SETTING], &["backup", path_str(&first)]).expect_failure(1).contains("is not empty")
    );
    for inside in ["data/relay/backup", "data/git/backups/monday"] {
        let error = run(folder.path(), &[DOMAIN_SETTING], &["backup", inside]).expect_failure(1);
        assert!(error.contains("inside the data folder"), "{error}");
        assert!(!folder.path().join(inside).exists());
    }
    let output =
        run(folder.path(), &[DOMAIN_SETTING], &["backup", path_str(&second), "--copy", "--base", "first", "--json"])
            .json_object();
    assert!(output["files_shared"].as_u64().expect("not a number") >= 2, "{output}");
    assert_eq!(output["files_linked"], 0);
    let verified = run(folder.path(), &[DOMAIN_SETTING], &["verify", "second", "--json"]).json_object();
    assert_eq!(
        (&verified["served"], &verified["states"], &verified["repositories"]),
        (&json!(2), &json!(1), &json!(1))
    );
    run(folder.path(), &[DOMAIN_SETTING], &["verify"]).expect_success();

    let (_folder, server) = restore_and_start(&second, &[DOMAIN_SETTING]);
    let after = nip11(&server);
    assert_eq!(before["pubkey"], after["pubkey"], "the backup contains the key of the service");
    assert_ne!(before["instance"], after["instance"], "a restored store has a new instance id");
    let mut client = server.connect();
    assert!(is_served(&mut client, &announcement) && is_served(&mut client, &state));
    assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, refs(&main_at(&oid)));
    let in_use = run(server.folder().path(), &[DOMAIN_SETTING], &["restore", path_str(&second)]);
    assert!(in_use.expect_failure(1).contains("another graspd"));

    // A damaged backup is not restored.
    let mut packs = Vec::new();
    for entry in files_below(&second) {
        if entry.extension().is_some_and(|extension| extension == "pack") {
            packs.push(entry);
        }
    }
    let pack = packs.first().expect("no pack");
    let mut bytes = fs::read(pack).expect("cannot read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(pack).expect("cannot remove the file");
    fs::write(pack, bytes).expect("cannot write");
    let damaged = run(folder.path(), &[DOMAIN_SETTING], &["verify", path_str(&second)]);
    assert!(damaged.stdout.contains("wrong checksum"), "{}", damaged.stdout);
    damaged.expect_failure(1);
    let elsewhere = TempDir::new().expect("cannot create a temporary folder");
    assert!(
        run(elsewhere.path(), &[DOMAIN_SETTING], &["restore", path_str(&second)]).expect_failure(1).contains("damaged")
    );
    assert!(run(elsewhere.path(), &[DOMAIN_SETTING], &["serve"]).expect_failure(1).contains("interrupted"));
    // The first backup shares its files with the second, and is intact because the damaged file was replaced, not
    // overwritten.
    let beside = Path::new("..").join(folder.path().file_name().expect("no name")).join("first");
    run(elsewhere.path(), &[DOMAIN_SETTING], &["restore", path_str(&beside)]).expect_success();
    let _ = Server::spawn(command(elsewhere.path(), &[DOMAIN_SETTING]));
}

/// Returns all files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("cannot list the folder") {
        let path = entry.expect("cannot read the folder entry").path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn interrupted_restore_is_detected_and_can_be_repeated() {
    let mut original = TestServer::new();
    let [owner, ..] = original.maintainers();
    let (work, oid) = one_commit("first");
    original.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let backups = TempDir::new().expect("cannot create a temporary folder");
    let backup = join(&backups, "backup");
    original.process.run(&["backup", path_str(&backup)]).expect_success();
    for at in ["restore.copying", "restore.copied", "restore.anew"] {
        let folder = TempDir::new().expect("cannot create a temporary folder");
        let crash = [DOMAIN_SETTING, ("GRASPD_CRASH_AT", at)];
        assert_eq!(run(folder.path(), &crash, &["restore", path_str(&backup)]).code, None, "{at}");
        assert!(run(folder.path(), &[DOMAIN_SETTING], &["serve"]).expect_failure(1).contains("interrupted"), "{at}");
        run(folder.path(), &[DOMAIN_SETTING], &["restore", path_str(&backup)]).expect_success();
        let server = Server::spawn(command(folder.path(), &[DOMAIN_SETTING]));
        assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, refs(&main_at(&oid)), "{at}");
        drop(server);
        assert!(
            run(folder.path(), &[DOMAIN_SETTING], &["restore", path_str(&backup)])
                .expect_failure(1)
                .contains("not empty"),
            "{at}"
        );
    }
    for at in ["backup.copied", "backup.synced"] {
        let into = join(&backups, at);
        let mut crashing = original.process.cli_command(&["backup", path_str(&into)]);
        assert_eq!(crashing.env("GRASPD_CRASH_AT", at).output().expect("cannot run the program").status.code(), None);
        assert!(!into.exists(), "{at}: an incomplete backup has no final name");
        original.process.run(&["verify", path_str(&into)]).expect_failure(1);
        if at == "backup.copied" {
            original.process.run(&["backup", path_str(&into)]).expect_success();
            original.process.run(&["verify", path_str(&into)]).expect_success();
        }
    }
    // With a wrong socket path, a running server is not mistaken for a stopped one.
    let (more, nowhere) = (join(&backups, "more"), join(&backups, "no.sock"));
    let output =
        original.process.run(&["backup", path_str(&more), "--admin-socket", path_str(&nowhere)]).expect_failure(1);
    for expected in [path_str(&nowhere), "another graspd", "--admin-socket", "NGIT_ADMIN_SOCKET"] {
        assert!(output.contains(expected), "{expected} in {output}");
    }
    // The server has removed its snapshots.
    let snapshots = original.git_folder().join("snapshot");
    eventually("no snapshot is left", || (!snapshots.exists()).then_some(()));
}

/// Combines the events of one backup with the git data of a later one: the worst case of a backup that is taken while the
/// server runs.
fn combine_backups(events: &Path, git: &Path, into: &Path) {
    let copy = |from: &Path| {
        assert!(Command::new("cp").arg("-r").args([from, into]).status().expect("cannot run the program").success())
    };
    fs::create_dir(into).expect("cannot create a folder");
    copy(&events.join("events"));
    copy(&events.join("relay-owner.nsec"));
    copy(&git.join("git"));
    let list = |folder: &Path| fs::read_to_string(folder.join("files")).expect("cannot read the list of files");
    let is_git = |line: &&str| line.contains(" git/");
    let (old, new) = (list(events), list(git));
    let lines: Vec<&str> = old.lines().filter(|line| !is_git(line)).chain(new.lines().filter(is_git)).collect();
    fs::write(into.join("files"), format!("{}\n", lines.join("\n"))).expect("cannot write");
    let sum = Command::new("sha256sum").arg(into.join("files")).output().expect("cannot run the program");
    let sum = String::from_utf8_lossy(&sum.stdout).split(' ').next().expect("no checksum").to_owned();
    let manifest = fs::read_to_string(events.join("manifest.json")).expect("cannot read the manifest");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("invalid JSON");
    manifest["files"] = json!(lines.len());
    manifest["list"] = json!(format!("sha256:{sum}"));
    fs::write(into.join("manifest.json"), manifest.to_string()).expect("cannot write");
}

#[test]
fn refs_newer_than_the_events_of_a_backup_are_reset() {
    let mut original = TestServer::new();
    let [owner, other, guest, _] = original.maintainers();
    let work = WorkTree::new();
    let first = work.commit("file", "first");
    let (_, state) = original.create_repo(&owner, "tool", &[&other], &work, &main_at(&first));
    let request = guest.pull_request(BASE_TIME, &[&owner.repo("tool")], &first, &[]);
    let pull = format!("refs/nostr/{}", request.id);
    // Its commit is in the repository already, so it may be served before the push.
    original.publish(&request);
    work.push(&original.url(&owner, "tool"), &[&format!("{first}:{pull}")]).expect_success();
    original.eventually_served(&request);
    let backups = TempDir::new().expect("cannot create a temporary folder");
    let [early, late, both] = ["early", "late", "both"].map(|name| join(&backups, name));
    original.process.run(&["backup", path_str(&early)]).expect_success();

    let second = work.commit_orphan("second", "second");
    let newer = original.push_state(&owner, &owner, "tool", BASE_TIME + 1, &work, &main_at(&second));
    original.publish(&guest.delete(BASE_TIME + 2, &[&request]));
    original.eventually_refs(&owner, "tool", &main_at(&second));
    original.create_repo(&owner, "later", &[], &work, &main_at(&second));
    // No other repository has its commit, so that its state waits for the push.
    let third = work.commit_orphan("third", "third");
    original.create_repo(&other, "tool", &[], &work, &main_at(&third));
    original.process.run(&["backup", path_str(&late)]).expect_success();

    combine_backups(&early, &late, &both);
    original.process.run(&["verify", path_str(&both)]).expect_success();
    let (folder, server) = restore_and_start(&both, &[DOMAIN_SETTING]);
    let mut client = server.connect();
    assert!(is_served(&mut client, &state) && is_served(&mut client, &request) && !is_served(&mut client, &newer));
    let expected = refs(&[(MAIN, &first), (&pull, &first)]);
    assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, expected, "the refs match the events from the start");
    assert!(try_ls_remote(&url(&server, &owner, "later")).is_none());
    let gone = |who: &Maintainer, d: &str| {
        let path = folder.path().join("data/git/repos").join(who.npub()).join(format!("{d}.git"));
        eventually("a repository without events is removed", || (!path.exists()).then_some(()));
    };
    gone(&owner, "later");
    gone(&other, "tool");
    server.run(&["verify"]).expect_success();
    let _ = original.restart(StopSignal::Term);
}

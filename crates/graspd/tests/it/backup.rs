//! Backups: made while people push, whole, and servers again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::ServiceAddress;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::admin::Said;
use crate::support::git::{MAIN, Maintainer, THEN, Work, ls_remote, refs, repo_path, try_ls_remote};
use crate::support::test_server::{End, Stage, main_at, one_commit, served};
use crate::support::{Client, Server, command, eventually};

/// Settings under which a server keeps its name.
const NAMED: (&str, &str) = ("DOMAIN", "grasp.test");

/// Runs a command in a folder, with settings, to its end.
fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Said {
    Said::of(&command(folder, settings).args(arguments).output().expect("graspd runs"))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A new folder for a backup that does not exist yet.
fn place(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

/// Makes a server of a backup.
fn revive(backup: &Path, settings: &[(&str, &str)]) -> (Arc<TempDir>, Server) {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    run(folder.path(), settings, &["restore", text(backup)]).well();
    let server = Server::start_in(&folder, settings);
    (folder, server)
}

/// The URL of a repository at a server.
fn url(server: &Server, who: &Maintainer, d: &str) -> String {
    format!("http://{}{}{}", server.address, server.base, repo_path(&who.npub(), d))
}

/// What has been acknowledged and stays.
struct Kept {
    who: u8,
    d: String,
    events: Vec<Arc<SignedEvent>>,
    oid: String,
}

/// Somebody who publishes and pushes without end.
struct Crowd {
    stop: Arc<AtomicBool>,
    kept: Arc<Mutex<Vec<Kept>>>,
    thread: std::thread::JoinHandle<()>,
}

/// Publishes, and demands that it is taken.
fn publish(client: &mut Client, event: &SignedEvent) {
    let (accepted, why) = client.publish(event);
    assert!(accepted, "{why}");
}

impl Crowd {
    fn begin(server: &Server, service: &ServiceAddress, n: u8) -> Self {
        let (stop, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (stopped, keeping, service) = (stop.clone(), kept.clone(), service.clone());
        let (address, relay) = (server.address, server.url());
        let site = format!("http://{}{}", server.address, server.base);
        let thread = std::thread::spawn(move || {
            let who = Maintainer::new(n, &service);
            let mut client = Client::connect(address, &relay);
            let url = |d: &str| format!("{site}{}", repo_path(&who.npub(), d));
            let work = Work::new();
            publish(&mut client, &who.announce("moving", THEN, &[]));
            for round in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let oid = work.orphan(&format!("b{round}"), &format!("{n} {round}"));
                // One repository that stays as it is.
                let d = format!("kept-{round}");
                let (announcement, state) = (who.announce(&d, THEN, &[]), who.state(&d, THEN, &main_at(&oid)));
                publish(&mut client, &announcement);
                publish(&mut client, &state);
                work.push(&url(&d), &[&format!("{oid}:{MAIN}")]).done();
                let events = vec![announcement, state];
                keeping.lock().expect("a list").push(Kept { who: n, d, events, oid: oid.clone() });
                // One whose history is replaced each time.
                publish(&mut client, &who.state("moving", THEN + round, &main_at(&oid)));
                work.push(&url("moving"), &[&format!("+{oid}:{MAIN}")]).done();
                // One that comes and goes.
                let at = THEN + 10 * round;
                publish(&mut client, &who.announce("fleeting", at, &[]));
                publish(&mut client, &who.state("fleeting", at, &main_at(&oid)));
                // What was there before may go at the same time.
                let push = || work.push(&url("fleeting"), &[&format!("+{oid}:{MAIN}")]).success.then_some(());
                eventually("the push goes through", push);
                publish(&mut client, &who.delete_all(at + 1, kinds::STATE, "fleeting"));
                publish(&mut client, &who.delete_all(at + 1, kinds::ANNOUNCEMENT, "fleeting"));
            }
        });
        Self { stop, kept, thread }
    }

    fn count(&self) -> usize {
        self.kept.lock().expect("a list").len()
    }

    fn end(self) -> Vec<Kept> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("nothing went wrong");
        std::mem::take(&mut self.kept.lock().expect("a list"))
    }
}

/// The events of a kind at a relay.
fn events_of(client: &mut Client, filter: &Value) -> Vec<Value> {
    client.send(&json!(["REQ", "all", filter]));
    let mut events = Vec::new();
    loop {
        let answer = client.receive();
        match answer[0].as_str() {
            Some("EVENT") => events.push(answer[2].clone()),
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
fn a_backup_under_load_is_whole_and_becomes_the_same_server() {
    // Maintenance folds and prunes at once, without any grace.
    let settings = [NAMED, ("GRASPD_HASTE", "1")];
    let stage = Stage::bare(&settings);
    let backups = TempDir::new().expect("a folder");
    let crowds = [31, 32].map(|n| Crowd::begin(&stage.server, &stage.service, n));
    for (nth, name) in ["first", "second"].into_iter().enumerate() {
        let enough = 3 * (nth + 1);
        eventually("some repositories", || crowds.iter().all(|crowd| crowd.count() >= enough).then_some(()));
        let acknowledged: Vec<usize> = crowds.iter().map(Crowd::count).collect();
        let into = place(&backups, name);
        let said = stage.server.run(&["backup", text(&into), "--json", "--copy"]).object();
        assert_eq!((said["key"].as_bool(), said["linked"].as_bool()), (Some(true), Some(false)), "{said}");
        let verified = stage.server.run(&["verify", text(&into), "--json"]).object();
        for same in ["served", "held", "last_seq"] {
            assert_eq!(said[same], verified[same], "{same}");
        }
        assert!(!place(&backups, &format!("{name}.partial")).exists());
        fs::write(backups.path().join(format!("{name}.count")), format!("{acknowledged:?}")).expect("writes");
    }
    let during = crowds.iter().map(Crowd::count).sum::<usize>();
    let acknowledged = |name: &str| -> Vec<usize> {
        let text = fs::read_to_string(backups.path().join(format!("{name}.count"))).expect("reads");
        serde_json::from_str(&text).expect("numbers")
    };
    let kept: Vec<Vec<Kept>> = crowds.into_iter().map(Crowd::end).collect();
    assert!(during > 6, "people pushed meanwhile: {during}");
    // The server is as it was, too.
    stage.server.run(&["verify"]).well();
    for name in ["first", "second"] {
        let (_folder, server) = revive(&place(&backups, name), &[NAMED]);
        let mut client = server.connect();
        for (kept, count) in kept.iter().zip(acknowledged(name)) {
            for Kept { who, d, events, oid } in &kept[..count] {
                let who = Maintainer::new(*who, &stage.service);
                for event in events {
                    assert!(served(&mut client, event), "{name}: {d} was acknowledged before the backup began");
                }
                assert_eq!(ls_remote(&url(&server, &who, d)).refs, refs(&main_at(oid)), "{name}: {d}");
            }
        }
        // Whatever is served has exactly its git data.
        let states = events_of(&mut client, &json!({"kinds": [kinds::STATE]}));
        assert!(states.len() >= kept.iter().map(Vec::len).sum::<usize>() / 4, "{}", states.len());
        for state in &states {
            let d = tag(state, "d").expect("a name");
            let n = [31, 32].into_iter().find(|n| {
                Maintainer::new(*n, &stage.service).author.key().to_string() == state["pubkey"].as_str().expect("a key")
            });
            let who = Maintainer::new(n.expect("one of them"), &stage.service);
            let oid = tag(state, MAIN).expect("a branch");
            let remote = try_ls_remote(&url(&server, &who, d)).map(|remote| remote.refs);
            assert_eq!(remote, Some(refs(&main_at(oid))), "{name}: {d}: {state}");
            let clone = Work::clone(&url(&server, &who, d));
            assert_eq!(clone.oid("HEAD"), oid);
            clone.fsck();
        }
        server.run(&["verify"]).well();
    }
}

#[test]
fn a_backup_of_a_stopped_server_can_be_linked_based_on_another_and_noticed_to_be_damaged() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, oid) = one_commit("first");
    let (announcement, state) = stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let nip11 = |server: &Server| -> Value {
        let answer = server.get("/", "Accept: application/nostr+json\r\n");
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    };
    let before = nip11(&stage.server);
    assert_eq!(stage.server.stop(), Some(0));
    let folder = stage.server.folder().clone();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let said = run(folder.path(), &[NAMED], &["backup", "first"]).well();
    assert!(said.contains("does not protect against the loss of that disk"), "{said}");
    assert!(run(folder.path(), &[NAMED], &["backup", text(&first)]).badly(1).contains("already"));
    let said = run(folder.path(), &[NAMED], &["backup", text(&second), "--copy", "--base", "first", "--json"]).object();
    assert!(said["files_shared"].as_u64().expect("a number") >= 2, "{said}");
    assert_eq!(said["files_linked"], 0);
    let sound = run(folder.path(), &[NAMED], &["verify", "second", "--json"]).object();
    assert_eq!((&sound["served"], &sound["states"], &sound["repositories"]), (&json!(2), &json!(1), &json!(1)));
    run(folder.path(), &[NAMED], &["verify"]).well();

    let (_folder, server) = revive(&second, &[NAMED]);
    let after = nip11(&server);
    assert_eq!(before["pubkey"], after["pubkey"], "the owner's key came along");
    assert_ne!(before["instance"], after["instance"], "a restored backup is another store");
    let mut client = server.connect();
    assert!(served(&mut client, &announcement) && served(&mut client, &state));
    assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, refs(&main_at(&oid)));
    let full = run(server.folder().path(), &[NAMED], &["restore", text(&second)]);
    assert!(full.badly(1).contains("another graspd"));

    // Nothing that is not as it was is restored.
    let mut packs = Vec::new();
    for entry in walk(&second) {
        if entry.extension().is_some_and(|extension| extension == "pack") {
            packs.push(entry);
        }
    }
    let pack = packs.first().expect("a pack");
    let mut bytes = fs::read(pack).expect("reads");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(pack).expect("removes");
    fs::write(pack, bytes).expect("writes");
    let wrong = run(folder.path(), &[NAMED], &["verify", text(&second)]);
    assert!(wrong.out.contains("its bytes have changed"), "{}", wrong.out);
    wrong.badly(1);
    let elsewhere = TempDir::new().expect("a folder");
    assert!(run(elsewhere.path(), &[NAMED], &["restore", text(&second)]).badly(1).contains("damaged"));
    assert!(run(elsewhere.path(), &[NAMED], &["serve"]).badly(1).contains("interrupted"));
    // The first one has its own copy of nothing, and is whole because it was replaced and not written to.
    let beside = Path::new("..").join(folder.path().file_name().expect("a name")).join("first");
    run(elsewhere.path(), &[NAMED], &["restore", text(&beside)]).well();
    let _ = Server::spawn(command(elsewhere.path(), &[NAMED]));
}

/// All files below a folder.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("lists") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { files.extend(walk(&path)) } else { files.push(path) }
    }
    files
}

#[test]
fn a_restore_that_was_interrupted_is_noticed_and_begins_anew() {
    let mut stage = Stage::new();
    let [owner, ..] = stage.cast();
    let (work, oid) = one_commit("first");
    stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let backups = TempDir::new().expect("a folder");
    let backup = place(&backups, "backup");
    stage.server.run(&["backup", text(&backup)]).well();
    for at in ["restore.copying", "restore.copied", "restore.anew"] {
        let folder = TempDir::new().expect("a folder");
        let crash = [NAMED, ("GRASPD_CRASH_AT", at)];
        assert_eq!(run(folder.path(), &crash, &["restore", text(&backup)]).code, None, "{at}");
        assert!(run(folder.path(), &[NAMED], &["serve"]).badly(1).contains("interrupted"), "{at}");
        run(folder.path(), &[NAMED], &["restore", text(&backup)]).well();
        let server = Server::spawn(command(folder.path(), &[NAMED]));
        assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, refs(&main_at(&oid)), "{at}");
        drop(server);
        assert!(run(folder.path(), &[NAMED], &["restore", text(&backup)]).badly(1).contains("not empty"), "{at}");
    }
    for at in ["backup.copied", "backup.synced"] {
        let into = place(&backups, at);
        let mut crashing = stage.server.operator(&["backup", text(&into)]);
        assert_eq!(crashing.env("GRASPD_CRASH_AT", at).output().expect("runs").status.code(), None);
        assert!(!into.exists(), "{at}: nothing that looks complete");
        stage.server.run(&["verify", text(&into)]).badly(1);
        if at == "backup.copied" {
            stage.server.run(&["backup", text(&into)]).well();
            stage.server.run(&["verify", text(&into)]).well();
        }
    }
    // A server that is asked at the wrong place is not taken for one that has stopped.
    let (more, nowhere) = (place(&backups, "more"), place(&backups, "no.sock"));
    let said = stage.server.run(&["backup", text(&more), "--admin-socket", text(&nowhere)]).badly(1);
    for expected in [text(&nowhere), "another graspd", "--admin-socket", "NGIT_ADMIN_SOCKET"] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    // The server has removed what it made for them.
    let snapshots = stage.git_folder().join("snapshot");
    eventually("no snapshot is left", || (!snapshots.exists()).then_some(()));
}

/// The worst moment: the events of one backup and the git data of a later one.
fn compose(events: &Path, git: &Path, into: &Path) {
    let copy = |from: &Path| assert!(Command::new("cp").arg("-r").args([from, into]).status().expect("runs").success());
    fs::create_dir(into).expect("a folder");
    copy(&events.join("events"));
    copy(&events.join("relay-owner.nsec"));
    copy(&git.join("git"));
    let list = |folder: &Path| fs::read_to_string(folder.join("files")).expect("a list");
    let is_git = |line: &&str| line.contains(" git/");
    let (old, new) = (list(events), list(git));
    let lines: Vec<&str> = old.lines().filter(|line| !is_git(line)).chain(new.lines().filter(is_git)).collect();
    fs::write(into.join("files"), format!("{}\n", lines.join("\n"))).expect("writes");
    let sum = Command::new("sha256sum").arg(into.join("files")).output().expect("runs");
    let sum = String::from_utf8_lossy(&sum.stdout).split(' ').next().expect("a sum").to_owned();
    let manifest = fs::read_to_string(events.join("manifest.json")).expect("a manifest");
    let mut manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    manifest["files"] = json!(lines.len());
    manifest["list"] = json!(format!("sha256:{sum}"));
    fs::write(into.join("manifest.json"), manifest.to_string()).expect("writes");
}

#[test]
fn refs_that_are_newer_than_the_events_of_a_backup_are_brought_back_into_line() {
    let mut stage = Stage::new();
    let [owner, other, guest, _] = stage.cast();
    let work = Work::new();
    let first = work.commit("file", "first");
    let (_, state) = stage.found(&owner, "tool", &[&other], &work, &main_at(&first));
    let request = guest.pull_request(THEN, &[&owner.repo("tool")], &first, &[]);
    let pull = format!("refs/nostr/{}", request.id);
    stage.hold(&request);
    work.push(&stage.url(&owner, "tool"), &[&format!("{first}:{pull}")]).done();
    stage.eventually_served(&request);
    let backups = TempDir::new().expect("a folder");
    let [early, late, both] = ["early", "late", "both"].map(|name| place(&backups, name));
    stage.server.run(&["backup", text(&early)]).well();

    let second = work.orphan("second", "second");
    let newer = stage.advance(&owner, &owner, "tool", THEN + 1, &work, &main_at(&second));
    stage.publish(&guest.delete(THEN + 2, &[&request]));
    stage.eventually_refs(&owner, "tool", &main_at(&second));
    stage.found(&owner, "later", &[], &work, &main_at(&second));
    stage.found(&other, "tool", &[], &work, &main_at(&second));
    stage.server.run(&["backup", text(&late)]).well();

    compose(&early, &late, &both);
    stage.server.run(&["verify", text(&both)]).well();
    let (folder, server) = revive(&both, &[NAMED]);
    let mut client = server.connect();
    assert!(served(&mut client, &state) && served(&mut client, &request) && !served(&mut client, &newer));
    let expected = refs(&[(MAIN, &first), (&pull, &first)]);
    assert_eq!(ls_remote(&url(&server, &owner, "tool")).refs, expected, "as its events say, from the first moment on");
    assert!(try_ls_remote(&url(&server, &owner, "later")).is_none());
    let gone = |who: &Maintainer, d: &str| {
        let path = folder.path().join("data/git/repos").join(who.npub()).join(format!("{d}.git"));
        eventually("what no event speaks of goes", || (!path.exists()).then_some(()));
    };
    gone(&owner, "later");
    gone(&other, "tool");
    server.run(&["verify"]).well();
    let _ = stage.again(End::Asked);
}

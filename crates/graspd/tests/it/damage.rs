//! Damaged and lost git data: it is found, reported and repaired, from what is left, from another server, or by the
//! owner's next push. It is never served as if it were intact.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use grasp_core::nostr::kinds;
use serde_json::Value;

use crate::dos_disk::folder_bytes;
use crate::support::eventually;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text};
use crate::support::peers::{Project, SyncServer};
use crate::support::test_server::{StopSignal, TestServer, main_at, one_commit};

/// Makes debug builds run maintenance at once, which otherwise waits for an hour or a day, or for a quiet repository.
const WITHOUT_DELAYS: (&str, &str) = ("GRASPD_TEST_NO_DELAYS", "1");

/// Returns the files of a repository's packs with an extension.
fn pack_files(repository: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository.join("pool/pack")).expect("cannot list the packs");
    let paths = entries.map(|entry| entry.expect("cannot list the packs").path());
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Inverts a byte in the middle of a file.
fn flip_byte(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("cannot change permissions");
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("cannot open the file");
    let middle = file.metadata().expect("cannot read the size").len() / 2;
    let mut byte = [0];
    file.read_exact_at(&mut byte, middle).expect("cannot read the file");
    file.write_all_at(&[!byte[0]], middle).expect("cannot write the file");
}

/// A server with a repository of one commit that has a large file.
struct DamagedServer {
    server: TestServer,
    owner: Maintainer,
    work: WorkTree,
    commit: String,
}

impl DamagedServer {
    fn new(settings: &[(&'static str, &'static str)]) -> Self {
        let mut server = TestServer::with_settings(settings);
        let [owner, ..] = server.maintainers();
        let (work, _) = one_commit("one");
        let commit = work.commit("large", &incompressible_text(100_000));
        server.create_repo(&owner, "tool", &[], &work, &main_at(&commit));
        Self { server, owner, work, commit }
    }

    fn repository(&self) -> PathBuf {
        self.server.git_folder().join("repos").join(self.owner.npub()).join("tool.git")
    }

    fn url(&self) -> String {
        self.server.url(&self.owner, "tool")
    }

    /// Returns what a failed clone prints.
    fn clone_error(&self) -> String {
        let (_, output) = WorkTree::try_clone(&[], &self.url(), &[]);
        assert!(!output.success, "a degraded repository was cloned");
        output.stderr
    }

    fn state_of_repo(&self) -> Value {
        self.server.process.run(&["repos", "tool", "--json"]).json_object()["state"].clone()
    }

    /// Asserts that the repository is reported as degraded everywhere, and that no clone succeeds.
    fn expect_degraded(&self) {
        eventually("the repository is degraded", || (self.state_of_repo() == "degraded").then_some(()));
        let error = self.clone_error();
        assert!(error.contains("degraded"), "{error}");
        for version in ["0", "1", "2"] {
            let (_, output) = WorkTree::try_clone(&["-c", &format!("protocol.version={version}")], &self.url(), &[]);
            assert!(!output.success && output.stderr.contains("degraded"), "version {version}: {}", output.stderr);
        }
        let page = self.server.process.get(&format!("/{}/tool.git", self.owner.npub()), "Accept: text/html\r\n");
        assert!(page.contains("This repository is degraded"), "{page}");
        eventually("the health check names it", || {
            self.server.process.get("/readyz", "").contains("1 degraded, for example").then_some(())
        });
        let series = "ngit_repositories_degraded 1\n";
        eventually("the metric counts it", || self.server.process.get("/metrics", "").contains(series).then_some(()));
    }

    fn expect_intact(&self) {
        eventually("the repository is current", || (self.state_of_repo() == "current").then_some(()));
        let clone = WorkTree::clone(&self.url());
        clone.fsck();
        assert_eq!(clone.oid("HEAD"), self.commit);
    }

    /// Pushes all refs again, to a server that shows none.
    fn push_again(&self) {
        let output = self.work.push(&self.url(), &["main"]);
        output.expect_success();
    }
}

/// The refs are rows of the store, and the files follow: what another program or a crash left in them is never served, and
/// is replaced at the start.
#[test]
fn altered_ref_files_are_not_served_and_are_written_again() {
    let mut damaged = DamagedServer::new(&[]);
    let folder = damaged.repository();
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    let commit = damaged.commit.clone();
    eventually("the ref files are written", || read("packed-refs").contains(&commit).then_some(()));
    let (refs, head) = (read("packed-refs"), read("HEAD"));
    let parent = damaged.work.oid("HEAD^");
    let altered = [
        ("packed-refs", Some(refs.replace(&commit, &parent))),
        ("packed-refs", Some(refs.replace("main", "other"))),
        ("packed-refs", None),
        ("HEAD", Some("ref: refs/heads/other\n".to_owned())),
    ];
    for (name, text) in altered {
        assert_eq!(damaged.server.process.stop(), Some(0));
        match text {
            Some(text) => fs::write(folder.join(name), text).expect("cannot write the file"),
            None => fs::remove_file(folder.join(name)).expect("cannot remove the file"),
        }
        damaged = DamagedServer { server: damaged.server.start_after_exit(), ..damaged };
        damaged.server.expect_refs(&damaged.owner, "tool", &main_at(&commit));
        damaged.expect_intact();
        eventually("the files are written again", || {
            (read("packed-refs") == refs && read("HEAD") == head).then_some(())
        });
    }
}

/// A byte of the row that has the refs changes on disk. LMDB does not notice it. The refs are not served, and are set again
/// from the signed state.
#[test]
fn damaged_row_of_a_repository_is_replaced() {
    let mut damaged = DamagedServer::new(&[]);
    assert_eq!(damaged.server.process.stop(), Some(0));
    let database = damaged.server.process.folder().path().join("data/relay/events/data.mdb");
    let modified = fs::metadata(&database).and_then(|file| file.modified()).expect("cannot read the time");
    let mut bytes = fs::read(&database).expect("cannot read the database");
    let oid: Vec<u8> =
        (0..20).map(|at| u8::from_str_radix(&damaged.commit[2 * at..2 * at + 2], 16).expect("hex digits")).collect();
    // Freed pages may have older copies of the row.
    let found: Vec<usize> = (0..bytes.len() - 20).filter(|at| bytes[*at..*at + 20] == oid).collect();
    assert!(!found.is_empty());
    for at in found {
        bytes[at] ^= 1;
    }
    fs::write(&database, bytes).expect("cannot write the database");
    let file = fs::OpenOptions::new().write(true).open(&database).expect("cannot open the database");
    file.set_modified(modified).expect("cannot set the time");
    damaged = DamagedServer { server: damaged.server.start_after_exit(), ..damaged };
    damaged.expect_intact();
    damaged.server.expect_refs(&damaged.owner, "tool", &main_at(&damaged.commit));
    assert!(damaged.server.process.run(&["repair", "tool"]).expect_success().contains("0 with damage"));
}

#[test]
fn damaged_index_is_written_again() {
    let damaged = DamagedServer::new(&[]);
    for path in pack_files(&damaged.repository(), "idx") {
        flip_byte(&path);
    }
    let printed = damaged.server.process.run(&["repair"]);
    assert!(printed.stdout.contains("repaired"), "{}{}", printed.stdout, printed.stderr);
    damaged.expect_intact();
    assert!(damaged.server.process.run(&["repair", "tool"]).expect_success().contains("0 with damage"));
}

/// A byte of a pack changes on disk. The owner's next push repairs it, although all refs seem to be there.
#[test]
fn damaged_pack_is_repaired_by_a_push() {
    let damaged = DamagedServer::new(&[]);
    for path in pack_files(&damaged.repository(), "pack") {
        flip_byte(&path);
    }
    let printed = damaged.server.process.run(&["repair", "tool"]);
    assert_eq!(printed.code, Some(1), "{}{}", printed.stdout, printed.stderr);
    assert!(printed.stdout.contains("was damaged and moved away"), "{}", printed.stdout);
    damaged.expect_degraded();
    assert_eq!(fs::read_dir(damaged.server.git_folder().join("damaged")).expect("no folder").count(), 1);
    // The mark survives a crash.
    let DamagedServer { server, owner, work, commit } = damaged;
    let damaged = DamagedServer { server: server.restart(StopSignal::Kill), owner, work, commit };
    damaged.expect_degraded();
    damaged.push_again();
    damaged.expect_intact();
    eventually("no repository is degraded", || {
        damaged.server.process.get("/readyz", "").contains("none is degraded").then_some(())
    });
}

/// The weekly check finds a pack that was deleted; a push repairs it.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot run maintenance without delays")]
fn deleted_pack_is_found_by_the_regular_check() {
    let damaged = DamagedServer::new(&[WITHOUT_DELAYS]);
    for extension in ["idx", "rev", "pack"] {
        for path in pack_files(&damaged.repository(), extension) {
            fs::remove_file(path).expect("cannot remove the file");
        }
    }
    damaged.expect_degraded();
    damaged.push_again();
    damaged.expect_intact();
}

#[test]
fn lost_repository_is_created_again() {
    let damaged = DamagedServer::new(&[]);
    fs::remove_dir_all(damaged.repository()).expect("cannot remove the folder");
    assert_eq!(damaged.server.process.run(&["repair", "tool"]).code, Some(1));
    damaged.expect_degraded();
    damaged.push_again();
    damaged.expect_intact();
}

/// The packs of each pool are recorded, so that the start notices that one is gone.
#[test]
fn deleted_pack_is_found_at_the_start() {
    let mut damaged = DamagedServer::new(&[]);
    assert_eq!(damaged.server.process.stop(), Some(0));
    for path in pack_files(&damaged.repository(), "pack").into_iter().chain(pack_files(&damaged.repository(), "idx")) {
        fs::remove_file(path).expect("cannot remove the file");
    }
    let report = damaged.server.process.run(&["verify"]);
    assert!(report.code == Some(1) && report.stdout.contains("is missing or has another size"), "{}", report.stdout);
    damaged = DamagedServer { server: damaged.server.start_after_exit(), ..damaged };
    damaged.expect_degraded();
    damaged.push_again();
    damaged.expect_intact();
    assert_eq!(damaged.server.process.stop(), Some(0));
    damaged.server.process.run(&["verify"]).expect_success();
}

/// A folder that is lost while the server is stopped is not served as an empty repository.
#[test]
fn lost_repository_is_found_at_the_start() {
    let mut damaged = DamagedServer::new(&[]);
    let (other, oid) = one_commit("other");
    damaged.server.create_repo(&damaged.owner, "other", &[], &other, &main_at(&oid));
    assert_eq!(damaged.server.process.stop(), Some(0));
    fs::remove_dir_all(damaged.repository()).expect("cannot remove the folder");
    damaged = DamagedServer { server: damaged.server.start_after_exit(), ..damaged };
    damaged.expect_degraded();
    damaged.push_again();
    damaged.expect_intact();
    damaged.server.expect_refs(&damaged.owner, "other", &main_at(&oid));
}

/// Objects that are lost are fetched from the other server that the announcement names.
#[test]
fn lost_objects_are_fetched_from_another_server() {
    let (mut a, mut b) = (SyncServer::start(&[]), SyncServer::start(&[]));
    let project = Project::new(1, "common", &[a.address, b.address], &[]);
    a.host(&project);
    b.host(&project);
    let repository = a.folder().join("data/git/repos").join(project.owner.key().npub()).join("common.git");
    for extension in ["idx", "rev", "pack"] {
        for path in pack_files(&repository, extension) {
            fs::remove_file(path).expect("cannot remove the file");
        }
    }
    a.process.run(&["repair", "common"]);
    eventually("the objects are fetched", || {
        let row = a.process.run(&["repos", "common", "--json"]).json_object();
        (row["state"] == "current").then_some(())
    });
    let path = format!("{}/common.git", project.owner.key().npub());
    WorkTree::clone(&format!("http://{}/{path}", a.address)).fsck();
    a.eventually_served(&[&project.announcement, &project.state]);
}

/// If the disk is full, a deletion frees the space of a repository although forks need it. The forks are degraded until
/// their owners push the objects again.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds cannot run maintenance without delays")]
fn deletion_frees_space_that_forks_need_if_the_disk_is_full() {
    let mut server = TestServer::with_settings(&[WITHOUT_DELAYS]);
    let [victim, one, other, _] = server.maintainers();
    let (work, _) = one_commit("one");
    let commit = work.commit("large", &incompressible_text(8_000_000));
    server.create_repo(&victim, "tool", &[], &work, &main_at(&commit));
    for fork in [&one, &other] {
        server.publish(&fork.announce("tool", BASE_TIME, &[&victim]));
        server.publish(&fork.state("tool", BASE_TIME, &main_at(&commit)));
        server.eventually_refs(fork, "tool", &main_at(&commit));
        server.publish(&fork.announce("tool", BASE_TIME + 1, &[]));
    }
    let has_space = |server: &TestServer| {
        let response = server.process.get("/readyz", "");
        let (_, body) = response.split_once("\r\n\r\n").expect("a response has a body");
        let checks: Value = serde_json::from_str(body).expect("not JSON");
        let check = &checks["checks"]["disk_budget"];
        check["ok"] == true
    };
    let used = folder_bytes(&server.process.folder().path().join("data"));
    // The budget is a little less than what is used, and more than without the repository.
    let limit: &'static str = Box::leak((used - 1_000_000).to_string().into_boxed_str());
    let mut server = server.restart_with(StopSignal::Term, &[WITHOUT_DELAYS, ("DISK_BUDGET_BYTES", limit)]);
    eventually("the disk budget is used up", || (!has_space(&server)).then_some(()));
    server.publish(&victim.delete_coordinate(BASE_TIME + 100, kinds::ANNOUNCEMENT, "tool"));
    // No clone: its response would be cached, which counts.
    eventually("the forks are degraded", || {
        let rows = server.process.run(&["repos", "tool", "--json"]).json_lines();
        (rows.len() == 2 && rows.iter().all(|row| row["state"] == "degraded")).then_some(())
    });
    eventually("the space is freed", || has_space(&server).then_some(()));
    let server = server.restart_with(StopSignal::Term, &[]);
    work.push(&server.url(&one, "tool"), &[&format!("{commit}:{MAIN}")]).expect_success();
    let clone = WorkTree::clone(&server.url(&one, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), commit);
}

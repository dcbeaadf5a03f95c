//! Data folders and backups of the version that kept refs in files only (schema 1).
//!
//! `tests/data/schema-1.tar.gz` was written by that version: `data` (two served repositories, one of them degraded, one
//! with a name whose folder is a hash, one with submitted pull requests, a held state), `backup`, and `refs`, what it
//! served. [`write_data_folder`] makes such a file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use tempfile::TempDir;

use crate::support::git::{BASE_TIME, MAIN, OLD, WorkTree, repo_path, try_ls_remote};
use crate::support::integrity::entries;
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::{Server, command, eventually};

const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/schema-1.tar.gz");

const SETTINGS: [(&str, &str); 2] = [("DOMAIN", "grasp.test"), ("GRASP06_ENABLE", "true")];

/// The path of the repository whose objects are lost.
const DEGRADED: &str = "degraded.git";

/// Unpacks the data folder, the backup and the list of refs into a folder.
fn unpack() -> Arc<TempDir> {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let status = Command::new("tar").args(["-xzf", ARCHIVE, "-C"]).arg(folder.path()).status();
    assert!(status.expect("cannot run tar").success());
    Arc::new(folder)
}

/// Returns the refs of some paths in the format of the file `refs`: path, name and object; HEAD with its branch.
fn served_refs(server: &Server, paths: &[String]) -> String {
    let mut lines = Vec::new();
    for path in paths {
        let remote = try_ls_remote(&format!("http://{}{path}", server.address)).unwrap_or_default();
        lines.push(format!("{path} HEAD {}", remote.head.unwrap_or_default()));
        lines.extend(remote.refs.iter().map(|(name, oid)| format!("{path} {name} {oid}")));
    }
    lines.join("\n")
}

/// Asserts that a server serves what the archive lists. Returns the paths of degraded repositories.
fn expect_migrated(folder: &Path, server: &Server) -> Vec<String> {
    let listed = fs::read_to_string(folder.join("refs")).expect("cannot read the list of refs");
    let mut paths: Vec<String> = listed.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect();
    paths.dedup();
    assert_eq!(paths.len(), 4, "{listed}");
    let (degraded, intact): (Vec<String>, _) = paths.into_iter().partition(|path| path.ends_with(DEGRADED));
    let listed: Vec<&str> = listed.lines().filter(|line| !line.starts_with(&degraded[0])).collect();
    assert_eq!(served_refs(server, &intact), listed.join("\n"));
    for path in &intact {
        WorkTree::clone(&format!("http://{}{path}", server.address)).fsck();
    }
    degraded
}

/// Asserts that the server knows that the repository is degraded.
fn expect_degraded(server: &Server, path: &str) {
    let (_, output) = WorkTree::try_clone(&[], &format!("http://{}{path}", server.address), &[]);
    assert!(!output.success && output.stderr.contains("degraded"), "{}", output.stderr);
}

#[test]
fn refs_of_the_previous_version_are_migrated() {
    let folder = unpack();
    let mut server = Server::start_in(&folder, &SETTINGS);
    for path in expect_migrated(folder.path(), &server) {
        expect_degraded(&server, &path);
    }
    assert_eq!(server.stop(), Some(0));
    // A second start migrates nothing: refs that an older program writes are not taken over.
    let packed_refs = find_packed_refs(&folder.path().join("data/git/repos"));
    assert!(!packed_refs.is_empty());
    for path in packed_refs.keys() {
        fs::write(path, "").expect("cannot write the file");
    }
    let server = Server::start_in(&folder, &SETTINGS);
    expect_migrated(folder.path(), &server);
    eventually("the ref files are written again", || {
        (find_packed_refs(&folder.path().join("data/git/repos")) == packed_refs).then_some(())
    });
}

/// Returns the `packed-refs` files below a folder with their content.
fn find_packed_refs(folder: &Path) -> BTreeMap<PathBuf, String> {
    let owners = entries(folder).into_iter();
    let repos = owners.flat_map(|owner| entries(&owner));
    let files = repos.map(|repo| repo.join("packed-refs")).filter(|path| path.exists());
    files.map(|path| (path.clone(), fs::read_to_string(path).expect("cannot read the file"))).collect()
}

/// Without its disk, the git folder is empty. The migration must wait for the right one.
#[test]
fn empty_git_folder_is_not_migrated() {
    let folder = unpack();
    let (git, away) = (folder.path().join("data/git"), folder.path().join("away"));
    fs::rename(&git, &away).expect("cannot move the folder");
    let output = command(folder.path(), &SETTINGS).output().expect("cannot run graspd");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("has no repositories") && text.contains("mount it"), "{text}");
    fs::remove_dir_all(&git).expect("cannot remove the folder");
    fs::rename(&away, &git).expect("cannot move the folder");
    let server = Server::start_in(&folder, &SETTINGS);
    expect_migrated(folder.path(), &server);
}

/// A ref file that cannot be read, or is not what this program writes, does not keep the server from starting. The refs
/// are set again from the signed state.
#[test]
fn damaged_ref_files_are_replaced_by_the_migration() {
    let folder = unpack();
    for (nth, path) in find_packed_refs(&folder.path().join("data/git/repos")).keys().enumerate() {
        let text: &[u8] = if nth % 2 == 0 { b"no ref at all\n" } else { b"\xff\xfe not UTF-8\n" };
        fs::write(path, text).expect("cannot write the file");
    }
    let server = Server::start_in(&folder, &SETTINGS);
    let listed = fs::read_to_string(folder.path().join("refs")).expect("cannot read the list of refs");
    for line in listed.lines().filter(|line| !line.contains(" HEAD ")) {
        let [path, name, oid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("unexpected line: {line}") };
        eventually("the ref is served", || {
            let remote = try_ls_remote(&format!("http://{}{path}", server.address))?;
            remote.refs.get(name).is_some_and(|found| found == oid).then_some(())
        });
    }
}

/// The server is killed at every point of the migration; each time the next start begins again.
#[test]
fn interrupted_migration_is_repeated() {
    let folder = unpack();
    let points = [("migration.row", 1), ("migration.row", 2), ("migration.row", 4), ("migration.batch", 1)];
    for (point, nth) in points.into_iter().chain([("migration.done", 1)]) {
        let point = &format!("{point}:{nth}");
        let mut process = command(folder.path(), &[&SETTINGS[..], &[("GRASPD_CRASH_AT", point)]].concat());
        let mut child = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("cannot run graspd");
        eventually("the process is killed", || child.try_wait().expect("cannot wait for the process"));
    }
    let server = Server::start_in(&folder, &SETTINGS);
    for path in expect_migrated(folder.path(), &server) {
        expect_degraded(&server, &path);
    }
}

/// As above, at random moments.
#[test]
fn migration_survives_kills_at_any_moment() {
    let folder = unpack();
    for round in 0..10_u32 {
        let mut process = command(folder.path(), &SETTINGS);
        let mut child = process.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("cannot run graspd");
        // Not a wait for a condition: the moment of the kill is what varies.
        std::thread::sleep(std::time::Duration::from_millis(u64::from(round) * 15));
        child.kill().expect("cannot kill the process");
        child.wait().expect("cannot wait for the process");
    }
    let server = Server::start_in(&folder, &SETTINGS);
    expect_migrated(folder.path(), &server);
}

#[test]
fn backup_of_the_previous_version_is_verified_and_restored() {
    let folder = unpack();
    let backup = folder.path().join("backup");
    let restored = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let run = |argument: &str| {
        let output =
            command(restored.path(), &SETTINGS).arg(argument).arg(&backup).output().expect("cannot run graspd");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // The lost objects, and the state and the ref that need them.
    let (is_intact, report) = run("verify");
    assert!(!is_intact && report.contains("2 problems found") && report.contains(DEGRADED), "{report}");
    let (is_restored, report) = run("restore");
    assert!(is_restored, "{report}");
    let server = Server::start_in(&restored, &SETTINGS);
    expect_migrated(folder.path(), &server);
}

/// Not a test: writes the archive with the program that this test program runs. Put a program of the previous version
/// in its place first.
#[test]
#[ignore = "writes the archive of this test"]
fn write_data_folder() {
    let mut server = TestServer::with_settings(&SETTINGS[1..]);
    let [owner, other, guest, _] = server.maintainers();
    let (work, first) = one_commit("one");
    let second = work.commit("file", "two");
    let tag = work.tag("v1");
    let state = [(MAIN, second.as_str()), (OLD, &first), ("refs/tags/v1", &tag)];
    server.create_repo(&owner, "tool", &[&other], &work, &state);
    let long = "ü".repeat(200);
    server.create_repo(&owner, &long, &[], &work, &main_at(&first));
    let (lost_work, lost) = one_commit("lost");
    server.create_repo(&other, "degraded", &[], &lost_work, &main_at(&lost));
    work.branch("feature");
    let tip = work.commit("feature", "three");
    let request =
        guest.pull_request(BASE_TIME, &[&owner.repo("tool")], &tip, &[&server.public_prs_url(&guest, "tool")]);
    server.publish_held(&request);
    work.push(&server.prs_url(&guest, "tool"), &[&format!("{tip}:refs/nostr/{}", request.id)]).expect_success();
    server.eventually_served(&request);
    server.publish_held(&owner.state("tool", BASE_TIME + 1, &main_at(&"b".repeat(40))));
    let folder = server.process.folder().clone();
    let packs = server.git_folder().join("repos").join(other.npub()).join(DEGRADED).join("pool/pack");
    for path in entries(&packs) {
        fs::remove_file(path).expect("cannot remove a pack");
    }
    server.process.run(&["repair", "degraded"]);
    server.process.run(&["backup", folder.path().join("backup").to_str().expect("text")]);
    let mut paths = vec![repo_path(&owner.npub(), "tool"), repo_path(&owner.npub(), &long)];
    paths.extend([repo_path(&other.npub(), "degraded"), format!("/prs{}", repo_path(&guest.npub(), "tool"))]);
    eventually("the pull request is in the repository", || {
        server.ls_remote(&owner, "tool").refs.contains_key(&format!("refs/nostr/{}", request.id)).then_some(())
    });
    let refs = served_refs(&server.process, &paths);
    fs::write(folder.path().join("refs"), refs).expect("cannot write the list of refs");
    assert_eq!(server.process.stop(), Some(0));
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "-czf", ARCHIVE, "-C"]).arg(folder.path()).args(["data", "backup", "refs"]);
    assert!(tar.status().expect("cannot run tar").success());
}

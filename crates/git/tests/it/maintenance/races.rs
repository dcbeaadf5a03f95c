//! Fetches and pushes during maintenance.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use grasp_core::admission::git_job::Alignment;
use grasp_git::maintenance::MaintenanceOutcome;
use grasp_git::serve::{ProtocolVersion, UploadPackLimits, upload_pack};
use tempfile::TempDir;

use super::pool::{
    TIMEOUT, age_packs, deliver_history, import_history, installed_git, maintainer, objects, packs, point_main_to,
    prune, push, push_each,
};
use super::repack::clone_request;
use crate::git_folder::{AuthorRepo, GitFixture, announced, git};

/// Fetches as a client does and indexes the pack with git, which checks that all objects of the tip are in it.
fn fetch(repo_path: &Path, tip: &str, into: &Path) -> Result<usize, String> {
    let mut response = Vec::new();
    let limits = UploadPackLimits { threads: 1, timeout: TIMEOUT };
    let protocol = ProtocolVersion::from_header(Some("version=2"));
    upload_pack(&installed_git(), repo_path, (protocol, &clone_request(tip)), limits, |part| {
        response.extend_from_slice(part);
        Ok(())
    })
    .map_err(|error| error.to_string())?;
    let pack = extract_pack(&response)
        .ok_or_else(|| String::from_utf8_lossy(&response[..200.min(response.len())]).into_owned())?;
    let mut child = Command::new("git")
        .current_dir(into)
        .args(["index-pack", "--stdin", "--strict", "--threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start git");
    child.stdin.take().expect("stdin is piped").write_all(&pack).expect("write to git");
    let output = child.wait_with_output().expect("wait for the process");
    if output.status.success() { Ok(pack.len()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Returns the pack in the side bands of a response.
fn extract_pack(response: &[u8]) -> Option<Vec<u8>> {
    let mut pack = Vec::new();
    let mut rest = response;
    while rest.len() >= 4 {
        let length = usize::from_str_radix(std::str::from_utf8(&rest[..4]).ok()?, 16).ok()?;
        if length < 4 {
            rest = &rest[4..];
            continue;
        }
        let line = rest.get(4..length)?;
        match line.first()? {
            1 => pack.extend_from_slice(&line[1..]),
            3 => return None,
            _ => {}
        }
        rest = &rest[length..];
    }
    (!pack.is_empty()).then_some(pack)
}

#[test]
fn fetches_and_pushes_work_during_maintenance() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(&folder.path().join("git")), announced(1), AuthorRepo::new());
    let base = author.commit("folder");
    push(&fixture, &repo_path, &author, &[&base]);
    let bare = import_history(folder.path(), 1_500);
    let tip = deliver_history(&fixture, &repo_path, &bare, 20);
    let repo_folder = fixture.layout.repo_dir(&repo_path);
    let (is_done, fetched) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for nth in 0..2 {
            let into = folder.path().join(format!("into-{nth}.git"));
            let (is_done, fetched, tip, repo_folder) = (&is_done, &fetched, &tip, &repo_folder);
            git(folder.path(), &["init", "--quiet", "--bare", into.to_str().expect("UTF-8")]);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    fetch(repo_folder, tip, &into).expect("a complete pack");
                    fetched.fetch_add(1, Ordering::Relaxed);
                    for entry in fs::read_dir(into.join("objects/pack")).expect("list a folder") {
                        fs::remove_file(entry.expect("read an entry").path()).expect("remove a file");
                    }
                }
            });
        }
        let maintenance = scope.spawn(|| {
            let maintainer = maintainer(&fixture);
            let mut outcomes = BTreeMap::new();
            for _ in 0..6 {
                for _ in 0..2 {
                    let outcome = maintainer.repack(&repo_path).expect("repack a pool");
                    *outcomes.entry(format!("repack {outcome:?}")).or_insert(0) += 1;
                }
                let outcome = prune(&fixture, &repo_path, Duration::ZERO);
                *outcomes.entry(format!("prune {outcome:?}")).or_insert(0) += 1;
            }
            eprintln!("{outcomes:?}");
        });
        // Pushes continue: the fetched branch stays, and the other branch moves.
        let mut pushes = 0;
        let mut before = base.clone();
        while !maintenance.is_finished() {
            let next = author.commit(&format!("push {pushes}"));
            let received_pack = author.received_pack(&fixture, &[&next, &format!("^{before}")]);
            let refs = [("refs/heads/main", tip.as_str()), ("refs/heads/other", next.as_str())];
            let state = crate::git_folder::with_head(1, &refs);
            let aligned = super::pool::run_alignment(
                &fixture,
                &repo_path,
                crate::git_folder::follow_state(&[received_pack], state),
            );
            if aligned.chosen.is_some() {
                before = next;
            } else {
                // The parent commit was unneeded and has been removed; the next push sends everything.
                assert_eq!(pushes, 0, "a later push is incomplete");
            }
            pushes += 1;
            if !fixture.can_read(&repo_path, &base) {
                panic!("the base commit was removed");
            }
        }
        is_done.store(true, Ordering::Relaxed);
        eprintln!("{pushes} pushes");
        maintenance.join().expect("join a thread");
    });
    eprintln!("{} fetches, {} packs left", fetched.load(Ordering::Relaxed), packs(&fixture, &repo_path).len());
    assert!(fetched.load(Ordering::Relaxed) > 0);
    fixture.check_repo(&repo_path);
}

#[test]
fn packs_that_arrive_during_maintenance_are_kept() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let texts = |from: usize, to: usize| (from..to).map(|n| format!("text {n}")).collect::<Vec<_>>();
    let first = push_each(&fixture, &repo_path, &author, &texts(0, 1));
    let mut last = push_each(&fixture, &repo_path, &author, &texts(1, 12));
    let mut count = 12;
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            for _ in 0..8 {
                assert_ne!(
                    maintainer(&fixture).repack(&repo_path).expect("repack a pool"),
                    MaintenanceOutcome::Deferred
                );
            }
        });
        while !maintenance.is_finished() {
            last = push_each(&fixture, &repo_path, &author, &texts(count, count + 1));
            count += 1;
        }
        maintenance.join().expect("join a thread");
    });
    assert_eq!(objects(&fixture, &repo_path).len(), 4 * count);
    // The same during prunes: removed objects arrive again in a pack of the same name. The repository is read as the
    // server reads it, because `git fsck` reports packs that are removed after it has listed the folder.
    let into = folder.path().join("into.git");
    git(folder.path(), &["init", "--quiet", "--bare", into.to_str().expect("UTF-8")]);
    point_main_to(&fixture, &repo_path, Alignment::default(), &first);
    prune(&fixture, &repo_path, Duration::ZERO);
    age_packs(&fixture, &repo_path, Duration::from_secs(1));
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            for _ in 0..8 {
                prune(&fixture, &repo_path, Duration::ZERO);
            }
        });
        let mut nth = 0;
        while !maintenance.is_finished() {
            push(&fixture, &repo_path, &author, &[&last]);
            let tip = if nth % 2 == 0 { &last } else { &first };
            point_main_to(&fixture, &repo_path, Alignment::default(), tip);
            fetch(&fixture.layout.repo_dir(&repo_path), tip, &into).expect("a complete pack");
            nth += 1;
        }
        maintenance.join().expect("join a thread");
    });
    fixture.check_repo(&repo_path);
}

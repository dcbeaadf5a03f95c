//! Fetches and pushes go on while pools are put in order.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use grasp_core::admission::git_job::Alignment;
use grasp_git::maintenance::Tidied;
use grasp_git::serve::{Effort, Protocol, upload_pack};
use tempfile::TempDir;

use super::pool::{
    PATIENCE, age, deliver, imported, maintainer, objects, packs, point, prune, push, push_each, real_git,
};
use super::repack::clone_request;
use crate::git_folder::{Author, World, announced, git};

/// A fetch as the server answers it, read by the real git: all objects of the tip must be in it.
fn fetch(repo_path: &Path, tip: &str, into: &Path) -> Result<usize, String> {
    let mut answer = Vec::new();
    let effort = Effort { threads: 1, patience: PATIENCE };
    let protocol = Protocol::read(Some("version=2"));
    upload_pack(&real_git(), repo_path, (protocol, &clone_request(tip)), effort, |part| {
        answer.extend_from_slice(part);
        Ok(())
    })
    .map_err(|problem| problem.to_string())?;
    let pack = unwrap(&answer).ok_or_else(|| String::from_utf8_lossy(&answer[..200.min(answer.len())]).into_owned())?;
    let mut child = Command::new("git")
        .current_dir(into)
        .args(["index-pack", "--stdin", "--strict", "--threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git");
    child.stdin.take().expect("a pipe").write_all(&pack).expect("writes");
    let output = child.wait_with_output().expect("ends");
    if output.status.success() { Ok(pack.len()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// The pack inside the bands of an answer.
fn unwrap(answer: &[u8]) -> Option<Vec<u8>> {
    let mut pack = Vec::new();
    let mut rest = answer;
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
fn fetches_and_pushes_go_on() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(&folder.path().join("git")), announced(1), Author::new());
    let base = author.commit("folder");
    push(&world, &repo_path, &author, &[&base]);
    let bare = imported(folder.path(), 1_500);
    let tip = deliver(&world, &repo_path, &bare, 20);
    let site_folder = world.layout.repo_dir(&repo_path);
    let (over, fetched) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for nth in 0..2 {
            let into = folder.path().join(format!("into-{nth}.git"));
            let (over, fetched, tip, site_folder) = (&over, &fetched, &tip, &site_folder);
            git(folder.path(), &["init", "--quiet", "--bare", into.to_str().expect("text")]);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    fetch(site_folder, tip, &into).expect("a whole pack");
                    fetched.fetch_add(1, Ordering::Relaxed);
                    for entry in fs::read_dir(into.join("objects/pack")).expect("a folder") {
                        fs::remove_file(entry.expect("an entry").path()).expect("goes");
                    }
                }
            });
        }
        let maintenance = scope.spawn(|| {
            let maintainer = maintainer(&world);
            let mut done = BTreeMap::new();
            for _ in 0..6 {
                for _ in 0..2 {
                    let tidied = maintainer.fold(&repo_path).expect("folds");
                    *done.entry(format!("fold {tidied:?}")).or_insert(0) += 1;
                }
                let tidied = prune(&world, &repo_path, Duration::ZERO);
                *done.entry(format!("prune {tidied:?}")).or_insert(0) += 1;
            }
            eprintln!("{done:?}");
        });
        // Somebody pushes all the time: what is fetched stays below it, what was there goes back and forth.
        let mut pushes = 0;
        let mut before = base.clone();
        while !maintenance.is_finished() {
            let next = author.commit(&format!("push {pushes}"));
            let received_pack = author.incoming(&world, &[&next, &format!("^{before}")]);
            let refs = [("refs/heads/main", tip.as_str()), ("refs/heads/other", next.as_str())];
            let state = crate::git_folder::with_head(1, &refs);
            let aligned = super::pool::order(&world, &repo_path, crate::git_folder::follow(&[received_pack], state));
            if aligned.chosen.is_some() {
                before = next;
            } else {
                // What it was built on was unneeded and went; the next push brings all.
                assert_eq!(pushes, 0, "a push is complete");
            }
            pushes += 1;
            if !world.reads(&repo_path, &base) {
                panic!("the base is gone");
            }
        }
        over.store(true, Ordering::Relaxed);
        eprintln!("{pushes} pushes");
        maintenance.join().expect("goes well");
    });
    eprintln!("{} fetches, {} packs left", fetched.load(Ordering::Relaxed), packs(&world, &repo_path).len());
    assert!(fetched.load(Ordering::Relaxed) > 0);
    world.check(&repo_path);
}

#[test]
fn packs_that_come_meanwhile_stay() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let texts = |from: usize, to: usize| (from..to).map(|n| format!("text {n}")).collect::<Vec<_>>();
    let first = push_each(&world, &repo_path, &author, &texts(0, 1));
    let mut last = push_each(&world, &repo_path, &author, &texts(1, 12));
    let mut count = 12;
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            for _ in 0..8 {
                assert_ne!(maintainer(&world).fold(&repo_path).expect("folds"), Tidied::Later);
            }
        });
        while !maintenance.is_finished() {
            last = push_each(&world, &repo_path, &author, &texts(count, count + 1));
            count += 1;
        }
        maintenance.join().expect("goes well");
    });
    assert_eq!(objects(&world, &repo_path).len(), 4 * count);
    // The same while objects are taken away: they come back with a pack of the same name. Meanwhile it is read as the
    // server reads it: `git fsck` names packs that go between its look at the folder and its look at them.
    let into = folder.path().join("into.git");
    git(folder.path(), &["init", "--quiet", "--bare", into.to_str().expect("text")]);
    point(&world, &repo_path, Alignment::default(), &first);
    prune(&world, &repo_path, Duration::ZERO);
    age(&world, &repo_path, Duration::from_secs(1));
    std::thread::scope(|scope| {
        let maintenance = scope.spawn(|| {
            for _ in 0..8 {
                prune(&world, &repo_path, Duration::ZERO);
            }
        });
        let mut nth = 0;
        while !maintenance.is_finished() {
            push(&world, &repo_path, &author, &[&last]);
            let tip = if nth % 2 == 0 { &last } else { &first };
            point(&world, &repo_path, Alignment::default(), tip);
            fetch(&world.layout.repo_dir(&repo_path), tip, &into).expect("a whole pack");
            nth += 1;
        }
        maintenance.join().expect("goes well");
    });
    world.check(&repo_path);
}

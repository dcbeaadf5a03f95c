//! Repositories are put in order in the background: few packs, and nothing that nobody needs. Clients notice nothing.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::support::eventually;
use crate::support::git::{Maintainer, THEN, Work, fetchable};
use crate::support::test_server::{End, Stage, main_at, one_commit};

/// Debug builds do at once what otherwise waits for quiet, an hour or a day.
const HASTE: (&str, &str) = ("GRASPD_HASTE", "1");

/// The pool of a repository.
fn pool(stage: &Stage, who: &Maintainer, d: &str) -> PathBuf {
    stage.git_folder().join("repos").join(who.npub()).join(format!("{d}.git/pool"))
}

fn packs(pool: &Path) -> usize {
    let names = std::fs::read_dir(pool.join("pack")).expect("a folder").map(|entry| entry.expect("an entry").path());
    names.filter(|path| path.extension().is_some_and(|part| part == "pack")).count()
}

/// Waits until somebody has looked for unneeded objects twice from now on: once to put them aside, once to take them away.
fn two_looks(pool: &Path) {
    let looked = || std::fs::metadata(pool.join("info/looked")).and_then(|metadata| metadata.modified()).ok();
    for _ in 0..3 {
        // A look comes after a change only; a file in the pack folder that comes and goes is one.
        std::fs::write(pool.join("pack/bell"), "").expect("writes");
        let before = looked();
        eventually("a look", || (looked() > before).then_some(()));
        let _ = std::fs::remove_file(pool.join("pack/bell"));
    }
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no haste")]
fn many_pushes_leave_few_packs() {
    let mut stage = Stage::with(&[HASTE]);
    let [owner, ..] = stage.cast();
    let (work, first) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&first));
    let pool = pool(&stage, &owner, "tool");
    let (mut last, mut seen) = (first, 0);
    for n in 1..30 {
        last = work.commit("file", &format!("text {n}"));
        stage.advance(&owner, &owner, "tool", THEN + n, &work, &main_at(&last));
        seen = seen.max(packs(&pool));
    }
    assert!(seen > 1);
    eventually("few packs", || (packs(&pool) <= 8).then_some(()));
    let clone = Work::clone(&stage.url(&owner, "tool"));
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), last);
    // It ends at once when it is asked to, whatever it is doing, and the next server goes on.
    let begin = Instant::now();
    let mut stage = stage.again(End::Asked);
    assert!(begin.elapsed().as_secs() < 30);
    let next = work.commit("file", "next");
    stage.advance(&owner, &owner, "tool", THEN + 40, &work, &main_at(&next));
    Work::clone(&stage.url(&owner, "tool")).fsck();
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no haste")]
fn what_no_event_needs_goes_and_what_one_needs_stays() {
    let mut stage = Stage::with(&[HASTE]);
    let [owner, maintainer, ..] = stage.cast();
    let (work, first) = one_commit("one");
    stage.found(&owner, "tool", &[&maintainer], &work, &main_at(&first));
    let [url, pool] = [stage.url(&owner, "tool"), pool(&stage, &owner, "tool").display().to_string()];
    let pool = PathBuf::from(pool);
    // A state of the maintainer, then one of the owner that goes another way: both are served, one is followed.
    let theirs = work.commit("file", "theirs");
    stage.advance(&owner, &maintainer, "tool", THEN + 1, &work, &main_at(&theirs));
    let ours = work.orphan("ours", "ours");
    let state = stage.advance(&owner, &owner, "tool", THEN + 2, &work, &main_at(&ours));
    two_looks(&pool);
    assert!(fetchable("2", &url, &theirs), "a served state needs it");
    assert!(fetchable("2", &url, &ours));
    // The newer state is deleted: the other one is followed again, and what only the deleted one needed goes.
    stage.publish(&owner.delete(THEN + 3, &[&state]));
    stage.eventually_refs(&owner, "tool", &main_at(&theirs));
    eventually("it is gone", || (!fetchable("2", &url, &ours)).then_some(()));
    let clone = Work::clone(&url);
    clone.fsck();
    assert_eq!(clone.oid("HEAD"), theirs);
    // It can come back.
    stage.advance(&owner, &owner, "tool", THEN + 4, &work, &main_at(&ours));
    Work::clone(&url).fsck();
}

#[test]
fn without_maintenance_packs_stay() {
    let mut stage = Stage::with(&[HASTE, ("GIT_MAINTENANCE", "false")]);
    let [owner, ..] = stage.cast();
    let (work, first) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&first));
    for n in 1..12 {
        let last = work.commit("file", &format!("text {n}"));
        stage.advance(&owner, &owner, "tool", THEN + n, &work, &main_at(&last));
    }
    assert_eq!(packs(&pool(&stage, &owner, "tool")), 12);
}

//! A process that is killed at any crash point of maintenance: the pool is complete, and maintenance can be repeated.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use grasp_core::admission::git_job::Alignment;
use grasp_git::maintenance::MaintenanceOutcome;
use tempfile::TempDir;

use super::pool::{deliver_history, import_history, maintainer, objects, packs, point_main_to, prune};
use crate::git_folder::{AuthorRepo, GitFixture, announced, git};

/// Repacks a pool and prunes it twice: the first prune moves unneeded objects to a cruft pack, the second removes it.
fn repack_and_prune(fixture: &GitFixture) {
    let repo_path = announced(1);
    maintainer(fixture).repack(&repo_path).expect("repack a pool");
    for _ in 0..2 {
        assert_ne!(prune(fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Deferred);
    }
}

/// Not a test by itself: the process that the crash test starts and that is killed at a crash point.
#[test]
fn process_that_crashes() {
    let Ok(root) = std::env::var("CRASH_ROOT") else { return };
    repack_and_prune(&GitFixture::open(Path::new(&root)));
    panic!("the process was not killed");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds have no crash points")]
fn interrupted_maintenance_leaves_a_complete_pool() {
    let folder = TempDir::new().expect("create a folder");
    let prepared = folder.path().join("prepared");
    let repo_path = announced(1);
    let (fixture, author) = (GitFixture::open(&prepared), AuthorRepo::new());
    super::pool::push(&fixture, &repo_path, &author, &[&author.commit("gone")]);
    let bare = import_history(folder.path(), 720);
    deliver_history(&fixture, &repo_path, &bare, 10);
    let middle = git(&bare, &["rev-parse", "main~20"]);
    point_main_to(&fixture, &repo_path, Alignment::default(), &middle);
    let needed: BTreeSet<String> =
        git(&bare, &["rev-list", "--objects", &middle]).lines().map(|line| line[..40].to_owned()).collect();
    let mut tested = BTreeSet::new();
    // The repack and each of the two prunes reach most crash points. A soak run stops at all of them, an everyday run
    // at each crash point once.
    let is_soak = std::env::var("GRASP_SOAK").is_ok_and(|value| value == "1");
    let points = ["tidy.made", "tidy.pack", "tidy.packs", "tidy.graph", "tidy.index", "tidy.recorded", "tidy.removed"];
    for (index, point) in points.into_iter().enumerate() {
        for nth in (1..=3).filter(|nth| is_soak || nth % 3 == index % 3) {
            let root = folder.path().join(format!("{point}-{nth}"));
            assert!(Command::new("cp").arg("-a").args([&prepared, &root]).status().expect("run the command").success());
            let output = Command::new(std::env::current_exe().expect("find this program"))
                .args(["maintenance::crash::process_that_crashes", "--exact"])
                .env("GRASPD_CRASH_AT", format!("{point}:{nth}"))
                .env("CRASH_ROOT", &root)
                .output()
                .expect("run the command");
            assert_eq!(output.status.signal(), Some(9), "{point}:{nth}: {output:?}");
            let fixture = GitFixture::open(&root);
            fixture.check_repo(&repo_path);
            repack_and_prune(&fixture);
            repack_and_prune(&fixture);
            fixture.check_repo(&repo_path);
            assert_eq!(objects(&fixture, &repo_path).into_keys().collect::<BTreeSet<_>>(), needed, "{point}:{nth}");
            assert_eq!(packs(&fixture, &repo_path).len(), 1, "{point}:{nth}");
            fs::remove_dir_all(&root).expect("remove a folder");
            tested.insert(point.to_owned());
        }
    }
    // Every crash point of the module was tested.
    let mut all = BTreeSet::new();
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/maintenance")).expect("list the source folder")
    {
        let text = fs::read_to_string(entry.expect("read an entry").path()).expect("read a file");
        let points = text.split("crash_point::point(\"").skip(1).filter_map(|rest| rest.split_once('"'));
        all.extend(points.map(|(name, _)| name.to_owned()));
    }
    assert_eq!(tested, all);
}

//! The process may end at any named place of maintenance: the pool is whole, and maintenance can be done again.

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

/// Folds, then takes away what is unneeded.
fn tidy(fixture: &GitFixture) {
    let repo_path = announced(1);
    maintainer(fixture).repack(&repo_path).expect("repack a pool");
    for _ in 0..2 {
        assert_ne!(prune(fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Deferred);
    }
}

/// Not a test by itself: the process that ends in the middle.
#[test]
fn process_that_crashes() {
    let Ok(root) = std::env::var("CRASH_ROOT") else { return };
    tidy(&GitFixture::open(Path::new(&root)));
    panic!("it came to its end");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no crash points")]
fn maintenance_that_was_cut_off_leaves_a_whole_pool() {
    let folder = TempDir::new().expect("create a folder");
    let begun = folder.path().join("begun");
    let repo_path = announced(1);
    let (fixture, author) = (GitFixture::open(&begun), AuthorRepo::new());
    super::pool::push(&fixture, &repo_path, &author, &[&author.commit("gone")]);
    let bare = import_history(folder.path(), 720);
    deliver_history(&fixture, &repo_path, &bare, 10);
    let middle = git(&bare, &["rev-parse", "main~20"]);
    point_main_to(&fixture, &repo_path, Alignment::default(), &middle);
    let needed: BTreeSet<String> =
        git(&bare, &["rev-list", "--objects", &middle]).lines().map(|line| line[..40].to_owned()).collect();
    let mut seen = BTreeSet::new();
    // A fold, a prune that puts aside, one that takes away: each passes by most places.
    for point in ["tidy.made", "tidy.pack", "tidy.packs", "tidy.graph", "tidy.index", "tidy.removed"] {
        for nth in 1..=3 {
            let root = folder.path().join(format!("{point}-{nth}"));
            assert!(Command::new("cp").arg("-a").args([&begun, &root]).status().expect("run the command").success());
            let life = Command::new(std::env::current_exe().expect("find this program"))
                .args(["maintenance::crash::process_that_crashes", "--exact"])
                .env("GRASPD_CRASH_AT", format!("{point}:{nth}"))
                .env("CRASH_ROOT", &root)
                .output()
                .expect("run the command");
            assert_eq!(life.status.signal(), Some(9), "{point}:{nth}: {life:?}");
            let fixture = GitFixture::open(&root);
            fixture.check_repo(&repo_path);
            tidy(&fixture);
            tidy(&fixture);
            fixture.check_repo(&repo_path);
            assert_eq!(objects(&fixture, &repo_path).into_keys().collect::<BTreeSet<_>>(), needed, "{point}:{nth}");
            assert_eq!(packs(&fixture, &repo_path).len(), 1, "{point}:{nth}");
            fs::remove_dir_all(&root).expect("remove a folder");
            seen.insert(point.to_owned());
        }
    }
    // No place is left out.
    let mut all = BTreeSet::new();
    for entry in
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/maintenance")).expect("list the source folder")
    {
        let text = fs::read_to_string(entry.expect("read an entry").path()).expect("read a file");
        let points = text.split("crash_point::point(\"").skip(1).filter_map(|rest| rest.split_once('"'));
        all.extend(points.map(|(name, _)| name.to_owned()));
    }
    assert_eq!(seen, all);
}

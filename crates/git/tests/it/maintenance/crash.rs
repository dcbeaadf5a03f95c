//! The process may end at any named place of maintenance: the pool is whole, and maintenance can be done again.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use grasp_core::admission::git_job::Alignment;
use grasp_git::maintenance::Tidied;
use tempfile::TempDir;

use super::pool::{deliver, imported, maintainer, objects, packs, point, prune};
use crate::git_folder::{Author, World, announced, git};

/// Folds, then takes away what is unneeded.
fn tidy(world: &World) {
    let repo_path = announced(1);
    maintainer(world).fold(&repo_path).expect("folds");
    for _ in 0..2 {
        assert_ne!(prune(world, &repo_path, Duration::ZERO), Tidied::Later);
    }
}

/// Not a test by itself: the process that ends in the middle.
#[test]
fn one_life() {
    let Ok(root) = std::env::var("MAINTAIN_ROOT") else { return };
    tidy(&World::open(Path::new(&root)));
    panic!("it came to its end");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no crash points")]
fn maintenance_that_was_cut_off_leaves_a_whole_pool() {
    let folder = TempDir::new().expect("a folder");
    let begun = folder.path().join("begun");
    let repo_path = announced(1);
    let (world, author) = (World::open(&begun), Author::new());
    super::pool::push(&world, &repo_path, &author, &[&author.commit("gone")]);
    let bare = imported(folder.path(), 720);
    deliver(&world, &repo_path, &bare, 10);
    let middle = git(&bare, &["rev-parse", "main~20"]);
    point(&world, &repo_path, Alignment::default(), &middle);
    let needed: BTreeSet<String> =
        git(&bare, &["rev-list", "--objects", &middle]).lines().map(|line| line[..40].to_owned()).collect();
    let mut seen = BTreeSet::new();
    // A fold, a prune that puts aside, one that takes away: each passes by most places.
    for point in ["tidy.made", "tidy.pack", "tidy.packs", "tidy.graph", "tidy.index", "tidy.removed"] {
        for nth in 1..=3 {
            let root = folder.path().join(format!("{point}-{nth}"));
            assert!(Command::new("cp").arg("-a").args([&begun, &root]).status().expect("runs").success());
            let life = Command::new(std::env::current_exe().expect("this program"))
                .args(["maintain::crash::one_life", "--exact"])
                .env("GRASPD_CRASH_AT", format!("{point}:{nth}"))
                .env("MAINTAIN_ROOT", &root)
                .output()
                .expect("runs");
            assert_eq!(life.status.signal(), Some(9), "{point}:{nth}: {life:?}");
            let world = World::open(&root);
            world.check(&repo_path);
            tidy(&world);
            tidy(&world);
            world.check(&repo_path);
            assert_eq!(objects(&world, &repo_path).into_keys().collect::<BTreeSet<_>>(), needed, "{point}:{nth}");
            assert_eq!(packs(&world, &repo_path).len(), 1, "{point}:{nth}");
            fs::remove_dir_all(&root).expect("goes");
            seen.insert(point.to_owned());
        }
    }
    // No place is left out.
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/maintain")).expect("the source") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a file");
        let points = text.split("crash::point(\"").skip(1).filter_map(|rest| rest.split_once('"'));
        all.extend(points.map(|(name, _)| name.to_owned()));
    }
    assert_eq!(seen, all);
}

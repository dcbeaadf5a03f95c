//! What nobody needs goes after a grace period, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::Alignment;
use grasp_core::repo::RepoPath;
use grasp_git::maintenance::Tidied;
use tempfile::TempDir;

use super::pool::{DAY, age, clear, files, maintainer, modified, objects, order, packs, point, prune, push, push_each};
use crate::git_folder::{Author, World, announced, pull, submitted};

/// A site whose `main` was `old` and is `new`.
fn replaced(world: &World, repo_path: &RepoPath, author: &Author) -> (String, String) {
    let first = author.commit("first");
    let old = author.commit("old");
    push(world, repo_path, author, &[&old]);
    author.git(&["checkout", "--quiet", &first]);
    let new = author.commit("new");
    push(world, repo_path, author, &[&new, &format!("^{old}")]);
    (old, new)
}

#[test]
fn unneeded_objects_go_a_day_after_they_were_found_to_be() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &repo_path, &author);
    // They came long ago, and are unneeded since now.
    age(&world, &repo_path, 10 * DAY);
    let before = objects(&world, &repo_path);
    let prunings = world.layout.prunings();
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Done);
    assert_eq!(objects(&world, &repo_path), before, "all is there still");
    assert!(world.layout.prunings() > prunings);
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Fine);
    assert!(world.reads(&repo_path, &old));
    age(&world, &repo_path, DAY);
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Done);
    assert!(!world.reads(&repo_path, &old) && world.reads(&repo_path, &new));
    assert_eq!(packs(&world, &repo_path).len(), 1);
    world.check(&repo_path);
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Fine);
    assert_eq!(files(&world.layout.root().join("incoming")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_is_taken_up_again_stays() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &repo_path, &author);
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Done);
    point(&world, &repo_path, Alignment::default(), &old);
    age(&world, &repo_path, 2 * DAY);
    // The old commit is needed again, the new one is not since now.
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Done);
    assert!(world.reads(&repo_path, &old) && world.reads(&repo_path, &new));
    world.check(&repo_path);
    age(&world, &repo_path, 2 * DAY);
    assert_eq!(prune(&world, &repo_path, DAY), Tidied::Done);
    assert!(world.reads(&repo_path, &old) && !world.reads(&repo_path, &new));
    world.check(&repo_path);
}

#[test]
fn what_readers_refs_lead_to_stays() {
    let folder = TempDir::new().expect("a folder");
    let (world, author) = (World::open(folder.path()), Author::new());
    let (repo_path, reader, stranger) = (announced(1), announced(2), announced(3));
    let old = push_each(&world, &repo_path, &author, &["one".to_owned(), "two".to_owned()]);
    point(&world, &reader, Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() }, &old);
    // What the reader has on top of it is its own.
    let lend = || Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() };
    let top = author.commit("top");
    let received_pack = author.incoming(&world, &[&top, &format!("^{old}")]);
    point(&world, &reader, Alignment { adopt: vec![received_pack], ..lend() }, &top);
    push(&world, &stranger, &author, &[&top]);
    clear(&world, &repo_path);
    let own = objects(&world, &reader);
    for _ in 0..3 {
        assert_eq!(prune(&world, &repo_path, Duration::ZERO), Tidied::Fine);
    }
    world.check(&reader);
    point(&world, &reader, lend(), &old);
    for _ in 0..2 {
        prune(&world, &repo_path, Duration::ZERO);
        prune(&world, &reader, Duration::ZERO);
        world.check(&reader);
    }
    assert!(!world.reads(&reader, &top) && own.contains_key(&top));
    // When nobody reads it any more it goes; the reader has copied what it needs.
    order(&world, &reader, Alignment::default());
    assert_eq!(prune(&world, &repo_path, Duration::ZERO), Tidied::Done);
    assert_eq!(prune(&world, &repo_path, Duration::ZERO), Tidied::Done);
    assert_eq!(objects(&world, &repo_path).len(), 0);
    world.check(&reader);
    world.check(&stranger);
}

#[test]
fn what_events_name_stays_with_all_that_it_needs() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, _) = replaced(&world, &repo_path, &author);
    let asked = std::cell::RefCell::new(Vec::new());
    let mut needs = |repo_paths: &[RepoPath]| {
        asked.borrow_mut().push(repo_paths.to_vec());
        // Objects that are not here are named too.
        Some(BTreeSet::from([old.clone(), "0123456789012345678901234567890123456789".to_owned(), "x".to_owned()]))
    };
    let maintainer = maintainer(&world);
    for _ in 0..2 {
        assert_eq!(maintainer.prune(&repo_path, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Fine);
    }
    assert!(asked.borrow().iter().all(|repo_paths| *repo_paths == [repo_path.clone()]));
    assert!(world.reads(&repo_path, &old));
    point(&world, &repo_path, Alignment::default(), &old);
    world.check(&repo_path);
    // If nobody can say what is needed, nothing happens.
    let later = maintainer.prune(&repo_path, Duration::ZERO, &mut |_| None).expect("prunes");
    assert_eq!(later, Tidied::Later);
}

#[test]
fn a_named_object_whose_history_is_gone_holds_up_nobody() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &repo_path, &author);
    // A commit without its parent and its tree.
    let top = author.commit("top");
    let torn = Author::commit(&author, "torn");
    let stray = world.layout.pool(&repo_path);
    author.pack_objects(&stray, &[&torn]);
    let mut needs = |_: &[RepoPath]| Some(BTreeSet::from([torn.clone(), old.clone(), top.clone()]));
    let maintainer = maintainer(&world);
    assert_eq!(maintainer.prune(&repo_path, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Done);
    assert_eq!(maintainer.prune(&repo_path, Duration::ZERO, &mut needs).expect("prunes"), Tidied::Done);
    assert!(world.reads(&repo_path, &old) && world.reads(&repo_path, &new) && !world.reads(&repo_path, &torn));
}

#[test]
fn pull_requests_go_and_submissions_are_pruned_like_others() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), submitted(1), Author::new());
    let tip = author.commit("offer");
    let received_pack = author.incoming(&world, &[&tip]);
    order(
        &world,
        &repo_path,
        Alignment { adopt: vec![received_pack], pull_requests: vec![pull(7, &tip, &[])], ..Alignment::default() },
    );
    assert_eq!(prune(&world, &repo_path, Duration::ZERO), Tidied::Fine);
    assert!(world.reads(&repo_path, &tip));
    order(
        &world,
        &repo_path,
        Alignment { drop_pull_requests: vec![crate::git_folder::event(7)], ..Alignment::default() },
    );
    prune(&world, &repo_path, Duration::ZERO);
    prune(&world, &repo_path, Duration::ZERO);
    assert!(!world.reads(&repo_path, &tip));
    assert_eq!(world.layout.submitted().expect("reads"), [repo_path]);
}

/// An order that comes between the walk and the end takes up what was about to go.
#[test]
fn an_order_that_comes_between_is_noticed() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let (old, new) = replaced(&world, &repo_path, &author);
    prune(&world, &repo_path, DAY);
    age(&world, &repo_path, 2 * DAY);
    let mut times = 0;
    let mut needs = |_: &[RepoPath]| {
        times += 1;
        if times == 2 {
            // The second time is in the turn. What an order has changed directly before that is on disk.
            let refs = fs::read_to_string(world.layout.repo_dir(&repo_path).join("packed-refs")).expect("refs");
            fs::write(world.layout.repo_dir(&repo_path).join("packed-refs"), refs.replace(&new, &old)).expect("writes");
        }
        Some(BTreeSet::new())
    };
    assert_eq!(maintainer(&world).prune(&repo_path, DAY, &mut needs).expect("prunes"), Tidied::Later);
    assert_eq!(times, 2);
    world.check(&repo_path);
    assert!(world.reads(&repo_path, &old) && world.reads(&repo_path, &new));
    // A state that is served but not followed counts as well.
    point(&world, &repo_path, Alignment::default(), &new);
    let mut times = 0;
    let mut needs = |_: &[RepoPath]| {
        times += 1;
        Some(if times == 2 { BTreeSet::from([old.clone()]) } else { BTreeSet::new() })
    };
    assert_eq!(maintainer(&world).prune(&repo_path, DAY, &mut needs).expect("prunes"), Tidied::Later);
    assert!(world.reads(&repo_path, &old));
}

#[test]
fn leftovers_of_packs_go_when_they_are_old() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    push_each(&world, &repo_path, &author, &["one".to_owned()]);
    let whole = files(&world.layout.pool(&repo_path).join("pack"));
    for name in ["tmp_pack_x", "pack-0.pack", "pack-1.idx", "pack-2.rev"] {
        fs::write(world.layout.pool(&repo_path).join("pack").join(name), "x").expect("writes");
    }
    fs::remove_file(world.layout.pool(&repo_path).join("pack/pack-1.idx")).expect("goes");
    prune(&world, &repo_path, DAY);
    assert_eq!(files(&world.layout.pool(&repo_path).join("pack")).len(), whole.len() + 3, "they may be on their way");
    age(&world, &repo_path, DAY);
    prune(&world, &repo_path, DAY);
    assert_eq!(files(&world.layout.pool(&repo_path).join("pack")), whole);
}

#[test]
fn a_look_is_due_after_a_change_and_a_pause() {
    let folder = TempDir::new().expect("a folder");
    let (world, repo_path, author) = (World::open(folder.path()), announced(1), Author::new());
    let maintainer = maintainer(&world);
    let due = |pause: Duration, grace: Duration| {
        maintainer.is_prune_due(&repo_path, maintainer.changed(std::slice::from_ref(&repo_path)), pause, grace)
    };
    assert!(!due(Duration::ZERO, DAY), "there is nothing");
    let (_, new) = replaced(&world, &repo_path, &author);
    assert!(due(Duration::ZERO, DAY) && !due(DAY, DAY));
    // A change that was not followed by a look yet.
    prune(&world, &repo_path, DAY);
    let looked = modified(&world.layout.pool(&repo_path).join("info/looked"));
    let back = |by: Duration| {
        let file =
            fs::File::options().write(true).open(world.layout.pool(&repo_path).join("info/looked")).expect("a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(1) - by).expect("another time");
    };
    assert!(looked <= SystemTime::now() && !due(DAY, DAY));
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY), "nothing has changed since");
    age(&world, &repo_path, 2 * DAY);
    assert!(due(Duration::ZERO, DAY), "what was put aside may go");
    prune(&world, &repo_path, DAY);
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY));
    let next = author.commit("next");
    push(&world, &repo_path, &author, &[&next, &format!("^{new}")]);
    back(Duration::from_secs(60));
    assert!(due(Duration::from_secs(30), DAY) && !due(DAY, DAY));
}

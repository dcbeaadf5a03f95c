//! What nobody needed_oids goes after a grace period, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::Alignment;
use grasp_core::repo::RepoPath;
use grasp_git::maintenance::MaintenanceOutcome;
use tempfile::TempDir;

use super::pool::{
    DAY, age_packs, clear, files, maintainer, modified, objects, packs, point_main_to, prune, push, push_each,
    run_alignment,
};
use crate::git_folder::{AuthorRepo, GitFixture, announced, pull_request, submission};

/// A site whose `main` was `old` and is `new`.
fn replace_main(fixture: &GitFixture, repo_path: &RepoPath, author: &AuthorRepo) -> (String, String) {
    let first = author.commit("first");
    let old = author.commit("old");
    push(fixture, repo_path, author, &[&old]);
    author.git(&["checkout", "--quiet", &first]);
    let new = author.commit("new");
    push(fixture, repo_path, author, &[&new, &format!("^{old}")]);
    (old, new)
}

#[test]
fn unneeded_objects_go_a_day_after_they_were_found_to_be() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    // They came long ago, and are unneeded since now.
    age_packs(&fixture, &repo_path, 10 * DAY);
    let before = objects(&fixture, &repo_path);
    let prune_count = fixture.layout.prune_count();
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert_eq!(objects(&fixture, &repo_path), before, "all is there still");
    assert!(fixture.layout.prune_count() > prune_count);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::NothingToDo);
    assert!(fixture.can_read(&repo_path, &old));
    age_packs(&fixture, &repo_path, DAY);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert!(!fixture.can_read(&repo_path, &old) && fixture.can_read(&repo_path, &new));
    assert_eq!(packs(&fixture, &repo_path).len(), 1);
    fixture.check_repo(&repo_path);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::NothingToDo);
    assert_eq!(files(&fixture.layout.root().join("incoming")), Vec::<std::path::PathBuf>::new());
}

#[test]
fn what_is_taken_up_again_stays() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    point_main_to(&fixture, &repo_path, Alignment::default(), &old);
    age_packs(&fixture, &repo_path, 2 * DAY);
    // The old commit is needed again, the new one is not since now.
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert!(fixture.can_read(&repo_path, &old) && fixture.can_read(&repo_path, &new));
    fixture.check_repo(&repo_path);
    age_packs(&fixture, &repo_path, 2 * DAY);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert!(fixture.can_read(&repo_path, &old) && !fixture.can_read(&repo_path, &new));
    fixture.check_repo(&repo_path);
}

#[test]
fn what_readers_refs_lead_to_stays() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, author) = (GitFixture::open(folder.path()), AuthorRepo::new());
    let (repo_path, reader, stranger) = (announced(1), announced(2), announced(3));
    let old = push_each(&fixture, &repo_path, &author, &["one".to_owned(), "two".to_owned()]);
    point_main_to(&fixture, &reader, Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() }, &old);
    // What the reader has on top of it is its own.
    let lend = || Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() };
    let top = author.commit("top");
    let received_pack = author.received_pack(&fixture, &[&top, &format!("^{old}")]);
    point_main_to(&fixture, &reader, Alignment { adopt: vec![received_pack], ..lend() }, &top);
    push(&fixture, &stranger, &author, &[&top]);
    clear(&fixture, &repo_path);
    let own = objects(&fixture, &reader);
    for _ in 0..3 {
        assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::NothingToDo);
    }
    fixture.check_repo(&reader);
    point_main_to(&fixture, &reader, lend(), &old);
    for _ in 0..2 {
        prune(&fixture, &repo_path, Duration::ZERO);
        prune(&fixture, &reader, Duration::ZERO);
        fixture.check_repo(&reader);
    }
    assert!(!fixture.can_read(&reader, &top) && own.contains_key(&top));
    // When nobody reads it any more it goes; the reader has copied what it needed_oids.
    run_alignment(&fixture, &reader, Alignment::default());
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    assert_eq!(objects(&fixture, &repo_path).len(), 0);
    fixture.check_repo(&reader);
    fixture.check_repo(&stranger);
}

#[test]
fn what_events_name_stays_with_all_that_it_needs() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, _) = replace_main(&fixture, &repo_path, &author);
    let asked = std::cell::RefCell::new(Vec::new());
    let mut needed_oids = |repo_paths: &[RepoPath]| {
        asked.borrow_mut().push(repo_paths.to_vec());
        // Objects that are not here are named too.
        Some(BTreeSet::from([old.clone(), "0123456789012345678901234567890123456789".to_owned(), "x".to_owned()]))
    };
    let maintainer = maintainer(&fixture);
    for _ in 0..2 {
        assert_eq!(
            maintainer.prune(&repo_path, Duration::ZERO, &mut needed_oids).expect("prune a pool"),
            MaintenanceOutcome::NothingToDo
        );
    }
    assert!(asked.borrow().iter().all(|repo_paths| *repo_paths == [repo_path.clone()]));
    assert!(fixture.can_read(&repo_path, &old));
    point_main_to(&fixture, &repo_path, Alignment::default(), &old);
    fixture.check_repo(&repo_path);
    // If nobody can say what is needed, nothing happens.
    let later = maintainer.prune(&repo_path, Duration::ZERO, &mut |_| None).expect("prune a pool");
    assert_eq!(later, MaintenanceOutcome::Deferred);
}

#[test]
fn a_named_object_whose_history_is_gone_holds_up_nobody() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    // A commit without its parent and its tree.
    let top = author.commit("top");
    let torn = AuthorRepo::commit(&author, "torn");
    let stray = fixture.layout.pool(&repo_path);
    author.pack_objects(&stray, &[&torn]);
    let mut needed_oids = |_: &[RepoPath]| Some(BTreeSet::from([torn.clone(), old.clone(), top.clone()]));
    let maintainer = maintainer(&fixture);
    assert_eq!(
        maintainer.prune(&repo_path, Duration::ZERO, &mut needed_oids).expect("prune a pool"),
        MaintenanceOutcome::Done
    );
    assert_eq!(
        maintainer.prune(&repo_path, Duration::ZERO, &mut needed_oids).expect("prune a pool"),
        MaintenanceOutcome::Done
    );
    assert!(
        fixture.can_read(&repo_path, &old)
            && fixture.can_read(&repo_path, &new)
            && !fixture.can_read(&repo_path, &torn)
    );
}

#[test]
fn pull_requests_go_and_submissions_are_pruned_like_others() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), submission(1), AuthorRepo::new());
    let tip = author.commit("offer");
    let received_pack = author.received_pack(&fixture, &[&tip]);
    run_alignment(
        &fixture,
        &repo_path,
        Alignment {
            adopt: vec![received_pack],
            pull_requests: vec![pull_request(7, &tip, &[])],
            ..Alignment::default()
        },
    );
    assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::NothingToDo);
    assert!(fixture.can_read(&repo_path, &tip));
    run_alignment(
        &fixture,
        &repo_path,
        Alignment { drop_pull_requests: vec![crate::git_folder::event(7)], ..Alignment::default() },
    );
    prune(&fixture, &repo_path, Duration::ZERO);
    prune(&fixture, &repo_path, Duration::ZERO);
    assert!(!fixture.can_read(&repo_path, &tip));
    assert_eq!(fixture.layout.submission_repos().expect("list repositories"), [repo_path]);
}

/// An order that comes between the walk and the end takes up what was about to go.
#[test]
fn an_order_that_comes_between_is_noticed() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    prune(&fixture, &repo_path, DAY);
    age_packs(&fixture, &repo_path, 2 * DAY);
    let mut times = 0;
    let mut needed_oids = |_: &[RepoPath]| {
        times += 1;
        if times == 2 {
            // The second time is in the turn. What an order has changed directly before that is on disk.
            let refs = fs::read_to_string(fixture.layout.repo_dir(&repo_path).join("packed-refs")).expect("read refs");
            fs::write(fixture.layout.repo_dir(&repo_path).join("packed-refs"), refs.replace(&new, &old))
                .expect("write a file");
        }
        Some(BTreeSet::new())
    };
    assert_eq!(
        maintainer(&fixture).prune(&repo_path, DAY, &mut needed_oids).expect("prune a pool"),
        MaintenanceOutcome::Deferred
    );
    assert_eq!(times, 2);
    fixture.check_repo(&repo_path);
    assert!(fixture.can_read(&repo_path, &old) && fixture.can_read(&repo_path, &new));
    // A state that is served but not followed counts as well.
    point_main_to(&fixture, &repo_path, Alignment::default(), &new);
    let mut times = 0;
    let mut needed_oids = |_: &[RepoPath]| {
        times += 1;
        Some(if times == 2 { BTreeSet::from([old.clone()]) } else { BTreeSet::new() })
    };
    assert_eq!(
        maintainer(&fixture).prune(&repo_path, DAY, &mut needed_oids).expect("prune a pool"),
        MaintenanceOutcome::Deferred
    );
    assert!(fixture.can_read(&repo_path, &old));
}

#[test]
fn leftovers_of_packs_go_when_they_are_old() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    push_each(&fixture, &repo_path, &author, &["one".to_owned()]);
    let whole = files(&fixture.layout.pool(&repo_path).join("pack"));
    for name in ["tmp_pack_x", "pack-0.pack", "pack-1.idx", "pack-2.rev"] {
        fs::write(fixture.layout.pool(&repo_path).join("pack").join(name), "x").expect("write a file");
    }
    fs::remove_file(fixture.layout.pool(&repo_path).join("pack/pack-1.idx")).expect("remove a file");
    prune(&fixture, &repo_path, DAY);
    assert_eq!(files(&fixture.layout.pool(&repo_path).join("pack")).len(), whole.len() + 3, "they may be on their way");
    age_packs(&fixture, &repo_path, DAY);
    prune(&fixture, &repo_path, DAY);
    assert_eq!(files(&fixture.layout.pool(&repo_path).join("pack")), whole);
}

#[test]
fn a_look_is_due_after_a_change_and_a_pause() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let maintainer = maintainer(&fixture);
    let due = |pause: Duration, grace: Duration| {
        maintainer.is_prune_due(&repo_path, maintainer.last_changed(std::slice::from_ref(&repo_path)), pause, grace)
    };
    assert!(!due(Duration::ZERO, DAY), "there is nothing");
    let (_, new) = replace_main(&fixture, &repo_path, &author);
    assert!(due(Duration::ZERO, DAY) && !due(DAY, DAY));
    // A change that was not followed by a look yet.
    prune(&fixture, &repo_path, DAY);
    let looked = modified(&fixture.layout.pool(&repo_path).join("info/looked"));
    let back = |by: Duration| {
        let file =
            fs::File::options().write(true).open(fixture.layout.pool(&repo_path).join("info/looked")).expect("a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(1) - by).expect("set a time");
    };
    assert!(looked <= SystemTime::now() && !due(DAY, DAY));
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY), "nothing has changed since");
    age_packs(&fixture, &repo_path, 2 * DAY);
    assert!(due(Duration::ZERO, DAY), "what was put aside may go");
    prune(&fixture, &repo_path, DAY);
    back(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY));
    let next = author.commit("next");
    push(&fixture, &repo_path, &author, &[&next, &format!("^{new}")]);
    back(Duration::from_secs(60));
    assert!(due(Duration::from_secs(30), DAY) && !due(DAY, DAY));
}

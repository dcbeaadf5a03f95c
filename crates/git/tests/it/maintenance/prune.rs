//! Pruning removes unneeded objects after the grace period, and no others.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::{Alignment, CandidateState, GitOperation};
use grasp_core::repo::RepoPath;
use grasp_git::maintenance::MaintenanceOutcome;
use tempfile::TempDir;

use super::pool::{
    DAY, age_packs, clear, files, maintainer, modified, objects, packs, point_main_to, prune, push, push_each,
    run_alignment,
};
use crate::git_folder::{AuthorRepo, GitFixture, announced, event, follow_state, pull_request, submission, with_head};

/// Creates a repository whose `main` was `old` and is now `new`.
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
fn unneeded_objects_are_removed_a_day_after_they_were_found() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    // The objects are old, but only now found to be unneeded.
    age_packs(&fixture, &repo_path, 10 * DAY);
    let before = objects(&fixture, &repo_path);
    let prune_count = fixture.layout.prune_count();
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert_eq!(objects(&fixture, &repo_path), before, "nothing is removed yet");
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
fn objects_that_are_needed_again_are_kept() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    point_main_to(&fixture, &repo_path, Alignment::default(), &old);
    age_packs(&fixture, &repo_path, 2 * DAY);
    // The old commit is needed again; the new one is unneeded from now on.
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert!(fixture.can_read(&repo_path, &old) && fixture.can_read(&repo_path, &new));
    fixture.check_repo(&repo_path);
    age_packs(&fixture, &repo_path, 2 * DAY);
    assert_eq!(prune(&fixture, &repo_path, DAY), MaintenanceOutcome::Done);
    assert!(fixture.can_read(&repo_path, &old) && !fixture.can_read(&repo_path, &new));
    fixture.check_repo(&repo_path);
}

#[test]
fn objects_that_readers_need_are_kept() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, author) = (GitFixture::open(folder.path()), AuthorRepo::new());
    let (repo_path, reader, unrelated) = (announced(1), announced(2), announced(3));
    let old = push_each(&fixture, &repo_path, &author, &["one".to_owned(), "two".to_owned()]);
    point_main_to(&fixture, &reader, Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() }, &old);
    // The reader has more commits in its own pool.
    let with_alternate = || Alignment { alternates: vec![repo_path.clone()], ..Alignment::default() };
    let top = author.commit("top");
    let received_pack = author.received_pack(&fixture, &[&top, &format!("^{old}")]);
    point_main_to(&fixture, &reader, Alignment { adopt: vec![received_pack], ..with_alternate() }, &top);
    push(&fixture, &unrelated, &author, &[&top]);
    clear(&fixture, &repo_path);
    let own = objects(&fixture, &reader);
    for _ in 0..3 {
        assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::NothingToDo);
    }
    fixture.check_repo(&reader);
    point_main_to(&fixture, &reader, with_alternate(), &old);
    for _ in 0..2 {
        prune(&fixture, &repo_path, Duration::ZERO);
        prune(&fixture, &reader, Duration::ZERO);
        fixture.check_repo(&reader);
    }
    assert!(!fixture.can_read(&reader, &top) && own.contains_key(&top));
    // The pool of a former maintainer is still read.
    run_alignment(&fixture, &reader, Alignment::default());
    prune(&fixture, &repo_path, Duration::ZERO);
    fixture.check_repo(&reader);
    // Without readers the objects are removed.
    clear(&fixture, &reader);
    for _ in 0..2 {
        assert_eq!(prune(&fixture, &repo_path, Duration::ZERO), MaintenanceOutcome::Done);
    }
    assert_eq!(objects(&fixture, &repo_path).len(), 0);
    fixture.check_repo(&unrelated);
}

#[test]
fn objects_that_events_name_are_kept_with_their_history() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, _) = replace_main(&fixture, &repo_path, &author);
    let calls = std::cell::RefCell::new(Vec::new());
    let mut needed_oids = |repo_paths: &[RepoPath]| {
        calls.borrow_mut().push(repo_paths.to_vec());
        // Events may name objects that do not exist.
        Some(BTreeSet::from([old.clone(), "0123456789012345678901234567890123456789".to_owned(), "x".to_owned()]))
    };
    let maintainer = maintainer(&fixture);
    for _ in 0..2 {
        assert_eq!(
            maintainer.prune(&repo_path, Duration::ZERO, &mut needed_oids).expect("prune a pool"),
            MaintenanceOutcome::NothingToDo
        );
    }
    assert!(calls.borrow().iter().all(|repo_paths| *repo_paths == [repo_path.clone()]));
    assert!(fixture.can_read(&repo_path, &old));
    point_main_to(&fixture, &repo_path, Alignment::default(), &old);
    fixture.check_repo(&repo_path);
    // If it cannot be determined what is needed, nothing is removed.
    let later = maintainer.prune(&repo_path, Duration::ZERO, &mut |_| None).expect("prune a pool");
    assert_eq!(later, MaintenanceOutcome::Deferred);
}

#[test]
fn incomplete_named_object_does_not_prevent_a_prune() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    // A commit without its parent and its tree.
    let top = author.commit("top");
    let incomplete = author.commit("incomplete");
    author.pack_objects(&fixture.layout.pool(&repo_path), &[&incomplete]);
    let mut needed_oids = |_: &[RepoPath]| Some(BTreeSet::from([incomplete.clone(), old.clone(), top.clone()]));
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
            && !fixture.can_read(&repo_path, &incomplete)
    );
}

#[test]
fn submissions_are_pruned_too() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), submission(1), AuthorRepo::new());
    let tip = author.commit("submission");
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

/// A git job between the walk and the swap needs an object that is about to be removed.
#[test]
fn concurrent_job_defers_the_prune() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let (old, new) = replace_main(&fixture, &repo_path, &author);
    prune(&fixture, &repo_path, DAY);
    age_packs(&fixture, &repo_path, 2 * DAY);
    let mut times = 0;
    let mut needed_oids = |_: &[RepoPath]| {
        times += 1;
        if times == 2 {
            // The second call is made under the lock. The changes of earlier jobs are on disk then.
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
    // A state that is served but not applied counts too.
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
fn old_leftovers_of_packs_are_removed() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    push_each(&fixture, &repo_path, &author, &["one".to_owned()]);
    let complete = files(&fixture.layout.pool(&repo_path).join("pack"));
    for name in ["tmp_pack_x", "pack-0.pack", "pack-1.idx", "pack-2.rev"] {
        fs::write(fixture.layout.pool(&repo_path).join("pack").join(name), "x").expect("write a file");
    }
    fs::remove_file(fixture.layout.pool(&repo_path).join("pack/pack-1.idx")).expect("remove a file");
    prune(&fixture, &repo_path, DAY);
    assert_eq!(
        files(&fixture.layout.pool(&repo_path).join("pack")).len(),
        complete.len() + 3,
        "a job may be moving them"
    );
    age_packs(&fixture, &repo_path, DAY);
    prune(&fixture, &repo_path, DAY);
    let left = fixture.layout.pool(&repo_path).join("pack/pack-0.pack");
    assert!(left.exists(), "a pack without an index may be all that is left of a repository");
    fs::remove_file(left).expect("remove a file");
    assert_eq!(files(&fixture.layout.pool(&repo_path).join("pack")), complete);
}

#[test]
fn prune_is_due_after_a_change_and_an_interval() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, repo_path, author) = (GitFixture::open(folder.path()), announced(1), AuthorRepo::new());
    let maintainer = maintainer(&fixture);
    let due = |pause: Duration, grace: Duration| {
        maintainer.is_prune_due(&repo_path, maintainer.last_changed(std::slice::from_ref(&repo_path)), pause, grace)
    };
    assert!(!due(Duration::ZERO, DAY), "there is no pool");
    let (_, new) = replace_main(&fixture, &repo_path, &author);
    assert!(due(Duration::ZERO, DAY) && !due(DAY, DAY));
    // There was no prune since the change.
    prune(&fixture, &repo_path, DAY);
    let last_prune = modified(&fixture.layout.pool(&repo_path).join("info/looked"));
    let set_last_prune = |ago: Duration| {
        let file = fs::File::options()
            .write(true)
            .open(fixture.layout.pool(&repo_path).join("info/looked"))
            .expect("open a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(1) - ago).expect("set a time");
    };
    assert!(last_prune <= SystemTime::now() && !due(DAY, DAY));
    set_last_prune(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY), "nothing has changed since");
    age_packs(&fixture, &repo_path, 2 * DAY);
    assert!(due(Duration::ZERO, DAY), "the cruft pack is older than the grace period");
    prune(&fixture, &repo_path, DAY);
    set_last_prune(Duration::from_secs(1));
    assert!(!due(Duration::ZERO, DAY));
    let next = author.commit("next");
    push(&fixture, &repo_path, &author, &[&next, &format!("^{new}")]);
    set_last_prune(Duration::from_secs(60));
    assert!(due(Duration::from_secs(30), DAY) && !due(DAY, DAY));
}

/// The pool of a deleted repository keeps what its readers need, and nothing else. The last reader takes it over.
#[test]
fn pool_of_a_deleted_repository_is_pruned_to_what_its_readers_need() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, author) = (GitFixture::open(folder.path()), AuthorRepo::new());
    let (deleted, one, other) = (announced(1), announced(2), announced(3));
    let old = push_each(&fixture, &deleted, &author, &["one".to_owned(), "two".to_owned()]);
    let with_alternate = || Alignment { alternates: vec![deleted.clone()], ..Alignment::default() };
    for reader in [&one, &other] {
        point_main_to(&fixture, reader, with_alternate(), &old);
    }
    let new = author.commit("three");
    push(&fixture, &deleted, &author, &[&new]);
    fixture.run_twice(&deleted, GitOperation::Delete);
    let maintainer = maintainer(&fixture);
    assert!(!maintainer.release_orphaned_pool(&deleted).expect("release a pool"), "two repositories read it");
    for _ in 0..2 {
        prune(&fixture, &deleted, Duration::ZERO);
    }
    let left = objects(&fixture, &deleted);
    assert!(left.contains_key(&old) && !left.contains_key(&new), "{left:?}");
    fixture.check_repo(&one);
    fixture.check_repo(&other);
    fixture.run_twice(&one, GitOperation::Delete);
    assert!(!fixture.layout.repo_dir(&deleted).exists());
    fixture.layout.empty_trash().expect("empty the trash");
    fixture.check_repo(&other);
    assert!(objects(&fixture, &other).contains_key(&old));
}

/// If the disk is full, the pool of a deleted repository is removed although others read it, and these are degraded.
#[test]
fn pool_of_a_deleted_repository_can_be_removed() {
    let folder = TempDir::new().expect("create a folder");
    let (fixture, author) = (GitFixture::open(folder.path()), AuthorRepo::new());
    let (deleted, one, other) = (announced(1), announced(2), announced(3));
    let commit = push_each(&fixture, &deleted, &author, &["one".to_owned()]);
    for reader in [&one, &other] {
        let alternates = vec![deleted.clone()];
        point_main_to(&fixture, reader, Alignment { alternates, ..Alignment::default() }, &commit);
    }
    let maintainer = maintainer(&fixture);
    assert_eq!(maintainer.remove_orphaned_pool(&deleted).expect("remove a pool"), [], "it is not deleted");
    fixture.run_twice(&deleted, GitOperation::Delete);
    let mut degraded = maintainer.remove_orphaned_pool(&deleted).expect("remove a pool");
    degraded.sort();
    assert_eq!(degraded, [one.clone(), other.clone()]);
    assert!(!fixture.layout.repo_dir(&deleted).exists());
    let state = CandidateState { is_served: true, ..with_head(1, &[("refs/heads/main", &commit)]) };
    let aligned = fixture.align(&one, follow_state(&[], state.clone()));
    assert_eq!((aligned.chosen, aligned.lost), (None, Some(vec![event(1)])));
    // Objects that arrive again complete it.
    let received_pack = author.received_pack(&fixture, &[&commit]);
    let aligned = fixture.align(&one, follow_state(&[received_pack], state));
    assert_eq!((aligned.chosen, aligned.lost), (Some(event(1)), None));
    assert!(!fixture.is_degraded(&one) && fixture.is_degraded(&other));
    fixture.check_repo(&one);
}

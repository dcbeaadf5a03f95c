//! Repositories that read each other's pools, and copies of objects when a pool is no longer readable.

use std::fs;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::admission::git_job::{Alignment, AlignmentResult, GitJobOutcome, GitOperation, ReceivedPack};
use grasp_core::repo::RepoPath;
use tempfile::TempDir;

use crate::git_folder::{
    AuthorRepo, GitFixture, announced, candidate, event, follow_state, git, pull_request, submission, with_head,
};

/// Creates a repository with a commit and a tag of it.
fn start() -> (TempDir, GitFixture, AuthorRepo, [String; 2]) {
    let folder = TempDir::new().expect("create a folder");
    let fixture = GitFixture::open(folder.path());
    let author = AuthorRepo::new();
    let one = author.commit("one");
    let tag = author.tag("v1", &one);
    let received_pack = author.received_pack(&fixture, &[&one, &tag]);
    fixture.align(
        &announced(1),
        follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)])),
    );
    (folder, fixture, author, [one, tag])
}

fn with_alternates(alternates: &[RepoPath], alignment: Alignment) -> Alignment {
    Alignment { alternates: alternates.to_vec(), ..alignment }
}

/// Returns the number of objects in each pack of a repository's own pool.
fn pack_sizes(fixture: &GitFixture, repo_path: &RepoPath) -> Vec<usize> {
    let entries = fs::read_dir(fixture.layout.pool(repo_path).join("pack")).expect("list a folder");
    let indexes = entries
        .map(|entry| entry.expect("read an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "idx"));
    indexes
        .map(|index| {
            git(index.parent().expect("a parent folder"), &["verify-pack", "--verbose", index.to_str().expect("UTF-8")])
        })
        .map(|output| output.lines().filter(|line| line.split(' ').next().is_some_and(|oid| oid.len() == 40)).count())
        .collect()
}

#[test]
fn objects_are_copied_only_when_a_pool_is_no_longer_readable() {
    let (_folder, fixture, author, [one, tag]) = start();
    let (alternate, follower) = (announced(1), announced(2));
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    let aligned = fixture
        .align(&follower, with_alternates(&[alternate.clone(), follower.clone()], follow_state(&[], state.clone())));
    assert_eq!(aligned, AlignmentResult { chosen: Some(event(1)), ..AlignmentResult::default() });
    assert_eq!(pack_sizes(&fixture, &follower).len(), 0, "nothing is copied");
    fixture.check_repo(&follower);
    // More alternates: a repository of submissions, and one that does not exist.
    let other = submission(3);
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two]);
    fixture.align(
        &other,
        Alignment {
            pull_requests: vec![pull_request(7, &two, &[])],
            ..follow_state(&[received_pack], candidate(9, &[]))
        },
    );
    let alternates = [other.clone(), alternate.clone(), announced(200)];
    let newer = with_head(2, &[("refs/heads/main", &two), ("refs/tags/v1", &tag)]);
    assert_eq!(
        fixture.align(&follower, with_alternates(&alternates, follow_state(&[], newer.clone()))).chosen,
        Some(event(2))
    );
    assert_eq!(pack_sizes(&fixture, &follower).len(), 0);
    // Fewer alternates: objects in the pool that stays readable are not copied, the others are.
    assert_eq!(
        fixture.align(&follower, with_alternates(from_ref(&other), follow_state(&[], newer.clone()))).chosen,
        Some(event(2))
    );
    assert_eq!(pack_sizes(&fixture, &follower).len(), 1);
    fs::remove_dir_all(fixture.layout.repo_dir(&alternate)).expect("remove a folder");
    fixture.check_repo(&follower);
    assert_eq!(fixture.align(&follower, follow_state(&[], newer)).chosen, Some(event(2)));
    fs::remove_dir_all(fixture.layout.repo_dir(&other)).expect("remove a folder");
    fixture.check_repo(&follower);
    assert_eq!(pack_sizes(&fixture, &follower).len(), 2);
    let copied = fs::read(fixture.layout.repo_dir(&follower).join("objects/info/alternates")).expect("read a file");
    assert_eq!(copied, b"../pool\n");
}

/// The limit follows a setting that can change while the server runs.
#[test]
fn copies_use_the_limit_of_the_moment() {
    let (_folder, mut fixture, _author, [one, tag]) = start();
    let limit = Arc::new(AtomicU64::new(1));
    let current = limit.clone();
    fixture.runner = fixture.runner.with_max_copy_bytes(Arc::new(move || current.load(Ordering::Relaxed)));
    let (alternate, follower) = (announced(1), announced(2));
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    fixture.align(&follower, with_alternates(from_ref(&alternate), follow_state(&[], state.clone())));
    let alone = GitOperation::Align(follow_state(&[], state.clone()));
    let outcome = fixture.run_twice(&follower, alone).outcome;
    assert!(matches!(outcome, GitJobOutcome::Failed(_)), "{outcome:?}");
    limit.store(1 << 20, Ordering::Relaxed);
    assert_eq!(fixture.align(&follower, follow_state(&[], state)).chosen, Some(event(1)));
    fixture.check_repo(&follower);
}

#[test]
fn alternates_of_an_alternate_are_not_readable() {
    let (_folder, fixture, author, [one, _]) = start();
    let (alternate, reader, follower) = (announced(1), announced(2), announced(3));
    let main = with_head(1, &[("refs/heads/main", &one)]);
    fixture.align(&reader, with_alternates(&[alternate], follow_state(&[], main.clone())));
    assert!(fixture.can_read(&reader, &one));
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two, &format!("^{one}")]);
    fixture.align(
        &reader,
        with_alternates(&[announced(1)], follow_state(&[received_pack], with_head(2, &[("refs/heads/main", &two)]))),
    );
    fixture.check_repo(&reader);
    // The follower has a commit of its own, so that it has a folder.
    let tree = author.git(&["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let own = author.git(&["commit-tree", &tree, "-m", "own"]);
    let received_pack = author.received_pack(&fixture, &[&own]);
    let alignment = Alignment {
        candidates: vec![main, with_head(3, &[("refs/heads/own", &own)])],
        ..follow_state(&[received_pack], candidate(0, &[]))
    };
    assert_eq!(fixture.align(&follower, with_alternates(from_ref(&reader), alignment)).chosen, Some(event(3)));
    assert!(fixture.can_read(&follower, &two));
    assert!(!fixture.can_read(&follower, &one), "the object is only in the alternate of the alternate");
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    assert_eq!(
        fixture.align(&follower, with_alternates(&[reader], follow_state(&[], newer))).chosen,
        None,
        "the parent commit is not readable"
    );
}

#[test]
fn deleted_repository_leaves_its_readers_complete() {
    let (_folder, fixture, author, [one, tag]) = start();
    let (alternate, reader, unrelated) = (announced(1), announced(2), submission(1));
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    fixture.align(&reader, with_alternates(from_ref(&alternate), follow_state(&[], state)));
    let own = author.received_pack(&fixture, &[&one]);
    fixture.align(
        &unrelated,
        Alignment { pull_requests: vec![pull_request(4, &one, &[])], ..follow_state(&[own], candidate(1, &[])) },
    );
    let readers = vec![
        (reader.clone(), vec![alternate.clone(), unrelated.clone()]),
        (unrelated.clone(), vec![]),
        (announced(9), vec![]),
    ];
    let result = fixture.run_twice(&alternate, GitOperation::Delete { readers });
    assert_eq!(result.outcome, GitJobOutcome::Deleted);
    assert_eq!(result.refs, [(alternate.clone(), grasp_git::refs::Refs::default())]);
    assert!(
        !fixture.layout.repo_dir(&alternate).parent().expect("read an entry").exists(),
        "the owner has no other repository"
    );
    fixture.layout.empty_trash().expect("empty the trash");
    fixture.check_repo(&reader);
    fixture.check_repo(&unrelated);
    assert_eq!(fixture.refs(&reader).len(), 2);
    let result = fixture.run_twice(&announced(77), GitOperation::Delete { readers: vec![] });
    assert_eq!((result.outcome, result.refs), (GitJobOutcome::Deleted, vec![]));
    // All repositories are deleted in the end.
    assert_eq!(fixture.run_twice(&reader, GitOperation::Delete { readers: vec![] }).outcome, GitJobOutcome::Deleted);
    assert_eq!(fixture.run_twice(&unrelated, GitOperation::Delete { readers: vec![] }).outcome, GitJobOutcome::Deleted);
    assert_eq!(fixture.all_files().len(), 3, "only the three top folders are left");
}

#[test]
fn other_repository_of_the_owner_is_kept() {
    let (_folder, fixture, author, [one, _]) = start();
    let other = RepoPath::Announced(grasp_core::repo::RepoId {
        identifier: grasp_core::repo::Identifier::new("other").expect("valid"),
        ..announced(1).repo().clone()
    });
    let received_pack = author.received_pack(&fixture, &[&one]);
    fixture.align(&other, follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &one)])));
    assert_eq!(
        fixture.run_twice(&announced(1), GitOperation::Delete { readers: vec![] }).outcome,
        GitJobOutcome::Deleted
    );
    fixture.check_repo(&other);
}

#[test]
fn pull_requests_are_copied_from_submissions() {
    let (_folder, fixture, author, [one, _]) = start();
    let (target, empty, complete, incomplete) = (announced(1), announced(2), submission(3), submission(4));
    let two = author.commit("two");
    // The incomplete repository has the commit, but not its parent.
    let received_pack = author.received_pack(&fixture, &[&two, &format!("^{one}")]);
    fixture.align(&incomplete, follow_state(&[received_pack], candidate(1, &[])));
    let received_pack = author.received_pack(&fixture, &[&two]);
    let alignment = Alignment {
        pull_requests: vec![pull_request(5, &two, &[])],
        ..follow_state(&[received_pack], candidate(1, &[]))
    };
    assert_eq!(fixture.align(&complete, alignment).pull_requests, [event(5)]);
    let alignment = Alignment {
        pull_requests: vec![pull_request(5, &two, &[announced(99), incomplete.clone(), complete.clone()])],
        ..Alignment::default()
    };
    let result = fixture.run_twice(&target, GitOperation::Align(alignment.clone()));
    assert_eq!(
        result.outcome,
        GitJobOutcome::Aligned(AlignmentResult { pull_requests: vec![event(5)], ..AlignmentResult::default() })
    );
    assert_eq!(pack_sizes(&fixture, &target).len(), 2);
    assert_eq!(fixture.align(&empty, alignment).pull_requests, [event(5)]);
    let only_incomplete =
        Alignment { pull_requests: vec![pull_request(5, &two, &[incomplete])], ..Alignment::default() };
    assert_eq!(
        fixture.align(&announced(8), only_incomplete),
        AlignmentResult { is_empty: true, ..AlignmentResult::default() }
    );
    fixture.run_twice(&complete, GitOperation::Delete { readers: vec![] });
    fixture.check_repo(&target);
    fixture.check_repo(&empty);
    assert_eq!(fixture.refs(&empty), [format!("{two} refs/nostr/{}", event(5))]);
    // Only missing objects were copied: a commit, two trees and a blob, in addition to the same kinds and a tag.
    let all =
        git(&fixture.layout.repo_dir(&target), &["cat-file", "--batch-all-objects", "--unordered", "--batch-check"]);
    assert_eq!(all.lines().count(), 9, "{all}");
    let stored: usize = pack_sizes(&fixture, &target).iter().sum();
    assert_eq!(stored, 9);
}

#[test]
fn empty_tree_is_copied_although_no_pack_has_it() {
    let (_folder, fixture, author, _) = start();
    let tree = author.git(&["hash-object", "-t", "tree", "/dev/null"]);
    let own = author.git(&["commit-tree", &tree, "-m", "own"]);
    let (alternate, reader) = (announced(5), announced(6));
    let received_pack = ReceivedPack::Incoming(fixture.layout.next_number());
    author.pack_objects(&fixture.layout.received_pack(&received_pack), &[&own]);
    let main = with_head(1, &[("refs/heads/main", &own)]);
    fixture.align(&alternate, follow_state(&[received_pack], main.clone()));
    fixture.align(&reader, with_alternates(from_ref(&alternate), follow_state(&[], main.clone())));
    assert_eq!(fixture.align(&reader, follow_state(&[], main)).chosen, Some(event(1)));
    fs::remove_dir_all(fixture.layout.repo_dir(&alternate)).expect("remove a folder");
    fixture.check_repo(&reader);
}

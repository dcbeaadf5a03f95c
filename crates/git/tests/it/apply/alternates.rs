//! Repositories that read each other's pools, and what becomes of a pool when its repository is deleted.

use std::collections::BTreeMap;
use std::fs;
use std::slice::from_ref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJobOutcome, GitOperation, ReceivedPack,
};
use grasp_core::limits::MAX_RETAINED_POOLS;
use grasp_core::nostr::PublicKey;
use grasp_core::repo::{RepoId, RepoPath};
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

/// Returns the repositories that a repository reads, as their alternates name them.
fn alternates(fixture: &GitFixture, repo_path: &RepoPath) -> Vec<String> {
    let file = fixture.layout.repo_dir(repo_path).join("objects/info/alternates");
    fs::read_to_string(file).expect("read a file").lines().map(str::to_owned).collect()
}

/// Creates repositories 1 and 2, of which 2 reads 1 and has no objects of its own.
fn start_with_reader() -> (TempDir, GitFixture, AuthorRepo, CandidateState) {
    let (folder, fixture, author, [one, tag]) = start();
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    let alignment = with_alternates(&[announced(1), announced(2)], follow_state(&[], state.clone()));
    let aligned = fixture.align(&announced(2), alignment);
    assert_eq!(aligned, AlignmentResult { chosen: Some(event(1)), ..AlignmentResult::default() });
    (folder, fixture, author, state)
}

#[test]
fn nothing_is_copied_when_a_maintainer_is_removed() {
    let (_folder, fixture, author, state) = start_with_reader();
    let (former, other, follower) = (announced(1), announced(3), announced(2));
    assert_eq!(pack_sizes(&fixture, &follower).len(), 0, "nothing is copied");
    fixture.check_repo(&follower);
    // More alternates: another repository, and one that does not exist.
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two]);
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    fixture.align(&other, follow_state(&[received_pack], newer.clone()));
    let all = [other.clone(), former.clone(), announced(200)];
    assert_eq!(fixture.align(&follower, with_alternates(&all, follow_state(&[], newer))).chosen, Some(event(2)));
    // Fewer alternates: the repository goes on reading what it has read.
    let before = alternates(&fixture, &follower);
    assert_eq!(before.len(), 3);
    assert_eq!(fixture.align(&follower, follow_state(&[], state)).chosen, Some(event(1)));
    assert_eq!(alternates(&fixture, &follower), before);
    assert_eq!(pack_sizes(&fixture, &follower).len(), 0, "nothing is copied");
    fixture.check_repo(&follower);
}

/// Pools of former maintainers that no ref needs are dropped if there are too many. A repository whose refs need more
/// is degraded, and nothing is copied.
#[test]
fn pools_of_former_maintainers_are_limited() {
    let folder = TempDir::new().expect("create a folder");
    let fixture = GitFixture::open(folder.path());
    let reader = announced(0);
    let count = MAX_RETAINED_POOLS + 2;
    let owner = |nth: usize| {
        let mut key = [1; 32];
        key[..2].copy_from_slice(&u16::try_from(nth).expect("a small number").to_be_bytes());
        RepoPath::Announced(RepoId { owner: PublicKey(key), ..announced(0).repo().clone() })
    };
    // All pools are the same file with another commit, to save time.
    let author = AuthorRepo::new();
    let mut refs = Vec::new();
    for nth in 0..count {
        let commit = author.git(&["commit-tree", "-m", &nth.to_string(), "4b825dc642cb6eb9a060e54bf8d69288fbee4904"]);
        let pack = fixture.layout.pool(&owner(nth));
        author.pack_objects(&pack, &[&commit]);
        fs::write(fixture.layout.repo_dir(&owner(nth)).join("HEAD"), "ref: refs/heads/main\n").expect("write a file");
        refs.push((format!("refs/heads/b{nth}"), commit));
    }
    let all: Vec<RepoPath> = (0..count).map(owner).collect();
    // The last two are not needed.
    let state = |needed: usize| {
        let refs: Vec<(&str, &str)> = refs[..needed].iter().map(|(name, oid)| (name.as_str(), oid.as_str())).collect();
        with_head(1, &refs)
    };
    let few = state(MAX_RETAINED_POOLS);
    fixture.align(&reader, with_alternates(&all, follow_state(&[], few.clone())));
    assert_eq!(alternates(&fixture, &reader).len(), count + 1);
    // All maintainers are removed.
    assert_eq!(fixture.align(&reader, follow_state(&[], few)).chosen, Some(event(1)));
    assert_eq!(alternates(&fixture, &reader).len(), MAX_RETAINED_POOLS + 1);
    assert!(!fixture.is_degraded(&reader));
    // All pools are needed.
    let served = CandidateState { is_served: true, ..state(count) };
    let alignment = with_alternates(&all, follow_state(&[], served.clone()));
    assert_eq!(fixture.align(&reader, alignment).chosen, Some(event(1)));
    let aligned = fixture.align(&reader, follow_state(&[], served));
    assert_eq!((aligned.chosen, aligned.lost), (None, Some(vec![event(1)])));
    assert!(fixture.is_degraded(&reader));
    assert_eq!(fixture.refs_on_disk(&reader), count, "the refs stay");
    assert_eq!(pack_sizes(&fixture, &reader).len(), 0, "nothing is copied");
}

/// The limit follows a setting that can change while the server runs.
#[test]
fn copies_use_the_limit_of_the_moment() {
    let (_folder, mut fixture, author, [one, _]) = start();
    let limit = Arc::new(AtomicU64::new(1));
    let current = limit.clone();
    fixture.runner = fixture.runner.with_max_copy_bytes(Arc::new(move || current.load(Ordering::Relaxed)));
    let (source, target) = (submission(3), announced(1));
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two, &one]);
    let pull_requests = vec![pull_request(5, &two, &[])];
    fixture.align(&source, Alignment { pull_requests, ..follow_state(&[received_pack], candidate(1, &[])) });
    let copy = Alignment { pull_requests: vec![pull_request(5, &two, &[source])], ..Alignment::default() };
    let outcome = fixture.run_twice(&target, GitOperation::Align(copy.clone()));
    assert!(matches!(outcome, GitJobOutcome::Failed(_)), "{outcome:?}");
    limit.store(1 << 20, Ordering::Relaxed);
    assert_eq!(fixture.align(&target, copy).pull_requests, [event(5)]);
    fixture.check_repo(&target);
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
fn packs_of_a_deleted_repository_go_to_its_only_reader() {
    let (_folder, fixture, author, _) = start_with_reader();
    let (deleted, reader, unrelated) = (announced(1), announced(2), submission(1));
    let own = author.commit("own");
    let received_pack = author.received_pack(&fixture, &[&own]);
    let pull_requests = vec![pull_request(4, &own, &[])];
    fixture.align(&unrelated, Alignment { pull_requests, ..follow_state(&[received_pack], candidate(1, &[])) });
    let before = fixture.layout.charged_bytes(&deleted);
    let result = fixture.run_twice(&deleted, GitOperation::Delete);
    assert_eq!(result, GitJobOutcome::Deleted);
    let owner = fixture.layout.repo_dir(&deleted).parent().expect("a parent folder").to_owned();
    assert!(!owner.exists(), "the owner has no other repository");
    fixture.layout.empty_trash().expect("empty the trash");
    fixture.check_repo(&reader);
    fixture.check_repo(&unrelated);
    assert_eq!(fixture.refs(&reader).len(), 2);
    assert_eq!(alternates(&fixture, &reader), ["../pool"]);
    assert_eq!(fixture.layout.charged_bytes(&reader), before, "the reader is charged for the packs");
    let result = fixture.run_twice(&announced(77), GitOperation::Delete);
    assert_eq!(result, GitJobOutcome::Deleted);
    // All repositories are deleted in the end.
    assert_eq!(fixture.run_twice(&reader, GitOperation::Delete), GitJobOutcome::Deleted);
    assert_eq!(fixture.run_twice(&unrelated, GitOperation::Delete), GitJobOutcome::Deleted);
    assert_eq!(fixture.all_files().len(), 3, "only the three top folders are left");
}

/// The pool of a deleted repository is kept for several readers, and removed with the last of them.
#[test]
fn pool_of_a_deleted_repository_is_kept_for_its_readers() {
    let (_folder, fixture, author, state) = start_with_reader();
    let (deleted, one, other) = (announced(1), announced(2), announced(3));
    fixture.align(&other, with_alternates(from_ref(&deleted), follow_state(&[], state.clone())));
    let bytes = fixture.layout.charged_bytes(&deleted);
    assert_eq!(fixture.layout.charged_bytes(&one), 0, "its owner is charged for the pool");
    assert_eq!(fixture.run_twice(&deleted, GitOperation::Delete), GitJobOutcome::Deleted);
    let folder = fixture.layout.repo_dir(&deleted);
    assert!(!folder.join("HEAD").exists() && !folder.join("packed-refs").exists());
    assert_eq!(fixture.layout.orphaned_pools(&BTreeMap::new()).expect("list pools"), from_ref(&deleted));
    for reader in [&one, &other] {
        fixture.check_repo(reader);
        assert_eq!(fixture.layout.charged_bytes(reader), bytes);
        // The next push and the next alignment keep it.
        assert_eq!(fixture.align(reader, follow_state(&[], state.clone())).chosen, Some(event(1)));
    }
    // The deleted repository is announced again: it has none of its old refs.
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two]);
    fixture.align(&deleted, follow_state(&[received_pack], with_head(2, &[("refs/heads/new", &two)])));
    assert_eq!(fixture.refs(&deleted), [format!("{two} refs/heads/new")]);
    fixture.check_repo(&deleted);
    assert_eq!(fixture.run_twice(&deleted, GitOperation::Delete), GitJobOutcome::Deleted);
    // When one reader is left, it gets the packs.
    assert_eq!(fixture.run_twice(&one, GitOperation::Delete), GitJobOutcome::Deleted);
    assert!(!folder.exists());
    fixture.layout.empty_trash().expect("empty the trash");
    fixture.check_repo(&other);
    assert_eq!(alternates(&fixture, &other), ["../pool"]);
}

#[test]
fn other_repository_of_the_owner_is_kept() {
    let (_folder, fixture, author, [one, _]) = start();
    let other = RepoPath::Announced(RepoId {
        identifier: grasp_core::repo::Identifier::new("other").expect("valid"),
        ..announced(1).repo().clone()
    });
    let received_pack = author.received_pack(&fixture, &[&one]);
    fixture.align(&other, follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &one)])));
    assert_eq!(fixture.run_twice(&announced(1), GitOperation::Delete), GitJobOutcome::Deleted);
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
    let aligned = fixture.align(&target, alignment.clone());
    assert_eq!(aligned, AlignmentResult { pull_requests: vec![event(5)], ..AlignmentResult::default() });
    assert_eq!(pack_sizes(&fixture, &target).len(), 2);
    assert_eq!(fixture.align(&empty, alignment).pull_requests, [event(5)]);
    let only_incomplete =
        Alignment { pull_requests: vec![pull_request(5, &two, &[incomplete])], ..Alignment::default() };
    assert_eq!(fixture.align(&announced(8), only_incomplete), AlignmentResult::default());
    fixture.run_twice(&complete, GitOperation::Delete);
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
    let (source, target) = (submission(5), announced(6));
    let received_pack = ReceivedPack::Incoming(fixture.layout.next_number());
    author.pack_objects(&fixture.layout.received_pack(&received_pack), &[&own]);
    let submitted = Alignment { pull_requests: vec![pull_request(5, &own, &[])], ..Alignment::default() };
    fixture.align(&source, Alignment { adopt: vec![received_pack], ..submitted });
    let copied = Alignment { pull_requests: vec![pull_request(5, &own, &[source])], ..Alignment::default() };
    assert_eq!(fixture.align(&target, copied).pull_requests, [event(5)]);
    fixture.check_repo(&target);
}

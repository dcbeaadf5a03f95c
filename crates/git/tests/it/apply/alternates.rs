//! Sites read each other's pools, lose them, and copy what they need.

use std::fs;
use std::slice::from_ref;

use grasp_core::admission::git_job::{Alignment, AlignmentResult, GitJobOutcome, GitOperation, ReceivedPack};
use grasp_core::repo::RepoPath;
use tempfile::TempDir;

use crate::git_folder::{Author, World, announced, candidate, event, follow, git, pull, submitted, with_head};

/// A world in which the first site has a commit and a tag of it, and their author.
fn start() -> (TempDir, World, Author, [String; 2]) {
    let folder = TempDir::new().expect("a folder");
    let world = World::open(folder.path());
    let author = Author::new();
    let one = author.commit("one");
    let tag = author.tag("v1", &one);
    let received_pack = author.incoming(&world, &[&one, &tag]);
    world.align(
        &announced(1),
        follow(&[received_pack], with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)])),
    );
    (folder, world, author, [one, tag])
}

fn lent(alternates: &[RepoPath], align: Alignment) -> Alignment {
    Alignment { alternates: alternates.to_vec(), ..align }
}

/// How many objects each pack of a site's own pool has.
fn counts(world: &World, repo_path: &RepoPath) -> Vec<usize> {
    let entries = fs::read_dir(world.layout.pool(repo_path).join("pack")).expect("a folder");
    let indexes = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|part| part == "idx"));
    indexes
        .map(|index| {
            git(index.parent().expect("a folder"), &["verify-pack", "--verbose", index.to_str().expect("text")])
        })
        .map(|said| said.lines().filter(|line| line.split(' ').next().is_some_and(|oid| oid.len() == 40)).count())
        .collect()
}

#[test]
fn a_follower_reads_copies_at_the_end_and_survives_its_lender() {
    let (_folder, world, author, [one, tag]) = start();
    let (lender, follower) = (announced(1), announced(2));
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    let aligned = world.align(&follower, lent(&[lender.clone(), follower.clone()], follow(&[], state.clone())));
    assert_eq!(aligned, AlignmentResult { chosen: Some(event(1)), ..AlignmentResult::default() });
    assert_eq!(counts(&world, &follower).len(), 0, "one small file instead of a copy");
    world.check(&follower);
    // Growth: a third site, which lies among the submissions, lends too, and one that does not exist.
    let other = submitted(3);
    let two = author.commit("two");
    let received_pack = author.incoming(&world, &[&two]);
    world.align(
        &other,
        Alignment { pull_requests: vec![pull(7, &two, &[])], ..follow(&[received_pack], candidate(9, &[])) },
    );
    let alternates = [other.clone(), lender.clone(), announced(200)];
    let newer = with_head(2, &[("refs/heads/main", &two), ("refs/tags/v1", &tag)]);
    assert_eq!(world.align(&follower, lent(&alternates, follow(&[], newer.clone()))).chosen, Some(event(2)));
    assert_eq!(counts(&world, &follower).len(), 0);
    // Shrinkage: what the other lends stays readable there, the rest is copied.
    assert_eq!(world.align(&follower, lent(from_ref(&other), follow(&[], newer.clone()))).chosen, Some(event(2)));
    assert_eq!(counts(&world, &follower).len(), 1);
    fs::remove_dir_all(world.layout.repo_dir(&lender)).expect("goes");
    world.check(&follower);
    assert_eq!(world.align(&follower, follow(&[], newer)).chosen, Some(event(2)));
    fs::remove_dir_all(world.layout.repo_dir(&other)).expect("goes");
    world.check(&follower);
    assert_eq!(counts(&world, &follower).len(), 2);
    let copied = fs::read(world.layout.repo_dir(&follower).join("objects/info/alternates")).expect("a file");
    assert_eq!(copied, b"../pool\n");
}

#[test]
fn what_is_lent_is_not_lent_on() {
    let (_folder, world, author, [one, _]) = start();
    let (lender, borrower, follower) = (announced(1), announced(2), announced(3));
    let main = with_head(1, &[("refs/heads/main", &one)]);
    world.align(&borrower, lent(&[lender], follow(&[], main.clone())));
    assert!(world.reads(&borrower, &one));
    let two = author.commit("two");
    let received_pack = author.incoming(&world, &[&two, &format!("^{one}")]);
    world.align(&borrower, lent(&[announced(1)], follow(&[received_pack], with_head(2, &[("refs/heads/main", &two)]))));
    world.check(&borrower);
    // The follower has something of its own, so that it has a folder.
    let tree = author.git(&["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let own = author.git(&["commit-tree", &tree, "-m", "own"]);
    let received_pack = author.incoming(&world, &[&own]);
    let order = Alignment {
        candidates: vec![main, with_head(3, &[("refs/heads/own", &own)])],
        ..follow(&[received_pack], candidate(0, &[]))
    };
    assert_eq!(world.align(&follower, lent(from_ref(&borrower), order)).chosen, Some(event(3)));
    assert!(world.reads(&follower, &two));
    assert!(!world.reads(&follower, &one), "the borrower cannot give away what it borrows");
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    assert_eq!(world.align(&follower, lent(&[borrower], follow(&[], newer))).chosen, None, "its parent is not here");
}

#[test]
fn a_retired_site_leaves_its_readers_whole() {
    let (_folder, world, author, [one, tag]) = start();
    let (lender, reader, stranger) = (announced(1), announced(2), submitted(1));
    let state = with_head(1, &[("refs/heads/main", &one), ("refs/tags/v1", &tag)]);
    world.align(&reader, lent(from_ref(&lender), follow(&[], state)));
    let own = author.incoming(&world, &[&one]);
    world.align(&stranger, Alignment { pull_requests: vec![pull(4, &one, &[])], ..follow(&[own], candidate(1, &[])) });
    let readers = vec![
        (reader.clone(), vec![lender.clone(), stranger.clone()]),
        (stranger.clone(), vec![]),
        (announced(9), vec![]),
    ];
    let carried = world.work(&lender, GitOperation::Delete { readers });
    assert_eq!(carried.outcome, GitJobOutcome::Deleted);
    assert_eq!(carried.refs, [(lender.clone(), grasp_git::refs::Refs::default())]);
    assert!(!world.layout.repo_dir(&lender).parent().expect("an owner").exists(), "its owner has nothing else");
    world.layout.sweep().expect("sweeps");
    world.check(&reader);
    world.check(&stranger);
    assert_eq!(world.refs(&reader).len(), 2);
    let carried = world.work(&announced(77), GitOperation::Delete { readers: vec![] });
    assert_eq!((carried.outcome, carried.refs), (GitJobOutcome::Deleted, vec![]));
    // Everybody goes in the end.
    assert_eq!(world.work(&reader, GitOperation::Delete { readers: vec![] }).outcome, GitJobOutcome::Deleted);
    assert_eq!(world.work(&stranger, GitOperation::Delete { readers: vec![] }).outcome, GitJobOutcome::Deleted);
    assert_eq!(world.everything().len(), 3, "the empty rooms");
}

#[test]
fn an_owner_with_two_repositories_keeps_the_other() {
    let (_folder, world, author, [one, _]) = start();
    let other = RepoPath::Announced(grasp_core::repo::RepoId {
        identifier: grasp_core::repo::Identifier::new("other").expect("valid"),
        ..announced(1).repo().clone()
    });
    let received_pack = author.incoming(&world, &[&one]);
    world.align(&other, follow(&[received_pack], with_head(1, &[("refs/heads/main", &one)])));
    assert_eq!(world.work(&announced(1), GitOperation::Delete { readers: vec![] }).outcome, GitJobOutcome::Deleted);
    world.check(&other);
}

#[test]
fn pull_requests_are_copied_from_submissions() {
    let (_folder, world, author, [one, _]) = start();
    let (target, empty, offered, poor) = (announced(1), announced(2), submitted(3), submitted(4));
    let two = author.commit("two");
    // The poor one has the commit, but not its parent.
    let received_pack = author.incoming(&world, &[&two, &format!("^{one}")]);
    world.align(&poor, follow(&[received_pack], candidate(1, &[])));
    let received_pack = author.incoming(&world, &[&two]);
    let order = Alignment { pull_requests: vec![pull(5, &two, &[])], ..follow(&[received_pack], candidate(1, &[])) };
    assert_eq!(world.align(&offered, order).pull_requests, [event(5)]);
    let wish = Alignment {
        pull_requests: vec![pull(5, &two, &[announced(99), poor.clone(), offered.clone()])],
        ..Alignment::default()
    };
    let carried = world.work(&target, GitOperation::Align(wish.clone()));
    assert_eq!(
        carried.outcome,
        GitJobOutcome::Aligned(AlignmentResult { pull_requests: vec![event(5)], ..AlignmentResult::default() })
    );
    assert_eq!(counts(&world, &target).len(), 2);
    assert_eq!(world.align(&empty, wish).pull_requests, [event(5)]);
    let poor_wish = Alignment { pull_requests: vec![pull(5, &two, &[poor])], ..Alignment::default() };
    assert_eq!(world.align(&announced(8), poor_wish), AlignmentResult { is_empty: true, ..AlignmentResult::default() });
    world.work(&offered, GitOperation::Delete { readers: vec![] });
    world.check(&target);
    world.check(&empty);
    assert_eq!(world.refs(&empty), [format!("{two} refs/nostr/{}", event(5))]);
    // Only what was missing has been copied: the commit, two trees and a file, beside the same and a tag.
    let all =
        git(&world.layout.repo_dir(&target), &["cat-file", "--batch-all-objects", "--unordered", "--batch-check"]);
    assert_eq!(all.lines().count(), 9, "{all}");
    let stored: usize = counts(&world, &target).iter().sum();
    assert_eq!(stored, 9);
}

#[test]
fn the_empty_tree_is_copied_although_it_is_nowhere() {
    let (_folder, world, author, _) = start();
    let tree = author.git(&["hash-object", "-t", "tree", "/dev/null"]);
    let own = author.git(&["commit-tree", &tree, "-m", "own"]);
    let (lender, reader) = (announced(5), announced(6));
    let received_pack = ReceivedPack::Incoming(world.layout.number());
    author.pack_objects(&world.layout.received_pack(&received_pack), &[&own]);
    let main = with_head(1, &[("refs/heads/main", &own)]);
    world.align(&lender, follow(&[received_pack], main.clone()));
    world.align(&reader, lent(from_ref(&lender), follow(&[], main.clone())));
    assert_eq!(world.align(&reader, follow(&[], main)).chosen, Some(event(1)));
    fs::remove_dir_all(world.layout.repo_dir(&lender)).expect("goes");
    world.check(&reader);
}

//! Objects, refs and HEAD follow what is signed.

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJobOutcome, GitOperation, ReceivedPack, RefFallback,
};
use grasp_core::nostr::EventId;
use grasp_git::refs::Refs;
use tempfile::TempDir;

use crate::git_folder::{Author, World, announced, candidate, event, follow, git, pull, submitted, with_head};

fn start() -> (TempDir, World, Author) {
    let folder = TempDir::new().expect("a folder");
    let world = World::open(folder.path());
    (folder, world, Author::new())
}

fn chosen(number: u8) -> AlignmentResult {
    AlignmentResult { chosen: Some(event(number)), ..AlignmentResult::default() }
}

#[test]
fn a_push_becomes_refs_that_git_can_clone() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let order = follow(std::slice::from_ref(&received_pack), with_head(1, &[("refs/heads/main", &one)]));
    let carried = world.work(&repo_path, GitOperation::Align(order));
    assert_eq!(carried.outcome, GitJobOutcome::Aligned(chosen(1)));
    let (changed, refs) = &carried.refs[0];
    assert_eq!((changed, refs.head(), refs.head_oid()), (&repo_path, "refs/heads/main", Some(one.as_str())));
    assert!(!world.layout.received_pack(&received_pack).exists());
    world.check(&repo_path);
    // The next push is a thin one that was completed: it has only what is new.
    let two = author.commit("two");
    let received_pack = author.incoming(&world, &[&two, &format!("^{one}")]);
    let order = follow(&[received_pack], with_head(2, &[("refs/heads/main", &two), ("refs/heads/old", &one)]));
    assert_eq!(world.align(&repo_path, order), chosen(2));
    world.check(&repo_path);
    assert_eq!(world.refs(&repo_path), [format!("{two} refs/heads/main"), format!("{one} refs/heads/old")]);
    assert_eq!(std::fs::read_dir(world.layout.repo_dir(&repo_path).join("objects/pack")).expect("a folder").count(), 0);
}

#[test]
fn nothing_makes_no_folder() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let empty = AlignmentResult { is_empty: true, ..AlignmentResult::default() };
    let orders = [
        Alignment::default(),
        Alignment { adopt: vec![ReceivedPack::Incoming(77), ReceivedPack::Staged(77)], ..Alignment::default() },
        Alignment { fallback: RefFallback::Clear, drop_pull_requests: vec![event(1)], ..Alignment::default() },
        Alignment {
            alternates: vec![announced(2)],
            pull_requests: vec![pull(1, &one, &[submitted(3)])],
            ..Alignment::default()
        },
        follow(&[], with_head(1, &[("refs/heads/main", &one)])),
    ];
    for order in orders {
        assert_eq!(world.align(&repo_path, order), empty);
    }
    let aligned = world.align(&repo_path, follow(&[], candidate(1, &[])));
    assert_eq!(aligned, AlignmentResult { chosen: Some(event(1)), ..empty }, "a state without refs is complete");
    assert_eq!(std::fs::read_dir(world.layout.root().join("repos")).expect("a folder").count(), 0);
}

#[test]
fn the_best_complete_candidate_is_followed() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let two = author.commit("two");
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    let older = with_head(1, &[("refs/heads/main", &one)]);
    let order = Alignment { candidates: vec![newer.clone(), older.clone()], ..follow(&[received_pack], older.clone()) };
    assert_eq!(world.align(&repo_path, order.clone()), chosen(1));
    let received_pack = author.incoming(&world, &[&two, &format!("^{one}")]);
    assert_eq!(world.align(&repo_path, Alignment { adopt: vec![received_pack], ..order }), chosen(2));
    assert_eq!(world.refs(&repo_path), [format!("{two} refs/heads/main")]);
    // The older one again, as after a deletion of the newer.
    assert_eq!(world.align(&repo_path, follow(&[], older)), chosen(1));
    assert_eq!(world.refs(&repo_path), [format!("{one} refs/heads/main")]);
    world.check(&repo_path);
}

#[test]
fn tags_of_commits_tags_trees_and_files() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let tag = author.tag("v1", &one);
    let outer = author.tag("v1-signed", &tag);
    let blob = author.git(&["rev-parse", "HEAD:folder/file"]);
    let tree = author.git(&["rev-parse", "HEAD:folder"]);
    let file = author.tag("file", &blob);
    let received_pack = author.incoming(&world, &[&one, &tag, &outer, &file]);
    let refs = [
        ("refs/heads/main", one.as_str()),
        ("refs/tags/blob", &blob),
        ("refs/tags/file", &file),
        ("refs/tags/light", &one),
        ("refs/tags/tree", &tree),
        ("refs/tags/v1", &tag),
        ("refs/tags/v2", &outer),
    ];
    assert_eq!(world.align(&repo_path, follow(&[received_pack], with_head(1, &refs))), chosen(1));
    world.check(&repo_path);
    let expected = [
        format!("{one} refs/heads/main"),
        format!("{blob} refs/tags/blob"),
        format!("{file} refs/tags/file {blob}"),
        format!("{one} refs/tags/light"),
        format!("{tree} refs/tags/tree"),
        format!("{tag} refs/tags/v1 {one}"),
        format!("{outer} refs/tags/v2 {one}"),
    ];
    assert_eq!(world.refs(&repo_path), expected);
    // What the file says for git is what git finds out by itself.
    let read = std::fs::read_to_string(world.layout.repo_dir(&repo_path).join("packed-refs")).expect("refs");
    let copy = TempDir::new().expect("a folder");
    git(
        copy.path(),
        &["clone", "--quiet", "--mirror", world.layout.repo_dir(&repo_path).to_str().expect("text"), "copy"],
    );
    git(&copy.path().join("copy"), &["pack-refs", "--all"]);
    assert_eq!(std::fs::read_to_string(copy.path().join("copy/packed-refs")).expect("refs"), read);
    // Another name for a known tag needs no second look at it.
    let renamed = with_head(2, &[("refs/heads/main", &one), ("refs/tags/w", &outer)]);
    assert_eq!(world.align(&repo_path, follow(&[], renamed)), chosen(2));
    assert_eq!(world.refs(&repo_path)[1], format!("{outer} refs/tags/w {one}"));
    for oid in [&tag, &blob, &tree] {
        let branch = with_head(3, &[("refs/heads/main", oid)]);
        assert_eq!(world.align(&repo_path, follow(&[], branch)).chosen, None, "a branch is a commit");
    }
}

#[test]
fn head_alone_can_change() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let refs = [("refs/heads/main", one.as_str()), ("refs/heads/next", &one)];
    world.align(&repo_path, follow(&[received_pack], with_head(1, &refs)));
    let before =
        std::fs::metadata(world.layout.repo_dir(&repo_path).join("packed-refs")).and_then(|data| data.modified());
    let next = CandidateState { head: Some("refs/heads/next".to_owned()), ..candidate(2, &refs) };
    let carried = world.work(&repo_path, GitOperation::Align(follow(&[], next)));
    assert_eq!(carried.outcome, GitJobOutcome::Aligned(chosen(2)));
    assert_eq!(carried.refs[0].1.head(), "refs/heads/next");
    let after =
        std::fs::metadata(world.layout.repo_dir(&repo_path).join("packed-refs")).and_then(|data| data.modified());
    assert_eq!(before.expect("a time"), after.expect("a time"), "refs were not written again");
    for head in [None, Some("refs/heads/none"), Some("refs/tags/x"), Some("HEAD")] {
        let same = CandidateState { head: head.map(str::to_owned), ..candidate(3, &refs) };
        assert_eq!(world.work(&repo_path, GitOperation::Align(follow(&[], same))).refs, carried.refs);
    }
    assert_eq!(git(&world.layout.repo_dir(&repo_path), &["symbolic-ref", "HEAD"]), "refs/heads/next");
}

#[test]
fn without_a_complete_candidate_refs_stay_or_go() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let order = Alignment {
        pull_requests: vec![pull(9, &one, &[])],
        ..follow(&[received_pack], with_head(1, &[("refs/heads/a", &one)]))
    };
    assert_eq!(world.align(&repo_path, order).pull_requests, [event(9)]);
    let missing = with_head(2, &[("refs/heads/a", &"b".repeat(40))]);
    assert_eq!(world.align(&repo_path, follow(&[], missing.clone())), AlignmentResult::default());
    assert_eq!(world.refs(&repo_path).len(), 2);
    let clear = Alignment { fallback: RefFallback::Clear, ..follow(&[], missing) };
    assert_eq!(world.align(&repo_path, clear.clone()), AlignmentResult::default());
    assert_eq!(world.refs(&repo_path), [format!("{one} refs/nostr/{}", event(9))], "a pull request is not the state's");
    let carried =
        world.work(&repo_path, GitOperation::Align(Alignment { drop_pull_requests: vec![event(9)], ..clear }));
    assert_eq!(
        carried.outcome,
        GitJobOutcome::Aligned(AlignmentResult { is_empty: true, ..AlignmentResult::default() })
    );
    assert_eq!(carried.refs[0].1.iter().count(), 0);
    world.check(&repo_path);
}

#[test]
fn what_is_not_declared_goes_and_a_folder_becomes_a_file() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let first = [("refs/heads/a", one.as_str()), ("refs/heads/b/c", &one), ("refs/tags/t", &one)];
    world.align(&repo_path, follow(&[received_pack], with_head(1, &first)));
    let second = [("refs/heads/a/b", one.as_str()), ("refs/heads/b", &one)];
    assert_eq!(world.align(&repo_path, follow(&[], with_head(2, &second))), chosen(2));
    assert_eq!(world.refs(&repo_path), [format!("{one} refs/heads/a/b"), format!("{one} refs/heads/b")]);
    world.check(&repo_path);
    assert_eq!(
        world.align(&repo_path, follow(&[], candidate(3, &[]))),
        AlignmentResult { is_empty: true, ..chosen(3) }
    );
    assert_eq!(world.refs(&repo_path), [] as [&str; 0]);
}

#[test]
fn impossible_candidates_are_passed_over() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let good = with_head(1, &[("refs/heads/main", &one)]);
    let bad: [&[(&str, &str)]; 11] = [
        &[("refs/heads/main", "abc123")],
        &[("refs/heads/main", &one.to_uppercase())],
        &[("refs/heads/main", &"c".repeat(64))],
        &[("refs/heads/main", &"0".repeat(40))],
        &[("refs/heads/main", &format!("{one}\n{one} refs/heads/x"))],
        &[("refs/heads/a\nb", &one)],
        &[("refs/heads/a..b", &one)],
        &[("refs/heads/a", &one), ("refs/heads/a/b", &one)],
        &[("refs/heads/a", &one), ("refs/heads/a", &one)],
        &[("refs/nostr/a", &one)],
        &[("HEAD", &one)],
    ];
    let mut candidates: Vec<CandidateState> = bad.iter().map(|refs| candidate(2, refs)).collect();
    candidates.push(good.clone());
    assert_eq!(world.align(&repo_path, Alignment { candidates, ..follow(&[received_pack], good) }), chosen(1));
    assert_eq!(world.refs(&repo_path), [format!("{one} refs/heads/main")]);
    for tip in ["abc", "", &"0".repeat(40), "--all", &format!("{one}^{{tree}}")] {
        let order =
            Alignment { pull_requests: vec![pull(1, tip, std::slice::from_ref(&repo_path))], ..Alignment::default() };
        assert_eq!(world.align(&repo_path, order), AlignmentResult::default());
    }
}

#[test]
fn a_hole_anywhere_makes_a_candidate_incomplete() {
    let (_folder, world, author) = start();
    let one = author.commit("one");
    let two = author.commit("two");
    let tag = author.tag("v1", &two);
    let outer = author.tag("v2", &tag);
    let all = author.git(&["rev-list", "--objects", &outer]);
    let all: Vec<&str> = all.lines().map(|line| &line[..40]).collect();
    let resolve = |text: &str| author.git(&["rev-parse", text]);
    let holes = [
        one.clone(),
        resolve("HEAD^{tree}"),
        resolve("HEAD:folder"),
        resolve("HEAD:folder/file"),
        resolve("HEAD~:folder"),
    ];
    for (number, hole) in (1..).zip([two.clone(), tag.clone()].iter().chain(&holes)) {
        let repo_path = announced(number);
        let some: Vec<&str> = all.iter().copied().filter(|oid| oid != hole).collect();
        let received_pack = ReceivedPack::Incoming(world.layout.number());
        author.pack_objects(&world.layout.received_pack(&received_pack), &some);
        let order = Alignment {
            pull_requests: vec![pull(3, &two, &[])],
            candidates: vec![candidate(1, &[("refs/tags/v", &outer)]), candidate(2, &[("refs/heads/main", &two)])],
            ..follow(&[received_pack], candidate(0, &[]))
        };
        let whole = *hole == tag;
        let second: Option<EventId> = whole.then(|| event(2));
        let aligned = world.align(&repo_path, order);
        assert_eq!((aligned.chosen, aligned.pull_requests.is_empty()), (second, !whole), "{number}");
    }
}

#[test]
fn ten_thousand_refs() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let two = author.commit("two");
    let tag = author.tag("v", &two);
    let received_pack = author.incoming(&world, &[&two, &tag]);
    let names: Vec<String> = (0..10_000).map(|number| format!("refs/tags/v{number}")).collect();
    let mut refs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), tag.as_str())).collect();
    refs.push(("refs/heads/main", &one));
    assert_eq!(world.align(&repo_path, follow(&[received_pack], candidate(1, &refs))), chosen(1));
    refs[10_000] = ("refs/heads/main", &two);
    assert_eq!(world.align(&repo_path, follow(&[], candidate(2, &refs))), chosen(2));
    let read = Refs::read(&world.layout.repo_dir(&repo_path)).expect("reads");
    assert_eq!(read.iter().filter(|(_, target)| target.peeled.as_ref() == Some(&two)).count(), 10_000);
    assert_eq!(world.refs(&repo_path).len(), 10_001);
}

#[test]
fn uploads_wait_aside_and_are_adopted_after_a_restart() {
    let (folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let moves = vec![(author.incoming(&world, &[&one]), ReceivedPack::Staged(5))];
    let carried = world.work(&repo_path, GitOperation::StageUploads(moves.clone()));
    assert_eq!((carried.outcome, carried.refs), (GitJobOutcome::Staged, vec![]));
    assert!(!world.layout.repo_dir(&repo_path).exists());
    let world = World::open(folder.path());
    let again =
        world.work(&repo_path, GitOperation::StageUploads(vec![(ReceivedPack::Incoming(99), ReceivedPack::Staged(6))]));
    assert!(matches!(again.outcome, GitJobOutcome::Failed(_)), "an upload that is lost is not aside: {again:?}");
    let order = Alignment {
        pull_requests: vec![pull(1, &one, &[])],
        adopt: vec![ReceivedPack::Staged(5)],
        ..Alignment::default()
    };
    assert_eq!(world.align(&repo_path, order).pull_requests, [event(1)]);
    assert_eq!(world.refs(&repo_path), [format!("{one} refs/nostr/{}", event(1))]);
    world.check(&repo_path);
    // What is left of a number without a row makes room.
    let two = author.commit("two");
    author.pack(&world.layout.received_pack(&ReceivedPack::Staged(5)), &[&one]);
    let moves = vec![(author.incoming(&world, &[&two, &format!("^{one}")]), ReceivedPack::Staged(5))];
    world.work(&repo_path, GitOperation::StageUploads(moves));
    let order = Alignment {
        pull_requests: vec![pull(2, &two, &[])],
        adopt: vec![ReceivedPack::Staged(5)],
        ..Alignment::default()
    };
    assert_eq!(world.align(&repo_path, order).pull_requests, [event(2)]);
}

#[test]
fn a_broken_disk_fails_the_order_and_leaves_refs() {
    let (_folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    world.align(&repo_path, follow(&[received_pack], with_head(1, &[("refs/heads/main", &one)])));
    // A folder stands where the new file should be written.
    let folder = world.layout.repo_dir(&repo_path);
    std::fs::create_dir(folder.join("packed-refs.new")).expect("a folder");
    let carried = world.work(&repo_path, GitOperation::Align(follow(&[], candidate(2, &[("refs/heads/x", &one)]))));
    assert!(
        matches!(&carried.outcome, GitJobOutcome::Failed(text) if text.contains("cannot write refs")),
        "{carried:?}"
    );
    assert_eq!(carried.refs, []);
    // Refs are written, HEAD cannot be: the world sees what is on disk.
    std::fs::remove_dir(folder.join("packed-refs.new")).expect("goes");
    std::fs::create_dir(folder.join("HEAD.new")).expect("a folder");
    let carried = world.work(&repo_path, GitOperation::Align(follow(&[], with_head(2, &[("refs/heads/x", &one)]))));
    assert!(matches!(&carried.outcome, GitJobOutcome::Failed(_)), "{carried:?}");
    assert_eq!((carried.refs[0].1.head(), carried.refs[0].1.head_oid()), ("refs/heads/main", None));
    std::fs::remove_dir(folder.join("HEAD.new")).expect("goes");
    assert_eq!(world.align(&repo_path, follow(&[], with_head(2, &[("refs/heads/x", &one)]))), chosen(2));
    assert_eq!(git(&folder, &["symbolic-ref", "HEAD"]), "refs/heads/x");
}

#[test]
fn a_slow_git_fails_the_order_and_loses_nothing() {
    let (folder, world, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.incoming(&world, &[&one]);
    let hasty = World::with_patience(folder.path(), std::time::Duration::ZERO);
    // The second start has emptied what was on its way in.
    author.pack(&hasty.layout.received_pack(&received_pack), &[&one]);
    let order = follow(&[received_pack], with_head(1, &[("refs/heads/main", &one)]));
    let order = Alignment { fallback: RefFallback::Clear, ..order };
    let carried = hasty.work(&repo_path, GitOperation::Align(order.clone()));
    assert!(matches!(&carried.outcome, GitJobOutcome::Failed(text) if text.contains("longer")), "{carried:?}");
    // It has a folder now, and nothing to see in it.
    assert_eq!(carried.refs.len(), 1);
    assert!(carried.refs[0].1.iter().next().is_none(), "{carried:?}");
    assert_eq!(world.align(&repo_path, order), chosen(1), "the pack is in the pool");
    world.check(&repo_path);
}

//! Objects, refs and HEAD follow what is signed.

use grasp_core::admission::git_job::{Align, Aligned, Candidate, Otherwise, Outcome, Parcel, Work};
use grasp_core::nostr::EventId;
use grasp_git::refs::Refs;
use tempfile::TempDir;

use crate::world::{Author, World, announced, candidate, event, follow, git, pull, submitted, with_head};

fn start() -> (TempDir, World, Author) {
    let folder = TempDir::new().expect("a folder");
    let world = World::open(folder.path());
    (folder, world, Author::new())
}

fn chosen(number: u8) -> Aligned {
    Aligned { chosen: Some(event(number)), ..Aligned::default() }
}

#[test]
fn a_push_becomes_refs_that_git_can_clone() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let order = follow(std::slice::from_ref(&parcel), with_head(1, &[("refs/heads/main", &one)]));
    let carried = world.work(&site, Work::Align(order));
    assert_eq!(carried.outcome, Outcome::Aligned(chosen(1)));
    let (changed, refs) = &carried.refs[0];
    assert_eq!((changed, refs.head(), refs.head_oid()), (&site, "refs/heads/main", Some(one.as_str())));
    assert!(!world.layout.parcel(&parcel).exists());
    world.check(&site);
    // The next push is a thin one that was completed: it has only what is new.
    let two = author.commit("two");
    let parcel = author.incoming(&world, &[&two, &format!("^{one}")]);
    let order = follow(&[parcel], with_head(2, &[("refs/heads/main", &two), ("refs/heads/old", &one)]));
    assert_eq!(world.align(&site, order), chosen(2));
    world.check(&site);
    assert_eq!(world.refs(&site), [format!("{two} refs/heads/main"), format!("{one} refs/heads/old")]);
    assert_eq!(std::fs::read_dir(world.layout.site(&site).join("objects/pack")).expect("a folder").count(), 0);
}

#[test]
fn nothing_makes_no_folder() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let empty = Aligned { empty: true, ..Aligned::default() };
    let orders = [
        Align::default(),
        Align { adopt: vec![Parcel::Incoming(77), Parcel::Staged(77)], ..Align::default() },
        Align { otherwise: Otherwise::Clear, drop_pulls: vec![event(1)], ..Align::default() },
        Align { lenders: vec![announced(2)], pulls: vec![pull(1, &one, &[submitted(3)])], ..Align::default() },
        follow(&[], with_head(1, &[("refs/heads/main", &one)])),
    ];
    for order in orders {
        assert_eq!(world.align(&site, order), empty);
    }
    let aligned = world.align(&site, follow(&[], candidate(1, &[])));
    assert_eq!(aligned, Aligned { chosen: Some(event(1)), ..empty }, "a state without refs is complete");
    assert_eq!(std::fs::read_dir(world.layout.root().join("repos")).expect("a folder").count(), 0);
}

#[test]
fn the_best_complete_candidate_is_followed() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let two = author.commit("two");
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    let older = with_head(1, &[("refs/heads/main", &one)]);
    let order = Align { candidates: vec![newer.clone(), older.clone()], ..follow(&[parcel], older.clone()) };
    assert_eq!(world.align(&site, order.clone()), chosen(1));
    let parcel = author.incoming(&world, &[&two, &format!("^{one}")]);
    assert_eq!(world.align(&site, Align { adopt: vec![parcel], ..order }), chosen(2));
    assert_eq!(world.refs(&site), [format!("{two} refs/heads/main")]);
    // The older one again, as after a deletion of the newer.
    assert_eq!(world.align(&site, follow(&[], older)), chosen(1));
    assert_eq!(world.refs(&site), [format!("{one} refs/heads/main")]);
    world.check(&site);
}

#[test]
fn tags_of_commits_tags_trees_and_files() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let tag = author.tag("v1", &one);
    let outer = author.tag("v1-signed", &tag);
    let blob = author.git(&["rev-parse", "HEAD:folder/file"]);
    let tree = author.git(&["rev-parse", "HEAD:folder"]);
    let file = author.tag("file", &blob);
    let parcel = author.incoming(&world, &[&one, &tag, &outer, &file]);
    let refs = [
        ("refs/heads/main", one.as_str()),
        ("refs/tags/blob", &blob),
        ("refs/tags/file", &file),
        ("refs/tags/light", &one),
        ("refs/tags/tree", &tree),
        ("refs/tags/v1", &tag),
        ("refs/tags/v2", &outer),
    ];
    assert_eq!(world.align(&site, follow(&[parcel], with_head(1, &refs))), chosen(1));
    world.check(&site);
    let expected = [
        format!("{one} refs/heads/main"),
        format!("{blob} refs/tags/blob"),
        format!("{file} refs/tags/file {blob}"),
        format!("{one} refs/tags/light"),
        format!("{tree} refs/tags/tree"),
        format!("{tag} refs/tags/v1 {one}"),
        format!("{outer} refs/tags/v2 {one}"),
    ];
    assert_eq!(world.refs(&site), expected);
    // What the file says for git is what git finds out by itself.
    let read = std::fs::read_to_string(world.layout.site(&site).join("packed-refs")).expect("refs");
    let copy = TempDir::new().expect("a folder");
    git(copy.path(), &["clone", "--quiet", "--mirror", world.layout.site(&site).to_str().expect("text"), "copy"]);
    git(&copy.path().join("copy"), &["pack-refs", "--all"]);
    assert_eq!(std::fs::read_to_string(copy.path().join("copy/packed-refs")).expect("refs"), read);
    // Another name for a known tag needs no second look at it.
    let renamed = with_head(2, &[("refs/heads/main", &one), ("refs/tags/w", &outer)]);
    assert_eq!(world.align(&site, follow(&[], renamed)), chosen(2));
    assert_eq!(world.refs(&site)[1], format!("{outer} refs/tags/w {one}"));
    for oid in [&tag, &blob, &tree] {
        let branch = with_head(3, &[("refs/heads/main", oid)]);
        assert_eq!(world.align(&site, follow(&[], branch)).chosen, None, "a branch is a commit");
    }
}

#[test]
fn head_alone_can_change() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let refs = [("refs/heads/main", one.as_str()), ("refs/heads/next", &one)];
    world.align(&site, follow(&[parcel], with_head(1, &refs)));
    let before = std::fs::metadata(world.layout.site(&site).join("packed-refs")).and_then(|data| data.modified());
    let next = Candidate { head: Some("refs/heads/next".to_owned()), ..candidate(2, &refs) };
    let carried = world.work(&site, Work::Align(follow(&[], next)));
    assert_eq!(carried.outcome, Outcome::Aligned(chosen(2)));
    assert_eq!(carried.refs[0].1.head(), "refs/heads/next");
    let after = std::fs::metadata(world.layout.site(&site).join("packed-refs")).and_then(|data| data.modified());
    assert_eq!(before.expect("a time"), after.expect("a time"), "refs were not written again");
    for head in [None, Some("refs/heads/none"), Some("refs/tags/x"), Some("HEAD")] {
        let same = Candidate { head: head.map(str::to_owned), ..candidate(3, &refs) };
        assert_eq!(world.work(&site, Work::Align(follow(&[], same))).refs, carried.refs);
    }
    assert_eq!(git(&world.layout.site(&site), &["symbolic-ref", "HEAD"]), "refs/heads/next");
}

#[test]
fn without_a_complete_candidate_refs_stay_or_go() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let order = Align { pulls: vec![pull(9, &one, &[])], ..follow(&[parcel], with_head(1, &[("refs/heads/a", &one)])) };
    assert_eq!(world.align(&site, order).pulls, [event(9)]);
    let missing = with_head(2, &[("refs/heads/a", &"b".repeat(40))]);
    assert_eq!(world.align(&site, follow(&[], missing.clone())), Aligned::default());
    assert_eq!(world.refs(&site).len(), 2);
    let clear = Align { otherwise: Otherwise::Clear, ..follow(&[], missing) };
    assert_eq!(world.align(&site, clear.clone()), Aligned::default());
    assert_eq!(world.refs(&site), [format!("{one} refs/nostr/{}", event(9))], "a pull request is not the state's");
    let carried = world.work(&site, Work::Align(Align { drop_pulls: vec![event(9)], ..clear }));
    assert_eq!(carried.outcome, Outcome::Aligned(Aligned { empty: true, ..Aligned::default() }));
    assert_eq!(carried.refs[0].1.iter().count(), 0);
    world.check(&site);
}

#[test]
fn what_is_not_declared_goes_and_a_folder_becomes_a_file() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let first = [("refs/heads/a", one.as_str()), ("refs/heads/b/c", &one), ("refs/tags/t", &one)];
    world.align(&site, follow(&[parcel], with_head(1, &first)));
    let second = [("refs/heads/a/b", one.as_str()), ("refs/heads/b", &one)];
    assert_eq!(world.align(&site, follow(&[], with_head(2, &second))), chosen(2));
    assert_eq!(world.refs(&site), [format!("{one} refs/heads/a/b"), format!("{one} refs/heads/b")]);
    world.check(&site);
    assert_eq!(world.align(&site, follow(&[], candidate(3, &[]))), Aligned { empty: true, ..chosen(3) });
    assert_eq!(world.refs(&site), [] as [&str; 0]);
}

#[test]
fn impossible_candidates_are_passed_over() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
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
    let mut candidates: Vec<Candidate> = bad.iter().map(|refs| candidate(2, refs)).collect();
    candidates.push(good.clone());
    assert_eq!(world.align(&site, Align { candidates, ..follow(&[parcel], good) }), chosen(1));
    assert_eq!(world.refs(&site), [format!("{one} refs/heads/main")]);
    for tip in ["abc", "", &"0".repeat(40), "--all", &format!("{one}^{{tree}}")] {
        let order = Align { pulls: vec![pull(1, tip, std::slice::from_ref(&site))], ..Align::default() };
        assert_eq!(world.align(&site, order), Aligned::default());
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
        let site = announced(number);
        let some: Vec<&str> = all.iter().copied().filter(|oid| oid != hole).collect();
        let parcel = Parcel::Incoming(world.layout.number());
        author.pack_objects(&world.layout.parcel(&parcel), &some);
        let order = Align {
            pulls: vec![pull(3, &two, &[])],
            candidates: vec![candidate(1, &[("refs/tags/v", &outer)]), candidate(2, &[("refs/heads/main", &two)])],
            ..follow(&[parcel], candidate(0, &[]))
        };
        let whole = *hole == tag;
        let second: Option<EventId> = whole.then(|| event(2));
        let aligned = world.align(&site, order);
        assert_eq!((aligned.chosen, aligned.pulls.is_empty()), (second, !whole), "{number}");
    }
}

#[test]
fn ten_thousand_refs() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let two = author.commit("two");
    let tag = author.tag("v", &two);
    let parcel = author.incoming(&world, &[&two, &tag]);
    let names: Vec<String> = (0..10_000).map(|number| format!("refs/tags/v{number}")).collect();
    let mut refs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), tag.as_str())).collect();
    refs.push(("refs/heads/main", &one));
    assert_eq!(world.align(&site, follow(&[parcel], candidate(1, &refs))), chosen(1));
    refs[10_000] = ("refs/heads/main", &two);
    assert_eq!(world.align(&site, follow(&[], candidate(2, &refs))), chosen(2));
    let read = Refs::read(&world.layout.site(&site)).expect("reads");
    assert_eq!(read.iter().filter(|(_, target)| target.peeled.as_ref() == Some(&two)).count(), 10_000);
    assert_eq!(world.refs(&site).len(), 10_001);
}

#[test]
fn uploads_wait_aside_and_are_adopted_after_a_restart() {
    let (folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let moves = vec![(author.incoming(&world, &[&one]), Parcel::Staged(5))];
    let carried = world.work(&site, Work::Stage(moves.clone()));
    assert_eq!((carried.outcome, carried.refs), (Outcome::Staged, vec![]));
    assert!(!world.layout.site(&site).exists());
    let world = World::open(folder.path());
    let again = world.work(&site, Work::Stage(vec![(Parcel::Incoming(99), Parcel::Staged(6))]));
    assert!(matches!(again.outcome, Outcome::Failed(_)), "an upload that is lost is not aside: {again:?}");
    let order = Align { pulls: vec![pull(1, &one, &[])], adopt: vec![Parcel::Staged(5)], ..Align::default() };
    assert_eq!(world.align(&site, order).pulls, [event(1)]);
    assert_eq!(world.refs(&site), [format!("{one} refs/nostr/{}", event(1))]);
    world.check(&site);
    // What is left of a number without a row makes room.
    let two = author.commit("two");
    author.pack(&world.layout.parcel(&Parcel::Staged(5)), &[&one]);
    let moves = vec![(author.incoming(&world, &[&two, &format!("^{one}")]), Parcel::Staged(5))];
    world.work(&site, Work::Stage(moves));
    let order = Align { pulls: vec![pull(2, &two, &[])], adopt: vec![Parcel::Staged(5)], ..Align::default() };
    assert_eq!(world.align(&site, order).pulls, [event(2)]);
}

#[test]
fn a_broken_disk_fails_the_order_and_leaves_refs() {
    let (_folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    world.align(&site, follow(&[parcel], with_head(1, &[("refs/heads/main", &one)])));
    // A folder stands where the new file should be written.
    let folder = world.layout.site(&site);
    std::fs::create_dir(folder.join("packed-refs.new")).expect("a folder");
    let carried = world.work(&site, Work::Align(follow(&[], candidate(2, &[("refs/heads/x", &one)]))));
    assert!(matches!(&carried.outcome, Outcome::Failed(text) if text.contains("cannot write refs")), "{carried:?}");
    assert_eq!(carried.refs, []);
    // Refs are written, HEAD cannot be: the world sees what is on disk.
    std::fs::remove_dir(folder.join("packed-refs.new")).expect("goes");
    std::fs::create_dir(folder.join("HEAD.new")).expect("a folder");
    let carried = world.work(&site, Work::Align(follow(&[], with_head(2, &[("refs/heads/x", &one)]))));
    assert!(matches!(&carried.outcome, Outcome::Failed(_)), "{carried:?}");
    assert_eq!((carried.refs[0].1.head(), carried.refs[0].1.head_oid()), ("refs/heads/main", None));
    std::fs::remove_dir(folder.join("HEAD.new")).expect("goes");
    assert_eq!(world.align(&site, follow(&[], with_head(2, &[("refs/heads/x", &one)]))), chosen(2));
    assert_eq!(git(&folder, &["symbolic-ref", "HEAD"]), "refs/heads/x");
}

#[test]
fn a_slow_git_fails_the_order_and_loses_nothing() {
    let (folder, world, author) = start();
    let (site, one) = (announced(1), author.commit("one"));
    let parcel = author.incoming(&world, &[&one]);
    let hasty = World::with_patience(folder.path(), std::time::Duration::ZERO);
    // The second start has emptied what was on its way in.
    author.pack(&hasty.layout.parcel(&parcel), &[&one]);
    let order = follow(&[parcel], with_head(1, &[("refs/heads/main", &one)]));
    let order = Align { otherwise: Otherwise::Clear, ..order };
    let carried = hasty.work(&site, Work::Align(order.clone()));
    assert!(matches!(&carried.outcome, Outcome::Failed(text) if text.contains("longer")), "{carried:?}");
    // It has a folder now, and nothing to see in it.
    assert_eq!(carried.refs.len(), 1);
    assert!(carried.refs[0].1.iter().next().is_none(), "{carried:?}");
    assert_eq!(world.align(&site, order), chosen(1), "the pack is in the pool");
    world.check(&site);
}

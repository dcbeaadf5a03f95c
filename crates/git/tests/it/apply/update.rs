//! Alignment of objects, refs and HEAD with signed states.

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJobOutcome, GitOperation, ReceivedPack, RefFallback,
};
use grasp_core::nostr::EventId;
use grasp_git::refs::{Refs, read_refs, write_refs};
use tempfile::TempDir;

use crate::git_folder::{
    AuthorRepo, GitFixture, announced, candidate, event, follow_state, git, pull_request, submission, with_head,
};

fn start() -> (TempDir, GitFixture, AuthorRepo) {
    let folder = TempDir::new().expect("create a folder");
    let fixture = GitFixture::open(folder.path());
    (folder, fixture, AuthorRepo::new())
}

fn chosen(number: u8) -> AlignmentResult {
    AlignmentResult { chosen: Some(event(number)), ..AlignmentResult::default() }
}

#[test]
fn pushed_refs_can_be_cloned() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let alignment = follow_state(std::slice::from_ref(&received_pack), with_head(1, &[("refs/heads/main", &one)]));
    let GitJobOutcome::Aligned(aligned) = fixture.run_twice(&repo_path, GitOperation::Align(alignment)) else {
        panic!("the job failed");
    };
    assert_eq!(aligned.chosen, Some(event(1)));
    assert_eq!((aligned.refs.head(), aligned.refs.head_oid()), ("refs/heads/main", Some(one.as_str())));
    assert!(!fixture.layout.received_pack(&received_pack).exists());
    fixture.check_repo(&repo_path);
    // The pack of the next push has only new objects.
    let two = author.commit("two");
    let received_pack = author.received_pack(&fixture, &[&two, &format!("^{one}")]);
    let alignment =
        follow_state(&[received_pack], with_head(2, &[("refs/heads/main", &two), ("refs/heads/old", &one)]));
    assert_eq!(fixture.align(&repo_path, alignment), chosen(2));
    fixture.check_repo(&repo_path);
    assert_eq!(fixture.refs(&repo_path), [format!("{two} refs/heads/main"), format!("{one} refs/heads/old")]);
    assert_eq!(
        std::fs::read_dir(fixture.layout.repo_dir(&repo_path).join("objects/pack")).expect("list a folder").count(),
        0
    );
}

#[test]
fn jobs_without_effect_create_no_folder() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let empty = AlignmentResult::default();
    let alignments = [
        Alignment::default(),
        Alignment { adopt: vec![ReceivedPack::Incoming(77), ReceivedPack::Staged(77)], ..Alignment::default() },
        Alignment { fallback: RefFallback::Clear, drop_pull_requests: vec![event(1)], ..Alignment::default() },
        Alignment {
            alternates: vec![announced(2)],
            pull_requests: vec![pull_request(1, &one, &[submission(3)])],
            ..Alignment::default()
        },
        follow_state(&[], with_head(1, &[("refs/heads/main", &one)])),
    ];
    for alignment in alignments {
        assert_eq!(fixture.align(&repo_path, alignment), empty);
    }
    let aligned = fixture.align(&repo_path, follow_state(&[], candidate(1, &[])));
    assert_eq!(aligned, AlignmentResult { chosen: Some(event(1)), ..empty }, "a state without refs is complete");
    assert_eq!(std::fs::read_dir(fixture.layout.root().join("repos")).expect("list a folder").count(), 0);
}

#[test]
fn newest_complete_candidate_is_chosen() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let two = author.commit("two");
    let newer = with_head(2, &[("refs/heads/main", &two)]);
    let older = with_head(1, &[("refs/heads/main", &one)]);
    let alignment =
        Alignment { candidates: vec![newer.clone(), older.clone()], ..follow_state(&[received_pack], older.clone()) };
    assert_eq!(fixture.align(&repo_path, alignment.clone()), chosen(1));
    let received_pack = author.received_pack(&fixture, &[&two, &format!("^{one}")]);
    assert_eq!(fixture.align(&repo_path, Alignment { adopt: vec![received_pack], ..alignment }), chosen(2));
    assert_eq!(fixture.refs(&repo_path), [format!("{two} refs/heads/main")]);
    // The older one is chosen again, as after a deletion of the newer one.
    assert_eq!(fixture.align(&repo_path, follow_state(&[], older)), chosen(1));
    assert_eq!(fixture.refs(&repo_path), [format!("{one} refs/heads/main")]);
    fixture.check_repo(&repo_path);
}

#[test]
fn tags_may_point_to_any_object_and_are_peeled() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let tag = author.tag("v1", &one);
    let outer = author.tag("v1-signed", &tag);
    let blob = author.git(&["rev-parse", "HEAD:folder/file"]);
    let tree = author.git(&["rev-parse", "HEAD:folder"]);
    let file = author.tag("file", &blob);
    let received_pack = author.received_pack(&fixture, &[&one, &tag, &outer, &file]);
    let refs = [
        ("refs/heads/main", one.as_str()),
        ("refs/tags/blob", &blob),
        ("refs/tags/file", &file),
        ("refs/tags/light", &one),
        ("refs/tags/tree", &tree),
        ("refs/tags/v1", &tag),
        ("refs/tags/v2", &outer),
    ];
    assert_eq!(fixture.align(&repo_path, follow_state(&[received_pack], with_head(1, &refs))), chosen(1));
    fixture.check_repo(&repo_path);
    let expected = [
        format!("{one} refs/heads/main"),
        format!("{blob} refs/tags/blob"),
        format!("{file} refs/tags/file {blob}"),
        format!("{one} refs/tags/light"),
        format!("{tree} refs/tags/tree"),
        format!("{tag} refs/tags/v1 {one}"),
        format!("{outer} refs/tags/v2 {one}"),
    ];
    assert_eq!(fixture.refs(&repo_path), expected);
    // The peeled objects in the file are those that git finds.
    let read = std::fs::read_to_string(fixture.layout.repo_dir(&repo_path).join("packed-refs")).expect("read refs");
    let copy = TempDir::new().expect("create a folder");
    git(
        copy.path(),
        &["clone", "--quiet", "--mirror", fixture.layout.repo_dir(&repo_path).to_str().expect("UTF-8"), "copy"],
    );
    git(&copy.path().join("copy"), &["pack-refs", "--all"]);
    assert_eq!(std::fs::read_to_string(copy.path().join("copy/packed-refs")).expect("read refs"), read);
    // A new ref to a known tag is peeled too.
    let renamed = with_head(2, &[("refs/heads/main", &one), ("refs/tags/w", &outer)]);
    assert_eq!(fixture.align(&repo_path, follow_state(&[], renamed)), chosen(2));
    assert_eq!(fixture.refs(&repo_path)[1], format!("{outer} refs/tags/w {one}"));
    for oid in [&tag, &blob, &tree] {
        let branch = with_head(3, &[("refs/heads/main", oid)]);
        assert_eq!(fixture.align(&repo_path, follow_state(&[], branch)).chosen, None, "a branch must be a commit");
    }
}

#[test]
fn head_can_change_without_refs() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let refs = [("refs/heads/main", one.as_str()), ("refs/heads/next", &one)];
    fixture.align(&repo_path, follow_state(&[received_pack], with_head(1, &refs)));
    let folder = fixture.layout.repo_dir(&repo_path);
    let before = std::fs::metadata(folder.join("packed-refs")).and_then(|data| data.modified());
    let next = CandidateState { head: Some("refs/heads/next".to_owned()), ..candidate(2, &refs) };
    assert_eq!(fixture.align(&repo_path, follow_state(&[], next)), chosen(2));
    assert_eq!(read_refs(&folder).expect("read refs").head(), "refs/heads/next");
    let after = std::fs::metadata(folder.join("packed-refs")).and_then(|data| data.modified());
    assert_eq!(before.expect("read a time"), after.expect("read a time"), "refs were not written again");
    for head in [None, Some("refs/heads/none"), Some("refs/tags/x"), Some("HEAD")] {
        let same = CandidateState { head: head.map(str::to_owned), ..candidate(3, &refs) };
        assert_eq!(fixture.align(&repo_path, follow_state(&[], same)), chosen(3));
    }
    assert_eq!(git(&folder, &["symbolic-ref", "HEAD"]), "refs/heads/next");
}

#[test]
fn fallback_applies_without_a_complete_candidate() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let alignment = Alignment {
        pull_requests: vec![pull_request(9, &one, &[])],
        ..follow_state(&[received_pack], with_head(1, &[("refs/heads/a", &one)]))
    };
    assert_eq!(fixture.align(&repo_path, alignment).pull_requests, [event(9)]);
    let missing = with_head(2, &[("refs/heads/a", &"b".repeat(40))]);
    assert_eq!(fixture.align(&repo_path, follow_state(&[], missing.clone())), AlignmentResult::default());
    assert_eq!(fixture.refs(&repo_path).len(), 2);
    let clear = Alignment { fallback: RefFallback::Clear, ..follow_state(&[], missing) };
    assert_eq!(fixture.align(&repo_path, clear.clone()), AlignmentResult::default());
    assert_eq!(
        fixture.refs(&repo_path),
        [format!("{one} refs/nostr/{}", event(9))],
        "a pull request ref is not part of a state"
    );
    let drop = Alignment { drop_pull_requests: vec![event(9)], ..clear };
    assert_eq!(fixture.align(&repo_path, drop), AlignmentResult::default());
    assert_eq!(fixture.refs_on_disk(&repo_path), 0);
    fixture.check_repo(&repo_path);
}

#[test]
fn undeclared_refs_are_removed_and_names_may_nest_differently() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let first = [("refs/heads/a", one.as_str()), ("refs/heads/b/c", &one), ("refs/tags/t", &one)];
    fixture.align(&repo_path, follow_state(&[received_pack], with_head(1, &first)));
    let second = [("refs/heads/a/b", one.as_str()), ("refs/heads/b", &one)];
    assert_eq!(fixture.align(&repo_path, follow_state(&[], with_head(2, &second))), chosen(2));
    assert_eq!(fixture.refs(&repo_path), [format!("{one} refs/heads/a/b"), format!("{one} refs/heads/b")]);
    fixture.check_repo(&repo_path);
    assert_eq!(fixture.align(&repo_path, follow_state(&[], candidate(3, &[]))), chosen(3));
    assert_eq!(fixture.refs(&repo_path), [] as [&str; 0]);
}

#[test]
fn invalid_candidates_are_skipped() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
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
    assert_eq!(fixture.align(&repo_path, Alignment { candidates, ..follow_state(&[received_pack], good) }), chosen(1));
    assert_eq!(fixture.refs(&repo_path), [format!("{one} refs/heads/main")]);
    for tip in ["abc", "", &"0".repeat(40), "--all", &format!("{one}^{{tree}}")] {
        let alignment = Alignment {
            pull_requests: vec![pull_request(1, tip, std::slice::from_ref(&repo_path))],
            ..Alignment::default()
        };
        assert_eq!(fixture.align(&repo_path, alignment), AlignmentResult::default());
    }
}

#[test]
fn any_missing_object_makes_a_candidate_incomplete() {
    let (_folder, fixture, author) = start();
    let one = author.commit("one");
    let two = author.commit("two");
    let tag = author.tag("v1", &two);
    let outer = author.tag("v2", &tag);
    let all = author.git(&["rev-list", "--objects", &outer]);
    let all: Vec<&str> = all.lines().map(|line| &line[..40]).collect();
    let resolve = |text: &str| author.git(&["rev-parse", text]);
    let removed = [
        one.clone(),
        resolve("HEAD^{tree}"),
        resolve("HEAD:folder"),
        resolve("HEAD:folder/file"),
        resolve("HEAD~:folder"),
    ];
    for (number, removed) in (1..).zip([two.clone(), tag.clone()].iter().chain(&removed)) {
        let repo_path = announced(number);
        let some: Vec<&str> = all.iter().copied().filter(|oid| oid != removed).collect();
        let received_pack = ReceivedPack::Incoming(fixture.layout.next_number());
        author.pack_objects(&fixture.layout.received_pack(&received_pack), &some);
        let alignment = Alignment {
            pull_requests: vec![pull_request(3, &two, &[])],
            candidates: vec![candidate(1, &[("refs/tags/v", &outer)]), candidate(2, &[("refs/heads/main", &two)])],
            ..follow_state(&[received_pack], candidate(0, &[]))
        };
        let is_branch_complete = *removed == tag;
        let second: Option<EventId> = is_branch_complete.then(|| event(2));
        let aligned = fixture.align(&repo_path, alignment);
        assert_eq!((aligned.chosen, aligned.pull_requests.is_empty()), (second, !is_branch_complete), "{number}");
    }
}

#[test]
fn ten_thousand_refs_are_aligned() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let two = author.commit("two");
    let tag = author.tag("v", &two);
    let received_pack = author.received_pack(&fixture, &[&two, &tag]);
    let names: Vec<String> = (0..10_000).map(|number| format!("refs/tags/v{number}")).collect();
    let mut refs: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), tag.as_str())).collect();
    refs.push(("refs/heads/main", &one));
    assert_eq!(fixture.align(&repo_path, follow_state(&[received_pack], candidate(1, &refs))), chosen(1));
    refs[10_000] = ("refs/heads/main", &two);
    assert_eq!(fixture.align(&repo_path, follow_state(&[], candidate(2, &refs))), chosen(2));
    let read = read_refs(&fixture.layout.repo_dir(&repo_path)).expect("read refs");
    assert_eq!(read.iter().filter(|(_, target)| target.peeled.as_ref() == Some(&two)).count(), 10_000);
    assert_eq!(fixture.refs(&repo_path).len(), 10_001);
}

#[test]
fn staged_uploads_are_adopted_after_a_restart() {
    let (folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let moves = vec![(author.received_pack(&fixture, &[&one]), ReceivedPack::Staged(5))];
    let result = fixture.run_twice(&repo_path, GitOperation::StageUploads(moves.clone()));
    assert_eq!(result, GitJobOutcome::Staged);
    assert!(!fixture.layout.repo_dir(&repo_path).exists());
    let fixture = GitFixture::open(folder.path());
    let again = fixture
        .run_twice(&repo_path, GitOperation::StageUploads(vec![(ReceivedPack::Incoming(99), ReceivedPack::Staged(6))]));
    assert!(matches!(again, GitJobOutcome::Failed(_)), "a missing upload cannot be staged: {again:?}");
    let alignment = Alignment {
        pull_requests: vec![pull_request(1, &one, &[])],
        adopt: vec![ReceivedPack::Staged(5)],
        ..Alignment::default()
    };
    assert_eq!(fixture.align(&repo_path, alignment).pull_requests, [event(1)]);
    assert_eq!(fixture.refs(&repo_path), [format!("{one} refs/nostr/{}", event(1))]);
    fixture.check_repo(&repo_path);
    // A leftover folder with the same number is replaced.
    let two = author.commit("two");
    author.pack(&fixture.layout.received_pack(&ReceivedPack::Staged(5)), &[&one]);
    let moves = vec![(author.received_pack(&fixture, &[&two, &format!("^{one}")]), ReceivedPack::Staged(5))];
    fixture.run_twice(&repo_path, GitOperation::StageUploads(moves));
    let alignment = Alignment {
        pull_requests: vec![pull_request(2, &two, &[])],
        adopt: vec![ReceivedPack::Staged(5)],
        ..Alignment::default()
    };
    assert_eq!(fixture.align(&repo_path, alignment).pull_requests, [event(2)]);
}

#[test]
fn ref_files_are_written_again_if_they_differ() {
    let (_folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    fixture.align(&repo_path, follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &one)])));
    let folder = fixture.layout.repo_dir(&repo_path);
    let refs = read_refs(&folder).expect("read refs");
    assert!(!write_refs(&folder, &refs).expect("compare refs"), "nothing differs");
    // A folder with the name of the temporary file makes the write fail.
    std::fs::create_dir(folder.join("packed-refs.new")).expect("create a folder");
    assert!(write_refs(&folder, &Refs::default()).is_err());
    assert_eq!(read_refs(&folder).expect("read refs"), refs);
    for (name, text) in [("packed-refs", "# pack-refs with: peeled"), ("HEAD", "ref: refs/heads/x\n"), ("HEAD", "")] {
        std::fs::remove_dir(folder.join("packed-refs.new")).ok();
        std::fs::write(folder.join(name), text).expect("write a file");
        assert!(write_refs(&folder, &refs).expect("write refs"), "{name}");
        assert_eq!(read_refs(&folder).expect("read refs"), refs, "{name}");
        fixture.check_repo(&repo_path);
    }
}

#[test]
fn git_timeout_fails_the_job_and_loses_no_pack() {
    let (folder, fixture, author) = start();
    let (repo_path, one) = (announced(1), author.commit("one"));
    let received_pack = author.received_pack(&fixture, &[&one]);
    let impatient = GitFixture::with_timeout(folder.path(), std::time::Duration::ZERO);
    // The second start has removed the received pack.
    author.pack(&impatient.layout.received_pack(&received_pack), &[&one]);
    let alignment = follow_state(&[received_pack], with_head(1, &[("refs/heads/main", &one)]));
    let alignment = Alignment { fallback: RefFallback::Clear, ..alignment };
    let result = impatient.run_twice(&repo_path, GitOperation::Align(alignment.clone()));
    assert!(matches!(&result, GitJobOutcome::Failed(text) if text.contains("longer")), "{result:?}");
    assert_eq!(fixture.refs_on_disk(&repo_path), 0);
    assert_eq!(fixture.align(&repo_path, alignment), chosen(1), "the pack is in the pool");
    fixture.check_repo(&repo_path);
}

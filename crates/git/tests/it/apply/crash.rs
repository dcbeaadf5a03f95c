//! The process may end at any named place: the same order, given again after a start, leads to the same repositories.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use grasp_core::admission::git_job::{
    Alignment, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, ReceivedPack,
};
use grasp_core::repo::RepoPath;
use tempfile::TempDir;

use crate::git_folder::{Author, World, announced, candidate, follow, git, pull, submitted, with_head};

/// A piece of work and what must be there before it.
struct Script {
    name: &'static str,
    /// Prepares the git folder and says which objects the order names.
    prepare: fn(&World, &Author) -> Vec<String>,
    /// What belongs to the life of the process that gets the order.
    begin: fn(&World, &Path),
    order: fn(&[String]) -> (RepoPath, GitOperation),
    points: &'static [&'static str],
}

const SCRIPTS: [Script; 6] = [
    Script {
        name: "push",
        prepare: |world, author| {
            let one = author.commit("one");
            let tag = author.tag("v1", &one);
            lend_from_one(world, author, &one);
            let two = author.commit("two");
            author.pack(&world.layout.received_pack(&ReceivedPack::Staged(3)), &[&two, &tag, &format!("^{one}")]);
            vec![two, tag]
        },
        begin: |_, _| {},
        order: |oids| {
            let state = with_head(1, &[("refs/heads/main", &oids[0]), ("refs/tags/v1", &oids[1])]);
            let align = Alignment { alternates: vec![announced(1)], ..follow(&[ReceivedPack::Staged(3)], state) };
            (announced(2), GitOperation::Align(align))
        },
        points: &["align.folder", "align.pack", "align.idx", "align.lenders", "align.refs", "align.head"],
    },
    Script {
        name: "shrink",
        prepare: |world, author| vec![follower_of_one(world, author)],
        begin: |_, _| {},
        order: |oids| (announced(2), GitOperation::Align(follow(&[], with_head(2, &[("refs/heads/other", &oids[0])])))),
        points: &["align.pack", "align.idx", "align.copied", "align.lenders", "align.refs", "align.head"],
    },
    Script {
        name: "take",
        prepare: |world, author| {
            let one = author.commit("one");
            lend_from_one(world, author, &one);
            vec![one]
        },
        begin: |_, _| {},
        order: |oids| {
            let sources = vec![announced(1)];
            let state = CandidateState { sources, ..with_head(2, &[("refs/heads/main", &oids[0])]) };
            (announced(2), GitOperation::Align(follow(&[], state)))
        },
        points: &[
            "align.folder",
            "align.lenders",
            "align.pack",
            "align.idx",
            "align.taken",
            "align.refs",
            "align.head",
        ],
    },
    Script {
        name: "pull",
        prepare: |world, author| {
            let one = author.commit("one");
            lend_from_one(world, author, &one);
            let two = author.commit("two");
            let received_pack = author.incoming(world, &[&two]);
            world.align(
                &submitted(3),
                Alignment { pull_requests: vec![pull(4, &two, &[])], ..follow(&[received_pack], candidate(1, &[])) },
            );
            vec![two]
        },
        begin: |_, _| {},
        order: |oids| {
            let pull_requests = vec![pull(4, &oids[0], &[submitted(3)])];
            (
                announced(2),
                GitOperation::Align(Alignment {
                    alternates: vec![announced(1)],
                    pull_requests,
                    ..Alignment::default()
                }),
            )
        },
        points: &["align.folder", "align.lenders", "align.pack", "align.idx", "align.pulls", "align.refs"],
    },
    Script {
        name: "stage",
        prepare: |world, author| {
            let one = author.commit("one");
            author.pack(&world.layout.root().join("upload"), &[&one]);
            vec![one]
        },
        begin: |world, root| {
            let upload = root.join("upload");
            if upload.exists() {
                fs::rename(upload, world.layout.received_pack(&ReceivedPack::Incoming(8))).expect("moves");
            }
        },
        order: |_| {
            (announced(1), GitOperation::StageUploads(vec![(ReceivedPack::Incoming(8), ReceivedPack::Staged(9))]))
        },
        points: &["stage.moved"],
    },
    Script {
        name: "retire",
        prepare: |world, author| vec![follower_of_one(world, author)],
        begin: |_, _| {},
        order: |_| (announced(1), GitOperation::Delete { readers: vec![(announced(2), vec![])] }),
        points: &["align.pack", "align.idx", "align.copied", "align.lenders", "retire.copied", "retire.gone"],
    },
];

/// The first site has a commit.
fn lend_from_one(world: &World, author: &Author, one: &str) {
    let received_pack = author.incoming(world, &[one]);
    world.align(&announced(1), follow(&[received_pack], with_head(1, &[("refs/heads/main", one)])));
}

/// The first site has a commit, and the second follows it.
fn follower_of_one(world: &World, author: &Author) -> String {
    let one = author.commit("one");
    lend_from_one(world, author, &one);
    let state = with_head(1, &[("refs/heads/main", &one)]);
    world.align(&announced(2), Alignment { alternates: vec![announced(1)], ..follow(&[], state) });
    one
}

/// Opens the git folder and carries out the order of a script.
fn carry_out(script: &Script, root: &Path) -> (World, GitJobOutcome) {
    let world = World::open(root);
    (script.begin)(&world, root);
    let oids = fs::read_to_string(root.join("oids")).expect("a list");
    let (repo_path, work) = (script.order)(&oids.lines().map(str::to_owned).collect::<Vec<_>>());
    let outcome = world.keeper.carry_out(&GitJob { id: GitJobId(1), repo_path, operation: work }).outcome;
    (world, outcome)
}

/// Not a test by itself: the process that ends in the middle.
#[test]
fn one_life() {
    let (Ok(name), Ok(root)) = (std::env::var("KEEPER_SCRIPT"), std::env::var("KEEPER_ROOT")) else { return };
    let script = SCRIPTS.iter().find(|script| script.name == name).expect("a script");
    let (_, outcome) = carry_out(script, Path::new(&root));
    panic!("it came to its end: {outcome:?}");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds know no crash points")]
fn an_order_that_was_cut_off_is_carried_out_again() {
    let mut seen = BTreeSet::new();
    for script in &SCRIPTS {
        let folder = TempDir::new().expect("a folder");
        let (begun, clean) = (folder.path().join("begun"), folder.path().join("clean"));
        let oids = (script.prepare)(&World::open(&begun), &Author::new());
        fs::write(begun.join("oids"), oids.join("\n")).expect("writes");
        copy(&begun, &clean);
        let (world, expected) = carry_out(script, &clean);
        assert!(!matches!(expected, GitJobOutcome::Failed(_)), "{expected:?}");
        let contents = world.contents();
        for point in script.points {
            let place = format!("{} at {point}", script.name);
            let root = folder.path().join(point);
            copy(&begun, &root);
            let status = Command::new(std::env::current_exe().expect("this program"))
                .args(["keeper::crash::one_life", "--exact"])
                .envs([("KEEPER_SCRIPT", script.name), ("GRASPD_CRASH_AT", point)])
                .env("KEEPER_ROOT", &root)
                .output()
                .expect("runs");
            assert_eq!(status.status.signal(), Some(9), "{place}: {status:?}");
            sound(&root, &place);
            let (world, outcome) = carry_out(script, &root);
            assert_eq!(outcome, expected, "{place}");
            let again = world.contents();
            let names = |contents: &std::collections::BTreeMap<_, _>| contents.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&again), names(&contents), "{place}");
            assert!(again == contents, "{place}");
            sound(&root, &place);
            seen.insert(*point);
        }
    }
    // No place is left out.
    let mut all = BTreeSet::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/keeper");
    for entry in fs::read_dir(source).expect("the source") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a file");
        all.extend(
            text.split("crash::point(\"")
                .skip(1)
                .filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned())),
        );
    }
    assert_eq!(seen.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), all);
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("runs");
    assert!(status.success());
}

/// Every repository that is there is whole, whatever was interrupted.
fn sound(root: &Path, place: &str) {
    for owner in ["repos", "prs"].iter().flat_map(|room| fs::read_dir(root.join(room)).expect("a folder")) {
        for repo_path in fs::read_dir(owner.expect("an owner").path()).expect("a folder") {
            let repo_path = repo_path.expect("a site").path();
            git(&repo_path, &["fsck", "--full", "--strict", "--connectivity-only"]);
            assert!(repo_path.join("HEAD").exists(), "{place}");
        }
    }
}

/// What was on its way in is lost with the process; the client sends it again.
#[test]
fn a_push_that_is_lost_in_the_middle_is_pushed_again() {
    let folder = TempDir::new().expect("a folder");
    let author = Author::new();
    let one = author.commit("one");
    let world = World::open(folder.path());
    let received_pack = author.incoming(&world, &[&one]);
    // As after the first rename: the pack is in the pool, its index is not.
    let state = with_head(1, &[("refs/heads/main", &one)]);
    world.align(&announced(1), follow(&[received_pack], state.clone()));
    world.align(
        &announced(1),
        Alignment { fallback: grasp_core::admission::git_job::RefFallback::Clear, ..Alignment::default() },
    );
    let packs = world.layout.pool(&announced(1)).join("pack");
    for entry in fs::read_dir(&packs).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|part| part == "idx") {
            fs::remove_file(path).expect("goes");
        }
    }
    let world = World::open(folder.path());
    assert_eq!(world.align(&announced(1), follow(&[], state.clone())).chosen, None);
    let received_pack = author.incoming(&world, &[&one]);
    assert!(world.align(&announced(1), follow(&[received_pack], state)).chosen.is_some());
    world.check(&announced(1));
}

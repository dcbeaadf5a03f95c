//! A process that is killed at any crash point of a git job: the same job, run again after a start, leads to the same
//! repositories.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, ReceivedPack,
};
use grasp_core::repo::RepoPath;
use tempfile::TempDir;

use crate::git_folder::{
    AuthorRepo, GitFixture, announced, candidate, follow_state, git, pull_request, submission, with_head,
};

/// A git job and its preparation.
struct Script {
    name: &'static str,
    /// Prepares the git data folder and returns the objects that the job names.
    prepare: fn(&GitFixture, &AuthorRepo) -> Vec<String>,
    /// Prepares what exists only in the process that runs the job.
    begin: fn(&GitFixture, &Path),
    job: fn(&[String]) -> (RepoPath, GitOperation),
    /// The crash points that the job reaches.
    points: &'static [&'static str],
}

const SCRIPTS: [Script; 7] = [
    Script {
        name: "push",
        prepare: |fixture, author| {
            let one = author.commit("one");
            let tag = author.tag("v1", &one);
            create_first_repo(fixture, author, &one);
            let two = author.commit("two");
            author.pack(&fixture.layout.received_pack(&ReceivedPack::Staged(3)), &[&two, &tag, &format!("^{one}")]);
            vec![two, tag]
        },
        begin: |_, _| {},
        job: |oids| {
            let state = with_head(1, &[("refs/heads/main", &oids[0]), ("refs/tags/v1", &oids[1])]);
            let align = Alignment { alternates: vec![announced(1)], ..follow_state(&[ReceivedPack::Staged(3)], state) };
            (announced(2), GitOperation::Align(align))
        },
        points: &["align.folder", "align.pack", "align.idx", "align.alternates"],
    },
    Script {
        name: "take",
        prepare: |fixture, author| {
            let one = author.commit("one");
            create_first_repo(fixture, author, &one);
            vec![one]
        },
        begin: |_, _| {},
        job: |oids| {
            let sources = vec![announced(1)];
            let state = CandidateState { sources, ..with_head(2, &[("refs/heads/main", &oids[0])]) };
            (announced(2), GitOperation::Align(follow_state(&[], state)))
        },
        points: &["align.folder", "align.alternates"],
    },
    Script {
        name: "pull",
        prepare: |fixture, author| {
            let one = author.commit("one");
            create_first_repo(fixture, author, &one);
            let two = author.commit("two");
            let received_pack = author.received_pack(fixture, &[&two]);
            fixture.align(
                &submission(3),
                Alignment {
                    pull_requests: vec![pull_request(4, &two, &[])],
                    ..follow_state(&[received_pack], candidate(1, &[]))
                },
            );
            vec![two]
        },
        begin: |_, _| {},
        job: |oids| {
            let pull_requests = vec![pull_request(4, &oids[0], &[submission(3)])];
            (
                announced(2),
                GitOperation::Align(Alignment {
                    alternates: vec![announced(1)],
                    pull_requests,
                    ..Alignment::default()
                }),
            )
        },
        points: &["align.folder", "align.alternates", "align.pack", "align.idx", "align.pulls"],
    },
    Script {
        name: "stage",
        prepare: |fixture, author| {
            let one = author.commit("one");
            author.pack(&fixture.layout.root().join("upload"), &[&one]);
            vec![one]
        },
        begin: |fixture, root| {
            let upload = root.join("upload");
            if upload.exists() {
                fs::rename(upload, fixture.layout.received_pack(&ReceivedPack::Incoming(8))).expect("rename a folder");
            }
        },
        job: |_| (announced(1), GitOperation::StageUploads(vec![(ReceivedPack::Incoming(8), ReceivedPack::Staged(9))])),
        points: &["stage.moved"],
    },
    Script {
        name: "delete",
        prepare: |fixture, author| vec![create_readers_of_first_repo(fixture, author, &[2])],
        begin: |_, _| {},
        job: |_| (announced(1), GitOperation::Delete),
        points: &["delete.refs", "delete.head", "delete.released", "release.linked", "release.alternates"],
    },
    Script {
        name: "orphan",
        prepare: |fixture, author| vec![create_readers_of_first_repo(fixture, author, &[2, 3])],
        begin: |_, _| {},
        job: |_| (announced(1), GitOperation::Delete),
        points: &["delete.refs", "delete.head", "delete.released"],
    },
    Script {
        name: "last-reader-but-one",
        prepare: |fixture, author| {
            let one = create_readers_of_first_repo(fixture, author, &[2, 3]);
            let job = GitJob { id: GitJobId(1), repo_path: announced(1), operation: GitOperation::Delete };
            assert_eq!(fixture.run(&job), GitJobOutcome::Deleted);
            vec![one]
        },
        begin: |_, _| {},
        job: |_| (announced(2), GitOperation::Delete),
        points: &["delete.refs", "delete.head", "release.linked", "release.alternates", "delete.released"],
    },
];

/// Creates the first repository with a commit.
fn create_first_repo(fixture: &GitFixture, author: &AuthorRepo, one: &str) {
    let received_pack = author.received_pack(fixture, &[one]);
    fixture.align(&announced(1), follow_state(&[received_pack], with_head(1, &[("refs/heads/main", one)])));
}

/// Creates the first repository with a commit, and others that read its pool.
fn create_readers_of_first_repo(fixture: &GitFixture, author: &AuthorRepo, readers: &[u8]) -> String {
    let one = author.commit("one");
    create_first_repo(fixture, author, &one);
    let state = with_head(1, &[("refs/heads/main", &one)]);
    for reader in readers {
        let alternates = vec![announced(1)];
        fixture.align(&announced(*reader), Alignment { alternates, ..follow_state(&[], state.clone()) });
    }
    one
}

/// Opens the git data folder and runs the job of a script.
fn run_script(script: &Script, root: &Path) -> (GitFixture, GitJobOutcome) {
    let fixture = GitFixture::open(root);
    (script.begin)(&fixture, root);
    let oids = fs::read_to_string(root.join("oids")).expect("read a list");
    let (repo_path, operation) = (script.job)(&oids.lines().map(str::to_owned).collect::<Vec<_>>());
    let outcome = fixture.run(&GitJob { id: GitJobId(1), repo_path, operation });
    (fixture, outcome)
}

/// Not a test by itself: the process that the crash test starts and that is killed at a crash point.
#[test]
fn process_that_crashes() {
    let (Ok(name), Ok(root)) = (std::env::var("CRASH_SCRIPT"), std::env::var("CRASH_ROOT")) else { return };
    let script = SCRIPTS.iter().find(|script| script.name == name).expect("a known script");
    let (_, outcome) = run_script(script, Path::new(&root));
    panic!("the process was not killed: {outcome:?}");
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "release builds have no crash points")]
fn interrupted_job_is_completed_by_a_second_run() {
    let mut tested = BTreeSet::new();
    for script in &SCRIPTS {
        let folder = TempDir::new().expect("create a folder");
        let (prepared, clean) = (folder.path().join("prepared"), folder.path().join("clean"));
        let oids = (script.prepare)(&GitFixture::open(&prepared), &AuthorRepo::new());
        fs::write(prepared.join("oids"), oids.join("\n")).expect("write a file");
        copy_folder(&prepared, &clean);
        let (fixture, expected) = run_script(script, &clean);
        assert!(!matches!(expected, GitJobOutcome::Failed(_)), "{expected:?}");
        let contents = fixture.contents();
        for point in script.points {
            let context = format!("{} at {point}", script.name);
            let root = folder.path().join(point);
            copy_folder(&prepared, &root);
            let status = Command::new(std::env::current_exe().expect("find this program"))
                .args(["apply::crash::process_that_crashes", "--exact"])
                .envs([("CRASH_SCRIPT", script.name), ("GRASPD_CRASH_AT", point)])
                .env("CRASH_ROOT", &root)
                .output()
                .expect("run the command");
            assert_eq!(status.status.signal(), Some(9), "{context}: {status:?}");
            check_all_repos(&root, &context);
            let (fixture, outcome) = run_script(script, &root);
            // The start records packs that a crash has left, not the job.
            let without_packs = |outcome: &GitJobOutcome| match outcome.clone() {
                GitJobOutcome::Aligned(aligned) => GitJobOutcome::Aligned(AlignmentResult { packs: None, ..aligned }),
                outcome => outcome,
            };
            assert_eq!(without_packs(&outcome), without_packs(&expected), "{context}");
            let again = fixture.contents();
            let names = |contents: &std::collections::BTreeMap<_, _>| contents.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&again), names(&contents), "{context}");
            assert!(again == contents, "{context}");
            check_all_repos(&root, &context);
            tested.insert(*point);
        }
    }
    // Every crash point of the module was tested.
    let mut all = BTreeSet::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let entries = fs::read_dir(source.join("apply")).expect("list the source folder");
    let files = entries.map(|entry| entry.expect("read an entry").path()).chain([source.join("pool_readers.rs")]);
    for file in files {
        let text = fs::read_to_string(file).expect("read a file");
        all.extend(
            text.split("crash_point::point(\"")
                .skip(1)
                .filter_map(|rest| rest.split_once('"').map(|(name, _)| name.to_owned())),
        );
    }
    assert_eq!(tested.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), all);
}

fn copy_folder(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").args([from, to]).status().expect("run the command");
    assert!(status.success());
}

/// Checks that every existing repository is complete.
fn check_all_repos(root: &Path, context: &str) {
    for owner in ["repos", "prs"].iter().flat_map(|parent| fs::read_dir(root.join(parent)).expect("list a folder")) {
        for repo in fs::read_dir(owner.expect("read an entry").path()).expect("list a folder") {
            let repo = repo.expect("read an entry").path();
            // A folder without HEAD is the pool of a deleted repository.
            let is_repo = repo.join("HEAD").exists();
            assert!(is_repo || repo.join("pool").is_dir(), "{context}");
            if is_repo {
                git(&repo, &["fsck", "--full", "--strict", "--connectivity-only"]);
            }
        }
    }
}

/// A received pack is lost with the process; the client sends it again.
#[test]
fn interrupted_push_can_be_repeated() {
    let folder = TempDir::new().expect("create a folder");
    let author = AuthorRepo::new();
    let one = author.commit("one");
    let fixture = GitFixture::open(folder.path());
    let received_pack = author.received_pack(&fixture, &[&one]);
    // As after the first rename: the pack is in the pool and its index is not.
    let state = with_head(1, &[("refs/heads/main", &one)]);
    fixture.align(&announced(1), follow_state(&[received_pack], state.clone()));
    fixture.align(
        &announced(1),
        Alignment { fallback: grasp_core::admission::git_job::RefFallback::Clear, ..Alignment::default() },
    );
    let packs = fixture.layout.pool(&announced(1)).join("pack");
    for entry in fs::read_dir(&packs).expect("list a folder") {
        let path = entry.expect("read an entry").path();
        if path.extension().is_some_and(|part| part == "idx") {
            fs::remove_file(path).expect("remove a file");
        }
    }
    let fixture = GitFixture::open(folder.path());
    assert_eq!(fixture.align(&announced(1), follow_state(&[], state.clone())).chosen, None);
    let received_pack = author.received_pack(&fixture, &[&one]);
    assert!(fixture.align(&announced(1), follow_state(&[received_pack], state)).chosen.is_some());
    fixture.check_repo(&announced(1));
}

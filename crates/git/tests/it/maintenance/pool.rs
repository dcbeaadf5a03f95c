//! Test helpers: changes and inspection of pools.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, GitJob, GitJobId, GitJobOutcome, GitOperation, RefFallback,
};
use grasp_core::repo::RepoPath;
use grasp_git::maintenance::{MaintenanceOutcome, PoolMaintainer};
use grasp_git::process::{Git, ProcessLimits};

use crate::git_folder::{AuthorRepo, GitFixture, follow_state, git, with_head};

/// Time limit of git processes: long enough for all tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) const DAY: Duration = Duration::from_secs(24 * 3_600);

pub(crate) fn installed_git() -> Git {
    Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 1 << 28, address_bytes: 1 << 32 })
}

pub(crate) fn maintainer(fixture: &GitFixture) -> PoolMaintainer {
    PoolMaintainer::new(&installed_git(), Arc::clone(&fixture.layout), fixture.rows.clone(), TIMEOUT)
}

/// Reports that no objects are needed besides those that refs lead to.
pub(crate) fn nothing_needed(_: &[RepoPath]) -> Option<BTreeSet<String>> {
    Some(BTreeSet::new())
}

/// Prunes a repository. Only the objects that refs lead to are needed.
pub(crate) fn prune(fixture: &GitFixture, repo_path: &RepoPath, grace: Duration) -> MaintenanceOutcome {
    maintainer(fixture).prune(repo_path, grace, &mut nothing_needed).expect("prune a pool")
}

/// Pushes commits, each in its own pack, and points `main` to the last.
pub(crate) fn push_each(fixture: &GitFixture, repo_path: &RepoPath, author: &AuthorRepo, texts: &[String]) -> String {
    let mut last = String::new();
    for text in texts {
        // Empty before the first commit.
        let before = author.git(&["for-each-ref", "--format=^%(objectname)", "refs/heads"]);
        let commit = author.commit(text);
        let revisions: Vec<&str> = [commit.as_str()].into_iter().chain(before.lines()).collect();
        push(fixture, repo_path, author, &revisions);
        last = commit;
    }
    last
}

/// Pushes a pack of what some revisions refer to, and points `main` to the first.
pub(crate) fn push(fixture: &GitFixture, repo_path: &RepoPath, author: &AuthorRepo, revisions: &[&str]) {
    let received_pack = author.received_pack(fixture, revisions);
    point_main_to(fixture, repo_path, Alignment { adopt: vec![received_pack], ..Alignment::default() }, revisions[0]);
}

/// Points `main` of a repository to a commit.
pub(crate) fn point_main_to(fixture: &GitFixture, repo_path: &RepoPath, alignment: Alignment, commit: &str) {
    let state = follow_state(&alignment.adopt, with_head(1, &[("refs/heads/main", commit)]));
    let aligned = run_alignment(fixture, repo_path, Alignment { alternates: alignment.alternates, ..state });
    assert!(aligned.chosen.is_some(), "{commit} is incomplete");
}

/// Runs an alignment.
pub(crate) fn run_alignment(fixture: &GitFixture, repo_path: &RepoPath, alignment: Alignment) -> AlignmentResult {
    let job = GitJob { id: GitJobId(1), repo_path: repo_path.clone(), operation: GitOperation::Align(alignment) };
    match fixture.run(&job) {
        GitJobOutcome::Aligned(aligned) => aligned,
        other => panic!("{other:?}"),
    }
}

/// Removes all branches and tags.
pub(crate) fn clear(fixture: &GitFixture, repo_path: &RepoPath) {
    run_alignment(fixture, repo_path, Alignment { fallback: RefFallback::Clear, ..Alignment::default() });
}

/// Returns the pack files of a repository's pool.
pub(crate) fn packs(fixture: &GitFixture, repo_path: &RepoPath) -> Vec<PathBuf> {
    files(&fixture.layout.pool(repo_path).join("pack")).into_iter().filter(|path| path.ends_with("pack")).collect()
}

trait EndsWith {
    fn ends_with(&self, part: &str) -> bool;
}

impl EndsWith for PathBuf {
    fn ends_with(&self, part: &str) -> bool {
        self.extension().is_some_and(|extension| extension == part)
    }
}

pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).expect("list a folder").map(|entry| entry.expect("read an entry").path()).collect();
    files.sort();
    files
}

/// Returns all objects of a repository's own pool, with their types.
pub(crate) fn objects(fixture: &GitFixture, repo_path: &RepoPath) -> BTreeMap<String, String> {
    objects_of(&fixture.layout.empty_repo(), &fixture.layout.pool(repo_path))
}

fn objects_of(folder: &Path, pool: &Path) -> BTreeMap<String, String> {
    let output = Command::new("git")
        .env("GIT_DIR", folder)
        .env("GIT_OBJECT_DIRECTORY", pool)
        .args(["cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)"])
        .output()
        .expect("run git");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().filter_map(|line| line.split_once(' ')).map(|(oid, kind)| (oid.into(), kind.into())).collect()
}

/// Sets the modification times of all files of a pool back.
pub(crate) fn age_packs(fixture: &GitFixture, repo_path: &RepoPath, by: Duration) {
    for path in files(&fixture.layout.pool(repo_path).join("pack")) {
        let file = fs::File::open(&path).expect("open a file");
        let modified = file.metadata().and_then(|metadata| metadata.modified()).expect("read a time");
        file.set_modified(modified - by).expect("set a time");
    }
}

/// Creates a bare repository with a generated history.
pub(crate) fn import_history(folder: &Path, commits: usize) -> PathBuf {
    let bare = folder.join("imported.git");
    git(folder, &["init", "--quiet", "--bare", "imported.git"]);
    let mut child = Command::new("git")
        .current_dir(&bare)
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("start git");
    let mut input = std::io::BufWriter::new(child.stdin.take().expect("stdin is piped"));
    let mut rng = 1_u64;
    let mut next = |below: u64| {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (rng >> 33) % below
    };
    for nth in 1..=commits {
        let mut text = format!(
            "commit refs/heads/main\nmark :{nth}\ncommitter a <a@b> {} +0000\ndata 1\nm\n",
            1_600_000_000 + nth
        );
        if nth > 1 {
            text.push_str(&format!("from :{}\n", nth - 1));
        }
        for _ in 0..2 {
            let content = format!("line {}\n", next(1 << 40)).repeat(5 + next(50) as usize);
            let path = format!("d{}/e{}/f{}", next(40), next(20), next(20));
            text.push_str(&format!("M 644 inline {path}\ndata {}\n{content}\n", content.len()));
        }
        input.write_all(text.as_bytes()).expect("write to git");
    }
    drop(input);
    assert!(child.wait().expect("wait for the process").success());
    bare
}

/// Adds the history of `main` of a bare repository to a pool, in a number of packs, as that many pushes would.
pub(crate) fn deliver_history(fixture: &GitFixture, repo_path: &RepoPath, bare: &Path, pack_count: usize) -> String {
    let history = git(bare, &["rev-list", "--reverse", "main"]);
    let history: Vec<&str> = history.lines().collect();
    let pool = fixture.layout.pool(repo_path);
    fs::create_dir_all(pool.join("pack")).expect("create a folder");
    let mut before = String::new();
    for nth in 1..=pack_count {
        let tip = history[history.len() * nth / pack_count - 1];
        let mut child = Command::new("git")
            .current_dir(bare)
            .args(["pack-objects", "--quiet", "--revs", "--threads=1", "--delta-base-offset"])
            .arg(pool.join("pack/pack"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("start git");
        let mut input = child.stdin.take().expect("stdin is piped");
        input.write_all(format!("{tip}\n{before}").as_bytes()).expect("write to git");
        drop(input);
        assert!(child.wait().expect("wait for the process").success());
        before = format!("^{tip}\n");
    }
    let tip = history.last().expect("a commit").to_string();
    point_main_to(fixture, repo_path, Alignment::default(), &tip);
    tip
}

/// Returns when a file was last changed.
pub(crate) fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|metadata| metadata.modified()).expect("read a time")
}

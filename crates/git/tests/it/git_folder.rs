//! Test fixtures: a git data folder with a job runner, and an author's repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use std::{fs, io};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, PullRequestRef,
    ReceivedPack,
};
use grasp_core::nostr::{EventId, PublicKey};
use grasp_core::repo::{Identifier, PackManifest, RepoId, RepoPath, RepoRow};
use grasp_git::apply::GitJobRunner;
use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::refs::{read_refs, write_refs};
use grasp_git::repo_rows::RepoRows;
use tempfile::TempDir;

/// A git data folder with a job runner.
pub(crate) struct GitFixture {
    pub(crate) layout: Arc<Layout>,
    pub(crate) runner: GitJobRunner,
    pub(crate) rows: Arc<TestRows>,
}

/// Rows of repositories. The refs are those of the files, which the fixture writes after each job, as the server does.
pub(crate) struct TestRows {
    layout: Arc<Layout>,
    degraded: Mutex<BTreeMap<RepoPath, String>>,
    packs: Mutex<BTreeMap<RepoPath, PackManifest>>,
}

impl RepoRows for TestRows {
    fn row(&self, repo_path: &RepoPath) -> io::Result<Option<RepoRow>> {
        let folder = self.layout.repo_dir(repo_path);
        if !folder.join("HEAD").exists() {
            return Ok(None);
        }
        let degraded = self.degraded.lock().expect("lock").get(repo_path).cloned();
        Ok(Some(RepoRow { version: 1, refs: Arc::new(read_refs(&folder)?), degraded }))
    }

    fn set_degraded(&self, repo_path: &RepoPath, reason: &str) -> io::Result<()> {
        self.degraded.lock().expect("lock").insert(repo_path.clone(), reason.to_owned());
        Ok(())
    }

    fn packs(&self, repo_path: &RepoPath) -> io::Result<Option<PackManifest>> {
        Ok(self.packs.lock().expect("lock").get(repo_path).cloned())
    }

    fn set_packs(&self, repo_path: &RepoPath, packs: PackManifest) -> io::Result<()> {
        self.packs.lock().expect("lock").insert(repo_path.clone(), packs);
        Ok(())
    }
}

impl GitFixture {
    /// Opens a git data folder, as the start of the server does.
    pub(crate) fn open(root: &Path) -> Self {
        Self::with_timeout(root, Duration::from_secs(60))
    }

    /// Like [`open`](Self::open), with another time limit of git processes.
    pub(crate) fn with_timeout(root: &Path, timeout: Duration) -> Self {
        let layout = Arc::new(Layout::open(root).expect("open a git data folder"));
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 1 << 28, address_bytes: 1 << 32 });
        let rows =
            Arc::new(TestRows { layout: Arc::clone(&layout), degraded: Mutex::default(), packs: Mutex::default() });
        Self { runner: GitJobRunner::new(git, Arc::clone(&layout), rows.clone(), timeout), layout, rows }
    }

    /// Runs a job, and records its result as the server does.
    pub(crate) fn run(&self, job: &GitJob) -> GitJobOutcome {
        let outcome = self.runner.run(job, |outcome| outcome);
        let folder = self.layout.repo_dir(&job.repo_path);
        if let GitJobOutcome::Aligned(aligned) = &outcome
            && folder.exists()
        {
            write_refs(&folder, &aligned.refs).expect("write refs");
            if let Some(packs) = &aligned.packs {
                self.rows.set_packs(&job.repo_path, PackManifest::clone(packs)).expect("in memory");
            }
            if aligned.was_degraded && aligned.lost.is_none() {
                self.rows.degraded.lock().expect("lock").remove(&job.repo_path);
            }
        }
        outcome
    }

    /// Returns whether a repository is degraded.
    pub(crate) fn is_degraded(&self, repo_path: &RepoPath) -> bool {
        self.rows.degraded.lock().expect("lock").contains_key(repo_path)
    }

    /// Runs a job twice: the second run must have the same outcome and change no file.
    pub(crate) fn run_twice(&self, repo_path: &RepoPath, operation: GitOperation) -> GitJobOutcome {
        let job = GitJob { id: GitJobId(1), repo_path: repo_path.clone(), operation };
        let outcome = self.run(&job);
        let before = self.all_files();
        let again = self.run(&job);
        // New packs and the end of a degradation are reported once.
        let without_packs = |outcome: &GitJobOutcome| match outcome.clone() {
            GitJobOutcome::Aligned(aligned) => {
                GitJobOutcome::Aligned(AlignmentResult { packs: None, was_degraded: false, ..aligned })
            }
            outcome => outcome,
        };
        assert_eq!(without_packs(&again), without_packs(&outcome));
        let after = self.all_files();
        for (path, entry) in &after {
            assert!(before.get(path) == Some(entry), "{} was changed", path.display());
        }
        assert_eq!(before.len(), after.len());
        let left: Vec<_> = fs::read_dir(self.layout.root().join("incoming")).expect("list a folder").collect();
        assert!(left.is_empty(), "{left:?}");
        outcome
    }

    /// Aligns a repository. Returns the result without the refs, which are in the files.
    pub(crate) fn align(&self, repo_path: &RepoPath, alignment: Alignment) -> AlignmentResult {
        match self.run_twice(repo_path, GitOperation::Align(alignment)) {
            GitJobOutcome::Aligned(aligned) => {
                AlignmentResult { refs: Arc::default(), packs: None, was_degraded: false, ..aligned }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the refs of a repository as git lists them: `oid name peeled`.
    pub(crate) fn refs(&self, repo_path: &RepoPath) -> Vec<String> {
        let folder = self.layout.repo_dir(repo_path);
        // Older versions of git follow only one tag of a chain of tags for `%(*objectname)`.
        // Many refs may have the same tag, and peeling a tag starts a process.
        let mut peeled_tags = BTreeMap::new();
        let peeled = |line: &str| match line.strip_suffix(" tag") {
            Some(line) => {
                let tag = &line[..40];
                let peel = || git(&folder, &["rev-parse", &format!("{tag}^{{}}")]);
                format!("{line} {}", peeled_tags.entry(tag.to_owned()).or_insert_with(peel))
            }
            None => line.rsplit_once(' ').expect("three fields").0.to_owned(),
        };
        let listed = git(&folder, &["for-each-ref", "--format=%(objectname) %(refname) %(objecttype)"]);
        listed.lines().map(peeled).collect()
    }

    /// Returns the number of refs of a repository on disk.
    pub(crate) fn refs_on_disk(&self, repo_path: &RepoPath) -> usize {
        let refs = read_refs(&self.layout.repo_dir(repo_path)).expect("read refs");
        refs.iter().count()
    }

    /// Checks that git finds no fault in a repository and can clone it.
    pub(crate) fn check_repo(&self, repo_path: &RepoPath) {
        let folder = self.layout.repo_dir(repo_path);
        let output = try_git(&folder, &["fsck", "--full", "--strict", "--no-dangling"]);
        assert!(output.status.success(), "{output:?}");
        let refs = read_refs(&folder).expect("read refs");
        let target = TempDir::new().expect("create a folder");
        git(target.path(), &["clone", "--quiet", "--mirror", folder.to_str().expect("UTF-8"), "copy"]);
        let cloned = git(&target.path().join("copy"), &["for-each-ref", "--format=%(objectname) %(refname)"]);
        let ours: Vec<String> = refs.iter().map(|(name, target)| format!("{} {name}", target.oid)).collect();
        assert_eq!(cloned.lines().collect::<Vec<_>>(), ours.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Returns whether an object can be read in a repository.
    pub(crate) fn can_read(&self, repo_path: &RepoPath, oid: &str) -> bool {
        try_git(&self.layout.repo_dir(repo_path), &["cat-file", "-e", oid]).status.success()
    }

    /// Returns all files that a start of the server does not remove, with their modification times.
    pub(crate) fn all_files(&self) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
        let mut found = BTreeMap::new();
        for folder in ["repos", "prs", "staged"] {
            collect_files(&self.layout.root().join(folder), &mut found);
        }
        found
    }

    /// Returns the content of all these files by relative path.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let root = self.layout.root();
        let short = |path: PathBuf| path.strip_prefix(root).expect("a path below the root").to_owned();
        self.all_files().into_iter().map(|(path, (_, bytes))| (short(path), bytes)).collect()
    }
}

fn collect_files(path: &Path, found: &mut BTreeMap<PathBuf, (SystemTime, Vec<u8>)>) {
    let metadata = fs::metadata(path).expect("read metadata");
    let mut bytes = Vec::new();
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("list a folder") {
            collect_files(&entry.expect("read an entry").path(), found);
        }
    } else {
        bytes = fs::read(path).expect("read a file");
    }
    found.insert(path.to_owned(), (metadata.modified().expect("read a time"), bytes));
}

/// Returns the announced repository of an owner.
pub(crate) fn announced(owner: u8) -> RepoPath {
    RepoPath::Announced(repo(owner))
}

/// Returns the repository of pull requests that a key has submitted.
pub(crate) fn submission(owner: u8) -> RepoPath {
    RepoPath::PullRequests(repo(owner))
}

fn repo(owner: u8) -> RepoId {
    RepoId { owner: PublicKey([owner; 32]), identifier: Identifier::new("My: tool").expect("valid") }
}

/// Returns an event id made of a number.
pub(crate) fn event(number: u8) -> EventId {
    EventId([number; 32])
}

/// Returns a candidate state without HEAD.
pub(crate) fn candidate(number: u8, refs: &[(&str, &str)]) -> CandidateState {
    let refs = refs.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect();
    CandidateState { event: event(number), is_served: false, refs, head: None, sources: Vec::new() }
}

/// Returns a candidate state whose HEAD is its first ref.
pub(crate) fn with_head(number: u8, refs: &[(&str, &str)]) -> CandidateState {
    CandidateState { head: Some(refs[0].0.to_owned()), ..candidate(number, refs) }
}

/// Returns a pull request.
pub(crate) fn pull_request(number: u8, tip: &str, sources: &[RepoPath]) -> PullRequestRef {
    PullRequestRef { event: event(number), tip: tip.to_owned(), sources: sources.to_vec() }
}

/// Returns an alignment that adopts packs and has one candidate.
pub(crate) fn follow_state(adopt: &[ReceivedPack], candidate: CandidateState) -> Alignment {
    Alignment { adopt: adopt.to_vec(), candidates: vec![candidate], ..Alignment::default() }
}

/// Runs git, which must succeed, and returns its output.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = try_git(folder, arguments);
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
}

fn try_git(folder: &Path, arguments: &[&str]) -> Output {
    bare_git(folder).args(arguments).output().expect("run git")
}

fn bare_git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["AUTHOR", "COMMITTER"].map(|role| (format!("GIT_{role}_NAME"), "a")))
        .envs(["AUTHOR", "COMMITTER"].map(|role| (format!("GIT_{role}_EMAIL"), "a@example")))
        .envs(["AUTHOR", "COMMITTER"].map(|role| (format!("GIT_{role}_DATE"), "1700000000 +0000")));
    command
}

/// The working repository of an author.
pub(crate) struct AuthorRepo(TempDir);

impl AuthorRepo {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("create a folder");
        git(folder.path(), &["init", "--quiet", "."]);
        Self(folder)
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git(self.0.path(), arguments)
    }

    /// Commits a change of one file on top of the current commit, and returns the new commit.
    pub(crate) fn commit(&self, text: &str) -> String {
        fs::create_dir_all(self.0.path().join("folder")).expect("create a folder");
        fs::write(self.0.path().join("folder/file"), text).expect("write a file");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", text]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Creates an annotated tag of an object and returns the tag object.
    pub(crate) fn tag(&self, name: &str, of: &str) -> String {
        self.git(&["tag", "--annotate", "--message", name, name, of]);
        self.git(&["rev-parse", &format!("refs/tags/{name}")])
    }

    /// Writes a pack of everything that revisions refer to. `^oid` excludes what that object refers to.
    pub(crate) fn pack(&self, folder: &Path, revisions: &[&str]) {
        let objects = self.git(&[&["rev-list", "--objects"], revisions].concat());
        let oids: Vec<&str> = objects.lines().map(|line| &line[..40]).collect();
        self.pack_objects(folder, &oids);
    }

    /// Writes a pack of exactly these objects.
    pub(crate) fn pack_objects(&self, folder: &Path, oids: &[&str]) {
        fs::create_dir_all(folder.join("pack")).expect("create a folder");
        let list = self.0.path().join(".git/list");
        fs::write(&list, oids.iter().map(|oid| format!("{oid}\n")).collect::<String>()).expect("write a file");
        let output = bare_git(self.0.path())
            .args(["-c", "core.fsync=none", "pack-objects", "--quiet", "--threads=1"])
            .arg(folder.join("pack/pack"))
            .stdin(fs::File::open(&list).expect("read a list"))
            .output()
            .expect("run git");
        assert!(output.status.success(), "{output:?}");
    }

    /// Writes a pack as if it had just been received.
    pub(crate) fn received_pack(&self, fixture: &GitFixture, revisions: &[&str]) -> ReceivedPack {
        let received_pack = ReceivedPack::Incoming(fixture.layout.next_number());
        self.pack(&fixture.layout.received_pack(&received_pack), revisions);
        received_pack
    }
}

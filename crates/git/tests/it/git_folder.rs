//! A git folder, a keeper, and somebody who makes commits.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use grasp_core::admission::git_job::{
    Alignment, AlignmentResult, CandidateState, GitJob, GitJobId, GitJobOutcome, GitOperation, PullRequestRef,
    ReceivedPack,
};
use grasp_core::nostr::{EventId, PublicKey};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_git::apply::{Carried, Keeper};
use grasp_git::layout::Layout;
use grasp_git::process::{Bounds, Git};
use tempfile::TempDir;

/// A git folder with a keeper.
pub(crate) struct World {
    pub(crate) layout: Arc<Layout>,
    pub(crate) keeper: Keeper,
}

impl World {
    /// Opens a git folder, as a start of the server does.
    pub(crate) fn open(root: &Path) -> Self {
        Self::with_patience(root, Duration::from_secs(60))
    }

    /// The same with another patience for git.
    pub(crate) fn with_patience(root: &Path, patience: Duration) -> Self {
        let layout = Arc::new(Layout::open(root).expect("a git folder"));
        let git = Git::new(Path::new("git"), Bounds { alloc_bytes: 1 << 28, address_bytes: 1 << 32 });
        Self { keeper: Keeper::new(git, Arc::clone(&layout), patience), layout }
    }

    /// Carries out work, and then once more: the second time must give the same and touch nothing.
    pub(crate) fn work(&self, repo_path: &RepoPath, work: GitOperation) -> Carried {
        let order = GitJob { id: GitJobId(1), repo_path: repo_path.clone(), operation: work };
        let carried = self.keeper.carry_out(&order);
        let before = self.everything();
        let again = self.keeper.carry_out(&order);
        assert_eq!(again.outcome, carried.outcome);
        let after = self.everything();
        for (path, entry) in &after {
            assert!(before.get(path) == Some(entry), "{} was touched", path.display());
        }
        assert_eq!(before.len(), after.len());
        let left: Vec<_> = fs::read_dir(self.layout.root().join("incoming")).expect("a folder").collect();
        assert!(left.is_empty(), "{left:?}");
        // What is in place already is shown once more.
        for (repo_path, refs) in carried.refs.iter().chain(&again.refs) {
            let read = grasp_git::refs::Refs::read(&self.layout.repo_dir(repo_path)).expect("reads");
            assert_eq!(read, *refs, "the snapshot is the file");
        }
        carried
    }

    /// Aligns a site.
    pub(crate) fn align(&self, repo_path: &RepoPath, align: Alignment) -> AlignmentResult {
        match self.work(repo_path, GitOperation::Align(align)).outcome {
            GitJobOutcome::Aligned(aligned) => aligned,
            other => panic!("{other:?}"),
        }
    }

    /// The refs of a site as git shows them: `oid name peeled`.
    pub(crate) fn refs(&self, repo_path: &RepoPath) -> Vec<String> {
        let format = "--format=%(objectname) %(refname) %(*objectname)";
        let listed = git(&self.layout.repo_dir(repo_path), &["for-each-ref", format]);
        listed.lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Git finds nothing wrong with a site, and it can be cloned.
    pub(crate) fn check(&self, repo_path: &RepoPath) {
        let folder = self.layout.repo_dir(repo_path);
        let output = try_git(&folder, &["fsck", "--full", "--strict", "--no-dangling"]);
        assert!(output.status.success(), "{output:?}");
        let refs = grasp_git::refs::Refs::read(&folder).expect("reads");
        let target = TempDir::new().expect("a folder");
        git(target.path(), &["clone", "--quiet", "--mirror", folder.to_str().expect("text"), "copy"]);
        let cloned = git(&target.path().join("copy"), &["for-each-ref", "--format=%(objectname) %(refname)"]);
        let ours: Vec<String> = refs.iter().map(|(name, target)| format!("{} {name}", target.oid)).collect();
        assert_eq!(cloned.lines().collect::<Vec<_>>(), ours.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Whether an object can be read at a site.
    pub(crate) fn reads(&self, repo_path: &RepoPath, oid: &str) -> bool {
        try_git(&self.layout.repo_dir(repo_path), &["cat-file", "-e", oid]).status.success()
    }

    /// All that is on disk and does not go at every start, with the time of its last change.
    pub(crate) fn everything(&self) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
        let mut found = BTreeMap::new();
        for room in ["repos", "prs", "staged"] {
            collect(&self.layout.root().join(room), &mut found);
        }
        found
    }

    /// The same without times and without the way to it.
    pub(crate) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let root = self.layout.root();
        let short = |path: PathBuf| path.strip_prefix(root).expect("below the root").to_owned();
        self.everything().into_iter().map(|(path, (_, bytes))| (short(path), bytes)).collect()
    }
}

fn collect(path: &Path, found: &mut BTreeMap<PathBuf, (SystemTime, Vec<u8>)>) {
    let metadata = fs::metadata(path).expect("it is there");
    let mut bytes = Vec::new();
    if metadata.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            collect(&entry.expect("an entry").path(), found);
        }
    } else {
        bytes = fs::read(path).expect("a file");
    }
    found.insert(path.to_owned(), (metadata.modified().expect("a time"), bytes));
}

/// A site of somebody's `tool`.
pub(crate) fn announced(owner: u8) -> RepoPath {
    RepoPath::Announced(repo(owner))
}

/// What somebody offers to `tool`.
pub(crate) fn submitted(owner: u8) -> RepoPath {
    RepoPath::PullRequests(repo(owner))
}

fn repo(owner: u8) -> RepoId {
    RepoId { owner: PublicKey([owner; 32]), identifier: Identifier::new("My: tool").expect("valid") }
}

/// An event by number.
pub(crate) fn event(number: u8) -> EventId {
    EventId([number; 32])
}

/// A candidate without HEAD.
pub(crate) fn candidate(number: u8, refs: &[(&str, &str)]) -> CandidateState {
    let refs = refs.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect();
    CandidateState { event: event(number), refs, head: None, sources: Vec::new() }
}

/// A candidate that points HEAD to its first ref.
pub(crate) fn with_head(number: u8, refs: &[(&str, &str)]) -> CandidateState {
    CandidateState { head: Some(refs[0].0.to_owned()), ..candidate(number, refs) }
}

/// A pull request.
pub(crate) fn pull(number: u8, tip: &str, sources: &[RepoPath]) -> PullRequestRef {
    PullRequestRef { event: event(number), tip: tip.to_owned(), sources: sources.to_vec() }
}

/// An order to adopt packs and follow a state.
pub(crate) fn follow(adopt: &[ReceivedPack], candidate: CandidateState) -> Alignment {
    Alignment { adopt: adopt.to_vec(), candidates: vec![candidate], ..Alignment::default() }
}

/// Runs git, which must succeed, and gives what it says.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = try_git(folder, arguments);
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}

fn try_git(folder: &Path, arguments: &[&str]) -> Output {
    bare_git(folder).args(arguments).output().expect("git runs")
}

fn bare_git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_NAME"), "a")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_EMAIL"), "a@example")))
        .envs(["AUTHOR", "COMMITTER"].map(|who| (format!("GIT_{who}_DATE"), "1700000000 +0000")));
    command
}

/// Somebody's working repository.
pub(crate) struct Author(TempDir);

impl Author {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        git(folder.path(), &["init", "--quiet", "."]);
        Self(folder)
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        git(self.0.path(), arguments)
    }

    /// Commits a change of one file below a folder, on top of what is checked out.
    pub(crate) fn commit(&self, text: &str) -> String {
        fs::create_dir_all(self.0.path().join("folder")).expect("a folder");
        fs::write(self.0.path().join("folder/file"), text).expect("writes");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "--message", text]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// An annotated tag of an object.
    pub(crate) fn tag(&self, name: &str, of: &str) -> String {
        self.git(&["tag", "--annotate", "--message", name, name, of]);
        self.git(&["rev-parse", &format!("refs/tags/{name}")])
    }

    /// Makes a pack of what revisions need, as if it had been received: `^oid` leaves out what that needs.
    pub(crate) fn pack(&self, folder: &Path, revisions: &[&str]) {
        let objects = self.git(&[&["rev-list", "--objects"], revisions].concat());
        let oids: Vec<&str> = objects.lines().map(|line| &line[..40]).collect();
        self.pack_objects(folder, &oids);
    }

    /// Makes a pack of exactly these objects.
    pub(crate) fn pack_objects(&self, folder: &Path, oids: &[&str]) {
        fs::create_dir_all(folder.join("pack")).expect("a folder");
        let list = self.0.path().join(".git/list");
        fs::write(&list, oids.iter().map(|oid| format!("{oid}\n")).collect::<String>()).expect("writes");
        let output = bare_git(self.0.path())
            .args(["-c", "core.fsync=none", "pack-objects", "--quiet", "--threads=1"])
            .arg(folder.join("pack/pack"))
            .stdin(fs::File::open(&list).expect("a list"))
            .output()
            .expect("git runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// A pack that has just been received.
    pub(crate) fn incoming(&self, world: &World, revisions: &[&str]) -> ReceivedPack {
        let received_pack = ReceivedPack::Incoming(world.layout.number());
        self.pack(&world.layout.received_pack(&received_pack), revisions);
        received_pack
    }
}

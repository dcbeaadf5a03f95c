//! Runs the installed git with an empty configuration, and signs the events of repository maintainers.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_core::repo::{Identifier, ServiceAddress};
use grasp_sim::signer::Author;
use tempfile::TempDir;

/// The time, in the past, from which tests count the `created_at` of their events.
pub const BASE_TIME: u64 = 1_700_000_000;

pub const MAIN: &str = "refs/heads/main";
pub const DEVELOP: &str = "refs/heads/develop";
pub const OLD: &str = "refs/heads/old";

/// Versions of the git protocol.
pub const PROTOCOLS: [&str; 3] = ["0", "1", "2"];

/// Refs by name, with their object ids.
pub type Refs = BTreeMap<String, String>;

/// Returns refs from pairs of name and object id.
pub fn refs(pairs: &[(&str, &str)]) -> Refs {
    pairs.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect()
}

/// Exit status and output of a git command.
#[derive(Debug)]
pub struct GitOutput {
    pub success: bool,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl GitOutput {
    /// Returns standard output as trimmed text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }

    /// Asserts success.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert!(self.success, "git failed: {}\n{}", self.stderr, self.text());
        self
    }

    /// Asserts failure, with all of these words on standard error.
    #[track_caller]
    pub fn expect_failure(&self, words: &[&str]) {
        assert!(!self.success, "git succeeded: {}\n{}", self.stderr, self.text());
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", self.stderr);
        }
    }
}

/// Runs git in a folder, with an empty home folder.
fn run(home: &Path, folder: &Path, args: &[&str], input: Stdio) -> GitOutput {
    let mut command = Command::new("git");
    command
        .env_clear()
        .env("PATH", super::programs::search_path())
        .env("HOME", home)
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "Test Author")
            .env(format!("GIT_{role}_EMAIL"), "author@test.example")
            .env(format!("GIT_{role}_DATE"), "1600000000 +0000");
    }
    let output = command.current_dir(folder).args(args).stdin(input).output().expect("cannot run git");
    GitOutput {
        success: output.status.success(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs git outside of any repository.
pub fn git(args: &[&str]) -> GitOutput {
    let home = TempDir::new().expect("cannot create a temporary folder");
    run(home.path(), home.path(), args, Stdio::null())
}

/// The refs and HEAD that a server advertises for a repository.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct RemoteRefs {
    /// All refs except HEAD and peeled tags.
    pub refs: Refs,
    /// The branch that HEAD points to, if that branch exists.
    pub head: Option<String>,
}

/// Runs `git ls-remote`.
#[track_caller]
pub fn ls_remote(url: &str) -> RemoteRefs {
    parse_ls_remote(&git(&["ls-remote", "--symref", url]).expect_success())
}

/// Runs `git ls-remote`; returns `None` if it fails.
pub fn try_ls_remote(url: &str) -> Option<RemoteRefs> {
    let output = git(&["ls-remote", "--symref", url]);
    output.success.then(|| parse_ls_remote(&output))
}

fn parse_ls_remote(output: &GitOutput) -> RemoteRefs {
    let mut remote = RemoteRefs::default();
    for line in output.text().lines() {
        let (value, name) = line.split_once('\t').unwrap_or_else(|| panic!("not a ref: {line}"));
        if let Some(branch) = value.strip_prefix("ref: ") {
            remote.head = Some(branch.to_owned());
        } else if name != "HEAD" && !name.ends_with("^{}") {
            remote.refs.insert(name.to_owned(), value.to_owned());
        }
    }
    remote
}

/// A git repository with a working tree, and a home folder of its own.
pub struct WorkTree {
    folder: TempDir,
}

impl WorkTree {
    /// Creates a repository on the branch `main`, without a commit.
    pub fn new() -> Self {
        let work = Self::without_repo();
        work.git(&["init", "--quiet", "--initial-branch=main"]).expect_success();
        work
    }

    fn without_repo() -> Self {
        let work = Self { folder: TempDir::new().expect("cannot create a temporary folder") };
        for folder in [work.home(), work.tree()] {
            fs::create_dir(folder).expect("cannot create a folder");
        }
        work
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Returns the folder of the working tree.
    pub fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// Runs `git clone` with further arguments; `options` are options of git itself (`-c`).
    pub fn try_clone(options: &[&str], url: &str, args: &[&str]) -> (Self, GitOutput) {
        let work = Self::without_repo();
        let output = work.git(&[options, &["clone", "--quiet"], args, &[url, "."]].concat());
        (work, output)
    }

    /// Makes a full clone, which must succeed.
    #[track_caller]
    pub fn clone(url: &str) -> Self {
        let (work, output) = Self::try_clone(&[], url, &[]);
        output.expect_success();
        work
    }

    /// Runs git in the working tree.
    pub fn git(&self, args: &[&str]) -> GitOutput {
        run(&self.home(), &self.tree(), args, Stdio::null())
    }

    /// Runs git in the working tree, with this standard input.
    pub fn git_with_input(&self, args: &[&str], input: &[u8]) -> GitOutput {
        let path = self.folder.path().join("input");
        fs::write(&path, input).expect("cannot write the file");
        run(&self.home(), &self.tree(), args, File::open(path).expect("cannot open the file").into())
    }

    /// Writes a file and commits it on the current branch; returns the commit.
    #[track_caller]
    pub fn commit(&self, file: &str, content: &str) -> String {
        fs::write(self.tree().join(file), content).expect("cannot write the file");
        self.git(&["add", "--all"]).expect_success();
        let message: String = content.chars().take(50).collect();
        self.git(&["commit", "--quiet", "--allow-empty", "--message", &message]).expect_success();
        self.oid("HEAD")
    }

    /// Makes a commit without a parent, whose tree has one file, on a new branch; returns the commit.
    #[track_caller]
    pub fn commit_orphan(&self, branch: &str, content: &str) -> String {
        self.git(&["checkout", "--quiet", "--orphan", branch]).expect_success();
        self.commit("orphan", content)
    }

    /// Switches to a new branch at the current commit.
    #[track_caller]
    pub fn branch(&self, name: &str) {
        self.git(&["checkout", "--quiet", "-B", name]).expect_success();
    }

    /// Makes an annotated tag of the current commit; returns the tag object.
    #[track_caller]
    pub fn tag(&self, name: &str) -> String {
        self.git(&["tag", "--annotate", "--message", name, name]).expect_success();
        self.oid(name)
    }

    /// Returns the object id of a revision.
    #[track_caller]
    pub fn oid(&self, revision: &str) -> String {
        self.git(&["rev-parse", "--verify", revision]).expect_success().text()
    }

    /// Returns whether the repository has an object.
    pub fn has(&self, oid: &str) -> bool {
        self.git(&["cat-file", "-e", oid]).success
    }

    /// Asserts with `git fsck` that the repository is complete and valid.
    #[track_caller]
    pub fn fsck(&self) {
        self.git(&["fsck", "--full", "--strict"]).expect_success();
    }

    /// Runs `git push`.
    pub fn push(&self, url: &str, refspecs: &[&str]) -> GitOutput {
        self.push_with(&[], url, refspecs)
    }

    /// Runs `git push` with further arguments.
    pub fn push_with(&self, args: &[&str], url: &str, refspecs: &[&str]) -> GitOutput {
        self.git(&[&["push"], args, &[url], refspecs].concat())
    }

    /// Runs `git fetch` with a version of the protocol.
    pub fn fetch(&self, protocol: &str, url: &str, args: &[&str]) -> GitOutput {
        let version = format!("protocol.version={protocol}");
        self.git(&[&["-c", &version, "fetch", "--quiet", url], args].concat())
    }

    /// Returns a pack with exactly these objects.
    #[track_caller]
    pub fn pack(&self, oids: &[&str]) -> Vec<u8> {
        self.git_with_input(&["pack-objects", "--quiet", "--stdout"], (oids.join("\n") + "\n").as_bytes())
            .expect_success()
            .stdout
    }
}

/// Returns whether an object can be fetched from a repository by its id.
pub fn can_fetch(protocol: &str, url: &str, oid: &str) -> bool {
    let work = WorkTree::new();
    let output = work.fetch(protocol, url, &[oid]);
    assert_eq!(output.success, work.has(oid), "{}", output.stderr);
    output.success
}

/// A user who announces repositories on one service and signs their events.
pub struct Maintainer {
    pub author: Author,
    service: ServiceAddress,
}

impl Maintainer {
    pub fn new(n: u8, service: &ServiceAddress) -> Self {
        Self::from_author(Author::new(n), service)
    }

    pub fn from_author(author: Author, service: &ServiceAddress) -> Self {
        Self { author, service: service.clone() }
    }

    pub fn npub(&self) -> String {
        self.author.key().npub()
    }

    /// Returns the coordinate of this user's announcement of `d`.
    pub fn repo(&self, d: &str) -> String {
        self.author.repo(d)
    }

    /// Returns an announcement that lists the service, and these other maintainers.
    pub fn announce(&self, d: &str, at: u64, others: &[&Maintainer]) -> Arc<SignedEvent> {
        let others: Vec<&Author> = others.iter().map(|other| &other.author).collect();
        self.author.announcement(&self.service, d, at, &others)
    }

    /// Returns an announcement that lists the service, with further tags but without other maintainers.
    pub fn announce_with(&self, d: &str, at: u64, more: Vec<Vec<String>>) -> Arc<SignedEvent> {
        self.author.announcement_with(&self.service, d, at, more)
    }

    /// Returns an announcement that does not list the service.
    pub fn announce_elsewhere(&self, d: &str, at: u64, others: &[&Maintainer]) -> Arc<SignedEvent> {
        let others: Vec<&Author> = others.iter().map(|other| &other.author).collect();
        self.author.announcement_elsewhere(d, at, &others)
    }

    /// Returns a state whose HEAD points to the first of its refs, if that is a branch.
    pub fn state(&self, d: &str, at: u64, refs: &[(&str, &str)]) -> Arc<SignedEvent> {
        let head = refs.first().filter(|(name, _)| name.starts_with("refs/heads/")).map(|(name, _)| *name);
        self.state_with_head(d, at, refs, head.map(|name| format!("ref: {name}")).as_deref())
    }

    /// Returns a state with this value of HEAD.
    pub fn state_with_head(&self, d: &str, at: u64, refs: &[(&str, &str)], head: Option<&str>) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["d".to_owned(), d.to_owned()]];
        tags.extend(refs.iter().map(|(name, oid)| vec![(*name).to_owned(), (*oid).to_owned()]));
        tags.extend(head.map(|head| vec!["HEAD".to_owned(), head.to_owned()]));
        self.author.sign_owned(kinds::STATE, at, tags, "")
    }

    /// Returns a state with the branch `main` for which `matches` is true, for example because of its event id. A nonce
    /// tag is varied to find it.
    pub fn state_matching(
        &self,
        d: &str,
        at: u64,
        oid: &str,
        matches: impl Fn(&SignedEvent) -> bool,
    ) -> Arc<SignedEvent> {
        let with_nonce = |nonce: u32| {
            let nonce = nonce.to_string();
            let tags: [&[&str]; 4] = [&["d", d], &[MAIN, oid], &["HEAD", &format!("ref: {MAIN}")], &["nonce", &nonce]];
            self.author.sign(kinds::STATE, at, &tags, "")
        };
        (0..10_000).map(with_nonce).find(|event| matches(event)).expect("no nonce gives a matching event")
    }

    /// Returns a pull request to repositories, given by their coordinates.
    pub fn pull_request(&self, at: u64, targets: &[&str], tip: &str, clone: &[&str]) -> Arc<SignedEvent> {
        self.pull_request_event(kinds::PULL_REQUEST, at, targets, tip, clone)
    }

    /// Returns a pull request or an update of one, depending on `kind`.
    pub fn pull_request_event(
        &self,
        kind: u16,
        at: u64,
        targets: &[&str],
        tip: &str,
        clone: &[&str],
    ) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["c".to_owned(), tip.to_owned()]];
        tags.push(std::iter::once("clone").chain(clone.iter().copied()).map(str::to_owned).collect());
        tags.extend(targets.iter().map(|target| vec!["a".to_owned(), (*target).to_owned()]));
        self.author.sign_owned(kind, at, tags, "please merge")
    }

    /// Returns a deletion request for events, by id.
    pub fn delete(&self, at: u64, events: &[&SignedEvent]) -> Arc<SignedEvent> {
        self.author.delete(at, events)
    }

    /// Returns a deletion request for all versions at a coordinate.
    pub fn delete_coordinate(&self, at: u64, kind: u16, d: &str) -> Arc<SignedEvent> {
        let coordinate = Coordinate { kind, pubkey: self.author.key(), d: d.to_owned() }.to_string();
        self.author.deletion(at, &[&["a", &coordinate]])
    }
}

/// Returns the path of a repository below the base path, with a leading slash.
pub fn repo_path(npub: &str, d: &str) -> String {
    format!("/{npub}/{}.git", Identifier::new(d).expect("valid repository identifier").percent_encoded())
}

/// Returns pseudo-random hex digits, which compress to about half their length, to make packs large.
pub fn incompressible_text(bytes: usize) -> String {
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut text = String::with_capacity(bytes);
    while text.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("{state:016x}"));
    }
    text
}

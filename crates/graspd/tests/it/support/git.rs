//! The real git with no configuration of ours, and people who sign.

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

/// A time in the past that all events of these tests stand around.
pub const THEN: u64 = 1_700_000_000;

pub const MAIN: &str = "refs/heads/main";
pub const DEVELOP: &str = "refs/heads/develop";
pub const OLD: &str = "refs/heads/old";

/// Protocols that git clients speak.
pub const PROTOCOLS: [&str; 3] = ["0", "1", "2"];

/// Refs and where they stand.
pub type Refs = BTreeMap<String, String>;

/// Refs from pairs.
pub fn refs(pairs: &[(&str, &str)]) -> Refs {
    pairs.iter().map(|(name, oid)| ((*name).to_owned(), (*oid).to_owned())).collect()
}

/// What git said and how it ended.
#[derive(Debug)]
pub struct Said {
    pub success: bool,
    pub out: Vec<u8>,
    pub err: String,
}

impl Said {
    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).trim().to_owned()
    }

    /// Demands success.
    #[track_caller]
    pub fn done(self) -> Self {
        assert!(self.success, "git failed: {}\n{}", self.err, self.text());
        self
    }

    /// Demands failure, with all of these words on standard error.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) {
        assert!(!self.success, "git succeeded: {}\n{}", self.err, self.text());
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in: {}", self.err);
        }
    }
}

/// Runs git with an empty home, in a folder, with this file as input.
fn run(home: &Path, folder: &Path, args: &[&str], input: Stdio) -> Said {
    let mut command = Command::new("git");
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").expect("a search path"))
        .env("HOME", home)
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0");
    for role in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{role}_NAME"), "Somebody")
            .env(format!("GIT_{role}_EMAIL"), "somebody@elsewhere.example")
            .env(format!("GIT_{role}_DATE"), "1600000000 +0000");
    }
    let output = command.current_dir(folder).args(args).stdin(input).output().expect("git runs");
    Said {
        success: output.status.success(),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs git outside of any repository.
pub fn git(args: &[&str]) -> Said {
    let home = TempDir::new().expect("a folder");
    run(home.path(), home.path(), args, Stdio::null())
}

/// What a repository shows to everybody.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Without HEAD and without peeled tags.
    pub refs: Refs,
    /// Where HEAD points, if it points to something that exists.
    pub head: Option<String>,
}

/// Asks a server for its refs.
#[track_caller]
pub fn ls_remote(url: &str) -> Remote {
    read_remote(&git(&["ls-remote", "--symref", url]).done())
}

/// Asks a server for its refs; nothing if it has no such repository.
pub fn try_ls_remote(url: &str) -> Option<Remote> {
    let said = git(&["ls-remote", "--symref", url]);
    said.success.then(|| read_remote(&said))
}

fn read_remote(said: &Said) -> Remote {
    let mut remote = Remote::default();
    for line in said.text().lines() {
        let (value, name) = line.split_once('\t').unwrap_or_else(|| panic!("no ref: {line}"));
        if let Some(branch) = value.strip_prefix("ref: ") {
            remote.head = Some(branch.to_owned());
        } else if name != "HEAD" && !name.ends_with("^{}") {
            remote.refs.insert(name.to_owned(), value.to_owned());
        }
    }
    remote
}

/// A working tree with a home of its own.
pub struct Work {
    folder: TempDir,
}

impl Work {
    /// A new repository on the branch `main`, without a commit.
    pub fn new() -> Self {
        let work = Self::nothing();
        work.git(&["init", "--quiet", "--initial-branch=main"]).done();
        work
    }

    fn nothing() -> Self {
        let work = Self { folder: TempDir::new().expect("a folder") };
        for folder in [work.home(), work.tree()] {
            fs::create_dir(folder).expect("a new folder");
        }
        work
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Where the files are.
    pub fn tree(&self) -> PathBuf {
        self.folder.path().join("tree")
    }

    /// `git clone`, with further arguments; options of git itself (`-c`) go first.
    pub fn try_clone(options: &[&str], url: &str, args: &[&str]) -> (Self, Said) {
        let work = Self::nothing();
        let said = work.git(&[options, &["clone", "--quiet"], args, &[url, "."]].concat());
        (work, said)
    }

    /// A full clone that must succeed.
    #[track_caller]
    pub fn clone(url: &str) -> Self {
        let (work, said) = Self::try_clone(&[], url, &[]);
        said.done();
        work
    }

    /// Runs git here.
    pub fn git(&self, args: &[&str]) -> Said {
        run(&self.home(), &self.tree(), args, Stdio::null())
    }

    /// Runs git here with input.
    pub fn feed(&self, args: &[&str], input: &[u8]) -> Said {
        let path = self.folder.path().join("input");
        fs::write(&path, input).expect("a file");
        run(&self.home(), &self.tree(), args, File::open(path).expect("it was written").into())
    }

    /// Writes a file and commits it on the current branch; gives the commit.
    #[track_caller]
    pub fn commit(&self, file: &str, content: &str) -> String {
        fs::write(self.tree().join(file), content).expect("a file");
        self.git(&["add", "--all"]).done();
        let message: String = content.chars().take(50).collect();
        self.git(&["commit", "--quiet", "--allow-empty", "--message", &message]).done();
        self.oid("HEAD")
    }

    /// A commit on a branch that begins with it; the tree has that one file.
    #[track_caller]
    pub fn orphan(&self, branch: &str, content: &str) -> String {
        self.git(&["checkout", "--quiet", "--orphan", branch]).done();
        self.commit("orphan", content)
    }

    /// Goes to a new branch at the current commit.
    #[track_caller]
    pub fn branch(&self, name: &str) {
        self.git(&["checkout", "--quiet", "-B", name]).done();
    }

    /// An annotated tag of the current commit; gives the tag object.
    #[track_caller]
    pub fn tag(&self, name: &str) -> String {
        self.git(&["tag", "--annotate", "--message", name, name]).done();
        self.oid(name)
    }

    /// The object of a revision.
    #[track_caller]
    pub fn oid(&self, revision: &str) -> String {
        self.git(&["rev-parse", "--verify", revision]).done().text()
    }

    /// Whether an object is here.
    pub fn has(&self, oid: &str) -> bool {
        self.git(&["cat-file", "-e", oid]).success
    }

    /// Demands that everything the refs need is here and whole.
    #[track_caller]
    pub fn fsck(&self) {
        self.git(&["fsck", "--full", "--strict"]).done();
    }

    /// `git push`.
    pub fn push(&self, url: &str, refspecs: &[&str]) -> Said {
        self.push_with(&[], url, refspecs)
    }

    /// `git push` with further arguments.
    pub fn push_with(&self, args: &[&str], url: &str, refspecs: &[&str]) -> Said {
        self.git(&[&["push"], args, &[url], refspecs].concat())
    }

    /// `git fetch` with a protocol.
    pub fn fetch(&self, protocol: &str, url: &str, args: &[&str]) -> Said {
        let version = format!("protocol.version={protocol}");
        self.git(&[&["-c", &version, "fetch", "--quiet", url], args].concat())
    }

    /// A pack with exactly these objects.
    #[track_caller]
    pub fn pack(&self, oids: &[&str]) -> Vec<u8> {
        self.feed(&["pack-objects", "--quiet", "--stdout"], (oids.join("\n") + "\n").as_bytes()).done().out
    }
}

/// Whether an object can be had from a repository by its id.
pub fn fetchable(protocol: &str, url: &str, oid: &str) -> bool {
    let work = Work::new();
    let said = work.fetch(protocol, url, &[oid]);
    assert_eq!(said.success, work.has(oid), "{}", said.err);
    said.success
}

/// Somebody who has a service and signs.
pub struct Maintainer {
    pub author: Author,
    service: ServiceAddress,
}

impl Maintainer {
    pub fn new(n: u8, service: &ServiceAddress) -> Self {
        Self::of(Author::new(n), service)
    }

    pub fn of(author: Author, service: &ServiceAddress) -> Self {
        Self { author, service: service.clone() }
    }

    pub fn npub(&self) -> String {
        self.author.key().npub()
    }

    /// The coordinate of an announcement.
    pub fn repo(&self, d: &str) -> String {
        self.author.repo(d)
    }

    /// An announcement that lists the service.
    pub fn announce(&self, d: &str, at: u64, others: &[&Maintainer]) -> Arc<SignedEvent> {
        let others: Vec<&Author> = others.iter().map(|other| &other.author).collect();
        self.author.listed(&self.service, d, at, &others)
    }

    /// An announcement that lists the service, with tags of one's own instead of maintainers.
    pub fn announce_with(&self, d: &str, at: u64, more: Vec<Vec<String>>) -> Arc<SignedEvent> {
        self.author.listed_with(&self.service, d, at, more)
    }

    /// An announcement that does not list the service.
    pub fn announce_elsewhere(&self, d: &str, at: u64, others: &[&Maintainer]) -> Arc<SignedEvent> {
        let others: Vec<&Author> = others.iter().map(|other| &other.author).collect();
        self.author.unlisted(d, at, &others)
    }

    /// A state whose HEAD points to the first of its refs, if that is a branch.
    pub fn state(&self, d: &str, at: u64, refs: &[(&str, &str)]) -> Arc<SignedEvent> {
        let head = refs.first().filter(|(name, _)| name.starts_with("refs/heads/")).map(|(name, _)| *name);
        self.state_with_head(d, at, refs, head.map(|name| format!("ref: {name}")).as_deref())
    }

    /// A state with this value of HEAD.
    pub fn state_with_head(&self, d: &str, at: u64, refs: &[(&str, &str)], head: Option<&str>) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["d".to_owned(), d.to_owned()]];
        tags.extend(refs.iter().map(|(name, oid)| vec![(*name).to_owned(), (*oid).to_owned()]));
        tags.extend(head.map(|head| vec!["HEAD".to_owned(), head.to_owned()]));
        self.author.sign_owned(kinds::STATE, at, tags, "")
    }

    /// A state with one branch `main` whose id stands in this relation to another event's id.
    pub fn state_ranked(&self, d: &str, at: u64, oid: &str, rank: impl Fn(&SignedEvent) -> bool) -> Arc<SignedEvent> {
        let with_nonce = |nonce: u32| {
            let nonce = nonce.to_string();
            let tags: [&[&str]; 4] = [&["d", d], &[MAIN, oid], &["HEAD", &format!("ref: {MAIN}")], &["nonce", &nonce]];
            self.author.sign(kinds::STATE, at, &tags, "")
        };
        (0..10_000).map(with_nonce).find(|event| rank(event)).expect("one of many")
    }

    /// A pull request to repositories, given by coordinate.
    pub fn pull_request(&self, at: u64, targets: &[&str], tip: &str, clone: &[&str]) -> Arc<SignedEvent> {
        self.offer(kinds::PULL_REQUEST, at, targets, tip, clone)
    }

    /// A pull request or an update of one.
    pub fn offer(&self, kind: u16, at: u64, targets: &[&str], tip: &str, clone: &[&str]) -> Arc<SignedEvent> {
        let mut tags = vec![vec!["c".to_owned(), tip.to_owned()]];
        tags.push(std::iter::once("clone").chain(clone.iter().copied()).map(str::to_owned).collect());
        tags.extend(targets.iter().map(|target| vec!["a".to_owned(), (*target).to_owned()]));
        self.author.sign_owned(kind, at, tags, "please merge")
    }

    /// Deletes events by id.
    pub fn delete(&self, at: u64, events: &[&SignedEvent]) -> Arc<SignedEvent> {
        self.author.delete(at, events)
    }

    /// Deletes what stands at a coordinate.
    pub fn delete_all(&self, at: u64, kind: u16, d: &str) -> Arc<SignedEvent> {
        let coordinate = Coordinate { kind, pubkey: self.author.key(), d: d.to_owned() }.to_string();
        self.author.deletion(at, &[&["a", &coordinate]])
    }
}

/// The path of a repository below the base path, with its leading slash.
pub fn repo_path(npub: &str, d: &str) -> String {
    format!("/{npub}/{}.git", Identifier::new(d).expect("names a repository").percent_encoded())
}

/// A random text that does not compress, to make packs large.
pub fn noise(bytes: usize) -> String {
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

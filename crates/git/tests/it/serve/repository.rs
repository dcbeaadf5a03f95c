//! Test fixtures: a repository on disk, and commands of the installed git.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::refs::{Refs, read_refs};
use grasp_git::serve::{ServerCapabilities, UploadPackLimits};
use tempfile::TempDir;

/// Number of commits on `main`.
pub(crate) const COMMITS: usize = 12;

/// The event id in the name of the pull request ref.
pub(crate) const EVENT: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(crate) const LIMITS: UploadPackLimits = UploadPackLimits { threads: 1, timeout: Duration::from_secs(60) };

/// A repository and what is needed to serve it.
pub(crate) struct ServedRepo {
    pub(crate) root: TempDir,
    pub(crate) git: Git,
    pub(crate) capabilities: ServerCapabilities,
    /// `None` for a repository that was never pushed to.
    pub(crate) folder: Option<PathBuf>,
}

impl ServedRepo {
    /// Creates a repository without a folder.
    pub(crate) fn empty() -> Self {
        let root = TempDir::new().expect("create a folder");
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 256 << 20, address_bytes: 2 << 30 });
        let layout = Layout::open(root.path()).expect("open a git data folder");
        let capabilities = ServerCapabilities::detect(&git, &layout).expect("detect capabilities");
        Self { root, git, capabilities, folder: None }
    }

    /// Creates a repository with history, tags, a pull request and a commit that no ref leads to. Its objects are in a
    /// pool and its refs in one file.
    pub(crate) fn new() -> Self {
        let mut repo = Self::empty();
        let folder = repo.root.path().join("repo.git");
        std::fs::create_dir(&folder).expect("create a folder");
        run(&folder, &["init", "--quiet", "--bare", "."]);
        feed(&folder, &["fast-import", "--quiet"], history().as_bytes());
        run(&folder, &["symbolic-ref", "HEAD", "refs/heads/main"]);
        run(&folder, &["repack", "-adq"]);
        run(&folder, &["update-ref", "-d", "refs/heads/hidden"]);
        run(&folder, &["pack-refs", "--all", "--prune"]);
        std::fs::create_dir(folder.join("pool")).expect("create a folder");
        std::fs::rename(folder.join("objects/pack"), folder.join("pool/pack")).expect("rename a folder");
        std::fs::create_dir(folder.join("objects/pack")).expect("create a folder");
        std::fs::write(folder.join("objects/info/alternates"), "../pool\n").expect("write a file");
        let refs = read_refs(&folder).expect("read refs");
        assert!(refs.get("refs/tags/v1").expect("a tag").peeled.is_some());
        repo.folder = Some(folder);
        repo
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_deref().expect("the repository has a folder")
    }

    pub(crate) fn refs(&self) -> Refs {
        self.folder.as_deref().map(|folder| read_refs(folder).expect("read refs")).unwrap_or_default()
    }

    /// Returns the object of a ref.
    pub(crate) fn oid(&self, name: &str) -> String {
        run(self.folder(), &["rev-parse", name])
    }

    /// Returns the commit that no ref leads to.
    pub(crate) fn hidden(&self) -> String {
        let all = run(self.folder(), &["cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)"]);
        let reachable = run(self.folder(), &["rev-list", "--all"]);
        let mut commits = all.lines().filter_map(|line| line.strip_prefix("commit "));
        commits.find(|oid| !reachable.contains(oid)).expect("a hidden commit").to_owned()
    }
}

/// Returns input for `fast-import`.
fn history() -> String {
    let mut text = String::new();
    let mut commit = |branch: &str, number: usize, from: Option<usize>| {
        let time = 1_700_000_000 + number * 86_400;
        text.push_str(&format!("commit refs/heads/{branch}\nmark :{number}\ncommitter a <a@example> {time} +0000\n"));
        text.push_str(&format!("data 2\n{number:02}\n"));
        text.extend(from.map(|from| format!("from :{from}\n")));
        let content = format!("{number} {}", "lorem ipsum ".repeat(200 + number));
        text.push_str(&format!("M 644 inline dir{}/file\ndata {}\n{content}\n\n", number % 3, content.len()));
    };
    for number in 1..=COMMITS {
        commit("main", number, number.checked_sub(1).filter(|from| *from > 0));
    }
    commit("side", 50, Some(5));
    commit("request", 60, Some(7));
    commit("hidden", 70, Some(8));
    text.push_str(&format!("reset refs/nostr/{EVENT}\nfrom :60\n\nreset refs/heads/request\nfrom :50\n\n"));
    for (name, from) in [("v1", ":4"), ("v2", ":9")] {
        text.push_str(&format!("tag {name}\nfrom {from}\ntagger a <a@example> 1700000000 +0000\ndata 3\none\n"));
    }
    text.push_str("reset refs/tags/light\nfrom :6\n\n");
    text
}

/// Returns a git command as users run it, without configuration files.
pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example")]);
    command
}

/// Runs git, which may fail.
pub(crate) fn attempt(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("run git")
}

/// Runs git, which must succeed, and returns its output.
pub(crate) fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = attempt(folder, arguments);
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Runs git with an input; it must succeed.
pub(crate) fn feed(folder: &Path, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    feed_command(&mut command(folder, arguments), input)
}

/// Runs a command with an input; it must succeed.
pub(crate) fn feed_command(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the process");
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("wait for the process");
    writer.join().expect("join a thread").expect("write to the process");
    assert!(output.status.success(), "{command:?}");
    output.stdout
}

//! Test fixtures: a git data folder that receives packs, and a client's repository.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::receive::{
    Connectivity, InProcessLimits, PackChecker, PackError, PackLimits, PackSink, Quarantine, RequiredTips,
    VisibleObjects,
};
use tempfile::TempDir;

pub(crate) const LIMITS: PackLimits = PackLimits { max_bytes: 32 << 20, max_objects: 10_000, check_secs: 60 };

/// Small, so that tests exceed it with small data.
pub(crate) const LARGEST_OBJECT: u64 = 16 << 20;

/// Runs git as a user would, without configuration files.
pub(crate) fn run(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("start git");
    child.stdin.take().expect("stdin is piped").write_all(input).expect("write to git");
    child.wait_with_output().expect("wait for the process")
}

/// A client's repository.
pub(crate) struct ClientRepo {
    pub(crate) folder: TempDir,
}

impl ClientRepo {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("create a folder");
        let client = Self { folder };
        client.git(&["init", "--quiet", "--initial-branch=main", "."]);
        client
    }

    pub(crate) fn git(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.feed(arguments, b"")).expect("UTF-8").trim_end().to_owned()
    }

    pub(crate) fn feed(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = run(self.folder.path(), arguments, input);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Commits a file and returns the commit.
    pub(crate) fn commit(&self, name: &str, content: &str) -> String {
        fs::write(self.folder.path().join(name), content).expect("write a file");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "-m", name]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Writes an object without any check and returns its id.
    pub(crate) fn object(&self, kind: &str, content: &[u8]) -> String {
        let id = self.feed(&["hash-object", "-t", kind, "-w", "--literally", "--stdin"], content);
        String::from_utf8(id).expect("UTF-8").trim_end().to_owned()
    }

    /// Returns the pack that a push of these revisions would send. `^x` stands for what the server has.
    pub(crate) fn pack(&self, revisions: &[&str]) -> Vec<u8> {
        let input: String = revisions.iter().map(|revision| format!("{revision}\n")).collect();
        self.feed(&["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "-q"], input.as_bytes())
    }

    /// Returns a pack of exactly these objects.
    pub(crate) fn pack_of(&self, objects: &[&str]) -> Vec<u8> {
        let input: String = objects.iter().map(|object| format!("{object}\n")).collect();
        self.feed(&["pack-objects", "--stdout", "-q"], input.as_bytes())
    }
}

/// A git data folder that receives packs.
pub(crate) struct ReceiveFixture {
    pub(crate) folder: TempDir,
    pub(crate) layout: Layout,
    pub(crate) git: Git,
    pub(crate) limits: PackLimits,
}

impl ReceiveFixture {
    pub(crate) fn new() -> Self {
        Self::at("")
    }

    /// Creates a git data folder with a certain name.
    pub(crate) fn at(name: &str) -> Self {
        let folder = TempDir::new().expect("create a folder");
        let layout = Layout::open(&folder.path().join("git").join(name)).expect("open a git data folder");
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: LARGEST_OBJECT, address_bytes: 4 << 30 });
        Self { folder, layout, git, limits: LIMITS }
    }

    pub(crate) fn checker(&self) -> PackChecker<'_> {
        PackChecker {
            git: &self.git,
            layout: &self.layout,
            limits: self.limits,
            in_process: InProcessLimits::default(),
        }
    }

    /// Receives the bytes of a pack in chunks, and indexes it.
    pub(crate) fn receive(&self, bytes: &[u8], pools: &[PathBuf]) -> Result<Quarantine, PackError> {
        let mut quarantine = Quarantine::create(&self.layout)?;
        let mut sink = PackSink::new(&quarantine, self.limits);
        for part in bytes.chunks(8_000) {
            sink.write(part)?;
        }
        self.checker().index_pack(&mut quarantine, sink.finish()?, pools)?;
        Ok(quarantine)
    }

    pub(crate) fn check_connectivity(
        &self,
        view: VisibleObjects<'_>,
        tips: &RequiredTips,
        known: &[&str],
    ) -> Result<Connectivity, PackError> {
        let known: Vec<String> = known.iter().map(|oid| (*oid).to_owned()).collect();
        self.checker().check_connectivity(view, tips, &known)
    }

    /// Moves a received pack into a new pool.
    pub(crate) fn pool(&self, name: &str, quarantine: &Quarantine) -> PathBuf {
        let pool = self.layout.root().join(name);
        fs::create_dir_all(&pool).expect("create a folder");
        fs::rename(quarantine.folder().join("pack"), pool.join("pack")).expect("rename a folder");
        pool
    }

    /// Creates a pool with a pack that is not checked.
    pub(crate) fn unchecked_pool(&self, name: &str, pack: &[u8]) -> PathBuf {
        let pool = self.layout.root().join(name);
        fs::create_dir_all(pool.join("pack")).expect("create a folder");
        let path = pool.join("pack/pack-0123456789012345678901234567890123456789.pack");
        fs::write(&path, pack).expect("write a file");
        let output = run(self.folder.path(), &["index-pack", path.to_str().expect("UTF-8")], b"");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        pool
    }

    /// Returns the objects of an object directory.
    pub(crate) fn objects(&self, folder: &Path) -> Vec<String> {
        let mut command = self.git.command(&self.layout.empty_repo());
        command.env("GIT_OBJECT_DIRECTORY", folder);
        let output =
            command.args(["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]).output().expect("run git");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
    }

    /// Returns whether no received data is left.
    pub(crate) fn is_clean(&self) -> bool {
        let quarantine = fs::read_dir(self.layout.root().join("incoming")).expect("list a folder").count();
        let temporary = fs::read_dir(self.layout.empty_repo().join("objects/pack")).expect("list a folder").count();
        quarantine + temporary == 0
    }
}

pub(crate) fn view<'a>(quarantine: &'a Quarantine, pools: &'a [PathBuf]) -> VisibleObjects<'a> {
    VisibleObjects { quarantine: Some(quarantine), pools }
}

pub(crate) fn branch(oid: &str) -> RequiredTips {
    RequiredTips { branches: vec![("refs/heads/main".to_owned(), oid.to_owned())], others: Vec::new() }
}

pub(crate) fn tag(oid: &str) -> RequiredTips {
    RequiredTips { branches: Vec::new(), others: vec![("refs/tags/v1".to_owned(), oid.to_owned())] }
}

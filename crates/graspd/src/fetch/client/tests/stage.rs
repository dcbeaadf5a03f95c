//! A git folder with a repository that lacks something, and somebody else's repository that has it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::fetch::io::{FetchId, FetchRequest, RequestForm, WantedKind};
use grasp_core::net::{AddressPolicy, OutboundUrl, UrlPurpose};
use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::EventId;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_git::layout::Layout;
use grasp_git::process::{Bounds, Git};
use grasp_git::receive::{Incoming, PackLimits};
use grasp_git::refs::{Refs, Target as RefTarget};
use tempfile::TempDir;

use crate::clock::Clock;
use crate::fetch::client::connection::Patience;
use crate::fetch::client::failure_log::Complaints;
use crate::fetch::client::local_objects::LocalObjects;
use crate::fetch::client::{FetchClient, Fetched};
use crate::http::fair_semaphore::FairSemaphore;
use crate::monitor::disk_budget::Budget;
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, test_dialer};
use crate::repos::ref_cache::RefCache;

/// Small, so that what is too large is small too.
pub(super) const LIMITS: PackLimits = PackLimits { max_bytes: 4 << 20, max_objects: 10_000, check_secs: 60 };

const LARGEST_OBJECT: u64 = 16 << 20;

/// Long enough for a busy machine, short enough to wait for.
const PATIENCE: Patience = Patience {
    connect: Duration::from_secs(10),
    first: Duration::from_secs(10),
    silence: Duration::from_secs(10),
    prepare: Duration::from_secs(20),
    pace: Duration::from_secs(20),
    whole: Duration::from_secs(60),
};

/// Our side.
pub(super) struct Stage {
    folder: TempDir,
    pub(super) room: FetchClient,
    pub(super) repo_path: RepoPath,
}

pub(super) fn repo_path(nth: u8) -> RepoPath {
    let identifier = Identifier::new("tool").expect("a name");
    RepoPath::Announced(RepoId { owner: PublicKey([nth; 32]), identifier })
}

impl Stage {
    pub(super) fn new() -> Self {
        Self::calling(test_dialer(AddressPolicy::Any, &FakeResolver::default()))
    }

    pub(super) fn calling(dialer: Arc<Dialer>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let layout = Arc::new(Layout::open(&folder.path().join("git")).expect("opens"));
        let directory = Arc::new(RefCache::new(layout.clone(), true));
        let bounds = Bounds { alloc_bytes: LARGEST_OBJECT, address_bytes: 4 << 30 };
        let git = Git::new(Path::new("git"), bounds);
        let budget = Budget::new(0);
        let larder = LocalObjects { git, layout, directory, limits: LIMITS, reserve_bytes: 0, budget };
        let room = FetchClient {
            larder,
            limits: Box::new(|| LIMITS),
            checking: FairSemaphore::new(2, 16, 16),
            dialer,
            clock: Clock::start(),
            patience: PATIENCE,
            complaints: Complaints::default(),
        };
        let stage = Self { folder, room, repo_path: repo_path(1) };
        stage.host(&stage.repo_path, &[]);
        stage
    }

    /// Opens a repository that may read others.
    pub(super) fn host(&self, repo_path: &RepoPath, alternates: &[RepoPath]) {
        self.room.larder.directory.host(repo_path.repo(), Some((EventStatus::Served, alternates.to_vec())));
    }

    pub(super) fn wish(&self, url: &str, form: RequestForm, oids: &[&str]) -> FetchRequest {
        FetchRequest {
            id: FetchId(1),
            repo_path: self.repo_path.clone(),
            target: OutboundUrl::parse(url, UrlPurpose::Git, AddressPolicy::Any).expect("a target"),
            form,
            oids: oids.iter().map(|oid| (*oid).to_owned()).collect(),
            events: vec![(EventId([7; 32]), WantedKind::PullRequest), (EventId([8; 32]), WantedKind::State)],
        }
    }

    pub(super) async fn fetch(&self, url: &str, form: RequestForm, oids: &[&str]) -> Fetched {
        let fetch = self.wish(url, form, oids);
        let fetched = tokio::time::timeout(Duration::from_secs(120), self.room.fetch(&fetch, || ()));
        fetched.await.expect("an end")
    }

    /// What the registrar and the git room do with what came: it becomes part of the pool, and refs point to it.
    pub(super) fn adopt(&self, repo_path: &RepoPath, pack: &Incoming, refs: &[(&str, &str)]) {
        let folder = self.room.larder.layout.repo_dir(repo_path);
        let pool = self.room.larder.layout.pool(repo_path).join("pack");
        fs::create_dir_all(&pool).expect("is made");
        for entry in fs::read_dir(pack.folder().join("pack")).expect("reads") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), pool.join(entry.file_name())).expect("copies");
        }
        fs::write(folder.join("HEAD"), "ref: refs/heads/main\n").expect("writes");
        let mut made = Refs::default();
        for (name, oid) in refs {
            made.set(name, RefTarget { oid: (*oid).to_owned(), peeled: None });
        }
        self.room.larder.directory.publish(repo_path, made, true);
    }

    /// The objects in a pack.
    pub(super) fn objects(&self, pack: &Incoming) -> Vec<String> {
        let packs = fs::read_dir(pack.folder().join("pack")).expect("reads").map(|entry| entry.expect("one").path());
        let index = packs.into_iter().find(|path| path.extension().is_some_and(|end| end == "idx")).expect("an index");
        let said = run(self.folder.path(), &["show-index", "--object-format=sha1"], &fs::read(index).expect("reads"));
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).expect("text");
        let mut oids: Vec<String> = said.lines().filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect();
        oids.sort_unstable();
        oids
    }

    /// Waits until nothing is being received any more: what was called off ends in its own time.
    pub(super) async fn is_clean(&self) {
        let incoming = self.room.larder.layout.root().join("incoming");
        let until = Instant::now() + Duration::from_secs(60);
        while fs::read_dir(&incoming).expect("reads").count() > 0 {
            assert!(Instant::now() < until, "something is left");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let template = self.room.larder.layout.template().join("objects/pack");
        assert_eq!(fs::read_dir(template).expect("reads").count(), 0);
    }
}

/// Runs git as a person would, without that person's settings.
pub(super) fn run(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new("git")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("PATH", std::env::var("PATH").unwrap_or_default())
        .env("LC_ALL", "C")
        .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")])
        .envs([("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example")])
        .envs([("GIT_COMMITTER_NAME", "a"), ("GIT_COMMITTER_EMAIL", "a@example")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("git starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), input).expect("git reads");
    child.wait_with_output().expect("git ends")
}

/// Somebody else's repository, `theirs.git` in a folder.
pub(super) struct Theirs {
    pub(super) root: TempDir,
}

impl Theirs {
    pub(super) fn new() -> Self {
        let root = TempDir::new().expect("a folder");
        let theirs = Self { root };
        assert!(
            run(theirs.root.path(), &["init", "--quiet", "--initial-branch=main", "theirs.git"], b"").status.success()
        );
        theirs
    }

    pub(super) fn git(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.feed(arguments, b"")).expect("text").trim_end().to_owned()
    }

    pub(super) fn feed(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = run(&self.root.path().join("theirs.git"), arguments, input);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Commits a file and gives the commit.
    pub(super) fn commit(&self, name: &str, content: &str) -> String {
        fs::write(self.root.path().join("theirs.git").join(name), content).expect("writes");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "-m", name]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// The objects that a revision needs, and the others do not.
    pub(super) fn needs(&self, revisions: &[&str]) -> Vec<String> {
        let said = self.git(&[&["rev-list", "--objects", "--no-object-names"], revisions].concat());
        let mut oids: Vec<String> = said.lines().map(str::to_owned).collect();
        oids.sort_unstable();
        oids
    }

    /// A pack of what revisions need.
    pub(super) fn pack(&self, revisions: &[&str]) -> Vec<u8> {
        let input: String = revisions.iter().map(|revision| format!("{revision}\n")).collect();
        self.feed(&["pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"], input.as_bytes())
    }
}

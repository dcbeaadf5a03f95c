//! Helpers: a git folder with a repository that lacks objects, and a remote repository that has them.

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
use grasp_core::repo::{Identifier, RefTarget, Refs, RepoId, RepoPath, RepoRow};
use grasp_git::layout::Layout;
use grasp_git::process::{Git, ProcessLimits};
use grasp_git::receive::{PackLimits, Quarantine};
use grasp_store::{Store, StoreOptions};
use tempfile::TempDir;

use crate::clock::Clock;
use crate::fetch::client::connection::FetchTimeouts;
use crate::fetch::client::failure_log::FailureLog;
use crate::fetch::client::local_objects::LocalObjects;
use crate::fetch::client::{FetchClient, FetchReply};
use crate::git::pack_receiver::PackReceiver;
use crate::http::fair_semaphore::FairSemaphore;
use crate::monitor::disk_budget::DiskBudgetTracker;
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, test_dialer};
use crate::repos::ref_cache::RefCache;

/// Small limits, so that tests can exceed them with little data.
pub(super) const LIMITS: PackLimits = PackLimits { max_bytes: 4 << 20, max_objects: 10_000, check_secs: 60 };

const LARGEST_OBJECT: u64 = 16 << 20;

/// Long enough for a busy machine, short enough for a test.
const TIMEOUTS: FetchTimeouts = FetchTimeouts {
    connect: Duration::from_secs(10),
    first_byte: Duration::from_secs(10),
    silence: Duration::from_secs(10),
    pack_start: Duration::from_secs(20),
    rate_interval: Duration::from_secs(20),
    total: Duration::from_secs(60),
};

/// This server's side.
pub(super) struct TestSetup {
    folder: TempDir,
    pub(super) client: FetchClient,
    pub(super) repo_path: RepoPath,
}

pub(super) fn repo_path(nth: u8) -> RepoPath {
    let identifier = Identifier::new("tool").expect("valid identifier");
    RepoPath::Announced(RepoId { owner: PublicKey([nth; 32]), identifier })
}

impl TestSetup {
    pub(super) fn new() -> Self {
        Self::with_dialer(test_dialer(AddressPolicy::Any, &FakeResolver::default()))
    }

    pub(super) fn with_dialer(dialer: Arc<Dialer>) -> Self {
        let folder = TempDir::new().expect("temporary folder");
        let layout = Arc::new(Layout::open(&folder.path().join("git")).expect("opens"));
        let store = Store::open(&folder.path().join("events"), StoreOptions { readers: 1, reserve_bytes: 0 });
        let ref_cache = Arc::new(RefCache::new(store.expect("opens"), layout.clone(), true));
        let bounds = ProcessLimits { alloc_bytes: LARGEST_OBJECT, address_bytes: 4 << 30 };
        let git = Git::new(Path::new("git"), bounds);
        let packs = PackReceiver::new(layout.clone(), DiskBudgetTracker::new(0), 0);
        let client = FetchClient {
            local_objects: LocalObjects { git, layout, ref_cache, limits: LIMITS },
            packs,
            limits: Box::new(|| LIMITS),
            check_permits: FairSemaphore::new(2, 16, 16),
            dialer,
            clock: Clock::start(),
            timeouts: TIMEOUTS,
            failure_log: FailureLog::default(),
        };
        let setup = Self { folder, client, repo_path: repo_path(1) };
        setup.host(&setup.repo_path, &[]);
        setup
    }

    /// Hosts a repository with these alternates.
    pub(super) fn host(&self, repo_path: &RepoPath, alternates: &[RepoPath]) {
        self.client
            .local_objects
            .ref_cache
            .set_hosted(repo_path.repo(), Some((EventStatus::Served, alternates.to_vec())));
    }

    pub(super) fn request(&self, url: &str, form: RequestForm, oids: &[&str]) -> FetchRequest {
        FetchRequest {
            id: FetchId(1),
            repo_path: self.repo_path.clone(),
            target: OutboundUrl::parse(url, UrlPurpose::Git, AddressPolicy::Any).expect("valid URL"),
            form,
            oids: oids.iter().map(|oid| (*oid).to_owned()).collect(),
            events: vec![(EventId([7; 32]), WantedKind::PullRequest), (EventId([8; 32]), WantedKind::State)],
            received: Vec::new(),
        }
    }

    pub(super) async fn fetch(&self, url: &str, form: RequestForm, oids: &[&str]) -> FetchReply {
        let fetch = self.request(url, form, oids);
        let fetched = tokio::time::timeout(Duration::from_secs(120), self.client.fetch(&fetch, || ()));
        fetched.await.expect("fetch ends")
    }

    /// Adopts a pack as the writer would: moves it into the pool and sets refs.
    pub(super) fn adopt(&self, repo_path: &RepoPath, pack: &Quarantine, refs: &[(&str, &str)]) {
        let folder = self.client.local_objects.layout.repo_dir(repo_path);
        let pool = self.client.local_objects.layout.pool(repo_path).join("pack");
        fs::create_dir_all(&pool).expect("creates the folder");
        for entry in fs::read_dir(pack.folder().join("pack")).expect("reads") {
            let entry = entry.expect("reads");
            fs::copy(entry.path(), pool.join(entry.file_name())).expect("copies");
        }
        fs::write(folder.join("HEAD"), "ref: refs/heads/main\n").expect("writes");
        let mut made = Refs::default();
        for (name, oid) in refs {
            made.set(name, RefTarget { oid: (*oid).to_owned(), peeled: None });
        }
        self.publish(repo_path, made);
    }

    /// Shows refs of a repository. Returns whether branches or tags have changed.
    pub(super) fn publish(&self, repo_path: &RepoPath, refs: Refs) -> bool {
        let row = RepoRow { version: 1, refs: Arc::new(refs), degraded: None };
        self.client.local_objects.ref_cache.publish(repo_path, Some(row))
    }

    /// Returns the objects in a pack.
    pub(super) fn objects(&self, pack: &Quarantine) -> Vec<String> {
        let packs = fs::read_dir(pack.folder().join("pack")).expect("reads").map(|entry| entry.expect("reads").path());
        let index =
            packs.into_iter().find(|path| path.extension().is_some_and(|end| end == "idx")).expect("has an index");
        let output = run(self.folder.path(), &["show-index", "--object-format=sha1"], &fs::read(index).expect("reads"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let output = String::from_utf8(output.stdout).expect("text");
        let mut oids: Vec<String> =
            output.lines().filter_map(|line| line.split(' ').nth(1).map(str::to_owned)).collect();
        oids.sort_unstable();
        oids
    }

    /// Waits until no pack is being received: cancelled fetches clean up in the background.
    pub(super) async fn wait_until_clean(&self) {
        let incoming = self.client.local_objects.layout.root().join("incoming");
        let until = Instant::now() + Duration::from_secs(60);
        while fs::read_dir(&incoming).expect("reads").count() > 0 {
            assert!(Instant::now() < until, "a pack is left");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let template = self.client.local_objects.layout.empty_repo().join("objects/pack");
        assert_eq!(fs::read_dir(template).expect("reads").count(), 0);
    }
}

/// Runs git without the user's configuration.
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
    std::io::Write::write_all(&mut child.stdin.take().expect("pipe"), input).expect("git reads");
    child.wait_with_output().expect("git exits")
}

/// A remote repository, `remote.git` in a temporary folder.
pub(super) struct RemoteRepo {
    pub(super) root: TempDir,
}

impl RemoteRepo {
    pub(super) fn new() -> Self {
        let root = TempDir::new().expect("temporary folder");
        let remote = Self { root };
        assert!(
            run(remote.root.path(), &["init", "--quiet", "--initial-branch=main", "remote.git"], b"").status.success()
        );
        remote
    }

    pub(super) fn git(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.feed(arguments, b"")).expect("text").trim_end().to_owned()
    }

    pub(super) fn feed(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let output = run(&self.root.path().join("remote.git"), arguments, input);
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Commits a file and returns the commit id.
    pub(super) fn commit(&self, name: &str, content: &str) -> String {
        fs::write(self.root.path().join("remote.git").join(name), content).expect("writes");
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "-m", name]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Returns the objects that revisions need, without those that excluded revisions need.
    pub(super) fn needs(&self, revisions: &[&str]) -> Vec<String> {
        let output = self.git(&[&["rev-list", "--objects", "--no-object-names"], revisions].concat());
        let mut oids: Vec<String> = output.lines().map(str::to_owned).collect();
        oids.sort_unstable();
        oids
    }

    /// Returns a pack of what revisions need.
    pub(super) fn pack(&self, revisions: &[&str]) -> Vec<u8> {
        let input: String = revisions.iter().map(|revision| format!("{revision}\n")).collect();
        self.feed(&["pack-objects", "--revs", "--stdout", "--delta-base-offset", "-q"], input.as_bytes())
    }
}

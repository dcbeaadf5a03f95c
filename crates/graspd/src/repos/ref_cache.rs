//! Cache of hosted repositories: whether they are served, their refs, and their disk usage.
//!
//! Git handlers, web pages, fetch and admin read it on their own threads. The store has the refs; the writer changes an
//! entry after it has committed a change. Maintenance may replace snapshots after it has removed objects, but changes no
//! ref. Refs are read from the store when they are first needed, and dropped when all together take too much memory.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::disk_budget::{GitUsage, QuotaUser, Quotas};
use grasp_core::nostr::PublicKey;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, Refs, RepoId, RepoPath, RepoRow};
use grasp_git::layout::Layout;
use grasp_store::{Store, StoreError};
use tracing::warn;

/// Bytes of refs that are kept in memory: a hundred repositories with ten thousand refs each, or many more small ones.
pub(crate) const MAX_BYTES: usize = 128 * 1024 * 1024;

/// Approximate memory of a ref beside its name. The name counts twice because of the rendered advertisement.
const BYTES_PER_REF: usize = 300;

/// Public keys whose pull-request submissions have a cached size. When there are more, the cache is cleared.
const MAX_CACHED_SUBMITTERS: usize = 10_000;

/// The refs of a repository at one time, and the advertisements made from them.
pub(crate) struct RefSnapshot {
    pub(crate) refs: Arc<Refs>,
    /// Whether the repository exists: it has a row in the store. Otherwise it has no objects either.
    pub(crate) exists: bool,
    /// Why objects that the refs need are damaged or missing; `None` if the repository is not degraded.
    pub(crate) degraded: Option<String>,
    /// The version of the row.
    version: u64,
    /// Different for every snapshot.
    pub(crate) generation: u64,
    /// Advertisements of upload-pack v0, v1 and v2, rendered when first needed.
    pub(crate) advertisements: [OnceLock<Advertisement>; 3],
    bytes: usize,
}

impl RefSnapshot {
    /// Whether objects that the refs need are damaged or missing.
    pub(crate) fn is_degraded(&self) -> bool {
        self.degraded.is_some()
    }
}

/// A rendered advertisement.
#[derive(Clone)]
pub(crate) struct Advertisement {
    pub(crate) body: Bytes,
    pub(crate) etag: String,
}

struct RepoEntry {
    status: EventStatus,
    alternates: Vec<RepoPath>,
    snapshot: Option<Arc<RefSnapshot>>,
    /// The version of the last row that was published. A snapshot with an older one was read before.
    published_version: u64,
    /// The version of the row that the ref files have; 0 if they were not compared since the start.
    files_version: AtomicU64,
    /// Whether a git job is running, which may add objects.
    has_job: bool,
    /// Bytes of git data that the repository is charged for, if measured since the last git job.
    pool_bytes: Option<u64>,
    /// Value of [`RefCache::use_counter`] when the refs were last read.
    last_used: AtomicU64,
}

/// A repository that clients may use.
pub(crate) struct OpenRepo {
    pub(crate) status: EventStatus,
    pub(crate) alternates: Vec<RepoPath>,
}

/// The cache. Locks are held for map operations only; the store is read without them, except for `fill_lock`.
pub(crate) struct RefCache {
    store: Store,
    layout: Arc<Layout>,
    /// Whether pull-request submissions (GRASP-06) are enabled.
    submissions: bool,
    /// Quotas and moderation lists of the current policy.
    policy: RwLock<(Quotas, Arc<ModerationLists>)>,
    entries: RwLock<HashMap<RepoPath, RepoEntry>>,
    /// Bytes of all pull-request submissions of a public key, where they have been measured.
    submission_bytes: Mutex<HashMap<PublicKey, u64>>,
    /// Held while refs are read from the store, so that concurrent requests for a repository read its row once.
    fill_lock: Mutex<()>,
    bytes: AtomicUsize,
    use_counter: AtomicU64,
    next_generation: AtomicU64,
    /// How often a repository was removed. A snapshot that was read before a removal is not kept.
    removals: AtomicU64,
}

impl RefCache {
    pub(crate) fn new(store: Store, layout: Arc<Layout>, submissions: bool) -> Self {
        Self {
            store,
            layout,
            submissions,
            policy: RwLock::default(),
            entries: RwLock::default(),
            submission_bytes: Mutex::default(),
            fill_lock: Mutex::default(),
            bytes: AtomicUsize::new(0),
            use_counter: AtomicU64::new(0),
            next_generation: AtomicU64::new(1),
            removals: AtomicU64::new(0),
        }
    }

    /// Returns a repository if clients may use it: it is announced and hosted, or it is for pull-request submissions
    /// and not banned.
    pub(crate) fn open_repo(&self, repo_path: &RepoPath) -> Option<OpenRepo> {
        match repo_path {
            RepoPath::Announced(_) => self.read(|entries| {
                let entry = entries.get(repo_path)?;
                Some(OpenRepo { status: entry.status, alternates: entry.alternates.clone() })
            }),
            RepoPath::PullRequests(repo) => {
                let is_open = self.submissions && !self.policy().1.is_repo_banned(repo);
                is_open.then(|| OpenRepo { status: EventStatus::Served, alternates: Vec::new() })
            }
        }
    }

    /// Returns the announced repositories that are hosted.
    pub(crate) fn announced_repos(&self) -> Vec<RepoPath> {
        self.read(|entries| {
            entries.keys().filter(|repo_path| matches!(repo_path, RepoPath::Announced(_))).cloned().collect()
        })
    }

    /// Returns the bytes of refs in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of announced repositories that are served. Those whose announcement waits for git data are not.
    pub(crate) fn served_repo_count(&self) -> usize {
        let is_served = |(repo_path, entry): &(&RepoPath, &RepoEntry)| {
            matches!(repo_path, RepoPath::Announced(_)) && entry.status == EventStatus::Served
        };
        self.read(|entries| entries.iter().filter(is_served).count())
    }

    /// Returns the number of announced repositories that are hosted, also of those that wait for git data.
    pub(crate) fn repo_count(&self) -> usize {
        self.read(|entries| entries.keys().filter(|repo_path| matches!(repo_path, RepoPath::Announced(_))).count())
    }

    /// Sets quotas and moderation lists.
    pub(crate) fn set_policy(&self, policy: &AdmissionPolicy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = (policy.quotas, policy.lists.clone());
    }

    fn policy(&self) -> (Quotas, Arc<ModerationLists>) {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns how many bytes may be added to a repository; `None` if there is no quota. The first call measures the
    /// disk and blocks.
    pub(crate) fn remaining_quota(&self, repo_path: &RepoPath, user: QuotaUser) -> Option<u64> {
        let (quotas, _) = self.policy();
        if !quotas.has_byte_quotas() {
            return None;
        }
        quotas.remaining(self.disk_usage(repo_path), user).map(|(bytes, _)| bytes)
    }

    /// Returns the disk usage of a repository and of all repositories of its owner. The first call measures the disk
    /// and blocks.
    pub(crate) fn disk_usage(&self, repo_path: &RepoPath) -> GitUsage {
        let owner = repo_path.repo().owner;
        let repos_of_owner = |entries: &HashMap<RepoPath, RepoEntry>| {
            let of_owner =
                entries.iter().filter(|(each, _)| each.repo().owner == owner && matches!(each, RepoPath::Announced(_)));
            of_owner.map(|(repo_path, entry)| (repo_path.clone(), entry.pool_bytes)).collect::<Vec<_>>()
        };
        let repository_bytes =
            if matches!(repo_path, RepoPath::PullRequests(_)) { self.layout.charged_bytes(repo_path) } else { 0 };
        let mut usage = GitUsage { repository_bytes, owner_bytes: self.submission_bytes(owner) };
        let mut measured = Vec::new();
        for (each, known_bytes) in self.read(repos_of_owner) {
            let bytes = known_bytes.unwrap_or_else(|| {
                let bytes = self.layout.charged_bytes(&each);
                measured.push((each.clone(), bytes));
                bytes
            });
            usage.owner_bytes += bytes;
            if each == *repo_path {
                usage.repository_bytes = bytes;
            }
        }
        if !measured.is_empty() {
            self.write(|entries| {
                for (repo_path, bytes) in measured {
                    // A repository with a running git job may have grown since it was measured.
                    if let Some(entry) = entries.get_mut(&repo_path).filter(|entry| !entry.has_job) {
                        entry.pool_bytes = Some(bytes);
                    }
                }
            });
        }
        usage
    }

    /// Returns the bytes of all pull-request submissions of a public key. They are measured on disk, because the cache
    /// has entries only for those that were requested.
    fn submission_bytes(&self, owner: PublicKey) -> u64 {
        let cached = || self.submission_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = cached().get(&owner) {
            return *bytes;
        }
        let bytes = self.layout.submission_bytes(owner);
        let mut cached = cached();
        if cached.len() >= MAX_CACHED_SUBMITTERS {
            cached.clear();
        }
        cached.insert(owner, bytes);
        bytes
    }

    /// Drops the cached size of the pull-request submissions of one public key, or of all.
    fn invalidate_submission_bytes(&self, owner: Option<PublicKey>) {
        let mut cached = self.submission_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        match owner {
            Some(owner) => drop(cached.remove(&owner)),
            None => cached.clear(),
        }
    }

    /// Returns whether a repository has a folder, also if that is only a pool that a deleted repository has left, or a
    /// crash has interrupted its creation or its deletion.
    pub(crate) fn has_folder(&self, repo_path: &RepoPath) -> bool {
        self.layout.repo_dir(repo_path).exists()
    }

    /// Returns whether the ref files of a repository are known to have its current refs.
    pub(crate) fn has_current_files(&self, repo_path: &RepoPath) -> bool {
        self.read(|entries| {
            let entry = entries.get(repo_path);
            let version = |entry: &RepoEntry| entry.snapshot.as_ref().map_or(entry.published_version, |it| it.version);
            entry.is_some_and(|entry| {
                let written = entry.files_version.load(Ordering::Acquire);
                written > 0 && written >= version(entry)
            })
        })
    }

    /// Records which version of its row the ref files of a repository have.
    pub(crate) fn files_written(&self, repo_path: &RepoPath, version: u64) {
        self.read(|entries| {
            if let Some(entry) = entries.get(repo_path) {
                entry.files_version.fetch_max(version, Ordering::AcqRel);
            }
        });
    }

    /// Returns the refs of a repository if they are in memory.
    pub(crate) fn cached(&self, repo_path: &RepoPath) -> Option<Arc<RefSnapshot>> {
        self.read(|entries| {
            let entry = entries.get(repo_path)?;
            entry.last_used.store(self.use_counter.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            entry.snapshot.clone()
        })
    }

    /// Returns the refs of a repository, reading them from the store if they are not in memory. Blocks.
    ///
    /// # Errors
    ///
    /// Returns the error of the store if the refs cannot be read.
    pub(crate) fn snapshot(&self, repo_path: &RepoPath) -> io::Result<Arc<RefSnapshot>> {
        if let Some(snapshot) = self.cached(repo_path) {
            return Ok(snapshot);
        }
        let _fill_lock = self.fill_lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(snapshot) = self.cached(repo_path) {
            return Ok(snapshot);
        }
        let removals = self.removals.load(Ordering::Acquire);
        let row = match self.store.repo(repo_path) {
            // Until its refs are set again.
            Err(StoreError::Damaged(reason)) => Some(RepoRow::damaged(reason)),
            row => row.map_err(io::Error::other)?,
        };
        let snapshot = Arc::new(self.new_snapshot(row));
        self.insert(repo_path, &snapshot, removals);
        Ok(snapshot)
    }

    /// Returns the refs of a repository, reading them on a blocking thread if they are not in memory. `None` if they
    /// cannot be read.
    pub(crate) async fn load(self: &Arc<Self>, repo_path: &RepoPath) -> Option<Arc<RefSnapshot>> {
        if let Some(snapshot) = self.cached(repo_path) {
            return Some(snapshot);
        }
        let (ref_cache, repo_path) = (self.clone(), repo_path.clone());
        let read = tokio::task::spawn_blocking(move || {
            let snapshot = ref_cache.snapshot(&repo_path);
            snapshot.inspect_err(|error| warn!(target: "git", repo = %repo_path, %error, "cannot read refs"))
        });
        read.await.ok()?.ok()
    }

    /// Keeps a snapshot that was read from the store. Only hosted repositories and existing submissions get an entry:
    /// requests of untrusted clients for other paths must not use memory.
    fn insert(&self, repo_path: &RepoPath, snapshot: &Arc<RefSnapshot>, removals: u64) {
        self.write(|entries| {
            if self.removals.load(Ordering::Acquire) != removals {
                return;
            }
            let known = entries.get_mut(repo_path);
            let entry = match (known, repo_path) {
                (Some(entry), _) => entry,
                (None, RepoPath::PullRequests(_)) if snapshot.exists => {
                    entries.entry(repo_path.clone()).or_insert_with(RepoEntry::new)
                }
                (None, _) => return,
            };
            // A row that was published meanwhile is newer.
            if entry.snapshot.is_none() && snapshot.version >= entry.published_version {
                self.bytes.fetch_add(snapshot.bytes, Ordering::Relaxed);
                entry.snapshot = Some(snapshot.clone());
            }
            self.evict(entries);
        });
    }

    /// Drops the least recently used snapshots if all together exceed [`MAX_BYTES`].
    fn evict(&self, entries: &mut HashMap<RepoPath, RepoEntry>) {
        if self.bytes.load(Ordering::Relaxed) <= MAX_BYTES {
            return;
        }
        let filled = entries.iter().filter(|(_, entry)| entry.snapshot.is_some());
        let mut filled: Vec<(u64, RepoPath)> =
            filled.map(|(repo_path, entry)| (entry.last_used.load(Ordering::Relaxed), repo_path.clone())).collect();
        filled.sort_unstable();
        for (_, repo_path) in filled {
            if self.bytes.load(Ordering::Relaxed) <= MAX_BYTES / 2 {
                break;
            }
            if let Some(snapshot) = entries.get_mut(&repo_path).and_then(|entry| entry.snapshot.take()) {
                self.bytes.fetch_sub(snapshot.bytes, Ordering::Relaxed);
            }
        }
    }

    /// Records that a git job on a repository starts: its size may change until it [ends](Self::job_ended).
    pub(crate) fn job_started(&self, repo_path: &RepoPath) {
        self.set_job(repo_path, true);
    }

    /// Records that no git job is running.
    pub(crate) fn all_jobs_ended(&self) {
        self.write(|entries| entries.values_mut().for_each(|entry| entry.has_job = false));
    }

    /// Records that the git job on a repository has ended.
    pub(crate) fn job_ended(&self, repo_path: &RepoPath) {
        if let RepoPath::PullRequests(repo) = repo_path {
            self.invalidate_submission_bytes(Some(repo.owner));
        }
        self.set_job(repo_path, false);
    }

    fn set_job(&self, repo_path: &RepoPath, has_job: bool) {
        self.write(|entries| {
            if let Some(entry) = entries.get_mut(repo_path) {
                entry.has_job = has_job;
                entry.pool_bytes = None;
            }
        });
    }

    /// Makes the new row of a repository visible, or its removal. Called after the commit. Returns whether branches or
    /// tags have changed.
    pub(crate) fn publish(&self, repo_path: &RepoPath, row: Option<RepoRow>) -> bool {
        let snapshot = Arc::new(self.new_snapshot(row));
        self.write(|entries| {
            if !snapshot.exists {
                self.removals.fetch_add(1, Ordering::AcqRel);
                // Repositories that read its pool are charged for it from now on.
                let group = entries.iter_mut().filter(|(other, _)| other.identifier() == repo_path.identifier());
                group.for_each(|(_, entry)| entry.pool_bytes = None);
            }
            let Some(entry) = entry_mut(entries, repo_path) else { return false };
            entry.published_version = snapshot.version;
            let have_tips_changed = entry
                .snapshot
                .as_ref()
                .is_none_or(|old| !old.refs.branches_and_tags().eq(snapshot.refs.branches_and_tags()));
            self.bytes.fetch_add(snapshot.bytes, Ordering::Relaxed);
            let exists = snapshot.exists;
            if let Some(old) = entry.snapshot.replace(snapshot) {
                self.bytes.fetch_sub(old.bytes, Ordering::Relaxed);
            }
            if !exists && matches!(repo_path, RepoPath::PullRequests(_)) {
                self.remove(entries, repo_path);
            }
            self.evict(entries);
            have_tips_changed
        })
    }

    /// Gives the snapshots of all repositories of an identifier a new generation, because objects were removed from a
    /// pool that they may read, or a repository was found to be degraded: cached answers that contain such objects must not
    /// be used again. Refs do not change.
    pub(crate) fn on_prune(&self, identifier: &Identifier) {
        self.invalidate_submission_bytes(None);
        self.write(|entries| {
            for (_, entry) in entries.iter_mut().filter(|(path, _)| path.identifier() == identifier) {
                entry.pool_bytes = None;
                if let Some(old) = &entry.snapshot {
                    // The new snapshot has the same size, so the total stays the same.
                    let row = RepoRow { version: old.version, refs: old.refs.clone(), degraded: old.degraded.clone() };
                    entry.snapshot = Some(Arc::new(self.new_snapshot(Some(row).filter(|_| old.exists))));
                }
            }
        });
    }

    /// Adds or updates a hosted repository, or removes one that is no longer hosted.
    pub(crate) fn set_hosted(&self, repo: &RepoId, hosted: Option<(EventStatus, Vec<RepoPath>)>) {
        let repo_path = RepoPath::Announced(repo.clone());
        self.write(|entries| match hosted {
            Some((status, alternates)) => {
                let entry = entries.entry(repo_path).or_insert_with(RepoEntry::new);
                entry.status = status;
                entry.alternates = alternates;
            }
            None => {
                self.removals.fetch_add(1, Ordering::AcqRel);
                self.remove(entries, &repo_path);
            }
        });
    }

    fn remove(&self, entries: &mut HashMap<RepoPath, RepoEntry>, repo_path: &RepoPath) {
        if let Some(snapshot) = entries.remove(repo_path).and_then(|entry| entry.snapshot) {
            self.bytes.fetch_sub(snapshot.bytes, Ordering::Relaxed);
        }
    }

    fn new_snapshot(&self, row: Option<RepoRow>) -> RefSnapshot {
        let exists = row.is_some();
        let RepoRow { version, refs, degraded } = row.unwrap_or_default();
        let bytes = refs.iter().map(|(name, _)| 2 * name.len() + BYTES_PER_REF).sum::<usize>() + BYTES_PER_REF;
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        RefSnapshot { refs, exists, degraded, version, generation, advertisements: Default::default(), bytes }
    }

    fn read<R>(&self, read: impl FnOnce(&HashMap<RepoPath, RepoEntry>) -> R) -> R {
        read(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<R>(&self, write: impl FnOnce(&mut HashMap<RepoPath, RepoEntry>) -> R) -> R {
        write(&mut self.entries.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the entry of a repository. Only that of submitted pull requests is created if it is missing.
fn entry_mut<'e>(entries: &'e mut HashMap<RepoPath, RepoEntry>, repo_path: &RepoPath) -> Option<&'e mut RepoEntry> {
    match repo_path {
        RepoPath::Announced(_) => entries.get_mut(repo_path),
        RepoPath::PullRequests(_) => Some(entries.entry(repo_path.clone()).or_insert_with(RepoEntry::new)),
    }
}

impl RepoEntry {
    fn new() -> Self {
        Self {
            status: EventStatus::Held,
            alternates: Vec::new(),
            snapshot: None,
            published_version: 0,
            files_version: AtomicU64::new(0),
            has_job: false,
            pool_bytes: None,
            last_used: AtomicU64::new(0),
        }
    }
}

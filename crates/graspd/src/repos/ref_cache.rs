//! Which repositories are open, and what their refs are: the view that the doors have.
//!
//! The registrar's desk is the only writer; it changes an entry after the commit that makes the change true. Doors read.
//! Maintenance may renew what is there when it has taken objects away; it changes no ref.
//! Refs are read from disk when they are first asked for and let go when they take too much memory; those of a site that
//! is being worked on are kept, so that nobody sees refs before the event that goes with them.

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
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_git::layout::Layout;
use grasp_git::refs::Refs;

/// Bytes of refs that are kept in memory: a hundred repositories with ten thousand refs each, or most others together.
pub(crate) const MAX_BYTES: usize = 128 * 1024 * 1024;

/// What a ref takes in memory beside its name, roughly; the rendered advertisement counts once more.
const BYTES_PER_REF: usize = 300;

/// The refs of a site at one time, and what is made of them.
pub(crate) struct RefSnapshot {
    pub(crate) refs: Refs,
    /// Whether the site has a folder: without one it has no object that could be fetched.
    pub(crate) exists: bool,
    /// Differs whenever refs do.
    pub(crate) generation: u64,
    /// Advertisements, rendered at first need: upload-pack v0, v1, v2.
    pub(crate) upload: [OnceLock<Advertisement>; 3],
    bytes: usize,
}

/// A rendered advertisement and its name.
#[derive(Clone)]
pub(crate) struct Advertisement {
    pub(crate) body: Bytes,
    pub(crate) etag: String,
}

/// What the doors know of one site.
struct Entry {
    status: EventStatus,
    alternates: Vec<RepoPath>,
    snapshot: Option<Arc<RefSnapshot>>,
    /// Whether the site is being worked on.
    pinned: bool,
    /// Bytes of its own pool, if it was weighed since it was last worked on.
    weight: Option<u64>,
    /// When it was last asked for, on a clock of its own.
    asked: AtomicU64,
}

/// A site that is open, as far as a door cares.
pub(crate) struct Open {
    pub(crate) status: EventStatus,
    pub(crate) alternates: Vec<RepoPath>,
}

/// Keys whose submissions were weighed; then it begins anew.
const MAX_SUBMITTERS: usize = 10_000;

/// The directory. The lock guards the map for an instant; files are read outside of it.
pub(crate) struct RefCache {
    layout: Arc<Layout>,
    submissions: bool,
    /// What repositories may take, and which have no place here.
    rules: RwLock<(Quotas, Arc<ModerationLists>)>,
    entries: RwLock<HashMap<RepoPath, Entry>>,
    /// Bytes of all that keys have submitted, as far as somebody has asked.
    submitted: Mutex<HashMap<PublicKey, u64>>,
    /// Held while a miss is filled from disk, so that a thousand askers read a file once.
    filling: Mutex<()>,
    bytes: AtomicUsize,
    clock: AtomicU64,
    generations: AtomicU64,
}

impl RefCache {
    pub(crate) fn new(layout: Arc<Layout>, submissions: bool) -> Self {
        Self {
            layout,
            submissions,
            rules: RwLock::default(),
            entries: RwLock::default(),
            submitted: Mutex::default(),
            filling: Mutex::default(),
            bytes: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
            generations: AtomicU64::new(1),
        }
    }

    /// Whether anybody may use a site.
    pub(crate) fn open(&self, repo_path: &RepoPath) -> Option<Open> {
        match repo_path {
            RepoPath::Announced(_) => self.read(|entries| {
                entries.get(repo_path).map(|entry| Open { status: entry.status, alternates: entry.alternates.clone() })
            }),
            RepoPath::PullRequests(repo) => {
                let is_open = self.submissions && !self.rules().1.is_repo_banned(repo);
                is_open.then(|| Open { status: EventStatus::Served, alternates: Vec::new() })
            }
        }
    }

    /// The announced repositories that are open.
    pub(crate) fn announced(&self) -> Vec<RepoPath> {
        self.read(|entries| {
            entries.keys().filter(|repo_path| matches!(repo_path, RepoPath::Announced(_))).cloned().collect()
        })
    }

    /// Bytes of refs that are in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many repositories are open.
    pub(crate) fn repositories(&self) -> usize {
        self.read(|entries| entries.keys().filter(|repo_path| matches!(repo_path, RepoPath::Announced(_))).count())
    }

    /// From now on these rules hold.
    pub(crate) fn govern(&self, rules: &AdmissionPolicy) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = (rules.quotas, rules.lists.clone());
    }

    fn rules(&self) -> (Quotas, Arc<ModerationLists>) {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many bytes may come to a site, if there is a quota. Blocks, the first time.
    pub(crate) fn left(&self, repo_path: &RepoPath, whose: QuotaUser) -> Option<u64> {
        let (quotas, _) = self.rules();
        if !quotas.has_byte_quotas() {
            return None;
        }
        quotas.remaining(self.weigh(repo_path), whose).map(|(left, _)| left)
    }

    /// What a site and all others of its owner weigh. Blocks, the first time.
    pub(crate) fn weigh(&self, repo_path: &RepoPath) -> GitUsage {
        let owner = repo_path.repo().owner;
        let own = |entries: &HashMap<RepoPath, Entry>| {
            let own =
                entries.iter().filter(|(each, _)| each.repo().owner == owner && matches!(each, RepoPath::Announced(_)));
            own.map(|(repo_path, entry)| (repo_path.clone(), entry.weight)).collect::<Vec<_>>()
        };
        let repository =
            if matches!(repo_path, RepoPath::PullRequests(_)) { self.layout.own_bytes(repo_path) } else { 0 };
        let mut weight = GitUsage { repository_bytes: repository, owner_bytes: self.submitted_by(owner) };
        let mut weighed = Vec::new();
        for (each, known) in self.read(own) {
            let bytes = known.unwrap_or_else(|| {
                let bytes = self.layout.own_bytes(&each);
                weighed.push((each.clone(), bytes));
                bytes
            });
            weight.owner_bytes += bytes;
            if each == *repo_path {
                weight.repository_bytes = bytes;
            }
        }
        if !weighed.is_empty() {
            self.write(|entries| {
                for (repo_path, bytes) in weighed {
                    // One that is being worked on may have grown already.
                    if let Some(entry) = entries.get_mut(&repo_path).filter(|entry| !entry.pinned) {
                        entry.weight = Some(bytes);
                    }
                }
            });
        }
        weight
    }

    /// Bytes of all that a key has submitted: of those sites only what somebody asks for is noted here, the disk knows all.
    fn submitted_by(&self, owner: PublicKey) -> u64 {
        let known = || self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known().get(&owner) {
            return *bytes;
        }
        let bytes = self.layout.submitted_bytes(owner);
        let mut known = known();
        if known.len() >= MAX_SUBMITTERS {
            known.clear();
        }
        known.insert(owner, bytes);
        bytes
    }

    /// What a key has submitted has changed.
    fn resubmitted(&self, owner: Option<PublicKey>) {
        let mut known = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
        match owner {
            Some(owner) => drop(known.remove(&owner)),
            None => known.clear(),
        }
    }

    /// The refs of a site, if they are in memory.
    pub(crate) fn cached(&self, repo_path: &RepoPath) -> Option<Arc<RefSnapshot>> {
        self.read(|entries| {
            let entry = entries.get(repo_path)?;
            entry.asked.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            entry.snapshot.clone()
        })
    }

    /// The refs of a site, from disk if they are not in memory. Blocks.
    pub(crate) fn snapshot(&self, repo_path: &RepoPath) -> io::Result<Arc<RefSnapshot>> {
        if let Some(snapshot) = self.cached(repo_path) {
            return Ok(snapshot);
        }
        let _filling = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(snapshot) = self.cached(repo_path) {
            return Ok(snapshot);
        }
        let folder = self.layout.repo_dir(repo_path);
        let snapshot = Arc::new(self.make(Refs::read(&folder)?, folder.join("HEAD").exists()));
        self.keep(repo_path, &snapshot);
        Ok(snapshot)
    }

    /// Keeps a snapshot that was read. What strangers merely ask for is not noted: only sites that are open, or have
    /// something, are.
    fn keep(&self, repo_path: &RepoPath, snapshot: &Arc<RefSnapshot>) {
        self.write(|entries| {
            let known = entries.get_mut(repo_path);
            let entry = match (known, repo_path) {
                (Some(entry), _) => entry,
                (None, RepoPath::PullRequests(_)) if snapshot.exists => {
                    entries.entry(repo_path.clone()).or_insert_with(Entry::new)
                }
                (None, _) => return,
            };
            // Whoever was faster knows better.
            if entry.snapshot.is_none() {
                self.bytes.fetch_add(snapshot.bytes, Ordering::Relaxed);
                entry.snapshot = Some(snapshot.clone());
            }
            self.shrink(entries);
        });
    }

    /// Lets go of the refs that nobody has asked for the longest, if there are too many in memory.
    fn shrink(&self, entries: &mut HashMap<RepoPath, Entry>) {
        if self.bytes.load(Ordering::Relaxed) <= MAX_BYTES {
            return;
        }
        let idle = entries.iter().filter(|(_, entry)| entry.snapshot.is_some() && !entry.pinned);
        let mut idle: Vec<(u64, RepoPath)> =
            idle.map(|(repo_path, entry)| (entry.asked.load(Ordering::Relaxed), repo_path.clone())).collect();
        idle.sort_unstable();
        for (_, repo_path) in idle {
            if self.bytes.load(Ordering::Relaxed) <= MAX_BYTES / 2 {
                break;
            }
            if let Some(snapshot) = entries.get_mut(&repo_path).and_then(|entry| entry.snapshot.take()) {
                self.bytes.fetch_sub(snapshot.bytes, Ordering::Relaxed);
            }
        }
    }

    /// The site is going to be worked on: what is seen of it stays as it is until [`publish`](Self::publish) or
    /// [`unpin`](Self::unpin).
    pub(crate) fn pin(&self, repo_path: &RepoPath) -> io::Result<()> {
        let snapshot = self.snapshot(repo_path)?;
        self.write(|entries| {
            let entry = match repo_path {
                RepoPath::Announced(_) => entries.get_mut(repo_path),
                RepoPath::PullRequests(_) => Some(entries.entry(repo_path.clone()).or_insert_with(Entry::new)),
            };
            let Some(entry) = entry else { return };
            entry.pinned = true;
            entry.weight = None;
            // Somebody may have let go of it in between.
            if entry.snapshot.is_none() {
                self.bytes.fetch_add(snapshot.bytes, Ordering::Relaxed);
                entry.snapshot = Some(snapshot);
            }
        });
        Ok(())
    }

    /// No work is under way any more.
    pub(crate) fn unpin_all(&self) {
        self.write(|entries| entries.values_mut().for_each(|entry| entry.pinned = false));
    }

    /// The work is over.
    pub(crate) fn unpin(&self, repo_path: &RepoPath) {
        if let RepoPath::PullRequests(repo) = repo_path {
            self.resubmitted(Some(repo.owner));
        }
        self.write(|entries| {
            if let Some(entry) = entries.get_mut(repo_path) {
                entry.pinned = false;
                entry.weight = None;
            }
        });
    }

    /// What the refs of a site are, now that everything that goes with them is visible. Whether branches or tags have
    /// changed.
    pub(crate) fn publish(&self, repo_path: &RepoPath, refs: Refs, exists: bool) -> bool {
        let snapshot = Arc::new(self.make(refs, exists));
        self.write(|entries| {
            let entry = match repo_path {
                RepoPath::Announced(_) => entries.get_mut(repo_path),
                RepoPath::PullRequests(_) => Some(entries.entry(repo_path.clone()).or_insert_with(Entry::new)),
            };
            let Some(entry) = entry else { return false };
            let same = |old: &Arc<RefSnapshot>| old.exists == exists && old.refs == snapshot.refs;
            if entry.snapshot.as_ref().is_some_and(same) {
                return false;
            }
            let moved = entry.snapshot.as_ref().is_none_or(|old| !tips(&old.refs).eq(tips(&snapshot.refs)));
            self.bytes.fetch_add(snapshot.bytes, Ordering::Relaxed);
            if let Some(old) = entry.snapshot.replace(snapshot) {
                self.bytes.fetch_sub(old.bytes, Ordering::Relaxed);
            }
            if !exists && matches!(repo_path, RepoPath::PullRequests(_)) {
                self.remove(entries, repo_path);
            }
            self.shrink(entries);
            moved
        })
    }

    /// Objects have been taken away from a pool that sites of a name may read: answers that have them are not given again.
    /// Refs stay as they are.
    pub(crate) fn renew(&self, name: &Identifier) {
        self.resubmitted(None);
        self.write(|entries| {
            for (_, entry) in entries.iter_mut().filter(|(repo_path, _)| repo_path.identifier() == name) {
                entry.weight = None;
                if let Some(old) = &entry.snapshot {
                    // It takes as many bytes as the old one.
                    entry.snapshot = Some(Arc::new(self.make(old.refs.clone(), old.exists)));
                }
            }
        });
    }

    /// Opens a repository to the world, or closes it.
    pub(crate) fn host(&self, repo: &RepoId, hosted: Option<(EventStatus, Vec<RepoPath>)>) {
        let repo_path = RepoPath::Announced(repo.clone());
        self.write(|entries| match hosted {
            Some((status, alternates)) => {
                let entry = entries.entry(repo_path).or_insert_with(Entry::new);
                entry.status = status;
                entry.alternates = alternates;
            }
            None => self.remove(entries, &repo_path),
        });
    }

    fn remove(&self, entries: &mut HashMap<RepoPath, Entry>, repo_path: &RepoPath) {
        if let Some(snapshot) = entries.remove(repo_path).and_then(|entry| entry.snapshot) {
            self.bytes.fetch_sub(snapshot.bytes, Ordering::Relaxed);
        }
    }

    fn make(&self, refs: Refs, exists: bool) -> RefSnapshot {
        let bytes = refs.iter().map(|(name, _)| 2 * name.len() + BYTES_PER_REF).sum::<usize>() + BYTES_PER_REF;
        let generation = self.generations.fetch_add(1, Ordering::Relaxed);
        RefSnapshot { refs, exists, generation, upload: Default::default(), bytes }
    }

    fn read<R>(&self, read: impl FnOnce(&HashMap<RepoPath, Entry>) -> R) -> R {
        read(&self.entries.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<R>(&self, write: impl FnOnce(&mut HashMap<RepoPath, Entry>) -> R) -> R {
        write(&mut self.entries.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Branches and tags, which states declare: everything but pull requests.
fn tips(refs: &Refs) -> impl Iterator<Item = (&str, &str)> {
    let tips = refs.iter().filter(|(name, _)| !name.starts_with("refs/nostr/"));
    tips.map(|(name, target)| (name, target.oid.as_str()))
}

impl Entry {
    fn new() -> Self {
        Self {
            status: EventStatus::Held,
            alternates: Vec::new(),
            snapshot: None,
            pinned: false,
            weight: None,
            asked: AtomicU64::new(0),
        }
    }
}

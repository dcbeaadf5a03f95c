//! Maintenance of pools: few packs, a multi-pack index with bitmaps, a commit-graph, and no unneeded objects.
//!
//! | file | content |
//! |---|---|
//! | `inspection` | the packs of a pool, and what should be done about them |
//! | `scratch_dir` | the folder in which git works |
//! | `repack` | merges small packs |
//! | `index` | the multi-pack index, bitmaps, the commit-graph |
//! | `needed_objects` | the repositories that read a pool, and the objects that they need |
//! | `prune` | removes unneeded objects |
//! | `swap` | the last step: moves new files into the pool and removes old ones |
//!
//! Runs on one thread of graspd (`repos::maintenance`).
//!
//! # Concurrency
//!
//! No git process writes to a pool. It works in a scratch folder below `incoming/` that has hard links to the pool's
//! packs as they were. The result is synced there, and a swap then moves it into the pool and removes the packs that it
//! replaces: a few renames, under the lock that a git job on repositories of that identifier takes, so that the two
//! never overlap. Fetches may run during a swap, as they may during any repack: git opens packs before it relies on
//! them, and looks again when one has been removed.
//!
//! A *repack* removes no object. The new pack has all objects of the packs that it replaces, which are visible through
//! their links; packs that arrive meanwhile are not touched.
//!
//! A *prune* removes an object when all of these conditions hold: no ref of a repository that reads the pool leads to
//! it; no state or pull request of such a repository, served or held, leads to it; and both have been so for a grace
//! period. Unneeded objects move to a separate pack, git's *cruft pack*, and the age of that pack is how long they have
//! been unneeded. (Git itself counts from when an object arrived. An old branch that was replaced a minute ago would be
//! removed at once.)
//!
//! Between the walk over the needed objects and the swap, git jobs continue. They may use an object again that is about
//! to be removed: a state that names an old commit is complete while the commit exists. So under the lock, when no job
//! of that identifier can run, the prune determines again what is needed and walks over what is new in it; if that
//! includes an object that would be removed, the prune is deferred. A push whose objects were checked before the swap
//! and whose job runs after it is checked again, because [`Layout::record_prune`] is called under the lock, after the
//! last removal.
//!
//! Git assumes without a check that the commits in a commit-graph exist. So a commit-graph contains only commits whose
//! objects are in the same pool, and a prune replaces it before it removes anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, io};

use grasp_core::repo::{PackHash, RepoPath};

use crate::action_error::{ActionContext, ActionError};
use crate::layout::Layout;
use crate::process::Git;
use crate::refs::Refs;
use crate::repo_rows::RepoRows;

mod index;
mod inspection;
mod needed_objects;
mod prune;
mod repack;
mod scratch_dir;
mod swap;

pub use needed_objects::NeededOidsFn;

/// How long an object must be unneeded before it is removed: longer than any event waits for its data, and longer than
/// any client takes between reading refs and requesting their objects. It is also the time in which a branch that was
/// replaced by mistake can be restored.
pub const PRUNE_GRACE: Duration = Duration::from_secs(24 * 3_600);

/// Shortest interval between two prunes of a pool that has changed: a prune walks over all of history.
pub const PRUNE_INTERVAL: Duration = Duration::from_secs(24 * 3_600);

/// How long the last step waits for a git job on the same repository: most take milliseconds. If it waits in vain, its
/// work is discarded.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// A file in the pool's `info`. Its modification time is when the last check for damage started.
const LAST_CHECK: &str = "checked";

/// Largest output of a git process whose output is not read line by line: the name of a pack.
const MAX_OUTPUT: usize = 4 * 1024;

/// Maintains the pools of a git data folder. Used by one thread.
#[derive(Clone)]
pub struct PoolMaintainer {
    git: Git,
    layout: Arc<Layout>,
    rows: Arc<dyn RepoRows>,
    /// Time limit of each git process.
    timeout: Duration,
}

/// The outcome of maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaintenanceOutcome {
    /// There was nothing to do.
    NothingToDo,
    /// The pool was changed.
    Done,
    /// A concurrent change prevented it; it should be tried again later.
    Deferred,
}

impl PoolMaintainer {
    /// Returns a maintainer of the pools of a git data folder. No git process takes longer than `timeout`.
    #[must_use]
    pub fn new(git: &Git, layout: Arc<Layout>, rows: Arc<dyn RepoRows>, timeout: Duration) -> Self {
        Self { git: git.clone(), layout, rows, timeout }
    }

    /// Removes the pool of a deleted repository if not more than one other repository reads it, which then gets its
    /// packs. Returns whether it was removed.
    ///
    /// # Errors
    /// If a file cannot be read, linked or removed.
    pub fn release_orphaned_pool(&self, repo_path: &RepoPath) -> Result<bool, ActionError> {
        let identifier = repo_path.identifier();
        let _removal = self.layout.begin_removal();
        let Some(_lock) = self.layout.repo_locks.lock_within(identifier, LOCK_TIMEOUT) else { return Ok(false) };
        let readers = self.layout.pool_readers(identifier).context("find the readers of pools")?;
        let pool = self.layout.pool(repo_path);
        self.layout.release_pool(&pool, &readers, true, &*self.rows).context("remove a pool")
    }

    /// Removes the pool of a deleted repository although other repositories may read it, and marks these as degraded.
    /// Returns them.
    ///
    /// # Errors
    /// If a file cannot be read, written or removed.
    pub fn remove_orphaned_pool(&self, repo_path: &RepoPath) -> Result<Vec<RepoPath>, ActionError> {
        let identifier = repo_path.identifier();
        let _removal = self.layout.begin_removal();
        let Some(_lock) = self.layout.repo_locks.lock_within(identifier, LOCK_TIMEOUT) else { return Ok(Vec::new()) };
        let pool = self.layout.pool(repo_path);
        self.layout.remove_orphaned_pool(&pool, identifier, &*self.rows).context("remove a pool")
    }

    /// Returns when a repository was last checked for damage. A new one counts as checked when it was created.
    #[must_use]
    pub fn last_check(&self, repo_path: &RepoPath) -> SystemTime {
        let folder = self.layout.repo_dir(repo_path);
        let times = [folder.join("pool/info").join(LAST_CHECK), folder.join("config")];
        let modified = |path: &PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        times.iter().find_map(modified).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Records when a check for damage started.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record_check(&self, repo_path: &RepoPath, started: SystemTime) -> Result<(), ActionError> {
        let info = self.layout.pool(repo_path).join("info");
        if !info.is_dir() {
            return Ok(());
        }
        let file = fs::File::create(info.join(LAST_CHECK));
        file.and_then(|file| file.set_modified(started)).context("record the time of a check")
    }

    /// Records the packs that a pool has without some that are about to be removed.
    fn record_packs_without(&self, repo_path: &RepoPath, removed: &[PackHash]) -> io::Result<()> {
        let mut packs = self.layout.packs_to_record(repo_path, &*self.rows)?;
        packs.0.retain(|pack, _| !removed.contains(pack));
        self.rows.set_packs(repo_path, packs)
    }

    /// Returns the refs of a repository.
    fn refs(&self, repo_path: &RepoPath) -> Result<Arc<Refs>, ActionError> {
        let row = self.rows.row(repo_path).context("read the refs of a repository")?;
        Ok(row.unwrap_or_default().refs)
    }

    /// Returns whether a repository has a pool.
    fn has_pool(&self, repo_path: &RepoPath) -> bool {
        self.layout.pool(repo_path).join("pack").is_dir()
    }
}

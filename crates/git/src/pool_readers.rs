//! The repositories that read a pool, and what becomes of a pool when its repository is deleted.
//!
//! A pool outlives its repository while others need its objects. Such an *orphaned* pool is in the folder of the
//! deleted repository, which has no HEAD. Nothing is copied: a single reader takes over the packs, and several readers
//! go on reading the pool, which maintenance prunes to what they need. Its bytes are charged to each of them
//! ([`Layout::charged_bytes`]).

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::repo::{Identifier, RepoPath};

use crate::alternates::Alternates;
use crate::crash_point;
use crate::files::{file_names, link_if_exists, remove_if_exists, sync_folder};
use crate::layout::{Layout, pack_bytes};

/// The extensions of the files of a pack, in the order in which they are linked: git considers a pack complete as soon
/// as it has an index.
const EXTENSIONS: [&str; 4] = ["pack", "rev", "mtimes", "idx"];

/// A file in the pool's `info`. Its modification time is when the last prune started.
pub(crate) const LAST_PRUNE: &str = "looked";

impl Layout {
    /// Returns the repositories that read a pool and are not its own. The files on disk count, whether or not a
    /// repository is hosted.
    pub(crate) fn pool_readers(&self, pool: &Path, identifier: &Identifier) -> io::Result<Vec<RepoPath>> {
        let mut readers = Vec::new();
        for repo_path in self.repos_with_identifier(identifier)? {
            let alternates = Alternates::read(&self.repo_dir(&repo_path))?;
            if self.pool(&repo_path) != pool && alternates.pools().iter().any(|listed| listed == pool) {
                readers.push(repo_path);
            }
        }
        Ok(readers)
    }

    /// Returns the bytes of git data that a repository is charged for: its own packs, and those of orphaned pools that
    /// it reads. Cruft packs, which maintenance removes soon, do not count, and neither does what cannot be read.
    #[must_use]
    pub fn charged_bytes(&self, repo_path: &RepoPath) -> u64 {
        let alternates = Alternates::read(&self.repo_dir(repo_path));
        let foreign = alternates.map(|alternates| alternates.foreign_pools()).unwrap_or_default();
        let orphaned = foreign.into_iter().filter(|pool| is_orphaned(pool));
        orphaned.chain([self.pool(repo_path)]).map(|pool| needed_bytes(&pool).unwrap_or(0)).sum()
    }

    /// Returns the announced repositories that were deleted and whose pool is still here. Of those whose folder name is
    /// a hash, only the ones whose identifier `identifiers` gives by file name.
    pub fn orphaned_pools(&self, identifiers: &BTreeMap<String, Identifier>) -> io::Result<Vec<RepoPath>> {
        let repo_paths = self.repos_in("repos", RepoPath::Announced, identifiers)?;
        Ok(repo_paths.into_iter().filter(|repo_path| is_orphaned(&self.pool(repo_path))).collect())
    }

    /// Turns a repository into an orphaned pool, durably. The caller holds the lock of its identifier.
    pub(crate) fn remove_refs(&self, folder: &Path) -> io::Result<()> {
        // A repository that is created in this folder later must not show old refs.
        remove_if_exists(&folder.join("packed-refs"))?;
        // The pool is pruned soon.
        remove_if_exists(&folder.join("pool/info").join(LAST_PRUNE))?;
        sync_folder(folder)?;
        crash_point::point("delete.refs");
        remove_if_exists(&folder.join("HEAD"))?;
        sync_folder(folder)?;
        crash_point::point("delete.head");
        Ok(())
    }

    /// Removes an orphaned pool, unless several repositories read it. A single reader takes over its packs. Returns
    /// whether the pool was removed. The caller holds the lock of the identifier and has called
    /// [`begin_removal`](Self::begin_removal).
    pub(crate) fn release_pool(&self, pool: &Path, identifier: &Identifier) -> io::Result<bool> {
        let Some(folder) = pool.parent().filter(|_| is_orphaned(pool)) else { return Ok(false) };
        let readers = self.pool_readers(pool, identifier)?;
        match readers.as_slice() {
            [reader] => {
                self.link_packs(pool, reader)?;
                crash_point::point("release.linked");
            }
            [_, _, ..] if pack_bytes(pool)? > 0 => return Ok(false),
            _ => {}
        }
        for reader in &readers {
            Alternates::read(&self.repo_dir(reader))?.without(&[pool.to_owned()]).write()?;
        }
        crash_point::point("release.alternates");
        self.move_to_trash(folder)?;
        self.record_prune();
        self.remove_owner_folder(folder)?;
        Ok(true)
    }

    /// Links the packs of a pool into the pool of a repository, durably.
    fn link_packs(&self, pool: &Path, into: &RepoPath) -> io::Result<()> {
        let (from, to) = (pool.join("pack"), self.pool(into).join("pack"));
        let names = file_names(&from)?;
        for extension in EXTENSIONS {
            for name in names.iter().map(Path::new) {
                let is_pack = name.to_str().is_some_and(|name| name.starts_with("pack-"));
                if is_pack && name.extension().is_some_and(|found| found == extension) {
                    match link_if_exists(&from.join(name), &to.join(name)) {
                        // Linked by an interrupted run, or pushed to both repositories.
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                        result => result?,
                    }
                }
            }
        }
        sync_folder(&to)?;
        // What the repository does not need is removed soon.
        remove_if_exists(&self.pool(into).join("info").join(LAST_PRUNE))
    }

    /// Makes the removal of a repository folder durable, and removes its owner's folder if it is empty.
    fn remove_owner_folder(&self, folder: &Path) -> io::Result<()> {
        let Some(owner) = folder.parent() else { return Ok(()) };
        let parent = owner.parent().unwrap_or(owner);
        let removed = sync_folder(owner).and_then(|()| fs::remove_dir(owner)).and_then(|()| sync_folder(parent));
        match removed {
            // The owner has other repositories, or the removal of another one has just removed the folder.
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Ok(()),
            result => result,
        }
    }
}

/// Returns the bytes of the packs in a pool that are not cruft packs.
fn needed_bytes(pool: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(pool.join("pack"))?.flatten() {
        if !entry.path().with_extension("mtimes").exists() {
            bytes += entry.metadata().map_or(0, |metadata| metadata.len());
        }
    }
    Ok(bytes)
}

/// Returns whether a pool exists and its repository does not.
fn is_orphaned(pool: &Path) -> bool {
    pool.is_dir() && pool.parent().is_some_and(|folder| !folder.join("HEAD").exists())
}

/// Returns the orphaned pools among some pools.
pub(crate) fn orphaned(pools: Vec<PathBuf>) -> impl Iterator<Item = PathBuf> {
    pools.into_iter().filter(|pool| is_orphaned(pool))
}

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

use grasp_core::repo::{Identifier, PackManifest, RepoPath};

use crate::alternates::Alternates;
use crate::crash_point;
use crate::files::{file_names, link_if_exists, remove_if_exists, sync_folder};
use crate::layout::{Layout, pack_bytes};
use crate::repo_rows::RepoRows;

/// The extensions of the files of a pack, in the order in which they are linked: git considers a pack complete as soon
/// as it has an index.
const EXTENSIONS: [&str; 4] = ["pack", "rev", "mtimes", "idx"];

/// A file in the pool's `info`. Its modification time is when the last prune started.
pub(crate) const LAST_PRUNE: &str = "looked";

/// The repositories with one identifier that read pools of others.
#[derive(Debug)]
pub(crate) struct PoolReaders {
    identifier: Identifier,
    by_pool: BTreeMap<PathBuf, Vec<RepoPath>>,
}

impl PoolReaders {
    /// Returns the repositories that read a pool and are not its own.
    pub(crate) fn of(&self, pool: &Path) -> &[RepoPath] {
        self.by_pool.get(pool).map_or(&[], Vec::as_slice)
    }
}

impl Layout {
    /// Returns which repositories with an identifier read the pools of others. The files on disk count, whether or not
    /// a repository is hosted.
    pub(crate) fn pool_readers(&self, identifier: &Identifier) -> io::Result<PoolReaders> {
        let mut readers = PoolReaders { identifier: identifier.clone(), by_pool: BTreeMap::new() };
        for repo_path in self.repos_with_identifier(identifier)? {
            for pool in Alternates::read(&self.repo_dir(&repo_path))?.foreign_pools() {
                readers.by_pool.entry(pool).or_default().push(repo_path.clone());
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
        let orphaned = foreign.into_iter().filter(|pool| is_orphaned(pool).unwrap_or(false));
        orphaned.chain([self.pool(repo_path)]).map(|pool| needed_bytes(&pool).unwrap_or(0)).sum()
    }

    /// Returns the announced repositories that were deleted and whose pool is still here. Of those whose folder name is
    /// a hash, only the ones whose identifier `identifiers` gives by file name.
    pub fn orphaned_pools(&self, identifiers: &BTreeMap<String, Identifier>) -> io::Result<Vec<RepoPath>> {
        let mut orphaned = Vec::new();
        for repo_path in self.repos_in("repos", RepoPath::Announced, identifiers)? {
            if is_orphaned(&self.pool(&repo_path))? {
                orphaned.push(repo_path);
            }
        }
        Ok(orphaned)
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

    /// Removes an orphaned pool, unless several repositories read it. A single reader takes over its packs if `can_link`.
    /// Returns whether the pool was removed. The caller holds the lock of the identifier and has called
    /// [`begin_removal`](Self::begin_removal).
    pub(crate) fn release_pool(
        &self,
        pool: &Path,
        readers: &PoolReaders,
        can_link: bool,
        rows: &dyn RepoRows,
    ) -> io::Result<bool> {
        if !is_orphaned(pool)? {
            return Ok(false);
        }
        match readers.of(pool) {
            [_] if !can_link => return Ok(false),
            [reader] => {
                self.link_packs(pool, reader)?;
                rows.set_packs(reader, self.packs_to_record(reader, rows)?)?;
                crash_point::point("release.linked");
            }
            [_, _, ..] if pack_bytes(pool)? > 0 => return Ok(false),
            _ => {}
        }
        self.remove_pool(pool, readers, rows)?;
        Ok(true)
    }

    /// Removes an orphaned pool, after the repositories that read it have been recorded as degraded. Returns them. The
    /// caller holds the lock of the identifier and has called [`begin_removal`](Self::begin_removal).
    pub(crate) fn remove_orphaned_pool(
        &self,
        pool: &Path,
        identifier: &Identifier,
        rows: &dyn RepoRows,
    ) -> io::Result<Vec<RepoPath>> {
        if !is_orphaned(pool)? {
            return Ok(Vec::new());
        }
        let readers = self.pool_readers(identifier)?;
        for reader in readers.of(pool) {
            rows.set_degraded(reader, "a repository whose objects it needs was deleted while the disk was full")?;
        }
        self.remove_pool(pool, &readers, rows)?;
        Ok(readers.of(pool).to_vec())
    }

    /// Records that a repository whose folder is lost is degraded, and so are those that read its pool. Called before the
    /// folder is created again, because then nothing would show the loss. Returns them.
    pub(crate) fn record_lost_folder(&self, repo_path: &RepoPath, rows: &dyn RepoRows) -> io::Result<Vec<RepoPath>> {
        let mut degraded = self.pool_readers(repo_path.identifier())?.of(&self.pool(repo_path)).to_vec();
        for reader in &degraded {
            rows.set_degraded(reader, "the folder of a repository whose objects it needs was lost")?;
        }
        rows.set_degraded(repo_path, "its folder was lost")?;
        degraded.push(repo_path.clone());
        Ok(degraded)
    }

    /// Removes a pool from the alternates of its readers, then its row, and then the pool from the disk.
    fn remove_pool(&self, pool: &Path, readers: &PoolReaders, rows: &dyn RepoRows) -> io::Result<()> {
        let Some(folder) = pool.parent() else { return Ok(()) };
        for reader in readers.of(pool) {
            Alternates::read(&self.repo_dir(reader))?.without(&[pool.to_owned()]).write()?;
        }
        crash_point::point("release.alternates");
        if let Some(repo_path) = self.repo_of_pool(pool, &readers.identifier) {
            rows.set_packs(&repo_path, PackManifest::default())?;
        }
        self.move_to_trash(folder)?;
        self.record_prune();
        self.remove_owner_folder(folder)
    }

    /// Links the packs of a pool into the pool of a repository, durably.
    fn link_packs(&self, pool: &Path, into: &RepoPath) -> io::Result<()> {
        let (from, to) = (pool.join("pack"), self.pool(into).join("pack"));
        let mut packs = Vec::new();
        for name in file_names(&from)? {
            let pack =
                name.to_str().and_then(|name| name.strip_suffix(".idx")).filter(|name| name.starts_with("pack-"));
            // A pack with an index is complete: linked by an interrupted run, or pushed to both repositories.
            if let Some(pack) = pack.filter(|_| !to.join(&name).exists()) {
                packs.push(pack.to_owned());
            }
        }
        for extension in EXTENSIONS {
            for name in packs.iter().map(|pack| format!("{pack}.{extension}")) {
                match link_if_exists(&from.join(&name), &to.join(&name)) {
                    // Linked by an interrupted run.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                    result => result?,
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

/// Returns whether a pool exists and its repository is deleted.
///
/// # Errors
/// If that cannot be determined: a repository that cannot be read is not deleted.
fn is_orphaned(pool: &Path) -> io::Result<bool> {
    let Some(folder) = pool.parent() else { return Ok(false) };
    Ok(pool.try_exists()? && is_deleted(folder)?)
}

/// Returns whether a folder is not a repository any more: it has neither HEAD nor refs. One that has lost only HEAD is
/// damaged.
pub(crate) fn is_deleted(folder: &Path) -> io::Result<bool> {
    Ok(!folder.join("HEAD").try_exists()? && !folder.join("packed-refs").try_exists()?)
}

//! The git data folder: where repositories, received packs and temporary files are.
//!
//! | folder | content |
//! |---|---|
//! | `repos/<npub>/<name>.git` | a hosted repository: `HEAD`, `config`, `packed-refs`, alternates and its own `pool`; without `HEAD`, the pool of a deleted repository that others read |
//! | `prs/<npub>/<name>.git` | the same for submitted pull requests (GRASP-06) |
//! | `incoming/<n>` | packs that are being received, and scratch folders; emptied at every start |
//! | `staged/<n>` | uploads whose signed event is not known yet; each has a row in the store |
//! | `trash/<n>` | what is being removed; emptied at every start |
//! | `snapshot/<n>` | hard links to all git data, for a backup; emptied at every start |
//! | `damaged/<pack>-<seconds>` | damaged packs that were moved away |
//! | `store-id` | the id of the event store that the folder belongs to |
//! | `children.lock` | locked by the server and so by every git process that it starts |
//! | `empty.git` | an empty repository, for git commands on object directories |
//!
//! A pool is a flat object directory: it has packs and no alternates. A repository's `objects` has no packs; its
//! alternates name the pools that the repository may read, its own first.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;
use grasp_core::nostr::{PublicKey, hex};
use grasp_core::repo::{Identifier, PackHash, PackManifest, RepoId, RepoPath};
use sha2::{Digest, Sha256};

use crate::alternates::Alternates;
use crate::crash_point;
use crate::files::{file_names, if_found, remove_folder, replace_file, sync_folder};
use crate::pool_readers::is_deleted;
use crate::repo_lock::RepoLocks;
use crate::repo_rows::RepoRows;
use grasp_core::repo::refs::DEFAULT_HEAD;

/// Longest file name of an identifier before it is replaced by a hash. File systems allow 255 bytes, and a suffix is
/// appended.
const MAX_NAME: usize = 200;

/// The file with the id of the event store.
const STORE_ID: &str = "store-id";

/// The content of every repository's `config`.
pub const CONFIG: &[u8] = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n";

/// The git data folder.
#[derive(Debug)]
pub struct Layout {
    root: PathBuf,
    next_number: AtomicU64,
    /// How often objects have been removed from pools.
    prune_count: AtomicU64,
    /// Locks for changes of repositories.
    pub(crate) repo_locks: RepoLocks,
    /// Held shared while git data is removed, and exclusively while everything is linked. It is taken before a
    /// repository lock. It protects nothing in memory.
    removals: RwLock<()>,
}

impl Layout {
    /// Opens a git data folder and creates what is missing. Removes what was being received or removed when the server
    /// ended.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let layout = Self::new(root.canonicalize()?);
        for name in ["incoming", "trash", "snapshot"] {
            remove_folder(&layout.root.join(name))?;
        }
        for name in ["incoming", "trash", "snapshot", "repos", "prs", "staged"] {
            fs::create_dir_all(layout.root.join(name))?;
        }
        create_bare_repo(&layout.empty_repo())?;
        sync_folder(&layout.root)?;
        Ok(layout)
    }

    fn new(root: PathBuf) -> Self {
        Self {
            root,
            next_number: AtomicU64::new(1),
            prune_count: AtomicU64::new(0),
            repo_locks: RepoLocks::default(),
            removals: RwLock::default(),
        }
    }

    /// Opens the git data folder of a server that does not run, without any change to it.
    pub fn open_existing(root: &Path) -> io::Result<Self> {
        Ok(Self::new(root.canonicalize()?))
    }

    /// Returns the git data folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the id of the event store that the folder belongs to; `None` if it has none yet.
    pub fn store_id(&self) -> io::Result<Option<String>> {
        let text = if_found(fs::read_to_string(self.root.join(STORE_ID)))?;
        Ok(text.map(|text| text.trim().to_owned()))
    }

    /// Records the id of the event store that the folder belongs to.
    pub fn set_store_id(&self, id: &str) -> io::Result<()> {
        replace_file(&self.root, STORE_ID, format!("{id}\n").as_bytes())
    }

    /// Checks that the folder can be read and written, and is still the one that belongs to this store.
    ///
    /// # Errors
    /// Fails if its disk was unmounted, is read-only or fails, or if another folder is at its place.
    pub fn check_access(&self, store_id: &str) -> io::Result<()> {
        match self.store_id()? {
            Some(found) if found == store_id => {}
            Some(_) => return Err(io::Error::other("it belongs to another event store")),
            None => return Err(io::Error::other("its file store-id is missing, is its disk mounted?")),
        }
        for name in ["repos", "prs", "incoming"] {
            let folder = self.root.join(name);
            fs::read_dir(&folder)?;
            rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK)?;
        }
        Ok(())
    }

    /// Whether any repository has a folder. What cannot be read counts as none.
    #[must_use]
    pub fn has_repos(&self) -> bool {
        let folders = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let owners = ["repos", "prs"].into_iter().flat_map(|parent| folders(&self.root.join(parent)));
        owners.flat_map(|owner| folders(&owner)).any(|repository| repository.join("HEAD").exists())
    }

    /// Returns the folder of a repository, whether or not it exists.
    #[must_use]
    pub fn repo_dir(&self, repo_path: &RepoPath) -> PathBuf {
        self.root.join(relative_repo_dir(repo_path))
    }

    /// Returns the pool of a repository: an object directory.
    #[must_use]
    pub fn pool(&self, repo_path: &RepoPath) -> PathBuf {
        self.repo_dir(repo_path).join("pool")
    }

    /// Whether the folder of a repository has ref files. What cannot be read counts as existing.
    #[must_use]
    pub fn has_refs(&self, repo_path: &RepoPath) -> bool {
        !is_deleted(&self.repo_dir(repo_path)).unwrap_or(false)
    }

    /// Returns the packs in the pool of a repository; none if it has no pool.
    pub fn packs(&self, repo_path: &RepoPath) -> io::Result<PackManifest> {
        let mut packs = PackManifest::default();
        for entry in if_found(fs::read_dir(self.pool(repo_path).join("pack")))?.into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".pack"));
            if let Some(pack) = stem.and_then(PackHash::from_file_stem) {
                packs.0.insert(pack, entry.metadata()?.len());
            }
        }
        Ok(packs)
    }

    /// Returns the packs that a pool should have after some were added: those that are here, and those that are recorded.
    /// One that is recorded and missing must stay recorded until the loss is noticed.
    pub(crate) fn packs_to_record(&self, repo_path: &RepoPath, rows: &dyn RepoRows) -> io::Result<PackManifest> {
        let mut packs = rows.packs(repo_path)?.unwrap_or_default();
        packs.0.extend(self.packs(repo_path)?.0);
        Ok(packs)
    }

    /// Returns the repository that a pool belongs to, given its identifier.
    pub(crate) fn repo_of_pool(&self, pool: &Path, identifier: &Identifier) -> Option<RepoPath> {
        let owner = pool.parent()?.parent()?.file_name()?.to_str().and_then(PublicKey::from_npub)?;
        let repo = RepoId { owner, identifier: identifier.clone() };
        [RepoPath::Announced(repo.clone()), RepoPath::PullRequests(repo)]
            .into_iter()
            .find(|path| self.pool(path) == pool)
    }

    /// Returns the bytes of all packs that a repository reads: its own and those of its alternates.
    pub fn readable_pool_bytes(&self, repo_path: &RepoPath) -> io::Result<u64> {
        let objects = self.repo_dir(repo_path).join("objects");
        let alternates = fs::read_to_string(objects.join("info/alternates"))?;
        alternates.lines().map(|pool| pack_bytes(&objects.join(pool))).sum()
    }

    /// Returns the bytes of the packs in all pools of pull requests that a key has submitted.
    #[must_use]
    pub fn submission_bytes(&self, owner: PublicKey) -> u64 {
        let Ok(entries) = fs::read_dir(self.root.join("prs").join(owner.npub())) else { return 0 };
        entries.flatten().flat_map(|entry| pack_bytes(&entry.path().join("pool"))).sum()
    }

    /// Returns the folder of a received pack: an object directory.
    #[must_use]
    pub fn received_pack(&self, received_pack: &ReceivedPack) -> PathBuf {
        match received_pack {
            ReceivedPack::Incoming(n) => self.incoming().join(n.to_string()),
            ReceivedPack::Staged(n) => self.root.join("staged").join(format!("{n:016x}")),
        }
    }

    /// Returns the folder of packs that are being received and of scratch folders.
    pub(crate) fn incoming(&self) -> PathBuf {
        self.root.join("incoming")
    }

    /// Creates a folder for a pack or for temporary files, with some folders in it.
    pub(crate) fn create_incoming(&self, folders: &[&str]) -> io::Result<IncomingFolder> {
        let number = self.next_number();
        let incoming = IncomingFolder { number, path: self.received_pack(&ReceivedPack::Incoming(number)) };
        folders.iter().try_for_each(|folder| fs::create_dir_all(incoming.path.join(folder)))?;
        Ok(incoming)
    }

    /// Returns the empty repository, for git commands on object directories.
    #[must_use]
    pub fn empty_repo(&self) -> PathBuf {
        self.root.join("empty.git")
    }

    /// Returns how often objects have been removed from pools since the server started.
    pub fn prune_count(&self) -> u64 {
        self.prune_count.load(Ordering::Acquire)
    }

    /// Records that objects have been removed from a pool. Called before the lock of the repository is released, so
    /// that a check that found an object before it was removed has a lower [count](Self::prune_count).
    pub fn record_prune(&self) {
        self.prune_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the free bytes of the disk.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.root)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// Returns the existing pools that a repository with these alternates reads, its own first. Pools that it has read
    /// before are among them.
    pub fn existing_pools(&self, repo_path: &RepoPath, alternates: &[RepoPath]) -> io::Result<Vec<PathBuf>> {
        let pools = Alternates::for_repo(self, repo_path, alternates)?.pools();
        Ok(pools.into_iter().filter(|pool| pool.is_dir()).collect())
    }

    /// Returns a number that no other incoming, trash or snapshot folder of this process has.
    pub fn next_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the announced repositories with an identifier that have a folder and are not deleted.
    pub(crate) fn repos_with_identifier(&self, identifier: &Identifier) -> io::Result<Vec<RepoPath>> {
        let owners = file_names(&self.root.join("repos"))?;
        let keys = owners.iter().filter_map(|owner| owner.to_str().and_then(PublicKey::from_npub));
        let mut repos = Vec::new();
        for owner in keys {
            let repo_path = RepoPath::Announced(RepoId { owner, identifier: identifier.clone() });
            let folder = self.repo_dir(&repo_path);
            if folder.try_exists()? && !is_deleted(&folder)? {
                repos.push(repo_path);
            }
        }
        Ok(repos)
    }

    /// Returns the repositories of submitted pull requests that have a folder, except those whose folder name is a
    /// hash.
    pub fn submission_repos(&self) -> io::Result<Vec<RepoPath>> {
        self.repos_in("prs", RepoPath::PullRequests, &BTreeMap::new())
    }

    /// Returns all repositories that have a folder. Of those whose folder name is a hash, only the ones whose
    /// identifier `identifiers` gives by file name.
    pub fn all_repos(&self, identifiers: &BTreeMap<String, Identifier>) -> io::Result<Vec<RepoPath>> {
        let mut repo_paths = self.repos_in("repos", RepoPath::Announced, identifiers)?;
        repo_paths.extend(self.repos_in("prs", RepoPath::PullRequests, identifiers)?);
        Ok(repo_paths)
    }

    pub(crate) fn repos_in(
        &self,
        parent: &str,
        repo_path: fn(RepoId) -> RepoPath,
        identifiers: &BTreeMap<String, Identifier>,
    ) -> io::Result<Vec<RepoPath>> {
        let mut repo_paths = Vec::new();
        for (owner, file_name) in self.repo_folders(parent)? {
            let (Some(owner), Some(name)) = (owner.to_str(), file_name.to_str()) else { continue };
            let Some(mut repo) = RepoId::from_segments(owner, name) else { continue };
            if let Some(identifier) = name.strip_suffix(".git").and_then(|stem| identifiers.get(stem)) {
                repo.identifier = identifier.clone();
            }
            repo_paths.extend(Some(repo_path(repo)).filter(|repo_path| self.repo_dir(repo_path).ends_with(name)));
        }
        Ok(repo_paths)
    }

    /// Returns the names of the folders below `repos` or `prs`: of the owner and of the repository.
    pub(crate) fn repo_folders(&self, parent: &str) -> io::Result<Vec<(OsString, OsString)>> {
        let mut folders = Vec::new();
        for owner in file_names(&self.root.join(parent))? {
            // The folder of an owner is removed with its last repository.
            let names = if_found(file_names(&self.root.join(parent).join(&owner)))?.unwrap_or_default();
            folders.extend(names.into_iter().map(|name| (owner.clone(), name)));
        }
        Ok(folders)
    }

    /// Waits until git data may be removed, and holds off [`pause_removals`](Self::pause_removals) until the guard is
    /// dropped. Taken before a repository lock.
    pub fn begin_removal(&self) -> RwLockReadGuard<'_, ()> {
        self.removals.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds off removals of git data until the guard is dropped. Git data can still be added.
    pub(crate) fn block_removals(&self) -> RwLockWriteGuard<'_, ()> {
        self.removals.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a folder to the trash, which [`empty_trash`](Self::empty_trash) removes. Does nothing if it does not
    /// exist.
    pub fn move_to_trash(&self, folder: &Path) -> io::Result<()> {
        let trash = self.root.join("trash").join(self.next_number().to_string());
        if if_found(fs::rename(folder, trash))?.is_some() {
            crash_point::point("trash.moved");
        }
        Ok(())
    }

    /// Removes everything in the trash.
    pub fn empty_trash(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("trash"))? {
            // Another thread may remove it too.
            remove_folder(&entry?.path())?;
        }
        Ok(())
    }

    /// Removes staged uploads that have no row in the store.
    pub fn retain_staged(&self, rows: &std::collections::BTreeSet<u64>) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("staged"))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            if !number.is_some_and(|number| rows.contains(&number)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

/// A folder `incoming/<n>`. It is removed with its content when this value is dropped, unless it was renamed.
#[derive(Debug)]
pub(crate) struct IncomingFolder {
    number: u64,
    path: PathBuf,
}

impl IncomingFolder {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name by which a git job refers to a pack in it.
    pub(crate) fn received_pack(&self) -> ReceivedPack {
        ReceivedPack::Incoming(self.number)
    }
}

impl Drop for IncomingFolder {
    fn drop(&mut self) {
        // What cannot be removed now is removed at the next start.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the folder of a repository relative to the git data folder.
#[must_use]
pub fn relative_repo_dir(repo_path: &RepoPath) -> PathBuf {
    let parent = match repo_path {
        RepoPath::Announced(_) => "repos",
        RepoPath::PullRequests(_) => "prs",
    };
    let repo = repo_path.repo();
    Path::new(parent).join(repo.owner.npub()).join(format!("{}.git", identifier_file_name(&repo.identifier)))
}

/// Creates the folders of a repository, without which git does not recognise it. Some of them are empty and so are not
/// in the file list of a backup.
pub fn create_repo_folders(repository: &Path) -> io::Result<()> {
    let folders = ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"];
    folders.iter().try_for_each(|folder| fs::create_dir_all(repository.join(folder)))
}

/// Creates a bare repository without packs, durably. An existing repository is not changed.
pub(crate) fn create_bare_repo(folder: &Path) -> io::Result<()> {
    if folder.join("HEAD").exists() {
        return Ok(());
    }
    // A folder without HEAD may have a pool that other repositories read.
    let is_new = !folder.try_exists()?;
    let created = write_bare_repo(folder);
    if created.is_err() && is_new && !folder.join("HEAD").exists() {
        // A partial repository would be removed late. The owner's folder is removed too if it has nothing else.
        let _ = fs::remove_dir_all(folder);
        let _ = folder.parent().map(fs::remove_dir);
    }
    created
}

/// Returns the bytes of the packs in a pool. A pack may be removed in the meantime.
pub(crate) fn pack_bytes(pool: &Path) -> io::Result<u64> {
    let entries = fs::read_dir(pool.join("pack"))?;
    Ok(entries.flatten().flat_map(|entry| entry.metadata()).map(|metadata| metadata.len()).sum())
}

fn write_bare_repo(folder: &Path) -> io::Result<()> {
    create_repo_folders(folder)?;
    replace_file(folder, "config", CONFIG)?;
    // A folder with HEAD counts as a repository, so HEAD is written last.
    replace_file(folder, "HEAD", format!("ref: {DEFAULT_HEAD}\n").as_bytes())?;
    for part in [folder.join("objects"), folder.join("pool")] {
        sync_folder(&part)?;
    }
    // The folders above must be durable too: the owner's folder may be new.
    for above in folder.ancestors().skip(1).take(3) {
        sync_folder(above)?;
    }
    Ok(())
}

/// Returns the file name of an identifier. No two identifiers share one, also on file systems that ignore case.
#[must_use]
pub fn identifier_file_name(identifier: &Identifier) -> String {
    let mut name = String::new();
    for byte in identifier.as_str().bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte) {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02x}"));
        }
    }
    if name.len() <= MAX_NAME {
        return name;
    }
    // An encoded name never contains an equals sign.
    format!("={}", hex::encode(&Sha256::digest(identifier.as_str().as_bytes())))
}

/// Writes the alternates of an object directory for a git process. A file lists them, because an environment variable
/// could not hold as many as a large maintainer set has.
pub(crate) fn write_alternates(objects: &Path, pools: &[PathBuf]) -> io::Result<()> {
    let mut names = Vec::new();
    for pool in pools {
        names.extend_from_slice(pool.as_os_str().as_encoded_bytes());
        names.push(b'\n');
    }
    fs::write(objects.join("info/alternates"), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The folder may have a pool that other repositories read.
    #[test]
    fn failed_creation_keeps_what_was_in_the_folder() {
        let folder = tempfile::TempDir::new().expect("create a folder");
        let repository = folder.path().join("repository");
        fs::create_dir_all(repository.join("pool/pack")).expect("create a folder");
        // The file cannot be replaced by one that is written.
        fs::create_dir_all(repository.join("config.new")).expect("create a folder");
        assert!(create_bare_repo(&repository).is_err());
        assert!(repository.join("pool/pack").is_dir());
        let new = folder.path().join("file/new");
        fs::write(folder.path().join("file"), "").expect("write a file");
        assert!(create_bare_repo(&new).is_err());
    }

    #[test]
    fn file_names_are_safe_and_distinct() {
        let long = "ü".repeat(500);
        let identifiers = ["tool", "Tool", "x.git", "my 🚀 repo", "a%2fb", "HEAD", "...", &long, &"a".repeat(1_000)];
        let mut names: Vec<String> =
            identifiers.iter().map(|text| identifier_file_name(&Identifier::new(text).expect("valid"))).collect();
        for name in &names {
            assert!(name.len() <= MAX_NAME && !name.contains(['/', '.', '\\', ' ']), "{name}");
        }
        names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), identifiers.len());
    }
}

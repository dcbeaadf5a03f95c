//! Where things lie in the git folder.
//!
//! | folder | what |
//! |---|---|
//! | `repos/<npub>/<name>.git` | a repository: `HEAD`, `config`, `packed-refs`, `objects/info/alternates`, and its own `pool` |
//! | `prs/<npub>/<name>.git` | the same for what contributors submit (GRASP-06) |
//! | `incoming/<n>` | packs that are being received; emptied at every start |
//! | `staged/<n>` | uploads that nobody has signed yet; each has a row in the store |
//! | `trash/<n>` | what is being removed; emptied at every start |
//! | `snapshot/<n>` | links to everything at one moment, for whoever copies it; emptied at every start |
//! | `children.lock` | locked by the server, and so by every git process that it starts |
//! | `empty.git` | a repository without anything, for learning what git can do |
//!
//! A pool is a flat object directory: it has packs and no alternates. A repository's `objects` has no packs and names the
//! pools that it may read, its own first.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;
use grasp_core::nostr::{PublicKey, hex};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use sha2::{Digest, Sha256};

use crate::crash_point;
use crate::repo_lock::Turns;

/// File names are at most this long before they become a hash; file systems take 255 bytes and we append a little.
const MAX_NAME: usize = 200;

/// What a repository's `config` says, always.
pub const CONFIG: &[u8] = b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n";

/// The git folder.
#[derive(Debug)]
pub struct Layout {
    root: PathBuf,
    next: AtomicU64,
    /// How often objects were taken away from pools.
    prunings: AtomicU64,
    /// Who changes the pools of a name.
    pub(crate) turns: Turns,
    /// Whoever takes git data away shares it; whoever links everything has it alone. It is taken before a turn. It guards
    /// nothing in memory.
    removals: RwLock<()>,
}

impl Layout {
    /// Opens a git folder, making what is missing. What was being received or removed when the server ended is removed.
    pub fn open(root: &Path) -> io::Result<Self> {
        fs::create_dir_all(root)?;
        let layout = Self::at(root.canonicalize()?);
        for name in ["incoming", "trash", "snapshot"] {
            layout.empty(name)?;
        }
        for name in ["repos", "prs", "staged"] {
            fs::create_dir_all(layout.root.join(name))?;
        }
        make_bare(&layout.template())?;
        sync_folder(&layout.root)?;
        Ok(layout)
    }

    fn at(root: PathBuf) -> Self {
        Self {
            root,
            next: AtomicU64::new(1),
            prunings: AtomicU64::new(0),
            turns: Turns::default(),
            removals: RwLock::default(),
        }
    }

    /// A git folder whose server does not run, to be looked at: nothing is made and nothing goes.
    pub fn look(root: &Path) -> io::Result<Self> {
        Ok(Self::at(root.canonicalize()?))
    }

    /// The git folder itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a site, whether or not it exists.
    #[must_use]
    pub fn repo_dir(&self, repo_path: &RepoPath) -> PathBuf {
        self.root.join(path_of(repo_path))
    }

    /// The pool of a site: an object directory.
    #[must_use]
    pub fn pool(&self, repo_path: &RepoPath) -> PathBuf {
        self.repo_dir(repo_path).join("pool")
    }

    /// Bytes of all packs that a site reads, its own and those that it is lent.
    pub fn pool_bytes(&self, repo_path: &RepoPath) -> io::Result<u64> {
        let objects = self.repo_dir(repo_path).join("objects");
        let alternates = fs::read_to_string(objects.join("info/alternates"))?;
        let mut bytes = 0;
        for pool in alternates.lines() {
            for entry in fs::read_dir(objects.join(pool).join("pack"))? {
                // A pack may go while it is looked at.
                let length = |entry: fs::DirEntry| entry.metadata().map_or(0, |metadata| metadata.len());
                bytes += entry.map_or(0, length);
            }
        }
        Ok(bytes)
    }

    /// Bytes of the packs in a site's own pool; none if it has no pool.
    #[must_use]
    pub fn own_bytes(&self, repo_path: &RepoPath) -> u64 {
        packs_bytes(&self.pool(repo_path))
    }

    /// The same of all sites that were submitted by a key.
    #[must_use]
    pub fn submitted_bytes(&self, owner: PublicKey) -> u64 {
        let Ok(entries) = fs::read_dir(self.root.join("prs").join(owner.npub())) else { return 0 };
        entries.flatten().map(|entry| packs_bytes(&entry.path().join("pool"))).sum()
    }

    /// The folder of a received pack: an object directory.
    #[must_use]
    pub fn received_pack(&self, received_pack: &ReceivedPack) -> PathBuf {
        match received_pack {
            ReceivedPack::Incoming(n) => self.root.join("incoming").join(n.to_string()),
            ReceivedPack::Staged(n) => self.root.join("staged").join(format!("{n:016x}")),
        }
    }

    /// The repository without anything.
    #[must_use]
    pub fn template(&self) -> PathBuf {
        self.root.join("empty.git")
    }

    /// How often objects were taken away from pools since the server began.
    pub fn prunings(&self) -> u64 {
        self.prunings.load(Ordering::Acquire)
    }

    /// Notes that objects have been taken away. It is noted before anybody else has a turn at the repositories of that
    /// name, so that whoever looked for an object before it was gone has an older number.
    pub fn note_pruning(&self) {
        self.prunings.fetch_add(1, Ordering::AcqRel);
    }

    /// Free bytes of the disk.
    pub fn free_bytes(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.root)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    /// A number that no incoming pack and no trash has in this process.
    pub fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The announced sites of a name that have a folder.
    pub(crate) fn namesakes(&self, identifier: &Identifier) -> io::Result<Vec<RepoPath>> {
        let name = format!("{}.git", file_name(identifier));
        let mut repo_paths = Vec::new();
        for owner in fs::read_dir(self.root.join("repos"))? {
            let owner = owner?;
            let key = owner.file_name().to_str().and_then(PublicKey::from_npub);
            if let Some(key) = key.filter(|_| owner.path().join(&name).join("HEAD").exists()) {
                repo_paths.push(RepoPath::Announced(RepoId { owner: key, identifier: identifier.clone() }));
            }
        }
        Ok(repo_paths)
    }

    /// The sites of submissions that have a folder, but for those whose name became a hash.
    pub fn submitted(&self) -> io::Result<Vec<RepoPath>> {
        let mut repo_paths = Vec::new();
        for owner in fs::read_dir(self.root.join("prs"))? {
            let owner = owner?;
            let repositories = match fs::read_dir(owner.path()) {
                // It went with its last repository.
                Err(problem) if problem.kind() == io::ErrorKind::NotFound => continue,
                repositories => repositories?,
            };
            for repository in repositories {
                let (owner, name) = (owner.file_name(), repository?.file_name());
                let repo =
                    owner.to_str().zip(name.to_str()).and_then(|(owner, name)| RepoId::from_segments(owner, name));
                repo_paths.extend(
                    repo.map(RepoPath::PullRequests).filter(|repo_path| self.repo_dir(repo_path).ends_with(&name)),
                );
            }
        }
        Ok(repo_paths)
    }

    /// The sites that have a folder, but for those whose name became a hash, which `names` may know by their file name.
    pub fn repo_paths(&self, names: &BTreeMap<String, Identifier>) -> io::Result<Vec<RepoPath>> {
        let mut repo_paths = Vec::new();
        for (room, repo_path) in
            [("repos", RepoPath::Announced as fn(RepoId) -> RepoPath), ("prs", RepoPath::PullRequests)]
        {
            for owner in fs::read_dir(self.root.join(room))? {
                let owner = owner?;
                let Some(key) = owner.file_name().to_str().and_then(PublicKey::from_npub) else { continue };
                for repository in fs::read_dir(owner.path())? {
                    let name = repository?.file_name();
                    let Some(stem) = name.to_str().and_then(|name| name.strip_suffix(".git")) else { continue };
                    let decoded = RepoId::from_segments(&key.npub(), &format!("{stem}.git"));
                    let identifier = names.get(stem).cloned().or(decoded.map(|repo| repo.identifier));
                    let repo = identifier.map(|identifier| RepoId { owner: key, identifier });
                    repo_paths
                        .extend(repo.map(repo_path).filter(|repo_path| self.repo_dir(repo_path).ends_with(&name)));
                }
            }
        }
        Ok(repo_paths)
    }

    /// Whoever takes git data away has this while it does, and has it before a turn: not while somebody has
    /// [`hold_removals`](Self::hold_removals).
    pub fn removal(&self) -> RwLockReadGuard<'_, ()> {
        self.removals.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// While somebody has this no git data is taken away. Git data comes all the same.
    pub(crate) fn stillness(&self) -> RwLockWriteGuard<'_, ()> {
        self.removals.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves a folder out of sight; [`sweep`](Self::sweep) removes it. What is not there is no problem.
    pub fn discard(&self, folder: &Path) -> io::Result<()> {
        match fs::rename(folder, self.root.join("trash").join(self.number().to_string())) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(()) => {
                crash_point::point("trash.moved");
                Ok(())
            }
            result => result,
        }
    }

    /// Removes what was discarded.
    pub fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("trash"))? {
            match fs::remove_dir_all(entry?.path()) {
                // Somebody else was faster.
                Err(problem) if problem.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// Removes staged uploads that have no row in the store.
    pub fn keep_staged(&self, rows: &std::collections::BTreeSet<u64>) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join("staged"))? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(|name| u64::from_str_radix(name, 16).ok());
            if !number.is_some_and(|number| rows.contains(&number)) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    fn empty(&self, name: &str) -> io::Result<()> {
        let folder = self.root.join(name);
        match fs::remove_dir_all(&folder) {
            Err(problem) if problem.kind() != io::ErrorKind::NotFound => Err(problem),
            _ => fs::create_dir_all(&folder),
        }
    }
}

/// The folder of a site below a git folder.
#[must_use]
pub fn path_of(repo_path: &RepoPath) -> PathBuf {
    let room = match repo_path {
        RepoPath::Announced(_) => "repos",
        RepoPath::PullRequests(_) => "prs",
    };
    let repo = repo_path.repo();
    Path::new(room).join(repo.owner.npub()).join(format!("{}.git", file_name(&repo.identifier)))
}

/// Makes a bare repository without packs of its own, durably. One that is there already stays as it is.
pub(crate) fn make_bare(folder: &Path) -> io::Result<()> {
    if folder.join("HEAD").exists() {
        return Ok(());
    }
    let made = frame(folder);
    if made.is_err() && !folder.join("HEAD").exists() {
        // Nobody would come back for a part of one. The folder of its owner goes, too, if it has nothing else.
        let _ = fs::remove_dir_all(folder);
        let _ = folder.parent().map(fs::remove_dir);
    }
    made
}

fn packs_bytes(pool: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(pool.join("pack")) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn frame(folder: &Path) -> io::Result<()> {
    for part in ["objects/info", "objects/pack", "refs", "pool/pack", "pool/info"] {
        fs::create_dir_all(folder.join(part))?;
    }
    crate::refs::replace(folder, "config", CONFIG)?;
    // HEAD makes it a repository, so it comes last.
    crate::refs::replace(folder, "HEAD", format!("ref: {}\n", crate::refs::UNBORN).as_bytes())?;
    for part in [folder.join("objects"), folder.join("pool")] {
        sync_folder(&part)?;
    }
    // The way to it must be durable too: its owner's folder may be new.
    for above in folder.ancestors().skip(1).take(3) {
        sync_folder(above)?;
    }
    Ok(())
}

/// Makes the entries of a folder durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A file name for an identifier: no two share one, also where upper and lower case are the same to the file system.
#[must_use]
pub fn file_name(identifier: &Identifier) -> String {
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
    // An equals sign is in no encoded name.
    format!("={}", hex::encode(&Sha256::digest(identifier.as_str().as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_and_distinct() {
        let long = "ü".repeat(500);
        let identifiers = ["tool", "Tool", "x.git", "my 🚀 repo", "a%2fb", "HEAD", "...", &long, &"a".repeat(1_000)];
        let mut names: Vec<String> =
            identifiers.iter().map(|text| file_name(&Identifier::new(text).expect("valid"))).collect();
        for name in &names {
            assert!(name.len() <= MAX_NAME && !name.contains(['/', '.', '\\', ' ']), "{name}");
        }
        names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        names.sort();
        names.dedup();
        assert_eq!(names.len(), identifiers.len());
    }
}

//! Finds damaged packs and missing objects of a repository, and repairs what can be repaired without other servers.
//!
//! A pack or an index is damaged if its content differs from the checksum at its end. A file that cannot be read, or a git
//! process that fails, is an error and no damage: nothing is changed then. A damaged index is written again. A damaged
//! pack is moved to `damaged/`, and the objects that can still be read are copied to a new pack. A repository whose refs need objects that are missing afterwards is recorded
//! as degraded; so is every other repository that reads the pool. The alignment that follows ends that if nothing is
//! missing.
//!
//! Blocks, and runs git with the lowest priority.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use flate2::Compression;
use flate2::write::ZlibEncoder;
use grasp_core::nostr::hex;
use grasp_core::repo::{PackHash, PackManifest, RepoPath};
use sha1::{Digest, Sha1};

use crate::action_error::{ActionContext, ActionError};
use crate::apply::adopt_packs::move_packs;
use crate::backup::RepoVerifier;
use crate::files::{file_names, if_found, link_if_exists, remove_if_exists, sync_file, sync_folder};
use crate::layout::{Layout, create_bare_repo};
use crate::objects::{ObjectLookup, PackIndex, ReadBudget};
use crate::process::{Git, GitError, ProcessInput};
use crate::repo_rows::RepoRows;

/// Largest output of a git process whose output is not a list of objects.
const MAX_OUTPUT: usize = 64 * 1024;

/// Largest list of the objects that can be read from a damaged pack: a million of them.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// The extensions of the files of a pack, in the order in which they are moved away: without an index git ignores it.
const EXTENSIONS: [&str; 5] = ["idx", "rev", "bitmap", "mtimes", "pack"];

/// Largest damaged pack whose readable objects are copied: they are unpacked into one file each.
const MAX_SALVAGED_BYTES: u64 = 256 * 1024 * 1024;

/// Work to read one object of a damaged pack, in bytes: more than an object of an ordinary repository takes. Larger ones are
/// fetched from other servers.
const MAX_OBJECT_BYTES: u64 = 256 * 1024 * 1024;

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 20;

/// Bytes of a file that are read at a time.
const READ_BYTES: usize = 256 * 1024;

/// Whether the files of a pack are intact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PackState {
    Intact,
    /// There is no index. A crash may have interrupted the push that brought the pack.
    IndexMissing,
    /// The index is damaged.
    IndexDamaged,
    /// The pack is damaged or missing.
    PackDamaged,
    /// Both files are gone: maintenance has replaced the pack.
    Gone,
}

/// Checks and repairs repositories.
#[derive(Clone)]
pub struct RepoRepairer {
    git: Git,
    layout: Arc<Layout>,
    rows: Arc<dyn RepoRows>,
    verifier: RepoVerifier,
    /// Time limit of each git process.
    timeout: Duration,
}

/// What was found in one repository, and done about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// Packs whose index was written again.
    pub indexed_packs: Vec<String>,
    /// Packs that the pool should have and that are gone.
    pub missing_packs: Vec<String>,
    /// Packs that were moved to `damaged/`.
    pub damaged_packs: Vec<String>,
    /// Number of objects that its refs need and that are missing.
    pub missing_objects: usize,
    /// The repositories that were marked as degraded.
    pub degraded: Vec<RepoPath>,
}

impl RepoRepairer {
    /// Returns a repairer of the repositories of a git data folder. No git process takes longer than `timeout`.
    #[must_use]
    pub fn new(git: &Git, layout: Arc<Layout>, rows: Arc<dyn RepoRows>, timeout: Duration) -> Self {
        Self { git: git.low_priority(), layout, rows, verifier: RepoVerifier::new(git, timeout), timeout }
    }

    /// Checks the packs of a repository and everything that its refs need, and repairs what is damaged.
    ///
    /// # Errors
    /// If a file cannot be read or written, or if git cannot be run.
    pub fn repair(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        let (folder, pool) = (self.layout.repo_dir(repo_path), self.layout.pool(repo_path));
        let mut report = RepairReport::default();
        self.find_missing_packs(repo_path, &mut report)?;
        let mut damaged = Vec::new();
        for pack in pack_names(&pool).context("read a pool")? {
            if !matches!(pack_state(&pool, &pack).context("read a pack")?, PackState::Intact | PackState::Gone) {
                damaged.push(pack);
            }
        }
        if !damaged.is_empty() {
            self.repair_packs(repo_path, &damaged, &mut report)?;
        }
        let row = self.rows.row(repo_path).context("read the refs of a repository")?.unwrap_or_default();
        let tips = row.refs.iter().map(|(_, target)| target.oid.clone()).collect();
        let mut missing = self.verifier.missing(&folder, &tips).context("check that everything is complete")?;
        if !missing.is_empty() {
            // Git relies on these files, which may be damaged themselves.
            let lock = self.layout.repo_locks.lock(repo_path.identifier());
            remove_indexes(&pool).context("remove an index")?;
            drop(lock);
            missing = self.verifier.missing(&folder, &tips).context("check that everything is complete")?;
        }
        if let Some(first) = missing.first() {
            report.missing_objects = missing.len();
            let reason = format!("objects that its refs need are missing, for example {first}");
            // The result of a git job that began before is recorded first.
            let _lock = self.layout.repo_locks.lock(repo_path.identifier());
            self.mark(repo_path, &reason, &mut report)?;
        }
        Ok(report)
    }

    /// Compares the packs of a pool with those that it should have. If some are missing, the repositories that read it are
    /// recorded as degraded. Afterwards the packs that are here are recorded.
    fn find_missing_packs(&self, repo_path: &RepoPath, report: &mut RepairReport) -> Result<(), ActionError> {
        let _lock = self.layout.repo_locks.lock(repo_path.identifier());
        let recorded = self.rows.packs(repo_path).context("read the list of packs")?.unwrap_or_default();
        let packs = self.layout.packs(repo_path).context("read a pool")?;
        if recorded == packs {
            return Ok(());
        }
        // One with another size is found as damaged.
        let is_here = |pack: &PackHash| packs.0.contains_key(pack);
        report.missing_packs =
            recorded.missing_from(&packs).filter(|pack| !is_here(pack)).map(PackHash::file_stem).collect();
        if !report.missing_packs.is_empty() {
            let readers = self.layout.pool_readers(repo_path.identifier()).context("find the readers of a pool")?;
            let reason = format!("packs are missing: {}", report.missing_packs.join(", "));
            for reader in readers.of(&self.layout.pool(repo_path)).iter().chain([repo_path]) {
                self.mark(reader, &reason, report)?;
            }
        }
        self.rows.set_packs(repo_path, packs).context("record the packs of a pool")
    }

    /// Creates the folder of a repository that was lost, and marks it as degraded.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn recreate(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        let _lock = self.layout.repo_locks.lock(repo_path.identifier());
        let degraded =
            self.layout.record_lost_folder(repo_path, &*self.rows).context("record a degraded repository")?;
        create_bare_repo(&self.layout.repo_dir(repo_path)).context("create a repository")?;
        self.rows.set_packs(repo_path, PackManifest::default()).context("record the packs of a pool")?;
        Ok(RepairReport { degraded, ..RepairReport::default() })
    }

    fn repair_packs(
        &self,
        repo_path: &RepoPath,
        damaged: &[String],
        report: &mut RepairReport,
    ) -> Result<(), ActionError> {
        let pool = self.layout.pool(repo_path);
        let _removal = self.layout.begin_removal();
        let _lock = self.layout.repo_locks.lock(repo_path.identifier());
        let readers = self.layout.pool_readers(repo_path.identifier()).context("find the readers of a pool")?;
        let reason = format!("a pack was damaged: {}", damaged.join(", "));
        let mut is_damaged = false;
        for pack in damaged {
            let state = pack_state(&pool, pack).context("read a pack")?;
            is_damaged |= matches!(state, PackState::IndexDamaged | PackState::PackDamaged);
        }
        for reader in readers.of(&pool).iter().chain([repo_path]).filter(|_| is_damaged) {
            self.mark(reader, &reason, report)?;
        }
        for pack in damaged {
            // Maintenance may have replaced it while the lock was not held.
            match pack_state(&pool, pack).context("read a pack")? {
                PackState::Intact | PackState::Gone => {}
                PackState::IndexDamaged | PackState::IndexMissing => {
                    self.write_index(&pool, pack)?;
                    report.indexed_packs.push(pack.clone());
                }
                PackState::PackDamaged => {
                    self.salvage(&pool, pack)?;
                    report.damaged_packs.push(pack.clone());
                }
            }
        }
        remove_indexes(&pool).context("remove an index")?;
        sync_folder(&pool.join("pack")).context("sync a pool to disk")?;
        let packs = self.layout.packs(repo_path).context("read a pool")?;
        self.rows.set_packs(repo_path, packs).context("record the packs of a pool")?;
        self.layout.record_prune();
        Ok(())
    }

    /// Writes the index of an intact pack again.
    fn write_index(&self, pool: &Path, pack: &str) -> Result<(), ActionError> {
        let scratch = self.layout.create_incoming(&["pack"]).context("create a scratch folder")?;
        let file = |extension: &str| pool.join("pack").join(format!("{pack}.{extension}"));
        let new = scratch.path().join("new.idx");
        let mut command = self.git.command(&self.layout.empty_repo());
        command.args(["index-pack", "--no-rev-index", "-o"]).arg(&new).arg(file("pack"));
        self.git.run(&mut command, ProcessInput::Empty, self.timeout, MAX_OUTPUT).context("index a pack")?;
        let replace = || -> io::Result<()> {
            sync_file(&new)?;
            remove_if_exists(&file("rev"))?;
            remove_if_exists(&file("bitmap"))?;
            fs::rename(&new, file("idx"))
        };
        replace().context("replace the index of a pack")
    }

    /// Copies the readable objects of a damaged pack to a new pack, and moves the damaged one away.
    fn salvage(&self, pool: &Path, pack: &str) -> Result<(), ActionError> {
        let scratch = self.layout.create_incoming(&["pack", "info"]).context("create a scratch folder")?;
        let file = |extension: &str| pool.join("pack").join(format!("{pack}.{extension}"));
        let damaged = if_found(fs::File::open(file("pack"))).context("read a pack")?;
        let is_small = |pack: &fs::File| pack.metadata().is_ok_and(|metadata| metadata.len() <= MAX_SALVAGED_BYTES);
        if let Some(damaged) = damaged.filter(is_small) {
            let command = |arguments: &[&str]| {
                let mut command = self.git.command(&self.layout.empty_repo());
                command.args(arguments).env("GIT_OBJECT_DIRECTORY", scratch.path());
                command
            };
            // With an index, each object can be read by itself; without one, git reads up to the first damaged byte.
            if has_intact_index(&file("idx")).context("read the index of a damaged pack")? {
                unpack_intact_objects(&file("idx"), scratch.path(), self.timeout).context("unpack a damaged pack")?;
            } else {
                let mut unpack = command(&["unpack-objects", "-r", "-q"]);
                match self.git.run(&mut unpack, ProcessInput::File(damaged), self.timeout, MAX_OUTPUT) {
                    // Git fails although it has unpacked what it could.
                    Ok(_) | Err(GitError::Failed { .. }) => {}
                    Err(error) => return Err(error).context("unpack a damaged pack"),
                }
            }
            let mut list = command(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]);
            let oids = self.git.run(&mut list, ProcessInput::Empty, self.timeout, MAX_LIST_BYTES);
            let oids = oids.context("list the objects of a damaged pack")?;
            if !oids.is_empty() {
                let mut write = command(&["pack-objects", "-q", "--non-empty", "--delta-base-offset", "--threads=1"]);
                write.arg(scratch.path().join("pack/pack"));
                let written = self.git.run(&mut write, ProcessInput::Bytes(&oids), self.timeout, MAX_OUTPUT);
                written.context("pack the objects of a damaged pack")?;
            }
        }
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let away = self.layout.root().join("damaged").join(format!("{pack}-{seconds}"));
        let link = || -> io::Result<()> {
            fs::create_dir_all(&away)?;
            for extension in EXTENSIONS {
                link_if_exists(&file(extension), &away.join(format!("{pack}.{extension}")))?;
            }
            sync_folder(&away)
        };
        link().context("move a damaged pack away")?;
        // The new pack may have the same name.
        for extension in EXTENSIONS {
            remove_if_exists(&file(extension)).context("move a damaged pack away")?;
        }
        move_packs(&[scratch.path().to_owned()], pool).context("move packs into the pool")
    }

    fn mark(&self, repo_path: &RepoPath, reason: &str, report: &mut RepairReport) -> Result<(), ActionError> {
        self.rows.set_degraded(repo_path, reason).context("record a degraded repository")?;
        if !report.degraded.contains(repo_path) {
            report.degraded.push(repo_path.clone());
        }
        Ok(())
    }
}

/// Returns the names of the packs of a pool that have a pack file or an index.
fn pack_names(pool: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for name in if_found(file_names(&pool.join("pack")))?.unwrap_or_default() {
        let path = PathBuf::from(&name);
        let is_pack = path.extension().is_some_and(|extension| extension == "idx" || extension == "pack");
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_pack && stem.starts_with("pack-"));
        names.extend(stem.map(str::to_owned));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// Removes the multi-pack index, its bitmaps and the commit-graph of a pool, which may refer to packs that are gone.
/// Maintenance writes new ones.
fn remove_indexes(pool: &Path) -> io::Result<()> {
    for name in if_found(file_names(&pool.join("pack")))?.unwrap_or_default() {
        if name.to_str().is_some_and(|name| name.starts_with("multi-pack-index")) {
            remove_if_exists(&pool.join("pack").join(name))?;
        }
    }
    remove_if_exists(&pool.join("info/commit-graph"))
}

/// Compares a pack and its index with their checksums.
fn pack_state(pool: &Path, pack: &str) -> io::Result<PackState> {
    let file = |extension: &str| if_found(fs::File::open(pool.join("pack").join(format!("{pack}.{extension}"))));
    let (pack, index) = match (file("pack")?, file("idx")?) {
        (None, None) => return Ok(PackState::Gone),
        (None, Some(_)) => return Ok(PackState::PackDamaged),
        (Some(pack), index) => (pack, index),
    };
    let Some(pack_end) = intact_end::<CHECKSUM_BYTES>(pack)? else { return Ok(PackState::PackDamaged) };
    let Some(index) = index else { return Ok(PackState::IndexMissing) };
    // An index ends with the checksum of its pack and its own.
    let index_end = intact_end::<{ 2 * CHECKSUM_BYTES }>(index)?;
    let is_intact = index_end.is_some_and(|end| end[..CHECKSUM_BYTES] == pack_end);
    Ok(if is_intact { PackState::Intact } else { PackState::IndexDamaged })
}

/// Returns whether an index exists and has the checksum that is at its end.
fn has_intact_index(index: &Path) -> io::Result<bool> {
    let Some(index) = if_found(fs::File::open(index))? else { return Ok(false) };
    Ok(intact_end::<{ 2 * CHECKSUM_BYTES }>(index)?.is_some())
}

/// Writes the objects of a damaged pack whose content has the right hash to an object directory, as loose objects. Those
/// that cannot be read within `timeout` are left out.
fn unpack_intact_objects(index: &Path, objects: &Path, timeout: Duration) -> io::Result<()> {
    let until = Instant::now() + timeout;
    let lookup = ObjectLookup::from_packs([&index.to_owned()])?;
    let oids = PackIndex::open(index.to_owned(), false)?.oids()?;
    for oid in oids.into_iter().take_while(|_| Instant::now() < until) {
        // An error means that the object, or the base of its delta, is damaged.
        let Ok(Some((kind, content))) = lookup.read(&oid, &mut ReadBudget::new(MAX_OBJECT_BYTES)) else { continue };
        let header = format!("{} {}\0", kind.name(), content.len());
        if Sha1::new().chain_update(&header).chain_update(&content).finalize()[..] != oid {
            continue;
        }
        let name = hex::encode(&oid);
        let folder = objects.join(&name[..2]);
        fs::create_dir_all(&folder)?;
        let mut file = ZlibEncoder::new(fs::File::create(folder.join(&name[2..]))?, Compression::fast());
        file.write_all(header.as_bytes())?;
        file.write_all(&content)?;
        file.finish()?;
    }
    Ok(())
}

/// Returns the last `N` bytes of a file, which end with the checksum of everything before it; `None` if that is wrong.
fn intact_end<const N: usize>(mut file: fs::File) -> io::Result<Option<[u8; N]>> {
    let mut hasher = Sha1::new();
    let mut left = file.metadata()?.len();
    if left < N as u64 {
        return Ok(None);
    }
    let (mut buffer, mut end) = (vec![0; READ_BYTES], [0; N]);
    left -= CHECKSUM_BYTES as u64;
    let mut tail = Vec::with_capacity(2 * N);
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(READ_BYTES).min(READ_BYTES);
        file.read_exact(&mut buffer[..part])?;
        hasher.update(&buffer[..part]);
        tail.extend_from_slice(&buffer[part.saturating_sub(N)..part]);
        tail.drain(..tail.len().saturating_sub(N));
        left -= part as u64;
    }
    let mut checksum = [0; CHECKSUM_BYTES];
    file.read_exact(&mut checksum)?;
    tail.extend_from_slice(&checksum);
    end.copy_from_slice(&tail[tail.len() - N..]);
    Ok((hasher.finalize()[..] == checksum).then_some(end))
}

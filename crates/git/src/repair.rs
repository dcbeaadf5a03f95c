//! Finds damaged packs and missing objects of a repository, and repairs what can be repaired without other servers.
//!
//! A pack index that is damaged is written again. A damaged pack is moved to `damaged/`, after the objects that can still
//! be read were copied to a new pack. A repository whose refs need objects that are missing afterwards is marked as
//! degraded; so is every other repository that reads the pool. The alignment that follows removes the mark if nothing is
//! missing.
//!
//! Blocks, and runs git with the lowest priority.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use grasp_core::repo::RepoPath;

use crate::action_error::{ActionContext, ActionError};
use crate::apply::adopt_packs::move_packs;
use crate::backup::RepoVerifier;
use crate::files::{file_names, if_found, remove_if_exists, rename_if_exists, sync_file, sync_folder};
use crate::layout::{Layout, create_bare_repo};
use crate::process::{Git, GitError, ProcessInput};

/// Largest output of a git process whose output is not a list of objects.
const MAX_OUTPUT: usize = 64 * 1024;

/// Largest list of the objects that can be read from a damaged pack: a million of them.
const MAX_LIST_BYTES: usize = 64 * 1024 * 1024;

/// The extensions of the files of a pack, in the order in which they are moved away: without an index git ignores it.
const EXTENSIONS: [&str; 5] = ["idx", "rev", "bitmap", "mtimes", "pack"];

/// Checks and repairs repositories.
#[derive(Clone, Debug)]
pub struct RepoRepairer {
    git: Git,
    layout: Arc<Layout>,
    verifier: RepoVerifier,
    /// Time limit of each git process.
    timeout: Duration,
}

/// What was found in one repository, and done about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairReport {
    /// Packs whose index was written again.
    pub indexed_packs: Vec<String>,
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
    pub fn new(git: &Git, layout: Arc<Layout>, timeout: Duration) -> Self {
        Self { git: git.low_priority(), layout, verifier: RepoVerifier::new(git, timeout), timeout }
    }

    /// Checks the packs of a repository and everything that its refs need, and repairs what is damaged.
    ///
    /// # Errors
    /// If a file cannot be read or written, or if git cannot be run.
    pub fn repair(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        let (folder, pool) = (self.layout.repo_dir(repo_path), self.layout.pool(repo_path));
        let mut report = RepairReport::default();
        let mut damaged = Vec::new();
        for pack in pack_names(&pool).context("read a pool")? {
            if !self.is_intact(&pool, &pack)? {
                damaged.push(pack);
            }
        }
        if !damaged.is_empty() {
            self.repair_packs(repo_path, &damaged, &mut report)?;
        }
        let tips = self.verifier.targets(&folder).context("read refs")?;
        let missing = self.verifier.missing(&folder, &tips).context("check that everything is complete")?;
        if let Some(first) = missing.first() {
            report.missing_objects = missing.len();
            let reason = format!("objects that its refs need are missing, for example {first}");
            self.mark(repo_path, &reason, &mut report)?;
        }
        Ok(report)
    }

    /// Creates the folder of a repository that was lost, and marks it as degraded.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn recreate(&self, repo_path: &RepoPath) -> Result<RepairReport, ActionError> {
        let _lock = self.layout.repo_locks.lock(repo_path.identifier());
        create_bare_repo(&self.layout.repo_dir(repo_path)).context("create a repository")?;
        let mut report = RepairReport::default();
        self.mark(repo_path, "its folder was lost", &mut report)?;
        Ok(report)
    }

    /// Returns whether a pack and its index are intact. If the pack was replaced meanwhile, that does not matter.
    fn is_intact(&self, pool: &Path, pack: &str) -> Result<bool, ActionError> {
        let file = |extension: &str| pool.join("pack").join(format!("{pack}.{extension}"));
        let mut command = self.git.command(&self.layout.empty_repo());
        command.arg("verify-pack").arg(file("idx"));
        match self.git.run(&mut command, ProcessInput::Empty, self.timeout, MAX_OUTPUT) {
            Ok(_) => Ok(true),
            Err(GitError::Failed { .. }) => {
                let is_gone = !file("idx").try_exists().context("read a pool")?
                    && !file("pack").try_exists().context("read a pool")?;
                Ok(is_gone)
            }
            Err(error) => Err(error).context("verify a pack"),
        }
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
        for reader in readers.of(&pool).iter().chain([repo_path]) {
            self.mark(reader, &reason, report)?;
        }
        for pack in damaged {
            // Maintenance may have replaced it while the lock was not held.
            if self.is_intact(&pool, pack)? {
                continue;
            }
            if self.write_index(&pool, pack)? {
                report.indexed_packs.push(pack.clone());
            } else {
                self.salvage(&pool, pack)?;
                report.damaged_packs.push(pack.clone());
            }
        }
        // They refer to packs that may be gone. Maintenance writes new ones.
        for name in file_names(&pool.join("pack")).context("read a pool")? {
            if name.to_str().is_some_and(|name| name.starts_with("multi-pack-index")) {
                remove_if_exists(&pool.join("pack").join(name)).context("remove an index")?;
            }
        }
        remove_if_exists(&pool.join("info/commit-graph")).context("remove an index")?;
        sync_folder(&pool.join("pack")).context("sync a pool to disk")?;
        self.layout.record_prune();
        Ok(())
    }

    /// Writes the index of a pack again. Returns false if the pack itself is damaged.
    fn write_index(&self, pool: &Path, pack: &str) -> Result<bool, ActionError> {
        let scratch = self.layout.create_incoming(&["pack"]).context("create a scratch folder")?;
        let file = |extension: &str| pool.join("pack").join(format!("{pack}.{extension}"));
        let new = scratch.path().join("new.idx");
        let mut command = self.git.command(&self.layout.empty_repo());
        command.args(["index-pack", "--no-rev-index", "-o"]).arg(&new).arg(file("pack"));
        match self.git.run(&mut command, ProcessInput::Empty, self.timeout, MAX_OUTPUT) {
            Ok(_) => {}
            Err(GitError::Failed { .. }) => return Ok(false),
            Err(error) => return Err(error).context("index a pack"),
        }
        let replace = || -> io::Result<()> {
            sync_file(&new)?;
            remove_if_exists(&file("rev"))?;
            remove_if_exists(&file("bitmap"))?;
            fs::rename(&new, file("idx"))
        };
        replace().context("replace the index of a pack")?;
        Ok(true)
    }

    /// Copies the readable objects of a damaged pack to a new pack, and moves the damaged one away.
    fn salvage(&self, pool: &Path, pack: &str) -> Result<(), ActionError> {
        let scratch = self.layout.create_incoming(&["pack", "info"]).context("create a scratch folder")?;
        let file = |extension: &str| pool.join("pack").join(format!("{pack}.{extension}"));
        if let Some(damaged) = if_found(fs::File::open(file("pack"))).context("read a pack")? {
            let command = |arguments: &[&str]| {
                let mut command = self.git.command(&self.layout.empty_repo());
                command.args(arguments).env("GIT_OBJECT_DIRECTORY", scratch.path());
                command
            };
            let mut unpack = command(&["unpack-objects", "-r", "-q"]);
            match self.git.run(&mut unpack, ProcessInput::File(damaged), self.timeout, MAX_OUTPUT) {
                // Git fails although it has unpacked what it could.
                Ok(_) | Err(GitError::Failed { .. }) => {}
                Err(error) => return Err(error).context("unpack a damaged pack"),
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
        let away = self.layout.root().join("damaged");
        let move_away = || -> io::Result<()> {
            fs::create_dir_all(&away)?;
            for extension in EXTENSIONS {
                rename_if_exists(&file(extension), &away.join(format!("{pack}.{extension}")))?;
            }
            sync_folder(&away)
        };
        move_away().context("move a damaged pack away")?;
        move_packs(&[scratch.path().to_owned()], pool).context("move packs into the pool")
    }

    fn mark(&self, repo_path: &RepoPath, reason: &str, report: &mut RepairReport) -> Result<(), ActionError> {
        self.layout.mark_degraded(repo_path, reason).context("mark a degraded repository")?;
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

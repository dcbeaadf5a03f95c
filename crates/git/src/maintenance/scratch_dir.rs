//! The folder in which git works during maintenance: an object directory with hard links to the packs of a pool.
//!
//! The links keep the packs, whatever happens to the pool. What git writes is next to them, on the same file system, so
//! that it can be moved into the pool.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::inspection::{MULTI_PACK_INDEX, PoolPack};
use super::{MAX_OUTPUT, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::layout::{Layout, write_alternates};
use crate::process::{Git, ProcessInput};
use crate::serve::upload_pack::MEMORY_SETTINGS;

/// The extensions of the files of a pack, in the order in which they move: git considers a pack complete as soon as it
/// has an index.
pub(super) const EXTENSIONS: [&str; 4] = ["pack", "rev", "mtimes", "idx"];

/// A scratch folder. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct ScratchDir {
    folder: PathBuf,
    /// The folder of lists of object ids, which are input of git.
    pub(super) lists: PathBuf,
}

impl ScratchDir {
    /// Creates a folder with links to some packs of a pool.
    pub(super) fn with_packs(layout: &Layout, pool: &Path, packs: &[PoolPack]) -> io::Result<Self> {
        let folder = layout.received_pack(&ReceivedPack::Incoming(layout.next_number()));
        let scratch = Self { lists: folder.join("lists"), folder };
        for part in ["objects/pack", "objects/info", "view/pack", "view/info", "lists"] {
            fs::create_dir_all(scratch.folder.join(part))?;
        }
        let from = pool.join("pack");
        for pack in packs {
            for extension in EXTENSIONS {
                link(&pack.file(&from, extension), &pack.file(&scratch.packs(), extension))?;
            }
        }
        Ok(scratch)
    }

    /// Returns the object directory.
    pub(super) fn objects(&self) -> PathBuf {
        self.folder.join("objects")
    }

    /// Returns the folder of packs.
    pub(super) fn packs(&self) -> PathBuf {
        self.objects().join("pack")
    }

    /// Links the multi-pack index and its bitmaps: git copies from them what is still valid.
    pub(super) fn link_index(&self, pool: &Path) -> io::Result<()> {
        for entry in fs::read_dir(pool.join("pack"))? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(MULTI_PACK_INDEX)) {
                link(&pool.join("pack").join(&name), &self.packs().join(&name))?;
            }
        }
        Ok(())
    }

    /// Returns a command that reads the packs of this folder only.
    pub(super) fn command(&self, maintainer: &PoolMaintainer) -> Command {
        maintainer.command(&self.objects())
    }

    /// Returns a command that reads the packs of this folder and some pools.
    pub(super) fn command_with_pools(&self, maintainer: &PoolMaintainer, pools: &[PathBuf]) -> io::Result<Command> {
        self.pools_command(maintainer, &[&[self.objects()], pools].concat())
    }

    /// Returns a command that reads some pools. An alternates file lists them, because there may be more than an
    /// environment variable can hold.
    pub(super) fn pools_command(&self, maintainer: &PoolMaintainer, pools: &[PathBuf]) -> io::Result<Command> {
        let view = self.folder.join("view");
        write_alternates(&view, pools)?;
        Ok(maintainer.command(&view))
    }

    /// Runs `pack-objects` and returns the packs that it has written.
    pub(super) fn pack_objects(
        &self,
        maintainer: &PoolMaintainer,
        arguments: &[&str],
        input: ProcessInput<'_>,
    ) -> Result<Vec<PoolPack>, ActionError> {
        let mut command = self.command(maintainer);
        command.args(["pack-objects", "-q", "--non-empty", "--delta-base-offset"]).args(arguments);
        command.arg(self.packs().join("pack"));
        let output = maintainer.low_priority_git().run(&mut command, input, maintainer.timeout, MAX_OUTPUT);
        let output = output.context("pack objects")?;
        let output = String::from_utf8_lossy(&output);
        let names = output.lines().map(|hash| format!("pack-{}", hash.trim()));
        names.map(|name| PoolPack::read(&self.packs(), &name).context("read a new pack")).collect()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // If this fails, the folder is removed at the next start.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl PoolMaintainer {
    /// Returns git with the lowest scheduling priority.
    pub(super) fn low_priority_git(&self) -> Git {
        self.git.low_priority()
    }

    fn command(&self, objects: &Path) -> Command {
        let mut command = self.git.command(&self.layout.empty_repo());
        command.env("GIT_OBJECT_DIRECTORY", objects);
        for setting in MEMORY_SETTINGS.iter().chain(&["pack.threads=1"]) {
            command.args(["-c", setting]);
        }
        command
    }
}

/// Links a file. Does nothing if it does not exist or is linked already.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(()),
        result => result,
    }
}

/// Syncs a file to disk, if it exists.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        file => file?.sync_all(),
    }
}

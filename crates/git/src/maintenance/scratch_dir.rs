//! The folder in which git works during maintenance: an object directory with hard links to the packs of a pool.
//!
//! The links keep the packs, whatever happens to the pool. What git writes is next to them, on the same file system, so
//! that it can be moved into the pool.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use super::inspection::{MULTI_PACK_INDEX, PoolPack};
use super::{MAX_OUTPUT, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::files::{file_names, if_found};
use crate::layout::{IncomingFolder, Layout, write_alternates};
use crate::process::{Git, ProcessInput};
use crate::serve::upload_pack::MEMORY_SETTINGS;

/// The extensions of the files of a pack, in the order in which they move: git considers a pack complete as soon as it
/// has an index.
pub(super) const EXTENSIONS: [&str; 4] = ["pack", "rev", "mtimes", "idx"];

/// A scratch folder. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct ScratchDir {
    folder: IncomingFolder,
    /// The folder of lists of object ids, which are input of git.
    pub(super) lists: PathBuf,
}

impl ScratchDir {
    /// Creates a folder with links to some packs of a pool.
    pub(super) fn with_packs(layout: &Layout, pool: &Path, packs: &[PoolPack]) -> io::Result<Self> {
        let folder = layout.create_incoming(&["objects/pack", "objects/info", "view/pack", "view/info", "lists"])?;
        let scratch = Self { lists: folder.path().join("lists"), folder };
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
        self.folder.path().join("objects")
    }

    /// Returns the folder of packs.
    pub(super) fn packs(&self) -> PathBuf {
        self.objects().join("pack")
    }

    /// Links the multi-pack index and its bitmaps: git copies from them what is still valid.
    pub(super) fn link_index(&self, pool: &Path) -> io::Result<()> {
        for name in file_names(&pool.join("pack"))? {
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

    /// Returns an object directory from which some pools can be read, until the next call. An alternates file lists
    /// them, because there may be more than an environment variable can hold.
    pub(super) fn view(&self, pools: &[PathBuf]) -> Result<PathBuf, ActionError> {
        let view = self.folder.path().join("view");
        write_alternates(&view, pools).context("prepare a walk over objects")?;
        Ok(view)
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

impl PoolMaintainer {
    /// Returns git with the lowest scheduling priority.
    pub(super) fn low_priority_git(&self) -> Git {
        self.git.low_priority()
    }

    /// Returns a command that reads an object directory.
    pub(super) fn command(&self, objects: &Path) -> Command {
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
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        result => if_found(result).map(drop),
    }
}

//! A folder aside in which git works: an object directory with links to the packs of a pool.
//!
//! The links keep what they lead to, whatever happens to the pool. What git makes lies beside them and is on the same file
//! system, so that it can be moved into the pool.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::inspection::{MIDX, Pack};
use super::{Doing, MAX_WORDS, Maintainer, Problem};
use crate::layout::Layout;
use crate::process::{Git, Input};
use crate::serve::upload_pack::MEMORY;

/// The files of a pack, in the order in which they move: git takes a pack for complete as soon as it has an index.
pub(super) const PARTS: [&str; 4] = ["pack", "rev", "mtimes", "idx"];

/// The folder. It goes with this value.
#[derive(Debug)]
pub(super) struct Workshop {
    folder: PathBuf,
    /// Object ids that are given to git.
    pub(super) lists: PathBuf,
}

impl Workshop {
    /// A folder with links to packs.
    pub(super) fn with(layout: &Layout, pool: &Path, packs: &[Pack]) -> io::Result<Self> {
        let folder = layout.received_pack(&ReceivedPack::Incoming(layout.number()));
        let workshop = Self { lists: folder.join("lists"), folder };
        for part in ["objects/pack", "objects/info", "view/pack", "view/info", "lists"] {
            fs::create_dir_all(workshop.folder.join(part))?;
        }
        let from = pool.join("pack");
        for pack in packs {
            for part in PARTS {
                link(&pack.file(&from, part), &pack.file(&workshop.packs(), part))?;
            }
        }
        Ok(workshop)
    }

    /// The object directory.
    pub(super) fn objects(&self) -> PathBuf {
        self.folder.join("objects")
    }

    /// Its packs.
    pub(super) fn packs(&self) -> PathBuf {
        self.objects().join("pack")
    }

    /// Links the index over all packs and its bitmaps: git copies from them what is still right.
    pub(super) fn link_index(&self, pool: &Path) -> io::Result<()> {
        for entry in fs::read_dir(pool.join("pack"))? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| name.starts_with(MIDX)) {
                link(&pool.join("pack").join(&name), &self.packs().join(&name))?;
            }
        }
        Ok(())
    }

    /// A command that sees the packs and nothing else.
    pub(super) fn command(&self, maintainer: &Maintainer) -> Command {
        maintainer.command(&self.objects())
    }

    /// A command that sees the packs and other pools. A file names these: there may be more than a variable could hold.
    pub(super) fn view(&self, maintainer: &Maintainer, pools: &[PathBuf]) -> io::Result<Command> {
        self.see(maintainer, &[&[self.objects()], pools].concat())
    }

    /// A command that sees pools as they are.
    pub(super) fn see(&self, maintainer: &Maintainer, pools: &[PathBuf]) -> io::Result<Command> {
        let view = self.folder.join("view");
        let mut names = Vec::new();
        for pool in pools {
            names.extend_from_slice(pool.as_os_str().as_encoded_bytes());
            names.push(b'\n');
        }
        fs::write(view.join("info/alternates"), names)?;
        Ok(maintainer.command(&view))
    }

    /// Makes packs; gives those that were made.
    pub(super) fn pack(
        &self,
        maintainer: &Maintainer,
        arguments: &[&str],
        input: Input<'_>,
    ) -> Result<Vec<Pack>, Problem> {
        let mut command = self.command(maintainer);
        command.args(["pack-objects", "-q", "--non-empty", "--delta-base-offset"]).args(arguments);
        command.arg(self.packs().join("pack"));
        let said =
            maintainer.gentle().run(&mut command, input, maintainer.patience, MAX_WORDS).doing("pack objects")?;
        let said = String::from_utf8_lossy(&said);
        let names = said.lines().map(|hash| format!("pack-{}", hash.trim()));
        names.map(|name| Pack::made(&self.packs(), &name).doing("read a new pack")).collect()
    }
}

impl Drop for Workshop {
    fn drop(&mut self) {
        // If it stays it is removed at the next start.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Maintainer {
    /// Git, behind everybody else.
    pub(super) fn gentle(&self) -> Git {
        self.git.gentle()
    }

    fn command(&self, objects: &Path) -> Command {
        let mut command = self.git.command(&self.layout.template());
        command.env("GIT_OBJECT_DIRECTORY", objects);
        for setting in MEMORY.iter().chain(&["pack.threads=1"]) {
            command.args(["-c", setting]);
        }
        command
    }
}

/// Links a file that may not be there, or may be linked already.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(problem) if matches!(problem.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists) => Ok(()),
        result => result,
    }
}

/// Writes a file to the disk, if it is there.
pub(super) fn sync_file(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        file => file?.sync_all(),
    }
}

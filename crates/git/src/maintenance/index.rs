//! Writes the multi-pack index of a pool, its bitmaps and the commit-graph.
//!
//! With bitmaps, git does not count the objects of a clone one by one, and with a commit-graph it need not read
//! commits. Both describe only objects in the pool itself. The history of a repository with alternates may continue in
//! other pools; its own pool then has neither, and git uses those of the alternates.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::inspection::{MULTI_PACK_INDEX, PoolPack};
use super::scratch_dir::ScratchDir;
use super::{MAX_OUTPUT, PoolMaintainer};
use crate::action_error::{ActionContext, ActionError};
use crate::process::{GitError, ProcessInput};
use crate::refs::Refs;

/// The changes to the multi-pack index and the commit-graph.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct IndexChanges {
    pub(super) midx: FileChange,
    pub(super) graph: FileChange,
}

/// The objects that the refs of a repository lead to, one per line. Tags are peeled.
#[derive(Debug)]
pub(super) struct RefTips(String);

/// The change to a file of the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum FileChange {
    /// The file is not changed.
    #[default]
    Keep,
    /// The file is replaced by this one. Further files that belong to it are moved first.
    Replace(PathBuf, Vec<PathBuf>),
    /// The file is removed.
    Remove,
}

impl PoolMaintainer {
    /// Writes the index over some packs, with bitmaps if the pool has everything that the tips need.
    pub(super) fn write_midx(
        &self,
        scratch: &ScratchDir,
        packs: &[&PoolPack],
        tips: &RefTips,
    ) -> Result<FileChange, ActionError> {
        let Some(largest) = packs.iter().max_by_key(|pack| pack.objects) else { return Ok(FileChange::Remove) };
        let list = scratch.lists.join("tips");
        fs::write(&list, &tips.0).context("list refs")?;
        let input: String = packs.iter().map(|pack| format!("{}.idx\n", pack.name)).collect();
        let write = |with_bitmaps: bool| {
            let mut command = scratch.command(self);
            command.args(["multi-pack-index", "write", "--no-progress", "--stdin-packs"]);
            command.arg(format!("--preferred-pack={}.pack", largest.name));
            if with_bitmaps {
                command.arg("--bitmap").arg(format!("--refs-snapshot={}", list.display()));
            }
            self.low_priority_git().run(&mut command, ProcessInput::Bytes(input.as_bytes()), self.timeout, MAX_OUTPUT)
        };
        match write(true) {
            Ok(_) => {}
            // A needed object is in another pool, or the bitmaps need more memory than a process has.
            Err(GitError::Failed { .. }) => drop(write(false).context("index packs")?),
            Err(error) => return Err(error).context("index packs"),
        }
        let midx = scratch.packs().join(MULTI_PACK_INDEX);
        let bitmaps = bitmaps_of(&midx).context("read the multi-pack index")?;
        Ok(FileChange::Replace(midx, bitmaps.into_iter().collect()))
    }

    /// Writes the commit-graph, if the pool has all commits that the tips lead to.
    pub(super) fn write_graph(&self, scratch: &ScratchDir, tips: &RefTips) -> Result<FileChange, ActionError> {
        let mut command = scratch.command(self);
        command.args(["commit-graph", "write", "--stdin-commits", "--no-progress"]);
        let input = ProcessInput::Bytes(tips.0.as_bytes());
        match self.low_priority_git().run(&mut command, input, self.timeout, MAX_OUTPUT) {
            Err(GitError::Failed { .. }) => return Ok(FileChange::Remove),
            result => drop(result.context("write a commit-graph")?),
        }
        let graph = scratch.objects().join("info/commit-graph");
        // Git writes no file if there is no commit.
        Ok(if graph.exists() { FileChange::Replace(graph, Vec::new()) } else { FileChange::Remove })
    }
}

/// Returns the bitmap file that belongs to a multi-pack index, if there is one: its name ends with the checksum that is
/// at the end of the index.
pub(super) fn bitmaps_of(midx: &Path) -> std::io::Result<Option<PathBuf>> {
    use std::os::unix::fs::FileExt;
    let file = fs::File::open(midx)?;
    let mut checksum = [0; 20];
    file.read_exact_at(&mut checksum, file.metadata()?.len().saturating_sub(20))?;
    let name = format!("{MULTI_PACK_INDEX}-{}.bitmap", grasp_core::nostr::hex::encode(&checksum));
    Ok(Some(midx.with_file_name(name)).filter(|path| path.exists()))
}

impl RefTips {
    /// Returns where refs lead to; if `among` is given, only of those that point to one of these objects.
    pub(super) fn new(refs: &Refs, among: Option<&BTreeSet<String>>) -> Self {
        let targets = refs.iter().map(|(_, target)| target);
        let targets = targets.filter(|target| among.is_none_or(|among| among.contains(&target.oid)));
        let tips: BTreeSet<&String> = targets.map(|target| target.peeled.as_ref().unwrap_or(&target.oid)).collect();
        Self(tips.into_iter().map(|tip| format!("{tip}\n")).collect())
    }
}

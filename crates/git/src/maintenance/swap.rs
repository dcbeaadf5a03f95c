//! The last step of maintenance: moves new files into the pool and removes those that they replace.
//!
//! Every part is durable before the next one relies on it: new packs, commit-graph, multi-pack index, removal. An
//! interruption in between leaves a pool with more files than it needs.

use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::repo::PackHash;

use super::index::{FileChange, IndexChanges, bitmaps_of};
use super::inspection::{MULTI_PACK_INDEX, PoolPack};
use super::scratch_dir::{EXTENSIONS, ScratchDir};
use crate::crash_point;
use crate::files::{remove_if_exists, rename_if_exists, sync_file, sync_folder};

/// The changes to a pool.
#[derive(Debug, Default)]
pub(super) struct PoolSwap {
    /// Packs that are added.
    pub(super) added: Vec<PoolPack>,
    /// Packs that are removed.
    pub(super) removed: Vec<PoolPack>,
    pub(super) indexes: IndexChanges,
}

impl PoolSwap {
    /// Syncs the new files to disk. This may take long and needs no lock.
    pub(super) fn sync(&self, scratch: &ScratchDir) -> io::Result<()> {
        for pack in &self.added {
            for extension in EXTENSIONS {
                sync_file(&pack.file(&scratch.packs(), extension))?;
            }
        }
        for change in [&self.indexes.midx, &self.indexes.graph] {
            if let FileChange::Replace(file, others) = change {
                sync_file(file)?;
                others.iter().try_for_each(|other| sync_file(other))?;
            }
        }
        crash_point::point("tidy.made");
        Ok(())
    }

    /// Returns whether the pool still has the packs that the swap is based on. The repository may have been removed,
    /// and another one may have been created in its place.
    pub(super) fn is_applicable(&self, pool: &Path, packs: &[PoolPack]) -> bool {
        let folder = pool.join("pack");
        packs.iter().all(|pack| pack.file(&folder, "idx").exists() && pack.file(&folder, "pack").exists())
    }

    /// Changes the pool. `record` records the packs that remain, before the others are removed. The caller holds the
    /// repository lock.
    pub(super) fn apply(
        &self,
        scratch: &ScratchDir,
        pool: &Path,
        record: impl FnOnce(&[PackHash]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (from, packs, info) = (scratch.packs(), pool.join("pack"), pool.join("info"));
        for extension in EXTENSIONS {
            for pack in &self.added {
                rename_if_exists(&pack.file(&from, extension), &pack.file(&packs, extension))?;
            }
            if extension == "pack" {
                crash_point::point("tidy.pack");
            }
        }
        sync_folder(&packs)?;
        crash_point::point("tidy.packs");
        if self.indexes.graph != FileChange::Keep {
            apply_change(&self.indexes.graph, &info.join("commit-graph"))?;
            sync_folder(&info)?;
            crash_point::point("tidy.graph");
        }
        if self.indexes.midx != FileChange::Keep {
            apply_change(&self.indexes.midx, &packs.join(MULTI_PACK_INDEX))?;
            sync_folder(&packs)?;
            crash_point::point("tidy.index");
            remove_old_bitmaps(&packs)?;
        }
        let is_added = |pack: &&PoolPack| self.added.iter().any(|added| added.name == pack.name);
        let removed: Vec<&PoolPack> = self.removed.iter().filter(|pack| !is_added(pack)).collect();
        record(&removed.iter().filter_map(|pack| PackHash::from_file_stem(&pack.name)).collect::<Vec<_>>())?;
        crash_point::point("tidy.recorded");
        for pack in removed {
            // The index is removed first: without it, a new reader ignores the pack.
            for extension in EXTENSIONS.iter().rev() {
                remove_if_exists(&pack.file(&packs, extension))?;
            }
            crash_point::point("tidy.removed");
        }
        sync_folder(&packs)
    }
}

/// Replaces or removes a file, with the files that belong to it.
fn apply_change(change: &FileChange, path: &Path) -> io::Result<()> {
    match change {
        FileChange::Keep => Ok(()),
        FileChange::Remove => remove_if_exists(path),
        FileChange::Replace(file, others) => {
            for other in others {
                rename_if_exists(other, &path.with_file_name(other.file_name().unwrap_or_default()))?;
            }
            fs::rename(file, path)
        }
    }
}

/// Removes bitmaps that do not belong to the multi-pack index.
fn remove_old_bitmaps(packs: &Path) -> io::Result<()> {
    let midx = packs.join(MULTI_PACK_INDEX);
    let current: Option<PathBuf> = if midx.exists() { bitmaps_of(&midx)? } else { None };
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(MULTI_PACK_INDEX) && name.ends_with(".bitmap") && Some(&path) != current.as_ref() {
            remove_if_exists(&path)?;
        }
    }
    Ok(())
}

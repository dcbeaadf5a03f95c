//! The last step of maintenance: what was made moves into the pool, and what it stands for goes.
//!
//! Every part is durable before the next one counts on it: new packs, commit-graph, index over all packs, removal. Whoever
//! ends in between leaves a pool with too much in it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::index::{Fate, Indexes, bitmaps_of};
use super::inspection::{MIDX, Pack};
use super::scratch_dir::{PARTS, Workshop, sync_file};
use crate::crash_point;
use crate::layout::sync_folder;

/// What changes.
#[derive(Debug, Default)]
pub(super) struct Swap {
    /// Packs that come.
    pub(super) made: Vec<Pack>,
    /// Packs that go.
    pub(super) going: Vec<Pack>,
    pub(super) indexes: Indexes,
}

impl Swap {
    /// Writes what comes to the disk. This may take long and needs no turn.
    pub(super) fn sync(&self, workshop: &Workshop) -> io::Result<()> {
        for pack in &self.made {
            for part in PARTS {
                sync_file(&pack.file(&workshop.packs(), part))?;
            }
        }
        for fate in [&self.indexes.midx, &self.indexes.graph] {
            if let Fate::Replaced(file, others) = fate {
                sync_file(file)?;
                others.iter().try_for_each(|other| sync_file(other))?;
            }
        }
        crash_point::point("tidy.made");
        Ok(())
    }

    /// Whether the pool still has what must be there: it may have gone, and another one may have come in its place.
    pub(super) fn fits(&self, pool: &Path, packs: &[Pack]) -> bool {
        let folder = pool.join("pack");
        packs.iter().all(|pack| pack.file(&folder, "idx").exists() && pack.file(&folder, "pack").exists())
    }

    /// Changes places. The caller has the turn.
    pub(super) fn carry_out(&self, workshop: &Workshop, pool: &Path) -> io::Result<()> {
        let (from, packs, info) = (workshop.packs(), pool.join("pack"), pool.join("info"));
        for part in PARTS {
            for pack in &self.made {
                shift(&pack.file(&from, part), &pack.file(&packs, part))?;
            }
            if part == "pack" {
                crash_point::point("tidy.pack");
            }
        }
        sync_folder(&packs)?;
        crash_point::point("tidy.packs");
        if self.indexes.graph != Fate::Stay {
            settle(&self.indexes.graph, &info.join("commit-graph"))?;
            sync_folder(&info)?;
            crash_point::point("tidy.graph");
        }
        if self.indexes.midx != Fate::Stay {
            settle(&self.indexes.midx, &packs.join(MIDX))?;
            sync_folder(&packs)?;
            crash_point::point("tidy.index");
            drop_old_bitmaps(&packs)?;
        }
        for pack in self.going.iter().filter(|pack| !self.made.iter().any(|made| made.name == pack.name)) {
            // Without its index it is no pack to anybody who looks from now on.
            for part in PARTS.iter().rev() {
                remove(&pack.file(&packs, part))?;
            }
            crash_point::point("tidy.removed");
        }
        sync_folder(&packs)
    }
}

/// Puts a file in its place, with what belongs to it, or removes it.
fn settle(fate: &Fate, place: &Path) -> io::Result<()> {
    match fate {
        Fate::Stay => Ok(()),
        Fate::Gone => remove(place),
        Fate::Replaced(file, others) => {
            for other in others {
                shift(other, &place.with_file_name(other.file_name().unwrap_or_default()))?;
            }
            fs::rename(file, place)
        }
    }
}

/// Removes bitmaps that belong to no index.
fn drop_old_bitmaps(packs: &Path) -> io::Result<()> {
    let midx = packs.join(MIDX);
    let current: Option<PathBuf> = if midx.exists() { bitmaps_of(&midx)? } else { None };
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(MIDX) && name.ends_with(".bitmap") && Some(&path) != current.as_ref() {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Moves a file that may not be there: not every pack has all parts.
fn shift(from: &Path, to: &Path) -> io::Result<()> {
    fine_if_gone(fs::rename(from, to))
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    fine_if_gone(fs::remove_file(path))
}

fn fine_if_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

//! Received packs: into a pool, or aside until somebody signs them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::{Doing, Keeper, Problem};
use crate::crash_point;
use crate::layout::sync_folder;

/// The files of a pack that move, in this order: git takes a pack for complete as soon as it has an index.
const PARTS: [&str; 3] = ["pack", "rev", "idx"];

/// Moves the packs of some object directories into a pool, durably, and removes the directories. One that is gone, or a
/// pack that was moved in part when the process ended, is no problem.
pub(super) fn adopt(received_packs: &[PathBuf], pool: &Path) -> io::Result<()> {
    let into = pool.join("pack");
    let mut packs = Vec::new();
    for received_pack in received_packs {
        let from = received_pack.join("pack");
        for name in names(&from)? {
            let part = |part: &str| (from.join(format!("{name}.{part}")), into.join(format!("{name}.{part}")));
            // A pack without an index or an index without a pack is nothing.
            if ["pack", "idx"].map(part).iter().all(|(from, to)| from.exists() || to.exists()) {
                packs.push(PARTS.map(part));
            }
        }
    }
    for (from, _) in packs.iter().flatten() {
        sync_file(from)?;
    }
    for (from, to) in packs.iter().flat_map(|parts| &parts[..2]) {
        shift(from, to)?;
    }
    crash_point::point("align.pack");
    for [.., (from, to)] in &packs {
        shift(from, to)?;
    }
    if !packs.is_empty() {
        sync_folder(&into)?;
    }
    crash_point::point("align.idx");
    for received_pack in received_packs {
        fine_if_gone(fs::remove_dir_all(received_pack))?;
    }
    Ok(())
}

/// The names of the packs in a folder, of which any part is there.
fn names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let entries = match fs::read_dir(folder) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let (name, part) = name.to_str().and_then(|name| name.rsplit_once('.')).unwrap_or_default();
        if name.starts_with("pack-") && PARTS.contains(&part) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

fn sync_file(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        file => file?.sync_all(),
    }
}

fn shift(from: &Path, to: &Path) -> io::Result<()> {
    fine_if_gone(fs::rename(from, to))
}

fn fine_if_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl Keeper {
    /// Puts uploads aside, durably.
    pub(super) fn stage(&self, moves: &[(ReceivedPack, ReceivedPack)]) -> Result<(), Problem> {
        for (from, to) in moves {
            let (from, to) = (self.layout.received_pack(from), self.layout.received_pack(to));
            match (from.exists(), to.exists()) {
                (false, true) => continue,
                (false, false) => return Err(Problem::Lost(from.display().to_string())),
                // What has this number and no row in the store was left behind.
                (true, true) => self.layout.discard(&to).doing("make room for an upload")?,
                (true, false) => {}
            }
            sync_parcel(&from).doing("write an upload to the disk")?;
            fs::rename(&from, &to).doing("put an upload aside")?;
        }
        if let Some((_, to)) = moves.first() {
            let staged = self.layout.received_pack(to);
            sync_folder(staged.parent().unwrap_or(&staged)).doing("put an upload aside")?;
        }
        crash_point::point("stage.moved");
        Ok(())
    }
}

/// Makes a parcel durable, but for its name.
fn sync_parcel(received_pack: &Path) -> io::Result<()> {
    let packs = received_pack.join("pack");
    for name in names(&packs)? {
        for part in PARTS {
            sync_file(&packs.join(format!("{name}.{part}")))?;
        }
    }
    sync_folder(&packs)?;
    sync_folder(received_pack)
}

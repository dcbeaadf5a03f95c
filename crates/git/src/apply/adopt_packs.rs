//! Moves received packs into a pool, or to the staged uploads until their event is known.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::GitJobRunner;
use crate::action_error::{ActionContext, ActionError};
use crate::crash_point;
use crate::files::{file_names, if_found, remove_folder, rename_if_exists, sync_file, sync_folder};

/// The extensions of the files of a pack, in the order in which they move: git considers a pack complete as soon as it
/// has an index.
const EXTENSIONS: [&str; 3] = ["pack", "rev", "idx"];

/// Moves the packs of some object directories into a pool, durably, and removes the directories. A directory that does
/// not exist, or a pack that an interrupted run has moved in part, is not an error.
pub(crate) fn move_packs(received_packs: &[PathBuf], pool: &Path) -> io::Result<()> {
    let into = pool.join("pack");
    let mut packs = Vec::new();
    for received_pack in received_packs {
        let from = received_pack.join("pack");
        for name in pack_names(&from)? {
            let file =
                |extension: &str| (from.join(format!("{name}.{extension}")), into.join(format!("{name}.{extension}")));
            // A pack without an index or an index without a pack is ignored.
            if ["pack", "idx"].map(file).iter().all(|(from, to)| from.exists() || to.exists()) {
                packs.push(EXTENSIONS.map(file));
            }
        }
    }
    for (from, _) in packs.iter().flatten() {
        sync_file(from)?;
    }
    for (from, to) in packs.iter().flat_map(|files| &files[..2]) {
        rename_if_exists(from, to)?;
    }
    crash_point::point("align.pack");
    for [.., (from, to)] in &packs {
        rename_if_exists(from, to)?;
    }
    if !packs.is_empty() {
        sync_folder(&into)?;
    }
    crash_point::point("align.idx");
    for received_pack in received_packs {
        remove_folder(received_pack)?;
    }
    Ok(())
}

/// Returns the names of the packs in a folder that have at least one file.
fn pack_names(folder: &Path) -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for name in if_found(file_names(folder))?.unwrap_or_default() {
        let (name, extension) = name.to_str().and_then(|name| name.rsplit_once('.')).unwrap_or_default();
        if name.starts_with("pack-") && EXTENSIONS.contains(&extension) {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

impl GitJobRunner {
    /// Moves received packs to the staged uploads, durably.
    pub(super) fn stage(&self, moves: &[(ReceivedPack, ReceivedPack)]) -> Result<(), ActionError> {
        for (from, to) in moves {
            let (from, to) = (self.layout.received_pack(from), self.layout.received_pack(to));
            match (from.exists(), to.exists()) {
                (false, true) => continue,
                (false, false) => return Err(ActionError::PackMissing(from.display().to_string())),
                // A folder with this number that has no row in the store is left over.
                (true, true) => self.layout.move_to_trash(&to).context("remove a leftover upload")?,
                (true, false) => {}
            }
            sync_received_pack(&from).context("sync an upload to disk")?;
            fs::rename(&from, &to).context("stage an upload")?;
        }
        if let Some((_, to)) = moves.first() {
            let staged = self.layout.received_pack(to);
            sync_folder(staged.parent().unwrap_or(&staged)).context("stage an upload")?;
        }
        crash_point::point("stage.moved");
        Ok(())
    }
}

/// Makes the content of a received pack's folder durable.
fn sync_received_pack(received_pack: &Path) -> io::Result<()> {
    let packs = received_pack.join("pack");
    for name in pack_names(&packs)? {
        for extension in EXTENSIONS {
            sync_file(&packs.join(format!("{name}.{extension}")))?;
        }
    }
    sync_folder(&packs)?;
    sync_folder(received_pack)
}

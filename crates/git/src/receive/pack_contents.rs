//! The objects of a received pack, and which of them the pushed refs need.
//!
//! It is not enough to compare numbers: a walk also lists objects that were present before, such as those that a revert
//! brings back, and each of them would hide an unreferenced object in the pack.

use std::io;
use std::path::Path;

use super::quarantine::Quarantine;
use crate::files::file_names;
use crate::objects::{PackIndex, RawOid};

/// The objects that the client sent, sorted, each with whether the walk has reached it.
#[derive(Debug, Default)]
pub(super) struct PackContents {
    oids: Vec<RawOid>,
    is_reached: Vec<bool>,
    unreached: u64,
}

impl PackContents {
    /// Reads the index of a received pack. Delta bases that git appended to the pack do not count.
    pub(super) fn read(quarantine: &Quarantine) -> io::Result<Self> {
        let Some(index) = open_index(&quarantine.packs())? else { return Ok(Self::default()) };
        let mut oids = index.oids()?;
        let sent = usize::try_from(quarantine.sent_objects).unwrap_or(usize::MAX);
        if sent < oids.len() {
            let offsets = index.offsets()?;
            let mut sorted = offsets.clone();
            let (_, first_appended, _) = sorted.select_nth_unstable(sent);
            let mut offsets = offsets.iter();
            oids.retain(|_| offsets.next().is_some_and(|offset| offset < first_appended));
        }
        let (is_reached, unreached) = (vec![false; oids.len()], oids.len() as u64);
        Ok(Self { oids, is_reached, unreached })
    }

    /// Marks an object as reached.
    pub(super) fn mark_reached(&mut self, oid: &RawOid) {
        if let Ok(index) = self.oids.binary_search(oid)
            && !std::mem::replace(&mut self.is_reached[index], true)
        {
            self.unreached -= 1;
        }
    }

    /// Returns how many objects have not been reached.
    pub(super) fn unreached(&self) -> u64 {
        self.unreached
    }
}

/// Opens the only index in a folder.
pub(super) fn open_index(packs: &Path) -> io::Result<Option<PackIndex>> {
    let names = file_names(packs)?;
    let index = names.iter().map(|name| packs.join(name)).find(|path| path.extension().is_some_and(|end| end == "idx"));
    index.map(|path| PackIndex::open(path, true)).transpose()
}

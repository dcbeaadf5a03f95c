//! The objects of a received pack, and which of them the pushed refs need.
//!
//! It is not enough to compare numbers: a walk also lists objects that were present before, such as those that a revert
//! brings back, and each of them would hide an unreferenced object in the pack.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::{fs, io};

use super::quarantine::Quarantine;

/// The binary form of an object id.
pub(super) type RawOid = [u8; 20];

/// Offset of the object ids in an index: after magic, version and 256 counters.
const OIDS_OFFSET: u64 = 8 + 256 * 4;

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
        let Some((mut file, count)) = open_index(&quarantine.packs())? else { return Ok(Self::default()) };
        let mut bytes = vec![0; count * 20];
        file.read_exact(&mut bytes)?;
        let mut oids: Vec<RawOid> = bytes.as_chunks::<20>().0.to_vec();
        drop(bytes);
        let sent = usize::try_from(quarantine.sent_objects).unwrap_or(usize::MAX);
        if sent < count {
            let offsets = read_offsets(&mut file, count)?;
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

/// Returns how many objects the pack in a folder has.
pub(super) fn count_objects(packs: &Path) -> io::Result<u64> {
    Ok(open_index(packs)?.map_or(0, |(_, count)| count as u64))
}

/// Opens the only index in a folder. Returns the file, positioned at its object ids, and their number.
fn open_index(packs: &Path) -> io::Result<Option<(File, usize)>> {
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "idx") {
            continue;
        }
        let mut file = File::open(path)?;
        let mut head = [0; OIDS_OFFSET as usize];
        file.read_exact(&mut head)?;
        if !head.starts_with(b"\xfftOc\0\0\0\x02") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a pack index of version 2"));
        }
        let [.., a, b, c, d] = head;
        let count = u32::from_be_bytes([a, b, c, d]) as usize;
        return Ok(Some((file, count)));
    }
    Ok(None)
}

/// Reads the offset of each object in its pack. The file is positioned after the object ids.
fn read_offsets(file: &mut File, count: usize) -> io::Result<Vec<u64>> {
    // A checksum for each object comes first.
    file.seek(SeekFrom::Current(count as i64 * 4))?;
    let mut bytes = vec![0; count * 4];
    file.read_exact(&mut bytes)?;
    let short = bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_be_bytes(*chunk));
    // Offsets of 2 GiB and more are in a separate table, which is followed by the two checksums of the file.
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let long = bytes.as_chunks::<8>().0;
    let offset = |short: u32| match short & 0x8000_0000 {
        0 => Some(u64::from(short)),
        _ => long.get((short & 0x7fff_ffff) as usize).map(|chunk| u64::from_be_bytes(*chunk)),
    };
    short.map(|short| offset(short).ok_or(io::ErrorKind::InvalidData.into())).collect()
}

//! Which objects a received pack carries, and which of them nobody has asked for yet.
//!
//! Comparing numbers would not do: a walk also lists objects that were here all along, such as those that a revert brings
//! back, and each of them would hide one that nothing refers to.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::{fs, io};

use super::quarantine::Incoming;

/// The binary form of an object id.
pub(super) type Oid = [u8; 20];

/// Bytes before the names of an index: magic, version, and 256 counters.
const NAMES_AT: u64 = 8 + 256 * 4;

/// The objects that the client sent, sorted, each with whether it has been reached.
#[derive(Debug, Default)]
pub(super) struct Carried {
    names: Vec<Oid>,
    reached: Vec<bool>,
    extra: u64,
}

impl Carried {
    /// Reads the index of a received pack. What git appended to it, to have what others are deltas to, does not count.
    pub(super) fn read(incoming: &Incoming) -> io::Result<Self> {
        let Some((mut file, count)) = open(&incoming.packs())? else { return Ok(Self::default()) };
        let mut bytes = vec![0; count * 20];
        file.read_exact(&mut bytes)?;
        let mut names: Vec<Oid> = bytes.as_chunks::<20>().0.to_vec();
        drop(bytes);
        let sent = usize::try_from(incoming.sent).unwrap_or(usize::MAX);
        if sent < count {
            let offsets = offsets(&mut file, count)?;
            let mut sorted = offsets.clone();
            let (_, first_appended, _) = sorted.select_nth_unstable(sent);
            let mut offsets = offsets.iter();
            names.retain(|_| offsets.next().is_some_and(|offset| offset < first_appended));
        }
        let (reached, extra) = (vec![false; names.len()], names.len() as u64);
        Ok(Self { names, reached, extra })
    }

    /// Something refers to this object.
    pub(super) fn reach(&mut self, oid: &Oid) {
        if let Ok(at) = self.names.binary_search(oid)
            && !std::mem::replace(&mut self.reached[at], true)
        {
            self.extra -= 1;
        }
    }

    /// Objects that nothing refers to, as far as is known.
    pub(super) fn extra(&self) -> u64 {
        self.extra
    }
}

/// How many objects the pack in a folder has.
pub(super) fn count(packs: &Path) -> io::Result<u64> {
    Ok(open(packs)?.map_or(0, |(_, count)| count as u64))
}

/// Opens the only index in a folder, where its names begin, and says how many there are.
fn open(packs: &Path) -> io::Result<Option<(File, usize)>> {
    for entry in fs::read_dir(packs)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "idx") {
            continue;
        }
        let mut file = File::open(path)?;
        let mut head = [0; NAMES_AT as usize];
        file.read_exact(&mut head)?;
        if !head.starts_with(b"\xfftOc\0\0\0\x02") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not an index of version 2"));
        }
        let [.., a, b, c, d] = head;
        let count = u32::from_be_bytes([a, b, c, d]) as usize;
        return Ok(Some((file, count)));
    }
    Ok(None)
}

/// Where each object lies in its pack. The file stands behind the names.
fn offsets(file: &mut File, count: usize) -> io::Result<Vec<u64>> {
    // A checksum for each object comes first.
    file.seek(SeekFrom::Current(count as i64 * 4))?;
    let mut bytes = vec![0; count * 4];
    file.read_exact(&mut bytes)?;
    let short = bytes.as_chunks::<4>().0.iter().map(|chunk| u32::from_be_bytes(*chunk));
    // Places beyond two gigabytes stand in a table of their own, which the two checksums of the file follow.
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let long = bytes.as_chunks::<8>().0;
    let place = |short: u32| match short & 0x8000_0000 {
        0 => Some(u64::from(short)),
        _ => long.get((short & 0x7fff_ffff) as usize).map(|chunk| u64::from_be_bytes(*chunk)),
    };
    short.map(|short| place(short).ok_or(io::ErrorKind::InvalidData.into())).collect()
}

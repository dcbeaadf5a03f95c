//! Which objects are in a set of pools, answered from the pack indexes without starting git.
//!
//! A pool has packs and nothing else, so an object is there if a pack index names it. Maintenance replaces packs while we
//! look: an index that was opened stays readable, and its objects stay in the pool, in whatever pack.

use std::cell::OnceCell;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use grasp_core::nostr::hex;

/// Index files that are held open, all pools together: maintenance leaves a pool some tens of packs, and a process has
/// 1,024 descriptors where nobody asked for more. Further ones are opened for each look.
const MAX_OPEN: usize = 256;

/// How often a pack folder is listed that changes under our eyes: maintenance replaces packs once, not all the time, but a
/// listing takes microseconds and some file systems show a name for longer than that after it is gone.
const LISTINGS: usize = 100;

/// Bytes of an object id.
const OID: usize = 20;

/// Where the sorted ids begin in an index: behind a signature, a version and 256 counts.
const IDS_AT: u64 = 8 + 4 * 256;

/// Ids that are read at once when a search has come close: more than a thousand bytes cost no less than these.
const NEAR: u32 = 48;

/// Deltas of one object that are followed to find its type. Git itself makes at most 4,095.
const MAX_CHAIN: usize = 10_000;

/// The packs of some pools, as they were when somebody first looked.
#[derive(Debug)]
pub struct Pools {
    folders: Vec<PathBuf>,
    indexes: OnceCell<Vec<Index>>,
}

/// What an object is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A commit.
    Commit,
    /// A tree.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

/// One pack index.
#[derive(Debug)]
struct Index {
    path: PathBuf,
    file: Option<File>,
    /// How many ids begin with a byte up to each.
    fanout: Vec<u32>,
}

impl Pools {
    /// The packs of pools, which are object directories. A pool that is not there has none. Nothing is opened before
    /// somebody looks.
    #[must_use]
    pub fn of(pools: &[PathBuf]) -> Self {
        Self { folders: pools.to_vec(), indexes: OnceCell::new() }
    }

    /// The same, opened at once.
    pub fn open(pools: &[PathBuf]) -> io::Result<Self> {
        let pools = Self::of(pools);
        pools.indexes()?;
        Ok(pools)
    }

    fn indexes(&self) -> io::Result<&[Index]> {
        if let Some(indexes) = self.indexes.get() {
            return Ok(indexes);
        }
        let mut indexes = Vec::new();
        for folder in &self.folders {
            collect(&folder.join("pack"), &mut indexes)?;
        }
        Ok(self.indexes.get_or_init(|| indexes))
    }

    /// Opens some packs, given by their index files, and no others of their pools.
    pub(crate) fn of_packs<'a>(packs: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<Self> {
        let mut indexes = Vec::new();
        for path in packs {
            let held = indexes.len() < MAX_OPEN;
            indexes.push(Index::open(path.clone(), held)?);
        }
        Ok(Self { folders: Vec::new(), indexes: OnceCell::from(indexes) })
    }

    /// Whether an object is there. What is no object id of forty digits is not.
    pub fn has(&self, oid: &str) -> io::Result<bool> {
        Ok(match hex::decode(oid) {
            Some(oid) => self.find(&oid)?.is_some(),
            None => false,
        })
    }

    /// What an object is, if it is there.
    pub fn kind(&self, oid: &str) -> io::Result<Option<Kind>> {
        let Some(oid) = hex::decode(oid) else { return Ok(None) };
        match self.kind_in_pack(&oid) {
            // The pack is gone; its objects are in a new one. An index whose pack never comes is no pack.
            Err(problem) if problem.kind() == ErrorKind::NotFound => {
                Self::open(&self.folders)?.kind_in_pack(&oid).or_else(|problem| match problem.kind() {
                    ErrorKind::NotFound => Ok(None),
                    _ => Err(problem),
                })
            }
            result => result,
        }
    }

    fn find(&self, oid: &[u8; OID]) -> io::Result<Option<(&Index, u32)>> {
        for index in self.indexes()? {
            if let Some(place) = index.find(oid)? {
                return Ok(Some((index, place)));
            }
        }
        Ok(None)
    }

    fn kind_in_pack(&self, oid: &[u8; OID]) -> io::Result<Option<Kind>> {
        self.find(oid)?.map(|(index, place)| index.kind(place)).transpose()
    }
}

/// Opens all indexes of a pack folder. A folder that changes meanwhile is listed again, so that neither the old packs nor
/// the new ones are missed.
fn collect(folder: &Path, indexes: &mut Vec<Index>) -> io::Result<()> {
    let others = indexes.len();
    for listing in 1.. {
        indexes.truncate(others);
        let before = changed(folder)?;
        let complete = match list(folder, indexes) {
            Ok(()) => true,
            Err(problem) if problem.kind() == ErrorKind::NotFound && listing < LISTINGS => {
                std::thread::yield_now();
                false
            }
            result => return result,
        };
        if complete && (listing >= LISTINGS || changed(folder)? == before) {
            break;
        }
    }
    Ok(())
}

fn changed(folder: &Path) -> io::Result<Option<SystemTime>> {
    match fs::metadata(folder) {
        Ok(metadata) => metadata.modified().map(Some),
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn list(folder: &Path, indexes: &mut Vec<Index>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        // What is being written has another name.
        if name.to_str().is_some_and(|name| name.starts_with("pack-") && name.ends_with(".idx")) {
            let held = indexes.len() < MAX_OPEN;
            indexes.push(Index::open(folder.join(name), held)?);
        }
    }
    Ok(())
}

impl Index {
    fn open(path: PathBuf, held: bool) -> io::Result<Self> {
        let file = File::open(&path)?;
        let mut head = [0; IDS_AT as usize];
        let size = file.metadata()?.len();
        let broken =
            || io::Error::new(ErrorKind::InvalidData, format!("{} is no pack index of version 2", path.display()));
        file.read_exact_at(&mut head, 0).map_err(|_| broken())?;
        let (signature, counts) = head.split_at(8);
        let fanout: Vec<u32> = counts.chunks_exact(4).map(number).collect();
        let objects = fanout.last().copied().unwrap_or_default();
        // Id, checksum and offset of each object, and two hashes at the end.
        let least = IDS_AT + u64::from(objects) * (OID as u64 + 8) + 2 * OID as u64;
        if signature != b"\xfftOc\0\0\0\x02" || !fanout.is_sorted() || size < least {
            return Err(broken());
        }
        Ok(Self { path, file: held.then_some(file), fanout })
    }

    fn objects(&self) -> u64 {
        u64::from(self.fanout[255])
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => file.read_exact_at(bytes, at),
            None => File::open(&self.path)?.read_exact_at(bytes, at),
        }
    }

    /// The place of an object among the sorted ids.
    fn find(&self, oid: &[u8; OID]) -> io::Result<Option<u32>> {
        match self.search(oid) {
            // It was not held open and has been replaced: its objects are in a pack that is newer than this list.
            Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(None),
            result => result,
        }
    }

    fn search(&self, oid: &[u8; OID]) -> io::Result<Option<u32>> {
        let first = usize::from(oid[0]);
        let (mut low, mut high) = (if first == 0 { 0 } else { self.fanout[first - 1] }, self.fanout[first]);
        let at = |place: u32| IDS_AT + u64::from(place) * OID as u64;
        while high - low > NEAR {
            let middle = low + (high - low) / 2;
            let mut id = [0; OID];
            self.read(&mut id, at(middle))?;
            if id <= *oid {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut near = [0; NEAR as usize * OID];
        let near = &mut near[..(high - low) as usize * OID];
        if !near.is_empty() {
            self.read(near, at(low))?;
        }
        Ok((low..high).zip(near.chunks_exact(OID)).find(|(_, id)| id == oid).map(|(place, _)| place))
    }

    /// Where in the pack an object lies.
    fn offset(&self, place: u32) -> io::Result<u64> {
        let offsets = IDS_AT + self.objects() * (OID as u64 + 4);
        let mut short = [0; 4];
        self.read(&mut short, offsets + u64::from(place) * 4)?;
        let short = u32::from_be_bytes(short);
        if short >> 31 == 0 {
            return Ok(short.into());
        }
        let mut long = [0; 8];
        self.read(&mut long, offsets + self.objects() * 4 + u64::from(short & !(1 << 31)) * 8)?;
        Ok(u64::from_be_bytes(long))
    }

    /// What the object at a place is. A delta is what its base is.
    fn kind(&self, place: u32) -> io::Result<Kind> {
        let path = self.path.with_extension("pack");
        let pack = File::open(&path)?;
        let broken = || io::Error::new(ErrorKind::InvalidData, format!("{} is broken", path.display()));
        let mut offset = self.offset(place)?;
        for _ in 0..MAX_CHAIN {
            // Enough for a size and a base, and there are twenty bytes behind the last object.
            let mut head = [0; 40];
            let read = pack.read_at(&mut head, offset)?;
            let mut bytes = head[..read].iter().copied();
            let first = bytes.next().ok_or_else(broken)?;
            if first & 0x80 != 0 {
                bytes.find(|byte| byte & 0x80 == 0).ok_or_else(broken)?;
            }
            offset = match (first >> 4) & 7 {
                1 => return Ok(Kind::Commit),
                2 => return Ok(Kind::Tree),
                3 => return Ok(Kind::Blob),
                4 => return Ok(Kind::Tag),
                6 => distance(&mut bytes).and_then(|back| offset.checked_sub(back)).ok_or_else(broken)?,
                7 => {
                    let base: Vec<u8> = bytes.take(OID).collect();
                    let base: [u8; OID] = base.try_into().map_err(|_| broken())?;
                    self.offset(self.find(&base)?.ok_or_else(broken)?)?
                }
                _ => return Err(broken()),
            };
        }
        Err(broken())
    }
}

/// How far back the base of a delta lies.
fn distance(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut byte = bytes.next()?;
    let mut back = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = bytes.next()?;
        back = (back + 1).checked_mul(128)? + u64::from(byte & 0x7f);
    }
    Some(back)
}

/// How many objects a pack index names.
pub(crate) fn count(index: &Path) -> io::Result<u64> {
    Ok(Index::open(index.to_owned(), false)?.objects())
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

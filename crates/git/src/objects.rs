//! Looks up and reads objects in a set of pools by their pack indexes, without starting git.
//!
//! A pool has packs and nothing else, so an object exists if a pack index names it. Maintenance may replace packs
//! during a lookup: an index that was opened stays readable, and its objects stay in the pool, in some pack.

use std::cell::OnceCell;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use grasp_core::nostr::hex;

use crate::files::{file_names, if_found};
use crate::pack_entry::{EntryHeader, EntryKind, Inflater, apply_delta, delta_sizes};

/// Packs whose files are kept open, all pools together: maintenance leaves a pool some tens of packs, each has two files,
/// and a process has 1,024 descriptors by default. Those of further packs are opened for each lookup.
const MAX_OPEN: usize = 128;

/// How often a pack folder is listed again if it changes meanwhile. Maintenance replaces packs only once, but a listing
/// takes microseconds, and some file systems show a removed name for longer than that.
const MAX_LISTINGS: usize = 100;

/// Bytes of an object id.
pub(crate) const OID_BYTES: usize = 20;

/// The binary form of an object id.
pub(crate) type RawOid = [u8; OID_BYTES];

/// Offset of the sorted ids in an index: after the signature, the version and 256 counts.
const IDS_OFFSET: u64 = 8 + 4 * 256;

/// Ids that are read at once at the end of a binary search: about a thousand bytes take no longer than fewer.
const LINEAR_SEARCH_IDS: u32 = 48;

/// Bytes that are read of an entry to get its header: a size of ten bytes and a base. At least twenty bytes follow the
/// header of the last entry.
const ENTRY_HEADER_BYTES: usize = 40;

/// Part of a [`ReadBudget`] that each step to a delta base takes: about as much time as to inflate so many bytes.
const STEP_BYTES: u64 = 512;

/// The budget to find the type of one object: ten thousand steps. Git itself makes chains of at most 4,095 deltas.
const MAX_KIND_BYTES: u64 = 10_000 * STEP_BYTES;

/// The packs of some pools, as they were at the first lookup.
#[derive(Debug)]
pub struct ObjectLookup {
    folders: Vec<PathBuf>,
    indexes: OnceCell<Vec<PackIndex>>,
}

/// The type of a git object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A tree.
    Tree,
    /// A blob: the content of a file.
    Blob,
    /// An annotated tag.
    Tag,
}

impl ObjectKind {
    /// Returns the type with git's name for it.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Commit, Self::Tree, Self::Blob, Self::Tag].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns git's name of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}

/// The work that reading objects may take, in bytes that are inflated or copied. A chain of small deltas can expand to
/// any number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadBudget {
    bytes: u64,
}

impl ReadBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes }
    }

    /// Takes some bytes, and returns them as a size in memory.
    pub(crate) fn take(&mut self, bytes: u64) -> io::Result<usize> {
        let used_up = || io::Error::new(ErrorKind::FileTooLarge, "objects take too much work to read");
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(used_up)?;
        usize::try_from(bytes).map_err(|_| used_up())
    }
}

/// A pack index of version 2, and its pack.
#[derive(Debug)]
pub(crate) struct PackIndex {
    path: PathBuf,
    file: Option<File>,
    /// The pack, once it has been read, if the index is kept open.
    pack: OnceCell<File>,
    /// For each byte value, how many ids begin with that byte or a smaller one.
    fanout: Vec<u32>,
}

impl ObjectLookup {
    /// Looks up objects in pools, which are object directories. A pool that does not exist has no packs. Nothing is
    /// opened before the first lookup.
    #[must_use]
    pub fn new(pools: &[PathBuf]) -> Self {
        Self { folders: pools.to_vec(), indexes: OnceCell::new() }
    }

    /// Like [`new`](Self::new), but opens the pack indexes at once.
    pub fn open(pools: &[PathBuf]) -> io::Result<Self> {
        let pools = Self::new(pools);
        pools.indexes()?;
        Ok(pools)
    }

    fn indexes(&self) -> io::Result<&[PackIndex]> {
        if let Some(indexes) = self.indexes.get() {
            return Ok(indexes);
        }
        let mut indexes = Vec::new();
        for folder in &self.folders {
            open_indexes(&folder.join("pack"), &mut indexes)?;
        }
        Ok(self.indexes.get_or_init(|| indexes))
    }

    /// Looks up objects in some packs only, given by their index files.
    pub(crate) fn from_packs<'a>(packs: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<Self> {
        let mut indexes = Vec::new();
        for path in packs {
            let keep_open = indexes.len() < MAX_OPEN;
            indexes.push(PackIndex::open(path.clone(), keep_open)?);
        }
        Ok(Self { folders: Vec::new(), indexes: OnceCell::from(indexes) })
    }

    /// Returns whether an object exists. An id that is not forty hex digits does not.
    pub fn has(&self, oid: &str) -> io::Result<bool> {
        let Some(oid) = hex::decode(oid) else { return Ok(false) };
        for index in self.indexes()? {
            if index.find(&oid)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the type of an object, if it exists.
    pub fn kind(&self, oid: &str) -> io::Result<Option<ObjectKind>> {
        let Some(oid) = hex::decode(oid) else { return Ok(None) };
        match self.kind_in_pack(&oid) {
            // The pack has been removed; its objects are in a new one. An index that has no pack does not count.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(if_found(Self::open(&self.folders)?.kind_in_pack(&oid))?.flatten())
            }
            result => result,
        }
    }

    fn kind_in_pack(&self, oid: &RawOid) -> io::Result<Option<ObjectKind>> {
        self.find_in_packs(oid, |index, position| index.kind(position, &mut ReadBudget::new(MAX_KIND_BYTES)))
    }

    /// Returns the type of an object, if it exists. An error means that it is not known, for example because its pack
    /// was removed meanwhile or because the budget is used up.
    pub(crate) fn kind_within(&self, oid: &RawOid, budget: &mut ReadBudget) -> io::Result<Option<ObjectKind>> {
        self.find_in_packs(oid, |index, position| index.kind(position, budget))
    }

    /// Returns the type and the content of an object, if it exists. An error means that it is not known, for example
    /// because its pack was removed meanwhile or because the budget is used up. The hash is not checked.
    pub(crate) fn read(&self, oid: &RawOid, budget: &mut ReadBudget) -> io::Result<Option<(ObjectKind, Vec<u8>)>> {
        self.find_in_packs(oid, |index, position| index.read_object(position, budget))
    }

    /// Calls `read` with the packs that have an object, until one can be read.
    fn find_in_packs<T>(
        &self,
        oid: &RawOid,
        mut read: impl FnMut(&PackIndex, u32) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let mut not_found = None;
        for index in self.indexes()? {
            let Some(position) = index.find(oid)? else { continue };
            match read(index, position) {
                // Git before 2.42 removes a pack before its index. The object may be in another pack.
                Err(error) if error.kind() == ErrorKind::NotFound => not_found = Some(error),
                result => return result.map(Some),
            }
        }
        not_found.map_or(Ok(None), Err)
    }
}

/// Opens all indexes of a pack folder. A folder that changes meanwhile is listed again, so that the objects of replaced
/// packs are found in the old packs or in the new ones.
fn open_indexes(folder: &Path, indexes: &mut Vec<PackIndex>) -> io::Result<()> {
    let others = indexes.len();
    for listing in 1.. {
        indexes.truncate(others);
        let before = modified(folder)?;
        let complete = match list_indexes(folder, indexes) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound && listing < MAX_LISTINGS => {
                std::thread::yield_now();
                false
            }
            result => return result,
        };
        if complete && (listing >= MAX_LISTINGS || modified(folder)? == before) {
            break;
        }
    }
    Ok(())
}

fn modified(folder: &Path) -> io::Result<Option<SystemTime>> {
    if_found(fs::metadata(folder))?.map(|metadata| metadata.modified()).transpose()
}

fn list_indexes(folder: &Path, indexes: &mut Vec<PackIndex>) -> io::Result<()> {
    for name in if_found(file_names(folder))?.unwrap_or_default() {
        // Files that are being written have other names.
        if name.to_str().is_some_and(|name| name.starts_with("pack-") && name.ends_with(".idx")) {
            let keep_open = indexes.len() < MAX_OPEN;
            indexes.push(PackIndex::open(folder.join(name), keep_open)?);
        }
    }
    Ok(())
}

impl PackIndex {
    /// Opens an index. If it is not kept open, it is opened again for each lookup.
    pub(crate) fn open(path: PathBuf, keep_open: bool) -> io::Result<Self> {
        let file = File::open(&path)?;
        let mut head = [0; IDS_OFFSET as usize];
        let size = file.metadata()?.len();
        let broken =
            || io::Error::new(ErrorKind::InvalidData, format!("{} is not a pack index of version 2", path.display()));
        file.read_exact_at(&mut head, 0).map_err(|_| broken())?;
        let (signature, counts) = head.split_at(8);
        let fanout: Vec<u32> = counts.as_chunks().0.iter().map(|count| u32::from_be_bytes(*count)).collect();
        let objects = fanout.last().copied().unwrap_or_default();
        // The id, checksum and offset of each object, and two hashes at the end.
        let least = IDS_OFFSET + u64::from(objects) * (OID_BYTES as u64 + 8) + 2 * OID_BYTES as u64;
        if signature != b"\xfftOc\0\0\0\x02" || !fanout.is_sorted() || size < least {
            return Err(broken());
        }
        Ok(Self { path, file: keep_open.then_some(file), pack: OnceCell::new(), fanout })
    }

    /// Returns the number of objects.
    pub(crate) fn objects(&self) -> u64 {
        u64::from(self.fanout[255])
    }

    /// Returns the ids of all objects, sorted.
    pub(crate) fn oids(&self) -> io::Result<Vec<RawOid>> {
        self.read_all(IDS_OFFSET)
    }

    /// Returns the offset in the pack of each object, in the order of the ids.
    pub(crate) fn offsets(&self) -> io::Result<Vec<u64>> {
        self.read_all(self.offsets_start())?.into_iter().map(|short| self.full_offset(short)).collect()
    }

    /// Reads a table that has `N` bytes for each object.
    fn read_all<const N: usize>(&self, at: u64) -> io::Result<Vec<[u8; N]>> {
        let mut table = vec![[0; N]; self.fanout[255] as usize];
        self.read(table.as_flattened_mut(), at)?;
        Ok(table)
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => file.read_exact_at(bytes, at),
            None => File::open(&self.path)?.read_exact_at(bytes, at),
        }
    }

    /// Returns the position of an object among the sorted ids.
    fn find(&self, oid: &RawOid) -> io::Result<Option<u32>> {
        // An index that was not kept open may have been removed: its objects are in a pack that is newer than this list.
        Ok(if_found(self.search(oid))?.flatten())
    }

    fn search(&self, oid: &RawOid) -> io::Result<Option<u32>> {
        let first = usize::from(oid[0]);
        let (mut low, mut high) = (if first == 0 { 0 } else { self.fanout[first - 1] }, self.fanout[first]);
        let offset = |position: u32| IDS_OFFSET + u64::from(position) * OID_BYTES as u64;
        while high - low > LINEAR_SEARCH_IDS {
            let middle = low + (high - low) / 2;
            let mut id = [0; OID_BYTES];
            self.read(&mut id, offset(middle))?;
            if id <= *oid {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut ids = [0; LINEAR_SEARCH_IDS as usize * OID_BYTES];
        let ids = &mut ids[..(high - low) as usize * OID_BYTES];
        if !ids.is_empty() {
            self.read(ids, offset(low))?;
        }
        Ok((low..high).zip(ids.chunks_exact(OID_BYTES)).find(|(_, id)| id == oid).map(|(position, _)| position))
    }

    /// Returns the offset in the pack of the object at a position.
    fn offset(&self, position: u32) -> io::Result<u64> {
        let mut short = [0; 4];
        self.read(&mut short, self.offsets_start() + u64::from(position) * 4)?;
        self.full_offset(short)
    }

    /// Returns the start of the table of offsets: after an id and a checksum for each object.
    fn offsets_start(&self) -> u64 {
        IDS_OFFSET + self.objects() * (OID_BYTES as u64 + 4)
    }

    /// Returns the offset that an entry means. Offsets of 2 GiB and more are in a table after the others.
    fn full_offset(&self, short: [u8; 4]) -> io::Result<u64> {
        let short = u32::from_be_bytes(short);
        if short >> 31 == 0 {
            return Ok(short.into());
        }
        let mut long = [0; 8];
        self.read(&mut long, self.offsets_start() + self.objects() * 4 + u64::from(short & !(1 << 31)) * 8)?;
        Ok(u64::from_be_bytes(long))
    }

    /// Returns the type of the object at a position. A delta has the type of its base.
    fn kind(&self, position: u32, budget: &mut ReadBudget) -> io::Result<ObjectKind> {
        let mut offset = self.offset(position)?;
        loop {
            budget.take(STEP_BYTES)?;
            let header = self.read_entry_header(offset)?;
            match header.kind {
                EntryKind::Object(kind) => return Ok(kind),
                delta => offset = self.base_offset(offset, delta)?,
            }
        }
    }

    /// Returns the type and the content of the object at a position.
    fn read_object(&self, position: u32, budget: &mut ReadBudget) -> io::Result<(ObjectKind, Vec<u8>)> {
        let mut offset = self.offset(position)?;
        let (mut deltas, mut inflater) = (Vec::new(), Inflater::new());
        let (kind, mut content) = loop {
            budget.take(STEP_BYTES)?;
            let header = self.read_entry_header(offset)?;
            let size = budget.take(header.size)?;
            // Enough for data that does not compress: zlib adds five bytes for each 16 KiB.
            let mut compressed = vec![0; size + size / 1_024 + 64];
            let read = self.read_pack(&mut compressed, offset + header.header_bytes as u64)?;
            let (content, _) = inflater.inflate(&compressed[..read], size).ok_or_else(|| self.broken())?;
            match header.kind {
                EntryKind::Object(kind) => break (kind, content),
                delta => {
                    offset = self.base_offset(offset, delta)?;
                    deltas.push(content);
                }
            }
        };
        for delta in deltas.iter().rev() {
            let (_, result_size) = delta_sizes(delta).ok_or_else(|| self.broken())?;
            budget.take(result_size)?;
            content = apply_delta(&content, delta).ok_or_else(|| self.broken())?;
        }
        Ok((kind, content))
    }

    fn read_entry_header(&self, offset: u64) -> io::Result<EntryHeader> {
        let mut head = [0; ENTRY_HEADER_BYTES];
        let read = self.read_pack(&mut head, offset)?;
        EntryHeader::read(&head[..read]).ok_or_else(|| self.broken())
    }

    /// Returns the offset of the base of the delta at an offset.
    fn base_offset(&self, offset: u64, delta: EntryKind) -> io::Result<u64> {
        let base = match delta {
            EntryKind::Object(_) => None,
            EntryKind::OfsDelta(distance) => offset.checked_sub(distance).filter(|_| distance > 0),
            EntryKind::RefDelta(base) => self.find(&base)?.map(|position| self.offset(position)).transpose()?,
        };
        base.ok_or_else(|| self.broken())
    }

    /// Reads bytes of the pack, fewer at its end.
    fn read_pack(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        if let Some(pack) = self.pack.get() {
            return read_up_to(pack, bytes, at);
        }
        let pack = File::open(self.path.with_extension("pack"))?;
        let read = read_up_to(&pack, bytes, at)?;
        if self.file.is_some() {
            let _ = self.pack.set(pack);
        }
        Ok(read)
    }

    fn broken(&self) -> io::Error {
        io::Error::new(ErrorKind::InvalidData, format!("the pack of {} is broken", self.path.display()))
    }
}

/// Reads bytes of a file, fewer at its end.
fn read_up_to(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], at + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

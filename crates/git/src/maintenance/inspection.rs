//! Inspects the packs of a pool and decides what should be done about them.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use crate::files::{file_names, if_found};
use crate::objects::PackIndex;

/// The file name of the multi-pack index, in the pack folder.
pub(super) const MULTI_PACK_INDEX: &str = "multi-pack-index";

/// A pool with more packs than this is repacked: git searches each of them for an object, until one has it.
const MAX_PACKS: usize = 8;

/// A pack is not merged if it has this many times the objects of all smaller ones together. So an object is packed
/// again only a few times in total, not with every push.
const FACTOR: u64 = 2;

/// A pool with fewer objects has no index and no bitmaps: git walks over these in some ten milliseconds.
const MIN_INDEXED_OBJECTS: u64 = 5_000;

/// The index is written again when it misses one object in this many: git walks over the rest for every clone.
const UNINDEXED_SHARE: u64 = 8;

/// The packs of a pool at one time.
#[derive(Debug)]
pub(super) struct PoolInspection {
    pub(super) packs: Vec<PoolPack>,
    /// The packs that the multi-pack index covers, if there is one.
    pub(super) indexed: Option<BTreeSet<String>>,
}

/// A pack of a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PoolPack {
    /// The file name without the extension.
    pub(super) name: String,
    pub(super) objects: u64,
    pub(super) modified: SystemTime,
    /// It is a cruft pack: its objects were found to be unneeded.
    pub(super) is_cruft: bool,
}

impl PoolPack {
    /// Reads a pack that git has just written.
    pub(super) fn read(folder: &Path, name: &str) -> io::Result<Self> {
        read_pack(folder, name)?.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Returns one of the pack's files.
    pub(super) fn file(&self, folder: &Path, extension: &str) -> PathBuf {
        folder.join(format!("{}.{extension}", self.name))
    }
}

impl PoolInspection {
    /// Inspects a pack folder.
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let mut packs = Vec::new();
        for file in file_names(folder)? {
            let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".idx")) else { continue };
            if name.starts_with("pack-") {
                packs.extend(read_pack(folder, name)?);
            }
        }
        packs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { packs, indexed: read_indexed(&folder.join(MULTI_PACK_INDEX))? })
    }

    /// Returns the packs that are not cruft packs.
    pub(super) fn normal(&self) -> impl Iterator<Item = &PoolPack> {
        self.packs.iter().filter(|pack| !pack.is_cruft)
    }

    /// Returns the cruft packs.
    pub(super) fn cruft(&self) -> impl Iterator<Item = &PoolPack> {
        self.packs.iter().filter(|pack| pack.is_cruft)
    }

    /// Returns the packs that should be merged, smallest first; none if there are few, or if each is much larger than
    /// the next smaller one.
    pub(super) fn packs_to_merge(&self) -> Vec<PoolPack> {
        let mut packs: Vec<PoolPack> = self.normal().cloned().collect();
        packs.sort_by_key(|pack| pack.objects);
        let sizes: Vec<u64> = packs.iter().map(|pack| pack.objects).collect();
        packs.truncate(if packs.len() > MAX_PACKS { geometric_split(&sizes) } else { 0 });
        packs
    }

    /// Returns whether the index should be written again after these packs have been merged.
    pub(super) fn is_index_due(&self, merged: &[PoolPack]) -> bool {
        let all: u64 = self.normal().map(|pack| pack.objects).sum();
        let Some(indexed) = &self.indexed else { return all >= MIN_INDEXED_OBJECTS };
        let missed: u64 = self.normal().filter(|pack| !indexed.contains(&pack.name)).map(|pack| pack.objects).sum();
        all >= MIN_INDEXED_OBJECTS && (missed * UNINDEXED_SHARE >= all || self.index_covers_any(merged))
    }

    /// Returns whether there are enough objects for an index.
    pub(super) fn is_worth_an_index(&self) -> bool {
        self.normal().map(|pack| pack.objects).sum::<u64>() >= MIN_INDEXED_OBJECTS
    }

    /// Returns whether there is an index and it covers one of these packs, and is therefore invalid without them.
    pub(super) fn index_covers_any(&self, packs: &[PoolPack]) -> bool {
        self.indexed.as_ref().is_some_and(|indexed| packs.iter().any(|pack| indexed.contains(&pack.name)))
    }
}

/// Returns how many of the smallest packs are merged, so that afterwards each pack has at least [`FACTOR`] times the
/// objects of the next smaller one. `sizes` is sorted.
fn geometric_split(sizes: &[u64]) -> usize {
    let is_too_small = |pair: &[u64]| pair[1] < FACTOR * pair[0];
    // The largest pack that is too small compared with the one before it, and all smaller ones.
    let mut split = sizes.windows(2).rposition(is_too_small).map_or(0, |at| at + 2);
    let mut total: u64 = sizes[..split].iter().sum();
    while split > 0 && sizes.get(split).is_some_and(|size| *size < FACTOR * total) {
        total += sizes[split];
        split += 1;
    }
    split
}

/// Reads a pack; `None` if its pack file does not exist.
fn read_pack(folder: &Path, name: &str) -> io::Result<Option<PoolPack>> {
    let pack = PoolPack { name: name.to_owned(), objects: 0, modified: SystemTime::UNIX_EPOCH, is_cruft: false };
    let Some(metadata) = if_found(fs::metadata(pack.file(folder, "pack")))? else { return Ok(None) };
    let modified = metadata.modified()?;
    let objects = PackIndex::open(pack.file(folder, "idx"), false)?.objects();
    let is_cruft = pack.file(folder, "mtimes").exists();
    Ok(Some(PoolPack { objects, modified, is_cruft, ..pack }))
}

/// Returns the packs that a multi-pack index covers. One that cannot be parsed covers none and is written again.
fn read_indexed(path: &Path) -> io::Result<Option<BTreeSet<String>>> {
    let Some(file) = if_found(fs::File::open(path))? else { return Ok(None) };
    Ok(Some(read_pack_names(&file)?.unwrap_or_default()))
}

/// Reads the chunk of pack names of a multi-pack index. A table after the header has its offset.
fn read_pack_names(file: &fs::File) -> io::Result<Option<BTreeSet<String>>> {
    use std::os::unix::fs::FileExt;
    const HEADER: usize = 12;
    const ENTRY: usize = 12;
    /// Names of some ten packs, each of some fifty bytes, fit many times.
    const MAX_NAMES_BYTES: u64 = 1 << 20;
    let mut head = [0; HEADER + 256 * ENTRY];
    file.read_at(&mut head, 0)?;
    if !head.starts_with(b"MIDX\x01\x01") {
        return Ok(None);
    }
    let table = &head[HEADER..];
    let offset =
        |nth: usize| table[nth * ENTRY + 4..][..8].iter().fold(0_u64, |offset, byte| offset << 8 | u64::from(*byte));
    let chunk = (0..usize::from(head[6]).min(255)).find(|nth| table[nth * ENTRY..].starts_with(b"PNAM"));
    let Some((from, to)) = chunk.map(|nth| (offset(nth), offset(nth + 1))) else { return Ok(None) };
    let mut names = vec![0; usize::try_from(to.saturating_sub(from).min(MAX_NAMES_BYTES)).unwrap_or_default()];
    file.read_exact_at(&mut names, from)?;
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(Some(names.filter_map(|name| name.strip_suffix(".idx")).map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_merged_until_each_is_twice_the_next_smaller_one() {
        assert_eq!(geometric_split(&[]), 0);
        assert_eq!(geometric_split(&[5]), 0);
        assert_eq!(geometric_split(&[1, 2, 4, 8]), 0);
        assert_eq!(geometric_split(&[1, 1, 1, 1, 100]), 4);
        // The merged pack is compared with the next larger one again.
        assert_eq!(geometric_split(&[3, 3, 10, 100]), 3);
        assert_eq!(geometric_split(&[3, 3, 12, 100]), 2);
        assert_eq!(geometric_split(&[1, 2, 3, 4, 9]), 5);
    }
}

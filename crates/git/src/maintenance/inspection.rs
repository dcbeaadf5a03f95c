//! What a pool has, and what should be done about it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use crate::objects;

/// The index over all packs, in the pack folder.
pub(super) const MIDX: &str = "multi-pack-index";

/// A pool with more packs than this gets fewer: each of them is asked for each object, until one has it.
const MAX_PACKS: usize = 8;

/// A pack stays by itself if it has this many times the objects of all smaller ones together. So an object is packed anew
/// a few times in its life, not with every push.
const FACTOR: u64 = 2;

/// A pool with fewer objects needs no index and no bitmaps: git walks over these in some ten milliseconds.
const INDEX_LEAST: u64 = 5_000;

/// The index is made anew when it misses one object in this many: git walks over the rest for every clone.
const INDEX_SHARE: u64 = 8;

/// The packs of a pool at one time.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) packs: Vec<Pack>,
    /// The packs that the index is over, if there is one.
    pub(super) indexed: Option<BTreeSet<String>>,
}

/// One pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pack {
    /// Its file name up to the ending.
    pub(super) name: String,
    pub(super) objects: u64,
    pub(super) modified: SystemTime,
    /// Whether it has what was found to be unneeded.
    pub(super) cruft: bool,
}

impl Pack {
    /// A pack that git has just made.
    pub(super) fn made(folder: &Path, name: &str) -> io::Result<Self> {
        look(folder, name)?.ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// One of its files.
    pub(super) fn file(&self, folder: &Path, part: &str) -> PathBuf {
        folder.join(format!("{}.{part}", self.name))
    }
}

impl Survey {
    /// Looks at a pack folder.
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let mut packs = Vec::new();
        for entry in fs::read_dir(folder)? {
            let file = entry?.file_name();
            let Some(name) = file.to_str().and_then(|name| name.strip_suffix(".idx")) else { continue };
            if name.starts_with("pack-") {
                packs.extend(look(folder, name)?);
            }
        }
        packs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { packs, indexed: indexed(&folder.join(MIDX))? })
    }

    /// Packs of objects that are needed, as far as is known.
    pub(super) fn normal(&self) -> impl Iterator<Item = &Pack> {
        self.packs.iter().filter(|pack| !pack.cruft)
    }

    /// Packs of what is not.
    pub(super) fn cruft(&self) -> impl Iterator<Item = &Pack> {
        self.packs.iter().filter(|pack| pack.cruft)
    }

    /// The packs of which one should be made, smallest first; none if there are few, or each is much larger than the next.
    pub(super) fn foldable(&self) -> Vec<Pack> {
        let mut packs: Vec<Pack> = self.normal().cloned().collect();
        packs.sort_by_key(|pack| pack.objects);
        let sizes: Vec<u64> = packs.iter().map(|pack| pack.objects).collect();
        packs.truncate(if packs.len() > MAX_PACKS { geometric(&sizes) } else { 0 });
        packs
    }

    /// Whether there should be an index, and it should be made anew when these packs have become one.
    pub(super) fn index_is_due(&self, folded: &[Pack]) -> bool {
        let all: u64 = self.normal().map(|pack| pack.objects).sum();
        let Some(indexed) = &self.indexed else { return all >= INDEX_LEAST };
        let missed: u64 = self.normal().filter(|pack| !indexed.contains(&pack.name)).map(|pack| pack.objects).sum();
        all >= INDEX_LEAST && (missed * INDEX_SHARE >= all || self.index_breaks(folded))
    }

    /// Whether there are so many objects that an index pays.
    pub(super) fn is_worth_an_index(&self) -> bool {
        self.normal().map(|pack| pack.objects).sum::<u64>() >= INDEX_LEAST
    }

    /// Whether there is an index and it would be wrong without these packs.
    pub(super) fn index_breaks(&self, going: &[Pack]) -> bool {
        self.indexed.as_ref().is_some_and(|indexed| going.iter().any(|pack| indexed.contains(&pack.name)))
    }
}

/// How many of the smallest packs become one, so that afterwards each has at least twice the objects of the next.
fn geometric(sizes: &[u64]) -> usize {
    let falls_short = |pair: &[u64]| pair[1] < FACTOR * pair[0];
    // The last pack that is too small for its place, and everything below it.
    let mut split = sizes.windows(2).rposition(falls_short).map_or(0, |at| at + 2);
    let mut total: u64 = sizes[..split].iter().sum();
    while split > 0 && sizes.get(split).is_some_and(|size| *size < FACTOR * total) {
        total += sizes[split];
        split += 1;
    }
    split
}

/// A pack, if all of it is there.
fn look(folder: &Path, name: &str) -> io::Result<Option<Pack>> {
    let pack = Pack { name: name.to_owned(), objects: 0, modified: SystemTime::UNIX_EPOCH, cruft: false };
    let modified = match fs::metadata(pack.file(folder, "pack")) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
        metadata => metadata?.modified()?,
    };
    let objects = objects::count(&pack.file(folder, "idx"))?;
    let cruft = pack.file(folder, "mtimes").exists();
    Ok(Some(Pack { objects, modified, cruft, ..pack }))
}

/// The packs that an index is over. One that cannot be read is over none: it is made anew.
fn indexed(path: &Path) -> io::Result<Option<BTreeSet<String>>> {
    let mut file = match fs::File::open(path) {
        Err(problem) if problem.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    Ok(Some(pack_names(&mut file)?.unwrap_or_default()))
}

/// Reads the chunk of pack names of an index: a table behind the header says where it is.
fn pack_names(file: &mut fs::File) -> io::Result<Option<BTreeSet<String>>> {
    use std::os::unix::fs::FileExt;
    const HEADER: usize = 12;
    const ENTRY: usize = 12;
    /// Names of some ten packs, each of some fifty bytes.
    const MAX_NAMES: u64 = 1 << 20;
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
    let mut names = vec![0; usize::try_from(to.saturating_sub(from).min(MAX_NAMES)).unwrap_or_default()];
    file.read_exact_at(&mut names, from)?;
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    Ok(Some(names.filter_map(|name| name.strip_suffix(".idx")).map(str::to_owned).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_are_folded_until_each_is_twice_the_next() {
        assert_eq!(geometric(&[]), 0);
        assert_eq!(geometric(&[5]), 0);
        assert_eq!(geometric(&[1, 2, 4, 8]), 0);
        assert_eq!(geometric(&[1, 1, 1, 1, 100]), 4);
        // What they become is compared again.
        assert_eq!(geometric(&[3, 3, 10, 100]), 3);
        assert_eq!(geometric(&[3, 3, 12, 100]), 2);
        assert_eq!(geometric(&[1, 2, 3, 4, 9]), 5);
    }
}

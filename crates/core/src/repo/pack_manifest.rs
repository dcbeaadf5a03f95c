//! The packs of a pool.

use std::collections::BTreeMap;

use crate::nostr::hex;

/// The name of a pack: the hash at the end of its file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PackHash(pub [u8; 20]);

impl PackHash {
    /// Reads the hash from a file name without extension, such as `pack-<40 hex digits>`.
    #[must_use]
    pub fn from_file_stem(stem: &str) -> Option<Self> {
        hex::decode(stem.strip_prefix("pack-")?).map(Self)
    }

    /// Returns the file name without extension.
    #[must_use]
    pub fn file_stem(self) -> String {
        format!("pack-{}", hex::encode(&self.0))
    }
}

/// The packs that a pool should have, each with its size in bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct PackManifest(pub BTreeMap<PackHash, u64>);

impl PackManifest {
    /// Returns whether there are no packs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the packs that another manifest does not have, or has with another size.
    pub fn missing_from<'m>(&'m self, other: &'m Self) -> impl Iterator<Item = PackHash> + 'm {
        self.0.iter().filter(|(pack, bytes)| other.0.get(pack) != Some(bytes)).map(|(pack, _)| *pack)
    }
}

//! The files of a pack: the pack itself, its index and its reverse index, as `git index-pack` writes them.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use grasp_core::nostr::hex;
use sha1::{Digest, Sha1};

use crate::files::remove_if_exists;
use crate::objects::{OID_BYTES, RawOid};

/// Permissions of the files: git writes them without the permission to write.
const FILE_MODE: u32 = 0o444;

/// The place of an object in its pack.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedObject {
    pub(super) oid: RawOid,
    pub(super) offset: u32,
    /// CRC-32 of the entry as it is in the pack.
    pub(super) crc: u32,
}

/// Writes the files of a pack, the index last. `objects` are in the order of the pack. Nothing is left if a file cannot
/// be written.
pub(super) fn write_pack(folder: &Path, pack: &[u8], objects: &[PackedObject]) -> io::Result<()> {
    let Some(checksum) = pack.last_chunk::<OID_BYTES>() else { return Err(io::ErrorKind::InvalidData.into()) };
    let (index, reverse_index) = encode_indexes(objects, checksum);
    let path = |extension: &str| folder.join(format!("pack-{}.{extension}", hex::encode(checksum)));
    let files: [(PathBuf, &[u8]); 3] = [(path("pack"), pack), (path("rev"), &reverse_index), (path("idx"), &index)];
    let written = files.iter().try_for_each(|(path, bytes)| create_file(path)?.write_all(bytes));
    if written.is_err() {
        for (path, _) in &files {
            remove_if_exists(path)?;
        }
    }
    written
}

fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Returns an index of version 2, and a reverse index.
fn encode_indexes(objects: &[PackedObject], pack_checksum: &RawOid) -> (Vec<u8>, Vec<u8>) {
    let mut sorted: Vec<(usize, &PackedObject)> = objects.iter().enumerate().collect();
    sorted.sort_unstable_by_key(|(_, object)| object.oid);
    let mut index = b"\xfftOc\0\0\0\x02".to_vec();
    let mut end = 0;
    for first_byte in 0..=u8::MAX {
        end += sorted[end..].iter().take_while(|(_, object)| object.oid[0] == first_byte).count();
        index.extend_from_slice(&(end as u32).to_be_bytes());
    }
    index.extend(sorted.iter().flat_map(|(_, object)| object.oid));
    index.extend(sorted.iter().flat_map(|(_, object)| object.crc.to_be_bytes()));
    index.extend(sorted.iter().flat_map(|(_, object)| object.offset.to_be_bytes()));
    let mut positions = vec![0; objects.len()];
    for (position, (nth, _)) in sorted.iter().enumerate() {
        positions[*nth] = position as u32;
    }
    // Version 1, with SHA-1.
    let mut reverse_index = b"RIDX\0\0\0\x01\0\0\0\x01".to_vec();
    reverse_index.extend(positions.iter().flat_map(|position| position.to_be_bytes()));
    for file in [&mut index, &mut reverse_index] {
        file.extend_from_slice(pack_checksum);
        let checksum = Sha1::digest(&file);
        file.extend_from_slice(&checksum);
    }
    (index, reverse_index)
}

//! A pack that is being received: it has its own folder, which is removed when the pack is no longer needed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::in_process::IndexedPack;
use super::pack_error::PackError;
use crate::layout::{IncomingFolder, Layout};

/// Packs up to this size stay in memory until they are checked: most pushes have a few kilobytes, and a file that is
/// written only to be read again costs more than it saves.
const MAX_MEMORY_BYTES: usize = 1024 * 1024;

/// Bytes of a pack's header: `PACK`, the version, the number of objects.
const HEADER_BYTES: usize = 12;

/// Bytes of a pack without objects: its header and a SHA-1.
const EMPTY_PACK_BYTES: u64 = 32;

/// Limits on a received pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackLimits {
    /// Bytes of the pack, both as it is sent and as it is stored.
    pub max_bytes: u64,
    /// Objects of the pack. A check uses a hundred bytes of memory for each.
    pub max_objects: u32,
    /// Time limit of each check, in seconds.
    pub check_secs: u64,
}

/// A folder `incoming/<n>`: an object directory that only the checks read. Dropping this value removes the folder,
/// unless it was renamed.
#[derive(Debug)]
pub struct Quarantine {
    folder: IncomingFolder,
    /// Objects that the client sent. Git may have appended delta bases from our pools.
    pub(super) sent_objects: u64,
    /// The objects, if the pack was indexed without a git process.
    pub(super) indexed: Option<IndexedPack>,
}

impl Quarantine {
    /// Creates an empty quarantine folder.
    pub fn create(layout: &Layout) -> io::Result<Self> {
        Ok(Self { folder: layout.create_incoming(&["pack"])?, sent_objects: 0, indexed: None })
    }

    /// Returns the name by which a git job refers to the pack.
    #[must_use]
    pub fn received_pack(&self) -> ReceivedPack {
        self.folder.received_pack()
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns whether there are no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent_objects == 0
    }

    /// Returns the bytes of the files.
    pub fn bytes(&self) -> io::Result<u64> {
        fs::read_dir(self.packs())?.map(|entry| Ok(entry?.metadata()?.len())).sum()
    }

    /// Returns the folder in which git writes packs.
    pub(super) fn packs(&self) -> PathBuf {
        self.folder().join("pack")
    }
}

/// The data after the commands of a push, or in the response to a fetch.
#[derive(Debug)]
pub enum PackData {
    /// No data: a push that only deletes refs.
    None,
    /// A pack without objects: all objects are present already.
    Empty,
    /// A pack.
    Pack(UncheckedPack),
}

/// A pack that was received completely and is not checked yet.
#[derive(Debug)]
pub struct UncheckedPack {
    /// Number of objects in its header.
    pub objects: u32,
    /// Bytes.
    pub bytes: u64,
    pub(super) body: SpooledBytes,
}

/// Where the bytes of a pack are.
#[derive(Debug)]
pub(super) enum SpooledBytes {
    Memory(Vec<u8>),
    File(PathBuf),
}

/// Receives the bytes of a pack, and rejects it as early as possible.
#[derive(Debug)]
pub struct PackSink {
    limits: PackLimits,
    /// The file for a pack that is too large for memory.
    path: PathBuf,
    bytes: u64,
    /// All bytes, or none once there is a file.
    buffer: Vec<u8>,
    file: Option<File>,
    header: HeaderState,
}

/// How far the header of a pack has been read.
#[derive(Clone, Copy, Debug)]
enum HeaderState {
    Incomplete,
    Complete { objects: u32 },
}

impl PackSink {
    /// Returns an empty sink.
    #[must_use]
    pub fn new(quarantine: &Quarantine, limits: PackLimits) -> Self {
        let path = quarantine.folder().join("body");
        Self { limits, path, bytes: 0, buffer: Vec::new(), file: None, header: HeaderState::Incomplete }
    }

    /// Adds some bytes.
    ///
    /// # Errors
    /// If the pack is too large or has too many objects, if its header is invalid, or if the disk cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.limits.max_bytes {
            return Err(PackError::TooLarge(self.limits.max_bytes));
        }
        if let Some(file) = &mut self.file {
            return Ok(file.write_all(bytes)?);
        }
        self.buffer.extend_from_slice(bytes);
        self.read_header()?;
        if self.buffer.len() > MAX_MEMORY_BYTES {
            let mut file = File::create(&self.path)?;
            file.write_all(&std::mem::take(&mut self.buffer))?;
            self.file = Some(file);
        }
        Ok(())
    }

    /// Returns the number of bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the pack.
    ///
    /// # Errors
    /// If the header is incomplete, or if a pack without objects has another size than such a pack has.
    pub fn finish(self) -> Result<PackData, PackError> {
        match self.header {
            HeaderState::Incomplete if self.bytes == 0 => Ok(PackData::None),
            HeaderState::Incomplete => Err(PackError::Format("its header is incomplete")),
            HeaderState::Complete { objects: 0 } if self.bytes == EMPTY_PACK_BYTES => Ok(PackData::Empty),
            HeaderState::Complete { objects: 0 } => Err(PackError::Format("a pack without objects has 32 bytes")),
            HeaderState::Complete { objects } => {
                let body =
                    if self.file.is_some() { SpooledBytes::File(self.path) } else { SpooledBytes::Memory(self.buffer) };
                Ok(PackData::Pack(UncheckedPack { objects, bytes: self.bytes, body }))
            }
        }
    }

    fn read_header(&mut self) -> Result<(), PackError> {
        let (HeaderState::Incomplete, Some(header)) = (self.header, self.buffer.first_chunk::<HEADER_BYTES>()) else {
            return Ok(());
        };
        let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if !header.starts_with(b"PACK") {
            return Err(PackError::Format("it does not begin with PACK"));
        }
        if number(4) != 2 {
            return Err(PackError::Format("its version is not 2"));
        }
        let (claimed, most) = (number(8), self.limits.max_objects);
        if claimed > most {
            return Err(PackError::TooManyObjects { claimed, most });
        }
        self.header = HeaderState::Complete { objects: claimed };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PackLimits = PackLimits { max_bytes: 4 * 1024 * 1024, max_objects: 100, check_secs: 10 };

    fn quarantine() -> (tempfile::TempDir, Layout, Quarantine) {
        let folder = tempfile::TempDir::new().expect("create a folder");
        let layout = Layout::open(folder.path()).expect("open a layout");
        let quarantine = Quarantine::create(&layout).expect("create a quarantine");
        (folder, layout, quarantine)
    }

    fn pack(objects: u32, length: usize) -> Vec<u8> {
        let mut bytes = b"PACK\0\0\0\x02".to_vec();
        bytes.extend_from_slice(&objects.to_be_bytes());
        bytes.resize(length, 7);
        bytes
    }

    fn receive(quarantine: &Quarantine, bytes: &[u8], chunk_size: usize) -> Result<PackData, PackError> {
        let mut sink = PackSink::new(quarantine, LIMITS);
        for part in bytes.chunks(chunk_size) {
            sink.write(part)?;
        }
        sink.finish()
    }

    #[test]
    fn header_is_read_from_chunks_of_any_size() {
        let (_folder, _layout, quarantine) = quarantine();
        for chunk_size in [1, 5, 12, 4_096] {
            let code = |bytes: &[u8]| receive(&quarantine, bytes, chunk_size).expect_err("rejected").code();
            assert_eq!(code(&pack(101, 40)), "E-PACK-OBJECTS");
            assert_eq!(code(b"PACX\0\0\0\x02\0\0\0\x01"), "E-PACK-FORMAT");
            assert_eq!(code(b"PACK\0\0\0\x03\0\0\0\x01"), "E-PACK-FORMAT");
            assert_eq!(code(b"PACK\0\0"), "E-PACK-FORMAT");
            assert_eq!(code(&pack(0, 33)), "E-PACK-FORMAT");
            assert!(matches!(receive(&quarantine, b"", chunk_size), Ok(PackData::None)));
            assert!(matches!(receive(&quarantine, &pack(0, 32), chunk_size), Ok(PackData::Empty)));
            let whole = receive(&quarantine, &pack(100, 50), chunk_size);
            assert!(matches!(whole, Ok(PackData::Pack(UncheckedPack { objects: 100, bytes: 50, .. }))), "{whole:?}");
        }
    }

    #[test]
    fn large_packs_go_to_disk_and_larger_ones_are_rejected() {
        let (_folder, _layout, quarantine) = quarantine();
        let bytes = pack(9, MAX_MEMORY_BYTES + 1);
        let Ok(PackData::Pack(UncheckedPack { body: SpooledBytes::File(path), .. })) =
            receive(&quarantine, &bytes, 65_536)
        else {
            panic!("the pack is not in a file")
        };
        assert_eq!(fs::read(path).expect("read the file"), bytes);
        let bytes = pack(9, MAX_MEMORY_BYTES);
        let small = receive(&quarantine, &bytes, 65_536);
        assert!(matches!(small, Ok(PackData::Pack(UncheckedPack { body: SpooledBytes::Memory(_), .. }))));
        let large = receive(&quarantine, &pack(9, 4 * 1024 * 1024 + 1), 65_536).expect_err("rejected");
        assert_eq!(large.code(), "E-PACK-TOO-LARGE");
    }

    #[test]
    fn full_disk_is_reported() {
        let (_folder, _layout, quarantine) = quarantine();
        std::os::unix::fs::symlink("/dev/full", quarantine.folder().join("body")).expect("create a link");
        let full = receive(&quarantine, &pack(9, MAX_MEMORY_BYTES + 1), 65_536).expect_err("rejected");
        assert_eq!(full.code(), "E-PACK-DISK-FULL");
    }

    #[test]
    fn dropped_quarantine_is_removed_unless_it_was_renamed() {
        let (folder, layout, first) = quarantine();
        let second = Quarantine::create(&layout).expect("create a quarantine");
        assert_ne!(first.received_pack(), second.received_pack());
        receive(&first, &pack(9, MAX_MEMORY_BYTES + 1), 65_536).expect("accepted");
        let staged = layout.received_pack(&ReceivedPack::Staged(3));
        fs::rename(second.folder(), &staged).expect("rename the folder");
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path().join("incoming")).expect("list a folder").count(), 0);
        assert!(staged.join("pack").is_dir());
    }
}

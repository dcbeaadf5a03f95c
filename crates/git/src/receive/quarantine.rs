//! A pack that is being received: a folder of its own, which is gone when nobody wants it any more.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{fs, io};

use grasp_core::admission::git_job::ReceivedPack;

use super::pack_error::PackProblem;
use crate::layout::Layout;

/// Packs up to this size stay in memory until they are checked: most pushes are a few kilobytes, and a file that is
/// written only to be read again costs more than it saves.
const IN_MEMORY: usize = 1024 * 1024;

/// Bytes of a pack's header: `PACK`, the version, the number of objects.
const HEADER: usize = 12;

/// Bytes of a pack without objects: its header and a SHA-1.
const EMPTY_PACK: u64 = 32;

/// How much a push may bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackLimits {
    /// Bytes of the pack, both as it comes and as it is kept.
    pub max_bytes: u64,
    /// Objects of the pack. Checking takes a hundred bytes of memory for each.
    pub max_objects: u32,
    /// Seconds that each check may take.
    pub check_secs: u64,
}

/// A folder `incoming/<n>`: an object directory that nobody reads but the checks. Dropping it removes the folder, unless
/// that was renamed away.
#[derive(Debug)]
pub struct Incoming {
    number: u64,
    folder: PathBuf,
    /// Objects that the client sent; git may have added some of ours, to which they are deltas.
    pub(super) sent: u64,
}

impl Incoming {
    /// Makes an empty one.
    pub fn create(layout: &Layout) -> io::Result<Self> {
        let number = layout.number();
        let folder = layout.received_pack(&ReceivedPack::Incoming(number));
        fs::create_dir(&folder)?;
        let incoming = Self { number, folder, sent: 0 };
        fs::create_dir(incoming.packs())?;
        Ok(incoming)
    }

    /// The name under which an order may ask for it.
    #[must_use]
    pub fn received_pack(&self) -> ReceivedPack {
        ReceivedPack::Incoming(self.number)
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether it holds no objects.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sent == 0
    }

    /// Bytes that its files take.
    pub fn bytes(&self) -> io::Result<u64> {
        fs::read_dir(self.packs())?.map(|entry| Ok(entry?.metadata()?.len())).sum()
    }

    /// Where git puts its packs.
    pub(super) fn packs(&self) -> PathBuf {
        self.folder.join("pack")
    }

    fn body(&self) -> PathBuf {
        self.folder.join("body")
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // It may have become a staged upload; and what cannot be removed now is removed at the next start.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What came after the commands.
#[derive(Debug)]
pub enum Received {
    /// Nothing: a push that only deletes.
    Nothing,
    /// A pack without objects: everything is here already.
    Empty,
    /// A pack.
    Pack(Pack),
}

/// A pack that is complete and unchecked.
#[derive(Debug)]
pub struct Pack {
    /// Objects, as its header says.
    pub objects: u32,
    /// Bytes.
    pub bytes: u64,
    pub(super) body: Body,
}

/// Where the bytes of a pack are.
#[derive(Debug)]
pub(super) enum Body {
    Memory(Vec<u8>),
    File(PathBuf),
}

/// Takes the bytes of a pack as they come, and refuses as early as it can.
#[derive(Debug)]
pub struct PackSink {
    limits: PackLimits,
    /// Where it goes when it outgrows memory.
    path: PathBuf,
    bytes: u64,
    /// All bytes, or those that are not in the file yet.
    buffer: Vec<u8>,
    file: Option<File>,
    header: Header,
}

/// The header of a pack.
#[derive(Clone, Copy, Debug)]
enum Header {
    Unread,
    Objects(u32),
}

impl PackSink {
    /// An empty one.
    #[must_use]
    pub fn new(incoming: &Incoming, limits: PackLimits) -> Self {
        let path = incoming.body();
        Self { limits, path, bytes: 0, buffer: Vec::new(), file: None, header: Header::Unread }
    }

    /// Takes some bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), PackProblem> {
        self.bytes += bytes.len() as u64;
        if self.bytes > self.limits.max_bytes {
            return Err(PackProblem::TooLarge(self.limits.max_bytes));
        }
        if let Some(file) = &mut self.file {
            return Ok(file.write_all(bytes)?);
        }
        self.buffer.extend_from_slice(bytes);
        self.read_header()?;
        if self.buffer.len() > IN_MEMORY {
            let mut file = File::create(&self.path)?;
            file.write_all(&std::mem::take(&mut self.buffer))?;
            self.file = Some(file);
        }
        Ok(())
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// There is no more to come.
    pub fn finish(self) -> Result<Received, PackProblem> {
        match self.header {
            Header::Unread if self.bytes == 0 => Ok(Received::Nothing),
            Header::Unread => Err(PackProblem::Format("it ends within its header")),
            Header::Objects(0) if self.bytes == EMPTY_PACK => Ok(Received::Empty),
            Header::Objects(0) => Err(PackProblem::Format("a pack without objects has 32 bytes")),
            Header::Objects(objects) => {
                let body = if self.file.is_some() { Body::File(self.path) } else { Body::Memory(self.buffer) };
                Ok(Received::Pack(Pack { objects, bytes: self.bytes, body }))
            }
        }
    }

    fn read_header(&mut self) -> Result<(), PackProblem> {
        let (Header::Unread, Some(header)) = (self.header, self.buffer.first_chunk::<HEADER>()) else { return Ok(()) };
        let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if !header.starts_with(b"PACK") {
            return Err(PackProblem::Format("it does not begin with PACK"));
        }
        if number(4) != 2 {
            return Err(PackProblem::Format("its version is not 2"));
        }
        let (claimed, most) = (number(8), self.limits.max_objects);
        if claimed > most {
            return Err(PackProblem::TooManyObjects { claimed, most });
        }
        self.header = Header::Objects(claimed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PackLimits = PackLimits { max_bytes: 4 * 1024 * 1024, max_objects: 100, check_secs: 10 };

    fn incoming() -> (tempfile::TempDir, Layout, Incoming) {
        let folder = tempfile::TempDir::new().expect("a folder");
        let layout = Layout::open(folder.path()).expect("opens");
        let incoming = Incoming::create(&layout).expect("is made");
        (folder, layout, incoming)
    }

    fn pack(objects: u32, length: usize) -> Vec<u8> {
        let mut bytes = b"PACK\0\0\0\x02".to_vec();
        bytes.extend_from_slice(&objects.to_be_bytes());
        bytes.resize(length, 7);
        bytes
    }

    fn take(incoming: &Incoming, bytes: &[u8], piece: usize) -> Result<Received, PackProblem> {
        let mut sink = PackSink::new(incoming, LIMITS);
        for part in bytes.chunks(piece) {
            sink.write(part)?;
        }
        sink.finish()
    }

    #[test]
    fn the_header_is_read_whatever_the_pieces() {
        let (_folder, _layout, incoming) = incoming();
        for piece in [1, 5, 12, 4_096] {
            let code = |bytes: &[u8]| take(&incoming, bytes, piece).expect_err("refused").code();
            assert_eq!(code(&pack(101, 40)), "E-PACK-OBJECTS");
            assert_eq!(code(b"PACX\0\0\0\x02\0\0\0\x01"), "E-PACK-FORMAT");
            assert_eq!(code(b"PACK\0\0\0\x03\0\0\0\x01"), "E-PACK-FORMAT");
            assert_eq!(code(b"PACK\0\0"), "E-PACK-FORMAT");
            assert_eq!(code(&pack(0, 33)), "E-PACK-FORMAT");
            assert!(matches!(take(&incoming, b"", piece), Ok(Received::Nothing)));
            assert!(matches!(take(&incoming, &pack(0, 32), piece), Ok(Received::Empty)));
            let whole = take(&incoming, &pack(100, 50), piece);
            assert!(matches!(whole, Ok(Received::Pack(Pack { objects: 100, bytes: 50, .. }))), "{whole:?}");
        }
    }

    #[test]
    fn large_packs_go_to_disk_and_larger_ones_are_refused() {
        let (_folder, _layout, incoming) = incoming();
        let bytes = pack(9, IN_MEMORY + 1);
        let Ok(Received::Pack(Pack { body: Body::File(path), .. })) = take(&incoming, &bytes, 65_536) else {
            panic!("a file")
        };
        assert_eq!(fs::read(path).expect("reads"), bytes);
        let bytes = pack(9, IN_MEMORY);
        let small = take(&incoming, &bytes, 65_536);
        assert!(matches!(small, Ok(Received::Pack(Pack { body: Body::Memory(_), .. }))));
        let large = take(&incoming, &pack(9, 4 * 1024 * 1024 + 1), 65_536).expect_err("refused");
        assert_eq!(large.code(), "E-PACK-TOO-LARGE");
    }

    #[test]
    fn a_full_disk_is_told() {
        let (_folder, _layout, incoming) = incoming();
        std::os::unix::fs::symlink("/dev/full", incoming.body()).expect("links");
        let full = take(&incoming, &pack(9, IN_MEMORY + 1), 65_536).expect_err("refused");
        assert_eq!(full.code(), "E-PACK-DISK-FULL");
    }

    #[test]
    fn nothing_is_left_and_what_was_renamed_stays() {
        let (folder, layout, first) = incoming();
        let second = Incoming::create(&layout).expect("is made");
        assert_ne!(first.received_pack(), second.received_pack());
        take(&first, &pack(9, IN_MEMORY + 1), 65_536).expect("is taken");
        let staged = layout.received_pack(&ReceivedPack::Staged(3));
        fs::rename(second.folder(), &staged).expect("moves");
        drop((first, second));
        assert_eq!(fs::read_dir(folder.path().join("incoming")).expect("reads").count(), 0);
        assert!(staged.join("pack").is_dir());
    }
}

//! Checksums of files in a backup.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::{fmt, io};

use grasp_core::nostr::hex;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Bytes of the checksum at the end of git's files.
const TRAILER_BYTES: usize = 20;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 128 * 1024;

/// The checksum of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileChecksum {
    /// The SHA-256 of the file.
    Sha256([u8; 32]),
    /// Git's own checksum: the file ends with the SHA-1 of everything before. It can be read without the rest of the
    /// file.
    GitTrailer([u8; TRAILER_BYTES]),
}

/// Computes the checksum of a file from its bytes.
pub struct ChecksumWriter {
    sha256: Sha256,
    /// The SHA-1 of all bytes before `last`.
    sha1: Sha1,
    /// The last bytes, which may be the trailer.
    last: Vec<u8>,
    /// Whether the file ends with git's checksum.
    has_trailer: bool,
}

impl FileChecksum {
    /// Returns the checksum of a file. For a file of git, the checksum at its end is not verified.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if !has_trailer(path) {
            return ChecksumWriter::read(path, file)?.finish();
        }
        file.seek(SeekFrom::End(-(TRAILER_BYTES as i64)))?;
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact(&mut trailer)?;
        Ok(Self::GitTrailer(trailer))
    }

    /// Reads a file and returns whether it has this checksum.
    pub fn matches_file(&self, path: &Path) -> io::Result<bool> {
        Ok(ChecksumWriter::read(path, File::open(path)?)?.finish().is_ok_and(|checksum| checksum == *self))
    }

    /// Parses the text that [`Display`](fmt::Display) writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("sha256", digits) => hex::decode(digits).map(Self::Sha256),
            ("git", digits) => hex::decode(digits).map(Self::GitTrailer),
            _ => None,
        }
    }
}

impl fmt::Display for FileChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(bytes) => write!(f, "sha256:{}", hex::encode(bytes)),
            Self::GitTrailer(bytes) => write!(f, "git:{}", hex::encode(bytes)),
        }
    }
}

impl ChecksumWriter {
    /// Starts the checksum of a file with this name, which determines the kind of checksum.
    #[must_use]
    pub fn new(name: &Path) -> Self {
        Self { sha256: Sha256::new(), sha1: Sha1::new(), last: Vec::new(), has_trailer: has_trailer(name) }
    }

    fn read(name: &Path, mut file: File) -> io::Result<Self> {
        let mut writer = Self::new(name);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(writer),
                read => writer.update(&buffer[..read]),
            }
        }
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if !self.has_trailer {
            return self.sha256.update(bytes);
        }
        self.last.extend_from_slice(bytes);
        let ready = self.last.len().saturating_sub(TRAILER_BYTES);
        self.sha1.update(&self.last[..ready]);
        self.last.drain(..ready);
    }

    /// Returns the checksum.
    ///
    /// # Errors
    /// If the checksum at the end of a file of git is wrong.
    pub fn finish(self) -> io::Result<FileChecksum> {
        if !self.has_trailer {
            return Ok(FileChecksum::Sha256(self.sha256.finalize().into()));
        }
        let found: [u8; TRAILER_BYTES] = self.sha1.finalize().into();
        if self.last != found {
            return Err(io::Error::new(ErrorKind::InvalidData, "the checksum at the end of the file is wrong"));
        }
        Ok(FileChecksum::GitTrailer(found))
    }
}

/// Returns whether git writes a checksum at the end of files with this name.
fn has_trailer(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_pack_file = [".pack", ".idx", ".rev", ".mtimes"].iter().any(|extension| name.ends_with(extension));
    (name.starts_with("pack-") && is_pack_file) || name.starts_with("multi-pack-index") || name == "commit-graph"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_parsed_and_detect_a_changed_bit() {
        let folder = tempfile::TempDir::new().expect("create a folder");
        let plain = folder.path().join("packed-refs");
        let body = vec![7_u8; 300_000];
        std::fs::write(&plain, &body).expect("write a file");
        let packed = folder.path().join("pack-1.pack");
        let mut bytes = body.clone();
        bytes.extend_from_slice(&Sha1::digest(&body));
        std::fs::write(&packed, &bytes).expect("write a file");
        for (path, prefix) in [(&plain, "sha256:"), (&packed, "git:")] {
            let checksum = FileChecksum::from_file(path).expect("read a file");
            assert!(checksum.to_string().starts_with(prefix));
            assert_eq!(FileChecksum::parse(&checksum.to_string()), Some(checksum));
            assert!(checksum.matches_file(path).expect("read a file"));
            let mut changed = std::fs::read(path).expect("read a file");
            changed[200_000] ^= 1;
            std::fs::write(path, &changed).expect("write a file");
            assert!(!checksum.matches_file(path).expect("read a file"));
        }
        for invalid in ["", "sha256:", "sha256:zz", "md5:00", "git:00"] {
            assert_eq!(FileChecksum::parse(invalid), None);
        }
        std::fs::write(&packed, b"short").expect("write a file");
        assert!(FileChecksum::from_file(&packed).is_err());
    }
}

//! How it is known that the bytes of a file are right.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;
use std::{fmt, io};

use grasp_core::nostr::hex;
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Bytes of the checksum at the end of git's files.
const TRAILER: usize = 20;

/// Bytes that are read at once.
const PIECE: usize = 128 * 1024;

/// What the bytes of a file must come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// The SHA-256 of all of it.
    Whole([u8; 32]),
    /// Git's own: the file ends in the SHA-1 of what is before. To know it costs no reading of the rest.
    Trailer([u8; TRAILER]),
}

/// Takes in the bytes of a file and says in the end whether they are right.
pub struct Sealer {
    whole: Sha256,
    /// Of all bytes but the last few.
    before: Sha1,
    last: Vec<u8>,
    /// Whether it is a file of git's.
    by_trailer: bool,
}

impl Seal {
    /// The seal of a file. One of git's is believed to be what it says it is.
    pub fn of(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if !has_trailer(path) {
            let mut sealer = Sealer::new(path);
            read_all(&mut file, |piece| {
                sealer.take(piece);
                Ok(())
            })?;
            return sealer.finish();
        }
        file.seek(SeekFrom::End(-(TRAILER as i64)))?;
        let mut trailer = [0; TRAILER];
        file.read_exact(&mut trailer)?;
        Ok(Self::Trailer(trailer))
    }

    /// Reads a file and says whether its bytes come to this.
    pub fn fits(&self, path: &Path) -> io::Result<bool> {
        let mut sealer = Sealer::new(path);
        read_all(&mut File::open(path)?, |piece| {
            sealer.take(piece);
            Ok(())
        })?;
        Ok(sealer.finish().is_ok_and(|seal| seal == *self))
    }

    /// Reads what [`Display`](fmt::Display) wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once(':')? {
            ("sha256", digits) => hex::decode(digits).map(Self::Whole),
            ("git", digits) => hex::decode(digits).map(Self::Trailer),
            _ => None,
        }
    }
}

impl fmt::Display for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "sha256:{}", hex::encode(bytes)),
            Self::Trailer(bytes) => write!(f, "git:{}", hex::encode(bytes)),
        }
    }
}

impl Sealer {
    /// For a file of this name.
    #[must_use]
    pub fn new(name: &Path) -> Self {
        Self { whole: Sha256::new(), before: Sha1::new(), last: Vec::new(), by_trailer: has_trailer(name) }
    }

    /// The next bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        if !self.by_trailer {
            return self.whole.update(bytes);
        }
        self.last.extend_from_slice(bytes);
        let ready = self.last.len().saturating_sub(TRAILER);
        self.before.update(&self.last[..ready]);
        self.last.drain(..ready);
    }

    /// What they come to. A file of git's whose checksum is wrong comes to nothing.
    pub fn finish(self) -> io::Result<Seal> {
        if !self.by_trailer {
            return Ok(Seal::Whole(self.whole.finalize().into()));
        }
        let found: [u8; TRAILER] = self.before.finalize().into();
        if self.last != found {
            return Err(io::Error::new(ErrorKind::InvalidData, "the checksum at its end is wrong"));
        }
        Ok(Seal::Trailer(found))
    }
}

/// Whether git ends files of this name in a checksum.
fn has_trailer(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_part = [".pack", ".idx", ".rev", ".mtimes"].iter().any(|part| name.ends_with(part));
    (name.starts_with("pack-") && is_part) || name.starts_with("multi-pack-index") || name == "commit-graph"
}

fn read_all(file: &mut File, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            read => take(&piece[..read])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seals_are_written_and_read_and_notice_a_changed_bit() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let plain = folder.path().join("packed-refs");
        let body = vec![7_u8; 300_000];
        std::fs::write(&plain, &body).expect("writes");
        let packed = folder.path().join("pack-1.pack");
        let mut bytes = body.clone();
        bytes.extend_from_slice(&Sha1::digest(&body));
        std::fs::write(&packed, &bytes).expect("writes");
        for (path, what) in [(&plain, "sha256:"), (&packed, "git:")] {
            let seal = Seal::of(path).expect("a seal");
            assert!(seal.to_string().starts_with(what));
            assert_eq!(Seal::parse(&seal.to_string()), Some(seal));
            assert!(seal.fits(path).expect("reads"));
            let mut changed = std::fs::read(path).expect("reads");
            changed[200_000] ^= 1;
            std::fs::write(path, &changed).expect("writes");
            assert!(!seal.fits(path).expect("reads"));
        }
        for nonsense in ["", "sha256:", "sha256:zz", "md5:00", "git:00"] {
            assert_eq!(Seal::parse(nonsense), None);
        }
        std::fs::write(&packed, b"short").expect("writes");
        assert!(Seal::of(&packed).is_err());
    }
}

//! Builds packs object by object, valid or not.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha1::{Digest, Sha1};

pub(crate) const COMMIT: u8 = 1;
pub(crate) const TREE: u8 = 2;
pub(crate) const BLOB: u8 = 3;
pub(crate) const TAG: u8 = 4;
pub(crate) const OFS_DELTA: u8 = 6;
pub(crate) const REF_DELTA: u8 = 7;

/// A pack that is being built.
pub(crate) struct PackBuilder {
    pub(crate) bytes: Vec<u8>,
    pub(crate) objects: u32,
}

impl PackBuilder {
    pub(crate) fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), objects: 0 }
    }

    /// Appends an object with any claimed size, and returns its offset.
    pub(crate) fn object(&mut self, kind: u8, claimed: u64, base: &[u8], content: &[u8]) -> usize {
        let at = self.bytes.len();
        let mut first = kind << 4 | (claimed & 15) as u8;
        let mut size = claimed >> 4;
        while size > 0 {
            self.bytes.push(first | 0x80);
            first = (size & 0x7f) as u8;
            size >>= 7;
        }
        self.bytes.push(first);
        self.bytes.extend_from_slice(base);
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::default());
        encoder.write_all(content).expect("compress");
        encoder.finish().expect("compress");
        self.objects += 1;
        at
    }

    /// Appends a delta whose base is at an offset, and returns its offset.
    pub(crate) fn ofs_delta(&mut self, base: usize, delta: &[u8]) -> usize {
        let mut distance = self.bytes.len() - base;
        let mut encoded = vec![(distance & 0x7f) as u8];
        while distance > 0x7f {
            distance = (distance >> 7) - 1;
            encoded.insert(0, 0x80 | (distance & 0x7f) as u8);
        }
        self.object(OFS_DELTA, delta.len() as u64, &encoded, delta)
    }

    /// Appends a delta that expands to `copies` times its base.
    pub(crate) fn copies(&mut self, base: usize, base_size: u64, copies: u64) -> usize {
        let mut delta = Vec::new();
        varint(&mut delta, base_size);
        varint(&mut delta, base_size * copies);
        let size = (base_size as u32).to_le_bytes();
        for _ in 0..copies {
            delta.extend_from_slice(&[0xf0, size[0], size[1], size[2]]);
        }
        self.ofs_delta(base, &delta)
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        self.bytes.extend([0; 20]);
        fix_checksum(&mut self.bytes);
        self.bytes
    }
}

/// Replaces the checksum at the end of a pack by the right one.
pub(crate) fn fix_checksum(pack: &mut [u8]) {
    let (content, checksum) = pack.split_at_mut(pack.len() - 20);
    checksum.copy_from_slice(&Sha1::digest(content));
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Returns a delta that copies the common beginning and end of two contents.
pub(crate) fn delta(base: &[u8], result: &[u8]) -> Vec<u8> {
    let prefix = base.iter().zip(result).take_while(|(one, other)| one == other).count();
    let (base_rest, result_rest) = (&base[prefix..], &result[prefix..]);
    let suffix = base_rest.iter().rev().zip(result_rest.iter().rev()).take_while(|(one, other)| one == other).count();
    let mut delta = Vec::new();
    varint(&mut delta, base.len() as u64);
    varint(&mut delta, result.len() as u64);
    let copy = |delta: &mut Vec<u8>, offset: usize, length: usize| {
        if length > 0 {
            delta.push(0xff);
            delta.extend_from_slice(&(offset as u32).to_le_bytes());
            delta.extend_from_slice(&(length as u32).to_le_bytes()[..3]);
        }
    };
    copy(&mut delta, 0, prefix);
    for part in result_rest[..result_rest.len() - suffix].chunks(127) {
        delta.push(part.len() as u8);
        delta.extend_from_slice(part);
    }
    copy(&mut delta, base.len() - suffix, suffix);
    delta
}

//! Entries of a pack: their headers, their compressed content, and deltas.
//!
//! What is accepted here is accepted by git too. Data that git may accept or not is `None`: the caller leaves the
//! decision to git.

use flate2::{Decompress, FlushDecompress, Status};

use crate::objects::{OID_BYTES, ObjectKind, RawOid};

/// The smallest delta that git applies, in bytes.
const MIN_DELTA_BYTES: usize = 4;

/// The first byte of compressed data as git writes it: deflate with the largest window. Other values can be valid, but
/// zlib libraries treat them differently.
const ZLIB_HEADER: u8 = 0x78;

/// Bytes that a copy instruction without a size copies.
const DEFAULT_COPY_BYTES: usize = 0x10000;

/// The beginning of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryHeader {
    pub(crate) kind: EntryKind,
    /// Bytes of the object or of the delta when unpacked.
    pub(crate) size: u64,
    /// Bytes of this header.
    pub(crate) header_bytes: usize,
}

/// What an entry contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    /// A whole object.
    Object(ObjectKind),
    /// A delta whose base is this many bytes before it in the same pack.
    OfsDelta(u64),
    /// A delta whose base has this id.
    RefDelta(RawOid),
}

impl EntryHeader {
    /// Reads the header at the beginning of some bytes.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (first, mut rest) = bytes.split_first()?;
        let mut size = u64::from(first & 0x0f);
        if first & 0x80 != 0 {
            size |= read_varint(&mut rest, 4)?;
        }
        let kind = match first >> 4 & 7 {
            1 => EntryKind::Object(ObjectKind::Commit),
            2 => EntryKind::Object(ObjectKind::Tree),
            3 => EntryKind::Object(ObjectKind::Blob),
            4 => EntryKind::Object(ObjectKind::Tag),
            6 => EntryKind::OfsDelta(read_distance(&mut rest)?),
            7 => {
                let (base, after) = rest.split_first_chunk::<OID_BYTES>()?;
                rest = after;
                EntryKind::RefDelta(*base)
            }
            _ => return None,
        };
        Some(Self { kind, size, header_bytes: bytes.len() - rest.len() })
    }

    /// Returns the header of an entry with a whole object.
    pub(crate) fn encode(kind: ObjectKind, size: u64) -> Vec<u8> {
        let number: u8 = match kind {
            ObjectKind::Commit => 1,
            ObjectKind::Tree => 2,
            ObjectKind::Blob => 3,
            ObjectKind::Tag => 4,
        };
        let mut bytes = Vec::new();
        let mut byte = number << 4 | (size & 0x0f) as u8;
        let mut rest = size >> 4;
        while rest > 0 {
            bytes.push(byte | 0x80);
            byte = (rest & 0x7f) as u8;
            rest >>= 7;
        }
        bytes.push(byte);
        bytes
    }
}

fn read_byte(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

/// Reads a number of seven bits per byte, the lowest first, as bits from `shift` on.
fn read_varint(bytes: &mut &[u8], mut shift: u32) -> Option<u64> {
    let mut value = 0;
    loop {
        let byte = read_byte(bytes)?;
        let bits = u64::from(byte & 0x7f);
        value |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
    }
}

/// Reads how far before a delta its base is.
fn read_distance(bytes: &mut &[u8]) -> Option<u64> {
    let mut byte = read_byte(bytes)?;
    let mut distance = u64::from(byte & 0x7f);
    while byte & 0x80 != 0 {
        byte = read_byte(bytes)?;
        distance = (distance + 1).checked_mul(128)? + u64::from(byte & 0x7f);
    }
    Some(distance)
}

/// Inflates the contents of entries one after the other.
pub(crate) struct Inflater(Decompress);

impl Inflater {
    pub(crate) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Inflates data of exactly `size` bytes. Returns it, and how many bytes of the input it takes.
    pub(crate) fn inflate(&mut self, input: &[u8], size: usize) -> Option<(Vec<u8>, usize)> {
        if input.first() != Some(&ZLIB_HEADER) {
            return None;
        }
        self.0.reset(true);
        // One more byte, so that longer data is noticed.
        let mut data = vec![0; size + 1];
        loop {
            let (read, written) = (self.0.total_in() as usize, self.0.total_out() as usize);
            let status = self.0.decompress(&input[read..], &mut data[written..], FlushDecompress::Finish).ok()?;
            let has_progress = self.0.total_in() as usize > read || self.0.total_out() as usize > written;
            match status {
                Status::StreamEnd if self.0.total_out() == size as u64 => break,
                Status::StreamEnd => return None,
                _ if has_progress && self.0.total_out() <= size as u64 => {}
                _ => return None,
            }
        }
        data.truncate(size);
        Some((data, self.0.total_in() as usize))
    }
}

/// Returns the sizes of the base and of the result that a delta declares.
pub(crate) fn delta_sizes(delta: &[u8]) -> Option<(u64, u64)> {
    let mut rest = delta;
    Some((read_varint(&mut rest, 0)?, read_varint(&mut rest, 0)?))
}

/// Applies a delta to its base. The caller limits the size of the result, see [`delta_sizes`].
pub(crate) fn apply_delta(base: &[u8], delta: &[u8]) -> Option<Vec<u8>> {
    let mut rest = delta;
    let (base_size, size) = (read_varint(&mut rest, 0)?, usize::try_from(read_varint(&mut rest, 0)?).ok()?);
    if delta.len() < MIN_DELTA_BYTES || base_size != base.len() as u64 {
        return None;
    }
    let mut result = Vec::with_capacity(size);
    while let Some(instruction) = read_byte(&mut rest) {
        let part = if instruction & 0x80 != 0 {
            let mut parameter = |bits: std::ops::Range<u8>| {
                let mut value = 0;
                for (nth, bit) in bits.enumerate() {
                    if instruction & 1 << bit != 0 {
                        value |= usize::from(read_byte(&mut rest)?) << (8 * nth);
                    }
                }
                Some(value)
            };
            let (offset, length) = (parameter(0..4)?, parameter(4..7)?);
            let length = if length == 0 { DEFAULT_COPY_BYTES } else { length };
            base.get(offset..offset.checked_add(length)?)?
        } else if instruction != 0 {
            let (inserted, after) = rest.split_at_checked(usize::from(instruction))?;
            rest = after;
            inserted
        } else {
            return None;
        };
        if part.len() > size - result.len() {
            return None;
        }
        result.extend_from_slice(part);
    }
    (result.len() == size).then_some(result)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    #[test]
    fn headers_are_read_as_they_are_written() {
        for size in [0, 1, 15, 16, 127, 2_047, 2_048, 1 << 20, u64::from(u32::MAX)] {
            for kind in [ObjectKind::Commit, ObjectKind::Tree, ObjectKind::Blob, ObjectKind::Tag] {
                let mut bytes = EntryHeader::encode(kind, size);
                let header = EntryHeader { kind: EntryKind::Object(kind), size, header_bytes: bytes.len() };
                bytes.extend_from_slice(b"rest");
                assert_eq!(EntryHeader::read(&bytes), Some(header));
            }
        }
        let ofs = EntryHeader { kind: EntryKind::OfsDelta(128), size: 5, header_bytes: 3 };
        assert_eq!(EntryHeader::read(&[0x65, 0x80, 0x00, 9]), Some(ofs));
        let with_ref = EntryHeader { kind: EntryKind::RefDelta([7; 20]), size: 5, header_bytes: 21 };
        assert_eq!(EntryHeader::read(&[&[0x75][..], &[7; 22]].concat()), Some(with_ref));
        for malformed in [&[][..], &[0x05], &[0x55, 1], &[0xb5], &[0x65], &[0x65, 0x80], &[0x75, 1, 2]] {
            assert_eq!(EntryHeader::read(malformed), None, "{malformed:?}");
        }
        assert_eq!(EntryHeader::read(&[&[0xbf][..], &[0xff; 9], &[1]].concat()), None, "more than 64 bits");
    }

    #[test]
    fn data_must_have_the_declared_size() {
        let mut inflater = Inflater::new();
        for size in [0, 1, 100, 100_000] {
            let content: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&content).expect("compress");
            let mut bytes = encoder.finish().expect("compress");
            let length = bytes.len();
            bytes.extend_from_slice(b"rest");
            assert_eq!(inflater.inflate(&bytes, size), Some((content, length)));
            assert_eq!(inflater.inflate(&bytes, size + 1), None);
            if size > 0 {
                assert_eq!(inflater.inflate(&bytes, size - 1), None);
                assert_eq!(inflater.inflate(&bytes, size / 2), None);
            }
            assert_eq!(inflater.inflate(&bytes[..length - 1], size), None, "truncated");
            bytes[length - 1] ^= 1;
            assert_eq!(inflater.inflate(&bytes, size), None, "wrong checksum");
        }
    }

    #[test]
    fn deltas_that_git_rejects_are_not_applied() {
        let apply = |delta: &[u8]| apply_delta(b"0123456789", delta);
        assert_eq!(apply(&[10, 4, 0x91, 2, 3, 1, b'x']).as_deref(), Some(&b"234x"[..]));
        assert_eq!(apply(&[10, 4, 4, b'a', b'b', b'c', b'd']).as_deref(), Some(&b"abcd"[..]));
        for malformed in [
            &[10, 4][..],
            &[10, 0, 0],
            &[9, 4, 4, b'a', b'b', b'c', b'd'],
            &[10, 4, 4, b'a', b'b', b'c'],
            &[10, 5, 4, b'a', b'b', b'c', b'd'],
            &[10, 3, 4, b'a', b'b', b'c', b'd'],
            &[10, 4, 0x91, 8, 4],
            &[10, 4, 0x91, 8],
            &[10, 4, 0, 4, b'a', b'b', b'c', b'd'],
            &[10, 4, 0x81, 0],
            &[10, 0x80, 0x80],
        ] {
            assert_eq!(apply(malformed), None, "{malformed:?}");
        }
    }
}

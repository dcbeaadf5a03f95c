//! Adds up the sizes that the objects of a received pack declare, before git unpacks them.
//!
//! A delta of forty bytes can expand to an object of the largest size, and a pack can have thousands of them: git would
//! check gigabytes for minutes. This module inflates the pack as it was sent, but resolves no delta.

use std::io;
use std::io::BufRead;

use flate2::{Decompress, FlushDecompress, Status};
use grasp_core::limits;

use super::pack_error::PackError;

/// Bytes of a pack's header.
const HEADER_BYTES: usize = 12;

/// Bytes that are inflated at a time.
const SCRATCH_BYTES: usize = 32 * 1024;

/// Bytes at the start of a delta that contain its two sizes: each has at most ten bytes.
const DELTA_SIZES_BYTES: usize = 20;

/// Object types of the pack format.
const OFS_DELTA: u8 = 6;
const REF_DELTA: u8 = 7;

/// Limits on the sizes that the objects of a pack declare.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeclaredSizeLimits {
    /// Largest object.
    pub(super) max_object_bytes: u64,
    /// All objects together.
    pub(super) max_total_bytes: u64,
}

impl DeclaredSizeLimits {
    /// Returns the limits of a pack of this size.
    pub(super) fn new(pack_bytes: u64, max_object_bytes: u64) -> Self {
        let expanded = pack_bytes.saturating_mul(limits::MAX_PACK_EXPANSION);
        let minimum = limits::MIN_UNPACKED_PACK_BYTES.max(max_object_bytes);
        Self { max_object_bytes, max_total_bytes: minimum.saturating_add(expanded) }
    }
}

/// Checks the sizes that the objects of a pack declare, and returns their sum. A delta counts with its result, and with
/// its base if that may not be in the pack. A truncated pack, or one with a wrong size, is read up to its first fault:
/// git finds the same fault before it resolves a delta.
///
/// # Errors
/// If an object or the sum exceeds a limit, if an object is malformed, or if the pack cannot be read.
pub(super) fn check_declared_sizes(
    pack: impl BufRead,
    objects: u32,
    limits: DeclaredSizeLimits,
) -> Result<u64, PackError> {
    let inflater = Inflater { pack, decompress: Decompress::new(true), scratch: vec![0; SCRATCH_BYTES] };
    let mut sizes = DeclaredSizes { inflater, limits, total: 0 };
    match sizes.read(objects) {
        Ok(()) | Err(ReadEnd::Malformed) => Ok(sizes.total),
        Err(ReadEnd::Rejected(error)) => Err(error),
    }
}

/// Why the rest of a pack is not read.
enum ReadEnd {
    /// The pack is malformed here.
    Malformed,
    Rejected(PackError),
}

impl From<io::Error> for ReadEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Malformed,
            _ => Self::Rejected(error.into()),
        }
    }
}

/// The sizes of the objects that have been read.
struct DeclaredSizes<R> {
    inflater: Inflater<R>,
    limits: DeclaredSizeLimits,
    total: u64,
}

impl<R: BufRead> DeclaredSizes<R> {
    fn read(&mut self, objects: u32) -> Result<(), ReadEnd> {
        self.inflater.pack.read_exact(&mut [0; HEADER_BYTES])?;
        for _ in 0..objects {
            self.read_object()?;
        }
        Ok(())
    }

    fn read_object(&mut self) -> Result<(), ReadEnd> {
        let first = self.inflater.byte()?;
        let mut size = u64::from(first & 0x0f);
        if first & 0x80 != 0 {
            size |= read_varint(4, || self.inflater.byte())?;
        }
        self.check_object(size)?;
        match first >> 4 & 7 {
            OFS_DELTA => while self.inflater.byte()? & 0x80 != 0 {},
            REF_DELTA => self.inflater.pack.read_exact(&mut [0; 20])?,
            _ => {
                self.add(size)?;
                self.inflater.inflate(size)?;
                return Ok(());
            }
        }
        let start = self.inflater.inflate(size)?;
        let mut start = start.iter().copied();
        // Git would notice this only after it has resolved other deltas.
        let no_sizes = || ReadEnd::Rejected(PackError::Format("a delta has no sizes"));
        let mut next = || start.next().ok_or_else(no_sizes);
        let (base, result) = (read_varint(0, &mut next)?, read_varint(0, &mut next)?);
        self.check_object(result)?;
        self.add(result)?;
        if first >> 4 & 7 == REF_DELTA { self.add(base) } else { Ok(()) }
    }

    fn check_object(&self, size: u64) -> Result<(), ReadEnd> {
        if size > self.limits.max_object_bytes { Err(ReadEnd::Rejected(PackError::ObjectTooLarge)) } else { Ok(()) }
    }

    fn add(&mut self, size: u64) -> Result<(), ReadEnd> {
        self.total = self.total.saturating_add(size);
        let most = self.limits.max_total_bytes;
        if self.total > most { Err(ReadEnd::Rejected(PackError::TooMuchUnpacked { most })) } else { Ok(()) }
    }
}

/// Reads a number of seven bits per byte, the lowest first, as bits from `shift` on. Git ignores an overflow.
fn read_varint(mut shift: u32, mut next: impl FnMut() -> Result<u8, ReadEnd>) -> Result<u64, ReadEnd> {
    let mut value = 0;
    loop {
        let byte = next()?;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits);
        let too_large = ReadEnd::Rejected(PackError::Format("an object declares a size of more than 64 bits"));
        value |= shifted.ok_or(too_large)?;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift += 7;
    }
}

/// Rejects data that cannot be inflated. Git is not asked: its library might accept what ours does not, and then the rest
/// of the pack would not be checked.
fn not_zlib() -> ReadEnd {
    ReadEnd::Rejected(PackError::Check("an object is not valid zlib data".to_owned()))
}

/// Reads a pack whose objects are compressed one by one.
struct Inflater<R> {
    pack: R,
    decompress: Decompress,
    scratch: Vec<u8>,
}

impl<R: BufRead> Inflater<R> {
    fn byte(&mut self) -> Result<u8, ReadEnd> {
        let mut byte = [0];
        self.pack.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    /// Inflates data of this size and returns its first bytes.
    fn inflate(&mut self, size: u64) -> Result<Vec<u8>, ReadEnd> {
        self.decompress.reset(true);
        let mut start = Vec::with_capacity(DELTA_SIZES_BYTES);
        loop {
            let input = self.pack.fill_buf()?;
            let (read_before, written_before) = (self.decompress.total_in(), self.decompress.total_out());
            let status = self.decompress.decompress(input, &mut self.scratch, FlushDecompress::None);
            let status = status.map_err(|_| not_zlib())?;
            let is_input_empty = input.is_empty();
            let read = (self.decompress.total_in() - read_before) as usize;
            let written = (self.decompress.total_out() - written_before) as usize;
            self.pack.consume(read);
            let missing = DELTA_SIZES_BYTES - start.len();
            start.extend_from_slice(&self.scratch[..written.min(missing)]);
            match status {
                Status::StreamEnd if self.decompress.total_out() == size => return Ok(start),
                Status::StreamEnd => return Err(ReadEnd::Malformed),
                _ if self.decompress.total_out() > size => return Err(ReadEnd::Malformed),
                _ if is_input_empty => return Err(ReadEnd::Malformed),
                _ if read + written == 0 => return Err(not_zlib()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::*;

    const LIMITS: DeclaredSizeLimits = DeclaredSizeLimits { max_object_bytes: 1_000, max_total_bytes: 2_000 };
    const BLOB: u8 = 3;

    fn varint(to: &mut Vec<u8>, mut value: u64) {
        while value > 0x7f {
            to.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        to.push(value as u8);
    }

    /// Returns an object: its type and declared size, what follows them, and its compressed content.
    fn object(kind: u8, declared: u64, base: &[u8], content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind << 4 | 0x80 | (declared & 0x0f) as u8];
        varint(&mut bytes, declared >> 4);
        bytes.extend_from_slice(base);
        let mut encoder = ZlibEncoder::new(bytes, Compression::default());
        encoder.write_all(content).expect("compress");
        encoder.finish().expect("compress")
    }

    fn blob(size: usize) -> Vec<u8> {
        object(BLOB, size as u64, b"", &vec![b'x'; size])
    }

    fn delta(kind: u8, place: &[u8], base: u64, result: u64) -> Vec<u8> {
        let mut content = Vec::new();
        varint(&mut content, base);
        varint(&mut content, result);
        content.extend_from_slice(&[0x90, 0x40]);
        object(kind, content.len() as u64, place, &content)
    }

    fn check(objects: &[Vec<u8>]) -> Result<u64, PackError> {
        let pack = [b"PACK\0\0\0\x02\0\0\0\x09".as_slice(), &objects.concat(), &[7; 20]].concat();
        // Buffers of any size give the same result.
        let results = [1, 7, 4_096].map(|capacity| {
            let reader = io::BufReader::with_capacity(capacity, pack.as_slice());
            check_declared_sizes(reader, u32::try_from(objects.len()).expect("small"), LIMITS)
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results[0].clone()
    }

    #[test]
    fn results_of_deltas_and_bases_outside_the_pack_count() {
        let ofs = |result| delta(OFS_DELTA, &[0x81, 0x02], 900, result);
        let with_ref = |result| delta(REF_DELTA, &[9; 20], 900, result);
        assert_eq!(check(&[blob(0), blob(1), blob(999)]), Ok(1_000));
        assert_eq!(check(&[blob(100), ofs(700), ofs(800)]), Ok(1_600));
        assert_eq!(check(&[blob(100), with_ref(1_000)]), Ok(2_000));
        let too_much = Err(PackError::TooMuchUnpacked { most: 2_000 });
        assert_eq!(check(&[blob(101), with_ref(1_000)]), too_much);
        assert_eq!(check(&[ofs(1_000), ofs(1_000), ofs(1)]), too_much);
        assert_eq!(check(&[blob(1_001)]), Err(PackError::ObjectTooLarge));
        assert_eq!(check(&[ofs(1_001)]), Err(PackError::ObjectTooLarge));
        assert_eq!(check(&[object(BLOB, u64::MAX, b"", b"x")]), Err(PackError::ObjectTooLarge));
    }

    #[test]
    fn overlong_sizes_are_rejected() {
        // Git would add the bits above the 64th to the lowest ones.
        let mut overlong = vec![BLOB << 4 | 0x8f];
        overlong.extend([0x80; 9]);
        overlong.push(1);
        let format = Err(PackError::Format("an object declares a size of more than 64 bits"));
        assert_eq!(check(&[overlong]), format);
        let content = [[0x80; 10].as_slice(), &[1, 1]].concat();
        assert_eq!(check(&[object(OFS_DELTA, 12, &[1], &content)]), format);
    }

    #[test]
    fn malformed_pack_is_read_up_to_its_fault() {
        let (good, huge) = (blob(10), blob(1_001));
        assert_eq!(
            check(&[good.clone(), object(BLOB, 10, b"", &[0; 500]), huge.clone()]),
            Ok(20),
            "more than declared"
        );
        assert_eq!(
            check(&[good.clone(), object(BLOB, 90, b"", &[0; 50]), huge.clone()]),
            Ok(100),
            "less than declared"
        );
        let mut damaged = blob(10);
        damaged[4] ^= 0xff;
        assert_eq!(check(&[good.clone(), damaged, huge.clone()]).expect_err("rejected").code(), "E-PACK-CHECK");
        let no_sizes = check(&[good.clone(), object(OFS_DELTA, 1, &[1], &[5]), huge]);
        assert_eq!(no_sizes, Err(PackError::Format("a delta has no sizes")));
        let pack = [b"PACK\0\0\0\x02\0\0\0\x09".as_slice(), &good, &good[..8]].concat();
        assert_eq!(check_declared_sizes(pack.as_slice(), 2, LIMITS), Ok(20), "truncated");
        assert_eq!(check_declared_sizes(b"PACK".as_slice(), 1, LIMITS), Ok(0));
    }
}

//! Small packs that expand to very large objects.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::support::{ClientRepo, LARGEST_OBJECT, ReceiveFixture};

/// Builds packs object by object, valid or not.
struct PackBuilder {
    bytes: Vec<u8>,
    objects: u32,
}

const BLOB: u8 = 3;
const OFS_DELTA: u8 = 6;

impl PackBuilder {
    fn new() -> Self {
        Self { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), objects: 0 }
    }

    /// Appends an object with any claimed size, and returns its offset.
    fn object(&mut self, kind: u8, claimed: u64, base: &[u8], content: &[u8]) -> usize {
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
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::fast());
        encoder.write_all(content).expect("compress");
        encoder.finish().expect("compress");
        self.objects += 1;
        at
    }

    /// Appends a delta that expands to `copies` times its base.
    fn copies(&mut self, base: usize, base_size: u64, copies: u64) -> usize {
        let mut delta = Vec::new();
        for mut size in [base_size, base_size * copies] {
            while size > 0x7f {
                delta.push((size & 0x7f) as u8 | 0x80);
                size >>= 7;
            }
            delta.push(size as u8);
        }
        let size = (base_size as u32).to_le_bytes();
        for _ in 0..copies {
            delta.extend_from_slice(&[0xf0, size[0], size[1], size[2]]);
        }
        let mut distance = self.bytes.len() - base;
        let mut encoded = vec![(distance & 0x7f) as u8];
        while distance > 0x7f {
            distance = (distance >> 7) - 1;
            encoded.insert(0, 0x80 | (distance & 0x7f) as u8);
        }
        self.object(OFS_DELTA, delta.len() as u64, &encoded, &delta)
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        let mut child =
            Command::new("sha1sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start sha1sum");
        child.stdin.take().expect("stdin is piped").write_all(&self.bytes).expect("write to the process");
        let output = child.wait_with_output().expect("wait for the process").stdout;
        let sum = output[..40].chunks_exact(2).map(|pair| std::str::from_utf8(pair).expect("UTF-8"));
        self.bytes.extend(sum.map(|pair| u8::from_str_radix(pair, 16).expect("hex")));
        self.bytes
    }
}

/// Far less time than unpacking would take.
const FAST: Duration = Duration::from_secs(5);

/// Checks that a pack is rejected quickly and leaves nothing behind, and returns the code.
fn rejection_code(bytes: &[u8]) -> &'static str {
    let fixture = ReceiveFixture::new();
    let started = Instant::now();
    let error = fixture.receive(bytes, &[]).expect_err("rejected");
    assert!(started.elapsed() < FAST, "{:?}: {error}", started.elapsed());
    assert!(fixture.is_clean());
    error.code()
}

#[test]
fn valid_built_pack_is_accepted() {
    let mut pack = PackBuilder::new();
    let base = pack.object(BLOB, 1_000, b"", &[b'x'; 1_000]);
    let middle = pack.copies(base, 1_000, 3);
    pack.copies(middle, 3_000, 4);
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let quarantine = fixture.receive(&pack.finish(), &[]).expect("a valid pack");
    let twelve = client.object("blob", &[b'x'; 12_000]);
    assert!(fixture.objects(quarantine.folder()).contains(&twelve));
}

#[test]
fn deltas_that_expand_to_gigabytes_are_rejected() {
    let mut pack = PackBuilder::new();
    let base = pack.object(BLOB, 65_536, b"", &[0; 65_536]);
    let middle = pack.copies(base, 65_536, 128);
    pack.copies(middle, 128 * 65_536, 256);
    let bytes = pack.finish();
    assert!(bytes.len() < 1_200, "{} bytes for two gigabytes", bytes.len());
    assert_eq!(rejection_code(&bytes), "E-PACK-OBJECT-TOO-LARGE");
}

#[test]
fn large_blob_that_compresses_well_is_rejected() {
    let size = LARGEST_OBJECT + 1;
    let mut pack = PackBuilder::new();
    pack.object(BLOB, size, b"", &vec![0; size as usize]);
    let bytes = pack.finish();
    assert!(bytes.len() < 100_000);
    assert_eq!(rejection_code(&bytes), "E-PACK-OBJECT-TOO-LARGE");
}

#[test]
fn blob_that_git_would_stream_is_rejected() {
    // By default git streams blobs above half a gigabyte, without the limit on allocations.
    let mut pack = PackBuilder::new();
    pack.object(BLOB, 600 << 20, b"", &[0; 65_536]);
    assert_eq!(rejection_code(&pack.finish()), "E-PACK-OBJECT-TOO-LARGE");
}

#[test]
fn wrong_object_count_is_rejected() {
    let mut pack = PackBuilder::new();
    pack.object(BLOB, 5, b"", b"hello");
    pack.objects = 9_000;
    assert_eq!(rejection_code(&pack.finish()), "E-PACK-CHECK");
    let mut pack = PackBuilder::new();
    pack.objects = u32::MAX;
    assert_eq!(rejection_code(&pack.finish()), "E-PACK-OBJECTS");
}

#[test]
fn duplicate_object_is_rejected() {
    let mut pack = PackBuilder::new();
    pack.object(BLOB, 5, b"", b"hello");
    pack.object(BLOB, 5, b"", b"hello");
    assert_eq!(rejection_code(&pack.finish()), "E-PACK-CHECK");
}

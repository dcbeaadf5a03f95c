//! Small packs that expand to very large objects.

use std::time::{Duration, Instant};

use super::pack_builder::{BLOB, PackBuilder};
use super::support::{ClientRepo, LARGEST_OBJECT, ReceiveFixture};

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

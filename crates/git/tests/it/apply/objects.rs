//! Lookups in pack indexes have the same results as git.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use grasp_git::objects::{ObjectKind, ObjectLookup};
use tempfile::TempDir;

use crate::git_folder::AuthorRepo;

#[test]
fn every_object_is_found_with_its_type() {
    let author = AuthorRepo::new();
    let pools = [TempDir::new().expect("create a folder"), TempDir::new().expect("create a folder")];
    let text: String = (0..2_000).map(|line| format!("{line}\n")).collect();
    // Many versions of one file become a chain of deltas; many objects make the index larger than one read.
    let mut tip = String::new();
    for version in 0..30 {
        tip = author.commit(&format!("{text}{version}\n"));
    }
    let first = author.git(&["rev-list", "--max-parents=0", "HEAD"]);
    let tag = author.tag("v1", &tip);
    author.pack(pools[0].path(), &[&first]);
    author.pack(pools[1].path(), &[&tag, &format!("^{first}")]);
    let folders: Vec<PathBuf> = pools.iter().map(|pool| pool.path().to_owned()).collect();
    let opened = ObjectLookup::open(&[folders.clone(), vec![PathBuf::from("/nonexistent")]].concat())
        .expect("open pack indexes");
    let listed =
        author.git(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype) %(deltabase)"]);
    for line in listed.lines() {
        let (oid, kind) = (&line[..40], line.split(' ').nth(1).expect("a type"));
        let expected = match kind {
            "commit" => ObjectKind::Commit,
            "tree" => ObjectKind::Tree,
            "blob" => ObjectKind::Blob,
            _ => ObjectKind::Tag,
        };
        assert!(opened.has(oid).expect("look up an object"), "{line}");
        assert_eq!(opened.kind(oid).expect("read an object type"), Some(expected), "{line}");
        let mut other = oid.to_owned();
        other.replace_range(39.., if oid.ends_with('0') { "1" } else { "0" });
        assert!(!opened.has(&other).expect("look up an object"), "{other}");
    }
    for oid in ["", "abc", &"f".repeat(40), &"0".repeat(40), &"a".repeat(64), &tip.to_uppercase()] {
        assert!(!opened.has(oid).expect("look up an object"), "{oid}");
        assert_eq!(opened.kind(oid).expect("read an object type"), None, "{oid}");
    }
    // The deltas above name their base by id; these name it by its distance.
    author.git(&["repack", "-a", "-d", "-f", "--quiet"]);
    let own = author.git(&["rev-parse", "--absolute-git-dir"]);
    let repacked = ObjectLookup::open(&[PathBuf::from(own).join("objects")]).expect("open pack indexes");
    for line in listed.lines() {
        assert_eq!(
            repacked.kind(&line[..40]).expect("read an object type"),
            opened.kind(&line[..40]).expect("read an object type"),
            "{line}"
        );
    }
}

#[test]
fn objects_are_found_after_their_pack_was_replaced() {
    let author = AuthorRepo::new();
    let one = author.commit("one");
    let pool = TempDir::new().expect("create a folder");
    author.pack(pool.path(), &[&one]);
    let opened = ObjectLookup::open(&[pool.path().to_owned()]).expect("open pack indexes");
    // As maintenance does: a new pack with the same objects and more is added, then the old one is removed.
    let two = author.commit("two");
    let old: Vec<PathBuf> = fs::read_dir(pool.path().join("pack"))
        .expect("list a folder")
        .map(|entry| entry.expect("read an entry").path())
        .collect();
    author.pack(pool.path(), &[&two]);
    old.iter().for_each(|path| fs::remove_file(path).expect("remove a file"));
    assert!(opened.has(&one).expect("look up an object"));
    assert_eq!(opened.kind(&one).expect("read an object type"), Some(ObjectKind::Commit));
    // An index without its pack file is ignored.
    let packs = fs::read_dir(pool.path().join("pack"))
        .expect("list a folder")
        .map(|entry| entry.expect("read an entry").path());
    packs
        .filter(|path| path.extension().is_some_and(|part| part == "pack"))
        .for_each(|path| fs::remove_file(path).expect("remove a file"));
    assert_eq!(opened.kind(&one).expect("read an object type"), None);
}

#[test]
fn objects_are_found_while_git_repacks() {
    let author = AuthorRepo::new();
    let one = author.commit("one");
    author.git(&["repack", "-a", "-d", "--quiet"]);
    author.git(&["prune-packed", "--quiet"]);
    let pool = PathBuf::from(author.git(&["rev-parse", "--absolute-git-dir"])).join("objects");
    let done = AtomicBool::new(false);
    let lookups = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut lookups = 0;
            while !done.load(Ordering::Relaxed) {
                let opened = ObjectLookup::open(std::slice::from_ref(&pool)).expect("open pack indexes");
                assert!(opened.has(&one).expect("look up an object"));
                assert_eq!(opened.kind(&one).expect("read an object type"), Some(ObjectKind::Commit));
                lookups += 1;
            }
            lookups
        });
        for number in 0..15 {
            author.commit(&number.to_string());
            author.git(&["repack", "-a", "-d", "--quiet"]);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("the object is always found")
    });
    assert!(lookups > 15, "{lookups}");
}

#[test]
fn invalid_index_is_named_in_the_error() {
    let pool = TempDir::new().expect("create a folder");
    fs::create_dir(pool.path().join("pack")).expect("create a folder");
    for bytes in [&b""[..], &[0; 2_000], b"\xfftOc\0\0\0\x02", &[&b"\xfftOc\0\0\0\x02"[..], &[1; 2_000]].concat()] {
        fs::write(pool.path().join("pack/pack-1.idx"), bytes).expect("write a file");
        let error = ObjectLookup::open(&[pool.path().to_owned()]).expect_err("an invalid index");
        assert!(error.to_string().contains("pack-1.idx"), "{error}");
    }
}

#[test]
fn many_packs_use_few_descriptors() {
    let author = AuthorRepo::new();
    let pool = TempDir::new().expect("create a folder");
    let mut tips = vec![author.commit("0")];
    author.pack(pool.path(), &[&tips[0]]);
    let first = fs::read_dir(pool.path().join("pack"))
        .expect("list a folder")
        .map(|entry| entry.expect("read an entry").path());
    let first: Vec<PathBuf> = first.collect();
    for copy in 0..400 {
        for path in &first {
            let extension = path.extension().and_then(|extension| extension.to_str()).expect("a file extension");
            fs::copy(path, pool.path().join(format!("pack/pack-{copy:040}.{extension}"))).expect("copy a file");
        }
    }
    tips.push(author.commit("1"));
    author.pack(pool.path(), &[&tips[1], &format!("^{}", tips[0])]);
    let opened = ObjectLookup::open(&[pool.path().to_owned()]).expect("open pack indexes");
    // Only files of this pool count: other tests of this process open files too.
    let folder = pool.path().canonicalize().expect("an absolute path");
    let descriptors =
        fs::read_dir("/proc/self/fd").expect("list descriptors").map(|entry| entry.expect("read an entry").path());
    let open = descriptors.filter(|path| fs::read_link(path).is_ok_and(|file| file.starts_with(&folder))).count();
    assert!(open < 300, "{open} descriptors");
    for tip in &tips {
        assert!(opened.has(tip).expect("look up an object"));
        assert_eq!(opened.kind(tip).expect("read an object type"), Some(ObjectKind::Commit));
    }
}

//! What the pack indexes say is what git says.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use grasp_git::objects::{Kind, Pools};
use tempfile::TempDir;

use crate::git_folder::Author;

#[test]
fn every_object_is_found_and_is_what_git_says() {
    let author = Author::new();
    let pools = [TempDir::new().expect("a folder"), TempDir::new().expect("a folder")];
    let text: String = (0..2_000).map(|line| format!("{line}\n")).collect();
    // Many versions of one file become a chain of deltas; many files fill the index beyond what is read at once.
    let mut tip = String::new();
    for version in 0..30 {
        tip = author.commit(&format!("{text}{version}\n"));
    }
    let first = author.git(&["rev-list", "--max-parents=0", "HEAD"]);
    let tag = author.tag("v1", &tip);
    author.pack(pools[0].path(), &[&first]);
    author.pack(pools[1].path(), &[&tag, &format!("^{first}")]);
    let folders: Vec<PathBuf> = pools.iter().map(|pool| pool.path().to_owned()).collect();
    let opened = Pools::open(&[folders.clone(), vec![PathBuf::from("/nonexistent")]].concat()).expect("opens");
    let listed =
        author.git(&["cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype) %(deltabase)"]);
    for line in listed.lines() {
        let (oid, kind) = (&line[..40], line.split(' ').nth(1).expect("a type"));
        let expected = match kind {
            "commit" => Kind::Commit,
            "tree" => Kind::Tree,
            "blob" => Kind::Blob,
            _ => Kind::Tag,
        };
        assert!(opened.has(oid).expect("reads"), "{line}");
        assert_eq!(opened.kind(oid).expect("reads"), Some(expected), "{line}");
        let mut other = oid.to_owned();
        other.replace_range(39.., if oid.ends_with('0') { "1" } else { "0" });
        assert!(!opened.has(&other).expect("reads"), "{other}");
    }
    for oid in ["", "abc", &"f".repeat(40), &"0".repeat(40), &"a".repeat(64), &tip.to_uppercase()] {
        assert!(!opened.has(oid).expect("reads"), "{oid}");
        assert_eq!(opened.kind(oid).expect("reads"), None, "{oid}");
    }
    // Those were deltas that name their base by id; these say how far back it lies.
    author.git(&["repack", "-a", "-d", "-f", "--quiet"]);
    let own = author.git(&["rev-parse", "--absolute-git-dir"]);
    let repacked = Pools::open(&[PathBuf::from(own).join("objects")]).expect("opens");
    for line in listed.lines() {
        assert_eq!(repacked.kind(&line[..40]).expect("reads"), opened.kind(&line[..40]).expect("reads"), "{line}");
    }
}

#[test]
fn packs_may_be_replaced_meanwhile() {
    let author = Author::new();
    let one = author.commit("one");
    let pool = TempDir::new().expect("a folder");
    author.pack(pool.path(), &[&one]);
    let opened = Pools::open(&[pool.path().to_owned()]).expect("opens");
    // Maintenance: a new pack with the same objects and one more, then the old one goes.
    let two = author.commit("two");
    let old: Vec<PathBuf> = fs::read_dir(pool.path().join("pack"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    author.pack(pool.path(), &[&two]);
    old.iter().for_each(|path| fs::remove_file(path).expect("goes"));
    assert!(opened.has(&one).expect("reads"));
    assert_eq!(opened.kind(&one).expect("reads"), Some(Kind::Commit));
    // An index without its pack is no pack.
    let packs = fs::read_dir(pool.path().join("pack")).expect("a folder").map(|entry| entry.expect("an entry").path());
    packs
        .filter(|path| path.extension().is_some_and(|part| part == "pack"))
        .for_each(|path| fs::remove_file(path).expect("goes"));
    assert_eq!(opened.kind(&one).expect("reads"), None);
}

#[test]
fn nothing_is_missed_while_git_repacks() {
    let author = Author::new();
    let one = author.commit("one");
    author.git(&["repack", "-a", "-d", "--quiet"]);
    author.git(&["prune-packed", "--quiet"]);
    let pool = PathBuf::from(author.git(&["rev-parse", "--absolute-git-dir"])).join("objects");
    let done = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                let opened = Pools::open(std::slice::from_ref(&pool)).expect("opens");
                assert!(opened.has(&one).expect("reads"));
                assert_eq!(opened.kind(&one).expect("reads"), Some(Kind::Commit));
                looks += 1;
            }
            looks
        });
        for number in 0..15 {
            author.commit(&number.to_string());
            author.git(&["repack", "-a", "-d", "--quiet"]);
        }
        done.store(true, Ordering::Relaxed);
        reader.join().expect("finds it every time")
    });
    assert!(looks > 15, "{looks}");
}

#[test]
fn a_broken_index_is_named() {
    let pool = TempDir::new().expect("a folder");
    fs::create_dir(pool.path().join("pack")).expect("a folder");
    for bytes in [&b""[..], &[0; 2_000], b"\xfftOc\0\0\0\x02", &[&b"\xfftOc\0\0\0\x02"[..], &[1; 2_000]].concat()] {
        fs::write(pool.path().join("pack/pack-1.idx"), bytes).expect("writes");
        let problem = Pools::open(&[pool.path().to_owned()]).expect_err("broken");
        assert!(problem.to_string().contains("pack-1.idx"), "{problem}");
    }
}

#[test]
fn many_packs_take_few_descriptors() {
    let author = Author::new();
    let pool = TempDir::new().expect("a folder");
    let mut tips = vec![author.commit("0")];
    author.pack(pool.path(), &[&tips[0]]);
    let first = fs::read_dir(pool.path().join("pack")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let first: Vec<PathBuf> = first.collect();
    for copy in 0..400 {
        for path in &first {
            let part = path.extension().and_then(|part| part.to_str()).expect("a part");
            fs::copy(path, pool.path().join(format!("pack/pack-{copy:040}.{part}"))).expect("copies");
        }
    }
    tips.push(author.commit("1"));
    author.pack(pool.path(), &[&tips[1], &format!("^{}", tips[0])]);
    let opened = Pools::open(&[pool.path().to_owned()]).expect("opens");
    // Only those of this pool: other tests of this process open files, too.
    let folder = pool.path().canonicalize().expect("a folder");
    let descriptors = fs::read_dir("/proc/self/fd").expect("descriptors").map(|entry| entry.expect("an entry").path());
    let open = descriptors.filter(|path| fs::read_link(path).is_ok_and(|file| file.starts_with(&folder))).count();
    assert!(open < 300, "{open} descriptors");
    for tip in &tips {
        assert!(opened.has(tip).expect("reads"));
        assert_eq!(opened.kind(tip).expect("reads"), Some(Kind::Commit));
    }
}

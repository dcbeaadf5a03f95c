//! Checks of received packs: which are accepted, which are rejected, and what is left on disk.

use std::fs;
use std::time::{Duration, Instant};

use grasp_git::receive::{Connectivity, PackError, RequiredTips, VisibleObjects};

use super::support::{ClientRepo, ReceiveFixture, branch, tag, view};

const MISSING: &str = "1111111111111111111111111111111111111111";

fn code<T: std::fmt::Debug>(result: Result<T, PackError>) -> &'static str {
    result.expect_err("rejected").code()
}

/// Returns lines that do not compress, the same in every run.
fn random_lines(lines: usize, seed: u64) -> String {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:016x}\n", state ^ (state >> 29))
    };
    (0..lines).map(|_| word()).collect()
}

#[test]
fn push_and_incremental_push_are_accepted() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    let quarantine = fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack");
    let connected = fixture.check_connectivity(view(&quarantine, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 0 }));
    assert!(!quarantine.is_empty() && quarantine.bytes().expect("read the size") > 100);
    let pools = [fixture.pool("pool", &quarantine)];
    drop(quarantine);

    let second = client.commit("more", "world");
    let quarantine = fixture.receive(&client.pack(&["main", &format!("^{first}")]), &pools).expect("a valid pack");
    let connected = fixture.check_connectivity(view(&quarantine, &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 0 }));
    assert_eq!(code(fixture.check_connectivity(view(&quarantine, &[]), &branch(&second), &[])), "E-PACK-INCOMPLETE");
    drop(quarantine);
    assert!(fixture.is_clean());
}

#[test]
fn missing_and_empty_packs_have_no_objects() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    let empty = client.pack(&["main", &format!("^{first}")]);
    assert_eq!(empty.len(), 32);
    for bytes in [&b""[..], &empty] {
        let quarantine = fixture.receive(bytes, &pools).expect("a valid pack");
        assert!(quarantine.is_empty() && fixture.objects(quarantine.folder()).is_empty());
        let nothing = Ok(Connectivity { objects: 0, extra: 0 });
        assert_eq!(fixture.check_connectivity(view(&quarantine, &pools), &branch(&first), &[&first]), nothing);
        assert_eq!(fixture.check_connectivity(view(&quarantine, &pools), &RequiredTips::default(), &[]), nothing);
        let all = fixture.check_connectivity(VisibleObjects { quarantine: None, pools: &pools }, &branch(&first), &[]);
        assert_eq!(all, Ok(Connectivity { objects: 3, extra: 0 }));
    }
}

#[test]
fn thin_pack_is_completed_from_a_pool() {
    // The folder name must be quoted for git.
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::at("a:b \"c\\d"));
    let text = random_lines(2_000, 1);
    let first = client.commit("large", &text);
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    let second = client.commit("large", &(text.clone() + "one more line\n"));
    let pack = client.pack(&["main", &format!("^{first}")]);
    assert!(pack.len() < 1_000, "a thin pack");
    assert_eq!(code(fixture.receive(&pack, &[])), "E-PACK-INCOMPLETE", "the delta base is missing");
    let quarantine = fixture.receive(&pack, &pools).expect("a valid pack");
    assert_eq!(fixture.objects(quarantine.folder()).len(), 4, "three objects and a base");
    let connected = fixture.check_connectivity(view(&quarantine, &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 0 }), "the base does not count as sent by the client");
    let repacked = fixture.checker().repack_needed(view(&quarantine, &pools), &[second], &[first]).expect("repack");
    assert_eq!(fixture.objects(repacked.folder()).len(), 3);
}

#[test]
fn completed_thin_pack_is_limited_in_size() {
    let (client, mut fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let text = random_lines(200_000, 2);
    let first = client.commit("large", &text);
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    client.commit("large", &(text + "one more line\n"));
    let pack = client.pack(&["main", &format!("^{first}")]);
    fixture.limits.max_bytes = 512 * 1024;
    assert!(pack.len() < 1_000);
    assert_eq!(code(fixture.receive(&pack, &pools)), "E-PACK-TOO-LARGE");
    assert!(fixture.is_clean());
}

#[test]
fn missing_objects_are_detected() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    let second = client.commit("more", "world");
    let pack = client.pack(&["main", &format!("^{first}")]);
    assert_eq!(code(fixture.receive(&pack, &[])), "E-PACK-INCOMPLETE", "a reference to a missing object");
    // Missing objects in a pool that was not checked.
    for (name, without) in [("parent", first.as_str()), ("tree", "main^{tree}"), ("blob", "main:more")] {
        let without = client.git(&["rev-parse", without]);
        let all = client.git(&["rev-list", "--objects", "--no-object-names", "main"]);
        let rest: Vec<&str> = all.lines().filter(|oid| *oid != without).collect();
        let pools = [fixture.unchecked_pool(name, &client.pack_of(&rest))];
        let visible = VisibleObjects { quarantine: None, pools: &pools };
        assert_eq!(code(fixture.check_connectivity(visible, &branch(&second), &[])), "E-PACK-INCOMPLETE", "{name}");
        let with_known = fixture.check_connectivity(visible, &branch(&second), &[MISSING]);
        assert_eq!(code(with_known), "E-PACK-INCOMPLETE", "{name}, with a known tip that does not exist");
    }
}

#[test]
fn missing_known_tips_do_not_hide_missing_objects() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    let quarantine = fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack");
    let visible = view(&quarantine, &[]);
    assert_eq!(
        fixture.check_connectivity(visible, &branch(&first), &[MISSING, "--all", "x"]),
        Ok(Connectivity { objects: 3, extra: 0 })
    );
    for known in [&[][..], &[MISSING], &[MISSING, &first]] {
        let missing = PackError::MissingTip { name: "refs/heads/main".to_owned(), oid: MISSING.to_owned() };
        assert_eq!(fixture.check_connectivity(visible, &branch(MISSING), known), Err(missing));
        assert_eq!(code(fixture.check_connectivity(visible, &tag(MISSING), known)), "E-PACK-INCOMPLETE");
    }
    assert_eq!(code(fixture.check_connectivity(visible, &branch("--all"), &[])), "E-PACK-INCOMPLETE");
    let repacked = fixture.checker().repack_needed(visible, &[first], &[MISSING.to_owned()]).expect("repack");
    assert_eq!(fixture.objects(repacked.folder()).len(), 3);
}

#[test]
fn corrupted_packs_are_rejected() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    client.commit("readme", "hello");
    let pack = client.pack(&["main"]);
    for at in (12..pack.len()).step_by(5) {
        let mut bad = pack.clone();
        bad[at] ^= 0x11;
        fixture.receive(&bad, &[]).expect_err("rejected");
    }
    fixture.receive(&pack[..pack.len() - 1], &[]).expect_err("too short");
    assert_eq!(code(fixture.receive(&[&pack[..], b"x"].concat(), &[])), "E-PACK-CHECK", "too long");
    assert!(fixture.is_clean());
}

#[test]
fn only_known_faults_of_old_history_are_accepted() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let blob = client.object("blob", b"hello");
    let inner = client.object("tree", b"");
    let raw = |oid: &str| (0..20).map(|n| u8::from_str_radix(&oid[n * 2..][..2], 16).expect("hex")).collect::<Vec<_>>();
    let entry = |mode: &str, name: &str, oid: &str| [mode.as_bytes(), b" ", name.as_bytes(), b"\0", &raw(oid)].concat();
    let commit = |tree: &str, time: &str| {
        let text = format!("tree {tree}\nauthor a <a@b{time}\ncommitter a <a@b> 1 +0000\n\nold\n");
        client.object("commit", text.as_bytes())
    };
    let good = client.object("tree", &entry("100644", "readme", &blob));
    let padded = client.object("tree", &[entry("100644", "a", &blob), entry("040000", "b", &inner)].concat());
    let dotgit = client.object("tree", &entry("40000", ".git", &inner));
    let unsorted = client.object("tree", &[entry("100644", "b", &blob), entry("100644", "a", &blob)].concat());
    for (name, tip, fine) in [
        ("zeroPaddedFilemode", commit(&padded, "> 1 +0000"), true),
        ("badTimezone", commit(&good, "> 1 +051800"), true),
        ("missingSpaceBeforeDate", commit(&good, ">1 +0000"), true),
        ("hasDotgit", commit(&dotgit, "> 1 +0000"), false),
        ("treeNotSorted", commit(&unsorted, "> 1 +0000"), false),
    ] {
        let received = fixture.receive(&client.pack(&[&tip]), &[]);
        if fine {
            let quarantine = received.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(
                fixture.check_connectivity(view(&quarantine, &[]), &branch(&tip), &[]).map(|c| c.extra),
                Ok(0),
                "{name}"
            );
        } else {
            let error = received.expect_err(name);
            assert_eq!(error.code(), "E-PACK-CHECK");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

#[test]
fn unreferenced_objects_are_removed_by_a_repack() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    let junk = client.object("blob", b"unreferenced");
    let all = client.git(&["rev-list", "--objects", "--no-object-names", "main"]);
    let objects: Vec<&str> = all.lines().chain([junk.as_str()]).collect();
    let quarantine = fixture.receive(&client.pack_of(&objects), &[]).expect("a valid pack");
    let connected = fixture.check_connectivity(view(&quarantine, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 1 }));
    let repacked =
        fixture.checker().repack_needed(view(&quarantine, &[]), std::slice::from_ref(&first), &[]).expect("repack");
    drop(quarantine);
    assert!(!fixture.objects(repacked.folder()).contains(&junk));
    let connected = fixture.check_connectivity(view(&repacked, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 0 }));
    let nothing = fixture.checker().repack_needed(
        view(&repacked, &[]),
        std::slice::from_ref(&first),
        std::slice::from_ref(&first),
    );
    assert!(nothing.expect("repack").is_empty());
}

#[test]
fn restored_objects_do_not_hide_unreferenced_ones() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    client.commit("readme", "hello");
    let second = client.commit("readme", "world");
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    let third = client.commit("readme", "hello");
    let junk = client.object("blob", b"unreferenced");
    let quarantine = fixture.receive(&client.pack_of(&[&third, &junk]), &pools).expect("a valid pack");
    let connected = fixture.check_connectivity(view(&quarantine, &pools), &branch(&third), &[&second]);
    // The walk includes the old tree and blob: it lists more objects than were sent, and still one is unreferenced.
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 1 }));
}

#[test]
fn redundant_objects_of_git_are_removed_by_a_repack() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    fs::create_dir_all(client.folder.path().join("a/folder")).expect("create a folder");
    for n in 0..4 {
        fs::write(client.folder.path().join(format!("a/folder/{n}")), random_lines(10, n)).expect("write a file");
    }
    let first = client.commit("readme", "hello");
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    client.git(&["mv", "a/folder", "elsewhere"]);
    let second = client.commit("readme", "world");
    // Git sends objects again that the other side has at another path.
    let quarantine = fixture.receive(&client.pack(&["main", &format!("^{first}")]), &pools).expect("a valid pack");
    let connected =
        fixture.check_connectivity(view(&quarantine, &pools), &branch(&second), &[&first]).expect("complete objects");
    assert!(connected.objects == 3 && connected.extra >= 4, "{connected:?}");
    let (tips, known) = ([second.clone()], [first.clone()]);
    let repacked = fixture.checker().repack_needed(view(&quarantine, &pools), &tips, &known);
    let connected = fixture.check_connectivity(view(&repacked.expect("repack"), &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connectivity { objects: 3, extra: 0 }));
}

#[test]
fn branches_must_be_commits() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("readme", "hello");
    client.git(&["tag", "-a", "v1", "-m", "one"]);
    let [blob, tree, object] = ["main:readme", "main^{tree}", "v1"].map(|name| client.git(&["rev-parse", name]));
    let quarantine = fixture.receive(&client.pack(&["main", "v1"]), &[]).expect("a valid pack");
    let visible = view(&quarantine, &[]);
    for (oid, found) in [(&blob, "blob"), (&tree, "tree"), (&object, "tag")] {
        for known in [&[][..], &[first.as_str()], &[first.as_str(), oid.as_str()]] {
            let error = fixture.check_connectivity(visible, &branch(oid), known).expect_err("rejected");
            assert_eq!((error.code(), error.ref_name()), ("E-PACK-NOT-A-COMMIT", Some("refs/heads/main")));
            assert!(error.to_string().contains(found), "{error}");
            fixture.check_connectivity(visible, &tag(oid), known).expect("tags may be anything");
        }
    }
    let both = RequiredTips { others: tag(&object).others, ..branch(&object) };
    assert_eq!(
        code(fixture.check_connectivity(visible, &both, &[])),
        "E-PACK-NOT-A-COMMIT",
        "also together with the tag itself"
    );
    let both = RequiredTips { others: tag(&object).others, ..branch(&first) };
    assert_eq!(fixture.check_connectivity(visible, &both, &[]), Ok(Connectivity { objects: 4, extra: 0 }));
    assert_eq!(
        fixture.check_connectivity(visible, &branch(&first), &[&object]),
        Ok(Connectivity { objects: 0, extra: 4 })
    );
}

#[test]
fn checks_have_a_time_limit() {
    let (client, mut fixture) = (ClientRepo::new(), ReceiveFixture::new());
    client.commit("readme", "hello");
    fixture.limits.check_secs = 0;
    assert_eq!(code(fixture.receive(&client.pack(&["main"]), &[])), "E-PACK-TIME");
    assert!(fixture.is_clean());
}

#[test]
fn spooled_pack_is_removed_after_it_was_indexed() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    let first = client.commit("large", &random_lines(200_000, 3));
    let pack = client.pack(&["main"]);
    assert!(pack.len() > 1 << 20);
    let quarantine = fixture.receive(&pack, &[]).expect("a valid pack");
    assert!(!quarantine.folder().join("body").exists());
    assert_eq!(fixture.check_connectivity(view(&quarantine, &[]), &branch(&first), &[]).map(|c| c.objects), Ok(3));
    let mut bad = pack;
    bad[1_000_000] ^= 1;
    fixture.receive(&bad, &[]).expect_err("rejected");
    drop(quarantine);
    assert!(fixture.is_clean());
    assert_eq!(fs::read_dir(fixture.folder.path().join("git/staged")).expect("list a folder").count(), 0);
}

#[test]
#[ignore = "a measurement"]
fn duration_of_the_checks_of_a_small_push() {
    let (client, fixture) = (ClientRepo::new(), ReceiveFixture::new());
    for n in 0..20 {
        client.commit(&format!("file{n}"), &random_lines(50, n));
    }
    let first = client.git(&["rev-parse", "main"]);
    let pools = [fixture.pool("pool", &fixture.receive(&client.pack(&["main"]), &[]).expect("a valid pack"))];
    let second = client.commit("more", "world");
    let pack = client.pack(&["main", &format!("^{first}")]);
    let (tips, known) = ([second.clone()], [first.clone()]);
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..40 {
        let started = Instant::now();
        let quarantine = fixture.receive(&pack, &pools).expect("a valid pack");
        times[0].push(started.elapsed());
        let started = Instant::now();
        fixture.check_connectivity(view(&quarantine, &pools), &branch(&second), &[&first]).expect("complete objects");
        times[1].push(started.elapsed());
        let started = Instant::now();
        let repacked = fixture.checker().repack_needed(view(&quarantine, &pools), &tips, &known);
        times[2].push(started.elapsed());
        repacked.expect("repack");
    }
    for (name, mut times) in ["index", "connectivity", "repack"].into_iter().zip(times) {
        times.sort();
        eprintln!("{name}: median {:?}, minimum {:?}", times[times.len() / 2], times[0]);
    }
}

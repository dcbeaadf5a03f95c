//! What is taken, what is refused, and what is left behind.

use std::fs;
use std::time::{Duration, Instant};

use grasp_git::receive::{Connected, Kind, PackProblem, Tips, View};

use super::support::{Client, House, branch, tag, view};

const NOWHERE: &str = "1111111111111111111111111111111111111111";

fn code<T: std::fmt::Debug>(result: Result<T, PackProblem>) -> &'static str {
    result.expect_err("refused").code()
}

/// Lines that do not compress: the same ones in every run.
fn noise(lines: usize, seed: u64) -> String {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:016x}\n", state ^ (state >> 29))
    };
    (0..lines).map(|_| word()).collect()
}

#[test]
fn a_small_push_and_one_upon_it() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    let incoming = house.receive(&client.pack(&["main"]), &[]).expect("is sound");
    let connected = house.connect(view(&incoming, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 0 }));
    assert!(!incoming.is_empty() && incoming.bytes().expect("is there") > 100);
    let pools = [house.pool("pool", &incoming)];
    drop(incoming);

    let second = client.commit("more", "world");
    let incoming = house.receive(&client.pack(&["main", &format!("^{first}")]), &pools).expect("is sound");
    let connected = house.connect(view(&incoming, &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 0 }));
    assert_eq!(code(house.connect(view(&incoming, &[]), &branch(&second), &[])), "E-PACK-INCOMPLETE");
    drop(incoming);
    assert!(house.is_clean());
}

#[test]
fn nothing_and_an_empty_pack_are_no_pack() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    let empty = client.pack(&["main", &format!("^{first}")]);
    assert_eq!(empty.len(), 32);
    for bytes in [&b""[..], &empty] {
        let incoming = house.receive(bytes, &pools).expect("is sound");
        assert!(incoming.is_empty() && house.objects(incoming.folder()).is_empty());
        let nothing = Ok(Connected { objects: 0, extra: 0 });
        assert_eq!(house.connect(view(&incoming, &pools), &branch(&first), &[&first]), nothing);
        assert_eq!(house.connect(view(&incoming, &pools), &Tips::default(), &[]), nothing);
        let all = house.connect(View { incoming: None, pools: &pools }, &branch(&first), &[]);
        assert_eq!(all, Ok(Connected { objects: 3, extra: 0 }));
    }
}

#[test]
fn deltas_to_objects_of_a_pool_are_completed() {
    // A name that git must be told in quotes.
    let (client, house) = (Client::new(), House::at("a:b \"c\\d"));
    let text = noise(2_000, 1);
    let first = client.commit("large", &text);
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    let second = client.commit("large", &(text.clone() + "one more line\n"));
    let pack = client.pack(&["main", &format!("^{first}")]);
    assert!(pack.len() < 1_000, "a thin pack");
    assert_eq!(code(house.receive(&pack, &[])), "E-PACK-INCOMPLETE", "the base is not here");
    let incoming = house.receive(&pack, &pools).expect("is sound");
    assert_eq!(house.objects(incoming.folder()).len(), 4, "three objects and a base");
    let connected = house.connect(view(&incoming, &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 0 }), "the base is not the client's");
    let narrow = house.checker().narrow(view(&incoming, &pools), &[second], &[first]).expect("packs");
    assert_eq!(house.objects(narrow.folder()).len(), 3);
}

#[test]
fn what_a_thin_pack_becomes_is_bounded_too() {
    let (client, mut house) = (Client::new(), House::new());
    let text = noise(200_000, 2);
    let first = client.commit("large", &text);
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    client.commit("large", &(text + "one more line\n"));
    let pack = client.pack(&["main", &format!("^{first}")]);
    house.limits.max_bytes = 512 * 1024;
    assert!(pack.len() < 1_000);
    assert_eq!(code(house.receive(&pack, &pools)), "E-PACK-TOO-LARGE");
    assert!(house.is_clean());
}

#[test]
fn what_is_missing_is_found() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    let second = client.commit("more", "world");
    let pack = client.pack(&["main", &format!("^{first}")]);
    assert_eq!(code(house.receive(&pack, &[])), "E-PACK-INCOMPLETE", "a link out of the pack");
    // Objects that came some other way.
    for (name, without) in [("parent", first.as_str()), ("tree", "main^{tree}"), ("blob", "main:more")] {
        let without = client.git(&["rev-parse", without]);
        let all = client.git(&["rev-list", "--objects", "--no-object-names", "main"]);
        let rest: Vec<&str> = all.lines().filter(|oid| *oid != without).collect();
        let pools = [house.unchecked_pool(name, &client.pack_of(&rest))];
        let seen = View { incoming: None, pools: &pools };
        assert_eq!(code(house.connect(seen, &branch(&second), &[])), "E-PACK-INCOMPLETE", "{name}");
        let forgiving = house.connect(seen, &branch(&second), &[NOWHERE]);
        assert_eq!(code(forgiving), "E-PACK-INCOMPLETE", "{name}, with a known tip that is not there");
    }
}

#[test]
fn known_tips_that_are_not_here_hide_nothing() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    let incoming = house.receive(&client.pack(&["main"]), &[]).expect("is sound");
    let seen = view(&incoming, &[]);
    assert_eq!(house.connect(seen, &branch(&first), &[NOWHERE, "--all", "x"]), Ok(Connected { objects: 3, extra: 0 }));
    for known in [&[][..], &[NOWHERE], &[NOWHERE, &first]] {
        let missing = PackProblem::MissingTip { name: "refs/heads/main".to_owned(), oid: NOWHERE.to_owned() };
        assert_eq!(house.connect(seen, &branch(NOWHERE), known), Err(missing));
        assert_eq!(code(house.connect(seen, &tag(NOWHERE), known)), "E-PACK-INCOMPLETE");
    }
    assert_eq!(code(house.connect(seen, &branch("--all"), &[])), "E-PACK-INCOMPLETE");
    let narrow = house.checker().narrow(seen, &[first], &[NOWHERE.to_owned()]).expect("packs");
    assert_eq!(house.objects(narrow.folder()).len(), 3);
}

#[test]
fn corrupted_packs_are_refused() {
    let (client, house) = (Client::new(), House::new());
    client.commit("readme", "hello");
    let pack = client.pack(&["main"]);
    for at in (12..pack.len()).step_by(5) {
        let mut bad = pack.clone();
        bad[at] ^= 0x11;
        house.receive(&bad, &[]).expect_err("refused");
    }
    house.receive(&pack[..pack.len() - 1], &[]).expect_err("too short");
    assert_eq!(code(house.receive(&[&pack[..], b"x"].concat(), &[])), "E-PACK-CHECK", "too long");
    assert!(house.is_clean());
}

#[test]
fn faults_of_old_history_are_forgiven_and_others_are_not() {
    let (client, house) = (Client::new(), House::new());
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
        let received = house.receive(&client.pack(&[&tip]), &[]);
        if fine {
            let incoming = received.unwrap_or_else(|problem| panic!("{name}: {problem}"));
            assert_eq!(house.connect(view(&incoming, &[]), &branch(&tip), &[]).map(|c| c.extra), Ok(0), "{name}");
        } else {
            let problem = received.expect_err(name);
            assert_eq!(problem.code(), "E-PACK-CHECK");
            assert!(problem.to_string().contains(name), "{problem}");
        }
    }
}

#[test]
fn what_nothing_refers_to_is_narrowed_away() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    let junk = client.object("blob", b"nobody wants this");
    let all = client.git(&["rev-list", "--objects", "--no-object-names", "main"]);
    let objects: Vec<&str> = all.lines().chain([junk.as_str()]).collect();
    let incoming = house.receive(&client.pack_of(&objects), &[]).expect("is sound");
    let connected = house.connect(view(&incoming, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 1 }));
    let narrow = house.checker().narrow(view(&incoming, &[]), std::slice::from_ref(&first), &[]).expect("packs");
    drop(incoming);
    assert!(!house.objects(narrow.folder()).contains(&junk));
    let connected = house.connect(view(&narrow, &[]), &branch(&first), &[]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 0 }));
    let nothing =
        house.checker().narrow(view(&narrow, &[]), std::slice::from_ref(&first), std::slice::from_ref(&first));
    assert!(nothing.expect("packs").is_empty());
}

#[test]
fn what_comes_back_does_not_hide_what_nothing_refers_to() {
    let (client, house) = (Client::new(), House::new());
    client.commit("readme", "hello");
    let second = client.commit("readme", "world");
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    let third = client.commit("readme", "hello");
    let junk = client.object("blob", b"nobody wants this");
    let incoming = house.receive(&client.pack_of(&[&third, &junk]), &pools).expect("is sound");
    let connected = house.connect(view(&incoming, &pools), &branch(&third), &[&second]);
    // The old tree and the old file are walked over once more: more objects than came, and yet one too many came.
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 1 }));
}

#[test]
fn what_git_sends_too_much_is_narrowed_away() {
    let (client, house) = (Client::new(), House::new());
    fs::create_dir_all(client.folder.path().join("a/folder")).expect("is made");
    for n in 0..4 {
        fs::write(client.folder.path().join(format!("a/folder/{n}")), noise(10, n)).expect("writes");
    }
    let first = client.commit("readme", "hello");
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    client.git(&["mv", "a/folder", "elsewhere"]);
    let second = client.commit("readme", "world");
    // Git looks for what the other side has at the same path only.
    let incoming = house.receive(&client.pack(&["main", &format!("^{first}")]), &pools).expect("is sound");
    let connected = house.connect(view(&incoming, &pools), &branch(&second), &[&first]).expect("is whole");
    assert!(connected.objects == 3 && connected.extra >= 4, "{connected:?}");
    let (tips, known) = ([second.clone()], [first.clone()]);
    let narrow = house.checker().narrow(view(&incoming, &pools), &tips, &known);
    let connected = house.connect(view(&narrow.expect("packs"), &pools), &branch(&second), &[&first]);
    assert_eq!(connected, Ok(Connected { objects: 3, extra: 0 }));
}

#[test]
fn branches_are_commits() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    client.git(&["tag", "-a", "v1", "-m", "one"]);
    let [blob, tree, object] = ["main:readme", "main^{tree}", "v1"].map(|name| client.git(&["rev-parse", name]));
    let incoming = house.receive(&client.pack(&["main", "v1"]), &[]).expect("is sound");
    let seen = view(&incoming, &[]);
    for (oid, found) in [(&blob, "blob"), (&tree, "tree"), (&object, "tag")] {
        for known in [&[][..], &[first.as_str()], &[first.as_str(), oid.as_str()]] {
            let problem = house.connect(seen, &branch(oid), known).expect_err("refused");
            assert_eq!((problem.code(), problem.about()), ("E-PACK-NOT-A-COMMIT", Some("refs/heads/main")));
            assert!(problem.to_string().contains(found), "{problem}");
            house.connect(seen, &tag(oid), known).expect("tags may be anything");
        }
    }
    let both = Tips { others: tag(&object).others, ..branch(&object) };
    assert_eq!(code(house.connect(seen, &both, &[])), "E-PACK-NOT-A-COMMIT", "also beside the tag itself");
    let both = Tips { others: tag(&object).others, ..branch(&first) };
    assert_eq!(house.connect(seen, &both, &[]), Ok(Connected { objects: 4, extra: 0 }));
    assert_eq!(house.connect(seen, &branch(&first), &[&object]), Ok(Connected { objects: 0, extra: 4 }));
}

#[test]
fn tags_are_peeled() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("readme", "hello");
    client.git(&["tag", "-a", "v1", "-m", "one"]);
    client.git(&["tag", "-a", "v2", "-m", "two", "v1"]);
    let [one, two, blob] = ["v1", "v2", "main:readme"].map(|name| client.git(&["rev-parse", name]));
    let incoming = house.receive(&client.pack(&["v2"]), &[]).expect("is sound");
    let asked = [&first, &one, &two, &blob, NOWHERE].map(str::to_owned);
    let peeled = house.checker().peel(view(&incoming, &[]), &asked).expect("answers");
    let expected = [(&blob, Kind::Blob, None), (&first, Kind::Commit, None)];
    let tags = [(&one, Kind::Tag, Some(&first)), (&two, Kind::Tag, Some(&first))];
    assert_eq!(peeled.len(), 4);
    for (oid, kind, end) in expected.into_iter().chain(tags) {
        assert_eq!((peeled[oid].kind, peeled[oid].peeled.as_ref()), (kind, end));
    }
    let pools = [house.unchecked_pool("pool", &client.pack_of(&[&one]))];
    let broken = house.checker().peel(View { incoming: None, pools: &pools }, &[one]);
    assert_eq!(code(broken), "E-PACK-INCOMPLETE");
}

#[test]
fn checks_have_a_time() {
    let (client, mut house) = (Client::new(), House::new());
    client.commit("readme", "hello");
    house.limits.check_secs = 0;
    assert_eq!(code(house.receive(&client.pack(&["main"]), &[])), "E-PACK-TIME");
    assert!(house.is_clean());
}

#[test]
fn a_pack_that_went_to_disk_is_not_kept_twice() {
    let (client, house) = (Client::new(), House::new());
    let first = client.commit("large", &noise(200_000, 3));
    let pack = client.pack(&["main"]);
    assert!(pack.len() > 1 << 20);
    let incoming = house.receive(&pack, &[]).expect("is sound");
    assert!(!incoming.folder().join("body").exists());
    assert_eq!(house.connect(view(&incoming, &[]), &branch(&first), &[]).map(|c| c.objects), Ok(3));
    let mut bad = pack;
    bad[1_000_000] ^= 1;
    house.receive(&bad, &[]).expect_err("refused");
    drop(incoming);
    assert!(house.is_clean());
    assert_eq!(fs::read_dir(house.folder.path().join("git/staged")).expect("reads").count(), 0);
}

#[test]
#[ignore = "a measurement"]
fn how_long_a_push_of_one_commit_takes() {
    let (client, house) = (Client::new(), House::new());
    for n in 0..20 {
        client.commit(&format!("file{n}"), &noise(50, n));
    }
    let first = client.git(&["rev-parse", "main"]);
    let pools = [house.pool("pool", &house.receive(&client.pack(&["main"]), &[]).expect("is sound"))];
    let second = client.commit("more", "world");
    let pack = client.pack(&["main", &format!("^{first}")]);
    let (tips, known) = ([second.clone()], [first.clone()]);
    let mut times: [Vec<Duration>; 3] = Default::default();
    for _ in 0..40 {
        let begin = Instant::now();
        let incoming = house.receive(&pack, &pools).expect("is sound");
        times[0].push(begin.elapsed());
        let begin = Instant::now();
        house.connect(view(&incoming, &pools), &branch(&second), &[&first]).expect("is whole");
        times[1].push(begin.elapsed());
        let begin = Instant::now();
        let narrow = house.checker().narrow(view(&incoming, &pools), &tips, &known);
        times[2].push(begin.elapsed());
        narrow.expect("packs");
    }
    for (name, mut times) in ["index", "connect", "narrow"].into_iter().zip(times) {
        times.sort();
        eprintln!("{name}: median {:?}, least {:?}", times[times.len() / 2], times[0]);
    }
}

//! Many at once: clones, followers, uploads. Everybody gets an answer, nobody more than a share, and pushes go on.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use grasp_core::limits;
use grasp_sim::signer::Author;

use crate::support::attack::{Watch, connect, expect_nothing_left, files};
use crate::support::git::{MAIN, Maintainer, THEN, Work, noise, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{Answer, CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, packet};
use crate::support::{Server, eventually, wire};

const PROXY: (&str, &str) = ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8");

/// Two networks.
const HERE: &str = "X-Forwarded-For: 203.0.113.7";
const THERE: &str = "X-Forwarded-For: 198.51.100.7";

/// The request of a full clone, told apart from others by an object that nobody has.
fn clone_request(oid: &str, nth: usize) -> String {
    let lines = [format!("want {oid}\n"), format!("have {nth:040x}\n"), "ofs-delta\n".to_owned(), "done\n".to_owned()];
    packet("command=fetch") + "0001" + &lines.map(|line| packet(&line)).concat() + "0000"
}

/// Clones without git.
fn clone(server: &Server, path: &str, body: &str, from: &str) -> Answer {
    wire::post(server, &format!("{path}/git-upload-pack"), &[UPLOAD_REQUEST, VERSION_2, from], body.as_bytes())
}

/// Whether this is a complete pack; what is none says when to try again.
#[track_caller]
fn is_served(answer: &Answer) -> bool {
    if answer.status == 200 {
        let has_pack = answer.body.windows(4).any(|window| window == b"PACK");
        assert!(has_pack && answer.body.ends_with(b"0000"), "{} bytes: {}", answer.body.len(), answer.head);
        return true;
    }
    assert!(matches!(answer.status, 429 | 503), "{}", answer.head);
    assert!(answer.header("retry-after").is_some_and(|secs| secs.parse::<u64>().is_ok()), "{}", answer.head);
    false
}

/// A repository with some history.
fn history(stage: &mut Stage, owner: &Maintainer) -> (Work, String) {
    let work = Work::new();
    for n in 0..5 {
        work.commit(&format!("file{n}"), &noise(20_000 + n));
    }
    let tip = work.oid("HEAD");
    stage.found(owner, "tool", &[], &work, &main_at(&tip));
    (work, tip)
}

#[test]
fn five_hundred_clones_share_four_processes_and_pushes_go_on() {
    let mut stage = Stage::with(&[("GIT_SERVE_PROCESSES", "4"), PROXY]);
    let owner = stage.person(1);
    let (work, tip) = history(&mut stage, &owner);
    let path = repo_path(&owner.npub(), "tool");
    let (other, c1) = one_commit("other");
    stage.hold(&owner.announce("other", THEN, &[]));
    let state = owner.state("other", THEN, &main_at(&c1));
    stage.hold(&state);
    let url = stage.url(&owner, "other");

    let watch = Watch::on(&stage.server);
    let (served, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let server = &stage.server;
    thread::scope(|scope| {
        for nth in 0..500 {
            let (path, tip, served, begun) = (&path, &tip, &served, &begun);
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let from = if nth % 2 == 0 { HERE } else { THERE };
                if is_served(&clone(server, path, &clone_request(tip, nth), from)) {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the crowd is there", || (begun.load(Ordering::Relaxed) == 500).then_some(()));
        other.push(&url, &["main"]).done();
    });
    let served = served.into_inner();
    let peaks = watch.flat("five hundred clones");
    eprintln!("{served} of 500 clones were served");
    assert!(peaks.serving <= 4, "{} at once", peaks.serving);
    assert!(served >= 100, "{served} of 500 were served");
    drop(watch);
    stage.expect_served(&[&state]);

    // The same question is answered once for all.
    let c2 = work.commit("file", "more");
    stage.advance(&owner, &owner, "tool", THEN + 1, &work, &main_at(&c2));
    let watch = Watch::on(&stage.server);
    let body = clone_request(&c2, 0);
    let server = &stage.server;
    let answers: Vec<Answer> = thread::scope(|scope| {
        let asked: Vec<_> = (0..500).map(|_| scope.spawn(|| clone(server, &path, &body, HERE))).collect();
        asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
    });
    let first = &answers[0].body;
    assert!(answers.iter().all(|answer| is_served(answer) && answer.body == *first), "all get the same");
    let peaks = watch.flat("five hundred times the same clone");
    assert!(peaks.serving <= 1, "{} at once", peaks.serving);
    expect_nothing_left(&stage);
}

#[test]
fn a_network_with_many_clones_does_not_delay_another() {
    let mut stage = Stage::with(&[("GIT_SERVE_PROCESSES", "1"), PROXY]);
    let owner = stage.person(1);
    let (_work, tip) = history(&mut stage, &owner);
    let path = repo_path(&owner.npub(), "tool");
    let done = AtomicUsize::new(0);
    let server = &stage.server;
    thread::scope(|scope| {
        for nth in 0..60 {
            let (path, tip, done) = (&path, &tip, &done);
            scope.spawn(move || {
                assert!(is_served(&clone(server, path, &clone_request(tip, nth), HERE)));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("one is served", || (done.load(Ordering::Relaxed) > 0).then_some(()));
        let before = done.load(Ordering::Relaxed);
        assert!(is_served(&clone(server, &path, &clone_request(&tip, 1_000), THERE)));
        let meanwhile = done.load(Ordering::Relaxed) - before;
        eprintln!("{before} of 60 were served before, {meanwhile} meanwhile");
        assert!(before + 30 < 60, "too late to tell: {before}");
        assert!(meanwhile <= 20, "{meanwhile} of the others came first");
    });
}

#[test]
fn whoever_hangs_up_leaves_the_queue() {
    let mut stage = Stage::with(&[("GIT_SERVE_PROCESSES", "1"), PROXY]);
    let owner = stage.person(1);
    let (_work, tip) = history(&mut stage, &owner);
    let path = repo_path(&owner.npub(), "tool");
    // Four times as many as may wait, and none of them stays.
    for nth in 0..4 * limits::MAX_WAITING_FETCHES_PER_NETWORK {
        let body = clone_request(&tip, nth);
        let length = format!("Content-Length: {}", body.len());
        let headers = [UPLOAD_REQUEST, VERSION_2, HERE, &length];
        let head = wire::head(&stage.server, "POST", &format!("{path}/git-upload-pack"), &headers);
        connect(&stage.server).write_all((head + &body).as_bytes()).expect("writes");
    }
    eventually("there is room again", || {
        is_served(&clone(&stage.server, &path, &clone_request(&tip, 10_000), HERE)).then_some(())
    });
    expect_nothing_left(&stage);
}

/// Repositories of one name, or of another, that have refs on disk.
fn folders_with_refs(stage: &Stage) -> usize {
    let owners = fs::read_dir(stage.git_folder().join("repos")).expect("a folder").flatten();
    let has_refs = |owner: &fs::DirEntry, name: &str| owner.path().join(name).join("packed-refs").exists();
    owners.filter(|owner| ["tool.git", "other.git"].iter().any(|name| has_refs(owner, name))).count()
}

#[test]
fn a_thousand_announcements_that_name_a_victim_do_not_make_it_wait() {
    const CROWD: usize = 1_000;
    let mut stage = Stage::new();
    let [victim, bystander, ..] = stage.cast();
    let crowd: Vec<Maintainer> = (0..CROWD)
        .map(|n| Author::of_crowd(1 + u8::try_from(n / 250).expect("small"), u8::try_from(n % 250).expect("small")))
        .map(|author| Maintainer::of(author, &stage.service))
        .collect();
    for one in &crowd {
        stage.client.send_text(&format!("[\"EVENT\",{}]", one.announce("tool", THEN, &[&victim]).json()));
    }
    for _ in &crowd {
        let answer = stage.client.receive();
        assert_eq!((&answer[0], &answer[2]), (&"OK".into(), &true.into()), "{answer}");
    }
    stage.hold(&victim.announce("tool", THEN, &[]));
    let (work, c1) = one_commit("one");
    let state = victim.state("tool", THEN, &main_at(&c1));
    stage.hold(&state);
    work.push(&stage.url(&victim, "tool"), &["main"]).done();
    let aligned = folders_with_refs(&stage);
    stage.expect_served(&[&state]);
    stage.expect_refs(&victim, "tool", &main_at(&c1));
    eprintln!("{aligned} of {} repositories were in line when git ended", CROWD + 1);
    assert!(aligned <= CROWD, "the push waited for everybody");

    // Somebody else's push does not wait either, nor does the victim's next one.
    let (other, c2) = one_commit("other");
    stage.found(&bystander, "other", &[], &other, &main_at(&c2));
    let c3 = work.commit("file", "three");
    stage.advance(&victim, &victim, "tool", THEN + 1, &work, &main_at(&c3));
    let aligned = folders_with_refs(&stage);
    eprintln!("{aligned} of {} repositories were in line when two more pushes ended", CROWD + 2);
    assert!(aligned <= CROWD, "the pushes waited for everybody");

    // All of them follow in the end, with nobody asking. Looking takes time as well, so it is not done too often.
    let begun = Instant::now();
    let mut aligned = 0;
    while aligned < CROWD + 2 {
        assert!(begun.elapsed() < Duration::from_secs(300), "only {aligned} are in line");
        thread::sleep(Duration::from_millis(500));
        aligned = folders_with_refs(&stage);
    }
    eprintln!("all {aligned} repositories were in line {} seconds later", begun.elapsed().as_secs());
    for one in [&crowd[0], &crowd[CROWD / 2], &crowd[CROWD - 1]] {
        stage.eventually_refs(one, "tool", &main_at(&c3));
        assert_eq!(Work::clone(&stage.url(one, "tool")).oid("HEAD"), c3);
    }
    // No second copy of what they share.
    let packs = files(&stage.git_folder()).keys().filter(|path| path.ends_with(".pack")).count();
    assert!(packs < 10, "{packs} packs");
    expect_nothing_left(&stage);
}

#[test]
fn a_network_has_so_much_room_for_what_nobody_has_signed() {
    let settings = [PROXY, ("PURGATORY_EXPIRY_SECS", "15"), ("GIT_MAX_UNSIGNED_PUSH_BYTES", "20000")];
    let mut stage = Stage::with(&settings);
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    let c2 = work.commit("file", "offered");
    let pack = work.pack(&[&c2, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let push = |from: &str, names: &[String], tip: &str, pack: &[u8]| {
        let commands: Vec<[&str; 3]> = names.iter().map(|name| [ZERO, tip, name]).collect();
        let body = wire::push_body(&commands, CAPABILITIES, pack);
        wire::post(&stage.server, &path, &[RECEIVE_REQUEST, from], &body).text()
    };
    let name = |n: usize| format!("refs/nostr/{n:064x}");

    let c3 = work.commit("large", &noise(60_000));
    let large = work.pack(&[&c2, &c3, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file"), &work.oid("HEAD:large")]);
    let said = push(HERE, &[name(9_999)], &c3, &large);
    assert!(said.contains("E-PACK-TOO-LARGE"), "{said}");

    let mut taken = 0;
    while taken < limits::MAX_UPLOADS_PER_NETWORK {
        let count = limits::MAX_UPLOADS_PER_PUSH.min(limits::MAX_UPLOADS_PER_NETWORK - taken);
        let names: Vec<String> = (taken..taken + count).map(name).collect();
        let said = push(HERE, &names, &c2, &pack);
        assert!(said.contains(&format!("ok {}", names[0])) && !said.contains("ng "), "{taken}: {said}");
        taken += count;
    }
    let said = push(HERE, &[name(1_000)], &c2, &pack);
    assert!(said.contains("E-PR-ROOM"), "{said}");
    let said = push(THERE, &[name(2_000)], &c2, &pack);
    assert!(said.contains(&format!("ok {}", name(2_000))), "{said}");
    // Nobody can see any of it.
    stage.expect_refs(&owner, "tool", &main_at(&c1));
    let staged = || fs::read_dir(stage.git_folder().join("staged")).expect("a folder").count();
    assert!(staged() > 0);
    eventually("what nobody signed is gone", || (staged() == 0).then_some(()));
    let said = push(HERE, &[name(1_000)], &c2, &pack);
    assert!(said.contains(&format!("ok {}", name(1_000))), "{said}");
    // What is signed never needed that room.
    let state = owner.state("tool", THEN + 1, &[(MAIN, &c3)]);
    stage.hold(&state);
    work.push(&stage.url(&owner, "tool"), &[&format!("{c3}:{MAIN}")]).done();
    stage.expect_served(&[&state]);
}

//! Attacks that occupy git processes: a user in another network is not affected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::support::attack::{COMMIT, MB, PackBuilder, child_count, connect, expect_nothing_left};
use crate::support::bystander::Bystander;
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text, repo_path};
use crate::support::git_server::{GitServer, GitServerMode};
use crate::support::peers::independent_relay::IndependentRelay;
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, packet};
use crate::support::{BEHIND_PROXY, eventually, wire};

/// Requests a pack in a negotiation step, without `done`: git knows enough after the real have. `nth` makes requests
/// different. Reads only the beginning of the response.
fn begin_negotiation(server: &TestServer, path: &str, (want, have): (&str, &str), nth: usize) -> TcpStream {
    let lines = [format!("want {want}\n"), format!("have {have}\n"), format!("have {nth:040x}\n")];
    let body = packet("command=fetch") + "0001" + &lines.map(|line| packet(&line)).concat() + "0000";
    let length = format!("Content-Length: {}", body.len());
    // The first four clients are in one network, each of the others in its own.
    let from = format!("X-Forwarded-For: 203.0.{}.7", nth.saturating_sub(3));
    let headers = [UPLOAD_REQUEST, VERSION_2, &length, &from];
    let head = wire::request_head(&server.process, "POST", &format!("{path}/git-upload-pack"), &headers);
    let mut stream = connect(&server.process);
    stream.write_all((head + &body).as_bytes()).expect("cannot write to the connection");
    let mut start = [0; 2_000];
    stream.read_exact(&mut start).expect("cannot read the start of the response");
    let start = String::from_utf8_lossy(&start);
    assert!(start.starts_with("HTTP/1.1 200") && start.contains("packfile"), "{start}");
    stream
}

/// Four clients that sent wants and one real have, and read the response slowly, used to hold all git processes; all
/// clones failed.
#[test]
fn slow_readers_of_negotiations_hold_no_process() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let attacker = server.maintainer(2);
    // The response has twenty megabytes, more than the socket buffers hold.
    let (work, first) = one_commit("one");
    let second = work.commit("large", &incompressible_text(40_000_000));
    server.create_repo(&attacker, "large", &[], &work, &main_at(&second));
    let path = repo_path(&attacker.npub(), "large");

    let slow: Vec<TcpStream> = (0..12).map(|nth| begin_negotiation(&server, &path, (&second, &first), nth)).collect();
    bystander.expect_unaffected(&server, "slow readers of negotiations");
    eventually("no slow reader has a git process", || (child_count(&server.process) == 0).then_some(()));
    // They can read the rest whenever they want.
    for mut stream in slow.into_iter().take(2) {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("cannot read the response");
        assert!(rest.len() > 15_000_000 && rest.ends_with(b"0000\r\n0\r\n\r\n"), "{} bytes", rest.len());
    }
    bystander.expect_unaffected(&server, "after the slow readers");
}

/// A response that is too large for the cache is sent as fast as its client reads. If others wait, a slow client is
/// dropped before they give up.
#[test]
fn slow_readers_of_large_responses_do_not_make_clones_fail() {
    // Without a cache every response counts as large, and two processes send them.
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("GIT_PACK_CACHE_BYTES", "0")]);
    let owner = server.maintainer(1);
    let (work, first) = one_commit("one");
    let second = work.commit("large", &incompressible_text(40_000_000));
    server.create_repo(&owner, "large", &[], &work, &main_at(&second));
    let path = repo_path(&owner.npub(), "large");
    let slow = [4, 5].map(|nth| begin_negotiation(&server, &path, (&second, &first), nth));
    assert_eq!(WorkTree::clone(&server.url(&owner, "large")).oid("HEAD"), second);
    drop(slow);
}

/// Size of the object that the deltas of a bomb repeat.
const BOMB_OBJECT: u64 = 15 * MB;

/// Size of a pack with as many deltas as an attacker likes.
const BOMB_BYTES: usize = 256 * 1024;

/// Returns a pack with a commit and a large object, and deltas that each expand to the same size.
fn delta_bomb(work: &WorkTree, commit: &str, is_complete: fn(usize, usize) -> bool) -> Vec<u8> {
    let mut bomb = PackBuilder::new();
    bomb.object(COMMIT, &work.git(&["cat-file", "commit", commit]).expect_success().stdout);
    let base = bomb.offset();
    bomb.zeros(BOMB_OBJECT, BOMB_OBJECT);
    let mut deltas = 0;
    while !is_complete(deltas, bomb.offset()) {
        bomb.repeat_base(base, BOMB_OBJECT, 1);
        deltas += 1;
    }
    bomb.finish()
}

/// A repository of an attacker, and a commit that a held state declares, so that its owner may push a pack.
struct PushTarget {
    owner: Maintainer,
    work: WorkTree,
    first: String,
    declared: String,
}

impl PushTarget {
    fn new(server: &mut TestServer, n: u8) -> Self {
        let owner = server.maintainer(n);
        let (work, first) = one_commit("one");
        server.create_repo(&owner, "bomb", &[], &work, &main_at(&first));
        let declared = work.commit("file", "two");
        server.publish_held(&owner.state("bomb", BASE_TIME + 1, &main_at(&declared)));
        Self { owner, work, first, declared }
    }

    /// Pushes a pack; returns the report.
    fn push(&self, server: &TestServer, pack: &[u8]) -> String {
        let path = format!("{}/git-receive-pack", repo_path(&self.owner.npub(), "bomb"));
        let body = wire::push_body(&[[&self.first, &self.declared, MAIN]], CAPABILITIES, pack);
        let headers = [RECEIVE_REQUEST, "X-Forwarded-For: 203.0.113.5"];
        wire::request_with_body(&server.process, &path, &headers, &body).text()
    }
}

/// Stops the attackers when it is dropped, also if the test fails.
struct StopGuard<'a>(&'a AtomicBool);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pushes packs to four repositories from one network, again and again, while another user works. Each push must be
/// rejected with `code`.
#[track_caller]
fn expect_unaffected_by_pushes(what: &str, code: &str, is_complete: fn(usize, usize) -> bool) {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let targets = [2, 3, 4, 5].map(|n| PushTarget::new(&mut server, n));
    let (is_done, pushes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (shared, stop, count) = (&server, &is_done, &pushes);
    thread::scope(|scope| {
        let guard = StopGuard(stop);
        let attackers = targets.each_ref().map(|target| {
            scope.spawn(move || {
                let pack = delta_bomb(&target.work, &target.declared, is_complete);
                while !stop.load(Ordering::Relaxed) {
                    count.fetch_add(1, Ordering::Relaxed);
                    let report = target.push(shared, &pack);
                    assert!(report.contains(&format!("ng {MAIN} {code}")), "{report}");
                }
            })
        });
        eventually("all attackers push", || (count.load(Ordering::Relaxed) >= 4).then_some(()));
        for _ in 0..3 {
            bystander.expect_unaffected(shared, what);
        }
        drop(guard);
        for attacker in attackers {
            attacker.join().expect("a push was not rejected as expected");
        }
    });
    eprintln!("{what}: {} pushes", pushes.into_inner());
    expect_nothing_left(&server);
}

/// Four signed pushes of 256 KB used to occupy all checks of packs for minutes.
#[test]
fn delta_bombs_do_not_delay_other_pushes() {
    expect_unaffected_by_pushes("delta bombs", "E-PACK-UNPACKED", |_, bytes| bytes >= BOMB_BYTES);
}

/// Packs that expand as much as is allowed are checked. One network cannot occupy all checks with them.
#[test]
fn packs_below_the_limit_do_not_delay_other_pushes() {
    expect_unaffected_by_pushes("packs of a gigabyte", "E-PACK-INCOMPLETE", |deltas, _| deltas == 66);
}

/// Packs of other git servers used to be checked with the permits of pushes.
#[test]
fn git_servers_with_bombs_do_not_delay_pushes() {
    let relay = IndependentRelay::start();
    let relay_url: &'static str = Box::leak(relay.url().into_boxed_str());
    let mut server = TestServer::with_settings(&[
        BEHIND_PROXY,
        ("SYNC_ENABLE", "true"),
        ("SYNC_ALLOW_NON_GLOBAL_TARGETS", "true"),
        ("SYNC_BATCH_WINDOW_MS", "100"),
        ("SYNC_BOOTSTRAP_RELAY_URL", relay_url),
    ]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let mut client = relay.client();
    let mut git_servers = Vec::new();
    for n in 2..10 {
        let (owner, (work, oid)) = (server.maintainer(n), one_commit(&format!("{n}")));
        let git_server = GitServer::start();
        git_server.import_refs("bomb", &work, &[MAIN]);
        git_server.set_mode(GitServerMode::Pack(delta_bomb(&work, &oid, |_, bytes| bytes >= BOMB_BYTES)));
        let clone = vec!["clone".to_owned(), git_server.url("bomb")];
        assert!(client.publish(&owner.announce_with("bomb", BASE_TIME, vec![clone])).0);
        assert!(client.publish(&owner.state("bomb", BASE_TIME, &main_at(&oid))).0);
        git_servers.push(git_server);
    }
    eventually("all git servers have sent a pack", || {
        git_servers.iter().all(|server| server.sent_bytes() > BOMB_BYTES).then_some(())
    });
    for _ in 0..3 {
        bystander.expect_unaffected(&server, "git servers with bombs");
    }
    eventually("no pack is left", || (child_count(&server.process) == 0).then_some(()));
    expect_nothing_left(&server);
}

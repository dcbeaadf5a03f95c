//! Load: many concurrent clones, followers and uploads. Every request is answered, each network gets a fair share, and
//! pushes still work.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use grasp_core::limits;
use grasp_sim::signer::Author;
use grasp_sim::simulation::parallel::is_soak;

use crate::support::attack::{ResourceMonitor, connect, expect_nothing_left, files};
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text, repo_path};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, HttpResponse, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, packet};
use crate::support::{Server, eventually, wire};

const PROXY: (&str, &str) = ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8");

/// Header of requests that come from a first network.
const NETWORK_A: &str = "X-Forwarded-For: 203.0.113.7";
/// Header of requests that come from a second network.
const NETWORK_B: &str = "X-Forwarded-For: 198.51.100.7";

/// Returns the request of a full clone. An unknown object id makes it different from other requests, so that the pack
/// cache does not response it.
fn clone_request(oid: &str, nth: usize) -> String {
    let lines = [format!("want {oid}\n"), format!("have {nth:040x}\n"), "ofs-delta\n".to_owned(), "done\n".to_owned()];
    packet("command=fetch") + "0001" + &lines.map(|line| packet(&line)).concat() + "0000"
}

/// Clones without git; returns the response.
fn clone(server: &Server, path: &str, body: &str, from: &str) -> HttpResponse {
    wire::request_with_body(
        server,
        &format!("{path}/git-upload-pack"),
        &[UPLOAD_REQUEST, VERSION_2, from],
        body.as_bytes(),
    )
}

/// Returns whether the response is a complete pack. Any other response must have a `Retry-After` header.
#[track_caller]
fn has_pack(response: &HttpResponse) -> bool {
    if response.status == 200 {
        let has_signature = response.body.windows(4).any(|window| window == b"PACK");
        assert!(has_signature && response.body.ends_with(b"0000"), "{} bytes: {}", response.body.len(), response.head);
        return true;
    }
    assert!(matches!(response.status, 429 | 503), "{}", response.head);
    assert!(response.header("retry-after").is_some_and(|secs| secs.parse::<u64>().is_ok()), "{}", response.head);
    false
}

/// Creates a repository with five commits; returns the working tree and the last commit.
fn create_history(server: &mut TestServer, owner: &Maintainer) -> (WorkTree, String) {
    let work = WorkTree::new();
    for n in 0..5 {
        work.commit(&format!("file{n}"), &incompressible_text(20_000 + n));
    }
    let tip = work.oid("HEAD");
    server.create_repo(owner, "tool", &[], &work, &main_at(&tip));
    (work, tip)
}

#[test]
fn concurrent_clones_share_the_processes_and_do_not_block_pushes() {
    let mut server = TestServer::with_settings(&[("GIT_SERVE_PROCESSES", "4"), PROXY]);
    let owner = server.maintainer(1);
    let (work, tip) = create_history(&mut server, &owner);
    let path = repo_path(&owner.npub(), "tool");
    let (other, c1) = one_commit("other");
    server.publish_held(&owner.announce("other", BASE_TIME, &[]));
    let state = owner.state("other", BASE_TIME, &main_at(&c1));
    server.publish_held(&state);
    let url = server.url(&owner, "other");

    let monitor = ResourceMonitor::start(&server.process);
    let (served, begun) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let process = &server.process;
    thread::scope(|scope| {
        for nth in 0..500 {
            let (path, tip, served, begun) = (&path, &tip, &served, &begun);
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let from = if nth % 2 == 0 { NETWORK_A } else { NETWORK_B };
                if has_pack(&clone(process, path, &clone_request(tip, nth), from)) {
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("all clones have begun", || (begun.load(Ordering::Relaxed) == 500).then_some(()));
        other.push(&url, &["main"]).expect_success();
    });
    let served = served.into_inner();
    let peaks = monitor.expect_flat_memory("500 clones");
    eprintln!("{served} of 500 clones were served");
    assert!(peaks.serving <= 4, "{} processes at the same time", peaks.serving);
    assert!(served >= 100, "{served} of 500 were served");
    drop(monitor);
    server.expect_served(&[&state]);

    // Equal requests share one pack.
    let c2 = work.commit("file", "more");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 1, &work, &main_at(&c2));
    let monitor = ResourceMonitor::start(&server.process);
    let body = clone_request(&c2, 0);
    let process = &server.process;
    let responses: Vec<HttpResponse> = thread::scope(|scope| {
        let requests: Vec<_> = (0..500).map(|_| scope.spawn(|| clone(process, &path, &body, NETWORK_A))).collect();
        requests.into_iter().map(|request| request.join().expect("the requesting thread panicked")).collect()
    });
    let first = &responses[0].body;
    assert!(responses.iter().all(|response| has_pack(response) && response.body == *first), "responses differ");
    let peaks = monitor.expect_flat_memory("500 equal clones");
    assert!(peaks.serving <= 1, "{} processes at the same time", peaks.serving);
    expect_nothing_left(&server);
}

#[test]
fn network_with_many_clones_does_not_delay_another() {
    let mut server = TestServer::with_settings(&[("GIT_SERVE_PROCESSES", "1"), PROXY]);
    let owner = server.maintainer(1);
    let (_work, tip) = create_history(&mut server, &owner);
    let path = repo_path(&owner.npub(), "tool");
    let done = AtomicUsize::new(0);
    let process = &server.process;
    thread::scope(|scope| {
        for nth in 0..60 {
            let (path, tip, done) = (&path, &tip, &done);
            scope.spawn(move || {
                assert!(has_pack(&clone(process, path, &clone_request(tip, nth), NETWORK_A)));
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("one clone is done", || (done.load(Ordering::Relaxed) > 0).then_some(()));
        let before = done.load(Ordering::Relaxed);
        assert!(has_pack(&clone(process, &path, &clone_request(&tip, 1_000), NETWORK_B)));
        let meanwhile = done.load(Ordering::Relaxed) - before;
        eprintln!("{before} of 60 were served before, {meanwhile} meanwhile");
        assert!(before + 30 < 60, "the test is too slow to measure: {before}");
        assert!(meanwhile <= 20, "{meanwhile} clones of the other network were served first");
    });
}

#[test]
fn disconnected_clients_leave_the_queue() {
    let mut server = TestServer::with_settings(&[("GIT_SERVE_PROCESSES", "1"), PROXY]);
    let owner = server.maintainer(1);
    let (_work, tip) = create_history(&mut server, &owner);
    let path = repo_path(&owner.npub(), "tool");
    // Four times as many as may wait; each disconnects at once.
    for nth in 0..4 * limits::MAX_WAITING_FETCHES_PER_NETWORK {
        let body = clone_request(&tip, nth);
        let length = format!("Content-Length: {}", body.len());
        let headers = [UPLOAD_REQUEST, VERSION_2, NETWORK_A, &length];
        let head = wire::request_head(&server.process, "POST", &format!("{path}/git-upload-pack"), &headers);
        connect(&server.process).write_all((head + &body).as_bytes()).expect("cannot write to the connection");
    }
    eventually("a clone is accepted again", || {
        has_pack(&clone(&server.process, &path, &clone_request(&tip, 10_000), NETWORK_A)).then_some(())
    });
    expect_nothing_left(&server);
}

/// Returns the number of owners with a repository `tool` or `other` that has refs on disk.
fn folders_with_refs(server: &TestServer) -> usize {
    let owners = fs::read_dir(server.git_folder().join("repos")).expect("cannot read the folder").flatten();
    let has_refs = |owner: &fs::DirEntry, name: &str| owner.path().join(name).join("packed-refs").exists();
    owners.filter(|owner| ["tool.git", "other.git"].iter().any(|name| has_refs(owner, name))).count()
}

#[test]
fn followers_do_not_delay_pushes() {
    // Enough that their alignment takes much longer than a push.
    let follower_count = if is_soak() { 1_000 } else { 250 };
    let mut server = TestServer::new();
    let [owner, other_owner, ..] = server.maintainers();
    let followers: Vec<Maintainer> = (0..follower_count)
        .map(|n| {
            Author::in_group(
                1 + u8::try_from(n / 250).expect("number fits in u8"),
                u8::try_from(n % 250).expect("number fits in u8"),
            )
        })
        .map(|author| Maintainer::from_author(author, &server.service))
        .collect();
    for follower in &followers {
        server.client.send_text(&format!("[\"EVENT\",{}]", follower.announce("tool", BASE_TIME, &[&owner]).json()));
    }
    for _ in &followers {
        let message = server.client.receive();
        assert_eq!((&message[0], &message[2]), (&"OK".into(), &true.into()), "{message}");
    }
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let (work, c1) = one_commit("one");
    let state = owner.state("tool", BASE_TIME, &main_at(&c1));
    server.publish_held(&state);
    work.push(&server.url(&owner, "tool"), &["main"]).expect_success();
    let aligned = folders_with_refs(&server);
    server.expect_served(&[&state]);
    server.expect_refs(&owner, "tool", &main_at(&c1));
    eprintln!("{aligned} of {} repositories were aligned when git ended", follower_count + 1);
    assert!(aligned <= follower_count, "the push waited for all followers");

    // A push of another owner does not wait either, nor does the next push of the first owner.
    let (other, c2) = one_commit("other");
    server.create_repo(&other_owner, "other", &[], &other, &main_at(&c2));
    let c3 = work.commit("file", "three");
    server.push_state(&owner, &owner, "tool", BASE_TIME + 1, &work, &main_at(&c3));
    let aligned = folders_with_refs(&server);
    eprintln!("{aligned} of {} repositories were aligned when two more pushes ended", follower_count + 2);
    assert!(aligned <= follower_count, "the pushes waited for all followers");

    // All of them are aligned in the end, without any request. Polling is slow because it takes time itself.
    let begun = Instant::now();
    let mut aligned = 0;
    while aligned < follower_count + 2 {
        assert!(begun.elapsed() < Duration::from_secs(300), "only {aligned} are aligned");
        thread::sleep(Duration::from_millis(500));
        aligned = folders_with_refs(&server);
    }
    eprintln!("all {aligned} repositories were aligned {} seconds later", begun.elapsed().as_secs());
    for follower in [&followers[0], &followers[follower_count / 2], &followers[follower_count - 1]] {
        server.eventually_refs(follower, "tool", &main_at(&c3));
        assert_eq!(WorkTree::clone(&server.url(follower, "tool")).oid("HEAD"), c3);
    }
    // Followers share the owner's packs and do not copy them.
    let packs = files(&server.git_folder()).keys().filter(|path| path.ends_with(".pack")).count();
    assert!(packs < 10, "{packs} packs");
    expect_nothing_left(&server);
}

/// Pushes new refs that all point to `tip`; returns the report of the server.
fn push_refs(server: &Server, path: &str, headers: &[&str], names: &[String], tip: &str, pack: &[u8]) -> String {
    let commands: Vec<[&str; 3]> = names.iter().map(|name| [ZERO, tip, name]).collect();
    wire::request_with_body(server, path, headers, &wire::push_body(&commands, CAPABILITIES, pack)).text()
}

/// Returns the ref of a pull request whose event is not known.
fn pull_request_ref(nth: usize) -> String {
    format!("refs/nostr/{nth:064x}")
}

#[test]
fn uploads_without_event_are_limited_per_network() {
    let settings = [PROXY, ("PURGATORY_EXPIRY_SECS", "15"), ("GIT_MAX_UNSIGNED_PUSH_BYTES", "20000")];
    let mut server = TestServer::with_settings(&settings);
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    let c2 = work.commit("file", "pull request");
    let pack = work.pack(&[&c2, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let push = |from: &str, names: &[String], tip: &str, pack: &[u8]| {
        push_refs(&server.process, &path, &[RECEIVE_REQUEST, from], names, tip, pack)
    };
    let name = pull_request_ref;

    let c3 = work.commit("large", &incompressible_text(60_000));
    let large = work.pack(&[&c2, &c3, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file"), &work.oid("HEAD:large")]);
    let report = push(NETWORK_A, &[name(9_999)], &c3, &large);
    assert!(report.contains("E-PACK-TOO-LARGE"), "{report}");

    let mut uploaded = 0;
    while uploaded < limits::MAX_UPLOADS_PER_NETWORK {
        let count = limits::MAX_UPLOADS_PER_PUSH.min(limits::MAX_UPLOADS_PER_NETWORK - uploaded);
        let names: Vec<String> = (uploaded..uploaded + count).map(name).collect();
        let report = push(NETWORK_A, &names, &c2, &pack);
        assert!(report.contains(&format!("ok {}", names[0])) && !report.contains("ng "), "{uploaded}: {report}");
        uploaded += count;
    }
    let report = push(NETWORK_A, &[name(1_000)], &c2, &pack);
    assert!(report.contains("E-PR-ROOM"), "{report}");
    let report = push(NETWORK_B, &[name(2_000)], &c2, &pack);
    assert!(report.contains(&format!("ok {}", name(2_000))), "{report}");
    // The uploads are not visible.
    server.expect_refs(&owner, "tool", &main_at(&c1));
    let staged = || fs::read_dir(server.git_folder().join("staged")).expect("cannot read the folder").count();
    assert!(staged() > 0);
    eventually("uploads without event have expired", || (staged() == 0).then_some(()));
    let report = push(NETWORK_A, &[name(1_000)], &c2, &pack);
    assert!(report.contains(&format!("ok {}", name(1_000))), "{report}");
    // A push that a state authorises does not count against the limit.
    let state = owner.state("tool", BASE_TIME + 1, &[(MAIN, &c3)]);
    server.publish_held(&state);
    work.push(&server.url(&owner, "tool"), &[&format!("{c3}:{MAIN}")]).expect_success();
    server.expect_served(&[&state]);
}

/// A proxy on the same machine connects from loopback, which has no limits. If it is not trusted, all of its clients
/// count as one network.
#[test]
fn uploads_through_an_untrusted_proxy_share_one_limit() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    let c2 = work.commit("file", "pull request");
    let pack = work.pack(&[&c2, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let push = |from: &[&str], names: &[String]| {
        push_refs(&server.process, &path, &[&[RECEIVE_REQUEST], from].concat(), names, &c2, &pack)
    };
    let names: Vec<String> = (0..limits::MAX_UPLOADS_PER_NETWORK).map(pull_request_ref).collect();
    for (part, from) in names.chunks(limits::MAX_UPLOADS_PER_PUSH).zip([NETWORK_A, NETWORK_B].into_iter().cycle()) {
        let report = push(&[from], part);
        assert!(report.contains(&format!("ok {}", part[0])) && !report.contains("ng "), "{report}");
    }
    let one_more = [pull_request_ref(1_000)];
    for from in [NETWORK_A, NETWORK_B] {
        let report = push(&[from], &one_more);
        assert!(report.contains("E-PR-ROOM"), "{report}");
    }
    let report = push(&[], &one_more);
    assert!(report.contains(&format!("ok {}", one_more[0])), "a program on this machine is not limited: {report}");
}

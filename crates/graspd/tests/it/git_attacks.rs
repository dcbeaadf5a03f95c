//! Attacks with request bodies and packs: endless, very slow, or compressed so that they grow when unpacked. Each is
//! rejected with a reason, the server's memory stays bounded, and other clients are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::attack::{
    BLOB, COMMIT, MB, PackBuilder, ResourceMonitor, append_sha1, child_count, connect, expect_nothing_left, gzip,
    gzipped_zeros, read_to_close,
};
use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text, repo_path};
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, ls_refs, packet};
use crate::support::{eventually, wire};

/// A server with one repository that has one commit, and a held state that declares a second commit, which only the
/// working tree has.
struct AttackedServer {
    server: TestServer,
    owner: Maintainer,
    work: WorkTree,
    /// The commit that the server has.
    first: String,
    /// The commit that the held state declares.
    second: String,
}

impl AttackedServer {
    fn new(settings: &[(&'static str, &'static str)]) -> Self {
        let mut server = TestServer::with_settings(settings);
        let owner = server.maintainer(1);
        let (work, first) = one_commit("one");
        server.create_repo(&owner, "tool", &[], &work, &main_at(&first));
        server.publish_held(&owner.announce("bare", BASE_TIME, &[]));
        let second = work.commit("file", "two");
        server.publish_held(&owner.state("tool", BASE_TIME + 1, &main_at(&second)));
        Self { server, owner, work, first, second }
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn receive_path(&self) -> String {
        format!("{}/git-receive-pack", self.path())
    }

    fn upload_path(&self) -> String {
        format!("{}/git-upload-pack", self.path())
    }

    /// Returns the commands of the push that the held state allows.
    fn allowed_commands(&self) -> [[&str; 3]; 1] {
        [[&self.first, &self.second, MAIN]]
    }

    /// Pushes a pack with the allowed commands, and asserts that the push is rejected with this code.
    #[track_caller]
    fn expect_rejected(&self, what: &str, pack: &[u8], code: &str) {
        let report = wire::push(&self.server.process, &self.path(), &self.allowed_commands(), pack).text();
        assert!(report.contains(&format!("ng {MAIN} {code}")), "{what}: {report}");
        self.server.expect_refs(&self.owner, "tool", &main_at(&self.first));
    }

    /// Asserts that the attack changed nothing and left nothing behind, and that the declared commit can still be
    /// pushed.
    #[track_caller]
    fn expect_unharmed(&mut self) {
        expect_nothing_left(&self.server);
        self.server.expect_refs(&self.owner, "tool", &main_at(&self.first));
        self.work.push(&self.server.url(&self.owner, "tool"), &["main"]).expect_success();
        let clone = WorkTree::clone(&self.server.url(&self.owner, "tool"));
        assert_eq!(clone.oid("HEAD"), self.second);
        expect_nothing_left(&self.server);
    }
}

/// The framing of an endless request body.
#[derive(Clone, Copy, Debug)]
enum BodyFraming {
    Length,
    Chunked,
}

impl BodyFraming {
    fn header(self) -> &'static str {
        match self {
            Self::Length => "Content-Length: 10737418240",
            Self::Chunked => "Transfer-Encoding: chunked",
        }
    }

    fn part(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Length => bytes.to_vec(),
            Self::Chunked => [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
        }
    }
}

/// Reads until these words have been received.
fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let mut received = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&received);
        if text.contains(words) {
            return text.into_owned();
        }
        match stream.read(&mut buffer) {
            Ok(0) => panic!("the response ends without {words}: {text}"),
            Ok(read) => received.extend_from_slice(&buffer[..read]),
            Err(error) => panic!("{error} before {words}: {text}"),
        }
    }
}

/// Sends until the server closes the connection; returns the number of bytes that it read.
fn send_endlessly(stream: &mut TcpStream, framing: BodyFraming) -> u64 {
    let part = framing.part(&vec![b'x'; MB as usize]);
    for sent in 0..10 * 1_024 {
        match stream.write_all(&part) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the server neither reads nor closes"),
            Err(_) => return sent * MB,
        }
    }
    panic!("the server read everything")
}

#[test]
fn body_of_ten_gibibytes_is_read_only_up_to_the_limit() {
    const LIMIT: u64 = 100_000_000;
    let mut target = AttackedServer::new(&[("GIT_MAX_PUSH_BYTES", "100000000")]);
    let monitor = ResourceMonitor::start(&target.server.process);
    let bare = repo_path(&target.owner.npub(), "bare");
    for framing in [BodyFraming::Length, BodyFraming::Chunked] {
        // There is no state, so the rejection is sent before the body is read.
        let path = format!("{bare}/git-receive-pack");
        let mut stream = connect(&target.server.process);
        let head = wire::request_head(&target.server.process, "POST", &path, &[RECEIVE_REQUEST, framing.header()]);
        let commands = wire::push_body(&[[ZERO, &target.second, MAIN]], CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09");
        stream.write_all(head.as_bytes()).expect("cannot write to the connection");
        stream.write_all(&framing.part(&commands)).expect("cannot write to the connection");
        read_until(&mut stream, "ng refs/heads/main E-STATE-MISSING");
        let read = send_endlessly(&mut stream, framing);
        assert!((LIMIT..LIMIT + 50 * MB).contains(&read), "{framing:?}: {read} bytes were read");

        // The push is authorised but too large. The server reads up to the limit once more, so that the client receives
        // the reason.
        let mut stream = connect(&target.server.process);
        let head = wire::request_head(
            &target.server.process,
            "POST",
            &target.receive_path(),
            &[RECEIVE_REQUEST, framing.header()],
        );
        let commands = wire::push_body(&target.allowed_commands(), CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09");
        stream.write_all(head.as_bytes()).expect("cannot write to the connection");
        stream.write_all(&framing.part(&commands)).expect("cannot write to the connection");
        let mut reader = stream.try_clone().expect("cannot clone the stream");
        let response = std::thread::spawn(move || String::from_utf8_lossy(&read_to_close(&mut reader)).into_owned());
        let read = send_endlessly(&mut stream, framing);
        assert!((LIMIT..2 * LIMIT + 50 * MB).contains(&read), "{framing:?}: {read} bytes were read");
        let response = response.join().expect("the reading thread panicked");
        assert!(response.contains("E-PACK-TOO-LARGE"), "{framing:?}: {response}");
        expect_nothing_left(&target.server);
    }
    monitor.expect_flat_memory("body of ten gibibytes");
    target.expect_unharmed();
}

#[test]
fn gzip_bombs_are_not_unpacked() {
    let mut target = AttackedServer::new(&[("GIT_MAX_PUSH_BYTES", "50000000")]);
    let monitor = ResourceMonitor::start(&target.server.process);
    let bomb = gzipped_zeros(1_024);
    assert!(bomb.len() < 6_000_000, "{}", bomb.len());
    let zipped = "Content-Encoding: gzip";
    let send = |path: &str, headers: &[&str], body: &[u8]| {
        wire::request_with_body(&target.server.process, path, headers, body)
    };

    assert_eq!(send(&target.upload_path(), &[UPLOAD_REQUEST, VERSION_2, zipped], &bomb).status, 413);
    let response = send(&target.receive_path(), &[RECEIVE_REQUEST, zipped], &bomb);
    assert!(response.text().contains("ERR E-PUSH-PACKET"), "{}", response.text());
    // After valid commands.
    let mut body = gzip(&wire::push_body(&target.allowed_commands(), CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09"));
    body.extend_from_slice(&bomb);
    let response = send(&target.receive_path(), &[RECEIVE_REQUEST, zipped], &body);
    assert!(response.text().contains("E-PACK-TOO-LARGE"), "{}", response.text());
    // After a valid request, as a second gzip member.
    let mut body = gzip(ls_refs().as_bytes());
    body.extend_from_slice(&bomb);
    assert_eq!(send(&target.upload_path(), &[UPLOAD_REQUEST, VERSION_2, zipped], &body).status, 413);

    let whole = gzip(ls_refs().as_bytes());
    for broken in [&whole[..whole.len() - 9], b"\x1f\x8b", b"hello", &[0; 1_000]] {
        let response = send(&target.upload_path(), &[UPLOAD_REQUEST, VERSION_2, zipped], broken);
        assert_eq!(response.status, 400, "{broken:?}: {}", response.text());
        let response = send(&target.receive_path(), &[RECEIVE_REQUEST, zipped], broken);
        assert!(
            response.status == 200 && response.text().contains("ERR E-PUSH-BODY"),
            "{broken:?}: {}",
            response.text()
        );
    }
    for encoding in ["br", "deflate", "zstd", "gzip, gzip", "compress", "\u{1f680}"] {
        let header = format!("Content-Encoding: {encoding}");
        assert_eq!(send(&target.upload_path(), &[UPLOAD_REQUEST, &header], &whole).status, 415, "{encoding}");
        assert_eq!(send(&target.receive_path(), &[RECEIVE_REQUEST, &header], &whole).status, 415, "{encoding}");
    }
    monitor.expect_flat_memory("gzip bombs");
    target.expect_unharmed();
}

#[test]
fn memory_of_fetch_requests_is_freed_when_clients_disconnect() {
    let mut target = AttackedServer::new(&[("GIT_SERVE_PROCESSES", "1")]);
    let monitor = ResourceMonitor::start(&target.server.process);
    // Eight megabytes of ids of objects that do not exist; each request differs from the others.
    let haves: String = (0..160_000_u64).map(|n| packet(&format!("have {n:040x}\n"))).collect();
    for nth in 0..24 {
        let want = packet("command=fetch") + "0001" + &packet(&format!("want {}\n", target.first));
        let want = want + &packet(&format!("have {:040x}\n", u64::MAX - nth));
        let done = packet("done\n") + "0000";
        let length = format!("Content-Length: {}", want.len() + haves.len() + done.len());
        let head = wire::request_head(
            &target.server.process,
            "POST",
            &target.upload_path(),
            &[UPLOAD_REQUEST, VERSION_2, &length],
        );
        let mut stream = connect(&target.server.process);
        for part in [&head, &want, &haves, &done] {
            stream.write_all(part.as_bytes()).expect("cannot write to the connection");
        }
    }
    let peaks = monitor.peaks();
    eprintln!("24 large fetch requests: {peaks:?}");
    assert!(peaks.server < 300 * MB, "the server's memory grew by {} MB", peaks.server / MB);
    target.expect_unharmed();
}

#[test]
fn push_with_too_many_commands_is_rejected() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let path = repo_path(&owner.npub(), "tool");
    let names: Vec<String> = (0..100_000).map(|n| format!("refs/tags/{n}")).collect();
    let mut commands: Vec<[&str; 3]> = names.iter().map(|name| [ZERO, &c1, name]).collect();
    let pack = work.pack(&[&c1, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);

    let monitor = ResourceMonitor::start(&server.process);
    let report = wire::push(&server.process, &path, &commands, &pack).text();
    assert!(report.contains("E-PUSH-COMMANDS: the push changes more than 20000 refs"), "{}", &report[..500]);
    // Several such pushes at the same time do not use more memory.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let report = wire::push(&server.process, &path, &commands, &pack).text();
                assert!(report.contains("E-PUSH-COMMANDS") || report.contains("E-BUSY"), "{}", &report[..500]);
            });
        }
    });
    monitor.expect_flat_memory("100,000 commands");

    commands.truncate(20_000);
    let report = wire::push(&server.process, &path, &commands, &pack).text();
    assert!(report.contains("E-STATE-MISSING"), "{}", &report[..500]);
    server.expect_refs(&owner, "tool", &[]);
    // As many refs as fit into one state, and deletions of refs that do not exist.
    let declared: Vec<(&str, &str)> = names[..15_000].iter().map(|name| (name.as_str(), c1.as_str())).collect();
    for command in &mut commands[15_000..] {
        command[1] = ZERO;
    }
    server.publish_held(&owner.state("tool", BASE_TIME, &declared));
    let report = wire::push(&server.process, &path, &commands, &pack).text();
    assert!(report.contains("ok refs/tags/19999") && !report.contains("ng refs/"), "{}", &report[..500]);
    server.expect_refs(&owner, "tool", &declared);
    expect_nothing_left(&server);
}

#[test]
fn pack_bombs_are_rejected_in_bounded_memory_and_time() {
    // The limit of an object is 16 MB here, far below what the packs would need.
    let mut target = AttackedServer::new(&[("GIT_MAX_OBJECT_BYTES", "16777216")]);
    let commit = target.work.git(&["cat-file", "commit", &target.second]).expect_success().stdout;
    let pack_with_commit = || {
        let mut pack = PackBuilder::new();
        pack.object(COMMIT, &commit);
        pack
    };
    let monitor = ResourceMonitor::start(&target.server.process);

    // A large blob that is compressed to a thousandth of its size.
    let mut bomb = pack_with_commit();
    bomb.zeros(320 * MB, 320 * MB);
    let bomb = bomb.finish();
    assert!(bomb.len() < 2_000_000, "{}", bomb.len());
    target.expect_rejected("zip bomb", &bomb, "E-PACK-OBJECT-TOO-LARGE");
    // A zip bomb whose header declares a small size.
    let mut bomb = pack_with_commit();
    bomb.zeros(10, 320 * MB);
    target.expect_rejected("zip bomb with a small declared size", &bomb.finish(), "E-PACK-CHECK");
    // A small blob whose header declares a huge size.
    let mut bomb = pack_with_commit();
    bomb.zeros(u64::MAX >> 4, 10);
    target.expect_rejected("small blob with a huge declared size", &bomb.finish(), "E-PACK-");

    // Deltas that each repeat the previous object eight times: gigabytes in a kilobyte.
    let mut bomb = pack_with_commit();
    let (mut base, mut size) = (bomb.offset(), 64);
    bomb.object(BLOB, &[b'x'; 64]);
    for _ in 0..9 {
        let offset = bomb.offset();
        size = bomb.repeat_base(base, size, 8);
        base = offset;
    }
    let bomb = bomb.finish();
    assert!(bomb.len() < 1_024 && size > 8_000 * MB, "{} bytes become {size}", bomb.len());
    target.expect_rejected("delta bomb", &bomb, "E-PACK-OBJECT-TOO-LARGE");

    // Two thousand objects just below the size limit: gigabytes to check.
    let mut bomb = pack_with_commit();
    let base = bomb.offset();
    bomb.zeros(15 * MB, 15 * MB);
    for _ in 0..2_000 {
        bomb.repeat_base(base, 15 * MB, 1);
    }
    target.expect_rejected("checks that would take minutes", &bomb.finish(), "E-PACK-UNPACKED");

    let peaks = monitor.expect_flat_memory("pack bombs");
    assert!(peaks.child < 200 * MB, "a child process used {} MB", peaks.child / MB);
    target.expect_unharmed();
}

#[test]
fn malformed_packs_are_rejected() {
    let mut target = AttackedServer::new(&[]);
    let work = &target.work;
    let pack = work.pack(&[&target.second, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let content = &pack[..pack.len() - 20];
    let with = |at: usize, bytes: &[u8]| {
        let mut pack = content.to_vec();
        pack[at..at + bytes.len()].copy_from_slice(bytes);
        append_sha1(pack)
    };
    let mut other_trailer = pack.clone();
    *other_trailer.last_mut().expect("pack has a trailer") ^= 1;
    for (what, pack, code) in [
        ("truncated in its trailer", pack[..pack.len() - 1].to_vec(), "E-PACK-CHECK"),
        ("truncated in an object", pack[..40].to_vec(), "E-PACK-CHECK"),
        ("truncated after its header", pack[..12].to_vec(), "E-PACK-CHECK"),
        ("truncated in its header", pack[..11].to_vec(), "E-PACK-FORMAT"),
        ("wrong trailer", other_trailer, "E-PACK-CHECK"),
        ("no trailer", content.to_vec(), "E-PACK-CHECK"),
        ("declares 4,294,967,295 objects", with(8, &[0xff; 4]), "E-PACK-OBJECTS"),
        ("declares one object more", with(8, &[0, 0, 0, 4]), "E-PACK-CHECK"),
        ("declares one object less", with(8, &[0, 0, 0, 2]), "E-PACK-"),
        ("declares no objects", with(8, &[0, 0, 0, 0]), "E-PACK-FORMAT"),
        ("version 3", with(4, &[0, 0, 0, 3]), "E-PACK-FORMAT"),
        ("version 4", with(4, &[0, 0, 0, 4]), "E-PACK-FORMAT"),
        ("not a pack", with(0, b"KCAP"), "E-PACK-FORMAT"),
        ("followed by a few bytes", [&pack[..], b"something"].concat(), "E-PACK-CHECK"),
        ("followed by itself", [&pack[..], &pack[..]].concat(), "E-PACK-CHECK"),
        ("followed by many bytes", [&pack[..], &vec![0; 3 << 20]].concat(), "E-PACK-CHECK"),
        ("unknown object type", with(12, &[0x00]), "E-PACK-"),
        ("wrong object type", with(12, &[content[12] & 0x8f | BLOB << 4]), "E-PACK-"),
    ] {
        target.expect_rejected(what, &pack, code);
    }
    expect_nothing_left(&target.server);
    target.expect_unharmed();
}

/// Sends a request whose body never ends.
fn begin_request(target: &AttackedServer, path: &str, headers: &[&str], body: &[u8]) -> TcpStream {
    let mut stream = connect(&target.server.process);
    let headers = [headers, &["Transfer-Encoding: chunked", "X-Forwarded-For: 203.0.113.7"]].concat();
    let head = wire::request_head(&target.server.process, "POST", path, &headers);
    stream.write_all(head.as_bytes()).expect("cannot write to the connection");
    stream.write_all(&BodyFraming::Chunked.part(body)).expect("cannot write to the connection");
    stream
}

#[test]
fn slow_bodies_do_not_block_other_clients() {
    let proxy = ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8");
    let mut target = AttackedServer::new(&[("GIT_SERVE_PROCESSES", "2"), ("GIT_CHECK_PROCESSES", "1"), proxy]);
    let monitor = ResourceMonitor::start(&target.server.process);
    let mut slow = Vec::new();
    for _ in 0..25 {
        let commands = wire::push_body(&target.allowed_commands(), CAPABILITIES, b"PACK");
        slow.push(begin_request(&target, &target.receive_path(), &[RECEIVE_REQUEST], &commands));
        slow.push(begin_request(&target, &target.receive_path(), &[RECEIVE_REQUEST], &commands[..50]));
    }
    // Fetch requests that never end. Some are compressed, so that their size cannot be known.
    for _ in 0..50 {
        slow.push(begin_request(
            &target,
            &target.upload_path(),
            &[UPLOAD_REQUEST, VERSION_2],
            &ls_refs().as_bytes()[..20],
        ));
        let half = &gzip(ls_refs().as_bytes())[..20];
        slow.push(begin_request(
            &target,
            &target.upload_path(),
            &[UPLOAD_REQUEST, VERSION_2, "Content-Encoding: gzip"],
            half,
        ));
    }
    let owner = target.server.maintainer(2);
    let (work, c1) = one_commit(&incompressible_text(2_000_000));
    target.server.create_repo(&owner, "other", &[], &work, &main_at(&c1));
    assert_eq!(WorkTree::clone(&target.server.url(&owner, "other")).oid("HEAD"), c1);
    eventually("no slow request has a git process", || (child_count(&target.server.process) == 0).then_some(()));

    // More pushes than are received at the same time: the slow ones are dropped because others are waiting.
    for _ in 0..90 {
        slow.push(begin_request(&target, &target.receive_path(), &[RECEIVE_REQUEST], b"00"));
    }
    let c2 = work.commit("file", "two");
    target.server.push_state(&owner, &owner, "other", BASE_TIME + 1, &work, &main_at(&c2));
    assert_eq!(WorkTree::clone(&target.server.url(&owner, "other")).oid("HEAD"), c2);
    monitor.expect_flat_memory("slow bodies");
    drop(slow);
    target.expect_unharmed();
}

#[test]
fn clients_that_do_not_read_use_no_memory() {
    let mut target = AttackedServer::new(&[]);
    // Twenty megabytes, more than the socket buffers hold.
    let owner = target.server.maintainer(2);
    let (work, c1) = one_commit(&incompressible_text(40_000_000));
    target.server.create_repo(&owner, "large", &[], &work, &main_at(&c1));
    let path = format!("{}/git-upload-pack", repo_path(&owner.npub(), "large"));
    let body = packet("command=fetch") + "0001" + &packet(&format!("want {c1}\n")) + &packet("done\n") + "0000";
    let length = format!("Content-Length: {}", body.len());
    let request =
        wire::request_head(&target.server.process, "POST", &path, &[UPLOAD_REQUEST, VERSION_2, &length]) + &body;
    let monitor = ResourceMonitor::start(&target.server.process);
    let mut idle = Vec::new();
    for _ in 0..300 {
        let mut stream = connect(&target.server.process);
        stream.write_all(request.as_bytes()).expect("cannot write to the connection");
        idle.push(stream);
    }
    for stream in &mut idle {
        let mut start = [0; 1_000];
        stream.read_exact(&mut start).expect("cannot read the start of the response");
        assert!(start.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&start));
    }
    assert_eq!(WorkTree::clone(&target.server.url(&owner, "large")).oid("HEAD"), c1);
    monitor.expect_flat_memory("300 clients that do not read");
    drop(idle);
    target.expect_unharmed();
}

//! Bodies and packs that nobody sends by accident: without an end, without haste, and larger than they look. Each is
//! refused with a reason, the server stays as small as it was, and everybody else is served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use crate::support::attack::{
    BLOB, COMMIT, MB, Packer, Watch, children, connect, expect_nothing_left, gzip, gzipped_zeros, read_to_close, sealed,
};
use crate::support::git::{MAIN, Maintainer, THEN, Work, noise, repo_path};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, ls_refs, packet};
use crate::support::{eventually, wire};

/// A server with one repository that has a commit, and a state that waits for another one, which is in the tree only.
struct Scene {
    stage: Stage,
    owner: Maintainer,
    work: Work,
    /// Served.
    first: String,
    /// Declared.
    second: String,
}

impl Scene {
    fn new(settings: &[(&'static str, &'static str)]) -> Self {
        let mut stage = Stage::with(settings);
        let owner = stage.person(1);
        let (work, first) = one_commit("one");
        stage.found(&owner, "tool", &[], &work, &main_at(&first));
        stage.hold(&owner.announce("bare", THEN, &[]));
        let second = work.commit("file", "two");
        stage.hold(&owner.state("tool", THEN + 1, &main_at(&second)));
        Self { stage, owner, work, first, second }
    }

    fn path(&self) -> String {
        repo_path(&self.owner.npub(), "tool")
    }

    fn receive(&self) -> String {
        format!("{}/git-receive-pack", self.path())
    }

    fn upload(&self) -> String {
        format!("{}/git-upload-pack", self.path())
    }

    /// A push that the state allows.
    fn permitted(&self) -> [[&str; 3]; 1] {
        [[&self.first, &self.second, MAIN]]
    }

    /// Sends a pack with a push that the state allows, and demands that it is refused for this reason.
    #[track_caller]
    fn refused(&self, what: &str, pack: &[u8], code: &str) {
        let said = wire::push(&self.stage.server, &self.path(), &self.permitted(), pack).text();
        assert!(said.contains(&format!("ng {MAIN} {code}")), "{what}: {said}");
        self.stage.expect_refs(&self.owner, "tool", &main_at(&self.first));
    }

    /// Nothing has changed, nothing is left, and what the state declares can still be pushed.
    #[track_caller]
    fn unharmed(&mut self) {
        expect_nothing_left(&self.stage);
        self.stage.expect_refs(&self.owner, "tool", &main_at(&self.first));
        self.work.push(&self.stage.url(&self.owner, "tool"), &["main"]).done();
        let clone = Work::clone(&self.stage.url(&self.owner, "tool"));
        assert_eq!(clone.oid("HEAD"), self.second);
        expect_nothing_left(&self.stage);
    }
}

/// How a body without an end is announced.
#[derive(Clone, Copy, Debug)]
enum Dress {
    Length,
    Chunked,
}

impl Dress {
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

/// Reads until these words have come.
fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let mut heard = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let text = String::from_utf8_lossy(&heard);
        if text.contains(words) {
            return text.into_owned();
        }
        match stream.read(&mut buffer) {
            Ok(0) => panic!("it ends without {words}: {text}"),
            Ok(read) => heard.extend_from_slice(&buffer[..read]),
            Err(problem) => panic!("{problem} before {words}: {text}"),
        }
    }
}

/// Sends until the other side does not listen any more; gives the bytes that it took.
fn send_without_end(stream: &mut TcpStream, dress: Dress) -> u64 {
    let part = dress.part(&vec![b'x'; MB as usize]);
    for sent in 0..10 * 1_024 {
        match stream.write_all(&part) {
            Ok(()) => {}
            Err(problem) if problem.kind() == ErrorKind::WouldBlock => panic!("it neither listens nor leaves"),
            Err(_) => return sent * MB,
        }
    }
    panic!("it took everything")
}

#[test]
fn a_body_of_ten_gibibytes_is_not_worth_the_effort() {
    const LIMIT: u64 = 100_000_000;
    let mut scene = Scene::new(&[("GIT_MAX_PUSH_BYTES", "100000000")]);
    let watch = Watch::on(&scene.stage.server);
    let bare = repo_path(&scene.owner.npub(), "bare");
    for dress in [Dress::Length, Dress::Chunked] {
        // Nobody has signed anything: the answer is here before the body.
        let path = format!("{bare}/git-receive-pack");
        let mut stream = connect(&scene.stage.server);
        let head = wire::head(&scene.stage.server, "POST", &path, &[RECEIVE_REQUEST, dress.header()]);
        let commands = wire::push_body(&[[ZERO, &scene.second, MAIN]], CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09");
        stream.write_all(head.as_bytes()).expect("writes");
        stream.write_all(&dress.part(&commands)).expect("writes");
        read_until(&mut stream, "ng refs/heads/main E-STATE-MISSING");
        let taken = send_without_end(&mut stream, dress);
        assert!((LIMIT..LIMIT + 50 * MB).contains(&taken), "{dress:?}: {taken} bytes were taken");

        // SignedEvent, and too much: as much again is heard, so that the reason arrives.
        let mut stream = connect(&scene.stage.server);
        let head = wire::head(&scene.stage.server, "POST", &scene.receive(), &[RECEIVE_REQUEST, dress.header()]);
        let commands = wire::push_body(&scene.permitted(), CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09");
        stream.write_all(head.as_bytes()).expect("writes");
        stream.write_all(&dress.part(&commands)).expect("writes");
        let mut listener = stream.try_clone().expect("a second handle");
        let heard = std::thread::spawn(move || String::from_utf8_lossy(&read_to_close(&mut listener)).into_owned());
        let taken = send_without_end(&mut stream, dress);
        assert!((LIMIT..2 * LIMIT + 50 * MB).contains(&taken), "{dress:?}: {taken} bytes were taken");
        let heard = heard.join().expect("heard");
        assert!(heard.contains("E-PACK-TOO-LARGE"), "{dress:?}: {heard}");
        expect_nothing_left(&scene.stage);
    }
    watch.flat("ten gibibytes");
    scene.unharmed();
}

#[test]
fn gzip_bombs_are_not_unpacked() {
    let mut scene = Scene::new(&[("GIT_MAX_PUSH_BYTES", "50000000")]);
    let watch = Watch::on(&scene.stage.server);
    let bomb = gzipped_zeros(1_024);
    assert!(bomb.len() < 6_000_000, "{}", bomb.len());
    let zipped = "Content-Encoding: gzip";
    let post = |path: &str, headers: &[&str], body: &[u8]| wire::post(&scene.stage.server, path, headers, body);

    assert_eq!(post(&scene.upload(), &[UPLOAD_REQUEST, VERSION_2, zipped], &bomb).status, 413);
    let answer = post(&scene.receive(), &[RECEIVE_REQUEST, zipped], &bomb);
    assert!(answer.text().contains("ERR E-PUSH-PACKET"), "{}", answer.text());
    // Behind commands that are in order.
    let mut body = gzip(&wire::push_body(&scene.permitted(), CAPABILITIES, b"PACK\0\0\0\x02\0\0\0\x09"));
    body.extend_from_slice(&bomb);
    let answer = post(&scene.receive(), &[RECEIVE_REQUEST, zipped], &body);
    assert!(answer.text().contains("E-PACK-TOO-LARGE"), "{}", answer.text());
    // Behind a request that is in order, there is more than one.
    let mut body = gzip(ls_refs().as_bytes());
    body.extend_from_slice(&bomb);
    assert_eq!(post(&scene.upload(), &[UPLOAD_REQUEST, VERSION_2, zipped], &body).status, 413);

    let whole = gzip(ls_refs().as_bytes());
    for broken in [&whole[..whole.len() - 9], b"\x1f\x8b", b"hello", &[0; 1_000]] {
        let answer = post(&scene.upload(), &[UPLOAD_REQUEST, VERSION_2, zipped], broken);
        assert_eq!(answer.status, 400, "{broken:?}: {}", answer.text());
        let answer = post(&scene.receive(), &[RECEIVE_REQUEST, zipped], broken);
        assert!(answer.status == 200 && answer.text().contains("ERR E-PUSH-BODY"), "{broken:?}: {}", answer.text());
    }
    for encoding in ["br", "deflate", "zstd", "gzip, gzip", "compress", "\u{1f680}"] {
        let header = format!("Content-Encoding: {encoding}");
        assert_eq!(post(&scene.upload(), &[UPLOAD_REQUEST, &header], &whole).status, 415, "{encoding}");
        assert_eq!(post(&scene.receive(), &[RECEIVE_REQUEST, &header], &whole).status, 415, "{encoding}");
    }
    watch.flat("gzip bombs");
    scene.unharmed();
}

#[test]
fn fetch_requests_are_not_kept_for_whoever_hangs_up() {
    let mut scene = Scene::new(&[("GIT_SERVE_PROCESSES", "1")]);
    let watch = Watch::on(&scene.stage.server);
    // Eight megabytes of objects that nobody has; each request differs from the others.
    let haves: String = (0..160_000_u64).map(|n| packet(&format!("have {n:040x}\n"))).collect();
    for nth in 0..24 {
        let want = packet("command=fetch") + "0001" + &packet(&format!("want {}\n", scene.first));
        let want = want + &packet(&format!("have {:040x}\n", u64::MAX - nth));
        let done = packet("done\n") + "0000";
        let length = format!("Content-Length: {}", want.len() + haves.len() + done.len());
        let head = wire::head(&scene.stage.server, "POST", &scene.upload(), &[UPLOAD_REQUEST, VERSION_2, &length]);
        let mut stream = connect(&scene.stage.server);
        for part in [&head, &want, &haves, &done] {
            stream.write_all(part.as_bytes()).expect("writes");
        }
    }
    let peaks = watch.peaks();
    eprintln!("twenty-four large fetch requests: {peaks:?}");
    assert!(peaks.server < 300 * MB, "the server grew by {} MB", peaks.server / MB);
    scene.unharmed();
}

#[test]
fn a_hundred_thousand_commands_are_too_many_and_twenty_thousand_need_a_signature() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.hold(&owner.announce("tool", THEN, &[]));
    let path = repo_path(&owner.npub(), "tool");
    let names: Vec<String> = (0..100_000).map(|n| format!("refs/tags/{n}")).collect();
    let mut commands: Vec<[&str; 3]> = names.iter().map(|name| [ZERO, &c1, name]).collect();
    let pack = work.pack(&[&c1, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);

    let watch = Watch::on(&stage.server);
    let said = wire::push(&stage.server, &path, &commands, &pack).text();
    assert!(said.contains("E-PUSH-COMMANDS: the push changes more than 20000 refs"), "{}", &said[..500]);
    // A number of them at once does not make the sum larger.
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let said = wire::push(&stage.server, &path, &commands, &pack).text();
                assert!(said.contains("E-PUSH-COMMANDS") || said.contains("E-BUSY"), "{}", &said[..500]);
            });
        }
    });
    watch.flat("a hundred thousand commands");

    commands.truncate(20_000);
    let said = wire::push(&stage.server, &path, &commands, &pack).text();
    assert!(said.contains("E-STATE-MISSING"), "{}", &said[..500]);
    stage.expect_refs(&owner, "tool", &[]);
    // As many refs as a state has room for, and deletions of what is not there.
    let declared: Vec<(&str, &str)> = names[..15_000].iter().map(|name| (name.as_str(), c1.as_str())).collect();
    for command in &mut commands[15_000..] {
        command[1] = ZERO;
    }
    stage.hold(&owner.state("tool", THEN, &declared));
    let said = wire::push(&stage.server, &path, &commands, &pack).text();
    assert!(said.contains("ok refs/tags/19999") && !said.contains("ng refs/"), "{}", &said[..500]);
    stage.expect_refs(&owner, "tool", &declared);
    expect_nothing_left(&stage);
}

#[test]
fn packs_that_want_to_become_large_stay_small() {
    // An object may have 16 MB here, so that what is allowed and what is wanted are far apart.
    let mut scene = Scene::new(&[("GIT_MAX_OBJECT_BYTES", "16777216"), ("GIT_PROCESS_SECS", "2")]);
    let commit = scene.work.git(&["cat-file", "commit", &scene.second]).done().out;
    let begun = || {
        let mut pack = Packer::new();
        pack.object(COMMIT, &commit);
        pack
    };
    let watch = Watch::on(&scene.stage.server);

    // A large blob in a thousandth of its size.
    let mut bomb = begun();
    bomb.zeros(320 * MB, 320 * MB);
    let bomb = bomb.finish();
    assert!(bomb.len() < 2_000_000, "{}", bomb.len());
    scene.refused("a zip bomb", &bomb, "E-PACK-OBJECT-TOO-LARGE");
    // One that says it is small.
    let mut bomb = begun();
    bomb.zeros(10, 320 * MB);
    scene.refused("a zip bomb that lies", &bomb.finish(), "E-PACK-CHECK");
    // One that says it is large, and is small.
    let mut bomb = begun();
    bomb.zeros(u64::MAX >> 4, 10);
    scene.refused("a small zip bomb that lies", &bomb.finish(), "E-PACK-");

    // Deltas that each make eight of what came before: gigabytes in a kilobyte.
    let mut bomb = begun();
    let (mut base, mut size) = (bomb.place(), 64);
    bomb.object(BLOB, &[b'x'; 64]);
    for _ in 0..9 {
        let place = bomb.place();
        size = bomb.times(base, size, 8);
        base = place;
    }
    let bomb = bomb.finish();
    assert!(bomb.len() < 1_024 && size > 8_000 * MB, "{} bytes become {size}", bomb.len());
    scene.refused("a delta bomb", &bomb, "E-PACK-OBJECT-TOO-LARGE");

    // Two thousand objects that are each just not too large: gigabytes to look at.
    let mut bomb = begun();
    let base = bomb.place();
    bomb.zeros(15 * MB, 15 * MB);
    for _ in 0..2_000 {
        bomb.times(base, 15 * MB, 1);
    }
    scene.refused("work for minutes", &bomb.finish(), "E-PACK-TIME");

    let peaks = watch.flat("bombs in packs");
    assert!(peaks.child < 200 * MB, "a child took {} MB", peaks.child / MB);
    scene.unharmed();
}

#[test]
fn packs_that_are_not_what_they_say_are_refused() {
    let mut scene = Scene::new(&[]);
    let work = &scene.work;
    let pack = work.pack(&[&scene.second, &work.oid("HEAD^{tree}"), &work.oid("HEAD:file")]);
    let content = &pack[..pack.len() - 20];
    let with = |at: usize, bytes: &[u8]| {
        let mut pack = content.to_vec();
        pack[at..at + bytes.len()].copy_from_slice(bytes);
        sealed(pack)
    };
    let mut other_trailer = pack.clone();
    *other_trailer.last_mut().expect("a trailer") ^= 1;
    for (what, pack, code) in [
        ("cut off in its trailer", pack[..pack.len() - 1].to_vec(), "E-PACK-CHECK"),
        ("cut off in an object", pack[..40].to_vec(), "E-PACK-CHECK"),
        ("cut off behind its header", pack[..12].to_vec(), "E-PACK-CHECK"),
        ("cut off in its header", pack[..11].to_vec(), "E-PACK-FORMAT"),
        ("another trailer", other_trailer, "E-PACK-CHECK"),
        ("no trailer", content.to_vec(), "E-PACK-CHECK"),
        ("four thousand million objects", with(8, &[0xff; 4]), "E-PACK-OBJECTS"),
        ("one object more", with(8, &[0, 0, 0, 4]), "E-PACK-CHECK"),
        ("one object less", with(8, &[0, 0, 0, 2]), "E-PACK-"),
        ("no objects", with(8, &[0, 0, 0, 0]), "E-PACK-FORMAT"),
        ("version 3", with(4, &[0, 0, 0, 3]), "E-PACK-FORMAT"),
        ("version 4", with(4, &[0, 0, 0, 4]), "E-PACK-FORMAT"),
        ("no pack", with(0, b"KCAP"), "E-PACK-FORMAT"),
        ("something behind it", [&pack[..], b"something"].concat(), "E-PACK-CHECK"),
        ("itself behind it", [&pack[..], &pack[..]].concat(), "E-PACK-CHECK"),
        ("much behind it", [&pack[..], &vec![0; 3 << 20]].concat(), "E-PACK-CHECK"),
        ("an unknown kind of object", with(12, &[0x00]), "E-PACK-"),
        ("an object of the wrong kind", with(12, &[content[12] & 0x8f | BLOB << 4]), "E-PACK-"),
    ] {
        scene.refused(what, &pack, code);
    }
    expect_nothing_left(&scene.stage);
    scene.unharmed();
}

/// Begins a request whose body will not come to its end.
fn begin(scene: &Scene, path: &str, headers: &[&str], body: &[u8]) -> TcpStream {
    let mut stream = connect(&scene.stage.server);
    let headers = [headers, &["Transfer-Encoding: chunked", "X-Forwarded-For: 203.0.113.7"]].concat();
    let head = wire::head(&scene.stage.server, "POST", path, &headers);
    stream.write_all(head.as_bytes()).expect("writes");
    stream.write_all(&Dress::Chunked.part(body)).expect("writes");
    stream
}

#[test]
fn slow_bodies_stand_in_nobodys_way() {
    let proxy = ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8");
    let mut scene = Scene::new(&[("GIT_SERVE_PROCESSES", "2"), ("GIT_CHECK_PROCESSES", "1"), proxy]);
    let watch = Watch::on(&scene.stage.server);
    let mut slow = Vec::new();
    for _ in 0..25 {
        let commands = wire::push_body(&scene.permitted(), CAPABILITIES, b"PACK");
        slow.push(begin(&scene, &scene.receive(), &[RECEIVE_REQUEST], &commands));
        slow.push(begin(&scene, &scene.receive(), &[RECEIVE_REQUEST], &commands[..50]));
    }
    // Clones that never say to the end what they want; some claim to be gzipped, which could become anything.
    for _ in 0..50 {
        slow.push(begin(&scene, &scene.upload(), &[UPLOAD_REQUEST, VERSION_2], &ls_refs().as_bytes()[..20]));
        let half = &gzip(ls_refs().as_bytes())[..20];
        slow.push(begin(&scene, &scene.upload(), &[UPLOAD_REQUEST, VERSION_2, "Content-Encoding: gzip"], half));
    }
    let owner = scene.stage.person(2);
    let (work, c1) = one_commit(&noise(2_000_000));
    scene.stage.found(&owner, "other", &[], &work, &main_at(&c1));
    assert_eq!(Work::clone(&scene.stage.url(&owner, "other")).oid("HEAD"), c1);
    eventually("none of the slow ones has a child", || (children(&scene.stage.server) == 0).then_some(()));

    // As many pushes as are received at once, and more: the slow ones are sent away because others wait.
    for _ in 0..90 {
        slow.push(begin(&scene, &scene.receive(), &[RECEIVE_REQUEST], b"00"));
    }
    let c2 = work.commit("file", "two");
    scene.stage.advance(&owner, &owner, "other", THEN + 1, &work, &main_at(&c2));
    assert_eq!(Work::clone(&scene.stage.url(&owner, "other")).oid("HEAD"), c2);
    watch.flat("slow bodies");
    drop(slow);
    scene.unharmed();
}

#[test]
fn whoever_does_not_read_takes_no_memory() {
    let mut scene = Scene::new(&[]);
    // Twenty megabytes, more than the sockets take.
    let owner = scene.stage.person(2);
    let (work, c1) = one_commit(&noise(40_000_000));
    scene.stage.found(&owner, "large", &[], &work, &main_at(&c1));
    let path = format!("{}/git-upload-pack", repo_path(&owner.npub(), "large"));
    let body = packet("command=fetch") + "0001" + &packet(&format!("want {c1}\n")) + &packet("done\n") + "0000";
    let length = format!("Content-Length: {}", body.len());
    let request = wire::head(&scene.stage.server, "POST", &path, &[UPLOAD_REQUEST, VERSION_2, &length]) + &body;
    let watch = Watch::on(&scene.stage.server);
    let mut deaf = Vec::new();
    for _ in 0..300 {
        let mut stream = connect(&scene.stage.server);
        stream.write_all(request.as_bytes()).expect("writes");
        deaf.push(stream);
    }
    for stream in &mut deaf {
        let mut beginning = [0; 1_000];
        stream.read_exact(&mut beginning).expect("an answer begins");
        assert!(beginning.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&beginning));
    }
    assert_eq!(Work::clone(&scene.stage.url(&owner, "large")).oid("HEAD"), c1);
    watch.flat("three hundred who do not read");
    drop(deaf);
    scene.unharmed();
}

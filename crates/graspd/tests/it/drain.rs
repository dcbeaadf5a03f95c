//! A server that is asked to stop lets everybody finish, says goodbye, and is gone in time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use grasp_core::nostr::SignedEvent;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::support::git::{MAIN, Maintainer, THEN, Work, noise, repo_path};
use crate::support::integrity::{entries, expect_objects, expect_sound};
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, ZERO, packet, push_body};
use crate::support::{Client, DEADLINE, Server, command, eventually, wire};

/// SIGTERM, without waiting for what comes of it.
fn ask_to_stop(server: &Server) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
}

/// Waits until nobody is let in any more.
fn eventually_closed(address: SocketAddr) {
    eventually("the door is closed", || TcpStream::connect(address).err());
}

/// Waits until it is gone; gives the exit code.
fn eventually_gone(server: &mut Server) -> Option<i32> {
    eventually("graspd stops", || server.child.try_wait().expect("can be waited for")).code()
}

/// Reads to the goodbye; gives the messages before it.
fn read_to_goodbye(client: &mut Client) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        match client.socket.read().expect("messages, then a goodbye") {
            Message::Text(text) => messages.push(serde_json::from_str(&text).expect("JSON")),
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(frame) => {
                let frame = frame.expect("a goodbye with a reason");
                assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::Away, "the server is going down"));
                return messages;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// A push that has said half of what it has to say, and that the server has begun to take in.
struct Half {
    stream: TcpStream,
    rest: Vec<u8>,
    state: Arc<SignedEvent>,
}

impl Half {
    fn begin(stage: &mut Stage, owner: &Maintainer, work: &Work, oid: &str) -> Self {
        let state = owner.state("tool", THEN, &main_at(oid));
        stage.hold(&owner.announce("tool", THEN, &[]));
        stage.hold(&state);
        let pack = work.pack(
            &[oid, &format!("{oid}^{{tree}}"), &format!("{oid}:file")]
                .map(|name| work.oid(name))
                .each_ref()
                .map(String::as_str),
        );
        let body = push_body(&[[ZERO, oid, MAIN]], CAPABILITIES, &pack);
        let length = format!("Content-Length: {}", body.len());
        let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
        let head = wire::head(&stage.server, "POST", &path, &[RECEIVE_REQUEST, &length]);
        let mut stream = TcpStream::connect(stage.server.address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let (first, rest) = body.split_at(body.len() - pack.len() / 2);
        stream.write_all(&[head.as_bytes(), first].concat()).expect("writes");
        let incoming = stage.git_folder().join("incoming");
        eventually("the push has begun", || (!entries(&incoming).is_empty()).then_some(()));
        Self { stream, rest: rest.to_vec(), state }
    }

    /// Says the rest byte by byte; gives the report.
    fn finish(mut self) -> String {
        self.stream.set_nodelay(true).expect("an option");
        for byte in &self.rest {
            self.stream.write_all(&[*byte]).expect("it is listened to");
        }
        let answer = wire::finish(self.stream);
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.text()
    }
}

#[test]
fn a_push_in_flight_is_finished_and_stays() {
    let side = crate::support::peers::place();
    let watched: &'static str = Box::leak(side.to_string().into_boxed_str());
    let mut stage = Stage::with(&[("METRICS_BIND_ADDRESS", watched)]);
    let owner = stage.person(1);
    let (work, oid) = one_commit("one");
    let push = Half::begin(&mut stage, &owner, &work, &oid);
    let state = push.state.clone();
    let mut idle = stage.server.connect();

    ask_to_stop(&stage.server);
    eventually_closed(stage.server.address);
    assert!(read_to_goodbye(&mut idle).is_empty());
    // Those who watch see what it is doing.
    let main = std::mem::replace(&mut stage.server.address, side);
    let answer = stage.server.get("/readyz", "");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let ready: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!((&ready["ready"], &ready["checks"]["serving"]["ok"]), (&json!(false), &json!(false)), "{ready}");
    assert!(stage.server.get("/healthz", "").starts_with("HTTP/1.1 200 "), "it lives");
    stage.server.address = main;
    assert_eq!(stage.server.child.try_wait().expect("can be waited for"), None, "a push is going on");

    let report = push.finish();
    assert!(report.contains("unpack ok") && report.contains(&format!("ok {MAIN}")), "{report}");
    assert_eq!(eventually_gone(&mut stage.server), Some(0));

    let server = Server::start_in(stage.server.folder(), &[("DOMAIN", "grasp.test")]);
    assert!(crate::support::test_server::served(&mut server.connect(), &state));
    expect_objects(&server, &[repo_path(&owner.npub(), "tool")]);
    expect_sound(&stage.git_folder());
}

#[test]
fn a_clone_in_flight_is_finished() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    // More than the system takes for a client that does not read.
    let (work, oid) = one_commit(&noise(24_000_000));
    stage.found(&owner, "tool", &[], &work, &main_at(&oid));
    let body = packet(&format!("want {oid} ofs-delta\n")) + "0000" + &packet("done\n");
    let path = format!("{}/git-upload-pack", repo_path(&owner.npub(), "tool"));
    let length = format!("Content-Length: {}", body.len());
    let head = wire::head(&stage.server, "POST", &path, &[UPLOAD_REQUEST, &length]);
    let mut stream = TcpStream::connect(stage.server.address).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(format!("{head}{body}").as_bytes()).expect("writes");
    let mut first = [0; 1_000];
    stream.read_exact(&mut first).expect("an answer begins");

    ask_to_stop(&stage.server);
    eventually_closed(stage.server.address);
    let mut answer = first.to_vec();
    stream.read_to_end(&mut answer).expect("the answer goes on");
    assert_eq!(eventually_gone(&mut stage.server), Some(0));
    let answer = wire::Answer::of(&answer);
    let begin = answer.body.windows(4).position(|window| window == b"PACK").expect("a pack");
    work.feed(&["index-pack", "--stdin", "--strict"], &answer.body[begin..]).done();
}

#[test]
fn questions_are_answered_before_the_goodbye() {
    let mut stage = Stage::with(&[("POLICY", "open")]);
    let author = stage.person(1).author;
    // More than the system takes for a client that does not read.
    let text = noise(60_000);
    let events: Vec<_> = (0..200).map(|n| author.sign(1, THEN + n, &[], &text)).collect();
    for event in &events {
        stage.publish(event);
    }
    let mut slow = stage.server.connect();
    slow.send(&json!(["REQ", "all", {"kinds": [1]}]));
    // It has begun to be answered.
    assert_eq!(slow.receive()[0], "EVENT");
    let mut idle = stage.server.connect();
    assert_eq!(idle.subscribe("live", &[json!({"kinds": [1], "limit": 1})]).len(), 1);

    ask_to_stop(&stage.server);
    assert!(read_to_goodbye(&mut idle).is_empty());
    assert!(read_to_goodbye(&mut stage.client).is_empty());
    let messages = read_to_goodbye(&mut slow);
    assert_eq!(messages.len(), events.len(), "the other events, and the end");
    assert_eq!(messages.last(), Some(&json!(["EOSE", "all"])));
    assert_eq!(eventually_gone(&mut stage.server), Some(0));
}

/// What was answered stays, and the goodbye reaches a client that was still talking.
#[test]
fn whoever_is_still_talking_hears_the_answers_and_the_goodbye() {
    let mut stage = Stage::with(&[("POLICY", "open")]);
    let author = stage.person(1).author;
    let events: Vec<_> = (0..3_000).map(|n| author.sign(1, THEN + n, &[], "a word")).collect();
    let talking = stage.server.connect();
    let mut ear = Client {
        socket: tokio_tungstenite::tungstenite::protocol::WebSocket::from_raw_socket(
            talking.socket.get_ref().try_clone().expect("another handle"),
            tokio_tungstenite::tungstenite::protocol::Role::Client,
            None,
        ),
    };
    let mut mouth = talking;
    let answered = thread::scope(|scope| {
        scope.spawn(|| {
            for event in &events {
                if mouth.socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).is_err() {
                    break;
                }
            }
        });
        assert_eq!(ear.receive()[0], "OK");
        ask_to_stop(&stage.server);
        read_to_goodbye(&mut ear)
    });
    assert_eq!(eventually_gone(&mut stage.server), Some(0));
    assert!(answered.iter().all(|answer| answer[0] == "OK" && answer[2] == true), "{answered:?}");
    let mut again = stage.again_after_its_end();
    for answer in &answered {
        let id = answer[1].as_str().expect("an id");
        assert_eq!(again.client.query(&[json!({"ids": [id]})]), [id], "it was taken");
    }
}

#[test]
fn after_the_grace_it_ends_whoever_is_there() {
    let mut stage = Stage::with(&[("SHUTDOWN_GRACE_SECS", "1")]);
    let owner = stage.person(1);
    let (work, oid) = one_commit("one");
    let push = Half::begin(&mut stage, &owner, &work, &oid);
    let began = Instant::now();
    ask_to_stop(&stage.server);
    assert_eq!(eventually_gone(&mut stage.server), Some(0));
    assert!(began.elapsed() >= Duration::from_secs(1), "it waited");
    let mut again = stage.again_after_its_end();
    assert!(!again.served(&push.state));
    again.expect_refs(&owner, "tool", &[]);
    work.push(&again.url(&owner, "tool"), &[&format!("{oid}:{MAIN}")]).done();
    again.expect_served(&[&push.state]);
    expect_sound(&again.git_folder());
}

/// A thread that waits for a git process does not keep the server, either, and the process goes.
#[test]
fn after_the_grace_it_ends_whatever_git_does() {
    let folder = Arc::new(tempfile::TempDir::new().expect("a folder"));
    let at = |name: &str| folder.path().join(name);
    let found = Command::new("sh").args(["-c", "command -v git"]).output().expect("runs").stdout;
    let git = String::from_utf8(found).expect("a path").trim().to_owned();
    let began = at("began").display().to_string();
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' index-pack '*) echo $$ >{began}.new; mv {began}.new {began}; exec sleep 3600;; esac\n\
         exec {git} \"$@\"\n"
    );
    fs::create_dir(at("bin")).expect("a new folder");
    fs::write(at("bin/git"), script).expect("a file");
    fs::set_permissions(at("bin/git"), fs::Permissions::from_mode(0o755)).expect("its owner may");
    let mut command = command(folder.path(), &[("DOMAIN", "grasp.test"), ("SHUTDOWN_GRACE_SECS", "1")]);
    let path = std::env::var("PATH").expect("a search path");
    command.env("PATH", format!("{}:{path}", at("bin").display()));
    let mut server = Server::spawn(command);

    let owner = Maintainer::new(1, &grasp_core::repo::ServiceAddress::new("grasp.test", "").expect("a host name"));
    let (work, oid) = one_commit("one");
    let mut client = server.connect();
    for event in [owner.announce("tool", THEN, &[]), owner.state("tool", THEN, &main_at(&oid))] {
        assert!(client.publish(&event).0);
    }
    let url = format!("http://{}{}", server.address, repo_path(&owner.npub(), "tool"));
    thread::scope(|scope| {
        let push = scope.spawn(|| work.push(&url, &[&format!("{oid}:{MAIN}")]));
        let pid = eventually("git begins", || fs::read_to_string(at("began")).ok());
        ask_to_stop(&server);
        assert_eq!(eventually_gone(&mut server), Some(0));
        assert!(!push.join().expect("it pushed").success, "nobody has said that it is done");
        let stat = format!("/proc/{}/stat", pid.trim());
        eventually("git ends", || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")).then_some(()));
    });
}

#[test]
fn told_twice_it_does_not_wait() {
    let mut stage = Stage::with(&[("SHUTDOWN_GRACE_SECS", "3600")]);
    let owner = stage.person(1);
    let (work, oid) = one_commit("one");
    let _push = Half::begin(&mut stage, &owner, &work, &oid);
    ask_to_stop(&stage.server);
    eventually_closed(stage.server.address);
    assert_eq!(stage.server.child.try_wait().expect("can be waited for"), None, "it waits");
    ask_to_stop(&stage.server);
    assert_eq!(eventually_gone(&mut stage.server), Some(0));
}

/// Whoever was let in and has not said anything yet may say it: else a restart would turn somebody away.
#[test]
fn whoever_was_let_in_is_answered() {
    let mut server = Server::start(&[]);
    let mut early = TcpStream::connect(server.address).expect("connects");
    early.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    // They are let in one after the other.
    assert!(server.get("/healthz", "").starts_with("HTTP/1.1 200 "));
    ask_to_stop(&server);
    eventually_closed(server.address);
    early.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("writes");
    let mut answer = String::new();
    early.read_to_string(&mut answer).expect("an answer, and then no more");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("</html>\n"), "{answer:?}");
    assert_eq!(eventually_gone(&mut server), Some(0));
}

#[test]
fn nobody_there_is_no_reason_to_wait() {
    let mut server = Server::start(&[("SHUTDOWN_GRACE_SECS", "3600")]);
    // A connection that asks for nothing more is none.
    let mut idle = TcpStream::connect(server.address).expect("connects");
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("writes");
    assert!(idle.read(&mut [0; 1_000]).expect("an answer") > 0);
    assert_eq!(server.stop(), Some(0));
}

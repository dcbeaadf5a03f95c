//! Shutdown on SIGTERM: requests in progress are completed, websockets are closed with a code, and the server ends
//! after the grace period at the latest.

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

use crate::support::git::{BASE_TIME, MAIN, Maintainer, WorkTree, incompressible_text, repo_path};
use crate::support::integrity::{entries, expect_intact_repos, expect_needed_objects};
use crate::support::test_server::{TestServer, commit_for_git, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, ZERO, packet, push_body};
use crate::support::{Client, DEADLINE, Server, command, eventually, wire};

/// Sends SIGTERM and does not wait.
fn send_sigterm(server: &Server) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("cannot run kill").success());
}

/// Waits until the server accepts no more connections.
fn eventually_closed(address: SocketAddr) {
    eventually("the server no longer listens", || TcpStream::connect(address).err());
}

/// Waits until the server has ended; returns its exit code.
fn eventually_exited(server: &mut Server) -> Option<i32> {
    eventually("graspd exits", || server.child.try_wait().expect("cannot wait for the server")).code()
}

/// Reads up to the close frame, which must have the code and reason of a shutdown; returns the messages before it.
fn read_until_shutdown(client: &mut Client) -> Vec<Value> {
    let mut messages = Vec::new();
    loop {
        match client.socket.read().expect("the connection ends without a close frame") {
            Message::Text(text) => messages.push(serde_json::from_str(&text).expect("valid JSON")),
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(frame) => {
                let frame = frame.expect("the close frame has no reason");
                assert_eq!((frame.code, frame.reason.as_str()), (CloseCode::Away, "the server is shutting down"));
                return messages;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// A push of which half the pack has been sent and the server has begun to receive it.
struct UnfinishedPush {
    stream: TcpStream,
    rest: Vec<u8>,
    state: Arc<SignedEvent>,
}

impl UnfinishedPush {
    fn begin(server: &mut TestServer, owner: &Maintainer, work: &WorkTree, oid: &str) -> Self {
        let state = owner.state("tool", BASE_TIME, &main_at(oid));
        server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
        server.publish_held(&state);
        let pack = work.pack(
            &[oid, &format!("{oid}^{{tree}}"), &format!("{oid}:file")]
                .map(|name| work.oid(name))
                .each_ref()
                .map(String::as_str),
        );
        let body = push_body(&[[ZERO, oid, MAIN]], CAPABILITIES, &pack);
        let length = format!("Content-Length: {}", body.len());
        let path = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
        let head = wire::request_head(&server.process, "POST", &path, &[RECEIVE_REQUEST, &length]);
        let mut stream = TcpStream::connect(server.process.address).expect("cannot connect");
        stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
        let (first, rest) = body.split_at(body.len() - pack.len() / 2);
        stream.write_all(&[head.as_bytes(), first].concat()).expect("cannot write to the connection");
        let incoming = server.git_folder().join("incoming");
        eventually("the push has begun", || (!entries(&incoming).is_empty()).then_some(()));
        Self { stream, rest: rest.to_vec(), state }
    }

    /// Sends the rest byte by byte; returns the report.
    fn finish(mut self) -> String {
        self.stream.set_nodelay(true).expect("cannot set TCP_NODELAY");
        for byte in &self.rest {
            self.stream.write_all(&[*byte]).expect("cannot write to the connection");
        }
        let response = wire::read_response(self.stream);
        assert_eq!(response.status, 200, "{}", response.head);
        response.text()
    }
}

#[test]
fn push_in_progress_is_completed() {
    let monitoring = crate::support::peers::unused_address();
    let monitoring_text: &'static str = Box::leak(monitoring.to_string().into_boxed_str());
    let mut server = TestServer::with_settings(&[("METRICS_BIND_ADDRESS", monitoring_text)]);
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("one");
    let push = UnfinishedPush::begin(&mut server, &owner, &work, &oid);
    let state = push.state.clone();
    let mut idle = server.process.connect();

    send_sigterm(&server.process);
    eventually_closed(server.process.address);
    assert!(read_until_shutdown(&mut idle).is_empty());
    // The monitoring port still answers.
    let main = std::mem::replace(&mut server.process.address, monitoring);
    let response = server.process.get("/readyz", "");
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    let ready: Value =
        serde_json::from_str(response.split("\r\n\r\n").nth(1).expect("response has a body")).expect("valid JSON");
    assert_eq!((&ready["ready"], &ready["checks"]["serving"]["ok"]), (&json!(false), &json!(false)), "{ready}");
    assert!(server.process.get("/healthz", "").starts_with("HTTP/1.1 200 "), "the server is not healthy");
    server.process.address = main;
    assert_eq!(
        server.process.child.try_wait().expect("cannot wait for the server"),
        None,
        "the server did not wait for the push"
    );

    let report = push.finish();
    assert!(report.contains("unpack ok") && report.contains(&format!("ok {MAIN}")), "{report}");
    assert_eq!(eventually_exited(&mut server.process), Some(0));

    let process = Server::start_in(server.process.folder(), &[("DOMAIN", "grasp.test")]);
    assert!(crate::support::test_server::is_served(&mut process.connect(), &state));
    expect_needed_objects(&process, &[repo_path(&owner.npub(), "tool")]);
    expect_intact_repos(&server.git_folder());
}

#[test]
fn clone_in_progress_is_completed() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    // More than the socket buffers hold.
    let (work, oid) = one_commit(&incompressible_text(24_000_000));
    server.create_repo(&owner, "tool", &[], &work, &main_at(&oid));
    let body = packet(&format!("want {oid} ofs-delta\n")) + "0000" + &packet("done\n");
    let path = format!("{}/git-upload-pack", repo_path(&owner.npub(), "tool"));
    let length = format!("Content-Length: {}", body.len());
    let head = wire::request_head(&server.process, "POST", &path, &[UPLOAD_REQUEST, &length]);
    let mut stream = TcpStream::connect(server.process.address).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.write_all(format!("{head}{body}").as_bytes()).expect("cannot write to the connection");
    let mut first = [0; 1_000];
    stream.read_exact(&mut first).expect("cannot read the start of the response");

    send_sigterm(&server.process);
    eventually_closed(server.process.address);
    let mut response = first.to_vec();
    stream.read_to_end(&mut response).expect("cannot read the rest of the response");
    assert_eq!(eventually_exited(&mut server.process), Some(0));
    let response = wire::HttpResponse::parse(&response);
    let begin = response.body.windows(4).position(|window| window == b"PACK").expect("response contains no pack");
    work.git_with_input(&["index-pack", "--stdin", "--strict"], &response.body[begin..]).expect_success();
}

#[test]
fn queries_are_answered_before_the_connection_is_closed() {
    let mut server = TestServer::with_settings(&[("POLICY", "open")]);
    let author = server.maintainer(1).author;
    // More than the socket buffers hold.
    let text = incompressible_text(60_000);
    let events: Vec<_> = (0..200).map(|n| author.sign(1, BASE_TIME + n, &[], &text)).collect();
    for event in &events {
        server.publish(event);
    }
    let mut slow = server.process.connect();
    slow.send(&json!(["REQ", "all", {"kinds": [1]}]));
    // The first event of the response has arrived.
    assert_eq!(slow.receive()[0], "EVENT");
    let mut idle = server.process.connect();
    assert_eq!(idle.subscribe("live", &[json!({"kinds": [1], "limit": 1})]).len(), 1);

    send_sigterm(&server.process);
    assert!(read_until_shutdown(&mut idle).is_empty());
    assert!(read_until_shutdown(&mut server.client).is_empty());
    let messages = read_until_shutdown(&mut slow);
    assert_eq!(messages.len(), events.len(), "expected the other events and EOSE");
    assert_eq!(messages.last(), Some(&json!(["EOSE", "all"])));
    assert_eq!(eventually_exited(&mut server.process), Some(0));
}

/// Events that were answered are stored, and a client that is still sending receives the close frame.
#[test]
fn sending_client_receives_answers_and_the_close_frame() {
    let mut server = TestServer::with_settings(&[("POLICY", "open")]);
    let author = server.maintainer(1).author;
    let events: Vec<_> = (0..3_000).map(|n| author.sign(1, BASE_TIME + n, &[], "a word")).collect();
    let mut sender = server.process.connect();
    let mut receiver = Client {
        socket: tokio_tungstenite::tungstenite::protocol::WebSocket::from_raw_socket(
            sender.socket.get_ref().try_clone().expect("cannot clone the stream"),
            tokio_tungstenite::tungstenite::protocol::Role::Client,
            None,
        ),
    };
    let answered = thread::scope(|scope| {
        scope.spawn(|| {
            for event in &events {
                if sender.socket.send(Message::text(format!("[\"EVENT\",{}]", event.json()))).is_err() {
                    break;
                }
            }
        });
        assert_eq!(receiver.receive()[0], "OK");
        send_sigterm(&server.process);
        read_until_shutdown(&mut receiver)
    });
    assert_eq!(eventually_exited(&mut server.process), Some(0));
    assert!(answered.iter().all(|message| message[0] == "OK" && message[2] == true), "{answered:?}");
    let mut restarted = server.start_after_exit();
    for message in &answered {
        let id = message[1].as_str().expect("event has an id");
        assert_eq!(restarted.client.query(&[json!({"ids": [id]})]), [id], "an accepted event is lost");
    }
}

#[test]
fn server_ends_after_the_grace_period_despite_a_push() {
    let mut server = TestServer::with_settings(&[("SHUTDOWN_GRACE_SECS", "1")]);
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("one");
    let push = UnfinishedPush::begin(&mut server, &owner, &work, &oid);
    let start = Instant::now();
    send_sigterm(&server.process);
    assert_eq!(eventually_exited(&mut server.process), Some(0));
    assert!(start.elapsed() >= Duration::from_secs(1), "the server did not wait for the push");
    let mut restarted = server.start_after_exit();
    assert!(!restarted.is_served(&push.state));
    restarted.expect_refs(&owner, "tool", &[]);
    work.push(&restarted.url(&owner, "tool"), &[&format!("{oid}:{MAIN}")]).expect_success();
    restarted.expect_served(&[&push.state]);
    expect_intact_repos(&restarted.git_folder());
}

/// The server ends even if a thread waits for a git process, and the git process is ended too.
#[test]
fn server_ends_after_the_grace_period_despite_a_git_process() {
    let folder = Arc::new(tempfile::TempDir::new().expect("cannot create a temporary folder"));
    let path_of = |name: &str| folder.path().join(name);
    let found = Command::new("sh").args(["-c", "command -v git"]).output().expect("cannot run sh").stdout;
    let git = String::from_utf8(found).expect("path is UTF-8").trim().to_owned();
    let began = path_of("began").display().to_string();
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in *' index-pack '*) echo $$ >{began}.new; mv {began}.new {began}; exec sleep 3600;; esac\n\
         exec {git} \"$@\"\n"
    );
    fs::create_dir(path_of("bin")).expect("cannot create the folder");
    fs::write(path_of("bin/git"), script).expect("cannot write the file");
    fs::set_permissions(path_of("bin/git"), fs::Permissions::from_mode(0o755)).expect("cannot set the permissions");
    let mut command = command(folder.path(), &[("DOMAIN", "grasp.test"), ("SHUTDOWN_GRACE_SECS", "1")]);
    let path = std::env::var("PATH").expect("PATH is not set");
    command.env("PATH", format!("{}:{path}", path_of("bin").display()));
    let mut server = Server::spawn(command);

    let owner = Maintainer::new(1, &grasp_core::repo::ServiceAddress::new("grasp.test", "").expect("valid host name"));
    let (work, oid) = commit_for_git();
    let mut client = server.connect();
    for event in [owner.announce("tool", BASE_TIME, &[]), owner.state("tool", BASE_TIME, &main_at(&oid))] {
        assert!(client.publish(&event).0);
    }
    let url = format!("http://{}{}", server.address, repo_path(&owner.npub(), "tool"));
    thread::scope(|scope| {
        let push = scope.spawn(|| work.push(&url, &[&format!("{oid}:{MAIN}")]));
        let pid = eventually("git starts", || fs::read_to_string(path_of("began")).ok());
        send_sigterm(&server);
        assert_eq!(eventually_exited(&mut server), Some(0));
        assert!(!push.join().expect("the pushing thread panicked").success, "git reported success");
        let stat = format!("/proc/{}/stat", pid.trim());
        eventually("git ends", || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")).then_some(()));
    });
}

#[test]
fn second_sigterm_ends_the_server_at_once() {
    let mut server = TestServer::with_settings(&[("SHUTDOWN_GRACE_SECS", "3600")]);
    let owner = server.maintainer(1);
    let (work, oid) = one_commit("one");
    let _push = UnfinishedPush::begin(&mut server, &owner, &work, &oid);
    send_sigterm(&server.process);
    eventually_closed(server.process.address);
    assert_eq!(
        server.process.child.try_wait().expect("cannot wait for the server"),
        None,
        "the server did not wait for the push"
    );
    send_sigterm(&server.process);
    assert_eq!(eventually_exited(&mut server.process), Some(0));
}

/// A connection that was accepted before the shutdown may still send its first request, so that a restart loses no
/// request.
#[test]
fn accepted_connection_is_answered_during_shutdown() {
    let mut server = Server::start(&[]);
    let mut early = TcpStream::connect(server.address).expect("cannot connect");
    early.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    // Connections are accepted in order, so the first one is accepted now.
    assert!(server.get("/healthz", "").starts_with("HTTP/1.1 200 "));
    send_sigterm(&server);
    eventually_closed(server.address);
    early.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("cannot write to the connection");
    let mut response = String::new();
    early.read_to_string(&mut response).expect("cannot read the response");
    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("</html>\n"), "{response:?}");
    assert_eq!(eventually_exited(&mut server), Some(0));
}

#[test]
fn idle_server_ends_at_once() {
    let mut server = Server::start(&[("SHUTDOWN_GRACE_SECS", "3600")]);
    // An idle keep-alive connection does not count.
    let mut idle = TcpStream::connect(server.address).expect("cannot connect");
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").expect("cannot write to the connection");
    assert!(idle.read(&mut [0; 1_000]).expect("cannot read the response") > 0);
    assert_eq!(server.stop(), Some(0));
}

//! Sockets that are handed over, and what a supervisor is told: a restart that nobody notices.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::support::{DEADLINE, Server, command, eventually};

/// A command that becomes a server with these sockets, as systemd hands them over: from descriptor 3 on. A shell moves
/// them there, because it also knows its own number, which stays the server's.
fn with_sockets(folder: &Path, settings: &[(&str, &str)], sockets: &[&TcpListener], environment: &str) -> Command {
    let bare = command(folder, settings);
    let handle = |nth: usize| {
        let socket = sockets.get(nth)?.try_clone().expect("another handle");
        Some(Stdio::from(OwnedFd::from(socket)))
    };
    let mut shell = Command::new("/bin/sh");
    let moved = ["", "exec 3<&0 </dev/null; ", "exec 3<&0 4<&2 </dev/null 2>/dev/null; "][sockets.len()];
    shell.args(["-c", &format!("{moved}{environment} exec \"$0\"")]).arg(bare.get_program());
    shell.current_dir(folder).env_clear();
    shell.envs(bare.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    shell.stdin(handle(0).unwrap_or_else(Stdio::null));
    if let Some(handle) = handle(1) {
        shell.stderr(handle);
    }
    shell
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

/// One request on a connection of its own; what was answered.
fn try_get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn sockets_that_are_handed_over_are_listened_to() {
    let folder = TempDir::new().expect("a folder");
    let ((main, at), (side, beside)) = (listener(), listener());
    // The second is for those who watch, because it is named so.
    let words = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=main:side";
    let server = Server::spawn(with_sockets(folder.path(), &[], &[&main, &side], words));
    assert_eq!(server.address, at, "it says where it listens");
    assert!(try_get(at, "/readyz").expect("an answer").starts_with("HTTP/1.1 200 "));
    assert!(try_get(beside, "/metrics").expect("an answer").contains("ngit_uptime_seconds "));
    assert!(try_get(at, "/metrics").expect("an answer").starts_with("HTTP/1.1 404 "), "it has a port of its own");
    server.connect();
}

#[test]
fn what_is_for_somebody_else_is_left_alone() {
    let folder = TempDir::new().expect("a folder");
    let (main, at) = listener();
    let server = Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=1 LISTEN_FDS=1"));
    assert_ne!(server.address, at, "it listens by itself");
    assert!(try_get(server.address, "/readyz").expect("an answer").starts_with("HTTP/1.1 200 "));
}

#[test]
fn what_is_no_listener_is_a_clear_problem() {
    let folder = TempDir::new().expect("a folder");
    let said = |words: &str, sockets: &[&TcpListener]| {
        let output = with_sockets(folder.path(), &[], sockets, words).stdout(Stdio::null()).output().expect("runs");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Descriptor 3 is the null device.
    let words = said("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1", &[]);
    assert!(words.contains("handed over as `main`") && words.contains("not a socket"), "{words}");
    let (one, _) = listener();
    let words = said("exec 4<&3; LISTEN_PID=$$ LISTEN_FDS=2", &[&one]);
    assert!(words.contains("`main`") && words.contains("`side`"), "{words}");
}

/// While one server ends and the next one starts, everybody who comes is answered.
#[test]
fn a_restart_turns_nobody_away() {
    let folder = TempDir::new().expect("a folder");
    let (main, at) = listener();
    let start = || Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=$$ LISTEN_FDS=1"));
    let (over, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut server = start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let answer = try_get(at, "/").expect("nobody is turned away");
                    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("</html>\n"), "{answer:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let more = || {
            let before = answered.load(Ordering::Relaxed);
            eventually("requests are answered", || (answered.load(Ordering::Relaxed) > before + 20).then_some(()));
        };
        // Also if something fails: nobody waits for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..3 {
                more();
                assert_eq!(server.stop(), Some(0));
                server = start();
            }
            more();
        }));
        over.store(true, Ordering::Relaxed);
        result.expect("restarts");
    });
}

/// Whoever comes while there is no server waits for the next one.
#[test]
fn whoever_comes_in_between_waits() {
    let folder = TempDir::new().expect("a folder");
    let (main, at) = listener();
    let start = || Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=$$ LISTEN_FDS=1"));
    assert_eq!(start().stop(), Some(0));
    thread::scope(|scope| {
        let early = scope.spawn(|| try_get(at, "/healthz"));
        let _server = start();
        assert!(early.join().expect("it asked").expect("an answer").starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_supervisor_is_told() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("notify");
    let ear = UnixDatagram::bind(&path).expect("a socket");
    ear.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let hear = || {
        let mut words = [0; 1_000];
        let length = ear.recv(&mut words).expect("it says something");
        String::from_utf8_lossy(&words[..length]).into_owned()
    };
    let mut command = command(folder.path(), &[]);
    command.env("NOTIFY_SOCKET", &path);
    let mut server = Server::spawn(command);
    assert!(hear().lines().any(|line| line == "READY=1"));
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("kill runs").success());
    assert!(hear().lines().any(|line| line == "RELOADING=1"));
    assert!(hear().lines().any(|line| line == "READY=1"));
    assert_eq!(server.stop(), Some(0));
    assert!(hear().lines().any(|line| line == "STOPPING=1"));
    // Nobody to tell is no problem.
    let mut command = crate::support::command(folder.path(), &[]);
    command.env("NOTIFY_SOCKET", "/nonexistent/socket");
    assert_eq!(Server::spawn(command).stop(), Some(0));
}

//! Socket activation and notifications of systemd: restarts without refused connections.

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

/// Returns a command that starts a server with these sockets as systemd passes them: from descriptor 3 on. A shell moves
/// them there, because it knows its own process id, which `exec` keeps.
fn with_sockets(folder: &Path, settings: &[(&str, &str)], sockets: &[&TcpListener], environment: &str) -> Command {
    let server = command(folder, settings);
    let handle = |nth: usize| {
        let socket = sockets.get(nth)?.try_clone().expect("cannot clone the socket");
        Some(Stdio::from(OwnedFd::from(socket)))
    };
    let mut shell = Command::new("/bin/sh");
    let moved = ["", "exec 3<&0 </dev/null; ", "exec 3<&0 4<&2 </dev/null 2>/dev/null; "][sockets.len()];
    shell.args(["-c", &format!("{moved}{environment} exec \"$0\"")]).arg(server.get_program());
    shell.current_dir(folder).env_clear();
    shell.envs(server.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    shell.stdin(handle(0).unwrap_or_else(Stdio::null));
    if let Some(handle) = handle(1) {
        shell.stderr(handle);
    }
    shell
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("no port");
    let address = listener.local_addr().expect("no address");
    (listener, address)
}

/// Sends one request on a new connection; returns the response.
fn try_get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response)
}

#[test]
fn passed_sockets_are_used() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let ((main, main_address), (side, side_address)) = (listener(), listener());
    // The second socket is for monitoring, because of its name.
    let environment = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=main:side";
    let server = Server::spawn(with_sockets(folder.path(), &[], &[&main, &side], environment));
    assert_eq!(server.address, main_address, "the server prints the address of the socket");
    assert!(try_get(main_address, "/readyz").expect("no response").starts_with("HTTP/1.1 200 "));
    assert!(try_get(side_address, "/metrics").expect("no response").contains("ngit_uptime_seconds "));
    assert!(
        try_get(main_address, "/metrics").expect("no response").starts_with("HTTP/1.1 404 "),
        "metrics have their own port"
    );
    server.connect();
}

#[test]
fn sockets_for_another_process_are_ignored() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let (main, at) = listener();
    let server = Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=1 LISTEN_FDS=1"));
    assert_ne!(server.address, at, "the server binds its own address");
    assert!(try_get(server.address, "/readyz").expect("no response").starts_with("HTTP/1.1 200 "));
}

#[test]
fn invalid_passed_sockets_are_an_error() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let start_error = |environment: &str, sockets: &[&TcpListener]| {
        let output = with_sockets(folder.path(), &[], sockets, environment)
            .stdout(Stdio::null())
            .output()
            .expect("cannot run the program");
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // Descriptor 3 is the null device.
    let error = start_error("exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1", &[]);
    assert!(error.contains("the passed socket `main`") && error.contains("not a socket"), "{error}");
    let (one, _) = listener();
    let error = start_error("exec 4<&3; LISTEN_PID=$$ LISTEN_FDS=2", &[&one]);
    assert!(error.contains("`main`") && error.contains("`side`"), "{error}");
}

/// While one server stops and the next one starts, every request is answered.
#[test]
fn restart_refuses_no_connection() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let (main, at) = listener();
    let start = || Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=$$ LISTEN_FDS=1"));
    let (is_done, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut server = start();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let response = try_get(at, "/").expect("a request failed during the restart");
                    assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("</html>\n"), "{response:?}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let wait_for_responses = || {
            let before = answered.load(Ordering::Relaxed);
            eventually("requests are answered", || (answered.load(Ordering::Relaxed) > before + 20).then_some(()));
        };
        // The client threads are stopped also if an assertion fails.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..3 {
                wait_for_responses();
                assert_eq!(server.stop(), Some(0));
                server = start();
            }
            wait_for_responses();
        }));
        is_done.store(true, Ordering::Relaxed);
        result.expect("the restarts failed");
    });
}

/// A connection that is opened while no server runs waits for the next one.
#[test]
fn connection_between_two_servers_waits() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let (main, at) = listener();
    let start = || Server::spawn(with_sockets(folder.path(), &[], &[&main], "LISTEN_PID=$$ LISTEN_FDS=1"));
    assert_eq!(start().stop(), Some(0));
    thread::scope(|scope| {
        let early = scope.spawn(|| try_get(at, "/healthz"));
        let _server = start();
        assert!(early.join().expect("the request panicked").expect("no response").starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn supervisor_is_notified() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let path = folder.path().join("notify");
    let supervisor = UnixDatagram::bind(&path).expect("no socket");
    supervisor.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    let next_message = || {
        let mut buffer = [0; 1_000];
        let length = supervisor.recv(&mut buffer).expect("no notification");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let mut command = command(folder.path(), &[]);
    command.env("NOTIFY_SOCKET", &path);
    let mut server = Server::spawn(command);
    assert!(next_message().lines().any(|line| line == "READY=1"));
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().expect("cannot run kill").success());
    assert!(next_message().lines().any(|line| line == "RELOADING=1"));
    assert!(next_message().lines().any(|line| line == "READY=1"));
    assert_eq!(server.stop(), Some(0));
    assert!(next_message().lines().any(|line| line == "STOPPING=1"));
    // A missing notification socket is not an error.
    let mut command = crate::support::command(folder.path(), &[]);
    command.env("NOTIFY_SOCKET", "/nonexistent/socket");
    assert_eq!(Server::spawn(command).stop(), Some(0));
}

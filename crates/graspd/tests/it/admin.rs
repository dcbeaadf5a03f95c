//! The admin socket, and what commands say when there is no server behind it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::admin::Said;
use crate::support::{DEADLINE, Server, command, eventually};

/// The whole answer to a request of plain text.
fn raw(server: &Server, request: &str) -> String {
    let mut stream = UnixStream::connect(server.admin_socket()).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn status_says_how_the_server_is() {
    let server = Server::start(&[]);
    let text = server.run(&["status"]).well();
    for expected in ["ready", "repositories", "uptime", "events", "sync is off", "memory", "disk, events", "ok: "] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let json = server.run(&["status", "--json"]).object();
    assert_eq!(json["ready"], true);
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    let page = server.get("/status.json", "");
    let page: Value = serde_json::from_str(page.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), keys(&page));
}

#[test]
fn status_is_for_the_operator_also_when_there_is_no_page() {
    let server = Server::start(&[("STATUS_ENABLE", "false")]);
    assert!(server.get("/status.json", "").starts_with("HTTP/1.1 404"));
    assert_eq!(server.run(&["status", "--json"]).object()["ready"], true);
}

#[test]
fn without_a_server_it_says_what_to_do() {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let run = |settings: &[(&str, &str)], arguments: &[&str]| {
        Said::of(&command(folder.path(), settings).args(arguments).output().expect("graspd runs"))
    };
    for arguments in [&["status"][..], &["status", "--json"]] {
        let said = run(&[], arguments).badly(3);
        for expected in ["data/relay/admin.sock", "graspd serve", "--admin-socket", "NGIT_ADMIN_SOCKET"] {
            assert!(said.contains(expected), "{expected} in {said}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "asking makes no files");
    let said = run(&[("ADMIN_SOCKET", "elsewhere.sock")], &["status"]).badly(3);
    assert!(said.contains("elsewhere.sock"), "{said}");
    let said = run(&[], &["status", "--admin-socket", "/nowhere/at/all"]).badly(3);
    assert!(said.contains("/nowhere/at/all"), "{said}");
    assert!(run(&[("ADMIN_SOCKET", "off")], &["status"]).badly(2).contains("ADMIN_SOCKET is off"));
    assert!(run(&[], &["status", "--jsno"]).badly(2).contains("--json"), "the nearest argument is named");

    // A server that was killed leaves its socket behind, and nobody answers there.
    let mut server = Server::start_in(&folder, &[]);
    server.kill();
    assert!(server.admin_socket().exists());
    assert!(server.run(&["status"]).badly(3).contains("refused"));
    // The next one takes its place.
    let mut server = Server::start_in(&folder, &[]);
    server.run(&["status"]).well();
    assert_eq!(server.stop(), Some(0));
    assert!(!server.admin_socket().exists(), "a server that stops takes its socket along");
}

#[test]
fn wrong_settings_do_not_keep_the_operator_away() {
    let server = Server::start(&[]);
    fs::write(server.folder().path().join("graspd.toml"), "max_connections = 0\n").expect("written");
    server.run(&["status"]).well();
    fs::write(server.folder().path().join("graspd.toml"), "this is no TOML").expect("written");
    assert!(server.run(&["status"]).badly(2).contains("not valid TOML"), "it may name another socket");
    let socket = server.admin_socket();
    server.run(&["status", "--admin-socket", socket.to_str().expect("text")]).well();
}

#[test]
fn only_its_own_user_can_open_the_socket() {
    let server = Server::start(&[]);
    let found = fs::symlink_metadata(server.admin_socket()).expect("it is there");
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    assert!(!server.folder().path().join("data/git/admin.sock").exists());
}

#[test]
fn the_socket_can_be_elsewhere_or_nowhere() {
    let folder = Arc::new(TempDir::new().expect("a folder"));
    let server = Server::start_in(&folder, &[("ADMIN_SOCKET", "run/a.sock")]);
    assert!(!server.admin_socket().exists());
    server.run(&["status", "--admin-socket", "run/a.sock"]).well();
    drop(server);
    let server = Server::start_in(&folder, &[("ADMIN_SOCKET", "off")]);
    assert!(!server.admin_socket().exists());
    server.run(&["status"]).badly(3);
}

#[test]
fn a_place_that_is_taken_is_left_alone() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("place");
    let start = || {
        let output = command(folder.path(), &[("ADMIN_SOCKET", "place")]).output().expect("graspd runs");
        Said::of(&output).badly(1)
    };
    fs::write(&path, "precious").expect("written");
    let said = start();
    assert!(said.contains("something else of that name") && said.contains("NGIT_ADMIN_SOCKET"), "{said}");
    assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
    fs::remove_file(&path).expect("removed");
    let _other = UnixListener::bind(&path).expect("bound");
    let said = start();
    assert!(said.contains("another server answers there") && said.contains("NGIT_ADMIN_SOCKET"), "{said}");
    assert!(path.exists());
}

#[test]
fn a_path_that_is_too_long_is_a_wrong_setting() {
    let folder = TempDir::new().expect("a folder");
    let long = format!("{}/relay", "x".repeat(120));
    for settings in [[("RELAY_DATA_PATH", long.as_str())], [("ADMIN_SOCKET", long.as_str())]] {
        let output = command(folder.path(), &settings).output().expect("graspd runs");
        let said = Said::of(&output).badly(2);
        assert!(said.contains("ADMIN_SOCKET") && said.contains("107"), "{said}");
    }
}

#[test]
fn whoever_hangs_up_or_talks_nonsense_does_no_harm() {
    let server = Server::start(&[]);
    for _ in 0..50 {
        let mut stream = UnixStream::connect(server.admin_socket()).expect("connects");
        stream.write_all(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").expect("sent");
        drop(stream);
        let mut stream = UnixStream::connect(server.admin_socket()).expect("connects");
        stream.write_all(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}").expect("sent");
        drop(stream);
    }
    // Those who are gone give their places back.
    eventually("a place is free", || (server.run(&["status"]).code == Some(0)).then_some(()));
    let close = "Host: x\r\nConnection: close\r\n";
    assert!(raw(&server, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(raw(&server, &format!("GET /status HTTP/1.1\r\n{close}\r\n")).starts_with("HTTP/1.1 405"));
    let unknown = raw(&server, &format!("POST /paint HTTP/1.1\r\n{close}Content-Length: 0\r\n\r\n"));
    assert!(unknown.contains("\"unknown_verb\"") && unknown.contains("paint"), "{unknown}");
    server.run(&["status"]).well();
}

#[test]
fn a_crowd_is_turned_away_and_then_there_is_room_again() {
    let server = Server::start(&[]);
    let mut crowd: Vec<UnixStream> =
        (0..16).map(|_| UnixStream::connect(server.admin_socket()).expect("connects")).collect();
    let said = server.run(&["status"]).badly(1);
    assert!(said.contains("closed the connection"), "{said}");
    crowd.clear();
    eventually("a place is free", || (server.run(&["status"]).code == Some(0)).then_some(()));
}

#[test]
fn whoever_has_read_enough_may_go() {
    let server = Server::start(&[]);
    let mut child = server.operator(&["status"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    let said = Said::of(&output);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}

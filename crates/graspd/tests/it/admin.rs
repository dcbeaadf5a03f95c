//! The admin socket, and what commands print when no server listens on it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;
use std::sync::Arc;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::admin::CommandOutput;
use crate::support::{DEADLINE, Server, command, eventually};

/// Sends `request` to the admin socket as it is, and returns the whole response.
fn raw_request(server: &Server, request: &str) -> String {
    let mut stream = UnixStream::connect(server.admin_socket()).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.write_all(request.as_bytes()).expect("cannot send");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("no response");
    response
}

#[test]
fn status_prints_text_and_json() {
    let server = Server::start(&[]);
    let text = server.run(&["status"]).expect_success();
    for expected in ["ready", "repositories", "uptime", "events", "sync is off", "memory", "disk, events", "ok: "] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let json = server.run(&["status", "--json"]).json_object();
    assert_eq!(json["ready"], true);
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    let page = server.get("/status.json", "");
    let page: Value = serde_json::from_str(page.split_once("\r\n\r\n").expect("no body").1).expect("invalid JSON");
    let keys = |value: &Value| value.as_object().expect("not a JSON object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), keys(&page));
}

#[test]
fn status_command_works_when_the_status_page_is_disabled() {
    let server = Server::start(&[("STATUS_ENABLE", "false")]);
    assert!(server.get("/status.json", "").starts_with("HTTP/1.1 404"));
    assert_eq!(server.run(&["status", "--json"]).json_object()["ready"], true);
}

#[test]
fn commands_without_a_server_explain_what_to_do() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let run = |settings: &[(&str, &str)], arguments: &[&str]| {
        CommandOutput::new(&command(folder.path(), settings).args(arguments).output().expect("cannot run graspd"))
    };
    for arguments in [&["status"][..], &["status", "--json"]] {
        let printed = run(&[], arguments).expect_failure(3);
        for expected in ["data/relay/admin.sock", "graspd serve", "--admin-socket", "NGIT_ADMIN_SOCKET"] {
            assert!(printed.contains(expected), "{expected} in {printed}");
        }
    }
    assert_eq!(
        fs::read_dir(folder.path()).expect("cannot list the folder").count(),
        0,
        "commands that only read create no files"
    );
    let printed = run(&[("ADMIN_SOCKET", "elsewhere.sock")], &["status"]).expect_failure(3);
    assert!(printed.contains("elsewhere.sock"), "{printed}");
    let printed = run(&[], &["status", "--admin-socket", "/nowhere/at/all"]).expect_failure(3);
    assert!(printed.contains("/nowhere/at/all"), "{printed}");
    assert!(run(&[("ADMIN_SOCKET", "off")], &["status"]).expect_failure(2).contains("ADMIN_SOCKET is off"));
    assert!(run(&[], &["status", "--jsno"]).expect_failure(2).contains("--json"), "the nearest argument is named");

    // A server that was killed leaves its socket behind; connections to it are refused.
    let mut server = Server::start_in(&folder, &[]);
    server.kill();
    assert!(server.admin_socket().exists());
    assert!(server.run(&["status"]).expect_failure(3).contains("refused"));
    // The next server replaces the socket.
    let mut server = Server::start_in(&folder, &[]);
    server.run(&["status"]).expect_success();
    assert_eq!(server.stop(), Some(0));
    assert!(!server.admin_socket().exists(), "a server removes its socket when it stops");
}

/// If no setting names the socket, commands look for it in the usual places, and print which one they use.
#[test]
fn commands_find_the_socket_of_the_systemd_unit() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let socket = folder.path().join("run/graspd/admin.sock");
    let _unit = Server::start_in(&folder, &[("ADMIN_SOCKET", "run/graspd/admin.sock"), ("RELAY_NAME", "the unit")]);
    let local = Server::start(&[("RELAY_NAME", "the local server")]);
    let run_folder = folder.path().join("run");
    let status = |arguments: &[&str]| {
        let mut command = local.cli_command(&[&["status"], arguments].concat());
        command.env("GRASPD_TEST_RUN_FOLDER", &run_folder);
        CommandOutput::new(&command.output().expect("cannot run graspd"))
    };
    // Without systemd, the socket in the current folder is preferred.
    let printed = status(&[]);
    assert_eq!(printed.stderr, "");
    assert!(printed.expect_success().contains("the local server"));
    // On a system that runs systemd, it is that of the unit.
    fs::create_dir_all(run_folder.join("systemd/system")).expect("cannot create a folder");
    let printed = status(&[]);
    assert_eq!(printed.stderr, format!("graspd: using the server at {}\n", socket.display()));
    assert!(printed.expect_success().contains("the unit"));
    // A setting that names the location is stronger.
    for location in [["--admin-socket", "data/relay/admin.sock"], ["--relay-data-path", "data/relay"]] {
        let printed = status(&location);
        assert_eq!(printed.stderr, "", "{location:?}");
        assert!(printed.expect_success().contains("the local server"), "{location:?}");
    }
    // The error names every place.
    let empty = TempDir::new().expect("cannot create a temporary folder");
    let printed = CommandOutput::new(&command(empty.path(), &[]).arg("status").output().expect("cannot run graspd"));
    let printed = printed.expect_failure(3);
    assert!(printed.contains("run/graspd/admin.sock") && printed.contains("data/relay/admin.sock"), "{printed}");
}

/// `graspd config --effective` shows the settings of the server: its environment, and what a reload has changed.
#[test]
fn effective_settings_are_those_of_the_server() {
    let server = Server::start(&[("RELAY_NAME", "of the server"), ("METRICS_TOKEN", "this-is-the-secret-token")]);
    let value = |arguments: &[&str], name: &str| {
        let printed = server.run(&[&["config", "--json"], arguments].concat()).expect_success();
        let settings: Value = serde_json::from_str(&printed).expect("not JSON");
        let all = settings["settings"].as_array().expect("no settings");
        let found = all.iter().find(|setting| setting["name"] == name).expect("not listed");
        (found["value"].as_str().expect("no value").to_owned(), found["source"].as_str().expect("no source").to_owned())
    };
    let shown = |text: &str, source: &str| (text.to_owned(), source.to_owned());
    assert_eq!(value(&["--effective"], "RELAY_NAME"), shown("of the server", "environment"));
    assert_eq!(value(&[], "RELAY_NAME").1, "default", "without --effective it is that of the command line");
    assert_eq!(value(&["--effective"], "MAX_CONNECTIONS"), shown("10000", "default"));
    fs::write(server.folder().path().join("graspd.toml"), "max_connections = 77\n").expect("cannot write");
    assert_eq!(value(&["--effective"], "MAX_CONNECTIONS"), shown("10000", "default"), "not reloaded yet");
    server.run(&["reload"]).expect_success();
    assert_eq!(value(&["--effective"], "MAX_CONNECTIONS"), shown("77", "file"));
    let printed = server.run(&["config", "--effective"]);
    assert!(printed.stderr.contains("data/relay/admin.sock"), "{}", printed.stderr);
    let table = printed.expect_success();
    let line = table.lines().find(|line| line.starts_with("MAX_CONNECTIONS ")).expect("not listed");
    assert!(line.contains("77") && line.ends_with("graspd.toml"), "{line}");
    assert!(table.contains("METRICS_TOKEN") && !table.contains("this-is-the-secret-token"), "{table}");
}

#[test]
fn admin_commands_work_with_invalid_settings() {
    let server = Server::start(&[]);
    fs::write(server.folder().path().join("graspd.toml"), "max_connections = 0\n").expect("cannot write");
    server.run(&["status"]).expect_success();
    fs::write(server.folder().path().join("graspd.toml"), "this is no TOML").expect("cannot write");
    assert!(
        server.run(&["status"]).expect_failure(2).contains("not valid TOML"),
        "an unreadable settings file could name another socket"
    );
    let socket = server.admin_socket();
    server.run(&["status", "--admin-socket", socket.to_str().expect("not text")]).expect_success();
}

#[test]
fn socket_is_accessible_to_its_owner_only() {
    let server = Server::start(&[]);
    let metadata = fs::symlink_metadata(server.admin_socket()).expect("the socket does not exist");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(!server.folder().path().join("data/git/admin.sock").exists());
}

#[test]
fn socket_path_can_be_changed_or_disabled() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let server = Server::start_in(&folder, &[("ADMIN_SOCKET", "run/a.sock")]);
    assert!(!server.admin_socket().exists());
    server.run(&["status", "--admin-socket", "run/a.sock"]).expect_success();
    drop(server);
    let server = Server::start_in(&folder, &[("ADMIN_SOCKET", "off")]);
    assert!(!server.admin_socket().exists());
    server.run(&["status"]).expect_failure(3);
}

#[test]
fn socket_path_in_use_is_not_replaced() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let path = folder.path().join("occupied");
    let start = || {
        let output = command(folder.path(), &[("ADMIN_SOCKET", "occupied")]).output().expect("cannot run graspd");
        CommandOutput::new(&output).expect_failure(1)
    };
    fs::write(&path, "precious").expect("cannot write");
    let printed = start();
    assert!(printed.contains("is not a socket") && printed.contains("NGIT_ADMIN_SOCKET"), "{printed}");
    assert_eq!(fs::read_to_string(&path).expect("cannot read the file"), "precious");
    fs::remove_file(&path).expect("cannot remove the file");
    let _other = UnixListener::bind(&path).expect("cannot bind");
    let printed = start();
    assert!(
        printed.contains("another server is listening there") && printed.contains("NGIT_ADMIN_SOCKET"),
        "{printed}"
    );
    assert!(path.exists());
}

#[test]
fn too_long_socket_path_is_an_invalid_setting() {
    let folder = TempDir::new().expect("cannot create a temporary folder");
    let long = format!("{}/relay", "x".repeat(120));
    for settings in [[("RELAY_DATA_PATH", long.as_str())], [("ADMIN_SOCKET", long.as_str())]] {
        let output = command(folder.path(), &settings).output().expect("cannot run graspd");
        let printed = CommandOutput::new(&output).expect_failure(2);
        assert!(printed.contains("ADMIN_SOCKET") && printed.contains("107"), "{printed}");
    }
}

#[test]
fn aborted_and_malformed_requests_are_harmless() {
    let server = Server::start(&[]);
    for _ in 0..50 {
        // While earlier connections occupy every slot, the server closes a new one at once and the write fails.
        let mut stream = UnixStream::connect(server.admin_socket()).expect("cannot connect");
        let _ = stream.write_all(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
        drop(stream);
        let mut stream = UnixStream::connect(server.admin_socket()).expect("cannot connect");
        let _ = stream.write_all(b"POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
        drop(stream);
    }
    // Closed connections free their slots.
    eventually("a connection slot is free", || (server.run(&["status"]).code == Some(0)).then_some(()));
    let close = "Host: x\r\nConnection: close\r\n";
    assert!(raw_request(&server, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
    assert!(raw_request(&server, &format!("GET /status HTTP/1.1\r\n{close}\r\n")).starts_with("HTTP/1.1 405"));
    let unknown = raw_request(&server, &format!("POST /paint HTTP/1.1\r\n{close}Content-Length: 0\r\n\r\n"));
    assert!(unknown.contains("\"unknown_verb\"") && unknown.contains("paint"), "{unknown}");
    server.run(&["status"]).expect_success();
}

#[test]
fn connection_limit_is_enforced_and_slots_are_reused() {
    let server = Server::start(&[]);
    let mut connections: Vec<UnixStream> =
        (0..16).map(|_| UnixStream::connect(server.admin_socket()).expect("cannot connect")).collect();
    let printed = server.run(&["status"]).expect_failure(1);
    assert!(printed.contains("closed the connection"), "{printed}");
    connections.clear();
    eventually("a connection slot is free", || (server.run(&["status"]).code == Some(0)).then_some(()));
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let server = Server::start(&[]);
    let mut child = server
        .cli_command(&["status"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("cannot run the program");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("cannot wait for the process");
    let printed = CommandOutput::new(&output);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
}

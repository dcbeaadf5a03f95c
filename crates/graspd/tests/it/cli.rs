//! The command line: help, settings, start and stop.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::support::{Client, Server, command, eventually};

fn temp_folder() -> TempDir {
    TempDir::new().expect("cannot create a temporary folder")
}

/// Runs graspd in a folder with these settings and arguments until it ends.
fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    command(folder, settings).args(arguments).output().expect("cannot run graspd")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs()
}

// Help and settings.

#[test]
fn help_version_and_settings_are_printed() {
    let folder = temp_folder();
    for (arguments, expected) in [
        (&["--help"][..], &["Usage: graspd", "Examples:", "graspd config", "serve", "graspd help settings"][..]),
        (&["-h"], &["Usage: graspd", "graspd help settings", "graspd --help"]),
        (&["help", "settings"], &["--bind-address", "NGIT_BIND_ADDRESS", "Relay limits:", "have no flag"]),
        (&["settings"], &["--bind-address", "NGIT_BIND_ADDRESS", "Relay limits:", "have no flag"]),
        (&["help", "config"], &["--json", "--reference"]),
        (&["config", "--help"], &["--json", "--reference", "Secrets are hidden"]),
        (&["--version"], &[concat!("graspd ", env!("CARGO_PKG_VERSION"))]),
        (&["config"], &["SETTING", "BIND_ADDRESS", "127.0.0.1:0", "environment", "RELAY_OWNER_NSEC", "default"]),
        (&["config", "--json"], &["\"settings\"", "\"BIND_ADDRESS\"", "\"source\": \"environment\""]),
        (&["config", "--reference"], &["| Variable | Flag |", "`NGIT_RELAY_FILTER_LIMIT`", "`--relay-filter-limit`"]),
    ] {
        let output = run(folder.path(), &[], arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert_eq!(text(&output.stderr), "", "{arguments:?}");
        let printed = text(&output.stdout);
        for expected in expected {
            assert!(printed.contains(expected), "{arguments:?} does not print {expected}: {printed}");
        }
        // The help of the program fits on one or two screens.
        let max_lines = match arguments {
            ["-h"] => 60,
            ["--help"] => 80,
            _ => usize::MAX,
        };
        assert!(printed.lines().count() <= max_lines, "{printed}");
    }
    assert_eq!(
        fs::read_dir(folder.path()).expect("cannot list the folder").count(),
        0,
        "commands that only print create no files"
    );
}

#[test]
fn reference_and_effective_settings_have_the_same_names() {
    let folder = temp_folder();
    let reference = text(&run(folder.path(), &[], &["config", "--reference"]).stdout);
    let effective = effective(folder.path(), &[], &[]);
    let settings = effective["settings"].as_array().expect("not a list");
    assert!(settings.len() >= 16, "{} settings", settings.len());
    for setting in settings {
        let name = setting["name"].as_str().expect("no name");
        assert!(reference.contains(&format!("| `NGIT_{name}` |")), "{name}");
    }
    assert_eq!(reference.matches("\n| `NGIT_").count(), settings.len());
}

/// Returns what `graspd config --json` prints.
fn effective(folder: &Path, settings: &[(&str, &str)], flags: &[&str]) -> Value {
    let output = run(folder, settings, &[&["config", "--json"], flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("invalid JSON")
}

#[test]
fn precedence_is_flags_environment_dotenv_file() {
    let folder = temp_folder();
    let relay_name = |settings: &[(&str, &str)], flags: &[&str]| {
        let effective = effective(folder.path(), settings, flags);
        let list = effective["settings"].as_array().expect("not a list");
        let found = list.iter().find(|setting| setting["name"] == "RELAY_NAME").expect("no such setting");
        let part = |name: &str| found[name].as_str().expect("not text").to_owned();
        [part("value"), part("source")]
    };
    let environment = [("RELAY_NAME", "by environment")];
    assert_eq!(relay_name(&[], &[])[1], "default");
    fs::write(folder.path().join("graspd.toml"), "relay_name = \"by file\"").expect("cannot write");
    assert_eq!(relay_name(&[], &[]), ["by file", "file"]);
    fs::write(folder.path().join(".env"), "NGIT_RELAY_NAME='by dotenv'\n").expect("cannot write");
    assert_eq!(relay_name(&[], &[]), ["by dotenv", "dotenv"]);
    assert_eq!(relay_name(&environment, &[]), ["by environment", "environment"]);
    assert_eq!(relay_name(&[("RELAY_NAME", "")], &[]), ["by dotenv", "dotenv"], "an empty variable is not set");
    assert_eq!(relay_name(&environment, &["--relay-name", "by flag"]), ["by flag", "flag"]);
    fs::write(folder.path().join("other.toml"), "relay_name = \"by another file\"").expect("cannot write");
    fs::remove_file(folder.path().join(".env")).expect("cannot remove the file");
    assert_eq!(relay_name(&[], &["--config", "other.toml"]), ["by another file", "file"]);
}

// Invalid settings.

#[test]
fn all_invalid_settings_are_listed_at_once() {
    let folder = temp_folder();
    fs::write(folder.path().join(".env"), "NGIT_POLICY=maybe\n").expect("cannot write");
    fs::write(folder.path().join("graspd.toml"), "relay_filter_limit = 0\nno_such_thing = 1\n").expect("cannot write");
    let settings = [
        ("MAX_CONNECTIONS", "many"),
        ("DOMAIN", "https://code.example"),
        ("GIT_DATA_PATH", "./data/relay"),
        ("PRIVATE_MODE", "true"),
    ];
    for arguments in
        [&["--bind-address", "here"][..], &["serve", "--bind-address", "here"], &["config", "--bind-address", "here"]]
    {
        let output = run(folder.path(), &settings, arguments);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert_eq!(text(&output.stdout), "");
        for expected in [
            "the settings have 8 errors:",
            "NGIT_PRIVATE_MODE (environment): restricts who may read this service, which graspd does not support",
            "--bind-address: `here` is not an IP address with a port",
            "NGIT_MAX_CONNECTIONS (environment): `many` is not a whole number",
            "NGIT_DOMAIN (environment): `https://code.example` has a scheme",
            "NGIT_POLICY (.env line 1)",
            "relay_filter_limit (graspd.toml): `0` is not a whole number from 1 to",
            "no_such_thing",
            "GIT_DATA_PATH and RELAY_DATA_PATH: are the same folder",
        ] {
            assert!(printed.contains(expected), "{expected:?} is not in: {printed}");
        }
    }
    assert!(!folder.path().join("data").exists(), "the server did not start");
}

#[test]
fn sizes_and_times_can_have_units() {
    let folder = Arc::new(temp_folder());
    let file = "disk_budget_bytes = \"50GB\"\ngit_max_push_bytes = 5000000\npurgatory_expiry_secs = \"1h30m\"\n";
    fs::write(folder.path().join("graspd.toml"), file).expect("cannot write");
    let settings = [("RELAY_MAX_EVENT_SIZE_BYTES", "64KiB"), ("SHUTDOWN_GRACE_SECS", "2s")];
    let server = Server::start_in(&folder, &settings);
    let limitation = &nip11(&server)["limitation"];
    assert_eq!(limitation["max_event_bytes"], 65_536);
    assert_eq!(limitation["grasp_storage"]["disk_budget_bytes"], 50_000_000_000_u64);
    assert_eq!(limitation["grasp_storage"]["max_push_bytes"], 5_000_000);
    let output = run(folder.path(), &settings, &["config"]);
    for expected in ["64KiB", "1h30m", "50GB"] {
        assert!(text(&output.stdout).contains(expected), "{expected}: {}", text(&output.stdout));
    }
    // An ambiguous or too small unit is an error that shows the value and the accepted forms.
    let output = run(folder.path(), &[("DISK_BUDGET_BYTES", "50G"), ("GIT_PROCESS_SECS", "500ms")], &["config"]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    for expected in [
        "NGIT_DISK_BUDGET_BYTES (environment): `50G` is not a whole number from 0 to ",
        "such as 50GB or 512MiB",
        "NGIT_GIT_PROCESS_SECS (environment): `500ms` is not a whole number from 1 to 86400 (seconds), nor a time",
    ] {
        assert!(printed.contains(expected), "{expected:?} is not in: {printed}");
    }
}

#[test]
fn event_size_limit_above_the_message_size_is_rejected() {
    // An event of the size that the NIP-11 document states must fit into a message.
    let output = run(temp_folder().path(), &[("RELAY_MAX_EVENT_SIZE_BYTES", "4194304")], &["config"]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("NGIT_RELAY_MAX_EVENT_SIZE_BYTES"), "{printed}");
}

#[test]
fn secrets_are_not_accepted_as_arguments_and_never_printed() {
    let folder = temp_folder();
    let secret = "11".repeat(32);
    for arguments in [&["--relay-owner-nsec", &secret][..], &["config", &format!("--relay-owner-nsec={secret}")]] {
        let output = run(folder.path(), &[], arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("--relay-owner-nsec"), "{}", text(&output.stderr));
    }
    for arguments in [&["config"][..], &["config", "--json"]] {
        let output = run(folder.path(), &[("RELAY_OWNER_NSEC", &secret)], arguments);
        let printed = text(&output.stdout) + &text(&output.stderr);
        assert!(printed.contains("(hidden)") && !printed.contains(&secret), "{printed}");
    }
    let output = run(folder.path(), &[("RELAY_OWNER_NSEC", "nsec1hush")], &["config"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output.stderr).contains("hush"), "{}", text(&output.stderr));
}

#[test]
fn second_server_on_the_same_folder_does_not_start() {
    let first = Server::start(&[]);
    let mut client = first.connect();
    // The error is printed even if the log is off.
    for level in ["info", "off"] {
        let output = run(first.folder().path(), &[("LOG_LEVEL", level)], &[]);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(
            printed.contains("another graspd is using") && printed.contains("NGIT_RELAY_DATA_PATH"),
            "{level}: {printed:?}"
        );
        assert!(client.query(&[json!({})]).is_empty(), "the first server is not affected");
    }
    assert!(first.connect().query(&[json!({})]).is_empty());
}

#[test]
fn occupied_address_is_named_in_the_error() {
    let first = Server::start(&[]);
    let address = first.address.to_string();
    let output = run(temp_folder().path(), &[("BIND_ADDRESS", &address)], &[]);
    let printed = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("cannot listen on {address}")), "{printed}");
}

// Start and stop.

#[test]
fn addresses_are_printed_at_start() {
    let server = Server::start(&[("BASE_PATH", "/grasp")]);
    let printed = server.startup_output.join("\n");
    for expected in [
        format!("listening  {}", server.address),
        format!("relay      ws://{}/grasp", server.address),
        format!("git        http://{}/grasp/<npub>/<identifier>.git", server.address),
        "data/relay".to_owned(),
    ] {
        assert!(printed.contains(&expected), "{expected} is not in: {printed}");
    }
}

/// Sends a signal and returns the exit code.
fn stop(server: &mut Server, signal: &str) -> Option<i32> {
    let status = Command::new("kill").args([signal, &server.child.id().to_string()]).status();
    assert!(status.expect("cannot run kill").success());
    eventually("graspd stops", || server.child.try_wait().expect("cannot wait for the process")).code()
}

#[test]
fn acknowledged_events_survive_a_stop_under_load() {
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start(&[("POLICY", "open")]);
        let mut idle = server.connect();
        idle.subscribe("s", &[json!({"kinds": [2]})]);
        let mut busy = server.connect();
        let author = Author::new(1);
        for nth in 0..400 {
            let event = author.note(now(), &[], &nth.to_string());
            busy.send_text(&format!("[\"EVENT\",{}]", event.json()));
        }
        assert_eq!(busy.receive()[2], true, "the first event is accepted");
        assert_eq!(stop(&mut server, signal), Some(0), "{signal}");

        let (messages, code) = read_until_close(&mut idle);
        assert_eq!((messages.len(), code), (0, Some(CloseCode::Away)), "{signal}");
        let (responses, code) = read_until_close(&mut busy);
        assert_eq!(code, Some(CloseCode::Away), "{signal}");
        let acknowledged: Vec<&str> = responses
            .iter()
            .filter(|response| response[2] == true)
            .filter_map(|response| response[1].as_str())
            .collect();
        assert_eq!(acknowledged.len(), responses.len(), "no event was rejected because of the stop");

        let again = Server::start_in(server.folder(), &[("POLICY", "open")]);
        let mut client = again.connect();
        for ids in acknowledged.chunks(100) {
            assert_eq!(client.query(&[json!({"ids": ids})]).len(), ids.len(), "{signal}");
        }
    }
}

/// Returns all remaining messages and the close code, if there was one.
fn read_until_close(client: &mut Client) -> (Vec<Value>, Option<CloseCode>) {
    let mut messages = Vec::new();
    loop {
        match client.socket.read() {
            Ok(Message::Text(text)) => messages.push(serde_json::from_str(&text).expect("invalid JSON")),
            Ok(Message::Close(frame)) => return (messages, frame.map(|frame| frame.code)),
            Ok(_) => {}
            Err(_) => return (messages, None),
        }
    }
}

#[test]
fn unfinished_requests_do_not_delay_a_stop() {
    let mut server = Server::start(&[("SHUTDOWN_GRACE_SECS", "1")]);
    let mut half = TcpStream::connect(server.address).expect("cannot connect");
    half.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").expect("cannot write");
    let _silent = TcpStream::connect(server.address).expect("cannot connect");
    let mut client = server.connect();
    assert!(client.query(&[json!({})]).is_empty(), "the earlier connections were accepted before");
    assert_eq!(server.stop(), Some(0));
    assert!(TcpStream::connect(server.address).is_err(), "the port is closed");
}

#[test]
fn owner_key_file_is_private_and_permanent() {
    let mut server = Server::start(&[]);
    let path = server.folder().path().join("data/relay/.relay-owner.nsec");
    let mode = |path: &Path| fs::metadata(path).expect("cannot access the file").permissions().mode() & 0o777;
    let (key, secret) = (owner_key(&server), fs::read_to_string(&path).expect("no key"));
    assert_eq!(mode(&path), 0o600);
    for folder in ["data", "data/relay", "data/git"] {
        assert_eq!(mode(&server.folder().path().join(folder)), 0o700, "{folder}");
    }
    assert!(secret.starts_with("nsec1"));
    assert_eq!(server.stop(), Some(0));

    let again = Server::start_in(server.folder(), &[]);
    assert_eq!((owner_key(&again), fs::read_to_string(&path).expect("no key"), mode(&path)), (key, secret, 0o600));
}

#[test]
fn configured_owner_key_is_used_and_not_written_to_disk() {
    let one = "0000000000000000000000000000000000000000000000000000000000000001";
    let server = Server::start(&[("RELAY_OWNER_NSEC", one)]);
    assert_eq!(owner_key(&server), "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798");
    assert!(!server.folder().path().join("data/relay/.relay-owner.nsec").exists());
}

/// Returns the owner's public key from the NIP-11 document.
fn owner_key(server: &Server) -> String {
    nip11(server)["pubkey"].as_str().expect("no key").to_owned()
}

/// Returns the NIP-11 document.
fn nip11(server: &Server) -> Value {
    let response = server.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = response.split_once("\r\n\r\n").expect("no response");
    serde_json::from_str(body).expect("invalid JSON")
}

//! The program as its operator meets it: help, settings, starting and stopping.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::support::{Client, Server, command, eventually};

fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

/// Runs graspd to its end, in a folder, with these settings and arguments.
fn run(folder: &Path, settings: &[(&str, &str)], arguments: &[&str]) -> Output {
    command(folder, settings).args(arguments).output().expect("graspd runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

// Telling.

#[test]
fn it_explains_itself() {
    let folder = folder();
    for (arguments, expected) in [
        (
            &["--help"][..],
            &["Usage: graspd", "--bind-address", "NGIT_BIND_ADDRESS", "Examples:", "graspd config", "serve"][..],
        ),
        (&["-h"], &["Usage: graspd", "--bind-address", "graspd --help"]),
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
        let said = text(&output.stdout);
        for expected in expected {
            assert!(said.contains(expected), "{arguments:?} does not say {expected}: {said}");
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "telling makes no files");
}

#[test]
fn the_reference_and_the_effective_settings_know_the_same_names() {
    let folder = folder();
    let reference = text(&run(folder.path(), &[], &["config", "--reference"]).stdout);
    let effective = effective(folder.path(), &[], &[]);
    let settings = effective["settings"].as_array().expect("a list");
    assert!(settings.len() >= 16, "{} settings", settings.len());
    for setting in settings {
        let name = setting["name"].as_str().expect("a name");
        assert!(reference.contains(&format!("| `NGIT_{name}` |")), "{name}");
    }
    assert_eq!(reference.matches("\n| `NGIT_").count(), settings.len());
}

/// What `graspd config --json` says.
fn effective(folder: &Path, settings: &[(&str, &str)], flags: &[&str]) -> Value {
    let output = run(folder, settings, &[&["config", "--json"], flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn flags_win_over_the_environment_over_dotenv_over_the_file() {
    let folder = folder();
    let relay_name = |settings: &[(&str, &str)], flags: &[&str]| {
        let effective = effective(folder.path(), settings, flags);
        let list = effective["settings"].as_array().expect("a list");
        let found = list.iter().find(|setting| setting["name"] == "RELAY_NAME").expect("a setting");
        let part = |name: &str| found[name].as_str().expect("a text").to_owned();
        [part("value"), part("source")]
    };
    let environment = [("RELAY_NAME", "by environment")];
    assert_eq!(relay_name(&[], &[])[1], "default");
    fs::write(folder.path().join("graspd.toml"), "relay_name = \"by file\"").expect("written");
    assert_eq!(relay_name(&[], &[]), ["by file", "file"]);
    fs::write(folder.path().join(".env"), "NGIT_RELAY_NAME='by dotenv'\n").expect("written");
    assert_eq!(relay_name(&[], &[]), ["by dotenv", "dotenv"]);
    assert_eq!(relay_name(&environment, &[]), ["by environment", "environment"]);
    assert_eq!(relay_name(&[("RELAY_NAME", "")], &[]), ["by dotenv", "dotenv"], "an empty variable is not set");
    assert_eq!(relay_name(&environment, &["--relay-name", "by flag"]), ["by flag", "flag"]);
    fs::write(folder.path().join("other.toml"), "relay_name = \"by another file\"").expect("written");
    fs::remove_file(folder.path().join(".env")).expect("removed");
    assert_eq!(relay_name(&[], &["--config", "other.toml"]), ["by another file", "file"]);
}

// Refusing.

#[test]
fn all_wrong_settings_are_listed_at_once() {
    let folder = folder();
    fs::write(folder.path().join(".env"), "NGIT_POLICY=maybe\n").expect("written");
    fs::write(folder.path().join("graspd.toml"), "relay_filter_limit = 0\nno_such_thing = 1\n").expect("written");
    let settings = [("MAX_CONNECTIONS", "many"), ("DOMAIN", "https://code.example"), ("GIT_DATA_PATH", "./data/relay")];
    for arguments in
        [&["--bind-address", "here"][..], &["serve", "--bind-address", "here"], &["config", "--bind-address", "here"]]
    {
        let output = run(folder.path(), &settings, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(text(&output.stdout), "");
        for expected in [
            "the settings have 7 errors:",
            "--bind-address: `here` is not an IP address with a port",
            "NGIT_MAX_CONNECTIONS (environment): `many` is not a whole number",
            "NGIT_DOMAIN (environment): `https://code.example` has a scheme",
            "NGIT_POLICY (.env line 1)",
            "relay_filter_limit (graspd.toml): `0` is not a whole number from 1 to",
            "no_such_thing",
            "GIT_DATA_PATH and RELAY_DATA_PATH: are the same folder",
        ] {
            assert!(said.contains(expected), "{expected:?} is not in: {said}");
        }
    }
    assert!(!folder.path().join("data").exists(), "nothing was begun");
}

#[test]
fn an_event_that_fits_no_message_is_not_promised() {
    // What NIP-11 says of events must be possible in a message.
    let output = run(folder().path(), &[("RELAY_MAX_EVENT_SIZE_BYTES", "4194304")], &["config"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("NGIT_RELAY_MAX_EVENT_SIZE_BYTES"), "{said}");
}

#[test]
fn secrets_are_not_arguments_and_are_never_shown() {
    let folder = folder();
    let secret = "11".repeat(32);
    for arguments in [&["--relay-owner-nsec", &secret][..], &["config", &format!("--relay-owner-nsec={secret}")]] {
        let output = run(folder.path(), &[], arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains("--relay-owner-nsec"), "{}", text(&output.stderr));
    }
    for arguments in [&["config"][..], &["config", "--json"]] {
        let output = run(folder.path(), &[("RELAY_OWNER_NSEC", &secret)], arguments);
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("(hidden)") && !said.contains(&secret), "{said}");
    }
    let output = run(folder.path(), &[("RELAY_OWNER_NSEC", "nsec1hush")], &["config"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output.stderr).contains("hush"), "{}", text(&output.stderr));
}

#[test]
fn a_second_server_on_the_same_folder_is_refused() {
    let first = Server::start(&[]);
    let mut client = first.connect();
    // Whoever wants a quiet log still wants to know why nothing runs.
    for level in ["info", "off"] {
        let output = run(first.folder().path(), &[("LOG_LEVEL", level)], &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("another graspd is using") && said.contains("NGIT_RELAY_DATA_PATH"), "{level}: {said:?}");
        assert!(client.query(&[json!({})]).is_empty(), "the first goes on");
    }
    assert!(first.connect().query(&[json!({})]).is_empty());
}

#[test]
fn an_address_that_is_taken_is_an_error_that_names_it() {
    let first = Server::start(&[]);
    let address = first.address.to_string();
    let output = run(folder().path(), &[("BIND_ADDRESS", &address)], &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot listen on {address}")), "{said}");
}

// Starting and stopping.

#[test]
fn it_says_where_it_is() {
    let server = Server::start(&[("BASE_PATH", "/grasp")]);
    let said = server.welcome.join("\n");
    for expected in [
        format!("listening  {}", server.address),
        format!("relay      ws://{}/grasp", server.address),
        format!("git        http://{}/grasp/<npub>/<identifier>.git", server.address),
        "data/relay".to_owned(),
    ] {
        assert!(said.contains(&expected), "{expected} is not in: {said}");
    }
}

/// Sends a signal and gives the exit code.
fn stop(server: &mut Server, signal: &str) -> Option<i32> {
    let status = Command::new("kill").args([signal, &server.child.id().to_string()]).status();
    assert!(status.expect("kill runs").success());
    eventually("graspd stops", || server.child.try_wait().expect("can be waited for")).code()
}

#[test]
fn what_was_acknowledged_survives_a_stop_in_the_middle_of_work() {
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
        assert_eq!(busy.receive()[2], true, "work has begun");
        assert_eq!(stop(&mut server, signal), Some(0), "{signal}");

        let (told, code) = until_goodbye(&mut idle);
        assert_eq!((told.len(), code), (0, Some(CloseCode::Away)), "{signal}");
        let (answers, code) = until_goodbye(&mut busy);
        assert_eq!(code, Some(CloseCode::Away), "{signal}");
        let acknowledged: Vec<&str> =
            answers.iter().filter(|answer| answer[2] == true).filter_map(|answer| answer[1].as_str()).collect();
        assert_eq!(acknowledged.len(), answers.len(), "no event was refused because of the stop");

        let again = Server::start_in(server.folder(), &[("POLICY", "open")]);
        let mut client = again.connect();
        for ids in acknowledged.chunks(100) {
            assert_eq!(client.query(&[json!({"ids": ids})]).len(), ids.len(), "{signal}");
        }
    }
}

/// Everything that still came, and the code of the goodbye, if there was one.
fn until_goodbye(client: &mut Client) -> (Vec<Value>, Option<CloseCode>) {
    let mut messages = Vec::new();
    loop {
        match client.socket.read() {
            Ok(Message::Text(text)) => messages.push(serde_json::from_str(&text).expect("JSON")),
            Ok(Message::Close(frame)) => return (messages, frame.map(|frame| frame.code)),
            Ok(_) => {}
            Err(_) => return (messages, None),
        }
    }
}

#[test]
fn those_who_do_not_finish_cannot_hold_up_a_stop() {
    let mut server = Server::start(&[("SHUTDOWN_GRACE_SECS", "1")]);
    let mut half = TcpStream::connect(server.address).expect("connects");
    half.write_all(b"GET / HTTP/1.1\r\nX-Slow: ").expect("writes");
    let _silent = TcpStream::connect(server.address).expect("connects");
    let mut client = server.connect();
    assert!(client.query(&[json!({})]).is_empty(), "the others were accepted before");
    assert_eq!(server.stop(), Some(0));
    assert!(TcpStream::connect(server.address).is_err(), "nobody listens any more");
}

#[test]
fn the_owner_key_is_private_and_stays_the_same() {
    let mut server = Server::start(&[]);
    let path = server.folder().path().join("data/relay/.relay-owner.nsec");
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    let (key, secret) = (owner(&server), fs::read_to_string(&path).expect("a key"));
    assert_eq!(mode(&path), 0o600);
    assert!(secret.starts_with("nsec1"));
    assert_eq!(server.stop(), Some(0));

    let again = Server::start_in(server.folder(), &[]);
    assert_eq!((owner(&again), fs::read_to_string(&path).expect("a key"), mode(&path)), (key, secret, 0o600));
}

#[test]
fn a_given_owner_key_is_used_and_not_written_down() {
    let one = "0000000000000000000000000000000000000000000000000000000000000001";
    let server = Server::start(&[("RELAY_OWNER_NSEC", one)]);
    assert_eq!(owner(&server), "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798");
    assert!(!server.folder().path().join("data/relay/.relay-owner.nsec").exists());
}

/// The owner's public key, as the information document has it.
fn owner(server: &Server) -> String {
    let answer = server.get("/", "Accept: application/nostr+json\r\n");
    let (_, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let document: Value = serde_json::from_str(body).expect("JSON");
    document["pubkey"].as_str().expect("a key").to_owned()
}

//! What is not a websocket: pages, the information document, and requests that go nowhere.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use grasp_core::limits;
use serde_json::{Value, json};

use crate::support::{Client, DEADLINE, Server, eventually};

/// An answer, taken apart.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn of(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head: head.to_owned(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    /// G1-64: any page may talk to us, whatever we answer.
    fn expect_open_to_everybody(&self, what: &str) {
        assert_eq!(self.header("access-control-allow-origin"), Some("*"), "{what}: {}", self.head);
        for (name, wanted) in [
            ("access-control-allow-methods", &["GET", "POST"][..]),
            ("access-control-allow-headers", &["Content-Type", "Authorization", "Git-Protocol"]),
        ] {
            let value = self.header(name).unwrap_or_default();
            assert!(wanted.iter().all(|wanted| value.contains(wanted)), "{what}: {name} is {value}");
        }
    }
}

fn request(server: &Server, method: &str, path: &str, headers: &str) -> Answer {
    Answer::of(&server.http(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")))
}

/// Sends a request that may become a websocket; gives the answer's head and the open connection.
fn ask(server: &Server, text: &str) -> (Answer, TcpStream) {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(text.as_bytes()).expect("writes");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap_or_else(|problem| panic!("{problem} after {head:?}"));
        head.push(byte[0]);
    }
    (Answer::of(&String::from_utf8_lossy(&head)), stream)
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// A handshake at `/`, made of these headers.
fn handshake(server: &Server, headers: &[&str]) -> Answer {
    ask(server, &format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", headers.concat())).0
}

fn document(server: &Server) -> Value {
    let answer = request(server, "GET", "/", "Accept: application/nostr+json\r\n");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/nostr+json")),
        "{}",
        answer.head
    );
    serde_json::from_str(&answer.body).expect("JSON")
}

#[test]
fn g1_43_the_information_document_names_the_service() {
    let server = Server::start(&[("RELAY_NAME", "Häuschen"), ("RELAY_DESCRIPTION", "for \"tests\"")]);
    let document = document(&server);
    assert_eq!(document["name"], "Häuschen");
    assert_eq!(document["description"], "for \"tests\"");
    for member in ["name", "description", "software", "version", "repo_acceptance_criteria"] {
        assert!(document[member].as_str().is_some_and(|text| !text.is_empty()), "{member} is {}", document[member]);
    }
    let pubkey = document["pubkey"].as_str().expect("the owner's key");
    assert!(grasp_core::nostr::PublicKey::from_hex(pubkey).is_some(), "{pubkey}");
    let nips: Vec<u64> =
        document["supported_nips"].as_array().expect("a list").iter().filter_map(Value::as_u64).collect();
    assert_eq!(nips, [1, 9, 11, 34, 40, 42, 45, 62, 70, 77]);
}

#[test]
fn g1_44_and_45_what_is_enabled_is_listed_and_curation_is_absent() {
    for (policy, grasps) in [("grasp", json!(["GRASP-01"])), ("open", json!([]))] {
        let document = document(&Server::start(&[("POLICY", policy)]));
        assert_eq!(document["supported_grasps"], grasps, "{policy}");
        assert_eq!(document["limitation"]["restricted_writes"], policy == "grasp");
        assert_eq!(document.get("curation"), None, "null would say that there is some");
    }
}

/// That they are also kept is shown in `limits.rs`.
#[test]
fn the_document_states_the_limits_that_are_set() {
    let settings = [
        ("MAX_CONNECTIONS", "77", "max_connections"),
        ("RELAY_MAX_SUBSCRIPTIONS", "78", "max_subscriptions"),
        ("RELAY_MAX_NEG_SESSIONS", "79", "max_neg_sessions"),
        ("RELAY_MAX_EVENT_SIZE_BYTES", "4242", "max_event_bytes"),
        ("RELAY_FILTER_LIMIT", "80", "max_limit"),
        ("RELAY_FILTER_LIMIT", "80", "default_limit"),
        ("NETWORK_MAX_CONNECTIONS", "81", "max_connections_per_network"),
        ("NETWORK_EVENTS_PER_MINUTE", "82", "max_events_per_minute_per_network"),
    ];
    let server = Server::start(&settings.map(|(name, value, _)| (name, value)));
    let limitation = document(&server)["limitation"].clone();
    for (_, value, member) in settings {
        assert_eq!(limitation[member].to_string(), value, "{member}");
    }
    for (member, value) in [
        ("max_message_length", json!(limits::MAX_MESSAGE_BYTES)),
        ("max_filters", json!(limits::MAX_FILTERS)),
        ("max_filter_values", json!(limits::MAX_FILTER_VALUES)),
        ("max_subscription_bytes", json!(limits::MAX_FILTER_BYTES_PER_CONNECTION)),
        ("max_subid_length", json!(limits::MAX_SUBSCRIPTION_ID_BYTES)),
        ("max_event_tags", json!(limits::MAX_EVENT_TAGS)),
        ("max_state_event_tags", json!(limits::MAX_STATE_TAGS)),
        ("max_state_event_bytes", json!(limits::MAX_STATE_EVENT_BYTES)),
        ("max_unanswered_events", json!(limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION)),
        ("max_neg_items", json!(limits::MAX_NEGENTROPY_ITEMS)),
        ("max_neg_frame_bytes", json!(limits::NEGENTROPY_FRAME_BYTES)),
        ("created_at_upper_limit", json!(limits::MAX_FUTURE_SECS)),
        ("min_pow_difficulty", json!(0)),
        ("auth_required", json!(false)),
        ("payment_required", json!(false)),
    ] {
        assert_eq!(limitation[member], value, "{member}");
    }
}

#[test]
fn budgets_that_are_switched_off_are_not_stated() {
    let server = Server::start(&[("NETWORK_MAX_CONNECTIONS", "0"), ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let limitation = document(&server)["limitation"].clone();
    for member in ["max_connections_per_network", "max_events_per_minute_per_network"] {
        assert_eq!(limitation.get(member), None, "{member}");
    }
}

#[test]
fn the_document_is_for_those_who_ask_for_it() {
    let server = Server::start(&[]);
    for (accept, kind) in [
        ("Accept: application/nostr+json\r\n", "application/nostr+json"),
        ("accept: text/html, Application/Nostr+JSON;q=0.5\r\n", "application/nostr+json"),
        ("Accept: text/html\r\nAccept: application/nostr+json\r\n", "application/nostr+json"),
        ("Accept: application/json\r\n", "text/html; charset=utf-8"),
        ("", "text/html; charset=utf-8"),
    ] {
        let answer = request(&server, "GET", "/?from=here", accept);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{accept}");
    }
}

#[test]
fn the_landing_page_shows_names_as_text_and_runs_nothing() {
    let server = Server::start(&[("RELAY_NAME", "<script>alert(1)</script>"), ("RELAY_DESCRIPTION", "\"><img src=x>")]);
    let page = request(&server, "GET", "/", "");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{}", page.body);
    assert!(!page.body.contains("<script") && !page.body.contains("<img"), "{}", page.body);
    assert!(page.body.contains(&server.url()), "it says where the relay is: {}", page.body);
    let policy = page.header("content-security-policy").unwrap_or_default();
    assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{policy}");
}

#[test]
fn g1_64_every_answer_is_open_to_everybody() {
    let proxy = [("TRUSTED_PROXY_CIDRS", "127.0.0.0/8"), ("NETWORK_MAX_CONNECTIONS", "1")];
    let server = Server::start(&proxy);
    let from = "X-Forwarded-For: 203.0.113.5\r\n";
    let upgrade = format!("GET / HTTP/1.1\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}{from}\r\n");
    let (first, _open) = ask(&server, &upgrade);
    for (answer, status, what) in [
        (request(&server, "GET", "/", ""), 200, "the landing page"),
        (request(&server, "GET", "/", "Accept: application/nostr+json\r\n"), 200, "the document"),
        (request(&server, "HEAD", "/", ""), 200, "HEAD"),
        (request(&server, "OPTIONS", "/", ""), 204, "OPTIONS"),
        (
            request(&server, "GET", "/npub1test/nonexistent.git/info/refs?service=git-upload-pack", ""),
            404,
            "no repository",
        ),
        (request(&server, "POST", "/", "Content-Length: 0\r\n"), 405, "POST"),
        (handshake(&server, &[UPGRADE, KEY]), 400, "half a handshake"),
        (ask(&server, &upgrade).0, 429, "one connection too many"),
        (first, 101, "a websocket"),
    ] {
        assert_eq!(answer.status, status, "{what}: {}", answer.head);
        answer.expect_open_to_everybody(what);
    }
}

#[test]
fn g1_65_options_is_204_everywhere() {
    let server = Server::start(&[]);
    let preflight = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n";
    for path in ["/", "/npub1test/test.git/info/refs", "/npub1test/test.git/git-upload-pack", "/any/thing?at=all", "*"]
    {
        for headers in ["", preflight] {
            let answer = request(&server, "OPTIONS", path, headers);
            assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{path}: {}", answer.head);
            answer.expect_open_to_everybody(path);
        }
    }
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let server = Server::start(&[]);
    for (path, accept) in [("/", ""), ("/", "Accept: application/nostr+json\r\n"), ("/nowhere", "")] {
        let (get, head) = (request(&server, "GET", path, accept), request(&server, "HEAD", path, accept));
        let headers = |answer: &Answer| {
            let mut lines: Vec<String> =
                answer.head.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(headers(&get), headers(&head), "{path}");
        assert_eq!((head.body.as_str(), get.header("content-length")), ("", Some(get.body.len().to_string().as_str())));
    }
}

#[test]
fn other_paths_are_not_found_websocket_or_not() {
    let server = Server::start(&[]);
    for path in ["/x", "//", "/.env", "/../", "/%2e", "/index.html", "/npub1test/x.git"] {
        let page = request(&server, "GET", path, "");
        assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")), "{path}");
        assert_eq!(request(&server, "GET", path, &format!("{VERSION}{KEY}")).status, 404, "{path}");
        let upgrade = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}\r\n");
        assert_eq!(ask(&server, &upgrade).0.status, 404, "{path} as a websocket");
    }
}

#[test]
fn a_base_path_moves_everything() {
    let server = Server::start(&[("BASE_PATH", "/grasp")]);
    for (path, status) in [
        ("/grasp", 200),
        ("/grasp/", 200),
        ("/grasp?x", 200),
        ("/", 404),
        ("/graspy", 404),
        ("/grasp/x", 404),
        ("/GRASP", 404),
    ] {
        assert_eq!(request(&server, "GET", path, "").status, status, "{path}");
        let upgrade = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}\r\n");
        let expected = if status == 200 { 101 } else { 404 };
        assert_eq!(ask(&server, &upgrade).0.status, expected, "{path} as a websocket");
    }
    for url in [server.url(), format!("{}/", server.url())] {
        assert!(Client::connect(server.address, &url).query(&[json!({})]).is_empty());
    }
    assert!(request(&server, "GET", "/grasp", "").body.contains(&format!("ws://{}/grasp", server.address)));
}

#[test]
fn handshakes_that_are_right_in_unusual_ways() {
    let server = Server::start(&[]);
    for headers in [
        &["Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n", VERSION, KEY][..],
        &["connection: UPGRADE\r\nupgrade: WebSocket\r\n", VERSION, KEY],
        &["Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: websocket\r\n", VERSION, KEY],
        &[UPGRADE, VERSION, KEY, "Accept: application/nostr+json\r\n"],
        &[UPGRADE, VERSION, KEY, "Origin: https://a.example\r\n"],
        &[UPGRADE, VERSION, KEY, "Sec-WebSocket-Extensions: permessage-deflate\r\n"],
    ] {
        let answer = handshake(&server, headers);
        assert_eq!(answer.status, 101, "{headers:?}: {}", answer.head);
        // The example of RFC 6455.
        assert_eq!(answer.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(answer.header("upgrade"), Some("websocket"));
        assert!(answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")));
        assert_eq!(answer.header("sec-websocket-extensions"), None, "nothing is agreed to that is not spoken");
    }
}

#[test]
fn handshakes_that_are_wrong() {
    let server = Server::start(&[]);
    for headers in [
        &[UPGRADE, KEY][..],
        &[UPGRADE, KEY, "Sec-WebSocket-Version: 8\r\n"],
        &[UPGRADE, KEY, "Sec-WebSocket-Version: x\r\n"],
        &[UPGRADE, VERSION],
        &[UPGRADE, VERSION, "Sec-WebSocket-Key: short\r\n"],
        &[UPGRADE, VERSION, "Sec-WebSocket-Key:\r\n"],
    ] {
        let answer = handshake(&server, headers);
        assert_eq!((answer.status, answer.header("sec-websocket-version")), (400, Some("13")), "{headers:?}");
    }
    let old = format!("GET / HTTP/1.0\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}\r\n");
    assert_eq!(ask(&server, &old).0.status, 400, "HTTP/1.0 knows no websockets");
    let posted = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{UPGRADE}{VERSION}{KEY}\r\n");
    assert_eq!(ask(&server, &posted).0.status, 405, "a handshake is a GET");
}

#[test]
fn methods_that_mean_nothing_here_are_refused() {
    let server = Server::start(&[]);
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"] {
        let answer = request(&server, method, "/", "Content-Length: 4\r\n\r\nbody");
        assert_eq!(answer.status, 405, "{method}");
        let allow = answer.header("allow").unwrap_or_default();
        assert!(
            allow.contains("GET") && allow.contains("HEAD") && allow.contains("OPTIONS"),
            "{method}: Allow is {allow:?}"
        );
    }
}

#[test]
fn one_connection_may_ask_several_things() {
    let server = Server::start(&[]);
    let pipelined = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\nHEAD /x HTTP/1.1\r\nHost: x\r\n\r\n\
                     OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = server.http(pipelined);
    let statuses: Vec<&str> = answers.match_indices("HTTP/1.1 ").map(|(at, _)| &answers[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "404", "204"]);
}

#[test]
fn garbage_gets_a_4xx_or_nothing_and_the_server_goes_on() {
    let server = Server::start(&[]);
    let long = "x".repeat(limits::MAX_HEADER_BYTES * 2);
    for (what, bytes) in [
        ("noise", b"\0\x01\xff\xfe\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("SSH", b"SSH-2.0-OpenSSH_9.9\r\n\r\n".to_vec()),
        ("HTTP/0.9", b"GET /\r\n\r\n".to_vec()),
        ("a version from the future", b"GET / HTTP/7.7\r\n\r\n".to_vec()),
        ("two lengths", b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_vec()),
        ("a header without a colon", b"GET / HTTP/1.1\r\nHost\r\n\r\n".to_vec()),
        ("a long path", format!("GET /{long} HTTP/1.1\r\n\r\n").into_bytes()),
        ("a long header", format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n").into_bytes()),
        ("many headers", format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(3_000)).into_bytes()),
        ("a websocket frame", b"\x81\x82\0\0\0\0[]\r\n\r\n".to_vec()),
    ] {
        let mut stream = TcpStream::connect(server.address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        // The server may hang up before it has heard everything, so this may fail.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let answer = read_what_comes(&mut stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
        assert_eq!(request(&server, "GET", "/", "").status, 200, "after {what}");
    }
    assert!(server.connect().query(&[json!({})]).is_empty());
}

/// Everything up to the end of the connection, however it ends.
fn read_what_comes(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    if let Err(problem) = stream.read_to_end(&mut answer) {
        assert_eq!(problem.kind(), std::io::ErrorKind::ConnectionReset, "the connection does not end");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn whoever_does_not_finish_a_request_is_cut_off() {
    let server = Server::start(&[]);
    let beginnings = ["", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "];
    let mut streams = beginnings.map(|text| {
        let mut stream = TcpStream::connect(server.address).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS * 2))).expect("a timeout");
        stream.write_all(text.as_bytes()).expect("writes");
        stream
    });
    for (stream, beginning) in streams.iter_mut().zip(beginnings) {
        let answer = read_what_comes(stream);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "after {beginning:?}: {answer}");
    }
    assert_eq!(request(&server, "GET", "/", "").status, 200);
}

#[test]
fn a_flood_of_half_requests_leaves_no_connection_behind() {
    let server = Server::start(&[("MAX_CONNECTIONS", "20")]);
    for _ in 0..10 {
        let streams: Vec<TcpStream> = (0..15).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
        for mut stream in streams {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
        }
    }
    eventually("the places are free again", || {
        let streams: Vec<TcpStream> = (0..10).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
        let served = streams.into_iter().filter(is_served).count();
        (served == 10).then_some(())
    });
}

/// Whether a request on this connection is answered.
fn is_served(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let _ = stream.write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

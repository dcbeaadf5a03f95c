//! HTTP without websockets: pages, the NIP-11 document, CORS, handshakes and malformed requests.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use grasp_core::limits;
use serde_json::{Value, json};

use crate::support::{Client, DEADLINE, Server, eventually};

/// A parsed HTTP response.
struct ParsedResponse {
    status: u16,
    head: String,
    body: String,
}

impl ParsedResponse {
    fn new(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
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

    /// Asserts that the response has the CORS headers, which allow web pages of any origin to read it.
    fn expect_cors_headers(&self, what: &str) {
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

fn request(server: &Server, method: &str, path: &str, headers: &str) -> ParsedResponse {
    ParsedResponse::new(
        &server.http(&format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n")),
    )
}

/// Sends a request that may become a websocket; returns the head of the response and the open connection.
fn send_request(server: &Server, text: &str) -> (ParsedResponse, TcpStream) {
    let mut stream = TcpStream::connect(server.address).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.write_all(text.as_bytes()).expect("cannot write");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap_or_else(|error| panic!("{error} after {head:?}"));
        head.push(byte[0]);
    }
    (ParsedResponse::new(&String::from_utf8_lossy(&head)), stream)
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";
const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

/// Sends a websocket handshake for `/` with these headers.
fn handshake(server: &Server, headers: &[&str]) -> ParsedResponse {
    send_request(server, &format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", headers.concat())).0
}

/// Returns the NIP-11 document.
fn document(server: &Server) -> Value {
    let response = request(server, "GET", "/", "Accept: application/nostr+json\r\n");
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("application/nostr+json")),
        "{}",
        response.head
    );
    serde_json::from_str(&response.body).expect("invalid JSON")
}

/// GRASP-01: the NIP-11 document is served at the base path for `Accept: application/nostr+json`.
#[test]
fn nip11_document_describes_the_service() {
    let server = Server::start(&[("RELAY_NAME", "Häuschen"), ("RELAY_DESCRIPTION", "for \"tests\"")]);
    let document = document(&server);
    assert_eq!(document["name"], "Häuschen");
    assert_eq!(document["description"], "for \"tests\"");
    for member in ["name", "description", "software", "version", "repo_acceptance_criteria"] {
        assert!(document[member].as_str().is_some_and(|text| !text.is_empty()), "{member} is {}", document[member]);
    }
    let pubkey = document["pubkey"].as_str().expect("no public key");
    assert!(grasp_core::nostr::PublicKey::from_hex(pubkey).is_some(), "{pubkey}");
    let nips: Vec<u64> =
        document["supported_nips"].as_array().expect("not a list").iter().filter_map(Value::as_u64).collect();
    assert_eq!(nips, [1, 9, 11, 34, 40, 42, 45, 62, 70, 77]);
}

/// GRASP-01: `supported_grasps` lists exactly what is enabled, and without curation the key `curation` is absent.
#[test]
fn nip11_document_lists_enabled_grasps_and_no_curation() {
    for (policy, grasps) in [("grasp", json!(["GRASP-01"])), ("open", json!([]))] {
        let document = document(&Server::start(&[("POLICY", policy)]));
        assert_eq!(document["supported_grasps"], grasps, "{policy}");
        assert_eq!(document["limitation"]["restricted_writes"], policy == "grasp");
        assert_eq!(document.get("curation"), None, "the key must be absent, not null");
    }
}

/// `limits.rs` tests that the limits are enforced.
#[test]
fn nip11_document_states_the_configured_limits() {
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
        ("max_message_secs", json!(limits::INCOMPLETE_MESSAGE_SECS)),
        ("max_filters", json!(limits::MAX_FILTERS)),
        ("max_filter_values", json!(limits::MAX_FILTER_VALUES)),
        ("max_subscription_bytes", json!(limits::MAX_FILTER_BYTES_PER_CONNECTION)),
        ("max_subscription_bytes_per_network", json!(limits::MAX_FILTER_BYTES_PER_NETWORK)),
        ("max_subid_length", json!(limits::MAX_SUBSCRIPTION_ID_BYTES)),
        ("max_event_tags", json!(limits::MAX_EVENT_TAGS)),
        ("max_state_event_tags", json!(limits::MAX_STATE_TAGS)),
        ("max_state_event_bytes", json!(limits::MAX_STATE_EVENT_BYTES)),
        ("max_unanswered_events", json!(limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION)),
        ("max_held_events_per_key", json!(limits::MAX_HELD_EVENTS_PER_AUTHOR)),
        ("max_held_bytes_per_key", json!(limits::MAX_HELD_BYTES_PER_AUTHOR)),
        ("max_held_events_per_network", json!(limits::MAX_HELD_EVENTS_PER_NETWORK)),
        ("max_held_bytes_per_network", json!(limits::MAX_HELD_BYTES_PER_NETWORK)),
        ("max_announcements_per_identifier", json!(limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER)),
        ("max_exception_announcements_per_repository", json!(limits::MAX_EXCEPTIONS_PER_REPOSITORY)),
        ("max_exception_announcements_per_identifier", json!(limits::MAX_EXCEPTIONS_PER_IDENTIFIER)),
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
fn disabled_limits_are_not_in_the_nip11_document() {
    let server = Server::start(&[("NETWORK_MAX_CONNECTIONS", "0"), ("NETWORK_EVENTS_PER_MINUTE", "0")]);
    let limitation = document(&server)["limitation"].clone();
    for member in ["max_connections_per_network", "max_events_per_minute_per_network"] {
        assert_eq!(limitation.get(member), None, "{member}");
    }
}

#[test]
fn accept_header_selects_document_or_page() {
    let server = Server::start(&[]);
    for (accept, kind) in [
        ("Accept: application/nostr+json\r\n", "application/nostr+json"),
        ("accept: text/html, Application/Nostr+JSON;q=0.5\r\n", "application/nostr+json"),
        ("Accept: text/html\r\nAccept: application/nostr+json\r\n", "application/nostr+json"),
        ("Accept: application/json\r\n", "text/html; charset=utf-8"),
        ("", "text/html; charset=utf-8"),
    ] {
        let response = request(&server, "GET", "/?from=here", accept);
        assert_eq!((response.status, response.header("content-type")), (200, Some(kind)), "{accept}");
    }
}

#[test]
fn landing_page_escapes_names_and_runs_no_scripts() {
    let server = Server::start(&[("RELAY_NAME", "<script>alert(1)</script>"), ("RELAY_DESCRIPTION", "\"><img src=x>")]);
    let page = request(&server, "GET", "/", "");
    assert_eq!(page.status, 200);
    assert!(page.body.contains("&lt;script&gt;alert(1)&lt;/script&gt;"), "{}", page.body);
    assert!(!page.body.contains("<script") && !page.body.contains("<img"), "{}", page.body);
    assert!(page.body.contains(&server.url()), "the page shows the URL of the relay: {}", page.body);
    let policy = page.header("content-security-policy").unwrap_or_default();
    assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{policy}");
}

/// GRASP-01: every response has the CORS headers, whatever its status.
#[test]
fn every_response_has_cors_headers() {
    let proxy = [("TRUSTED_PROXY_CIDRS", "127.0.0.0/8"), ("NETWORK_MAX_CONNECTIONS", "1")];
    let server = Server::start(&proxy);
    let from = "X-Forwarded-For: 203.0.113.5\r\n";
    let upgrade = format!("GET / HTTP/1.1\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}{from}\r\n");
    let (first, _open) = send_request(&server, &upgrade);
    for (response, status, what) in [
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
        (send_request(&server, &upgrade).0, 429, "one connection too many"),
        (first, 101, "a websocket"),
    ] {
        assert_eq!(response.status, status, "{what}: {}", response.head);
        response.expect_cors_headers(what);
    }
}

/// Browsers do not guess the type of a response, and caches know whether they may store it.
#[test]
fn every_response_states_its_type_and_caching() {
    let monitoring = crate::support::peers::unused_address();
    let mut server = Server::start(&[("METRICS_BIND_ADDRESS", &monitoring.to_string())]);
    let nip11 = "Accept: application/nostr+json\r\n";
    let upgrade = format!("{UPGRADE}{VERSION}{KEY}");
    let git = "/npub1test/nonexistent.git/info/refs?service=git-upload-pack";
    let main = [
        ("GET", "/", "", 200, "no-cache"),
        ("HEAD", "/", "", 200, "no-cache"),
        ("GET", "/", nip11, 200, "no-cache"),
        ("OPTIONS", "/", "", 204, "no-cache"),
        ("POST", "/", "Content-Length: 0\r\n", 405, "no-cache"),
        ("GET", "/", &upgrade, 101, "no-cache"),
        ("GET", "/nowhere", "", 404, "no-cache"),
        ("GET", git, "", 404, "no-cache"),
        ("GET", "/robots.txt", "", 200, "public, max-age=86400"),
        ("GET", "/status", "", 200, "no-store"),
        ("GET", "/status.json", "", 200, "no-store"),
        ("GET", "/healthz", "", 200, "no-store"),
        ("GET", "/readyz", "", 200, "no-store"),
        ("GET", "/metrics", "", 404, "no-cache"),
    ];
    let side = [
        ("GET", "/metrics", "", 200, "no-store"),
        ("POST", "/metrics", "Content-Length: 0\r\n", 405, "no-cache"),
        ("GET", "/status", "", 200, "no-store"),
        ("GET", "/status.json", "", 200, "no-store"),
        ("GET", "/healthz", "", 200, "no-store"),
        ("GET", "/readyz", "", 200, "no-store"),
        ("GET", "/nowhere", "", 404, "no-cache"),
    ];
    for (address, requests) in [(server.address, &main[..]), (monitoring, &side)] {
        server.address = address;
        for (method, path, headers, status, caching) in requests {
            let text = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
            let response = send_request(&server, &text).0;
            let what = format!("{method} {path} at {address}: {}", response.head);
            assert_eq!(response.status, *status, "{what}");
            assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{what}");
            assert_eq!(response.header("cache-control"), Some(*caching), "{what}");
        }
    }
}

/// GRASP-01: OPTIONS is answered with 204 for any path, before routing.
#[test]
fn options_is_204_for_every_path() {
    let server = Server::start(&[]);
    let preflight = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n";
    for path in ["/", "/npub1test/test.git/info/refs", "/npub1test/test.git/git-upload-pack", "/any/thing?at=all", "*"]
    {
        for headers in ["", preflight] {
            let response = request(&server, "OPTIONS", path, headers);
            assert_eq!((response.status, response.body.as_str()), (204, ""), "{path}: {}", response.head);
            response.expect_cors_headers(path);
        }
    }
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let server = Server::start(&[]);
    for (path, accept) in [("/", ""), ("/", "Accept: application/nostr+json\r\n"), ("/nowhere", "")] {
        let (get, head) = (request(&server, "GET", path, accept), request(&server, "HEAD", path, accept));
        let headers = |response: &ParsedResponse| {
            let mut lines: Vec<String> =
                response.head.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(headers(&get), headers(&head), "{path}");
        assert_eq!((head.body.as_str(), get.header("content-length")), ("", Some(get.body.len().to_string().as_str())));
    }
}

#[test]
fn other_paths_are_404_for_pages_and_websockets() {
    let server = Server::start(&[]);
    for path in ["/x", "//", "/.env", "/../", "/%2e", "/index.html", "/npub1test/x.git"] {
        let page = request(&server, "GET", path, "");
        assert_eq!((page.status, page.header("content-type")), (404, Some("text/html; charset=utf-8")), "{path}");
        assert_eq!(request(&server, "GET", path, &format!("{VERSION}{KEY}")).status, 404, "{path}");
        let upgrade = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}\r\n");
        assert_eq!(send_request(&server, &upgrade).0.status, 404, "{path} as a websocket");
    }
}

#[test]
fn base_path_applies_to_pages_and_websockets() {
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
        assert_eq!(send_request(&server, &upgrade).0.status, expected, "{path} as a websocket");
    }
    for url in [server.url(), format!("{}/", server.url())] {
        assert!(Client::connect(server.address, &url).query(&[json!({})]).is_empty());
    }
    assert!(request(&server, "GET", "/grasp", "").body.contains(&format!("ws://{}/grasp", server.address)));
}

#[test]
fn unusual_valid_handshakes_are_accepted() {
    let server = Server::start(&[]);
    for headers in [
        &["Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n", VERSION, KEY][..],
        &["connection: UPGRADE\r\nupgrade: WebSocket\r\n", VERSION, KEY],
        &["Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: websocket\r\n", VERSION, KEY],
        &[UPGRADE, VERSION, KEY, "Accept: application/nostr+json\r\n"],
        &[UPGRADE, VERSION, KEY, "Origin: https://a.example\r\n"],
        &[UPGRADE, VERSION, KEY, "Sec-WebSocket-Extensions: permessage-deflate\r\n"],
    ] {
        let response = handshake(&server, headers);
        assert_eq!(response.status, 101, "{headers:?}: {}", response.head);
        // The example of RFC 6455.
        assert_eq!(response.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(response.header("upgrade"), Some("websocket"));
        assert!(response.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")));
        assert_eq!(response.header("sec-websocket-extensions"), None, "unsupported extensions are not accepted");
    }
}

#[test]
fn invalid_handshakes_are_rejected() {
    let server = Server::start(&[]);
    for headers in [
        &[UPGRADE, KEY][..],
        &[UPGRADE, KEY, "Sec-WebSocket-Version: 8\r\n"],
        &[UPGRADE, KEY, "Sec-WebSocket-Version: x\r\n"],
        &[UPGRADE, VERSION],
        &[UPGRADE, VERSION, "Sec-WebSocket-Key: short\r\n"],
        &[UPGRADE, VERSION, "Sec-WebSocket-Key:\r\n"],
    ] {
        let response = handshake(&server, headers);
        assert_eq!((response.status, response.header("sec-websocket-version")), (400, Some("13")), "{headers:?}");
    }
    let old = format!("GET / HTTP/1.0\r\nHost: x\r\n{UPGRADE}{VERSION}{KEY}\r\n");
    assert_eq!(send_request(&server, &old).0.status, 400, "HTTP/1.0 has no websockets");
    let posted = format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{UPGRADE}{VERSION}{KEY}\r\n");
    assert_eq!(send_request(&server, &posted).0.status, 405, "a handshake must be a GET");
}

#[test]
fn unsupported_methods_are_405() {
    let server = Server::start(&[]);
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"] {
        let response = request(&server, method, "/", "Content-Length: 4\r\n\r\nbody");
        assert_eq!(response.status, 405, "{method}");
        let allow = response.header("allow").unwrap_or_default();
        assert!(
            allow.contains("GET") && allow.contains("HEAD") && allow.contains("OPTIONS"),
            "{method}: Allow is {allow:?}"
        );
    }
}

#[test]
fn pipelined_requests_are_answered() {
    let server = Server::start(&[]);
    let pipelined = "HEAD / HTTP/1.1\r\nHost: x\r\n\r\nHEAD /x HTTP/1.1\r\nHost: x\r\n\r\n\
                     OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let responses = server.http(pipelined);
    let statuses: Vec<&str> = responses.match_indices("HTTP/1.1 ").map(|(at, _)| &responses[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["200", "404", "204"]);
}

#[test]
fn malformed_requests_get_4xx_or_nothing() {
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
        let mut stream = TcpStream::connect(server.address).expect("cannot connect");
        stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
        // The server may close the connection before it has read everything, so this may fail.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let response = read_to_end(&mut stream);
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 4"), "{what}: {response}");
        assert_eq!(request(&server, "GET", "/", "").status, 200, "after {what}");
    }
    assert!(server.connect().query(&[json!({})]).is_empty());
}

/// Reads until the connection ends, normally or by a reset.
fn read_to_end(stream: &mut TcpStream) -> String {
    let mut response = Vec::new();
    if let Err(error) = stream.read_to_end(&mut response) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection does not end");
    }
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn unfinished_requests_are_closed_after_the_timeout() {
    let server = Server::start(&[]);
    let beginnings = ["", "GET / HT", "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "];
    let mut streams = beginnings.map(|text| {
        let mut stream = TcpStream::connect(server.address).expect("cannot connect");
        stream
            .set_read_timeout(Some(Duration::from_secs(limits::HANDSHAKE_TIMEOUT_SECS * 2)))
            .expect("cannot set the timeout");
        stream.write_all(text.as_bytes()).expect("cannot write");
        stream
    });
    for (stream, beginning) in streams.iter_mut().zip(beginnings) {
        let response = read_to_end(stream);
        assert!(response.is_empty() || response.starts_with("HTTP/1.1 408"), "after {beginning:?}: {response}");
    }
    assert_eq!(request(&server, "GET", "/", "").status, 200);
}

#[test]
fn aborted_requests_free_their_connections() {
    let server = Server::start(&[("MAX_CONNECTIONS", "20")]);
    for _ in 0..10 {
        let streams: Vec<TcpStream> = (0..15).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
        for mut stream in streams {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\n");
        }
    }
    eventually("the connection slots are free again", || {
        let streams: Vec<TcpStream> = (0..10).filter_map(|_| TcpStream::connect(server.address).ok()).collect();
        let served = streams.into_iter().filter(is_served).count();
        (served == 10).then_some(())
    });
}

/// Returns whether a request on this connection is answered.
fn is_served(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    let _ = stream.write_all(b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    stream.read_to_string(&mut response).is_ok() && response.starts_with("HTTP/1.1 200")
}

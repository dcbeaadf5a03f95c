//! `graspd check` with misconfigured proxies and servers: it reports what is wrong and how to fix it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::{fs, thread};

use serde_json::Value;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection};

use crate::support::admin::CommandOutput;
use crate::support::nginx::Nginx;
use crate::support::{DEADLINE, Server, eventually};

const TRUSTED: [(&str, &str); 1] = [("TRUSTED_PROXY_CIDRS", "127.0.0.0/8")];

/// What a test proxy does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProxyFault {
    None,
    /// Does not forward websocket upgrades.
    NoUpgrade,
    /// Rejects bodies of more than a megabyte.
    SmallBodies,
    /// Rejects bodies without a Content-Length.
    NoChunks,
    /// Does not send X-Forwarded-For.
    NoForwardedFor,
    /// Forwards the X-Forwarded-For of the client without adding its address.
    TrustsClientHeader,
    /// Changes the Host header.
    WrongHost,
    /// Cannot reach the server.
    BadGateway,
    /// Redirects to another host.
    Redirects,
    /// Another web site answers.
    OtherSite,
}

/// Starts a proxy with a fault, which runs until the test process ends. Returns its URL.
fn start_proxy(to: SocketAddr, fault: ProxyFault) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("no port");
    let address = listener.local_addr().expect("no address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || forward(client, to, fault));
        }
    });
    format!("http://{address}")
}

/// Reads the head of a request; returns it and the bytes that follow it.
fn read_head(client: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            return Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), rest));
        }
        let read = client.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
    }
}

/// Responds without the server, and reads until the client has sent everything.
fn respond(mut client: TcpStream, status: &str, more: &str) {
    let response = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: 5\r\n\r\nsorry");
    let _ = client.write_all(response.as_bytes());
    let _ = client.shutdown(Shutdown::Write);
    let _ = std::io::copy(&mut client, &mut std::io::sink());
}

/// Forwards a request to the server with the fault.
fn forward(mut client: TcpStream, to: SocketAddr, fault: ProxyFault) {
    client.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    let Some((head, rest)) = read_head(&mut client) else { return };
    let header = |line: &str, name: &str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
    let value = |name: &str| {
        let line = head.lines().find(|line| header(line, name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
    let is_chunked = value("transfer-encoding").is_some();
    match fault {
        ProxyFault::BadGateway => return respond(client, "502 Bad Gateway", "Server: nginx/1.22.1\r\n"),
        ProxyFault::Redirects => {
            return respond(client, "301 Moved Permanently", "Location: https://www.example.com/\r\n");
        }
        ProxyFault::OtherSite => return respond(client, "200 OK", "Content-Type: text/html\r\n"),
        ProxyFault::SmallBodies if length.is_some_and(|length| length > 1 << 20) || is_chunked => {
            return respond(client, "413 Content Too Large", "Server: nginx/1.22.1\r\n");
        }
        ProxyFault::NoChunks if is_chunked => return respond(client, "411 Length Required", ""),
        _ => {}
    }
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    match fault {
        ProxyFault::NoUpgrade => lines.retain(|line| !header(line, "upgrade") && !header(line, "connection")),
        ProxyFault::NoForwardedFor => lines.retain(|line| !header(line, "x-forwarded-for")),
        ProxyFault::WrongHost => {
            lines.retain(|line| !header(line, "host"));
            lines.push("Host: backend".to_owned());
        }
        _ => {}
    }
    if !matches!(fault, ProxyFault::NoForwardedFor | ProxyFault::TrustsClientHeader) {
        let before = value("x-forwarded-for").map(|printed| format!("{printed}, ")).unwrap_or_default();
        lines.retain(|line| !header(line, "x-forwarded-for"));
        lines.push(format!("X-Forwarded-For: {before}198.51.100.7"));
    }
    if fault == ProxyFault::NoUpgrade {
        lines.push("Connection: close".to_owned());
    }
    let mut server = TcpStream::connect(to).expect("cannot connect");
    server.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).expect("cannot write");
    server.write_all(&rest).expect("cannot write");
    let (mut from, mut into) =
        (client.try_clone().expect("cannot clone the socket"), server.try_clone().expect("cannot clone the socket"));
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
    });
    let _ = std::io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Exit code and findings of `graspd check --json`.
struct CheckReport {
    code: Option<i32>,
    value: Value,
}

impl CheckReport {
    fn new(printed: CommandOutput) -> Self {
        let value = serde_json::from_str(&printed.stdout)
            .unwrap_or_else(|_| panic!("invalid JSON: {}{}", printed.stdout, printed.stderr));
        Self { code: printed.code, value }
    }

    /// Returns the level of a check.
    fn level(&self, check: &str) -> String {
        self.member(check, "level")
    }

    fn member(&self, check: &str, member: &str) -> String {
        let findings = self.value["findings"].as_array().expect("no findings");
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.and_then(|finding| finding[member].as_str()).unwrap_or_default().to_owned()
    }

    /// Returns the names of the checks that report an error.
    fn errors(&self) -> Vec<String> {
        let findings = self.value["findings"].as_array().expect("no findings");
        let wrong = findings.iter().filter(|finding| finding["level"] == "error");
        wrong.map(|finding| finding["check"].as_str().expect("no check name").to_owned()).collect()
    }
}

fn check(server: &Server, via: &str) -> CheckReport {
    CheckReport::new(server.run(&["check", "--json", "--via", via]))
}

#[test]
fn correct_proxy_passes_every_check() {
    let server = Server::start(&TRUSTED);
    let report = check(&server, &start_proxy(server.address, ProxyFault::None));
    assert_eq!((report.code, report.errors()), (Some(0), vec![]), "{}", report.value);
    for fine in
        ["server", "git", "key", "disk", "endpoint", "host", "forwarded", "websocket", "body", "chunked", "clock"]
    {
        assert_eq!(report.level(fine), "ok", "{fine}: {}", report.value);
    }
    assert!(report.member("forwarded", "says").contains("198.51.100.7"), "{}", report.value);
    assert_eq!(report.value["ok"], true);
    assert_eq!(report.value["sites"], serde_json::json!({}), "nothing needs to be fixed");
    // A domain that is an IP address is a warning.
    assert_eq!(report.level("domain"), "warning");
}

#[test]
fn each_proxy_fault_is_reported_and_no_other() {
    let server = Server::start(&TRUSTED);
    for (fault, wrong, says, fix) in [
        (ProxyFault::NoUpgrade, &["websocket"][..], "instead of 101", "proxy_set_header Upgrade $http_upgrade"),
        (ProxyFault::SmallBodies, &["body", "chunked"], "413", "client_max_body_size 0"),
        (ProxyFault::NoChunks, &["chunked"], "411", "proxy_http_version 1.1"),
        (ProxyFault::NoForwardedFor, &["forwarded"], "does not send X-Forwarded-For", "$proxy_add_x_forwarded_for"),
        (ProxyFault::TrustsClientHeader, &["forwarded"], "can claim any address", "$proxy_add_x_forwarded_for"),
        (ProxyFault::BadGateway, &["endpoint"], "502", &format!("proxy_pass http://{};", server.address)),
        (ProxyFault::Redirects, &["endpoint"], "https://www.example.com/", "at this address"),
        (ProxyFault::OtherSite, &["endpoint"], "is not graspd", "forward all requests"),
    ] {
        let report = check(&server, &start_proxy(server.address, fault));
        assert_eq!(
            (report.code, report.errors()),
            (Some(1), wrong.iter().map(|check| (*check).to_owned()).collect()),
            "{fault:?}: {}",
            report.value
        );
        assert!(report.member(wrong[0], "says").contains(says), "{fault:?}: {}", report.value);
        assert!(report.member(wrong[0], "fix").contains(fix), "{fault:?}: {}", report.value);
        let site = report.value["sites"]["nginx"].as_str().unwrap_or_else(|| panic!("{fault:?}: {}", report.value));
        assert!(site.contains(&format!("server {};", server.address)), "{site}");
    }
    let report = check(&server, &start_proxy(server.address, ProxyFault::WrongHost));
    assert_eq!((report.code, report.level("host").as_str()), (Some(0), "warning"), "{}", report.value);
    assert!(report.member("host", "fix").contains("proxy_set_header Host $host"), "{}", report.value);
}

#[test]
fn untrusted_proxy_is_reported() {
    let server = Server::start(&[]);
    let report = check(&server, &start_proxy(server.address, ProxyFault::None));
    assert_eq!(report.errors(), ["forwarded"], "{}", report.value);
    assert!(report.member("forwarded", "fix").contains("NGIT_TRUSTED_PROXY_CIDRS=127.0.0.1/32"), "{}", report.value);
    // Without a proxy, none has to be trusted.
    let report = check(&server, &format!("http://{}", server.address));
    assert_eq!((report.code, report.level("forwarded").as_str()), (Some(0), "note"), "{}", report.value);
}

#[test]
fn address_of_another_server_is_reported() {
    let (server, other) = (Server::start(&TRUSTED), Server::start(&[("RELAY_NAME", "another relay")]));
    let report = check(&server, &start_proxy(other.address, ProxyFault::None));
    assert_eq!(report.errors(), ["endpoint"], "{}", report.value);
    assert!(report.member("endpoint", "says").contains("another relay"), "{}", report.value);
    let report = check(&server, &format!("http://{}", crate::support::peers::unused_address()));
    assert_eq!(report.errors(), ["endpoint"], "{}", report.value);
    assert!(report.member("endpoint", "says").contains("cannot be reached"), "{}", report.value);
}

#[test]
fn other_checks_run_without_a_server() {
    let mut server = Server::start(&TRUSTED);
    let other = Server::start(&[]);
    assert_eq!(server.stop(), Some(0));
    let report = check(&server, &start_proxy(other.address, ProxyFault::None));
    assert_eq!(
        (report.code, report.level("server"), report.level("endpoint")),
        (Some(0), "warning".into(), "warning".into()),
        "{}",
        report.value
    );
    assert_eq!(report.level("websocket"), "ok", "{}", report.value);
    assert_eq!(report.level("body"), "", "the body check needs a running server");
}

#[test]
fn faults_of_the_machine_are_reported() {
    let mut server = Server::start(&TRUSTED);
    let key = server.folder().path().join("data/relay/.relay-owner.nsec");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("cannot change the permissions");
    let via = format!("http://{}", server.address);
    let report = check(&server, &via);
    assert_eq!(report.errors(), ["key"], "{}", report.value);
    assert!(report.member("key", "fix").contains("chmod 0600"), "{}", report.value);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("cannot change the permissions");

    // git cannot be found. A setting of the command line has no effect while the server runs.
    let run = |server: &Server, name: &str, value: &str| {
        let mut command = server.cli_command(&["check", "--json", "--via", &via]);
        CheckReport::new(CommandOutput::new(&command.env(name, value).output().expect("cannot run graspd")))
    };
    assert!(run(&server, "PATH", "/nonexistent").errors().contains(&"git".to_owned()));
    let reserve = ("NGIT_STORE_RESERVE_BYTES", "1099511627776");
    assert_eq!(run(&server, reserve.0, reserve.1).level("disk"), "ok");
    // A terabyte must stay free.
    assert_eq!(server.stop(), Some(0));
    assert!(run(&server, reserve.0, reserve.1).errors().contains(&"disk".to_owned()));
    // A domain that does not resolve.
    let mut command = server.cli_command(&["check", "--json", "--domain", "nowhere.invalid"]);
    let report = CheckReport::new(CommandOutput::new(&command.output().expect("cannot run graspd")));
    assert_eq!(report.errors(), ["dns", "endpoint"], "{}", report.value);
}

/// All lines are about the settings of the server, not about those of the command. Requests to another address name the
/// domain as their host and contain the base path, and only the base path is configured in the proxy.
#[test]
fn settings_are_those_of_the_server() {
    let server = Server::start(&[
        ("DOMAIN", "code.example"),
        ("BASE_PATH", "/grasp"),
        ("RELAY_DATA_PATH", "of-the-server/relay"),
        ("GIT_DATA_PATH", "of-the-server/git"),
        ("ADMIN_SOCKET", "admin.sock"),
        ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8"),
    ]);
    let check = |fault: ProxyFault| {
        let via = start_proxy(server.address, fault);
        CheckReport::new(server.run(&["check", "--json", "--admin-socket", "admin.sock", "--via", &via]))
    };
    let report = check(ProxyFault::None);
    assert_eq!((report.code, report.errors()), (Some(0), vec![]), "{}", report.value);
    assert!(report.member("settings", "says").contains("admin.sock"), "{}", report.value);
    assert!(report.member("host", "says").ends_with(": code.example"), "{}", report.value);
    assert_eq!(report.member("domain", "says"), "code.example", "{}", report.value);
    let text = report.value.to_string();
    assert!(text.contains("of-the-server/relay") && text.contains("of-the-server/git"), "{text}");
    assert!(!text.contains("data/relay") && !text.contains("data/git"), "{text}");

    let report = check(ProxyFault::SmallBodies);
    let site = |name: &str| report.value["sites"][name].as_str().expect("no configuration").to_owned();
    let (nginx, caddy) = (site("nginx"), site("caddy"));
    assert!(nginx.contains("location ~ ^/grasp(/|$) {") && !nginx.contains("location / {"), "{nginx}");
    assert!(!nginx.contains("server_name"), "{nginx}");
    assert!(caddy.contains("@graspd path /grasp /grasp/*") && !caddy.contains("code.example {"), "{caddy}");
}

/// Starts a server whose certificate is not signed by a known authority.
fn start_tls_server() -> SocketAddr {
    let certificate = CertificateDer::from(&include_bytes!("../../src/net/certificates/relay.test.der")[..]);
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("../../src/net/certificates/relay.test.key.der")[..]);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("no TLS versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .expect("invalid certificate");
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("no port");
    let address = listener.local_addr().expect("no address");
    thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut connection = ServerConnection::new(config.clone()).expect("invalid configuration");
            while connection.is_handshaking() && connection.complete_io(&mut client).is_ok() {}
        }
    });
    address
}

#[test]
fn tls_errors_are_described_in_words() {
    let server = Server::start(&[("DOMAIN", "code.example")]);
    for (address, expected) in [
        (start_tls_server(), "the certificate is not signed by a known authority"),
        (server.address, "the server does not use TLS at this port"),
    ] {
        let report = check(&server, &format!("https://{address}"));
        assert_eq!(report.errors(), ["tls"], "{}", report.value);
        let says = report.member("tls", "says");
        assert!(says.contains(expected) && says.contains(&format!("https://{address}/ (as code.example)")), "{says}");
        for name in ["UnknownIssuer", "InvalidCertificate", "InvalidMessage", "peer certificate", "DnsName"] {
            assert!(!says.contains(name), "{says}");
        }
    }
}

/// The server treats requests of a check specially only while it runs, and only with its token.
#[test]
fn clients_cannot_impersonate_a_check() {
    let server = Server::start(&TRUSTED);
    for token in ["", "X-Graspd-Check: \r\n", "X-Graspd-Check: 00000000000000000000000000000000\r\n"] {
        let request = format!(
            "POST /x.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Content-Length: 3\r\n\r\nabc"
        );
        let response = server.http(&request);
        assert!(response.starts_with("HTTP/1.1 404 ") && !response.contains("graspd_check"), "{response}");
    }
}

#[test]
fn text_output_shows_levels_and_configuration() {
    let server = Server::start(&TRUSTED);
    let printed = server.run(&["check", "--via", &start_proxy(server.address, ProxyFault::SmallBodies)]);
    assert_eq!(printed.code, Some(1));
    assert!(printed.stdout.lines().any(|line| line.starts_with("✗ body")), "{}", printed.stdout);
    assert!(printed.stdout.lines().any(|line| line.starts_with("✓ websocket")), "{}", printed.stdout);
    assert!(printed.stdout.contains("Configuration for nginx that fixes all of this:"), "{}", printed.stdout);
    // If the proxy names itself, only its configuration is printed.
    let printed = server.run(&["check", "--via", &start_proxy(server.address, ProxyFault::BadGateway)]);
    assert!(
        printed.stdout.contains("Configuration for nginx") && !printed.stdout.contains("Configuration for Caddy"),
        "{}",
        printed.stdout
    );
    let printed = server.run(&["check", "--via", "ftp://example"]);
    assert_eq!(printed.code, Some(2), "{}", printed.stderr);
}

/// The printed nginx site fixes every error of a minimal one.
#[test]
#[ignore = "needs nginx; .ci/run runs it"]
fn printed_nginx_configuration_fixes_all_errors() {
    let front = crate::support::peers::unused_address();
    let server = Server::start(&[TRUSTED[0], ("DOMAIN", &front.to_string())]);
    let minimal = format!("server {{ listen {front}; location / {{ proxy_pass http://{}; }} }}", server.address);
    let nginx = Nginx::start(&minimal);
    eventually("nginx listens", || TcpStream::connect(front).ok());
    let report = check(&server, &format!("http://{front}"));
    let errors = report.errors();
    for expected in ["websocket", "body", "forwarded"] {
        assert!(errors.contains(&expected.to_owned()), "{expected}: {}", report.value);
    }
    assert_eq!(report.level("host"), "warning", "{}", report.value);
    let site = report.value["sites"]["nginx"].as_str().expect("no configuration for nginx").to_owned();
    assert_eq!(report.value["sites"].as_object().map(serde_json::Map::len), Some(1), "the proxy names itself");
    drop(nginx);
    // The domain is an IP address, so the printed site has no TLS. It listens at all addresses; the test at one only.
    let listen = format!("listen {};", front.port());
    assert!(site.contains(&listen), "{site}");
    let lines = site.lines().filter(|line| !line.contains("[::]"));
    let lines = lines.map(|line| line.replace(&listen, &format!("listen {front};")));
    let _nginx = Nginx::start(&lines.collect::<Vec<_>>().join("\n"));
    eventually("nginx listens", || TcpStream::connect(front).ok());
    let report = check(&server, &format!("http://{front}"));
    assert_eq!((report.code, report.errors()), (Some(0), vec![]), "{}", report.value);
}

/// The printed nginx configuration for a base path works in the site of another service, which stays reachable.
#[test]
#[ignore = "needs nginx; .ci/run runs it"]
fn printed_nginx_location_serves_only_the_base_path() {
    let settings = [("DOMAIN", "code.example"), ("BASE_PATH", "/grasp"), ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8")];
    let server = Server::start(&settings);
    let report = check(&server, &start_proxy(server.address, ProxyFault::SmallBodies));
    let site = report.value["sites"]["nginx"].as_str().expect("no configuration for nginx").to_owned();
    let (shared, location) = site.split_once("\n# Add this to the server block").expect("no location");
    let location = location.split_once('\n').expect("no line").1;
    let front = crate::support::peers::unused_address();
    let _nginx = Nginx::start(&format!(
        "{shared}\nserver {{ listen {front}; server_name code.example; location / {{ return 200 other; }}\n{location} }}"
    ));
    eventually("nginx listens", || TcpStream::connect(front).ok());
    let report = check(&server, &format!("http://{front}"));
    assert_eq!((report.code, report.errors()), (Some(0), vec![]), "{}", report.value);
    for path in ["/", "/graspx"] {
        let mut other = TcpStream::connect(front).expect("cannot connect");
        let request = format!("GET {path} HTTP/1.0\r\nHost: code.example\r\n\r\n");
        other.write_all(request.as_bytes()).expect("cannot write");
        let mut response = String::new();
        other.read_to_string(&mut response).expect("cannot read");
        assert!(response.ends_with("other"), "{path}: {response}");
    }
}

//! `graspd check` against set-ups that are broken: it says what is wrong and what mends it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::{fs, thread};

use serde_json::Value;

use crate::support::admin::Said;
use crate::support::nginx::Nginx;
use crate::support::{DEADLINE, Server, eventually};

const TRUSTED: [(&str, &str); 1] = [("TRUSTED_PROXY_CIDRS", "127.0.0.0/8")];

/// What a proxy does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Good,
    /// Websockets are not passed on.
    NoUpgrade,
    /// At most a megabyte.
    SmallBodies,
    /// Only bodies whose length is told.
    NoChunks,
    /// Nobody is told who asks.
    SaysNothing,
    /// What clients say about themselves is passed on.
    BelievesAnybody,
    /// Another name is asked for.
    WrongHost,
    /// It does not reach the server.
    BadGateway,
    /// It sends everybody elsewhere.
    Redirects,
    /// Something else answers.
    Blog,
}

/// A proxy with a mood; it lives as long as the test.
fn proxy(to: SocketAddr, mood: Mood) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || pass_on(client, to, mood));
        }
    });
    format!("http://{address}")
}

/// Reads a head; gives it, and what came behind it.
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

/// Answers by itself, and listens until the client has said everything.
fn refuse(mut client: TcpStream, status: &str, more: &str) {
    let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: 5\r\n\r\nsorry");
    let _ = client.write_all(answer.as_bytes());
    let _ = client.shutdown(Shutdown::Write);
    let _ = std::io::copy(&mut client, &mut std::io::sink());
}

fn pass_on(mut client: TcpStream, to: SocketAddr, mood: Mood) {
    client.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let Some((head, rest)) = read_head(&mut client) else { return };
    let header = |line: &str, name: &str| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
    let value = |name: &str| {
        let line = head.lines().find(|line| header(line, name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let length = value("content-length").and_then(|length| length.parse::<usize>().ok());
    let is_chunked = value("transfer-encoding").is_some();
    match mood {
        Mood::BadGateway => return refuse(client, "502 Bad Gateway", "Server: nginx/1.22.1\r\n"),
        Mood::Redirects => return refuse(client, "301 Moved Permanently", "Location: https://www.example.com/\r\n"),
        Mood::Blog => return refuse(client, "200 OK", "Content-Type: text/html\r\n"),
        Mood::SmallBodies if length.is_some_and(|length| length > 1 << 20) || is_chunked => {
            return refuse(client, "413 Content Too Large", "Server: nginx/1.22.1\r\n");
        }
        Mood::NoChunks if is_chunked => return refuse(client, "411 Length Required", ""),
        _ => {}
    }
    let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
    match mood {
        Mood::NoUpgrade => lines.retain(|line| !header(line, "upgrade") && !header(line, "connection")),
        Mood::SaysNothing => lines.retain(|line| !header(line, "x-forwarded-for")),
        Mood::WrongHost => {
            lines.retain(|line| !header(line, "host"));
            lines.push("Host: backend".to_owned());
        }
        _ => {}
    }
    if !matches!(mood, Mood::SaysNothing | Mood::BelievesAnybody) {
        let before = value("x-forwarded-for").map(|said| format!("{said}, ")).unwrap_or_default();
        lines.retain(|line| !header(line, "x-forwarded-for"));
        lines.push(format!("X-Forwarded-For: {before}198.51.100.7"));
    }
    if mood == Mood::NoUpgrade {
        lines.push("Connection: close".to_owned());
    }
    let mut server = TcpStream::connect(to).expect("connects");
    server.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes()).expect("writes");
    server.write_all(&rest).expect("writes");
    let (mut from, mut into) = (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
    thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
    });
    let _ = std::io::copy(&mut server, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// What was found.
struct Report {
    code: Option<i32>,
    value: Value,
}

impl Report {
    fn of(said: Said) -> Self {
        let value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("no JSON: {}{}", said.out, said.err));
        Self { code: said.code, value }
    }

    /// How something is, in a word.
    fn level(&self, check: &str) -> String {
        self.part(check, "level")
    }

    fn part(&self, check: &str, part: &str) -> String {
        let findings = self.value["findings"].as_array().expect("findings");
        let found = findings.iter().find(|finding| finding["check"] == check);
        found.and_then(|finding| finding[part].as_str()).unwrap_or_default().to_owned()
    }

    /// What is wrong.
    fn wrongs(&self) -> Vec<String> {
        let findings = self.value["findings"].as_array().expect("findings");
        let wrong = findings.iter().filter(|finding| finding["level"] == "error");
        wrong.map(|finding| finding["check"].as_str().expect("a word").to_owned()).collect()
    }
}

fn check(server: &Server, via: &str) -> Report {
    Report::of(server.run(&["check", "--json", "--via", via]))
}

#[test]
fn a_good_proxy_is_praised() {
    let server = Server::start(&TRUSTED);
    let report = check(&server, &proxy(server.address, Mood::Good));
    assert_eq!((report.code, report.wrongs()), (Some(0), vec![]), "{}", report.value);
    for fine in
        ["server", "git", "key", "disk", "endpoint", "host", "forwarded", "websocket", "body", "chunked", "clock"]
    {
        assert_eq!(report.level(fine), "ok", "{fine}: {}", report.value);
    }
    assert!(report.part("forwarded", "says").contains("198.51.100.7"), "{}", report.value);
    assert_eq!(report.value["ok"], true);
    assert_eq!(report.value["sites"], serde_json::json!({}), "nothing needs to be mended");
    // An address is no name for others.
    assert_eq!(report.level("domain"), "warning");
}

#[test]
fn every_mistake_of_a_proxy_is_found_and_no_other() {
    let server = Server::start(&TRUSTED);
    for (mood, wrong, says, fix) in [
        (Mood::NoUpgrade, &["websocket"][..], "instead of 101", "proxy_set_header Upgrade $http_upgrade"),
        (Mood::SmallBodies, &["body", "chunked"], "413", "client_max_body_size 0"),
        (Mood::NoChunks, &["chunked"], "411", "proxy_http_version 1.1"),
        (Mood::SaysNothing, &["forwarded"], "does not send X-Forwarded-For", "$proxy_add_x_forwarded_for"),
        (Mood::BelievesAnybody, &["forwarded"], "can claim any address", "$proxy_add_x_forwarded_for"),
        (Mood::BadGateway, &["endpoint"], "502", &format!("proxy_pass http://{};", server.address)),
        (Mood::Redirects, &["endpoint"], "https://www.example.com/", "at this address"),
        (Mood::Blog, &["endpoint"], "is not graspd", "forward all requests"),
    ] {
        let report = check(&server, &proxy(server.address, mood));
        assert_eq!(
            (report.code, report.wrongs()),
            (Some(1), wrong.iter().map(|check| (*check).to_owned()).collect()),
            "{mood:?}: {}",
            report.value
        );
        assert!(report.part(wrong[0], "says").contains(says), "{mood:?}: {}", report.value);
        assert!(report.part(wrong[0], "fix").contains(fix), "{mood:?}: {}", report.value);
        let site = report.value["sites"]["nginx"].as_str().unwrap_or_else(|| panic!("{mood:?}: {}", report.value));
        assert!(site.contains(&format!("server {};", server.address)), "{site}");
    }
    let report = check(&server, &proxy(server.address, Mood::WrongHost));
    assert_eq!((report.code, report.level("host").as_str()), (Some(0), "warning"), "{}", report.value);
    assert!(report.part("host", "fix").contains("proxy_set_header Host $host"), "{}", report.value);
}

#[test]
fn a_proxy_that_is_not_believed_is_found() {
    let server = Server::start(&[]);
    let report = check(&server, &proxy(server.address, Mood::Good));
    assert_eq!(report.wrongs(), ["forwarded"], "{}", report.value);
    assert!(report.part("forwarded", "fix").contains("NGIT_TRUSTED_PROXY_CIDRS=127.0.0.1/32"), "{}", report.value);
    // Without a proxy there is none to be believed.
    let report = check(&server, &format!("http://{}", server.address));
    assert_eq!((report.code, report.level("forwarded").as_str()), (Some(0), "note"), "{}", report.value);
}

#[test]
fn a_name_that_leads_elsewhere_is_found() {
    let (server, other) = (Server::start(&TRUSTED), Server::start(&[("RELAY_NAME", "somebody else's")]));
    let report = check(&server, &proxy(other.address, Mood::Good));
    assert_eq!(report.wrongs(), ["endpoint"], "{}", report.value);
    assert!(report.part("endpoint", "says").contains("somebody else's"), "{}", report.value);
    let report = check(&server, &format!("http://{}", crate::support::peers::place()));
    assert_eq!(report.wrongs(), ["endpoint"], "{}", report.value);
    assert!(report.part("endpoint", "says").contains("cannot be reached"), "{}", report.value);
}

#[test]
fn without_a_server_it_looks_at_the_rest() {
    let mut server = Server::start(&TRUSTED);
    let other = Server::start(&[]);
    assert_eq!(server.stop(), Some(0));
    let report = check(&server, &proxy(other.address, Mood::Good));
    assert_eq!(
        (report.code, report.level("server"), report.level("endpoint")),
        (Some(0), "warning".into(), "warning".into()),
        "{}",
        report.value
    );
    assert_eq!(report.level("websocket"), "ok", "{}", report.value);
    assert_eq!(report.level("body"), "", "nobody would count it");
}

#[test]
fn what_is_wrong_on_the_machine_is_found() {
    let mut server = Server::start(&TRUSTED);
    let key = server.folder().path().join("data/relay/.relay-owner.nsec");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("its owner may");
    let via = format!("http://{}", server.address);
    let report = check(&server, &via);
    assert_eq!(report.wrongs(), ["key"], "{}", report.value);
    assert!(report.part("key", "fix").contains("chmod 0600"), "{}", report.value);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("its owner may");

    // A terabyte is to be kept free, and git cannot be found.
    let run = |name: &str, value: &str| {
        let mut command = server.operator(&["check", "--json", "--via", &via]);
        Report::of(Said::of(&command.env(name, value).output().expect("graspd runs")))
    };
    assert!(run("NGIT_STORE_RESERVE_BYTES", "1099511627776").wrongs().contains(&"disk".to_owned()));
    assert!(run("PATH", "/nonexistent").wrongs().contains(&"git".to_owned()));
    // A name that leads nowhere.
    let mut command = server.operator(&["check", "--json", "--domain", "nowhere.invalid"]);
    assert_eq!(server.stop(), Some(0));
    let report = Report::of(Said::of(&command.output().expect("graspd runs")));
    assert_eq!(report.wrongs(), ["dns", "endpoint"], "{}", report.value);
}

/// What a check sends is special only while it runs, and only with its token.
#[test]
fn strangers_cannot_pretend_to_be_a_check() {
    let server = Server::start(&TRUSTED);
    for token in ["", "X-Graspd-Check: \r\n", "X-Graspd-Check: 00000000000000000000000000000000\r\n"] {
        let request = format!(
            "POST /x.git/git-receive-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}Content-Length: 3\r\n\r\nabc"
        );
        let answer = server.http(&request);
        assert!(answer.starts_with("HTTP/1.1 404 ") && !answer.contains("graspd_check"), "{answer}");
    }
}

#[test]
fn people_are_told_in_words() {
    let server = Server::start(&TRUSTED);
    let said = server.run(&["check", "--via", &proxy(server.address, Mood::SmallBodies)]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.lines().any(|line| line.starts_with("✗ body")), "{}", said.out);
    assert!(said.out.lines().any(|line| line.starts_with("✓ websocket")), "{}", said.out);
    assert!(said.out.contains("Configuration for nginx that fixes all of this:"), "{}", said.out);
    // Only the proxy that answers is told about, if it says who it is.
    let said = server.run(&["check", "--via", &proxy(server.address, Mood::BadGateway)]);
    assert!(
        said.out.contains("Configuration for nginx") && !said.out.contains("Configuration for Caddy"),
        "{}",
        said.out
    );
    let said = server.run(&["check", "--via", "ftp://nobody"]);
    assert_eq!(said.code, Some(2), "{}", said.err);
}

/// The site that is printed mends everything that a bare one does wrong.
#[test]
#[ignore = "needs nginx; .ci/run runs it"]
fn the_lines_for_nginx_mend_it() {
    let server = Server::start(&TRUSTED);
    let (front, other) = (crate::support::peers::place(), crate::support::peers::place());
    let bare = format!("server {{ listen {front}; location / {{ proxy_pass http://{}; }} }}", server.address);
    let nginx = Nginx::with(&bare);
    eventually("nginx listens", || TcpStream::connect(front).ok());
    let report = check(&server, &format!("http://{front}"));
    let wrongs = report.wrongs();
    for expected in ["websocket", "body", "forwarded"] {
        assert!(wrongs.contains(&expected.to_owned()), "{expected}: {}", report.value);
    }
    assert_eq!(report.level("host"), "odd", "{}", report.value);
    let site = report.value["sites"]["nginx"].as_str().expect("lines for nginx").to_owned();
    assert_eq!(report.value["sites"].as_object().map(serde_json::Map::len), Some(1), "it says who it is");
    drop(nginx);
    // The same without TLS, at ports of this test.
    let lines = site.lines().filter(|line| !line.contains("[::]") && !line.contains("ssl_certificate"));
    let lines =
        lines.map(|line| line.replace("443 ssl", &front.to_string()).replace("listen 80", &format!("listen {other}")));
    let _nginx = Nginx::with(&lines.collect::<Vec<_>>().join("\n"));
    eventually("nginx listens", || TcpStream::connect(front).ok());
    let report = check(&server, &format!("http://{front}"));
    assert_eq!((report.code, report.wrongs()), (Some(0), vec![]), "{}", report.value);
}

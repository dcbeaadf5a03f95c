//! Requests of untrusted clients: path traversal, invalid headers and methods, markup in events, and rejections that
//! must reach the client through a proxy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use grasp_sim::signer::owned_tags;

use crate::support::attack::{connect, expect_nothing_left, files, read_to_close};
use crate::support::git::{BASE_TIME, GitOutput, MAIN, WorkTree, repo_path};
use crate::support::nginx::Nginx;
use crate::support::test_server::{TestServer, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, ls_refs};
use crate::support::{Server, eventually, wire};

/// Sends bytes and returns the response; empty if the connection is closed without one.
fn send_raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    let _ = stream.write_all(bytes);
    String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned()
}

/// Returns the status of a response; 0 if there is none.
fn status(response: &str) -> u16 {
    response.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Returns all files in the server's folder with their sizes, without the database, which changes by itself.
fn files_except_database(server: &TestServer) -> Vec<(String, u64)> {
    files(server.process.folder().path()).into_iter().filter(|(path, _)| !path.contains("/data/relay/")).collect()
}

#[test]
fn paths_cannot_leave_the_repositories() {
    let mut server = TestServer::with_settings(&[("GRASP06_ENABLE", "true")]);
    let owner = server.maintainer(1);
    let npub = owner.npub();
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    // A file and a git repository that a traversal could reach.
    let folder = server.process.folder().path().to_owned();
    let secret = folder.join("secret.git");
    let cloned = work.git(&["clone", "--quiet", "--bare", ".", &secret.to_string_lossy()]);
    cloned.expect_success();
    fs::write(folder.join("secret"), "the secret").expect("cannot write the file");
    let before = files_except_database(&server);

    let long = "a".repeat(15_000);
    let mixed: String = npub.char_indices().map(|(n, c)| if n % 2 == 0 { c.to_ascii_uppercase() } else { c }).collect();
    let secret_path = secret.to_string_lossy().into_owned();
    let mut names: Vec<String> = Vec::new();
    for up in ["..", "%2e%2e", "%2E%2e", ".%2e", "%2e.", "%c0%ae%c0%ae", "%e0%80%ae%e0%80%ae", "%f0%80%80%ae.", "..%00"]
    {
        for slash in ["/", "%2f", "%2F", "%5c", "\\", "%c0%af", "%e0%80%af", "//", "/./"] {
            names.push(format!("{npub}/{}secret.git", format!("{up}{slash}").repeat(4)));
            names.push(format!("{}secret.git", format!("{up}{slash}").repeat(5)));
        }
    }
    names.extend([
        format!("{npub}/tool.git/../../../../../secret.git"),
        format!("{npub}/tool.git%2f..%2ftool.git"),
        format!("{npub}/tool%00.git"),
        format!("{npub}/%00.git"),
        format!("{npub}/tool%0a.git"),
        format!("{npub}/tool%0d%0aX-Evil:%20yes.git"),
        format!("{npub}/%7f.git"),
        format!("{npub}/%2e.git"),
        format!("{npub}/.git"),
        format!("{npub}/{}.git", secret_path.replace('/', "%2f")),
        format!("{npub}{secret_path}"),
        format!("{npub}//tool.git"),
        format!("/{npub}/tool.git"),
        format!("./{npub}/tool.git"),
        format!("{npub}/./tool.git"),
        format!("{npub}/tool.git/."),
        format!("{npub}/tool.git//"),
        format!("{npub}/tool.git%2f"),
        format!("{npub}%2ftool.git"),
        format!("{npub}\\tool.git"),
        format!("{}/tool.git", npub.to_uppercase()),
        format!("{mixed}/tool.git"),
        format!("{npub}%00/tool.git"),
        format!("{}/tool.git", owner.author.hex()),
        format!("{npub}/{long}.git"),
        format!("{}tool.git", format!("{npub}/").repeat(200)),
        format!("repos/{npub}/tool.git"),
        format!("git/repos/{npub}/tool.git"),
        "empty.git".to_owned(),
        "secret.git".to_owned(),
        "data/relay/lock".to_owned(),
        "etc/passwd".to_owned(),
        "%2fetc%2fpasswd".to_owned(),
        "file:///etc/passwd".to_owned(),
    ]);
    let push = String::from_utf8(wire::push_body(&[[ZERO, &c1, MAIN]], CAPABILITIES, b"")).expect("push body is UTF-8");
    let requests = [
        ("GET", "", ""),
        ("GET", "/info/refs?service=git-upload-pack", ""),
        ("GET", "/info/refs?service=git-receive-pack", ""),
        ("GET", "/purgatory", ""),
        ("GET", "/HEAD", ""),
        ("POST", "/git-upload-pack", &ls_refs()),
        ("POST", "/git-receive-pack", &push),
    ];
    let headers = |body: &str| {
        format!("Host: x\r\nConnection: close\r\n{VERSION_2}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    };
    for name in &names {
        for (method, below, body) in requests {
            for prefix in ["/", "/prs/"] {
                let response = send_raw(
                    &server.process,
                    format!("{method} {prefix}{name}{below} HTTP/1.1\r\n{}", headers(body)).as_bytes(),
                );
                let status = status(&response);
                let what = format!("{method} {prefix}{}{below}: {response}", &name[..name.len().min(300)]);
                assert!(matches!(status, 400 | 404 | 414 | 431), "{what}");
                assert!(!response.contains("the secret") && !response.contains(&c1), "{what}");
                assert!(!response.to_ascii_lowercase().contains("\r\nx-evil"), "{what}");
            }
        }
    }
    // Absolute URLs, queries and fragments do not change the path.
    for (path, expected) in [
        (format!("http://elsewhere.example/{npub}/tool.git"), 200),
        (format!("http://elsewhere.example/{npub}/../../secret.git"), 404),
        ("http://elsewhere.example/../secret.git".to_owned(), 404),
        (format!("/{npub}/tool.git?../../../secret.git"), 200),
        (format!("/{npub}/tool.git#/../secret.git"), 200),
        // Decoded once, this is an ordinary identifier, which is not announced.
        (format!("/{npub}/%252e%252e%252f%252e%252e%252fsecret.git"), 404),
        (format!("/prs/{npub}/%252e%252e%252f%252e%252e%252fsecret.git/info/refs?service=git-upload-pack"), 200),
    ] {
        let response = send_raw(&server.process, format!("GET {path} HTTP/1.1\r\n{}", headers("")).as_bytes());
        let is_rejected_fragment = path.contains('#') && status(&response) == 400;
        assert!(status(&response) == expected || is_rejected_fragment, "{path}: {response}");
        assert!(!response.contains("the secret"), "{path}: {response}");
    }
    let endless = format!("GET /{} HTTP/1.1\r\n{}", "a/".repeat(500_000), headers(""));
    assert!(matches!(status(&send_raw(&server.process, endless.as_bytes())), 0 | 400 | 414 | 431));
    assert_eq!(files_except_database(&server), before, "files were changed");
}

#[test]
fn invalid_headers_and_methods_are_rejected_or_ignored() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let process = &server.process;
    let get = |query: &str, headers: &[u8]| {
        let line = format!("GET {repo}{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        send_raw(process, &[line.as_bytes(), headers, b"\r\n"].concat())
    };
    let advertisement = "/info/refs?service=git-upload-pack";

    for junk in [
        &b"version=99"[..],
        b"version=2:version=1:version=0",
        b"version=two",
        b"",
        b":::::",
        b"\xff\xfe\x80",
        b"version=2; rm -rf /",
        b"version=$(touch /tmp/x)",
        &b"key=value:".repeat(1_000),
    ] {
        let response = get(advertisement, &[b"Git-Protocol: ", junk, b"\r\n"].concat());
        assert_eq!(status(&response), 200, "{:?}: {response}", String::from_utf8_lossy(junk));
    }
    let twice = b"Git-Protocol: version=2\r\nGit-Protocol: version=1\r\nHost: y\r\nAccept: */*\r\nAccept: x\r\n";
    assert!(matches!(status(&get(advertisement, twice)), 200 | 400));
    let many: Vec<u8> = (0..90).flat_map(|n| format!("X-{n}: x\r\n").into_bytes()).collect();
    assert!(matches!(status(&get(advertisement, &many)), 200 | 431));
    let many: Vec<u8> = (0..5_000).flat_map(|n| format!("X-{n}: x\r\n").into_bytes()).collect();
    assert!(matches!(status(&get(advertisement, &many)), 0 | 400 | 431));

    for junk in [
        "?service=",
        "?service=git-upload-pack%00",
        "?service=git-upload-archive",
        "?service=GIT-UPLOAD-PACK",
        "?service=upload-pack",
        "?service=../git-upload-pack",
        "?service=git-upload-pack;id",
        "?service",
        "?",
        "",
        "?&&&=&service=x&service=git-upload-pack",
    ] {
        let response = get(&format!("/info/refs{junk}"), b"");
        assert!(matches!(status(&response), 400 | 403), "{junk}: {response}");
    }
    assert_eq!(status(&get("/info/refs?a=b&service=git-upload-pack&c=d", b"")), 200);

    for (method, below) in [
        ("POST", "/info/refs?service=git-upload-pack"),
        ("GET", "/git-upload-pack"),
        ("GET", "/git-receive-pack"),
        ("PUT", "/git-receive-pack"),
        ("DELETE", ""),
        ("PATCH", "/info/refs"),
        ("POST", "/purgatory"),
        ("MKCOL", ""),
        ("PROPFIND", "/info/refs"),
        ("TRACE", "/git-upload-pack"),
    ] {
        let response = wire::request(process, method, &format!("{repo}{below}"), &["Content-Length: 0"]);
        assert_eq!(response.status, 405, "{method} {below}: {}", response.head);
        assert!(response.header("allow").is_some(), "{method} {below}: {}", response.head);
    }

    // Only the base path is a websocket endpoint.
    for below in ["", advertisement, "/purgatory"] {
        let upgrade =
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let line = format!("GET {repo}{below} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n");
        let response = send_raw(process, &[line.as_bytes(), upgrade, b"\r\n"].concat());
        assert!(
            status(&response) != 101 && !response.to_ascii_lowercase().contains("sec-websocket-accept"),
            "{response}"
        );
    }

    // An HTTP/1.0 client gets a response, and the connection is closed.
    let response = send_raw(process, format!("GET {repo}{advertisement} HTTP/1.0\r\n\r\n").as_bytes());
    assert!(status(&response) == 200 && response.contains("# service=git-upload-pack"), "{response}");
    assert!(!response.to_ascii_lowercase().contains("transfer-encoding"), "{response}");
    let body = ls_refs();
    let request =
        format!("POST {repo}/git-upload-pack HTTP/1.0\r\n{VERSION_2}\r\nContent-Length: {}\r\n\r\n", body.len());
    let response = send_raw(process, (request + &body).as_bytes());
    assert!(response.contains(&c1), "{response}");

    // Pipelined requests are answered in order.
    let request = format!("POST {repo}/git-upload-pack HTTP/1.1\r\nHost: x\r\n{VERSION_2}\r\n");
    let request = format!("{request}Content-Length: {}\r\n\r\n{body}", body.len());
    let last = format!("GET {repo}/purgatory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let response = send_raw(process, (request.repeat(3) + &last).as_bytes());
    assert_eq!(
        (response.matches("HTTP/1.1 200").count(), response.matches(&c1).count() / 3 > 0),
        (4, true),
        "{response}"
    );

    // Request smuggling: a body with contradicting lengths must not be answered as a second request.
    let smuggled = format!("GET {repo}/purgatory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    for lengths in [
        "Content-Length: 4\r\nContent-Length: 500\r\n",
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 4, 4\r\n",
        "Content-Length: 99999999999999999999999\r\n",
    ] {
        let head = format!("POST {repo}/git-upload-pack HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lengths}\r\n0000");
        let mut stream = connect(process);
        let _ = stream.write_all((head + &smuggled).as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let response = String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned();
        assert!(response.matches("HTTP/1.1 ").count() <= 1, "{lengths}: {response}");
        assert!(!response.contains("application/json"), "{lengths}: {response}");
    }
    let response = wire::request_with_body(
        process,
        &format!("{repo}/git-upload-pack"),
        &[UPLOAD_REQUEST, VERSION_2],
        body.as_bytes(),
    );
    assert!(response.text().contains(&c1));
}

/// Asserts that a page has only known tags, and no attribute or URL that an event could have injected.
#[track_caller]
fn expect_harmless(page: &str) {
    let mut rest = page;
    while let Some((_, tail)) = rest.split_once('<') {
        let (tag, after) = tail.split_once('>').expect("tag is not closed");
        let name: String = tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        let known = [
            "!doctype", "html", "head", "meta", "title", "style", "link", "body", "main", "header", "footer",
            "section", "nav", "h1", "h2", "h3", "p", "a", "ul", "ol", "li", "dl", "dt", "dd", "table", "thead",
            "tbody", "tr", "th", "td", "code", "pre", "span", "div", "small", "strong", "em", "b", "i", "br", "hr",
            "time", "details", "summary", "article", "abbr", "kbd",
        ];
        let name = if tag.starts_with('!') { "!doctype".to_owned() } else { name.to_ascii_lowercase() };
        assert!(known.contains(&name.as_str()), "<{tag}> in {page}");
        // Outside of quotes a tag contains only attribute names.
        let names: String = tag.split('"').step_by(2).collect();
        assert!(!names.contains("alert") && !names.contains(" on") && !names.contains('\''), "<{tag}> in {page}");
        for value in tag.split('"').skip(1).step_by(2) {
            let value = value.trim().to_ascii_lowercase();
            assert!(!value.starts_with("javascript:") && !value.starts_with("data:"), "<{tag}> in {page}");
        }
        rest = after;
    }
}

#[test]
fn markup_in_events_is_escaped() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let script = "<script>alert(1)</script>";
    let quote = "\"' onerror=alert(2) x=\"";
    let (work, c1) = one_commit("one");
    for d in ["<img src=x onerror=alert(3)>", "\"><script>alert(4)<", "' onmouseover='alert(5)", "{{7*7}}${7*7}&lt;"] {
        let evil = format!("{script}{quote}</title></style>-->{d}");
        let urls = [
            "javascript:alert(6)",
            "data:text/html,<script>alert(7)</script>",
            " javascript:alert(8)",
            "JaVaScRiPt:alert(9)",
            "https://x.example/\"><script>alert(10)</script>",
            "https://x.example/' onerror='alert(11)",
            "vbscript:x",
        ];
        let url_tag = |name: &str| std::iter::once(name).chain(urls).map(str::to_owned).collect::<Vec<String>>();
        let mut tags = owned_tags(&[&["name", &evil], &["description", &evil], &["t", &evil], &["maintainers", &evil]]);
        tags.push(url_tag("web"));
        let mut announcement = owner.announce_with(d, BASE_TIME, tags);
        // The same URLs in `clone` and `relays`, after those that list the service.
        let mut all = announcement.tags.clone();
        for tag in &mut all {
            if matches!(tag[0].as_str(), "clone" | "relays") {
                tag.extend(urls.map(str::to_owned));
            }
        }
        announcement = owner.author.sign_owned(announcement.kind, BASE_TIME, all, &evil);
        server.publish_held(&announcement);
        let path = repo_path(&owner.npub(), d);
        expect_harmless(&wire::request(&server.process, "GET", &path, &[]).text());

        let branches =
            ["refs/heads/<script>alert(12)</script>", "refs/heads/\"onerror=alert(13)", "refs/heads/a'b&lt;"];
        let tag = "refs/tags/<img/src=x>\"'";
        let declared: Vec<(&str, &str)> = branches.iter().chain([&tag]).map(|name| (*name, c1.as_str())).collect();
        server.push_state(&owner, &owner, d, BASE_TIME, &work, &declared);
        // A held state is shown on the page.
        server.publish_held(&owner.state(d, BASE_TIME + 1, &[("refs/heads/<b>", &"b".repeat(40))]));
        let page = wire::request(&server.process, "GET", &path, &[]);
        assert_eq!(page.status, 200, "{}", page.head);
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{}", page.head);
        let text = page.text();
        expect_harmless(&text);
        assert!(text.contains("&lt;script&gt;alert(12)"), "{text}");
        let purgatory = wire::request(&server.process, "GET", &format!("{path}/purgatory"), &[]);
        assert_eq!(purgatory.header("content-type"), Some("application/json"));
        serde_json::from_slice::<serde_json::Value>(&purgatory.body).expect("valid JSON");
        let unknown = wire::request(&server.process, "GET", &repo_path(&owner.npub(), &format!("{d}x")), &[]);
        assert_eq!(unknown.status, 404);
        expect_harmless(&unknown.text());
        // The report of a push contains no control characters either.
        let output = work.push(&server.url(&owner, d), &[&format!("{c1}:refs/heads/\u{202e}x")]);
        output.expect_failure(&["E-"]);
        assert!(!output.stderr.contains('\u{1b}'), "{}", output.stderr);
    }
    expect_harmless(&wire::request(&server.process, "GET", "/", &[]).text());
}

/// An nginx in front of a server, with request buffering on one port and without it on another.
struct Proxy {
    _nginx: Nginx,
    buffering: u16,
    streaming: u16,
}

impl Proxy {
    fn start(server: &Server) -> Self {
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("cannot bind a port"));
        let [buffering, streaming] =
            free.each_ref().map(|port| port.local_addr().expect("cannot read the address").port());
        drop(free);
        let host = |port: u16, buffering: &str| {
            format!(
                "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{}; proxy_http_version 1.1; \
                 proxy_request_buffering {buffering}; }} }}\n",
                server.address
            )
        };
        let sites = format!("client_max_body_size 0; {} {}", host(buffering, "on"), host(streaming, "off"));
        let proxy = Self { _nginx: Nginx::start(&sites), buffering, streaming };
        for port in [buffering, streaming] {
            eventually("nginx listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        }
        proxy
    }
}

#[test]
#[ignore = "needs nginx; .ci/run runs it"]
fn client_receives_the_reason_of_a_large_rejected_push() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    let (work, c1) = one_commit("one");
    server.create_repo(&owner, "tool", &[], &work, &main_at(&c1));
    // Fifty megabytes that cannot be compressed.
    let mut random = vec![0; 50 << 20];
    fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut random)).expect("cannot read /dev/urandom");
    fs::write(work.tree().join("large"), random).expect("cannot write the file");
    let fast = ["-c", "core.compression=0"];
    work.git(&[&fast[..], &["add", "large"]].concat()).expect_success();
    work.git(&["commit", "--quiet", "--message", "large"]).expect_success();

    let direct = server.url(&owner, "tool");
    let push = |url: &str, options: &[&str]| work.git(&[&fast[..], options, &["push", url, "main"]].concat());
    let expect_reason = |output: &GitOutput, what: &str| {
        assert!(!output.success, "{what}: {}", output.stderr);
        let has_code = output.stderr.contains("E-STATE-MISSING");
        let has_status = output.stderr.contains("! [remote rejected] main -> main");
        let is_silent = output.stderr.contains("Everything up-to-date");
        assert!(has_code && has_status && !is_silent, "{what}: {}", output.stderr);
    };
    for n in 0..10 {
        expect_reason(&push(&direct, &[]), &format!("directly, {n}"));
    }
    expect_reason(&push(&direct, &["-c", "http.postBuffer=104857600"]), "directly, in one piece");
    expect_reason(&push(&direct, &["-c", "http.extraHeader=Expect: 100-continue"]), "directly, with Expect");
    let proxy = Proxy::start(&server.process);
    for (what, port) in [("buffering", proxy.buffering), ("streaming", proxy.streaming)] {
        let url = direct.replace(&server.process.address.to_string(), &format!("127.0.0.1:{port}"));
        for n in 0..3 {
            expect_reason(&push(&url, &[]), &format!("{what}, {n}"));
        }
        expect_reason(&push(&url, &["-c", "http.postBuffer=104857600"]), &format!("{what}, in one piece"));
        assert_eq!(WorkTree::clone(&url).oid("HEAD"), c1, "{what}");
    }
    server.expect_refs(&owner, "tool", &main_at(&c1));
    expect_nothing_left(&server);
}

#[test]
fn expect_continue_is_answered_before_the_body() {
    let mut server = TestServer::new();
    let owner = server.maintainer(1);
    server.publish_held(&owner.announce("tool", BASE_TIME, &[]));
    let receive = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    let headers = [RECEIVE_REQUEST, "Expect: 100-continue", "Content-Length: 5000000"];
    let mut stream = connect(&server.process);
    stream
        .write_all(wire::request_head(&server.process, "POST", &receive, &headers).as_bytes())
        .expect("cannot write to the connection");
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).expect("cannot read the response");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    let commands = wire::push_body(&[[ZERO, &"a".repeat(40), MAIN]], CAPABILITIES, b"PACK");
    stream.write_all(&commands).expect("cannot write to the connection");
    stream.write_all(&vec![0; 5_000_000 - commands.len()]).expect("the server does not read the whole body");
    let response = String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned();
    assert!(response.contains("E-STATE-MISSING"), "{response}");
    // A repository that does not exist is answered without an interim response.
    let unknown = receive.replace("tool", "nothing");
    let response =
        send_raw(&server.process, wire::request_head(&server.process, "POST", &unknown, &headers).as_bytes());
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
}

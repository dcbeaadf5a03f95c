//! Requests by strangers: paths that lead elsewhere, headers that mean nothing, text that would be markup, and refusals
//! that must be understood on the other side of a proxy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use grasp_sim::signer::owned;

use crate::support::attack::{connect, expect_nothing_left, files, read_to_close};
use crate::support::git::{MAIN, Said, THEN, Work, repo_path};
use crate::support::nginx::Nginx;
use crate::support::test_server::{Stage, main_at, one_commit};
use crate::support::wire::{CAPABILITIES, RECEIVE_REQUEST, UPLOAD_REQUEST, VERSION_2, ZERO, ls_refs};
use crate::support::{Server, eventually, wire};

/// Sends bytes and gives whatever comes back; nothing, if the connection is closed without an answer.
fn raw(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    let _ = stream.write_all(bytes);
    String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned()
}

/// The status of an answer; 0 if there was none.
fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

/// Files that strangers could reach if paths were believed, without the database, which changes by itself.
fn outside(stage: &Stage) -> Vec<(String, u64)> {
    files(stage.server.folder().path()).into_iter().filter(|(path, _)| !path.contains("/data/relay/")).collect()
}

#[test]
fn paths_lead_nowhere_but_to_repositories() {
    let mut stage = Stage::with(&[("GRASP06_ENABLE", "true")]);
    let owner = stage.person(1);
    let npub = owner.npub();
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    // What is there to be found: beside the data, in it, and as a repository that git would serve.
    let folder = stage.server.folder().path().to_owned();
    let secret = folder.join("secret.git");
    let cloned = work.git(&["clone", "--quiet", "--bare", ".", &secret.to_string_lossy()]);
    cloned.done();
    fs::write(folder.join("secret"), "the secret").expect("a file");
    let before = outside(&stage);

    let long = "a".repeat(15_000);
    let mixed: String = npub.char_indices().map(|(n, c)| if n % 2 == 0 { c.to_ascii_uppercase() } else { c }).collect();
    let there = secret.to_string_lossy().into_owned();
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
        format!("{npub}/{}.git", there.replace('/', "%2f")),
        format!("{npub}{there}"),
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
    let push = String::from_utf8(wire::push_body(&[[ZERO, &c1, MAIN]], CAPABILITIES, b"")).expect("text");
    let asks = [
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
        for (method, below, body) in asks {
            for room in ["/", "/prs/"] {
                let answer = raw(
                    &stage.server,
                    format!("{method} {room}{name}{below} HTTP/1.1\r\n{}", headers(body)).as_bytes(),
                );
                let told = status(&answer);
                let what = format!("{method} {room}{}{below}: {answer}", &name[..name.len().min(300)]);
                assert!(matches!(told, 400 | 404 | 414 | 431), "{what}");
                assert!(!answer.contains("the secret") && !answer.contains(&c1), "{what}");
                assert!(!answer.to_ascii_lowercase().contains("\r\nx-evil"), "{what}");
            }
        }
    }
    // A request may name the whole address; it is the same path.
    for (path, told) in [
        (format!("http://elsewhere.example/{npub}/tool.git"), 200),
        (format!("http://elsewhere.example/{npub}/../../secret.git"), 404),
        ("http://elsewhere.example/../secret.git".to_owned(), 404),
        (format!("/{npub}/tool.git?../../../secret.git"), 200),
        (format!("/{npub}/tool.git#/../secret.git"), 200),
        // Decoded once, this is a name like any other; nothing of that name was announced.
        (format!("/{npub}/%252e%252e%252f%252e%252e%252fsecret.git"), 404),
        (format!("/prs/{npub}/%252e%252e%252f%252e%252e%252fsecret.git/info/refs?service=git-upload-pack"), 200),
    ] {
        let answer = raw(&stage.server, format!("GET {path} HTTP/1.1\r\n{}", headers("")).as_bytes());
        let fragment = path.contains('#') && status(&answer) == 400;
        assert!(status(&answer) == told || fragment, "{path}: {answer}");
        assert!(!answer.contains("the secret"), "{path}: {answer}");
    }
    let endless = format!("GET /{} HTTP/1.1\r\n{}", "a/".repeat(500_000), headers(""));
    assert!(matches!(status(&raw(&stage.server, endless.as_bytes())), 0 | 400 | 414 | 431));
    assert_eq!(outside(&stage), before, "nothing was made and nothing was changed");
}

#[test]
fn headers_and_methods_that_mean_nothing_change_nothing() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    let repo = repo_path(&owner.npub(), "tool");
    let server = &stage.server;
    let get = |query: &str, headers: &[u8]| {
        let line = format!("GET {repo}{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
        raw(server, &[line.as_bytes(), headers, b"\r\n"].concat())
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
        let answer = get(advertisement, &[b"Git-Protocol: ", junk, b"\r\n"].concat());
        assert_eq!(status(&answer), 200, "{:?}: {answer}", String::from_utf8_lossy(junk));
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
        let answer = get(&format!("/info/refs{junk}"), b"");
        assert!(matches!(status(&answer), 400 | 403), "{junk}: {answer}");
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
        let answer = wire::ask(server, method, &format!("{repo}{below}"), &["Content-Length: 0"]);
        assert_eq!(answer.status, 405, "{method} {below}: {}", answer.head);
        assert!(answer.header("allow").is_some(), "{method} {below}: {}", answer.head);
    }

    // The relay lives at the root; a repository is no websocket.
    for below in ["", advertisement, "/purgatory"] {
        let upgrade =
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let line = format!("GET {repo}{below} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\n");
        let answer = raw(server, &[line.as_bytes(), upgrade, b"\r\n"].concat());
        assert!(status(&answer) != 101 && !answer.to_ascii_lowercase().contains("sec-websocket-accept"), "{answer}");
    }

    // An old client gets an answer and the end of the connection.
    let answer = raw(server, format!("GET {repo}{advertisement} HTTP/1.0\r\n\r\n").as_bytes());
    assert!(status(&answer) == 200 && answer.contains("# service=git-upload-pack"), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("transfer-encoding"), "{answer}");
    let body = ls_refs();
    let post = format!("POST {repo}/git-upload-pack HTTP/1.0\r\n{VERSION_2}\r\nContent-Length: {}\r\n\r\n", body.len());
    let answer = raw(server, (post + &body).as_bytes());
    assert!(answer.contains(&c1), "{answer}");

    // Several requests in one breath are answered one after the other.
    let post = format!("POST {repo}/git-upload-pack HTTP/1.1\r\nHost: x\r\n{VERSION_2}\r\n");
    let post = format!("{post}Content-Length: {}\r\n\r\n{body}", body.len());
    let last = format!("GET {repo}/purgatory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let answer = raw(server, (post.repeat(3) + &last).as_bytes());
    assert_eq!((answer.matches("HTTP/1.1 200").count(), answer.matches(&c1).count() / 3 > 0), (4, true), "{answer}");

    // A body with two lengths is nobody's second request.
    let hidden = format!("GET {repo}/purgatory HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
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
        let mut stream = connect(server);
        let _ = stream.write_all((head + &hidden).as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let answer = String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned();
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{lengths}: {answer}");
        assert!(!answer.contains("application/json"), "{lengths}: {answer}");
    }
    let answer = wire::post(server, &format!("{repo}/git-upload-pack"), &[UPLOAD_REQUEST, VERSION_2], body.as_bytes());
    assert!(answer.text().contains(&c1));
}

/// Demands that a page has no tag, attribute or address of a stranger's making.
#[track_caller]
fn expect_harmless(page: &str) {
    let mut rest = page;
    while let Some((_, tail)) = rest.split_once('<') {
        let (tag, after) = tail.split_once('>').expect("a tag ends");
        let name: String = tag.trim_start_matches('/').chars().take_while(char::is_ascii_alphanumeric).collect();
        let known = [
            "!doctype", "html", "head", "meta", "title", "style", "link", "body", "main", "header", "footer",
            "section", "nav", "h1", "h2", "h3", "p", "a", "ul", "ol", "li", "dl", "dt", "dd", "table", "thead",
            "tbody", "tr", "th", "td", "code", "pre", "span", "div", "small", "strong", "em", "b", "i", "br", "hr",
            "time", "details", "summary", "article", "abbr", "kbd",
        ];
        let name = if tag.starts_with('!') { "!doctype".to_owned() } else { name.to_ascii_lowercase() };
        assert!(known.contains(&name.as_str()), "<{tag}> in {page}");
        // Outside of quotes a tag has names of attributes and nothing else.
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
fn what_strangers_write_is_text() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
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
        let at = |name: &str| std::iter::once(name).chain(urls).map(str::to_owned).collect::<Vec<String>>();
        let mut tags = owned(&[&["name", &evil], &["description", &evil], &["t", &evil], &["maintainers", &evil]]);
        tags.push(at("web"));
        let mut announcement = owner.announce_with(d, THEN, tags);
        // More of both beside those that list the service.
        let mut all = announcement.tags.clone();
        for tag in &mut all {
            if matches!(tag[0].as_str(), "clone" | "relays") {
                tag.extend(urls.map(str::to_owned));
            }
        }
        announcement = owner.author.sign_owned(announcement.kind, THEN, all, &evil);
        stage.hold(&announcement);
        let path = repo_path(&owner.npub(), d);
        expect_harmless(&wire::ask(&stage.server, "GET", &path, &[]).text());

        let branches =
            ["refs/heads/<script>alert(12)</script>", "refs/heads/\"onerror=alert(13)", "refs/heads/a'b&lt;"];
        let tag = "refs/tags/<img/src=x>\"'";
        let declared: Vec<(&str, &str)> = branches.iter().chain([&tag]).map(|name| (*name, c1.as_str())).collect();
        stage.advance(&owner, &owner, d, THEN, &work, &declared);
        // One more state waits, and is told about.
        stage.hold(&owner.state(d, THEN + 1, &[("refs/heads/<b>", &"b".repeat(40))]));
        let page = wire::ask(&stage.server, "GET", &path, &[]);
        assert_eq!(page.status, 200, "{}", page.head);
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'none'") && !policy.contains("script-src"), "{}", page.head);
        let text = page.text();
        expect_harmless(&text);
        assert!(text.contains("&lt;script&gt;alert(12)"), "{text}");
        let purgatory = wire::ask(&stage.server, "GET", &format!("{path}/purgatory"), &[]);
        assert_eq!(purgatory.header("content-type"), Some("application/json"));
        serde_json::from_slice::<serde_json::Value>(&purgatory.body).expect("JSON");
        let nothing = wire::ask(&stage.server, "GET", &repo_path(&owner.npub(), &format!("{d}x")), &[]);
        assert_eq!(nothing.status, 404);
        expect_harmless(&nothing.text());
        // In a terminal as well.
        let said = work.push(&stage.url(&owner, d), &[&format!("{c1}:refs/heads/\u{202e}x")]);
        said.refused(&["E-"]);
        assert!(!said.err.contains('\u{1b}'), "{}", said.err);
    }
    expect_harmless(&wire::ask(&stage.server, "GET", "/", &[]).text());
}

/// nginx before a server, with request buffering on one port and without on another.
struct Proxy {
    _nginx: Nginx,
    buffering: u16,
    streaming: u16,
}

impl Proxy {
    fn before(server: &Server) -> Self {
        let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let [buffering, streaming] = free.each_ref().map(|port| port.local_addr().expect("bound").port());
        drop(free);
        let host = |port: u16, buffering: &str| {
            format!(
                "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{}; proxy_http_version 1.1; \
                 proxy_request_buffering {buffering}; }} }}\n",
                server.address
            )
        };
        let sites = format!("client_max_body_size 0; {} {}", host(buffering, "on"), host(streaming, "off"));
        let proxy = Self { _nginx: Nginx::with(&sites), buffering, streaming };
        for port in [buffering, streaming] {
            eventually("nginx listens", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        }
        proxy
    }
}

#[test]
#[ignore = "needs nginx; .ci/run runs it"]
fn the_reason_of_a_large_push_that_is_refused_is_seen() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    let (work, c1) = one_commit("one");
    stage.found(&owner, "tool", &[], &work, &main_at(&c1));
    // Fifty megabytes that nothing makes smaller.
    let mut noise = vec![0; 50 << 20];
    fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut noise)).expect("randomness");
    fs::write(work.tree().join("large"), noise).expect("a file");
    let fast = ["-c", "core.compression=0"];
    work.git(&[&fast[..], &["add", "large"]].concat()).done();
    work.git(&["commit", "--quiet", "--message", "large"]).done();

    let direct = stage.url(&owner, "tool");
    let push = |url: &str, options: &[&str]| work.git(&[&fast[..], options, &["push", url, "main"]].concat());
    let seen = |said: &Said, what: &str| {
        assert!(!said.success, "{what}: {}", said.err);
        let told = said.err.contains("E-STATE-MISSING") && said.err.contains("! [remote rejected] main -> main");
        assert!(told && !said.err.contains("Everything up-to-date"), "{what}: {}", said.err);
    };
    for n in 0..10 {
        seen(&push(&direct, &[]), &format!("directly, {n}"));
    }
    seen(&push(&direct, &["-c", "http.postBuffer=104857600"]), "directly, in one piece");
    seen(&push(&direct, &["-c", "http.extraHeader=Expect: 100-continue"]), "directly, with Expect");
    let proxy = Proxy::before(&stage.server);
    for (what, port) in [("buffering", proxy.buffering), ("streaming", proxy.streaming)] {
        let url = direct.replace(&stage.server.address.to_string(), &format!("127.0.0.1:{port}"));
        for n in 0..3 {
            seen(&push(&url, &[]), &format!("{what}, {n}"));
        }
        seen(&push(&url, &["-c", "http.postBuffer=104857600"]), &format!("{what}, in one piece"));
        assert_eq!(Work::clone(&url).oid("HEAD"), c1, "{what}");
    }
    stage.expect_refs(&owner, "tool", &main_at(&c1));
    expect_nothing_left(&stage);
}

#[test]
fn whoever_asks_first_is_told_first() {
    let mut stage = Stage::new();
    let owner = stage.person(1);
    stage.hold(&owner.announce("tool", THEN, &[]));
    let receive = format!("{}/git-receive-pack", repo_path(&owner.npub(), "tool"));
    let headers = [RECEIVE_REQUEST, "Expect: 100-continue", "Content-Length: 5000000"];
    let mut stream = connect(&stage.server);
    stream.write_all(wire::head(&stage.server, "POST", &receive, &headers).as_bytes()).expect("writes");
    let mut go = [0; 25];
    stream.read_exact(&mut go).expect("an answer");
    assert_eq!(&go, b"HTTP/1.1 100 Continue\r\n\r\n");
    let commands = wire::push_body(&[[ZERO, &"a".repeat(40), MAIN]], CAPABILITIES, b"PACK");
    stream.write_all(&commands).expect("writes");
    stream.write_all(&vec![0; 5_000_000 - commands.len()]).expect("it is all heard");
    let answer = String::from_utf8_lossy(&read_to_close(&mut stream)).into_owned();
    assert!(answer.contains("E-STATE-MISSING"), "{answer}");
    // Where there is nothing to push to, nobody is told to go on.
    let nowhere = receive.replace("tool", "nothing");
    let answer = raw(&stage.server, wire::head(&stage.server, "POST", &nowhere, &headers).as_bytes());
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
}

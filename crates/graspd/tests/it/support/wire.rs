//! Requests and answers byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{DEADLINE, Server};

/// The pack without objects, as git sends it when a push brings nothing new.
pub const EMPTY_PACK: &[u8] =
    b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";

/// The object id of nothing.
pub const ZERO: &str = "0000000000000000000000000000000000000000";

/// What a push of ours can do.
pub const CAPABILITIES: &str = "report-status side-band-64k agent=git/2.47.3";

/// An answer, taken apart; a chunked body is put together.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn of(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut answer = Self {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head,
            body: bytes[end + 4..].to_vec(),
        };
        if answer.status == 100 {
            return Self::of(&answer.body);
        }
        if answer.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            answer.body = join(&answer.body);
        }
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// G1-64: any page may talk to us, whatever we answer.
    #[track_caller]
    pub fn expect_open_to_everybody(&self) {
        assert_eq!(self.header("access-control-allow-origin"), Some("*"), "{}", self.head);
        for (name, wanted) in [
            ("access-control-allow-methods", &["GET", "POST"][..]),
            ("access-control-allow-headers", &["Content-Type", "Git-Protocol"]),
        ] {
            let value = self.header(name).unwrap_or_default();
            assert!(wanted.iter().all(|wanted| value.contains(wanted)), "{name}: {}", self.head);
        }
    }
}

/// Puts the parts of a chunked body together.
fn join(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n").expect("a chunk's length");
        let length = usize::from_str_radix(std::str::from_utf8(&body[..end]).expect("hex"), 16).expect("hex");
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + length]);
        body = &body[end + 4 + length..];
    }
}

/// Cuts a body into chunks of this size.
pub fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut parts = Vec::new();
    for part in body.chunks(size) {
        parts.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        parts.extend_from_slice(part);
        parts.extend_from_slice(b"\r\n");
    }
    parts.extend_from_slice(b"0\r\n\r\n");
    parts
}

/// Sends bytes on a connection of their own and reads until it is closed.
pub fn send(server: &Server, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(bytes).expect("writes");
    finish(stream)
}

/// Reads an answer until the connection is closed.
pub fn finish(mut stream: TcpStream) -> Answer {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("reads");
    Answer::of(&answer)
}

/// A request without a body; the connection closes afterwards.
pub fn ask(server: &Server, method: &str, path: &str, headers: &[&str]) -> Answer {
    send(server, head(server, method, path, headers).as_bytes())
}

/// A POST with a body of known length; the connection closes afterwards.
pub fn post(server: &Server, path: &str, headers: &[&str], body: &[u8]) -> Answer {
    let length = format!("Content-Length: {}", body.len());
    let head = head(server, "POST", path, &[headers, &[&length]].concat());
    send(server, &[head.as_bytes(), body].concat())
}

/// The head of a request below the base path.
pub fn head(server: &Server, method: &str, path: &str, headers: &[&str]) -> String {
    let base = &server.base;
    let mut head = format!("{method} {base}{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

/// The advertisement of a repository for `git-upload-pack` or `git-receive-pack`.
pub fn info_refs(server: &Server, repo: &str, service: &str, headers: &[&str]) -> Answer {
    ask(server, "GET", &format!("{repo}/info/refs?service={service}"), headers)
}

/// One packet.
pub fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

/// `ls-refs` of protocol 2.
pub fn ls_refs() -> String {
    packet("command=ls-refs\n") + "0001" + &packet("symrefs\n") + &packet("peel\n") + "0000"
}

/// What a client of protocol 2 says beside its request.
pub const VERSION_2: &str = "Git-Protocol: version=2";

pub const UPLOAD_REQUEST: &str = "Content-Type: application/x-git-upload-pack-request";
pub const RECEIVE_REQUEST: &str = "Content-Type: application/x-git-receive-pack-request";

/// The commands of a push (`old new name`) and what follows them.
pub fn push_body(commands: &[[&str; 3]], capabilities: &str, pack: &[u8]) -> Vec<u8> {
    let mut body = String::new();
    for (n, [old, new, name]) in commands.iter().enumerate() {
        let capabilities = if n == 0 { format!("\0 {capabilities}") } else { String::new() };
        body.push_str(&packet(&format!("{old} {new} {name}{capabilities}")));
    }
    body.push_str("0000");
    [body.as_bytes(), pack].concat()
}

/// Pushes without git; gives the answer.
pub fn push(server: &Server, repo: &str, commands: &[[&str; 3]], pack: &[u8]) -> Answer {
    push_capable(server, repo, commands, CAPABILITIES, pack)
}

/// Pushes as a client that can do this much.
pub fn push_capable(server: &Server, repo: &str, commands: &[[&str; 3]], capabilities: &str, pack: &[u8]) -> Answer {
    let body = push_body(commands, capabilities, pack);
    let answer = post(server, &format!("{repo}/git-receive-pack"), &[RECEIVE_REQUEST], &body);
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/x-git-receive-pack-result")),
        "{}",
        answer.head
    );
    answer.expect_open_to_everybody();
    answer
}

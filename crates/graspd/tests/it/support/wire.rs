//! HTTP requests and git messages as bytes, for requests that no HTTP or git client would send.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::{DEADLINE, Server};

/// The pack without objects, as git sends it when a push brings nothing new.
pub const EMPTY_PACK: &[u8] =
    b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";

/// The object id that stands for "no object" in push commands.
pub const ZERO: &str = "0000000000000000000000000000000000000000";

/// Capabilities that [`push`] sends.
pub const CAPABILITIES: &str = "report-status side-band-64k agent=git/2.47.3";

/// A parsed HTTP response; a chunked body is decoded.
pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl HttpResponse {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("not a response: {:?}", String::from_utf8_lossy(bytes)));
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        let mut response = Self {
            status: status.unwrap_or_else(|| panic!("no status: {head}")),
            head,
            body: bytes[end + 4..].to_vec(),
        };
        if response.status == 100 {
            return Self::parse(&response.body);
        }
        if response.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            response.body = decode_chunks(&response.body);
        }
        response
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Asserts the CORS headers, which every response has whatever its status (`docs/protocol.md#cors`).
    #[track_caller]
    pub fn expect_cors_headers(&self) {
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

/// Decodes a chunked body.
fn decode_chunks(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|window| window == b"\r\n").expect("chunk has a length");
        let length = std::str::from_utf8(&body[..end]).expect("chunk length is ASCII");
        let length = usize::from_str_radix(length, 16).expect("chunk length is hex");
        if length == 0 {
            return whole;
        }
        whole.extend_from_slice(&body[end + 2..end + 2 + length]);
        body = &body[end + 4 + length..];
    }
}

/// Encodes a body in chunks of this size.
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

/// Sends bytes on a new connection and reads the response until the connection is closed.
pub fn send(server: &Server, bytes: &[u8]) -> HttpResponse {
    let mut stream = TcpStream::connect(server.address).expect("cannot connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    stream.write_all(bytes).expect("cannot send the request");
    read_response(stream)
}

/// Reads a response until the connection is closed.
pub fn read_response(mut stream: TcpStream) -> HttpResponse {
    let mut response = Vec::new();
    stream.read_to_end(&mut response).expect("cannot read the response");
    HttpResponse::parse(&response)
}

/// Sends a request without a body. The connection is closed afterwards.
pub fn request(server: &Server, method: &str, path: &str, headers: &[&str]) -> HttpResponse {
    send(server, request_head(server, method, path, headers).as_bytes())
}

/// Sends a POST request with a body of known length. The connection is closed afterwards.
pub fn request_with_body(server: &Server, path: &str, headers: &[&str], body: &[u8]) -> HttpResponse {
    let length = format!("Content-Length: {}", body.len());
    let head = request_head(server, "POST", path, &[headers, &[&length]].concat());
    send(server, &[head.as_bytes(), body].concat())
}

/// Returns request line and headers of a request for a path below the base path.
pub fn request_head(server: &Server, method: &str, path: &str, headers: &[&str]) -> String {
    let base = &server.base;
    let mut head = format!("{method} {base}{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

/// Requests the ref advertisement of a repository for `git-upload-pack` or `git-receive-pack`.
pub fn info_refs(server: &Server, repo: &str, service: &str, headers: &[&str]) -> HttpResponse {
    request(server, "GET", &format!("{repo}/info/refs?service={service}"), headers)
}

/// Returns one pkt-line.
pub fn packet(line: &str) -> String {
    format!("{:04x}{line}", line.len() + 4)
}

/// Returns the body of an `ls-refs` request of protocol version 2.
pub fn ls_refs() -> String {
    packet("command=ls-refs\n") + "0001" + &packet("symrefs\n") + &packet("peel\n") + "0000"
}

/// The header that selects protocol version 2.
pub const VERSION_2: &str = "Git-Protocol: version=2";

pub const UPLOAD_REQUEST: &str = "Content-Type: application/x-git-upload-pack-request";
pub const RECEIVE_REQUEST: &str = "Content-Type: application/x-git-receive-pack-request";

/// Returns the body of a push: its commands (`old new name`), then the pack.
pub fn push_body(commands: &[[&str; 3]], capabilities: &str, pack: &[u8]) -> Vec<u8> {
    let mut body = String::new();
    for (n, [old, new, name]) in commands.iter().enumerate() {
        let capabilities = if n == 0 { format!("\0 {capabilities}") } else { String::new() };
        body.push_str(&packet(&format!("{old} {new} {name}{capabilities}")));
    }
    body.push_str("0000");
    [body.as_bytes(), pack].concat()
}

/// Pushes without git; returns the response.
pub fn push(server: &Server, repo: &str, commands: &[[&str; 3]], pack: &[u8]) -> HttpResponse {
    push_with_capabilities(server, repo, commands, CAPABILITIES, pack)
}

/// Pushes without git, with these capabilities; returns the response, which must have status 200.
pub fn push_with_capabilities(
    server: &Server,
    repo: &str,
    commands: &[[&str; 3]],
    capabilities: &str,
    pack: &[u8],
) -> HttpResponse {
    let body = push_body(commands, capabilities, pack);
    let response = request_with_body(server, &format!("{repo}/git-receive-pack"), &[RECEIVE_REQUEST], &body);
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("application/x-git-receive-pack-result")),
        "{}",
        response.head
    );
    response.expect_cors_headers();
    response
}

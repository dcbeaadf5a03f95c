//! Test servers: `git http-backend` behind a minimal HTTP server, and a server with scripted responses.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A recorded request.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedRequest {
    pub(super) line: String,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl RecordedRequest {
    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(other, _)| other.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }

    /// Reads a request; `None` at the end of the connection.
    async fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            let mut part = [0; 4_096];
            match stream.read(&mut part).await {
                Ok(read) if read > 0 => bytes.extend_from_slice(&part[..read]),
                _ => return None,
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let line = head.lines().next().unwrap_or_default().to_owned();
        let mut request = Self { line, head, body: bytes[end + 4..].to_vec() };
        let length: usize = request.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        let read = request.body.len();
        request.body.resize(length, 0);
        stream.read_exact(&mut request.body[read..]).await.ok()?;
        Some(request)
    }
}

/// All requests, and the number of connections.
#[derive(Clone, Default)]
pub(super) struct RequestLog {
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    connections: Arc<Mutex<usize>>,
}

impl RequestLog {
    pub(super) fn all(&self) -> Vec<RecordedRequest> {
        self.requests.lock().expect("not poisoned").clone()
    }

    /// Returns method and path of each request.
    pub(super) fn lines(&self) -> Vec<String> {
        let short = |request: RecordedRequest| request.line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.all().into_iter().map(short).collect()
    }

    pub(super) fn connections(&self) -> usize {
        *self.connections.lock().expect("not poisoned")
    }
}

/// `git http-backend` with the repositories of a folder.
#[derive(Clone)]
pub(super) struct GitHttpBackend {
    pub(super) root: PathBuf,
    /// Whether it supports protocol v2.
    pub(super) supports_v2: bool,
    /// Whether a connection is kept open after a response.
    pub(super) keep_alive: bool,
    pub(super) requests: RequestLog,
}

impl GitHttpBackend {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), supports_v2: true, keep_alive: true, requests: RequestLog::default() }
    }

    /// Serves on a loopback address until the end of the test.
    pub(super) async fn serve(&self, address: &str) -> u16 {
        let listener = TcpListener::bind(address).await.expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let backend = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *backend.requests.connections.lock().expect("not poisoned") += 1;
                let backend = backend.clone();
                tokio::spawn(async move {
                    while let Some(request) = RecordedRequest::read(&mut stream).await {
                        backend.requests.requests.lock().expect("not poisoned").push(request.clone());
                        let (runner, keep_alive) = (backend.clone(), backend.keep_alive);
                        let answer = tokio::task::spawn_blocking(move || runner.run(&request)).await.expect("no panic");
                        if stream.write_all(&answer).await.is_err() || !keep_alive {
                            break;
                        }
                    }
                });
            }
        });
        port
    }

    fn run(&self, request: &RecordedRequest) -> Vec<u8> {
        let mut words = request.line.split(' ');
        let (method, path) = (words.next().expect("method"), words.next().expect("path"));
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut command = Command::new("git");
        command
            .arg("http-backend")
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_HTTP_EXPORT_ALL", "1")])
            .envs([("REQUEST_METHOD", method), ("PATH_INFO", path), ("QUERY_STRING", query)])
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("CONTENT_LENGTH", request.body.len().to_string())
            .env("CONTENT_TYPE", request.header("content-type").unwrap_or_default());
        if let Some(protocol) = request.header("git-protocol").filter(|_| self.supports_v2) {
            command.env("GIT_PROTOCOL", protocol);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("git http-backend starts");
        // git may not read everything.
        let _ = child.stdin.take().expect("pipe").write_all(&request.body);
        let output = child.wait_with_output().expect("git exits").stdout;
        let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("headers");
        let head = String::from_utf8_lossy(&output[..end]);
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
        let body = &output[end + 4..];
        let mut answer = format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n", body.len()).into_bytes();
        if !self.keep_alive {
            answer.extend_from_slice(b"Connection: close\r\n");
        }
        answer.extend_from_slice(b"\r\n");
        answer.extend_from_slice(body);
        answer
    }
}

/// A server that answers every request with `answer`, then sends `then` repeatedly, with a delay of `slow`. After that
/// it waits.
#[derive(Clone, Default)]
pub(super) struct ScriptedServer {
    pub(super) answer: Vec<u8>,
    pub(super) then: Vec<u8>,
    pub(super) slow: Option<std::time::Duration>,
    /// Whether it closes the connection in the end, instead of waiting.
    pub(super) closes: bool,
    pub(super) requests: RequestLog,
}

impl ScriptedServer {
    /// Creates a server that answers with a body of a content type.
    pub(super) fn body(kind: &str, body: &[u8]) -> Self {
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        Self { answer: [head, body.to_vec()].concat(), ..Self::default() }
    }

    /// Creates a server that answers with a status and headers.
    pub(super) fn status(status: &str, headers: &str) -> Self {
        let answer = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n\r\n").into_bytes();
        Self { answer, ..Self::default() }
    }

    pub(super) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *server.requests.connections.lock().expect("not poisoned") += 1;
                let server = server.clone();
                tokio::spawn(async move {
                    while let Some(request) = RecordedRequest::read(&mut stream).await {
                        server.requests.requests.lock().expect("not poisoned").push(request);
                        server.respond(&mut stream).await;
                        if server.closes {
                            break;
                        }
                    }
                });
            }
        });
        format!("http://127.0.0.1:{port}/x.git")
    }

    async fn respond(&self, stream: &mut TcpStream) {
        let _ = stream.write_all(&self.answer).await;
        while !self.then.is_empty() && stream.write_all(&self.then).await.is_ok() {
            if let Some(slow) = self.slow {
                tokio::time::sleep(slow).await;
            }
        }
    }
}

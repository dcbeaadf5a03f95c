//! Servers: `git http-backend` behind a few lines of HTTP, and one that says whatever it is told.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) line: String,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
}

impl Asked {
    /// What a header says.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(other, _)| other.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }

    /// Reads one; `None` where there is none.
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
        let mut asked = Self { line, head, body: bytes[end + 4..].to_vec() };
        let length: usize = asked.header("content-length").map_or(0, |length| length.parse().expect("a number"));
        let read = asked.body.len();
        asked.body.resize(length, 0);
        stream.read_exact(&mut asked.body[read..]).await.ok()?;
        Some(asked)
    }
}

/// What was asked, and on how many connections.
#[derive(Clone, Default)]
pub(super) struct FakeResolver {
    asked: Arc<Mutex<Vec<Asked>>>,
    connections: Arc<Mutex<usize>>,
}

impl FakeResolver {
    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("not poisoned").clone()
    }

    /// Method and path of each request.
    pub(super) fn lines(&self) -> Vec<String> {
        let short = |asked: Asked| asked.line.split(' ').take(2).collect::<Vec<_>>().join(" ");
        self.asked().into_iter().map(short).collect()
    }

    pub(super) fn connections(&self) -> usize {
        *self.connections.lock().expect("not poisoned")
    }
}

/// `git http-backend` with the repositories of a folder.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) root: PathBuf,
    /// Whether it hears which protocol a client speaks.
    pub(super) second: bool,
    /// Whether a connection lives on after an answer.
    pub(super) keep_alive: bool,
    pub(super) book: FakeResolver,
}

impl Backend {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), second: true, keep_alive: true, book: FakeResolver::default() }
    }

    /// Serves at a loopback address for as long as the test lives.
    pub(super) async fn serve(&self, address: &str) -> u16 {
        let listener = TcpListener::bind(address).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let backend = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *backend.book.connections.lock().expect("not poisoned") += 1;
                let backend = backend.clone();
                tokio::spawn(async move {
                    while let Some(asked) = Asked::read(&mut stream).await {
                        backend.book.asked.lock().expect("not poisoned").push(asked.clone());
                        let (runner, keep_alive) = (backend.clone(), backend.keep_alive);
                        let answer = tokio::task::spawn_blocking(move || runner.run(&asked)).await.expect("an answer");
                        if stream.write_all(&answer).await.is_err() || !keep_alive {
                            break;
                        }
                    }
                });
            }
        });
        port
    }

    fn run(&self, asked: &Asked) -> Vec<u8> {
        let mut words = asked.line.split(' ');
        let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut command = Command::new("git");
        command
            .arg("http-backend")
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap_or_default())
            .envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_HTTP_EXPORT_ALL", "1")])
            .envs([("REQUEST_METHOD", method), ("PATH_INFO", path), ("QUERY_STRING", query)])
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("CONTENT_LENGTH", asked.body.len().to_string())
            .env("CONTENT_TYPE", asked.header("content-type").unwrap_or_default());
        if let Some(protocol) = asked.header("git-protocol").filter(|_| self.second) {
            command.env("GIT_PROTOCOL", protocol);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("git http-backend starts");
        // It may not want all of it.
        let _ = child.stdin.take().expect("a pipe").write_all(&asked.body);
        let said = child.wait_with_output().expect("it ends").stdout;
        let end = said.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&said[..end]);
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
        let body = &said[end + 4..];
        let mut answer = format!("HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n", body.len()).into_bytes();
        if !self.keep_alive {
            answer.extend_from_slice(b"Connection: close\r\n");
        }
        answer.extend_from_slice(b"\r\n");
        answer.extend_from_slice(body);
        answer
    }
}

/// A server that answers every request with these bytes, and goes on with `then` for as long as somebody reads, a byte at a
/// time if it is slow. Then it waits.
#[derive(Clone, Default)]
pub(super) struct Strange {
    pub(super) answer: Vec<u8>,
    pub(super) then: Vec<u8>,
    pub(super) slow: Option<std::time::Duration>,
    /// Whether it hangs up in the end, instead of waiting.
    pub(super) hangs_up: bool,
    pub(super) book: FakeResolver,
}

impl Strange {
    /// One that answers with a body of a kind.
    pub(super) fn says(kind: &str, body: &[u8]) -> Self {
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        Self { answer: [head, body.to_vec()].concat(), ..Self::default() }
    }

    /// One that answers with a status and some headers.
    pub(super) fn status(status: &str, headers: &str) -> Self {
        let answer = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n\r\n").into_bytes();
        Self { answer, ..Self::default() }
    }

    pub(super) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let strange = self.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                *strange.book.connections.lock().expect("not poisoned") += 1;
                let strange = strange.clone();
                tokio::spawn(async move {
                    while let Some(asked) = Asked::read(&mut stream).await {
                        strange.book.asked.lock().expect("not poisoned").push(asked);
                        strange.talk(&mut stream).await;
                        if strange.hangs_up {
                            break;
                        }
                    }
                });
            }
        });
        format!("http://127.0.0.1:{port}/x.git")
    }

    async fn talk(&self, stream: &mut TcpStream) {
        let _ = stream.write_all(&self.answer).await;
        while !self.then.is_empty() && stream.write_all(&self.then).await.is_ok() {
            if let Some(slow) = self.slow {
                tokio::time::sleep(slow).await;
            }
        }
    }
}

//! A git server that is not a GRASP server: `git http-backend` behind a small HTTP server on loopback. It records its
//! requests and can be made to fail.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tempfile::TempDir;

use super::git::WorkTree;
use super::peers::unused_address;

/// How a [`GitServer`] answers requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GitServerMode {
    Normal,
    /// Reads requests and never answers.
    Silent,
    /// Answers every request with this status and these further header lines.
    Failing(u16, String),
    /// Waits before each answer.
    Slow(Duration),
    /// Answers every request for objects with this pack.
    Pack(Vec<u8>),
}

/// A running git server.
pub struct GitServer {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    folder: TempDir,
    mode: Mutex<GitServerMode>,
    requests: Mutex<Vec<(Instant, String)>>,
    open: AtomicUsize,
    max_open: AtomicUsize,
    sent_bytes: AtomicUsize,
}

impl GitServer {
    pub fn start() -> Self {
        let address = unused_address();
        let listener = TcpListener::bind(address).expect("cannot bind the address");
        let shared = Arc::new(Shared {
            folder: TempDir::new().expect("cannot create a temporary folder"),
            mode: Mutex::new(GitServerMode::Normal),
            requests: Mutex::default(),
            open: AtomicUsize::new(0),
            max_open: AtomicUsize::new(0),
            sent_bytes: AtomicUsize::new(0),
        });
        // The thread ends with the process of the test.
        let server = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = server.clone();
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}.git", self.address)
    }

    /// Pushes refs of a working tree into a repository of this server, which is created if it does not exist.
    #[track_caller]
    pub fn import_refs(&self, name: &str, work: &WorkTree, refspecs: &[&str]) {
        let path = self.path(name);
        if !path.exists() {
            let path = path.to_str().expect("path is UTF-8");
            work.git(&["init", "--quiet", "--bare", path]).expect_success();
        }
        work.push(path.to_str().expect("path is UTF-8"), refspecs).expect_success();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.folder.path().join(format!("{name}.git"))
    }

    pub fn set_mode(&self, mode: GitServerMode) {
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Returns method and path of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests().iter().map(|(_, request)| request.clone()).collect()
    }

    /// Returns the times of all requests so far.
    pub fn request_times(&self) -> Vec<Instant> {
        self.shared.requests().iter().map(|(at, _)| *at).collect()
    }

    /// Returns the size of all responses so far.
    pub fn sent_bytes(&self) -> usize {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }

    /// Returns the highest number of requests that were open at the same time.
    pub fn max_open_requests(&self) -> usize {
        self.shared.max_open.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.max_open.fetch_max(open, Ordering::SeqCst);
        let response = self.respond(&stream);
        // Counted down before the response is sent: a client that has the whole response may send its next request at
        // once.
        self.open.fetch_sub(1, Ordering::SeqCst);
        if let Ok(response) = response {
            self.sent_bytes.fetch_add(response.len(), Ordering::SeqCst);
            // The client may have closed the connection.
            let _ = (&stream).write_all(&response);
        }
    }

    fn requests(&self) -> MutexGuard<'_, Vec<(Instant, String)>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn respond(&self, stream: &TcpStream) -> std::io::Result<Vec<u8>> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut words = first.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(Vec::new()) };
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let header = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // Read before the request is recorded: a test that waits for the request may change the mode directly
        // afterwards.
        let mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.requests().push((Instant::now(), format!("{method} {path}")));
        let body = match header("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => {
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                body
            }
            None if header("transfer-encoding").is_some() => read_chunks(&mut reader)?,
            None => Vec::new(),
        };
        match mode {
            GitServerMode::Normal => {}
            // Until the client closes the connection.
            GitServerMode::Silent => return reader.read(&mut [0]).map(|_| Vec::new()),
            GitServerMode::Failing(status, lines) => {
                let head = format!("HTTP/1.1 {status} no\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n");
                return Ok(head.into_bytes());
            }
            GitServerMode::Slow(wait) => thread::sleep(wait),
            GitServerMode::Pack(pack) if body.windows(13).any(|part| part == b"command=fetch") => {
                return Ok(pack_response(&pack));
            }
            GitServerMode::Pack(_) => {}
        }
        let mut child = Command::new("git")
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", self.folder.path())
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("PATH_INFO", path)
            .env("QUERY_STRING", query)
            .env("REQUEST_METHOD", method)
            .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
            .env("CONTENT_LENGTH", body.len().to_string())
            .env("GIT_PROTOCOL", header("git-protocol").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut input = child.stdin.take().expect("standard input is piped");
        let writer = thread::spawn(move || drop(input.write_all(&body)));
        let mut output = Vec::new();
        child.stdout.take().expect("standard output is piped").read_to_end(&mut output)?;
        child.wait()?;
        let _ = writer.join();
        let end = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(output.len());
        let head = String::from_utf8_lossy(&output[..end]).into_owned();
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
        let lines: String =
            head.lines().filter(|line| !line.starts_with("Status:")).map(|line| format!("{line}\r\n")).collect();
        let body = output.get(end + 4..).unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\n{lines}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        Ok([head.as_bytes(), body].concat())
    }
}

/// Returns the response of version 2 of the protocol to a request for objects.
fn pack_response(pack: &[u8]) -> Vec<u8> {
    let mut body = b"000dpackfile\n".to_vec();
    for part in pack.chunks(60_000) {
        body.extend_from_slice(format!("{:04x}\x01", part.len() + 5).as_bytes());
        body.extend_from_slice(part);
    }
    body.extend_from_slice(b"0000");
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-result\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

fn read_chunks(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        reader.read_line(&mut size)?;
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

impl Drop for GitServer {
    fn drop(&mut self) {
        // The threads of the server keep the folder alive, so it is removed here.
        let _ = fs::remove_dir_all(self.shared.folder.path());
    }
}

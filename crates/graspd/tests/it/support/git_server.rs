//! A git server that is no GRASP server: `git http-backend` behind a small HTTP server on loopback, which counts, and can be
//! told to misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use tempfile::TempDir;

use super::git::Work;
use super::peers::place;

/// How it behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mood {
    /// As it should.
    Kind,
    /// It takes requests and never answers.
    Silent,
    /// It answers everything with this status, and further header lines.
    Refusing(u16, String),
    /// It waits before each answer.
    Slow(Duration),
}

/// One that runs.
pub struct GitServer {
    place: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    folder: TempDir,
    mood: Mutex<Mood>,
    asked: Mutex<Vec<(Instant, String)>>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl GitServer {
    pub fn start() -> Self {
        let place = place();
        let listener = TcpListener::bind(place).expect("a free address");
        let shared = Arc::new(Shared {
            folder: TempDir::new().expect("a folder"),
            mood: Mutex::new(Mood::Kind),
            asked: Mutex::default(),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        });
        // It ends with the test's process.
        let server = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = server.clone();
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { place, shared }
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}.git", self.place)
    }

    /// Gives it refs of a working tree; the repository is made if it is new.
    #[track_caller]
    pub fn take(&self, name: &str, work: &Work, refspecs: &[&str]) {
        let path = self.path(name);
        if !path.exists() {
            let path = path.to_str().expect("a plain path");
            work.git(&["init", "--quiet", "--bare", path]).done();
        }
        work.push(path.to_str().expect("a plain path"), refspecs).done();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.folder.path().join(format!("{name}.git"))
    }

    pub fn be(&self, mood: Mood) {
        *self.shared.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// What it was asked for: method and path.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked().iter().map(|(_, what)| what.clone()).collect()
    }

    /// When it was asked.
    pub fn asked_at(&self) -> Vec<Instant> {
        self.shared.asked().iter().map(|(at, _)| *at).collect()
    }

    /// The most requests that were open at once.
    pub fn most_open(&self) -> usize {
        self.shared.most_open.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_open.fetch_max(open, Ordering::SeqCst);
        let answer = self.answer(&stream);
        // Whoever has the whole answer may ask again at once.
        self.open.fetch_sub(1, Ordering::SeqCst);
        // Whoever called may have gone.
        if let Ok(answer) = answer {
            let _ = (&stream).write_all(&answer);
        }
    }

    fn asked(&self) -> MutexGuard<'_, Vec<(Instant, String)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, stream: &TcpStream) -> std::io::Result<Vec<u8>> {
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
        // Before anybody can know that it was asked.
        let mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.asked().push((Instant::now(), format!("{method} {path}")));
        let body = match header("content-length").and_then(|length| length.parse().ok()) {
            Some(length) => {
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                body
            }
            None if header("transfer-encoding").is_some() => chunks(&mut reader)?,
            None => Vec::new(),
        };
        match mood {
            Mood::Kind => {}
            // Until the other side gives up.
            Mood::Silent => return reader.read(&mut [0]).map(|_| Vec::new()),
            Mood::Refusing(status, lines) => {
                let answer = format!("HTTP/1.1 {status} no\r\n{lines}Content-Length: 0\r\nConnection: close\r\n\r\n");
                return Ok(answer.into_bytes());
            }
            Mood::Slow(wait) => thread::sleep(wait),
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
        let mut input = child.stdin.take().expect("it was piped");
        let feeding = thread::spawn(move || drop(input.write_all(&body)));
        let mut said = Vec::new();
        child.stdout.take().expect("it was piped").read_to_end(&mut said)?;
        child.wait()?;
        let _ = feeding.join();
        let end = said.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(said.len());
        let head = String::from_utf8_lossy(&said[..end]).into_owned();
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
        let lines: String =
            head.lines().filter(|line| !line.starts_with("Status:")).map(|line| format!("{line}\r\n")).collect();
        let body = said.get(end + 4..).unwrap_or_default();
        let head = format!("HTTP/1.1 {status}\r\n{lines}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        Ok([head.as_bytes(), body].concat())
    }
}

fn chunks(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
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
        // Its threads may still serve from it.
        let _ = fs::remove_dir_all(self.shared.folder.path());
    }
}

//! A real server in a folder of its own, and a plain websocket client for it.
#![allow(unreachable_pub, reason = "shared by every module of the tests")]

pub mod admin;
pub mod attack;
pub mod git;
pub mod git_server;
pub mod integrity;
pub mod nginx;
pub mod peers;
pub mod small_disk;
pub mod test_server;
pub mod wire;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocket;

/// How long anything may take before a test gives up. Generous: machines that run tests are busy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Waits until `ready` gives something; panics with `what` after the deadline.
pub fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running graspd. Dropping it kills it.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    pub base: String,
    /// Everything it said on standard output so far.
    pub welcome: Vec<String>,
    folder: Option<Arc<TempDir>>,
}

impl Server {
    /// A server in a new folder, with these settings (`("POLICY", "open")`).
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let folder = Arc::new(TempDir::new().expect("a folder"));
        Self::start_in(&folder, settings)
    }

    /// A server in a folder that may have been used before.
    pub fn start_in(folder: &Arc<TempDir>, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::spawn(command(folder.path(), settings));
        server.folder = Some(folder.clone());
        server
    }

    /// Waits until a command has become a server that listens.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("graspd starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut welcome = Vec::new();
        let mut address = None;
        let mut base = String::new();
        while welcome.len() < 5 {
            let Some(Ok(line)) = lines.next() else { panic!("graspd ended before it listened: {:?}", child.wait()) };
            if let Some(at) = line.trim().strip_prefix("listening") {
                address = at.trim().parse().ok();
            }
            if let Some(url) = line.trim().strip_prefix("relay") {
                base = url
                    .trim()
                    .split_once("://")
                    .and_then(|(_, rest)| rest.split_once('/'))
                    .map_or(String::new(), |(_, path)| format!("/{path}"));
            }
            welcome.push(line);
        }
        Self { child, address: address.expect("graspd says where it listens"), base, welcome, folder: None }
    }

    pub fn folder(&self) -> &Arc<TempDir> {
        self.folder.as_ref().expect("started in a folder")
    }

    pub fn url(&self) -> String {
        format!("ws://{}{}", self.address, self.base)
    }

    pub fn connect(&self) -> Client {
        self.try_connect().expect("a websocket handshake")
    }

    /// Nothing if it is turned away.
    pub fn try_connect(&self) -> Option<Client> {
        Client::try_connect(self.address, &self.url())
    }

    /// `kill -9`, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it was running");
        self.child.wait().expect("it is gone");
    }

    /// SIGTERM; gives the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs").success());
        eventually("graspd stops", || self.child.try_wait().expect("can be waited for")).code()
    }

    /// One HTTP request as text; gives the whole answer.
    pub fn http(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("writes");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("reads");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// GET with headers; the connection closes afterwards.
    pub fn get(&self, path: &str, headers: &str) -> String {
        self.http(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that starts a server in a folder on a free port of loopback, with an otherwise empty environment. What
/// begins with `GRASPD_` is no setting but for tests of debug builds, and stays as it is.
pub fn command(folder: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graspd"));
    command.current_dir(folder).env_clear().env("NGIT_BIND_ADDRESS", "127.0.0.1:0").env("NGIT_LOG_LEVEL", "warn");
    // Nothing leaves loopback: only tests of sync turn it on.
    command.env("NGIT_SYNC_ENABLE", "false");
    for (name, value) in settings {
        let prefix = if name.starts_with("GRASPD_") { "" } else { "NGIT_" };
        command.env(format!("{prefix}{name}"), value);
    }
    command
}

/// A websocket client that reads and writes JSON arrays.
pub struct Client {
    pub socket: WebSocket<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr, url: &str) -> Self {
        Self::try_connect(address, url).expect("a websocket handshake")
    }

    fn try_connect(address: SocketAddr, url: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let (socket, _) = tungstenite::client(url, stream).ok()?;
        Some(Self { socket })
    }

    pub fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).expect("sends");
    }

    /// The next JSON message.
    pub fn receive(&mut self) -> Value {
        let start = Instant::now();
        loop {
            // Every ping of the server would begin the socket's own patience anew.
            assert!(start.elapsed() < DEADLINE, "no message within the deadline");
            match self.socket.read().expect("a message within the deadline") {
                Message::Text(text) => return serde_json::from_str(&text).expect("JSON"),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Publishes and gives the OK's flag and text.
    pub fn publish(&mut self, event: &SignedEvent) -> (bool, String) {
        self.send_text(&format!("[\"EVENT\",{}]", event.json()));
        let id = event.id.to_string();
        loop {
            let answer = self.receive();
            if answer[0] == "OK" && answer[1] == id.as_str() {
                return (answer[2].as_bool().expect("a flag"), answer[3].as_str().expect("a text").to_owned());
            }
        }
    }

    /// Asks, and gives the ids of the stored events in order, up to EOSE; then closes the subscription.
    pub fn query(&mut self, filters: &[Value]) -> Vec<String> {
        let ids = self.subscribe("q", filters);
        self.send(&json!(["CLOSE", "q"]));
        ids
    }

    /// Asks and stays subscribed; gives the ids of the stored events in order, up to EOSE.
    pub fn subscribe(&mut self, sub: &str, filters: &[Value]) -> Vec<String> {
        let mut request = vec![json!("REQ"), json!(sub)];
        request.extend_from_slice(filters);
        self.send(&Value::Array(request));
        let mut ids = Vec::new();
        loop {
            let answer = self.receive();
            match answer[0].as_str() {
                Some("EVENT") if answer[1] == sub => ids.push(answer[2]["id"].as_str().expect("an id").to_owned()),
                Some("EOSE") if answer[1] == sub => return ids,
                Some("CLOSED") if answer[1] == sub => panic!("refused: {answer}"),
                _ => {}
            }
        }
    }
}

//! Support for end-to-end tests: a `graspd` process in a temporary folder, and a websocket client.
#![allow(unreachable_pub, reason = "shared by every module of the tests")]

pub mod admin;
pub mod attack;
pub mod bystander;
pub mod fault_injection;
pub mod git;
pub mod git_server;
pub mod integrity;
pub mod network_namespace;
pub mod nginx;
pub mod peers;
pub mod programs;
pub mod small_disk;
pub mod test_server;
pub mod wire;

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grasp_core::nostr::SignedEvent;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocket;
use tokio_tungstenite::tungstenite::{Error, HandshakeError, Message};

/// Time after which a test gives up waiting. Generous, because the machines that run tests are busy.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Setting with which clients of several networks can be simulated: loopback is a trusted proxy, and
/// [`Server::connect_from`] names the address of the client.
pub const BEHIND_PROXY: (&str, &str) = ("TRUSTED_PROXY_CIDRS", "127.0.0.0/8");

/// Polls `ready` until it returns a value. Panics with `what` after the deadline.
pub fn eventually<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(start.elapsed() < DEADLINE, "timed out waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running `graspd` process. Killed when dropped.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    pub base: String,
    /// The lines that the server printed to standard output at start.
    pub startup_output: Vec<String>,
    folder: Option<Arc<TempDir>>,
}

impl Server {
    /// Starts a server in a new folder, with these settings (`("POLICY", "open")`).
    pub fn start(settings: &[(&str, &str)]) -> Self {
        let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
        Self::start_in(&folder, settings)
    }

    /// Starts a server in a folder that may have been used before.
    pub fn start_in(folder: &Arc<TempDir>, settings: &[(&str, &str)]) -> Self {
        let mut server = Self::spawn(command(folder.path(), settings));
        server.folder = Some(folder.clone());
        server
    }

    /// Runs a command that starts a server, and waits until the server listens.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("cannot start graspd");
        let mut lines = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
        let mut startup_output = Vec::new();
        let mut address = None;
        let mut base = String::new();
        while startup_output.len() < 5 {
            let Some(Ok(line)) = lines.next() else { panic!("graspd exited before it listened: {:?}", child.wait()) };
            if let Some(value) = line.trim().strip_prefix("listening") {
                address = value.trim().parse().ok();
            }
            if let Some(url) = line.trim().strip_prefix("relay") {
                base = url
                    .trim()
                    .split_once("://")
                    .and_then(|(_, rest)| rest.split_once('/'))
                    .map_or(String::new(), |(_, path)| format!("/{path}"));
            }
            startup_output.push(line);
        }
        Self { child, address: address.expect("graspd prints its address"), base, startup_output, folder: None }
    }

    /// Runs a command that starts a server at this address, and waits until the server answers. Returns how it ended if it
    /// does not answer.
    pub fn try_spawn_at(address: SocketAddr, mut command: Command) -> Result<Self, ExitStatus> {
        let mut child = command.stdout(Stdio::null()).spawn().expect("cannot start graspd");
        let ended = eventually("graspd answers or ends", || {
            let ended = child.try_wait().expect("cannot wait for graspd");
            (ended.is_some() || is_answering(address)).then_some(ended)
        });
        let server = || Self { child, address, base: String::new(), startup_output: Vec::new(), folder: None };
        ended.map_or_else(|| Ok(server()), Err)
    }

    pub fn folder(&self) -> &Arc<TempDir> {
        self.folder.as_ref().expect("the server was started by `start` or `start_in`")
    }

    pub fn url(&self) -> String {
        format!("ws://{}{}", self.address, self.base)
    }

    pub fn connect(&self) -> Client {
        self.try_connect().expect("websocket handshake failed")
    }

    /// Connects; returns `None` if the server rejects the handshake.
    pub fn try_connect(&self) -> Option<Client> {
        self.connect_from(None).ok()
    }

    /// Connects, with an X-Forwarded-For header. If the handshake fails, returns the HTTP status, if there was one.
    pub fn connect_from(&self, forwarded_for: Option<&str>) -> Result<Client, Option<u16>> {
        Client::try_connect(self.address, &self.url(), forwarded_for)
    }

    /// Kills the server with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill().expect("cannot kill the server");
        self.child.wait().expect("cannot wait for the server");
    }

    /// Sends SIGTERM, waits for the end and returns the exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("cannot run kill").success());
        eventually("graspd exits", || self.child.try_wait().expect("cannot wait for the server")).code()
    }

    /// Sends one HTTP request, given as text, and returns the whole response.
    pub fn http(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("cannot connect");
        stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
        std::io::Write::write_all(&mut stream, request.as_bytes()).expect("cannot send the request");
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("cannot read the response");
        String::from_utf8_lossy(&response).into_owned()
    }

    /// Sends a GET request with these header lines and returns the whole response. The connection is closed afterwards.
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

/// Returns the command that starts a server in a folder, on a free port of loopback.
///
/// Its environment contains only the settings and the search path, so that the server runs the same git as the test.
/// Names get the prefix `NGIT_`, except those that begin with `GRASPD_`: these are not settings but switches for tests
/// of debug builds.
pub fn command(folder: &Path, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_graspd"));
    command.current_dir(folder).env_clear().env("NGIT_BIND_ADDRESS", "127.0.0.1:0").env("NGIT_LOG_LEVEL", "warn");
    command.env("PATH", programs::search_path());
    // Off, so that no test connects to the internet. Tests of sync turn it on.
    command.env("NGIT_SYNC_ENABLE", "false");
    // Otherwise commands could find a server that runs on this machine.
    command.env("GRASPD_TEST_RUN_FOLDER", folder.join("run"));
    for (name, value) in settings {
        let prefix = if name.starts_with("GRASPD_") { "" } else { "NGIT_" };
        command.env(format!("{prefix}{name}"), value);
    }
    command
}

/// Returns whether an HTTP server answers at this address. It may listen before it does.
fn is_answering(address: SocketAddr) -> bool {
    let answer = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        std::io::Write::write_all(&mut stream, b"GET /healthz HTTP/1.0\r\n\r\n")?;
        stream.read(&mut [0; 16])
    };
    answer().is_ok_and(|bytes| bytes > 0)
}

/// A websocket client that sends and receives JSON arrays.
pub struct Client {
    pub socket: WebSocket<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr, url: &str) -> Self {
        Self::try_connect(address, url, None).expect("websocket handshake failed")
    }

    fn try_connect(address: SocketAddr, url: &str, forwarded_for: Option<&str>) -> Result<Self, Option<u16>> {
        let stream = TcpStream::connect(address).expect("cannot connect");
        stream.set_nodelay(true).expect("cannot set TCP_NODELAY");
        stream.set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
        let mut request = url.into_client_request().expect("invalid URL");
        if let Some(address) = forwarded_for {
            request.headers_mut().insert("x-forwarded-for", address.parse().expect("invalid header"));
        }
        match tungstenite::client(request, stream) {
            Ok((socket, _)) => Ok(Self { socket }),
            Err(HandshakeError::Failure(Error::Http(response))) => Err(Some(response.status().as_u16())),
            Err(HandshakeError::Failure(_)) => Err(None),
            Err(HandshakeError::Interrupted(_)) => panic!("the handshake does not end"),
        }
    }

    pub fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).expect("cannot send the message");
    }

    /// Waits for the next JSON message.
    pub fn receive(&mut self) -> Value {
        let start = Instant::now();
        loop {
            // The read timeout of the socket alone would start again with every ping of the server.
            assert!(start.elapsed() < DEADLINE, "no message within the deadline");
            match self.socket.read().expect("no message within the deadline") {
                Message::Text(text) => return serde_json::from_str(&text).expect("message is not JSON"),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Publishes an event; returns flag and text of the `OK` message.
    pub fn publish(&mut self, event: &SignedEvent) -> (bool, String) {
        self.send_text(&format!("[\"EVENT\",{}]", event.json()));
        let id = event.id.to_string();
        loop {
            let message = self.receive();
            if message[0] == "OK" && message[1] == id.as_str() {
                let accepted = message[2].as_bool().expect("OK has a flag");
                return (accepted, message[3].as_str().expect("OK has a text").to_owned());
            }
        }
    }

    /// Returns the ids of the stored events that match, in order, up to EOSE; then closes the subscription.
    pub fn query(&mut self, filters: &[Value]) -> Vec<String> {
        let ids = self.subscribe("q", filters);
        self.send(&json!(["CLOSE", "q"]));
        ids
    }

    /// Opens a subscription; returns the ids of the stored events that match, in order, up to EOSE.
    pub fn subscribe(&mut self, sub: &str, filters: &[Value]) -> Vec<String> {
        let mut request = vec![json!("REQ"), json!(sub)];
        request.extend_from_slice(filters);
        self.send(&Value::Array(request));
        let mut ids = Vec::new();
        loop {
            let message = self.receive();
            match message[0].as_str() {
                Some("EVENT") if message[1] == sub => {
                    ids.push(message[2]["id"].as_str().expect("event has an id").to_owned())
                }
                Some("EOSE") if message[1] == sub => return ids,
                Some("CLOSED") if message[1] == sub => panic!("subscription closed: {message}"),
                _ => {}
            }
        }
    }
}

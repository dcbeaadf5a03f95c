//! Helpers: a scripted relay and the driver's side of a connection.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grasp_core::net::AddressPolicy;
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, signed_event};
use grasp_core::sync::io::{DisconnectReason, EventPresence, EventRate, IncomingMessage, SessionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;
use nostr::key::Keys;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{
    ConnectionContext, ConnectionEvent, ConnectionHandle, ConnectionTimeouts, EventPermit, KnownEvents,
    RelayConnection, RelayOrigin,
};
use crate::clock::Clock;
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, test_dialer};

pub(super) const SESSION: SessionId = SessionId(7);

/// Longer than anything expected takes, even on a busy machine.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Capacity of the driver's queue: smaller than a relay's number of permits.
const QUEUE: usize = 64;

#[derive(Default)]
pub(super) struct FakeKnownEvents(Mutex<BTreeSet<EventId>>);

impl FakeKnownEvents {
    pub(super) fn add(&self, id: EventId) {
        self.0.lock().expect("not poisoned").insert(id);
    }
}

impl KnownEvents for FakeKnownEvents {
    fn presence(&self, id: EventId) -> EventPresence {
        if self.0.lock().expect("not poisoned").contains(&id) { EventPresence::Known } else { EventPresence::New }
    }
}

/// Context of the connections of a test.
pub(super) struct TestSetup {
    pub(super) sockets: Arc<ConnectionContext>,
    pub(super) known: Arc<FakeKnownEvents>,
    pub(super) keys: Keys,
}

impl TestSetup {
    pub(super) fn new() -> Self {
        Self::with(ConnectionTimeouts::new(TEST_TIMEOUT), test_dialer(AddressPolicy::Any, &FakeResolver::default()))
    }

    pub(super) fn with(timeouts: ConnectionTimeouts, dialer: Arc<Dialer>) -> Self {
        let known = Arc::new(FakeKnownEvents::default());
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("valid key");
        let sockets = ConnectionContext::new(
            dialer,
            known.clone(),
            keys.clone(),
            Clock::start(),
            Box::new(|| 64 * 1024),
            timeouts,
        );
        Self { sockets, known, keys }
    }

    /// Dials a relay.
    pub(super) fn dial(&self, url: &str) -> TestDriver {
        self.dial_all(&[url])
    }

    /// Dials a relay that the operator configured.
    pub(super) fn dial_configured(&self, url: &str) -> TestDriver {
        self.dial_as(&[url], RelayOrigin::Configured)
    }

    /// Dials several relays, whose events go to one driver.
    pub(super) fn dial_all(&self, urls: &[&str]) -> TestDriver {
        self.dial_as(urls, RelayOrigin::Event)
    }

    fn dial_as(&self, urls: &[&str], origin: RelayOrigin) -> TestDriver {
        let (sender, inbox) = mpsc::channel(QUEUE);
        let url = |url: &&str| RelayUrl::parse(url).expect("valid URL");
        let spawn = |url| {
            let handle = RelayConnection::spawn(&self.sockets, SESSION, (url, origin), sender.clone());
            handle.set_event_rate(EventRate::FULL);
            handle
        };
        TestDriver { handles: urls.iter().map(url).map(spawn).collect(), inbox }
    }
}

/// The driver's side of connections.
pub(super) struct TestDriver {
    pub(super) handles: Vec<ConnectionHandle>,
    pub(super) inbox: mpsc::Receiver<ConnectionEvent>,
}

impl TestDriver {
    pub(super) fn handle(&self) -> &ConnectionHandle {
        &self.handles[0]
    }

    pub(super) async fn next(&mut self) -> ConnectionEvent {
        timeout(TEST_TIMEOUT, self.inbox.recv()).await.expect("event in time").expect("channel open")
    }

    /// Waits until the connection is established. Returns whether there is a NIP-11 document.
    pub(super) async fn connected(&mut self) -> bool {
        match self.next().await {
            ConnectionEvent::Connected(SESSION, nip11) => nip11.is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the next received message. Skips reports of sent bytes.
    pub(super) async fn received(&mut self) -> (IncomingMessage, Option<EventPermit>) {
        loop {
            match self.next().await {
                ConnectionEvent::Received(SESSION, message, permit) => return (message, permit),
                ConnectionEvent::UnsentBytes(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Returns the reason of the end. Skips everything before it and checks that nothing follows.
    pub(super) async fn closed(mut self) -> DisconnectReason {
        loop {
            if let ConnectionEvent::Closed(SESSION, reason) = self.next().await {
                let after = timeout(TEST_TIMEOUT, self.inbox.recv()).await.expect("the channel closes");
                assert!(after.is_none(), "event after the end: {after:?}");
                return reason;
            }
        }
    }
}

/// Answer of a relay to the request for its NIP-11 document.
#[derive(Clone)]
pub(super) enum Nip11Response {
    /// These bytes, then the end of the connection.
    Bytes(Vec<u8>),
    /// No answer.
    Never,
}

impl Nip11Response {
    pub(super) fn not_found() -> Self {
        Self::Bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec())
    }

    pub(super) fn ok(text: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into_bytes())
    }
}

pub(super) type ServerSocket = WebSocketStream<TcpStream>;

/// A relay on loopback.
pub(super) struct TestRelay {
    pub(super) url: String,
    sessions: mpsc::UnboundedReceiver<ServerSocket>,
}

impl TestRelay {
    pub(super) async fn open(document: Nip11Response) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let url = url(listener.local_addr().expect("an address"));
        let (sender, sessions) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, document.clone(), sender.clone()));
            }
        });
        Self { url, sessions }
    }

    /// Returns the next websocket that a client opened.
    pub(super) async fn session(&mut self) -> ServerSocket {
        timeout(TEST_TIMEOUT, self.sessions.recv()).await.expect("session in time").expect("session")
    }
}

pub(super) fn url(address: SocketAddr) -> String {
    format!("ws://{address}")
}

async fn answer(mut stream: TcpStream, document: Nip11Response, sender: mpsc::UnboundedSender<ServerSocket>) {
    if wants_websocket(&stream).await {
        let socket = tokio_tungstenite::accept_async(stream).await.expect("handshake succeeds");
        let _ = sender.send(socket);
        return;
    }
    match document {
        Nip11Response::Bytes(bytes) => {
            // The request has to be read; otherwise the connection is reset and the answer lost.
            let mut head = [0; 4_096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut head).await;
            let _ = stream.write_all(&bytes).await;
        }
        Nip11Response::Never => {
            tokio::time::sleep(TEST_TIMEOUT).await;
        }
    }
}

/// Returns whether a request is a websocket upgrade, without consuming it.
pub(super) async fn wants_websocket(stream: &TcpStream) -> bool {
    let mut head = [0; 4_096];
    loop {
        let read = stream.peek(&mut head).await.expect("request");
        let text = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase();
        if text.contains("\r\n\r\n") || read == 0 {
            return text.contains("upgrade: websocket");
        }
        tokio::task::yield_now().await;
    }
}

pub(super) async fn send(server: &mut ServerSocket, text: impl Into<String>) {
    server.send(Message::text(text.into())).await.expect("sent");
}

/// Returns the next text message that the relay receives.
pub(super) async fn received_text(server: &mut ServerSocket) -> String {
    loop {
        match timeout(TEST_TIMEOUT, server.next()).await.expect("message in time") {
            Some(Ok(Message::Text(text))) => return text.as_str().to_owned(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns an event with a correct id. Its signature is not checked here.
pub(super) fn event(nth: u64, bytes: usize) -> (EventId, String) {
    let mut event = Event {
        id: EventId([0; 32]),
        pubkey: PublicKey([1; 32]),
        created_at: Timestamp(nth),
        kind: 1,
        tags: Vec::new(),
        content: "x".repeat(bytes),
        sig: [2; 64],
    };
    event.id = EventId(signed_event::compute_id(&event));
    (event.id, format!("[\"EVENT\",\"g1\",{}]", SignedEvent::from_trusted(event).json()))
}

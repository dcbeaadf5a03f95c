//! A relay that does as it is told, and a room that listens.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grasp_core::net::AddressPolicy;
use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, signed_event};
use grasp_core::sync::io::{DisconnectReason, IncomingMessage, SessionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;
use nostr::key::Keys;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::{FromSocket, Known, Patience, Permit, RelaySocket, SocketHandle, Sockets};
use crate::clock::Clock;
use crate::net::dialer::Dialer;
use crate::net::testing::{FakeResolver, test_dialer};

pub(super) const SESSION: SessionId = SessionId(7);

/// Nothing that is expected takes longer, however busy the machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What the room's channel holds: less than a relay has places.
const QUEUE: usize = 64;

#[derive(Default)]
pub(super) struct Shelf(Mutex<BTreeSet<EventId>>);

impl Shelf {
    pub(super) fn add(&self, id: EventId) {
        self.0.lock().expect("nobody panicked").insert(id);
    }
}

impl Known for Shelf {
    fn is_known(&self, id: EventId) -> bool {
        self.0.lock().expect("nobody panicked").contains(&id)
    }
}

/// What the sockets of a test share.
pub(super) struct World {
    pub(super) sockets: Arc<Sockets>,
    pub(super) shelf: Arc<Shelf>,
    pub(super) keys: Keys,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(Patience::new(PATIENCE), test_dialer(AddressPolicy::Any, &FakeResolver::default()))
    }

    pub(super) fn with(patience: Patience, dialer: Arc<Dialer>) -> Self {
        let shelf = Arc::new(Shelf::default());
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("a key");
        let sockets =
            Sockets::new(dialer, shelf.clone(), keys.clone(), Clock::start(), Box::new(|| 64 * 1024), patience);
        Self { sockets, shelf, keys }
    }

    /// Lets a socket dial this.
    pub(super) fn dial(&self, url: &str) -> Room {
        self.dial_all(&[url])
    }

    /// Lets several sockets dial, which tell one room.
    pub(super) fn dial_all(&self, urls: &[&str]) -> Room {
        let (tell, inbox) = mpsc::channel(QUEUE);
        let url = |url: &&str| RelayUrl::parse(url).expect("a relay");
        let spawn = |url| RelaySocket::spawn(&self.sockets, SESSION, url, tell.clone());
        Room { handles: urls.iter().map(url).map(spawn).collect(), inbox }
    }
}

/// The sync room's side.
pub(super) struct Room {
    pub(super) handles: Vec<SocketHandle>,
    pub(super) inbox: mpsc::Receiver<FromSocket>,
}

impl Room {
    pub(super) fn handle(&self) -> &SocketHandle {
        &self.handles[0]
    }

    pub(super) async fn next(&mut self) -> FromSocket {
        timeout(PATIENCE, self.inbox.recv()).await.expect("news in time").expect("not the end")
    }

    /// The nip11' presence, when the connection stands.
    pub(super) async fn up(&mut self) -> bool {
        match self.next().await {
            FromSocket::Up(SESSION, nip11) => nip11.is_some(),
            other => panic!("{other:?}"),
        }
    }

    /// The next thing that is heard, whatever has been sent meanwhile.
    pub(super) async fn heard(&mut self) -> (IncomingMessage, Option<Permit>) {
        loop {
            match self.next().await {
                FromSocket::Message(SESSION, heard, permit) => return (heard, permit),
                FromSocket::Unsent(..) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// How it ended, when all that was heard before has been thrown away. There is one end.
    pub(super) async fn end(mut self) -> DisconnectReason {
        loop {
            if let FromSocket::Down(SESSION, loss) = self.next().await {
                let after = timeout(PATIENCE, self.inbox.recv()).await.expect("the channel closes");
                assert!(after.is_none(), "the last word: {after:?}");
                return loss;
            }
        }
    }
}

/// What a relay answers when it is asked for its NIP-11 document.
#[derive(Clone)]
pub(super) enum Document {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// Nothing at all.
    Silence,
}

impl Document {
    pub(super) fn none() -> Self {
        Self::Bytes(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec())
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Bytes(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into_bytes())
    }
}

pub(super) type Server = WebSocketStream<TcpStream>;

/// A relay.
pub(super) struct Relay {
    pub(super) url: String,
    sessions: mpsc::UnboundedReceiver<Server>,
}

impl Relay {
    pub(super) async fn open(document: Document) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = url(listener.local_addr().expect("an address"));
        let (tell, sessions) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, document.clone(), tell.clone()));
            }
        });
        Self { url, sessions }
    }

    /// The next websocket that is opened.
    pub(super) async fn session(&mut self) -> Server {
        timeout(PATIENCE, self.sessions.recv()).await.expect("a session in time").expect("a session")
    }
}

pub(super) fn url(address: SocketAddr) -> String {
    format!("ws://{address}")
}

async fn answer(mut stream: TcpStream, document: Document, tell: mpsc::UnboundedSender<Server>) {
    if wants_websocket(&stream).await {
        let socket = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
        let _ = tell.send(socket);
        return;
    }
    match document {
        Document::Bytes(bytes) => {
            // The request has to be read, or the answer is thrown away with it.
            let mut head = [0; 4_096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut head).await;
            let _ = stream.write_all(&bytes).await;
        }
        Document::Silence => {
            tokio::time::sleep(PATIENCE).await;
        }
    }
}

/// Looks at a request without reading it.
pub(super) async fn wants_websocket(stream: &TcpStream) -> bool {
    let mut head = [0; 4_096];
    loop {
        let read = stream.peek(&mut head).await.expect("a request");
        let text = String::from_utf8_lossy(&head[..read]).to_ascii_lowercase();
        if text.contains("\r\n\r\n") || read == 0 {
            return text.contains("upgrade: websocket");
        }
        tokio::task::yield_now().await;
    }
}

pub(super) async fn send(server: &mut Server, text: impl Into<String>) {
    server.send(Message::text(text.into())).await.expect("sent");
}

/// The next text that a relay is told.
pub(super) async fn told(server: &mut Server) -> String {
    loop {
        match timeout(PATIENCE, server.next()).await.expect("something in time") {
            Some(Ok(Message::Text(text))) => return text.as_str().to_owned(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// An event with the right id; nobody looks at its signature here.
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

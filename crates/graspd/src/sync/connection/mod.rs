//! The connection to a relay: one task from the dial to the goodbye.
//!
//! The sync room says what to say and hears what is heard. An event that is not known here is handed over with a
//! [`Permit`], and the socket is not read while there is none; then nobody expects it to answer pings either. The last
//! word about a session is always [`FromSocket::Down`], and it is said once.

mod dial;
mod established;
mod keepalive;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::nostr::relay_message::EncodedMessage;
use grasp_core::nostr::{EventId, relay_message};
use grasp_core::sync::io::{DisconnectReason, IncomingMessage, OutgoingMessage, SessionId};
use grasp_core::sync::relay_limits::Nip11Info;
use grasp_core::sync::relay_url::RelayUrl;
use nostr::key::Keys;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::error;

use crate::clock::Clock;
use crate::net::dialer::Dialer;

/// Bytes of an answer to a challenge beside the challenge, roughly: it is counted before it is signed.
const AUTH_BYTES: usize = 512;

/// What a socket tells the sync room.
#[derive(Debug)]
pub(crate) enum FromSocket {
    /// The connection stands. What its NIP-11 document says, if there is one.
    Up(SessionId, Option<Nip11Info>),
    /// The relay says something. An event that is new here comes with a permit.
    Message(SessionId, IncomingMessage, Option<Permit>),
    /// So many bytes that were to be said have not left yet. After every message that has.
    Unsent(SessionId, usize),
    /// It is over. The last word.
    Down(SessionId, DisconnectReason),
}

/// A place for an event that is not judged yet. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Permit {
    _of_link: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// Whoever knows which events are here.
pub(crate) trait Known: Send + Sync {
    /// Whether an event is served or held. It is asked between two messages, so it has to be quick.
    fn is_known(&self, id: EventId) -> bool;
}

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// From the look-up of the name to the end of the websocket handshake.
    pub(crate) dial: Duration,
    /// For the whole NIP-11 document.
    pub(crate) nip11: Duration,
    /// For what of that is left when the connection stands.
    pub(crate) nip11_grace: Duration,
    /// Between two pings; twice this is the silence after which a relay is gone.
    pub(crate) ping: Duration,
    /// For the end of a connection.
    pub(crate) goodbye: Duration,
}

impl Patience {
    /// The usual, with a setting for the dial: it is the base of the backoff.
    pub(crate) fn new(dial: Duration) -> Self {
        Self {
            dial,
            nip11: Duration::from_secs(limits::NIP11_TIMEOUT_SECS),
            nip11_grace: Duration::from_secs(limits::NIP11_WAIT_SECS),
            ping: Duration::from_secs(limits::RELAY_PING_SECS),
            goodbye: Duration::from_secs(limits::RELAY_CLOSE_TIMEOUT_SECS),
        }
    }
}

/// How large an ordinary event may be.
pub(crate) type MaxEventBytes = Box<dyn Fn() -> usize + Send + Sync>;

/// What all sockets share.
pub(crate) struct Sockets {
    dialer: Arc<Dialer>,
    known: Arc<dyn Known>,
    /// The service's key, for challenges.
    keys: Keys,
    clock: Clock,
    /// What the policy takes of an ordinary event, as the settings are now.
    max_event_bytes: MaxEventBytes,
    patience: Patience,
    /// Places for events that are not judged yet.
    places: Arc<Semaphore>,
}

impl Sockets {
    pub(crate) fn new(
        dialer: Arc<Dialer>,
        known: Arc<dyn Known>,
        keys: Keys,
        clock: Clock,
        max_event_bytes: MaxEventBytes,
        patience: Patience,
    ) -> Arc<Self> {
        let places = Arc::new(Semaphore::new(limits::SYNC_PERMITS));
        Arc::new(Self { dialer, known, keys, clock, max_event_bytes, patience, places })
    }
}

/// What a message waits as until it is written.
enum Queued {
    Text(String),
    /// A challenge to answer.
    Sign(String),
}

impl Queued {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Sign(challenge) => challenge.len() + AUTH_BYTES,
        }
    }
}

/// The sync room's end of a socket. Dropping it hangs up.
pub(crate) struct SocketHandle {
    queue: mpsc::UnboundedSender<Queued>,
    unsent: Arc<AtomicUsize>,
    hang_up: Arc<Notify>,
}

impl SocketHandle {
    /// Says something, at once or when the connection stands, and tells how many bytes have not left yet, these included.
    /// It never waits; more than [`limits::SYNC_MAX_UNSENT_BYTES`] is not to be said.
    pub(crate) fn say(&self, say: OutgoingMessage) -> usize {
        let queued = match relay_message::encode(&say) {
            EncodedMessage::Text(text) => Queued::Text(text),
            EncodedMessage::Sign(challenge) => Queued::Sign(challenge.to_owned()),
        };
        let bytes = queued.bytes();
        let unsent = self.unsent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Who has gone does not listen, and has said so.
        let _ = self.queue.send(queued);
        unsent
    }

    /// Ends the connection, or the attempt at one.
    pub(crate) fn hang_up(&self) {
        self.hang_up.notify_one();
    }
}

impl Drop for SocketHandle {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// One connection to a relay, or the attempt at one.
pub(crate) struct RelaySocket {
    shared: Arc<Sockets>,
    session: SessionId,
    url: RelayUrl,
    room: mpsc::Sender<FromSocket>,
    unsent: Arc<AtomicUsize>,
    hang_up: Arc<Notify>,
    /// This relay's places for events that are not judged yet.
    places: Arc<Semaphore>,
}

impl RelaySocket {
    /// Begins to dial. What happens is told to `room`; when that is full, the sockets that share it take turns.
    pub(crate) fn spawn(
        shared: &Arc<Sockets>,
        session: SessionId,
        url: RelayUrl,
        room: mpsc::Sender<FromSocket>,
    ) -> SocketHandle {
        let (queue, queued) = mpsc::unbounded_channel();
        let unsent = Arc::new(AtomicUsize::new(0));
        let hang_up = Arc::new(Notify::new());
        let socket = Self {
            shared: shared.clone(),
            session,
            url,
            room: room.clone(),
            unsent: unsent.clone(),
            hang_up: hang_up.clone(),
            places: Arc::new(Semaphore::new(limits::SYNC_PERMITS_PER_RELAY)),
        };
        tokio::spawn(async move {
            // Whatever happens, the room is told; a stranger's text that makes us stumble ends one session, not sync.
            let loss = match AssertUnwindSafe(socket.run(queued)).catch_unwind().await {
                Ok(loss) => loss,
                Err(_) => {
                    error!(?session, "a relay's socket ended badly");
                    DisconnectReason::Ended
                }
            };
            let _ = room.send(FromSocket::Down(session, loss)).await;
        });
        SocketHandle { queue, unsent, hang_up }
    }

    async fn run(self, queued: mpsc::UnboundedReceiver<Queued>) -> DisconnectReason {
        let dialled = tokio::select! {
            biased;
            () = self.hang_up.notified() => return DisconnectReason::ClosedByUs,
            dialled = self.dial() => dialled,
        };
        match dialled {
            Ok((socket, nip11)) => self.live(socket, nip11, queued).await,
            Err(loss) => loss,
        }
    }

    /// Tells the room something. If there is no room any more, nobody cares.
    async fn tell(&self, news: FromSocket) {
        let _ = self.room.send(news).await;
    }
}

//! Websocket connection to a relay: one task from the dial to the close.
//!
//! The [`driver`](super::driver) sends messages through a [`ConnectionHandle`] and receives [`ConnectionEvent`]s. An
//! event that is not known here is delivered with an [`EventPermit`]. While there is no permit, the socket is not read,
//! and the relay is not expected to answer pings. [`ConnectionEvent::Closed`] is always the last event of a session and
//! is sent exactly once.

mod dial;
mod established;
mod keepalive;
#[cfg(test)]
mod tests;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::nostr::relay_message::EncodedMessage;
use grasp_core::nostr::{EventId, relay_message};
use grasp_core::sync::io::{DisconnectReason, EventPresence, EventRate, IncomingMessage, OutgoingMessage, SessionId};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::token_bucket::TokenBucket;
use nostr::key::Keys;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{Instrument, error, info_span};

use crate::clock::Clock;
use crate::net::dialer::Dialer;

/// Approximate size of an AUTH message without its challenge. It is counted before the message is signed.
const AUTH_BYTES: usize = 512;

/// Event of a connection, for the driver.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    /// The connection is established. With the relay's NIP-11 document, if it has one.
    Connected(SessionId, Option<Nip11Info>),
    /// A message was received. An event that is new here comes with a permit.
    Received(SessionId, IncomingMessage, Option<EventPermit>),
    /// Number of queued bytes that are not sent yet. Follows every message that was sent.
    UnsentBytes(SessionId, usize),
    /// The connection is closed. Last event of a session.
    Closed(SessionId, DisconnectReason),
}

/// Permit for an event that is not decided yet. Dropping it frees its share of both limits (per relay and in total).
#[derive(Debug)]
pub(crate) struct EventPermit {
    _relay: OwnedSemaphorePermit,
    _total: OwnedSemaphorePermit,
}

/// Lookup of events that are already stored.
pub(crate) trait KnownEvents: Send + Sync {
    /// Returns whether an event is new, served or held. Called between two messages, so it has to be quick.
    fn presence(&self, id: EventId) -> EventPresence;
}

/// Timeouts of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionTimeouts {
    /// For name resolution, connection and websocket handshake.
    pub(crate) dial: Duration,
    /// For the NIP-11 document.
    pub(crate) nip11: Duration,
    /// For the NIP-11 document before the websocket is dialled.
    pub(crate) nip11_first: Duration,
    /// For the NIP-11 document after the websocket is connected.
    pub(crate) nip11_grace: Duration,
    /// Interval between pings. A relay that is silent for twice this time is disconnected.
    pub(crate) ping: Duration,
    /// For the close handshake.
    pub(crate) close: Duration,
}

impl ConnectionTimeouts {
    /// Creates the default timeouts. `dial` is a setting: it is also the base of the backoff.
    pub(crate) fn new(dial: Duration) -> Self {
        Self {
            dial,
            nip11: Duration::from_secs(limits::NIP11_TIMEOUT_SECS),
            nip11_first: (dial / 4).min(Duration::from_secs(limits::NIP11_WAIT_SECS)),
            nip11_grace: Duration::from_secs(limits::NIP11_WAIT_SECS),
            ping: Duration::from_secs(limits::RELAY_PING_SECS),
            close: Duration::from_secs(limits::RELAY_CLOSE_TIMEOUT_SECS),
        }
    }
}

/// Returns the largest accepted size of an event.
pub(crate) type MaxEventBytes = Box<dyn Fn() -> usize + Send + Sync>;

/// Context that all connections share.
pub(crate) struct ConnectionContext {
    dialer: Arc<Dialer>,
    known: Arc<dyn KnownEvents>,
    /// Key of the service, for AUTH.
    keys: Keys,
    clock: Clock,
    /// Largest accepted size of an event under the current settings.
    max_event_bytes: MaxEventBytes,
    timeouts: ConnectionTimeouts,
    /// Permits for events that are not decided yet, of all relays.
    permits: Arc<Semaphore>,
}

impl ConnectionContext {
    pub(crate) fn new(
        dialer: Arc<Dialer>,
        known: Arc<dyn KnownEvents>,
        keys: Keys,
        clock: Clock,
        max_event_bytes: MaxEventBytes,
        timeouts: ConnectionTimeouts,
    ) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(limits::SYNC_PERMITS));
        Arc::new(Self { dialer, known, keys, clock, max_event_bytes, timeouts, permits })
    }
}

/// A message that waits to be sent.
enum QueuedMessage {
    Text(String),
    /// An AUTH challenge to sign and answer.
    Sign(String),
}

impl QueuedMessage {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Sign(challenge) => challenge.len() + AUTH_BYTES,
        }
    }
}

/// The driver's handle of a connection. Dropping it closes the connection.
pub(crate) struct ConnectionHandle {
    queue: mpsc::UnboundedSender<QueuedMessage>,
    unsent: Arc<AtomicUsize>,
    disconnect: Arc<Notify>,
    event_budget: Arc<Mutex<TokenBucket>>,
}

impl ConnectionHandle {
    /// Changes the rate at which events are read.
    pub(crate) fn set_event_rate(&self, rate: EventRate) {
        *self.event_budget.lock().unwrap_or_else(PoisonError::into_inner) = new_bucket(rate);
    }

    /// Queues a message. It is sent as soon as the connection is established. Returns the number of unsent bytes
    /// including this message. Never waits; the caller must not queue more than [`limits::SYNC_MAX_UNSENT_BYTES`].
    pub(crate) fn send(&self, message: OutgoingMessage) -> usize {
        let queued = match relay_message::encode(&message) {
            EncodedMessage::Text(text) => QueuedMessage::Text(text),
            EncodedMessage::Sign(challenge) => QueuedMessage::Sign(challenge.to_owned()),
        };
        let bytes = queued.bytes();
        let unsent = self.unsent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A closed connection has reported its end.
        let _ = self.queue.send(queued);
        unsent
    }

    /// Closes the connection or cancels the dial.
    pub(crate) fn disconnect(&self) {
        self.disconnect.notify_one();
    }
}

fn new_bucket(rate: EventRate) -> TokenBucket {
    TokenBucket::new(rate.per_minute, rate.burst)
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// Where the URL of a relay comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RelayOrigin {
    /// An event. It must not lead to a private address.
    Event,
    /// The settings. It may lead to any address.
    Configured,
}

/// A connection to a relay, or an attempt to connect.
pub(crate) struct RelayConnection {
    context: Arc<ConnectionContext>,
    session: SessionId,
    url: RelayUrl,
    origin: RelayOrigin,
    events: mpsc::Sender<ConnectionEvent>,
    unsent: Arc<AtomicUsize>,
    disconnect: Arc<Notify>,
    /// Permits of this relay for events that are not decided yet.
    permits: Arc<Semaphore>,
    /// Limits how many events are read.
    event_budget: Arc<Mutex<TokenBucket>>,
    /// Id of the AUTH event that was sent last, in hex.
    auth_id: Mutex<Option<String>>,
}

impl RelayConnection {
    /// Starts the connection task. Events are sent to `events`; while that queue is full, the connections that share it
    /// wait in turn.
    pub(crate) fn spawn(
        context: &Arc<ConnectionContext>,
        session: SessionId,
        (url, origin): (RelayUrl, RelayOrigin),
        events: mpsc::Sender<ConnectionEvent>,
    ) -> ConnectionHandle {
        let (queue, queued) = mpsc::unbounded_channel();
        let unsent = Arc::new(AtomicUsize::new(0));
        let disconnect = Arc::new(Notify::new());
        let event_budget = Arc::new(Mutex::new(new_bucket(EventRate::LOWEST)));
        let socket = Self {
            context: context.clone(),
            session,
            url,
            origin,
            events: events.clone(),
            unsent: unsent.clone(),
            disconnect: disconnect.clone(),
            permits: Arc::new(Semaphore::new(limits::SYNC_PERMITS_PER_RELAY)),
            event_budget: event_budget.clone(),
            auth_id: Mutex::default(),
        };
        let span = info_span!(target: "sync", "relay", url = %socket.url);
        let task = async move {
            // The end is reported in any case: a panic caused by untrusted input ends one session, not sync.
            let reason = match AssertUnwindSafe(socket.run(queued)).catch_unwind().await {
                Ok(reason) => reason,
                Err(_) => {
                    error!(target: "sync", session = session.0, "relay connection task panicked");
                    DisconnectReason::Ended
                }
            };
            let _ = events.send(ConnectionEvent::Closed(session, reason)).await;
        };
        tokio::spawn(task.instrument(span));
        ConnectionHandle { queue, unsent, disconnect, event_budget }
    }

    async fn run(self, queued: mpsc::UnboundedReceiver<QueuedMessage>) -> DisconnectReason {
        let dialled = tokio::select! {
            biased;
            () = self.disconnect.notified() => return DisconnectReason::ClosedByUs,
            dialled = self.dial() => dialled,
        };
        match dialled {
            Ok((socket, nip11)) => self.run_established(socket, nip11, queued).await,
            Err(reason) => reason,
        }
    }

    /// Sends an event to the driver. Ignores that the driver has stopped.
    async fn notify(&self, event: ConnectionEvent) {
        let _ = self.events.send(event).await;
    }
}

//! One websocket connection of a client, from handshake to close.
//!
//! A session is one task of the async runtime. It reads messages of its client, passes them to the writer, the
//! broadcast, the query pool or the negentropy cache, and writes what comes back through its outbox. Everything that is
//! sent is first appended to one buffer of complete websocket frames ([`WriteBuffer`]), so that a burst of events or
//! replies costs one system call.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use grasp_core::limits;
use grasp_core::nostr::message::{ClientMessage, MessageErrorReply};
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::{Event, PublicKey, Verifier, auth, message};
use grasp_core::repo::ServiceAddress;
use grasp_core::time::MonoTime;
use grasp_store::Store;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tracing::debug;

use super::budgets::RelayBudgets;
use super::frame_reader::{ClientFrame, FrameError, FrameReader};
use super::negentropy::Reconciliations;
use super::subscriptions::Subscriptions;
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::network_limits::NetworkSlot;
use crate::http::server::{ConnectionPermit, wait_for_shutdown};
use crate::metrics::relay::SessionGuard;
use crate::metrics::{Metrics, relay};
use crate::relay::broadcast::BroadcastHandle;
use crate::relay::negentropy_cache::NegentropyCache;
use crate::relay::outbox::{self, EventPrefix, SessionMessage, SessionSender, SubscriptionKey, push_frame};
use crate::relay::query_pool::{QueryJob, QueryPool, ScanJob};
use crate::writer::queue::EventQueue;
use crate::writer::submission::QueuedEvent;

/// How long a write may wait for the client to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long closing a connection may take, including the client's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many messages of the outbox are handled before the buffer is written.
const MAX_MESSAGES_PER_WRITE: usize = 1_024;

/// The client's messages are read at least once in this many rounds, however full the outbox is.
const ROUNDS_PER_READ: u64 = 8;

/// Size of the buffer at which it is written even if more messages wait.
const WRITE_BYTES: usize = 256 * 1024;

/// Connection to a client, after the websocket handshake.
pub(crate) type ClientSocket = TokioIo<Upgraded>;

/// Handles and settings that a session needs.
#[derive(Clone)]
pub(crate) struct SessionContext {
    pub(crate) queue: Arc<EventQueue>,
    pub(crate) broadcast: BroadcastHandle,
    pub(crate) query_pool: QueryPool,
    pub(crate) negentropy_cache: NegentropyCache,
    pub(crate) budgets: RelayBudgets,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) service: ServiceAddress,
    /// The current settings.
    pub(crate) settings: SettingsReceiver,
    pub(crate) next_subscription_key: Arc<AtomicU64>,
    pub(crate) metrics: Metrics,
    /// How long the server waits for connections at shutdown.
    pub(crate) shutdown_grace: Duration,
}

impl SessionContext {
    /// Returns a key that no subscription of this process has had.
    pub(crate) fn new_subscription_key(&self) -> SubscriptionKey {
        SubscriptionKey(self.next_subscription_key.fetch_add(1, Ordering::Relaxed))
    }
}

/// Bytes to be written to the client: first `parts`, then `frames`.
#[derive(Default)]
pub(crate) struct WriteBuffer {
    /// Parts of stored events as the query pool made them, and frames that precede them.
    parts: Vec<Vec<u8>>,
    frames: Vec<u8>,
    /// Bytes of live events in `frames`.
    live_bytes: usize,
    /// Scans that continue when the buffer has been written, so that a slow client slows down only its own scans. Each
    /// gets the buffer of a written part, so that a long answer is made in the same memory.
    #[expect(clippy::vec_box, reason = "jobs are boxed in the messages between threads")]
    paused_scans: Vec<Box<ScanJob>>,
    /// Messages in the buffer by type, for the metrics.
    sent: relay::SentCounts,
}

impl WriteBuffer {
    /// Appends a message.
    pub(crate) fn push_text(&mut self, text: &str) {
        self.sent[relay::sent_type_index(text)] += 1;
        push_frame(&mut self.frames, &[text.as_bytes()]);
    }

    /// Appends a control frame.
    fn push_control(&mut self, opcode: u8, payload: &[u8]) {
        outbox::push_control_frame(&mut self.frames, opcode, payload);
    }

    /// Appends a part of stored events.
    pub(crate) fn push_stored(&mut self, part: Vec<u8>) {
        if !self.frames.is_empty() {
            self.parts.push(std::mem::take(&mut self.frames));
        }
        self.sent[relay::SENT_EVENT] += count_frames(&part);
        self.parts.push(part);
    }

    /// Appends a live event.
    pub(crate) fn push_live(&mut self, prefix: &EventPrefix, json: &Arc<[u8]>) {
        prefix.push_event(&mut self.frames, json);
        self.sent[relay::SENT_EVENT] += 1;
        self.live_bytes += json.len();
    }

    /// Continues a scan when the buffer has been written.
    pub(crate) fn resume_after_write(&mut self, scan: Box<ScanJob>) {
        self.paused_scans.push(scan);
    }

    async fn write_to(&self, socket: &mut ClientSocket) -> Result<(), ()> {
        for part in self.parts.iter().chain([&self.frames]) {
            socket.write_all(part).await.map_err(|_| ())?;
        }
        socket.flush().await.map_err(|_| ())
    }

    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.parts.is_empty()
    }

    fn len(&self) -> usize {
        self.frames.len() + self.parts.iter().map(Vec::len).sum::<usize>()
    }
}

/// Counts websocket frames as [`push_frame`] writes them.
fn count_frames(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let [_, short, rest @ ..] = bytes {
        let (length, rest) = match (short, rest) {
            (126, [a, b, rest @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), rest),
            (127, [a, b, c, d, e, f, g, h, rest @ ..]) => (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest),
            (short, rest) => (u64::from(*short), rest),
        };
        count += 1;
        bytes = usize::try_from(length).ok().and_then(|length| rest.get(length..)).unwrap_or_default();
    }
    count
}

/// Returns the index of a message's type in [`relay::RECEIVED_TYPES`].
fn received_type_index(message: &Result<ClientMessage<'_>, MessageErrorReply>) -> usize {
    let label = match message {
        Ok(ClientMessage::Event(_)) => "event",
        Ok(ClientMessage::Req(..)) => "req",
        Ok(ClientMessage::Close(_)) => "close",
        Ok(ClientMessage::Count(..)) => "count",
        Ok(ClientMessage::Auth(_)) => "auth",
        Ok(ClientMessage::NegOpen(..)) => "neg_open",
        Ok(ClientMessage::NegMsg(..)) => "neg_msg",
        Ok(ClientMessage::NegClose(_)) => "neg_close",
        Err(_) => "other",
    };
    relay::RECEIVED_TYPES.iter().position(|known| *known == label).unwrap_or(relay::RECEIVED_TYPES.len() - 1)
}

/// Reason for the end of a session.
pub(super) enum SessionEnd {
    /// The connection is lost.
    Disconnected,
    /// The client sent a close frame with this payload, which is also the reply to it.
    CloseReceived(Vec<u8>),
    /// The server closes the connection: slow client or shutdown.
    Close(CloseCode, &'static str),
    /// The server closes the connection because no more messages can be read from it.
    Reject(CloseCode, &'static str),
}

impl From<FrameError> for SessionEnd {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Disconnected => Self::Disconnected,
            FrameError::TooLong => Self::Reject(CloseCode::Size, "the message is too long"),
            FrameError::InvalidUtf8 => Self::Reject(CloseCode::Invalid, "the text frame is not valid UTF-8"),
            FrameError::Protocol => Self::Reject(CloseCode::Protocol, "invalid websocket frame"),
            FrameError::NoMemory => {
                Self::Reject(CloseCode::Again, "too many incomplete messages from your network, try again later")
            }
            FrameError::Timeout => Self::Reject(CloseCode::Policy, "the message was not completed in time"),
        }
    }
}

/// Writes a frame to the client at once.
async fn write_frame(socket: &mut ClientSocket, frame: &[u8]) -> std::io::Result<()> {
    socket.write_all(frame).await?;
    socket.flush().await
}

/// Sends a close frame and closes the connection in the direction to the client: RFC 6455, 7.1.1, wants the server to
/// close first. Then everything is read until the client closes.
pub(super) async fn reject(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), code: CloseCode, reason: &str) {
    if socket.write_all(&close_frame(code, reason)).await.is_ok() && socket.shutdown().await.is_ok() {
        let _ = tokio::io::copy(socket, &mut tokio::io::sink()).await;
    }
}

/// Returns a close frame.
fn close_frame(code: CloseCode, reason: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    outbox::push_control_frame(
        &mut frame,
        outbox::CLOSE,
        &[&u16::from(code).to_be_bytes(), reason.as_bytes()].concat(),
    );
    frame
}

const SHUTTING_DOWN: SessionEnd = SessionEnd::Close(CloseCode::Away, "the server is shutting down");

/// Waits until so little of the shutdown grace is left that the session must be closed even if replies are missing.
async fn wait_for_close_deadline(mut shutdown: watch::Receiver<bool>, grace: Duration) {
    wait_for_shutdown(&mut shutdown).await;
    tokio::time::sleep(grace.saturating_sub(CLOSE_TIMEOUT)).await;
}

/// What a session uses to reach the rest of the server and its client.
pub(crate) struct SessionIo {
    pub(crate) context: SessionContext,
    /// Sender of the session's own outbox, for those that answer later.
    pub(crate) sender: SessionSender,
    /// What is written to the client next.
    pub(crate) out: WriteBuffer,
}

/// A websocket connection of a client.
pub(crate) struct Session {
    io: SessionIo,
    connection: Arc<ConnectionPermit>,
    /// Slot in the client's network if the connection comes through a proxy. Otherwise the slot of `connection` counts.
    network_slot: Option<NetworkSlot>,
    inbox: mpsc::UnboundedReceiver<SessionMessage>,
    reader: FrameReader,
    subscriptions: Subscriptions,
    reconciliations: Reconciliations,
    /// Number of submitted events without a reply.
    unanswered_events: usize,
    challenge: Option<String>,
    auth_attempts: usize,
    /// Keys that the client has authenticated for.
    keys: Arc<[PublicKey]>,
    /// When the client last sent something, or made space in the socket for something that waited.
    last_activity: MonoTime,
    _metrics_guard: SessionGuard,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.subscriptions.close_all(&self.io);
    }
}

impl Session {
    pub(crate) fn new(
        context: SessionContext,
        network_slot: Option<NetworkSlot>,
        connection: Arc<ConnectionPermit>,
        metrics_guard: SessionGuard,
    ) -> Self {
        let network = network_slot.as_ref().or(connection.network_slot.as_ref()).and_then(NetworkSlot::network);
        let (sender, inbox) = SessionSender::new(network);
        Self {
            connection,
            network_slot,
            inbox,
            reader: FrameReader::new(context.budgets.incomplete_messages.clone(), network),
            subscriptions: Subscriptions::default(),
            reconciliations: Reconciliations::default(),
            unanswered_events: 0,
            challenge: None,
            auth_attempts: 0,
            keys: Arc::new([]),
            last_activity: context.clock.mono(),
            io: SessionIo { context, sender, out: WriteBuffer::default() },
            _metrics_guard: metrics_guard,
        }
    }

    /// Runs the session until the connection is closed.
    pub(crate) async fn run(mut self, mut socket: ClientSocket) {
        let end = self.serve(&mut socket).await;
        // Closing a TCP connection with unread input resets it, and the client may then lose what was sent last. So
        // everything is read until the client closes.
        let close = async {
            match end {
                SessionEnd::Disconnected => {}
                SessionEnd::CloseReceived(payload) => {
                    self.io.out.push_control(outbox::CLOSE, &payload);
                    let _ = self.io.out.write_to(&mut socket).await;
                }
                SessionEnd::Close(code, reason) => {
                    debug!(target: "relay", reason, "session closed");
                    if write_frame(&mut socket, &close_frame(code, reason)).await.is_ok() {
                        while !matches!(self.reader.next(&mut socket).await, Ok(ClientFrame::Close(_)) | Err(_)) {}
                    }
                }
                SessionEnd::Reject(code, reason) => {
                    debug!(target: "relay", reason, "session closed");
                    self.reader.clear();
                    reject(&mut socket, code, reason).await;
                }
            }
        };
        // The client may not answer at all; then the connection is dropped.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
    }

    async fn serve(&mut self, socket: &mut ClientSocket) -> SessionEnd {
        // These futures live as long as the session, so that their wakers are registered once.
        let mut shutdown = self.connection.shutdown.clone();
        let mut shutdown = pin!(wait_for_shutdown(&mut shutdown));
        let mut close_deadline =
            pin!(wait_for_close_deadline(self.connection.shutdown.clone(), self.io.context.shutdown_grace));
        let sender = self.io.sender.clone();
        let mut overflow = pin!(sender.overflowed());
        let mut tick = tokio::time::interval(Duration::from_secs(limits::CLIENT_PING_SECS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tick.reset();
        for round in 0_u64.. {
            if let Err(end) = self.write(socket, overflow.as_mut()).await {
                return end;
            }
            // The outbox has priority because it is cheap to poll. Now and then the socket is read first, so that a
            // full outbox cannot block the client's messages.
            if round.is_multiple_of(ROUNDS_PER_READ)
                && self.can_read()
                && let Some(frame) = self.reader.next(socket).now_or_never()
            {
                match self.handle_frame(frame).await {
                    Ok(()) => continue,
                    Err(end) => return end,
                }
            }
            tokio::select! {
                biased;
                // First, because it is rarely ready, and the others can be ready all the time.
                _ = tick.tick() => {
                    if let Err(end) = self.tick() {
                        return end;
                    }
                }
                message = self.inbox.recv() => match message {
                    Some(message) => self.handle_session_messages(message),
                    None => return SessionEnd::Disconnected,
                },
                frame = self.reader.next(socket), if self.can_read() => {
                    if let Err(end) = self.handle_frame(frame).await {
                        return end;
                    }
                }
                () = overflow.as_mut() => return SessionEnd::Close(CloseCode::Policy, "the client reads too slowly"),
                () = shutdown.as_mut(), if self.is_answered() => return SHUTTING_DOWN,
                () = close_deadline.as_mut() => return SHUTTING_DOWN,
            }
        }
        SessionEnd::Disconnected
    }

    /// Runs periodically: closes idle reconciliations, pings a silent client, and ends the session of one that does not
    /// answer.
    fn tick(&mut self) -> Result<(), SessionEnd> {
        let now = self.io.context.clock.mono();
        self.reconciliations.close_idle(now, &mut self.io.out);
        // An idle connection keeps no large buffer.
        self.io.out.frames.shrink_to(0);
        self.reader.shrink();
        if self.reader.is_receiving() {
            // A client cannot answer a ping inside a frame. The reader limits the time of an incomplete message.
            self.last_activity = now;
        }
        let silent_secs = now.since(self.last_activity).as_secs();
        if silent_secs >= 2 * limits::CLIENT_PING_SECS {
            return Err(SessionEnd::Close(CloseCode::Away, "no answer to ping"));
        }
        if silent_secs >= limits::CLIENT_PING_SECS / 2 {
            self.io.out.push_control(outbox::PING, &[]);
        }
        Ok(())
    }

    /// Whether all submitted events, queries for stored events and counts have been answered.
    fn is_answered(&self) -> bool {
        self.unanswered_events == 0 && self.subscriptions.are_answered()
    }

    /// Whether more messages may be read: few enough events are unanswered, and the server is not shutting down.
    fn can_read(&self) -> bool {
        self.unanswered_events < limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION && !*self.connection.shutdown.borrow()
    }

    /// Writes the buffer to the client.
    async fn write(
        &mut self,
        socket: &mut ClientSocket,
        overflow: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), SessionEnd> {
        if self.io.out.is_empty() {
            return Ok(());
        }
        let (written, has_waited) = {
            let mut writing = pin!(self.io.out.write_to(socket));
            // Usually the socket accepts everything at once, and then no timer is needed.
            match poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await {
                Poll::Ready(written) => (written, false),
                Poll::Pending => tokio::select! {
                    written = tokio::time::timeout(WRITE_TIMEOUT, writing) => (written.unwrap_or(Err(())), true),
                    () = overflow => (Err(()), true),
                },
            }
        };
        // After a failure a frame may be written in part, so no close frame can follow.
        written.map_err(|()| SessionEnd::Disconnected)?;
        if has_waited {
            // The client has read something. A write that fits into the system's buffer proves nothing.
            self.last_activity = self.io.context.clock.mono();
        }
        let bytes = self.io.out.len();
        self.io.context.metrics.relay().count_sent(&mut self.io.out.sent, bytes);
        self.io.sender.release_live(std::mem::take(&mut self.io.out.live_bytes));
        self.io.out.frames.clear();
        let mut written_parts = self.io.out.parts.drain(..);
        for mut scan in self.io.out.paused_scans.drain(..) {
            if let Some(mut buffer) = written_parts.next() {
                buffer.clear();
                scan.frames = buffer;
            }
            self.io.context.query_pool.submit(QueryJob::Scan(scan));
        }
        Ok(())
    }

    /// Handles a message of the outbox and those behind it, until there is enough to write.
    fn handle_session_messages(&mut self, first: SessionMessage) {
        self.handle_session_message(first);
        for _ in 1..MAX_MESSAGES_PER_WRITE {
            if self.io.out.len() >= WRITE_BYTES {
                break;
            }
            match self.inbox.try_recv() {
                Ok(message) => self.handle_session_message(message),
                Err(_) => break,
            }
        }
    }

    fn handle_session_message(&mut self, message: SessionMessage) {
        let Self { io, subscriptions, reconciliations, .. } = self;
        match message {
            SessionMessage::EventReply { text, needs_challenge } => {
                self.unanswered_events -= 1;
                // A challenge is sent only when authentication would have made a difference.
                if needs_challenge && self.challenge.is_none() {
                    self.send_challenge();
                }
                self.io.out.push_text(&text);
            }
            SessionMessage::StoredEvents { key, frames, status } => {
                subscriptions.on_stored_events(io, key, frames, status)
            }
            SessionMessage::LiveEvent { key, json } => subscriptions.on_live_event(io, key, json),
            SessionMessage::Count { key, count } => subscriptions.on_count(io, key, count),
            SessionMessage::ItemSet { key, set } => reconciliations.on_item_set(io, key, set),
            SessionMessage::NegentropyReply { key, text, is_over } => {
                reconciliations.on_reply(&mut io.out, key, &text, is_over)
            }
        }
    }

    /// Handles a message or control frame of the client, or the end of the connection.
    async fn handle_frame(&mut self, frame: Result<ClientFrame, FrameError>) -> Result<(), SessionEnd> {
        self.last_activity = self.io.context.clock.mono();
        match frame? {
            ClientFrame::Text(text) => return self.handle_message(&text).await,
            ClientFrame::Binary => {
                self.io.out.push_text(&message::notice("invalid: binary frames are not supported"));
            }
            ClientFrame::Ping(payload) => self.io.out.push_control(outbox::PONG, &payload),
            ClientFrame::Pong => {}
            ClientFrame::Close(payload) => return Err(SessionEnd::CloseReceived(payload)),
        }
        Ok(())
    }

    async fn handle_message(&mut self, text: &str) -> Result<(), SessionEnd> {
        let Self { io, subscriptions, reconciliations, .. } = self;
        let message = ClientMessage::parse(text);
        io.context.metrics.relay().count_received(received_type_index(&message), text.len());
        match message {
            Ok(ClientMessage::Event(event)) => return self.submit_event(event).await,
            Ok(ClientMessage::Auth(event)) => self.authenticate(event),
            Ok(ClientMessage::Req(id, filters)) => subscriptions.req(io, id, filters),
            Ok(ClientMessage::Close(id)) => subscriptions.close(io, &id),
            Ok(ClientMessage::Count(id, filters)) => subscriptions.count(io, id, filters),
            Ok(ClientMessage::NegOpen(id, filter, message)) => {
                reconciliations.open(io, id, filter, message);
            }
            Ok(ClientMessage::NegMsg(id, message)) => reconciliations.message(io, &id, message),
            Ok(ClientMessage::NegClose(id)) => reconciliations.close(&id),
            Err(error) => {
                // CLOSED and NEG-ERR mean that the subscription of this id has ended.
                match &error {
                    MessageErrorReply::Closed(id, _) => subscriptions.close(io, id),
                    MessageErrorReply::NegErr(id, _) => reconciliations.close(id),
                    MessageErrorReply::Notice(_) => {}
                }
                io.out.push_text(&error.to_message());
            }
        }
        Ok(())
    }

    /// Handles EVENT: submits the event to the writer. Waits while the event queue is full.
    async fn submit_event(&mut self, text: &str) -> Result<(), SessionEnd> {
        let network_slot = self.network_slot.as_ref().or(self.connection.network_slot.as_ref());
        if !network_slot.is_none_or(NetworkSlot::try_publish) {
            self.io.context.metrics.relay().count_decision(None, &Decision::Reject(Rejection::RateLimited));
            self.reject_event(text, Rejection::RateLimited);
            return Ok(());
        }
        let network = network_slot.and_then(NetworkSlot::network_name);
        let Some(permit) = self.io.context.queue.reserve(text.len()).await else {
            return Err(SHUTTING_DOWN);
        };
        self.last_activity = self.io.context.clock.mono();
        self.unanswered_events += 1;
        let sender = self.io.sender.clone();
        let reply =
            Box::new(move |text, needs_challenge| sender.send(SessionMessage::EventReply { text, needs_challenge }));
        let event = QueuedEvent::from_client(text.to_owned(), reply, (self.keys.clone(), network), permit);
        self.io.context.queue.push(event);
        Ok(())
    }

    fn reject_event(&mut self, text: &str, reason: Rejection) {
        let (is_accepted, reason) = Decision::Reject(reason).ok_reply();
        self.io.out.push_text(&match Event::claimed_id(text) {
            Some(id) => message::ok(id, is_accepted, &reason),
            None => message::notice(&reason),
        });
    }

    fn send_challenge(&mut self) {
        if let Ok(random) = crate::random::bytes::<16>() {
            let challenge = grasp_core::nostr::hex::encode(&random);
            self.io.out.push_text(&message::auth(&challenge));
            self.challenge = Some(challenge);
        }
    }

    /// Handles AUTH. The signature is verified on this task, because the number of attempts per connection is small.
    fn authenticate(&mut self, text: &str) {
        let event = match Event::parse(text) {
            Ok(event) => event,
            Err(error) => return self.reject_event(text, Rejection::Malformed(error)),
        };
        let id = event.id;
        self.auth_attempts += 1;
        if self.auth_attempts > limits::MAX_AUTH_ATTEMPTS {
            return self.io.out.push_text(&message::ok(id, false, "rate-limited: too many authentication attempts"));
        }
        let Some(challenge) = &self.challenge else {
            return self.io.out.push_text(&message::ok(id, false, "invalid: no challenge was sent on this connection"));
        };
        let error = match Verifier::with_cache(1).verify(event) {
            Err(error) => Some(Rejection::Forged(error).to_string()),
            Ok(event) => match auth::check(&event, challenge, &self.io.context.service, self.io.context.clock.wall()) {
                Err(error) => Some(error.to_string()),
                Ok(()) => {
                    if !self.keys.contains(&event.pubkey) && self.keys.len() < limits::MAX_AUTH_KEYS {
                        self.keys = self.keys.iter().copied().chain([event.pubkey]).collect();
                    }
                    None
                }
            },
        };
        self.io.out.push_text(&message::ok(id, error.is_none(), error.as_deref().unwrap_or_default()));
    }
}

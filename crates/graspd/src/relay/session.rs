//! One websocket connection, from handshake to goodbye.
//!
//! The session reads messages, hands them to the rooms and writes what comes back. Everything that becomes a message
//! is appended to one buffer of ready frames ([`Out`]) and written in one go, so that a burst of events or answers
//! costs one system call.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::nostr::message::{ClientMessage, MessageErrorReply};
use grasp_core::nostr::rejection::{Decision, Rejection};
use grasp_core::nostr::{Event, PublicKey, Verifier, auth, message};
use grasp_core::repo::ServiceAddress;
use grasp_core::time::MonoTime;
use grasp_store::Store;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as WsError};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tracing::debug;

use super::negentropy::Reconciliations;
use super::subscriptions::Subscriptions;
use crate::clock::Clock;
use crate::config::SettingsReceiver;
use crate::http::network_limits::NetworkSlot;
use crate::http::server::{ConnectionPermit, departure};
use crate::metrics::relay::SessionGuard;
use crate::metrics::{Metrics, relay};
use crate::relay::broadcast::BroadcastHandle;
use crate::relay::negentropy_cache::NegentropyCache;
use crate::relay::outbox::{Head, SessionMessage, SessionSender, SubscriptionKey, push_frame};
use crate::relay::query_pool::{Job, QueryPool, ScanJob};
use crate::writer::queue::EventQueue;
use crate::writer::submission::{ClientReply, QueuedEvent};

/// How long a client may take to make room for what it asked for.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// How long a goodbye may take, the client's answer to it included.
const GOODBYE: Duration = Duration::from_secs(1);

/// How many letters are answered before what they led to is written.
const LETTERS_AT_ONCE: usize = 1_024;

/// So many turns of letters may pass before the client is listened to.
const TURNS_TO_LISTEN: u64 = 8;

/// Frames that are gathered before they are written.
const WRITE_AT: usize = 256 * 1024;

/// The doors of all rooms that a session needs, and the limits it keeps.
#[derive(Clone)]
pub(crate) struct SessionContext {
    pub(crate) line: Arc<EventQueue>,
    pub(crate) live: BroadcastHandle,
    pub(crate) readers: QueryPool,
    pub(crate) library: NegentropyCache,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) service: ServiceAddress,
    /// The limits that hold now.
    pub(crate) settings: SettingsReceiver,
    pub(crate) keys: Arc<AtomicU64>,
    pub(crate) meter: Metrics,
    /// How long a departing server waits for connections.
    pub(crate) shutdown_grace: Duration,
}

impl SessionContext {
    /// A name for a subscription that no other ever had.
    pub(crate) fn new_key(&self) -> SubscriptionKey {
        SubscriptionKey(self.keys.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn max_subscriptions(&self) -> usize {
        self.settings.borrow().max_subscriptions
    }

    pub(crate) fn max_neg_sessions(&self) -> usize {
        self.settings.borrow().max_neg_sessions
    }

    pub(crate) fn last_seq(&self) -> u64 {
        self.store.last_seq()
    }
}

/// What is ready to be written, in order: parts of stored answers as the readers made them, then `frames`.
#[derive(Default)]
pub(crate) struct Out {
    parts: Vec<Vec<u8>>,
    frames: Vec<u8>,
    /// Bytes of live events among the frames.
    live_bytes: usize,
    /// Scans that go on when this has been written: a slow client slows only its own. Each gets a written part's
    /// buffer back, so that a long answer is made in one and the same memory.
    #[expect(clippy::vec_box, reason = "jobs travel boxed from room to room")]
    then: Vec<Box<ScanJob>>,
    /// Messages that have not been counted yet.
    said: relay::Said,
}

impl Out {
    /// A message.
    pub(crate) fn text(&mut self, text: &str) {
        self.said[relay::said(text)] += 1;
        push_frame(&mut self.frames, &[text.as_bytes()]);
    }

    /// A part of a stored answer.
    pub(crate) fn part(&mut self, part: Vec<u8>) {
        if !self.frames.is_empty() {
            self.parts.push(std::mem::take(&mut self.frames));
        }
        self.said[relay::SAID_EVENT] += frames_of(&part);
        self.parts.push(part);
    }

    /// A live event.
    pub(crate) fn live(&mut self, head: &Head, json: &Arc<[u8]>) {
        head.push_event(&mut self.frames, json);
        self.said[relay::SAID_EVENT] += 1;
        self.live_bytes += json.len();
    }

    /// A scan to go on with when all this has been written.
    pub(crate) fn then(&mut self, scan: Box<ScanJob>) {
        self.then.push(scan);
    }

    async fn write_to<S>(&self, socket: &mut WebSocketStream<S>) -> Result<(), ()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Pongs and pings stand in the websocket's own buffer; whole frames may follow them on the bare stream.
        socket.flush().await.map_err(|_| ())?;
        for part in self.parts.iter().chain([&self.frames]) {
            socket.get_mut().write_all(part).await.map_err(|_| ())?;
        }
        socket.get_mut().flush().await.map_err(|_| ())
    }

    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.parts.is_empty()
    }

    fn len(&self) -> usize {
        self.frames.len() + self.parts.iter().map(Vec::len).sum::<usize>()
    }
}

/// How many websocket frames stand in a row, as [`push_frame`] writes them.
fn frames_of(mut bytes: &[u8]) -> u64 {
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

/// The place of a message among the types that are counted.
fn place_of(message: &Result<ClientMessage<'_>, MessageErrorReply>) -> usize {
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
    relay::HEARD.iter().position(|known| *known == label).unwrap_or(relay::HEARD.len() - 1)
}

/// Why a session ends.
enum End {
    /// The client has gone.
    Gone,
    /// The client said goodbye; the answer to it is ready to be sent.
    Goodbye,
    /// The client broke the protocol or was too slow, or the server goes down.
    Close(CloseCode, &'static str),
}

/// The server goes down.
const AWAY: End = End::Close(CloseCode::Away, "the server is going down");

/// Waits until a departing server has little of its grace left: enough to say goodbye even to those who are still owed
/// something.
async fn last_moment(mut leaving: watch::Receiver<bool>, grace: Duration) {
    departure(&mut leaving).await;
    tokio::time::sleep(grace.saturating_sub(GOODBYE)).await;
}

/// One connection.
pub(crate) struct Session {
    rooms: SessionContext,
    presence: Arc<ConnectionPermit>,
    /// Its place in the network behind a proxy; without a proxy that is the presence's.
    place: Option<NetworkSlot>,
    postbox: SessionSender,
    inbox: mpsc::UnboundedReceiver<SessionMessage>,
    out: Out,
    subscriptions: Subscriptions,
    reconciliations: Reconciliations,
    /// Events that were offered and not yet answered.
    unanswered: usize,
    challenge: Option<String>,
    auth_attempts: usize,
    /// Keys that the client has shown to hold.
    keys: Arc<[PublicKey]>,
    heard: MonoTime,
    _sitting: SessionGuard,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.subscriptions.close_all(&self.rooms);
    }
}

impl Session {
    pub(crate) fn new(
        rooms: SessionContext,
        place: Option<NetworkSlot>,
        presence: Arc<ConnectionPermit>,
        sitting: SessionGuard,
    ) -> Self {
        let (postbox, inbox) = SessionSender::new();
        Self {
            presence,
            place,
            postbox,
            inbox,
            out: Out::default(),
            subscriptions: Subscriptions::default(),
            reconciliations: Reconciliations::default(),
            unanswered: 0,
            challenge: None,
            auth_attempts: 0,
            keys: Arc::new([]),
            heard: rooms.clock.mono(),
            rooms,
            _sitting: sitting,
        }
    }

    /// The session's life.
    pub(crate) async fn run<S>(mut self, mut socket: WebSocketStream<S>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let end = self.serve(&mut socket).await;
        // Whoever does not listen does not hear it.
        let goodbye = async {
            match end {
                End::Gone => Ok(()),
                End::Goodbye => socket.flush().await,
                End::Close(code, reason) => {
                    debug!(reason, "a session is closed");
                    socket.close(Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) })).await?;
                    // Whoever hangs up on words that were not heard takes back those that were said last.
                    while let Some(Ok(_)) = socket.next().await {}
                    Ok(())
                }
            }
        };
        let _ = tokio::time::timeout(GOODBYE, goodbye).await;
    }

    async fn serve<S>(&mut self, socket: &mut WebSocketStream<S>) -> End
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Both wait for the whole life of the session; what they wait on is registered once.
        let mut leaving = self.presence.leaving.clone();
        let mut departure = pin!(departure(&mut leaving));
        let mut last_moment = pin!(last_moment(self.presence.leaving.clone(), self.rooms.shutdown_grace));
        let postbox = self.postbox.clone();
        let mut overflow = pin!(postbox.overflowed());
        let mut tick = tokio::time::interval(Duration::from_secs(limits::CLIENT_PING_SECS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tick.reset();
        for turn in 0_u64.. {
            if let Err(end) = self.write(socket, overflow.as_mut()).await {
                return end;
            }
            // Letters come first, because they are cheap to look for; a flood of them must not make us deaf.
            if turn.is_multiple_of(TURNS_TO_LISTEN)
                && self.may_read()
                && let Some(message) = socket.next().now_or_never()
            {
                match self.heard(message).await {
                    Ok(()) => continue,
                    Err(end) => return end,
                }
            }
            tokio::select! {
                biased;
                letter = self.inbox.recv() => match letter {
                    Some(letter) => self.letters(letter),
                    None => return End::Gone,
                },
                message = socket.next(), if self.may_read() => {
                    if let Err(end) = self.heard(message).await {
                        return end;
                    }
                }
                _ = tick.tick() => {
                    if let Err(end) = self.tick(socket).await {
                        return end;
                    }
                }
                () = overflow.as_mut() => return End::Close(CloseCode::Policy, "too slow to read"),
                () = departure.as_mut(), if self.owes_nothing() => return AWAY,
                () = last_moment.as_mut() => return AWAY,
            }
        }
        End::Gone
    }

    /// Every now and then: ends what is idle, asks a silent client for a sign of life, lets a dead one go.
    async fn tick<S>(&mut self, socket: &mut WebSocketStream<S>) -> Result<(), End>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let now = self.rooms.clock.mono();
        self.reconciliations.end_idle(now, &mut self.out);
        // An idle connection keeps no large buffer.
        self.out.frames.shrink_to(0);
        let silent = now.since(self.heard).as_secs();
        if silent >= 2 * limits::CLIENT_PING_SECS {
            return Err(End::Close(CloseCode::Away, "no answer to ping"));
        }
        let ping = socket.send(Message::Ping(Default::default()));
        let asked = silent < limits::CLIENT_PING_SECS / 2
            || matches!(tokio::time::timeout(WRITE_PATIENCE, ping).await, Ok(Ok(())));
        if asked { Ok(()) } else { Err(End::Gone) }
    }

    /// Whether everything that the client asked for has been answered: events that it offered, what is stored of what it
    /// subscribed to, counts.
    fn owes_nothing(&self) -> bool {
        self.unanswered == 0 && self.subscriptions.are_answered()
    }

    /// Whether the client may say more: it waits for few enough answers, and the server is not about to go down.
    fn may_read(&self) -> bool {
        self.unanswered < limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION && !*self.presence.leaving.borrow()
    }

    /// Writes everything that is ready.
    async fn write<S>(
        &mut self,
        socket: &mut WebSocketStream<S>,
        overflow: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), End>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        if self.out.is_empty() {
            return Ok(());
        }
        let (written, waited) = {
            let mut writing = pin!(self.out.write_to(socket));
            // Nearly always there is room, and then no clock needs to be set.
            match poll_fn(|context| Poll::Ready(writing.as_mut().poll(context))).await {
                Poll::Ready(written) => (written, false),
                Poll::Pending => tokio::select! {
                    written = tokio::time::timeout(WRITE_PATIENCE, writing) => (written.unwrap_or(Err(())), true),
                    () = overflow => (Err(()), true),
                },
            }
        };
        // If it failed, a frame may be half written: there is no room for a goodbye.
        written.map_err(|()| End::Gone)?;
        if waited {
            // Somebody made room for this: a sign of life. What merely fits into the system's buffer is none.
            self.heard = self.rooms.clock.mono();
        }
        let bytes = self.out.len();
        self.rooms.meter.relay().said(&mut self.out.said, bytes);
        self.postbox.sent_live(std::mem::take(&mut self.out.live_bytes));
        self.out.frames.clear();
        let mut written = self.out.parts.drain(..);
        for mut scan in self.out.then.drain(..) {
            if let Some(mut buffer) = written.next() {
                buffer.clear();
                scan.frames = buffer;
            }
            self.rooms.readers.submit(Job::Scan(scan));
        }
        Ok(())
    }

    /// Opens a letter and those behind it, until there is enough to write.
    fn letters(&mut self, first: SessionMessage) {
        self.letter(first);
        for _ in 1..LETTERS_AT_ONCE {
            if self.out.len() >= WRITE_AT {
                break;
            }
            match self.inbox.try_recv() {
                Ok(letter) => self.letter(letter),
                Err(_) => break,
            }
        }
    }

    fn letter(&mut self, letter: SessionMessage) {
        let Self { rooms, postbox, out, subscriptions, reconciliations, .. } = self;
        match letter {
            SessionMessage::HttpResponse { text, challenge } => {
                self.unanswered -= 1;
                // Who may send protected events is asked for a proof only when it matters.
                if challenge && self.challenge.is_none() {
                    self.challenge();
                }
                self.out.text(&text);
            }
            SessionMessage::Stored { sub, frames, next } => {
                subscriptions.stored(rooms, postbox, out, sub, frames, next)
            }
            SessionMessage::Live { sub, json } => subscriptions.live(postbox, out, sub, json),
            SessionMessage::NoRoom { sub } => subscriptions.no_room(rooms, postbox, out, sub),
            SessionMessage::Counted { sub, count } => subscriptions.counted(rooms, postbox, out, sub, count),
            SessionMessage::Set { sub, set } => reconciliations.set(rooms, postbox, out, sub, set),
            SessionMessage::Reconciled { sub, text, over } => reconciliations.answered(out, sub, &text, over),
        }
    }

    async fn heard(&mut self, message: Option<Result<Message, WsError>>) -> Result<(), End> {
        self.heard = self.rooms.clock.mono();
        match message {
            Some(Ok(Message::Text(text))) => self.message(text.as_str()).await,
            Some(Ok(Message::Binary(_))) => {
                self.out.text(&message::notice("invalid: binary frames are not spoken here"));
                Ok(())
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(()),
            Some(Ok(Message::Close(_))) => Err(End::Goodbye),
            None => Err(End::Gone),
            Some(Err(problem)) => Err(match problem {
                WsError::Capacity(CapacityError::MessageTooLong { .. }) => {
                    End::Close(CloseCode::Size, "the message is too long")
                }
                WsError::Utf8(_) => End::Close(CloseCode::Invalid, "text frames carry UTF-8"),
                WsError::Protocol(_) => End::Close(CloseCode::Protocol, "not a websocket frame"),
                _ => End::Gone,
            }),
        }
    }

    async fn message(&mut self, text: &str) -> Result<(), End> {
        let Self { rooms, postbox, out, subscriptions, reconciliations, .. } = self;
        let message = ClientMessage::parse(text);
        rooms.meter.relay().heard(place_of(&message), text.len());
        match message {
            Ok(ClientMessage::Event(event)) => return self.publish(event).await,
            Ok(ClientMessage::Auth(event)) => self.authenticate(event),
            Ok(ClientMessage::Req(name, filters)) => subscriptions.req(rooms, postbox, out, name, filters),
            Ok(ClientMessage::Close(name)) => subscriptions.close(rooms, postbox, &name),
            Ok(ClientMessage::Count(name, filters)) => subscriptions.count(rooms, postbox, out, name, filters),
            Ok(ClientMessage::NegOpen(name, filter, message)) => {
                reconciliations.open(rooms, postbox, out, name, filter, message);
            }
            Ok(ClientMessage::NegMsg(name, message)) => reconciliations.message(rooms, postbox, out, &name, message),
            Ok(ClientMessage::NegClose(name)) => reconciliations.close(&name),
            Err(bad) => {
                // The answer says that something of this name has ended.
                match &bad {
                    MessageErrorReply::Closed(name, _) => subscriptions.close(rooms, postbox, name),
                    MessageErrorReply::NegErr(name, _) => reconciliations.close(name),
                    MessageErrorReply::Notice(_) => {}
                }
                out.text(&bad.to_message());
            }
        }
        Ok(())
    }

    async fn publish(&mut self, text: &str) -> Result<(), End> {
        if !self.place.as_ref().or(self.presence.place.as_ref()).is_none_or(NetworkSlot::may_publish) {
            self.rooms.meter.relay().judged(None, &Decision::Reject(Rejection::RateLimited));
            self.refuse(text, Rejection::RateLimited);
            return Ok(());
        }
        let Some(permit) = self.rooms.line.place(text.len()).await else {
            return Err(AWAY);
        };
        self.heard = self.rooms.clock.mono();
        self.unanswered += 1;
        let to = self.postbox.clone();
        let reply =
            Box::new(move |ClientReply { text, challenge }| to.send(SessionMessage::HttpResponse { text, challenge }));
        let offer = QueuedEvent::of_client(text.to_owned(), reply, self.keys.clone(), permit);
        self.rooms.line.join(offer);
        Ok(())
    }

    fn refuse(&mut self, text: &str, why: Rejection) {
        let (accepted, why) = Decision::Reject(why).ok_reply();
        self.out.text(&match Event::claimed_id(text) {
            Some(id) => message::ok(id, accepted, &why),
            None => message::notice(&why),
        });
    }

    fn challenge(&mut self) {
        let mut random = [0; 16];
        if getrandom::fill(&mut random).is_ok() {
            let challenge = grasp_core::nostr::hex::encode(&random);
            self.out.text(&message::auth(&challenge));
            self.challenge = Some(challenge);
        }
    }

    /// AUTH. At most a few are tried on one connection, so their signatures are checked here and now.
    fn authenticate(&mut self, text: &str) {
        let event = match Event::parse(text) {
            Ok(event) => event,
            Err(why) => return self.refuse(text, Rejection::Malformed(why)),
        };
        let id = event.id;
        self.auth_attempts += 1;
        if self.auth_attempts > limits::MAX_AUTH_ATTEMPTS {
            return self.out.text(&message::ok(id, false, "rate-limited: too many authentication attempts"));
        }
        let Some(challenge) = &self.challenge else {
            return self.out.text(&message::ok(id, false, "invalid: no challenge was sent on this connection"));
        };
        let refusal = match Verifier::with_cache(1).verify(event) {
            Err(why) => Some(Rejection::Forged(why).to_string()),
            Ok(event) => match auth::check(&event, challenge, &self.rooms.service, self.rooms.clock.wall()) {
                Err(why) => Some(why.to_string()),
                Ok(()) => {
                    if !self.keys.contains(&event.pubkey) && self.keys.len() < limits::MAX_AUTH_KEYS {
                        self.keys = self.keys.iter().copied().chain([event.pubkey]).collect();
                    }
                    None
                }
            },
        };
        self.out.text(&message::ok(id, refusal.is_none(), refusal.as_deref().unwrap_or_default()));
    }
}

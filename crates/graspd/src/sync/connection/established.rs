//! A connection that stands: reading, writing, and watching over both, at the same time in one task.

use std::sync::atomic::Ordering;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::nostr::{kinds, relay_message};
use grasp_core::sync::io::{DisconnectReason, EventPresence, IncomingMessage};
use grasp_core::sync::relay_limits::Nip11Info;
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as WsError};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tracing::debug;

use super::keepalive::Pulse;
use super::{FromSocket, Permit, Queued, RelaySocket};
use crate::net::stream::OutboundStream;

type Socket = WebSocketStream<OutboundStream>;

/// How a life ends.
enum End {
    /// The relay has gone, or does not answer: there is nobody to say goodbye to.
    Gone,
    /// The relay has said goodbye.
    Goodbye,
    /// The relay has sent a message that is too large.
    Flooded,
    /// The room wants it.
    HungUp,
}

impl RelaySocket {
    pub(super) async fn live(
        self,
        socket: Socket,
        nip11: Option<Nip11Info>,
        queued: mpsc::UnboundedReceiver<Queued>,
    ) -> DisconnectReason {
        let pulse = Pulse::new(self.shared.clock);
        let (mut sink, mut stream) = socket.split();
        let silence = 2 * self.shared.patience.ping;
        let end = tokio::select! {
            biased;
            () = self.hang_up.notified() => End::HungUp,
            end = self.read(&mut stream, nip11, &pulse) => end,
            end = self.write(&mut sink, queued, &pulse) => end,
            () = pulse.stops(silence) => {
                debug!(relay = %self.url, "a relay has fallen silent");
                End::Gone
            }
        };
        let loss = match end {
            End::Gone | End::Goodbye => DisconnectReason::Ended,
            End::Flooded => DisconnectReason::MessageTooLarge,
            End::HungUp => DisconnectReason::ClosedByUs,
        };
        if let Ok(socket) = sink.reunite(stream) {
            let _ = timeout(self.shared.patience.goodbye, say_goodbye(socket, end)).await;
        }
        loss
    }

    /// Hands over what the relay says, one thing after the other.
    async fn read(&self, stream: &mut SplitStream<Socket>, nip11: Option<Nip11Info>, pulse: &Pulse) -> End {
        self.tell(FromSocket::Up(self.session, nip11)).await;
        pulse.listens();
        loop {
            let message = stream.next().await;
            pulse.heard();
            let (heard, bytes) = match message {
                Some(Ok(Message::Text(text))) => {
                    let largest = (self.shared.max_event_bytes)();
                    (relay_message::parse(text.as_str(), largest), text.len())
                }
                Some(Ok(Message::Binary(_))) => (IncomingMessage::Invalid, 0),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => (IncomingMessage::Alive, 0),
                Some(Ok(Message::Close(_))) => return End::Goodbye,
                Some(Err(WsError::Capacity(CapacityError::MessageTooLong { .. }))) => return End::Flooded,
                Some(Err(problem)) => {
                    debug!(relay = %self.url, %problem, "a relay's connection broke");
                    return End::Gone;
                }
                None => return End::Gone,
            };
            self.hand_over(heard, bytes).await;
            pulse.listens();
        }
    }

    async fn hand_over(&self, heard: IncomingMessage, bytes: usize) {
        let (heard, permit) = match heard {
            IncomingMessage::Event(sub, event, _) if self.shared.known.is_known(event.id) => {
                (IncomingMessage::Event(sub, event, EventPresence::Known), None)
            }
            IncomingMessage::Event(..) => match self.permit(bytes).await {
                Some(permit) => (heard, Some(permit)),
                None => return,
            },
            _ => (heard, None),
        };
        self.tell(FromSocket::Message(self.session, heard, permit)).await;
    }

    /// Waits for a place. `None` never happens: nobody closes the semaphores.
    async fn permit(&self, bytes: usize) -> Option<Permit> {
        // Half of what a relay has at most: two large ones may be on their way at once.
        let places = (bytes / limits::SYNC_PERMIT_BYTES).clamp(1, limits::SYNC_PERMITS_PER_RELAY / 2);
        let places = u32::try_from(places).ok()?;
        let of_link = self.places.clone().acquire_many_owned(places).await.ok()?;
        let of_all = self.shared.places.clone().acquire_many_owned(places).await.ok()?;
        Some(Permit { _of_link: of_link, _of_all: of_all })
    }

    /// Writes what is to be said, and pings.
    async fn write(
        &self,
        sink: &mut SplitSink<Socket, Message>,
        mut queued: mpsc::UnboundedReceiver<Queued>,
        pulse: &Pulse,
    ) -> End {
        let mut tick = interval(self.shared.patience.ping);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.reset();
        loop {
            let (message, bytes) = tokio::select! {
                next = queued.recv() => match next {
                    Some(next) => (self.message(&next), next.bytes()),
                    None => return End::HungUp,
                },
                _ = tick.tick() => (Message::Ping(Default::default()), 0),
            };
            pulse.writes();
            let sent = sink.send(message).await;
            pulse.written();
            if sent.is_err() {
                // It may have said why before it went. Whoever reads will notice the end.
                sleep(self.shared.patience.goodbye).await;
                return End::Gone;
            }
            if bytes > 0 {
                let unsent = self.unsent.fetch_sub(bytes, Ordering::Relaxed) - bytes;
                self.tell(FromSocket::Unsent(self.session, unsent)).await;
            }
        }
    }

    fn message(&self, queued: &Queued) -> Message {
        Message::text(match queued {
            Queued::Text(text) => Utf8Bytes::from(text.as_str()),
            Queued::Sign(challenge) => self.answer(challenge).into(),
        })
    }

    /// The answer to a challenge (NIP-42).
    fn answer(&self, challenge: &str) -> String {
        let tags = [["relay", &self.url.to_string()], ["challenge", challenge]];
        let event = EventBuilder::new(Kind::Custom(kinds::AUTH), "")
            .tags(tags.iter().filter_map(|tag| Tag::parse(tag.iter().copied()).ok()))
            .custom_created_at(nostr::types::Timestamp::from(self.shared.clock.wall().0))
            .finalize(&self.shared.keys);
        match event {
            Ok(event) => relay_message::encode_auth(&event.as_json()),
            // Nothing that is wrong with a challenge makes signing fail; a relay understands this as no answer.
            Err(_) => relay_message::encode_auth("{}"),
        }
    }
}

/// Ends a connection as the protocol wants it. Whoever calls sets the deadline.
async fn say_goodbye(mut socket: Socket, end: End) -> Result<(), WsError> {
    let frame = |code, reason| Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) });
    match end {
        End::Gone => return Ok(()),
        // The answer to it is ready.
        End::Goodbye => return socket.flush().await,
        End::Flooded => return socket.close(frame(CloseCode::Size, "the message is too long")).await,
        End::HungUp => socket.close(frame(CloseCode::Normal, "")).await?,
    }
    while let Some(Ok(_)) = socket.next().await {}
    Ok(())
}

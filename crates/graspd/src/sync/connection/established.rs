//! An established connection: reading, writing and keepalive, concurrently in one task.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::nostr::nip11::Nip11Info;
use grasp_core::nostr::{kinds, relay_message};
use grasp_core::sync::io::{DisconnectReason, EventPresence, IncomingMessage};
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error as WsError};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};
use tracing::debug;

use super::keepalive::Keepalive;
use super::{ConnectionEvent, EventPermit, QueuedMessage, RelayConnection};
use crate::net::stream::OutboundStream;

type Socket = WebSocketStream<Box<dyn OutboundStream>>;

/// How long a relay without event budget waits before the budget is looked at again.
const BUDGET_WAIT: Duration = Duration::from_millis(100);

/// Cause of the end of a connection.
enum CloseCause {
    /// The relay is gone or does not answer. No close handshake is possible.
    Lost,
    /// The relay sent a close frame.
    ClosedByRelay,
    /// The relay sent a message that is too large.
    MessageTooLarge,
    /// The driver closed the connection.
    ClosedByUs,
}

impl RelayConnection {
    pub(super) async fn run_established(
        self,
        socket: Socket,
        nip11: Option<Nip11Info>,
        queued: mpsc::UnboundedReceiver<QueuedMessage>,
    ) -> DisconnectReason {
        let keepalive = Keepalive::new(self.context.clock);
        let (mut sink, mut stream) = socket.split();
        let silence = 2 * self.context.timeouts.ping;
        let cause = tokio::select! {
            biased;
            () = self.disconnect.notified() => CloseCause::ClosedByUs,
            cause = self.read(&mut stream, nip11, &keepalive) => cause,
            cause = self.write(&mut sink, queued, &keepalive) => cause,
            () = keepalive.timed_out(silence) => {
                debug!(target: "sync", relay = %self.url, "relay timed out");
                CloseCause::Lost
            }
        };
        let reason = match cause {
            CloseCause::Lost | CloseCause::ClosedByRelay => DisconnectReason::Ended,
            CloseCause::MessageTooLarge => DisconnectReason::MessageTooLarge,
            CloseCause::ClosedByUs => DisconnectReason::ClosedByUs,
        };
        if let Ok(socket) = sink.reunite(stream) {
            let _ = timeout(self.context.timeouts.close, close(socket, cause)).await;
        }
        reason
    }

    /// Delivers messages of the relay, one after the other.
    async fn read(
        &self,
        stream: &mut SplitStream<Socket>,
        nip11: Option<Nip11Info>,
        keepalive: &Keepalive,
    ) -> CloseCause {
        self.notify(ConnectionEvent::Connected(self.session, nip11)).await;
        keepalive.resume_reading();
        loop {
            let frame = stream.next().await;
            keepalive.frame_received();
            let (message, bytes) = match frame {
                Some(Ok(Message::Text(text))) => {
                    let largest = (self.context.max_event_bytes)();
                    (self.check_auth_reply(relay_message::parse(text.as_str(), largest), text.as_str()), text.len())
                }
                Some(Ok(Message::Binary(_))) => (IncomingMessage::Invalid, 0),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => (IncomingMessage::Alive, 0),
                Some(Ok(Message::Close(_))) => return CloseCause::ClosedByRelay,
                Some(Err(WsError::Capacity(CapacityError::MessageTooLong { .. }))) => {
                    return CloseCause::MessageTooLarge;
                }
                Some(Err(error)) => {
                    debug!(target: "sync", relay = %self.url, %error, "relay connection broke");
                    return CloseCause::Lost;
                }
                None => return CloseCause::Lost,
            };
            self.deliver(message, bytes).await;
            keepalive.resume_reading();
        }
    }

    /// Passes on an OK only if it names our AUTH event. The text of another one is a notice.
    fn check_auth_reply(&self, message: IncomingMessage, text: &str) -> IncomingMessage {
        let IncomingMessage::Ok(is_accepted, reason) = message else { return message };
        let auth_id = self.auth_id.lock().unwrap_or_else(PoisonError::into_inner);
        match auth_id.as_ref().is_some_and(|id| text.contains(id.as_str())) {
            true => IncomingMessage::Ok(is_accepted, reason),
            false if is_accepted => IncomingMessage::Alive,
            false => IncomingMessage::Notice(reason),
        }
    }

    async fn deliver(&self, message: IncomingMessage, bytes: usize) {
        let (message, permit) = match message {
            IncomingMessage::Event(sub, event, _) => {
                self.wait_for_event_budget().await;
                let presence = self.context.known.presence(event.id);
                let permit = if presence == EventPresence::New {
                    let Some(permit) = self.acquire_permit(bytes).await else { return };
                    Some(permit)
                } else {
                    None
                };
                (IncomingMessage::Event(sub, event, presence), permit)
            }
            _ => (message, None),
        };
        self.notify(ConnectionEvent::Received(self.session, message, permit)).await;
    }

    /// Waits until the relay's budget has space for another event. Meanwhile the socket is not read, so the relay has to
    /// wait too.
    async fn wait_for_event_budget(&self) {
        while !self.event_budget.lock().unwrap_or_else(PoisonError::into_inner).take(self.context.clock.mono()) {
            sleep(BUDGET_WAIT).await;
        }
    }

    /// Waits for a permit. Never returns `None`, because the semaphores are never closed.
    async fn acquire_permit(&self, bytes: usize) -> Option<EventPermit> {
        // At most half of a relay's permits: two large events can be in flight at once.
        let permits = (bytes / limits::SYNC_PERMIT_BYTES).clamp(1, limits::SYNC_PERMITS_PER_RELAY / 2);
        let permits = u32::try_from(permits).ok()?;
        let relay = self.permits.clone().acquire_many_owned(permits).await.ok()?;
        let total = self.context.permits.clone().acquire_many_owned(permits).await.ok()?;
        Some(EventPermit { _relay: relay, _total: total })
    }

    /// Sends queued messages and pings.
    async fn write(
        &self,
        sink: &mut SplitSink<Socket, Message>,
        mut queued: mpsc::UnboundedReceiver<QueuedMessage>,
        keepalive: &Keepalive,
    ) -> CloseCause {
        let mut tick = interval(self.context.timeouts.ping);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tick.reset();
        loop {
            let (message, bytes) = tokio::select! {
                next = queued.recv() => match next {
                    Some(next) => (self.message(&next), next.bytes()),
                    None => return CloseCause::ClosedByUs,
                },
                _ = tick.tick() => (Message::Ping(Default::default()), 0),
            };
            keepalive.write_started();
            let sent = sink.send(message).await;
            keepalive.write_finished();
            if sent.is_err() {
                // The relay may have sent a reason before it closed the connection. The reader will notice the end.
                sleep(self.context.timeouts.close).await;
                return CloseCause::Lost;
            }
            if bytes > 0 {
                let unsent = self.unsent.fetch_sub(bytes, Ordering::Relaxed) - bytes;
                self.notify(ConnectionEvent::UnsentBytes(self.session, unsent)).await;
            }
        }
    }

    fn message(&self, queued: &QueuedMessage) -> Message {
        Message::text(match queued {
            QueuedMessage::Text(text) => Utf8Bytes::from(text.as_str()),
            QueuedMessage::Sign(challenge) => self.auth_response(challenge).into(),
        })
    }

    /// Returns the AUTH message that answers a challenge (NIP-42).
    fn auth_response(&self, challenge: &str) -> String {
        let tags = [["relay", &self.url.to_string()], ["challenge", challenge]];
        let event = EventBuilder::new(Kind::Custom(kinds::AUTH), "")
            .tags(tags.iter().filter_map(|tag| Tag::parse(tag.iter().copied()).ok()))
            .custom_created_at(nostr::types::Timestamp::from(self.context.clock.wall().0))
            .finalize(&self.context.keys);
        match event {
            Ok(event) => {
                *self.auth_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(event.id.to_hex());
                relay_message::encode_auth(&event.as_json())
            }
            // Signing does not fail because of a challenge. An empty event is an invalid answer for the relay.
            Err(_) => relay_message::encode_auth("{}"),
        }
    }
}

/// Performs the close handshake. The caller sets a timeout.
async fn close(mut socket: Socket, cause: CloseCause) -> Result<(), WsError> {
    let frame = |code, reason| Some(CloseFrame { code, reason: Utf8Bytes::from_static(reason) });
    match cause {
        CloseCause::Lost => return Ok(()),
        // tungstenite has queued the answer to the close frame.
        CloseCause::ClosedByRelay => return socket.flush().await,
        CloseCause::MessageTooLarge => return socket.close(frame(CloseCode::Size, "message too long")).await,
        CloseCause::ClosedByUs => socket.close(frame(CloseCode::Normal, "")).await?,
    }
    while let Some(Ok(_)) = socket.next().await {}
    Ok(())
}

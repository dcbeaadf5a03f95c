//! Messages from other threads to a session, and the limit of unsent live events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::nostr::message;
use grasp_core::nostr::negentropy::NegentropySet;
use tokio::sync::{Notify, mpsc};

use super::negentropy_cache::ItemSetError;
use super::query_pool::ScanJob;
use crate::http::network_limits::ClientNetwork;
use crate::http::shared_budget::BudgetReservation;

/// Identifies one subscription of one session. Never used again in this process, so that a late message for a replaced
/// subscription is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SubscriptionKey(pub(crate) u64);

/// A message to a session.
pub(crate) enum SessionMessage {
    /// Reply to an EVENT message: the text to send, and whether an AUTH challenge should precede it.
    EventReply { text: String, needs_challenge: bool },
    /// A part of the stored events of a subscription: complete websocket frames, and the state of the scan.
    StoredEvents { key: SubscriptionKey, frames: Vec<u8>, status: ScanStatus },
    /// A new event for a subscription: its JSON text.
    LiveEvent { key: SubscriptionKey, json: Arc<[u8]> },
    /// Result of a COUNT; `None` if the query was too expensive or failed.
    Count { key: SubscriptionKey, count: Result<u64, &'static str> },
    /// The item set of a reconciliation.
    ItemSet { key: SubscriptionKey, set: Result<Arc<CachedItemSet>, ItemSetError> },
    /// Reply to a message of a reconciliation: the text to send, and whether the reconciliation has ended.
    NegentropyReply { key: SubscriptionKey, text: String, is_over: bool },
}

/// State of a scan after a part of its events has been sent.
pub(crate) enum ScanStatus {
    /// There is more. The session submits the job again when this part has been written.
    More(Box<ScanJob>),
    /// All events have been sent.
    Done,
    /// The scan was stopped because it was too expensive.
    TooExpensive,
    /// The store failed.
    Failed,
}

/// An item set for negentropy. Its memory is returned to the budget when the last session drops it.
pub(crate) struct CachedItemSet {
    pub(crate) items: NegentropySet,
    pub(crate) _reservation: BudgetReservation,
}

/// Sends messages to a session. Sending never waits: replies are bounded by the limits of the session's own requests.
/// Live events are not, so their bytes are counted, and a session with too many unsent bytes is closed.
#[derive(Clone)]
pub(crate) struct SessionSender {
    sender: mpsc::UnboundedSender<SessionMessage>,
    network: Option<ClientNetwork>,
    unsent: Arc<UnsentBytes>,
}

#[derive(Default)]
struct UnsentBytes {
    bytes: AtomicUsize,
    has_overflowed: AtomicBool,
    overflow: Notify,
}

impl SessionSender {
    /// Creates the outbox of a session with a client in this network.
    pub(crate) fn new(network: Option<ClientNetwork>) -> (Self, mpsc::UnboundedReceiver<SessionMessage>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, network, unsent: Arc::default() }, receiver)
    }

    /// Network of the client. `None` for a program on this machine, which is not limited.
    pub(crate) fn network(&self) -> Option<ClientNetwork> {
        self.network
    }

    pub(crate) fn send(&self, message: SessionMessage) {
        // An error means that the session has ended.
        let _ = self.sender.send(message);
    }

    /// Whether the session has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a live event, or marks the session as too slow.
    pub(crate) fn send_live(&self, key: SubscriptionKey, json: &Arc<[u8]>) {
        let unsent_bytes = self.unsent.bytes.fetch_add(json.len(), Ordering::Relaxed) + json.len();
        if unsent_bytes <= limits::MAX_UNSENT_BYTES {
            self.send(SessionMessage::LiveEvent { key, json: json.clone() });
        } else if !self.unsent.has_overflowed.swap(true, Ordering::Relaxed) {
            self.unsent.overflow.notify_one();
        }
    }

    /// Records that live events with this many bytes have been written to the socket or dropped.
    pub(crate) fn release_live(&self, bytes: usize) {
        self.unsent.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Waits until the session has too many unsent bytes.
    pub(crate) async fn overflowed(&self) {
        self.unsent.overflow.notified().await;
    }
}

/// Appends a websocket text frame as a server sends it: final, unmasked.
pub(crate) fn push_frame(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.push(0x81);
    match len {
        0..=125 => out.push(len as u8),
        126..=0xffff => {
            out.push(126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Opcodes of websocket control frames.
pub(crate) const CLOSE: u8 = 0x8;
pub(crate) const PING: u8 = 0x9;
pub(crate) const PONG: u8 = 0xa;

/// Appends a websocket control frame as a server sends it. Its payload has at most 125 bytes.
pub(crate) fn push_control_frame(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    out.extend_from_slice(&[0x80 | opcode, payload.len() as u8]);
    out.extend_from_slice(payload);
}

/// The first bytes of every EVENT message of one subscription.
#[derive(Clone, Debug)]
pub(crate) struct EventPrefix(Bytes);

impl EventPrefix {
    pub(crate) fn new(subscription_id: &str) -> Self {
        Self(Bytes::from(message::event_head(subscription_id)))
    }

    /// Appends the frame of an EVENT message.
    pub(crate) fn push_event(&self, out: &mut Vec<u8>, json: &[u8]) {
        push_frame(out, &[&self.0, json, b"]"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_header_depends_on_the_payload_length() {
        for (len, header) in [
            (0usize, &[0x81, 0][..]),
            (125, &[0x81, 125]),
            (126, &[0x81, 126, 0, 126]),
            (65_535, &[0x81, 126, 0xff, 0xff]),
            (65_536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            push_frame(&mut out, &[&vec![b'x'; len]]);
            assert_eq!((&out[..header.len()], out.len()), (header, header.len() + len));
        }
    }

    #[test]
    fn live_events_beyond_the_limit_are_dropped_and_mark_the_session() {
        let (sender, mut receiver) = SessionSender::new(None);
        let json: Arc<[u8]> = vec![0; limits::MAX_UNSENT_BYTES / 2].into();
        for _ in 0..4 {
            sender.send_live(SubscriptionKey(1), &json);
        }
        assert!(sender.unsent.has_overflowed.load(Ordering::Relaxed));
        assert!(receiver.try_recv().is_ok() && receiver.try_recv().is_ok() && receiver.try_recv().is_err());
    }
}

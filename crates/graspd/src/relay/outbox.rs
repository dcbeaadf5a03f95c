//! What rooms send to a session, and how much of it may wait there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::nostr::message;
use grasp_core::nostr::negentropy::NegentropySet;
use tokio::sync::{Notify, mpsc};

use super::negentropy_cache::ItemSetError;
use super::query_pool::ScanJob;

/// Names one subscription of one session for the life of the process, so that what comes late for a subscription that
/// was replaced is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SubscriptionKey(pub(crate) u64);

/// Something for a session.
pub(crate) enum SessionMessage {
    /// The answer to an event that was offered: text of a message, and whether the client should be asked who it is.
    HttpResponse { text: String, challenge: bool },
    /// A part of a stored answer: whole websocket frames, and the scan if there is more to come.
    Stored { sub: SubscriptionKey, frames: Vec<u8>, next: Next },
    /// An event that has just become visible: its text.
    Live { sub: SubscriptionKey, json: Arc<[u8]> },
    /// A subscription that the live index has no room for.
    NoRoom { sub: SubscriptionKey },
    /// The answer to a COUNT, or none if it would cost too much.
    Counted { sub: SubscriptionKey, count: Option<u64> },
    /// The items of a reconciliation.
    Set { sub: SubscriptionKey, set: Result<Arc<Held>, ItemSetError> },
    /// The answer to a message of a reconciliation: text of a message, and whether the session is over.
    Reconciled { sub: SubscriptionKey, text: String, over: bool },
}

/// What follows a part of a stored answer.
pub(crate) enum Next {
    /// More, when the session has written this part.
    More(Box<ScanJob>),
    /// Nothing: all was sent.
    End,
    /// Nothing: the scan cost too much.
    TooMuch,
    /// Nothing: the store failed.
    Failed,
}

/// A set with the place it takes in the budget; the place is given back when the last holder lets go.
pub(crate) struct Held {
    pub(crate) items: NegentropySet,
    pub(crate) budget: Arc<AtomicUsize>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.fetch_sub(self.items.memory_bytes(), Ordering::Relaxed);
    }
}

/// A session's address. Sending never waits: what a session causes itself is bounded by its own limits, and live events
/// are counted; a session that lets too many of them wait is closed.
#[derive(Clone)]
pub(crate) struct SessionSender {
    sender: mpsc::UnboundedSender<SessionMessage>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    unsent_bytes: AtomicUsize,
    overflowed: AtomicBool,
    overflow: Notify,
}

impl SessionSender {
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<SessionMessage>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { sender, shared: Arc::default() }, receiver)
    }

    pub(crate) fn send(&self, letter: SessionMessage) {
        // A session that has gone needs nothing any more.
        let _ = self.sender.send(letter);
    }

    /// Whether nobody reads what is sent here any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }

    /// Sends a live event, or marks the session as too slow.
    pub(crate) fn send_live(&self, sub: SubscriptionKey, json: &Arc<[u8]>) {
        let waiting = self.shared.unsent_bytes.fetch_add(json.len(), Ordering::Relaxed) + json.len();
        if waiting <= limits::MAX_UNSENT_BYTES {
            self.send(SessionMessage::Live { sub, json: json.clone() });
        } else if !self.shared.overflowed.swap(true, Ordering::Relaxed) {
            self.shared.overflow.notify_one();
        }
    }

    /// Notes that a live event has been written to the socket, or thrown away.
    pub(crate) fn sent_live(&self, bytes: usize) {
        self.shared.unsent_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Waits until the session is too slow to be kept.
    pub(crate) async fn overflowed(&self) {
        self.shared.overflow.notified().await;
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

/// The beginning of every EVENT message of one subscription.
#[derive(Clone, Debug)]
pub(crate) struct Head(Bytes);

impl Head {
    pub(crate) fn new(sub: &str) -> Self {
        Self(Bytes::from(message::event_head(sub)))
    }

    /// Appends an EVENT message's frame.
    pub(crate) fn push_event(&self, out: &mut Vec<u8>, json: &[u8]) {
        push_frame(out, &[&self.0, json, b"]"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_three_lengths_of_the_protocol() {
        for (len, head) in [
            (0usize, &[0x81, 0][..]),
            (125, &[0x81, 125]),
            (126, &[0x81, 126, 0, 126]),
            (65_535, &[0x81, 126, 0xff, 0xff]),
            (65_536, &[0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Vec::new();
            push_frame(&mut out, &[&vec![b'x'; len]]);
            assert_eq!((&out[..head.len()], out.len()), (head, head.len() + len));
        }
    }

    #[test]
    fn a_session_that_lets_too_much_wait_is_told_once() {
        let (postbox, mut receiver) = SessionSender::new();
        let json: Arc<[u8]> = vec![0; limits::MAX_UNSENT_BYTES / 2].into();
        for _ in 0..4 {
            postbox.send_live(SubscriptionKey(1), &json);
        }
        assert!(postbox.shared.overflowed.load(Ordering::Relaxed));
        assert!(receiver.try_recv().is_ok() && receiver.try_recv().is_ok() && receiver.try_recv().is_err());
    }
}

//! Floods: messages of a relay that no request explains.
//!
//! Every relay sends some of them: pings, notices, an event again. A relay that sends more than a few of them per second
//! is disconnected and dialled again after a pause that doubles each time.

use std::collections::VecDeque;

use super::io::SubscriptionId;
use crate::limits;
use crate::nostr::event::EventId;
use crate::time::MonoTime;
use crate::token_bucket::TokenBucket;

/// Counts the unexplained messages of one connection.
#[derive(Debug)]
pub(super) struct FloodDetector {
    bucket: TokenBucket,
    is_flooded: bool,
    /// The live events that arrived last: the beginning of the id, combined with the subscription.
    recent: VecDeque<u64>,
}

impl FloodDetector {
    pub(super) fn new() -> Self {
        let bucket = TokenBucket::new(limits::RELAY_UNEXPLAINED_PER_MINUTE, limits::RELAY_UNEXPLAINED_BURST);
        Self { bucket, is_flooded: false, recent: VecDeque::new() }
    }

    /// Counts an unexplained message. Returns whether there were too many.
    pub(super) fn record(&mut self, now: MonoTime) -> bool {
        self.is_flooded |= !self.bucket.take(now);
        self.is_flooded
    }

    /// Records an event of a live subscription. Returns whether it has arrived there shortly before.
    pub(super) fn record_live_event(&mut self, sub: SubscriptionId, id: EventId) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = id.0;
        let delivery = u64::from_be_bytes([a, b, c, d, e, f, g, h]) ^ sub.0;
        if self.recent.contains(&delivery) {
            return true;
        }
        if self.recent.len() >= limits::RECENT_LIVE_EVENTS_PER_RELAY {
            self.recent.pop_front();
        }
        self.recent.push_back(delivery);
        false
    }

    /// Whether there were too many unexplained messages.
    pub(super) fn is_flooded(&self) -> bool {
        self.is_flooded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_unexplained_messages_are_no_flood() {
        let mut detector = FloodDetector::new();
        let minute = |nth: u64| MonoTime(nth * 60_000);
        for nth in 0..10 {
            let flooded = (0..limits::RELAY_UNEXPLAINED_PER_MINUTE).any(|_| detector.record(minute(nth)));
            assert!(!flooded, "in minute {nth}");
        }
        let accepted = (0..).take_while(|_| !detector.record(minute(100))).count();
        assert_eq!(accepted as u64, limits::RELAY_UNEXPLAINED_BURST);
        assert!(detector.is_flooded() && detector.record(minute(200)), "the connection must end");
    }

    #[test]
    fn events_are_repeated_only_in_the_same_subscription() {
        let mut detector = FloodDetector::new();
        let (a, b) = (EventId([1; 32]), EventId([2; 32]));
        let (first, second) = (SubscriptionId(1), SubscriptionId(2));
        let deliveries = [(first, a), (second, a), (first, b), (first, a), (second, b), (second, b)];
        let repeated = deliveries.map(|(sub, id)| detector.record_live_event(sub, id));
        assert_eq!(repeated, [false, false, false, true, false, true]);
    }
}

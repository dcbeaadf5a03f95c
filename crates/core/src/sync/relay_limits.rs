//! Limits of a relay: computes the limits that sync observes on a connection.
//!
//! See `docs/design/sync.md#limits-per-relay`.

use super::relay_record::LearnedLimits;
use crate::limits;
use crate::nostr::nip11::Nip11Info;

/// Limits of one relay connection. Computed when the connection is established, and again whenever a limit was learned
/// from a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayLimits {
    /// Concurrent subscriptions and reconciliations. Many relays count them together.
    pub max_subscriptions: u32,
    /// Part of `max_subscriptions` that live sync may use.
    pub max_live_subscriptions: u32,
    /// Part of `max_subscriptions` that is kept free, so that consolidation can open a replacement before it closes the
    /// old subscriptions.
    pub reserved_subscriptions: u32,
    /// Concurrent requests of historic sync, as far as subscriptions are free.
    pub max_requests: u32,
    /// Concurrent reconciliations.
    pub max_negentropy: u32,
    /// Filters of one request.
    pub max_filters: u32,
    /// The `limit` of a page.
    pub page_size: u32,
    /// Bytes of one message, minus a safety margin.
    pub message_bytes: usize,
    /// Bytes of the filters of one request.
    pub req_bytes: usize,
    /// Bytes of the tag values of one filter.
    pub filter_bytes: usize,
    /// Bytes of all live subscriptions together.
    pub live_bytes: usize,
    /// Bytes of a negentropy message before hex encoding, which doubles it. `None` if the message limit of the relay is
    /// too small for negentropy; then pages are used.
    pub frame_bytes: Option<usize>,
}

impl RelayLimits {
    /// Computes the limits from those that the relay states, those that were learned, and our own bounds.
    #[must_use]
    pub fn new(nip11: Option<&Nip11Info>, learned: &LearnedLimits) -> Self {
        let stated = |field: fn(&Nip11Info) -> Option<u64>| nip11.and_then(field);
        let slots = stated(|nip11| nip11.max_subscriptions).map_or(limits::DEFAULT_RELAY_SUBSCRIPTIONS, to_u32);
        let slots = slots.min(learned.max_subscriptions.unwrap_or(u32::MAX)).clamp(1, limits::MAX_RELAY_SUBSCRIPTIONS);
        let reserve = limits::RESERVED_RELAY_SUBSCRIPTIONS.min(slots.saturating_sub(2));
        let filters = stated(|nip11| nip11.max_filters).map_or(u32::MAX, to_u32);
        // A `max_limit` of zero would mean that no events are served. In practice the field was just not filled in.
        let page = stated(|nip11| nip11.max_limit).filter(|most| *most > 0).map_or(u32::MAX, to_u32);
        let message_bytes = stated(|nip11| nip11.max_message_length)
            .map_or(limits::DEFAULT_RELAY_MESSAGE_BYTES, to_usize)
            .clamp(limits::MIN_RELAY_MESSAGE_BYTES, limits::MAX_RELAY_MESSAGE_BYTES)
            - limits::RELAY_MESSAGE_MARGIN_BYTES;
        let live_bytes = [stated(|nip11| nip11.max_subscription_bytes), learned.subscription_bytes];
        let budget = Self {
            max_subscriptions: slots,
            max_live_subscriptions: slots.saturating_sub(reserve + 1),
            reserved_subscriptions: reserve,
            max_requests: limits::MAX_TRANSIENT_REQUESTS.min(slots - reserve),
            max_negentropy: if slots < limits::DEFAULT_RELAY_SUBSCRIPTIONS { 1 } else { 2 },
            max_filters: filters.min(learned.max_filters.unwrap_or(u32::MAX)).clamp(1, limits::MAX_FILTERS_PER_REQUEST),
            page_size: page.clamp(1, limits::SYNC_PAGE_EVENTS),
            message_bytes,
            req_bytes: limits::MAX_REQUEST_FILTER_BYTES.min(message_bytes),
            filter_bytes: limits::MAX_FILTER_TAG_BYTES.min(message_bytes),
            live_bytes: live_bytes.into_iter().flatten().min().map_or(usize::MAX, to_usize),
            frame_bytes: None,
        };
        // Only the first message of a reconciliation contains a filter, and the negentropy payload of that message is
        // at most a kilobyte.
        Self { frame_bytes: budget.frame_bytes_beside(0), ..budget }
    }

    /// Returns the bytes of a negentropy message that is sent together with a filter of `filter_bytes`, or `None` if
    /// the message limit is too small.
    #[must_use]
    pub fn frame_bytes_beside(&self, filter_bytes: usize) -> Option<usize> {
        let frame = self.message_bytes.saturating_sub(filter_bytes) / 2;
        (frame >= limits::MIN_NEGENTROPY_FRAME_BYTES).then(|| frame.min(limits::NEGENTROPY_FRAME_BYTES))
    }
}

fn to_u32(stated: u64) -> u32 {
    u32::try_from(stated).unwrap_or(u32::MAX)
}

fn to_usize(stated: u64) -> usize {
    usize::try_from(stated).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stating(limitation: &str) -> Nip11Info {
        Nip11Info::parse(&format!("{{\"limitation\":{{{limitation}}}}}")).expect("an object")
    }

    fn of(limitation: &str) -> RelayLimits {
        RelayLimits::new(Some(&stating(limitation)), &LearnedLimits::default())
    }

    #[test]
    fn defaults_apply_without_a_document() {
        let budget = RelayLimits::new(None, &LearnedLimits::default());
        let expected = RelayLimits {
            max_subscriptions: 20,
            max_live_subscriptions: 17,
            reserved_subscriptions: 2,
            max_requests: 5,
            max_negentropy: 2,
            max_filters: 10,
            page_size: 500,
            message_bytes: 131_072 - 512,
            req_bytes: 98_304,
            filter_bytes: 32_768,
            live_bytes: usize::MAX,
            frame_bytes: Some(60_000),
        };
        assert_eq!(budget, expected);
        assert_eq!(of(""), expected);
    }

    #[test]
    fn subscriptions_are_divided_between_live_and_historic_sync() {
        for (stated, slots, live, reserve, transient, negs) in [
            (0, 1, 0, 0, 1, 1),
            (1, 1, 0, 0, 1, 1),
            (2, 2, 1, 0, 2, 1),
            (3, 3, 1, 1, 2, 1),
            (4, 4, 1, 2, 2, 1),
            (5, 5, 2, 2, 3, 1),
            (10, 10, 7, 2, 5, 1),
            (19, 19, 16, 2, 5, 1),
            (20, 20, 17, 2, 5, 2),
            (200, 200, 197, 2, 5, 2),
            (500, 500, 497, 2, 5, 2),
            (u64::MAX, 500, 497, 2, 5, 2),
        ] {
            let budget = of(&format!("\"max_subscriptions\":{stated}"));
            assert_eq!(
                (
                    budget.max_subscriptions,
                    budget.max_live_subscriptions,
                    budget.reserved_subscriptions,
                    budget.max_requests,
                    budget.max_negentropy
                ),
                (slots, live, reserve, transient, negs),
                "{stated}"
            );
            assert!(
                budget.max_live_subscriptions + budget.reserved_subscriptions < budget.max_subscriptions,
                "one is left for requests"
            );
        }
    }

    #[test]
    fn filter_and_page_limits_are_clamped() {
        for (limitation, filters, page) in [
            ("\"max_filters\":3,\"max_limit\":300", 3, 300),
            ("\"max_filters\":0,\"max_limit\":0", 1, 500),
            ("\"max_filters\":200,\"max_limit\":5000", 10, 500),
            ("\"max_limit\":1", 10, 1),
        ] {
            let budget = of(limitation);
            assert_eq!((budget.max_filters, budget.page_size), (filters, page), "{limitation}");
        }
    }

    #[test]
    fn message_limit_bounds_all_byte_limits() {
        for (stated, message, req, filter, frame) in [
            (0, 3_584, 3_584, 3_584, None),
            (8_703, 8_191, 8_191, 8_191, None),
            (8_704, 8_192, 8_192, 8_192, Some(4_096)),
            (16_384, 15_872, 15_872, 15_872, Some(7_936)),
            (65_536, 65_024, 65_024, 32_768, Some(32_512)),
            (131_072, 130_560, 98_304, 32_768, Some(60_000)),
            (u64::MAX, 1_048_064, 98_304, 32_768, Some(60_000)),
        ] {
            let budget = of(&format!("\"max_message_length\":{stated}"));
            assert_eq!(
                (budget.message_bytes, budget.req_bytes, budget.filter_bytes, budget.frame_bytes),
                (message, req, filter, frame),
                "{stated}"
            );
        }
        let budget = of("\"max_message_length\":65536");
        assert_eq!(budget.frame_bytes_beside(32_768), Some(16_128));
        assert_eq!(budget.frame_bytes_beside(56_832), Some(4_096));
        assert_eq!(budget.frame_bytes_beside(56_833), None);
        assert_eq!(budget.frame_bytes_beside(usize::MAX), None);
    }

    #[test]
    fn learned_limits_lower_the_stated_ones() {
        let learned = LearnedLimits {
            max_subscriptions: Some(4),
            max_filters: Some(2),
            subscription_bytes: Some(1_048_576),
            ..LearnedLimits::default()
        };
        let nip11 = stating("\"max_subscriptions\":50,\"max_filters\":5,\"max_subscription_bytes\":5242880");
        let budget = RelayLimits::new(Some(&nip11), &learned);
        assert_eq!(
            (budget.max_subscriptions, budget.max_live_subscriptions, budget.max_filters, budget.live_bytes),
            (4, 1, 2, 1_048_576)
        );
        let zero = LearnedLimits {
            max_subscriptions: Some(0),
            max_filters: Some(0),
            subscription_bytes: Some(0),
            ..LearnedLimits::default()
        };
        let budget = RelayLimits::new(None, &zero);
        assert_eq!(
            (budget.max_subscriptions, budget.max_live_subscriptions, budget.max_filters, budget.live_bytes),
            (1, 0, 1, 0)
        );
        let lax = LearnedLimits {
            max_subscriptions: Some(900),
            max_filters: Some(900),
            subscription_bytes: Some(u64::MAX),
            ..zero
        };
        let budget = RelayLimits::new(Some(&nip11), &lax);
        assert_eq!((budget.max_subscriptions, budget.max_filters, budget.live_bytes), (50, 5, 5_242_880));
    }
}

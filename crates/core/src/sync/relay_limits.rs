//! Limits of a relay: what its NIP-11 document states, what its rejections taught, and the limits of a connection that
//! follow from both.
//!
//! See `docs/design/sync.md#limits-per-relay`.

use super::rejection_text::RelayRejection;
use super::relay_record::{LearnedLimits, LiveFilterForm};
use crate::limits;
use crate::nostr::nip11::Nip11Info;
use crate::time::Now;

/// Limits of one relay: those that it states in its NIP-11 document and those that were learned from its rejections.
#[derive(Debug)]
pub(super) struct RelayLimits {
    learned: LearnedLimits,
    /// The document of the current connection.
    nip11: Option<Nip11Info>,
    current: ConnectionLimits,
    /// Whether the missing support of negentropy has been noted.
    warned_no_negentropy: bool,
}

impl RelayLimits {
    pub(super) fn new(learned: LearnedLimits) -> Self {
        Self { learned, nip11: None, current: ConnectionLimits::new(None, &learned), warned_no_negentropy: false }
    }

    /// Starts a connection with the NIP-11 document of the relay, or ends it with `None`.
    pub(super) fn set_document(&mut self, nip11: Option<Nip11Info>) {
        self.current = ConnectionLimits::new(nip11.as_ref(), &self.learned);
        self.nip11 = nip11;
    }

    /// Forgets what was learned, from the next connection on.
    pub(super) fn forget(&mut self) {
        self.learned = LearnedLimits::default();
    }

    /// Returns the limits of the connection.
    pub(super) fn current(&self) -> &ConnectionLimits {
        &self.current
    }

    pub(super) fn learned(&self) -> LearnedLimits {
        self.learned
    }

    pub(super) fn live_form(&self) -> LiveFilterForm {
        self.learned.live_form
    }

    pub(super) fn is_grasp(&self) -> bool {
        self.nip11.as_ref().is_some_and(|nip11| nip11.is_grasp)
    }

    /// Whether the relay states that it requires authentication.
    pub(super) fn states_auth(&self) -> bool {
        self.nip11.as_ref().is_some_and(|nip11| nip11.auth_required == Some(true))
    }

    /// Whether the relay states that it supports negentropy and has never rejected it.
    pub(super) fn has_reliable_negentropy(&self) -> bool {
        self.nip11.as_ref().and_then(|nip11| nip11.negentropy) == Some(true) && self.learned.no_negentropy_at.is_none()
    }

    /// Whether negentropy may be used on the connection.
    pub(super) fn can_use_negentropy(&self, now: Now) -> bool {
        let is_denied = self
            .learned
            .no_negentropy_at
            .is_some_and(|at| now.wall.secs_since(at) < limits::NO_NEGENTROPY_MEMORY_SECS && now.wall >= at);
        let is_stated_unsupported = self.nip11.as_ref().and_then(|nip11| nip11.negentropy) == Some(false);
        !is_denied && !is_stated_unsupported && self.current.frame_bytes.is_some()
    }

    /// Records that the relay does not support negentropy. Returns whether this is to be noted, once per relay.
    pub(super) fn disable_negentropy(&mut self, now: Now) -> bool {
        self.learned.no_negentropy_at = Some(now.wall);
        !std::mem::replace(&mut self.warned_no_negentropy, true)
    }

    /// Whether the relay may be followed without tags, which only helps with a GRASP server.
    pub(super) fn can_follow_widely(&self) -> bool {
        self.is_grasp() && !self.learned.wide_disabled
    }

    /// Records that the relay must not be followed without tags.
    pub(super) fn disable_wide(&mut self) {
        self.learned.wide_disabled = true;
    }

    /// Learns a limit from a rejection. `open` is the number of open subscriptions, and `open_bytes` the size of
    /// all subscriptions including the rejected one.
    pub(super) fn learn(&mut self, rejection: RelayRejection, open: u32, open_bytes: u64) {
        let learned = &mut self.learned;
        match rejection {
            RelayRejection::TooManySubscriptions => {
                let fewer = open.max(1).min(self.current.max_subscriptions.saturating_sub(1).max(1));
                learned.max_subscriptions = Some(learned.max_subscriptions.map_or(fewer, |slots| slots.min(fewer)));
            }
            RelayRejection::SubscriptionBytes(bytes) => {
                let known = learned.subscription_bytes.unwrap_or(u64::MAX);
                if bytes < known {
                    learned.subscription_bytes = Some(bytes);
                } else if open_bytes <= known {
                    // The relay rejects subscriptions within its limit, so it counts differently.
                    learned.subscription_bytes = Some((open_bytes / 2).max(1));
                }
            }
            RelayRejection::TooManyFilters => {
                learned.max_filters = Some(match self.current.max_filters {
                    6.. => 5,
                    3.. => 2,
                    _ => 1,
                });
            }
            RelayRejection::LimitZeroRejected => {
                learned.live_form = match learned.live_form {
                    LiveFilterForm::Zero => LiveFilterForm::One,
                    LiveFilterForm::One | LiveFilterForm::Since => LiveFilterForm::Since,
                };
            }
            _ => {}
        }
        self.current = ConnectionLimits::new(self.nip11.as_ref(), &self.learned);
    }
}

/// Limits of one relay connection. Computed when the connection is established, and again whenever a limit was learned
/// from a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionLimits {
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
    /// Bytes of all subscriptions together.
    pub subscription_bytes: usize,
    /// Part of `subscription_bytes` that live sync may use.
    pub live_bytes: usize,
    /// Bytes of a negentropy message before hex encoding, which doubles it. `None` if the message limit of the relay is
    /// too small for negentropy; then pages are used.
    pub frame_bytes: Option<usize>,
}

impl ConnectionLimits {
    /// Computes the limits from those that the relay states, those that were learned, and our own bounds.
    #[must_use]
    pub fn new(nip11: Option<&Nip11Info>, learned: &LearnedLimits) -> Self {
        let stated = |field: fn(&Nip11Info) -> Option<u64>| nip11.and_then(field);
        let slots = stated(|nip11| nip11.max_subscriptions).map_or(limits::DEFAULT_RELAY_SUBSCRIPTIONS, to_u32);
        let slots = slots.min(learned.max_subscriptions.unwrap_or(u32::MAX)).clamp(1, limits::MAX_RELAY_SUBSCRIPTIONS);
        // With few subscriptions one is enough: merged live sets replace each other one by one.
        let reserve = if slots <= limits::FEW_RELAY_SUBSCRIPTIONS { 1 } else { limits::RESERVED_RELAY_SUBSCRIPTIONS };
        let reserve = reserve.min(slots.saturating_sub(2));
        let filters = stated(|nip11| nip11.max_filters).map_or(u32::MAX, to_u32);
        // A `max_limit` of zero would mean that no events are served. In practice the field was just not filled in.
        let page = stated(|nip11| nip11.max_limit).filter(|most| *most > 0).map_or(u32::MAX, to_u32);
        let message_bytes = stated(|nip11| nip11.max_message_length)
            .map_or(limits::DEFAULT_RELAY_MESSAGE_BYTES, to_usize)
            .clamp(limits::MIN_RELAY_MESSAGE_BYTES, limits::MAX_RELAY_MESSAGE_BYTES)
            - limits::RELAY_MESSAGE_MARGIN_BYTES;
        let subscription_bytes = [stated(|nip11| nip11.max_subscription_bytes), learned.subscription_bytes];
        let subscription_bytes = subscription_bytes.into_iter().flatten().min().map_or(usize::MAX, to_usize);
        // Live subscriptions leave space for one request of historic sync.
        let req_bytes = limits::MAX_REQUEST_FILTER_BYTES.min(message_bytes).min(subscription_bytes / 2);
        let budget = Self {
            max_subscriptions: slots,
            max_live_subscriptions: slots.saturating_sub(reserve + 1),
            reserved_subscriptions: reserve,
            max_requests: limits::MAX_TRANSIENT_REQUESTS.min(slots - reserve),
            max_negentropy: if slots < limits::DEFAULT_RELAY_SUBSCRIPTIONS { 1 } else { 2 },
            max_filters: filters.min(learned.max_filters.unwrap_or(u32::MAX)).clamp(1, limits::MAX_FILTERS_PER_REQUEST),
            page_size: page.clamp(1, limits::SYNC_PAGE_EVENTS),
            message_bytes,
            req_bytes,
            filter_bytes: limits::MAX_FILTER_TAG_BYTES.min(req_bytes),
            subscription_bytes,
            live_bytes: subscription_bytes - req_bytes,
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

    fn of(limitation: &str) -> ConnectionLimits {
        ConnectionLimits::new(Some(&stating(limitation)), &LearnedLimits::default())
    }

    #[test]
    fn defaults_apply_without_a_document() {
        let budget = ConnectionLimits::new(None, &LearnedLimits::default());
        let expected = ConnectionLimits {
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
            subscription_bytes: usize::MAX,
            live_bytes: usize::MAX - 98_304,
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
            (4, 4, 2, 1, 3, 1),
            (5, 5, 3, 1, 4, 1),
            (6, 6, 3, 2, 4, 1),
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
        let budget = ConnectionLimits::new(Some(&nip11), &learned);
        assert_eq!(
            (budget.max_subscriptions, budget.max_live_subscriptions, budget.max_filters, budget.subscription_bytes),
            (4, 2, 2, 1_048_576)
        );
        let zero = LearnedLimits {
            max_subscriptions: Some(0),
            max_filters: Some(0),
            subscription_bytes: Some(0),
            ..LearnedLimits::default()
        };
        let budget = ConnectionLimits::new(None, &zero);
        assert_eq!(
            (budget.max_subscriptions, budget.max_live_subscriptions, budget.max_filters, budget.subscription_bytes),
            (1, 0, 1, 0)
        );
        let lax = LearnedLimits {
            max_subscriptions: Some(900),
            max_filters: Some(900),
            subscription_bytes: Some(u64::MAX),
            ..zero
        };
        let budget = ConnectionLimits::new(Some(&nip11), &lax);
        assert_eq!((budget.max_subscriptions, budget.max_filters, budget.subscription_bytes), (50, 5, 5_242_880));
    }

    #[test]
    fn limits_are_learned_from_rejections() {
        let mut limits = RelayLimits::new(LearnedLimits::default());
        limits.set_document(Some(stating("\"max_subscriptions\":10")));
        limits.learn(RelayRejection::TooManySubscriptions, 4, 0);
        assert_eq!(limits.current().max_subscriptions, 4);
        limits.learn(RelayRejection::TooManySubscriptions, 9, 0);
        assert_eq!(limits.current().max_subscriptions, 3, "fewer than before");
        for max_filters in [5, 2, 1, 1] {
            limits.learn(RelayRejection::TooManyFilters, 0, 0);
            assert_eq!(limits.current().max_filters, max_filters);
        }
        for (stated, open_bytes, learned) in
            [(1_000, 500, 1_000), (2_000, 5_000, 1_000), (2_000, 500, 250), (2_000, 1, 1)]
        {
            limits.learn(RelayRejection::SubscriptionBytes(stated), 0, open_bytes);
            assert_eq!(limits.current().subscription_bytes, learned);
        }
        for form in [LiveFilterForm::One, LiveFilterForm::Since, LiveFilterForm::Since] {
            limits.learn(RelayRejection::LimitZeroRejected, 0, 0);
            assert_eq!(limits.live_form(), form);
        }
        limits.set_document(None);
        assert_eq!(limits.current().max_subscriptions, 3, "learned limits outlive the connection");
    }

    #[test]
    fn rejected_negentropy_is_tried_again_later() {
        let now = |secs| Now { wall: crate::time::Timestamp(1_700_000_000 + secs), ..Now::default() };
        let mut limits = RelayLimits::new(LearnedLimits::default());
        assert!(limits.can_use_negentropy(now(0)));
        assert!(limits.disable_negentropy(now(0)), "noted");
        assert!(!limits.disable_negentropy(now(0)), "once");
        assert!(!limits.can_use_negentropy(now(limits::NO_NEGENTROPY_MEMORY_SECS - 1)));
        assert!(limits.can_use_negentropy(now(limits::NO_NEGENTROPY_MEMORY_SECS)));
        limits.set_document(Nip11Info::parse("{\"supported_nips\":[1]}"));
        assert!(!limits.can_use_negentropy(now(limits::NO_NEGENTROPY_MEMORY_SECS)));
    }
}

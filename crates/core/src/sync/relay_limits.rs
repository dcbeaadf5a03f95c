//! What a relay says about itself (NIP-11), and what may be asked of it because of that.

use serde_json::{Map, Value};

use super::relay_record::Learned;
use crate::limits;

/// A relay's NIP-11 document, as far as sync and hunt care. Documents lie and are malformed: a field of the wrong type is
/// as good as absent, and nothing else is lost by it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Terms {
    /// Subscriptions of one connection.
    pub max_subscriptions: Option<u64>,
    /// Filters of one request.
    pub max_filters: Option<u64>,
    /// The largest `limit` that is honoured.
    pub max_limit: Option<u64>,
    /// The page without a `limit`.
    pub default_limit: Option<u64>,
    /// Bytes of one message.
    pub max_message_length: Option<u64>,
    /// Bytes of a subscription id.
    pub max_subid_length: Option<u64>,
    /// Bytes of all subscriptions of one connection. Not of NIP-11; servers of our kind say it.
    pub max_subscription_bytes: Option<u64>,
    /// Nothing is served without authentication.
    pub auth_required: Option<bool>,
    /// Nothing is taken, or nothing is served, without payment.
    pub payment_required: Option<bool>,
    /// Not everything is taken.
    pub restricted_writes: Option<bool>,
    /// Whether it says that it speaks negentropy. `None` if it does not list what it speaks.
    pub negentropy: Option<bool>,
    /// It is a GRASP server.
    pub is_grasp: bool,
    /// Which server this is, under whatever name. Ours means that it is us.
    pub instance: Option<String>,
    /// What may be asked of its git.
    pub git: GitTerms,
}

/// What a server says about git on the same origin: `limitation.grasp_git` (rule M20). Zero means that it wants none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GitTerms {
    /// Fetches at once, at most [`limits::MAX_READ_GIT_CONCURRENT`].
    pub concurrent: Option<u32>,
    /// Fetches in a minute, at most [`limits::MAX_READ_GIT_PER_MINUTE`].
    pub per_minute: Option<u32>,
}

impl Terms {
    /// Reads a document. `None` if it is no JSON object or larger than [`limits::MAX_TERMS_BYTES`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > limits::MAX_TERMS_BYTES {
            return None;
        }
        let Value::Object(document) = serde_json::from_str(text).ok()? else { return None };
        let empty = Map::new();
        let limitation = document.get("limitation").and_then(Value::as_object).unwrap_or(&empty);
        let number = |name: &str| limitation.get(name).and_then(Value::as_u64);
        let flag = |name: &str| limitation.get(name).and_then(Value::as_bool);
        let list = |name: &str| document.get(name).and_then(Value::as_array);
        Some(Self {
            max_subscriptions: number("max_subscriptions"),
            max_filters: number("max_filters"),
            max_limit: number("max_limit"),
            default_limit: number("default_limit"),
            max_message_length: number("max_message_length"),
            max_subid_length: number("max_subid_length"),
            max_subscription_bytes: number("max_subscription_bytes"),
            auth_required: flag("auth_required"),
            payment_required: flag("payment_required"),
            restricted_writes: flag("restricted_writes"),
            negentropy: list("supported_nips").map(|nips| nips.iter().any(is_77)),
            is_grasp: list("supported_grasps").is_some_and(|grasps| grasps.iter().any(is_grasp_01)),
            instance: document
                .get("instance")
                .and_then(Value::as_str)
                .filter(|name| is_instance(name))
                .map(str::to_owned),
            git: limitation.get("grasp_git").and_then(Value::as_object).map(GitTerms::read).unwrap_or_default(),
        })
    }
}

impl GitTerms {
    fn read(git: &Map<String, Value>) -> Self {
        let number = |name: &str, most: u32| {
            let stated = git.get(name).and_then(Value::as_u64)?;
            Some(u32::try_from(stated).unwrap_or(most).min(most))
        };
        Self {
            concurrent: number("concurrent", limits::MAX_READ_GIT_CONCURRENT),
            per_minute: number("per_minute", limits::MAX_READ_GIT_PER_MINUTE),
        }
    }
}

/// Some documents list the numbers as texts.
fn is_77(nip: &Value) -> bool {
    nip.as_u64() == Some(77) || nip.as_str() == Some("77")
}

fn is_grasp_01(grasp: &Value) -> bool {
    grasp.as_str().is_some_and(|grasp| grasp.eq_ignore_ascii_case("GRASP-01"))
}

fn is_instance(name: &str) -> bool {
    (1..=limits::MAX_INSTANCE_BYTES).contains(&name.len())
}

/// What may be asked of one connection (rules B6, M5). Made when it stands and whenever the relay has taught us something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Subscriptions and reconciliations at once: many relays count them together.
    pub slots: u32,
    /// Of those, the ones that live subscriptions may take.
    pub live: u32,
    /// Of those, the ones that are kept free: a live set is rebuilt through them.
    pub reserve: u32,
    /// Requests at once beside the live subscriptions, as far as slots are free.
    pub transient: u32,
    /// Reconciliations at once.
    pub negs: u32,
    /// Filters of one request.
    pub filters: u32,
    /// The `limit` of a page.
    pub page: u32,
    /// Bytes of one message, our margin taken off.
    pub message_bytes: usize,
    /// Bytes of the filters of one request.
    pub req_bytes: usize,
    /// Bytes of the tag values of one filter.
    pub filter_bytes: usize,
    /// Bytes of all live subscriptions together.
    pub live_bytes: usize,
    /// Bytes of a negentropy message before hex doubles it. `None`: its messages are too small, and pages are used.
    pub frame: Option<usize>,
}

impl Budget {
    /// What the relay states, bounded by what we dare and by what it has refused before.
    #[must_use]
    pub fn of(terms: Option<&Terms>, learned: &Learned) -> Self {
        let stated = |field: fn(&Terms) -> Option<u64>| terms.and_then(field);
        let slots = stated(|terms| terms.max_subscriptions).map_or(limits::SYNC_SLOTS, to_u32);
        let slots = slots.min(learned.slots.unwrap_or(u32::MAX)).clamp(1, limits::MAX_SYNC_SLOTS);
        let reserve = limits::SYNC_RESERVE_SLOTS.min(slots.saturating_sub(2));
        let filters = stated(|terms| terms.max_filters).map_or(u32::MAX, to_u32);
        // A cap of zero would mean that nothing is served; it means that nobody has filled in the field.
        let page = stated(|terms| terms.max_limit).filter(|most| *most > 0).map_or(u32::MAX, to_u32);
        let message_bytes = stated(|terms| terms.max_message_length)
            .map_or(limits::SYNC_MESSAGE_BYTES, to_usize)
            .clamp(limits::MIN_SYNC_MESSAGE_BYTES, limits::MAX_SYNC_MESSAGE_BYTES)
            - limits::SYNC_MESSAGE_MARGIN;
        let live_bytes = [stated(|terms| terms.max_subscription_bytes), learned.subscription_bytes];
        let budget = Self {
            slots,
            live: slots.saturating_sub(reserve + 1),
            reserve,
            transient: limits::SYNC_TRANSIENT.min(slots - reserve),
            negs: if slots < limits::SYNC_SLOTS { 1 } else { 2 },
            filters: filters.min(learned.filters.unwrap_or(u32::MAX)).clamp(1, limits::SYNC_FILTERS),
            page: page.clamp(1, limits::SYNC_PAGE),
            message_bytes,
            req_bytes: limits::SYNC_REQ_BYTES.min(message_bytes),
            filter_bytes: limits::SYNC_FILTER_BYTES.min(message_bytes),
            live_bytes: live_bytes.into_iter().flatten().min().map_or(usize::MAX, to_usize),
            frame: None,
        };
        // Only the first message of a reconciliation has a filter beside it, and that one is a kilobyte at most.
        Self { frame: budget.frame_beside(0), ..budget }
    }

    /// Bytes of a negentropy message that shares its envelope with a filter of this many bytes (rule M5).
    #[must_use]
    pub fn frame_beside(&self, filter_bytes: usize) -> Option<usize> {
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

    fn stating(limitation: &str) -> Terms {
        Terms::parse(&format!("{{\"limitation\":{{{limitation}}}}}")).expect("an object")
    }

    fn of(limitation: &str) -> Budget {
        Budget::of(Some(&stating(limitation)), &Learned::default())
    }

    #[test]
    fn a_whole_document() {
        let terms = Terms::parse(
            r#"{"name":"x","supported_nips":[1,11,77],"supported_grasps":["GRASP-06","GRASP-01"],"instance":"ab12",
            "limitation":{"max_subscriptions":50,"max_filters":20,"max_limit":1000,"default_limit":500,
            "max_message_length":524288,"max_subid_length":64,"max_subscription_bytes":5242880,"auth_required":false,
            "payment_required":false,"restricted_writes":true,"grasp_git":{"concurrent":8,"per_minute":120}}}"#,
        );
        let expected = Terms {
            max_subscriptions: Some(50),
            max_filters: Some(20),
            max_limit: Some(1_000),
            default_limit: Some(500),
            max_message_length: Some(524_288),
            max_subid_length: Some(64),
            max_subscription_bytes: Some(5_242_880),
            auth_required: Some(false),
            payment_required: Some(false),
            restricted_writes: Some(true),
            negentropy: Some(true),
            is_grasp: true,
            instance: Some("ab12".to_owned()),
            git: GitTerms { concurrent: Some(8), per_minute: Some(120) },
        };
        assert_eq!(terms, Some(expected));
    }

    #[test]
    fn wrong_types_cost_only_their_field() {
        let terms = Terms::parse(
            r#"{"supported_nips":"77","supported_grasps":{"GRASP-01":true},"instance":7,
            "limitation":{"max_subscriptions":"50","max_filters":-1,"max_limit":1.5,"default_limit":null,
            "max_message_length":[1],"max_subid_length":64,"auth_required":"no","grasp_git":{"concurrent":true,"per_minute":9}}}"#,
        )
        .expect("an object");
        let git = GitTerms { concurrent: None, per_minute: Some(9) };
        assert_eq!(terms, Terms { max_subid_length: Some(64), git, ..Terms::default() });
        for odd in [r#"{"limitation":7}"#, r#"{"limitation":null}"#, r#"{"limitation":{"grasp_git":[]}}"#, "{}"] {
            assert_eq!(Terms::parse(odd), Some(Terms::default()), "{odd}");
        }
    }

    #[test]
    fn what_is_no_document() {
        let large = format!("{{\"name\":\"{}\"}}", "x".repeat(limits::MAX_TERMS_BYTES));
        let deep = "[".repeat(100_000);
        for text in ["", "null", "[]", "7", "<html>", "{\"name\":", large.as_str(), deep.as_str()] {
            assert_eq!(Terms::parse(text), None);
        }
    }

    #[test]
    fn lists_and_names() {
        let negentropy =
            |nips: &str| Terms::parse(&format!("{{\"supported_nips\":{nips}}}")).expect("an object").negentropy;
        assert_eq!(negentropy("[1,77]"), Some(true));
        assert_eq!(negentropy("[\"1\",\"77\"]"), Some(true));
        assert_eq!(negentropy("[[77],7,770,\"NIP-77\"]"), Some(false));
        assert_eq!(negentropy("[]"), Some(false));
        assert_eq!(negentropy("77"), None);
        assert!(!Terms::parse(r#"{"supported_grasps":["GRASP-06"]}"#).expect("an object").is_grasp);
        let long = "x".repeat(limits::MAX_INSTANCE_BYTES + 1);
        for name in ["", long.as_str()] {
            assert_eq!(Terms::parse(&format!("{{\"instance\":\"{name}\"}}")).expect("an object").instance, None);
        }
    }

    #[test]
    fn what_is_stated_about_git_is_read_within_bounds() {
        let git = |text: &str| stating(&format!("\"grasp_git\":{text}")).git;
        for (text, concurrent, per_minute) in [
            (r#"{"concurrent":1000,"per_minute":18446744073709551615}"#, Some(64), Some(6_000)),
            (r#"{"concurrent":1,"per_minute":0}"#, Some(1), Some(0)),
            (r#"{"concurrent":-1}"#, None, None),
            ("[]", None, None),
        ] {
            assert_eq!(git(text), GitTerms { concurrent, per_minute }, "{text}");
        }
    }

    #[test]
    fn a_silent_relay() {
        let budget = Budget::of(None, &Learned::default());
        let expected = Budget {
            slots: 20,
            live: 17,
            reserve: 2,
            transient: 5,
            negs: 2,
            filters: 10,
            page: 500,
            message_bytes: 131_072 - 512,
            req_bytes: 98_304,
            filter_bytes: 32_768,
            live_bytes: usize::MAX,
            frame: Some(60_000),
        };
        assert_eq!(budget, expected);
        assert_eq!(of(""), expected);
    }

    #[test]
    fn slots_are_shared_out() {
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
                (budget.slots, budget.live, budget.reserve, budget.transient, budget.negs),
                (slots, live, reserve, transient, negs),
                "{stated}"
            );
            assert!(budget.live + budget.reserve < budget.slots, "one is left for requests");
        }
    }

    #[test]
    fn filters_and_pages() {
        for (limitation, filters, page) in [
            ("\"max_filters\":3,\"max_limit\":300", 3, 300),
            ("\"max_filters\":0,\"max_limit\":0", 1, 500),
            ("\"max_filters\":200,\"max_limit\":5000", 10, 500),
            ("\"max_limit\":1", 10, 1),
        ] {
            let budget = of(limitation);
            assert_eq!((budget.filters, budget.page), (filters, page), "{limitation}");
        }
    }

    #[test]
    fn message_bytes_bound_everything() {
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
                (budget.message_bytes, budget.req_bytes, budget.filter_bytes, budget.frame),
                (message, req, filter, frame),
                "{stated}"
            );
        }
        let budget = of("\"max_message_length\":65536");
        assert_eq!(budget.frame_beside(32_768), Some(16_128));
        assert_eq!(budget.frame_beside(56_832), Some(4_096));
        assert_eq!(budget.frame_beside(56_833), None);
        assert_eq!(budget.frame_beside(usize::MAX), None);
    }

    #[test]
    fn what_it_has_taught_us_counts() {
        let learned =
            Learned { slots: Some(4), filters: Some(2), subscription_bytes: Some(1_048_576), ..Learned::default() };
        let terms = stating("\"max_subscriptions\":50,\"max_filters\":5,\"max_subscription_bytes\":5242880");
        let budget = Budget::of(Some(&terms), &learned);
        assert_eq!((budget.slots, budget.live, budget.filters, budget.live_bytes), (4, 1, 2, 1_048_576));
        let zero = Learned { slots: Some(0), filters: Some(0), subscription_bytes: Some(0), ..Learned::default() };
        let budget = Budget::of(None, &zero);
        assert_eq!((budget.slots, budget.live, budget.filters, budget.live_bytes), (1, 0, 1, 0));
        let lax = Learned { slots: Some(900), filters: Some(900), subscription_bytes: Some(u64::MAX), ..zero };
        let budget = Budget::of(Some(&terms), &lax);
        assert_eq!((budget.slots, budget.filters, budget.live_bytes), (50, 5, 5_242_880));
    }
}

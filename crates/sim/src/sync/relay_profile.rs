//! Behaviour of relays, drawn from the seed.

use grasp_core::nostr::PublicKey;

use crate::random::Rng;
use crate::simulation::queue::Time;

/// Limits and behaviour of a relay.
#[derive(Clone, Debug)]
pub struct RelayProfile {
    /// Minimum and maximum latency of a message.
    pub latency: (Time, Time),
    /// How it answers NEG-OPEN.
    pub negentropy: NegentropySupport,
    /// Maximum number of records in a negentropy exchange.
    pub max_negentropy_records: usize,
    /// Maximum number of events per filter and request.
    pub max_page: usize,
    /// Whether it sends an event once for each filter that matches.
    pub sends_duplicates: bool,
    /// How it answers `limit: 0`.
    pub limit_zero: LimitZero,
    /// How it marks the end of stored events.
    pub eose: EoseBehavior,
    /// Whether its EOSE has a hint if there are more events (NIP-67).
    pub sends_eose_hint: bool,
    /// Whether it sends an event after CLOSE.
    pub sends_event_after_close: bool,
    /// Rate limit, if any.
    pub rate_limit: Option<RateLimit>,
    /// Maximum number of open subscriptions.
    pub max_subscriptions: usize,
    /// Whether it reports too many subscriptions by NOTICE, which does not name the subscription.
    pub reports_limits_by_notice: bool,
    /// Maximum number of filters per REQ.
    pub max_filters: usize,
    /// Maximum size of a message.
    pub max_message_bytes: usize,
    /// Maximum size of the filters of all open subscriptions, if limited.
    pub max_subscription_bytes: Option<usize>,
    /// Whether it requires authentication (NIP-42).
    pub requires_auth: bool,
    /// Whether it rejects all requests because this server is not a member.
    pub is_members_only: bool,
    /// Whether it greets with a NOTICE that sounds like a refusal and refuses nothing.
    pub sends_stray_notices: bool,
    /// Whether it offers ids in negentropy exchanges whose events it does not send.
    pub offers_missing_ids: bool,
    /// One of `live_loss + 1` live events is not sent. 0 means that all are sent.
    pub live_loss: usize,
    /// Whether it sends copies of events with invalid signatures before the real ones.
    pub sends_forgeries: bool,
    /// Whether it sends events that were not requested.
    pub sends_unrequested: bool,
    /// Author whose events it withholds.
    pub hidden_author: Option<PublicKey>,
    /// Time until it handles a REQ, and until it handles a NEG-OPEN.
    pub processing_delay: (Time, Time),
    /// Approximate lifetime of its connections. 0 means unlimited.
    pub connection_lifetime: Time,
    /// Whether it cannot be reached.
    pub is_unreachable: bool,
    /// Whether it reads but does not answer.
    pub is_silent: bool,
    /// Loses one of this many REQ messages without an answer, if not 0.
    pub lost_requests: usize,
    /// What its NIP-11 document states.
    pub nip11: Nip11Behavior,
    /// Whether it is a GRASP server.
    pub is_grasp: bool,
    /// Error of its clock in seconds.
    pub clock_skew_secs: i64,
    /// Whether it closes connections that are not read.
    pub disconnects_stalled_clients: bool,
}

/// How a relay answers NEG-OPEN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NegentropySupport {
    /// It supports NIP-77.
    Supported,
    /// It sends an error as NOTICE.
    NoticeError,
    /// It sends NEG-ERR.
    NegErr,
    /// It does not answer.
    Ignored,
}

/// How a relay answers a filter with `limit: 0`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitZero {
    /// It accepts the filter.
    Accepted,
    /// It rejects the filter: the limit must be at least 1.
    Rejected,
    /// It also rejects `limit: 1`: the limit must be at least 2.
    OneRejectedToo,
}

/// How a relay marks the end of stored events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EoseBehavior {
    /// It sends one EOSE after the stored events.
    Once,
    /// It sends two of them.
    Twice,
    /// It sends none.
    Never,
    /// It sends EOSE first, and then the stored events.
    Early,
}

/// Rate limit of a relay.
#[derive(Clone, Debug)]
pub struct RateLimit {
    /// Maximum number of requests per minute.
    pub per_minute: u32,
    /// Message that rejects further requests.
    pub reply: RejectionMessage,
    /// Text of the rejection.
    pub text: &'static str,
    /// Whether it also closes the connection.
    pub disconnects: bool,
}

/// Message that a relay uses for a rejection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RejectionMessage {
    /// NOTICE.
    Notice,
    /// CLOSED, or NEG-ERR for a negentropy exchange.
    Closed,
    /// OK.
    Ok,
}

/// What the NIP-11 document of a relay states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nip11Behavior {
    /// There is no document.
    Absent,
    /// It states the real limits.
    Accurate,
    /// It states larger pages and more subscriptions than the relay allows.
    Exaggerated,
    /// Accurate in one session, absent in the next, exaggerated in the third.
    Alternating,
}

/// Texts by which relays report a rate limit.
const RATE_TEXTS: [&str; 6] = [
    "rate-limited: too many queries",
    "rate-limited: slow down",
    "Rate limit exceeded",
    "slow down please",
    "rate-limited: you are noting too much",
    "subscription throttled",
];

impl RelayProfile {
    /// Returns the profile of a relay without faults and with common limits.
    pub fn well_behaved() -> Self {
        Self {
            latency: (10, 60),
            negentropy: NegentropySupport::Supported,
            max_negentropy_records: 100_000,
            max_page: 500,
            sends_duplicates: false,
            limit_zero: LimitZero::Accepted,
            eose: EoseBehavior::Once,
            sends_eose_hint: false,
            sends_event_after_close: false,
            rate_limit: None,
            max_subscriptions: 20,
            reports_limits_by_notice: false,
            max_filters: 20,
            max_message_bytes: 128 * 1024,
            max_subscription_bytes: None,
            requires_auth: false,
            is_members_only: false,
            sends_stray_notices: false,
            offers_missing_ids: false,
            live_loss: 0,
            sends_forgeries: false,
            sends_unrequested: false,
            hidden_author: None,
            processing_delay: (0, 0),
            connection_lifetime: 0,
            is_unreachable: false,
            is_silent: false,
            lost_requests: 0,
            nip11: Nip11Behavior::Accurate,
            is_grasp: false,
            clock_skew_secs: 0,
            disconnects_stalled_clients: false,
        }
    }

    /// Returns the profile of a simulated node.
    pub fn graspd() -> Self {
        Self { max_subscriptions: 100, max_message_bytes: 2 * 1024 * 1024, is_grasp: true, ..Self::well_behaved() }
    }

    /// Returns a random profile.
    pub fn random(rng: &mut Rng, authors: &[PublicKey]) -> Self {
        let mut profile = Self::well_behaved();
        profile.randomize_limits(rng);
        if rng.one_in(4) {
            profile.randomize_latency(rng);
        }
        // Only some relays misbehave during the whole week. Short periods of misbehaviour are incidents.
        if rng.one_in(3) {
            profile.add_misbehavior(rng, authors);
        }
        profile.connection_lifetime *= 60;
        profile
    }

    /// Draws the limits, which are not faults.
    fn randomize_limits(&mut self, rng: &mut Rng) {
        self.negentropy = match rng.below(8) {
            0 => NegentropySupport::NoticeError,
            1 => NegentropySupport::NegErr,
            2 => NegentropySupport::Ignored,
            _ => NegentropySupport::Supported,
        };
        self.max_page = [20, 100, 500, 500][rng.below(4)];
        self.sends_duplicates = rng.one_in(3);
        self.sends_eose_hint = rng.one_in(6);
        self.is_grasp = rng.one_in(5);
        self.max_subscriptions = [10, 20, 20, 50, 200][rng.below(5)];
        self.reports_limits_by_notice = rng.one_in(2);
        self.max_filters = [3, 10, 20, 200][rng.below(4)];
        self.max_message_bytes = [16 * 1024, 64 * 1024, 128 * 1024, 1024 * 1024][rng.below(4)];
        self.limit_zero = [
            LimitZero::Accepted,
            LimitZero::Accepted,
            LimitZero::Accepted,
            LimitZero::Accepted,
            LimitZero::Rejected,
            LimitZero::OneRejectedToo,
        ][rng.below(6)];
        self.requires_auth = rng.one_in(10);
        self.nip11 = match rng.below(5) {
            0 => Nip11Behavior::Absent,
            _ => Nip11Behavior::Accurate,
        };
        // A relay without document must allow the limits that are assumed for it.
        if self.nip11 == Nip11Behavior::Absent {
            self.max_subscriptions = self.max_subscriptions.max(20);
            self.max_filters = self.max_filters.max(10);
            self.max_message_bytes = self.max_message_bytes.max(128 * 1024);
        }
        self.disconnects_stalled_clients = rng.one_in(4);
        if rng.one_in(10) {
            self.max_negentropy_records = 40;
        }
        if rng.one_in(12) {
            self.max_subscription_bytes = Some(24 * 1024);
        }
    }

    fn randomize_latency(&mut self, rng: &mut Rng) {
        self.latency = if rng.one_in(3) { (800, 2_500) } else { (100, 400) };
        self.processing_delay = (rng.next_u64() % 400, rng.next_u64() % 400);
    }

    /// Adds one random kind of misbehaviour.
    pub fn add_misbehavior(&mut self, rng: &mut Rng, authors: &[PublicKey]) {
        match rng.below(20) {
            0 => self.eose = EoseBehavior::Never,
            1 => self.eose = EoseBehavior::Twice,
            2 => self.eose = EoseBehavior::Early,
            3 => self.sends_event_after_close = true,
            4 | 5 => self.rate_limit = Some(RateLimit::random(rng)),
            6 => self.offers_missing_ids = true,
            7 => self.live_loss = 1 + rng.below(4),
            8 => self.sends_forgeries = true,
            9 => self.sends_unrequested = true,
            10 => self.hidden_author = rng.pick(authors).copied(),
            11 => self.processing_delay = (300 + rng.next_u64() % 700, rng.next_u64() % 20),
            12 => self.connection_lifetime = (20 + rng.next_u64() % 3_600) * 1_000,
            13 => self.nip11 = if rng.one_in(2) { Nip11Behavior::Exaggerated } else { Nip11Behavior::Alternating },
            14 => self.is_members_only = true,
            16 | 17 => self.lost_requests = 2 + rng.below(4),
            18 => self.sends_stray_notices = true,
            15 => self.clock_skew_secs = rng.next_u64() as i64 % 86_400,
            _ => self.is_silent = rng.one_in(3),
        }
    }

    /// Ends all misbehaviour. Limits stay as they are.
    pub fn heal(&mut self) {
        let defaults = Self::well_behaved();
        self.eose = EoseBehavior::Once;
        self.rate_limit = None;
        self.sends_event_after_close = false;
        self.offers_missing_ids = false;
        self.live_loss = 0;
        self.sends_forgeries = false;
        self.sends_unrequested = false;
        self.hidden_author = None;
        self.connection_lifetime = 0;
        self.is_unreachable = false;
        self.is_silent = false;
        self.lost_requests = 0;
        self.is_members_only = false;
        self.sends_stray_notices = false;
        self.clock_skew_secs = 0;
        self.latency = defaults.latency;
        if matches!(self.nip11, Nip11Behavior::Exaggerated | Nip11Behavior::Alternating) {
            self.nip11 = Nip11Behavior::Accurate;
        }
    }

    /// Whether it gives a reason to park it.
    pub fn can_be_parked(&self) -> bool {
        self.is_members_only || self.requires_auth
    }

    /// Returns the latency of a message.
    pub fn random_latency(&self, rng: &mut Rng) -> Time {
        let (min, max) = self.latency;
        min + rng.next_u64() % (max - min).max(1)
    }

    /// Returns the limits in the document of a session, or `None` if it has no document.
    pub fn stated_limits(&self, session: u64) -> Option<StatedLimits> {
        let nip11 = match self.nip11 {
            Nip11Behavior::Alternating => {
                [Nip11Behavior::Accurate, Nip11Behavior::Absent, Nip11Behavior::Exaggerated][(session % 3) as usize]
            }
            fixed => fixed,
        };
        let accurate = StatedLimits {
            max_subscriptions: self.max_subscriptions,
            max_filters: self.max_filters,
            max_message_bytes: self.max_message_bytes,
            max_page: self.max_page,
        };
        match nip11 {
            Nip11Behavior::Absent => None,
            Nip11Behavior::Exaggerated => {
                Some(StatedLimits { max_subscriptions: self.max_subscriptions * 2, max_page: 5_000, ..accurate })
            }
            _ => Some(accurate),
        }
    }
}

/// Limits in a NIP-11 document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatedLimits {
    /// Maximum number of open subscriptions.
    pub max_subscriptions: usize,
    /// Maximum number of filters per REQ.
    pub max_filters: usize,
    /// Maximum size of a message.
    pub max_message_bytes: usize,
    /// Maximum number of events of a page.
    pub max_page: usize,
}

impl RateLimit {
    fn random(rng: &mut Rng) -> Self {
        Self {
            per_minute: [4, 10, 30][rng.below(3)],
            reply: [RejectionMessage::Notice, RejectionMessage::Closed, RejectionMessage::Closed, RejectionMessage::Ok]
                [rng.below(4)],
            text: RATE_TEXTS[rng.below(RATE_TEXTS.len())],
            disconnects: rng.one_in(3),
        }
    }
}

/// Returns whether a text reports a rate limit.
pub(super) fn is_rate_limit_text(text: &str) -> bool {
    RATE_TEXTS.contains(&text)
}

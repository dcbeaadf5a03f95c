//! Which requests a machine may send to a relay.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::limits;
use grasp_core::nostr::{EventId, Filter, kinds};
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, SessionId, SubscriptionId};
use grasp_core::time::Now;

use crate::simulation::FirstViolation;
use crate::simulation::queue::{DAY, SECOND, Time};
use crate::sync::relay_profile::{StatedLimits, is_rate_limit_text};
use crate::sync::tables::SyncTables;
use crate::sync::wire;

/// Limits of a relay without NIP-11 document.
const DEFAULT_LIMITS: StatedLimits =
    StatedLimits { max_subscriptions: 20, max_filters: 10, max_message_bytes: 131_072, max_page: 500 };
/// Minimum time without requests after a rate limit.
const MIN_COOLDOWN: Time = 65 * SECOND;
/// Time after which a closed subscription no longer counts, even if it was not answered.
const CLOSE_TIMEOUT: Time = 2 * SECOND;
/// Time after which historic sync may start although the live subscription is unconfirmed.
const LIVE_TIMEOUT: Time = limits::LIVE_EOSE_TIMEOUT_SECS * SECOND;
/// Full passes over one relay per day: the daily one, and one that a quick reconnect or a restart postponed.
const MAX_PASSES_PER_DAY: u64 = 3;
/// Maximum duration of a pass. A request that would start another pass within this time belongs to the same pass.
const MAX_PASS_DURATION: Time = 60 * SECOND;
/// Maximum number of requests of one pass. The largest world has 20 repositories with 240 root events: five tags each,
/// ten values per filter, and one page and one fetch for each make 300. Its 1,300 descendants need another 700 where a
/// message has space for 15 of them: four filters and twice as many requests for each.
const MAX_REQUESTS_PER_PASS: u64 = 1_000;
/// Maximum number of polling requests per day for needs without subscription: a part of them every five minutes, with
/// seven filters, and a filter of descendants every five seconds.
const MAX_POLLS_PER_DAY: u64 = 24 * 12 * 7 + 24 * 3_600 / limits::DESCENDANT_POLL_INTERVAL_SECS;

#[derive(Debug, Default)]
pub(super) struct RequestChecker {
    sessions: BTreeMap<SessionId, CheckedSession>,
    relays: BTreeMap<String, RelayUsage>,
    /// Events above the size limit that the process has received.
    oversized: BTreeSet<EventId>,
    requests: u64,
    maxima: (u64, u64),
}

#[derive(Debug, Default)]
struct CheckedSession {
    stated_limits: Option<StatedLimits>,
    live_state: LiveState,
    open: BTreeMap<SubscriptionId, OpenRequest>,
    used: BTreeSet<SubscriptionId>,
}

/// Whether the relay delivers new events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum LiveState {
    /// No live subscription has been opened.
    #[default]
    NotRequested,
    /// A live subscription was opened at this time.
    Requested(Time),
    /// The relay has answered it.
    Confirmed,
}

#[derive(Debug)]
struct OpenRequest {
    is_negentropy: bool,
    is_answered: bool,
    closed_at: Option<Time>,
}

impl CheckedSession {
    /// Handles a rejection that names no request: it belongs to the oldest request without answer, because relays
    /// answer in order.
    fn on_unnamed_rejection(&mut self, text: &str) {
        let is_negentropy = text.contains("negentropy") || text.contains("NEG");
        let unanswered = self
            .open
            .iter()
            .filter(|(_, open)| !open.is_answered && (open.is_negentropy || !is_negentropy))
            .map(|(sub, _)| *sub);
        if let Some(sub) = unanswered.min() {
            self.open.remove(&sub);
        }
    }
}

impl OpenRequest {
    fn is_counted(&self, now: Time) -> bool {
        self.closed_at.is_none_or(|at| !self.is_answered && now < at + CLOSE_TIMEOUT)
    }
}

#[derive(Debug, Default)]
struct RelayUsage {
    cooldown_until: Option<Time>,
    day: Time,
    requests: u64,
    /// Requests with `since`, which poll for new events.
    polls: u64,
    passes: u64,
    /// Start of the last pass.
    pass_at: Option<Time>,
    /// Reasons for further passes: connections, failed batches and commands of the operator.
    allowances: u64,
    /// The failed batches among them.
    failed: u64,
}

impl RelayUsage {
    fn on_day(&mut self, now: Time) -> &mut Self {
        let day = now / DAY;
        if self.day != day {
            // Batches that failed yesterday are retried today, and a pass that a short absence postponed takes place
            // today. A day without incidents gives no allowances.
            let allowances = self.failed.min(u64::from(limits::MAX_BATCH_RETRIES)) + u64::from(self.allowances > 0);
            let (cooldown_until, pass_at) = (self.cooldown_until, self.pass_at);
            *self = Self { cooldown_until, day, pass_at, allowances, ..Self::default() };
        }
        self
    }
}

impl RequestChecker {
    pub(super) fn on_stated_limits(&mut self, session: SessionId, stated_limits: Option<StatedLimits>, relay: usize) {
        let _ = relay;
        self.sessions.insert(session, CheckedSession { stated_limits, ..CheckedSession::default() });
    }

    /// Allows one more pass over a relay.
    pub(super) fn allow_more(&mut self, now: Time, relay_key: &str) {
        self.relays.entry(relay_key.to_owned()).or_default().on_day(now).allowances += 1;
    }

    /// Allows one more pass because a batch failed and is retried.
    pub(super) fn on_batch_failed(&mut self, now: Time, relay_key: &str) {
        self.allow_more(now, relay_key);
        self.relays.entry(relay_key.to_owned()).or_default().failed += 1;
    }

    pub(super) fn on_disconnected(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn on_crash(&mut self) {
        self.sessions.clear();
        self.oversized.clear();
        for usage in self.relays.values_mut() {
            usage.cooldown_until = None;
        }
    }

    pub(super) fn on_start(&mut self, now: Time, clock: Now, tables: &SyncTables) {
        for row in tables.relays() {
            let left = row.health.cooldown_until.map_or(0, |at| at.secs_since(clock.wall));
            if left > 2 && left < 4_000 {
                let usage = self.relays.entry(row.url.without_scheme().to_owned()).or_default();
                usage.cooldown_until = Some(now + (left - 2) * SECOND);
            }
        }
    }

    pub(super) fn cooldown_until(&self, relay_key: &str) -> Option<Time> {
        self.relays.get(relay_key).and_then(|usage| usage.cooldown_until)
    }

    pub(super) fn total(&self) -> u64 {
        self.requests
    }

    pub(super) fn maxima(&self) -> (u64, u64) {
        self.maxima
    }

    pub(super) fn on_message(
        &mut self,
        now: Time,
        session: SessionId,
        message: &IncomingMessage,
        relay_key: Option<&str>,
    ) {
        let Some(session_state) = self.sessions.get_mut(&session) else { return };
        let is_answer = !matches!(
            message,
            IncomingMessage::Alive
                | IncomingMessage::Auth(_)
                | IncomingMessage::Event(..)
                | IncomingMessage::TooLarge(..)
                | IncomingMessage::InvalidEvent(..)
        );
        if is_answer && session_state.live_state != LiveState::NotRequested {
            session_state.live_state = LiveState::Confirmed;
        }
        match message {
            IncomingMessage::Eose(sub, _) | IncomingMessage::NegMsg(sub, _) => {
                if let Some(open) = session_state.open.get_mut(sub) {
                    open.is_answered = true;
                }
            }
            IncomingMessage::Closed(sub, _) | IncomingMessage::NegErr(sub, ..) => drop(session_state.open.remove(sub)),
            IncomingMessage::TooLarge(_, event, _) => drop(self.oversized.insert(event.id)),
            IncomingMessage::Notice(text) | IncomingMessage::Ok(false, text) => {
                session_state.on_unnamed_rejection(text)
            }
            _ => {}
        }
        let rejection = match message {
            IncomingMessage::Closed(_, text)
            | IncomingMessage::NegErr(_, text, _)
            | IncomingMessage::Notice(text)
            | IncomingMessage::Ok(false, text) => text,
            _ => return,
        };
        if is_rate_limit_text(rejection)
            && let Some(relay_key) = relay_key
        {
            let usage = self.relays.entry(relay_key.to_owned()).or_default();
            usage.cooldown_until = usage.cooldown_until.max(Some(now + MIN_COOLDOWN));
        }
    }

    pub(super) fn on_send(
        &mut self,
        violations: &mut FirstViolation,
        now: Time,
        session: SessionId,
        message: &OutgoingMessage,
        relay_key: Option<&str>,
    ) {
        let Some(session_state) = self.sessions.get_mut(&session) else {
            violations.require(false, "messages are sent only in open sessions", || format!("{session:?}"));
            return;
        };
        let limits = session_state.stated_limits.unwrap_or(DEFAULT_LIMITS);
        let bytes = wire::message_bytes(message);
        violations.require(bytes <= limits.max_message_bytes, "no message is larger than the relay allows", || {
            format!("{bytes} of {}", limits.max_message_bytes)
        });
        let (sub, filters, is_negentropy) = match message {
            OutgoingMessage::Req(sub, filters) => (sub, filters.as_slice(), false),
            OutgoingMessage::NegOpen(sub, filter, _) => (sub, std::slice::from_ref(filter), true),
            OutgoingMessage::Close(sub) | OutgoingMessage::NegClose(sub) => {
                if let Some(open) = session_state.open.get_mut(sub) {
                    open.closed_at = Some(now);
                }
                return;
            }
            OutgoingMessage::NegMsg(sub, _) => {
                if let Some(open) = session_state.open.get_mut(sub) {
                    open.is_answered = false;
                }
                return;
            }
            OutgoingMessage::Auth(_) => return,
        };
        violations.require(session_state.used.insert(*sub), "no subscription id is used twice", || format!("{sub:?}"));
        violations.require(
            filters.len() <= limits.max_filters,
            "no request has more filters than the relay allows",
            || format!("{} of {}", filters.len(), limits.max_filters),
        );
        violations.require(!filters.is_empty(), "every request has a filter", String::new);
        let oversized = filters.iter().flat_map(|filter| filter.ids.iter().flatten());
        let oversized = oversized.filter(|id| self.oversized.contains(id)).count();
        violations
            .require(oversized == 0, "an event above the size limit is fetched once", || format!("{oversized} ids"));
        session_state.open.insert(*sub, OpenRequest { is_negentropy, is_answered: false, closed_at: None });
        session_state.open.retain(|_, open| open.is_counted(now));
        let used = session_state.open.len();
        violations.require(
            used <= limits.max_subscriptions,
            "no more subscriptions are open than the relay allows",
            || format!("{used} of {}", limits.max_subscriptions),
        );
        let reserved =
            if limits.max_subscriptions <= 5 { 1 } else { 2 }.min(limits.max_subscriptions.saturating_sub(2));
        let is_live_request = !is_negentropy && filters.iter().all(is_live);
        violations.require(
            is_live_request || used + reserved <= limits.max_subscriptions,
            "historic sync leaves the reserved subscriptions free",
            || format!("{used} of {} with {reserved} in reserve", limits.max_subscriptions),
        );
        let live_state = session_state.live_state;
        let may_start = match live_state {
            LiveState::NotRequested => false,
            LiveState::Requested(at) => now >= at + LIVE_TIMEOUT,
            LiveState::Confirmed => true,
        };
        violations.require(is_live_request || may_start, "historic sync waits for the live subscription", || {
            format!("{live_state:?} at {now}")
        });
        if is_live_request && live_state == LiveState::NotRequested {
            session_state.live_state = LiveState::Requested(now);
        }
        self.requests += 1;
        let Some(relay_key) = relay_key else { return };
        let usage = self.relays.entry(relay_key.to_owned()).or_default();
        let cooldown = usage.cooldown_until;
        violations.require(cooldown.is_none_or(|until| until <= now), "no request during the cooldown", || {
            format!("{cooldown:?} at {now}")
        });
        let usage = usage.on_day(now);
        usage.requests += 1;
        usage.polls += u64::from(!is_live_request && filters.iter().all(|filter| filter.since.is_some()));
        if !is_live_request
            && filters.iter().any(starts_full_pass)
            && usage.pass_at.is_none_or(|at| now >= at + MAX_PASS_DURATION)
        {
            usage.pass_at = Some(now);
            usage.passes += 1;
        }
        self.maxima = (self.maxima.0.max(usage.requests), self.maxima.1.max(usage.passes));
        let RelayUsage { requests, polls, passes, allowances, .. } = *usage;
        violations.require(passes <= MAX_PASSES_PER_DAY + allowances, "full passes per day are limited", || {
            format!("{passes} passes, {allowances} allowances")
        });
        let non_polls = requests - polls.min(MAX_POLLS_PER_DAY);
        violations.require(
            non_polls <= (MAX_PASSES_PER_DAY + allowances) * MAX_REQUESTS_PER_PASS,
            "requests per day are limited",
            || format!("{requests} requests, {allowances} allowances"),
        );
    }
}

/// Returns whether a filter belongs to live sync. Filters of historic sync have a page size or ids.
pub(super) fn is_live(filter: &Filter) -> bool {
    filter.limit.is_some_and(|limit| limit <= 1)
        || (filter.limit.is_none() && filter.ids.is_none() && filter.until.is_none() && filter.since.is_some())
}

/// Returns whether a filter requests all announcements, starting with the newest.
fn starts_full_pass(filter: &Filter) -> bool {
    filter.kinds.as_ref().is_some_and(|kinds| kinds.contains(&kinds::ANNOUNCEMENT))
        && filter.tags.is_empty()
        && filter.since.is_none()
        && filter.until.is_none()
}

//! The throttle of one host: its limits, its quiet times and its queue.

use std::collections::{BTreeMap, BTreeSet};

use super::HostLimits;
use super::fair_queue::FairQueue;
use super::io::{HostRow, MirrorId};
use super::network_limit::Network;
use super::origin::Origin;
use super::sliding_window::SlidingWindow;
use crate::limits;
use crate::net::OutboundError;
use crate::nostr::nip11::GitFetchLimits;
use crate::random::Rng;
use crate::time::{MonoTime, Now, Timestamp};

/// The last survey of a server.
#[derive(Clone, Debug)]
pub(super) struct SurveyRecord {
    pub(super) networks: BTreeSet<Network>,
    pub(super) at: MonoTime,
    pub(super) limits: GitFetchLimits,
    pub(super) limits_at: Option<MonoTime>,
}

/// Why no job can be served at a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unavailable {
    /// It has failed too often.
    Down,
    /// The host name does not resolve.
    NoAddress,
    /// It must not be dialled.
    Forbidden(OutboundError),
    /// It states that it wants no requests.
    RequestsRefused,
}

/// Whether a host can take one more request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostCapacity {
    /// It can take this many.
    Free(usize),
    /// Not before this time.
    Until(MonoTime),
    /// Not before one of its requests has ended.
    Full,
    /// It states that it wants no requests.
    Refused,
}

/// Why a host is left alone for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QuietReason {
    /// It answered that there were too many requests.
    Busy,
    /// It failed.
    Failed,
    /// Stored by an earlier process, which did not store the reason.
    Restored,
}

impl QuietReason {
    /// Returns the name of this reason on the status page.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Failed => "failed",
            Self::Restored => "restored",
        }
    }
}

/// A host and its limits.
#[derive(Clone, Debug)]
pub(super) struct DomainThrottle {
    pub(super) authority: String,
    default_limits: HostLimits,
    /// Limits up to which the server may raise the default.
    max_limits: HostLimits,
    pub(super) window: SlidingWindow,
    pub(super) in_flight: usize,
    /// No requests before this time, because it was busy.
    pub(super) quiet_until: Option<(MonoTime, QuietReason)>,
    /// No requests before this time, because it failed.
    pub(super) failed_until: Option<MonoTime>,
    failures: u32,
    failed_at: MonoTime,
    pub(super) surveys: BTreeMap<Origin, SurveyRecord>,
    pub(super) queue: FairQueue,
    /// Mirrors that wait for a check, and since when.
    pub(super) waiting_mirrors: BTreeSet<(MonoTime, MirrorId)>,
    /// Whether a mirror check is running.
    pub(super) is_checking_mirror: bool,
    pub(super) unavailable: Option<Unavailable>,
    /// Sources and mirrors that use this host.
    pub(super) source_count: usize,
    /// How many further requests the stored row already counts, and until when.
    counted_ahead: (u32, MonoTime),
    pub(super) hits: u32,
    pub(super) misses: u32,
    pub(super) requests: u64,
    /// Its position among the ready hosts.
    pub(super) ready_ticket: Option<u64>,
    pub(super) alarm: Option<MonoTime>,
    pub(super) has_row: bool,
    pub(super) used_at: MonoTime,
}

impl DomainThrottle {
    pub(super) fn new(authority: String, default_limits: HostLimits, max_limits: HostLimits) -> Self {
        Self {
            authority,
            default_limits,
            max_limits,
            window: SlidingWindow::default(),
            in_flight: 0,
            quiet_until: None,
            failed_until: None,
            failures: 0,
            failed_at: MonoTime(0),
            surveys: BTreeMap::new(),
            queue: FairQueue::default(),
            waiting_mirrors: BTreeSet::new(),
            is_checking_mirror: false,
            unavailable: None,
            source_count: 0,
            counted_ahead: (0, MonoTime(0)),
            hits: 0,
            misses: 0,
            requests: 0,
            ready_ticket: None,
            alarm: None,
            has_row: false,
            used_at: MonoTime(0),
        }
    }

    /// Returns the limits of this host: the default, or what the server states. A server may lower them without bound,
    /// and raise them up to a maximum.
    pub(super) fn limits(&self) -> HostLimits {
        let mut own = self.default_limits;
        for stated in self.surveys.values().map(|record| record.limits) {
            let apply = |own: u32, default: u32, stated: Option<u32>, most: u32| match stated {
                Some(stated) if stated < default => own.min(stated),
                // Another origin of this host may have lowered it.
                Some(stated) if own >= default => own.max(stated.min(most)),
                _ => own,
            };
            let (default, most) = (self.default_limits, self.max_limits);
            own = HostLimits {
                concurrent: apply(own.concurrent, default.concurrent, stated.concurrent, most.concurrent),
                per_minute: apply(own.per_minute, default.per_minute, stated.per_minute, most.per_minute),
            };
        }
        own
    }

    /// Returns until when the host wants no requests, if it states so.
    pub(super) fn refused_until(&self, own: HostLimits) -> Option<MonoTime> {
        if own.concurrent > 0 && own.per_minute > 0 {
            return None;
        }
        let stated = self.surveys.values().filter_map(|record| record.limits_at).max();
        Some(stated.unwrap_or(MonoTime(u64::MAX)).plus_secs(limits::HOST_STATED_LIMITS_TTL_SECS))
    }

    /// Returns whether the host can take one more request.
    pub(super) fn capacity(&mut self, now: MonoTime, own: HostLimits) -> HostCapacity {
        if self.refused_until(own).is_some_and(|until| now < until) {
            return HostCapacity::Refused;
        }
        if let Some((until, _)) = self.quiet(now) {
            return HostCapacity::Until(until);
        }
        // After a failure one probe decides for all.
        let concurrent = if self.failures > 0 { 1 } else { own.concurrent.max(1) as usize };
        let Some(free) = concurrent.checked_sub(self.in_flight).filter(|free| *free > 0) else {
            return HostCapacity::Full;
        };
        self.window.prune(now);
        let per_minute = own.per_minute.max(1) as usize;
        match self.window.free_at(per_minute) {
            Some(at) => HostCapacity::Until(at),
            None => HostCapacity::Free(free.min(per_minute - self.window.len())),
        }
    }

    /// Returns `Some` if a server must be surveyed: with `true` if its NIP-11 document is needed too.
    pub(super) fn needs_survey(&self, now: MonoTime, origin: &Origin, is_grasp: bool) -> Option<bool> {
        let Some(record) = self.surveys.get(origin) else { return Some(is_grasp) };
        let stated = is_grasp || record.limits != GitFetchLimits::default();
        let with_nip11 =
            stated && record.limits_at.is_none_or(|at| now >= at.plus_secs(limits::HOST_STATED_LIMITS_TTL_SECS));
        (with_nip11 || now >= record.at.plus_secs(limits::HOST_ADDRESS_TTL_SECS)).then_some(with_nip11)
    }

    /// Records the start of a request. Returns the row if it must be stored before the request is made.
    pub(super) fn begin_request(&mut self, now: Now, own: HostLimits) -> Option<HostRow> {
        self.window.record(now.mono);
        self.in_flight += 1;
        self.requests += 1;
        self.used_at = now.mono;
        if self.counted_ahead.0 > 0 && now.mono < self.counted_ahead.1 {
            self.counted_ahead.0 -= 1;
            return None;
        }
        // After a restart the stated limits are not known yet, so the default limits must cover what was counted ahead.
        let ahead = (own.per_minute.min(self.default_limits.per_minute) / limits::HOST_ROW_AHEAD_DIVISOR).max(1);
        self.counted_ahead = (ahead, now.mono.plus_secs(limits::HOST_ROW_AHEAD_SECS));
        Some(self.record_row(now))
    }

    /// Records a busy answer with the seconds to wait, if stated.
    pub(super) fn record_busy(&mut self, now: Now, secs: Option<u64>, rng: &mut Rng) {
        let millis = match secs {
            Some(secs) => rng.at_least(secs.clamp(1, limits::MAX_BUSY_HOST_QUIET_SECS) * 1_000),
            None => rng.jitter(limits::BUSY_HOST_QUIET_SECS * 1_000),
        };
        self.set_quiet(MonoTime(now.mono.0.saturating_add(millis)), QuietReason::Busy);
    }

    /// Records the failure of a request that began at `since`. Requests that failed for the same reason count once.
    pub(super) fn record_failure(&mut self, now: Now, since: MonoTime, rng: &mut Rng) {
        if self.failures > 0 && since <= self.failed_at {
            let least = now.mono.0.saturating_add(rng.jitter(limits::FAILED_HOST_QUIET_SECS * 1_000));
            self.failed_until = self.failed_until.max(Some(MonoTime(least)));
            return;
        }
        self.failed_at = now.mono;
        let doubled = limits::FAILED_HOST_QUIET_SECS << self.failures.min(10);
        self.failures = self.failures.saturating_add(1);
        let millis = rng.jitter(doubled.min(limits::MAX_FAILED_HOST_QUIET_SECS) * 1_000);
        self.failed_until = Some(MonoTime(now.mono.0.saturating_add(millis)));
        if self.failures >= limits::HOST_DOWN_FAILURES {
            self.unavailable = Some(Unavailable::Down);
        }
    }

    fn set_quiet(&mut self, until: MonoTime, reason: QuietReason) {
        if self.quiet_until.is_none_or(|(before, _)| before < until) {
            self.quiet_until = Some((until, reason));
        }
    }

    /// Returns until when the host is left alone, and why.
    pub(super) fn quiet(&self, now: MonoTime) -> Option<(MonoTime, QuietReason)> {
        let failed = self.failed_until.map(|until| (until, QuietReason::Failed));
        self.quiet_until.into_iter().chain(failed).max_by_key(|(until, _)| *until).filter(|(until, _)| *until > now)
    }

    /// Records that the host has answered.
    pub(super) fn record_answer(&mut self) {
        self.failures = 0;
        self.failed_until = None;
    }

    /// Records whether a fetch brought something wanted.
    pub(super) fn record_hit(&mut self, is_hit: bool) {
        if is_hit {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        if self.hits + self.misses > limits::MAX_HOST_SCORE_FETCHES {
            self.hits /= 2;
            self.misses /= 2;
        }
    }

    /// Returns the estimated share of fetches that bring something wanted, in thousandths.
    pub(super) fn hit_rate(&self) -> u32 {
        (self.hits + 1) * 1_000 / (self.hits + self.misses + 2)
    }

    /// Returns the number of consecutive failures.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the row to store, including the requests that may be made before it is stored again.
    pub(super) fn record_row(&mut self, now: Now) -> HostRow {
        self.has_row = true;
        let mut asked = self.window.request_times(now);
        if now.mono < self.counted_ahead.1 {
            let last = now.wall.plus_secs(self.counted_ahead.1.since(now.mono).as_secs() + 1);
            asked.extend((0..self.counted_ahead.0).map(|_| last));
        }
        let left =
            self.quiet(now.mono).map_or(0, |(until, _)| until.since(now.mono).as_millis().div_ceil(1_000) as u64);
        let quiet_until = if left > 0 { now.wall.plus_secs(left + 1) } else { Timestamp(0) };
        HostRow { authority: self.authority.clone(), asked, quiet_until, hits: self.hits, misses: self.misses }
    }

    /// Restores the host from a stored row.
    pub(super) fn restore(&mut self, now: Now, row: &HostRow) {
        self.has_row = true;
        self.used_at = now.mono;
        let most =
            (limits::MAX_STATED_GIT_PER_MINUTE * 2).max(self.default_limits.per_minute.saturating_mul(2)) as usize;
        let asked = &row.asked[row.asked.len().saturating_sub(most)..];
        self.window.restore(now, asked, limits::HOST_ROW_AHEAD_SECS + 1);
        let left = row.quiet_until.secs_since(now.wall).min(limits::MAX_BUSY_HOST_QUIET_SECS * 6 / 5 + 2);
        if left > 0 {
            self.set_quiet(now.mono.plus_secs(left), QuietReason::Restored);
        }
        let most = limits::MAX_HOST_SCORE_FETCHES;
        (self.hits, self.misses) = (row.hits.min(most), row.misses.min(most));
    }

    /// Returns whether dropping the host would lose nothing but its hit rate.
    pub(super) fn is_idle(&self, now: MonoTime) -> bool {
        self.source_count == 0
            && self.in_flight == 0
            && self.quiet(now).is_none()
            && self.window.free_at(1).is_none_or(|_| self.used_at.plus_secs(70) <= now)
    }
}

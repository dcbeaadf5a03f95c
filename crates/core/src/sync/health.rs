//! Health of a relay: connection failures, backoff and rate-limit cooldown. Decides when the relay may be dialled and
//! when requests may be sent.
//!
//! Within a process only the monotonic clock counts. Wall clock times are kept for the stored record, which the next
//! process reads. See `docs/design/sync.md#health-and-backoff`.

use super::relay_record::HealthRecord;
use crate::limits;
use crate::time::{MonoTime, Now, Timestamp};

/// Delays after connection failures. Both are settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackoffConfig {
    /// Delay after the first failure. Doubles with each further failure.
    pub base_secs: u64,
    /// Maximum delay while the relay is not dead.
    pub max_secs: u64,
}

impl Default for BackoffConfig {
    /// Five seconds, so that sync resumes quickly after a restart of the relay; one hour, so that an unreachable relay
    /// is not dialled too often.
    fn default() -> Self {
        Self { base_secs: 5, max_secs: 60 * 60 }
    }
}

/// Health status of a relay.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HealthStatus {
    /// Connected, and stable for five minutes.
    Healthy,
    /// Connected for less than five minutes.
    Stabilising,
    /// Not connected, without known problems.
    Disconnected,
    /// The last connection attempts failed, connections do not last, or the relay is parked.
    Degraded,
    /// Only failures for a day. Dialled once a day.
    Dead,
    /// In the cooldown after a rate limit.
    RateLimited,
}

impl HealthStatus {
    /// Returns the label of the status on the status page and in its JSON. Labels are stable.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Stabilising => "stabilising",
            Self::Disconnected => "disconnected",
            Self::Degraded => "degraded",
            Self::Dead => "dead",
            Self::RateLimited => "rate_limited",
        }
    }

    /// Returns the value of `ngit_sync_relay_status`. It has no value of its own for a relay that is not yet stable.
    #[must_use]
    pub const fn metric_value(self) -> i64 {
        match self {
            Self::Healthy => 1,
            Self::Stabilising | Self::Disconnected => 2,
            Self::Degraded => 3,
            Self::Dead => 4,
            Self::RateLimited => 5,
        }
    }
}

/// Cause of a connection failure. An unanswered attempt counts against the relay only if something else shows that the
/// own network works; otherwise the own network is considered down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureCause {
    /// The relay refused the connection, or the own network works and the relay did not answer.
    Relay,
    /// Nothing is reachable.
    OwnNetwork,
}

/// Result of a connection failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureOutcome {
    /// Time of the next connection attempt.
    pub retry_at: MonoTime,
    /// The relay became dead with this failure.
    pub became_dead: bool,
}

/// A point in time on both clocks, computed from their values when it was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Deadline {
    mono: MonoTime,
    wall: Timestamp,
}

impl Deadline {
    fn after_millis(now: Now, millis: u64) -> Self {
        Self { mono: MonoTime(now.mono.0.saturating_add(millis)), wall: now.wall.plus_secs(millis.div_ceil(1_000)) }
    }

    fn after_secs(now: Now, secs: u64) -> Self {
        Self { mono: now.mono.plus_secs(secs), wall: now.wall.plus_secs(secs) }
    }

    /// Converts a stored time. Returns `None` if it has passed. The result is at most `max_secs` away, the longest
    /// delay that would have been stored. Stored times are rounded to seconds on both clocks, so one second is added;
    /// otherwise the deadline could be too early.
    fn from_record(record: Option<Timestamp>, now: Now, max_secs: u64) -> Option<Self> {
        let wall = record?;
        let secs = wall.secs_since(now.wall).min(max_secs);
        let due = || Self { mono: now.mono.plus_secs((secs + 1).min(max_secs)), wall: now.wall.plus_secs(secs) };
        (secs > 0).then(due)
    }
}

/// Health of a relay.
#[derive(Clone, Debug)]
pub struct RelayHealth {
    config: BackoffConfig,
    failures: u32,
    /// Consecutive failures that were attributed to the own network.
    own_failures: u32,
    /// Time from the first to the latest of these failures, without outages of the own network.
    failing_millis: u64,
    /// Time from which `failing_millis` continues. `None` during an outage of the own network.
    failing_counted_from: Option<MonoTime>,
    last_failure_at: Option<Timestamp>,
    last_success_at: Option<Timestamp>,
    connected_since: Option<MonoTime>,
    /// Consecutive connections that ended before they were stable.
    short_connections: u32,
    /// Consecutive connections that ended because the relay sent too much.
    floods: u32,
    next_dial: Deadline,
    cooldown: Option<Deadline>,
    /// When the current cooldown started.
    cooldown_started: MonoTime,
    rate_limit_count: u32,
    parked: bool,
}

impl RelayHealth {
    /// Restores the health from a stored record. A record that is implausible, because a clock was set or the settings
    /// have changed, delays nothing for longer than a new failure would.
    #[must_use]
    pub fn new(config: BackoffConfig, record: &HealthRecord, now: Now) -> Self {
        let last_failure_at = record.last_failure_at.map(|at| at.min(now.wall));
        let is_old = last_failure_at.is_some_and(|at| now.wall.secs_since(at) > limits::RELAY_HEALTH_MEMORY_SECS);
        let failures = if is_old { 0 } else { record.failures };
        let failing_secs = match (last_failure_at, record.failing_since) {
            (Some(last), Some(since)) if failures > 0 => last.secs_since(since),
            _ => 0,
        };
        let mut health = Self {
            config,
            failures,
            own_failures: 0,
            failing_millis: failing_secs.saturating_mul(1_000),
            // The time without a process does not count as failing.
            failing_counted_from: (failures > 0).then_some(now.mono),
            last_failure_at,
            last_success_at: record.last_success_at.map(|at| at.min(now.wall)),
            connected_since: None,
            short_connections: 0,
            floods: 0,
            next_dial: Deadline { mono: now.mono, wall: now.wall },
            cooldown: None,
            cooldown_started: now.mono,
            rate_limit_count: 0,
            parked: record.parked,
        };
        let is_probed_daily = health.parked || health.is_dead();
        let most = if is_probed_daily {
            limits::DEAD_RELAY_PROBE_SECS + limits::DEAD_RELAY_PROBE_SPREAD_SECS
        } else {
            health.max_backoff_secs()
        };
        health.next_dial = Deadline::from_record(record.next_retry_at, now, most).unwrap_or(health.next_dial);
        health.cooldown = Deadline::from_record(record.cooldown_until, now, limits::MAX_RATE_LIMIT_COOLDOWN_SECS);
        let has_calmed_down =
            record.cooldown_until.is_none_or(|until| now.wall.secs_since(until) >= limits::RATE_LIMIT_RESET_SECS);
        if !has_calmed_down {
            health.rate_limit_count = record.rate_limit_count;
            // The cooldown is over, but the calm period is not.
            health.cooldown = health.cooldown.or(Some(Deadline { mono: now.mono, wall: now.wall }));
        }
        health
    }

    /// Returns the record to store.
    #[must_use]
    pub fn to_record(&self, now: Now) -> HealthRecord {
        let is_failing = self.failures > 0;
        let first_failure = |last: Timestamp| Timestamp(last.0.saturating_sub(self.failing_millis / 1_000));
        let cooldown = self.cooldown.filter(|_| !self.has_calmed_down(now));
        HealthRecord {
            failures: self.failures,
            failing_since: self.last_failure_at.filter(|_| is_failing).map(first_failure),
            last_failure_at: self.last_failure_at,
            last_success_at: self.last_success_at,
            next_retry_at: (self.next_dial.mono > now.mono).then_some(self.next_dial.wall),
            cooldown_until: cooldown.map(|due| due.wall),
            rate_limit_count: if cooldown.is_some() { self.rate_limit_count } else { 0 },
            parked: self.parked,
        }
    }

    /// Records a failed connection attempt. `random` is an arbitrary number for the jitter.
    ///
    /// After [`limits::MAX_OWN_NETWORK_FAILURES`] failures the cause no longer matters: a server with one peer cannot tell
    /// whether the peer or its own network is down, and must not dial a dead peer every minute forever.
    pub fn record_failure(&mut self, now: Now, cause: FailureCause, random: u64) -> FailureOutcome {
        self.connected_since = None;
        let was_dead = self.is_dead();
        match cause {
            FailureCause::OwnNetwork if self.own_failures < limits::MAX_OWN_NETWORK_FAILURES => {
                self.own_failures += 1;
                self.failing_counted_from = None;
                let min_millis = self.config.base_secs.clamp(1, limits::MAX_OFFLINE_RETRY_SECS) * 1_000;
                let span = limits::MAX_OFFLINE_RETRY_SECS * 1_000 - min_millis + 1;
                let wait = match self.failures {
                    // It failed before the outage, so it is not dialled more often during it.
                    _ if self.parked || was_dead => probe_millis(random),
                    0 => min_millis + random % span,
                    failures => self.backoff_millis(failures, random),
                };
                self.next_dial = Deadline::after_millis(now, wait);
            }
            FailureCause::Relay | FailureCause::OwnNetwork => {
                if self.failures == 0 {
                    self.failing_millis = 0;
                } else if let Some(since) = self.failing_counted_from {
                    self.failing_millis = self.failing_millis.saturating_add(now.mono.0.saturating_sub(since.0));
                }
                self.failures = self.failures.saturating_add(1);
                self.failing_counted_from = Some(now.mono);
                self.last_failure_at = Some(now.wall);
                let is_probed_daily = self.parked || self.is_dead();
                let wait =
                    if is_probed_daily { probe_millis(random) } else { self.backoff_millis(self.failures, random) };
                self.next_dial = Deadline::after_millis(now, wait);
            }
        }
        FailureOutcome { retry_at: self.next_dial_at(), became_dead: self.is_dead() && !was_dead }
    }

    /// Records an established connection.
    pub fn record_connected(&mut self, now: Now) {
        self.failures = 0;
        self.own_failures = 0;
        self.failing_millis = 0;
        self.failing_counted_from = None;
        self.last_success_at = Some(now.wall);
        self.connected_since = Some(now.mono);
        // A backoff that was set before no longer applies.
        self.next_dial = Deadline { mono: now.mono, wall: now.wall };
    }

    /// Records that a connection ended and was not closed by us. Returns when to dial again.
    pub fn record_lost(&mut self, now: Now, random: u64) -> MonoTime {
        let Some(since) = self.connected_since.take() else { return self.record_closed(now) };
        let is_stable = is_stable(since, now);
        self.short_connections = if is_stable { 0 } else { self.short_connections.saturating_add(1) };
        if is_stable {
            self.floods = 0;
        }
        let min_delay = limits::MIN_REDIAL_SECS * 1_000;
        let wait = match self.parked {
            // Either it was parked in this connection and the next probe is set, or the probe found no change.
            true if self.next_dial.mono > now.mono => min_delay,
            true => probe_millis(random),
            false if is_stable => min_delay,
            false => self.backoff_millis(self.short_connections, random).max(min_delay),
        };
        self.postpone(Deadline::after_millis(now, wait));
        self.next_dial_at()
    }

    /// Records that we closed a connection, which does not change the health. Returns when the relay may be dialled
    /// again.
    pub fn record_closed(&mut self, now: Now) -> MonoTime {
        if self.connected_since.take().is_some_and(|since| is_stable(since, now)) {
            (self.short_connections, self.floods) = (0, 0);
        }
        self.postpone(Deadline::after_secs(now, limits::MIN_REDIAL_SECS));
        self.next_dial_at()
    }

    /// Records that we closed a connection because the relay sent too much. Returns when it may be dialled again.
    pub fn record_flood(&mut self, now: Now, random: u64) -> MonoTime {
        self.record_closed(now);
        self.floods = self.floods.saturating_add(1);
        let steps = self.floods.saturating_add(limits::FLOOD_BACKOFF_STEPS);
        self.postpone(Deadline::after_millis(now, self.backoff_millis(steps, random)));
        self.next_dial_at()
    }

    /// Records a rate limit. Returns the end of the cooldown. Further rate limits during the cooldown answer requests
    /// that were sent before, so they do not count again, but they extend the cooldown, to twice its length at most: a
    /// relay that repeats its text would never be asked again.
    pub fn record_rate_limit(&mut self, now: Now) -> MonoTime {
        if !self.is_in_cooldown(now) {
            let count = if self.has_calmed_down(now) { 0 } else { self.rate_limit_count };
            self.rate_limit_count = count.saturating_add(1);
            self.cooldown_started = now.mono;
        }
        let secs = doubling_backoff(
            limits::RATE_LIMIT_COOLDOWN_SECS,
            self.rate_limit_count,
            limits::MAX_RATE_LIMIT_COOLDOWN_SECS,
        );
        let most = self.cooldown_started.plus_secs(2 * secs);
        let cooldown = match self.cooldown {
            Some(current) if self.is_in_cooldown(now) && now.mono.plus_secs(secs) > most => current,
            _ => Deadline::after_secs(now, secs),
        };
        self.cooldown = Some(cooldown);
        cooldown.mono
    }

    /// Parks the relay, because it does not serve us by policy: it is probed once a day. Returns the time of the next
    /// probe.
    pub fn park(&mut self, now: Now, random: u64) -> MonoTime {
        self.parked = true;
        self.next_dial = Deadline::after_millis(now, probe_millis(random));
        self.next_dial_at()
    }

    /// Ends the parking, because the relay has served us or the operator resumed it. Does not change when it is
    /// dialled; see [`retry_now`](Self::retry_now).
    pub fn unpark(&mut self) {
        self.parked = false;
    }

    /// Returns whether the relay is parked.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.parked
    }

    /// Returns the end of the last cooldown, which may have passed.
    #[must_use]
    pub fn cooldown_until(&self) -> Option<MonoTime> {
        self.cooldown.map(|due| due.mono)
    }

    /// Returns whether the relay is in its cooldown, so that no requests are sent.
    #[must_use]
    pub fn is_in_cooldown(&self, now: Now) -> bool {
        self.cooldown.is_some_and(|cooldown| cooldown.mono > now.mono)
    }

    /// Returns when the relay may be dialled, which may have passed. A relay in its cooldown is not dialled.
    #[must_use]
    pub fn next_dial_at(&self) -> MonoTime {
        self.next_dial.mono.max(self.cooldown_until().unwrap_or_default())
    }

    /// Allows an immediate connection attempt and ends the cooldown, on request of the operator. The rate limit count
    /// is kept.
    pub fn retry_now(&mut self, now: Now) {
        self.next_dial = Deadline { mono: now.mono, wall: now.wall };
        if let Some(cooldown) = &mut self.cooldown
            && cooldown.mono > now.mono
        {
            *cooldown = Deadline { mono: now.mono, wall: now.wall };
        }
    }

    /// Ends the backoff after a failure that was attributed to the own network, which works again. The cooldown is kept.
    pub(super) fn end_backoff(&mut self, now: Now) {
        self.next_dial = Deadline { mono: now.mono, wall: now.wall };
    }

    /// Returns whether a connection was ever established.
    #[must_use]
    pub fn was_ever_reached(&self) -> bool {
        self.last_success_at.is_some()
    }

    /// Returns the number of consecutive failed attempts, whatever their cause.
    #[must_use]
    pub fn failed_attempts(&self) -> u32 {
        self.failures.saturating_add(self.own_failures)
    }

    /// Returns the number of consecutive connection failures that count against the relay.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the health status.
    #[must_use]
    pub fn status(&self, now: Now) -> HealthStatus {
        if self.is_in_cooldown(now) {
            return HealthStatus::RateLimited;
        }
        if self.is_dead() {
            return HealthStatus::Dead;
        }
        match self.connected_since {
            _ if self.parked => HealthStatus::Degraded,
            Some(since) if is_stable(since, now) => HealthStatus::Healthy,
            Some(_) => HealthStatus::Stabilising,
            None if self.failures > 0 || self.short_connections > 0 => HealthStatus::Degraded,
            None => HealthStatus::Disconnected,
        }
    }

    fn is_dead(&self) -> bool {
        self.failures > 0 && self.failing_millis >= limits::RELAY_DEAD_SECS * 1_000
    }

    /// Returns whether the calm period after the last rate limit is over, so that the count starts anew.
    fn has_calmed_down(&self, now: Now) -> bool {
        self.cooldown.is_none_or(|cooldown| now.mono >= cooldown.mono.plus_secs(limits::RATE_LIMIT_RESET_SECS))
    }

    /// Moves the next connection attempt to a later time, never to an earlier one.
    fn postpone(&mut self, due: Deadline) {
        if due.mono > self.next_dial.mono {
            self.next_dial = due;
        }
    }

    /// Returns the delay after a failure or a short connection, with a jitter of ±20 %.
    fn backoff_millis(&self, count: u32, random: u64) -> u64 {
        let base = self.config.base_secs.max(1);
        let millis = doubling_backoff(base, count, self.config.max_secs.max(base)).saturating_mul(1_000);
        let fifth = millis / 5;
        (millis - fifth).saturating_add(random % (fifth.saturating_mul(2).saturating_add(1)))
    }

    /// Returns the longest delay while the relay is neither dead nor parked.
    fn max_backoff_secs(&self) -> u64 {
        let most = self.config.max_secs.max(self.config.base_secs).max(limits::MAX_OFFLINE_RETRY_SECS);
        most.saturating_add(most / 5).saturating_add(1)
    }
}

/// Returns `base`, doubled for each time after the first, at most `most`.
fn doubling_backoff(base: u64, times: u32, most: u64) -> u64 {
    let factor = 1_u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX);
    base.saturating_mul(factor).min(most)
}

/// Returns the delay until the next probe of a dead or parked relay: a day, ± one hour.
fn probe_millis(random: u64) -> u64 {
    let spread = limits::DEAD_RELAY_PROBE_SPREAD_SECS * 1_000;
    limits::DEAD_RELAY_PROBE_SECS * 1_000 - spread + random % (2 * spread + 1)
}

fn is_stable(since: MonoTime, now: Now) -> bool {
    now.mono.since(since).as_secs() >= limits::RELAY_STABLE_SECS
}

#[cfg(test)]
mod tests;

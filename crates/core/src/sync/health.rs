//! How a relay has been, and when it may be dialled or asked again.
//!
//! Within a process only the monotonic clock counts; wall times are kept for the row that another process reads.

use super::relay_record::HealthRow;
use crate::limits;
use crate::time::{Moment, Now, Timestamp};

/// How long to wait after failures. An operator may set both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackoffConfig {
    /// Seconds after the first failure; they double with each further one.
    pub base_secs: u64,
    /// Seconds at most, while the relay is not dead.
    pub max_secs: u64,
}

impl Default for BackoffConfig {
    /// Five seconds, so that a restart of the other side is hardly missed; an hour, so that nobody is pestered.
    fn default() -> Self {
        Self { base_secs: 5, max_secs: 60 * 60 }
    }
}

/// How a relay is. The numbers are those of the metric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Status {
    /// Connected, and stable for five minutes.
    Healthy = 1,
    /// Not connected, or not for long, and nothing is known against it.
    Disconnected = 2,
    /// It cannot be reached, does not hold its connections, or wants nothing to do with us.
    Degraded = 3,
    /// Nothing but failures for a day. It is tried once a day.
    Dead = 4,
    /// It wants less of us and is left in peace for a while.
    RateLimited = 5,
}

/// Whose fault a failure is (rule M10).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// Others can be reached, this one cannot.
    Theirs,
    /// Nobody can be reached.
    Ours,
}

/// What follows from a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// When to dial again.
    pub next: Moment,
    /// With this failure the relay counts as dead.
    pub died: bool,
}

/// A point in time on both clocks, as they were when it was fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Due {
    mono: Moment,
    wall: Timestamp,
}

impl Due {
    fn after_millis(now: Now, millis: u64) -> Self {
        Self { mono: Moment(now.mono.0.saturating_add(millis)), wall: now.wall.plus_secs(millis.div_ceil(1_000)) }
    }

    fn after_secs(now: Now, secs: u64) -> Self {
        Self { mono: now.mono.plus_secs(secs), wall: now.wall.plus_secs(secs) }
    }

    /// What a row says, if that is still to come; not further away than anything we would have written. Rows have whole
    /// seconds, and both clocks may have been cut to them: one second more, or it would be too early.
    fn restored(row: Option<Timestamp>, now: Now, most_secs: u64) -> Option<Self> {
        let wall = row?;
        let secs = wall.secs_since(now.wall).min(most_secs);
        let due = || Self { mono: now.mono.plus_secs((secs + 1).min(most_secs)), wall: now.wall.plus_secs(secs) };
        (secs > 0).then(due)
    }
}

/// A relay's health.
#[derive(Clone, Debug)]
pub struct Health {
    config: BackoffConfig,
    failures: u32,
    /// How long they have lasted, up to the newest. The time of our own outages is not in it.
    failing_millis: u64,
    /// Since when the time is theirs. Stopped by an outage of ours.
    failing_clock: Option<Moment>,
    last_failure_at: Option<Timestamp>,
    last_success_at: Option<Timestamp>,
    up_since: Option<Moment>,
    /// Connections in a row that ended before they were stable.
    flaps: u32,
    next_dial: Due,
    quiet: Option<Due>,
    strikes: u32,
    parked: bool,
}

impl Health {
    /// Begins with what an earlier process has written down. A row that cannot be true, because a clock was set or the
    /// settings have changed, delays nothing for longer than a new one would.
    #[must_use]
    pub fn new(config: BackoffConfig, row: &HealthRow, now: Now) -> Self {
        let last_failure_at = row.last_failure_at.map(|at| at.min(now.wall));
        let is_old = last_failure_at.is_some_and(|at| now.wall.secs_since(at) > limits::HEALTH_MEMORY_SECS);
        let failures = if is_old { 0 } else { row.failures };
        let failing_secs = match (last_failure_at, row.failing_since) {
            (Some(last), Some(since)) if failures > 0 => last.secs_since(since),
            _ => 0,
        };
        let mut health = Self {
            config,
            failures,
            failing_millis: failing_secs.saturating_mul(1_000),
            // The time in which there was no process counts for nobody.
            failing_clock: (failures > 0).then_some(now.mono),
            last_failure_at,
            last_success_at: row.last_success_at.map(|at| at.min(now.wall)),
            up_since: None,
            flaps: 0,
            next_dial: Due { mono: now.mono, wall: now.wall },
            quiet: None,
            strikes: 0,
            parked: row.parked,
        };
        let is_rare = health.parked || health.is_dead();
        let most = if is_rare { limits::PROBE_SECS + limits::PROBE_SPREAD_SECS } else { health.longest_secs() };
        health.next_dial = Due::restored(row.next_retry_at, now, most).unwrap_or(health.next_dial);
        health.quiet = Due::restored(row.quiet_until, now, limits::MAX_QUIET_SECS);
        let is_calm = row.quiet_until.is_none_or(|until| now.wall.secs_since(until) >= limits::CALM_SECS);
        if !is_calm {
            health.strikes = row.strikes;
            // Already over, but not long ago.
            health.quiet = health.quiet.or(Some(Due { mono: now.mono, wall: now.wall }));
        }
        health
    }

    /// What is to be written down.
    #[must_use]
    pub fn row(&self, now: Now) -> HealthRow {
        let is_failing = self.failures > 0;
        let begun = |last: Timestamp| Timestamp(last.0.saturating_sub(self.failing_millis / 1_000));
        let quiet = self.quiet.filter(|_| !self.is_calm(now));
        HealthRow {
            failures: self.failures,
            failing_since: self.last_failure_at.filter(|_| is_failing).map(begun),
            last_failure_at: self.last_failure_at,
            last_success_at: self.last_success_at,
            next_retry_at: (self.next_dial.mono > now.mono).then_some(self.next_dial.wall),
            quiet_until: quiet.map(|due| due.wall),
            strikes: if quiet.is_some() { self.strikes } else { 0 },
            parked: self.parked,
        }
    }

    /// A connection did not come about. `chance` is any number.
    pub fn failed(&mut self, now: Now, blame: Blame, chance: u64) -> Verdict {
        self.up_since = None;
        let was_dead = self.is_dead();
        match blame {
            Blame::Ours => {
                self.failing_clock = None;
                let least = self.config.base_secs.clamp(1, limits::OUR_RETRY_SECS) * 1_000;
                let span = limits::OUR_RETRY_SECS * 1_000 - least + 1;
                self.next_dial = Due::after_millis(now, least + chance % span);
            }
            Blame::Theirs => {
                if self.failures == 0 {
                    self.failing_millis = 0;
                } else if let Some(since) = self.failing_clock {
                    self.failing_millis = self.failing_millis.saturating_add(now.mono.0.saturating_sub(since.0));
                }
                self.failures = self.failures.saturating_add(1);
                self.failing_clock = Some(now.mono);
                self.last_failure_at = Some(now.wall);
                let is_rare = self.parked || self.is_dead();
                let wait = if is_rare { probe_millis(chance) } else { self.backoff_millis(self.failures, chance) };
                self.next_dial = Due::after_millis(now, wait);
            }
        }
        Verdict { next: self.next_dial(), died: self.is_dead() && !was_dead }
    }

    /// A connection stands.
    pub fn connected(&mut self, now: Now) {
        self.failures = 0;
        self.failing_millis = 0;
        self.failing_clock = None;
        self.last_success_at = Some(now.wall);
        self.up_since = Some(now.mono);
        // What was planned for the case that it cannot be reached is void.
        self.next_dial = Due { mono: now.mono, wall: now.wall };
    }

    /// A connection has ended, not by us. When to dial again.
    pub fn lost(&mut self, now: Now, chance: u64) -> Moment {
        let Some(since) = self.up_since.take() else { return self.left(now) };
        let is_stable = is_stable(since, now);
        self.flaps = if is_stable { 0 } else { self.flaps.saturating_add(1) };
        let soonest = limits::REDIAL_SECS * 1_000;
        let wait = match self.parked {
            // It was parked just now, or it has not changed its mind while it was probed.
            true if self.next_dial.mono > now.mono => soonest,
            true => probe_millis(chance),
            false if is_stable => soonest,
            false => self.backoff_millis(self.flaps, chance).max(soonest),
        };
        self.put_off(Due::after_millis(now, wait));
        self.next_dial()
    }

    /// A connection has ended by our wish, which says nothing about the relay. When it may be dialled again.
    pub fn left(&mut self, now: Now) -> Moment {
        if self.up_since.take().is_some_and(|since| is_stable(since, now)) {
            self.flaps = 0;
        }
        self.put_off(Due::after_secs(now, limits::REDIAL_SECS));
        self.next_dial()
    }

    /// It wants less of us. Until when nothing is asked of it. The answers to what was asked before it said so count as
    /// one complaint, but its quiet begins with the last of them.
    pub fn limited(&mut self, now: Now) -> Moment {
        if self.quiet.is_some_and(|quiet| quiet.mono > now.mono) {
            let secs = doubled(limits::QUIET_SECS, self.strikes, limits::MAX_QUIET_SECS);
            let quiet = Due::after_secs(now, secs);
            self.quiet = Some(quiet);
            return quiet.mono;
        }
        if self.is_calm(now) {
            self.strikes = 0;
        }
        self.strikes = self.strikes.saturating_add(1);
        let secs = doubled(limits::QUIET_SECS, self.strikes, limits::MAX_QUIET_SECS);
        let quiet = Due::after_secs(now, secs);
        self.quiet = Some(quiet);
        quiet.mono
    }

    /// It wants nothing to do with us. From now on it is probed once a day. When next.
    pub fn park(&mut self, now: Now, chance: u64) -> Moment {
        self.parked = true;
        self.next_dial = Due::after_millis(now, probe_millis(chance));
        self.next_dial()
    }

    /// It has served us after all, or the operator believes that it will. When it is dialled does not change; see
    /// [`retry_now`](Self::retry_now).
    pub fn unpark(&mut self) {
        self.parked = false;
    }

    /// Whether it wants nothing to do with us.
    #[must_use]
    pub fn is_parked(&self) -> bool {
        self.parked
    }

    /// Until when nothing is asked of it. May be over.
    #[must_use]
    pub fn quiet_until(&self) -> Option<Moment> {
        self.quiet.map(|due| due.mono)
    }

    /// When it may be dialled. May be over. A relay that wants to be left in peace is not dialled either (rule B7).
    #[must_use]
    pub fn next_dial(&self) -> Moment {
        self.next_dial.mono.max(self.quiet_until().unwrap_or_default())
    }

    /// Forgets that it wants to be left in peace: a deliberate mistake.
    pub(super) fn forget_quiet(&mut self) {
        self.quiet = None;
    }

    /// The operator wants it dialled now. It is asked things at once, too; what it has complained about is remembered.
    pub fn retry_now(&mut self, now: Now) {
        self.next_dial = Due { mono: now.mono, wall: now.wall };
        if let Some(quiet) = &mut self.quiet
            && quiet.mono > now.mono
        {
            *quiet = Due { mono: now.mono, wall: now.wall };
        }
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How it is.
    #[must_use]
    pub fn status(&self, now: Now) -> Status {
        if self.quiet.is_some_and(|quiet| quiet.mono > now.mono) {
            return Status::RateLimited;
        }
        if self.is_dead() {
            return Status::Dead;
        }
        match self.up_since {
            _ if self.parked => Status::Degraded,
            Some(since) if is_stable(since, now) => Status::Healthy,
            Some(_) => Status::Disconnected,
            None if self.failures > 0 || self.flaps > 0 => Status::Degraded,
            None => Status::Disconnected,
        }
    }

    fn is_dead(&self) -> bool {
        self.failures > 0 && self.failing_millis >= limits::DEAD_SECS * 1_000
    }

    /// Whether its last complaint is long enough ago to be forgotten.
    fn is_calm(&self, now: Now) -> bool {
        self.quiet.is_none_or(|quiet| now.mono >= quiet.mono.plus_secs(limits::CALM_SECS))
    }

    /// Moves the next attempt, but never closer.
    fn put_off(&mut self, due: Due) {
        if due.mono > self.next_dial.mono {
            self.next_dial = due;
        }
    }

    /// The wait after a failure or a connection that did not last, give or take a fifth.
    fn backoff_millis(&self, in_a_row: u32, chance: u64) -> u64 {
        let base = self.config.base_secs.max(1);
        let millis = doubled(base, in_a_row, self.config.max_secs.max(base)).saturating_mul(1_000);
        let fifth = millis / 5;
        (millis - fifth).saturating_add(chance % (fifth.saturating_mul(2).saturating_add(1)))
    }

    /// Seconds that no wait exceeds while the relay is neither dead nor parked.
    fn longest_secs(&self) -> u64 {
        let most = self.config.max_secs.max(self.config.base_secs).max(limits::OUR_RETRY_SECS);
        most.saturating_add(most / 5).saturating_add(1)
    }
}

/// `base` the first time, twice as much each further time, at most `most`.
fn doubled(base: u64, times: u32, most: u64) -> u64 {
    let factor = 1_u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX);
    base.saturating_mul(factor).min(most)
}

/// A day, an hour more or less.
fn probe_millis(chance: u64) -> u64 {
    let spread = limits::PROBE_SPREAD_SECS * 1_000;
    limits::PROBE_SECS * 1_000 - spread + chance % (2 * spread + 1)
}

fn is_stable(since: Moment, now: Now) -> bool {
    now.mono.since(since).as_secs() >= limits::STABLE_SECS
}

#[cfg(test)]
mod tests;

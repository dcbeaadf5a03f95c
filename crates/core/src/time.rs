//! The two clocks: [`MonoTime`] for deadlines, [`Timestamp`] for events and stored rows.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Wall time in unix seconds, as in events and stored rows. It can jump in both directions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the time `secs` seconds later, or the maximum on overflow.
    #[must_use]
    pub fn plus_secs(self, secs: u64) -> Self {
        Self(self.0.saturating_add(secs))
    }

    /// Returns the seconds since `earlier`, or zero if `earlier` is not earlier.
    #[must_use]
    pub fn secs_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point on the monotonic clock, in milliseconds since the process began. Used for deadlines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MonoTime(pub u64);

impl MonoTime {
    /// Returns the time `duration` later, or the maximum on overflow.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the time `secs` seconds later, or the maximum on overflow.
    #[must_use]
    pub fn plus_secs(self, secs: u64) -> Self {
        Self(self.0.saturating_add(secs.saturating_mul(1_000)))
    }

    /// Returns the time since `earlier`, or zero if `earlier` is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The current time, as it is passed to a state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Monotonic time, for deadlines.
    pub mono: MonoTime,
    /// Wall time, for rules about `created_at` and for everything that is stored.
    pub wall: Timestamp,
}

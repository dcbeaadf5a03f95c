//! Two clocks: one for waiting, one for what is written down.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Wall time in unix seconds: what events carry and what is stored. It can step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// This many seconds later.
    #[must_use]
    pub fn plus_secs(self, secs: u64) -> Self {
        Self(self.0.saturating_add(secs))
    }

    /// Seconds from `earlier` to here, zero if it is not earlier.
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

/// A point on the monotonic clock, in milliseconds since the process began: what deadlines are made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// This much later.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// This many seconds later.
    #[must_use]
    pub fn plus_secs(self, secs: u64) -> Self {
        Self(self.0.saturating_add(secs.saturating_mul(1_000)))
    }

    /// From `earlier` to here, zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// The time, as a machine is told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// For deadlines.
    pub mono: Moment,
    /// For `created_at` rules and for anything that is stored.
    pub wall: Timestamp,
}

//! The only place that reads the clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use grasp_core::time::{MonoTime, Now, Timestamp};

/// Returns the current time. Copies share the same start of monotonic time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    pub(crate) fn now(self) -> Now {
        Now { mono: self.mono(), wall: self.wall() }
    }

    pub(crate) fn mono(self) -> MonoTime {
        MonoTime(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn wall(self) -> Timestamp {
        Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }
}

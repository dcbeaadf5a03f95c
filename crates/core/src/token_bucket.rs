//! Rate limiting of clients and of requests to other servers.

use crate::time::MonoTime;

/// A token bucket: `burst` requests at once, then `per_minute` requests evenly. Its state is one number; the caller
/// passes the time.
///
/// It is implemented as a virtual schedule: `full_at_micros` is the time at which the bucket would be full again. Each
/// request moves it by the time that one token takes to refill. A request is allowed while the schedule is at most one
/// burst ahead of now.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    per_minute: u64,
    burst: u64,
    /// In microseconds: at 6,000 requests a minute a token takes ten milliseconds, and rounding errors would add up.
    full_at_micros: u64,
}

impl TokenBucket {
    /// Creates a full bucket. A `per_minute` of zero means no limit.
    #[must_use]
    pub const fn new(per_minute: u64, burst: u64) -> Self {
        Self { per_minute, burst, full_at_micros: 0 }
    }

    /// Takes one token and returns `true`, or returns `false` if there is none.
    pub fn take(&mut self, now: MonoTime) -> bool {
        if self.per_minute == 0 {
            return true;
        }
        let cost = 60_000_000 / self.per_minute;
        let now = now.0.saturating_mul(1_000);
        let start = self.full_at_micros.max(now);
        if start - now > cost.saturating_mul(self.burst.saturating_sub(1)) {
            return false;
        }
        self.full_at_micros = start + cost;
        true
    }

    /// Returns whether the bucket is full again and can be dropped.
    #[must_use]
    pub fn is_full(&self, now: MonoTime) -> bool {
        self.full_at_micros <= now.0.saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let mut bucket = TokenBucket::new(60, 3);
        let at = MonoTime;
        assert_eq!([0, 0, 0, 0].map(|t| bucket.take(at(t))), [true, true, true, false]);
        assert!(!bucket.take(at(999)));
        assert!(bucket.take(at(1_000)));
        assert!(!bucket.take(at(1_500)));
        assert!(!bucket.is_full(at(1_500)));
        assert!(bucket.is_full(at(4_000)));
        assert_eq!([0; 4].map(|_| bucket.take(at(60_000))), [true, true, true, false]);
    }

    #[test]
    fn zero_means_unlimited() {
        let mut bucket = TokenBucket::new(0, 0);
        assert!((0..10_000).all(|_| bucket.take(MonoTime(0))));
    }
}

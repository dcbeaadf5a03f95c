//! How much is asked of others, and how much strangers may ask of us.

use crate::time::Moment;

/// A token bucket: `burst` at once, then `per_minute` evenly. It holds two numbers and is told the time.
///
/// It is a *virtual schedule*: `full_at_micros` is when the bucket would be full again. A request costs one
/// token's worth of time; it is allowed while that schedule is at most a whole burst ahead of now.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    per_minute: u64,
    burst: u64,
    /// In microseconds, because at 6,000 a minute a token is worth ten milliseconds and rounding would add up.
    full_at_micros: u64,
}

impl Bucket {
    /// A full bucket. `per_minute` of zero means that nothing is limited.
    #[must_use]
    pub const fn new(per_minute: u64, burst: u64) -> Self {
        Self { per_minute, burst, full_at_micros: 0 }
    }

    /// Takes one token if there is one.
    pub fn take(&mut self, now: Moment) -> bool {
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

    /// Whether the bucket is full again, so that it may be forgotten.
    #[must_use]
    pub fn is_full(&self, now: Moment) -> bool {
        self.full_at_micros <= now.0.saturating_mul(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let mut bucket = Bucket::new(60, 3);
        let at = Moment;
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
        let mut bucket = Bucket::new(0, 0);
        assert!((0..10_000).all(|_| bucket.take(Moment(0))));
    }
}

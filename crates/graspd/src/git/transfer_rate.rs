//! Minimum rates of transfers, so that slow clients do not hold for long what others wait for.

use std::time::Duration;

/// Minimum number of bytes within a time that is spent waiting for the client.
#[derive(Clone, Copy)]
pub(super) struct MinRate {
    bytes: u64,
    within: Duration,
}

/// 1 kB/s, the rate of a modem.
pub(super) const RELAXED_RATE: MinRate = MinRate { bytes: 30 * 1024, within: Duration::from_secs(30) };

/// Rate while other requests wait for a permit, so that slow ones do not block them. 32 kB/s is slower than the
/// connections that are in use for pushes and clones.
pub(super) const CONTENDED_RATE: MinRate = MinRate { bytes: 160 * 1024, within: Duration::from_secs(5) };

/// Interval at which the rate of a transfer is checked while it makes no progress.
pub(super) const RATE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Rate of one transfer.
#[derive(Default)]
pub(super) struct TransferRate {
    /// Time spent waiting for the client, and bytes transferred, since the rate was last checked.
    waited: Duration,
    bytes: u64,
}

impl TransferRate {
    /// Adds time that was spent waiting for the client.
    pub(super) fn add_wait(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// Adds bytes that were transferred.
    pub(super) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// Returns true if the client is slower than `rate`, once enough time has been spent waiting. Earlier bursts do not
    /// count: a client that sends much and then nothing is too slow.
    pub(super) fn is_below(&mut self, rate: MinRate) -> bool {
        if self.waited < rate.within {
            return false;
        }
        // `waited` may be longer than `rate.within`, because the wait may have begun long before the contention.
        if u128::from(self.bytes) * rate.within.as_millis() < u128::from(rate.bytes) * self.waited.as_millis() {
            return true;
        }
        *self = Self::default();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_checked_after_enough_waiting() {
        let mut rate = TransferRate::default();
        rate.add_wait(Duration::from_secs(4));
        assert!(!rate.is_below(CONTENDED_RATE), "too early");
        rate.add_bytes(160 * 1024);
        rate.add_wait(Duration::from_secs(1));
        assert!(!rate.is_below(CONTENDED_RATE));
        // The burst no longer counts.
        rate.add_wait(Duration::from_secs(6));
        rate.add_bytes(160 * 1024);
        assert!(!rate.is_below(RELAXED_RATE), "too early");
        assert!(rate.is_below(CONTENDED_RATE), "six seconds for the bytes of five");
    }
}

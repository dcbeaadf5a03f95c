//! Gauge values of one relay, or of several relays that share a label.

use grasp_core::sync::RelaySnapshot;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::time::Timestamp;

use crate::metrics::gauge_value;

/// Gauge values of one or more relays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RelaySample {
    /// [`ConnectionStatus`] as a number, or [`NOT_DIALLED`].
    pub(super) connected: i64,
    pub(super) status: i64,
    pub(super) failures: i64,
    /// Seconds for which events may be missing here, if something was ever received.
    pub(super) lag_secs: Option<i64>,
    pub(super) live: i64,
    pub(super) requests: i64,
    /// Seconds connected, of all seconds.
    up_secs: (u64, u64),
    /// Events that the relay also has, of all compared events.
    shared: (u64, u64),
}

/// Value of `connected` for a relay that is not dialled, because the operator paused it or because it is this server.
const NOT_DIALLED: i64 = -1;

/// Returns the worse of two values of `connected`. A relay that is not dialled is not worse than any other.
fn worse_connection(left: i64, right: i64) -> i64 {
    if left.min(right) == NOT_DIALLED { left.max(right) } else { left.min(right) }
}

impl RelaySample {
    pub(super) fn new(relay: &RelaySnapshot, now: Timestamp) -> Self {
        let totals = &relay.totals;
        Self {
            connected: if relay.is_paused || relay.is_self { NOT_DIALLED } else { relay.status as i64 },
            status: relay.health.metric_value(),
            failures: i64::from(relay.failures),
            lag_secs: relay.lag_secs(now).map(gauge_value),
            live: gauge_value(relay.subscriptions.0 as u64),
            requests: gauge_value(relay.subscriptions.1 as u64),
            up_secs: (totals.up_secs, totals.up_secs.saturating_add(totals.down_secs)),
            shared: (totals.shared, totals.compared),
        }
    }

    /// Returns the values of two samples together: the worst state, and the sum of everything that can be added.
    pub(super) fn combine(self, other: Self) -> Self {
        let sum =
            |left: (u64, u64), right: (u64, u64)| (left.0.saturating_add(right.0), left.1.saturating_add(right.1));
        Self {
            connected: worse_connection(self.connected, other.connected),
            status: self.status.max(other.status),
            failures: self.failures.max(other.failures),
            lag_secs: self.lag_secs.max(other.lag_secs),
            live: self.live.saturating_add(other.live),
            requests: self.requests.saturating_add(other.requests),
            up_secs: sum(self.up_secs, other.up_secs),
            shared: sum(self.shared, other.shared),
        }
    }

    pub(super) fn uptime(&self) -> Option<f64> {
        ratio(self.up_secs)
    }

    pub(super) fn coverage(&self) -> Option<f64> {
        ratio(self.shared)
    }
}

/// Returns whether a status means that a connection exists.
pub(super) fn is_connected(status: ConnectionStatus) -> bool {
    match status {
        ConnectionStatus::Disconnected | ConnectionStatus::Connecting => false,
        ConnectionStatus::Syncing | ConnectionStatus::Connected | ConnectionStatus::ConnectedHistoricSyncFailures => {
            true
        }
    }
}

fn ratio((part, whole): (u64, u64)) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

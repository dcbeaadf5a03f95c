//! The numbers of one relay at one moment, and of several as if they were one.

use grasp_core::sync::RelaySnapshot;
use grasp_core::sync::relay::ConnectionStatus;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sample {
    pub(super) connected: i64,
    pub(super) status: i64,
    pub(super) failures: i64,
    pub(super) live: i64,
    pub(super) requests: i64,
    /// Seconds up, of all.
    up: (u64, u64),
    /// Events that are there too, of all that were compared.
    shared: (u64, u64),
}

/// The connection of a relay that is not dialled: the operator wants that, or it is this server.
const LEFT_ALONE: i64 = -1;

/// The worse of two connections. One that is left alone is no worse than any.
fn worse(a: i64, b: i64) -> i64 {
    if a.min(b) == LEFT_ALONE { a.max(b) } else { a.min(b) }
}

impl Sample {
    pub(super) fn of(link: &RelaySnapshot) -> Self {
        let totals = &link.totals;
        Self {
            connected: if link.is_paused || link.is_self { LEFT_ALONE } else { link.status as i64 },
            status: link.health as i64,
            failures: i64::from(link.failures),
            live: number(link.subscriptions.0),
            requests: number(link.subscriptions.1),
            up: (totals.up_secs, totals.up_secs.saturating_add(totals.down_secs)),
            shared: (totals.shared, totals.compared),
        }
    }

    /// Both: the worst state, and the sum of what can be added.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
        Self {
            connected: worse(self.connected, other.connected),
            status: self.status.max(other.status),
            failures: self.failures.max(other.failures),
            live: self.live.saturating_add(other.live),
            requests: self.requests.saturating_add(other.requests),
            up: sum(self.up, other.up),
            shared: sum(self.shared, other.shared),
        }
    }

    pub(super) fn uptime(&self) -> Option<f64> {
        ratio(self.up)
    }

    pub(super) fn coverage(&self) -> Option<f64> {
        ratio(self.shared)
    }
}

/// Whether there is a connection.
pub(super) fn is_up(status: ConnectionStatus) -> bool {
    match status {
        ConnectionStatus::Disconnected | ConnectionStatus::Connecting => false,
        ConnectionStatus::Syncing | ConnectionStatus::Connected | ConnectionStatus::ConnectedHistoricSyncFailures => {
            true
        }
    }
}

/// A count as gauges have it.
pub(super) fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn ratio((part, whole): (u64, u64)) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

//! Formatting of states, for the status page and its JSON.

use grasp_core::fetch;
use grasp_core::sync::RelaySnapshot;
use grasp_core::sync::relay::ConnectionStatus;
use grasp_core::time::Timestamp;

use crate::monitor::health::ExpiringEvent;
pub(crate) use crate::text_format::{bytes, count, duration};

/// How good a displayed state is. It selects the colour.
#[derive(Clone, Copy, Hash)]
pub(crate) enum Rating {
    Good,
    Fair,
    Bad,
}

impl Rating {
    /// Returns the CSS class.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "bad",
        }
    }
}

/// Returns relays in the order of display: configured relays first, then by number of repositories.
pub(crate) fn display_order(snapshot: &grasp_core::sync::SyncSnapshot) -> Vec<&RelaySnapshot> {
    let mut relays: Vec<&RelaySnapshot> = snapshot.relays.iter().collect();
    relays.sort_by(|left, right| {
        let rank = |relay: &RelaySnapshot| (!relay.is_bootstrap, std::cmp::Reverse(relay.repositories));
        rank(left).cmp(&rank(right)).then_with(|| left.url.cmp(&right.url))
    });
    relays
}

/// Returns the state of a relay as text, and how good it is.
pub(crate) fn relay_state(relay: &RelaySnapshot) -> (&'static str, Rating) {
    use grasp_core::sync::health::HealthStatus as Health;
    match (relay.status, relay.health) {
        _ if relay.is_self => ("this service", Rating::Good),
        _ if relay.is_paused => ("paused", Rating::Fair),
        (ConnectionStatus::Connected, Health::RateLimited) => ("connected, rate limited", Rating::Fair),
        (ConnectionStatus::Connected, Health::Stabilising) => ("connected (stabilising)", Rating::Good),
        (ConnectionStatus::Connected, _) => ("connected", Rating::Good),
        (ConnectionStatus::ConnectedHistoricSyncFailures, _) => ("connected, history incomplete", Rating::Fair),
        (ConnectionStatus::Syncing, _) => ("catching up", Rating::Fair),
        (ConnectionStatus::Connecting, _) => ("connecting", Rating::Fair),
        (ConnectionStatus::Disconnected, Health::Dead) => ("dead", Rating::Bad),
        (ConnectionStatus::Disconnected, Health::RateLimited) => ("rate limited", Rating::Fair),
        (ConnectionStatus::Disconnected, _) => ("not connected", Rating::Bad),
    }
}

/// Returns why an event is still in purgatory, as text.
pub(crate) fn waiting_reason(event: &ExpiringEvent) -> &'static str {
    if event.tried { "git data not found on any source yet" } else { "waiting for its git data" }
}

/// Returns the host of a source and the outcome of the last request to it. Only the host is public, because the path
/// may contain the name of a repository that is not served.
pub(crate) fn source_outcome(source: &fetch::SourceView) -> (&str, String) {
    let host = source.url.split("://").nth(1).unwrap_or(&source.url).split('/').next().unwrap_or_default();
    let outcome = match &source.outcome {
        _ if source.is_asking => "being_asked".to_owned(),
        _ if source.is_waiting => "waiting".to_owned(),
        Some(outcome) => outcome.label().to_owned(),
        None => "not_asked".to_owned(),
    };
    (host, outcome)
}

/// Returns the number of seconds for which events of a relay may be missing here; `None` if nothing is missing.
pub(crate) fn lag(relay: &RelaySnapshot, now: u64) -> Option<u64> {
    relay.lag_secs(Timestamp(now)).filter(|secs| *secs > 0)
}

/// Formats a share in percent; `None` if the whole is zero.
pub(crate) fn percentage(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", 100.0 * part as f64 / whole as f64))
}

//! How amounts and states are said.

use grasp_core::fetch;
use grasp_core::sync::{RelaySnapshot, relay};

use crate::monitor::health::ExpiringEvent;

/// How good a word is.
#[derive(Clone, Copy)]
pub(crate) enum Mood {
    Good,
    Fair,
    Bad,
}

impl Mood {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "bad",
        }
    }
}

/// Relays as they are shown: those in trouble first, then by their repositories.
pub(crate) fn ordered(view: &grasp_core::sync::SyncSnapshot) -> Vec<&RelaySnapshot> {
    let mut links: Vec<&RelaySnapshot> = view.relays.iter().collect();
    links.sort_by(|a, b| {
        let rank = |link: &RelaySnapshot| (!link.is_bootstrap, std::cmp::Reverse(link.repositories));
        rank(a).cmp(&rank(b)).then_with(|| a.url.cmp(&b.url))
    });
    links
}

/// Where a relay stands, in a word.
pub(crate) fn state(link: &RelaySnapshot) -> (&'static str, Mood) {
    use grasp_core::sync::health::HealthStatus as Health;
    match (link.status, link.health) {
        _ if link.is_self => ("this service", Mood::Good),
        _ if link.is_paused => ("paused", Mood::Fair),
        (relay::ConnectionStatus::Connected, Health::RateLimited) => ("connected, wants less of us", Mood::Fair),
        (relay::ConnectionStatus::Connected, _) => ("connected", Mood::Good),
        (relay::ConnectionStatus::ConnectedHistoricSyncFailures, _) => ("connected, history incomplete", Mood::Fair),
        (relay::ConnectionStatus::Syncing, _) => ("catching up", Mood::Fair),
        (relay::ConnectionStatus::Connecting, _) => ("connecting", Mood::Fair),
        (relay::ConnectionStatus::Disconnected, Health::Dead) => ("dead", Mood::Bad),
        (relay::ConnectionStatus::Disconnected, Health::RateLimited) => ("wants less of us", Mood::Fair),
        (relay::ConnectionStatus::Disconnected, _) => ("not connected", Mood::Bad),
    }
}

/// Why an event waits.
pub(crate) fn waits(event: &ExpiringEvent) -> &'static str {
    if event.tried { "nobody has its git data so far" } else { "its git data is awaited" }
}

/// Where a search asks, and what came of it. Hosts alone are told: a path may name what only waits.
pub(crate) fn place(stop: &fetch::SourceView) -> (&str, String) {
    let host = stop.url.split("://").nth(1).unwrap_or(&stop.url).split('/').next().unwrap_or_default();
    let outcome = match &stop.outcome {
        _ if stop.is_asking => "being_asked".to_owned(),
        _ if stop.is_waiting => "waiting".to_owned(),
        Some(outcome) => outcome.label().to_owned(),
        None => "not_asked".to_owned(),
    };
    (host, outcome)
}

/// For how long something of a relay may be missing here.
pub(crate) fn lag(link: &RelaySnapshot, now: u64) -> Option<u64> {
    let complete = link.status == relay::ConnectionStatus::Connected && link.covered >= link.repositories;
    let since = link.historic_sync_completed_at.or(link.last_message_at)?;
    (!complete).then(|| now.saturating_sub(since.0))
}

/// A time in two units at most: `3 d 4 h`, `12 min`, `7 s`.
pub(crate) fn duration(secs: u64) -> String {
    match (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60, secs % 60) {
        (0, 0, 0, secs) => format!("{secs} s"),
        (0, 0, minutes, secs) if minutes < 10 => format!("{minutes} min {secs} s"),
        (0, 0, minutes, _) => format!("{minutes} min"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Bytes with three digits: `1.21 GB`.
pub(crate) fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = amount as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { usize::from(value < 9.995) + 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// A count with spaces between thousands.
pub(crate) fn count(amount: u64) -> String {
    let digits = amount.to_string();
    let mut out = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A share in percent, if there is a whole.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<String> {
    (whole > 0).then(|| format!("{:.1} %", 100.0 * part as f64 / whole as f64))
}

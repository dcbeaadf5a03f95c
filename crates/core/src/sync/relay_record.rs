//! The persistent state of a relay.
//!
//! Stored as JSON. The serialized field names are part of the on-disk format.

use serde::{Deserialize, Serialize};

use super::io::Seq;
use super::relay_url::RelayUrl;
use crate::time::Timestamp;

/// The stored state of a relay. All times are wall clock times, because the next process reads them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayRecord {
    /// URL of the relay.
    pub url: RelayUrl,
    /// When a repository or the configuration last needed the relay.
    pub wanted_at: Timestamp,
    /// Health.
    pub health: HealthRecord,
    /// Limits learned from rejections.
    pub learned: LearnedLimits,
    /// How far the relay is synced. `None` if nothing is complete.
    pub covered: Option<CoverageRecord>,
    /// Counters over all processes.
    pub totals: RelayTotals,
    /// The operator has paused the relay.
    pub paused: bool,
    /// The URL leads to this server itself.
    pub is_self: bool,
}

/// The persistent part of [`RelayHealth`](super::health::RelayHealth).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRecord {
    /// Consecutive connection failures.
    pub failures: u32,
    /// Time of the first of these failures, minus the time of own network outages.
    pub failing_since: Option<Timestamp>,
    /// Time of the latest failure.
    pub last_failure_at: Option<Timestamp>,
    /// Time of the latest successful connection.
    pub last_success_at: Option<Timestamp>,
    /// Earliest time of the next connection attempt.
    pub next_retry_at: Option<Timestamp>,
    /// End of the cooldown after a rate limit. No requests are sent before.
    #[serde(rename = "quiet_until")]
    pub cooldown_until: Option<Timestamp>,
    /// Rate limits without a calm period between them. Determines the length of the next cooldown.
    #[serde(rename = "strikes")]
    pub rate_limit_count: u32,
    /// The relay does not serve us by policy. It is probed once a day.
    pub parked: bool,
}

/// Limits learned from the rejections of a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LearnedLimits {
    /// Maximum concurrent subscriptions, if the relay rejected fewer than it states.
    #[serde(rename = "slots")]
    pub max_subscriptions: Option<u32>,
    /// Maximum filters of one request, if the relay rejected more.
    #[serde(rename = "filters")]
    pub max_filters: Option<u32>,
    /// Maximum bytes of all subscriptions together, if the relay stated a number in a rejection.
    pub subscription_bytes: Option<u64>,
    /// Form of the filters of live subscriptions.
    #[serde(rename = "live")]
    pub live_form: LiveFilterForm,
    /// When the relay last rejected negentropy.
    pub no_negentropy_at: Option<Timestamp>,
    /// The relay must not be followed without tag filters: it rejected such a subscription, or delivered mostly
    /// unrelated events.
    #[serde(rename = "not_wide")]
    pub wide_disabled: bool,
}

/// Form of the filters of live subscriptions. See `docs/design/sync.md#live-sync`. Stored by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LiveFilterForm {
    /// `limit: 0`.
    #[default]
    Zero,
    /// `limit: 1`, if the relay rejects zero.
    One,
    /// `since` a short time ago, if the relay rejects both.
    Since,
}

/// How far a relay is synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CoverageRecord {
    /// Identifies the store, the policy and the version of the filters that the coverage was reached with. With another
    /// value the coverage is void.
    pub epoch: u64,
    /// Announcements and states are completely synced.
    pub announcements: bool,
    /// For all repositories and root events stored up to this sequence number, all events of the relay have been
    /// decided.
    pub up_to: Seq,
    /// Last message of the relay while the coverage held.
    pub lost_at: Timestamp,
    /// Events that the relay received between this time and `lost_at` have not been requested yet.
    pub since: Option<Timestamp>,
    /// Time of the next daily reconciliation.
    pub next_full_at: Timestamp,
    /// Part of the historic sync failed.
    pub failed: bool,
}

/// Counters of a relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayTotals {
    /// Connection attempts.
    pub attempts: u64,
    /// Failed connection attempts.
    pub failures: u64,
    /// Seconds connected.
    pub up_secs: u64,
    /// Seconds disconnected while the relay was needed and not paused.
    pub down_secs: u64,
    /// New events received.
    pub received: u64,
    /// New events that historic sync found although live sync should have delivered them.
    pub gaps: u64,
    /// Served events that were compared with the relay in the last full run, each once.
    pub compared: u64,
    /// Compared events that the relay has too.
    pub shared: u64,
}

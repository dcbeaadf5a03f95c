//! What is remembered of a relay over restarts.

use serde::{Deserialize, Serialize};

use super::io::Seq;
use super::relay_url::RelayUrl;
use crate::time::Timestamp;

/// A relay's row. All times are wall times: it is read by another process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// Which relay.
    pub url: RelayUrl,
    /// When something here last wanted it.
    pub wanted_at: Timestamp,
    /// How it has been.
    pub health: HealthRow,
    /// What it has taught us about itself.
    pub learned: Learned,
    /// What of it is here.
    pub covered: Option<Covered>,
    /// What it has done for us, in all.
    pub totals: Totals,
    /// The operator wants it left alone.
    pub paused: bool,
    /// It is this server under another name.
    pub is_self: bool,
}

/// The part of a relay's health that outlives a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRow {
    /// Failures in a row.
    pub failures: u32,
    /// When that row began.
    pub failing_since: Option<Timestamp>,
    /// The newest failure.
    pub last_failure_at: Option<Timestamp>,
    /// The newest connection that came about.
    pub last_success_at: Option<Timestamp>,
    /// Not to be dialled before.
    pub next_retry_at: Option<Timestamp>,
    /// Nothing is asked of it before: it wants less of us.
    pub quiet_until: Option<Timestamp>,
    /// How often it has said so without a calm time between.
    pub strikes: u32,
    /// It wants nothing to do with us; asked again once a day.
    pub parked: bool,
}

/// What a relay's answers have taught us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Learned {
    /// Subscriptions at once, if it refused more than it states.
    pub slots: Option<u32>,
    /// Filters of one request, if it refused more.
    pub filters: Option<u32>,
    /// Bytes of all subscriptions together, if it named a number.
    pub subscription_bytes: Option<u64>,
    /// How `limit: 0` must be said.
    pub live: LiveForm,
    /// It does not speak negentropy, as of then.
    pub no_negentropy_at: Option<Timestamp>,
    /// Following it without tags brought mostly what does not belong here.
    pub not_wide: bool,
}

/// How a live subscription is asked for (rule M3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LiveForm {
    /// `limit: 0`.
    #[default]
    Zero,
    /// `limit: 1`, where zero is refused.
    One,
    /// `since` a while ago, where both are refused.
    Since,
}

/// What of a relay is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Covered {
    /// What all this rests on: the store, the policy, the version of our filters. Another value, and it is worth nothing.
    pub epoch: u64,
    /// Announcements and states have been asked for in whole.
    pub announcements: bool,
    /// Of everything followed that arrived up to here, all that the relay had has been judged.
    pub up_to: Seq,
    /// When it was last heard while that was so.
    pub lost_at: Timestamp,
    /// What the relay got between this time and `lost_at` has not been asked for yet.
    pub since: Option<Timestamp>,
    /// When everything is to be asked for again.
    pub next_full_at: Timestamp,
    /// Part of the history could not be had.
    pub failed: bool,
}

/// What a relay has done for us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Connections that were tried.
    pub attempts: u64,
    /// Those that did not come about.
    pub failures: u64,
    /// Seconds connected.
    pub up_secs: u64,
    /// Seconds not connected although wanted.
    pub down_secs: u64,
    /// Events that were new here.
    pub received: u64,
    /// Of those, the ones that should have come live and did not.
    pub gaps: u64,
    /// Events that were compared with it in the last reconciliation, and how many of them it has.
    pub compared: u64,
    /// See `compared`.
    pub shared: u64,
}

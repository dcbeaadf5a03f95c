//! Snapshots of the sync machine for the status page, the admin API and the metrics.

use super::io::SyncSource;
use super::relay::{ConnectionStatus, Relay};
use super::relay_record::{LearnedLimits, RelayTotals};
use super::relay_url::RelayUrl;
use super::{SyncMachine, health};
use crate::repo::RepoId;
use crate::state_machine::StateMachine;
use crate::time::Timestamp;

/// Snapshot of the whole sync machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SyncSnapshot {
    /// Time of the snapshot.
    pub at: Timestamp,
    /// All relays.
    pub relays: Vec<RelaySnapshot>,
    /// Number of followed repositories.
    pub repositories: usize,
    /// Submitted events without a result.
    pub in_flight: usize,
    /// Number of events in the rejected-events index, and of those that are kept whole.
    pub rejected: (usize, usize),
}

/// Snapshot of one relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelaySnapshot {
    /// URL of the relay.
    pub url: RelayUrl,
    /// Connection status.
    pub status: ConnectionStatus,
    /// Health.
    pub health: health::HealthStatus,
    /// Consecutive connection failures.
    pub failures: u32,
    /// Number of served repositories that list it.
    pub repositories: usize,
    /// Number of those that are completely synced from it.
    pub covered: usize,
    /// Number of held repositories that list it.
    pub held: usize,
    /// Number of open live subscriptions and of other open requests.
    pub subscriptions: (usize, usize),
    /// Number of filters of the live subscriptions.
    pub filters: usize,
    /// Number of scopes that are polled for lack of a free live subscription.
    pub polled: usize,
    /// Whether it is followed with one subscription without tags.
    pub is_wide: bool,
    /// Number of requests that have not been started.
    pub queued: usize,
    /// Milliseconds until it is dialled, if it waits for a connection.
    pub dial_in_millis: Option<u64>,
    /// Remaining seconds of its rate-limit cooldown.
    pub cooldown_secs: Option<u64>,
    /// Number of failed batches that are retried.
    pub failed_batches: usize,
    /// When historic sync was last completed.
    pub historic_sync_completed_at: Option<Timestamp>,
    /// Time of its last message.
    pub last_message_at: Option<Timestamp>,
    /// Seconds until the next full reconciliation.
    pub next_full_sync_secs: u64,
    /// Whether a daily reconciliation is in progress.
    pub is_reconciling: bool,
    /// Progress of the current catch-up or daily reconciliation.
    pub progress: Option<CatchUpProgress>,
    /// Limits learned from its rejections.
    pub learned: LearnedLimits,
    /// Totals over restarts.
    pub totals: RelayTotals,
    /// Whether the operator paused it.
    pub is_paused: bool,
    /// Whether it is this server under another URL.
    pub is_self: bool,
    /// Whether the operator configured it.
    pub is_bootstrap: bool,
}

impl RelaySnapshot {
    /// Returns the number of seconds for which events of the relay may be missing here: 0 if nothing is missing, `None`
    /// if nothing was ever received from it.
    #[must_use]
    pub fn lag_secs(&self, now: Timestamp) -> Option<u64> {
        if self.status == ConnectionStatus::Connected && self.covered >= self.repositories {
            return Some(0);
        }
        let since = self.historic_sync_completed_at.or(self.last_message_at)?;
        Some(now.secs_since(since))
    }
}

/// Progress of a catch-up or daily reconciliation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatchUpProgress {
    /// Which of the two.
    pub source: SyncSource,
    /// Number of completed repositories.
    pub done: usize,
    /// Number of all repositories.
    pub total: usize,
    /// Number of new events.
    pub events: u64,
}

/// Sync status of one repository at one relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepoRelayStatus {
    /// URL of the relay.
    pub url: RelayUrl,
    /// Connection status.
    pub status: ConnectionStatus,
    /// Health.
    pub health: health::HealthStatus,
    /// How far the repository is synced from it.
    pub sync: RepoSyncStatus,
    /// When historic sync of all repositories was last completed.
    pub historic_sync_completed_at: Option<Timestamp>,
    /// Time of its last message.
    pub last_message_at: Option<Timestamp>,
    /// Whether it is this server under another URL.
    pub is_self: bool,
}

/// How far one repository is synced from one relay. The status page, the coverage metric and `graspd repos` use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepoSyncStatus {
    /// The repository is held, so that only its announcements and states are synced.
    Held,
    /// Part of its events has not been requested.
    NotRequested,
    /// This number of batches is in progress or will be retried.
    InProgress {
        /// Number of batches.
        batches: u32,
    },
    /// All stored events have been received and decided.
    Complete,
}

impl RepoSyncStatus {
    /// Returns whether nothing is missing.
    #[must_use]
    pub fn is_complete(self) -> bool {
        self == Self::Complete
    }
}

impl SyncMachine {
    /// Returns the relays from which a repository is synced.
    #[must_use]
    pub fn repo_relays(&self, repo: &RepoId) -> Vec<RepoRelayStatus> {
        let Some(key) = self.repo_index.key(repo) else { return Vec::new() };
        let status = |relay: &Relay| {
            Some(RepoRelayStatus {
                url: relay.url.clone(),
                status: relay.status(),
                health: relay.health.status(self.now),
                sync: relay.historic.repo_status(&self.repo_index, key)?,
                historic_sync_completed_at: relay.historic.completed_at(),
                last_message_at: relay.last_message.map(|message| message.wall),
                is_self: relay.is_self,
            })
        };
        self.relays.values().filter_map(status).collect()
    }

    /// Returns a snapshot of the machine.
    #[must_use]
    pub fn snapshot(&self) -> SyncSnapshot {
        SyncSnapshot {
            at: self.now.wall,
            relays: self.relays.values().map(|relay| self.relay_snapshot(relay)).collect(),
            repositories: self.repo_index.len(),
            in_flight: self.in_flight.len(),
            rejected: (self.rejected.len(), self.rejected.hot_len()),
        }
    }

    /// Returns a snapshot of one followed relay.
    #[must_use]
    pub fn relay(&self, url: &RelayUrl) -> Option<RelaySnapshot> {
        let id = self.relay_ids.get(url.without_scheme())?;
        self.relays.get(id).map(|relay| self.relay_snapshot(relay))
    }

    /// Whether there is a stored record of a relay that is not followed now.
    #[must_use]
    pub fn has_stored_record(&self, url: &RelayUrl) -> bool {
        self.stored_records.contains_key(url.without_scheme())
    }

    /// Whether there is nothing to do before the next wake-up time.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alarm().is_none_or(|(at, _)| at > self.now.mono)
    }

    fn relay_snapshot(&self, relay: &Relay) -> RelaySnapshot {
        let connection = relay.connection();
        let mono = self.now.mono;
        let historic = &relay.historic;
        let (repositories, held) = historic.repo_counts();
        let covered = historic.complete_count(&self.repo_index);
        let is_waiting = relay.current_session().is_none() && relay.is_needed() && !relay.is_paused;
        let dial_in = relay.health.next_dial_at().since(mono);
        RelaySnapshot {
            url: relay.url.clone(),
            status: relay.status(),
            health: relay.health.status(self.now),
            failures: relay.health.failed_attempts(),
            repositories,
            covered,
            held,
            subscriptions: connection.map_or((0, 0), |connection| {
                let live = connection.session.live_count();
                (live, connection.session.slot_count() - live)
            }),
            filters: connection.map_or(0, |connection| connection.live.filter_count()),
            polled: connection.map_or(0, |connection| connection.live.polled_count()),
            is_wide: connection.is_some_and(|connection| connection.live.is_wide()),
            queued: connection.map_or(0, |_| historic.queued_count()),
            dial_in_millis: is_waiting.then(|| u64::try_from(dial_in.as_millis()).unwrap_or(u64::MAX)),
            cooldown_secs: relay.health.cooldown_until().filter(|at| *at > mono).map(|at| at.since(mono).as_secs()),
            failed_batches: historic.failed_count(),
            historic_sync_completed_at: historic.completed_at(),
            last_message_at: relay.last_message.map(|message| message.wall),
            next_full_sync_secs: historic.next_full_sync_secs(mono),
            is_reconciling: historic.running() == Some(SyncSource::Daily),
            progress: historic.progress(covered),
            learned: relay.limits.learned(),
            totals: relay.totals,
            is_paused: relay.is_paused,
            is_self: relay.is_self,
            is_bootstrap: relay.is_bootstrap,
        }
    }
}

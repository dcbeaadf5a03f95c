//! Snapshots of the sync machine for the status page, the admin API and the metrics.

use std::collections::BTreeSet;

use super::completion::scope_repos;
use super::io::SyncSource;
use super::relay::{Connection, ConnectionStatus, RelayState, SubscriptionPurpose};
use super::relay_record::{LearnedLimits, RelayTotals};
use super::relay_url::RelayUrl;
use super::targets::RepoKey;
use super::{SyncMachine, health};
use crate::repo::RepoId;
use crate::state_machine::StateMachine;
use crate::time::Timestamp;

/// Snapshot of the whole sync machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SyncSnapshot {
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
    /// Whether the repository is completely synced from it.
    pub is_covered: bool,
    /// When historic sync of all repositories was last completed.
    pub historic_sync_completed_at: Option<Timestamp>,
    /// Time of its last message.
    pub last_message_at: Option<Timestamp>,
    /// Whether it is this server under another URL.
    pub is_self: bool,
}

impl SyncMachine {
    /// Returns the relays from which a repository is synced.
    #[must_use]
    pub fn repo_relays(&self, repo: &RepoId) -> Vec<RepoRelayStatus> {
        let Some(key) = self.repo_index.key(repo) else { return Vec::new() };
        let newest_root = self.repo_index.repo(key).map_or(0, |repo| repo.newest_root_seq());
        let listing =
            self.relays.values().filter(|relay| relay.coverage.contains_key(&key) || relay.held_repos.contains(&key));
        listing
            .map(|relay| RepoRelayStatus {
                url: relay.url.clone(),
                status: relay.status(),
                health: relay.health.status(self.now),
                is_covered: relay
                    .coverage
                    .get(&key)
                    .is_some_and(|coverage| coverage.tags_complete && newest_root <= coverage.roots_complete),
                historic_sync_completed_at: relay.historic_sync_completed_at,
                last_message_at: relay.last_message.map(|message| message.wall),
                is_self: relay.is_self,
            })
            .collect()
    }

    /// Returns a snapshot of the machine.
    #[must_use]
    pub fn snapshot(&self) -> SyncSnapshot {
        SyncSnapshot {
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

    fn relay_snapshot(&self, relay: &RelayState) -> RelaySnapshot {
        let connection = relay.connection();
        let mono = self.now.mono;
        let covered = relay.coverage.iter().filter(|(key, coverage)| {
            coverage.tags_complete
                && self.repo_index.repo(**key).is_some_and(|repo| repo.newest_root_seq() <= coverage.roots_complete)
        });
        let covered = covered.count();
        let dial = relay.health.next_dial_at().max(relay.health.cooldown_until().unwrap_or_default());
        let idle = relay.current_session().is_none() && relay.is_needed() && !relay.is_paused;
        RelaySnapshot {
            url: relay.url.clone(),
            status: relay.status(),
            health: relay.health.status(self.now),
            failures: relay.health.failures(),
            repositories: relay.coverage.len(),
            covered,
            held: relay.held_repos.len(),
            subscriptions: connection.map(count_subscriptions).unwrap_or_default(),
            filters: connection.map_or(0, |connection| connection.live.values().map(|set| set.filters).sum()),
            polled: connection.map_or(0, |connection| connection.polled.len()),
            is_wide: connection.is_some_and(|connection| connection.wide.is_some()),
            queued: connection.map_or(0, |connection| {
                connection.batches.values().map(|batch| batch.queue.len()).sum::<usize>() + relay.dirty.len()
            }),
            dial_in_millis: idle.then(|| u64::try_from(dial.since(mono).as_millis()).unwrap_or(u64::MAX)),
            cooldown_secs: relay.health.cooldown_until().filter(|at| *at > mono).map(|at| at.since(mono).as_secs()),
            failed_batches: relay.failed_batches.len(),
            historic_sync_completed_at: relay.historic_sync_completed_at,
            last_message_at: relay.last_message.map(|message| message.wall),
            next_full_sync_secs: relay.next_full_sync.since(mono).as_secs(),
            is_reconciling: connection.is_some_and(|connection| {
                connection.historic_run.is_some_and(|historic_run| historic_run.source == SyncSource::Daily)
            }),
            progress: connection.and_then(|connection| progress(relay, connection, covered)),
            learned: relay.learned,
            totals: relay.totals,
            is_paused: relay.is_paused,
            is_self: relay.is_self,
            is_bootstrap: relay.is_bootstrap,
        }
    }
}

/// Returns the progress of the historic run of a connection. During a pass, a repository is done when the pass has left
/// it behind and no batch of it is open.
fn progress(relay: &RelayState, connection: &Connection, covered: usize) -> Option<CatchUpProgress> {
    let historic_run = connection.historic_run?;
    let total = relay.coverage.len();
    let done = match &connection.pass {
        Some(pass) => {
            let passed = pass.position.map_or(total, |(at, _)| relay.coverage.range(..at).count());
            let open: BTreeSet<RepoKey> =
                connection.batches.values().flat_map(|batch| scope_repos(&batch.scope)).collect();
            passed.saturating_sub(open.len())
        }
        None => covered,
    };
    let events = historic_run.events + connection.batches.values().map(|batch| batch.events).sum::<u64>();
    Some(CatchUpProgress { source: historic_run.source, done, total, events })
}

/// Returns the number of open live subscriptions and of other open requests.
fn count_subscriptions(connection: &Connection) -> (usize, usize) {
    let live =
        connection.subscriptions.values().filter(|sub| matches!(sub.purpose, SubscriptionPurpose::Live(_))).count();
    (live, connection.subscriptions.len() - live)
}

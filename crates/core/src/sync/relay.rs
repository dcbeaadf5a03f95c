//! Sync state of one relay.
//!
//! `RelayState` exists as long as the relay is needed and outlives its connections. `Connection` is the part that
//! lives as long as one connection: open subscriptions, pending batches and requests. What a restart keeps is written
//! as a [`RelayRecord`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::batch::{ActiveRequest, BatchId, PendingBatch, RequestId};
use super::filters::{FilterSize, IdentifierSet, SyncScope};
use super::health::RelayHealth;
use super::io::{Seq, SessionId, SubscriptionId, SyncSource};
use super::live::{LiveSet, LiveSetId, PendingLiveSet, PolledScope};
use super::pagination::PageSizeTracker;
use super::relay_limits::RelayLimits;
use super::relay_record::{CoverageRecord, LearnedLimits, RelayRecord, RelayTotals};
use super::relay_url::RelayUrl;
use super::targets::{RepoKey, RepoSyncIndex};
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::filter::Filter;
use crate::nostr::nip11::Nip11Info;
use crate::time::{MonoTime, Now, Timestamp};

/// Id of a relay. Unique within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RelayId(pub u32);

/// A relay and its sync progress. Everything except [`Connection`] outlives a lost connection.
#[derive(Debug)]
pub(super) struct RelayState {
    pub(super) id: RelayId,
    pub(super) url: RelayUrl,
    pub(super) connection: ConnectionState,
    pub(super) health: RelayHealth,
    pub(super) learned: LearnedLimits,
    /// Coverage of the served repositories that list this relay.
    pub(super) coverage: BTreeMap<RepoKey, RepoCoverage>,
    /// Held repositories that list this relay.
    pub(super) held_repos: BTreeSet<RepoKey>,
    /// Repositories with needs that have not been requested from this relay.
    pub(super) dirty: BTreeSet<RepoKey>,
    /// Whether some of the dirty repositories may be ready to be requested. Saves a search, which costs as much as
    /// there are dirty repositories.
    pub(super) has_ready_repos: bool,
    /// Size of the filters for all needs of this relay.
    pub(super) total_size: FilterSize,
    /// Whether all announcements have been requested without `since` and received.
    pub(super) announcements_synced: bool,
    /// Whether the states of this relay have been compared with the local ones, or requested, in this process.
    pub(super) states_compared: bool,
    /// Sequence number up to which an earlier process was complete. Valid for repositories that arrived before it.
    pub(super) restored_up_to: Option<Seq>,
    /// Time of the last message.
    pub(super) last_message: Option<Now>,
    /// Start of the last absence, less the overlap: what the relay received since then has not been requested.
    pub(super) catch_up_since: Option<Timestamp>,
    /// Seconds by which the local clock seems to be ahead, from the most recent live event.
    pub(super) clock_ahead_secs: Option<u64>,
    /// Time of the next full reconciliation.
    pub(super) next_full_sync: MonoTime,
    /// Position of the daily reconciliation when the connection ended.
    pub(super) daily_cursor: Option<(RepoKey, Seq)>,
    /// When historic sync was last completed.
    pub(super) historic_sync_completed_at: Option<Timestamp>,
    /// Batches that failed and are retried.
    pub(super) failed_batches: Vec<FailedBatch>,
    /// Whether part of the history cannot be fetched: one second of a single value has more events than a page, or a
    /// batch failed too often.
    pub(super) history_incomplete: bool,
    /// Cursors of pagination that was interrupted.
    pub(super) page_cursors: BTreeMap<Filter, PageCursor>,
    /// Rejected events whose dependency has arrived and that are fetched by id.
    pub(super) ids_to_fetch: BTreeSet<EventId>,
    pub(super) late_delivery: LateDelivery,
    pub(super) totals: RelayTotals,
    pub(super) is_paused: bool,
    pub(super) is_self: bool,
    pub(super) is_bootstrap: bool,
    /// Since when nothing needs this relay.
    pub(super) unneeded_since: Option<MonoTime>,
    /// Whether its last connection failure was attributed to an outage of the own network.
    pub(super) failed_in_own_outage: bool,
    /// Whether the missing support of negentropy has been noted.
    pub(super) warned_no_negentropy: bool,
    pub(super) wake_at: Option<MonoTime>,
    /// Whether it is due and waits for a free dial.
    pub(super) is_queued_to_dial: bool,
    /// Whether its record has changed since it was stored.
    pub(super) is_unsaved: bool,
    /// When its record was last stored.
    pub(super) saved_at: Option<MonoTime>,
    /// Time up to which the seconds up and down are in the totals.
    pub(super) time_counted_at: MonoTime,
}

/// How far one repository is synced from one relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RepoCoverage {
    /// Whether events that reference the repository itself have been requested.
    pub(super) tags_requested: bool,
    /// Whether those events have all been received and have a result.
    pub(super) tags_complete: bool,
    /// Arrival up to which events that reference its root events have been requested.
    pub(super) roots_requested: Seq,
    /// Arrival up to which those events have all been received and have a result.
    pub(super) roots_complete: Seq,
    /// Number of open batches that include it.
    pub(super) open_batches: u32,
}

/// Whether a relay sends stored events after its EOSE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum LateDelivery {
    #[default]
    No,
    /// Just detected: everything must be requested again on a new connection.
    JustDetected,
    /// Known: a request ends some time after its EOSE.
    Known,
}

/// A request whose answer was empty. Used to detect [`LateDelivery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EmptyAnswer {
    pub(super) sub: SubscriptionId,
    pub(super) answered_at: Timestamp,
    /// Events that arrive for it before this time count as late.
    pub(super) until: MonoTime,
    pub(super) late_events: u32,
}

/// Connection of a relay, or the attempt to connect.
#[derive(Debug)]
pub(super) enum ConnectionState {
    Disconnected,
    Connecting(SessionId),
    Connected(Box<Connection>),
}

/// State of an established connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) session: SessionId,
    pub(super) nip11: Option<Nip11Info>,
    pub(super) relay_limits: RelayLimits,
    /// Bytes in the send buffer, as last reported by the driver.
    pub(super) unsent_bytes: usize,
    /// Bytes sent in this step, which the driver has not reported yet.
    pub(super) bytes_this_step: usize,
    pub(super) subscriptions: BTreeMap<SubscriptionId, OpenSubscription>,
    pub(super) live: BTreeMap<LiveSetId, LiveSet>,
    /// Live sets that are to be opened, in order.
    pub(super) pending_live_sets: VecDeque<PendingLiveSet>,
    /// The live set without tags that follows everything, if there is one.
    pub(super) wide: Option<LiveSetId>,
    /// Scopes for which there is no free live subscription.
    pub(super) polled: VecDeque<PolledScope>,
    pub(super) poll_at: Option<MonoTime>,
    pub(super) batches: BTreeMap<BatchId, PendingBatch>,
    pub(super) requests: BTreeMap<RequestId, ActiveRequest>,
    pub(super) historic_run: Option<HistoricRun>,
    pub(super) pass: Option<CoveragePass>,
    pub(super) layer_one: LayerOneState,
    /// Identifiers whose announcements were requested.
    pub(super) requested_identifiers: Option<IdentifierSet>,
    /// Whether a merged live subscription found no free slot or was refused. Reset when a live set is closed.
    pub(super) cannot_merge: bool,
    /// Rejections since the last answer.
    pub(super) consecutive_rejections: u32,
    /// Maximum number of concurrent historic requests.
    pub(super) concurrency: u32,
    /// No new request is started before this time.
    pub(super) retry_after: MonoTime,
    pub(super) page_sizes: PageSizeTracker,
    /// The most recent requests with an empty answer.
    pub(super) empty_answers: VecDeque<EmptyAnswer>,
    pub(super) auth: Authentication,
    /// Number of events from the wide live set, and how many of them were useful.
    pub(super) wide_deliveries: (u32, u32),
    /// Number of resubmitted events without a result. The historic run waits for them.
    pub(super) resubmitted: u32,
    /// Whether this server is closing the connection. Nothing is sent any more.
    pub(super) is_closing: bool,
    /// Number of invalid messages and events with an invalid signature.
    pub(super) invalid_messages: u32,
}

/// An open subscription or negentropy exchange. It occupies a slot of the relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenSubscription {
    pub(super) purpose: SubscriptionPurpose,
    /// Whether the relay has answered it (EOSE).
    pub(super) is_answered: bool,
}

/// What a subscription is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SubscriptionPurpose {
    Live(LiveSetId),
    Request(RequestId),
    /// Closed by this server. Its slot counts as free at this time at the latest.
    Closing(MonoTime),
}

/// A catch-up or daily reconciliation. It ends when all batches that its own events lead to have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HistoricRun {
    pub(super) source: SyncSource,
    pub(super) events: u64,
}

/// Iteration over all needs that are already covered, to request them again.
#[derive(Clone, Debug)]
pub(super) struct CoveragePass {
    pub(super) source: SyncSource,
    pub(super) since: Option<Timestamp>,
    /// Repository, and arrival of its root events, up to which batches have been created; `None` at the end.
    pub(super) position: Option<(RepoKey, Seq)>,
    /// Number of its open batches.
    pub(super) open_batches: u32,
}

/// State of layer 1 on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LayerOneState {
    Todo,
    Running,
    Done,
}

/// Authentication on a connection (NIP-42).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Authentication {
    pub(super) challenge: Option<String>,
    pub(super) state: AuthState,
}

/// Progress of authentication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum AuthState {
    #[default]
    NotRequired,
    /// Demanded by the relay, which has not sent a challenge yet. Fails at this time.
    Required(MonoTime),
    Sent(MonoTime),
    Done,
}

/// A batch that failed and is retried.
#[derive(Clone, Debug)]
pub(super) struct FailedBatch {
    pub(super) scope: SyncScope,
    pub(super) since: Option<Timestamp>,
    pub(super) source: SyncSource,
    pub(super) retry_at: MonoTime,
    pub(super) attempts: u32,
    pub(super) live_set: LiveSetStatus,
}

/// State of the live set of a failed batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LiveSetStatus {
    Open,
    Closed,
    /// It was not confirmed in time. If it is still not confirmed at the retry, it is opened again.
    Unconfirmed(LiveSetId),
}

/// Position of interrupted pagination of one filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PageCursor {
    pub(super) until: Timestamp,
    pub(super) started_at: Timestamp,
    pub(super) saved_at: MonoTime,
}

impl Connection {
    /// Counts an event that arrives for an ended request. Returns whether the relay sends stored events after EOSE.
    pub(super) fn record_late_event(&mut self, sub: SubscriptionId, event: Timestamp, now: MonoTime) -> bool {
        let Some(empty) = self.empty_answers.iter_mut().find(|empty| empty.sub == sub && empty.until > now) else {
            return false;
        };
        empty.late_events += u32::from(event < empty.answered_at);
        empty.late_events >= limits::MIN_LATE_EVENTS
    }

    /// Returns the earliest time since which polled scopes have not been requested, or batches are still requesting.
    pub(super) fn missed_since(&self, overlap: u64) -> Option<Timestamp> {
        let polled = self.polled.iter().map(|polled| Timestamp(polled.requested_at.0.saturating_sub(overlap)));
        polled.chain(self.batches.values().filter_map(|batch| batch.since)).min()
    }
}

impl RelayState {
    pub(super) fn connection(&self) -> Option<&Connection> {
        match &self.connection {
            ConnectionState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.connection {
            ConnectionState::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection if it belongs to this session.
    pub(super) fn connection_of(&mut self, session: SessionId) -> Option<&mut Connection> {
        self.connection_mut().filter(|connection| connection.session == session)
    }

    pub(super) fn is_needed(&self) -> bool {
        self.is_bootstrap || !self.coverage.is_empty() || !self.held_repos.is_empty()
    }

    pub(super) fn is_grasp(&self) -> bool {
        self.connection().and_then(|connection| connection.nip11.as_ref()).is_some_and(|nip11| nip11.is_grasp)
    }

    /// Returns by how many seconds `since` reaches back before the last message, because events are often older than
    /// their arrival.
    pub(super) fn overlap_secs(&self) -> u64 {
        self.overlap_secs_for(self.is_grasp())
    }

    /// Returns the overlap for a GRASP server or another relay. A GRASP server needs more, because it releases events
    /// when their git data arrives.
    pub(super) fn overlap_secs_for(&self, grasp: bool) -> u64 {
        let base = if grasp { limits::SYNC_GRASP_OVERLAP_SECS } else { limits::SYNC_OVERLAP_SECS };
        base + self.clock_ahead_secs.unwrap_or(0).min(limits::MAX_CLOCK_SKEW_SECS)
    }

    /// Whether the relay is in a rate-limit cooldown.
    pub(super) fn is_in_cooldown(&self, now: Now) -> bool {
        self.health.cooldown_until().is_some_and(|until| until > now.mono)
    }

    /// Whether negentropy may be used. `allowed` is the setting.
    pub(super) fn can_use_negentropy(&self, now: Now, allowed: bool) -> bool {
        let learned = self.learned.no_negentropy_at;
        let denied =
            learned.is_some_and(|at| now.wall.secs_since(at) < limits::NO_NEGENTROPY_MEMORY_SECS && now.wall >= at);
        let connection = self.connection();
        let stated_support =
            connection.and_then(|connection| connection.nip11.as_ref()).and_then(|nip11| nip11.negentropy);
        allowed
            && !denied
            && stated_support != Some(false)
            && connection.is_some_and(|connection| connection.relay_limits.frame_bytes.is_some())
    }

    /// Returns the arrival up to which all needs of this relay are covered.
    pub(super) fn covered_up_to(&self, repo_index: &RepoSyncIndex) -> Seq {
        let mut up_to = repo_index.newest_seq;
        for (key, coverage) in &self.coverage {
            let Some(repo) = repo_index.repo(*key) else { continue };
            if !coverage.tags_complete {
                up_to = up_to.min(repo.seq.saturating_sub(1));
            }
            let next = repo.roots.partition_point(|root| root.seq <= coverage.roots_complete);
            if let Some(root) = repo.roots.get(next) {
                up_to = up_to.min(root.seq.saturating_sub(1));
            }
        }
        up_to
    }

    /// Returns the earliest time since which something has not been requested: because of an absence, a failed batch,
    /// or a polled scope.
    pub(super) fn missed_since(&self) -> Option<Timestamp> {
        let absent =
            self.catch_up_since.into_iter().chain(self.failed_batches.iter().filter_map(|failed| failed.since));
        absent.chain(self.connection().and_then(|connection| connection.missed_since(self.overlap_secs()))).min()
    }

    /// Returns the connection status, as exported by `ngit_sync_relay_connected`.
    pub(super) fn status(&self) -> ConnectionStatus {
        match &self.connection {
            ConnectionState::Disconnected => ConnectionStatus::Disconnected,
            ConnectionState::Connecting(_) => ConnectionStatus::Connecting,
            ConnectionState::Connected(connection)
                if connection.historic_run.is_some_and(|historic_run| historic_run.source == SyncSource::CatchUp) =>
            {
                ConnectionStatus::Syncing
            }
            ConnectionState::Connected(_) if self.has_failures() => ConnectionStatus::ConnectedHistoricSyncFailures,
            ConnectionState::Connected(_) => ConnectionStatus::Connected,
        }
    }

    /// Whether part of the history could not be fetched.
    pub(super) fn has_failures(&self) -> bool {
        self.history_incomplete || self.failed_batches.iter().any(|failed| failed.attempts > 0)
    }

    /// Adds the seconds since the last call to the time up or down.
    pub(super) fn update_time_totals(&mut self, now: Now) {
        let secs = now.mono.since(self.time_counted_at).as_secs();
        self.time_counted_at = self.time_counted_at.plus_secs(secs);
        match self.connection {
            ConnectionState::Connected(_) => self.totals.up_secs += secs,
            _ if self.is_needed() && !self.is_paused => self.totals.down_secs += secs,
            _ => {}
        }
    }
}

impl RelayState {
    pub(super) fn current_session(&self) -> Option<SessionId> {
        match &self.connection {
            ConnectionState::Disconnected => None,
            ConnectionState::Connecting(session) => Some(*session),
            ConnectionState::Connected(connection) => Some(connection.session),
        }
    }

    /// Returns when this relay has to be woken.
    pub(super) fn next_wake(&self, now: Now) -> Option<MonoTime> {
        let disconnect_at = self.unneeded_since.map(|at| at.plus_secs(limits::UNUSED_RELAY_DISCONNECT_SECS));
        let ConnectionState::Connected(connection) = &self.connection else {
            return earliest([disconnect_at, self.dial_at().filter(|_| !self.is_queued_to_dial)]);
        };
        if connection.is_closing {
            return None;
        }
        let requests = connection.requests.values().map(|request| request.deadline);
        let live = connection.live.values().map(|set| (!set.awaiting_eose.is_empty()).then_some(set.deadline));
        let closing = connection.subscriptions.values().map(|sub| match sub.purpose {
            SubscriptionPurpose::Closing(until) => Some(until),
            _ => None,
        });
        let later = |at: MonoTime| (at > now.mono).then_some(at);
        let cooldown = self.health.cooldown_until().and_then(later);
        let auth = match connection.auth.state {
            AuthState::Required(at) | AuthState::Sent(at) => Some(at),
            _ => None,
        };
        let retry = self.failed_batches.iter().map(|failed| failed.retry_at).min();
        let idle = connection.historic_run.is_none();
        let rest = [
            cooldown,
            auth,
            retry.and_then(later),
            later(connection.retry_after),
            connection.poll_at.and_then(later),
            idle.then_some(self.next_full_sync),
            disconnect_at,
        ];
        earliest(requests.chain(live).chain(closing).chain(rest))
    }

    /// Returns the record that is stored. `oldest_pending` is the creation time of the oldest live event without a
    /// result: what is newer must be requested again.
    pub(super) fn to_record(
        &self,
        now: Now,
        epoch: u64,
        repo_index: &RepoSyncIndex,
        oldest_pending: Option<Timestamp>,
    ) -> RelayRecord {
        let left = self.next_full_sync.since(now.mono).as_secs();
        let covered = self.last_message.filter(|_| self.announcements_synced).map(|message| CoverageRecord {
            epoch,
            announcements: self.announcements_synced,
            up_to: self.covered_up_to(repo_index),
            lost_at: message.wall,
            since: self.missed_since().into_iter().chain(oldest_pending).min(),
            next_full_at: now.wall.plus_secs(left),
            failed: self.has_failures(),
        });
        RelayRecord {
            url: self.url.clone(),
            wanted_at: now.wall,
            health: self.health.to_record(now),
            learned: self.learned,
            covered,
            totals: self.totals,
            paused: self.is_paused,
            is_self: self.is_self,
        }
    }
}

/// Returns the earliest of several times.
fn earliest(moments: impl IntoIterator<Item = Option<MonoTime>>) -> Option<MonoTime> {
    moments.into_iter().flatten().min()
}

/// Connection status of a relay. The numbers are those of `ngit_sync_relay_connected`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConnectionStatus {
    /// Not connected.
    Disconnected = 0,
    /// A connection is being established.
    Connecting = 1,
    /// Connected, catch-up in progress.
    Syncing = 2,
    /// Connected, catch-up complete.
    Connected = 3,
    /// Connected, but part of the history could not be fetched.
    ConnectedHistoricSyncFailures = 4,
}

impl ConnectionStatus {
    /// Returns the name of the status on the status page and in the admin API.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Connecting => "connecting",
            Self::Syncing => "syncing",
            Self::Connected => "connected",
            Self::ConnectedHistoricSyncFailures => "connected_historic_sync_failures",
        }
    }
}

//! Relay-to-relay sync (GRASP-02): which relays to follow, and how to get live and stored events from them.
//!
//! [`SyncMachine`] is a pure state machine without IO and clock. The sync thread of the server (`graspd/src/sync`) and
//! the simulator drive it with [`io::SyncInput`] and carry out its [`io::SyncOutput`].
//!
//! The needs of all followed repositories are in `targets`, the state of each relay is in [`relay`]. Needs are
//! requested in batches: each opens a live subscription (`live`), waits until it is confirmed, and then requests stored
//! events by [`negentropy`] or in pages ([`pagination`]). Every event passes admission like an event of a client
//! (`in_flight`); rejected events are remembered ([`rejected`]) until their dependencies arrive. [`health`] decides
//! when a relay is dialled, [`relay_limits`] how much is requested from it, and [`rejection_text`] classifies the texts
//! of its rejections.
//!
//! It depends only on `nostr`, `repo`, `limits`, `time` and `state_machine` of this crate. Design: `docs/design/sync.md`.

mod batch;
mod batch_window;
pub mod descendants;
mod dialing;
mod filters;
mod flood;
pub mod health;
mod historic;
mod in_flight;
pub mod io;
mod live;
pub mod negentropy;
pub mod pagination;
pub mod rejected;
pub mod rejection_text;
pub mod relay;
mod relay_capacity;
pub mod relay_limits;
pub mod relay_record;
mod relay_set;
pub mod relay_url;
mod session;
mod targets;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::batch::RequestId;
use self::dialing::Dialer;
use self::in_flight::{InFlightEvents, RecentArrivals};
use self::io::{IncomingMessage, QueryId, SessionId, SyncInput, SyncNote, SyncOutput, SyncRowKey};
use self::rejected::{RejectedEventsConfig, RejectedEventsIndex};
use self::relay::{Relay, RelayId};
use self::relay_capacity::WaitingRelays;
use self::relay_record::RelayRecord;
use self::relay_url::RelayUrl;
use self::targets::RepoSyncIndex;
pub use self::view::{CatchUpProgress, RelaySnapshot, RepoRelayStatus, RepoSyncStatus, SyncSnapshot};
use crate::limits;
use crate::random::Rng;
use crate::repo::ServiceAddress;
use crate::state_machine::StateMachine;
use crate::time::{MonoTime, Now, Timestamp};

/// Configuration of the sync machine.
#[derive(Clone, Debug)]
pub struct SyncConfig {
    /// Address of this service, which is never dialled.
    pub service: ServiceAddress,
    /// `instance` of our NIP-11 document. A relay that shows the same value is this server under another URL.
    pub instance: String,
    /// Relays that are followed even if no repository lists them, and are never removed.
    pub bootstrap: Vec<RelayUrl>,
    /// Length of the batch window in which changed needs are gathered.
    pub batch_window_millis: u64,
    /// Number of values of one filter, if all needs fit into the relay's limits that way.
    pub values_per_filter: usize,
    /// Maximum number of descendants of one event that references a repository or a root event.
    pub descendant_limit: usize,
    /// Whether negentropy is used.
    pub use_negentropy: bool,
    /// Backoff after connection failures.
    pub backoff: health::BackoffConfig,
    /// Limits of the rejected-events index.
    pub rejected: RejectedEventsConfig,
    /// Other limits.
    pub limits: SyncLimits,
    /// Identifies store, policy and filter version. Stored coverage of another epoch is discarded; see
    /// [`relay_record::CoverageRecord`].
    pub epoch: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Limits of the sync machine that tests reduce. The other ones are in [`limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncLimits {
    /// Maximum number of followed relays.
    pub max_relays: usize,
    /// Maximum number of followed relays with the same host.
    pub max_relays_per_host: usize,
    /// Maximum number of concurrent negentropy exchanges on all relays.
    pub max_reconciliations: usize,
    /// Bytes of filters above which a GRASP server is followed without tags.
    pub wide_filter_bytes: usize,
    /// Events received without tags after which it is decided whether that subscription was worthwhile.
    pub wide_sample_events: u32,
    /// Seconds between two requests for descendants without a live subscription.
    pub descendant_poll_secs: u64,
    /// Seconds between two rounds of these requests.
    pub descendant_round_pause_secs: u64,
}

impl Default for SyncLimits {
    fn default() -> Self {
        Self {
            max_relays: limits::MAX_SYNC_RELAYS,
            max_relays_per_host: limits::MAX_SYNC_RELAYS_PER_HOST,
            max_reconciliations: limits::MAX_CONCURRENT_RECONCILIATIONS,
            wide_filter_bytes: limits::WIDE_SUBSCRIPTION_FILTER_BYTES,
            wide_sample_events: limits::WIDE_SUBSCRIPTION_SAMPLE_EVENTS,
            descendant_poll_secs: limits::DESCENDANT_POLL_INTERVAL_SECS,
            descendant_round_pause_secs: limits::DESCENDANT_ROUND_PAUSE_SECS,
        }
    }
}

/// The parts of the sync machine that a relay may use while it runs.
struct SyncContext<'a> {
    now: Now,
    config: &'a SyncConfig,
    repo_index: &'a RepoSyncIndex,
    rejected: &'a RejectedEventsIndex,
    outputs: &'a mut VecDeque<SyncOutput>,
    next_id: &'a mut u64,
    queries: &'a mut BTreeMap<QueryId, (RelayId, RequestId)>,
    /// Number of open negentropy exchanges on all relays.
    open_negentropy: &'a mut usize,
    /// Relays that wait for another negentropy exchange to end.
    waiting_for_negentropy: &'a mut BTreeSet<RelayId>,
    rng: &'a mut Rng,
}

impl SyncContext<'_> {
    /// Returns an id that was not used before.
    fn new_id(&mut self) -> u64 {
        *self.next_id += 1;
        *self.next_id
    }

    /// Registers a query to the store for a request.
    fn new_query(&mut self, relay: RelayId, request: RequestId) -> QueryId {
        let query = QueryId(self.new_id());
        self.queries.insert(query, (relay, request));
        query
    }

    fn note(&mut self, note: SyncNote) {
        self.outputs.push_back(SyncOutput::Note(note));
    }

    /// Returns `secs` ± 20 %.
    fn jitter(&mut self, secs: u64) -> u64 {
        secs * (80 + self.rng.next_u64() % 41) / 100
    }

    /// Returns the seconds until the next full reconciliation: 23 to 25 hours.
    fn daily_interval_secs(&mut self) -> u64 {
        limits::DAILY_RECONCILIATION_SECS - 3_600 + self.rng.next_u64() % 7_200
    }
}

/// The sync machine. See the [module](self) documentation.
pub struct SyncMachine {
    config: SyncConfig,
    now: Now,
    is_ready: bool,
    repo_index: RepoSyncIndex,
    relays: BTreeMap<RelayId, Relay>,
    relay_ids: BTreeMap<String, RelayId>,
    sessions: BTreeMap<SessionId, RelayId>,
    /// Stored records of relays that are not followed, by URL without scheme.
    stored_records: BTreeMap<String, RelayRecord>,
    in_flight: InFlightEvents,
    recent_arrivals: RecentArrivals,
    rejected: RejectedEventsIndex,
    queries: BTreeMap<QueryId, (RelayId, RequestId)>,
    dialer: Dialer,
    /// Wake-up times of the relays.
    wake_times: BTreeSet<(MonoTime, RelayId)>,
    /// Relays that were needed at the start and have not been added yet, as URL without scheme.
    pending_relays: VecDeque<String>,
    /// Listed relays that are not followed because of a limit.
    waiting_relays: WaitingRelays,
    /// Relays that may have something to do now.
    runnable: BTreeSet<RelayId>,
    open_negentropy: usize,
    waiting_for_negentropy: BTreeSet<RelayId>,
    rng: Rng,
    next_id: u64,
    next_relay_id: u32,
    save_at: Option<MonoTime>,
    outputs: VecDeque<SyncOutput>,
}

impl SyncMachine {
    /// Creates a machine without repositories and relays.
    #[must_use]
    pub fn new(config: SyncConfig) -> Self {
        Self {
            now: Now::default(),
            is_ready: false,
            repo_index: RepoSyncIndex::default(),
            relays: BTreeMap::new(),
            relay_ids: BTreeMap::new(),
            sessions: BTreeMap::new(),
            stored_records: BTreeMap::new(),
            in_flight: InFlightEvents::default(),
            recent_arrivals: RecentArrivals::default(),
            rejected: RejectedEventsIndex::new(config.rejected),
            queries: BTreeMap::new(),
            dialer: Dialer::default(),
            wake_times: BTreeSet::new(),
            pending_relays: VecDeque::new(),
            waiting_relays: WaitingRelays::default(),
            runnable: BTreeSet::new(),
            open_negentropy: 0,
            waiting_for_negentropy: BTreeSet::new(),
            rng: Rng::new(config.seed),
            next_id: 0,
            next_relay_id: 0,
            save_at: None,
            outputs: VecDeque::new(),
            config,
        }
    }

    /// Runs an action on a relay, with access to the shared parts of the machine.
    fn with_relay<R>(&mut self, id: RelayId, action: impl FnOnce(&mut Relay, &mut SyncContext<'_>) -> R) -> Option<R> {
        let relay = self.relays.get_mut(&id)?;
        let mut ctx = SyncContext {
            now: self.now,
            config: &self.config,
            repo_index: &self.repo_index,
            rejected: &self.rejected,
            outputs: &mut self.outputs,
            next_id: &mut self.next_id,
            queries: &mut self.queries,
            open_negentropy: &mut self.open_negentropy,
            waiting_for_negentropy: &mut self.waiting_for_negentropy,
            rng: &mut self.rng,
        };
        Some(action(relay, &mut ctx))
    }

    /// Starts to follow relays, after all stored rows and repository needs have been taken in.
    fn start(&mut self) {
        self.is_ready = true;
        self.clear_outdated_rejections();
        for url in self.config.bootstrap.clone() {
            self.add_relay(&url, true);
        }
        // Records of relays that have not been needed for a month are deleted.
        let is_unused =
            |record: &RelayRecord| self.now.wall.secs_since(record.wanted_at) > limits::UNUSED_RELAY_FORGET_SECS;
        let unused: Vec<String> = self
            .stored_records
            .iter()
            .filter(|(_, record)| is_unused(record))
            .map(|(relay_key, _)| relay_key.clone())
            .collect();
        for relay_key in unused {
            if let Some(record) = self.stored_records.remove(&relay_key) {
                self.outputs.push_back(SyncOutput::DeleteRow(SyncRowKey::Relay(record.url)));
            }
        }
        self.pending_relays = self.repo_index.relays().map(|(relay_key, _)| relay_key.clone()).collect();
        self.create_pending_relays();
    }

    /// Adds the next few relays that were needed at the start. In slices, because each visits all its repositories.
    fn create_pending_relays(&mut self) {
        for _ in 0..limits::SYNC_STARTUP_SLICE_RELAYS {
            let Some(relay_key) = self.pending_relays.pop_front() else { break };
            self.update_relay(&relay_key);
        }
        if self.pending_relays.is_empty() {
            // Repositories that are added from now on were not covered by an earlier process.
            for relay in self.relays.values_mut() {
                relay.historic.end_restore();
            }
        }
    }

    /// Handles a message from a relay.
    fn on_message(&mut self, session: SessionId, message: IncomingMessage) {
        let Some(id) = self.sessions.get(&session).copied() else {
            if let IncomingMessage::Event(_, _, io::EventPresence::New) = message {
                self.outputs.push_back(SyncOutput::ReleasePermit(session));
            }
            return;
        };
        self.dialer.record_message(id, self.now.mono);
        let now = self.now;
        if let Some(relay) = self.relays.get_mut(&id) {
            relay.last_message = Some(now);
            let rate = if relay.is_only_held() { io::EventRate::LOWEST } else { io::EventRate::FULL };
            if let Some(connection) = relay.connection_mut() {
                connection.session.set_event_rate(&mut self.outputs, rate);
            }
        }
        match message {
            IncomingMessage::Event(sub, event, presence) => self.on_event(id, session, (sub, event, presence)),
            IncomingMessage::TooLarge(sub, event, rejection) => self.on_oversized_event(id, sub, event, &rejection),
            other => {
                let must_disconnect = self.with_relay(id, |relay, ctx| relay.on_message(ctx, other)).unwrap_or(false);
                if must_disconnect {
                    self.disconnect(id);
                }
            }
        }
        self.runnable.insert(id);
    }

    /// Runs the relays that have something to do, a bounded number at a time.
    fn run_relays(&mut self) {
        self.follow_waiting_relays();
        for _ in 0..limits::SYNC_STEP_RELAYS {
            let Some(id) = self.runnable.pop_first() else { break };
            let before = self.open_negentropy;
            let now = self.now.mono;
            let has_ended_trial = self.with_relay(id, |relay, ctx| {
                let was_on_trial = relay.is_only_held() && relay.is_on_trial(now);
                relay.run(ctx);
                was_on_trial && !relay.is_on_trial(now)
            });
            if has_ended_trial == Some(true) {
                self.waiting_relays.check_soon();
            }
            if self.open_negentropy < before {
                let waiting = std::mem::take(&mut self.waiting_for_negentropy);
                self.runnable.extend(waiting);
            }
            self.schedule_wake(id);
        }
        if self.open_negentropy < self.config.limits.max_reconciliations {
            let waiting = std::mem::take(&mut self.waiting_for_negentropy);
            self.runnable.extend(waiting.into_iter().filter(|id| self.relays.contains_key(id)));
        }
        self.dial_due_relays();
    }

    /// Updates the wake-up time of a relay and the time of the next save.
    fn schedule_wake(&mut self, id: RelayId) {
        let now = self.now;
        let Some(relay) = self.relays.get_mut(&id) else { return };
        let next = relay.next_wake(now);
        if relay.is_unsaved || relay.connection().is_some() {
            let secs = if relay.is_unsaved { limits::RELAY_ROW_SAVE_SECS } else { limits::RELAY_HEARD_SAVE_SECS };
            let at = now.mono.plus_secs(secs);
            self.save_at = Some(self.save_at.map_or(at, |save| save.min(at)));
        }
        if next == relay.wake_at {
            return;
        }
        if let Some(old) = std::mem::replace(&mut relay.wake_at, next) {
            self.wake_times.remove(&(old, id));
        }
        if let Some(next) = next {
            self.wake_times.insert((next, id));
        }
    }
}

impl StateMachine for SyncMachine {
    type Input = SyncInput;
    type Output = SyncOutput;

    fn handle(&mut self, now: Now, input: SyncInput) {
        self.now = now;
        match input {
            SyncInput::Restored(row) => self.restore(row),
            SyncInput::Ready => self.start(),
            SyncInput::RepoNeeds(identifier, needs) => self.update_repo_needs(identifier, needs),
            SyncInput::RootEvents(repo, roots, descendants) => self.on_root_events(&repo, roots, descendants),
            SyncInput::Served(served) => self.on_served(&served),
            SyncInput::Connected(session, nip11) => self.on_connected(session, nip11),
            SyncInput::Message(session, message) => self.on_message(session, message),
            SyncInput::Unsent(session, bytes) => {
                if let Some(id) = self.sessions.get(&session).copied() {
                    if let Some(current) = self.relays.get_mut(&id).and_then(|relay| relay.session_mut(session)) {
                        current.set_unsent(bytes);
                    }
                    self.runnable.insert(id);
                }
            }
            SyncInput::Disconnected(session, reason) => self.on_disconnected(session, reason),
            SyncInput::NetworkContact(at) => self.on_network_contact(at),
            SyncInput::LocalIds(query, ids) => {
                if let Some((id, request)) = self.queries.remove(&query) {
                    self.with_relay(id, |relay, ctx| relay.on_local_ids(ctx, request, ids));
                    self.runnable.insert(id);
                }
            }
            SyncInput::MissingIds(query, ids) => {
                if let Some((id, request)) = self.queries.remove(&query) {
                    self.with_relay(id, |relay, ctx| relay.on_missing_ids(ctx, request, ids));
                    self.runnable.insert(id);
                }
            }
            SyncInput::ServedEvents(query, events) => {
                if let Some((id, request)) = self.queries.remove(&query) {
                    self.with_relay(id, |relay, ctx| relay.on_served_events(ctx, request, &events));
                }
            }
            SyncInput::SubmitResult(id, result) => self.on_submit_result(id, result),
            SyncInput::Command(command) => self.run_command(&command),
            SyncInput::PolicyChanged(change) => self.change_policy(change),
        }
        self.run_relays();
    }

    fn poll(&mut self) -> Option<SyncOutput> {
        self.outputs.pop_front()
    }

    fn alarm(&self) -> Option<(MonoTime, &'static str)> {
        let relays = self.wake_times.first().map(|(at, _)| (*at, "relay"));
        let window = self.repo_index.window.closes_at().map(|at| (at, "batch window"));
        let dial = self.dialer.next().map(|at| (at, "dial"));
        let save = self.save_at.map(|at| (at, "save"));
        let has_more =
            !self.runnable.is_empty() || !self.pending_relays.is_empty() || self.rejected.has_pending_wakes();
        let more = has_more.then_some((self.now.mono, "more work"));
        let waiting = self.waiting_relays.check_at(self.now.mono).map(|at| (at, "waiting relays"));
        [relays, window, dial, save, more, waiting].into_iter().flatten().min()
    }

    fn wake(&mut self, now: Now) {
        self.now = now;
        if !self.pending_relays.is_empty() {
            self.create_pending_relays();
        }
        if self.repo_index.window.closes_at().is_some_and(|at| at <= now.mono) {
            self.close_window();
        }
        while let Some((at, id)) = self.wake_times.first().copied() {
            if at > now.mono {
                break;
            }
            self.wake_times.remove(&(at, id));
            if let Some(relay) = self.relays.get_mut(&id) {
                relay.wake_at = None;
            }
            self.on_wake(id);
            self.runnable.insert(id);
        }
        if self.save_at.is_some_and(|at| at <= now.mono) {
            self.save();
            for _ in 0..limits::REJECTED_EXPIRY_SLICES_PER_STEP {
                let expired = self.rejected.expire(now);
                if expired.is_empty() {
                    break;
                }
                self.outputs.extend(expired.into_iter().map(|id| SyncOutput::DeleteRow(SyncRowKey::Rejected(id))));
            }
        }
        let woken = self.rejected.wake_next();
        self.resubmit_woken(woken);
        self.run_relays();
    }
}

/// Returns the layer of an event in the rejected-events index.
fn rejected_layer(event: &crate::nostr::Event) -> rejected::RejectedLayer {
    use crate::nostr::kinds::{ANNOUNCEMENT, STATE};
    if matches!(event.kind, ANNOUNCEMENT | STATE) {
        rejected::RejectedLayer::Announcements
    } else {
        rejected::RejectedLayer::Related
    }
}

/// Returns the earlier of two times.
fn earlier(first: Option<Timestamp>, second: Timestamp) -> Timestamp {
    first.map_or(second, |first| first.min(second))
}

#[cfg(test)]
mod tests;

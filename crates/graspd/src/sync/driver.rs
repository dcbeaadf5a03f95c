//! Driver of the sync machine.
//!
//! The driver has its own thread, because some queries to the store take milliseconds. It passes connection events and
//! updates of the writer to [`SyncMachine`], and performs the machine's outputs: dials and messages go to
//! [`connection`](super::connection), events and rows to the writer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::limits;
use grasp_core::nostr::EventId;
use grasp_core::nostr::relay_message::EventPresence;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::health::BackoffConfig;
use grasp_core::sync::io::{
    RelayCommand, RestoredRow, Seq, SessionId, SyncInput, SyncNote, SyncOutput, SyncRow, SyncRowKey, SyncSource,
    SyncSubmissionId,
};
use grasp_core::sync::rejected::RejectedEventsConfig;
use grasp_core::sync::{SyncConfig, SyncLimits, SyncMachine, SyncSnapshot};
use grasp_core::time::MonoTime;
use grasp_store::Store;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::connection::{
    ConnectionContext, ConnectionEvent, ConnectionHandle, EventPermit, KnownEvents, RelayConnection, RelayOrigin,
};
use super::status::{RelayPresence, StatusTracker, SyncQuery, SyncStatus};
use super::store_queries::{self, UnreadRoots};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::net::contact::NetworkContact;
use crate::writer::command::WriterCommand;
use crate::writer::policy::CoverageBasis;
use crate::writer::queue::EventQueue;
use crate::writer::submission::QueuedEvent;
use crate::writer::sync_feed::SyncFeed;
use crate::{metrics, random};

/// Capacity of the queue of connection events. A connection waits with its next event while the queue is full.
const INBOX_CAPACITY: usize = 256;

/// How often changed rows are sent to the writer, and the number of rows after which they are sent at once.
const ROW_FLUSH_INTERVAL: Duration = Duration::from_secs(1);
const MAX_ROWS: usize = 1_000;

/// How often metrics and status are refreshed (`docs/design/sync.md#metrics-and-logs`).
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Minimum time between two contacts with other computers that are reported to the machine, which needs to know about one
/// per minute.
const CONTACT_INTERVAL: Duration = Duration::from_secs(5);

/// Number of served events that are read from the store at a time.
const FEED_BATCH: usize = 1_000;

/// Dependencies of the driver.
pub(crate) struct SyncDeps {
    pub(crate) store: Store,
    pub(crate) writer: Arc<EventQueue>,
    pub(crate) feed: Arc<SyncFeed>,
    pub(crate) clock: Clock,
    pub(crate) connections: Arc<ConnectionContext>,
    /// When another computer was last reached.
    pub(crate) contact: Arc<NetworkContact>,
    pub(crate) metrics: Metrics,
    /// Status for web pages and commands.
    pub(crate) status: watch::Sender<Arc<SyncStatus>>,
    /// Queries and commands from [`SyncHandle`](super::status::SyncHandle).
    pub(crate) queries: mpsc::Receiver<SyncQuery>,
}

/// Runs the sync machine.
pub(crate) struct SyncDriver {
    deps: SyncDeps,
    machine: SyncMachine,
    /// See [`SyncConfig::descendant_limit`].
    descendant_limit: usize,
    inbox: mpsc::Receiver<ConnectionEvent>,
    outbox: mpsc::Sender<ConnectionEvent>,
    handles: HashMap<SessionId, ConnectionHandle>,
    /// Sources of submitted events, for metrics.
    sources: HashMap<SyncSubmissionId, SyncSource>,
    /// Repositories whose root events could not be read.
    unread_roots: UnreadRoots,
    /// The contact with another computer that was last reported to the machine.
    reported_contact: Option<MonoTime>,
    /// Sequence number up to which served events were passed to the machine.
    fed_up_to: Seq,
    rows: Vec<SyncRow>,
    deleted_rows: Vec<SyncRowKey>,
    rows_at: Option<Instant>,
    status_at: Instant,
    status: StatusTracker,
}

/// Builds the machine's configuration from the settings.
pub(crate) fn config(config: &Config, policy: &AdmissionPolicy, instance: &str) -> Result<SyncConfig> {
    let settings = &config.sync;
    let basis = CoverageBasis::new(config, instance);
    Ok(SyncConfig {
        service: policy.service.clone(),
        instance: instance.to_owned(),
        bootstrap: basis.bootstrap_relays(&policy.lists),
        batch_window_millis: u64::try_from(settings.batch_window.as_millis()).unwrap_or(u64::MAX),
        values_per_filter: settings.values_per_filter,
        descendant_limit: settings.descendant_limit,
        use_negentropy: !settings.disable_negentropy,
        backoff: BackoffConfig {
            base_secs: settings.base_backoff.as_secs(),
            max_secs: settings.max_backoff.max(settings.base_backoff).as_secs(),
        },
        limits: SyncLimits::default(),
        rejected: RejectedEventsConfig {
            hot_secs: settings.rejected_hot_ttl.as_secs(),
            cold_secs: settings.rejected_cold_ttl.as_secs(),
            ..RejectedEventsConfig::default()
        },
        epoch: basis.epoch(policy),
        seed: u64::from_le_bytes(random::bytes()?),
    })
}

impl KnownEvents for Store {
    fn presence(&self, id: EventId) -> EventPresence {
        match self.status_of(id) {
            Ok(Some(EventStatus::Served)) => EventPresence::Known,
            Ok(Some(EventStatus::Held)) => EventPresence::Held,
            // If the store cannot be read, the event counts as unknown; admission will find out.
            Ok(None) | Err(_) => EventPresence::New,
        }
    }
}

impl SyncDriver {
    /// Creates the driver and restores the machine's state from the store.
    pub(crate) fn new(deps: SyncDeps, config: SyncConfig) -> Self {
        let (outbox, inbox) = mpsc::channel(INBOX_CAPACITY);
        let descendant_limit = config.descendant_limit;
        let mut machine = SyncMachine::new(config);
        let now = deps.clock.now();
        let mut rows = Vec::new();
        let relays = deps.store.load_relays(|relay| rows.push(RestoredRow::Relay(Box::new(relay))));
        let rejected = deps.store.load_rejected(|row| rows.push(RestoredRow::Rejected(row)));
        match (relays, rejected) {
            (Ok(0), Ok(0)) => {}
            (Ok(relays), Ok(rejected)) => {
                warn!(target: "sync", rows = relays + rejected, "unreadable sync rows were skipped")
            }
            (Err(error), _) | (_, Err(error)) => warn!(target: "sync", %error, "cannot read the stored state of sync"),
        }
        for row in rows {
            machine.handle(now, SyncInput::Restored(row));
        }
        Self {
            fed_up_to: deps.store.last_seq(),
            deps,
            machine,
            descendant_limit,
            inbox,
            outbox,
            handles: HashMap::new(),
            sources: HashMap::new(),
            unread_roots: UnreadRoots::default(),
            reported_contact: None,
            rows: Vec::new(),
            deleted_rows: Vec::new(),
            rows_at: None,
            status_at: Instant::now(),
            status: StatusTracker::default(),
        }
    }

    /// Runs until `stop` changes.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let handled_up_to = self.machine.handled_up_to();
        self.take_writer_updates();
        self.handle(SyncInput::Ready, None);
        if let Some(seq) = handled_up_to {
            self.fed_up_to = self.fed_up_to.min(seq);
            self.feed_served_events();
        }
        loop {
            let alarm = self.wake_at();
            tokio::select! {
                event = self.inbox.recv() => {
                    if let Some(event) = event {
                        self.handle_connection_event(event);
                    }
                }
                () = self.deps.feed.changed() => self.take_writer_updates(),
                Some(query) = self.deps.queries.recv() => self.answer(query),
                () = tokio::time::sleep_until(alarm) => self.wake(),
                _ = stop.changed() => break,
            }
        }
        self.shut_down().await;
    }

    fn wake_at(&self) -> Instant {
        let now = self.deps.clock.now();
        let machine = self.machine.alarm().map(|(at, _)| Instant::now() + at.since(now.mono));
        [machine, self.rows_at].into_iter().flatten().min().map_or(self.status_at, |at| at.min(self.status_at))
    }

    fn wake(&mut self) {
        let now = self.deps.clock.now();
        if self.machine.alarm().is_some_and(|(at, _)| at <= now.mono) {
            self.machine.wake(now);
            self.run_outputs(None);
        }
        let at = Instant::now();
        if self.rows_at.is_some_and(|due| due <= at) {
            self.write_rows();
        }
        if self.status_at <= at {
            self.status_at = at + STATUS_INTERVAL;
            self.report_network_contact();
            self.retry_unread_roots();
            // The machine may have had no input for a while.
            let snapshot = SyncSnapshot { at: self.deps.clock.wall(), ..self.machine.snapshot() };
            self.deps.metrics.sync().update(&snapshot);
            self.deps.status.send_replace(Arc::new(self.status.sync_status(snapshot)));
        }
    }

    /// Answers a query. The receiver of the reply may be gone.
    fn answer(&mut self, query: SyncQuery) {
        match query {
            SyncQuery::Repositories(repos, reply) => {
                let reports =
                    repos.iter().map(|repo| self.status.repo_relay_reports(repo, self.machine.repo_relays(repo)));
                let _ = reply.send(reports.collect());
            }
            SyncQuery::Relay(url, reply) => {
                let _ = reply.send(self.machine.relay(&url).map(|relay| self.status.relay_status(relay)));
            }
            SyncQuery::Command(command, reply) => {
                let presence = self.relay_presence(&command);
                if presence == RelayPresence::Unknown {
                    let _ = reply.send(presence);
                    return;
                }
                self.handle(SyncInput::Command(command), None);
                self.write_rows();
                self.status_at = Instant::now();
                let on_disk = self.deps.writer.flush();
                tokio::spawn(async move {
                    if on_disk.await.is_ok() {
                        let _ = reply.send(presence);
                    }
                });
            }
        }
    }

    fn relay_presence(&self, command: &RelayCommand) -> RelayPresence {
        let (RelayCommand::Retry(url)
        | RelayCommand::Pause(url)
        | RelayCommand::Resume(url)
        | RelayCommand::Forget(url)
        | RelayCommand::Reconcile(url)) = command;
        match self.machine.relay(url) {
            Some(relay) => RelayPresence::Followed(Box::new(self.status.relay_status(relay))),
            None if self.machine.has_stored_record(url) => RelayPresence::StoredOnly,
            None => RelayPresence::Unknown,
        }
    }

    fn handle_connection_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Connected(session, nip11) => self.handle(SyncInput::Connected(session, nip11), None),
            ConnectionEvent::Received(session, message, permit) => {
                self.status.message_received(session, &message, self.deps.clock.wall());
                self.handle(SyncInput::Message(session, message), permit);
            }
            ConnectionEvent::UnsentBytes(session, bytes) => self.handle(SyncInput::Unsent(session, bytes), None),
            ConnectionEvent::Closed(session, reason) => {
                self.report_network_contact();
                self.handles.remove(&session);
                self.status.disconnected(session);
                self.handle(SyncInput::Disconnected(session, reason), None);
            }
        }
    }

    /// Reads the root events again that could not be read before.
    fn retry_unread_roots(&mut self) {
        let (store, limit) = (&self.deps.store, self.descendant_limit);
        for roots in self.unread_roots.retry(|repo| store_queries::root_events(store, repo, limit)) {
            self.handle(roots, None);
        }
    }

    /// Reports the last contact with another computer, if there was one since the last report.
    fn report_network_contact(&mut self) {
        let Some(age) = self.deps.contact.age() else { return };
        let age_millis = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let at = MonoTime(self.deps.clock.mono().0.saturating_sub(age_millis));
        let is_new = self.reported_contact.is_none_or(|reported| at.since(reported) >= CONTACT_INTERVAL);
        if is_new {
            self.reported_contact = Some(at);
            self.handle(SyncInput::NetworkContact(at), None);
        }
    }

    /// Passes updates of the writer to the machine, in the order that the machine needs: repository needs, served
    /// events, results of submissions, policy.
    fn take_writer_updates(&mut self) {
        let updates = self.deps.feed.take();
        for (name, followed) in updates.repo_needs {
            self.status.set_followed(&name, &followed);
            self.handle(SyncInput::RepoNeeds(name, followed), None);
        }
        self.feed_served_events();
        for (id, result) in updates.results {
            let source = self.sources.remove(&id).unwrap_or(SyncSource::CatchUp);
            self.deps.metrics.sync().count_result(source, &result);
            self.handle(SyncInput::SubmitResult(id, result), None);
        }
        if let Some(policy) = updates.policy {
            self.handle(SyncInput::PolicyChanged(policy), None);
        }
    }

    /// Passes all newly served events to the machine.
    fn feed_served_events(&mut self) {
        loop {
            match self.deps.store.served_since(self.fed_up_to, FEED_BATCH) {
                Ok((events, reached)) => {
                    let done = reached == self.fed_up_to;
                    self.fed_up_to = reached;
                    for event in events {
                        self.handle(SyncInput::Served(event), None);
                    }
                    if done {
                        return;
                    }
                }
                Err(error) => return error!(target: "sync", %error, "cannot read newly served events"),
            }
        }
    }

    fn handle(&mut self, input: SyncInput, permit: Option<EventPermit>) {
        self.deps.metrics.server().count_input(metrics::server::MachineKind::Sync, input.label());
        self.machine.handle(self.deps.clock.now(), input);
        self.run_outputs(permit);
    }

    /// Performs the machine's outputs until there are no more. Results of store queries are passed back to the machine.
    fn run_outputs(&mut self, mut permit: Option<EventPermit>) {
        let mut answers = VecDeque::new();
        loop {
            while let Some(output) = self.machine.poll() {
                self.run_output(output, &mut permit, &mut answers);
            }
            let Some(answer) = answers.pop_front() else { return };
            self.machine.handle(self.deps.clock.now(), answer);
        }
    }

    fn run_output(&mut self, output: SyncOutput, permit: &mut Option<EventPermit>, answers: &mut VecDeque<SyncInput>) {
        let store = &self.deps.store;
        self.deps.metrics.server().count_output(metrics::server::MachineKind::Sync, output.label());
        match output {
            SyncOutput::Dial { session, url, is_configured } => {
                debug!(target: "sync", relay = %url, "dialling relay");
                self.status.connecting(session, &url);
                let handle = {
                    let origin = if is_configured { RelayOrigin::Configured } else { RelayOrigin::Event };
                    RelayConnection::spawn(&self.deps.connections, session, (url, origin), self.outbox.clone())
                };
                self.handles.insert(session, handle);
            }
            SyncOutput::SetEventRate(session, rate) => {
                if let Some(handle) = self.handles.get(&session) {
                    handle.set_event_rate(rate);
                }
            }
            SyncOutput::Disconnect(session) => {
                if let Some(handle) = self.handles.get(&session) {
                    handle.disconnect();
                }
            }
            SyncOutput::Send(session, message) => {
                if let Some(handle) = self.handles.get(&session) {
                    handle.send(message);
                }
            }
            SyncOutput::QueryRootEvents(repo) => {
                let limit = self.descendant_limit;
                answers.extend(self.unread_roots.read(repo, |repo| store_queries::root_events(store, repo, limit)));
            }
            SyncOutput::QueryLocalIds(query, filter) => {
                answers.push_back(store_queries::local_ids(store, query, &filter))
            }
            SyncOutput::QueryMissingIds(query, ids) => answers.push_back(store_queries::missing_ids(store, query, ids)),
            SyncOutput::QueryServedEvents(query, ids) => {
                answers.push_back(store_queries::served_events(store, query, &ids))
            }
            SyncOutput::Submit(submission) => {
                self.sources.insert(submission.id, submission.source);
                let permit = submission.session.and_then(|_| permit.take());
                self.deps.writer.push(QueuedEvent::from_relay(submission, Box::new(permit)));
            }
            SyncOutput::HeldEventSeen(id) => self.deps.writer.report_seen(id),
            SyncOutput::ReleasePermit(_) => drop(permit.take()),
            SyncOutput::StoreRow(row) => self.queue_row(Some(row), None),
            SyncOutput::DeleteRow(key) => self.queue_row(None, Some(key)),
            SyncOutput::Note(note) => {
                crate::sync::log::log_note(&note);
                self.deps.metrics.sync().count_note(&note);
                self.status.note(&note, self.deps.clock.wall());
                if let SyncNote::StatesCompared { relay, shared, lacking } = &note {
                    let states = store_queries::state_summaries(store, shared);
                    self.status.states_compared(relay, &states, lacking, self.deps.clock.wall());
                }
            }
        }
    }

    fn queue_row(&mut self, row: Option<SyncRow>, deleted: Option<SyncRowKey>) {
        if deleted.is_some() && !self.rows.is_empty() || row.is_some() && !self.deleted_rows.is_empty() {
            // The writer stores rows before it deletes rows, so the two must not be mixed: the later change has to win.
            self.write_rows();
        }
        self.rows.extend(row);
        self.deleted_rows.extend(deleted);
        self.rows_at.get_or_insert(Instant::now() + ROW_FLUSH_INTERVAL);
        if self.rows.len() + self.deleted_rows.len() >= MAX_ROWS {
            self.write_rows();
        }
    }

    fn write_rows(&mut self) {
        self.rows_at = None;
        let (rows, deleted_rows) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.deleted_rows));
        if !rows.is_empty() || !deleted_rows.is_empty() {
            self.deps.writer.send(WriterCommand::SaveSyncRows(rows, deleted_rows));
        }
    }

    /// Stores the machine's state and closes all connections.
    async fn shut_down(mut self) {
        self.machine.save_all(self.deps.clock.now());
        self.run_outputs(None);
        self.write_rows();
        for handle in self.handles.values() {
            handle.disconnect();
        }
        let all_closed = async {
            while !self.handles.is_empty() {
                match self.inbox.recv().await {
                    Some(ConnectionEvent::Closed(session, _)) => drop(self.handles.remove(&session)),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        if tokio::time::timeout(Duration::from_secs(limits::SYNC_SHUTDOWN_SECS), all_closed).await.is_err() {
            debug!(target: "sync", "some relay connections were not closed in time");
        }
    }
}

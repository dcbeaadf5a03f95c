//! The sync room: drives the machine that decides whom to listen to, and acts for it.
//!
//! It has a thread of its own, because some of the store's answers take milliseconds. Everything else it does is moving:
//! what sockets hear and what the desk has decided goes in, what the machine wants goes to sockets, the line and the desk.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};

use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::limits;
use grasp_core::nostr::EventId;
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::health::BackoffConfig;
use grasp_core::sync::io::{
    RelayCommand, RestoredRow, Seq, SessionId, SyncInput, SyncNote, SyncOutput, SyncRow, SyncRowKey, SyncSource,
    SyncSubmissionId,
};
use grasp_core::sync::rejected::RejectedEventsConfig;
use grasp_core::sync::{SyncConfig, SyncMachine};
use grasp_store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::connection::{FromSocket, Known, Permit, RelaySocket, SocketHandle, Sockets};
use super::status::{Board, Known as KnownRelay, Picture, Question};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics;
use crate::metrics::Metrics;
use crate::writer::command::{AdminCommand, WriterCommand};
use crate::writer::policy::CoverageBasis;
use crate::writer::queue::EventQueue;
use crate::writer::submission::QueuedEvent;
use crate::writer::sync_feed::SyncFeed;

/// Things that sockets have heard and that wait to be told: each socket waits with its next one when it is full.
const INBOX: usize = 256;

/// How often rows are handed to the writer, and how many at most before that.
const ROWS_EVERY: Duration = Duration::from_secs(1);
const MAX_ROWS: usize = 1_000;

/// How often the gauges are renewed (000).
const VIEW_EVERY: Duration = Duration::from_secs(2);

/// Served events that are told at a time.
const FEED: usize = 1_000;

/// What the room needs.
pub(crate) struct Means {
    pub(crate) store: Store,
    pub(crate) line: Arc<EventQueue>,
    pub(crate) post: Arc<SyncFeed>,
    pub(crate) clock: Clock,
    pub(crate) sockets: Arc<Sockets>,
    pub(crate) meter: Metrics,
    /// Where people see how relays are.
    pub(crate) pictures: watch::Sender<Arc<Picture>>,
    /// What pages and the operator ask.
    pub(crate) questions: mpsc::Receiver<Question>,
}

/// The room.
pub(crate) struct SyncDriver {
    means: Means,
    machine: SyncMachine,
    inbox: mpsc::Receiver<FromSocket>,
    outbox: mpsc::Sender<FromSocket>,
    handles: HashMap<SessionId, SocketHandle>,
    /// How submitted events came, for the counters.
    vias: HashMap<SyncSubmissionId, SyncSource>,
    /// Up to where the served events have been told.
    told: Seq,
    rows: Vec<SyncRow>,
    gone: Vec<SyncRowKey>,
    rows_at: Option<Instant>,
    view_at: Instant,
    board: Board,
}

/// What the machine is told once.
pub(crate) fn config(config: &Config, rules: &AdmissionPolicy, instance: &str) -> Result<SyncConfig> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|problem| anyhow!("no randomness to be had: {problem}"))?;
    let settings = &config.sync;
    let basis = CoverageBasis::new(config, instance);
    Ok(SyncConfig {
        service: rules.service.clone(),
        instance: instance.to_owned(),
        bootstrap: basis.bootstrap(&rules.lists),
        batch_window_millis: u64::try_from(settings.batch_window.as_millis()).unwrap_or(u64::MAX),
        values_per_filter: settings.values_per_filter,
        use_negentropy: settings.negentropy,
        backoff: BackoffConfig {
            base_secs: settings.base_backoff.as_secs(),
            max_secs: settings.max_backoff.max(settings.base_backoff).as_secs(),
        },
        rejected: RejectedEventsConfig {
            hot_secs: settings.rejected_hot_ttl.as_secs(),
            cold_secs: settings.rejected_cold_ttl.as_secs(),
            ..RejectedEventsConfig::default()
        },
        epoch: basis.epoch(&rules.lists),
        seed: u64::from_le_bytes(seed),
        fault: None,
    })
}

impl Known for Store {
    fn is_known(&self, id: EventId) -> bool {
        // A store that cannot be read now says no; the registrar will say what it is.
        self.missing_ids(&[id]).is_ok_and(|missing| missing.is_empty())
    }
}

impl SyncDriver {
    /// A room whose machine knows what an earlier life has learned.
    pub(crate) fn new(means: Means, config: SyncConfig) -> Self {
        let (outbox, inbox) = mpsc::channel(INBOX);
        let mut machine = SyncMachine::new(config);
        let now = means.clock.now();
        let mut rows = Vec::new();
        let peers = means.store.load_relays(|peer| rows.push(RestoredRow::Relay(Box::new(peer))));
        let refused = means.store.load_rejected(|row| rows.push(RestoredRow::Rejected(row)));
        match (peers, refused) {
            (Ok(0), Ok(0)) => {}
            (Ok(peers), Ok(refused)) => {
                warn!(rows = peers + refused, "some of what was known of relays cannot be read")
            }
            (Err(problem), _) | (_, Err(problem)) => warn!(%problem, "what was known of relays cannot be read"),
        }
        for row in rows {
            machine.handle(now, SyncInput::Restored(row));
        }
        Self {
            told: means.store.last_seq(),
            means,
            machine,
            inbox,
            outbox,
            handles: HashMap::new(),
            vias: HashMap::new(),
            rows: Vec::new(),
            gone: Vec::new(),
            rows_at: None,
            view_at: Instant::now(),
            board: Board::default(),
        }
    }

    /// The room's life: until it is asked to stop.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        self.hear_desk();
        self.tell(SyncInput::Ready, None);
        loop {
            let alarm = self.wake_at();
            tokio::select! {
                heard = self.inbox.recv() => {
                    if let Some(heard) = heard {
                        self.hear(heard);
                    }
                }
                () = self.means.post.posted() => self.hear_desk(),
                Some(question) = self.means.questions.recv() => self.answer(question),
                () = tokio::time::sleep_until(alarm) => self.wake(),
                _ = stop.changed() => break,
            }
        }
        self.leave().await;
    }

    fn wake_at(&self) -> Instant {
        let now = self.means.clock.now();
        let machine = self.machine.alarm().map(|(at, _)| Instant::now() + at.since(now.mono));
        [machine, self.rows_at].into_iter().flatten().min().map_or(self.view_at, |at| at.min(self.view_at))
    }

    fn wake(&mut self) {
        let now = self.means.clock.now();
        if self.machine.alarm().is_some_and(|(at, _)| at <= now.mono) {
            self.machine.wake(now);
            self.act(None);
        }
        let at = Instant::now();
        if self.rows_at.is_some_and(|due| due <= at) {
            self.write_rows();
        }
        if self.view_at <= at {
            self.view_at = at + VIEW_EVERY;
            let view = self.machine.snapshot();
            self.means.meter.sync().view(&view);
            self.means.pictures.send_replace(Arc::new(self.board.picture(view)));
        }
    }

    /// Answers a question. Whoever asked may have gone.
    fn answer(&mut self, question: Question) {
        match question {
            Question::Repositories(repos, reply) => {
                let standings = repos.iter().map(|repo| self.board.standings(repo, self.machine.repo_relays(repo)));
                let _ = reply.send(standings.collect());
            }
            Question::Relay(url, reply) => {
                let _ = reply.send(self.machine.relay(&url).map(|link| self.board.look(link)));
            }
            Question::Command(order, reply) => {
                let known = self.known(&order);
                if known == KnownRelay::Not {
                    let _ = reply.send(known);
                    return;
                }
                self.tell(SyncInput::Command(order), None);
                self.write_rows();
                self.view_at = Instant::now();
                let (written, on_disk) = oneshot::channel();
                self.means.line.post(WriterCommand::Operator(AdminCommand::Written(written)));
                tokio::spawn(async move {
                    if on_disk.await.is_ok() {
                        let _ = reply.send(known);
                    }
                });
            }
        }
    }

    fn known(&self, order: &RelayCommand) -> KnownRelay {
        let (RelayCommand::Retry(url)
        | RelayCommand::Pause(url)
        | RelayCommand::Resume(url)
        | RelayCommand::Forget(url)
        | RelayCommand::Reconcile(url)) = order;
        match self.machine.relay(url) {
            Some(link) => KnownRelay::Followed(Box::new(self.board.look(link))),
            None if self.machine.has_stored_record(url) => KnownRelay::Remembered,
            None => KnownRelay::Not,
        }
    }

    fn hear(&mut self, heard: FromSocket) {
        match heard {
            FromSocket::Up(session, nip11) => self.tell(SyncInput::Connected(session, nip11), None),
            FromSocket::Message(session, heard, permit) => {
                self.board.heard(session, &heard, self.means.clock.wall());
                self.tell(SyncInput::Message(session, heard), permit);
            }
            FromSocket::Unsent(session, bytes) => self.tell(SyncInput::Unsent(session, bytes), None),
            FromSocket::Down(session, loss) => {
                self.handles.remove(&session);
                self.board.ended(session);
                self.tell(SyncInput::Disconnected(session, loss), None);
            }
        }
    }

    /// What the desk has left, in the order in which the machine must hear it: what is followed, what is served, verdicts.
    fn hear_desk(&mut self) {
        let mail = self.means.post.take();
        for (name, followed) in mail.interest {
            self.board.followed(&name, &followed);
            self.tell(SyncInput::RepoNeeds(name, followed), None);
        }
        self.hear_store();
        for (ticket, judgement) in mail.judged {
            let via = self.vias.remove(&ticket).unwrap_or(SyncSource::CatchUp);
            self.means.meter.sync().judged(via, &judgement);
            self.tell(SyncInput::SubmitResult(ticket, judgement), None);
        }
        if let Some(rules) = mail.rules {
            self.tell(SyncInput::PolicyChanged(rules), None);
        }
    }

    /// Everything that has come to be served since the last time.
    fn hear_store(&mut self) {
        loop {
            match self.means.store.served_since(self.told, FEED) {
                Ok((arrived, reached)) => {
                    let done = reached == self.told;
                    self.told = reached;
                    for arrived in arrived {
                        self.tell(SyncInput::Served(arrived), None);
                    }
                    if done {
                        return;
                    }
                }
                Err(problem) => return error!(%problem, "cannot read what has arrived"),
            }
        }
    }

    fn tell(&mut self, input: SyncInput, permit: Option<Permit>) {
        self.means.meter.house().input(metrics::server::Machine::Sync, input.label());
        self.machine.handle(self.means.clock.now(), input);
        self.act(permit);
    }

    /// Does what the machine wants, and tells it what it asks.
    fn act(&mut self, mut permit: Option<Permit>) {
        let mut answers = VecDeque::new();
        loop {
            while let Some(output) = self.machine.poll() {
                self.do_one(output, &mut permit, &mut answers);
            }
            let Some(answer) = answers.pop_front() else { return };
            self.machine.handle(self.means.clock.now(), answer);
        }
    }

    fn do_one(&mut self, output: SyncOutput, permit: &mut Option<Permit>, answers: &mut VecDeque<SyncInput>) {
        let store = &self.means.store;
        self.means.meter.house().output(metrics::server::Machine::Sync, output.label());
        match output {
            SyncOutput::Dial(session, url) => {
                debug!(relay = %url, "dialling");
                self.board.dialled(session, &url);
                let handle = RelaySocket::spawn(&self.means.sockets, session, url, self.outbox.clone());
                self.handles.insert(session, handle);
            }
            SyncOutput::Disconnect(session) => {
                if let Some(handle) = self.handles.get(&session) {
                    handle.hang_up();
                }
            }
            SyncOutput::Send(session, say) => {
                if let Some(handle) = self.handles.get(&session) {
                    handle.say(say);
                }
            }
            SyncOutput::QueryRootEvents(repo) => answers.push_back(super::store_queries::roots(store, repo)),
            SyncOutput::QueryLocalIds(ask, filter) => answers.push_back(super::store_queries::ids(store, ask, &filter)),
            SyncOutput::QueryMissingIds(ask, ids) => answers.push_back(super::store_queries::missing(store, ask, ids)),
            SyncOutput::Submit(submission) => {
                self.vias.insert(submission.id, submission.source);
                let permit = submission.session.and_then(|_| permit.take());
                self.means.line.join(QueuedEvent::of_relay(submission, Box::new(permit)));
            }
            SyncOutput::ReleasePermit(_) => drop(permit.take()),
            SyncOutput::StoreRow(row) => self.keep(Some(row), None),
            SyncOutput::DeleteRow(key) => self.keep(None, Some(key)),
            SyncOutput::Note(note) => {
                crate::sync::log::note(&note);
                self.means.meter.sync().note(&note);
                self.board.note(&note, self.means.clock.wall());
                if let SyncNote::StatesCompared { relay, shared, lacking } = &note {
                    let states = super::store_queries::states(store, shared);
                    self.board.compared(relay, &states, lacking, self.means.clock.wall());
                }
            }
        }
    }

    fn keep(&mut self, row: Option<SyncRow>, gone: Option<SyncRowKey>) {
        if gone.is_some() && !self.rows.is_empty() || row.is_some() && !self.gone.is_empty() {
            // The writer writes before it forgets; who comes later must win.
            self.write_rows();
        }
        self.rows.extend(row);
        self.gone.extend(gone);
        self.rows_at.get_or_insert(Instant::now() + ROWS_EVERY);
        if self.rows.len() + self.gone.len() >= MAX_ROWS {
            self.write_rows();
        }
    }

    fn write_rows(&mut self) {
        self.rows_at = None;
        let (rows, gone) = (std::mem::take(&mut self.rows), std::mem::take(&mut self.gone));
        if !rows.is_empty() || !gone.is_empty() {
            self.means.line.post(WriterCommand::Remember(rows, gone));
        }
    }

    /// Says goodbye to everybody and writes down what is known of them.
    async fn leave(mut self) {
        self.machine.save_all(self.means.clock.now());
        self.act(None);
        self.write_rows();
        for handle in self.handles.values() {
            handle.hang_up();
        }
        let all_gone = async {
            while !self.handles.is_empty() {
                match self.inbox.recv().await {
                    Some(FromSocket::Down(session, _)) => drop(self.handles.remove(&session)),
                    Some(_) => {}
                    None => return,
                }
            }
        };
        if tokio::time::timeout(Duration::from_secs(limits::SYNC_SHUTDOWN_SECS), all_gone).await.is_err() {
            debug!("some relays did not say goodbye in time");
        }
    }
}

//! The hunt room: drives the machine that decides where to look for missing git data, and acts for it.
//!
//! - [`fetch`]: one request to one git server, and the checks of what it sends; and one look at its refs.
//! - [`survey`]: where a git server is, and what it allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use grasp_core::admission::io::FetchedPack;
use grasp_core::fetch::io::{
    FetchId, FetchInput, FetchOutcome, FetchOutput, FetchRequest, FetchResult, HostRow, MirrorCheck, MirrorId,
    RefComparison, SurveyResult,
};
use grasp_core::fetch::origin::Origin;
use grasp_core::fetch::{FetchConfig, FetchMachine, FetchView, MirrorCheckSchedule, MirrorView};
use grasp_core::net::AddressPolicy;
use grasp_core::repo::RepoPath;
use grasp_core::state_machine::StateMachine;
use grasp_store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::client::{FetchClient, Fetched};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::fetch::HostSample;
use crate::metrics::{Metrics, server};
use crate::net::dialer::Dialer;
use crate::writer::command::{AdminCommand, FetchCommand, WriterCommand};
use crate::writer::fetch_feed::{FetchFeed, FetchUpdate};
use crate::writer::queue::EventQueue;

/// How often the gauges are renewed.
const VIEW_EVERY: Duration = Duration::from_secs(2);

/// What the room needs.
pub(crate) struct Means {
    pub(crate) store: Store,
    pub(crate) line: Arc<EventQueue>,
    pub(crate) post: Arc<FetchFeed>,
    pub(crate) clock: Clock,
    pub(crate) fetching: Arc<FetchClient>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) meter: Metrics,
    /// Where people see how the search goes.
    pub(crate) pictures: watch::Sender<Arc<FetchView>>,
    pub(crate) questions: mpsc::Receiver<Question>,
}

/// A question to the room, or an order.
pub(crate) enum Question {
    /// Everything that is missing at these sites is to be looked for at once. It is answered when that has begun.
    Hurry(Vec<RepoPath>, oneshot::Sender<()>),
    /// What is known of the git servers of this one?
    Looks(RepoPath, oneshot::Sender<Vec<MirrorView>>),
}

/// Questions that may wait: pages are made one after the other, and an operator has few orders.
const QUESTIONS: usize = 16;

/// How long a page waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where others reach the room.
#[derive(Clone, Debug)]
pub(crate) struct FetchHandle(mpsc::Sender<Question>);

impl FetchHandle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (sender, questions) = mpsc::channel(QUESTIONS);
        (Self(sender), questions)
    }

    /// Has everything that is missing at these sites looked for at once; nothing if the room is too busy or gone.
    pub(crate) async fn hurry(&self, repo_paths: Vec<RepoPath>) -> Option<()> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Question::Hurry(repo_paths, reply)).ok()?;
        answer.await.ok()
    }

    /// What is known of the git servers of a repository that are no GRASP servers; nothing if the room is too busy.
    pub(crate) async fn looks(&self, repo_path: RepoPath) -> Option<Vec<MirrorView>> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(Question::Looks(repo_path, reply)).ok()?;
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    }
}

/// What comes back from what the room has begun.
enum News {
    Surveyed(Origin, SurveyResult),
    Answering(FetchId),
    Fetched(FetchId, FetchResult),
    Looked(MirrorId, Result<RefComparison, FetchOutcome>),
}

/// The room.
pub(crate) struct FetchDriver {
    means: Means,
    machine: FetchMachine,
    inbox: mpsc::UnboundedReceiver<News>,
    outbox: mpsc::UnboundedSender<News>,
    /// The machine bounds how many there are.
    running: HashMap<FetchId, AbortHandle>,
    view_at: Instant,
}

/// What the machine is told once.
pub(crate) fn manners(config: &Config) -> Result<FetchConfig> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|problem| anyhow!("no randomness to be had: {problem}"))?;
    Ok(FetchConfig {
        address_policy: if config.sync.allow_non_global { AddressPolicy::Any } else { AddressPolicy::PublicOnly },
        default_limits: config.sync.git,
        host_limits: config.sync.git_host_limits.clone(),
        mirror_checks: pace(),
        seed: u64::from_le_bytes(seed),
    })
}

/// When servers are looked at. Tests of debug builds cannot wait for a minute: `GRASPD_HASTE` lets looks follow at once.
fn pace() -> MirrorCheckSchedule {
    #[cfg(debug_assertions)]
    if std::env::var_os("GRASPD_HASTE").is_some() {
        return MirrorCheckSchedule { after_change_secs: 1, retry_secs: [1; 4], startup_spread_secs: 1 };
    }
    MirrorCheckSchedule::default()
}

impl FetchDriver {
    /// A room whose machine knows what an earlier life has learned.
    pub(crate) fn new(means: Means, manners: FetchConfig) -> Self {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let mut machine = FetchMachine::new(manners);
        let now = means.clock.now();
        match means.store.load_git_hosts(|row| machine.handle(now, FetchInput::HostRestored(row))) {
            Ok(0) => {}
            Ok(rows) => warn!(rows, "some of what was known of git servers cannot be read"),
            Err(problem) => warn!(%problem, "what was known of git servers cannot be read"),
        }
        Self { means, machine, inbox, outbox, running: HashMap::new(), view_at: Instant::now() }
    }

    /// The room's life: until it is asked to stop.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        info!("looking for missing git data on other servers");
        self.hear_desk();
        loop {
            let alarm = self.wake_at();
            tokio::select! {
                Some(news) = self.inbox.recv() => self.hear(news),
                () = self.means.post.posted() => self.hear_desk(),
                Some(question) = self.means.questions.recv() => self.answer(question),
                () = tokio::time::sleep_until(alarm) => self.wake(),
                _ = stop.changed() => break,
            }
        }
        for (_, fetch) in self.running.drain() {
            fetch.abort();
        }
    }

    /// Whoever asks may have gone.
    fn answer(&mut self, question: Question) {
        match question {
            Question::Hurry(repo_paths, reply) => {
                for repo_path in repo_paths {
                    self.tell(FetchInput::FetchNow(repo_path));
                }
                self.view_at = Instant::now();
                let _ = reply.send(());
            }
            Question::Looks(repo_path, reply) => drop(reply.send(self.machine.mirrors(&repo_path))),
        }
    }

    fn wake_at(&self) -> Instant {
        let now = self.means.clock.now();
        let machine = self.machine.alarm().map(|(at, _)| Instant::now() + at.since(now.mono));
        machine.map_or(self.view_at, |at| at.min(self.view_at))
    }

    fn wake(&mut self) {
        let now = self.means.clock.now();
        if self.machine.alarm().is_some_and(|(at, _)| at <= now.mono) {
            self.machine.wake(now);
            self.act();
        }
        let at = Instant::now();
        if self.view_at <= at {
            self.view_at = at + VIEW_EVERY;
            let view = self.machine.view();
            let hosts = view.hosts.iter().map(|host| HostSample {
                authority: &host.authority,
                in_flight: host.in_flight,
                requests: host.requests,
            });
            self.means.meter.hunt().view(view.jobs.len(), hosts);
            self.means.meter.hunt().tally(view.stats.rounds, view.stats.oids);
            self.means.pictures.send_replace(Arc::new(view));
        }
    }

    /// What the desk has left: what is sought and served now.
    fn hear_desk(&mut self) {
        let FetchUpdate { sought, kept, moved } = self.means.post.take();
        for (name, quarries) in sought {
            let events: usize = quarries.iter().map(|job| job.events.len()).sum();
            debug!(identifier = name.as_str(), events, "events wait for git data");
            self.tell(FetchInput::Wanted(name, quarries));
        }
        for (name, repos) in kept {
            self.tell(FetchInput::Served(name, repos));
        }
        for repo_path in moved {
            self.tell(FetchInput::RefsChanged(repo_path));
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Surveyed(origin, survey) => self.tell(FetchInput::Surveyed(origin, survey)),
            News::Answering(id) if self.running.contains_key(&id) => self.tell(FetchInput::FirstBytes(id)),
            News::Fetched(id, catch) if self.running.remove(&id).is_some() => self.tell(FetchInput::Fetched(id, catch)),
            // It was cancelled meanwhile, and that has been told.
            News::Answering(_) | News::Fetched(..) => {}
            News::Looked(id, result) => self.tell(FetchInput::MirrorChecked(id, result)),
        }
    }

    fn tell(&mut self, input: FetchInput) {
        self.hand(input);
        self.act();
    }

    /// Tells the machine something whose consequences are looked at later.
    fn hand(&mut self, input: FetchInput) {
        self.means.meter.house().input(server::Machine::Hunt, input.label());
        if let FetchInput::Fetched(_, catch) = &input {
            self.means.meter.hunt().fetched(catch.outcome.label());
        }
        self.machine.handle(self.means.clock.now(), input);
    }

    /// Does what the machine wants.
    fn act(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.means.meter.house().output(server::Machine::Hunt, output.label());
            match output {
                FetchOutput::Survey { origin, with_nip11 } => self.survey(origin, with_nip11),
                FetchOutput::Fetch(fetch) => self.fetch(fetch),
                FetchOutput::CheckMirror(look) => self.look(look),
                FetchOutput::Cancel(id) => self.cancel(id),
                FetchOutput::SourcesTried(events) => {
                    self.means.line.post(WriterCommand::Hunt(FetchCommand::Tried(events)))
                }
                FetchOutput::SaveHost(row) => self.write(vec![row], Vec::new()),
                FetchOutput::DeleteHost(authority) => self.write(Vec::new(), vec![authority]),
                FetchOutput::UrlForbidden(repo_path, url, why) => {
                    info!(repo = %repo_path, url, %why, "a git server is not called")
                }
            }
        }
    }

    fn survey(&self, origin: Origin, terms: bool) {
        let (dialer, outbox) = (self.means.dialer.clone(), self.outbox.clone());
        tokio::spawn(async move {
            let survey = super::survey::survey(&dialer, &origin, terms).await;
            // If the room has gone, nobody wants to know.
            let _ = outbox.send(News::Surveyed(origin, survey));
        });
    }

    fn look(&self, look: MirrorCheck) {
        let (written, is_written) = oneshot::channel();
        self.means.line.post(WriterCommand::Operator(AdminCommand::Written(written)));
        let (fetching, outbox) = (self.means.fetching.clone(), self.outbox.clone());
        let id = look.id;
        let task = tokio::spawn(async move {
            // Whatever a crash forgets has not been asked.
            match is_written.await {
                Ok(()) => fetching.compare(&look).await,
                Err(_) => Err(FetchOutcome::LocalError),
            }
        });
        tokio::spawn(async move {
            // Its place is given back whatever happens.
            let result = task.await.unwrap_or(Err(FetchOutcome::LocalError));
            let _ = outbox.send(News::Looked(id, result));
        });
    }

    fn fetch(&mut self, fetch: FetchRequest) {
        let id = fetch.id;
        debug!(repo = %fetch.repo_path, url = %fetch.target, objects = fetch.oids.len(), form = fetch.form.label(), "fetching");
        let events = fetch.events.iter().map(|(event, _)| *event).collect();
        let (begin, begins) = oneshot::channel();
        self.means.line.post(WriterCommand::Hunt(FetchCommand::Began(id, events, begin)));
        let over = Over { id, line: self.means.line.clone() };
        let (fetching, outbox, line) = (self.means.fetching.clone(), self.outbox.clone(), self.means.line.clone());
        let task = tokio::spawn(async move {
            let over = over;
            // Whatever a crash forgets has not been asked.
            if begins.await.is_err() {
                drop(over);
                let _ =
                    outbox.send(News::Fetched(id, FetchResult { oids: Vec::new(), outcome: FetchOutcome::LocalError }));
                return;
            }
            let answering = || drop(outbox.send(News::Answering(id)));
            let Fetched { catch, pack } = fetching.fetch(&fetch, answering).await;
            debug!(repo = %fetch.repo_path, url = %fetch.target, found = catch.oids.len(), outcome = catch.outcome.label(), "fetched");
            match pack {
                Some(pack) => {
                    let fetched_pack =
                        FetchedPack { repo_path: fetch.repo_path, fetch: id, received_pack: pack.received_pack() };
                    line.post(WriterCommand::Hunt(FetchCommand::Arrived(fetched_pack, pack)));
                }
                // It is here, and nobody has noticed.
                None if !catch.oids.is_empty() => {
                    line.post(WriterCommand::Hunt(FetchCommand::Came(fetch.repo_path.identifier().clone())));
                }
                None => {}
            }
            // Before the machine hears of it, so that what it leads to is told after what it was.
            drop(over);
            let _ = outbox.send(News::Fetched(id, catch));
        });
        self.running.insert(id, task.abort_handle());
    }

    fn cancel(&mut self, id: FetchId) {
        if let Some(task) = self.running.remove(&id) {
            task.abort();
            self.hand(FetchInput::Fetched(id, FetchResult { oids: Vec::new(), outcome: FetchOutcome::Cancelled }));
        }
    }

    /// What must be on disk before the fetch that follows it.
    fn write(&self, rows: Vec<HostRow>, gone: Vec<String>) {
        self.means.line.post(WriterCommand::Hunt(FetchCommand::Remember(rows, gone)));
    }
}

/// Tells the desk that a fetch is over, also when it is cancelled.
struct Over {
    id: FetchId,
    line: Arc<EventQueue>,
}

impl Drop for Over {
    fn drop(&mut self) {
        self.line.post(WriterCommand::Hunt(FetchCommand::Ended(self.id)));
    }
}

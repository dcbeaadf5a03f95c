//! Driver of the fetch machine.
//!
//! Passes updates of the writer and results of tasks to [`FetchMachine`], and performs its outputs: fetches and mirror
//! checks with [`client`](super::client), surveys with [`survey`](super::survey), everything that must be stored
//! through the writer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
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
use tracing::{Instrument, debug, info, info_span, warn};

use super::client::{FetchClient, FetchReply};
use crate::clock::Clock;
use crate::config::Config;
use crate::metrics::fetch::HostSample;
use crate::metrics::{Metrics, server};
use crate::net::dialer::Dialer;
use crate::random;
use crate::writer::command::WriterCommand;
use crate::writer::fetch_feed::{FetchFeed, FetchUpdate};
use crate::writer::queue::EventQueue;

/// How often metrics and status are refreshed.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Dependencies of the driver.
pub(crate) struct FetchDeps {
    pub(crate) store: Store,
    pub(crate) writer: Arc<EventQueue>,
    pub(crate) feed: Arc<FetchFeed>,
    pub(crate) clock: Clock,
    pub(crate) client: Arc<FetchClient>,
    pub(crate) dialer: Arc<Dialer>,
    pub(crate) metrics: Metrics,
    /// Status for web pages and commands.
    pub(crate) status: watch::Sender<Arc<FetchView>>,
    pub(crate) queries: mpsc::Receiver<FetchQuery>,
}

/// A query or command for the fetch driver.
pub(crate) enum FetchQuery {
    /// Fetch everything that these repositories lack now. Answered when the fetches are scheduled.
    FetchNow(Vec<RepoPath>, oneshot::Sender<()>),
    /// Status of the mirrors of a repository.
    Mirrors(RepoPath, oneshot::Sender<Vec<MirrorView>>),
}

/// Capacity of the queue of queries: pages are rendered one after the other, and an operator sends few commands.
const MAX_QUEUED_QUERIES: usize = 16;

/// Timeout of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Handle for queries to the fetch driver.
#[derive(Clone, Debug)]
pub(crate) struct FetchHandle(mpsc::Sender<FetchQuery>);

impl FetchHandle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<FetchQuery>) {
        let (sender, queries) = mpsc::channel(MAX_QUEUED_QUERIES);
        (Self(sender), queries)
    }

    /// Schedules fetches of everything that these repositories lack. Returns `None` if the driver is too busy or has
    /// stopped.
    pub(crate) async fn fetch_now(&self, repo_paths: Vec<RepoPath>) -> Option<()> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(FetchQuery::FetchNow(repo_paths, reply)).ok()?;
        answer.await.ok()
    }

    /// Returns the status of a repository's git servers that are not GRASP servers, or `None` if the driver is too
    /// busy.
    pub(crate) async fn mirrors(&self, repo_path: RepoPath) -> Option<Vec<MirrorView>> {
        let (reply, answer) = oneshot::channel();
        self.0.try_send(FetchQuery::Mirrors(repo_path, reply)).ok()?;
        tokio::time::timeout(QUERY_TIMEOUT, answer).await.ok()?.ok()
    }
}

/// Result of a task that the driver started.
enum TaskResult {
    Surveyed(Origin, SurveyResult),
    FirstBytes(FetchId),
    Fetched(FetchId, FetchResult),
    MirrorChecked(MirrorId, Result<RefComparison, FetchOutcome>),
}

/// Runs the fetch machine.
pub(crate) struct FetchDriver {
    deps: FetchDeps,
    machine: FetchMachine,
    inbox: mpsc::UnboundedReceiver<TaskResult>,
    outbox: mpsc::UnboundedSender<TaskResult>,
    /// Tasks of running fetches. The machine bounds their number.
    running: HashMap<FetchId, AbortHandle>,
    status_at: Instant,
}

/// Builds the machine's configuration from the settings.
pub(crate) fn config(config: &Config) -> Result<FetchConfig> {
    Ok(FetchConfig {
        address_policy: if config.sync.allow_non_global { AddressPolicy::Any } else { AddressPolicy::PublicOnly },
        default_limits: config.sync.git_limits(),
        max_limits: config.max_git_limits(),
        host_limits: config.sync.git_host_limits.clone(),
        mirror_checks: mirror_check_schedule(),
        seed: u64::from_le_bytes(random::bytes()?),
    })
}

/// Schedule of mirror checks. In debug builds, the environment variable `GRASPD_TEST_NO_DELAYS` shortens all delays for tests.
fn mirror_check_schedule() -> MirrorCheckSchedule {
    #[cfg(debug_assertions)]
    if std::env::var_os("GRASPD_TEST_NO_DELAYS").is_some() {
        return MirrorCheckSchedule { after_change_secs: 1, retry_secs: [1; 4], startup_spread_secs: 1 };
    }
    MirrorCheckSchedule::default()
}

impl FetchDriver {
    /// Creates the driver and restores the machine's state from the store.
    pub(crate) fn new(deps: FetchDeps, config: FetchConfig) -> Self {
        let (outbox, inbox) = mpsc::unbounded_channel();
        let mut machine = FetchMachine::new(config);
        let now = deps.clock.now();
        match deps.store.load_git_hosts(|row| machine.handle(now, FetchInput::HostRestored(row))) {
            Ok(0) => {}
            Ok(rows) => warn!(target: "fetch", rows, "unreadable rows of git servers were skipped"),
            Err(error) => warn!(target: "fetch", %error, "cannot read the stored state of git servers"),
        }
        Self { deps, machine, inbox, outbox, running: HashMap::new(), status_at: Instant::now() }
    }

    /// Runs until `stop` changes.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        info!(target: "fetch", "fetching missing git data from other servers");
        self.take_writer_updates();
        loop {
            let alarm = self.wake_at();
            tokio::select! {
                Some(result) = self.inbox.recv() => self.handle_task_result(result),
                () = self.deps.feed.changed() => self.take_writer_updates(),
                Some(query) = self.deps.queries.recv() => self.answer(query),
                () = tokio::time::sleep_until(alarm) => self.wake(),
                _ = stop.changed() => break,
            }
        }
        for (_, fetch) in self.running.drain() {
            fetch.abort();
        }
    }

    /// Answers a query. The receiver of the reply may be gone.
    fn answer(&mut self, query: FetchQuery) {
        match query {
            FetchQuery::FetchNow(repo_paths, reply) => {
                for repo_path in repo_paths {
                    self.handle(FetchInput::FetchNow(repo_path));
                }
                self.status_at = Instant::now();
                let _ = reply.send(());
            }
            FetchQuery::Mirrors(repo_path, reply) => drop(reply.send(self.machine.mirrors(&repo_path))),
        }
    }

    fn wake_at(&self) -> Instant {
        let now = self.deps.clock.now();
        let machine = self.machine.alarm().map(|(at, _)| Instant::now() + at.since(now.mono));
        machine.map_or(self.status_at, |at| at.min(self.status_at))
    }

    fn wake(&mut self) {
        let now = self.deps.clock.now();
        if self.machine.alarm().is_some_and(|(at, _)| at <= now.mono) {
            self.machine.wake(now);
            self.run_outputs();
        }
        let at = Instant::now();
        if self.status_at <= at {
            self.status_at = at + STATUS_INTERVAL;
            let view = self.machine.view();
            let hosts = view.hosts.iter().map(|host| HostSample {
                authority: &host.authority,
                in_flight: host.in_flight,
                requests: host.requests,
            });
            self.deps.metrics.fetch().update(view.jobs.len(), hosts);
            self.deps.metrics.fetch().set_totals(view.stats.rounds, view.stats.oids);
            self.deps.status.send_replace(Arc::new(view));
        }
    }

    /// Passes updates of the writer to the machine: wanted git data, served repositories, changed refs.
    fn take_writer_updates(&mut self) {
        let FetchUpdate { wanted, served, changed_refs } = self.deps.feed.take();
        for (identifier, jobs) in wanted {
            let events: usize = jobs.iter().map(|job| job.events.len()).sum();
            debug!(target: "fetch", identifier = identifier.as_str(), events, "events are waiting for git data");
            self.handle(FetchInput::Wanted(identifier, jobs));
        }
        for (identifier, repos) in served {
            self.handle(FetchInput::Served(identifier, repos));
        }
        for repo_path in changed_refs {
            self.handle(FetchInput::RefsChanged(repo_path));
        }
    }

    fn handle_task_result(&mut self, result: TaskResult) {
        match result {
            TaskResult::Surveyed(origin, survey) => self.handle(FetchInput::Surveyed(origin, survey)),
            TaskResult::FirstBytes(id) if self.running.contains_key(&id) => self.handle(FetchInput::FirstBytes(id)),
            TaskResult::Fetched(id, result) if self.running.remove(&id).is_some() => {
                self.handle(FetchInput::Fetched(id, result))
            }
            // The fetch was cancelled meanwhile, and the machine knows.
            TaskResult::FirstBytes(_) | TaskResult::Fetched(..) => {}
            TaskResult::MirrorChecked(id, result) => self.handle(FetchInput::MirrorChecked(id, result)),
        }
    }

    fn handle(&mut self, input: FetchInput) {
        self.handle_only(input);
        self.run_outputs();
    }

    /// Passes an input to the machine. Its outputs are performed later.
    fn handle_only(&mut self, input: FetchInput) {
        self.deps.metrics.server().count_input(server::MachineKind::Fetch, input.label());
        if let FetchInput::Fetched(_, result) = &input {
            self.deps.metrics.fetch().count_fetch(&result.outcome);
        }
        self.machine.handle(self.deps.clock.now(), input);
    }

    /// Performs the machine's outputs.
    fn run_outputs(&mut self) {
        while let Some(output) = self.machine.poll() {
            self.deps.metrics.server().count_output(server::MachineKind::Fetch, output.label());
            match output {
                FetchOutput::Survey { origin, with_nip11 } => self.survey(origin, with_nip11),
                FetchOutput::Fetch(fetch) => self.fetch(fetch),
                FetchOutput::CheckMirror(check) => self.check_mirror(check),
                FetchOutput::Cancel(id) => self.cancel(id),
                FetchOutput::SourcesTried(events) => self.deps.writer.send(WriterCommand::SourcesTried(events)),
                FetchOutput::SaveHost(row) => self.write_hosts(vec![row], Vec::new()),
                FetchOutput::DeleteHost(authority) => self.write_hosts(Vec::new(), vec![authority]),
                FetchOutput::UrlForbidden(repo_path, url, reason) => {
                    info!(target: "fetch", repo = %repo_path, url, %reason, "git server URL is forbidden")
                }
            }
        }
    }

    fn survey(&self, origin: Origin, with_nip11: bool) {
        let (dialer, outbox) = (self.deps.dialer.clone(), self.outbox.clone());
        tokio::spawn(async move {
            let survey = super::survey::survey(&dialer, &origin, with_nip11).await;
            // The driver may have stopped.
            let _ = outbox.send(TaskResult::Surveyed(origin, survey));
        });
    }

    fn check_mirror(&self, check: MirrorCheck) {
        let is_written = self.deps.writer.flush();
        let (client, outbox) = (self.deps.client.clone(), self.outbox.clone());
        let id = check.id;
        let task = tokio::spawn(async move {
            // The request is sent only when it is on disk, so that a crash does not lose it from the request counts.
            match is_written.await {
                Ok(()) => client.compare(&check).await,
                Err(_) => Err(FetchOutcome::LocalError),
            }
        });
        tokio::spawn(async move {
            // The result is reported even if the task panics, so that its slot is freed.
            let result = task.await.unwrap_or(Err(FetchOutcome::LocalError));
            let _ = outbox.send(TaskResult::MirrorChecked(id, result));
        });
    }

    fn fetch(&mut self, fetch: FetchRequest) {
        let id = fetch.id;
        debug!(target: "fetch", repo = %fetch.repo_path,
            url = %fetch.target,
            objects = fetch.oids.len(),
            form = fetch.form.label(),
            "fetch started"
        );
        let events = fetch.events.iter().map(|(event, _)| *event).collect();
        let (started, is_started) = oneshot::channel();
        self.deps.writer.send(WriterCommand::FetchStarted(id, events, started));
        let guard = FetchGuard { id, writer: self.deps.writer.clone() };
        let (client, outbox, writer) = (self.deps.client.clone(), self.outbox.clone(), self.deps.writer.clone());
        let span =
            info_span!(target: "fetch", "fetch", repo = %fetch.repo_path, host = %Origin::from_url(&fetch.target));
        let work = async move {
            let guard = guard;
            // The request is sent only when it is on disk, so that a crash does not lose it from the request counts.
            if is_started.await.is_err() {
                let error = "the store cannot write: try again later";
                debug!(target: "fetch", url = %fetch.target, ?error, "fetch failed");
                drop(guard);
                let _ = outbox
                    .send(TaskResult::Fetched(id, FetchResult { oids: Vec::new(), outcome: FetchOutcome::LocalError }));
                return;
            }
            let on_first_bytes = || drop(outbox.send(TaskResult::FirstBytes(id)));
            let FetchReply { result, pack, verified } = client.fetch(&fetch, on_first_bytes).await;
            debug!(target: "fetch", repo = %fetch.repo_path,
                url = %fetch.target,
                found = result.oids.len(),
                outcome = result.outcome.label(),
                "fetch finished"
            );
            match pack {
                Some(pack) => {
                    let received_pack = pack.received_pack();
                    let fetched_pack = FetchedPack { repo_path: fetch.repo_path, fetch: id, received_pack, verified };
                    writer.send(WriterCommand::PackFetched(fetched_pack, pack));
                }
                // The objects were here already, but the repository has not used them.
                None if !result.oids.is_empty() => {
                    writer.send(WriterCommand::GitDataAdded(fetch.repo_path.identifier().clone()));
                }
                None => {}
            }
            // Before the machine gets the result: the writer must see the end of this fetch before its consequences.
            drop(guard);
            let _ = outbox.send(TaskResult::Fetched(id, result));
        };
        let task = tokio::spawn(work.instrument(span));
        self.running.insert(id, task.abort_handle());
    }

    fn cancel(&mut self, id: FetchId) {
        if let Some(task) = self.running.remove(&id) {
            task.abort();
            self.handle_only(FetchInput::Fetched(
                id,
                FetchResult { oids: Vec::new(), outcome: FetchOutcome::Cancelled },
            ));
        }
    }

    /// Stores and deletes rows of git servers. They must be on disk before the fetch that follows.
    fn write_hosts(&self, rows: Vec<HostRow>, deleted: Vec<String>) {
        self.deps.writer.send(WriterCommand::SaveHostRows(rows, deleted));
    }
}

/// Reports the end of a fetch to the writer, also if the fetch is cancelled.
struct FetchGuard {
    id: FetchId,
    writer: Arc<EventQueue>,
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        self.writer.send(WriterCommand::FetchEnded(self.id));
    }
}

//! The admission machine on the models of the store and of git, with its own clock and invariants that are checked
//! after every step.
//!
//! It drives [`Admission`] as the writer thread of graspd does: inputs are handled inside a batch, the batch commits
//! or fails, and only then are replies sent and git jobs started. Git jobs run at once, or step by step in [manual
//! git mode](TestServer::set_manual_git). A crash can be injected at any durable step
//! ([`TestServer::crash_after_steps`]), and a commit can be made to fail ([`TestServer::fail_commit_after`]).

mod client;
mod inspection;
mod invariants;
mod lifecycle;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitJob;
use grasp_core::admission::io::{AdmissionInput, EventSource, PushId};
use grasp_core::admission::policy::{AdmissionMode, AdmissionPolicy};
use grasp_core::admission::purgatory::HeldSubmitter;
use grasp_core::disk_budget::Quotas;
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::{Decision, PublicKey, Rejection, SignedEvent, Verifier, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoId, RepoPath, RepoState, ServiceAddress};
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::RepoNeeds;
use grasp_core::time::{MonoTime, Now, Timestamp};

use crate::git_model::{GitModel, Oids};
use crate::store_contract::StoreUnderTest;
use crate::store_model::ModelStore;
use client::OngoingPush;
pub use client::{ClientPush, PushResult};
use transaction::Batch;

/// Address of the simulated service.
pub fn service() -> ServiceAddress {
    ServiceAddress::new("code.example", "").expect("valid address")
}

/// Admission policy of an installation with default settings.
pub fn default_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        service: service(),
        mode: AdmissionMode::Grasp,
        owner: None,
        strict_maintainers: false,
        max_event_bytes: 256 * 1024,
        purgatory_secs: limits::PURGATORY_EXPIRY_SECS,
        dormant_secs: limits::DORMANT_SECS,
        ignores_deletions: false,
        accepts_submissions: true,
        quotas: Quotas::default(),
        fetches_git_data: false,
        lists: Arc::default(),
    }
}

/// An injected crash of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crashed {
    /// Whether the client had its reply before the crash.
    pub answered: bool,
}

/// Fault that the server injects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum InjectedFault {
    #[default]
    None,
    /// Crashes after this many more durable steps.
    CrashAfterSteps(usize),
    /// Fails one commit after this many successful ones.
    FailCommitAfter(usize),
}

/// graspd without its network interfaces: the admission machine, a store, git and a clock.
pub struct TestServer {
    admission: Admission,
    /// The policy that is committed, and the one that the operator has set.
    policies: (AdmissionPolicy, AdmissionPolicy),
    store: ModelStore,
    git: GitModel,
    now: Now,
    /// Every author of a submitted event. The states in the catalog can only be listed per author.
    authors: BTreeSet<PublicKey>,
    /// Ephemeral events that were broadcast.
    broadcasts: Vec<Arc<SignedEvent>>,
    /// Identifiers of change notifications since the last [`take_notifications`](TestServer::take_notifications): of
    /// repository needs, and of wanted git data.
    notifications: (BTreeSet<Identifier>, BTreeSet<Identifier>),
    /// Repository needs that sync received last, by identifier.
    published_needs: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Git jobs started since the last [`take_git_jobs`](TestServer::take_git_jobs).
    started_jobs: Vec<GitJob>,
    /// Git jobs that are running.
    running: VecDeque<GitJob>,
    pushes: BTreeMap<PushId, OngoingPush>,
    next_push: u64,
    /// Objects that were uploaded before their event was known (event, tip and objects), and all other objects that
    /// were ever received.
    uploaded: Vec<(EventId, String, Oids)>,
    received_objects: Oids,
    /// Tips of all pull requests that were ever held.
    pull_request_tips: BTreeMap<EventId, String>,
    /// Repositories that could not be aligned with their best state by the last git job.
    behind: BTreeSet<RepoPath>,
    manual_git: bool,
    skips_invariants: bool,
    /// The network whose share of purgatory events of clients take.
    network: Option<String>,
    /// Whether a git job has failed and may still be retried.
    has_failed_jobs: bool,
    fault: InjectedFault,
    answered: bool,
    steps: usize,
    commits: usize,
    /// The most work of one input or one turn since the last [`take_max_work`](TestServer::take_max_work).
    max_work: u64,
}

impl Default for TestServer {
    fn default() -> Self {
        Self::new(default_policy())
    }
}

impl TestServer {
    /// Creates an empty server. Its clock starts at wall time 10,000.
    pub fn new(policy: AdmissionPolicy) -> Self {
        Self {
            policies: (policy.clone(), policy.clone()),
            admission: Admission::new(policy),
            store: ModelStore::new(),
            git: GitModel::default(),
            now: Now { mono: MonoTime(0), wall: Timestamp(10_000) },
            authors: BTreeSet::new(),
            broadcasts: Vec::new(),
            notifications: Default::default(),
            published_needs: BTreeMap::new(),
            started_jobs: Vec::new(),
            running: VecDeque::new(),
            pushes: BTreeMap::new(),
            next_push: 0,
            uploaded: Vec::new(),
            received_objects: Oids::new(),
            pull_request_tips: BTreeMap::new(),
            behind: BTreeSet::new(),
            manual_git: false,
            skips_invariants: false,
            network: None,
            has_failed_jobs: false,
            fault: InjectedFault::None,
            answered: false,
            steps: 0,
            commits: 0,
            max_work: 0,
        }
    }

    /// Runs git jobs only by [`step_git_job`](Self::step_git_job) and [`run_git_jobs`](Self::run_git_jobs).
    pub fn set_manual_git(&mut self, manual: bool) {
        self.manual_git = manual;
    }

    /// Skips the invariant checks, for tests with so much data that they would take too long.
    pub fn skip_invariants(&mut self, skip: bool) {
        self.skips_invariants = skip;
    }

    /// Injects a crash after this many durable steps.
    pub fn crash_after_steps(&mut self, steps: usize) {
        self.fault = InjectedFault::CrashAfterSteps(steps);
    }

    /// Injects a failed commit after this many successful ones.
    pub fn fail_commit_after(&mut self, commits: usize) {
        self.fault = InjectedFault::FailCommitAfter(commits);
    }

    /// Removes the injected fault. Returns false if it has happened already.
    pub fn clear_fault(&mut self) -> bool {
        std::mem::take(&mut self.fault) != InjectedFault::None
    }

    /// Returns the number of durable steps and of commits so far.
    pub fn step_and_commit_counts(&self) -> (usize, usize) {
        (self.steps, self.commits)
    }

    /// Submits an event as an unauthenticated client.
    pub fn submit(&mut self, event: &Arc<SignedEvent>) -> Decision {
        self.submit_from(event, EventSource::Client(Vec::new()))
    }

    /// Submits an event.
    pub fn submit_from(&mut self, event: &Arc<SignedEvent>, source: EventSource) -> Decision {
        self.try_submit(event, source).expect("no crash is injected")
    }

    /// Sets the network whose share of purgatory later events of clients take. `None` is loopback, which has no share.
    pub fn set_network(&mut self, network: Option<&str>) {
        self.network = network.map(str::to_owned);
    }

    /// Submits an event and settles, unless the injected crash happens before that.
    pub fn try_submit(&mut self, event: &Arc<SignedEvent>, source: EventSource) -> Result<Decision, Crashed> {
        self.answered = false;
        let mut batch = self.begin_batch();
        let decision = self.decide(&mut batch, event, source);
        let decision = if self.finish_batch(batch)? { decision } else { Decision::Reject(Rejection::StoreFailed) };
        self.answered = true;
        self.settle()?;
        Ok(decision)
    }

    /// Submits an unverified event: its id and signature are checked first.
    pub fn receive(&mut self, event: Event) -> Decision {
        match Verifier::default().verify(event) {
            Ok(event) => self.submit(&Arc::new(event)),
            Err(forged) => Decision::Reject(Rejection::Forged(forged)),
        }
    }

    /// Submits several events of clients in one batch, which commits or fails. After a failed commit the machine is
    /// rebuilt from the store (docs/design/admission.md#decisions-inside-the-write-transaction).
    pub fn submit_batch(&mut self, events: &[&Arc<SignedEvent>], commits: bool) -> Vec<Decision> {
        if !commits {
            self.fail_commit_after(0);
        }
        let client = EventSource::Client(Vec::new());
        self.submit_all(&events.iter().map(|event| (Arc::clone(event), client.clone())).collect::<Vec<_>>())
    }

    /// Submits several events in one batch.
    pub fn submit_all(&mut self, events: &[(Arc<SignedEvent>, EventSource)]) -> Vec<Decision> {
        let mut batch = self.begin_batch();
        let decided = events.iter().map(|(event, source)| self.decide(&mut batch, event, source.clone()));
        let decisions: Vec<Decision> = decided.collect();
        let committed = self.finish_batch(batch).expect("no crash is injected");
        self.settle().expect("no crash is injected");
        if committed { decisions } else { decisions.iter().map(|_| Decision::Reject(Rejection::StoreFailed)).collect() }
    }

    /// Decides about one event inside the open batch.
    fn decide(&mut self, batch: &mut Batch, event: &Arc<SignedEvent>, source: EventSource) -> Decision {
        self.authors.insert(event.pubkey);
        let policy = self.admission.policy();
        if let Some(rejection) = policy.precheck(event, event.json().len(), self.now.wall) {
            return Decision::Reject(rejection);
        }
        let lookups = self.store.lookups(event, policy.needed_lookups(event));
        let network = match &source {
            EventSource::Client(_) => Some("203.0.113.0/24".to_owned()),
            EventSource::Relay(url) => Some(url.clone()),
        };
        let event = event.clone();
        let submitter = self.network.as_deref().map(|network| HeldSubmitter::Network(network.into()));
        let submitter = match &source {
            EventSource::Client(_) => submitter,
            EventSource::Relay(url) => Some(HeldSubmitter::Relay(url.as_str().into())),
        };
        self.handle_input(
            batch,
            AdmissionInput::EventSubmitted { event, source, network, submitter, digest: None, lookups },
        );
        match (batch.replies.pop(), batch.replies.pop()) {
            (Some(decision), None) => decision,
            other => panic!("expected one reply to one submission: {other:?}"),
        }
    }

    /// Adds the objects that an event waits for to a repository. Does nothing if either is unknown.
    pub fn add_objects_of_event(&mut self, event: EventId, repo: RepoId) {
        let Some((event, _)) = self.store.event(event) else { return };
        let wanted: Oids = match event.kind {
            kinds::STATE => {
                RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default().into_iter().collect()
            }
            _ => PullRequest::from_any_event(&event).map(|request| request.tip).into_iter().collect(),
        };
        self.add_objects(&repo, &wanted);
    }

    /// Adds objects to every hosted repository, as if a fetch had found them.
    pub fn add_objects_everywhere(&mut self, oids: &Oids) {
        for repo in self.hosted_repos() {
            self.add_objects(&repo, oids);
        }
    }

    /// Adds objects to a repository by another way than a push. Does nothing if it is not hosted or has them already.
    pub fn add_objects(&mut self, repo: &RepoId, oids: &Oids) {
        if self.admission.hosted_repo(repo).is_none() || oids.is_empty() {
            return;
        }
        self.received_objects.extend(oids.iter().cloned());
        let repo_path = RepoPath::Announced(repo.clone());
        if self.git.add_objects(&repo_path, oids) {
            self.handle(AdmissionInput::GitDataAdded(repo.identifier.clone()));
        }
    }

    /// Handles one input of the machine in a batch of its own, and settles.
    pub fn handle(&mut self, input: AdmissionInput) {
        self.try_handle(input).expect("no crash is injected");
    }

    fn try_handle(&mut self, input: AdmissionInput) -> Result<(), Crashed> {
        let mut batch = self.begin_batch();
        self.handle_input(&mut batch, input);
        self.finish_batch(batch)?;
        self.settle()
    }

    /// Advances the clock: held events expire at their deadlines, served ones at their `expiration`.
    pub fn advance(&mut self, secs: u64) {
        self.try_advance(secs).expect("no crash is injected");
    }

    /// Advances the clock, unless the injected crash happens meanwhile.
    pub fn try_advance(&mut self, secs: u64) -> Result<(), Crashed> {
        self.answered = false;
        let end = self.now.mono.plus_secs(secs);
        while let Some((alarm, _)) = self.admission.alarm().filter(|(alarm, _)| *alarm <= end) {
            // Deadlines are whole seconds here, so that the wall clock stays in step.
            self.now.wall = self.now.wall.plus_secs(alarm.since(self.now.mono).as_secs());
            self.now.mono = self.now.mono.max(alarm);
            self.wake()?;
        }
        self.now.wall = self.now.wall.plus_secs(end.since(self.now.mono).as_secs());
        self.now.mono = end;
        self.wake()?;
        for summary in self.store.due(self.now.wall) {
            self.try_handle(AdmissionInput::EventExpired(summary))?;
        }
        Ok(())
    }

    /// Sets both clocks. [`advance`](Self::advance) handles the timers that are due.
    pub fn set_now(&mut self, now: Now) {
        self.now = now;
    }

    /// Sets the wall clock without advancing the monotonic clock.
    pub fn set_wall(&mut self, wall: Timestamp) {
        self.now.wall = wall;
        self.wake().expect("no crash is injected");
    }

    fn wake(&mut self) -> Result<(), Crashed> {
        let batch = self.begin_batch();
        self.finish_batch(batch)?;
        self.settle()
    }
}

//! A registrar on top of the models of the store and of git, with a clock of its own and the laws that hold after every
//! step.
//!
//! It drives the registrar as the real desk does: facts are told inside a batch, the batch commits or fails, and only then
//! is anything said or done. Work in the git room is done at once, or step by step if the house is [lazy](House::be_lazy).
//! The world can end at any step ([`House::crash_in`]), and a commit can fail ([`House::fail_commit_in`]).

mod client;
mod external_clock;
mod inspection;
mod invariants;
mod lifecycle;
mod transaction;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use grasp_core::admission::Admission;
use grasp_core::admission::git_job::GitJob;
use grasp_core::admission::io::{AdmissionInput, EventSource, EventSubmission, PushId, SubmissionId};
use grasp_core::admission::policy::{AdmissionMode, AdmissionPolicy};
use grasp_core::disk_budget::Quotas;
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::{Decision, PublicKey, Rejection, SignedEvent, Verifier, kinds};
use grasp_core::repo::pull_request::PullRequest;
use grasp_core::repo::{Identifier, RepoId, RepoPath, RepoState, ServiceAddress};
use grasp_core::state_machine::StateMachine;
use grasp_core::sync::io::RepoNeeds;
use grasp_core::time::{MonoTime, Now, Timestamp};

use crate::git_model::{Git, Oids};
use crate::store_contract::Shelf;
use crate::store_model::Memory;
use client::Ongoing;
pub use client::{Pushed, Wish};
use transaction::Batch;

/// Where the simulated service is reached.
#[must_use]
pub fn service() -> ServiceAddress {
    ServiceAddress::new("code.example", "").expect("a good address")
}

/// The rules of a plain installation.
#[must_use]
pub fn rules() -> AdmissionPolicy {
    AdmissionPolicy {
        service: service(),
        mode: AdmissionMode::Grasp,
        owner: None,
        strict_maintainers: false,
        max_event_bytes: 256 * 1024,
        purgatory_secs: limits::PURGATORY_EXPIRY_SECS,
        submissions: true,
        quotas: Quotas::default(),
        fetches_git_data: false,
        lists: Arc::default(),
    }
}

/// The world has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crashed {
    /// Whether whoever asked had been answered before.
    pub answered: bool,
}

/// What the house does by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Fate {
    #[default]
    Kind,
    /// The world ends when so many more steps were tried.
    Crash(usize),
    /// So many more commits succeed, then one fails.
    FailCommit(usize),
}

/// Refs as they are shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The refs.
    pub refs: BTreeMap<String, String>,
    /// Whether there is a folder.
    pub exists: bool,
}

/// The whole service without its doors: a registrar, a store, a git room and a clock.
pub struct House {
    admission: Admission,
    /// The rules that the process knows to be on disk, and those that the operator wants.
    rules: (AdmissionPolicy, AdmissionPolicy),
    memory: Memory,
    git: Git,
    now: Now,
    tickets: u64,
    /// Every author that was ever heard of: the catalog cannot be walked without knowing whom to ask for.
    authors: BTreeSet<PublicKey>,
    /// What was only shown to listeners.
    passed: Vec<Arc<SignedEvent>>,
    /// Names whose bells rang since the last [`bells`](House::bells).
    bells: (BTreeSet<Identifier>, BTreeSet<Identifier>),
    /// What sync was last told of each name.
    told: BTreeMap<Identifier, Vec<RepoNeeds>>,
    /// Orders that were given since the last [`orders`](House::orders).
    orders: Vec<GitJob>,
    /// Orders that are under way.
    running: VecDeque<GitJob>,
    /// The refs that the world sees: those of the last commit.
    shown: BTreeMap<RepoPath, View>,
    pushes: BTreeMap<PushId, Ongoing>,
    next_push: u64,
    /// What was uploaded unsigned: event, tip and objects; and what else was ever brought.
    uploaded: Vec<(EventId, String, Oids)>,
    brought: Oids,
    /// Tips of all pull requests that were ever held.
    offered: BTreeMap<EventId, String>,
    /// Sites that could not follow their best state when they were last worked on.
    behind: BTreeSet<RepoPath>,
    lazy: bool,
    lawless: bool,
    /// Whether work has failed that may still be tried again.
    ailing: bool,
    fate: Fate,
    answered: bool,
    steps: usize,
    commits: usize,
}

impl Default for House {
    fn default() -> Self {
        Self::new(rules())
    }
}

impl House {
    /// An empty house. Its clock begins at wall time 10,000.
    #[must_use]
    pub fn new(rules: AdmissionPolicy) -> Self {
        Self {
            rules: (rules.clone(), rules.clone()),
            admission: Admission::new(rules),
            memory: Memory::new(),
            git: Git::default(),
            now: Now { mono: MonoTime(0), wall: Timestamp(10_000) },
            tickets: 0,
            authors: BTreeSet::new(),
            passed: Vec::new(),
            bells: Default::default(),
            told: BTreeMap::new(),
            orders: Vec::new(),
            running: VecDeque::new(),
            shown: BTreeMap::new(),
            pushes: BTreeMap::new(),
            next_push: 0,
            uploaded: Vec::new(),
            brought: Oids::new(),
            offered: BTreeMap::new(),
            behind: BTreeSet::new(),
            lazy: false,
            lawless: false,
            ailing: false,
            fate: Fate::Kind,
            answered: false,
            steps: 0,
            commits: 0,
        }
    }

    /// Git works only when it is told to, by [`step`](Self::step) and [`work`](Self::work).
    pub fn be_lazy(&mut self, lazy: bool) {
        self.lazy = lazy;
    }

    /// Checks no laws, where there is so much that it would take too long.
    pub fn be_lawless(&mut self, lawless: bool) {
        self.lawless = lawless;
    }

    /// Lets the world end at one of the next steps: none of them for zero.
    pub fn crash_in(&mut self, steps: usize) {
        self.fate = Fate::Crash(steps);
    }

    /// Lets a commit fail after so many have succeeded.
    pub fn fail_commit_in(&mut self, commits: usize) {
        self.fate = Fate::FailCommit(commits);
    }

    /// Nothing more happens but what is asked for. False if it has happened already.
    pub fn be_kind(&mut self) -> bool {
        std::mem::take(&mut self.fate) != Fate::Kind
    }

    /// How many steps and how many commits there were.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.steps, self.commits)
    }

    /// Offers an event, as a client that has shown no key.
    pub fn submit(&mut self, event: &Arc<SignedEvent>) -> Decision {
        self.submit_from(event, EventSource::Client(Vec::new()))
    }

    /// Offers an event.
    pub fn submit_from(&mut self, event: &Arc<SignedEvent>, source: EventSource) -> Decision {
        self.try_submit(event, source).expect("no end was planned")
    }

    /// Offers an event, if the world does not end before everything that follows from it is done.
    pub fn try_submit(&mut self, event: &Arc<SignedEvent>, source: EventSource) -> Result<Decision, Crashed> {
        self.answered = false;
        let mut batch = Batch::default();
        let verdict = self.judge(&mut batch, event, source);
        let verdict = if self.conclude(batch)? { verdict } else { Decision::Reject(Rejection::StoreFailed) };
        self.answered = true;
        self.rest()?;
        Ok(verdict)
    }

    /// Offers a claimed event: its id and signature are checked first.
    pub fn receive(&mut self, event: Event) -> Decision {
        match Verifier::default().verify(event) {
            Ok(event) => self.submit(&Arc::new(event)),
            Err(forged) => Decision::Reject(Rejection::Forged(forged)),
        }
    }

    /// Offers several events in one batch, which commits or fails. After a failed commit the registrar is rebuilt (F4).
    pub fn submit_batch(&mut self, events: &[&Arc<SignedEvent>], commits: bool) -> Vec<Decision> {
        let mut batch = Batch::default();
        let judged = events.iter().map(|event| self.judge(&mut batch, event, EventSource::Client(Vec::new())));
        let verdicts: Vec<Decision> = judged.collect();
        if !commits {
            self.fate = Fate::FailCommit(0);
        }
        let committed = self.conclude(batch).expect("no end was planned");
        self.rest().expect("no end was planned");
        if committed { verdicts } else { verdicts.iter().map(|_| Decision::Reject(Rejection::StoreFailed)).collect() }
    }

    /// The way of one event through the open batch.
    fn judge(&mut self, batch: &mut Batch, event: &Arc<SignedEvent>, source: EventSource) -> Decision {
        self.authors.insert(event.pubkey);
        let rules = self.admission.policy();
        if let Some(refusal) = rules.precheck(event, event.json().len(), self.now.wall) {
            return Decision::Reject(refusal);
        }
        let lookups = self.memory.lookups(event, rules.needed_lookups(event));
        self.tickets += 1;
        let ticket = SubmissionId(self.tickets);
        self.tell(
            batch,
            AdmissionInput::EventSubmitted(EventSubmission { id: ticket, event: event.clone(), source, lookups }),
        );
        match (batch.replies.pop(), batch.replies.pop()) {
            (Some((answered, verdict)), None) if answered == ticket => verdict,
            other => panic!("one submission, one reply, but: {other:?}"),
        }
    }

    /// Says that git has what an event waits for, in a repository. Nothing if either is not here.
    pub fn data_found(&mut self, event: EventId, repo: RepoId) {
        let Some((event, _)) = self.memory.event(event) else { return };
        let wanted: Oids = match event.kind {
            kinds::STATE => {
                RepoState::from_event(&event).map(|state| state.oids()).unwrap_or_default().into_iter().collect()
            }
            _ => PullRequest::from_any_event(&event).map(|request| request.tip).into_iter().collect(),
        };
        self.data_came(&repo, &wanted);
    }

    /// Lets every hosted repository have these objects, as a hunt that found them everywhere.
    pub fn git_has(&mut self, oids: &Oids) {
        for repo in self.hosted() {
            self.data_came(&repo, oids);
        }
    }

    /// Lets objects come to a repository by another way than a push. Nothing if it is not hosted or has them.
    pub fn data_came(&mut self, repo: &RepoId, oids: &Oids) {
        if self.admission.hosted_repo(repo).is_none() || oids.is_empty() {
            return;
        }
        self.brought.extend(oids.iter().cloned());
        let repo_path = RepoPath::Announced(repo.clone());
        if self.git.put(&repo_path, oids) {
            self.shown.entry(repo_path).or_default().exists = true;
            self.inform(AdmissionInput::GitDataAdded(repo.identifier.clone()));
        }
    }

    /// Tells the registrar something, and lets everything follow from it.
    pub fn inform(&mut self, input: AdmissionInput) {
        self.try_inform(input).expect("no end was planned");
    }

    fn try_inform(&mut self, input: AdmissionInput) -> Result<(), Crashed> {
        let mut batch = Batch::default();
        self.tell(&mut batch, input);
        self.conclude(batch)?;
        self.rest()
    }

    /// Lets time pass: held events give up at their deadlines, served ones at their own expiry.
    pub fn advance(&mut self, secs: u64) {
        self.try_advance(secs).expect("no end was planned");
    }

    /// Lets time pass, if the world does not end meanwhile.
    pub fn try_advance(&mut self, secs: u64) -> Result<(), Crashed> {
        self.answered = false;
        let end = self.now.mono.plus_secs(secs);
        while let Some((alarm, _)) = self.admission.alarm().filter(|(alarm, _)| *alarm <= end) {
            // Deadlines are whole seconds after whole seconds here, so that the wall clock keeps up.
            self.now.wall = self.now.wall.plus_secs(alarm.since(self.now.mono).as_secs());
            self.now.mono = self.now.mono.max(alarm);
            self.wake()?;
        }
        self.now.wall = self.now.wall.plus_secs(end.since(self.now.mono).as_secs());
        self.now.mono = end;
        self.wake()?;
        for summary in self.memory.due(self.now.wall) {
            self.try_inform(AdmissionInput::EventExpired(summary))?;
        }
        Ok(())
    }

    /// Steps the wall clock without time passing.
    pub fn set_wall(&mut self, wall: Timestamp) {
        self.now.wall = wall;
        self.wake().expect("no end was planned");
    }

    fn wake(&mut self) -> Result<(), Crashed> {
        let mut batch = Batch::default();
        self.admission.wake(self.now);
        self.drain(&mut batch);
        self.conclude(batch)?;
        self.rest()
    }
}

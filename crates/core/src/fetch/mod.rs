//! The fetch state machine: where to fetch missing git data, and when.
//!
//! Admission reports which git data held events need ([`io::WantedGitData`]). What is missing at one repository is a
//! `FetchJob`. It has events, and *sources*: the URLs at which the data may be. When it is due, a *round* begins: its
//! sources wait for their hosts, likely ones are asked first, one at a time, and a second one is asked if the first is
//! slow. Each host has limits, a fair queue of waiting jobs, and quiet times after failures (`throttle`). A job
//! continues with other hosts meanwhile and keeps its queue position. When every source that could be asked was asked,
//! the round ends, and the next one follows after a growing backoff.
//!
//! *Mirror checks* have the lowest priority: they compare the refs of other git servers with the served ones, for the
//! status pages (`mirror_check`).
//!
//! Nothing is polled: every wait is for the end of a request, for an answer, or for a time that [`alarm`] returns.
//!
//! Driven by `graspd/fetch`, which does the IO. The design is described in `docs/design/fetch.md`.
//!
//! [`alarm`]: StateMachine::alarm

mod completion;
mod fair_queue;
mod hosts;
pub mod io;
mod job;
mod mirror_check;
mod network_limit;
pub mod origin;
mod past_jobs;
mod reset_limiter;
mod round;
mod scheduler;
mod sliding_window;
mod source;
#[cfg(test)]
mod tests;
mod throttle;
mod view;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use self::hosts::HostTable;
use self::io::{FetchId, FetchInput, FetchOutput, MirrorId, RequestForm};
use self::job::FetchJob;
use self::mirror_check::Mirrors;
pub use self::mirror_check::{MirrorCheckSchedule, MirrorStatus, MirrorView};
use self::network_limit::{Network, NetworkLimits};
use self::origin::Origin;
use self::past_jobs::PastJobs;
use self::reset_limiter::ResetLimiter;
use self::source::SourceId;
pub use self::source::SourceOutcome;
pub use self::throttle::QuietReason;
pub use self::view::{FetchStats, FetchView, HostView, JobView, SourceView};
use crate::limits;
use crate::net::AddressPolicy;
use crate::nostr::event::EventId;
use crate::random::Rng;
use crate::repo::{Identifier, RepoPath};
use crate::state_machine::StateMachine;
use crate::time::{MonoTime, Now};

/// Limits of requests to one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostLimits {
    /// Concurrent fetches.
    pub concurrent: u32,
    /// Fetches in any minute.
    pub per_minute: u32,
}

impl HostLimits {
    /// The highest limits that a server may state, unless the operator has set lower ones.
    pub const MAX_STATED: Self =
        Self { concurrent: limits::MAX_STATED_GIT_CONCURRENT, per_minute: limits::MAX_STATED_GIT_PER_MINUTE };
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { concurrent: limits::FETCH_CONCURRENT_PER_HOST, per_minute: limits::FETCH_PER_MINUTE_PER_HOST }
    }
}

/// Configuration of the machine.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// Which addresses may be dialled.
    pub address_policy: AddressPolicy,
    /// Limits of any host.
    pub default_limits: HostLimits,
    /// Limits up to which a server may raise `default_limits`. Where the operator has set a limit, both are equal.
    pub max_limits: HostLimits,
    /// Limits that the operator set for single hosts, by name without port. A server may state lower limits, but not
    /// higher ones.
    pub host_limits: BTreeMap<String, HostLimits>,
    /// When mirrors are checked.
    pub mirror_checks: MirrorCheckSchedule,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Identifies a fetch job within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct JobId(u64);

/// Identifies a host within the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HostId(u64);

/// What an alarm is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Host(HostId),
    Job(JobId),
    Mirror(MirrorId),
}

/// A fetch that has begun and not ended.
#[derive(Clone, Debug)]
struct RunningFetch {
    job: JobId,
    host: HostId,
    networks: BTreeSet<Network>,
    since: MonoTime,
    form: RequestForm,
    oids: Vec<String>,
    events: BTreeSet<EventId>,
    cancelled: bool,
}

/// A survey that has begun and not ended, and the requester that continues after it.
#[derive(Clone, Copy, Debug)]
struct RunningSurvey {
    host: HostId,
    requester: SurveyRequester,
    with_nip11: bool,
}

/// What a survey was started for.
#[derive(Clone, Copy, Debug)]
enum SurveyRequester {
    Source(JobId, SourceId),
    Mirror(MirrorId),
}

/// State machine that decides which source is asked for which git data, and when.
pub struct FetchMachine {
    config: FetchConfig,
    now: Now,
    jobs_by_identifier: BTreeMap<Identifier, BTreeMap<RepoPath, JobId>>,
    jobs: BTreeMap<JobId, Box<FetchJob>>,
    past_jobs: PastJobs,
    hosts: HostTable,
    networks: NetworkLimits,
    reset_limiter: ResetLimiter,
    fetches: BTreeMap<FetchId, RunningFetch>,
    surveys: BTreeMap<Origin, RunningSurvey>,
    mirrors: Mirrors,
    /// Hosts that wait until fewer surveys run.
    waiting_for_survey: BTreeSet<HostId>,
    /// Hosts that may be able to start a request, in order.
    ready_hosts: BTreeSet<(u64, HostId)>,
    /// Jobs whose state has changed and that must be updated.
    runnable_jobs: BTreeSet<JobId>,
    /// Jobs whose round may have ended.
    ending_jobs: BTreeSet<JobId>,
    alarms: BTreeSet<(MonoTime, Timer)>,
    rng: Rng,
    last_number: u64,
    stats: FetchStats,
    outputs: VecDeque<FetchOutput>,
}

impl FetchMachine {
    /// Creates a machine without jobs.
    #[must_use]
    pub fn new(config: FetchConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            now: Now::default(),
            jobs_by_identifier: BTreeMap::new(),
            jobs: BTreeMap::new(),
            past_jobs: PastJobs::default(),
            hosts: HostTable::default(),
            networks: NetworkLimits::default(),
            reset_limiter: ResetLimiter::default(),
            fetches: BTreeMap::new(),
            surveys: BTreeMap::new(),
            mirrors: Mirrors::default(),
            waiting_for_survey: BTreeSet::new(),
            ready_hosts: BTreeSet::new(),
            runnable_jobs: BTreeSet::new(),
            ending_jobs: BTreeSet::new(),
            alarms: BTreeSet::new(),
            last_number: 0,
            stats: FetchStats::default(),
            outputs: VecDeque::new(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Starts a round of a job at once, on the operator's command.
    fn fetch_now(&mut self, repo_path: &RepoPath) {
        let id = self
            .jobs_by_identifier
            .get(repo_path.identifier())
            .and_then(|repo_paths| repo_paths.get(repo_path))
            .copied();
        let Some(id) = id else { return };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.fetch_now(self.now.mono);
            self.runnable_jobs.insert(id);
        }
    }

    /// Records that the first bytes of a fetch have arrived.
    fn handle_first_bytes(&mut self, id: FetchId) {
        let Some(running) = self.fetches.get(&id) else { return };
        if let Some(job) = self.jobs.get_mut(&running.job) {
            job.record_first_bytes(id);
            self.runnable_jobs.insert(running.job);
        }
    }

    /// Sets or clears an alarm.
    fn set_alarm(&mut self, timer: Timer, before: Option<MonoTime>, at: Option<MonoTime>) {
        if before != at {
            before.map(|before| self.alarms.remove(&(before, timer)));
            at.map(|at| self.alarms.insert((at, timer)));
        }
    }

    /// Runs everything that can make progress now.
    fn run_ready(&mut self) {
        loop {
            while let Some(id) = self.runnable_jobs.pop_first() {
                self.update_job(id);
            }
            if !self.serve_hosts() {
                break;
            }
        }
        while let Some(id) = self.ending_jobs.pop_first() {
            self.end_round(id);
        }
    }
}

impl StateMachine for FetchMachine {
    type Input = FetchInput;
    type Output = FetchOutput;

    fn handle(&mut self, now: Now, input: FetchInput) {
        self.now = now;
        match input {
            FetchInput::HostRestored(row) => self.restore_host(&row),
            FetchInput::Wanted(name, wanted) => self.handle_wanted(name, wanted),
            FetchInput::Surveyed(origin, survey) => self.handle_surveyed(&origin, survey),
            FetchInput::FirstBytes(id) => self.handle_first_bytes(id),
            FetchInput::Fetched(id, result) => self.handle_fetched(id, &result),
            FetchInput::FetchNow(repo_path) => self.fetch_now(&repo_path),
            FetchInput::Served(name, repos) => self.handle_served(name, repos),
            FetchInput::RefsChanged(repo_path) => self.handle_refs_changed(&repo_path),
            FetchInput::MirrorChecked(id, result) => self.handle_mirror_checked(id, result),
        }
        self.run_ready();
    }

    fn poll(&mut self) -> Option<FetchOutput> {
        self.outputs.pop_front()
    }

    fn alarm(&self) -> Option<(MonoTime, &'static str)> {
        let (at, timer) = self.alarms.first()?;
        let why = match timer {
            Timer::Host(_) => "host may be asked",
            Timer::Job(_) => "fetch job is due",
            Timer::Mirror(_) => "mirror check is due",
        };
        Some((*at, why))
    }

    fn wake(&mut self, now: Now) {
        self.now = now;
        for _ in 0..limits::FETCH_STEP_ENTRIES {
            let Some((_, timer)) = self.alarms.first().filter(|(at, _)| *at <= now.mono).copied() else { break };
            self.alarms.pop_first();
            match timer {
                Timer::Host(id) => {
                    if let Some(host) = self.hosts.get_mut(id) {
                        host.alarm = None;
                    }
                    self.mark_ready(id);
                }
                Timer::Job(id) => {
                    if let Some(job) = self.jobs.get_mut(&id) {
                        job.alarm = None;
                    }
                    self.runnable_jobs.insert(id);
                }
                Timer::Mirror(id) => self.mirror_due(id),
            }
        }
        self.run_ready();
    }
}

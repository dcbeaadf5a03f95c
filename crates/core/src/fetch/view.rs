//! Snapshots of the machine for the status page, the admin API and the metrics.

use super::source::{SourceOutcome, SourceState};
use super::{FetchMachine, HostLimits, QuietReason};
use crate::repo::RepoPath;
use crate::state_machine::StateMachine;

/// Counters since the process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FetchStats {
    /// Rounds that have ended.
    pub rounds: u64,
    /// Fetches that were started.
    pub fetches: u64,
    /// Wanted objects that were received.
    pub oids: u64,
    /// Mirror checks that were started.
    pub mirror_checks: u64,
}

/// A snapshot of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FetchView {
    /// The fetch jobs.
    pub jobs: Vec<JobView>,
    /// The hosts that sources or mirrors use.
    pub hosts: Vec<HostView>,
    /// Running fetches, including cancelled ones that have not ended.
    pub in_flight: usize,
    /// Counters since the process began.
    pub stats: FetchStats,
}

/// A snapshot of a fetch job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobView {
    /// The repository that receives the data.
    pub repo_path: RepoPath,
    /// Number of events, and number of dormant ones among them.
    pub events: (usize, usize),
    /// Number of objects that are known to be missing.
    pub missing: usize,
    /// Some of the missing objects.
    pub examples: Vec<String>,
    /// Rounds since the last new event.
    pub attempts: u32,
    /// Milliseconds until the next round. `None` if one is running or all sources wait for their hosts.
    pub next_in_millis: Option<u64>,
    /// The sources, in the order in which they are asked.
    pub sources: Vec<SourceView>,
}

/// A snapshot of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceView {
    /// Its URL.
    pub url: String,
    /// Whether it is being asked.
    pub is_asking: bool,
    /// Whether it waits for its host.
    pub is_waiting: bool,
    /// Its last result.
    pub outcome: Option<SourceOutcome>,
}

/// A snapshot of a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostView {
    /// The host, and the port if it is not the default.
    pub authority: String,
    /// Its limits.
    pub limits: HostLimits,
    /// Running requests.
    pub in_flight: usize,
    /// Jobs that wait for it.
    pub waiting: usize,
    /// Requests since the process began.
    pub requests: u64,
    /// Milliseconds for which it is left alone, and why.
    pub quiet: Option<(u64, QuietReason)>,
    /// Consecutive failures.
    pub failures: u32,
    /// Recent fetches that brought something wanted.
    pub hits: u32,
    /// Recent fetches that brought nothing wanted.
    pub misses: u32,
}

/// Missing objects that a snapshot names.
const EXAMPLES: usize = 3;

impl FetchMachine {
    /// Returns a snapshot of the machine.
    #[must_use]
    pub fn view(&self) -> FetchView {
        FetchView {
            jobs: self.jobs.values().map(|job| self.job_view(job)).collect(),
            hosts: self.host_views(),
            in_flight: self.fetches.len(),
            stats: self.stats,
        }
    }

    /// Returns the number of fetch jobs.
    #[must_use]
    pub fn queue_size(&self) -> usize {
        self.jobs.len()
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> FetchStats {
        self.stats
    }

    /// Returns whether nothing is to be done before the next alarm.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alarm().is_none_or(|(at, _)| at > self.now.mono)
    }

    /// Returns the hosts that sources or mirrors use, or that are being asked.
    #[must_use]
    pub fn host_views(&self) -> Vec<HostView> {
        let now = self.now.mono;
        let live = self.hosts.values().filter(|host| host.source_count > 0 || host.in_flight > 0);
        live.map(|host| HostView {
            authority: host.authority.clone(),
            limits: host.limits(),
            in_flight: host.in_flight,
            waiting: host.queue.len(),
            requests: host.requests,
            quiet: host
                .quiet(now)
                .map(|(until, reason)| (u64::try_from(until.since(now).as_millis()).unwrap_or(u64::MAX), reason)),
            failures: host.failures(),
            hits: host.hits,
            misses: host.misses,
        })
        .collect()
    }

    fn job_view(&self, job: &super::job::FetchJob) -> JobView {
        let missing: std::collections::BTreeSet<&String> = job.events.iter().flat_map(|event| &event.missing).collect();
        let rest = job.sources.keys().filter(|id| !job.order.contains(id));
        JobView {
            repo_path: job.repo_path.clone(),
            events: (job.events.len(), job.events.iter().filter(|event| event.wanted.is_dormant).count()),
            missing: missing.len(),
            examples: missing.into_iter().take(EXAMPLES).cloned().collect(),
            attempts: job.attempts,
            next_in_millis: job
                .next_round()
                .map(|at| u64::try_from(at.since(self.now.mono).as_millis()).unwrap_or(u64::MAX)),
            sources: job
                .order
                .iter()
                .chain(rest)
                .filter_map(|id| job.sources.get(id))
                .map(|source| SourceView {
                    url: source.url.clone(),
                    is_asking: source.is_active(),
                    is_waiting: source.state == SourceState::Waiting,
                    outcome: source.history.outcome,
                })
                .collect(),
        }
    }
}

//! Statistics that the writer reports about itself when the health monitor requests them.

use std::time::Duration;

use grasp_core::admission::Admission;
use grasp_core::admission::purgatory::{HeldEvent, HeldKind, SearchStatus};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::time::MonoTime;

/// State of the writer at one point in time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriterStats {
    /// Why the store cannot be written. `None` if it can.
    pub(crate) store_error: Option<String>,
    /// Held announcements, without dormant ones.
    pub(crate) announcements: usize,
    /// Held states, without dormant ones.
    pub(crate) states: usize,
    /// Held pull requests, without dormant ones.
    pub(crate) pull_requests: usize,
    /// Held events whose git data was requested from every known source at least once and was not found.
    pub(crate) tried: usize,
    /// The events that expire next, the first one first.
    pub(crate) next_to_expire: Vec<ExpiringEvent>,
    /// Expired events whose git data is still looked for occasionally.
    pub(crate) dormant: usize,
    /// Bytes of all held events, dormant ones included.
    pub(crate) bytes: usize,
    /// Age of the oldest held event that is not dormant.
    pub(crate) oldest: Option<Duration>,
    /// Time until the next held event expires.
    pub(crate) next_deadline: Option<Duration>,
    /// Uploads whose events are unknown.
    pub(crate) uploads: usize,
    /// Git jobs that wait in the repository queues.
    pub(crate) queued_git_jobs: usize,
    /// Number of repositories whose objects are damaged or missing.
    pub(crate) degraded: usize,
    /// The first of them.
    pub(crate) degraded_example: Option<RepoPath>,
    /// Git jobs that the git workers are running or have in their queue.
    pub(crate) running_git_jobs: usize,
}

/// A held event with its deadline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExpiringEvent {
    pub(crate) time_left: Duration,
    /// Name of the event kind, for people.
    pub(crate) kind: &'static str,
    /// Repositories that the event belongs to. Their announcements may be held too.
    pub(crate) repo_paths: Vec<RepoPath>,
    /// The git data was requested from every known source at least once and was not found.
    pub(crate) tried: bool,
}

/// Number of events in [`WriterStats::next_to_expire`]. More than a page shows, because events of repositories that are
/// not served are left out there.
const MAX_EXPIRING_EVENTS: usize = 100;

/// Maximum number of repositories that are listed for one event.
const MAX_REPOS_PER_EVENT: usize = 5;

impl WriterStats {
    /// Collects the statistics of the admission machine.
    pub(crate) fn from_admission(admission: &Admission, now: MonoTime) -> Self {
        let mut stats = Self {
            uploads: admission.uploads().count(),
            queued_git_jobs: admission.queued_git_work(),
            degraded: admission.degraded_repos().count(),
            degraded_example: admission.degraded_repos().next().cloned(),
            ..Self::default()
        };
        let mut awake = Vec::new();
        for (_, held) in admission.purgatory().iter() {
            stats.bytes += held.bytes;
            if held.is_dormant() {
                stats.dormant += 1;
                continue;
            }
            match &held.kind {
                HeldKind::Announcement(_) => stats.announcements += 1,
                HeldKind::State(_) => stats.states += 1,
                HeldKind::PullRequest(..) => stats.pull_requests += 1,
            }
            stats.tried += usize::from(matches!(held.search, SearchStatus::Tried(_)));
            awake.push(held);
            let (age, left) = (now.since(held.since), held.deadline.since(now));
            stats.oldest = Some(stats.oldest.map_or(age, |oldest| oldest.max(age)));
            stats.next_deadline = Some(stats.next_deadline.map_or(left, |next| next.min(left)));
        }
        // Purgatory may hold tens of thousands of events, and the writer is blocked meanwhile: select before sorting.
        if awake.len() > MAX_EXPIRING_EVENTS {
            awake.select_nth_unstable_by_key(MAX_EXPIRING_EVENTS, |held| held.deadline);
            awake.truncate(MAX_EXPIRING_EVENTS);
        }
        awake.sort_by_key(|held| held.deadline);
        stats.next_to_expire = awake.into_iter().map(|held| ExpiringEvent::new(held, now)).collect();
        stats
    }

    /// Returns the number of held events by kind, with metric labels.
    pub(crate) fn kinds(&self) -> [(&'static str, usize); 3] {
        [("announcement", self.announcements), ("state", self.states), ("pull_request", self.pull_requests)]
    }
}

impl ExpiringEvent {
    fn new(held: &HeldEvent, now: MonoTime) -> Self {
        let own = |identifier: &Identifier| RepoId { owner: held.author, identifier: identifier.clone() };
        let (kind, repo_paths) = match &held.kind {
            HeldKind::Announcement(repo) => ("announcement", vec![RepoPath::Announced(repo.clone())]),
            HeldKind::State(name) => ("state", vec![RepoPath::Announced(own(name))]),
            HeldKind::PullRequest(_, repo_paths) => {
                ("pull request", repo_paths.iter().take(MAX_REPOS_PER_EVENT).cloned().collect())
            }
        };
        let tried = matches!(held.search, SearchStatus::Tried(_));
        Self { time_left: held.deadline.since(now), kind, repo_paths, tried }
    }
}

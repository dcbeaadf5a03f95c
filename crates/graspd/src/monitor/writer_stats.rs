//! What the writer says of itself when it is asked how it is.

use std::time::Duration;

use grasp_core::admission::Admission;
use grasp_core::admission::purgatory::{HeldEvent, HeldKind, SearchStatus};
use grasp_core::repo::{Identifier, RepoId, RepoPath};
use grasp_core::time::MonoTime;

/// The writer at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriterStats {
    /// Why nothing can be written, if that is so.
    pub(crate) problem: Option<String>,
    /// Announcements that wait for git data. Those whose time is over are not among these.
    pub(crate) announcements: usize,
    /// States that wait.
    pub(crate) states: usize,
    /// Pull requests that wait.
    pub(crate) pull_requests: usize,
    /// Those of all these that nobody has: everybody was asked once.
    pub(crate) tried: usize,
    /// Those that give up next, in this order.
    pub(crate) soonest: Vec<ExpiringEvent>,
    /// Events whose time is over and that are still looked for now and then.
    pub(crate) dormant: usize,
    /// Bytes of all of them.
    pub(crate) bytes: usize,
    /// How long the oldest that is not dormant has waited.
    pub(crate) oldest: Option<Duration>,
    /// When the next of them gives up.
    pub(crate) next_deadline: Option<Duration>,
    /// Uploads whose events are not here.
    pub(crate) uploads: usize,
    /// Work for git that waits for its turn.
    pub(crate) lanes: usize,
    /// Work that git has.
    pub(crate) orders: usize,
}

/// An event that waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExpiringEvent {
    /// When it gives up.
    pub(crate) left: Duration,
    /// What it is, in a word.
    pub(crate) kind: &'static str,
    /// The sites that it is for. They may wait themselves.
    pub(crate) repo_paths: Vec<RepoPath>,
    /// Everybody was asked for its git data once.
    pub(crate) tried: bool,
}

/// How many of those that give up next are told; those that are nobody's business are among them.
const SOONEST: usize = 100;

/// Sites of one event that are told.
const SITES: usize = 5;

impl WriterStats {
    /// What the registrar's books say.
    pub(crate) fn of(admission: &Admission, now: MonoTime) -> Self {
        let mut vitals =
            Self { uploads: admission.uploads().count(), lanes: admission.queued_git_work(), ..Self::default() };
        let mut awake = Vec::new();
        for (_, waiting) in admission.purgatory().iter() {
            vitals.bytes += waiting.bytes;
            if waiting.is_dormant() {
                vitals.dormant += 1;
                continue;
            }
            match &waiting.kind {
                HeldKind::Announcement(_) => vitals.announcements += 1,
                HeldKind::State(_) => vitals.states += 1,
                HeldKind::PullRequest(..) => vitals.pull_requests += 1,
            }
            vitals.tried += usize::from(matches!(waiting.search, SearchStatus::Tried(_)));
            awake.push(waiting);
            let (age, left) = (now.since(waiting.since), waiting.deadline.since(now));
            vitals.oldest = Some(vitals.oldest.map_or(age, |oldest| oldest.max(age)));
            vitals.next_deadline = Some(vitals.next_deadline.map_or(left, |next| next.min(left)));
        }
        // Tens of thousands may wait, and the writer waits for this.
        if awake.len() > SOONEST {
            awake.select_nth_unstable_by_key(SOONEST, |waiting| waiting.deadline);
            awake.truncate(SOONEST);
        }
        awake.sort_by_key(|waiting| waiting.deadline);
        vitals.soonest = awake.into_iter().map(|waiting| ExpiringEvent::of(waiting, now)).collect();
        vitals
    }

    /// What waits, by kind.
    pub(crate) fn kinds(&self) -> [(&'static str, usize); 3] {
        [("announcement", self.announcements), ("state", self.states), ("pull_request", self.pull_requests)]
    }
}

impl ExpiringEvent {
    fn of(waiting: &HeldEvent, now: MonoTime) -> Self {
        let own = |identifier: &Identifier| RepoId { owner: waiting.author, identifier: identifier.clone() };
        let (kind, repo_paths) = match &waiting.kind {
            HeldKind::Announcement(repo) => ("announcement", vec![RepoPath::Announced(repo.clone())]),
            HeldKind::State(name) => ("state", vec![RepoPath::Announced(own(name))]),
            HeldKind::PullRequest(_, repo_paths) => ("pull request", repo_paths.iter().take(SITES).cloned().collect()),
        };
        let tried = matches!(waiting.search, SearchStatus::Tried(_));
        Self { left: waiting.deadline.since(now), kind, repo_paths, tried }
    }
}

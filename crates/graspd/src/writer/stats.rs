//! What the writer says of itself when it is asked how it is.

use std::time::Duration;

use grasp_core::admission::Registrar;
use grasp_core::admission::purgatory::{Search, Waiting, What};
use grasp_core::repo::{Identifier, RepoId, Site};
use grasp_core::time::Moment;

/// The writer at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Vitals {
    /// Why nothing can be written, if that is so.
    pub(crate) problem: Option<String>,
    /// Announcements that wait for git data. Those whose time is over are not among these.
    pub(crate) announcements: usize,
    /// States that wait.
    pub(crate) states: usize,
    /// Pull requests that wait.
    pub(crate) pulls: usize,
    /// Those of all these that nobody has: everybody was asked once.
    pub(crate) tried: usize,
    /// Those that give up next, in this order.
    pub(crate) soonest: Vec<Soonest>,
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
pub(crate) struct Soonest {
    /// When it gives up.
    pub(crate) left: Duration,
    /// What it is, in a word.
    pub(crate) kind: &'static str,
    /// The sites that it is for. They may wait themselves.
    pub(crate) sites: Vec<Site>,
    /// Everybody was asked for its git data once.
    pub(crate) tried: bool,
}

/// How many of those that give up next are told; those that are nobody's business are among them.
const SOONEST: usize = 100;

/// Sites of one event that are told.
const SITES: usize = 5;

impl Vitals {
    /// What the registrar's books say.
    pub(super) fn of(registrar: &Registrar, now: Moment) -> Self {
        let mut vitals = Self { uploads: registrar.uploads().count(), lanes: registrar.in_lanes(), ..Self::default() };
        let mut awake = Vec::new();
        for (_, waiting) in registrar.purgatory().iter() {
            vitals.bytes += waiting.bytes;
            if waiting.is_dormant() {
                vitals.dormant += 1;
                continue;
            }
            match &waiting.what {
                What::Announcement(_) => vitals.announcements += 1,
                What::State(_) => vitals.states += 1,
                What::PullRequest(..) => vitals.pulls += 1,
            }
            vitals.tried += usize::from(matches!(waiting.search, Search::Tried(_)));
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
        vitals.soonest = awake.into_iter().map(|waiting| Soonest::of(waiting, now)).collect();
        vitals
    }

    /// What waits, by kind.
    pub(crate) fn kinds(&self) -> [(&'static str, usize); 3] {
        [("announcement", self.announcements), ("state", self.states), ("pull_request", self.pulls)]
    }
}

impl Soonest {
    fn of(waiting: &Waiting, now: Moment) -> Self {
        let own = |identifier: &Identifier| RepoId { owner: waiting.author, identifier: identifier.clone() };
        let (kind, sites) = match &waiting.what {
            What::Announcement(repo) => ("announcement", vec![Site::Announced(repo.clone())]),
            What::State(name) => ("state", vec![Site::Announced(own(name))]),
            What::PullRequest(_, sites) => ("pull request", sites.iter().take(SITES).cloned().collect()),
        };
        let tried = matches!(waiting.search, Search::Tried(_));
        Self { left: waiting.deadline.since(now), kind, sites, tried }
    }
}

//! What the writer says of itself when it is asked how it is.

use std::time::Duration;

use grasp_core::registrar::Registrar;
use grasp_core::registrar::purgatory::What;
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

impl Vitals {
    /// What the registrar's books say.
    pub(super) fn of(registrar: &Registrar, now: Moment) -> Self {
        let mut vitals = Self { uploads: registrar.uploads().count(), lanes: registrar.in_lanes(), ..Self::default() };
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
            let (age, left) = (now.since(waiting.since), waiting.deadline.since(now));
            vitals.oldest = Some(vitals.oldest.map_or(age, |oldest| oldest.max(age)));
            vitals.next_deadline = Some(vitals.next_deadline.map_or(left, |next| next.min(left)));
        }
        vitals
    }

    /// What waits, by kind.
    pub(crate) fn kinds(&self) -> [(&'static str, usize); 3] {
        [("announcement", self.announcements), ("state", self.states), ("pull_request", self.pulls)]
    }
}

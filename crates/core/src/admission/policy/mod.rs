//! Which events may enter. Pure functions of the rules, the catalog and the facts; each spec item has its table test in
//! `crates/sim/tests/it/policy/`.

mod announcement;
mod deletion;
pub mod lists;
mod pull_request;
mod related;
mod state;

use std::sync::Arc;

use super::io::{Facts, Gone, Questions, Source};
use super::purgatory::Purgatory;
use crate::disk_budget::{Mark, Quotas};
use crate::limits;
use crate::nostr::event::Event;
use crate::nostr::kinds::Class;
use crate::nostr::rejection::{Known, Need, Refusal, Verdict};
use crate::nostr::{PublicKey, Signed, kinds, supersedes};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Announcement, Catalog, RepoId, Service, Site};
use crate::time::Timestamp;

pub(super) use announcement::{is_left, is_withdrawn, withdraws};
pub(super) use deletion::is_own_relay_named;
use lists::Lists;

/// What the operator decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Where this service is reached.
    pub service: Service,
    /// What is taken in.
    pub mode: Mode,
    /// The service's own key, whose events are welcome.
    pub owner: Option<PublicKey>,
    /// Whether maintainers must list each other also without role tags.
    pub strict_maintainers: bool,
    /// Bytes of an event that is no state.
    pub max_event_bytes: usize,
    /// Seconds that an event waits for its git data.
    pub purgatory_secs: u64,
    /// Whether somebody looks for git data elsewhere: then events wait until everybody was asked.
    pub hunts: bool,
    /// What one key and one repository may take.
    pub quotas: Quotas,
    /// Whether contributors may submit pull requests to repositories that are hosted elsewhere (GRASP-06).
    pub submissions: bool,
    /// What the operator wants and does not want, by name.
    pub lists: Arc<Lists>,
}

/// What is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// What belongs to repositories that are hosted here.
    Grasp,
    /// Any valid event: a relay for local development, and for comparing with general relays.
    Open,
}

/// What a decision may look at.
#[derive(Clone, Copy)]
pub(super) struct World<'a> {
    pub(super) rules: &'a Rules,
    pub(super) catalog: &'a Catalog,
    pub(super) purgatory: &'a Purgatory,
    pub(super) space: Mark,
}

impl Rules {
    /// Whether others say the same about what this service is; they may differ in what is wanted and how much of it.
    #[must_use]
    pub fn is_same_service(&self, other: &Self) -> bool {
        let what = |rules: &Self| {
            let Self { service, mode, owner, strict_maintainers, hunts, submissions, .. } = rules.clone();
            (service, mode, owner, strict_maintainers, hunts, submissions)
        };
        what(self) == what(other)
    }

    /// Reads an announcement as this service sees it; `None` if its `d` tag cannot name a repository.
    #[must_use]
    pub fn announcement(&self, event: &Event) -> Option<Announcement> {
        let announcement = Announcement::read(event, &self.service)?;
        Some(Announcement { archived: self.lists.archive.keeps(&announcement), ..announcement })
    }

    /// What can be refused before the signature is checked, from the event alone; `bytes` is the size of its text.
    #[must_use]
    pub fn precheck(&self, event: &Event, bytes: usize, now: Timestamp) -> Option<Refusal> {
        let (most_bytes, most_tags) = if event.kind == kinds::STATE {
            (limits::MAX_STATE_EVENT_BYTES.max(self.max_event_bytes), limits::MAX_STATE_TAGS)
        } else {
            (self.max_event_bytes, limits::MAX_EVENT_TAGS)
        };
        if bytes > most_bytes {
            Some(Refusal::TooLarge { bytes, most: most_bytes })
        } else if event.tags.len() > most_tags {
            Some(Refusal::TooManyTags(most_tags))
        } else if event.indexed_tags().count() > limits::MAX_EVENT_TAGS {
            Some(Refusal::TooManyTags(limits::MAX_EVENT_TAGS))
        } else if matches!(event.kind, kinds::AUTH | kinds::HTTP_AUTH) {
            Some(Refusal::Credential)
        } else if event.created_at > now.plus_secs(limits::MAX_FUTURE_SECS) {
            Some(Refusal::Future)
        } else if event.expires_at().is_some_and(|expires_at| expires_at <= now) {
            Some(Refusal::Expired)
        } else {
            None
        }
    }

    /// The sites under which a pull request's submitter offers it by itself (GRASP-06): the event must name them in
    /// `clone`, and its own target in `a`.
    #[must_use]
    pub fn submissions_of(&self, author: PublicKey, request: &PullRequest) -> Vec<Site> {
        if !self.submissions {
            return Vec::new();
        }
        let mut sites: Vec<Site> = request
            .targets
            .iter()
            .map(|target| Site::Submitted(RepoId { owner: author, identifier: target.identifier.clone() }))
            .filter(|site| request.clone.iter().any(|url| self.service.is_own_clone(url, site)))
            .collect();
        sites.sort_unstable();
        sites.dedup();
        sites
    }

    /// Whether what is submitted, or what it is for, has no place here.
    pub(super) fn bans_submission(&self, sites: &[Site], request: &PullRequest) -> bool {
        sites.iter().map(Site::repo).chain(&request.targets).any(|repo| self.lists.bans(repo))
    }

    /// Whether an event is welcome for its own sake, whatever it belongs to.
    pub(super) fn stands_alone(&self, event: &Event) -> bool {
        let submitted = |request| {
            let sites = self.submissions_of(event.pubkey, &request);
            !sites.is_empty() && !self.bans_submission(&sites, &request)
        };
        matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE | kinds::GRASP_LIST)
            || self.owner == Some(event.pubkey)
            || PullRequest::read_if(event).is_some_and(submitted)
    }

    /// Which facts the judgement on an event will need.
    #[must_use]
    pub fn questions(&self, event: &Event) -> Questions {
        let grasp = self.mode == Mode::Grasp;
        match event.kind {
            kinds::ANNOUNCEMENT | kinds::STATE if grasp => Questions::default(),
            kinds::DELETION => Questions { author: grasp, targets: true, links: false },
            kinds::VANISH => Questions { author: grasp, ..Questions::default() },
            _ => Questions { links: grasp && kinds::class(event.kind) != Class::Ephemeral, ..Questions::default() },
        }
    }
}

impl World<'_> {
    /// What becomes of a verified event.
    pub(super) fn admit(self, event: &Signed, source: &Source, facts: &Facts) -> Verdict {
        // What is banned is banned, also if it is here: it is about to go.
        if self.rules.lists.unwanted(event) {
            return Verdict::Refuse(Refusal::Unwelcome);
        }
        let repo = if event.kind == kinds::ANNOUNCEMENT { event.coordinate() } else { None };
        if repo.and_then(|coordinate| RepoId::of(&coordinate)).is_some_and(|repo| self.rules.lists.bans(&repo)) {
            return Verdict::Refuse(Refusal::Banned);
        }
        if let Some(verdict) = before_its_kind(event, source, facts) {
            return verdict;
        }
        // What makes things go is always welcome.
        let makes_room = matches!(event.kind, kinds::DELETION | kinds::VANISH) || self.takes_away(event);
        if self.space == Mark::Hard && !makes_room {
            return Verdict::Refuse(Refusal::DiskFull);
        }
        match (event.kind, self.rules.mode) {
            (kinds::DELETION, _) => self.deletion(event, facts),
            (kinds::VANISH, _) => self.vanish(event, facts),
            (kinds::ANNOUNCEMENT, Mode::Grasp) => self.announcement(event),
            (kinds::STATE, Mode::Grasp) => self.state(event),
            (kind, Mode::Grasp) if kinds::is_pull_request(kind) => self.pull_request(event, facts),
            (_, Mode::Grasp) => self.related(event, facts),
            (_, Mode::Open) => Verdict::Accept,
        }
    }
}

impl World<'_> {
    /// Holds an event if there is room.
    fn hold(self, author: PublicKey, bytes: usize, need: Need) -> Verdict {
        match self.purgatory.room(author, bytes) {
            Some(full) => Verdict::Refuse(full),
            None => Verdict::Hold(need),
        }
    }
}

/// What holds for every kind: it is known, gone, superseded, somebody else's to publish, or never stored.
fn before_its_kind(event: &Event, source: &Source, facts: &Facts) -> Option<Verdict> {
    // A vanished author's events are gone at once, though the disk may still hold them for a while.
    if facts.gone == Some(Gone::Vanished) && event.kind != kinds::VANISH {
        return Some(Verdict::Refuse(Refusal::Vanished));
    }
    match facts.known {
        Some(Place::Served) => return Some(Verdict::Known(Known::Served)),
        Some(Place::Held) => return Some(Verdict::Known(Known::Held)),
        None => {}
    }
    let refusal = match facts.gone {
        // Requests to delete and to vanish cannot be deleted (D-04); an earlier vanish request tells nothing new.
        Some(Gone::Deleted) if matches!(event.kind, kinds::DELETION | kinds::VANISH) => None,
        Some(Gone::Vanished) => return Some(Verdict::Known(Known::Superseded)),
        Some(Gone::Deleted) => Some(Refusal::Deleted),
        Some(Gone::Withdrawn) => Some(Refusal::Withdrawn),
        None => None,
    };
    if let Some(refusal) = refusal {
        return Some(Verdict::Refuse(refusal));
    }
    let is_author = matches!(source, Source::Client(keys) if keys.contains(&event.pubkey));
    if (event.is_protected() && !is_author) || embeds_protected(event) {
        return Some(Verdict::Refuse(Refusal::Protected));
    }
    if kinds::class(event.kind) == Class::Ephemeral {
        return Some(Verdict::Pass);
    }
    facts.current.filter(|current| !supersedes(event.stamp(), *current)).map(|_| Verdict::Known(Known::Superseded))
}

/// A repost carries what it reposts in its content (NIP-70 forbids that for protected events).
fn embeds_protected(event: &Event) -> bool {
    matches!(event.kind, 6 | 16) && Event::parse(&event.content).is_ok_and(|inner| inner.is_protected())
}

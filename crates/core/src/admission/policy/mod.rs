//! Which events may enter. Pure functions of the rules, the catalog and the facts; each spec item has its table test in
//! `crates/sim/tests/it/policy/`.

mod announcement;
mod deletion;
pub mod lists;
mod pull_request;
mod related;
mod state;

use std::sync::Arc;

use super::io::{EventLookups, EventSource, NeededLookups, TombstoneKind};
use super::purgatory::Purgatory;
use crate::disk_budget::{DiskLevel, Quotas};
use crate::limits;
use crate::nostr::event::Event;
use crate::nostr::kinds::KindClass;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::{PublicKey, SignedEvent, kinds, supersedes};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Announcement, Catalog, RepoId, RepoPath, ServiceAddress};
use crate::time::Timestamp;

pub(super) use announcement::{is_archive_only, is_withdrawn, withdraws};
pub(super) use deletion::is_own_relay_named;
use lists::ModerationLists;

/// What the operator decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionPolicy {
    /// Where this service is reached.
    pub service: ServiceAddress,
    /// What is taken in.
    pub mode: AdmissionMode,
    /// The service's own key, whose events are welcome.
    pub owner: Option<PublicKey>,
    /// Whether maintainers must list each other also without role tags.
    pub strict_maintainers: bool,
    /// Bytes of an event that is no state.
    pub max_event_bytes: usize,
    /// Seconds that an event waits for its git data.
    pub purgatory_secs: u64,
    /// Whether somebody looks for git data elsewhere: then events wait until everybody was asked.
    pub fetches_git_data: bool,
    /// What one key and one repository may take.
    pub quotas: Quotas,
    /// Whether contributors may submit pull requests to repositories that are hosted elsewhere (GRASP-06).
    pub submissions: bool,
    /// What the operator wants and does not want, by name.
    pub lists: Arc<ModerationLists>,
}

/// What is taken in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionMode {
    /// What belongs to repositories that are hosted here.
    Grasp,
    /// Any valid event: a relay for local development, and for comparing with general relays.
    Open,
}

/// What a decision may look at.
#[derive(Clone, Copy)]
pub(super) struct PolicyContext<'a> {
    pub(super) policy: &'a AdmissionPolicy,
    pub(super) catalog: &'a Catalog,
    pub(super) purgatory: &'a Purgatory,
    pub(super) disk_level: DiskLevel,
}

impl AdmissionPolicy {
    /// Whether others say the same about what this service is; they may differ in what is wanted and how much of it.
    #[must_use]
    pub fn is_same_service(&self, other: &Self) -> bool {
        let what = |policy: &Self| {
            let Self { service, mode, owner, strict_maintainers, fetches_git_data, submissions, .. } = policy.clone();
            (service, mode, owner, strict_maintainers, fetches_git_data, submissions)
        };
        what(self) == what(other)
    }

    /// Reads an announcement as this service sees it; `None` if its `d` tag cannot name a repository.
    #[must_use]
    pub fn announcement(&self, event: &Event) -> Option<Announcement> {
        let announcement = Announcement::from_event(event, &self.service)?;
        Some(Announcement { is_archived: self.lists.archive.includes(&announcement), ..announcement })
    }

    /// What can be refused before the signature is checked, from the event alone; `bytes` is the size of its text.
    #[must_use]
    pub fn precheck(&self, event: &Event, bytes: usize, now: Timestamp) -> Option<Rejection> {
        let (most_bytes, most_tags) = if event.kind == kinds::STATE {
            (limits::MAX_STATE_EVENT_BYTES.max(self.max_event_bytes), limits::MAX_STATE_TAGS)
        } else {
            (self.max_event_bytes, limits::MAX_EVENT_TAGS)
        };
        if bytes > most_bytes {
            Some(Rejection::TooLarge { bytes, limit: most_bytes })
        } else if event.tags.len() > most_tags {
            Some(Rejection::TooManyTags(most_tags))
        } else if event.indexed_tags().count() > limits::MAX_EVENT_TAGS {
            Some(Rejection::TooManyTags(limits::MAX_EVENT_TAGS))
        } else if matches!(event.kind, kinds::AUTH | kinds::HTTP_AUTH) {
            Some(Rejection::AuthEvent)
        } else if event.created_at > now.plus_secs(limits::MAX_FUTURE_SECS) {
            Some(Rejection::InFuture)
        } else if event.expires_at().is_some_and(|expires_at| expires_at <= now) {
            Some(Rejection::Expired)
        } else {
            None
        }
    }

    /// The sites under which a pull request's submitter offers it by itself (GRASP-06): the event must name them in
    /// `clone`, and its own target in `a`.
    #[must_use]
    pub fn submission_paths(&self, author: PublicKey, request: &PullRequest) -> Vec<RepoPath> {
        if !self.submissions {
            return Vec::new();
        }
        let mut repo_paths: Vec<RepoPath> = request
            .targets
            .iter()
            .map(|target| RepoPath::PullRequests(RepoId { owner: author, identifier: target.identifier.clone() }))
            .filter(|repo_path| request.clone.iter().any(|url| self.service.is_own_clone_url(url, repo_path)))
            .collect();
        repo_paths.sort_unstable();
        repo_paths.dedup();
        repo_paths
    }

    /// Whether what is submitted, or what it is for, has no place here.
    pub(super) fn is_submission_banned(&self, repo_paths: &[RepoPath], request: &PullRequest) -> bool {
        repo_paths.iter().map(RepoPath::repo).chain(&request.targets).any(|repo| self.lists.is_repo_banned(repo))
    }

    /// Whether an event is welcome for its own sake, whatever it belongs to.
    pub(super) fn is_accepted_unlinked(&self, event: &Event) -> bool {
        let handle_submission = |request| {
            let repo_paths = self.submission_paths(event.pubkey, &request);
            !repo_paths.is_empty() && !self.is_submission_banned(&repo_paths, &request)
        };
        matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE | kinds::GRASP_LIST)
            || self.owner == Some(event.pubkey)
            || PullRequest::from_any_event(event).is_some_and(handle_submission)
    }

    /// Which facts the judgement on an event will need.
    #[must_use]
    pub fn needed_lookups(&self, event: &Event) -> NeededLookups {
        let grasp = self.mode == AdmissionMode::Grasp;
        match event.kind {
            kinds::ANNOUNCEMENT | kinds::STATE if grasp => NeededLookups::default(),
            kinds::DELETION => NeededLookups { author: grasp, targets: true, links: false },
            kinds::VANISH => NeededLookups { author: grasp, ..NeededLookups::default() },
            _ => NeededLookups {
                links: grasp && kinds::class(event.kind) != KindClass::Ephemeral,
                ..NeededLookups::default()
            },
        }
    }
}

impl PolicyContext<'_> {
    /// What becomes of a verified event.
    pub(super) fn decide(self, event: &SignedEvent, source: &EventSource, lookups: &EventLookups) -> Decision {
        // What is banned is banned, also if it is here: it is about to go.
        if self.policy.lists.is_banned(event) {
            return Decision::Reject(Rejection::EventBanned);
        }
        let repo = if event.kind == kinds::ANNOUNCEMENT { event.coordinate() } else { None };
        if repo
            .and_then(|coordinate| RepoId::from_coordinate(&coordinate))
            .is_some_and(|repo| self.policy.lists.is_repo_banned(&repo))
        {
            return Decision::Reject(Rejection::RepositoryBanned);
        }
        if let Some(decision) = decide_for_any_kind(event, source, lookups) {
            return decision;
        }
        // What makes things go is always welcome.
        let makes_room = matches!(event.kind, kinds::DELETION | kinds::VANISH) || self.withdraws_repository(event);
        if self.disk_level == DiskLevel::Hard && !makes_room {
            return Decision::Reject(Rejection::DiskFull);
        }
        match (event.kind, self.policy.mode) {
            (kinds::DELETION, _) => self.deletion(event, lookups),
            (kinds::VANISH, _) => self.vanish(event, lookups),
            (kinds::ANNOUNCEMENT, AdmissionMode::Grasp) => self.announcement(event),
            (kinds::STATE, AdmissionMode::Grasp) => self.state(event),
            (kind, AdmissionMode::Grasp) if kinds::is_pull_request(kind) => self.pull_request(event, lookups),
            (_, AdmissionMode::Grasp) => self.related(event, lookups),
            (_, AdmissionMode::Open) => Decision::Accept,
        }
    }
}

impl PolicyContext<'_> {
    /// Holds an event if there is room.
    fn hold(self, author: PublicKey, bytes: usize, need: AwaitedData) -> Decision {
        match self.purgatory.rejection_if_full(author, bytes) {
            Some(full) => Decision::Reject(full),
            None => Decision::Hold(need),
        }
    }
}

/// What holds for every kind: it is known, gone, superseded, somebody else's to publish, or never stored.
fn decide_for_any_kind(event: &Event, source: &EventSource, lookups: &EventLookups) -> Option<Decision> {
    // A vanished author's events are gone at once, though the disk may still hold them for a while.
    if lookups.tombstone == Some(TombstoneKind::Vanished) && event.kind != kinds::VANISH {
        return Some(Decision::Reject(Rejection::Vanished));
    }
    match lookups.stored {
        Some(EventStatus::Served) => return Some(Decision::Known(KnownAs::Served)),
        Some(EventStatus::Held) => return Some(Decision::Known(KnownAs::Held)),
        None => {}
    }
    let rejection = match lookups.tombstone {
        // Requests to delete and to vanish cannot be deleted (D-04); an earlier vanish request tells nothing new.
        Some(TombstoneKind::Deleted) if matches!(event.kind, kinds::DELETION | kinds::VANISH) => None,
        Some(TombstoneKind::Vanished) => return Some(Decision::Known(KnownAs::Superseded)),
        Some(TombstoneKind::Deleted) => Some(Rejection::Deleted),
        Some(TombstoneKind::Withdrawn) => Some(Rejection::Withdrawn),
        None => None,
    };
    if let Some(rejection) = rejection {
        return Some(Decision::Reject(rejection));
    }
    let is_author = matches!(source, EventSource::Client(keys) if keys.contains(&event.pubkey));
    if (event.is_protected() && !is_author) || reposts_protected(event) {
        return Some(Decision::Reject(Rejection::Protected));
    }
    if kinds::class(event.kind) == KindClass::Ephemeral {
        return Some(Decision::Broadcast);
    }
    lookups
        .current
        .filter(|current| !supersedes(event.version(), *current))
        .map(|_| Decision::Known(KnownAs::Superseded))
}

/// A repost carries what it reposts in its content (NIP-70 forbids that for protected events).
fn reposts_protected(event: &Event) -> bool {
    matches!(event.kind, 6 | 16) && Event::parse(&event.content).is_ok_and(|inner| inner.is_protected())
}

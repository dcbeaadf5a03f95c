//! Decisions about single events: pure functions of the policy, the catalog, purgatory and the lookups
//! (docs/protocol.md#order-of-evaluation).
//!
//! One file per kind of event. The table tests are in `crates/sim/tests/it/policy/`.

mod announcement;
mod deletion;
pub mod lists;
mod pull_request;
mod related;
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::io::{EventLookups, EventSource, NeededLookups, PushId, TombstoneKind};
use super::purgatory::{HeldSubmitter, HoldPriority, HoldRequest, Purgatory};
use crate::disk_budget::{DiskLevel, Quotas};
use crate::fetch::io::FetchId;
use crate::limits;
use crate::nostr::event::{Event, EventId};
use crate::nostr::kinds::KindClass;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::{PublicKey, SignedEvent, kinds, supersedes};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::StateDigest;
use crate::repo::{Announcement, Catalog, Identifier, RepoId, RepoPath, ServiceAddress};
use crate::time::Timestamp;

pub(super) use announcement::{IdentifierSpace, is_archive_only, is_withdrawn, withdraws};
pub(super) use deletion::is_own_relay_named;
use lists::ModerationLists;

/// The operator's policy: which events and repositories are accepted, and how much of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdmissionPolicy {
    /// The public address of this service.
    pub service: ServiceAddress,
    /// Which events are accepted at all.
    pub mode: AdmissionMode,
    /// The operator's key. Its events are accepted without any link to a repository.
    pub owner: Option<PublicKey>,
    /// Whether announcements without role tags use the reciprocal rule, too.
    pub strict_maintainers: bool,
    /// The maximum size of an event that is not a state.
    pub max_event_bytes: usize,
    /// How long an event waits in purgatory for its git data.
    pub purgatory_secs: u64,
    /// How long the git data of an expired event that was not replaced is still searched for.
    pub dormant_secs: u64,
    /// Whether deletion requests and requests to vanish are stored but have no effect.
    pub ignores_deletions: bool,
    /// Whether missing git data is fetched from other servers. Then events do not expire before all sources were tried
    /// once.
    pub fetches_git_data: bool,
    /// Limits per key and per repository.
    pub quotas: Quotas,
    /// Whether contributors may submit pull requests to repositories that are hosted elsewhere (GRASP-06).
    pub accepts_submissions: bool,
    /// Banned, whitelisted and archived repositories and authors.
    pub lists: Arc<ModerationLists>,
}

/// Which events are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdmissionMode {
    /// Events about repositories that are hosted here.
    Grasp,
    /// Any valid event: a relay for local development, and for comparisons with general relays.
    Open,
}

/// An event to decide about, with what is parsed from it. It is parsed once, for the decision and for what follows.
pub(super) struct Submission<'a> {
    pub(super) event: &'a Arc<SignedEvent>,
    /// The event as an announcement. `None` if it is of another kind, if its identifier is invalid, or if events of all
    /// kinds are accepted ([`AdmissionMode::Open`]).
    pub(super) announcement: Option<Announcement>,
    /// The network or relay that has submitted it, if it has a share of purgatory.
    pub(super) submitter: Option<HeldSubmitter>,
    /// The digest of a state, if it was computed before.
    pub(super) digest: Option<StateDigest>,
}

impl<'a> Submission<'a> {
    pub(super) fn new(policy: &AdmissionPolicy, event: &'a Arc<SignedEvent>) -> Self {
        let is_announcement = event.kind == kinds::ANNOUNCEMENT && policy.mode == AdmissionMode::Grasp;
        let announcement = is_announcement.then(|| policy.announcement(event)).flatten();
        Self { event, announcement, submitter: None, digest: None }
    }
}

/// What a decision depends on, apart from the event and its lookups.
#[derive(Clone, Copy)]
pub(super) struct PolicyContext<'a> {
    pub(super) policy: &'a AdmissionPolicy,
    pub(super) catalog: &'a Catalog,
    pub(super) purgatory: &'a Purgatory,
    pub(super) disk_level: DiskLevel,
    pub(super) pushes: &'a BTreeMap<PushId, Vec<EventId>>,
    pub(super) fetches: &'a BTreeMap<FetchId, Vec<EventId>>,
}

impl AdmissionPolicy {
    /// Whether another policy describes the same service. It may differ in lists, limits and quotas.
    #[must_use]
    pub fn is_same_service(&self, other: &Self) -> bool {
        let fixed_part = |policy: &Self| {
            let Self {
                service,
                mode,
                owner,
                strict_maintainers,
                ignores_deletions,
                fetches_git_data,
                accepts_submissions,
                ..
            } = policy.clone();
            (service, mode, owner, strict_maintainers, ignores_deletions, fetches_git_data, accepts_submissions)
        };
        fixed_part(self) == fixed_part(other)
    }

    /// Parses an announcement and sets `is_archived`. Returns `None` if its `d` tag is not a valid identifier.
    #[must_use]
    pub fn announcement(&self, event: &Event) -> Option<Announcement> {
        let announcement = Announcement::from_event(event, &self.service)?;
        Some(Announcement { is_archived: self.lists.archive.includes(&announcement), ..announcement })
    }

    /// Returns the reason to reject an event that can be found before its signature is verified, from the event alone.
    /// `bytes` is the size of its text.
    #[must_use]
    pub fn precheck(&self, event: &Event, bytes: usize, now: Timestamp) -> Option<Rejection> {
        let max_tags = if event.kind == kinds::STATE { limits::MAX_STATE_TAGS } else { limits::MAX_EVENT_TAGS };
        if let Some(rejection) = self.size_rejection(event.kind, bytes) {
            Some(rejection)
        } else if event.tags.len() > max_tags {
            Some(Rejection::TooManyTags(max_tags))
        } else if event.indexed_tags().count() > limits::MAX_EVENT_TAGS {
            Some(Rejection::TooManyTags(limits::MAX_EVENT_TAGS))
        } else if matches!(event.kind, kinds::AUTH | kinds::HTTP_AUTH) {
            Some(Rejection::AuthEvent)
        } else if event.created_at > now.plus_secs(limits::MAX_FUTURE_SECS) {
            Some(Rejection::InFuture)
        } else {
            expiry_rejection(event, now)
        }
    }

    /// Checks again what may have changed since [`precheck`](Self::precheck): the size, which is now that of the stored
    /// text, under the current limit, and the expiration.
    pub(super) fn recheck(&self, event: &SignedEvent, now: Timestamp) -> Option<Rejection> {
        self.size_rejection(event.kind, event.json().len()).or_else(|| expiry_rejection(event, now))
    }

    fn size_rejection(&self, kind: u16, bytes: usize) -> Option<Rejection> {
        let state_limit = if kind == kinds::STATE { limits::MAX_STATE_EVENT_BYTES } else { 0 };
        let limit = self.max_event_bytes.max(state_limit);
        (bytes > limit).then_some(Rejection::TooLarge { bytes, limit })
    }

    /// Returns the `/prs/` paths at this service to which the author of a pull request submits it (GRASP-06): paths
    /// with the author's key and the identifier of a target (`a`) that the event names in `clone`.
    #[must_use]
    pub fn submission_paths(&self, author: PublicKey, request: &PullRequest) -> Vec<RepoPath> {
        if !self.accepts_submissions {
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

    /// Whether the author's `/prs/` path or a target of a submitted pull request is banned.
    pub(super) fn is_submission_banned(&self, repo_paths: &[RepoPath], request: &PullRequest) -> bool {
        repo_paths.iter().map(RepoPath::repo).chain(&request.targets).any(|repo| self.lists.is_repo_banned(repo))
    }

    /// Whether an event is accepted without a link to a served event.
    pub(super) fn is_accepted_unlinked(&self, event: &Event) -> bool {
        let is_submitted = |request| {
            let repo_paths = self.submission_paths(event.pubkey, &request);
            !repo_paths.is_empty() && !self.is_submission_banned(&repo_paths, &request)
        };
        matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE | kinds::GRASP_LIST)
            || self.owner == Some(event.pubkey)
            || PullRequest::from_any_event(event).is_some_and(is_submitted)
    }

    /// Returns the lookups that the decision about an event needs.
    #[must_use]
    pub fn needed_lookups(&self, event: &Event) -> NeededLookups {
        let is_grasp = self.mode == AdmissionMode::Grasp;
        match event.kind {
            kinds::ANNOUNCEMENT | kinds::STATE if is_grasp => NeededLookups::default(),
            kinds::DELETION => NeededLookups { author: is_grasp, targets: true, links: false },
            kinds::VANISH => NeededLookups { author: true, ..NeededLookups::default() },
            _ => NeededLookups {
                links: is_grasp && kinds::class(event.kind) != KindClass::Ephemeral,
                ..NeededLookups::default()
            },
        }
    }
}

impl PolicyContext<'_> {
    /// Decides about an event whose signature has been verified.
    pub(super) fn decide(self, submission: &Submission<'_>, source: &EventSource, lookups: &EventLookups) -> Decision {
        let event = submission.event;
        // A ban applies even to stored events, which are about to be removed.
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
        // Events that free space are accepted even if the disk is full.
        let is_removal = matches!(event.kind, kinds::DELETION | kinds::VANISH) && !self.policy.ignores_deletions;
        let withdraws_repository = || submission.announcement.as_ref().is_some_and(|new| withdraws(self.catalog, new));
        if self.disk_level == DiskLevel::Hard && !is_removal && !withdraws_repository() {
            return Decision::Reject(Rejection::DiskFull);
        }
        match (event.kind, self.policy.mode) {
            (kinds::DELETION, _) => self.deletion(event, lookups),
            (kinds::VANISH, _) => self.vanish(event, lookups),
            (kinds::ANNOUNCEMENT, AdmissionMode::Grasp) => self.announcement(submission),
            (kinds::STATE, AdmissionMode::Grasp) => self.state(submission),
            (kind, AdmissionMode::Grasp) if kinds::is_pull_request(kind) => self.pull_request(submission, lookups),
            (_, AdmissionMode::Grasp) => self.related(event, lookups),
            (_, AdmissionMode::Open) => Decision::Accept,
        }
    }
}

impl<'a> PolicyContext<'a> {
    /// Holds an event, unless purgatory is full.
    fn hold(self, submission: &Submission<'_>, awaited: AwaitedData) -> Decision {
        match self.purgatory.rejection(&self.hold_request(submission), |id| self.is_in_transfer(id)) {
            Some(rejection) => Decision::Reject(rejection),
            None => Decision::Hold(awaited),
        }
    }

    /// Returns the events that must be removed from purgatory before another one is held.
    pub(super) fn evictions(self, request: &HoldRequest<'_>) -> Vec<EventId> {
        self.purgatory.evictions(request, |id| self.is_in_transfer(id)).unwrap_or_default()
    }

    /// Returns what purgatory needs to know about an event that is to be held.
    pub(super) fn hold_request<'s>(self, submission: &'s Submission<'_>) -> HoldRequest<'s>
    where
        'a: 's,
    {
        let Submission { event, announcement, submitter, .. } = submission;
        let (bytes, submitter) = (event.json().len(), submitter.as_ref());
        let versions = announcement.as_ref().and_then(|new| self.catalog.announcement(&new.repo));
        let replaced = versions.and_then(|versions| self.purgatory.get(versions.held.as_ref()?.version.id));
        let priority = match event.kind {
            kinds::ANNOUNCEMENT => HoldPriority::NewRepository,
            kinds::STATE
                if self.maintains_served_repo(event) && self.purgatory.has_reserved_share(submitter, bytes) =>
            {
                HoldPriority::ServedState
            }
            _ => HoldPriority::Other,
        };
        HoldRequest { author: event.pubkey, bytes, replaced, submitter, priority }
    }

    /// Whether the author of a state maintains a repository that is served.
    fn maintains_served_repo(self, event: &Event) -> bool {
        let group = event.tag("d").and_then(Identifier::new).and_then(|identifier| self.catalog.group(&identifier));
        let strict = self.policy.strict_maintainers;
        group.is_some_and(|group| group.maintains_served(event.pubkey, strict))
    }

    /// Whether a push or a fetch may release a held event, or depends on it.
    pub(super) fn is_in_transfer(self, id: EventId) -> bool {
        self.pushes.values().chain(self.fetches.values()).any(|events| events.contains(&id))
    }
}

fn expiry_rejection(event: &Event, now: Timestamp) -> Option<Rejection> {
    event.expires_at().filter(|expires_at| *expires_at <= now).map(|_| Rejection::Expired)
}

/// Decides in cases that are the same for every kind: the event is known, removed, superseded, protected or ephemeral.
fn decide_for_any_kind(event: &Event, source: &EventSource, lookups: &EventLookups) -> Option<Decision> {
    // Events of an author that has vanished count as removed at once, although the store deletes them in slices.
    if lookups.tombstone == Some(TombstoneKind::Vanished) && event.kind != kinds::VANISH {
        return Some(Decision::Reject(Rejection::Vanished));
    }
    match lookups.stored {
        Some(EventStatus::Served) => return Some(Decision::Known(KnownAs::Served)),
        Some(EventStatus::Held) => return Some(Decision::Known(KnownAs::Held)),
        None => {}
    }
    let rejection = match lookups.tombstone {
        // Deletion and vanish requests cannot be deleted. A vanish request that is older than the known one adds
        // nothing.
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
        .map(|current| Decision::Known(KnownAs::superseded(event.version(), current)))
}

/// Whether the event is a repost with a protected event in its content, which NIP-70 forbids.
fn reposts_protected(event: &Event) -> bool {
    matches!(event.kind, 6 | 16) && Event::parse(&event.content).is_ok_and(|inner| inner.is_protected())
}

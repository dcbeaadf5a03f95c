//! What others may want to know of the registrar's books.

use super::Admission;
use super::io::PendingUpload;
use super::purgatory::{HeldEvent, HeldKind};
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Announcement, RepoId, RepoPath};

/// A hosted repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedRepo {
    /// Whether its announcement is served, or waits for git data.
    pub status: EventStatus,
    /// The sites whose objects it may read.
    pub alternates: Vec<RepoPath>,
}

impl Admission {
    /// A repository, if it is hosted.
    #[must_use]
    pub fn hosted_repo(&self, repo: &RepoId) -> Option<HostedRepo> {
        if !self.is_hosted(repo) {
            return None;
        }
        let repo_path = RepoPath::Announced(repo.clone());
        let status = if self.is_served(&repo_path) { EventStatus::Served } else { EventStatus::Held };
        Some(HostedRepo { status, alternates: self.alternates_of(&repo_path) })
    }

    /// The events that wait for git data at a site. Those whose time is over are not shown.
    #[must_use]
    pub fn held_at(&self, repo_path: &RepoPath) -> Vec<(EventId, &HeldEvent)> {
        let states: Vec<EventId> = self.states_for(repo_path).into_iter().map(|(id, _)| id).collect();
        let here = |id: EventId, held_event: &HeldEvent| match &held_event.kind {
            HeldKind::Announcement(repo) => *repo_path == RepoPath::Announced(repo.clone()),
            HeldKind::State(_) => states.contains(&id),
            HeldKind::PullRequest(_, repo_paths) => repo_paths.contains(repo_path),
        };
        let held_event = self.purgatory.by_identifier(repo_path.identifier());
        held_event.filter(|(id, held_event)| !held_event.is_dormant() && here(*id, held_event)).collect()
    }

    /// The uploads that wait for their events.
    pub fn uploads(&self) -> impl Iterator<Item = &PendingUpload> {
        self.uploads.iter()
    }

    /// How much work for git waits for its turn.
    #[must_use]
    pub fn queued_git_work(&self) -> usize {
        self.queues.held_event()
    }

    /// Whether nothing is under way in the git room, nothing waits for it, and all repositories are as the rules want them.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queues.is_idle()
            && self.pending_lookup.is_none()
            && self.lookup_queue.is_empty()
            && self.repos_to_review.is_empty()
    }

    /// Whether anybody may push to and fetch from a site.
    #[must_use]
    pub fn is_available(&self, repo_path: &RepoPath) -> bool {
        match repo_path {
            RepoPath::Announced(repo) => self.is_hosted(repo),
            RepoPath::PullRequests(repo) => self.policy.submissions && !self.policy.lists.is_repo_banned(repo),
        }
    }

    pub(super) fn is_hosted(&self, repo: &RepoId) -> bool {
        self.catalog.group(&repo.identifier).is_some_and(|group| group.is_hosted(repo.owner))
    }

    /// Whether a site's announcement is served.
    pub(super) fn is_served(&self, repo_path: &RepoPath) -> bool {
        let RepoPath::Announced(repo) = repo_path else { return false };
        self.catalog
            .announcement(repo)
            .is_some_and(|versions| versions.served.as_ref().is_some_and(Announcement::is_hosted))
    }

    pub(super) fn is_maintainer(&self, event: &Event, repo: &RepoId) -> bool {
        let strict = self.policy.strict_maintainers;
        let group = self.catalog.group(&repo.identifier);
        event.tag("d") == Some(repo.identifier.as_str())
            && self.is_hosted(repo)
            && group.is_some_and(|group| group.maintainers(repo.owner, strict).contains(&event.pubkey))
    }

    /// The states that speak for a site, the best first, as many as are looked at.
    #[must_use]
    pub fn states_for(&self, repo_path: &RepoPath) -> Vec<(EventId, EventStatus)> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let group = self.catalog.group(&repo.identifier).into_iter();
        let states = group.flat_map(|group| group.states_for(repo.owner, self.policy.strict_maintainers));
        // However many wait, what is served counts.
        let looked_at = |(nth, (_, status)): &(usize, (_, EventStatus))| {
            *nth < limits::MAX_CANDIDATE_STATES || *status == EventStatus::Served
        };
        states.enumerate().filter(looked_at).map(|(_, (version, status))| (version.id, status)).collect()
    }

    /// The sites whose objects a site may read: those of the hosted members of its own maintainer set.
    pub(super) fn alternates_of(&self, repo_path: &RepoPath) -> Vec<RepoPath> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let group = self.catalog.group(&repo.identifier).into_iter();
        let owners = group.flat_map(|group| group.alternate_owners(repo.owner, self.policy.strict_maintainers));
        owners.map(|owner| RepoPath::Announced(RepoId { owner, identifier: repo.identifier.clone() })).collect()
    }

    /// The held announcements by which a site is hosted and states may speak for it.
    pub(super) fn held_announcements_of(&self, repo_path: &RepoPath) -> Vec<EventId> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let Some(group) = self.catalog.group(&repo.identifier) else { return Vec::new() };
        let members = group.maintainers(repo.owner, self.policy.strict_maintainers);
        let versions = members.iter().chain([&repo.owner]).filter_map(|member| group.announcement(*member));
        versions.filter_map(|versions| versions.held.as_ref()).map(|held| held.version.id).collect()
    }

    /// Whether a pull request may be pushed to a site: to where it may be served, or to another maintainer's repository
    /// whose objects are read there.
    pub(super) fn accepts_pull_request(&self, repo_path: &RepoPath, repo_paths: &[RepoPath]) -> bool {
        repo_paths.contains(repo_path) || repo_paths.iter().any(|target| self.alternates_of(target).contains(repo_path))
    }

    /// The sites at which a pull request may be served.
    pub(super) fn pull_request_paths(&self, author: PublicKey, request: &PullRequest) -> Vec<RepoPath> {
        let mut repo_paths: Vec<RepoPath> = request
            .targets
            .iter()
            .filter(|repo| self.is_hosted(repo))
            .take(limits::MAX_OBJECT_CHECK_REPOS)
            .map(|repo| RepoPath::Announced(repo.clone()))
            .collect();
        repo_paths.extend(self.policy.submission_paths(author, request));
        repo_paths.sort_unstable();
        repo_paths.dedup();
        repo_paths
    }
}

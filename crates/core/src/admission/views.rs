//! Queries of the admission state, for the server and for the other files of this module.

use std::collections::BTreeMap;

use super::Admission;
use super::io::{EarlyRequest, PendingUpload};
use super::purgatory::{HeldEvent, HeldKind};
use super::push::DeclaredState;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId, EventVersion};
use crate::repo::catalog::EventStatus;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::refs_hash;
use crate::repo::{Announcement, RepoId, RepoPath};

/// The status of a hosted repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedRepo {
    /// Whether its announcement is served or held.
    pub status: EventStatus,
    /// The other repositories whose objects it may read.
    pub alternates: Vec<RepoPath>,
}

impl Admission {
    /// Returns the status of a repository, if it is hosted.
    #[must_use]
    pub fn hosted_repo(&self, repo: &RepoId) -> Option<HostedRepo> {
        if !self.is_hosted(repo) {
            return None;
        }
        let repo_path = RepoPath::Announced(repo.clone());
        let status = if self.is_served(&repo_path) { EventStatus::Served } else { EventStatus::Held };
        Some(HostedRepo { status, alternates: self.alternates_of(&repo_path) })
    }

    /// Iterates over the hosted repositories for which a served state declares refs. They have git data.
    pub fn repos_with_refs(&self) -> impl Iterator<Item = RepoId> {
        let no_refs = refs_hash(&BTreeMap::new());
        let strict = self.policy.strict_maintainers;
        self.catalog.groups().flat_map(move |(identifier, group)| {
            let has_refs = move |owner: &PublicKey| {
                let mut states = group.states_for(*owner, strict).into_iter();
                states.any(|(version, status)| {
                    let digest = group.digest_of(*owner, version.id, strict);
                    status == EventStatus::Served && digest.is_some_and(|digest| digest.refs_hash != no_refs)
                })
            };
            let owners = group.hosted_owners().filter(has_refs);
            owners.map(|owner| RepoId { owner, identifier: identifier.clone() })
        })
    }

    /// Returns the events that wait for git data of a repository, dormant ones last.
    #[must_use]
    pub fn held_at(&self, repo_path: &RepoPath) -> Vec<(EventId, &HeldEvent)> {
        let states: Vec<EventId> = self.states_for(repo_path).into_iter().map(|(id, _)| id).collect();
        let is_for_repo = |id: EventId, held_event: &HeldEvent| match &held_event.kind {
            HeldKind::Announcement(repo) => *repo_path == RepoPath::Announced(repo.clone()),
            HeldKind::State(_) => states.contains(&id),
            HeldKind::PullRequest(_, repo_paths) => repo_paths.contains(repo_path),
        };
        let held = self.purgatory.by_identifier(repo_path.identifier());
        let mut held: Vec<_> = held.filter(|(id, held_event)| is_for_repo(*id, held_event)).collect();
        held.sort_by_key(|(_, held_event)| held_event.is_dormant());
        held
    }

    /// Iterates over the uploads whose event is not known yet.
    pub fn uploads(&self) -> impl Iterator<Item = &PendingUpload> {
        self.uploads.iter()
    }

    /// Iterates over the deletion and vanish requests of unknown keys.
    pub fn early_requests(&self) -> impl Iterator<Item = &EarlyRequest> {
        self.early_requests.iter()
    }

    /// Returns the number of pushes and tasks that wait for a git job.
    #[must_use]
    pub fn queued_git_work(&self) -> usize {
        self.queues.queued_count()
    }

    /// Whether no git job is running or may start, and all repositories have been compared with the policy.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queues.is_idle()
            && self.pending_lookup.is_none()
            && self.lookup_queue.is_empty()
            && self.repos_to_review.is_empty()
            && self.ended_repos.is_empty()
            && !self.has_work_left()
    }

    /// Whether work waits for the next turn because a turn does only a part of it.
    pub(super) fn has_work_left(&self) -> bool {
        self.has_deferred_tasks
            || !self.dependents.is_empty()
            || !self.exceptions.is_empty()
            || !self.held_to_check.is_empty()
    }

    /// Whether a repository can be pushed to and fetched from.
    #[must_use]
    pub fn is_available(&self, repo_path: &RepoPath) -> bool {
        match repo_path {
            RepoPath::Announced(repo) => self.is_hosted(repo),
            RepoPath::PullRequests(repo) => self.policy.accepts_submissions && !self.policy.lists.is_repo_banned(repo),
        }
    }

    /// Whether a repository is hosted, by a served or a held announcement.
    pub(super) fn is_hosted(&self, repo: &RepoId) -> bool {
        self.catalog.group(&repo.identifier).is_some_and(|group| group.is_hosted(repo.owner))
    }

    /// Whether the newest announcement of a repository names this service.
    pub(super) fn is_listed(&self, repo_path: &RepoPath) -> bool {
        let RepoPath::Announced(repo) = repo_path else { return false };
        let group = self.catalog.group(&repo.identifier);
        group.and_then(|group| group.newest_announcement(repo.owner)).is_some_and(|newest| newest.is_listed)
    }

    /// Whether a repository is hosted by a served announcement.
    pub(super) fn is_served(&self, repo_path: &RepoPath) -> bool {
        let RepoPath::Announced(repo) = repo_path else { return false };
        self.catalog
            .announcement(repo)
            .is_some_and(|versions| versions.served.as_ref().is_some_and(Announcement::is_hosted))
    }

    /// Whether a state applies to a repository: same identifier, hosted, and the author is a maintainer.
    pub(super) fn is_maintainer(&self, event: &Event, repo: &RepoId) -> bool {
        let strict = self.policy.strict_maintainers;
        let group = self.catalog.group(&repo.identifier);
        event.tag("d") == Some(repo.identifier.as_str())
            && self.is_hosted(repo)
            && group.is_some_and(|group| group.is_maintainer(repo.owner, event.pubkey, strict))
    }

    /// Returns the states that apply to a repository, newest first. Of many, only the first
    /// [`limits::MAX_CANDIDATE_STATES`] and the served ones are considered.
    #[must_use]
    pub fn states_for(&self, repo_path: &RepoPath) -> Vec<(EventId, EventStatus)> {
        self.state_versions_for(repo_path).into_iter().map(|(version, status)| (version.id, status)).collect()
    }

    /// Returns the states that apply to a repository with their digests, newest first, as many as are
    /// [considered](Self::states_for).
    pub(super) fn declared_states(&self, repo_path: &RepoPath) -> Vec<(DeclaredState, EventStatus)> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let Some(group) = self.catalog.group(&repo.identifier) else { return Vec::new() };
        let declared = |(version, status): (EventVersion, EventStatus)| {
            let digest = group.digest_of(repo.owner, version.id, self.policy.strict_maintainers)?.clone();
            Some((DeclaredState { version, digest }, status))
        };
        self.state_versions_for(repo_path).into_iter().filter_map(declared).collect()
    }

    fn state_versions_for(&self, repo_path: &RepoPath) -> Vec<(EventVersion, EventStatus)> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let group = self.catalog.group(&repo.identifier).into_iter();
        let states = group.flat_map(|group| group.states_for(repo.owner, self.policy.strict_maintainers));
        // Served states are considered however many held ones are newer.
        let is_considered = |(nth, (_, status)): &(usize, (_, EventStatus))| {
            *nth < limits::MAX_CANDIDATE_STATES || *status == EventStatus::Served
        };
        states.enumerate().filter(is_considered).map(|(_, state)| state).collect()
    }

    /// Returns the repositories whose objects a repository may read: those of the hosted members of its maintainer set.
    pub(super) fn alternates_of(&self, repo_path: &RepoPath) -> Vec<RepoPath> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let group = self.catalog.group(&repo.identifier).into_iter();
        let owners = group.flat_map(|group| group.alternate_owners(repo.owner, self.policy.strict_maintainers));
        owners.map(|owner| RepoPath::Announced(RepoId { owner, identifier: repo.identifier.clone() })).collect()
    }

    /// Returns the held announcements that a push to a repository depends on: those of its owner and of its
    /// maintainers.
    pub(super) fn held_announcements_of(&self, repo_path: &RepoPath) -> Vec<EventId> {
        let RepoPath::Announced(repo) = repo_path else { return Vec::new() };
        let Some(group) = self.catalog.group(&repo.identifier) else { return Vec::new() };
        let members = group.maintainers(repo.owner, self.policy.strict_maintainers);
        let versions = members.iter().chain([&repo.owner]).filter_map(|member| group.announcement(*member));
        versions.filter_map(|versions| versions.held.as_ref()).map(|held| held.version.id).collect()
    }

    /// Whether a pull request for `repo_paths` may be pushed to `repo_path`: to one of them, or to a repository whose
    /// objects one of them may read.
    pub(super) fn accepts_pull_request(&self, repo_path: &RepoPath, repo_paths: &[RepoPath]) -> bool {
        repo_paths.contains(repo_path) || repo_paths.iter().any(|target| self.alternates_of(target).contains(repo_path))
    }

    /// Returns the repositories in which a pull request should have its ref: its hosted targets, and its submission
    /// paths.
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

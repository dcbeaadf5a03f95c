//! Changes of the policy: repositories that are banned now are removed, and repositories that are archived now are
//! hosted. No tombstones are added, so that a later change can accept them again.
//!
//! All repositories are reviewed in slices, by [`wake`](crate::state_machine::StateMachine::wake). As with every
//! removal, the store is changed first, with a todo for the folder, and then git. If the process ends in between, the
//! next one starts again, because the lists alone tell what is banned. Events about a banned repository are removed
//! after it, by [`moderation`](super::moderation); the todo is kept until that is done, too.

use std::ops::Bound;

use super::Admission;
use super::git_job_results::todo_for_task;
use super::io::{EventSummary, Todo};
use super::policy::lists::ModerationLists;
use super::policy::{AdmissionMode, AdmissionPolicy};
use super::purgatory::{HeldEvent, HeldKind};
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::kinds;
use crate::repo::catalog::{EventStatus, Versions};
use crate::repo::{Announcement, RepoId, RepoPath};

impl Admission {
    /// Replaces the policy. The new one must describe the same service ([`AdmissionPolicy::is_same_service`]).
    pub(super) fn change_policy(&mut self, policy: AdmissionPolicy) {
        self.policy = policy;
        self.repos_to_review = self.catalog.repositories().map(|(repo, _)| repo).collect();
        for repo in self.find_repos_to_scan() {
            self.scan_done(repo);
        }
        self.drop_banned_held_events();
        self.review_slice();
    }

    /// Starts the review after a start, because the lists may have changed since the last process.
    pub(super) fn start_review(&mut self) {
        let lists = &self.policy.lists;
        if !lists.banned_repos.is_empty() {
            let repositories = self.catalog.repositories().map(|(repo, _)| repo);
            self.repos_to_review = repositories.filter(|repo| lists.is_repo_banned(repo)).collect();
        }
        self.find_repos_to_scan();
        self.drop_banned_held_events();
        self.review_slice();
        for repo_path in self.possibly_outdated() {
            self.queues.add(RepoTask::Align(repo_path));
        }
    }

    /// Returns the archived repositories that may not be aligned with their states. If a repository became archived
    /// after its states changed, there is no todo for it. Repositories with a single announcement and a served state of
    /// a single author are certainly aligned.
    fn possibly_outdated(&self) -> Vec<RepoPath> {
        let archived = self.catalog.repositories().filter(|(_, versions)| {
            versions.served.as_ref().is_some_and(|served| served.is_archived && !served.is_listed)
        });
        let outdated = archived.filter(|(repo, versions)| {
            let Some(group) = self.catalog.group(&repo.identifier) else { return false };
            let mut states = group.states_by_author();
            let is_only_announcement = group.announcements().count() == 1;
            let follows_only_author =
                states.next().is_some_and(|(_, states)| states.served.is_some()) && states.next().is_none();
            let is_exception = versions.served.as_ref().is_some_and(|served| served.is_exception);
            is_exception || !is_only_announcement || !follows_only_author
        });
        outdated.map(|(repo, _)| RepoPath::Announced(repo)).collect()
    }

    /// Returns the number of repositories in the catalog that these lists ban, by name, by owner or by announcement.
    #[must_use]
    pub fn count_banned_by(&self, lists: &ModerationLists) -> usize {
        let is_banned = |(repo, versions): &(RepoId, &Versions<Announcement>)| {
            let mut announcements = versions.served.iter().chain(&versions.held);
            lists.is_repo_banned(repo) || announcements.any(|event| lists.is_event_banned(repo.owner, event.version.id))
        };
        self.catalog.repositories().filter(is_banned).count()
    }

    /// Reviews the next few repositories.
    pub(super) fn review_slice(&mut self) {
        for _ in 0..limits::REVIEW_SLICE_REPOS {
            let Some(repo) = self.repos_to_review.pop_front() else { break };
            if self.policy.lists.is_repo_banned(&repo) {
                self.remove_banned_repo(&repo);
            } else {
                self.update_archived(&repo);
            }
        }
    }

    /// Returns the next banned and removed repository, after `after`, that may still have related events. `None` while
    /// repositories are being reviewed, because the result is not complete then.
    #[must_use]
    pub fn next_repo_to_scan(&self, after: Option<&RepoId>) -> Option<&RepoId> {
        let rest = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.repos_to_scan.range::<RepoId, _>(rest).next().filter(|_| self.repos_to_review.is_empty())
    }

    /// Finds the banned repositories that were removed, by the todos for their folders and by the entries of the list.
    /// Returns those that are no longer to be scanned.
    fn find_repos_to_scan(&mut self) -> Vec<RepoId> {
        let with_todo = self.todos.iter().filter_map(|todo| match (&todo.repo_path, todo.pull_request) {
            (RepoPath::Announced(repo), None) => Some(repo),
            _ => None,
        });
        let removed =
            with_todo.chain(self.policy.lists.banned_repos.repositories()).filter(|repo| self.is_banned_and_gone(repo));
        let removed = removed.cloned().collect();
        let before = std::mem::replace(&mut self.repos_to_scan, removed);
        before.difference(&self.repos_to_scan).cloned().collect()
    }

    /// Whether a repository is banned and has no announcement any more.
    pub(super) fn is_banned_and_gone(&self, repo: &RepoId) -> bool {
        let lists = &self.policy.lists;
        let is_banned = lists.is_repo_banned(repo) || lists.banned_events.authors.contains(&repo.owner);
        is_banned && self.policy.mode == AdmissionMode::Grasp && self.catalog.announcement(repo).is_none()
    }

    /// Schedules the search for events about a repository, if it is banned and was removed.
    pub(super) fn schedule_scan(&mut self, repo: &RepoId) {
        if self.is_banned_and_gone(repo) && self.repos_to_scan.insert(repo.clone()) {
            self.add_todo(Todo { repo_path: RepoPath::Announced(repo.clone()), pull_request: None });
        }
    }

    /// Whether a todo must be kept after the work on the folder is done: events that depend on the repository are still
    /// searched, or repositories that depend on it are still to be aligned.
    pub(super) fn is_todo_kept(&self, todo: &Todo) -> bool {
        todo.pull_request.is_none()
            && matches!(&todo.repo_path, RepoPath::Announced(repo)
                if self.repos_to_scan.contains(repo)
                    || self.ended_repos.contains(repo)
                    || self.dependents.has_dependents_of(repo))
    }

    /// Ends the search for events about a repository. If a todo for its folder is left, it is checked again, and
    /// removed if nothing is left to do.
    pub(super) fn scan_done(&mut self, repo: RepoId) {
        self.repos_to_scan.remove(&repo);
        let task = RepoTask::Align(RepoPath::Announced(repo.clone()));
        if self.todos.contains(&todo_for_task(&task)) {
            self.queues.add(task);
        }
        // A thread that stays may contain pull requests.
        if !self.hosting(&repo).is_kept {
            self.find_pull_requests(repo);
        }
    }

    /// Removes held events that are banned now. Their number is bounded, as purgatory is.
    fn drop_banned_held_events(&mut self) {
        let lists = &self.policy.lists;
        let is_banned = |(id, held_event): &(EventId, &HeldEvent)| {
            let is_repo_banned = match &held_event.kind {
                HeldKind::Announcement(repo) => lists.is_repo_banned(repo),
                HeldKind::State(_) => false,
                // Banned if all its repositories are.
                HeldKind::PullRequest(_, repo_paths) => {
                    !repo_paths.is_empty() && repo_paths.iter().all(|repo_path| lists.is_repo_banned(repo_path.repo()))
                }
            };
            is_repo_banned || lists.is_event_banned(held_event.author, *id)
        };
        let banned: Vec<EventId> = self.purgatory.iter().filter(is_banned).map(|(id, _)| id).collect();
        for id in banned {
            self.drop_held(id);
        }
    }

    /// Removes a banned repository: its announcements, and the states that apply to no other hosted repository.
    fn remove_banned_repo(&mut self, repo: &RepoId) {
        let versions = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (status, announcement) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            if let Some(Announcement { version, .. }) = announcement {
                let summary = EventSummary::versioned(repo.owner, &repo.identifier, kinds::ANNOUNCEMENT, version);
                self.remove(&summary, status);
            }
        }
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let strict = self.policy.strict_maintainers;
        let without_repo =
            group.states_by_author().filter(|(author, _)| group.maintained_by(**author, strict).next().is_none());
        let mut removed = Vec::new();
        for (author, states) in without_repo {
            removed.extend(states.served.map(|version| (*author, version, EventStatus::Served)));
            removed.extend(states.held.iter().map(|version| (*author, *version, EventStatus::Held)));
        }
        for (author, version, status) in removed {
            self.remove(&EventSummary::versioned(author, &repo.identifier, kinds::STATE, version), status);
        }
    }

    /// Updates whether a repository is archived.
    fn update_archived(&mut self, repo: &RepoId) {
        let versions = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (status, announcement) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            let Some(announcement) = announcement else { continue };
            let is_archived = self.policy.lists.archive.includes(&announcement);
            let id = announcement.version.id;
            if is_archived == announcement.is_archived {
                continue;
            }
            let is_exception = announcement.is_exception && !(status == EventStatus::Held && is_archived);
            let announcement = Announcement { is_archived, is_exception, ..announcement };
            if status == EventStatus::Held && !announcement.is_hosted() {
                self.drop_held(id);
            } else {
                self.put_announcement(status, announcement);
            }
        }
    }
}

//! The operator has changed the rules: what they ban goes, what they keep is hosted, and nothing is left that would keep
//! it away when they change again.
//!
//! All repositories are looked at again in slices, by [`wake`](crate::state_machine::StateMachine::wake): the store first, with a note
//! of what is to be done about the folder, then git, as with every removal. A process that ends in between begins again at
//! the next start, because what is banned is found by the lists alone. What is about a banned repository follows it, by
//! [`sweep`](super::moderation); the note stays until that is done, too.

use std::ops::Bound;

use super::Admission;
use super::git_job_results::todo_for_task;
use super::io::{EventSummary, Todo};
use super::policy::lists::ModerationLists;
use super::policy::{AdmissionMode, AdmissionPolicy};
use super::purgatory::{HeldEvent, HeldKind};
use super::repo_queue::RepoTask;
use crate::limits;
use crate::nostr::event::{EventId, EventVersion};
use crate::nostr::{PublicKey, kinds};
use crate::repo::catalog::EventStatus;
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};

impl Admission {
    /// There are other rules. What they say about this service itself must be what the old ones said.
    pub(super) fn change_policy(&mut self, policy: AdmissionPolicy) {
        self.policy = policy;
        self.repos_to_review = self.catalog.repositories().map(|(repo, _)| repo).collect();
        for repo in self.find_repos_to_scan() {
            self.scan_done(repo);
        }
        self.drop_banned_held_events();
        self.review_slice();
    }

    /// At the beginning: the lists may be others than those of the last process.
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

    /// Repositories that are hosted only because the operator keeps them, and of which it is not certain that they were when
    /// what they follow changed: nobody has noted that. Those that only one key speaks for, and that follow it, are certain.
    fn possibly_outdated(&self) -> Vec<RepoPath> {
        let kept = self.catalog.repositories().filter(|(_, versions)| {
            versions.served.as_ref().is_some_and(|served| served.is_archived && !served.is_listed)
        });
        let behind = kept.filter(|(repo, versions)| {
            let Some(group) = self.catalog.group(&repo.identifier) else { return false };
            let mut states = group.states_by_author();
            let lonely = group.announcements().count() == 1;
            let follows = states.next().is_some_and(|(_, states)| states.served.is_some()) && states.next().is_none();
            let exception = versions.served.as_ref().is_some_and(|served| served.is_exception);
            exception || !lonely || !follows
        });
        behind.map(|(repo, _)| RepoPath::Announced(repo)).collect()
    }

    /// How many repositories that are here have no place by these lists.
    #[must_use]
    pub fn count_banned_by(&self, lists: &ModerationLists) -> usize {
        self.catalog.repositories().filter(|(repo, _)| lists.is_repo_banned(repo)).count()
    }

    /// Looks at the next few repositories.
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

    /// The next banned repository that has gone and that others may still be about, behind another. Nobody can tell while
    /// repositories are to be looked at.
    #[must_use]
    pub fn next_repo_to_scan(&self, behind: Option<&RepoId>) -> Option<&RepoId> {
        let rest = (behind.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.repos_to_scan.range::<RepoId, _>(rest).next().filter(|_| self.repos_to_review.is_empty())
    }

    /// Finds out which banned repositories have gone, by the notes about their folders, and by name. Gives those that are
    /// not banned any more.
    fn find_repos_to_scan(&mut self) -> Vec<RepoId> {
        let noted = self.todos.iter().filter_map(|todo| match (&todo.repo_path, todo.pull_request) {
            (RepoPath::Announced(repo), None) => Some(repo),
            _ => None,
        });
        let gone =
            noted.chain(self.policy.lists.banned_repos.repositories()).filter(|repo| self.is_banned_and_gone(repo));
        let gone = gone.cloned().collect();
        let before = std::mem::replace(&mut self.repos_to_scan, gone);
        before.difference(&self.repos_to_scan).cloned().collect()
    }

    /// Whether a repository is banned and has gone.
    fn is_banned_and_gone(&self, repo: &RepoId) -> bool {
        let lists = &self.policy.lists;
        let banned = lists.is_repo_banned(repo) || lists.banned_events.authors.contains(&repo.owner);
        banned && self.policy.mode == AdmissionMode::Grasp && self.catalog.announcement(repo).is_none()
    }

    /// If a repository has just been banished, what is about it is looked for.
    pub(super) fn schedule_scan(&mut self, repo: &RepoId) {
        if self.is_banned_and_gone(repo) && self.repos_to_scan.insert(repo.clone()) {
            self.add_todo(Todo { repo_path: RepoPath::Announced(repo.clone()), pull_request: None });
        }
    }

    /// Whether a note must outlive the work on the folder.
    pub(super) fn is_scan_pending(&self, todo: &Todo) -> bool {
        todo.pull_request.is_none()
            && matches!(&todo.repo_path, RepoPath::Announced(repo) if self.repos_to_scan.contains(repo))
    }

    /// Nothing is left to look for: when nothing is left to do about the folder either, the note goes.
    pub(super) fn scan_done(&mut self, repo: RepoId) {
        self.repos_to_scan.remove(&repo);
        let task = RepoTask::Align(RepoPath::Announced(repo));
        if self.todos.contains(&todo_for_task(&task)) {
            self.queues.add(task);
        }
    }

    /// What waits and is not wanted any more. That is bounded, because what waits is.
    fn drop_banned_held_events(&mut self) {
        let lists = &self.policy.lists;
        let unwanted = |(id, held_event): &(EventId, &HeldEvent)| {
            let banned = match &held_event.kind {
                HeldKind::Announcement(repo) => lists.is_repo_banned(repo),
                HeldKind::State(_) => false,
                // One of which nothing may be offered here.
                HeldKind::PullRequest(_, repo_paths) => {
                    !repo_paths.is_empty() && repo_paths.iter().all(|repo_path| lists.is_repo_banned(repo_path.repo()))
                }
            };
            banned || lists.is_event_banned(held_event.author, *id)
        };
        let gone: Vec<EventId> = self.purgatory.iter().filter(unwanted).map(|(id, _)| id).collect();
        for id in gone {
            self.drop_held(id);
        }
    }

    /// A repository has no place here: its announcements go, and the states that speak for nothing else here.
    fn remove_banned_repo(&mut self, repo: &RepoId) {
        let versions = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (status, announcement) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            if let Some(Announcement { version, .. }) = announcement {
                self.remove(&summary(repo.owner, &repo.identifier, kinds::ANNOUNCEMENT, version), status);
            }
        }
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let strict = self.policy.strict_maintainers;
        let mute =
            group.states_by_author().filter(|(author, _)| group.maintained_by(**author, strict).next().is_none());
        let mut gone = Vec::new();
        for (author, states) in mute {
            gone.extend(states.served.map(|version| (*author, version, EventStatus::Served)));
            gone.extend(states.held.iter().map(|version| (*author, *version, EventStatus::Held)));
        }
        for (author, version, status) in gone {
            self.remove(&summary(author, &repo.identifier, kinds::STATE, version), status);
        }
    }

    /// Whether a repository is kept although it does not name this service may have changed.
    fn update_archived(&mut self, repo: &RepoId) {
        let versions = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (status, announcement) in [(EventStatus::Served, versions.served), (EventStatus::Held, versions.held)] {
            let Some(announcement) = announcement else { continue };
            let archived = self.policy.lists.archive.includes(&announcement);
            let id = announcement.version.id;
            if archived == announcement.is_archived {
                continue;
            }
            let announcement = Announcement { is_archived: archived, ..announcement };
            if status == EventStatus::Held && !announcement.is_hosted() {
                self.drop_held(id);
            } else {
                self.put_announcement(status, announcement);
            }
        }
    }
}

fn summary(author: PublicKey, identifier: &Identifier, kind: u16, version: EventVersion) -> EventSummary {
    let identifier = Some(identifier.clone());
    EventSummary {
        id: version.id,
        author,
        kind,
        created_at: version.created_at,
        identifier,
        targets: Vec::new(),
        tip: None,
    }
}

//! The operator has changed the rules: what they ban goes, what they keep is hosted, and nothing is left that would keep
//! it away when they change again.
//!
//! All repositories are looked at again in slices, by [`wake`](crate::state_machine::Machine::wake): the store first, with a note
//! of what is to be done about the folder, then git, as with every removal. A process that ends in between begins again at
//! the next start, because what is banned is found by the lists alone. What is about a banned repository follows it, by
//! [`sweep`](super::moderation); the note stays until that is done, too.

use std::ops::Bound;

use super::Registrar;
use super::git_job_results::todo_of;
use super::io::{Summary, Todo};
use super::policy::lists::Lists;
use super::policy::{Mode, Rules};
use super::purgatory::{Waiting, What};
use super::repo_queue::Task;
use crate::limits;
use crate::nostr::event::{EventId, Stamp};
use crate::nostr::{PublicKey, kinds};
use crate::repo::catalog::Place;
use crate::repo::{Announcement, Identifier, RepoId, Site};

impl Registrar {
    /// There are other rules. What they say about this service itself must be what the old ones said.
    pub(super) fn change_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.review = self.catalog.repositories().map(|(repo, _)| repo).collect();
        for repo in self.find_bereft() {
            self.swept(repo);
        }
        self.drop_banned_held();
        self.review_some();
    }

    /// At the beginning: the lists may be others than those of the last process.
    pub(super) fn review_banned(&mut self) {
        let lists = &self.rules.lists;
        if !lists.banned.is_empty() {
            let repositories = self.catalog.repositories().map(|(repo, _)| repo);
            self.review = repositories.filter(|repo| lists.bans(repo)).collect();
        }
        self.find_bereft();
        self.drop_banned_held();
        self.review_some();
        for site in self.perhaps_behind() {
            self.lanes.add(Task::Align(site));
        }
    }

    /// Repositories that are hosted only because the operator keeps them, and of which it is not certain that they were when
    /// what they follow changed: nobody has noted that. Those that only one key speaks for, and that follow it, are certain.
    fn perhaps_behind(&self) -> Vec<Site> {
        let kept = self
            .catalog
            .repositories()
            .filter(|(_, slots)| slots.served.as_ref().is_some_and(|served| served.archived && !served.listed));
        let behind = kept.filter(|(repo, slots)| {
            let Some(family) = self.catalog.family(&repo.identifier) else { return false };
            let mut states = family.states_by_author();
            let lonely = family.announcements().count() == 1;
            let follows = states.next().is_some_and(|(_, states)| states.served.is_some()) && states.next().is_none();
            let exception = slots.served.as_ref().is_some_and(|served| served.exception);
            exception || !lonely || !follows
        });
        behind.map(|(repo, _)| Site::Announced(repo)).collect()
    }

    /// How many repositories that are here have no place by these lists.
    #[must_use]
    pub fn banned_by(&self, lists: &Lists) -> usize {
        self.catalog.repositories().filter(|(repo, _)| lists.bans(repo)).count()
    }

    /// Looks at the next few repositories.
    pub(super) fn review_some(&mut self) {
        for _ in 0..limits::REVIEW_SLICE {
            let Some(repo) = self.review.pop_front() else { break };
            if self.rules.lists.bans(&repo) {
                self.banish(&repo);
            } else {
                self.look_at_archive(&repo);
            }
        }
    }

    /// The next banned repository that has gone and that others may still be about, behind another. Nobody can tell while
    /// repositories are to be looked at.
    #[must_use]
    pub fn bereft(&self, behind: Option<&RepoId>) -> Option<&RepoId> {
        let rest = (behind.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.bereft.range::<RepoId, _>(rest).next().filter(|_| self.review.is_empty())
    }

    /// Finds out which banned repositories have gone, by the notes about their folders, and by name. Gives those that are
    /// not banned any more.
    fn find_bereft(&mut self) -> Vec<RepoId> {
        let noted = self.todos.iter().filter_map(|todo| match (&todo.site, todo.pull) {
            (Site::Announced(repo), None) => Some(repo),
            _ => None,
        });
        let gone = noted.chain(self.rules.lists.banned.repositories()).filter(|repo| self.is_banished(repo));
        let gone = gone.cloned().collect();
        let before = std::mem::replace(&mut self.bereft, gone);
        before.difference(&self.bereft).cloned().collect()
    }

    /// Whether a repository is banned and has gone.
    fn is_banished(&self, repo: &RepoId) -> bool {
        let lists = &self.rules.lists;
        let banned = lists.bans(repo) || lists.unwanted.authors.contains(&repo.owner);
        banned && self.rules.mode == Mode::Grasp && self.catalog.announcement(repo).is_none()
    }

    /// If a repository has just been banished, what is about it is looked for.
    pub(super) fn bereave(&mut self, repo: &RepoId) {
        if self.is_banished(repo) && self.bereft.insert(repo.clone()) {
            self.todo(Todo { site: Site::Announced(repo.clone()), pull: None });
        }
    }

    /// Whether a note must outlive the work on the folder.
    pub(super) fn is_bereft(&self, todo: &Todo) -> bool {
        todo.pull.is_none() && matches!(&todo.site, Site::Announced(repo) if self.bereft.contains(repo))
    }

    /// Nothing is left to look for: when nothing is left to do about the folder either, the note goes.
    pub(super) fn swept(&mut self, repo: RepoId) {
        self.bereft.remove(&repo);
        let task = Task::Align(Site::Announced(repo));
        if self.todos.contains(&todo_of(&task)) {
            self.lanes.add(task);
        }
    }

    /// What waits and is not wanted any more. That is bounded, because what waits is.
    fn drop_banned_held(&mut self) {
        let lists = &self.rules.lists;
        let unwanted = |(id, waiting): &(EventId, &Waiting)| {
            let banned = match &waiting.what {
                What::Announcement(repo) => lists.bans(repo),
                What::State(_) => false,
                // One of which nothing may be offered here.
                What::PullRequest(_, sites) => !sites.is_empty() && sites.iter().all(|site| lists.bans(site.repo())),
            };
            banned || lists.bans_event(waiting.author, *id)
        };
        let gone: Vec<EventId> = self.purgatory.iter().filter(unwanted).map(|(id, _)| id).collect();
        for id in gone {
            self.unhold(id);
        }
    }

    /// A repository has no place here: its announcements go, and the states that speak for nothing else here.
    fn banish(&mut self, repo: &RepoId) {
        let slots = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (place, announcement) in [(Place::Served, slots.served), (Place::Held, slots.held)] {
            if let Some(Announcement { stamp, .. }) = announcement {
                self.remove(&summary(repo.owner, &repo.identifier, kinds::ANNOUNCEMENT, stamp), place);
            }
        }
        let Some(family) = self.catalog.family(&repo.identifier) else { return };
        let strict = self.rules.strict_maintainers;
        let mute = family.states_by_author().filter(|(author, _)| family.hosts_of(**author, strict).next().is_none());
        let mut gone = Vec::new();
        for (author, states) in mute {
            gone.extend(states.served.map(|stamp| (*author, stamp, Place::Served)));
            gone.extend(states.held.iter().map(|stamp| (*author, *stamp, Place::Held)));
        }
        for (author, stamp, place) in gone {
            self.remove(&summary(author, &repo.identifier, kinds::STATE, stamp), place);
        }
    }

    /// Whether a repository is kept although it does not name this service may have changed.
    fn look_at_archive(&mut self, repo: &RepoId) {
        let slots = self.catalog.announcement(repo).cloned().unwrap_or_default();
        for (place, announcement) in [(Place::Served, slots.served), (Place::Held, slots.held)] {
            let Some(announcement) = announcement else { continue };
            let archived = self.rules.lists.archive.keeps(&announcement);
            let id = announcement.stamp.id;
            if archived == announcement.archived {
                continue;
            }
            let announcement = Announcement { archived, ..announcement };
            if place == Place::Held && !announcement.is_hosted() {
                self.unhold(id);
            } else {
                self.put_announcement(place, announcement);
            }
        }
    }
}

fn summary(author: PublicKey, identifier: &Identifier, kind: u16, stamp: Stamp) -> Summary {
    let identifier = Some(identifier.clone());
    Summary { id: stamp.id, author, kind, created_at: stamp.created_at, identifier, targets: Vec::new(), tip: None }
}

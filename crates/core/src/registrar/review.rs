//! The operator has changed the rules: what they ban goes, what they keep is hosted, and nothing is left that would keep
//! it away when they change again.
//!
//! All repositories are looked at again in slices, by [`wake`](crate::machine::Machine::wake): the store first, with a note
//! of what is to be done about the folder, then git, as with every removal. A process that ends in between begins again at
//! the next start, because what is banned is found by the lists alone.

use super::Registrar;
use super::io::Summary;
use super::lanes::Task;
use super::policy::Rules;
use super::policy::lists::Lists;
use super::purgatory::{Waiting, What};
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

    /// A served event that an unwanted author has made, or that is unwanted itself.
    pub(super) fn unwanted(&mut self, event: &Summary) {
        if self.rules.lists.bans_event(event.author, event.id) {
            self.remove(event, Place::Served);
        }
    }

    /// What waits and is not wanted any more. That is bounded, because what waits is.
    fn drop_banned_held(&mut self) {
        let lists = &self.rules.lists;
        let unwanted = |(id, waiting): &(EventId, &Waiting)| {
            let banned = |repo: &RepoId| lists.bans(repo);
            let repo = if let What::Announcement(repo) = &waiting.what { Some(repo) } else { None };
            lists.bans_event(waiting.author, *id) || repo.is_some_and(banned)
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

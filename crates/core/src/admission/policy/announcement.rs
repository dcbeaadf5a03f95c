//! Kind 30617: which repositories are hosted here.

use super::World;
use crate::disk_budget::Mark;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Known, Need, Refusal, Verdict};
use crate::nostr::{PublicKey, Signed, kinds, supersedes};
use crate::repo::catalog::{Place, Slots};
use crate::repo::{Announcement, Catalog, RepoId};

impl World<'_> {
    /// In this order (G1-09): it names this service and that is enough; the operator keeps it anyway; somebody who is
    /// hosted here names its author, or the operator kept an older version.
    pub(super) fn announcement(self, event: &Signed) -> Verdict {
        let Some(new) = self.rules.announcement(event) else {
            return Verdict::Refuse(Refusal::Identifier);
        };
        let empty = Slots::default();
        let slots = self.catalog.announcement(&new.repo).unwrap_or(&empty);
        let bytes = event.json().len();
        let obstacle = self.obstacle(&new, slots);
        match obstacle {
            None => self.hosted(&new, slots, bytes),
            // So that the chain of maintainers can be walked (G1-08): it is hosted if it names this service.
            Some(_) if self.is_invited(&new) && new.listed => self.hosted(&new, slots, bytes),
            Some(_) if self.is_invited(&new) => Verdict::Accept,
            Some(_) if !new.listed && is_left(self.catalog, &new.repo) => Verdict::Accept,
            Some(_) if withdraws(self.catalog, &new) => Verdict::Refuse(Refusal::Delisted),
            Some(refusal) => Verdict::Refuse(refusal),
        }
    }

    /// Whether an event ends the hosting of a repository.
    pub(super) fn takes_away(self, event: &Event) -> bool {
        event.kind == kinds::ANNOUNCEMENT
            && self.rules.announcement(event).is_some_and(|new| withdraws(self.catalog, &new))
    }

    /// What keeps a repository from being hosted for its own sake.
    fn obstacle(self, new: &Announcement, slots: &Slots<Announcement>) -> Option<Refusal> {
        let lists = &self.rules.lists;
        // What is here stays: whitelists are about what is to come.
        let here = slots.served.as_ref().is_some_and(Announcement::is_hosted);
        if new.archived || (new.listed && here) {
            None
        } else if !new.listed {
            Some(Refusal::NotListed)
        } else if lists.read_only {
            Some(Refusal::NotArchived)
        } else if lists.wanted.as_ref().is_some_and(|wanted| !wanted.contains(&new.repo)) {
            Some(Refusal::NotWhitelisted)
        } else {
            None
        }
    }

    /// A replacement of what is served is served, anything else waits for git data.
    fn hosted(self, new: &Announcement, slots: &Slots<Announcement>, bytes: usize) -> Verdict {
        if slots.served.as_ref().is_some_and(Announcement::is_hosted) {
            return Verdict::Accept;
        }
        match &slots.held {
            Some(held) if !supersedes(new.stamp, held.stamp) => Verdict::Known(Known::Superseded),
            Some(_) => Verdict::Hold(Need::GitData),
            None => match self.room_for(new.repo.owner) {
                Some(refusal) => Verdict::Refuse(refusal),
                None => self.hold(new.repo.owner, bytes, Need::GitData),
            },
        }
    }

    /// Why a new repository of this key is not taken, if it is not.
    fn room_for(self, owner: PublicKey) -> Option<Refusal> {
        if self.space >= Mark::Soft {
            return Some(Refusal::NoNewRepositories);
        }
        let most = self.rules.quotas.repositories_per_key?;
        (self.catalog.hosted_by(owner) >= most).then_some(Refusal::TooManyRepositories(most))
    }

    /// Whether a repository of the same name that is hosted here is kept, or is to be kept, by its author (G1-08).
    fn is_invited(self, new: &Announcement) -> bool {
        let family = self.catalog.family(&new.repo.identifier);
        family.is_some_and(|family| family.is_invited(new.repo.owner, self.rules.strict_maintainers))
    }
}

/// Whether an announcement takes the repository away from here: an older version named this service, or waited to be
/// hosted, this one does not (G1-10, G1-14). What the operator keeps stays.
pub(in crate::admission) fn withdraws(catalog: &Catalog, new: &Announcement) -> bool {
    let hosted = |(place, old): (Place, &Option<Announcement>)| {
        old.as_ref().is_some_and(|old| is_withdrawn(place, old) && supersedes(new.stamp, old.stamp))
    };
    !new.is_hosted()
        && catalog
            .announcement(&new.repo)
            .is_some_and(|slots| [(Place::Served, &slots.served), (Place::Held, &slots.held)].into_iter().any(hosted))
}

/// Whether an announcement that is here ends with one that takes the repository away.
pub(in crate::admission) fn is_withdrawn(place: Place, old: &Announcement) -> bool {
    place == Place::Held || old.listed
}

/// Whether a repository is, or was, kept by the operator alone. Its newer announcements are served whatever they name, so
/// that nobody takes an old one for what holds: if they lead away from what is archived, it is left alone as it is.
pub(in crate::admission) fn is_left(catalog: &Catalog, repo: &RepoId) -> bool {
    let served = catalog.announcement(repo).and_then(|slots| slots.served.as_ref());
    served.is_some_and(|served| !served.listed && !served.exception)
}

//! Kind 30617: which repositories are hosted here.

use super::World;
use crate::nostr::reason::{Known, Need, Refusal, Verdict};
use crate::nostr::{PublicKey, Signed, supersedes};
use crate::repo::catalog::Slots;
use crate::repo::{Announcement, Catalog};
use crate::storage::Mark;

impl World<'_> {
    pub(super) fn announcement(self, event: &Signed) -> Verdict {
        let Some(new) = Announcement::read(event, &self.rules.service) else {
            return Verdict::Refuse(Refusal::Identifier);
        };
        let empty = Slots::default();
        let slots = self.catalog.announcement(&new.repo).unwrap_or(&empty);
        if new.listed { self.listed(&new, slots, event.json().len()) } else { self.unlisted(&new) }
    }

    /// It names this service: a replacement of what is served is served, anything else waits for git data.
    fn listed(self, new: &Announcement, slots: &Slots<Announcement>, bytes: usize) -> Verdict {
        if slots.served.as_ref().is_some_and(|served| served.listed) {
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

    /// It does not name this service: wanted only if a repository of the same name that is hosted here is kept, or is to
    /// be kept, by its author (G1-08), so that the chain of maintainers can be walked.
    fn unlisted(self, new: &Announcement) -> Verdict {
        let family = self.catalog.family(&new.repo.identifier);
        if family.is_some_and(|family| family.is_invited(new.repo.owner, self.rules.strict_maintainers)) {
            Verdict::Accept
        } else if withdraws(self.catalog, new) {
            Verdict::Refuse(Refusal::Delisted)
        } else {
            Verdict::Refuse(Refusal::NotListed)
        }
    }
}

/// Whether an announcement takes the repository away from here: an older version named this service, this one does not
/// (G1-10, G1-14).
pub(in crate::registrar) fn withdraws(catalog: &Catalog, new: &Announcement) -> bool {
    let hosted =
        |old: &Option<Announcement>| old.as_ref().is_some_and(|old| old.listed && supersedes(new.stamp, old.stamp));
    !new.listed && catalog.announcement(&new.repo).is_some_and(|slots| hosted(&slots.served) || hosted(&slots.held))
}

//! What sync should follow: the hosted repositories of a name, with everything that says where their events are.
//!
//! The value depends on the announcements of the name alone, so [`Output::Interest`](super::io::Output::Interest) rings
//! whenever one of them comes, goes or is released, and needs not ring otherwise.

use std::collections::{BTreeMap, BTreeSet};

use super::Registrar;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::catalog::{Family, Place};
use crate::repo::{Announcement, Identifier, RepoId, Site};
use crate::sync::io::{Followed, Seq};

impl Registrar {
    /// What sync should follow under a name, now and in whole. `seq_of` says when a served announcement arrived.
    ///
    /// Of those that merely wait no more than [`limits::MAX_FOLLOWED_HELD`] are followed: they cost their authors nothing.
    #[must_use]
    pub fn followed(&self, identifier: &Identifier, mut seq_of: impl FnMut(EventId) -> Seq) -> Vec<Followed> {
        let Some(family) = self.catalog.family(identifier) else { return Vec::new() };
        // Members of one set name each other: each announcement is asked for once, not once for each of them.
        let mut seqs: BTreeMap<EventId, Seq> = BTreeMap::new();
        let mut seq_of = |id: EventId| *seqs.entry(id).or_insert_with(|| seq_of(id));
        let mut held = 0;
        let mut followed = Vec::new();
        for owner in family.hosts() {
            let repo = RepoId { owner, identifier: identifier.clone() };
            let place = if self.is_served(&Site::Announced(repo.clone())) { Place::Served } else { Place::Held };
            held += usize::from(place == Place::Held);
            if place == Place::Served || held <= limits::MAX_FOLLOWED_HELD {
                followed.push(self.follow_repository(family, repo, place, &mut seq_of));
            }
        }
        followed
    }

    fn follow_repository(
        &self,
        family: &Family,
        repo: RepoId,
        place: Place,
        seq_of: &mut impl FnMut(EventId) -> Seq,
    ) -> Followed {
        let keepers = keepers(family, repo.owner, self.rules.strict_maintainers);
        // Its own comes first, so that the others' many do not push its few out.
        let others = keepers.iter().filter(|keeper| **keeper != repo.owner);
        let slots = [&repo.owner].into_iter().chain(others).filter_map(|keeper| family.announcement(*keeper));
        let mut relays = Vec::new();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut seq = 0;
        for slots in slots.take(limits::MAX_FOLLOWED_ANNOUNCEMENTS) {
            for relay in slots.best().into_iter().flat_map(|best: &Announcement| &best.relays) {
                if relays.len() < limits::MAX_FOLLOWED_RELAYS && known.insert(relay) {
                    relays.push(relay.clone());
                }
            }
            seq = match (&slots.held, &slots.served) {
                // It has not arrived yet, and yet its relays count.
                (Some(_), _) => Seq::MAX,
                (None, Some(served)) => seq.max(seq_of(served.stamp.id)),
                (None, None) => seq,
            };
        }
        Followed { repo, place, relays, authors: keepers.into_iter().collect(), seq }
    }
}

/// Who keeps a repository: its maintainers, and its owner even if it has left that to others.
pub(super) fn keepers(family: &Family, owner: PublicKey, strict: bool) -> BTreeSet<PublicKey> {
    let mut keepers = BTreeSet::clone(&family.maintainers(owner, strict));
    keepers.insert(owner);
    keepers
}

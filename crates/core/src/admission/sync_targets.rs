//! What sync should follow: the hosted repositories of a name, with everything that says where their events are.
//!
//! The value depends on the announcements of the name alone, so [`Output::Interest`](super::io::Output::Interest) rings
//! whenever one of them comes, goes or is released, and needs not ring otherwise.

use std::collections::{BTreeMap, BTreeSet};

use super::Admission;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::catalog::{EventStatus, RepoGroup};
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};
use crate::sync::io::{RepoNeeds, Seq};

impl Admission {
    /// What sync should follow under a name, now and in whole. `seq_of` says when a served announcement arrived.
    ///
    /// Of those that merely wait no more than [`limits::MAX_FOLLOWED_HELD_REPOS`] are followed: they cost their authors nothing.
    #[must_use]
    pub fn repo_needs(&self, identifier: &Identifier, mut seq_of: impl FnMut(EventId) -> Seq) -> Vec<RepoNeeds> {
        let Some(group) = self.catalog.group(identifier) else { return Vec::new() };
        // Members of one set name each other: each announcement is asked for once, not once for each of them.
        let mut seqs: BTreeMap<EventId, Seq> = BTreeMap::new();
        let mut seq_of = |id: EventId| *seqs.entry(id).or_insert_with(|| seq_of(id));
        let mut held = 0;
        let mut followed = Vec::new();
        for owner in group.hosted_owners() {
            let repo = RepoId { owner, identifier: identifier.clone() };
            let status = if self.is_served(&RepoPath::Announced(repo.clone())) {
                EventStatus::Served
            } else {
                EventStatus::Held
            };
            held += usize::from(status == EventStatus::Held);
            if status == EventStatus::Served || held <= limits::MAX_FOLLOWED_HELD_REPOS {
                followed.push(self.follow_repository(group, repo, status, &mut seq_of));
            }
        }
        followed
    }

    fn follow_repository(
        &self,
        group: &RepoGroup,
        repo: RepoId,
        status: EventStatus,
        seq_of: &mut impl FnMut(EventId) -> Seq,
    ) -> RepoNeeds {
        let owner_and_maintainers = owner_and_maintainers(group, repo.owner, self.policy.strict_maintainers);
        // Its own comes first, so that the others' many do not push its few out.
        let others = owner_and_maintainers.iter().filter(|maintainer| **maintainer != repo.owner);
        let versions = [&repo.owner].into_iter().chain(others).filter_map(|maintainer| group.announcement(*maintainer));
        let mut relays = Vec::new();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut seq = 0;
        for versions in versions.take(limits::MAX_FOLLOWED_ANNOUNCEMENTS) {
            for relay in versions.newest().into_iter().flat_map(|best: &Announcement| &best.relays) {
                if relays.len() < limits::MAX_FOLLOWED_RELAYS && known.insert(relay) {
                    relays.push(relay.clone());
                }
            }
            seq = match (&versions.held, &versions.served) {
                // It has not arrived yet, and yet its relays count.
                (Some(_), _) => Seq::MAX,
                (None, Some(served)) => seq.max(seq_of(served.version.id)),
                (None, None) => seq,
            };
        }
        RepoNeeds { repo, status, relays, authors: owner_and_maintainers.into_iter().collect(), seq }
    }
}

/// Who keeps a repository: its maintainers, and its owner even if it has left that to others.
pub(super) fn owner_and_maintainers(group: &RepoGroup, owner: PublicKey, strict: bool) -> BTreeSet<PublicKey> {
    let mut owner_and_maintainers = BTreeSet::clone(&group.maintainers(owner, strict));
    owner_and_maintainers.insert(owner);
    owner_and_maintainers
}

//! What sync needs: the hosted repositories with an identifier, the relays that have their events, and the authors of
//! their states.
//!
//! The result depends on the announcements with the identifier only. So
//! [`AdmissionOutput::RepoNeedsChanged`](super::io::AdmissionOutput::RepoNeedsChanged) is sent when one of them is
//! added, removed or released, and at no other time.

use std::collections::{BTreeMap, BTreeSet};

use super::Admission;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::catalog::{EventStatus, RepoGroup};
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};
use crate::sync::io::{RepoNeeds, Seq};

impl Admission {
    /// Returns what sync needs for all repositories with an identifier. `seq_of` returns the sequence number of a
    /// served announcement.
    ///
    /// At most [`limits::MAX_FOLLOWED_HELD_REPOS`] repositories whose announcement is still held are followed, because
    /// any author can create such announcements without git data.
    #[must_use]
    pub fn repo_needs(&self, identifier: &Identifier, mut seq_of: impl FnMut(EventId) -> Seq) -> Vec<RepoNeeds> {
        let Some(group) = self.catalog.group(identifier) else { return Vec::new() };
        // Members of a maintainer set list each other. The cache reads each sequence number once.
        let mut seqs: BTreeMap<EventId, Seq> = BTreeMap::new();
        let mut seq_of = |id: EventId| *seqs.entry(id).or_insert_with(|| seq_of(id));
        let mut held = 0;
        let mut needs = Vec::new();
        for owner in group.hosted_owners() {
            let repo = RepoId { owner, identifier: identifier.clone() };
            let status = if self.is_served(&RepoPath::Announced(repo.clone())) {
                EventStatus::Served
            } else {
                EventStatus::Held
            };
            held += usize::from(status == EventStatus::Held);
            if status == EventStatus::Served || held <= limits::MAX_FOLLOWED_HELD_REPOS {
                needs.push(self.needs_of_repo(group, repo, status, &mut seq_of));
            }
        }
        needs
    }

    fn needs_of_repo(
        &self,
        group: &RepoGroup,
        repo: RepoId,
        status: EventStatus,
        seq_of: &mut impl FnMut(EventId) -> Seq,
    ) -> RepoNeeds {
        let authors = owner_and_maintainers(group, repo.owner, self.policy.strict_maintainers);
        // The owner's announcement comes first, so that its relays are not displaced by those of others.
        let others = authors.iter().filter(|maintainer| **maintainer != repo.owner);
        let announcements =
            [&repo.owner].into_iter().chain(others).filter_map(|maintainer| group.announcement(*maintainer));
        let mut relays = Vec::new();
        let mut known: BTreeSet<&str> = BTreeSet::new();
        let mut seq = 0;
        for versions in announcements.take(limits::MAX_FOLLOWED_ANNOUNCEMENTS) {
            for relay in versions.newest().into_iter().flat_map(relays_by_likelihood) {
                if relays.len() < limits::MAX_FOLLOWED_RELAYS && known.insert(relay) {
                    relays.push(relay.clone());
                }
            }
            seq = match (&versions.held, &versions.served) {
                // A held announcement has no sequence number yet, but its relays count.
                (Some(_), _) => Seq::MAX,
                (None, Some(served)) => seq.max(seq_of(served.version.id)),
                (None, None) => seq,
            };
        }
        RepoNeeds { repo, status, relays, authors: authors.into_iter().collect(), seq }
    }
}

/// Returns the relays of an announcement, GRASP servers first: these have the git data too.
fn relays_by_likelihood(announcement: &Announcement) -> Vec<&String> {
    let mut relays: Vec<&String> = announcement.relays.iter().collect();
    relays.sort_by_key(|relay| !announcement.clone.iter().any(|clone| is_same_grasp_server(relay, clone)));
    relays
}

/// Whether a relay URL and a clone URL name the same GRASP server: host, port and base path are equal, and the clone URL
/// continues with an `npub`.
fn is_same_grasp_server(relay: &str, clone: &str) -> bool {
    let address = |url: &str| url.split_once("://").map(|(_, address)| address.to_ascii_lowercase());
    let (Some(relay), Some(clone)) = (address(relay), address(clone)) else { return false };
    clone.strip_prefix(relay.trim_end_matches('/')).is_some_and(|path| path.starts_with("/npub1"))
}

/// Returns the maintainer set of a repository and its owner, who is not in it if another key leads the repository.
pub(super) fn owner_and_maintainers(group: &RepoGroup, owner: PublicKey, strict: bool) -> BTreeSet<PublicKey> {
    let mut keys = BTreeSet::clone(&group.maintainers(owner, strict));
    keys.insert(owner);
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grasp_server_is_recognised_by_its_clone_url() {
        let clone = "https://Git.example:8443/base/npub1abc/thing.git";
        for (relay, is_grasp) in [
            ("wss://git.example:8443/base", true),
            ("wss://git.example:8443/base/", true),
            ("wss://git.example:8443", false),
            ("wss://git.example/base", false),
            ("wss://it.example:8443/base", false),
            ("git.example:8443/base", false),
        ] {
            assert_eq!(is_same_grasp_server(relay, clone), is_grasp, "{relay}");
        }
    }
}

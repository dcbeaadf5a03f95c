//! Review of announcements that are here only by the maintainer exception: they are served, held or removed as the
//! announcements that lead to them change (docs/design/admission.md#maintainer-exception-announcements).
//!
//! After a change all of the identifier are reviewed, as many as fit into a turn, and the others in the next turns. That
//! one is removed later changes no authority: what no maintainer of a hosted repository lists is in no maintainer set.
//! Nothing is recorded for the review: after a start all of them are reviewed.

use std::collections::{BTreeMap, BTreeSet};

use super::Admission;
use super::io::{StoreWrite, Tombstone};
use crate::nostr::PublicKey;
use crate::repo::catalog::EventStatus;
use crate::repo::{Announcement, Identifier, RepoId};

/// Authors whose announcements by the maintainer exception are to be reviewed, by identifier.
#[derive(Debug, Default)]
pub(super) struct ExceptionReview {
    authors: BTreeMap<Identifier, BTreeSet<PublicKey>>,
}

impl ExceptionReview {
    /// Whether no review is left.
    pub(super) fn is_empty(&self) -> bool {
        self.authors.is_empty()
    }

    fn add(&mut self, identifier: &Identifier, authors: impl Iterator<Item = PublicKey>) {
        let mut authors = authors.peekable();
        if authors.peek().is_some() {
            self.authors.entry(identifier.clone()).or_default().extend(authors);
        }
    }

    fn next(&mut self) -> Option<RepoId> {
        let mut first = self.authors.first_entry()?;
        let owner = first.get_mut().pop_first();
        let identifier = first.key().clone();
        if first.get().is_empty() {
            first.remove();
        }
        Some(RepoId { owner: owner?, identifier })
    }
}

impl Admission {
    /// Reviews all announcements of the maintainer exception after a start, because a crash may have interrupted a review.
    pub(super) fn resume_exceptions(&mut self) {
        for (identifier, group) in self.catalog.groups() {
            self.exceptions.add(identifier, group.exceptions().iter().copied());
        }
    }

    /// Decides again about the announcements by the maintainer exception of the changed identifiers, and about those that
    /// earlier turns have left.
    pub(super) fn review_exceptions(&mut self) {
        for identifier in &self.changed_identifiers {
            if let Some(group) = self.catalog.group(identifier) {
                self.exceptions.add(identifier, group.exceptions().iter().copied());
            }
        }
        while !self.is_turn_used_up() {
            let Some(repo) = self.exceptions.next() else { break };
            self.catalog.work().add(1);
            self.review_exception(&repo);
        }
    }

    fn review_exception(&mut self, repo: &RepoId) {
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let Some(versions) = group.announcement(repo.owner) else { return };
        let served = versions.served.as_ref().filter(|served| served.is_exception && !served.is_hosted());
        let held = versions.held.as_ref().filter(|held| !held.is_hosted());
        if served.is_none() && held.is_none() {
            return;
        }
        match group.invitation(repo.owner, self.policy.strict_maintainers) {
            Some(EventStatus::Served) => {
                if let Some(held) = held.cloned() {
                    self.release_exception(held);
                }
            }
            Some(EventStatus::Held) => {}
            None => {
                let (served, held) = (served.map(|served| served.version), held.map(|held| held.version));
                if let Some(version) = served {
                    self.write(StoreWrite::Remove(version.id));
                    self.take_announcement(EventStatus::Served, repo, version.id);
                }
                if let Some(version) = held {
                    self.drop_held(version.id);
                }
                for version in served.into_iter().chain(held) {
                    // The announcement did not name this service. Without it, older ones that did must not be accepted
                    // again.
                    self.write(StoreWrite::AddTombstone(Tombstone::Withdrawn(repo.clone(), version)));
                }
            }
        }
    }

    /// Serves a held announcement by the maintainer exception. Those that it lists may be served then, too.
    fn release_exception(&mut self, held: Announcement) {
        let id = held.version.id;
        let identifier = held.repo.identifier.clone();
        self.purgatory.remove(id);
        self.take_announcement(EventStatus::Held, &held.repo, id);
        self.write(StoreWrite::Release(id));
        self.write(StoreWrite::MarkException(id));
        let listed = held.roles.members().to_vec();
        self.put_announcement(EventStatus::Served, Announcement { is_exception: true, ..held });
        if let Some(group) = self.catalog.group(&identifier) {
            self.exceptions.add(&identifier, listed.into_iter().filter(|key| group.exceptions().contains(key)));
        }
    }
}

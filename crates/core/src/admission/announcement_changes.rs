//! Changes of announcements in the catalog, and their consequences, which are handled once, at the end of an input.

use std::collections::BTreeSet;

use super::Admission;
use super::io::AdmissionOutput;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::repo::catalog::{AnnouncementChange, EventStatus};
use crate::repo::{Announcement, Catalog, RepoId};
use crate::time::Now;

impl Admission {
    /// Inserts an announcement into the catalog and records what is affected.
    pub(super) fn put_announcement(&mut self, status: EventStatus, announcement: Announcement) -> Option<Announcement> {
        let repo = announcement.repo.clone();
        let maintainers = announcement.roles.members().to_vec();
        let replaced = self.change_announcements(&repo, |catalog| catalog.put_announcement(status, announcement));
        for maintainer in maintainers {
            self.serve_early_requests(maintainer);
        }
        replaced
    }

    /// Removes an announcement from the catalog and records what is affected.
    pub(super) fn take_announcement(
        &mut self,
        status: EventStatus,
        repo: &RepoId,
        id: EventId,
    ) -> Option<Announcement> {
        self.change_announcements(repo, |catalog| catalog.take_announcement(status, repo, id))
    }

    /// Changes the announcements of one repository and records what is affected.
    fn change_announcements(
        &mut self,
        repo: &RepoId,
        change: impl FnOnce(&mut Catalog) -> AnnouncementChange,
    ) -> Option<Announcement> {
        let group = self.catalog.group(&repo.identifier);
        let newest = group.and_then(|group| group.newest_announcement(repo.owner));
        let old_members = newest.map(|newest| newest.roles.members().to_vec()).unwrap_or_default();
        let hosting_before = self.hosting(repo);
        let AnnouncementChange { previous, dependents } = change(&mut self.catalog);
        if dependents.is_some() || self.hosting(repo) != hosting_before {
            // The keys that reach an author do not depend on the author's own announcement, so they are the same before
            // and after the change.
            let dependents = dependents.unwrap_or_else(|| {
                let group = self.catalog.group(&repo.identifier);
                group.map(|group| group.keys_reaching(repo.owner)).unwrap_or_default()
            });
            self.record_hosting_change(repo, hosting_before, &old_members, &dependents);
            self.record_dependents(repo, &dependents);
        }
        self.touched_repos.insert(repo.clone());
        self.changed_identifiers.insert(repo.identifier.clone());
        previous
    }

    /// Records that a repository and those that depend on it are affected. If there are many, they are queued at once.
    fn record_dependents(&mut self, repo: &RepoId, dependents: &BTreeSet<PublicKey>) {
        self.catalog.work().add(dependents.len());
        self.affected_repos.insert(repo.clone());
        let Some(group) = self.catalog.group(&repo.identifier) else { return };
        let others = dependents.iter().copied().filter(|owner| *owner != repo.owner && group.is_hosted(*owner));
        if dependents.len() > limits::DEPENDENT_SLICE_REPOS {
            let others = others.collect();
            return self.queue_dependents(repo, others);
        }
        let repo_id = |owner: PublicKey| RepoId { owner, identifier: repo.identifier.clone() };
        self.affected_repos.extend(others.map(repo_id));
    }

    /// Handles the consequences of changed announcements, at the end of an input and once per identifier: announcements
    /// of the maintainer exception are reviewed, and sync and fetch are notified.
    pub(super) fn process_changes(&mut self, now: Now) {
        self.review_exceptions();
        while let Some(identifier) = self.changed_identifiers.pop_first() {
            // An upload to a repository may be accepted there now.
            let expected = self.uploads.by_identifier(&identifier).filter(|event| self.purgatory.get(*event).is_some());
            for event in expected.collect::<BTreeSet<_>>() {
                self.check_git_data(event);
            }
            self.emit(AdmissionOutput::RepoNeedsChanged(identifier.clone()));
            self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
        }
        self.process_hosting_changes(now);
        self.process_affected_repos();
    }
}

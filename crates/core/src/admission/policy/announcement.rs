//! Kind 30617: which repositories are hosted here.

use super::PolicyContext;
use crate::disk_budget::DiskLevel;
use crate::nostr::event::Event;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::{PublicKey, SignedEvent, kinds, supersedes};
use crate::repo::catalog::{EventStatus, Versions};
use crate::repo::{Announcement, Catalog, RepoId};

impl PolicyContext<'_> {
    /// In this order (G1-09): it names this service and that is enough; the operator keeps it anyway; somebody who is
    /// hosted here names its author, or the operator kept an older version.
    pub(super) fn announcement(self, event: &SignedEvent) -> Decision {
        let Some(new) = self.policy.announcement(event) else {
            return Decision::Reject(Rejection::InvalidIdentifier);
        };
        let empty = Versions::default();
        let versions = self.catalog.announcement(&new.repo).unwrap_or(&empty);
        let bytes = event.json().len();
        let hosting_rejection = self.hosting_rejection(&new, versions);
        match hosting_rejection {
            None => self.accept_or_hold(&new, versions, bytes),
            // So that the chain of maintainers can be walked (G1-08): it is hosted if it names this service.
            Some(_) if self.is_invited(&new) && new.is_listed => self.accept_or_hold(&new, versions, bytes),
            Some(_) if self.is_invited(&new) => Decision::Accept,
            Some(_) if !new.is_listed && is_archive_only(self.catalog, &new.repo) => Decision::Accept,
            Some(_) if withdraws(self.catalog, &new) => Decision::Reject(Rejection::Delisted),
            Some(rejection) => Decision::Reject(rejection),
        }
    }

    /// Whether an event ends the hosting of a repository.
    pub(super) fn withdraws_repository(self, event: &Event) -> bool {
        event.kind == kinds::ANNOUNCEMENT
            && self.policy.announcement(event).is_some_and(|new| withdraws(self.catalog, &new))
    }

    /// What keeps a repository from being hosted for its own sake.
    fn hosting_rejection(self, new: &Announcement, versions: &Versions<Announcement>) -> Option<Rejection> {
        let lists = &self.policy.lists;
        // What is here stays: whitelists are about what is to come.
        let here = versions.served.as_ref().is_some_and(Announcement::is_hosted);
        if new.is_archived || (new.is_listed && here) {
            None
        } else if !new.is_listed {
            Some(Rejection::NotListed)
        } else if lists.is_read_only {
            Some(Rejection::NotArchived)
        } else if lists.whitelist.as_ref().is_some_and(|wanted| !wanted.contains(&new.repo)) {
            Some(Rejection::NotWhitelisted)
        } else {
            None
        }
    }

    /// A replacement of what is served is served, anything else waits for git data.
    fn accept_or_hold(self, new: &Announcement, versions: &Versions<Announcement>, bytes: usize) -> Decision {
        if versions.served.as_ref().is_some_and(Announcement::is_hosted) {
            return Decision::Accept;
        }
        match &versions.held {
            Some(held) if !supersedes(new.version, held.version) => Decision::Known(KnownAs::Superseded),
            Some(_) => Decision::Hold(AwaitedData::GitData),
            None => match self.new_repo_rejection(new.repo.owner) {
                Some(rejection) => Decision::Reject(rejection),
                None => self.hold(new.repo.owner, bytes, AwaitedData::GitData),
            },
        }
    }

    /// Why a new repository of this key is not taken, if it is not.
    fn new_repo_rejection(self, owner: PublicKey) -> Option<Rejection> {
        if self.disk_level >= DiskLevel::Soft {
            return Some(Rejection::NoNewRepositories);
        }
        let most = self.policy.quotas.repositories_per_key?;
        (self.catalog.hosted_count(owner) >= most).then_some(Rejection::TooManyRepositories(most))
    }

    /// Whether a repository of the same name that is hosted here is kept, or is to be kept, by its author (G1-08).
    fn is_invited(self, new: &Announcement) -> bool {
        let group = self.catalog.group(&new.repo.identifier);
        group.is_some_and(|group| group.is_invited(new.repo.owner, self.policy.strict_maintainers))
    }
}

/// Whether an announcement takes the repository away from here: an older version named this service, or waited to be
/// hosted, this one does not (G1-10, G1-14). What the operator keeps stays.
pub(in crate::admission) fn withdraws(catalog: &Catalog, new: &Announcement) -> bool {
    let hosted = |(status, old): (EventStatus, &Option<Announcement>)| {
        old.as_ref().is_some_and(|old| is_withdrawn(status, old) && supersedes(new.version, old.version))
    };
    !new.is_hosted()
        && catalog.announcement(&new.repo).is_some_and(|versions| {
            [(EventStatus::Served, &versions.served), (EventStatus::Held, &versions.held)].into_iter().any(hosted)
        })
}

/// Whether an announcement that is here ends with one that takes the repository away.
pub(in crate::admission) fn is_withdrawn(status: EventStatus, old: &Announcement) -> bool {
    status == EventStatus::Held || old.is_listed
}

/// Whether a repository is, or was, kept by the operator alone. Its newer announcements are served whatever they name, so
/// that nobody takes an old one for what holds: if they lead away from what is archived, it is left alone as it is.
pub(in crate::admission) fn is_archive_only(catalog: &Catalog, repo: &RepoId) -> bool {
    let served = catalog.announcement(repo).and_then(|versions| versions.served.as_ref());
    served.is_some_and(|served| !served.is_listed && !served.is_exception)
}

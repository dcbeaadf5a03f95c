//! Announcements (kind 30617): which repositories are hosted here.

use super::{PolicyContext, Submission};
use crate::disk_budget::DiskLevel;
use crate::limits;
use crate::nostr::event::EventId;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::supersedes;
use crate::repo::catalog::{EventStatus, Versions};
use crate::repo::{Announcement, Catalog, RepoId};

/// Whether another announcement with an identifier is within the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::admission) enum IdentifierSpace {
    /// It is.
    Free,
    /// It is if this held announcement is removed.
    After(EventId),
    /// It is not.
    Full,
}

impl PolicyContext<'_> {
    /// Decides about an announcement, in this order: it names this service and no rule prevents hosting it, or
    /// the operator archives the repository; a maintainer of a hosted repository lists its author; the repository was
    /// hosted only as an archive (docs/protocol.md#order-of-evaluation).
    pub(super) fn announcement(self, submission: &Submission<'_>) -> Decision {
        let Some(new) = &submission.announcement else {
            return Decision::Reject(Rejection::InvalidIdentifier);
        };
        let empty = Versions::default();
        let versions = self.catalog.announcement(&new.repo).unwrap_or(&empty);
        match self.hosting_rejection(new, versions) {
            None => self.accept_or_hold(submission, new, versions),
            Some(rejection) => self.exception(submission, new, versions, rejection),
        }
    }

    /// Decides about an announcement that does not make this service host the repository by itself. Maintainer exception:
    /// it is accepted so that maintainer sets can be resolved. It is hosted if it names this service. Otherwise it is
    /// served only if the announcements that lead to it are: a held one can be published without git data, and must not
    /// let anything be served that others can refer to.
    fn exception(
        self,
        submission: &Submission<'_>,
        new: &Announcement,
        versions: &Versions<Announcement>,
        rejection: Rejection,
    ) -> Decision {
        let group = self.catalog.group(&new.repo.identifier);
        let strict = self.policy.strict_maintainers;
        let invitation = group.and_then(|group| group.invitation(new.repo.owner, strict));
        if invitation.is_some() && new.is_listed {
            return self.accept_or_hold(submission, new, versions);
        }
        if let Some(status) = invitation {
            if group.is_some_and(|group| !group.has_exception_capacity(new.repo.owner, strict)) {
                return Decision::Reject(Rejection::TooManyExceptions);
            }
            return match status {
                EventStatus::Served => Decision::Accept,
                EventStatus::Held => self.hold_until_invited(submission, new, versions),
            };
        }
        if !new.is_listed && is_archive_only(self.catalog, &new.repo) {
            Decision::Accept
        } else if withdraws(self.catalog, new) {
            Decision::Reject(Rejection::Delisted)
        } else {
            Decision::Reject(rejection)
        }
    }

    /// Returns whether an announcement fits into the limit of announcements with its identifier. Those by the maintainer
    /// exception have a limit of their own, so that they cannot displace repositories.
    pub(in crate::admission) fn identifier_space(self, new: &Announcement) -> IdentifierSpace {
        let RepoId { owner, identifier } = &new.repo;
        let is_free = self.catalog.group(identifier).is_none_or(|group| {
            group.hosted_count() < limits::MAX_ANNOUNCEMENTS_PER_IDENTIFIER
                || group.newest_announcement(*owner).is_some_and(Announcement::is_hosted)
        });
        if is_free || !new.is_hosted() {
            return IdentifierSpace::Free;
        }
        let evicted = self.purgatory.oldest_evictable(identifier, |id| self.is_in_transfer(id));
        evicted.map_or(IdentifierSpace::Full, IdentifierSpace::After)
    }

    /// Returns the reason why the announcement alone does not make this service host the repository.
    fn hosting_rejection(self, new: &Announcement, versions: &Versions<Announcement>) -> Option<Rejection> {
        let lists = &self.policy.lists;
        // Repositories that are hosted already stay hosted: the whitelist applies to new ones.
        let is_hosted = versions.served.as_ref().is_some_and(Announcement::is_hosted);
        if new.is_archived || (new.is_listed && is_hosted) {
            None
        } else if !new.is_listed {
            let service = &self.policy.service;
            Some(Rejection::NotListed { clone: service.clone_url(&new.repo), relay: service.relay_url() })
        } else if lists.is_read_only {
            Some(Rejection::NotArchived)
        } else if lists.whitelist.as_ref().is_some_and(|whitelist| !whitelist.contains(&new.repo)) {
            Some(Rejection::NotWhitelisted)
        } else {
            None
        }
    }

    /// Accepts a replacement of a served announcement of a hosted repository; holds any other announcement until git
    /// data arrives.
    fn accept_or_hold(
        self,
        submission: &Submission<'_>,
        new: &Announcement,
        versions: &Versions<Announcement>,
    ) -> Decision {
        if versions.served.as_ref().is_some_and(Announcement::is_hosted) {
            return Decision::Accept;
        }
        match &versions.held {
            Some(held) if !supersedes(new.version, held.version) => {
                Decision::Known(KnownAs::superseded(new.version, held.version))
            }
            Some(held) if held.is_hosted() => self.hold(submission, AwaitedData::GitData),
            _ => match self.new_repo_rejection(new) {
                Some(rejection) => Decision::Reject(rejection),
                None => self.hold(submission, AwaitedData::GitData),
            },
        }
    }

    /// Holds an announcement that no served announcement leads to yet.
    fn hold_until_invited(
        self,
        submission: &Submission<'_>,
        new: &Announcement,
        versions: &Versions<Announcement>,
    ) -> Decision {
        match &versions.held {
            Some(held) if !supersedes(new.version, held.version) => {
                Decision::Known(KnownAs::superseded(new.version, held.version))
            }
            _ => self.hold(submission, AwaitedData::Invitation),
        }
    }

    /// Returns the reason why a new repository is not accepted.
    fn new_repo_rejection(self, new: &Announcement) -> Option<Rejection> {
        let owner = new.repo.owner;
        if self.disk_level >= DiskLevel::Soft {
            return Some(Rejection::NoNewRepositories);
        }
        if self.identifier_space(new) == IdentifierSpace::Full {
            return Some(Rejection::TooManyWithIdentifier);
        }
        let limit = self.policy.quotas.repositories_per_key?;
        (self.catalog.hosted_count(owner) >= limit).then_some(Rejection::TooManyRepositories(limit))
    }
}

/// Whether an announcement withdraws its repository from this service: an older version named this service or was held,
/// and this one does not name it. A repository that the operator archives is not withdrawn
/// (docs/protocol.md#de-listing-and-withdrawal).
pub(in crate::admission) fn withdraws(catalog: &Catalog, new: &Announcement) -> bool {
    let is_replaced = |(status, old): (EventStatus, &Option<Announcement>)| {
        old.as_ref().is_some_and(|old| is_withdrawn(status, old) && supersedes(new.version, old.version))
    };
    !new.is_hosted()
        && catalog.announcement(&new.repo).is_some_and(|versions| {
            [(EventStatus::Served, &versions.served), (EventStatus::Held, &versions.held)].into_iter().any(is_replaced)
        })
}

/// Whether an older announcement is removed by one that withdraws the repository.
pub(in crate::admission) fn is_withdrawn(status: EventStatus, old: &Announcement) -> bool {
    (status == EventStatus::Held && old.is_hosted()) || old.is_listed
}

/// Whether the served announcement does not name this service and was not accepted by the maintainer exception, that
/// is, the repository is or was hosted as an archive only. Newer announcements of such a repository are served whatever
/// they name, so that an outdated one is not taken for the current one. If they are outside the archive, the repository
/// is kept as it is.
pub(in crate::admission) fn is_archive_only(catalog: &Catalog, repo: &RepoId) -> bool {
    let served = catalog.announcement(repo).and_then(|versions| versions.served.as_ref());
    served.is_some_and(|served| !served.is_listed && !served.is_exception)
}

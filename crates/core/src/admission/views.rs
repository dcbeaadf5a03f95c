//! What others may want to know of the registrar's books.

use super::Registrar;
use super::io::Upload;
use super::purgatory::{Waiting, What};
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Event, EventId};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Announcement, RepoId, Site};

/// A hosted repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hosted {
    /// Whether its announcement is served, or waits for git data.
    pub place: Place,
    /// The sites whose objects it may read.
    pub lenders: Vec<Site>,
}

impl Registrar {
    /// A repository, if it is hosted.
    #[must_use]
    pub fn hosted(&self, repo: &RepoId) -> Option<Hosted> {
        if !self.is_hosted(repo) {
            return None;
        }
        let site = Site::Announced(repo.clone());
        let place = if self.is_served(&site) { Place::Served } else { Place::Held };
        Some(Hosted { place, lenders: self.lenders_of(&site) })
    }

    /// The events that wait for git data at a site. Those whose time is over are not shown.
    #[must_use]
    pub fn waiting_at(&self, site: &Site) -> Vec<(EventId, &Waiting)> {
        let states: Vec<EventId> = self.states_for(site).into_iter().map(|(id, _)| id).collect();
        let here = |id: EventId, waiting: &Waiting| match &waiting.what {
            What::Announcement(repo) => *site == Site::Announced(repo.clone()),
            What::State(_) => states.contains(&id),
            What::PullRequest(_, sites) => sites.contains(site),
        };
        let waiting = self.purgatory.of_name(site.identifier());
        waiting.filter(|(id, waiting)| !waiting.is_dormant() && here(*id, waiting)).collect()
    }

    /// The uploads that wait for their events.
    pub fn uploads(&self) -> impl Iterator<Item = &Upload> {
        self.uploads.iter()
    }

    /// How much work for git waits for its turn.
    #[must_use]
    pub fn in_lanes(&self) -> usize {
        self.lanes.waiting()
    }

    /// Whether nothing is under way in the git room, nothing waits for it, and all repositories are as the rules want them.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lanes.is_idle() && self.asked.is_none() && self.asking.is_empty() && self.review.is_empty()
    }

    /// Whether anybody may push to and fetch from a site.
    #[must_use]
    pub fn is_open(&self, site: &Site) -> bool {
        match site {
            Site::Announced(repo) => self.is_hosted(repo),
            Site::Submitted(repo) => self.rules.submissions && !self.rules.lists.bans(repo),
        }
    }

    pub(super) fn is_hosted(&self, repo: &RepoId) -> bool {
        self.catalog.family(&repo.identifier).is_some_and(|family| family.is_hosted(repo.owner))
    }

    /// Whether a site's announcement is served.
    pub(super) fn is_served(&self, site: &Site) -> bool {
        let Site::Announced(repo) = site else { return false };
        self.catalog.announcement(repo).is_some_and(|slots| slots.served.as_ref().is_some_and(Announcement::is_hosted))
    }

    pub(super) fn may_speak(&self, event: &Event, repo: &RepoId) -> bool {
        let strict = self.rules.strict_maintainers;
        let family = self.catalog.family(&repo.identifier);
        event.tag("d") == Some(repo.identifier.as_str())
            && self.is_hosted(repo)
            && family.is_some_and(|family| family.maintainers(repo.owner, strict).contains(&event.pubkey))
    }

    /// The states that speak for a site, the best first, as many as are looked at.
    #[must_use]
    pub fn states_for(&self, site: &Site) -> Vec<(EventId, Place)> {
        let Site::Announced(repo) = site else { return Vec::new() };
        let family = self.catalog.family(&repo.identifier).into_iter();
        let states = family.flat_map(|family| family.states_for(repo.owner, self.rules.strict_maintainers));
        // However many wait, what is served counts.
        let looked_at =
            |(nth, (_, place)): &(usize, (_, Place))| *nth < limits::MAX_CANDIDATES || *place == Place::Served;
        states.enumerate().filter(looked_at).map(|(_, (stamp, place))| (stamp.id, place)).collect()
    }

    /// The sites whose objects a site may read: those of the hosted members of its own maintainer set.
    pub(super) fn lenders_of(&self, site: &Site) -> Vec<Site> {
        let Site::Announced(repo) = site else { return Vec::new() };
        let family = self.catalog.family(&repo.identifier).into_iter();
        let owners = family.flat_map(|family| family.lenders(repo.owner, self.rules.strict_maintainers));
        owners.map(|owner| Site::Announced(RepoId { owner, identifier: repo.identifier.clone() })).collect()
    }

    /// The held announcements by which a site is hosted and states may speak for it.
    pub(super) fn announcements_behind(&self, site: &Site) -> Vec<EventId> {
        let Site::Announced(repo) = site else { return Vec::new() };
        let Some(family) = self.catalog.family(&repo.identifier) else { return Vec::new() };
        let members = family.maintainers(repo.owner, self.rules.strict_maintainers);
        let slots = members.iter().chain([&repo.owner]).filter_map(|member| family.announcement(*member));
        slots.filter_map(|slots| slots.held.as_ref()).map(|held| held.stamp.id).collect()
    }

    /// Whether a pull request may be pushed to a site: to where it may be served, or to another maintainer's repository
    /// whose objects are read there.
    pub(super) fn takes(&self, site: &Site, sites: &[Site]) -> bool {
        sites.contains(site) || sites.iter().any(|target| self.lenders_of(target).contains(site))
    }

    /// The sites at which a pull request may be served.
    pub(super) fn sites_of(&self, author: PublicKey, request: &PullRequest) -> Vec<Site> {
        let mut sites: Vec<Site> = request
            .targets
            .iter()
            .filter(|repo| self.is_hosted(repo))
            .take(limits::MAX_LOOKS)
            .map(|repo| Site::Announced(repo.clone()))
            .collect();
        sites.extend(self.rules.submissions_of(author, request));
        sites.sort_unstable();
        sites.dedup();
        sites
    }
}

//! What the hunt should look for: the git data that the held events of a name need, and where it may be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Registrar;
use super::purgatory::{Search, Waiting, What};
use super::sync_targets::keepers;
use crate::fetch::io::{Kept, Need, Place, Quarry, Sought};
use crate::limits;
use crate::nostr::Signed;
use crate::nostr::event::EventId;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::is_oid;
use crate::repo::{Announcement, Identifier, RepoId, Site, State};

impl Registrar {
    /// What the hunt should look for under a name, now and in whole. `read` gives the text of a held event.
    ///
    /// What several repositories of a maintainer set need goes to one of them; the others copy it or read it there.
    #[must_use]
    pub fn quarries(
        &self,
        identifier: &Identifier,
        mut read: impl FnMut(EventId) -> Option<Arc<Signed>>,
    ) -> Vec<Quarry> {
        let mut waiting: Vec<(EventId, &Waiting)> = self.purgatory.of_name(identifier).collect();
        waiting.sort_by_key(|(id, waiting)| (waiting.is_dormant(), waiting.deadline, *id));
        let mut quarries: BTreeMap<Site, Vec<Need>> = BTreeMap::new();
        let mut known: BTreeMap<Site, Vec<Place>> = BTreeMap::new();
        let mut count = 0;
        for (id, waiting) in waiting {
            if count >= limits::MAX_NEEDS {
                break;
            }
            let homes = self.homes(identifier, waiting);
            let Some(home) = homes.iter().find(|home| quarries.contains_key(*home)).or(homes.first()) else { continue };
            let Some(event) = read(id) else { continue };
            let places = known.entry(home.clone()).or_insert_with(|| self.places_of(home.repo()));
            if let Some(need) = self.need(&event, waiting, places) {
                count += 1;
                quarries.entry(home.clone()).or_default().push(need);
            }
        }
        quarries.into_iter().map(|(site, needs)| Quarry { site, needs }).collect()
    }

    /// The sites of a name to which what an event waits for may go, the best first.
    fn homes(&self, identifier: &Identifier, waiting: &Waiting) -> Vec<Site> {
        match &waiting.what {
            // It names no object.
            What::Announcement(_) => Vec::new(),
            What::State(_) => self.looks_of(identifier, waiting.author),
            What::PullRequest(_, sites) => {
                let open: Vec<Site> = sites.iter().filter(|site| self.is_open(site)).cloned().collect();
                // One that concerns several names is looked for under the first of them; the others copy it.
                let name = open.first().map(|site| site.identifier().clone());
                let here = open.into_iter().filter(|site| site.identifier() == identifier);
                if name.as_ref() == Some(identifier) { here.collect() } else { Vec::new() }
            }
        }
    }

    fn need(&self, event: &Signed, waiting: &Waiting, places: &[Place]) -> Option<Need> {
        let (what, oids, own) = match &waiting.what {
            What::Announcement(_) => return None,
            What::State(_) => {
                let state = State::read(event).filter(State::is_satisfiable)?;
                (Sought::State, state.oids(), Vec::new())
            }
            What::PullRequest(tip, _) => {
                let clone = PullRequest::read(event)?.clone;
                let own: Vec<Place> = clone.into_iter().map(|url| Place { grasp: is_grasp_path(&url), url }).collect();
                (Sought::Pull, vec![tip.clone()], own)
            }
        };
        if oids.is_empty() || !oids.iter().all(|oid| is_oid(oid)) {
            return None;
        }
        let mut seen = BTreeSet::new();
        let all = own.into_iter().chain(places.iter().cloned());
        let others = all.filter(|place| !self.rules.service.is_own_git(&place.url) && seen.insert(place.url.clone()));
        let (due, dormant) = match waiting.search {
            Search::From(due) | Search::Tried(due) => (due, false),
            Search::Dormant => (waiting.since, true),
        };
        let places = others.take(limits::MAX_PLACES).collect();
        Some(Need { event: event.id, what, oids, places, due, dormant })
    }

    /// The git servers that the announcements of a repository's maintainers name, its owner's first.
    fn places_of(&self, repo: &RepoId) -> Vec<Place> {
        let Some(family) = self.catalog.family(&repo.identifier) else { return Vec::new() };
        let keepers = keepers(family, repo.owner, self.rules.strict_maintainers);
        let others = keepers.iter().filter(|keeper| **keeper != repo.owner);
        let slots = [&repo.owner].into_iter().chain(others).filter_map(|keeper| family.announcement(*keeper));
        let mut places = Vec::new();
        for announcement in slots.flat_map(|slots| slots.held.iter().chain(&slots.served)) {
            for place in places_in(announcement) {
                if places.len() < 2 * limits::MAX_PLACES && !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places
    }

    /// What is served under a name, now and in whole, and the git servers that its announcements name: those at which the
    /// hunt must look, because no relay speaks for them. It depends on the announcements of the name alone.
    #[must_use]
    pub fn kept(&self, identifier: &Identifier) -> Vec<Kept> {
        let Some(family) = self.catalog.family(identifier) else { return Vec::new() };
        let sites =
            family.hosts().map(|owner| (owner, Site::Announced(RepoId { owner, identifier: identifier.clone() })));
        let served = sites.filter(|(_, site)| self.is_served(site));
        let others = |place: &Place| !place.grasp && !self.rules.service.is_own_git(&place.url);
        served
            .map(|(owner, site)| {
                let places = family.best(owner).into_iter().flat_map(places_in).filter(others);
                Kept { site, places: places.map(|place| place.url).collect() }
            })
            .collect()
    }
}

/// The git servers that an announcement names.
fn places_in(announcement: &Announcement) -> impl Iterator<Item = Place> {
    let hosts: BTreeSet<&str> = announcement.relays.iter().filter_map(|relay| authority(relay)).collect();
    announcement.clone.iter().map(move |url| {
        // A GRASP server is named in both, and a repository has its owner in its path there.
        let grasp = is_grasp_path(url) && authority(url).is_some_and(|host| hosts.contains(host));
        Place { url: url.clone(), grasp }
    })
}

/// Host and port, as they are written.
fn authority(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// Whether a URL ends as a GRASP server's do: `<npub>/<identifier>.git`.
fn is_grasp_path(url: &str) -> bool {
    let mut segments = url.trim_end_matches('/').rsplit('/');
    let name = segments.next().is_some_and(|name| name.ends_with(".git"));
    name && segments.next().is_some_and(|owner| owner.starts_with("npub1"))
}

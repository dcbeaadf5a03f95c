//! What the hunt should look for: the git data that the held events of a name need, and where it may be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Admission;
use super::purgatory::{HeldEvent, HeldKind, SearchStatus};
use super::sync_targets::owner_and_maintainers;
use crate::fetch::io::{GitSource, ServedRepo, WantedEvent, WantedGitData, WantedKind};
use crate::limits;
use crate::nostr::SignedEvent;
use crate::nostr::event::EventId;
use crate::repo::pull_request::PullRequest;
use crate::repo::state::is_oid;
use crate::repo::{Announcement, Identifier, RepoId, RepoPath, RepoState};

impl Admission {
    /// What the hunt should look for under a name, now and in whole. `read` gives the text of a held event.
    ///
    /// What several repositories of a maintainer set need goes to one of them; the others copy it or read it there.
    #[must_use]
    pub fn wanted_git_data(
        &self,
        identifier: &Identifier,
        mut read: impl FnMut(EventId) -> Option<Arc<SignedEvent>>,
    ) -> Vec<WantedGitData> {
        let mut held_event: Vec<(EventId, &HeldEvent)> = self.purgatory.by_identifier(identifier).collect();
        held_event.sort_by_key(|(id, held_event)| (held_event.is_dormant(), held_event.deadline, *id));
        let mut quarries: BTreeMap<RepoPath, Vec<WantedEvent>> = BTreeMap::new();
        let mut known: BTreeMap<RepoPath, Vec<GitSource>> = BTreeMap::new();
        let mut count = 0;
        for (id, held_event) in held_event {
            if count >= limits::MAX_WANTED_EVENTS_PER_IDENTIFIER {
                break;
            }
            let homes = self.homes(identifier, held_event);
            let Some(home) = homes.iter().find(|home| quarries.contains_key(*home)).or(homes.first()) else { continue };
            let Some(event) = read(id) else { continue };
            let places = known.entry(home.clone()).or_insert_with(|| self.places_of(home.repo()));
            if let Some(need) = self.need(&event, held_event, places) {
                count += 1;
                quarries.entry(home.clone()).or_default().push(need);
            }
        }
        quarries.into_iter().map(|(repo_path, events)| WantedGitData { repo_path, events }).collect()
    }

    /// The sites of a name to which what an event waits for may go, the best first.
    fn homes(&self, identifier: &Identifier, held_event: &HeldEvent) -> Vec<RepoPath> {
        match &held_event.kind {
            // It names no object.
            HeldKind::Announcement(_) => Vec::new(),
            HeldKind::State(_) => self.search_paths(identifier, held_event.author),
            HeldKind::PullRequest(_, repo_paths) => {
                let open: Vec<RepoPath> =
                    repo_paths.iter().filter(|repo_path| self.is_available(repo_path)).cloned().collect();
                // One that concerns several names is looked for under the first of them; the others copy it.
                let name = open.first().map(|repo_path| repo_path.identifier().clone());
                let here = open.into_iter().filter(|repo_path| repo_path.identifier() == identifier);
                if name.as_ref() == Some(identifier) { here.collect() } else { Vec::new() }
            }
        }
    }

    fn need(&self, event: &SignedEvent, held_event: &HeldEvent, places: &[GitSource]) -> Option<WantedEvent> {
        let (what, oids, own) = match &held_event.kind {
            HeldKind::Announcement(_) => return None,
            HeldKind::State(_) => {
                let state = RepoState::from_event(event).filter(RepoState::is_satisfiable)?;
                (WantedKind::State, state.oids(), Vec::new())
            }
            HeldKind::PullRequest(tip, _) => {
                let clone = PullRequest::from_event(event)?.clone;
                let own: Vec<GitSource> =
                    clone.into_iter().map(|url| GitSource { is_grasp: is_grasp_path(&url), url }).collect();
                (WantedKind::PullRequest, vec![tip.clone()], own)
            }
        };
        if oids.is_empty() || !oids.iter().all(|oid| is_oid(oid)) {
            return None;
        }
        let mut seen = BTreeSet::new();
        let all = own.into_iter().chain(places.iter().cloned());
        let others =
            all.filter(|source| !self.policy.service.is_own_git_url(&source.url) && seen.insert(source.url.clone()));
        let (due, is_dormant) = match held_event.search {
            SearchStatus::Pending(due) | SearchStatus::Tried(due) => (due, false),
            SearchStatus::Dormant => (held_event.since, true),
        };
        let sources = others.take(limits::MAX_GIT_SOURCES_PER_EVENT).collect();
        Some(WantedEvent { id: event.id, kind: what, oids, sources, due, is_dormant })
    }

    /// The git servers that the announcements of a repository's maintainers name, its owner's first.
    fn places_of(&self, repo: &RepoId) -> Vec<GitSource> {
        let Some(group) = self.catalog.group(&repo.identifier) else { return Vec::new() };
        let owner_and_maintainers = owner_and_maintainers(group, repo.owner, self.policy.strict_maintainers);
        let others = owner_and_maintainers.iter().filter(|maintainer| **maintainer != repo.owner);
        let versions = [&repo.owner].into_iter().chain(others).filter_map(|maintainer| group.announcement(*maintainer));
        let mut places = Vec::new();
        for announcement in versions.flat_map(|versions| versions.held.iter().chain(&versions.served)) {
            for source in places_in(announcement) {
                if places.len() < 2 * limits::MAX_GIT_SOURCES_PER_EVENT && !places.contains(&source) {
                    places.push(source);
                }
            }
        }
        places
    }

    /// What is served under a name, now and in whole, and the git servers that its announcements name: those at which the
    /// hunt must look, because no relay speaks for them. It depends on the announcements of the name alone.
    #[must_use]
    pub fn served_repos(&self, identifier: &Identifier) -> Vec<ServedRepo> {
        let Some(group) = self.catalog.group(identifier) else { return Vec::new() };
        let repo_paths = group
            .hosted_owners()
            .map(|owner| (owner, RepoPath::Announced(RepoId { owner, identifier: identifier.clone() })));
        let served = repo_paths.filter(|(_, repo_path)| self.is_served(repo_path));
        let others = |source: &GitSource| !source.is_grasp && !self.policy.service.is_own_git_url(&source.url);
        served
            .map(|(owner, repo_path)| {
                let places = group.newest_announcement(owner).into_iter().flat_map(places_in).filter(others);
                ServedRepo { repo_path, mirror_urls: places.map(|source| source.url).collect() }
            })
            .collect()
    }
}

/// The git servers that an announcement names.
fn places_in(announcement: &Announcement) -> impl Iterator<Item = GitSource> {
    let hosts: BTreeSet<&str> = announcement.relays.iter().filter_map(|relay| authority(relay)).collect();
    announcement.clone.iter().map(move |url| {
        // A GRASP server is named in both, and a repository has its owner in its path there.
        let is_grasp = is_grasp_path(url) && authority(url).is_some_and(|host| hosts.contains(host));
        GitSource { url: url.clone(), is_grasp }
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

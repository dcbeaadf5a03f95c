//! What fetch needs: the git data that held events wait for, and the git servers that may have it.

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
use crate::time::MonoTime;

impl Admission {
    /// Returns the git data that held events about repositories with an identifier wait for, and that degraded ones of
    /// these repositories have lost. `read` returns the text of an event.
    ///
    /// Data that several repositories of a maintainer set need is fetched for one of them; the others copy it or read
    /// it there.
    #[must_use]
    pub fn wanted_git_data(
        &self,
        identifier: &Identifier,
        mut read: impl FnMut(EventId) -> Option<Arc<SignedEvent>>,
    ) -> Vec<WantedGitData> {
        let mut held: Vec<(EventId, &HeldEvent)> = self.purgatory.by_identifier(identifier).collect();
        held.sort_by_key(|(id, held_event)| (held_event.is_dormant(), held_event.deadline, *id));
        let mut wanted: BTreeMap<RepoPath, Vec<WantedEvent>> = BTreeMap::new();
        let mut sources_by_repo: BTreeMap<RepoPath, Vec<GitSource>> = BTreeMap::new();
        let mut count = 0;
        for (id, held_event) in held {
            if count >= limits::MAX_WANTED_EVENTS_PER_IDENTIFIER {
                break;
            }
            let destinations = self.fetch_destinations(identifier, held_event);
            let used = destinations.iter().find(|destination| wanted.contains_key(*destination));
            let Some(destination) = used.or(destinations.first()) else { continue };
            let Some(event) = read(id) else { continue };
            let sources =
                sources_by_repo.entry(destination.clone()).or_insert_with(|| self.git_sources_of(destination.repo()));
            let search = match held_event.search {
                SearchStatus::Pending(due) | SearchStatus::Tried(due) => (due, false),
                SearchStatus::Dormant => (held_event.since, true),
            };
            if let Some(wanted_event) = self.wanted_event(&event, &held_event.kind, search, sources) {
                count += 1;
                wanted.entry(destination.clone()).or_default().push(wanted_event);
            }
        }
        for (repo_path, lost) in self.lost_events(identifier) {
            let sources = self.git_sources_of(repo_path.repo());
            for event in lost.iter().filter_map(|id| read(*id)) {
                let kind = match PullRequest::from_any_event(&event) {
                    Some(request) => HeldKind::PullRequest(request.tip, Vec::new()),
                    None => HeldKind::State(identifier.clone()),
                };
                let wanted_event = self.wanted_event(&event, &kind, (MonoTime::default(), false), &sources);
                wanted.entry(repo_path.clone()).or_default().extend(wanted_event);
            }
        }
        wanted.into_iter().map(|(repo_path, events)| WantedGitData { repo_path, events }).collect()
    }

    /// Returns the repositories with this identifier that may receive the data of an event, best first.
    fn fetch_destinations(&self, identifier: &Identifier, held_event: &HeldEvent) -> Vec<RepoPath> {
        match &held_event.kind {
            // An announcement names no object.
            HeldKind::Announcement(_) => Vec::new(),
            HeldKind::State(_) => self.search_paths(identifier, held_event.author),
            HeldKind::PullRequest(_, repo_paths) if !self.has_served_path(repo_paths) => Vec::new(),
            HeldKind::PullRequest(_, repo_paths) => {
                let available: Vec<RepoPath> =
                    repo_paths.iter().filter(|repo_path| self.is_available(repo_path)).cloned().collect();
                // Data for repositories with different identifiers is fetched for the first one; the others copy it.
                let first = available.first().map(|repo_path| repo_path.identifier().clone());
                let same_identifier = available.into_iter().filter(|repo_path| repo_path.identifier() == identifier);
                if first.as_ref() == Some(identifier) { same_identifier.collect() } else { Vec::new() }
            }
        }
    }

    /// Returns the objects that an event waits for and the servers that may have them. `due` is when they are searched,
    /// and `is_dormant` whether that is not urgent.
    fn wanted_event(
        &self,
        event: &SignedEvent,
        kind: &HeldKind,
        (due, is_dormant): (MonoTime, bool),
        repo_sources: &[GitSource],
    ) -> Option<WantedEvent> {
        let (kind, oids, own_sources) = match kind {
            HeldKind::Announcement(_) => return None,
            HeldKind::State(_) => {
                let state = RepoState::from_event(event).filter(RepoState::is_satisfiable)?;
                (WantedKind::State, state.oids(), Vec::new())
            }
            HeldKind::PullRequest(tip, _) => {
                let clone = PullRequest::from_event(event)?.clone;
                let own_sources: Vec<GitSource> =
                    clone.into_iter().map(|url| GitSource { is_grasp: is_grasp_path(&url), url }).collect();
                (WantedKind::PullRequest, vec![tip.clone()], own_sources)
            }
        };
        if oids.is_empty() || !oids.iter().all(|oid| is_oid(oid)) {
            return None;
        }
        let mut seen = BTreeSet::new();
        let all = own_sources.into_iter().chain(repo_sources.iter().cloned());
        let others =
            all.filter(|source| !self.policy.service.is_own_git_url(&source.url) && seen.insert(source.url.clone()));
        let sources = others.take(limits::MAX_GIT_SOURCES_PER_EVENT).collect();
        Some(WantedEvent { id: event.id, kind, oids, sources, due, is_dormant })
    }

    /// Returns the git servers that the announcements of a repository's maintainers name, those of the owner first.
    fn git_sources_of(&self, repo: &RepoId) -> Vec<GitSource> {
        let Some(group) = self.catalog.group(&repo.identifier) else { return Vec::new() };
        let authors = owner_and_maintainers(group, repo.owner, self.policy.strict_maintainers);
        let others = authors.iter().filter(|maintainer| **maintainer != repo.owner);
        let announcements =
            [&repo.owner].into_iter().chain(others).filter_map(|maintainer| group.announcement(*maintainer));
        let mut sources = Vec::new();
        for announcement in announcements.flat_map(|versions| versions.held.iter().chain(&versions.served)) {
            for source in git_sources_in(announcement) {
                if sources.len() < 2 * limits::MAX_GIT_SOURCES_PER_EVENT && !sources.contains(&source) {
                    sources.push(source);
                }
            }
        }
        sources
    }

    /// Returns the served repositories with an identifier and the git servers in their announcements that are not GRASP
    /// servers. Fetch must check the refs of these servers itself, because no relay announces their changes. The result
    /// depends on the announcements with the identifier only.
    #[must_use]
    pub fn served_repos(&self, identifier: &Identifier) -> Vec<ServedRepo> {
        let Some(group) = self.catalog.group(identifier) else { return Vec::new() };
        let repo_paths = group
            .hosted_owners()
            .map(|owner| (owner, RepoPath::Announced(RepoId { owner, identifier: identifier.clone() })));
        let served = repo_paths.filter(|(_, repo_path)| self.is_served(repo_path));
        let is_mirror = |source: &GitSource| !source.is_grasp && !self.policy.service.is_own_git_url(&source.url);
        served
            .map(|(owner, repo_path)| {
                let mirrors = group.newest_announcement(owner).into_iter().flat_map(git_sources_in).filter(is_mirror);
                ServedRepo { repo_path, mirror_urls: mirrors.map(|source| source.url).collect() }
            })
            .collect()
    }
}

/// Returns the git servers that an announcement names.
fn git_sources_in(announcement: &Announcement) -> impl Iterator<Item = GitSource> {
    let hosts: BTreeSet<&str> = announcement.relays.iter().filter_map(|relay| authority(relay)).collect();
    announcement.clone.iter().map(move |url| {
        // A GRASP server is named in both `clone` and `relays`, and its paths contain the owner's npub.
        let is_grasp = is_grasp_path(url) && authority(url).is_some_and(|host| hosts.contains(host));
        GitSource { url: url.clone(), is_grasp }
    })
}

/// Returns host and port of a URL, as they are written.
fn authority(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().filter(|authority| !authority.is_empty())
}

/// Whether a URL ends with the path of a repository at a GRASP server: `<npub>/<identifier>.git`.
fn is_grasp_path(url: &str) -> bool {
    let mut segments = url.trim_end_matches('/').rsplit('/');
    let name = segments.next().is_some_and(|name| name.ends_with(".git"));
    name && segments.next().is_some_and(|owner| owner.starts_with("npub1"))
}

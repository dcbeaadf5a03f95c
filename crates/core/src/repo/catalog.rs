//! The catalog: the announcements and states of all repositories of this service, in memory.
//!
//! It holds what decisions need of these events, not their text, so that its size follows the number of repositories.
//! [`Admission`](crate::admission::Admission) changes it when it decides, and rebuilds it from the store at start and
//! after a failed commit (docs/design/admission.md#catalog-and-authority). All announcements and states with the same
//! identifier form one [`RepoGroup`], because a state names an identifier only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::announcement::Announcement;
use super::id::{Identifier, RepoId};
pub use super::repo_group::RepoGroup;
use super::state::StateDigest;
use super::work_counter::WorkCounter;
use crate::nostr::PublicKey;
use crate::nostr::event::{EventId, EventVersion, supersedes};
use crate::time::Timestamp;

/// Whether a stored event is served, or held in purgatory until its git data arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EventStatus {
    /// It is part of the answers to clients.
    Served,
    /// It waits in purgatory for its git data and is in no answer.
    Held,
}

/// The versions of a replaceable event: at most one that is served and one that is held.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versions<T> {
    /// The served version.
    pub served: Option<T>,
    /// The version in purgatory.
    pub held: Option<T>,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Self { served: None, held: None }
    }
}

impl<T> Versions<T> {
    pub(super) fn slot(&mut self, status: EventStatus) -> &mut Option<T> {
        match status {
            EventStatus::Served => &mut self.served,
            EventStatus::Held => &mut self.held,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.served.is_none() && self.held.is_none()
    }
}

impl Versions<Announcement> {
    /// Returns the version that decides about authority: the newer of the two.
    #[must_use]
    pub fn newest(&self) -> Option<&Announcement> {
        match (&self.served, &self.held) {
            (Some(served), Some(held)) if supersedes(held.version, served.version) => Some(held),
            (Some(served), _) => Some(served),
            (None, held) => held.as_ref(),
        }
    }
}

/// The states of one author with one identifier.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AuthorStates {
    /// The served state.
    pub served: Option<EventVersion>,
    /// The states in purgatory, newest first. Several are held side by side: a newer one whose data never arrives must
    /// not hide an older one whose data does.
    pub held: Vec<EventVersion>,
    /// The digests of these states.
    digests: BTreeMap<EventId, Arc<StateDigest>>,
}

impl AuthorStates {
    /// Returns the digest of a served or held state.
    #[must_use]
    pub fn digest(&self, id: EventId) -> Option<&Arc<StateDigest>> {
        self.digests.get(&id)
    }

    /// Removes the digests of states that are gone.
    fn drop_digests(&mut self) {
        let Self { served, held, digests } = self;
        let is_kept = |id: &EventId| served.iter().chain(&*held).any(|version| version.id == *id);
        digests.retain(|id, _| is_kept(id));
    }
}

pub(super) fn newest_first(left: EventVersion, right: EventVersion) -> std::cmp::Ordering {
    if supersedes(left, right) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
}

/// The announcements and states of all repositories of this service.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    groups: BTreeMap<Identifier, RepoGroup>,
    /// The identifiers under which an author has an announcement or a state, so that a request to vanish finds them.
    by_author: BTreeMap<PublicKey, BTreeSet<Identifier>>,
    /// The number of announcements that list a key as a maintainer.
    listing_counts: BTreeMap<PublicKey, usize>,
    work: WorkCounter,
}

/// The result of a change of announcements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AnnouncementChange {
    /// The announcement that was replaced or removed.
    pub previous: Option<Announcement>,
    /// The keys whose maintainer sets may depend on the changed announcement, if its maintainers or hosting changed.
    pub dependents: Option<BTreeSet<PublicKey>>,
}

impl Catalog {
    /// Returns the work that was done for queries and changes since it was last reset.
    #[must_use]
    pub fn work(&self) -> &WorkCounter {
        &self.work
    }

    /// Returns all announcements and states with an identifier.
    #[must_use]
    pub fn group(&self, identifier: &Identifier) -> Option<&RepoGroup> {
        self.groups.get(identifier)
    }

    /// Iterates over all groups of announcements and states, by identifier.
    pub fn groups(&self) -> impl Iterator<Item = (&Identifier, &RepoGroup)> {
        self.groups.iter()
    }

    /// Returns the announcements of one repository.
    #[must_use]
    pub fn announcement(&self, repo: &RepoId) -> Option<&Versions<Announcement>> {
        self.group(&repo.identifier)?.announcement(repo.owner)
    }

    /// Returns the identifiers under which an author has an announcement or a state.
    pub fn identifiers_of(&self, author: PublicKey) -> impl Iterator<Item = &Identifier> {
        self.by_author.get(&author).into_iter().flatten()
    }

    /// Returns the number of hosted repositories of one owner, including those whose announcement is still held.
    #[must_use]
    pub fn hosted_count(&self, owner: PublicKey) -> u64 {
        let groups = self.identifiers_of(owner).filter_map(|identifier| self.group(identifier));
        groups.filter(|group| group.is_hosted(owner)).count() as u64
    }

    /// Iterates over all repositories that have an announcement.
    pub fn repositories(&self) -> impl Iterator<Item = (RepoId, &Versions<Announcement>)> {
        self.groups.iter().flat_map(|(identifier, group)| {
            group
                .announcements()
                .map(move |(owner, versions)| (RepoId { owner: *owner, identifier: identifier.clone() }, versions))
        })
    }

    /// Inserts an announcement and returns the one that it replaces.
    pub fn put_announcement(&mut self, status: EventStatus, announcement: Announcement) -> AnnouncementChange {
        let repo = announcement.repo.clone();
        self.update_announcements(&repo, |versions| versions.slot(status).replace(announcement))
    }

    /// Removes the announcement with this id, if it is the current one.
    pub fn take_announcement(&mut self, status: EventStatus, repo: &RepoId, id: EventId) -> AnnouncementChange {
        self.update_announcements(repo, |versions| {
            versions.slot(status).take_if(|announcement| announcement.version.id == id)
        })
    }

    /// Sets the digest of a state that is held or served next.
    pub fn set_digest(&mut self, author: PublicKey, identifier: &Identifier, id: EventId, digest: StateDigest) {
        self.update_group(author, identifier, |group| {
            group.states.entry(author).or_default().digests.insert(id, Arc::new(digest));
        });
    }

    /// Inserts a held state. If the author has more than `most` held states with this identifier, removes and returns
    /// the oldest.
    pub fn hold_state(
        &mut self,
        author: PublicKey,
        identifier: &Identifier,
        version: EventVersion,
        most: usize,
    ) -> Option<EventVersion> {
        self.update_group(author, identifier, |group| {
            let states = group.states.entry(author).or_default();
            let held = &mut states.held;
            if held.contains(&version) {
                return None;
            }
            held.push(version);
            held.sort_by(|left, right| newest_first(*left, *right));
            let oldest = (held.len() > most).then(|| held.pop()).flatten();
            states.drop_digests();
            oldest
        })
    }

    /// Marks a state as served. Returns the held versions that it replaces, including itself if it was held.
    pub fn serve_state(
        &mut self,
        author: PublicKey,
        identifier: &Identifier,
        version: EventVersion,
    ) -> Vec<EventVersion> {
        self.update_group(author, identifier, |group| {
            let states = group.states.entry(author).or_default();
            states.served = Some(version);
            let replaced = states.held.extract_if(.., |held| *held == version || supersedes(version, *held)).collect();
            states.drop_digests();
            replaced
        })
    }

    /// Removes a state, served or held.
    pub fn remove_state(&mut self, author: PublicKey, identifier: &Identifier, id: EventId) {
        self.update_group(author, identifier, |group| {
            if let Some(states) = group.states.get_mut(&author) {
                states.served.take_if(|version| version.id == id);
                states.held.retain(|version| version.id != id);
                states.drop_digests();
                if states.served.is_none() && states.held.is_empty() {
                    group.states.remove(&author);
                }
            }
        });
    }

    /// Returns the announcements and states of an author with this identifier that are not newer than `up_to`: id,
    /// status, and whether it is an announcement.
    #[must_use]
    pub fn versions_until(
        &self,
        author: PublicKey,
        identifier: &Identifier,
        up_to: Timestamp,
    ) -> Vec<(EventId, EventStatus, bool)> {
        let Some(group) = self.group(identifier) else { return Vec::new() };
        let mut found = Vec::new();
        if let Some(versions) = group.announcement(author) {
            let both = [(EventStatus::Served, &versions.served), (EventStatus::Held, &versions.held)];
            found.extend(both.into_iter().filter_map(|(status, slot)| {
                slot.as_ref()
                    .filter(|announcement| announcement.version.created_at <= up_to)
                    .map(|announcement| (announcement.version.id, status, true))
            }));
        }
        if let Some(states) = group.states(author) {
            let all = states
                .served
                .iter()
                .map(|version| (EventStatus::Served, version))
                .chain(states.held.iter().map(|version| (EventStatus::Held, version)));
            found.extend(
                all.filter(|(_, version)| version.created_at <= up_to)
                    .map(|(status, version)| (version.id, status, false)),
            );
        }
        found
    }

    /// Whether any announcement lists the key as a maintainer.
    #[must_use]
    pub fn is_listed_maintainer(&self, key: PublicKey) -> bool {
        self.listing_counts.contains_key(&key)
    }

    /// Inserts an announcement that was stored by an earlier process. Nothing depends on it yet.
    pub fn restore_announcement(&mut self, status: EventStatus, announcement: Announcement) {
        let RepoId { owner, identifier } = announcement.repo.clone();
        let restore = |versions: &mut Versions<Announcement>| versions.slot(status).replace(announcement);
        let changed = self.update_group(owner, &identifier, |group| group.restore_announcements(owner, restore));
        self.count_listings(&changed.added, &changed.removed);
    }

    fn update_announcements(
        &mut self,
        repo: &RepoId,
        change: impl FnOnce(&mut Versions<Announcement>) -> Option<Announcement>,
    ) -> AnnouncementChange {
        let changed =
            self.update_group(repo.owner, &repo.identifier, |group| group.update_announcements(repo.owner, change));
        self.count_listings(&changed.added, &changed.removed);
        AnnouncementChange { previous: changed.result, dependents: changed.dependents }
    }

    fn count_listings(&mut self, added: &BTreeSet<PublicKey>, removed: &BTreeSet<PublicKey>) {
        for key in added {
            *self.listing_counts.entry(*key).or_default() += 1;
        }
        for key in removed {
            if let Some(count) = self.listing_counts.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.listing_counts.remove(key);
                }
            }
        }
    }

    fn update_group<R>(
        &mut self,
        author: PublicKey,
        identifier: &Identifier,
        edit: impl FnOnce(&mut RepoGroup) -> R,
    ) -> R {
        let work = &self.work;
        let group = self.groups.entry(identifier.clone()).or_insert_with(|| RepoGroup::new(work.clone()));
        let result = edit(group);
        let present = group.announcement(author).is_some() || group.states.contains_key(&author);
        if group.is_empty() {
            self.groups.remove(identifier);
        }
        if present {
            self.by_author.entry(author).or_default().insert(identifier.clone());
        } else if let Some(identifiers) = self.by_author.get_mut(&author) {
            identifiers.remove(identifier);
            if identifiers.is_empty() {
                self.by_author.remove(&author);
            }
        }
        result
    }
}

//! The catalog: the announcements and states of all repositories of this service, in memory.
//!
//! It holds what decisions need of these events, not their text, so that its size follows the number of repositories.
//! [`Admission`](crate::admission::Admission) changes it when it decides, and rebuilds it from the store at start and
//! after a failed commit (docs/design/admission.md#catalog-and-authority). All announcements and states with the same
//! identifier form one [`RepoGroup`], because a state names an identifier only.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::announcement::Announcement;
use super::id::{Identifier, RepoId};
use super::maintainers;
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
    fn slot(&mut self, status: EventStatus) -> &mut Option<T> {
        match status {
            EventStatus::Served => &mut self.served,
            EventStatus::Held => &mut self.held,
        }
    }

    fn is_empty(&self) -> bool {
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
}

/// All announcements and states with one identifier.
#[derive(Clone, Debug, Default)]
pub struct RepoGroup {
    announcements: BTreeMap<PublicKey, Versions<Announcement>>,
    states: BTreeMap<PublicKey, AuthorStates>,
    /// For each listed maintainer the keys whose announcements list it. It is followed backwards, from the author of a
    /// state to the repositories that the state may apply to.
    listed_by: BTreeMap<PublicKey, BTreeSet<PublicKey>>,
    /// The number of hosted repositories.
    hosted_total: usize,
    /// Cache of maintainer sets, by owner. A set is dropped when an announcement that it may depend on changes.
    sets: RefCell<BTreeMap<PublicKey, Arc<BTreeSet<PublicKey>>>>,
}

impl RepoGroup {
    /// Returns the announcements of one author.
    #[must_use]
    pub fn announcement(&self, author: PublicKey) -> Option<&Versions<Announcement>> {
        self.announcements.get(&author)
    }

    /// Iterates over all announcements, by author.
    pub fn announcements(&self) -> impl Iterator<Item = (&PublicKey, &Versions<Announcement>)> {
        self.announcements.iter()
    }

    /// Iterates over all states, by author.
    pub fn states_by_author(&self) -> impl Iterator<Item = (&PublicKey, &AuthorStates)> {
        self.states.iter()
    }

    /// Returns the states of one author.
    #[must_use]
    pub fn states(&self, author: PublicKey) -> Option<&AuthorStates> {
        self.states.get(&author)
    }

    /// Whether the repository of this owner is hosted here: its newest announcement names this service, or the operator
    /// archives it.
    #[must_use]
    pub fn is_hosted(&self, owner: PublicKey) -> bool {
        self.newest_announcement(owner).is_some_and(Announcement::is_hosted)
    }

    /// Whether the repository of this owner is hosted by a served announcement.
    #[must_use]
    pub fn is_served(&self, owner: PublicKey) -> bool {
        self.served_announcement(owner).is_some_and(Announcement::is_hosted)
    }

    /// Whether any repository with this identifier is hosted here.
    #[must_use]
    pub fn has_hosted(&self) -> bool {
        self.hosted_total > 0
    }

    /// Returns the maintainer set of `owner`'s repository: the keys whose states apply to it.
    #[must_use]
    pub fn maintainers(&self, owner: PublicKey, strict: bool) -> Arc<BTreeSet<PublicKey>> {
        let compute = || {
            maintainers::maintainer_set(owner, strict, |key| {
                self.newest_announcement(key).map(|announcement| &announcement.roles)
            })
        };
        self.sets.borrow_mut().entry(owner).or_insert_with(|| Arc::new(compute())).clone()
    }

    /// Returns the owners of the hosted repositories that have `author` as a maintainer.
    pub fn maintained_by(&self, author: PublicKey, strict: bool) -> impl Iterator<Item = PublicKey> {
        // A maintainer can be reached from the owner along listings, so only the keys that reach `author` can be such
        // owners.
        let reaching = self.keys_reaching(author).into_iter();
        reaching.filter(move |owner| self.is_hosted(*owner) && self.maintainers(*owner, strict).contains(&author))
    }

    /// Returns the owners of the hosted repositories whose maintainer set may depend on `author`'s announcement.
    pub fn hosted_depending_on(&self, author: PublicKey) -> impl Iterator<Item = PublicKey> {
        self.keys_reaching(author).into_iter().filter(|owner| self.is_hosted(*owner))
    }

    /// Whether the git data of the owner's repository is kept: it is hosted, or its announcement is served for another
    /// reason than the maintainer exception. Such an announcement named this service, or was archived, before the
    /// service's address or the archive changed.
    #[must_use]
    pub fn keeps_git_data(&self, owner: PublicKey) -> bool {
        self.newest_announcement(owner).is_some_and(|newest| newest.is_hosted() || !newest.is_exception)
    }

    /// Whether the states of `author` apply to a repository whose git data is kept.
    #[must_use]
    pub fn has_kept_repo(&self, author: PublicKey, strict: bool) -> bool {
        let applies =
            |owner: &PublicKey| self.keeps_git_data(*owner) && self.maintainers(*owner, strict).contains(&author);
        self.keys_reaching(author).iter().any(applies)
    }

    /// Returns the keys that can be reached from `members` along listings, at most `most`.
    #[must_use]
    pub fn keys_reachable_from(&self, members: &[PublicKey], most: usize) -> BTreeSet<PublicKey> {
        let mut reached: BTreeSet<PublicKey> = members.iter().copied().take(most).collect();
        let mut frontier: Vec<PublicKey> = reached.iter().copied().collect();
        while let Some(key) = frontier.pop() {
            for listed in self.newest_announcement(key).into_iter().flat_map(|newest| newest.roles.members()) {
                if reached.len() < most && reached.insert(*listed) {
                    frontier.push(*listed);
                }
            }
        }
        reached
    }

    /// Returns the owners of all hosted repositories with this identifier.
    pub fn hosted_owners(&self) -> impl Iterator<Item = PublicKey> {
        self.announcements.keys().copied().filter(|owner| self.is_hosted(*owner))
    }

    /// Returns the other owners of hosted repositories that are maintainers of `owner`'s repository. It may read their
    /// objects.
    pub fn alternate_owners(&self, owner: PublicKey, strict: bool) -> impl Iterator<Item = PublicKey> {
        let members: Vec<PublicKey> = self.maintainers(owner, strict).iter().copied().collect();
        members.into_iter().filter(move |member| *member != owner && self.is_hosted(*member))
    }

    /// Returns the states that apply to `owner`'s repository, newest first.
    #[must_use]
    pub fn states_for(&self, owner: PublicKey, strict: bool) -> Vec<(EventVersion, EventStatus)> {
        let mut found = Vec::new();
        for states in self.maintainers(owner, strict).iter().filter_map(|member| self.states.get(member)) {
            found.extend(states.served.map(|version| (version, EventStatus::Served)));
            found.extend(states.held.iter().map(|version| (*version, EventStatus::Held)));
        }
        found.sort_by(|(left, _), (right, _)| newest_first(*left, *right));
        found
    }

    /// Returns whether a maintainer of another owner's hosted repository lists `author`
    /// (docs/protocol.md#maintainer-exception): [`EventStatus::Served`] if a served announcement does and the repository is
    /// served, [`EventStatus::Held`] if that is so only when held announcements are counted. Under the reciprocal rule a key
    /// is invited before it is a member.
    #[must_use]
    pub fn invitation(&self, author: PublicKey, strict: bool) -> Option<EventStatus> {
        let listers = self.listed_by.get(&author).into_iter().flatten().filter(|lister| **lister != author);
        listers.filter_map(|lister| self.invitation_by(*lister, author, strict)).min()
    }

    fn invitation_by(&self, lister: PublicKey, author: PublicKey, strict: bool) -> Option<EventStatus> {
        // If a hosted owner names a lead whose announcement is not here, its maintainer set is empty.
        let own = Some(lister).filter(|lister| self.is_hosted(*lister));
        let mut owners = self.maintained_by(lister, strict).filter(|owner| *owner != author).chain(own).peekable();
        owners.peek()?;
        let is_listed = self.served_announcement(lister).is_some_and(|served| served.roles.members().contains(&author));
        Some(if is_listed && owners.any(|owner| self.is_served(owner)) {
            EventStatus::Served
        } else {
            EventStatus::Held
        })
    }

    fn served_announcement(&self, author: PublicKey) -> Option<&Announcement> {
        self.announcements.get(&author)?.served.as_ref()
    }

    /// Returns the announcement of an author that decides about its repository.
    #[must_use]
    pub fn newest_announcement(&self, author: PublicKey) -> Option<&Announcement> {
        self.announcements.get(&author)?.newest()
    }

    /// Returns all keys from which `author` can be reached along listings, including `author`.
    #[must_use]
    pub fn keys_reaching(&self, author: PublicKey) -> BTreeSet<PublicKey> {
        let mut reached = BTreeSet::from([author]);
        let mut frontier = vec![author];
        while let Some(key) = frontier.pop() {
            for lister in self.listed_by.get(&key).into_iter().flatten() {
                if reached.insert(*lister) {
                    frontier.push(*lister);
                }
            }
        }
        reached
    }

    /// Changes the announcements of one author and updates everything that is derived from them.
    fn update_announcements<R>(
        &mut self,
        author: PublicKey,
        change: impl FnOnce(&mut Versions<Announcement>) -> R,
    ) -> AnnouncementChange<R> {
        let versions = self.announcements.entry(author).or_default();
        let before = listed_members(versions.newest());
        let was_hosted = versions.newest().is_some_and(Announcement::is_hosted);
        let result = change(versions);
        let after = listed_members(versions.newest());
        let is_hosted = versions.newest().is_some_and(Announcement::is_hosted);
        if versions.is_empty() {
            self.announcements.remove(&author);
        }
        self.hosted_total = self.hosted_total + usize::from(is_hosted) - usize::from(was_hosted);
        for key in before.difference(&after) {
            if let Some(listers) = self.listed_by.get_mut(key) {
                listers.remove(&author);
                if listers.is_empty() {
                    self.listed_by.remove(key);
                }
            }
        }
        for key in after.difference(&before) {
            self.listed_by.entry(*key).or_default().insert(author);
        }
        // Only the sets of repositories from which the author can be reached may have changed.
        let reaching = self.keys_reaching(author);
        self.sets.get_mut().retain(|owner, _| !reaching.contains(owner));
        AnnouncementChange { result, added: &after - &before, removed: &before - &after }
    }

    fn is_empty(&self) -> bool {
        self.announcements.is_empty() && self.states.is_empty()
    }
}

/// The result of a change of announcements: which keys are listed as maintainers now but were not before, and the
/// reverse.
struct AnnouncementChange<R> {
    result: R,
    added: BTreeSet<PublicKey>,
    removed: BTreeSet<PublicKey>,
}

fn newest_first(left: EventVersion, right: EventVersion) -> std::cmp::Ordering {
    if supersedes(left, right) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
}

fn listed_members(announcement: Option<&Announcement>) -> BTreeSet<PublicKey> {
    announcement.map(|announcement| announcement.roles.members().iter().copied().collect()).unwrap_or_default()
}

/// The announcements and states of all repositories of this service.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    groups: BTreeMap<Identifier, RepoGroup>,
    /// The identifiers under which an author has an announcement or a state, so that a request to vanish finds them.
    by_author: BTreeMap<PublicKey, BTreeSet<Identifier>>,
    /// The number of announcements that list a key as a maintainer.
    listing_counts: BTreeMap<PublicKey, usize>,
}

impl Catalog {
    /// Returns all announcements and states with an identifier.
    #[must_use]
    pub fn group(&self, identifier: &Identifier) -> Option<&RepoGroup> {
        self.groups.get(identifier)
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
    pub fn put_announcement(&mut self, status: EventStatus, announcement: Announcement) -> Option<Announcement> {
        let repo = announcement.repo.clone();
        self.update_announcements(&repo, |versions| versions.slot(status).replace(announcement))
    }

    /// Removes the announcement with this id, if it is the current one.
    pub fn take_announcement(&mut self, status: EventStatus, repo: &RepoId, id: EventId) -> Option<Announcement> {
        self.update_announcements(repo, |versions| {
            versions.slot(status).take_if(|announcement| announcement.version.id == id)
        })
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
            let held = &mut group.states.entry(author).or_default().held;
            if held.contains(&version) {
                return None;
            }
            held.push(version);
            held.sort_by(|left, right| newest_first(*left, *right));
            (held.len() > most).then(|| held.pop()).flatten()
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
            states.held.extract_if(.., |held| *held == version || supersedes(version, *held)).collect()
        })
    }

    /// Removes a state, served or held.
    pub fn remove_state(&mut self, author: PublicKey, identifier: &Identifier, id: EventId) {
        self.update_group(author, identifier, |group| {
            if let Some(states) = group.states.get_mut(&author) {
                states.served.take_if(|version| version.id == id);
                states.held.retain(|version| version.id != id);
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

    fn update_announcements<R>(&mut self, repo: &RepoId, change: impl FnOnce(&mut Versions<Announcement>) -> R) -> R {
        let changed =
            self.update_group(repo.owner, &repo.identifier, |group| group.update_announcements(repo.owner, change));
        for key in changed.added {
            *self.listing_counts.entry(key).or_default() += 1;
        }
        for key in changed.removed {
            if let Some(count) = self.listing_counts.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.listing_counts.remove(&key);
                }
            }
        }
        changed.result
    }

    fn update_group<R>(
        &mut self,
        author: PublicKey,
        identifier: &Identifier,
        edit: impl FnOnce(&mut RepoGroup) -> R,
    ) -> R {
        let group = self.groups.entry(identifier.clone()).or_default();
        let result = edit(group);
        let present = group.announcements.contains_key(&author) || group.states.contains_key(&author);
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

//! All repositories of this service, in memory: their announcements and states, not their events.
//!
//! Its size follows repositories. It changes when the registrar decides and is rebuilt from the store at boot and after
//! a failed commit. Everything that shares an identifier is a [`Family`], because a state names only an identifier.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::announcement::Announcement;
use super::id::{Identifier, RepoId};
use super::maintainers;
use crate::nostr::PublicKey;
use crate::nostr::event::{EventId, Stamp, supersedes};
use crate::time::Timestamp;

/// Whether the world can see something, or it waits for git data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// Anybody may ask for it.
    Served,
    /// It waits in purgatory.
    Held,
}

/// At most one served and one held version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slots<T> {
    /// What the world sees.
    pub served: Option<T>,
    /// What waits.
    pub held: Option<T>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { served: None, held: None }
    }
}

impl<T> Slots<T> {
    fn slot(&mut self, place: Place) -> &mut Option<T> {
        match place {
            Place::Served => &mut self.served,
            Place::Held => &mut self.held,
        }
    }

    fn is_empty(&self) -> bool {
        self.served.is_none() && self.held.is_none()
    }
}

impl Slots<Announcement> {
    /// The version that decides about authority: the newer of the two (F6).
    #[must_use]
    pub fn best(&self) -> Option<&Announcement> {
        match (&self.served, &self.held) {
            (Some(served), Some(held)) if supersedes(held.stamp, served.stamp) => Some(held),
            (Some(served), _) => Some(served),
            (None, held) => held.as_ref(),
        }
    }
}

/// One author's states of one name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct States {
    /// The one that is served.
    pub served: Option<Stamp>,
    /// Those that wait, side by side: a newer one whose data never comes must not hide an older one whose data is here.
    pub held: Vec<Stamp>,
}

/// All that shares one identifier.
#[derive(Clone, Debug, Default)]
pub struct Family {
    announcements: BTreeMap<PublicKey, Slots<Announcement>>,
    states: BTreeMap<PublicKey, States>,
    /// Who is named by whom: walked backwards from a state's author to the repositories it may speak for.
    named_by: BTreeMap<PublicKey, BTreeSet<PublicKey>>,
    /// How many owners have a repository hosted here.
    hosts: usize,
    /// Maintainer sets that were asked for since an announcement that could change them changed.
    sets: RefCell<BTreeMap<PublicKey, Arc<BTreeSet<PublicKey>>>>,
}

impl Family {
    /// The announcements of one key.
    #[must_use]
    pub fn announcement(&self, author: PublicKey) -> Option<&Slots<Announcement>> {
        self.announcements.get(&author)
    }

    /// All announcements, by author.
    pub fn announcements(&self) -> impl Iterator<Item = (&PublicKey, &Slots<Announcement>)> {
        self.announcements.iter()
    }

    /// All states, by author.
    pub fn states_by_author(&self) -> impl Iterator<Item = (&PublicKey, &States)> {
        self.states.iter()
    }

    /// The states of one key.
    #[must_use]
    pub fn states(&self, author: PublicKey) -> Option<&States> {
        self.states.get(&author)
    }

    /// Whether a repository of this name and owner is hosted here: its best announcement names this service, or the
    /// operator keeps it.
    #[must_use]
    pub fn is_hosted(&self, owner: PublicKey) -> bool {
        self.best(owner).is_some_and(Announcement::is_hosted)
    }

    /// Whether any repository of this name is hosted here.
    #[must_use]
    pub fn has_host(&self) -> bool {
        self.hosts > 0
    }

    /// Who may say what the refs of `owner`'s repository are.
    #[must_use]
    pub fn maintainers(&self, owner: PublicKey, strict: bool) -> Arc<BTreeSet<PublicKey>> {
        let compute = || maintainers::set(owner, strict, |key| self.best(key).map(|announcement| &announcement.roles));
        self.sets.borrow_mut().entry(owner).or_insert_with(|| Arc::new(compute())).clone()
    }

    /// The hosted repositories, by owner, that `author` may speak for.
    pub fn hosts_of(&self, author: PublicKey, strict: bool) -> impl Iterator<Item = PublicKey> {
        // Whoever speaks for a repository is reached from it along names, so only those that reach the author count.
        let reaching = self.reaching(author).into_iter();
        reaching.filter(move |owner| self.is_hosted(*owner) && self.maintainers(*owner, strict).contains(&author))
    }

    /// The hosted repositories, by owner, whose maintainer set may depend on `author`'s announcement.
    pub fn hosts_reaching(&self, author: PublicKey) -> impl Iterator<Item = PublicKey> {
        self.reaching(author).into_iter().filter(|owner| self.is_hosted(*owner))
    }

    /// All hosted repositories of this name, by owner.
    pub fn hosts(&self) -> impl Iterator<Item = PublicKey> {
        self.announcements.keys().copied().filter(|owner| self.is_hosted(*owner))
    }

    /// The other hosted repositories, by owner, whose owners are among the maintainers of `owner`'s.
    pub fn lenders(&self, owner: PublicKey, strict: bool) -> impl Iterator<Item = PublicKey> {
        let members: Vec<PublicKey> = self.maintainers(owner, strict).iter().copied().collect();
        members.into_iter().filter(move |member| *member != owner && self.is_hosted(*member))
    }

    /// The states that speak for `owner`'s repository, the best first.
    #[must_use]
    pub fn states_for(&self, owner: PublicKey, strict: bool) -> Vec<(Stamp, Place)> {
        let mut found = Vec::new();
        for states in self.maintainers(owner, strict).iter().filter_map(|member| self.states.get(member)) {
            found.extend(states.served.map(|stamp| (stamp, Place::Served)));
            found.extend(states.held.iter().map(|stamp| (*stamp, Place::Held)));
        }
        found.sort_by(
            |(a, _), (b, _)| {
                if supersedes(*a, *b) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
            },
        );
        found
    }

    /// Whether somebody who may speak for another's hosted repository names `author` as a maintainer (G1-08). Under the
    /// reciprocal rule one is invited before one is a member.
    #[must_use]
    pub fn is_invited(&self, author: PublicKey, strict: bool) -> bool {
        let listers = self.named_by.get(&author).into_iter().flatten().filter(|lister| **lister != author);
        // A hosted owner who names a lead elsewhere has no set at all until that lead's announcement is here.
        listers
            .into_iter()
            .any(|lister| self.is_hosted(*lister) || self.hosts_of(*lister, strict).any(|host| host != author))
    }

    /// The announcement that decides about a repository.
    #[must_use]
    pub fn best(&self, author: PublicKey) -> Option<&Announcement> {
        self.announcements.get(&author)?.best()
    }

    /// All keys from which `author` can be reached along names, itself included.
    fn reaching(&self, author: PublicKey) -> BTreeSet<PublicKey> {
        let mut reached = BTreeSet::from([author]);
        let mut frontier = vec![author];
        while let Some(key) = frontier.pop() {
            for lister in self.named_by.get(&key).into_iter().flatten() {
                if reached.insert(*lister) {
                    frontier.push(*lister);
                }
            }
        }
        reached
    }

    /// Changes one author's announcements and keeps everything that is derived from them true. Also gives who is named
    /// now and was not before, and the reverse.
    fn change<R>(&mut self, author: PublicKey, change: impl FnOnce(&mut Slots<Announcement>) -> R) -> Changed<R> {
        let slots = self.announcements.entry(author).or_default();
        let before = named(slots.best());
        let was_hosted = slots.best().is_some_and(Announcement::is_hosted);
        let result = change(slots);
        let after = named(slots.best());
        let is_hosted = slots.best().is_some_and(Announcement::is_hosted);
        if slots.is_empty() {
            self.announcements.remove(&author);
        }
        self.hosts = self.hosts + usize::from(is_hosted) - usize::from(was_hosted);
        for key in before.difference(&after) {
            if let Some(listers) = self.named_by.get_mut(key) {
                listers.remove(&author);
                if listers.is_empty() {
                    self.named_by.remove(key);
                }
            }
        }
        for key in after.difference(&before) {
            self.named_by.entry(*key).or_default().insert(author);
        }
        // Only the sets of repositories from which the author is reached can have changed.
        let reaching = self.reaching(author);
        self.sets.get_mut().retain(|owner, _| !reaching.contains(owner));
        Changed { result, added: &after - &before, removed: &before - &after }
    }

    fn is_empty(&self) -> bool {
        self.announcements.is_empty() && self.states.is_empty()
    }
}

/// What came of a change of announcements.
struct Changed<R> {
    result: R,
    added: BTreeSet<PublicKey>,
    removed: BTreeSet<PublicKey>,
}

fn named(announcement: Option<&Announcement>) -> BTreeSet<PublicKey> {
    announcement.map(|announcement| announcement.roles.members().iter().copied().collect()).unwrap_or_default()
}

/// All repositories of this service.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    families: BTreeMap<Identifier, Family>,
    /// Which families an author has something in, so that a vanishing author is found.
    by_author: BTreeMap<PublicKey, BTreeSet<Identifier>>,
    /// In how many announcements a key is named as a maintainer.
    named: BTreeMap<PublicKey, usize>,
}

impl Catalog {
    /// All that shares an identifier.
    #[must_use]
    pub fn family(&self, identifier: &Identifier) -> Option<&Family> {
        self.families.get(identifier)
    }

    /// The announcements of one repository.
    #[must_use]
    pub fn announcement(&self, repo: &RepoId) -> Option<&Slots<Announcement>> {
        self.family(&repo.identifier)?.announcement(repo.owner)
    }

    /// The names under which an author has something.
    pub fn identifiers_of(&self, author: PublicKey) -> impl Iterator<Item = &Identifier> {
        self.by_author.get(&author).into_iter().flatten()
    }

    /// How many repositories of a key are hosted here, or are to be.
    #[must_use]
    pub fn hosted_by(&self, owner: PublicKey) -> u64 {
        let families = self.identifiers_of(owner).filter_map(|identifier| self.family(identifier));
        families.filter(|family| family.is_hosted(owner)).count() as u64
    }

    /// Every repository that has an announcement.
    pub fn repositories(&self) -> impl Iterator<Item = (RepoId, &Slots<Announcement>)> {
        self.families.iter().flat_map(|(identifier, family)| {
            family
                .announcements()
                .map(move |(owner, slots)| (RepoId { owner: *owner, identifier: identifier.clone() }, slots))
        })
    }

    /// Puts an announcement in its place and gives back what stood there.
    pub fn put_announcement(&mut self, place: Place, announcement: Announcement) -> Option<Announcement> {
        let repo = announcement.repo.clone();
        self.change(&repo, |slots| slots.slot(place).replace(announcement))
    }

    /// Takes an announcement away if it still stands there.
    pub fn take_announcement(&mut self, place: Place, repo: &RepoId, id: EventId) -> Option<Announcement> {
        self.change(repo, |slots| slots.slot(place).take_if(|announcement| announcement.stamp.id == id))
    }

    /// Notes a held state. Gives back the oldest if there are too many side by side.
    pub fn hold_state(
        &mut self,
        author: PublicKey,
        identifier: &Identifier,
        stamp: Stamp,
        most: usize,
    ) -> Option<Stamp> {
        self.edit(author, identifier, |family| {
            let held = &mut family.states.entry(author).or_default().held;
            if held.contains(&stamp) {
                return None;
            }
            held.push(stamp);
            held.sort_by(
                |a, b| if supersedes(*a, *b) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater },
            );
            (held.len() > most).then(|| held.pop()).flatten()
        })
    }

    /// Notes that a state is served. Gives back the held versions that it makes obsolete, itself included.
    pub fn serve_state(&mut self, author: PublicKey, identifier: &Identifier, stamp: Stamp) -> Vec<Stamp> {
        self.edit(author, identifier, |family| {
            let states = family.states.entry(author).or_default();
            states.served = Some(stamp);
            states.held.extract_if(.., |held| *held == stamp || supersedes(stamp, *held)).collect()
        })
    }

    /// Forgets a state, wherever it stands.
    pub fn drop_state(&mut self, author: PublicKey, identifier: &Identifier, id: EventId) {
        self.edit(author, identifier, |family| {
            if let Some(states) = family.states.get_mut(&author) {
                states.served.take_if(|stamp| stamp.id == id);
                states.held.retain(|stamp| stamp.id != id);
                if states.served.is_none() && states.held.is_empty() {
                    family.states.remove(&author);
                }
            }
        });
    }

    /// What an author has under a name that is not newer than `up_to`: ids with their place and whether they are
    /// announcements.
    #[must_use]
    pub fn of_author_until(
        &self,
        author: PublicKey,
        identifier: &Identifier,
        up_to: Timestamp,
    ) -> Vec<(EventId, Place, bool)> {
        let Some(family) = self.family(identifier) else { return Vec::new() };
        let mut found = Vec::new();
        if let Some(slots) = family.announcement(author) {
            let places = [(Place::Served, &slots.served), (Place::Held, &slots.held)];
            found.extend(places.into_iter().filter_map(|(place, slot)| {
                slot.as_ref()
                    .filter(|announcement| announcement.stamp.created_at <= up_to)
                    .map(|announcement| (announcement.stamp.id, place, true))
            }));
        }
        if let Some(states) = family.states(author) {
            let places = states
                .served
                .iter()
                .map(|stamp| (Place::Served, stamp))
                .chain(states.held.iter().map(|stamp| (Place::Held, stamp)));
            found.extend(
                places.filter(|(_, stamp)| stamp.created_at <= up_to).map(|(place, stamp)| (stamp.id, place, false)),
            );
        }
        found
    }

    /// Whether any announcement here names a key as a maintainer.
    #[must_use]
    pub fn is_named(&self, key: PublicKey) -> bool {
        self.named.contains_key(&key)
    }

    fn change<R>(&mut self, repo: &RepoId, change: impl FnOnce(&mut Slots<Announcement>) -> R) -> R {
        let changed = self.edit(repo.owner, &repo.identifier, |family| family.change(repo.owner, change));
        for key in changed.added {
            *self.named.entry(key).or_default() += 1;
        }
        for key in changed.removed {
            if let Some(count) = self.named.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.named.remove(&key);
                }
            }
        }
        changed.result
    }

    fn edit<R>(&mut self, author: PublicKey, identifier: &Identifier, edit: impl FnOnce(&mut Family) -> R) -> R {
        let family = self.families.entry(identifier.clone()).or_default();
        let result = edit(family);
        let present = family.announcements.contains_key(&author) || family.states.contains_key(&author);
        if family.is_empty() {
            self.families.remove(identifier);
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

//! All announcements and states with one identifier, and who maintains which of the repositories.
//!
//! Announcements list maintainers, so they form a graph that any author can extend. What is derived from it is cached and
//! indexed, and walks stop as soon as the answer is known: an announcement may concern thousands of repositories.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::announcement::Announcement;
use super::catalog::{AuthorStates, EventStatus, Versions, newest_first};
use super::maintainers::{self, MaintainerRoles};
use super::state::StateDigest;
use super::work_counter::WorkCounter;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{EventId, EventVersion};

/// All announcements and states with one identifier.
#[derive(Clone, Debug, Default)]
pub struct RepoGroup {
    announcements: BTreeMap<PublicKey, Versions<Announcement>>,
    pub(super) states: BTreeMap<PublicKey, AuthorStates>,
    /// For each listed maintainer the keys whose announcements list it. It is followed backwards, from the author of a
    /// state to the repositories that the state may apply to.
    listed_by: BTreeMap<PublicKey, BTreeSet<PublicKey>>,
    /// Authors with an announcement that is here only by the maintainer exception.
    exceptions: BTreeSet<PublicKey>,
    /// The number of hosted repositories.
    hosted_total: usize,
    /// The number of repositories that are hosted by a served announcement.
    served_total: usize,
    /// Cache of maintainer sets, by the lead at which they start. A set is dropped when an announcement that it may depend
    /// on changes.
    sets: RefCell<BTreeMap<PublicKey, Arc<BTreeSet<PublicKey>>>>,
    /// Cache of [`inviter_status`](Self::inviter_status), until an announcement changes.
    inviters: RefCell<BTreeMap<PublicKey, Option<EventStatus>>>,
    /// Cache of [`search_owners`](Self::search_owners), until an announcement changes.
    search_owners: RefCell<BTreeMap<PublicKey, Arc<Vec<PublicKey>>>>,
    work: WorkCounter,
}

impl RepoGroup {
    /// Creates an empty group that counts its work.
    pub(super) fn new(work: WorkCounter) -> Self {
        Self { work, ..Self::default() }
    }

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

    /// Returns the number of hosted repositories.
    #[must_use]
    pub fn hosted_count(&self) -> usize {
        self.hosted_total
    }

    /// Whether any repository with this identifier is hosted here.
    #[must_use]
    pub fn has_hosted(&self) -> bool {
        self.hosted_total > 0
    }

    /// Returns the maintainer set of `owner`'s repository: the keys whose states apply to it.
    #[must_use]
    pub fn maintainers(&self, owner: PublicKey, strict: bool) -> Arc<BTreeSet<PublicKey>> {
        self.lead_of(owner).map(|lead| self.members_of_lead(lead, strict)).unwrap_or_default()
    }

    /// Whether a key is in the maintainer set of `owner`'s repository.
    #[must_use]
    pub fn is_maintainer(&self, owner: PublicKey, key: PublicKey, strict: bool) -> bool {
        // Most repositories are led by their owner, or list their maintainers directly, so that most sets are not needed.
        self.lead_of(owner).is_some_and(|lead| {
            self.is_direct_member(lead, key, strict) || self.members_of_lead(lead, strict).contains(&key)
        })
    }

    /// Whether a key is the lead, or a maintainer because the lead's announcement lists it.
    fn is_direct_member(&self, lead: PublicKey, key: PublicKey, strict: bool) -> bool {
        lead == key || maintainers::is_direct_member(lead, key, strict, |key| self.roles(key))
    }

    fn lead_of(&self, owner: PublicKey) -> Option<PublicKey> {
        self.work.add(1);
        maintainers::resolve_lead(owner, &|key| self.roles(key))
    }

    fn members_of_lead(&self, lead: PublicKey, strict: bool) -> Arc<BTreeSet<PublicKey>> {
        if let Some(set) = self.sets.borrow().get(&lead) {
            return set.clone();
        }
        let roles = |key: PublicKey| {
            self.work.add(1);
            self.roles(key)
        };
        let set = Arc::new(maintainers::members_of_lead(lead, strict, roles));
        self.sets.borrow_mut().insert(lead, set.clone());
        set
    }

    fn roles(&self, key: PublicKey) -> Option<&MaintainerRoles> {
        self.newest_announcement(key).map(|announcement| &announcement.roles)
    }

    /// Returns the owners of the hosted repositories that have `author` as a maintainer, its own first.
    pub fn maintained_by(&self, author: PublicKey, strict: bool) -> impl Iterator<Item = PublicKey> {
        // A maintainer can be reached from the owner along listings, so only the keys that reach `author` can be such
        // owners.
        self.reaching(author).filter(move |owner| self.is_hosted(*owner) && self.is_maintainer(*owner, author, strict))
    }

    /// Whether `author` is a maintainer of a hosted repository whose announcement is served.
    #[must_use]
    pub fn maintains_served(&self, author: PublicKey, strict: bool) -> bool {
        self.reaching(author)
            .any(|owner| self.is_served(owner) && self.is_hosted(owner) && self.is_maintainer(owner, author, strict))
    }

    /// Returns the owners of the hosted repositories in which the objects of an author's state are searched for, at most
    /// [`limits::MAX_OBJECT_CHECK_REPOS`]. The author's own repository and served ones come first, so that others who list
    /// the author as a maintainer cannot displace them; among these, the ones that list the author directly. The search in
    /// the others ends early if their maintainer sets are very large ([`limits::MAX_SEARCH_WORK`]).
    #[must_use]
    pub fn search_owners(&self, author: PublicKey, strict: bool) -> Arc<Vec<PublicKey>> {
        if let Some(owners) = self.search_owners.borrow().get(&author) {
            return owners.clone();
        }
        let mut ranked: Vec<PublicKey> = self.reaching(author).filter(|owner| self.is_hosted(*owner)).collect();
        let is_direct =
            |owner: PublicKey| self.lead_of(owner).is_some_and(|lead| self.is_direct_member(lead, author, strict));
        // Within a rank the nearest come first, because the author is probably in their maintainer sets.
        ranked.sort_by_cached_key(|owner| (*owner != author, !self.is_served(*owner), !is_direct(*owner)));
        let work_before = self.work.get();
        let ranked = ranked.into_iter();
        let ranked = ranked.take_while(|_| self.work.get() - work_before < limits::MAX_SEARCH_WORK);
        let maintained = ranked.filter(|owner| self.is_maintainer(*owner, author, strict));
        let owners: Arc<Vec<PublicKey>> = Arc::new(maintained.take(limits::MAX_OBJECT_CHECK_REPOS).collect());
        let mut cache = self.search_owners.borrow_mut();
        if cache.len() >= limits::MAX_CACHED_SEARCHES {
            cache.clear();
        }
        cache.insert(author, owners.clone());
        owners
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
        self.reaching(author).any(|owner| self.keeps_git_data(owner) && self.is_maintainer(owner, author, strict))
    }

    /// Returns the keys that can be reached from `members` along listings, at most `most`.
    #[must_use]
    pub fn keys_reachable_from(&self, members: &[PublicKey], most: usize) -> BTreeSet<PublicKey> {
        let mut reached: BTreeSet<PublicKey> = members.iter().copied().take(most).collect();
        let mut frontier: Vec<PublicKey> = reached.iter().copied().collect();
        while let Some(key) = frontier.pop() {
            for listed in self.roles(key).into_iter().flat_map(MaintainerRoles::members) {
                self.work.add(1);
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

    /// Returns the digest of a state that applies to `owner`'s repository.
    #[must_use]
    pub fn digest_of(&self, owner: PublicKey, id: EventId, strict: bool) -> Option<&Arc<StateDigest>> {
        let members = self.maintainers(owner, strict);
        members.iter().find_map(|member| self.states.get(member)?.digest(id))
    }

    /// Returns the authors with an announcement that is here only by the maintainer exception: it does not name this
    /// service, and is served as an exception or held.
    #[must_use]
    pub fn exceptions(&self) -> &BTreeSet<PublicKey> {
        &self.exceptions
    }

    /// Returns whether a maintainer of another owner's hosted repository lists `author`
    /// (docs/protocol.md#maintainer-exception): [`EventStatus::Served`] if a served announcement does and the repository is
    /// served, [`EventStatus::Held`] if that is so only when held announcements are counted. Under the reciprocal rule a key
    /// is invited before it is a member.
    #[must_use]
    pub fn invitation(&self, author: PublicKey, strict: bool) -> Option<EventStatus> {
        let mut best = None;
        // Listers that own a hosted repository come first: no walk is needed for them.
        for is_owner in [true, false] {
            for lister in self.listers_of(author).filter(|lister| self.is_hosted(*lister) == is_owner) {
                best = best.into_iter().chain(self.invitation_by(lister, author, strict)).min();
                let is_best = best == Some(EventStatus::Served) || (best.is_some() && self.served_total == 0);
                if is_best {
                    return best;
                }
            }
        }
        best
    }

    fn invitation_by(&self, lister: PublicKey, author: PublicKey, strict: bool) -> Option<EventStatus> {
        let status = if self.is_hosted(author) {
            // The author's own repository does not count.
            self.status_of_owners(lister, strict, |owner| owner != author)
        } else {
            self.inviter_status(lister, strict)
        };
        let is_listed = || self.served_announcement(lister).is_some_and(|served| served.roles.lists(author));
        match status {
            Some(EventStatus::Served) if !is_listed() => Some(EventStatus::Held),
            status => status,
        }
    }

    /// Whether another announcement of the maintainer exception by `author` is within the limits. A repository that the
    /// author is invited to must have fewer than [`limits::MAX_EXCEPTIONS_PER_REPOSITORY`], or fewer than
    /// [`limits::RESERVED_EXCEPTIONS_PER_REPOSITORY`] if there are many with this identifier.
    #[must_use]
    pub fn has_exception_capacity(&self, author: PublicKey, strict: bool) -> bool {
        let total = self.exceptions.len();
        let most = if total < limits::MAX_EXCEPTIONS_PER_IDENTIFIER {
            limits::MAX_EXCEPTIONS_PER_REPOSITORY
        } else {
            limits::RESERVED_EXCEPTIONS_PER_REPOSITORY
        };
        if self.exceptions.contains(&author) || total < most {
            return true;
        }
        let owners = |lister: PublicKey| self.maintained_by(lister, strict).take(1);
        // Owners that list the author directly come first.
        let direct = self.listers_of(author).filter(|lister| self.is_hosted(*lister));
        let hosting = direct.chain(self.listers_of(author).flat_map(owners));
        hosting.take(limits::MAX_EXCEPTION_OWNERS_CHECKED).any(|owner| self.has_fewer_exceptions(owner, most, strict))
    }

    /// Whether the maintainers of a repository list fewer than `most` exceptions.
    fn has_fewer_exceptions(&self, owner: PublicKey, most: usize, strict: bool) -> bool {
        let mut found = BTreeSet::new();
        let members = self.maintainers(owner, strict);
        for member in members.iter().chain([&owner]) {
            for key in self.roles(*member).into_iter().flat_map(MaintainerRoles::members) {
                self.work.add(1);
                if self.exceptions.contains(key) && found.insert(*key) && found.len() >= most {
                    return false;
                }
            }
        }
        true
    }

    /// Returns the other keys whose announcements list `author`.
    fn listers_of(&self, author: PublicKey) -> impl Iterator<Item = PublicKey> {
        self.listed_by.get(&author).into_iter().flatten().copied().filter(move |lister| *lister != author)
    }

    /// Returns the status of the hosted repositories that a key owns or maintains: [`EventStatus::Served`] if one is
    /// served, `None` if there is none.
    fn inviter_status(&self, key: PublicKey, strict: bool) -> Option<EventStatus> {
        if let Some(status) = self.inviters.borrow().get(&key) {
            return *status;
        }
        let status = self.status_of_owners(key, strict, |_| true);
        self.inviters.borrow_mut().insert(key, status);
        status
    }

    fn status_of_owners(
        &self,
        key: PublicKey,
        strict: bool,
        counts: impl Fn(PublicKey) -> bool,
    ) -> Option<EventStatus> {
        let mut best = None;
        for owner in self.reaching(key).filter(|owner| self.is_hosted(*owner) && counts(*owner)) {
            let is_served = self.is_served(owner);
            // If a hosted owner names a lead whose announcement is not here, its maintainer set is empty.
            if (best.is_some() && !is_served) || (owner != key && !self.is_maintainer(owner, key, strict)) {
                continue;
            }
            best = Some(if is_served { EventStatus::Served } else { EventStatus::Held });
            if is_served || self.served_total == 0 {
                break;
            }
        }
        best
    }

    fn served_announcement(&self, author: PublicKey) -> Option<&Announcement> {
        self.announcements.get(&author)?.served.as_ref()
    }

    /// Returns the announcement of an author that decides about its repository.
    #[must_use]
    pub fn newest_announcement(&self, author: PublicKey) -> Option<&Announcement> {
        self.announcements.get(&author)?.newest()
    }

    /// Iterates over all keys from which `author` can be reached along listings, the nearest first, beginning with `author`.
    fn reaching(&self, author: PublicKey) -> ReachingKeys<'_> {
        ReachingKeys { group: self, reached: BTreeSet::from([author]), frontier: VecDeque::from([author]), last: None }
    }

    /// Returns all keys from which `author` can be reached along listings, including `author`.
    #[must_use]
    pub fn keys_reaching(&self, author: PublicKey) -> BTreeSet<PublicKey> {
        self.keys_reaching_any([author])
    }

    /// Returns all keys from which one of `authors` can be reached along listings, including `authors`.
    #[must_use]
    pub fn keys_reaching_any(&self, authors: impl IntoIterator<Item = PublicKey>) -> BTreeSet<PublicKey> {
        let reached: BTreeSet<PublicKey> = authors.into_iter().collect();
        let frontier = reached.iter().copied().collect();
        let mut keys = ReachingKeys { group: self, reached, frontier, last: None };
        keys.by_ref().for_each(drop);
        keys.reached
    }

    /// Changes the announcements of one author and updates everything that is derived from them.
    pub(super) fn update_announcements<R>(
        &mut self,
        author: PublicKey,
        change: impl FnOnce(&mut Versions<Announcement>) -> R,
    ) -> GroupChange<R> {
        let (mut changed, before, after) = self.change_graph(author, change);
        changed.dependents = self.drop_derived(author, &before, &after);
        changed
    }

    /// Changes the announcements of one author while the group is restored. Nothing depends on it yet, so all caches are
    /// dropped, and no dependents are searched.
    pub(super) fn restore_announcements<R>(
        &mut self,
        author: PublicKey,
        change: impl FnOnce(&mut Versions<Announcement>) -> R,
    ) -> GroupChange<R> {
        self.sets.get_mut().clear();
        self.inviters.get_mut().clear();
        self.search_owners.get_mut().clear();
        self.change_graph(author, change).0
    }

    fn change_graph<R>(
        &mut self,
        author: PublicKey,
        change: impl FnOnce(&mut Versions<Announcement>) -> R,
    ) -> (GroupChange<R>, GraphEntry, GraphEntry) {
        let versions = self.announcements.entry(author).or_default();
        let before = GraphEntry::new(versions);
        let result = change(versions);
        let after = GraphEntry::new(versions);
        if versions.is_empty() {
            self.announcements.remove(&author);
        }
        self.hosted_total = self.hosted_total + usize::from(after.is_hosted) - usize::from(before.is_hosted);
        self.served_total = self.served_total + usize::from(after.is_served) - usize::from(before.is_served);
        let (old, new) = (listed_members(&before.roles), listed_members(&after.roles));
        let (added, removed): (BTreeSet<PublicKey>, BTreeSet<PublicKey>) = (&new - &old, &old - &new);
        for key in &removed {
            if let Some(listers) = self.listed_by.get_mut(key) {
                listers.remove(&author);
                if listers.is_empty() {
                    self.listed_by.remove(key);
                }
            }
        }
        for key in &added {
            self.listed_by.entry(*key).or_default().insert(author);
        }
        if after.is_exception {
            self.exceptions.insert(author);
        } else {
            self.exceptions.remove(&author);
        }
        (GroupChange { result, added, removed, dependents: None }, before, after)
    }

    /// Drops what the announcements of an author may have changed. Returns the keys whose maintainer sets may depend on
    /// them, if the change concerns maintainers or hosting.
    fn drop_derived(
        &mut self,
        author: PublicKey,
        before: &GraphEntry,
        after: &GraphEntry,
    ) -> Option<BTreeSet<PublicKey>> {
        if before != after {
            self.inviters.get_mut().clear();
            self.search_owners.get_mut().clear();
        }
        if before.is_hosted == after.is_hosted && before.roles == after.roles {
            return None;
        }
        let reaching = self.keys_reaching(author);
        // Only the sets of repositories from which the author can be reached may have changed.
        let sets = self.sets.get_mut();
        if sets.len() < reaching.len() {
            sets.retain(|lead, _| !reaching.contains(lead));
        } else {
            reaching.iter().for_each(|key| drop(sets.remove(key)));
        }
        Some(reaching)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.announcements.is_empty() && self.states.is_empty()
    }
}

/// The result of a change of announcements.
pub(super) struct GroupChange<R> {
    pub(super) result: R,
    /// Keys that are listed as maintainers now but were not before.
    pub(super) added: BTreeSet<PublicKey>,
    /// Keys that were listed before but are not now.
    pub(super) removed: BTreeSet<PublicKey>,
    /// The keys whose maintainer sets may depend on the author's announcement, if its maintainers or hosting changed.
    pub(super) dependents: Option<BTreeSet<PublicKey>>,
}

/// The part of an author's announcements that others depend on.
#[derive(PartialEq, Eq)]
struct GraphEntry {
    is_hosted: bool,
    is_served: bool,
    is_exception: bool,
    roles: Option<MaintainerRoles>,
    /// The maintainers in the served announcement, if it is not the newest.
    served_roles: Option<MaintainerRoles>,
}

impl GraphEntry {
    fn new(versions: &Versions<Announcement>) -> Self {
        let newest = versions.newest();
        let served = versions.served.as_ref();
        let is_exception = served.is_some_and(|served| served.is_exception && !served.is_hosted())
            || versions.held.as_ref().is_some_and(|held| !held.is_hosted());
        Self {
            is_hosted: newest.is_some_and(Announcement::is_hosted),
            is_served: served.is_some_and(Announcement::is_hosted),
            is_exception,
            roles: newest.map(|newest| newest.roles.clone()),
            served_roles: served.map(|served| served.roles.clone()),
        }
    }
}

fn listed_members(roles: &Option<MaintainerRoles>) -> BTreeSet<PublicKey> {
    roles.iter().flat_map(MaintainerRoles::members).copied().collect()
}

/// The keys from which others can be reached along listings. The keys that list a key are visited when the next one is
/// requested.
struct ReachingKeys<'a> {
    group: &'a RepoGroup,
    reached: BTreeSet<PublicKey>,
    frontier: VecDeque<PublicKey>,
    last: Option<PublicKey>,
}

impl Iterator for ReachingKeys<'_> {
    type Item = PublicKey;

    fn next(&mut self) -> Option<PublicKey> {
        let listers = self.last.take().and_then(|last| self.group.listed_by.get(&last));
        for lister in listers.into_iter().flatten() {
            self.group.work.add(1);
            if self.reached.insert(*lister) {
                self.frontier.push_back(*lister);
            }
        }
        self.last = self.frontier.pop_front();
        self.last
    }
}

#[cfg(test)]
mod tests;

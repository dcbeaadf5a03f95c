//! Descendants: served events that belong to a repository because they reference it, one of its root events, or another
//! descendant. Comments, reactions, labels and quotes are descendants, and so are the events that reference only those.
//!
//! Events that reference a descendant are requested like those that reference a root event. Deletion requests for
//! descendants are among them. Requests to vanish are requested by the authors of root events and descendants.
//!
//! [`collect`] derives the descendants of a repository from the store, generation by generation. Those that are served
//! afterwards are found with the ids in memory. Ids are stored once, whatever the number of relays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::io::{Descendant, Descendants, EventAuthor, RootEvent, Seq, ServedEvent};
use super::targets::RepoKey;
use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::{Coordinate, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::kinds::{self, KindClass};
use crate::repo::RepoId;
use crate::time::Timestamp;

/// Whether events of a kind are followed as descendants. Announcements and states belong to layer 1, and nothing
/// references deletion requests.
pub(super) fn can_be_descendant(kind: u16) -> bool {
    !matches!(kind, kinds::ANNOUNCEMENT | kinds::STATE | kinds::GRASP_LIST | kinds::DELETION | kinds::VANISH)
        && kinds::class(kind) != KindClass::Ephemeral
}

/// Collects the descendants of a repository, breadth first, each generation by time and id. An event that references
/// the repository or a root event has at most `descendant_limit` of them.
///
/// `matching` returns the served events that match a filter, in any order.
///
/// # Errors
///
/// Returns the first error of `matching`.
pub fn collect<E>(
    repo: &RepoId,
    roots: &[RootEvent],
    descendant_limit: usize,
    mut matching: impl FnMut(&Filter) -> Result<Vec<(Timestamp, ServedEvent)>, E>,
) -> Result<Descendants, E> {
    let d = repo.identifier.as_str().to_owned();
    let coordinate = Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.owner, d }.to_string();
    let root_ids: BTreeSet<EventId> = roots.iter().map(|root| root.id).collect();
    let mut authors = AuthorSet::default();
    for ids in roots.chunks(limits::DESCENDANT_QUERY_VALUES) {
        let filter = Filter { ids: Some(ids.iter().map(|root| root.id).collect()), ..Filter::default() };
        for (_, event) in matching(&filter)? {
            authors.add(event.seq, event.author, true);
        }
    }
    let mut known: BTreeMap<EventId, Seq> = BTreeMap::new();
    let mut by_coordinate: BTreeMap<Coordinate, Seq> = BTreeMap::new();
    let mut counts: BTreeMap<Seq, usize> = BTreeMap::new();
    let mut found = Vec::new();
    let mut ids: Vec<String> = roots.iter().map(|root| root.id.to_string()).collect();
    let mut coordinates = vec![coordinate];
    let mut is_first = true;
    while !ids.is_empty() || !coordinates.is_empty() {
        let mut generation: BTreeMap<(Timestamp, EventId), ServedEvent> = BTreeMap::new();
        for (letters, values) in [(b"eEq", &ids), (b"aAq", &coordinates)] {
            for values in values.chunks(limits::DESCENDANT_QUERY_VALUES) {
                let values = Arc::new(values.to_vec());
                for letter in letters {
                    let filter = Filter { tags: vec![(*letter, Arc::clone(&values))], ..Filter::default() };
                    for (created_at, event) in matching(&filter)? {
                        let is_new = !known.contains_key(&event.id) && !root_ids.contains(&event.id);
                        if is_new && can_be_descendant(event.kind) {
                            generation.insert((created_at, event.id), event);
                        }
                    }
                }
            }
        }
        (ids, coordinates) = (Vec::new(), Vec::new());
        let free = limits::MAX_FOLLOWED_DESCENDANTS_PER_REPOSITORY.saturating_sub(found.len());
        for event in generation.into_values().take(free) {
            let mut ancestors = event.ids.iter().filter_map(|id| known.get(id));
            let mut by_address = event.coordinates.iter().filter_map(|coordinate| by_coordinate.get(coordinate));
            let has_space = |ancestor: &&Seq| counts.get(ancestor).copied().unwrap_or(0) < descendant_limit;
            let ancestor = if is_first {
                event.seq
            } else if let Some(ancestor) = ancestors.find(has_space).or_else(|| by_address.find(has_space)) {
                *ancestor
            } else {
                continue;
            };
            if !is_first {
                *counts.entry(ancestor).or_default() += 1;
            }
            known.insert(event.id, ancestor);
            ids.push(event.id.to_string());
            let coordinate = event.coordinate.filter(|_| kinds::class(event.kind) == KindClass::Addressable);
            if let Some(coordinate) = &coordinate {
                by_coordinate.insert(coordinate.clone(), ancestor);
                coordinates.push(coordinate.to_string());
            }
            authors.add(event.seq, event.author, false);
            found.push(Descendant { seq: event.seq, id: event.id, coordinate, ancestor });
        }
        is_first = false;
    }
    found.sort_unstable();
    Ok(Descendants { events: found, authors: authors.into_sorted() })
}

/// Authors with the arrival of their first event.
#[derive(Default)]
struct AuthorSet(BTreeMap<PublicKey, EventAuthor>);

impl AuthorSet {
    fn add(&mut self, seq: Seq, key: PublicKey, is_root: bool) {
        let author = EventAuthor { seq, key, is_root };
        self.0.entry(key).and_modify(|first| *first = author.min(*first)).or_insert(author);
    }

    fn into_sorted(self) -> Vec<EventAuthor> {
        let mut authors: Vec<EventAuthor> = self.0.into_values().collect();
        authors.sort_unstable();
        authors
    }
}

/// Descendants of one repository.
#[derive(Clone, Debug, Default)]
pub(super) struct RepoDescendants {
    /// By arrival.
    events: Vec<FollowedEvent>,
    /// By arrival of their first event.
    authors: Vec<EventAuthor>,
}

/// A descendant, as stored in memory.
#[derive(Clone, Debug)]
pub(super) struct FollowedEvent {
    pub(super) seq: Seq,
    pub(super) id: EventId,
    pub(super) coordinate: Option<Box<str>>,
}

impl RepoDescendants {
    /// Returns the descendants that arrived after `after` and not later than `up_to`.
    pub(super) fn between(&self, after: Seq, up_to: Seq) -> &[FollowedEvent] {
        let from = self.events.partition_point(|event| event.seq <= after);
        let to = self.events.partition_point(|event| event.seq <= up_to);
        self.events.get(from..to.max(from)).unwrap_or_default()
    }

    /// Returns the authors whose first event arrived after `after` and not later than `up_to`.
    pub(super) fn authors_between(
        &self,
        after: Seq,
        up_to: Seq,
        is_root: bool,
    ) -> impl Iterator<Item = PublicKey> + Clone {
        let from = self.authors.partition_point(|author| author.seq <= after);
        let to = self.authors.partition_point(|author| author.seq <= up_to);
        let authors = self.authors.get(from..to.max(from)).unwrap_or_default();
        authors.iter().filter(move |author| author.is_root == is_root).map(|author| author.key)
    }

    /// Returns the arrival of the newest descendant, or 0.
    pub(super) fn newest_seq(&self) -> Seq {
        self.events.last().map_or(0, |event| event.seq)
    }

    /// Adds the author of a new root event.
    pub(super) fn add_root_author(&mut self, served: &ServedEvent) {
        self.add_author(EventAuthor { seq: served.seq, key: served.author, is_root: true });
    }

    /// Adds the author of a root event or descendant, unless it is known or there are too many.
    fn add_author(&mut self, author: EventAuthor) {
        if self.authors.len() < limits::MAX_FOLLOWED_AUTHORS_PER_REPOSITORY
            && !self.authors.iter().any(|known| known.key == author.key)
        {
            self.authors.push(author);
        }
    }
}

/// Index of root events and descendants by id, for all followed repositories.
#[derive(Debug, Default)]
pub(super) struct DescendantIndex {
    /// Root events: the first bytes of the id and the repository, packed; see [`pack_root`]. Several million of them
    /// have to fit into memory.
    roots: BTreeSet<u64>,
    /// Ancestors of descendants, by the first bytes of their ids; see [`Descendant::ancestor`].
    ancestors: BTreeMap<(u64, RepoKey), Seq>,
    /// The same by coordinate.
    ancestors_by_coordinate: BTreeMap<(Box<str>, RepoKey), Seq>,
    /// Number of descendants of each ancestor.
    counts: BTreeMap<(RepoKey, Seq), usize>,
}

/// Returns the entry of a root event in the index: five bytes of its id, and three of the repository's number. If two
/// ids have the same beginning, some events are requested in vain.
fn pack_root(id: EventId, repo: RepoKey) -> u64 {
    let [a, b, c, d, e, ..] = id.0;
    let [_, x, y, z] = repo.number().to_be_bytes();
    u64::from_be_bytes([a, b, c, d, e, x, y, z])
}

/// Returns the first eight bytes of an id.
fn id_prefix(id: EventId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

impl DescendantIndex {
    /// Adds a root event.
    pub(super) fn add_root(&mut self, repo: RepoKey, id: EventId) {
        self.roots.insert(pack_root(id, repo));
    }

    /// Adds stored descendants of a repository.
    pub(super) fn add_stored(&mut self, repo: RepoKey, descendants: &mut RepoDescendants, stored: Descendants) {
        for author in stored.authors {
            descendants.add_author(author);
        }
        for event in stored.events {
            if event.seq > descendants.newest_seq() {
                self.add(repo, descendants, event);
            }
        }
        descendants.events.shrink_to_fit();
        descendants.authors.shrink_to_fit();
    }

    /// Adds a served event if it is a descendant of the repository. Returns whether it was added.
    pub(super) fn add_served(
        &mut self,
        repo: RepoKey,
        descendants: &mut RepoDescendants,
        served: &ServedEvent,
        references_repo: bool,
        descendant_limit: usize,
    ) -> bool {
        if served.seq <= descendants.newest_seq() {
            return false;
        }
        let is_direct = references_repo || served.ids.iter().any(|id| self.roots.contains(&pack_root(*id, repo)));
        let ancestor = if is_direct { Some(served.seq) } else { self.find_ancestor(repo, served, descendant_limit) };
        let Some(ancestor) = ancestor else { return false };
        let coordinate = served.coordinate.clone().filter(|_| kinds::class(served.kind) == KindClass::Addressable);
        let is_added = self.add(repo, descendants, Descendant { seq: served.seq, id: served.id, coordinate, ancestor });
        if is_added {
            descendants.add_author(EventAuthor { seq: served.seq, key: served.author, is_root: false });
        }
        is_added
    }

    /// Returns the ancestor of an event that references a descendant, if it has not too many descendants.
    fn find_ancestor(&self, repo: RepoKey, served: &ServedEvent, descendant_limit: usize) -> Option<Seq> {
        let by_id = served.ids.iter().filter_map(|id| self.ancestors.get(&(id_prefix(*id), repo)));
        let by_coordinate = served
            .coordinates
            .iter()
            .filter_map(|coordinate| self.ancestors_by_coordinate.get(&(coordinate.to_string().into(), repo)));
        by_id
            .chain(by_coordinate)
            .find(|ancestor| self.counts.get(&(repo, **ancestor)).copied().unwrap_or(0) < descendant_limit)
            .copied()
    }

    fn add(&mut self, repo: RepoKey, descendants: &mut RepoDescendants, event: Descendant) -> bool {
        if self.ancestors.len() >= limits::MAX_FOLLOWED_DESCENDANTS
            || descendants.events.len() >= limits::MAX_FOLLOWED_DESCENDANTS_PER_REPOSITORY
        {
            return false;
        }
        let Descendant { seq, id, coordinate, ancestor } = event;
        if ancestor != seq {
            *self.counts.entry((repo, ancestor)).or_default() += 1;
        }
        self.ancestors.insert((id_prefix(id), repo), ancestor);
        let coordinate: Option<Box<str>> = coordinate
            .map(|coordinate| coordinate.to_string())
            .filter(|coordinate| coordinate.len() <= limits::MAX_FOLLOWED_COORDINATE_BYTES)
            .map(Into::into);
        if let Some(coordinate) = &coordinate {
            self.ancestors_by_coordinate.insert((coordinate.clone(), repo), ancestor);
        }
        descendants.events.push(FollowedEvent { seq, id, coordinate });
        true
    }

    /// Returns the repositories of which an event may be a descendant, because it references one of their root events
    /// or descendants.
    pub(super) fn referenced_repos(&self, served: &ServedEvent) -> BTreeSet<RepoKey> {
        let mut repos = BTreeSet::new();
        if !can_be_descendant(served.kind) {
            return repos;
        }
        for id in &served.ids {
            let from = pack_root(*id, RepoKey::MIN);
            repos.extend(self.roots.range(from..=from | 0xff_ffff).map(|entry| RepoKey::from_number(*entry as u32)));
            let prefix = id_prefix(*id);
            let range = (prefix, RepoKey::MIN)..=(prefix, RepoKey::MAX);
            repos.extend(self.ancestors.range(range).map(|((_, repo), _)| *repo));
        }
        for coordinate in &served.coordinates {
            let text: Box<str> = coordinate.to_string().into();
            let range = (text.clone(), RepoKey::MIN)..=(text, RepoKey::MAX);
            repos.extend(self.ancestors_by_coordinate.range(range).map(|((_, repo), _)| *repo));
        }
        repos
    }

    /// Returns the repositories that have a root event or descendant with this id or coordinate.
    pub(super) fn repos_with_event(&self, reference: &str) -> impl Iterator<Item = RepoKey> {
        let id = EventId::from_hex(reference);
        let roots = id.map(|id| pack_root(id, RepoKey::MIN)).into_iter();
        let roots = roots.flat_map(|from| self.roots.range(from..=from | 0xff_ffff));
        let prefix = id.map(id_prefix).into_iter();
        let ids = prefix.flat_map(|prefix| self.ancestors.range((prefix, RepoKey::MIN)..=(prefix, RepoKey::MAX)));
        let coordinate: Option<Box<str>> = id.is_none().then(|| reference.into());
        let coordinates = coordinate
            .into_iter()
            .flat_map(|text| self.ancestors_by_coordinate.range((text.clone(), RepoKey::MIN)..=(text, RepoKey::MAX)));
        let roots = roots.map(|entry| RepoKey::from_number(*entry as u32));
        roots.chain(ids.map(|((_, repo), _)| *repo)).chain(coordinates.map(|((_, repo), _)| *repo))
    }

    /// Removes everything of a repository that is no longer followed.
    pub(super) fn remove_repo(&mut self, repo: RepoKey, roots: &[RootEvent], descendants: &RepoDescendants) {
        for root in roots {
            self.roots.remove(&pack_root(root.id, repo));
        }
        for event in &descendants.events {
            if let Some(ancestor) = self.ancestors.remove(&(id_prefix(event.id), repo)) {
                self.counts.remove(&(repo, ancestor));
            }
            if let Some(coordinate) = &event.coordinate {
                self.ancestors_by_coordinate.remove(&(coordinate.clone(), repo));
            }
        }
    }
}

#[cfg(test)]
mod tests;

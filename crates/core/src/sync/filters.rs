//! Scopes of requests, and their filters.
//!
//! A scope consists of repositories and ranges of their root events, not of lists of ids. Filters are built when they
//! are sent and then dropped, so that a hundred relays do not store the same ids a hundred times.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::descendants::FollowedEvent;
use super::io::Seq;
use super::relay_limits::ConnectionLimits;
use super::targets::{IndexedRepo, RepoKey, RepoSyncIndex};
use crate::nostr::event::{Event, EventId};
use crate::nostr::filter::Filter;
use crate::nostr::{PublicKey, hex, kinds};
use crate::repo::Identifier;

/// Root events or descendants of a repository that arrived after `after` and not later than `up_to`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ArrivalRange {
    pub(super) repo: RepoKey,
    pub(super) after: Seq,
    pub(super) up_to: Seq,
}

/// A part of the repository needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct SyncScope {
    /// Layer 1: announcements, then states.
    pub(super) announcements: Option<IdentifierSet>,
    /// Layer 2: events that reference these repositories, and deletion requests of their maintainers.
    pub(super) repos: Vec<RepoKey>,
    /// Layer 3: events that reference these root events, and requests of their authors to vanish.
    pub(super) roots: Vec<ArrivalRange>,
    /// Layer 4: the same for descendants. A scope with descendants contains nothing else.
    pub(super) descendants: Vec<ArrivalRange>,
    /// Everything, with one filter without tags.
    pub(super) wide: bool,
}

/// Identifiers whose announcements are requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum IdentifierSet {
    /// All of them, to find repositories that list this service.
    All,
    /// Only these, from a relay that only held announcements list.
    Only(Vec<Identifier>),
}

impl SyncScope {
    /// Returns the scope of everything that a relay has.
    pub(super) fn wide() -> Self {
        Self { wide: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_core_empty = self.announcements.is_none() && self.repos.is_empty() && self.roots.is_empty();
        is_core_empty && self.descendants.is_empty() && !self.wide
    }

    /// Whether it consists of descendants. They are followed only where the other layers leave space.
    pub(super) fn is_descendants(&self) -> bool {
        !self.descendants.is_empty()
    }

    /// Returns the scope of layer 1.
    pub(super) fn announcements(identifiers: IdentifierSet) -> Self {
        Self { announcements: Some(identifiers), ..Self::default() }
    }

    /// Whether an event matches its filters, apart from their times. Root events and descendants outside its ranges and
    /// removal requests of any author match too: this only has to keep out what was never requested.
    pub(super) fn matches(&self, repo_index: &RepoSyncIndex, event: &Event) -> bool {
        let is_layer_one = match &self.announcements {
            None => false,
            Some(IdentifierSet::All) => {
                matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE | kinds::GRASP_LIST)
            }
            Some(IdentifierSet::Only(identifiers)) => {
                let mut values = event.values("d");
                matches!(event.kind, kinds::ANNOUNCEMENT | kinds::STATE)
                    && values.any(|value| identifiers.iter().any(|identifier| identifier.as_str() == value))
            }
        };
        let follows_repos = !(self.repos.is_empty() && self.roots.is_empty() && self.descendants.is_empty());
        let is_removal = matches!(event.kind, kinds::DELETION | kinds::VANISH);
        let has_repo = |key| self.repos.binary_search(&key).is_ok();
        let has_range = |key| [&self.roots, &self.descendants].iter().any(|ranges| has_range_of(ranges, key));
        self.wide
            || is_layer_one
            || follows_repos
                && (is_removal
                    || event.indexed_tags().filter(|(letter, _)| b"aAeEq".contains(letter)).any(|(_, value)| {
                        repo_index.repo_at(value).is_some_and(has_repo)
                            || repo_index.repos_with_event(value).any(has_range)
                    }))
    }

    /// Adds another scope.
    pub(super) fn merge(&mut self, other: &Self) {
        if self.announcements.is_none() {
            self.announcements.clone_from(&other.announcements);
        }
        self.repos.extend(&other.repos);
        self.repos.sort_unstable();
        self.repos.dedup();
        merge_ranges(&mut self.roots, &other.roots);
        merge_ranges(&mut self.descendants, &other.descendants);
    }

    /// Whether both scopes contain the same announcements, repository, root events or descendants.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let have_shared = |ranges: &[ArrivalRange], others: &[ArrivalRange]| {
            ranges.iter().any(|range| {
                others
                    .iter()
                    .any(|other| range.repo == other.repo && range.after < other.up_to && other.after < range.up_to)
            })
        };
        (self.announcements.is_some() && other.announcements.is_some())
            || self.repos.iter().any(|repo| other.repos.contains(repo))
            || have_shared(&self.roots, &other.roots)
            || have_shared(&self.descendants, &other.descendants)
    }

    /// Returns its repositories, each once.
    pub(super) fn all_repos(&self) -> BTreeSet<RepoKey> {
        let ranges = self.roots.iter().chain(&self.descendants);
        self.repos.iter().copied().chain(ranges.map(|range| range.repo)).collect()
    }

    /// Removes repositories that are not followed any more.
    pub(super) fn retain(&mut self, is_followed: impl Fn(RepoKey) -> bool) {
        self.repos.retain(|repo| is_followed(*repo));
        self.roots.retain(|range| is_followed(range.repo));
        self.descendants.retain(|range| is_followed(range.repo));
    }

    /// Returns the size of its filters.
    pub(super) fn size(&self, repo_index: &RepoSyncIndex) -> FilterSize {
        let mut size = FilterSize::default();
        for repo in self.repos.iter().filter_map(|key| repo_index.repo(*key)) {
            size.add_repo(repo);
        }
        for range in &self.roots {
            let Some(repo) = repo_index.repo(range.repo) else { continue };
            size.add_roots(repo.roots_between(range.after, range.up_to).len());
            size.add_authors(repo.descendants.authors_between(range.after, range.up_to, true).count());
        }
        for range in &self.descendants {
            let Some(repo) = repo_index.repo(range.repo) else { continue };
            size.add_descendants(repo.descendants.between(range.after, range.up_to));
            size.add_authors(repo.descendants.authors_between(range.after, range.up_to, false).count());
        }
        if let Some(IdentifierSet::Only(identifiers)) = &self.announcements {
            size.bytes += identifiers.iter().map(|identifier| json_len(identifier.as_str())).sum::<usize>();
        }
        size
    }

    /// Whether it has filters. A repository or event may have been removed since it was created.
    pub(super) fn has_filters(&self, repo_index: &RepoSyncIndex) -> bool {
        self.wide || self.announcements.is_some() || self.size(repo_index).bytes > 0
    }

    /// Returns the filters, without `since` and `limit`. Each has at most one tag, because the conditions of a filter
    /// are joined by *and*.
    pub(super) fn filters(&self, repo_index: &RepoSyncIndex, max_values: usize) -> Vec<Filter> {
        let mut filters = Vec::new();
        if self.wide {
            return vec![Filter::default()];
        }
        if let Some(identifiers) = &self.announcements {
            filters.extend([kinds::ANNOUNCEMENT, kinds::STATE].map(|kind| layer_one_filter(kind, identifiers)));
        }
        let max_values = max_values.max(1);
        let mut coordinates = Vec::new();
        let mut maintainers = Vec::new();
        for repo in self.repos.iter().filter_map(|key| repo_index.repo(*key)) {
            coordinates.push(repo.coordinate.clone());
            maintainers.extend(&repo.authors);
        }
        let mut ids: Vec<EventId> = Vec::new();
        let mut authors: Vec<PublicKey> = Vec::new();
        for ArrivalRange { repo, after, up_to } in &self.roots {
            let Some(repo) = repo_index.repo(*repo) else { continue };
            ids.extend(repo.roots_between(*after, *up_to).iter().map(|root| root.id));
            authors.extend(repo.descendants.authors_between(*after, *up_to, true));
        }
        for ArrivalRange { repo, after, up_to } in &self.descendants {
            let Some(repo) = repo_index.repo(*repo) else { continue };
            for event in repo.descendants.between(*after, *up_to) {
                ids.push(event.id);
                coordinates.extend(event.coordinate.as_ref().map(|coordinate| coordinate.to_string()));
            }
            authors.extend(repo.descendants.authors_between(*after, *up_to, false));
        }
        coordinates.sort_unstable();
        coordinates.dedup();
        filters.extend(reference_filters(*b"aAq", coordinates, max_values));
        ids.sort_unstable();
        ids.dedup();
        let ids: Vec<String> = ids.iter().map(|id| hex::encode(&id.0)).collect();
        filters.extend(reference_filters(*b"eEq", ids, max_values));
        maintainers.sort_unstable();
        maintainers.dedup();
        authors.sort_unstable();
        authors.dedup();
        for (authors, kinds) in [(maintainers, vec![kinds::DELETION, kinds::VANISH]), (authors, vec![kinds::VANISH])] {
            filters.extend(authors.chunks(max_values).map(|authors| Filter {
                authors: Some(authors.to_vec()),
                kinds: Some(kinds.clone()),
                ..Filter::default()
            }));
        }
        filters
    }
}

/// Whether one of the sorted ranges belongs to a repository.
fn has_range_of(ranges: &[ArrivalRange], repo: RepoKey) -> bool {
    let at = ranges.partition_point(|range| range.repo < repo);
    ranges.get(at).is_some_and(|range| range.repo == repo)
}

/// Adds ranges to sorted ranges, and joins those that touch.
fn merge_ranges(ranges: &mut Vec<ArrivalRange>, other: &[ArrivalRange]) {
    ranges.extend(other);
    ranges.sort_unstable();
    ranges.dedup_by(|range, last| {
        let is_joined = last.repo == range.repo && range.after <= last.up_to;
        if is_joined {
            last.up_to = last.up_to.max(range.up_to);
        }
        is_joined
    });
}

/// Returns the filters of events that reference one of these values with one of three tags.
fn reference_filters(letters: [u8; 3], values: Vec<String>, max_values: usize) -> Vec<Filter> {
    let mut values = values.into_iter();
    let mut chunks: Vec<Arc<Vec<String>>> = Vec::with_capacity(values.len().div_ceil(max_values));
    while values.len() > 0 {
        chunks.push(Arc::new(values.by_ref().take(max_values).collect()));
    }
    letters.iter().flat_map(|letter| chunks.iter().map(|values| tag_filter(*letter, Arc::clone(values)))).collect()
}

/// Returns a filter of layer 1. Announcements are requested together with users' lists of GRASP servers, which have no
/// identifier.
pub(super) fn layer_one_filter(kind: u16, identifiers: &IdentifierSet) -> Filter {
    let mut kinds = vec![kind];
    let tags = match identifiers {
        IdentifierSet::All => {
            kinds.extend((kind == kinds::ANNOUNCEMENT).then_some(kinds::GRASP_LIST));
            Vec::new()
        }
        IdentifierSet::Only(identifiers) => {
            let mut values: Vec<String> = identifiers.iter().map(|identifier| identifier.as_str().to_owned()).collect();
            values.sort_unstable();
            values.dedup();
            vec![(b'd', Arc::new(values))]
        }
    };
    Filter { kinds: Some(kinds), tags, ..Filter::default() }
}

/// Whether a filter is the one of layer 1 for states.
pub(super) fn is_state_filter(filter: &Filter) -> bool {
    filter.kinds.as_deref() == Some(&[kinds::STATE])
}

fn tag_filter(tag: u8, values: Arc<Vec<String>>) -> Filter {
    Filter { tags: vec![(tag, values)], ..Filter::default() }
}

/// Returns the bytes of a value in a filter, with quotes, comma and escapes.
pub(super) fn json_len(value: &str) -> usize {
    // Two sums without branches, which the compiler turns into vector instructions: filters have many values.
    let quotes = value.bytes().map(|byte| usize::from(byte == b'"' || byte == b'\\')).sum::<usize>();
    let controls = value.bytes().map(|byte| usize::from(byte < 0x20)).sum::<usize>();
    value.len() + 3 + quotes + 5 * controls
}

/// Returns the bytes of the values of a tag in a filter.
fn values_len(letter: u8, values: &[String]) -> usize {
    // Filters have many event ids, which need no escapes. Coordinates, the other values of these tags, are longer.
    let is_id = |value: &String| matches!(letter, b'e' | b'E' | b'q') && value.len() + 3 == ID_BYTES;
    values.iter().map(|value| if is_id(value) { ID_BYTES } else { json_len(value) }).sum()
}

/// Size of the filters of a scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FilterSize {
    pub(super) repos: usize,
    /// Root events or descendants.
    pub(super) roots: usize,
    /// Authors whose requests to vanish are followed.
    pub(super) authors: usize,
    /// Bytes of all filters together.
    pub(super) bytes: usize,
}

/// Bytes of an id in a filter: 64 digits, quotes and comma.
pub(super) const ID_BYTES: usize = 67;

/// Approximate bytes of a filter without its values.
pub(super) const FILTER_OVERHEAD_BYTES: usize = 80;

impl FilterSize {
    /// Returns the size of a repository with all its root events.
    pub(super) fn from_repo(repo: &IndexedRepo) -> Self {
        let mut size = Self::default();
        size.add_repo(repo);
        size.add_roots(repo.roots.len());
        size
    }

    fn add_repo(&mut self, repo: &IndexedRepo) {
        self.repos += 1;
        self.bytes += 3 * json_len(&repo.coordinate) + repo.authors.len() * ID_BYTES;
    }

    fn add_roots(&mut self, roots: usize) {
        self.roots += roots;
        self.bytes += 3 * roots * ID_BYTES;
    }

    fn add_descendants(&mut self, events: &[FollowedEvent]) {
        self.add_roots(events.len());
        let coordinates = events.iter().filter_map(|event| event.coordinate.as_ref());
        self.bytes += coordinates.map(|coordinate| 3 * json_len(coordinate)).sum::<usize>();
    }

    fn add_authors(&mut self, authors: usize) {
        self.authors += authors;
        self.bytes += authors * ID_BYTES;
    }

    /// Adds a number of root events.
    pub(super) fn with_roots(mut self, roots: usize) -> Self {
        self.add_roots(roots);
        self
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            repos: self.repos + other.repos,
            roots: self.roots + other.roots,
            authors: self.authors + other.authors,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Returns the number of filters with at most `max_values` values each.
    pub(super) fn filters(self, max_values: usize) -> usize {
        let chunks = |count: usize| count.div_ceil(max_values.max(1));
        3 * chunks(self.repos) + 3 * chunks(self.roots) + chunks(self.repos) + chunks(self.authors)
    }
}

/// Maximum size of one batch on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BatchCapacity {
    /// Maximum number of values of one filter.
    pub(super) values: usize,
    /// Maximum bytes of all filters.
    pub(super) bytes: usize,
}

impl BatchCapacity {
    /// Uses the configured number of values per filter, or as many as the relay's limits allow if all needs would
    /// otherwise not fit into its live subscriptions.
    pub(super) fn new(relay_limits: &ConnectionLimits, max_values: usize, total_size: FilterSize) -> Self {
        // 512 bytes for the braces and names of seven filters, the verb and the subscription id.
        let bytes = relay_limits.req_bytes.saturating_sub(512).max(1_024);
        let max_packed = (relay_limits.filter_bytes / ID_BYTES).max(1);
        let usual = max_values.min(max_packed);
        let needed = total_size.roots.div_ceil(usual).max(total_size.repos.div_ceil(usual)) + 1;
        let fits =
            needed <= relay_limits.max_live_subscriptions as usize && total_size.bytes <= relay_limits.live_bytes;
        Self { values: if fits { usual } else { max_packed }, bytes }
    }

    /// Uses as many values as the relay's limits allow. Descendants are many, and few events reference them.
    pub(super) fn packed(relay_limits: &ConnectionLimits) -> Self {
        let bytes = relay_limits.req_bytes.saturating_sub(512).max(1_024);
        Self { values: (relay_limits.filter_bytes / ID_BYTES).max(1), bytes }
    }
}

/// Builds a scope up to a maximum size.
pub(super) struct ScopeBuilder<'w> {
    repo_index: &'w RepoSyncIndex,
    capacity: BatchCapacity,
    pub(super) scope: SyncScope,
    size: FilterSize,
}

impl<'w> ScopeBuilder<'w> {
    pub(super) fn new(repo_index: &'w RepoSyncIndex, capacity: BatchCapacity) -> Self {
        Self { repo_index, capacity, scope: SyncScope::default(), size: FilterSize::default() }
    }

    /// Adds a repository without its root events. Returns `false` if there is no space.
    pub(super) fn add_repo(&mut self, key: RepoKey) -> bool {
        let Some(repo) = self.repo_index.repo(key) else { return true };
        let mut size = self.size;
        size.add_repo(repo);
        let fits = size.repos <= self.capacity.values && size.bytes <= self.capacity.bytes;
        if !fits && !self.scope.is_empty() {
            return false;
        }
        self.size = size;
        self.scope.repos.push(key);
        true
    }

    /// Adds root events of a repository, as many as there is space for. Returns the arrival up to which they were added.
    pub(super) fn add_roots(&mut self, key: RepoKey, after: Seq, up_to: Seq) -> Seq {
        let Some(repo) = self.repo_index.repo(key) else { return up_to };
        let roots = repo.roots_between(after, up_to);
        let by_values = self.capacity.values.saturating_sub(self.size.roots);
        let by_bytes = self.capacity.bytes.saturating_sub(self.size.bytes) / (3 * ID_BYTES);
        let free = if self.scope.is_empty() { by_values.min(by_bytes).max(1) } else { by_values.min(by_bytes) };
        let added = roots.len().min(free);
        let reached = if added == roots.len() {
            up_to
        } else {
            roots.get(..added).and_then(<[_]>::last).map_or(after, |root| root.seq)
        };
        if added > 0 {
            self.size.add_roots(added);
            self.size.add_authors(repo.descendants.authors_between(after, reached, true).count());
            self.scope.roots.push(ArrivalRange { repo: key, after, up_to: reached });
        }
        reached
    }

    /// Adds descendants of a repository, as many as there is space for. Returns the arrival up to which they were added.
    pub(super) fn add_descendants(&mut self, key: RepoKey, after: Seq, up_to: Seq) -> Seq {
        let Some(repo) = self.repo_index.repo(key) else { return up_to };
        let events = repo.descendants.between(after, up_to);
        let mut size = self.size;
        let fits = |event: &FollowedEvent| {
            size.add_descendants(std::slice::from_ref(event));
            size.roots <= self.capacity.values && size.bytes <= self.capacity.bytes
        };
        let fitting = events.iter().map(fits).take_while(|fits| *fits).count();
        // At least one fits into an empty scope.
        let count = if self.scope.is_empty() { fitting.max(1).min(events.len()) } else { fitting };
        let added = events.get(..count).unwrap_or_default();
        let reached = if count == events.len() { up_to } else { added.last().map_or(after, |event| event.seq) };
        if !added.is_empty() {
            self.size.add_descendants(added);
            self.size.add_authors(repo.descendants.authors_between(after, reached, false).count());
            self.scope.descendants.push(ArrivalRange { repo: key, after, up_to: reached });
        }
        reached
    }
}

/// Packs filters into requests within the limits of a relay.
pub(super) fn pack_requests(filters: Vec<Filter>, relay_limits: &ConnectionLimits) -> Vec<Vec<Filter>> {
    let mut requests: Vec<Vec<Filter>> = Vec::new();
    let mut size = 0;
    for filter in filters {
        let length = json_bytes(&filter);
        match requests.last_mut() {
            Some(last)
                if last.len() < relay_limits.max_filters.max(1) as usize && size + length <= relay_limits.req_bytes =>
            {
                size += length;
                last.push(filter);
            }
            _ => {
                size = length;
                requests.push(vec![filter]);
            }
        }
    }
    requests
}

/// Returns the approximate size of a filter as JSON.
pub(super) fn json_bytes(filter: &Filter) -> usize {
    let tags: usize = filter.tags.iter().map(|(letter, values)| values_len(*letter, values)).sum();
    let ids = filter.ids.as_ref().map_or(0, Vec::len) + filter.authors.as_ref().map_or(0, Vec::len);
    FILTER_OVERHEAD_BYTES + tags + ids * ID_BYTES
}

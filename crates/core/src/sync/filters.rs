//! Scopes of requests, and their filters.
//!
//! A scope consists of repositories and ranges of their root events, not of lists of ids. Filters are built when they
//! are sent and then dropped, so that a hundred relays do not store the same ids a hundred times.

use std::collections::BTreeSet;

use super::io::Seq;
use super::relay_limits::ConnectionLimits;
use super::targets::{IndexedRepo, RepoKey, RepoSyncIndex};
use crate::nostr::filter::Filter;
use crate::nostr::kinds;
use crate::repo::Identifier;

/// Root events of a repository that arrived after `after` and not later than `up_to`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RootRange {
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
    /// Layer 3: events that reference these root events.
    pub(super) roots: Vec<RootRange>,
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
        self.announcements.is_none() && self.repos.is_empty() && self.roots.is_empty() && !self.wide
    }

    /// Returns the scope of layer 1.
    pub(super) fn announcements(identifiers: IdentifierSet) -> Self {
        Self { announcements: Some(identifiers), ..Self::default() }
    }

    /// Adds another scope.
    pub(super) fn merge(&mut self, other: &Self) {
        if self.announcements.is_none() {
            self.announcements.clone_from(&other.announcements);
        }
        self.repos.extend(&other.repos);
        self.repos.sort_unstable();
        self.repos.dedup();
        self.roots.extend(&other.roots);
        self.roots.sort_unstable();
        let mut merged: Vec<RootRange> = Vec::with_capacity(self.roots.len());
        for range in self.roots.drain(..) {
            match merged.last_mut() {
                Some(last) if last.repo == range.repo && range.after <= last.up_to => {
                    last.up_to = last.up_to.max(range.up_to)
                }
                _ => merged.push(range),
            }
        }
        self.roots = merged;
    }

    /// Whether both scopes contain the same announcements, repository or root events.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let is_shared = |range: &RootRange, other: &RootRange| {
            range.repo == other.repo && range.after < other.up_to && other.after < range.up_to
        };
        (self.announcements.is_some() && other.announcements.is_some())
            || self.repos.iter().any(|repo| other.repos.contains(repo))
            || self.roots.iter().any(|range| other.roots.iter().any(|other| is_shared(range, other)))
    }

    /// Returns its repositories, each once.
    pub(super) fn all_repos(&self) -> BTreeSet<RepoKey> {
        self.repos.iter().copied().chain(self.roots.iter().map(|range| range.repo)).collect()
    }

    /// Removes repositories that are not followed any more.
    pub(super) fn retain(&mut self, is_followed: impl Fn(RepoKey) -> bool) {
        self.repos.retain(|repo| is_followed(*repo));
        self.roots.retain(|range| is_followed(range.repo));
    }

    /// Returns the size of its filters.
    pub(super) fn size(&self, repo_index: &RepoSyncIndex) -> FilterSize {
        let mut size = FilterSize::default();
        for repo in self.repos.iter().filter_map(|key| repo_index.repo(*key)) {
            size.add_repo(repo);
        }
        for range in &self.roots {
            let roots =
                repo_index.repo(range.repo).map_or(0, |repo| repo.roots_between(range.after, range.up_to).len());
            size.add_roots(roots);
        }
        if let Some(IdentifierSet::Only(identifiers)) = &self.announcements {
            size.bytes += identifiers.iter().map(|identifier| json_len(identifier.as_str())).sum::<usize>();
        }
        size
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
        let mut coordinates = Vec::new();
        let mut authors = Vec::new();
        for repo in self.repos.iter().filter_map(|key| repo_index.repo(*key)) {
            coordinates.push(repo.coordinate.clone());
            authors.extend(&repo.authors);
        }
        authors.sort_unstable();
        authors.dedup();
        coordinates.sort_unstable();
        for tag in [b'a', b'A', b'q'] {
            filters.extend(coordinates.chunks(max_values.max(1)).map(|values| tag_filter(tag, values.to_vec())));
        }
        let mut ids: Vec<String> = Vec::new();
        for range in &self.roots {
            let roots = repo_index
                .repo(range.repo)
                .map(|repo| repo.roots_between(range.after, range.up_to))
                .unwrap_or_default();
            ids.extend(roots.iter().map(|root| root.id.to_string()));
        }
        ids.sort_unstable();
        ids.dedup();
        for tag in [b'e', b'E', b'q'] {
            filters.extend(ids.chunks(max_values.max(1)).map(|values| tag_filter(tag, values.to_vec())));
        }
        for authors in authors.chunks(max_values.max(1)) {
            let kinds = Some(vec![kinds::DELETION, kinds::VANISH]);
            filters.push(Filter { authors: Some(authors.to_vec()), kinds, ..Filter::default() });
        }
        filters
    }
}

/// Returns a filter of layer 1.
pub(super) fn layer_one_filter(kind: u16, identifiers: &IdentifierSet) -> Filter {
    let tags = match identifiers {
        IdentifierSet::All => Vec::new(),
        IdentifierSet::Only(identifiers) => {
            let mut values: Vec<String> = identifiers.iter().map(|identifier| identifier.as_str().to_owned()).collect();
            values.sort_unstable();
            values.dedup();
            vec![(b'd', values)]
        }
    };
    Filter { kinds: Some(vec![kind]), tags, ..Filter::default() }
}

/// Whether a filter is the one of layer 1 for states.
pub(super) fn is_state_filter(filter: &Filter) -> bool {
    filter.kinds.as_deref() == Some(&[kinds::STATE])
}

fn tag_filter(tag: u8, values: Vec<String>) -> Filter {
    Filter { tags: vec![(tag, values)], ..Filter::default() }
}

/// Returns the bytes of a value in a filter, with quotes, comma and escapes.
pub(super) fn json_len(value: &str) -> usize {
    let escape_bytes = |byte: u8| match byte {
        b'"' | b'\\' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    value.len() + 3 + value.bytes().map(escape_bytes).sum::<usize>()
}

/// Size of the filters of a scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct FilterSize {
    pub(super) repos: usize,
    pub(super) roots: usize,
    /// Bytes of all filters together.
    pub(super) bytes: usize,
}

/// Bytes of an id in a filter: 64 digits, quotes and comma.
pub(super) const ID_BYTES: usize = 67;

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

    /// Adds a number of root events.
    pub(super) fn with_roots(mut self, roots: usize) -> Self {
        self.add_roots(roots);
        self
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { repos: self.repos + other.repos, roots: self.roots + other.roots, bytes: self.bytes + other.bytes }
    }

    /// Returns the number of filters with at most `max_values` values each.
    pub(super) fn filters(self, max_values: usize) -> usize {
        let chunks = |count: usize| count.div_ceil(max_values.max(1));
        3 * chunks(self.repos) + 3 * chunks(self.roots) + chunks(self.repos)
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
            self.scope.roots.push(RootRange { repo: key, after, up_to: reached });
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
    let tags: usize = filter.tags.iter().flat_map(|(_, values)| values).map(|value| json_len(value)).sum();
    let ids = filter.ids.as_ref().map_or(0, Vec::len) + filter.authors.as_ref().map_or(0, Vec::len);
    80 + tags + ids * ID_BYTES
}

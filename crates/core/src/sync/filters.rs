//! What a request is about: repositories and ranges of their roots, not lists of ids. Filters are made when they are
//! said and then forgotten, so that a hundred relays do not hold the same ids a hundred times.

use super::io::Seq;
use super::relay_limits::Budget;
use super::targets::{Repo, RepoKey, Wants};
use crate::nostr::filter::Filter;
use crate::nostr::kinds;
use crate::repo::Identifier;

/// Roots of a repository that arrived after one moment and up to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Span {
    pub(super) repo: RepoKey,
    pub(super) after: Seq,
    pub(super) up_to: Seq,
}

/// A part of what is followed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Scope {
    /// Layer 1: announcements, then states. Of these names only, or of all.
    pub(super) announcements: Option<Names>,
    /// Layer 2: what refers to these repositories, and the deletions of their keepers.
    pub(super) repos: Vec<RepoKey>,
    /// Layer 3: what refers to these roots.
    pub(super) roots: Vec<Span>,
    /// Everything, without tags.
    pub(super) wide: bool,
}

/// Whose announcements are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Names {
    /// Everybody's: this is how repositories that name this service are found.
    All,
    /// Those under these names, from a relay that only waiting announcements name.
    These(Vec<Identifier>),
}

impl Scope {
    /// Everything a relay has.
    pub(super) fn wide() -> Self {
        Self { wide: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.announcements.is_none() && self.repos.is_empty() && self.roots.is_empty() && !self.wide
    }

    /// Layer 1.
    pub(super) fn announcements(names: Names) -> Self {
        Self { announcements: Some(names), ..Self::default() }
    }

    /// Adds what another has.
    pub(super) fn join(&mut self, other: &Self) {
        if self.announcements.is_none() {
            self.announcements.clone_from(&other.announcements);
        }
        self.repos.extend(&other.repos);
        self.repos.sort_unstable();
        self.repos.dedup();
        self.roots.extend(&other.roots);
        self.roots.sort_unstable();
        let mut joined: Vec<Span> = Vec::with_capacity(self.roots.len());
        for span in self.roots.drain(..) {
            match joined.last_mut() {
                Some(last) if last.repo == span.repo && span.after <= last.up_to => {
                    last.up_to = last.up_to.max(span.up_to)
                }
                _ => joined.push(span),
            }
        }
        self.roots = joined;
    }

    /// Keeps only what is still followed.
    pub(super) fn retain(&mut self, wanted: impl Fn(RepoKey) -> bool) {
        self.repos.retain(|repo| wanted(*repo));
        self.roots.retain(|span| wanted(span.repo));
    }

    /// How many values its filters have, and how many bytes they take.
    pub(super) fn size(&self, wants: &Wants) -> Size {
        let mut size = Size::default();
        for repo in self.repos.iter().filter_map(|key| wants.repo(*key)) {
            size.add_repo(repo);
        }
        for span in &self.roots {
            let roots = wants.repo(span.repo).map_or(0, |repo| repo.span(span.after, span.up_to).len());
            size.add_roots(roots);
        }
        if let Some(Names::These(names)) = &self.announcements {
            size.bytes += names.iter().map(|name| text_len(name.as_str())).sum::<usize>();
        }
        size
    }

    /// The filters, without `since` and `limit`. Each has one tag at most: conditions of one filter are joined by *and*.
    pub(super) fn filters(&self, wants: &Wants, most_values: usize) -> Vec<Filter> {
        let mut filters = Vec::new();
        if self.wide {
            return vec![Filter::default()];
        }
        if let Some(names) = &self.announcements {
            filters.extend([kinds::ANNOUNCEMENT, kinds::STATE].map(|kind| layer_one(kind, names)));
        }
        let mut coordinates = Vec::new();
        let mut authors = Vec::new();
        for repo in self.repos.iter().filter_map(|key| wants.repo(*key)) {
            coordinates.push(repo.coordinate.clone());
            authors.extend(&repo.authors);
        }
        authors.sort_unstable();
        authors.dedup();
        coordinates.sort_unstable();
        for letter in [b'a', b'A', b'q'] {
            filters.extend(coordinates.chunks(most_values.max(1)).map(|values| tagged(letter, values.to_vec())));
        }
        let mut ids: Vec<String> = Vec::new();
        for span in &self.roots {
            let roots = wants.repo(span.repo).map(|repo| repo.span(span.after, span.up_to)).unwrap_or_default();
            ids.extend(roots.iter().map(|root| root.id.to_string()));
        }
        ids.sort_unstable();
        ids.dedup();
        for letter in [b'e', b'E', b'q'] {
            filters.extend(ids.chunks(most_values.max(1)).map(|values| tagged(letter, values.to_vec())));
        }
        for authors in authors.chunks(most_values.max(1)) {
            let kinds = Some(vec![kinds::DELETION, kinds::VANISH]);
            filters.push(Filter { authors: Some(authors.to_vec()), kinds, ..Filter::default() });
        }
        filters
    }
}

/// A filter of layer 1.
pub(super) fn layer_one(kind: u16, names: &Names) -> Filter {
    let tags = match names {
        Names::All => Vec::new(),
        Names::These(names) => {
            let mut names: Vec<String> = names.iter().map(|name| name.as_str().to_owned()).collect();
            names.sort_unstable();
            names.dedup();
            vec![(b'd', names)]
        }
    };
    Filter { kinds: Some(vec![kind]), tags, ..Filter::default() }
}

/// Whether a filter is layer 1's for states.
pub(super) fn is_states(filter: &Filter) -> bool {
    filter.kinds.as_deref() == Some(&[kinds::STATE])
}

fn tagged(letter: u8, values: Vec<String>) -> Filter {
    Filter { tags: vec![(letter, values)], ..Filter::default() }
}

/// Bytes of a value in a filter: quotes, a comma, and what must be escaped.
pub(super) fn text_len(value: &str) -> usize {
    let escapes = |byte: u8| match byte {
        b'"' | b'\\' => 1,
        0..0x20 => 5,
        _ => 0,
    };
    value.len() + 3 + value.bytes().map(escapes).sum::<usize>()
}

/// The size of a scope's filters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Size {
    pub(super) repos: usize,
    pub(super) roots: usize,
    /// Of all filters together.
    pub(super) bytes: usize,
}

/// Bytes of an id in a filter: the digits, quotes and a comma.
pub(super) const ID_BYTES: usize = 67;

impl Size {
    /// A repository with all its roots.
    pub(super) fn of(repo: &Repo) -> Self {
        let mut size = Self::default();
        size.add_repo(repo);
        size.add_roots(repo.roots.len());
        size
    }

    fn add_repo(&mut self, repo: &Repo) {
        self.repos += 1;
        self.bytes += 3 * text_len(&repo.coordinate) + repo.authors.len() * ID_BYTES;
    }

    fn add_roots(&mut self, roots: usize) {
        self.roots += roots;
        self.bytes += 3 * roots * ID_BYTES;
    }

    /// With so many roots more.
    pub(super) fn with_roots(mut self, roots: usize) -> Self {
        self.add_roots(roots);
        self
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { repos: self.repos + other.repos, roots: self.roots + other.roots, bytes: self.bytes + other.bytes }
    }

    /// How many filters with so many values each this makes.
    pub(super) fn filters(self, most_values: usize) -> usize {
        let chunks = |count: usize| count.div_ceil(most_values.max(1));
        3 * chunks(self.repos) + 3 * chunks(self.roots) + chunks(self.repos)
    }
}

/// How large one batch may be on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Portion {
    /// Values of one filter.
    pub(super) values: usize,
    /// Bytes of all filters.
    pub(super) bytes: usize,
}

impl Portion {
    /// A hundred values a filter by default; as many as the relay's limits allow where it would otherwise have too few
    /// subscriptions for all.
    pub(super) fn of(budget: &Budget, most_values: usize, whole: Size) -> Self {
        // Braces and names of seven filters, the verb and the id.
        let bytes = budget.req_bytes.saturating_sub(512).max(1_024);
        let packed = (budget.filter_bytes / ID_BYTES).max(1);
        let plain = most_values.min(packed);
        let needed = whole.roots.div_ceil(plain).max(whole.repos.div_ceil(plain)) + 1;
        let fits = needed <= budget.live as usize && whole.bytes <= budget.live_bytes;
        Self { values: if fits { plain } else { packed }, bytes }
    }
}

/// Fills a scope until a portion is full.
pub(super) struct Gatherer<'w> {
    wants: &'w Wants,
    portion: Portion,
    pub(super) scope: Scope,
    size: Size,
}

impl<'w> Gatherer<'w> {
    pub(super) fn new(wants: &'w Wants, portion: Portion) -> Self {
        Self { wants, portion, scope: Scope::default(), size: Size::default() }
    }

    /// Adds a repository itself. `false` if there is no room.
    pub(super) fn add_repo(&mut self, key: RepoKey) -> bool {
        let Some(repo) = self.wants.repo(key) else { return true };
        let mut size = self.size;
        size.add_repo(repo);
        let fits = size.repos <= self.portion.values && size.bytes <= self.portion.bytes;
        if !fits && !self.scope.is_empty() {
            return false;
        }
        self.size = size;
        self.scope.repos.push(key);
        true
    }

    /// Adds roots of a repository, as many as there is room for. Gives how far it came.
    pub(super) fn add_roots(&mut self, key: RepoKey, after: Seq, up_to: Seq) -> Seq {
        let Some(repo) = self.wants.repo(key) else { return up_to };
        let roots = repo.span(after, up_to);
        let by_values = self.portion.values.saturating_sub(self.size.roots);
        let by_bytes = self.portion.bytes.saturating_sub(self.size.bytes) / (3 * ID_BYTES);
        let room = if self.scope.is_empty() { by_values.min(by_bytes).max(1) } else { by_values.min(by_bytes) };
        let taken = roots.len().min(room);
        let reached = if taken == roots.len() {
            up_to
        } else {
            roots.get(..taken).and_then(<[_]>::last).map_or(after, |root| root.seq)
        };
        if taken > 0 {
            self.size.add_roots(taken);
            self.scope.roots.push(Span { repo: key, after, up_to: reached });
        }
        reached
    }
}

//! How a filter is answered: which index, which ranges of it.

use std::ops::Bound;

use grasp_core::nostr::{Filter, json};
use heed::{RoTxn, WithoutTls};

use crate::error::Result;
use crate::index::author_prefix;
use crate::schema::{Place, Table, number, place};
use crate::store::Store;

/// A run of index entries, newest first.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) index: Index,
    /// What the keys begin with; a [`Place`] follows.
    prefix: Vec<u8>,
}

/// Which index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Index {
    Time,
    Kind,
    Author,
    AuthorKind,
    Tag,
    /// Not an index: the prefix is an id, and there is one event at most.
    Id,
}

impl Range {
    fn new(index: Index, parts: &[&[u8]]) -> Self {
        Self { index, prefix: parts.concat() }
    }

    /// The place of the first entry of this range that lies behind `after` and inside the filter's times.
    pub(crate) fn next(
        &self,
        store: &Store,
        txn: &RoTxn<'_, WithoutTls>,
        after: Option<&Place>,
        window: Window,
    ) -> Result<Option<Place>> {
        if self.index == Index::Id {
            return self.only(store, txn, window);
        }
        let mut entries = self.entries(store, txn, after, window)?;
        Ok(entries.next().transpose()?.and_then(|(key, ())| key.last_chunk().copied()))
    }

    /// All entries behind `after` and inside the filter's times.
    pub(crate) fn entries<'t>(
        &self,
        store: &Store,
        txn: &'t RoTxn<'_, WithoutTls>,
        after: Option<&Place>,
        window: Window,
    ) -> Result<heed::RoRange<'t, heed::types::Bytes, heed::types::Unit>> {
        let start = [self.prefix.as_slice(), after.unwrap_or(&window.first)].concat();
        let end = [self.prefix.as_slice(), &window.last].concat();
        let from = if after.is_some() { Bound::Excluded(start.as_slice()) } else { Bound::Included(start.as_slice()) };
        let table = self.table(store).remap_data_type::<heed::types::Unit>();
        Ok(table.range(txn, &(from, Bound::Included(end.as_slice())))?)
    }

    fn only(&self, store: &Store, txn: &RoTxn<'_, WithoutTls>, window: Window) -> Result<Option<Place>> {
        let Some(seq) = store.tables.ids.get(txn, &self.prefix)? else { return Ok(None) };
        let seq = number(seq);
        let record = store.by_seq(txn, seq)?;
        let place = place(record.created_at().0, &record.id().0, seq);
        Ok(Some(place).filter(|place| window.contains(place)))
    }

    fn table(&self, store: &Store) -> Table {
        let tables = &store.tables;
        match self.index {
            Index::Time => tables.by_time,
            Index::Kind => tables.by_kind,
            Index::Author => tables.by_author,
            Index::AuthorKind => tables.by_author_kind,
            Index::Tag => tables.by_tag,
            Index::Id => tables.ids,
        }
    }
}

/// The places between `until` and `since`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    first: Place,
    last: Place,
}

impl Window {
    pub(crate) fn of(filter: &Filter) -> Self {
        let mut last = place(filter.since.map_or(0, |since| since.0), &[0xff; 32], u64::MAX);
        last[5..].fill(0xff);
        Self { first: place(filter.until.map_or(u64::MAX, |until| until.0), &[0; 32], 0), last }
    }

    fn contains(&self, place: &Place) -> bool {
        (self.first..=self.last).contains(place)
    }
}

/// How far a probe looks: enough to tell a thread from a firehose, and cheap.
const PROBE_ENTRIES: usize = 128;

/// Authors times kinds beyond which their joint index is not worth the seeks.
const MAX_PAIRS: usize = 2_000;

/// Chooses the ranges that hold everything a filter matches. Where several indexes could serve, each is probed and the
/// one with the fewest entries wins, so that a rare author is not found by reading all of a popular tag.
pub(crate) fn plan(store: &Store, txn: &RoTxn<'_, WithoutTls>, filter: &Filter) -> Result<Vec<Range>> {
    if is_empty(filter) {
        return Ok(Vec::new());
    }
    if let Some(ids) = &filter.ids {
        return Ok(ids.iter().map(|id| Range::new(Index::Id, &[&id.0])).collect());
    }
    let mut candidates = candidates(store, filter);
    if candidates.len() == 1 {
        return Ok(candidates.pop().unwrap_or_default());
    }
    let window = Window::of(filter);
    let mut best = (usize::MAX, Vec::new());
    for candidate in candidates {
        let size = probe(store, txn, &candidate, window, best.0.min(PROBE_ENTRIES))?;
        // A tie goes to the earlier candidate, which is the more selective kind of index.
        if size < best.0 {
            best = (size, candidate);
        }
    }
    Ok(best.1)
}

fn is_empty(filter: &Filter) -> bool {
    filter.ids.as_ref().is_some_and(Vec::is_empty)
        || filter.authors.as_ref().is_some_and(Vec::is_empty)
        || filter.kinds.as_ref().is_some_and(Vec::is_empty)
        || filter.tags.iter().any(|(_, values)| values.is_empty())
        || filter.since.zip(filter.until).is_some_and(|(since, until)| since > until)
}

fn candidates(store: &Store, filter: &Filter) -> Vec<Vec<Range>> {
    let mut candidates = Vec::new();
    for (letter, values) in &filter.tags {
        let hash = |value: &String| store.digest.tag(*letter, json::escape(value).as_bytes());
        candidates.push(values.iter().map(|value| Range::new(Index::Tag, &[&hash(value)])).collect());
    }
    match (&filter.authors, &filter.kinds) {
        (Some(authors), Some(kinds)) if authors.len() * kinds.len() <= MAX_PAIRS => {
            let pair =
                |author, kind: &u16| Range::new(Index::AuthorKind, &[author_prefix(author), &kind.to_be_bytes()]);
            candidates
                .push(authors.iter().flat_map(|author| kinds.iter().map(move |kind| pair(author, kind))).collect());
        }
        (Some(authors), _) => {
            let range = |author| Range::new(Index::Author, &[author_prefix(author)]);
            candidates.push(authors.iter().map(range).collect());
        }
        (None, Some(kinds)) => {
            candidates.push(kinds.iter().map(|kind| Range::new(Index::Kind, &[&kind.to_be_bytes()])).collect());
        }
        (None, None) if filter.tags.is_empty() => candidates.push(vec![Range::new(Index::Time, &[])]),
        (None, None) => {}
    }
    candidates
}

/// StoreCounts a candidate's entries, up to `most`. Every range costs a seek whether or not it has entries, so it counts as
/// one at least.
fn probe(store: &Store, txn: &RoTxn<'_, WithoutTls>, ranges: &[Range], window: Window, most: usize) -> Result<usize> {
    let mut count = ranges.len();
    for range in ranges {
        if count >= most {
            break;
        }
        for entry in range.entries(store, txn, None, window)?.take(most - count) {
            entry?;
            count += 1;
        }
    }
    Ok(count)
}

//! Query planning: which index a filter uses, and which ranges of it.

use std::ops::Bound;

use grasp_core::nostr::{Filter, json};
use heed::{RoTxn, WithoutTls};

use crate::error::Result;
use crate::index::author_prefix;
use crate::schema::{SortKey, Table, read_u64, sort_key};
use crate::store::Store;

/// A range of index entries with a common prefix, newest first.
#[derive(Clone, Debug)]
pub(crate) struct KeyRange {
    pub(crate) index: IndexKind,
    /// Prefix of the keys. A [`SortKey`] follows.
    prefix: Vec<u8>,
}

/// Index of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IndexKind {
    Time,
    Kind,
    Author,
    AuthorKind,
    Tag,
    /// Not an index: the prefix is an event id, and there is at most one event.
    Id,
}

impl KeyRange {
    fn new(index: IndexKind, parts: &[&[u8]]) -> Self {
        Self { index, prefix: parts.concat() }
    }

    /// Returns the sort key of the first entry of this range after `after` and inside the time window.
    pub(crate) fn next(
        &self,
        store: &Store,
        txn: &RoTxn<'_, WithoutTls>,
        after: Option<&SortKey>,
        window: TimeWindow,
    ) -> Result<Option<SortKey>> {
        if self.index == IndexKind::Id {
            return self.id_sort_key(store, txn, window);
        }
        let mut entries = self.entries(store, txn, after, window)?;
        Ok(entries.next().transpose()?.and_then(|(key, ())| key.last_chunk().copied()))
    }

    /// Returns all entries after `after` and inside the time window.
    pub(crate) fn entries<'t>(
        &self,
        store: &Store,
        txn: &'t RoTxn<'_, WithoutTls>,
        after: Option<&SortKey>,
        window: TimeWindow,
    ) -> Result<heed::RoRange<'t, heed::types::Bytes, heed::types::Unit>> {
        let start = [self.prefix.as_slice(), after.unwrap_or(&window.first)].concat();
        let end = [self.prefix.as_slice(), &window.last].concat();
        let from = if after.is_some() { Bound::Excluded(start.as_slice()) } else { Bound::Included(start.as_slice()) };
        let table = self.table(store).remap_data_type::<heed::types::Unit>();
        Ok(table.range(txn, &(from, Bound::Included(end.as_slice())))?)
    }

    fn id_sort_key(&self, store: &Store, txn: &RoTxn<'_, WithoutTls>, window: TimeWindow) -> Result<Option<SortKey>> {
        let Some(seq) = store.tables.ids.get(txn, &self.prefix)? else { return Ok(None) };
        let seq = read_u64(seq);
        let record = store.get_by_seq(txn, seq)?;
        let sort_key = sort_key(record.created_at().0, &record.id().0, seq);
        Ok(Some(sort_key).filter(|sort_key| window.contains(sort_key)))
    }

    fn table(&self, store: &Store) -> Table {
        let tables = &store.tables;
        match self.index {
            IndexKind::Time => tables.by_time,
            IndexKind::Kind => tables.by_kind,
            IndexKind::Author => tables.by_author,
            IndexKind::AuthorKind => tables.by_author_kind,
            IndexKind::Tag => tables.by_tag,
            IndexKind::Id => tables.ids,
        }
    }
}

/// Sort keys between `until` and `since` of a filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWindow {
    first: SortKey,
    last: SortKey,
}

impl TimeWindow {
    pub(crate) fn new(filter: &Filter) -> Self {
        let mut last = sort_key(filter.since.map_or(0, |since| since.0), &[0xff; 32], u64::MAX);
        last[5..].fill(0xff);
        Self { first: sort_key(filter.until.map_or(u64::MAX, |until| until.0), &[0; 32], 0), last }
    }

    fn contains(&self, sort_key: &SortKey) -> bool {
        (self.first..=self.last).contains(sort_key)
    }
}

/// Number of entries that a probe counts: enough to tell a small range from a large one, and cheap.
const PROBE_ENTRIES: usize = 128;

/// Largest number of author and kind pairs for which their joint index is used. Beyond it the seeks cost too much.
const MAX_PAIRS: usize = 2_000;

/// Chooses ranges that contain everything that a filter matches. If several indexes are possible, each is probed and
/// the one with the fewest entries is used, so that a query for a rare author does not read all entries of a popular
/// tag.
pub(crate) fn plan(store: &Store, txn: &RoTxn<'_, WithoutTls>, filter: &Filter) -> Result<Vec<KeyRange>> {
    if is_empty(filter) {
        return Ok(Vec::new());
    }
    if let Some(ids) = &filter.ids {
        return Ok(ids.iter().map(|id| KeyRange::new(IndexKind::Id, &[&id.0])).collect());
    }
    let mut candidates = candidates(store, filter);
    if candidates.len() == 1 {
        return Ok(candidates.pop().unwrap_or_default());
    }
    let window = TimeWindow::new(filter);
    let mut best = (usize::MAX, Vec::new());
    for candidate in candidates {
        let size = probe(store, txn, &candidate, window, best.0.min(PROBE_ENTRIES))?;
        // On a tie, the earlier candidate wins: its index is the more selective kind.
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

fn candidates(store: &Store, filter: &Filter) -> Vec<Vec<KeyRange>> {
    let mut candidates = Vec::new();
    for (letter, values) in &filter.tags {
        let hash = |value: &String| store.hasher.tag(*letter, json::escape(value).as_bytes());
        candidates.push(values.iter().map(|value| KeyRange::new(IndexKind::Tag, &[&hash(value)])).collect());
    }
    match (&filter.authors, &filter.kinds) {
        (Some(authors), Some(kinds)) if authors.len() * kinds.len() <= MAX_PAIRS => {
            let pair = |author, kind: &u16| {
                KeyRange::new(IndexKind::AuthorKind, &[author_prefix(author), &kind.to_be_bytes()])
            };
            candidates
                .push(authors.iter().flat_map(|author| kinds.iter().map(move |kind| pair(author, kind))).collect());
        }
        (Some(authors), _) => {
            let range = |author| KeyRange::new(IndexKind::Author, &[author_prefix(author)]);
            candidates.push(authors.iter().map(range).collect());
        }
        (None, Some(kinds)) => {
            candidates.push(kinds.iter().map(|kind| KeyRange::new(IndexKind::Kind, &[&kind.to_be_bytes()])).collect());
        }
        (None, None) if filter.tags.is_empty() => candidates.push(vec![KeyRange::new(IndexKind::Time, &[])]),
        (None, None) => {}
    }
    candidates
}

/// Counts a candidate's entries up to `max_entries`. Every range costs a seek even if it is empty, so it counts as at
/// least one.
fn probe(
    store: &Store,
    txn: &RoTxn<'_, WithoutTls>,
    ranges: &[KeyRange],
    window: TimeWindow,
    max_entries: usize,
) -> Result<usize> {
    let mut count = ranges.len();
    for range in ranges {
        if count >= max_entries {
            break;
        }
        for entry in range.entries(store, txn, None, window)?.take(max_entries - count) {
            entry?;
            count += 1;
        }
    }
    Ok(count)
}

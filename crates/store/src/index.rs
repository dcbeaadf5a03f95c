//! Index entries of events.

use std::collections::{HashMap, HashSet};

use grasp_core::nostr::PublicKey;
use heed::RwTxn;

use crate::error::Result;
use crate::event_record::EventRecord;
use crate::schema::{KeyHasher, SortKey, Table, Tables, TagKey, index_key_seq, key, sort_key, sort_key_seq};

/// Returns the part of a public key that index keys contain. Matches are checked against the record.
pub(crate) fn author_prefix(author: &PublicKey) -> &[u8] {
    &author.0[..8]
}

/// Index keys of one event.
pub(crate) struct IndexEntries {
    pub(crate) time: SortKey,
    pub(crate) kind: [u8; 18],
    pub(crate) author: [u8; 24],
    pub(crate) author_kind: [u8; 26],
    pub(crate) tags: Vec<[u8; 29]>,
}

impl IndexEntries {
    pub(crate) fn new(record: &EventRecord<'_>, seq: u64, hasher: KeyHasher) -> Self {
        let sort_key = sort_key(record.created_at().0, &record.id().0, seq);
        let author = record.author();
        let kind = record.kind().to_be_bytes();
        Self {
            time: sort_key,
            kind: key(&[&kind, &sort_key]),
            author: key(&[author_prefix(&author), &sort_key]),
            author_kind: key(&[author_prefix(&author), &kind, &sort_key]),
            tags: record.tags().map(|(letter, value)| key(&[&hasher.tag(letter, value), &sort_key])).collect(),
        }
    }

    /// Deletes the entries from the tables.
    pub(crate) fn delete(&self, tables: &Tables, txn: &mut RwTxn<'_>) -> Result<()> {
        tables.by_time.delete(txn, &self.time)?;
        tables.by_kind.delete(txn, &self.kind)?;
        tables.by_author.delete(txn, &self.author)?;
        tables.by_author_kind.delete(txn, &self.author_kind)?;
        for tag in &self.tags {
            tables.by_tag.delete(txn, tag)?;
        }
        Ok(())
    }
}

/// Index entries that a transaction will add.
///
/// They are written at commit, sorted per table, because a B-tree inserts neighbouring keys together far more cheaply
/// than scattered ones. Scans see committed entries only; lookups also check [`PendingEntries`].
#[derive(Default)]
pub(crate) struct PendingEntries {
    time: Vec<SortKey>,
    kind: Vec<[u8; 18]>,
    author: Vec<[u8; 24]>,
    author_kind: Vec<[u8; 26]>,
    tags: Vec<[u8; 29]>,
    /// Sequence numbers of events that were added and removed in the same transaction.
    cancelled: HashSet<u64>,
    /// Number of added events per author prefix.
    authors: HashMap<[u8; 8], u32>,
    /// Number of added events per tag.
    tag_values: HashMap<TagKey, u32>,
}

impl PendingEntries {
    pub(crate) fn add(&mut self, entries: IndexEntries) {
        *self.authors.entry(*prefix(&entries.author)).or_default() += 1;
        for tag in &entries.tags {
            *self.tag_values.entry(*prefix(tag)).or_default() += 1;
        }
        self.time.push(entries.time);
        self.kind.push(entries.kind);
        self.author.push(entries.author);
        self.author_kind.push(entries.author_kind);
        self.tags.extend(entries.tags);
    }

    /// Cancels the entries of one event.
    pub(crate) fn cancel(&mut self, entries: &IndexEntries) {
        self.cancelled.insert(sort_key_seq(&entries.time));
        if let Some(count) = self.authors.get_mut(prefix(&entries.author)) {
            *count -= 1;
        }
        for tag in &entries.tags {
            if let Some(count) = self.tag_values.get_mut(prefix(tag)) {
                *count -= 1;
            }
        }
    }

    /// Returns whether an event of this author was added.
    pub(crate) fn has_author(&self, author: &PublicKey) -> bool {
        self.authors.get(prefix::<8>(&author.0)).is_some_and(|count| *count > 0)
    }

    /// Returns whether an event with this tag was added.
    pub(crate) fn has_tag(&self, tag: &TagKey) -> bool {
        self.tag_values.get(tag).is_some_and(|count| *count > 0)
    }

    pub(crate) fn flush(self, tables: &Tables, txn: &mut RwTxn<'_>) -> Result<()> {
        let cancelled = &self.cancelled;
        put_sorted(tables.by_time, txn, self.time, cancelled)?;
        put_sorted(tables.by_kind, txn, self.kind, cancelled)?;
        put_sorted(tables.by_author, txn, self.author, cancelled)?;
        put_sorted(tables.by_author_kind, txn, self.author_kind, cancelled)?;
        put_sorted(tables.by_tag, txn, self.tags, cancelled)
    }
}

fn put_sorted<const N: usize>(
    table: Table,
    txn: &mut RwTxn<'_>,
    mut keys: Vec<[u8; N]>,
    cancelled: &HashSet<u64>,
) -> Result<()> {
    if !cancelled.is_empty() {
        keys.retain(|key| !cancelled.contains(&index_key_seq(key)));
    }
    keys.sort_unstable();
    for key in &keys {
        table.put(txn, key, &[])?;
    }
    Ok(())
}

/// Returns the first bytes of a key. Keys are longer than their prefixes.
fn prefix<const N: usize>(key: &[u8]) -> &[u8; N] {
    key.first_chunk().unwrap_or(&[0; N])
}

//! The entries that one event has in the query indexes.

use std::collections::{HashMap, HashSet};

use grasp_core::nostr::PublicKey;
use heed::RwTxn;

use crate::error::Result;
use crate::event_record::EventRecord;
use crate::schema::{Digest, Place, Table, Tables, TagKey, key, place, seq_of, seq_of_key};

/// How much of a public key stands in index keys; hits are checked against the record.
pub(crate) fn author_prefix(author: &PublicKey) -> &[u8] {
    &author.0[..8]
}

/// The keys of one event.
pub(crate) struct Entries {
    pub(crate) time: Place,
    pub(crate) kind: [u8; 18],
    pub(crate) author: [u8; 24],
    pub(crate) author_kind: [u8; 26],
    pub(crate) tags: Vec<[u8; 29]>,
}

impl Entries {
    pub(crate) fn of(record: &EventRecord<'_>, seq: u64, digest: Digest) -> Self {
        let place = place(record.created_at().0, &record.id().0, seq);
        let author = record.author();
        let kind = record.kind().to_be_bytes();
        Self {
            time: place,
            kind: key(&[&kind, &place]),
            author: key(&[author_prefix(&author), &place]),
            author_kind: key(&[author_prefix(&author), &kind, &place]),
            tags: record.tags().map(|(letter, value)| key(&[&digest.tag(letter, value), &place])).collect(),
        }
    }

    /// Takes the entries out of the tables.
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

/// Entries that a batch will add. They are written at its end, sorted per table: a B-tree takes neighbours together far
/// more cheaply than one here and one there. Scans see only what is committed; facts ask [`Pending`] as well.
#[derive(Default)]
pub(crate) struct Pending {
    time: Vec<Place>,
    kind: Vec<[u8; 18]>,
    author: Vec<[u8; 24]>,
    author_kind: Vec<[u8; 26]>,
    tags: Vec<[u8; 29]>,
    /// Events that were added and removed again in the same batch.
    cancelled: HashSet<u64>,
    /// How many of the added events have this author.
    authors: HashMap<[u8; 8], u32>,
    /// How many of the added events have this tag.
    tag_values: HashMap<TagKey, u32>,
}

impl Pending {
    pub(crate) fn add(&mut self, entries: Entries) {
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

    /// Takes back what was added for one event.
    pub(crate) fn cancel(&mut self, entries: &Entries) {
        self.cancelled.insert(seq_of(&entries.time));
        if let Some(count) = self.authors.get_mut(prefix(&entries.author)) {
            *count -= 1;
        }
        for tag in &entries.tags {
            if let Some(count) = self.tag_values.get_mut(prefix(tag)) {
                *count -= 1;
            }
        }
    }

    /// Whether an event of this author is among those added.
    pub(crate) fn has_author(&self, author: &PublicKey) -> bool {
        self.authors.get(prefix::<8>(&author.0)).is_some_and(|count| *count > 0)
    }

    /// Whether an event with this tag is among those added.
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
        keys.retain(|key| !cancelled.contains(&seq_of_key(key)));
    }
    keys.sort_unstable();
    for key in &keys {
        table.put(txn, key, &[])?;
    }
    Ok(())
}

/// The first bytes of a key; keys are longer than their prefixes by construction.
fn prefix<const N: usize>(key: &[u8]) -> &[u8; N] {
    key.first_chunk().unwrap_or(&[0; N])
}

//! Tables, their keys, and the schema version.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | schema version, store id, hash key, last seq if its event was removed, last version of a repository |
//! | `events` | seq | record |
//! | `ids` | id | seq |
//! | `coordinates` | hash of kind, author, `d` | seq |
//! | `by_time`, `by_kind`, `by_author`, `by_author_kind`, `by_tag` | prefix, sort key | – |
//! | `expiry` | expires_at, seq | – |
//! | `held`, `held_by_author` | id; author, id | deadline, record; – |
//! | `deleted_ids` | author, id | – |
//! | `deleted_coordinates`, `vanished`, `withdrawn` | hash; author; hash | time; time; version |
//! | `purging` | author | progress of the removal of a vanished author's events, which are hidden meanwhile |
//! | `exceptions` | id | –: served announcements that were accepted by the maintainer exception |
//! | `todo` | hash of repository path; event or zeros | repository path: pending git job |
//! | `staged` | hash of repository path; event | pending upload: its event has not arrived yet |
//! | `repos` | hash of repository path | version, repository path, refs, why it is degraded |
//! | `pools` | hash of repository path | repository path, packs that its pool should have |
//! | `early_requests` | id | expires_at, network, record: deletion or vanish request of an unknown key |
//! | `refused` | id | rejected event, kept for sync |
//! | `peers` | hash of host, port and path | state of a relay, kept for sync |
//! | `hosts` | hash of host and port | state of a git server, kept for fetch |
//!
//! Table names are part of the disk format and are never changed. Some of them therefore differ from the words of the
//! code: `refused` is the rejected-events index, `peers` are relays, `hosts` are git servers, `todo` are pending git
//! jobs and `staged` are uploads.
//!
//! A *sort key* is `!created_at | id | seq`, shortened. Its order is newest first, then lowest id, which is the order
//! of query results. It is the same in every index, so one sort key describes the position of any scan.

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{PublicKey, json};
use heed::types::Bytes;
use heed::{Database, Env, RoTxn, RwTxn, WithoutTls};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::Arc;

use crate::error::{Result, StoreError};

/// Schema version that this code writes. Version 2 has the refs of repositories as rows.
const SCHEMA: u64 = 2;

/// Name of the schema version in `meta`.
const SCHEMA_VERSION: &[u8] = b"schema";

/// Key of the last sequence number in `meta`. The row is needed if the event with that number was removed.
const LAST_SEQ: &[u8] = b"last seq";

pub(crate) type Table = Database<Bytes, Bytes>;

/// Handles of all tables.
#[derive(Clone, Copy)]
pub(crate) struct Tables {
    pub(crate) meta: Table,
    pub(crate) events: Table,
    pub(crate) ids: Table,
    pub(crate) coordinates: Table,
    pub(crate) by_time: Table,
    pub(crate) by_kind: Table,
    pub(crate) by_author: Table,
    pub(crate) by_author_kind: Table,
    pub(crate) by_tag: Table,
    pub(crate) expiry: Table,
    pub(crate) held: Table,
    pub(crate) held_by_author: Table,
    pub(crate) deleted_ids: Table,
    pub(crate) deleted_coordinates: Table,
    pub(crate) vanished: Table,
    pub(crate) withdrawn: Table,
    pub(crate) purging: Table,
    pub(crate) exceptions: Table,
    pub(crate) todos: Table,
    pub(crate) uploads: Table,
    /// `None` in a read-only store of a version that kept refs in files.
    pub(crate) repos: Option<Table>,
    /// As `repos`.
    pub(crate) pools: Option<Table>,
    pub(crate) early_requests: Table,
    pub(crate) rejected: Table,
    pub(crate) relays: Table,
    pub(crate) git_hosts: Table,
}

/// All tables with their names.
pub(crate) type NamedTables = Arc<[(&'static str, Table)]>;

/// Largest number of named tables.
pub(crate) const MAX_TABLES: u32 = 32;

impl Tables {
    /// Opens the tables and creates missing ones. A store of an earlier version that lacks a table gets an empty one,
    /// so a new table alone does not need a new schema version.
    pub(crate) fn open(env: &Env<WithoutTls>, txn: &mut RwTxn<'_>) -> Result<(Self, NamedTables)> {
        Self::open_with(|name| Ok(env.create_database(txn, Some(name))?))
    }

    /// Opens the tables of a read-only store.
    pub(crate) fn open_existing(env: &Env<WithoutTls>, txn: &RoTxn<'_, WithoutTls>) -> Result<(Self, NamedTables)> {
        Self::open_with(|name| env.open_database(txn, Some(name))?.ok_or(StoreError::MissingTable(name)))
    }

    fn open_with(mut open: impl FnMut(&'static str) -> Result<Table>) -> Result<(Self, NamedTables)> {
        let mut named = Vec::new();
        let mut table = |name| {
            named.push((name, open(name)?));
            Ok::<_, StoreError>(named[named.len() - 1].1)
        };
        let tables = Self {
            meta: table("meta")?,
            events: table("events")?,
            ids: table("ids")?,
            coordinates: table("coordinates")?,
            by_time: table("by_time")?,
            by_kind: table("by_kind")?,
            by_author: table("by_author")?,
            by_author_kind: table("by_author_kind")?,
            by_tag: table("by_tag")?,
            expiry: table("expiry")?,
            held: table("held")?,
            held_by_author: table("held_by_author")?,
            deleted_ids: table("deleted_ids")?,
            deleted_coordinates: table("deleted_coordinates")?,
            vanished: table("vanished")?,
            withdrawn: table("withdrawn")?,
            purging: table("purging")?,
            exceptions: table("exceptions")?,
            todos: table("todo")?,
            uploads: table("staged")?,
            repos: if_exists(table("repos"))?,
            pools: if_exists(table("pools"))?,
            early_requests: table("early_requests")?,
            rejected: table("refused")?,
            relays: table("peers")?,
            git_hosts: table("hosts")?,
        };
        Ok((tables, named.into()))
    }

    /// Rejects a newer schema. A new store gets the current version; one of version 1 keeps it until all repositories have
    /// rows ([`Store::needs_repo_rows`](crate::Store::needs_repo_rows)).
    pub(crate) fn check_schema(&self, txn: &mut RwTxn<'_>) -> Result<()> {
        match self.schema(txn)? {
            None => self.set_current_schema(txn),
            Some(1 | SCHEMA) => Ok(()),
            Some(found) if found > SCHEMA => Err(StoreError::NewerSchema { found, known: SCHEMA }),
            Some(_) => Err(StoreError::Damaged("unknown schema version")),
        }
    }

    /// Returns the schema version; `None` in a new store.
    pub(crate) fn schema(&self, txn: &RoTxn<'_>) -> Result<Option<u64>> {
        Ok(self.meta.get(txn, SCHEMA_VERSION)?.map(read_u64))
    }

    /// Records that everything is stored as this version stores it.
    pub(crate) fn set_current_schema(&self, txn: &mut RwTxn<'_>) -> Result<()> {
        Ok(self.meta.put(txn, SCHEMA_VERSION, &SCHEMA.to_be_bytes())?)
    }

    /// Returns the table of repositories of a store that can be written.
    pub(crate) fn repos(&self) -> Result<Table> {
        self.repos.ok_or(StoreError::MissingTable("repos"))
    }

    /// Returns the table of pools of a store that can be written.
    pub(crate) fn pools(&self) -> Result<Table> {
        self.pools.ok_or(StoreError::MissingTable("pools"))
    }

    /// Creates a secret random value if there is none with this name.
    pub(crate) fn create_secret(&self, txn: &mut RwTxn<'_>, name: &str) -> Result<()> {
        if self.meta.get(txn, name.as_bytes())?.is_none() {
            let mut bytes = [0; 16];
            getrandom::fill(&mut bytes).map_err(|_| StoreError::Damaged("cannot read random bytes"))?;
            self.meta.put(txn, name.as_bytes(), &bytes)?;
        }
        Ok(())
    }

    /// Returns an existing random value of this store.
    pub(crate) fn get_secret(&self, txn: &RoTxn<'_>, name: &str) -> Result<[u8; 16]> {
        let bytes = self.meta.get(txn, name.as_bytes())?.ok_or(StoreError::Damaged("secret is missing"))?;
        bytes.try_into().map_err(|_| StoreError::Damaged("secret has the wrong length"))
    }

    /// Returns the last sequence number that was ever assigned. Numbers are never reused, because sync records by them
    /// up to which event other relays were asked.
    pub(crate) fn last_seq(&self, txn: &RoTxn<'_>) -> Result<u64> {
        let noted = self.meta.get(txn, LAST_SEQ)?.map_or(0, read_u64);
        Ok(self.last_event(txn)?.max(noted))
    }

    /// Stores the last sequence number, unless the event that has it is stored.
    pub(crate) fn store_last_seq(&self, txn: &mut RwTxn<'_>, seq: u64) -> Result<()> {
        if self.last_event(txn)? < seq && self.meta.get(txn, LAST_SEQ)?.map(read_u64) != Some(seq) {
            self.meta.put(txn, LAST_SEQ, &seq.to_be_bytes())?;
        }
        Ok(())
    }

    fn last_event(&self, txn: &RoTxn<'_>) -> Result<u64> {
        Ok(self.events.last(txn)?.map_or(0, |(seq, _)| read_u64(seq)))
    }
}

/// Returns a table; `None` if a read-only store does not have it.
fn if_exists(table: Result<Table>) -> Result<Option<Table>> {
    match table {
        Err(StoreError::MissingTable(_)) => Ok(None),
        table => table.map(Some),
    }
}

/// Reads a big-endian number. Returns 0 if the length is not 8.
pub(crate) fn read_u64(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// Position of an event in every index: `!created_at 5 | id 6 | seq 5`.
///
/// Keys are most of what a transaction writes, so they are short: 40 bits of seconds last 34,000 years, and 40 bits of
/// sequence numbers last longer than any disk.
pub(crate) type SortKey = [u8; 16];

/// Largest sequence number and time that fit into a sort key.
const FORTY_BITS: u64 = (1 << 40) - 1;

pub(crate) fn sort_key(created_at: u64, id: &[u8; 32], seq: u64) -> SortKey {
    let time = FORTY_BITS - created_at.min(FORTY_BITS);
    let mut sort_key = [0; 16];
    sort_key[..5].copy_from_slice(&time.to_be_bytes()[3..]);
    sort_key[5..11].copy_from_slice(&id[..6]);
    sort_key[11..].copy_from_slice(&seq.min(FORTY_BITS).to_be_bytes()[3..]);
    sort_key
}

pub(crate) fn sort_key_seq(sort_key: &SortKey) -> u64 {
    let mut seq = [0; 8];
    seq[3..].copy_from_slice(&sort_key[11..]);
    u64::from_be_bytes(seq)
}

/// Returns the sequence number at the end of an index key.
pub(crate) fn index_key_seq(key: &[u8]) -> u64 {
    key.last_chunk().map_or(0, sort_key_seq)
}

/// Joins key parts of known total length.
pub(crate) fn key<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut key = [0; N];
    let mut at = 0;
    for part in parts {
        key[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, N, "parts do not fill the key");
    key
}

/// Tag letter and twelve bytes of the hash of its value.
pub(crate) type TagKey = [u8; 13];

/// Hashes long values into keys. The hash uses a secret of the store, so that clients cannot produce collisions.
#[derive(Clone, Copy)]
pub(crate) struct KeyHasher(pub(crate) [u8; 16]);

impl KeyHasher {
    /// Hashes a tag value, escaped as in canonical JSON.
    pub(crate) fn tag(&self, letter: u8, escaped: &[u8]) -> TagKey {
        let mut state = SipHasher24::new_with_key(&self.0);
        state.write(escaped);
        key(&[&[letter], &state.finish128().as_bytes()[..12]])
    }

    /// Hashes a repository path. Only the last part has a variable length, so the input is unambiguous.
    pub(crate) fn repo_path(&self, kind: u8, owner: &PublicKey, identifier: &[u8]) -> [u8; 16] {
        let mut state = SipHasher24::new_with_key(&self.0);
        state.write(&[kind]);
        state.write(&owner.0);
        state.write(identifier);
        state.finish128().as_bytes()
    }

    /// Returns the checksum of the content of a row.
    pub(crate) fn checksum(&self, content: &[u8]) -> [u8; 8] {
        let mut state = SipHasher24::new_with_key(&self.0);
        state.write(content);
        key(&[&state.finish128().as_bytes()[..8]])
    }

    /// Hashes the URL of a relay without its scheme, or the authority of a git server.
    pub(crate) fn relay(&self, authority: &str) -> [u8; 16] {
        let mut state = SipHasher24::new_with_key(&self.0);
        state.write(authority.as_bytes());
        state.finish128().as_bytes()
    }

    pub(crate) fn coordinate(&self, coordinate: &Coordinate) -> [u8; 16] {
        self.coordinate_from_parts(coordinate.kind, &coordinate.pubkey, json::escape(&coordinate.d).as_bytes())
    }

    /// Hashes a coordinate from its parts, with the identifier escaped as in canonical JSON.
    pub(crate) fn coordinate_from_parts(&self, kind: u16, author: &PublicKey, escaped_d: &[u8]) -> [u8; 16] {
        let mut state = SipHasher24::new_with_key(&self.0);
        state.write(&kind.to_be_bytes());
        state.write(&author.0);
        state.write(escaped_d);
        state.finish128().as_bytes()
    }
}

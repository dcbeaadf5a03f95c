//! The tables, their keys and their version.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | schema version, store id, hash key, last seq if its event is gone |
//! | `events` | seq | record |
//! | `ids` | id | seq |
//! | `coordinates` | hash of kind, author, `d` | seq |
//! | `by_time`, `by_kind`, `by_author`, `by_author_kind`, `by_tag` | prefix, place | – |
//! | `expiry` | expires_at, seq | – |
//! | `held`, `held_by_author` | id; author, id | deadline, record; – |
//! | `deleted_ids` | author, id | – |
//! | `deleted_coordinates`, `vanished`, `withdrawn` | hash; author; hash | time; time; version |
//! | `purging` | author | time, seq: what is left of a vanished author and must not be shown |
//! | `exceptions` | id | –: served announcements that are here by the maintainer exception |
//! | `todo` | hash of site; event or zeros | site: git work that is not done |
//! | `staged` | hash of site; event | upload that nobody has signed yet |
//! | `refused` | id | an event that is not wanted, for sync |
//! | `peers` | hash of place | what sync knows of a relay |
//! | `hosts` | hash of host and port | what the hunt knows of a git server |
//!
//! A *place* is `!created_at | id | seq`, shortened: in key order it is newest first, then lowest id, which is the order of
//! answers, and it is the same in every index, so that one place says where any scan stands.

use grasp_core::nostr::event::Coordinate;
use grasp_core::nostr::{PublicKey, json};
use heed::types::Bytes;
use heed::{Database, Env, RoTxn, RwTxn, WithoutTls};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

use crate::error::{Result, StoreError};

/// The newest schema.
const SCHEMA: u64 = 1;

/// Where the last sequence number stands if its event is gone.
const LAST_SEQ: &[u8] = b"last seq";

pub(crate) type Table = Database<Bytes, Bytes>;

/// All tables.
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
    pub(crate) todo: Table,
    pub(crate) staged: Table,
    pub(crate) refused: Table,
    pub(crate) peers: Table,
    pub(crate) hosts: Table,
}

/// How many named tables there may ever be.
pub(crate) const MAX_TABLES: u32 = 32;

impl Tables {
    /// Opens the tables, making those that are missing. A store of an earlier version that lacks a table therefore opens
    /// with an empty one, and a new table alone is no new schema.
    pub(crate) fn open(env: &Env<WithoutTls>, txn: &mut RwTxn<'_>) -> Result<Self> {
        Self::with(|name| Ok(env.create_database(txn, Some(name))?))
    }

    /// Opens the tables of a store to which nothing may be written.
    pub(crate) fn open_all(env: &Env<WithoutTls>, txn: &RoTxn<'_, WithoutTls>) -> Result<Self> {
        Self::with(|name| env.open_database(txn, Some(name))?.ok_or(StoreError::MissingTable(name)))
    }

    fn with(mut table: impl FnMut(&'static str) -> Result<Table>) -> Result<Self> {
        Ok(Self {
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
            todo: table("todo")?,
            staged: table("staged")?,
            refused: table("refused")?,
            peers: table("peers")?,
            hosts: table("hosts")?,
        })
    }

    /// All tables with their names.
    pub(crate) fn all(&self) -> Vec<(&'static str, Table)> {
        // A table that is not named here does not compile.
        let Self {
            meta,
            events,
            ids,
            coordinates,
            by_time,
            by_kind,
            by_author,
            by_author_kind,
            by_tag,
            expiry,
            held,
            held_by_author,
            deleted_ids,
            deleted_coordinates,
            vanished,
            withdrawn,
            purging,
            exceptions,
            todo,
            staged,
            refused,
            peers,
            hosts,
        } = *self;
        vec![
            ("meta", meta),
            ("events", events),
            ("ids", ids),
            ("coordinates", coordinates),
            ("by_time", by_time),
            ("by_kind", by_kind),
            ("by_author", by_author),
            ("by_author_kind", by_author_kind),
            ("by_tag", by_tag),
            ("expiry", expiry),
            ("held", held),
            ("held_by_author", held_by_author),
            ("deleted_ids", deleted_ids),
            ("deleted_coordinates", deleted_coordinates),
            ("vanished", vanished),
            ("withdrawn", withdrawn),
            ("purging", purging),
            ("exceptions", exceptions),
            ("todo", todo),
            ("staged", staged),
            ("refused", refused),
            ("peers", peers),
            ("hosts", hosts),
        ]
    }

    /// Brings an older schema forward, or refuses a newer one. A new store begins at the newest.
    pub(crate) fn migrate(&self, txn: &mut RwTxn<'_>) -> Result<()> {
        match self.meta.get(txn, b"schema")?.map(number) {
            None => self.meta.put(txn, b"schema", &SCHEMA.to_be_bytes())?,
            Some(SCHEMA) => {}
            Some(found) if found > SCHEMA => return Err(StoreError::NewerSchema { found, known: SCHEMA }),
            // There is no older schema yet; each new one adds its step here, inside this transaction.
            Some(_) => return Err(StoreError::Damaged("an unknown schema version")),
        }
        Ok(())
    }

    /// Sixteen random bytes that belong to this store for ever, made at first need.
    pub(crate) fn secret(&self, txn: &mut RwTxn<'_>, name: &str) -> Result<[u8; 16]> {
        if let Some(bytes) = self.meta.get(txn, name.as_bytes())? {
            return bytes.try_into().map_err(|_| StoreError::Damaged("a secret of the wrong length"));
        }
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|_| StoreError::Damaged("no randomness to be had"))?;
        self.meta.put(txn, name.as_bytes(), &bytes)?;
        Ok(bytes)
    }

    /// A secret that is there.
    pub(crate) fn known_secret(&self, txn: &RoTxn<'_>, name: &str) -> Result<[u8; 16]> {
        let bytes = self.meta.get(txn, name.as_bytes())?.ok_or(StoreError::Damaged("a secret is missing"))?;
        bytes.try_into().map_err(|_| StoreError::Damaged("a secret of the wrong length"))
    }

    /// The last sequence number that was ever in use. None is given twice: what was asked of others is remembered by it.
    pub(crate) fn last_seq(&self, txn: &RoTxn<'_>) -> Result<u64> {
        let noted = self.meta.get(txn, LAST_SEQ)?.map_or(0, number);
        Ok(self.last_event(txn)?.max(noted))
    }

    /// Notes the last sequence number, unless its event is there to tell.
    pub(crate) fn note_last_seq(&self, txn: &mut RwTxn<'_>, seq: u64) -> Result<()> {
        if self.last_event(txn)? < seq && self.meta.get(txn, LAST_SEQ)?.map(number) != Some(seq) {
            self.meta.put(txn, LAST_SEQ, &seq.to_be_bytes())?;
        }
        Ok(())
    }

    fn last_event(&self, txn: &RoTxn<'_>) -> Result<u64> {
        Ok(self.events.last(txn)?.map_or(0, |(seq, _)| number(seq)))
    }
}

/// Reads a big-endian number; bytes of another length read as zero.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_be_bytes)
}

/// Where an event stands in every index: `!created_at 5 | id 6 | seq 5`. Keys are most of what a batch writes, so they are
/// as short as they can be: forty bits of seconds last 34,000 years, and of events longer than any disk.
pub(crate) type Place = [u8; 16];

/// The last sequence number and the last second that fit in a place.
const FORTY_BITS: u64 = (1 << 40) - 1;

pub(crate) fn place(created_at: u64, id: &[u8; 32], seq: u64) -> Place {
    let time = FORTY_BITS - created_at.min(FORTY_BITS);
    let mut place = [0; 16];
    place[..5].copy_from_slice(&time.to_be_bytes()[3..]);
    place[5..11].copy_from_slice(&id[..6]);
    place[11..].copy_from_slice(&seq.min(FORTY_BITS).to_be_bytes()[3..]);
    place
}

pub(crate) fn seq_of(place: &Place) -> u64 {
    let mut seq = [0; 8];
    seq[3..].copy_from_slice(&place[11..]);
    u64::from_be_bytes(seq)
}

/// The sequence number at the end of an index key.
pub(crate) fn seq_of_key(key: &[u8]) -> u64 {
    key.last_chunk().map_or(0, seq_of)
}

/// Joins key parts of known total length.
pub(crate) fn key<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut key = [0; N];
    let mut at = 0;
    for part in parts {
        key[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    debug_assert_eq!(at, N, "a key has all its bytes");
    key
}

/// A tag's letter and twelve bytes of its value's hash.
pub(crate) type TagKey = [u8; 13];

/// Hashes long values into keys. Keyed with the store's secret, so that nobody can make two values meet.
#[derive(Clone, Copy)]
pub(crate) struct Digest(pub(crate) [u8; 16]);

impl Digest {
    /// The hash of a tag value, given as it stands in canonical text.
    pub(crate) fn tag(&self, letter: u8, escaped: &[u8]) -> TagKey {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(escaped);
        key(&[&[letter], &hasher.finish128().as_bytes()[..12]])
    }

    /// The hash of a git repository of this service. Only the last part has a length of its own.
    pub(crate) fn repo_path(&self, kind: u8, owner: &PublicKey, identifier: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&[kind]);
        hasher.write(&owner.0);
        hasher.write(identifier);
        hasher.finish128().as_bytes()
    }

    /// The hash of a relay's place.
    pub(crate) fn relay(&self, place: &str) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(place.as_bytes());
        hasher.finish128().as_bytes()
    }

    pub(crate) fn coordinate(&self, coordinate: &Coordinate) -> [u8; 16] {
        self.coordinate_of(coordinate.kind, &coordinate.pubkey, json::escape(&coordinate.d).as_bytes())
    }

    /// The same from parts, with the identifier as it stands in canonical text.
    pub(crate) fn coordinate_of(&self, kind: u16, author: &PublicKey, escaped_d: &[u8]) -> [u8; 16] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&kind.to_be_bytes());
        hasher.write(&author.0);
        hasher.write(escaped_d);
        hasher.finish128().as_bytes()
    }
}

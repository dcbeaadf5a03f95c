//! Events that are not wanted, as rows: sync remembers them, so as not to fetch them again.
//!
//! ```text
//! id 32  →  version 1 | created_at 8 | until 8 | why 1 | layer 1 | needs 1 | each need | relays 1 | each relay's text
//! need:     kind 1, then: event 32; coordinate 2 + 32 + text; name text; its own coordinate 2 + 32 + text; author 32
//! ```
//! Numbers are big-endian, and a text stands behind its length in two bytes. A row of another version is not read: what it
//! says can be found out again.

use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::repo::Identifier;
use grasp_core::sync::rejected::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;

use crate::error::{Result, StoreError};
use crate::row_reader::Fields;
use crate::store::Store;
use crate::transaction::WriteTransaction;

const VERSION: u8 = 1;

/// The reasons in the order of their bytes. New ones come last.
const REASONS: [RejectionClass; 6] = [
    RejectionClass::Unrelated,
    RejectionClass::Unauthorised,
    RejectionClass::InFuture,
    RejectionClass::Policy,
    RejectionClass::Removed,
    RejectionClass::Invalid,
];

/// The layers in the order of their bytes.
const LAYERS: [RejectedLayer; 2] = [RejectedLayer::Announcements, RejectedLayer::Related];

const EVENT: u8 = 0;
const COORDINATE: u8 = 1;
const NAME: u8 = 2;
const ITSELF: u8 = 3;
const AUTHOR: u8 = 4;

impl WriteTransaction<'_> {
    pub(crate) fn put_rejected(&mut self, row: &RejectedRecord) -> Result<()> {
        Ok(self.store.tables.refused.put(&mut self.txn, &row.id.0, &write(row))?)
    }

    pub(crate) fn delete_rejected(&mut self, id: EventId) -> Result<()> {
        self.store.tables.refused.delete(&mut self.txn, &id.0)?;
        Ok(())
    }
}

impl Store {
    /// Tells which events were not wanted, by id. Gives how many rows could not be read.
    pub fn load_rejected(&self, mut tell: impl FnMut(RejectedRecord)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for row in self.tables.refused.iter(&txn)? {
            let (key, value) = row?;
            match read(key, value) {
                Ok(row) => tell(row),
                Err(_) => unreadable += 1,
            }
        }
        Ok(unreadable)
    }
}

fn write(row: &RejectedRecord) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&row.created_at.0.to_be_bytes());
    bytes.extend_from_slice(&row.expires_at.0.to_be_bytes());
    bytes.push(byte_of(&REASONS, &row.class));
    bytes.push(byte_of(&LAYERS, &row.layer));
    push_all(&mut bytes, row.dependencies.iter().filter_map(need));
    push_all(&mut bytes, row.offered_by.iter().filter_map(|url| text(&url.to_string())));
    bytes
}

fn byte_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|nth| u8::try_from(nth).ok()).unwrap_or(u8::MAX)
}

/// Writes parts behind their number; there are a few at most ([`MAX_REJECTED_DEPENDENCIES`](grasp_core::limits::MAX_REJECTED_DEPENDENCIES)).
fn push_all(bytes: &mut Vec<u8>, parts: impl Iterator<Item = Vec<u8>>) {
    let count = bytes.len();
    bytes.push(0);
    for part in parts.take(usize::from(u8::MAX)) {
        bytes[count] += 1;
        bytes.extend_from_slice(&part);
    }
}

/// `None` for one whose text is too long to be kept, which is none that sync keeps.
fn need(need: &Dependency) -> Option<Vec<u8>> {
    let (kind, value) = match need {
        Dependency::Event(id) => (EVENT, id.0.to_vec()),
        Dependency::Coordinate(at) => (COORDINATE, coordinate(at)?),
        Dependency::Identifier(name) => (NAME, text(name.as_str())?),
        Dependency::OwnCoordinate(at) => (ITSELF, coordinate(at)?),
        Dependency::Author(author) => (AUTHOR, author.0.to_vec()),
    };
    Some([&[kind], &value[..]].concat())
}

fn coordinate(at: &Coordinate) -> Option<Vec<u8>> {
    Some([&at.kind.to_be_bytes()[..], &at.pubkey.0, &text(&at.d)?].concat())
}

fn text(text: &str) -> Option<Vec<u8>> {
    let len = u16::try_from(text.len()).ok()?;
    Some([&len.to_be_bytes()[..], text.as_bytes()].concat())
}

fn read(key: &[u8], value: &[u8]) -> Result<RejectedRecord> {
    let mut fields = Fields::new(value);
    if fields.array()? != [VERSION] {
        return Err(StoreError::Damaged("a refused event's row of an unknown version"));
    }
    let row = RejectedRecord {
        id: EventId(key.try_into().map_err(|_| StoreError::Damaged("a refused event's row with a short key"))?),
        created_at: Timestamp(fields.number()?),
        expires_at: Timestamp(fields.number()?),
        class: of_byte(&REASONS, fields.array()?)?,
        layer: of_byte(&LAYERS, fields.array()?)?,
        dependencies: read_all(&mut fields, read_need)?,
        offered_by: read_all(&mut fields, read_relay)?,
    };
    if fields.is_empty() { Ok(row) } else { Err(StoreError::Damaged("a refused event's row is too long")) }
}

fn of_byte<T: Copy>(all: &[T], [nth]: [u8; 1]) -> Result<T> {
    all.get(usize::from(nth)).copied().ok_or(StoreError::Damaged("a refused event's row with an unknown reason"))
}

fn read_all<T>(fields: &mut Fields<'_>, one: impl Fn(&mut Fields<'_>) -> Result<T>) -> Result<Vec<T>> {
    let [count] = fields.array()?;
    (0..count).map(|_| one(fields)).collect()
}

fn read_need(fields: &mut Fields<'_>) -> Result<Dependency> {
    Ok(match fields.array()? {
        [EVENT] => Dependency::Event(EventId(fields.array()?)),
        [COORDINATE] => Dependency::Coordinate(read_coordinate(fields)?),
        [NAME] => {
            let name = Identifier::new(fields.text()?);
            Dependency::Identifier(name.ok_or(StoreError::Damaged("a refused event's row with a bad name"))?)
        }
        [ITSELF] => Dependency::OwnCoordinate(read_coordinate(fields)?),
        [AUTHOR] => Dependency::Author(PublicKey(fields.array()?)),
        _ => return Err(StoreError::Damaged("a refused event's row with an unknown need")),
    })
}

fn read_coordinate(fields: &mut Fields<'_>) -> Result<Coordinate> {
    let (kind, pubkey) = (u16::from_be_bytes(fields.array()?), PublicKey(fields.array()?));
    Ok(Coordinate { kind, pubkey, d: fields.text()?.to_owned() })
}

fn read_relay(fields: &mut Fields<'_>) -> Result<RelayUrl> {
    RelayUrl::parse(fields.text()?).ok_or(StoreError::Damaged("a refused event's row with a bad relay"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with every reason, every layer and every kind of need.
    fn rows() -> Vec<RejectedRecord> {
        let at = |d: &str| Coordinate { kind: 30_617, pubkey: PublicKey([5; 32]), d: d.to_owned() };
        let name = |text: &str| Identifier::new(text).expect("names a repository");
        let long = "é".repeat(512);
        let needs = [
            Dependency::Event(EventId([1; 32])),
            Dependency::Coordinate(at("")),
            Dependency::Coordinate(at(&long)),
            Dependency::Identifier(name(&long)),
            Dependency::Identifier(name("x")),
            Dependency::OwnCoordinate(at("a \"b\":c")),
            Dependency::Author(PublicKey([6; 32])),
        ];
        let url = |text: &str| RelayUrl::parse(text).expect("a relay");
        let relays = [url("wss://relay.example"), url("ws://[::1]:7334/a/b"), url("ws://x.example:443")];
        let mut rows = Vec::new();
        for class in REASONS {
            for layer in LAYERS {
                let nth = rows.len();
                rows.push(RejectedRecord {
                    id: EventId([nth as u8; 32]),
                    created_at: Timestamp(nth as u64),
                    class,
                    dependencies: needs[..nth.min(needs.len())].to_vec(),
                    offered_by: relays[..nth.min(relays.len())].to_vec(),
                    layer,
                    expires_at: Timestamp(u64::MAX - nth as u64),
                });
            }
        }
        rows
    }

    #[test]
    fn rows_are_read_back_as_they_were_written() {
        for row in rows() {
            assert_eq!(read(&row.id.0, &write(&row)).expect("reads"), row);
        }
    }

    #[test]
    fn damaged_rows_are_errors() {
        let row = rows().pop().expect("rows");
        let bytes = write(&row);
        for end in 0..bytes.len() {
            assert!(read(&row.id.0, &bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(read(&row.id.0, &[&bytes[..], b"x"].concat()).is_err());
        assert!(read(&row.id.0[1..], &bytes).is_err());
        // Version, reason, layer, and the kind of the first need.
        for place in [0, 17, 18, 20] {
            let mut bytes = bytes.clone();
            bytes[place] = 99;
            assert!(read(&row.id.0, &bytes).is_err(), "at {place}");
        }
    }

    #[test]
    fn what_is_too_long_to_be_kept_spoils_no_row() {
        let d = "x".repeat(70_000);
        let at = Coordinate { kind: 30_023, pubkey: PublicKey([5; 32]), d };
        let mut row = rows().pop().expect("rows");
        let kept = std::mem::replace(
            &mut row.dependencies,
            vec![Dependency::Coordinate(at.clone()), Dependency::OwnCoordinate(at)],
        );
        row.dependencies.extend(kept.iter().cloned());
        let found = read(&row.id.0, &write(&row)).expect("reads");
        assert_eq!(found, RejectedRecord { dependencies: kept, ..row });
    }
}

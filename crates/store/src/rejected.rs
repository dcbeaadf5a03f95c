//! Rows of the rejected-events index of sync (`docs/design/sync.md#rejected-events-index`): rejected events that sync
//! does not fetch again.
//!
//! ```text
//! id 32  →  version 1 | created_at 8 | expires_at 8 | class 1 | layer 1 | count 1, dependencies | count 1, relay URLs
//! dependency:  kind 1, then: event 32; coordinate 2 + 32 + text; identifier text;
//!              own coordinate 2 + 32 + text; author 32
//! ```
//!
//! Numbers are big-endian, and a text follows its length in two bytes. Rows of other versions are ignored: their
//! content can be learned again.

use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::repo::Identifier;
use grasp_core::sync::rejected::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;

use crate::error::{Result, StoreError};
use crate::row_reader::RowReader;
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

const VERSION: u8 = 1;

/// Rejection classes in the order of their bytes. New ones are appended.
const CLASSES: [RejectionClass; 6] = [
    RejectionClass::Unrelated,
    RejectionClass::Unauthorised,
    RejectionClass::InFuture,
    RejectionClass::Policy,
    RejectionClass::Removed,
    RejectionClass::Invalid,
];

/// Layers in the order of their bytes.
const LAYERS: [RejectedLayer; 2] = [RejectedLayer::Announcements, RejectedLayer::Related];

const EVENT: u8 = 0;
const COORDINATE: u8 = 1;
const IDENTIFIER: u8 = 2;
const OWN_COORDINATE: u8 = 3;
const AUTHOR: u8 = 4;

impl WriteTransaction<'_> {
    pub(crate) fn put_rejected(&mut self, row: &RejectedRecord) -> Result<()> {
        Ok(self.store.tables.rejected.put(&mut self.txn, &row.id.0, &write(row))?)
    }

    pub(crate) fn delete_rejected(&mut self, id: EventId) -> Result<()> {
        self.store.tables.rejected.delete(&mut self.txn, &id.0)?;
        Ok(())
    }
}

impl Store {
    /// Passes all rejected events, ordered by id, to `on_row`. Returns the number of unreadable rows.
    pub fn load_rejected(&self, mut on_row: impl FnMut(RejectedRecord)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        read_rows(self.tables.rejected, &txn, |key, value| read(key, value).map(&mut on_row).is_ok())
    }
}

fn write(row: &RejectedRecord) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(&row.created_at.0.to_be_bytes());
    bytes.extend_from_slice(&row.expires_at.0.to_be_bytes());
    bytes.push(byte_of(&CLASSES, &row.class));
    bytes.push(byte_of(&LAYERS, &row.layer));
    push_all(&mut bytes, row.dependencies.iter().filter_map(write_dependency));
    push_all(&mut bytes, row.offered_by.iter().filter_map(|url| write_text(&url.to_string())));
    bytes
}

fn byte_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).and_then(|nth| u8::try_from(nth).ok()).unwrap_or(u8::MAX)
}

/// Writes the number of parts (one byte), then the parts. There are only a few
/// ([`MAX_REJECTED_DEPENDENCIES`](grasp_core::limits::MAX_REJECTED_DEPENDENCIES)).
fn push_all(bytes: &mut Vec<u8>, parts: impl Iterator<Item = Vec<u8>>) {
    let count = bytes.len();
    bytes.push(0);
    for part in parts.take(usize::from(u8::MAX)) {
        bytes[count] += 1;
        bytes.extend_from_slice(&part);
    }
}

/// Encodes a dependency. Returns `None` if its text is too long; sync keeps no such dependency.
fn write_dependency(dependency: &Dependency) -> Option<Vec<u8>> {
    let (kind, value) = match dependency {
        Dependency::Event(id) => (EVENT, id.0.to_vec()),
        Dependency::Coordinate(at) => (COORDINATE, write_coordinate(at)?),
        Dependency::Identifier(name) => (IDENTIFIER, write_text(name.as_str())?),
        Dependency::OwnCoordinate(at) => (OWN_COORDINATE, write_coordinate(at)?),
        Dependency::Author(author) => (AUTHOR, author.0.to_vec()),
    };
    Some([&[kind], &value[..]].concat())
}

fn write_coordinate(at: &Coordinate) -> Option<Vec<u8>> {
    Some([&at.kind.to_be_bytes()[..], &at.pubkey.0, &write_text(&at.d)?].concat())
}

fn write_text(text: &str) -> Option<Vec<u8>> {
    let len = u16::try_from(text.len()).ok()?;
    Some([&len.to_be_bytes()[..], text.as_bytes()].concat())
}

fn read(key: &[u8], value: &[u8]) -> Result<RejectedRecord> {
    let mut reader = RowReader::new(value);
    if reader.array()? != [VERSION] {
        return Err(StoreError::Damaged("row of a rejected event has an unknown version"));
    }
    let row = RejectedRecord {
        id: EventId(
            key.try_into().map_err(|_| StoreError::Damaged("row of a rejected event has a key of the wrong length"))?,
        ),
        created_at: Timestamp(reader.read_u64()?),
        expires_at: Timestamp(reader.read_u64()?),
        class: value_of_byte(&CLASSES, reader.array()?)?,
        layer: value_of_byte(&LAYERS, reader.array()?)?,
        dependencies: read_all(&mut reader, read_dependency)?,
        offered_by: read_all(&mut reader, read_relay)?,
    };
    if reader.is_empty() { Ok(row) } else { Err(StoreError::Damaged("row of a rejected event is too long")) }
}

fn value_of_byte<T: Copy>(all: &[T], [nth]: [u8; 1]) -> Result<T> {
    all.get(usize::from(nth))
        .copied()
        .ok_or(StoreError::Damaged("row of a rejected event has an unknown class or layer"))
}

fn read_all<T>(reader: &mut RowReader<'_>, one: impl Fn(&mut RowReader<'_>) -> Result<T>) -> Result<Vec<T>> {
    let [count] = reader.array()?;
    (0..count).map(|_| one(reader)).collect()
}

fn read_dependency(reader: &mut RowReader<'_>) -> Result<Dependency> {
    Ok(match reader.array()? {
        [EVENT] => Dependency::Event(EventId(reader.array()?)),
        [COORDINATE] => Dependency::Coordinate(read_coordinate(reader)?),
        [IDENTIFIER] => {
            let name = Identifier::new(reader.text()?);
            Dependency::Identifier(
                name.ok_or(StoreError::Damaged("row of a rejected event has an invalid identifier"))?,
            )
        }
        [OWN_COORDINATE] => Dependency::OwnCoordinate(read_coordinate(reader)?),
        [AUTHOR] => Dependency::Author(PublicKey(reader.array()?)),
        _ => return Err(StoreError::Damaged("row of a rejected event has an unknown kind of dependency")),
    })
}

fn read_coordinate(reader: &mut RowReader<'_>) -> Result<Coordinate> {
    let (kind, pubkey) = (u16::from_be_bytes(reader.array()?), PublicKey(reader.array()?));
    Ok(Coordinate { kind, pubkey, d: reader.text()?.to_owned() })
}

fn read_relay(reader: &mut RowReader<'_>) -> Result<RelayUrl> {
    RelayUrl::parse(reader.text()?).ok_or(StoreError::Damaged("row of a rejected event has an invalid relay URL"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows with every class, every layer and every kind of dependency.
    fn rows() -> Vec<RejectedRecord> {
        let at = |d: &str| Coordinate { kind: 30_617, pubkey: PublicKey([5; 32]), d: d.to_owned() };
        let name = |text: &str| Identifier::new(text).expect("valid identifier");
        let long = "é".repeat(512);
        let dependencies = [
            Dependency::Event(EventId([1; 32])),
            Dependency::Coordinate(at("")),
            Dependency::Coordinate(at(&long)),
            Dependency::Identifier(name(&long)),
            Dependency::Identifier(name("x")),
            Dependency::OwnCoordinate(at("a \"b\":c")),
            Dependency::Author(PublicKey([6; 32])),
        ];
        let url = |text: &str| RelayUrl::parse(text).expect("valid URL");
        let relays = [url("wss://relay.example"), url("ws://[::1]:7334/a/b"), url("ws://x.example:443")];
        let mut rows = Vec::new();
        for class in CLASSES {
            for layer in LAYERS {
                let nth = rows.len();
                rows.push(RejectedRecord {
                    id: EventId([nth as u8; 32]),
                    created_at: Timestamp(nth as u64),
                    class,
                    dependencies: dependencies[..nth.min(dependencies.len())].to_vec(),
                    offered_by: relays[..nth.min(relays.len())].to_vec(),
                    layer,
                    expires_at: Timestamp(u64::MAX - nth as u64),
                });
            }
        }
        rows
    }

    #[test]
    fn rows_round_trip() {
        for row in rows() {
            assert_eq!(read(&row.id.0, &write(&row)).expect("reads"), row);
        }
    }

    #[test]
    fn corrupted_rows_are_errors() {
        let row = rows().pop().expect("rows");
        let bytes = write(&row);
        for end in 0..bytes.len() {
            assert!(read(&row.id.0, &bytes[..end]).is_err(), "cut at {end}");
        }
        assert!(read(&row.id.0, &[&bytes[..], b"x"].concat()).is_err());
        assert!(read(&row.id.0[1..], &bytes).is_err());
        // Version, class, layer, and the kind of the first dependency.
        for position in [0, 17, 18, 20] {
            let mut bytes = bytes.clone();
            bytes[position] = 99;
            assert!(read(&row.id.0, &bytes).is_err(), "at {position}");
        }
    }

    #[test]
    fn dependencies_with_too_long_text_are_left_out() {
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

//! Rows of the rejected-events index and their lookup structures. Rows are referred to by number, because half a
//! million of them must fit into memory.

use std::collections::BTreeSet;

use super::packed::{OfferingRelays, PackedDependencies, RelayNumbers, key};
use super::row::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use crate::nostr::event::{EventId, EventVersion, supersedes};
use crate::nostr::negentropy::NegentropyItem;
use crate::time::Timestamp;

#[derive(Debug, Default)]
pub(super) struct RejectedRows {
    /// By number. Numbers are reused.
    rows: Vec<Option<RejectedRow>>,
    free: Vec<u32>,
    /// Row numbers by the first bytes of the id. Ids are hashes, so collisions are rare.
    ids: BTreeSet<(u64, u32)>,
    /// Row numbers by the hash key of each dependency.
    links: BTreeSet<(u64, u32)>,
    /// Row numbers by due time. A row expires then, or is evicted before that in this order.
    due: BTreeSet<(Timestamp, u32)>,
    pub(super) relays: RelayNumbers,
    bytes: usize,
}

/// One rejected event.
#[derive(Debug)]
pub(super) struct RejectedRow {
    pub(super) id: EventId,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Timestamp,
    due: Timestamp,
    pub(super) dependencies: PackedDependencies,
    pub(super) offers: OfferingRelays,
    pub(super) class: RejectionClass,
    layer: RejectedLayer,
}

impl RejectedRow {
    pub(super) fn item(&self) -> NegentropyItem {
        NegentropyItem { created_at: self.created_at.0, id: self.id.0 }
    }

    pub(super) fn depends_on(&self, dependency: &Dependency) -> bool {
        self.dependencies.iter().any(|need| need == *dependency)
    }

    fn version(&self) -> EventVersion {
        EventVersion { created_at: self.created_at, id: self.id }
    }
}

impl RejectedRows {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns the approximate memory of all rows in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, number: u32) -> Option<&RejectedRow> {
        self.rows.get(number as usize)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &RejectedRow)> {
        (0..).zip(&self.rows).filter_map(|(number, row)| Some((number, row.as_ref()?)))
    }

    pub(super) fn find(&self, id: &EventId) -> Option<u32> {
        let prefix = prefix(id);
        let mut near = self.ids.range((prefix, 0)..=(prefix, u32::MAX)).map(|(_, number)| *number);
        near.find(|number| self.get(*number).is_some_and(|row| row.id == *id))
    }

    /// Returns the rows that depend on `dependency`, starting at the number `from`. Because of hash collisions some may
    /// depend on something else.
    pub(super) fn dependents(&self, dependency: &Dependency, from: u32) -> impl Iterator<Item = u32> {
        let key = key(dependency);
        self.links.range((key, from)..=(key, u32::MAX)).map(|(_, number)| *number)
    }

    /// Returns the row with the earliest due time.
    pub(super) fn next_due(&self) -> Option<(Timestamp, u32)> {
        self.due.first().copied()
    }

    /// Returns the memory that a row needs, in bytes.
    pub(super) fn row_bytes(row: &RejectedRecord) -> usize {
        row_bytes(&PackedDependencies::new(&row.dependencies), row.dependencies.len())
    }

    /// Inserts a row. The caller has checked that the id is not in the index.
    pub(super) fn insert(&mut self, row: &RejectedRecord, due: Timestamp) {
        let dependencies = PackedDependencies::new(&row.dependencies);
        let mut offers = OfferingRelays::EMPTY;
        for relay in &row.offered_by {
            self.relays.add(&mut offers, relay);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            // Cannot fail: the number of rows is bounded far below 2^32.
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        self.bytes += row_bytes(&dependencies, row.dependencies.len());
        let RejectedRecord { id, created_at, class, layer, expires_at, .. } = *row;
        let new = RejectedRow { id, created_at, expires_at, due, dependencies, offers, class, layer };
        for dependency in &row.dependencies {
            self.link(dependency, number, new.version());
        }
        self.ids.insert((prefix(&id), number));
        self.due.insert((due, number));
        self.rows[number as usize] = Some(new);
    }

    /// Links a row to a dependency. Of several versions with the same coordinate only the newest is linked to it,
    /// because only that one can be accepted when the coordinate is referenced.
    fn link(&mut self, dependency: &Dependency, number: u32, version: EventVersion) {
        if let Dependency::OwnCoordinate(_) = dependency {
            let other = self.dependents(dependency, 0).find_map(|other| {
                let row = self.get(other).filter(|row| row.depends_on(dependency))?;
                Some((other, row.version()))
            });
            match other {
                Some((_, newer)) if supersedes(newer, version) => return,
                Some((older, _)) => drop(self.links.remove(&(key(dependency), older))),
                None => {}
            }
        }
        self.links.insert((key(dependency), number));
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<RejectedRow> {
        let row = self.rows.get_mut(number as usize)?.take()?;
        let mut count = 0;
        for dependency in row.dependencies.iter() {
            self.links.remove(&(key(&dependency), number));
            count += 1;
        }
        self.ids.remove(&(prefix(&row.id), number));
        self.due.remove(&(row.due, number));
        self.relays.release(row.offers);
        self.bytes -= row_bytes(&row.dependencies, count);
        self.free.push(number);
        Some(row)
    }

    /// Adds a relay that has the event. Returns whether the row changed.
    pub(super) fn add_offer(&mut self, number: u32, relay: &super::RelayUrl) -> bool {
        let row = self.rows.get_mut(number as usize).and_then(Option::as_mut);
        row.is_some_and(|row| self.relays.add(&mut row.offers, relay))
    }

    /// Changes the due time of a row.
    pub(super) fn reschedule(&mut self, number: u32, due: Timestamp) {
        if let Some(row) = self.rows.get_mut(number as usize).and_then(Option::as_mut) {
            self.due.remove(&(row.due, number));
            row.due = due;
            self.due.insert((due, number));
        }
    }

    /// Returns a row as a record to store.
    pub(super) fn to_record(&self, number: u32) -> Option<RejectedRecord> {
        let row = self.get(number)?;
        Some(RejectedRecord {
            id: row.id,
            created_at: row.created_at,
            class: row.class,
            dependencies: row.dependencies.iter().collect(),
            offered_by: self.relays.urls(row.offers),
            layer: row.layer,
            expires_at: row.expires_at,
        })
    }

    /// Returns whether all structures are empty.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        let indexes = [self.ids.len(), self.links.len(), self.due.len(), self.relays.len(), self.bytes];
        self.rows.iter().all(Option::is_none) && indexes == [0; 5]
    }
}

fn prefix(id: &EventId) -> u64 {
    id.0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// Returns the approximate memory of a row in bytes: the row, its dependencies, and its entries in the indexes.
fn row_bytes(dependencies: &PackedDependencies, count: usize) -> usize {
    /// Bytes of an entry in a half-empty B-tree, or of the header of an allocation.
    const ENTRY: usize = 32;
    size_of::<Option<RejectedRow>>() + dependencies.len() + ENTRY * (count + 3)
}

//! The rows, and the ways to find them. Half a million have to fit, so everything here is by number.

use std::collections::BTreeSet;

use super::packed::{OfferingRelays, PackedDependencies, RelayNumbers, key};
use super::row::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use crate::nostr::event::{EventId, EventVersion, supersedes};
use crate::nostr::negentropy::NegentropyItem;
use crate::time::Timestamp;

#[derive(Debug, Default)]
pub(super) struct RejectedRows {
    /// By number; numbers are used again.
    rows: Vec<Option<RejectedRow>>,
    free: Vec<u32>,
    /// By the first bytes of the id. It is a hash, so hardly two share them.
    ids: BTreeSet<(u64, u32)>,
    /// By what they hang on.
    links: BTreeSet<(u64, u32)>,
    /// By when they are looked at next: they are forgotten then, or give way before that, the first one first.
    due: BTreeSet<(Timestamp, u32)>,
    pub(super) relays: RelayNumbers,
    bytes: usize,
}

/// One remembered event.
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

    /// The memory of all rows, roughly.
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

    /// The rows that hang on something, from a number on. Some may hang on something else.
    pub(super) fn dependents(&self, dependency: &Dependency, from: u32) -> impl Iterator<Item = u32> {
        let key = key(dependency);
        self.links.range((key, from)..=(key, u32::MAX)).map(|(_, number)| *number)
    }

    /// The row that is looked at next, and when.
    pub(super) fn next_due(&self) -> Option<(Timestamp, u32)> {
        self.due.first().copied()
    }

    /// The memory that a row would take.
    pub(super) fn row_bytes(row: &RejectedRecord) -> usize {
        row_bytes(&PackedDependencies::new(&row.dependencies), row.dependencies.len())
    }

    /// Takes in a row that is not there.
    pub(super) fn insert(&mut self, row: &RejectedRecord, due: Timestamp) {
        let dependencies = PackedDependencies::new(&row.dependencies);
        let mut offers = OfferingRelays::EMPTY;
        for relay in &row.offered_by {
            self.relays.add(&mut offers, relay);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            // There are far fewer rows than numbers.
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

    /// Of several versions of one thing only the newest can be wanted because somebody refers to it.
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

    /// Another relay has it. Whether that is news, and kept.
    pub(super) fn add_offer(&mut self, number: u32, relay: &super::RelayUrl) -> bool {
        let row = self.rows.get_mut(number as usize).and_then(Option::as_mut);
        row.is_some_and(|row| self.relays.add(&mut row.offers, relay))
    }

    /// Looks at a row again at another time.
    pub(super) fn reschedule(&mut self, number: u32, due: Timestamp) {
        if let Some(row) = self.rows.get_mut(number as usize).and_then(Option::as_mut) {
            self.due.remove(&(row.due, number));
            row.due = due;
            self.due.insert((due, number));
        }
    }

    /// A row as it is written down.
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

    /// Whether nothing is left behind.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        let indexes = [self.ids.len(), self.links.len(), self.due.len(), self.relays.len(), self.bytes];
        self.rows.iter().all(Option::is_none) && indexes == [0; 5]
    }
}

fn prefix(id: &EventId) -> u64 {
    id.0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// The memory of a row: itself, what it hangs on, and its entries in three indexes.
fn row_bytes(dependencies: &PackedDependencies, count: usize) -> usize {
    /// An entry of an index that is half empty, or the head of a piece of memory.
    const ENTRY: usize = 32;
    size_of::<Option<RejectedRow>>() + dependencies.len() + ENTRY * (count + 3)
}

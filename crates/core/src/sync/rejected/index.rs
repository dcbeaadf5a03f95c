//! The rows, and the ways to find them. Half a million have to fit, so everything here is by number.

use std::collections::BTreeSet;

use super::packed::{Offers, Packed, Relays, key};
use super::row::{Dependency, Layer, RefusedRow, Why};
use crate::nostr::event::{EventId, Stamp, supersedes};
use crate::nostr::negentropy::Item;
use crate::time::Timestamp;

#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// By number; numbers are used again.
    rows: Vec<Option<Row>>,
    free: Vec<u32>,
    /// By the first bytes of the id. It is a hash, so hardly two share them.
    ids: BTreeSet<(u64, u32)>,
    /// By what they hang on.
    links: BTreeSet<(u64, u32)>,
    /// By when they are looked at next: they are forgotten then, or give way before that, the first one first.
    order: BTreeSet<(Timestamp, u32)>,
    pub(super) relays: Relays,
    bytes: usize,
}

/// One remembered event.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: EventId,
    pub(super) created_at: Timestamp,
    pub(super) until: Timestamp,
    order: Timestamp,
    pub(super) needs: Packed,
    pub(super) offers: Offers,
    pub(super) why: Why,
    layer: Layer,
}

impl Row {
    pub(super) fn item(&self) -> Item {
        Item { created_at: self.created_at.0, id: self.id.0 }
    }

    pub(super) fn hangs_on(&self, dependency: &Dependency) -> bool {
        self.needs.iter().any(|need| need == *dependency)
    }

    fn stamp(&self) -> Stamp {
        Stamp { created_at: self.created_at, id: self.id }
    }
}

impl Shelf {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The memory of all rows, roughly.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, number: u32) -> Option<&Row> {
        self.rows.get(number as usize)?.as_ref()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Row)> {
        (0..).zip(&self.rows).filter_map(|(number, row)| Some((number, row.as_ref()?)))
    }

    pub(super) fn find(&self, id: &EventId) -> Option<u32> {
        let prefix = prefix(id);
        let mut near = self.ids.range((prefix, 0)..=(prefix, u32::MAX)).map(|(_, number)| *number);
        near.find(|number| self.get(*number).is_some_and(|row| row.id == *id))
    }

    /// The rows that hang on something, from a number on. Some may hang on something else.
    pub(super) fn hanging_on(&self, dependency: &Dependency, from: u32) -> impl Iterator<Item = u32> {
        let key = key(dependency);
        self.links.range((key, from)..=(key, u32::MAX)).map(|(_, number)| *number)
    }

    /// The row that is looked at next, and when.
    pub(super) fn first(&self) -> Option<(Timestamp, u32)> {
        self.order.first().copied()
    }

    /// The memory that a row would take.
    pub(super) fn weight(row: &RefusedRow) -> usize {
        weight(&Packed::new(&row.needs), row.needs.len())
    }

    /// Takes in a row that is not there.
    pub(super) fn insert(&mut self, row: &RefusedRow, order: Timestamp) {
        let needs = Packed::new(&row.needs);
        let mut offers = Offers::NOBODY;
        for relay in &row.offered_by {
            self.relays.add(&mut offers, relay);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            // There are far fewer rows than numbers.
            u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
        });
        self.bytes += weight(&needs, row.needs.len());
        let RefusedRow { id, created_at, why, layer, until, .. } = *row;
        let new = Row { id, created_at, until, order, needs, offers, why, layer };
        for dependency in &row.needs {
            self.link(dependency, number, new.stamp());
        }
        self.ids.insert((prefix(&id), number));
        self.order.insert((order, number));
        self.rows[number as usize] = Some(new);
    }

    /// Of several versions of one thing only the newest can be wanted because somebody refers to it.
    fn link(&mut self, dependency: &Dependency, number: u32, stamp: Stamp) {
        if let Dependency::Itself(_) = dependency {
            let other = self.hanging_on(dependency, 0).find_map(|other| {
                let row = self.get(other).filter(|row| row.hangs_on(dependency))?;
                Some((other, row.stamp()))
            });
            match other {
                Some((_, newer)) if supersedes(newer, stamp) => return,
                Some((older, _)) => drop(self.links.remove(&(key(dependency), older))),
                None => {}
            }
        }
        self.links.insert((key(dependency), number));
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Row> {
        let row = self.rows.get_mut(number as usize)?.take()?;
        let mut count = 0;
        for dependency in row.needs.iter() {
            self.links.remove(&(key(&dependency), number));
            count += 1;
        }
        self.ids.remove(&(prefix(&row.id), number));
        self.order.remove(&(row.order, number));
        self.relays.release(row.offers);
        self.bytes -= weight(&row.needs, count);
        self.free.push(number);
        Some(row)
    }

    /// Another relay has it. Whether that is news, and kept.
    pub(super) fn offer(&mut self, number: u32, relay: &super::RelayUrl) -> bool {
        let row = self.rows.get_mut(number as usize).and_then(Option::as_mut);
        row.is_some_and(|row| self.relays.add(&mut row.offers, relay))
    }

    /// Looks at a row again at another time.
    pub(super) fn put_off(&mut self, number: u32, order: Timestamp) {
        if let Some(row) = self.rows.get_mut(number as usize).and_then(Option::as_mut) {
            self.order.remove(&(row.order, number));
            row.order = order;
            self.order.insert((order, number));
        }
    }

    /// A row as it is written down.
    pub(super) fn written(&self, number: u32) -> Option<RefusedRow> {
        let row = self.get(number)?;
        Some(RefusedRow {
            id: row.id,
            created_at: row.created_at,
            why: row.why,
            needs: row.needs.iter().collect(),
            offered_by: self.relays.urls(row.offers),
            layer: row.layer,
            until: row.until,
        })
    }

    /// Whether nothing is left behind.
    #[cfg(test)]
    pub(super) fn is_clean(&self) -> bool {
        let indexes = [self.ids.len(), self.links.len(), self.order.len(), self.relays.len(), self.bytes];
        self.rows.iter().all(Option::is_none) && indexes == [0; 5]
    }
}

fn prefix(id: &EventId) -> u64 {
    id.0.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// The memory of a row: itself, what it hangs on, and its entries in three indexes.
fn weight(needs: &Packed, count: usize) -> usize {
    /// An entry of an index that is half empty, or the head of a piece of memory.
    const ENTRY: usize = 32;
    size_of::<Option<Row>>() + needs.len() + ENTRY * (count + 3)
}

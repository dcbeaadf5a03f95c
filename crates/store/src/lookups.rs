//! Lookups for a decision about an event, read inside the write transaction that will contain its consequences.
//!
//! Events of a vanished author that are not removed from disk yet count as removed, as they do for readers.

use std::sync::Arc;

use grasp_core::admission::io::{DeletionTarget, EventLookups, NeededLookups, TombstoneKind};
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::kinds::KindClass;
use grasp_core::nostr::{PublicKey, SignedEvent, json, kinds, supersedes};
use grasp_core::repo::catalog::EventStatus;

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::index::author_prefix;
use crate::schema::{Table, index_key_seq, key, read_u64};
use crate::store::Store;
use crate::transaction::{WriteTransaction, read_event_version};
use crate::vanish::PurgeProgress;

impl Store {
    /// Reads an event that is served or held, without a write transaction. Events of a vanished author are returned until
    /// they are removed.
    pub fn stored_event(&self, id: EventId) -> Result<Option<SignedEvent>> {
        let txn = self.env.read_txn()?;
        if let Some(row) = self.tables.held.get(&txn, &id.0)? {
            return held_record(row)?.event().map(Some);
        }
        let Some(seq) = self.tables.ids.get(&txn, &id.0)? else { return Ok(None) };
        let row = self.tables.events.get(&txn, seq)?.ok_or(StoreError::Damaged("id without its event"))?;
        EventRecord::read(row)?.event().map(Some)
    }
}

impl WriteTransaction<'_> {
    /// Reads the lookups that admission needs to decide about an event.
    pub fn lookups(&self, event: &Event, needed: NeededLookups) -> Result<EventLookups> {
        let coordinate = event.coordinate();
        let mut lookups = EventLookups { stored: self.status_of(event.id)?, ..EventLookups::default() };
        lookups.tombstone = self.find_tombstone(event, coordinate.as_ref())?;
        if let Some(coordinate) = &coordinate {
            lookups.current = self.find_served_at(coordinate)?.map(|record| record.version());
        }
        if needed.links {
            lookups.references_served = self.references_served(event)?;
            lookups.referenced_by_served =
                !lookups.references_served && self.is_referenced_by_served(event, coordinate.as_ref())?;
        }
        if needed.author {
            lookups.author_has_events = self.has_author(event)?;
        }
        if needed.targets {
            lookups.targets = self.deletion_targets(event)?;
        }
        Ok(lookups)
    }

    /// Returns an event that is served or held. Events of a vanished author that wait for removal are not returned;
    /// expired events are, until they are removed.
    pub fn event(&self, id: EventId) -> Result<Option<(Arc<SignedEvent>, EventStatus)>> {
        let found = self.find(id)?;
        found.map(|(record, status)| Ok((Arc::new(record.event()?), status))).transpose()
    }

    /// Returns whether [`event`](Self::event) would find the event, without parsing its JSON.
    pub fn is_known(&self, id: EventId) -> Result<bool> {
        Ok(self.status_of(id)?.is_some())
    }

    /// Returns a visible served event.
    pub(crate) fn find_served(&self, id: EventId) -> Result<Option<EventRecord<'_>>> {
        let seq = self.store.tables.ids.get(&self.txn, &id.0)?;
        seq.map_or(Ok(None), |seq| self.visible(seq, "id without its event"))
    }

    /// Returns a visible event by its sequence number. That there is none is an error, which `missing` describes.
    fn visible(&self, seq: &[u8], missing: &'static str) -> Result<Option<EventRecord<'_>>> {
        let row = self.store.tables.events.get(&self.txn, seq)?;
        let record = EventRecord::read(row.ok_or(StoreError::Damaged(missing))?)?;
        Ok((!self.is_being_purged(&record, read_u64(seq))?).then_some(record))
    }

    /// Returns an event that is served or held.
    fn find(&self, id: EventId) -> Result<Option<(EventRecord<'_>, EventStatus)>> {
        if let Some(record) = self.find_served(id)? {
            return Ok(Some((record, EventStatus::Served)));
        }
        let row = self.store.tables.held.get(&self.txn, &id.0)?;
        row.map(|row| Ok((held_record(row)?, EventStatus::Held))).transpose()
    }

    /// Returns whether the event belongs to a vanished author and waits for removal. Scans check all vanished authors;
    /// this looks up only those to whom the event can belong.
    pub(crate) fn is_being_purged(&self, record: &EventRecord<'_>, seq: u64) -> Result<bool> {
        let tables = &self.store.tables;
        let covers = |author: &PublicKey| -> Result<bool> {
            let purge = tables.purging.get(&self.txn, &author.0)?.map(PurgeProgress::read);
            Ok(purge.is_some_and(|purge| purge.covers(record, seq, author)))
        };
        if tables.purging.is_empty(&self.txn)? {
            return Ok(false);
        }
        if covers(&record.author())? {
            return Ok(true);
        }
        let wrapped_for = record.tags().filter(|(letter, _)| record.kind() == kinds::GIFT_WRAP && *letter == b'p');
        for (_, value) in wrapped_for {
            let author = std::str::from_utf8(value).ok().and_then(PublicKey::from_hex);
            if let Some(author) = author
                && covers(&author)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn status_of(&self, id: EventId) -> Result<Option<EventStatus>> {
        Ok(self.find(id)?.map(|(_, status)| status))
    }

    fn find_tombstone(&self, event: &Event, coordinate: Option<&Coordinate>) -> Result<Option<TombstoneKind>> {
        let tables = &self.store.tables;
        let until = |time: Option<&[u8]>| time.is_some_and(|time| event.created_at.0 <= read_u64(time));
        if until(tables.vanished.get(&self.txn, &event.pubkey.0)?) {
            return Ok(Some(TombstoneKind::Vanished));
        }
        let row: [u8; 64] = key(&[&event.pubkey.0, &event.id.0]);
        if tables.deleted_ids.get(&self.txn, &row)?.is_some() {
            return Ok(Some(TombstoneKind::Deleted));
        }
        let Some(coordinate) = coordinate else { return Ok(None) };
        let hash = self.store.hasher.coordinate(coordinate);
        if until(tables.deleted_coordinates.get(&self.txn, &hash)?) {
            return Ok(Some(TombstoneKind::Deleted));
        }
        if event.kind != kinds::ANNOUNCEMENT {
            return Ok(None);
        }
        let withdrawn = tables.withdrawn.get(&self.txn, &hash)?.map(read_event_version).transpose()?;
        Ok(withdrawn.filter(|version| supersedes(*version, event.version())).map(|_| TombstoneKind::Withdrawn))
    }

    pub(crate) fn find_served_at(&self, coordinate: &Coordinate) -> Result<Option<EventRecord<'_>>> {
        let seq = self.store.tables.coordinates.get(&self.txn, &self.store.hasher.coordinate(coordinate))?;
        seq.map_or(Ok(None), |seq| self.visible(seq, "coordinate without its event"))
    }

    /// Returns whether the event references a served event (`docs/protocol.md#related-events`).
    fn references_served(&self, event: &Event) -> Result<bool> {
        let references = event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter));
        for (letter, value) in references.take(limits::MAX_EVENT_REFERENCES) {
            let by_id = b"eEq".contains(&letter).then(|| EventId::from_hex(value)).flatten();
            let by_coordinate = b"aAq".contains(&letter).then(|| Coordinate::parse(value)).flatten();
            let found = match (by_id, by_coordinate) {
                (Some(id), _) => self.find_served(id)?.is_some(),
                (None, Some(coordinate)) => self.find_served_at(&coordinate)?.is_some(),
                (None, None) => false,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether a served event references the event (`docs/protocol.md#related-events`).
    fn is_referenced_by_served(&self, event: &Event, coordinate: Option<&Coordinate>) -> Result<bool> {
        let id = event.id.to_string();
        for letter in *b"eEq" {
            if self.has_tag(letter, &id)? {
                return Ok(true);
            }
        }
        let Some(coordinate) = coordinate else { return Ok(false) };
        let full = coordinate.to_string();
        let short = full.strip_suffix(':').filter(|_| kinds::class(event.kind) == KindClass::Replaceable);
        for letter in *b"aAq" {
            for text in [Some(full.as_str()), short].into_iter().flatten() {
                if self.has_tag(letter, text)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn has_tag(&self, letter: u8, value: &str) -> Result<bool> {
        let tag = self.store.hasher.tag(letter, json::escape(value).as_bytes());
        Ok(self.pending.has_tag(&tag) || self.has_visible_entry(self.store.tables.by_tag, &tag)?)
    }

    fn has_author(&self, event: &Event) -> Result<bool> {
        let tables = &self.store.tables;
        let held = tables.held_by_author.prefix_iter(&self.txn, &event.pubkey.0)?.next().transpose()?.is_some();
        let prefix = author_prefix(&event.pubkey);
        Ok(held || self.pending.has_author(&event.pubkey) || self.has_visible_entry(tables.by_author, prefix)?)
    }

    /// Returns whether an index has an entry of a visible event. Checks a bounded number of entries while a purge is in
    /// progress; if none of them is visible, another one is assumed to be, until the purge is done.
    fn has_visible_entry(&self, table: Table, prefix: &[u8]) -> Result<bool> {
        let tables = &self.store.tables;
        let mut entries = table.prefix_iter(&self.txn, prefix)?;
        if tables.purging.is_empty(&self.txn)? {
            return Ok(entries.next().transpose()?.is_some());
        }
        for _ in 0..limits::REMOVAL_SLICE_EVENTS {
            let Some((entry, _)) = entries.next().transpose()? else { return Ok(false) };
            let seq = index_key_seq(entry);
            if let Some(bytes) = tables.events.get(&self.txn, &seq.to_be_bytes())?
                && !self.is_being_purged(&EventRecord::read(bytes)?, seq)?
            {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Returns the targets of a deletion request that are stored here.
    fn deletion_targets(&self, event: &Event) -> Result<Vec<DeletionTarget>> {
        let mut targets = Vec::new();
        for id in event.values("e").filter_map(EventId::from_hex).take(limits::MAX_DELETION_TARGETS) {
            let found = self.find(id)?;
            targets.extend(found.map(|(record, status)| DeletionTarget { event: record.summary(), status }));
        }
        let own = |coordinate: &Coordinate| coordinate.pubkey == event.pubkey;
        let coordinates =
            event.values("a").take(limits::MAX_DELETION_TARGETS).filter_map(Coordinate::parse).filter(own);
        for coordinate in coordinates {
            if let Some(record) =
                self.find_served_at(&coordinate)?.filter(|record| record.created_at() <= event.created_at)
            {
                targets.push(DeletionTarget { event: record.summary(), status: EventStatus::Served });
            }
        }
        targets.sort_unstable();
        targets.dedup();
        Ok(targets)
    }
}

/// Returns the record in a row of a held event, which follows the deadline.
fn held_record(row: &[u8]) -> Result<EventRecord<'_>> {
    EventRecord::read(row.get(8..).ok_or(StoreError::Damaged("row of a held event is too short"))?)
}

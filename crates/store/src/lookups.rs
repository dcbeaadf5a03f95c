//! What is known about an event directly before it is judged, read inside the batch that will carry the consequences.
//! What a vanished author has left on disk counts as gone, as it does for readers.

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
use crate::schema::{Table, key, number, seq_of_key};
use crate::transaction::{WriteTransaction, read_stamp};
use crate::vanish::Purge;

impl WriteTransaction<'_> {
    /// Reads the facts that the registrar's rules ask for.
    pub fn lookups(&self, event: &Event, needed: NeededLookups) -> Result<EventLookups> {
        let coordinate = event.coordinate();
        let mut lookups = EventLookups { stored: self.place_of(event.id)?, ..EventLookups::default() };
        lookups.tombstone = self.gone(event, coordinate.as_ref())?;
        if let Some(coordinate) = &coordinate {
            lookups.current = self.served_at(coordinate)?.map(|record| record.version());
        }
        if needed.links {
            lookups.references_served = self.is_anchored(event)?;
            lookups.referenced_by_served = !lookups.references_served && self.is_named(event, coordinate.as_ref())?;
        }
        if needed.author {
            lookups.author_has_events = self.has_author(event)?;
        }
        if needed.targets {
            lookups.targets = self.targets(event)?;
        }
        Ok(lookups)
    }

    /// An event, served or held. What a vanished author has left on disk is not here any more; what has expired is, until
    /// it is swept.
    pub fn event(&self, id: EventId) -> Result<Option<(Arc<SignedEvent>, EventStatus)>> {
        if let Some(record) = self.served(id)? {
            return Ok(Some((Arc::new(record.event()?), EventStatus::Served)));
        }
        match self.store.tables.held.get(&self.txn, &id.0)? {
            Some(row) => Ok(Some((Arc::new(held_record(row)?.event()?), EventStatus::Held))),
            None => Ok(None),
        }
    }

    /// The kind of a held event, without reading its text.
    pub fn held_kind(&self, id: EventId) -> Result<Option<u16>> {
        let row = self.store.tables.held.get(&self.txn, &id.0)?;
        row.map(|row| Ok(held_record(row)?.kind())).transpose()
    }

    /// Whether [`event`](Self::event) would find it, without reading its text.
    pub fn is_known(&self, id: EventId) -> Result<bool> {
        Ok(self.place_of(id)?.is_some())
    }

    /// A served event, if the world can see it.
    pub(crate) fn served(&self, id: EventId) -> Result<Option<EventRecord<'_>>> {
        let tables = &self.store.tables;
        let Some(seq) = tables.ids.get(&self.txn, &id.0)? else { return Ok(None) };
        let missing = StoreError::Damaged("an id without its event");
        let record = EventRecord::read(tables.events.get(&self.txn, seq)?.ok_or(missing)?)?;
        Ok((!self.is_doomed(&record, number(seq))?).then_some(record))
    }

    /// Whether the removal of a vanished author's events is under way and has only not come to this one. Readers go
    /// through all such authors; here those are looked up whom an event can be part of.
    pub(crate) fn is_doomed(&self, record: &EventRecord<'_>, seq: u64) -> Result<bool> {
        let tables = &self.store.tables;
        let dooms = |author: &PublicKey| -> Result<bool> {
            let purge = tables.purging.get(&self.txn, &author.0)?.map(Purge::read);
            Ok(purge.is_some_and(|purge| purge.dooms(record, seq, author)))
        };
        if tables.purging.is_empty(&self.txn)? {
            return Ok(false);
        }
        if dooms(&record.author())? {
            return Ok(true);
        }
        let wrapped_for = record.tags().filter(|(letter, _)| record.kind() == kinds::GIFT_WRAP && *letter == b'p');
        for (_, value) in wrapped_for {
            let author = std::str::from_utf8(value).ok().and_then(PublicKey::from_hex);
            if let Some(author) = author
                && dooms(&author)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn place_of(&self, id: EventId) -> Result<Option<EventStatus>> {
        if self.served(id)?.is_some() {
            return Ok(Some(EventStatus::Served));
        }
        Ok(self.store.tables.held.get(&self.txn, &id.0)?.map(|_| EventStatus::Held))
    }

    fn gone(&self, event: &Event, coordinate: Option<&Coordinate>) -> Result<Option<TombstoneKind>> {
        let tables = &self.store.tables;
        let until = |time: Option<&[u8]>| time.is_some_and(|time| event.created_at.0 <= number(time));
        if until(tables.vanished.get(&self.txn, &event.pubkey.0)?) {
            return Ok(Some(TombstoneKind::Vanished));
        }
        let row: [u8; 64] = key(&[&event.pubkey.0, &event.id.0]);
        if tables.deleted_ids.get(&self.txn, &row)?.is_some() {
            return Ok(Some(TombstoneKind::Deleted));
        }
        let Some(coordinate) = coordinate else { return Ok(None) };
        let hash = self.store.digest.coordinate(coordinate);
        if until(tables.deleted_coordinates.get(&self.txn, &hash)?) {
            return Ok(Some(TombstoneKind::Deleted));
        }
        if event.kind != kinds::ANNOUNCEMENT {
            return Ok(None);
        }
        let withdrawn = tables.withdrawn.get(&self.txn, &hash)?.map(read_stamp).transpose()?;
        Ok(withdrawn.filter(|version| supersedes(*version, event.version())).map(|_| TombstoneKind::Withdrawn))
    }

    pub(crate) fn served_at(&self, coordinate: &Coordinate) -> Result<Option<EventRecord<'_>>> {
        let tables = &self.store.tables;
        match tables.coordinates.get(&self.txn, &self.store.digest.coordinate(coordinate))? {
            Some(seq) => {
                let missing = StoreError::Damaged("a coordinate without its event");
                let record = EventRecord::read(tables.events.get(&self.txn, seq)?.ok_or(missing)?)?;
                Ok((!self.is_doomed(&record, number(seq))?).then_some(record))
            }
            None => Ok(None),
        }
    }

    /// Whether something that the event references is served (G1-31, backward).
    fn is_anchored(&self, event: &Event) -> Result<bool> {
        let references = event.indexed_tags().filter(|(letter, _)| b"aAqeE".contains(letter));
        for (letter, value) in references.take(limits::MAX_EVENT_REFERENCES) {
            let by_id = b"eEq".contains(&letter).then(|| EventId::from_hex(value)).flatten();
            let by_coordinate = b"aAq".contains(&letter).then(|| Coordinate::parse(value)).flatten();
            let found = match (by_id, by_coordinate) {
                (Some(id), _) => self.served(id)?.is_some(),
                (None, Some(coordinate)) => self.served_at(&coordinate)?.is_some(),
                (None, None) => false,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether something served references the event (G1-31, forward).
    fn is_named(&self, event: &Event, coordinate: Option<&Coordinate>) -> Result<bool> {
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
        let tag = self.store.digest.tag(letter, json::escape(value).as_bytes());
        Ok(self.pending.has_tag(&tag) || self.has_entry(self.store.tables.by_tag, &tag)?)
    }

    fn has_author(&self, event: &Event) -> Result<bool> {
        let tables = &self.store.tables;
        let held = tables.held_by_author.prefix_iter(&self.txn, &event.pubkey.0)?.next().transpose()?.is_some();
        let prefix = author_prefix(&event.pubkey);
        Ok(held || self.pending.has_author(&event.pubkey) || self.has_entry(tables.by_author, prefix)?)
    }

    /// Whether an index has an entry of an event that the world can see. Behind many that it cannot see none is looked
    /// for: one is taken for granted until they are gone.
    fn has_entry(&self, table: Table, prefix: &[u8]) -> Result<bool> {
        let tables = &self.store.tables;
        let mut entries = table.prefix_iter(&self.txn, prefix)?;
        if tables.purging.is_empty(&self.txn)? {
            return Ok(entries.next().transpose()?.is_some());
        }
        for _ in 0..limits::REMOVAL_SLICE_EVENTS {
            let Some((entry, _)) = entries.next().transpose()? else { return Ok(false) };
            let seq = seq_of_key(entry);
            if let Some(bytes) = tables.events.get(&self.txn, &seq.to_be_bytes())?
                && !self.is_doomed(&EventRecord::read(bytes)?, seq)?
            {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Those targets of a deletion request that are here.
    fn targets(&self, event: &Event) -> Result<Vec<DeletionTarget>> {
        let mut targets = Vec::new();
        for id in event.values("e").filter_map(EventId::from_hex).take(limits::MAX_DELETION_TARGETS) {
            targets.extend(self.target(id)?);
        }
        let own = |coordinate: &Coordinate| coordinate.pubkey == event.pubkey;
        let coordinates =
            event.values("a").take(limits::MAX_DELETION_TARGETS).filter_map(Coordinate::parse).filter(own);
        for coordinate in coordinates {
            if let Some(record) = self.served_at(&coordinate)?.filter(|record| record.created_at() <= event.created_at)
            {
                targets.push(DeletionTarget { event: record.summary(), status: EventStatus::Served });
            }
        }
        targets.sort_unstable();
        targets.dedup();
        Ok(targets)
    }

    fn target(&self, id: EventId) -> Result<Option<DeletionTarget>> {
        if let Some(record) = self.served(id)? {
            return Ok(Some(DeletionTarget { event: record.summary(), status: EventStatus::Served }));
        }
        match self.store.tables.held.get(&self.txn, &id.0)? {
            Some(row) => Ok(Some(DeletionTarget { event: held_record(row)?.summary(), status: EventStatus::Held })),
            None => Ok(None),
        }
    }
}

/// The event behind a held row's deadline.
fn held_record(row: &[u8]) -> Result<EventRecord<'_>> {
    EventRecord::read(row.get(8..).ok_or(StoreError::Damaged("a held row is too short"))?)
}

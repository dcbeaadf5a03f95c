//! Write transactions.

use std::ops::Bound;

use grasp_core::admission::io::{EventSummary, StoreWrite, Tombstone};
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::{PublicKey, SignedEvent, kinds, supersedes};
use grasp_core::repo::RepoId;
use grasp_core::time::Timestamp;
use heed::{PutFlags, RwTxn};

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::index::{IndexEntries, PendingEntries, author_prefix};
use crate::schema::{Table, TagKey, index_key_seq, key, read_u64};
use crate::store::Store;
use crate::vanish::PurgeProgress;

/// A write transaction. Its own lookups see what was written inside it. Readers see the changes after
/// [`commit`](WriteTransaction::commit), atomically and durably. Dropping the transaction discards all changes.
pub struct WriteTransaction<'s> {
    pub(crate) store: &'s Store,
    pub(crate) txn: RwTxn<'s>,
    pub(crate) pending: PendingEntries,
    pub(crate) first_seq: u64,
    pub(crate) next_seq: u64,
    /// Pull requests removed with a vanished author that the caller has not taken yet.
    removed_pull_requests: Vec<EventSummary>,
    /// Kinds of released events that the caller has not taken yet.
    released_kinds: Vec<u16>,
}

impl<'s> WriteTransaction<'s> {
    pub(crate) fn new(store: &'s Store) -> Result<Self> {
        let txn = store.env.write_txn()?;
        let first_seq = store.last_seq() + 1;
        let pending = PendingEntries::default();
        let (removed_pull_requests, released_kinds) = (Vec::new(), Vec::new());
        Ok(Self { store, txn, pending, first_seq, next_seq: first_seq, removed_pull_requests, released_kinds })
    }

    /// Applies one write of admission.
    pub fn write(&mut self, write: &StoreWrite) -> Result<()> {
        match write {
            StoreWrite::Put(event) => self.serve(event, &EventRecord::write(event)),
            StoreWrite::MarkException(id) => Ok(self.store.tables.exceptions.put(&mut self.txn, &id.0, &[])?),
            StoreWrite::Hold(event, deadline) => self.hold(event, *deadline),
            StoreWrite::ExtendHold(id, deadline) => self.extend_hold(*id, *deadline),
            StoreWrite::HoldServed(id, deadline) => self.hold_served(*id, *deadline),
            StoreWrite::Release(id) => self.release(*id),
            StoreWrite::DropHeld(id) => self.unhold(*id).map(drop),
            StoreWrite::Remove(id) => self.remove(*id),
            StoreWrite::AddTombstone(tombstone) => self.add_tombstone(tombstone),
            StoreWrite::SetRefs(repo_path, refs) => self.set_refs(repo_path, refs),
            StoreWrite::RemoveRefs(repo_path) => self.remove_refs(repo_path),
            StoreWrite::SetPacks(repo_path, packs) => self.set_packs(repo_path, packs),
            StoreWrite::SetDegraded(repo_path, reason) => self.set_degraded(repo_path, reason.as_deref()),
            StoreWrite::AddTodo(todo) => self.add_todo(todo),
            StoreWrite::RemoveTodo(todo) => self.remove_todo(todo),
            StoreWrite::AddUpload(upload) => self.add_upload(upload),
            StoreWrite::RemoveUpload(repo_path, event) => self.remove_upload(repo_path, *event),
            StoreWrite::AddEarlyRequest(request) => self.add_early_request(request),
            StoreWrite::RemoveEarlyRequest(id) => self.remove_early_request(*id),
        }
    }

    /// Returns at most `max_rows` served events whose NIP-40 expiration has passed.
    pub fn expired_events(&mut self, now: Timestamp, max_rows: usize) -> Result<Vec<EventSummary>> {
        let tables = self.store.tables;
        let mut due = Vec::new();
        for row in tables.expiry.iter(&self.txn)?.take(max_rows) {
            let (expires_at, seq) = row?.0.split_at(8);
            if read_u64(expires_at) > now.0 {
                break;
            }
            due.push((read_u64(expires_at), read_u64(seq)));
        }
        let mut found = Vec::new();
        for (expires_at, seq) in due {
            match tables.events.get(&self.txn, &seq.to_be_bytes())? {
                Some(bytes) => found.push(EventRecord::read(bytes)?.summary()),
                // Without its event, the row would stay due for ever.
                None => {
                    let row: [u8; 16] = key(&[&expires_at.to_be_bytes(), &seq.to_be_bytes()]);
                    tables.expiry.delete(&mut self.txn, &row)?;
                }
            }
        }
        Ok(found)
    }

    /// Returns the earliest expiration of all served events.
    pub fn next_expiry(&self) -> Result<Option<Timestamp>> {
        Ok(self.store.tables.expiry.first(&self.txn)?.map(|(key, _)| Timestamp(read_u64(&key[..8]))))
    }

    /// Removes the next slice of events of vanished authors. Returns true while there are more.
    pub fn purge_slice(&mut self) -> Result<bool> {
        let row = self.store.tables.purging.first(&self.txn)?;
        let Some((author, purge)) = row.map(|(author, purge)| (PublicKey(key(&[author])), PurgeProgress::read(purge)))
        else {
            return Ok(false);
        };
        self.purge_author(author, purge)?;
        Ok(!self.store.tables.purging.is_empty(&self.txn)?)
    }

    /// Returns the sequence number of a served event.
    pub fn seq_of(&self, id: EventId) -> Result<Option<u64>> {
        Ok(self.store.tables.ids.get(&self.txn, &id.0)?.map(read_u64))
    }

    /// Takes the pull requests that this transaction removed with a vanished author since the last call, by
    /// [`Tombstone::Author`] or by [`purge_slice`](Self::purge_slice), each once. There are at most
    /// [`limits::REMOVAL_SLICE_EVENTS`] of them per call of these, and those that this transaction itself had put.
    /// Their consequences (removal of refs) belong into this transaction.
    pub fn take_removed_pull_requests(&mut self) -> Vec<EventSummary> {
        std::mem::take(&mut self.removed_pull_requests)
    }

    /// Takes the kinds of the events that this transaction released since the last call.
    pub fn take_released_kinds(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.released_kinds)
    }

    /// Commits: the changes become durable and visible. Nothing of them can be lost afterwards.
    pub fn commit(mut self) -> Result<()> {
        std::mem::take(&mut self.pending).flush(&self.store.tables, &mut self.txn)?;
        self.store.tables.store_last_seq(&mut self.txn, self.next_seq - 1)?;
        self.txn.commit()?;
        self.store.set_last_seq(self.next_seq - 1);
        Ok(())
    }

    fn serve(&mut self, event: &Event, bytes: &[u8]) -> Result<()> {
        let tables = self.store.tables;
        if let Some(known) = tables.ids.get(&self.txn, &event.id.0)?.map(read_u64) {
            let purged = match tables.events.get(&self.txn, &known.to_be_bytes())? {
                Some(bytes) => self.is_being_purged(&EventRecord::read(bytes)?, known)?,
                None => false,
            };
            if !purged {
                return Ok(());
            }
            // The stored copy belongs to a vanished author and waits for removal. The event was accepted again and
            // stays.
            self.remove_purged(known)?;
        }
        let record = EventRecord::read(bytes)?;
        let seq = self.next_seq;
        self.next_seq += 1;
        if let Some(coordinate) = event.coordinate() {
            let hash = self.store.hasher.coordinate(&coordinate);
            if let Some(old) = tables.coordinates.get(&self.txn, &hash)?.map(read_u64) {
                self.remove_seq(old)?;
            }
            tables.coordinates.put(&mut self.txn, &hash, &seq.to_be_bytes())?;
        }
        if let Some(expires_at) = record.expires_at() {
            let row: [u8; 16] = key(&[&expires_at.0.to_be_bytes(), &seq.to_be_bytes()]);
            tables.expiry.put(&mut self.txn, &row, &[])?;
        }
        tables.events.put_with_flags(&mut self.txn, PutFlags::APPEND, &seq.to_be_bytes(), bytes)?;
        tables.ids.put(&mut self.txn, &event.id.0, &seq.to_be_bytes())?;
        self.pending.add(IndexEntries::new(&record, seq, self.store.hasher));
        Ok(())
    }

    fn hold(&mut self, event: &SignedEvent, deadline: Timestamp) -> Result<()> {
        self.put_held(&EventRecord::write(event), event.pubkey, event.id, deadline)
    }

    fn put_held(&mut self, record: &[u8], author: PublicKey, id: EventId, deadline: Timestamp) -> Result<()> {
        let tables = &self.store.tables;
        tables.held.put(&mut self.txn, &id.0, &[&deadline.0.to_be_bytes(), record].concat())?;
        let author: [u8; 64] = key(&[&author.0, &id.0]);
        Ok(tables.held_by_author.put(&mut self.txn, &author, &[])?)
    }

    /// Moves a served event to purgatory.
    fn hold_served(&mut self, id: EventId, deadline: Timestamp) -> Result<()> {
        let tables = &self.store.tables;
        let Some(seq) = tables.ids.get(&self.txn, &id.0)?.map(read_u64) else { return Ok(()) };
        let Some(record) = tables.events.get(&self.txn, &seq.to_be_bytes())?.map(<[u8]>::to_vec) else {
            return Ok(());
        };
        let author = EventRecord::read(&record)?.author();
        self.remove_seq(seq)?;
        self.put_held(&record, author, id, deadline)
    }

    fn extend_hold(&mut self, id: EventId, deadline: Timestamp) -> Result<()> {
        let tables = &self.store.tables;
        let Some(mut row) = tables.held.get(&self.txn, &id.0)?.map(<[u8]>::to_vec) else { return Ok(()) };
        let start = row.first_chunk_mut().ok_or(StoreError::Damaged("row of a held event is too short"))?;
        *start = deadline.0.to_be_bytes();
        Ok(tables.held.put(&mut self.txn, &id.0, &row)?)
    }

    fn release(&mut self, id: EventId) -> Result<()> {
        let Some(bytes) = self.unhold(id)? else { return Ok(()) };
        let event = EventRecord::read(&bytes)?.event()?;
        self.released_kinds.push(event.kind);
        self.serve(&event, &bytes)
    }

    /// Removes a held event and returns its record.
    fn unhold(&mut self, id: EventId) -> Result<Option<Vec<u8>>> {
        let tables = &self.store.tables;
        let Some(row) = tables.held.get(&self.txn, &id.0)?.map(<[u8]>::to_vec) else { return Ok(None) };
        let bytes = row.get(8..).ok_or(StoreError::Damaged("row of a held event is too short"))?.to_vec();
        let author: [u8; 64] = key(&[&EventRecord::read(&bytes)?.author().0, &id.0]);
        tables.held.delete(&mut self.txn, &id.0)?;
        tables.held_by_author.delete(&mut self.txn, &author)?;
        Ok(Some(bytes))
    }

    fn remove(&mut self, id: EventId) -> Result<()> {
        match self.store.tables.ids.get(&self.txn, &id.0)?.map(read_u64) {
            Some(seq) => self.remove_seq(seq),
            None => Ok(()),
        }
    }

    fn remove_seq(&mut self, seq: u64) -> Result<()> {
        let tables = self.store.tables;
        let Some(bytes) = tables.events.get(&self.txn, &seq.to_be_bytes())?.map(<[u8]>::to_vec) else { return Ok(()) };
        let record = EventRecord::read(&bytes)?;
        let entries = IndexEntries::new(&record, seq, self.store.hasher);
        if seq >= self.first_seq {
            self.pending.cancel(&entries);
        } else {
            entries.delete(&tables, &mut self.txn)?;
        }
        if let Some(expires_at) = record.expires_at() {
            let row: [u8; 16] = key(&[&expires_at.0.to_be_bytes(), &seq.to_be_bytes()]);
            tables.expiry.delete(&mut self.txn, &row)?;
        }
        if let Some(d) = record.identifier() {
            let hash = self.store.hasher.coordinate_from_parts(record.kind(), &record.author(), d);
            if tables.coordinates.get(&self.txn, &hash)?.map(read_u64) == Some(seq) {
                tables.coordinates.delete(&mut self.txn, &hash)?;
            }
        }
        if record.kind() == kinds::ANNOUNCEMENT {
            tables.exceptions.delete(&mut self.txn, &record.id().0)?;
        }
        tables.ids.delete(&mut self.txn, &record.id().0)?;
        tables.events.delete(&mut self.txn, &seq.to_be_bytes())?;
        Ok(())
    }

    fn add_tombstone(&mut self, tombstone: &Tombstone) -> Result<()> {
        let tables = self.store.tables;
        match tombstone {
            Tombstone::Event(author, id) => {
                let row: [u8; 64] = key(&[&author.0, &id.0]);
                tables.deleted_ids.put(&mut self.txn, &row, &[])?;
            }
            Tombstone::Coordinate(coordinate, up_to) => {
                let hash = self.store.hasher.coordinate(coordinate);
                self.raise_time(tables.deleted_coordinates, &hash, up_to.0)?;
            }
            Tombstone::Author(author, up_to) => {
                self.raise_time(tables.vanished, &author.0, up_to.0)?;
                // An unfinished earlier purge is part of this one, unless it reaches further.
                let under_way = tables.purging.get(&self.txn, &author.0)?.map(|row| PurgeProgress::read(row).up_to);
                let purge =
                    PurgeProgress::new(under_way.map_or(*up_to, |earlier| earlier.max(*up_to)), self.next_seq - 1);
                tables.purging.put(&mut self.txn, &author.0, &purge.to_row())?;
                self.purge_author(*author, purge)?;
            }
            Tombstone::Withdrawn(repo, version) => {
                let hash = self.store.hasher.coordinate(&announcement_coordinate(repo));
                let old = tables.withdrawn.get(&self.txn, &hash)?.map(read_event_version).transpose()?;
                if old.is_none_or(|old| supersedes(*version, old)) {
                    let row: [u8; 40] = key(&[&version.created_at.0.to_be_bytes(), &version.id.0]);
                    tables.withdrawn.put(&mut self.txn, &hash, &row)?;
                }
            }
        }
        Ok(())
    }

    /// Stores a time unless a later one is stored.
    fn raise_time(&mut self, table: Table, row: &[u8], time: u64) -> Result<()> {
        if table.get(&self.txn, row)?.map(read_u64).is_none_or(|old| old < time) {
            table.put(&mut self.txn, row, &time.to_be_bytes())?;
        }
        Ok(())
    }

    /// Removes one slice of a vanished author's events. Removes the `purging` row with the last slice.
    fn purge_author(&mut self, author: PublicKey, purge: PurgeProgress) -> Result<()> {
        let tables = self.store.tables;
        let tag = self.store.hasher.tag(b'p', author.to_string().as_bytes());
        self.purge_pending(&author, purge, &tag)?;
        // First the author's own events, then gift wraps addressed to the author.
        let (table, prefix) =
            if purge.own_done { (tables.by_tag, &tag[..]) } else { (tables.by_author, author_prefix(&author)) };
        let mut purged = Vec::new();
        let mut last = None;
        let mut read = 0;
        let start = [prefix, &purge.after].concat();
        for row in table
            .range(&self.txn, &(Bound::Excluded(start.as_slice()), Bound::Unbounded))?
            .take(limits::REMOVAL_SLICE_EVENTS)
        {
            let (entry, _) = row?;
            if !entry.starts_with(prefix) {
                break;
            }
            read += 1;
            last = entry.last_chunk().copied();
            let seq = index_key_seq(entry);
            let record = self.store.find_by_seq(&self.txn, seq)?;
            purged.extend(record.filter(|record| purge.covers(record, seq, &author)).map(|_| seq));
        }
        for seq in purged {
            self.remove_purged(seq)?;
        }
        let next = if read == limits::REMOVAL_SLICE_EVENTS {
            last.map(|after| PurgeProgress { after, ..purge })
        } else {
            purge.next_phase()
        };
        match next {
            Some(purge) => tables.purging.put(&mut self.txn, &author.0, &purge.to_row())?,
            None => drop(tables.purging.delete(&mut self.txn, &author.0)?),
        }
        Ok(())
    }

    /// Removes purged events that this transaction put: their index entries are not in the tables yet.
    fn purge_pending(&mut self, author: &PublicKey, purge: PurgeProgress, tag: &TagKey) -> Result<()> {
        if !self.pending.has_author(author) && !self.pending.has_tag(tag) {
            return Ok(());
        }
        for seq in self.first_seq..self.next_seq {
            if self.store.find_by_seq(&self.txn, seq)?.is_some_and(|record| purge.covers(&record, seq, author)) {
                self.remove_purged(seq)?;
            }
        }
        Ok(())
    }

    /// Removes an event of a vanished author. Admission does not know these events; pull requests are reported because
    /// their refs must be removed.
    fn remove_purged(&mut self, seq: u64) -> Result<()> {
        let record = self.store.find_by_seq(&self.txn, seq)?;
        let pull_request = record.filter(|record| kinds::is_pull_request(record.kind()));
        self.removed_pull_requests.extend(pull_request.map(|record| record.summary()));
        self.remove_seq(seq)
    }
}

/// Returns the coordinate of a repository's announcement.
pub(crate) fn announcement_coordinate(repo: &RepoId) -> Coordinate {
    Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.owner, d: repo.identifier.as_str().to_owned() }
}

pub(crate) fn read_event_version(row: &[u8]) -> Result<grasp_core::nostr::EventVersion> {
    let damaged = || StoreError::Damaged("stored event version has the wrong length");
    let (created_at, id) = row.split_at_checked(8).ok_or_else(damaged)?;
    Ok(grasp_core::nostr::EventVersion {
        created_at: Timestamp(read_u64(created_at)),
        id: EventId(id.try_into().map_err(|_| damaged())?),
    })
}

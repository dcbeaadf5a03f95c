//! The writer's transaction.

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
use crate::index::{Entries, Pending, author_prefix};
use crate::schema::{Table, TagKey, key, number, seq_of_key};
use crate::store::Store;
use crate::vanish::Purge;

/// One write transaction. Everything that was written inside it is seen by its own facts; the world sees it after
/// [`commit`](WriteTransaction::commit), durably and at once. Dropping it undoes everything.
pub struct WriteTransaction<'s> {
    pub(crate) store: &'s Store,
    pub(crate) txn: RwTxn<'s>,
    pub(crate) pending: Pending,
    first_seq: u64,
    next_seq: u64,
    /// Pull requests that went with their authors and of which nobody has been told yet.
    removed_pull_requests: Vec<EventSummary>,
}

impl<'s> WriteTransaction<'s> {
    pub(crate) fn begin(store: &'s Store) -> Result<Self> {
        let txn = store.env.write_txn()?;
        let first_seq = store.last_seq() + 1;
        let pending = Pending::default();
        Ok(Self { store, txn, pending, first_seq, next_seq: first_seq, removed_pull_requests: Vec::new() })
    }

    /// Carries out a wish of the registrar.
    pub fn write(&mut self, write: &StoreWrite) -> Result<()> {
        match write {
            StoreWrite::Put(event) => self.serve(event, &EventRecord::write(event)),
            StoreWrite::MarkException(id) => Ok(self.store.tables.exceptions.put(&mut self.txn, &id.0, &[])?),
            StoreWrite::Hold(event, deadline) => self.hold(event, *deadline),
            StoreWrite::ExtendHold(id, deadline) => self.extend(*id, *deadline),
            StoreWrite::Release(id) => self.release(*id),
            StoreWrite::DropHeld(id) => self.unhold(*id).map(drop),
            StoreWrite::Remove(id) => self.remove(*id),
            StoreWrite::AddTombstone(tombstone) => self.bury(tombstone),
            StoreWrite::AddTodo(todo) => self.note(todo),
            StoreWrite::RemoveTodo(todo) => self.done(todo),
            StoreWrite::AddUpload(upload) => self.stage(upload),
            StoreWrite::RemoveUpload(repo_path, event) => self.unstage(repo_path, *event),
        }
    }

    /// Served events whose own time is over, at most so many.
    pub fn expired_events(&mut self, now: Timestamp, most: usize) -> Result<Vec<EventSummary>> {
        let tables = self.store.tables;
        let mut due = Vec::new();
        for row in tables.expiry.iter(&self.txn)?.take(most) {
            let (expires_at, seq) = row?.0.split_at(8);
            if number(expires_at) > now.0 {
                break;
            }
            due.push((number(expires_at), number(seq)));
        }
        let mut found = Vec::new();
        for (expires_at, seq) in due {
            match tables.events.get(&self.txn, &seq.to_be_bytes())? {
                Some(bytes) => found.push(EventRecord::read(bytes)?.summary()),
                // A row without its event would be due for ever.
                None => {
                    let row: [u8; 16] = key(&[&expires_at.to_be_bytes(), &seq.to_be_bytes()]);
                    tables.expiry.delete(&mut self.txn, &row)?;
                }
            }
        }
        Ok(found)
    }

    /// When the next served event expires.
    pub fn next_expiry(&self) -> Result<Option<Timestamp>> {
        Ok(self.store.tables.expiry.first(&self.txn)?.map(|(key, _)| Timestamp(number(&key[..8]))))
    }

    /// Goes on with emptying the shelves of authors who vanished. True while there is more to do.
    pub fn purge_slice(&mut self) -> Result<bool> {
        let row = self.store.tables.purging.first(&self.txn)?;
        let Some((author, purge)) = row.map(|(author, purge)| (PublicKey(key(&[author])), Purge::read(purge))) else {
            return Ok(false);
        };
        self.purge_author(author, purge)?;
        Ok(!self.store.tables.purging.is_empty(&self.txn)?)
    }

    /// When a served event came to be served: its place in the sequence.
    pub fn seq_of(&self, id: EventId) -> Result<Option<u64>> {
        Ok(self.store.tables.ids.get(&self.txn, &id.0)?.map(number))
    }

    /// Takes the pull requests that went with a vanished author in this batch since the last call, by
    /// [`Tombstone::Author`] or by [`purge`](Self::purge), each once: at most [`limits::REMOVAL_SLICE_EVENTS`] and what the batch
    /// itself had put for each of these. What follows from their going belongs into this batch.
    pub fn take_removed_pull_requests(&mut self) -> Vec<EventSummary> {
        std::mem::take(&mut self.removed_pull_requests)
    }

    /// Makes it durable and visible. After this nothing of it can be lost.
    pub fn commit(mut self) -> Result<()> {
        std::mem::take(&mut self.pending).flush(&self.store.tables, &mut self.txn)?;
        self.store.tables.note_last_seq(&mut self.txn, self.next_seq - 1)?;
        self.txn.commit()?;
        self.store.set_last_seq(self.next_seq - 1);
        Ok(())
    }

    fn serve(&mut self, event: &Event, bytes: &[u8]) -> Result<()> {
        let tables = self.store.tables;
        if let Some(known) = tables.ids.get(&self.txn, &event.id.0)?.map(number) {
            let doomed = match tables.events.get(&self.txn, &known.to_be_bytes())? {
                Some(bytes) => self.is_doomed(&EventRecord::read(bytes)?, known)?,
                None => false,
            };
            if !doomed {
                return Ok(());
            }
            // A vanished author has left it behind; it has come again and stays.
            self.remove_doomed(known)?;
        }
        let record = EventRecord::read(bytes)?;
        let seq = self.next_seq;
        self.next_seq += 1;
        if let Some(coordinate) = event.coordinate() {
            let hash = self.store.digest.coordinate(&coordinate);
            if let Some(old) = tables.coordinates.get(&self.txn, &hash)?.map(number) {
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
        self.pending.add(Entries::of(&record, seq, self.store.digest));
        Ok(())
    }

    fn hold(&mut self, event: &SignedEvent, deadline: Timestamp) -> Result<()> {
        let tables = &self.store.tables;
        let mut row = deadline.0.to_be_bytes().to_vec();
        row.extend_from_slice(&EventRecord::write(event));
        tables.held.put(&mut self.txn, &event.id.0, &row)?;
        let author: [u8; 64] = key(&[&event.pubkey.0, &event.id.0]);
        tables.held_by_author.put(&mut self.txn, &author, &[])?;
        Ok(())
    }

    fn extend(&mut self, id: EventId, deadline: Timestamp) -> Result<()> {
        let tables = &self.store.tables;
        let Some(mut row) = tables.held.get(&self.txn, &id.0)?.map(<[u8]>::to_vec) else { return Ok(()) };
        let start = row.first_chunk_mut().ok_or(StoreError::Damaged("a held row is too short"))?;
        *start = deadline.0.to_be_bytes();
        Ok(tables.held.put(&mut self.txn, &id.0, &row)?)
    }

    fn release(&mut self, id: EventId) -> Result<()> {
        let Some(bytes) = self.unhold(id)? else { return Ok(()) };
        let event = EventRecord::read(&bytes)?.event()?;
        self.serve(&event, &bytes)
    }

    /// Takes a held event out and gives back its record.
    fn unhold(&mut self, id: EventId) -> Result<Option<Vec<u8>>> {
        let tables = &self.store.tables;
        let Some(row) = tables.held.get(&self.txn, &id.0)?.map(<[u8]>::to_vec) else { return Ok(None) };
        let bytes = row.get(8..).ok_or(StoreError::Damaged("a held row is too short"))?.to_vec();
        let author: [u8; 64] = key(&[&EventRecord::read(&bytes)?.author().0, &id.0]);
        tables.held.delete(&mut self.txn, &id.0)?;
        tables.held_by_author.delete(&mut self.txn, &author)?;
        Ok(Some(bytes))
    }

    fn remove(&mut self, id: EventId) -> Result<()> {
        match self.store.tables.ids.get(&self.txn, &id.0)?.map(number) {
            Some(seq) => self.remove_seq(seq),
            None => Ok(()),
        }
    }

    fn remove_seq(&mut self, seq: u64) -> Result<()> {
        let tables = self.store.tables;
        let Some(bytes) = tables.events.get(&self.txn, &seq.to_be_bytes())?.map(<[u8]>::to_vec) else { return Ok(()) };
        let record = EventRecord::read(&bytes)?;
        let entries = Entries::of(&record, seq, self.store.digest);
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
            let hash = self.store.digest.coordinate_of(record.kind(), &record.author(), d);
            if tables.coordinates.get(&self.txn, &hash)?.map(number) == Some(seq) {
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

    fn bury(&mut self, tombstone: &Tombstone) -> Result<()> {
        let tables = self.store.tables;
        match tombstone {
            Tombstone::Event(author, id) => {
                let row: [u8; 64] = key(&[&author.0, &id.0]);
                tables.deleted_ids.put(&mut self.txn, &row, &[])?;
            }
            Tombstone::Coordinate(coordinate, up_to) => {
                let hash = self.store.digest.coordinate(coordinate);
                self.raise(tables.deleted_coordinates, &hash, up_to.0)?;
            }
            Tombstone::Author(author, up_to) => {
                self.raise(tables.vanished, &author.0, up_to.0)?;
                // An earlier purge that is still under way is part of this one, unless it reaches further.
                let under_way = tables.purging.get(&self.txn, &author.0)?.map(|row| Purge::read(row).up_to());
                let purge = Purge::new(under_way.map_or(*up_to, |earlier| earlier.max(*up_to)), self.next_seq - 1);
                tables.purging.put(&mut self.txn, &author.0, &purge.row())?;
                self.purge_author(*author, purge)?;
            }
            Tombstone::Withdrawn(repo, version) => {
                let hash = self.store.digest.coordinate(&announcement_of(repo));
                let old = tables.withdrawn.get(&self.txn, &hash)?.map(read_stamp).transpose()?;
                if old.is_none_or(|old| supersedes(*version, old)) {
                    let row: [u8; 40] = key(&[&version.created_at.0.to_be_bytes(), &version.id.0]);
                    tables.withdrawn.put(&mut self.txn, &hash, &row)?;
                }
            }
        }
        Ok(())
    }

    /// Notes a time unless a later one is noted already.
    fn raise(&mut self, table: Table, row: &[u8], time: u64) -> Result<()> {
        if table.get(&self.txn, row)?.map(number).is_none_or(|old| old < time) {
            table.put(&mut self.txn, row, &time.to_be_bytes())?;
        }
        Ok(())
    }

    /// Removes one slice of what a vanished author has left here, and the marker with the last of it.
    fn purge_author(&mut self, author: PublicKey, purge: Purge) -> Result<()> {
        let tables = self.store.tables;
        let tag = self.store.digest.tag(b'p', author.to_string().as_bytes());
        self.purge_batch(&author, purge, &tag)?;
        // First what the author made, then what was made for it.
        let (table, prefix) =
            if purge.own_are_gone() { (tables.by_tag, &tag[..]) } else { (tables.by_author, author_prefix(&author)) };
        let mut doomed = Vec::new();
        let mut last = None;
        let mut read = 0;
        let start = [prefix, &purge.start()].concat();
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
            let seq = seq_of_key(entry);
            if let Some(bytes) = tables.events.get(&self.txn, &seq.to_be_bytes())?
                && purge.dooms(&EventRecord::read(bytes)?, seq, &author)
            {
                doomed.push(seq);
            }
        }
        for seq in doomed {
            self.remove_doomed(seq)?;
        }
        let next = if read == limits::REMOVAL_SLICE_EVENTS {
            last.map(|place| purge.after(place))
        } else {
            purge.next_phase()
        };
        match next {
            Some(purge) => tables.purging.put(&mut self.txn, &author.0, &purge.row())?,
            None => drop(tables.purging.delete(&mut self.txn, &author.0)?),
        }
        Ok(())
    }

    /// Removes what this very batch has put: its entries are not in the tables yet.
    fn purge_batch(&mut self, author: &PublicKey, purge: Purge, tag: &TagKey) -> Result<()> {
        if !self.pending.has_author(author) && !self.pending.has_tag(tag) {
            return Ok(());
        }
        for seq in self.first_seq..self.next_seq {
            let doomed = match self.store.tables.events.get(&self.txn, &seq.to_be_bytes())? {
                Some(bytes) => purge.dooms(&EventRecord::read(bytes)?, seq, author),
                None => false,
            };
            if doomed {
                self.remove_doomed(seq)?;
            }
        }
        Ok(())
    }

    /// Removes an event of a vanished author. The registrar does not know of these, and a pull request has left refs.
    fn remove_doomed(&mut self, seq: u64) -> Result<()> {
        if let Some(bytes) = self.store.tables.events.get(&self.txn, &seq.to_be_bytes())? {
            let record = EventRecord::read(bytes)?;
            if kinds::is_pull_request(record.kind()) {
                self.removed_pull_requests.push(record.summary());
            }
        }
        self.remove_seq(seq)
    }
}

/// The coordinate of a repository's announcement.
pub(crate) fn announcement_of(repo: &RepoId) -> Coordinate {
    Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: repo.owner, d: repo.identifier.as_str().to_owned() }
}

pub(crate) fn read_stamp(row: &[u8]) -> Result<grasp_core::nostr::EventVersion> {
    let damaged = || StoreError::Damaged("a version of the wrong length");
    let (created_at, id) = row.split_at_checked(8).ok_or_else(damaged)?;
    Ok(grasp_core::nostr::EventVersion {
        created_at: Timestamp(number(created_at)),
        id: EventId(id.try_into().map_err(|_| damaged())?),
    })
}

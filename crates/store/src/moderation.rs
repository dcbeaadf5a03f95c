//! What a sweep reads: the served events, as the open batch leaves them. What it has put is not found by author or tag.

use std::sync::Arc;

use grasp_core::admission::io::EventSummary;
use grasp_core::admission::moderation::ServedEvents;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::{PublicKey, SignedEvent, json};

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::index::author_prefix;
use crate::schema::{Table, seq_of_key};
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Reads those events of an index that are meant, at most so many behind so many others.
    fn each<T>(
        &self,
        (table, prefix): (Table, &[u8]),
        (behind, most): (usize, usize),
        read: impl Fn(EventRecord<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let mut rows = table.prefix_iter(&self.txn, prefix)?.skip(behind);
        while let Some(row) = rows.next().filter(|_| found.len() < most) {
            let seq = seq_of_key(row?.0);
            if let Some(bytes) = self.store.tables.events.get(&self.txn, &seq.to_be_bytes())? {
                found.extend(read(EventRecord::read(bytes)?));
            }
        }
        Ok(found)
    }
}

impl ServedEvents for WriteTransaction<'_> {
    type Error = StoreError;

    fn by_author(&self, author: PublicKey, most: usize) -> Result<Vec<EventSummary>> {
        let index = (self.store.tables.by_author, author_prefix(&author));
        self.each(index, (0, most), |record| (record.author() == author).then(|| record.summary()))
    }

    fn summary(&self, id: EventId) -> Result<Option<EventSummary>> {
        Ok(self.served(id)?.map(|record| record.summary()))
    }

    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>> {
        Ok(self.served(id)?.and_then(|record| record.event().ok()).map(Arc::new))
    }

    fn at_coordinate(&self, coordinate: &Coordinate) -> Result<Option<EventId>> {
        Ok(self.served_at(coordinate)?.map(|record| record.id()))
    }

    fn by_tag(&self, letter: u8, value: &str, behind: usize, most: usize) -> Result<Vec<EventId>> {
        let tag = self.store.digest.tag(letter, json::escape(value).as_bytes());
        self.each((self.store.tables.by_tag, &tag), (behind, most), |record| Some(record.id()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use grasp_core::admission::io::StoreWrite;
    use grasp_sim::store_contract::{Shelf, draft};
    use grasp_sim::store_model::Memory;
    use tempfile::TempDir;

    use super::*;
    use crate::store::{StoreOptions, Store};

    /// All events with a tag, in pages of two.
    fn tagged<S: ServedEvents<Error: std::fmt::Debug>>(shelves: &S, letter: u8, value: &str) -> BTreeSet<EventId> {
        let mut all = BTreeSet::new();
        loop {
            let page = shelves.by_tag(letter, value, all.len(), 2).expect("reads");
            let is_last = page.len() < 2;
            for id in page {
                assert!(all.insert(id), "no event comes twice");
            }
            if is_last {
                return all;
            }
        }
    }

    #[test]
    fn it_reads_what_the_model_reads() {
        let folder = TempDir::new().expect("a folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut model = Memory::new();
        let mut batch = store.begin().expect("begins");
        let repo = draft(1, 30_617, 10, &[&["d", "\"x\""]]);
        let at = repo.coordinate().expect("addressable").to_string();
        let mut events = vec![repo];
        events.extend((0..7).map(|time| draft(2, 1_621, 20 + time, &[&["a", &at], &["q", "7"]])));
        events.push(draft(3, 1_111, 30, &[&["A", &at], &["e", &events[1].id.to_string()]]));
        let writes: Vec<StoreWrite> = events.iter().cloned().map(StoreWrite::Put).collect();
        for write in &writes {
            batch.write(write).expect("writes");
            model.write(write);
        }
        batch.commit().expect("commits");
        model.commit();

        let mut batch = store.begin().expect("begins");
        let gone = StoreWrite::Remove(events[2].id);
        batch.write(&gone).expect("writes");
        model.write(&gone);
        for event in &events {
            assert_eq!(
                ServedEvents::event(&batch, event.id).expect("reads"),
                ServedEvents::event(&model, event.id).expect("reads")
            );
            let ids = |its: Vec<EventSummary>| its.into_iter().map(|its| its.id).collect::<BTreeSet<_>>();
            let its = batch.by_author(event.pubkey, 100).expect("reads");
            assert_eq!(ids(its), ids(model.by_author(event.pubkey, 100).expect("reads")));
            assert_eq!(batch.by_author(event.pubkey, 1).expect("reads").len(), 1);
        }
        let place = events[0].coordinate().expect("addressable");
        assert_eq!(batch.at_coordinate(&place).expect("reads"), Some(events[0].id));
        let id = events[1].id.to_string();
        for (letter, value) in [(b'a', at.as_str()), (b'A', &at), (b'q', &at), (b'q', "7"), (b'e', &id), (b'E', &id)] {
            assert_eq!(tagged(&batch, letter, value), tagged(&model, letter, value), "{letter} {value}");
        }
        assert_eq!(tagged(&batch, b'a', &at).len(), 6);
    }
}

//! Reads of moderation sweeps and of the end of hosting: served events including the changes of the open transaction. Events that the transaction
//! itself put are not found by author or tag.

use std::ops::Bound;
use std::sync::Arc;

use grasp_core::admission::io::{EventSummary, PullRequestPage};
use grasp_core::admission::moderation::ServedEvents;
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, EventId, EventVersion};
use grasp_core::nostr::{PublicKey, SignedEvent, json, kinds};
use grasp_core::repo::RepoId;

use crate::error::{Result, StoreError};
use crate::event_record::EventRecord;
use crate::index::author_prefix;
use crate::schema::{Table, index_key_seq, sort_key};
use crate::transaction::{WriteTransaction, announcement_coordinate};

impl WriteTransaction<'_> {
    /// Reads at most `max_rows` values from the events of an index, after skipping `skip` entries.
    fn read_index<T>(
        &self,
        (table, prefix): (Table, &[u8]),
        (skip, max_rows): (usize, usize),
        read: impl Fn(EventRecord<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut found = Vec::new();
        let mut rows = table.prefix_iter(&self.txn, prefix)?.skip(skip);
        while let Some(row) = rows.next().filter(|_| found.len() < max_rows) {
            let seq = index_key_seq(row?.0);
            found.extend(self.store.find_by_seq(&self.txn, seq)?.and_then(&read));
        }
        Ok(found)
    }
}

impl WriteTransaction<'_> {
    /// Returns a page of the served pull requests that are addressed to a repository, newest first, and where the next
    /// page starts. Those that this transaction itself put are part of the first page.
    pub fn pull_requests_for(
        &self,
        repo: &RepoId,
        page: PullRequestPage,
    ) -> Result<(Vec<Arc<SignedEvent>>, Option<EventVersion>)> {
        let address = announcement_coordinate(repo).to_string();
        let tag = self.store.hasher.tag(b'a', json::escape(&address).as_bytes());
        let mut found = Vec::new();
        if page == PullRequestPage::First && self.pending.has_tag(&tag) {
            for seq in self.first_seq..self.next_seq {
                found.extend(self.pull_request(seq)?.filter(|event| event.values("a").any(|value| value == address)));
            }
        }
        let start = match page {
            PullRequestPage::First => tag.to_vec(),
            PullRequestPage::After(last) => [&tag[..], &sort_key(last.created_at.0, &last.id.0, u64::MAX)].concat(),
        };
        let range = (Bound::Excluded(start.as_slice()), Bound::Unbounded);
        let (mut rows, mut bytes) = (0, 0);
        for row in self.store.tables.by_tag.range(&self.txn, &range)? {
            let entry = row?.0;
            if !entry.starts_with(&tag) {
                break;
            }
            let seq = index_key_seq(entry);
            if let Some(event) = self.pull_request(seq)? {
                bytes += event.json().len();
                found.push(event);
            }
            rows += 1;
            if rows >= limits::PULL_REQUEST_PAGE_ROWS || bytes >= limits::PULL_REQUEST_PAGE_BYTES {
                let record = self.store.tables.events.get(&self.txn, &seq.to_be_bytes())?;
                return Ok((found, record.map(EventRecord::read).transpose()?.map(|record| record.version())));
            }
        }
        Ok((found, None))
    }

    /// Returns the visible pull request with a sequence number.
    fn pull_request(&self, seq: u64) -> Result<Option<Arc<SignedEvent>>> {
        let Some(bytes) = self.store.tables.events.get(&self.txn, &seq.to_be_bytes())? else { return Ok(None) };
        let record = EventRecord::read(bytes)?;
        if !kinds::is_pull_request(record.kind()) || self.is_being_purged(&record, seq)? {
            return Ok(None);
        }
        Ok(Some(Arc::new(record.event()?)))
    }
}

impl ServedEvents for WriteTransaction<'_> {
    type Error = StoreError;

    fn by_author(&self, author: PublicKey, max_rows: usize) -> Result<Vec<EventSummary>> {
        let index = (self.store.tables.by_author, author_prefix(&author));
        self.read_index(index, (0, max_rows), |record| (record.author() == author).then(|| record.summary()))
    }

    fn summary(&self, id: EventId) -> Result<Option<EventSummary>> {
        Ok(self.find_served(id)?.map(|record| record.summary()))
    }

    fn event(&self, id: EventId) -> Result<Option<Arc<SignedEvent>>> {
        Ok(self.find_served(id)?.and_then(|record| record.event().ok()).map(Arc::new))
    }

    fn at_coordinate(&self, coordinate: &Coordinate) -> Result<Option<EventId>> {
        Ok(self.find_served_at(coordinate)?.map(|record| record.id()))
    }

    fn by_tag(&self, letter: u8, value: &str, skip: usize, max_rows: usize) -> Result<Vec<EventId>> {
        let tag = self.store.hasher.tag(letter, json::escape(value).as_bytes());
        self.read_index((self.store.tables.by_tag, &tag), (skip, max_rows), |record| Some(record.id()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use grasp_core::admission::io::StoreWrite;
    use grasp_sim::store_contract::{StoreUnderTest, draft};
    use grasp_sim::store_model::ModelStore;
    use tempfile::TempDir;

    use super::*;
    use crate::store::{Store, StoreOptions};

    /// Returns all events with a tag, read in pages of two.
    fn ids_with_tag<S: ServedEvents<Error: std::fmt::Debug>>(
        events_reader: &S,
        letter: u8,
        value: &str,
    ) -> BTreeSet<EventId> {
        let mut all = BTreeSet::new();
        loop {
            let page = events_reader.by_tag(letter, value, all.len(), 2).expect("reads");
            let is_last = page.len() < 2;
            for id in page {
                assert!(all.insert(id), "no event is returned twice");
            }
            if is_last {
                return all;
            }
        }
    }

    #[test]
    fn reads_agree_with_the_model() {
        let folder = TempDir::new().expect("temporary folder");
        let store = Store::open(folder.path(), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut model = ModelStore::new();
        let mut transaction = store.begin().expect("begins");
        let repo = draft(1, 30_617, 10, &[&["d", "\"x\""]]);
        let at = repo.coordinate().expect("addressable").to_string();
        let mut events = vec![repo];
        events.extend((0..7).map(|time| draft(2, 1_621, 20 + time, &[&["a", &at], &["q", "7"]])));
        events.push(draft(3, 1_111, 30, &[&["A", &at], &["e", &events[1].id.to_string()]]));
        let writes: Vec<StoreWrite> = events.iter().cloned().map(StoreWrite::Put).collect();
        for write in &writes {
            transaction.write(write).expect("writes");
            model.write(write);
        }
        transaction.commit().expect("commits");
        model.commit();

        let mut transaction = store.begin().expect("begins");
        let gone = StoreWrite::Remove(events[2].id);
        transaction.write(&gone).expect("writes");
        model.write(&gone);
        for event in &events {
            assert_eq!(
                ServedEvents::event(&transaction, event.id).expect("reads"),
                ServedEvents::event(&model, event.id).expect("reads")
            );
            let ids = |its: Vec<EventSummary>| its.into_iter().map(|its| its.id).collect::<BTreeSet<_>>();
            let its = transaction.by_author(event.pubkey, 100).expect("reads");
            assert_eq!(ids(its), ids(model.by_author(event.pubkey, 100).expect("reads")));
            assert_eq!(transaction.by_author(event.pubkey, 1).expect("reads").len(), 1);
        }
        let coordinate = events[0].coordinate().expect("addressable");
        assert_eq!(transaction.at_coordinate(&coordinate).expect("reads"), Some(events[0].id));
        let id = events[1].id.to_string();
        for (letter, value) in [(b'a', at.as_str()), (b'A', &at), (b'q', &at), (b'q', "7"), (b'e', &id), (b'E', &id)] {
            assert_eq!(
                ids_with_tag(&transaction, letter, value),
                ids_with_tag(&model, letter, value),
                "{letter} {value}"
            );
        }
        assert_eq!(ids_with_tag(&transaction, b'a', &at).len(), 6);
    }
}

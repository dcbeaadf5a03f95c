//! What sync asks of the store: what is here, what is not, and what has come since.

use std::cmp::Reverse;
use std::ops::{Bound, ControlFlow};

use grasp_core::admission::io::EventSummary;
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{Filter, json, kinds};
use grasp_core::repo::RepoId;
use grasp_core::sync::io::{LocalIds, RootEvent, Seq, ServedEvent};
use grasp_core::time::Timestamp;

use crate::error::Result;
use crate::event_record::{PreparedFilter, EventRecord};
use crate::scan::{Hidden, ScanProgress, Scan};
use crate::schema::number;
use crate::store::Store;
use crate::transaction::announcement_of;

/// What has expired and is not swept yet is here all the same: it would not be taken in again.
const BEFORE_ALL_EXPIRY: Timestamp = Timestamp(0);

/// Bytes of references that are read of new events at a time: a few events with thousands of them.
const MAX_FEED_BYTES: usize = 1024 * 1024;

/// The kinds that others answer to.
const ROOTS: [u16; 3] = [kinds::PATCH, kinds::PULL_REQUEST, kinds::ISSUE];

impl Store {
    /// The newest events that match, served and held, at most so many: by time, then id. A filter's `limit` means nothing.
    ///
    /// If there are more, all that were made at [`LocalIds::complete_since`] or later are given and no others; that may be none,
    /// if too many were made in one second.
    pub fn newest_ids(&self, filter: &Filter, most: usize) -> Result<LocalIds> {
        let filter = Filter { limit: None, ..filter.clone() };
        // What is released meanwhile is found twice rather than never.
        let mut found = self.held_ids(&filter)?;
        let mut scan = Scan::new(vec![filter], most.saturating_add(1), self.last_seq());
        let mut oldest = u64::MAX - 1;
        let progress = loop {
            let progress = scan.run_slice(self, BEFORE_ALL_EXPIRY, |record| {
                found.push(item(&record));
                oldest = record.created_at().0;
                ControlFlow::Continue(())
            })?;
            if progress != ScanProgress::More {
                break progress;
            }
        };
        found.sort_unstable_by_key(|item| (Reverse(item.created_at), item.id));
        found.dedup();
        // Whatever comes behind the first that does not fit was made no later than that.
        let beyond = found.get(most).map(|item| item.created_at);
        // A scan that costs too much has come to the last one that it has found, and who knows how much further.
        let first_missing = if progress == ScanProgress::Exhausted { beyond.max(Some(oldest)) } else { beyond };
        if let Some(second) = first_missing {
            found.truncate(most);
            found.retain(|item| item.created_at > second);
        }
        found.sort_unstable();
        Ok(LocalIds { items: found, complete_since: first_missing.map(|second| Timestamp(second.saturating_add(1))) })
    }

    /// Those that are neither served nor held.
    pub fn missing_ids(&self, ids: &[EventId]) -> Result<Vec<EventId>> {
        let mut missing = Vec::new();
        for slice in ids.chunks(limits::SCAN_SLICE_ROWS) {
            let txn = self.env.read_txn()?;
            let hidden = Hidden::read(self, &txn)?;
            for id in slice {
                let seq = self.tables.ids.get(&txn, &id.0)?.map(number);
                let served = match seq {
                    Some(seq) => {
                        self.find(&txn, seq)?.is_some_and(|record| hidden.shows(&record, seq, BEFORE_ALL_EXPIRY))
                    }
                    None => false,
                };
                if !served && self.tables.held.get(&txn, &id.0)?.is_none() {
                    missing.push(*id);
                }
            }
        }
        Ok(missing)
    }

    /// Those of these events that are served or held, in short.
    pub fn summaries(&self, ids: &[EventId]) -> Result<Vec<EventSummary>> {
        let mut found = Vec::new();
        for slice in ids.chunks(limits::SCAN_SLICE_ROWS) {
            let txn = self.env.read_txn()?;
            for id in slice {
                let held = self.tables.held.get(&txn, &id.0)?.and_then(|row| row.get(8..));
                let record = match (held, self.tables.ids.get(&txn, &id.0)?) {
                    (Some(bytes), _) => EventRecord::read(bytes).ok(),
                    (None, Some(seq)) => self.find(&txn, number(seq))?,
                    (None, None) => None,
                };
                found.extend(record.map(|record| record.summary()));
            }
        }
        Ok(found)
    }

    /// The roots of a repository that are served, by arrival.
    pub fn root_events(&self, repo: &RepoId) -> Result<Vec<RootEvent>> {
        let filter = Filter {
            kinds: Some(ROOTS.to_vec()),
            tags: vec![(b'a', vec![announcement_of(repo).to_string()])],
            ..Filter::default()
        };
        let mut roots = Vec::new();
        let mut scan = Scan::new(vec![filter], usize::MAX, self.last_seq());
        while scan.run_slice_with_seqs(self, BEFORE_ALL_EXPIRY, |seq, record| {
            roots.push(RootEvent { seq, id: record.id() });
            ControlFlow::Continue(())
        })? == ScanProgress::More
        {}
        roots.sort_unstable();
        Ok(roots)
    }

    /// The events that came to be served after a sequence number, in order, at most so many; and up to which sequence
    /// number they are all there. There may be more behind that.
    pub fn served_since(&self, seq: Seq, most: usize) -> Result<(Vec<ServedEvent>, Seq)> {
        let last = self.last_seq();
        let (mut arrived, mut bytes) = (Vec::new(), 0);
        let mut reached = seq;
        let mut full = most == 0;
        self.for_each_since(seq, most, |seq, record| {
            let (event, size) = read(seq, &record);
            arrived.push(event);
            bytes += size;
            reached = seq;
            full = arrived.len() == most || bytes > MAX_FEED_BYTES;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // What is gone again needs not be looked for again.
        Ok((arrived, if full { reached } else { reached.max(last) }))
    }

    /// The held events that match.
    fn held_ids(&self, filter: &Filter) -> Result<Vec<NegentropyItem>> {
        let matcher = PreparedFilter::new(filter.clone());
        let mut found = Vec::new();
        let mut behind: Option<Vec<u8>> = None;
        loop {
            let txn = self.env.read_txn()?;
            let start = behind.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let rest: (Bound<&[u8]>, Bound<&[u8]>) = (start, Bound::Unbounded);
            let mut last = None;
            for row in self.tables.held.range(&txn, &rest)?.take(limits::SCAN_SLICE_ROWS) {
                let (id, row) = row?;
                last = Some(id.to_vec());
                // One that cannot be read is nowhere told of.
                if let Some(record) = row.get(8..).and_then(|bytes| EventRecord::read(bytes).ok())
                    && matcher.matches(&record)
                {
                    found.push(item(&record));
                }
            }
            match last {
                Some(last) => behind = Some(last),
                None => return Ok(found),
            }
        }
    }
}

fn item(record: &EventRecord<'_>) -> NegentropyItem {
    NegentropyItem { created_at: record.created_at().0, id: record.id().0 }
}

/// What sync wants to know of a served event, and how many bytes that takes, roughly.
fn read(seq: Seq, record: &EventRecord<'_>) -> (ServedEvent, usize) {
    let (mut ids, mut coordinates) = (Vec::new(), Vec::new());
    let mut bytes = size_of::<ServedEvent>();
    for (letter, value) in record.tags() {
        let Ok(value) = std::str::from_utf8(value) else { continue };
        if b"eEq".contains(&letter)
            && let Some(id) = EventId::from_hex(value)
        {
            ids.push(id);
            bytes += size_of::<EventId>();
        } else if b"aAq".contains(&letter)
            && let Some(coordinate) = json::unescape(value).as_deref().and_then(Coordinate::parse)
        {
            bytes += size_of::<Coordinate>() + coordinate.d.len();
            coordinates.push(coordinate);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    coordinates.sort_unstable();
    coordinates.dedup();
    let d = record.identifier().and_then(|d| std::str::from_utf8(d).ok()).and_then(json::unescape);
    let coordinate = d.map(|d| Coordinate { kind: record.kind(), pubkey: record.author(), d });
    let arrived = ServedEvent {
        seq,
        id: record.id(),
        kind: record.kind(),
        author: record.author(),
        coordinate,
        ids,
        coordinates,
    };
    (arrived, bytes)
}

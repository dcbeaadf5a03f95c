//! Queries of sync: ids of stored events, missing ids, and newly served events.

use std::cmp::Reverse;
use std::ops::{Bound, ControlFlow};

use grasp_core::admission::io::EventSummary;
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, EventId};
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{Filter, json, kinds};
use grasp_core::repo::RepoId;
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::descendants;
use grasp_core::sync::io::{Descendants, LocalIds, RootEvent, Seq, ServedEvent};
use grasp_core::time::Timestamp;

use crate::error::Result;
use crate::event_record::{EventRecord, PreparedFilter};
use crate::scan::{Scan, ScanProgress, Visibility};
use crate::schema::read_u64;
use crate::store::Store;
use crate::transaction::announcement_coordinate;

/// Expired events that are not removed yet count as stored: they would not be accepted again.
const BEFORE_ALL_EXPIRY: Timestamp = Timestamp(0);

/// Bytes of references read from new events at a time: a few events with thousands of references.
const MAX_FEED_BYTES: usize = 1024 * 1024;

/// Root kinds: events that other events refer to.
const ROOT_KINDS: [u16; 3] = [kinds::PATCH, kinds::PULL_REQUEST, kinds::ISSUE];

impl Store {
    /// Returns the ids of the newest `max_ids` matching events, served and held, by time, then id. Ignores the filter's
    /// `limit`.
    ///
    /// If there are more, the result contains exactly the events created at [`LocalIds::complete_since`] or later. It
    /// is empty if too many events were created in one second.
    pub fn newest_ids(&self, filter: &Filter, max_ids: usize) -> Result<LocalIds> {
        let filter = Filter { limit: None, ..filter.clone() };
        // Held events are read first: an event released meanwhile is found twice rather than not at all.
        let mut found = self.held_ids(&filter)?;
        let mut scan = Scan::new(vec![filter], max_ids.saturating_add(1), self.last_seq());
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
        // All events after the first one that does not fit were created at that time or earlier.
        let beyond = found.get(max_ids).map(|item| item.created_at);
        // A scan that reached its row limit is complete only down to the last event that it found.
        let first_missing = if progress == ScanProgress::Exhausted { beyond.max(Some(oldest)) } else { beyond };
        if let Some(second) = first_missing {
            found.truncate(max_ids);
            found.retain(|item| item.created_at > second);
        }
        found.sort_unstable();
        Ok(LocalIds { items: found, complete_since: first_missing.map(|second| Timestamp(second.saturating_add(1))) })
    }

    /// Returns those ids that are neither served nor held.
    pub fn missing_ids(&self, ids: &[EventId]) -> Result<Vec<EventId>> {
        let mut missing = Vec::new();
        self.find_ids(ids, |id, status| missing.extend(status.is_none().then_some(id)))?;
        Ok(missing)
    }

    /// Returns whether an event is served or held.
    pub fn status_of(&self, id: EventId) -> Result<Option<EventStatus>> {
        let mut found = None;
        self.find_ids(&[id], |_, status| found = status)?;
        Ok(found)
    }

    /// Passes each id and its status to `on_id`.
    fn find_ids(&self, ids: &[EventId], mut on_id: impl FnMut(EventId, Option<EventStatus>)) -> Result<()> {
        for slice in ids.chunks(limits::SCAN_SLICE_ROWS) {
            let txn = self.env.read_txn()?;
            let visibility = Visibility::read(self, &txn)?;
            for id in slice {
                let seq = self.tables.ids.get(&txn, &id.0)?.map(read_u64);
                let served = match seq {
                    Some(seq) => self
                        .find_by_seq(&txn, seq)?
                        .is_some_and(|record| visibility.is_visible(&record, seq, BEFORE_ALL_EXPIRY)),
                    None => false,
                };
                let is_held = !served && self.tables.held.get(&txn, &id.0)?.is_some();
                on_id(*id, if served { Some(EventStatus::Served) } else { is_held.then_some(EventStatus::Held) });
            }
        }
        Ok(())
    }

    /// Returns summaries of those events that are served or held.
    pub fn summaries(&self, ids: &[EventId]) -> Result<Vec<EventSummary>> {
        let mut found = Vec::new();
        for slice in ids.chunks(limits::SCAN_SLICE_ROWS) {
            let txn = self.env.read_txn()?;
            for id in slice {
                let held = self.tables.held.get(&txn, &id.0)?.and_then(|row| row.get(8..));
                let record = match (held, self.tables.ids.get(&txn, &id.0)?) {
                    (Some(bytes), _) => EventRecord::read(bytes).ok(),
                    (None, Some(seq)) => self.find_by_seq(&txn, read_u64(seq))?,
                    (None, None) => None,
                };
                found.extend(record.map(|record| record.summary()));
            }
        }
        Ok(found)
    }

    /// Returns the served root events of a repository in the order of their sequence numbers.
    pub fn root_events(&self, repo: &RepoId) -> Result<Vec<RootEvent>> {
        // The same tags as for events that are served later.
        let filters = b"aAq".map(|letter| Filter {
            kinds: Some(ROOT_KINDS.to_vec()),
            tags: vec![(letter, vec![announcement_coordinate(repo).to_string()].into())],
            ..Filter::default()
        });
        let mut roots = Vec::new();
        let mut scan = Scan::new(filters.to_vec(), usize::MAX, self.last_seq());
        while scan.run_slice_with_seqs(self, BEFORE_ALL_EXPIRY, |seq, record| {
            roots.push(RootEvent { seq, id: record.id() });
            ControlFlow::Continue(())
        })? == ScanProgress::More
        {}
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }

    /// Returns the descendants of a repository: served events that reference it, its root events or each other.
    pub fn descendants(&self, repo: &RepoId, roots: &[RootEvent], descendant_limit: usize) -> Result<Descendants> {
        let last_seq = self.last_seq();
        descendants::collect(repo, roots, descendant_limit, |filter| {
            let mut found = Vec::new();
            let mut scan = Scan::new(vec![filter.clone()], usize::MAX, last_seq);
            while scan.run_slice_with_seqs(self, BEFORE_ALL_EXPIRY, |seq, record| {
                found.push((record.created_at(), read_served_event(seq, &record).0));
                ControlFlow::Continue(())
            })? == ScanProgress::More
            {}
            Ok(found)
        })
    }

    /// Returns at most `max_events` events that were served after a sequence number, in order, and the sequence number
    /// up to which the result is complete. There may be more events after it.
    pub fn served_since(&self, seq: Seq, max_events: usize) -> Result<(Vec<ServedEvent>, Seq)> {
        let last = self.last_seq();
        let (mut served, mut bytes) = (Vec::new(), 0);
        let mut reached = seq;
        let mut full = max_events == 0;
        self.for_each_since(seq, max_events, |seq, record| {
            let (event, size) = read_served_event(seq, &record);
            served.push(event);
            bytes += size;
            reached = seq;
            full = served.len() == max_events || bytes > MAX_FEED_BYTES;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // The rest of the range was removed again and need not be read again.
        Ok((served, if full { reached } else { reached.max(last) }))
    }

    /// Returns those of the events that are served.
    pub fn served_events(&self, ids: &[EventId]) -> Result<Vec<ServedEvent>> {
        let mut found = Vec::new();
        for slice in ids.chunks(limits::SCAN_SLICE_ROWS) {
            let txn = self.env.read_txn()?;
            let visibility = Visibility::read(self, &txn)?;
            for id in slice {
                let Some(seq) = self.tables.ids.get(&txn, &id.0)?.map(read_u64) else { continue };
                let record = self.find_by_seq(&txn, seq)?;
                let visible = record.filter(|record| visibility.is_visible(record, seq, BEFORE_ALL_EXPIRY));
                found.extend(visible.map(|record| read_served_event(seq, &record).0));
            }
        }
        Ok(found)
    }

    /// Returns the held events that match.
    fn held_ids(&self, filter: &Filter) -> Result<Vec<NegentropyItem>> {
        let matcher = PreparedFilter::new(filter.clone());
        let mut found = Vec::new();
        let mut last_id: Option<Vec<u8>> = None;
        loop {
            let txn = self.env.read_txn()?;
            let start = last_id.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let rest: (Bound<&[u8]>, Bound<&[u8]>) = (start, Bound::Unbounded);
            let mut last = None;
            for row in self.tables.held.range(&txn, &rest)?.take(limits::SCAN_SLICE_ROWS) {
                let (id, row) = row?;
                last = Some(id.to_vec());
                // Unreadable rows are skipped.
                if let Some(record) = row.get(8..).and_then(|bytes| EventRecord::read(bytes).ok())
                    && matcher.matches(&record)
                {
                    found.push(item(&record));
                }
            }
            match last {
                Some(last) => last_id = Some(last),
                None => return Ok(found),
            }
        }
    }
}

fn item(record: &EventRecord<'_>) -> NegentropyItem {
    NegentropyItem { created_at: record.created_at().0, id: record.id().0 }
}

/// Reads what sync needs of a served event. Also returns its approximate size in bytes.
fn read_served_event(seq: Seq, record: &EventRecord<'_>) -> (ServedEvent, usize) {
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

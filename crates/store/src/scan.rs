//! Queries: newest event first, each event once, in slices.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use grasp_core::limits;
use grasp_core::nostr::{Filter, PublicKey};
use grasp_core::time::Timestamp;
use heed::types::{Bytes, Unit};
use heed::{RoRange, RoTxn, WithoutTls};

use crate::error::Result;
use crate::event_record::{EventRecord, PreparedFilter};
use crate::query_plan::{IndexKind, KeyRange, TimeWindow, plan};
use crate::schema::{SortKey, sort_key_seq};
use crate::store::Store;
use crate::vanish::PurgeProgress;

/// State of a scan after a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanProgress {
    /// There are more events; run another slice.
    More,
    /// All matching events were returned.
    Done,
    /// The scan reached the limit of rows per scan. The events found so far were returned.
    Exhausted,
}

/// A scan over the filters of one message. It holds no transaction between slices: its position is a sort key, which is
/// the same in all indexes.
pub struct Scan {
    filters: Vec<FilterState>,
    ranges: Vec<(u32, KeyRange)>,
    /// Next entry of each opened range.
    heads: BinaryHeap<Reverse<(SortKey, u32)>>,
    /// Number of opened ranges.
    opened: usize,
    is_planned: bool,
    /// Events with a higher sequence number were committed after the scan began and are not returned.
    up_to_seq: u64,
    rows_left: u64,
}

struct FilterState {
    matcher: PreparedFilter,
    window: TimeWindow,
    /// Number of events that may still be returned for this filter.
    left: usize,
}

/// Largest number of cursors kept open during a slice. Further ranges need a new seek for each entry.
const OPEN_CURSORS: usize = 64;

impl Scan {
    /// Creates a scan that returns, for each filter, the newest `limit` events, at most `max_per_filter`.
    #[must_use]
    pub fn new(filters: Vec<Filter>, max_per_filter: usize, up_to_seq: u64) -> Self {
        let filters = filters
            .into_iter()
            .map(|filter| FilterState {
                window: TimeWindow::new(&filter),
                left: filter.limit.unwrap_or(usize::MAX).min(max_per_filter),
                matcher: PreparedFilter::new(filter),
            })
            .collect();
        Self {
            filters,
            ranges: Vec::new(),
            heads: BinaryHeap::new(),
            opened: 0,
            is_planned: false,
            up_to_seq,
            rows_left: limits::MAX_SCAN_ROWS,
        }
    }

    /// Runs one slice: passes events to `on_record` until the slice is over or `on_record` breaks.
    pub fn run_slice(
        &mut self,
        store: &Store,
        now: Timestamp,
        mut on_record: impl FnMut(EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<ScanProgress> {
        self.run_slice_with_seqs(store, now, |_, record| on_record(record))
    }

    /// Like [`run_slice`](Self::run_slice), but also passes the sequence number.
    pub(crate) fn run_slice_with_seqs(
        &mut self,
        store: &Store,
        now: Timestamp,
        mut on_record: impl FnMut(u64, EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<ScanProgress> {
        let txn = store.env.read_txn()?;
        let mut budget = SliceBudget::new();
        if !self.is_planned {
            self.plan(store, &txn)?;
        }
        while self.opened < self.ranges.len() {
            self.open_next(store, &txn)?;
            if budget.spend() {
                return Ok(self.pause(&budget));
            }
        }
        let visibility = Visibility::read(store, &txn)?;
        let mut cursors: HashMap<u32, RoRange<'_, Bytes, Unit>> = HashMap::new();
        let mut filters = Vec::with_capacity(self.filters.len());
        while let Some(Reverse((sort_key, range))) = self.heads.pop() {
            // The same event may be the head of several ranges.
            let mut wanted = self.is_wanted(range);
            self.advance(store, &txn, &mut cursors, range, &sort_key)?;
            filters.clear();
            filters.push(self.ranges[range as usize].0);
            while let Some(Reverse((same, _))) = self.heads.peek()
                && *same == sort_key
                && let Some(Reverse((_, range))) = self.heads.pop()
            {
                wanted |= self.is_wanted(range);
                self.advance(store, &txn, &mut cursors, range, &sort_key)?;
                filters.push(self.ranges[range as usize].0);
            }
            let over = budget.spend_many(filters.len());
            // The event of a sort key from an earlier slice may be removed by now.
            let record = if wanted && sort_key_seq(&sort_key) <= self.up_to_seq {
                store.find_by_seq(&txn, sort_key_seq(&sort_key))?
            } else {
                None
            };
            if let Some(record) = record
                && visibility.is_visible(&record, sort_key_seq(&sort_key), now)
                && self.charge(&record, &mut filters)
                && on_record(sort_key_seq(&sort_key), record).is_break()
            {
                return Ok(self.pause(&budget));
            }
            if over {
                return Ok(self.pause(&budget));
            }
        }
        Ok(ScanProgress::Done)
    }

    fn plan(&mut self, store: &Store, txn: &RoTxn<'_, WithoutTls>) -> Result<()> {
        for (nth, part) in self.filters.iter().enumerate() {
            if part.left > 0 {
                let ranges = plan(store, txn, part.matcher.filter())?;
                self.ranges.extend(ranges.into_iter().map(|range| (nth as u32, range)));
            }
        }
        self.is_planned = true;
        Ok(())
    }

    /// Opens one more range: reads its first entry.
    fn open_next(&mut self, store: &Store, txn: &RoTxn<'_, WithoutTls>) -> Result<()> {
        let (filter, range) = &self.ranges[self.opened];
        let window = self.filters[*filter as usize].window;
        if let Some(sort_key) = range.next(store, txn, None, window)? {
            self.heads.push(Reverse((sort_key, self.opened as u32)));
        }
        self.opened += 1;
        Ok(())
    }

    fn is_wanted(&self, range: u32) -> bool {
        self.filters[self.ranges[range as usize].0 as usize].left > 0
    }

    /// Moves a range to its next entry, unless its filter has reached its limit.
    fn advance<'t>(
        &mut self,
        store: &Store,
        txn: &'t RoTxn<'_, WithoutTls>,
        cursors: &mut HashMap<u32, RoRange<'t, Bytes, Unit>>,
        range: u32,
        at: &SortKey,
    ) -> Result<()> {
        if !self.is_wanted(range) {
            return Ok(());
        }
        let (filter, run) = &self.ranges[range as usize];
        let window = self.filters[*filter as usize].window;
        let next = if run.index == IndexKind::Id {
            None
        } else if let Some(cursor) = cursors.get_mut(&range) {
            cursor.next().transpose()?.and_then(|(key, ())| key.last_chunk().copied())
        } else if cursors.len() < OPEN_CURSORS {
            let mut cursor = run.entries(store, txn, Some(at), window)?;
            let next = cursor.next().transpose()?.and_then(|(key, ())| key.last_chunk().copied());
            cursors.insert(range, cursor);
            next
        } else {
            run.next(store, txn, Some(at), window)?
        };
        if let Some(sort_key) = next {
            self.heads.push(Reverse((sort_key, range)));
        }
        Ok(())
    }

    /// Counts a record against the filters that it matches. Returns false if there is none.
    fn charge(&mut self, record: &EventRecord<'_>, filters: &mut Vec<u32>) -> bool {
        filters.sort_unstable();
        filters.dedup();
        let mut taken = false;
        for filter in filters {
            let part = &mut self.filters[*filter as usize];
            if part.left > 0 && part.matcher.matches(record) {
                part.left -= 1;
                taken = true;
            }
        }
        taken
    }

    fn pause(&mut self, budget: &SliceBudget) -> ScanProgress {
        self.rows_left = self.rows_left.saturating_sub(budget.rows as u64);
        if self.rows_left == 0 { ScanProgress::Exhausted } else { ScanProgress::More }
    }
}

/// Rows and time of one slice.
struct SliceBudget {
    rows: usize,
    until: Instant,
}

impl SliceBudget {
    fn new() -> Self {
        Self { rows: 0, until: Instant::now() + Duration::from_millis(limits::SCAN_SLICE_MILLIS) }
    }

    /// Counts a row. Returns true if the slice is over.
    fn spend(&mut self) -> bool {
        self.spend_many(1)
    }

    /// Counts some rows. Reads the clock only every 64 rows.
    fn spend_many(&mut self, rows: usize) -> bool {
        let checked = self.rows / 64;
        self.rows += rows;
        self.rows >= limits::SCAN_SLICE_ROWS || (self.rows / 64 > checked && Instant::now() >= self.until)
    }
}

/// Vanished authors whose events are hidden although they are not removed from disk yet.
pub(crate) struct Visibility(BTreeMap<PublicKey, PurgeProgress>);

impl Visibility {
    pub(crate) fn read(store: &Store, txn: &RoTxn<'_, WithoutTls>) -> Result<Self> {
        let mut authors = BTreeMap::new();
        for row in store.tables.purging.iter(txn)? {
            let (author, purge) = row?;
            if let Ok(author) = author.try_into() {
                authors.insert(PublicKey(author), PurgeProgress::read(purge));
            }
        }
        Ok(Self(authors))
    }

    pub(crate) fn is_visible(&self, record: &EventRecord<'_>, seq: u64, now: Timestamp) -> bool {
        record.expires_at().is_none_or(|expires_at| expires_at > now)
            && !self.0.iter().any(|(author, purge)| purge.covers(record, seq, author))
    }
}

//! Answering filters: newest first, each event once, in slices.

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
use crate::event_record::{PreparedFilter, EventRecord};
use crate::query_plan::{Index, Range, Window, plan};
use crate::schema::{Place, seq_of};
use crate::store::Store;
use crate::vanish::Purge;

/// Where a scan stands after a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanProgress {
    /// There is more; call again.
    More,
    /// Everything was shown.
    Done,
    /// The scan touched as many rows as one scan may; what it found so far was shown.
    Exhausted,
}

/// One scan over the filters of a message. It holds no transaction between slices: a place in the common order of all
/// indexes says where it stands.
pub struct Scan {
    filters: Vec<Part>,
    ranges: Vec<(u32, Range)>,
    /// The next entry of each range that was looked at.
    heads: BinaryHeap<Reverse<(Place, u32)>>,
    /// Ranges below this have been looked at.
    opened: usize,
    planned: bool,
    /// Events that were committed later than the scan began are not its business.
    up_to_seq: u64,
    rows_left: u64,
}

struct Part {
    matcher: PreparedFilter,
    window: Window,
    /// How many more this filter may show.
    left: usize,
}

/// Cursors kept open inside a slice. Beyond it a range is sought again, which costs a little more.
const OPEN_CURSORS: usize = 64;

impl Scan {
    /// A scan that shows, of each filter, the newest `limit` events, at most `most_each`.
    #[must_use]
    pub fn new(filters: Vec<Filter>, most_each: usize, up_to_seq: u64) -> Self {
        let filters = filters
            .into_iter()
            .map(|filter| Part {
                window: Window::of(&filter),
                left: filter.limit.unwrap_or(usize::MAX).min(most_each),
                matcher: PreparedFilter::new(filter),
            })
            .collect();
        Self {
            filters,
            ranges: Vec::new(),
            heads: BinaryHeap::new(),
            opened: 0,
            planned: false,
            up_to_seq,
            rows_left: limits::MAX_SCAN_ROWS,
        }
    }

    /// Runs one slice: shows what it finds until the slice is over or `show` has enough for now.
    pub fn run_slice(
        &mut self,
        store: &Store,
        now: Timestamp,
        mut show: impl FnMut(EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<ScanProgress> {
        self.run_slice_with_seqs(store, now, |_, record| show(record))
    }

    /// The same, and shows when each came to be served.
    pub(crate) fn run_slice_with_seqs(
        &mut self,
        store: &Store,
        now: Timestamp,
        mut show: impl FnMut(u64, EventRecord<'_>) -> ControlFlow<()>,
    ) -> Result<ScanProgress> {
        let txn = store.env.read_txn()?;
        let mut budget = Budget::new();
        if !self.planned {
            self.plan(store, &txn)?;
        }
        while self.opened < self.ranges.len() {
            self.open_next(store, &txn)?;
            if budget.spend() {
                return Ok(self.pause(&budget));
            }
        }
        let hidden = Hidden::read(store, &txn)?;
        let mut cursors: HashMap<u32, RoRange<'_, Bytes, Unit>> = HashMap::new();
        let mut filters = Vec::with_capacity(self.filters.len());
        while let Some(Reverse((place, range))) = self.heads.pop() {
            // The same event may be the head of several ranges.
            let mut wanted = self.is_wanted(range);
            self.advance(store, &txn, &mut cursors, range, &place)?;
            filters.clear();
            filters.push(self.ranges[range as usize].0);
            while let Some(Reverse((same, _))) = self.heads.peek()
                && *same == place
                && let Some(Reverse((_, range))) = self.heads.pop()
            {
                wanted |= self.is_wanted(range);
                self.advance(store, &txn, &mut cursors, range, &place)?;
                filters.push(self.ranges[range as usize].0);
            }
            let over = budget.spend_many(filters.len());
            // A place that was noted in an earlier slice may be empty by now.
            let record =
                if wanted && seq_of(&place) <= self.up_to_seq { store.find(&txn, seq_of(&place))? } else { None };
            if let Some(record) = record
                && hidden.shows(&record, seq_of(&place), now)
                && self.take(&record, &mut filters)
                && show(seq_of(&place), record).is_break()
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
        self.planned = true;
        Ok(())
    }

    /// Looks at the first entry of one more range.
    fn open_next(&mut self, store: &Store, txn: &RoTxn<'_, WithoutTls>) -> Result<()> {
        let (filter, range) = &self.ranges[self.opened];
        let window = self.filters[*filter as usize].window;
        if let Some(place) = range.next(store, txn, None, window)? {
            self.heads.push(Reverse((place, self.opened as u32)));
        }
        self.opened += 1;
        Ok(())
    }

    fn is_wanted(&self, range: u32) -> bool {
        self.filters[self.ranges[range as usize].0 as usize].left > 0
    }

    /// Moves a range to its next entry, unless its filter has shown all it may.
    fn advance<'t>(
        &mut self,
        store: &Store,
        txn: &'t RoTxn<'_, WithoutTls>,
        cursors: &mut HashMap<u32, RoRange<'t, Bytes, Unit>>,
        range: u32,
        at: &Place,
    ) -> Result<()> {
        if !self.is_wanted(range) {
            return Ok(());
        }
        let (filter, run) = &self.ranges[range as usize];
        let window = self.filters[*filter as usize].window;
        let next = if run.index == Index::Id {
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
        if let Some(place) = next {
            self.heads.push(Reverse((place, range)));
        }
        Ok(())
    }

    /// Charges the filters that a record fulfils; false if there is none.
    fn take(&mut self, record: &EventRecord<'_>, filters: &mut Vec<u32>) -> bool {
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

    fn pause(&mut self, budget: &Budget) -> ScanProgress {
        self.rows_left = self.rows_left.saturating_sub(budget.rows as u64);
        if self.rows_left == 0 { ScanProgress::Exhausted } else { ScanProgress::More }
    }
}

/// What one slice may cost.
struct Budget {
    rows: usize,
    until: Instant,
}

impl Budget {
    fn new() -> Self {
        Self { rows: 0, until: Instant::now() + Duration::from_millis(limits::SCAN_SLICE_MILLIS) }
    }

    /// Spends a row; true when the slice is over.
    fn spend(&mut self) -> bool {
        self.spend_many(1)
    }

    /// Spends some rows. The clock is read once in a while only.
    fn spend_many(&mut self, rows: usize) -> bool {
        let checked = self.rows / 64;
        self.rows += rows;
        self.rows >= limits::SCAN_SLICE_ROWS || (self.rows / 64 > checked && Instant::now() >= self.until)
    }
}

/// What must not be shown although it is still on disk: what authors who vanished have left behind.
pub(crate) struct Hidden(BTreeMap<PublicKey, Purge>);

impl Hidden {
    pub(crate) fn read(store: &Store, txn: &RoTxn<'_, WithoutTls>) -> Result<Self> {
        let mut hidden = BTreeMap::new();
        for row in store.tables.purging.iter(txn)? {
            let (author, purge) = row?;
            if let Ok(author) = author.try_into() {
                hidden.insert(PublicKey(author), Purge::read(purge));
            }
        }
        Ok(Self(hidden))
    }

    pub(crate) fn shows(&self, record: &EventRecord<'_>, seq: u64, now: Timestamp) -> bool {
        record.expires_at().is_none_or(|expires_at| expires_at > now)
            && !self.0.iter().any(|(author, purge)| purge.dooms(record, seq, author))
    }
}

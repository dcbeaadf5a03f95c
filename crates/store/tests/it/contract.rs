//! The real store keeps the contract that the simulator's store keeps.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use grasp_core::admission::io::{EventLookups, EventSummary, NeededLookups, RestoredItem, StoreWrite};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{Filter, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::time::Timestamp;
use grasp_sim::differential::differential;
use grasp_sim::store_contract;
use grasp_sim::store_contract::Shelf;
use grasp_store::{WriteTransaction, StoreOptions, ScanProgress, EventRecord, Scan, Store};
use tempfile::TempDir;

/// A store in a folder of its own.
struct Disk {
    room: Option<Room>,
    folder: TempDir,
}

/// The thread that has the store open: a batch borrows its store, and there both can live side by side.
struct Room {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

type Job = Box<dyn for<'s> FnOnce(&mut Open<'s>) + Send>;

/// A store with the batch that is open.
struct Open<'s> {
    store: &'s Store,
    batch: Option<WriteTransaction<'s>>,
    /// Pull requests that went with their authors in batches that are committed.
    removed_pull_requests: Vec<EventSummary>,
}

impl Disk {
    fn new() -> Self {
        let mut disk = Self { room: None, folder: TempDir::new().expect("a folder") };
        disk.open();
        disk
    }

    fn open(&mut self) {
        let path = self.folder.path().to_owned();
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            let store = Store::open(&path, StoreOptions { readers: 2, reserve_bytes: 0 }).expect("opens");
            let mut open = Open { store: &store, batch: None, removed_pull_requests: Vec::new() };
            for job in inbox {
                job(&mut open);
            }
        });
        self.room = Some(Room { jobs, thread });
    }

    fn close(&mut self) {
        if let Some(Room { jobs, thread }) = self.room.take() {
            drop(jobs);
            thread.join().expect("closes");
        }
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut Open<'_>) -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        let room = self.room.as_ref().expect("open");
        // If the job panics, nothing is told.
        room.jobs.send(Box::new(move |open| drop(tell.send(job(open))))).expect("the thread lives");
        told.recv().expect("the job did not panic")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close();
        }
    }
}

impl<'s> Open<'s> {
    fn batch(&mut self) -> &mut WriteTransaction<'s> {
        let store = self.store;
        self.batch.get_or_insert_with(|| store.begin().expect("begins"))
    }

    fn scan(&self, filters: Vec<Filter>, most: usize, now: Timestamp, mut show: impl FnMut(EventRecord<'_>)) {
        let mut scan = Scan::new(filters, most, self.store.last_seq());
        // One event a slice: a scan must not care where it is cut.
        while scan
            .run_slice(self.store, now, |record| {
                show(record);
                ControlFlow::Break(())
            })
            .expect("scans")
            == ScanProgress::More
        {}
    }

    fn due(&self, now: Timestamp) -> Vec<EventSummary> {
        // What is due is the writer's question; readers' verbs see what is committed.
        if self.batch.is_none() {
            return self.store.begin().expect("begins").expired_events(now, usize::MAX).expect("reads");
        }
        let mut due = Vec::new();
        self.scan(vec![Filter::default()], usize::MAX, Timestamp(0), |record| {
            if record.expires_at().is_some_and(|at| at <= now) {
                due.push(EventSummary::new(&record.event().expect("an event")));
            }
        });
        due
    }

    fn restored(&self) -> Vec<RestoredItem> {
        let mut all = Vec::new();
        let unreadable = self.store.restore(|restored| all.push(restored)).expect("reads");
        assert_eq!(unreadable, 0, "everything can be read back");
        all
    }
}

impl Shelf for Disk {
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        let event = event.clone();
        self.run(move |open| open.batch().lookups(&event, needed).expect("facts"))
    }

    fn write(&mut self, write: &StoreWrite) {
        let write = write.clone();
        self.run(move |open| open.batch().write(&write).expect("writes"));
    }

    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)> {
        self.run(move |open| open.batch().event(id).expect("reads"))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        self.run(move |open| open.batch().is_known(id).expect("reads"))
    }

    fn commit(&mut self) {
        self.run(|open| {
            if let Some(mut batch) = open.batch.take() {
                while batch.purge_slice().expect("purges") {}
                open.removed_pull_requests.extend(batch.take_removed_pull_requests());
                batch.commit().expect("commits");
            }
        });
    }

    fn abort(&mut self) {
        self.run(|open| open.batch = None);
    }

    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId> {
        let filters = filters.to_vec();
        self.run(move |open| {
            let mut ids = Vec::new();
            open.scan(filters, default_limit, now, |record| ids.push(record.id()));
            ids
        })
    }

    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64 {
        let filters: Vec<Filter> = filters.iter().map(|filter| Filter { limit: None, ..filter.clone() }).collect();
        self.run(move |open| {
            let mut count = 0;
            open.scan(filters, usize::MAX, now, |_| count += 1);
            count
        })
    }

    fn due(&mut self, now: Timestamp) -> Vec<EventSummary> {
        self.run(move |open| open.due(now))
    }

    fn served(&mut self) -> Vec<EventId> {
        self.run(|open| {
            let mut ids = Vec::new();
            open.store.events_since(0, usize::MAX, |_, record| ids.push(record.id())).expect("reads");
            ids
        })
    }

    fn held(&mut self) -> Vec<(EventId, Timestamp)> {
        let held = self.restored().into_iter().filter_map(|restored| match restored {
            RestoredItem::Held(event, deadline) => Some((event.id, deadline)),
            _ => None,
        });
        held.collect()
    }

    fn removed_pulls(&mut self) -> Vec<EventSummary> {
        self.run(|open| {
            let mut removed = std::mem::take(&mut open.removed_pull_requests);
            removed.extend(open.batch.as_mut().map(WriteTransaction::take_removed_pull_requests).unwrap_or_default());
            removed
        })
    }

    fn restored(&mut self) -> Vec<RestoredItem> {
        self.run(|open| open.restored())
    }

    fn restart(&mut self) {
        self.close();
        self.open();
    }
}

#[test]
fn the_real_store_keeps_every_promise() {
    store_contract::suite(|| Box::new(Disk::new()));
}

#[test]
fn the_query_engine_agrees_with_the_plain_truth() {
    let compared: u64 = (0..25).map(|seed| differential(seed, 150, &mut Disk::new())).sum();
    assert!(compared >= 10_000, "only {compared} questions were compared");
}

//! The real store keeps the contract that the simulator's store keeps.

use std::ops::ControlFlow;

use grasp_core::nostr::event::EventId;
use grasp_core::nostr::{Filter, Signed};
use grasp_core::registrar::io::{Facts, Questions, Restored, Summary, Write};
use grasp_core::time::Timestamp;
use grasp_sim::contract::{self, Shelf};
use grasp_sim::differential::differential;
use grasp_store::{Batch, Options, Progress, Record, Scan, Store};
use tempfile::TempDir;

/// A store in a folder of its own, with the batch that is open.
struct Disk {
    batch: Option<Batch<'static>>,
    store: &'static Store,
    _folder: TempDir,
}

impl Disk {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let options = Options { readers: 2, reserve_bytes: 0 };
        // A batch borrows its store; a test may keep one for ever.
        let store = Box::leak(Box::new(Store::open(folder.path(), options).expect("opens")));
        Self { batch: None, store, _folder: folder }
    }

    fn batch(&mut self) -> &mut Batch<'static> {
        let store = self.store;
        self.batch.get_or_insert_with(|| store.begin().expect("begins"))
    }

    fn scan(&self, filters: &[Filter], most: usize, now: Timestamp, mut show: impl FnMut(Record<'_>)) {
        let mut scan = Scan::new(filters.to_vec(), most, self.store.last_seq());
        // One event a slice: a scan must not care where it is cut.
        while scan
            .slice(self.store, now, |record| {
                show(record);
                ControlFlow::Break(())
            })
            .expect("scans")
            == Progress::More
        {}
    }
}

impl Shelf for Disk {
    fn facts(&mut self, event: &Signed, questions: Questions) -> Facts {
        self.batch().facts(event, questions).expect("facts")
    }

    fn write(&mut self, write: &Write) {
        self.batch().write(write).expect("writes");
    }

    fn commit(&mut self) {
        if let Some(mut batch) = self.batch.take() {
            while batch.purge().expect("purges") {}
            batch.commit().expect("commits");
        }
    }

    fn abort(&mut self) {
        self.batch = None;
    }

    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId> {
        let mut ids = Vec::new();
        self.scan(filters, default_limit, now, |record| ids.push(record.id()));
        ids
    }

    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64 {
        let filters: Vec<Filter> = filters.iter().map(|filter| Filter { limit: None, ..filter.clone() }).collect();
        let mut count = 0;
        self.scan(&filters, usize::MAX, now, |_| count += 1);
        count
    }

    fn due(&mut self, now: Timestamp) -> Vec<Summary> {
        // What is due is the writer's question; readers' verbs see what is committed.
        match &self.batch {
            Some(_) => {
                let mut due = Vec::new();
                let all = [Filter::default()];
                self.scan(&all, usize::MAX, Timestamp(0), |record| {
                    if record.expires_at().is_some_and(|at| at <= now) {
                        due.push(Summary::of(&record.event().expect("an event")));
                    }
                });
                due
            }
            None => self.store.begin().expect("begins").expired(now, usize::MAX).expect("reads"),
        }
    }

    fn served(&mut self) -> Vec<EventId> {
        let mut ids = Vec::new();
        self.store.since(0, usize::MAX, |_, record| ids.push(record.id())).expect("reads");
        ids
    }

    fn held(&mut self) -> Vec<(EventId, Timestamp)> {
        let mut held = Vec::new();
        self.store
            .restore(|restored| {
                if let Restored::Held(event, deadline) = restored {
                    held.push((event.id, deadline));
                }
            })
            .expect("reads");
        held
    }
}

#[test]
fn the_real_store_keeps_every_promise() {
    contract::suite(|| Box::new(Disk::new()));
}

#[test]
fn the_query_engine_agrees_with_the_plain_truth() {
    let compared: u64 = (0..25).map(|seed| differential(seed, 150, &mut Disk::new())).sum();
    assert!(compared >= 10_000, "only {compared} questions were compared");
}

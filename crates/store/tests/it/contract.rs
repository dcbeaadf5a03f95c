//! The store satisfies the same contract as the simulator's store.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use grasp_core::admission::io::{EventLookups, EventSummary, NeededLookups, PullRequestPage, RestoredItem, StoreWrite};
use grasp_core::nostr::event::{EventId, EventVersion};
use grasp_core::nostr::{Filter, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{PackManifest, Refs, RepoId, RepoPath};
use grasp_core::time::Timestamp;
use grasp_sim::differential::run_differential;
use grasp_sim::store_contract;
use grasp_sim::store_contract::StoreUnderTest;
use grasp_store::{EventRecord, Scan, ScanProgress, Store, StoreOptions, WriteTransaction};
use tempfile::TempDir;

/// A store in a temporary folder.
struct TestStore {
    thread_handle: Option<StoreThread>,
    folder: TempDir,
}

/// Thread that owns the store: a transaction borrows its store, and on the thread both can be locals.
struct StoreThread {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

type Job = Box<dyn for<'s> FnOnce(&mut OpenStore<'s>) + Send>;

/// A store with its open transaction.
struct OpenStore<'s> {
    store: &'s Store,
    transaction: Option<WriteTransaction<'s>>,
    /// Pull requests removed with their authors in committed transactions.
    removed_pull_requests: Vec<EventSummary>,
}

impl TestStore {
    fn new() -> Self {
        let mut test_store = Self { thread_handle: None, folder: TempDir::new().expect("temporary folder") };
        test_store.open();
        test_store
    }

    fn open(&mut self) {
        let path = self.folder.path().to_owned();
        let (jobs, inbox) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            let store = Store::open(&path, StoreOptions { readers: 2, reserve_bytes: 0 }).expect("opens");
            let mut open = OpenStore { store: &store, transaction: None, removed_pull_requests: Vec::new() };
            for job in inbox {
                job(&mut open);
            }
        });
        self.thread_handle = Some(StoreThread { jobs, thread });
    }

    fn close(&mut self) {
        if let Some(StoreThread { jobs, thread }) = self.thread_handle.take() {
            drop(jobs);
            thread.join().expect("closes");
        }
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut OpenStore<'_>) -> T + Send + 'static) -> T {
        let (sender, receiver) = channel();
        let thread_handle = self.thread_handle.as_ref().expect("open");
        // If the job panics, nothing is sent.
        thread_handle.jobs.send(Box::new(move |open| drop(sender.send(job(open))))).expect("the thread runs");
        receiver.recv().expect("the job did not panic")
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close();
        }
    }
}

impl<'s> OpenStore<'s> {
    fn transaction(&mut self) -> &mut WriteTransaction<'s> {
        let store = self.store;
        self.transaction.get_or_insert_with(|| store.begin().expect("begins"))
    }

    fn scan(&self, filters: Vec<Filter>, most: usize, now: Timestamp, mut show: impl FnMut(EventRecord<'_>)) {
        let mut scan = Scan::new(filters, most, self.store.last_seq());
        // One event per slice: results must not depend on where a scan is interrupted.
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
        // Expired events are read by the writer; queries see committed events only.
        if self.transaction.is_none() {
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
        assert_eq!(unreadable, 0, "all rows are readable");
        all
    }
}

impl StoreUnderTest for TestStore {
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups {
        let event = event.clone();
        self.run(move |open| open.transaction().lookups(&event, needed).expect("lookups"))
    }

    fn write(&mut self, write: &StoreWrite) {
        let write = write.clone();
        self.run(move |open| open.transaction().write(&write).expect("writes"));
    }

    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)> {
        self.run(move |open| open.transaction().event(id).expect("reads"))
    }

    fn is_known(&mut self, id: EventId) -> bool {
        self.run(move |open| open.transaction().is_known(id).expect("reads"))
    }

    fn repo(&mut self, repo_path: &RepoPath) -> Option<(Arc<Refs>, Option<String>)> {
        let repo_path = repo_path.clone();
        self.run(move |open| open.transaction().repo(&repo_path).expect("reads").map(|row| (row.refs, row.degraded)))
    }

    fn packs(&mut self, repo_path: &RepoPath) -> Option<PackManifest> {
        let repo_path = repo_path.clone();
        self.run(move |open| open.transaction().packs(&repo_path).expect("reads"))
    }

    fn commit(&mut self) {
        self.run(|open| {
            if let Some(mut transaction) = open.transaction.take() {
                while transaction.purge_slice().expect("purges") {}
                open.removed_pull_requests.extend(transaction.take_removed_pull_requests());
                transaction.commit().expect("commits");
            }
        });
    }

    fn abort(&mut self) {
        self.run(|open| open.transaction = None);
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
            removed.extend(
                open.transaction.as_mut().map(WriteTransaction::take_removed_pull_requests).unwrap_or_default(),
            );
            removed
        })
    }

    fn pull_requests_for(
        &mut self,
        repo: &RepoId,
        page: PullRequestPage,
    ) -> (Vec<Arc<SignedEvent>>, Option<EventVersion>) {
        let repo = repo.clone();
        self.run(move |open| open.transaction().pull_requests_for(&repo, page).expect("reads"))
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
fn store_satisfies_the_contract() {
    store_contract::run_contract(|| Box::new(TestStore::new()));
}

#[test]
fn queries_agree_with_a_linear_search() {
    let compared: u64 = (0..25).map(|seed| run_differential(seed, 150, &mut TestStore::new())).sum();
    assert!(compared >= 10_000, "only {compared} queries were compared");
}

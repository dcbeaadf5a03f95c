//! The writer as sync sees it: repository needs, results of submissions, stored rows.

use std::path::Path;

use grasp_core::admission::io::StoreWrite;
use grasp_core::nostr::{EventId, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{Seq, SubmitResult, SyncRow, SyncRowKey, SyncSource, SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_git::apply::GitJobRunner;
use grasp_git::process::{Git, ProcessLimits};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{default_policy, service};
use grasp_store::StoreOptions;
use tempfile::TempDir;

use super::*;
use crate::relay::broadcast::BroadcastHandle;
use crate::repos::repo_rows::StoredRepoRows;
use crate::repos::workers::JobDoneFn;
use crate::writer::command::WriterCommand;
use crate::writer::submission::QueuedEvent;

/// A writer without sessions and without git workers.
struct TestWriter {
    queue: Arc<EventQueue>,
    sync_feed: Arc<SyncFeed>,
    store: Store,
    /// Cloned into every submission, so that its count shows which permits are released.
    permit: Arc<()>,
    writer: Option<ReadyWriter>,
}

impl TestWriter {
    fn open(folder: &Path) -> Self {
        let store =
            Store::open(&folder.join("events"), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens a store");
        let layout = Arc::new(Layout::open(&folder.join("git")).expect("opens a git folder"));
        let git = Git::new(Path::new("git"), ProcessLimits { alloc_bytes: 1 << 20, address_bytes: 1 << 30 });
        let queue = EventQueue::new();
        let rows = StoredRepoRows {
            store: store.clone(),
            degrade: Arc::new(|_, _, _| false),
            set_packs: Arc::new(|_, _| false),
        };
        let job_runner = Arc::new(GitJobRunner::new(git, layout.clone(), Arc::new(rows), Duration::from_secs(10)));
        let on_done: JobDoneFn = {
            let queue = queue.clone();
            Arc::new(move |job, outcome| queue.send(WriterCommand::GitJobDone(job, outcome)))
        };
        let (git_workers, ..) = GitWorkers::new(&job_runner, &layout, &on_done);
        let sync_feed = SyncFeed::new();
        let writer = Writer {
            store: store.clone(),
            queue: queue.clone(),
            commit_listener: Box::new(BroadcastHandle::new().0),
            clock: Clock::start(),
            policy: CurrentPolicy::new(default_policy()),
            ref_cache: Arc::new(RefCache::new(store.clone(), layout.clone(), true)),
            ref_files: RefFilesHandle::new().0,
            layout,
            git_workers,
            maintenance: MaintenanceHandle::new(false).0,
            sync_feed: sync_feed.clone(),
            fetch_feed: crate::writer::fetch_feed::FetchFeed::new(),
            metrics: crate::metrics::Metrics::new(),
        };
        let writer = Some(writer.prepare(false).expect("reads the store"));
        Self { queue, sync_feed, store, permit: Arc::new(()), writer }
    }

    fn submit(&self, id: u64, event: &SignedEvent) {
        let submission = SyncSubmission {
            id: SyncSubmissionId(id),
            event: Arc::new(event.event().clone()),
            session: None,
            relay: url(),
            source: SyncSource::CatchUp,
        };
        self.queue.push(QueuedEvent::from_relay(submission, Box::new(self.permit.clone())));
    }

    /// Processes everything that is queued, and ends.
    fn finish(mut self) -> (SyncUpdate, Store) {
        self.queue.close();
        self.queue.run_verifier(&CurrentPolicy::new(default_policy()), Clock::start());
        self.writer.take().expect("not finished before").run();
        assert_eq!(Arc::strong_count(&self.permit), 1, "every permit is released");
        (self.sync_feed.take(), self.store)
    }
}

fn url() -> RelayUrl {
    RelayUrl::parse("wss://relay.example").expect("a URL")
}

fn identifier(text: &str) -> Identifier {
    Identifier::new(text).expect("valid identifier")
}

#[test]
fn sync_receives_results_together_with_the_needs_that_follow_from_them() {
    let folder = TempDir::new().expect("a folder");
    let (owner, other) = (Author::new(1), Author::new(2));
    let announcement = owner.announcement(&service(), "tool", 100, &[]);
    let mut forged = owner.announcement(&service(), "other", 100, &[]).event().clone();
    forged.sig[9] ^= 1;
    let writer = TestWriter::open(folder.path());
    let submitted = [
        announcement.clone(),
        Arc::new(SignedEvent::from_trusted(forged)),
        other.issue(101, &owner.repo("tool")),
        announcement.clone(),
        other.sign(grasp_core::nostr::kinds::GRASP_LIST, 102, &[], ""),
        other.note(103, &[&["-"]], ""),
        other.sign(20_001, 104, &[], ""),
        other.note(u64::MAX / 2, &[], ""),
    ];
    for (id, event) in submitted.iter().enumerate() {
        writer.submit(id as u64, event);
    }
    let (update, _) = writer.finish();
    let mut results = update.results;
    results.sort_by_key(|(id, _)| *id);
    let expected = [
        SubmitResult::Held,
        SubmitResult::InvalidSignature,
        SubmitResult::Rejected(Rejection::Unrelated),
        SubmitResult::Known,
        SubmitResult::Stored,
        SubmitResult::Rejected(Rejection::Protected),
        SubmitResult::Stored,
        SubmitResult::Rejected(Rejection::InFuture),
    ];
    assert_eq!(results.into_iter().map(|(_, result)| result).collect::<Vec<_>>(), expected);
    let [needs] = &update.repo_needs[&identifier("tool")][..] else {
        panic!("one repository: {:?}", update.repo_needs)
    };
    assert_eq!((needs.status, needs.seq), (EventStatus::Held, Seq::MAX));
    assert_eq!((&needs.relays, &needs.authors), (&vec!["wss://elsewhere.example".to_owned()], &vec![owner.key()]));
    assert!(!update.repo_needs.contains_key(&identifier("other")));
}

#[test]
fn sync_receives_all_repository_needs_at_start() {
    let folder = TempDir::new().expect("a folder");
    let (owner, maintainer) = (Author::new(1), Author::new(2));
    let served = owner.announcement(&service(), "served", 100, &[&maintainer]);
    let exception = maintainer.announcement_elsewhere("served", 101, &[]);
    let held = owner.announcement(&service(), "held", 100, &[]);
    {
        let store = Store::open(&folder.path().join("events"), StoreOptions { readers: 1, reserve_bytes: 0 })
            .expect("opens a store");
        let mut batch = store.begin().expect("begins a transaction");
        let writes = [
            StoreWrite::Put(served),
            StoreWrite::Put(maintainer.note(1, &[], "")),
            StoreWrite::Put(exception.clone()),
            StoreWrite::MarkException(exception.id),
            StoreWrite::Hold(held, Timestamp(u64::MAX)),
        ];
        for write in &writes {
            batch.write(write).expect("writes");
        }
        batch.commit().expect("commits");
    }
    let (update, _) = TestWriter::open(folder.path()).finish();
    let needs: Vec<(&str, EventStatus, Seq)> = update
        .repo_needs
        .iter()
        .flat_map(|(identifier, needs)| needs.iter().map(|one| (identifier.as_str(), one.status, one.seq)))
        .collect();
    assert_eq!(needs, [("held", EventStatus::Held, Seq::MAX), ("served", EventStatus::Served, 3)]);
}

#[test]
fn failed_batch_is_rejected_and_invalid_signatures_are_still_reported_as_such() {
    let folder = TempDir::new().expect("a folder");
    let mut writer = TestWriter::open(folder.path());
    let event = Author::new(1).announcement(&service(), "tool", 100, &[]);
    let mut forged = event.event().clone();
    forged.sig[9] ^= 1;
    writer.submit(7, &event);
    writer.submit(8, &SignedEvent::from_trusted(forged));
    writer.queue.close();
    writer.queue.run_verifier(&CurrentPolicy::new(default_policy()), Clock::start());
    let batch = writer.queue.next_batch(None, None, false).expect("a batch");
    writer.writer.take().expect("not finished before").writer.reject_events(batch.events, &Rejection::DiskFull);
    let update = writer.sync_feed.take();
    let full = (SyncSubmissionId(7), SubmitResult::Rejected(Rejection::DiskFull));
    assert_eq!(update.results, [full, (SyncSubmissionId(8), SubmitResult::InvalidSignature)]);
    assert!(update.repo_needs.is_empty(), "{:?}", update.repo_needs);
    assert_eq!(Arc::strong_count(&writer.permit), 1);
}

#[test]
fn sync_rows_are_written_and_deleted_even_during_shutdown() {
    let folder = TempDir::new().expect("a folder");
    let relays = |store: &Store| {
        let mut relays = Vec::new();
        assert_eq!(store.load_relays(|relay| relays.push(relay)).expect("reads relays"), 0);
        relays
    };
    let relay = RelayRecord { url: url(), wanted_at: Timestamp(5), ..RelayRecord::default() };
    let writer = TestWriter::open(folder.path());
    writer.queue.send(WriterCommand::SaveSyncRows(
        vec![SyncRow::Relay(Box::new(relay.clone()))],
        vec![SyncRowKey::Rejected(EventId([1; 32]))],
    ));
    let (_, store) = writer.finish();
    assert_eq!(relays(&store), [relay]);
    drop(store);
    let writer = TestWriter::open(folder.path());
    writer.queue.send(WriterCommand::SaveSyncRows(Vec::new(), vec![SyncRowKey::Relay(url())]));
    let (_, store) = writer.finish();
    assert_eq!(relays(&store), []);
}

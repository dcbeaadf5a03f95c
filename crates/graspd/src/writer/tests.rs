//! What the desk tells sync: what is followed, and what became of what it has submitted.

use std::path::Path;

use grasp_core::admission::io::StoreWrite;
use grasp_core::nostr::{EventId, SignedEvent};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::sync::io::{Seq, SubmitResult, SyncRow, SyncRowKey, SyncSource, SyncSubmission, SyncSubmissionId};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_git::apply::Keeper;
use grasp_git::process::{Bounds, Git};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{rules, service};
use grasp_store::StoreOptions;
use tempfile::TempDir;

use super::*;
use crate::relay::broadcast::BroadcastHandle;
use crate::repos::workers::OnDone;
use crate::writer::command::WriterCommand;
use crate::writer::submission::QueuedEvent;

/// A desk without doors.
struct Room {
    line: Arc<EventQueue>,
    sync: Arc<SyncFeed>,
    store: Store,
    /// Dropped when everything has been judged.
    place: Arc<()>,
    desk: Option<ReadyWriter>,
}

impl Room {
    fn open(folder: &Path) -> Self {
        let store = Store::open(&folder.join("events"), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let layout = Arc::new(Layout::open(&folder.join("git")).expect("opens"));
        let git = Git::new(Path::new("git"), Bounds { alloc_bytes: 1 << 20, address_bytes: 1 << 30 });
        let keeper = Arc::new(Keeper::new(git, layout.clone(), Duration::from_secs(10)));
        let line = EventQueue::new();
        let on_done: OnDone = {
            let line = line.clone();
            Arc::new(move |order, carried| line.post(WriterCommand::Ordered(order, carried)))
        };
        let (room, ..) = GitWorkers::new(&keeper, &layout, &on_done);
        let sync = SyncFeed::new();
        let desk = Writer {
            store: store.clone(),
            line: line.clone(),
            live: Box::new(BroadcastHandle::new().0),
            clock: Clock::start(),
            rules: CurrentPolicy::new(rules()),
            directory: Arc::new(RefCache::new(layout.clone(), true)),
            layout,
            room,
            maintenance: MaintenanceHandle::new(false).0,
            sync: sync.clone(),
            hunt: crate::writer::fetch_feed::FetchFeed::new(),
            meter: crate::metrics::Metrics::new(),
        };
        let desk = Some(desk.prepare().expect("prepares"));
        Self { line, sync, store, place: Arc::new(()), desk }
    }

    fn offer(&self, ticket: u64, event: &SignedEvent) {
        let submission = SyncSubmission {
            id: SyncSubmissionId(ticket),
            event: Arc::new(event.event().clone()),
            session: None,
            relay: url(),
            source: SyncSource::CatchUp,
        };
        self.line.join(QueuedEvent::of_relay(submission, Box::new(self.place.clone())));
    }

    /// Judges all that waits, and ends.
    fn finish(mut self) -> (SyncUpdate, Store) {
        self.line.close();
        self.line.check(&CurrentPolicy::new(rules()), Clock::start());
        self.desk.take().expect("once").run();
        assert_eq!(Arc::strong_count(&self.place), 1, "every place is given back");
        (self.sync.take(), self.store)
    }
}

fn url() -> RelayUrl {
    RelayUrl::parse("wss://relay.example").expect("a URL")
}

fn name(text: &str) -> Identifier {
    Identifier::new(text).expect("names a repository")
}

#[test]
fn sync_hears_what_became_of_its_events_and_what_they_lead_to_at_once() {
    let folder = TempDir::new().expect("a folder");
    let (o, x) = (Author::new(1), Author::new(2));
    let announcement = o.listed(&service(), "tool", 100, &[]);
    let mut forged = o.listed(&service(), "other", 100, &[]).event().clone();
    forged.sig[9] ^= 1;
    let room = Room::open(folder.path());
    let offers = [
        announcement.clone(),
        Arc::new(SignedEvent::from_trusted(forged)),
        x.issue(101, &o.repo("tool")),
        announcement.clone(),
        x.sign(grasp_core::nostr::kinds::GRASP_LIST, 102, &[], ""),
        x.note(103, &[&["-"]], ""),
        x.sign(20_001, 104, &[], ""),
        x.note(u64::MAX / 2, &[], ""),
    ];
    for (ticket, event) in offers.iter().enumerate() {
        room.offer(ticket as u64, event);
    }
    let (mail, _) = room.finish();
    let mut judged = mail.judged;
    judged.sort_by_key(|(ticket, _)| *ticket);
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
    assert_eq!(judged.into_iter().map(|(_, judgement)| judgement).collect::<Vec<_>>(), expected);
    let [followed] = &mail.interest[&name("tool")][..] else { panic!("one repository: {:?}", mail.interest) };
    assert_eq!((followed.status, followed.seq), (EventStatus::Held, Seq::MAX));
    assert_eq!((&followed.relays, &followed.authors), (&vec!["wss://elsewhere.example".to_owned()], &vec![o.key()]));
    assert!(!mail.interest.contains_key(&name("other")));
}

#[test]
fn at_boot_sync_hears_of_everything_that_is_followed() {
    let folder = TempDir::new().expect("a folder");
    let (o, m) = (Author::new(1), Author::new(2));
    let served = o.listed(&service(), "served", 100, &[&m]);
    let theirs = m.unlisted("served", 101, &[]);
    let held = o.listed(&service(), "held", 100, &[]);
    {
        let store =
            Store::open(&folder.path().join("events"), StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut batch = store.begin().expect("begins");
        let writes = [
            StoreWrite::Put(served),
            StoreWrite::Put(m.note(1, &[], "")),
            StoreWrite::Put(theirs.clone()),
            StoreWrite::MarkException(theirs.id),
            StoreWrite::Hold(held, Timestamp(u64::MAX)),
        ];
        for write in &writes {
            batch.write(write).expect("writes");
        }
        batch.commit().expect("commits");
    }
    let (mail, _) = Room::open(folder.path()).finish();
    let seen: Vec<(&str, EventStatus, Seq)> = mail
        .interest
        .iter()
        .flat_map(|(name, followed)| followed.iter().map(|one| (name.as_str(), one.status, one.seq)))
        .collect();
    assert_eq!(seen, [("held", EventStatus::Held, Seq::MAX), ("served", EventStatus::Served, 3)]);
}

#[test]
fn a_batch_that_cannot_be_stored_is_refused_and_forgeries_stay_forgeries() {
    let folder = TempDir::new().expect("a folder");
    let mut room = Room::open(folder.path());
    let event = Author::new(1).listed(&service(), "tool", 100, &[]);
    let mut forged = event.event().clone();
    forged.sig[9] ^= 1;
    room.offer(7, &event);
    room.offer(8, &SignedEvent::from_trusted(forged));
    room.line.close();
    room.line.check(&CurrentPolicy::new(rules()), Clock::start());
    let taken = room.line.take(None, None, false).expect("something");
    room.desk.take().expect("once").desk.refuse(taken.batch, &Rejection::DiskFull);
    let mail = room.sync.take();
    let full = (SyncSubmissionId(7), SubmitResult::Rejected(Rejection::DiskFull));
    assert_eq!(mail.judged, [full, (SyncSubmissionId(8), SubmitResult::InvalidSignature)]);
    assert!(mail.interest.is_empty(), "{:?}", mail.interest);
    assert_eq!(Arc::strong_count(&room.place), 1);
}

#[test]
fn rows_of_sync_are_written_and_forgotten_also_at_the_end() {
    let folder = TempDir::new().expect("a folder");
    let peers = |store: &Store| {
        let mut peers = Vec::new();
        assert_eq!(store.load_relays(|peer| peers.push(peer)).expect("reads"), 0);
        peers
    };
    let peer = RelayRecord { url: url(), wanted_at: Timestamp(5), ..RelayRecord::default() };
    let room = Room::open(folder.path());
    room.line.post(WriterCommand::Remember(
        vec![SyncRow::Relay(Box::new(peer.clone()))],
        vec![SyncRowKey::Rejected(EventId([1; 32]))],
    ));
    let (_, store) = room.finish();
    assert_eq!(peers(&store), [peer]);
    drop(store);
    let room = Room::open(folder.path());
    room.line.post(WriterCommand::Remember(Vec::new(), vec![SyncRowKey::Relay(url())]));
    let (_, store) = room.finish();
    assert_eq!(peers(&store), []);
}

//! What the desk tells sync: what is followed, and what became of what it has submitted.

use std::path::Path;

use grasp_core::admission::io::Write;
use grasp_core::nostr::{EventId, Signed};
use grasp_core::repo::catalog::Place;
use grasp_core::sync::io::{Judgement, Row, RowKey, Seq, Submission, Ticket, Via};
use grasp_core::sync::relay_record::Peer;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_git::apply::Keeper;
use grasp_git::process::{Bounds, Git};
use grasp_sim::signer::Author;
use grasp_sim::test_server::{rules, service};
use grasp_store::Options;
use tempfile::TempDir;

use super::*;
use crate::writer::submission::Offer;

/// A desk without doors.
struct Room {
    line: Arc<Line>,
    sync: Arc<SyncPost>,
    store: Store,
    /// Dropped when everything has been judged.
    place: Arc<()>,
    desk: Option<ReadyDesk>,
}

impl Room {
    fn open(folder: &Path) -> Self {
        let store = Store::open(&folder.join("events"), Options { readers: 1, reserve_bytes: 0 }).expect("opens");
        let layout = Arc::new(Layout::open(&folder.join("git")).expect("opens"));
        let git = Git::new(Path::new("git"), Bounds { alloc_bytes: 1 << 20, address_bytes: 1 << 30 });
        let keeper = Arc::new(Keeper::new(git, layout.clone(), Duration::from_secs(10)));
        let line = Line::new();
        let (room, ..) = GitRoom::new(&keeper, &layout, &line);
        let sync = SyncPost::new();
        let desk = Desk {
            store: store.clone(),
            line: line.clone(),
            live: LiveDoor::new().0,
            clock: Clock::start(),
            rules: Rulebook::new(rules()),
            directory: Arc::new(Directory::new(layout.clone(), true)),
            layout,
            room,
            maintenance: MaintenanceDoor::new(false).0,
            sync: sync.clone(),
            hunt: crate::writer::fetch_feed::HuntPost::new(),
            meter: crate::metrics::Meter::new(),
        };
        let desk = Some(desk.prepare().expect("prepares"));
        Self { line, sync, store, place: Arc::new(()), desk }
    }

    fn offer(&self, ticket: u64, event: &Signed) {
        let submission = Submission {
            ticket: Ticket(ticket),
            event: Arc::new(event.event().clone()),
            session: None,
            relay: url(),
            via: Via::CatchUp,
        };
        self.line.join(Offer::of_relay(submission, Box::new(self.place.clone())));
    }

    /// Judges all that waits, and ends.
    fn finish(mut self) -> (SyncMail, Store) {
        self.line.close();
        self.line.check(&Rulebook::new(rules()), Clock::start());
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
        Arc::new(Signed::trusted(forged)),
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
        Judgement::Held,
        Judgement::Forged,
        Judgement::Refused(Refusal::Unrelated),
        Judgement::Known,
        Judgement::Stored,
        Judgement::Refused(Refusal::Protected),
        Judgement::Stored,
        Judgement::Refused(Refusal::Future),
    ];
    assert_eq!(judged.into_iter().map(|(_, judgement)| judgement).collect::<Vec<_>>(), expected);
    let [followed] = &mail.interest[&name("tool")][..] else { panic!("one repository: {:?}", mail.interest) };
    assert_eq!((followed.place, followed.seq), (Place::Held, Seq::MAX));
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
            Store::open(&folder.path().join("events"), Options { readers: 1, reserve_bytes: 0 }).expect("opens");
        let mut batch = store.begin().expect("begins");
        let writes = [
            Write::Put(served),
            Write::Put(m.note(1, &[], "")),
            Write::Put(theirs.clone()),
            Write::Except(theirs.id),
            Write::Hold(held, Timestamp(u64::MAX)),
        ];
        for write in &writes {
            batch.write(write).expect("writes");
        }
        batch.commit().expect("commits");
    }
    let (mail, _) = Room::open(folder.path()).finish();
    let seen: Vec<(&str, Place, Seq)> = mail
        .interest
        .iter()
        .flat_map(|(name, followed)| followed.iter().map(|one| (name.as_str(), one.place, one.seq)))
        .collect();
    assert_eq!(seen, [("held", Place::Held, Seq::MAX), ("served", Place::Served, 3)]);
}

#[test]
fn a_batch_that_cannot_be_stored_is_refused_and_forgeries_stay_forgeries() {
    let folder = TempDir::new().expect("a folder");
    let mut room = Room::open(folder.path());
    let event = Author::new(1).listed(&service(), "tool", 100, &[]);
    let mut forged = event.event().clone();
    forged.sig[9] ^= 1;
    room.offer(7, &event);
    room.offer(8, &Signed::trusted(forged));
    room.line.close();
    room.line.check(&Rulebook::new(rules()), Clock::start());
    let taken = room.line.take(None, None, false).expect("something");
    room.desk.take().expect("once").desk.refuse(taken.batch, &Refusal::DiskFull);
    let mail = room.sync.take();
    let full = (Ticket(7), Judgement::Refused(Refusal::DiskFull));
    assert_eq!(mail.judged, [full, (Ticket(8), Judgement::Forged)]);
    assert!(mail.interest.is_empty(), "{:?}", mail.interest);
    assert_eq!(Arc::strong_count(&room.place), 1);
}

#[test]
fn rows_of_sync_are_written_and_forgotten_also_at_the_end() {
    let folder = TempDir::new().expect("a folder");
    let peers = |store: &Store| {
        let mut peers = Vec::new();
        assert_eq!(store.peers(|peer| peers.push(peer)).expect("reads"), 0);
        peers
    };
    let peer = Peer { url: url(), wanted_at: Timestamp(5), ..Peer::default() };
    let room = Room::open(folder.path());
    room.line.post(Note::Remember(vec![Row::Peer(Box::new(peer.clone()))], vec![RowKey::Refused(EventId([1; 32]))]));
    let (_, store) = room.finish();
    assert_eq!(peers(&store), [peer]);
    drop(store);
    let room = Room::open(folder.path());
    room.line.post(Note::Remember(Vec::new(), vec![RowKey::Peer(url())]));
    let (_, store) = room.finish();
    assert_eq!(peers(&store), []);
}

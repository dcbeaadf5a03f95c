//! What every store must do: a list of named cases, run against the model itself and against the real store.

mod git_jobs;

use std::sync::Arc;

use grasp_core::admission::io::{
    DeletionTarget, EventLookups, EventSummary, NeededLookups, PendingUpload, RestoredItem, StoreWrite, Todo,
    Tombstone, TombstoneKind,
};
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId, EventVersion};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds, signed_event};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::time::Timestamp;

/// A store, as the registrar's driver and the readers use it.
///
/// `lookups`, `event`, `is_known` and `write` belong to the open batch: they see what was written in it. All other verbs are
/// the readers' and see what is committed. They may be called while a batch is open.
pub trait Shelf {
    /// What is known about an event, with the open batch.
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups;

    /// Adds a change to the open batch.
    fn write(&mut self, write: &StoreWrite);

    /// An event, served or held, with the open batch.
    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)>;

    /// Whether [`event`](Shelf::event) would find it.
    fn is_known(&mut self, id: EventId) -> bool;

    /// Ends the batch: all of its changes are visible and durable.
    fn commit(&mut self);

    /// Ends the batch: none of its changes ever happened.
    fn abort(&mut self);

    /// Each filter's newest matches, at most `min(limit, default_limit)`; the union, newest first and in the same second
    /// lowest id first, without repetition. What has expired by `now` is invisible.
    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId>;

    /// How many different events match, whatever the limits.
    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64;

    /// Served events that have expired by `now`, in any order.
    fn due(&mut self, now: Timestamp) -> Vec<EventSummary>;

    /// Everything that is served, expired or not, in the order in which it came to be served.
    fn served(&mut self) -> Vec<EventId>;

    /// Everything that is held, with its deadline, in any order.
    fn held(&mut self) -> Vec<(EventId, Timestamp)>;

    /// Takes the pull requests that went with vanished authors, each once and in any order: in committed batches and, as
    /// far as the store has come, in the open one.
    fn removed_pulls(&mut self) -> Vec<EventSummary>;

    /// What a registrar is told at boot.
    fn restored(&mut self) -> Vec<RestoredItem>;

    /// Ends the batch as `abort` does, and begins anew with what is durable. Removed pull requests that nobody took are
    /// not told again.
    fn restart(&mut self);
}

/// Something that a registrar is told at boot, so that it can be sorted and compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Told {
    /// [`RestoredItem::Served`].
    Served(EventId),
    /// [`RestoredItem::Exception`].
    Exception(EventId),
    /// [`RestoredItem::Held`].
    Held(EventId, Timestamp),
    /// [`RestoredItem::Todo`].
    Todo(Todo),
    /// [`RestoredItem::Upload`].
    Staged(PendingUpload),
}

/// What a registrar is told at boot, sorted. Panics if work or uploads are told before events.
pub fn told(shelf: &mut dyn Shelf) -> Vec<Told> {
    let is_work = |told: &Told| matches!(told, Told::Todo(_) | Told::Staged(_));
    let mut all: Vec<Told> = shelf
        .restored()
        .into_iter()
        .map(|restored| match restored {
            RestoredItem::Served(event) => Told::Served(event.id),
            RestoredItem::Exception(event) => Told::Exception(event.id),
            RestoredItem::Held(event, deadline) => Told::Held(event.id, deadline),
            RestoredItem::Todo(todo) => Told::Todo(todo),
            RestoredItem::Upload(upload) => Told::Staged(upload),
        })
        .collect();
    assert!(all.is_sorted_by_key(is_work), "work and uploads come after all events: {all:?}");
    all.sort_unstable();
    all
}

/// One promise of a store, shown on an empty one.
pub type Case = fn(&mut dyn Shelf);

/// All promises, by name.
pub const CASES: &[(&str, Case)] = &[
    ("an empty store knows nothing", empty),
    ("a served event is found and known", put_and_find),
    ("a newer version replaces", replacement),
    ("in the same second the lower id is first", same_second),
    ("replaceable and addressable coordinates differ", coordinates),
    ("a held event is known but not served", hold),
    ("a released event replaces and gets a new place in the sequence", release),
    ("an event that was let go is unknown", unhold_and_remove),
    ("the sequence is the order of serving", sequence),
    ("a deleted id is gone for its author only", bury_event),
    ("a deleted coordinate is gone up to a time", bury_coordinate),
    ("a withdrawn repository is gone for losing announcements", bury_withdrawn),
    ("a vanished author is gone up to a time", bury_author),
    ("a vanishing author of many events is gone at once", bury_prolific_author),
    ("vanished is stronger than deleted, deleted than withdrawn", gone_priority),
    ("an expired event is invisible and due", expiry),
    ("an expiration that is no number means nothing", expiry_nonsense),
    ("facts see the open batch, readers do not", open_batch),
    ("an aborted batch never happened", abort),
    ("a batch that replaces twice leaves one", replace_in_batch),
    ("an anchor is something served, by id or coordinate", references_served),
    ("only the first sixty-four references are tried", anchored_bound),
    ("a name is an exact value of a served event", named),
    ("facts that were not asked for stay at their defaults", unasked),
    ("the author is here, served or held", author_has_events),
    ("targets of a deletion", targets),
    ("each condition of a filter", conditions),
    ("letters and values are compared exactly", exact_tags),
    ("limits are per filter, newest first", limits_per_filter),
    ("long values that differ late are different", long_values),
    ("a held event may wait longer", git_jobs::extend),
    ("work is noted until it is done", git_jobs::todo),
    ("one upload waits for an event at a site", git_jobs::stage),
    ("work and uploads outlive a restart, and no abort", git_jobs::durability),
    ("an event is found where it stands", git_jobs::find_event),
    ("what a vanished author leaves is unknown at once", git_jobs::unknown_at_once),
    ("pull requests that go with their author are told", git_jobs::removed_pulls),
    ("a summary says what a pull request offers", git_jobs::offers),
    ("what a registrar is told at boot", git_jobs::boot),
    ("an exception ends with what it was for", git_jobs::exceptions),
];

/// Runs every case on a store of its own.
pub fn suite(make: impl Fn() -> Box<dyn Shelf>) {
    for (name, case) in CASES {
        let _naming = Naming(format!("contract case: {name}"));
        case(&mut *make());
    }
}

/// Says where we were if the test panics.
pub(crate) struct Naming(pub(crate) String);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed in {}", self.0);
        }
    }
}

// The cases.

const NOW: Timestamp = Timestamp(1_000);
pub(crate) const PLENTY: usize = 10_000;

/// An event with a right id and no signature: stores take our word for it.
#[must_use]
pub fn draft(author: u8, kind: u16, created_at: u64, tags: &[&[&str]]) -> Arc<SignedEvent> {
    draft_owned(author, kind, created_at, crate::signer::owned(tags), String::new())
}

pub(crate) fn draft_owned(
    author: u8,
    kind: u16,
    created_at: u64,
    tags: Vec<Vec<String>>,
    content: String,
) -> Arc<SignedEvent> {
    let created_at = Timestamp(created_at);
    let mut event = Event { id: EventId([0; 32]), pubkey: key(author), created_at, kind, tags, content, sig: [0; 64] };
    event.id = EventId(signed_event::compute_id(&event));
    Arc::new(SignedEvent::from_trusted(event))
}

/// Two versions that differ in a tag, the one with the lower id first.
fn drafts(author: u8, kind: u16, created_at: u64, d: &str) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
    crate::signer::pair(|word| draft(author, kind, created_at, &[&["d", d], &["word", word]]))
}

pub(crate) fn key(author: u8) -> PublicKey {
    PublicKey([author; 32])
}

fn write_all(shelf: &mut dyn Shelf, writes: &[StoreWrite]) {
    for write in writes {
        shelf.write(write);
    }
    shelf.commit();
}

fn put(shelf: &mut dyn Shelf, event: &Arc<SignedEvent>) {
    write_all(shelf, &[StoreWrite::Put(event.clone())]);
}

fn hold_one(shelf: &mut dyn Shelf, event: &Arc<SignedEvent>) {
    write_all(shelf, &[StoreWrite::Hold(event.clone(), Timestamp(9))]);
}

fn bury(shelf: &mut dyn Shelf, tombstone: Tombstone) {
    write_all(shelf, &[StoreWrite::AddTombstone(tombstone)]);
}

fn lookups(shelf: &mut dyn Shelf, event: &SignedEvent) -> EventLookups {
    shelf.lookups(event, NeededLookups::default())
}

fn links(shelf: &mut dyn Shelf, event: &SignedEvent) -> (bool, bool) {
    let lookups = shelf.lookups(event, NeededLookups { links: true, ..NeededLookups::default() });
    (lookups.references_served, lookups.referenced_by_served)
}

fn query(shelf: &mut dyn Shelf, filter: Filter) -> Vec<EventId> {
    shelf.query(&[filter], PLENTY, NOW)
}

fn ids(events: &[&Arc<SignedEvent>]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}

fn empty(shelf: &mut dyn Shelf) {
    let event = draft(1, 5, 10, &[&["e", &"a".repeat(64)], &["a", &format!("30617:{}:x", key(1))]]);
    let all = NeededLookups { links: true, author: true, targets: true };
    assert_eq!(shelf.lookups(&event, all), EventLookups::default());
    assert_eq!(shelf.query(&[Filter::default()], PLENTY, NOW), []);
    assert_eq!(shelf.query(&[], PLENTY, NOW), []);
    assert_eq!(shelf.count(&[Filter::default()], NOW), 0);
    assert_eq!((shelf.due(NOW), shelf.served(), shelf.held()), (vec![], vec![], vec![]));
    shelf.commit();
    shelf.abort();
    for write in [StoreWrite::Release(event.id), StoreWrite::DropHeld(event.id), StoreWrite::Remove(event.id)] {
        write_all(shelf, &[write]);
    }
    assert_eq!((shelf.served(), shelf.held()), (vec![], vec![]));
}

fn put_and_find(shelf: &mut dyn Shelf) {
    let event = draft(1, 1, 10, &[]);
    put(shelf, &event);
    assert_eq!(lookups(shelf, &event), EventLookups { stored: Some(EventStatus::Served), ..EventLookups::default() });
    assert_eq!(query(shelf, Filter::default()), [event.id]);
    assert_eq!(shelf.count(&[Filter::default(), Filter::default()], NOW), 1);
    assert_eq!(lookups(shelf, &draft(1, 1, 11, &[])), EventLookups::default(), "a regular event has no versions");
}

fn replacement(shelf: &mut dyn Shelf) {
    for kind in [0, 10_317, 30_617, 30_618] {
        let [old, new, other] = [(1, 10), (1, 11), (2, 5)].map(|(author, at)| draft(author, kind, at, &[&["d", "x"]]));
        for event in [&other, &old] {
            put(shelf, event);
        }
        assert_eq!(lookups(shelf, &new).current, Some(old.version()), "{kind}");
        put(shelf, &new);
        let filter = Filter { kinds: Some(vec![kind]), ..Filter::default() };
        assert_eq!(query(shelf, filter), ids(&[&new, &other]), "{kind}");
        assert_eq!(
            lookups(shelf, &old),
            EventLookups { current: Some(new.version()), ..EventLookups::default() },
            "{kind}"
        );
        assert_eq!(lookups(shelf, &new).current, Some(new.version()), "{kind}");
    }
}

fn same_second(shelf: &mut dyn Shelf) {
    let (low, high) = drafts(1, 30_618, 10, "x");
    put(shelf, &high);
    put(shelf, &low);
    assert_eq!(shelf.served(), [low.id]);
    assert_eq!(lookups(shelf, &high).current, Some(low.version()));
    let (low, high) = drafts(1, 1, 20, "x");
    put(shelf, &high);
    put(shelf, &low);
    let regular = Filter { kinds: Some(vec![1]), ..Filter::default() };
    assert_eq!(query(shelf, regular.clone()), ids(&[&low, &high]), "lowest id first");
    assert_eq!(query(shelf, Filter { limit: Some(1), ..regular }), [low.id], "also at the edge of a limit");
}

fn coordinates(shelf: &mut dyn Shelf) {
    let listed = [
        draft(1, 30_617, 10, &[&["d", "x"]]),
        draft(1, 30_617, 11, &[&["d", "X"]]),
        draft(1, 30_617, 12, &[&["d", "x:y"]]),
        draft(1, 30_617, 13, &[&["d", ""]]),
        draft(1, 30_618, 14, &[&["d", "x"]]),
        draft(2, 30_617, 15, &[&["d", "x"]]),
    ];
    for event in &listed {
        put(shelf, event);
    }
    assert_eq!(shelf.served().len(), listed.len());
    let nameless = draft(1, 30_617, 20, &[&["t", "no d"]]);
    assert_eq!(lookups(shelf, &nameless).current, Some(listed[3].version()), "no d is an empty d");
    let twice = draft(1, 30_617, 20, &[&["d", "x"], &["d", "X"]]);
    assert_eq!(lookups(shelf, &twice).current, Some(listed[0].version()), "the first d counts");
    let profile = draft(1, 0, 20, &[&["d", "x"]]);
    put(shelf, &profile);
    assert_eq!(
        lookups(shelf, &draft(1, 0, 21, &[&["d", "y"]])).current,
        Some(profile.version()),
        "d means nothing there"
    );
}

fn hold(shelf: &mut dyn Shelf) {
    let served = draft(1, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    put(shelf, &served);
    write_all(shelf, &[StoreWrite::Hold(held.clone(), Timestamp(77))]);
    assert_eq!(lookups(shelf, &held).stored, Some(EventStatus::Held));
    assert_eq!(lookups(shelf, &held).current, Some(served.version()), "what is held hides nothing");
    assert_eq!(query(shelf, Filter::default()), [served.id]);
    assert_eq!(query(shelf, Filter { ids: Some(vec![held.id]), ..Filter::default() }), []);
    assert_eq!(shelf.count(&[Filter::default()], NOW), 1);
    assert_eq!(shelf.held(), [(held.id, Timestamp(77))]);
}

fn release(shelf: &mut dyn Shelf) {
    let old = draft(1, 30_618, 10, &[&["d", "x"]]);
    let new = draft(1, 30_618, 11, &[&["d", "x"]]);
    let between = draft(2, 1, 12, &[]);
    put(shelf, &old);
    hold_one(shelf, &new);
    put(shelf, &between);
    write_all(shelf, &[StoreWrite::Release(new.id)]);
    assert_eq!(shelf.served(), ids(&[&between, &new]));
    assert_eq!(shelf.held(), []);
    assert_eq!(lookups(shelf, &new).stored, Some(EventStatus::Served));
    assert_eq!(lookups(shelf, &old).stored, None);
    assert_eq!(query(shelf, Filter { ids: Some(vec![new.id]), ..Filter::default() }), [new.id]);
}

fn unhold_and_remove(shelf: &mut dyn Shelf) {
    let event = draft(1, 1_618, 10, &[&["c", "ab"], &["a", "x"]]);
    hold_one(shelf, &event);
    write_all(shelf, &[StoreWrite::Remove(event.id)]);
    assert_eq!(lookups(shelf, &event).stored, Some(EventStatus::Held), "removing is for what is served");
    write_all(shelf, &[StoreWrite::DropHeld(event.id)]);
    assert_eq!(lookups(shelf, &event), EventLookups::default());
    put(shelf, &event);
    write_all(shelf, &[StoreWrite::DropHeld(event.id)]);
    assert_eq!(lookups(shelf, &event).stored, Some(EventStatus::Served), "letting go is for what is held");
    write_all(shelf, &[StoreWrite::Remove(event.id)]);
    assert_eq!(lookups(shelf, &event), EventLookups::default());
    let by_tag = Filter { tags: vec![(b'c', vec!["ab".into()])], ..Filter::default() };
    assert_eq!(query(shelf, by_tag.clone()), []);
    put(shelf, &event);
    assert_eq!(query(shelf, by_tag), [event.id], "what was removed may come back");
}

fn sequence(shelf: &mut dyn Shelf) {
    let [a, b, c, d] = [30, 10, 20, 5].map(|at| draft(1, 1, at, &[]));
    shelf.write(&StoreWrite::Put(a.clone()));
    shelf.write(&StoreWrite::Hold(b.clone(), Timestamp(9)));
    shelf.write(&StoreWrite::Put(c.clone()));
    shelf.commit();
    shelf.write(&StoreWrite::Put(d.clone()));
    shelf.abort();
    write_all(shelf, &[StoreWrite::Release(b.id), StoreWrite::Put(d.clone())]);
    assert_eq!(shelf.served(), ids(&[&a, &c, &b, &d]));
    write_all(shelf, &[StoreWrite::Remove(a.id)]);
    write_all(shelf, &[StoreWrite::Put(a.clone())]);
    assert_eq!(shelf.served(), ids(&[&c, &b, &d, &a]));
    assert_eq!(query(shelf, Filter::default()), ids(&[&a, &c, &b, &d]));
}

fn bury_event(shelf: &mut dyn Shelf) {
    let event = draft(1, 1, 10, &[]);
    bury(shelf, Tombstone::Event(key(2), event.id));
    assert_eq!(lookups(shelf, &event).tombstone, None, "somebody else's deletion");
    bury(shelf, Tombstone::Event(key(1), event.id));
    assert_eq!(lookups(shelf, &event).tombstone, Some(TombstoneKind::Deleted));
    assert_eq!(lookups(shelf, &draft(1, 1, 11, &[])).tombstone, None);
}

fn bury_coordinate(shelf: &mut dyn Shelf) {
    let at = |time| draft(1, 30_618, time, &[&["d", "x"]]);
    let coordinate = at(1).coordinate().expect("addressable");
    for up_to in [20, 10] {
        bury(shelf, Tombstone::Coordinate(coordinate.clone(), Timestamp(up_to)));
    }
    for (time, gone) in [(9, true), (20, true), (21, false)] {
        assert_eq!(
            lookups(shelf, &at(time)).tombstone,
            gone.then_some(TombstoneKind::Deleted),
            "{time}: the larger time stays"
        );
    }
    for other in
        [draft(2, 30_618, 9, &[&["d", "x"]]), draft(1, 30_617, 9, &[&["d", "x"]]), draft(1, 30_618, 9, &[&["d", "y"]])]
    {
        assert_eq!(lookups(shelf, &other).tombstone, None);
    }
    let profile = draft(1, 0, 5, &[&["d", "anything"]]);
    bury(shelf, Tombstone::Coordinate(profile.coordinate().expect("replaceable"), Timestamp(5)));
    assert_eq!(lookups(shelf, &profile).tombstone, Some(TombstoneKind::Deleted));
}

fn bury_withdrawn(shelf: &mut dyn Shelf) {
    let (low, high) = drafts(1, 30_617, 20, "x");
    let repo = RepoId { owner: key(1), identifier: Identifier::new("x").expect("valid") };
    let early = EventVersion { created_at: Timestamp(10), id: low.id };
    for version in [low.version(), early] {
        bury(shelf, Tombstone::Withdrawn(repo.clone(), version));
    }
    assert_eq!(lookups(shelf, &low).tombstone, None, "the version that withdrew is not gone itself");
    assert_eq!(lookups(shelf, &high).tombstone, Some(TombstoneKind::Withdrawn), "it loses in the same second");
    assert_eq!(lookups(shelf, &draft(1, 30_617, 19, &[&["d", "x"]])).tombstone, Some(TombstoneKind::Withdrawn));
    assert_eq!(lookups(shelf, &draft(1, 30_617, 21, &[&["d", "x"]])).tombstone, None);
    assert_eq!(lookups(shelf, &draft(1, 30_618, 19, &[&["d", "x"]])).tombstone, None, "states are not withdrawn");
    assert_eq!(lookups(shelf, &draft(2, 30_617, 19, &[&["d", "x"]])).tombstone, None);
}

fn bury_author(shelf: &mut dyn Shelf) {
    let hex = key(1).to_string();
    let old = draft(1, 1, 20, &[&["t", "x"]]);
    let new = draft(1, 1, 21, &[&["t", "x"]]);
    let request = draft(1, kinds::VANISH, 20, &[&["relay", "ALL_RELAYS"]]);
    let deletion = draft(1, kinds::DELETION, 3, &[&["e", &"a".repeat(64)]]);
    let wrap = draft(2, kinds::GIFT_WRAP, 20, &[&["p", &hex]]);
    let late_wrap = draft(2, kinds::GIFT_WRAP, 21, &[&["p", &hex]]);
    let other_wrap = draft(2, kinds::GIFT_WRAP, 20, &[&["p", &key(2).to_string()]]);
    let mention = draft(2, 1, 20, &[&["p", &hex]]);
    let announcement = draft(1, 30_617, 20, &[&["d", "x"]]);
    let stays = [&new, &request, &late_wrap, &other_wrap, &mention];
    for event in [&old, &deletion, &wrap, &announcement].into_iter().chain(stays) {
        put(shelf, event);
    }
    hold_one(shelf, &draft(1, 30_618, 20, &[&["d", "x"]]));
    for up_to in [20, 4] {
        bury(shelf, Tombstone::Author(key(1), Timestamp(up_to)));
    }
    assert_eq!(shelf.served(), ids(&stays));
    assert_eq!(shelf.count(&[Filter::default()], NOW), stays.len() as u64);
    let by_tag = Filter { tags: vec![(b't', vec!["x".into()])], ..Filter::default() };
    assert_eq!(query(shelf, by_tag), [new.id]);
    assert_eq!(shelf.held().len(), 1, "what is held is let go one by one");
    assert_eq!(
        lookups(shelf, &old),
        EventLookups { tombstone: Some(TombstoneKind::Vanished), ..EventLookups::default() }
    );
    assert_eq!(lookups(shelf, &announcement).current, None);
    assert_eq!(lookups(shelf, &draft(1, 1, 22, &[])).tombstone, None, "later ones are welcome again");
    assert_eq!(lookups(shelf, &wrap), EventLookups::default());
}

fn bury_prolific_author(shelf: &mut dyn Shelf) {
    let total = limits::REMOVAL_SLICE_EVENTS as u64 + 500;
    for at in 0..total {
        shelf.write(&StoreWrite::Put(draft(1, 1, at, &[&["t", "x"]])));
    }
    let reply = draft(1, 1, total - 1, &[&["t", "x"]]).id.to_string();
    let other = draft(2, 1, 10, &[&["t", "x"], &["e", &reply]]);
    put(shelf, &other);
    let last = draft(1, 1, total - 1, &[&["t", "x"]]);
    assert_eq!(shelf.count(&[Filter::default()], NOW), total + 1);
    bury(shelf, Tombstone::Author(key(1), Timestamp(total - 2)));
    assert_eq!(shelf.served(), ids(&[&last, &other]));
    let by_author = Filter { authors: Some(vec![key(1)]), ..Filter::default() };
    let by_tag = Filter { tags: vec![(b't', vec!["x".into()])], ..Filter::default() };
    assert_eq!(query(shelf, by_author.clone()), [last.id]);
    assert_eq!(shelf.count(std::slice::from_ref(&by_tag), NOW), 2);
    assert_eq!(lookups(shelf, &draft(1, 1, 3, &[&["t", "x"]])).stored, None);
    bury(shelf, Tombstone::Author(key(1), Timestamp(total)));
    assert_eq!((query(shelf, by_author), query(shelf, by_tag)), (vec![], vec![other.id]));
    assert_eq!(links(shelf, &other), (false, false));
    let author = NeededLookups { author: true, ..NeededLookups::default() };
    assert!(!shelf.lookups(&draft(1, 1, total + 1, &[]), author).author_has_events);
}

fn gone_priority(shelf: &mut dyn Shelf) {
    let event = draft(1, 30_617, 10, &[&["d", "x"]]);
    let repo = RepoId { owner: key(1), identifier: Identifier::new("x").expect("valid") };
    let version = EventVersion { created_at: Timestamp(11), id: event.id };
    let tombstones = [
        (Tombstone::Withdrawn(repo, version), TombstoneKind::Withdrawn),
        (Tombstone::Coordinate(event.coordinate().expect("addressable"), Timestamp(10)), TombstoneKind::Deleted),
        (Tombstone::Event(key(1), event.id), TombstoneKind::Deleted),
        (Tombstone::Author(key(1), Timestamp(10)), TombstoneKind::Vanished),
    ];
    for (tombstone, gone) in tombstones {
        bury(shelf, tombstone);
        assert_eq!(lookups(shelf, &event).tombstone, Some(gone));
    }
}

fn expiry(shelf: &mut dyn Shelf) {
    let soon = draft(1, 30_617, 10, &[&["d", "x"], &["expiration", "50"]]);
    let later = draft(1, 1, 11, &[&["expiration", "60"]]);
    let held = draft(1, 30_618, 12, &[&["d", "x"], &["expiration", "50"]]);
    for event in [&soon, &later] {
        put(shelf, event);
    }
    hold_one(shelf, &held);
    for (now, visible, due) in [(49, 2, 0), (50, 1, 1), (59, 1, 1), (60, 0, 2)] {
        let now = Timestamp(now);
        assert_eq!(shelf.query(&[Filter::default()], PLENTY, now).len(), visible, "{now}");
        assert_eq!(shelf.count(&[Filter::default()], now), visible as u64, "{now}");
        assert_eq!(shelf.due(now).len(), due, "{now}");
    }
    assert_eq!(shelf.due(Timestamp(50)), [EventSummary::new(&soon)]);
    assert_eq!(shelf.query(&[Filter { limit: Some(1), ..Filter::default() }], PLENTY, Timestamp(59)), [later.id]);
    assert_eq!(lookups(shelf, &soon).stored, Some(EventStatus::Served), "until it is swept");
    write_all(shelf, &[StoreWrite::Remove(soon.id)]);
    assert_eq!(shelf.due(Timestamp(59)), []);
}

fn expiry_nonsense(shelf: &mut dyn Shelf) {
    for value in ["soon", "", "-1", "1.5", " 1", "99999999999999999999"] {
        put(shelf, &draft(1, 1, 10, &[&["expiration", value]]));
    }
    put(shelf, &draft(1, 1, 10, &[&["expiration"]]));
    assert_eq!(shelf.due(Timestamp(u64::MAX)), []);
    assert_eq!(shelf.count(&[Filter::default()], Timestamp(u64::MAX)), 7);
}

fn open_batch(shelf: &mut dyn Shelf) {
    let issue = draft(1, 1_621, 10, &[&["q", &"c".repeat(64)]]);
    let comment = draft(2, 1_111, 11, &[&["E", &issue.id.to_string()]]);
    shelf.write(&StoreWrite::Put(issue.clone()));
    assert_eq!(lookups(shelf, &issue).stored, Some(EventStatus::Served));
    assert_eq!(links(shelf, &comment), (true, false), "the one before it, in the same batch");
    assert_eq!((query(shelf, Filter::default()), shelf.served()), (vec![], vec![]), "no answer before the commit");
    shelf.write(&StoreWrite::AddTombstone(Tombstone::Event(key(2), comment.id)));
    assert_eq!(lookups(shelf, &comment).tombstone, Some(TombstoneKind::Deleted));
    shelf.commit();
    assert_eq!(query(shelf, Filter::default()), [issue.id]);
    shelf.write(&StoreWrite::Remove(issue.id));
    assert_eq!(lookups(shelf, &issue).stored, None);
    assert_eq!(query(shelf, Filter::default()), [issue.id]);
    shelf.commit();
    assert_eq!(query(shelf, Filter::default()), []);
}

fn abort(shelf: &mut dyn Shelf) {
    let kept = draft(1, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    put(shelf, &kept);
    hold_one(shelf, &held);
    for write in [
        StoreWrite::Release(held.id),
        StoreWrite::Remove(held.id),
        StoreWrite::Put(draft(2, 1, 5, &[])),
        StoreWrite::Hold(draft(2, 1, 6, &[]), Timestamp(1)),
        StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(99))),
        StoreWrite::AddTombstone(Tombstone::Event(key(1), kept.id)),
        StoreWrite::AddTombstone(Tombstone::Coordinate(kept.coordinate().expect("addressable"), Timestamp(99))),
    ] {
        shelf.write(&write);
    }
    shelf.abort();
    assert_eq!(
        lookups(shelf, &kept),
        EventLookups { stored: Some(EventStatus::Served), current: Some(kept.version()), ..EventLookups::default() }
    );
    assert_eq!((shelf.served(), shelf.held()), (vec![kept.id], vec![(held.id, Timestamp(9))]));
    assert_eq!(query(shelf, Filter::default()), [kept.id]);
    write_all(shelf, &[StoreWrite::Release(held.id)]);
    assert_eq!(shelf.served(), [held.id]);
}

fn replace_in_batch(shelf: &mut dyn Shelf) {
    let [a, b, c] = [10, 11, 12].map(|at| draft(1, 30_617, at, &[&["d", "x"], &["t", "x"]]));
    write_all(shelf, &[StoreWrite::Put(a), StoreWrite::Put(b.clone()), StoreWrite::Put(c.clone())]);
    assert_eq!(query(shelf, Filter { tags: vec![(b't', vec!["x".into()])], ..Filter::default() }), [c.id]);
    assert_eq!(shelf.count(&[Filter { ids: Some(vec![b.id]), ..Filter::default() }], NOW), 0);
}

fn references_served(shelf: &mut dyn Shelf) {
    let announcement = draft(1, 30_617, 10, &[&["d", "x:y"]]);
    let profile = draft(1, 0, 10, &[]);
    let held = draft(1, 30_617, 10, &[&["d", "held"]]);
    put(shelf, &announcement);
    put(shelf, &profile);
    hold_one(shelf, &held);
    let id = announcement.id.to_string();
    let at = format!("30617:{}:x:y", key(1));
    let short = format!("0:{}", key(1));
    for (tag, yes) in [
        (["e", id.as_str()], true),
        (["E", &id], true),
        (["q", &id], true),
        (["a", &at], true),
        (["A", &at], true),
        (["q", &at], true),
        (["a", &short], true),
        (["q", &format!("{short}:")], true),
        (["e", &at], false),
        (["E", &at], false),
        (["a", &id], false),
        (["r", &id], false),
        (["p", &id], false),
        (["e", &id.to_uppercase()], false),
        (["e", &id[..63]], false),
        (["a", &at.replace("x:y", "x")], false),
        (["a", &at.replace("30617", "30618")], false),
        (["e", &held.id.to_string()], false),
        (["a", &format!("30617:{}:held", key(1))], false),
    ] {
        assert_eq!(links(shelf, &draft(2, 1, 11, &[&tag])).0, yes, "{tag:?}");
    }
    let marker = draft(2, 1, 11, &[&["e", &"a".repeat(64), &id], &["e"], &["subject", &id]]);
    assert!(!links(shelf, &marker).0, "only the first value of a link counts");
}

fn anchored_bound(shelf: &mut dyn Shelf) {
    let root = draft(1, 1, 10, &[]);
    put(shelf, &root);
    for (before, yes) in [(limits::MAX_EVENT_REFERENCES - 1, true), (limits::MAX_EVENT_REFERENCES, false)] {
        let mut tags: Vec<Vec<String>> = (0..before).map(|nth| vec!["e".into(), format!("{nth:064x}")]).collect();
        tags.insert(0, vec!["p".into(), "no reference".into()]);
        tags.push(vec!["E".into(), root.id.to_string()]);
        assert_eq!(links(shelf, &draft_owned(2, 1, 11, tags, String::new())).0, yes, "{before}");
    }
}

fn named(shelf: &mut dyn Shelf) {
    let note = draft(2, 1, 10, &[]);
    let article = draft(2, 30_023, 10, &[&["d", "a:b\"c"]]);
    let profile = draft(2, 0, 10, &[]);
    let id = note.id.to_string();
    let at = article.coordinate().expect("addressable").to_string();
    for (tag, event, yes) in [
        (["e", id.as_str()], &note, true),
        (["E", &id], &note, true),
        (["q", &id], &note, true),
        (["a", &id], &note, false),
        (["r", &id], &note, false),
        (["a", &at], &article, true),
        (["A", &at], &article, true),
        (["q", &at], &article, true),
        (["e", &at], &article, false),
        (["q", &article.id.to_string()], &article, true),
        (["a", &format!("0:{}:", key(2))], &profile, true),
        (["A", &format!("0:{}", key(2))], &profile, true),
        (["a", &format!("0:{}:x", key(2))], &profile, false),
        (["a", &format!("30023:{}", key(2))], &article, false),
    ] {
        let namer = draft(1, 1_621, 10, &[&tag]);
        hold_one(shelf, &namer);
        assert_eq!(links(shelf, event), (false, false), "{tag:?} held");
        write_all(shelf, &[StoreWrite::Release(namer.id)]);
        assert_eq!(links(shelf, event), (false, yes), "{tag:?}");
        write_all(shelf, &[StoreWrite::Remove(namer.id)]);
        assert_eq!(links(shelf, event), (false, false), "{tag:?} removed");
    }
}

fn unasked(shelf: &mut dyn Shelf) {
    let root = draft(1, 1, 10, &[]);
    let request = draft(1, 5, 11, &[&["e", &root.id.to_string()]]);
    let namer = draft(1, 1, 12, &[&["e", &request.id.to_string()]]);
    put(shelf, &root);
    put(shelf, &namer);
    assert_eq!(lookups(shelf, &request), EventLookups::default());
    let all = shelf.lookups(&request, NeededLookups { links: true, author: true, targets: true });
    let target = DeletionTarget { event: EventSummary::new(&root), status: EventStatus::Served };
    assert_eq!(
        all,
        EventLookups {
            references_served: true,
            referenced_by_served: false,
            author_has_events: true,
            targets: vec![target],
            ..EventLookups::default()
        }
    );
}

fn author_has_events(shelf: &mut dyn Shelf) {
    let author = NeededLookups { author: true, ..NeededLookups::default() };
    put(shelf, &draft(1, 1, 10, &[&["p", &key(3).to_string()]]));
    let held = draft(2, 1, 10, &[]);
    hold_one(shelf, &held);
    for (who, here) in [(1, true), (2, true), (3, false)] {
        assert_eq!(shelf.lookups(&draft(who, 5, 11, &[]), author).author_has_events, here, "{who}");
    }
    write_all(shelf, &[StoreWrite::DropHeld(held.id)]);
    assert!(!shelf.lookups(&draft(2, 5, 11, &[]), author).author_has_events);
}

fn targets(shelf: &mut dyn Shelf) {
    let state = draft(1, 30_618, 10, &[&["d", "x"]]);
    let newer = draft(1, 30_618, 30, &[&["d", "new"]]);
    let foreign = draft(2, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    for event in [&state, &newer, &foreign] {
        put(shelf, event);
    }
    hold_one(shelf, &held);
    let at = |event: &SignedEvent| event.coordinate().expect("addressable").to_string();
    let mut ask = |tags: &[&[&str]]| {
        shelf.lookups(&draft(1, 5, 20, tags), NeededLookups { targets: true, ..NeededLookups::default() }).targets
    };
    let target = |event: &SignedEvent, status| DeletionTarget { event: EventSummary::new(event), status };
    let served = target(&state, EventStatus::Served);
    assert_eq!(ask(&[&["e", &held.id.to_string()]]), [target(&held, EventStatus::Held)]);
    assert_eq!(ask(&[&["e", &foreign.id.to_string()]]), [target(&foreign, EventStatus::Served)], "whoever made it");
    assert_eq!(ask(&[&["e", &newer.id.to_string()]]), [target(&newer, EventStatus::Served)], "whenever it was made");
    assert_eq!(ask(&[&["a", &at(&state)]]), std::slice::from_ref(&served), "served at the coordinate, not held");
    assert_eq!(ask(&[&["a", &at(&foreign)]]), [], "somebody else's coordinate");
    assert_eq!(ask(&[&["a", &at(&newer)]]), [], "later than the request");
    assert_eq!(ask(&[&["e", "zz"], &["e"], &["a", "nothing"], &["E", &state.id.to_string()]]), []);
    assert_eq!(ask(&[&["e", "zz", &state.id.to_string()]]), []);
    let mut both = vec![target(&held, EventStatus::Held), served];
    both.sort_unstable();
    let id = state.id.to_string();
    assert_eq!(ask(&[&["e", &id], &["a", &at(&state)], &["e", &id], &["e", &held.id.to_string()]]), both, "each once");
}

fn conditions(shelf: &mut dyn Shelf) {
    let a = draft(1, 1, 10, &[&["t", "x"], &["t", "y"], &["p", "z"]]);
    let b = draft(1, 2, 20, &[&["t", "x"]]);
    let c = draft(2, 1, 30, &[&["t", "y"]]);
    for event in [&a, &b, &c] {
        put(shelf, event);
    }
    let none = Filter::default();
    let tag = |letter: u8, values: &[&str]| (letter, values.iter().map(|value| (*value).to_owned()).collect());
    let time = |at| Some(Timestamp(at));
    for (filter, found) in [
        (none.clone(), vec![&c, &b, &a]),
        (Filter { ids: Some(vec![]), ..none.clone() }, vec![]),
        (Filter { authors: Some(vec![]), ..none.clone() }, vec![]),
        (Filter { kinds: Some(vec![]), ..none.clone() }, vec![]),
        (Filter { tags: vec![tag(b't', &[])], ..none.clone() }, vec![]),
        (Filter { ids: Some(vec![a.id, EventId([7; 32])]), ..none.clone() }, vec![&a]),
        (Filter { ids: Some(vec![a.id]), kinds: Some(vec![2]), ..none.clone() }, vec![]),
        (Filter { authors: Some(vec![key(1)]), ..none.clone() }, vec![&b, &a]),
        (Filter { authors: Some(vec![key(1), key(2)]), kinds: Some(vec![1]), ..none.clone() }, vec![&c, &a]),
        (Filter { kinds: Some(vec![1, 2]), ..none.clone() }, vec![&c, &b, &a]),
        (Filter { tags: vec![tag(b't', &["x", "y"])], ..none.clone() }, vec![&c, &b, &a]),
        (Filter { tags: vec![tag(b'p', &["z"]), tag(b't', &["y"])], ..none.clone() }, vec![&a]),
        (Filter { tags: vec![tag(b'p', &["z"]), tag(b't', &["w"])], ..none.clone() }, vec![]),
        (Filter { since: time(20), ..none.clone() }, vec![&c, &b]),
        (Filter { until: time(20), ..none.clone() }, vec![&b, &a]),
        (Filter { since: time(20), until: time(20), ..none.clone() }, vec![&b]),
        (Filter { since: time(21), until: time(20), ..none.clone() }, vec![]),
        (Filter { tags: vec![tag(b't', &["x"])], authors: Some(vec![key(1)]), until: time(15), ..none }, vec![&a]),
    ] {
        assert_eq!(query(shelf, filter.clone()), ids(&found), "{}", filter.to_json());
        assert_eq!(shelf.count(std::slice::from_ref(&filter), NOW), found.len() as u64, "{}", filter.to_json());
    }
}

fn exact_tags(shelf: &mut dyn Shelf) {
    let values =
        ["x", "X", "x ", "", "\"", "\\", "\\\"", "a\nb", "a\\nb", "\u{1}", "\t\r\u{8}\u{c}", "é🚀", "e\u{301}🚀"];
    let events: Vec<_> =
        values.iter().map(|value| draft(1, 1, 10, &[&["t", value, "second"], &["subject", "s"]])).collect();
    for event in &events {
        put(shelf, event);
    }
    for (value, event) in values.iter().zip(&events) {
        for (letter, found) in [(b't', vec![event.id]), (b'T', vec![])] {
            let filter = Filter { tags: vec![(letter, vec![(*value).to_owned()])], ..Filter::default() };
            assert_eq!(query(shelf, filter), found, "{value:?}");
        }
    }
    for (letter, value) in [(b't', "second"), (b's', "s"), (b't', "xx")] {
        let filter = Filter { tags: vec![(letter, vec![value.to_owned()])], ..Filter::default() };
        assert_eq!(query(shelf, filter), [], "{value:?}");
    }
}

fn limits_per_filter(shelf: &mut dyn Shelf) {
    let events = [10, 20, 30, 40].map(|at| draft(1, 1, at, &[]));
    let other = draft(2, 7, 25, &[]);
    for event in events.iter().chain([&other]) {
        put(shelf, event);
    }
    let [a, b, c, d] = &events;
    let all = |limit| Filter { limit, ..Filter::default() };
    let kind = |kind, limit| Filter { kinds: Some(vec![kind]), limit, ..Filter::default() };
    for (filters, default_limit, found) in [
        (vec![all(Some(2))], 10, vec![d, c]),
        (vec![all(Some(0))], 10, vec![]),
        (vec![all(Some(9))], 3, vec![d, c, &other]),
        (vec![all(None)], 3, vec![d, c, &other]),
        (vec![kind(1, Some(2)), kind(7, Some(2))], 10, vec![d, c, &other]),
        (vec![all(Some(1)), kind(1, Some(2)), kind(7, None)], 10, vec![d, c, &other]),
        (vec![all(Some(0)), kind(7, None)], 10, vec![&other]),
        (vec![kind(7, None), kind(1, None)], 10, vec![d, c, &other, b, a]),
    ] {
        assert_eq!(shelf.query(&filters, default_limit, NOW), ids(&found), "{filters:?} {default_limit}");
    }
    assert_eq!(shelf.count(&[all(Some(1)), kind(7, Some(0))], NOW), 5, "limits do not limit a count");
}

fn long_values(shelf: &mut dyn Shelf) {
    let long = "x".repeat(600);
    let [a, b] = ["a", "b"].map(|end| {
        let value = format!("{long}{end}");
        draft(1, 30_617, 10, &[&["d", &value], &["t", &value]])
    });
    for event in [&a, &b] {
        put(shelf, event);
    }
    for (end, event) in [("a", &a), ("b", &b)] {
        for letter in *b"dt" {
            let filter = Filter { tags: vec![(letter, vec![format!("{long}{end}")])], ..Filter::default() };
            assert_eq!(query(shelf, filter), [event.id]);
        }
        assert_eq!(lookups(shelf, event).current, Some(event.version()));
    }
}

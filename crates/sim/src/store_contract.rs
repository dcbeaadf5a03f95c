//! Contract of a store: a list of named cases that run against the model and against the real store.

mod git_jobs;

use std::sync::Arc;

use grasp_core::admission::io::{
    DeletionTarget, EarlyRequest, EventLookups, EventSummary, NeededLookups, PendingUpload, PullRequestPage,
    RestoredItem, StoreWrite, Todo, Tombstone, TombstoneKind,
};
use grasp_core::limits;
use grasp_core::nostr::event::{Event, EventId, EventVersion};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds, signed_event};
use grasp_core::repo::catalog::EventStatus;
use grasp_core::repo::{Identifier, PackHash, PackManifest, Refs, RepoId, RepoPath};
use grasp_core::time::Timestamp;

use crate::failure_context::FailureContext;

/// A store as the writer and the readers use it.
///
/// `lookups`, `event`, `is_known`, `repo`, `packs` and `write` belong to the open batch: they see its writes. All other methods are
/// for readers and see committed rows only. They may be called while a batch is open.
pub trait StoreUnderTest {
    /// Returns what is known about an event, with the open batch.
    fn lookups(&mut self, event: &SignedEvent, needed: NeededLookups) -> EventLookups;

    /// Adds a change to the open batch.
    fn write(&mut self, write: &StoreWrite);

    /// Returns a served or held event, with the open batch.
    fn event(&mut self, id: EventId) -> Option<(Arc<SignedEvent>, EventStatus)>;

    /// Whether [`event`](StoreUnderTest::event) would find it.
    fn is_known(&mut self, id: EventId) -> bool;

    /// Returns the refs of a repository, and why it is degraded, with the open batch; `None` if it does not exist.
    fn repo(&mut self, repo_path: &RepoPath) -> Option<(Arc<Refs>, Option<String>)>;

    /// Returns the packs that the pool of a repository should have, with the open batch; `None` if there are none.
    fn packs(&mut self, repo_path: &RepoPath) -> Option<PackManifest>;

    /// Ends the batch: all of its changes are visible and durable.
    fn commit(&mut self);

    /// Ends the batch and undoes all of its changes.
    fn abort(&mut self);

    /// Returns the union of each filter's newest matches, at most `min(limit, default_limit)` per filter, newest
    /// first and in the same second lowest id first, without duplicates. Events that have expired by `now` are
    /// invisible.
    fn query(&mut self, filters: &[Filter], default_limit: usize, now: Timestamp) -> Vec<EventId>;

    /// Returns the number of different events that match, regardless of limits.
    fn count(&mut self, filters: &[Filter], now: Timestamp) -> u64;

    /// Returns the served events that have expired by `now`, in any order.
    fn due(&mut self, now: Timestamp) -> Vec<EventSummary>;

    /// Returns all served events, expired or not, by sequence number.
    fn served(&mut self) -> Vec<EventId>;

    /// Returns all held events with their deadlines, in any order.
    fn held(&mut self) -> Vec<(EventId, Timestamp)>;

    /// Takes the pull requests that were removed with vanished authors, each once and in any order: those of
    /// committed batches, and those that the open batch has removed so far.
    fn removed_pulls(&mut self) -> Vec<EventSummary>;

    /// Returns a page of the served pull requests that are addressed to a repository, newest first, and where the next
    /// page starts, with the open batch. Events that the open batch put may be on the first page, in any order.
    fn pull_requests_for(
        &mut self,
        repo: &RepoId,
        page: PullRequestPage,
    ) -> (Vec<Arc<SignedEvent>>, Option<EventVersion>);

    /// Returns what the admission machine restores at startup.
    fn restored(&mut self) -> Vec<RestoredItem>;

    /// Aborts the batch and restarts with the durable rows. Removed pull requests that were not taken are lost.
    fn restart(&mut self);
}

/// A restored item in a form that can be sorted and compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RestoredSummary {
    /// [`RestoredItem::Served`].
    Served(EventId),
    /// [`RestoredItem::Exception`].
    Exception(EventId),
    /// [`RestoredItem::Held`].
    Held(EventId, Timestamp),
    /// [`RestoredItem::Degraded`].
    Degraded(RepoPath),
    /// [`RestoredItem::Todo`].
    Todo(Todo),
    /// [`RestoredItem::Upload`].
    Upload(PendingUpload),
    /// [`RestoredItem::EarlyRequest`].
    EarlyRequest(EventId, Option<String>, Timestamp),
}

/// Returns the restored items, sorted. Panics if todo rows, uploads or requests of unknown keys come before events.
pub fn restored_summary(store: &mut dyn StoreUnderTest) -> Vec<RestoredSummary> {
    let is_work = |item: &RestoredSummary| {
        matches!(item, RestoredSummary::Todo(_) | RestoredSummary::Upload(_) | RestoredSummary::EarlyRequest(..))
    };
    let mut all: Vec<RestoredSummary> = store
        .restored()
        .into_iter()
        .map(|restored| match restored {
            RestoredItem::Served(event) => RestoredSummary::Served(event.id),
            RestoredItem::Exception(event) => RestoredSummary::Exception(event.id),
            RestoredItem::Held(event, deadline) => RestoredSummary::Held(event.id, deadline),
            RestoredItem::Degraded(repo_path) => RestoredSummary::Degraded(repo_path),
            RestoredItem::Todo(todo) => RestoredSummary::Todo(todo),
            RestoredItem::Upload(upload) => RestoredSummary::Upload(upload),
            RestoredItem::EarlyRequest(request) => {
                RestoredSummary::EarlyRequest(request.event.id, request.network, request.expires_at)
            }
        })
        .collect();
    assert!(all.is_sorted_by_key(is_work), "todo rows, uploads and requests must come after all events: {all:?}");
    all.sort_unstable();
    all
}

/// One case of the contract. Runs on an empty store.
pub type ContractCase = fn(&mut dyn StoreUnderTest);

/// All cases, by name.
pub const CASES: &[(&str, ContractCase)] = &[
    ("an empty store has no rows", empty),
    ("a served event is found", put_and_find),
    ("a newer version replaces", replacement),
    ("in the same second the lower id is first", same_second),
    ("replaceable and addressable coordinates differ", coordinates),
    ("a held event is known but not served", hold),
    ("a released event replaces and gets a new sequence number", release),
    ("a served event is held again and gets a new sequence number when it is released", git_jobs::hold_served),
    ("the served pull requests of a repository are found page by page", git_jobs::pull_requests_for),
    ("a dropped or removed event is unknown", drop_and_remove),
    ("the sequence is the order of serving", sequence),
    ("a deleted id has a tombstone for its author only", tombstone_of_event),
    ("a deleted coordinate has a tombstone up to a time", tombstone_of_coordinate),
    ("a withdrawal covers superseded announcements", tombstone_of_withdrawal),
    ("a vanished author has a tombstone up to a time", tombstone_of_author),
    ("many events of a vanished author are removed at once", tombstone_of_prolific_author),
    ("vanished has priority over deleted, deleted over withdrawn", tombstone_priority),
    ("an expired event is invisible and due", expiry),
    ("an expiration that is no number is ignored", invalid_expiration),
    ("lookups see the open batch, readers do not", open_batch),
    ("an aborted batch has no effect", abort),
    ("a batch that replaces twice leaves one", replace_in_batch),
    ("references to served events, by id or coordinate", references_served),
    ("only the first 64 references count", reference_limit),
    ("references by served events are compared exactly", referenced_by_served),
    ("lookups that are not needed have default values", lookups_not_requested),
    ("whether the author has served or held events", author_has_events),
    ("targets of a deletion", targets),
    ("each condition of a filter", conditions),
    ("letters and values are compared exactly", exact_tags),
    ("limits are per filter, newest first", limits_per_filter),
    ("long values that differ late are different", long_values),
    ("the deadline of a held event can change", git_jobs::extend_hold),
    ("a todo row stays until it is removed", git_jobs::todo),
    ("refs and degradation of a repository are one row", git_jobs::repos),
    ("the packs of a pool are one row, independent of the refs", git_jobs::packs),
    ("one upload row per event and repository", git_jobs::uploads),
    ("todo rows and uploads survive a restart, but not an abort", git_jobs::durability),
    ("requests of unknown keys are restored and not served", git_jobs::early_requests),
    ("an event is found with its status", git_jobs::find_event),
    ("events of a vanished author are unknown at once", git_jobs::vanished_events_are_unknown),
    ("pull requests removed with their author are reported", git_jobs::removed_pulls),
    ("a summary has the targets and tip of a pull request", git_jobs::pull_request_summaries),
    ("items restored at startup", git_jobs::restored_items),
    ("an exception mark is removed with its event", git_jobs::exceptions),
];

/// Runs every case on a store of its own.
pub fn run_contract(make: impl Fn() -> Box<dyn StoreUnderTest>) {
    for (name, case) in CASES {
        let _context = FailureContext(format!("in contract case {name}"));
        case(&mut *make());
    }
}

const NOW: Timestamp = Timestamp(1_000);
pub(crate) const NO_LIMIT: usize = 10_000;

/// Returns an event with a correct id and no signature: stores do not verify signatures.
pub fn draft(author: u8, kind: u16, created_at: u64, tags: &[&[&str]]) -> Arc<SignedEvent> {
    draft_owned(author, kind, created_at, crate::signer::owned_tags(tags), String::new())
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

/// Returns two versions that differ in a tag, the one with the lower id first.
fn drafts(author: u8, kind: u16, created_at: u64, d: &str) -> (Arc<SignedEvent>, Arc<SignedEvent>) {
    crate::signer::tied_versions(|word| draft(author, kind, created_at, &[&["d", d], &["word", word]]))
}

pub(crate) fn key(author: u8) -> PublicKey {
    PublicKey([author; 32])
}

fn write_all(store: &mut dyn StoreUnderTest, writes: &[StoreWrite]) {
    for write in writes {
        store.write(write);
    }
    store.commit();
}

fn put(store: &mut dyn StoreUnderTest, event: &Arc<SignedEvent>) {
    write_all(store, &[StoreWrite::Put(event.clone())]);
}

fn hold_one(store: &mut dyn StoreUnderTest, event: &Arc<SignedEvent>) {
    write_all(store, &[StoreWrite::Hold(event.clone(), Timestamp(9))]);
}

fn add_tombstone(store: &mut dyn StoreUnderTest, tombstone: Tombstone) {
    write_all(store, &[StoreWrite::AddTombstone(tombstone)]);
}

fn lookups(store: &mut dyn StoreUnderTest, event: &SignedEvent) -> EventLookups {
    store.lookups(event, NeededLookups::default())
}

fn links(store: &mut dyn StoreUnderTest, event: &SignedEvent) -> (bool, bool) {
    let lookups = store.lookups(event, NeededLookups { links: true, ..NeededLookups::default() });
    (lookups.references_served, lookups.referenced_by_served)
}

fn query(store: &mut dyn StoreUnderTest, filter: Filter) -> Vec<EventId> {
    store.query(&[filter], NO_LIMIT, NOW)
}

fn ids(events: &[&Arc<SignedEvent>]) -> Vec<EventId> {
    events.iter().map(|event| event.id).collect()
}

fn empty(store: &mut dyn StoreUnderTest) {
    let event = draft(1, 5, 10, &[&["e", &"a".repeat(64)], &["a", &format!("30617:{}:x", key(1))]]);
    let all = NeededLookups { links: true, author: true, targets: true };
    assert_eq!(store.lookups(&event, all), EventLookups::default());
    assert_eq!(store.query(&[Filter::default()], NO_LIMIT, NOW), []);
    assert_eq!(store.query(&[], NO_LIMIT, NOW), []);
    assert_eq!(store.count(&[Filter::default()], NOW), 0);
    assert_eq!((store.due(NOW), store.served(), store.held()), (vec![], vec![], vec![]));
    store.commit();
    store.abort();
    for write in [StoreWrite::Release(event.id), StoreWrite::DropHeld(event.id), StoreWrite::Remove(event.id)] {
        write_all(store, &[write]);
    }
    assert_eq!((store.served(), store.held()), (vec![], vec![]));
}

fn put_and_find(store: &mut dyn StoreUnderTest) {
    let event = draft(1, 1, 10, &[]);
    put(store, &event);
    assert_eq!(lookups(store, &event), EventLookups { stored: Some(EventStatus::Served), ..EventLookups::default() });
    assert_eq!(query(store, Filter::default()), [event.id]);
    assert_eq!(store.count(&[Filter::default(), Filter::default()], NOW), 1);
    assert_eq!(lookups(store, &draft(1, 1, 11, &[])), EventLookups::default(), "a regular event has no versions");
}

fn replacement(store: &mut dyn StoreUnderTest) {
    for kind in [0, 10_317, 30_617, 30_618] {
        let [old, new, other] = [(1, 10), (1, 11), (2, 5)].map(|(author, at)| draft(author, kind, at, &[&["d", "x"]]));
        for event in [&other, &old] {
            put(store, event);
        }
        assert_eq!(lookups(store, &new).current, Some(old.version()), "{kind}");
        put(store, &new);
        let filter = Filter { kinds: Some(vec![kind]), ..Filter::default() };
        assert_eq!(query(store, filter), ids(&[&new, &other]), "{kind}");
        assert_eq!(
            lookups(store, &old),
            EventLookups { current: Some(new.version()), ..EventLookups::default() },
            "{kind}"
        );
        assert_eq!(lookups(store, &new).current, Some(new.version()), "{kind}");
    }
}

fn same_second(store: &mut dyn StoreUnderTest) {
    let (low, high) = drafts(1, 30_618, 10, "x");
    put(store, &high);
    put(store, &low);
    assert_eq!(store.served(), [low.id]);
    assert_eq!(lookups(store, &high).current, Some(low.version()));
    let (low, high) = drafts(1, 1, 20, "x");
    put(store, &high);
    put(store, &low);
    let regular = Filter { kinds: Some(vec![1]), ..Filter::default() };
    assert_eq!(query(store, regular.clone()), ids(&[&low, &high]), "lowest id first");
    assert_eq!(query(store, Filter { limit: Some(1), ..regular }), [low.id], "also at the limit");
}

fn coordinates(store: &mut dyn StoreUnderTest) {
    let listed = [
        draft(1, 30_617, 10, &[&["d", "x"]]),
        draft(1, 30_617, 11, &[&["d", "X"]]),
        draft(1, 30_617, 12, &[&["d", "x:y"]]),
        draft(1, 30_617, 13, &[&["d", ""]]),
        draft(1, 30_618, 14, &[&["d", "x"]]),
        draft(2, 30_617, 15, &[&["d", "x"]]),
    ];
    for event in &listed {
        put(store, event);
    }
    assert_eq!(store.served().len(), listed.len());
    let nameless = draft(1, 30_617, 20, &[&["t", "no d"]]);
    assert_eq!(
        lookups(store, &nameless).current,
        Some(listed[3].version()),
        "a missing d tag means an empty identifier"
    );
    let twice = draft(1, 30_617, 20, &[&["d", "x"], &["d", "X"]]);
    assert_eq!(lookups(store, &twice).current, Some(listed[0].version()), "the first d tag counts");
    let profile = draft(1, 0, 20, &[&["d", "x"]]);
    put(store, &profile);
    assert_eq!(
        lookups(store, &draft(1, 0, 21, &[&["d", "y"]])).current,
        Some(profile.version()),
        "the d tag has no meaning for replaceable kinds"
    );
}

fn hold(store: &mut dyn StoreUnderTest) {
    let served = draft(1, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    put(store, &served);
    write_all(store, &[StoreWrite::Hold(held.clone(), Timestamp(77))]);
    assert_eq!(lookups(store, &held).stored, Some(EventStatus::Held));
    assert_eq!(lookups(store, &held).current, Some(served.version()), "a held event does not replace the served one");
    assert_eq!(query(store, Filter::default()), [served.id]);
    assert_eq!(query(store, Filter { ids: Some(vec![held.id]), ..Filter::default() }), []);
    assert_eq!(store.count(&[Filter::default()], NOW), 1);
    assert_eq!(store.held(), [(held.id, Timestamp(77))]);
}

fn release(store: &mut dyn StoreUnderTest) {
    let old = draft(1, 30_618, 10, &[&["d", "x"]]);
    let new = draft(1, 30_618, 11, &[&["d", "x"]]);
    let between = draft(2, 1, 12, &[]);
    put(store, &old);
    hold_one(store, &new);
    put(store, &between);
    write_all(store, &[StoreWrite::Release(new.id)]);
    assert_eq!(store.served(), ids(&[&between, &new]));
    assert_eq!(store.held(), []);
    assert_eq!(lookups(store, &new).stored, Some(EventStatus::Served));
    assert_eq!(lookups(store, &old).stored, None);
    assert_eq!(query(store, Filter { ids: Some(vec![new.id]), ..Filter::default() }), [new.id]);
}

fn drop_and_remove(store: &mut dyn StoreUnderTest) {
    let event = draft(1, 1_618, 10, &[&["c", "ab"], &["a", "x"]]);
    hold_one(store, &event);
    write_all(store, &[StoreWrite::Remove(event.id)]);
    assert_eq!(lookups(store, &event).stored, Some(EventStatus::Held), "`Remove` applies to served events only");
    write_all(store, &[StoreWrite::DropHeld(event.id)]);
    assert_eq!(lookups(store, &event), EventLookups::default());
    put(store, &event);
    write_all(store, &[StoreWrite::DropHeld(event.id)]);
    assert_eq!(lookups(store, &event).stored, Some(EventStatus::Served), "`DropHeld` applies to held events only");
    write_all(store, &[StoreWrite::Remove(event.id)]);
    assert_eq!(lookups(store, &event), EventLookups::default());
    let by_tag = Filter { tags: vec![(b'c', vec!["ab".to_owned()].into())], ..Filter::default() };
    assert_eq!(query(store, by_tag.clone()), []);
    put(store, &event);
    assert_eq!(query(store, by_tag), [event.id], "a removed event can be stored again");
}

fn sequence(store: &mut dyn StoreUnderTest) {
    let [a, b, c, d] = [30, 10, 20, 5].map(|at| draft(1, 1, at, &[]));
    store.write(&StoreWrite::Put(a.clone()));
    store.write(&StoreWrite::Hold(b.clone(), Timestamp(9)));
    store.write(&StoreWrite::Put(c.clone()));
    store.commit();
    store.write(&StoreWrite::Put(d.clone()));
    store.abort();
    write_all(store, &[StoreWrite::Release(b.id), StoreWrite::Put(d.clone())]);
    assert_eq!(store.served(), ids(&[&a, &c, &b, &d]));
    write_all(store, &[StoreWrite::Remove(a.id)]);
    write_all(store, &[StoreWrite::Put(a.clone())]);
    assert_eq!(store.served(), ids(&[&c, &b, &d, &a]));
    assert_eq!(query(store, Filter::default()), ids(&[&a, &c, &b, &d]));
}

fn tombstone_of_event(store: &mut dyn StoreUnderTest) {
    let event = draft(1, 1, 10, &[]);
    add_tombstone(store, Tombstone::Event(key(2), event.id));
    assert_eq!(lookups(store, &event).tombstone, None, "deletion by another author");
    add_tombstone(store, Tombstone::Event(key(1), event.id));
    assert_eq!(lookups(store, &event).tombstone, Some(TombstoneKind::Deleted));
    assert_eq!(lookups(store, &draft(1, 1, 11, &[])).tombstone, None);
}

fn tombstone_of_coordinate(store: &mut dyn StoreUnderTest) {
    let at = |time| draft(1, 30_618, time, &[&["d", "x"]]);
    let coordinate = at(1).coordinate().expect("addressable");
    for up_to in [20, 10] {
        add_tombstone(store, Tombstone::Coordinate(coordinate.clone(), Timestamp(up_to)));
    }
    for (time, gone) in [(9, true), (20, true), (21, false)] {
        assert_eq!(
            lookups(store, &at(time)).tombstone,
            gone.then_some(TombstoneKind::Deleted),
            "{time}: the larger time is kept"
        );
    }
    for other in
        [draft(2, 30_618, 9, &[&["d", "x"]]), draft(1, 30_617, 9, &[&["d", "x"]]), draft(1, 30_618, 9, &[&["d", "y"]])]
    {
        assert_eq!(lookups(store, &other).tombstone, None);
    }
    let profile = draft(1, 0, 5, &[&["d", "anything"]]);
    add_tombstone(store, Tombstone::Coordinate(profile.coordinate().expect("replaceable"), Timestamp(5)));
    assert_eq!(lookups(store, &profile).tombstone, Some(TombstoneKind::Deleted));
}

fn tombstone_of_withdrawal(store: &mut dyn StoreUnderTest) {
    let (low, high) = drafts(1, 30_617, 20, "x");
    let repo = RepoId { owner: key(1), identifier: Identifier::new("x").expect("valid") };
    let early = EventVersion { created_at: Timestamp(10), id: low.id };
    for version in [low.version(), early] {
        add_tombstone(store, Tombstone::Withdrawn(repo.clone(), version));
    }
    assert_eq!(lookups(store, &low).tombstone, None, "the withdrawing version itself has no tombstone");
    assert_eq!(lookups(store, &high).tombstone, Some(TombstoneKind::Withdrawn), "it loses in the same second");
    assert_eq!(lookups(store, &draft(1, 30_617, 19, &[&["d", "x"]])).tombstone, Some(TombstoneKind::Withdrawn));
    assert_eq!(lookups(store, &draft(1, 30_617, 21, &[&["d", "x"]])).tombstone, None);
    assert_eq!(lookups(store, &draft(1, 30_618, 19, &[&["d", "x"]])).tombstone, None, "states are not withdrawn");
    assert_eq!(lookups(store, &draft(2, 30_617, 19, &[&["d", "x"]])).tombstone, None);
}

fn tombstone_of_author(store: &mut dyn StoreUnderTest) {
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
        put(store, event);
    }
    hold_one(store, &draft(1, 30_618, 20, &[&["d", "x"]]));
    for up_to in [20, 4] {
        add_tombstone(store, Tombstone::Author(key(1), Timestamp(up_to)));
    }
    assert_eq!(store.served(), ids(&stays));
    assert_eq!(store.count(&[Filter::default()], NOW), stays.len() as u64);
    let by_tag = Filter { tags: vec![(b't', vec!["x".to_owned()].into())], ..Filter::default() };
    assert_eq!(query(store, by_tag), [new.id]);
    assert_eq!(store.held().len(), 1, "held events are dropped one by one");
    assert_eq!(
        lookups(store, &old),
        EventLookups { tombstone: Some(TombstoneKind::Vanished), ..EventLookups::default() }
    );
    assert_eq!(lookups(store, &announcement).current, None);
    assert_eq!(lookups(store, &draft(1, 1, 22, &[])).tombstone, None, "later events are accepted");
    assert_eq!(lookups(store, &wrap), EventLookups::default());
}

fn tombstone_of_prolific_author(store: &mut dyn StoreUnderTest) {
    let total = limits::REMOVAL_SLICE_EVENTS as u64 + 500;
    for at in 0..total {
        store.write(&StoreWrite::Put(draft(1, 1, at, &[&["t", "x"]])));
    }
    let reply = draft(1, 1, total - 1, &[&["t", "x"]]).id.to_string();
    let other = draft(2, 1, 10, &[&["t", "x"], &["e", &reply]]);
    put(store, &other);
    let last = draft(1, 1, total - 1, &[&["t", "x"]]);
    assert_eq!(store.count(&[Filter::default()], NOW), total + 1);
    add_tombstone(store, Tombstone::Author(key(1), Timestamp(total - 2)));
    assert_eq!(store.served(), ids(&[&last, &other]));
    let by_author = Filter { authors: Some(vec![key(1)]), ..Filter::default() };
    let by_tag = Filter { tags: vec![(b't', vec!["x".to_owned()].into())], ..Filter::default() };
    assert_eq!(query(store, by_author.clone()), [last.id]);
    assert_eq!(store.count(std::slice::from_ref(&by_tag), NOW), 2);
    assert_eq!(lookups(store, &draft(1, 1, 3, &[&["t", "x"]])).stored, None);
    add_tombstone(store, Tombstone::Author(key(1), Timestamp(total)));
    assert_eq!((query(store, by_author), query(store, by_tag)), (vec![], vec![other.id]));
    assert_eq!(links(store, &other), (false, false));
    let author = NeededLookups { author: true, ..NeededLookups::default() };
    assert!(!store.lookups(&draft(1, 1, total + 1, &[]), author).author_has_events);
}

fn tombstone_priority(store: &mut dyn StoreUnderTest) {
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
        add_tombstone(store, tombstone);
        assert_eq!(lookups(store, &event).tombstone, Some(gone));
    }
}

fn expiry(store: &mut dyn StoreUnderTest) {
    let soon = draft(1, 30_617, 10, &[&["d", "x"], &["expiration", "50"]]);
    let later = draft(1, 1, 11, &[&["expiration", "60"]]);
    let held = draft(1, 30_618, 12, &[&["d", "x"], &["expiration", "50"]]);
    for event in [&soon, &later] {
        put(store, event);
    }
    hold_one(store, &held);
    for (now, visible, due) in [(49, 2, 0), (50, 1, 1), (59, 1, 1), (60, 0, 2)] {
        let now = Timestamp(now);
        assert_eq!(store.query(&[Filter::default()], NO_LIMIT, now).len(), visible, "{now}");
        assert_eq!(store.count(&[Filter::default()], now), visible as u64, "{now}");
        assert_eq!(store.due(now).len(), due, "{now}");
    }
    assert_eq!(store.due(Timestamp(50)), [EventSummary::new(&soon)]);
    assert_eq!(store.query(&[Filter { limit: Some(1), ..Filter::default() }], NO_LIMIT, Timestamp(59)), [later.id]);
    assert_eq!(lookups(store, &soon).stored, Some(EventStatus::Served), "until it is removed");
    write_all(store, &[StoreWrite::Remove(soon.id)]);
    assert_eq!(store.due(Timestamp(59)), []);
}

fn invalid_expiration(store: &mut dyn StoreUnderTest) {
    for value in ["soon", "", "-1", "1.5", " 1", "99999999999999999999"] {
        put(store, &draft(1, 1, 10, &[&["expiration", value]]));
    }
    put(store, &draft(1, 1, 10, &[&["expiration"]]));
    assert_eq!(store.due(Timestamp(u64::MAX)), []);
    assert_eq!(store.count(&[Filter::default()], Timestamp(u64::MAX)), 7);
}

fn open_batch(store: &mut dyn StoreUnderTest) {
    let issue = draft(1, 1_621, 10, &[&["q", &"c".repeat(64)]]);
    let comment = draft(2, 1_111, 11, &[&["E", &issue.id.to_string()]]);
    store.write(&StoreWrite::Put(issue.clone()));
    assert_eq!(lookups(store, &issue).stored, Some(EventStatus::Served));
    assert_eq!(links(store, &comment), (true, false), "an earlier event of the same batch");
    assert_eq!((query(store, Filter::default()), store.served()), (vec![], vec![]), "invisible before the commit");
    store.write(&StoreWrite::AddTombstone(Tombstone::Event(key(2), comment.id)));
    assert_eq!(lookups(store, &comment).tombstone, Some(TombstoneKind::Deleted));
    store.commit();
    assert_eq!(query(store, Filter::default()), [issue.id]);
    store.write(&StoreWrite::Remove(issue.id));
    assert_eq!(lookups(store, &issue).stored, None);
    assert_eq!(query(store, Filter::default()), [issue.id]);
    store.commit();
    assert_eq!(query(store, Filter::default()), []);
}

fn abort(store: &mut dyn StoreUnderTest) {
    let kept = draft(1, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    put(store, &kept);
    hold_one(store, &held);
    for write in [
        StoreWrite::Release(held.id),
        StoreWrite::Remove(held.id),
        StoreWrite::Put(draft(2, 1, 5, &[])),
        StoreWrite::Hold(draft(2, 1, 6, &[]), Timestamp(1)),
        StoreWrite::AddTombstone(Tombstone::Author(key(1), Timestamp(99))),
        StoreWrite::AddTombstone(Tombstone::Event(key(1), kept.id)),
        StoreWrite::AddTombstone(Tombstone::Coordinate(kept.coordinate().expect("addressable"), Timestamp(99))),
    ] {
        store.write(&write);
    }
    store.abort();
    assert_eq!(
        lookups(store, &kept),
        EventLookups { stored: Some(EventStatus::Served), current: Some(kept.version()), ..EventLookups::default() }
    );
    assert_eq!((store.served(), store.held()), (vec![kept.id], vec![(held.id, Timestamp(9))]));
    assert_eq!(query(store, Filter::default()), [kept.id]);
    write_all(store, &[StoreWrite::Release(held.id)]);
    assert_eq!(store.served(), [held.id]);
}

fn replace_in_batch(store: &mut dyn StoreUnderTest) {
    let [a, b, c] = [10, 11, 12].map(|at| draft(1, 30_617, at, &[&["d", "x"], &["t", "x"]]));
    write_all(store, &[StoreWrite::Put(a), StoreWrite::Put(b.clone()), StoreWrite::Put(c.clone())]);
    assert_eq!(query(store, Filter { tags: vec![(b't', vec!["x".to_owned()].into())], ..Filter::default() }), [c.id]);
    assert_eq!(store.count(&[Filter { ids: Some(vec![b.id]), ..Filter::default() }], NOW), 0);
}

fn references_served(store: &mut dyn StoreUnderTest) {
    let announcement = draft(1, 30_617, 10, &[&["d", "x:y"]]);
    let profile = draft(1, 0, 10, &[]);
    let held = draft(1, 30_617, 10, &[&["d", "held"]]);
    put(store, &announcement);
    put(store, &profile);
    hold_one(store, &held);
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
        assert_eq!(links(store, &draft(2, 1, 11, &[&tag])).0, yes, "{tag:?}");
    }
    let marker = draft(2, 1, 11, &[&["e", &"a".repeat(64), &id], &["e"], &["subject", &id]]);
    assert!(!links(store, &marker).0, "only the first value of a link counts");
}

fn reference_limit(store: &mut dyn StoreUnderTest) {
    let root = draft(1, 1, 10, &[]);
    put(store, &root);
    for (before, yes) in [(limits::MAX_EVENT_REFERENCES - 1, true), (limits::MAX_EVENT_REFERENCES, false)] {
        let mut tags: Vec<Vec<String>> = (0..before).map(|nth| vec!["e".into(), format!("{nth:064x}")]).collect();
        tags.insert(0, vec!["p".into(), "no reference".into()]);
        tags.push(vec!["E".into(), root.id.to_string()]);
        assert_eq!(links(store, &draft_owned(2, 1, 11, tags, String::new())).0, yes, "{before}");
    }
}

fn referenced_by_served(store: &mut dyn StoreUnderTest) {
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
        hold_one(store, &namer);
        assert_eq!(links(store, event), (false, false), "{tag:?} held");
        write_all(store, &[StoreWrite::Release(namer.id)]);
        assert_eq!(links(store, event), (false, yes), "{tag:?}");
        write_all(store, &[StoreWrite::Remove(namer.id)]);
        assert_eq!(links(store, event), (false, false), "{tag:?} removed");
    }
}

fn lookups_not_requested(store: &mut dyn StoreUnderTest) {
    let root = draft(1, 1, 10, &[]);
    let request = draft(1, 5, 11, &[&["e", &root.id.to_string()]]);
    let namer = draft(1, 1, 12, &[&["e", &request.id.to_string()]]);
    put(store, &root);
    put(store, &namer);
    assert_eq!(lookups(store, &request), EventLookups::default());
    let all = store.lookups(&request, NeededLookups { links: true, author: true, targets: true });
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

fn author_has_events(store: &mut dyn StoreUnderTest) {
    let author = NeededLookups { author: true, ..NeededLookups::default() };
    put(store, &draft(1, 1, 10, &[&["p", &key(3).to_string()]]));
    let held = draft(2, 1, 10, &[]);
    hold_one(store, &held);
    for (who, here) in [(1, true), (2, true), (3, false)] {
        assert_eq!(store.lookups(&draft(who, 5, 11, &[]), author).author_has_events, here, "{who}");
    }
    write_all(store, &[StoreWrite::DropHeld(held.id)]);
    assert!(!store.lookups(&draft(2, 5, 11, &[]), author).author_has_events);
}

fn targets(store: &mut dyn StoreUnderTest) {
    let state = draft(1, 30_618, 10, &[&["d", "x"]]);
    let newer = draft(1, 30_618, 30, &[&["d", "new"]]);
    let foreign = draft(2, 30_618, 10, &[&["d", "x"]]);
    let held = draft(1, 30_618, 11, &[&["d", "x"]]);
    for event in [&state, &newer, &foreign] {
        put(store, event);
    }
    hold_one(store, &held);
    let at = |event: &SignedEvent| event.coordinate().expect("addressable").to_string();
    let mut ask = |tags: &[&[&str]]| {
        store.lookups(&draft(1, 5, 20, tags), NeededLookups { targets: true, ..NeededLookups::default() }).targets
    };
    let target = |event: &SignedEvent, status| DeletionTarget { event: EventSummary::new(event), status };
    let served = target(&state, EventStatus::Served);
    assert_eq!(ask(&[&["e", &held.id.to_string()]]), [target(&held, EventStatus::Held)]);
    assert_eq!(ask(&[&["e", &foreign.id.to_string()]]), [target(&foreign, EventStatus::Served)], "of any author");
    assert_eq!(ask(&[&["e", &newer.id.to_string()]]), [target(&newer, EventStatus::Served)], "of any time");
    assert_eq!(ask(&[&["a", &at(&state)]]), std::slice::from_ref(&served), "served at the coordinate, not held");
    assert_eq!(ask(&[&["a", &at(&foreign)]]), [], "coordinate of another author");
    assert_eq!(ask(&[&["a", &at(&newer)]]), [], "later than the request");
    assert_eq!(ask(&[&["e", "zz"], &["e"], &["a", "nothing"], &["E", &state.id.to_string()]]), []);
    assert_eq!(ask(&[&["e", "zz", &state.id.to_string()]]), []);
    let mut both = vec![target(&held, EventStatus::Held), served];
    both.sort_unstable();
    let id = state.id.to_string();
    assert_eq!(ask(&[&["e", &id], &["a", &at(&state)], &["e", &id], &["e", &held.id.to_string()]]), both, "each once");
}

fn conditions(store: &mut dyn StoreUnderTest) {
    let a = draft(1, 1, 10, &[&["t", "x"], &["t", "y"], &["p", "z"]]);
    let b = draft(1, 2, 20, &[&["t", "x"]]);
    let c = draft(2, 1, 30, &[&["t", "y"]]);
    for event in [&a, &b, &c] {
        put(store, event);
    }
    let none = Filter::default();
    let tag = |letter: u8, values: &[&str]| {
        (letter, values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>().into())
    };
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
        assert_eq!(query(store, filter.clone()), ids(&found), "{}", filter.to_json());
        assert_eq!(store.count(std::slice::from_ref(&filter), NOW), found.len() as u64, "{}", filter.to_json());
    }
}

fn exact_tags(store: &mut dyn StoreUnderTest) {
    let values =
        ["x", "X", "x ", "", "\"", "\\", "\\\"", "a\nb", "a\\nb", "\u{1}", "\t\r\u{8}\u{c}", "é🚀", "e\u{301}🚀"];
    let events: Vec<_> =
        values.iter().map(|value| draft(1, 1, 10, &[&["t", value, "second"], &["subject", "s"]])).collect();
    for event in &events {
        put(store, event);
    }
    for (value, event) in values.iter().zip(&events) {
        for (letter, found) in [(b't', vec![event.id]), (b'T', vec![])] {
            let filter = Filter { tags: vec![(letter, vec![(*value).to_owned()].into())], ..Filter::default() };
            assert_eq!(query(store, filter), found, "{value:?}");
        }
    }
    for (letter, value) in [(b't', "second"), (b's', "s"), (b't', "xx")] {
        let filter = Filter { tags: vec![(letter, vec![value.to_owned()].into())], ..Filter::default() };
        assert_eq!(query(store, filter), [], "{value:?}");
    }
}

fn limits_per_filter(store: &mut dyn StoreUnderTest) {
    let events = [10, 20, 30, 40].map(|at| draft(1, 1, at, &[]));
    let other = draft(2, 7, 25, &[]);
    for event in events.iter().chain([&other]) {
        put(store, event);
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
        assert_eq!(store.query(&filters, default_limit, NOW), ids(&found), "{filters:?} {default_limit}");
    }
    assert_eq!(store.count(&[all(Some(1)), kind(7, Some(0))], NOW), 5, "limits do not limit a count");
}

fn long_values(store: &mut dyn StoreUnderTest) {
    let long = "x".repeat(600);
    let [a, b] = ["a", "b"].map(|end| {
        let value = format!("{long}{end}");
        draft(1, 30_617, 10, &[&["d", &value], &["t", &value]])
    });
    for event in [&a, &b] {
        put(store, event);
    }
    for (end, event) in [("a", &a), ("b", &b)] {
        for letter in *b"dt" {
            let filter = Filter { tags: vec![(letter, vec![format!("{long}{end}")].into())], ..Filter::default() };
            assert_eq!(query(store, filter), [event.id]);
        }
        assert_eq!(lookups(store, event).current, Some(event.version()));
    }
}

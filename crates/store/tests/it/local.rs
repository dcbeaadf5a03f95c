//! Queries of sync, compared with a linear search over all events.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use grasp_core::admission::io::{StoreWrite, Tombstone};
use grasp_core::limits;
use grasp_core::nostr::event::{Coordinate, Event, EventId};
use grasp_core::nostr::negentropy::NegentropyItem;
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::sync::io::{Descendant, LocalIds, RootEvent, ServedEvent};
use grasp_core::time::Timestamp;
use grasp_sim::random::Rng;
use grasp_sim::store_contract::{StoreUnderTest, draft};
use grasp_sim::store_model::ModelStore;
use grasp_store::{Store, StoreOptions};
use tempfile::TempDir;

fn open(path: &Path) -> Store {
    Store::open(path, StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens")
}

fn write(store: &Store, writes: &[StoreWrite]) {
    let mut transaction = store.begin().expect("begins");
    for write in writes {
        transaction.write(write).expect("writes");
    }
    transaction.commit().expect("commits");
}

fn item(event: &Event) -> NegentropyItem {
    NegentropyItem { created_at: event.created_at.0, id: event.id.0 }
}

/// Returns the expected result, from a linear search.
fn expected_ids(filter: &Filter, all: &[&Arc<SignedEvent>], most: usize) -> LocalIds {
    let mut items: Vec<NegentropyItem> =
        all.iter().filter(|event| filter.matches(event)).map(|event| item(event)).collect();
    items.sort_unstable_by_key(|item| (std::cmp::Reverse(item.created_at), item.id));
    let beyond = items.get(most).map(|item| item.created_at);
    items.retain(|item| beyond.is_none_or(|second| item.created_at > second));
    items.sort_unstable();
    LocalIds { items, complete_since: beyond.map(|second| Timestamp(second + 1)) }
}

#[test]
fn newest_ids_are_complete_down_to_a_second() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    let repo = format!("30617:{}:x", draft(9, 1, 1, &[]).pubkey);
    let mut rng = Rng::new(7);
    let mut model = ModelStore::new();
    let mut pool: Vec<Arc<SignedEvent>> = Vec::new();
    for nth in 0..600_u64 {
        let kind = *rng.pick(&[1, 7, 1_111, 1_618, 1_621, 30_617, 30_618]).expect("not empty");
        let (author, time) = (1 + rng.below(3) as u8, 100 + rng.next_u64() % 40);
        let (nth, d) = (nth.to_string(), rng.below(30).to_string());
        let a: &[&str] = if rng.one_in(2) { &["a", &repo] } else { &["t", "\"q\"\\"] };
        pool.push(draft(author, kind, time, &[&["d", &d], a, &["n", &nth]]));
    }
    let mut writes = Vec::new();
    for event in &pool {
        if model.event(event.id).is_some() {
            continue;
        }
        let supersedes = model
            .lookups(event, Default::default())
            .current
            .is_none_or(|current| grasp_core::nostr::supersedes(event.version(), current));
        let next = match rng.below(8) {
            0 | 1 => StoreWrite::Hold(event.clone(), Timestamp(9)),
            2 => StoreWrite::Remove(pool[rng.below(pool.len())].id),
            3 => StoreWrite::Release(pool[rng.below(pool.len())].id),
            _ if supersedes => StoreWrite::Put(event.clone()),
            _ => continue,
        };
        model.write(&next);
        writes.push(next);
    }
    // A removal of a vanished author's events may be in progress: they count as removed.
    let vanish = StoreWrite::AddTombstone(Tombstone::Author(PublicKey([3; 32]), Timestamp(110)));
    model.write(&vanish);
    writes.push(vanish);
    model.commit();
    write(&store, &writes);

    let all: Vec<&Arc<SignedEvent>> = model.served_events().chain(model.held_events()).collect();
    assert!(all.len() > 200, "only {}", all.len());
    let authors = vec![PublicKey([1; 32]), PublicKey([3; 32])];
    let filters = [
        Filter::default(),
        Filter { kinds: Some(vec![30_617, 30_618]), ..Filter::default() },
        Filter { kinds: Some(vec![30_617]), limit: Some(1), ..Filter::default() },
        Filter { tags: vec![(b'a', vec![repo.clone()].into())], ..Filter::default() },
        Filter { tags: vec![(b't', vec!["\"q\"\\".to_owned()].into())], ..Filter::default() },
        Filter { authors: Some(authors.clone()), since: Some(Timestamp(120)), ..Filter::default() },
        Filter {
            authors: Some(authors),
            kinds: Some(vec![1, 1_111]),
            until: Some(Timestamp(120)),
            ..Filter::default()
        },
        Filter { ids: Some(all.iter().step_by(3).map(|event| event.id).collect()), ..Filter::default() },
        Filter { kinds: Some(Vec::new()), ..Filter::default() },
        Filter { kinds: Some(vec![9]), ..Filter::default() },
    ];
    for filter in &filters {
        let unlimited = Filter { limit: None, ..filter.clone() };
        for most in [0, 1, 2, 5, 17, 60, 200, 10_000] {
            let found = store.newest_ids(filter, most).expect("reads");
            assert_eq!(found, expected_ids(&unlimited, &all, most), "{filter:?}, at most {most}");
        }
    }

    let asked: Vec<EventId> = pool.iter().map(|event| event.id).collect();
    let here: BTreeSet<EventId> = all.iter().map(|event| event.id).collect();
    let missing: Vec<EventId> = asked.iter().copied().filter(|id| !here.contains(id)).collect();
    assert_eq!(store.missing_ids(&asked).expect("reads"), missing);
    assert_eq!(store.missing_ids(&[]).expect("reads"), []);

    let roots: Vec<RootEvent> = {
        let is_root = |event: &&Arc<SignedEvent>| {
            matches!(event.kind, kinds::PATCH | kinds::PULL_REQUEST | kinds::ISSUE)
                && event.values("a").any(|value| value == repo)
        };
        let served = model.served_events().filter(is_root);
        served.map(|event| RootEvent { seq: model.seq_of(event.id).expect("served"), id: event.id }).collect()
    };
    assert!(roots.len() > 10);
    let id = RepoId { owner: PublicKey([9; 32]), identifier: Identifier::new("x").expect("valid") };
    assert_eq!(store.root_events(&id).expect("reads"), roots);
    let other = RepoId { owner: PublicKey([9; 32]), identifier: Identifier::new("X").expect("valid") };
    assert_eq!(store.root_events(&other).expect("reads"), []);
}

#[test]
fn queries_span_several_slices() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    let many = 2 * limits::SCAN_SLICE_ROWS as u64 + 100;
    let repo = format!("30617:{}:x", draft(9, 1, 1, &[]).pubkey);
    let served: Vec<_> = (0..many).map(|time| draft(1, kinds::ISSUE, time, &[&["a", &repo]])).collect();
    let held: Vec<_> =
        (0..many).map(|time| draft(2, kinds::PULL_REQUEST, time, &[&["a", &repo], &["c", "ab"]])).collect();
    let puts = served.iter().cloned().map(StoreWrite::Put);
    let holds = held.iter().cloned().map(|event| StoreWrite::Hold(event, Timestamp(9)));
    write(&store, &puts.chain(holds).collect::<Vec<_>>());
    let all: Vec<&Arc<SignedEvent>> = served.iter().chain(&held).collect();
    for most in [10, 3_001, usize::MAX] {
        let found = store.newest_ids(&Filter::default(), most).expect("reads");
        assert_eq!(found, expected_ids(&Filter::default(), &all, most));
    }
    let absent: Vec<_> = (0..many).map(|time| draft(3, 1, time, &[]).id).collect();
    let asked: Vec<EventId> = all.iter().map(|event| event.id).chain(absent.iter().copied()).collect();
    assert_eq!(store.missing_ids(&asked).expect("reads"), absent);
    let id = RepoId { owner: PublicKey([9; 32]), identifier: Identifier::new("x").expect("valid") };
    let roots = store.root_events(&id).expect("reads");
    assert!(
        roots.iter().map(|root| root.id).eq(served.iter().map(|event| event.id)),
        "held events are not root events"
    );
}

#[test]
fn served_events_are_listed_in_order_with_references() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    assert_eq!(store.served_since(0, 10).expect("reads"), (vec![], 0));
    let (id, other) = ("ab".repeat(32), "cd".repeat(32));
    let at = format!("30617:{}:a \"b\":c", PublicKey([5; 32]));
    let announcement =
        draft(1, kinds::ANNOUNCEMENT, 10, &[&["d", "say \"x\""], &["a", "nonsense"], &["e", "nonsense"]]);
    let comment =
        draft(2, 1_111, 11, &[&["E", &id], &["e", &id], &["q", &other], &["q", &at], &["A", &at], &["p", &id]]);
    let list = draft(2, kinds::GRASP_LIST, 12, &[&["d", "no identifier"]]);
    let held = draft(3, kinds::PULL_REQUEST, 13, &[&["a", &at]]);
    write(&store, &[StoreWrite::Put(announcement.clone()), StoreWrite::Hold(held.clone(), Timestamp(9))]);
    write(&store, &[StoreWrite::Put(comment.clone()), StoreWrite::Put(list.clone())]);

    let coordinate = Coordinate::parse(&at).expect("valid coordinate");
    let arrived = |seq: u64, event: &Event, ids: &[&str], coordinates: &[&Coordinate]| ServedEvent {
        seq,
        id: event.id,
        kind: event.kind,
        author: event.pubkey,
        coordinate: event.coordinate(),
        ids: ids.iter().map(|id| EventId::from_hex(id).expect("valid id")).collect(),
        coordinates: coordinates.iter().map(|at| (*at).clone()).collect(),
    };
    let all = [
        arrived(1, &announcement, &[], &[]),
        arrived(2, &comment, &[&id, &other], &[&coordinate]),
        arrived(3, &list, &[], &[]),
    ];
    assert_eq!(store.served_since(0, 10).expect("reads"), (all.to_vec(), 3));
    assert_eq!(store.served_since(0, 2).expect("reads"), (all[..2].to_vec(), 2));
    assert_eq!(store.served_since(2, 1).expect("reads"), (all[2..].to_vec(), 3));
    assert_eq!(store.served_since(3, 1).expect("reads"), (vec![], 3));
    assert_eq!(store.served_since(1, 0).expect("reads"), (vec![], 1));

    // A released event is served at the time of its release. Removed events are skipped.
    write(&store, &[StoreWrite::Release(held.id), StoreWrite::Remove(list.id)]);
    let released = arrived(4, &held, &[], &[&coordinate]);
    assert_eq!(store.served_since(2, 10).expect("reads"), (vec![released], 4));
    write(&store, &[StoreWrite::Remove(held.id)]);
    assert_eq!(store.served_since(2, 10).expect("reads"), (vec![], 4));
}

#[test]
fn descendants_are_collected_from_all_tags() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    let repo = format!("30617:{}:x", draft(9, 1, 1, &[]).pubkey);
    let issue = draft(1, kinds::ISSUE, 10, &[&["a", &repo]]);
    let comment = draft(2, 1_111, 11, &[&["E", &issue.id.to_string()]]);
    let on_repo = draft(3, 1_111, 12, &[&["A", &repo]]);
    let quote = draft(2, 1, 13, &[&["q", &comment.id.to_string()]]);
    let article = draft(4, 30_023, 14, &[&["d", "say \"x\""], &["e", &quote.id.to_string()]]);
    let address = article.coordinate().expect("addressable");
    let on_article = draft(5, 1_111, 15, &[&["a", &address.to_string()]]);
    let deletion = draft(2, kinds::DELETION, 16, &[&["e", &quote.id.to_string()]]);
    let unrelated = draft(6, 1_111, 17, &[&["e", &"ab".repeat(32)]]);
    let held = draft(7, 1_111, 18, &[&["e", &comment.id.to_string()]]);
    let events = [&issue, &comment, &on_repo, &quote, &article, &on_article, &deletion, &unrelated];
    write(&store, &events.map(|event| StoreWrite::Put(event.clone())));
    write(&store, &[StoreWrite::Hold(held, Timestamp(9))]);

    let id = RepoId { owner: PublicKey([9; 32]), identifier: Identifier::new("x").expect("valid") };
    let roots = store.root_events(&id).expect("reads");
    let found = store.descendants(&id, &roots, 500).expect("reads");
    let followed =
        |seq, event: &SignedEvent, coordinate, ancestor| Descendant { seq, id: event.id, coordinate, ancestor };
    let expected = [
        followed(2, &comment, None, 2),
        followed(3, &on_repo, None, 3),
        followed(4, &quote, None, 2),
        followed(5, &article, Some(address), 2),
        followed(6, &on_article, None, 2),
    ];
    assert_eq!(found.events, expected);
    let authors: Vec<_> = found.authors.iter().map(|author| (author.seq, author.key, author.is_root)).collect();
    let author = |seq, number, is_root| (seq, PublicKey([number; 32]), is_root);
    let expected =
        [author(1, 1, true), author(2, 2, false), author(3, 3, false), author(5, 4, false), author(6, 5, false)];
    assert_eq!(authors, expected);
}

#[test]
fn sequence_numbers_are_never_reused() {
    let folder = TempDir::new().expect("temporary folder");
    let events: Vec<_> = (0..4).map(|time| draft(1, 1, time, &[])).collect();
    let store = open(folder.path());
    write(&store, &[StoreWrite::Put(events[0].clone()), StoreWrite::Put(events[1].clone())]);
    write(&store, &[StoreWrite::Remove(events[1].id)]);
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.last_seq(), 2, "although its event was removed");
    // An event that is put and removed in the same transaction uses up a sequence number too.
    write(&store, &[StoreWrite::Put(events[2].clone()), StoreWrite::Remove(events[2].id)]);
    let seq = store.last_seq();
    drop(store);
    let store = open(folder.path());
    assert_eq!((seq, store.last_seq()), (3, 3));
    write(&store, &[StoreWrite::Put(events[3].clone())]);
    let transaction = store.begin().expect("begins");
    assert_eq!(transaction.seq_of(events[3].id).expect("reads"), Some(4));
    assert_eq!(transaction.seq_of(events[2].id).expect("reads"), None);
    drop(transaction);
    write(&store, &events.iter().map(|event| StoreWrite::Remove(event.id)).collect::<Vec<_>>());
    drop(store);
    assert_eq!(open(folder.path()).last_seq(), 4, "also if no event is left");
}

#[test]
fn feed_with_many_references_is_split() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    let at = |nth: u64, tag: usize| format!("30617:{}:{}-{nth}-{tag}", PublicKey([5; 32]), "x".repeat(500));
    let event = |nth: u64| {
        let tags: Vec<Vec<String>> = (0..400).map(|tag| vec!["a".to_owned(), at(nth, tag)]).collect();
        let tags: Vec<Vec<&str>> = tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
        draft(1, 1, nth, &tags.iter().map(Vec::as_slice).collect::<Vec<_>>())
    };
    let events: Vec<_> = (0..20).map(event).collect();
    write(&store, &events.iter().cloned().map(StoreWrite::Put).collect::<Vec<_>>());
    let (mut seq, mut found, mut parts) = (0, Vec::new(), 0);
    loop {
        let (arrived, reached) = store.served_since(seq, 1_000).expect("reads");
        if arrived.is_empty() {
            break;
        }
        assert_eq!(arrived.last().map(|last| last.seq), Some(reached));
        found.extend(arrived.iter().map(|event| event.id));
        (seq, parts) = (reached, parts + 1);
    }
    assert!(parts > 2, "{parts}");
    assert_eq!(found, events.iter().map(|event| event.id).collect::<Vec<_>>());
}

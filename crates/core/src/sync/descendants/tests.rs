//! Unit tests of descendants.

use super::*;
use crate::repo::Identifier;

fn id(number: u8) -> EventId {
    EventId([number; 32])
}

fn repo() -> RepoId {
    RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("thing").expect("valid identifier") }
}

fn repo_coordinate() -> Coordinate {
    Coordinate { kind: kinds::ANNOUNCEMENT, pubkey: PublicKey([1; 32]), d: "thing".to_owned() }
}

/// Returns an event that references others by id. Its number is its arrival, its author and the time of its creation.
fn event(number: u8, kind: u16, ids: &[u8]) -> ServedEvent {
    ServedEvent {
        seq: number.into(),
        id: id(number),
        kind,
        author: PublicKey([number; 32]),
        coordinate: None,
        ids: ids.iter().map(|number| id(*number)).collect(),
        coordinates: Vec::new(),
    }
}

fn article(number: u8, ids: &[u8]) -> ServedEvent {
    let coordinate = Coordinate { kind: 30_023, pubkey: PublicKey([number; 32]), d: "summary".to_owned() };
    ServedEvent { coordinate: Some(coordinate), ..event(number, 30_023, ids) }
}

fn matches(filter: &Filter, event: &ServedEvent) -> bool {
    let has_id = filter.ids.as_ref().is_none_or(|ids| ids.contains(&event.id));
    let has_tag = |(_, values): &(u8, Arc<Vec<String>>)| {
        event.ids.iter().any(|id| values.contains(&id.to_string()))
            || event.coordinates.iter().any(|coordinate| values.contains(&coordinate.to_string()))
    };
    has_id && filter.tags.iter().all(has_tag)
}

/// Collects the descendants of event 1. Their creation is in the reverse order of their arrival if `is_reversed`.
fn collect_from(events: &[ServedEvent], limit: usize, is_reversed: bool) -> Vec<(Seq, Seq)> {
    let roots = [RootEvent { seq: 1, id: id(1) }];
    let time = |event: &ServedEvent| Timestamp(if is_reversed { 1_000 - event.seq } else { event.seq });
    let matching = |filter: &Filter| {
        let found = events.iter().filter(|event| matches(filter, event));
        Ok::<_, std::convert::Infallible>(found.map(|event| (time(event), event.clone())).collect())
    };
    let found = collect(&repo(), &roots, limit, matching).unwrap_or_default();
    found.events.iter().map(|event| (event.seq, event.ancestor)).collect()
}

/// Passes the events one by one, as they are served.
fn follow(events: &[ServedEvent], limit: usize) -> Vec<(Seq, Seq)> {
    let (mut index, mut descendants) = (DescendantIndex::default(), RepoDescendants::default());
    let key = RepoKey::from_number(5);
    index.add_root(key, id(1));
    for served in events.iter().filter(|served| served.seq > 1) {
        let is_direct = served.coordinates.contains(&repo_coordinate());
        if is_direct || index.referenced_repos(served).contains(&key) {
            index.add_served(key, &mut descendants, served, is_direct, limit);
        }
    }
    descendants.events.iter().map(|event| (event.seq, index.ancestors[&(id_prefix(event.id), key)])).collect()
}

fn thread() -> Vec<ServedEvent> {
    let on_article =
        ServedEvent { coordinates: article(8, &[]).coordinate.into_iter().collect(), ..event(9, 1111, &[]) };
    let on_repo = ServedEvent { coordinates: vec![repo_coordinate()], ..event(10, 1111, &[]) };
    vec![
        event(1, kinds::ISSUE, &[]),
        event(2, 1111, &[1]),
        event(3, 7, &[2]),
        event(4, 1111, &[1]),
        event(5, 1111, &[2]),
        event(6, 7, &[5]),
        event(7, kinds::DELETION, &[5]),
        article(8, &[5]),
        on_article,
        on_repo,
        event(11, 7, &[10]),
        event(12, 1, &[99]),
    ]
}

#[test]
fn descendants_are_found_in_all_generations() {
    let expected = [(2, 2), (3, 2), (4, 4), (5, 2), (6, 2), (8, 2), (9, 2), (10, 10), (11, 10)];
    assert_eq!(collect_from(&thread(), 500, false), expected);
    assert_eq!(follow(&thread(), 500), expected, "the same as from the store");
}

#[test]
fn number_of_descendants_is_limited_breadth_first_by_time() {
    // The limit of the first comment (2) is reached with 3 and 5; its reply (5) has no followed descendants then.
    let limited = [(2, 2), (3, 2), (4, 4), (5, 2), (10, 10), (11, 10)];
    assert_eq!(collect_from(&thread(), 2, false), limited);
    assert_eq!(follow(&thread(), 2), limited);
    // Of two events of a generation the older one comes first, whichever arrived first.
    assert_eq!(collect_from(&thread(), 1, true), [(2, 2), (4, 4), (5, 2), (10, 10), (11, 10)]);
    assert_eq!(collect_from(&thread(), 0, false), [(2, 2), (4, 4), (10, 10)]);
}

#[test]
fn authors_are_known_by_their_first_event() {
    let mut descendants = RepoDescendants::default();
    let mut index = DescendantIndex::default();
    let key = RepoKey::from_number(5);
    index.add_root(key, id(1));
    descendants.add_root_author(&event(1, kinds::ISSUE, &[]));
    for served in [event(2, 1111, &[1]), ServedEvent { author: PublicKey([2; 32]), ..event(3, 1111, &[1]) }] {
        index.add_served(key, &mut descendants, &served, false, 500);
    }
    assert_eq!(descendants.authors_between(0, 9, true).collect::<Vec<_>>(), [PublicKey([1; 32])]);
    assert_eq!(descendants.authors_between(0, 9, false).collect::<Vec<_>>(), [PublicKey([2; 32])]);
    assert_eq!(descendants.authors_between(2, 9, false).count(), 0);
}

#[test]
fn removed_repository_leaves_nothing_behind() {
    let (mut index, mut descendants) = (DescendantIndex::default(), RepoDescendants::default());
    let key = RepoKey::from_number(5);
    index.add_root(key, id(1));
    for served in thread() {
        index.add_served(key, &mut descendants, &served, false, 500);
    }
    index.remove_repo(key, &[RootEvent { seq: 1, id: id(1) }], &descendants);
    assert!(index.roots.is_empty() && index.ancestors.is_empty());
    assert!(index.ancestors_by_coordinate.is_empty() && index.counts.is_empty());
}

#[test]
fn one_repository_has_a_share_of_the_followed_descendants() {
    let mut index = DescendantIndex::default();
    let (flooded, other) = (RepoKey::from_number(5), RepoKey::from_number(6));
    index.add_root(flooded, id(1));
    index.add_root(other, id(2));
    let comment = |seq: Seq, root: u8| {
        let mut number = [0; 32];
        number[..8].copy_from_slice(&seq.to_be_bytes());
        ServedEvent { seq, id: EventId(number), ..event(1, 1111, &[root]) }
    };
    let mut descendants = RepoDescendants::default();
    let max = limits::MAX_FOLLOWED_DESCENDANTS_PER_REPOSITORY as Seq;
    for seq in 10..10 + max {
        assert!(index.add_served(flooded, &mut descendants, &comment(seq, 1), false, 500));
    }
    assert!(!index.add_served(flooded, &mut descendants, &comment(10 + max, 1), false, 500));
    assert!(index.add_served(other, &mut RepoDescendants::default(), &comment(11 + max, 2), false, 500));
}

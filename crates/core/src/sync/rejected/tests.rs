use super::*;
use crate::nostr::event::{Coordinate, EventParseError};
use crate::nostr::negentropy::{NegentropySet, respond};
use crate::nostr::signed_event::VerifyError;

const DAY: u64 = 24 * 60 * 60;
const START: u64 = 1_000_000;

fn not_listed() -> Rejection {
    Rejection::NotListed { clone: String::new(), relay: String::new() }
}

// Expiry

#[test]
fn each_rejection_class_has_its_expiry() {
    let config = RejectedEventsConfig { cold_secs: 3 * DAY, ..RejectedEventsConfig::default() };
    let week = Some(START + 7 * DAY);
    let three_days = Some(START + 3 * DAY);
    for (rejection, class, until) in [
        (Rejection::Unrelated, RejectionClass::Unrelated, three_days),
        (Rejection::NoAnnouncement, RejectionClass::Unauthorised, three_days),
        (Rejection::NotMaintainer, RejectionClass::Unauthorised, three_days),
        (not_listed(), RejectionClass::Unauthorised, three_days),
        (Rejection::Delisted, RejectionClass::Unauthorised, three_days),
        (Rejection::NotWhitelisted, RejectionClass::Unauthorised, three_days),
        (Rejection::NotArchived, RejectionClass::Unauthorised, three_days),
        (Rejection::RepositoryBanned, RejectionClass::Policy, None),
        (Rejection::EventBanned, RejectionClass::Policy, None),
        (Rejection::TooLarge { bytes: 2, limit: 1 }, RejectionClass::Policy, None),
        (Rejection::OtherVanishRelay, RejectionClass::Policy, None),
        (Rejection::Expired, RejectionClass::Removed, week),
        (Rejection::Deleted, RejectionClass::Removed, week),
        (Rejection::Vanished, RejectionClass::Removed, week),
        (Rejection::Withdrawn, RejectionClass::Removed, week),
        (Rejection::Protected, RejectionClass::Invalid, week),
        (Rejection::AuthEvent, RejectionClass::Invalid, week),
        (Rejection::TooManyTags(1), RejectionClass::Invalid, week),
        (Rejection::InvalidIdentifier, RejectionClass::Invalid, week),
        (Rejection::NoCommit, RejectionClass::Invalid, week),
        (Rejection::ForeignDeletionTarget, RejectionClass::Invalid, week),
        (Rejection::DeletionTargetCount(0), RejectionClass::Invalid, week),
        (Rejection::NoVanishRelay, RejectionClass::Invalid, week),
    ] {
        let mut index = RejectedEventsIndex::new(config);
        let row = index
            .reject(tagged_comment(1, &[]), &rejection, &relay(1), RejectedLayer::Related, at(START))
            .expect("recorded");
        assert_eq!((row.class, row.expires_at.0), (class, until.unwrap_or(u64::MAX)), "{rejection:?}");
        let resolvable = matches!(class, RejectionClass::Unrelated | RejectionClass::Unauthorised);
        assert_eq!(index.hot_len(), usize::from(resolvable), "only events with a resolvable rejection are cached");

        let until = until.unwrap_or(START + 100 * DAY);
        assert_eq!(expire_all(&mut index, until - 1), vec![], "{rejection:?}");
        assert!(index.contains(&id(1)));
        let gone = expire_all(&mut index, until);
        assert_eq!(gone.is_empty(), class == RejectionClass::Policy, "{rejection:?}");
        if class == RejectionClass::Policy {
            index.clear_policy_rejections();
            assert_eq!(index.next_expiry(), Some(Timestamp(0)));
            assert_eq!(expire_all(&mut index, until), vec![id(1)]);
        }
        assert!(index.rows.is_clean() && index.next_expiry().is_none(), "{rejection:?}");
    }
}

#[test]
fn future_event_is_rejected_until_its_time() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let mut event = comment(1);
    event.created_at = Timestamp(START + 5_000);
    let row = reject(&mut index, event.clone(), &Rejection::InFuture, START).expect("recorded");
    assert_eq!(row.expires_at.0, START + 5_000 - limits::MAX_FUTURE_SECS);
    assert_eq!(index.next_expiry(), Some(row.expires_at));
    assert_eq!(expire_all(&mut index, row.expires_at.0), vec![id(1)]);
    assert_eq!(reject(&mut index, event, &Rejection::InFuture, START + 5_000), None, "its time has come already");
    let mut event = comment(2);
    event.created_at = Timestamp(u64::MAX);
    reject(&mut index, event, &Rejection::InFuture, START).expect("recorded");
    assert_eq!(expire_all(&mut index, START + 1_000 * DAY), vec![]);
}

#[test]
fn temporary_and_forged_rejections_are_not_recorded() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    for rejection in [
        Rejection::TooManyHeld,
        Rejection::TooManyHeldFromNetwork,
        Rejection::PurgatoryFull,
        Rejection::TooManyEarlyRequests,
        Rejection::RateLimited,
        Rejection::DiskFull,
        Rejection::StoreFailed,
        Rejection::Forged(VerifyError::BadSignature),
        Rejection::Forged(VerifyError::WrongId),
        Rejection::Malformed(EventParseError::Hex("id")),
    ] {
        assert_eq!(reject(&mut index, comment(1), &rejection, START), None);
        assert!(index.is_empty() && index.hot_len() == 0, "{rejection:?}");
        assert_eq!(index.record_offer(&id(1), &relay(1)), OfferResult::Unknown);
        assert_eq!(index.negentropy_items(&relay(1), &Filter::default()), vec![]);
    }
    // An existing row is not changed by a forged copy from another relay.
    let row = reject(&mut index, comment(1), &Rejection::Unrelated, START).expect("recorded");
    index.reject(
        tagged_comment(1, &[]),
        &Rejection::Forged(VerifyError::BadSignature),
        &relay(2),
        RejectedLayer::Related,
        at(START + 5),
    );
    assert_eq!(index.rows.find(&id(1)).and_then(|number| index.rows.to_record(number)), Some(row));
}

// Waking

#[test]
fn referenced_event_wakes_the_rejected_event() {
    let coordinate = repo(7, "tool");
    let quoted = hex(&id(52));
    for (tag, arrived) in [
        (["e", &hex(&id(50))], arrived(50, 1_621)),
        (["E", &hex(&id(51))], arrived(51, 1_621)),
        (["q", &quoted], arrived(52, 1)),
        (["a", &coordinate.to_string()], ServedEvent { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
        (["A", &coordinate.to_string()], ServedEvent { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
        (["q", &coordinate.to_string()], ServedEvent { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
    ] {
        let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
        let event = tagged_comment(1, &[&tag]);
        index.reject(event.clone(), &Rejection::Unrelated, &relay(1), RejectedLayer::Related, at(START));
        reject(&mut index, comment(2), &Rejection::Unrelated, START);
        let woken = index.wake_on_event(&arrived);
        assert_eq!(woken.cached, vec![(event.clone(), vec![relay(1)])], "{tag:?}");
        assert_eq!((woken.to_fetch, woken.removed), (vec![], vec![id(1)]));
        assert!(!index.contains(&id(1)) && index.contains(&id(2)));
        assert_eq!(index.hot_len(), 1);

        // The same after the event has left the hot cache: only the row remains.
        index.reject(event, &Rejection::Unrelated, &relay(1), RejectedLayer::Related, at(START));
        assert!(matches!(index.record_offer(&id(1), &relay(2)), OfferResult::Rejected(Some(_))));
        assert_eq!(expire_all(&mut index, START + limits::REJECTED_HOT_CACHE_SECS), vec![]);
        let woken = index.wake_on_event(&arrived);
        assert_eq!((woken.cached, woken.removed), (vec![], vec![id(1)]));
        assert_eq!(woken.to_fetch, vec![(id(1), vec![relay(1), relay(2)])]);
    }
}

#[test]
fn referencing_event_wakes_the_rejected_event() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    reject(&mut index, comment(1), &Rejection::Unrelated, START);
    let woken = index.wake_on_event(&ServedEvent { ids: vec![id(9), id(1)], ..arrived(50, 1_111) });
    assert_eq!(woken.removed, vec![id(1)]);

    // A reference to a coordinate wakes only its newest version.
    for order in [[2, 3, 4], [4, 3, 2], [3, 4, 2]] {
        for number in order {
            let mut event = comment(number);
            event.kind = 30_023;
            event.created_at = Timestamp([0, 0, 70, 90, 80][number as usize]);
            event.tags = vec![vec!["d".into(), "page".into()]];
            reject(&mut index, event, &Rejection::Unrelated, START);
        }
        let page = Coordinate { kind: 30_023, pubkey: PublicKey([1; 32]), d: "page".into() };
        let woken = index.wake_on_event(&ServedEvent { coordinates: vec![page.clone()], ..arrived(51, 1_111) });
        assert_eq!(woken.removed, vec![id(3)]);
        // An event that references the same coordinate is not woken by another reference.
        index.reject(
            tagged_comment(5, &[&["a", &page.to_string()]]),
            &Rejection::Unrelated,
            &relay(1),
            RejectedLayer::Related,
            at(START),
        );
        let woken = index.wake_on_event(&ServedEvent { coordinates: vec![page.clone()], ..arrived(52, 1_111) });
        assert_eq!(woken, WokenEvents::default());
        let woken = index.wake_on_event(&ServedEvent { coordinate: Some(page), ..arrived(53, 30_023) });
        assert_eq!(woken.removed, vec![id(5)]);
        for number in [2, 4] {
            assert!(index.contains(&id(number)));
            index.wake_on_event(&arrived(number, 30_023));
        }
        assert!(index.rows.is_clean());
    }
}

#[test]
fn announcement_wakes_states_and_announcements_of_its_identifier() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let tool = Identifier::new("tool").expect("a name");
    let fill = |index: &mut RejectedEventsIndex| {
        reject(index, with_identifier(1, 30_618, "tool"), &Rejection::NoAnnouncement, START);
        reject(index, with_identifier(2, 30_617, "tool"), &not_listed(), START);
        reject(index, with_identifier(3, 30_618, "tool"), &Rejection::NotMaintainer, START);
        reject(index, with_identifier(4, 30_618, "other"), &Rejection::NoAnnouncement, START);
        reject(index, with_identifier(5, 30_617, "tool"), &Rejection::Deleted, START);
    };
    fill(&mut index);
    let woken = index.wake_on_event(&ServedEvent { coordinate: Some(repo(9, "tool")), ..arrived(50, 30_617) });
    assert_eq!(woken.removed, vec![id(1), id(2), id(3)]);
    assert_eq!(index.len(), 2);
    fill(&mut index);
    let woken = index.wake_on_event(&ServedEvent { coordinate: Some(state(9, "tool")), ..arrived(51, 30_618) });
    assert_eq!(woken, WokenEvents::default(), "a state does not change the maintainer set");
    assert_eq!(
        index.wake_on_identifier(&tool).removed,
        vec![id(1), id(2), id(3)],
        "a held announcement does change it"
    );
}

#[test]
fn deletion_wakes_when_its_author_becomes_known() {
    for name in [false, true] {
        let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
        let mut deletion = comment(1);
        deletion.kind = kinds::DELETION;
        reject(&mut index, deletion, &Rejection::Unrelated, START);
        let unrelated = ServedEvent { author: PublicKey([2; 32]), ..arrived(50, 1_621) };
        assert_eq!(index.wake_on_event(&unrelated), WokenEvents::default());
        let woken =
            if name { index.wake_on_author(&PublicKey([1; 32])) } else { index.wake_on_event(&arrived(51, 1_621)) };
        assert_eq!(woken.removed, vec![id(1)]);
    }
}

#[test]
fn unresolvable_rejections_are_not_woken() {
    let parent = hex(&id(50));
    let tags: &[&[&str]] = &[&["e", &parent]];
    for rejection in
        [Rejection::Protected, Rejection::Deleted, Rejection::Expired, Rejection::TooLarge { bytes: 2, limit: 1 }]
    {
        let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
        index.reject(tagged_comment(1, tags), &rejection, &relay(1), RejectedLayer::Related, at(START));
        assert_eq!(index.wake_on_event(&arrived(50, 1_621)), WokenEvents::default());
        assert_eq!(
            index.wake_on_event(&ServedEvent { ids: vec![id(1)], ..arrived(51, 1_621) }),
            WokenEvents::default()
        );
        assert!(index.contains(&id(1)) && !index.has_pending_wakes());
    }
}

#[test]
fn served_event_is_removed_from_the_index() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    reject(&mut index, comment(1), &Rejection::Protected, START);
    assert_eq!(index.wake_on_event(&arrived(1, 1)), WokenEvents { removed: vec![id(1)], ..WokenEvents::default() });
    assert!(index.rows.is_clean());
}

/// A thread of comments is rejected in random order, and always the same rows are woken.
#[test]
fn order_of_rejections_does_not_matter() {
    let mut rng = Rng(7);
    for _ in 0..200 {
        let count = 2 + rng.below(20) as u64;
        let mut events: Vec<Arc<Event>> = Vec::new();
        for number in 1..=count {
            let parents: Vec<String> = (0..rng.below(4)).map(|_| hex(&id(rng.below(25) as u64))).collect();
            let tags: Vec<[&str; 2]> = parents.iter().map(|parent| ["e", parent.as_str()]).collect();
            events.push(tagged_comment(number, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>()));
        }
        let arrivals: Vec<ServedEvent> = (0..10)
            .map(|_| ServedEvent {
                ids: (0..rng.below(3)).map(|_| id(rng.below(25) as u64)).collect(),
                ..arrived(rng.below(25) as u64, 1_621)
            })
            .collect();
        let mut seen = None;
        for _ in 0..4 {
            for at in (1..events.len()).rev() {
                events.swap(at, rng.below(at + 1));
            }
            let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
            for event in &events {
                index.reject(event.clone(), &Rejection::Unrelated, &relay(1), RejectedLayer::Related, at(START));
            }
            let woken: Vec<WokenEvents> = arrivals.iter().map(|arrived| index.wake_on_event(arrived)).collect();
            let items = index.negentropy_items(&relay(1), &Filter::default());
            assert_eq!(*seen.get_or_insert((woken.clone(), items.clone())), (woken, items));
        }
    }
}

#[test]
fn dependency_with_many_dependents_wakes_in_slices() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let parent = hex(&id(5_000));
    for number in 0..1_000 {
        let tags: &[&[&str]] = &[&["e", &parent]];
        index.reject(tagged_comment(number, tags), &Rejection::Unrelated, &relay(1), RejectedLayer::Related, at(START));
    }
    let mut woken = index.wake_on_event(&ServedEvent { ids: vec![id(3)], ..arrived(5_000, 1_621) }).removed;
    assert!(woken.len() <= limits::REJECTED_RETRY_SLICE_EVENTS && woken.contains(&id(3)));
    // Another event does not discard the remaining wakes.
    woken.extend(index.wake_on_event(&arrived(6_000, 1_621)).removed);
    while index.has_pending_wakes() {
        let more = index.wake_next();
        assert!(more.removed.len() <= limits::REJECTED_RETRY_SLICE_EVENTS);
        woken.extend(more.removed);
    }
    woken.sort_unstable();
    assert_eq!(woken, (0..1_000).map(id).collect::<Vec<_>>());
    assert!(index.rows.is_clean() && index.hot_len() == 0);
}

// Bounds

#[test]
fn oldest_rows_are_evicted_first() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig {
        cold_rows: 3,
        hot_events: 2,
        ..RejectedEventsConfig::default()
    });
    for number in 1..=5 {
        reject(&mut index, comment(number), &Rejection::Unrelated, START + number);
    }
    assert_eq!((index.len(), index.hot_len()), (3, 2));
    assert_eq!((1..=5).map(|number| index.contains(&id(number))).collect::<Vec<_>>(), [false, false, true, true, true]);
    // An evicted event that is rejected again before its record was deleted is not deleted.
    reject(&mut index, comment(1), &Rejection::Unrelated, START + 9);
    assert_eq!(expire_all(&mut index, START + 10), vec![id(2), id(3)]);

    // Rows without expiry are evicted too.
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig { cold_rows: 2, ..RejectedEventsConfig::default() });
    reject(&mut index, comment(1), &Rejection::OtherVanishRelay, START);
    reject(&mut index, comment(2), &Rejection::Unrelated, START + 1);
    reject(&mut index, comment(3), &Rejection::Unrelated, START + 2);
    assert!(!index.contains(&id(1)));
    let mut nothing =
        RejectedEventsIndex::new(RejectedEventsConfig { cold_rows: 0, ..RejectedEventsConfig::default() });
    assert_eq!(reject(&mut nothing, comment(1), &Rejection::Unrelated, START), None);
}

#[test]
fn hot_cache_is_bounded_by_bytes() {
    let mut index =
        RejectedEventsIndex::new(RejectedEventsConfig { hot_bytes: 10_000, ..RejectedEventsConfig::default() });
    for number in 1..=5 {
        let mut event = comment(number);
        event.content = "x".repeat(4_000);
        reject(&mut index, event, &Rejection::Unrelated, START);
    }
    assert_eq!((index.len(), index.hot_len()), (5, 2));
    let mut event = comment(6);
    event.content = "x".repeat(20_000);
    reject(&mut index, event, &Rejection::Unrelated, START);
    assert_eq!((index.len(), index.hot_len()), (6, 2));
}

#[test]
fn rows_keep_sixteen_dependencies_and_four_relays() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let parents: Vec<String> = (100..200).map(|number| hex(&id(number))).collect();
    let tags: Vec<[&str; 2]> =
        parents.iter().flat_map(|parent| [["e", parent.as_str()], ["E", parent.as_str()]]).collect();
    let event = tagged_comment(1, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>());
    let row = index
        .reject(event.clone(), &Rejection::Unrelated, &relay(1), RejectedLayer::Related, at(START))
        .expect("recorded");
    assert_eq!(row.dependencies, (100..116).map(|number| Dependency::Event(id(number))).collect::<Vec<_>>());
    assert_eq!(index.record_offer(&id(1), &relay(1)), OfferResult::Rejected(None), "unchanged");
    for number in 2..=4 {
        let OfferResult::Rejected(Some(row)) = index.record_offer(&id(1), &relay(number)) else {
            panic!("the record did not change")
        };
        assert_eq!(row.offered_by, (1..=number).map(relay).collect::<Vec<_>>());
    }
    assert_eq!(index.record_offer(&id(1), &relay(5)), OfferResult::Rejected(None));
    assert_eq!(
        index.reject(event, &Rejection::Unrelated, &relay(6), RejectedLayer::Related, at(START)),
        None,
        "unchanged"
    );
    // A very long coordinate is not stored.
    let long = format!("30617:{}:{}", "11".repeat(32), "x".repeat(2_000));
    let row = index.reject(
        tagged_comment(2, &[&["a", &long]]),
        &Rejection::Unrelated,
        &relay(1),
        RejectedLayer::Related,
        at(START),
    );
    assert_eq!(row.expect("recorded").dependencies, vec![]);
}

#[test]
fn memory_is_bounded_with_many_references() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig { hot_events: 0, ..RejectedEventsConfig::default() });
    let name = "n".repeat(1_000);
    let mut next = 0;
    while next < 12_000 {
        let dependencies = (0..16).map(|nth| Dependency::OwnCoordinate(repo(nth, &name))).collect();
        let row = RejectedRecord { dependencies, ..row(next, RejectionClass::Invalid) };
        index.restore(row, at(START));
        next += 1;
    }
    assert!(
        index.bytes() <= limits::MAX_REJECTED_INDEX_BYTES && index.len() < 10_000,
        "{} {}",
        index.bytes(),
        index.len()
    );
    let first = expire_all(&mut index, START);
    assert_eq!(first.len() + index.len(), 12_000);
}

#[test]
fn expiry_runs_in_slices() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    for number in 0..2_500 {
        index.restore(row(number, RejectionClass::Invalid), at(START));
    }
    let over = START + 10 * DAY;
    let slices: Vec<usize> = (0..4).map(|_| index.expire(at(over)).len()).collect();
    assert_eq!(slices, [1_000, 1_000, 500, 0]);
    assert!(index.rows.is_clean());
}

// Restoring

#[test]
fn restored_index_equals_the_original() {
    let mut rng = Rng(3);
    let mut rows: BTreeMap<EventId, RejectedRecord> = BTreeMap::new();
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let parent = hex(&id(5_000));
    let coordinate = repo(3, "näme 🚀").to_string();
    let rejections = [Rejection::Unrelated, Rejection::Protected, Rejection::OtherVanishRelay, not_listed()];
    for number in 0..300 {
        let event = match number % 4 {
            0 => tagged_comment(number, &[&["e", &parent], &["a", &coordinate]]),
            1 => tagged_comment(number, &[]),
            2 => Arc::new(with_identifier(number, 30_618, "näme 🚀")),
            _ => Arc::new(Event { kind: kinds::VANISH, ..comment(number) }),
        };
        let rejection = &rejections[rng.below(4)];
        let layer = if number % 4 == 2 { RejectedLayer::Announcements } else { RejectedLayer::Related };
        for nth in 0..1 + rng.below(5) {
            let row = index.reject(event.clone(), rejection, &relay(nth as u64), layer, at(START));
            rows.extend(row.map(|row| (row.id, row)));
        }
    }
    let mut restored = RejectedEventsIndex::new(RejectedEventsConfig::default());
    for row in rows.values().rev() {
        restored.restore(row.clone(), at(START + 10));
        restored.restore(row.clone(), at(START + 10));
    }
    assert_eq!((restored.len(), restored.bytes(), restored.hot_len()), (index.len(), index.bytes(), 0));
    for (id, row) in &rows {
        let written = restored.rows.find(id).and_then(|number| restored.rows.to_record(number));
        assert_eq!(written.as_ref(), Some(row));
    }
    for filter in [Filter::default(), tagged(b'e', &parent), tagged(b'a', &coordinate), tagged(b'd', "näme 🚀")] {
        for nth in 0..5 {
            assert_eq!(restored.negentropy_items(&relay(nth), &filter), index.negentropy_items(&relay(nth), &filter));
        }
    }
    let served = ServedEvent { coordinate: Some(repo(3, "näme 🚀")), ..arrived(5_000, 30_617) };
    assert_eq!(wake_all(&mut restored, &served), wake_all(&mut index, &served));

    // An expired record is not restored, but removed.
    let mut late = RejectedEventsIndex::new(RejectedEventsConfig::default());
    late.restore(row(1, RejectionClass::Invalid), at(START + 8 * DAY));
    assert!(late.is_empty());
    assert_eq!(expire_all(&mut late, START + 8 * DAY), vec![id(1)]);
}

// Items for reconciliations

#[test]
fn negentropy_items_match_relay_and_filter() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let parent = hex(&id(50));
    let coordinate = repo(9, "tool").to_string();
    let offers: [(Event, Rejection, u64); 8] = [
        (with_identifier(1, 30_617, "tool"), not_listed(), 1),
        (with_identifier(2, 30_618, "tool"), Rejection::NoAnnouncement, 1),
        (with_identifier(3, 30_617, "other"), not_listed(), 1),
        (with_identifier(4, 30_617, "tool"), not_listed(), 2),
        ((*tagged_comment(5, &[&["e", &parent]])).clone(), Rejection::Protected, 1),
        ((*tagged_comment(6, &[&["A", &coordinate]])).clone(), Rejection::Deleted, 1),
        (Event { kind: kinds::DELETION, ..comment(7) }, Rejection::Unrelated, 1),
        ((*tagged_comment(8, &[])).clone(), Rejection::Unrelated, 1),
    ];
    for (event, rejection, nth) in offers {
        index.reject(Arc::new(event), &rejection, &relay(nth), RejectedLayer::Related, at(START));
    }
    let of = |nth: u64, filter: Filter| -> Vec<u8> {
        index.negentropy_items(&relay(nth), &filter).into_iter().map(|item| item.id[7]).collect()
    };
    let kinds = |kinds: &[u16]| Filter { kinds: Some(kinds.to_vec()), ..Filter::default() };
    assert_eq!(of(1, kinds(&[30_617])), [1, 3]);
    assert_eq!(of(1, kinds(&[30_618])), [2]);
    assert_eq!(of(1, kinds(&[30_617, 30_618])), [1, 2, 3]);
    assert_eq!(of(2, kinds(&[30_617])), [4]);
    assert_eq!(of(3, kinds(&[30_617])), [] as [u8; 0], "this relay offered nothing");
    assert_eq!(of(1, Filter { kinds: Some(vec![30_617, 30_618]), ..tagged(b'd', "tool") }), [1, 2]);
    assert_eq!(of(1, tagged(b'e', &parent)), [5]);
    assert_eq!(of(1, tagged(b'a', &coordinate)), [6], "rows do not distinguish `a` and `A`");
    assert_eq!(of(1, tagged(b'e', &hex(&id(51)))), [] as [u8; 0]);
    assert_eq!(of(1, Filter { since: Some(Timestamp(106)), ..tagged(b'e', &parent) }), [] as [u8; 0]);
    assert_eq!(of(1, Filter { until: Some(Timestamp(105)), ..tagged(b'e', &parent) }), [5]);
    let author = |byte| Some(vec![PublicKey([byte; 32])]);
    assert_eq!(of(1, Filter { authors: author(1), ..kinds(&[5, 62]) }), [7]);
    assert_eq!(of(1, Filter { authors: author(2), ..kinds(&[5, 62]) }), [] as [u8; 0]);
    assert_eq!(of(1, Filter::default()), [1, 2, 3, 5, 6, 7, 8], "without conditions, all events of the relay");
    assert_eq!(of(1, kinds(&[1_621])), [5, 6, 8], "rows of regular events do not contain the kind");
}

/// With the rejected events of the relay among the items, a reconciliation finds no difference.
#[test]
fn reconciliation_excludes_rejected_events() {
    let mut index = RejectedEventsIndex::new(RejectedEventsConfig::default());
    let theirs: Vec<Event> = (1..200).map(|number| with_identifier(number, 30_617, &format!("r{number}"))).collect();
    for event in &theirs {
        reject(&mut index, event.clone(), &not_listed(), START);
    }
    let items = index.negentropy_items(&relay(1), &Filter { kinds: Some(vec![30_617]), ..Filter::default() });
    let set = theirs.iter().map(|event| NegentropyItem { created_at: event.created_at.0, id: event.id.0 }).collect();
    let (_, opening) = crate::sync::negentropy::NegentropySession::start(&items, 60_000);
    assert_eq!(respond(&NegentropySet::from_items(set), &opening, 60_000), Ok(vec![0x61]));
}

// Helpers

fn reject(index: &mut RejectedEventsIndex, event: Event, rejection: &Rejection, now: u64) -> Option<RejectedRecord> {
    index.reject(Arc::new(event), rejection, &relay(1), RejectedLayer::Related, at(now))
}

fn expire_all(index: &mut RejectedEventsIndex, now: u64) -> Vec<EventId> {
    let mut gone = Vec::new();
    while index.next_expiry().is_some_and(|due| due.0 <= now) {
        gone.extend(index.expire(at(now)));
    }
    gone
}

fn wake_all(index: &mut RejectedEventsIndex, served: &ServedEvent) -> Vec<EventId> {
    let mut woken = index.wake_on_event(served).removed;
    while index.has_pending_wakes() {
        woken.extend(index.wake_next().removed);
    }
    woken.sort_unstable();
    woken
}

fn at(wall: u64) -> Now {
    Now { wall: Timestamp(wall), ..Now::default() }
}

fn id(number: u64) -> EventId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    EventId(bytes)
}

fn hex(id: &EventId) -> String {
    id.to_string()
}

fn relay(number: u64) -> RelayUrl {
    RelayUrl::parse(&format!("wss://relay{number}.example")).expect("a relay")
}

fn comment(number: u64) -> Event {
    Event {
        id: id(number),
        pubkey: PublicKey([1; 32]),
        created_at: Timestamp(100 + number),
        kind: 1_111,
        tags: Vec::new(),
        content: String::new(),
        sig: [0; 64],
    }
}

fn tagged_comment(number: u64, tags: &[&[&str]]) -> Arc<Event> {
    let tags = tags.iter().map(|tag| tag.iter().map(ToString::to_string).collect()).collect();
    Arc::new(Event { tags, ..comment(number) })
}

/// Returns an event with a `d` tag and its own author.
fn with_identifier(number: u64, kind: u16, name: &str) -> Event {
    let pubkey = PublicKey(id(number).0);
    Event { kind, pubkey, tags: vec![vec!["d".into(), name.into()]], ..comment(number) }
}

fn repo(owner: u8, name: &str) -> Coordinate {
    Coordinate { kind: 30_617, pubkey: PublicKey([owner; 32]), d: name.into() }
}

fn state(owner: u8, name: &str) -> Coordinate {
    Coordinate { kind: 30_618, ..repo(owner, name) }
}

fn tagged(letter: u8, value: &str) -> Filter {
    Filter { tags: vec![(letter, vec![value.to_owned()].into())], ..Filter::default() }
}

fn row(number: u64, class: RejectionClass) -> RejectedRecord {
    RejectedRecord {
        id: id(number),
        created_at: Timestamp(100 + number),
        class,
        dependencies: vec![],
        offered_by: vec![relay(1)],
        layer: RejectedLayer::Related,
        expires_at: Timestamp(START + 7 * DAY),
    }
}

fn arrived(number: u64, kind: u16) -> ServedEvent {
    ServedEvent {
        seq: number,
        id: id(number),
        kind,
        author: PublicKey([1; 32]),
        coordinate: None,
        ids: Vec::new(),
        coordinates: Vec::new(),
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound.max(1) as u64) as usize
    }
}

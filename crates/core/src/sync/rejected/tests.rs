use super::*;
use crate::nostr::event::{Coordinate, Malformed};
use crate::nostr::negentropy::{ItemSet, respond};
use crate::nostr::signed_event::Forged;

const DAY: u64 = 24 * 60 * 60;
const START: u64 = 1_000_000;

// ---- How long each reason is remembered ---------------------------------------------------------

#[test]
fn each_reason_has_its_life() {
    let config = RefusedConfig { cold_secs: 3 * DAY, ..RefusedConfig::default() };
    let week = Some(START + 7 * DAY);
    let three_days = Some(START + 3 * DAY);
    for (refusal, why, until) in [
        (Refusal::Unrelated, Why::Unlinked, three_days),
        (Refusal::NoAnnouncement, Why::Unauthorised, three_days),
        (Refusal::NotMaintainer, Why::Unauthorised, three_days),
        (Refusal::NotListed, Why::Unauthorised, three_days),
        (Refusal::Delisted, Why::Unauthorised, three_days),
        (Refusal::NotWhitelisted, Why::Unauthorised, three_days),
        (Refusal::NotArchived, Why::Unauthorised, three_days),
        (Refusal::Banned, Why::Policy, None),
        (Refusal::Unwelcome, Why::Policy, None),
        (Refusal::TooLarge { bytes: 2, most: 1 }, Why::Policy, None),
        (Refusal::OtherRelay, Why::Policy, None),
        (Refusal::Expired, Why::Gone, week),
        (Refusal::Deleted, Why::Gone, week),
        (Refusal::Vanished, Why::Gone, week),
        (Refusal::Withdrawn, Why::Gone, week),
        (Refusal::Protected, Why::Unfit, week),
        (Refusal::Credential, Why::Unfit, week),
        (Refusal::TooManyTags(1), Why::Unfit, week),
        (Refusal::Identifier, Why::Unfit, week),
        (Refusal::NoCommit, Why::Unfit, week),
        (Refusal::ForeignTarget, Why::Unfit, week),
        (Refusal::Targets(0), Why::Unfit, week),
        (Refusal::NoRelay, Why::Unfit, week),
    ] {
        let mut index = RefusedIndex::new(config);
        let row = index.refuse(note(1, &[]), &refusal, &relay(1), Layer::Related, at(START)).expect("kept");
        assert_eq!((row.why, row.until.0), (why, until.unwrap_or(u64::MAX)), "{refusal:?}");
        let waits = matches!(why, Why::Unlinked | Why::Unauthorised);
        assert_eq!(index.hot_len(), usize::from(waits), "only what may be wanted soon is kept in whole");

        let until = until.unwrap_or(START + 100 * DAY);
        assert_eq!(expire_all(&mut index, until - 1), vec![], "{refusal:?}");
        assert!(index.contains(&id(1)));
        let gone = expire_all(&mut index, until);
        assert_eq!(gone.is_empty(), why == Why::Policy, "{refusal:?}");
        if why == Why::Policy {
            index.clear_ruled();
            assert_eq!(index.due(), Some(Timestamp(0)));
            assert_eq!(expire_all(&mut index, until), vec![id(1)]);
        }
        assert!(index.shelf.is_clean() && index.due().is_none(), "{refusal:?}");
    }
}

#[test]
fn a_future_event_is_refused_until_it_is_due() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let mut event = plain(1);
    event.created_at = Timestamp(START + 5_000);
    let row = refuse(&mut index, event.clone(), &Refusal::Future, START).expect("kept");
    assert_eq!(row.until.0, START + 5_000 - limits::MAX_FUTURE_SECS);
    assert_eq!(index.due(), Some(row.until));
    assert_eq!(expire_all(&mut index, row.until.0), vec![id(1)]);
    assert_eq!(refuse(&mut index, event, &Refusal::Future, START + 5_000), None, "it is due already");
    let mut event = plain(2);
    event.created_at = Timestamp(u64::MAX);
    refuse(&mut index, event, &Refusal::Future, START).expect("kept");
    assert_eq!(expire_all(&mut index, START + 1_000 * DAY), vec![]);
}

#[test]
fn lack_of_room_and_forgeries_leave_no_trace() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    for refusal in [
        Refusal::TooMuchHeld,
        Refusal::PurgatoryFull,
        Refusal::TooFast,
        Refusal::DiskFull,
        Refusal::StoreFailed,
        Refusal::Forged(Forged::Signature),
        Refusal::Forged(Forged::Id),
        Refusal::Malformed(Malformed::Hex("id")),
    ] {
        assert_eq!(refuse(&mut index, plain(1), &refusal, START), None);
        assert!(index.is_empty() && index.hot_len() == 0, "{refusal:?}");
        assert_eq!(index.offered(&id(1), &relay(1)), Offered::Unknown);
        assert_eq!(index.items(&relay(1), &Filter::default()), vec![]);
    }
    // And a row that is there is not touched by a forged copy that another relay has.
    let row = refuse(&mut index, plain(1), &Refusal::Unrelated, START).expect("kept");
    index.refuse(note(1, &[]), &Refusal::Forged(Forged::Signature), &relay(2), Layer::Related, at(START + 5));
    assert_eq!(index.shelf.find(&id(1)).and_then(|number| index.shelf.written(number)), Some(row));
}

// ---- Waking -------------------------------------------------------------------------------------

#[test]
fn what_an_event_refers_to_wakes_it() {
    let coordinate = repo(7, "tool");
    let quoted = hex(&id(52));
    for (tag, arrived) in [
        (["e", &hex(&id(50))], arrived(50, 1_621)),
        (["E", &hex(&id(51))], arrived(51, 1_621)),
        (["q", &quoted], arrived(52, 1)),
        (["a", &coordinate.to_string()], Arrived { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
        (["A", &coordinate.to_string()], Arrived { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
        (["q", &coordinate.to_string()], Arrived { coordinate: Some(coordinate.clone()), ..arrived(53, 30_617) }),
    ] {
        let mut index = RefusedIndex::new(RefusedConfig::default());
        let event = note(1, &[&tag]);
        index.refuse(event.clone(), &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
        refuse(&mut index, plain(2), &Refusal::Unrelated, START);
        let woken = index.wake(&arrived);
        assert_eq!(woken.hot, vec![(event.clone(), vec![relay(1)])], "{tag:?}");
        assert_eq!((woken.cold, woken.forgotten), (vec![], vec![id(1)]));
        assert!(!index.contains(&id(1)) && index.contains(&id(2)));
        assert_eq!(index.hot_len(), 1);

        // The same a little later: only the row is left.
        index.refuse(event, &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
        assert!(matches!(index.offered(&id(1), &relay(2)), Offered::Refused(Some(_))));
        assert_eq!(expire_all(&mut index, START + limits::REFUSED_HOT_SECS), vec![]);
        let woken = index.wake(&arrived);
        assert_eq!((woken.hot, woken.forgotten), (vec![], vec![id(1)]));
        assert_eq!(woken.cold, vec![(id(1), vec![relay(1), relay(2)])]);
    }
}

#[test]
fn what_refers_to_an_event_wakes_it() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    refuse(&mut index, plain(1), &Refusal::Unrelated, START);
    let woken = index.wake(&Arrived { ids: vec![id(9), id(1)], ..arrived(50, 1_111) });
    assert_eq!(woken.forgotten, vec![id(1)]);

    // An address means its newest version.
    for order in [[2, 3, 4], [4, 3, 2], [3, 4, 2]] {
        for number in order {
            let mut event = plain(number);
            event.kind = 30_023;
            event.created_at = Timestamp([0, 0, 70, 90, 80][number as usize]);
            event.tags = vec![vec!["d".into(), "page".into()]];
            refuse(&mut index, event, &Refusal::Unrelated, START);
        }
        let page = Coordinate { kind: 30_023, pubkey: PublicKey([1; 32]), d: "page".into() };
        let woken = index.wake(&Arrived { coordinates: vec![page.clone()], ..arrived(51, 1_111) });
        assert_eq!(woken.forgotten, vec![id(3)]);
        // What only refers to the same address is not woken by another reference.
        index.refuse(note(5, &[&["a", &page.to_string()]]), &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
        let woken = index.wake(&Arrived { coordinates: vec![page.clone()], ..arrived(52, 1_111) });
        assert_eq!(woken, Woken::default());
        let woken = index.wake(&Arrived { coordinate: Some(page), ..arrived(53, 30_023) });
        assert_eq!(woken.forgotten, vec![id(5)]);
        for number in [2, 4] {
            assert!(index.contains(&id(number)));
            index.wake(&arrived(number, 30_023));
        }
        assert!(index.shelf.is_clean());
    }
}

#[test]
fn an_announcement_wakes_what_has_its_name() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let tool = Identifier::new("tool").expect("a name");
    let fill = |index: &mut RefusedIndex| {
        refuse(index, named(1, 30_618, "tool"), &Refusal::NoAnnouncement, START);
        refuse(index, named(2, 30_617, "tool"), &Refusal::NotListed, START);
        refuse(index, named(3, 30_618, "tool"), &Refusal::NotMaintainer, START);
        refuse(index, named(4, 30_618, "other"), &Refusal::NoAnnouncement, START);
        refuse(index, named(5, 30_617, "tool"), &Refusal::Deleted, START);
    };
    fill(&mut index);
    let woken = index.wake(&Arrived { coordinate: Some(repo(9, "tool")), ..arrived(50, 30_617) });
    assert_eq!(woken.forgotten, vec![id(1), id(2), id(3)]);
    assert_eq!(index.len(), 2);
    fill(&mut index);
    let woken = index.wake(&Arrived { coordinate: Some(state(9, "tool")), ..arrived(51, 30_618) });
    assert_eq!(woken, Woken::default(), "a state gives nobody a say");
    assert_eq!(index.wake_name(&tool).forgotten, vec![id(1), id(2), id(3)], "a held announcement does");
}

#[test]
fn an_author_who_has_something_here_may_take_things_back() {
    for name in [false, true] {
        let mut index = RefusedIndex::new(RefusedConfig::default());
        let mut deletion = plain(1);
        deletion.kind = kinds::DELETION;
        refuse(&mut index, deletion, &Refusal::Unrelated, START);
        let stranger = Arrived { author: PublicKey([2; 32]), ..arrived(50, 1_621) };
        assert_eq!(index.wake(&stranger), Woken::default());
        let woken = if name { index.wake_author(&PublicKey([1; 32])) } else { index.wake(&arrived(51, 1_621)) };
        assert_eq!(woken.forgotten, vec![id(1)]);
    }
}

#[test]
fn what_cannot_be_helped_sleeps_on() {
    let parent = hex(&id(50));
    let tags: &[&[&str]] = &[&["e", &parent]];
    for refusal in [Refusal::Protected, Refusal::Deleted, Refusal::Expired, Refusal::TooLarge { bytes: 2, most: 1 }] {
        let mut index = RefusedIndex::new(RefusedConfig::default());
        index.refuse(note(1, tags), &refusal, &relay(1), Layer::Related, at(START));
        assert_eq!(index.wake(&arrived(50, 1_621)), Woken::default());
        assert_eq!(index.wake(&Arrived { ids: vec![id(1)], ..arrived(51, 1_621) }), Woken::default());
        assert!(index.contains(&id(1)) && !index.has_more());
    }
}

#[test]
fn what_is_served_is_not_refused() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    refuse(&mut index, plain(1), &Refusal::Protected, START);
    assert_eq!(index.wake(&arrived(1, 1)), Woken { forgotten: vec![id(1)], ..Woken::default() });
    assert!(index.shelf.is_clean());
}

/// A thread of comments that comes upside down: whatever the order of refusals, the same rows wake.
#[test]
fn the_order_of_refusals_does_not_matter() {
    let mut rng = Rng(7);
    for _ in 0..200 {
        let count = 2 + rng.below(20) as u64;
        let mut events: Vec<Arc<Event>> = Vec::new();
        for number in 1..=count {
            let parents: Vec<String> = (0..rng.below(4)).map(|_| hex(&id(rng.below(25) as u64))).collect();
            let tags: Vec<[&str; 2]> = parents.iter().map(|parent| ["e", parent.as_str()]).collect();
            events.push(note(number, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>()));
        }
        let arrivals: Vec<Arrived> = (0..10)
            .map(|_| Arrived {
                ids: (0..rng.below(3)).map(|_| id(rng.below(25) as u64)).collect(),
                ..arrived(rng.below(25) as u64, 1_621)
            })
            .collect();
        let mut seen = None;
        for _ in 0..4 {
            for at in (1..events.len()).rev() {
                events.swap(at, rng.below(at + 1));
            }
            let mut index = RefusedIndex::new(RefusedConfig::default());
            for event in &events {
                index.refuse(event.clone(), &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
            }
            let woken: Vec<Woken> = arrivals.iter().map(|arrived| index.wake(arrived)).collect();
            let items = index.items(&relay(1), &Filter::default());
            assert_eq!(*seen.get_or_insert((woken.clone(), items.clone())), (woken, items));
        }
    }
}

#[test]
fn a_popular_dependency_wakes_in_slices() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let parent = hex(&id(5_000));
    for number in 0..1_000 {
        let tags: &[&[&str]] = &[&["e", &parent]];
        index.refuse(note(number, tags), &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
    }
    let mut woken = index.wake(&Arrived { ids: vec![id(3)], ..arrived(5_000, 1_621) }).forgotten;
    assert!(woken.len() <= limits::WAKE_SLICE && woken.contains(&id(3)));
    // Other news do not lose the rest.
    woken.extend(index.wake(&arrived(6_000, 1_621)).forgotten);
    while index.has_more() {
        let more = index.more();
        assert!(more.forgotten.len() <= limits::WAKE_SLICE);
        woken.extend(more.forgotten);
    }
    woken.sort_unstable();
    assert_eq!(woken, (0..1_000).map(id).collect::<Vec<_>>());
    assert!(index.shelf.is_clean() && index.hot_len() == 0);
}

// ---- Bounds -------------------------------------------------------------------------------------

#[test]
fn the_oldest_give_way() {
    let mut index = RefusedIndex::new(RefusedConfig { cold_rows: 3, hot_events: 2, ..RefusedConfig::default() });
    for number in 1..=5 {
        refuse(&mut index, plain(number), &Refusal::Unrelated, START + number);
    }
    assert_eq!((index.len(), index.hot_len()), (3, 2));
    assert_eq!((1..=5).map(|number| index.contains(&id(number))).collect::<Vec<_>>(), [false, false, true, true, true]);
    // One that comes back before it was forgotten is not forgotten.
    refuse(&mut index, plain(1), &Refusal::Unrelated, START + 9);
    assert_eq!(expire_all(&mut index, START + 10), vec![id(2), id(3)]);

    // What has no end of its own gives way, too.
    let mut index = RefusedIndex::new(RefusedConfig { cold_rows: 2, ..RefusedConfig::default() });
    refuse(&mut index, plain(1), &Refusal::OtherRelay, START);
    refuse(&mut index, plain(2), &Refusal::Unrelated, START + 1);
    refuse(&mut index, plain(3), &Refusal::Unrelated, START + 2);
    assert!(!index.contains(&id(1)));
    let mut nothing = RefusedIndex::new(RefusedConfig { cold_rows: 0, ..RefusedConfig::default() });
    assert_eq!(refuse(&mut nothing, plain(1), &Refusal::Unrelated, START), None);
}

#[test]
fn whole_events_are_bounded_by_bytes_too() {
    let mut index = RefusedIndex::new(RefusedConfig { hot_bytes: 10_000, ..RefusedConfig::default() });
    for number in 1..=5 {
        let mut event = plain(number);
        event.content = "x".repeat(4_000);
        refuse(&mut index, event, &Refusal::Unrelated, START);
    }
    assert_eq!((index.len(), index.hot_len()), (5, 2));
    let mut event = plain(6);
    event.content = "x".repeat(20_000);
    refuse(&mut index, event, &Refusal::Unrelated, START);
    assert_eq!((index.len(), index.hot_len()), (6, 2));
}

#[test]
fn rows_keep_sixteen_needs_and_four_relays() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let parents: Vec<String> = (100..200).map(|number| hex(&id(number))).collect();
    let tags: Vec<[&str; 2]> =
        parents.iter().flat_map(|parent| [["e", parent.as_str()], ["E", parent.as_str()]]).collect();
    let event = note(1, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>());
    let row = index.refuse(event.clone(), &Refusal::Unrelated, &relay(1), Layer::Related, at(START)).expect("kept");
    assert_eq!(row.needs, (100..116).map(|number| Dependency::Event(id(number))).collect::<Vec<_>>());
    assert_eq!(index.offered(&id(1), &relay(1)), Offered::Refused(None), "no news");
    for number in 2..=4 {
        let Offered::Refused(Some(row)) = index.offered(&id(1), &relay(number)) else { panic!("news") };
        assert_eq!(row.offered_by, (1..=number).map(relay).collect::<Vec<_>>());
    }
    assert_eq!(index.offered(&id(1), &relay(5)), Offered::Refused(None));
    assert_eq!(index.refuse(event, &Refusal::Unrelated, &relay(6), Layer::Related, at(START)), None, "no news");
    // An address that is as long as a book is not kept.
    let long = format!("30617:{}:{}", "11".repeat(32), "x".repeat(2_000));
    let row = index.refuse(note(2, &[&["a", &long]]), &Refusal::Unrelated, &relay(1), Layer::Related, at(START));
    assert_eq!(row.expect("kept").needs, vec![]);
}

#[test]
fn memory_is_bounded_however_much_events_refer_to() {
    let mut index = RefusedIndex::new(RefusedConfig { hot_events: 0, ..RefusedConfig::default() });
    let name = "n".repeat(1_000);
    let mut next = 0;
    while next < 12_000 {
        let needs = (0..16).map(|nth| Dependency::Itself(repo(nth, &name))).collect();
        let row = RefusedRow { needs, ..row(next, Why::Unfit) };
        index.restore(row, at(START));
        next += 1;
    }
    assert!(index.bytes() <= limits::MAX_REFUSED_BYTES && index.len() < 10_000, "{} {}", index.bytes(), index.len());
    let first = expire_all(&mut index, START);
    assert_eq!(first.len() + index.len(), 12_000);
}

#[test]
fn expiry_goes_in_slices() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    for number in 0..2_500 {
        index.restore(row(number, Why::Unfit), at(START));
    }
    let over = START + 10 * DAY;
    let slices: Vec<usize> = (0..4).map(|_| index.expire(at(over)).len()).collect();
    assert_eq!(slices, [1_000, 1_000, 500, 0]);
    assert!(index.shelf.is_clean());
}

// ---- Restoring ----------------------------------------------------------------------------------

#[test]
fn a_restored_index_is_the_one_that_was() {
    let mut rng = Rng(3);
    let mut rows: BTreeMap<EventId, RefusedRow> = BTreeMap::new();
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let parent = hex(&id(5_000));
    let address = repo(3, "näme 🚀").to_string();
    let refusals = [Refusal::Unrelated, Refusal::Protected, Refusal::OtherRelay, Refusal::NotListed];
    for number in 0..300 {
        let event = match number % 4 {
            0 => note(number, &[&["e", &parent], &["a", &address]]),
            1 => note(number, &[]),
            2 => Arc::new(named(number, 30_618, "näme 🚀")),
            _ => Arc::new(Event { kind: kinds::VANISH, ..plain(number) }),
        };
        let refusal = &refusals[rng.below(4)];
        let layer = if number % 4 == 2 { Layer::Announcements } else { Layer::Related };
        for nth in 0..1 + rng.below(5) {
            let row = index.refuse(event.clone(), refusal, &relay(nth as u64), layer, at(START));
            rows.extend(row.map(|row| (row.id, row)));
        }
    }
    let mut restored = RefusedIndex::new(RefusedConfig::default());
    for row in rows.values().rev() {
        restored.restore(row.clone(), at(START + 10));
        restored.restore(row.clone(), at(START + 10));
    }
    assert_eq!((restored.len(), restored.bytes(), restored.hot_len()), (index.len(), index.bytes(), 0));
    for (id, row) in &rows {
        let written = restored.shelf.find(id).and_then(|number| restored.shelf.written(number));
        assert_eq!(written.as_ref(), Some(row));
    }
    for filter in [Filter::default(), tagged(b'e', &parent), tagged(b'a', &address), tagged(b'd', "näme 🚀")] {
        for nth in 0..5 {
            assert_eq!(restored.items(&relay(nth), &filter), index.items(&relay(nth), &filter));
        }
    }
    let news = Arrived { coordinate: Some(repo(3, "näme 🚀")), ..arrived(5_000, 30_617) };
    assert_eq!(wake_all(&mut restored, &news), wake_all(&mut index, &news));

    // What is over by now is not restored, but forgotten.
    let mut late = RefusedIndex::new(RefusedConfig::default());
    late.restore(row(1, Why::Unfit), at(START + 8 * DAY));
    assert!(late.is_empty());
    assert_eq!(expire_all(&mut late, START + 8 * DAY), vec![id(1)]);
}

// ---- What a reconciliation is told --------------------------------------------------------------

#[test]
fn items_are_those_that_the_relay_offered_and_the_filter_may_match() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let parent = hex(&id(50));
    let address = repo(9, "tool").to_string();
    let offers: [(Event, Refusal, u64); 8] = [
        (named(1, 30_617, "tool"), Refusal::NotListed, 1),
        (named(2, 30_618, "tool"), Refusal::NoAnnouncement, 1),
        (named(3, 30_617, "other"), Refusal::NotListed, 1),
        (named(4, 30_617, "tool"), Refusal::NotListed, 2),
        ((*note(5, &[&["e", &parent]])).clone(), Refusal::Protected, 1),
        ((*note(6, &[&["A", &address]])).clone(), Refusal::Deleted, 1),
        (Event { kind: kinds::DELETION, ..plain(7) }, Refusal::Unrelated, 1),
        ((*note(8, &[])).clone(), Refusal::Unrelated, 1),
    ];
    for (event, refusal, nth) in offers {
        index.refuse(Arc::new(event), &refusal, &relay(nth), Layer::Related, at(START));
    }
    let of = |nth: u64, filter: Filter| -> Vec<u8> {
        index.items(&relay(nth), &filter).into_iter().map(|item| item.id[7]).collect()
    };
    let kinds = |kinds: &[u16]| Filter { kinds: Some(kinds.to_vec()), ..Filter::default() };
    assert_eq!(of(1, kinds(&[30_617])), [1, 3]);
    assert_eq!(of(1, kinds(&[30_618])), [2]);
    assert_eq!(of(1, kinds(&[30_617, 30_618])), [1, 2, 3]);
    assert_eq!(of(2, kinds(&[30_617])), [4]);
    assert_eq!(of(3, kinds(&[30_617])), [] as [u8; 0], "a relay that offered nothing");
    assert_eq!(of(1, Filter { kinds: Some(vec![30_617, 30_618]), ..tagged(b'd', "tool") }), [1, 2]);
    assert_eq!(of(1, tagged(b'e', &parent)), [5]);
    assert_eq!(of(1, tagged(b'a', &address)), [6], "a row does not know the letter");
    assert_eq!(of(1, tagged(b'e', &hex(&id(51)))), [] as [u8; 0]);
    assert_eq!(of(1, Filter { since: Some(Timestamp(106)), ..tagged(b'e', &parent) }), [] as [u8; 0]);
    assert_eq!(of(1, Filter { until: Some(Timestamp(105)), ..tagged(b'e', &parent) }), [5]);
    let author = |byte| Some(vec![PublicKey([byte; 32])]);
    assert_eq!(of(1, Filter { authors: author(1), ..kinds(&[5, 62]) }), [7]);
    assert_eq!(of(1, Filter { authors: author(2), ..kinds(&[5, 62]) }), [] as [u8; 0]);
    assert_eq!(of(1, Filter::default()), [1, 2, 3, 5, 6, 7, 8], "without conditions all of the relay");
    assert_eq!(of(1, kinds(&[1_621])), [5, 6, 8], "kinds of such events are not known");
}

/// With its refused events among the items, a relay has nothing to tell.
#[test]
fn a_reconciliation_does_not_miss_what_was_refused() {
    let mut index = RefusedIndex::new(RefusedConfig::default());
    let theirs: Vec<Event> = (1..200).map(|number| named(number, 30_617, &format!("r{number}"))).collect();
    for event in &theirs {
        refuse(&mut index, event.clone(), &Refusal::NotListed, START);
    }
    let items = index.items(&relay(1), &Filter { kinds: Some(vec![30_617]), ..Filter::default() });
    let set = theirs.iter().map(|event| Item { created_at: event.created_at.0, id: event.id.0 }).collect();
    let (_, opening) = crate::sync::negentropy::Nego::begin(&items, 60_000);
    assert_eq!(respond(&ItemSet::seal(set), &opening, 60_000), Ok(vec![0x61]));
}

// ---- Help ---------------------------------------------------------------------------------------

fn refuse(index: &mut RefusedIndex, event: Event, why: &Refusal, now: u64) -> Option<RefusedRow> {
    index.refuse(Arc::new(event), why, &relay(1), Layer::Related, at(now))
}

fn expire_all(index: &mut RefusedIndex, now: u64) -> Vec<EventId> {
    let mut gone = Vec::new();
    while index.due().is_some_and(|due| due.0 <= now) {
        gone.extend(index.expire(at(now)));
    }
    gone
}

fn wake_all(index: &mut RefusedIndex, news: &Arrived) -> Vec<EventId> {
    let mut woken = index.wake(news).forgotten;
    while index.has_more() {
        woken.extend(index.more().forgotten);
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

fn plain(number: u64) -> Event {
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

fn note(number: u64, tags: &[&[&str]]) -> Arc<Event> {
    let tags = tags.iter().map(|tag| tag.iter().map(ToString::to_string).collect()).collect();
    Arc::new(Event { tags, ..plain(number) })
}

/// Each by an author of its own.
fn named(number: u64, kind: u16, name: &str) -> Event {
    let pubkey = PublicKey(id(number).0);
    Event { kind, pubkey, tags: vec![vec!["d".into(), name.into()]], ..plain(number) }
}

fn repo(owner: u8, name: &str) -> Coordinate {
    Coordinate { kind: 30_617, pubkey: PublicKey([owner; 32]), d: name.into() }
}

fn state(owner: u8, name: &str) -> Coordinate {
    Coordinate { kind: 30_618, ..repo(owner, name) }
}

fn tagged(letter: u8, value: &str) -> Filter {
    Filter { tags: vec![(letter, vec![value.to_owned()])], ..Filter::default() }
}

fn row(number: u64, why: Why) -> RefusedRow {
    RefusedRow {
        id: id(number),
        created_at: Timestamp(100 + number),
        why,
        needs: vec![],
        offered_by: vec![relay(1)],
        layer: Layer::Related,
        until: Timestamp(START + 7 * DAY),
    }
}

fn arrived(number: u64, kind: u16) -> Arrived {
    Arrived {
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

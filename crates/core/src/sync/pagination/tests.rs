use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::nostr::PublicKey;
use crate::nostr::event::Event;

const LIMIT: usize = 500;

#[test]
fn a_page_is_short_below_twenty_or_nine_tenths_of_the_largest() {
    let mut sizes = PageSizeTracker::default();
    assert!(sizes.is_short(19) && !sizes.is_short(20));
    sizes.record(500);
    assert!(sizes.is_short(449) && !sizes.is_short(450));
    sizes.record(100);
    assert!(sizes.is_short(449), "a smaller page does not lower the maximum");
    let mut sizes = PageSizeTracker::default();
    sizes.record(33);
    assert!(sizes.is_short(29) && !sizes.is_short(30));
}

#[test]
fn pagination_ends_by_hint_or_empty_or_short_page() {
    for (more, count, outcome) in [
        (Some(EoseHint::Complete), 500, PageOutcome::Done),
        (None, 0, PageOutcome::Done),
        (Some(EoseHint::More), 0, PageOutcome::Done),
        (None, 19, PageOutcome::Done),
        (Some(EoseHint::More), 19, PageOutcome::Next),
        (None, 20, PageOutcome::Next),
    ] {
        let mut pages = PaginationState::new(Filter::default(), LIMIT, None);
        deliver(&mut pages, 1_000, count);
        assert_eq!(pages.finish_page(more, &mut PageSizeTracker::default()), outcome, "{more:?} {count}");
    }
}

#[test]
fn a_page_as_large_as_asked_for_is_full() {
    let mut pages = PaginationState::new(Filter::default(), 5, None);
    deliver(&mut pages, 1_000, 5);
    assert_eq!(pages.finish_page(None, &mut PageSizeTracker::default()), PageOutcome::Next);
    assert_eq!(pages.next_filter(), Filter { until: Some(Timestamp(996)), limit: Some(5), ..Filter::default() });
}

#[test]
fn oversized_page_does_not_raise_the_full_page_size() {
    let mut sizes = PageSizeTracker::default();
    let mut pages = PaginationState::new(Filter::default(), LIMIT, None);
    deliver(&mut pages, 10_000, 3_000);
    assert_eq!(pages.finish_page(None, &mut sizes), PageOutcome::Next);
    assert_eq!(pages.cursor(), Some(Timestamp(7_001)));
    assert!(!sizes.is_short(450));
}

#[test]
fn pagination_resumes_at_the_cursor() {
    let filter = Filter { since: Some(Timestamp(10)), until: Some(Timestamp(900)), ..Filter::default() };
    assert_eq!(PaginationState::new(filter.clone(), LIMIT, None).cursor(), Some(Timestamp(900)));
    assert_eq!(PaginationState::new(filter.clone(), LIMIT, Some(Timestamp(950))).cursor(), Some(Timestamp(900)));
    let pages = PaginationState::new(filter.clone(), LIMIT, Some(Timestamp(400)));
    assert_eq!(pages.next_filter(), Filter { until: Some(Timestamp(400)), limit: Some(LIMIT), ..filter });
    assert_eq!(PaginationState::new(Filter::default(), LIMIT, None).cursor(), None);
}

#[test]
fn events_outside_the_window_do_not_move_the_cursor() {
    let filter = Filter { since: Some(Timestamp(100)), ..Filter::default() };
    let mut pages = PaginationState::new(filter, LIMIT, Some(Timestamp(500)));
    deliver(&mut pages, 499, 100);
    pages.record_event(id(9_000), Timestamp(501));
    pages.record_event(id(9_001), Timestamp(99));
    pages.record_event(id(9_002), Timestamp(0));
    assert_eq!(pages.finish_page(None, &mut PageSizeTracker::default()), PageOutcome::Next);
    assert_eq!(pages.cursor(), Some(Timestamp(400)));
}

#[test]
fn full_second_is_split_by_values_then_authors_then_kinds() {
    let two = |text: &str| vec![format!("{text}1"), format!("{text}2"), format!("{text}3")];
    let filter = Filter {
        tags: vec![(b'e', two("x").into())],
        authors: Some(vec![PublicKey([1; 32]), PublicKey([2; 32])]),
        kinds: Some(vec![1, 2]),
        since: Some(Timestamp(5)),
        ..Filter::default()
    };
    let mut waiting = vec![filter];
    let mut leaves = Vec::new();
    while let Some(filter) = waiting.pop() {
        let mut pages = PaginationState::new(filter, LIMIT, None);
        let mut outcome = PageOutcome::Next;
        while outcome == PageOutcome::Next {
            (0..30).for_each(|nth| pages.record_event(id(nth), Timestamp(70)));
            outcome = pages.finish_page(None, &mut PageSizeTracker::default());
        }
        match outcome {
            PageOutcome::Split(parts) => {
                assert!(parts.iter().all(|part| part.until == Some(Timestamp(70)) && part.since == Some(Timestamp(5))));
                waiting.extend(parts);
            }
            PageOutcome::SteppedOver(_) => {
                assert_eq!(pages.cursor(), Some(Timestamp(69)));
                leaves.push(pages.next_filter());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(leaves.len(), 3 * 2 * 2);
    assert!(leaves.iter().all(|leaf| leaf.tags[0].1.len() == 1 && leaf.kinds.as_ref().is_some_and(|k| k.len() == 1)));
}

#[test]
fn stepping_over_the_oldest_second_ends_pagination() {
    for since in [None, Some(Timestamp(0)), Some(Timestamp(7))] {
        let second = since.unwrap_or_default();
        let mut pages = PaginationState::new(Filter { since, ..Filter::default() }, LIMIT, Some(second));
        let mut sizes = PageSizeTracker::default();
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            (0..30).for_each(|nth| pages.record_event(id(nth), second));
            outcomes.push(pages.finish_page(None, &mut sizes));
        }
        assert_eq!(outcomes, [PageOutcome::Next, PageOutcome::SteppedOver(second), PageOutcome::Done]);
    }
}

// Misbehaving relays

#[test]
fn relay_that_ignores_until_is_abandoned() {
    let values: Vec<String> = (0..100).map(|nth| format!("v{nth}")).collect();
    let filter = Filter { tags: vec![(b'e', values.into())], ..Filter::default() };
    let same_page = |pages: &mut PaginationState, _| deliver(pages, 1_000, 500);
    assert_eq!(paginate(filter, same_page), (PageOutcome::GaveUp, 2));
}

#[test]
fn relay_with_endless_older_events_is_abandoned() {
    let outcome = paginate(Filter::default(), |pages, nth| deliver(pages, u64::MAX - 500 * nth, 500));
    assert_eq!(outcome, (PageOutcome::GaveUp, limits::MAX_PAGES_PER_FILTER));
}

#[test]
fn endless_events_of_one_second_are_stepped_over() {
    let mut pages = PaginationState::new(Filter::default(), LIMIT, None);
    let mut sizes = PageSizeTracker::default();
    let mut next = 0;
    let mut next_page = |pages: &mut PaginationState| {
        next += 500;
        (next - 500..next).for_each(|nth| pages.record_event(id(nth), Timestamp(50)));
        pages.finish_page(None, &mut sizes)
    };
    while next_page(&mut pages) == PageOutcome::Next {}
    assert_eq!((pages.page_count(), pages.cursor()), (11, Some(Timestamp(49))), "ids of ten pages are kept");
    assert_eq!(next_page(&mut pages), PageOutcome::GaveUp, "events above the window do not count as an answer");
}

#[test]
fn relay_that_always_promises_more_is_abandoned() {
    let mut pages = PaginationState::new(Filter::default(), LIMIT, Some(Timestamp(1_000_000)));
    let mut sizes = PageSizeTracker::default();
    for _ in 0..limits::MAX_PAGES_PER_FILTER {
        pages.record_event(id(1), pages.cursor().expect("a cursor"));
        match pages.finish_page(Some(EoseHint::More), &mut sizes) {
            PageOutcome::Next | PageOutcome::SteppedOver(_) => {}
            outcome => {
                return assert_eq!((outcome, pages.page_count()), (PageOutcome::GaveUp, limits::MAX_PAGES_PER_FILTER));
            }
        }
    }
    panic!("pagination did not end");
}

#[test]
fn random_answers_always_end() {
    let mut rng = Rng(99);
    for _ in 0..300 {
        let filter = filter_of(rng.below(5) + 1, rng.below(2) == 0);
        let mut waiting = VecDeque::from([PaginationState::new(filter, 1 + rng.below(60), None)]);
        let (mut sizes, mut requests) = (PageSizeTracker::default(), 0);
        while let Some(mut pages) = waiting.pop_front() {
            requests += 1;
            let seconds = 1 + rng.below(4) as u64;
            for _ in 0..rng.below(70) {
                pages.record_event(id(rng.below(200) as u64), Timestamp(rng.below(5) as u64 * seconds));
            }
            let more = [None, Some(EoseHint::More), None][rng.below(3)];
            match pages.finish_page(more, &mut sizes) {
                PageOutcome::Done | PageOutcome::GaveUp => {}
                PageOutcome::Next | PageOutcome::SteppedOver(_) => waiting.push_back(pages),
                PageOutcome::Split(parts) => {
                    waiting.extend(parts.into_iter().map(|part| PaginationState::new(part, 40, None)))
                }
            }
        }
        assert!(requests < 100 * limits::MAX_PAGES_PER_FILTER);
    }
}

fn paginate(filter: Filter, mut relay: impl FnMut(&mut PaginationState, u64)) -> (PageOutcome, usize) {
    let mut pages = PaginationState::new(filter, LIMIT, None);
    let mut sizes = PageSizeTracker::default();
    let mut nth = 0;
    loop {
        relay(&mut pages, nth);
        nth += 1;
        match pages.finish_page(None, &mut sizes) {
            PageOutcome::Next => {}
            outcome => return (outcome, pages.page_count()),
        }
    }
}

/// Records `count` events, each a second older than the one before.
fn deliver(pages: &mut PaginationState, newest: u64, count: u64) {
    (0..count).for_each(|nth| pages.record_event(id(newest - nth), Timestamp(newest - nth)));
}

// A correct relay with limited pages

struct Relay {
    events: Vec<Event>,
    page_limit: usize,
    hints: bool,
}

impl Relay {
    /// Returns the newest matching events and the NIP-67 hint.
    fn answer(&self, filter: &Filter) -> (Vec<&Event>, Option<EoseHint>) {
        let mut found: Vec<&Event> = self.events.iter().filter(|event| filter.matches(event)).collect();
        found.sort_by_key(|event| (std::cmp::Reverse(event.created_at), event.id));
        let most = self.page_limit.min(filter.limit.unwrap_or(usize::MAX));
        let more = if found.len() > most { EoseHint::More } else { EoseHint::Complete };
        found.truncate(most);
        (found, self.hints.then_some(more))
    }

    /// Returns the largest number of events in one second for a filter that cannot be split.
    fn densest_leaf(&self, filter: &Filter) -> usize {
        let mut leaves: BTreeMap<_, usize> = BTreeMap::new();
        for event in self.events.iter().filter(|event| filter.matches(event)) {
            let kind = filter.kinds.is_some().then_some(event.kind);
            for value in event.values("e").collect::<BTreeSet<_>>() {
                *leaves.entry((event.created_at, value, kind)).or_default() += 1;
            }
        }
        leaves.into_values().max().unwrap_or(0)
    }
}

/// All matching events are received, or a second was stepped over. A second is stepped over if a filter that cannot be
/// split has more events in it than the relay sends per page, and never if it has fewer.
#[test]
fn all_events_of_an_honest_relay_are_fetched() {
    let mut rng = Rng(2_024);
    let (mut stepped, mut split) = (0, 0);
    for round in 0..300 {
        // Without hints a page below the minimum size counts as the last one (see the next test).
        let hints = round % 2 == 0;
        let page_limit = if hints { 1 + rng.below(600) } else { limits::MIN_CUT_PAGE_EVENTS + rng.below(581) };
        let page_limit = if round % 4 > 1 { 20 + page_limit % 30 } else { page_limit };
        let values = 1 + rng.below(6);
        let relay = Relay { events: events(&mut rng, values), page_limit, hints };
        let filter = filter_of(values, rng.below(2) == 0);
        // With a full page seen before in the session. Otherwise a page that is not full may count as full.
        let mut known = PageSizeTracker::default();
        known.record(page_limit.min(LIMIT));
        for (mut sizes, revealed) in [(known, true), (PageSizeTracker::default(), false)] {
            let mut waiting = VecDeque::from([PaginationState::new(filter.clone(), LIMIT, None)]);
            let mut received = BTreeSet::new();
            let mut over = 0;
            let mut requests = 0;
            while let Some(mut pages) = waiting.pop_front() {
                requests += 1;
                assert!(requests < 5_000, "round {round}");
                let (found, more) = relay.answer(&pages.next_filter());
                for event in &found {
                    pages.record_event(event.id, event.created_at);
                    received.insert(event.id);
                }
                match pages.finish_page(more, &mut sizes) {
                    PageOutcome::Done => {}
                    PageOutcome::Next => waiting.push_back(pages),
                    PageOutcome::SteppedOver(_) => {
                        over += 1;
                        waiting.push_back(pages);
                    }
                    PageOutcome::Split(parts) => {
                        split += 1;
                        waiting.extend(parts.into_iter().map(|part| PaginationState::new(part, LIMIT, None)));
                    }
                    PageOutcome::GaveUp => panic!("round {round} gave up"),
                }
            }
            let matching = relay.events.iter().filter(|event| filter.matches(event));
            let missed = matching.filter(|event| !received.contains(&event.id)).count();
            let (most, densest) = (relay.page_limit.min(LIMIT), relay.densest_leaf(&filter));
            assert!(missed == 0 || over > 0, "round {round}: {missed} events missing without a report");
            assert!(densest <= most || over > 0, "round {round}: {densest} in a second, {most} a page");
            if revealed {
                assert!(over == 0 || densest * 10 >= most * 9, "round {round}: {densest} in a second, {most} a page");
            }
            stepped += usize::from(over > 0);
        }
    }
    assert!(stepped > 30 && split > 100, "{stepped} {split}");
}

/// A relay that cuts pages below the minimum size, without stating a limit and without hints, is taken to have sent
/// everything. If it states its limit, that limit is requested, and a page of that size counts as full.
#[test]
fn small_pages_are_full_only_at_the_requested_limit() {
    let mut rng = Rng(5);
    let relay = Relay { events: events(&mut rng, 1), page_limit: 7, hints: false };
    for (limit, whole) in [(LIMIT, false), (7, true)] {
        let mut pages = PaginationState::new(filter_of(1, false), limit, None);
        let (mut sizes, mut received) = (PageSizeTracker::default(), 0);
        loop {
            let (found, more) = relay.answer(&pages.next_filter());
            received += found.len();
            found.iter().for_each(|event| pages.record_event(event.id, event.created_at));
            match pages.finish_page(more, &mut sizes) {
                PageOutcome::Done => break,
                outcome => assert!(matches!(outcome, PageOutcome::Next | PageOutcome::SteppedOver(_))),
            }
        }
        assert_eq!(received > 7, whole);
    }
}

/// Returns random events, with some dense seconds.
fn events(rng: &mut Rng, values: usize) -> Vec<Event> {
    let mut events = Vec::new();
    let mut make = |rng: &mut Rng, at: u64| {
        let tags = (0..1 + rng.below(2)).map(|_| vec!["e".into(), format!("v{}", rng.below(values))]).collect();
        events.push(Event {
            id: id(events.len() as u64 * 7_919 % 100_003),
            pubkey: PublicKey([1; 32]),
            created_at: Timestamp(at),
            kind: 1 + rng.below(3) as u16,
            tags,
            content: String::new(),
            sig: [0; 64],
        });
    };
    let seconds = 1 + rng.below(400);
    for _ in 0..rng.below(700) {
        let at = 1_000 + rng.below(seconds) as u64;
        make(rng, at);
    }
    for _ in 0..rng.below(3) {
        let at = 1_000 + rng.below(seconds) as u64;
        (0..rng.below(300)).for_each(|_| make(rng, at));
    }
    events
}

fn filter_of(values: usize, kinds: bool) -> Filter {
    let values: Vec<String> = (0..values).map(|nth| format!("v{nth}")).collect();
    Filter { tags: vec![(b'e', values.into())], kinds: kinds.then(|| vec![1, 2, 3]), ..Filter::default() }
}

fn id(number: u64) -> EventId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    EventId(bytes)
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

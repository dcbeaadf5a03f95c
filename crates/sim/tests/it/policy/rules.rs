//! The rules of the registrar that a review of the design found necessary, and the open mode.

use super::common::*;

#[test]
fn c1_nothing_waits_for_an_owner() {
    let mut house = House::default();
    for event in [
        main_at(&o(), 100, 'a'),
        o().unlisted("tool", 100, &[]),
        o().issue(100, &o().repo("tool")),
        o().pull_request(100, &[&o().repo("tool")], &oid('a')),
    ] {
        assert!(matches!(house.submit(&event), Decision::Reject(_)));
    }
    stands(&house, &[], &[]);
}

#[test]
fn c2_duplicates_are_fine_and_prefixes_belong_to_the_refusal() {
    for (known, text) in [
        (KnownAs::Served, "duplicate: already have this event"),
        (KnownAs::Held, "purgatory: already waiting for git data"),
        (KnownAs::Superseded, "duplicate: superseded by a newer event"),
    ] {
        assert_eq!(Decision::Known(known).ok_reply(), (true, text.to_owned()));
    }
    for (refusal, prefix) in [
        (Rejection::NoAnnouncement, "invalid: "),
        (Rejection::NotMaintainer, "restricted: "),
        (Rejection::Unrelated, "restricted: "),
        (Rejection::Protected, "auth-required: "),
        (Rejection::RateLimited, "rate-limited: "),
        (Rejection::StoreFailed, "error: "),
    ] {
        assert!(refusal.to_string().starts_with(prefix), "{refusal}");
    }
}

#[test]
fn f4_one_batch_sees_itself_and_fails_as_one() {
    let announcement = o().listed(&service(), "tool", 100, &[]);
    let state = main_at(&o(), 101, 'a');
    let mut house = House::default();
    let verdicts = house.submit_batch(&[&announcement, &state], false);
    assert_eq!(verdicts, [const { Decision::Reject(Rejection::StoreFailed) }; 2]);
    stands(&house, &[], &[]);
    says(&mut house, &state, NO_ANNOUNCEMENT);
    let verdicts = house.submit_batch(&[&announcement, &state], true);
    assert_eq!(verdicts.iter().map(said).collect::<Vec<_>>(), [HELD, HELD]);
    stands(&house, &[], &[&announcement, &state]);
    pushed(&mut house, &state, &o());
    // A failed deletion and what followed it in the batch never happened.
    let deletion = o().deletion(200, &[&["a", &o().repo("tool")]]);
    let again = o().listed(&service(), "tool", 201, &[]);
    house.submit_batch(&[&deletion, &again], false);
    stands(&house, &[&announcement, &state], &[]);
    says(&mut house, &again, SERVED);
    // Links are seen within a batch.
    let issue = x().issue(300, &o().repo("tool"));
    let comment = r().comment(301, &issue);
    let verdicts = house.submit_batch(&[&issue, &comment, &issue], true);
    assert_eq!(verdicts.iter().map(said).collect::<Vec<_>>(), [SERVED, SERVED, AGAIN]);
}

#[test]
fn f5_a_newer_state_whose_data_never_comes_hides_nothing() {
    for order in [[0, 1], [1, 0]] {
        let (mut house, announcement, _) = hosting(rules(), &[]);
        let states = [main_at(&o(), 200, 'b'), main_at(&o(), 300, 'c')];
        for nth in order {
            says(&mut house, &states[nth], HELD);
        }
        pushed(&mut house, &states[0], &o());
        stands(&house, &[&announcement, &states[0]], &[&states[1]]);
    }
}

#[test]
fn f5_a_withdrawal_is_remembered() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    says(&mut house, &o().unlisted("tool", 200, &[]), DELISTED);
    stands(&house, &[&state], &[]);
    house.restart();
    says(&mut house, &announcement, WITHDRAWN);
    says(&mut house, &o().listed(&service(), "tool", 199, &[]), WITHDRAWN);
    says(&mut house, &main_at(&o(), 201, 'b'), NO_ANNOUNCEMENT);
    let again = o().listed(&service(), "tool", 201, &[]);
    says(&mut house, &again, HELD);
    stands(&house, &[&state], &[&again]);
}

#[test]
fn f6_authority_walks_the_better_of_served_and_held() {
    // M's announcement elsewhere is served; its newer one here is held and lists R.
    let (mut house, a, s) = hosting(rules(), &[&m()]);
    let served = m().unlisted("tool", 200, &[&x()]);
    let held = m().listed(&service(), "tool", 201, &[&r()]);
    says(&mut house, &served, SERVED);
    says(&mut house, &main_at(&r(), 300, 'b'), NOT_MAINTAINER);
    says(&mut house, &held, HELD);
    stands(&house, &[&a, &s, &served], &[&held]);
    says(&mut house, &main_at(&x(), 300, 'b'), NOT_MAINTAINER);
    let state = main_at(&r(), 300, 'b');
    says(&mut house, &state, HELD);
    // Links count what is served only; the version elsewhere is.
    says(&mut house, &x().issue(301, &m().repo("tool")), SERVED);
    says(&mut house, &x().note(301, &[&["e", &held.id.to_string()]], ""), UNRELATED);
    pushed(&mut house, &state, &m());
    assert_eq!(house.memory().whereabouts(&served).0, None);
    assert!(house.sets().0.is_superset(&BTreeSet::from([held.id, state.id])));
}

#[test]
fn f7_exceptions_live_as_long_as_their_chain() {
    let exceptions = [m().unlisted("tool", 200, &[&r()]), r().unlisted("tool", 201, &[])];
    let enter = |house: &mut House| {
        for exception in &exceptions {
            says(house, exception, SERVED);
        }
    };
    // The anchor expires unserved.
    let mut house = House::default();
    says(&mut house, &o().listed(&service(), "tool", 100, &[&m()]), HELD);
    enter(&mut house);
    house.advance(limits::PURGATORY_EXPIRY_SECS);
    stands(&house, &[], &[]);
    // It is deleted.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&state, &deletion], &[]);
    // It is replaced by one that lists M no more.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let alone = o().listed(&service(), "tool", 300, &[]);
    says(&mut house, &alone, SERVED);
    stands(&house, &[&alone, &state], &[]);
    // The middle of the chain changes its mind: R goes, M stays.
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let changed = m().unlisted("tool", 300, &[]);
    says(&mut house, &changed, SERVED);
    stands(&house, &[&announcement, &state, &changed], &[]);
    // Another anchor keeps them.
    let (mut house, _, state) = hosting(rules(), &[&m()]);
    enter(&mut house);
    let other = x().listed(&service(), "tool", 250, &[&m()]);
    says(&mut house, &other, HELD);
    let alone = o().listed(&service(), "tool", 300, &[]);
    says(&mut house, &alone, SERVED);
    stands(&house, &[&alone, &state, &exceptions[0], &exceptions[1]], &[&other]);
}

#[test]
fn f8_strangers_mint_no_tombstones() {
    let (mut house, announcement, state) = hosting(rules(), &[&m()]);
    let unknown = format!("{:064x}", 7);
    says(&mut house, &x().deletion(200, &[&["e", &unknown]]), UNRELATED);
    says(&mut house, &x().deletion(200, &[&["a", &x().repo("tool")]]), UNRELATED);
    says(&mut house, &x().deletion(200, &[&["a", &o().repo("tool")]]), UNRELATED);
    // A maintainer without anything here.
    let named = m().deletion(200, &[&["a", &m().coordinate(kinds::STATE, "tool")]]);
    says(&mut house, &named, SERVED);
    // Who has something here may delete what has not come yet.
    let early = o().deletion(200, &[&["e", &unknown]]);
    says(&mut house, &early, SERVED);
    stands(&house, &[&announcement, &state, &named, &early], &[]);
}

#[test]
fn f8_nothing_is_taken_along_by_a_deletion() {
    let (mut house, _, state) = hosting(rules(), &[]);
    let issue = x().issue(200, &o().repo("tool"));
    says(&mut house, &issue, SERVED);
    let deletion = o().deletion(300, &[&["a", &o().repo("tool")]]);
    says(&mut house, &deletion, SERVED);
    stands(&house, &[&state, &issue, &deletion], &[]);
}

#[test]
fn f10_a_state_that_git_could_never_hold_waits_unasked() {
    let (mut house, announcement, state) = hosting(rules(), &[]);
    house.orders();
    let bad = [
        o().state("tool", 200, &[("refs/heads/main", "abc123")]),
        o().state("tool", 201, &[("refs/heads/a..b", &oid('a'))]),
        o().state("tool", 202, &[("refs/heads/a", &oid('a')), ("refs/heads/a/b", &oid('a'))]),
        o().state("tool", 203, &[("refs/heads/main", &"0".repeat(40))]),
    ];
    for event in &bad {
        says(&mut house, event, HELD);
    }
    let candidates = |order: GitJob| match order.operation {
        GitOperation::Align(align) => align.candidates,
        work => panic!("{work:?}"),
    };
    let asked: BTreeSet<_> = house.orders().into_iter().flat_map(candidates).map(|state| state.event).collect();
    assert_eq!(asked, BTreeSet::from([state.id]));
    stands(&house, &[&announcement, &state], &bad.each_ref());
    house.advance(limits::PURGATORY_EXPIRY_SECS);
    stands(&house, &[&announcement, &state], &[]);
}

#[test]
fn f11_downtime_and_clock_steps_kill_nothing() {
    let mut house = House::default();
    let announcement = o().listed(&service(), "tool", 100, &[]);
    says(&mut house, &announcement, HELD);
    // A step of the wall clock by a day, both ways.
    for wall in [100_000, 1_000, 10_000] {
        house.set_wall(Timestamp(wall));
        stands(&house, &[], &[&announcement]);
    }
    // A day of downtime: five minutes are left.
    house.set_wall(Timestamp(10_000 + 86_400));
    house.restart();
    house.advance(limits::PURGATORY_STARTUP_GRACE_SECS - 1);
    stands(&house, &[], &[&announcement]);
    house.advance(1);
    stands(&house, &[], &[]);
    // A clock that went back does not make the wait longer than it may be.
    says(&mut house, &announcement, HELD);
    house.set_wall(Timestamp(1_000));
    house.restart();
    house.advance(limits::PURGATORY_EXPIRY_SECS);
    stands(&house, &[], &[]);
    // A short restart keeps the deadline.
    says(&mut house, &announcement, HELD);
    house.advance(600);
    house.restart();
    house.advance(limits::PURGATORY_EXPIRY_SECS - 601);
    stands(&house, &[], &[&announcement]);
    house.advance(1);
    stands(&house, &[], &[]);
}

#[test]
fn open_mode_takes_any_valid_event() {
    let mut house = House::new(AdmissionPolicy { mode: AdmissionMode::Open, ..rules() });
    let note = x().note(100, &[], "hello");
    let announcement = o().unlisted("tool", 100, &[]);
    let newer = o().unlisted("tool", 101, &[]);
    let state = main_at(&o(), 100, 'a');
    for event in [&note, &announcement, &state, &newer] {
        says(&mut house, event, SERVED);
    }
    says(&mut house, &announcement, OLD);
    let deletion = x().delete(200, &[&note]);
    says(&mut house, &deletion, SERVED);
    says(&mut house, &note, DELETED);
    let other_relay = o().vanish(200, &["wss://other.example"]);
    says(&mut house, &other_relay, SERVED);
    stands(&house, &[&state, &newer, &deletion, &other_relay], &[]);
    let vanish = o().vanish(201, &["ALL_RELAYS"]);
    says(&mut house, &vanish, SERVED);
    stands(&house, &[&deletion, &other_relay, &vanish], &[]);
    says(&mut house, &newer, VANISHED);
}

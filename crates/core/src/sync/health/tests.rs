use super::*;

mod rows;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;
const WALL: u64 = 1_800_000_000;

fn at(secs: u64) -> Now {
    Now { mono: Moment(secs * 1_000), wall: Timestamp(WALL + secs) }
}

fn fresh() -> Health {
    Health::new(BackoffConfig::default(), &HealthRow::default(), at(0))
}

fn moment(secs: u64) -> Moment {
    Moment(secs * 1_000)
}

/// Seconds until the next attempt, with the chance that gives exactly the middle of the spread.
fn wait_after_failure(health: &mut Health, now: Now) -> u64 {
    let mut probe = health.clone();
    let low = probe.failed(now, Blame::Theirs, 0).next.since(now.mono).as_millis();
    let low = u64::try_from(low).expect("small");
    let middle = if probe.is_dead() { HOUR * 1_000 } else { low / 4 };
    health.failed(now, Blame::Theirs, middle).next.since(now.mono).as_secs()
}

fn healthy(until: u64) -> Health {
    let mut health = fresh();
    health.connected(at(until - limits::STABLE_SECS));
    assert_eq!(health.status(at(until)), Status::Healthy);
    health
}

fn degraded(now: u64) -> Health {
    let mut health = fresh();
    health.failed(at(now), Blame::Theirs, 0);
    assert_eq!(health.status(at(now)), Status::Degraded);
    health
}

/// Fails at each chance until it is dead. When that was.
fn dead() -> (Health, u64) {
    let (mut health, mut now) = (fresh(), 100);
    loop {
        let verdict = health.failed(at(now), Blame::Theirs, 7);
        if verdict.died {
            return (health, now);
        }
        now = verdict.next.0.div_ceil(1_000);
        assert!(now < 2 * DAY, "it should have died");
    }
}

// The transitions of the seed, one by one.

#[test]
fn a_new_relay_is_disconnected_and_dialled_at_once() {
    let health = fresh();
    assert_eq!(health.status(at(0)), Status::Disconnected);
    assert_eq!((health.next_dial(), health.quiet_until(), health.failures()), (moment(0), None, 0));
    assert_eq!(health.row(at(0)), HealthRow::default());
}

#[test]
fn healthy_to_disconnected_by_a_normal_end() {
    let mut health = healthy(1_000);
    assert_eq!(health.lost(at(1_000), 5), moment(1_002));
    assert_eq!(health.status(at(1_000)), Status::Disconnected);
}

#[test]
fn disconnected_to_healthy_after_five_stable_minutes() {
    let mut health = fresh();
    health.connected(at(10));
    assert_eq!(health.status(at(10)), Status::Disconnected);
    assert_eq!(health.status(at(309)), Status::Disconnected);
    assert_eq!(health.status(at(310)), Status::Healthy);
}

#[test]
fn disconnected_to_degraded_by_a_failure() {
    let mut health = fresh();
    health.failed(at(1), Blame::Theirs, 0);
    assert_eq!(health.status(at(1)), Status::Degraded);
    assert_eq!(health.failures(), 1);
}

#[test]
fn degraded_to_dead_after_a_day_of_failures() {
    let (mut health, when) = dead();
    assert!((100 + DAY..100 + DAY + HOUR * 6 / 5 + 1).contains(&when), "{when}");
    assert_eq!(health.status(at(when)), Status::Dead);
    // It stays dead, is not declared so twice, and is tried once a day.
    let next = health.next_dial().0.div_ceil(1_000);
    assert!((23 * HOUR..=25 * HOUR).contains(&(next - when)));
    let verdict = health.failed(at(next), Blame::Theirs, u64::MAX);
    assert!(!verdict.died);
    assert!((23 * HOUR..=25 * HOUR).contains(&verdict.next.since(moment(next)).as_secs()));
    assert_eq!(health.status(at(next)), Status::Dead);
}

#[test]
fn degraded_to_disconnected_by_recovery_then_healthy() {
    let mut health = degraded(1);
    health.connected(at(100));
    assert_eq!((health.status(at(100)), health.failures()), (Status::Disconnected, 0));
    assert_eq!(health.status(at(400)), Status::Healthy);
}

#[test]
fn dead_to_disconnected_by_recovery() {
    let (mut health, when) = dead();
    health.connected(at(when + DAY));
    assert_eq!(health.status(at(when + DAY)), Status::Disconnected);
    // The next day of failures is counted from its beginning.
    health.lost(at(when + DAY + 1), 0);
    assert!(!health.failed(at(when + DAY + 10), Blame::Theirs, 0).died);
    assert_eq!(health.status(at(when + DAY + 10)), Status::Degraded);
}

#[test]
fn recovered_but_not_yet_stable_is_degraded_when_it_is_lost_again() {
    let mut health = degraded(1);
    health.connected(at(100));
    health.lost(at(200), 0);
    assert_eq!(health.status(at(200)), Status::Degraded);
}

#[test]
fn any_to_rate_limited_and_back_to_the_previous_state() {
    let mut unstable = fresh();
    unstable.connected(at(1_000));
    for (mut health, before) in [
        (fresh(), Status::Disconnected),
        (unstable, Status::Disconnected),
        (healthy(1_000), Status::Healthy),
        (degraded(1_000), Status::Degraded),
    ] {
        assert_eq!(health.status(at(1_000)), before);
        assert_eq!(health.limited(at(1_000)), moment(1_065));
        assert_eq!(health.status(at(1_064)), Status::RateLimited);
        assert_eq!(health.status(at(1_065)), before);
    }
    let (mut health, when) = dead();
    health.limited(at(when));
    assert_eq!(health.status(at(when + 64)), Status::RateLimited);
    assert_eq!(health.status(at(when + 65)), Status::Dead);
}

#[test]
fn the_numbers_of_the_metric() {
    let all = [Status::Healthy, Status::Disconnected, Status::Degraded, Status::Dead, Status::RateLimited];
    assert_eq!(all.map(|status| status as u8), [1, 2, 3, 4, 5]);
}

// Backoff.

#[test]
fn backoff_doubles_up_to_the_most() {
    let mut health = fresh();
    let mut now = 0;
    for wait in [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600, 3_600] {
        assert_eq!(wait_after_failure(&mut health, at(now)), wait);
        now += wait;
    }
}

#[test]
fn backoff_varies_by_a_fifth() {
    for (chance, millis) in [(0, 4_000), (1, 4_001), (1_000, 5_000), (2_000, 6_000), (2_001, 4_000)] {
        let next = fresh().failed(at(0), Blame::Theirs, chance).next;
        assert_eq!(next, Moment(millis), "{chance}");
    }
    let next = fresh().failed(at(0), Blame::Theirs, u64::MAX).next;
    assert!((4_000..=6_000).contains(&next.0));
}

#[test]
fn odd_settings_are_survived() {
    for (base_secs, max_secs, first, last) in [
        (0, 0, 1, 1),
        (1, 3, 1, 3),
        (10, 5, 10, 10),
        (u64::MAX, u64::MAX, u64::MAX / 1_000, u64::MAX / 1_000),
        (1, u64::MAX, 1, u64::MAX / 1_000),
    ] {
        let mut health = Health::new(BackoffConfig { base_secs, max_secs }, &HealthRow::default(), at(0));
        let least = |secs: u64| secs.saturating_mul(1_000) / 5 * 4 - 1_000.min(secs * 200);
        let next = health.failed(at(0), Blame::Theirs, 0).next;
        assert!(next.0 >= least(first), "{base_secs} {max_secs}: {next:?}");
        for _ in 0..200 {
            health.failed(at(0), Blame::Theirs, u64::MAX);
        }
        let next = health.failed(at(0), Blame::Theirs, 0).next;
        assert!(next.0 >= least(last), "{base_secs} {max_secs}: {next:?}");
        health.failed(at(0), Blame::Ours, u64::MAX);
        health.connected(at(0));
        health.lost(at(0), u64::MAX);
        assert_eq!(health.row(at(0)).failures, 0);
    }
}

#[test]
fn the_end_of_time_is_survived() {
    let end = Now { mono: Moment(u64::MAX), wall: Timestamp(u64::MAX) };
    let mut health = fresh();
    health.failures = u32::MAX;
    health.flaps = u32::MAX;
    health.strikes = u32::MAX;
    for chance in [0, u64::MAX] {
        assert_eq!(health.failed(end, Blame::Theirs, chance).next, end.mono);
        assert_eq!(health.failed(end, Blame::Ours, chance).next, end.mono);
        assert_eq!(health.limited(end), end.mono);
        assert_eq!(health.park(end, chance), end.mono);
        health.connected(end);
        assert_eq!(health.lost(end, chance), end.mono);
        let row = health.row(end);
        let again = Health::new(BackoffConfig::default(), &row, end);
        assert_eq!(again.status(end), health.status(end));
    }
}

// Our own outages.

#[test]
fn our_own_outage_counts_for_nothing() {
    let mut health = fresh();
    for (chance, millis) in [(0, 5_000), (1, 5_001), (55_000, 60_000), (55_001, 5_000)] {
        let verdict = health.failed(at(0), Blame::Ours, chance);
        assert_eq!(verdict, Verdict { next: Moment(millis), died: false });
    }
    assert_eq!((health.failures(), health.status(at(0))), (0, Status::Disconnected));
    let slow = BackoffConfig { base_secs: 600, max_secs: 3_600 };
    let mut health = Health::new(slow, &HealthRow::default(), at(0));
    assert_eq!(health.failed(at(0), Blame::Ours, 12_345).next, moment(60));
}

#[test]
fn our_own_outage_stops_the_clock_of_the_dead() {
    let mut health = fresh();
    health.failed(at(0), Blame::Theirs, 0);
    health.failed(at(23 * HOUR), Blame::Theirs, 0);
    health.failed(at(30 * HOUR), Blame::Ours, 0);
    // The time since the last failure that was theirs is nobody's.
    assert!(!health.failed(at(40 * HOUR), Blame::Theirs, 0).died);
    assert!(!health.failed(at(41 * HOUR - 1), Blame::Theirs, 0).died);
    assert!(health.failed(at(41 * HOUR), Blame::Theirs, 0).died);
    // A dead relay is still dead in an outage, but the probe that could not be made is made soon.
    let verdict = health.failed(at(60 * HOUR), Blame::Ours, 0);
    assert_eq!(verdict, Verdict { next: moment(60 * HOUR + 5), died: false });
    assert_eq!(health.status(at(60 * HOUR)), Status::Dead);
}

// Drops.

#[test]
fn a_relay_that_hangs_up_at_once_is_not_dialled_in_a_circle() {
    let mut health = fresh();
    let mut now = 0;
    // A fifth less each time, by this chance.
    for wait in [4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 2_880, 2_880] {
        health.connected(at(now));
        assert_eq!(health.lost(at(now + 1), 0), moment(now + 1 + wait));
        assert_eq!(health.status(at(now + 1)), Status::Degraded);
        now += 1 + wait;
    }
    // A failure is another matter and has a row of its own.
    assert_eq!(health.failed(at(now), Blame::Theirs, 0).next, moment(now + 4));
    now += 4;
    health.connected(at(now));
    assert_eq!(health.lost(at(now + 1), 0), moment(now + 1 + 2_880));
    // Five minutes make it better.
    now += 2_881;
    health.connected(at(now));
    assert_eq!(health.lost(at(now + 300), 0), moment(now + 302));
    health.connected(at(now + 302));
    assert_eq!(health.lost(at(now + 303), 0), moment(now + 307));
}

#[test]
fn nobody_is_dialled_within_two_seconds_of_a_drop() {
    let quick = BackoffConfig { base_secs: 1, max_secs: 1 };
    let mut health = Health::new(quick, &HealthRow::default(), at(0));
    health.connected(at(10));
    assert_eq!(health.lost(at(11), 0), moment(13));
    assert_eq!(health.left(at(20)), moment(22));
    assert_eq!(health.lost(at(30), 0), moment(32), "it was not connected");
}

#[test]
fn leaving_says_nothing_about_a_relay() {
    let mut health = fresh();
    health.connected(at(10));
    assert_eq!(health.left(at(11)), moment(13));
    assert_eq!(health.status(at(11)), Status::Disconnected);
}

// Complaints.

#[test]
fn quiet_doubles_up_to_an_hour() {
    let mut health = fresh();
    let mut now = 0;
    for secs in [65, 130, 260, 520, 1_040, 2_080, 3_600, 3_600] {
        assert_eq!(health.limited(at(now)), moment(now + secs));
        now += secs + limits::CALM_SECS - 1;
    }
}

#[test]
fn complaints_are_forgotten_after_five_calm_minutes() {
    let mut health = fresh();
    health.limited(at(0));
    assert_eq!(health.limited(at(65 + 299)), moment(65 + 299 + 130));
    let calm = 65 + 299 + 130 + 300;
    assert_eq!(health.row(at(calm - 1)).strikes, 2);
    assert_eq!(health.row(at(calm)), HealthRow::default());
    assert_eq!(health.limited(at(calm)), moment(calm + 65));
}

#[test]
fn a_burst_of_complaints_is_one() {
    let mut health = fresh();
    for second in 0..65 {
        assert_eq!(health.limited(at(second)), moment(second + 65));
    }
    assert_eq!(health.limited(at(64 + 65)), moment(64 + 65 + 130));
}

#[test]
fn dialling_waits_for_the_end_of_the_quiet() {
    let mut health = healthy(1_000);
    health.limited(at(1_000));
    assert_eq!(health.lost(at(1_001), 0), moment(1_065));
    assert_eq!(health.next_dial(), moment(1_065));
    assert_eq!(health.failed(at(1_002), Blame::Ours, 0).next, moment(1_065));
    assert_eq!(health.failed(at(1_060), Blame::Theirs, 1_000).next, moment(1_065));
    assert_eq!(health.failed(at(1_064), Blame::Theirs, 2_000).next, moment(1_074));
}

// Policy.

#[test]
fn a_parked_relay_is_degraded_and_probed_once_a_day() {
    let mut health = healthy(1_000);
    for (chance, secs) in [(0, 23 * HOUR), (HOUR * 1_000, DAY), (2 * HOUR * 1_000, 25 * HOUR)] {
        assert_eq!(health.park(at(1_000), chance), moment(1_000 + secs));
    }
    assert!(health.is_parked());
    assert_eq!(health.status(at(1_001)), Status::Degraded);
    // The end of the connection on which it said so does not bring the probe closer, whoever ends it.
    assert_eq!(health.lost(at(1_001), 0), moment(1_000 + 25 * HOUR));
    assert_eq!(health.left(at(1_001)), moment(1_000 + 25 * HOUR));
    // A probe without an answer, or without a connection, is followed by another day.
    let probe = 1_000 + 25 * HOUR;
    health.connected(at(probe));
    assert_eq!(health.status(at(probe + 300)), Status::Degraded);
    assert_eq!(health.lost(at(probe + 301), 0), moment(probe + 301 + 23 * HOUR));
    let probe = probe + DAY;
    assert_eq!(health.failed(at(probe), Blame::Theirs, 0).next, moment(probe + 23 * HOUR));
    health.unpark();
    health.connected(at(probe + DAY));
    assert_eq!(health.status(at(probe + DAY + 300)), Status::Healthy);
}

#[test]
fn retry_now_overrides_everything_but_forgets_nothing() {
    let (mut health, when) = dead();
    health.limited(at(when));
    health.park(at(when), 0);
    health.retry_now(at(when + 10));
    assert_eq!(health.next_dial(), moment(when + 10));
    assert_eq!(health.status(at(when + 10)), Status::Dead);
    assert_eq!(health.limited(at(when + 11)), moment(when + 11 + 130));
    assert!(health.is_parked());
    let mut health = fresh();
    health.retry_now(at(5));
    assert_eq!((health.next_dial(), health.quiet_until()), (moment(5), None));
}

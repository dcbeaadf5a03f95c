//! What is written down, what is made of it later, and the clocks.

use super::*;

/// The same wall time in a process that has just begun.
fn reborn(health: &Health, now: Now) -> (Health, Now) {
    let later = Now { mono: Moment(0), wall: now.wall };
    (Health::new(BackoffConfig::default(), &health.row(now), later), later)
}

#[test]
fn a_row_carries_everything_over() {
    let (mut health, when) = dead();
    health.limited(at(when));
    let row = health.row(at(when));
    assert_eq!(row.failures, health.failures());
    assert_eq!(row.failing_since, Some(Timestamp(WALL + 100)));
    assert_eq!(row.last_failure_at, Some(Timestamp(WALL + when)));
    assert_eq!((row.quiet_until, row.strikes), (Some(Timestamp(WALL + when + 65)), 1));
    let (next, now) = reborn(&health, at(when));
    assert_eq!(next.row(now), row);
    assert_eq!(next.status(now), Status::RateLimited);
    // A second more than the row says: it has whole ones.
    assert_eq!((next.status(at(65)), next.status(at(66))), (Status::RateLimited, Status::Dead));
    assert_eq!(next.next_dial(), moment(row.next_retry_at.expect("a day away").0 - now.wall.0 + 1));
}

#[test]
fn a_row_of_a_stable_relay() {
    let mut health = healthy(1_000);
    health.lost(at(1_000), 0);
    let row = health.row(at(1_000));
    let expected = HealthRow {
        last_success_at: Some(Timestamp(WALL + 700)),
        next_retry_at: Some(Timestamp(WALL + 1_002)),
        ..HealthRow::default()
    };
    assert_eq!(row, expected);
    assert_eq!(health.row(at(1_002)).next_retry_at, None);
}

#[test]
fn the_time_without_a_process_counts_for_nobody() {
    let mut health = fresh();
    health.failed(at(0), Blame::Theirs, 0);
    health.failed(at(23 * HOUR), Blame::Theirs, 0);
    let row = health.row(at(23 * HOUR));
    let boot = Now { mono: Moment(0), wall: Timestamp(WALL + 3 * DAY) };
    let mut health = Health::new(BackoffConfig::default(), &row, boot);
    assert_eq!((health.status(boot), health.next_dial()), (Status::Degraded, moment(0)));
    let later = |secs: u64| Now { mono: moment(secs), wall: boot.wall.plus_secs(secs) };
    assert!(!health.failed(later(HOUR - 1), Blame::Theirs, 0).died);
    assert!(health.failed(later(HOUR), Blame::Theirs, 0).died);
}

#[test]
fn strikes_survive_a_restart_but_not_a_calm_time() {
    let mut health = fresh();
    health.limited(at(0));
    let row = health.row(at(0));
    for (secs, strikes, quiet) in [(0, 1, Some(66)), (100, 1, Some(0)), (364, 1, Some(0)), (365, 0, None)] {
        let boot = Now { mono: Moment(0), wall: Timestamp(WALL + secs) };
        let health = Health::new(BackoffConfig::default(), &row, boot);
        assert_eq!((health.strikes, health.quiet_until()), (strikes, quiet.map(moment)), "{secs}");
    }
}

#[test]
fn a_row_from_the_future_delays_nothing_for_long() {
    let far = Some(Timestamp(WALL + 1_000 * DAY));
    let row = HealthRow {
        failures: 3,
        failing_since: far,
        last_failure_at: far,
        last_success_at: far,
        next_retry_at: far,
        quiet_until: far,
        strikes: 2,
        parked: false,
    };
    let health = Health::new(BackoffConfig::default(), &row, at(0));
    assert_eq!(health.quiet_until(), Some(moment(HOUR)));
    assert!(health.next_dial() <= moment(HOUR * 6 / 5 + 1));
    assert_eq!(health.status(at(HOUR)), Status::Degraded);
    assert_eq!(health.row(at(0)).last_success_at, Some(Timestamp(WALL)));
    let parked = Health::new(BackoffConfig::default(), &HealthRow { parked: true, ..row }, at(0));
    assert_eq!(parked.next_dial(), moment(25 * HOUR));
    let lowered = Health::new(BackoffConfig { base_secs: 1, max_secs: 1 }, &row, at(HOUR));
    assert!(lowered.next_dial.mono <= moment(HOUR + 73));
}

#[test]
fn a_very_old_row_is_forgotten() {
    let old = Timestamp(WALL - 8 * DAY);
    let row = HealthRow {
        failures: 9,
        failing_since: Some(Timestamp(0)),
        last_failure_at: Some(old),
        next_retry_at: Some(old),
        quiet_until: Some(old),
        strikes: 9,
        ..HealthRow::default()
    };
    let health = Health::new(BackoffConfig::default(), &row, at(0));
    assert_eq!((health.status(at(0)), health.failures()), (Status::Disconnected, 0));
    assert_eq!((health.next_dial(), health.strikes), (moment(0), 0));
}

#[test]
fn a_broken_row_is_survived() {
    let row = HealthRow { failures: u32::MAX, strikes: u32::MAX, ..HealthRow::default() };
    let mut health = Health::new(BackoffConfig::default(), &row, at(0));
    assert_eq!(health.status(at(0)), Status::Degraded);
    health.failed(at(1), Blame::Theirs, 0);
    assert_eq!(health.failures(), u32::MAX);
    assert_eq!(health.limited(at(1)), moment(66));
}

#[test]
fn steps_of_the_wall_clock_do_not_matter() {
    let mut stepping = fresh();
    let mut steady = fresh();
    let jumps = [0, 1_000 * DAY, 0, 7, u64::MAX, WALL];
    for (step, jump) in (0_u64..).zip(jumps.into_iter().cycle().take(60)) {
        let odd = |secs: u64| Now { mono: moment(secs), wall: Timestamp(jump) };
        let start = step * HOUR;
        for (health, clock) in [(&mut stepping, &odd as &dyn Fn(u64) -> Now), (&mut steady, &at)] {
            match step % 20 {
                0 => health.connected(clock(start)),
                1 => drop(health.lost(clock(start), step)),
                2 => drop(health.limited(clock(start))),
                3 => drop(health.failed(clock(start), Blame::Ours, step)),
                _ => drop(health.failed(clock(start), Blame::Theirs, step)),
            }
        }
        assert_eq!(stepping.next_dial(), steady.next_dial(), "{step}");
        assert_eq!(stepping.quiet_until(), steady.quiet_until(), "{step}");
        for secs in [0, 60, 400] {
            assert_eq!(stepping.status(odd(start + secs)), steady.status(at(start + secs)), "{step}");
        }
    }
}

//! Tests of the stored health record and of clock changes.

use super::*;

/// Restores the health in a new process at the same wall clock time.
fn restored(health: &RelayHealth, now: Now) -> (RelayHealth, Now) {
    let later = Now { mono: MonoTime(0), wall: now.wall };
    (RelayHealth::new(BackoffConfig::default(), &health.to_record(now), later), later)
}

#[test]
fn record_restores_the_complete_health() {
    let (mut health, when) = dead();
    health.record_rate_limit(at(when));
    let record = health.to_record(at(when));
    assert_eq!(record.failures, health.failures());
    assert_eq!(record.failing_since, Some(Timestamp(WALL + 100)));
    assert_eq!(record.last_failure_at, Some(Timestamp(WALL + when)));
    assert_eq!((record.cooldown_until, record.rate_limit_count), (Some(Timestamp(WALL + when + 65)), 1));
    let (next, now) = restored(&health, at(when));
    assert_eq!(next.to_record(now), record);
    assert_eq!(next.status(now), HealthStatus::RateLimited);
    // One second more than stored, because stored times are rounded to seconds.
    assert_eq!((next.status(at(65)), next.status(at(66))), (HealthStatus::RateLimited, HealthStatus::Dead));
    assert_eq!(next.next_dial_at(), mono(record.next_retry_at.expect("a day away").0 - now.wall.0 + 1));
}

#[test]
fn record_of_a_stable_relay() {
    let mut health = healthy(1_000);
    health.record_lost(at(1_000), 0);
    let record = health.to_record(at(1_000));
    let expected = HealthRecord {
        last_success_at: Some(Timestamp(WALL + 700)),
        next_retry_at: Some(Timestamp(WALL + 1_002)),
        ..HealthRecord::default()
    };
    assert_eq!(record, expected);
    assert_eq!(health.to_record(at(1_002)).next_retry_at, None);
}

#[test]
fn time_without_a_process_is_not_counted_as_failing() {
    let mut health = fresh();
    health.record_failure(at(0), FailureCause::Relay, 0);
    health.record_failure(at(23 * HOUR), FailureCause::Relay, 0);
    let record = health.to_record(at(23 * HOUR));
    let boot = Now { mono: MonoTime(0), wall: Timestamp(WALL + 3 * DAY) };
    let mut health = RelayHealth::new(BackoffConfig::default(), &record, boot);
    assert_eq!((health.status(boot), health.next_dial_at()), (HealthStatus::Degraded, mono(0)));
    let later = |secs: u64| Now { mono: mono(secs), wall: boot.wall.plus_secs(secs) };
    assert!(!health.record_failure(later(HOUR - 1), FailureCause::Relay, 0).became_dead);
    assert!(health.record_failure(later(HOUR), FailureCause::Relay, 0).became_dead);
}

#[test]
fn rate_limit_count_survives_a_restart_but_not_a_calm_period() {
    let mut health = fresh();
    health.record_rate_limit(at(0));
    let record = health.to_record(at(0));
    for (secs, rate_limit_count, cooldown) in [(0, 1, Some(66)), (100, 1, Some(0)), (364, 1, Some(0)), (365, 0, None)] {
        let boot = Now { mono: MonoTime(0), wall: Timestamp(WALL + secs) };
        let health = RelayHealth::new(BackoffConfig::default(), &record, boot);
        assert_eq!(
            (health.rate_limit_count, health.cooldown_until()),
            (rate_limit_count, cooldown.map(mono)),
            "{secs}"
        );
    }
}

#[test]
fn record_with_future_times_delays_dialling_only_briefly() {
    let far = Some(Timestamp(WALL + 1_000 * DAY));
    let record = HealthRecord {
        failures: 3,
        failing_since: far,
        last_failure_at: far,
        last_success_at: far,
        next_retry_at: far,
        cooldown_until: far,
        rate_limit_count: 2,
        parked: false,
    };
    let health = RelayHealth::new(BackoffConfig::default(), &record, at(0));
    assert_eq!(health.cooldown_until(), Some(mono(HOUR)));
    assert!(health.next_dial_at() <= mono(HOUR * 6 / 5 + 1));
    assert_eq!(health.status(at(HOUR)), HealthStatus::Degraded);
    assert_eq!(health.to_record(at(0)).last_success_at, Some(Timestamp(WALL)));
    let parked = RelayHealth::new(BackoffConfig::default(), &HealthRecord { parked: true, ..record }, at(0));
    assert_eq!(parked.next_dial_at(), mono(25 * HOUR));
    let lowered = RelayHealth::new(BackoffConfig { base_secs: 1, max_secs: 1 }, &record, at(HOUR));
    assert!(lowered.next_dial.mono <= mono(HOUR + 73));
}

#[test]
fn old_record_is_ignored() {
    let old = Timestamp(WALL - 8 * DAY);
    let record = HealthRecord {
        failures: 9,
        failing_since: Some(Timestamp(0)),
        last_failure_at: Some(old),
        next_retry_at: Some(old),
        cooldown_until: Some(old),
        rate_limit_count: 9,
        ..HealthRecord::default()
    };
    let health = RelayHealth::new(BackoffConfig::default(), &record, at(0));
    assert_eq!((health.status(at(0)), health.failures()), (HealthStatus::Disconnected, 0));
    assert_eq!((health.next_dial_at(), health.rate_limit_count), (mono(0), 0));
}

#[test]
fn inconsistent_record_does_not_panic() {
    let record = HealthRecord { failures: u32::MAX, rate_limit_count: u32::MAX, ..HealthRecord::default() };
    let mut health = RelayHealth::new(BackoffConfig::default(), &record, at(0));
    assert_eq!(health.status(at(0)), HealthStatus::Degraded);
    health.record_failure(at(1), FailureCause::Relay, 0);
    assert_eq!(health.failures(), u32::MAX);
    assert_eq!(health.record_rate_limit(at(1)), mono(66));
}

#[test]
fn steps_of_the_wall_clock_do_not_matter() {
    let mut stepping = fresh();
    let mut steady = fresh();
    let jumps = [0, 1_000 * DAY, 0, 7, u64::MAX, WALL];
    for (step, jump) in (0_u64..).zip(jumps.into_iter().cycle().take(60)) {
        let odd = |secs: u64| Now { mono: mono(secs), wall: Timestamp(jump) };
        let start = step * HOUR;
        for (health, clock) in [(&mut stepping, &odd as &dyn Fn(u64) -> Now), (&mut steady, &at)] {
            match step % 20 {
                0 => health.record_connected(clock(start)),
                1 => drop(health.record_lost(clock(start), step)),
                2 => drop(health.record_rate_limit(clock(start))),
                3 => drop(health.record_failure(clock(start), FailureCause::OwnNetwork, step)),
                _ => drop(health.record_failure(clock(start), FailureCause::Relay, step)),
            }
        }
        assert_eq!(stepping.next_dial_at(), steady.next_dial_at(), "{step}");
        assert_eq!(stepping.cooldown_until(), steady.cooldown_until(), "{step}");
        for secs in [0, 60, 400] {
            assert_eq!(stepping.status(odd(start + secs)), steady.status(at(start + secs)), "{step}");
        }
    }
}

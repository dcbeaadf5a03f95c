use super::*;

mod rows;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;
const WALL: u64 = 1_800_000_000;

fn at(secs: u64) -> Now {
    Now { mono: MonoTime(secs * 1_000), wall: Timestamp(WALL + secs) }
}

fn fresh() -> RelayHealth {
    RelayHealth::new(BackoffConfig::default(), &HealthRecord::default(), at(0))
}

fn mono(secs: u64) -> MonoTime {
    MonoTime(secs * 1_000)
}

/// Records a failure and returns the seconds until the next attempt, with a random number in the middle of the jitter.
fn wait_after_failure(health: &mut RelayHealth, now: Now) -> u64 {
    let mut probe = health.clone();
    let low = probe.record_failure(now, FailureCause::Relay, 0).retry_at.since(now.mono).as_millis();
    let low = u64::try_from(low).expect("small");
    let middle = if probe.is_dead() { HOUR * 1_000 } else { low / 4 };
    health.record_failure(now, FailureCause::Relay, middle).retry_at.since(now.mono).as_secs()
}

fn healthy(until: u64) -> RelayHealth {
    let mut health = fresh();
    health.record_connected(at(until - limits::RELAY_STABLE_SECS));
    assert_eq!(health.status(at(until)), HealthStatus::Healthy);
    health
}

fn degraded(now: u64) -> RelayHealth {
    let mut health = fresh();
    health.record_failure(at(now), FailureCause::Relay, 0);
    assert_eq!(health.status(at(now)), HealthStatus::Degraded);
    health
}

/// Returns a relay that failed at every attempt until it was dead, and the time when it became dead.
fn dead() -> (RelayHealth, u64) {
    let (mut health, mut now) = (fresh(), 100);
    loop {
        let outcome = health.record_failure(at(now), FailureCause::Relay, 7);
        if outcome.became_dead {
            return (health, now);
        }
        now = outcome.retry_at.0.div_ceil(1_000);
        assert!(now < 2 * DAY, "relay did not become dead");
    }
}

// Status transitions

#[test]
fn a_new_relay_is_disconnected_and_dialled_at_once() {
    let health = fresh();
    assert_eq!(health.status(at(0)), HealthStatus::Disconnected);
    assert_eq!((health.next_dial_at(), health.cooldown_until(), health.failures()), (mono(0), None, 0));
    assert_eq!(health.to_record(at(0)), HealthRecord::default());
}

#[test]
fn healthy_relay_becomes_disconnected_when_the_connection_ends() {
    let mut health = healthy(1_000);
    assert_eq!(health.record_lost(at(1_000), 5), mono(1_002));
    assert_eq!(health.status(at(1_000)), HealthStatus::Disconnected);
}

#[test]
fn relay_becomes_healthy_after_five_stable_minutes() {
    let mut health = fresh();
    health.record_connected(at(10));
    assert_eq!(health.status(at(10)), HealthStatus::Stabilising);
    assert_eq!(health.status(at(309)), HealthStatus::Stabilising);
    assert_eq!(health.status(at(310)), HealthStatus::Healthy);
}

#[test]
fn failure_makes_a_relay_degraded() {
    let mut health = fresh();
    health.record_failure(at(1), FailureCause::Relay, 0);
    assert_eq!(health.status(at(1)), HealthStatus::Degraded);
    assert_eq!(health.failures(), 1);
}

#[test]
fn relay_is_dead_after_a_day_of_failures() {
    let (mut health, when) = dead();
    assert!((100 + DAY..100 + DAY + HOUR * 6 / 5 + 1).contains(&when), "{when}");
    assert_eq!(health.status(at(when)), HealthStatus::Dead);
    // The relay stays dead, is reported only once, and is dialled once a day.
    let next = health.next_dial_at().0.div_ceil(1_000);
    assert!((23 * HOUR..=25 * HOUR).contains(&(next - when)));
    let outcome = health.record_failure(at(next), FailureCause::Relay, u64::MAX);
    assert!(!outcome.became_dead);
    assert!((23 * HOUR..=25 * HOUR).contains(&outcome.retry_at.since(mono(next)).as_secs()));
    assert_eq!(health.status(at(next)), HealthStatus::Dead);
}

#[test]
fn degraded_relay_recovers_and_becomes_healthy() {
    let mut health = degraded(1);
    health.record_connected(at(100));
    assert_eq!((health.status(at(100)), health.failures()), (HealthStatus::Stabilising, 0));
    assert_eq!(health.status(at(400)), HealthStatus::Healthy);
}

#[test]
fn dead_relay_recovers_when_it_connects() {
    let (mut health, when) = dead();
    health.record_connected(at(when + DAY));
    assert_eq!(health.status(at(when + DAY)), HealthStatus::Stabilising);
    // The next day of failures starts from zero.
    health.record_lost(at(when + DAY + 1), 0);
    assert!(!health.record_failure(at(when + DAY + 10), FailureCause::Relay, 0).became_dead);
    assert_eq!(health.status(at(when + DAY + 10)), HealthStatus::Degraded);
}

#[test]
fn relay_lost_before_it_is_stable_is_degraded() {
    let mut health = degraded(1);
    health.record_connected(at(100));
    health.record_lost(at(200), 0);
    assert_eq!(health.status(at(200)), HealthStatus::Degraded);
}

#[test]
fn rate_limit_overrides_the_status_until_the_cooldown_ends() {
    let mut unstable = fresh();
    unstable.record_connected(at(1_000));
    for (mut health, before) in [
        (fresh(), HealthStatus::Disconnected),
        (unstable, HealthStatus::Stabilising),
        (healthy(1_000), HealthStatus::Healthy),
        (degraded(1_000), HealthStatus::Degraded),
    ] {
        assert_eq!(health.status(at(1_000)), before);
        assert_eq!(health.record_rate_limit(at(1_000)), mono(1_065));
        assert_eq!(health.status(at(1_064)), HealthStatus::RateLimited);
        assert_eq!(health.status(at(1_065)), before);
    }
    let (mut health, when) = dead();
    health.record_rate_limit(at(when));
    assert_eq!(health.status(at(when + 64)), HealthStatus::RateLimited);
    assert_eq!(health.status(at(when + 65)), HealthStatus::Dead);
}

#[test]
fn status_values_match_the_metric() {
    let all = [
        HealthStatus::Healthy,
        HealthStatus::Disconnected,
        HealthStatus::Degraded,
        HealthStatus::Dead,
        HealthStatus::RateLimited,
    ];
    assert_eq!(all.map(HealthStatus::metric_value), [1, 2, 3, 4, 5]);
    assert_eq!(HealthStatus::Stabilising.metric_value(), HealthStatus::Disconnected.metric_value());
}

#[test]
fn repeated_rate_limits_do_not_extend_a_cooldown_forever() {
    let mut health = fresh();
    let end = 2 * limits::RATE_LIMIT_COOLDOWN_SECS;
    for secs in 0..end {
        health.record_rate_limit(at(secs));
        assert!(health.is_in_cooldown(at(secs)));
    }
    assert!(!health.is_in_cooldown(at(end)));
    // The next one is a new rate limit.
    assert_eq!(health.record_rate_limit(at(end)), mono(end + 2 * limits::RATE_LIMIT_COOLDOWN_SECS));
}

// Backoff

#[test]
fn backoff_doubles_up_to_the_maximum() {
    let mut health = fresh();
    let mut now = 0;
    for wait in [5, 10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600, 3_600] {
        assert_eq!(wait_after_failure(&mut health, at(now)), wait);
        now += wait;
    }
}

#[test]
fn backoff_jitter_is_twenty_percent() {
    for (random, millis) in [(0, 4_000), (1, 4_001), (1_000, 5_000), (2_000, 6_000), (2_001, 4_000)] {
        let next = fresh().record_failure(at(0), FailureCause::Relay, random).retry_at;
        assert_eq!(next, MonoTime(millis), "{random}");
    }
    let next = fresh().record_failure(at(0), FailureCause::Relay, u64::MAX).retry_at;
    assert!((4_000..=6_000).contains(&next.0));
}

#[test]
fn extreme_settings_do_not_panic() {
    for (base_secs, max_secs, first, last) in [
        (0, 0, 1, 1),
        (1, 3, 1, 3),
        (10, 5, 10, 10),
        (u64::MAX, u64::MAX, u64::MAX / 1_000, u64::MAX / 1_000),
        (1, u64::MAX, 1, u64::MAX / 1_000),
    ] {
        let mut health = RelayHealth::new(BackoffConfig { base_secs, max_secs }, &HealthRecord::default(), at(0));
        let min_millis = |secs: u64| secs.saturating_mul(1_000) / 5 * 4 - 1_000.min(secs * 200);
        let next = health.record_failure(at(0), FailureCause::Relay, 0).retry_at;
        assert!(next.0 >= min_millis(first), "{base_secs} {max_secs}: {next:?}");
        for _ in 0..200 {
            health.record_failure(at(0), FailureCause::Relay, u64::MAX);
        }
        let next = health.record_failure(at(0), FailureCause::Relay, 0).retry_at;
        assert!(next.0 >= min_millis(last), "{base_secs} {max_secs}: {next:?}");
        health.record_failure(at(0), FailureCause::OwnNetwork, u64::MAX);
        health.record_connected(at(0));
        health.record_lost(at(0), u64::MAX);
        assert_eq!(health.to_record(at(0)).failures, 0);
    }
}

#[test]
fn maximum_time_does_not_overflow() {
    let end = Now { mono: MonoTime(u64::MAX), wall: Timestamp(u64::MAX) };
    let mut health = fresh();
    health.failures = u32::MAX;
    health.short_connections = u32::MAX;
    health.rate_limit_count = u32::MAX;
    for random in [0, u64::MAX] {
        assert_eq!(health.record_failure(end, FailureCause::Relay, random).retry_at, end.mono);
        assert_eq!(health.record_failure(end, FailureCause::OwnNetwork, random).retry_at, end.mono);
        assert_eq!(health.record_rate_limit(end), end.mono);
        assert_eq!(health.park(end, random), end.mono);
        health.record_connected(end);
        assert_eq!(health.record_lost(end, random), end.mono);
        let record = health.to_record(end);
        let again = RelayHealth::new(BackoffConfig::default(), &record, end);
        assert_eq!(again.status(end), health.status(end));
    }
}

// Outages of the own network

#[test]
fn own_network_outage_is_not_counted_as_failure() {
    let mut health = fresh();
    for (random, millis) in [(0, 5_000), (1, 5_001), (55_000, 60_000), (55_001, 5_000)] {
        let outcome = health.record_failure(at(0), FailureCause::OwnNetwork, random);
        assert_eq!(outcome, FailureOutcome { retry_at: MonoTime(millis), became_dead: false });
    }
    assert_eq!((health.failures(), health.status(at(0))), (0, HealthStatus::Disconnected));
    let slow = BackoffConfig { base_secs: 600, max_secs: 3_600 };
    let mut health = RelayHealth::new(slow, &HealthRecord::default(), at(0));
    assert_eq!(health.record_failure(at(0), FailureCause::OwnNetwork, 12_345).retry_at, mono(60));
}

#[test]
fn own_network_outage_does_not_count_towards_dead() {
    let mut health = fresh();
    health.record_failure(at(0), FailureCause::Relay, 0);
    health.record_failure(at(23 * HOUR), FailureCause::Relay, 0);
    health.record_failure(at(30 * HOUR), FailureCause::OwnNetwork, 0);
    // The time from the last failure of the relay to the end of the outage does not count.
    assert!(!health.record_failure(at(40 * HOUR), FailureCause::Relay, 0).became_dead);
    assert!(!health.record_failure(at(41 * HOUR - 1), FailureCause::Relay, 0).became_dead);
    assert!(health.record_failure(at(41 * HOUR), FailureCause::Relay, 0).became_dead);
    // A dead relay stays dead in an outage, and is not dialled more often during it.
    let outcome = health.record_failure(at(60 * HOUR), FailureCause::OwnNetwork, 0);
    assert_eq!(outcome, FailureOutcome { retry_at: mono(83 * HOUR), became_dead: false });
    assert_eq!(health.status(at(60 * HOUR)), HealthStatus::Dead);
}

// Disconnects

#[test]
fn relay_that_disconnects_at_once_is_dialled_with_backoff() {
    let mut health = fresh();
    let mut now = 0;
    // The random number 0 gives the minimum: 20 % less.
    for wait in [4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 2_880, 2_880] {
        health.record_connected(at(now));
        assert_eq!(health.record_lost(at(now + 1), 0), mono(now + 1 + wait));
        assert_eq!(health.status(at(now + 1)), HealthStatus::Degraded);
        now += 1 + wait;
    }
    // Failed attempts are counted separately from short connections.
    assert_eq!(health.record_failure(at(now), FailureCause::Relay, 0).retry_at, mono(now + 4));
    now += 4;
    health.record_connected(at(now));
    assert_eq!(health.record_lost(at(now + 1), 0), mono(now + 1 + 2_880));
    // A connection of five minutes resets the count.
    now += 2_881;
    health.record_connected(at(now));
    assert_eq!(health.record_lost(at(now + 300), 0), mono(now + 302));
    health.record_connected(at(now + 302));
    assert_eq!(health.record_lost(at(now + 303), 0), mono(now + 307));
}

#[test]
fn no_redial_within_two_seconds_of_a_disconnect() {
    let quick = BackoffConfig { base_secs: 1, max_secs: 1 };
    let mut health = RelayHealth::new(quick, &HealthRecord::default(), at(0));
    health.record_connected(at(10));
    assert_eq!(health.record_lost(at(11), 0), mono(13));
    assert_eq!(health.record_closed(at(20)), mono(22));
    assert_eq!(health.record_lost(at(30), 0), mono(32), "it was not connected");
}

#[test]
fn own_disconnect_does_not_change_health() {
    let mut health = fresh();
    health.record_connected(at(10));
    assert_eq!(health.record_closed(at(11)), mono(13));
    assert_eq!(health.status(at(11)), HealthStatus::Disconnected);
}

// Rate limits

#[test]
fn cooldown_doubles_up_to_an_hour() {
    let mut health = fresh();
    let mut now = 0;
    for secs in [65, 130, 260, 520, 1_040, 2_080, 3_600, 3_600] {
        assert_eq!(health.record_rate_limit(at(now)), mono(now + secs));
        now += secs + limits::RATE_LIMIT_RESET_SECS - 1;
    }
}

#[test]
fn rate_limits_are_forgotten_after_five_minutes() {
    let mut health = fresh();
    health.record_rate_limit(at(0));
    assert_eq!(health.record_rate_limit(at(65 + 299)), mono(65 + 299 + 130));
    let calm = 65 + 299 + 130 + 300;
    assert_eq!(health.to_record(at(calm - 1)).rate_limit_count, 2);
    assert_eq!(health.to_record(at(calm)), HealthRecord::default());
    assert_eq!(health.record_rate_limit(at(calm)), mono(calm + 65));
}

#[test]
fn burst_of_rate_limits_counts_once() {
    let mut health = fresh();
    for second in 0..65 {
        assert_eq!(health.record_rate_limit(at(second)), mono(second + 65));
    }
    assert_eq!(health.record_rate_limit(at(64 + 65)), mono(64 + 65 + 130));
}

#[test]
fn relay_is_not_dialled_during_its_cooldown() {
    let mut health = healthy(1_000);
    health.record_rate_limit(at(1_000));
    assert_eq!(health.record_lost(at(1_001), 0), mono(1_065));
    assert_eq!(health.next_dial_at(), mono(1_065));
    assert_eq!(health.record_failure(at(1_002), FailureCause::OwnNetwork, 0).retry_at, mono(1_065));
    assert_eq!(health.record_failure(at(1_060), FailureCause::Relay, 1_000).retry_at, mono(1_065));
    assert_eq!(health.record_failure(at(1_064), FailureCause::Relay, 2_000).retry_at, mono(1_074));
}

// Parking

#[test]
fn a_parked_relay_is_degraded_and_probed_once_a_day() {
    let mut health = healthy(1_000);
    for (random, secs) in [(0, 23 * HOUR), (HOUR * 1_000, DAY), (2 * HOUR * 1_000, 25 * HOUR)] {
        assert_eq!(health.park(at(1_000), random), mono(1_000 + secs));
    }
    assert!(health.is_parked());
    assert_eq!(health.status(at(1_001)), HealthStatus::Degraded);
    // The end of the connection does not bring the probe forward, no matter which side closes it.
    assert_eq!(health.record_lost(at(1_001), 0), mono(1_000 + 25 * HOUR));
    assert_eq!(health.record_closed(at(1_001)), mono(1_000 + 25 * HOUR));
    // A probe that fails is followed by another one a day later.
    let probe = 1_000 + 25 * HOUR;
    health.record_connected(at(probe));
    assert_eq!(health.status(at(probe + 300)), HealthStatus::Degraded);
    assert_eq!(health.record_lost(at(probe + 301), 0), mono(probe + 301 + 23 * HOUR));
    let probe = probe + DAY;
    assert_eq!(health.record_failure(at(probe), FailureCause::Relay, 0).retry_at, mono(probe + 23 * HOUR));
    health.unpark();
    health.record_connected(at(probe + DAY));
    assert_eq!(health.status(at(probe + DAY + 300)), HealthStatus::Healthy);
}

#[test]
fn retry_now_overrides_everything_but_forgets_nothing() {
    let (mut health, when) = dead();
    health.record_rate_limit(at(when));
    health.park(at(when), 0);
    health.retry_now(at(when + 10));
    assert_eq!(health.next_dial_at(), mono(when + 10));
    assert_eq!(health.status(at(when + 10)), HealthStatus::Dead);
    assert_eq!(health.record_rate_limit(at(when + 11)), mono(when + 11 + 130));
    assert!(health.is_parked());
    let mut health = fresh();
    health.retry_now(at(5));
    assert_eq!((health.next_dial_at(), health.cooldown_until()), (mono(5), None));
}

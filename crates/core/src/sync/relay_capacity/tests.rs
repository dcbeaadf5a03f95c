//! Which of the listed relays are dialled, and when.

use super::super::SyncLimits;
use super::super::io::{RestoredRow, SyncInput};
use super::super::relay_record::{HealthRecord, RelayRecord};
use super::super::relay_url::RelayUrl;
use super::super::tests::{Dialled, TestRelays, at};
use super::*;
use crate::repo::catalog::EventStatus;
use crate::time::Timestamp;

fn urls(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("wss://{prefix}{number:02}.example")).collect()
}

#[test]
fn two_unreachable_relays_that_are_listed_first_do_not_prevent_others() {
    let mut relays = TestRelays::new(SyncLimits::default(), |host| match host {
        "z.example" => Dialled::IsSilent,
        _ => Dialled::Refuses,
    });
    relays.handle(SyncInput::Ready);
    let listed = ["wss://a.example", "wss://b.example", "wss://z.example"].map(str::to_owned);
    relays.list(1, "thing", EventStatus::Held, &listed);
    relays.run(5);
    assert!(relays.has_dialled("z.example"), "{:?}", relays.dialled);
}

#[test]
fn every_relay_of_a_held_repository_is_tried() {
    for behaviour in [(|_| Dialled::Refuses) as fn(&str) -> Dialled, |_| Dialled::IsSilent] {
        let mut relays = TestRelays::new(SyncLimits::default(), behaviour);
        relays.handle(SyncInput::Ready);
        let listed = urls("r", limits::MAX_RELAYS_PER_REPOSITORY);
        relays.list(1, "thing", EventStatus::Held, &listed);
        relays.run(10 * 60);
        let tried: BTreeSet<&String> = relays.dialled.iter().collect();
        assert_eq!(tried.len(), listed.len());
        assert!(relays.followed() <= limits::MAX_SYNC_RELAYS_PER_HELD_AUTHOR);
    }
}

#[test]
fn author_of_held_repositories_has_only_a_share_of_the_relays() {
    let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::IsSilent);
    relays.handle(SyncInput::Ready);
    for number in 0..16 {
        relays.list(1, &format!("flood{number}"), EventStatus::Held, &urls(&format!("flood{number}x"), 2));
    }
    relays.run(30);
    assert_eq!(relays.followed(), limits::MAX_SYNC_RELAYS_PER_HELD_AUTHOR);
    relays.list(2, "thing", EventStatus::Held, &urls("other", 1));
    relays.run(5);
    assert!(relays.has_dialled("other00.example"));
}

#[test]
fn relays_of_held_repositories_are_bounded_and_take_turns() {
    let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::IsSilent);
    relays.handle(SyncInput::Ready);
    for owner in 0..40 {
        relays.list(owner, &format!("flood{owner}"), EventStatus::Held, &urls(&format!("flood{owner}x"), 2));
    }
    for _ in 0..60 {
        relays.run(10);
        assert!(relays.followed() <= limits::MAX_SYNC_RELAYS_OF_HELD_REPOS);
    }
    let tried: BTreeSet<&String> = relays.dialled.iter().collect();
    assert_eq!(tried.len(), 80);
    // After that each keeps its connection for a while.
    let before = relays.dialled.len();
    relays.run(60);
    assert!(relays.dialled.len() <= before + limits::MAX_SYNC_RELAYS_OF_HELD_REPOS, "{:?}", relays.dialled);
}

#[test]
fn relay_that_was_reached_before_is_tried_first() {
    let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::IsSilent);
    let health = HealthRecord { last_success_at: Some(at(0).wall), ..HealthRecord::default() };
    let url = RelayUrl::parse("wss://r09.example").expect("valid URL");
    let record = RelayRecord { url, health, wanted_at: at(0).wall, ..RelayRecord::default() };
    relays.handle(SyncInput::Restored(RestoredRow::Relay(Box::new(record))));
    relays.list(1, "thing", EventStatus::Held, &urls("r", 10));
    relays.handle(SyncInput::Ready);
    relays.run(1);
    assert_eq!(relays.dialled.first().map(String::as_str), Some("r09.example"));
}

#[test]
fn relay_refused_by_a_limit_is_followed_when_capacity_is_available() {
    let per_host =
        |max_relays, max_relays_per_host| SyncLimits { max_relays, max_relays_per_host, ..Default::default() };
    for (limits, third) in [
        (per_host(2, 8), "wss://c.example"),
        (per_host(9, 1), "wss://a.example/other"),
        (per_host(1, 1), "wss://c.example"),
    ] {
        let mut relays = TestRelays::new(limits, |_| Dialled::IsSilent);
        relays.handle(SyncInput::Ready);
        relays.list(1, "first", EventStatus::Served, &["wss://a.example".to_owned()]);
        if limits.max_relays > 1 {
            relays.list(1, "second", EventStatus::Served, &["wss://b.example".to_owned()]);
        }
        relays.run(10);
        relays.list(1, "third", EventStatus::Served, &[third.to_owned()]);
        relays.run(10);
        let is_followed = |relays: &TestRelays| relays.machine.relay_ids.contains_key(&third["wss://".len()..]);
        assert!(!is_followed(&relays), "{third}");
        relays.unlist("first");
        relays.run(limits::UNUSED_RELAY_DISCONNECT_SECS + 5);
        assert!(is_followed(&relays), "{third}");
    }
}

#[test]
fn dead_relay_is_replaced_by_a_waiting_one() {
    let limits = SyncLimits { max_relays: 2, ..Default::default() };
    let mut relays = TestRelays::new(limits, |host| match host {
        "dead.example" => Dialled::Refuses,
        _ => Dialled::IsSilent,
    });
    relays.handle(SyncInput::Ready);
    relays.list(1, "steady", EventStatus::Served, &["wss://steady.example".to_owned()]);
    relays.list(1, "first", EventStatus::Served, &["wss://dead.example".to_owned()]);
    relays.list(1, "second", EventStatus::Served, &["wss://waits.example".to_owned()]);
    relays.run(60);
    assert!(!relays.has_dialled("waits.example"));
    let id = relays.machine.relay_ids["dead.example"];
    let record = HealthRecord {
        failures: 40,
        failing_since: Some(at(0).wall),
        last_failure_at: Some(Timestamp(at(0).wall.0 + limits::RELAY_DEAD_SECS)),
        ..HealthRecord::default()
    };
    relays.set_time(at(2 * limits::RELAY_DEAD_SECS).mono);
    let now = relays.now;
    relays.machine.relays.get_mut(&id).expect("followed").health = RelayHealth::new(Default::default(), &record, now);
    relays.machine.waiting_relays.check_soon();
    relays.run(60);
    assert!(relays.has_dialled("waits.example"));
}

#[test]
fn unreachable_relays_of_held_repositories_are_not_stored() {
    let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::Refuses);
    relays.handle(SyncInput::Ready);
    relays.list(1, "thing", EventStatus::Held, &urls("r", 20));
    relays.run(120);
    relays.unlist("thing");
    relays.run(120);
    assert_eq!((relays.followed(), relays.stored_rows), (0, 0));
    assert!(relays.machine.stored_records.len() <= limits::MAX_KEPT_RELAY_RECORDS);
    assert!(relays.machine.waiting_relays.relays.is_empty());
}

#[test]
fn records_of_relays_that_were_reached_once_are_bounded() {
    let mut relays = TestRelays::new(SyncLimits::default(), |_| Dialled::IsSilent);
    for number in 0..limits::MAX_KEPT_RELAY_RECORDS {
        let url = RelayUrl::parse(&format!("wss://old{number}.example")).expect("valid URL");
        let record = RelayRecord { url, wanted_at: relays.now.wall, ..RelayRecord::default() };
        relays.handle(SyncInput::Restored(RestoredRow::Relay(Box::new(record))));
    }
    relays.handle(SyncInput::Ready);
    relays.list(1, "thing", EventStatus::Held, &urls("r", 2));
    relays.run(60);
    relays.unlist("thing");
    relays.run(2 * limits::UNUSED_RELAY_DISCONNECT_SECS);
    assert_eq!(relays.followed(), 0);
    assert_eq!(relays.machine.stored_records.len(), limits::MAX_KEPT_RELAY_RECORDS);
}

//! When relays are dialled again, and when they are disconnected.

use super::super::health::HealthStatus;
use super::super::io::{SyncInput, SyncPolicyChange};
use super::super::relay_url::RelayUrl;
use super::super::tests::{Dialled, TestRelays, config};
use super::super::{SyncConfig, SyncLimits};
use super::*;
use crate::repo::catalog::EventStatus;
use crate::state_machine::StateMachine;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

fn url(text: &str) -> RelayUrl {
    RelayUrl::parse(text).expect("valid URL")
}

/// Starts a machine with one relay.
fn one_relay(behaviour: fn(&str) -> Dialled) -> TestRelays {
    let mut relays = TestRelays::new(SyncLimits::default(), behaviour);
    relays.handle(SyncInput::Ready);
    relays.list(1, "thing", EventStatus::Served, &["wss://only.example".to_owned()]);
    relays
}

fn health(relays: &TestRelays) -> HealthStatus {
    relays.machine.relay(&url("wss://only.example")).expect("followed").health
}

/// Returns the attempts and counted failures of the last failed connection.
fn last_failure(relays: &TestRelays) -> (u32, u32) {
    let failure = |note: &SyncNote| match note {
        SyncNote::ConnectionFailed { attempt, failures, .. } => Some((*attempt, *failures)),
        _ => None,
    };
    relays.notes.iter().filter_map(failure).next_back().expect("a failed connection")
}

#[test]
fn only_relay_is_dialled_ever_more_rarely_and_becomes_dead() {
    for behaviour in [(|_| Dialled::Refuses) as fn(&str) -> Dialled, |_| Dialled::IsUnreachable] {
        let mut relays = one_relay(behaviour);
        relays.run(HOUR);
        assert_eq!(health(&relays), HealthStatus::Degraded);
        assert!((8..20).contains(&relays.dialled.len()), "{} dials", relays.dialled.len());
        relays.run(26 * HOUR);
        assert_eq!(health(&relays), HealthStatus::Dead);
        let before = relays.dialled.len();
        relays.run(3 * DAY);
        assert!((2..=4).contains(&(relays.dialled.len() - before)), "a dead relay is dialled once a day");
        assert_eq!(relays.notes.iter().filter(|note| matches!(note, SyncNote::Dead(..))).count(), 1);
    }
}

#[test]
fn refused_connection_is_a_failure_of_the_relay() {
    let mut relays = one_relay(|_| Dialled::Refuses);
    relays.run(2);
    assert_eq!(last_failure(&relays), (1, 1));
}

#[test]
fn unanswered_attempt_counts_against_the_relay_only_if_the_network_works() {
    let mut relays = one_relay(|_| Dialled::IsUnreachable);
    relays.run(2);
    assert_eq!(last_failure(&relays), (1, 0));
    // A client was heard. The relay is dialled at once, and now the failure is its own.
    relays.handle(SyncInput::NetworkContact(relays.now.mono));
    relays.run(3);
    assert_eq!(last_failure(&relays), (2, 1));
}

#[test]
fn relay_that_is_not_needed_is_disconnected() {
    let mut relays = one_relay(|_| Dialled::IsSilent);
    relays.run(5);
    assert!(relays.open.contains_key("only.example"));
    relays.unlist("thing");
    relays.run(limits::UNUSED_RELAY_DISCONNECT_SECS - 6);
    assert!(relays.open.contains_key("only.example"), "some announcements are replaced in two steps");
    relays.run(10);
    assert!(relays.open.is_empty());
    relays.run(2 * limits::UNUSED_RELAY_DISCONNECT_SECS);
    assert!(relays.machine.relays.is_empty());
    assert_eq!(relays.dialled.len(), 1);
}

#[test]
fn bootstrap_relay_is_never_disconnected() {
    let bootstrap = vec![url("wss://only.example")];
    let mut relays = TestRelays::with(SyncConfig { bootstrap: bootstrap.clone(), ..config() }, |_| Dialled::IsSilent);
    relays.handle(SyncInput::Ready);
    relays.list(1, "thing", EventStatus::Served, &["wss://only.example".to_owned()]);
    relays.run(5);
    relays.unlist("thing");
    relays.run(30 * DAY / 24);
    assert!(relays.open.contains_key("only.example"));
    // Until it is removed from the settings.
    let change = |bootstrap| SyncPolicyChange { epoch: 1, bootstrap, accepts_more: false };
    relays.handle(SyncInput::PolicyChanged(change(bootstrap)));
    relays.run(HOUR);
    assert!(relays.open.contains_key("only.example"));
    relays.handle(SyncInput::PolicyChanged(change(Vec::new())));
    relays.run(2 * limits::UNUSED_RELAY_DISCONNECT_SECS);
    assert!(relays.open.is_empty() && relays.machine.relays.is_empty());
}

#[test]
fn private_service_is_probed_once_a_day() {
    let mut relays = one_relay(|_| Dialled::IsPrivate);
    relays.run(20 * HOUR);
    assert_eq!((relays.dialled.len(), health(&relays)), (1, HealthStatus::Degraded));
    assert!(relays.notes.iter().any(|note| matches!(note, SyncNote::Parked(_, text) if text.contains("GRASP-08"))));
    relays.run(6 * HOUR);
    assert_eq!(relays.dialled.len(), 2);
    assert!(relays.machine.alarm().is_some());
}

//! Backpressure: events from relays are submitted with permits, and a relay without permits is not read
//! (`docs/design/sync.md#submission-and-backpressure`).

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::{EventPresence, IncomingMessage};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::super::{ConnectionTimeouts, EventPermit};
use super::setup::{Nip11Response, TEST_TIMEOUT, TestDriver, TestRelay, TestSetup, event, send};
use crate::net::testing::{FakeResolver, test_dialer};

/// Short enough that a relay whose messages are not read would time out within a test.
const PING: Duration = Duration::from_millis(300);

fn setup_with_short_timeouts() -> TestSetup {
    let timeouts = ConnectionTimeouts { ping: PING, ..ConnectionTimeouts::new(TEST_TIMEOUT) };
    TestSetup::with(timeouts, test_dialer(AddressPolicy::Any, &FakeResolver::default()))
}

/// Takes `count` new events with their permits, and checks that no more follow for much longer than the silence after
/// which a relay is disconnected.
async fn take_all(driver: &mut TestDriver, permits: &mut Vec<EventPermit>, count: usize) {
    for _ in 0..count {
        permits.push(next_permit(driver).await);
    }
    let more = timeout(6 * PING, next_permit(driver)).await;
    assert!(more.is_err(), "more than {count}");
}

async fn next_permit(driver: &mut TestDriver) -> EventPermit {
    loop {
        match driver.received().await {
            (IncomingMessage::Event(_, _, EventPresence::New), Some(permit)) => return permit,
            (IncomingMessage::Alive, None) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn relay_is_not_read_without_permits_and_not_dropped() {
    const EVENTS: usize = 10_000;
    let setup = setup_with_short_timeouts();
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup.dial(&relay.url);
    let server = relay.session().await;
    driver.connected().await;
    // The relay reads too, so that it answers pings.
    let (mut sender, mut receiver) = server.split();
    let sending = tokio::spawn(async move {
        for nth in 0..EVENTS {
            let text = event(nth as u64, 1_000).1;
            sender.send(Message::text(text)).await.expect("connected");
        }
        sender
    });
    let reading = tokio::spawn(async move { while let Some(Ok(_)) = receiver.next().await {} });

    let mut permits = Vec::new();
    take_all(&mut driver, &mut permits, limits::SYNC_PERMITS_PER_RELAY).await;
    assert!(!sending.is_finished(), "the rest waits at the relay: buffers hold less than 10 MB");
    permits.truncate(limits::SYNC_PERMITS_PER_RELAY - 10);
    // Each freed permit admits one event.
    take_all(&mut driver, &mut permits, 10).await;

    drop(permits);
    for _ in limits::SYNC_PERMITS_PER_RELAY + 10..EVENTS {
        next_permit(&mut driver).await;
    }
    let _sender = sending.await.expect("everything was sent");
    // The connection is still alive.
    while !matches!(driver.received().await.0, IncomingMessage::Alive) {}
    reading.abort();
}

#[tokio::test]
async fn permits_of_all_relays_are_bounded() {
    const RELAYS: usize = limits::SYNC_PERMITS / limits::SYNC_PERMITS_PER_RELAY + 1;
    let setup = TestSetup::new();
    let mut relays = Vec::new();
    for _ in 0..RELAYS {
        relays.push(TestRelay::open(Nip11Response::not_found()).await);
    }
    let urls: Vec<String> = relays.iter().map(|relay| relay.url.clone()).collect();
    let mut driver = setup.dial_all(&urls.iter().map(String::as_str).collect::<Vec<_>>());
    for _ in 0..RELAYS {
        driver.connected().await;
    }
    let mut servers = Vec::new();
    for relay in &mut relays {
        let mut server = relay.session().await;
        for nth in 0..limits::SYNC_PERMITS_PER_RELAY {
            send(&mut server, event(nth as u64, 10).1).await;
        }
        servers.push(server);
    }
    let mut permits = Vec::new();
    take_all(&mut driver, &mut permits, limits::SYNC_PERMITS).await;
    permits.clear();
    take_all(&mut driver, &mut permits, RELAYS * limits::SYNC_PERMITS_PER_RELAY - limits::SYNC_PERMITS).await;
}

#[tokio::test]
async fn large_events_take_more_permits() {
    let setup = TestSetup::new();
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup.dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    let bytes = 60 * 1024;
    let permits_each = bytes / limits::SYNC_PERMIT_BYTES;
    let sending = tokio::spawn(async move {
        for nth in 0..100 {
            send(&mut server, event(nth, bytes).1).await;
        }
        server
    });
    let mut permits = Vec::new();
    take_all(&mut driver, &mut permits, limits::SYNC_PERMITS_PER_RELAY / permits_each).await;
    drop(permits);
    for _ in limits::SYNC_PERMITS_PER_RELAY / permits_each..100 {
        next_permit(&mut driver).await;
    }
    sending.await.expect("everything was sent");
}

//! More events than anybody judges (rule B5).

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::{EventPresence, IncomingMessage};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::super::{Patience, Permit};
use super::stage::{Document, PATIENCE, Relay, Room, World, event, send};
use crate::net::testing::{FakeResolver, test_dialer};

/// Short enough that a relay which is not listened to would be given up within a test.
const PING: Duration = Duration::from_millis(300);

fn hasty() -> World {
    let patience = Patience { ping: PING, ..Patience::new(PATIENCE) };
    World::with(patience, test_dialer(AddressPolicy::Any, &FakeResolver::default()))
}

/// Takes so many new events with their permits, and makes sure that no more come for much longer than a silent relay would
/// live.
async fn take_all(room: &mut Room, permits: &mut Vec<Permit>, count: usize) {
    for _ in 0..count {
        permits.push(next_permit(room).await);
    }
    let more = timeout(6 * PING, next_permit(room)).await;
    assert!(more.is_err(), "more than {count}");
}

async fn next_permit(room: &mut Room) -> Permit {
    loop {
        match room.heard().await {
            (IncomingMessage::Event(_, _, EventPresence::New), Some(permit)) => return permit,
            (IncomingMessage::Alive, None) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn b5_a_relay_is_not_read_while_nobody_judges_and_lives() {
    const EVENTS: usize = 10_000;
    let world = hasty();
    let mut relay = Relay::open(Document::none()).await;
    let mut room = world.dial(&relay.url);
    let server = relay.session().await;
    room.up().await;
    // It reads as well, so that pings are answered once they are sent.
    let (mut tell, mut hear) = server.split();
    let sending = tokio::spawn(async move {
        for nth in 0..EVENTS {
            let text = event(nth as u64, 1_000).1;
            tell.send(Message::text(text)).await.expect("the connection stands");
        }
        tell
    });
    let reading = tokio::spawn(async move { while let Some(Ok(_)) = hear.next().await {} });

    let mut permits = Vec::new();
    take_all(&mut room, &mut permits, limits::SYNC_PERMITS_PER_RELAY).await;
    assert!(!sending.is_finished(), "the rest waits outside: buffers hold less than ten megabytes");
    permits.truncate(limits::SYNC_PERMITS_PER_RELAY - 10);
    // Each judgement lets one in.
    take_all(&mut room, &mut permits, 10).await;

    drop(permits);
    for _ in limits::SYNC_PERMITS_PER_RELAY + 10..EVENTS {
        next_permit(&mut room).await;
    }
    let _tell = sending.await.expect("all was sent");
    // It is alive as before.
    while !matches!(room.heard().await.0, IncomingMessage::Alive) {}
    reading.abort();
}

#[tokio::test]
async fn b5_all_relays_together_have_a_bound() {
    const LINKS: usize = limits::SYNC_PERMITS / limits::SYNC_PERMITS_PER_RELAY + 1;
    let world = World::new();
    let mut relays = Vec::new();
    for _ in 0..LINKS {
        relays.push(Relay::open(Document::none()).await);
    }
    let urls: Vec<String> = relays.iter().map(|relay| relay.url.clone()).collect();
    let mut room = world.dial_all(&urls.iter().map(String::as_str).collect::<Vec<_>>());
    for _ in 0..LINKS {
        room.up().await;
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
    take_all(&mut room, &mut permits, limits::SYNC_PERMITS).await;
    permits.clear();
    take_all(&mut room, &mut permits, LINKS * limits::SYNC_PERMITS_PER_RELAY - limits::SYNC_PERMITS).await;
}

#[tokio::test]
async fn large_events_take_more_places() {
    let world = World::new();
    let mut relay = Relay::open(Document::none()).await;
    let mut room = world.dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    let bytes = 60 * 1024;
    let places = bytes / limits::SYNC_PERMIT_BYTES;
    let sending = tokio::spawn(async move {
        for nth in 0..100 {
            send(&mut server, event(nth, bytes).1).await;
        }
        server
    });
    let mut permits = Vec::new();
    take_all(&mut room, &mut permits, limits::SYNC_PERMITS_PER_RELAY / places).await;
    drop(permits);
    for _ in limits::SYNC_PERMITS_PER_RELAY / places..100 {
        next_permit(&mut room).await;
    }
    sending.await.expect("all was sent");
}

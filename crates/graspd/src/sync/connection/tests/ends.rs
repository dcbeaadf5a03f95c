//! How a connection that stands ends.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::{DisconnectReason, IncomingMessage, OutgoingMessage, SubscriptionId};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::super::Patience;
use super::stage::{Document, PATIENCE, Relay, World, send};
use crate::net::testing::{FakeResolver, test_dialer};

const PING: Duration = Duration::from_millis(300);

fn hasty() -> World {
    let patience = Patience { ping: PING, goodbye: Duration::from_millis(300), ..Patience::new(PATIENCE) };
    World::with(patience, test_dialer(AddressPolicy::Any, &FakeResolver::default()))
}

#[tokio::test]
async fn hanging_up_says_goodbye() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = World::new().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    room.handle().hang_up();
    let goodbye = timeout(PATIENCE, server.next()).await.expect("in time");
    assert!(
        matches!(&goodbye, Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Normal),
        "{goodbye:?}"
    );
    while let Some(Ok(_)) = server.next().await {}
    drop(server);
    assert_eq!(room.end().await, DisconnectReason::ClosedByUs);
}

#[tokio::test]
async fn a_goodbye_has_its_time() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = hasty().dial(&relay.url);
    let _deaf = relay.session().await;
    room.up().await;
    room.handles.clear();
    let began = Instant::now();
    assert_eq!(room.end().await, DisconnectReason::ClosedByUs);
    assert!(began.elapsed() < PATIENCE / 2);
}

#[tokio::test]
async fn a_relay_that_leaves() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = World::new().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    send(&mut server, r#"["NOTICE","bye"]"#).await;
    server.close(None).await.expect("closed");
    assert_eq!(room.heard().await.0, IncomingMessage::Notice("bye".into()), "its last words are heard");
    let answer = timeout(PATIENCE, server.next()).await.expect("in time");
    assert!(matches!(answer, Some(Ok(Message::Close(_)))), "it is answered: {answer:?}");
    assert_eq!(room.end().await, DisconnectReason::Ended);

    let mut room = World::new().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    send(&mut server, r#"["NOTICE","bye"]"#).await;
    drop(server);
    // Writing fails before everything has been read.
    for _ in 0..100 {
        room.handle().say(OutgoingMessage::Close(SubscriptionId(1)));
    }
    assert_eq!(room.heard().await.0, IncomingMessage::Notice("bye".into()));
    assert_eq!(room.end().await, DisconnectReason::Ended);
}

#[tokio::test]
async fn a_half_open_connection_is_noticed() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = hasty().dial(&relay.url);
    // It is never read, so no ping is answered.
    let _silent = relay.session().await;
    room.up().await;
    let began = Instant::now();
    assert_eq!(room.end().await, DisconnectReason::Ended);
    assert!(began.elapsed() >= PING);
}

#[tokio::test]
async fn a_quiet_relay_that_answers_pings_stays() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = hasty().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    tokio::spawn(async move { while let Some(Ok(_)) = server.next().await {} });
    // Much longer than a silent one would live.
    for _ in 0..6 {
        assert_eq!(room.heard().await.0, IncomingMessage::Alive);
    }
}

#[tokio::test]
async fn a_relay_that_talks_but_never_reads_is_let_go() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = hasty().dial(&relay.url);
    let server = relay.session().await;
    room.up().await;
    // More than the buffers between the two hold.
    for _ in 0..40 {
        room.handle().say(OutgoingMessage::NegMsg(SubscriptionId(1), vec![0; limits::MAX_RECEIVED_MESSAGE_BYTES / 8]));
    }
    let (mut tell, _unread) = server.split();
    let talking = tokio::spawn(async move {
        while tell.send(Message::text(r#"["NOTICE","hello"]"#)).await.is_ok() {
            tokio::time::sleep(PING / 5).await;
        }
    });
    assert_eq!(room.end().await, DisconnectReason::Ended);
    talking.abort();
}

#[tokio::test]
async fn m14_a_message_that_is_too_large_ends_the_session() {
    let mut relay = Relay::open(Document::none()).await;
    let mut room = World::new().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    let flood = async {
        let _ = server.send(Message::text("x".repeat(limits::MAX_RECEIVED_MESSAGE_BYTES + 1))).await;
        while let Some(Ok(_)) = server.next().await {}
    };
    let (loss, ()) = tokio::join!(room.end(), flood);
    assert_eq!(loss, DisconnectReason::MessageTooLarge);

    let mut room = World::new().dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    send(&mut server, "x".repeat(limits::MAX_RECEIVED_MESSAGE_BYTES)).await;
    assert_eq!(room.heard().await.0, IncomingMessage::Invalid, "the largest that is read");
}

//! Tests of how an established connection ends.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::net::AddressPolicy;
use grasp_core::sync::io::{DisconnectReason, IncomingMessage, OutgoingMessage, SubscriptionId};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::super::ConnectionTimeouts;
use super::setup::{Nip11Response, TEST_TIMEOUT, TestRelay, TestSetup, send};
use crate::net::testing::{FakeResolver, test_dialer};

const PING: Duration = Duration::from_millis(300);

fn setup_with_short_timeouts() -> TestSetup {
    let timeouts =
        ConnectionTimeouts { ping: PING, close: Duration::from_millis(300), ..ConnectionTimeouts::new(TEST_TIMEOUT) };
    TestSetup::with(timeouts, test_dialer(AddressPolicy::Any, &FakeResolver::default()))
}

#[tokio::test]
async fn disconnect_sends_a_close_frame() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = TestSetup::new().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    driver.handle().disconnect();
    let close_frame = timeout(TEST_TIMEOUT, server.next()).await.expect("in time");
    assert!(
        matches!(&close_frame, Some(Ok(Message::Close(Some(frame)))) if frame.code == CloseCode::Normal),
        "{close_frame:?}"
    );
    while let Some(Ok(_)) = server.next().await {}
    drop(server);
    assert_eq!(driver.closed().await, DisconnectReason::ClosedByUs);
}

#[tokio::test]
async fn close_handshake_times_out() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup_with_short_timeouts().dial(&relay.url);
    let _deaf = relay.session().await;
    driver.connected().await;
    driver.handles.clear();
    let began = Instant::now();
    assert_eq!(driver.closed().await, DisconnectReason::ClosedByUs);
    assert!(began.elapsed() < TEST_TIMEOUT / 2);
}

#[tokio::test]
async fn messages_before_a_close_are_received() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = TestSetup::new().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    send(&mut server, r#"["NOTICE","bye"]"#).await;
    server.close(None).await.expect("closed");
    assert_eq!(driver.received().await.0, IncomingMessage::Notice("bye".into()), "the last message is received");
    let answer = timeout(TEST_TIMEOUT, server.next()).await.expect("in time");
    assert!(matches!(answer, Some(Ok(Message::Close(_)))), "the close frame is answered: {answer:?}");
    assert_eq!(driver.closed().await, DisconnectReason::Ended);

    let mut driver = TestSetup::new().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    send(&mut server, r#"["NOTICE","bye"]"#).await;
    drop(server);
    // A write fails before everything has been read.
    for _ in 0..100 {
        driver.handle().send(OutgoingMessage::Close(SubscriptionId(1)));
    }
    assert_eq!(driver.received().await.0, IncomingMessage::Notice("bye".into()));
    assert_eq!(driver.closed().await, DisconnectReason::Ended);
}

#[tokio::test]
async fn half_open_connection_times_out() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup_with_short_timeouts().dial(&relay.url);
    // The relay's side is never read, so no ping is answered.
    let _silent = relay.session().await;
    driver.connected().await;
    let began = Instant::now();
    assert_eq!(driver.closed().await, DisconnectReason::Ended);
    assert!(began.elapsed() >= PING);
}

#[tokio::test]
async fn quiet_relay_that_answers_pings_stays_connected() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup_with_short_timeouts().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    tokio::spawn(async move { while let Some(Ok(_)) = server.next().await {} });
    // Much longer than a silent relay would stay connected.
    for _ in 0..6 {
        assert_eq!(driver.received().await.0, IncomingMessage::Alive);
    }
}

#[tokio::test]
async fn relay_that_never_reads_is_disconnected() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup_with_short_timeouts().dial(&relay.url);
    let server = relay.session().await;
    driver.connected().await;
    // More than the network buffers hold.
    for _ in 0..40 {
        driver
            .handle()
            .send(OutgoingMessage::NegMsg(SubscriptionId(1), vec![0; limits::MAX_RECEIVED_MESSAGE_BYTES / 8]));
    }
    let (mut sender, _unread) = server.split();
    let talking = tokio::spawn(async move {
        while sender.send(Message::text(r#"["NOTICE","hello"]"#)).await.is_ok() {
            tokio::time::sleep(PING / 5).await;
        }
    });
    assert_eq!(driver.closed().await, DisconnectReason::Ended);
    talking.abort();
}

#[tokio::test]
async fn too_large_message_closes_the_connection() {
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = TestSetup::new().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    let flood = async {
        let _ = server.send(Message::text("x".repeat(limits::MAX_RECEIVED_MESSAGE_BYTES + 1))).await;
        while let Some(Ok(_)) = server.next().await {}
    };
    let (reason, ()) = tokio::join!(driver.closed(), flood);
    assert_eq!(reason, DisconnectReason::MessageTooLarge);

    let mut driver = TestSetup::new().dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    send(&mut server, "x".repeat(limits::MAX_RECEIVED_MESSAGE_BYTES)).await;
    assert_eq!(driver.received().await.0, IncomingMessage::Invalid, "the largest message that is read");
}

//! Tests of messages in both directions.

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::nostr::message::ClientMessage;
use grasp_core::nostr::{Event, Filter, Verifier};
use grasp_core::sync::io::{
    DisconnectReason, EoseHint, EventPresence, IncomingMessage, OutgoingMessage, SubscriptionId,
};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::super::ConnectionEvent;
use super::setup::{Nip11Response, SESSION, TEST_TIMEOUT, TestRelay, TestSetup, event, received_text, send};

#[tokio::test]
async fn messages_are_sent_and_received() {
    let setup = TestSetup::new();
    let mut relay = TestRelay::open(Nip11Response::ok(r#"{"name":"x"}"#)).await;
    let mut driver = setup.dial(&relay.url);
    let mut server = relay.session().await;
    assert!(driver.connected().await, "with its NIP-11 document");

    let filter = Filter { kinds: Some(vec![30617]), ..Filter::default() };
    let unsent = driver.handle().send(OutgoingMessage::Req(SubscriptionId(1), vec![filter.clone()]));
    let text = received_text(&mut server).await;
    assert_eq!(ClientMessage::parse(&text), Ok(ClientMessage::Req("g1".into(), vec![filter])));
    assert_eq!(unsent, text.len());
    assert!(matches!(driver.next().await, ConnectionEvent::UnsentBytes(SESSION, 0)));

    let (id, text) = event(1, 10);
    send(&mut server, &text).await;
    let (message, permit) = driver.received().await;
    assert!(matches!(&message, IncomingMessage::Event(SubscriptionId(1), event, EventPresence::New) if event.id == id));
    assert!(permit.is_some());
    drop(permit);

    setup.known.add(id);
    send(&mut server, &text).await;
    let (message, permit) = driver.received().await;
    assert!(
        matches!(&message, IncomingMessage::Event(SubscriptionId(1), event, EventPresence::Known) if event.id == id)
    );
    assert!(permit.is_none(), "a known event needs no permit");

    // The content does not match the id.
    send(&mut server, text.replace("xx", "xy")).await;
    let (large_id, large) = event(2, 65 * 1024);
    send(&mut server, large).await;
    let (message, permit) = driver.received().await;
    assert_eq!((message, permit.is_none()), (IncomingMessage::InvalidEvent(SubscriptionId(1), Some(id)), true));
    let (message, permit) = driver.received().await;
    assert!(matches!(&message, IncomingMessage::TooLarge(SubscriptionId(1), event, _) if event.id == large_id));
    assert!(permit.is_none(), "an event that is not submitted needs no permit");
    send(&mut server, r#"["EOSE","g1",["finish"]]"#).await;
    server.send(Message::Binary(vec![1].into())).await.expect("sent");
    server.send(Message::Ping(vec![1].into())).await.expect("sent");
    for expected in [
        IncomingMessage::Eose(SubscriptionId(1), Some(EoseHint::Complete)),
        IncomingMessage::Invalid,
        IncomingMessage::Alive,
    ] {
        assert_eq!(driver.received().await.0, expected);
    }
    let pong = timeout(TEST_TIMEOUT, server.next()).await.expect("in time");
    assert!(matches!(pong, Some(Ok(Message::Pong(_)))), "{pong:?}");
    server.close(None).await.expect("closed");
    assert_eq!(driver.closed().await, DisconnectReason::Ended);
}

#[tokio::test]
async fn auth_challenge_is_answered_with_the_service_key() {
    let setup = TestSetup::new();
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup.dial(&relay.url);
    let mut server = relay.session().await;
    assert!(!driver.connected().await);
    send(&mut server, r#"["AUTH","a \"challenge\""]"#).await;
    let (IncomingMessage::Auth(challenge), None) = driver.received().await else { panic!("no challenge") };
    driver.handle().send(OutgoingMessage::Auth(challenge));
    let text = received_text(&mut server).await;
    let Ok(ClientMessage::Auth(event)) = ClientMessage::parse(&text) else { panic!("{text}") };
    let event = Verifier::with_cache(1).verify(Event::parse(event).expect("valid event")).expect("valid signature");
    assert_eq!((event.kind, event.pubkey.0), (22242, setup.keys.public_key().to_bytes()));
    assert_eq!((event.tag("relay"), event.tag("challenge")), (Some(relay.url.as_str()), Some("a \"challenge\"")));
    assert!(
        matches!(driver.next().await, ConnectionEvent::UnsentBytes(SESSION, 0)),
        "the estimated size is subtracted"
    );
    // Only an OK for this event is the answer.
    send(&mut server, r#"["OK","x",true,""]"#).await;
    assert_eq!(driver.received().await.0, IncomingMessage::Alive);
    send(&mut server, r#"["OK","x",false,"rate-limited: slow down"]"#).await;
    assert_eq!(driver.received().await.0, IncomingMessage::Notice("rate-limited: slow down".to_owned()));
    send(&mut server, &format!(r#"["OK","{}",true,""]"#, event.id)).await;
    assert_eq!(driver.received().await.0, IncomingMessage::Ok(true, String::new()));
}

#[tokio::test]
async fn both_sides_can_send_without_reading() {
    let setup = TestSetup::new();
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup.dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    // More than all buffers hold, in both directions, before either side reads.
    let (id, text) = event(1, 60 * 1024);
    setup.known.add(id);
    let message = vec![0; limits::MAX_RECEIVED_MESSAGE_BYTES / 4];
    for _ in 0..8 {
        driver.handle().send(OutgoingMessage::NegMsg(SubscriptionId(1), message.clone()));
    }
    let talking = async {
        for _ in 0..300 {
            send(&mut server, &text).await;
        }
        for _ in 0..8 {
            received_text(&mut server).await;
        }
    };
    let listening = async {
        let mut least = usize::MAX;
        let mut events = 0;
        while events < 300 || least > 0 {
            match driver.next().await {
                ConnectionEvent::UnsentBytes(SESSION, unsent) => {
                    assert!(unsent < least, "unsent bytes decrease");
                    least = unsent;
                }
                ConnectionEvent::Received(_, IncomingMessage::Event(..), None) => events += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::join!(talking, listening);
}

#[tokio::test]
async fn large_negentropy_messages_are_read() {
    let setup = TestSetup::new();
    let mut relay = TestRelay::open(Nip11Response::not_found()).await;
    let mut driver = setup.dial(&relay.url);
    let mut server = relay.session().await;
    driver.connected().await;
    send(&mut server, format!(r#"["NEG-MSG","g3","{}"]"#, "61".repeat(500_000))).await;
    assert_eq!(driver.received().await.0, IncomingMessage::NegMsg(SubscriptionId(3), vec![0x61; 500_000]));
}

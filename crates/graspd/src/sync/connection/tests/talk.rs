//! What is said and heard.

use futures_util::{SinkExt, StreamExt};
use grasp_core::limits;
use grasp_core::nostr::message::ClientMessage;
use grasp_core::nostr::{Event, Filter, Verifier};
use grasp_core::sync::io::{
    DisconnectReason, EoseHint, EventPresence, IncomingMessage, OutgoingMessage, SubscriptionId,
};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::super::FromSocket;
use super::stage::{Document, PATIENCE, Relay, SESSION, World, event, send, told};

#[tokio::test]
async fn a_conversation() {
    let world = World::new();
    let mut relay = Relay::open(Document::text(r#"{"name":"x"}"#)).await;
    let mut room = world.dial(&relay.url);
    let mut server = relay.session().await;
    assert!(room.up().await, "with its nip11");

    let filter = Filter { kinds: Some(vec![30617]), ..Filter::default() };
    let unsent = room.handle().say(OutgoingMessage::Req(SubscriptionId(1), vec![filter.clone()]));
    let text = told(&mut server).await;
    assert_eq!(ClientMessage::parse(&text), Ok(ClientMessage::Req("g1".into(), vec![filter])));
    assert_eq!(unsent, text.len());
    assert!(matches!(room.next().await, FromSocket::Unsent(SESSION, 0)));

    let (id, text) = event(1, 10);
    send(&mut server, &text).await;
    let (heard, permit) = room.heard().await;
    assert!(matches!(&heard, IncomingMessage::Event(SubscriptionId(1), event, EventPresence::New) if event.id == id));
    assert!(permit.is_some());
    drop(permit);

    world.shelf.add(id);
    send(&mut server, &text).await;
    let (heard, permit) = room.heard().await;
    assert!(matches!(&heard, IncomingMessage::Event(SubscriptionId(1), event, EventPresence::Known) if event.id == id));
    assert!(permit.is_none(), "what is known needs no place");

    // B3: the content is another's.
    send(&mut server, text.replace("xx", "xy")).await;
    send(&mut server, event(2, 65 * 1024).1).await;
    send(&mut server, r#"["EOSE","g1",["finish"]]"#).await;
    server.send(Message::Binary(vec![1].into())).await.expect("sent");
    server.send(Message::Ping(vec![1].into())).await.expect("sent");
    for expected in [
        IncomingMessage::Invalid,
        IncomingMessage::TooLarge(SubscriptionId(1)),
        IncomingMessage::Eose(SubscriptionId(1), Some(EoseHint::Complete)),
        IncomingMessage::Invalid,
        IncomingMessage::Alive,
    ] {
        assert_eq!(room.heard().await.0, expected);
    }
    let pong = timeout(PATIENCE, server.next()).await.expect("in time");
    assert!(matches!(pong, Some(Ok(Message::Pong(_)))), "{pong:?}");
    server.close(None).await.expect("closed");
    assert_eq!(room.end().await, DisconnectReason::Ended);
}

#[tokio::test]
async fn m14_a_challenge_is_answered_with_the_services_key() {
    let world = World::new();
    let mut relay = Relay::open(Document::none()).await;
    let mut room = world.dial(&relay.url);
    let mut server = relay.session().await;
    assert!(!room.up().await);
    send(&mut server, r#"["AUTH","a \"challenge\""]"#).await;
    let (IncomingMessage::Auth(challenge), None) = room.heard().await else { panic!("a challenge") };
    room.handle().say(OutgoingMessage::Auth(challenge));
    let text = told(&mut server).await;
    let Ok(ClientMessage::Auth(event)) = ClientMessage::parse(&text) else { panic!("{text}") };
    let event = Verifier::with_cache(1).verify(Event::parse(event).expect("an event")).expect("signed");
    assert_eq!((event.kind, event.pubkey.0), (22242, world.keys.public_key().to_bytes()));
    assert_eq!((event.tag("relay"), event.tag("challenge")), (Some(relay.url.as_str()), Some("a \"challenge\"")));
    assert!(matches!(room.next().await, FromSocket::Unsent(SESSION, 0)), "the estimate is taken back");
    send(&mut server, r#"["OK","x",true,""]"#).await;
    assert_eq!(room.heard().await.0, IncomingMessage::Ok(true, String::new()));
}

#[tokio::test]
async fn both_may_talk_at_once_without_listening() {
    let world = World::new();
    let mut relay = Relay::open(Document::none()).await;
    let mut room = world.dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    // More than all buffers between the two hold, in both directions, before either side reads a byte of it.
    let (id, text) = event(1, 60 * 1024);
    world.shelf.add(id);
    let message = vec![0; limits::MAX_RECEIVED_MESSAGE_BYTES / 4];
    for _ in 0..8 {
        room.handle().say(OutgoingMessage::NegMsg(SubscriptionId(1), message.clone()));
    }
    let talking = async {
        for _ in 0..300 {
            send(&mut server, &text).await;
        }
        for _ in 0..8 {
            told(&mut server).await;
        }
    };
    let listening = async {
        let mut least = usize::MAX;
        let mut events = 0;
        while events < 300 || least > 0 {
            match room.next().await {
                FromSocket::Unsent(SESSION, unsent) => {
                    assert!(unsent < least, "it shrinks");
                    least = unsent;
                }
                FromSocket::Message(_, IncomingMessage::Event(..), None) => events += 1,
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::join!(talking, listening);
}

#[tokio::test]
async fn negentropy_answers_of_a_megabyte_are_read() {
    let world = World::new();
    let mut relay = Relay::open(Document::none()).await;
    let mut room = world.dial(&relay.url);
    let mut server = relay.session().await;
    room.up().await;
    send(&mut server, format!(r#"["NEG-MSG","g3","{}"]"#, "61".repeat(500_000))).await;
    assert_eq!(room.heard().await.0, IncomingMessage::NegMsg(SubscriptionId(3), vec![0x61; 500_000]));
}

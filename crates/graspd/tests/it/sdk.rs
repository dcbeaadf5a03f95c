//! Interoperability with an independent client, `nostr-sdk`.

use std::collections::HashSet;
use std::time::Duration;

use nostr_sdk::prelude::*;

use crate::support::{DEADLINE, Server};

/// Connects a client to a server, with a database in memory.
async fn client(server: &Server, keys: &Keys) -> Client {
    let database = MemoryDatabase::with_opts(MemoryDatabaseOptions { events: true, max_events: None });
    let client = Client::builder().signer(keys.clone()).database(database).build();
    client.add_relay(server.url()).await.expect("invalid URL");
    let connected = client.try_connect(DEADLINE).await;
    assert_eq!((connected.success.len(), connected.failed.len()), (1, 0), "{connected:?}");
    client
}

fn start_open_server() -> Server {
    Server::start(&[("POLICY", "open")])
}

/// Signs a note with a timestamp in the past.
fn note(keys: &Keys, second: u64, content: &str) -> Event {
    let builder = EventBuilder::text_note(content).custom_created_at(Timestamp::from_secs(1_700_000_000 + second));
    builder.sign_with_keys(keys).expect("cannot sign")
}

async fn send(client: &Client, event: &Event) {
    let output = client.send_event(event).await.expect("no relay is connected");
    assert_eq!((output.success.len(), output.failed.len()), (1, 0), "{output:?}");
}

async fn fetch(client: &Client, filter: Filter) -> Vec<Event> {
    client.fetch_events(filter, DEADLINE).await.expect("no relay is connected").to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_and_fetch() {
    let server = start_open_server();
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (writer, reader) = (client(&server, &alice).await, client(&server, &bob).await);
    let events = [
        note(&alice, 0, "first"),
        EventBuilder::text_note("se\"cond\n🚀")
            .tag(Tag::hashtag("x"))
            .custom_created_at(Timestamp::from_secs(1_700_000_001))
            .sign_with_keys(&alice)
            .expect("cannot sign"),
        EventBuilder::new(Kind::Reaction, "+")
            .custom_created_at(Timestamp::from_secs(1_700_000_002))
            .sign_with_keys(&bob)
            .expect("cannot sign"),
    ];
    for event in &events {
        send(&writer, event).await;
    }
    // The client verifies each event itself; whole events are compared.
    let [first, second, reaction] = &events;
    for (filter, expected) in [
        (Filter::new(), vec![reaction, second, first]),
        (Filter::new().id(first.id), vec![first]),
        (Filter::new().author(alice.public_key()), vec![second, first]),
        (Filter::new().kind(Kind::Reaction), vec![reaction]),
        (Filter::new().hashtag("x"), vec![second]),
        (Filter::new().hashtag("y"), vec![]),
        (Filter::new().kind(Kind::TextNote).limit(1), vec![second]),
        (Filter::new().until(Timestamp::from_secs(1_700_000_000)), vec![first]),
    ] {
        assert_eq!(fetch(&reader, filter.clone()).await.iter().collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_reason_reaches_the_publisher() {
    let server = Server::start(&[("POLICY", "grasp")]);
    let keys = Keys::generate();
    let client = client(&server, &keys).await;
    let output = client.send_event(&note(&keys, 0, "belongs to nothing")).await;
    let output = output.expect("no relay is connected");
    assert_eq!(output.success.len(), 0);
    let reason = output.failed.values().next().expect("no reason");
    assert!(reason.contains("restricted: "), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subscription_receives_stored_and_live_events() {
    let server = start_open_server();
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (writer, listener) = (client(&server, &alice).await, client(&server, &bob).await);
    let stored = note(&alice, 0, "stored");
    send(&writer, &stored).await;

    let mut notifications = listener.notifications();
    let filter = Filter::new().author(alice.public_key());
    let subscription = listener.subscribe(filter, None).await.expect("no relay is connected").val;
    let mut next = async || {
        loop {
            match tokio::time::timeout(DEADLINE, notifications.recv())
                .await
                .expect("timed out")
                .expect("the channel is closed")
            {
                RelayPoolNotification::Event { subscription_id, event, .. } => {
                    assert_eq!(subscription_id, subscription);
                    return Some(*event);
                }
                RelayPoolNotification::Message { message: RelayMessage::EndOfStoredEvents(id), .. } => {
                    assert_eq!(*id, subscription);
                    return None;
                }
                _ => {}
            }
        }
    };
    assert_eq!(next().await, Some(stored));
    assert_eq!(next().await, None, "then EOSE");
    // An earlier event by another author does not match.
    send(&writer, &note(&bob, 1, "by another author")).await;
    for second in 2..5 {
        let live = note(&alice, second, "live");
        send(&writer, &live).await;
        assert_eq!(next().await, Some(live));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn negentropy_sync_works_in_both_directions() {
    let server = start_open_server();
    let keys = Keys::generate();
    let events: Vec<Event> = (0..1_500).map(|nth| note(&keys, nth / 3, &nth.to_string())).collect();
    let (theirs, ours) = (&events[..1_000], &events[600..]);
    let publisher = client(&server, &keys).await;
    for event in theirs {
        publisher
            .send_msg_to([server.url()], ClientMessage::event(event.clone()))
            .await
            .expect("the relay is not connected");
    }
    // These were sent without waiting for responses; the last one is answered after all others.
    send(&publisher, &theirs[999]).await;

    let client = client(&server, &keys).await;
    for event in ours {
        client.database().save_event(event).await.expect("cannot access the database");
    }
    let filter = Filter::new().author(keys.public_key());
    let options = SyncOptions::default().direction(SyncDirection::Both).initial_timeout(Duration::from_secs(30));
    let output = client.sync(filter.clone(), &options).await.expect("no relay is connected");
    assert_eq!(output.failed.len(), 0, "{:?}", output.failed);
    let ids = |events: &[Event]| events.iter().map(|event| event.id).collect::<HashSet<EventId>>();
    assert_eq!(output.val.remote, ids(&events[..600]));
    assert_eq!(output.val.received, ids(&events[..600]));
    assert_eq!(output.val.local, ids(&events[1_000..]));
    assert_eq!(output.val.sent, ids(&events[1_000..]));

    // Now both have everything, so there is no difference.
    assert_eq!(client.database().count(filter.clone()).await.expect("cannot access the database"), 1_500);
    let again = client.sync(filter, &options).await.expect("no relay is connected");
    assert_eq!((again.val.remote.len(), again.val.local.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn client_authenticates_automatically() {
    let server = start_open_server();
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let protected = |keys: &Keys| {
        EventBuilder::text_note("mine alone").tag(Tag::protected()).sign_with_keys(keys).expect("cannot sign")
    };
    let client = client(&server, &alice).await;
    let event = protected(&alice);
    client.automatic_authentication(true);
    send(&client, &event).await;
    assert_eq!(fetch(&client, Filter::new()).await, [event]);
    // The connection is authenticated as Alice only.
    client.automatic_authentication(false);
    let output = client.send_event(&protected(&bob)).await.expect("no relay is connected");
    let reason = output.failed.values().next().expect("no reason");
    assert!(reason.contains("auth-required: "), "{reason}");
}

//! NIP-01 over a websocket: queries, subscriptions, live events and publishing.

use std::cmp::Reverse;
use std::slice;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::{Author, owned_tags, tied_versions};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, Server};

/// The base of the timestamps of all events.
const BASE_TIME: u64 = 1_700_000_000;

fn start_open_server() -> Server {
    Server::start(&[("POLICY", "open")])
}

/// Publishes an event that must be accepted.
fn expect_accepted(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

/// Returns the ids in the order of a response: newest first, then lowest id first.
fn ids_in_response_order(events: &[Arc<SignedEvent>]) -> Vec<String> {
    let mut sorted: Vec<_> = events.to_vec();
    sorted.sort_by_key(|event| (Reverse(event.created_at), event.id));
    sorted.iter().map(|event| event.id.to_string()).collect()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// Returns the id of the next event of a subscription; panics on any other message.
fn next_event_id(client: &mut Client, sub: &str) -> String {
    let message = client.receive();
    assert_eq!((&message[0], &message[1]), (&json!("EVENT"), &json!(sub)), "{message}");
    message[2]["id"].as_str().expect("no id").to_owned()
}

/// Returns the next message as it was sent.
fn receive_text(client: &mut Client) -> String {
    match client.socket.read().expect("no message within the deadline") {
        Message::Text(text) => text.to_string(),
        other => panic!("unexpected {other:?}"),
    }
}

// ---- Queries ----------------------------------------------------------------------------------

#[test]
fn events_are_found_by_id_author_and_kind() {
    let server = start_open_server();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events = [
        alice.note(BASE_TIME, &[], "a"),
        alice.note(BASE_TIME + 1, &[], "b"),
        alice.sign(7, BASE_TIME + 2, &[], "+"),
        bob.note(BASE_TIME + 3, &[], "c"),
        bob.sign(65_535, BASE_TIME + 4, &[], "last kind"),
    ];
    for event in &events {
        expect_accepted(&mut client, event);
    }
    let [a, b, plus, c, last] = &events;
    let (alice, bob) = (alice.hex(), bob.hex());
    let absent = "ab".repeat(32);
    let table: Vec<(Value, Vec<&Arc<SignedEvent>>)> = vec![
        (json!({}), vec![a, b, plus, c, last]),
        (json!({"ids": [id(a)]}), vec![a]),
        (json!({"ids": [id(a), id(c), absent]}), vec![a, c]),
        (json!({"ids": [absent]}), vec![]),
        (json!({"ids": []}), vec![]),
        (json!({"authors": [alice]}), vec![a, b, plus]),
        (json!({"authors": [alice, bob]}), vec![a, b, plus, c, last]),
        (json!({"authors": [absent]}), vec![]),
        (json!({"authors": []}), vec![]),
        (json!({"kinds": [1]}), vec![a, b, c]),
        (json!({"kinds": [7, 65_535]}), vec![plus, last]),
        (json!({"kinds": [2]}), vec![]),
        (json!({"kinds": []}), vec![]),
        (json!({"authors": [bob], "kinds": [1]}), vec![c]),
        (json!({"authors": [bob], "kinds": [7]}), vec![]),
        (json!({"ids": [id(a), id(b), id(c)], "authors": [alice], "kinds": [1]}), vec![a, b]),
        (json!({"ids": [id(a)], "authors": [bob]}), vec![]),
    ];
    for (filter, expected) in table {
        let expected: Vec<_> = expected.into_iter().cloned().collect();
        assert_eq!(client.query(slice::from_ref(&filter)), ids_in_response_order(&expected), "{filter}");
    }
}

#[test]
fn tag_letters_are_case_sensitive() {
    let server = start_open_server();
    let mut client = server.connect();
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').collect();
    let author = Author::new(1);
    let events: Vec<_> = letters
        .iter()
        .zip(BASE_TIME..)
        .map(|(letter, at)| author.sign_owned(1, at, vec![vec![letter.to_string(), format!("value of {letter}")]], ""))
        .collect();
    for event in &events {
        expect_accepted(&mut client, event);
    }
    for (letter, event) in letters.iter().zip(&events) {
        let other_case = if letter.is_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        let value = format!("value of {letter}");
        assert_eq!(client.query(&[json!({format!("#{letter}"): [value]})]), [id(event)], "{letter}");
        assert_eq!(client.query(&[json!({format!("#{other_case}"): [value]})]), [""; 0], "{letter}");
    }
}

#[test]
fn tag_values_are_compared_as_decoded_text() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let long = "x".repeat(3_000);
    let longer = "x".repeat(3_001);
    let values = [
        "",
        " ",
        "plain",
        "Plain",
        "plain ",
        "\"quoted\"",
        "back\\slash",
        "a\\nb",
        "a\nb",
        "\t\r\u{8}\u{c}",
        "\u{1}\u{1f}\u{7f}",
        "a/b",
        "é",
        "e\u{301}",
        "🚀",
        "\u{2028}",
        "30617:ab:c:d",
        &long,
        &longer,
    ];
    let events: Vec<_> =
        values.iter().zip(BASE_TIME..).map(|(value, at)| author.note(at, &[&["t", value]], "")).collect();
    for event in &events {
        expect_accepted(&mut client, event);
    }
    for (value, event) in values.iter().zip(&events) {
        assert_eq!(client.query(&[json!({"#t": [value]})]), [id(event)], "{value:?}");
    }
    // The same filter, written with other escapes.
    for (escaped, event) in
        [("\\u0061\\u005cn\\u0062", &events[7]), ("\\ud83d\\ude80", &events[14]), ("a\\/b", &events[11])]
    {
        client.send_text(&format!("[\"REQ\",\"e\",{{\"#t\":[\"{escaped}\"]}}]"));
        assert_eq!(next_event_id(&mut client, "e"), id(event), "{escaped}");
        assert_eq!(client.receive(), json!(["EOSE", "e"]));
    }
}

#[test]
fn tag_filters_are_joined_by_and_and_values_by_or() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let red = author.note(BASE_TIME, &[&["t", "red"], &["p", "x"], &["relay", "wss://r"]], "");
    let blue = author.note(BASE_TIME + 1, &[&["t", "blue"], &["t", "green"], &["p", "x"]], "");
    let second = author.note(BASE_TIME + 2, &[&["t", "first", "second"], &["t"]], "");
    for event in [&red, &blue, &second] {
        expect_accepted(&mut client, event);
    }
    for (filter, expected) in [
        (json!({"#t": ["red"]}), vec![&red]),
        (json!({"#t": ["red", "green", "yellow"]}), vec![&blue, &red]),
        (json!({"#t": ["blue", "green"]}), vec![&blue]),
        (json!({"#t": ["red", "blue"], "#p": ["x"]}), vec![&blue, &red]),
        (json!({"#t": ["red"], "#p": ["y"]}), vec![]),
        (json!({"#t": ["red"], "#p": ["x"], "kinds": [1], "authors": [author.hex()]}), vec![&red]),
        (json!({"#t": ["red"], "kinds": [2]}), vec![]),
        (json!({"#t": ["first"]}), vec![&second]),
        // Only the first value of a tag counts.
        (json!({"#t": ["second"]}), vec![]),
        (json!({"#t": []}), vec![]),
        (json!({"#p": []}), vec![]),
    ] {
        let expected: Vec<String> = expected.into_iter().map(|event| id(event)).collect();
        assert_eq!(client.query(slice::from_ref(&filter)), expected, "{filter}");
    }
}

#[test]
fn stored_events_are_newest_first_then_lowest_id_first() {
    let server = start_open_server();
    let mut client = server.connect();
    let authors = [Author::new(1), Author::new(2)];
    let mut events = Vec::new();
    for nth in 0..60 {
        // Three events in each of twenty seconds, unordered.
        let at = BASE_TIME + (nth * 7) % 20;
        events.push(authors[nth as usize % 2].note(at, &[&["t", "x"]], &nth.to_string()));
    }
    for event in &events {
        expect_accepted(&mut client, event);
    }
    let keys: Vec<String> = authors.iter().map(Author::hex).collect();
    let ids: Vec<String> = events.iter().map(|event| id(event)).collect();
    // Each of these filters uses another index.
    for filter in [
        json!({}),
        json!({"kinds": [1]}),
        json!({"authors": keys}),
        json!({"authors": keys, "kinds": [1]}),
        json!({"#t": ["x"]}),
        json!({"ids": ids}),
    ] {
        assert_eq!(client.query(slice::from_ref(&filter)), ids_in_response_order(&events), "{filter}");
        for limit in [1, 2, 4, 59, 60, 61] {
            let mut limited = filter.clone();
            limited["limit"] = json!(limit);
            let expected: Vec<_> = ids_in_response_order(&events).into_iter().take(limit).collect();
            assert_eq!(client.query(slice::from_ref(&limited)), expected, "{limited}");
        }
    }
}

#[test]
fn server_limit_applies_to_each_filter() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "3")]);
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let by_alice: Vec<_> = (0..5).map(|nth| alice.note(BASE_TIME + nth, &[], "")).collect();
    let by_bob: Vec<_> = (0..5).map(|nth| bob.note(BASE_TIME + 10 + nth, &[], "")).collect();
    for event in by_alice.iter().chain(&by_bob) {
        expect_accepted(&mut client, event);
    }
    let newest = |events: &[Arc<SignedEvent>], max: usize| {
        ids_in_response_order(events).into_iter().take(max).collect::<Vec<_>>()
    };
    let (alice, bob) = (json!({"authors": [alice.hex()]}), json!({"authors": [bob.hex()]}));
    assert_eq!(client.query(slice::from_ref(&alice)), newest(&by_alice, 3));
    assert_eq!(client.query(&[json!({"authors": alice["authors"], "limit": 4})]), newest(&by_alice, 3));
    assert_eq!(client.query(&[json!({"authors": alice["authors"], "limit": 2})]), newest(&by_alice, 2));
    let both = [newest(&by_bob, 3), newest(&by_alice, 3)].concat();
    assert_eq!(client.query(&[alice, bob]), both);
}

#[test]
fn since_and_until_include_their_own_second() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let [a, b, c] = [0, 1, 2].map(|nth| author.note(BASE_TIME + nth, &[&["t", "x"]], ""));
    for event in [&b, &c, &a] {
        expect_accepted(&mut client, event);
    }
    for (since, until, expected) in [
        (Some(BASE_TIME), None, vec![&c, &b, &a]),
        (Some(BASE_TIME + 1), None, vec![&c, &b]),
        (Some(BASE_TIME + 2), None, vec![&c]),
        (Some(BASE_TIME + 3), None, vec![]),
        (None, Some(BASE_TIME + 2), vec![&c, &b, &a]),
        (None, Some(BASE_TIME + 1), vec![&b, &a]),
        (None, Some(BASE_TIME), vec![&a]),
        (None, Some(BASE_TIME - 1), vec![]),
        (Some(BASE_TIME + 1), Some(BASE_TIME + 1), vec![&b]),
        (Some(BASE_TIME + 2), Some(BASE_TIME), vec![]),
        (Some(0), Some(u64::MAX), vec![&c, &b, &a]),
    ] {
        let expected: Vec<String> = expected.into_iter().map(|event| id(event)).collect();
        for mut filter in [json!({}), json!({"#t": ["x"]}), json!({"ids": [id(&a), id(&b), id(&c)]})] {
            if let Some(since) = since {
                filter["since"] = json!(since);
            }
            if let Some(until) = until {
                filter["until"] = json!(until);
            }
            assert_eq!(client.query(slice::from_ref(&filter)), expected, "{filter}");
        }
    }
}

#[test]
fn event_that_matches_several_filters_is_sent_once() {
    let server = start_open_server();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events = [
        alice.note(BASE_TIME, &[&["t", "x"]], ""),
        bob.note(BASE_TIME + 1, &[&["t", "x"]], ""),
        bob.note(BASE_TIME + 2, &[], ""),
    ];
    for event in &events {
        expect_accepted(&mut client, event);
    }
    let by_id = json!({"ids": [id(&events[0]), id(&events[1])]});
    let filters = [by_id, json!({"authors": [alice.hex()]}), json!({"#t": ["x"]}), json!({"kinds": [1]}), json!({})];
    assert_eq!(client.query(&filters), ids_in_response_order(&events));
    // Each filter has its own limit.
    let limited = [json!({"authors": [alice.hex()], "limit": 1}), json!({"limit": 1})];
    assert_eq!(client.query(&limited), [id(&events[2]), id(&events[0])]);
    // A live event too is sent once per subscription, however many filters it matches.
    client.subscribe("many", &filters);
    let late = [alice.note(BASE_TIME + 3, &[&["t", "x"]], ""), alice.note(BASE_TIME + 4, &[], "")];
    let mut publisher = server.connect();
    for event in &late {
        expect_accepted(&mut publisher, event);
    }
    assert_eq!([next_event_id(&mut client, "many"), next_event_id(&mut client, "many")], [id(&late[0]), id(&late[1])]);
}

// ---- Subscriptions ---------------------------------------------------------------------------

#[test]
fn limit_zero_sends_only_live_events() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    expect_accepted(&mut client, &author.note(BASE_TIME, &[], "stored"));
    client.send(&json!(["REQ", "zero", {"kinds": [1], "limit": 0}]));
    assert_eq!(client.receive(), json!(["EOSE", "zero"]));
    let live = author.note(BASE_TIME - 5, &[], "live");
    let mut publisher = server.connect();
    expect_accepted(&mut publisher, &live);
    assert_eq!(next_event_id(&mut client, "zero"), id(&live));
    // A limit applies to stored events only, not to live ones.
    assert_eq!(client.subscribe("one", &[json!({"kinds": [1], "limit": 1})]).len(), 1);
    client.send(&json!(["CLOSE", "zero"]));
    for nth in 0..3 {
        let event = author.note(BASE_TIME + nth, &[], "more");
        expect_accepted(&mut publisher, &event);
        assert_eq!(next_event_id(&mut client, "one"), id(&event));
    }
}

#[test]
fn live_event_goes_to_matching_subscriptions_only() {
    let server = start_open_server();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let wanted = alice.note(BASE_TIME, &[&["t", "red"], &["E", &"ab".repeat(32)]], "wanted");
    let end = bob.sign(9, BASE_TIME + 1, &[&["t", "end"]], "the end");
    let matching_filters = [
        json!({}),
        json!({"ids": [id(&wanted)]}),
        json!({"authors": [alice.hex()]}),
        json!({"kinds": [1]}),
        json!({"#t": ["red", "blue"]}),
        json!({"#E": ["ab".repeat(32)]}),
        json!({"#t": ["red"], "authors": [alice.hex()], "kinds": [1], "since": BASE_TIME, "until": BASE_TIME}),
    ];
    let other_filters = [
        json!({"ids": ["cd".repeat(32)]}),
        json!({"authors": [Author::new(3).hex()]}),
        json!({"kinds": [2]}),
        json!({"#t": ["blue"]}),
        json!({"#e": ["ab".repeat(32)]}),
        json!({"#t": ["red"], "authors": [bob.hex()]}),
        json!({"#t": ["red"], "kinds": [2]}),
        json!({"since": BASE_TIME + 1, "until": BASE_TIME + 1, "kinds": [1]}),
        json!({"#t": []}),
        json!({"ids": []}),
    ];
    // Every subscription also matches the last event, which shows that no other event was sent before it.
    let subscribe = |filter: &Value| {
        let mut client = server.connect();
        assert_eq!(client.subscribe("live", &[filter.clone(), json!({"#t": ["end"]})]), [""; 0], "{filter}");
        client
    };
    let matching_clients: Vec<Client> = matching_filters.iter().map(subscribe).collect();
    let other_clients: Vec<Client> = other_filters.iter().map(subscribe).collect();
    let mut publisher = server.connect();
    expect_accepted(&mut publisher, &wanted);
    expect_accepted(&mut publisher, &end);
    for (mut client, filter) in matching_clients.into_iter().zip(matching_filters) {
        let received = [next_event_id(&mut client, "live"), next_event_id(&mut client, "live")];
        assert_eq!(received, [id(&wanted), id(&end)], "{filter}");
    }
    for (mut client, filter) in other_clients.into_iter().zip(other_filters) {
        assert_eq!(next_event_id(&mut client, "live"), id(&end), "{filter}");
    }
}

#[test]
fn publisher_receives_its_own_event() {
    let server = start_open_server();
    let mut client = server.connect();
    assert_eq!(client.subscribe("own", &[json!({})]), [""; 0]);
    let event = Author::new(1).note(BASE_TIME, &[], "mine");
    client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    let mut got = [client.receive(), client.receive()];
    got.sort_by_key(|message| message[0].as_str() == Some("OK"));
    assert_eq!((&got[0][0], &got[0][1], &got[0][2]["id"]), (&json!("EVENT"), &json!("own"), &json!(id(&event))));
    assert_eq!(got[1], json!(["OK", id(&event), true, ""]));
}

#[test]
fn new_subscription_with_the_same_id_replaces_the_old_one() {
    let server = start_open_server();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let mut publisher = server.connect();
    let stored = [alice.note(BASE_TIME, &[], ""), bob.note(BASE_TIME + 1, &[], "")];
    for event in &stored {
        expect_accepted(&mut publisher, event);
    }
    let mut client = server.connect();
    let (by_alice, by_bob) = (json!({"authors": [alice.hex()]}), json!({"authors": [bob.hex()]}));
    assert_eq!(client.subscribe("s", &[by_alice]), [id(&stored[0])]);
    assert_eq!(client.subscribe("s", &[by_bob]), [id(&stored[1])]);
    let late = [alice.note(BASE_TIME + 2, &[], ""), bob.note(BASE_TIME + 3, &[], ""), bob.note(BASE_TIME + 4, &[], "")];
    for event in &late {
        expect_accepted(&mut publisher, event);
    }
    // Alice's event, which came first, is not sent, and Bob's are sent once.
    assert_eq!([next_event_id(&mut client, "s"), next_event_id(&mut client, "s")], [id(&late[1]), id(&late[2])]);
}

/// CLOSED means that no subscription with this id is open: the one that was to be replaced must be closed too.
#[test]
fn rejected_request_closes_the_subscription_with_that_id() {
    let server = start_open_server();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("s", &[json!({})]);
    client.subscribe("t", &[json!({})]);
    client.send(&json!(["REQ", "s", {"search": "words"}]));
    let rejection = client.receive();
    assert_eq!((&rejection[0], &rejection[1]), (&json!("CLOSED"), &json!("s")));
    assert!(rejection[2].as_str().expect("no reason").starts_with("unsupported: "), "{rejection}");
    let mut publisher = server.connect();
    for nth in 0..2 {
        let event = author.note(BASE_TIME + nth, &[], "");
        expect_accepted(&mut publisher, &event);
        assert_eq!(next_event_id(&mut client, "t"), id(&event));
    }
}

#[test]
fn subscription_ids_are_per_connection() {
    let server = start_open_server();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let (mut one, mut other) = (server.connect(), server.connect());
    one.subscribe("s", &[json!({"authors": [alice.hex()]})]);
    other.subscribe("s", &[json!({"authors": [bob.hex()]})]);
    let unusual_id = "name with \"quotes\", \\ and é";
    assert_eq!(other.subscribe(unusual_id, &[json!({"authors": [alice.hex()]})]), [""; 0]);
    let mut publisher = server.connect();
    let events = [alice.note(BASE_TIME, &[], ""), bob.note(BASE_TIME + 1, &[], "")];
    for event in &events {
        expect_accepted(&mut publisher, event);
    }
    assert_eq!(next_event_id(&mut one, "s"), id(&events[0]));
    assert_eq!(next_event_id(&mut other, unusual_id), id(&events[0]));
    assert_eq!(next_event_id(&mut other, "s"), id(&events[1]));
}

#[test]
fn eose_is_sent_exactly_once_per_request() {
    let server = start_open_server();
    let author = Author::new(1);
    let mut publisher = server.connect();
    let stored: Vec<_> = (0..10).map(|nth| author.note(BASE_TIME + nth, &[], "")).collect();
    for event in &stored {
        expect_accepted(&mut publisher, event);
    }
    let mut client = server.connect();
    for sub in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        client.send(&json!(["REQ", sub, {"kinds": [1]}, {"authors": [author.hex()]}]));
    }
    let mut ended = Vec::new();
    while ended.len() < 8 {
        let message = client.receive();
        if message[0] == "EOSE" {
            assert_eq!(message.as_array().map(Vec::len), Some(2), "{message}");
            ended.push(message[1].as_str().expect("no subscription id").to_owned());
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    // Live events cause no further EOSE.
    for nth in 0..5 {
        expect_accepted(&mut publisher, &author.note(BASE_TIME + 20 + nth, &[], ""));
    }
    for _ in 0..5 * 8 {
        assert_eq!(client.receive()[0], "EVENT");
    }
    client.send(&json!(["COUNT", "fence", {"kinds": [1]}]));
    assert_eq!(client.receive(), json!(["COUNT", "fence", {"count": 15}]));
}

#[test]
fn close_ends_only_the_named_subscription() {
    let server = start_open_server();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("closed", &[json!({})]);
    client.subscribe("kept", &[json!({})]);
    client.send(&json!(["CLOSE", "closed"]));
    client.send(&json!(["CLOSE", "never opened"]));
    // The response shows that the server has read both messages.
    client.send(&json!(["COUNT", "fence", {}]));
    assert_eq!(client.receive(), json!(["COUNT", "fence", {"count": 0}]));
    let mut publisher = server.connect();
    for nth in 0..3 {
        let event = author.note(BASE_TIME + nth, &[], "");
        expect_accepted(&mut publisher, &event);
        assert_eq!(next_event_id(&mut client, "kept"), id(&event));
    }
    // The id can be used again.
    assert_eq!(client.subscribe("closed", &[json!({})]).len(), 3);
}

// ---- Publishing -------------------------------------------------------------------------------

#[test]
fn newest_replaceable_event_is_kept() {
    let server = start_open_server();
    let author = Author::new(1);
    for kind in [0, 3, 10_000, 10_002, 19_999] {
        let mut client = server.connect();
        let [old, middle, new] = [0, 1, 2].map(|nth| author.sign(kind, BASE_TIME + nth, &[&["t", "x"]], "version"));
        let other = Author::new(2).sign(kind, BASE_TIME, &[], "by another author");
        let filter = json!({"kinds": [kind], "authors": [author.hex()]});
        expect_accepted(&mut client, &other);
        expect_accepted(&mut client, &middle);
        assert_eq!(client.publish(&old), (true, "duplicate: superseded by a newer event".to_owned()));
        assert_eq!(client.query(slice::from_ref(&filter)), [id(&middle)]);
        expect_accepted(&mut client, &new);
        assert_eq!(client.query(&[filter]), [id(&new)]);
        assert_eq!(client.query(&[json!({"ids": [id(&old), id(&middle), id(&new)]})]), [id(&new)]);
        assert_eq!(client.query(&[json!({"kinds": [kind], "#t": ["x"]})]), [id(&new)]);
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), [id(&new), id(&other)]);
        assert!(client.publish(&middle).1.starts_with("duplicate:"));
    }
}

#[test]
fn newest_addressable_event_of_each_identifier_is_kept() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    for kind in [30_000, 30_617, 30_618, 39_999] {
        let sign = |at, d: &str| author.sign(kind, BASE_TIME + at, &[&["d", d]], "");
        let (a1, a2, b1) = (sign(0, "a"), sign(1, "a"), sign(2, "b"));
        // A missing and an empty identifier are the same.
        let (unnamed, empty) = (author.sign(kind, BASE_TIME + 3, &[], ""), sign(4, ""));
        for event in [&a1, &b1, &a2, &unnamed, &empty] {
            expect_accepted(&mut client, event);
        }
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), [id(&empty), id(&b1), id(&a2)], "{kind}");
        assert_eq!(client.query(&[json!({"kinds": [kind], "#d": ["a"]})]), [id(&a2)], "{kind}");
        assert_eq!(client.publish(&a1), (true, "duplicate: superseded by a newer event".to_owned()));
        assert_eq!(client.query(&[json!({"kinds": [kind], "#d": ["a"]})]), [id(&a2)], "{kind}");
    }
}

#[test]
fn lower_id_wins_ties_in_either_order() {
    let server = start_open_server();
    let mut client = server.connect();
    for (author, kind) in [(1, 0), (2, 10_002), (3, 30_023)] {
        for (d, lower_first) in [("one way", true), ("the other", false)] {
            // Replaceable kinds have no identifier: each order needs its own author.
            let author = Author::new(author + if lower_first { 0 } else { 10 });
            let (lower, higher) = tied_versions(|word| author.sign(kind, BASE_TIME, &[&["d", d]], word));
            let filter = json!({"kinds": [kind], "authors": [author.hex()]});
            if lower_first {
                expect_accepted(&mut client, &lower);
                let (is_accepted, text) = client.publish(&higher);
                assert!(is_accepted && text.contains("the same created_at and a lower id"), "{text}");
                assert!(text.contains("publish it again with a later created_at"), "{text}");
            } else {
                expect_accepted(&mut client, &higher);
                expect_accepted(&mut client, &lower);
            }
            assert_eq!(client.query(slice::from_ref(&filter)), [id(&lower)], "{kind} {d}");
            assert!(client.publish(&higher).0);
            assert_eq!(client.query(&[filter]), [id(&lower)], "{kind} {d}");
        }
    }
}

#[test]
fn superseded_versions_are_not_broadcast() {
    let server = start_open_server();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let mut publisher = server.connect();
    let [old, middle, new] = [0, 1, 2].map(|nth| author.sign(10_002, BASE_TIME + nth, &[], ""));
    expect_accepted(&mut publisher, &middle);
    assert!(publisher.publish(&old).0);
    assert!(publisher.publish(&middle).0);
    expect_accepted(&mut publisher, &new);
    assert_eq!([next_event_id(&mut client, "live"), next_event_id(&mut client, "live")], [id(&middle), id(&new)]);
}

#[test]
fn regular_events_are_all_kept() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    for kind in [1, 2, 4, 44, 1_618, 1_630, 9_999, 40_000, 65_535] {
        let events: Vec<_> = (0..3).map(|nth| author.sign(kind, BASE_TIME, &[&["d", "x"]], &nth.to_string())).collect();
        for event in &events {
            expect_accepted(&mut client, event);
        }
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), ids_in_response_order(&events), "{kind}");
    }
}

#[test]
fn known_event_is_a_duplicate_and_accepted() {
    let server = start_open_server();
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let event = Author::new(1).note(BASE_TIME, &[], "once");
    let after = Author::new(1).note(BASE_TIME + 1, &[], "after");
    let mut publisher = server.connect();
    expect_accepted(&mut publisher, &event);
    for _ in 0..3 {
        assert_eq!(publisher.publish(&event), (true, "duplicate: already have this event".to_owned()));
    }
    // Twice without waiting: the second is a duplicate as well, whether or not the first is on disk yet.
    for _ in 0..2 {
        publisher.send_text(&format!("[\"EVENT\",{}]", after.json()));
    }
    assert_eq!(publisher.receive(), json!(["OK", id(&after), true, ""]));
    assert_eq!(publisher.receive(), json!(["OK", id(&after), true, "duplicate: already have this event"]));
    assert_eq!(publisher.query(&[json!({})]), [id(&after), id(&event)]);
    assert_eq!([next_event_id(&mut client, "live"), next_event_id(&mut client, "live")], [id(&event), id(&after)]);
}

#[test]
fn responses_are_in_the_order_of_the_events() {
    let server = start_open_server();
    let mut client = server.connect();
    let author = Author::new(1);
    let mut forged = author.note(BASE_TIME, &[], "forged").event().clone();
    forged.content.push('!');
    let forged = SignedEvent::from_trusted(forged);
    let mut events: Vec<Arc<SignedEvent>> = (0..100).map(|nth| author.note(BASE_TIME + nth, &[], "")).collect();
    events.insert(50, Arc::new(forged));
    for event in &events {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for (nth, event) in events.iter().enumerate() {
        let response = client.receive();
        assert_eq!((&response[0], &response[1], &response[2]), (&json!("OK"), &json!(id(event)), &json!(nth != 50)));
    }
}

#[test]
fn ephemeral_events_are_broadcast_and_not_stored() {
    let server = start_open_server();
    let author = Author::new(1);
    let mut client = server.connect();
    let mut publisher = server.connect();
    client.subscribe("live", &[json!({"authors": [author.hex()]})]);
    for kind in [20_000, 25_000, 29_999] {
        let event = author.sign(kind, BASE_TIME, &[&["t", "x"]], "passing");
        // It is not stored, so the second is not a duplicate.
        for _ in 0..2 {
            expect_accepted(&mut publisher, &event);
            assert_eq!(next_event_id(&mut client, "live"), id(&event));
        }
        for filter in [json!({}), json!({"ids": [id(&event)]}), json!({"kinds": [kind]}), json!({"#t": ["x"]})] {
            assert_eq!(publisher.query(slice::from_ref(&filter)), [""; 0], "{filter}");
            publisher.send(&json!(["COUNT", "c", filter]));
            assert_eq!(publisher.receive(), json!(["COUNT", "c", {"count": 0}]));
        }
    }
}

#[test]
fn events_are_served_in_canonical_form() {
    let server = start_open_server();
    let author = Author::new(1);
    let tags = owned_tags(&[&["t", "é\n\"🚀\"/", ""], &["alt", "\u{1}\u{8}"], &[]]);
    let event = author.sign_owned(1, BASE_TIME, tags, "line\nquote\" back\\ tab\t slash/ é 🚀 \u{7f}\u{2028}");
    let sent = format!(
        " [ \"EVENT\" ,\n {{ \"seen\" : {{\"by\": [1, null]}},\n \"sig\" : \"{}\" ,\t\"content\" : {} , \"tags\":[ [ {}, {},\"\" ], [ \"alt\", \"\\u0001\\u0008\" ],[ ] ],\r\n\"relay\":\"wss://injected.example\", \"kind\" :1,\"created_at\":{BASE_TIME} , \"pubkey\" :\"{}\",\"id\":\"{}\"}} ] ",
        event.event().sig.iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
        "\"line\\u000aquote\\u0022 back\\u005c tab\\u0009 slash\\/ \\u00e9 \\ud83d\\ude80 \\u007f\\u2028\"",
        "\"\\u0074\"",
        "\"\\u00E9\\n\\\"\\uD83D\\uDE80\\\"\\/\"",
        author.hex(),
        id(&event),
    );
    let mut listener = server.connect();
    listener.subscribe("live", &[json!({})]);
    let mut client = server.connect();
    client.send_text(&sent);
    assert_eq!(client.receive(), json!(["OK", id(&event), true, ""]));

    let canonical = event.json();
    let members = ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"];
    let served: Value = serde_json::from_str(canonical).expect("invalid JSON");
    assert_eq!(served.as_object().map(serde_json::Map::len), Some(members.len()));
    assert!(canonical.contains(r#""content":"line\nquote\" back\\ tab\t slash/ é 🚀"#), "{canonical}");

    assert_eq!(receive_text(&mut listener), format!("[\"EVENT\",\"live\",{canonical}]"));
    for filter in [json!({}), json!({"#t": ["é\n\"🚀\"/"]})] {
        client.send(&json!(["REQ", "stored", filter]));
        assert_eq!(receive_text(&mut client), format!("[\"EVENT\",\"stored\",{canonical}]"));
        assert_eq!(receive_text(&mut client), "[\"EOSE\",\"stored\"]");
    }
}

#[test]
fn forged_events_are_rejected_and_not_stored() {
    let server = start_open_server();
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let mut publisher = server.connect();
    let author = Author::new(1);
    let event = author.note(BASE_TIME, &[], "true").event().clone();
    let mut other_content = event.clone();
    other_content.content = "false".to_owned();
    let mut other_author = event.clone();
    other_author.pubkey = Author::new(2).key();
    let mut other_id = event.clone();
    other_id.id.0[0] ^= 1;
    let mut other_signature = event.clone();
    other_signature.sig[63] ^= 1;
    let mut invalid_key = event.clone();
    invalid_key.pubkey.0 = [0xff; 32];
    for forged in [other_content, other_author, other_id, other_signature, invalid_key] {
        let (accepted, reason) = publisher.publish(&SignedEvent::from_trusted(forged));
        assert!(!accepted && reason.starts_with("invalid: "), "{reason}");
    }
    assert_eq!(publisher.query(&[json!({})]), [""; 0]);
    let event = SignedEvent::from_trusted(event);
    expect_accepted(&mut publisher, &event);
    assert_eq!(next_event_id(&mut client, "live"), id(&event));
}

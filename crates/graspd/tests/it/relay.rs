//! NIP-01 over a plain websocket: what is asked is answered, in order, once, and what comes later is heard.

use std::cmp::Reverse;
use std::slice;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::{Author, owned, pair};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Client, Server};

/// A time in the past that all events of these tests stand around.
const THEN: u64 = 1_700_000_000;

fn open() -> Server {
    Server::start(&[("POLICY", "open")])
}

/// Publishes something that must be taken.
fn accept(client: &mut Client, event: &SignedEvent) {
    assert_eq!(client.publish(event), (true, String::new()), "{}", event.json());
}

/// The ids in the order of an answer: newest first, of the same second the lowest id.
fn in_order(events: &[Arc<SignedEvent>]) -> Vec<String> {
    let mut sorted: Vec<_> = events.to_vec();
    sorted.sort_by_key(|event| (Reverse(event.created_at), event.id));
    sorted.iter().map(|event| event.id.to_string()).collect()
}

fn id(event: &SignedEvent) -> String {
    event.id.to_string()
}

/// The id of the next live event of a subscription; anything else is a mistake.
fn next_live(client: &mut Client, sub: &str) -> String {
    let message = client.receive();
    assert_eq!((&message[0], &message[1]), (&json!("EVENT"), &json!(sub)), "{message}");
    message[2]["id"].as_str().expect("an id").to_owned()
}

/// The next message as it was written.
fn receive_text(client: &mut Client) -> String {
    match client.socket.read().expect("a message within the deadline") {
        Message::Text(text) => text.to_string(),
        other => panic!("unexpected {other:?}"),
    }
}

// ---- Asking -----------------------------------------------------------------------------------

#[test]
fn events_are_found_by_id_author_and_kind() {
    let server = open();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events = [
        alice.note(THEN, &[], "a"),
        alice.note(THEN + 1, &[], "b"),
        alice.sign(7, THEN + 2, &[], "+"),
        bob.note(THEN + 3, &[], "c"),
        bob.sign(65_535, THEN + 4, &[], "last kind"),
    ];
    for event in &events {
        accept(&mut client, event);
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
        assert_eq!(client.query(slice::from_ref(&filter)), in_order(&expected), "{filter}");
    }
}

#[test]
fn every_letter_is_a_tag_of_its_own() {
    let server = open();
    let mut client = server.connect();
    let letters: Vec<char> = ('a'..='z').chain('A'..='Z').collect();
    let author = Author::new(1);
    let events: Vec<_> = letters
        .iter()
        .zip(THEN..)
        .map(|(letter, at)| author.sign_owned(1, at, vec![vec![letter.to_string(), format!("value of {letter}")]], ""))
        .collect();
    for event in &events {
        accept(&mut client, event);
    }
    for (letter, event) in letters.iter().zip(&events) {
        let other_case = if letter.is_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() };
        let value = format!("value of {letter}");
        assert_eq!(client.query(&[json!({format!("#{letter}"): [value]})]), [id(event)], "{letter}");
        assert_eq!(client.query(&[json!({format!("#{other_case}"): [value]})]), [""; 0], "{letter}");
    }
}

#[test]
fn tag_values_are_compared_as_text_whatever_their_bytes() {
    let server = open();
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
    let events: Vec<_> = values.iter().zip(THEN..).map(|(value, at)| author.note(at, &[&["t", value]], "")).collect();
    for event in &events {
        accept(&mut client, event);
    }
    for (value, event) in values.iter().zip(&events) {
        assert_eq!(client.query(&[json!({"#t": [value]})]), [id(event)], "{value:?}");
    }
    // The same question, asked with other escapes.
    for (escaped, event) in
        [("\\u0061\\u005cn\\u0062", &events[7]), ("\\ud83d\\ude80", &events[14]), ("a\\/b", &events[11])]
    {
        client.send_text(&format!("[\"REQ\",\"e\",{{\"#t\":[\"{escaped}\"]}}]"));
        assert_eq!(next_live(&mut client, "e"), id(event), "{escaped}");
        assert_eq!(client.receive(), json!(["EOSE", "e"]));
    }
}

#[test]
fn tag_conditions_are_joined_by_and_their_values_by_or() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let red = author.note(THEN, &[&["t", "red"], &["p", "x"], &["relay", "wss://r"]], "");
    let blue = author.note(THEN + 1, &[&["t", "blue"], &["t", "green"], &["p", "x"]], "");
    let second = author.note(THEN + 2, &[&["t", "first", "second"], &["t"]], "");
    for event in [&red, &blue, &second] {
        accept(&mut client, event);
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
fn answers_are_newest_first_and_of_one_second_lowest_id_first() {
    let server = open();
    let mut client = server.connect();
    let authors = [Author::new(1), Author::new(2)];
    let mut events = Vec::new();
    for nth in 0..60 {
        // Three events in each of twenty seconds, in no order.
        let at = THEN + (nth * 7) % 20;
        events.push(authors[nth as usize % 2].note(at, &[&["t", "x"]], &nth.to_string()));
    }
    for event in &events {
        accept(&mut client, event);
    }
    let keys: Vec<String> = authors.iter().map(Author::hex).collect();
    let ids: Vec<String> = events.iter().map(|event| id(event)).collect();
    // Each of these is answered from another index.
    for filter in [
        json!({}),
        json!({"kinds": [1]}),
        json!({"authors": keys}),
        json!({"authors": keys, "kinds": [1]}),
        json!({"#t": ["x"]}),
        json!({"ids": ids}),
    ] {
        assert_eq!(client.query(slice::from_ref(&filter)), in_order(&events), "{filter}");
        for limit in [1, 2, 4, 59, 60, 61] {
            let mut limited = filter.clone();
            limited["limit"] = json!(limit);
            let expected: Vec<_> = in_order(&events).into_iter().take(limit).collect();
            assert_eq!(client.query(slice::from_ref(&limited)), expected, "{limited}");
        }
    }
}

#[test]
fn the_servers_own_limit_holds_for_each_filter() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "3")]);
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let of_alice: Vec<_> = (0..5).map(|nth| alice.note(THEN + nth, &[], "")).collect();
    let of_bob: Vec<_> = (0..5).map(|nth| bob.note(THEN + 10 + nth, &[], "")).collect();
    for event in of_alice.iter().chain(&of_bob) {
        accept(&mut client, event);
    }
    let newest = |events: &[Arc<SignedEvent>], most: usize| in_order(events).into_iter().take(most).collect::<Vec<_>>();
    let (alice, bob) = (json!({"authors": [alice.hex()]}), json!({"authors": [bob.hex()]}));
    assert_eq!(client.query(slice::from_ref(&alice)), newest(&of_alice, 3));
    assert_eq!(client.query(&[json!({"authors": alice["authors"], "limit": 4})]), newest(&of_alice, 3));
    assert_eq!(client.query(&[json!({"authors": alice["authors"], "limit": 2})]), newest(&of_alice, 2));
    let both = [newest(&of_bob, 3), newest(&of_alice, 3)].concat();
    assert_eq!(client.query(&[alice, bob]), both);
}

#[test]
fn since_and_until_include_their_own_second() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let [a, b, c] = [0, 1, 2].map(|nth| author.note(THEN + nth, &[&["t", "x"]], ""));
    for event in [&b, &c, &a] {
        accept(&mut client, event);
    }
    for (since, until, expected) in [
        (Some(THEN), None, vec![&c, &b, &a]),
        (Some(THEN + 1), None, vec![&c, &b]),
        (Some(THEN + 2), None, vec![&c]),
        (Some(THEN + 3), None, vec![]),
        (None, Some(THEN + 2), vec![&c, &b, &a]),
        (None, Some(THEN + 1), vec![&b, &a]),
        (None, Some(THEN), vec![&a]),
        (None, Some(THEN - 1), vec![]),
        (Some(THEN + 1), Some(THEN + 1), vec![&b]),
        (Some(THEN + 2), Some(THEN), vec![]),
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
fn an_event_that_matches_several_filters_comes_once() {
    let server = open();
    let mut client = server.connect();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let events =
        [alice.note(THEN, &[&["t", "x"]], ""), bob.note(THEN + 1, &[&["t", "x"]], ""), bob.note(THEN + 2, &[], "")];
    for event in &events {
        accept(&mut client, event);
    }
    let by_id = json!({"ids": [id(&events[0]), id(&events[1])]});
    let filters = [by_id, json!({"authors": [alice.hex()]}), json!({"#t": ["x"]}), json!({"kinds": [1]}), json!({})];
    assert_eq!(client.query(&filters), in_order(&events));
    // The limit is each filter's own.
    let limited = [json!({"authors": [alice.hex()], "limit": 1}), json!({"limit": 1})];
    assert_eq!(client.query(&limited), [id(&events[2]), id(&events[0])]);
    // A live event too comes once for each subscription, however many filters it fulfils.
    client.subscribe("many", &filters);
    let late = [alice.note(THEN + 3, &[&["t", "x"]], ""), alice.note(THEN + 4, &[], "")];
    let mut publisher = server.connect();
    for event in &late {
        accept(&mut publisher, event);
    }
    assert_eq!([next_live(&mut client, "many"), next_live(&mut client, "many")], [id(&late[0]), id(&late[1])]);
}

// ---- Staying subscribed -----------------------------------------------------------------------

#[test]
fn limit_zero_is_eose_at_once_and_then_what_comes() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    accept(&mut client, &author.note(THEN, &[], "stored"));
    client.send(&json!(["REQ", "zero", {"kinds": [1], "limit": 0}]));
    assert_eq!(client.receive(), json!(["EOSE", "zero"]));
    let live = author.note(THEN - 5, &[], "live");
    let mut publisher = server.connect();
    accept(&mut publisher, &live);
    assert_eq!(next_live(&mut client, "zero"), id(&live));
    // A limit is for what is stored: live events are not counted against it.
    assert_eq!(client.subscribe("one", &[json!({"kinds": [1], "limit": 1})]).len(), 1);
    client.send(&json!(["CLOSE", "zero"]));
    for nth in 0..3 {
        let event = author.note(THEN + nth, &[], "more");
        accept(&mut publisher, &event);
        assert_eq!(next_live(&mut client, "one"), id(&event));
    }
}

#[test]
fn a_live_event_goes_to_those_who_asked_for_it_and_to_nobody_else() {
    let server = open();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let wanted = alice.note(THEN, &[&["t", "red"], &["E", &"ab".repeat(32)]], "wanted");
    let end = bob.sign(9, THEN + 1, &[&["t", "end"]], "the end");
    let hears = [
        json!({}),
        json!({"ids": [id(&wanted)]}),
        json!({"authors": [alice.hex()]}),
        json!({"kinds": [1]}),
        json!({"#t": ["red", "blue"]}),
        json!({"#E": ["ab".repeat(32)]}),
        json!({"#t": ["red"], "authors": [alice.hex()], "kinds": [1], "since": THEN, "until": THEN}),
    ];
    let does_not = [
        json!({"ids": ["cd".repeat(32)]}),
        json!({"authors": [Author::new(3).hex()]}),
        json!({"kinds": [2]}),
        json!({"#t": ["blue"]}),
        json!({"#e": ["ab".repeat(32)]}),
        json!({"#t": ["red"], "authors": [bob.hex()]}),
        json!({"#t": ["red"], "kinds": [2]}),
        json!({"since": THEN + 1, "until": THEN + 1, "kinds": [1]}),
        json!({"#t": []}),
        json!({"ids": []}),
    ];
    // Everybody also hears the last event, which shows that nothing else was on its way.
    let subscribe = |filter: &Value| {
        let mut client = server.connect();
        assert_eq!(client.subscribe("live", &[filter.clone(), json!({"#t": ["end"]})]), [""; 0], "{filter}");
        client
    };
    let hearing: Vec<Client> = hears.iter().map(subscribe).collect();
    let deaf: Vec<Client> = does_not.iter().map(subscribe).collect();
    let mut publisher = server.connect();
    accept(&mut publisher, &wanted);
    accept(&mut publisher, &end);
    for (mut client, filter) in hearing.into_iter().zip(hears) {
        let heard = [next_live(&mut client, "live"), next_live(&mut client, "live")];
        assert_eq!(heard, [id(&wanted), id(&end)], "{filter}");
    }
    for (mut client, filter) in deaf.into_iter().zip(does_not) {
        assert_eq!(next_live(&mut client, "live"), id(&end), "{filter}");
    }
}

#[test]
fn the_publisher_hears_its_own_event_too() {
    let server = open();
    let mut client = server.connect();
    assert_eq!(client.subscribe("own", &[json!({})]), [""; 0]);
    let event = Author::new(1).note(THEN, &[], "mine");
    client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    let mut got = [client.receive(), client.receive()];
    got.sort_by_key(|message| message[0].as_str() == Some("OK"));
    assert_eq!((&got[0][0], &got[0][1], &got[0][2]["id"]), (&json!("EVENT"), &json!("own"), &json!(id(&event))));
    assert_eq!(got[1], json!(["OK", id(&event), true, ""]));
}

#[test]
fn a_new_question_under_the_same_name_replaces_the_old_one() {
    let server = open();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let mut publisher = server.connect();
    let stored = [alice.note(THEN, &[], ""), bob.note(THEN + 1, &[], "")];
    for event in &stored {
        accept(&mut publisher, event);
    }
    let mut client = server.connect();
    let (of_alice, of_bob) = (json!({"authors": [alice.hex()]}), json!({"authors": [bob.hex()]}));
    assert_eq!(client.subscribe("s", &[of_alice]), [id(&stored[0])]);
    assert_eq!(client.subscribe("s", &[of_bob]), [id(&stored[1])]);
    let late = [alice.note(THEN + 2, &[], ""), bob.note(THEN + 3, &[], ""), bob.note(THEN + 4, &[], "")];
    for event in &late {
        accept(&mut publisher, event);
    }
    // Alice's, which came first, is not among them, and Bob's come once.
    assert_eq!([next_live(&mut client, "s"), next_live(&mut client, "s")], [id(&late[1]), id(&late[2])]);
}

/// CLOSED means that there is no such subscription any more: the one that was to be replaced must not go on under it.
#[test]
fn a_refused_question_ends_the_old_one_of_its_name() {
    let server = open();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("s", &[json!({})]);
    client.subscribe("t", &[json!({})]);
    client.send(&json!(["REQ", "s", {"search": "words"}]));
    let refusal = client.receive();
    assert_eq!((&refusal[0], &refusal[1]), (&json!("CLOSED"), &json!("s")));
    assert!(refusal[2].as_str().expect("a reason").starts_with("unsupported: "), "{refusal}");
    let mut publisher = server.connect();
    for nth in 0..2 {
        let event = author.note(THEN + nth, &[], "");
        accept(&mut publisher, &event);
        assert_eq!(next_live(&mut client, "t"), id(&event));
    }
}

#[test]
fn names_of_subscriptions_belong_to_their_connection() {
    let server = open();
    let (alice, bob) = (Author::new(1), Author::new(2));
    let (mut one, mut other) = (server.connect(), server.connect());
    one.subscribe("s", &[json!({"authors": [alice.hex()]})]);
    other.subscribe("s", &[json!({"authors": [bob.hex()]})]);
    let odd_name = "name with \"quotes\", \\ and é";
    assert_eq!(other.subscribe(odd_name, &[json!({"authors": [alice.hex()]})]), [""; 0]);
    let mut publisher = server.connect();
    let events = [alice.note(THEN, &[], ""), bob.note(THEN + 1, &[], "")];
    for event in &events {
        accept(&mut publisher, event);
    }
    assert_eq!(next_live(&mut one, "s"), id(&events[0]));
    assert_eq!(next_live(&mut other, odd_name), id(&events[0]));
    assert_eq!(next_live(&mut other, "s"), id(&events[1]));
}

#[test]
fn eose_comes_exactly_once_for_each_question() {
    let server = open();
    let author = Author::new(1);
    let mut publisher = server.connect();
    let stored: Vec<_> = (0..10).map(|nth| author.note(THEN + nth, &[], "")).collect();
    for event in &stored {
        accept(&mut publisher, event);
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
            ended.push(message[1].as_str().expect("a name").to_owned());
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    // Nothing that comes later brings another one.
    for nth in 0..5 {
        accept(&mut publisher, &author.note(THEN + 20 + nth, &[], ""));
    }
    for _ in 0..5 * 8 {
        assert_eq!(client.receive()[0], "EVENT");
    }
    client.send(&json!(["COUNT", "fence", {"kinds": [1]}]));
    assert_eq!(client.receive(), json!(["COUNT", "fence", {"count": 15}]));
}

#[test]
fn close_ends_a_subscription_and_only_that() {
    let server = open();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("closed", &[json!({})]);
    client.subscribe("kept", &[json!({})]);
    client.send(&json!(["CLOSE", "closed"]));
    client.send(&json!(["CLOSE", "never opened"]));
    // The answer shows that the connection has read both.
    client.send(&json!(["COUNT", "fence", {}]));
    assert_eq!(client.receive(), json!(["COUNT", "fence", {"count": 0}]));
    let mut publisher = server.connect();
    for nth in 0..3 {
        let event = author.note(THEN + nth, &[], "");
        accept(&mut publisher, &event);
        assert_eq!(next_live(&mut client, "kept"), id(&event));
    }
    // The name can be used again.
    assert_eq!(client.subscribe("closed", &[json!({})]).len(), 3);
}

// ---- Publishing -------------------------------------------------------------------------------

#[test]
fn of_replaceable_events_the_newest_is_kept() {
    let server = open();
    let author = Author::new(1);
    for kind in [0, 3, 10_000, 10_002, 19_999] {
        let mut client = server.connect();
        let [old, middle, new] = [0, 1, 2].map(|nth| author.sign(kind, THEN + nth, &[&["t", "x"]], "version"));
        let other = Author::new(2).sign(kind, THEN, &[], "somebody else's");
        let filter = json!({"kinds": [kind], "authors": [author.hex()]});
        accept(&mut client, &other);
        accept(&mut client, &middle);
        assert_eq!(client.publish(&old), (true, "duplicate: superseded by a newer event".to_owned()));
        assert_eq!(client.query(slice::from_ref(&filter)), [id(&middle)]);
        accept(&mut client, &new);
        assert_eq!(client.query(&[filter]), [id(&new)]);
        assert_eq!(client.query(&[json!({"ids": [id(&old), id(&middle), id(&new)]})]), [id(&new)]);
        assert_eq!(client.query(&[json!({"kinds": [kind], "#t": ["x"]})]), [id(&new)]);
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), [id(&new), id(&other)]);
        assert!(client.publish(&middle).1.starts_with("duplicate:"));
    }
}

#[test]
fn of_addressable_events_the_newest_of_each_name_is_kept() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    for kind in [30_000, 30_617, 30_618, 39_999] {
        let sign = |at, d: &str| author.sign(kind, THEN + at, &[&["d", d]], "");
        let (a1, a2, b1) = (sign(0, "a"), sign(1, "a"), sign(2, "b"));
        // No name and the empty name are the same.
        let (unnamed, empty) = (author.sign(kind, THEN + 3, &[], ""), sign(4, ""));
        for event in [&a1, &b1, &a2, &unnamed, &empty] {
            accept(&mut client, event);
        }
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), [id(&empty), id(&b1), id(&a2)], "{kind}");
        assert_eq!(client.query(&[json!({"kinds": [kind], "#d": ["a"]})]), [id(&a2)], "{kind}");
        assert_eq!(client.publish(&a1), (true, "duplicate: superseded by a newer event".to_owned()));
        assert_eq!(client.query(&[json!({"kinds": [kind], "#d": ["a"]})]), [id(&a2)], "{kind}");
    }
}

#[test]
fn of_the_same_second_the_lower_id_wins_in_either_order() {
    let server = open();
    let mut client = server.connect();
    for (author, kind) in [(1, 0), (2, 10_002), (3, 30_023)] {
        for (d, lower_first) in [("one way", true), ("the other", false)] {
            // Replaceable kinds have no name: each order needs an author of its own.
            let author = Author::new(author + if lower_first { 0 } else { 10 });
            let (lower, higher) = pair(|word| author.sign(kind, THEN, &[&["d", d]], word));
            let filter = json!({"kinds": [kind], "authors": [author.hex()]});
            if lower_first {
                accept(&mut client, &lower);
                assert_eq!(client.publish(&higher), (true, "duplicate: superseded by a newer event".to_owned()));
            } else {
                accept(&mut client, &higher);
                accept(&mut client, &lower);
            }
            assert_eq!(client.query(slice::from_ref(&filter)), [id(&lower)], "{kind} {d}");
            assert!(client.publish(&higher).0);
            assert_eq!(client.query(&[filter]), [id(&lower)], "{kind} {d}");
        }
    }
}

#[test]
fn versions_that_lose_are_not_heard_of() {
    let server = open();
    let author = Author::new(1);
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let mut publisher = server.connect();
    let [old, middle, new] = [0, 1, 2].map(|nth| author.sign(10_002, THEN + nth, &[], ""));
    accept(&mut publisher, &middle);
    assert!(publisher.publish(&old).0);
    assert!(publisher.publish(&middle).0);
    accept(&mut publisher, &new);
    assert_eq!([next_live(&mut client, "live"), next_live(&mut client, "live")], [id(&middle), id(&new)]);
}

#[test]
fn regular_events_are_all_kept() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    for kind in [1, 2, 4, 44, 1_618, 1_630, 9_999, 40_000, 65_535] {
        let events: Vec<_> = (0..3).map(|nth| author.sign(kind, THEN, &[&["d", "x"]], &nth.to_string())).collect();
        for event in &events {
            accept(&mut client, event);
        }
        assert_eq!(client.query(&[json!({"kinds": [kind]})]), in_order(&events), "{kind}");
    }
}

#[test]
fn what_is_known_already_is_a_duplicate_and_no_failure() {
    let server = open();
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let event = Author::new(1).note(THEN, &[], "once");
    let after = Author::new(1).note(THEN + 1, &[], "after");
    let mut publisher = server.connect();
    accept(&mut publisher, &event);
    for _ in 0..3 {
        assert_eq!(publisher.publish(&event), (true, "duplicate: already have this event".to_owned()));
    }
    // Twice in one breath: the second is a duplicate as well, whether or not the first is on disk yet.
    for _ in 0..2 {
        publisher.send_text(&format!("[\"EVENT\",{}]", after.json()));
    }
    assert_eq!(publisher.receive(), json!(["OK", id(&after), true, ""]));
    assert_eq!(publisher.receive(), json!(["OK", id(&after), true, "duplicate: already have this event"]));
    assert_eq!(publisher.query(&[json!({})]), [id(&after), id(&event)]);
    assert_eq!([next_live(&mut client, "live"), next_live(&mut client, "live")], [id(&event), id(&after)]);
}

#[test]
fn answers_come_in_the_order_of_the_events() {
    let server = open();
    let mut client = server.connect();
    let author = Author::new(1);
    let mut forged = author.note(THEN, &[], "forged").event().clone();
    forged.content.push('!');
    let forged = SignedEvent::from_trusted(forged);
    let mut events: Vec<Arc<SignedEvent>> = (0..100).map(|nth| author.note(THEN + nth, &[], "")).collect();
    events.insert(50, Arc::new(forged));
    for event in &events {
        client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    }
    for (nth, event) in events.iter().enumerate() {
        let answer = client.receive();
        assert_eq!((&answer[0], &answer[1], &answer[2]), (&json!("OK"), &json!(id(event)), &json!(nth != 50)));
    }
}

#[test]
fn ephemeral_events_are_heard_and_not_kept() {
    let server = open();
    let author = Author::new(1);
    let mut client = server.connect();
    let mut publisher = server.connect();
    client.subscribe("live", &[json!({"authors": [author.hex()]})]);
    for kind in [20_000, 25_000, 29_999] {
        let event = author.sign(kind, THEN, &[&["t", "x"]], "passing");
        // It is not kept, so it is no duplicate either.
        for _ in 0..2 {
            accept(&mut publisher, &event);
            assert_eq!(next_live(&mut client, "live"), id(&event));
        }
        for filter in [json!({}), json!({"ids": [id(&event)]}), json!({"kinds": [kind]}), json!({"#t": ["x"]})] {
            assert_eq!(publisher.query(slice::from_ref(&filter)), [""; 0], "{filter}");
            publisher.send(&json!(["COUNT", "c", filter]));
            assert_eq!(publisher.receive(), json!(["COUNT", "c", {"count": 0}]));
        }
    }
}

#[test]
fn events_are_served_in_one_form_whatever_form_they_came_in() {
    let server = open();
    let author = Author::new(1);
    let tags = owned(&[&["t", "é\n\"🚀\"/", ""], &["alt", "\u{1}\u{8}"], &[]]);
    let event = author.sign_owned(1, THEN, tags, "line\nquote\" back\\ tab\t slash/ é 🚀 \u{7f}\u{2028}");
    let sent = format!(
        " [ \"EVENT\" ,\n {{ \"seen\" : {{\"by\": [1, null]}},\n \"sig\" : \"{}\" ,\t\"content\" : {} , \"tags\":[ [ {}, {},\"\" ], [ \"alt\", \"\\u0001\\u0008\" ],[ ] ],\r\n\"relay\":\"wss://injected.example\", \"kind\" :1,\"created_at\":{THEN} , \"pubkey\" :\"{}\",\"id\":\"{}\"}} ] ",
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
    let served: Value = serde_json::from_str(canonical).expect("JSON");
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
fn forged_events_are_refused_and_not_kept() {
    let server = open();
    let mut client = server.connect();
    client.subscribe("live", &[json!({})]);
    let mut publisher = server.connect();
    let author = Author::new(1);
    let event = author.note(THEN, &[], "true").event().clone();
    let mut other_content = event.clone();
    other_content.content = "false".to_owned();
    let mut other_author = event.clone();
    other_author.pubkey = Author::new(2).key();
    let mut other_id = event.clone();
    other_id.id.0[0] ^= 1;
    let mut other_signature = event.clone();
    other_signature.sig[63] ^= 1;
    let mut no_point = event.clone();
    no_point.pubkey.0 = [0xff; 32];
    for forged in [other_content, other_author, other_id, other_signature, no_point] {
        let (accepted, why) = publisher.publish(&SignedEvent::from_trusted(forged));
        assert!(!accepted && why.starts_with("invalid: "), "{why}");
    }
    assert_eq!(publisher.query(&[json!({})]), [""; 0]);
    let event = SignedEvent::from_trusted(event);
    accept(&mut publisher, &event);
    assert_eq!(next_live(&mut client, "live"), id(&event));
}

//! Limits: they are enforced, reported to the client, and free again after use.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::limits;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::{BEHIND_PROXY, Client, DEADLINE, Server, eventually};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs()
}

/// Sends a message and returns the response.
fn send_and_receive(client: &mut Client, message: &Value) -> Value {
    client.send(message);
    client.receive()
}

// One connection.

#[test]
fn subscriptions_are_limited() {
    let server = Server::start(&[("RELAY_MAX_SUBSCRIPTIONS", "3")]);
    let mut client = server.connect();
    let mut req = |name: &str| send_and_receive(&mut client, &json!(["REQ", name, {"kinds": [1]}]));
    for name in ["a", "b", "c"] {
        assert_eq!(req(name), json!(["EOSE", name]));
    }
    let full = json!(["CLOSED", "d", "rate-limited: at most 3 subscriptions are kept"]);
    assert_eq!(req("d"), full);
    assert_eq!(req("b"), json!(["EOSE", "b"]), "replacing a subscription is allowed");
    assert_eq!(req("d"), full);
    client.send(&json!(["CLOSE", "a"]));
    assert_eq!(
        send_and_receive(&mut client, &json!(["REQ", "d", {}])),
        json!(["EOSE", "d"]),
        "a closed one frees its slot"
    );
    assert_eq!(
        send_and_receive(&mut server.connect(), &json!(["REQ", "e", {}])),
        json!(["EOSE", "e"]),
        "the limit is per connection"
    );
}

#[test]
fn filter_bytes_per_connection_are_limited() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    // Three of these exceed the limit, two do not.
    let large = json!({"#t": ["x".repeat(limits::MAX_FILTER_BYTES_PER_CONNECTION / 3)]});
    let mut req = |name: &str| send_and_receive(&mut client, &json!(["REQ", name, large]));
    assert_eq!(req("a"), json!(["EOSE", "a"]));
    assert_eq!(req("b"), json!(["EOSE", "b"]));
    let full = json!(["CLOSED", "c", "rate-limited: active subscriptions exceed max size 5242880 bytes"]);
    assert_eq!(req("c"), full);
    assert_eq!(req("b"), json!(["EOSE", "b"]), "replacing a subscription is allowed");
    client.send(&json!(["CLOSE", "a"]));
    assert_eq!(
        send_and_receive(&mut client, &json!(["REQ", "c", large])),
        json!(["EOSE", "c"]),
        "a closed one frees its slot"
    );
}

#[test]
fn negentropy_sessions_are_limited() {
    let server = Server::start(&[("RELAY_MAX_NEG_SESSIONS", "2")]);
    let mut client = server.connect();
    let mut open = |name: &str| send_and_receive(&mut client, &json!(["NEG-OPEN", name, {}, "6100000200"]));
    let opened = |name: &str| json!(["NEG-MSG", name, "6100000200"]);
    let full = json!(["NEG-ERR", "c", "rate-limited: too many negentropy subscriptions, at most 2"]);
    assert_eq!(open("a"), opened("a"));
    assert_eq!(open("b"), opened("b"));
    assert_eq!(open("c"), full);
    assert_eq!(open("b"), opened("b"), "replacing a subscription is allowed");
    client.send(&json!(["NEG-CLOSE", "a"]));
    assert_eq!(
        send_and_receive(&mut client, &json!(["NEG-OPEN", "c", {}, "6100000200"])),
        opened("c"),
        "a closed one frees its slot"
    );
    // An error ends a session and frees its slot.
    assert_eq!(send_and_receive(&mut client, &json!(["NEG-MSG", "c", "00"]))[0], "NEG-ERR");
    assert_eq!(send_and_receive(&mut client, &json!(["NEG-OPEN", "d", {}, "6100000200"])), opened("d"));
}

#[test]
fn filter_limit_caps_the_events_of_each_filter() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_FILTER_LIMIT", "5")]);
    let mut client = server.connect();
    let author = Author::new(1);
    let start = now() - 100;
    let ids: Vec<String> = (0..12)
        .map(|nth| {
            let event = author.sign(1 + nth % 2, start + u64::from(nth), &[], "");
            assert_eq!(client.publish(&event), (true, String::new()));
            event.id.to_string()
        })
        .collect();
    let newest = |of: &dyn Fn(usize) -> bool, count: usize| -> Vec<String> {
        (0..12).rev().filter(|nth| of(*nth)).take(count).map(|nth| ids[nth].clone()).collect()
    };
    for (filters, expected) in [
        (vec![json!({})], newest(&|_| true, 5)),
        (vec![json!({"limit": 10_000})], newest(&|_| true, 5)),
        (vec![json!({"limit": 3})], newest(&|_| true, 3)),
        (vec![json!({"limit": 0})], vec![]),
        (vec![json!({"kinds": [1]}), json!({"kinds": [2], "limit": 2})], newest(&|nth| nth % 2 == 0 || nth > 8, 7)),
    ] {
        assert_eq!(client.query(&filters), expected, "{filters:?}");
    }
    assert_eq!(send_and_receive(&mut client, &json!(["COUNT", "c", {}]))[2]["count"], 12, "COUNT is not capped");
}

// Events.

/// Returns an event whose JSON has exactly this size.
fn event_of_size(kind: u16, bytes: usize) -> Arc<SignedEvent> {
    let make = |content: &str| Author::new(1).sign(kind, now(), &[&["d", "x"]], content);
    let event = make(&"x".repeat(bytes - make("").json().len()));
    assert_eq!(event.json().len(), bytes);
    event
}

#[test]
fn event_size_is_limited_and_states_may_be_larger() {
    let state = limits::MAX_STATE_EVENT_BYTES;
    for (setting, max) in [("196608", 196_608), ("2000", 2_000)] {
        let server = Server::start(&[("POLICY", "open"), ("RELAY_MAX_EVENT_SIZE_BYTES", setting)]);
        let mut client = server.connect();
        for (kind, max) in [(1, max), (kinds::ANNOUNCEMENT, max), (kinds::STATE, state)] {
            assert_eq!(client.publish(&event_of_size(kind, max)), (true, String::new()), "kind {kind}");
            let rejected = format!("invalid: the event has {} bytes, the limit is {max}", max + 1);
            assert_eq!(client.publish(&event_of_size(kind, max + 1)), (false, rejected), "kind {kind}");
        }
    }
}

#[test]
fn tag_count_is_limited_and_states_may_have_more() {
    let server = Server::start(&[("POLICY", "open")]);
    let mut client = server.connect();
    let mut publish = |kind: u16, name: &str, count: usize| {
        let tags = (0..count).map(|nth| vec![name.to_owned(), nth.to_string()]).collect();
        client.publish(&Author::new(1).sign_owned(kind, now(), tags, ""))
    };
    for (kind, name, max) in [
        (1, "t", limits::MAX_EVENT_TAGS),
        (1, "refs/x", limits::MAX_EVENT_TAGS),
        (kinds::STATE, "t", limits::MAX_EVENT_TAGS),
        (kinds::STATE, "refs/x", limits::MAX_STATE_TAGS),
    ] {
        let rejected = format!("invalid: the event has more than {max} tags");
        assert_eq!(publish(kind, name, max + 1), (false, rejected), "kind {kind}, {name}");
        assert!(publish(kind, name, max).0, "kind {kind}, {name}");
    }
}

#[test]
fn created_at_may_be_at_most_15_minutes_ahead() {
    let server = Server::start(&[("POLICY", "open")]);
    let mut client = server.connect();
    let mut publish = |ahead: u64| client.publish(&Author::new(1).note(now() + ahead, &[], ""));
    assert_eq!(publish(limits::MAX_FUTURE_SECS - 5), (true, String::new()));
    let (accepted, text) = publish(limits::MAX_FUTURE_SECS + 60);
    assert_eq!((accepted, text.as_str()), (false, "invalid: created_at is more than 15 minutes in the future"));
}

#[test]
fn burst_of_events_is_answered_in_order() {
    let server = Server::start(&[("POLICY", "open")]);
    let mut client = server.connect();
    let count = 3 * limits::MAX_UNANSWERED_EVENTS_PER_CONNECTION;
    let author = Author::new(1);
    let ids: Vec<String> = (0..count)
        .map(|nth| {
            let event = author.note(now(), &[], &nth.to_string());
            client.send_text(&format!("[\"EVENT\",{}]", event.json()));
            event.id.to_string()
        })
        .collect();
    for id in ids {
        assert_eq!(client.receive(), json!(["OK", id, true, ""]));
    }
    assert_eq!(send_and_receive(&mut client, &json!(["COUNT", "c", {}]))[2]["count"], count);
}

// Many connections.

#[test]
fn connections_are_limited_and_slots_are_freed() {
    let server = Server::start(&[("MAX_CONNECTIONS", "2")]);
    let (mut first, second) = (server.connect(), server.connect());
    assert!(server.connect_from(None).is_err(), "a third connection is rejected");
    assert!(server.connect_from(None).is_err(), "a rejected connection changes nothing");
    assert!(first.query(&[json!({})]).is_empty(), "open connections are not affected");
    drop(second);
    let mut third = eventually("the slot is free again", || server.connect_from(None).ok());
    assert!(third.query(&[json!({})]).is_empty());
    assert!(server.connect_from(None).is_err(), "the slot is occupied again");
}

#[test]
fn connections_per_network_are_limited() {
    let server = Server::start(&[BEHIND_PROXY, ("NETWORK_MAX_CONNECTIONS", "2")]);
    let from = |address: &str| server.connect_from(Some(address));
    for (neighbours, elsewhere) in [
        (["203.0.113.5", "203.0.113.250", "1.2.3.4, 203.0.113.5"], "203.0.114.5"),
        (["2001:db8:1::1", "2001:db8:1:ffff::2", "2001:db8:1:2:3:4:5:6"], "2001:db8:2::1"),
    ] {
        let first = from(neighbours[0]).expect("connection rejected");
        let _second = from(neighbours[1]).expect("connection rejected");
        assert_eq!(from(neighbours[2]).err(), Some(Some(429)), "a third connection is rejected");
        assert!(from(elsewhere).is_ok(), "the limit is per network");
        drop(first);
        let _third = eventually("the slot is free again", || from(neighbours[2]).ok());
        assert_eq!(from(neighbours[0]).err(), Some(Some(429)));
    }
    let many: Vec<Client> = (0..5).map(|_| server.connect()).collect();
    assert_eq!(many.len(), 5, "loopback has no limit");
    let page = server.get("/", "X-Forwarded-For: 203.0.113.5\r\n");
    assert!(page.starts_with("HTTP/1.1 200"), "a page needs no slot: {page}");
}

#[test]
fn aborted_handshakes_free_their_slots() {
    let server = Server::start(&[BEHIND_PROXY, ("NETWORK_MAX_CONNECTIONS", "3")]);
    let handshake = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n";
    for _ in 0..2_000 {
        let mut stream = TcpStream::connect(server.address).expect("cannot connect");
        stream.write_all(handshake.as_bytes()).expect("cannot write");
        stream.shutdown(Shutdown::Both).expect("cannot close the connection");
    }
    eventually("all slots are free again", || {
        let connected: Vec<_> = (0..3).map(|_| server.connect_from(Some("203.0.113.5"))).collect();
        connected.iter().all(Result::is_ok).then_some(())
    });
}

#[test]
fn clients_of_an_untrusted_proxy_share_the_limits_of_one_network() {
    let folder = Arc::new(TempDir::new().expect("cannot create a temporary folder"));
    let settings = [("POLICY", "open"), ("NETWORK_MAX_CONNECTIONS", "2"), ("NETWORK_EVENTS_PER_MINUTE", "1")];
    let server = Server::start_with_log(&folder, &settings);
    let warning = "peer sends headers of a proxy but is not trusted, its clients share the limits of one network";
    assert!(!server.log().contains(warning));
    // An attacker behind a proxy that the operator forgot to list, with another forged address for each connection.
    let mut attacker = server.connect_from(Some("203.0.113.5")).expect("connection rejected");
    let _second = server.connect_from(Some("198.51.100.5")).expect("connection rejected");
    assert_eq!(server.connect_from(Some("192.0.2.5")).err(), Some(Some(429)), "a third connection is rejected");
    for _ in 0..1_000 {
        attacker.send_text(r#"["EVENT",{}]"#);
    }
    for _ in 0..1_000 {
        assert_eq!(attacker.receive(), json!(["NOTICE", "invalid: missing field `id`"]));
    }
    let event = Author::new(1).note(now(), &[], "too much");
    let rejected = (false, "rate-limited: too many events from your network, slow down".to_owned());
    assert_eq!(attacker.publish(&event), rejected);
    // Programs on this machine are not affected.
    for mut program in [(); 3].map(|()| server.connect()) {
        assert!(program.publish(&event).0);
        assert_eq!(program.query(&[json!({})]).len(), 1);
    }
    let log = server.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains(warning)).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for part in ["WARN http", "peer=127.0.0.1", "setting=\"NGIT_TRUSTED_PROXY_CIDRS\""] {
        assert!(warnings[0].contains(part), "{part}: {}", warnings[0]);
    }
}

#[test]
fn events_per_minute_per_network_are_limited() {
    let settings = [("POLICY", "open"), BEHIND_PROXY, ("NETWORK_EVENTS_PER_MINUTE", "1")];
    let server = Server::start(&settings);
    let mut client = server.connect_from(Some("203.0.113.5")).expect("cannot connect");
    // A malformed event counts as an event. A burst of a thousand is always allowed.
    for _ in 0..1_000 {
        client.send_text(r#"["EVENT",{}]"#);
    }
    for _ in 0..1_000 {
        assert_eq!(client.receive(), json!(["NOTICE", "invalid: missing field `id`"]));
    }
    let event = Author::new(1).note(now(), &[], "too much");
    let rejected = (false, "rate-limited: too many events from your network, slow down".to_owned());
    assert_eq!(client.publish(&event), rejected);
    assert!(client.query(&[json!({})]).is_empty(), "queries are still answered, and nothing was stored");
    let mut neighbour = server.connect_from(Some("203.0.113.99")).expect("cannot connect");
    assert_eq!(neighbour.publish(&event), rejected, "the limit is per network, not per connection");
    neighbour.send_text(r#"["EVENT",{}]"#);
    assert_eq!(neighbour.receive(), json!(["NOTICE", rejected.1]), "an event without an id is rejected with a NOTICE");
    for elsewhere in [Some("203.0.114.5"), None] {
        let mut client = server.connect_from(elsewhere).expect("cannot connect");
        assert!(client.publish(&event).0, "{elsewhere:?} is not affected");
    }
}

#[test]
fn slow_reader_is_disconnected_and_others_are_not_affected() {
    let server = Server::start(&[("POLICY", "open")]);
    let (mut slow, mut quick, mut publisher) = (server.connect(), server.connect(), server.connect());
    slow.subscribe("s", &[json!({"kinds": [1]})]);
    quick.subscribe("q", &[json!({"kinds": [1]})]);
    // More than the outbox of the server and all socket buffers hold together.
    let content = "x".repeat(180 * 1024);
    let author = Author::new(1);
    let mut last = String::new();
    for nth in 0..160 {
        let event = author.note(now(), &[&["nth", &nth.to_string()]], &content);
        assert_eq!(publisher.publish(&event), (true, String::new()));
        last = event.id.to_string();
        assert_eq!(quick.receive()[2]["id"], last.as_str(), "events arrive in order and without a gap");
    }
    // The slow client reads now: its stream ends before the last event.
    slow.socket.get_mut().set_read_timeout(Some(DEADLINE)).expect("cannot set the timeout");
    loop {
        match slow.socket.read() {
            Ok(Message::Text(text)) => assert!(!text.contains(&last), "the slow reader was not disconnected"),
            Ok(Message::Close(_)) => break,
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("the connection is neither closed nor sending")
            }
            Err(_) => break,
        }
    }
    assert_eq!(publisher.query(&[json!({"limit": 1})]).len(), 1);
    assert!(quick.query(&[json!({"kinds": [2]})]).is_empty());
}

//! Attacks on the relay from one network: a user in another network is not affected.

use std::io::Write;

use grasp_core::limits;
use grasp_core::nostr::kinds;
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::support::attack::{MB, memory};
use crate::support::bystander::Bystander;
use crate::support::git::BASE_TIME;
use crate::support::test_server::TestServer;
use crate::support::{BEHIND_PROXY, Client, eventually};

/// Memory that a server may have more after an attack than before: caches and buffers that stay.
const MAX_RETAINED: u64 = 32 * MB;

fn connect(server: &TestServer, address: &str) -> Client {
    server.process.connect_from(Some(address)).unwrap_or_else(|status| panic!("{address} is rejected: {status:?}"))
}

fn memory_of(server: &TestServer) -> u64 {
    memory(server.process.child.id()).expect("the server runs")
}

/// Waits until the server has about as much memory as before an attack.
#[track_caller]
fn expect_memory_returned(server: &TestServer, before: u64) {
    let peak = memory_of(server);
    let after = eventually("memory is returned to the system", || {
        Some(memory_of(server)).filter(|after| *after < before + MAX_RETAINED)
    });
    eprintln!("memory before: {} MB, during: {} MB, after: {} MB", before / MB, peak / MB, after / MB);
}

/// Number of values of a large filter: nearly the most that a filter may have.
const LARGE_FILTER_VALUES: usize = 19_000;

/// Returns a filter that takes nearly all memory that the filters of one connection may have. Each `nth` gives other
/// values.
fn large_filter(nth: usize) -> String {
    let value_bytes =
        limits::MAX_FILTER_BYTES_PER_CONNECTION / LARGE_FILTER_VALUES - limits::FILTER_VALUE_OVERHEAD_BYTES;
    let values: Vec<String> =
        (0..LARGE_FILTER_VALUES).map(|value| format!("\"{nth:04}{value:0width$}\"", width = value_bytes - 8)).collect();
    format!("{{\"#t\":[{}],\"limit\":0}}", values.join(","))
}

/// Returns a REQ with a large filter, and a filter that matches the announcement of the bystander.
fn large_req(nth: usize) -> String {
    format!("[\"REQ\",\"large\",{},{{\"kinds\":[{}]}}]", large_filter(nth), kinds::ANNOUNCEMENT)
}

#[test]
fn connections_of_one_network_do_not_affect_others() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("NETWORK_MAX_CONNECTIONS", "100")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let mut attackers: Vec<Client> = (0..100).map(|_| connect(&server, "203.0.113.5")).collect();
    for attacker in &mut attackers {
        attacker.subscribe("all", &[json!({})]);
    }
    assert_eq!(server.process.connect_from(Some("203.0.113.6")).err(), Some(Some(429)));
    bystander.expect_unaffected(&server, "connections of one network");
}

/// Sixty connections with large filters used to fill the memory for filters of the whole server.
#[test]
fn large_filters_of_one_network_do_not_close_subscriptions_of_others() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let issues = json!({"kinds": [kinds::ISSUE], "limit": 0});
    let mut before_attack = connect(&server, "198.51.100.1");
    before_attack.subscribe("issues", std::slice::from_ref(&issues));

    let request = large_req(0);
    let mut attackers = Vec::new();
    let mut live = 0;
    for nth in 0..60 {
        let mut attacker = connect(&server, &format!("203.0.113.{nth}"));
        attacker.send_text(&request);
        // All of them get their stored events.
        assert_eq!(attacker.receive()[0], "EVENT", "{nth}");
        assert_eq!(attacker.receive(), json!(["EOSE", "large"]), "{nth}");
        // The reply to the next message shows whether CLOSED follows.
        attacker.send(&json!(["COUNT", "count", {"kinds": [kinds::ANNOUNCEMENT]}]));
        let reply = attacker.receive();
        if reply[0] == "CLOSED" {
            let text = "rate-limited: the filters of your network take too much memory, no live events follow";
            assert_eq!(reply, json!(["CLOSED", "large", text]));
        } else {
            assert_eq!(reply, json!(["COUNT", "count", {"count": 1}]));
            live += 1;
        }
        attackers.push(attacker);
    }
    assert_eq!(live, limits::MAX_FILTER_BYTES_PER_NETWORK / limits::MAX_FILTER_BYTES_PER_CONNECTION);

    let mut during_attack = connect(&server, "192.0.2.1");
    during_attack.subscribe("issues", &[issues]);
    bystander.expect_unaffected(&server, "large filters");
    for mut subscriber in [before_attack, during_attack] {
        assert_eq!(subscriber.receive()[2]["kind"], kinds::ISSUE, "live events are sent");
    }
    drop(attackers);
    eventually("the share is free again", || {
        let mut again = connect(&server, "203.0.113.1");
        again.send_text(&request);
        assert_eq!((again.receive()[0].clone(), again.receive()), (json!("EVENT"), json!(["EOSE", "large"])));
        again.send(&json!(["COUNT", "count", {"kinds": [kinds::ANNOUNCEMENT]}]));
        (again.receive()[0] == "COUNT").then_some(())
    });
}

#[test]
fn memory_of_filters_is_returned_to_the_system() {
    let server = TestServer::with_settings(&[BEHIND_PROXY]);
    let before = memory_of(&server);
    let mut clients: Vec<Client> = (0..12).map(|nth| connect(&server, &format!("203.0.{nth}.1"))).collect();
    for (nth, client) in clients.iter_mut().enumerate() {
        client.send_text(&large_req(nth));
    }
    for client in &mut clients {
        assert_eq!(client.receive(), json!(["EOSE", "large"]));
    }
    let growth = memory_of(&server).saturating_sub(before);
    assert!(growth > 2 * MAX_RETAINED, "only {} MB", growth / MB);
    drop(clients);
    expect_memory_returned(&server, before);
}

/// The scan of stored events used to keep its filters after CLOSE, and they counted for no network.
#[test]
fn subscriptions_that_are_closed_at_once_keep_no_memory() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let before = memory_of(&server);
    let requests: Vec<String> = (0..4).map(large_req).collect();
    let mut attackers: Vec<Client> = (0..40).map(|nth| connect(&server, &format!("203.0.113.{nth}"))).collect();
    let mut highest = 0;
    for attacker in &mut attackers {
        for request in &requests {
            attacker.send_text(request);
            attacker.send(&json!(["CLOSE", "large"]));
        }
        highest = highest.max(memory_of(&server));
    }
    let growth = highest.saturating_sub(before);
    eprintln!("memory before: {} MB, during: {} MB", before / MB, highest / MB);
    assert!(growth < 200 * MB, "the server has {} MB more", growth / MB);
    bystander.expect_unaffected(&server, "subscriptions that are closed at once");
    drop(attackers);
    expect_memory_returned(&server, before);
}

/// The filters of reconciliations used to count for no network.
#[test]
fn filters_of_reconciliations_count_for_their_network() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let before = memory_of(&server);
    let mut opened = 0;
    let mut attackers = Vec::new();
    let large_filter = large_filter(0);
    for nth in 0..3 {
        let mut attacker = connect(&server, &format!("203.0.113.{nth}"));
        for open in 0..10 {
            // Each filter is different, so that no two reconciliations use the same set.
            let filter = large_filter.replace("\"limit\":0", &format!("\"since\":{}", 10 * nth + open));
            attacker.send_text(&format!("[\"NEG-OPEN\",\"{open}\",{filter},\"6100000200\"]"));
            let reply = attacker.receive();
            let blocked = "blocked: too many reconciliations from your network at once, try again later";
            opened += usize::from(reply[0] == "NEG-MSG");
            assert!(reply[0] == "NEG-MSG" || reply[2] == blocked, "{reply}");
        }
        attackers.push(attacker);
    }
    assert_eq!(opened, limits::MAX_NEGENTROPY_BYTES_PER_NETWORK / limits::MAX_FILTER_BYTES_PER_CONNECTION);
    let growth = memory_of(&server).saturating_sub(before);
    assert!(growth < 128 * MB, "the server has {} MB more", growth / MB);
    let mut other = connect(&server, "198.51.100.1");
    assert_eq!(reconcile(&mut other, "other", &json!({"kinds": [kinds::ISSUE]}))[0], "NEG-MSG");
    bystander.expect_unaffected(&server, "filters of reconciliations");
    drop(attackers);
    expect_memory_returned(&server, before);
}

/// Number of events in each item set.
const ITEMS: usize = 10_000;

/// Number of item sets that exceed the share of a network, each with 40 bytes per item.
const ITEM_SETS: usize = limits::MAX_NEGENTROPY_BYTES_PER_NETWORK / (40 * ITEMS) + 1;

/// Opens a reconciliation without any event of our own. Returns the reply.
fn reconcile(client: &mut Client, name: &str, filter: &Value) -> Value {
    client.send(&json!(["NEG-OPEN", name, filter, "6100000200"]));
    loop {
        // On a busy machine, the server may close the first ones meanwhile because they are idle.
        let reply = client.receive();
        if reply[1] == name {
            return reply;
        }
    }
}

#[test]
fn reconciliations_of_one_network_do_not_block_those_of_others() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY, ("RELAY_MAX_NEG_SESSIONS", "1000")]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let (author, repo) = (Author::new(2), server.maintainer(1).repo("tool"));
    for part in 0..ITEMS as u64 / 500 {
        let issues: Vec<_> = (0..500).map(|nth| author.issue(BASE_TIME + part * 500 + nth, &repo)).collect();
        for issue in &issues {
            server.client.send_text(&format!("[\"EVENT\",{}]", issue.json()));
        }
        for issue in &issues {
            assert_eq!(server.client.receive(), json!(["OK", issue.id.to_string(), true, ""]));
        }
    }
    // Each filter is different, so that no two reconciliations use the same set.
    let filter = |nth: usize| json!({"kinds": [kinds::ISSUE], "since": nth});
    let blocked = "blocked: too many reconciliations from your network at once, try again later";
    let mut attacker = connect(&server, "203.0.113.5");
    let opened = (0..2 * ITEM_SETS).position(|nth| {
        let name = nth.to_string();
        let reply = reconcile(&mut attacker, &name, &filter(nth));
        let is_blocked = reply == json!(["NEG-ERR", name, blocked]);
        assert!(is_blocked || reply[0] == "NEG-MSG", "{reply}");
        is_blocked
    });
    let opened = opened.expect("the share of the network is not limited");
    assert!(opened > ITEM_SETS / 2, "only {opened} of {ITEM_SETS} sets could be opened");

    let mut other = connect(&server, "198.51.100.1");
    for nth in [0, opened, opened + 1] {
        assert_eq!(reconcile(&mut other, &nth.to_string(), &filter(nth))[0], "NEG-MSG");
    }
    bystander.expect_unaffected(&server, "reconciliations of one network");
    drop(attacker);
    let mut again = connect(&server, "203.0.113.5");
    eventually("the share is free again", || {
        (reconcile(&mut again, "again", &filter(0))[0] == "NEG-MSG").then_some(())
    });
}

/// Returns the first part of a message: a text frame of this many bytes that is not the last one of its message. The
/// mask is all zeros, so the payload is unchanged.
fn first_fragment(bytes: u64) -> Vec<u8> {
    let mut fragment = vec![0x01, 0xff];
    fragment.extend_from_slice(&bytes.to_be_bytes());
    fragment.resize(fragment.len() + 4 + bytes as usize, 0);
    fragment
}

/// Incomplete messages used to take twice their size, for as long as the clients answered pings.
#[test]
fn incomplete_messages_of_one_network_are_limited() {
    let mut server = TestServer::with_settings(&[BEHIND_PROXY]);
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let before = memory_of(&server);
    let fragment = first_fragment(1_900_000);
    let ping = [0x89, 0x80, 0, 0, 0, 0];
    let mut held = 0;
    let attackers: Vec<Client> = (0..200)
        .map(|nth| {
            let mut attacker = connect(&server, &format!("203.0.113.{nth}"));
            // The server may close the connection before it has read everything.
            let _ = attacker
                .socket
                .get_mut()
                .write_all(&fragment)
                .and_then(|()| attacker.socket.get_mut().write_all(&ping));
            match attacker.socket.read().expect("neither pong nor close frame") {
                Message::Pong(_) => held += 1,
                Message::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Again, "{}", frame.reason),
                other => panic!("unexpected {other:?}"),
            }
            attacker
        })
        .collect();
    let longest = limits::MAX_MESSAGE_BYTES;
    assert_eq!(held, limits::MAX_INCOMPLETE_MESSAGE_BYTES_PER_NETWORK / longest);
    let growth = memory_of(&server).saturating_sub(before);
    assert!(growth < 64 * MB, "the server has {} MB more", growth / MB);
    bystander.expect_unaffected(&server, "incomplete messages");
    // A message of the longest size still arrives from another network.
    let mut other = connect(&server, "198.51.100.1");
    let mut request = r#"["REQ","long",{"kinds":[1]}]"#.to_owned();
    request.push_str(&" ".repeat(longest - request.len()));
    other.send_text(&request);
    assert_eq!(other.receive(), json!(["EOSE", "long"]));
    drop(attackers);
    expect_memory_returned(&server, before);
}

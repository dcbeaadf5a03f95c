//! Attacks on the relay from one network: a user in another network is not affected.

use serde_json::json;

use crate::support::bystander::Bystander;
use crate::support::test_server::TestServer;
use crate::support::{BEHIND_PROXY, Client};

fn connect(server: &TestServer, address: &str) -> Client {
    server.process.connect_from(Some(address)).unwrap_or_else(|status| panic!("{address} is rejected: {status:?}"))
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

//! Attacks by a relay that an announcement names: floods of events and of other messages.

use std::sync::Arc;

use grasp_core::limits;
use grasp_core::nostr::{SignedEvent, kinds};
use grasp_sim::signer::Author;
use tokio_tungstenite::tungstenite::Message;

use crate::support::bystander::Bystander;
use crate::support::git::BASE_TIME;
use crate::support::network_namespace::is_in_network_namespace;
use crate::support::peers::scripted_relay::{ClientAction, RelayScript, ScriptedRelay};
use crate::support::peers::{Project, SyncServer, now, series_of};
use crate::support::test_server::TestServer;
use crate::support::{BEHIND_PROXY, eventually};

/// More messages than a relay may send without a request, even if it sends them over a while.
const FLOOD: u64 = 2 * (limits::RELAY_UNEXPLAINED_BURST + limits::RELAY_UNEXPLAINED_PER_MINUTE);

/// Settings with which a server on loopback dials relays on loopback.
const SYNC: [(&str, &str); 4] = [
    ("SYNC_ENABLE", "true"),
    ("SYNC_ALLOW_NON_GLOBAL_TARGETS", "true"),
    ("SYNC_BATCH_WINDOW_MS", "100"),
    ("SYNC_BASE_BACKOFF_SECS", "5"),
];

fn has_disconnected(relay: &ScriptedRelay) -> bool {
    relay.records().iter().any(|record| matches!(record.action, ClientAction::Disconnected(_)))
}

/// An announcement that waits in purgatory names a relay, which answers the request for its states with thousands of
/// announcements. They used to fill purgatory.
#[test]
fn unsolicited_events_of_a_relay_do_not_fill_purgatory() {
    // Other announcements name a relay that does not exist. Its name must not be looked up outside of this machine.
    if !is_in_network_namespace("dos_sync::unsolicited_events_of_a_relay_do_not_fill_purgatory", &[]) {
        return;
    }
    let mut server = TestServer::with_settings(&[&[BEHIND_PROXY], &SYNC[..]].concat());
    let mut bystander = Bystander::new(&mut server, 1, "tool");
    let relay = ScriptedRelay::start(RelayScript::default());
    let (attacker, service) = (Author::new(9), server.service.clone());
    let tags = [
        ["d", "bait"].map(str::to_owned).to_vec(),
        ["clone", &format!("https://{}/{}", service.domain(), attacker.repo_id("bait").path())]
            .map(str::to_owned)
            .to_vec(),
        ["relays", &format!("wss://{}", service.domain()), &relay.url()].map(str::to_owned).to_vec(),
    ];
    server.publish_held(&attacker.sign_owned(kinds::ANNOUNCEMENT, BASE_TIME, tags.to_vec(), ""));
    relay.eventually_requested("the states of the held repository", |filter| {
        filter["#d"] == "bait" || filter["#d"][0] == "bait"
    });
    let flood: Vec<Arc<SignedEvent>> =
        (0..FLOOD).map(|nth| attacker.announcement(&service, &format!("flood-{nth}"), BASE_TIME, &[])).collect();
    for event in &flood {
        relay.send_unrequested(event);
    }
    bystander.expect_unaffected(&server, "unsolicited events of a relay");
    eventually("the relay is disconnected", || has_disconnected(&relay).then_some(()));
    let held = server.process.run(&["purgatory", "--json"]).json_lines();
    let held: Vec<_> = held.iter().filter(|row| row.to_string().contains("flood-")).collect();
    assert!(held.is_empty(), "{held:?}");
    assert_eq!(relay.connections(), 1, "the relay is not dialled again at once");
    eventually("the reason is shown", || {
        let relays = server.process.run(&["relays", "--json"]).expect_success();
        relays.contains("too much that was not requested").then_some(())
    });
}

/// Runs `flood` on a relay of a served repository, and expects that the server disconnects.
fn expect_flood_ends_the_connection(flood: impl FnOnce(&ScriptedRelay, &Project)) {
    let relay = ScriptedRelay::start(RelayScript::default());
    let mut server = SyncServer::start(&[]);
    let project = Project::new(1, "tool", &[server.address], &[&relay.url()]);
    server.host(&project);
    server.eventually_state(&relay.url(), 3.0);
    flood(&relay, &project);
    eventually("the relay is disconnected", || has_disconnected(&relay).then_some(()));
    server.eventually_metric(&series_of("ngit_sync_floods_total", &relay), 1.0);
    assert!(server.log().contains("relay sends too much that was not requested"), "{}", server.log());
    // The pause ends at some time: a relay is never given up.
    eventually("the relay is dialled again", || (relay.connections() > 1).then_some(()));
}

#[test]
fn relay_that_floods_with_notices_is_disconnected() {
    expect_flood_ends_the_connection(|relay, _| {
        relay.send_message(&Message::text(r#"["NOTICE","hello"]"#), FLOOD as usize);
    });
}

#[test]
fn relay_that_floods_with_pings_is_disconnected() {
    expect_flood_ends_the_connection(|relay, _| relay.send_message(&Message::Ping(Default::default()), FLOOD as usize));
}

#[test]
fn relay_that_repeats_an_event_is_disconnected() {
    expect_flood_ends_the_connection(|relay, project| {
        let issue = project.issue(&Author::new(9), now());
        relay.publish(&issue);
        for _ in 0..FLOOD {
            relay.send_unrequested(&issue);
        }
    });
}

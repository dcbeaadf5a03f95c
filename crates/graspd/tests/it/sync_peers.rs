//! Several servers and an independent relay: events that are published on one are served on all.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;

use crate::support::eventually;
use crate::support::peers::independent_relay::IndependentRelay;
use crate::support::peers::{Project, SyncServer, now, relay_url, unused_address};

/// Starts three servers that host the same repository, which lists all of them and further relays.
fn start_three_servers(relays: &[&str]) -> (Vec<SyncServer>, Project) {
    let mut servers: Vec<SyncServer> = (0..3).map(|_| SyncServer::start(&[])).collect();
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let project = Project::new(1, "common", &addresses, relays);
    for server in &mut servers {
        server.host(&project);
    }
    (servers, project)
}

#[track_caller]
fn eventually_served_by_all(servers: &mut [SyncServer], events: &[Arc<SignedEvent>]) {
    let events: Vec<&Arc<SignedEvent>> = events.iter().collect();
    for server in servers {
        server.eventually_served(&events);
    }
}

#[test]
fn events_published_on_any_server_are_served_by_all() {
    let independent = IndependentRelay::start();
    let url = independent.url();
    let (mut servers, project) = start_three_servers(&[&url]);
    let mut client = independent.client();
    let author = Author::new(9);

    // The test does not wait for connections: earlier events are fetched by historic sync.
    let mut all: Vec<Arc<SignedEvent>> = Vec::new();
    for n in 0..4_usize {
        let issue = project.issue(&author, now() + n as u64);
        let comment = author.comment(now(), &issue);
        let reply = author.sign(1111, now(), &[&["E", &issue.id.to_string()], &["e", &comment.id.to_string()]], "so?");
        let reaction = author.sign(7, now(), &[&["e", &comment.id.to_string()], &["a", &project.coordinate()]], "+");
        for event in [issue, comment, reply, reaction] {
            match servers.get_mut(n) {
                Some(server) => server.publish(&event),
                None => assert_eq!(client.publish(&event), (true, String::new())),
            }
            all.push(event);
        }
    }
    eventually_served_by_all(&mut servers, &all);

    // All are connected now, so an event of each reaches all others live.
    for n in 0..servers.len() {
        for other in 0..servers.len() {
            if other != n {
                let relay = servers[other].relay_url();
                servers[n].eventually_state(&relay, 3.0);
            }
        }
        servers[n].eventually_state(&url, 3.0);
    }
    let mut fresh: Vec<Arc<SignedEvent>> = Vec::new();
    for n in 0..4_usize {
        let event = author.comment(now() + 100 + n as u64, &all[n * 4]);
        match servers.get_mut(n) {
            Some(server) => server.publish(&event),
            None => assert_eq!(client.publish(&event), (true, String::new())),
        }
        fresh.push(event);
    }
    eventually_served_by_all(&mut servers, &fresh);
    for server in &servers {
        assert!(server.received_count("live") > 0.0, "{}", server.log());
        for bad in ["ERROR", "sync gap", "batch failed", "rate limited"] {
            assert!(!server.log().contains(bad), "{}", server.log());
        }
    }
}

#[test]
fn servers_killed_in_turn_miss_nothing() {
    let independent = IndependentRelay::start();
    let (mut servers, project) = start_three_servers(&[&independent.url()]);
    let mut client = independent.client();
    let author = Author::new(9);
    let root = project.issue(&author, now());
    servers[0].publish(&root);
    eventually_served_by_all(&mut servers, std::slice::from_ref(&root));

    let mut all = vec![root.clone()];
    let mut second = now();
    for down in 0..3 {
        servers[down].kill();
        for up in 0..4_usize {
            if up == down {
                continue;
            }
            second += 1;
            let issue = project.issue(&author, second);
            for event in [author.comment(second, &root), author.comment(second, &issue), issue] {
                match servers.get_mut(up) {
                    // A comment on an unknown issue is rejected from a client; it is synced later.
                    Some(server) => drop(server.client().publish(&event)),
                    None => drop(client.publish(&event)),
                }
                all.push(event);
            }
            // The comment again, after its issue.
            let again = all[all.len() - 2].clone();
            match servers.get_mut(up) {
                Some(server) => server.publish(&again),
                None => assert!(client.publish(&again).0),
            }
        }
        servers[down].start_again();
        eventually_served_by_all(&mut servers, &all);
    }
    for server in &servers {
        for bad in ["ERROR", "sync gap", "batch failed", "rate limited"] {
            assert!(!server.log().contains(bad), "{}", server.log());
        }
    }
}

#[test]
fn relays_of_a_synced_announcement_are_connected() {
    let mut first = SyncServer::start(&[]);
    let third = IndependentRelay::start();
    // Only the first server is configured; only the announcement lists the third.
    let relay = first.relay_url();
    let mut second = SyncServer::start(&[("SYNC_BOOTSTRAP_RELAY_URL", &relay)]);
    second.eventually_state(&relay, 3.0);

    let project = Project::new(1, "found", &[first.address, second.address], &[&third.url()]);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    let mut client = third.client();
    assert!(client.publish(&issue).0);
    assert!(client.publish(&author.comment(now(), &issue)).0);
    first.host(&project);

    // The second server holds the announcement and state, and connects to the third relay.
    second.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 2.0);
    eventually("the third relay is connected", || {
        (second.metric(&format!("ngit_sync_connection_attempts_total{{relay=\"{}\",result=\"success\"}}", third.url()))
            == Some(1.0))
        .then_some(())
    });
    second.push(&project);
    second.eventually_served(&[
        &project.announcement,
        &project.state,
        &issue,
        &author.comment(issue.created_at.0, &issue),
    ]);
}

#[test]
fn bootstrap_relay_without_a_scheme_uses_tls() {
    let address = unused_address();
    let listener = TcpListener::bind(address).expect("cannot bind an address");
    let server = SyncServer::start(&[("SYNC_BOOTSTRAP_RELAY_URL", &address.to_string())]);
    let mut first = [0];
    let (mut stream, _) = listener.accept().expect("no connection");
    stream.set_read_timeout(Some(crate::support::DEADLINE)).expect("cannot set the timeout");
    stream.read_exact(&mut first).expect("no data");
    // The first byte of a TLS handshake.
    assert_eq!(first, [22]);
    drop((stream, listener));
    let url = relay_url(address).replace("ws:", "wss:");
    eventually("the failure is counted", || {
        let series = format!("ngit_sync_connection_attempts_total{{relay=\"{url}\",result=\"failure\"}}");
        server.metric(&series).filter(|failures| *failures > 0.0)
    });
}

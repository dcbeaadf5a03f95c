//! Several servers and an independent relay: what is published on one is served on all.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_sim::signer::Author;

use crate::support::eventually;
use crate::support::peers::independent_relay::Independent;
use crate::support::peers::{Neighbour, Project, now, place, relay};

/// Three servers that host one repository which lists all of them, and further relays.
fn town(relays: &[&str]) -> (Vec<Neighbour>, Project) {
    let mut servers: Vec<Neighbour> = (0..3).map(|_| Neighbour::start(&[])).collect();
    let places: Vec<_> = servers.iter().map(|server| server.place).collect();
    let project = Project::new(1, "common", &places, relays);
    for server in &mut servers {
        server.host(&project);
    }
    (servers, project)
}

#[track_caller]
fn everywhere(servers: &mut [Neighbour], events: &[Arc<SignedEvent>]) {
    let events: Vec<&Arc<SignedEvent>> = events.iter().collect();
    for server in servers {
        server.eventually_served(&events);
    }
}

#[test]
fn what_is_published_anywhere_is_served_everywhere() {
    let independent = Independent::start();
    let url = independent.url();
    let (mut servers, project) = town(&[&url]);
    let mut client = independent.client();
    let author = Author::new(9);

    // Nobody waits for connections: what comes too early for them is caught up with.
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
    everywhere(&mut servers, &all);

    // Now that everybody is connected, an event of each comes by itself to all others.
    for n in 0..servers.len() {
        for other in 0..servers.len() {
            if other != n {
                let relay = servers[other].relay();
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
    everywhere(&mut servers, &fresh);
    for server in &servers {
        assert!(server.came("live") > 0.0, "{}", server.log());
        for bad in ["ERROR", "sync gap", "could not be had", "wants fewer"] {
            assert!(!server.log().contains(bad), "{}", server.log());
        }
    }
}

#[test]
fn servers_that_are_killed_in_turn_miss_nothing() {
    let independent = Independent::start();
    let (mut servers, project) = town(&[&independent.url()]);
    let mut client = independent.client();
    let author = Author::new(9);
    let root = project.issue(&author, now());
    servers[0].publish(&root);
    everywhere(&mut servers, std::slice::from_ref(&root));

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
                    // A comment on an issue that is not here yet is not taken from a client, and comes later.
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
        servers[down].again();
        everywhere(&mut servers, &all);
    }
    for server in &servers {
        for bad in ["ERROR", "sync gap", "could not be had", "wants fewer"] {
            assert!(!server.log().contains(bad), "{}", server.log());
        }
    }
}

#[test]
fn an_announcement_leads_to_relays_that_nobody_has_named_before() {
    let mut first = Neighbour::start(&[]);
    let third = Independent::start();
    // Known from the beginning is the first only, and from there nothing leads to the third but the announcement.
    let relay = first.relay();
    let mut second = Neighbour::start(&[("SYNC_BOOTSTRAP_RELAY_URL", &relay)]);
    second.eventually_state(&relay, 3.0);

    let project = Project::new(1, "found", &[first.place, second.place], &[&third.url()]);
    let author = Author::new(9);
    let issue = project.issue(&author, now());
    let mut client = third.client();
    assert!(client.publish(&issue).0);
    assert!(client.publish(&author.comment(now(), &issue)).0);
    first.host(&project);

    // The second has heard of it, holds it, and asks the third for what could release it.
    second.eventually_metric("ngit_sync_judged_total{verdict=\"held\"}", 2.0);
    eventually("the third is dialled", || {
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
fn a_bootstrap_relay_without_a_scheme_is_called_securely() {
    let place = place();
    let listener = TcpListener::bind(place).expect("a free address");
    let server = Neighbour::start(&[("SYNC_BOOTSTRAP_RELAY_URL", &place.to_string())]);
    let mut first = [0];
    let (mut caller, _) = listener.accept().expect("somebody calls");
    caller.set_read_timeout(Some(crate::support::DEADLINE)).expect("an option");
    caller.read_exact(&mut first).expect("it says something");
    // The beginning of a TLS handshake.
    assert_eq!(first, [22]);
    drop((caller, listener));
    let url = relay(place).replace("ws:", "wss:");
    eventually("the failure is counted", || {
        let series = format!("ngit_sync_connection_attempts_total{{relay=\"{url}\",result=\"failure\"}}");
        server.metric(&series).filter(|failures| *failures > 0.0)
    });
}

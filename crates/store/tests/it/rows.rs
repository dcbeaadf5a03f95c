//! What sync wants written down is there after a restart, and what it wants forgotten is not.

use std::path::Path;

use grasp_core::nostr::event::EventId;
use grasp_core::sync::io::{Row, RowKey};
use grasp_core::sync::rejected::{Dependency, Layer, RefusedRow, Why};
use grasp_core::sync::relay_record::{Covered, Peer};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;
use grasp_store::{Options, Store};
use tempfile::TempDir;

fn open(path: &Path) -> Store {
    Store::open(path, Options { readers: 1, reserve_bytes: 0 }).expect("opens")
}

fn url(text: &str) -> RelayUrl {
    RelayUrl::parse(text).expect("a relay")
}

fn peer(text: &str, wanted_at: u64) -> Peer {
    Peer { url: url(text), wanted_at: Timestamp(wanted_at), ..Peer::default() }
}

fn refused(id: u8, relays: &[&str]) -> RefusedRow {
    RefusedRow {
        id: EventId([id; 32]),
        created_at: Timestamp(u64::from(id)),
        why: Why::Unlinked,
        needs: vec![Dependency::Event(EventId([99; 32]))],
        offered_by: relays.iter().map(|text| url(text)).collect(),
        layer: Layer::Related,
        until: Timestamp(1_000),
    }
}

/// Everything that is written down.
fn rows(store: &Store) -> (Vec<Peer>, Vec<RefusedRow>) {
    let (mut peers, mut refused) = (Vec::new(), Vec::new());
    assert_eq!(store.peers(|peer| peers.push(peer)).expect("reads"), 0);
    assert_eq!(store.refused(|row| refused.push(row)).expect("reads"), 0);
    peers.sort_by(|a, b| a.url.cmp(&b.url));
    (peers, refused)
}

#[test]
fn rows_are_replaced_kept_and_forgotten() {
    let folder = TempDir::new().expect("a folder");
    let store = open(folder.path());
    assert_eq!(rows(&store), (vec![], vec![]));
    let covered = Covered {
        epoch: 7,
        announcements: true,
        up_to: 12,
        lost_at: Timestamp(5),
        since: Some(Timestamp(4)),
        next_full_at: Timestamp(9),
        failed: false,
    };
    let long = format!("wss://relay.example/{}", "x".repeat(490));
    let known = Peer { covered: Some(covered), paused: true, ..peer("wss://a.example", 2) };
    let mut batch = store.begin().expect("begins");
    for row in [
        Row::Peer(Box::new(peer("wss://a.example", 1))),
        Row::Peer(Box::new(known.clone())),
        Row::Peer(Box::new(peer("wss://b.example", 1))),
        Row::Peer(Box::new(peer(&long, 3))),
        Row::Refused(refused(2, &["wss://a.example"])),
        Row::Refused(refused(1, &[])),
        Row::Refused(refused(1, &["wss://a.example", "ws://b.example"])),
    ] {
        batch.remember(&row).expect("writes");
    }
    batch.commit().expect("commits");
    drop(store);

    let store = open(folder.path());
    let both = vec![refused(1, &["wss://a.example", "ws://b.example"]), refused(2, &["wss://a.example"])];
    let all = vec![known.clone(), peer("wss://b.example", 1), peer(&long, 3)];
    assert_eq!(rows(&store), (all, both.clone()));

    let forget = |keys: &[RowKey]| {
        let mut batch = store.begin().expect("begins");
        for key in keys {
            batch.forget(key).expect("forgets");
        }
        batch
    };
    let b = RowKey::Peer(url("wss://b.example"));
    drop(forget(&[b.clone(), RowKey::Refused(EventId([2; 32]))]));
    assert_eq!(rows(&store).1, both, "an aborted batch never happened");
    // By whichever scheme: it is one relay.
    let keys = [
        RowKey::Peer(url("ws://b.example")),
        RowKey::Peer(url(&long)),
        RowKey::Peer(url("wss://c.example")),
        RowKey::Refused(EventId([2; 32])),
        RowKey::Refused(EventId([3; 32])),
    ];
    forget(&keys).commit().expect("commits");
    assert_eq!(rows(&store), (vec![known], vec![both[0].clone()]));
}

//! Rows of sync survive a restart, and deleted rows do not.

use std::path::Path;

use grasp_core::nostr::event::EventId;
use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_core::sync::rejected::{Dependency, RejectedLayer, RejectedRecord, RejectionClass};
use grasp_core::sync::relay_record::{CoverageRecord, RelayRecord};
use grasp_core::sync::relay_url::RelayUrl;
use grasp_core::time::Timestamp;
use grasp_store::{Store, StoreOptions};
use tempfile::TempDir;

fn open(path: &Path) -> Store {
    Store::open(path, StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens")
}

fn url(text: &str) -> RelayUrl {
    RelayUrl::parse(text).expect("valid URL")
}

fn relay_record(text: &str, wanted_at: u64) -> RelayRecord {
    RelayRecord { url: url(text), wanted_at: Timestamp(wanted_at), ..RelayRecord::default() }
}

fn rejected_record(id: u8, relays: &[&str]) -> RejectedRecord {
    RejectedRecord {
        id: EventId([id; 32]),
        created_at: Timestamp(u64::from(id)),
        class: RejectionClass::Unrelated,
        dependencies: vec![Dependency::Event(EventId([99; 32]))],
        offered_by: relays.iter().map(|text| url(text)).collect(),
        layer: RejectedLayer::Related,
        expires_at: Timestamp(1_000),
    }
}

/// Returns all stored rows.
fn rows(store: &Store) -> (Vec<RelayRecord>, Vec<RejectedRecord>) {
    let (mut relays, mut rejected) = (Vec::new(), Vec::new());
    assert_eq!(store.load_relays(|relay| relays.push(relay)).expect("reads"), 0);
    assert_eq!(store.load_rejected(|row| rejected.push(row)).expect("reads"), 0);
    relays.sort_by(|a, b| a.url.cmp(&b.url));
    (relays, rejected)
}

#[test]
fn sync_rows_are_replaced_and_deleted() {
    let folder = TempDir::new().expect("temporary folder");
    let store = open(folder.path());
    assert_eq!(rows(&store), (vec![], vec![]));
    let covered = CoverageRecord {
        epoch: 7,
        announcements: true,
        up_to: 12,
        lost_at: Timestamp(5),
        since: Some(Timestamp(4)),
        next_full_at: Timestamp(9),
        failed: false,
    };
    let long = format!("wss://relay.example/{}", "x".repeat(490));
    let known = RelayRecord { covered: Some(covered), paused: true, ..relay_record("wss://a.example", 2) };
    let mut transaction = store.begin().expect("begins");
    for row in [
        SyncRow::Relay(Box::new(relay_record("wss://a.example", 1))),
        SyncRow::Relay(Box::new(known.clone())),
        SyncRow::Relay(Box::new(relay_record("wss://b.example", 1))),
        SyncRow::Relay(Box::new(relay_record(&long, 3))),
        SyncRow::Rejected(rejected_record(2, &["wss://a.example"])),
        SyncRow::Rejected(rejected_record(1, &[])),
        SyncRow::Rejected(rejected_record(1, &["wss://a.example", "ws://b.example"])),
    ] {
        transaction.put_sync_row(&row).expect("writes");
    }
    transaction.commit().expect("commits");
    drop(store);

    let store = open(folder.path());
    let both =
        vec![rejected_record(1, &["wss://a.example", "ws://b.example"]), rejected_record(2, &["wss://a.example"])];
    let all = vec![known.clone(), relay_record("wss://b.example", 1), relay_record(&long, 3)];
    assert_eq!(rows(&store), (all, both.clone()));

    let forget = |keys: &[SyncRowKey]| {
        let mut transaction = store.begin().expect("begins");
        for key in keys {
            transaction.delete_sync_row(key).expect("forgets");
        }
        transaction
    };
    let b = SyncRowKey::Relay(url("wss://b.example"));
    drop(forget(&[b.clone(), SyncRowKey::Rejected(EventId([2; 32]))]));
    assert_eq!(rows(&store).1, both, "an aborted transaction has no effect");
    // `ws` and `wss` URLs of a relay share one row.
    let keys = [
        SyncRowKey::Relay(url("ws://b.example")),
        SyncRowKey::Relay(url(&long)),
        SyncRowKey::Relay(url("wss://c.example")),
        SyncRowKey::Rejected(EventId([2; 32])),
        SyncRowKey::Rejected(EventId([3; 32])),
    ];
    forget(&keys).commit().expect("commits");
    assert_eq!(rows(&store), (vec![known], vec![both[0].clone()]));
}

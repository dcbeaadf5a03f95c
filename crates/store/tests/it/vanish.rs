//! A vanished author's events are removed in slices, one per transaction, and each removed pull request is reported
//! once.

use std::collections::BTreeSet;
use std::path::Path;

use grasp_core::admission::io::{StoreWrite, Tombstone};
use grasp_core::limits;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::kinds;
use grasp_core::time::Timestamp;
use grasp_sim::store_contract::draft;
use grasp_store::{Store, StoreOptions};
use tempfile::TempDir;

fn open(path: &Path) -> Store {
    Store::open(path, StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens")
}

#[test]
fn removed_pull_requests_are_reported_once() {
    let folder = TempDir::new().expect("temporary folder");
    let at = format!("30617:{}:x", draft(2, 1, 1, &[]).pubkey);
    let total = 2 * limits::REMOVAL_SLICE_EVENTS as u64 + 100;
    let pulls: Vec<_> =
        (0..total).map(|time| draft(1, kinds::PULL_REQUEST, time, &[&["a", &at], &["c", "ab"]])).collect();
    let store = open(folder.path());
    let mut transaction = store.begin().expect("begins");
    for pull in &pulls {
        transaction.write(&StoreWrite::Put(pull.clone())).expect("writes");
    }
    transaction.commit().expect("commits");

    let mut reported: Vec<EventId> = Vec::new();
    let mut transaction = store.begin().expect("begins");
    transaction.write(&StoreWrite::AddTombstone(Tombstone::Author(pulls[0].pubkey, Timestamp(total)))).expect("writes");
    let slice = transaction.take_removed_pull_requests();
    assert_eq!(slice.len(), limits::REMOVAL_SLICE_EVENTS);
    assert!(slice.iter().all(|pull| pull.targets.len() == 1 && pull.tip.as_deref() == Some("ab")));
    reported.extend(slice.iter().map(|pull| pull.id));
    transaction.commit().expect("commits");
    drop(store);

    let store = open(folder.path());
    assert_eq!(
        store.served_count().expect("reads"),
        total - limits::REMOVAL_SLICE_EVENTS as u64,
        "only the first slice is removed"
    );
    let mut transaction = store.begin().expect("begins");
    for pull in &pulls {
        assert!(!transaction.is_known(pull.id).expect("reads"), "but the events are hidden");
        assert_eq!(transaction.event(pull.id).expect("reads"), None);
    }
    assert!(transaction.purge_slice().expect("purges"));
    let aborted = transaction.take_removed_pull_requests();
    assert_eq!(aborted.len(), limits::REMOVAL_SLICE_EVENTS);
    drop(transaction);

    for round in 0.. {
        let mut transaction = store.begin().expect("begins");
        let more = transaction.purge_slice().expect("purges");
        let slice = transaction.take_removed_pull_requests();
        transaction.commit().expect("commits");
        if round == 0 {
            assert_eq!(slice, aborted, "removals of the aborted transaction are reported again");
        }
        reported.extend(slice.iter().map(|pull| pull.id));
        if !more {
            break;
        }
    }
    assert_eq!(store.served_count().expect("reads"), 0);
    assert_eq!(reported.len(), pulls.len());
    assert_eq!(reported.into_iter().collect::<BTreeSet<_>>(), pulls.iter().map(|pull| pull.id).collect());
}

//! A vanished author's events go in slices, batch after batch, and nothing about them is lost or told twice on the way.

use std::collections::BTreeSet;
use std::path::Path;

use grasp_core::admission::io::{StoreWrite, Tombstone};
use grasp_core::limits;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::kinds;
use grasp_core::time::Timestamp;
use grasp_sim::store_contract::draft;
use grasp_store::{StoreOptions, Store};
use tempfile::TempDir;

fn open(path: &Path) -> Store {
    Store::open(path, StoreOptions { readers: 1, reserve_bytes: 0 }).expect("opens")
}

#[test]
fn every_removed_pull_request_is_told_once_across_batches_and_restarts() {
    let folder = TempDir::new().expect("a folder");
    let at = format!("30617:{}:x", draft(2, 1, 1, &[]).pubkey);
    let total = 2 * limits::REMOVAL_SLICE_EVENTS as u64 + 100;
    let pulls: Vec<_> =
        (0..total).map(|time| draft(1, kinds::PULL_REQUEST, time, &[&["a", &at], &["c", "ab"]])).collect();
    let store = open(folder.path());
    let mut batch = store.begin().expect("begins");
    for pull in &pulls {
        batch.write(&StoreWrite::Put(pull.clone())).expect("writes");
    }
    batch.commit().expect("commits");

    let mut told: Vec<EventId> = Vec::new();
    let mut batch = store.begin().expect("begins");
    batch.write(&StoreWrite::AddTombstone(Tombstone::Author(pulls[0].pubkey, Timestamp(total)))).expect("writes");
    let slice = batch.take_removed_pull_requests();
    assert_eq!(slice.len(), limits::REMOVAL_SLICE_EVENTS);
    assert!(slice.iter().all(|pull| pull.targets.len() == 1 && pull.tip.as_deref() == Some("ab")));
    told.extend(slice.iter().map(|pull| pull.id));
    batch.commit().expect("commits");
    drop(store);

    let store = open(folder.path());
    assert_eq!(store.served_count().expect("reads"), total - limits::REMOVAL_SLICE_EVENTS as u64, "most of them are on disk");
    let mut batch = store.begin().expect("begins");
    for pull in &pulls {
        assert!(!batch.is_known(pull.id).expect("reads"), "but nobody may see them");
        assert_eq!(batch.event(pull.id).expect("reads"), None);
    }
    assert!(batch.purge_slice().expect("purges"));
    let never_happened = batch.take_removed_pull_requests();
    assert_eq!(never_happened.len(), limits::REMOVAL_SLICE_EVENTS);
    drop(batch);

    for turn in 0.. {
        let mut batch = store.begin().expect("begins");
        let more = batch.purge_slice().expect("purges");
        let slice = batch.take_removed_pull_requests();
        batch.commit().expect("commits");
        if turn == 0 {
            assert_eq!(slice, never_happened, "what was undone is told again");
        }
        told.extend(slice.iter().map(|pull| pull.id));
        if !more {
            break;
        }
    }
    assert_eq!(store.served_count().expect("reads"), 0);
    assert_eq!(told.len(), pulls.len());
    assert_eq!(told.into_iter().collect::<BTreeSet<_>>(), pulls.iter().map(|pull| pull.id).collect());
}

//! The tables of sync. Rows are written with a delay, and are lost if the process crashes before.

use std::collections::BTreeMap;

use grasp_core::nostr::EventId;
use grasp_core::sync::io::{RestoredRow, SyncRow, SyncRowKey};
use grasp_core::sync::rejected::RejectedRecord;
use grasp_core::sync::relay_record::RelayRecord;

/// Rows of a node.
#[derive(Debug, Default)]
pub struct SyncTables {
    relays: BTreeMap<String, RelayRecord>,
    rejected: BTreeMap<EventId, RejectedRecord>,
    pending: Vec<RowChange>,
}

#[derive(Debug)]
enum RowChange {
    Store(SyncRow),
    Delete(SyncRowKey),
}

impl SyncTables {
    /// Queues a row to be stored. Returns whether the queue was empty.
    pub fn store(&mut self, row: SyncRow) -> bool {
        self.pending.push(RowChange::Store(row));
        self.pending.len() == 1
    }

    /// Queues a row to be deleted. Returns whether the queue was empty.
    pub fn delete(&mut self, key: SyncRowKey) -> bool {
        self.pending.push(RowChange::Delete(key));
        self.pending.len() == 1
    }

    /// Writes all queued changes. Returns the records of relays that were stored.
    pub fn commit(&mut self) -> Vec<RelayRecord> {
        let mut written = Vec::new();
        for change in std::mem::take(&mut self.pending) {
            match change {
                RowChange::Store(SyncRow::Relay(relay)) => {
                    written.push(RelayRecord::clone(&relay));
                    self.relays.insert(relay.url.to_string(), *relay);
                }
                RowChange::Store(SyncRow::Rejected(row)) => drop(self.rejected.insert(row.id, row)),
                RowChange::Delete(SyncRowKey::Relay(url)) => drop(self.relays.remove(&url.to_string())),
                RowChange::Delete(SyncRowKey::Rejected(id)) => drop(self.rejected.remove(&id)),
            }
        }
        written
    }

    /// Discards the queued changes.
    pub fn crash(&mut self) {
        self.pending.clear();
    }

    /// Returns the stored rows, in the order in which a new process gets them.
    pub fn restored(&self) -> impl Iterator<Item = RestoredRow> + '_ {
        let relays = self.relays.values().cloned().map(|relay| RestoredRow::Relay(Box::new(relay)));
        relays.chain(self.rejected.values().cloned().map(RestoredRow::Rejected))
    }

    /// Returns the stored records of relays.
    pub fn relays(&self) -> impl Iterator<Item = &RelayRecord> {
        self.relays.values()
    }

    /// Returns the stored rejected events.
    pub fn rejected(&self) -> &BTreeMap<EventId, RejectedRecord> {
        &self.rejected
    }
}

//! The tables of sync: what is written soon, and lost if the process ends before.

use std::collections::BTreeMap;

use grasp_core::nostr::EventId;
use grasp_core::sync::io::{RestoredRow, SyncRow, SyncRowKey};
use grasp_core::sync::rejected::RejectedRecord;
use grasp_core::sync::relay_record::RelayRecord;

/// The rows of a node.
#[derive(Debug, Default)]
pub struct Rows {
    peers: BTreeMap<String, RelayRecord>,
    refused: BTreeMap<EventId, RejectedRecord>,
    unwritten: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Put(SyncRow),
    Drop(SyncRowKey),
}

impl Rows {
    /// Plans to write a row. True if nothing else was planned.
    pub fn put(&mut self, row: SyncRow) -> bool {
        self.unwritten.push(Change::Put(row));
        self.unwritten.len() == 1
    }

    /// Plans to remove a row. True if nothing else was planned.
    pub fn drop(&mut self, key: SyncRowKey) -> bool {
        self.unwritten.push(Change::Drop(key));
        self.unwritten.len() == 1
    }

    /// Writes everything. Gives what was written of relays.
    pub fn commit(&mut self) -> Vec<RelayRecord> {
        let mut written = Vec::new();
        for change in std::mem::take(&mut self.unwritten) {
            match change {
                Change::Put(SyncRow::Relay(peer)) => {
                    written.push(RelayRecord::clone(&peer));
                    self.peers.insert(peer.url.to_string(), *peer);
                }
                Change::Put(SyncRow::Rejected(row)) => drop(self.refused.insert(row.id, row)),
                Change::Drop(SyncRowKey::Relay(url)) => drop(self.peers.remove(&url.to_string())),
                Change::Drop(SyncRowKey::Rejected(id)) => drop(self.refused.remove(&id)),
            }
        }
        written
    }

    /// The process ends: what was not written is lost.
    pub fn crash(&mut self) {
        self.unwritten.clear();
    }

    /// What a new process is told.
    pub fn restored(&self) -> impl Iterator<Item = RestoredRow> + '_ {
        let peers = self.peers.values().cloned().map(|peer| RestoredRow::Relay(Box::new(peer)));
        peers.chain(self.refused.values().cloned().map(RestoredRow::Rejected))
    }

    /// What is written of relays.
    pub fn peers(&self) -> impl Iterator<Item = &RelayRecord> {
        self.peers.values()
    }

    /// What is written of refused events.
    #[must_use]
    pub fn refused(&self) -> &BTreeMap<EventId, RejectedRecord> {
        &self.refused
    }
}

//! The tables of sync: what is written soon, and lost if the process ends before.

use std::collections::BTreeMap;

use grasp_core::nostr::EventId;
use grasp_core::sync::io::{Restored, Row, RowKey};
use grasp_core::sync::rejected::RefusedRow;
use grasp_core::sync::relay_record::Peer;

/// The rows of a node.
#[derive(Debug, Default)]
pub struct Rows {
    peers: BTreeMap<String, Peer>,
    refused: BTreeMap<EventId, RefusedRow>,
    unwritten: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Put(Row),
    Drop(RowKey),
}

impl Rows {
    /// Plans to write a row. True if nothing else was planned.
    pub fn put(&mut self, row: Row) -> bool {
        self.unwritten.push(Change::Put(row));
        self.unwritten.len() == 1
    }

    /// Plans to remove a row. True if nothing else was planned.
    pub fn drop(&mut self, key: RowKey) -> bool {
        self.unwritten.push(Change::Drop(key));
        self.unwritten.len() == 1
    }

    /// Writes everything. Gives what was written of relays.
    pub fn commit(&mut self) -> Vec<Peer> {
        let mut written = Vec::new();
        for change in std::mem::take(&mut self.unwritten) {
            match change {
                Change::Put(Row::Peer(peer)) => {
                    written.push(Peer::clone(&peer));
                    self.peers.insert(peer.url.to_string(), *peer);
                }
                Change::Put(Row::Refused(row)) => drop(self.refused.insert(row.id, row)),
                Change::Drop(RowKey::Peer(url)) => drop(self.peers.remove(&url.to_string())),
                Change::Drop(RowKey::Refused(id)) => drop(self.refused.remove(&id)),
            }
        }
        written
    }

    /// The process ends: what was not written is lost.
    pub fn crash(&mut self) {
        self.unwritten.clear();
    }

    /// What a new process is told.
    pub fn restored(&self) -> impl Iterator<Item = Restored> + '_ {
        let peers = self.peers.values().cloned().map(|peer| Restored::Peer(Box::new(peer)));
        peers.chain(self.refused.values().cloned().map(Restored::Refused))
    }

    /// What is written of relays.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// What is written of refused events.
    #[must_use]
    pub fn refused(&self) -> &BTreeMap<EventId, RefusedRow> {
        &self.refused
    }
}

//! What sync knows of relays, as rows: `hash of place 16 → JSON`. A relay is the same by `ws` and by `wss`; the text says
//! which it was.

use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::relay_url::RelayUrl;

use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Writes down a row of sync. One with the same key is replaced.
    pub fn put_sync_row(&mut self, row: &SyncRow) -> Result<()> {
        match row {
            SyncRow::Relay(peer) => self.put_relay(peer),
            SyncRow::Rejected(refused) => self.put_rejected(refused),
        }
    }

    /// Forgets a row of sync, if there is one.
    pub fn delete_sync_row(&mut self, key: &SyncRowKey) -> Result<()> {
        match key {
            SyncRowKey::Relay(url) => self.delete_relay(url),
            SyncRowKey::Rejected(id) => self.delete_rejected(*id),
        }
    }

    fn put_relay(&mut self, peer: &RelayRecord) -> Result<()> {
        let text = serde_json::to_vec(peer).map_err(|_| StoreError::Damaged("a relay's row cannot be written"))?;
        let key = self.store.digest.relay(peer.url.without_scheme());
        Ok(self.store.tables.peers.put(&mut self.txn, &key, &text)?)
    }

    fn delete_relay(&mut self, url: &RelayUrl) -> Result<()> {
        let key = self.store.digest.relay(url.without_scheme());
        self.store.tables.peers.delete(&mut self.txn, &key)?;
        Ok(())
    }
}

impl Store {
    /// Tells what was known of relays. Gives how many rows could not be read.
    pub fn load_relays(&self, mut tell: impl FnMut(RelayRecord)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for row in self.tables.peers.iter(&txn)? {
            let (key, text) = row?;
            match serde_json::from_slice::<RelayRecord>(text) {
                // One that is not of the relay under whose key it stands could never be forgotten.
                Ok(peer) if self.digest.relay(peer.url.without_scheme()) == key => tell(peer),
                _ => unreadable += 1,
            }
        }
        Ok(unreadable)
    }
}

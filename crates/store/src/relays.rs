//! What sync knows of relays, as rows: `hash of place 16 → JSON`. A relay is the same by `ws` and by `wss`; the text says
//! which it was.

use grasp_core::sync::io::{Row, RowKey};
use grasp_core::sync::relay_record::Peer;
use grasp_core::sync::relay_url::RelayUrl;

use crate::error::{Result, StoreError};
use crate::store::Store;
use crate::transaction::Batch;

impl Batch<'_> {
    /// Writes down a row of sync. One with the same key is replaced.
    pub fn remember(&mut self, row: &Row) -> Result<()> {
        match row {
            Row::Peer(peer) => self.remember_peer(peer),
            Row::Refused(refused) => self.remember_refused(refused),
        }
    }

    /// Forgets a row of sync, if there is one.
    pub fn forget(&mut self, key: &RowKey) -> Result<()> {
        match key {
            RowKey::Peer(url) => self.forget_peer(url),
            RowKey::Refused(id) => self.forget_refused(*id),
        }
    }

    fn remember_peer(&mut self, peer: &Peer) -> Result<()> {
        let text = serde_json::to_vec(peer).map_err(|_| StoreError::Damaged("a relay's row cannot be written"))?;
        let key = self.store.digest.relay(peer.url.place());
        Ok(self.store.tables.peers.put(&mut self.txn, &key, &text)?)
    }

    fn forget_peer(&mut self, url: &RelayUrl) -> Result<()> {
        let key = self.store.digest.relay(url.place());
        self.store.tables.peers.delete(&mut self.txn, &key)?;
        Ok(())
    }
}

impl Store {
    /// Tells what was known of relays. Gives how many rows could not be read.
    pub fn peers(&self, mut tell: impl FnMut(Peer)) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for row in self.tables.peers.iter(&txn)? {
            let (key, text) = row?;
            match serde_json::from_slice::<Peer>(text) {
                // One that is not of the relay under whose key it stands could never be forgotten.
                Ok(peer) if self.digest.relay(peer.url.place()) == key => tell(peer),
                _ => unreadable += 1,
            }
        }
        Ok(unreadable)
    }
}

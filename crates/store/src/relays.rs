//! Rows of relays, kept for sync: `hash of host, port and path 16 → JSON`. `ws` and `wss` URLs of the same relay share
//! one row; the JSON contains the full URL.

use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::relay_url::RelayUrl;

use crate::error::{Result, StoreError};
use crate::schema::Table;
use crate::store::Store;
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Stores a row of sync. Replaces a row with the same key.
    pub fn put_sync_row(&mut self, row: &SyncRow) -> Result<()> {
        match row {
            SyncRow::Relay(relay) => self.put_relay(relay),
            SyncRow::Rejected(row) => self.put_rejected(row),
        }
    }

    /// Deletes a row of sync, if there is one.
    pub fn delete_sync_row(&mut self, key: &SyncRowKey) -> Result<()> {
        match key {
            SyncRowKey::Relay(url) => self.delete_relay(url),
            SyncRowKey::Rejected(id) => self.delete_rejected(*id),
        }
    }

    fn put_relay(&mut self, relay: &RelayRecord) -> Result<()> {
        let text = serde_json::to_vec(relay).map_err(|_| StoreError::Damaged("row of a relay cannot be serialised"))?;
        let key = self.store.hasher.relay(relay.url.without_scheme());
        Ok(self.store.tables.relays.put(&mut self.txn, &key, &text)?)
    }

    fn delete_relay(&mut self, url: &RelayUrl) -> Result<()> {
        let key = self.store.hasher.relay(url.without_scheme());
        self.store.tables.relays.delete(&mut self.txn, &key)?;
        Ok(())
    }
}

impl Store {
    /// Passes the stored records of all relays to `on_record`. Returns the number of unreadable rows.
    pub fn load_relays(&self, mut on_record: impl FnMut(RelayRecord)) -> Result<u64> {
        self.load_rows(self.tables.relays, |key, text| {
            let relay = serde_json::from_slice::<RelayRecord>(text).ok();
            // A row under another relay's key could never be deleted.
            relay.filter(|relay| self.hasher.relay(relay.url.without_scheme()) == key).map(&mut on_record).is_some()
        })
    }

    /// Passes keys and values of all rows of a table to `on_row`, which returns whether the row is readable. Returns the
    /// number of unreadable rows.
    pub(crate) fn load_rows(&self, table: Table, mut on_row: impl FnMut(&[u8], &[u8]) -> bool) -> Result<u64> {
        let txn = self.env.read_txn()?;
        let mut unreadable = 0;
        for row in table.iter(&txn)? {
            let (key, value) = row?;
            unreadable += u64::from(!on_row(key, value));
        }
        Ok(unreadable)
    }
}

//! Rows of relays, kept for sync: `hash of host, port and path 16 → JSON`. `ws` and `wss` URLs of the same relay share
//! one row; the JSON contains the full URL.

use grasp_core::sync::io::{SyncRow, SyncRowKey};
use grasp_core::sync::relay_record::RelayRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, StoreError};
use crate::schema::Table;
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    /// Stores a row of sync. Replaces a row with the same key.
    pub fn put_sync_row(&mut self, row: &SyncRow) -> Result<()> {
        match row {
            SyncRow::Relay(relay) => self.put_json(self.store.tables.relays, relay.url.without_scheme(), relay),
            SyncRow::Rejected(row) => self.put_rejected(row),
        }
    }

    /// Deletes a row of sync, if there is one.
    pub fn delete_sync_row(&mut self, key: &SyncRowKey) -> Result<()> {
        match key {
            SyncRowKey::Relay(url) => self.delete_json(self.store.tables.relays, url.without_scheme()),
            SyncRowKey::Rejected(id) => self.delete_rejected(*id),
        }
    }

    /// Stores a row as JSON under the hash of a name. Replaces an older one.
    pub(crate) fn put_json(&mut self, table: Table, name: &str, row: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(row).map_err(|_| StoreError::Damaged("row cannot be serialised"))?;
        Ok(table.put(&mut self.txn, &self.store.hasher.relay(name), &text)?)
    }

    /// Deletes the row of a name, if there is one.
    pub(crate) fn delete_json(&mut self, table: Table, name: &str) -> Result<()> {
        table.delete(&mut self.txn, &self.store.hasher.relay(name))?;
        Ok(())
    }
}

impl Store {
    /// Passes the stored records of all relays to `on_record`. Returns the number of unreadable rows.
    pub fn load_relays(&self, on_record: impl FnMut(RelayRecord)) -> Result<u64> {
        self.load_json(self.tables.relays, |relay: &RelayRecord| relay.url.without_scheme(), on_record)
    }

    /// Passes the rows of a table of JSON to `on_row`. Returns the number of unreadable rows.
    pub(crate) fn load_json<T: DeserializeOwned>(
        &self,
        table: Table,
        name: impl Fn(&T) -> &str,
        mut on_row: impl FnMut(T),
    ) -> Result<u64> {
        let txn = self.env.read_txn()?;
        read_rows(table, &txn, |key, text| {
            let row = serde_json::from_slice::<T>(text).ok();
            // A row under the key of another name could never be deleted.
            row.filter(|row| self.hasher.relay(name(row)) == key).map(&mut on_row).is_some()
        })
    }
}

//! Rows of deletion and vanish requests of unknown keys.
//!
//! ```text
//! early_requests:  id 32  →  expires_at 8 | network | record
//! ```
//!
//! Numbers are big-endian. The network is a text after its length in two bytes; it is empty for loopback.

use std::sync::Arc;

use grasp_core::admission::io::{EarlyRequest, RestoredItem};
use grasp_core::nostr::event::EventId;
use grasp_core::time::Timestamp;
use heed::RoTxn;

use crate::error::Result;
use crate::event_record::EventRecord;
use crate::row_reader::RowReader;
use crate::store::{Store, read_rows};
use crate::transaction::WriteTransaction;

impl WriteTransaction<'_> {
    pub(crate) fn add_early_request(&mut self, request: &EarlyRequest) -> Result<()> {
        let id = request.event.id.0;
        Ok(self.store.tables.early_requests.put(&mut self.txn, &id, &write_row(request))?)
    }

    pub(crate) fn remove_early_request(&mut self, id: EventId) -> Result<()> {
        self.store.tables.early_requests.delete(&mut self.txn, &id.0)?;
        Ok(())
    }
}

impl Store {
    /// Passes all requests of unknown keys to `on_item`. Returns the number of unreadable rows.
    pub(crate) fn restore_early_requests(
        &self,
        txn: &RoTxn<'_>,
        on_item: &mut impl FnMut(RestoredItem),
    ) -> Result<u64> {
        read_rows(self.tables.early_requests, txn, |_, row| {
            read_row(row).map(|request| on_item(RestoredItem::EarlyRequest(request))).is_ok()
        })
    }
}

fn write_row(request: &EarlyRequest) -> Vec<u8> {
    let network = request.network.as_deref().unwrap_or_default();
    // The name of a network or of a host is much shorter.
    let len = u16::try_from(network.len()).unwrap_or(u16::MAX);
    let network = &network.as_bytes()[..usize::from(len)];
    [&request.expires_at.0.to_be_bytes()[..], &len.to_be_bytes(), network, &EventRecord::write(&request.event)].concat()
}

fn read_row(row: &[u8]) -> Result<EarlyRequest> {
    let mut reader = RowReader::new(row);
    let (expires_at, network) = (Timestamp(reader.read_u64()?), reader.text()?);
    let event = Arc::new(EventRecord::read(reader.rest())?.event()?);
    Ok(EarlyRequest { event, network: Some(network.to_owned()).filter(|network| !network.is_empty()), expires_at })
}

#[cfg(test)]
mod tests {
    use grasp_sim::store_contract::draft;

    use super::*;

    #[test]
    fn rows_round_trip_and_corrupted_rows_are_errors() {
        for network in [None, Some("203.0.113.0/24".to_owned())] {
            let event = draft(1, 5, 10, &[&["e", &"ab".repeat(32)]]);
            let request = EarlyRequest { event, network, expires_at: Timestamp(u64::MAX) };
            let row = write_row(&request);
            assert_eq!(read_row(&row).expect("reads"), request);
            for end in 0..row.len() {
                assert!(read_row(&row[..end]).is_err(), "cut at {end}");
            }
        }
    }
}

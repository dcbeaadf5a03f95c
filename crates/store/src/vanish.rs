//! Removal of a vanished author's events (NIP-62): which events it covers and its progress.

use grasp_core::nostr::{PublicKey, kinds};
use grasp_core::time::Timestamp;

use crate::event_record::EventRecord;
use crate::schema::{SortKey, key, read_u64, sort_key};

/// Progress of a removal. Readers hide the covered events at once; they are removed from disk in slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PurgeProgress {
    /// Events with a later `created_at` stay.
    pub(crate) up_to: Timestamp,
    /// Events with a higher sequence number stay.
    pub(crate) up_to_seq: u64,
    /// Whether the author's own events are removed. Then gift wraps addressed to the author follow.
    pub(crate) own_done: bool,
    /// Sort key after which the next slice begins.
    pub(crate) after: SortKey,
}

impl PurgeProgress {
    pub(crate) fn new(up_to: Timestamp, up_to_seq: u64) -> Self {
        Self { up_to, up_to_seq, own_done: false, after: first_sort_key(up_to) }
    }

    pub(crate) fn read(row: &[u8]) -> Self {
        let mut after = [0; 16];
        if let Some(sort_key) = row.get(17..33) {
            after.copy_from_slice(sort_key);
        }
        Self {
            up_to: Timestamp(row.get(..8).map_or(0, read_u64)),
            up_to_seq: row.get(8..16).map_or(0, read_u64),
            own_done: row.get(16) == Some(&1),
            after,
        }
    }

    pub(crate) fn to_row(self) -> [u8; 33] {
        let phase = [u8::from(self.own_done)];
        key(&[&self.up_to.0.to_be_bytes(), &self.up_to_seq.to_be_bytes(), &phase, &self.after])
    }

    /// Returns the progress at the beginning of the next phase, or `None` if both indexes have been read to their end.
    pub(crate) fn next_phase(self) -> Option<Self> {
        (!self.own_done).then_some(Self { own_done: true, after: first_sort_key(self.up_to), ..self })
    }

    /// Returns whether an event is removed: the author's own events except requests to vanish, and gift wraps addressed
    /// to the author (NIP-62).
    pub(crate) fn covers(self, record: &EventRecord<'_>, seq: u64, author: &PublicKey) -> bool {
        if record.created_at() > self.up_to || seq > self.up_to_seq {
            return false;
        }
        match record.kind() {
            kinds::VANISH => false,
            _ if record.author() == *author => true,
            kinds::GIFT_WRAP => {
                let hex = author.to_string();
                record.tags().any(|(letter, value)| letter == b'p' && value == hex.as_bytes())
            }
            _ => false,
        }
    }
}

/// Returns a sort key before all events that were created at this time or earlier.
fn first_sort_key(up_to: Timestamp) -> SortKey {
    sort_key(up_to.0, &[0; 32], 0)
}

//! What a vanished author leaves behind, which events are part of it, and how far its removal has come.

use grasp_core::nostr::{PublicKey, kinds};
use grasp_core::time::Timestamp;

use crate::event_record::EventRecord;
use crate::schema::{Place, key, number, place};

/// A removal that is under way: readers honour it at once, the disk is emptied in slices behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purge {
    /// What was made later stays.
    up_to: Timestamp,
    /// What came to be served later stays.
    up_to_seq: u64,
    /// Whether the author's own events are gone and only what was wrapped for it is left.
    own_are_gone: bool,
    /// Behind which place the next slice begins.
    behind: Place,
}

impl Purge {
    pub(crate) fn new(up_to: Timestamp, up_to_seq: u64) -> Self {
        Self { up_to, up_to_seq, own_are_gone: false, behind: first(up_to) }
    }

    pub(crate) fn read(row: &[u8]) -> Self {
        let mut behind = [0; 16];
        if let Some(place) = row.get(17..33) {
            behind.copy_from_slice(place);
        }
        Self {
            up_to: Timestamp(row.get(..8).map_or(0, number)),
            up_to_seq: row.get(8..16).map_or(0, number),
            own_are_gone: row.get(16) == Some(&1),
            behind,
        }
    }

    pub(crate) fn row(self) -> [u8; 33] {
        let phase = [u8::from(self.own_are_gone)];
        key(&[&self.up_to.0.to_be_bytes(), &self.up_to_seq.to_be_bytes(), &phase, &self.behind])
    }

    pub(crate) fn up_to(self) -> Timestamp {
        self.up_to
    }

    pub(crate) fn own_are_gone(self) -> bool {
        self.own_are_gone
    }

    /// The place behind which the next slice begins.
    pub(crate) fn start(self) -> Place {
        self.behind
    }

    /// The same, with a slice done.
    pub(crate) fn after(self, place: Place) -> Self {
        Self { behind: place, ..self }
    }

    /// What is left to do when one index has been read to its end.
    pub(crate) fn next_phase(self) -> Option<Self> {
        (!self.own_are_gone).then_some(Self { own_are_gone: true, behind: first(self.up_to), ..self })
    }

    /// Whether an event goes: the author's own, except its requests to vanish, and what was wrapped for it (NIP-62).
    pub(crate) fn dooms(self, record: &EventRecord<'_>, seq: u64, author: &PublicKey) -> bool {
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

/// The place before every event that was made at this time or earlier.
fn first(up_to: Timestamp) -> Place {
    place(up_to.0, &[0; 32], 0)
}

//! Reads the database of another relay: rust-nostr's `nostr-lmdb`, in which ngit-grasp stores its events.
//!
//! It is an LMDB environment. Its unnamed table contains each event under its id, as a FlatBuffer, and also the names
//! of the other tables. The content is untrusted: every offset is checked, and the amount of data read per event is
//! bounded.
//!
//! ```text
//! root:   offset of the table 4 | …
//! table:  offset back to the vtable 4 | fields
//! vtable: size 2 | size of the table 2 | field offset 2 × n
//! fields: id 32 | author 32 | created_at 8 | kind 8 | tags → [ → [ → text ] ] | content → text | signature 64
//! ```
//!
//! Numbers are little-endian. An arrow is an offset, forward from its own position. Lists and texts begin with a
//! length.

use std::path::Path;

use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::time::Timestamp;

use crate::error::{Result, StoreError};
use crate::schema::Table;
use crate::snapshot::open_env_read_only;

/// Largest total size and number of texts of one event: several times what any relay accepts.
const MAX_TEXT: usize = 16 << 20;
const MAX_TEXTS: usize = 200_000;

/// Indexes of the fields in the vtable.
const ID: usize = 0;
const AUTHOR: usize = 1;
const CREATED_AT: usize = 2;
const KIND: usize = 3;
const TAGS: usize = 4;
const CONTENT: usize = 5;
const SIGNATURE: usize = 6;

/// Passes every event of such a database to `on_event`, or an error for a row that cannot be read. Writes nothing, not
/// even a lock file, so the relay that owns the database must not run.
pub fn read_nostr_lmdb(
    folder: &Path,
    mut on_event: impl FnMut(std::result::Result<Event, &'static str>),
) -> Result<()> {
    // The operator has stopped the relay that writes the file; everything read is checked.
    let env = open_env_read_only(folder, 1)?;
    let txn = env.read_txn()?;
    let events: Table = env.open_database(&txn, None)?.ok_or(StoreError::Damaged("the database has no event table"))?;
    for row in events.iter(&txn)? {
        let (key, bytes) = row?;
        // Other keys are names of tables.
        if let Ok(id) = <[u8; 32]>::try_from(key) {
            on_event(read(bytes).filter(|event| event.id.0 == id).ok_or("event cannot be decoded"));
        }
    }
    Ok(())
}

/// Reads one event.
fn read(bytes: &[u8]) -> Option<Event> {
    let mut reader = FlatbufferReader { bytes, text: MAX_TEXT, texts: MAX_TEXTS };
    let table = reader.follow(0)?;
    let mut tags = Vec::new();
    if let Some(at) = reader.field(table, TAGS)? {
        let list = reader.follow(at)?;
        for nth in 0..reader.length(list)? {
            let tag = reader.follow(reader.element(list, nth)?)?;
            let mut values = Vec::new();
            if let Some(at) = reader.field(tag, 0)? {
                let list = reader.follow(at)?;
                for nth in 0..reader.length(list)? {
                    let text = reader.follow(reader.element(list, nth)?)?;
                    values.push(reader.text(text)?);
                }
            }
            reader.count()?;
            tags.push(values);
        }
    }
    let content = reader.field(table, CONTENT)??;
    let content = reader.text(reader.follow(content)?)?;
    let number = |field| reader.field(table, field)?.map_or(Some(0), |at| reader.read_u64(at));
    Some(Event {
        id: EventId(reader.array(reader.field(table, ID)??)?),
        pubkey: PublicKey(reader.array(reader.field(table, AUTHOR)??)?),
        created_at: Timestamp(number(CREATED_AT)?),
        kind: u16::try_from(number(KIND)?).ok()?,
        tags,
        content,
        sig: reader.array(reader.field(table, SIGNATURE)??)?,
    })
}

struct FlatbufferReader<'b> {
    bytes: &'b [u8],
    /// Bytes of text and number of texts that may still be read.
    text: usize,
    texts: usize,
}

impl FlatbufferReader<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn short(&self, at: usize) -> Option<usize> {
        self.array(at).map(u16::from_le_bytes).map(usize::from)
    }

    fn length(&self, at: usize) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array(at)?)).ok()
    }

    fn read_u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Returns the position to which an offset points.
    fn follow(&self, at: usize) -> Option<usize> {
        at.checked_add(self.length(at)?)
    }

    /// Returns the position of an element in a list of offsets.
    fn element(&self, list: usize, nth: usize) -> Option<usize> {
        list.checked_add(4)?.checked_add(nth.checked_mul(4)?)
    }

    /// Returns the position of a field in a table, or `Some(None)` if the table does not have it.
    fn field(&self, table: usize, nth: usize) -> Option<Option<usize>> {
        let back = i64::from(i32::from_le_bytes(self.array(table)?));
        let vtable = usize::try_from(i64::try_from(table).ok()?.checked_sub(back)?).ok()?;
        let entry = 4 + 2 * nth;
        if entry + 2 > self.short(vtable)? {
            return Some(None);
        }
        let position = self.short(vtable.checked_add(entry)?)?;
        if position == 0 { Some(None) } else { Some(Some(table.checked_add(position)?)) }
    }

    fn text(&mut self, at: usize) -> Option<String> {
        self.count()?;
        let length = self.length(at)?;
        self.text = self.text.checked_sub(length)?;
        let from = at.checked_add(4)?;
        String::from_utf8(self.bytes.get(from..from.checked_add(length)?)?.to_vec()).ok()
    }

    /// Counts a text or list. Without a bound, many offsets to the same text could expand to any size.
    fn count(&mut self) -> Option<()> {
        self.texts = self.texts.checked_sub(1)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an event in the format of `nostr-lmdb`, though less compactly.
    fn write(event: &Event) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        // The vtable: two sizes and seven field offsets, two bytes each.
        let vtable = bytes.len();
        let fields: [u16; 7] = [4, 36, 68, 76, 84, 88, 92];
        bytes.extend_from_slice(&18_u16.to_le_bytes());
        bytes.extend_from_slice(&156_u16.to_le_bytes());
        fields.iter().for_each(|position| bytes.extend_from_slice(&position.to_le_bytes()));
        let table = bytes.len();
        bytes[..4].copy_from_slice(&(table as u32).to_le_bytes());
        bytes.extend_from_slice(&((table - vtable) as i32).to_le_bytes());
        bytes.extend_from_slice(&event.id.0);
        bytes.extend_from_slice(&event.pubkey.0);
        bytes.extend_from_slice(&event.created_at.0.to_le_bytes());
        bytes.extend_from_slice(&u64::from(event.kind).to_le_bytes());
        let offsets = bytes.len();
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&event.sig);
        let point = |bytes: &mut Vec<u8>, from: usize| {
            let distance = (bytes.len() - from) as u32;
            bytes[from..from + 4].copy_from_slice(&distance.to_le_bytes());
        };
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        };
        point(&mut bytes, offsets);
        bytes.extend_from_slice(&(event.tags.len() as u32).to_le_bytes());
        let mut positions = Vec::new();
        for _ in &event.tags {
            positions.push(bytes.len());
            bytes.extend_from_slice(&[0; 4]);
        }
        for (tag, position) in event.tags.iter().zip(positions) {
            let vtable = bytes.len();
            [6_u16, 8, 4].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            point(&mut bytes, position);
            let table = bytes.len();
            bytes.extend_from_slice(&((table - vtable) as i32).to_le_bytes());
            bytes.extend_from_slice(&4_u32.to_le_bytes());
            bytes.extend_from_slice(&(tag.len() as u32).to_le_bytes());
            let first = bytes.len();
            bytes.extend(std::iter::repeat_n(0, 4 * tag.len()));
            for (nth, value) in tag.iter().enumerate() {
                point(&mut bytes, first + 4 * nth);
                text(&mut bytes, value);
            }
        }
        point(&mut bytes, offsets + 4);
        text(&mut bytes, &event.content);
        bytes
    }

    fn event() -> Event {
        let tags = [vec!["d", "tool"], vec!["clone", "https://a.example/x.git", "ü"], vec![], vec![""]];
        Event {
            id: EventId([1; 32]),
            pubkey: PublicKey([2; 32]),
            created_at: Timestamp(1_700_000_000),
            kind: 30_617,
            tags: tags.map(|tag| tag.into_iter().map(str::to_owned).collect()).to_vec(),
            content: "über".to_owned(),
            sig: [3; 64],
        }
    }

    #[test]
    fn event_round_trips() {
        let event = event();
        let read = read(&write(&event)).expect("reads");
        assert_eq!(format!("{read:?}"), format!("{event:?}"));
    }

    #[test]
    fn corrupted_bytes_do_not_panic() {
        let bytes = write(&event());
        for end in 0..bytes.len() {
            let _ = read(&bytes[..end]);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 4, 0x7f, 0x80, 0xff, bytes[at].wrapping_add(1), bytes[at].wrapping_sub(1)] {
                let mut changed = bytes.clone();
                changed[at] = value;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn shared_offsets_are_bounded() {
        let mut event = event();
        event.tags = vec![vec!["x".repeat(1_000); 500]];
        let mut bytes = write(&event);
        // A list of 10,000 tags, all of which are the first tag.
        let reader = FlatbufferReader { bytes: &bytes, text: 0, texts: 0 };
        let table = reader.follow(0).expect("a table");
        let offset = reader.field(table, TAGS).expect("reads").expect("there");
        let tag =
            reader.follow(reader.element(reader.follow(offset).expect("a list"), 0).expect("one")).expect("a tag");
        let list = bytes.len();
        bytes.extend_from_slice(&10_000_u32.to_le_bytes());
        for _ in 0..10_000 {
            // Offsets lead forward only: they are set below, to a copy of the tag after the list.
            bytes.extend_from_slice(&0_u32.to_le_bytes());
        }
        let copy = bytes.len();
        let original = bytes[..list].to_vec();
        bytes.extend_from_slice(&original);
        for nth in 0..10_000 {
            let from = list + 4 + 4 * nth;
            let distance = (copy + tag - from) as u32;
            bytes[from..from + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let distance = (list - offset) as u32;
        bytes[offset..offset + 4].copy_from_slice(&distance.to_le_bytes());
        assert!(read(&bytes).is_none(), "5 million texts from 500");
    }
}

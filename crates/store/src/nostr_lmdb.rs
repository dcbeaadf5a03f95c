//! Reads the database of another relay: rust-nostr's `nostr-lmdb`, which ngit-grasp keeps its events in.
//!
//! It is an LMDB environment whose unnamed table has an event under each id, as a FlatBuffer; the names of its other tables
//! stand between them. Nothing of it is believed: every offset is checked, and what is read is bounded.
//!
//! ```text
//! root: where the table is 4 | …   table: back to the layout 4 | fields   layout: its bytes 2 | … 2 | field's place 2 × n
//! fields: id 32 | author 32 | created_at 8 | kind 8 | tags → [ → [ → text ] ] | content → text | signature 64
//! ```
//! Numbers are little-endian; an arrow is a distance forward from where it stands; lists and texts begin with a length.

use std::path::Path;

use grasp_core::nostr::PublicKey;
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::time::Timestamp;
use heed::types::Bytes;
use heed::{Database, EnvFlags, EnvOpenOptions};

use crate::error::{Result, StoreError};
use crate::store::MAP_BYTES;

/// Bytes of all texts of one event, and how many there are: several times what any relay takes.
const MAX_TEXT: usize = 16 << 20;
const MAX_TEXTS: usize = 200_000;

/// Where fields stand in a layout.
const ID: usize = 0;
const AUTHOR: usize = 1;
const CREATED_AT: usize = 2;
const KIND: usize = 3;
const TAGS: usize = 4;
const CONTENT: usize = 5;
const SIGNATURE: usize = 6;

/// Shows every event in a folder of that kind, or that a row could not be read. Nothing is written, not even a lock: the
/// relay whose it is must not run.
pub fn read_nostr_lmdb(folder: &Path, mut show: impl FnMut(std::result::Result<Event, &'static str>)) -> Result<()> {
    let mut open = EnvOpenOptions::new().read_txn_without_tls();
    open.map_size(MAP_BYTES).max_dbs(1);
    #[expect(unsafe_code, reason = "a memory map is only as sound as the rule that nobody writes the file")]
    // SAFETY: its relay does not run, says the operator; whatever is read is checked.
    let env = unsafe { open.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK).open(folder) }?;
    let txn = env.read_txn()?;
    let events: Database<Bytes, Bytes> =
        env.open_database(&txn, None)?.ok_or(StoreError::Damaged("the other relay has no events"))?;
    for row in events.iter(&txn)? {
        let (key, bytes) = row?;
        // Others are names of tables.
        if let Ok(id) = <[u8; 32]>::try_from(key) {
            show(read(bytes).filter(|event| event.id.0 == id).ok_or("an event that cannot be read"));
        }
    }
    Ok(())
}

/// Reads one event.
fn read(bytes: &[u8]) -> Option<Event> {
    let mut reader = Reader { bytes, text: MAX_TEXT, texts: MAX_TEXTS };
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
    let number = |field| reader.field(table, field)?.map_or(Some(0), |at| reader.number(at));
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

struct Reader<'b> {
    bytes: &'b [u8],
    /// What may still be read.
    text: usize,
    texts: usize,
}

impl Reader<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn short(&self, at: usize) -> Option<usize> {
        self.array(at).map(u16::from_le_bytes).map(usize::from)
    }

    fn length(&self, at: usize) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array(at)?)).ok()
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// Where an arrow leads.
    fn follow(&self, at: usize) -> Option<usize> {
        at.checked_add(self.length(at)?)
    }

    /// Where an element of a list of arrows stands.
    fn element(&self, list: usize, nth: usize) -> Option<usize> {
        list.checked_add(4)?.checked_add(nth.checked_mul(4)?)
    }

    /// Where a field of a table stands; `Some(None)` if the table has none.
    fn field(&self, table: usize, nth: usize) -> Option<Option<usize>> {
        let back = i64::from(i32::from_le_bytes(self.array(table)?));
        let layout = usize::try_from(i64::try_from(table).ok()?.checked_sub(back)?).ok()?;
        let entry = 4 + 2 * nth;
        if entry + 2 > self.short(layout)? {
            return Some(None);
        }
        let place = self.short(layout.checked_add(entry)?)?;
        if place == 0 { Some(None) } else { Some(Some(table.checked_add(place)?)) }
    }

    fn text(&mut self, at: usize) -> Option<String> {
        self.count()?;
        let length = self.length(at)?;
        self.text = self.text.checked_sub(length)?;
        let from = at.checked_add(4)?;
        String::from_utf8(self.bytes.get(from..from.checked_add(length)?)?.to_vec()).ok()
    }

    /// One more text or list: arrows may lead to the same place again and again.
    fn count(&mut self) -> Option<()> {
        self.texts = self.texts.checked_sub(1)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an event as the other relay does, though not as densely.
    fn write(event: &Event) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        // The layout: eleven numbers of two bytes, padded to twelve.
        let layout = bytes.len();
        let fields: [u16; 7] = [4, 36, 68, 76, 84, 88, 92];
        bytes.extend_from_slice(&18_u16.to_le_bytes());
        bytes.extend_from_slice(&156_u16.to_le_bytes());
        fields.iter().for_each(|place| bytes.extend_from_slice(&place.to_le_bytes()));
        let table = bytes.len();
        bytes[..4].copy_from_slice(&(table as u32).to_le_bytes());
        bytes.extend_from_slice(&((table - layout) as i32).to_le_bytes());
        bytes.extend_from_slice(&event.id.0);
        bytes.extend_from_slice(&event.pubkey.0);
        bytes.extend_from_slice(&event.created_at.0.to_le_bytes());
        bytes.extend_from_slice(&u64::from(event.kind).to_le_bytes());
        let arrows = bytes.len();
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
        point(&mut bytes, arrows);
        bytes.extend_from_slice(&(event.tags.len() as u32).to_le_bytes());
        let mut places = Vec::new();
        for _ in &event.tags {
            places.push(bytes.len());
            bytes.extend_from_slice(&[0; 4]);
        }
        for (tag, place) in event.tags.iter().zip(places) {
            let layout = bytes.len();
            [6_u16, 8, 4].iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            point(&mut bytes, place);
            let table = bytes.len();
            bytes.extend_from_slice(&((table - layout) as i32).to_le_bytes());
            bytes.extend_from_slice(&4_u32.to_le_bytes());
            bytes.extend_from_slice(&(tag.len() as u32).to_le_bytes());
            let first = bytes.len();
            bytes.extend(std::iter::repeat_n(0, 4 * tag.len()));
            for (nth, value) in tag.iter().enumerate() {
                point(&mut bytes, first + 4 * nth);
                text(&mut bytes, value);
            }
        }
        point(&mut bytes, arrows + 4);
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
    fn an_event_is_read_as_it_was_written() {
        let event = event();
        let read = read(&write(&event)).expect("reads");
        assert_eq!(format!("{read:?}"), format!("{event:?}"));
    }

    #[test]
    fn no_change_of_its_bytes_does_harm() {
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
    fn arrows_that_lead_to_the_same_place_are_not_followed_without_end() {
        let mut event = event();
        event.tags = vec![vec!["x".repeat(1_000); 500]];
        let mut bytes = write(&event);
        // A list of ten thousand tags, all of them the first.
        let reader = Reader { bytes: &bytes, text: 0, texts: 0 };
        let table = reader.follow(0).expect("a table");
        let arrow = reader.field(table, TAGS).expect("reads").expect("there");
        let tag = reader.follow(reader.element(reader.follow(arrow).expect("a list"), 0).expect("one")).expect("a tag");
        let list = bytes.len();
        bytes.extend_from_slice(&10_000_u32.to_le_bytes());
        for _ in 0..10_000 {
            // Arrows lead forward only; these wrap around nothing and fail, or lead to a copy behind.
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
        let distance = (list - arrow) as u32;
        bytes[arrow..arrow + 4].copy_from_slice(&distance.to_le_bytes());
        assert!(read(&bytes).is_none(), "five million texts of one");
    }
}

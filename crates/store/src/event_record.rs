//! A stored event: what a scan must know about it in front, its canonical text behind.
//!
//! ```text
//! id 32 | author 32 | created_at 8 | kind 2 | expires_at 8 | marks 2 | (letter 1, start 4, len 4) × marks | text
//! ```
//! Numbers are big-endian. A filter is checked against these bytes alone: equal tag values have equal escaped text, and
//! marks say where it stands. The text is served as it is.

use grasp_core::admission::io::EventSummary;
use grasp_core::nostr::event::{Event, EventId, EventVersion};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, json, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::time::Timestamp;

use crate::error::{Result, StoreError};

const FIXED: usize = 84;
const MARK: usize = 9;
const NEVER: u64 = u64::MAX;

/// A stored event.
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    bytes: &'a [u8],
    marks: usize,
}

impl<'a> EventRecord<'a> {
    /// Reads a record's frame.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let damaged = StoreError::Damaged("an event's record is too short");
        if bytes.len() < FIXED {
            return Err(damaged);
        }
        let marks = usize::from(u16::from_be_bytes([bytes[82], bytes[83]]));
        if bytes.len() < FIXED + marks * MARK {
            return Err(damaged);
        }
        Ok(Self { bytes, marks })
    }

    /// Writes an event's record.
    #[must_use]
    pub fn write(event: &SignedEvent) -> Vec<u8> {
        let marks = event.tag_spans();
        let mut bytes = Vec::with_capacity(FIXED + marks.len() * MARK + event.json().len());
        bytes.extend_from_slice(&event.id.0);
        bytes.extend_from_slice(&event.pubkey.0);
        bytes.extend_from_slice(&event.created_at.0.to_be_bytes());
        bytes.extend_from_slice(&event.kind.to_be_bytes());
        bytes.extend_from_slice(&event.expires_at().map_or(NEVER, |at| at.0).to_be_bytes());
        // The registrar takes no event with more tags than fit (limits::MAX_EVENT_TAGS).
        bytes.extend_from_slice(&u16::try_from(marks.len()).unwrap_or(u16::MAX).to_be_bytes());
        for mark in marks.iter().take(usize::from(u16::MAX)) {
            bytes.push(mark.letter);
            bytes.extend_from_slice(&mark.start.to_be_bytes());
            bytes.extend_from_slice(&mark.len.to_be_bytes());
        }
        bytes.extend_from_slice(event.json().as_bytes());
        bytes
    }

    /// The event's id.
    #[must_use]
    pub fn id(&self) -> EventId {
        EventId(self.array(0))
    }

    /// The author.
    #[must_use]
    pub fn author(&self) -> PublicKey {
        PublicKey(self.array(32))
    }

    /// When it was made.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        Timestamp(u64::from_be_bytes(self.array(64)))
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> u16 {
        u16::from_be_bytes(self.array(72))
    }

    /// When it is to be forgotten.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        Some(u64::from_be_bytes(self.array(74))).filter(|at| *at != NEVER).map(Timestamp)
    }

    /// Which version it is.
    #[must_use]
    pub fn version(&self) -> EventVersion {
        EventVersion { created_at: self.created_at(), id: self.id() }
    }

    /// The canonical text.
    #[must_use]
    pub fn json(&self) -> &'a [u8] {
        &self.bytes[FIXED + self.marks * MARK..]
    }

    /// The indexed tags: letter and escaped value.
    pub fn tags(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let json = self.json();
        self.bytes[FIXED..FIXED + self.marks * MARK].chunks_exact(MARK).map(move |mark| {
            let number = |at: usize| u32::from_be_bytes([mark[at], mark[at + 1], mark[at + 2], mark[at + 3]]) as usize;
            (mark[0], json.get(number(1)..number(1) + number(5)).unwrap_or_default())
        })
    }

    /// The identifier under which versions of this event replace each other, as it stands in canonical text: empty for
    /// replaceable kinds, the first `d` for addressable ones.
    pub(crate) fn identifier(&self) -> Option<&'a [u8]> {
        match kinds::class(self.kind()) {
            kinds::KindClass::Replaceable => Some(b""),
            kinds::KindClass::Addressable => {
                Some(self.tags().find(|(letter, _)| *letter == b'd').map_or(b"", |(_, value)| value))
            }
            kinds::KindClass::Regular | kinds::KindClass::Ephemeral => None,
        }
    }

    /// The event itself, as verified when it came in.
    pub fn event(&self) -> Result<SignedEvent> {
        let text = std::str::from_utf8(self.json()).map_err(|_| StoreError::Damaged("an event's text is no UTF-8"))?;
        Event::parse(text)
            .map(SignedEvent::from_trusted)
            .map_err(|_| StoreError::Damaged("an event's text is no event"))
    }

    /// What decisions need of it.
    pub(crate) fn summary(&self) -> EventSummary {
        let is_repository = matches!(self.kind(), kinds::ANNOUNCEMENT | kinds::STATE);
        let identifier = self.identifier().filter(|_| is_repository).and_then(|d| std::str::from_utf8(d).ok());
        let (targets, tip) = self.offer();
        EventSummary {
            id: self.id(),
            author: self.author(),
            kind: self.kind(),
            created_at: self.created_at(),
            identifier: identifier.and_then(json::unescape).as_deref().and_then(Identifier::new),
            targets,
            tip,
        }
    }

    /// What a pull request offers. Marks do not tell: each value has one mark, however often it stands there, and a
    /// pull request's references are counted.
    fn offer(&self) -> (Vec<RepoId>, Option<String>) {
        let text = kinds::is_pull_request(self.kind()).then(|| std::str::from_utf8(self.json()).ok()).flatten();
        text.and_then(|text| Event::parse(text).ok())
            .map(|event| EventSummary::pull_request_fields(&event))
            .unwrap_or_default()
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[at..at + N]);
        array
    }
}

/// A filter made ready to be checked against records.
#[derive(Clone, Debug)]
pub struct PreparedFilter {
    filter: Filter,
    /// The filter's tag values as they stand in canonical text.
    tags: Vec<(u8, Vec<String>)>,
}

impl PreparedFilter {
    /// The filter's tag conditions: letter and values as they stand in canonical text.
    #[must_use]
    pub fn tags(&self) -> &[(u8, Vec<String>)] {
        &self.tags
    }

    /// Makes a filter ready.
    #[must_use]
    pub fn new(mut filter: Filter) -> Self {
        filter.sort();
        let escape = |values: &Vec<String>| {
            let mut escaped: Vec<String> = values.iter().map(|value| json::escape(value)).collect();
            escaped.sort_unstable();
            escaped
        };
        let tags = filter.tags.iter().map(|(letter, values)| (*letter, escape(values))).collect();
        Self { filter, tags }
    }

    /// The filter.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// The same answer as [`Filter::matches`], from stored bytes.
    #[must_use]
    pub fn matches(&self, record: &EventRecord<'_>) -> bool {
        let filter = &self.filter;
        filter.kinds.as_ref().is_none_or(|kinds| kinds.binary_search(&record.kind()).is_ok())
            && filter.since.is_none_or(|since| record.created_at() >= since)
            && filter.until.is_none_or(|until| record.created_at() <= until)
            && filter.authors.as_ref().is_none_or(|authors| authors.binary_search(&record.author()).is_ok())
            && filter.ids.as_ref().is_none_or(|ids| ids.binary_search(&record.id()).is_ok())
            && self.tags.iter().all(|(letter, values)| {
                record.tags().any(|(name, value)| {
                    name == *letter && values.binary_search_by(|wanted| wanted.as_bytes().cmp(value)).is_ok()
                })
            })
    }
}

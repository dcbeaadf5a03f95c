//! Format of stored events: the fields that scans need, then the canonical JSON.
//!
//! ```text
//! id 32 | author 32 | created_at 8 | kind 2 | expires_at 8 | spans 2 | (letter 1, start 4, len 4) × spans | JSON
//! ```
//!
//! Numbers are big-endian. Filters are checked against these bytes alone: a tag span is the position of an indexed
//! tag's value in the JSON, and equal values have equal escaped text. The JSON is sent to clients as it is.

use grasp_core::admission::io::EventSummary;
use grasp_core::nostr::event::{Event, EventId, EventVersion};
use grasp_core::nostr::{Filter, PublicKey, SignedEvent, json, kinds};
use grasp_core::repo::{Identifier, RepoId};
use grasp_core::time::Timestamp;

use crate::error::{Result, StoreError};

const HEADER_BYTES: usize = 84;
const TAG_SPAN_BYTES: usize = 9;
const NEVER: u64 = u64::MAX;

/// The bytes of a stored event: a header with what filters need, and the JSON text.
#[derive(Clone, Copy, Debug)]
pub struct EventRecord<'a> {
    bytes: &'a [u8],
    tag_spans: usize,
}

impl<'a> EventRecord<'a> {
    /// Checks the lengths of a record's parts.
    ///
    /// # Errors
    /// Fails if the bytes are shorter than the header or the tag spans.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let damaged = StoreError::Damaged("event record is too short");
        if bytes.len() < HEADER_BYTES {
            return Err(damaged);
        }
        let tag_spans = usize::from(u16::from_be_bytes([bytes[82], bytes[83]]));
        if bytes.len() < HEADER_BYTES + tag_spans * TAG_SPAN_BYTES {
            return Err(damaged);
        }
        Ok(Self { bytes, tag_spans })
    }

    /// Encodes an event as a record.
    #[must_use]
    pub fn write(event: &SignedEvent) -> Vec<u8> {
        let tag_spans = event.tag_spans();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + tag_spans.len() * TAG_SPAN_BYTES + event.json().len());
        bytes.extend_from_slice(&event.id.0);
        bytes.extend_from_slice(&event.pubkey.0);
        bytes.extend_from_slice(&event.created_at.0.to_be_bytes());
        bytes.extend_from_slice(&event.kind.to_be_bytes());
        bytes.extend_from_slice(&event.expires_at().map_or(NEVER, |at| at.0).to_be_bytes());
        // Admission rejects events with more tags than fit (limits::MAX_EVENT_TAGS).
        bytes.extend_from_slice(&u16::try_from(tag_spans.len()).unwrap_or(u16::MAX).to_be_bytes());
        for span in tag_spans.iter().take(usize::from(u16::MAX)) {
            bytes.push(span.letter);
            bytes.extend_from_slice(&span.start.to_be_bytes());
            bytes.extend_from_slice(&span.len.to_be_bytes());
        }
        bytes.extend_from_slice(event.json().as_bytes());
        bytes
    }

    /// Returns the event id.
    #[must_use]
    pub fn id(&self) -> EventId {
        EventId(self.array(0))
    }

    /// Returns the author.
    #[must_use]
    pub fn author(&self) -> PublicKey {
        PublicKey(self.array(32))
    }

    /// Returns the creation time that the event states.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        Timestamp(u64::from_be_bytes(self.array(64)))
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> u16 {
        u16::from_be_bytes(self.array(72))
    }

    /// Returns the NIP-40 expiration.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        Some(u64::from_be_bytes(self.array(74))).filter(|at| *at != NEVER).map(Timestamp)
    }

    /// Returns the version of a replaceable event.
    #[must_use]
    pub fn version(&self) -> EventVersion {
        EventVersion { created_at: self.created_at(), id: self.id() }
    }

    /// Returns the canonical JSON.
    #[must_use]
    pub fn json(&self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES + self.tag_spans * TAG_SPAN_BYTES..]
    }

    /// Returns the indexed tags: letter and escaped value.
    pub fn tags(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let json = self.json();
        self.bytes[HEADER_BYTES..HEADER_BYTES + self.tag_spans * TAG_SPAN_BYTES].chunks_exact(TAG_SPAN_BYTES).map(
            move |span| {
                let number =
                    |at: usize| u32::from_be_bytes([span[at], span[at + 1], span[at + 2], span[at + 3]]) as usize;
                (span[0], json.get(number(1)..number(1) + number(5)).unwrap_or_default())
            },
        )
    }

    /// Returns the identifier under which versions of this event replace each other, escaped as in canonical JSON:
    /// empty for replaceable kinds, the first `d` for addressable ones.
    pub(crate) fn identifier(&self) -> Option<&'a [u8]> {
        match kinds::class(self.kind()) {
            kinds::KindClass::Replaceable => Some(b""),
            kinds::KindClass::Addressable => {
                Some(self.tags().find(|(letter, _)| *letter == b'd').map_or(b"", |(_, value)| value))
            }
            kinds::KindClass::Regular | kinds::KindClass::Ephemeral => None,
        }
    }

    /// Parses the event. Its signature was verified when it was accepted.
    pub fn event(&self) -> Result<SignedEvent> {
        let text = std::str::from_utf8(self.json()).map_err(|_| StoreError::Damaged("event JSON is not UTF-8"))?;
        Event::parse(text)
            .map(SignedEvent::from_trusted)
            .map_err(|_| StoreError::Damaged("event JSON cannot be parsed"))
    }

    /// Returns the fields that decisions of admission need.
    pub(crate) fn summary(&self) -> EventSummary {
        let is_repository = matches!(self.kind(), kinds::ANNOUNCEMENT | kinds::STATE);
        let identifier = self.identifier().filter(|_| is_repository).and_then(|d| std::str::from_utf8(d).ok());
        let (targets, tip) = self.pull_request_fields();
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

    /// Returns target repositories and tip of a pull request. Parses the JSON: there is one tag span per distinct
    /// value, but the references of a pull request are counted with repetitions.
    fn pull_request_fields(&self) -> (Vec<RepoId>, Option<String>) {
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

/// A filter prepared for checks against records.
#[derive(Clone, Debug)]
pub struct PreparedFilter {
    filter: Filter,
    /// Tag values escaped as in canonical JSON.
    tags: Vec<(u8, Vec<String>)>,
}

impl PreparedFilter {
    /// Returns the tag conditions: letter and values escaped as in canonical JSON.
    #[must_use]
    pub fn tags(&self) -> &[(u8, Vec<String>)] {
        &self.tags
    }

    /// Prepares a filter.
    #[must_use]
    pub fn new(mut filter: Filter) -> Self {
        filter.sort();
        let escape = |values: &[String]| {
            let mut escaped: Vec<String> = values.iter().map(|value| json::escape(value)).collect();
            escaped.sort_unstable();
            escaped
        };
        let tags = filter.tags.iter().map(|(letter, values)| (*letter, escape(values))).collect();
        Self { filter, tags }
    }

    /// Returns the filter.
    #[must_use]
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Returns the same result as [`Filter::matches`], from stored bytes.
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

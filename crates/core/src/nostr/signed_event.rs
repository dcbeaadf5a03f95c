//! Verified events with their canonical JSON text, which is stored and served.

use std::collections::BTreeSet;

use bitcoin_hashes::sha256;
use secp256k1::schnorr::Signature;
use secp256k1::{Secp256k1, VerifyOnly, XOnlyPublicKey};

use super::event::{Event, tag_letter};
use super::{hex, json};

/// The position of the value of an indexed tag in the canonical text. Filters are matched against stored bytes without
/// parsing, which works because equal values have equal escaped text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TagSpan {
    /// Letter of the tag.
    pub letter: u8,
    /// First byte of the value's escaped text.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

/// A verified event and its canonical text. The text that the sender used is discarded, because it may contain unsigned
/// members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedEvent {
    event: Event,
    json: String,
    tag_spans: Vec<TagSpan>,
}

/// The reason why the verification of an event failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The id is not the hash of the event.
    #[error("the id is not the hash of the event")]
    WrongId,
    /// The signature is not a valid signature of the author.
    #[error("the signature does not verify")]
    BadSignature,
}

impl SignedEvent {
    /// Creates a signed event without verification. Only for events that were verified before and come from the own
    /// store, and for simulations.
    #[must_use]
    pub fn from_trusted(event: Event) -> Self {
        CanonicalJson::new(&event).into_signed(event)
    }

    /// Returns the event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Returns the canonical JSON text.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Returns the positions of the indexed tag values in [`json`](Self::json), each (letter, value) once.
    #[must_use]
    pub fn tag_spans(&self) -> &[TagSpan] {
        &self.tag_spans
    }

    /// Returns the escaped text of a tag value.
    #[must_use]
    pub fn span_text(&self, span: TagSpan) -> &str {
        &self.json[span.start as usize..(span.start + span.len) as usize]
    }
}

impl std::ops::Deref for SignedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// Computes the id of an event from its other members.
#[must_use]
pub fn compute_id(event: &Event) -> [u8; 32] {
    CanonicalJson::new(event).hash(event)
}

/// The canonical text with the positions of tags and content, which are also part of the hashed text. They are encoded
/// only once for both.
struct CanonicalJson {
    json: String,
    /// `[[…],…]`.
    tags: std::ops::Range<usize>,
    /// `"…"`.
    content: std::ops::Range<usize>,
    tag_spans: Vec<TagSpan>,
}

impl CanonicalJson {
    fn new(event: &Event) -> Self {
        let size = 400 + event.content.len() + event.tags.iter().flatten().map(|value| value.len() + 4).sum::<usize>();
        let mut json = String::with_capacity(size);
        let mut tag_spans = Vec::new();
        json.push_str("{\"id\":\"");
        hex::push(&mut json, &event.id.0);
        json.push_str("\",\"pubkey\":\"");
        hex::push(&mut json, &event.pubkey.0);
        json.push_str("\",\"created_at\":");
        json.push_str(&event.created_at.0.to_string());
        json.push_str(",\"kind\":");
        json.push_str(&event.kind.to_string());
        json.push_str(",\"tags\":");
        let tags_start = json.len();
        push_tags(&mut json, &event.tags, &mut tag_spans);
        let tags = tags_start..json.len();
        json.push_str(",\"content\":");
        let content_start = json.len();
        json::push_string(&mut json, &event.content);
        let content = content_start..json.len();
        json.push_str(",\"sig\":\"");
        hex::push(&mut json, &event.sig);
        json.push_str("\"}");
        let tag_spans = dedup_spans(&json, tag_spans);
        Self { json, tags, content, tag_spans }
    }

    /// sha256 of `[0,"pubkey",created_at,kind,tags,content]`.
    fn hash(&self, event: &Event) -> [u8; 32] {
        let mut head = String::with_capacity(100);
        head.push_str("[0,\"");
        hex::push(&mut head, &event.pubkey.0);
        head.push_str(&format!("\",{},{},", event.created_at, event.kind));
        let parts = [&head, &self.json[self.tags.clone()], ",", &self.json[self.content.clone()], "]"];
        sha256::Hash::hash_byte_chunks(parts).to_byte_array()
    }

    fn into_signed(self, event: Event) -> SignedEvent {
        SignedEvent { event, json: self.json, tag_spans: self.tag_spans }
    }
}

fn push_tags(json: &mut String, tags: &[Vec<String>], tag_spans: &mut Vec<TagSpan>) {
    json.push('[');
    for (nth, tag) in tags.iter().enumerate() {
        json.push_str(if nth == 0 { "[" } else { ",[" });
        let letter = tag.first().and_then(|name| tag_letter(name));
        for (place, value) in tag.iter().enumerate() {
            if place > 0 {
                json.push(',');
            }
            let start = json.len() + 1;
            json::push_string(json, value);
            if let (1, Some(letter)) = (place, letter) {
                tag_spans.push(TagSpan { letter, start: start as u32, len: (json.len() - 1 - start) as u32 });
            }
        }
        json.push(']');
    }
    json.push(']');
}

/// Removes repeated (letter, value) pairs.
fn dedup_spans(json: &str, tag_spans: Vec<TagSpan>) -> Vec<TagSpan> {
    let text = |span: &TagSpan| &json[span.start as usize..(span.start + span.len) as usize];
    let mut seen = BTreeSet::new();
    tag_spans.into_iter().filter(|span| seen.insert((span.letter, text(span)))).collect()
}

/// Number of parsed public keys in the cache of a [`Verifier`]. Parsing a key takes about a sixth of a verification. A
/// power of two.
const CACHED_KEYS: usize = 4_096;

/// Verifies ids and signatures. Each verifying thread has its own verifier with a small cache of parsed keys.
pub struct Verifier {
    secp: Secp256k1<VerifyOnly>,
    /// Direct-mapped cache, indexed by the first bytes of the key, so that it is bounded without an eviction list.
    keys: Vec<Option<([u8; 32], XOnlyPublicKey)>>,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::with_cache(CACHED_KEYS)
    }
}

impl Verifier {
    /// Creates a verifier that caches up to `keys` parsed keys, at least one.
    #[must_use]
    pub fn with_cache(keys: usize) -> Self {
        Self { secp: Secp256k1::verification_only(), keys: vec![None; keys.max(1)] }
    }

    /// Verifies the id of an event, then its signature.
    pub fn verify(&mut self, event: Event) -> Result<SignedEvent, VerifyError> {
        let canonical = CanonicalJson::new(&event);
        if canonical.hash(&event) != event.id.0 {
            return Err(VerifyError::WrongId);
        }
        self.check_signature(&event)?;
        Ok(canonical.into_signed(event))
    }

    /// Verifies the signature of an event whose id is known to be correct ([`compute_id`]).
    pub fn verify_signature(&mut self, event: Event) -> Result<SignedEvent, VerifyError> {
        self.check_signature(&event)?;
        Ok(CanonicalJson::new(&event).into_signed(event))
    }

    fn check_signature(&mut self, event: &Event) -> Result<(), VerifyError> {
        let key = self.key(&event.pubkey.0).ok_or(VerifyError::BadSignature)?;
        let signature = Signature::from_slice(&event.sig).map_err(|_| VerifyError::BadSignature)?;
        self.secp.verify_schnorr(&signature, &event.id.0, &key).map_err(|_| VerifyError::BadSignature)
    }

    fn key(&mut self, bytes: &[u8; 32]) -> Option<XOnlyPublicKey> {
        let slots = self.keys.len();
        let slot = &mut self.keys[usize::from(u16::from_be_bytes([bytes[0], bytes[1]])) % slots];
        match slot {
            Some((cached, key)) if cached == bytes => Some(*key),
            _ => {
                let key = XOnlyPublicKey::from_slice(bytes).ok()?;
                *slot = Some((*bytes, key));
                Some(key)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag};

    use super::*;
    use crate::nostr::{EventId, PublicKey};
    use crate::time::Timestamp;

    fn sample() -> String {
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("a key");
        EventBuilder::new(Kind::Custom(1621), "a\n\"b\" \u{1} é🚀")
            .tags([
                Tag::parse(["e", "x\ty"]).expect("tag"),
                Tag::parse(["e", "x\ty", "again"]).expect("tag"),
                Tag::parse(["subject", "s"]).expect("tag"),
            ])
            .finalize(&keys)
            .expect("signs")
            .as_json()
    }

    #[test]
    fn event_id_matches_the_reference_serialisation() {
        let event = Event {
            id: EventId([0; 32]),
            pubkey: PublicKey([0x11; 32]),
            created_at: Timestamp(1_760_000_000),
            kind: 30618,
            tags: vec![
                vec!["d".into(), "my 🚀 repo".into()],
                vec!["refs/heads/main".into(), "a".repeat(40)],
                vec!["HEAD".into(), "ref: refs/heads/main".into()],
            ],
            content: String::new(),
            sig: [0; 64],
        };
        assert_eq!(
            hex::encode(&compute_id(&event)),
            "eeb65c9bea591f10de390e1bcac12f30042284c1aeca1c747b83f7009529557d"
        );
    }

    #[test]
    fn verification_agrees_with_another_library_and_detects_changes() {
        let text = sample();
        let event = Event::parse(&text).expect("an event");
        let signed = Verifier::default().verify(event.clone()).expect("verifies");
        assert_eq!(nostr::event::Event::from_json(signed.json()).expect("parsed by the nostr crate").as_json(), text);
        assert_eq!(signed.tag_spans().len(), 1, "equal values have one span");
        assert_eq!(signed.span_text(signed.tag_spans()[0]), "x\\ty");

        let mut verifier = Verifier::default();
        let mut changed = event.clone();
        changed.content.push('!');
        assert_eq!(verifier.verify(changed), Err(VerifyError::WrongId));
        let mut changed = event.clone();
        changed.sig[10] ^= 1;
        assert_eq!(verifier.verify(changed.clone()), Err(VerifyError::BadSignature));
        assert_eq!(verifier.verify_signature(changed), Err(VerifyError::BadSignature));
        assert_eq!(verifier.verify_signature(event.clone()), verifier.verify(event.clone()));
        let mut changed = event;
        changed.pubkey = PublicKey([0xff; 32]);
        changed.id = EventId(compute_id(&changed));
        assert_eq!(verifier.verify(changed), Err(VerifyError::BadSignature), "not a point on the curve");
    }
}

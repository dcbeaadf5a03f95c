//! Events whose id and signature are right, with the bytes that are stored and served.

use std::collections::BTreeSet;
use std::fmt;

use bitcoin_hashes::sha256;
use secp256k1::schnorr::Signature;
use secp256k1::{Secp256k1, VerifyOnly, XOnlyPublicKey};

use super::event::{Event, letter};
use super::{hex, json};

/// Where the value of an indexed tag stands in the canonical text, so that a filter can be checked against stored bytes
/// without parsing them: equal values have equal escaped text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The tag's letter.
    pub letter: u8,
    /// First byte of the value's escaped text.
    pub start: u32,
    /// Its length.
    pub len: u32,
}

/// A verified event and its canonical text. The sender's own text is thrown away: it may carry unsigned members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signed {
    event: Event,
    json: String,
    marks: Vec<Mark>,
}

/// Why an event is a forgery or a mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forged {
    /// The id is not the hash of the event.
    Id,
    /// The signature is not the author's.
    Signature,
}

impl fmt::Display for Forged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Id => "the id is not the hash of the event",
            Self::Signature => "the signature does not verify",
        })
    }
}

impl Signed {
    /// Takes an event's word for it: for events that this house verified before and read back from its own store, and
    /// for simulated worlds.
    #[must_use]
    pub fn trusted(event: Event) -> Self {
        Canonical::of(&event).into_signed(event)
    }

    /// The event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The canonical JSON text.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The indexed tags' values inside [`json`](Self::json), each (letter, value) once.
    #[must_use]
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The escaped text of a marked value.
    #[must_use]
    pub fn marked(&self, mark: Mark) -> &str {
        &self.json[mark.start as usize..(mark.start + mark.len) as usize]
    }
}

impl std::ops::Deref for Signed {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}

/// The id that an event should have.
#[must_use]
pub fn hash(event: &Event) -> [u8; 32] {
    Canonical::of(event).hash(event)
}

/// The canonical text in three parts, two of which are also part of what is hashed. Written once for both.
struct Canonical {
    json: String,
    /// `[[…],…]`.
    tags: std::ops::Range<usize>,
    /// `"…"`.
    content: std::ops::Range<usize>,
    marks: Vec<Mark>,
}

impl Canonical {
    fn of(event: &Event) -> Self {
        let size = 400 + event.content.len() + event.tags.iter().flatten().map(|value| value.len() + 4).sum::<usize>();
        let mut json = String::with_capacity(size);
        let mut marks = Vec::new();
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
        push_tags(&mut json, &event.tags, &mut marks);
        let tags = tags_start..json.len();
        json.push_str(",\"content\":");
        let content_start = json.len();
        json::push_string(&mut json, &event.content);
        let content = content_start..json.len();
        json.push_str(",\"sig\":\"");
        hex::push(&mut json, &event.sig);
        json.push_str("\"}");
        let marks = distinct(&json, marks);
        Self { json, tags, content, marks }
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

    fn into_signed(self, event: Event) -> Signed {
        Signed { event, json: self.json, marks: self.marks }
    }
}

fn push_tags(json: &mut String, tags: &[Vec<String>], marks: &mut Vec<Mark>) {
    json.push('[');
    for (nth, tag) in tags.iter().enumerate() {
        json.push_str(if nth == 0 { "[" } else { ",[" });
        let letter = tag.first().and_then(|name| letter(name));
        for (place, value) in tag.iter().enumerate() {
            if place > 0 {
                json.push(',');
            }
            let start = json.len() + 1;
            json::push_string(json, value);
            if let (1, Some(letter)) = (place, letter) {
                marks.push(Mark { letter, start: start as u32, len: (json.len() - 1 - start) as u32 });
            }
        }
        json.push(']');
    }
    json.push(']');
}

/// Keeps each (letter, value) once, however often a stranger repeats it.
fn distinct(json: &str, marks: Vec<Mark>) -> Vec<Mark> {
    let text = |mark: &Mark| &json[mark.start as usize..(mark.start + mark.len) as usize];
    let mut seen = BTreeSet::new();
    marks.into_iter().filter(|mark| seen.insert((mark.letter, text(mark)))).collect()
}

/// How many authors' parsed keys are kept: lifting a key to the curve costs about a sixth of a check. A power of two.
const CACHED_KEYS: usize = 4_096;

/// Checks ids and signatures. Each thread that checks has its own, with its own small cache of parsed keys.
pub struct Verifier {
    secp: Secp256k1<VerifyOnly>,
    /// Direct-mapped by the key's first bytes: bounded, no eviction to think about.
    keys: Vec<Option<([u8; 32], XOnlyPublicKey)>>,
}

impl Default for Verifier {
    fn default() -> Self {
        Self::with_cache(CACHED_KEYS)
    }
}

impl Verifier {
    /// One that keeps so many parsed keys, at least one.
    #[must_use]
    pub fn with_cache(keys: usize) -> Self {
        Self { secp: Secp256k1::verification_only(), keys: vec![None; keys.max(1)] }
    }

    /// Checks an event's id, then its signature.
    pub fn check(&mut self, event: Event) -> Result<Signed, Forged> {
        let canonical = Canonical::of(&event);
        if canonical.hash(&event) != event.id.0 {
            return Err(Forged::Id);
        }
        let key = self.key(&event.pubkey.0).ok_or(Forged::Signature)?;
        let signature = Signature::from_slice(&event.sig).map_err(|_| Forged::Signature)?;
        self.secp.verify_schnorr(&signature, &event.id.0, &key).map_err(|_| Forged::Signature)?;
        Ok(canonical.into_signed(event))
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
    fn g15_1_the_serialisation_check_of_the_spec() {
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
        assert_eq!(hex::encode(&hash(&event)), "eeb65c9bea591f10de390e1bcac12f30042284c1aeca1c747b83f7009529557d");
    }

    #[test]
    fn an_independent_signer_agrees_and_any_change_is_seen() {
        let text = sample();
        let event = Event::parse(&text).expect("an event");
        let signed = Verifier::default().check(event.clone()).expect("verifies");
        assert_eq!(nostr::event::Event::from_json(signed.json()).expect("their parser reads ours").as_json(), text);
        assert_eq!(signed.marks().len(), 1, "equal values are marked once");
        assert_eq!(signed.marked(signed.marks()[0]), "x\\ty");

        let mut verifier = Verifier::default();
        let mut changed = event.clone();
        changed.content.push('!');
        assert_eq!(verifier.check(changed), Err(Forged::Id));
        let mut changed = event.clone();
        changed.sig[10] ^= 1;
        assert_eq!(verifier.check(changed), Err(Forged::Signature));
        let mut changed = event;
        changed.pubkey = PublicKey([0xff; 32]);
        changed.id = EventId(hash(&changed));
        assert_eq!(verifier.check(changed), Err(Forged::Signature), "no point on the curve");
    }
}

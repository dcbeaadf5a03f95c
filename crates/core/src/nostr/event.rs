//! Nostr events as received, before verification, and the order between versions of replaceable events.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use serde::Deserialize;

use super::keys::PublicKey;
use super::{hex, kinds};
use crate::time::Timestamp;

/// The id of an event: the SHA-256 hash of its canonical serialisation.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId(pub [u8; 32]);

impl Ord for EventId {
    fn cmp(&self, other: &Self) -> Ordering {
        // Two ids nearly always differ in their first eight bytes, which one instruction compares.
        let first = |id: &Self| id.0.first_chunk().copied().map(u64::from_be_bytes);
        first(self).cmp(&first(other)).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for EventId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl EventId {
    /// Parses 64 lower-case hex digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        hex::decode(text).map(Self)
    }

    /// Parses the canonical `note1…` form (NIP-19).
    #[must_use]
    pub fn from_note(text: &str) -> Option<Self> {
        super::keys::decode_bech32("note", text).map(Self)
    }

    /// Parses the `nevent1…` form (NIP-19). Its relay hints and author are ignored.
    #[must_use]
    pub fn from_nevent(text: &str) -> Option<Self> {
        let fields = super::keys::decode_tlv("nevent", text)?;
        fields.get(&0)?.as_slice().try_into().ok().map(Self)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..4]))
    }
}

/// The time and id of an event, which decide between two versions of a replaceable event. See [`supersedes`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventVersion {
    /// The later version wins.
    pub created_at: Timestamp,
    /// Of two versions of the same second the lower id wins.
    pub id: EventId,
}

/// Returns whether version `a` replaces version `b` (NIP-01). This is the only comparison of versions in graspd: the
/// store, purgatory, the choice of the authoritative state and push matching all use it.
#[must_use]
pub fn supersedes(a: EventVersion, b: EventVersion) -> bool {
    (a.created_at, std::cmp::Reverse(a.id)) > (b.created_at, std::cmp::Reverse(b.id))
}

/// An event as received, with unverified id and signature. [`SignedEvent`](super::SignedEvent) is the verified form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Id as received.
    pub id: EventId,
    /// Author as received.
    pub pubkey: PublicKey,
    /// Creation time stated by the author.
    pub created_at: Timestamp,
    /// Kind.
    pub kind: u16,
    /// Tags.
    pub tags: Vec<Vec<String>>,
    /// Content.
    pub content: String,
    /// Signature as received.
    pub sig: [u8; 64],
}

/// The reason why a text could not be parsed as an event.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventParseError {
    /// The text is not JSON, or a member is missing or has the wrong type. Contains the message of the JSON parser.
    #[error("{0}")]
    Json(String),
    /// The named member is not lower-case hex of the right length.
    #[error("`{0}` is not lower-case hex of the right length")]
    Hex(&'static str),
}

#[derive(Deserialize)]
struct EventJson<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    pubkey: Cow<'a, str>,
    created_at: u64,
    kind: u16,
    tags: Vec<Vec<String>>,
    content: String,
    #[serde(borrow)]
    sig: Cow<'a, str>,
}

impl Event {
    /// Parses an event from its JSON text. Unknown members are dropped, because they are not signed.
    pub fn parse(text: &str) -> Result<Self, EventParseError> {
        if !is_object(text) {
            return Err(EventParseError::Json("an event must be a JSON object".to_owned()));
        }
        let json: EventJson<'_> =
            serde_json::from_str(text).map_err(|error| EventParseError::Json(describe_json_error(&error)))?;
        Ok(Self {
            id: EventId::from_hex(&json.id).ok_or(EventParseError::Hex("id"))?,
            pubkey: PublicKey::from_hex(&json.pubkey).ok_or(EventParseError::Hex("pubkey"))?,
            created_at: Timestamp(json.created_at),
            kind: json.kind,
            tags: json.tags,
            content: json.content,
            sig: hex::decode(&json.sig).ok_or(EventParseError::Hex("sig"))?,
        })
    }

    /// Returns the `id` member of a text that is not a valid event, so that the `OK` message can name it.
    #[must_use]
    pub fn claimed_id(text: &str) -> Option<EventId> {
        #[derive(Deserialize)]
        struct ClaimedId<'a> {
            #[serde(borrow)]
            id: Cow<'a, str>,
        }
        serde_json::from_str::<ClaimedId<'_>>(text)
            .ok()
            .filter(|_| is_object(text))
            .and_then(|claim| EventId::from_hex(&claim.id))
    }

    /// Returns the version of this event, for comparison with [`supersedes`].
    #[must_use]
    pub fn version(&self) -> EventVersion {
        EventVersion { created_at: self.created_at, id: self.id }
    }

    /// Returns the first value of the first tag with this name.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.len() > 1 && tag[0] == name).map(|tag| tag[1].as_str())
    }

    /// Iterates over the first value of every tag with this name.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.tags
            .iter()
            .filter(move |tag| tag.first().is_some_and(|first| first == name))
            .filter_map(|tag| Some(tag.get(1)?.as_str()))
    }

    /// Iterates over all values of every tag with this name.
    pub fn all_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.tags
            .iter()
            .filter(move |tag| tag.first().is_some_and(|first| first == name))
            .flat_map(|tag| tag[1..].iter().map(String::as_str))
    }

    /// Iterates over the single-letter tags, which are indexed: letter and first value.
    pub fn indexed_tags(&self) -> impl Iterator<Item = (u8, &str)> {
        self.tags.iter().filter_map(|tag| Some((tag_letter(tag.first()?)?, tag.get(1)?.as_str())))
    }

    /// Returns the coordinate `(kind, author, d)` of a replaceable or addressable event, `None` for other kinds.
    #[must_use]
    pub fn coordinate(&self) -> Option<Coordinate> {
        let d = match kinds::class(self.kind) {
            kinds::KindClass::Replaceable => String::new(),
            kinds::KindClass::Addressable => self.tag("d").unwrap_or_default().to_owned(),
            kinds::KindClass::Regular | kinds::KindClass::Ephemeral => return None,
        };
        Some(Coordinate { kind: self.kind, pubkey: self.pubkey, d })
    }

    /// Returns the expiration time (NIP-40). A value that is not a number is ignored.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.tag("expiration")?.parse().ok().map(Timestamp)
    }

    /// Returns whether only the author may publish the event (NIP-70).
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.tags.iter().any(|tag| tag.first().is_some_and(|name| name == "-"))
    }
}

/// Returns whether a JSON text is an object. Needed because serde also accepts an array of the right values for a
/// struct.
fn is_object(text: &str) -> bool {
    text.trim_ascii_start().starts_with('{')
}

/// Returns the message of a JSON parser without the position, limited to 120 characters because it may quote input.
pub(crate) fn describe_json_error(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    text.chars().take(120).collect()
}

/// Returns the letter of a single-letter tag name.
#[must_use]
pub fn tag_letter(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(*letter),
        _ => None,
    }
}

/// The coordinate of a replaceable or addressable event, written `kind:pubkey:d`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Coordinate {
    /// Kind.
    pub kind: u16,
    /// Author.
    pub pubkey: PublicKey,
    /// Value of the `d` tag. Empty for replaceable kinds.
    pub d: String,
}

impl Coordinate {
    /// Parses `kind:pubkey:d`. The `d` part may contain colons. For replaceable kinds `kind:pubkey` is accepted too.
    /// Returns `None` for kinds that are neither replaceable nor addressable.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let kind: u16 = parts.next().filter(|kind| kind.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
        let pubkey = PublicKey::from_hex(parts.next()?)?;
        let d = match (kinds::class(kind), parts.next()) {
            (kinds::KindClass::Addressable, Some(d)) => d.to_owned(),
            (kinds::KindClass::Replaceable, None | Some("")) => String::new(),
            _ => return None,
        };
        Some(Self { kind, pubkey, d })
    }

    /// Parses the `naddr1…` form (NIP-19). Its relay hints are ignored.
    #[must_use]
    pub fn from_naddr(text: &str) -> Option<Self> {
        let fields = super::keys::decode_tlv("naddr", text)?;
        let kind = u32::from_be_bytes(fields.get(&3)?.as_slice().try_into().ok()?);
        let pubkey = PublicKey(fields.get(&2)?.as_slice().try_into().ok()?);
        let d = String::from_utf8(fields.get(&0)?.clone()).ok()?;
        Some(Self { kind: u16::try_from(kind).ok()?, pubkey, d })
    }
}

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.kind, self.pubkey, self.d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_event_wins_and_lower_id_breaks_ties() {
        let version = |created_at, id| EventVersion { created_at: Timestamp(created_at), id: EventId([id; 32]) };
        assert!(supersedes(version(51, 0xff), version(50, 0)));
        assert!(!supersedes(version(50, 0), version(51, 0xff)));
        assert!(supersedes(version(50, 0x0a), version(50, 0x0f)));
        assert!(!supersedes(version(50, 0xff), version(50, 0x0f)));
        assert!(!supersedes(version(50, 1), version(50, 1)));
    }

    #[test]
    fn coordinates_split_on_the_first_two_colons_only() {
        let key = "11".repeat(32);
        let parse = |text: String| Coordinate::parse(&text);
        assert_eq!(parse(format!("30617:{key}:a:b")).expect("valid").d, "a:b");
        assert_eq!(parse(format!("30617:{key}:")).expect("valid").d, "");
        assert_eq!(parse(format!("10317:{key}")).expect("valid").d, "");
        assert_eq!(parse(format!("10317:{key}:")).expect("valid").d, "");
        for bad in [
            format!("30617:{key}"),
            format!("1:{key}:x"),
            format!("+30617:{key}:x"),
            format!("70000:{key}:x"),
            "30617:ab:x".into(),
            format!("10317:{key}:x"),
        ] {
            assert_eq!(parse(bad.clone()), None, "{bad}");
        }
    }

    #[test]
    fn unknown_members_are_dropped_and_invalid_members_are_named() {
        let good = format!(
            r#"{{"id":"{}","pubkey":"{}","created_at":1,"kind":1,"tags":[["e","x"]],"content":"","sig":"{}","evil":[1]}}"#,
            "00".repeat(32),
            "11".repeat(32),
            "22".repeat(64)
        );
        let event = Event::parse(&good).expect("valid shape");
        assert_eq!(event.tag("e"), Some("x"));
        for (bad, why) in [
            (good.replace("\"kind\":1", "\"kind\":65536"), "invalid value: integer `65536`, expected u16"),
            (good.replace("\"kind\":1,", ""), "missing field `kind`"),
            (good.replace("\"created_at\":1", "\"created_at\":-1"), "invalid value: integer `-1`, expected u64"),
            (good.replace("[\"e\",\"x\"]", "[\"e\",1]"), "invalid type: integer `1`, expected a string"),
            (good.replace("\"kind\":1", "\"kind\":1,\"kind\":2"), "duplicate field `kind`"),
            (good.replace(&"22".repeat(64), "22"), "`sig` is not lower-case hex of the right length"),
        ] {
            assert_eq!(Event::parse(&bad).expect_err("must fail").to_string(), why);
            assert_eq!(Event::claimed_id(&bad), Some(event.id));
        }
        assert_eq!(Event::claimed_id("[]"), None);
    }
}

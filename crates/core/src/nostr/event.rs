//! A nostr event, as it was claimed: not yet verified.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;

use super::keys::PublicKey;
use super::{hex, kinds};
use crate::time::Timestamp;

/// The hash that names an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub [u8; 32]);

impl EventId {
    /// Reads 64 lower-case hex digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        hex::decode(text).map(Self)
    }

    /// Reads the canonical `note1…` form (NIP-19).
    #[must_use]
    pub fn from_note(text: &str) -> Option<Self> {
        super::keys::from_bech32("note", text).map(Self)
    }

    /// Reads the `nevent1…` form (NIP-19): where it may be found and whose it is are left aside.
    #[must_use]
    pub fn from_nevent(text: &str) -> Option<Self> {
        let fields = super::keys::fields("nevent", text)?;
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

/// What decides between two versions of a replaceable thing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Stamp {
    /// The later one wins;
    pub created_at: Timestamp,
    /// in the same second, the lower id.
    pub id: EventId,
}

/// Whether version `a` wins over version `b` (NIP-01). This is the only comparison of versions in the house: the store,
/// purgatory, the choice of the authoritative state and push matching all use it.
#[must_use]
pub fn supersedes(a: Stamp, b: Stamp) -> bool {
    (a.created_at, std::cmp::Reverse(a.id)) > (b.created_at, std::cmp::Reverse(b.id))
}

/// An event as it was sent. [`Signed`](super::Signed) is one whose id and signature are right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The claimed hash.
    pub id: EventId,
    /// The claimed author.
    pub pubkey: PublicKey,
    /// When its author says it was made.
    pub created_at: Timestamp,
    /// Its kind.
    pub kind: u16,
    /// Its tags.
    pub tags: Vec<Vec<String>>,
    /// Its content.
    pub content: String,
    /// The claimed signature.
    pub sig: [u8; 64],
}

/// Why a text is no event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Not JSON, or a member is missing or of the wrong type; the parser's own words.
    Shape(String),
    /// Not lower-case hex of the right length.
    Hex(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(why) => f.write_str(why),
            Self::Hex(member) => write!(f, "`{member}` is not lower-case hex of the right length"),
        }
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
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
    /// Reads an event from its JSON text. Unknown members are dropped: they are not signed.
    pub fn parse(text: &str) -> Result<Self, Malformed> {
        if !is_object(text) {
            return Err(Malformed::Shape("an event is an object".to_owned()));
        }
        let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| Malformed::Shape(explain(&error)))?;
        Ok(Self {
            id: EventId::from_hex(&wire.id).ok_or(Malformed::Hex("id"))?,
            pubkey: PublicKey::from_hex(&wire.pubkey).ok_or(Malformed::Hex("pubkey"))?,
            created_at: Timestamp(wire.created_at),
            kind: wire.kind,
            tags: wire.tags,
            content: wire.content,
            sig: hex::decode(&wire.sig).ok_or(Malformed::Hex("sig"))?,
        })
    }

    /// The id that a text which is no event at least claims, so that its refusal can be addressed.
    #[must_use]
    pub fn claimed_id(text: &str) -> Option<EventId> {
        #[derive(Deserialize)]
        struct Claim<'a> {
            #[serde(borrow)]
            id: Cow<'a, str>,
        }
        serde_json::from_str::<Claim<'_>>(text)
            .ok()
            .filter(|_| is_object(text))
            .and_then(|claim| EventId::from_hex(&claim.id))
    }

    /// What decides between this event and another version of it.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        Stamp { created_at: self.created_at, id: self.id }
    }

    /// The first value of the first tag with this name.
    #[must_use]
    pub fn tag(&self, name: &str) -> Option<&str> {
        self.tags.iter().find(|tag| tag.len() > 1 && tag[0] == name).map(|tag| tag[1].as_str())
    }

    /// The first value of every tag with this name.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.tags
            .iter()
            .filter(move |tag| tag.first().is_some_and(|first| first == name))
            .filter_map(|tag| Some(tag.get(1)?.as_str()))
    }

    /// All values of every tag with this name, one after the other.
    pub fn all_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.tags
            .iter()
            .filter(move |tag| tag.first().is_some_and(|first| first == name))
            .flat_map(|tag| tag[1..].iter().map(String::as_str))
    }

    /// The single-letter tags that are indexed: letter and first value.
    pub fn indexed_tags(&self) -> impl Iterator<Item = (u8, &str)> {
        self.tags.iter().filter_map(|tag| Some((letter(tag.first()?)?, tag.get(1)?.as_str())))
    }

    /// Where this event stands among its versions: `(kind, author, d)` if it is replaceable or addressable.
    #[must_use]
    pub fn coordinate(&self) -> Option<Coordinate> {
        let d = match kinds::class(self.kind) {
            kinds::Class::Replaceable => String::new(),
            kinds::Class::Addressable => self.tag("d").unwrap_or_default().to_owned(),
            kinds::Class::Regular | kinds::Class::Ephemeral => return None,
        };
        Some(Coordinate { kind: self.kind, pubkey: self.pubkey, d })
    }

    /// When the event asks to be forgotten (NIP-40). A value that is no number means nothing.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.tag("expiration")?.parse().ok().map(Timestamp)
    }

    /// Whether the event may only be published by its author (NIP-70).
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.tags.iter().any(|tag| tag.first().is_some_and(|name| name == "-"))
    }
}

/// Whether a text can only be an object: serde takes an array of the right values for a struct, too.
fn is_object(text: &str) -> bool {
    text.trim_ascii_start().starts_with('{')
}

/// A parser's complaint without its position and without more of a stranger's text than is useful.
pub(crate) fn explain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    text.chars().take(120).collect()
}

/// The letter of a single-letter tag name.
#[must_use]
pub fn letter(name: &str) -> Option<u8> {
    match name.as_bytes() {
        [letter] if letter.is_ascii_alphabetic() => Some(*letter),
        _ => None,
    }
}

/// The address of a replaceable or addressable event.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Coordinate {
    /// Kind.
    pub kind: u16,
    /// Author.
    pub pubkey: PublicKey,
    /// Identifier; empty for replaceable kinds.
    pub d: String,
}

impl Coordinate {
    /// Reads `kind:pubkey:d`. The identifier may itself contain colons; for replaceable kinds `kind:pubkey` is
    /// tolerated. Coordinates of kinds that have none are refused.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let kind: u16 = parts.next().filter(|kind| kind.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
        let pubkey = PublicKey::from_hex(parts.next()?)?;
        let d = match (kinds::class(kind), parts.next()) {
            (kinds::Class::Addressable, Some(d)) => d.to_owned(),
            (kinds::Class::Replaceable, None | Some("")) => String::new(),
            _ => return None,
        };
        Some(Self { kind, pubkey, d })
    }

    /// Reads the `naddr1…` form (NIP-19): where it may be found is left aside.
    #[must_use]
    pub fn from_naddr(text: &str) -> Option<Self> {
        let fields = super::keys::fields("naddr", text)?;
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
    fn g15_6_later_wins_then_the_lower_id() {
        let stamp = |created_at, id| Stamp { created_at: Timestamp(created_at), id: EventId([id; 32]) };
        assert!(supersedes(stamp(51, 0xff), stamp(50, 0)));
        assert!(!supersedes(stamp(50, 0), stamp(51, 0xff)));
        assert!(supersedes(stamp(50, 0x0a), stamp(50, 0x0f)));
        assert!(!supersedes(stamp(50, 0xff), stamp(50, 0x0f)));
        assert!(!supersedes(stamp(50, 1), stamp(50, 1)));
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
    fn unknown_members_are_dropped_and_bad_ones_named() {
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

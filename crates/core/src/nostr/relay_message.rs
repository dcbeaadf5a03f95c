//! Messages between client and relay (NIP-01, 42, 67 and 77), on the side of the client: parses messages of relays and
//! writes messages of a client. Called by the relay connections of sync.

use std::sync::Arc;

use serde::Deserialize;

use super::event::{Event, EventId};
use super::filter::Filter;
use super::message::{parse_payload, split_array};
use super::rejection::Rejection;
use super::signed_event::SignedEvent;
use super::{hex, kinds, signed_event};
use crate::limits;

/// Id of one request within a session. Never reused; subscriptions and negentropy share the numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionId(pub u64);

/// A message from a relay to us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IncomingMessage {
    /// An event whose id is the hash of its content. Its signature has not been verified.
    Event(SubscriptionId, Arc<Event>, EventPresence),
    /// End of stored events, with the hint of NIP-67 if the relay sends one.
    Eose(SubscriptionId, Option<EoseHint>),
    /// The relay closed a subscription.
    Closed(SubscriptionId, String),
    /// A message for people.
    Notice(String),
    /// Answer to a published event; only the authentication event is published.
    Ok(bool, String),
    /// The next message of a negentropy exchange.
    NegMsg(SubscriptionId, Vec<u8>),
    /// The relay ended a negentropy exchange, with its maximum number of records if it states one.
    NegErr(SubscriptionId, String, Option<u64>),
    /// An authentication challenge (NIP-42).
    Auth(String),
    /// A pong or an unknown message. It shows that the relay is alive.
    Alive,
    /// Text that is not a message.
    Invalid,
    /// Text that is not an event, or an event whose id is not its hash, with the id that it claims.
    InvalidEvent(SubscriptionId, Option<EventId>),
    /// An event that is larger than this server accepts, and why it is rejected. Its id is its hash. It has no content
    /// and only those of its tags that reference something.
    TooLarge(SubscriptionId, Arc<Event>, Rejection),
}

/// What an EOSE says about further stored events (NIP-67).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EoseHint {
    /// All stored events were sent.
    Complete,
    /// There are more stored events.
    More,
}

/// Whether an event was known here when it arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventPresence {
    /// It is not known.
    New,
    /// It is served.
    Known,
    /// It is held in purgatory.
    Held,
}

/// A message from us to a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutgoingMessage {
    /// Opens a subscription.
    Req(SubscriptionId, Vec<Filter>),
    /// Closes a subscription.
    Close(SubscriptionId),
    /// Starts a negentropy exchange.
    NegOpen(SubscriptionId, Filter, Vec<u8>),
    /// Continues a negentropy exchange.
    NegMsg(SubscriptionId, Vec<u8>),
    /// Ends a negentropy exchange.
    NegClose(SubscriptionId),
    /// Answers this challenge with the key of the service (NIP-42).
    Auth(String),
}

/// Prefix of our subscription ids, followed by a number. Short, because every received `EVENT` message contains it.
const PREFIX: char = 'g';

/// Returns the subscription id as it is sent.
#[must_use]
pub fn subscription_name(sub: SubscriptionId) -> String {
    format!("{PREFIX}{}", sub.0)
}

/// Parses a message of a relay. A text that is not expected is [`IncomingMessage::Alive`] or
/// [`IncomingMessage::Invalid`].
///
/// Events are parsed, their size is checked, and their id is compared with their hash. They are returned as
/// [`EventPresence::New`]; the caller looks them up in the store. `max_event_bytes` is the size limit of ordinary
/// events.
#[must_use]
pub fn parse(text: &str, max_event_bytes: usize) -> IncomingMessage {
    let Ok(parts) = split_array(text) else { return IncomingMessage::Invalid };
    let Some((verb, rest)) = parts.split_first() else { return IncomingMessage::Invalid };
    let Some(verb) = parse_string(verb) else { return IncomingMessage::Invalid };
    parse_verb(&verb, rest, max_event_bytes).unwrap_or(IncomingMessage::Invalid)
}

/// Parses the elements of a message. Returns `None` if the elements of a known message type are invalid. Additional
/// elements at the end are ignored, because protocol extensions add them there.
fn parse_verb(verb: &str, rest: &[&str], max_event_bytes: usize) -> Option<IncomingMessage> {
    Some(match (verb, rest) {
        ("EVENT", [sub, event, ..]) => match parse_subscription(sub)? {
            Ok(sub) => parse_event(sub, event, max_event_bytes),
            Err(UnknownSubscription) => IncomingMessage::Alive,
        },
        ("EOSE", [sub, more @ ..]) => match parse_subscription(sub)? {
            Ok(sub) => IncomingMessage::Eose(sub, more.first().and_then(|more| parse_eose_hint(more))),
            Err(UnknownSubscription) => IncomingMessage::Alive,
        },
        // A rejection of an unknown subscription may still be a rate limit, so it is treated like a notice.
        ("CLOSED", [sub, reason @ ..]) => {
            let reason = reason.first().map_or(Some(String::new()), |reason| parse_clipped(reason))?;
            match parse_subscription(sub)? {
                Ok(sub) => IncomingMessage::Closed(sub, reason),
                Err(UnknownSubscription) => IncomingMessage::Notice(reason),
            }
        }
        ("NEG-ERR", [sub, reason, limit @ ..]) => {
            let reason = parse_clipped(reason)?;
            match parse_subscription(sub)? {
                Ok(sub) => IncomingMessage::NegErr(sub, reason, limit.first().and_then(|limit| limit.parse().ok())),
                Err(UnknownSubscription) => IncomingMessage::Notice(reason),
            }
        }
        ("NEG-MSG", [sub, message, ..]) => match parse_subscription(sub)? {
            Ok(sub) => IncomingMessage::NegMsg(sub, parse_payload(message).ok()?),
            Err(UnknownSubscription) => IncomingMessage::Alive,
        },
        ("NOTICE", [text, ..]) => IncomingMessage::Notice(parse_clipped(text)?),
        ("OK", [_id, accepted, reason @ ..]) => {
            let reason = reason.first().map_or(Some(String::new()), |reason| parse_clipped(reason))?;
            IncomingMessage::Ok(serde_json::from_str(accepted).ok()?, reason)
        }
        // The challenge is signed as received, so it cannot be shortened.
        ("AUTH", [challenge, ..]) => match parse_string(challenge)? {
            challenge if challenge.len() <= limits::MAX_NOTICE_BYTES => IncomingMessage::Auth(challenge),
            _ => return None,
        },
        ("EVENT" | "EOSE" | "CLOSED" | "NEG-ERR" | "NEG-MSG" | "NOTICE" | "OK" | "AUTH", _) => return None,
        _ => IncomingMessage::Alive,
    })
}

fn parse_event(sub: SubscriptionId, text: &str, max_event_bytes: usize) -> IncomingMessage {
    let Ok(event) = Event::parse(text) else {
        return IncomingMessage::InvalidEvent(sub, Event::claimed_id(text));
    };
    // Also of a large event: otherwise a relay could have the id of another event rejected.
    if signed_event::compute_id(&event) != event.id.0 {
        return IncomingMessage::InvalidEvent(sub, Some(event.id));
    }
    match size_rejection(&event, text.len(), max_event_bytes) {
        Some(rejection) => IncomingMessage::TooLarge(sub, Arc::new(event_references(event)), rejection),
        None => IncomingMessage::Event(sub, Arc::new(event), EventPresence::New),
    }
}

/// Returns why an event is above the limits of the policy, if it is. The canonical text is never longer than the
/// received one, which has `received_bytes`.
fn size_rejection(event: &Event, received_bytes: usize, max_event_bytes: usize) -> Option<Rejection> {
    let (limit, max_tags) = match event.kind {
        kinds::STATE => (limits::MAX_STATE_EVENT_BYTES.max(max_event_bytes), limits::MAX_STATE_TAGS),
        _ => (max_event_bytes, limits::MAX_EVENT_TAGS),
    };
    if event.tags.len() > max_tags {
        return Some(Rejection::TooManyTags(max_tags));
    }
    let canonical_bytes = || SignedEvent::from_trusted(event.clone()).json().len();
    let bytes = if received_bytes <= limit { received_bytes } else { canonical_bytes() };
    (bytes > limit).then_some(Rejection::TooLarge { bytes, limit })
}

/// Returns an event without content and signature, and with only the tags that reference something, at most
/// [`limits::MAX_OVERSIZED_EVENT_REFERENCES`]. That is enough to remember it as rejected, and small.
fn event_references(event: Event) -> Event {
    let is_reference = |tag: &Vec<String>| match tag.as_slice() {
        [name, value, ..] => {
            matches!(name.as_str(), "d" | "a" | "A" | "e" | "E" | "q")
                && value.len() <= 2 * limits::MAX_IDENTIFIER_BYTES
        }
        _ => false,
    };
    let references = event.tags.into_iter().filter(is_reference).take(limits::MAX_OVERSIZED_EVENT_REFERENCES);
    let tags = references.map(|tag| tag.into_iter().take(2).collect()).collect();
    Event { tags, content: String::new(), sig: [0; 64], ..event }
}

/// The subscription id of a message is not one of ours.
struct UnknownSubscription;

/// Parses a subscription id. Returns `None` if the element is not a string.
fn parse_subscription(text: &str) -> Option<Result<SubscriptionId, UnknownSubscription>> {
    let id = parse_string(text)?;
    let digits = id.strip_prefix(PREFIX).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    // Leading zeroes are not ours: each number has exactly one id.
    let number = digits.filter(|digits| *digits == "0" || !digits.starts_with('0')).and_then(|n| n.parse().ok());
    Some(number.map(SubscriptionId).ok_or(UnknownSubscription))
}

/// Parses `["finish"]` or `["more"]` (NIP-67). Other hints are ignored.
fn parse_eose_hint(text: &str) -> Option<EoseHint> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Hints {
        Many(Vec<String>),
        One(String),
    }
    let hints = match serde_json::from_str(text).ok()? {
        Hints::Many(hints) => hints,
        Hints::One(hint) => vec![hint],
    };
    hints.iter().find_map(|hint| match hint.as_str() {
        "finish" => Some(EoseHint::Complete),
        "more" => Some(EoseHint::More),
        _ => None,
    })
}

fn parse_string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// Parses a string and shortens it to [`limits::MAX_NOTICE_BYTES`].
fn parse_clipped(text: &str) -> Option<String> {
    let mut text = parse_string(text)?;
    let mut end = text.len().min(limits::MAX_NOTICE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.shrink_to_fit();
    Some(text)
}

/// A message of a client, encoded as far as this is possible without a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EncodedMessage<'a> {
    /// The complete message.
    Text(String),
    /// A challenge. The caller signs an authentication event and encodes it with [`encode_auth`].
    Sign(&'a str),
}

/// Encodes a message of a client.
#[must_use]
pub fn encode(outgoing: &OutgoingMessage) -> EncodedMessage<'_> {
    EncodedMessage::Text(match outgoing {
        OutgoingMessage::Req(sub, filters) => {
            let mut text = format!("[\"REQ\",\"{}\"", subscription_name(*sub));
            for filter in filters {
                text.push(',');
                text.push_str(&filter.to_json());
            }
            text.push(']');
            text
        }
        OutgoingMessage::Close(sub) => format!("[\"CLOSE\",\"{}\"]", subscription_name(*sub)),
        OutgoingMessage::NegOpen(sub, filter, message) => {
            let mut text = format!("[\"NEG-OPEN\",\"{}\",{},\"", subscription_name(*sub), filter.to_json());
            push_payload(&mut text, message);
            text
        }
        OutgoingMessage::NegMsg(sub, message) => {
            let mut text = format!("[\"NEG-MSG\",\"{}\",\"", subscription_name(*sub));
            push_payload(&mut text, message);
            text
        }
        OutgoingMessage::NegClose(sub) => format!("[\"NEG-CLOSE\",\"{}\"]", subscription_name(*sub)),
        OutgoingMessage::Auth(challenge) => return EncodedMessage::Sign(challenge),
    })
}

/// Returns `["AUTH", event]`, the answer to a challenge. `event` is the JSON text of the signed event.
#[must_use]
pub fn encode_auth(event: &str) -> String {
    format!("[\"AUTH\",{event}]")
}

fn push_payload(text: &mut String, message: &[u8]) {
    text.reserve(message.len() * 2 + 2);
    hex::push(text, message);
    text.push_str("\"]");
}

#[cfg(test)]
mod tests {
    use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag};

    use super::super::message;
    use super::super::message::ClientMessage;
    use super::*;
    use crate::nostr::Filter;

    const MAX_EVENT_BYTES: usize = 64 * 1024;

    fn event(kind: u16, content: &str) -> String {
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("a key");
        EventBuilder::new(Kind::Custom(kind), content)
            .tags([Tag::parse(["e", "x"]).expect("a tag")])
            .finalize(&keys)
            .expect("signs")
            .as_json()
    }

    fn parsed(text: &str) -> IncomingMessage {
        parse(text, MAX_EVENT_BYTES)
    }

    #[test]
    fn relay_messages_are_parsed() {
        let sub = SubscriptionId(17);
        for (text, expected) in [
            (r#"["EOSE","g17"]"#, IncomingMessage::Eose(sub, None)),
            (r#"["EOSE","g17",["finish"]]"#, IncomingMessage::Eose(sub, Some(EoseHint::Complete))),
            (r#"["EOSE","g17",["x","more"]]"#, IncomingMessage::Eose(sub, Some(EoseHint::More))),
            (r#"["EOSE","g17","finish"]"#, IncomingMessage::Eose(sub, Some(EoseHint::Complete))),
            (r#"["EOSE","g17",{"a":1},2]"#, IncomingMessage::Eose(sub, None)),
            (r#"["EOSE","g0"]"#, IncomingMessage::Eose(SubscriptionId(0), None)),
            (r#" ["EOSE" , "g17" ] "#, IncomingMessage::Eose(sub, None)),
            (r#"["CLOSED","g17","blocked: no"]"#, IncomingMessage::Closed(sub, "blocked: no".into())),
            (r#"["CLOSED","g17"]"#, IncomingMessage::Closed(sub, String::new())),
            (r#"["CLOSED","","rate-limited: slow"]"#, IncomingMessage::Notice("rate-limited: slow".into())),
            (r#"["NOTICE","hello"]"#, IncomingMessage::Notice("hello".into())),
            (r#"["OK","ab",true,""]"#, IncomingMessage::Ok(true, String::new())),
            (r#"["OK","ab",false,"restricted: no"]"#, IncomingMessage::Ok(false, "restricted: no".into())),
            (r#"["OK","ab",true]"#, IncomingMessage::Ok(true, String::new())),
            (r#"["NEG-MSG","g17","61Ff"]"#, IncomingMessage::NegMsg(sub, vec![0x61, 0xff])),
            (r#"["NEG-ERR","g17","closed: x"]"#, IncomingMessage::NegErr(sub, "closed: x".into(), None)),
            (r#"["NEG-ERR","g17","blocked: x",500]"#, IncomingMessage::NegErr(sub, "blocked: x".into(), Some(500))),
            (r#"["NEG-ERR","g17","blocked: x","500"]"#, IncomingMessage::NegErr(sub, "blocked: x".into(), None)),
            (r#"["NEG-ERR","x","blocked: x"]"#, IncomingMessage::Notice("blocked: x".into())),
            (r#"["AUTH","challenge"]"#, IncomingMessage::Auth("challenge".into())),
        ] {
            assert_eq!(parsed(text), expected, "{text}");
        }
    }

    #[test]
    fn unknown_messages_are_ignored_and_malformed_messages_are_invalid() {
        let own = event(1, "");
        for text in [
            r#"["COUNT","g1",{"count":1}]"#.to_owned(),
            r#"["HELLO"]"#.to_owned(),
            r#"["EOSE","17"]"#.to_owned(),
            r#"["EOSE","g"]"#.to_owned(),
            r#"["EOSE","g017"]"#.to_owned(),
            r#"["EOSE","g+1"]"#.to_owned(),
            r#"["EOSE","g99999999999999999999"]"#.to_owned(),
            format!(r#"["EVENT","x",{own}]"#),
            r#"["NEG-MSG","x","zz"]"#.to_owned(),
        ] {
            assert_eq!(parsed(&text), IncomingMessage::Alive, "{text}");
        }
        for text in [
            String::new(),
            "hello".to_owned(),
            "{}".to_owned(),
            "[]".to_owned(),
            "[1]".to_owned(),
            r#"["EOSE","g1""#.to_owned(),
            r#"["EOSE"]"#.to_owned(),
            r#"["EOSE",1]"#.to_owned(),
            r#"["NOTICE",{}]"#.to_owned(),
            r#"["OK","ab","true",""]"#.to_owned(),
            r#"["NEG-MSG","g1","6"]"#.to_owned(),
            r#"["NEG-MSG","g1"]"#.to_owned(),
            r#"["EVENT","g1"]"#.to_owned(),
            format!(r#"["AUTH","{}"]"#, "x".repeat(limits::MAX_NOTICE_BYTES + 1)),
        ] {
            assert_eq!(parsed(&text), IncomingMessage::Invalid, "{text}");
        }
    }

    #[test]
    fn events_are_checked_for_hash_and_size() {
        let text = event(1, "hi");
        let expected = Arc::new(Event::parse(&text).expect("an event"));
        let good = IncomingMessage::Event(SubscriptionId(1), expected, EventPresence::New);
        assert_eq!(parsed(&format!(r#"["EVENT","g1",{text}]"#)), good);
        let padded = format!(r#"["EVENT","g1",{} {}]"#, &text[..1], " ".repeat(MAX_EVENT_BYTES) + &text[1..]);
        assert_eq!(parsed(&padded), good, "spaces do not count towards the event size");

        let state = event(kinds::STATE, &"x".repeat(MAX_EVENT_BYTES));
        assert!(
            matches!(parsed(&format!(r#"["EVENT","g1",{state}]"#)), IncomingMessage::Event(..)),
            "states may be larger"
        );
    }

    /// A relay counts such an event as part of its answer, and offers its id in reconciliations.
    #[test]
    fn event_above_the_size_limit_keeps_its_id_time_and_references() {
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("a key");
        let sign = |kind: u16, tags: Vec<Vec<String>>, content: &str| {
            let tags = tags.into_iter().map(|tag| Tag::parse(tag).expect("a tag"));
            EventBuilder::new(Kind::Custom(kind), content).tags(tags).finalize(&keys).expect("signs").as_json()
        };
        let tag = |name: &str, value: &str| vec![name.to_owned(), value.to_owned(), "more".to_owned()];
        let content = "x".repeat(MAX_EVENT_BYTES);
        let text = sign(1, vec![tag("e", "id"), tag("t", "topic"), tag("A", &"y".repeat(3_000))], &content);
        let original = Event::parse(&text).expect("an event");
        let IncomingMessage::TooLarge(sub, event, rejection) = parsed(&format!(r#"["EVENT","g1",{text}]"#)) else {
            panic!("not too large")
        };
        assert_eq!((sub, event.id, event.created_at), (SubscriptionId(1), original.id, original.created_at));
        assert_eq!((event.tags.clone(), event.content.len()), (vec![vec!["e".to_owned(), "id".to_owned()]], 0));
        let limit = MAX_EVENT_BYTES;
        assert!(matches!(rejection, Rejection::TooLarge { bytes, limit: stated } if bytes > limit && stated == limit));

        let many = sign(1, vec![tag("e", "id"); limits::MAX_EVENT_TAGS + 1], "");
        let IncomingMessage::TooLarge(_, event, rejection) = parsed(&format!(r#"["EVENT","g1",{many}]"#)) else {
            panic!("not too many tags")
        };
        assert_eq!(rejection, Rejection::TooManyTags(limits::MAX_EVENT_TAGS));
        assert_eq!(event.tags.len(), limits::MAX_OVERSIZED_EVENT_REFERENCES);
    }

    #[test]
    fn invalid_event_keeps_its_subscription_and_the_id_that_it_claims() {
        let own = event(1, "");
        let id = Event::parse(&own).expect("an event").id;
        let large = event(1, &"x".repeat(3 * limits::MAX_STATE_EVENT_BYTES));
        let large_id = Event::parse(&large).expect("an event").id;
        for (text, id) in [
            ("[]".to_owned(), None),
            ("{}".to_owned(), None),
            (own.replace("\"kind\":1,", "\"kind\":2,"), Some(id)),
            (own.replace("\"kind\":1,", "\"kind\":70000,"), Some(id)),
            (large.replace("xx\"", "xy\""), Some(large_id)),
        ] {
            let expected = IncomingMessage::InvalidEvent(SubscriptionId(1), id);
            assert_eq!(parsed(&format!(r#"["EVENT","g1",{text}]"#)), expected);
        }
    }

    #[test]
    fn long_texts_are_cut_at_character_boundaries() {
        let long = "é".repeat(limits::MAX_NOTICE_BYTES);
        let IncomingMessage::Notice(text) = parsed(&message::notice(&format!("x{long}"))) else {
            panic!("not a notice")
        };
        assert_eq!(text.len(), limits::MAX_NOTICE_BYTES - 1);
        let IncomingMessage::Closed(_, text) = parsed(&message::closed("g1", &long)) else {
            panic!("not a CLOSED message")
        };
        assert_eq!(text.len(), limits::MAX_NOTICE_BYTES);
    }

    #[test]
    fn encoded_messages_are_parsed_by_our_own_server() {
        let filter =
            Filter { kinds: Some(vec![1]), tags: vec![(b'a', vec!["x\"\n".into()].into())], ..Filter::default() };
        let (sub, id) = (SubscriptionId(17), "g17".to_owned());
        for (outgoing, expected) in [
            (OutgoingMessage::Req(sub, vec![filter.clone(), Filter::default()]), {
                ClientMessage::Req(id.clone(), vec![filter.clone(), Filter::default()])
            }),
            (OutgoingMessage::Close(sub), ClientMessage::Close(id.clone())),
            (
                OutgoingMessage::NegOpen(sub, filter.clone(), vec![0x61, 0]),
                ClientMessage::NegOpen(id.clone(), filter, vec![0x61, 0]),
            ),
            (OutgoingMessage::NegMsg(sub, vec![0x61]), ClientMessage::NegMsg(id.clone(), vec![0x61])),
            (OutgoingMessage::NegClose(sub), ClientMessage::NegClose(id)),
        ] {
            let EncodedMessage::Text(text) = encode(&outgoing) else { panic!("not a complete message") };
            assert_eq!(ClientMessage::parse(&text).expect("a message"), expected, "{text}");
        }
        let outgoing = OutgoingMessage::Auth("c".into());
        assert_eq!(encode(&outgoing), EncodedMessage::Sign("c"));
        assert_eq!(ClientMessage::parse(&encode_auth("{}")), Ok(ClientMessage::Auth("{}")));
    }
}

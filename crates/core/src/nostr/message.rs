//! Messages between client and relay (NIP-01, 42, 45 and 77), on the side of the relay: parses messages of clients and
//! writes messages of the relay. Called by the websocket sessions.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::event::{EventId, describe_json_error};
use super::filter::{Filter, FilterError};
use super::{hex, json};
use crate::limits;

/// A message of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientMessage<'a> {
    /// `EVENT`: publishes an event. Contains the text of the event, which is not yet parsed or verified.
    Event(&'a str),
    /// `REQ`: queries stored events and subscribes to new ones.
    Req(String, Vec<Filter>),
    /// `CLOSE`: ends a subscription.
    Close(String),
    /// `COUNT`: counts stored events.
    Count(String, Vec<Filter>),
    /// `AUTH`: answers a challenge. Contains the text of the event.
    Auth(&'a str),
    /// `NEG-OPEN`: starts a negentropy reconciliation.
    NegOpen(String, Filter, Vec<u8>),
    /// `NEG-MSG`: continues a reconciliation.
    NegMsg(String, Vec<u8>),
    /// `NEG-CLOSE`: ends a reconciliation.
    NegClose(String),
}

/// The reason why a message of a client is rejected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The text is not a JSON array that begins with a string.
    #[error("invalid: not a client message: {0}")]
    Json(String),
    /// The message type is unknown.
    #[error("invalid: unknown message type {}", json::quote(.0))]
    UnknownType(String),
    /// The number of elements is wrong. Contains the expected form.
    #[error("invalid: expected {0}")]
    WrongForm(&'static str),
    /// The subscription id is not a string of 1 to [`limits::MAX_SUBSCRIPTION_ID_BYTES`] bytes.
    #[error("invalid: a subscription id must be a string of 1 to {} bytes", limits::MAX_SUBSCRIPTION_ID_BYTES)]
    SubscriptionId,
    /// More than [`limits::MAX_FILTERS`] filters.
    #[error("invalid: at most {} filters in one message", limits::MAX_FILTERS)]
    TooManyFilters,
    /// A filter is invalid or not supported.
    #[error("{prefix}: {0}", prefix = if matches!(.0, FilterError::Unsupported(_)) { "unsupported" } else { "invalid" })]
    Filter(FilterError),
    /// The negentropy message is not hex.
    #[error("invalid: a negentropy message must be hex")]
    Hex,
}

/// The error reply to a message that was rejected. The variant depends on what the message names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MessageErrorReply {
    /// `NOTICE`: the message names no subscription.
    Notice(MessageError),
    /// `CLOSED`: the message would have opened this subscription.
    Closed(String, MessageError),
    /// `NEG-ERR`: the message would have opened or continued this reconciliation.
    NegErr(String, MessageError),
}

impl MessageErrorReply {
    /// Returns the reply as message text.
    #[must_use]
    pub fn to_message(&self) -> String {
        match self {
            Self::Notice(error) => notice(&error.to_string()),
            Self::Closed(sub, error) => closed(sub, &error.to_string()),
            Self::NegErr(sub, error) => neg_err(sub, &error.to_string()),
        }
    }
}

impl<'a> ClientMessage<'a> {
    /// Parses a message of a client.
    ///
    /// # Errors
    /// The reply to send if the message is malformed.
    pub fn parse(text: &'a str) -> Result<Self, MessageErrorReply> {
        use MessageErrorReply::{Closed, NegErr, Notice};
        let parts = split_array(text).map_err(Notice)?;
        let (verb, rest) =
            parts.split_first().ok_or_else(|| Notice(MessageError::Json("the array is empty".to_owned())))?;
        let verb: String =
            serde_json::from_str(verb).map_err(|error| Notice(MessageError::Json(describe_json_error(&error))))?;
        match verb.as_str() {
            "EVENT" => single(rest, "[\"EVENT\", event]").map(Self::Event).map_err(Notice),
            "AUTH" => single(rest, "[\"AUTH\", event]").map(Self::Auth).map_err(Notice),
            "CLOSE" => single(rest, "[\"CLOSE\", id]").and_then(parse_subscription_id).map(Self::Close).map_err(Notice),
            "NEG-CLOSE" => {
                single(rest, "[\"NEG-CLOSE\", id]").and_then(parse_subscription_id).map(Self::NegClose).map_err(Notice)
            }
            "REQ" | "COUNT" => {
                let (id, filters) = rest
                    .split_first()
                    .ok_or(Notice(MessageError::WrongForm("[\"REQ\" or \"COUNT\", id, filter, …]")))?;
                let id = parse_subscription_id(id).map_err(Notice)?;
                match parse_filters(filters) {
                    Ok(filters) if verb == "REQ" => Ok(Self::Req(id, filters)),
                    Ok(filters) => Ok(Self::Count(id, filters)),
                    Err(error) => Err(Closed(id, error)),
                }
            }
            "NEG-OPEN" => match rest {
                [id, filter, message] => {
                    let id = parse_subscription_id(id).map_err(Notice)?;
                    match Filter::parse(filter)
                        .map_err(MessageError::Filter)
                        .and_then(|filter| Ok((filter, parse_payload(message)?)))
                    {
                        Ok((filter, message)) => Ok(Self::NegOpen(id, filter, message)),
                        Err(error) => Err(NegErr(id, error)),
                    }
                }
                _ => Err(Notice(MessageError::WrongForm("[\"NEG-OPEN\", id, filter, message]"))),
            },
            "NEG-MSG" => match rest {
                [id, message] => {
                    let id = parse_subscription_id(id).map_err(Notice)?;
                    match parse_payload(message) {
                        Ok(message) => Ok(Self::NegMsg(id, message)),
                        Err(error) => Err(NegErr(id, error)),
                    }
                }
                _ => Err(Notice(MessageError::WrongForm("[\"NEG-MSG\", id, message]"))),
            },
            other => Err(Notice(MessageError::UnknownType(other.chars().take(40).collect()))),
        }
    }
}

/// Splits a JSON array into the texts of its elements without parsing them. Returns at most as many elements as a
/// message can have, and skips the rest.
pub(super) fn split_array(text: &str) -> Result<Vec<&str>, MessageError> {
    struct ArrayVisitor;
    impl<'de> Visitor<'de> for ArrayVisitor {
        type Value = Vec<&'de str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut parts: S) -> Result<Self::Value, S::Error> {
            let mut texts = Vec::with_capacity(4);
            // One filter more than allowed is returned, so that the error reply can name the subscription.
            while texts.len() < limits::MAX_FILTERS + 3 {
                match parts.next_element::<&'de RawValue>()? {
                    Some(part) => texts.push(part.get()),
                    None => return Ok(texts),
                }
            }
            while parts.next_element::<IgnoredAny>()?.is_some() {}
            Ok(texts)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    deserializer
        .deserialize_seq(ArrayVisitor)
        .and_then(|parts| deserializer.end().map(|()| parts))
        .map_err(|error| MessageError::Json(describe_json_error(&error)))
}

fn single<'a>(rest: &[&'a str], form: &'static str) -> Result<&'a str, MessageError> {
    match rest {
        [only] => Ok(only),
        _ => Err(MessageError::WrongForm(form)),
    }
}

fn parse_subscription_id(text: &str) -> Result<String, MessageError> {
    serde_json::from_str(text)
        .ok()
        .filter(|id: &String| (1..=limits::MAX_SUBSCRIPTION_ID_BYTES).contains(&id.len()))
        .ok_or(MessageError::SubscriptionId)
}

fn parse_filters(texts: &[&str]) -> Result<Vec<Filter>, MessageError> {
    match texts.len() {
        0 => Err(MessageError::WrongForm("[\"REQ\" or \"COUNT\", id, filter, …]")),
        count if count > limits::MAX_FILTERS => Err(MessageError::TooManyFilters),
        _ => texts.iter().map(|text| Filter::parse(text).map_err(MessageError::Filter)).collect(),
    }
}

pub(super) fn parse_payload(text: &str) -> Result<Vec<u8>, MessageError> {
    serde_json::from_str(text).ok().and_then(|text: String| hex::decode_any(&text)).ok_or(MessageError::Hex)
}

/// Returns `["OK", id, accepted, text]`.
#[must_use]
pub fn ok(id: EventId, accepted: bool, text: &str) -> String {
    format!("[\"OK\",\"{id}\",{accepted},{}]", json::quote(text))
}

/// Returns the part of `["EVENT", id, event]` before the event. The caller appends the event and a `]`.
#[must_use]
pub fn event_head(sub: &str) -> String {
    format!("[\"EVENT\",{},", json::quote(sub))
}

/// Returns `["EOSE", id]`.
#[must_use]
pub fn eose(sub: &str) -> String {
    format!("[\"EOSE\",{}]", json::quote(sub))
}

/// Returns `["CLOSED", id, text]`.
#[must_use]
pub fn closed(sub: &str, text: &str) -> String {
    format!("[\"CLOSED\",{},{}]", json::quote(sub), json::quote(text))
}

/// Returns `["NOTICE", text]`.
#[must_use]
pub fn notice(text: &str) -> String {
    format!("[\"NOTICE\",{}]", json::quote(text))
}

/// Returns `["AUTH", challenge]`.
#[must_use]
pub fn auth(challenge: &str) -> String {
    format!("[\"AUTH\",{}]", json::quote(challenge))
}

/// Returns `["COUNT", id, {"count": n}]`.
#[must_use]
pub fn count(sub: &str, count: u64) -> String {
    format!("[\"COUNT\",{},{{\"count\":{count}}}]", json::quote(sub))
}

/// Returns `["NEG-MSG", id, hex]`.
#[must_use]
pub fn neg_msg(sub: &str, message: &[u8]) -> String {
    let mut text = format!("[\"NEG-MSG\",{},\"", json::quote(sub));
    text.reserve(message.len() * 2 + 2);
    hex::push(&mut text, message);
    text.push_str("\"]");
    text
}

/// Returns `["NEG-ERR", id, text]`.
#[must_use]
pub fn neg_err(sub: &str, text: &str) -> String {
    format!("[\"NEG-ERR\",{},{}]", json::quote(sub), json::quote(text))
}

/// Returns `["NEG-ERR", id, text, limit]`: the query matches more events than a reconciliation may contain.
#[must_use]
pub fn neg_too_big(sub: &str, limit: usize) -> String {
    format!("[\"NEG-ERR\",{},\"blocked: this query is too big\",{limit}]", json::quote(sub))
}

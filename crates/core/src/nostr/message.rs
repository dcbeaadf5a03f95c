//! The messages of NIP-01, 42, 45 and 77: reading a client's, writing a relay's.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::event::{EventId, explain};
use super::filter::{BadFilter, Filter};
use super::{hex, json};
use crate::limits;

/// What a client can say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientMessage<'a> {
    /// Publish: the event's own text, still to be read and verified.
    Event(&'a str),
    /// Ask, and stay subscribed.
    Req(String, Vec<Filter>),
    /// End a subscription.
    Close(String),
    /// How many are there?
    Count(String, Vec<Filter>),
    /// Answer to a challenge: the event's own text.
    Auth(&'a str),
    /// Begin a reconciliation.
    NegOpen(String, Filter, Vec<u8>),
    /// Go on with one.
    NegMsg(String, Vec<u8>),
    /// End one.
    NegClose(String),
}

/// Why a message was not understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Not a JSON array that begins with a word.
    Shape(String),
    /// A word that is not spoken here.
    Verb(String),
    /// A word with too few or too many things behind it.
    Arity(&'static str),
    /// A subscription id that is not 1 to `MAX_SUBSCRIPTION_ID_BYTES` bytes of text.
    SubscriptionId,
    /// Too many filters.
    TooManyFilters,
    /// A filter that cannot be answered.
    Filter(BadFilter),
    /// A negentropy message that is not hex.
    Hex,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(why) => write!(f, "invalid: not a client message: {why}"),
            Self::Verb(verb) => write!(f, "invalid: unknown message type {}", json::string(verb)),
            Self::Arity(form) => write!(f, "invalid: the form is {form}"),
            Self::SubscriptionId => {
                write!(f, "invalid: a subscription id is a string of 1 to {} bytes", limits::MAX_SUBSCRIPTION_ID_BYTES)
            }
            Self::TooManyFilters => write!(f, "invalid: at most {} filters in one message", limits::MAX_FILTERS),
            Self::Filter(bad @ BadFilter::Unsupported(_)) => write!(f, "unsupported: {bad}"),
            Self::Filter(bad) => write!(f, "invalid: {bad}"),
            Self::Hex => f.write_str("invalid: a negentropy message is hex"),
        }
    }
}

/// A message that was not understood, and where the answer belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BadMessage {
    /// Nothing in it can be addressed: a NOTICE.
    Notice(Mistake),
    /// A subscription that does not come about: a CLOSED.
    Closed(String, Mistake),
    /// A reconciliation that does not come about: a NEG-ERR.
    NegErr(String, Mistake),
}

impl BadMessage {
    /// The answer.
    #[must_use]
    pub fn answer(&self) -> String {
        match self {
            Self::Notice(mistake) => notice(&mistake.to_string()),
            Self::Closed(sub, mistake) => closed(sub, &mistake.to_string()),
            Self::NegErr(sub, mistake) => neg_err(sub, &mistake.to_string()),
        }
    }
}

impl<'a> ClientMessage<'a> {
    /// Reads a client's message.
    pub fn parse(text: &'a str) -> Result<Self, BadMessage> {
        use BadMessage::{Closed, NegErr, Notice};
        let parts = split(text).map_err(Notice)?;
        let (verb, rest) =
            parts.split_first().ok_or_else(|| Notice(Mistake::Shape("the array is empty".to_owned())))?;
        let verb: String = serde_json::from_str(verb).map_err(|error| Notice(Mistake::Shape(explain(&error))))?;
        match verb.as_str() {
            "EVENT" => one(rest, "[\"EVENT\", event]").map(Self::Event).map_err(Notice),
            "AUTH" => one(rest, "[\"AUTH\", event]").map(Self::Auth).map_err(Notice),
            "CLOSE" => one(rest, "[\"CLOSE\", id]").and_then(subscription).map(Self::Close).map_err(Notice),
            "NEG-CLOSE" => one(rest, "[\"NEG-CLOSE\", id]").and_then(subscription).map(Self::NegClose).map_err(Notice),
            "REQ" | "COUNT" => {
                let (id, filters) =
                    rest.split_first().ok_or(Notice(Mistake::Arity("[\"REQ\" or \"COUNT\", id, filter, …]")))?;
                let id = subscription(id).map_err(Notice)?;
                match read_filters(filters) {
                    Ok(filters) if verb == "REQ" => Ok(Self::Req(id, filters)),
                    Ok(filters) => Ok(Self::Count(id, filters)),
                    Err(mistake) => Err(Closed(id, mistake)),
                }
            }
            "NEG-OPEN" => match rest {
                [id, filter, message] => {
                    let id = subscription(id).map_err(Notice)?;
                    match Filter::parse(filter)
                        .map_err(Mistake::Filter)
                        .and_then(|filter| Ok((filter, payload(message)?)))
                    {
                        Ok((filter, message)) => Ok(Self::NegOpen(id, filter, message)),
                        Err(mistake) => Err(NegErr(id, mistake)),
                    }
                }
                _ => Err(Notice(Mistake::Arity("[\"NEG-OPEN\", id, filter, message]"))),
            },
            "NEG-MSG" => match rest {
                [id, message] => {
                    let id = subscription(id).map_err(Notice)?;
                    match payload(message) {
                        Ok(message) => Ok(Self::NegMsg(id, message)),
                        Err(mistake) => Err(NegErr(id, mistake)),
                    }
                }
                _ => Err(Notice(Mistake::Arity("[\"NEG-MSG\", id, message]"))),
            },
            other => Err(Notice(Mistake::Verb(other.chars().take(40).collect()))),
        }
    }
}

/// Cuts an array into the texts of its elements, without looking into them and without keeping more than a message can
/// sensibly have.
pub(super) fn split(text: &str) -> Result<Vec<&str>, Mistake> {
    struct Parts;
    impl<'de> Visitor<'de> for Parts {
        type Value = Vec<&'de str>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<S: SeqAccess<'de>>(self, mut parts: S) -> Result<Self::Value, S::Error> {
            let mut texts = Vec::with_capacity(4);
            // One more filter than is allowed is kept, so that the refusal can be addressed; the rest is only skipped.
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
        .deserialize_seq(Parts)
        .and_then(|parts| deserializer.end().map(|()| parts))
        .map_err(|error| Mistake::Shape(explain(&error)))
}

fn one<'a>(rest: &[&'a str], form: &'static str) -> Result<&'a str, Mistake> {
    match rest {
        [only] => Ok(only),
        _ => Err(Mistake::Arity(form)),
    }
}

fn subscription(text: &str) -> Result<String, Mistake> {
    serde_json::from_str(text)
        .ok()
        .filter(|id: &String| (1..=limits::MAX_SUBSCRIPTION_ID_BYTES).contains(&id.len()))
        .ok_or(Mistake::SubscriptionId)
}

fn read_filters(texts: &[&str]) -> Result<Vec<Filter>, Mistake> {
    match texts.len() {
        0 => Err(Mistake::Arity("[\"REQ\" or \"COUNT\", id, filter, …]")),
        count if count > limits::MAX_FILTERS => Err(Mistake::TooManyFilters),
        _ => texts.iter().map(|text| Filter::parse(text).map_err(Mistake::Filter)).collect(),
    }
}

pub(super) fn payload(text: &str) -> Result<Vec<u8>, Mistake> {
    serde_json::from_str(text).ok().and_then(|text: String| hex::decode_any(&text)).ok_or(Mistake::Hex)
}

/// `["OK", id, accepted, text]`.
#[must_use]
pub fn ok(id: EventId, accepted: bool, text: &str) -> String {
    format!("[\"OK\",\"{id}\",{accepted},{}]", json::string(text))
}

/// Everything of `["EVENT", id, event]` that stands before the event; a `]` follows it.
#[must_use]
pub fn event_head(sub: &str) -> String {
    format!("[\"EVENT\",{},", json::string(sub))
}

/// `["EOSE", id]`.
#[must_use]
pub fn eose(sub: &str) -> String {
    format!("[\"EOSE\",{}]", json::string(sub))
}

/// `["CLOSED", id, text]`.
#[must_use]
pub fn closed(sub: &str, text: &str) -> String {
    format!("[\"CLOSED\",{},{}]", json::string(sub), json::string(text))
}

/// `["NOTICE", text]`.
#[must_use]
pub fn notice(text: &str) -> String {
    format!("[\"NOTICE\",{}]", json::string(text))
}

/// `["AUTH", challenge]`.
#[must_use]
pub fn auth(challenge: &str) -> String {
    format!("[\"AUTH\",{}]", json::string(challenge))
}

/// `["COUNT", id, {"count": n}]`.
#[must_use]
pub fn count(sub: &str, count: u64) -> String {
    format!("[\"COUNT\",{},{{\"count\":{count}}}]", json::string(sub))
}

/// `["NEG-MSG", id, hex]`.
#[must_use]
pub fn neg_msg(sub: &str, message: &[u8]) -> String {
    let mut text = format!("[\"NEG-MSG\",{},\"", json::string(sub));
    text.reserve(message.len() * 2 + 2);
    hex::push(&mut text, message);
    text.push_str("\"]");
    text
}

/// `["NEG-ERR", id, text]`.
#[must_use]
pub fn neg_err(sub: &str, text: &str) -> String {
    format!("[\"NEG-ERR\",{},{}]", json::string(sub), json::string(text))
}

/// `["NEG-ERR", id, text, most]`: the query has more records than we reconcile.
#[must_use]
pub fn neg_too_big(sub: &str, most: usize) -> String {
    format!("[\"NEG-ERR\",{},\"blocked: this query is too big\",{most}]", json::string(sub))
}

//! Minimal parser of relay messages that does not parse JSON.
//!
//! The load generator shares two cores with the relay, and a query returns hundreds of events: parsing them all would
//! measure the parser. Only the first strings of a message are read. That is safe because this client chooses the
//! subscription ids, and because a JSON string cannot contain the unescaped quotes that are searched for.

use nostr::event::EventId;

/// A message from a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelayMessage<'a> {
    /// `["EVENT",subscription,{…}]` with the unparsed object.
    Event {
        /// Id of the subscription.
        subscription: &'a str,
        /// The rest of the message, starting at the object.
        body: &'a str,
    },
    /// `["OK",id,accepted,reason]`.
    Ok {
        /// Id of the event.
        id: EventId,
        /// Whether the relay accepted the event.
        accepted: bool,
        /// Reason, up to its first quote.
        reason: &'a str,
    },
    /// `["EOSE",subscription]`.
    Eose {
        /// Id of the subscription.
        subscription: &'a str,
    },
    /// `["CLOSED",subscription,reason]`.
    Closed {
        /// Id of the subscription.
        subscription: &'a str,
        /// Reason, up to its first quote.
        reason: &'a str,
    },
    /// `["NEG-MSG",subscription,hex]`.
    NegMsg {
        /// Negentropy message in hex.
        hex: &'a str,
    },
    /// `["NEG-ERR",subscription,reason]`.
    NegErr {
        /// Reason, up to its first quote.
        reason: &'a str,
    },
    /// `["NOTICE",text]`.
    Notice {
        /// Text, up to its first quote.
        text: &'a str,
    },
    /// Any other message. These are ignored.
    Other,
}

impl<'a> RelayMessage<'a> {
    /// Parses the beginning of a message.
    pub fn parse(text: &'a str) -> Self {
        Self::parse_known(text).unwrap_or(Self::Other)
    }

    fn parse_known(text: &'a str) -> Option<Self> {
        let (verb, rest) = next_string(text)?;
        let (first, rest) = next_string(rest)?;
        let second = || next_string(rest).map_or("", |(word, _)| word);
        Some(match verb {
            "EVENT" => Self::Event { subscription: first, body: rest },
            "OK" => Self::Ok {
                id: EventId::from_hex(first).ok()?,
                accepted: rest.trim_start_matches([',', ' ']).starts_with("true"),
                reason: rest.split_once('"').and_then(|(_, reason)| reason.split('"').next()).unwrap_or(""),
            },
            "EOSE" => Self::Eose { subscription: first },
            "CLOSED" => Self::Closed { subscription: first, reason: second() },
            "NEG-MSG" => Self::NegMsg { hex: second() },
            "NEG-ERR" => Self::NegErr { reason: second() },
            "NOTICE" => Self::Notice { text: first },
            _ => return None,
        })
    }
}

/// Returns the id inside the object of an `EVENT` message.
pub fn event_id(body: &str) -> Option<EventId> {
    body.match_indices(r#""id""#).find_map(|(at, key)| {
        let value = body[at + key.len()..].trim_start().strip_prefix(':')?;
        EventId::from_hex(next_string(value)?.0).ok()
    })
}

/// Returns the machine-readable prefix of a reason, before the colon, or the whole reason if it has none.
pub fn reason_prefix(reason: &str) -> &str {
    reason.split(':').next().unwrap_or(reason)
}

/// Returns the next string of an array and the rest.
fn next_string(text: &str) -> Option<(&str, &str)> {
    text.trim_start_matches([' ', ',', '[']).strip_prefix('"')?.split_once('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn messages_are_recognised() {
        let id = EventId::from_hex(ID).expect("hex");
        let refused = format!(r#"["OK","{ID}",false,"blocked: no"]"#);
        let spaced = format!(r#"["OK", "{ID}", true, ""]"#);
        for (text, expected) in [
            (refused.as_str(), RelayMessage::Ok { id, accepted: false, reason: "blocked: no" }),
            (spaced.as_str(), RelayMessage::Ok { id, accepted: true, reason: "" }),
            (r#"["EOSE","q1",["finish"]]"#, RelayMessage::Eose { subscription: "q1" }),
            (r#"["CLOSED","q1",""]"#, RelayMessage::Closed { subscription: "q1", reason: "" }),
            (r#"["NEG-MSG","n","61"]"#, RelayMessage::NegMsg { hex: "61" }),
            (r#"["NEG-ERR","n","closed: x"]"#, RelayMessage::NegErr { reason: "closed: x" }),
            (r#"["NOTICE","hello"]"#, RelayMessage::Notice { text: "hello" }),
            (r#"["AUTH","challenge"]"#, RelayMessage::Other),
            ("nonsense", RelayMessage::Other),
        ] {
            assert_eq!(RelayMessage::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn event_id_is_not_confused_with_similar_text() {
        let plain = format!(r#"["EVENT","s",{{"id":"{ID}","kind":1}}]"#);
        let tricky = format!(r#"["EVENT", "s", {{"tags": [["id", "x"]], "content": "\"id\":\"y\"", "id": "{ID}"}}]"#);
        for text in [&plain, &tricky] {
            let RelayMessage::Event { subscription: "s", body } = RelayMessage::parse(text) else {
                panic!("{text} is not an event of subscription s");
            };
            assert_eq!(event_id(body).map(|id| id.to_hex()).as_deref(), Some(ID));
        }
    }

    #[test]
    fn reasons_are_grouped_by_their_prefix() {
        assert_eq!(reason_prefix("rate-limited: slow down"), "rate-limited");
        assert_eq!(reason_prefix("go away"), "go away");
    }
}

//! What a relay says, read without parsing JSON.
//!
//! The generator shares two cores with the relay, and a query returns hundreds of events: parsing them all would
//! measure the parser. Only the first words of a message are read. That is safe because this client chooses the
//! subscription ids, and because a JSON string cannot contain the bare quotes that are searched for.

use nostr::event::EventId;

/// A message from a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// `["EVENT",subscription,{…}]`, the object unparsed.
    Event {
        /// The subscription it answers.
        subscription: &'a str,
        /// From the object on.
        body: &'a str,
    },
    /// `["OK",id,accepted,reason]`.
    Verdict {
        /// The event that was judged.
        id: EventId,
        /// Whether the relay took it.
        accepted: bool,
        /// Up to its first quote.
        reason: &'a str,
    },
    /// `["EOSE",subscription]`.
    EndOfStored {
        /// The subscription it ends.
        subscription: &'a str,
    },
    /// `["CLOSED",subscription,reason]`.
    Closed {
        /// The subscription that is gone.
        subscription: &'a str,
        /// Up to its first quote.
        reason: &'a str,
    },
    /// `["NEG-MSG",subscription,hex]`.
    Reconcile {
        /// The message of the other side, in hex.
        hex: &'a str,
    },
    /// `["NEG-ERR",subscription,reason]`.
    ReconcileError {
        /// Up to its first quote.
        reason: &'a str,
    },
    /// `["NOTICE",text]`.
    Notice {
        /// Up to its first quote.
        text: &'a str,
    },
    /// Anything else; nothing here waits for it.
    Other,
}

impl<'a> Incoming<'a> {
    /// Reads the beginning of a message.
    pub fn read(text: &'a str) -> Self {
        Self::read_known(text).unwrap_or(Self::Other)
    }

    fn read_known(text: &'a str) -> Option<Self> {
        let (verb, rest) = word(text)?;
        let (first, rest) = word(rest)?;
        let second = || word(rest).map_or("", |(word, _)| word);
        Some(match verb {
            "EVENT" => Self::Event { subscription: first, body: rest },
            "OK" => Self::Verdict {
                id: EventId::from_hex(first).ok()?,
                accepted: rest.trim_start_matches([',', ' ']).starts_with("true"),
                reason: rest.split_once('"').and_then(|(_, reason)| reason.split('"').next()).unwrap_or(""),
            },
            "EOSE" => Self::EndOfStored { subscription: first },
            "CLOSED" => Self::Closed { subscription: first, reason: second() },
            "NEG-MSG" => Self::Reconcile { hex: second() },
            "NEG-ERR" => Self::ReconcileError { reason: second() },
            "NOTICE" => Self::Notice { text: first },
            _ => return None,
        })
    }
}

/// The id inside the object of an `EVENT`.
pub fn event_id(body: &str) -> Option<EventId> {
    body.match_indices(r#""id""#).find_map(|(at, key)| {
        let value = body[at + key.len()..].trim_start().strip_prefix(':')?;
        EventId::from_hex(word(value)?.0).ok()
    })
}

/// The machine-readable word before the colon of a reason, or all of a reason that has none.
pub fn prefix(reason: &str) -> &str {
    reason.split(':').next().unwrap_or(reason)
}

/// The next string of an array and what follows it.
fn word(text: &str) -> Option<(&str, &str)> {
    text.trim_start_matches([' ', ',', '[']).strip_prefix('"')?.split_once('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn messages_are_told_apart() {
        let id = EventId::from_hex(ID).expect("hex");
        let refused = format!(r#"["OK","{ID}",false,"blocked: no"]"#);
        let spaced = format!(r#"["OK", "{ID}", true, ""]"#);
        for (text, expected) in [
            (refused.as_str(), Incoming::Verdict { id, accepted: false, reason: "blocked: no" }),
            (spaced.as_str(), Incoming::Verdict { id, accepted: true, reason: "" }),
            (r#"["EOSE","q1",["finish"]]"#, Incoming::EndOfStored { subscription: "q1" }),
            (r#"["CLOSED","q1",""]"#, Incoming::Closed { subscription: "q1", reason: "" }),
            (r#"["NEG-MSG","n","61"]"#, Incoming::Reconcile { hex: "61" }),
            (r#"["NEG-ERR","n","closed: x"]"#, Incoming::ReconcileError { reason: "closed: x" }),
            (r#"["NOTICE","hello"]"#, Incoming::Notice { text: "hello" }),
            (r#"["AUTH","challenge"]"#, Incoming::Other),
            ("nonsense", Incoming::Other),
        ] {
            assert_eq!(Incoming::read(text), expected, "{text}");
        }
    }

    #[test]
    fn ids_are_found_behind_look_alikes() {
        let plain = format!(r#"["EVENT","s",{{"id":"{ID}","kind":1}}]"#);
        let tricky = format!(r#"["EVENT", "s", {{"tags": [["id", "x"]], "content": "\"id\":\"y\"", "id": "{ID}"}}]"#);
        for text in [&plain, &tricky] {
            let Incoming::Event { subscription: "s", body } = Incoming::read(text) else {
                panic!("{text} is an event of s");
            };
            assert_eq!(event_id(body).map(|id| id.to_hex()).as_deref(), Some(ID));
        }
    }

    #[test]
    fn reasons_are_grouped_by_their_prefix() {
        assert_eq!(prefix("rate-limited: slow down"), "rate-limited");
        assert_eq!(prefix("go away"), "go away");
    }
}

//! What goes over the simulated wires, and how many bytes it has on real ones.

use grasp_core::nostr::Filter;
use grasp_core::sync::io::{EoseHint, EventPresence, IncomingMessage, OutgoingMessage, SubscriptionId};

use super::corpus::{Ix, corpus};

/// What a relay says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// An event, by number, and whether its signature is right.
    Event(SubscriptionId, Ix, Copy),
    /// All that is stored has been sent.
    Eose(SubscriptionId, Option<EoseHint>),
    /// A subscription has ended.
    Closed(SubscriptionId, String),
    /// For people.
    Notice(String),
    /// An answer to something that was published.
    Ok(bool, String),
    /// The next message of a reconciliation.
    NegMsg(SubscriptionId, Vec<u8>),
    /// A reconciliation has ended.
    NegErr(SubscriptionId, String, Option<u64>),
    /// A challenge.
    Auth(String),
    /// A pong.
    Pong,
    /// No message at all, or an event that is not what its id says.
    Garbage,
}

/// Which copy of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// The one that its author signed.
    Real,
    /// One with another signature.
    Forged,
}

impl Frame {
    /// How the machine hears it.
    #[must_use]
    pub fn heard(&self, standing: EventPresence) -> IncomingMessage {
        match self {
            Self::Event(sub, ix, Copy::Real) => IncomingMessage::Event(*sub, corpus().plain(*ix).clone(), standing),
            Self::Event(sub, ix, Copy::Forged) => IncomingMessage::Event(*sub, corpus().forged(*ix).clone(), standing),
            Self::Eose(sub, more) => IncomingMessage::Eose(*sub, *more),
            Self::Closed(sub, text) => IncomingMessage::Closed(*sub, text.clone()),
            Self::Notice(text) => IncomingMessage::Notice(text.clone()),
            Self::Ok(fine, text) => IncomingMessage::Ok(*fine, text.clone()),
            Self::NegMsg(sub, bytes) => IncomingMessage::NegMsg(*sub, bytes.clone()),
            Self::NegErr(sub, text, most) => IncomingMessage::NegErr(*sub, text.clone(), *most),
            Self::Auth(challenge) => IncomingMessage::Auth(challenge.clone()),
            Self::Pong => IncomingMessage::Alive,
            Self::Garbage => IncomingMessage::Invalid,
        }
    }
}

/// How many bytes a message of ours has.
#[must_use]
pub fn bytes(say: &OutgoingMessage) -> usize {
    match say {
        OutgoingMessage::Req(sub, filters) => {
            r#"["REQ",""]"#.len() + digits(sub.0) + filters.iter().map(filter_bytes).sum::<usize>() + filters.len()
        }
        OutgoingMessage::Close(sub) => r#"["CLOSE",""]"#.len() + digits(sub.0),
        OutgoingMessage::NegOpen(sub, filter, message) => {
            r#"["NEG-OPEN","",,""]"#.len() + digits(sub.0) + filter_bytes(filter) + 2 * message.len()
        }
        OutgoingMessage::NegMsg(sub, message) => r#"["NEG-MSG","",""]"#.len() + digits(sub.0) + 2 * message.len(),
        OutgoingMessage::NegClose(sub) => r#"["NEG-CLOSE",""]"#.len() + digits(sub.0),
        OutgoingMessage::Auth(_) => 600,
    }
}

/// How many bytes the JSON text of a filter has.
#[must_use]
pub fn filter_bytes(filter: &Filter) -> usize {
    let hex = |count: usize| 66 * count + count.saturating_sub(1);
    let list = |name: usize, values: usize| name + r#""":[]"#.len() + values;
    let mut members: Vec<usize> = Vec::new();
    members.extend(filter.ids.as_ref().map(|ids| list(3, hex(ids.len()))));
    members.extend(filter.authors.as_ref().map(|authors| list(7, hex(authors.len()))));
    members.extend(filter.kinds.as_ref().map(|kinds| {
        let values: usize = kinds.iter().map(|kind| digits(u64::from(*kind))).sum();
        list(5, values + kinds.len().saturating_sub(1))
    }));
    for (_, values) in &filter.tags {
        let text: usize = values.iter().map(|value| escaped(value) + 2).sum();
        members.push(list(2, text + values.len().saturating_sub(1)));
    }
    members.extend(filter.since.map(|since| r#""since":"#.len() + digits(since.0)));
    members.extend(filter.until.map(|until| r#""until":"#.len() + digits(until.0)));
    members.extend(filter.limit.map(|limit| r#""limit":"#.len() + digits(limit as u64)));
    2 + members.iter().sum::<usize>() + members.len().saturating_sub(1)
}

fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

fn escaped(text: &str) -> usize {
    text.len() + text.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use grasp_core::nostr::{EventId, PublicKey};
    use grasp_core::time::Timestamp;

    #[test]
    fn bytes_are_those_of_the_text() {
        let filter = Filter {
            ids: Some(vec![EventId([1; 32]), EventId([2; 32])]),
            authors: Some(vec![PublicKey([3; 32])]),
            kinds: Some(vec![1, 30_617]),
            tags: vec![(b'a', vec!["x\"y".to_owned(), String::new()]), (b'e', vec![])],
            since: Some(Timestamp(0)),
            until: Some(Timestamp(1_700_000_000)),
            limit: Some(10),
        };
        for filter in [filter, Filter::default(), Filter { limit: Some(0), ..Filter::default() }] {
            let text = filter.to_json();
            assert_eq!(filter_bytes(&filter), text.len(), "{text}");
            let req = format!(r#"["REQ","17",{text},{text}]"#);
            assert_eq!(
                bytes(&OutgoingMessage::Req(SubscriptionId(17), vec![filter.clone(), filter.clone()])),
                req.len()
            );
            let open = format!(r#"["NEG-OPEN","5",{text},"61"]"#);
            assert_eq!(bytes(&OutgoingMessage::NegOpen(SubscriptionId(5), filter, vec![0x61])), open.len());
        }
    }
}

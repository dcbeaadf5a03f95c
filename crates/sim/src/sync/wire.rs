//! Messages on the simulated connections, and their size on real ones.

use grasp_core::nostr::Filter;
use grasp_core::sync::io::{EoseHint, EventPresence, IncomingMessage, OutgoingMessage, SubscriptionId};

use super::corpus::{EventIndex, corpus};

/// A message of a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RelayFrame {
    /// An event, and whether its signature is valid.
    Event(SubscriptionId, EventIndex, EventCopy),
    /// End of stored events.
    Eose(SubscriptionId, Option<EoseHint>),
    /// The relay closed a subscription.
    Closed(SubscriptionId, String),
    /// A message for people.
    Notice(String),
    /// Answer to a published event.
    Ok(bool, String),
    /// The next message of a negentropy exchange.
    NegMsg(SubscriptionId, Vec<u8>),
    /// The relay ended a negentropy exchange.
    NegErr(SubscriptionId, String, Option<u64>),
    /// Authentication challenge.
    Auth(String),
    /// Pong.
    Pong,
    /// Text that is no message.
    Garbage,
}

/// Copy of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventCopy {
    /// The event as its author signed it.
    Real,
    /// A copy with an invalid signature.
    Forged,
}

impl RelayFrame {
    /// Converts the message to an input of the sync machine.
    pub fn to_message(&self, presence: EventPresence) -> IncomingMessage {
        match self {
            Self::Event(sub, index, copy) => match corpus().received(*index) {
                IncomingMessage::TooLarge(_, event, rejection) => {
                    IncomingMessage::TooLarge(*sub, event.clone(), rejection.clone())
                }
                IncomingMessage::InvalidEvent(_, id) => IncomingMessage::InvalidEvent(*sub, *id),
                _ => IncomingMessage::Event(*sub, corpus().copy(*index, *copy).clone(), presence),
            },
            Self::Eose(sub, more) => IncomingMessage::Eose(*sub, *more),
            Self::Closed(sub, text) => IncomingMessage::Closed(*sub, text.clone()),
            Self::Notice(text) => IncomingMessage::Notice(text.clone()),
            Self::Ok(accepted, text) => IncomingMessage::Ok(*accepted, text.clone()),
            Self::NegMsg(sub, bytes) => IncomingMessage::NegMsg(*sub, bytes.clone()),
            Self::NegErr(sub, text, max_records) => IncomingMessage::NegErr(*sub, text.clone(), *max_records),
            Self::Auth(challenge) => IncomingMessage::Auth(challenge.clone()),
            Self::Pong => IncomingMessage::Alive,
            Self::Garbage => IncomingMessage::Invalid,
        }
    }
}

/// Returns the size of a message to a relay.
pub(super) fn message_bytes(message: &OutgoingMessage) -> usize {
    match message {
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

/// Returns the size of a filter's JSON.
pub(super) fn filter_bytes(filter: &Filter) -> usize {
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
    fn computed_sizes_match_serialized_messages() {
        let filter = Filter {
            ids: Some(vec![EventId([1; 32]), EventId([2; 32])]),
            authors: Some(vec![PublicKey([3; 32])]),
            kinds: Some(vec![1, 30_617]),
            tags: vec![(b'a', vec!["x\"y".to_owned(), String::new()].into()), (b'e', vec![].into())],
            since: Some(Timestamp(0)),
            until: Some(Timestamp(1_700_000_000)),
            limit: Some(10),
        };
        for filter in [filter, Filter::default(), Filter { limit: Some(0), ..Filter::default() }] {
            let text = filter.to_json();
            assert_eq!(filter_bytes(&filter), text.len(), "{text}");
            let req = format!(r#"["REQ","17",{text},{text}]"#);
            assert_eq!(
                message_bytes(&OutgoingMessage::Req(SubscriptionId(17), vec![filter.clone(), filter.clone()])),
                req.len()
            );
            let open = format!(r#"["NEG-OPEN","5",{text},"61"]"#);
            assert_eq!(message_bytes(&OutgoingMessage::NegOpen(SubscriptionId(5), filter, vec![0x61])), open.len());
        }
    }
}

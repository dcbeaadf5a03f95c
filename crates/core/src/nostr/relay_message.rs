//! The other side of the messages of NIP-01, 42, 67 and 77: reading a relay's, writing a client's.

use std::sync::Arc;

use serde::Deserialize;

use super::event::Event;
use super::message::{payload, split};
use super::signed_event::Signed;
use super::{hex, kinds, signed_event};
use crate::limits;
use crate::sync::io::{Heard, More, Say, Standing, SubId};

/// What a subscription id begins with; its number follows. Short, because it stands in every event that comes.
const PREFIX: char = 'g';

/// The name of a request on the wire.
#[must_use]
pub fn name(sub: SubId) -> String {
    format!("{PREFIX}{}", sub.0)
}

/// Reads a relay's message. Every text means something, be it that the relay is alive or that it talks nonsense. Events
/// are parsed, measured and hashed; what the store knows of them is for the caller to find out, so they come as new.
/// `max_event_bytes` is what the policy takes of an ordinary event.
#[must_use]
pub fn read(text: &str, max_event_bytes: usize) -> Heard {
    let Ok(parts) = split(text) else { return Heard::Nonsense };
    let Some((verb, rest)) = parts.split_first() else { return Heard::Nonsense };
    let Some(verb) = string(verb) else { return Heard::Nonsense };
    understood(&verb, rest, max_event_bytes).unwrap_or(Heard::Nonsense)
}

/// `None` if a word that we know has something behind it that does not belong there. What comes after that is nobody's
/// business: protocols grow at the end.
fn understood(verb: &str, rest: &[&str], max_event_bytes: usize) -> Option<Heard> {
    Some(match (verb, rest) {
        ("EVENT", [sub, event, ..]) => match subscription(sub)? {
            Ok(sub) => read_event(sub, event, max_event_bytes)?,
            Err(Foreign) => Heard::Alive,
        },
        ("EOSE", [sub, more @ ..]) => match subscription(sub)? {
            Ok(sub) => Heard::Eose(sub, more.first().and_then(|more| read_more(more))),
            Err(Foreign) => Heard::Alive,
        },
        // A refusal that cannot be attributed is still one.
        ("CLOSED", [sub, why @ ..]) => {
            let why = why.first().map_or(Some(String::new()), |why| short(why))?;
            match subscription(sub)? {
                Ok(sub) => Heard::Closed(sub, why),
                Err(Foreign) => Heard::Notice(why),
            }
        }
        ("NEG-ERR", [sub, why, most @ ..]) => {
            let why = short(why)?;
            match subscription(sub)? {
                Ok(sub) => Heard::NegErr(sub, why, most.first().and_then(|most| most.parse().ok())),
                Err(Foreign) => Heard::Notice(why),
            }
        }
        ("NEG-MSG", [sub, message, ..]) => match subscription(sub)? {
            Ok(sub) => Heard::NegMsg(sub, payload(message).ok()?),
            Err(Foreign) => Heard::Alive,
        },
        ("NOTICE", [text, ..]) => Heard::Notice(short(text)?),
        ("OK", [_id, accepted, why @ ..]) => {
            let why = why.first().map_or(Some(String::new()), |why| short(why))?;
            Heard::Ok(serde_json::from_str(accepted).ok()?, why)
        }
        // It has to be signed as it is, so it cannot be cut.
        ("AUTH", [challenge, ..]) => match string(challenge)? {
            challenge if challenge.len() <= limits::MAX_COMPLAINT_BYTES => Heard::Auth(challenge),
            _ => return None,
        },
        ("EVENT" | "EOSE" | "CLOSED" | "NEG-ERR" | "NEG-MSG" | "NOTICE" | "OK" | "AUTH", _) => return None,
        _ => Heard::Alive,
    })
}

fn read_event(sub: SubId, text: &str, max_event_bytes: usize) -> Option<Heard> {
    // Whitespace, escapes and unsigned members may make a text larger than the event; twice is generous.
    if text.len() > 2 * max_event_bytes.max(limits::MAX_STATE_EVENT_BYTES) {
        return Some(Heard::TooLarge(sub));
    }
    let event = Event::parse(text).ok()?;
    if !fits(&event, text.len(), max_event_bytes) {
        return Some(Heard::TooLarge(sub));
    }
    if signed_event::hash(&event) != event.id.0 {
        return None;
    }
    Some(Heard::Event(sub, Arc::new(event), Standing::New))
}

/// Whether an event is within what the policy takes. The canonical text is never longer than the one that was sent.
fn fits(event: &Event, sent: usize, max_event_bytes: usize) -> bool {
    let (bytes, tags) = match event.kind {
        kinds::STATE => (limits::MAX_STATE_EVENT_BYTES.max(max_event_bytes), limits::MAX_STATE_TAGS),
        _ => (max_event_bytes, limits::MAX_EVENT_TAGS),
    };
    event.tags.len() <= tags && (sent <= bytes || Signed::trusted(event.clone()).json().len() <= bytes)
}

/// A subscription that is none of ours.
struct Foreign;

/// `None` if it is no text at all.
fn subscription(text: &str) -> Option<Result<SubId, Foreign>> {
    let id = string(text)?;
    let digits = id.strip_prefix(PREFIX).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    // One number has one name.
    let number = digits.filter(|digits| *digits == "0" || !digits.starts_with('0')).and_then(|n| n.parse().ok());
    Some(number.map(SubId).ok_or(Foreign))
}

/// `["finish"]` or `["more"]` (NIP-67), with whatever else.
fn read_more(text: &str) -> Option<More> {
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
        "finish" => Some(More::Finish),
        "more" => Some(More::More),
        _ => None,
    })
}

fn string(text: &str) -> Option<String> {
    serde_json::from_str(text).ok()
}

/// As much of a text as anybody needs to understand it.
fn short(text: &str) -> Option<String> {
    let mut text = string(text)?;
    let mut end = text.len().min(limits::MAX_COMPLAINT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.shrink_to_fit();
    Some(text)
}

/// What is to be said, as far as it can be written without a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Written<'a> {
    /// The message.
    Text(String),
    /// A challenge that has to be answered with a signature; see [`auth`].
    Sign(&'a str),
}

/// Writes a client's message.
#[must_use]
pub fn write(say: &Say) -> Written<'_> {
    Written::Text(match say {
        Say::Req(sub, filters) => {
            let mut text = format!("[\"REQ\",\"{}\"", name(*sub));
            for filter in filters {
                text.push(',');
                text.push_str(&filter.to_json());
            }
            text.push(']');
            text
        }
        Say::Close(sub) => format!("[\"CLOSE\",\"{}\"]", name(*sub)),
        Say::NegOpen(sub, filter, message) => {
            let mut text = format!("[\"NEG-OPEN\",\"{}\",{},\"", name(*sub), filter.to_json());
            push_payload(&mut text, message);
            text
        }
        Say::NegMsg(sub, message) => {
            let mut text = format!("[\"NEG-MSG\",\"{}\",\"", name(*sub));
            push_payload(&mut text, message);
            text
        }
        Say::NegClose(sub) => format!("[\"NEG-CLOSE\",\"{}\"]", name(*sub)),
        Say::Auth(challenge) => return Written::Sign(challenge),
    })
}

/// `["AUTH", event]`: the answer to a challenge. The event's text is the signer's.
#[must_use]
pub fn auth(event: &str) -> String {
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

    const MOST: usize = 64 * 1024;

    fn event(kind: u16, content: &str) -> String {
        let keys = Keys::parse("0000000000000000000000000000000000000000000000000000000000000003").expect("a key");
        EventBuilder::new(Kind::Custom(kind), content)
            .tags([Tag::parse(["e", "x"]).expect("a tag")])
            .finalize(&keys)
            .expect("signs")
            .as_json()
    }

    fn heard(text: &str) -> Heard {
        read(text, MOST)
    }

    #[test]
    fn what_relays_say() {
        let sub = SubId(17);
        for (text, expected) in [
            (r#"["EOSE","g17"]"#, Heard::Eose(sub, None)),
            (r#"["EOSE","g17",["finish"]]"#, Heard::Eose(sub, Some(More::Finish))),
            (r#"["EOSE","g17",["x","more"]]"#, Heard::Eose(sub, Some(More::More))),
            (r#"["EOSE","g17","finish"]"#, Heard::Eose(sub, Some(More::Finish))),
            (r#"["EOSE","g17",{"a":1},2]"#, Heard::Eose(sub, None)),
            (r#"["EOSE","g0"]"#, Heard::Eose(SubId(0), None)),
            (r#" ["EOSE" , "g17" ] "#, Heard::Eose(sub, None)),
            (r#"["CLOSED","g17","blocked: no"]"#, Heard::Closed(sub, "blocked: no".into())),
            (r#"["CLOSED","g17"]"#, Heard::Closed(sub, String::new())),
            (r#"["CLOSED","","rate-limited: slow"]"#, Heard::Notice("rate-limited: slow".into())),
            (r#"["NOTICE","hello"]"#, Heard::Notice("hello".into())),
            (r#"["OK","ab",true,""]"#, Heard::Ok(true, String::new())),
            (r#"["OK","ab",false,"restricted: no"]"#, Heard::Ok(false, "restricted: no".into())),
            (r#"["OK","ab",true]"#, Heard::Ok(true, String::new())),
            (r#"["NEG-MSG","g17","61Ff"]"#, Heard::NegMsg(sub, vec![0x61, 0xff])),
            (r#"["NEG-ERR","g17","closed: x"]"#, Heard::NegErr(sub, "closed: x".into(), None)),
            (r#"["NEG-ERR","g17","blocked: x",500]"#, Heard::NegErr(sub, "blocked: x".into(), Some(500))),
            (r#"["NEG-ERR","g17","blocked: x","500"]"#, Heard::NegErr(sub, "blocked: x".into(), None)),
            (r#"["NEG-ERR","x","blocked: x"]"#, Heard::Notice("blocked: x".into())),
            (r#"["AUTH","challenge"]"#, Heard::Auth("challenge".into())),
        ] {
            assert_eq!(heard(text), expected, "{text}");
        }
    }

    #[test]
    fn what_means_nothing_and_what_is_nonsense() {
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
            assert_eq!(heard(&text), Heard::Alive, "{text}");
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
            r#"["EVENT","g1",[]]"#.to_owned(),
            format!(r#"["EVENT","g1",{}]"#, own.replace("\"kind\":1,", "\"kind\":2,")),
            format!(r#"["AUTH","{}"]"#, "x".repeat(limits::MAX_COMPLAINT_BYTES + 1)),
        ] {
            assert_eq!(heard(&text), Heard::Nonsense, "{text}");
        }
    }

    #[test]
    fn m14_events_are_hashed_and_measured() {
        let text = event(1, "hi");
        let parsed = Arc::new(Event::parse(&text).expect("an event"));
        let good = Heard::Event(SubId(1), parsed, Standing::New);
        assert_eq!(heard(&format!(r#"["EVENT","g1",{text}]"#)), good);
        let padded = format!(r#"["EVENT","g1",{} {}]"#, &text[..1], " ".repeat(MOST) + &text[1..]);
        assert_eq!(heard(&padded), good, "spaces do not make an event larger");

        let large = event(1, &"x".repeat(MOST));
        assert_eq!(heard(&format!(r#"["EVENT","g1",{large}]"#)), Heard::TooLarge(SubId(1)));
        let state = event(kinds::STATE, &"x".repeat(MOST));
        assert!(matches!(heard(&format!(r#"["EVENT","g1",{state}]"#)), Heard::Event(..)), "states may be larger");
        let huge = format!(r#"["EVENT","g1",{{"content":"{}"}}]"#, "x".repeat(3 * limits::MAX_STATE_EVENT_BYTES));
        assert_eq!(heard(&huge), Heard::TooLarge(SubId(1)));
        let tags = format!("\"tags\":[{}[\"e\",\"x\"]]", "[],".repeat(limits::MAX_EVENT_TAGS));
        let many = event(1, "").replace("\"tags\":[[\"e\",\"x\"]]", &tags);
        assert_eq!(heard(&format!(r#"["EVENT","g1",{many}]"#)), Heard::TooLarge(SubId(1)));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "é".repeat(limits::MAX_COMPLAINT_BYTES);
        let Heard::Notice(text) = heard(&message::notice(&format!("x{long}"))) else { panic!("a notice") };
        assert_eq!(text.len(), limits::MAX_COMPLAINT_BYTES - 1);
        let Heard::Closed(_, text) = heard(&message::closed("g1", &long)) else { panic!("a refusal") };
        assert_eq!(text.len(), limits::MAX_COMPLAINT_BYTES);
    }

    #[test]
    fn what_we_say_is_what_our_own_door_understands() {
        let filter = Filter { kinds: Some(vec![1]), tags: vec![(b'a', vec!["x\"\n".into()])], ..Filter::default() };
        let (sub, id) = (SubId(17), "g17".to_owned());
        for (say, understood) in [
            (Say::Req(sub, vec![filter.clone(), Filter::default()]), {
                ClientMessage::Req(id.clone(), vec![filter.clone(), Filter::default()])
            }),
            (Say::Close(sub), ClientMessage::Close(id.clone())),
            (
                Say::NegOpen(sub, filter.clone(), vec![0x61, 0]),
                ClientMessage::NegOpen(id.clone(), filter, vec![0x61, 0]),
            ),
            (Say::NegMsg(sub, vec![0x61]), ClientMessage::NegMsg(id.clone(), vec![0x61])),
            (Say::NegClose(sub), ClientMessage::NegClose(id)),
        ] {
            let Written::Text(text) = write(&say) else { panic!("a text") };
            assert_eq!(ClientMessage::parse(&text).expect("a message"), understood, "{text}");
        }
        let say = Say::Auth("c".into());
        assert_eq!(write(&say), Written::Sign("c"));
        assert_eq!(ClientMessage::parse(&auth("{}")), Ok(ClientMessage::Auth("{}")));
    }
}

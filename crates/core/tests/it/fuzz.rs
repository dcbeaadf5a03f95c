//! Bounded fuzzing of all parsers of untrusted text. Valid messages are mutated, in the same way in every run, and a
//! text that still parses must be unchanged after it is written and parsed again.

use std::collections::BTreeSet;

use grasp_core::limits;
use grasp_core::nostr::message::{ClientMessage, MessageErrorReply};
use grasp_core::nostr::{Event, Filter, SignedEvent, json, relay_message, signed_event};
use grasp_core::sync::io::IncomingMessage;
use serde_json::Value;

/// About a second each in the dev profile.
const MESSAGES: usize = 50_000;
const EVENTS: usize = 50_000;
const FILTERS: usize = 50_000;

#[test]
fn mutated_client_messages_are_parsed_or_answered_with_an_error() {
    let seeds = messages();
    let mut random = Rng(0x9e37_79b9_7f4a_7c15);
    let mut parsed_count = 0;
    for _ in 0..MESSAGES {
        let text = mutated(&mut random, &seeds);
        match ClientMessage::parse(&text) {
            Ok(message) => {
                parsed_count += 1;
                check_message(&text, &message);
            }
            Err(bad) => check_error_reply(&text, &bad),
        }
    }
    assert!(
        (MESSAGES / 20..MESSAGES / 2).contains(&parsed_count),
        "mutations are too weak or too strong: {parsed_count}"
    );
}

#[test]
fn mutated_relay_messages_never_panic() {
    let seeds = relay_messages();
    let mut random = Rng(0xd6e8_feb8_6659_fd93);
    let mut parsed_count = 0;
    for _ in 0..MESSAGES {
        let text = mutated(&mut random, &seeds);
        parsed_count += usize::from(check_relay_message(&text));
    }
    assert!(
        (MESSAGES / 20..MESSAGES * 3 / 4).contains(&parsed_count),
        "mutations are too weak or too strong: {parsed_count}"
    );
}

#[test]
fn mutated_events_round_trip() {
    let seeds = events();
    let mut random = Rng(0xbf58_476d_1ce4_e5b9);
    let read = (0..EVENTS).filter(|_| check_event(&mutated(&mut random, &seeds))).count();
    assert!((EVENTS / 20..EVENTS * 3 / 4).contains(&read), "mutations are too weak or too strong: {read}");
}

#[test]
fn mutated_filters_round_trip() {
    let seeds = filters();
    let mut random = Rng(0x94d0_49bb_1331_11eb);
    let read = (0..FILTERS).filter(|_| check_filter(&mutated(&mut random, &seeds))).count();
    assert!((FILTERS / 20..FILTERS * 3 / 4).contains(&read), "mutations are too weak or too strong: {read}");
}

#[test]
fn every_seed_parses_as_its_type() {
    for text in messages() {
        check_message(&text, &ClientMessage::parse(&text).expect("a message"));
    }
    assert!(relay_messages().iter().all(|text| check_relay_message(text)));
    assert!(events().iter().all(|text| check_event(text)));
    assert!(filters().iter().all(|text| check_filter(text)));
}

// Properties

fn check_message(text: &str, message: &ClientMessage<'_>) {
    match message {
        ClientMessage::Event(event) | ClientMessage::Auth(event) => {
            assert!(text.contains(event), "not the text of the sender: {text}");
            check_event(event);
        }
        ClientMessage::Req(id, filters) | ClientMessage::Count(id, filters) => {
            check_id(id);
            assert!((1..=limits::MAX_FILTERS).contains(&filters.len()), "{text}");
            for filter in filters {
                check_parsed_filter(text, filter);
            }
        }
        ClientMessage::NegOpen(id, filter, _) => {
            check_id(id);
            check_parsed_filter(text, filter);
        }
        ClientMessage::Close(id) | ClientMessage::NegMsg(id, _) | ClientMessage::NegClose(id) => check_id(id),
    }
}

/// Returns whether a message is neither ignored nor invalid. Its texts are short, and the id of an event is its hash.
fn check_relay_message(text: &str) -> bool {
    match relay_message::parse(text, 64 * 1024) {
        IncomingMessage::Alive | IncomingMessage::Invalid => return false,
        IncomingMessage::Event(_, event, _) => assert_eq!(signed_event::compute_id(&event), event.id.0, "{text}"),
        IncomingMessage::Closed(_, message_text)
        | IncomingMessage::Notice(message_text)
        | IncomingMessage::Ok(_, message_text) => check_text(&message_text),
        IncomingMessage::NegErr(_, message_text, _) | IncomingMessage::Auth(message_text) => check_text(&message_text),
        IncomingMessage::NegMsg(_, bytes) => assert!(bytes.len() * 2 <= text.len(), "{text}"),
        IncomingMessage::TooLarge(_, event, _) => assert!(event.content.is_empty(), "{text}"),
        IncomingMessage::Eose(..) | IncomingMessage::InvalidEvent(..) => {}
    }
    true
}

fn check_text(message_text: &str) {
    assert!(message_text.len() <= limits::MAX_NOTICE_BYTES, "{message_text}");
}

fn check_id(id: &str) {
    assert!((1..=limits::MAX_SUBSCRIPTION_ID_BYTES).contains(&id.len()), "{id}");
}

/// An error reply is one short line of JSON, and its reason has a machine-readable prefix.
fn check_error_reply(text: &str, bad: &MessageErrorReply) {
    let answer = bad.to_message();
    let parsed: Vec<String> = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer} to {text}"));
    let verb = match bad {
        MessageErrorReply::Notice(_) => "NOTICE",
        MessageErrorReply::Closed(..) => "CLOSED",
        MessageErrorReply::NegErr(..) => "NEG-ERR",
    };
    let reason = parsed.last().map(String::as_str).unwrap_or_default();
    assert_eq!((parsed[0].as_str(), parsed.len()), (verb, if verb == "NOTICE" { 2 } else { 3 }), "{answer}");
    assert!(reason.starts_with("invalid: ") || reason.starts_with("unsupported: "), "{answer} to {text}");
    assert!(answer.len() < 2_500 && reason.chars().count() < 250, "{answer} to {text}");
}

/// Returns whether a text is an event. An event must be unchanged after it is written and parsed again.
fn check_event(text: &str) -> bool {
    let claimed = Event::claimed_id(text);
    let event = match Event::parse(text) {
        Ok(event) => event,
        Err(why) => {
            assert!((1..250).contains(&why.to_string().chars().count()), "{why}: {text}");
            return false;
        }
    };
    assert_eq!(claimed, Some(event.id), "{text}");
    assert!(text.trim_start().starts_with('{'), "not a JSON object: {text}");
    let signed = SignedEvent::from_trusted(event.clone());
    assert_eq!(Event::parse(signed.json()).as_ref(), Ok(&event), "{text}");
    let ours: Value = serde_json::from_str(signed.json()).unwrap_or_else(|problem| panic!("{problem}: {text}"));
    assert_eq!(ours.as_object().map(serde_json::Map::len), Some(7), "unsigned members are dropped: {text}");
    // Unsigned members may be nested deeper than serde_json allows; our parser only skips them.
    if let Ok(theirs) = serde_json::from_str::<Value>(text) {
        for (name, value) in ours.as_object().into_iter().flatten() {
            assert_eq!(value, &theirs[name], "{name} of {text}");
        }
    }
    check_tag_spans(&event, &signed);
    true
}

/// Each indexed tag has exactly one span, and its text is the one that filters are compared with.
fn check_tag_spans(event: &Event, signed: &SignedEvent) {
    let spans: Vec<(u8, &str)> = signed.tag_spans().iter().map(|span| (span.letter, signed.span_text(*span))).collect();
    let distinct: BTreeSet<(u8, String)> = spans.iter().map(|(letter, text)| (*letter, (*text).to_owned())).collect();
    let expected = event.indexed_tags().map(|(letter, value)| (letter, json::escape(value))).collect();
    assert_eq!((spans.len(), &distinct), (distinct.len(), &expected), "{}", signed.json());
}

/// Returns whether a text is a filter. A filter must be unchanged after it is written and parsed again.
fn check_filter(text: &str) -> bool {
    match Filter::parse(text) {
        Ok(filter) => {
            check_parsed_filter(text, &filter);
            true
        }
        Err(why) => {
            assert!((1..250).contains(&why.to_string().chars().count()), "{why}: {text}");
            false
        }
    }
}

fn check_parsed_filter(text: &str, filter: &Filter) {
    assert_eq!(Filter::parse(&filter.to_json()).as_ref(), Ok(filter), "{text}");
    let values = filter.ids.as_ref().map_or(0, Vec::len)
        + filter.authors.as_ref().map_or(0, Vec::len)
        + filter.kinds.as_ref().map_or(0, Vec::len)
        + filter.tags.iter().map(|(_, values)| values.len()).sum::<usize>();
    assert!(values <= limits::MAX_FILTER_VALUES, "{text}");
}

// Mutations

/// A random number generator with the same numbers in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, among: &[&'a T]) -> &'a T {
        among[self.below(among.len())]
    }

    /// Returns a random range of `text` of at most `most` bytes.
    fn piece(&mut self, text: &[u8], most: usize) -> std::ops::Range<usize> {
        let start = self.below(text.len() + 1);
        start..(start + self.below(most + 1)).min(text.len())
    }
}

/// Tokens that are significant for parsers of JSON, nostr or UTF-8.
const TOKENS: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "-1",
    "1.5",
    "1e400",
    "65536",
    "18446744073709551616",
    "0",
    "\"\"",
    "[]",
    "{}",
    "\"id\":",
    "\"kinds\":",
    "\"#e\":",
    "\"#long\":",
    "\"search\":",
    "\"limit\":",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\ud83d\\ude80",
    "\\/",
    "\\x",
    "\u{0}",
    "\u{1f}",
    "\u{7f}",
    "\u{feff}",
    "\u{2028}",
    "é",
    "🚀",
    "\"EVENT\"",
    "\"REQ\"",
    "\"NEG-OPEN\"",
    " ",
    "\n",
    "ab",
    "AB",
];

fn mutated(random: &mut Rng, seeds: &[String]) -> String {
    let mut text = seeds[random.below(seeds.len())].clone().into_bytes();
    let times = if random.below(2) == 0 { 1 } else { 1 + random.below(4) };
    for _ in 0..times {
        mutate(random, seeds, &mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn mutate(random: &mut Rng, seeds: &[String], text: &mut Vec<u8>) {
    let at = random.below(text.len() + 1);
    match random.below(14) {
        0 => {
            if let Some(byte) = text.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = text.get_mut(at) {
                *byte = b' ' + random.below(95) as u8;
            }
        }
        2 => drop(text.drain(random.piece(text, 3))),
        3 => drop(text.drain(random.piece(text, 60))),
        4 => {
            let again = text[random.piece(text, 60)].to_vec();
            drop(text.splice(at..at, again));
        }
        5 => {
            let other = seeds[random.below(seeds.len())].as_bytes();
            let graft = other[random.piece(other, 120)].to_vec();
            drop(text.splice(random.piece(text, 120), graft));
        }
        6 => {
            let token = random.pick(TOKENS).bytes();
            drop(text.splice(at..at, token));
        }
        7 => {
            let token = random.pick(TOKENS).bytes();
            drop(text.splice(random.piece(text, 10), token));
        }
        8 => nest(random, text, at),
        9 => {
            let run = vec![b"09afAF\" \\[{"[random.below(11)]; random.below(400)];
            drop(text.splice(at..at, run));
        }
        10 => swap_values(random, text),
        11 | 12 => lengthen_a_string(random, text),
        _ => text.truncate(text.len() - random.below(text.len().min(20) + 1)),
    }
}

/// Inserts many nested brackets, or only opening ones.
fn nest(random: &mut Rng, text: &mut Vec<u8>, at: usize) {
    let (open, close) = random.pick(&[&("[", "]"), &("{\"a\":", "}")]);
    let depth = random.below(400);
    let mut nested = open.repeat(depth);
    if random.below(2) == 0 {
        nested.push('1');
        nested.push_str(&close.repeat(depth));
    }
    drop(text.splice(at..at, nested.into_bytes()));
}

/// Inserts valid characters or escapes into a string, so that the text stays valid JSON and reaches the code behind the
/// JSON parser.
fn lengthen_a_string(random: &mut Rng, text: &mut Vec<u8>) {
    let quotes: Vec<usize> = (0..text.len()).filter(|at| text[*at] == b'"').collect();
    if quotes.is_empty() {
        return;
    }
    let at = quotes[random.below(quotes.len())] + 1;
    let more = random.pick(&[
        "x",
        "\\\\",
        "\\\"",
        "\\n",
        "\\u0000",
        "\\u001f",
        "\\/",
        "\\ud83d\\ude80",
        "é",
        "\u{7f}",
        "\u{2028}",
    ]);
    drop(text.splice(at..at, more.bytes()));
}

/// Replaces a JSON value: the text after a colon or a comma, up to the next comma.
fn swap_values(random: &mut Rng, text: &mut Vec<u8>) {
    let starts: Vec<usize> = (0..text.len()).filter(|at| matches!(text[*at], b':' | b',')).collect();
    if starts.is_empty() {
        return;
    }
    let start = starts[random.below(starts.len())] + 1;
    let end = (start..text.len()).find(|at| matches!(text[*at], b',' | b'}' | b']')).unwrap_or(text.len());
    let value = random.pick(&["1", "65535", "\"x\"", "[]", "[\"e\"]", "null", "{}", "-0", "1.0", "\"\\u0065\""]);
    drop(text.splice(start..end, value.bytes()));
}

// Seeds

fn events() -> Vec<String> {
    let event = |kind: u32, tags: &str, content: &str| {
        let (id, key, sig) = ("ab".repeat(32), "01".repeat(32), "f0".repeat(64));
        format!(
            r#"{{"id":"{id}","pubkey":"{key}","created_at":1700000000,"kind":{kind},"tags":{tags},"content":"{content}","sig":"{sig}"}}"#
        )
    };
    vec![
        event(1, "[]", ""),
        event(1, r#"[["e","x"],["e","x","again"],["E","x"],["p"],[],["t","a\nb","c"]]"#, r#"a \"quote\" and é🚀"#),
        event(65535, r#"[["-"],["expiration","1"],["d",""]]"#, r"\ud83d\ude80 \u0000 \u001f \/ \b\f\n\r\t"),
        event(30617, r#"[["d","my repo"],["clone","https://a.example/x.git"],["maintainers","k","l"]]"#, ""),
        event(30618, r#"[["d","r"],["refs/heads/main","aaaa"],["HEAD","ref: refs/heads/main"]]"#, ""),
        event(1, "[]", "").replace('{', r#"{ "unsigned" : [[{}],null] , "#),
    ]
}

fn filters() -> Vec<String> {
    let (a, b) = ("ab".repeat(32), "01".repeat(32));
    vec![
        "{}".to_owned(),
        r#"{"kinds":[1,30617,70000],"limit":0}"#.to_owned(),
        format!(r#"{{"ids":["{a}","{b}","{a}"],"authors":["{b}"]}}"#),
        r##"{"#e":["x","y\n\"","é🚀"],"#E":[],"#a":["30617:k:d"],"since":5,"until":18446744073709551615}"##.to_owned(),
        r#"{"note":{"deep":[[1]]},"limit":500,"kinds":[]}"#.to_owned(),
    ]
}

fn messages() -> Vec<String> {
    let filters = filters();
    let mut messages: Vec<String> = events().iter().map(|event| format!(r#"["EVENT",{event}]"#)).collect();
    messages.extend(filters.iter().map(|filter| format!(r#"["REQ","sub",{filter}]"#)));
    messages.extend([
        format!(r#"["REQ","all of them",{}]"#, filters.join(",")),
        format!(r#"["REQ","maximum number of filters",{}]"#, vec!["{}"; limits::MAX_FILTERS].join(",")),
        format!(r#"["COUNT","\u0073\n🚀",{},{}]"#, filters[1], filters[2]),
        format!(r#" [ "AUTH" , {} ] "#, events()[0]),
        r#"["CLOSE","sub"]"#.to_owned(),
        format!(r#"["NEG-OPEN","n",{},"6100000200"]"#, filters[3]),
        r#"["NEG-MSG","n","61AB"]"#.to_owned(),
        r#"["NEG-CLOSE","n"]"#.to_owned(),
    ]);
    messages
}

fn relay_messages() -> Vec<String> {
    let event = events().into_iter().map(|text| Event::parse(&text).expect("an event")).map(|mut event| {
        event.id.0 = signed_event::compute_id(&event);
        format!("[\"EVENT\",\"g7\",{}]", SignedEvent::from_trusted(event).json())
    });
    let others = [
        r#"["EOSE","g17",["finish"]]"#,
        r#"["EOSE","g1"]"#,
        r#"["CLOSED","g2","rate-limited: slow \u0064own"]"#,
        r#"["NOTICE","ERROR: too many concurrent REQs"]"#,
        r#"["OK","5c83da77af1dec6d7289834998ad7aafbd9e2191396d75ec3cc27f5a77226f36",false,"auth-required: x"]"#,
        r#"["NEG-MSG","g12","6100000200"]"#,
        r#"["NEG-ERR","g12","blocked: this query is too big",50000]"#,
        r#"["AUTH","c\u0068allenge"]"#,
    ];
    event.chain(others.map(str::to_owned)).collect()
}

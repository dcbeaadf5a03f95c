//! Malformed messages and frames: the response says what is wrong, and the server continues.

use std::io::{ErrorKind, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use grasp_core::nostr::{Event, EventId, PublicKey, SignedEvent, hex, signed_event};
use grasp_sim::signer::Author;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::{Client, Server, eventually};

// Malformed messages: the connection stays open.

/// A message with its description and the expected response, if any.
struct Case {
    what: &'static str,
    message: String,
    response: Option<Value>,
}

#[test]
fn malformed_messages_are_answered_and_the_connection_stays_open() {
    let server = Server::start(&[("POLICY", "open")]);
    let mut client = server.connect();
    let mut cases = malformed_messages();
    cases.extend(malformed_events());
    cases.extend(["REQ", "COUNT"].into_iter().flat_map(malformed_queries));
    cases.extend(malformed_negentropy());
    cases.extend(unusual_but_valid());
    assert!(cases.len() >= 60, "{} cases", cases.len());
    for case in &cases {
        let _case_name = CaseName(case.what);
        client.send_text(&case.message);
        if let Some(expected) = &case.response {
            expect_response(&client.receive(), expected);
        }
        expect_alive(&mut client);
    }
}

/// Asserts that two messages are equal; the text of a rejection may be longer than expected.
fn expect_response(response: &Value, expected: &Value) {
    let (Value::Array(got), Value::Array(wanted)) = (response, expected) else { panic!("{response}, not {expected}") };
    let (Some((got_text, got)), Some((text, wanted))) = (got.split_last(), wanted.split_last()) else {
        panic!("{response}, not {expected}")
    };
    assert_eq!(got, wanted, "{response}, not {expected}");
    match (got_text.as_str(), text.as_str()) {
        (Some(got), Some(text)) if is_rejection(wanted) => assert!(got.starts_with(text), "{response}, not {expected}"),
        _ => assert_eq!(got_text, text, "{response}, not {expected}"),
    }
}

fn is_rejection(response: &[Value]) -> bool {
    let verb = response[0].as_str().unwrap_or_default();
    matches!(verb, "NOTICE" | "CLOSED" | "NEG-ERR") || (verb == "OK" && response[2] == false)
}

/// Asserts that a query is answered, and that no other message precedes its response.
fn expect_alive(client: &mut Client) {
    client.send(&json!(["REQ", "alive", {"limit": 0}]));
    assert_eq!(client.receive(), json!(["EOSE", "alive"]));
    client.send(&json!(["CLOSE", "alive"]));
}

/// Prints the name of the case if the test panics.
struct CaseName(&'static str);

impl Drop for CaseName {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at: {}", self.0);
        }
    }
}

fn case(what: &'static str, message: impl Into<String>, response: Value) -> Case {
    Case { what, message: message.into(), response: Some(response) }
}

fn without_response(what: &'static str, message: impl Into<String>) -> Case {
    Case { what, message: message.into(), response: None }
}

fn notice(text: &str) -> Value {
    json!(["NOTICE", text])
}

fn malformed_messages() -> Vec<Case> {
    let shape = |text: &str| notice(&format!("invalid: not a client message: {text}"));
    vec![
        case("an empty message", "", shape("EOF while parsing a value")),
        case("only white space", " \r\n\t ", shape("EOF while parsing a value")),
        case("not JSON", "hello", shape("expected value")),
        case("half an array", r#"["REQ","x""#, shape("EOF while parsing a list")),
        case("half a string", r#"["REQ","x"#, shape("EOF while parsing a string")),
        case("an empty array", "[]", shape("the array is empty")),
        case("an object", r#"{"EVENT":{}}"#, shape("invalid type: map, expected an array")),
        case("a string", r#""REQ""#, shape("invalid type: string")),
        case("null", "null", shape("invalid type: null, expected an array")),
        case("a number as message type", "[1]", shape("invalid type: integer `1`, expected a string")),
        case("an array as message type", r#"[["REQ"],"x",{}]"#, shape("invalid type: sequence, expected a string")),
        case("an unknown message type", r#"["HELLO","x"]"#, notice("invalid: unknown message type \"HELLO\"")),
        case("a message type in lower case", r#"["req","x",{}]"#, notice("invalid: unknown message type \"req\"")),
        case("an empty message type", r#"["",1]"#, notice("invalid: unknown message type \"\"")),
        case("a message type of relays", r#"["EOSE","x"]"#, notice("invalid: unknown message type \"EOSE\"")),
        case(
            "a message type of a megabyte",
            format!(r#"["{}"]"#, "x".repeat(1 << 20)),
            notice(&format!("invalid: unknown message type \"{}\"", "x".repeat(40))),
        ),
        case("two messages at once", r#"["CLOSE","x"]["CLOSE","y"]"#, shape("trailing characters")),
        case("something after the array", r#"["CLOSE","x"] x"#, shape("trailing characters")),
        case("a NUL after the array", "[\"CLOSE\",\"x\"]\0", shape("trailing characters")),
        case("a NUL in a string", "[\"CLOSE\",\"\0\"]", shape("control character")),
        case("a line break in a string", "[\"CLOSE\",\"a\nb\"]", shape("control character")),
        case("a byte order mark", "\u{feff}[\"CLOSE\",\"x\"]", shape("expected value")),
        case("a trailing comma", r#"["CLOSE","x",]"#, shape("trailing comma")),
        case("single quotes", "['CLOSE','x']", shape("expected value")),
        case("an unknown escape", r#"["CLOSE","\x"]"#, shape("invalid escape")),
        case("a lone surrogate as message type", r#"["\ud800"]"#, shape("unexpected end of hex escape")),
        case("300 nested arrays", nested("[", "", "]", 300), shape("invalid type: sequence, expected a string")),
        case("500,000 unclosed arrays", "[".repeat(500_000), shape("EOF while parsing")),
        case("CLOSE without an id", r#"["CLOSE"]"#, notice("invalid: expected [\"CLOSE\", id]")),
        case("CLOSE with two ids", r#"["CLOSE","x","y"]"#, notice("invalid: expected [\"CLOSE\", id]")),
        case(
            "CLOSE with a number",
            r#"["CLOSE",1]"#,
            notice("invalid: a subscription id must be a string of 1 to 250 bytes"),
        ),
        without_response("CLOSE of an unknown subscription", r#"["CLOSE","unknown"]"#),
        case("AUTH without an event", r#"["AUTH"]"#, notice("invalid: expected [\"AUTH\", event]")),
        case("AUTH with a string", r#"["AUTH","x"]"#, notice("invalid: an event must be a JSON object")),
        case("AUTH with an empty object", r#"["AUTH",{}]"#, notice("invalid: missing field `id`")),
    ]
}

/// Nests `middle` `depth` times.
fn nested(open: &str, middle: &str, close: &str, depth: usize) -> String {
    format!("{}{middle}{}", open.repeat(depth), close.repeat(depth))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs()
}

fn malformed_events() -> Vec<Case> {
    let author = Author::new(1);
    let note = author.note(now(), &[&["t", "x"]], "fine");
    let good = note.json();
    let id = note.id.to_string();
    let event = |json: &str| format!("[\"EVENT\",{json}]");
    let ok_false = |id: &str, text: &str| json!(["OK", id, false, format!("invalid: {text}")]);
    // Cases that change one thing in a good event; its id can still be read.
    let swap = |what, from: &str, to: &str, text: &str| {
        assert!(good.contains(from), "{from} is not in {good}");
        case(what, event(&good.replace(from, to)), ok_false(&id, text))
    };
    let created_at = format!("\"created_at\":{}", note.created_at);
    let pubkey = format!("\"pubkey\":\"{}\"", note.pubkey);
    let sig = hex::encode(&note.sig);
    let mut cases = vec![
        case("EVENT alone", r#"["EVENT"]"#, notice("invalid: expected [\"EVENT\", event]")),
        case("EVENT with a string", event("\"x\""), notice("invalid: an event must be a JSON object")),
        case("EVENT with null", event("null"), notice("invalid: an event must be a JSON object")),
        case("EVENT with an empty array", event("[]"), notice("invalid: an event must be a JSON object")),
        case(
            "EVENT with an event's values in an array",
            event(&values_only(good)),
            notice("invalid: an event must be a JSON object"),
        ),
        case("EVENT with an empty object", event("{}"), notice("invalid: missing field")),
        case(
            "three extra elements",
            format!("[\"EVENT\",{good},1,2,3]"),
            notice("invalid: expected [\"EVENT\", event]"),
        ),
        case(
            "an id in capitals",
            event(&good.replace(&id, &id.to_uppercase())),
            notice("invalid: `id` is not lower-case hex"),
        ),
        case("an id that is short", event(&good.replace(&id, &id[2..])), notice("invalid: `id` is not lower-case hex")),
        case(
            "an id that is a number",
            event(&good.replace(&format!("\"{id}\""), "1")),
            notice("invalid: invalid type: integer `1`"),
        ),
        case(
            "two ids",
            event(&good.replacen('{', &format!("{{\"id\":\"{id}\","), 1)),
            notice("invalid: duplicate field `id`"),
        ),
        swap("no kind", ",\"kind\":1", "", "missing field `kind`"),
        swap("no signature", &format!(",\"sig\":\"{sig}\""), "", "missing field `sig`"),
        swap("two kinds", "\"kind\":1", "\"kind\":1,\"kind\":1", "duplicate field `kind`"),
        swap(
            "a kind above the maximum",
            "\"kind\":1",
            "\"kind\":65536",
            "invalid value: integer `65536`, expected u16",
        ),
        swap("a negative kind", "\"kind\":1", "\"kind\":-1", "invalid value: integer `-1`, expected u16"),
        swap("a kind as text", "\"kind\":1", "\"kind\":\"1\"", "invalid type: string \"1\", expected u16"),
        swap("a negative time", &created_at, "\"created_at\":-1", "invalid value: integer `-1`, expected u64"),
        swap(
            "a fractional time",
            &created_at,
            "\"created_at\":1.5",
            "invalid type: floating point `1.5`, expected u64",
        ),
        swap(
            "a time beyond 64 bits",
            &created_at,
            "\"created_at\":18446744073709551616",
            "invalid type: floating point",
        ),
        swap("a time above every number", &created_at, "\"created_at\":1e999", "number out of range"),
        swap(
            "the greatest time of 64 bits",
            &created_at,
            "\"created_at\":18446744073709551615",
            "created_at is more than 15 minutes in the future",
        ),
        swap("a time as text", &created_at, "\"created_at\":\"1\"", "invalid type: string \"1\", expected u64"),
        swap("a null time", &created_at, "\"created_at\":null", "invalid type: null, expected u64"),
        swap(
            "a key in capitals",
            &pubkey,
            &pubkey.to_uppercase().replace("PUBKEY", "pubkey"),
            "`pubkey` is not lower-case hex",
        ),
        swap("a short signature", &sig, &sig[2..], "`sig` is not lower-case hex"),
        swap("a number in a tag", "[\"t\",\"x\"]", "[\"t\",1]", "invalid type: integer `1`, expected a string"),
        swap("an array in a tag", "[\"t\",\"x\"]", "[\"t\",[\"x\"]]", "invalid type: sequence, expected a string"),
        swap("a tag that is a string", "[\"t\",\"x\"]", "\"t\"", "invalid type: string \"t\", expected a sequence"),
        swap("tags that are an object", "[[\"t\",\"x\"]]", "{}", "invalid type: map, expected a sequence"),
        swap("content that is null", "\"fine\"", "null", "invalid type: null, expected a string"),
        swap(
            "content that is 300 deep",
            "\"fine\"",
            &nested("[", "", "]", 300),
            "invalid type: sequence, expected a string",
        ),
        swap("a lone surrogate", "\"fine\"", "\"\\ud800\"", "unexpected end of hex escape"),
        swap("the second half of a surrogate", "\"fine\"", "\"\\udc00\"", "lone leading surrogate in hex escape"),
        swap("a surrogate and a letter", "\"fine\"", "\"\\ud800\\u0041\"", "lone leading surrogate in hex escape"),
        swap("changed content", "\"fine\"", "\"Fine\"", "the id is not the hash of the event"),
        swap("changed signature", &sig, &format!("{}{}", &sig[64..], &sig[..64]), "the signature does not verify"),
        case(
            "an id of zeros",
            event(&good.replace(&id, &"00".repeat(32))),
            ok_false(&"00".repeat(32), "the id is not the hash of the event"),
        ),
    ];
    let rejected = [
        (
            "a signature by another author",
            forged(&author.note(now(), &[], "mine"), &Author::new(2)),
            "the signature does not verify".to_owned(),
        ),
        ("a key that is not a point", event_with_invalid_key(), "the signature does not verify".to_owned()),
        (
            "expired",
            author.note(now(), &[&["expiration", "1"]], "").json().to_owned(),
            "the event has expired".to_owned(),
        ),
        (
            "from the future",
            author.note(now() + 3_600, &[], "").json().to_owned(),
            "created_at is more than 15 minutes".to_owned(),
        ),
        (
            "a credential",
            author.sign(22242, now(), &[], "").json().to_owned(),
            "authentication events cannot be published".to_owned(),
        ),
        (
            "an HTTP credential",
            author.sign(27235, now(), &[], "").json().to_owned(),
            "authentication events cannot be published".to_owned(),
        ),
        (
            "2,001 tags",
            author.note(now(), &vec![&["t", "x"][..]; 2_001], "").json().to_owned(),
            "the event has more than 2000 tags".to_owned(),
        ),
        {
            let large = author.note(now(), &[], &"x".repeat(200_000)).json().to_owned();
            let text = format!("the event has {} bytes, the limit is 196608", large.len());
            ("an event over 192 KiB", large, text)
        },
    ];
    cases.extend(rejected.map(|(what, json, text)| {
        let id = json[7..71].to_owned();
        case(what, event(&json), ok_false(&id, &text))
    }));
    cases.push(case(
        "a response to a challenge that was never sent",
        format!("[\"AUTH\",{good}]"),
        ok_false(&id, "no challenge was sent"),
    ));
    cases
}

/// Returns the values of an event without their names, in the order of declaration.
fn values_only(json: &str) -> String {
    let event: Value = serde_json::from_str(json).expect("invalid JSON");
    let members = ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"];
    Value::from(members.map(|name| event[name].clone()).to_vec()).to_string()
}

/// Returns the event with the signature of another author.
fn forged(event: &SignedEvent, by: &Author) -> String {
    let other = by.note(event.created_at.0, &[], &event.content);
    event.json().replace(&hex::encode(&event.sig), &hex::encode(&other.sig))
}

/// Returns an event with a correct id whose author is not a point on the curve.
fn event_with_invalid_key() -> String {
    let mut event = Author::new(1).note(now(), &[], "").event().clone();
    event.pubkey = PublicKey([0xff; 32]);
    event.id = EventId(signed_event::compute_id(&event));
    SignedEvent::from_trusted(event).json().to_owned()
}

fn malformed_queries(verb: &'static str) -> Vec<Case> {
    let message = |rest: &str| format!("[\"{verb}\",{rest}]");
    let filter = |filter: &str| format!("[\"{verb}\",\"q\",{filter}]");
    let closed = |text: &str| json!(["CLOSED", "q", text]);
    let bad = |text: &str| closed(&format!("invalid: bad filter: {text}"));
    let bad_id = || notice("invalid: a subscription id must be a string of 1 to 250 bytes");
    let form = "invalid: expected [\"REQ\" or \"COUNT\", id, filter, …]";
    let many = |count: usize| vec!["{}"; count].join(",");
    vec![
        case("a query without an id", format!("[\"{verb}\"]"), notice(form)),
        case("an empty id", message(r#""",{}"#), bad_id()),
        case("an id of 251 bytes", message(&format!("\"{}\",{{}}", "x".repeat(251))), bad_id()),
        case("an id of 126 letters of two bytes", message(&format!("\"{}\",{{}}", "é".repeat(126))), bad_id()),
        case("an id that is a number", message("1,{}"), bad_id()),
        case("an id that is null", message("null,{}"), bad_id()),
        case("an id that is a lone surrogate", message(r#""\ud800",{}"#), bad_id()),
        case("a filter instead of an id", message("{}"), bad_id()),
        case("no filter", message("\"q\""), closed(form)),
        case("21 filters", filter(&many(21)), closed("invalid: at most 20 filters in one message")),
        case("100 filters", filter(&many(100)), closed("invalid: at most 20 filters in one message")),
        case("100,000 filters", filter(&many(100_000)), closed("invalid: at most 20 filters in one message")),
        case("a filter that is an array", filter("[]"), bad("invalid type: sequence, expected a filter object")),
        case("a filter that is null", filter("null"), bad("invalid type: null, expected a filter object")),
        case("a filter that is text", filter("\"{}\""), bad("invalid type: string \"{}\", expected a filter object")),
        case("a second filter that is bad", filter("{},1"), bad("invalid type: integer `1`, expected a filter object")),
        case("a filter 300 deep", filter(&nested("[", "", "]", 300)), bad("invalid type: sequence")),
        case(
            "a short id in a filter",
            filter(r#"{"ids":["ab"]}"#),
            bad("`ids` values must be 64 lower-case hex digits"),
        ),
        case(
            "capitals",
            filter(&format!(r#"{{"authors":["{}"]}}"#, "AB".repeat(32))),
            bad("`authors` values must be 64 lower-case hex digits"),
        ),
        case(
            "ids that are not a list",
            filter(r#"{"ids":"x"}"#),
            bad("invalid type: string \"x\", expected a sequence"),
        ),
        case("ids that are null", filter(r#"{"ids":null}"#), bad("invalid type: null, expected a sequence")),
        case(
            "kinds that are not a list",
            filter(r#"{"kinds":1}"#),
            bad("invalid type: integer `1`, expected a sequence"),
        ),
        case("kinds as text", filter(r#"{"kinds":["1"]}"#), bad("invalid type: string \"1\", expected u64")),
        case("a negative kind", filter(r#"{"kinds":[-1]}"#), bad("invalid value: integer `-1`, expected u64")),
        case(
            "a fractional kind",
            filter(r#"{"kinds":[1.5]}"#),
            bad("invalid type: floating point `1.5`, expected u64"),
        ),
        case("a negative limit", filter(r#"{"limit":-1}"#), bad("invalid value: integer `-1`, expected u64")),
        case("a limit as text", filter(r#"{"limit":"5"}"#), bad("invalid type: string \"5\", expected u64")),
        case("a negative time", filter(r#"{"since":-1}"#), bad("invalid value: integer `-1`, expected u64")),
        case("a time as a list", filter(r#"{"until":[1]}"#), bad("invalid type: sequence, expected u64")),
        case("a number in a tag list", filter(r##"{"#e":[1]}"##), bad("invalid type: integer `1`, expected a string")),
        case(
            "a tag list that is text",
            filter(r##"{"#e":"x"}"##),
            bad("invalid type: string \"x\", expected a sequence"),
        ),
        case("a lone surrogate in a filter", filter(r##"{"#t":["\ud800"]}"##), bad("unexpected end of hex escape")),
        case("a search", filter(r#"{"search":"x"}"#), closed("unsupported: filter field `search` is not supported")),
        case(
            "a long tag",
            filter(r##"{"#long":["x"]}"##),
            closed("unsupported: filter field `#long` is not supported"),
        ),
        case(
            "an all-of condition",
            filter(r##"{"&t":["x"]}"##),
            closed("unsupported: filter field `&t` is not supported"),
        ),
        case(
            "20,001 values",
            filter(&format!(r##"{{"#t":[{}"x"]}}"##, "\"y\",".repeat(20_000))),
            closed("invalid: a filter can have at most 20000 values"),
        ),
        case(
            "20,001 values in all",
            filter(&format!(r##"{{"#t":["x"],"kinds":[{}1]}}"##, "1,".repeat(19_999))),
            closed("invalid: a filter can have at most 20000 values"),
        ),
    ]
}

fn malformed_negentropy() -> Vec<Case> {
    let err = |text: &str| json!(["NEG-ERR", "n", text]);
    let open = |message: &str| format!(r#"["NEG-OPEN","n",{{"kinds":[9]}},{message}]"#);
    let not_hex = || err("invalid: a negentropy message must be hex");
    let mut cases = vec![
        case("NEG-OPEN alone", r#"["NEG-OPEN"]"#, notice("invalid: expected [\"NEG-OPEN\", id, filter, message]")),
        case("NEG-OPEN without a filter", r#"["NEG-OPEN","n","61"]"#, notice("invalid: expected [\"NEG-OPEN\"")),
        case("NEG-OPEN with an empty id", r#"["NEG-OPEN","",{},"61"]"#, notice("invalid: a subscription id must be")),
        case(
            "NEG-OPEN with a bad filter",
            r#"["NEG-OPEN","n",[],"61"]"#,
            err("invalid: bad filter: invalid type: sequence"),
        ),
        case(
            "NEG-OPEN with a search",
            r#"["NEG-OPEN","n",{"search":"x"},"61"]"#,
            err("unsupported: filter field `search`"),
        ),
        case(
            "NEG-OPEN with a list of filters",
            r#"["NEG-OPEN","n",[{}],"61"]"#,
            err("invalid: bad filter: invalid type: sequence"),
        ),
        case("not hex", open("\"xy\""), not_hex()),
        case("half a byte", open("\"610\""), not_hex()),
        case("a message that is a number", open("61"), not_hex()),
        case("an empty message", open("\"\""), err("invalid: the message is empty")),
        case("not negentropy", open("\"00\""), err("invalid: 0x00 is not a negentropy version")),
        case("the version after the last", open("\"70\""), err("invalid: 0x70 is not a negentropy version")),
        case("a range that ends early", open("\"610000\""), err("invalid: the message ends inside a range")),
        case("a mode that does not exist", open("\"61000003\""), err("invalid: unknown range mode 3")),
        case(
            "a list of 2^63 ids",
            open("\"6100000281808080808080808000\""),
            err("invalid: a list announces 9223372036854775808 ids, but the message is too short for them"),
        ),
        case(
            "a prefix of 33 bytes",
            open(&format!("\"610121{}00\"", "00".repeat(33))),
            err("invalid: an id prefix of 33 bytes is longer than an id"),
        ),
        case("NEG-MSG alone", r#"["NEG-MSG","n"]"#, notice("invalid: expected [\"NEG-MSG\", id, message]")),
        case("NEG-MSG without a session", r#"["NEG-MSG","n","61"]"#, err("closed: unknown subscription")),
        case("NEG-MSG without hex", r#"["NEG-MSG","n","x"]"#, not_hex()),
        case("NEG-CLOSE alone", r#"["NEG-CLOSE"]"#, notice("invalid: expected [\"NEG-CLOSE\", id]")),
        without_response("NEG-CLOSE of an unknown session", r#"["NEG-CLOSE","unknown"]"#),
    ];
    for version in ["\"60\"", "\"62\"", "\"6f00000200\""] {
        cases.push(case("another version", open(version), json!(["NEG-MSG", "n", "61"])));
        cases.push(without_response("close of that session", r#"["NEG-CLOSE","n"]"#));
    }
    cases
}

/// Returns messages that are unusual but valid.
fn unusual_but_valid() -> Vec<Case> {
    let author = Author::new(3);
    let event = |what, json: &str| {
        let id = Event::claimed_id(json).expect("no id").to_string();
        case(what, format!("[\"EVENT\",{json}]"), json!(["OK", id, true, ""]))
    };
    let close = |id: &str| without_response("close of that subscription", format!("[\"CLOSE\",\"{id}\"]"));
    let note = |content: &str| author.note(now(), &[], content).json().to_owned();
    vec![
        case("white space everywhere", " \r\n\t[ \"REQ\" ,\n\"w\" , { \"limit\" : 0 } ] \n", json!(["EOSE", "w"])),
        close("w"),
        case(
            "an id of 250 bytes",
            format!("[\"REQ\",\"{}\",{{\"limit\":0}}]", "x".repeat(250)),
            json!(["EOSE", "x".repeat(250)]),
        ),
        close(&"x".repeat(250)),
        case(
            "an id of NUL, quote and emoji",
            r#"["REQ","\u0000\"\ud83d\ude80",{"limit":0}]"#,
            json!(["EOSE", "\0\"🚀"]),
        ),
        close(r#"\u0000\"\ud83d\ude80"#),
        case(
            "20 filters",
            format!("[\"COUNT\",\"c\",{}]", vec![r#"{"kinds":[9]}"#; 20].join(",")),
            json!(["COUNT", "c", {"count": 0}]),
        ),
        case(
            "a kind above the maximum in a filter",
            r#"["COUNT","c",{"kinds":[65536]}]"#,
            json!(["COUNT", "c", {"count": 0}]),
        ),
        case("empty lists", r#"["COUNT","c",{"ids":[]}]"#, json!(["COUNT", "c", {"count": 0}])),
        case(
            "an unknown member 300 deep",
            format!(r#"["COUNT","c",{{"kinds":[9],"x":{}}}]"#, nested("{\"a\":", "1", "}", 300)),
            json!(["COUNT", "c", {"count": 0}]),
        ),
        event("NUL, quotes and line breaks in an event", &note("\0\u{1}\u{1f}\u{7f}\"\\\n\r\t\u{8}\u{c}/")),
        event("unusual Unicode characters", &note("\u{feff}\u{2028}\u{fffd}\u{10ffff}🚀")),
        event("unnecessary escapes", &note("a/b").replace("a/b", r"\u0061\/b")),
        event(
            "an unsigned member",
            &note("extra").replacen('{', &format!("{{\"x\":{},", nested("[", "", "]", 300)), 1),
        ),
        event("members in another order", &reversed(&note("order"))),
        event("an event with 2,000 tags", author.note(now(), &vec![&["t", "x"][..]; 2_000], "").json()),
        event("empty tags", author.note(now(), &[&[], &[""], &["e"]], "").json()),
    ]
}

/// Returns the event with its members in reverse order.
fn reversed(json: &str) -> String {
    let event: Value = serde_json::from_str(json).expect("invalid JSON");
    let members = ["sig", "content", "tags", "kind", "created_at", "pubkey", "id"];
    let members: Vec<String> = members.iter().map(|name| format!("\"{name}\": {}", event[name])).collect();
    format!("{{{}}}", members.join(", "))
}

#[test]
fn protected_event_triggers_a_challenge_and_invalid_responses_are_rejected() {
    let server = Server::start(&[("POLICY", "open")]);
    let author = Author::new(1);
    let protected = author.note(now(), &[&["-"]], "mine");
    // The tag may be written with white space, as some libraries do.
    for text in [protected.json().to_owned(), protected.json().replace("[[\"-\"]]", "[ [ \"-\" ] ]")] {
        let mut client = server.connect();
        client.send_text(&format!("[\"EVENT\",{text}]"));
        let auth = client.receive();
        assert_eq!(auth[0], "AUTH", "{auth} for {text}");
        let challenge = auth[1].as_str().expect("no challenge").to_owned();
        expect_response(&client.receive(), &json!(["OK", protected.id.to_string(), false, "auth-required: "]));

        let relay = server.url();
        let tags = |relay: &str, challenge: &str| {
            vec![["relay", relay].map(str::to_owned).to_vec(), ["challenge", challenge].map(str::to_owned).to_vec()]
        };
        for (what, event, text) in [
            (
                "the wrong kind",
                author.sign_owned(1, now(), tags(&relay, &challenge), ""),
                "invalid: authentication events must have kind 22242",
            ),
            (
                "another challenge",
                author.sign_owned(22242, now(), tags(&relay, "x"), ""),
                "invalid: the challenge does not match",
            ),
            (
                "another relay",
                author.sign_owned(22242, now(), tags("wss://else.example", &challenge), ""),
                "invalid: the relay tag",
            ),
            ("long ago", author.sign_owned(22242, now() - 3_600, tags(&relay, &challenge), ""), "invalid: created_at"),
            ("no tags", author.sign(22242, now(), &[], ""), "invalid: the challenge does not match"),
        ] {
            let _case_name = CaseName(what);
            client.send_text(&format!("[\"AUTH\",{}]", event.json()));
            expect_response(&client.receive(), &json!(["OK", event.id.to_string(), false, text]));
            assert!(!client.publish(&protected).0, "the connection is not authenticated");
            expect_alive(&mut client);
        }
    }
}

#[test]
fn authentication_attempts_are_limited() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    let event = Author::new(1).sign(22242, now(), &[], "");
    let responses: Vec<String> = (0..21)
        .map(|_| {
            client.send_text(&format!("[\"AUTH\",{}]", event.json()));
            client.receive()[3].as_str().expect("not text").to_owned()
        })
        .collect();
    assert!(
        responses[..20].iter().all(|text| text == "invalid: no challenge was sent on this connection"),
        "{responses:?}"
    );
    assert_eq!(responses[20], "rate-limited: too many authentication attempts");
    expect_alive(&mut client);
}

/// CLOSED and NEG-ERR tell the client that a subscription has ended, so it must not stay open.
#[test]
fn rejection_closes_the_subscription_with_that_id() {
    let server = Server::start(&[("POLICY", "open"), ("RELAY_MAX_NEG_SESSIONS", "1")]);
    let mut client = server.connect();
    client.subscribe("s", &[json!({"kinds": [1]})]);
    client.send(&json!(["REQ", "s", {"search": "x"}]));
    expect_response(&client.receive(), &json!(["CLOSED", "s", "unsupported: "]));
    let event = Author::new(1).note(now(), &[], "not delivered");
    client.send_text(&format!("[\"EVENT\",{}]", event.json()));
    assert_eq!(client.receive(), json!(["OK", event.id.to_string(), true, ""]));
    // The event is broadcast before this query is answered.
    expect_alive(&mut client);

    for rejected in [json!(["NEG-MSG", "n", "not hex"]), json!(["NEG-OPEN", "n", {"search": "x"}, "61"])] {
        client.send(&json!(["NEG-OPEN", "n", {"kinds": [9]}, "61"]));
        assert_eq!(client.receive(), json!(["NEG-MSG", "n", "61"]));
        client.send(&rejected);
        assert_eq!(client.receive()[0], "NEG-ERR", "{rejected}");
        client.send(&json!(["NEG-MSG", "n", "61"]));
        assert_eq!(client.receive(), json!(["NEG-ERR", "n", "closed: unknown subscription"]), "after {rejected}");
    }
}

// Malformed frames: the connection is closed with the matching code; other connections are not affected.

const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const FIN: u8 = 0x80;

/// Returns a client frame. The mask is all zeros, so the payload is unchanged.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = frame_header(first, payload.len() as u64);
    frame.extend_from_slice(payload);
    frame
}

/// Returns the header of a client frame with a payload of `length` bytes.
fn frame_header(first: u8, length: u64) -> Vec<u8> {
    let mut head = vec![first];
    match length {
        0..=125 => head.push(0x80 | length as u8),
        126..=0xffff => {
            head.push(0x80 | 126);
            head.extend_from_slice(&(length as u16).to_be_bytes());
        }
        _ => {
            head.push(0x80 | 127);
            head.extend_from_slice(&length.to_be_bytes());
        }
    }
    head.extend_from_slice(&[0; 4]);
    head
}

#[test]
fn malformed_frames_close_the_connection_with_the_matching_code() {
    let server = Server::start(&[]);
    let megabyte = vec![b' '; 1 << 20];
    let (invalid, too_big, protocol) = (CloseCode::Invalid, CloseCode::Size, CloseCode::Protocol);
    let cases: Vec<(&'static str, Vec<u8>, CloseCode)> = vec![
        ("invalid UTF-8", frame(FIN | TEXT, b"[\"REQ\xff\"]"), invalid),
        ("half a character at the end", frame(FIN | TEXT, b"\xf0\x9f\x9a"), invalid),
        ("a surrogate as UTF-8", frame(FIN | TEXT, b"\xed\xa0\x80"), invalid),
        ("an overlong slash", frame(FIN | TEXT, b"\xc0\xaf"), invalid),
        ("invalid UTF-8 in a later part", [frame(TEXT, b"[\""), frame(FIN, b"\xff\"]")].concat(), invalid),
        ("a close reason that is not UTF-8", frame(FIN | CLOSE, b"\x03\xe8\xff"), invalid),
        ("3 MiB in one frame", frame(FIN | TEXT, &megabyte.repeat(3)), too_big),
        (
            "3 MiB in three frames",
            [frame(TEXT, &megabyte), frame(0, &megabyte), frame(FIN, &megabyte)].concat(),
            too_big,
        ),
        ("3 MiB of binary data", frame(FIN | BINARY, &megabyte.repeat(3)), too_big),
        ("2 MiB and a byte", frame_header(FIN | TEXT, (2 << 20) + 1), too_big),
        ("a header that announces 4 GiB", frame_header(FIN | TEXT, 1 << 32), too_big),
        ("a header that announces 8 EiB", frame_header(FIN | TEXT, i64::MAX as u64), too_big),
        ("no mask", vec![FIN | TEXT, 2, b'[', b']'], protocol),
        ("a reserved bit", frame(FIN | 0x40 | TEXT, b"[]"), protocol),
        ("a reserved kind of frame", frame(FIN | 0x3, b"[]"), protocol),
        ("a reserved kind of control frame", frame(FIN | 0xb, b""), protocol),
        ("a fragmented ping", frame(PING, b"x"), protocol),
        ("a ping of 126 bytes", frame(FIN | PING, &[0; 126]), protocol),
        ("a continuation without a beginning", frame(FIN, b"[]"), protocol),
        ("a message within a message", [frame(TEXT, b"["), frame(FIN | TEXT, b"]")].concat(), protocol),
        ("a close code of one byte", frame(FIN | CLOSE, b"\x03"), protocol),
        ("an invalid close code", frame(FIN | CLOSE, &999u16.to_be_bytes()), protocol),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), protocol),
    ];
    let mut bystander = server.connect();
    for (what, bytes, code) in cases {
        let _case_name = CaseName(what);
        let mut client = server.connect();
        // The server may close the connection before it has read everything.
        let _ = client.socket.get_mut().write_all(&bytes);
        let frame = close_frame(&mut client).expect("no close frame");
        assert_eq!(frame.code, code, "{}", frame.reason);
        expect_alive(&mut server.connect());
        expect_alive(&mut bystander);
    }
}

/// Reads until the server closes the connection; returns its close frame, or `None` if there is none.
fn close_frame(client: &mut Client) -> Option<CloseFrame> {
    loop {
        match client.socket.read() {
            Ok(Message::Close(frame)) => return frame,
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => {
                panic!("the server neither responses nor closes the connection")
            }
            Err(_) => return None,
        }
    }
}

/// RFC 6455, 7.1.1: the server closes the TCP connection first. It still reads, because a client that is sending would
/// otherwise get a reset and could lose the close frame.
#[test]
fn connection_is_closed_to_the_client_after_a_malformed_frame() {
    let server = Server::start(&[]);
    // The server drops a connection after a second. A client that was delayed for so long tries again.
    eventually("end of the connection in one direction", || {
        let mut client = server.connect();
        let stream = client.socket.get_mut();
        stream.write_all(&frame(FIN | 0x3, b"")).expect("cannot write");
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("cannot read");
        assert_eq!(received.first(), Some(&(FIN | CLOSE)), "{received:?}");
        // The first byte to a connection that is dropped causes a reset; then the second byte cannot be written.
        stream.write_all(b"x").and_then(|()| stream.write_all(b"x")).ok()
    });
}

#[test]
fn close_frames_are_echoed() {
    let server = Server::start(&[]);
    for code in [CloseCode::Normal, CloseCode::Away, CloseCode::Library(4_000)] {
        let mut client = server.connect();
        let close = CloseFrame { code, reason: "thanks".into() };
        client.socket.close(Some(close.clone())).expect("cannot send");
        assert_eq!(close_frame(&mut client), Some(close));
    }
    let mut client = server.connect();
    client.socket.get_mut().write_all(&frame(FIN | CLOSE, b"")).expect("cannot write");
    assert!(matches!(client.socket.read(), Ok(Message::Close(None))), "an empty close frame is echoed as an empty one");
}

#[test]
fn unusual_frames_work() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    let request = r#"["REQ","é🚀",{"limit":0}]"#.as_bytes();

    // Fragmented, with a boundary inside a character and a ping between the fragments.
    let inside = request.iter().position(|byte| *byte >= 0x80).expect("not ASCII") + 1;
    let parts = [
        frame(TEXT, &request[..inside]),
        frame(FIN | PING, b"between"),
        frame(0, b""),
        frame(0, &request[inside..inside + 3]),
        frame(FIN, &request[inside + 3..]),
    ];
    client.socket.get_mut().write_all(&parts.concat()).expect("cannot write");
    assert_eq!(client.socket.read().expect("no pong"), Message::Pong("between".into()));
    assert_eq!(client.receive(), json!(["EOSE", "é🚀"]));

    // Byte by byte.
    for byte in frame(FIN | TEXT, request) {
        client.socket.get_mut().write_all(&[byte]).expect("cannot write");
    }
    assert_eq!(client.receive(), json!(["EOSE", "é🚀"]));

    // A message of exactly the maximum size.
    let mut longest = request.to_vec();
    longest.resize(2 << 20, b' ');
    client.socket.get_mut().write_all(&frame(FIN | TEXT, &longest)).expect("cannot write");
    assert_eq!(client.receive(), json!(["EOSE", "é🚀"]));

    // Pings with and without payload, up to the longest.
    for payload in [&b""[..], b"hello", &[0xff; 125]] {
        client.socket.send(Message::Ping(payload.to_vec().into())).expect("cannot send");
        assert_eq!(client.socket.read().expect("no pong"), Message::Pong(payload.to_vec().into()));
    }

    // An unsolicited pong, and binary frames, one of which would be a valid message if it were text.
    client.socket.send(Message::Pong("unasked".into())).expect("cannot send");
    expect_alive(&mut client);
    for bytes in [&b"[\"CLOSE\",\"x\"]"[..], b"", &[0xff, 0, 0x80]] {
        client.socket.send(Message::binary(bytes.to_vec())).expect("cannot send");
        assert_eq!(client.receive(), notice("invalid: binary frames are not supported"));
        expect_alive(&mut client);
    }
}

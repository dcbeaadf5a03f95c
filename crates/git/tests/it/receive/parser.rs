//! Parsing of push requests from chunks of any size.

use grasp_core::admission::push::PushCommand;
use grasp_git::pktline::{push, push_flush, push_line};
use grasp_git::receive::{PushLimits, PushParseProgress, PushParser, PushRequest, PushRequestError};

const CAPABILITIES: &str =
    " report-status-v2 side-band-64k atomic quiet object-format=sha1 agent=git/2.47.3-Linux session-id=x push-options";

fn oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// Returns a command `old new name`. In `text` each id is one digit.
fn line(text: &str) -> String {
    let (digits, name) = text.split_at(2);
    let mut oids = digits.chars().map(oid);
    format!("{} {} {name}", oids.next().expect("an old id"), oids.next().expect("a new id"))
}

fn body(lines: &[&str], capabilities: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut capabilities = Some(capabilities);
    for text in lines {
        match capabilities.take().filter(|_| !text.starts_with("shallow")) {
            Some(capabilities) => push(&mut out, &[line(text).as_bytes(), b"\0", capabilities.as_bytes()]),
            None => push(&mut out, &[line(text).as_bytes()]),
        }
    }
    push_flush(&mut out);
    out
}

fn parse(bytes: &[u8], chunk_size: usize) -> Result<Option<(PushRequest, Vec<u8>)>, PushRequestError> {
    let mut parser = PushParser::new(PushLimits::for_commands(5));
    let mut done = None;
    for part in bytes.chunks(chunk_size.max(1)) {
        match &mut done {
            None => match parser.feed(part)? {
                PushParseProgress::More => {}
                PushParseProgress::Done { request, rest } => done = Some((request, rest)),
            },
            Some((_, rest)) => rest.extend_from_slice(part),
        }
    }
    Ok(done)
}

fn rejection_code(bytes: &[u8]) -> &'static str {
    let error = parse(bytes, bytes.len()).expect_err("rejected");
    assert_eq!(parse(bytes, 1), Err(error.clone()));
    assert!(error.to_string().len() > 20, "{error}");
    error.code()
}

#[test]
fn complete_push_is_parsed_from_chunks_of_any_size() {
    let mut bytes = Vec::new();
    push(&mut bytes, &[format!("shallow {}", oid('e')).as_bytes()]);
    push(&mut bytes, &[line("01refs/heads/main").as_bytes(), b"\0", CAPABILITIES.as_bytes()]);
    push_line(&mut bytes, &line("20refs/heads/old"));
    push_flush(&mut bytes);
    push_line(&mut bytes, "ci.skip");
    push(&mut bytes, &[b""]);
    push_flush(&mut bytes);
    bytes.extend_from_slice(b"PACK and so on");
    let whole = parse(&bytes, bytes.len()).expect("a valid request").expect("a complete request");
    let (request, rest) = &whole;
    assert_eq!(rest, b"PACK and so on");
    let expected = [
        PushCommand { name: "refs/heads/main".to_owned(), old: None, new: Some(oid('1')) },
        PushCommand { name: "refs/heads/old".to_owned(), old: Some(oid('2')), new: None },
    ];
    assert_eq!(request.commands, expected);
    assert_eq!((request.shallow, &request.options[..]), (1, &["ci.skip".to_owned(), String::new()][..]));
    let requested = &request.capabilities;
    assert!(requested.report_status_v2 && !requested.report_status && requested.side_band_64k);
    assert!(requested.atomic && requested.quiet);
    assert_eq!(
        (requested.object_format.as_deref(), requested.agent.as_deref()),
        (Some("sha1"), Some("git/2.47.3-Linux"))
    );
    for chunk_size in [1, 2, 3, 7, 100] {
        assert_eq!(
            parse(&bytes, chunk_size).expect("a valid request").as_ref(),
            Some(&whole),
            "chunks of {chunk_size}"
        );
    }
    for cut in 0..bytes.len() - 14 {
        assert_eq!(parse(&bytes[..cut], 1_000), Ok(None), "cut at {cut}");
    }
}

#[test]
fn push_without_commands_is_parsed() {
    let probe = parse(b"0000", 1).expect("a valid request").expect("a complete request");
    assert_eq!(probe, (PushRequest::default(), Vec::new()));
    let mut bytes = Vec::new();
    push_line(&mut bytes, &format!("shallow {}", oid('e')));
    push_flush(&mut bytes);
    let (request, rest) = parse(&bytes, 3).expect("a valid request").expect("a complete request");
    assert_eq!((request.shallow, request.commands.len(), rest.len()), (1, 0, 0));
}

/// The first command of the example in docs/protocol.md#rejection-of-a-push.
#[test]
fn first_command_has_the_specified_bytes() {
    let bytes = body(&["0arefs/heads/main"], " report-status side-band-64k agent=git/2.47.3");
    assert!(bytes.starts_with(b"0093000000000000"));
    assert!(parse(&bytes, 10).expect("a valid request").is_some());
}

#[test]
fn invalid_requests_have_stable_codes() {
    let with = |line: &[u8]| {
        let mut bytes = Vec::new();
        push(&mut bytes, &[line]);
        push_flush(&mut bytes);
        bytes
    };
    let sha256 = format!("{} {} refs/heads/main", "0".repeat(64), "a".repeat(64));
    let upper = line("01refs/heads/main").replace('1', "A");
    let long = format!("{}{}", line("01refs/heads/"), "x".repeat(1_024));
    let six: Vec<String> = (0..6).map(|n| format!("01refs/heads/{n}")).collect();
    let six: Vec<&str> = six.iter().map(String::as_str).collect();
    for (bytes, code) in [
        (b"xyz!".to_vec(), "E-PUSH-PACKET"),
        (b"0001".to_vec(), "E-PUSH-PACKET"),
        (with(b""), "E-PUSH-COMMAND"),
        (with(b"hello"), "E-PUSH-COMMAND"),
        (with(line("01").as_bytes()), "E-PUSH-COMMAND"),
        (with(b"1 2 refs/heads/main"), "E-PUSH-OBJECT-ID"),
        (with(upper.as_bytes()), "E-PUSH-OBJECT-ID"),
        (with(b"shallow 123"), "E-PUSH-OBJECT-ID"),
        (with(sha256.as_bytes()), "E-PUSH-SHA256"),
        (body(&["01refs/heads/main"], "object-format=sha256"), "E-PUSH-SHA256"),
        (body(&["01refs/heads/main"], "object-format=md5"), "E-PUSH-OBJECT-FORMAT"),
        (body(&six, ""), "E-PUSH-COMMANDS"),
        (body(&["01refs/heads/a", "02refs/heads/a"], ""), "E-PUSH-TWICE"),
        (with(b"push-cert\0report-status\n"), "E-PUSH-CERTIFICATE"),
        (with(&[line("01refs/heads/").as_bytes(), b"\xff"].concat()), "E-PUSH-REF-NAME"),
        (with(line("01refs/heads/\x1b[2J").as_bytes()), "E-PUSH-REF-NAME"),
        (with(long.as_bytes()), "E-PUSH-REF-NAME"),
    ] {
        assert_eq!(rejection_code(&bytes), code, "{}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn limits_apply_before_the_request_is_complete() {
    let limits = PushLimits { max_commands: 5, max_command_bytes: 200, max_option_bytes: 100 };
    let feed = |first: &[u8], again: &[u8]| {
        let mut parser = PushParser::new(limits);
        parser.feed(first).expect("accepted");
        (0..1_000).find_map(|_| parser.feed(again).err()).expect("rejected at the limit").code()
    };
    let mut shallow = Vec::new();
    push_line(&mut shallow, &format!("shallow {}", oid('e')));
    assert_eq!(feed(b"", &shallow), "E-PUSH-BYTES");
    let with_options = body(&["01refs/heads/main"], "push-options");
    assert_eq!(feed(&with_options, b"0004"), "E-PUSH-OPTIONS", "empty options are limited too");
    assert_eq!(feed(&with_options, b"0008more"), "E-PUSH-OPTIONS");
}

#[test]
fn request_is_available_after_an_error() {
    let mut parser = PushParser::new(PushLimits::default());
    let bytes = body(&["01refs/heads/a", "02refs/heads/a"], "report-status side-band-64k");
    assert_eq!(parser.feed(&bytes), Err(PushRequestError::DuplicateRef("refs/heads/a".to_owned())));
    assert!(parser.request_so_far().capabilities.side_band_64k && parser.request_so_far().capabilities.wants_report());
    assert_eq!(parser.request_so_far().commands.len(), 1);
}

/// A small random number generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn result_for_mutated_requests_does_not_depend_on_chunk_size() {
    let mut seed = body(&["01refs/heads/main", "20refs/heads/old", "34refs/tags/v1"], CAPABILITIES);
    push_line(&mut seed, "option");
    push_flush(&mut seed);
    seed.extend_from_slice(b"PACK");
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = seed.clone();
        for _ in 0..=rng.below(4) {
            let at = rng.below(bytes.len());
            match rng.below(4) {
                0 => bytes[at] = rng.below(256) as u8,
                1 => bytes[at] ^= 1 << rng.below(8),
                2 => drop(bytes.drain(at..(at + rng.below(20)).min(bytes.len()))),
                _ => bytes.insert(at, b"0 \n\0f"[rng.below(5)]),
            }
            if bytes.is_empty() {
                bytes.push(b'0');
            }
        }
        let whole = parse(&bytes, bytes.len());
        let chunk_size = 1 + rng.below(60);
        assert_eq!(parse(&bytes, chunk_size), whole, "{}", String::from_utf8_lossy(&bytes));
        if whole.is_ok() { accepted += 1 } else { rejected += 1 }
    }
    assert!(accepted > 1_000 && rejected > 1_000, "{accepted} accepted, {rejected} rejected");
}

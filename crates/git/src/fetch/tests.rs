//! Tests of the response parsers with responses of git and other servers, and with mutated ones.

use super::*;
use crate::pktline;
use crate::pktline::{PacketError, SideBand};

/// A small random number generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).expect("the bound is a usize")
    }
}

const OID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const PACK: &[u8] = b"PACK\0\0\0\x02\0\0\0\0 and so on";

/// Encodes one packet: a keyword for a special packet, a side band (`2…`, `3…`), or else a line.
fn packet(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match text {
        "FLUSH" => pktline::push_flush(&mut out),
        "DELIM" => pktline::push_delimiter(&mut out),
        "END" => out.extend_from_slice(b"0002"),
        "PACK" => pktline::push_band(&mut out, SideBand::Data, PACK),
        "KEEPALIVE" => out.extend_from_slice(b"0005\x01"),
        "EMPTY" => out.extend_from_slice(b"0004"),
        text if text.starts_with('2') => pktline::push_band(&mut out, SideBand::Progress, &text.as_bytes()[1..]),
        text if text.starts_with('3') => pktline::push_band(&mut out, SideBand::Error, &text.as_bytes()[1..]),
        "PLAIN" => out.extend_from_slice(PACK),
        text => pktline::push_line(&mut out, text),
    }
    out
}

fn bytes(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| packet(text)).collect()
}

fn parse(parser: fn() -> FetchResponseParser, bytes: &[u8], chunk_size: usize) -> Result<Vec<u8>, FetchResponseError> {
    let (mut parser, mut pack) = (parser(), Vec::new());
    for part in bytes.chunks(chunk_size) {
        parser.feed(part, &mut pack)?;
    }
    parser.finish().map(|()| pack)
}

/// Parses a response in chunks of several sizes, which must not change the result.
fn parse_all(parser: fn() -> FetchResponseParser, texts: &[&str]) -> Result<Vec<u8>, FetchResponseError> {
    let bytes = bytes(texts);
    let whole = parse(parser, &bytes, bytes.len().max(1));
    for chunk_size in [1, 2, 3, 5, 11] {
        assert_eq!(parse(parser, &bytes, chunk_size), whole, "{texts:?} in chunks of {chunk_size}");
    }
    whole
}

#[test]
fn packs_are_extracted_from_responses() {
    let v2 = |texts: &[&str]| parse_all(FetchResponseParser::v2, texts);
    let banded = |texts: &[&str]| parse_all(|| FetchResponseParser::v0(true), texts);
    let plain = |texts: &[&str]| parse_all(|| FetchResponseParser::v0(false), texts);
    let (ack, shallow) = (format!("ACK {OID}"), format!("shallow {OID}"));
    for whole in [
        v2(&["packfile", "PACK", "FLUSH"]),
        v2(&["packfile", "2Counting", "KEEPALIVE", "EMPTY", "PACK", "2done", "FLUSH"]),
        v2(&["acknowledgments", &ack, "ready", "DELIM", "packfile", "PACK", "FLUSH"]),
        v2(&["shallow-info", &shallow, "DELIM", "wanted-refs", "x", "DELIM", "packfile", "PACK", "FLUSH"]),
        v2(&["packfile", "PACK", "FLUSH", "END"]),
        v2(&["packfile", "PACK", "FLUSH", "nonsense"]),
        banded(&["NAK", "2Counting", "PACK", "FLUSH"]),
        banded(&[&ack, "PACK", "FLUSH"]),
        banded(&[&ack, &ack, "NAK", "KEEPALIVE", "PACK", "FLUSH"]),
        plain(&["NAK", "PLAIN"]),
        plain(&[&ack, "PLAIN"]),
    ] {
        assert_eq!(whole, Ok(PACK.to_vec()));
    }
    let twice = v2(&["packfile", "PACK", "PACK", "FLUSH"]);
    assert_eq!(twice, Ok([PACK, PACK].concat()));
}

#[test]
fn invalid_responses_have_specific_errors() {
    let v2 = |texts: &[&str]| parse_all(FetchResponseParser::v2, texts).expect_err("invalid");
    let banded = |texts: &[&str]| parse_all(|| FetchResponseParser::v0(true), texts).expect_err("invalid");
    let missing = format!("upload-pack: not our ref {OID}");
    assert_eq!(v2(&[&format!("ERR {missing}")]), FetchResponseError::NotOurRef(missing.clone()));
    assert_eq!(banded(&[&format!("ERR {missing}")]), FetchResponseError::NotOurRef(missing.clone()));
    assert_eq!(v2(&["packfile", &format!("ERR {missing}")]), FetchResponseError::NotOurRef(missing));
    let other = format!("want {OID} not valid");
    assert_eq!(v2(&[&format!("ERR {other}")]), FetchResponseError::NotOurRef(other), "as JGit sends it");
    assert_eq!(v2(&["ERR go\u{1b}[0m away"]), FetchResponseError::Rejected("go [0m away".to_owned()));
    assert_eq!(v2(&["packfile", "PACK", "3out of memory"]), FetchResponseError::Fatal("out of memory".to_owned()));
    assert_eq!(v2(&["NAK", "PACK", "FLUSH"]), FetchResponseError::UnexpectedLine("NAK".to_owned()), "v0");
    assert_eq!(v2(&["acknowledgments", "NAK", "FLUSH"]), FetchResponseError::NoPack);
    assert_eq!(v2(&["FLUSH"]), FetchResponseError::NoPack);
    assert_eq!(v2(&["packfile", "DELIM"]), FetchResponseError::UnexpectedLine("a delimiter".to_owned()));
    assert_eq!(v2(&["packfile", "hello"]), FetchResponseError::UnexpectedLine("hello".to_owned()));
    assert_eq!(banded(&["packfile", "PACK", "FLUSH"]), FetchResponseError::UnexpectedLine("packfile".to_owned()), "v2");
    assert_eq!(banded(&["PLAIN"]), FetchResponseError::Packet(PacketError::InvalidLength));
    assert_eq!((v2(&[]), banded(&[])), (FetchResponseError::Empty, FetchResponseError::Empty));
    assert_eq!(parse(FetchResponseParser::v2, b"000", 3), Err(FetchResponseError::Truncated));
    for truncated in [v2(&["acknowledgments"]), v2(&["packfile"]), v2(&["packfile", "PACK"]), banded(&["NAK", "PACK"])]
    {
        assert_eq!(truncated, FetchResponseError::Truncated);
    }
    let long = "x".repeat(60_000);
    let FetchResponseError::UnexpectedLine(text) = v2(&[&long]) else { panic!("another error") };
    assert_eq!(text.len(), MAX_EXCERPT);
}

#[test]
fn lines_and_progress_are_limited() {
    let dots = format!("2{}", ".".repeat(60_000));
    let mut parser = FetchResponseParser::v2();
    let mut pack = Vec::new();
    parser.feed(&packet("packfile"), &mut pack).expect("a valid section");
    let progress = packet(&dots);
    let error = (0..1_000).find_map(|_| parser.feed(&progress, &mut pack).err());
    assert_eq!(error, Some(FetchResponseError::TooVerbose));
    let mut parser = FetchResponseParser::v2();
    parser.feed(&packet("acknowledgments"), &mut pack).expect("a valid section");
    let error = (0..1_000_000).find_map(|_| parser.feed(b"0008NAK\n", &mut pack).err());
    assert_eq!(error, Some(FetchResponseError::TooVerbose));
    let mut parser = FetchResponseParser::v0(true);
    let error = (0..1_000_000).find_map(|_| parser.feed(b"0008NAK\n", &mut pack).err());
    assert_eq!((error, pack.len()), (Some(FetchResponseError::TooVerbose), 0));
}

#[test]
fn begin_and_end_of_the_pack_are_reported() {
    let (mut parser, mut pack) = (FetchResponseParser::v2(), Vec::new());
    assert!(!parser.has_begun());
    parser.feed(&packet("packfile"), &mut pack).expect("a valid section");
    assert!(parser.has_begun() && !parser.is_done());
    parser.feed(&bytes(&["PACK", "FLUSH"]), &mut pack).expect("a valid pack");
    assert!(parser.has_begun() && parser.is_done());
    parser.feed(b"more bytes", &mut pack).expect("bytes after the end are ignored");
    assert_eq!(pack, PACK);
}

#[test]
fn mutated_responses_do_not_break_the_parsers() {
    let corpus: Vec<Vec<Vec<u8>>> = [
        &["acknowledgments", "NAK", "DELIM", "packfile", "2Counting", "KEEPALIVE", "PACK", "3no", "FLUSH", "END"][..],
        &[
            "ACK aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "NAK",
            "PACK",
            "PLAIN",
            "ERR upload-pack: not our ref a",
            "FLUSH",
        ],
        &["# service=git-upload-pack", "FLUSH", "version 2", "agent=x", "object-format=sha1", "FLUSH"],
        &[
            "# service=git-upload-pack",
            "FLUSH",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HEAD\0side-band-64k",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa refs/tags/v1",
            "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb refs/tags/v1^{}",
            "shallow aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "FLUSH",
        ],
        &["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa refs/heads/x peeled:b", "unborn HEAD", "FLUSH"],
    ]
    .map(|texts| texts.iter().map(|text| packet(text)).collect())
    .into();
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..40_000 {
        let mut packets = corpus[rng.below(corpus.len())].clone();
        for _ in 0..rng.below(5) {
            mutate(&mut rng, &mut packets, &corpus);
        }
        let bytes = packets.concat();
        let chunk_size = 1 + rng.below(40);
        let parsers: [fn() -> FetchResponseParser; 3] =
            [FetchResponseParser::v2, || FetchResponseParser::v0(true), || FetchResponseParser::v0(false)];
        for parser in parsers {
            let result = parse(parser, &bytes, chunk_size);
            assert_eq!(result, parse(parser, &bytes, bytes.len().max(1)), "the chunk size must not matter");
            match result {
                Ok(pack) => {
                    accepted += 1;
                    assert!(pack.len() <= bytes.len());
                }
                Err(error) => {
                    rejected += 1;
                    assert!(error.to_string().len() < 5 * MAX_EXCERPT && !error.to_string().contains(char::is_control));
                }
            }
        }
        let selector = || WantSelector::new([OID.to_owned()], ["refs/".to_owned()]);
        let mut advertisement = RefAdvertisementParser::new(selector());
        let mut list = LsRefsParser::new(selector());
        let advertised = bytes
            .chunks(chunk_size)
            .try_for_each(|part| advertisement.feed(part))
            .and_then(|()| advertisement.finish());
        let listed = bytes.chunks(chunk_size).try_for_each(|part| list.feed(part)).and_then(|()| list.finish());
        for result in [advertised.map(|(_, selector)| selector), listed] {
            match result {
                Ok(selector) => {
                    accepted += 1;
                    assert!(selector.wants().iter().all(|want| want.len() == 40));
                }
                Err(error) => {
                    rejected += 1;
                    assert!(!error.to_string().contains(char::is_control), "{error}");
                }
            }
        }
    }
    assert!(accepted > 5_000 && rejected > 5_000, "{accepted} accepted, {rejected} rejected: both must be tested");
}

fn mutate(rng: &mut Rng, packets: &mut Vec<Vec<u8>>, others: &[Vec<Vec<u8>>]) {
    if packets.is_empty() {
        packets.push(b"0000".to_vec());
    }
    let index = rng.below(packets.len());
    match rng.below(6) {
        0 => drop(packets.remove(index)),
        1 => packets.insert(index, packets[rng.below(packets.len())].clone()),
        2 => {
            let other = &others[rng.below(others.len())];
            packets.insert(index, other[rng.below(other.len())].clone());
        }
        3 => {
            let other = rng.below(packets.len());
            packets.swap(index, other);
        }
        _ => {
            let packet = &mut packets[index];
            let at = rng.below(packet.len());
            match rng.below(3) {
                0 if !packet.is_empty() => packet[at] = u8::try_from(rng.below(256)).expect("a byte"),
                1 => packet.insert(at, b' '),
                _ => drop(packet.pop()),
            }
        }
    }
}

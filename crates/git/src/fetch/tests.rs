//! Answers of git, of others, and of nobody.

use super::*;
use crate::pktline;
use crate::pktline::{BadPacket, Band};

/// A small generator: the same answers in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).expect("it fits")
    }
}

const OID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const PACK: &[u8] = b"PACK\0\0\0\x02\0\0\0\0 and so on";

/// One packet of an answer, as it is written here: marks, bands, or a line.
fn packet(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    match text {
        "FLUSH" => pktline::push_flush(&mut out),
        "DELIM" => pktline::push_delimiter(&mut out),
        "END" => out.extend_from_slice(b"0002"),
        "PACK" => pktline::push_band(&mut out, Band::Data, PACK),
        "ALIVE" => out.extend_from_slice(b"0005\x01"),
        "NOTHING" => out.extend_from_slice(b"0004"),
        text if text.starts_with('2') => pktline::push_band(&mut out, Band::Progress, &text.as_bytes()[1..]),
        text if text.starts_with('3') => pktline::push_band(&mut out, Band::Fatal, &text.as_bytes()[1..]),
        "BARE" => out.extend_from_slice(PACK),
        text => pktline::push_line(&mut out, text),
    }
    out
}

fn bytes(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| packet(text)).collect()
}

fn read(parser: fn() -> AnswerParser, bytes: &[u8], piece: usize) -> Result<Vec<u8>, BadAnswer> {
    let (mut parser, mut pack) = (parser(), Vec::new());
    for part in bytes.chunks(piece) {
        parser.feed(part, &mut pack)?;
    }
    parser.finish().map(|()| pack)
}

fn heard(parser: fn() -> AnswerParser, texts: &[&str]) -> Result<Vec<u8>, BadAnswer> {
    let bytes = bytes(texts);
    let whole = read(parser, &bytes, bytes.len().max(1));
    for piece in [1, 2, 3, 5, 11] {
        assert_eq!(read(parser, &bytes, piece), whole, "{texts:?} in pieces of {piece}");
    }
    whole
}

#[test]
fn packs_come_with_words_around_them() {
    let second = |texts: &[&str]| heard(AnswerParser::second, texts);
    let banded = |texts: &[&str]| heard(|| AnswerParser::first(true), texts);
    let bare = |texts: &[&str]| heard(|| AnswerParser::first(false), texts);
    let (ack, shallow) = (format!("ACK {OID}"), format!("shallow {OID}"));
    for whole in [
        second(&["packfile", "PACK", "FLUSH"]),
        second(&["packfile", "2Counting", "ALIVE", "NOTHING", "PACK", "2done", "FLUSH"]),
        second(&["acknowledgments", &ack, "ready", "DELIM", "packfile", "PACK", "FLUSH"]),
        second(&["shallow-info", &shallow, "DELIM", "wanted-refs", "x", "DELIM", "packfile", "PACK", "FLUSH"]),
        second(&["packfile", "PACK", "FLUSH", "END"]),
        second(&["packfile", "PACK", "FLUSH", "nonsense"]),
        banded(&["NAK", "2Counting", "PACK", "FLUSH"]),
        banded(&[&ack, "PACK", "FLUSH"]),
        banded(&[&ack, &ack, "NAK", "ALIVE", "PACK", "FLUSH"]),
        bare(&["NAK", "BARE"]),
        bare(&[&ack, "BARE"]),
    ] {
        assert_eq!(whole, Ok(PACK.to_vec()));
    }
    let twice = second(&["packfile", "PACK", "PACK", "FLUSH"]);
    assert_eq!(twice, Ok([PACK, PACK].concat()));
}

#[test]
fn what_is_no_answer_says_why() {
    let second = |texts: &[&str]| heard(AnswerParser::second, texts).expect_err("bad");
    let banded = |texts: &[&str]| heard(|| AnswerParser::first(true), texts).expect_err("bad");
    let missing = format!("upload-pack: not our ref {OID}");
    assert_eq!(second(&[&format!("ERR {missing}")]), BadAnswer::NotOurRef(missing.clone()));
    assert_eq!(banded(&[&format!("ERR {missing}")]), BadAnswer::NotOurRef(missing.clone()));
    assert_eq!(second(&["packfile", &format!("ERR {missing}")]), BadAnswer::NotOurRef(missing));
    let other = format!("want {OID} not valid");
    assert_eq!(second(&[&format!("ERR {other}")]), BadAnswer::NotOurRef(other), "as JGit has it");
    assert_eq!(second(&["ERR go\u{1b}[0m away"]), BadAnswer::Refused("go [0m away".to_owned()));
    assert_eq!(second(&["packfile", "PACK", "3out of memory"]), BadAnswer::Fatal("out of memory".to_owned()));
    assert_eq!(second(&["NAK", "PACK", "FLUSH"]), BadAnswer::Line("NAK".to_owned()), "v0");
    assert_eq!(second(&["acknowledgments", "NAK", "FLUSH"]), BadAnswer::NoPack);
    assert_eq!(second(&["FLUSH"]), BadAnswer::NoPack);
    assert_eq!(second(&["packfile", "DELIM"]), BadAnswer::Line("a delimiter".to_owned()));
    assert_eq!(second(&["packfile", "hello"]), BadAnswer::Line("hello".to_owned()));
    assert_eq!(banded(&["packfile", "PACK", "FLUSH"]), BadAnswer::Line("packfile".to_owned()), "v2");
    assert_eq!(banded(&["BARE"]), BadAnswer::Packet(BadPacket::Length));
    assert_eq!((second(&[]), banded(&[])), (BadAnswer::Nothing, BadAnswer::Nothing));
    assert_eq!(read(AnswerParser::second, b"000", 3), Err(BadAnswer::Truncated));
    for truncated in
        [second(&["acknowledgments"]), second(&["packfile"]), second(&["packfile", "PACK"]), banded(&["NAK", "PACK"])]
    {
        assert_eq!(truncated, BadAnswer::Truncated);
    }
    let long = "x".repeat(60_000);
    let BadAnswer::Line(words) = second(&[&long]) else { panic!("a line") };
    assert_eq!(words.len(), MAX_WORDS);
}

#[test]
fn words_have_an_end() {
    let dots = format!("2{}", ".".repeat(60_000));
    let mut parser = AnswerParser::second();
    let mut pack = Vec::new();
    parser.feed(&packet("packfile"), &mut pack).expect("a section");
    let progress = packet(&dots);
    let bad = (0..1_000).find_map(|_| parser.feed(&progress, &mut pack).err());
    assert_eq!(bad, Some(BadAnswer::Verbose));
    let mut parser = AnswerParser::second();
    parser.feed(&packet("acknowledgments"), &mut pack).expect("a section");
    let bad = (0..1_000_000).find_map(|_| parser.feed(b"0008NAK\n", &mut pack).err());
    assert_eq!(bad, Some(BadAnswer::Verbose));
    let mut parser = AnswerParser::first(true);
    let bad = (0..1_000_000).find_map(|_| parser.feed(b"0008NAK\n", &mut pack).err());
    assert_eq!((bad, pack.len()), (Some(BadAnswer::Verbose), 0));
}

#[test]
fn whether_it_has_begun_and_is_done() {
    let (mut parser, mut pack) = (AnswerParser::second(), Vec::new());
    assert!(!parser.has_begun());
    parser.feed(&packet("packfile"), &mut pack).expect("a section");
    assert!(parser.has_begun() && !parser.is_done());
    parser.feed(&bytes(&["PACK", "FLUSH"]), &mut pack).expect("a pack");
    assert!(parser.has_begun() && parser.is_done());
    parser.feed(b"whatever follows", &mut pack).expect("nobody cares");
    assert_eq!(pack, PACK);
}

#[test]
fn nothing_breaks_the_readers() {
    let corpus: Vec<Vec<Vec<u8>>> = [
        &["acknowledgments", "NAK", "DELIM", "packfile", "2Counting", "ALIVE", "PACK", "3no", "FLUSH", "END"][..],
        &[
            "ACK aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "NAK",
            "PACK",
            "BARE",
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
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..40_000 {
        let mut packets = corpus[chance.below(corpus.len())].clone();
        for _ in 0..chance.below(5) {
            mutate(&mut chance, &mut packets, &corpus);
        }
        let bytes = packets.concat();
        let piece = 1 + chance.below(40);
        let parsers: [fn() -> AnswerParser; 3] =
            [AnswerParser::second, || AnswerParser::first(true), || AnswerParser::first(false)];
        for parser in parsers {
            let answer = read(parser, &bytes, piece);
            assert_eq!(answer, read(parser, &bytes, bytes.len().max(1)), "pieces change nothing");
            match answer {
                Ok(pack) => {
                    understood += 1;
                    assert!(pack.len() <= bytes.len());
                }
                Err(bad) => {
                    refused += 1;
                    assert!(bad.to_string().len() < 5 * MAX_WORDS && !bad.to_string().contains(char::is_control));
                }
            }
        }
        let listing = || Listing::new([OID.to_owned()], ["refs/".to_owned()]);
        let mut greeting = GreetingParser::new(listing());
        let mut list = ListParser::new(listing());
        let greeted = bytes.chunks(piece).try_for_each(|part| greeting.feed(part)).and_then(|()| greeting.finish());
        let listed = bytes.chunks(piece).try_for_each(|part| list.feed(part)).and_then(|()| list.finish());
        for outcome in [greeted.map(|(_, listing)| listing), listed] {
            match outcome {
                Ok(listing) => {
                    understood += 1;
                    assert!(listing.wants().iter().all(|want| want.len() == 40));
                }
                Err(bad) => {
                    refused += 1;
                    assert!(!bad.to_string().contains(char::is_control), "{bad}");
                }
            }
        }
    }
    assert!(understood > 5_000 && refused > 5_000, "{understood} {refused}: both happen");
}

fn mutate(chance: &mut Chance, packets: &mut Vec<Vec<u8>>, others: &[Vec<Vec<u8>>]) {
    if packets.is_empty() {
        packets.push(b"0000".to_vec());
    }
    let place = chance.below(packets.len());
    match chance.below(6) {
        0 => drop(packets.remove(place)),
        1 => packets.insert(place, packets[chance.below(packets.len())].clone()),
        2 => {
            let other = &others[chance.below(others.len())];
            packets.insert(place, other[chance.below(other.len())].clone());
        }
        3 => {
            let other = chance.below(packets.len());
            packets.swap(place, other);
        }
        _ => {
            let packet = &mut packets[place];
            let at = chance.below(packet.len());
            match chance.below(3) {
                0 if !packet.is_empty() => packet[at] = u8::try_from(chance.below(256)).expect("a byte"),
                1 => packet.insert(at, b' '),
                _ => drop(packet.pop()),
            }
        }
    }
}

//! The answer to `GET info/refs?service=git-upload-pack`: which protocol a server speaks, and in v0 its refs as well.

use std::ops::ControlFlow;

use super::ls_refs::{Hearer, is_zero, name_and_oid};
use super::packet_reader::Packets;
use super::words;
use crate::pktline::{BadPacket, Packet};

/// What a server says that it can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Side bands of the usual size.
    pub side_band_64k: bool,
    /// Deltas that say how far back their base lies.
    pub ofs_delta: bool,
    /// Packs that build upon what we have.
    pub thin_pack: bool,
    /// It likes to know who calls.
    pub agent: bool,
    /// Its repositories are such as ours.
    pub sha1: bool,
}

impl Default for Offer {
    fn default() -> Self {
        Self { side_band_64k: false, ofs_delta: false, thin_pack: false, agent: false, sha1: true }
    }
}

/// How a server greets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Greeting {
    /// In protocol v0, or v1, which is the same; its refs have been listed.
    First(Offer),
    /// In protocol v2.
    Second(Offer),
}

/// Why there is no greeting.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadGreeting {
    /// Not packets.
    #[error("{0}")]
    Packet(#[from] BadPacket),
    /// It refuses and says why.
    #[error("the server says: {0}")]
    Refused(String),
    /// Something else than a git server would say; its beginning.
    #[error("unexpected line '{0}'")]
    Line(String),
    /// It ends too early.
    #[error("the list of refs ends in the middle")]
    Truncated,
}

/// Where in the greeting we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Begin,
    /// Behind the name of the service, whose section has an end of its own.
    Service,
    /// A version, or the first ref.
    Version,
    /// The first ref of v0, behind which the capabilities stand.
    FirstRef,
    Refs,
    Capabilities,
    Done(Protocol),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protocol {
    First,
    Second,
}

/// Reads a greeting as it comes, and tells of the refs that it lists.
#[derive(Debug)]
pub struct GreetingParser<H> {
    packets: Packets,
    reader: Reader<H>,
}

#[derive(Debug)]
struct Reader<H> {
    state: State,
    offer: Offer,
    listing: H,
}

impl<H: Hearer> GreetingParser<H> {
    /// One that tells this one.
    #[must_use]
    pub fn new(listing: H) -> Self {
        let reader = Reader { state: State::Begin, offer: Offer::default(), listing };
        Self { packets: Packets::default(), reader }
    }

    /// Takes some bytes.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), BadGreeting> {
        if matches!(self.reader.state, State::Done(_)) {
            return Ok(());
        }
        let reader = &mut self.reader;
        self.packets.feed(bytes, |packet| {
            reader.hear(packet)?;
            let done = matches!(reader.state, State::Done(_));
            Ok::<_, BadGreeting>(if done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(())
    }

    /// There is no more to come.
    pub fn finish(self) -> Result<(Greeting, H), BadGreeting> {
        let Reader { state, offer, listing } = self.reader;
        match state {
            State::Done(Protocol::First) => Ok((Greeting::First(offer), listing)),
            State::Done(Protocol::Second) => Ok((Greeting::Second(offer), listing)),
            _ => Err(BadGreeting::Truncated),
        }
    }
}

impl<H: Hearer> Reader<H> {
    fn hear(&mut self, packet: Packet<'_>) -> Result<(), BadGreeting> {
        let line = match (packet, packet.line()) {
            (_, Some(line)) => line,
            (Packet::Flush, _) => return self.flush(),
            _ => return Err(BadGreeting::Line("a delimiter".to_owned())),
        };
        if let Some(why) = line.strip_prefix(b"ERR ") {
            return Err(BadGreeting::Refused(words(why)));
        }
        self.state = match self.state {
            State::Begin if line == b"# service=git-upload-pack" => State::Service,
            State::Begin | State::Version if line == b"version 2" => State::Capabilities,
            State::Begin | State::Version if line == b"version 1" => State::FirstRef,
            State::Begin | State::Version | State::FirstRef => return self.first_ref(line),
            State::Refs => {
                return if line.starts_with(b"shallow ") { Ok(()) } else { self.listed(line) };
            }
            State::Capabilities => {
                self.offered(line);
                State::Capabilities
            }
            State::Service | State::Done(_) => return Err(BadGreeting::Line(words(line))),
        };
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BadGreeting> {
        self.state = match self.state {
            State::Service => State::Version,
            // A server without anything that does not even say what it can do.
            State::Version | State::FirstRef | State::Refs => State::Done(Protocol::First),
            State::Capabilities => State::Done(Protocol::Second),
            State::Begin | State::Done(_) => return Err(BadGreeting::Line("a flush".to_owned())),
        };
        Ok(())
    }

    fn first_ref(&mut self, line: &[u8]) -> Result<(), BadGreeting> {
        let zero = line.iter().position(|byte| *byte == 0).ok_or_else(|| BadGreeting::Line(words(line)))?;
        for word in line[zero + 1..].split(|byte| *byte == b' ') {
            self.offered(word);
        }
        self.state = State::Refs;
        self.listed(&line[..zero])
    }

    fn listed(&mut self, line: &[u8]) -> Result<(), BadGreeting> {
        let (oid, name) = name_and_oid(line).ok_or_else(|| BadGreeting::Line(words(line)))?;
        match name.strip_suffix("^{}") {
            Some("capabilities") if is_zero(oid) => {}
            Some(name) => self.listing.peel(name, oid),
            None => self.listing.hear(name, oid, None),
        }
        Ok(())
    }

    fn offered(&mut self, word: &[u8]) {
        let (name, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (word, &b""[..]),
        };
        match name {
            b"side-band-64k" => self.offer.side_band_64k = true,
            b"ofs-delta" => self.offer.ofs_delta = true,
            b"thin-pack" => self.offer.thin_pack = true,
            b"agent" => self.offer.agent = true,
            b"object-format" => self.offer.sha1 = value == b"sha1",
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::Listing;
    use crate::pktline;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccccccccccccccccccccccccccc";

    fn bytes(lines: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for line in lines {
            match *line {
                "FLUSH" => pktline::push_flush(&mut out),
                line => pktline::push_line(&mut out, line),
            }
        }
        out
    }

    fn read(lines: &[&str]) -> Result<(Greeting, Vec<String>), BadGreeting> {
        let bytes = bytes(lines);
        let mut answers = [1, 7, bytes.len().max(1)].map(|piece| {
            let listing = Listing::new([A.to_owned()], ["refs/heads/".to_owned(), "refs/tags/".to_owned()]);
            let mut parser = GreetingParser::new(listing);
            bytes.chunks(piece).try_for_each(|part| parser.feed(part))?;
            parser.finish().map(|(greeting, listing)| (greeting, listing.wants()))
        });
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{answers:?}");
        std::mem::replace(&mut answers[0], Err(BadGreeting::Truncated))
    }

    #[test]
    fn servers_greet_in_their_own_ways() {
        let second = Greeting::Second(Offer { agent: true, ..Offer::default() });
        let capabilities =
            ["version 2", "agent=git/2", "ls-refs=unborn", "fetch=shallow", "object-format=sha1", "FLUSH"];
        assert_eq!(read(&capabilities), Ok((second, vec![])));
        let named = [&["# service=git-upload-pack", "FLUSH"], &capabilities[..]].concat();
        assert_eq!(read(&named), Ok((second, vec![])), "some servers name the service there, too");

        let main = format!("{A} refs/heads/main");
        let head = format!("{A} HEAD\0multi_ack side-band-64k ofs-delta thin-pack symref=HEAD:refs/heads/main agent=x");
        let tags = [format!("{B} refs/tags/v1"), format!("{C} refs/tags/v1^{{}}"), format!("{C} refs/pull/1/head")];
        let offer = Offer { side_band_64k: true, ofs_delta: true, thin_pack: true, agent: true, sha1: true };
        let lines = ["# service=git-upload-pack", "FLUSH", &head, &main, &tags[0], &tags[1], &tags[2], "FLUSH"];
        assert_eq!(read(&lines), Ok((Greeting::First(offer), vec![A.to_owned()])));
        let first = ["# service=git-upload-pack", "FLUSH", "version 1", &head, &main, "shallow 1", "FLUSH"];
        assert_eq!(read(&first), Ok((Greeting::First(offer), vec![A.to_owned()])));

        let nothing = format!("{} capabilities^{{}}\0ofs-delta object-format=sha256", "0".repeat(40));
        let offer = Offer { ofs_delta: true, sha1: false, ..Offer::default() };
        assert_eq!(
            read(&["# service=git-upload-pack", "FLUSH", &nothing, "FLUSH"]),
            Ok((Greeting::First(offer), vec![]))
        );
        assert_eq!(
            read(&["# service=git-upload-pack", "FLUSH", "FLUSH"]),
            Ok((Greeting::First(Offer::default()), vec![]))
        );
    }

    #[test]
    fn what_is_no_greeting() {
        let code = |lines: &[&str]| read(lines).expect_err("none");
        assert_eq!(code(&[]), BadGreeting::Truncated);
        assert_eq!(code(&["# service=git-upload-pack", "FLUSH"]), BadGreeting::Truncated);
        assert_eq!(code(&["version 2", "agent=x"]), BadGreeting::Truncated);
        assert_eq!(code(&["# service=git-upload-pack", "x"]), BadGreeting::Line("x".to_owned()));
        assert_eq!(code(&["ERR go\u{7}away"]), BadGreeting::Refused("go away".to_owned()));
        assert!(matches!(code(&["# service=git-receive-pack", "FLUSH"]), BadGreeting::Line(_)));
        assert!(matches!(code(&[&format!("{A} HEAD"), "FLUSH"]), BadGreeting::Line(_)));
        assert!(matches!(code(&[&format!("{A} HEAD\0x"), "nonsense", "FLUSH"]), BadGreeting::Line(_)));
        let mut parser = GreetingParser::new(Listing::new([], []));
        assert_eq!(parser.feed(b"<!DOCTYPE html>"), Err(BadGreeting::Packet(BadPacket::Length)));
    }
}

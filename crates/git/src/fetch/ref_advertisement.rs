//! Parses the response to `GET info/refs?service=git-upload-pack`: the protocol version of the server, and in v0 also
//! its refs.

use super::excerpt;
use super::ls_refs::{RefVisitor, is_zero_oid, split_ref_line};
use super::packet_reader::PacketReader;
use crate::pktline::{Packet, PacketError};

/// The advertised features of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerFeatures {
    /// Side bands of 64 KiB.
    pub side_band_64k: bool,
    /// Deltas that name their base by its distance.
    pub ofs_delta: bool,
    /// Packs with deltas against objects that the client has.
    pub thin_pack: bool,
    /// The agent name of the client.
    pub agent: bool,
    /// The object format is SHA-1, as it is here.
    pub sha1: bool,
}

impl Default for ServerFeatures {
    fn default() -> Self {
        Self { side_band_64k: false, ofs_delta: false, thin_pack: false, agent: false, sha1: true }
    }
}

/// The protocol version and the features of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefAdvertisement {
    /// Protocol v0, or v1, which is the same. The refs have been listed.
    V0(ServerFeatures),
    /// Protocol v2. The refs are requested with `ls-refs`.
    V2(ServerFeatures),
}

/// The reason why a list of refs cannot be read, from an advertisement or from `ls-refs`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefListError {
    /// Not pkt-lines.
    #[error("{0}")]
    Packet(#[from] PacketError),
    /// The server rejects the request.
    #[error("the server reports: {0}")]
    Rejected(String),
    /// A line that the protocol does not allow there; its beginning.
    #[error("unexpected line '{0}'")]
    UnexpectedLine(String),
    /// The list is incomplete.
    #[error("the list of refs is incomplete")]
    Truncated,
}

/// The position in an advertisement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AdvertisementState {
    Start,
    /// After the name of the service, whose section ends with a flush.
    ServiceHeader,
    /// Before a version, or the first ref.
    Version,
    /// Before the first ref of v0, which the capabilities follow.
    FirstRef,
    Refs,
    Capabilities,
    DoneV0,
    DoneV2,
}

/// Parses an advertisement from chunks of any size and passes the refs to a visitor.
#[derive(Debug)]
pub struct RefAdvertisementParser<V> {
    packets: PacketReader,
    advertisement: AdvertisementReader<V>,
}

#[derive(Debug)]
struct AdvertisementReader<V> {
    state: AdvertisementState,
    features: ServerFeatures,
    visitor: V,
}

impl<V: RefVisitor> RefAdvertisementParser<V> {
    /// Returns a parser that passes the refs to a visitor.
    #[must_use]
    pub fn new(visitor: V) -> Self {
        let (state, features) = (AdvertisementState::Start, ServerFeatures::default());
        Self { packets: PacketReader::default(), advertisement: AdvertisementReader { state, features, visitor } }
    }

    /// Parses the next bytes.
    ///
    /// # Errors
    /// If the response is malformed, or if the server reports an error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), RefListError> {
        if self.advertisement.is_done() {
            return Ok(());
        }
        let advertisement = &mut self.advertisement;
        self.packets.feed(bytes, |packet| {
            advertisement.read_packet(packet)?;
            Ok::<_, RefListError>(advertisement.is_done())
        })?;
        Ok(())
    }

    /// Ends the response and returns what it contained and the visitor.
    ///
    /// # Errors
    /// If the response is incomplete.
    pub fn finish(self) -> Result<(RefAdvertisement, V), RefListError> {
        let AdvertisementReader { state, features, visitor } = self.advertisement;
        match state {
            AdvertisementState::DoneV0 => Ok((RefAdvertisement::V0(features), visitor)),
            AdvertisementState::DoneV2 => Ok((RefAdvertisement::V2(features), visitor)),
            _ => Err(RefListError::Truncated),
        }
    }
}

impl<V: RefVisitor> AdvertisementReader<V> {
    fn is_done(&self) -> bool {
        matches!(self.state, AdvertisementState::DoneV0 | AdvertisementState::DoneV2)
    }

    fn read_packet(&mut self, packet: Packet<'_>) -> Result<(), RefListError> {
        use AdvertisementState::{Capabilities, DoneV0, DoneV2, FirstRef, Refs, ServiceHeader, Start, Version};
        let line = match (packet, packet.line()) {
            (_, Some(line)) => line,
            (Packet::Flush, _) => return self.read_flush(),
            _ => return Err(RefListError::UnexpectedLine("a delimiter".to_owned())),
        };
        if let Some(reason) = line.strip_prefix(b"ERR ") {
            return Err(RefListError::Rejected(excerpt(reason)));
        }
        self.state = match self.state {
            Start if line == b"# service=git-upload-pack" => ServiceHeader,
            Start | Version if line == b"version 2" => Capabilities,
            Start | Version if line == b"version 1" => FirstRef,
            Start | Version | FirstRef => return self.read_first_ref(line),
            Refs => {
                return if line.starts_with(b"shallow ") { Ok(()) } else { self.read_ref(line) };
            }
            Capabilities => {
                self.read_capability(line);
                Capabilities
            }
            ServiceHeader | DoneV0 | DoneV2 => return Err(RefListError::UnexpectedLine(excerpt(line))),
        };
        Ok(())
    }

    fn read_flush(&mut self) -> Result<(), RefListError> {
        use AdvertisementState::{Capabilities, DoneV0, DoneV2, FirstRef, Refs, ServiceHeader, Start, Version};
        self.state = match self.state {
            ServiceHeader => Version,
            // Some servers send nothing, not even capabilities, for an empty repository.
            Version | FirstRef | Refs => DoneV0,
            Capabilities => DoneV2,
            Start | DoneV0 | DoneV2 => return Err(RefListError::UnexpectedLine("a flush".to_owned())),
        };
        Ok(())
    }

    fn read_first_ref(&mut self, line: &[u8]) -> Result<(), RefListError> {
        let zero = line.iter().position(|byte| *byte == 0);
        let zero = zero.ok_or_else(|| RefListError::UnexpectedLine(excerpt(line)))?;
        for capability in line[zero + 1..].split(|byte| *byte == b' ') {
            self.read_capability(capability);
        }
        self.state = AdvertisementState::Refs;
        self.read_ref(&line[..zero])
    }

    fn read_ref(&mut self, line: &[u8]) -> Result<(), RefListError> {
        let (oid, name) = split_ref_line(line).ok_or_else(|| RefListError::UnexpectedLine(excerpt(line)))?;
        match name.strip_suffix("^{}") {
            Some("capabilities") if is_zero_oid(oid) => {}
            Some(name) => self.visitor.visit_peeled(name, oid),
            None => self.visitor.visit_ref(name, oid, None),
        }
        Ok(())
    }

    fn read_capability(&mut self, capability: &[u8]) {
        let (name, value) = match capability.iter().position(|byte| *byte == b'=') {
            Some(at) => (&capability[..at], &capability[at + 1..]),
            None => (capability, &b""[..]),
        };
        match name {
            b"side-band-64k" => self.features.side_band_64k = true,
            b"ofs-delta" => self.features.ofs_delta = true,
            b"thin-pack" => self.features.thin_pack = true,
            b"agent" => self.features.agent = true,
            b"object-format" => self.features.sha1 = value == b"sha1",
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::WantSelector;
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

    fn read(lines: &[&str]) -> Result<(RefAdvertisement, Vec<String>), RefListError> {
        let bytes = bytes(lines);
        let mut results = [1, 7, bytes.len().max(1)].map(|chunk_size| {
            let selector = WantSelector::new([A.to_owned()], ["refs/heads/".to_owned(), "refs/tags/".to_owned()]);
            let mut parser = RefAdvertisementParser::new(selector);
            bytes.chunks(chunk_size).try_for_each(|part| parser.feed(part))?;
            parser.finish().map(|(advertisement, selector)| (advertisement, selector.wants()))
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        std::mem::replace(&mut results[0], Err(RefListError::Truncated))
    }

    #[test]
    fn advertisements_of_all_versions_are_parsed() {
        let v2 = RefAdvertisement::V2(ServerFeatures { agent: true, ..ServerFeatures::default() });
        let capabilities =
            ["version 2", "agent=git/2", "ls-refs=unborn", "fetch=shallow", "object-format=sha1", "FLUSH"];
        assert_eq!(read(&capabilities), Ok((v2, vec![])));
        let with_header = [&["# service=git-upload-pack", "FLUSH"], &capabilities[..]].concat();
        assert_eq!(read(&with_header), Ok((v2, vec![])), "some servers send the service header in v2 too");

        let main = format!("{A} refs/heads/main");
        let head = format!("{A} HEAD\0multi_ack side-band-64k ofs-delta thin-pack symref=HEAD:refs/heads/main agent=x");
        let tags = [format!("{B} refs/tags/v1"), format!("{C} refs/tags/v1^{{}}"), format!("{C} refs/pull/1/head")];
        let features =
            ServerFeatures { side_band_64k: true, ofs_delta: true, thin_pack: true, agent: true, sha1: true };
        let lines = ["# service=git-upload-pack", "FLUSH", &head, &main, &tags[0], &tags[1], &tags[2], "FLUSH"];
        assert_eq!(read(&lines), Ok((RefAdvertisement::V0(features), vec![A.to_owned()])));
        let v1 = ["# service=git-upload-pack", "FLUSH", "version 1", &head, &main, "shallow 1", "FLUSH"];
        assert_eq!(read(&v1), Ok((RefAdvertisement::V0(features), vec![A.to_owned()])));

        let empty = format!("{} capabilities^{{}}\0ofs-delta object-format=sha256", "0".repeat(40));
        let features = ServerFeatures { ofs_delta: true, sha1: false, ..ServerFeatures::default() };
        assert_eq!(
            read(&["# service=git-upload-pack", "FLUSH", &empty, "FLUSH"]),
            Ok((RefAdvertisement::V0(features), vec![]))
        );
        assert_eq!(
            read(&["# service=git-upload-pack", "FLUSH", "FLUSH"]),
            Ok((RefAdvertisement::V0(ServerFeatures::default()), vec![]))
        );
    }

    #[test]
    fn invalid_advertisements_are_rejected() {
        let error = |lines: &[&str]| read(lines).expect_err("invalid");
        assert_eq!(error(&[]), RefListError::Truncated);
        assert_eq!(error(&["# service=git-upload-pack", "FLUSH"]), RefListError::Truncated);
        assert_eq!(error(&["version 2", "agent=x"]), RefListError::Truncated);
        assert_eq!(error(&["# service=git-upload-pack", "x"]), RefListError::UnexpectedLine("x".to_owned()));
        assert_eq!(error(&["ERR go\u{7}away"]), RefListError::Rejected("go away".to_owned()));
        assert!(matches!(error(&["# service=git-receive-pack", "FLUSH"]), RefListError::UnexpectedLine(_)));
        assert!(matches!(error(&[&format!("{A} HEAD"), "FLUSH"]), RefListError::UnexpectedLine(_)));
        assert!(matches!(error(&[&format!("{A} HEAD\0x"), "nonsense", "FLUSH"]), RefListError::UnexpectedLine(_)));
        let mut parser = RefAdvertisementParser::new(WantSelector::new([], []));
        assert_eq!(parser.feed(b"<!DOCTYPE html>"), Err(RefListError::Packet(PacketError::InvalidLength)));
    }
}

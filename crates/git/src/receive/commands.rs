//! Parses the beginning of a `git-receive-pack` request: `shallow` lines, commands, a flush, and push options if the
//! client has announced them. Protocol v0; a client that uses v1 sends the same.

use std::collections::BTreeSet;

use grasp_core::admission::push::PushCommand;
use grasp_core::limits;

use crate::pktline;
use crate::pktline::{Packet, PacketError};

/// Characters of a client's agent name that are kept. The name is logged.
const MAX_AGENT: usize = 100;

/// Limits on the part of a push before its pack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushLimits {
    /// Commands.
    pub max_commands: usize,
    /// Bytes of the command list, `shallow` lines and capabilities included.
    pub max_command_bytes: usize,
    /// Bytes of all push options together.
    pub max_option_bytes: usize,
}

impl PushLimits {
    /// Returns the limits for a push of at most this many refs.
    #[must_use]
    pub fn for_commands(max_commands: usize) -> Self {
        // Two object ids and a long name per command, and space for capabilities and some thousand `shallow` lines.
        Self { max_commands, max_command_bytes: max_commands * 512 + 256 * 1024, max_option_bytes: 64 * 1024 }
    }
}

impl Default for PushLimits {
    /// Two thousand refs are enough to mirror a large repository in one push.
    fn default() -> Self {
        Self::for_commands(2_000)
    }
}

/// The capabilities that the client has requested.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientCapabilities {
    /// The client reads a report with the result of each ref.
    pub report_status: bool,
    /// The same with option lines, which this server never sends.
    pub report_status_v2: bool,
    /// The response is sent in side bands.
    pub side_band_64k: bool,
    /// All refs are changed or none. This server always does so.
    pub atomic: bool,
    /// Push options follow the commands.
    pub push_options: bool,
    /// The client wants no progress texts.
    pub quiet: bool,
    /// The object format of the client's repository.
    pub object_format: Option<String>,
    /// The client's agent name: printable ASCII, shortened.
    pub agent: Option<String>,
}

impl ClientCapabilities {
    /// Returns whether the client reads a report.
    #[must_use]
    pub fn wants_report(&self) -> bool {
        self.report_status || self.report_status_v2
    }

    fn read(&mut self, list: &[u8]) {
        for word in String::from_utf8_lossy(list).split_ascii_whitespace() {
            match word.split_once('=') {
                Some(("object-format", format)) => self.object_format = Some(format.to_owned()),
                Some(("agent", agent)) => {
                    self.agent = Some(agent.chars().filter(char::is_ascii_graphic).take(MAX_AGENT).collect());
                }
                Some(_) => {}
                None => self.set(word),
            }
        }
    }

    fn set(&mut self, word: &str) {
        match word {
            "report-status" => self.report_status = true,
            "report-status-v2" => self.report_status_v2 = true,
            "side-band-64k" => self.side_band_64k = true,
            "atomic" => self.atomic = true,
            "push-options" => self.push_options = true,
            "quiet" => self.quiet = true,
            _ => {}
        }
    }
}

/// A push request without its pack.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PushRequest {
    /// The commands; empty in the probe that git sends before a large push.
    pub commands: Vec<PushCommand>,
    /// The requested capabilities.
    pub capabilities: ClientCapabilities,
    /// The number of `shallow` lines. They have no effect: complete history is required.
    pub shallow: usize,
    /// Push options.
    pub options: Vec<String>,
}

/// How far the request has been read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PushParseProgress {
    /// More bytes are needed.
    More,
    /// The request is complete.
    Done {
        /// The parsed request.
        request: PushRequest,
        /// The beginning of the pack, as far as it was in the bytes passed to the parser.
        rest: Vec<u8>,
    },
}

/// The reason why a push request is rejected before its pack is read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PushRequestError {
    /// Not pkt-lines.
    #[error("malformed push request: {0}")]
    Packet(#[from] PacketError),
    /// Not `<old> <new> <ref>`.
    #[error("malformed push command: expected <old> <new> <ref>")]
    Command,
    /// An object id that is not forty lowercase hex digits.
    #[error("invalid object id in a push command: expected 40 lowercase hex digits")]
    ObjectId,
    /// A client with a SHA-256 repository.
    #[error("SHA-256 repositories are not supported: push from a SHA-1 repository")]
    Sha256,
    /// An unknown object format.
    #[error("object format {0} is not supported: push from a SHA-1 repository")]
    ObjectFormat(String),
    /// More commands than the limit.
    #[error("the push changes more than {0} refs: push fewer refs at once")]
    TooManyCommands(usize),
    /// More bytes of commands than the limit.
    #[error("the push commands take more than {0} bytes: push fewer refs at once")]
    TooManyBytes(usize),
    /// A signed push.
    #[error("signed pushes are not supported: push without --signed; a signed state event authorises a push")]
    Certificate,
    /// More bytes of push options than the limit.
    #[error("the push options take more than {0} bytes")]
    Options(usize),
    /// Two commands for one ref.
    #[error("{0} is changed twice in one push")]
    DuplicateRef(String),
    /// A name that cannot be repeated in a report.
    #[error("a ref name is not UTF-8, has control characters or is longer than {} bytes", limits::MAX_REF_NAME_BYTES)]
    RefName,
}

impl PushRequestError {
    /// Returns the stable code of the reason.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Packet(_) => "E-PUSH-PACKET",
            Self::Command => "E-PUSH-COMMAND",
            Self::ObjectId => "E-PUSH-OBJECT-ID",
            Self::Sha256 => "E-PUSH-SHA256",
            Self::ObjectFormat(_) => "E-PUSH-OBJECT-FORMAT",
            Self::TooManyCommands(_) => "E-PUSH-COMMANDS",
            Self::TooManyBytes(_) => "E-PUSH-BYTES",
            Self::Certificate => "E-PUSH-CERTIFICATE",
            Self::Options(_) => "E-PUSH-OPTIONS",
            Self::DuplicateRef(_) => "E-PUSH-TWICE",
            Self::RefName => "E-PUSH-REF-NAME",
        }
    }

    /// Returns the ref that the reason applies to; `None` if it applies to the whole push.
    #[must_use]
    pub fn ref_name(&self) -> Option<&str> {
        match self {
            Self::DuplicateRef(name) => Some(name),
            _ => None,
        }
    }
}

/// Parses the beginning of a push, from chunks of any size.
#[derive(Debug)]
pub struct PushParser {
    limits: PushLimits,
    section: Section,
    /// The beginning of a packet that is not complete yet: never more than one packet.
    partial: Vec<u8>,
    names: BTreeSet<String>,
    request: PushRequest,
    /// Bytes of the section so far.
    section_bytes: usize,
}

/// The section that is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Section {
    Commands,
    Options,
    Pack,
}

impl PushParser {
    /// Returns a parser at the beginning of a request.
    #[must_use]
    pub fn new(limits: PushLimits) -> Self {
        Self {
            limits,
            section: Section::Commands,
            partial: Vec::new(),
            names: BTreeSet::new(),
            request: PushRequest::default(),
            section_bytes: 0,
        }
    }

    /// Returns what has been parsed so far. After an error, it determines the form of the response.
    #[must_use]
    pub fn request_so_far(&self) -> &PushRequest {
        &self.request
    }

    /// Parses the next bytes. Once the request is complete, the parser must not be used again: what follows is the
    /// pack.
    ///
    /// # Errors
    /// If the request is malformed, exceeds a limit or uses something that is not supported.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<PushParseProgress, PushRequestError> {
        let mut buffer = std::mem::take(&mut self.partial);
        buffer.extend_from_slice(bytes);
        let mut at = 0;
        while self.section != Section::Pack {
            let Some((packet, length)) = pktline::read(&buffer[at..])? else {
                buffer.drain(..at);
                self.partial = buffer;
                return Ok(PushParseProgress::More);
            };
            at += length;
            self.section_bytes += length;
            match self.section {
                Section::Commands => self.parse_command_packet(packet)?,
                Section::Options | Section::Pack => self.parse_option_packet(packet)?,
            }
        }
        buffer.drain(..at);
        Ok(PushParseProgress::Done { request: std::mem::take(&mut self.request), rest: buffer })
    }

    fn parse_command_packet(&mut self, packet: Packet<'_>) -> Result<(), PushRequestError> {
        if self.section_bytes > self.limits.max_command_bytes {
            return Err(PushRequestError::TooManyBytes(self.limits.max_command_bytes));
        }
        match packet {
            Packet::Flush => {
                self.section_bytes = 0;
                // A request without commands has no options, even if it announced them.
                let options = self.request.capabilities.push_options && !self.request.commands.is_empty();
                self.section = if options { Section::Options } else { Section::Pack };
                Ok(())
            }
            Packet::Data(_) => self.parse_line(packet.line().unwrap_or_default()),
            Packet::Delimiter | Packet::ResponseEnd => Err(PacketError::InvalidLength.into()),
        }
    }

    fn parse_line(&mut self, line: &[u8]) -> Result<(), PushRequestError> {
        let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
            Some(end) => (&line[..end], Some(&line[end + 1..])),
            None => (line, None),
        };
        if let Some(list) = capabilities {
            self.request.capabilities.read(list);
        }
        if line == b"push-cert" {
            return Err(PushRequestError::Certificate);
        }
        match self.request.capabilities.object_format.as_deref() {
            None | Some("sha1") => {}
            Some("sha256") => return Err(PushRequestError::Sha256),
            Some(other) => return Err(PushRequestError::ObjectFormat(other.chars().take(20).collect())),
        }
        if let Some(oid) = line.strip_prefix(b"shallow ") {
            parse_oid(oid)?.ok_or(PushRequestError::ObjectId)?;
            self.request.shallow += 1;
            return Ok(());
        }
        self.parse_command(line)
    }

    fn parse_command(&mut self, line: &[u8]) -> Result<(), PushRequestError> {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(PushRequestError::Command);
        };
        let (old, new) = (parse_oid(old)?, parse_oid(new)?);
        let name = std::str::from_utf8(name).map_err(|_| PushRequestError::RefName)?;
        if name.len() > limits::MAX_REF_NAME_BYTES || name.contains(char::is_control) {
            return Err(PushRequestError::RefName);
        }
        if name.is_empty() {
            return Err(PushRequestError::Command);
        }
        if self.request.commands.len() >= self.limits.max_commands {
            return Err(PushRequestError::TooManyCommands(self.limits.max_commands));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(PushRequestError::DuplicateRef(name.to_owned()));
        }
        self.request.commands.push(PushCommand { name: name.to_owned(), old, new });
        Ok(())
    }

    fn parse_option_packet(&mut self, packet: Packet<'_>) -> Result<(), PushRequestError> {
        // Each option counts with its length field, so the number of empty options is limited too.
        if self.section_bytes > self.limits.max_option_bytes {
            return Err(PushRequestError::Options(self.limits.max_option_bytes));
        }
        match packet {
            Packet::Flush => self.section = Section::Pack,
            Packet::Data(_) => {
                let option = packet.line().unwrap_or_default();
                self.request.options.push(String::from_utf8_lossy(option).into_owned());
            }
            Packet::Delimiter | Packet::ResponseEnd => return Err(PacketError::InvalidLength.into()),
        }
        Ok(())
    }
}

/// Parses an object id; `None` for the zeros that stand for no object.
fn parse_oid(text: &[u8]) -> Result<Option<String>, PushRequestError> {
    let hex = text.iter().all(u8::is_ascii_hexdigit);
    match text.len() {
        40 | 64 if text.iter().all(|byte| *byte == b'0') => Ok(None),
        64 if hex => Err(PushRequestError::Sha256),
        40 if hex && !text.iter().any(u8::is_ascii_uppercase) => Ok(Some(String::from_utf8_lossy(text).into_owned())),
        _ => Err(PushRequestError::ObjectId),
    }
}

//! The beginning of a `git-receive-pack` request: `shallow` lines, commands, a flush, and push options if the client
//! promised some. Protocol v0; a client that speaks v1 sends the same.

use std::collections::BTreeSet;

use grasp_core::admission::push::PushCommand;
use grasp_core::limits;

use crate::pktline;
use crate::pktline::{BadPacket, Packet};

/// Characters of a client's name that are kept: it stands in logs.
const MAX_AGENT: usize = 100;

/// How much a push may ask for before its pack begins.
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
    /// Limits for a push of so many refs.
    #[must_use]
    pub fn for_commands(max_commands: usize) -> Self {
        // Two object ids and a long name per command; a page of capabilities and some thousand `shallow` lines beside.
        Self { max_commands, max_command_bytes: max_commands * 512 + 256 * 1024, max_option_bytes: 64 * 1024 }
    }
}

impl Default for PushLimits {
    /// Two thousand refs at once is a mirror of a large repository.
    fn default() -> Self {
        Self::for_commands(2_000)
    }
}

/// What the client can do and wants done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// It wants to be told what became of each ref.
    pub report_status: bool,
    /// The same, with room for details that we never give.
    pub report_status_v2: bool,
    /// The answer comes in side bands.
    pub side_band_64k: bool,
    /// All refs or none; ours is always so.
    pub atomic: bool,
    /// Push options follow the commands.
    pub push_options: bool,
    /// It wants no progress.
    pub quiet: bool,
    /// The hash of its repository.
    pub object_format: Option<String>,
    /// What it calls itself: printable ASCII, shortened.
    pub agent: Option<String>,
}

impl Capabilities {
    /// Whether it reads a report.
    #[must_use]
    pub fn reports(&self) -> bool {
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

/// What a push asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PushRequest {
    /// The commands; none in the probe that git sends before a large push.
    pub commands: Vec<PushCommand>,
    /// What the client can do.
    pub capabilities: Capabilities,
    /// How many `shallow` lines there were. They change nothing: all history is demanded.
    pub shallow: usize,
    /// Push options.
    pub options: Vec<String>,
}

/// How far the request has been read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More bytes are needed.
    More,
    /// The request is complete.
    Done {
        /// What it asks for.
        request: PushRequest,
        /// The beginning of the pack, as far as it was in the bytes that were fed.
        rest: Vec<u8>,
    },
}

/// Why the beginning of a push is not understood or not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPush {
    /// Not pkt-lines.
    #[error("the push is not in git's format: {0}")]
    Packet(#[from] BadPacket),
    /// Not `<old> <new> <ref>`.
    #[error("the push has a line that is no command of the form <old> <new> <ref>")]
    Command,
    /// Something else than forty lowercase hex digits.
    #[error("the push names an object with something else than 40 lowercase hex digits")]
    ObjectId,
    /// A client with a SHA-256 repository.
    #[error("SHA-256 repositories are not supported: push from a SHA-1 repository")]
    Sha256,
    /// A hash nobody knows.
    #[error("objects of the format {0} are not supported: push from a SHA-1 repository")]
    ObjectFormat(String),
    /// More commands than one push may have.
    #[error("the push changes more than {0} refs: push fewer at once")]
    TooManyCommands(usize),
    /// More bytes than a command list may have.
    #[error("the list of refs takes more than {0} bytes: push fewer at once")]
    TooManyBytes(usize),
    /// A signed push.
    #[error("signed pushes are not supported: push without --signed; a signed state event authorises a push")]
    Certificate,
    /// Too many or too long push options.
    #[error("the push options take more than {0} bytes")]
    Options(usize),
    /// One ref in two commands.
    #[error("{0} is changed twice in one push")]
    Twice(String),
    /// A name that cannot be repeated in an answer.
    #[error("a ref name is not UTF-8, has control characters or is longer than {} bytes", limits::MAX_REF_NAME_BYTES)]
    RefName,
}

impl BadPush {
    /// The stable name of the reason.
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
            Self::Twice(_) => "E-PUSH-TWICE",
            Self::RefName => "E-PUSH-REF-NAME",
        }
    }

    /// The ref that the reason is about, if it is about one.
    #[must_use]
    pub fn about(&self) -> Option<&str> {
        match self {
            Self::Twice(name) => Some(name),
            _ => None,
        }
    }
}

/// Reads the beginning of a push, in whatever pieces it comes.
#[derive(Debug)]
pub struct PushParser {
    limits: PushLimits,
    section: Section,
    /// The beginning of a packet that is not complete: never more than one.
    unfinished: Vec<u8>,
    names: BTreeSet<String>,
    request: PushRequest,
    /// Bytes of the section so far.
    taken: usize,
}

/// What is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Section {
    Commands,
    Options,
    Pack,
}

impl PushParser {
    /// A parser that has read nothing.
    #[must_use]
    pub fn new(limits: PushLimits) -> Self {
        let request = PushRequest::default();
        Self { limits, section: Section::Commands, unfinished: Vec::new(), names: BTreeSet::new(), request, taken: 0 }
    }

    /// What has been understood so far. After an error it says whom to tell, and in which form.
    #[must_use]
    pub fn heard(&self) -> &PushRequest {
        &self.request
    }

    /// Takes bytes as they come. Once the request is complete the parser is used up: what follows is the pack.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, BadPush> {
        let mut buffer = std::mem::take(&mut self.unfinished);
        buffer.extend_from_slice(bytes);
        let mut at = 0;
        while self.section != Section::Pack {
            let Some((packet, length)) = pktline::read(&buffer[at..])? else {
                buffer.drain(..at);
                self.unfinished = buffer;
                return Ok(Progress::More);
            };
            at += length;
            self.taken += length;
            match self.section {
                Section::Commands => self.command_section(packet)?,
                Section::Options | Section::Pack => self.option_section(packet)?,
            }
        }
        buffer.drain(..at);
        Ok(Progress::Done { request: std::mem::take(&mut self.request), rest: buffer })
    }

    fn command_section(&mut self, packet: Packet<'_>) -> Result<(), BadPush> {
        if self.taken > self.limits.max_command_bytes {
            return Err(BadPush::TooManyBytes(self.limits.max_command_bytes));
        }
        match packet {
            Packet::Flush => {
                self.taken = 0;
                // A request without commands has no options either, whatever it promised.
                let options = self.request.capabilities.push_options && !self.request.commands.is_empty();
                self.section = if options { Section::Options } else { Section::Pack };
                Ok(())
            }
            Packet::Data(_) => self.line(packet.line().unwrap_or_default()),
            Packet::Delimiter | Packet::ResponseEnd => Err(BadPacket::Length.into()),
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<(), BadPush> {
        let (line, capabilities) = match line.iter().position(|byte| *byte == 0) {
            Some(end) => (&line[..end], Some(&line[end + 1..])),
            None => (line, None),
        };
        if let Some(list) = capabilities {
            self.request.capabilities.read(list);
        }
        if line == b"push-cert" {
            return Err(BadPush::Certificate);
        }
        match self.request.capabilities.object_format.as_deref() {
            None | Some("sha1") => {}
            Some("sha256") => return Err(BadPush::Sha256),
            Some(other) => return Err(BadPush::ObjectFormat(other.chars().take(20).collect())),
        }
        if let Some(oid) = line.strip_prefix(b"shallow ") {
            object_id(oid)?.ok_or(BadPush::ObjectId)?;
            self.request.shallow += 1;
            return Ok(());
        }
        self.command(line)
    }

    fn command(&mut self, line: &[u8]) -> Result<(), BadPush> {
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(BadPush::Command);
        };
        let (old, new) = (object_id(old)?, object_id(new)?);
        let name = std::str::from_utf8(name).map_err(|_| BadPush::RefName)?;
        if name.len() > limits::MAX_REF_NAME_BYTES || name.contains(char::is_control) {
            return Err(BadPush::RefName);
        }
        if name.is_empty() {
            return Err(BadPush::Command);
        }
        if self.request.commands.len() >= self.limits.max_commands {
            return Err(BadPush::TooManyCommands(self.limits.max_commands));
        }
        if !self.names.insert(name.to_owned()) {
            return Err(BadPush::Twice(name.to_owned()));
        }
        self.request.commands.push(PushCommand { name: name.to_owned(), old, new });
        Ok(())
    }

    fn option_section(&mut self, packet: Packet<'_>) -> Result<(), BadPush> {
        // Each option counts with its length field, so empty ones have an end too.
        if self.taken > self.limits.max_option_bytes {
            return Err(BadPush::Options(self.limits.max_option_bytes));
        }
        match packet {
            Packet::Flush => self.section = Section::Pack,
            Packet::Data(_) => {
                let option = packet.line().unwrap_or_default();
                self.request.options.push(String::from_utf8_lossy(option).into_owned());
            }
            Packet::Delimiter | Packet::ResponseEnd => return Err(BadPacket::Length.into()),
        }
        Ok(())
    }
}

/// An object id; `None` for the zeros that stand for no object.
fn object_id(text: &[u8]) -> Result<Option<String>, BadPush> {
    let hex = text.iter().all(u8::is_ascii_hexdigit);
    match text.len() {
        40 | 64 if text.iter().all(|byte| *byte == b'0') => Ok(None),
        64 if hex => Err(BadPush::Sha256),
        40 if hex && !text.iter().any(u8::is_ascii_uppercase) => Ok(Some(String::from_utf8_lossy(text).into_owned())),
        _ => Err(BadPush::ObjectId),
    }
}

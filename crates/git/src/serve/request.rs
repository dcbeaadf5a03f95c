//! What a client asks for.
//!
//! A fetch is read completely and written anew: git is given what we have understood, not what was sent.

use super::fetch_request::Question;
use super::lines::{Line, Lines};
use crate::pktline::BadPacket;
use crate::refs::{LsRefs, Refs};

/// The longest request, after decompression. git's client sends at most some 32,000 haves (1.6 MB), and a want for each
/// of twenty thousand refs is another megabyte.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Lines of a request: a body full of haves has 167,000.
pub(super) const MAX_LINES: usize = 170_000;

/// Prefixes of one `ls-refs`; with more than that all refs are listed, as git does. Six stand for one name.
const MAX_PREFIXES: usize = 65_536;

/// Characters of a line that are repeated to who sent it.
const MAX_EXCERPT: usize = 80;

/// The version of the protocol that a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protocol {
    /// Without a version.
    V0,
    /// Version 0 that says so.
    V1,
    /// Commands.
    V2,
}

impl Protocol {
    /// Reads a `Git-Protocol` header: keys parted by colons, of which the highest version that we know counts. Nothing
    /// of it is passed on.
    #[must_use]
    pub fn read(header: Option<&str>) -> Self {
        let version = |key: &str| match key {
            "version=1" => Self::V1,
            "version=2" => Self::V2,
            _ => Self::V0,
        };
        header.unwrap_or_default().split(':').map(version).max().unwrap_or(Self::V0)
    }

    /// The value of `GIT_PROTOCOL`.
    pub(super) fn variable(self) -> Option<&'static str> {
        match self {
            Self::V0 => None,
            Self::V1 => Some("version=1"),
            Self::V2 => Some("version=2"),
        }
    }
}

/// A request to `git-upload-pack`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// It wants nothing, as who clones an empty repository does. The answer is empty.
    Nothing,
    /// It wants to know refs.
    LsRefs(LsRefs),
    /// It wants objects.
    Fetch(Fetch),
}

/// A wish for objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// Equal for equal questions.
    pub key: Key,
    /// The objects that are asked for, sorted.
    pub wants: Vec<String>,
    /// What comes back.
    pub answer: Answer,
    /// The question as git is asked it.
    pub body: Vec<u8>,
}

/// Names a question. Its answer is a function of this and of the repository's refs and pools.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key(pub [u8; 32]);

/// What comes back for a fetch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A pack, whatever else.
    Pack,
    /// Which objects both sides have, and perhaps a pack.
    Negotiation,
}

/// Why bytes are no request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRequest {
    /// Longer than a request may be.
    #[error("the request has more than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLong,
    /// More lines than a request may have.
    #[error("the request has more than {MAX_LINES} lines")]
    TooManyLines,
    /// Not packets.
    #[error("{0}")]
    Packet(#[from] BadPacket),
    /// It ends too early.
    #[error("the request ends in the middle")]
    Truncated,
    /// A line that does not belong there; its beginning.
    #[error("unexpected line '{0}'")]
    Line(String),
    /// A separator that does not belong there.
    #[error("unexpected packet")]
    Misplaced,
    /// v2 without a command.
    #[error("no command requested")]
    NoCommand,
    /// A command that is not offered; its beginning.
    #[error("unknown command '{0}'")]
    Command(String),
    /// A kind of repository that we do not have.
    #[error("this server has only sha1 repositories, not '{0}'")]
    ObjectFormat(String),
}

impl BadRequest {
    /// The whole answer.
    #[must_use]
    pub fn answer(&self) -> Vec<u8> {
        super::refusal(&self.to_string())
    }

    pub(super) fn line(text: &str) -> Self {
        Self::Line(excerpt(text))
    }
}

/// The beginning of a stranger's text, fit to be shown.
fn excerpt(text: &str) -> String {
    text.chars().take(MAX_EXCERPT).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

impl Request {
    /// Reads the decompressed body of a request.
    pub fn read(protocol: Protocol, body: &[u8]) -> Result<Self, BadRequest> {
        let mut lines = Lines::new(body)?;
        match protocol {
            Protocol::V0 | Protocol::V1 => Question::read_first(&mut lines),
            Protocol::V2 => read_second(&mut lines),
        }
    }
}

/// The whole answer to `ls-refs`.
#[must_use]
pub fn ls_refs_answer(refs: &Refs, question: &LsRefs) -> Vec<u8> {
    let mut out = Vec::new();
    refs.list(&mut out, question);
    out
}

/// The commands of v2 that we answer.
#[derive(Clone, Copy)]
enum Command {
    LsRefs,
    Fetch,
}

fn read_second(lines: &mut Lines<'_>) -> Result<Request, BadRequest> {
    let mut command = None;
    let mut begun = false;
    let more = loop {
        let text = match lines.next()? {
            Line::Text(text) => text,
            Line::Flush | Line::End if !begun => return Ok(Request::Nothing),
            Line::End => return Err(BadRequest::Truncated),
            Line::Flush => break false,
            Line::Delimiter => break true,
        };
        begun = true;
        match text.split_once('=') {
            Some(("command", _)) if command.is_some() => return Err(BadRequest::line(text)),
            Some(("command", "ls-refs")) => command = Some(Command::LsRefs),
            Some(("command", "fetch")) => command = Some(Command::Fetch),
            Some(("command", other)) => return Err(BadRequest::Command(excerpt(other))),
            Some(("object-format", "sha1")) | Some(("agent" | "session-id" | "server-option", _)) => {}
            Some(("object-format", other)) => return Err(BadRequest::ObjectFormat(excerpt(other))),
            _ => return Err(BadRequest::line(text)),
        }
    };
    let arguments = if more { arguments(lines)? } else { Vec::new() };
    match command.ok_or(BadRequest::NoCommand)? {
        Command::LsRefs => ls_refs(&arguments).map(Request::LsRefs),
        Command::Fetch => Question::read_arguments(&arguments),
    }
}

/// The lines up to the flush that ends a v2 request.
fn arguments<'a>(lines: &mut Lines<'a>) -> Result<Vec<&'a str>, BadRequest> {
    let mut arguments = Vec::new();
    loop {
        match lines.next()? {
            Line::Text(text) => arguments.push(text),
            Line::Flush => return Ok(arguments),
            Line::Delimiter => return Err(BadRequest::Misplaced),
            Line::End => return Err(BadRequest::Truncated),
        }
    }
}

fn ls_refs(arguments: &[&str]) -> Result<LsRefs, BadRequest> {
    let mut question = LsRefs::default();
    for argument in arguments {
        match argument.split_once(' ') {
            None if *argument == "peel" => question.peel = true,
            None if *argument == "symrefs" => question.symrefs = true,
            None if *argument == "unborn" => question.unborn = true,
            Some(("ref-prefix", prefix)) => question.prefixes.push(prefix.to_owned()),
            _ => return Err(BadRequest::line(argument)),
        }
    }
    if question.prefixes.len() >= MAX_PREFIXES {
        question.prefixes.clear();
    }
    Ok(question)
}

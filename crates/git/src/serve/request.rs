//! Parses requests to `git-upload-pack`.
//!
//! A fetch is parsed completely and written again: git receives what was understood, not what was sent.

use super::fetch_request::FetchParser;
use super::lines::{RequestLine, RequestLines};
use crate::pktline::PacketError;
use crate::refs::{LsRefsRequest, Refs, write_ls_refs};

/// Largest request, after decompression. git's client sends at most some 32,000 haves (1.6 MB), and a want for each of
/// twenty thousand refs is another megabyte.
pub const MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Largest number of lines of a request: a body full of haves has 167,000.
pub(super) const MAX_LINES: usize = 170_000;

/// Prefixes of one `ls-refs`; with more than that all refs are listed, as git does. Six prefixes stand for one name.
const MAX_PREFIXES: usize = 65_536;

/// Characters of a line that are repeated in an error.
const MAX_EXCERPT: usize = 80;

/// The version of git's wire protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ProtocolVersion {
    /// Version 0, which is used if none is requested.
    V0,
    /// Version 1: version 0 after a line that names the version.
    V1,
    /// Version 2: commands.
    V2,
}

impl ProtocolVersion {
    /// Returns the version that a `Git-Protocol` header requests: the highest supported one among its keys, which are
    /// separated by colons. No part of the header is passed to git.
    #[must_use]
    pub fn from_header(header: Option<&str>) -> Self {
        let version = |key: &str| match key {
            "version=1" => Self::V1,
            "version=2" => Self::V2,
            _ => Self::V0,
        };
        header.unwrap_or_default().split(':').map(version).max().unwrap_or(Self::V0)
    }

    /// Returns the value of the environment variable `GIT_PROTOCOL`.
    pub(super) fn env_value(self) -> Option<&'static str> {
        match self {
            Self::V0 => None,
            Self::V1 => Some("version=1"),
            Self::V2 => Some("version=2"),
        }
    }
}

/// A request to `git-upload-pack`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UploadPackRequest {
    /// Requests nothing, as the clone of an empty repository does. The response is empty.
    Empty,
    /// Requests the list of refs.
    LsRefs(LsRefsRequest),
    /// Requests objects.
    Fetch(FetchCommand),
}

/// A request for objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchCommand {
    /// Identifies the request; equal for equal requests.
    pub key: FetchKey,
    /// The wanted objects, sorted.
    pub wants: Vec<String>,
    /// What the response contains.
    pub response_kind: FetchResponseKind,
    /// The request as it is sent to git.
    pub body: Vec<u8>,
}

/// Identifies a request. The response is a function of this key and of the repository's refs and pools.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchKey(pub [u8; 32]);

/// What the response to a fetch contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FetchResponseKind {
    /// A pack, and possibly other sections.
    Pack,
    /// Acknowledged common objects, and possibly a pack.
    Negotiation,
}

/// The reason why a request is invalid. The client is shown the text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UploadPackRequestError {
    /// Longer than [`MAX_BODY_BYTES`].
    #[error("the request has more than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLong,
    /// More lines than are accepted.
    #[error("the request has more than {MAX_LINES} lines")]
    TooManyLines,
    /// Not pkt-lines.
    #[error("{0}")]
    Packet(#[from] PacketError),
    /// The request is incomplete.
    #[error("the request is incomplete")]
    Truncated,
    /// A line that is not expected there; its beginning.
    #[error("unexpected line '{0}'")]
    UnexpectedLine(String),
    /// A flush, delimiter or response-end packet that is not expected there.
    #[error("unexpected packet")]
    UnexpectedPacket,
    /// A v2 request without a command.
    #[error("no command requested")]
    NoCommand,
    /// A command that is not offered; its beginning.
    #[error("unknown command '{0}'")]
    UnknownCommand(String),
    /// An object format other than SHA-1.
    #[error("this server has only sha1 repositories, not '{0}'")]
    ObjectFormat(String),
}

impl UploadPackRequestError {
    /// Returns the response to the request.
    #[must_use]
    pub fn to_response(&self) -> Vec<u8> {
        super::error_response(&self.to_string())
    }

    pub(super) fn unexpected_line(text: &str) -> Self {
        Self::UnexpectedLine(excerpt(text))
    }
}

/// Returns the beginning of a client's text without control characters.
fn excerpt(text: &str) -> String {
    text.chars().take(MAX_EXCERPT).map(|char| if char.is_control() { ' ' } else { char }).collect()
}

impl UploadPackRequest {
    /// Parses the decompressed body of a request.
    ///
    /// # Errors
    /// If the request is malformed, too large or uses what is not offered.
    pub fn parse(protocol: ProtocolVersion, body: &[u8]) -> Result<Self, UploadPackRequestError> {
        let mut lines = RequestLines::new(body)?;
        match protocol {
            ProtocolVersion::V0 | ProtocolVersion::V1 => FetchParser::parse_v0(&mut lines),
            ProtocolVersion::V2 => parse_v2(&mut lines),
        }
    }
}

/// Returns the response to `ls-refs`.
#[must_use]
pub fn ls_refs_response(refs: &Refs, request: &LsRefsRequest) -> Vec<u8> {
    let mut out = Vec::new();
    write_ls_refs(refs, &mut out, request);
    out
}

/// The supported commands of v2.
#[derive(Clone, Copy)]
enum V2Command {
    LsRefs,
    Fetch,
}

fn parse_v2(lines: &mut RequestLines<'_>) -> Result<UploadPackRequest, UploadPackRequestError> {
    let mut command = None;
    let mut is_first = true;
    let has_arguments = loop {
        let text = match lines.next()? {
            RequestLine::Text(text) => text,
            RequestLine::Flush | RequestLine::End if is_first => return Ok(UploadPackRequest::Empty),
            RequestLine::End => return Err(UploadPackRequestError::Truncated),
            RequestLine::Flush => break false,
            RequestLine::Delimiter => break true,
        };
        is_first = false;
        match text.split_once('=') {
            Some(("command", _)) if command.is_some() => return Err(UploadPackRequestError::unexpected_line(text)),
            Some(("command", "ls-refs")) => command = Some(V2Command::LsRefs),
            Some(("command", "fetch")) => command = Some(V2Command::Fetch),
            Some(("command", other)) => return Err(UploadPackRequestError::UnknownCommand(excerpt(other))),
            Some(("object-format", "sha1")) | Some(("agent" | "session-id" | "server-option", _)) => {}
            Some(("object-format", other)) => return Err(UploadPackRequestError::ObjectFormat(excerpt(other))),
            _ => return Err(UploadPackRequestError::unexpected_line(text)),
        }
    };
    let arguments = if has_arguments { read_arguments(lines)? } else { Vec::new() };
    match command.ok_or(UploadPackRequestError::NoCommand)? {
        V2Command::LsRefs => parse_ls_refs(&arguments).map(UploadPackRequest::LsRefs),
        V2Command::Fetch => FetchParser::parse_v2(&arguments),
    }
}

/// Reads the lines up to the flush that ends a v2 request.
fn read_arguments<'a>(lines: &mut RequestLines<'a>) -> Result<Vec<&'a str>, UploadPackRequestError> {
    let mut arguments = Vec::new();
    loop {
        match lines.next()? {
            RequestLine::Text(text) => arguments.push(text),
            RequestLine::Flush => return Ok(arguments),
            RequestLine::Delimiter => return Err(UploadPackRequestError::UnexpectedPacket),
            RequestLine::End => return Err(UploadPackRequestError::Truncated),
        }
    }
}

fn parse_ls_refs(arguments: &[&str]) -> Result<LsRefsRequest, UploadPackRequestError> {
    let mut request = LsRefsRequest::default();
    for argument in arguments {
        match argument.split_once(' ') {
            None if *argument == "peel" => request.peel = true,
            None if *argument == "symrefs" => request.symrefs = true,
            None if *argument == "unborn" => request.unborn = true,
            Some(("ref-prefix", prefix)) => request.prefixes.push(prefix.to_owned()),
            _ => return Err(UploadPackRequestError::unexpected_line(argument)),
        }
    }
    if request.prefixes.len() >= MAX_PREFIXES {
        request.prefixes.clear();
    }
    Ok(request)
}

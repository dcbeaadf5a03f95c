//! The lines of a request, bounded and as text.

use super::BadRequest;
use super::request::{MAX_BODY_BYTES, MAX_LINES};
use crate::pktline;
use crate::pktline::Packet;

/// What stands next in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line<'a> {
    /// A line, without its newline and without control characters.
    Text(&'a str),
    /// The end of a list.
    Flush,
    /// The end of a section (v2).
    Delimiter,
    /// The end of the request.
    End,
}

/// Reads a request line by line.
pub(super) struct Lines<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn new(body: &'a [u8]) -> Result<Self, BadRequest> {
        if body.len() > MAX_BODY_BYTES {
            return Err(BadRequest::TooLong);
        }
        Ok(Self { rest: body, left: MAX_LINES })
    }

    pub(super) fn next(&mut self) -> Result<Line<'a>, BadRequest> {
        if self.rest.is_empty() {
            return Ok(Line::End);
        }
        self.left = self.left.checked_sub(1).ok_or(BadRequest::TooManyLines)?;
        let (packet, taken) = pktline::read(self.rest)?.ok_or(BadRequest::Truncated)?;
        self.rest = &self.rest[taken..];
        match (packet, packet.line()) {
            (_, Some(bytes)) => {
                let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control));
                text.map(Line::Text).ok_or_else(|| BadRequest::line(&String::from_utf8_lossy(bytes)))
            }
            (Packet::Flush, _) => Ok(Line::Flush),
            (Packet::Delimiter, _) => Ok(Line::Delimiter),
            _ => Err(BadRequest::Misplaced),
        }
    }
}

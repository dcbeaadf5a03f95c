//! Reads the lines of a request as text, with limits on their number and size.

use super::UploadPackRequestError;
use super::request::{MAX_BODY_BYTES, MAX_LINES};
use crate::pktline;
use crate::pktline::Packet;

/// One element of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestLine<'a> {
    /// A line, without its newline and without control characters.
    Text(&'a str),
    /// The end of a list.
    Flush,
    /// The end of a section (v2).
    Delimiter,
    /// The end of the request.
    End,
}

/// The lines of a request that are not read yet.
pub(super) struct RequestLines<'a> {
    rest: &'a [u8],
    lines_left: usize,
}

impl<'a> RequestLines<'a> {
    pub(super) fn new(body: &'a [u8]) -> Result<Self, UploadPackRequestError> {
        if body.len() > MAX_BODY_BYTES {
            return Err(UploadPackRequestError::TooLong);
        }
        Ok(Self { rest: body, lines_left: MAX_LINES })
    }

    pub(super) fn next(&mut self) -> Result<RequestLine<'a>, UploadPackRequestError> {
        if self.rest.is_empty() {
            return Ok(RequestLine::End);
        }
        self.lines_left = self.lines_left.checked_sub(1).ok_or(UploadPackRequestError::TooManyLines)?;
        let (packet, length) = pktline::read(self.rest)?.ok_or(UploadPackRequestError::Truncated)?;
        self.rest = &self.rest[length..];
        match (packet, packet.line()) {
            (_, Some(bytes)) => {
                let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control));
                text.map(RequestLine::Text)
                    .ok_or_else(|| UploadPackRequestError::unexpected_line(&String::from_utf8_lossy(bytes)))
            }
            (Packet::Flush, _) => Ok(RequestLine::Flush),
            (Packet::Delimiter, _) => Ok(RequestLine::Delimiter),
            _ => Err(UploadPackRequestError::UnexpectedPacket),
        }
    }
}

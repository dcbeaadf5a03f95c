//! Parses the response to a fetch: a pack and what surrounds it.

use grasp_core::limits;

use super::excerpt;
use super::packet_reader::PacketReader;
use crate::pktline::{Packet, PacketError};

/// The reason why a response has no complete pack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FetchResponseError {
    /// Not pkt-lines.
    #[error("{0}")]
    Packet(#[from] PacketError),
    /// The server does not have a wanted object, or does not send objects by id.
    #[error("the server reports: {0}")]
    NotOurRef(String),
    /// The server rejects the request for another reason.
    #[error("the server reports: {0}")]
    Rejected(String),
    /// The server reported a fatal error while it sent the pack.
    #[error("the server failed while sending the pack: {0}")]
    Fatal(String),
    /// A line that the protocol does not allow there; its beginning.
    #[error("unexpected line '{0}'")]
    UnexpectedLine(String),
    /// The response has no pack.
    #[error("the response has no pack")]
    NoPack,
    /// The response has too many lines or too much progress text.
    #[error("the response has too much data besides the pack")]
    TooVerbose,
    /// The response is empty, as that of a server is which does not understand the request.
    #[error("the response is empty")]
    Empty,
    /// The response is incomplete.
    #[error("the response is incomplete")]
    Truncated,
}

/// The position in a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ResponseState {
    /// v2: before the name of a section.
    SectionName,
    /// v2: in a section that is not needed.
    SkippedSection,
    /// v0: before the lines that acknowledge common objects.
    Acknowledgments {
        has_side_bands: bool,
    },
    /// In a pack in side bands, which ends with a flush.
    SideBandPack,
    /// In a pack without side bands, which ends with the response.
    PlainPack,
    Done,
}

/// Parses a response from chunks of any size.
#[derive(Debug)]
pub struct FetchResponseParser {
    packets: PacketReader,
    response: ResponseReader,
}

#[derive(Debug)]
struct ResponseReader {
    state: ResponseState,
    lines: usize,
    progress_bytes: usize,
}

impl FetchResponseParser {
    /// Returns a parser for the response to a v2 `fetch` with `done`.
    #[must_use]
    pub fn v2() -> Self {
        Self::new(ResponseState::SectionName)
    }

    /// Returns a parser for the response to a v0 fetch, with side bands or without.
    #[must_use]
    pub fn v0(has_side_bands: bool) -> Self {
        Self::new(ResponseState::Acknowledgments { has_side_bands })
    }

    fn new(state: ResponseState) -> Self {
        Self { packets: PacketReader::default(), response: ResponseReader { state, lines: 0, progress_bytes: 0 } }
    }

    /// Parses the next bytes, and appends those of the pack to `pack`.
    ///
    /// # Errors
    /// If the response is malformed or too verbose, or if the server reports an error.
    pub fn feed(&mut self, bytes: &[u8], pack: &mut Vec<u8>) -> Result<(), FetchResponseError> {
        let rest = match self.response.state {
            ResponseState::PlainPack | ResponseState::Done => bytes,
            _ => {
                let response = &mut self.response;
                self.packets.feed(bytes, |packet| {
                    response.read_packet(packet, pack)?;
                    Ok::<_, FetchResponseError>(matches!(
                        response.state,
                        ResponseState::PlainPack | ResponseState::Done
                    ))
                })?
            }
        };
        if self.response.state == ResponseState::PlainPack {
            pack.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Returns whether the server has begun to make or to send the pack.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        let state = self.response.state;
        matches!(state, ResponseState::SideBandPack | ResponseState::PlainPack | ResponseState::Done)
    }

    /// Returns whether the pack is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.response.state == ResponseState::Done
    }

    /// Ends the response.
    ///
    /// # Errors
    /// If the response is empty or incomplete.
    pub fn finish(self) -> Result<(), FetchResponseError> {
        match self.response.state {
            ResponseState::Done | ResponseState::PlainPack => Ok(()),
            ResponseState::SectionName | ResponseState::Acknowledgments { .. }
                if self.response.lines == 0 && self.packets.is_at_boundary() =>
            {
                Err(FetchResponseError::Empty)
            }
            _ => Err(FetchResponseError::Truncated),
        }
    }
}

impl ResponseReader {
    fn read_packet(&mut self, packet: Packet<'_>, pack: &mut Vec<u8>) -> Result<(), FetchResponseError> {
        let Packet::Data(data) = packet else { return self.read_separator(packet) };
        if self.state == ResponseState::SideBandPack && self.read_side_band(data, pack)? {
            return Ok(());
        }
        self.lines += 1;
        if self.lines > limits::MAX_FETCH_RESPONSE_LINES {
            return Err(FetchResponseError::TooVerbose);
        }
        let line = data.strip_suffix(b"\n").unwrap_or(data);
        if let Some(reason) = line.strip_prefix(b"ERR ") {
            return Err(rejection(reason));
        }
        let is_acknowledgment = line == b"NAK" || line.starts_with(b"ACK ");
        self.state = match (self.state, line) {
            (ResponseState::SectionName, b"packfile") => ResponseState::SideBandPack,
            (ResponseState::SectionName, b"acknowledgments" | b"shallow-info" | b"wanted-refs" | b"packfile-uris")
            | (ResponseState::SkippedSection, _) => ResponseState::SkippedSection,
            (ResponseState::Acknowledgments { has_side_bands: true }, _) if is_acknowledgment => {
                ResponseState::SideBandPack
            }
            (ResponseState::Acknowledgments { has_side_bands: false }, _) if is_acknowledgment => {
                ResponseState::PlainPack
            }
            // Some servers repeat the acknowledgment.
            (ResponseState::SideBandPack, _) if is_acknowledgment => ResponseState::SideBandPack,
            _ => return Err(FetchResponseError::UnexpectedLine(excerpt(line))),
        };
        Ok(())
    }

    /// Reads a side-band packet. Returns false if the packet is not one.
    fn read_side_band(&mut self, data: &[u8], pack: &mut Vec<u8>) -> Result<bool, FetchResponseError> {
        match data.split_first() {
            Some((1, data)) => pack.extend_from_slice(data),
            Some((2, progress)) => {
                self.progress_bytes = self.progress_bytes.saturating_add(progress.len());
                if self.progress_bytes > limits::MAX_PROGRESS_BYTES {
                    return Err(FetchResponseError::TooVerbose);
                }
            }
            Some((3, reason)) => return Err(FetchResponseError::Fatal(excerpt(reason))),
            Some(_) => return Ok(false),
            // An empty packet is a keepalive.
            None => {}
        }
        Ok(true)
    }

    fn read_separator(&mut self, packet: Packet<'_>) -> Result<(), FetchResponseError> {
        self.state = match (self.state, packet) {
            (ResponseState::SideBandPack, Packet::Flush) => ResponseState::Done,
            (ResponseState::SkippedSection, Packet::Delimiter) => ResponseState::SectionName,
            (
                ResponseState::SectionName | ResponseState::SkippedSection | ResponseState::Acknowledgments { .. },
                Packet::Flush,
            ) => return Err(FetchResponseError::NoPack),
            _ => return Err(FetchResponseError::UnexpectedLine("a delimiter".to_owned())),
        };
        Ok(())
    }
}

/// Classifies an `ERR` line. Git sends the first text, JGit the second.
fn rejection(reason: &[u8]) -> FetchResponseError {
    let reason = excerpt(reason);
    if reason.contains("not our ref") || (reason.starts_with("want ") && reason.ends_with("not valid")) {
        FetchResponseError::NotOurRef(reason)
    } else {
        FetchResponseError::Rejected(reason)
    }
}

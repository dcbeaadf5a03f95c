//! pkt-line encoding for requests, and a streaming parser of fetch responses.

use anyhow::{Result, bail};

/// Flush packet: ends a message.
pub const FLUSH: &[u8] = b"0000";

/// Delimiter packet: separates a command from its arguments.
pub const DELIMITER: &[u8] = b"0001";

/// Maximum number of bytes kept of a line or an error text.
const MAX_TEXT_BYTES: usize = 1024;

/// Appends one packet.
pub fn write(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(format!("{:04x}", text.len() + 4).as_bytes());
    to.extend_from_slice(text.as_bytes());
}

/// Returns the lines of a complete message without flush and delimiter packets.
pub fn read_lines(mut message: &[u8]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    while !message.is_empty() {
        let Some((header, rest)) = message.split_first_chunk::<4>() else { bail!("a packet ends within its length") };
        message = match payload_length(*header)? {
            Some(size) if size > rest.len() => bail!("a packet is incomplete"),
            Some(size) => {
                lines.push(String::from_utf8_lossy(&rest[..size]).trim_end_matches('\n').to_owned());
                &rest[size..]
            }
            None => rest,
        };
    }
    Ok(lines)
}

/// Returns the size of the payload, or `None` for a flush or delimiter packet.
fn payload_length(header: [u8; 4]) -> Result<Option<usize>> {
    let text = str::from_utf8(&header).ok();
    match text.and_then(|text| usize::from_str_radix(text, 16).ok()) {
        Some(0..=3) => Ok(None),
        Some(whole) => Ok(Some(whole - 4)),
        None => bail!("{:?} is not a packet length", String::from_utf8_lossy(&header)),
    }
}

/// State of the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParserState {
    /// Reading the four length digits. The number of digits read so far.
    Header(usize),
    /// Reading a line before the pack. The number of remaining bytes.
    Line(usize),
    /// Before the side-band byte. The number of remaining bytes.
    Band(usize),
    /// Reading a side-band payload: band and remaining bytes.
    Payload(u8, usize),
}

/// Streaming parser of a fetch response (protocol v2). Only counts the pack and keeps its first bytes.
#[derive(Debug)]
pub struct FetchResponseParser {
    state: ParserState,
    header: [u8; 4],
    line: Vec<u8>,
    in_pack: bool,
    /// Bytes of the pack.
    pub pack_bytes: u64,
    start: Vec<u8>,
    error_text: Vec<u8>,
    ended: bool,
}

impl Default for FetchResponseParser {
    fn default() -> Self {
        Self {
            state: ParserState::Header(0),
            header: [0; 4],
            line: Vec::new(),
            in_pack: false,
            pack_bytes: 0,
            start: Vec::new(),
            error_text: Vec::new(),
            ended: false,
        }
    }
}

impl FetchResponseParser {
    /// Parses the next bytes of the response.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = match self.state {
                ParserState::Header(at) => self.parse_header(at, bytes)?,
                ParserState::Line(left) => {
                    let taken = left.min(bytes.len());
                    append_up_to(&mut self.line, &bytes[..taken], MAX_TEXT_BYTES);
                    self.state = ParserState::Line(left - taken);
                    if left == taken {
                        self.end_line()?;
                    }
                    taken
                }
                ParserState::Band(left) => {
                    self.state = ParserState::Payload(bytes[0], left - 1);
                    1
                }
                ParserState::Payload(band, left) => {
                    let taken = left.min(bytes.len());
                    self.handle_payload(band, &bytes[..taken]);
                    self.state = ParserState::Payload(band, left - taken);
                    taken
                }
            };
            bytes = &bytes[taken..];
            if matches!(self.state, ParserState::Payload(_, 0)) {
                self.state = ParserState::Header(0);
            }
        }
        Ok(())
    }

    fn parse_header(&mut self, at: usize, bytes: &[u8]) -> Result<usize> {
        let taken = (4 - at).min(bytes.len());
        self.header[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.state = ParserState::Header(at + taken);
        if at + taken == 4 {
            self.state = match payload_length(self.header)? {
                Some(0) => ParserState::Header(0),
                Some(size) if self.in_pack => ParserState::Band(size),
                Some(size) => ParserState::Line(size),
                None => {
                    self.ended = self.in_pack;
                    ParserState::Header(0)
                }
            };
        }
        Ok(taken)
    }

    fn end_line(&mut self) -> Result<()> {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        if line.starts_with("ERR ") {
            bail!("the server rejected the fetch: {line}");
        }
        self.in_pack = line == "packfile";
        self.line.clear();
        self.state = ParserState::Header(0);
        Ok(())
    }

    fn handle_payload(&mut self, band: u8, bytes: &[u8]) {
        match band {
            1 => {
                self.pack_bytes += bytes.len() as u64;
                append_up_to(&mut self.start, bytes, 12);
            }
            3 => append_up_to(&mut self.error_text, bytes, MAX_TEXT_BYTES),
            // Progress.
            _ => {}
        }
    }

    /// Returns the number of objects in the pack, if the response is complete.
    pub fn finish(&self) -> Result<u32> {
        if !self.error_text.is_empty() {
            bail!("the server reported an error: {}", String::from_utf8_lossy(&self.error_text).trim_end());
        }
        if !self.ended {
            bail!("the response ends without a flush after {} bytes of pack", self.pack_bytes);
        }
        // Signature, version, number of objects.
        match self.start[..] {
            [b'P', b'A', b'C', b'K', _, _, _, _, a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => bail!("the response has no pack"),
        }
    }
}

/// Appends up to a total of `max_bytes` bytes.
fn append_up_to(to: &mut Vec<u8>, bytes: &[u8], max_bytes: usize) {
    let free = max_bytes.saturating_sub(to.len());
    to.extend_from_slice(&bytes[..free.min(bytes.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn band(to: &mut Vec<u8>, band: u8, bytes: &[u8]) {
        to.extend_from_slice(format!("{:04x}", bytes.len() + 5).as_bytes());
        to.push(band);
        to.extend_from_slice(bytes);
    }

    fn answer() -> Vec<u8> {
        let mut answer = Vec::new();
        write(&mut answer, "packfile\n");
        band(&mut answer, 2, b"Counting objects: 3");
        band(&mut answer, 1, b"PACK\0\0\0\x02\0\0\0\x03rest");
        band(&mut answer, 1, &[7; 1000]);
        answer.extend_from_slice(FLUSH);
        answer
    }

    #[test]
    fn response_is_parsed_in_pieces_of_any_size() {
        let answer = answer();
        for step in [1, 2, 3, 5, 64, answer.len()] {
            let mut reader = FetchResponseParser::default();
            answer.chunks(step).for_each(|chunk| reader.feed(chunk).expect("well formed"));
            assert_eq!(reader.finish().expect("complete"), 3, "in steps of {step}");
            assert_eq!(reader.pack_bytes, 1016);
        }
    }

    #[test]
    fn truncated_response_is_an_error() {
        let answer = answer();
        let mut reader = FetchResponseParser::default();
        reader.feed(&answer[..answer.len() - 4]).expect("well formed so far");
        assert!(reader.finish().expect_err("no flush").to_string().contains("without a flush"));
    }

    #[test]
    fn server_errors_are_reported() {
        let mut refusal = Vec::new();
        write(&mut refusal, "ERR upload-pack: not our ref");
        assert!(
            FetchResponseParser::default().feed(&refusal).expect_err("refused").to_string().contains("not our ref")
        );

        let mut late = Vec::new();
        write(&mut late, "packfile\n");
        band(&mut late, 3, b"out of memory");
        let mut reader = FetchResponseParser::default();
        reader.feed(&late).expect("well formed");
        assert!(reader.finish().expect_err("gave up").to_string().contains("out of memory"));
    }

    #[test]
    fn lines_exclude_separators() {
        let mut message = Vec::new();
        write(&mut message, "version 2\n");
        message.extend_from_slice(DELIMITER);
        write(&mut message, "ls-refs");
        message.extend_from_slice(FLUSH);
        assert_eq!(read_lines(&message).expect("well formed"), ["version 2", "ls-refs"]);
        assert!(read_lines(b"00zz").is_err());
        assert!(read_lines(b"0009ab").is_err());
    }
}

//! Packets of git's protocol: written for requests, read from an answer as it streams by.

use anyhow::{Result, bail};

/// Ends a message.
pub const FLUSH: &[u8] = b"0000";

/// Parts a command from its arguments.
pub const DELIMITER: &[u8] = b"0001";

/// How much of a line or of a complaint is kept: enough to tell what it is.
const MOST_TEXT: usize = 1024;

/// Appends one packet.
pub fn write(to: &mut Vec<u8>, text: &str) {
    to.extend_from_slice(format!("{:04x}", text.len() + 4).as_bytes());
    to.extend_from_slice(text.as_bytes());
}

/// The lines of a whole message; flushes and delimiters are left out.
pub fn lines(mut message: &[u8]) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    while !message.is_empty() {
        let Some((header, rest)) = message.split_first_chunk::<4>() else { bail!("a packet ends in its length") };
        message = match length(*header)? {
            Some(size) if size > rest.len() => bail!("a packet ends too early"),
            Some(size) => {
                lines.push(String::from_utf8_lossy(&rest[..size]).trim_end_matches('\n').to_owned());
                &rest[size..]
            }
            None => rest,
        };
    }
    Ok(lines)
}

/// The payload's size; none for a flush or a delimiter.
fn length(header: [u8; 4]) -> Result<Option<usize>> {
    let text = str::from_utf8(&header).ok();
    match text.and_then(|text| usize::from_str_radix(text, 16).ok()) {
        Some(0..=3) => Ok(None),
        Some(whole) => Ok(Some(whole - 4)),
        None => bail!("{:?} is not the length of a packet", String::from_utf8_lossy(&header)),
    }
}

/// Where a reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the four digits before a payload; so many were read.
    Header(usize),
    /// In a line before the pack, with so many bytes to come.
    Line(usize),
    /// Before the byte that names the band.
    Band(usize),
    /// In a payload of a band.
    Payload(u8, usize),
}

/// The answer to a fetch (protocol v2), counted as it streams by. Nothing of the pack is kept but its first bytes.
#[derive(Debug)]
pub struct FetchAnswer {
    place: Place,
    header: [u8; 4],
    line: Vec<u8>,
    in_pack: bool,
    /// Bytes of the pack.
    pub pack_bytes: u64,
    start: Vec<u8>,
    complaint: Vec<u8>,
    ended: bool,
}

impl Default for FetchAnswer {
    fn default() -> Self {
        Self {
            place: Place::Header(0),
            header: [0; 4],
            line: Vec::new(),
            in_pack: false,
            pack_bytes: 0,
            start: Vec::new(),
            complaint: Vec::new(),
            ended: false,
        }
    }
}

impl FetchAnswer {
    /// Takes the next bytes of the answer.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = match self.place {
                Place::Header(at) => self.take_header(at, bytes)?,
                Place::Line(left) => {
                    let taken = left.min(bytes.len());
                    keep(&mut self.line, &bytes[..taken], MOST_TEXT);
                    self.place = Place::Line(left - taken);
                    if left == taken {
                        self.end_line()?;
                    }
                    taken
                }
                Place::Band(left) => {
                    self.place = Place::Payload(bytes[0], left - 1);
                    1
                }
                Place::Payload(band, left) => {
                    let taken = left.min(bytes.len());
                    self.take_payload(band, &bytes[..taken]);
                    self.place = Place::Payload(band, left - taken);
                    taken
                }
            };
            bytes = &bytes[taken..];
            if matches!(self.place, Place::Payload(_, 0)) {
                self.place = Place::Header(0);
            }
        }
        Ok(())
    }

    fn take_header(&mut self, at: usize, bytes: &[u8]) -> Result<usize> {
        let taken = (4 - at).min(bytes.len());
        self.header[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.place = Place::Header(at + taken);
        if at + taken == 4 {
            self.place = match length(self.header)? {
                Some(0) => Place::Header(0),
                Some(size) if self.in_pack => Place::Band(size),
                Some(size) => Place::Line(size),
                None => {
                    self.ended = self.in_pack;
                    Place::Header(0)
                }
            };
        }
        Ok(taken)
    }

    fn end_line(&mut self) -> Result<()> {
        let line = String::from_utf8_lossy(&self.line).trim_end().to_owned();
        if line.starts_with("ERR ") {
            bail!("the server refuses the fetch: {line}");
        }
        self.in_pack = line == "packfile";
        self.line.clear();
        self.place = Place::Header(0);
        Ok(())
    }

    fn take_payload(&mut self, band: u8, bytes: &[u8]) {
        match band {
            1 => {
                self.pack_bytes += bytes.len() as u64;
                keep(&mut self.start, bytes, 12);
            }
            3 => keep(&mut self.complaint, bytes, MOST_TEXT),
            // Progress.
            _ => {}
        }
    }

    /// The number of objects that the pack promises, once the answer is over and complete.
    pub fn finish(&self) -> Result<u32> {
        if !self.complaint.is_empty() {
            bail!("the server gave up: {}", String::from_utf8_lossy(&self.complaint).trim_end());
        }
        if !self.ended {
            bail!("the answer ends without a flush after {} bytes of pack", self.pack_bytes);
        }
        // Signature, version, number of objects.
        match self.start[..] {
            [b'P', b'A', b'C', b'K', _, _, _, _, a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => bail!("the answer holds no pack"),
        }
    }
}

/// Appends, but never beyond `most` bytes.
fn keep(to: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let room = most.saturating_sub(to.len());
    to.extend_from_slice(&bytes[..room.min(bytes.len())]);
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
    fn an_answer_is_counted_however_it_is_cut() {
        let answer = answer();
        for step in [1, 2, 3, 5, 64, answer.len()] {
            let mut reader = FetchAnswer::default();
            answer.chunks(step).for_each(|chunk| reader.feed(chunk).expect("well formed"));
            assert_eq!(reader.finish().expect("complete"), 3, "in steps of {step}");
            assert_eq!(reader.pack_bytes, 1016);
        }
    }

    #[test]
    fn an_answer_that_stops_early_is_no_answer() {
        let answer = answer();
        let mut reader = FetchAnswer::default();
        reader.feed(&answer[..answer.len() - 4]).expect("well formed so far");
        assert!(reader.finish().expect_err("no flush").to_string().contains("without a flush"));
    }

    #[test]
    fn refusals_are_shown() {
        let mut refusal = Vec::new();
        write(&mut refusal, "ERR upload-pack: not our ref");
        assert!(FetchAnswer::default().feed(&refusal).expect_err("refused").to_string().contains("not our ref"));

        let mut late = Vec::new();
        write(&mut late, "packfile\n");
        band(&mut late, 3, b"out of memory");
        let mut reader = FetchAnswer::default();
        reader.feed(&late).expect("well formed");
        assert!(reader.finish().expect_err("gave up").to_string().contains("out of memory"));
    }

    #[test]
    fn lines_leave_separators_out() {
        let mut message = Vec::new();
        write(&mut message, "version 2\n");
        message.extend_from_slice(DELIMITER);
        write(&mut message, "ls-refs");
        message.extend_from_slice(FLUSH);
        assert_eq!(lines(&message).expect("well formed"), ["version 2", "ls-refs"]);
        assert!(lines(b"00zz").is_err());
        assert!(lines(b"0009ab").is_err());
    }
}

//! Counts the messages of a websocket stream by verb. Reads only the verb and the length of a message.

use std::collections::BTreeMap;
use std::io::Cursor;

use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// Bytes at the beginning of a message that contain its verb.
const BEGINNING: usize = 16;

/// Maximum size of a frame header: two bytes, eight of length, four of mask.
const HEAD: usize = 14;

/// Maximum size of a handshake.
const HANDSHAKE: usize = 16 * 1024;

/// Count of messages with one verb.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct MessageCount {
    /// Number of messages.
    pub(super) messages: u64,
    /// Their bytes, without frame headers.
    pub(super) bytes: u64,
}

/// Counts by verb.
pub(super) type MessageCounts = BTreeMap<String, MessageCount>;

/// Parser state of one direction of one connection.
#[derive(Debug)]
pub(super) enum FrameCounter {
    /// The part of the handshake received so far.
    Handshake(Vec<u8>),
    /// Not a websocket.
    Plain,
    /// The part of a frame header received so far.
    Head(Vec<u8>),
    /// Within a frame.
    Body(FrameBody),
}

/// A frame whose header has been read.
#[derive(Debug)]
pub(super) struct FrameBody {
    left: u64,
    length: u64,
    mask: [u8; 4],
    text: bool,
    beginning: Vec<u8>,
}

impl FrameCounter {
    /// Creates the state of a new connection.
    pub(super) fn new() -> Self {
        Self::Handshake(Vec::new())
    }

    /// Parses the next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8], verbs: &mut MessageCounts) {
        while !bytes.is_empty() {
            match self {
                Self::Plain => return,
                Self::Handshake(received) => {
                    let before = received.len();
                    received.extend_from_slice(bytes);
                    let Some(end) = received.windows(4).position(|part| part == b"\r\n\r\n") else {
                        if received.len() > HANDSHAKE {
                            *self = Self::Plain;
                        }
                        return;
                    };
                    let head = String::from_utf8_lossy(&received[..end]).to_ascii_lowercase();
                    bytes = &bytes[end + 4 - before..];
                    *self = if head.contains("upgrade: websocket") { Self::Head(Vec::new()) } else { Self::Plain };
                }
                Self::Head(head) => {
                    let had = head.len();
                    head.extend_from_slice(&bytes[..bytes.len().min(HEAD - had)]);
                    let Some((size, body)) = FrameBody::parse_head(head) else { return };
                    bytes = &bytes[size - had..];
                    *self = body.next_state(verbs);
                }
                Self::Body(body) => {
                    let here = bytes.len().min(usize::try_from(body.left).unwrap_or(usize::MAX));
                    body.take(&bytes[..here]);
                    bytes = &bytes[here..];
                    if body.left == 0 {
                        body.count(verbs);
                        *self = Self::Head(Vec::new());
                    }
                }
            }
        }
    }
}

impl FrameBody {
    /// Parses a frame header. Returns its size and the frame, or `None` if it is incomplete.
    fn parse_head(head: &[u8]) -> Option<(usize, Self)> {
        let mut cursor = Cursor::new(head);
        let (header, length) = FrameHeader::parse(&mut cursor).ok()??;
        let text = matches!(header.opcode, OpCode::Data(Data::Continue | Data::Text));
        let mask = header.mask.unwrap_or_default();
        Some((cursor.position() as usize, Self { left: length, length, mask, text, beginning: Vec::new() }))
    }

    fn next_state(self, verbs: &mut MessageCounts) -> FrameCounter {
        if self.left > 0 {
            return FrameCounter::Body(self);
        }
        self.count(verbs);
        FrameCounter::Head(Vec::new())
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().take(BEGINNING - self.beginning.len()) {
            self.beginning.push(byte ^ self.mask[self.beginning.len() % 4]);
        }
        self.left -= bytes.len() as u64;
    }

    fn count(&self, verbs: &mut MessageCounts) {
        let text = String::from_utf8_lossy(&self.beginning);
        let verb = if self.text { text.split('"').nth(1).unwrap_or("rest") } else { "control" };
        let verb = verbs.entry(verb.to_owned()).or_default();
        verb.messages += 1;
        verb.bytes += self.length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str, mask: Option<[u8; 4]>) -> Vec<u8> {
        let mut frame = vec![0x81];
        let flag = if mask.is_some() { 0x80 } else { 0 };
        match text.len() {
            short @ ..126 => frame.push(flag | short as u8),
            middle @ ..65_536 => {
                frame.push(flag | 126);
                frame.extend((middle as u16).to_be_bytes());
            }
            long => {
                frame.push(flag | 127);
                frame.extend((long as u64).to_be_bytes());
            }
        }
        frame.extend(mask.iter().flatten());
        let key = mask.unwrap_or_default();
        frame.extend(text.bytes().enumerate().map(|(at, byte)| byte ^ key[at % 4]));
        frame
    }

    #[test]
    fn messages_are_counted_in_pieces_of_any_size() {
        let long = format!("[\"EVENT\",\"{}\"]", "x".repeat(70_000));
        let mut stream = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n".to_vec();
        for text in ["[\"REQ\",\"a\",{}]", &long, "[\"REQ\",\"b\"]"] {
            stream.extend(frame(text, Some([1, 2, 3, 4])));
            stream.extend(frame(text, None));
        }
        for step in [1, 7, 100, 1_000_000] {
            let (mut frames, mut verbs) = (FrameCounter::new(), MessageCounts::new());
            stream.chunks(step).for_each(|part| frames.feed(part, &mut verbs));
            let expected = [
                ("EVENT".to_owned(), MessageCount { messages: 2, bytes: 2 * long.len() as u64 }),
                ("REQ".to_owned(), MessageCount { messages: 4, bytes: 2 * (14 + 11) }),
            ];
            assert_eq!(verbs.into_iter().collect::<Vec<_>>(), expected, "in steps of {step}");
        }
    }

    #[test]
    fn other_protocols_are_ignored() {
        let (mut frames, mut verbs) = (FrameCounter::new(), MessageCounts::new());
        frames.feed(b"GET / HTTP/1.1\r\nAccept: application/nostr+json\r\n\r\n\x81\x02[]", &mut verbs);
        assert!(verbs.is_empty());
    }
}

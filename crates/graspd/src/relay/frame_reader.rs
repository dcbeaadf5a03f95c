//! Reads websocket messages of a client (RFC 6455).
//!
//! A message is unmasked and collected in one buffer, which grows with the bytes that arrive, not with the length that
//! a frame announces. Its memory counts against a budget of all clients and of the client's network, and it must be
//! complete in time, however many other frames the client sends meanwhile.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use grasp_core::limits;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::http::network_limits::ClientNetwork;
use crate::http::shared_budget::{BudgetReservation, SharedBudget};

/// Bytes that are read from the socket at a time. The buffer for them exists only while the socket is read.
const READ_BYTES: usize = 8 * 1024;

/// Capacity of the unread bytes that an idle connection may keep.
const IDLE_BYTES: usize = 512;

/// Longest payload of a control frame.
const MAX_CONTROL_BYTES: usize = 125;

/// A message or control frame of a client.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum ClientFrame {
    Text(String),
    /// A binary message, whose content is not used.
    Binary,
    Ping(Vec<u8>),
    Pong,
    /// Code and reason, as the client sent them; may be empty.
    Close(Vec<u8>),
}

/// Reason why no more can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameError {
    /// The connection is lost.
    Disconnected,
    /// A message exceeds [`limits::MAX_MESSAGE_BYTES`].
    TooLong,
    /// A frame violates the websocket protocol.
    Protocol,
    /// A text is not valid UTF-8.
    InvalidUtf8,
    /// The memory for incomplete messages is used up, or the client's network has its share of it.
    NoMemory,
    /// A message was not complete after [`limits::INCOMPLETE_MESSAGE_SECS`].
    Timeout,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opcode {
    Continuation,
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn parse(bits: u8) -> Option<Self> {
        Some(match bits {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// A frame whose payload is being read.
#[derive(Clone, Copy)]
struct Frame {
    opcode: Opcode,
    is_final: bool,
    /// The mask, rotated so that its first byte is for the next byte of the payload.
    mask: [u8; 4],
    /// Bytes of the payload that are missing.
    missing: usize,
}

impl Frame {
    /// Reads the header of a frame. Returns the frame and the length of the header, or `None` if it is not complete.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let opcode = Opcode::parse(first & 0x0f).ok_or(FrameError::Protocol)?;
        let (is_final, has_reserved_bits, is_masked) = (first & 0x80 != 0, first & 0x70 != 0, second & 0x80 != 0);
        let short = second & 0x7f;
        if has_reserved_bits || !is_masked || (opcode.is_control() && (!is_final || short > 125)) {
            return Err(FrameError::Protocol);
        }
        let (length, rest) = match (short, rest) {
            (126, [a, b, rest @ ..]) => (u64::from(u16::from_be_bytes([*a, *b])), rest),
            (127, [a, b, c, d, e, f, g, h, rest @ ..]) => (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest),
            (126 | 127, _) => return Ok(None),
            (short, rest) => (u64::from(short), rest),
        };
        if length > limits::MAX_MESSAGE_BYTES as u64 {
            return Err(FrameError::TooLong);
        }
        let [a, b, c, d, rest @ ..] = rest else { return Ok(None) };
        let frame = Self { opcode, is_final, mask: [*a, *b, *c, *d], missing: length as usize };
        Ok(Some((frame, bytes.len() - rest.len())))
    }

    /// Unmasks the next bytes of the payload.
    fn unmask(&mut self, payload: &mut [u8]) {
        let mut words = payload.chunks_exact_mut(4);
        for word in &mut words {
            for (byte, key) in word.iter_mut().zip(self.mask) {
                *byte ^= key;
            }
        }
        for (byte, key) in words.into_remainder().iter_mut().zip(self.mask) {
            *byte ^= key;
        }
        self.mask.rotate_left(payload.len() % 4);
        self.missing -= payload.len();
    }
}

/// Reads the messages of one client.
pub(crate) struct FrameReader {
    /// Bytes that have been read; those before `consumed` are done with.
    unread: Vec<u8>,
    consumed: usize,
    /// The frame whose payload is being read.
    frame: Option<Frame>,
    /// Payload of the control frame that is being read.
    control: Vec<u8>,
    /// Type of the message that is being read: text or binary.
    message_type: Option<Opcode>,
    message: Vec<u8>,
    /// The memory of `message`, beyond what every connection may have.
    reservation: Option<BudgetReservation>,
    /// When the first byte of an incomplete message or frame was read.
    started_at: Option<Instant>,
    timeout: Duration,
    budget: Arc<SharedBudget>,
    network: Option<ClientNetwork>,
}

impl FrameReader {
    pub(crate) fn new(budget: Arc<SharedBudget>, network: Option<ClientNetwork>) -> Self {
        Self {
            unread: Vec::new(),
            consumed: 0,
            frame: None,
            control: Vec::new(),
            message_type: None,
            message: Vec::new(),
            reservation: None,
            started_at: None,
            timeout: Duration::from_secs(limits::INCOMPLETE_MESSAGE_SECS),
            budget,
            network,
        }
    }

    /// Returns the next message or control frame. Can be cancelled: what has been read is kept.
    ///
    /// # Errors
    ///
    /// Fails if the connection is lost or must be closed. Nothing more can be read then.
    pub(crate) async fn next(&mut self, io: &mut (impl AsyncRead + Unpin)) -> Result<ClientFrame, FrameError> {
        loop {
            if let Some(frame) = self.advance()? {
                return Ok(frame);
            }
            if self.is_incomplete() {
                let deadline = *self.started_at.get_or_insert_with(Instant::now) + self.timeout;
                // The timer is not polled while there is always something to read.
                if Instant::now() >= deadline {
                    return Err(FrameError::Timeout);
                }
                timeout_at(deadline, self.read(io)).await.map_err(|_| FrameError::Timeout)??;
            } else {
                self.started_at = None;
                self.read(io).await?;
            }
        }
    }

    /// Whether a message or frame has been received in part.
    pub(crate) fn is_receiving(&self) -> bool {
        self.started_at.is_some()
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn shrink(&mut self) {
        if self.consumed == self.unread.len() {
            self.unread.clear();
            self.consumed = 0;
        }
        self.unread.shrink_to(IDLE_BYTES);
    }

    /// Discards everything that has been read, when no more messages are needed.
    pub(crate) fn clear(&mut self) {
        (self.unread, self.message) = (Vec::new(), Vec::new());
        (self.consumed, self.frame, self.message_type, self.reservation) = (0, None, None, None);
    }

    fn is_incomplete(&self) -> bool {
        self.message_type.is_some() || self.frame.is_some() || self.consumed < self.unread.len()
    }

    /// Reads some bytes from the socket.
    async fn read(&mut self, io: &mut (impl AsyncRead + Unpin)) -> Result<(), FrameError> {
        poll_fn(|context| {
            let mut bytes = [0; READ_BYTES];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut *io).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Err(FrameError::Disconnected));
            }
            self.unread.drain(..self.consumed);
            self.consumed = 0;
            self.unread.extend_from_slice(buffer.filled());
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Interprets the bytes that have been read, up to the next complete message or control frame. Returns `None` if
    /// more bytes are needed.
    fn advance(&mut self) -> Result<Option<ClientFrame>, FrameError> {
        loop {
            let mut frame = match self.frame {
                Some(frame) => frame,
                None => {
                    let Some((frame, header_bytes)) = Frame::parse(&self.unread[self.consumed..])? else {
                        return Ok(None);
                    };
                    self.consumed += header_bytes;
                    self.begin(frame)?;
                    frame
                }
            };
            let payload = self.consumed..self.unread.len().min(self.consumed + frame.missing);
            self.consumed = payload.end;
            frame.unmask(&mut self.unread[payload.clone()]);
            self.frame = Some(frame);
            if frame.opcode.is_control() {
                self.control.extend_from_slice(&self.unread[payload]);
            } else {
                let is_complete = frame.is_final && frame.missing == 0;
                self.grow_message(self.message.len() + payload.len(), is_complete)?;
                self.message.extend_from_slice(&self.unread[payload]);
            }
            if frame.missing > 0 {
                return Ok(None);
            }
            self.frame = None;
            if let Some(complete) = self.end(frame)? {
                return Ok(Some(complete));
            }
        }
    }

    /// Checks that a frame may follow what has been read.
    fn begin(&mut self, frame: Frame) -> Result<(), FrameError> {
        match (frame.opcode, self.message_type) {
            (Opcode::Text | Opcode::Binary, None) => self.message_type = Some(frame.opcode),
            (Opcode::Continuation, Some(_)) => {}
            (Opcode::Text | Opcode::Binary, Some(_)) | (Opcode::Continuation, None) => {
                return Err(FrameError::Protocol);
            }
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {
                debug_assert!(frame.missing <= MAX_CONTROL_BYTES, "longer control frames are rejected");
                return Ok(());
            }
        }
        if self.message.len() + frame.missing > limits::MAX_MESSAGE_BYTES {
            return Err(FrameError::TooLong);
        }
        Ok(())
    }

    /// Makes space for a message of this length. The capacity doubles, so that a byte is copied a few times only. A
    /// message that is complete with these bytes needs no more of the budget.
    fn grow_message(&mut self, bytes: usize, is_complete: bool) -> Result<(), FrameError> {
        if bytes <= self.message.capacity() {
            return Ok(());
        }
        let capacity = if is_complete { bytes } else { bytes.next_power_of_two() };
        if !is_complete && capacity > limits::UNCOUNTED_MESSAGE_BYTES {
            let reserved = match &mut self.reservation {
                Some(reservation) => reservation.resize(capacity),
                none => self.budget.reserve(self.network, capacity).map(|reservation| *none = Some(reservation)),
            };
            reserved.map_err(|_| FrameError::NoMemory)?;
        }
        self.message.reserve_exact(capacity - self.message.len());
        Ok(())
    }

    /// Handles the end of a frame. Returns the message or control frame that is complete with it.
    fn end(&mut self, frame: Frame) -> Result<Option<ClientFrame>, FrameError> {
        if self.message_type.is_none() || (frame.is_final && !frame.opcode.is_control()) {
            // What follows has its own time.
            self.started_at = None;
        }
        match frame.opcode {
            Opcode::Ping => return Ok(Some(ClientFrame::Ping(std::mem::take(&mut self.control)))),
            Opcode::Pong => {
                self.control.clear();
                return Ok(Some(ClientFrame::Pong));
            }
            Opcode::Close => {
                let payload = std::mem::take(&mut self.control);
                check_close(&payload)?;
                return Ok(Some(ClientFrame::Close(payload)));
            }
            Opcode::Continuation | Opcode::Text | Opcode::Binary if !frame.is_final => return Ok(None),
            Opcode::Continuation | Opcode::Text | Opcode::Binary => {}
        }
        let message = std::mem::take(&mut self.message);
        self.reservation = None;
        if self.message_type.take() == Some(Opcode::Binary) {
            return Ok(Some(ClientFrame::Binary));
        }
        let text = String::from_utf8(message).map_err(|_| FrameError::InvalidUtf8)?;
        Ok(Some(ClientFrame::Text(text)))
    }
}

/// Checks the payload of a close frame: nothing, or a valid code and a text.
fn check_close(payload: &[u8]) -> Result<(), FrameError> {
    match payload {
        [] => Ok(()),
        [first, second, reason @ ..] if CloseCode::from(u16::from_be_bytes([*first, *second])).is_allowed() => {
            std::str::from_utf8(reason).map(|_| ()).map_err(|_| FrameError::InvalidUtf8)
        }
        _ => Err(FrameError::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const NETWORK: Option<ClientNetwork> = Some(ClientNetwork::V4([203, 0, 113]));

    /// Returns a client frame with a mask.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [0x12, 0x34, 0x56, 0x78];
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..=125 => frame.push(0x80 | length as u8),
            length => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, key)| byte ^ key));
        frame
    }

    fn reader(max_total: usize, max_per_network: usize) -> (FrameReader, DuplexStream, DuplexStream) {
        let (client, server) = duplex(64 * 1024);
        (FrameReader::new(SharedBudget::new(max_total, max_per_network), NETWORK), client, server)
    }

    #[tokio::test]
    async fn message_is_the_same_however_it_is_split() {
        let text: String = (0..30_000).map(|nth| char::from(b'a' + (nth % 26) as u8)).collect();
        let (first, second) = text.as_bytes().split_at(20_001);
        let bytes = [frame(0x01, first), frame(0x89, b"ping"), frame(0x80, second), frame(0x81, b"next")].concat();
        for piece in [1, 3, 7, 1_000, 4_096, bytes.len()] {
            let (mut reader, mut client, mut server) = reader(1 << 20, 1 << 20);
            let (bytes, budget) = (bytes.clone(), reader.budget.clone());
            let sender = tokio::spawn(async move {
                for part in bytes.chunks(piece) {
                    client.write_all(part).await.expect("the reader is open");
                }
            });
            for expected in [
                ClientFrame::Ping(b"ping".to_vec()),
                ClientFrame::Text(text.clone()),
                ClientFrame::Text("next".to_owned()),
            ] {
                assert_eq!(reader.next(&mut server).await, Ok(expected), "in pieces of {piece}");
            }
            assert_eq!(budget.load().0, 0, "a complete message counts no longer");
            sender.await.expect("the sender panicked");
            assert_eq!(reader.next(&mut server).await, Err(FrameError::Disconnected));
        }
    }

    #[tokio::test]
    async fn incomplete_messages_are_limited_by_the_share_of_the_network() {
        let (mut first, mut client, mut server) = reader(1 << 20, 40_000);
        let begin = [frame(0x01, &[b' '; 30_000]), frame(0x8a, b"")].concat();
        client.write_all(&begin).await.expect("the reader is open");
        assert_eq!(first.next(&mut server).await, Ok(ClientFrame::Pong));
        assert_eq!(first.budget.load().0, 32_768);
        let mut second = FrameReader::new(first.budget.clone(), NETWORK);
        let (mut client, mut server) = duplex(64 * 1024);
        // A small message is possible all the same.
        client.write_all(&frame(0x81, &[b' '; 4_000])).await.expect("the reader is open");
        assert!(matches!(second.next(&mut server).await, Ok(ClientFrame::Text(_))));
        client.write_all(&begin).await.expect("the reader is open");
        assert_eq!(second.next(&mut server).await, Err(FrameError::NoMemory));
        drop(second);
        let mut elsewhere = FrameReader::new(first.budget.clone(), Some(ClientNetwork::V4([198, 51, 100])));
        let (mut client, mut server) = duplex(64 * 1024);
        client.write_all(&begin).await.expect("the reader is open");
        assert_eq!(elsewhere.next(&mut server).await, Ok(ClientFrame::Pong));
        drop(first);
        assert_eq!(elsewhere.budget.load().0, 32_768, "the memory of a closed connection is free again");
    }

    #[tokio::test]
    async fn pongs_do_not_extend_the_time_of_a_message() {
        for begin in [frame(0x01, b"part"), frame(0x81, b"part")[..7].to_vec(), vec![0x81]] {
            let (mut reader, mut client, mut server) = reader(1 << 20, 1 << 20);
            reader.timeout = Duration::from_millis(300);
            client.write_all(&begin).await.expect("the reader is open");
            if begin.len() > 9 {
                let pongs = async {
                    let mut ticks = tokio::time::interval(Duration::from_millis(20));
                    while client.write_all(&frame(0x8a, b"")).await.is_ok() {
                        ticks.tick().await;
                    }
                };
                let read = async {
                    loop {
                        match reader.next(&mut server).await {
                            Ok(ClientFrame::Pong) => {}
                            other => return other,
                        }
                    }
                };
                tokio::select! {
                    () = pongs => panic!("the reader is open"),
                    end = read => assert_eq!(end, Err(FrameError::Timeout)),
                }
            } else {
                assert_eq!(reader.next(&mut server).await, Err(FrameError::Timeout));
            }
        }
    }
}

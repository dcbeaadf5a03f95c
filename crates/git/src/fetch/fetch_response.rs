//! The answer to a fetch: a pack, and everything around it.

use std::ops::ControlFlow;

use grasp_core::limits;

use super::packet_reader::Packets;
use super::words;
use crate::pktline::{BadPacket, Packet};

/// Why an answer brings no pack.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadAnswer {
    /// Not packets.
    #[error("{0}")]
    Packet(#[from] BadPacket),
    /// The server lacks an object that was asked for, or does not give it by its id.
    #[error("the server says: {0}")]
    NotOurRef(String),
    /// It refuses for another reason.
    #[error("the server says: {0}")]
    Refused(String),
    /// It gave up in the middle.
    #[error("the server gave up: {0}")]
    Fatal(String),
    /// Something else than this protocol has here; its beginning.
    #[error("unexpected line '{0}'")]
    Line(String),
    /// It has no pack.
    #[error("the answer has no pack")]
    NoPack,
    /// More words than it takes.
    #[error("the answer has too much beside its pack")]
    Verbose,
    /// It is empty, as that of a server is which cannot read the question.
    #[error("the answer is empty")]
    Nothing,
    /// It ends too early.
    #[error("the answer ends in the middle")]
    Truncated,
}

/// Where in an answer we are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// v2: the name of a section is next.
    Section,
    /// v2: in a section that nobody needs.
    Skipped,
    /// v0: what both sides have in common is next.
    Common {
        banded: bool,
    },
    /// A pack in side bands, up to a flush.
    Banded,
    /// A pack up to the end.
    Bare,
    Done,
}

/// Reads an answer as it comes.
#[derive(Debug)]
pub struct AnswerParser {
    packets: Packets,
    reader: Reader,
}

#[derive(Debug)]
struct Reader {
    state: State,
    lines: usize,
    progress: usize,
}

impl AnswerParser {
    /// An answer to a v2 `fetch` that said `done`.
    #[must_use]
    pub fn second() -> Self {
        Self::at(State::Section)
    }

    /// An answer to a v0 fetch, in side bands or not.
    #[must_use]
    pub fn first(banded: bool) -> Self {
        Self::at(State::Common { banded })
    }

    fn at(state: State) -> Self {
        Self { packets: Packets::default(), reader: Reader { state, lines: 0, progress: 0 } }
    }

    /// Takes some bytes, and appends those that belong to the pack.
    pub fn feed(&mut self, bytes: &[u8], pack: &mut Vec<u8>) -> Result<(), BadAnswer> {
        let rest = match self.reader.state {
            State::Bare | State::Done => bytes,
            _ => {
                let reader = &mut self.reader;
                self.packets.feed(bytes, |packet| {
                    reader.hear(packet, pack)?;
                    let over = matches!(reader.state, State::Bare | State::Done);
                    Ok::<_, BadAnswer>(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
                })?
            }
        };
        if self.reader.state == State::Bare {
            pack.extend_from_slice(rest);
        }
        Ok(())
    }

    /// Whether the server has begun to send a pack, or to make one.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        matches!(self.reader.state, State::Banded | State::Bare | State::Done)
    }

    /// Whether everything that matters has come.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.reader.state == State::Done
    }

    /// There is no more to come.
    pub fn finish(self) -> Result<(), BadAnswer> {
        match self.reader.state {
            State::Done | State::Bare => Ok(()),
            State::Section | State::Common { .. } if self.reader.lines == 0 && self.packets.is_between() => {
                Err(BadAnswer::Nothing)
            }
            _ => Err(BadAnswer::Truncated),
        }
    }
}

impl Reader {
    fn hear(&mut self, packet: Packet<'_>, pack: &mut Vec<u8>) -> Result<(), BadAnswer> {
        let Packet::Data(data) = packet else { return self.mark(packet) };
        if self.state == State::Banded && self.band(data, pack)? {
            return Ok(());
        }
        self.lines += 1;
        if self.lines > limits::MAX_FETCH_RESPONSE_LINES {
            return Err(BadAnswer::Verbose);
        }
        let line = data.strip_suffix(b"\n").unwrap_or(data);
        if let Some(why) = line.strip_prefix(b"ERR ") {
            return Err(refusal(why));
        }
        let is_common = line == b"NAK" || line.starts_with(b"ACK ");
        self.state = match (self.state, line) {
            (State::Section, b"packfile") => State::Banded,
            (State::Section, b"acknowledgments" | b"shallow-info" | b"wanted-refs" | b"packfile-uris")
            | (State::Skipped, _) => State::Skipped,
            (State::Common { banded: true }, _) if is_common => State::Banded,
            (State::Common { banded: false }, _) if is_common => State::Bare,
            // Some say it again.
            (State::Banded, _) if is_common => State::Banded,
            _ => return Err(BadAnswer::Line(words(line))),
        };
        Ok(())
    }

    /// Reads a packet of a side band; not so if it is none.
    fn band(&mut self, data: &[u8], pack: &mut Vec<u8>) -> Result<bool, BadAnswer> {
        match data.split_first() {
            Some((1, data)) => pack.extend_from_slice(data),
            Some((2, progress)) => {
                self.progress = self.progress.saturating_add(progress.len());
                if self.progress > limits::MAX_PROGRESS_BYTES {
                    return Err(BadAnswer::Verbose);
                }
            }
            Some((3, why)) => return Err(BadAnswer::Fatal(words(why))),
            Some(_) => return Ok(false),
            // A packet of nothing is a sign of life.
            None => {}
        }
        Ok(true)
    }

    fn mark(&mut self, packet: Packet<'_>) -> Result<(), BadAnswer> {
        self.state = match (self.state, packet) {
            (State::Banded, Packet::Flush) => State::Done,
            (State::Skipped, Packet::Delimiter) => State::Section,
            (State::Section | State::Skipped | State::Common { .. }, Packet::Flush) => return Err(BadAnswer::NoPack),
            _ => return Err(BadAnswer::Line("a delimiter".to_owned())),
        };
        Ok(())
    }
}

/// What a refusal means. Git says the first, JGit the second.
fn refusal(why: &[u8]) -> BadAnswer {
    let why = words(why);
    if why.contains("not our ref") || (why.starts_with("want ") && why.ends_with("not valid")) {
        BadAnswer::NotOurRef(why)
    } else {
        BadAnswer::Refused(why)
    }
}

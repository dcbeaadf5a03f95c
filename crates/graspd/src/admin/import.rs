//! `import`: events from a file go the way of events from clients, but for the network's budget.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::nostr::rejection::{Decision, Rejection};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::AdminState;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::writer::submission::{QueuedEvent, Ruling};

/// Events that are judged at the same time: a few batches of the writer.
const MAX_PENDING: usize = 1_024;

/// How often it is told how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Takes lines of JSON, and tells up to which byte all has been judged.
pub(super) async fn import(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter,
) -> Result<Value, AdminError> {
    let _exclusive = admin.begin_exclusive("an import")?;
    let allow_protected = request.query("protected") == Some("true");
    let mut body = request.into_body();
    let (result_sender, mut results) = mpsc::unbounded_channel();
    let mut window = ImportWindow::default();
    let mut lines = LineSplitter::default();
    let mut is_at_end = false;
    let mut due = Instant::now() + PROGRESS_INTERVAL;
    let line = &admin.line;
    while !is_at_end || !window.pending.is_empty() {
        tokio::select! {
            Some((number, ruling)) = results.recv(), if !window.pending.is_empty() => window.record_result(number, ruling)?,
            frame = body.frame(), if !is_at_end && window.pending.len() < MAX_PENDING => {
                let part = match frame {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) => return Err(AdminError::new("gone", "whoever asked has hung up")),
                    None => {
                        is_at_end = true;
                        Bytes::from_static(b"\n")
                    }
                };
                for found in lines.take(&part) {
                    let (text, end) = match found {
                        SplitLine::Complete { text, end } => (text, end),
                        SplitLine::TooLong { end } => {
                            window.skip(end, "too_long");
                            continue;
                        }
                    };
                    let Some(place) = line.place(text.len()).await else {
                        return Err(AdminError::new("going_down", "the server is going down"));
                    };
                    let number = window.push(end, text.clone());
                    line.join(QueuedEvent::of_operator(text, (number, result_sender.clone()), allow_protected, place));
                }
            }
            gone = writer.closed() => return Err(gone.into()),
        }
        for text in window.retry_texts.drain(..) {
            writer.send_item(json!({ "again": text })).await?;
        }
        if Instant::now() >= due {
            writer.send_item(window.to_json()).await?;
            due = Instant::now() + PROGRESS_INTERVAL;
        }
    }
    // Without the line break that stands for the end.
    window.done = lines.offset.saturating_sub(1);
    writer.send_item(window.to_json()).await?;
    Ok(window.to_json())
}

/// What is being judged, in order.
#[derive(Default)]
struct ImportWindow {
    pending: VecDeque<PendingEvent>,
    /// The number of the first.
    first: u64,
    /// The byte up to which all has been judged.
    done: u64,
    accepted: u64,
    held: u64,
    known: u64,
    rejected: BTreeMap<String, u64>,
    /// Refused for want of something that may come later in the file.
    retryable: BTreeMap<String, u64>,
    /// Their texts, which are still to be told.
    retry_texts: Vec<String>,
}

struct PendingEvent {
    end: u64,
    text: String,
    is_decided: bool,
}

impl ImportWindow {
    fn push(&mut self, end: u64, text: String) -> u64 {
        self.pending.push_back(PendingEvent { end, text, is_decided: false });
        self.first + self.pending.len() as u64 - 1
    }

    /// A line that is no event and nobody judges.
    fn skip(&mut self, end: u64, why: &str) {
        *self.rejected.entry(why.to_owned()).or_default() += 1;
        self.pending.push_back(PendingEvent { end, text: String::new(), is_decided: true });
        self.advance();
    }

    fn record_result(&mut self, number: u64, ruling: Ruling) -> Result<(), AdminError> {
        let Some(slot) = number.checked_sub(self.first).and_then(|number| self.pending.get_mut(number as usize)) else {
            return Ok(());
        };
        slot.is_decided = true;
        match ruling {
            Ok(Decision::Accept | Decision::Broadcast) => self.accepted += 1,
            Ok(Decision::Hold(_)) => self.held += 1,
            Ok(Decision::Known(_)) => self.known += 1,
            Ok(Decision::Reject(why)) | Err(why) => {
                if matches!(why, Rejection::DiskFull | Rejection::StoreFailed) {
                    return Err(AdminError::new("failed", format!("{why}. What is done is done; go on later")));
                }
                let list = if may_be_accepted_later(&why) {
                    self.retry_texts.push(std::mem::take(&mut slot.text));
                    &mut self.retryable
                } else {
                    &mut self.rejected
                };
                *list.entry(why.label().to_owned()).or_default() += 1;
            }
        }
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        while let Some(end) = self.pending.front().filter(|slot| slot.is_decided).map(|slot| slot.end) {
            self.pending.pop_front();
            self.done = end;
            self.first += 1;
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "done": self.done,
            "accepted": self.accepted,
            "held": self.held,
            "known": self.known,
            "refused": self.rejected,
            "wanting": self.retryable,
        })
    }
}

/// Whether what an event lacks may come behind it, or room for it may be found when others have their git data.
fn may_be_accepted_later(why: &Rejection) -> bool {
    matches!(
        why,
        Rejection::NoAnnouncement
            | Rejection::NotMaintainer
            | Rejection::Unrelated
            // Who invites its author may come behind it.
            | Rejection::NotListed
            | Rejection::NotArchived
            | Rejection::NotWhitelisted
            | Rejection::NoNewRepositories
            | Rejection::TooManyHeld
            | Rejection::PurgatoryFull
    )
}

/// Cuts a stream into lines.
#[derive(Default)]
struct LineSplitter {
    /// Bytes that were taken.
    offset: u64,
    partial: Vec<u8>,
    /// Whether the line that is open is too long and thrown away.
    is_too_long: bool,
}

enum SplitLine {
    Complete { text: String, end: u64 },
    TooLong { end: u64 },
}

impl LineSplitter {
    /// Lines that are complete now; those without a word are none.
    fn take(&mut self, part: &[u8]) -> Vec<SplitLine> {
        let mut found = Vec::new();
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            self.offset += piece.len() as u64;
            let (text, complete) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            if self.partial.len() + text.len() > limits::MAX_MESSAGE_BYTES {
                self.is_too_long = true;
                self.partial.clear();
            }
            if !self.is_too_long {
                self.partial.extend_from_slice(text);
            }
            if complete {
                let text = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).trim().to_owned();
                if std::mem::take(&mut self.is_too_long) {
                    found.push(SplitLine::TooLong { end: self.offset });
                } else if !text.is_empty() {
                    found.push(SplitLine::Complete { text, end: self.offset });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_across_chunks() {
        let mut lines = LineSplitter::default();
        let mut results = Vec::new();
        let is_too_long = "x".repeat(limits::MAX_MESSAGE_BYTES + 1);
        let stream = format!("{{\"a\":1}}\n\n  \n{{\"b\":\"é\"}}\r\n{is_too_long}\nlast");
        for part in stream.as_bytes().chunks(7) {
            results.extend(lines.take(part));
        }
        results.extend(lines.take(b"\n"));
        let past = 24 + limits::MAX_MESSAGE_BYTES as u64 + 2;
        assert!(results.iter().any(|found| matches!(found, SplitLine::TooLong { end } if *end == past)), "its own end");
        let texts: Vec<Option<(&str, u64)>> = results
            .iter()
            .map(|found| match found {
                SplitLine::Complete { text, end } => Some((text.as_str(), *end)),
                SplitLine::TooLong { .. } => None,
            })
            .collect();
        assert_eq!(texts[..2], [Some(("{\"a\":1}", 8)), Some(("{\"b\":\"é\"}", 24))]);
        assert_eq!((texts[2], texts[3].map(|(text, _)| text), texts.len()), (None, Some("last"), 4));
    }

    #[test]
    fn progress_counts_the_decided_prefix() {
        let mut window = ImportWindow::default();
        let numbers: Vec<u64> = (1..=3).map(|end| window.push(end * 10, String::new())).collect();
        window.record_result(numbers[1], Ok(Decision::Accept)).expect("fine");
        assert_eq!(window.done, 0);
        window.record_result(numbers[0], Ok(Decision::Reject(Rejection::Unrelated))).expect("fine");
        assert_eq!((window.done, window.retry_texts.len(), window.retryable["unrelated"]), (20, 1, 1));
        assert!(window.record_result(numbers[2], Ok(Decision::Reject(Rejection::DiskFull))).is_err());
        assert_eq!(window.done, 20, "what could not be stored is offered again");
    }
}

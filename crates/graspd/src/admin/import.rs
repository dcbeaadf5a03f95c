//! `import`: events from a file go the way of events from clients, but for the network's budget.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::nostr::rejection::{Refusal, Verdict};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Admin;
use super::wire::{Complaint, Request, Teller};
use crate::metrics::labels::variant;
use crate::writer::submission::{Offer, Ruling};

/// Events that are judged at the same time: a few batches of the writer.
const MOST: usize = 1_024;

/// How often it is told how far it is.
const EVERY: Duration = Duration::from_millis(500);

/// Takes lines of JSON, and tells up to which byte all has been judged.
pub(super) async fn import(admin: &Arc<Admin>, request: Request, tell: Teller) -> Result<Value, Complaint> {
    let _alone = admin.alone("an import")?;
    let vouched = request.query("protected") == Some("true");
    let mut body = request.into_body();
    let (answers, mut heard) = mpsc::unbounded_channel();
    let mut window = Window::default();
    let mut lines = Lines::default();
    let mut ended = false;
    let mut due = Instant::now() + EVERY;
    let line = &admin.house.rooms.line;
    while !ended || !window.slots.is_empty() {
        tokio::select! {
            Some((nth, ruling)) = heard.recv(), if !window.slots.is_empty() => window.settle(nth, ruling)?,
            frame = body.frame(), if !ended && window.slots.len() < MOST => {
                let part = match frame {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) => return Err(Complaint::new("gone", "whoever asked has hung up")),
                    None => {
                        ended = true;
                        Bytes::from_static(b"\n")
                    }
                };
                for found in lines.take(&part) {
                    let (text, end) = match found {
                        Found::Line { text, end } => (text, end),
                        Found::TooLong { end } => {
                            window.skip(end, "too_long");
                            continue;
                        }
                    };
                    let Some(place) = line.place(text.len()).await else {
                        return Err(Complaint::new("going_down", "the server is going down"));
                    };
                    let nth = window.join(end, text.clone());
                    line.join(Offer::of_operator(text, (nth, answers.clone()), vouched, place));
                }
            }
            gone = tell.unwanted() => return Err(gone.into()),
        }
        for text in window.again.drain(..) {
            tell.item(json!({ "again": text })).await?;
        }
        if Instant::now() >= due {
            tell.item(window.value()).await?;
            due = Instant::now() + EVERY;
        }
    }
    // Without the line break that stands for the end.
    window.done = lines.at.saturating_sub(1);
    tell.item(window.value()).await?;
    Ok(window.value())
}

/// What is being judged, in order.
#[derive(Default)]
struct Window {
    slots: VecDeque<Slot>,
    /// The number of the first.
    first: u64,
    /// The byte up to which all has been judged.
    done: u64,
    accepted: u64,
    held: u64,
    known: u64,
    refused: BTreeMap<String, u64>,
    /// Refused for want of something that may come later in the file.
    wanting: BTreeMap<String, u64>,
    /// Their texts, which are still to be told.
    again: Vec<String>,
}

struct Slot {
    end: u64,
    text: String,
    judged: bool,
}

impl Window {
    fn join(&mut self, end: u64, text: String) -> u64 {
        self.slots.push_back(Slot { end, text, judged: false });
        self.first + self.slots.len() as u64 - 1
    }

    /// A line that is no event and nobody judges.
    fn skip(&mut self, end: u64, why: &str) {
        *self.refused.entry(why.to_owned()).or_default() += 1;
        self.slots.push_back(Slot { end, text: String::new(), judged: true });
        self.advance();
    }

    fn settle(&mut self, nth: u64, ruling: Ruling) -> Result<(), Complaint> {
        let Some(slot) = nth.checked_sub(self.first).and_then(|nth| self.slots.get_mut(nth as usize)) else {
            return Ok(());
        };
        slot.judged = true;
        match ruling {
            Ok(Verdict::Accept | Verdict::Pass) => self.accepted += 1,
            Ok(Verdict::Hold(_)) => self.held += 1,
            Ok(Verdict::Known(_)) => self.known += 1,
            Ok(Verdict::Refuse(why)) | Err(why) => {
                if matches!(why, Refusal::DiskFull | Refusal::StoreFailed) {
                    return Err(Complaint::new("failed", format!("{why}. What is done is done; go on later")));
                }
                let list = if may_come(&why) {
                    self.again.push(std::mem::take(&mut slot.text));
                    &mut self.wanting
                } else {
                    &mut self.refused
                };
                *list.entry(variant(&why)).or_default() += 1;
            }
        }
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        while let Some(end) = self.slots.front().filter(|slot| slot.judged).map(|slot| slot.end) {
            self.slots.pop_front();
            self.done = end;
            self.first += 1;
        }
    }

    fn value(&self) -> Value {
        json!({
            "done": self.done,
            "accepted": self.accepted,
            "held": self.held,
            "known": self.known,
            "refused": self.refused,
            "wanting": self.wanting,
        })
    }
}

/// Whether what an event lacks may come behind it, or room for it may be found when others have their git data.
fn may_come(why: &Refusal) -> bool {
    matches!(
        why,
        Refusal::NoAnnouncement
            | Refusal::NotMaintainer
            | Refusal::Unrelated
            // Who invites its author may come behind it.
            | Refusal::NotListed
            | Refusal::NotArchived
            | Refusal::NotWhitelisted
            | Refusal::NoNewRepositories
            | Refusal::TooMuchHeld
            | Refusal::PurgatoryFull
    )
}

/// Cuts a stream into lines.
#[derive(Default)]
struct Lines {
    /// Bytes that were taken.
    at: u64,
    open: Vec<u8>,
    /// Whether the line that is open is too long and thrown away.
    long: bool,
}

enum Found {
    Line { text: String, end: u64 },
    TooLong { end: u64 },
}

impl Lines {
    /// Lines that are complete now; those without a word are none.
    fn take(&mut self, part: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            self.at += piece.len() as u64;
            let (text, complete) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            if self.open.len() + text.len() > limits::MAX_MESSAGE_BYTES {
                self.long = true;
                self.open.clear();
            }
            if !self.long {
                self.open.extend_from_slice(text);
            }
            if complete {
                let text = String::from_utf8_lossy(&std::mem::take(&mut self.open)).trim().to_owned();
                if std::mem::take(&mut self.long) {
                    found.push(Found::TooLong { end: self.at });
                } else if !text.is_empty() {
                    found.push(Found::Line { text, end: self.at });
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
    fn lines_are_cut_wherever_the_parts_end() {
        let mut lines = Lines::default();
        let mut heard = Vec::new();
        let long = "x".repeat(limits::MAX_MESSAGE_BYTES + 1);
        let stream = format!("{{\"a\":1}}\n\n  \n{{\"b\":\"é\"}}\r\n{long}\nlast");
        for part in stream.as_bytes().chunks(7) {
            heard.extend(lines.take(part));
        }
        heard.extend(lines.take(b"\n"));
        let past = 24 + limits::MAX_MESSAGE_BYTES as u64 + 2;
        assert!(heard.iter().any(|found| matches!(found, Found::TooLong { end } if *end == past)), "its own end");
        let texts: Vec<Option<(&str, u64)>> = heard
            .iter()
            .map(|found| match found {
                Found::Line { text, end } => Some((text.as_str(), *end)),
                Found::TooLong { .. } => None,
            })
            .collect();
        assert_eq!(texts[..2], [Some(("{\"a\":1}", 8)), Some(("{\"b\":\"é\"}", 24))]);
        assert_eq!((texts[2], texts[3].map(|(text, _)| text), texts.len()), (None, Some("last"), 4));
    }

    #[test]
    fn all_that_is_judged_from_the_beginning_counts() {
        let mut window = Window::default();
        let numbers: Vec<u64> = (1..=3).map(|end| window.join(end * 10, String::new())).collect();
        window.settle(numbers[1], Ok(Verdict::Accept)).expect("fine");
        assert_eq!(window.done, 0);
        window.settle(numbers[0], Ok(Verdict::Refuse(Refusal::Unrelated))).expect("fine");
        assert_eq!((window.done, window.again.len(), window.wanting["unrelated"]), (20, 1, 1));
        assert!(window.settle(numbers[2], Ok(Verdict::Refuse(Refusal::DiskFull))).is_err());
        assert_eq!(window.done, 20, "what could not be stored is offered again");
    }
}

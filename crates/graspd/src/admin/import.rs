//! `import`: events from a file are decided like events of clients, but without the rate limit per network.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use grasp_core::limits;
use grasp_core::nostr::rejection::{Decision, Rejection};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::AdminState;
use super::api::{ImportItem, ImportProgress};
use super::deferred_events::DeferredEvent;
use super::wire::{AdminError, AdminRequest, ResponseWriter};
use crate::writer::submission::QueuedEvent;

/// Maximum number of events that wait for a decision: a few batches of the writer.
const MAX_PENDING: usize = 1_024;

/// Interval between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Reads lines of JSON, and reports the byte offset up to which all events are decided.
pub(super) async fn import(
    admin: &Arc<AdminState>,
    request: AdminRequest,
    writer: ResponseWriter<ImportItem>,
) -> Result<ImportProgress, AdminError> {
    let _exclusive = admin.begin_exclusive("an import")?;
    let (arguments, mut body) = request.into_import();
    let (result_sender, mut results) = mpsc::unbounded_channel();
    let mut window = ImportWindow::default();
    let mut deferred = None;
    if arguments.defer {
        let mut file = admin.deferred.begin(&admin.store).await.map_err(AdminError::failed)?;
        tokio::task::block_in_place(|| file.add_current()).map_err(AdminError::failed)?;
        deferred = Some(file);
    }
    let mut lines = LineSplitter::default();
    let mut is_at_end = false;
    let mut due = Instant::now() + PROGRESS_INTERVAL;
    let queue = &admin.event_queue;
    while !is_at_end || !window.pending.is_empty() {
        tokio::select! {
            Some((number, result)) = results.recv(), if !window.pending.is_empty() => {
                window.record_result(number, result)?;
            }
            frame = body.frame(), if !is_at_end && window.pending.len() < MAX_PENDING => {
                let part = match frame {
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                    Some(Err(_)) => return Err(AdminError::client_disconnected()),
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
                    let Some(permit) = queue.reserve(text.len()).await else {
                        return Err(AdminError::server_stopping());
                    };
                    let number = window.push(end, text.clone());
                    let reply_to = (number, result_sender.clone());
                    queue.push(QueuedEvent::from_operator(text, reply_to, arguments.protected, permit));
                }
            }
            gone = writer.closed() => return Err(gone),
        }
        for (again, why) in window.retryable.drain(..) {
            match &mut deferred {
                Some(file) => {
                    let event = DeferredEvent { text: again, is_from_author: arguments.protected };
                    file.add(&event, &why).map_err(AdminError::failed)?;
                }
                None => writer.send_item(&ImportItem::Again { again }).await?,
            }
        }
        // The client continues after the last reported event. Deferred events are on disk only at the end.
        if Instant::now() >= due && deferred.is_none() {
            writer.send_item(&ImportItem::Progress(window.progress.clone())).await?;
            due = Instant::now() + PROGRESS_INTERVAL;
        }
    }
    // Without the line break that was added at the end.
    window.progress.done = lines.offset.saturating_sub(1);
    if let Some(file) = deferred {
        let kept = tokio::task::block_in_place(|| file.finish(&admin.store)).map_err(AdminError::failed)?;
        window.progress.counts.mark_deferred(&kept);
    }
    writer.send_item(&ImportItem::Progress(window.progress.clone())).await?;
    Ok(window.progress)
}

/// Events that wait for a decision, in their order, and the counts so far.
#[derive(Default)]
struct ImportWindow {
    pending: VecDeque<PendingEvent>,
    /// Number of the first pending event.
    first: u64,
    progress: ImportProgress,
    /// The events counted as retryable that have not been sent to the client or deferred yet.
    retryable: Vec<(String, Rejection)>,
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

    /// Counts a line that is not an event.
    fn skip(&mut self, end: u64, why: &str) {
        *self.progress.counts.rejected.entry(why.to_owned()).or_default() += 1;
        self.pending.push_back(PendingEvent { end, text: String::new(), is_decided: true });
        self.advance();
    }

    fn record_result(&mut self, number: u64, decision: Decision) -> Result<(), AdminError> {
        let Some(event) = number.checked_sub(self.first).and_then(|number| self.pending.get_mut(number as usize))
        else {
            return Ok(());
        };
        event.is_decided = true;
        // The request is tried again like other unrelated events: it is served when its author has events here.
        let decision = if decision == Decision::Remember { Decision::Reject(Rejection::Unrelated) } else { decision };
        let counts = &mut self.progress.counts;
        match decision {
            Decision::Accept | Decision::Remember | Decision::Broadcast => counts.accepted += 1,
            Decision::Hold(_) => counts.held += 1,
            Decision::Known(_) => counts.known += 1,
            Decision::Reject(why) => {
                if matches!(why, Rejection::DiskFull | Rejection::StoreFailed) {
                    let text = format!("{why}. The events before it are imported; continue later");
                    return Err(AdminError::failed(text));
                }
                let is_retryable = may_be_accepted_later(&why);
                let list = if is_retryable { &mut counts.retryable } else { &mut counts.rejected };
                *list.entry(why.label().to_owned()).or_default() += 1;
                if is_retryable {
                    self.retryable.push((std::mem::take(&mut event.text), why));
                }
            }
        }
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        while let Some(end) = self.pending.front().filter(|event| event.is_decided).map(|event| event.end) {
            self.pending.pop_front();
            self.progress.done = end;
            self.first += 1;
        }
    }
}

/// Returns whether an event may be accepted later: what it depends on may come later in the file, or there may be space
/// when other events have their git data.
pub(super) fn may_be_accepted_later(why: &Rejection) -> bool {
    matches!(
        why,
        Rejection::NoAnnouncement
            | Rejection::NotMaintainer
            | Rejection::Unrelated
            // The announcement that lists its author as a maintainer may come later.
            | Rejection::NotListed { .. }
            | Rejection::NotArchived
            | Rejection::NotWhitelisted
            | Rejection::NoNewRepositories
            | Rejection::TooManyHeld
            | Rejection::TooManyHeldFromNetwork
            | Rejection::PurgatoryFull
            | Rejection::TooManyEarlyRequests
    )
}

/// Splits a stream into lines.
#[derive(Default)]
struct LineSplitter {
    /// Number of bytes read so far.
    offset: u64,
    partial: Vec<u8>,
    /// Whether the current line is too long and is skipped.
    is_too_long: bool,
}

enum SplitLine {
    Complete { text: String, end: u64 },
    TooLong { end: u64 },
}

impl LineSplitter {
    /// Returns the lines that are complete now, without blank ones.
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
        assert!(
            results.iter().any(|found| matches!(found, SplitLine::TooLong { end } if *end == past)),
            "end of the line"
        );
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
        window.record_result(numbers[1], Decision::Accept).expect("fine");
        assert_eq!(window.progress.done, 0);
        window.record_result(numbers[0], Decision::Reject(Rejection::Unrelated)).expect("fine");
        assert_eq!(
            (window.progress.done, window.retryable.len(), window.progress.counts.retryable["unrelated"]),
            (20, 1, 1)
        );
        assert!(window.record_result(numbers[2], Decision::Reject(Rejection::DiskFull)).is_err());
        assert_eq!(window.progress.done, 20, "an event that could not be stored is imported again");
    }

    /// The keys and values are part of the socket protocol.
    #[test]
    fn json_of_the_progress_is_stable() {
        let mut window = ImportWindow::default();
        for (decision, end) in [(Decision::Accept, 10), (Decision::Reject(Rejection::Unrelated), 20)] {
            let number = window.push(end, "{}".to_owned());
            window.record_result(number, decision).expect("fine");
        }
        window.skip(30, "too_long");
        assert_eq!(
            serde_json::json!(window.progress).to_string(),
            r#"{"accepted":1,"deferred":0,"done":30,"held":0,"known":0,"rejected":{"too_long":1},"retryable":{"unrelated":1}}"#
        );
    }
}

//! Log lines of sync and their levels. Texts of relays are quoted, because they can contain any characters.

use grasp_core::sync::io::{SyncNote, SyncSource};
use tracing::{debug, error, info, warn};

/// Logs a note of the sync machine.
pub(crate) fn log_note(note: &SyncNote) {
    match note {
        SyncNote::Connected(relay, kind) => info!(target: "sync", %relay, kind = kind.label(), "relay connected"),
        // One warning for a series of failures. An error follows if the relay is unreachable for a day.
        SyncNote::ConnectionFailed { relay, reason, attempt: attempt @ 1, backoff_millis, .. } => {
            let retry_in = format_seconds(*backoff_millis);
            warn!(target: "sync", %relay, attempt, %retry_in, reason = reason.label(), "relay connection failed");
        }
        SyncNote::ConnectionFailed { relay, reason, attempt, backoff_millis, .. } => {
            let retry_in = format_seconds(*backoff_millis);
            debug!(target: "sync", %relay, attempt, %retry_in, reason = reason.label(), "relay connection failed");
        }
        SyncNote::ConnectionLost(relay, reason) => {
            info!(target: "sync", %relay, reason = reason.label(), "relay disconnected")
        }
        SyncNote::Dead(relay, failures) => {
            error!(target: "sync", %relay, failures, "relay unreachable for a day; retrying once a day")
        }
        SyncNote::RateLimited(relay, text, secs) => {
            warn!(target: "sync", %relay, text = ?text, pause_secs = secs, "rate limited by relay");
        }
        SyncNote::Unsolicited(relay) => debug!(target: "sync", %relay, "relay sent an event that was not requested"),
        SyncNote::Flooded(relay, secs) => {
            warn!(target: "sync", %relay, pause_secs = secs, "relay sends too much that was not requested, disconnected");
        }
        SyncNote::NoNegentropy(relay) => {
            warn!(target: "sync", %relay, "relay does not support negentropy (NIP-77); using pages")
        }
        SyncNote::Parked(relay, text) => {
            warn!(target: "sync", %relay, text = ?text, "relay rejects this server; retrying once a day")
        }
        SyncNote::IsSelf(relay) => info!(target: "sync", %relay, "relay URL leads to this server; not followed"),
        SyncNote::CaughtUp { relay, source, events, is_complete } => {
            info!(target: "sync", %relay, source = source.label(), events, complete = is_complete, "caught up with relay");
        }
        SyncNote::Gaps { relay, source: SyncSource::Daily, count, examples } => {
            let examples = join_ids(examples);
            error!(target: "sync", %relay, count, examples, "sustained sync gap: events found by the daily reconciliation");
        }
        SyncNote::Gaps { relay, source: SyncSource::CatchUp | SyncSource::Live, count, examples } => {
            let examples = join_ids(examples);
            warn!(target: "sync", %relay, count, examples, "sync gap: events found by historic sync");
        }
        SyncNote::StatesCompared { .. } => {}
        // URLs and repository names are percent-encoded.
        SyncNote::RelayLacksEvents(relay, repos) => {
            for (repo, count) in repos {
                warn!(target: "sync", %relay, %repo, count, "relay lacks events that are served here");
            }
        }
        SyncNote::BatchFailed(relay, reason) => warn!(target: "sync", %relay, reason, "historic sync batch failed"),
    }
}

fn format_seconds(millis: u64) -> String {
    format!("{}.{}s", millis / 1_000, millis % 1_000 / 100)
}

fn join_ids(examples: &[grasp_core::nostr::event::EventId]) -> String {
    examples.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use grasp_core::nostr::PublicKey;
    use grasp_core::nostr::event::EventId;
    use grasp_core::repo::{Identifier, RepoId};
    use grasp_core::sync::io::{DisconnectReason, ReconnectKind};
    use grasp_core::sync::relay_url::RelayUrl;

    use super::*;

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the log line of a note.
    fn log_line(note: &SyncNote) -> String {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::DEBUG)
            .with_ansi(false)
            .without_time()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || log_note(note));
        let bytes = buffer.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("UTF-8")
    }

    fn relay() -> RelayUrl {
        RelayUrl::parse("wss://relay.example").expect("valid URL")
    }

    fn gaps(source: SyncSource) -> SyncNote {
        SyncNote::Gaps { relay: relay(), source, count: 7, examples: vec![EventId([0xab; 32])] }
    }

    #[test]
    fn each_note_has_a_level_and_fields() {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("valid identifier") };
        let failed = |attempt| SyncNote::ConnectionFailed {
            relay: relay(),
            reason: DisconnectReason::Unreachable,
            attempt,
            failures: attempt,
            backoff_millis: 20_100,
        };
        let caught_up =
            SyncNote::CaughtUp { relay: relay(), source: SyncSource::CatchUp, events: 9, is_complete: true };
        for (note, level, parts) in [
            (SyncNote::Connected(relay(), ReconnectKind::Quick), "INFO", &["kind=\"quick\""][..]),
            (failed(1), "WARN", &["attempt=1", "retry_in=20.1s", "reason=\"unreachable\""]),
            (failed(3), "DEBUG", &["attempt=3", "retry_in=20.1s", "reason=\"unreachable\""]),
            (SyncNote::Dead(relay(), 40), "ERROR", &["failures=40"]),
            (gaps(SyncSource::CatchUp), "WARN", &["count=7", "abab"]),
            (gaps(SyncSource::Daily), "ERROR", &["count=7", "abab"]),
            (SyncNote::RelayLacksEvents(relay(), vec![(repo, 5)]), "WARN", &["count=5", "npub1", "/x"]),
            (SyncNote::RateLimited(relay(), "slow down".to_owned(), 65), "WARN", &["\"slow down\"", "pause_secs=65"]),
            (SyncNote::NoNegentropy(relay()), "WARN", &["pages"]),
            (SyncNote::Flooded(relay(), 40), "WARN", &["pause_secs=40"]),
            (SyncNote::Parked(relay(), "go away".to_owned()), "WARN", &["\"go away\""]),
            (SyncNote::IsSelf(relay()), "INFO", &["this server"]),
            (caught_up, "INFO", &["events=9", "complete=true"]),
            (SyncNote::ConnectionLost(relay(), DisconnectReason::Ended), "INFO", &["reason=\"ended\""]),
            (SyncNote::BatchFailed(relay(), "pages"), "WARN", &["reason=\"pages\""]),
        ] {
            let line = log_line(&note);
            assert_eq!(line.split_whitespace().next(), Some(level), "{line}");
            assert!(line.contains("relay=wss://relay.example"), "{line}");
            for part in parts {
                assert!(line.contains(part), "{part} missing in {line}");
            }
        }
    }

    #[test]
    fn relay_texts_cannot_inject_log_lines() {
        let text = "a\nERROR b\r\u{1b}[31m\u{202e}\0".to_owned();
        let name = Identifier::new("x\u{202e}y");
        let notes = [SyncNote::RateLimited(relay(), text.clone(), 1), SyncNote::Parked(relay(), text)];
        let lacks = name
            .map(|identifier| RepoId { owner: PublicKey([1; 32]), identifier })
            .map(|repo| SyncNote::RelayLacksEvents(relay(), vec![(repo, 1)]));
        for note in notes.into_iter().chain(lacks) {
            let line = log_line(&note);
            let line = line.strip_suffix('\n').expect("one line");
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}

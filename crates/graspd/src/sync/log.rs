//! What sync says in the log, and how loudly. Text of relays is quoted: it may be anything.

use grasp_core::sync::io::{SyncNote, SyncSource};
use tracing::{error, info, warn};

/// Logs what people may want to know.
pub(crate) fn note(note: &SyncNote) {
    match note {
        SyncNote::Connected(relay, kind) => info!(%relay, kind = kind.label(), "connected"),
        SyncNote::ConnectionFailed { relay, reason, failures, backoff_millis } => {
            warn!(%relay, attempt = failures, backoff = %seconds(*backoff_millis), reason = reason.label(), "cannot connect");
        }
        SyncNote::ConnectionLost(relay, reason) => info!(%relay, reason = reason.label(), "the connection has ended"),
        SyncNote::Dead(relay, failures) => {
            error!(%relay, failures, "not reached for a day; tried once a day from now on")
        }
        SyncNote::RateLimited(relay, text, secs) => {
            warn!(%relay, text = ?text, pause_secs = secs, "the relay wants fewer requests");
        }
        SyncNote::NoNegentropy(relay) => warn!(%relay, "the relay does not speak negentropy (NIP-77); using pages"),
        SyncNote::Parked(relay, text) => warn!(%relay, text = ?text, "the relay refuses us; tried once a day"),
        SyncNote::IsSelf(relay) => info!(%relay, "this is our own address; not followed"),
        SyncNote::CaughtUp { relay, source, events, is_complete } => {
            info!(%relay, source = source.label(), events, complete = is_complete, "caught up");
        }
        SyncNote::Gaps { relay, source: SyncSource::Daily, count, examples } => {
            let examples = ids(examples);
            error!(%relay, count, examples, "sustained sync gap: events found by the daily reconciliation");
        }
        SyncNote::Gaps { relay, source: SyncSource::CatchUp | SyncSource::Live, count, examples } => {
            let examples = ids(examples);
            warn!(%relay, count, examples, "sync gap: events found by catching up");
        }
        SyncNote::RelayLacksEvents(_, _, 0) | SyncNote::StatesCompared { .. } => {}
        // Addresses and repositories are percent-encoded.
        SyncNote::RelayLacksEvents(relay, repo, count) => {
            warn!(%relay, repository = %repo, count, "the relay lacks events that are here");
        }
        SyncNote::BatchFailed(relay, what) => warn!(%relay, what, "part of the history could not be had"),
    }
}

fn seconds(millis: u64) -> String {
    format!("{}.{}s", millis / 1_000, millis % 1_000 / 100)
}

fn ids(examples: &[grasp_core::nostr::event::EventId]) -> String {
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
    struct Page(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The line that a note makes.
    fn line(said: &SyncNote) -> String {
        let page = Page::default();
        let writer = page.clone();
        let log =
            tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(log, || note(said));
        let bytes = page.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("text")
    }

    fn relay() -> RelayUrl {
        RelayUrl::parse("wss://relay.example").expect("a relay")
    }

    fn gaps(source: SyncSource) -> SyncNote {
        SyncNote::Gaps { relay: relay(), source, count: 7, examples: vec![EventId([0xab; 32])] }
    }

    #[test]
    fn every_note_has_its_level() {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("a name") };
        let failed = SyncNote::ConnectionFailed {
            relay: relay(),
            reason: DisconnectReason::Unreachable,
            failures: 3,
            backoff_millis: 20_100,
        };
        let caught_up =
            SyncNote::CaughtUp { relay: relay(), source: SyncSource::CatchUp, events: 9, is_complete: true };
        for (note, level, parts) in [
            (SyncNote::Connected(relay(), ReconnectKind::Quick), "INFO", &["kind=\"quick\""][..]),
            (failed, "WARN", &["attempt=3", "backoff=20.1s", "reason=\"unreachable\""]),
            (SyncNote::Dead(relay(), 40), "ERROR", &["failures=40"]),
            (gaps(SyncSource::CatchUp), "WARN", &["count=7", "abab"]),
            (gaps(SyncSource::Daily), "ERROR", &["count=7", "abab"]),
            (SyncNote::RelayLacksEvents(relay(), repo, 5), "WARN", &["count=5", "npub1", "/x"]),
            (SyncNote::RateLimited(relay(), "slow down".to_owned(), 65), "WARN", &["\"slow down\"", "pause_secs=65"]),
            (SyncNote::NoNegentropy(relay()), "WARN", &["pages"]),
            (SyncNote::Parked(relay(), "go away".to_owned()), "WARN", &["\"go away\""]),
            (SyncNote::IsSelf(relay()), "INFO", &["own address"]),
            (caught_up, "INFO", &["events=9", "complete=true"]),
            (SyncNote::ConnectionLost(relay(), DisconnectReason::Ended), "INFO", &["reason=\"ended\""]),
            (SyncNote::BatchFailed(relay(), "pages"), "WARN", &["what=\"pages\""]),
        ] {
            let line = line(&note);
            assert_eq!(line.split_whitespace().next(), Some(level), "{line}");
            assert!(line.contains("relay=wss://relay.example"), "{line}");
            for part in parts {
                assert!(line.contains(part), "{part} is not in {line}");
            }
        }
    }

    #[test]
    fn nobody_else_writes_lines_into_the_log() {
        let text = "a\nERROR b\r\u{1b}[31m\u{202e}\0".to_owned();
        let name = Identifier::new("x\u{202e}y");
        let notes = [SyncNote::RateLimited(relay(), text.clone(), 1), SyncNote::Parked(relay(), text)];
        let lacks = name
            .map(|identifier| SyncNote::RelayLacksEvents(relay(), RepoId { owner: PublicKey([1; 32]), identifier }, 1));
        for note in notes.into_iter().chain(lacks) {
            let line = line(&note);
            let line = line.strip_suffix('\n').expect("a line");
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}

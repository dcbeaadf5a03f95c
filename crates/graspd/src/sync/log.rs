//! What sync says in the log, and how loudly. Text of relays is quoted: it may be anything.

use grasp_core::sync::io::{Note, Via};
use tracing::{error, info, warn};

/// Logs what people may want to know.
pub(crate) fn note(note: &Note) {
    match note {
        Note::Connected(relay, how) => info!(%relay, ?how, "connected"),
        Note::Failed { relay, loss, failures, backoff_millis } => {
            warn!(%relay, attempt = failures, backoff = %seconds(*backoff_millis), ?loss, "cannot connect");
        }
        Note::Lost(relay, loss) => info!(%relay, ?loss, "the connection has ended"),
        Note::Dead(relay, failures) => error!(%relay, failures, "not reached for a day; tried once a day from now on"),
        Note::RateLimited(relay, text, secs) => {
            warn!(%relay, text = ?text, pause_secs = secs, "the relay wants fewer requests");
        }
        Note::NoNegentropy(relay) => warn!(%relay, "the relay does not speak negentropy (NIP-77); using pages"),
        Note::Parked(relay, text) => warn!(%relay, text = ?text, "the relay refuses us; tried once a day"),
        Note::IsSelf(relay) => info!(%relay, "this is our own address; not followed"),
        Note::CaughtUp { relay, via, events, whole } => {
            info!(%relay, ?via, events, whole, "caught up");
        }
        Note::Gaps { relay, via: Via::Daily, count, examples } => {
            let examples = ids(examples);
            error!(%relay, count, examples, "sustained sync gap: events found by the daily reconciliation");
        }
        Note::Gaps { relay, via: Via::CatchUp | Via::Live, count, examples } => {
            let examples = ids(examples);
            warn!(%relay, count, examples, "sync gap: events found by catching up");
        }
        Note::PeerLacks(_, _, 0) | Note::States { .. } => {}
        // Addresses and repositories are percent-encoded.
        Note::PeerLacks(relay, repo, count) => {
            warn!(%relay, repository = %repo, count, "the relay lacks events that are here");
        }
        Note::PassFailed(relay, what) => warn!(%relay, what, "part of the history could not be had"),
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
    use grasp_core::sync::io::{Loss, Reconnect};
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
    fn line(said: &Note) -> String {
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

    fn gaps(via: Via) -> Note {
        Note::Gaps { relay: relay(), via, count: 7, examples: vec![EventId([0xab; 32])] }
    }

    #[test]
    fn every_note_has_its_level() {
        let repo = RepoId { owner: PublicKey([1; 32]), identifier: Identifier::new("x").expect("a name") };
        let failed = Note::Failed { relay: relay(), loss: Loss::Unreachable, failures: 3, backoff_millis: 20_100 };
        let caught_up = Note::CaughtUp { relay: relay(), via: Via::CatchUp, events: 9, whole: true };
        for (note, level, parts) in [
            (Note::Connected(relay(), Reconnect::Quick), "INFO", &["Quick"][..]),
            (failed, "WARN", &["attempt=3", "backoff=20.1s", "Unreachable"]),
            (Note::Dead(relay(), 40), "ERROR", &["failures=40"]),
            (gaps(Via::CatchUp), "WARN", &["count=7", "abab"]),
            (gaps(Via::Daily), "ERROR", &["count=7", "abab"]),
            (Note::PeerLacks(relay(), repo, 5), "WARN", &["count=5", "npub1", "/x"]),
            (Note::RateLimited(relay(), "slow down".to_owned(), 65), "WARN", &["\"slow down\"", "pause_secs=65"]),
            (Note::NoNegentropy(relay()), "WARN", &["pages"]),
            (Note::Parked(relay(), "go away".to_owned()), "WARN", &["\"go away\""]),
            (Note::IsSelf(relay()), "INFO", &["own address"]),
            (caught_up, "INFO", &["events=9", "whole=true"]),
            (Note::Lost(relay(), Loss::Ended), "INFO", &["Ended"]),
            (Note::PassFailed(relay(), "pages"), "WARN", &["what=\"pages\""]),
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
        let notes = [Note::RateLimited(relay(), text.clone(), 1), Note::Parked(relay(), text)];
        let lacks =
            name.map(|identifier| Note::PeerLacks(relay(), RepoId { owner: PublicKey([1; 32]), identifier }, 1));
        for note in notes.into_iter().chain(lacks) {
            let line = line(&note);
            let line = line.strip_suffix('\n').expect("a line");
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
        }
    }
}

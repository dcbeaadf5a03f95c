//! How far something is, on standard error: a bar in a terminal, a line every few seconds elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::table::plain;
use crate::web::status::format::{count, duration};

/// How often a bar is drawn anew.
const FRAME: Duration = Duration::from_millis(100);

/// How often a line is written where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

/// Cells of a bar.
const CELLS: u64 = 24;

/// What shows progress. Dropping it leaves a clean line.
pub(crate) struct Progress {
    terminal: bool,
    began: Instant,
    shown: Option<(Instant, String)>,
    /// What has not been shown yet.
    kept: Option<String>,
}

impl Progress {
    /// For standard error as it is.
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), began: Instant::now(), shown: None, kept: None }
    }

    /// Shows how far something is, if it is time to.
    pub(crate) fn show(&mut self, what: &str, done: u64, total: Option<u64>) {
        let (every, text) = if self.terminal {
            (FRAME, bar(what, done, total, self.began.elapsed()))
        } else {
            (LINE, words(what, done, total))
        };
        let is_new = self.shown.as_ref().is_none_or(|(_, shown)| *shown != text);
        let is_due = self.shown.as_ref().is_none_or(|(at, _)| at.elapsed() >= every);
        if is_new && is_due {
            self.draw(text);
        } else {
            self.kept = is_new.then_some(text);
        }
    }

    fn draw(&mut self, text: String) {
        // Who cannot be told goes without.
        let mut out = std::io::stderr().lock();
        let _ = if self.terminal {
            // A line that wraps could not be drawn over.
            let width = rustix::termios::tcgetwinsize(&out).map_or(COLUMNS, |size| usize::from(size.ws_col));
            let fitting: String = text.chars().take(width.max(2) - 1).collect();
            write!(out, "\r\x1b[K{fitting}")
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
        self.shown = Some((Instant::now(), text));
        self.kept = None;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(text) = self.kept.take() {
            self.draw(text);
        }
        if self.terminal && self.shown.is_some() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn words(what: &str, done: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => format!("{}: {} of {}", plain(what), count(done), count(total)),
        None => format!("{}: {}", plain(what), count(done)),
    }
}

fn bar(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let Some(total) = total.filter(|total| *total > 0) else { return words(what, done, total) };
    let done = done.min(total);
    let full = (u128::from(done) * u128::from(CELLS) / u128::from(total)) as u64;
    let cells: String = (0..CELLS).map(|cell| if cell < full { '█' } else { '░' }).collect();
    let percent = u128::from(done) * 100 / u128::from(total);
    let left = match elapsed.as_secs() {
        spent @ 2.. if done > 0 && done < total => {
            let left = u128::from(spent) * u128::from(total - done) / u128::from(done);
            format!(", {} left", duration(u64::try_from(left).unwrap_or(u64::MAX)))
        }
        _ => String::new(),
    };
    format!("{cells} {percent:>3} %  {}{left}", words(what, done, Some(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_readable() {
        assert_eq!(words("events", 5, None), "events: 5");
        assert_eq!(
            bar("events", 50, Some(200), Duration::from_secs(10)),
            "██████░░░░░░░░░░░░░░░░░░  25 %  events: 50 of 200, 30 s left"
        );
        assert!(bar("x", 7, Some(5), Duration::ZERO).contains("100 %"), "more than all is all");
        assert_eq!(bar("x", 0, Some(0), Duration::ZERO), "x: 0 of 0");
    }
}

//! Progress output on standard error: a bar in a terminal, or else a line every few seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::ProgressFn;
use crate::text_format::{count, duration, terminal_safe};

/// Interval at which the bar is redrawn.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between two lines if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Width that is assumed if the terminal does not report one.
const DEFAULT_COLUMNS: usize = 80;

/// Cells of the bar.
const BAR_CELLS: u64 = 24;

/// Shows the progress of an operation. Dropping it completes the output with a line break.
pub(crate) struct Progress {
    is_terminal: bool,
    started_at: Instant,
    shown: Option<(Instant, String)>,
    /// Text that has not been shown yet.
    pending: Option<String>,
}

impl Progress {
    /// Returns a progress output for standard error.
    pub(crate) fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), started_at: Instant::now(), shown: None, pending: None }
    }

    /// Shows the progress, if the interval has passed.
    pub(crate) fn show(&mut self, what: &str, done: u64, total: Option<u64>) {
        let (every, text) = if self.is_terminal {
            (FRAME_INTERVAL, bar(what, done, total, self.started_at.elapsed()))
        } else {
            (LINE_INTERVAL, describe(what, done, total))
        };
        let is_new = self.shown.as_ref().is_none_or(|(_, shown)| *shown != text);
        let is_due = self.shown.as_ref().is_none_or(|(at, _)| at.elapsed() >= every);
        if is_new && is_due {
            self.draw(text);
        } else {
            self.pending = is_new.then_some(text);
        }
    }

    /// Runs a job and shows its progress on standard error until it ends.
    pub(crate) fn during<T>(job: impl FnOnce(&mut ProgressFn<'_>) -> T) -> T {
        let mut progress = Self::new();
        job(&mut |what, done, total| {
            progress.show(what, done, total);
            Ok(())
        })
    }

    fn draw(&mut self, text: String) {
        // Progress output is optional: errors are ignored.
        let mut out = std::io::stderr().lock();
        let _ = if self.is_terminal {
            // A line that wraps cannot be overwritten.
            let width = rustix::termios::tcgetwinsize(&out).map_or(DEFAULT_COLUMNS, |size| usize::from(size.ws_col));
            let fitting: String = text.chars().take(width.max(2) - 1).collect();
            write!(out, "\r\x1b[K{fitting}")
        } else {
            writeln!(out, "{text}")
        };
        let _ = out.flush();
        self.shown = Some((Instant::now(), text));
        self.pending = None;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(text) = self.pending.take() {
            self.draw(text);
        }
        if self.is_terminal && self.shown.is_some() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

fn describe(what: &str, done: u64, total: Option<u64>) -> String {
    match total {
        Some(total) => format!("{}: {} of {}", terminal_safe(what), count(done), count(total)),
        None => format!("{}: {}", terminal_safe(what), count(done)),
    }
}

fn bar(what: &str, done: u64, total: Option<u64>, elapsed: Duration) -> String {
    let Some(total) = total.filter(|total| *total > 0) else { return describe(what, done, total) };
    let done = done.min(total);
    let full = (u128::from(done) * u128::from(BAR_CELLS) / u128::from(total)) as u64;
    let cells: String = (0..BAR_CELLS).map(|cell| if cell < full { '█' } else { '░' }).collect();
    let percent = u128::from(done) * 100 / u128::from(total);
    let left = match elapsed.as_secs() {
        spent @ 2.. if done > 0 && done < total => {
            let left = u128::from(spent) * u128::from(total - done) / u128::from(done);
            format!(", {} left", duration(u64::try_from(left).unwrap_or(u64::MAX)))
        }
        _ => String::new(),
    };
    format!("{cells} {percent:>3} %  {}{left}", describe(what, done, Some(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_readable() {
        assert_eq!(describe("events", 5, None), "events: 5");
        assert_eq!(
            bar("events", 50, Some(200), Duration::from_secs(10)),
            "██████░░░░░░░░░░░░░░░░░░  25 %  events: 50 of 200, 30 s left"
        );
        assert!(bar("x", 7, Some(5), Duration::ZERO).contains("100 %"), "the bar ends at 100 %");
        assert_eq!(bar("x", 0, Some(0), Duration::ZERO), "x: 0 of 0");
    }
}

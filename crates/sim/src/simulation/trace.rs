//! Trace of a run: a hash of everything that happened, and optionally text.

use std::fmt;
use std::io::Write;

use super::queue::Time;

/// Trace of a run. Two runs with the same hash were identical.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    steps: u64,
    is_printed: bool,
}

impl Trace {
    /// Creates a trace that prints what happens to the standard output.
    pub fn printed() -> Self {
        Self { is_printed: true, ..Self::default() }
    }

    /// Counts a step.
    pub fn step(&mut self, at: Time, what: u64) {
        self.steps += 1;
        self.hash_number(at);
        self.hash_number(what);
    }

    /// Adds a number to the hash.
    pub fn hash_number(&mut self, value: u64) {
        let mixed = (self.hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Returns whether what happens is printed.
    pub fn is_printed(&self) -> bool {
        self.is_printed
    }

    /// Prints a line, if the trace is printed.
    pub fn log(&self, at: Time, line: impl FnOnce() -> String) {
        if self.is_printed {
            // A reader such as `head` may close the pipe early.
            let _ = writeln!(std::io::stdout(), "{} {}", DisplayTime(at), line());
        }
    }

    /// Returns the hash of everything that happened.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of steps.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

/// Displays a time as days, hours, minutes, seconds and milliseconds.
struct DisplayTime(Time);

impl fmt::Display for DisplayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0 / 1_000, self.0 % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        write!(f, "{days}d {hours:02}:{minutes:02}:{:02}.{millis:03}", secs % 60)
    }
}

//! Trace of a run: a hash of everything that happened, and optionally text.

use std::fmt;

use super::queue::Time;

/// Trace of a run. Two runs with the same hash were identical.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    steps: u64,
    text: Option<Vec<String>>,
    max_lines: usize,
}

impl Trace {
    /// Creates a trace that also keeps the last lines of text.
    #[must_use]
    pub fn with_text(max_lines: usize) -> Self {
        Self { text: Some(Vec::new()), max_lines, ..Self::default() }
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

    /// Adds bytes to the hash.
    pub fn hash_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.hash_number(u64::from_le_bytes(word));
        }
    }

    /// Returns whether text is recorded.
    #[must_use]
    pub fn has_text(&self) -> bool {
        self.text.is_some()
    }

    /// Adds a line, if text is recorded.
    pub fn log(&mut self, at: Time, line: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            if text.len() >= 2 * self.max_lines.max(1) {
                text.drain(..self.max_lines);
            }
            text.push(format!("{} {}", DisplayTime(at), line()));
        }
    }

    /// Returns the hash of everything that happened.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Returns the last lines.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        let lines = self.text.as_deref().unwrap_or_default();
        &lines[lines.len().saturating_sub(self.max_lines.max(1))..]
    }
}

/// Displays a time as days, hours, minutes, seconds and milliseconds.
pub struct DisplayTime(pub Time);

impl fmt::Display for DisplayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0 / 1_000, self.0 % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        write!(f, "{days}d {hours:02}:{minutes:02}:{:02}.{millis:03}", secs % 60)
    }
}

//! What happened, as a number; as text only when somebody wants to read it.

use std::fmt;

use super::queue::Time;

/// The trace of a life. Two lives with the same hash were the same.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    steps: u64,
    text: Option<Vec<String>>,
    most: usize,
}

impl Trace {
    /// One that keeps the last so many lines of text, too.
    #[must_use]
    pub fn with_text(most: usize) -> Self {
        Self { text: Some(Vec::new()), most, ..Self::default() }
    }

    /// Counts a step.
    pub fn step(&mut self, at: Time, what: u64) {
        self.steps += 1;
        self.fold(at);
        self.fold(what);
    }

    /// Takes a number into the hash.
    pub fn fold(&mut self, value: u64) {
        let mixed = (self.hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Takes bytes into the hash.
    pub fn fold_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }

    /// Whether somebody will read it.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.text.is_some()
    }

    /// Writes a line, if somebody will read it.
    pub fn say(&mut self, at: Time, line: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            if text.len() >= 2 * self.most.max(1) {
                text.drain(..self.most);
            }
            text.push(format!("{} {}", Clock(at), line()));
        }
    }

    /// The number that stands for everything that happened.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many steps there were.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The lines.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        let lines = self.text.as_deref().unwrap_or_default();
        &lines[lines.len().saturating_sub(self.most.max(1))..]
    }
}

/// A time, as people read it: day, hours, minutes, seconds, milliseconds.
pub struct Clock(pub Time);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, millis) = (self.0 / 1_000, self.0 % 1_000);
        let (days, hours, minutes) = (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60);
        write!(f, "{days}d {hours:02}:{minutes:02}:{:02}.{millis:03}", secs % 60)
    }
}

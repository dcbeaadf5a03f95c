//! Formatting of amounts and of untrusted text, for the status page and for the terminal.

/// Formats seconds with at most two units: `3 d 4 h`, `12 min`, `7 s`.
pub(crate) fn duration(secs: u64) -> String {
    match (secs / 86_400, secs / 3_600 % 24, secs / 60 % 60, secs % 60) {
        (0, 0, 0, secs) => format!("{secs} s"),
        (0, 0, minutes, secs) if minutes < 10 => format!("{minutes} min {secs} s"),
        (0, 0, minutes, _) => format!("{minutes} min"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}

/// Formats bytes with three digits: `1.21 GB`.
pub(crate) fn bytes(amount: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = amount as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 99.95 { 0 } else { usize::from(value < 9.995) + 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a count with spaces between thousands.
pub(crate) fn count(amount: u64) -> String {
    let digits = amount.to_string();
    let mut out = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Replaces characters that could disturb a terminal: control characters, and characters that change the direction of
/// text.
pub(crate) fn terminal_safe(text: &str) -> String {
    let is_unsafe = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_unsafe(c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_formatted() {
        assert_eq!([0, 999, 1_000, 99_960, 1_210_000_000].map(bytes), ["0 B", "999 B", "1.00 kB", "100 kB", "1.21 GB"]);
        assert_eq!([59, 61, 600, 3_661, 90_000].map(duration), ["59 s", "1 min 1 s", "10 min", "1 h 1 min", "1 d 1 h"]);
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(terminal_safe("a\u{1b}[2Jb\nc\u{202e}d\u{9b}é"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}é");
    }
}

//! Words that label values: names of variants, and kinds of events that people know.

use std::fmt;
use std::fmt::Write;

use grasp_core::nostr::kinds;

/// The longest name of a variant that is told.
const MOST: usize = 40;

/// The name of a value's variant in snake case: `RateLimited(…)` is `rate_limited`. Only the name is written, whatever
/// the variant carries. There are as many names as variants, so strangers make no new ones.
pub(crate) fn variant(value: &impl fmt::Debug) -> String {
    let mut name = Name(String::new());
    // It ends with an error, so that nothing after the name is written.
    let _ = write!(name, "{value:?}");
    name.0
}

struct Name(String);

impl Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if !character.is_ascii_alphanumeric() || self.0.len() >= MOST {
                return Err(fmt::Error);
            }
            if character.is_ascii_uppercase() && !self.0.is_empty() {
                self.0.push('_');
            }
            self.0.push(character.to_ascii_lowercase());
        }
        Ok(())
    }
}

/// Kinds with a label of their own: those that mean something here. The rest is `other`.
const KINDS: [(u16, &str); 16] = [
    (kinds::PROFILE, "0"),
    (1, "1"),
    (kinds::DELETION, "5"),
    (7, "7"),
    (kinds::VANISH, "62"),
    (1111, "1111"),
    (kinds::PATCH, "1617"),
    (kinds::PULL_REQUEST, "1618"),
    (kinds::PULL_REQUEST_UPDATE, "1619"),
    (kinds::ISSUE, "1621"),
    (1630, "1630"),
    (1631, "1631"),
    (1632, "1632"),
    (kinds::GRASP_LIST, "10317"),
    (kinds::ANNOUNCEMENT, "30617"),
    (kinds::STATE, "30618"),
];

/// The label of a kind.
pub(crate) fn kind(kind: u16) -> &'static str {
    KINDS.iter().find(|(known, _)| *known == kind).map_or(super::label_limit::OTHER, |(_, label)| label)
}

/// The label of an event whose kind could not be read.
pub(crate) const NO_KIND: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[allow(dead_code, reason = "only their names matter")]
    enum Sample {
        Plain,
        RateLimited(String),
        TooLarge { bytes: usize },
    }

    #[test]
    fn only_the_name_is_told() {
        assert_eq!(variant(&Sample::Plain), "plain");
        assert_eq!(variant(&Sample::RateLimited("x".repeat(1_000_000))), "rate_limited");
        assert_eq!(variant(&Sample::TooLarge { bytes: 3 }), "too_large");
        assert_eq!(variant(&"A".repeat(200)), "", "text has no name");
    }

    #[test]
    fn kinds_are_few() {
        let labels: std::collections::BTreeSet<_> = (0..=u16::MAX).map(kind).collect();
        assert_eq!(labels.len(), KINDS.len() + 1);
        assert_eq!(kind(kinds::STATE), "30618");
    }
}

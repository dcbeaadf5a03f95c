//! Suggestions for misspelt names.

use super::settings::{PREFIX, SETTINGS, Setting};

/// Returns the setting whose name is nearest to `name`, in any spelling, if it is near enough to be a suggestion.
pub(crate) fn nearest(name: &str) -> Option<&'static Setting> {
    let upper = name.to_ascii_uppercase().replace('-', "_");
    let bare = upper.strip_prefix(PREFIX).unwrap_or(&upper);
    let (distance, setting) = SETTINGS
        .iter()
        .map(|setting| (edit_distance(bare, setting.name), setting))
        .min_by_key(|(distance, _)| *distance)?;
    (distance <= (setting.name.len() / 4).max(2)).then_some(setting)
}

/// Returns the known name that is nearest to `name`, if it is near enough to be a suggestion.
pub(crate) fn nearest_name<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, found) =
        known.map(|known| (edit_distance(name, known), known)).min_by_key(|(distance, _)| *distance)?;
    (distance <= (found.len() / 4).max(2)).then_some(found)
}

/// Returns the number of insertions, removals, replacements or swaps of neighbours that turn one text into the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=to.len()).collect();
    for row in 1..=from.len() {
        let mut line = vec![row];
        for column in 1..=to.len() {
            let same = from[row - 1] == to[column - 1];
            let mut best = (above[column - 1] + usize::from(!same)).min(above[column] + 1).min(line[column - 1] + 1);
            let swapped = row > 1 && column > 1 && from[row - 1] == to[column - 2] && from[row - 2] == to[column - 1];
            if swapped {
                best = best.min(before[column - 2] + 1);
            }
            line.push(best);
        }
        before = std::mem::replace(&mut above, line);
    }
    above[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_edits() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("acb", "abc", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edit_distance(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn nearest_name_is_found_in_any_spelling() {
        for (name, expected) in [
            ("bind_adress", Some("BIND_ADDRESS")),
            ("NGIT_DOMIAN", Some("DOMAIN")),
            ("bind-address", Some("BIND_ADDRESS")),
            ("relay_max_event_size", Some("RELAY_MAX_EVENT_SIZE_BYTES")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(name).map(|setting| setting.name), expected, "{name}");
        }
        let relays = ["wss://relay.example", "wss://other.example"];
        assert_eq!(nearest_name("wss://rely.exmaple", relays.into_iter()), Some("wss://relay.example"));
        assert_eq!(nearest_name("wss://far.away.test/path", relays.into_iter()), None);
    }
}

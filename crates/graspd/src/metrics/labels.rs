//! Label values of event kinds and directions.

use grasp_core::nostr::kinds;

use super::label_limit::OTHER;

/// Label of an event whose kind could not be read.
const UNREADABLE_KIND: &str = "unknown";

/// Kinds with a label of their own: those that have a meaning for git repositories. All others are [`OTHER`].
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

/// All labels of event kinds.
pub(super) const EVENT_KINDS: &[&str] = &{
    let mut labels = [OTHER; KINDS.len() + 2];
    let mut index = 0;
    while index < KINDS.len() {
        labels[index] = KINDS[index].1;
        index += 1;
    }
    labels[KINDS.len() + 1] = UNREADABLE_KIND;
    labels
};

/// Returns the label of an event's kind; `None` stands for an event whose kind could not be read.
pub(super) fn event_kind(kind: Option<u16>) -> &'static str {
    let Some(kind) = kind else { return UNREADABLE_KIND };
    KINDS.iter().find(|(known, _)| *known == kind).map_or(OTHER, |(_, label)| label)
}

/// Labels of the direction of data: from clients, and to clients.
pub(super) const DIRECTIONS: [&str; 2] = ["in", "out"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_label_of_the_table() {
        let labels: BTreeSet<_> = (0..=u16::MAX).map(Some).chain([None]).map(event_kind).collect();
        assert_eq!(labels, EVENT_KINDS.iter().copied().collect());
        assert_eq!(event_kind(Some(kinds::STATE)), "30618");
        assert_eq!(event_kind(Some(40_000)), "other");
        assert_eq!(event_kind(None), "unknown");
    }
}

//! Finds the rejected events that a filter may match. Rows contain only part of an event, so the result may contain
//! events that do not match.

use std::collections::BTreeSet;

use super::index::{RejectedRow, RejectedRows};
use super::row::Dependency;
use crate::limits;
use crate::nostr::filter::Filter;
use crate::nostr::kinds::KindClass;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;

/// Letters of the tags that rows contain.
const INDEXED_LETTERS: &[u8] = b"daAeEq";

/// Returns the rows with a dependency that the filter requires, or `None` if the filter has no condition that rows are
/// indexed by.
pub(super) fn candidates(rows: &RejectedRows, filter: &Filter) -> Option<BTreeSet<u32>> {
    let tag = filter.tags.iter().find(|(letter, _)| INDEXED_LETTERS.contains(letter));
    let required: Vec<Dependency> = match (tag, &filter.authors) {
        (Some((letter, values)), _) => values.iter().filter_map(|value| tag_dependency(*letter, value)).collect(),
        (None, Some(authors)) if filter.kinds.as_deref().is_some_and(are_deletions) => {
            authors.iter().copied().map(Dependency::Author).collect()
        }
        _ => return None,
    };
    Some(required.iter().flat_map(|dependency| rows.dependents(dependency, 0)).collect())
}

/// Returns whether a filter may match the event of a row. Conditions on data that the row does not contain count as
/// fulfilled.
pub(super) fn may_match(row: &RejectedRow, filter: &Filter) -> bool {
    let is_in_range = filter.since.is_none_or(|since| row.created_at >= since)
        && filter.until.is_none_or(|until| row.created_at <= until)
        && filter.ids.as_ref().is_none_or(|ids| ids.contains(&row.id));
    if !is_in_range {
        return false;
    }
    let dependencies: Vec<Dependency> = row.dependencies.iter().collect();
    filter.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| may_have_kind(&dependencies, *kind)))
        && filter.authors.as_ref().is_none_or(|authors| {
            let author = dependencies.iter().find_map(known_author);
            author.is_none_or(|author| authors.contains(&author))
        })
        && filter.tags.iter().all(|(letter, values)| {
            // A row with the maximum number of dependencies may have been truncated.
            !INDEXED_LETTERS.contains(letter)
                || dependencies.len() == limits::MAX_REJECTED_DEPENDENCIES
                || values
                    .iter()
                    .filter_map(|value| tag_dependency(*letter, value))
                    .any(|dependency| dependencies.contains(&dependency))
        })
}

/// Returns the dependency of an event that has this tag.
fn tag_dependency(letter: u8, value: &str) -> Option<Dependency> {
    match letter {
        b'd' => Identifier::new(value).map(Dependency::Identifier),
        _ => Dependency::from_tag(letter, value),
    }
}

/// Returns whether an event with these dependencies may have this kind.
fn may_have_kind(dependencies: &[Dependency], kind: u16) -> bool {
    let own = dependencies.iter().find_map(|dependency| match dependency {
        Dependency::OwnCoordinate(coordinate) => Some(coordinate.kind == kind),
        Dependency::Author(_) => Some(are_deletions(&[kind])),
        _ => None,
    });
    own.unwrap_or_else(|| kinds::class(kind) == KindClass::Regular && !are_deletions(&[kind]))
}

fn are_deletions(kinds: &[u16]) -> bool {
    kinds.iter().all(|kind| matches!(*kind, kinds::DELETION | kinds::VANISH))
}

fn known_author(dependency: &Dependency) -> Option<PublicKey> {
    match dependency {
        Dependency::OwnCoordinate(coordinate) => Some(coordinate.pubkey),
        Dependency::Author(author) => Some(*author),
        Dependency::Event(_) | Dependency::Coordinate(_) | Dependency::Identifier(_) => None,
    }
}

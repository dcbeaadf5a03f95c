//! Which refused events a filter would match, as far as their rows can tell.

use std::collections::BTreeSet;

use super::index::{RejectedRow, RejectedRows};
use super::row::Dependency;
use crate::limits;
use crate::nostr::filter::Filter;
use crate::nostr::kinds::KindClass;
use crate::nostr::{PublicKey, kinds};
use crate::repo::Identifier;

/// The letters of tags that rows know.
const KNOWN: &[u8] = b"daAeEq";

/// The rows that hang on what a filter asks for; `None` if it asks for nothing that rows can be found by.
pub(super) fn candidates(rows: &RejectedRows, filter: &Filter) -> Option<BTreeSet<u32>> {
    let tag = filter.tags.iter().find(|(letter, _)| KNOWN.contains(letter));
    let wanted: Vec<Dependency> = match (tag, &filter.authors) {
        (Some((letter, values)), _) => values.iter().filter_map(|value| wanted(*letter, value)).collect(),
        (None, Some(authors)) if filter.kinds.as_deref().is_some_and(are_removals) => {
            authors.iter().copied().map(Dependency::Author).collect()
        }
        _ => return None,
    };
    Some(wanted.iter().flat_map(|wanted| rows.dependents(wanted, 0)).collect())
}

/// Whether a filter may match. What a row does not know speaks for it.
pub(super) fn may_match(row: &RejectedRow, filter: &Filter) -> bool {
    let in_question = filter.since.is_none_or(|since| row.created_at >= since)
        && filter.until.is_none_or(|until| row.created_at <= until)
        && filter.ids.as_ref().is_none_or(|ids| ids.contains(&row.id));
    if !in_question {
        return false;
    }
    let dependencies: Vec<Dependency> = row.dependencies.iter().collect();
    filter.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| may_be(&dependencies, *kind)))
        && filter.authors.as_ref().is_none_or(|authors| {
            let author = dependencies.iter().find_map(author);
            author.is_none_or(|author| authors.contains(&author))
        })
        && filter.tags.iter().all(|(letter, values)| {
            // What refers to more than is kept may refer to this, too.
            !KNOWN.contains(letter)
                || dependencies.len() == limits::MAX_REJECTED_DEPENDENCIES
                || values.iter().filter_map(|value| wanted(*letter, value)).any(|wanted| dependencies.contains(&wanted))
        })
}

/// What a row hangs on that has this value of this tag.
fn wanted(letter: u8, value: &str) -> Option<Dependency> {
    match letter {
        b'd' => Identifier::new(value).map(Dependency::Identifier),
        _ => Dependency::from_tag(letter, value),
    }
}

/// Whether an event that hangs on these may be of a kind.
fn may_be(dependencies: &[Dependency], kind: u16) -> bool {
    let own = dependencies.iter().find_map(|need| match need {
        Dependency::OwnCoordinate(coordinate) => Some(coordinate.kind == kind),
        Dependency::Author(_) => Some(are_removals(&[kind])),
        _ => None,
    });
    own.unwrap_or_else(|| kinds::class(kind) == KindClass::Regular && !are_removals(&[kind]))
}

fn are_removals(kinds: &[u16]) -> bool {
    kinds.iter().all(|kind| matches!(*kind, kinds::DELETION | kinds::VANISH))
}

fn author(need: &Dependency) -> Option<PublicKey> {
    match need {
        Dependency::OwnCoordinate(coordinate) => Some(coordinate.pubkey),
        Dependency::Author(author) => Some(*author),
        Dependency::Event(_) | Dependency::Coordinate(_) | Dependency::Identifier(_) => None,
    }
}

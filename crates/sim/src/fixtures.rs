//! The people of the spec's examples: an owner, a maintainer, one whom the maintainer names, and a stranger.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;

use crate::signer::Author;

/// The owner.
#[must_use]
pub fn o() -> Author {
    Author::new(1)
}

/// The maintainer.
#[must_use]
pub fn m() -> Author {
    Author::new(2)
}

/// The one whom the maintainer names.
#[must_use]
pub fn r() -> Author {
    Author::new(3)
}

/// The stranger.
#[must_use]
pub fn x() -> Author {
    Author::new(4)
}

/// An object id.
#[must_use]
pub fn oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// A state of the repository `tool` with one branch.
#[must_use]
pub fn main_at(author: &Author, created_at: u64, digit: char) -> Arc<SignedEvent> {
    author.state("tool", created_at, &[("refs/heads/main", &oid(digit))])
}

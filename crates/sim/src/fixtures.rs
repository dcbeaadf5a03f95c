//! Authors and values of the specification's examples.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;

use crate::signer::Author;

/// Returns the owner of the repository (O in the examples).
#[must_use]
pub fn owner() -> Author {
    Author::new(1)
}

/// Returns a maintainer that the owner lists (M).
#[must_use]
pub fn maintainer() -> Author {
    Author::new(2)
}

/// Returns a maintainer that only [`maintainer`] lists (R).
#[must_use]
pub fn nested_maintainer() -> Author {
    Author::new(3)
}

/// Returns an author without any role (X).
#[must_use]
pub fn outsider() -> Author {
    Author::new(4)
}

/// Returns an object id that consists of one digit.
#[must_use]
pub fn oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// Returns a state of the repository `tool` with one branch, `main`.
#[must_use]
pub fn main_state(author: &Author, created_at: u64, digit: char) -> Arc<SignedEvent> {
    author.state("tool", created_at, &[("refs/heads/main", &oid(digit))])
}

//! Authors and values of the specification's examples.

use std::sync::Arc;

use grasp_core::nostr::SignedEvent;
use grasp_core::repo::RepoPath;

use crate::signer::Author;
use crate::test_server::ClientPush;

/// Returns the owner of the repository (O in the examples).
pub fn owner() -> Author {
    Author::new(1)
}

/// Returns a maintainer that the owner lists (M).
pub fn maintainer() -> Author {
    Author::new(2)
}

/// Returns a maintainer that only [`maintainer`] lists (R).
pub fn nested_maintainer() -> Author {
    Author::new(3)
}

/// Returns an author without any role (X).
pub fn outsider() -> Author {
    Author::new(4)
}

/// Returns an object id that consists of one digit.
pub fn oid(digit: char) -> String {
    digit.to_string().repeat(40)
}

/// Returns a state of the repository `tool` with one branch, `main`.
pub fn main_state(author: &Author, created_at: u64, digit: char) -> Arc<SignedEvent> {
    author.state("tool", created_at, &[("refs/heads/main", &oid(digit))])
}

/// Returns the path of an owner's repository `tool`.
pub fn tool(owner: &Author) -> RepoPath {
    RepoPath::Announced(owner.repo_id("tool"))
}

/// Returns a push of `main` to an owner's `tool`. `brings` are the digits of additional objects.
pub fn main_to(owner: &Author, digit: char, brings: &str) -> ClientPush {
    let mut push = ClientPush::new(tool(owner)).set("refs/heads/main", &oid(digit));
    push.brings.extend(brings.chars().map(oid));
    push
}

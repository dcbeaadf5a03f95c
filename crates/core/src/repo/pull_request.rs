//! Kinds 1618 and 1619: please merge this commit.

use super::id::RepoId;
use crate::limits;
use crate::nostr::event::{Coordinate, Event};
use crate::nostr::kinds;

/// A pull request or an update of one, read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullRequest {
    /// The commit that is offered. Its length is not fixed: SHA-256 repositories have 64 digits.
    pub tip: String,
    /// The repositories it is offered to.
    pub targets: Vec<RepoId>,
    /// Where the commit can be had.
    pub clone: Vec<String>,
}

impl PullRequest {
    /// Reads an event that may be a pull request.
    #[must_use]
    pub fn read_if(event: &Event) -> Option<Self> {
        if kinds::is_pull_request(event.kind) { Self::read(event) } else { None }
    }

    /// Reads a pull request; `None` without a commit.
    #[must_use]
    pub fn read(event: &Event) -> Option<Self> {
        let tip = event.tag("c").filter(|tip| {
            !tip.is_empty() && tip.len() <= 64 && tip.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })?;
        let targets = event
            .values("a")
            .take(limits::MAX_REFERENCES)
            .filter_map(Coordinate::parse)
            .filter(|coordinate| coordinate.kind == kinds::ANNOUNCEMENT)
            .filter_map(|coordinate| RepoId::of(&coordinate))
            .collect();
        let clone = super::announcement::sensible(event.all_values("clone")).map(str::to_owned).collect();
        Some(Self { tip: tip.to_owned(), targets, clone })
    }
}

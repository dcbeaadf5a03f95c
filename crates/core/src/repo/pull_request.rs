//! Pull requests and pull request updates (kinds 1618 and 1619).

use super::id::RepoId;
use crate::limits;
use crate::nostr::event::{Coordinate, Event};
use crate::nostr::kinds;

/// The tags of a pull request, or of an update of one, that decisions need.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PullRequest {
    /// The proposed commit (tag `c`). Its length is not fixed: object ids of SHA-256 repositories have 64 digits.
    pub tip: String,
    /// The repositories it is addressed to (`a` tags).
    pub targets: Vec<RepoId>,
    /// URLs of git servers that have the commit.
    pub clone: Vec<String>,
}

impl PullRequest {
    /// Parses an event of any kind; returns `None` if it is not a pull request.
    #[must_use]
    pub fn from_any_event(event: &Event) -> Option<Self> {
        if kinds::is_pull_request(event.kind) { Self::from_event(event) } else { None }
    }

    /// Parses an event that is known to be a pull request; returns `None` if it has no valid `c` tag.
    #[must_use]
    pub fn from_event(event: &Event) -> Option<Self> {
        let tip = event.tag("c").filter(|tip| {
            !tip.is_empty() && tip.len() <= 64 && tip.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })?;
        let targets = event
            .values("a")
            .take(limits::MAX_EVENT_REFERENCES)
            .filter_map(Coordinate::parse)
            .filter(|coordinate| coordinate.kind == kinds::ANNOUNCEMENT)
            .filter_map(|coordinate| RepoId::from_coordinate(&coordinate))
            .collect();
        let clone = super::announcement::usable_urls(event.all_values("clone")).map(str::to_owned).collect();
        Some(Self { tip: tip.to_owned(), targets, clone })
    }
}

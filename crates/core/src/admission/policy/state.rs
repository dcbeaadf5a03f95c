//! States (kind 30618): which authors' states are accepted.

use super::{PolicyContext, Submission};
use crate::limits;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::supersedes;
use crate::repo::Identifier;
use crate::repo::catalog::AuthorStates;

impl PolicyContext<'_> {
    /// Decides about a state. It is held even if its objects are here already: the held event is the record from which
    /// an interrupted alignment is repeated after a crash.
    pub(super) fn state(self, submission: &Submission<'_>) -> Decision {
        let event = submission.event;
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else {
            return Decision::Reject(Rejection::InvalidIdentifier);
        };
        let Some(group) = self.catalog.group(&identifier).filter(|group| group.has_hosted()) else {
            return Decision::Reject(Rejection::NoAnnouncement);
        };
        if group.maintained_by(event.pubkey, self.policy.strict_maintainers).next().is_none() {
            return Decision::Reject(Rejection::NotMaintainer);
        }
        let is_older_than_all_held = |states: &AuthorStates| {
            states.held.len() >= limits::MAX_HELD_STATE_VERSIONS
                && states.held.iter().all(|held| supersedes(*held, event.version()))
        };
        if group.states(event.pubkey).is_some_and(is_older_than_all_held) {
            return Decision::Known(KnownAs::Superseded);
        }
        self.hold(submission, AwaitedData::GitData)
    }
}

//! Kind 30618: whose word on a repository's refs is kept.

use super::PolicyContext;
use crate::limits;
use crate::nostr::rejection::{AwaitedData, Decision, KnownAs, Rejection};
use crate::nostr::{SignedEvent, supersedes};
use crate::repo::Identifier;
use crate::repo::catalog::AuthorStates;

impl PolicyContext<'_> {
    /// A state is held until its objects are here, also when they already are: the held row is the intent from which a
    /// crash is repaired.
    pub(super) fn state(self, event: &SignedEvent) -> Decision {
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else {
            return Decision::Reject(Rejection::InvalidIdentifier);
        };
        let Some(group) = self.catalog.group(&identifier).filter(|group| group.has_hosted()) else {
            return Decision::Reject(Rejection::NoAnnouncement);
        };
        if group.maintained_by(event.pubkey, self.policy.strict_maintainers).next().is_none() {
            return Decision::Reject(Rejection::NotMaintainer);
        }
        let older_than_all_of_many = |states: &AuthorStates| {
            states.held.len() >= limits::MAX_HELD_STATE_VERSIONS
                && states.held.iter().all(|held| supersedes(*held, event.version()))
        };
        if group.states(event.pubkey).is_some_and(older_than_all_of_many) {
            return Decision::Known(KnownAs::Superseded);
        }
        self.hold(event.pubkey, event.json().len(), AwaitedData::GitData)
    }
}

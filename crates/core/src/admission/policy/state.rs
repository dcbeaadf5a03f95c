//! Kind 30618: whose word on a repository's refs is kept.

use super::World;
use crate::limits;
use crate::nostr::rejection::{Known, Need, Refusal, Verdict};
use crate::nostr::{Signed, supersedes};
use crate::repo::Identifier;
use crate::repo::catalog::States;

impl World<'_> {
    /// A state is held until its objects are here, also when they already are: the held row is the intent from which a
    /// crash is repaired.
    pub(super) fn state(self, event: &Signed) -> Verdict {
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else {
            return Verdict::Refuse(Refusal::Identifier);
        };
        let Some(family) = self.catalog.family(&identifier).filter(|family| family.has_host()) else {
            return Verdict::Refuse(Refusal::NoAnnouncement);
        };
        if family.hosts_of(event.pubkey, self.rules.strict_maintainers).next().is_none() {
            return Verdict::Refuse(Refusal::NotMaintainer);
        }
        let older_than_all_of_many = |states: &States| {
            states.held.len() >= limits::MAX_HELD_STATES
                && states.held.iter().all(|held| supersedes(*held, event.stamp()))
        };
        if family.states(event.pubkey).is_some_and(older_than_all_of_many) {
            return Verdict::Known(Known::Superseded);
        }
        self.hold(event.pubkey, event.json().len(), Need::GitData)
    }
}

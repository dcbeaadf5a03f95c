//! Kind 30618: whose word on a repository's refs is kept.

use super::World;
use crate::nostr::event::Event;
use crate::nostr::reason::{Need, Refusal, Verdict};
use crate::repo::Identifier;

impl World<'_> {
    /// A state is held until its objects are here, also when they already are: the held row is the intent from which a
    /// crash is repaired.
    pub(super) fn state(self, event: &Event) -> Verdict {
        let Some(identifier) = event.tag("d").and_then(Identifier::new) else {
            return Verdict::Refuse(Refusal::Identifier);
        };
        let Some(family) = self.catalog.family(&identifier).filter(|family| family.has_host()) else {
            return Verdict::Refuse(Refusal::NoAnnouncement);
        };
        if family.hosts_of(event.pubkey, self.rules.strict_maintainers).next().is_none() {
            return Verdict::Refuse(Refusal::NotMaintainer);
        }
        match self.purgatory.room(event.pubkey) {
            Some(full) => Verdict::Refuse(full),
            None => Verdict::Hold(Need::GitData),
        }
    }
}

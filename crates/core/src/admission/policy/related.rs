//! Everything else: wanted if it belongs to something that is served.

use super::PolicyContext;
use crate::admission::io::EventLookups;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Decision, Rejection};

impl PolicyContext<'_> {
    /// An event is wanted if it references something served or something served references it (G1-31). What waits in
    /// purgatory does not count, or garbage would attach to repositories that never come to be (G1-34).
    pub(super) fn related(self, event: &Event, lookups: &EventLookups) -> Decision {
        if self.policy.is_accepted_unlinked(event) || lookups.references_served || lookups.referenced_by_served {
            Decision::Accept
        } else {
            Decision::Reject(Rejection::Unrelated)
        }
    }
}

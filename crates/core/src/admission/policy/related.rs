//! All other kinds: accepted if they are related to a served event.

use super::PolicyContext;
use crate::admission::io::EventLookups;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Decision, Rejection};

impl PolicyContext<'_> {
    /// Accepts an event that references a served event or that a served event references. Held events do not count as
    /// links; otherwise events could attach to repositories that are never released (docs/protocol.md#related-events).
    pub(super) fn related(self, event: &Event, lookups: &EventLookups) -> Decision {
        if self.policy.is_accepted_unlinked(event) || lookups.references_served || lookups.referenced_by_served {
            Decision::Accept
        } else {
            Decision::Reject(Rejection::Unrelated)
        }
    }
}

//! Everything else: wanted if it belongs to something that is served.

use super::World;
use crate::admission::io::Facts;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Refusal, Verdict};

impl World<'_> {
    /// An event is wanted if it references something served or something served references it (G1-31). What waits in
    /// purgatory does not count, or garbage would attach to repositories that never come to be (G1-34).
    pub(super) fn related(self, event: &Event, facts: &Facts) -> Verdict {
        if self.rules.stands_alone(event) || facts.anchored || facts.named {
            Verdict::Accept
        } else {
            Verdict::Refuse(Refusal::Unrelated)
        }
    }
}

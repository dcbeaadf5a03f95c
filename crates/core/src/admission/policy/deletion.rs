//! Kinds 5 and 62: an author takes things back.

use super::{Mode, World};
use crate::admission::io::Facts;
use crate::limits;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Refusal, Verdict};
use crate::repo::Service;

impl World<'_> {
    /// A deletion request leaves a row for each target, known or not. So that strangers cannot mint rows it is taken only
    /// from authors who have something here, or speak of something here, or are named as somebody's maintainer.
    pub(super) fn deletion(self, event: &Event, facts: &Facts) -> Verdict {
        let targets = event.values("e").count() + event.values("a").count();
        if targets == 0 || targets > limits::MAX_DELETION_TARGETS {
            return Verdict::Refuse(Refusal::Targets(targets));
        }
        // Foreign targets are passed over (D-03). A request that is about nothing else is somebody's mistake.
        let foreign = facts.targets.iter().filter(|target| target.event.author != event.pubkey).count();
        if foreign == targets {
            return Verdict::Refuse(Refusal::ForeignTarget);
        }
        let keeper = self.catalog.is_named(event.pubkey);
        if self.rules.mode == Mode::Open || facts.author_here || facts.targets.len() > foreign || keeper {
            Verdict::Accept
        } else {
            Verdict::Refuse(Refusal::Unrelated)
        }
    }

    /// A request to vanish is taken from authors who could have something here and mean this relay.
    pub(super) fn vanish(self, event: &Event, facts: &Facts) -> Verdict {
        if event.tag("relay").is_none() {
            return Verdict::Refuse(Refusal::NoRelay);
        }
        match self.rules.mode {
            Mode::Open => Verdict::Accept,
            Mode::Grasp if !is_own_relay_named(&self.rules.service, event) => Verdict::Refuse(Refusal::OtherRelay),
            Mode::Grasp if !facts.author_here && !self.catalog.is_named(event.pubkey) => {
                Verdict::Refuse(Refusal::Unrelated)
            }
            Mode::Grasp => Verdict::Accept,
        }
    }
}

/// Whether a request to vanish means this relay.
pub(in crate::admission) fn is_own_relay_named(service: &Service, event: &Event) -> bool {
    event.values("relay").any(|relay| relay == "ALL_RELAYS" || service.is_own_relay(relay))
}

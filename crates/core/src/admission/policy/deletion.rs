//! Kinds 5 and 62: an author takes things back.

use super::{AdmissionMode, PolicyContext};
use crate::admission::io::EventLookups;
use crate::limits;
use crate::nostr::event::Event;
use crate::nostr::rejection::{Decision, Rejection};
use crate::repo::ServiceAddress;

impl PolicyContext<'_> {
    /// A deletion request leaves a row for each target, known or not. So that strangers cannot mint rows it is taken only
    /// from authors who have something here, or speak of something here, or are named as somebody's maintainer.
    pub(super) fn deletion(self, event: &Event, lookups: &EventLookups) -> Decision {
        let targets = event.values("e").count() + event.values("a").count();
        if targets == 0 || targets > limits::MAX_DELETION_TARGETS {
            return Decision::Reject(Rejection::DeletionTargetCount(targets));
        }
        // Foreign targets are passed over (D-03). A request that is about nothing else is somebody's mistake.
        let foreign = lookups.targets.iter().filter(|target| target.event.author != event.pubkey).count();
        if foreign == targets {
            return Decision::Reject(Rejection::ForeignDeletionTarget);
        }
        let maintainer = self.catalog.is_listed_maintainer(event.pubkey);
        if self.policy.mode == AdmissionMode::Open
            || lookups.author_has_events
            || lookups.targets.len() > foreign
            || maintainer
        {
            Decision::Accept
        } else {
            Decision::Reject(Rejection::Unrelated)
        }
    }

    /// A request to vanish is taken from authors who could have something here and mean this relay.
    pub(super) fn vanish(self, event: &Event, lookups: &EventLookups) -> Decision {
        if event.tag("relay").is_none() {
            return Decision::Reject(Rejection::NoVanishRelay);
        }
        match self.policy.mode {
            AdmissionMode::Open => Decision::Accept,
            AdmissionMode::Grasp if !is_own_relay_named(&self.policy.service, event) => {
                Decision::Reject(Rejection::OtherVanishRelay)
            }
            AdmissionMode::Grasp if !lookups.author_has_events && !self.catalog.is_listed_maintainer(event.pubkey) => {
                Decision::Reject(Rejection::Unrelated)
            }
            AdmissionMode::Grasp => Decision::Accept,
        }
    }
}

/// Whether a request to vanish means this relay.
pub(in crate::admission) fn is_own_relay_named(service: &ServiceAddress, event: &Event) -> bool {
    event.values("relay").any(|relay| relay == "ALL_RELAYS" || service.is_own_relay_url(relay))
}

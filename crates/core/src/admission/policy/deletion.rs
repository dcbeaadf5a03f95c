//! Deletion requests (kind 5) and requests to vanish (kind 62).

use super::{AdmissionMode, PolicyContext};
use crate::admission::io::{DeletionTarget, EventLookups};
use crate::disk_budget::DiskLevel;
use crate::limits;
use crate::nostr::event::Event;
use crate::nostr::kinds;
use crate::nostr::rejection::{Decision, Rejection};
use crate::repo::ServiceAddress;

impl PolicyContext<'_> {
    /// Decides about a deletion request. It leaves a tombstone for each target, known or not. To bound the number of
    /// tombstones, requests are accepted only from authors that have an event here, that delete an event that is here,
    /// or that an announcement lists as a maintainer (docs/protocol.md#deletion-requests).
    /// Those of other authors are unrelated here; `early_requests` remembers them within limits.
    ///
    /// If the disk is full, the request must remove something and be short, because its own event and tombstones need
    /// space.
    pub(super) fn deletion(self, event: &Event, lookups: &EventLookups) -> Decision {
        let targets = event.values("e").count() + event.values("a").count();
        if targets == 0 || targets > limits::MAX_DELETION_TARGETS {
            return Decision::Reject(Rejection::DeletionTargetCount(targets));
        }
        // Targets of other authors are ignored. A request with nothing else is rejected.
        let foreign = lookups.targets.iter().filter(|target| target.event.author != event.pubkey).count();
        if foreign == targets {
            return Decision::Reject(Rejection::ForeignDeletionTarget);
        }
        let has_target = lookups.targets.len() > foreign;
        let removes_something = lookups.targets.iter().any(|DeletionTarget { event: target, .. }| {
            target.author == event.pubkey && !matches!(target.kind, kinds::DELETION | kinds::VANISH)
        });
        if self.disk_level == DiskLevel::Hard && (!removes_something || is_long(event)) {
            return Decision::Reject(Rejection::DiskFull);
        }
        let is_maintainer = self.catalog.is_listed_maintainer(event.pubkey);
        if self.policy.mode == AdmissionMode::Open || lookups.author_has_events || has_target || is_maintainer {
            Decision::Accept
        } else {
            Decision::Reject(Rejection::Unrelated)
        }
    }

    /// Decides about a request to vanish. It must name this relay, and its author must be able to have events here. If
    /// the disk is full, the author must have some, and the request must be short.
    pub(super) fn vanish(self, event: &Event, lookups: &EventLookups) -> Decision {
        if event.tag("relay").is_none() {
            return Decision::Reject(Rejection::NoVanishRelay);
        }
        match self.policy.mode {
            AdmissionMode::Grasp if !is_own_relay_named(&self.policy.service, event) => {
                Decision::Reject(Rejection::OtherVanishRelay)
            }
            _ if self.disk_level == DiskLevel::Hard && (!lookups.author_has_events || is_long(event)) => {
                Decision::Reject(Rejection::DiskFull)
            }
            AdmissionMode::Open => Decision::Accept,
            AdmissionMode::Grasp if !lookups.author_has_events && !self.catalog.is_listed_maintainer(event.pubkey) => {
                Decision::Reject(Rejection::Unrelated)
            }
            AdmissionMode::Grasp => Decision::Accept,
        }
    }
}

/// Whether the text of a request is longer than a reason for it usually is.
fn is_long(event: &Event) -> bool {
    event.content.len() > limits::MAX_REMOVAL_REASON_BYTES
}

/// Whether a request to vanish names this relay or all relays.
pub(in crate::admission) fn is_own_relay_named(service: &ServiceAddress, event: &Event) -> bool {
    event.values("relay").any(|relay| relay == "ALL_RELAYS" || service.is_own_relay_url(relay))
}

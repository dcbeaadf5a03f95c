//! How far back a machine asks a relay: everything before it claims to be complete, and the overlap after a quick
//! reconnect.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::limits;
use grasp_core::nostr::{Filter, kinds};
use grasp_core::sync::io::{IncomingMessage, OutgoingMessage, ReconnectKind, SessionId, SubscriptionId};
use grasp_core::sync::relay_record::RelayRecord;

use crate::simulation::queue::{SECOND, Time};
use crate::simulation::{FirstViolation, WORLD_START};

#[derive(Debug, Default)]
pub(super) struct CatchUpChecker {
    relays: BTreeMap<String, RelayHistory>,
    /// Without a correct clock, the times of requests mean nothing.
    clock_was_set: bool,
}

/// What was requested from a relay, by all processes.
#[derive(Debug, Default)]
struct RelayHistory {
    /// When the relay was last heard from.
    last_heard: Option<Time>,
    /// Whether the relay has answered a request for all announcements.
    has_answered_announcements: bool,
    session: Option<SessionRequests>,
}

/// What was requested on the current connection.
#[derive(Debug)]
struct SessionRequests {
    id: SessionId,
    /// Time of the earliest event that a quick reconnect must ask for, in seconds.
    must_reach: Option<u64>,
    /// Earliest `since` of the requests for stored events.
    earliest_since: Option<u64>,
    /// Open requests for all announcements.
    announcements: BTreeSet<SubscriptionId>,
}

impl CatchUpChecker {
    pub(super) fn on_clock_set(&mut self) {
        self.clock_was_set = true;
    }

    pub(super) fn on_connected(&mut self, session: SessionId, relay_key: &str) {
        let relay = self.relays.entry(relay_key.to_owned()).or_default();
        let session =
            SessionRequests { id: session, must_reach: None, earliest_since: None, announcements: BTreeSet::new() };
        relay.session = Some(session);
    }

    /// Records which kind of reconnect a machine has chosen.
    pub(super) fn on_reconnect(&mut self, now: Time, kind: ReconnectKind, relay_key: &str) {
        let Some(relay) = self.relays.get_mut(relay_key) else { return };
        if let (ReconnectKind::Quick, Some(at), Some(session)) = (kind, relay.last_heard, &mut relay.session) {
            session.must_reach = Some(WORLD_START + at / SECOND - limits::SYNC_OVERLAP_SECS);
        }
        relay.last_heard = Some(now);
    }

    pub(super) fn on_message(&mut self, now: Time, id: SessionId, message: &IncomingMessage, relay_key: Option<&str>) {
        let Some(relay) = relay_key.and_then(|relay_key| self.relays.get_mut(relay_key)) else { return };
        relay.last_heard = Some(now);
        let Some(session) = relay.session.as_mut().filter(|session| session.id == id) else { return };
        if let IncomingMessage::Eose(sub, _) | IncomingMessage::NegMsg(sub, _) = message {
            relay.has_answered_announcements |= session.announcements.contains(sub);
        }
    }

    pub(super) fn on_send(&mut self, id: SessionId, message: &OutgoingMessage, relay_key: Option<&str>) {
        let (sub, filters) = match message {
            OutgoingMessage::Req(sub, filters) => (sub, filters.as_slice()),
            OutgoingMessage::NegOpen(sub, filter, _) => (sub, std::slice::from_ref(filter)),
            _ => return,
        };
        let Some(relay) = relay_key.and_then(|relay_key| self.relays.get_mut(relay_key)) else { return };
        let Some(session) = relay.session.as_mut().filter(|session| session.id == id) else { return };
        let is_negentropy = matches!(message, OutgoingMessage::NegOpen(..));
        // Live subscriptions ask for one stored event at most.
        let is_historic = |filter: &&Filter| is_negentropy || filter.limit.is_some_and(|limit| limit > 1);
        for filter in filters.iter().filter(is_historic) {
            let since = filter.since.unwrap_or_default().0;
            session.earliest_since = Some(session.earliest_since.map_or(since, |earliest| earliest.min(since)));
            let has_announcements = filter.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kinds::ANNOUNCEMENT));
            let is_restricted = !filter.tags.is_empty() || filter.authors.is_some() || filter.ids.is_some();
            if has_announcements && !is_restricted && filter.since.is_none() {
                session.announcements.insert(*sub);
            }
        }
    }

    /// Checks the end of a catch-up.
    pub(super) fn on_caught_up(&mut self, violations: &mut FirstViolation, relay_key: &str) {
        let Some(session) = self.relays.get_mut(relay_key).and_then(|relay| relay.session.as_mut()) else { return };
        let (Some(must_reach), false) = (session.must_reach.take(), self.clock_was_set) else { return };
        let earliest = session.earliest_since;
        violations.require(
            earliest.is_some_and(|since| since <= must_reach),
            "a quick reconnect asks for the absence and the overlap",
            || format!("{relay_key}: since {earliest:?} instead of {must_reach}"),
        );
    }

    /// Checks a record of a relay that will be stored.
    pub(super) fn on_record(&self, violations: &mut FirstViolation, record: &RelayRecord) {
        let is_claimed = record.covered.is_some_and(|covered| covered.announcements);
        let relay = self.relays.get(record.url.without_scheme());
        violations.require(
            !is_claimed || relay.is_some_and(|relay| relay.has_answered_announcements),
            "announcements are complete only after all of them were requested",
            || format!("{}: {:?}", record.url, record.covered),
        );
    }
}

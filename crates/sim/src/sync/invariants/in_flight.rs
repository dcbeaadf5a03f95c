//! Which events a machine may submit, and how often.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::Filter;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::rejection::Rejection;
use grasp_core::repo::Identifier;
use grasp_core::sync::io::{
    EventPresence, IncomingMessage, ServedEvent, SessionId, SubmitResult, SyncSource, SyncSubmission, SyncSubmissionId,
};
use grasp_core::sync::relay_record::RelayRecord;
use grasp_core::sync::relay_url::RelayUrl;

use crate::simulation::FirstViolation;
use crate::simulation::queue::{DAY, Time};
use crate::sync::corpus::{EventIndex, corpus};
use crate::sync::event_set::EventSet;

/// Maximum number of verifications of an event before one of its dependencies arrives.
const MAX_VERIFICATIONS: u32 = 2;
/// Time after which a rejected event may be verified again; see
/// [`RejectedEventsConfig`](grasp_core::sync::rejected::RejectedEventsConfig).
const REJECTION_LIFETIME: Time = 6 * DAY;

#[derive(Debug, Default)]
pub(super) struct SubmissionChecker {
    submitted: BTreeMap<SyncSubmissionId, (EventIndex, bool)>,
    /// Live events in flight.
    live: BTreeMap<SyncSubmissionId, (RelayUrl, EventIndex)>,
    /// Events that were rejected in any process, so that they need not be submitted.
    rejected: EventSet,
    /// A genuine event that was delivered while only its forged copy is in flight. It must be submitted.
    awaited: Option<EventIndex>,
    newest_id: Option<SyncSubmissionId>,
    in_flight: BTreeMap<(EventIndex, bool), SyncSubmissionId>,
    /// Events that the relay of a session delivered while they were known here.
    known: BTreeSet<(SessionId, EventId)>,
    verifications: BTreeMap<EventIndex, (u32, Time)>,
    /// Results of new events, of all processes.
    new_events: u64,
}

impl SubmissionChecker {
    pub(super) fn on_start(&mut self) {
        *self = Self { new_events: self.new_events, rejected: self.rejected, ..Self::default() };
    }

    /// Returns the number of new events.
    pub(super) fn new_events(&self) -> u64 {
        self.new_events
    }

    pub(super) fn on_disconnected(&mut self, session: SessionId) {
        let (from, to) = ((session, EventId([0; 32])), (session, EventId([255; 32])));
        let gone: Vec<_> = self.known.range(from..=to).copied().collect();
        for key in gone {
            self.known.remove(&key);
        }
    }

    pub(super) fn on_message(&mut self, session: SessionId, message: &IncomingMessage) {
        match message {
            IncomingMessage::Event(_, event, EventPresence::Known | EventPresence::Held) => {
                self.known.insert((session, event.id));
            }
            IncomingMessage::Event(_, event, EventPresence::New) => {
                self.known.remove(&(session, event.id));
                let Some(index) = corpus().index_of(&event.id) else { return };
                let is_genuine = corpus().unverified(index).sig == event.sig;
                let is_hidden =
                    self.in_flight.contains_key(&(index, false)) && !self.in_flight.contains_key(&(index, true));
                self.awaited = (is_genuine && is_hidden && !self.rejected.contains(index)).then_some(index);
            }
            _ => {}
        }
    }

    pub(super) fn on_submit(&mut self, violations: &mut FirstViolation, now: Time, submission: &SyncSubmission) {
        let SyncSubmission { id: submission_id, event, session, .. } = submission;
        let Some(index) = corpus().index_of(&event.id) else { return };
        violations.require(
            self.newest_id.is_none_or(|newest_id| newest_id < *submission_id),
            "submission ids increase",
            || format!("{submission_id:?}"),
        );
        self.newest_id = Some(*submission_id);
        let is_known = session.is_some_and(|session| self.known.contains(&(session, event.id)));
        violations.require(!is_known, "a known event is not submitted", || format!("event {index}"));
        let is_genuine = corpus().unverified(index).sig == event.sig;
        let other = self.in_flight.insert((index, is_genuine), *submission_id);
        violations.require(other.is_none(), "an event in flight is not submitted again", || {
            format!("event {index}: {other:?}")
        });
        self.submitted.insert(*submission_id, (index, is_genuine));
        if submission.source == SyncSource::Live {
            self.live.insert(*submission_id, (submission.relay.clone(), index));
        }
        if is_genuine {
            self.awaited = self.awaited.filter(|awaited| *awaited != index);
            let (count, last) = self.verifications.entry(index).or_default();
            if now > *last + REJECTION_LIFETIME {
                *count = 0;
            }
            *last = now;
            *count += 1;
            violations.require(*count <= MAX_VERIFICATIONS, "an event is verified at most twice", || {
                format!("event {index}: {count}")
            });
        }
    }

    pub(super) fn on_result(
        &mut self,
        violations: &mut FirstViolation,
        submission_id: SyncSubmissionId,
        result: &SubmitResult,
    ) {
        let Some((index, is_genuine)) = self.submitted.remove(&submission_id) else {
            violations.require(false, "every submission has one result", || format!("{submission_id:?}"));
            return;
        };
        self.in_flight.remove(&(index, is_genuine));
        self.live.remove(&submission_id);
        if matches!(result, SubmitResult::Rejected(_)) {
            self.rejected.insert(index);
        }
        self.new_events += u64::from(matches!(result, SubmitResult::Stored | SubmitResult::Held));
        let is_permanent = match result {
            SubmitResult::Rejected(Rejection::InFuture) => false,
            SubmitResult::Rejected(rejection) => !rejection.is_temporary(),
            _ => false,
        };
        if !is_permanent {
            self.verifications.remove(&index);
        }
    }

    /// Checks the state after all outputs of an input.
    pub(super) fn on_outputs_end(&mut self, violations: &mut FirstViolation) {
        let awaited = self.awaited.take();
        violations.require(awaited.is_none(), "a forged copy in flight does not hide the event", || {
            format!("event {}", awaited.unwrap_or_default())
        });
    }

    /// Checks a record of a relay that will be stored.
    pub(super) fn on_record(&self, violations: &mut FirstViolation, record: &RelayRecord) {
        let Some(covered) = &record.covered else { return };
        for (_, index) in self.live.values().filter(|(url, _)| *url == record.url) {
            let created_at = corpus().event(*index).created_at;
            violations.require(
                covered.since.is_some_and(|since| since <= created_at),
                "stored coverage excludes live events without a result",
                || format!("{}: event {index}, {covered:?}", record.url),
            );
        }
    }

    /// Allows the events that depend on a served event to be verified again.
    pub(super) fn on_served(&mut self, event: &ServedEvent) {
        let id = event.id.to_string();
        let address = event.coordinate.as_ref().map(ToString::to_string);
        for letter in [b'e', b'E', b'q'] {
            self.reset(&tag_filter(letter, &id));
        }
        for letter in [b'a', b'A', b'q'] {
            if let Some(address) = &address {
                self.reset(&tag_filter(letter, address));
            }
        }
        for index in event.ids.iter().filter_map(|id| corpus().index_of(id)) {
            self.verifications.remove(&index);
        }
        for at in &event.coordinates {
            let (authors, kinds) = (Some(vec![at.pubkey]), Some(vec![at.kind]));
            self.reset(&Filter { authors, kinds, ..Filter::default() });
        }
        // An author with events here may delete them.
        let (authors, kinds) = (Some(vec![event.author]), Some(vec![5, 62]));
        self.reset(&Filter { authors, kinds, ..Filter::default() });
    }

    pub(super) fn on_repo_needs(&mut self, name: &Identifier) {
        self.reset(&tag_filter(b'd', name.as_str()));
    }

    fn reset(&mut self, filter: &Filter) {
        let affected: EventSet = corpus().matching(filter);
        for index in affected.iter() {
            self.verifications.remove(&index);
        }
    }
}

fn tag_filter(letter: u8, value: &str) -> Filter {
    Filter { tags: vec![(letter, vec![value.to_owned()].into())], ..Filter::default() }
}

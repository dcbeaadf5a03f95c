//! What a machine may have judged, and how often.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::nostr::Filter;
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::rejection::Rejection;
use grasp_core::repo::Identifier;
use grasp_core::sync::io::{
    EventPresence, IncomingMessage, ServedEvent, SessionId, SubmitResult, SyncSubmission, SyncSubmissionId,
};

use super::Verdicts;
use crate::sync::corpus::{Ix, corpus};
use crate::sync::event_set::Bits;
use crate::sync::queue::{DAY, Time};

/// An event may be verified so often before something that it depends on comes.
const MOST_VERIFIED: u32 = 2;
/// So long is remembered what was refused; see [`RejectedEventsConfig`](grasp_core::sync::rejected::RejectedEventsConfig).
const MEMORY: Time = 6 * DAY;

#[derive(Debug, Default)]
pub(super) struct Flights {
    tickets: BTreeMap<SyncSubmissionId, (Ix, bool)>,
    newest: Option<SyncSubmissionId>,
    in_flight: BTreeMap<(Ix, bool), SyncSubmissionId>,
    /// What was last told to be known, by session.
    known: BTreeSet<(SessionId, EventId)>,
    verified: BTreeMap<Ix, (u32, Time)>,
}

impl Flights {
    pub(super) fn began(&mut self) {
        *self = Self::default();
    }

    pub(super) fn down(&mut self, session: SessionId) {
        let (from, to) = ((session, EventId([0; 32])), (session, EventId([255; 32])));
        let gone: Vec<_> = self.known.range(from..=to).copied().collect();
        for key in gone {
            self.known.remove(&key);
        }
    }

    pub(super) fn heard(&mut self, session: SessionId, heard: &IncomingMessage) {
        match heard {
            IncomingMessage::Event(_, event, EventPresence::Known) => drop(self.known.insert((session, event.id))),
            IncomingMessage::Event(_, event, EventPresence::New) => drop(self.known.remove(&(session, event.id))),
            _ => {}
        }
    }

    pub(super) fn submitted(&mut self, verdicts: &mut Verdicts, now: Time, submission: &SyncSubmission) {
        let SyncSubmission { id: ticket, event, session, .. } = submission;
        let Some(ix) = corpus().ix(&event.id) else { return };
        verdicts.hold(self.newest.is_none_or(|newest| newest < *ticket), "tickets are new", || format!("{ticket:?}"));
        self.newest = Some(*ticket);
        let told = session.is_some_and(|session| self.known.contains(&(session, event.id)));
        verdicts.hold(!told, "what is known is not submitted", || format!("ix {ix}"));
        let genuine = corpus().plain(ix).sig == event.sig;
        let other = self.in_flight.insert((ix, genuine), *ticket);
        verdicts.hold(other.is_none(), "what is in flight is not submitted again", || format!("ix {ix}: {other:?}"));
        self.tickets.insert(*ticket, (ix, genuine));
        if genuine {
            let (times, last) = self.verified.entry(ix).or_default();
            if now > *last + MEMORY {
                *times = 0;
            }
            *last = now;
            *times += 1;
            verdicts
                .hold(*times <= MOST_VERIFIED, "an event is verified twice at most", || format!("ix {ix}: {times}"));
        }
    }

    pub(super) fn judged(&mut self, verdicts: &mut Verdicts, ticket: SyncSubmissionId, judgement: &SubmitResult) {
        let Some((ix, genuine)) = self.tickets.remove(&ticket) else {
            verdicts.hold(false, "every ticket is judged once", || format!("{ticket:?}"));
            return;
        };
        self.in_flight.remove(&(ix, genuine));
        let lasting = match judgement {
            SubmitResult::Rejected(Rejection::InFuture) => false,
            SubmitResult::Rejected(refusal) => !refusal.is_temporary(),
            _ => false,
        };
        if !lasting {
            self.verified.remove(&ix);
        }
    }

    /// Something came that others may depend on.
    pub(super) fn served(&mut self, arrived: &ServedEvent) {
        let id = arrived.id.to_string();
        let address = arrived.coordinate.as_ref().map(ToString::to_string);
        for letter in [b'e', b'E', b'q'] {
            self.wake(&tagged(letter, &id));
        }
        for letter in [b'a', b'A', b'q'] {
            if let Some(address) = &address {
                self.wake(&tagged(letter, address));
            }
        }
        for ix in arrived.ids.iter().filter_map(|id| corpus().ix(id)) {
            self.verified.remove(&ix);
        }
        for at in &arrived.coordinates {
            let (authors, kinds) = (Some(vec![at.pubkey]), Some(vec![at.kind]));
            self.wake(&Filter { authors, kinds, ..Filter::default() });
        }
        // Whoever has something here may delete.
        let (authors, kinds) = (Some(vec![arrived.author]), Some(vec![5, 62]));
        self.wake(&Filter { authors, kinds, ..Filter::default() });
    }

    pub(super) fn interest(&mut self, name: &Identifier) {
        self.wake(&tagged(b'd', name.as_str()));
    }

    fn wake(&mut self, filter: &Filter) {
        let woken: Bits = corpus().matching(filter);
        for ix in woken.iter() {
            self.verified.remove(&ix);
        }
    }
}

fn tagged(letter: u8, value: &str) -> Filter {
    Filter { tags: vec![(letter, vec![value.to_owned()])], ..Filter::default() }
}

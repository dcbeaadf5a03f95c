//! What becomes of a held event in time: when it is looked for elsewhere, when it gives up, and what lies dormant.
//!
//! An event waits for half an hour, and then until everybody has been asked once for its git data, if somebody looks for it.
//! One that is still the last word lies dormant after that: it is looked for once an hour, and takes nobody's room.

use super::Registrar;
use super::io::{Output, Source, Write};
use super::purgatory::{Search, Waiting, What};
use crate::limits;
use crate::nostr::Signed;
use crate::nostr::event::EventId;
use crate::repo::catalog::Place;
use crate::repo::{Identifier, Site};
use crate::time::{Moment, Now, Timestamp};

/// When an event's git data is looked for elsewhere, by who brought it.
pub(super) fn hunted_from(now: Now, source: &Source) -> Moment {
    match source {
        Source::Client(_) => now.mono.plus_secs(limits::HUNT_DELAY_CLIENT_SECS),
        Source::Relay(_) => soon(now),
    }
}

fn soon(now: Now) -> Moment {
    now.mono.plus(std::time::Duration::from_millis(limits::HUNT_DELAY_SYNC_MILLIS))
}

/// What comes when an event's time is over.
enum After {
    /// Nothing: it goes.
    End,
    /// It waits until then.
    Wait(Moment),
    /// It lies dormant until then.
    Rest(Moment),
}

impl Registrar {
    /// A held event that survived a restart. However long the server was down, everybody gets a little time to go on.
    pub(super) fn restore_held(&mut self, now: Now, event: &Signed, deadline: Timestamp) {
        let left = deadline.secs_since(now.wall);
        // Nothing else has so much time left.
        let dormant = self.rules.hunts && left > self.rules.purgatory_secs.max(limits::PURGATORY_GRACE_SECS);
        let (left, search) = if dormant {
            (left.min(limits::DORMANT_SECS), Search::Dormant)
        } else {
            let most = self.rules.purgatory_secs.max(limits::PURGATORY_GRACE_SECS);
            (left.clamp(limits::PURGATORY_GRACE_SECS, most), Search::From(soon(now)))
        };
        self.note_held(now, event, now.mono.plus_secs(left), search);
    }

    /// A held event is offered again: whoever does that expects something of it.
    pub(super) fn seen_again(&mut self, now: Now, id: EventId, source: &Source) {
        let Some(waiting) = self.purgatory.get(id) else { return };
        let from = hunted_from(now, source);
        match waiting.search {
            Search::From(due) if from < due => self.purgatory.search(id, Search::From(from), waiting.deadline),
            Search::Dormant if self.purgatory.room(waiting.author, waiting.bytes).is_none() => {
                let deadline = now.mono.plus_secs(self.rules.purgatory_secs);
                self.purgatory.search(id, Search::From(from), deadline);
                self.write(Write::Extend(id, now.wall.plus_secs(self.rules.purgatory_secs)));
            }
            Search::From(_) | Search::Tried(_) | Search::Dormant => return,
        }
        self.ring_for(id);
    }

    /// Everybody has been asked for what these need.
    pub(super) fn tried(&mut self, events: &[EventId]) {
        for id in events {
            if let Some(Waiting { search: Search::From(due), deadline, .. }) = self.purgatory.get(*id) {
                let (due, deadline) = (*due, *deadline);
                self.purgatory.search(*id, Search::Tried(due), deadline);
            }
        }
    }

    /// A held event's time is over.
    pub(super) fn end_of_time(&mut self, now: Now, id: EventId) {
        if self.is_engaged(id) {
            self.purgatory.postpone(id, now.mono.plus_secs(limits::POSTPONE_SECS));
            return;
        }
        match self.after(now, id) {
            After::End => self.unhold(id),
            After::Wait(until) => drop(self.purgatory.postpone(id, until)),
            After::Rest(until) => {
                self.purgatory.search(id, Search::Dormant, until);
                self.write(Write::Extend(id, now.wall.plus_secs(until.since(now.mono).as_secs())));
                self.ring_for(id);
            }
        }
    }

    fn after(&self, now: Now, id: EventId) -> After {
        let Some(waiting) = self.purgatory.get(id) else { return After::End };
        if !self.rules.hunts {
            return After::End;
        }
        if let What::Announcement(repo) = &waiting.what {
            return self.after_states(now, waiting, &Site::Announced(repo.clone()));
        }
        match waiting.search {
            Search::Dormant => After::End,
            // It is somebody else's turn, and everybody's before it.
            Search::From(_) if now.mono < waiting.since.plus_secs(limits::MAX_HELD_SECS) => {
                After::Wait(now.mono.plus_secs(limits::POSTPONE_SECS))
            }
            _ if self.is_last_word(id, waiting) && self.purgatory.may_rest(waiting.author) => {
                After::Rest(now.mono.plus_secs(limits::DORMANT_SECS))
            }
            _ => After::End,
        }
    }

    /// An announcement waits, and rests, with the states that could release it.
    fn after_states(&self, now: Now, waiting: &Waiting, site: &Site) -> After {
        let held = self.states_for(site).into_iter().filter(|(_, place)| *place == Place::Held);
        let states: Vec<&Waiting> = held.filter_map(|(id, _)| self.purgatory.get(id)).collect();
        let longest = |dormant: bool| {
            let deadlines = states.iter().filter(|state| state.is_dormant() == dormant).map(|state| state.deadline);
            deadlines.max().map(|deadline| deadline.max(now.mono).plus_secs(1))
        };
        match (longest(false), longest(true)) {
            (Some(until), _) => After::Wait(until),
            (None, Some(until)) if waiting.is_dormant() => After::Wait(until),
            (None, Some(until)) if self.purgatory.may_rest(waiting.author) => After::Rest(until),
            (None, _) => After::End,
        }
    }

    /// Whether nothing has replaced what an event says.
    fn is_last_word(&self, id: EventId, waiting: &Waiting) -> bool {
        match &waiting.what {
            What::Announcement(_) => false,
            What::State(identifier) => {
                let is_first = |site: &Site| self.states_for(site).first().is_some_and(|(first, _)| *first == id);
                self.looks_of(identifier, waiting.author).iter().any(is_first)
            }
            What::PullRequest(_, sites) => sites.iter().any(|site| self.is_open(site)),
        }
    }

    /// Tells the hunt that an event's search has changed.
    fn ring_for(&mut self, id: EventId) {
        let names: Vec<Identifier> = match self.purgatory.get(id).map(|waiting| &waiting.what) {
            Some(What::State(identifier)) => vec![identifier.clone()],
            Some(What::PullRequest(_, sites)) => sites.iter().map(|site| site.identifier().clone()).collect(),
            Some(What::Announcement(_)) | None => Vec::new(),
        };
        for name in names {
            self.wish(Output::Quarry(name));
        }
    }
}

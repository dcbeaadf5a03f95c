//! What becomes of a held event in time: when it is looked for elsewhere, when it gives up, and what lies dormant.
//!
//! An event waits for half an hour, and then until everybody has been asked once for its git data, if somebody looks for it.
//! One that is still the last word lies dormant after that: it is looked for once an hour, and takes nobody's room.

use super::Admission;
use super::io::{AdmissionOutput, EventSource, StoreWrite};
use super::purgatory::{HeldEvent, HeldKind, SearchStatus};
use crate::limits;
use crate::nostr::SignedEvent;
use crate::nostr::event::EventId;
use crate::repo::catalog::EventStatus;
use crate::repo::{Identifier, RepoPath};
use crate::time::{MonoTime, Now, Timestamp};

/// When an event's git data is looked for elsewhere, by who brought it.
pub(super) fn search_due(now: Now, source: &EventSource) -> MonoTime {
    match source {
        EventSource::Client(_) => now.mono.plus_secs(limits::FETCH_DELAY_CLIENT_SECS),
        EventSource::Relay(_) => search_due_after_sync(now),
    }
}

fn search_due_after_sync(now: Now) -> MonoTime {
    now.mono.plus(std::time::Duration::from_millis(limits::FETCH_DELAY_SYNC_MILLIS))
}

/// What comes when an event's time is over.
enum ExpiryAction {
    /// Nothing: it goes.
    Drop,
    /// It waits until then.
    Wait(MonoTime),
    /// It lies dormant until then.
    Dormant(MonoTime),
}

impl Admission {
    /// A held event that survived a restart. However long the server was down, everybody gets a little time to go on.
    pub(super) fn restore_held(&mut self, now: Now, event: &SignedEvent, deadline: Timestamp) {
        let left = deadline.secs_since(now.wall);
        // Nothing else has so much time left.
        let dormant =
            self.policy.fetches_git_data && left > self.policy.purgatory_secs.max(limits::PURGATORY_STARTUP_GRACE_SECS);
        let (left, search) = if dormant {
            (left.min(limits::DORMANT_SECS), SearchStatus::Dormant)
        } else {
            let most = self.policy.purgatory_secs.max(limits::PURGATORY_STARTUP_GRACE_SECS);
            (left.clamp(limits::PURGATORY_STARTUP_GRACE_SECS, most), SearchStatus::Pending(search_due_after_sync(now)))
        };
        self.track_held(now, event, now.mono.plus_secs(left), search);
    }

    /// A held event is offered again: whoever does that expects something of it.
    pub(super) fn resubmitted(&mut self, now: Now, id: EventId, source: &EventSource) {
        let Some(held_event) = self.purgatory.get(id) else { return };
        let from = search_due(now, source);
        match held_event.search {
            SearchStatus::Pending(due) if from < due => {
                self.purgatory.set_search(id, SearchStatus::Pending(from), held_event.deadline)
            }
            SearchStatus::Dormant
                if self.purgatory.rejection_if_full(held_event.author, held_event.bytes).is_none() =>
            {
                let deadline = now.mono.plus_secs(self.policy.purgatory_secs);
                self.purgatory.set_search(id, SearchStatus::Pending(from), deadline);
                self.write(StoreWrite::ExtendHold(id, now.wall.plus_secs(self.policy.purgatory_secs)));
            }
            SearchStatus::Pending(_) | SearchStatus::Tried(_) | SearchStatus::Dormant => return,
        }
        self.notify_search_changed(id);
    }

    /// Everybody has been asked for what these need.
    pub(super) fn sources_tried(&mut self, events: &[EventId]) {
        for id in events {
            if let Some(HeldEvent { search: SearchStatus::Pending(due), deadline, .. }) = self.purgatory.get(*id) {
                let (due, deadline) = (*due, *deadline);
                self.purgatory.set_search(*id, SearchStatus::Tried(due), deadline);
            }
        }
    }

    /// A held event's time is over.
    pub(super) fn expire_held(&mut self, now: Now, id: EventId) {
        if self.is_in_use(id) {
            self.purgatory.extend_deadline(id, now.mono.plus_secs(limits::EXPIRY_POSTPONE_SECS));
            return;
        }
        match self.expiry_action(now, id) {
            ExpiryAction::Drop => self.drop_held(id),
            ExpiryAction::Wait(until) => drop(self.purgatory.extend_deadline(id, until)),
            ExpiryAction::Dormant(until) => {
                self.purgatory.set_search(id, SearchStatus::Dormant, until);
                self.write(StoreWrite::ExtendHold(id, now.wall.plus_secs(until.since(now.mono).as_secs())));
                self.notify_search_changed(id);
            }
        }
    }

    fn expiry_action(&self, now: Now, id: EventId) -> ExpiryAction {
        let Some(held_event) = self.purgatory.get(id) else { return ExpiryAction::Drop };
        if !self.policy.fetches_git_data {
            return ExpiryAction::Drop;
        }
        if let HeldKind::Announcement(repo) = &held_event.kind {
            return self.announcement_expiry(now, held_event, &RepoPath::Announced(repo.clone()));
        }
        match held_event.search {
            SearchStatus::Dormant => ExpiryAction::Drop,
            // It is somebody else's turn, and everybody's before it.
            SearchStatus::Pending(_) if now.mono < held_event.since.plus_secs(limits::MAX_HELD_SECS) => {
                ExpiryAction::Wait(now.mono.plus_secs(limits::EXPIRY_POSTPONE_SECS))
            }
            _ if self.is_newest(id, held_event) && self.purgatory.has_dormant_room(held_event.author) => {
                ExpiryAction::Dormant(now.mono.plus_secs(limits::DORMANT_SECS))
            }
            _ => ExpiryAction::Drop,
        }
    }

    /// An announcement waits, and rests, with the states that could release it.
    fn announcement_expiry(&self, now: Now, held_event: &HeldEvent, repo_path: &RepoPath) -> ExpiryAction {
        let held = self.states_for(repo_path).into_iter().filter(|(_, status)| *status == EventStatus::Held);
        let states: Vec<&HeldEvent> = held.filter_map(|(id, _)| self.purgatory.get(id)).collect();
        let longest = |dormant: bool| {
            let deadlines = states.iter().filter(|state| state.is_dormant() == dormant).map(|state| state.deadline);
            deadlines.max().map(|deadline| deadline.max(now.mono).plus_secs(1))
        };
        match (longest(false), longest(true)) {
            (Some(until), _) => ExpiryAction::Wait(until),
            (None, Some(until)) if held_event.is_dormant() => ExpiryAction::Wait(until),
            (None, Some(until)) if self.purgatory.has_dormant_room(held_event.author) => ExpiryAction::Dormant(until),
            (None, _) => ExpiryAction::Drop,
        }
    }

    /// Whether nothing has replaced what an event says.
    fn is_newest(&self, id: EventId, held_event: &HeldEvent) -> bool {
        match &held_event.kind {
            HeldKind::Announcement(_) => false,
            HeldKind::State(identifier) => {
                let is_first =
                    |repo_path: &RepoPath| self.states_for(repo_path).first().is_some_and(|(first, _)| *first == id);
                self.search_paths(identifier, held_event.author).iter().any(is_first)
            }
            HeldKind::PullRequest(_, repo_paths) => repo_paths.iter().any(|repo_path| self.is_available(repo_path)),
        }
    }

    /// Tells the hunt that an event's search has changed.
    fn notify_search_changed(&mut self, id: EventId) {
        let names: Vec<Identifier> = match self.purgatory.get(id).map(|held_event| &held_event.kind) {
            Some(HeldKind::State(identifier)) => vec![identifier.clone()],
            Some(HeldKind::PullRequest(_, repo_paths)) => {
                repo_paths.iter().map(|repo_path| repo_path.identifier().clone()).collect()
            }
            Some(HeldKind::Announcement(_)) | None => Vec::new(),
        };
        for name in names {
            self.emit(AdmissionOutput::WantedGitDataChanged(name));
        }
    }
}

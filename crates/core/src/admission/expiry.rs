//! Expiry of held events: when their git data is searched for elsewhere, when they expire, and which become dormant
//! (docs/design/admission.md#expiry-and-dormancy).
//!
//! An event is held for 30 minutes and, if git data is fetched from other servers, until all sources were tried once.
//! If it is the newest of its kind then, it becomes dormant: its data is searched for once an hour, and it no longer
//! counts towards the limits of purgatory.

use std::sync::Arc;

use super::Admission;
use super::io::{AdmissionOutput, EventSource, StoreWrite};
use super::policy::Submission;
use super::purgatory::{HeldEvent, HeldKind, HoldRequest, SearchStatus};
use crate::limits;
use crate::nostr::SignedEvent;
use crate::nostr::event::EventId;
use crate::repo::catalog::EventStatus;
use crate::repo::{Announcement, Identifier, RepoId, RepoPath};
use crate::time::{MonoTime, Now, Timestamp};

/// Returns when the search for an event's git data starts, depending on where the event comes from.
pub(super) fn search_due(now: Now, source: &EventSource) -> MonoTime {
    match source {
        EventSource::Client(_) => now.mono.plus_secs(limits::FETCH_DELAY_CLIENT_SECS),
        EventSource::Relay(_) => search_due_after_sync(now),
    }
}

fn search_due_after_sync(now: Now) -> MonoTime {
    now.mono.plus(std::time::Duration::from_millis(limits::FETCH_DELAY_SYNC_MILLIS))
}

/// What happens to an event at its deadline.
enum ExpiryAction {
    /// It is removed.
    Drop,
    /// It stays held until this time.
    Wait(MonoTime),
    /// It becomes dormant until this time.
    Dormant(MonoTime),
}

impl Admission {
    /// Restores a held event after a start. Its deadline is extended, so that every event has some time left, however
    /// long the server was down.
    pub(super) fn restore_held(&mut self, now: Now, event: &Arc<SignedEvent>, deadline: Timestamp) {
        let left = deadline.secs_since(now.wall);
        // Only dormant events have so much time left.
        let is_dormant =
            self.policy.fetches_git_data && left > self.policy.purgatory_secs.max(limits::PURGATORY_STARTUP_GRACE_SECS);
        let (left, search) = if is_dormant {
            (left.min(self.policy.dormant_secs), SearchStatus::Dormant)
        } else {
            let max_secs = self.policy.purgatory_secs.max(limits::PURGATORY_STARTUP_GRACE_SECS);
            let left = left.clamp(limits::PURGATORY_STARTUP_GRACE_SECS, max_secs);
            (left, SearchStatus::Pending(search_due_after_sync(now)))
        };
        let submission = Submission::new(&self.policy, event);
        let deadline = now.mono.plus_secs(left);
        let Some(announcement) = submission.announcement.clone() else {
            return self.track_held(now, submission, deadline, search);
        };
        let kind = HeldKind::Announcement(announcement.repo.clone());
        let is_exception = !announcement.is_hosted();
        self.catalog.restore_announcement(EventStatus::Held, Announcement { is_exception, ..announcement });
        self.insert_held(now, submission, kind, deadline, search);
    }

    /// Handles a held event that is submitted again.
    pub(super) fn resubmitted(&mut self, now: Now, id: EventId, source: &EventSource) {
        self.search_from(now, id, search_due(now, source));
    }

    /// Lets the search for the git data of a held event start soon, because a relay or git server may have it.
    pub(super) fn search_soon(&mut self, now: Now, id: EventId) {
        self.search_from(now, id, search_due_after_sync(now));
    }

    /// Lets the search for the git data of a held event start at a time, unless it starts earlier. A dormant event
    /// becomes active.
    fn search_from(&mut self, now: Now, id: EventId, new_due: MonoTime) {
        let Some(held_event) = self.purgatory.get(id) else { return };
        match held_event.search {
            SearchStatus::Pending(due) if new_due < due => {
                self.purgatory.set_search(id, SearchStatus::Pending(new_due), held_event.deadline)
            }
            SearchStatus::Dormant if self.has_space_for(held_event) => {
                let deadline = now.mono.plus_secs(self.policy.purgatory_secs);
                self.purgatory.set_search(id, SearchStatus::Pending(new_due), deadline);
                self.write(StoreWrite::ExtendHold(id, now.wall.plus_secs(self.policy.purgatory_secs)));
            }
            SearchStatus::Pending(_) | SearchStatus::Tried(_) | SearchStatus::Dormant => return,
        }
        self.notify_search_changed(id);
    }

    /// Whether a dormant event may become active, without the removal of others.
    fn has_space_for(&self, held_event: &HeldEvent) -> bool {
        let HeldEvent { author, bytes, priority, .. } = *held_event;
        let request = HoldRequest { author, bytes, replaced: None, submitter: held_event.submitter.as_ref(), priority };
        // No announcement may be removed.
        self.purgatory.rejection(&request, |_| true).is_none()
    }

    /// Records that all sources were tried once for these events.
    pub(super) fn sources_tried(&mut self, events: &[EventId]) {
        for id in events {
            if let Some(HeldEvent { search: SearchStatus::Pending(due), deadline, .. }) = self.purgatory.get(*id) {
                let (due, deadline) = (*due, *deadline);
                self.purgatory.set_search(*id, SearchStatus::Tried(due), deadline);
            }
        }
    }

    /// Handles a held event whose deadline has passed.
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
        if let HeldKind::Announcement(repo) = &held_event.kind
            && !self.is_hosted(repo)
        {
            return self.exception_expiry(now, held_event, repo);
        }
        if !self.policy.fetches_git_data {
            return ExpiryAction::Drop;
        }
        if let HeldKind::Announcement(repo) = &held_event.kind {
            return self.announcement_expiry(now, held_event, &RepoPath::Announced(repo.clone()));
        }
        match held_event.search {
            SearchStatus::Dormant => ExpiryAction::Drop,
            // Not all sources were tried yet; the search may be waiting for others.
            SearchStatus::Pending(_) if now.mono < held_event.since.plus_secs(limits::MAX_HELD_SECS) => {
                ExpiryAction::Wait(now.mono.plus_secs(limits::EXPIRY_POSTPONE_SECS))
            }
            _ if self.is_newest(id, held_event) && self.purgatory.has_dormant_capacity(held_event.author) => {
                ExpiryAction::Dormant(now.mono.plus_secs(self.policy.dormant_secs))
            }
            _ => ExpiryAction::Drop,
        }
    }

    /// Returns what happens to a held announcement. It stays held, or becomes dormant, as long as a state that could
    /// release it.
    fn announcement_expiry(&self, now: Now, held_event: &HeldEvent, repo_path: &RepoPath) -> ExpiryAction {
        let held = self.states_for(repo_path).into_iter().filter(|(_, status)| *status == EventStatus::Held);
        let states: Vec<&HeldEvent> = held.filter_map(|(id, _)| self.purgatory.get(id)).collect();
        let latest_deadline = |dormant: bool| {
            let deadlines = states.iter().filter(|state| state.is_dormant() == dormant).map(|state| state.deadline);
            deadlines.max().map(|deadline| deadline.max(now.mono).plus_secs(1))
        };
        match (latest_deadline(false), latest_deadline(true)) {
            (Some(until), _) => ExpiryAction::Wait(until),
            (None, Some(until)) if held_event.is_dormant() => ExpiryAction::Wait(until),
            (None, Some(until)) if self.purgatory.has_dormant_capacity(held_event.author) => {
                ExpiryAction::Dormant(until)
            }
            (None, _) => ExpiryAction::Drop,
        }
    }

    /// Returns what happens to an announcement that is held by the maintainer exception. It waits as long as the
    /// announcements that lead to it, and is removed with them, but not longer than other events wait for a source.
    fn exception_expiry(&self, now: Now, held_event: &HeldEvent, repo: &RepoId) -> ExpiryAction {
        let group = self.catalog.group(&repo.identifier);
        let invitation = group.and_then(|group| group.invitation(repo.owner, self.policy.strict_maintainers));
        if invitation.is_some() && now.mono < held_event.since.plus_secs(limits::MAX_HELD_SECS) {
            ExpiryAction::Wait(now.mono.plus_secs(self.policy.purgatory_secs.max(1)))
        } else {
            ExpiryAction::Drop
        }
    }

    /// Whether no newer event replaces a held one.
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

    /// Notifies fetch that the search status of an event has changed.
    fn notify_search_changed(&mut self, id: EventId) {
        let identifiers: Vec<Identifier> = match self.purgatory.get(id).map(|held_event| &held_event.kind) {
            Some(HeldKind::State(identifier)) => vec![identifier.clone()],
            Some(HeldKind::PullRequest(_, repo_paths)) => {
                repo_paths.iter().map(|repo_path| repo_path.identifier().clone()).collect()
            }
            Some(HeldKind::Announcement(_)) | None => Vec::new(),
        };
        for identifier in identifiers {
            self.emit(AdmissionOutput::WantedGitDataChanged(identifier));
        }
    }
}

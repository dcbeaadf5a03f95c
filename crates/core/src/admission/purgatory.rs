//! Purgatory: events that wait for their git data, with their deadlines.
//!
//! Only the fields that decisions need are in memory; the text of held events is in the store. The number and size of
//! held events is bounded per author and in total (docs/design/admission.md#bounds).

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::nostr::rejection::Rejection;
use crate::repo::{Identifier, RepoId, RepoPath};
use crate::time::{MonoTime, Timestamp};

/// The fields of a held event that decisions need. Its text is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldEvent {
    /// The event's author.
    pub author: PublicKey,
    /// The event's timestamp.
    pub created_at: Timestamp,
    /// The kind of event, with the fields that depend on it.
    pub kind: HeldKind,
    /// The size of the event's text.
    pub bytes: usize,
    /// When the event was held, or restored after a start.
    pub since: MonoTime,
    /// When the event expires. On the monotonic clock, so that a change of the wall clock expires nothing.
    pub deadline: MonoTime,
    /// Progress of the search for its git data.
    pub search: SearchStatus,
}

impl HeldEvent {
    /// Whether its deadline has passed and it is kept only because its git data may still be found.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.search == SearchStatus::Dormant
    }

    /// Returns the identifiers of the repositories that it is about.
    fn identifiers(&self) -> BTreeSet<Identifier> {
        match &self.kind {
            HeldKind::Announcement(repo) => BTreeSet::from([repo.identifier.clone()]),
            HeldKind::State(identifier) => BTreeSet::from([identifier.clone()]),
            HeldKind::PullRequest(_, repo_paths) => {
                repo_paths.iter().map(|repo_path| repo_path.identifier().clone()).collect()
            }
        }
    }
}

/// Progress of the search for an event's git data (docs/design/admission.md#expiry-and-dormancy).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SearchStatus {
    /// The search starts at this time; not all sources have been tried yet.
    Pending(MonoTime),
    /// The search started at this time, and all sources have been tried once.
    Tried(MonoTime),
    /// The deadline has passed, no newer event replaces this one, and the search continues at long intervals.
    Dormant,
}

/// The kind of a held event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeldKind {
    /// An announcement.
    Announcement(RepoId),
    /// A state.
    State(Identifier),
    /// A pull request: its commit, and the repositories in which it may get its ref once they are available.
    PullRequest(String, Vec<RepoPath>),
}

/// All held events, indexed by deadline, author and identifier.
#[derive(Clone, Debug, Default)]
pub struct Purgatory {
    events: BTreeMap<EventId, HeldEvent>,
    deadlines: BTreeSet<(MonoTime, EventId)>,
    by_author: BTreeMap<PublicKey, AuthorUsage>,
    by_identifier: BTreeMap<Identifier, BTreeSet<EventId>>,
    totals: HeldTotals,
}

/// The held events of one author.
#[derive(Clone, Debug, Default)]
struct AuthorUsage {
    ids: BTreeSet<EventId>,
    totals: HeldTotals,
}

/// Number and size of held events. Dormant events do not count towards the limits of active ones.
#[derive(Clone, Copy, Debug, Default)]
struct HeldTotals {
    active: usize,
    bytes: usize,
    dormant: usize,
}

impl HeldTotals {
    fn add(&mut self, held_event: &HeldEvent) {
        if held_event.is_dormant() {
            self.dormant += 1;
        } else {
            self.active += 1;
            self.bytes += held_event.bytes;
        }
    }

    fn subtract(&mut self, held_event: &HeldEvent) {
        if held_event.is_dormant() {
            self.dormant -= 1;
        } else {
            self.active -= 1;
            self.bytes -= held_event.bytes;
        }
    }
}

impl Purgatory {
    /// Returns the reason why another event of this author and size cannot be held, or `None` if it can.
    #[must_use]
    pub fn rejection_if_full(&self, author: PublicKey, bytes: usize) -> Option<Rejection> {
        let crowded = |usage: &AuthorUsage| {
            usage.totals.active >= limits::MAX_HELD_EVENTS_PER_AUTHOR
                || usage.totals.bytes + bytes > limits::MAX_HELD_BYTES_PER_AUTHOR
        };
        if self.by_author.get(&author).is_some_and(crowded) {
            return Some(Rejection::TooManyHeld);
        }
        let full = self.totals.active >= limits::MAX_HELD_EVENTS || self.totals.bytes + bytes > limits::MAX_HELD_BYTES;
        full.then_some(Rejection::PurgatoryFull)
    }

    /// Whether another event of this author may become dormant.
    #[must_use]
    pub fn has_dormant_capacity(&self, author: PublicKey) -> bool {
        let crowded = |usage: &AuthorUsage| usage.totals.dormant >= limits::MAX_DORMANT_EVENTS_PER_AUTHOR;
        self.totals.dormant < limits::MAX_DORMANT_EVENTS && !self.by_author.get(&author).is_some_and(crowded)
    }

    /// Adds an event, or replaces the one with the same id.
    pub fn insert(&mut self, id: EventId, held_event: HeldEvent) {
        self.remove(id);
        self.deadlines.insert((held_event.deadline, id));
        let usage = self.by_author.entry(held_event.author).or_default();
        usage.ids.insert(id);
        usage.totals.add(&held_event);
        self.totals.add(&held_event);
        for identifier in held_event.identifiers() {
            self.by_identifier.entry(identifier).or_default().insert(id);
        }
        self.events.insert(id, held_event);
    }

    /// Removes and returns an event.
    pub fn remove(&mut self, id: EventId) -> Option<HeldEvent> {
        let held_event = self.events.remove(&id)?;
        self.deadlines.remove(&(held_event.deadline, id));
        self.totals.subtract(&held_event);
        if let Some(usage) = self.by_author.get_mut(&held_event.author) {
            usage.ids.remove(&id);
            usage.totals.subtract(&held_event);
            if usage.ids.is_empty() {
                self.by_author.remove(&held_event.author);
            }
        }
        for identifier in held_event.identifiers() {
            if let Some(ids) = self.by_identifier.get_mut(&identifier) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_identifier.remove(&identifier);
                }
            }
        }
        Some(held_event)
    }

    /// Changes the search status and the deadline of an event.
    pub fn set_search(&mut self, id: EventId, search: SearchStatus, deadline: MonoTime) {
        if let Some(held_event) = self.remove(id) {
            self.insert(id, HeldEvent { search, deadline, ..held_event });
        }
    }

    /// Moves the deadline of an event to a later time. Returns whether it changed.
    pub fn extend_deadline(&mut self, id: EventId, deadline: MonoTime) -> bool {
        let Some(held_event) = self.events.get_mut(&id).filter(|held_event| held_event.deadline < deadline) else {
            return false;
        };
        self.deadlines.remove(&(held_event.deadline, id));
        held_event.deadline = deadline;
        self.deadlines.insert((deadline, id))
    }

    /// Iterates over all held events, by id.
    pub fn iter(&self) -> impl Iterator<Item = (EventId, &HeldEvent)> {
        self.events.iter().map(|(id, held_event)| (*id, held_event))
    }

    /// Iterates over the held events that are about repositories with an identifier, by id.
    pub fn by_identifier(&self, identifier: &Identifier) -> impl Iterator<Item = (EventId, &HeldEvent)> {
        let ids = self.by_identifier.get(identifier).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.events.get(id)?)))
    }

    /// Iterates over the identifiers of all repositories that held events are about.
    pub fn identifiers(&self) -> impl Iterator<Item = &Identifier> {
        self.by_identifier.keys()
    }

    /// Returns the held event with this id.
    #[must_use]
    pub fn get(&self, id: EventId) -> Option<&HeldEvent> {
        self.events.get(&id)
    }

    /// Returns the ids of an author's held events that are not newer than `up_to`.
    #[must_use]
    pub fn held_until(&self, author: PublicKey, up_to: Timestamp) -> Vec<EventId> {
        let held = self.by_author.get(&author).into_iter().flat_map(|usage| &usage.ids);
        held.filter(|id| self.events.get(id).is_some_and(|held_event| held_event.created_at <= up_to))
            .copied()
            .collect()
    }

    /// Returns the earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<MonoTime> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns an event whose deadline has passed, if there is one.
    #[must_use]
    pub fn next_expired(&self, now: MonoTime) -> Option<EventId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// Returns the number of held events, including dormant ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Returns the number of dormant events.
    #[must_use]
    pub fn dormant_count(&self) -> usize {
        self.totals.dormant
    }

    /// Whether no event is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

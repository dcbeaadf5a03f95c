//! Purgatory: events that wait for their git data, with their deadlines.
//!
//! Only the fields that decisions need are in memory; the text of held events is in the store. The number and size of
//! held events is bounded per author, per network or relay, and in total (docs/design/admission.md#bounds).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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
    /// The network or relay that submitted it. `None` if it has no share: a local client, an import, an earlier process.
    pub submitter: Option<HeldSubmitter>,
    /// Its value if there is not enough space.
    pub priority: HoldPriority,
}

impl HeldEvent {
    /// Whether its deadline has passed and it is kept only because its git data may still be found.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.search == SearchStatus::Dormant
    }

    /// Returns the repository that an announcement or a state of its author is about.
    fn own_repo(&self) -> Option<RepoId> {
        match &self.kind {
            HeldKind::Announcement(repo) => Some(repo.clone()),
            HeldKind::State(identifier) => Some(RepoId { owner: self.author, identifier: identifier.clone() }),
            HeldKind::PullRequest(..) => None,
        }
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

/// What submitted a held event. Each has a share of purgatory.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HeldSubmitter {
    /// Clients of a network.
    Network(Arc<str>),
    /// A relay that is synced from, by its host.
    Relay(Arc<str>),
}

impl HeldSubmitter {
    /// Returns the number and bytes of events in its share.
    fn share(&self) -> (usize, usize) {
        match self {
            Self::Network(_) => (limits::MAX_HELD_EVENTS_PER_NETWORK, limits::MAX_HELD_BYTES_PER_NETWORK),
            Self::Relay(_) => (limits::MAX_HELD_EVENTS_PER_RELAY, limits::MAX_HELD_BYTES_PER_RELAY),
        }
    }
}

/// The value of a held event if there is not enough space for all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum HoldPriority {
    /// An announcement of a repository that is not served. Anyone can publish any number of them.
    NewRepository,
    /// A pull request, or a state of a repository that is not served.
    Other,
    /// A state whose author maintains a served repository. It may use the reserved part of purgatory.
    ServedState,
}

/// An event that is to be held.
#[derive(Clone, Copy, Debug)]
pub struct HoldRequest<'a> {
    /// The event's author.
    pub author: PublicKey,
    /// The size of the event's text.
    pub bytes: usize,
    /// The held version that it replaces.
    pub replaced: Option<&'a HeldEvent>,
    /// The network or relay that submits it. `None` if it has no share: a local client, an import, an earlier process.
    pub submitter: Option<&'a HeldSubmitter>,
    /// Its value if there is not enough space.
    pub priority: HoldPriority,
}

/// All held events, indexed by deadline, author, identifier and submitter.
#[derive(Clone, Debug, Default)]
pub struct Purgatory {
    events: BTreeMap<EventId, HeldEvent>,
    deadlines: BTreeSet<(MonoTime, EventId)>,
    by_author: BTreeMap<PublicKey, AuthorUsage>,
    by_identifier: BTreeMap<Identifier, BTreeSet<EventId>>,
    by_submitter: BTreeMap<Option<HeldSubmitter>, SubmitterUsage>,
    by_repo: BTreeMap<RepoId, HeldRepo>,
    /// Pull requests by the repositories in which they may get their refs.
    pull_requests: BTreeMap<RepoPath, BTreeSet<EventId>>,
    totals: HeldTotals,
}

/// The held events of one author.
#[derive(Clone, Debug, Default)]
struct AuthorUsage {
    ids: BTreeSet<EventId>,
    totals: HeldTotals,
}

/// The held events from one network or relay.
#[derive(Clone, Debug, Default)]
struct SubmitterUsage {
    /// Events with a lower priority than [`HoldPriority::ServedState`].
    totals: HeldTotals,
    /// Events of [`HoldPriority::ServedState`].
    reserved: HeldTotals,
    /// Announcements that may be removed for other events, the oldest first: no state of their author is held, and they are
    /// not dormant.
    evictable: BTreeSet<(MonoTime, EventId)>,
}

impl SubmitterUsage {
    fn totals(&mut self, priority: HoldPriority) -> &mut HeldTotals {
        if priority == HoldPriority::ServedState { &mut self.reserved } else { &mut self.totals }
    }

    /// Returns the number of average events that take as much of purgatory as its events do.
    fn size(&self) -> usize {
        self.totals.active.max(self.totals.bytes / (limits::MAX_HELD_BYTES / limits::MAX_HELD_EVENTS))
    }
}

/// The held announcement of a repository, and the number of its owner's held states for it.
#[derive(Clone, Debug, Default)]
struct HeldRepo {
    announcement: Option<EventId>,
    states: usize,
}

/// Number and size of held events. Dormant events do not count towards the limits of active ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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

    /// Whether another event of this size fits within limits, after `replaced` is removed. One that is not larger always
    /// fits.
    fn has_capacity(mut self, bytes: usize, replaced: Option<&HeldEvent>, (events, max_bytes): (usize, usize)) -> bool {
        if let Some(replaced) = replaced {
            if bytes <= replaced.bytes && !replaced.is_dormant() {
                return true;
            }
            self.subtract(replaced);
        }
        self.active < events && self.bytes.saturating_add(bytes) <= max_bytes
    }
}

impl Purgatory {
    /// Returns the reason why an event cannot be held, or `None` if it can, perhaps after others are
    /// [removed](Self::evictions).
    #[must_use]
    pub fn rejection(&self, request: &HoldRequest<'_>, is_needed: impl Fn(EventId) -> bool) -> Option<Rejection> {
        let per_author = (limits::MAX_HELD_EVENTS_PER_AUTHOR, limits::MAX_HELD_BYTES_PER_AUTHOR);
        let of_author = self.by_author.get(&request.author).map(|usage| usage.totals).unwrap_or_default();
        if !of_author.has_capacity(request.bytes, request.replaced, per_author) {
            return Some(Rejection::TooManyHeld);
        }
        if request.submitter.is_some_and(|submitter| !self.has_share(submitter, request)) {
            return Some(Rejection::TooManyHeldFromNetwork);
        }
        self.evictions(request, is_needed).is_none().then_some(Rejection::PurgatoryFull)
    }

    /// Whether a state may use the reserved part of purgatory: the share of its submitter is not used up.
    #[must_use]
    pub fn has_reserved_share(&self, submitter: Option<&HeldSubmitter>, bytes: usize) -> bool {
        let usage = submitter.and_then(|submitter| self.by_submitter.get(&Some(submitter.clone())));
        let share = (limits::MAX_RESERVED_EVENTS_PER_SUBMITTER, limits::MAX_RESERVED_BYTES_PER_SUBMITTER);
        usage.is_none_or(|usage| usage.reserved.has_capacity(bytes, None, share))
    }

    fn has_share(&self, submitter: &HeldSubmitter, request: &HoldRequest<'_>) -> bool {
        let key = Some(submitter.clone());
        let is_own = |replaced: &&HeldEvent| replaced.submitter == key && replaced.priority < HoldPriority::ServedState;
        let totals = self.by_submitter.get(&key).map(|usage| usage.totals).unwrap_or_default();
        request.priority == HoldPriority::ServedState
            || totals.has_capacity(request.bytes, request.replaced.filter(is_own), submitter.share())
    }

    /// Returns the events that must be removed before another one fits: announcements without a state, the oldest first, of
    /// the submitter that uses most of purgatory. So a flood removes mostly its own events. Events for which `is_needed` is
    /// true stay. Returns `None` if the event does not fit.
    #[must_use]
    pub fn evictions(&self, request: &HoldRequest<'_>, is_needed: impl Fn(EventId) -> bool) -> Option<Vec<EventId>> {
        let limits = match request.priority {
            HoldPriority::ServedState => (limits::MAX_HELD_EVENTS, limits::MAX_HELD_BYTES),
            HoldPriority::NewRepository | HoldPriority::Other => (
                limits::MAX_HELD_EVENTS - limits::RESERVED_HELD_EVENTS,
                limits::MAX_HELD_BYTES - limits::RESERVED_HELD_BYTES,
            ),
        };
        let mut totals = self.totals;
        let mut evicted = Vec::new();
        if totals.has_capacity(request.bytes, request.replaced, limits) {
            return Some(evicted);
        }
        let candidates = self.by_submitter.values().filter(|usage| !usage.evictable.is_empty());
        let largest = candidates.max_by_key(|usage| usage.size())?;
        // An announcement is worth no more than another; it takes the place of one only if its submitter has fewer.
        let own = self.by_submitter.get(&request.submitter.cloned()).map_or(0, SubmitterUsage::size);
        if request.priority == HoldPriority::NewRepository && largest.size() <= own + 1 {
            return None;
        }
        for (_, id) in largest.evictable.iter().take(limits::MAX_EVICTIONS_PER_EVENT) {
            // The author's own announcement may be what the event belongs to, or the version that it replaces.
            let is_evicted = |held_event: &&HeldEvent| held_event.author != request.author && !is_needed(*id);
            let Some(held_event) = self.events.get(id).filter(is_evicted) else { continue };
            totals.subtract(held_event);
            evicted.push(*id);
            if totals.has_capacity(request.bytes, request.replaced, limits) {
                return Some(evicted);
            }
        }
        None
    }

    /// Returns the oldest held announcement with an identifier that may be removed for another event. One for which
    /// `is_needed` is true may not.
    #[must_use]
    pub fn oldest_evictable(&self, identifier: &Identifier, is_needed: impl Fn(EventId) -> bool) -> Option<EventId> {
        let is_evictable = |id: EventId, held_event: &HeldEvent| {
            let usage = self.by_submitter.get(&held_event.submitter);
            usage.is_some_and(|usage| usage.evictable.contains(&(held_event.since, id)))
        };
        let evictable = self.by_identifier(identifier).filter(|(id, held_event)| is_evictable(*id, held_event));
        evictable
            .filter(|(id, _)| !is_needed(*id))
            .map(|(id, held_event)| (held_event.since, id))
            .min()
            .map(|(_, id)| id)
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
        let usage = self.by_submitter.entry(held_event.submitter.clone()).or_default();
        usage.totals(held_event.priority).add(&held_event);
        for identifier in held_event.identifiers() {
            self.by_identifier.entry(identifier).or_default().insert(id);
        }
        if let HeldKind::PullRequest(_, repo_paths) = &held_event.kind {
            for repo_path in repo_paths {
                self.pull_requests.entry(repo_path.clone()).or_default().insert(id);
            }
        }
        let repo = held_event.own_repo();
        let is_state = matches!(held_event.kind, HeldKind::State(_));
        self.events.insert(id, held_event);
        if let Some(repo) = repo {
            let held_repo = self.by_repo.entry(repo.clone()).or_default();
            if is_state {
                held_repo.states += 1;
            } else {
                held_repo.announcement = Some(id);
            }
            self.update_evictable(&repo);
        }
    }

    /// Updates whether the held announcement of a repository may be removed for other events.
    fn update_evictable(&mut self, repo: &RepoId) {
        let Some(held_repo) = self.by_repo.get(repo) else { return };
        let Some(id) = held_repo.announcement else { return };
        let Some(held_event) = self.events.get(&id) else { return };
        let is_evictable = held_repo.states == 0 && !held_event.is_dormant();
        let Some(usage) = self.by_submitter.get_mut(&held_event.submitter) else { return };
        if is_evictable {
            usage.evictable.insert((held_event.since, id));
        } else {
            usage.evictable.remove(&(held_event.since, id));
        }
    }

    /// Returns the pull requests that may get their refs in a repository.
    pub fn pull_requests_at(&self, repo_path: &RepoPath) -> impl Iterator<Item = (EventId, &HeldEvent)> {
        let ids = self.pull_requests.get(repo_path).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.events.get(id)?)))
    }

    /// Removes an event from the usage of its submitter and from its repositories.
    fn remove_usage(&mut self, id: EventId, held_event: &HeldEvent) {
        if let HeldKind::PullRequest(_, repo_paths) = &held_event.kind {
            for repo_path in repo_paths {
                if let Some(ids) = self.pull_requests.get_mut(repo_path) {
                    ids.remove(&id);
                    if ids.is_empty() {
                        self.pull_requests.remove(repo_path);
                    }
                }
            }
        }
        if let Some(usage) = self.by_submitter.get_mut(&held_event.submitter) {
            usage.totals(held_event.priority).subtract(held_event);
            usage.evictable.remove(&(held_event.since, id));
            if usage.totals == HeldTotals::default() && usage.reserved == HeldTotals::default() {
                self.by_submitter.remove(&held_event.submitter);
            }
        }
        let Some(repo) = held_event.own_repo() else { return };
        let Some(held_repo) = self.by_repo.get_mut(&repo) else { return };
        match held_event.kind {
            HeldKind::State(_) => held_repo.states -= 1,
            _ => drop(held_repo.announcement.take_if(|announcement| *announcement == id)),
        }
        if held_repo.announcement.is_none() && held_repo.states == 0 {
            self.by_repo.remove(&repo);
        } else {
            self.update_evictable(&repo);
        }
    }

    /// Removes and returns an event.
    pub fn remove(&mut self, id: EventId) -> Option<HeldEvent> {
        let held_event = self.events.remove(&id)?;
        self.deadlines.remove(&(held_event.deadline, id));
        self.totals.subtract(&held_event);
        self.remove_usage(id, &held_event);
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

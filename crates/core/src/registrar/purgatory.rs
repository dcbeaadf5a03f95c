//! What waits for git data, and until when.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::nostr::reason::Refusal;
use crate::repo::{Identifier, RepoId, Site};
use crate::time::{Moment, Timestamp};

/// A held event, as far as decisions need it. Its text is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Who made it.
    pub author: PublicKey,
    /// When it says it was made.
    pub created_at: Timestamp,
    /// What it is.
    pub what: What,
    /// Bytes of its text.
    pub bytes: usize,
    /// When it gives up. On the monotonic clock, so that a step of the wall clock ends nothing.
    pub deadline: Moment,
}

/// What kind of thing waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// An announcement.
    Announcement(RepoId),
    /// A state.
    State(Identifier),
    /// A pull request: its tip, and the sites at which it may be served once they are open.
    PullRequest(String, Vec<Site>),
}

/// All that waits.
#[derive(Clone, Debug, Default)]
pub struct Purgatory {
    waiting: BTreeMap<EventId, Waiting>,
    deadlines: BTreeSet<(Moment, EventId)>,
    by_author: BTreeMap<PublicKey, Share>,
    bytes: usize,
}

/// What one author has waiting.
#[derive(Clone, Debug, Default)]
struct Share {
    ids: BTreeSet<EventId>,
    bytes: usize,
}

impl Purgatory {
    /// Why there is no room for one more of this author and size, if there is none.
    #[must_use]
    pub fn room(&self, author: PublicKey, bytes: usize) -> Option<Refusal> {
        let crowded = |share: &Share| {
            share.ids.len() >= limits::MAX_HELD_PER_AUTHOR || share.bytes + bytes > limits::MAX_HELD_BYTES_PER_AUTHOR
        };
        if self.by_author.get(&author).is_some_and(crowded) {
            return Some(Refusal::TooMuchHeld);
        }
        let full = self.waiting.len() >= limits::MAX_HELD || self.bytes + bytes > limits::MAX_HELD_BYTES;
        full.then_some(Refusal::PurgatoryFull)
    }

    /// Takes one in.
    pub fn put(&mut self, id: EventId, waiting: Waiting) {
        self.take(id);
        self.deadlines.insert((waiting.deadline, id));
        let share = self.by_author.entry(waiting.author).or_default();
        share.ids.insert(id);
        share.bytes += waiting.bytes;
        self.bytes += waiting.bytes;
        self.waiting.insert(id, waiting);
    }

    /// Lets one go.
    pub fn take(&mut self, id: EventId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.deadlines.remove(&(waiting.deadline, id));
        self.bytes -= waiting.bytes;
        if let Some(share) = self.by_author.get_mut(&waiting.author) {
            share.ids.remove(&id);
            share.bytes -= waiting.bytes;
            if share.ids.is_empty() {
                self.by_author.remove(&waiting.author);
            }
        }
        Some(waiting)
    }

    /// Lets one wait longer. True if that changed anything.
    pub fn postpone(&mut self, id: EventId, deadline: Moment) -> bool {
        let Some(waiting) = self.waiting.get_mut(&id).filter(|waiting| waiting.deadline < deadline) else {
            return false;
        };
        self.deadlines.remove(&(waiting.deadline, id));
        waiting.deadline = deadline;
        self.deadlines.insert((deadline, id))
    }

    /// All that waits, by id.
    pub fn iter(&self) -> impl Iterator<Item = (EventId, &Waiting)> {
        self.waiting.iter().map(|(id, waiting)| (*id, waiting))
    }

    /// What waits under an id.
    #[must_use]
    pub fn get(&self, id: EventId) -> Option<&Waiting> {
        self.waiting.get(&id)
    }

    /// What an author has waiting that is not newer than `up_to`.
    #[must_use]
    pub fn of_author_until(&self, author: PublicKey, up_to: Timestamp) -> Vec<EventId> {
        let held = self.by_author.get(&author).into_iter().flat_map(|share| &share.ids);
        held.filter(|id| self.waiting.get(id).is_some_and(|waiting| waiting.created_at <= up_to)).copied().collect()
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// One whose time is over.
    #[must_use]
    pub fn overdue(&self, now: Moment) -> Option<EventId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, id)| *id)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

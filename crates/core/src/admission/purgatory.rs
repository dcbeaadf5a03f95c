//! What waits for git data, and until when.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits;
use crate::nostr::PublicKey;
use crate::nostr::event::EventId;
use crate::nostr::rejection::Refusal;
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
    /// When it came.
    pub since: Moment,
    /// When it gives up. On the monotonic clock, so that a step of the wall clock ends nothing.
    pub deadline: Moment,
    /// How the search for its git data stands.
    pub search: Search,
}

impl Waiting {
    /// Whether its time is over and it is kept only because it may still be found.
    #[must_use]
    pub fn is_dormant(&self) -> bool {
        self.search == Search::Dormant
    }

    /// The names of the repositories that it concerns.
    fn names(&self) -> BTreeSet<Identifier> {
        match &self.what {
            What::Announcement(repo) => BTreeSet::from([repo.identifier.clone()]),
            What::State(identifier) => BTreeSet::from([identifier.clone()]),
            What::PullRequest(_, sites) => sites.iter().map(|site| site.identifier().clone()).collect(),
        }
    }
}

/// How the search for an event's git data stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// It is looked for from then on; not everybody has been asked.
    From(Moment),
    /// It is looked for since then, and everybody has been asked once.
    Tried(Moment),
    /// Its time is over, nothing has replaced it, and it is looked for now and then.
    Dormant,
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
    by_name: BTreeMap<Identifier, BTreeSet<EventId>>,
    all: Sum,
}

/// What one author has waiting.
#[derive(Clone, Debug, Default)]
struct Share {
    ids: BTreeSet<EventId>,
    sum: Sum,
}

/// How much waits. What is dormant takes nobody's room.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    awake: usize,
    bytes: usize,
    dormant: usize,
}

impl Sum {
    fn add(&mut self, waiting: &Waiting) {
        if waiting.is_dormant() {
            self.dormant += 1;
        } else {
            self.awake += 1;
            self.bytes += waiting.bytes;
        }
    }

    fn take(&mut self, waiting: &Waiting) {
        if waiting.is_dormant() {
            self.dormant -= 1;
        } else {
            self.awake -= 1;
            self.bytes -= waiting.bytes;
        }
    }
}

impl Purgatory {
    /// Why there is no room for one more of this author and size, if there is none.
    #[must_use]
    pub fn room(&self, author: PublicKey, bytes: usize) -> Option<Refusal> {
        let crowded = |share: &Share| {
            share.sum.awake >= limits::MAX_HELD_PER_AUTHOR
                || share.sum.bytes + bytes > limits::MAX_HELD_BYTES_PER_AUTHOR
        };
        if self.by_author.get(&author).is_some_and(crowded) {
            return Some(Refusal::TooMuchHeld);
        }
        let full = self.all.awake >= limits::MAX_HELD || self.all.bytes + bytes > limits::MAX_HELD_BYTES;
        full.then_some(Refusal::PurgatoryFull)
    }

    /// Whether one more of this author may lie dormant.
    #[must_use]
    pub fn may_rest(&self, author: PublicKey) -> bool {
        let crowded = |share: &Share| share.sum.dormant >= limits::MAX_DORMANT_PER_AUTHOR;
        self.all.dormant < limits::MAX_DORMANT && !self.by_author.get(&author).is_some_and(crowded)
    }

    /// Takes one in.
    pub fn put(&mut self, id: EventId, waiting: Waiting) {
        self.take(id);
        self.deadlines.insert((waiting.deadline, id));
        let share = self.by_author.entry(waiting.author).or_default();
        share.ids.insert(id);
        share.sum.add(&waiting);
        self.all.add(&waiting);
        for name in waiting.names() {
            self.by_name.entry(name).or_default().insert(id);
        }
        self.waiting.insert(id, waiting);
    }

    /// Lets one go.
    pub fn take(&mut self, id: EventId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&id)?;
        self.deadlines.remove(&(waiting.deadline, id));
        self.all.take(&waiting);
        if let Some(share) = self.by_author.get_mut(&waiting.author) {
            share.ids.remove(&id);
            share.sum.take(&waiting);
            if share.ids.is_empty() {
                self.by_author.remove(&waiting.author);
            }
        }
        for name in waiting.names() {
            if let Some(ids) = self.by_name.get_mut(&name) {
                ids.remove(&id);
                if ids.is_empty() {
                    self.by_name.remove(&name);
                }
            }
        }
        Some(waiting)
    }

    /// Changes how the search for one stands, and until when it waits.
    pub fn search(&mut self, id: EventId, search: Search, deadline: Moment) {
        if let Some(waiting) = self.take(id) {
            self.put(id, Waiting { search, deadline, ..waiting });
        }
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

    /// What concerns repositories of a name, by id.
    pub fn of_name(&self, name: &Identifier) -> impl Iterator<Item = (EventId, &Waiting)> {
        let ids = self.by_name.get(name).into_iter().flatten();
        ids.filter_map(|id| Some((*id, self.waiting.get(id)?)))
    }

    /// The names of all repositories for which something waits.
    pub fn names(&self) -> impl Iterator<Item = &Identifier> {
        self.by_name.keys()
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

    /// How many of them lie dormant.
    #[must_use]
    pub fn dormant(&self) -> usize {
        self.all.dormant
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

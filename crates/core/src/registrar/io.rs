//! Everything the registrar can be told and can want. Variant names are the vocabulary of logs and metrics.

use std::sync::Arc;

use crate::nostr::event::{Coordinate, Event, EventId, Stamp};
use crate::nostr::{PublicKey, Signed, Verdict};
use crate::repo::catalog::Place;
use crate::repo::{Identifier, RepoId};
use crate::time::Timestamp;

/// What the registrar can be told.
#[derive(Clone, Debug)]
pub enum Input {
    /// At boot and after a failed commit: something that the store has. All of it comes before anything else.
    Restored(Restored),
    /// Somebody offers an event. Exactly one [`Output::Reply`] answers.
    Submitted(Submission),
    /// A served event's own time (NIP-40) is over.
    Expired(Summary),
    /// The git data that an event needs is here, complete, in a repository that may serve it.
    DataFound(DataFound),
}

/// Git data has come for an event. If the event is held, it is judged again from the beginning, because it may have
/// been deleted, superseded or have expired since the data was looked for. If it is a state that is served already, it
/// may release the announcement of one more repository that it speaks for.
#[derive(Clone, Debug)]
pub struct DataFound {
    /// The event, held or served.
    pub event: Arc<Signed>,
    /// The repository.
    pub repo: RepoId,
    /// What the store knew directly before.
    pub facts: Facts,
}

/// Something that survived in the store. Announcements and states are told served or held; of other events only the
/// held ones.
#[derive(Clone, Debug)]
pub enum Restored {
    /// A served announcement or state.
    Served(Arc<Signed>),
    /// A served announcement that is here by the maintainer exception.
    Exception(Arc<Signed>),
    /// A held event and when it was to expire.
    Held(Arc<Signed>, Timestamp),
}

/// An offered event.
#[derive(Clone, Debug)]
pub struct Submission {
    /// What the answer will carry.
    pub ticket: Ticket,
    /// The event; id and signature have been checked.
    pub event: Arc<Signed>,
    /// Who offers it.
    pub source: Source,
    /// What the store knew directly before, inside the transaction that will carry the consequences.
    pub facts: Facts,
}

/// Names one offer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Who offers an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    /// A connected client, with the keys it has shown to hold (NIP-42).
    Client(Vec<PublicKey>),
    /// A relay that we sync from, by URL.
    Relay(String),
}

/// What the store knows about an event before it is judged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Whether this very event is here.
    pub known: Option<Place>,
    /// Whether it was taken away for good.
    pub gone: Option<Gone>,
    /// The served version at its coordinate.
    pub current: Option<Stamp>,
    /// Whether something it references is served (`a`, `A`, `e`, `E`, `q`).
    pub anchored: bool,
    /// Whether something served names its id or coordinate. Not looked for if the event is anchored: one link is enough.
    pub named: bool,
    /// Whether its author has anything here, served or held.
    pub author_here: bool,
    /// Of a deletion request: those of its targets that are here.
    pub targets: Vec<Target>,
}

/// Which facts an event needs; the others stay at their defaults and cost nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Questions {
    /// `anchored` and `named`.
    pub links: bool,
    /// `author_here`.
    pub author: bool,
    /// `targets`.
    pub targets: bool,
}

/// Why an event cannot come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gone {
    /// Its author deleted it, by id or by coordinate.
    Deleted,
    /// Its author vanished.
    Vanished,
    /// A newer announcement withdrew the repository.
    Withdrawn,
}

/// A stored event, as far as decisions need it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Summary {
    /// Its id.
    pub id: EventId,
    /// Its author.
    pub author: PublicKey,
    /// Its kind.
    pub kind: u16,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its `d` tag, if it is a repository's announcement or state.
    pub identifier: Option<Identifier>,
}

impl Summary {
    /// The summary of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        use crate::nostr::kinds::{ANNOUNCEMENT, STATE};
        let identifier =
            if matches!(event.kind, ANNOUNCEMENT | STATE) { event.tag("d").and_then(Identifier::new) } else { None };
        Self { id: event.id, author: event.pubkey, kind: event.kind, created_at: event.created_at, identifier }
    }
}

/// A target of a deletion request that is here.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Target {
    /// What it is.
    pub event: Summary,
    /// Where it stands.
    pub place: Place,
}

/// What the registrar can want.
#[derive(Clone, Debug)]
pub enum Output {
    /// Change the store, inside the transaction in which the facts were read.
    Write(Write),
    /// Answer an offer, after the commit.
    Reply(Ticket, Verdict),
    /// Show an event to those who are listening, after the commit, and forget it.
    Pass(Arc<Signed>),
    /// Is the git data of a held event here already? Answered by [`Input::DataFound`], or not at all.
    Look(Look),
    /// What sync should follow under this name has changed. A bell: receivers merge repeated ones.
    Interest(Identifier),
    /// What the hunt should look for under this name has changed. A bell, like `Interest`.
    Quarry(Identifier),
}

/// A question to the git room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// The held event.
    pub event: EventId,
    /// In which repositories it may be satisfied.
    pub repos: Vec<RepoId>,
    /// The objects that must be there with everything they need.
    pub oids: Vec<String>,
}

/// A change of the store.
#[derive(Clone, Debug)]
pub enum Write {
    /// Serve an event. What stands at its coordinate goes.
    Put(Arc<Signed>),
    /// Remember of a served announcement that it is here by the maintainer exception, for as long as it is served.
    Except(EventId),
    /// Keep an event, unserved, at least until then.
    Hold(Arc<Signed>, Timestamp),
    /// Serve an event that was held. What stands at its coordinate goes.
    Release(EventId),
    /// Forget a held event.
    Unhold(EventId),
    /// Stop serving an event and forget it.
    Remove(EventId),
    /// Remember that something must not come back.
    Bury(Tombstone),
}

/// What must not come back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tombstone {
    /// An event that its author deleted. Whoever else signs under that id is not meant.
    Event(PublicKey, EventId),
    /// Versions at a coordinate up to a time.
    Coordinate(Coordinate, Timestamp),
    /// Everything of an author up to a time, except its requests to vanish. What is stored goes too, and gift wraps
    /// addressed to it.
    Author(PublicKey, Timestamp),
    /// Announcements of a repository that lose against this version.
    Withdrawn(RepoId, Stamp),
}

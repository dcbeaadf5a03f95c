//! Everything the registrar can be told and can want. Variant names are the vocabulary of logs and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::git_job::{Order, OrderId, Outcome, Parcel};
use super::policy::Rules;
use super::push::{Command, Permit, PushRefusal};
use crate::disk_budget::{Mark, Weight};
use crate::fetch::io::FetchId;
use crate::nostr::event::{Coordinate, Event, EventId, Stamp};
use crate::nostr::{PublicKey, Signed, Verdict};
use crate::repo::catalog::Place;
use crate::repo::pull_request::PullRequest;
use crate::repo::{Identifier, RepoId, Site};
use crate::time::Timestamp;

/// What the registrar can be told.
#[derive(Clone, Debug)]
pub enum Input {
    /// At boot and after a failed commit: something that the store has. All of it comes before anything else.
    Restored(Restored),
    /// That was all that the store has: what was left undone may go on.
    Ready,
    /// The operator has other rules. They differ in what is wanted, not in what this service is.
    Rules(Arc<Rules>),
    /// A served event that is unwanted, or whose author is, or that is about nothing but banned repositories: told of all
    /// there are at the beginning and after [`Input::Rules`], in slices ([`Sweep`](super::moderation::Sweep)).
    Unwanted(Summary),
    /// Nothing is left that would have to go with a banned repository.
    Swept(RepoId),
    /// Somebody offers an event. Exactly one [`Output::Reply`] answers.
    Submitted(Submission),
    /// A served event's own time (NIP-40) is over.
    Expired(Summary),
    /// A served pull request has gone with its author, who vanished.
    Purged(Summary),
    /// Somebody wants to push; only the commands have been read. Exactly one [`Output::Permit`] answers, and
    /// [`Input::PushEnded`] follows in the end, whatever happens.
    PushAsked(Push),
    /// The packs of a permitted push are here and have been checked. Exactly one [`Output::PushDone`] answers.
    PushArrived(Arrival),
    /// A push is over; whatever it kept from expiring may expire.
    PushEnded(PushId),
    /// The answer to [`Output::Ask`].
    Told(Told),
    /// The git room has done what it could about an order.
    Ordered(OrderId, Outcome),
    /// Objects have come to the pools of this name by another way than a push.
    DataCame(Identifier),
    /// How full the disk budget is.
    Space(Mark),
    /// The hunt has begun to fetch what these events need: they do not expire before it is over.
    FetchBegan(FetchId, Vec<EventId>),
    /// A fetch has brought objects that are sought. [`Output::Adopted`] answers when the pack is not needed any more.
    FetchArrived(Haul),
    /// A fetch is over.
    FetchEnded(FetchId),
    /// The hunt has asked everybody once for what these events need: they may expire when their time is over.
    Tried(Vec<EventId>),
    /// The operator wants a held event gone. It may be offered again.
    Dropped(EventId),
}

/// A pack that the hunt has brought: sound, and with everything that the sought objects in it need.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Haul {
    /// Where it should go.
    pub site: Site,
    /// The fetch that brought it.
    pub fetch: FetchId,
    /// The pack.
    pub parcel: Parcel,
}

/// Names one push for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PushId(pub u64);

/// A wish to push.
#[derive(Clone, Debug)]
pub struct Push {
    /// What the answer will carry.
    pub id: PushId,
    /// Where to.
    pub site: Site,
    /// What should change.
    pub commands: Vec<Command>,
    /// The network it comes from, for budgets; `None` has none.
    pub network: Option<String>,
}

/// A push whose objects are here, complete and connected, in folders of their own.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The push, as it was asked.
    pub push: Push,
    /// The objects that signed refs need, if they needed any.
    pub parcel: Option<Parcel>,
    /// The objects of pull requests whose event was not known when the push was permitted.
    pub uploads: Vec<Delivery>,
    /// The sites whose pools were read, beside the site's own, when it was checked that nothing is missing.
    pub lenders: Vec<Site>,
    /// How many prunings there had been when that check began; `None` if there was none.
    pub checked: Option<u64>,
    /// Bytes of the parcel.
    pub bytes: u64,
}

/// The objects of one pull request that nobody has signed yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The event that is to come.
    pub event: EventId,
    /// Its commit.
    pub tip: String,
    /// Its objects.
    pub parcel: Parcel,
    /// Bytes on disk.
    pub bytes: u64,
}

/// What the store and the refs say, read inside the transaction that will carry the consequences.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Whether the refs could not be read: then there are none here, and nothing may be concluded from it.
    pub failed: bool,
    /// Whether the site has a folder: it has had git data.
    pub exists: bool,
    /// All refs of the site, by name.
    pub refs: BTreeMap<String, String>,
    /// Those pull requests that have a ref at the site and whose event is not here (any more).
    pub strays: Vec<EventId>,
    /// What its git data weighs, if that was asked for.
    pub weight: Weight,
    /// Those of the events that were asked for that are here.
    pub events: BTreeMap<EventId, Found>,
}

/// An event that is here.
#[derive(Clone, Debug)]
pub struct Found {
    /// The event.
    pub event: Arc<Signed>,
    /// Where it stands.
    pub place: Place,
    /// What is known about it.
    pub facts: Facts,
}

/// Something that survived in the store. Announcements and states are told served or held; of other events only the
/// held ones. Work and uploads come after all events.
#[derive(Clone, Debug)]
pub enum Restored {
    /// A served announcement or state.
    Served(Arc<Signed>),
    /// A served announcement that is here by the maintainer exception.
    Exception(Arc<Signed>),
    /// A held event and when it was to expire.
    Held(Arc<Signed>, Timestamp),
    /// A site that must be worked on.
    Todo(Todo),
    /// An upload that waits for its event.
    Staged(Upload),
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
    /// The repositories it is offered to, if it is a pull request.
    pub targets: Vec<RepoId>,
    /// The commit that it offers, if it is a pull request.
    pub tip: Option<String>,
}

impl Summary {
    /// The summary of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        use crate::nostr::kinds::{ANNOUNCEMENT, STATE};
        let identifier =
            if matches!(event.kind, ANNOUNCEMENT | STATE) { event.tag("d").and_then(Identifier::new) } else { None };
        let (targets, tip) = Self::offer(event);
        let Event { id, pubkey: author, kind, created_at, .. } = *event;
        Self { id, author, kind, created_at, identifier, targets, tip }
    }

    /// What a pull request offers: to which repositories, which commit. Nothing if it is none or cannot be read.
    #[must_use]
    pub fn offer(event: &Event) -> (Vec<RepoId>, Option<String>) {
        PullRequest::read_if(event).map(|request| (request.targets, Some(request.tip))).unwrap_or_default()
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
    /// Tell me this, now, from inside the open transaction. Answered by [`Input::Told`] before anything else.
    Ask(Question),
    /// Answer a wish to push, after the commit.
    Permit(PushId, Result<Permit, PushRefusal>),
    /// Answer a push that arrived, after the commit. Whatever is left of its parcels may go.
    PushDone(PushId, Result<(), PushRefusal>),
    /// Work for the git room, after the commit. Exactly one [`Input::Ordered`] answers.
    Order(Order),
    /// A pack of the hunt has been taken over or is not needed. After the commit.
    Adopted(FetchId),
    /// Throw away a parcel, after the commit.
    Discard(Parcel),
    /// Whether this repository is hosted, or whose objects it may read, may have changed. A bell, to be heard after the
    /// commit.
    Hosting(RepoId),
    /// What sync should follow under this name has changed ([`Registrar::followed`](super::Registrar::followed)). A bell:
    /// receivers merge repeated ones.
    Interest(Identifier),
    /// What the hunt should look for under this name has changed ([`Registrar::quarries`](super::Registrar::quarries)). A
    /// bell, like `Interest`.
    Quarry(Identifier),
}

/// A question to the store and the refs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Whose refs.
    pub site: Site,
    /// Events, served or held.
    pub events: Vec<EventId>,
    /// Whether refs of pull requests that are not here are looked for.
    pub strays: bool,
    /// Whether the site and the others of its owner are weighed.
    pub weigh: bool,
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
    /// Let a held event wait until then.
    Extend(EventId, Timestamp),
    /// Serve an event that was held. What stands at its coordinate goes.
    Release(EventId),
    /// Forget a held event.
    Unhold(EventId),
    /// Stop serving an event and forget it.
    Remove(EventId),
    /// Remember that something must not come back.
    Bury(Tombstone),
    /// Remember that a site must be worked on.
    Todo(Todo),
    /// That work is done, or has become needless.
    Done(Todo),
    /// Remember an upload that waits for its event. One for the same event at the same site is replaced.
    Stage(Upload),
    /// Forget an upload.
    Unstage(Site, EventId),
}

/// A note that a site must be worked on. What exactly is found out when its turn comes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Todo {
    /// Where.
    pub site: Site,
    /// The pull request whose ref should come there; `None` stands for everything else.
    pub pull: Option<EventId>,
}

/// An upload to `refs/nostr/<event>` that nobody has signed yet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Upload {
    /// Where it was pushed to.
    pub site: Site,
    /// The event that is to come.
    pub event: EventId,
    /// The commit that was pushed.
    pub tip: String,
    /// The number of its folder among the staged ones.
    pub parcel: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// The network it came from, for budgets.
    pub network: Option<String>,
    /// When it gives up.
    pub deadline: Timestamp,
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

//! Work for the git room. An order is durable steps in a fixed order; a crash between any two of them is repaired by
//! ordering again, because what an order asks for is a condition, not a change.

use crate::nostr::event::EventId;
use crate::repo::Site;

/// Names one order for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OrderId(pub u64);

/// Work on one site. At most one order per repository name is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// What the result will carry.
    pub id: OrderId,
    /// Where.
    pub site: Site,
    /// What.
    pub work: Work,
}

/// What to do at a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Bring objects and refs into line with what has been signed.
    Align(Align),
    /// Put uploads that nobody has signed yet aside, each `incoming/<from>` to `staged/<to>`, durably.
    Stage(Vec<(Parcel, Parcel)>),
    /// The site is hosted no more: everybody who reads its pool first copies out what its own refs need, then the folder
    /// goes.
    Retire {
        /// The sites that may read its pool, each with the pools that it may read from now on.
        readers: Vec<(Site, Vec<Site>)>,
    },
}

/// How a site should be. Steps in the order of the fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Align {
    /// Received and checked packs that move into the site's own pool.
    pub adopt: Vec<Parcel>,
    /// When it was checked that everything that candidates and pull requests need is in the adopted packs and the
    /// readable pools: the number of prunings before it. Nothing was taken away since if that number is the same.
    pub checked: Option<u64>,
    /// The sites whose pools this one may read beside its own. A pool that it may read no longer is copied from first.
    pub lenders: Vec<Site>,
    /// States, the best first. The first of them whose objects are readable here, with everything that they need, becomes
    /// the branches, the tags and HEAD; branches and tags that it does not declare go.
    pub candidates: Vec<Candidate>,
    /// What becomes of branches and tags if no candidate is complete.
    pub otherwise: Otherwise,
    /// Pull requests that should have their ref here.
    pub pulls: Vec<Pull>,
    /// Events whose `refs/nostr/<id>` should not be here.
    pub drop_pulls: Vec<EventId>,
}

/// A received pack that has not become part of a pool: the name of its folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Parcel {
    /// `incoming/<n>`: it belongs to a push that is under way and does not outlive the process.
    Incoming(u64),
    /// `staged/<n>`: it waits for its event and has a row in the store.
    Staged(u64),
}

/// A state that a repository may be brought into line with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The state.
    pub event: EventId,
    /// Branches and tags, by name, with their object ids.
    pub refs: Vec<(String, String)>,
    /// Where HEAD should point; `None` leaves it where it is.
    pub head: Option<String>,
    /// Sites from whose pools its objects may be copied if they are not readable here: its author speaks for them too.
    pub sources: Vec<Site>,
}

/// What becomes of branches and tags if no candidate is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Otherwise {
    /// They stay until the data of a candidate is here.
    #[default]
    Keep,
    /// They go: nothing that is signed declares them.
    Clear,
}

/// A pull request that should have its ref at a site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pull {
    /// The event.
    pub event: EventId,
    /// Its commit.
    pub tip: String,
    /// Sites from whose pools the commit may be copied if it is not readable here.
    pub sources: Vec<Site>,
}

/// What came of an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The site is as it should be, as far as its objects allow.
    Aligned(Aligned),
    /// The uploads are aside.
    Staged,
    /// The site is gone.
    Retired,
    /// Nothing that is served was changed; the same may be ordered again. The text is for a person.
    Failed(String),
}

/// How a site came to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Aligned {
    /// The candidate that branches and tags follow now.
    pub chosen: Option<EventId>,
    /// Those of the ordered pull requests that have their ref here now.
    pub pulls: Vec<EventId>,
    /// Whether there are any refs left at the site.
    pub empty: bool,
}

//! Everything the hunt can be told and can want. Variant names are the vocabulary of logs and metrics.
//!
//! The hands keep four promises: every [`Output::Fetch`] is answered by exactly one [`Input::Fetched`], every
//! [`Output::Survey`] by exactly one [`Input::Surveyed`], every [`Output::Look`] by exactly one [`Input::Looked`], and what a fetch has brought is in the registrar's hands before
//! the hunt hears of it, so that [`Input::Wanted`] never asks again for what is already here.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::origin::Origin;
use crate::net::{Forbidden, Target};
use crate::nostr::event::EventId;
use crate::repo::{Identifier, Site};
use crate::sync::relay_limits::GitTerms;
use crate::time::{Moment, Timestamp};

/// What the hunt can be told.
#[derive(Clone, Debug)]
pub enum Input {
    /// At boot: what is known of a git server from an earlier life. All of it comes before anything else.
    Restored(HostRow),
    /// What is missing under this name, now and in whole: it replaces what was wanted before. Nothing, if nothing is
    /// missing any more.
    Wanted(Identifier, Vec<Quarry>),
    /// The answer to [`Output::Survey`].
    Surveyed(Origin, Survey),
    /// The first bytes of a pack, or of a list of refs, have come.
    Answering(FetchId),
    /// A fetch is over, whatever came of it.
    Fetched(FetchId, Catch),
    /// The operator does not want to wait: everything that is missing at this site is looked for at once.
    Hurry(Site),
    /// What is served under this name, now and in whole; nothing if nothing is any more.
    Kept(Identifier, Vec<Kept>),
    /// The branches or tags of a repository have changed. What is served comes before it.
    Moved(Site),
    /// A look is over: how the server's refs compare with those that are served, or why there are none.
    Looked(LookId, Result<Shown, End>),
}

/// A repository that is served, and the git servers that should have it and whose relays cannot speak for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The repository.
    pub site: Site,
    /// The URLs, as its announcement writes them, this service not among them.
    pub places: Vec<String>,
}

/// Names a place that is looked at for the life of the process. It is looked at once at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LookId(pub u64);

/// How a server's refs compare with the branches and tags that are served. What it has beside them does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Branches and tags that are served.
    pub of: usize,
    /// Those that it does not have, or has elsewhere.
    pub lacks: usize,
    /// Of these, the ones that it has elsewhere.
    pub differs: usize,
}

/// What is missing at one site. Repositories that share their objects share one quarry, so that nobody is asked for the
/// same once for each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarry {
    /// Where what is found should go.
    pub site: Site,
    /// The events that wait for it.
    pub needs: Vec<Need>,
}

/// An event that waits for git data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// The event.
    pub event: EventId,
    /// What it is.
    pub what: Sought,
    /// The objects that it names. Some may be here.
    pub oids: Vec<String>,
    /// Where they may be, as events name it, this service not among them. Likely ones first.
    pub places: Vec<Place>,
    /// Not before: somebody may be about to push, or more of the kind may be about to come.
    pub due: Moment,
    /// Its time is over, and nothing has replaced it: it is looked for once an hour, after everything else.
    pub dormant: bool,
}

/// What is sought.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Sought {
    /// The branches and tags of a state.
    State,
    /// The commit of a pull request, which other GRASP servers have as `refs/nostr/<event>`.
    Pull,
}

/// A place where git data may be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The URL, as an event writes it.
    pub url: String,
    /// Whether it looks like a GRASP server's: those have any object by its id.
    pub grasp: bool,
}

/// Names one fetch for the life of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FetchId(pub u64);

/// Where a server is and what it allows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Survey {
    /// It may be called.
    Known {
        /// All addresses of it.
        addresses: Vec<IpAddr>,
        /// What its NIP-11 document says about git, if that was asked for and said.
        terms: Option<GitTerms>,
    },
    /// Its name leads nowhere.
    Nowhere,
    /// It leads to where nobody is called on a stranger's word.
    Forbidden(Forbidden),
}

/// What came of a fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Catch {
    /// Those of the wanted objects that are here now with everything they need, whatever else happened. Those that were
    /// here before count.
    pub oids: Vec<String>,
    /// How it ended.
    pub end: End,
}

/// How a fetch ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The server has sent what it was asked for.
    Sent,
    /// It lacks one of the objects, or gives objects only by ref: ask for refs.
    NotByOid,
    /// It has no such repository, or does not show it to us.
    Absent,
    /// Too many requests. How many seconds to wait, if it says so.
    Busy(Option<u64>),
    /// No connection, an error of its own (5xx), or silence.
    Failed,
    /// What it sent is not sound or larger than is taken: it is not asked for this again soon.
    Unsound,
    /// It was [cancelled](Output::Cancel).
    Cancelled,
    /// The trouble is ours: no disk space, no git. Nobody is to blame.
    Ours,
}

/// What the hunt can want.
#[derive(Clone, Debug)]
pub enum Output {
    /// Find out where a server is, and what its NIP-11 document says about git if `terms`.
    Survey {
        /// The server.
        origin: Origin,
        /// Whether it may be a GRASP server, which states what it allows.
        terms: bool,
    },
    /// Fetch objects: one request to one server.
    Fetch(Fetch),
    /// End a fetch: somebody else was faster, or nobody needs it any more. It may have ended just now.
    Cancel(FetchId),
    /// Every place of these events has been asked once: they may expire when their time is over.
    Tried(Vec<EventId>),
    /// Keep what is known of a git server. It is kept before what comes after it is done: it counts requests ahead.
    Remember(HostRow),
    /// Nothing about that server is worth keeping any more.
    Forget(String),
    /// A place is not called, for a person to know. Said once for each URL of a quarry.
    Shun(Site, String, Forbidden),
    /// Ask a server for its refs and compare them with those that are served: one look.
    Look(Look),
}

/// A question for a git server's refs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// What the answer will carry.
    pub id: LookId,
    /// The repository.
    pub site: Site,
    /// Whom to ask.
    pub target: Target,
}

/// A request to a git server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// What the answer will carry.
    pub id: FetchId,
    /// Where what comes should go.
    pub site: Site,
    /// Whom to ask.
    pub target: Target,
    /// How.
    pub form: Form,
    /// The objects that are sought. Never empty.
    pub oids: Vec<String>,
    /// The events that need them, for their refs at other GRASP servers and so that they do not expire meanwhile.
    pub events: Vec<(EventId, Sought)>,
}

/// How a server is asked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Form {
    /// For exactly these objects: one request, all or nothing.
    Oids,
    /// For its branches, its tags and the refs of the wanted pull requests: what it has of them comes.
    Refs,
}

/// What is kept of a git server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostRow {
    /// The host, and the port if it is not the usual one.
    pub authority: String,
    /// When it was asked within the last minute: a restart does not make us ask more.
    pub asked: Vec<Timestamp>,
    /// Nothing is asked before.
    pub quiet_until: Timestamp,
    /// How many fetches brought something that was sought, halved now and then.
    pub hits: u32,
    /// How many brought nothing.
    pub misses: u32,
}

//! What a life begins with.

use grasp_core::fetch::Limits;
use grasp_core::sync::relay_limits::GitTerms;

use crate::sync::queue::Time;

/// What a git server is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temper {
    /// It answers.
    Honest,
    /// It knows of no repository.
    Absent,
    /// It takes the connection and says nothing.
    Hangs,
    /// It sends everything, very slowly.
    Trickles,
    /// It sends what is not sound.
    Wrong,
    /// There are always too many requests, and perhaps it says for how many seconds.
    Busy(Option<u64>),
    /// The same for every other request.
    Overloaded(Option<u64>),
    /// Its name leads nowhere.
    Nowhere,
    /// Its name leads to where nobody is called.
    Private,
    /// It answers with errors of its own.
    Broken,
}

/// A git server, under one name.
#[derive(Clone, Debug)]
pub struct ServerCast {
    /// Its name, with a port if that is not the usual one.
    pub authority: String,
    /// The machine behind it. Several names may lead to one.
    pub machine: u8,
    /// Whether its URLs look like a GRASP server's.
    pub grasp: bool,
    /// Whether it gives objects by their ids.
    pub by_oid: bool,
    /// What it states about git.
    pub terms: Option<GitTerms>,
    /// What it is like at first.
    pub temper: Temper,
    /// What it is like later.
    pub moods: Vec<(Time, Temper)>,
}

/// A place where a repository may be.
#[derive(Clone, Debug)]
pub struct UrlCast {
    /// Which server.
    pub server: usize,
    /// Its URL.
    pub url: String,
}

/// A repository of ours.
#[derive(Clone, Debug)]
pub struct RepoCast {
    /// Whose.
    pub owner: u8,
    /// Its name. Repositories of several owners may share one.
    pub name: String,
}

/// An event that waits for git data.
#[derive(Clone, Debug)]
pub struct EventCast {
    /// For which repository.
    pub repo: usize,
    /// When it comes.
    pub at: Time,
    /// Whether a client sends it, who may be about to push.
    pub client: bool,
    /// Its objects.
    pub oids: Vec<String>,
    /// Where they may be.
    pub urls: Vec<usize>,
    /// Where they are, and since when: the place, the object, the time.
    pub held: Vec<(usize, usize, Time)>,
    /// Whether it replaces the event of its repository before it.
    pub replaces: bool,
    /// When its objects are pushed to us, if they are.
    pub pushed: Option<Time>,
    /// When it is seen again.
    pub seen: Vec<Time>,
}

/// Everything that a life begins with.
#[derive(Clone, Debug)]
pub struct Cast {
    /// What may be asked of any host.
    pub usual: Limits,
    /// What the operator has chosen for some.
    pub chosen: Vec<(String, Limits)>,
    /// The servers.
    pub servers: Vec<ServerCast>,
    /// The places.
    pub urls: Vec<UrlCast>,
    /// The repositories.
    pub repos: Vec<RepoCast>,
    /// The events.
    pub events: Vec<EventCast>,
    /// When this server stops, and for how long.
    pub restarts: Vec<(Time, Time)>,
    /// Whether our own disk is full now and then.
    pub troubled: bool,
}

//! Fixtures: the servers, repositories and events of a simulated world.

use grasp_core::fetch::HostLimits;
use grasp_core::nostr::nip11::GitFetchLimits;

use crate::simulation::queue::Time;

/// How a git server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerBehavior {
    /// It answers correctly.
    Normal,
    /// It has no repositories.
    Absent,
    /// It accepts connections and sends nothing.
    Silent,
    /// It sends everything, very slowly.
    Slow,
    /// It sends invalid data.
    InvalidData,
    /// It always answers that there are too many requests, with or without `Retry-After` in seconds.
    Busy(Option<u64>),
    /// The same for every other request.
    Overloaded(Option<u64>),
    /// Its name does not resolve.
    NoAddress,
    /// Its name resolves to a private address.
    PrivateAddress,
    /// It answers with server errors.
    ServerError,
}

/// A git server with one host name.
#[derive(Clone, Debug)]
pub struct ServerFixture {
    /// Its host name, with the port if it is not the default.
    pub authority: String,
    /// The network of the server. Several names may be in one network.
    pub network: u8,
    /// Whether its URLs look like those of a GRASP server.
    pub is_grasp: bool,
    /// Whether it serves objects by id.
    pub serves_by_oid: bool,
    /// The limits that it states.
    pub stated_limits: Option<GitFetchLimits>,
    /// Its behaviour at first.
    pub behavior: ServerBehavior,
    /// Changes of its behaviour.
    pub later_behaviors: Vec<(Time, ServerBehavior)>,
}

/// A URL at which a repository may be.
#[derive(Clone, Debug)]
pub struct UrlFixture {
    /// Index of the server.
    pub server: usize,
    /// The URL.
    pub url: String,
}

/// A hosted repository.
#[derive(Clone, Debug)]
pub struct RepoFixture {
    /// Its owner.
    pub owner: u8,
    /// Its identifier. Repositories of several owners may share one.
    pub name: String,
}

/// An event that needs git data.
#[derive(Clone, Debug)]
pub struct EventFixture {
    /// Index of its repository.
    pub repo: usize,
    /// When it arrives.
    pub at: Time,
    /// Whether a client publishes it, so that a push is expected.
    pub is_from_client: bool,
    /// Its objects.
    pub oids: Vec<String>,
    /// Indexes of the URLs that it lists.
    pub urls: Vec<usize>,
    /// Which objects are at which listed URL, and since when: (URL, object, time).
    pub stored_at: Vec<(usize, usize, Time)>,
    /// Whether it replaces the earlier events of its repository.
    pub is_replacement: bool,
    /// When its objects are pushed, if they are.
    pub pushed: Option<Time>,
    /// When it arrives again.
    pub seen_again: Vec<Time>,
}

/// The initial state of a simulated world.
#[derive(Clone, Debug)]
pub struct WorldFixture {
    /// Limits of any host.
    pub default_limits: HostLimits,
    /// Whether the operator set the limits of any host. No server may raise them then.
    pub has_operator_limits: bool,
    /// Limits that the operator set for single hosts.
    pub host_limits: Vec<(String, HostLimits)>,
    /// The servers.
    pub servers: Vec<ServerFixture>,
    /// The URLs.
    pub urls: Vec<UrlFixture>,
    /// The repositories.
    pub repos: Vec<RepoFixture>,
    /// The events.
    pub events: Vec<EventFixture>,
    /// When this server stops, and for how long.
    pub restarts: Vec<(Time, Time)>,
    /// Whether local errors happen from time to time.
    pub has_local_errors: bool,
}

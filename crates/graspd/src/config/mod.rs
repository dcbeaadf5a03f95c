//! Settings: what an operator can decide, where it can be written, and what holds.
//!
//! - [`settings`]: the table in which every setting is declared, once; [`foreign`]: names that are none.
//! - [`cli`], [`dotenv`], [`mod@file`], [`sources`]: what was written where.
//! - [`parse`], [`cidr`], [`lists`], [`resolve`]: what it means, or everything that is wrong with it.
//! - [`mod@show`], [`suggest`], [`problem`]: telling people.
//! - [`owner`]: the key of the relay's operator.
//!
//! To add a setting: a row in [`settings::SETTINGS`], a field in [`Config`] and the line in [`resolve`] that fills it.

mod cidr;
mod cli;
mod dotenv;
mod file;
mod lists;
mod operator_key;
mod parse;
mod problem;
mod resolve;
mod settings;
mod show;
mod sources;
mod suggest;
mod unknown_variables;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ArgMatches;
use grasp_core::admission::policy::lists::Lists;
use grasp_core::disk_budget::Quotas;
use grasp_core::fetch::Limits;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_git::receive::PackLimits;

use crate::metrics::Scales;
use crate::monitor::disk_budget::Allowance;

pub(crate) use cidr::Cidr;
pub(crate) use cli::{SETTINGS_HEADING, command, quietly};
pub(crate) use lists::relays_of;
pub(crate) use operator_key::owner_keys;
pub(crate) use problem::{ConfigErrors, Origin};
pub(crate) use show::{reference, show};
use sources::{Outside, Sources};
pub(crate) use suggest::nearest_of;

/// The file in the relay's data folder that keeps a generated owner key.
pub(crate) const OWNER_FILE: &str = ".relay-owner.nsec";

/// The socket in the relay's data folder at which commands reach the server.
const ADMIN_SOCKET_FILE: &str = "admin.sock";

/// What holds: every setting, understood and checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The public host with an optional port, in lower case.
    pub(crate) domain: String,
    /// Empty, or `/…` without a slash at the end.
    pub(crate) base_path: String,
    /// Where to listen.
    pub(crate) bind: SocketAddr,
    /// The proxies that may say whom they speak for.
    pub(crate) trusted_proxies: Vec<Cidr>,
    /// The relay's name in NIP-11.
    pub(crate) relay_name: String,
    /// The relay's description in NIP-11.
    pub(crate) relay_description: String,
    /// The operator's key, when it was set; see [`owner_keys`].
    pub(crate) owner_secret: Option<Secret>,
    /// Which events are accepted.
    pub(crate) policy: Policy,
    /// The folder of the repositories, absolute.
    pub(crate) git_data_path: PathBuf,
    /// The folder of the event database, absolute.
    pub(crate) relay_data_path: PathBuf,
    /// Free disk space below which nothing new is stored.
    pub(crate) store_reserve_bytes: u64,
    /// What may be used of the disk.
    pub(crate) disk: Allowance,
    /// What one key and one repository may take.
    pub(crate) quotas: Quotas,
    /// How long an event waits for its git data.
    pub(crate) purgatory_expiry: Duration,
    /// Connections at the same time, in all.
    pub(crate) max_connections: usize,
    /// Subscriptions of one connection.
    pub(crate) max_subscriptions: usize,
    /// Negentropy sessions of one connection.
    pub(crate) max_neg_sessions: usize,
    /// Size of an event, but for states, which may have 1 MiB.
    pub(crate) max_event_bytes: usize,
    /// Stored events returned for one filter.
    pub(crate) filter_limit: usize,
    /// Connections at the same time from one network; zero means unlimited.
    pub(crate) network_max_connections: usize,
    /// Events per minute from one network; zero means unlimited.
    pub(crate) network_events_per_minute: u64,
    /// What the git room may use.
    pub(crate) git: GitSettings,
    /// How other relays are followed.
    pub(crate) sync: SyncSettings,
    /// Whether listed maintainers must list back.
    pub(crate) strict_maintainers: bool,
    /// Whether `/prs/` is open (GRASP-06).
    pub(crate) submissions: bool,
    /// What the operator wants and does not want, by name.
    pub(crate) lists: Arc<Lists>,
    /// How long running requests may take when the service stops.
    pub(crate) shutdown_grace: Duration,
    /// Who can read measurements, and where.
    pub(crate) metrics: MetricsSettings,
    /// Where the status page is.
    pub(crate) status: StatusAt,
    /// Where commands reach the server, if anywhere.
    pub(crate) admin_socket: Option<PathBuf>,
    /// A level, or `level,part=level,…`, as the log library reads it.
    pub(crate) log_level: String,
    /// Every setting as text, in the order of the table, with where it came from. Secrets are already hidden.
    pub(crate) effective: Vec<Effective>,
}

/// What the git room may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GitSettings {
    /// Bytes of one push.
    pub(crate) max_push_bytes: u64,
    /// Bytes of one push whose event is not here yet.
    pub(crate) max_unsigned_push_bytes: u64,
    /// Objects of one push.
    pub(crate) max_objects: u64,
    /// Bytes of one object.
    pub(crate) max_object_bytes: u64,
    /// Address space of one process.
    pub(crate) process_memory_bytes: u64,
    /// Processes that serve at once.
    pub(crate) serve_processes: usize,
    /// Processes that check pushes at once.
    pub(crate) check_processes: usize,
    /// How long one process may take.
    pub(crate) process_patience: Duration,
    /// Disk space for answers that may be asked for again.
    pub(crate) pack_cache_bytes: u64,
    /// Whether repositories are repacked in the background.
    pub(crate) maintenance: bool,
    /// What other GRASP servers are told that they may ask for.
    pub(crate) peers: Limits,
}

impl GitSettings {
    /// What one pack may be.
    pub(crate) fn pack_limits(&self) -> PackLimits {
        PackLimits {
            max_bytes: self.max_push_bytes,
            max_objects: u32::try_from(self.max_objects).unwrap_or(u32::MAX),
            check_secs: self.process_patience.as_secs(),
        }
    }
}

/// Who can read measurements, and where.
#[derive(Debug, Clone)]
pub(crate) struct MetricsSettings {
    /// Whether anybody can.
    pub(crate) enabled: bool,
    /// Where, if not at the main port.
    pub(crate) bind: Option<SocketAddr>,
    /// What has to be shown.
    pub(crate) token: Option<Secret>,
    /// What is measured how far.
    pub(crate) scales: Scales,
}

/// Where the status page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusAt {
    /// At the main port, and at the one for measurements.
    Everywhere,
    /// At the port for measurements only.
    Private,
    /// Nowhere.
    Nowhere,
}

/// How other relays are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncSettings {
    /// Whether they are.
    pub(crate) enabled: bool,
    /// Relays that are followed whoever names them.
    pub(crate) bootstrap: Vec<RelayUrl>,
    /// How long interest is gathered.
    pub(crate) window: Duration,
    /// The first wait after a failure, and how long a connection may take to come about.
    pub(crate) base_backoff: Duration,
    /// The longest wait after failures.
    pub(crate) max_backoff: Duration,
    /// Whether sets are compared where a relay can.
    pub(crate) negentropy: bool,
    /// Values of one filter.
    pub(crate) values_per_filter: usize,
    /// How often one git server is asked for missing data.
    pub(crate) git: Limits,
    /// The same for single ones, by host name.
    pub(crate) git_hosts: BTreeMap<String, Limits>,
    /// Whether private and local addresses may be dialled.
    pub(crate) reach_anything: bool,
    /// How long refused events are kept whole.
    pub(crate) rejected_hot: Duration,
    /// How long it is remembered that they were refused.
    pub(crate) rejected_cold: Duration,
}

/// Which events are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Repositories that list this service, and what belongs to them.
    Grasp,
    /// Every valid event.
    Open,
}

/// A value that must not reach a log, a message or a screen.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    fn new(text: &str) -> Self {
        Secret(text.to_owned())
    }

    #[cfg(test)]
    pub(crate) fn for_tests(text: &str) -> Self {
        Self::new(text)
    }

    /// The value itself. Whoever calls this takes care of where it goes.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// One setting as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Effective {
    /// The setting's name, such as `BIND_ADDRESS`.
    pub(crate) name: &'static str,
    /// What holds, as text.
    pub(crate) value: String,
    /// Who said so.
    pub(crate) origin: Origin,
}

/// Settings that can be used, and what is still odd about them.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What holds.
    pub(crate) config: Config,
    /// One sentence each, for the log or for standard error.
    pub(crate) warnings: Vec<String>,
}

/// Reads the settings of this process: its arguments, its environment and the files in its current folder.
pub(crate) fn load(matches: &ArgMatches) -> Result<Loaded, ConfigErrors> {
    resolve::resolve(&gather(matches))
}

/// Where commands reach the server that has the settings of this process; nothing if nowhere.
pub(crate) fn admin_socket(matches: &ArgMatches) -> Result<Option<PathBuf>, ConfigErrors> {
    resolve::admin_socket(&gather(matches))
}

fn gather(matches: &ArgMatches) -> Sources {
    let outside = Outside {
        variables: std::env::vars_os().collect(),
        // Without a current folder, relative paths stay relative and fail where they are used, with their name.
        current_dir: std::env::current_dir().unwrap_or_default(),
        read: &|path| std::fs::read_to_string(path),
    };
    Sources::gather(cli::flags(matches), outside)
}

impl Config {
    /// Takes notice of the address that the listener really got, which differs when port 0 was asked for. Whatever is
    /// named after the bind address follows.
    pub(crate) fn bound_to(&mut self, address: SocketAddr) {
        self.bind = address;
        if self.origin("DOMAIN") == &Origin::Default {
            self.domain = address.to_string();
            self.restate("DOMAIN", self.domain.clone());
        }
        if self.origin("RELAY_NAME") == &Origin::Default {
            self.relay_name = resolve::default_relay_name(&self.domain);
            self.restate("RELAY_NAME", self.relay_name.clone());
        }
    }

    /// Whether clients reach this service through TLS.
    fn is_public(&self) -> bool {
        is_public(&self.domain)
    }

    /// How people reach pages and repositories.
    pub(crate) fn web_scheme(&self) -> &'static str {
        if self.is_public() { "https" } else { "http" }
    }

    /// How people reach the relay.
    pub(crate) fn relay_scheme(&self) -> &'static str {
        if self.is_public() { "wss" } else { "ws" }
    }

    /// Where the value of a setting came from.
    fn origin(&self, name: &str) -> &Origin {
        self.effective.iter().find(|effective| effective.name == name).map_or(&Origin::Default, |found| &found.origin)
    }

    fn restate(&mut self, name: &str, value: String) {
        if let Some(effective) = self.effective.iter_mut().find(|effective| effective.name == name) {
            effective.value = value;
        }
    }
}

/// Whether a service is reached through TLS: a real name has a proxy with a certificate, an address or `localhost` has
/// none.
fn is_public(domain: &str) -> bool {
    let host = domain.rsplit_once(':').map_or(domain, |(host, _)| host);
    let literal = host.parse::<std::net::Ipv4Addr>().is_ok() || host.starts_with('[');
    !literal && host.contains('.')
}

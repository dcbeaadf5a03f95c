//! Settings: declaration, sources, parsing, validation, and the output of `graspd config`.
//!
//! - [`settings`]: the table of all settings; [`unknown_variables`]: known variables that are not settings.
//! - [`cli`], [`dotenv`], [`mod@file`], [`sources`]: where values come from: flags, environment, `.env`, TOML file,
//!   systemd credentials.
//! - [`parse`], [`cidr`], [`lists`], [`resolve`]: parsing and validation. All errors are reported together.
//! - [`mod@show`], [`suggest`], [`problem`]: output, suggestions for misspelt names, errors.
//! - [`operator_key`]: the key of the relay's operator.
//!
//! [`load`] runs at the start and again at each reload. This folder uses no other feature folder. To add a setting, add
//! a row to [`settings::SETTINGS`], a field to [`Config`] and the line in [`resolve`] that fills it.

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
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::admission::policy::{AdmissionMode, AdmissionPolicy};
use grasp_core::disk_budget::Quotas;
use grasp_core::fetch::HostLimits;
use grasp_core::nostr::PublicKey;
use grasp_core::repo::ServiceAddress;
use grasp_core::sync::relay_url::RelayUrl;
use grasp_git::receive::PackLimits;

pub(crate) use cidr::Cidr;
pub(crate) use cli::{SETTINGS_HEADING, command, with_hidden_settings, with_only_hidden_settings};
pub(crate) use lists::archived_service_relays;
pub(crate) use operator_key::load_owner_keys;
pub(crate) use problem::{ConfigErrors, SettingOrigin};
pub(crate) use show::{reference, show};
use sources::{ProcessEnvironment, SettingSources};
pub(crate) use suggest::nearest_name;

/// The current settings: those of the start, with the changes that `graspd reload` has applied since.
pub(crate) type SettingsReceiver = tokio::sync::watch::Receiver<std::sync::Arc<Config>>;

/// File in the relay's data folder that contains a generated owner key.
pub(crate) const OWNER_FILE: &str = ".relay-owner.nsec";

/// Default name of the admin socket in the relay's data folder.
const ADMIN_SOCKET_FILE: &str = "admin.sock";

/// All settings, parsed and validated.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Public host with an optional port, in lower case.
    pub(crate) domain: String,
    /// URL path of the service: empty, or `/…` without a slash at the end.
    pub(crate) base_path: String,
    /// Address to listen on.
    pub(crate) bind: SocketAddr,
    /// Networks of the proxies whose `X-Forwarded-For` header is trusted.
    pub(crate) trusted_proxies: Vec<Cidr>,
    /// Name of the relay in NIP-11.
    pub(crate) relay_name: String,
    /// Description of the relay in NIP-11.
    pub(crate) relay_description: String,
    /// The operator's private key, if it is configured; see [`load_owner_keys`].
    pub(crate) owner_secret: Option<Secret>,
    /// Which events are accepted.
    pub(crate) policy: EventPolicy,
    /// Folder of the repositories, absolute.
    pub(crate) git_data_path: PathBuf,
    /// Folder of the event database, absolute.
    pub(crate) relay_data_path: PathBuf,
    /// Free disk space below which nothing new is stored.
    pub(crate) store_reserve_bytes: u64,
    /// The disk budget.
    pub(crate) disk: DiskSettings,
    /// Quotas per key and per repository.
    pub(crate) quotas: Quotas,
    /// How long an event waits for its git data.
    pub(crate) purgatory_expiry: Duration,
    /// Maximum number of simultaneous connections.
    pub(crate) max_connections: usize,
    /// Maximum number of subscriptions per connection.
    pub(crate) max_subscriptions: usize,
    /// Maximum number of negentropy sessions per connection.
    pub(crate) max_neg_sessions: usize,
    /// Maximum size of an event. States may always have 1 MiB.
    pub(crate) max_event_bytes: usize,
    /// Maximum number of stored events returned for one filter.
    pub(crate) filter_limit: usize,
    /// Maximum number of simultaneous connections from one network; zero means unlimited.
    pub(crate) network_max_connections: usize,
    /// Maximum number of events per minute from one network; zero means unlimited.
    pub(crate) network_events_per_minute: u64,
    /// Limits of git processes and pushes.
    pub(crate) git: GitSettings,
    /// Settings of sync.
    pub(crate) sync: SyncSettings,
    /// Whether a listed maintainer counts only if its announcement lists a maintainer in return.
    pub(crate) strict_maintainers: bool,
    /// Whether pull requests for repositories that are hosted elsewhere can be pushed to `/prs/` (GRASP-06).
    pub(crate) submissions: bool,
    /// Moderation lists and archive settings.
    pub(crate) lists: Arc<ModerationLists>,
    /// Time that running requests have to finish at shutdown.
    pub(crate) shutdown_grace: Duration,
    /// Settings of the metrics endpoint.
    pub(crate) metrics: MetricsSettings,
    /// Where the status page is available.
    pub(crate) status: StatusPageAccess,
    /// Path of the admin socket; `None` if it is off.
    pub(crate) admin_socket: Option<PathBuf>,
    /// Format of log lines.
    pub(crate) log_format: LogFormat,
    /// Log filter: a level, or `level,part=level,…`.
    pub(crate) log_level: String,
    /// All settings as text with their origins, in the order of the table. Secrets are already hidden.
    pub(crate) effective: Vec<EffectiveSetting>,
}

/// Limits of git processes and pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GitSettings {
    /// Maximum bytes of one push.
    pub(crate) max_push_bytes: u64,
    /// Maximum bytes of a push whose event has not arrived yet.
    pub(crate) max_unsigned_push_bytes: u64,
    /// Maximum number of objects in one push.
    pub(crate) max_objects: u64,
    /// Maximum bytes of one unpacked object.
    pub(crate) max_object_bytes: u64,
    /// Maximum address space of one git process.
    pub(crate) process_memory_bytes: u64,
    /// Maximum number of git processes that serve fetches at the same time.
    pub(crate) serve_processes: usize,
    /// Maximum number of git processes that check pushes at the same time.
    pub(crate) check_processes: usize,
    /// Maximum run time of one git process.
    pub(crate) process_timeout: Duration,
    /// Disk space for cached responses to fetches.
    pub(crate) pack_cache_bytes: u64,
    /// Whether repositories are repacked in the background.
    pub(crate) maintenance: bool,
    /// Limits that NIP-11 states to other GRASP servers.
    pub(crate) peer_limits: HostLimits,
}

impl GitSettings {
    /// Returns the limits of one received pack.
    pub(crate) fn pack_limits(&self) -> PackLimits {
        PackLimits {
            max_bytes: self.max_push_bytes,
            max_objects: u32::try_from(self.max_objects).unwrap_or(u32::MAX),
            check_secs: self.process_timeout.as_secs(),
        }
    }
}

/// Settings of the metrics endpoint.
#[derive(Debug, Clone)]
pub(crate) struct MetricsSettings {
    /// Whether the endpoint exists.
    pub(crate) enabled: bool,
    /// Address of the monitoring port; `None` means that metrics are served at the main port.
    pub(crate) bind: Option<SocketAddr>,
    /// Bearer token that is required to read the metrics.
    pub(crate) token: Option<Secret>,
    /// Limits of the metrics.
    pub(crate) limits: MetricsLimits,
}

/// Limits of the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetricsLimits {
    /// Websocket connections of one address above which the address is counted as abusive.
    pub(crate) abuse_threshold: usize,
    /// Number of the most fetched repositories that are listed by name.
    pub(crate) top_repos: usize,
}

impl Default for MetricsLimits {
    fn default() -> Self {
        Self { abuse_threshold: 10, top_repos: 10 }
    }
}

/// The disk budget that the operator allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskSettings {
    /// Bytes that all data together may take; `None` means the whole disk.
    pub(crate) budget_bytes: Option<u64>,
    /// Percentage of the budget above which no new repository is accepted.
    pub(crate) soft_percent: u64,
}

/// Format of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Where the status page is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusPageAccess {
    /// At the main port and at the monitoring port.
    Public,
    /// At the monitoring port only.
    Private,
    /// Nowhere.
    Disabled,
}

/// Settings of sync: following other relays, and fetching missing git data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyncSettings {
    /// Whether sync runs at all.
    pub(crate) enabled: bool,
    /// Relays that are always followed.
    pub(crate) bootstrap: Vec<RelayUrl>,
    /// How long new needs are collected before other relays are asked for them.
    pub(crate) batch_window: Duration,
    /// First wait after a failed connection, and the timeout for opening one.
    pub(crate) base_backoff: Duration,
    /// Longest wait between two connection attempts.
    pub(crate) max_backoff: Duration,
    /// Whether negentropy is used with relays that support it.
    pub(crate) negentropy: bool,
    /// Maximum number of values in one filter.
    pub(crate) values_per_filter: usize,
    /// Limits of fetches from one git server.
    pub(crate) git: HostLimits,
    /// Limits for particular git servers, by host name.
    pub(crate) git_host_limits: BTreeMap<String, HostLimits>,
    /// Whether private and local addresses may be dialed.
    pub(crate) allow_non_global: bool,
    /// How long rejected events are kept completely.
    pub(crate) rejected_hot_ttl: Duration,
    /// How long the ids of rejected events are remembered.
    pub(crate) rejected_cold_ttl: Duration,
}

/// Which events are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventPolicy {
    /// Repositories that list this service, and events that belong to them.
    Grasp,
    /// Every valid event.
    Open,
}

impl From<EventPolicy> for AdmissionMode {
    fn from(policy: EventPolicy) -> Self {
        match policy {
            EventPolicy::Grasp => Self::Grasp,
            EventPolicy::Open => Self::Open,
        }
    }
}

/// A value that must never be logged or shown.
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

    /// Returns the value itself. The caller must not log or show it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// One setting with its value and origin, as `graspd config` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EffectiveSetting {
    /// The setting's name, such as `BIND_ADDRESS`.
    pub(crate) name: &'static str,
    /// Value as text.
    pub(crate) value: String,
    /// Where the value came from.
    pub(crate) origin: SettingOrigin,
}

/// Valid settings, and warnings about them.
#[derive(Debug)]
pub(crate) struct LoadedConfig {
    /// The settings.
    pub(crate) config: Config,
    /// One sentence per warning, for the log or standard error.
    pub(crate) warnings: Vec<String>,
}

/// Reads the settings of this process from its arguments, its environment and the files in its current folder.
///
/// # Errors
///
/// All errors of all sources and settings together.
pub(crate) fn load(matches: &ArgMatches) -> Result<LoadedConfig, ConfigErrors> {
    resolve::resolve(&gather_sources(matches))
}

/// Returns the path of the admin socket of the server that has the settings of this process; `None` if the socket is
/// off.
pub(crate) fn admin_socket(matches: &ArgMatches) -> Result<Option<PathBuf>, ConfigErrors> {
    resolve::admin_socket(&gather_sources(matches))
}

fn gather_sources(matches: &ArgMatches) -> SettingSources {
    let environment = ProcessEnvironment {
        variables: std::env::vars_os().collect(),
        // Without a current folder, relative paths stay relative, and opening them fails with an error that has their
        // name.
        current_dir: std::env::current_dir().unwrap_or_default(),
        read: &|path| std::fs::read_to_string(path),
    };
    SettingSources::gather(cli::flags(matches), environment)
}

impl Config {
    /// Sets the address that the listener got, which differs from the setting if that has port 0. The defaults that are
    /// derived from the bind address change with it.
    pub(crate) fn set_bound_address(&mut self, address: SocketAddr) {
        self.bind = address;
        if self.origin("DOMAIN") == &SettingOrigin::Default {
            self.domain = address.to_string();
            self.set_shown_value("DOMAIN", self.domain.clone());
        }
        if self.origin("RELAY_NAME") == &SettingOrigin::Default {
            self.relay_name = resolve::default_relay_name(&self.domain);
            self.set_shown_value("RELAY_NAME", self.relay_name.clone());
        }
    }

    /// Returns the policy by which events are accepted. The owner is `None` for commands that only read data.
    ///
    /// # Errors
    ///
    /// The domain and the base path are not a valid service address.
    pub(crate) fn admission_policy(&self, owner: Option<PublicKey>) -> anyhow::Result<AdmissionPolicy> {
        let service = ServiceAddress::new(&self.domain, &self.base_path)
            .ok_or_else(|| anyhow::anyhow!("{} is not a host name with an optional port", self.domain))?;
        Ok(AdmissionPolicy {
            service,
            mode: self.policy.into(),
            owner,
            strict_maintainers: self.strict_maintainers,
            accepts_submissions: self.submissions,
            fetches_git_data: self.sync.enabled,
            quotas: self.quotas,
            max_event_bytes: self.max_event_bytes,
            purgatory_secs: self.purgatory_expiry.as_secs(),
            lists: self.lists.clone(),
        })
    }

    /// Returns whether clients reach this service with TLS.
    fn uses_tls(&self) -> bool {
        uses_tls(&self.domain)
    }

    /// Returns the URL scheme of web pages and repositories.
    pub(crate) fn web_scheme(&self) -> &'static str {
        if self.uses_tls() { "https" } else { "http" }
    }

    /// Returns the URL scheme of the relay.
    pub(crate) fn relay_scheme(&self) -> &'static str {
        if self.uses_tls() { "wss" } else { "ws" }
    }

    /// Returns the public URL of pages and git repositories, without a trailing slash.
    pub(crate) fn web_url(&self) -> String {
        format!("{}://{}{}", self.web_scheme(), self.domain, self.base_path)
    }

    /// Returns the public URL of the relay.
    pub(crate) fn relay_url(&self) -> String {
        format!("{}://{}{}", self.relay_scheme(), self.domain, self.base_path)
    }

    /// Returns where the value of a setting came from.
    fn origin(&self, name: &str) -> &SettingOrigin {
        self.effective
            .iter()
            .find(|effective| effective.name == name)
            .map_or(&SettingOrigin::Default, |found| &found.origin)
    }

    fn set_shown_value(&mut self, name: &str, value: String) {
        if let Some(effective) = self.effective.iter_mut().find(|effective| effective.name == name) {
            effective.value = value;
        }
    }
}

/// Returns whether a service is reached with TLS: a DNS name has a proxy with a certificate; an IP address or
/// `localhost` has none.
fn uses_tls(domain: &str) -> bool {
    let host = domain.rsplit_once(':').map_or(domain, |(host, _)| host);
    let literal = host.parse::<std::net::Ipv4Addr>().is_ok() || host.starts_with('[');
    !literal && host.contains('.')
}

//! Settings: declarations, sources, parsing, validation, and the output of `graspd config`.
//!
//! **To add a setting, add an entry to [`settings`].** Everything else follows from it: the flag, the `NGIT_` variable, the
//! file key, the help, docs/settings.md (`just settings`), parsing, and whether `graspd reload` applies it.
//!
//! - [`settings`]: the declarations; [`declaration`]: the kinds of settings, and how a declaration is read.
//! - [`cli`], [`dotenv`], [`mod@file`], [`sources`]: where values come from: flags, environment, `.env`, TOML file,
//!   systemd credentials.
//! - [`parse`], [`quantity`], [`lists`]: parsers; [`resolve`]: derived defaults and checks across settings. All errors are
//!   reported together.
//! - [`mod@show`], [`unknown_names`], [`problem`]: output, suggestions for misspelt names, errors.
//! - [`operator_key`]: the key of the relay's operator.
//!
//! [`load`] runs at the start and again at each reload. This folder uses no other feature folder.
//!
//! clap only parses the flags. Its derive macro could not be the declaration: secrets have no flag, values come from three
//! sources that it does not know, an empty variable means "not set", and all errors are reported together.

mod cli;
mod declaration;
mod dotenv;
mod file;
mod lists;
mod operator_key;
mod parse;
mod problem;
mod quantity;
mod resolve;
mod settings;
mod show;
mod sources;
mod unknown_names;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::ArgMatches;
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::fetch::HostLimits;
use grasp_core::nostr::PublicKey;
use grasp_core::repo::{ServiceAddress, uses_tls};
use grasp_git::receive::PackLimits;
use serde::Serialize;

pub(crate) use cli::{
    SETTINGS_COMMAND, SETTINGS_HEADING, command, settings_help, with_hidden_settings, with_only_hidden_settings,
};
use declaration::SettingReader;
pub(crate) use declaration::{SettingGroup, find};
pub(crate) use lists::archived_service_relays;
pub(crate) use operator_key::load_owner_keys;
pub(crate) use problem::{ConfigErrors, SettingOrigin};
pub(crate) use quantity::timestamp;
pub(crate) use resolve::warnings;
pub(crate) use settings::{Config, DiskSettings, GitSettings, MetricsLimits, SyncSettings};
pub(crate) use show::{effective_table, reference, show};
use sources::{FileAccess, SettingSources};
pub(crate) use unknown_names::nearest_name;

/// The current settings: those of the start, with the changes that `graspd reload` has applied since.
pub(crate) type SettingsReceiver = tokio::sync::watch::Receiver<std::sync::Arc<Config>>;

/// File in the relay's data folder that contains a generated owner key.
pub(crate) const OWNER_FILE: &str = ".relay-owner.nsec";

impl GitSettings {
    /// Returns the limits of one received pack.
    pub(crate) fn pack_limits(&self) -> PackLimits {
        PackLimits {
            max_bytes: self.max_push_bytes,
            max_objects: u32::try_from(self.max_objects).unwrap_or(u32::MAX),
            check_secs: self.process_timeout.as_secs(),
        }
    }

    /// Returns the limits that NIP-11 states to other GRASP servers.
    pub(crate) fn peer_limits(&self) -> HostLimits {
        HostLimits { concurrent: self.peer_concurrent, per_minute: self.peer_per_minute }
    }
}

impl SyncSettings {
    /// Returns the limits of fetches from one git server.
    pub(crate) fn git_limits(&self) -> HostLimits {
        HostLimits { concurrent: self.git_concurrent, per_minute: self.git_per_minute }
    }
}

impl Default for MetricsLimits {
    fn default() -> Self {
        Self::read(&mut SettingReader::new(&SettingSources::default()))
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct EffectiveSetting {
    /// The setting's name, such as `BIND_ADDRESS`.
    pub(crate) name: &'static str,
    /// Value as text.
    pub(crate) value: String,
    /// Where the value came from.
    #[serde(flatten)]
    pub(crate) origin: SettingOrigin,
    /// The hidden value of a secret.
    #[serde(skip)]
    pub(crate) secret: Option<Secret>,
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

/// Where a command looks for the admin socket of the running server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AdminSockets {
    /// The socket of a server that has the settings of this process; `None` if the socket is off.
    pub(crate) own: Option<PathBuf>,
    /// The sockets to try, in this order.
    pub(crate) paths: Vec<PathBuf>,
}

/// Returns where a command with the settings of this process looks for the admin socket.
///
/// # Errors
///
/// The settings that give the location of the socket are invalid.
pub(crate) fn admin_sockets(matches: &ArgMatches) -> Result<AdminSockets, ConfigErrors> {
    resolve::admin_sockets(gather_sources(matches), &run_folder())
}

/// Returns `/run`. In debug builds the environment variable `GRASPD_TEST_RUN_FOLDER` replaces it for tests.
fn run_folder() -> PathBuf {
    #[cfg(debug_assertions)]
    if let Some(folder) = std::env::var_os("GRASPD_TEST_RUN_FOLDER") {
        return PathBuf::from(folder);
    }
    PathBuf::from("/run")
}

fn gather_sources(matches: &ArgMatches) -> SettingSources {
    // Without a current folder, relative paths stay relative, and opening them fails with an error that has their name.
    let current_dir = std::env::current_dir().unwrap_or_default();
    let files = FileAccess { current_dir, read: Box::new(|path| std::fs::read_to_string(path)) };
    SettingSources::gather(cli::flags(matches), std::env::vars_os().collect(), files)
}

impl Config {
    /// Sets the address that the listener got, which differs from the setting if that has port 0. The defaults that are
    /// derived from the bind address change with it.
    pub(crate) fn set_bound_address(&mut self, address: SocketAddr) {
        self.bind = address;
        if self.has_default_domain() {
            self.domain = address.to_string();
            self.set_shown_value("DOMAIN", self.domain.clone());
        }
        if self.origin("RELAY_NAME") == &SettingOrigin::Default {
            self.relay_name = format!("{} grasp relay", self.domain);
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
            mode: self.policy,
            owner,
            strict_maintainers: self.strict_maintainers,
            accepts_submissions: self.submissions,
            fetches_git_data: self.sync.enabled,
            quotas: self.quotas,
            max_event_bytes: self.max_event_bytes,
            purgatory_secs: self.purgatory_expiry.as_secs(),
            dormant_secs: self.purgatory_dormant.as_secs(),
            ignores_deletions: self.ignores_deletions,
            lists: self.lists.clone(),
        })
    }

    /// Returns the URL scheme of web pages and repositories.
    pub(crate) fn web_scheme(&self) -> &'static str {
        if uses_tls(&self.domain) { "https" } else { "http" }
    }

    /// Returns the URL scheme of the relay.
    pub(crate) fn relay_scheme(&self) -> &'static str {
        if uses_tls(&self.domain) { "wss" } else { "ws" }
    }

    /// Returns the public URL of pages and git repositories, without a trailing slash.
    pub(crate) fn web_url(&self) -> String {
        format!("{}://{}{}", self.web_scheme(), self.domain, self.base_path)
    }

    /// Returns the public URL of the relay.
    pub(crate) fn relay_url(&self) -> String {
        format!("{}://{}{}", self.relay_scheme(), self.domain, self.base_path)
    }

    /// Returns the limits of fetches up to which a git server may raise ours: those that the operator has set.
    pub(crate) fn max_git_limits(&self) -> HostLimits {
        let or_stated = |name, own, stated| if *self.origin(name) == SettingOrigin::Default { stated } else { own };
        let (own, stated) = (self.sync.git_limits(), HostLimits::MAX_STATED);
        HostLimits {
            concurrent: or_stated("SYNC_DOMAIN_CONCURRENT", own.concurrent, stated.concurrent),
            per_minute: or_stated("SYNC_DOMAIN_RATE_LIMIT", own.per_minute, stated.per_minute),
        }
    }

    /// Returns whether the domain is derived from the bind address, because no setting gives it.
    pub(crate) fn has_default_domain(&self) -> bool {
        self.origin("DOMAIN") == &SettingOrigin::Default
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

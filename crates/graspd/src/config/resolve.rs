//! Parses and validates all settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::disk_budget::Quotas;
use grasp_core::fetch::HostLimits;

use super::lists::{ListSettings, ListText};
use super::problem::{ConfigError, ConfigErrors, SettingOrigin};
use super::settings::{DefaultValue, FILE_VARIABLE, PREFIX, SETTINGS, ValueKind};
use super::sources::SettingSources;
use super::unknown_variables::{CONTAINER_VARIABLES, UNSUPPORTED};
use super::{
    ADMIN_SOCKET_FILE, Config, DiskSettings, EffectiveSetting, EventPolicy, GitSettings, LoadedConfig, LogFormat,
    MetricsLimits, MetricsSettings, OWNER_FILE, Secret, StatusPageAccess, SyncSettings, parse, settings, suggest,
};

/// Parses all settings, or returns all errors.
pub(crate) fn resolve(sources: &SettingSources) -> Result<LoadedConfig, ConfigErrors> {
    let mut reader = SettingReader { sources, errors: sources.errors.clone(), effective: BTreeMap::new() };

    let bind = reader.read("BIND_ADDRESS", parse::address).unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
    let domain = match reader.read("DOMAIN", parse::domain) {
        Some(domain) => reader.set_shown_value("DOMAIN", domain),
        None => reader.set_shown_value("DOMAIN", bind.to_string()),
    };
    let relay_name = match reader.read("RELAY_NAME", parse::line) {
        Some(name) => name,
        None => reader.set_shown_value("RELAY_NAME", default_relay_name(&domain)),
    };
    let base_path = reader.read("BASE_PATH", parse::base_path).unwrap_or_default();
    let here = &sources.current_dir;
    let git_data_path = reader.read("GIT_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    let relay_data_path = reader.read("RELAY_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    reader.set_shown_value("GIT_DATA_PATH", git_data_path.display().to_string());
    reader.set_shown_value("RELAY_DATA_PATH", relay_data_path.display().to_string());
    let owner_secret = reader.read("RELAY_OWNER_NSEC", secret_key);
    if owner_secret.is_none() {
        reader.set_shown_value("RELAY_OWNER_NSEC", format!("(in {})", relay_data_path.join(OWNER_FILE).display()));
    }

    let admin_socket = reader.admin_socket(&relay_data_path);

    // Accepted for compatibility with ngit-grasp; graspd does not check at intervals.
    let _: u64 = reader.number("SYNC_DISCONNECT_CHECK_INTERVAL_SECS");
    let list_settings = ListSettings {
        whitelist: reader.list("REPOSITORY_WHITELIST", |list| list.repositories()),
        blacklist: reader.list("REPOSITORY_BLACKLIST", |list| list.repositories()),
        banned_events: reader.list("EVENT_BLACKLIST", |list| list.banned_events()),
        archive_all: reader.is_on("ARCHIVE_ALL"),
        archive_whitelist: reader.list("ARCHIVE_WHITELIST", |list| list.repositories()),
        archive_services: reader.list("ARCHIVE_GRASP_SERVICES", |list| list.services()),
        read_only: reader
            .choice("ARCHIVE_READ_ONLY", &[("auto", None), ("true", Some(true)), ("false", Some(false))])
            .flatten(),
    };
    let mut config = Config {
        domain,
        base_path,
        bind,
        trusted_proxies: reader.read("TRUSTED_PROXY_CIDRS", parse::networks).unwrap_or_default(),
        relay_name,
        relay_description: reader.read("RELAY_DESCRIPTION", |text| Ok(text.to_owned())).unwrap_or_default(),
        owner_secret,
        policy: reader
            .choice("POLICY", &[("grasp", EventPolicy::Grasp), ("open", EventPolicy::Open)])
            .unwrap_or(EventPolicy::Grasp),
        git_data_path,
        relay_data_path,
        store_reserve_bytes: reader.number("STORE_RESERVE_BYTES"),
        disk: DiskSettings {
            budget_bytes: reader.optional_limit("DISK_BUDGET_BYTES"),
            soft_percent: reader.number("DISK_SOFT_PERCENT"),
        },
        quotas: Quotas {
            repositories_per_key: reader.optional_limit("QUOTA_REPOSITORIES_PER_KEY"),
            bytes_per_repository: reader.optional_limit("QUOTA_BYTES_PER_REPOSITORY"),
            bytes_per_key: reader.optional_limit("QUOTA_BYTES_PER_KEY"),
        },
        purgatory_expiry: Duration::from_secs(reader.number("PURGATORY_EXPIRY_SECS")),
        max_connections: reader.number("MAX_CONNECTIONS"),
        max_subscriptions: reader.number("RELAY_MAX_SUBSCRIPTIONS"),
        max_neg_sessions: reader.number("RELAY_MAX_NEG_SESSIONS"),
        max_event_bytes: reader.number("RELAY_MAX_EVENT_SIZE_BYTES"),
        filter_limit: reader.number("RELAY_FILTER_LIMIT"),
        network_max_connections: reader.number("NETWORK_MAX_CONNECTIONS"),
        network_events_per_minute: reader.number("NETWORK_EVENTS_PER_MINUTE"),
        git: GitSettings {
            max_push_bytes: reader.number("GIT_MAX_PUSH_BYTES"),
            max_unsigned_push_bytes: reader.number("GIT_MAX_UNSIGNED_PUSH_BYTES"),
            max_objects: reader.number("GIT_MAX_OBJECTS"),
            max_object_bytes: reader.number("GIT_MAX_OBJECT_BYTES"),
            process_memory_bytes: reader.number("GIT_PROCESS_MEMORY_BYTES"),
            serve_processes: reader.number("GIT_SERVE_PROCESSES"),
            check_processes: reader.number("GIT_CHECK_PROCESSES"),
            process_timeout: Duration::from_secs(reader.number("GIT_PROCESS_SECS")),
            pack_cache_bytes: reader.number("GIT_PACK_CACHE_BYTES"),
            maintenance: reader.is_on("GIT_MAINTENANCE"),
            peer_limits: HostLimits {
                concurrent: reader.number("GIT_PEER_CONCURRENT"),
                per_minute: reader.number("GIT_PEER_RATE_LIMIT"),
            },
        },
        sync: SyncSettings {
            enabled: reader.is_on("SYNC_ENABLE"),
            bootstrap: reader.read("SYNC_BOOTSTRAP_RELAY_URL", parse::relays).unwrap_or_default(),
            batch_window: Duration::from_millis(reader.number("SYNC_BATCH_WINDOW_MS")),
            base_backoff: Duration::from_secs(reader.number("SYNC_BASE_BACKOFF_SECS")),
            max_backoff: Duration::from_secs(reader.number("SYNC_MAX_BACKOFF_SECS")),
            negentropy: !reader.is_on("SYNC_DISABLE_NEGENTROPY"),
            values_per_filter: reader.number("SYNC_MAX_TAGS_PER_FILTER"),
            git: HostLimits {
                concurrent: reader.number("SYNC_DOMAIN_CONCURRENT"),
                per_minute: reader.number("SYNC_DOMAIN_RATE_LIMIT"),
            },
            git_host_limits: reader.read("SYNC_DOMAIN_LIMITS", parse::domain_limits).unwrap_or_default(),
            allow_non_global: reader.is_on("SYNC_ALLOW_NON_GLOBAL_TARGETS"),
            rejected_hot_ttl: Duration::from_secs(reader.number("REJECTED_HOT_CACHE_DURATION_SECS")),
            rejected_cold_ttl: Duration::from_secs(reader.number("REJECTED_COLD_INDEX_EXPIRY_SECS")),
        },
        strict_maintainers: reader.is_on("STRICT_MAINTAINERS"),
        submissions: reader.is_on("GRASP06_ENABLE"),
        lists: Arc::default(),
        shutdown_grace: Duration::from_secs(reader.number("SHUTDOWN_GRACE_SECS")),
        metrics: MetricsSettings {
            enabled: reader.is_on("METRICS_ENABLED"),
            bind: reader.read("METRICS_BIND_ADDRESS", parse::address),
            token: reader.read("METRICS_TOKEN", metrics_token).flatten(),
            limits: MetricsLimits {
                abuse_threshold: reader.number("METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD"),
                top_repos: reader.number("METRICS_TOP_N_REPOS"),
            },
        },
        status: reader
            .choice(
                "STATUS_ENABLE",
                &[
                    ("true", StatusPageAccess::Public),
                    ("false", StatusPageAccess::Disabled),
                    ("private", StatusPageAccess::Private),
                ],
            )
            .unwrap_or(StatusPageAccess::Disabled),
        admin_socket,
        log_format: reader
            .choice("LOG_FORMAT", &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .unwrap_or(LogFormat::Text),
        log_level: reader.read("LOG_LEVEL", parse::log_level).unwrap_or_default(),
        effective: Vec::new(),
    };
    reader.check_data_paths(&config);
    for (location, message) in list_settings.conflicts(config.sync.enabled) {
        reader.errors.push(ConfigError::new(location, message));
    }
    config.lists = list_settings.into_lists();
    config.effective = SETTINGS.iter().filter_map(|setting| reader.effective.remove(setting.name)).collect();

    if reader.errors.is_empty() {
        let warnings = warnings(sources, &config);
        Ok(LoadedConfig { config, warnings })
    } else {
        Err(ConfigErrors(reader.errors))
    }
}

/// Returns the path of the admin socket. Errors in other settings are ignored, because the running server was started
/// with valid ones.
pub(crate) fn admin_socket(sources: &SettingSources) -> Result<Option<PathBuf>, ConfigErrors> {
    let mut reader = SettingReader { sources, errors: Vec::new(), effective: BTreeMap::new() };
    let here = &sources.current_dir;
    let relay_data_path = reader.read("RELAY_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    let socket = reader.admin_socket(&relay_data_path);
    let origin = reader.effective.get("ADMIN_SOCKET").map(|effective| &effective.origin);
    if !matches!(origin, Some(SettingOrigin::Flag | SettingOrigin::Environment)) {
        // A file that cannot be read may contain the path.
        reader.errors.extend(sources.errors.iter().cloned());
    }
    if reader.errors.is_empty() { Ok(socket) } else { Err(ConfigErrors(reader.errors)) }
}

/// The default name of the relay.
pub(crate) fn default_relay_name(domain: &str) -> String {
    format!("{domain} grasp relay")
}

/// Reads the settings one by one and collects errors. An invalid setting gets a placeholder value, which is never used,
/// because `resolve` then returns the errors and no `Config`.
struct SettingReader<'a> {
    sources: &'a SettingSources,
    errors: Vec<ConfigError>,
    effective: BTreeMap<&'static str, EffectiveSetting>,
}

impl SettingReader<'_> {
    /// Reads a setting, or its default. Returns `None` if it is invalid, or if it is not set and its default is
    /// derived.
    fn read<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let Some(setting) = settings::find(name) else {
            self.errors.push(ConfigError::new(name, "is not declared in the table of settings"));
            return None;
        };
        let found = self.sources.find_text(setting);
        let (text, origin) = match (found, &setting.default) {
            (Some((text, origin)), _) => (Some(text), origin),
            (None, DefaultValue::Fixed(text)) => (Some(*text), SettingOrigin::Default),
            (None, DefaultValue::Derived(_)) => (None, SettingOrigin::Default),
        };
        let value = match text {
            Some(_) if setting.is_secret() => "(hidden)".to_owned(),
            Some(text) => text.to_owned(),
            None => String::new(),
        };
        let value_read = match text.map(parse) {
            Some(Ok(value_read)) => Some(value_read),
            Some(Err(message)) => {
                self.errors.push(ConfigError::new(origin.location(setting), message));
                None
            }
            None => None,
        };
        self.effective.insert(name, EffectiveSetting { name, value, origin });
        value_read
    }

    /// Replaces the shown value of a setting by its parsed or derived value.
    fn set_shown_value(&mut self, name: &str, value: String) -> String {
        if let Some(effective) = self.effective.get_mut(name) {
            effective.value.clone_from(&value);
        }
        value
    }

    /// Reads a number within the declared range of the setting.
    fn number<T: TryFrom<u64> + Default>(&mut self, name: &'static str) -> T {
        let range = match settings::find(name).map(|setting| &setting.kind) {
            Some(ValueKind::Number { min, max }) => Some((*min, *max)),
            _ => None,
        };
        let parse = |text: &str| match range {
            Some((min, max)) => parse::number(text, min, max),
            None => Err("is not declared as a number".to_owned()),
        };
        self.read(name, parse).unwrap_or_default()
    }

    /// Reads a number for which zero means unlimited.
    fn optional_limit(&mut self, name: &'static str) -> Option<u64> {
        Some(self.number(name)).filter(|bound| *bound > 0)
    }

    /// Reads a setting that is on or off.
    fn is_on(&mut self, name: &'static str) -> bool {
        self.choice(name, &[("true", true), ("false", false)]).unwrap_or_default()
    }

    /// Reads a setting that is one of a few words.
    fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.read(name, |text| match words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())) {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let allowed: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(format!("{} is not {}", super::problem::quote(text), allowed.join(" or ")))
            }
        })
    }

    /// Reads a moderation list from the value or from its file.
    fn list<T: Default>(&mut self, name: &'static str, read: impl FnOnce(&ListText<'_>) -> Result<T, String>) -> T {
        let sources = self.sources;
        let in_file = sources.lists.get(name);
        let value_read = self.read(name, |text| match in_file {
            Some((path, Ok(text))) => {
                read(&ListText::from_file(text)).map_err(|why| format!("{}: {why}", path.display()))
            }
            Some((path, Err(why))) => Err(format!("{} {why}", path.display())),
            None => read(&ListText::from_value(text)),
        });
        value_read.unwrap_or_default()
    }

    /// Reads the path of the admin socket; `None` if it is off.
    fn admin_socket(&mut self, relay_data_path: &Path) -> Option<PathBuf> {
        let here = &self.sources.current_dir;
        if let Some(socket) = self.read("ADMIN_SOCKET", |text| parse::socket_file(text, here)) {
            if let Some(path) = &socket {
                self.set_shown_value("ADMIN_SOCKET", path.display().to_string());
            }
            return socket;
        }
        let is_given =
            self.effective.get("ADMIN_SOCKET").is_some_and(|effective| effective.origin != SettingOrigin::Default);
        if is_given || relay_data_path == Path::new("") {
            return None;
        }
        let path = relay_data_path.join(ADMIN_SOCKET_FILE);
        self.set_shown_value("ADMIN_SOCKET", path.display().to_string());
        match parse::socket_file(&path.display().to_string(), here) {
            Ok(socket) => socket,
            Err(message) => {
                self.errors.push(ConfigError::new("ADMIN_SOCKET (default)", message));
                None
            }
        }
    }

    /// Checks that the two data folders do not contain each other.
    fn check_data_paths(&mut self, config: &Config) {
        let (git, relay) = (&config.git_data_path, &config.relay_data_path);
        let unset = Path::new("");
        if git == unset || relay == unset {
            return;
        }
        let relation = if git == relay {
            Some(format!("are the same folder ({})", git.display()))
        } else if git.starts_with(relay) {
            Some(format!("must not contain each other: {} is inside {}", git.display(), relay.display()))
        } else if relay.starts_with(git) {
            Some(format!("must not contain each other: {} is inside {}", relay.display(), git.display()))
        } else {
            None
        };
        if let Some(relation) = relation {
            let message = format!("{relation}; give each its own folder");
            self.errors.push(ConfigError::new("GIT_DATA_PATH and RELAY_DATA_PATH", message));
        }
    }
}

/// Parses a private key. An invalid value is not repeated in the error.
fn secret_key(text: &str) -> Result<Secret, String> {
    let text = text.trim();
    match nostr::key::SecretKey::parse(text) {
        Ok(_) => Ok(Secret::new(text)),
        Err(_) => Err("is not a private key (nsec1… or 64 hex digits); its value is not shown here".to_owned()),
    }
}

/// Parses the metrics token; `None` if it is empty. An invalid value is not repeated in the error.
fn metrics_token(text: &str) -> Result<Option<Secret>, String> {
    match text.trim() {
        "" => Ok(None),
        text if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(Secret::new(text))),
        _ => Err("has characters that are not allowed in a header; its value is not shown here".to_owned()),
    }
}

/// Returns warnings about settings that are valid but probably not intended.
fn warnings(sources: &SettingSources, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let in_environment = sources.environment.keys().map(|name| (name, SettingOrigin::Environment));
    let in_dotenv = sources.dotenv.iter().flat_map(|dotenv| {
        let origin = |line| SettingOrigin::DotEnv { path: dotenv.path.clone(), line };
        dotenv.entries.iter().map(move |(name, (_, line))| (name, origin(*line)))
    });
    for (variable, origin) in in_environment.chain(in_dotenv) {
        let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
        if settings::find(name).is_some() || name == FILE_VARIABLE || CONTAINER_VARIABLES.contains(&name) {
            continue;
        }
        let about = if UNSUPPORTED.contains(&name) {
            "is not used by this version of graspd".to_owned()
        } else if let Some(near) = suggest::nearest(name) {
            format!("is not a setting and has no effect; did you mean {}?", near.variable())
        } else {
            "is not a setting and has no effect".to_owned()
        };
        warnings.push(format!("{variable} ({origin}) {about}"));
    }
    if config.status == StatusPageAccess::Private && config.metrics.bind.is_none() {
        warnings.push(
            "STATUS_ENABLE is private and METRICS_BIND_ADDRESS is not set, so the status page is not available"
                .to_owned(),
        );
    }
    if config.bind.ip().is_unspecified() && config.origin("DOMAIN") == &SettingOrigin::Default {
        warnings.push(format!(
            "DOMAIN is not set, so the service uses {}, which clients cannot reach and repositories cannot list",
            config.domain
        ));
    }
    for network in config.trusted_proxies.iter().filter(|network| network.is_all_addresses()) {
        warnings.push(format!("TRUSTED_PROXY_CIDRS contains {network}: every client can claim any address"));
    }
    warnings
}

//! From what was written to what holds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use grasp_core::disk_budget::Quotas;
use grasp_core::fetch::Limits;

use super::lists::{Parts, Written};
use super::problem::{ConfigErrors, Origin, Problem};
use super::settings::{FILE_VARIABLE, Fallback, PREFIX, SETTINGS, Shape};
use super::sources::Sources;
use super::unknown_variables::{NOT_FOR_US, NOT_USED_YET};
use super::{
    ADMIN_SOCKET_FILE, Config, Effective, GitSettings, Loaded, MetricsSettings, OWNER_FILE, Policy, Secret, StatusAt,
    SyncSettings, parse, settings, suggest,
};
use crate::metrics::Scales;
use crate::monitor::disk_budget::Allowance;

/// Understands all settings, or says everything that is wrong with them.
pub(crate) fn resolve(sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let mut reader = Reader { sources, problems: sources.problems.clone(), effective: BTreeMap::new() };

    let bind = reader.take("BIND_ADDRESS", parse::address).unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
    let domain = match reader.take("DOMAIN", parse::domain) {
        Some(domain) => reader.restate("DOMAIN", domain),
        None => reader.restate("DOMAIN", bind.to_string()),
    };
    let relay_name = match reader.take("RELAY_NAME", parse::line) {
        Some(name) => name,
        None => reader.restate("RELAY_NAME", default_relay_name(&domain)),
    };
    let base_path = reader.take("BASE_PATH", parse::base_path).unwrap_or_default();
    let here = &sources.current_dir;
    let git_data_path = reader.take("GIT_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    let relay_data_path = reader.take("RELAY_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    reader.restate("GIT_DATA_PATH", git_data_path.display().to_string());
    reader.restate("RELAY_DATA_PATH", relay_data_path.display().to_string());
    let owner_secret = reader.take("RELAY_OWNER_NSEC", secret_key);
    if owner_secret.is_none() {
        reader.restate("RELAY_OWNER_NSEC", format!("(in {})", relay_data_path.join(OWNER_FILE).display()));
    }

    let admin_socket = reader.admin_socket(&relay_data_path);

    // Accepted, so that nobody has to rewrite anything; nothing is checked at intervals here.
    let _: u64 = reader.number("SYNC_DISCONNECT_CHECK_INTERVAL_SECS");
    let parts = Parts {
        whitelist: reader.list("REPOSITORY_WHITELIST", |list| list.repositories()),
        blacklist: reader.list("REPOSITORY_BLACKLIST", |list| list.repositories()),
        unwanted: reader.list("EVENT_BLACKLIST", |list| list.unwanted()),
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
        trusted_proxies: reader.take("TRUSTED_PROXY_CIDRS", parse::networks).unwrap_or_default(),
        relay_name,
        relay_description: reader.take("RELAY_DESCRIPTION", |text| Ok(text.to_owned())).unwrap_or_default(),
        owner_secret,
        policy: reader.choice("POLICY", &[("grasp", Policy::Grasp), ("open", Policy::Open)]).unwrap_or(Policy::Grasp),
        git_data_path,
        relay_data_path,
        store_reserve_bytes: reader.number("STORE_RESERVE_BYTES"),
        disk: Allowance { bytes: reader.bound("DISK_BUDGET_BYTES"), soft_percent: reader.number("DISK_SOFT_PERCENT") },
        quotas: Quotas {
            repositories_per_key: reader.bound("QUOTA_REPOSITORIES_PER_KEY"),
            bytes_per_repository: reader.bound("QUOTA_BYTES_PER_REPOSITORY"),
            bytes_per_key: reader.bound("QUOTA_BYTES_PER_KEY"),
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
            process_patience: Duration::from_secs(reader.number("GIT_PROCESS_SECS")),
            pack_cache_bytes: reader.number("GIT_PACK_CACHE_BYTES"),
            maintenance: reader.is_on("GIT_MAINTENANCE"),
            peers: Limits {
                concurrent: reader.number("GIT_PEER_CONCURRENT"),
                per_minute: reader.number("GIT_PEER_RATE_LIMIT"),
            },
        },
        sync: SyncSettings {
            enabled: reader.is_on("SYNC_ENABLE"),
            bootstrap: reader.take("SYNC_BOOTSTRAP_RELAY_URL", parse::relays).unwrap_or_default(),
            window: Duration::from_millis(reader.number("SYNC_BATCH_WINDOW_MS")),
            base_backoff: Duration::from_secs(reader.number("SYNC_BASE_BACKOFF_SECS")),
            max_backoff: Duration::from_secs(reader.number("SYNC_MAX_BACKOFF_SECS")),
            negentropy: !reader.is_on("SYNC_DISABLE_NEGENTROPY"),
            values_per_filter: reader.number("SYNC_MAX_TAGS_PER_FILTER"),
            git: Limits {
                concurrent: reader.number("SYNC_DOMAIN_CONCURRENT"),
                per_minute: reader.number("SYNC_DOMAIN_RATE_LIMIT"),
            },
            git_hosts: reader.take("SYNC_DOMAIN_LIMITS", parse::domain_limits).unwrap_or_default(),
            reach_anything: reader.is_on("SYNC_ALLOW_NON_GLOBAL_TARGETS"),
            rejected_hot: Duration::from_secs(reader.number("REJECTED_HOT_CACHE_DURATION_SECS")),
            rejected_cold: Duration::from_secs(reader.number("REJECTED_COLD_INDEX_EXPIRY_SECS")),
        },
        strict_maintainers: reader.is_on("STRICT_MAINTAINERS"),
        submissions: reader.is_on("GRASP06_ENABLE"),
        lists: Arc::default(),
        shutdown_grace: Duration::from_secs(reader.number("SHUTDOWN_GRACE_SECS")),
        metrics: MetricsSettings {
            enabled: reader.is_on("METRICS_ENABLED"),
            bind: reader.take("METRICS_BIND_ADDRESS", parse::address),
            token: reader.take("METRICS_TOKEN", token).flatten(),
            scales: Scales {
                abuse_threshold: reader.number("METRICS_CONNECTION_PER_IP_ABUSE_THRESHOLD"),
                top_repos: reader.number("METRICS_TOP_N_REPOS"),
            },
        },
        status: reader
            .choice(
                "STATUS_ENABLE",
                &[("true", StatusAt::Everywhere), ("false", StatusAt::Nowhere), ("private", StatusAt::Private)],
            )
            .unwrap_or(StatusAt::Nowhere),
        admin_socket,
        log_level: reader.take("LOG_LEVEL", parse::log_level).unwrap_or_default(),
        effective: Vec::new(),
    };
    reader.contradictions(&config);
    for (place, message) in parts.contradictions(config.sync.enabled) {
        reader.problems.push(Problem::new(place, message));
    }
    config.lists = parts.lists();
    config.effective = SETTINGS.iter().filter_map(|setting| reader.effective.remove(setting.name)).collect();

    if reader.problems.is_empty() {
        let warnings = warnings(sources, &config);
        Ok(Loaded { config, warnings })
    } else {
        Err(ConfigErrors(reader.problems))
    }
}

/// Where commands reach the server. Other settings may be as wrong as they like: the server that runs was started with
/// better ones.
pub(crate) fn admin_socket(sources: &Sources) -> Result<Option<PathBuf>, ConfigErrors> {
    let mut reader = Reader { sources, problems: Vec::new(), effective: BTreeMap::new() };
    let here = &sources.current_dir;
    let relay_data_path = reader.take("RELAY_DATA_PATH", |text| parse::folder(text, here)).unwrap_or_default();
    let socket = reader.admin_socket(&relay_data_path);
    let origin = reader.effective.get("ADMIN_SOCKET").map(|effective| &effective.origin);
    if !matches!(origin, Some(Origin::Flag | Origin::Environment)) {
        // It may stand in a file that cannot be read.
        reader.problems.extend(sources.problems.iter().cloned());
    }
    if reader.problems.is_empty() { Ok(socket) } else { Err(ConfigErrors(reader.problems)) }
}

/// What the relay is called when nobody names it.
pub(crate) fn default_relay_name(domain: &str) -> String {
    format!("{domain} grasp relay")
}

/// Takes one setting after the other and collects what is wrong. A broken setting reads as nothing; whatever stands
/// in for it is never used, because then there is no `Config` at all.
struct Reader<'a> {
    sources: &'a Sources,
    problems: Vec<Problem>,
    effective: BTreeMap<&'static str, Effective>,
}

impl Reader<'_> {
    /// Reads a setting, or its default. `None` when it is broken, or not set and worked out from others.
    fn take<T>(&mut self, name: &'static str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let Some(setting) = settings::find(name) else {
            self.problems.push(Problem::new(name, "is not declared"));
            return None;
        };
        let found = self.sources.find(setting);
        let (text, origin) = match (found, &setting.default) {
            (Some((text, origin)), _) => (Some(text), origin),
            (None, Fallback::Value(text)) => (Some(*text), Origin::Default),
            (None, Fallback::Derived(_)) => (None, Origin::Default),
        };
        let value = match text {
            Some(_) if setting.is_secret() => "(hidden)".to_owned(),
            Some(text) => text.to_owned(),
            None => String::new(),
        };
        let taken = match text.map(parse) {
            Some(Ok(taken)) => Some(taken),
            Some(Err(message)) => {
                self.problems.push(Problem::new(origin.place(setting), message));
                None
            }
            None => None,
        };
        self.effective.insert(name, Effective { name, value, origin });
        taken
    }

    /// Replaces the text that is shown for a setting by what it came to mean.
    fn restate(&mut self, name: &str, value: String) -> String {
        if let Some(effective) = self.effective.get_mut(name) {
            effective.value.clone_from(&value);
        }
        value
    }

    /// Reads a number within the range that the setting declares.
    fn number<T: TryFrom<u64> + Default>(&mut self, name: &'static str) -> T {
        let range = match settings::find(name).map(|setting| &setting.shape) {
            Some(Shape::Number { min, max }) => Some((*min, *max)),
            _ => None,
        };
        let parse = |text: &str| match range {
            Some((min, max)) => parse::number(text, min, max),
            None => Err("is not declared as a number".to_owned()),
        };
        self.take(name, parse).unwrap_or_default()
    }

    /// Reads a number of which zero means that there is no bound.
    fn bound(&mut self, name: &'static str) -> Option<u64> {
        Some(self.number(name)).filter(|bound| *bound > 0)
    }

    /// Reads whether something is on.
    fn is_on(&mut self, name: &'static str) -> bool {
        self.choice(name, &[("true", true), ("false", false)]).unwrap_or_default()
    }

    /// Reads one of a few words.
    fn choice<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        self.take(name, |text| match words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim())) {
            Some((_, meaning)) => Ok(*meaning),
            None => {
                let allowed: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                Err(format!("{} is not {}", super::problem::quote(text), allowed.join(" or ")))
            }
        })
    }

    /// Reads a moderation list, in place or from its file.
    fn list<T: Default>(&mut self, name: &'static str, read: impl FnOnce(&Written<'_>) -> Result<T, String>) -> T {
        let sources = self.sources;
        let in_file = sources.lists.get(name);
        let taken = self.take(name, |text| match in_file {
            Some((path, Ok(text))) => read(&Written::in_file(text)).map_err(|why| format!("{}: {why}", path.display())),
            Some((path, Err(why))) => Err(format!("{} {why}", path.display())),
            None => read(&Written::in_place(text)),
        });
        taken.unwrap_or_default()
    }

    /// Reads where commands reach the server; nothing if nowhere.
    fn admin_socket(&mut self, relay_data_path: &Path) -> Option<PathBuf> {
        let here = &self.sources.current_dir;
        if let Some(socket) = self.take("ADMIN_SOCKET", |text| parse::socket_file(text, here)) {
            if let Some(path) = &socket {
                self.restate("ADMIN_SOCKET", path.display().to_string());
            }
            return socket;
        }
        let is_given = self.effective.get("ADMIN_SOCKET").is_some_and(|effective| effective.origin != Origin::Default);
        if is_given || relay_data_path == Path::new("") {
            return None;
        }
        let path = relay_data_path.join(ADMIN_SOCKET_FILE);
        self.restate("ADMIN_SOCKET", path.display().to_string());
        match parse::socket_file(&path.display().to_string(), here) {
            Ok(socket) => socket,
            Err(message) => {
                self.problems.push(Problem::new("ADMIN_SOCKET (default)", message));
                None
            }
        }
    }

    /// Settings that are right alone and wrong together.
    fn contradictions(&mut self, config: &Config) {
        let (git, relay) = (&config.git_data_path, &config.relay_data_path);
        let unset = Path::new("");
        if git == unset || relay == unset {
            return;
        }
        let relation = if git == relay {
            Some(format!("are the same folder ({})", git.display()))
        } else if git.starts_with(relay) {
            Some(format!("lie in each other: {} is inside {}", git.display(), relay.display()))
        } else if relay.starts_with(git) {
            Some(format!("lie in each other: {} is inside {}", relay.display(), git.display()))
        } else {
            None
        };
        if let Some(relation) = relation {
            let message = format!("{relation}; give each its own");
            self.problems.push(Problem::new("GIT_DATA_PATH and RELAY_DATA_PATH", message));
        }
    }
}

/// A private key. What was given instead is never repeated.
fn secret_key(text: &str) -> Result<Secret, String> {
    let text = text.trim();
    match nostr::key::SecretKey::parse(text) {
        Ok(_) => Ok(Secret::new(text)),
        Err(_) => Err("is not a private key (nsec1… or 64 hex digits); its value is not shown here".to_owned()),
    }
}

/// What has to be shown by whoever measures; nothing if it is empty. What was given instead is never repeated.
fn token(text: &str) -> Result<Option<Secret>, String> {
    match text.trim() {
        "" => Ok(None),
        text if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Some(Secret::new(text))),
        _ => Err("has characters that cannot stand in a header; its value is not shown here".to_owned()),
    }
}

/// What is allowed but probably not meant.
fn warnings(sources: &Sources, config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let in_environment = sources.environment.keys().map(|name| (name, Origin::Environment));
    let in_dotenv = sources.dotenv.iter().flat_map(|dotenv| {
        let origin = |line| Origin::DotEnv { path: dotenv.path.clone(), line };
        dotenv.entries.iter().map(move |(name, (_, line))| (name, origin(*line)))
    });
    for (variable, origin) in in_environment.chain(in_dotenv) {
        let name = variable.strip_prefix(PREFIX).unwrap_or(variable);
        if settings::find(name).is_some() || name == FILE_VARIABLE || NOT_FOR_US.contains(&name) {
            continue;
        }
        let about = if NOT_USED_YET.contains(&name) {
            "is not used by this version of graspd".to_owned()
        } else if let Some(near) = suggest::nearest(name) {
            format!("is not a setting and has no effect; did you mean {}?", near.variable())
        } else {
            "is not a setting and has no effect".to_owned()
        };
        warnings.push(format!("{variable} ({origin}) {about}"));
    }
    if config.status == StatusAt::Private && config.metrics.bind.is_none() {
        warnings.push(
            "STATUS_ENABLE is private and METRICS_BIND_ADDRESS is not set, so the status page is nowhere".to_owned(),
        );
    }
    if config.bind.ip().is_unspecified() && config.origin("DOMAIN") == &Origin::Default {
        warnings.push(format!(
            "DOMAIN is not set, so the service calls itself {}, which nobody can reach; repositories cannot list it",
            config.domain
        ));
    }
    for network in config.trusted_proxies.iter().filter(|network| network.is_everything()) {
        warnings.push(format!("TRUSTED_PROXY_CIDRS has {network}: every client can claim any address"));
    }
    warnings
}

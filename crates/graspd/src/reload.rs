//! Reading the settings again while the service runs, and putting into force what can change without a restart.

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::policy::Rules;
use serde_json::{Value, json};
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config::{Config, ConfigErrors, Effective, Loaded, Origin};
use crate::sd_notify;
use crate::sd_notify::News;
use crate::writer::policy::{RulesChanged, RulesDoor};

/// Where rooms read the settings that hold now: those of the start, and what has changed since of those that can.
pub(crate) type Settings = watch::Receiver<Arc<Config>>;

/// How a setting is taken over.
type Take = fn(&mut Config, &Config);

/// The settings that hold as soon as they are read again. All others need a restart.
const CHANGEABLE: &[(&str, Take)] = &[
    ("RELAY_NAME", |old, new| old.relay_name.clone_from(&new.relay_name)),
    ("RELAY_DESCRIPTION", |old, new| old.relay_description.clone_from(&new.relay_description)),
    ("DISK_BUDGET_BYTES", |old, new| old.disk = new.disk),
    ("DISK_SOFT_PERCENT", |old, new| old.disk = new.disk),
    ("PURGATORY_EXPIRY_SECS", |old, new| old.purgatory_expiry = new.purgatory_expiry),
    ("MAX_CONNECTIONS", |old, new| old.max_connections = new.max_connections),
    ("RELAY_MAX_EVENT_SIZE_BYTES", |old, new| old.max_event_bytes = new.max_event_bytes),
    ("GIT_MAX_PUSH_BYTES", |old, new| old.git.max_push_bytes = new.git.max_push_bytes),
    ("GIT_MAX_UNSIGNED_PUSH_BYTES", |old, new| old.git.max_unsigned_push_bytes = new.git.max_unsigned_push_bytes),
    ("GIT_MAX_OBJECTS", |old, new| old.git.max_objects = new.git.max_objects),
    ("GIT_PACK_CACHE_BYTES", |old, new| old.git.pack_cache_bytes = new.git.pack_cache_bytes),
    ("GIT_PEER_CONCURRENT", |old, new| old.git.peers = new.git.peers),
    ("GIT_PEER_RATE_LIMIT", |old, new| old.git.peers = new.git.peers),
    ("QUOTA_REPOSITORIES_PER_KEY", |old, new| old.quotas = new.quotas),
    ("QUOTA_BYTES_PER_REPOSITORY", |old, new| old.quotas = new.quotas),
    ("QUOTA_BYTES_PER_KEY", |old, new| old.quotas = new.quotas),
    ("RELAY_MAX_SUBSCRIPTIONS", |old, new| old.max_subscriptions = new.max_subscriptions),
    ("RELAY_MAX_NEG_SESSIONS", |old, new| old.max_neg_sessions = new.max_neg_sessions),
    ("RELAY_FILTER_LIMIT", |old, new| old.filter_limit = new.filter_limit),
    ("NETWORK_MAX_CONNECTIONS", |old, new| old.network_max_connections = new.network_max_connections),
    ("NETWORK_EVENTS_PER_MINUTE", |old, new| old.network_events_per_minute = new.network_events_per_minute),
    ("REPOSITORY_WHITELIST", take_lists),
    ("REPOSITORY_BLACKLIST", take_lists),
    ("EVENT_BLACKLIST", take_lists),
    ("ARCHIVE_ALL", take_lists),
    ("ARCHIVE_WHITELIST", take_lists),
    ("ARCHIVE_GRASP_SERVICES", take_lists),
    ("ARCHIVE_READ_ONLY", take_lists),
    ("LOG_LEVEL", |old, new| old.log_level.clone_from(&new.log_level)),
];

/// All lists together: some are read from files whose text may change while the setting stays.
fn take_lists(old: &mut Config, new: &Config) {
    old.lists.clone_from(&new.lists);
}

/// Reads all settings as at the start, from the same arguments, environment and files.
type Read = Box<dyn Fn() -> Result<Loaded, ConfigErrors> + Send + Sync>;

/// Changes how much is logged.
type SetLevel = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// What the program was started with, to be asked again.
pub(crate) struct Origins {
    pub(crate) read: Read,
    pub(crate) log: SetLevel,
}

/// Reads the settings again.
pub(crate) struct Reloader {
    origins: Origins,
    door: RulesDoor,
    /// What holds. Held while settings are read and taken over, so that two who ask do not mix.
    current: Mutex<watch::Sender<Arc<Config>>>,
}

/// What came of reading the settings again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    /// What holds now: setting, before, now.
    pub(crate) changed: Vec<(&'static str, String, String)>,
    /// Whether the lists are others than before.
    pub(crate) lists: bool,
    /// What came of it.
    pub(crate) rules: RulesChanged,
    /// Settings that are others than at the start and need a restart.
    pub(crate) restart: Vec<&'static str>,
    /// Settings that could change, but for standing in the environment, which is that of the start.
    pub(crate) fixed: Vec<&'static str>,
    /// One sentence each.
    pub(crate) warnings: Vec<String>,
}

impl Reloader {
    /// `current` holds what the service was started with.
    pub(crate) fn new(origins: Origins, door: RulesDoor, current: watch::Sender<Arc<Config>>) -> Arc<Self> {
        Arc::new(Self { origins, door, current: Mutex::new(current) })
    }

    /// Reads the settings again and puts into force what can change. If anything is wrong with them, all stays as it was.
    /// Not for a thread of the runtime: it waits for the disk.
    pub(crate) fn reload(&self) -> Result<Reloaded, ConfigErrors> {
        sd_notify::tell(News::Reloading);
        let reloaded = self.read_again();
        sd_notify::tell(News::Ready);
        reloaded
    }

    fn read_again(&self) -> Result<Reloaded, ConfigErrors> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { config: mut new, mut warnings } = (self.origins.read)()?;
        let old = current.borrow().clone();
        if new.log_level != old.log_level
            && let Err(problem) = (self.origins.log)(&new.log_level)
        {
            warnings.push(format!("the log level stays as it is: {problem}"));
            keep_level(&old, &mut new);
        }
        let (config, mut reloaded) = take_over(&old, &mut new);
        reloaded.warnings = warnings;
        let rules = self.door.rules();
        let changed = Rules {
            lists: config.lists.clone(),
            quotas: config.quotas,
            max_event_bytes: config.max_event_bytes,
            purgatory_secs: config.purgatory_expiry.as_secs(),
            ..Rules::clone(&rules)
        };
        if changed != *rules {
            match self.door.change(changed) {
                Ok(changed) => reloaded.rules = changed,
                Err(problem) => reloaded.warnings.push(format!("{problem:#}")),
            }
        }
        if reloaded.lists || !reloaded.changed.is_empty() {
            current.send_replace(Arc::new(config));
        }
        Ok(reloaded)
    }
}

/// Undoes a change of the log level.
fn keep_level(old: &Config, new: &mut Config) {
    new.log_level.clone_from(&old.log_level);
    for (before, now) in old.effective.iter().zip(&mut new.effective).filter(|(_, now)| now.name == "LOG_LEVEL") {
        now.clone_from(before);
    }
}

/// What holds when everything that can change has changed.
fn take_over(old: &Config, new: &mut Config) -> (Config, Reloaded) {
    // Port 0 became another one at the start, and the name of the service with it.
    if text_of(old, "BIND_ADDRESS") == text_of(new, "BIND_ADDRESS") {
        new.bound_to(old.bind);
    }
    let mut config = old.clone();
    let mut reloaded = Reloaded { lists: *old.lists != *new.lists, ..Reloaded::default() };
    for (before, now) in config.effective.iter_mut().zip(&new.effective) {
        let is_changeable = CHANGEABLE.iter().any(|(name, _)| *name == before.name);
        // The file of a list may change.
        if is_changeable && now.origin == Origin::Environment && !now.value.starts_with('@') {
            reloaded.fixed.push(now.name);
        }
        let is_other_secret = match before.name {
            "RELAY_OWNER_NSEC" => old.owner_secret != new.owner_secret,
            "METRICS_TOKEN" => old.metrics.token != new.metrics.token,
            _ => false,
        };
        if before.value == now.value && !is_other_secret {
            continue;
        }
        if is_changeable {
            let Effective { name, value, .. } = std::mem::replace(before, now.clone());
            reloaded.changed.push((name, value, now.value.clone()));
        } else {
            reloaded.restart.push(before.name);
        }
    }
    for (_, take) in CHANGEABLE {
        take(&mut config, new);
    }
    (config, reloaded)
}

fn text_of<'c>(config: &'c Config, name: &str) -> Option<&'c str> {
    config.effective.iter().find(|effective| effective.name == name).map(|effective| effective.value.as_str())
}

/// Reads the settings again whenever a hangup asks for it; the log says what came of it.
pub(crate) async fn on_hangup(mut hangup: Signal, reloader: Arc<Reloader>) {
    while hangup.recv().await.is_some() {
        let reloader = reloader.clone();
        match tokio::task::spawn_blocking(move || reloader.reload()).await {
            Ok(Ok(reloaded)) => reloaded.log(),
            Ok(Err(errors)) => warn!("the settings stay as they were: {errors}"),
            Err(_) => return,
        }
    }
}

impl Reloaded {
    /// For the log.
    pub(crate) fn log(&self) {
        for (name, before, now) in &self.changed {
            info!(setting = name, before, now, "a setting has changed");
        }
        for warning in &self.warnings {
            warn!("{warning}");
        }
        if !self.restart.is_empty() {
            warn!(settings = self.restart.join(", "), "some settings are others now and need a restart");
        }
        info!(lists_changed = self.lists, banned = self.rules.banned, "read the settings again");
    }

    /// For programs.
    pub(crate) fn to_json(&self) -> Value {
        let changed = self.changed.iter().map(|(name, before, now)| json!({"name": name, "from": before, "to": now}));
        json!({
            "changed": changed.collect::<Vec<_>>(), "lists_changed": self.lists, "banned": self.rules.banned,
            "restart": self.restart, "fixed": self.fixed, "warnings": self.warnings,
        })
    }
}

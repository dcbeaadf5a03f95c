//! Reads the settings again while the server runs, and applies those that can change without a restart: the ones that are
//! declared with `.reloads()`.

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::policy::AdmissionPolicy;
use serde_json::{Value, json};
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config;
use crate::config::{Config, ConfigErrors, EffectiveSetting, LoadedConfig, SettingGroup, SettingOrigin};
use crate::logging::SetLevel;
use crate::sd_notify;
use crate::sd_notify::NotifyState;
use crate::writer::policy::{PolicyChange, PolicyHandle};

/// Reads all settings from the same sources as at the start.
type ReadSettings = Box<dyn Fn() -> Result<LoadedConfig, ConfigErrors> + Send + Sync>;

/// How the settings are read and the log level is changed, as set up at the start.
pub(crate) struct ReloadSources {
    pub(crate) read: ReadSettings,
    pub(crate) set_log_level: SetLevel,
}

/// Reads the settings again.
pub(crate) struct Reloader {
    sources: ReloadSources,
    policy_handle: PolicyHandle,
    /// The current settings. Locked while settings are read and applied, so that two reloads do not mix.
    current: Mutex<watch::Sender<Arc<Config>>>,
}

/// Result of a reload.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReloadReport {
    /// Changed settings: name, old value, new value.
    pub(crate) changed: Vec<(&'static str, String, String)>,
    /// Whether the moderation lists have changed.
    pub(crate) lists_changed: bool,
    /// Effects of the changed policy.
    pub(crate) policy_change: PolicyChange,
    /// Changed settings that need a restart.
    pub(crate) restart: Vec<&'static str>,
    /// Changeable settings that are given by an environment variable, which is that of the start.
    pub(crate) fixed_by_environment: Vec<&'static str>,
    /// One sentence per warning.
    pub(crate) warnings: Vec<String>,
}

impl Reloader {
    /// `current` contains the settings of the start.
    pub(crate) fn new(
        sources: ReloadSources,
        policy_handle: PolicyHandle,
        current: watch::Sender<Arc<Config>>,
    ) -> Arc<Self> {
        Arc::new(Self { sources, policy_handle, current: Mutex::new(current) })
    }

    /// Reads the settings again and applies those that can change. If a setting is invalid, nothing changes. It blocks,
    /// so it must not be called on a thread of the runtime.
    pub(crate) fn reload(&self) -> Result<ReloadReport, ConfigErrors> {
        sd_notify::notify(NotifyState::Reloading);
        let report = self.load_and_apply();
        sd_notify::notify(NotifyState::Ready);
        report
    }

    fn load_and_apply(&self) -> Result<ReloadReport, ConfigErrors> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let LoadedConfig { config: mut new, mut warnings } = (self.sources.read)()?;
        let old = current.borrow().clone();
        if new.log_level != old.log_level
            && let Err(problem) = (self.sources.set_log_level)(&new.log_level)
        {
            warnings.push(format!("the log level is unchanged: {problem}"));
            keep_log_level(&old, &mut new);
        }
        let (config, mut report) = apply_changeable(&old, &mut new);
        report.warnings = warnings;
        let rules = self.policy_handle.policy();
        let changed = AdmissionPolicy {
            lists: config.lists.clone(),
            quotas: config.quotas,
            max_event_bytes: config.max_event_bytes,
            purgatory_secs: config.purgatory_expiry.as_secs(),
            ..AdmissionPolicy::clone(&rules)
        };
        if changed != *rules {
            match self.policy_handle.change(changed) {
                Ok(changed) => report.policy_change = changed,
                Err(problem) => report.warnings.push(format!("{problem:#}")),
            }
        }
        if report.lists_changed || !report.changed.is_empty() {
            current.send_replace(Arc::new(config));
        }
        Ok(report)
    }
}

/// Undoes a change of the log level.
fn keep_log_level(old: &Config, new: &mut Config) {
    new.log_level.clone_from(&old.log_level);
    for (before, now) in old.effective.iter().zip(&mut new.effective).filter(|(_, now)| now.name == "LOG_LEVEL") {
        now.clone_from(before);
    }
}

/// Returns the settings after all changeable ones have been applied, and what has changed.
fn apply_changeable(old: &Config, new: &mut Config) -> (Config, ReloadReport) {
    // Port 0 was replaced by a real port at the start, and the derived domain with it.
    if shown_value(old, "BIND_ADDRESS") == shown_value(new, "BIND_ADDRESS") {
        new.set_bound_address(old.bind);
    }
    let mut config = old.clone();
    let mut report = ReloadReport { lists_changed: *old.lists != *new.lists, ..ReloadReport::default() };
    for (before, now) in config.effective.iter_mut().zip(&new.effective) {
        let is_changeable = config::find(before.name).is_some_and(|setting| setting.can_reload);
        // A list in a file can change although the variable cannot.
        if is_changeable && now.origin == SettingOrigin::Environment && !now.value.starts_with('@') {
            report.fixed_by_environment.push(now.name);
        }
        if before.value == now.value && before.secret == now.secret {
            continue;
        }
        if is_changeable {
            let EffectiveSetting { name, value, .. } = std::mem::replace(before, now.clone());
            report.changed.push((name, value, now.value.clone()));
        } else {
            report.restart.push(before.name);
        }
    }
    config.reload(new);
    (config, report)
}

fn shown_value<'c>(config: &'c Config, name: &str) -> Option<&'c str> {
    config.effective.iter().find(|effective| effective.name == name).map(|effective| effective.value.as_str())
}

/// Reloads the settings at each SIGHUP, and logs the result.
pub(crate) async fn reload_on_sighup(mut hangup: Signal, reloader: Arc<Reloader>) {
    while hangup.recv().await.is_some() {
        let reloader = reloader.clone();
        match tokio::task::spawn_blocking(move || reloader.reload()).await {
            Ok(Ok(report)) => report.log(),
            Ok(Err(errors)) => warn!(target: "admin", %errors, "invalid settings, settings unchanged"),
            Err(_) => return,
        }
    }
}

impl ReloadReport {
    /// Logs the result.
    pub(crate) fn log(&self) {
        for (name, before, now) in &self.changed {
            info!(target: "admin", setting = name, before, now, "setting changed");
        }
        for warning in &self.warnings {
            warn!(target: "admin", warning, "problem in the settings");
        }
        if !self.restart.is_empty() {
            warn!(target: "admin", settings = self.restart.join(", "), "changed settings need a restart");
        }
        let banned = self.policy_change.banned_repos;
        info!(target: "admin", lists_changed = self.lists_changed, banned, "settings reloaded");
    }

    /// Returns the JSON form.
    pub(crate) fn to_json(&self) -> Value {
        let changed = self.changed.iter().map(|(name, before, now)| json!({"name": name, "from": before, "to": now}));
        json!({
            "changed": changed.collect::<Vec<_>>(), "lists_changed": self.lists_changed,
            "banned": self.policy_change.banned_repos, "restart": self.restart, "warnings": self.warnings,
            "fixed": self.fixed_by_environment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys and values are part of the interface: users read `graspd reload --json`.
    #[test]
    fn json_of_the_report_is_stable() {
        let report = ReloadReport {
            changed: vec![("LOG_LEVEL", "info".to_owned(), "debug".to_owned())],
            lists_changed: true,
            policy_change: PolicyChange { banned_repos: 2 },
            restart: vec!["DOMAIN"],
            fixed_by_environment: vec!["RELAY_NAME"],
            warnings: vec!["careful".to_owned()],
        };
        assert_eq!(
            report.to_json().to_string(),
            r#"{"banned":2,"changed":[{"from":"info","name":"LOG_LEVEL","to":"debug"}],"fixed":["RELAY_NAME"],"lists_changed":true,"restart":["DOMAIN"],"warnings":["careful"]}"#
        );
    }
}

//! Reads the settings again while the server runs, and applies those that can change without a restart: the ones that are
//! declared with `.reloads()`.

use std::sync::{Arc, Mutex, PoisonError};

use grasp_core::admission::policy::AdmissionPolicy;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::Signal;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::config;
use crate::config::{
    Config, ConfigErrors, EffectiveSetting, LoadedConfig, SettingGroup, SettingOrigin, SettingsReceiver,
};
use crate::logging::SetLevel;
use crate::sd_notify;
use crate::sd_notify::NotifyState;
use crate::writer::policy::PolicyHandle;

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
    /// Receives the current settings, for readers that must not wait for a reload.
    settings: SettingsReceiver,
}

/// Result of a reload.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReloadReport {
    pub(crate) changed: Vec<ChangedSetting>,
    /// Whether the moderation lists have changed.
    pub(crate) lists_changed: bool,
    /// Number of repositories that the new policy bans.
    pub(crate) banned: usize,
    /// Changed settings that need a restart.
    pub(crate) restart: Vec<String>,
    /// Changeable settings that are given by an environment variable, which is that of the start.
    #[serde(rename = "fixed")]
    pub(crate) fixed_by_environment: Vec<String>,
    /// One sentence per warning.
    pub(crate) warnings: Vec<String>,
}

/// A changed setting, with its old and its new value.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChangedSetting {
    pub(crate) name: String,
    pub(crate) from: String,
    pub(crate) to: String,
}

impl Reloader {
    /// `current` contains the settings of the start.
    pub(crate) fn new(
        sources: ReloadSources,
        policy_handle: PolicyHandle,
        current: watch::Sender<Arc<Config>>,
    ) -> Arc<Self> {
        let settings = current.subscribe();
        Arc::new(Self { sources, policy_handle, current: Mutex::new(current), settings })
    }

    /// Returns the current settings.
    pub(crate) fn settings(&self) -> Arc<Config> {
        self.settings.borrow().clone()
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
            dormant_secs: config.purgatory_dormant.as_secs(),
            ..AdmissionPolicy::clone(&rules)
        };
        if changed != *rules {
            match self.policy_handle.change(changed) {
                Ok(change) => report.banned = change.banned_repos,
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
            report.fixed_by_environment.push(now.name.to_owned());
        }
        if before.value == now.value && before.secret == now.secret {
            continue;
        }
        if is_changeable {
            let EffectiveSetting { name, value, .. } = std::mem::replace(before, now.clone());
            report.changed.push(ChangedSetting { name: name.to_owned(), from: value, to: now.value.clone() });
        } else {
            report.restart.push(before.name.to_owned());
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
        for ChangedSetting { name, from, to } in &self.changed {
            info!(target: "admin", setting = name, before = from, now = to, "setting changed");
        }
        for warning in &self.warnings {
            warn!(target: "admin", warning, "problem in the settings");
        }
        if !self.restart.is_empty() {
            warn!(target: "admin", settings = self.restart.join(", "), "changed settings need a restart");
        }
        info!(target: "admin", lists_changed = self.lists_changed, banned = self.banned, "settings reloaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys and values are part of the interface: users read `graspd reload --json`.
    #[test]
    fn json_of_the_report_is_stable() {
        let changed = ChangedSetting { name: "LOG_LEVEL".to_owned(), from: "info".to_owned(), to: "debug".to_owned() };
        let report = ReloadReport {
            changed: vec![changed],
            lists_changed: true,
            banned: 2,
            restart: vec!["DOMAIN".to_owned()],
            fixed_by_environment: vec!["RELAY_NAME".to_owned()],
            warnings: vec!["careful".to_owned()],
        };
        assert_eq!(
            serde_json::json!(report).to_string(),
            r#"{"banned":2,"changed":[{"from":"info","name":"LOG_LEVEL","to":"debug"}],"fixed":["RELAY_NAME"],"lists_changed":true,"restart":["DOMAIN"],"warnings":["careful"]}"#
        );
    }
}

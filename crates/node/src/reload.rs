//! Reading the settings again while the service runs, and putting into force what can change without a restart.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use grasp_core::registrar::policy::Rules;
use tokio::signal::unix::Signal;
use tracing::{info, warn};

use crate::config::{ConfigErrors, Effective, Loaded};
use crate::hands::rulebook::{RulesChanged, RulesDoor};

/// How settings are read: as at the start, from the same arguments, environment and files.
pub(crate) type Load = Box<dyn Fn() -> Result<Loaded, ConfigErrors> + Send + Sync>;

/// Reads the settings again.
pub(crate) struct Reloader {
    load: Load,
    door: RulesDoor,
    /// What holds; one reading at a time.
    holds: Mutex<Vec<Effective>>,
}

/// What came of reading the settings again.
#[derive(Debug)]
pub(crate) struct Reloaded {
    /// Whether the lists are others than before.
    pub(crate) lists: bool,
    /// What came of it.
    pub(crate) rules: RulesChanged,
    /// Settings that are others than at the start and need a restart.
    pub(crate) restart: Vec<&'static str>,
    /// One sentence each.
    pub(crate) warnings: Vec<String>,
}

/// Settings that hold at once.
const LISTS: [&str; 7] = [
    "REPOSITORY_WHITELIST",
    "REPOSITORY_BLACKLIST",
    "EVENT_BLACKLIST",
    "ARCHIVE_ALL",
    "ARCHIVE_WHITELIST",
    "ARCHIVE_GRASP_SERVICES",
    "ARCHIVE_READ_ONLY",
];

impl Reloader {
    /// `holds` is what the service was started with.
    pub(crate) fn new(load: Load, door: RulesDoor, holds: Vec<Effective>) -> Arc<Self> {
        Arc::new(Self { load, door, holds: Mutex::new(holds) })
    }

    /// Reads the settings again and puts the lists into force. If anything is wrong with them, all stays as it was. Not
    /// for a thread of the runtime: it waits for the disk.
    pub(crate) fn reload(&self) -> Result<Reloaded> {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { config, warnings } = (self.load)()?;
        let old = self.door.rules();
        let lists = *old.lists != *config.lists;
        let rules = if lists {
            self.door.change(Rules { lists: config.lists, ..Rules::clone(&old) })?
        } else {
            RulesChanged::default()
        };
        let other = |new: &&Effective| {
            let before = holds.iter().find(|old| old.name == new.name);
            // What was worked out from the real address is not what is written.
            before.is_some_and(|old| (&old.value, &old.origin) != (&new.value, &new.origin) && !old.is_derived())
        };
        let others = config.effective.iter().filter(other).map(|new| new.name);
        let restart = others.filter(|name| !LISTS.contains(name)).collect();
        Ok(Reloaded { lists, rules, restart, warnings })
    }
}

/// Reads the settings again whenever a hangup asks for it; the log says what came of it.
pub(crate) async fn on_hangup(mut hangup: Signal, reloader: Arc<Reloader>) {
    while hangup.recv().await.is_some() {
        let reloader = reloader.clone();
        match tokio::task::spawn_blocking(move || reloader.reload()).await {
            Ok(Ok(reloaded)) => reloaded.log(),
            Ok(Err(problem)) => warn!("the settings stay as they were: {problem:#}"),
            Err(_) => return,
        }
    }
}

impl Reloaded {
    fn log(&self) {
        for warning in &self.warnings {
            warn!("{warning}");
        }
        if !self.restart.is_empty() {
            warn!(settings = self.restart.join(", "), "some settings are others now and need a restart");
        }
        info!(lists_changed = self.lists, banned = self.rules.banned, "read the settings again");
    }
}

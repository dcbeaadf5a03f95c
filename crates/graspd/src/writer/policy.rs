//! The current admission policy, and the handle that changes it while the server runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Result, bail};
use grasp_core::admission::policy::AdmissionPolicy;
use grasp_core::admission::policy::lists::ModerationLists;
use grasp_core::sync::io::SyncPolicyChange;
use grasp_core::sync::relay_url::RelayUrl;

use super::command::WriterCommand;
use super::queue::EventQueue;
use super::sync_feed::SyncFeed;
use crate::config;
use crate::config::Config;

/// How long a change of the policy waits for the writer. A commit takes milliseconds.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// Version of the filters that sync uses. Coverage that was reached with another version does not count.
const FILTER_VERSION: u32 = 2;

/// The policy that is in force. The lock is held only to copy or to replace the pointer.
#[derive(Debug)]
pub(crate) struct CurrentPolicy(RwLock<Arc<AdmissionPolicy>>);

impl CurrentPolicy {
    pub(crate) fn new(policy: AdmissionPolicy) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(policy))))
    }

    /// Returns the policy that is in force.
    pub(crate) fn policy(&self) -> Arc<AdmissionPolicy> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, policy: Arc<AdmissionPolicy>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }
}

/// Consequences of a changed policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PolicyChange {
    /// Number of repositories, served or held, that the new policy bans and that are being removed.
    pub(crate) banned_repos: usize,
}

/// Changes the policy of a running server.
pub(crate) struct PolicyHandle {
    current: Arc<CurrentPolicy>,
    queue: Arc<EventQueue>,
    /// `None` if sync is disabled.
    sync: Option<(Arc<SyncFeed>, CoverageBasis)>,
}

/// Settings, beside the moderation lists, on which the coverage of sync depends.
pub(crate) struct CoverageBasis {
    instance: String,
    domain: String,
    strict_maintainers: bool,
    policy: u8,
    bootstrap: Vec<RelayUrl>,
}

impl CoverageBasis {
    pub(crate) fn new(config: &Config, instance: &str) -> Self {
        Self {
            instance: instance.to_owned(),
            domain: config.domain.clone(),
            strict_maintainers: config.strict_maintainers,
            policy: config.policy as u8,
            bootstrap: config.sync.bootstrap.clone(),
        }
    }

    /// Returns the epoch of sync's coverage: a hash of everything that coverage depends on (store, policy, filters).
    /// Stored coverage of another epoch does not count.
    pub(crate) fn epoch(&self, policy: &AdmissionPolicy) -> u64 {
        let mut epoch = DefaultHasher::new();
        (FILTER_VERSION, &self.instance, &self.domain, self.strict_maintainers, self.policy).hash(&mut epoch);
        // Events above the limit are remembered as rejected until the epoch changes.
        policy.max_event_bytes.hash(&mut epoch);
        // Empty lists are not hashed, so that the epoch is the same as in versions that had no lists.
        if *policy.lists != ModerationLists::default() {
            policy.lists.hash(&mut epoch);
        }
        epoch.finish()
    }

    /// Returns the relays that are followed even if no repository lists them: those that the operator configured, and
    /// those of archived services.
    pub(crate) fn bootstrap_relays(&self, lists: &ModerationLists) -> Vec<RelayUrl> {
        let mut relays = self.bootstrap.clone();
        for relay in config::archived_service_relays(lists) {
            if relays.iter().all(|known| known.without_scheme() != relay.without_scheme()) {
                relays.push(relay);
            }
        }
        relays
    }
}

impl PolicyHandle {
    pub(crate) fn new(
        current: Arc<CurrentPolicy>,
        queue: Arc<EventQueue>,
        sync: Option<(Arc<SyncFeed>, CoverageBasis)>,
    ) -> Self {
        Self { current, queue, sync }
    }

    /// Returns the policy that is in force.
    pub(crate) fn policy(&self) -> Arc<AdmissionPolicy> {
        self.current.policy()
    }

    /// Replaces the policy, for new events as well as for stored ones. Waits until the writer has committed the change;
    /// removal of what the new policy bans has begun by then and may take a few more batches.
    ///
    /// Blocks: not for a thread of the async runtime.
    ///
    /// # Errors
    ///
    /// Fails if the new policy is for another service, which needs a restart, or if the writer cannot commit in time.
    /// In the latter case the new policy takes effect as soon as the store can be written.
    pub(crate) fn change(&self, policy: AdmissionPolicy) -> Result<PolicyChange> {
        let old = self.policy();
        if !old.is_same_service(&policy) {
            bail!("only lists and limits can change while the server runs; restart it to apply the other settings");
        }
        let policy = Arc::new(policy);
        // Replaced first: the writer applies it with its next batch even if the command is lost.
        self.current.replace(policy.clone());
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.queue.send(WriterCommand::PolicyChanged(reply));
        let change = answer.recv_timeout(CHANGE_TIMEOUT);
        if let Some((sync_feed, basis)) = &self.sync {
            sync_feed.send_policy(SyncPolicyChange {
                epoch: basis.epoch(&policy),
                bootstrap: basis.bootstrap_relays(&policy.lists),
                accepts_more: policy.lists.may_accept_more_than(&old.lists)
                    || policy.max_event_bytes > old.max_event_bytes,
            });
        }
        match change {
            Ok(change) => Ok(change),
            Err(_) => bail!("the store cannot be written; the new lists and limits take effect as soon as it can"),
        }
    }
}

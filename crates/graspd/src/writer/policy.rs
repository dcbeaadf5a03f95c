//! The rules that hold, where everybody finds them, and the door through which the operator changes them.

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

/// How long whoever changes the rules waits to hear that they hold: a commit takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The version of the filters that sync says; coverage of another version is worth nothing.
const FILTERS: u32 = 1;

/// The rules that hold. The lock is held for a look, and to put others in their place.
#[derive(Debug)]
pub(crate) struct CurrentPolicy(RwLock<Arc<AdmissionPolicy>>);

impl CurrentPolicy {
    pub(crate) fn new(rules: AdmissionPolicy) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(rules))))
    }

    /// The rules that hold now.
    pub(crate) fn rules(&self) -> Arc<AdmissionPolicy> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, rules: Arc<AdmissionPolicy>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}

/// What came of other rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PolicyChange {
    /// Repositories here, hosted or waiting, that are banned now and go.
    pub(crate) banned: usize,
}

/// Through which the operator changes the rules of a running server.
pub(crate) struct PolicyHandle {
    book: Arc<CurrentPolicy>,
    line: Arc<EventQueue>,
    /// Nothing if no other relays are followed.
    sync: Option<(Arc<SyncFeed>, CoverageBasis)>,
}

/// What sync's coverage rests on, beside the lists.
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

    /// What is covered was covered by this store, under this policy, with these filters.
    pub(crate) fn epoch(&self, lists: &ModerationLists) -> u64 {
        let mut epoch = DefaultHasher::new();
        (FILTERS, &self.instance, &self.domain, self.strict_maintainers, self.policy).hash(&mut epoch);
        // As it was before there were lists, if there are none.
        if *lists != ModerationLists::default() {
            lists.hash(&mut epoch);
        }
        epoch.finish()
    }

    /// Relays that are followed whoever names them: the operator's, and those of services that are archived.
    pub(crate) fn bootstrap(&self, lists: &ModerationLists) -> Vec<RelayUrl> {
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
        book: Arc<CurrentPolicy>,
        line: Arc<EventQueue>,
        sync: Option<(Arc<SyncFeed>, CoverageBasis)>,
    ) -> Self {
        Self { book, line, sync }
    }

    /// The rules that hold now.
    pub(crate) fn rules(&self) -> Arc<AdmissionPolicy> {
        self.book.rules()
    }

    /// Puts other rules into force: for whatever comes, and for whatever is here. Waits until the registrar has them on
    /// disk; what they ban is out of sight then or goes within moments. Not for a thread of the runtime.
    pub(crate) fn change(&self, rules: AdmissionPolicy) -> Result<PolicyChange> {
        let old = self.rules();
        if !old.is_same_service(&rules) {
            bail!("only lists and limits can change while the service runs");
        }
        let rules = Arc::new(rules);
        // Whatever happens next, the desk finds them there.
        self.book.replace(rules.clone());
        let (reply, answer) = crossbeam_channel::bounded(1);
        self.line.post(WriterCommand::Rules(reply));
        let changed = answer.recv_timeout(PATIENCE);
        if let Some((post, basis)) = &self.sync {
            post.send_rules(SyncPolicyChange {
                epoch: basis.epoch(&rules.lists),
                bootstrap: basis.bootstrap(&rules.lists),
                accepts_more: rules.lists.may_accept_more_than(&old.lists)
                    || rules.max_event_bytes > old.max_event_bytes,
            });
        }
        match changed {
            Ok(changed) => Ok(changed),
            Err(_) => bail!("the store cannot be written at the moment; the new rules hold as soon as it can"),
        }
    }
}

//! What is measured, for `GET /metrics`.
//!
//! - [`relay`] and [`git`]: clients. [`sync`]: other relays. [`hunt`]: git servers. [`house`]: queues, budgets, disk,
//!   machines. [`process`]: the process.
//! - [`ledger`]: what is registered. [`labels`]: whose name may be a label. [`words`]: labels of our own. [`top`]: the heaviest of many.
//! - [`log`]: what is also said in the log.
//!
//! A room's numbers are the fields of one struct, which registers them in its `new` and has a method for everything that
//! can happen there; nobody else touches them. Rules for all of them:
//!
//! - A name stands in the code as it stands in the answer, so that both are found by the same search.
//! - Values of a label are words of ours. Names that strangers choose go through [`label_limit::Own`], or they are no labels.
//! - Nothing is measured by an answer: it only reads numbers.

pub(crate) mod fetch;
pub(crate) mod git;
mod heavy_hitters;
pub(crate) mod label_limit;
pub(crate) mod labels;
pub(crate) mod process;
mod registry;
pub(crate) mod relay;
pub(crate) mod server;
pub(crate) mod sync;

use std::sync::Arc;

use self::git::GitMetrics;
use self::process::ProcessMetrics;
use self::relay::RelayMetrics;
use self::sync::SyncMetrics;
use super::config::MetricsLimits;
use super::metrics::fetch::FetchMetrics;
use super::metrics::registry::{MetricRegistry, counter, gauge, histogram};
use super::metrics::server::ServerMetrics;

/// What [`Metrics::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All numbers of this process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    ledger: MetricRegistry,
    relay: RelayMetrics,
    git: GitMetrics,
    sync: SyncMetrics,
    hunt: FetchMetrics,
    house: ServerMetrics,
    process: ProcessMetrics,
}

impl Metrics {
    /// Everything at zero.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with(MetricsLimits::default())
    }

    /// Everything at zero.
    pub(crate) fn with(limits: MetricsLimits) -> Self {
        let mut ledger = MetricRegistry::default();
        let to = &mut ledger;
        let (relay, git) = (RelayMetrics::new(to, limits.abuse_threshold), GitMetrics::new(to, limits.top_repos));
        let (sync, hunt) = (SyncMetrics::new(to), FetchMetrics::new(to));
        let (house, process) = (ServerMetrics::new(to), ProcessMetrics::new(to));
        Self(Arc::new(Rooms { ledger, relay, git, sync, hunt, house, process }))
    }

    /// What is measured about clients of the relay.
    pub(crate) fn relay(&self) -> &RelayMetrics {
        &self.0.relay
    }

    /// What is measured about git clients.
    pub(crate) fn git(&self) -> &GitMetrics {
        &self.0.git
    }

    /// What is measured about the search for git data.
    pub(crate) fn hunt(&self) -> &FetchMetrics {
        &self.0.hunt
    }

    /// What is measured about queues, budgets, disk and machines.
    pub(crate) fn house(&self) -> &ServerMetrics {
        &self.0.house
    }

    /// What is measured about the process.
    pub(crate) fn process(&self) -> &ProcessMetrics {
        &self.0.process
    }

    /// What is measured about other relays.
    pub(crate) fn sync(&self) -> &SyncMetrics {
        &self.0.sync
    }

    /// Everything as it is now, as [`CONTENT_TYPE`].
    pub(crate) fn encode(&self) -> String {
        self.0.ledger.encode()
    }

    /// Everything that is measured, in Markdown.
    pub(crate) fn reference(&self) -> String {
        self.0.ledger.reference()
    }
}

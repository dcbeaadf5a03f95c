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

use self::git::GitMeter;
use self::process::ProcessMeter;
use self::relay::RelayMeter;
use self::sync::SyncMeter;
use super::metrics::fetch::HuntMeter;
use super::metrics::registry::{Ledger, counter, gauge, histogram};
use super::metrics::server::HouseMeter;

/// What [`Meter::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All numbers of this process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    ledger: Ledger,
    relay: RelayMeter,
    git: GitMeter,
    sync: SyncMeter,
    hunt: HuntMeter,
    house: HouseMeter,
    process: ProcessMeter,
}

/// What an operator may choose about measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scales {
    /// Connections of an address above which it is counted as an abuser's.
    pub(crate) abuse_threshold: usize,
    /// Repositories that are told by name.
    pub(crate) top_repos: usize,
}

impl Default for Scales {
    fn default() -> Self {
        Self { abuse_threshold: 10, top_repos: 10 }
    }
}

impl Meter {
    /// Everything at zero.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with(Scales::default())
    }

    /// Everything at zero.
    pub(crate) fn with(scales: Scales) -> Self {
        let mut ledger = Ledger::default();
        let to = &mut ledger;
        let (relay, git) = (RelayMeter::new(to, scales.abuse_threshold), GitMeter::new(to, scales.top_repos));
        let (sync, hunt) = (SyncMeter::new(to), HuntMeter::new(to));
        let (house, process) = (HouseMeter::new(to), ProcessMeter::new(to));
        Self(Arc::new(Rooms { ledger, relay, git, sync, hunt, house, process }))
    }

    /// What is measured about clients of the relay.
    pub(crate) fn relay(&self) -> &RelayMeter {
        &self.0.relay
    }

    /// What is measured about git clients.
    pub(crate) fn git(&self) -> &GitMeter {
        &self.0.git
    }

    /// What is measured about the search for git data.
    pub(crate) fn hunt(&self) -> &HuntMeter {
        &self.0.hunt
    }

    /// What is measured about queues, budgets, disk and machines.
    pub(crate) fn house(&self) -> &HouseMeter {
        &self.0.house
    }

    /// What is measured about the process.
    pub(crate) fn process(&self) -> &ProcessMeter {
        &self.0.process
    }

    /// What is measured about other relays.
    pub(crate) fn sync(&self) -> &SyncMeter {
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

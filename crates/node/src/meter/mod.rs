//! What is measured, for `GET /metrics`.
//!
//! - [`relay`] and [`git`]: clients. [`sync`]: other relays. [`hunt`]: git servers. [`house`]: queues, budgets, disk,
//!   machines. [`process`]: the process.
//! - [`labels`]: whose name may be a label. [`words`]: labels of our own. [`top`]: the heaviest of many.
//! - [`log`]: what is also said in the log.
//!
//! A room's numbers are the fields of one struct, which registers them in its `new` and has a method for everything that
//! can happen there; nobody else touches them. Rules for all of them:
//!
//! - A name stands in the code as it stands in the answer, so that both are found by the same search.
//! - Values of a label are words of ours. Names that strangers choose go through [`labels::Own`], or they are no labels.
//! - Nothing is measured by an answer: it only reads numbers.

pub(crate) mod git;
pub(crate) mod house;
pub(crate) mod hunt;
pub(crate) mod labels;
pub(crate) mod log;
pub(crate) mod process;
pub(crate) mod relay;
pub(crate) mod sync;
mod top;
pub(crate) mod words;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use self::git::GitMeter;
use self::house::HouseMeter;
use self::hunt::HuntMeter;
use self::process::ProcessMeter;
use self::relay::RelayMeter;
use self::sync::SyncMeter;

/// What [`Meter::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All numbers of this process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    registry: Registry,
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
        let mut registry = Registry::default();
        let to = &mut registry;
        let (relay, git) = (RelayMeter::new(to, scales.abuse_threshold), GitMeter::new(to, scales.top_repos));
        let (sync, hunt) = (SyncMeter::new(to), HuntMeter::new(to));
        let (house, process) = (HouseMeter::new(to), ProcessMeter::new(to));
        Self(Arc::new(Rooms { registry, relay, git, sync, hunt, house, process }))
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
        let mut text = String::new();
        // Only a writer can fail, and a string takes everything.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.0.registry);
        text
    }
}

/// Registers a counter under the name that it has in the answer: its `_total` is written by the encoder.
fn counter<M: EncodeMetric + TypedMetric + Metric + Clone>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    registry.register(name.strip_suffix("_total").unwrap_or(name), help, Declared(metric.clone()));
    metric
}

/// Registers a gauge.
fn gauge<M: EncodeMetric + TypedMetric + Metric + Clone>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    registry.register(name, help, Declared(metric.clone()));
    metric
}

/// Registers a histogram.
fn histogram<M: EncodeMetric + TypedMetric + Metric + Clone>(
    registry: &mut Registry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    registry.register(name, help, Declared(metric.clone()));
    metric
}

/// A metric whose name and meaning are told also while it has no series.
#[derive(Debug)]
struct Declared<M>(M);

impl<M: EncodeMetric> EncodeMetric for Declared<M> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.0.metric_type()
    }

    fn is_empty(&self) -> bool {
        false
    }
}

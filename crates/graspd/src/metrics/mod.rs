//! Metrics for `GET /metrics`.
//!
//! - [`relay`], [`git`]: clients. [`sync`]: other relays. [`fetch`]: git servers. [`server`]: queues, budgets, disk and
//!   state machines. [`process`]: the process.
//! - [`registry`]: registration, encoding and the reference `docs/metrics.md`. [`labels`]: label values of event kinds.
//!   [`label_limit`], [`heavy_hitters`]: bounds on label values that come from outside.
//!
//! The metrics of a feature are the fields of one struct, which `metric_set!` declares with their names and meanings, and
//! which has one method for each kind of update. [`Metrics`] is cloned into every feature, whose threads and tasks call these methods; no thread
//! belongs to this module. May use `config`. It reads types of `grasp_core`, and `/proc` for [`process`]. The
//! gauges of the whole server are set once a second by [`monitor::health`](crate::monitor::health). Rules:
//!
//! - A metric's name is written in the code as it appears in the response, so that a text search finds both.
//! - A label with fixed values takes them from a table: [`grasp_core::label_table!`] or a constant. The reference lists
//!   the tables. Values from outside, such as relay URLs, are bounded by [`label_limit::LabelLimit`] or are no labels.
//! - A request for the metrics only reads values and measures nothing.

pub(crate) mod exposition;
pub(crate) mod fetch;
pub(crate) mod git;
mod heavy_hitters;
mod label_limit;
mod labels;
pub(crate) mod process;
mod registry;
pub(crate) mod relay;
pub(crate) mod server;
pub(crate) mod sync;

use std::sync::Arc;

use self::fetch::FetchMetrics;
use self::git::GitMetrics;
use self::process::ProcessMetrics;
use self::registry::MetricRegistry;
use self::relay::RelayMetrics;
use self::server::ServerMetrics;
use self::sync::SyncMetrics;
use crate::config::MetricsLimits;

/// All metrics of the process. Clones share the values.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<AllMetrics>);

#[derive(Debug)]
struct AllMetrics {
    registry: MetricRegistry,
    relay: RelayMetrics,
    git: GitMetrics,
    sync: SyncMetrics,
    fetch: FetchMetrics,
    server: ServerMetrics,
    process: ProcessMetrics,
}

impl Metrics {
    /// Creates all metrics with value zero and the default limits.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self::with_limits(MetricsLimits::default())
    }

    /// Creates all metrics with value zero.
    pub(crate) fn with_limits(limits: MetricsLimits) -> Self {
        let mut registry = MetricRegistry::default();
        let relay = RelayMetrics::new(&mut registry, limits.abuse_threshold);
        let git = GitMetrics::new(&mut registry, limits.top_repos);
        let sync = SyncMetrics::new(&mut registry);
        let fetch = FetchMetrics::new(&mut registry);
        let server = ServerMetrics::new(&mut registry);
        let process = ProcessMetrics::new(&mut registry);
        Self(Arc::new(AllMetrics { registry, relay, git, sync, fetch, server, process }))
    }

    /// Returns the metrics of relay clients and HTTP requests.
    pub(crate) fn relay(&self) -> &RelayMetrics {
        &self.0.relay
    }

    /// Returns the metrics of git clients.
    pub(crate) fn git(&self) -> &GitMetrics {
        &self.0.git
    }

    /// Returns the metrics of fetching missing git data.
    pub(crate) fn fetch(&self) -> &FetchMetrics {
        &self.0.fetch
    }

    /// Returns the metrics of queues, budgets, disk and state machines.
    pub(crate) fn server(&self) -> &ServerMetrics {
        &self.0.server
    }

    /// Returns the metrics of the process.
    pub(crate) fn process(&self) -> &ProcessMetrics {
        &self.0.process
    }

    /// Returns the metrics of sync with other relays.
    pub(crate) fn sync(&self) -> &SyncMetrics {
        &self.0.sync
    }

    /// Returns the current values of all metrics in the OpenMetrics format.
    pub(crate) fn encode(&self) -> String {
        self.0.registry.encode()
    }

    /// Returns the reference of all metrics in Markdown.
    pub(crate) fn reference(&self) -> String {
        self.0.registry.reference()
    }

    #[cfg(test)]
    fn registry(&self) -> &MetricRegistry {
        &self.0.registry
    }
}

/// Converts a count to the value of a gauge.
fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

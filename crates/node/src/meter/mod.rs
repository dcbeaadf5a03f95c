//! What is measured, for `GET /metrics`.
//!
//! - [`sync`]: other relays. [`labels`]: whose name may be a label. [`log`]: what is also said in the log.
//!
//! A room's numbers are the fields of one struct, which registers them in its `new` and has a method for everything that
//! can happen there; nobody else touches them. Rules for all of them:
//!
//! - A name stands in the code as it stands in the answer, so that both are found by the same search.
//! - Values of a label are words of ours. Names that strangers choose go through [`labels::Own`], or they are no labels.
//! - Nothing is measured by an answer: it only reads numbers.

pub(crate) mod labels;
pub(crate) mod log;
pub(crate) mod sync;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use self::sync::SyncMeter;

/// What [`Meter::encode`] writes.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All numbers of this process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Meter(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    registry: Registry,
    sync: SyncMeter,
}

impl Meter {
    /// Everything at zero.
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let sync = SyncMeter::new(&mut registry);
        Self(Arc::new(Rooms { registry, sync }))
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

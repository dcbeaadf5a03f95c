//! What is registered: the numbers themselves, and what they are called.

use std::fmt;
use std::fmt::Write;
use std::hash::Hash;

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

/// All numbers, with what people are told about them.
#[derive(Debug, Default)]
pub(super) struct MetricRegistry {
    registry: Registry,
    entries: Vec<Entry>,
}

/// What people are told about a number.
#[derive(Debug)]
struct Entry {
    /// As it stands in an answer.
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    labels: Vec<String>,
}

impl MetricRegistry {
    /// Everything as it is now.
    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        // Only a writer can fail, and a string takes everything.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// Everything there is, in Markdown.
    pub(super) fn reference(&self) -> String {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| entry.name);
        let mut text = "# Measurements\n\n\
            What `GET /metrics` tells, made by `graspd metrics --reference`. Where strangers choose the value of a label \
            (`relay`, `domain`, `repo`), the most important ones have a series of their own and the others share `other`. \
            A histogram has `_bucket`, `_sum` and `_count`.\n\n\
            | Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
            .to_owned();
        for Entry { name, kind, help, labels } in entries {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(text, "| `{name}` | {kind} | {} | {} |", labels.join(", "), help.replace('|', "\\|"));
        }
        text
    }

    fn register<M>(&mut self, name: &'static str, kind: &'static str, help: &'static str, metric: M) -> M
    where
        M: EncodeMetric + TypedMetric + Metric + Clone + Labelled,
    {
        self.entries.push(Entry { name, kind, help, labels: M::labels() });
        // The encoder writes the `_total` of a counter.
        let bare = if kind == "counter" { name.strip_suffix("_total").unwrap_or(name) } else { name };
        self.registry.register(bare, help, Declared(metric.clone()));
        metric
    }
}

/// Registers a counter under the name that it has in the answer.
pub(super) fn counter<M: EncodeMetric + TypedMetric + Metric + Clone + Labelled>(
    to: &mut MetricRegistry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    to.register(name, "counter", help, metric)
}

/// Registers a gauge.
pub(super) fn gauge<M: EncodeMetric + TypedMetric + Metric + Clone + Labelled>(
    to: &mut MetricRegistry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    to.register(name, "gauge", help, metric)
}

/// Registers a histogram.
pub(super) fn histogram<M: EncodeMetric + TypedMetric + Metric + Clone + Labelled>(
    to: &mut MetricRegistry,
    name: &'static str,
    help: &'static str,
    metric: M,
) -> M {
    to.register(name, "histogram", help, metric)
}

/// Whose labels can be named before there is a series.
pub(super) trait Labelled {
    /// Their names.
    fn labels() -> Vec<String>;
}

impl<N, A> Labelled for Counter<N, A> {
    fn labels() -> Vec<String> {
        Vec::new()
    }
}

impl<N, A> Labelled for Gauge<N, A> {
    fn labels() -> Vec<String> {
        Vec::new()
    }
}

impl Labelled for Histogram {
    fn labels() -> Vec<String> {
        Vec::new()
    }
}

impl<S, M, C> Labelled for Family<S, M, C>
where
    S: EncodeLabelSet + Default + Clone + Hash + Eq + fmt::Debug + Send + Sync + 'static,
{
    /// Written down once, with nothing in them, and read back.
    fn labels() -> Vec<String> {
        let family = Family::<S, Gauge>::default();
        let _ = family.get_or_create(&S::default());
        let mut registry = Registry::default();
        registry.register("x", "", family);
        let mut text = String::new();
        let _ = text::encode(&mut text, &registry);
        let line = text.lines().find(|line| line.starts_with("x{")).unwrap_or_default();
        let inside = line.split(['{', '}']).nth(1).unwrap_or_default();
        inside.split(',').filter_map(|pair| pair.split_once('=')).map(|(name, _)| name.to_owned()).collect()
    }
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

#[cfg(test)]
mod tests {
    use super::super::Metrics;

    #[test]
    fn the_reference_is_the_one_in_the_documents() {
        let documented = include_str!("../../../../docs/metrics.md");
        assert!(Metrics::new().reference() == documented, "run: cargo run -- metrics --reference > docs/metrics.md");
    }

    #[test]
    fn everything_that_is_told_is_in_the_reference() {
        let meter = Metrics::new();
        let (told, reference) = (meter.encode(), meter.reference());
        let mut count = 0;
        for line in told.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').expect("a name and a type");
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            assert!(reference.contains(&format!("| `{name}` | {kind} | ")), "{name} {kind}");
            count += 1;
        }
        assert_eq!(reference.lines().filter(|line| line.starts_with("| `")).count(), count);
        assert!(
            reference.contains("| `ngit_sync_connection_attempts_total` | counter | `relay`, `result` | "),
            "{reference}"
        );
    }
}

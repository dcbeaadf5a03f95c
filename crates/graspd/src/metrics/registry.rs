//! The registry of all metrics: their current values for `GET /metrics`, and their description for `docs/metrics.md`.

use std::fmt;
use std::fmt::Write;
use std::hash::Hash;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, text};
pub(super) use prometheus_client::metrics::counter::Counter;
pub(super) use prometheus_client::metrics::family::Family;
pub(super) use prometheus_client::metrics::gauge::Gauge;
pub(super) use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

/// All metrics with their descriptions.
#[derive(Debug, Default)]
pub(super) struct MetricRegistry {
    registry: Registry,
    descriptions: Vec<MetricDescription>,
}

/// Description of one metric.
#[derive(Debug)]
struct MetricDescription {
    /// The name in the response, with the `_total` of a counter.
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    labels: &'static [LabelDescription],
}

/// Description of one label of a metric.
#[derive(Debug)]
pub(super) struct LabelDescription {
    /// The key, as the field of the label set is written in Rust.
    pub(super) field: &'static str,
    pub(super) values: &'static [LabelValues],
}

impl LabelDescription {
    fn key(&self) -> &'static str {
        self.field.strip_prefix("r#").unwrap_or(self.field)
    }
}

/// A table of all values that a label can have. A label without a table has values that are not known in advance, such
/// as relay URLs.
#[derive(Debug)]
pub(super) struct LabelValues {
    /// Key and value of another label with which these values occur. `None` if they do not depend on another label.
    pub(super) with: Option<(&'static str, &'static str)>,
    pub(super) values: &'static [&'static str],
}

/// Returns the description of values that do not depend on another label.
pub(super) const fn any_of(values: &'static [&'static str]) -> LabelValues {
    LabelValues { with: None, values }
}

/// A set of labels with a description of each.
pub(super) trait LabelSet {
    const LABELS: &'static [LabelDescription];
}

/// Defines sets of labels: structs whose fields are the labels, each with the tables of its values.
macro_rules! label_sets {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty = $values:expr),* $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, Debug, prometheus_client::encoding::EncodeLabelSet)]
        struct $name {
            $($field: $type),*
        }

        impl crate::metrics::registry::LabelSet for $name {
            const LABELS: &'static [crate::metrics::registry::LabelDescription] = &[
                $(crate::metrics::registry::LabelDescription { field: stringify!($field), values: &$values }),*
            ];
        }
    )+};
}
pub(super) use label_sets;

/// Defines the metrics of a feature: a struct whose fields are metrics, each with its name in the response and its help,
/// and a function `register` that creates them. A metric that has no default value is given before its name. Fields
/// after `with` are not registered; the values before them can use the parameters of `register`.
macro_rules! metric_set {
    (
        $(#[$doc:meta])*
        pub(crate) struct $struct:ident($registry:ident $(, $parameter:ident: $parameter_type:ty)*) {
            $($field:ident: $type:ty $(= $metric:expr)?, $name:literal, $help:literal;)+
        }
        $(with { $($(#[$other_doc:meta])* $other:ident: $other_type:ty = $value:expr;)+ })?
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $struct {
            $($field: $type,)+
            $($($(#[$other_doc])* $other: $other_type,)+)?
        }

        impl $struct {
            pub(super) fn register($registry: &mut MetricRegistry $(, $parameter: $parameter_type)*) -> Self {
                $($(let $other = $value;)+)?
                Self {
                    $($field: metric_set!(@add $registry, $name, $help $(, $metric)?),)+
                    $($($other,)+)?
                }
            }
        }
    };
    (@add $registry:ident, $name:literal, $help:literal) => { $registry.add($name, $help) };
    (@add $registry:ident, $name:literal, $help:literal, $metric:expr) => {
        $registry.register($name, $help, $metric)
    };
}
pub(super) use metric_set;

impl MetricRegistry {
    /// Returns the current values of all metrics in the OpenMetrics text format.
    pub(super) fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    /// Returns the reference of all metrics in Markdown.
    pub(super) fn reference(&self) -> String {
        let mut descriptions: Vec<&MetricDescription> = self.descriptions.iter().collect();
        descriptions.sort_by_key(|description| description.name);
        let mut text = "# Metrics\n\n\
            The metrics that `GET /metrics` returns. This page is generated by `graspd metrics --reference`.\n\n\
            A histogram has the series `_bucket`, `_sum` and `_count`. The values of `relay`, `domain` and `repo` come \
            from other servers and from users. Their number is limited: the most important values have series of their \
            own, and the other relays and domains share the value `other`.\n\n\
            The value of `relay` is the relay's URL in its normal form: lower-case scheme and host, no default port, no \
            slash at the end, for example `wss://relay.example`. The values of `code` are the codes of rejected pushes \
            ([explanation.md](explanation.md#rejected-pushes)).\n\n\
            Some gauges end in `_total` (`ngit_sync_relays_connected_total`), because ngit-grasp has them under these \
            names. Names with `refusals` count rejections.\n\n\
            Sync is behind if `ngit_sync_relay_connected` is not 3 for a relay: at 2 history is still being fetched, at \
            4 a part of it is missing. `purgatory_sync_queue_size` counts the repositories with missing git data, and \
            `ngit_sync_gap_events_total` the events that live sync missed. `/status` and `graspd relays` show the same \
            for each relay, `<repository>/replication.json` for one repository.\n\n\
            | Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
            .to_owned();
        for MetricDescription { name, kind, help, labels } in &descriptions {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{}`", label.key())).collect();
            let _ = writeln!(
                text,
                "| `{name}` | {} | {} | {} |",
                kind.as_str(),
                labels.join(", "),
                help.replace('|', "\\|")
            );
        }
        text += "\n## Label values\n\n\
            All values of the labels whose values are fixed. A counter with only such labels has a series of each value \
            from the start; other series may be missing until their value occurs for the first time.\n\n\
            | Label | Metrics | Values |\n|---|---|---|\n";
        for LabelValuesRow { label, metrics, values } in label_values(&descriptions) {
            let _ = writeln!(text, "| {label} | {} | {values} |", metrics.join(", "));
        }
        text
    }

    /// Registers a new metric under the name that it has in the response.
    pub(super) fn add<M: DescribedMetric + Default>(&mut self, name: &'static str, help: &'static str) -> M {
        self.register(name, help, M::default())
    }

    /// Registers a new counter with one label. Returns its series, one for each value of the label.
    pub(super) fn add_series<S: LabelSet + Clone + Eq + Hash, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        values: [&'static str; N],
        labels: fn(&'static str) -> S,
    ) -> [Counter; N]
    where
        Family<S, Counter>: DescribedMetric,
    {
        let family: Family<S, Counter> = self.add(name, help);
        values.map(|value| family.get_or_create_owned(&labels(value)))
    }

    /// Registers a metric under the name that it has in the response.
    pub(super) fn register<M: DescribedMetric>(&mut self, name: &'static str, help: &'static str, metric: M) -> M {
        self.descriptions.push(MetricDescription { name, kind: M::TYPE, help, labels: M::LABELS });
        // The encoder appends the `_total` of a counter.
        let base = match M::TYPE {
            MetricType::Counter => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        self.registry.register(base, help, AlwaysDeclared(metric.clone()));
        metric
    }
}

/// One row of the table of label values in the reference.
struct LabelValuesRow {
    label: String,
    metrics: Vec<String>,
    values: String,
}

/// Returns the labels with fixed values by name. Metrics with the same label and the same values share a row.
fn label_values(descriptions: &[&MetricDescription]) -> Vec<LabelValuesRow> {
    let mut rows: Vec<LabelValuesRow> = Vec::new();
    for description in descriptions {
        for label in description.labels {
            for LabelValues { with, values } in label.values {
                let label = match with {
                    Some((key, value)) => format!("`{}` with `{key}=\"{value}\"`", label.key()),
                    None => format!("`{}`", label.key()),
                };
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                let (values, metric) = (values.join(", "), format!("`{}`", description.name));
                match rows.iter_mut().find(|row| row.label == label && row.values == values) {
                    Some(row) => row.metrics.push(metric),
                    None => rows.push(LabelValuesRow { label, metrics: vec![metric], values }),
                }
            }
        }
    }
    rows.sort_by(|left, right| left.label.cmp(&right.label));
    rows
}

/// A metric whose labels are known before it has a series.
pub(super) trait DescribedMetric: EncodeMetric + TypedMetric + Metric + Clone {
    const LABELS: &'static [LabelDescription] = &[];
}

impl<N, A> DescribedMetric for Counter<N, A> where Self: EncodeMetric + TypedMetric + Metric {}
impl<N, A> DescribedMetric for Gauge<N, A> where Self: EncodeMetric + TypedMetric + Metric {}
impl DescribedMetric for Histogram {}

impl<S: LabelSet, M, C> DescribedMetric for Family<S, M, C>
where
    Self: EncodeMetric + TypedMetric + Metric + Clone,
{
    const LABELS: &'static [LabelDescription] = S::LABELS;
}

/// A metric whose name, type and help are in the response even if it has no series yet.
#[derive(Debug)]
struct AlwaysDeclared<M>(M);

impl<M: EncodeMetric> EncodeMetric for AlwaysDeclared<M> {
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
    use std::collections::BTreeSet;

    use grasp_core::admission::io::{AdmissionInput, AdmissionOutput};
    use grasp_core::fetch::io::{FetchInput, FetchOutcome, FetchOutput};
    use grasp_core::nostr::rejection::Rejection;
    use grasp_core::sync::io::{ReconnectKind, SubmitResult, SyncInput, SyncOutput};

    use super::super::Metrics;
    use super::*;

    /// The page is also the record of all metric names and label values: a change of a table must change the page.
    #[test]
    fn documented_reference_is_up_to_date() {
        let documented = include_str!("../../../../docs/metrics.md");
        assert!(
            Metrics::new().reference() == documented,
            "docs/metrics.md differs from the metrics or their label tables; \
             run: cargo run -p graspd -- metrics --reference > docs/metrics.md"
        );
    }

    #[test]
    fn reference_contains_every_encoded_metric() {
        let metrics = Metrics::new();
        let (text, reference) = (metrics.encode(), metrics.reference());
        let (names, _) = reference.split_once("## Label values").expect("the section of label values is missing");
        let mut count = 0;
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').expect("a type line without a type");
            let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            assert!(names.contains(&format!("| `{name}` | {kind} | ")), "{name} {kind}");
            count += 1;
        }
        assert_eq!(names.lines().filter(|line| line.starts_with("| `")).count(), count);
        assert!(
            names.contains("| `ngit_sync_connection_attempts_total` | counter | `relay`, `result` | "),
            "{reference}"
        );
    }

    #[test]
    fn reference_lists_the_label_tables() {
        let reference = Metrics::new().reference();
        for (label, table) in [
            ("`variant` with `machine=\"admission\"`", AdmissionInput::LABELS),
            ("`variant` with `machine=\"admission\"`", AdmissionOutput::LABELS),
            ("`variant` with `machine=\"sync\"`", SyncInput::LABELS),
            ("`variant` with `machine=\"sync\"`", SyncOutput::LABELS),
            ("`variant` with `machine=\"fetch\"`", FetchInput::LABELS),
            ("`variant` with `machine=\"fetch\"`", FetchOutput::LABELS),
            ("`outcome`", FetchOutcome::LABELS),
            ("`verdict`", SubmitResult::LABELS),
            ("`kind`", ReconnectKind::LABELS),
            ("`reason`", Rejection::LABELS),
        ] {
            let values: Vec<String> = table.iter().map(|value| format!("`{value}`")).collect();
            let (label, values) = (format!("| {label} | "), format!(" | {} |", values.join(", ")));
            let is_listed = |line: &str| line.starts_with(&label) && line.ends_with(&values);
            assert!(reference.lines().any(is_listed), "{label}…{values} in {reference}");
        }
    }

    #[test]
    fn label_values_are_unique_and_plain() {
        let metrics = Metrics::new();
        for description in &metrics.registry().descriptions {
            for LabelValues { values, .. } in description.labels.iter().flat_map(|label| label.values) {
                let unique: BTreeSet<_> = values.iter().collect();
                assert_eq!(unique.len(), values.len(), "{}: {values:?}", description.name);
                let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
                assert!(values.iter().all(|value| value.bytes().all(is_plain)), "{}: {values:?}", description.name);
            }
        }
    }

    /// A query cannot tell zero from a missing metric, so an alert could not use the counter.
    #[test]
    fn counters_with_fixed_labels_exist_from_the_start() {
        let metrics = Metrics::new();
        let text = metrics.encode();
        let is_fixed = |label: &LabelDescription| !label.values.is_empty();
        for MetricDescription { name, kind, labels, .. } in &metrics.registry().descriptions {
            if !matches!(kind, MetricType::Counter) || !labels.iter().all(is_fixed) {
                continue;
            }
            for label in *labels {
                for value in label.values.iter().flat_map(|table| table.values) {
                    let pair = format!("{}=\"{value}\"", label.key());
                    let is_series = |line: &str| line.starts_with(&format!("{name}{{")) && line.contains(&pair);
                    assert!(text.lines().any(is_series), "{name} has no series with {pair}");
                }
            }
        }
    }

    #[test]
    fn label_keys_are_those_of_the_encoder() {
        label_sets! {
            struct TestLabels { r#type: &'static str = [any_of(&["a"])], plain: &'static str = [] }
        }
        let family = Family::<TestLabels, Gauge>::default();
        family.get_or_create(&TestLabels { r#type: "a", plain: "b" }).set(1);
        let mut registry = MetricRegistry::default();
        registry.register("test", "Help", family);
        assert!(registry.encode().contains("test{type=\"a\",plain=\"b\"} 1\n"), "{}", registry.encode());
        assert!(registry.reference().contains("| `test` | gauge | `type`, `plain` | Help |\n"));
        assert!(registry.reference().contains("| `type` | `test` | `a` |\n"));
    }
}

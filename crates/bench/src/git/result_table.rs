//! Comparison table of both servers.

use std::io::{Write, stderr};

use anyhow::Result;
use serde::Serialize;

use super::host::ServerKind;
use crate::process_usage::rounded;
use crate::ratio::{Bound, Figure, Ratio};
use crate::{ratio, report};

/// All figures of a run, in the order in which they were recorded.
#[derive(Debug, Default)]
pub(super) struct ComparisonTable {
    rows: Vec<ComparisonRow>,
}

#[derive(Debug)]
struct ComparisonRow {
    metric: String,
    bound: Bound,
    graspd: Option<Figure>,
    other: Option<Figure>,
}

/// Repeated measurements of one figure.
#[derive(Debug, Default)]
pub(super) struct Samples {
    values: Vec<f64>,
    foreign_cores: Vec<f64>,
}

impl Samples {
    /// Adds one measurement, during which other processes used `foreign_cores`.
    pub(super) fn add(&mut self, value: f64, foreign_cores: f64) {
        self.values.push(value);
        self.foreign_cores.push(foreign_cores);
    }

    /// Creates samples with one measurement.
    pub(super) fn one(value: f64) -> Self {
        Self { values: vec![value], foreign_cores: vec![0.0] }
    }

    /// Creates a sample with another value from the same measurements.
    pub(super) fn with(&self, value: f64) -> Self {
        Self { values: vec![value], foreign_cores: self.foreign_cores.clone() }
    }

    /// Returns the median.
    fn figure(&self) -> Figure {
        Figure::with_foreign_load("http-backend", rounded(median(&self.values)), median(&self.foreign_cores))
    }
}

/// Returns the median.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// A figure of one server without a comparison.
#[derive(Debug, Serialize)]
struct SingleFigure<'a> {
    metric: &'a str,
    value: f64,
}

impl ComparisonTable {
    /// Records the median of one server.
    pub(super) fn record(&mut self, kind: ServerKind, metric: &str, bound: Bound, samples: &Samples) {
        let figure = samples.figure();
        let at = self.rows.iter().position(|row| row.metric == metric).unwrap_or_else(|| {
            self.rows.push(ComparisonRow { metric: metric.into(), bound, graspd: None, other: None });
            self.rows.len() - 1
        });
        match kind {
            ServerKind::Graspd => self.rows[at].graspd = Some(figure),
            ServerKind::Reference => self.rows[at].other = Some(figure),
        }
    }

    /// Records a figure of graspd with a fixed limit.
    pub(super) fn record_with_limit(&mut self, metric: &str, graspd: &Samples, to: Figure, bound: Bound) {
        self.rows.push(ComparisonRow { metric: metric.into(), bound, graspd: Some(graspd.figure()), other: Some(to) });
    }

    /// Prints ratios for rows with two figures, and the figure for rows with one.
    pub(super) fn print(&self) -> Result<()> {
        let mut ratios = Vec::new();
        for ComparisonRow { metric, bound, graspd, other } in &self.rows {
            match (graspd, other) {
                (Some(graspd), Some(other)) => ratios.push(Ratio::new(metric, *graspd, *other, *bound)),
                (Some(figure), None) => print_single(ServerKind::Graspd, metric, figure.value())?,
                (None, Some(figure)) => print_single(ServerKind::Reference, metric, figure.value())?,
                (None, None) => {}
            }
        }
        if ratios.is_empty() { Ok(()) } else { ratio::print(&ratios) }
    }
}

fn print_single(kind: ServerKind, metric: &str, value: f64) -> Result<()> {
    writeln!(stderr().lock(), "{metric:<34} {value:>12.2} {kind}")?;
    report::print("figure", &kind.to_string(), &SingleFigure { metric, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_ignores_one_outlier() {
        assert_eq!(median(&[1.0, 100.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn figures_of_both_servers_share_a_row() {
        let mut table = ComparisonTable::default();
        table.record(ServerKind::Reference, "push p50 ms", Bound::Unset, &Samples::one(2.0));
        table.record(ServerKind::Graspd, "push p50 ms", Bound::Unset, &Samples::one(1.0));
        table.record(ServerKind::Graspd, "memory", Bound::Unset, &Samples::one(1.0));
        assert_eq!(table.rows.len(), 2);
        assert!(table.rows[0].graspd.is_some() && table.rows[0].other.is_some());
    }
}

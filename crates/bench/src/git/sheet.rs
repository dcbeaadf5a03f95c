//! Figures of both servers, side by side.

use std::io::{Write, stderr};

use anyhow::Result;
use serde::Serialize;

use super::host::Side;
use crate::process_usage::rounded;
use crate::ratio::{Bound, Figure, Ratio};
use crate::{ratio, report};

/// All figures of a run, in the order in which they were noted.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    metric: String,
    wanted: Bound,
    graspd: Option<Figure>,
    other: Option<Figure>,
}

/// What was measured, several times.
#[derive(Debug, Default)]
pub(super) struct Samples {
    values: Vec<f64>,
    foreign_cores: Vec<f64>,
}

impl Samples {
    /// Adds one measurement, during which something else kept `foreign_cores` busy.
    pub(super) fn add(&mut self, value: f64, foreign_cores: f64) {
        self.values.push(value);
        self.foreign_cores.push(foreign_cores);
    }

    /// One measurement.
    pub(super) fn one(value: f64) -> Self {
        Self { values: vec![value], foreign_cores: vec![0.0] }
    }

    /// A value that was gained from the same measurements.
    pub(super) fn with(&self, value: f64) -> Self {
        Self { values: vec![value], foreign_cores: self.foreign_cores.clone() }
    }

    /// The median.
    fn figure(&self) -> Figure {
        Figure::disturbed("http-backend", rounded(median(&self.values)), median(&self.foreign_cores))
    }
}

/// The one in the middle, or the mean of the two.
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

/// A figure of one server when there is no other.
#[derive(Debug, Serialize)]
struct Alone<'a> {
    metric: &'a str,
    value: f64,
}

impl Sheet {
    /// Notes the median of what was measured of one side.
    pub(super) fn note(&mut self, side: Side, metric: &str, wanted: Bound, samples: &Samples) {
        let figure = samples.figure();
        let at = self.rows.iter().position(|row| row.metric == metric).unwrap_or_else(|| {
            self.rows.push(Row { metric: metric.into(), wanted, graspd: None, other: None });
            self.rows.len() - 1
        });
        match side {
            Side::Graspd => self.rows[at].graspd = Some(figure),
            Side::Reference => self.rows[at].other = Some(figure),
        }
    }

    /// Notes what graspd is held to, beside a number that does not depend on the other server.
    pub(super) fn hold(&mut self, metric: &str, graspd: &Samples, to: Figure, wanted: Bound) {
        self.rows.push(Row { metric: metric.into(), wanted, graspd: Some(graspd.figure()), other: Some(to) });
    }

    /// Prints the ratios where there are two figures, and the figure where there is one.
    pub(super) fn print(&self) -> Result<()> {
        let mut ratios = Vec::new();
        for Row { metric, wanted, graspd, other } in &self.rows {
            match (graspd, other) {
                (Some(graspd), Some(other)) => ratios.push(Ratio::new(metric, *graspd, *other, *wanted)),
                (Some(figure), None) => alone(Side::Graspd, metric, figure.value())?,
                (None, Some(figure)) => alone(Side::Reference, metric, figure.value())?,
                (None, None) => {}
            }
        }
        if ratios.is_empty() { Ok(()) } else { ratio::print(&ratios) }
    }
}

fn alone(side: Side, metric: &str, value: f64) -> Result<()> {
    writeln!(stderr().lock(), "{metric:<34} {value:>12.2} {side}")?;
    report::print("figure", &side.to_string(), &Alone { metric, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_not_moved_by_one_bad_run() {
        assert_eq!(median(&[1.0, 100.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn both_sides_share_a_row() {
        let mut sheet = Sheet::default();
        sheet.note(Side::Reference, "push p50 ms", Bound::Open, &Samples::one(2.0));
        sheet.note(Side::Graspd, "push p50 ms", Bound::Open, &Samples::one(1.0));
        sheet.note(Side::Graspd, "memory", Bound::Open, &Samples::one(1.0));
        assert_eq!(sheet.rows.len(), 2);
        assert!(sheet.rows[0].graspd.is_some() && sheet.rows[0].other.is_some());
    }
}

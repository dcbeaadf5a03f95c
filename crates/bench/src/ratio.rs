//! Ratios of a figure of graspd to a reference figure, with a target.

use std::fmt;
use std::io::{Write, stderr};

use anyhow::Result;
use serde::{Serialize, Serializer};

#[cfg(feature = "compare")]
use crate::process_usage::Usage;
use crate::process_usage::rounded;
use crate::report;

/// A measurement counts as disturbed if other processes used more cores than this. The kernel threads that write to the
/// disk for the relay stay well below.
const DISTURBED_CORES: f64 = 0.25;

/// Target of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// Lower bound.
    AtLeast(f64),
    /// Upper bound.
    AtMost(f64),
    /// No target: the ratio is only shown.
    Unset,
}

impl Bound {
    fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(ratio >= least),
            Self::AtMost(most) => Some(ratio <= most),
            Self::Unset => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(formatter, ">= {least}"),
            Self::AtMost(most) => write!(formatter, "<= {most}"),
            Self::Unset => Ok(()),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A measured or fixed number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    name: &'static str,
    value: f64,
    /// Cores used by other processes during the measurement.
    foreign_cores: f64,
}

impl Figure {
    /// A number that does not depend on the load of the machine.
    pub(crate) fn fixed(name: &'static str, value: f64) -> Self {
        Self { name, value, foreign_cores: 0.0 }
    }

    /// A number that was measured while other processes used `foreign_cores`.
    pub(crate) fn with_foreign_load(name: &'static str, value: f64, foreign_cores: f64) -> Self {
        Self { name, value, foreign_cores }
    }

    /// Returns the number.
    pub(crate) fn value(self) -> f64 {
        self.value
    }
}

#[cfg(feature = "compare")]
impl Figure {
    /// A number from the measurement that `usage` describes.
    pub(crate) fn measured(value: f64, usage: Usage) -> Self {
        Self::with_foreign_load("builder", value, usage.server.map_or(0.0, |server| server.foreign_cores))
    }

    /// The relay's CPU time per event.
    pub(crate) fn cpu(usage: Usage) -> Self {
        Self::measured(usage.server.map_or(0.0, |server| server.cpu_us_per_event), usage)
    }

    /// Returns the same number with another name.
    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratio {
    metric: String,
    graspd: f64,
    against: &'static str,
    other: f64,
    ratio: f64,
    #[serde(rename = "wanted")]
    target: Bound,
    #[serde(rename = "verdict")]
    result: TargetResult,
}

/// Whether a ratio meets its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TargetResult {
    /// The target is met.
    Met,
    /// The target is missed.
    Missed,
    /// Other processes used the machine: the ratio is not reliable.
    Disturbed,
    /// The ratio has no target.
    #[serde(rename = "open")]
    Unset,
}

impl Ratio {
    /// Divides a figure of graspd by a reference figure.
    pub(crate) fn new(metric: &str, graspd: Figure, other: Figure, target: Bound) -> Self {
        // A value below the resolution of its clock is zero; the ratio is then large, but finite.
        let ratio = rounded(graspd.value / other.value.max(1e-3));
        let disturbed = graspd.foreign_cores.max(other.foreign_cores) > DISTURBED_CORES;
        let result = match target.is_met(ratio) {
            None => TargetResult::Unset,
            Some(_) if disturbed => TargetResult::Disturbed,
            Some(true) => TargetResult::Met,
            Some(false) => TargetResult::Missed,
        };
        Self {
            metric: metric.into(),
            graspd: graspd.value,
            against: other.name,
            other: other.value,
            ratio,
            target,
            result,
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.result {
            TargetResult::Met => "met",
            TargetResult::Missed => "MISSED",
            TargetResult::Disturbed => "disturbed: repeat on a quiet machine",
            TargetResult::Unset => "",
        };
        let Self { metric, graspd, against, other, ratio, target, .. } = self;
        let target = target.to_string();
        write!(formatter, "{metric:<34} {graspd:>12.2} {other:>12.2} {against:<12} {ratio:>9.3} {target:<8} {result}")
    }
}

/// Prints the table to standard error, and each row as JSON to standard output.
pub(crate) fn print(ratios: &[Ratio]) -> Result<()> {
    let mut table = stderr().lock();
    writeln!(table, "\n{:<34} {:>12} {:>12} {:<12} {:>9} target", "", "graspd", "other", "", "ratio")?;
    for ratio in ratios {
        writeln!(table, "{ratio}")?;
        report::print("ratio", "graspd", ratio)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(graspd: f64, other: Figure, bound: Bound) -> TargetResult {
        Ratio::new("", Figure::fixed("graspd", graspd), other, bound).result
    }

    #[test]
    fn bounds_are_inclusive() {
        let other = |value| Figure::fixed("builder", value);
        assert_eq!(result(8.0, other(1.0), Bound::AtLeast(8.0)), TargetResult::Met);
        assert_eq!(result(7.9, other(1.0), Bound::AtLeast(8.0)), TargetResult::Missed);
        assert_eq!(result(1.0, other(2.0), Bound::AtMost(0.5)), TargetResult::Met);
        assert_eq!(result(1.1, other(2.0), Bound::AtMost(0.5)), TargetResult::Missed);
        assert_eq!(result(1.0, other(0.0), Bound::Unset), TargetResult::Unset);
    }

    #[test]
    fn disturbed_measurement_is_neither_met_nor_missed() {
        let other = Figure { name: "builder", value: 1.0, foreign_cores: 1.0 };
        assert_eq!(result(9.0, other, Bound::AtLeast(8.0)), TargetResult::Disturbed);
        assert_eq!(result(7.0, other, Bound::AtLeast(8.0)), TargetResult::Disturbed);
    }

    #[test]
    fn ratio_serialises_as_a_flat_object() {
        let (graspd, other) = (Figure::fixed("graspd", 16.0), Figure::fixed("builder", 2.0));
        let ratio = Ratio::new("load events/s", graspd, other, Bound::AtLeast(8.0));
        let expected = r#"{"metric":"load events/s","graspd":16.0,"against":"builder","other":2.0,"ratio":8.0,"wanted":">= 8","verdict":"met"}"#;
        assert_eq!(serde_json::to_string(&ratio).expect("serialises"), expected);
    }
}

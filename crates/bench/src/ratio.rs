//! A figure of graspd beside what it is held against.

use std::fmt;
use std::io::{Write, stderr};

use anyhow::Result;
use serde::{Serialize, Serializer};

#[cfg(feature = "compare")]
use crate::process_usage::Usage;
use crate::process_usage::rounded;
use crate::report;

/// A measurement is called disturbed when something else used more than this. The kernel's own threads, which write to
/// the disk for the relay, stay well below.
const DISTURBED_CORES: f64 = 0.25;

/// What a ratio must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
    /// Shown, not judged.
    Open,
}

impl Bound {
    fn met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtLeast(least) => Some(ratio >= least),
            Self::AtMost(most) => Some(ratio <= most),
            Self::Open => None,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(formatter, ">= {least}"),
            Self::AtMost(most) => write!(formatter, "<= {most}"),
            Self::Open => Ok(()),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A measured or given number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Figure {
    name: &'static str,
    value: f64,
    /// Cores that something else kept busy during the measurement.
    foreign_cores: f64,
}

impl Figure {
    /// A number that no load on the machine can change.
    pub(crate) fn given(name: &'static str, value: f64) -> Self {
        Self { name, value, foreign_cores: 0.0 }
    }

    /// A number that was measured while something else kept `foreign_cores` busy.
    pub(crate) fn disturbed(name: &'static str, value: f64, foreign_cores: f64) -> Self {
        Self { name, value, foreign_cores }
    }

    /// The number itself.
    pub(crate) fn value(self) -> f64 {
        self.value
    }
}

#[cfg(feature = "compare")]
impl Figure {
    /// A number that was measured while `usage` was spent.
    pub(crate) fn measured(value: f64, usage: Usage) -> Self {
        Self::disturbed("builder", value, usage.server.map_or(0.0, |server| server.foreign_cores))
    }

    /// The relay's CPU time per event.
    pub(crate) fn cpu(usage: Usage) -> Self {
        Self::measured(usage.server.map_or(0.0, |server| server.cpu_us_per_event), usage)
    }

    /// The same number under another name.
    pub(crate) fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratio {
    metric: String,
    graspd: f64,
    against: &'static str,
    other: f64,
    ratio: f64,
    wanted: Bound,
    verdict: Verdict,
}

/// Whether a ratio is as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As wanted.
    Met,
    /// Not as wanted.
    Missed,
    /// Something else used the machine meanwhile: the ratio says nothing.
    Disturbed,
    /// Nothing was wanted.
    Open,
}

impl Ratio {
    /// A figure of graspd divided by the one it is held against.
    pub(crate) fn new(metric: &str, graspd: Figure, other: Figure, wanted: Bound) -> Self {
        // A figure below the resolution of its clock reads zero; the ratio then says "large", not "infinite".
        let ratio = rounded(graspd.value / other.value.max(1e-3));
        let disturbed = graspd.foreign_cores.max(other.foreign_cores) > DISTURBED_CORES;
        let verdict = match wanted.met(ratio) {
            None => Verdict::Open,
            Some(_) if disturbed => Verdict::Disturbed,
            Some(true) => Verdict::Met,
            Some(false) => Verdict::Missed,
        };
        Self {
            metric: metric.into(),
            graspd: graspd.value,
            against: other.name,
            other: other.value,
            ratio,
            wanted,
            verdict,
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Disturbed => "disturbed: repeat on a quiet machine",
            Verdict::Open => "",
        };
        let Self { metric, graspd, against, other, ratio, wanted, .. } = self;
        let wanted = wanted.to_string();
        write!(formatter, "{metric:<34} {graspd:>12.2} {other:>12.2} {against:<12} {ratio:>9.3} {wanted:<8} {verdict}")
    }
}

/// Prints the table for people, and every line of it for programs.
pub(crate) fn print(ratios: &[Ratio]) -> Result<()> {
    let mut table = stderr().lock();
    writeln!(table, "\n{:<34} {:>12} {:>12} {:<12} {:>9} wanted", "", "graspd", "other", "", "ratio")?;
    for ratio in ratios {
        writeln!(table, "{ratio}")?;
        report::print("ratio", "graspd", ratio)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(graspd: f64, other: Figure, bound: Bound) -> Verdict {
        Ratio::new("", Figure::given("graspd", graspd), other, bound).verdict
    }

    #[test]
    fn bounds_are_judged_at_their_edges() {
        let other = |value| Figure::given("builder", value);
        assert_eq!(verdict(8.0, other(1.0), Bound::AtLeast(8.0)), Verdict::Met);
        assert_eq!(verdict(7.9, other(1.0), Bound::AtLeast(8.0)), Verdict::Missed);
        assert_eq!(verdict(1.0, other(2.0), Bound::AtMost(0.5)), Verdict::Met);
        assert_eq!(verdict(1.1, other(2.0), Bound::AtMost(0.5)), Verdict::Missed);
        assert_eq!(verdict(1.0, other(0.0), Bound::Open), Verdict::Open);
    }

    #[test]
    fn a_busy_machine_proves_nothing() {
        let other = Figure { name: "builder", value: 1.0, foreign_cores: 1.0 };
        assert_eq!(verdict(9.0, other, Bound::AtLeast(8.0)), Verdict::Disturbed);
        assert_eq!(verdict(7.0, other, Bound::AtLeast(8.0)), Verdict::Disturbed);
    }

    #[test]
    fn a_ratio_is_a_flat_object() {
        let (graspd, other) = (Figure::given("graspd", 16.0), Figure::given("builder", 2.0));
        let ratio = Ratio::new("load events/s", graspd, other, Bound::AtLeast(8.0));
        let expected = r#"{"metric":"load events/s","graspd":16.0,"against":"builder","other":2.0,"ratio":8.0,"wanted":">= 8","verdict":"met"}"#;
        assert_eq!(serde_json::to_string(&ratio).expect("serialises"), expected);
    }
}

//! Durations recorded during a run, and their percentiles.

use std::time::Duration;

use serde::Serialize;

/// All durations of a run. Every value is kept: eight bytes each are cheap, and percentiles are exact.
#[derive(Debug, Default)]
pub struct Latencies {
    micros: Vec<u64>,
}

impl Latencies {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        self.micros.push(duration.as_micros() as u64);
    }

    /// Adds all durations of another collection.
    pub fn absorb(&mut self, other: Self) {
        self.micros.extend(other.micros);
    }

    /// Returns the number of durations.
    pub fn len(&self) -> usize {
        self.micros.len()
    }

    /// Returns whether there are no durations.
    pub fn is_empty(&self) -> bool {
        self.micros.is_empty()
    }

    /// Returns the percentiles.
    pub fn summarise(mut self) -> Percentiles {
        self.micros.sort_unstable();
        Percentiles {
            p50_us: percentile(&self.micros, 50.0),
            p99_us: percentile(&self.micros, 99.0),
            max_us: self.micros.last().copied().unwrap_or(0),
        }
    }
}

/// Percentiles in microseconds, as shown in result lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Maximum.
    pub max_us: u64,
}

/// Returns the nearest-rank percentile of `sorted`: the smallest value that at least `percent` of all values do not
/// exceed. Zero if there are no values.
pub fn percentile(sorted: &[u64], percent: f64) -> u64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_the_nearest_rank() {
        let hundred: Vec<u64> = (1..=100).collect();
        for (sorted, percent, expected) in [
            (&hundred[..], 50.0, 50),
            (&hundred[..], 99.0, 99),
            (&hundred[..], 100.0, 100),
            (&hundred[..], 0.0, 1),
            (&[7][..], 50.0, 7),
            (&[1, 9][..], 99.0, 9),
            (&[][..], 99.0, 0),
        ] {
            assert_eq!(percentile(sorted, percent), expected, "p{percent} of {sorted:?}");
        }
    }

    #[test]
    fn summary_does_not_depend_on_order() {
        let mut latencies = Latencies::default();
        for micros in [30, 10, 20] {
            latencies.record(Duration::from_micros(micros));
        }
        let expected = Percentiles { p50_us: 20, p99_us: 30, max_us: 30 };
        assert_eq!(latencies.summarise(), expected);
    }
}

//! CPU time of the whole machine, to detect disturbed measurements.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::process::ticks_to_time;

/// Returns the CPU time that all cores have used since boot, including time stolen by a hypervisor.
pub fn busy_time() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    busy_ticks(&stat).map(ticks_to_time).ok_or_else(|| anyhow!("cannot parse /proc/stat"))
}

/// Parses the first line: `cpu user nice system idle iowait irq softirq steal …`. Guest time is included in `user`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace().take(8);
    let fields = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, steal] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let stat = "cpu  10 1 20 9999 8888 3 4 5 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_ticks(stat), Some(43));
        assert_eq!(busy_ticks("cpu 1 2"), None);
    }
}

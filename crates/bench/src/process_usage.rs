//! Duration, CPU time and memory of the measured part of a run.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::machine;
use crate::process::{Memory, Process};

/// Measures the duration and the CPU time of the load generator and, if its process is known, of the relay.
#[derive(Debug)]
pub struct Meter {
    server: Option<Process>,
    started: Instant,
    before: CpuTimes,
}

/// CPU times so far.
#[derive(Debug, Clone, Copy)]
struct CpuTimes {
    generator: Duration,
    server: Duration,
    machine: Duration,
}

impl CpuTimes {
    fn read(server: Option<Process>) -> Result<Self> {
        Ok(Self {
            generator: Process::Own.cpu_time()?,
            server: server.map_or(Ok(Duration::ZERO), Process::cpu_time)?,
            machine: machine::busy_time()?,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            generator: self.generator.saturating_sub(before.generator),
            server: self.server.saturating_sub(before.server),
            machine: self.machine.saturating_sub(before.machine),
        }
    }
}

impl Meter {
    /// Starts measuring.
    pub fn start(server: Option<Process>) -> Result<Self> {
        Ok(Self { server, before: CpuTimes::read(server)?, started: Instant::now() })
    }

    /// Stops measuring. CPU times are divided by `events`.
    pub fn stop(self, events: u64) -> Result<Usage> {
        let seconds = self.started.elapsed().as_secs_f64();
        let spent = CpuTimes::read(self.server)?.since(self.before);
        let per_event = |spent: Duration| rounded(spent.as_secs_f64() * 1e6 / events.max(1) as f64);
        let server = match self.server {
            None => None,
            Some(process) => {
                let foreign = spent.machine.saturating_sub(spent.generator + spent.server);
                Some(ServerUsage {
                    cpu_us_per_event: per_event(spent.server),
                    memory: process.memory()?,
                    foreign_cores: rounded(foreign.as_secs_f64() / seconds.max(1e-9)),
                })
            }
        };
        Ok(Usage { seconds: rounded(seconds), generator_cpu_us_per_event: per_event(spent.generator), server })
    }
}

/// Duration, CPU time and memory of the measured part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Usage {
    /// Duration.
    pub seconds: f64,
    /// CPU time of this program per event. It was not available to the relay.
    pub generator_cpu_us_per_event: f64,
    /// CPU time and memory of the relay, if its process id was given.
    #[serde(flatten)]
    pub server: Option<ServerUsage>,
}

impl Usage {
    /// Returns `count` per second.
    pub fn rate(&self, count: u64) -> f64 {
        (count as f64 / self.seconds.max(1e-3)).round()
    }
}

/// CPU time and memory of the relay. These figures are meaningful even if load generator and relay share the cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerUsage {
    /// User and system time per event.
    pub cpu_us_per_event: f64,
    /// Resident memory at the end of the run.
    #[serde(flatten)]
    pub memory: Memory,
    /// Cores used neither by the relay nor by this program, but by kernel threads and other processes. A high value
    /// makes the result unreliable.
    pub foreign_cores: f64,
}

/// Rounds to three decimals, the precision of the sources.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_measured() {
        let usage = Meter::start(Some(Process::Own)).and_then(|meter| meter.stop(1)).expect("own accounting");
        assert!(usage.server.is_some_and(|server| server.memory.rss_anon_kb > 0));
    }

    #[test]
    fn server_usage_needs_a_process() {
        let usage = Meter::start(None).and_then(|meter| meter.stop(0)).expect("own accounting");
        assert_eq!(usage.server, None);
    }
}

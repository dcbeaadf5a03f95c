//! The costs of the timed part of a run.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::machine;
use crate::process::{Memory, Process};

/// Watches the clock, the generator and (when its process is known) the relay during the timed part of a run.
#[derive(Debug)]
pub struct Meter {
    server: Option<Process>,
    started: Instant,
    before: Spent,
}

/// CPU time spent so far.
#[derive(Debug, Clone, Copy)]
struct Spent {
    generator: Duration,
    server: Duration,
    machine: Duration,
}

impl Spent {
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
        Ok(Self { server, before: Spent::read(server)?, started: Instant::now() })
    }

    /// Stops measuring; `events` is what the costs are divided by.
    pub fn stop(self, events: u64) -> Result<Usage> {
        let seconds = self.started.elapsed().as_secs_f64();
        let spent = Spent::read(self.server)?.since(self.before);
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

/// What the timed part of a run took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Usage {
    /// By the clock.
    pub seconds: f64,
    /// CPU time of this program per event: how much of the machine the relay could not have.
    pub generator_cpu_us_per_event: f64,
    /// The relay's side, when its process id was given.
    #[serde(flatten)]
    pub server: Option<ServerUsage>,
}

impl Usage {
    /// Things per second of the timed part.
    pub fn rate(&self, count: u64) -> f64 {
        (count as f64 / self.seconds.max(1e-3)).round()
    }
}

/// What the relay spent. This is the figure that counts when generator and relay share two cores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerUsage {
    /// User and system time per event.
    pub cpu_us_per_event: f64,
    /// Resident memory at the end of the run.
    #[serde(flatten)]
    pub memory: Memory,
    /// Cores that neither the relay nor this program kept busy but something else did: the kernel's own threads, and
    /// whoever else uses the machine. Much of it, and the result is not worth much.
    pub foreign_cores: f64,
}

/// Three decimals: the precision of the sources, and readable.
pub fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_accounted() {
        let usage = Meter::start(Some(Process::Own)).and_then(|meter| meter.stop(1)).expect("own accounting");
        assert!(usage.server.is_some_and(|server| server.memory.rss_anon_kb > 0));
    }

    #[test]
    fn without_a_process_there_are_no_figures_of_the_relay() {
        let usage = Meter::start(None).and_then(|meter| meter.stop(0)).expect("own accounting");
        assert_eq!(usage.server, None);
    }
}

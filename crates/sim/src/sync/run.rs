//! A whole run: a week with incidents and misbehaving relays, then only healthy ones, then the check that all nodes
//! have converged.

use super::invariants::{SyncCounts, Violation};
use super::queue::{HOUR, Time};
use super::trace::Trace;
use super::world::World;
use super::world_gen::HEALED_AT;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct SyncRunReport {
    /// Its seed.
    pub seed: u64,
    /// Number of steps.
    pub steps: u64,
    /// Hash of everything that happened.
    pub hash: u64,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// Counters of the nodes.
    pub counts: Vec<SyncCounts>,
    /// Number of events that the first node serves.
    pub served: usize,
    /// The last lines of the trace, if it was recorded.
    pub text: Vec<String>,
}

/// Time after healing within which all nodes must have converged.
const CONVERGENCE_TIME: Time = 26 * HOUR;

/// Time after which a dead or parked relay has surely been dialled again.
const PROBE_INTERVAL: Time = 25 * HOUR;

/// Runs a seed. `lines` is the number of trace lines to keep.
#[must_use]
pub fn run_seed(seed: u64, lines: Option<usize>) -> SyncRunReport {
    let trace = lines.map(Trace::with_text).unwrap_or_default();
    let mut world = World::generate(seed, trace);
    world.run(HEALED_AT);
    if world.violation.is_none() {
        world.heal();
        let probe = if world.has_rarely_dialled_relays() { PROBE_INTERVAL } else { 0 };
        world.run(HEALED_AT + CONVERGENCE_TIME + probe);
    }
    if world.violation.is_none() {
        world.check_converged();
    }
    SyncRunReport {
        seed,
        steps: world.trace.steps(),
        hash: world.trace.hash(),
        counts: world.checkers.iter().map(|checker| checker.counts()).collect(),
        served: world.nodes[0].server.event_ids().0.len(),
        text: world.trace.lines().to_vec(),
        violation: world.violation,
    }
}

impl World {
    /// Returns whether a machine dials some relay only once a day.
    fn has_rarely_dialled_relays(&self) -> bool {
        use grasp_core::sync::health::HealthStatus;
        self.nodes.iter().filter_map(|node| node.machine.as_ref()).any(|machine| {
            machine.snapshot().relays.iter().any(|relay| {
                relay.health == HealthStatus::Dead || relay.dial_in_millis.is_some_and(|millis| millis > 2 * HOUR)
            })
        })
    }
}

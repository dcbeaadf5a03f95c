//! A whole life: a week of trouble, then honesty, then the question whether everything has come.

use grasp_core::sync::fault_injection::SyncFault;

use super::invariants::{Broken, Counts};
use super::queue::{HOUR, Time};
use super::trace::Trace;
use super::world::World;
use super::world_gen::HEALED;

/// What came of a life.
#[derive(Clone, Debug)]
pub struct Life {
    /// Its seed.
    pub seed: u64,
    /// How many steps it had.
    pub steps: u64,
    /// What stands for everything that happened.
    pub hash: u64,
    /// The law that was broken, if any was.
    pub broken: Option<Broken>,
    /// What the machines did.
    pub counts: Vec<Counts>,
    /// How many events the first node serves.
    pub served: usize,
    /// What happened last, if somebody wants to read it.
    pub text: Vec<String>,
}

/// Within this time of healing everything must have come.
const CONVERGED: Time = 26 * HOUR;

/// A relay that was given up, or that gave us up, is asked again after a day.
const PROBE: Time = 25 * HOUR;

/// Lives through a seed.
#[must_use]
pub fn live(seed: u64, flaw: Option<SyncFault>, lines: Option<usize>) -> Life {
    let trace = lines.map(Trace::with_text).unwrap_or_default();
    let mut world = World::born(seed, flaw, trace);
    world.run(HEALED);
    if world.broken.is_none() {
        world.heal();
        let probed = if world.has_given_up() { PROBE } else { 0 };
        world.run(HEALED + CONVERGED + probed);
    }
    if world.broken.is_none() {
        world.check_converged();
    }
    Life {
        seed,
        steps: world.trace.steps(),
        hash: world.trace.hash(),
        counts: world.watches.iter().map(|watch| watch.counts()).collect(),
        served: world.nodes[0].house.sets().0.len(),
        text: world.trace.lines().to_vec(),
        broken: world.broken,
    }
}

impl World {
    /// Whether some machine asks some relay only once a day.
    fn has_given_up(&self) -> bool {
        use grasp_core::sync::health::HealthStatus;
        self.nodes.iter().filter_map(|node| node.syncer.as_ref()).any(|syncer| {
            syncer.snapshot().relays.iter().any(|link| {
                link.health == HealthStatus::Dead || link.dial_in_millis.is_some_and(|millis| millis > 2 * HOUR)
            })
        })
    }
}

//! A whole life: hours of trouble, then honesty, then the question whether everything was found.

use grasp_core::fetch::fault_injection::Flaw;

use super::admission::Stand;
use super::invariants::Counts;
use super::world::World;
use super::world_gen::{HEALED, cast};
use crate::sync::invariants::Broken;
use crate::sync::queue::{HOUR, Time};
use crate::sync::trace::Trace;

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
    /// What the machine did.
    pub counts: Counts,
    /// Events that were released, and events that slept.
    pub events: (usize, usize),
    /// What happened last, if somebody wants to read it.
    pub text: Vec<String>,
}

/// Within this time of healing everything must have been found: an hour of quiet that a server has asked for, an hour for
/// what was unsound, an hour of sleep, and the time that slow hosts need.
const CONVERGED: Time = 5 * HOUR;

/// Lives through a seed.
#[must_use]
pub fn live(seed: u64, flaw: Option<Flaw>, lines: Option<usize>) -> Life {
    let trace = lines.map(Trace::with_text).unwrap_or_default();
    let mut world = World::new(cast(seed), seed, flaw, trace);
    world.run(HEALED);
    if world.broken.is_none() {
        world.heal();
        world.run(HEALED + CONVERGED);
    }
    if world.broken.is_none() {
        world.broken = world.check_converged();
    }
    let released = world.registrar.events.iter().filter(|held| held.stand == Stand::Released).count();
    Life {
        seed,
        steps: world.trace.steps(),
        hash: world.trace.hash(),
        counts: world.watch.counts,
        events: (released, world.registrar.slept),
        text: world.trace.lines().to_vec(),
        broken: world.broken,
    }
}

impl World {
    /// Whether a server has ever said that it wants none.
    fn wants_none(&self, server: usize) -> bool {
        let none = |stated: Option<u32>| stated == Some(0);
        self.cast.servers[server].terms.is_some_and(|terms| none(terms.concurrent) || none(terms.per_minute))
    }

    /// What exists somewhere is here, and what does not sleeps.
    pub fn check_converged(&mut self) -> Option<Broken> {
        for (event, own) in self.cast.events.iter().enumerate() {
            let held = &self.registrar.events[event];
            let released = held.stand == Stand::Released;
            if released && !self.registrar.is_whole(&self.cast, event) {
                return Some(Broken::new("nothing is released without its objects", format!("event {event}")));
            }
            let there = |oid: &String| {
                let has = |url: &&usize| {
                    self.servers.has(**url, oid, self.time) && !self.wants_none(self.cast.urls[**url].server)
                };
                own.urls.iter().find(has).is_some()
            };
            if self.registrar.waits(event) && own.oids.iter().all(there) {
                return Some(Broken::new("what exists is found", format!("event {event}: {held:?}")));
            }
            if held.stand == Stand::Awake && held.since + 3 * HOUR < self.time {
                return Some(Broken::new("what was tried in vain sleeps", format!("event {event}: {held:?}")));
            }
        }
        let (size, sites) = (self.hunter.as_ref().map_or(0, |hunter| hunter.queue_size()), self.missing_sites());
        self.watch.queue(size, sites);
        self.watch.broken()
    }
}

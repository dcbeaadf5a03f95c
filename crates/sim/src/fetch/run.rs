//! A whole run: hours with misbehaving servers, then only normal ones, then the check that everything was fetched.

use grasp_core::fetch::fault_injection::Fault;

use super::admission::HoldStatus;
use super::invariants::FetchCounts;
use super::world::World;
use super::world_gen::{HEALED_AT, generate};
use crate::sync::invariants::Violation;
use crate::sync::queue::{HOUR, Time};
use crate::sync::trace::Trace;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Its seed.
    pub seed: u64,
    /// Number of steps.
    pub steps: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// Counters of the run.
    pub counts: FetchCounts,
    /// Number of events that were released, and number that expired.
    pub events: (usize, usize),
    /// The last lines of the trace, if it was recorded.
    pub text: Vec<String>,
}

/// Time after healing within which everything must have been fetched: an hour of `Retry-After`, an hour after invalid
/// data, an hour of dormancy, and the time that slow hosts need.
const CONVERGED: Time = 5 * HOUR;

/// Runs a seed. `lines` is the number of trace lines to keep.
#[must_use]
pub fn run_seed(seed: u64, fault: Option<Fault>, lines: Option<usize>) -> RunReport {
    let trace = lines.map(Trace::with_text).unwrap_or_default();
    let mut world = World::new(generate(seed), seed, fault, trace);
    world.run(HEALED_AT);
    if world.violation.is_none() {
        world.heal();
        world.run(HEALED_AT + CONVERGED);
    }
    if world.violation.is_none() {
        world.violation = world.check_converged();
    }
    let released = world.admission.events.iter().filter(|held| held.status == HoldStatus::Released).count();
    RunReport {
        seed,
        steps: world.trace.steps(),
        hash: world.trace.hash(),
        counts: world.checker.counts,
        events: (released, world.admission.expired),
        text: world.trace.lines().to_vec(),
        violation: world.violation,
    }
}

impl World {
    /// Returns whether a server states that it wants no requests.
    fn wants_none(&self, server: usize) -> bool {
        let none = |stated: Option<u32>| stated == Some(0);
        self.fixture.servers[server]
            .stated_limits
            .is_some_and(|limits| none(limits.concurrent) || none(limits.per_minute))
    }

    /// Checks that all data that exists somewhere was fetched, and that the other events are dormant.
    pub fn check_converged(&mut self) -> Option<Violation> {
        for (event, own) in self.fixture.events.iter().enumerate() {
            let held = &self.admission.events[event];
            let released = held.status == HoldStatus::Released;
            if released && !self.admission.has_all_objects(&self.fixture, event) {
                return Some(Violation::new("no event is released without its objects", format!("event {event}")));
            }
            let there = |oid: &String| {
                let has = |url: &&usize| {
                    self.servers.has(**url, oid, self.time) && !self.wants_none(self.fixture.urls[**url].server)
                };
                own.urls.iter().find(has).is_some()
            };
            if self.admission.is_waiting(event) && own.oids.iter().all(there) {
                return Some(Violation::new("data that exists is fetched", format!("event {event}: {held:?}")));
            }
            if held.status == HoldStatus::Held && held.since + 3 * HOUR < self.time {
                return Some(Violation::new(
                    "an event without data becomes dormant",
                    format!("event {event}: {held:?}"),
                ));
            }
        }
        let (size, repo_paths) =
            (self.machine.as_ref().map_or(0, |machine| machine.queue_size()), self.repos_with_missing_data());
        self.checker.job_count(size, repo_paths);
        self.checker.take_violation()
    }
}

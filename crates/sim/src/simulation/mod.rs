//! What all simulated worlds have in common: virtual time, scheduled steps, a trace, and the run of a seed.
//!
//! A [`World`] is generated from a seed, so that the seed decides everything that happens. [`run_seed`] takes the steps of
//! the world in the order of their time, first with misbehaving servers and networks, then with healthy ones, and stops
//! at the first [`Violation`] of an invariant. In the end the world must have converged.
//!
//! - [`queue`]: virtual time and scheduled steps; [`trace`]: what happened.
//! - [`process`]: a state machine with its clock, which can be stopped and started.
//! - [`parallel`]: many seeds at once.

pub mod parallel;
pub mod process;
pub mod queue;
pub mod trace;

use std::fmt;

use self::queue::{Queue, Time};
use self::trace::Trace;
use crate::random::Rng;

/// Wall time at the start of every world, in seconds.
pub const WORLD_START: u64 = 1_700_000_000;

/// The state that every world has.
pub struct Simulation<S> {
    /// Seed of the world.
    pub seed: u64,
    /// The current time.
    pub now: Time,
    /// Scheduled steps.
    pub queue: Queue<S>,
    /// Source of all random decisions.
    pub rng: Rng,
    /// What happened.
    pub trace: Trace,
    /// The first violated invariant, if any.
    pub violation: Option<Violation>,
}

impl<S> Simulation<S> {
    /// Creates the state at the start of a world.
    pub fn new(seed: u64, rng: Rng, trace: Trace) -> Self {
        Self { seed, now: 0, queue: Queue::default(), rng, trace, violation: None }
    }

    /// Schedules a step after a delay.
    pub fn schedule_in(&mut self, delay: Time, step: S) {
        self.queue.schedule(self.now + delay, step);
    }

    /// Returns a random number from `least` up to but excluding `most`.
    pub fn random_between(&mut self, least: Time, most: Time) -> Time {
        least + self.rng.next_u64() % (most - least).max(1)
    }

    /// Records a violated invariant, unless there is one already.
    pub fn report(&mut self, violation: Violation) {
        self.trace.log(self.now, || format!("VIOLATION: {violation}"));
        self.violation.get_or_insert(violation);
    }
}

/// A violated invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: &'static str,
    /// What violated it.
    pub detail: String,
}

impl Violation {
    /// Creates a violation.
    pub fn new(invariant: &'static str, detail: String) -> Self {
        Self { invariant, detail }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// The first violation that a checker has found, if any.
#[derive(Debug, Default)]
pub struct FirstViolation(Option<Violation>);

impl FirstViolation {
    /// Records a violation unless `holds`.
    pub fn require(&mut self, holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) {
        if !holds && self.0.is_none() {
            self.0 = Some(Violation::new(invariant, detail()));
        }
    }

    /// Takes the violation.
    pub fn take(&mut self) -> Option<Violation> {
        self.0.take()
    }
}

/// Counts how often a machine wakes, to find one that wakes itself without end.
#[derive(Debug, Default)]
pub struct WakeCounter {
    window_start: Time,
    wakes: u32,
}

impl WakeCounter {
    /// Counts a wake. Returns `false` if there were too many within ten seconds.
    pub fn count(&mut self, now: Time) -> bool {
        if now >= self.window_start + 10 * queue::SECOND {
            (self.window_start, self.wakes) = (now, 0);
        }
        self.wakes += 1;
        self.wakes < 5_000
    }
}

/// A simulated world: one or more state machines, and models of everything around them.
pub trait World: Sized {
    /// Name of the world in commands.
    const NAME: &'static str;
    /// Time at which all servers and networks become healthy.
    const HEALED_AT: Time;
    /// Something that happens at a scheduled time.
    type Step;
    /// Counters of a run.
    type Counts: Default + fmt::Debug + Send;

    /// Generates the world of a seed.
    fn generate(seed: u64, trace: Trace) -> Self;

    /// Returns the state that every world has.
    fn simulation(&mut self) -> &mut Simulation<Self::Step>;

    /// Does a step and checks the invariants.
    fn step(&mut self, step: Self::Step);

    /// Returns when the machine must be woken. Steps of the same time come first. A world with more than one machine
    /// schedules steps for their alarms instead.
    fn alarm(&self) -> Option<Time> {
        None
    }

    /// Wakes the machine at its alarm.
    fn wake(&mut self) {}

    /// Makes all servers and networks healthy for the rest of the run.
    fn heal(&mut self);

    /// Returns the time after [`heal`](Self::heal) within which the world must have converged.
    fn convergence_time(&self) -> Time;

    /// Reports a violation if the world has not converged.
    fn check_converged(&mut self);

    /// Returns the counters of the run.
    fn counts(&self) -> Self::Counts;

    /// Adds the counters of another run.
    fn merge_counts(total: &mut Self::Counts, counts: Self::Counts);

    /// Takes all steps up to `end`, or until an invariant is violated.
    fn run(&mut self, end: Time) {
        while self.simulation().violation.is_none() {
            let now = self.simulation().now;
            let alarm = self.alarm().map(|at| at.max(now)).filter(|at| *at <= end);
            if let Some((at, step)) = self.simulation().queue.next(alarm.unwrap_or(end)) {
                self.simulation().now = at;
                self.step(step);
            } else if let Some(at) = alarm {
                self.simulation().now = at;
                self.wake();
            } else {
                self.simulation().now = now.max(end);
                break;
            }
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct RunReport<C> {
    /// Its seed.
    pub seed: u64,
    /// Number of steps.
    pub steps: u64,
    /// Hash of everything that happened.
    pub hash: u64,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// Counters of the run.
    pub counts: C,
}

/// Runs a seed: a time with misbehaving servers and networks, then a time with healthy ones, then the check that the
/// world has converged.
pub fn run_seed<W: World>(seed: u64, trace: Trace) -> RunReport<W::Counts> {
    let mut world = W::generate(seed, trace);
    world.run(W::HEALED_AT);
    if world.simulation().violation.is_none() {
        world.heal();
        let end = W::HEALED_AT + world.convergence_time();
        world.run(end);
    }
    if world.simulation().violation.is_none() {
        world.check_converged();
    }
    let counts = world.counts();
    let Simulation { trace, violation, .. } = world.simulation();
    RunReport { seed, steps: trace.steps(), hash: trace.hash(), violation: violation.take(), counts }
}

//! Tests of the sync machine: scripted scenarios, and simulated worlds with invariants that are checked after every step,
//! convergence at the end, and fault injection that shows that the invariants detect faults.

mod mutations;
mod parallel;
mod relay_behaviours;
mod replay;
mod scenarios;
mod script;
mod worlds;

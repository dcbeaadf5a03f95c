//! Tests of the sync machine: scripted scenarios, and simulated worlds with invariants that are checked after every step
//! and convergence at the end.

mod parallel;
mod relay_behaviours;
mod replay;
mod scenarios;
mod script;
mod worlds;

//! The sync machine in simulated worlds: laws after every step, convergence in the end, and the proof that the laws bite.

mod mutations;
mod parallel;
mod relay_behaviours;
mod replay;
mod scenarios;
mod script;
mod worlds;

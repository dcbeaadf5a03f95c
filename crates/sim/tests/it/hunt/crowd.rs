//! Runs many seeds of the fetch simulation in parallel.

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::{RunReport, run_seed};
pub(crate) use grasp_sim::parallel::{crowd, number};

/// Returns the command that replays a seed.
pub(crate) fn command(seed: u64) -> String {
    grasp_sim::parallel::command("hunt", seed)
}

/// Runs seeds until `enough` returns `true`.
pub(crate) fn run_all(seeds: &[u64], fault: Option<Fault>, enough: impl FnMut(RunReport) -> bool) -> bool {
    crowd(seeds, |seed| run_seed(*seed, fault, None), enough)
}

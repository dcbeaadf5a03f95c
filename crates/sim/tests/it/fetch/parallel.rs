//! Runs many seeds of the fetch simulation in parallel.

use grasp_core::fetch::fault_injection::Fault;
use grasp_sim::fetch::run::{RunReport, run_seed};
pub(crate) use grasp_sim::parallel::{env_number, is_soak, run_parallel};

/// Returns the command that replays a seed.
pub(crate) fn replay_command(seed: u64) -> String {
    grasp_sim::parallel::replay_command("fetch", seed)
}

/// Runs seeds until `is_enough` returns `true`.
pub(crate) fn run_seeds(seeds: &[u64], fault: Option<Fault>, is_enough: impl FnMut(RunReport) -> bool) -> bool {
    run_parallel(seeds, |seed| run_seed(*seed, fault, None), is_enough)
}

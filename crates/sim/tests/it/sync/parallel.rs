//! Runs many seeds of the sync simulation in parallel.

pub(crate) use grasp_sim::parallel::{env_number, run_parallel};
use grasp_sim::sync::run::{SyncRunReport, run_seed};

/// Returns the command that replays a seed.
pub(crate) fn replay_command(seed: u64) -> String {
    grasp_sim::parallel::replay_command("sync", seed)
}

/// Runs seeds until `is_enough` returns `true`.
pub(crate) fn run_seeds(seeds: &[u64], is_enough: impl FnMut(SyncRunReport) -> bool) -> bool {
    run_parallel(seeds, |seed| run_seed(*seed, None), is_enough)
}

//! Many lives of this machine at once.

use grasp_core::sync::fault_injection::SyncFault;
pub(crate) use grasp_sim::parallel::{crowd, number};
use grasp_sim::sync::run::{Life, live};

/// How to see a life again.
pub(crate) fn command(seed: u64) -> String {
    grasp_sim::parallel::command("sync", seed)
}

/// Lives through seeds until `enough` says so.
pub(crate) fn lives(seeds: &[u64], flaw: Option<SyncFault>, enough: impl FnMut(Life) -> bool) -> bool {
    crowd(seeds, |seed| live(*seed, flaw, None), enough)
}

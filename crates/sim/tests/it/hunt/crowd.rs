//! Many lives of this machine at once.

use grasp_core::fetch::fault_injection::Flaw;
use grasp_sim::fetch::run::{Life, live};
pub(crate) use grasp_sim::parallel::{crowd, number};

/// How to see a life again.
pub(crate) fn command(seed: u64) -> String {
    grasp_sim::parallel::command("hunt", seed)
}

/// Lives through seeds until `enough` says so.
pub(crate) fn lives(seeds: &[u64], flaw: Option<Flaw>, enough: impl FnMut(Life) -> bool) -> bool {
    crowd(seeds, |seed| live(*seed, flaw, None), enough)
}

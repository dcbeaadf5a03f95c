//! The hunt machine in simulated worlds: laws after every step, convergence in the end, and the proof that the laws bite.

mod crowd;
mod mutations;
mod replay;
mod thousand;
mod worlds;

//! The fetch machine in simulated worlds: invariants after every step, convergence in the end, and fault injection that
//! shows that the invariants detect faults.

mod many_repositories;
mod mutations;
mod parallel;
mod replay;
mod worlds;

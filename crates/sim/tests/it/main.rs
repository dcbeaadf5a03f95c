//! The machines and the policy in simulated worlds.

mod bounds;
mod contract;
mod crash;
mod hunt;
mod laws;
mod orders;
mod policy;
mod sync;
mod world;

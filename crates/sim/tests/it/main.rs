//! The machines and the policy in simulated worlds.

mod arrival_order;
mod bounds;
mod crash;
mod hunt;
mod policy;
mod random_runs;
mod random_worlds;
mod store_contract;
mod sync;

//! Tests of the three state machines and of the admission policy in simulated worlds.

mod arrival_order;
mod bounds;
mod crash;
mod fetch;
mod policy;
mod random_runs;
mod random_worlds;
mod store_contract;
mod sync;

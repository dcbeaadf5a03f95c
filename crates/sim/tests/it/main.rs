//! Tests of the three state machines and of the admission policy in simulated worlds.

mod arrival_order;
mod bounds;
mod crash;
mod many_repositories;
mod mutations;
mod policy;
mod random_runs;
mod random_worlds;
mod store_contract;
mod sync;
mod worlds;
mod writer_turns;

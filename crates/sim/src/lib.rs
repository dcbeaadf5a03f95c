//! Simulations for the tests of graspd: models of store, git, relays and git servers around the real state machines of
//! `grasp-core`. Only tests use it.
//!
//! # How the simulator finds a bug
//!
//! 1. A [`World`](simulation::World) is generated from a seed: which servers exist, how they misbehave, which events
//!    they have, when processes crash. [`sync`] simulates relays and nodes for the sync machine, [`fetch`] simulates git
//!    servers for the fetch machine.
//! 2. [`run_seed`](simulation::run_seed) takes its scheduled steps in the order of their virtual time. Each step passes
//!    inputs to a real state machine and carries out its outputs, which schedule further steps. Checkers see every input
//!    and output, and report an invariant that is violated.
//! 3. After some days all servers become healthy. In the end everything that exists must have been synced or fetched.
//!
//! `cargo test -p grasp-sim --test it worlds::` runs many seeds. A failure names the seed and the command that replays it
//! and prints every step, input and output:
//!
//! ```text
//! cargo run -p grasp-sim -- sync 58
//! ```
//!
//! Everything derives from the seed, so the same seed always gives the same run. [`mutations`] are deliberate bugs which
//! show that the invariants would detect real ones.
//!
//! # Other parts
//!
//! - [`signer`]: keys that sign real events, identical in every run; [`fixtures`]: those of the specification's
//!   examples; [`random`]: numbers from a seed; [`failure_context`]: what a test was doing when it failed.
//! - [`store_model`]: a simple model of the store.
//! - [`store_contract`]: cases that every store must pass, run with the model and with the real store;
//!   [`differential`]: compares both with random operations.
//! - [`git_model`]: a model of the git workers that does one durable step at a time.
//! - [`test_server`]: the admission machine on both models, with invariants that are checked after every step.

pub mod differential;
pub mod failure_context;
pub mod fetch;
pub mod fixtures;
pub mod git_model;
pub mod mutations;
pub mod random;
pub mod signer;
pub mod simulation;
pub mod store_contract;
pub mod store_model;
pub mod sync;
pub mod test_server;

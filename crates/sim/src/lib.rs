//! Simulations for the tests of graspd: models of store, git, relays and git servers around the real state machines of
//! `grasp-core`. Only tests use it.
//!
//! - [`signer`]: keys that sign real events, identical in every run; [`fixtures`]: those of the specification's
//!   examples; [`random`]: numbers from a seed; [`parallel`]: many seeds at once.
//! - [`store_model`]: a simple model of the store.
//! - [`store_contract`]: cases that every store must pass, run with the model and with the real store;
//!   [`differential`]: compares both with random operations.
//! - [`git_model`]: a model of the git workers that does one durable step at a time.
//! - [`test_server`]: the admission machine on both models, with invariants that are checked after every step.
//! - [`fetch`]: the fetch machine with simulated git servers.
//! - [`sync`]: nodes with admission and sync machine in a network of simulated relays.

pub mod differential;
pub mod fetch;
pub mod fixtures;
pub mod git_model;
pub mod parallel;
pub mod random;
pub mod signer;
pub mod store_contract;
pub mod store_model;
pub mod sync;
pub mod test_server;

//! The simulated world of graspd, for tests only.
//!
//! - [`author`]: keys that sign real events, the same ones in every run; [`cast`]: those of the spec's examples;
//!   [`chance`]: numbers from a seed; [`crowd`]: many lives at once.
//! - [`memory`]: the model of the store, naive on purpose.
//! - [`contract`]: what every store must do, run against the model and against the real one; [`differential`]: both live
//!   through the same random history.
//! - [`git`]: the model of the git room, which does one durable step at a time.
//! - [`house`]: a registrar on top of both models, with the laws that hold after every step.
//! - [`hunt`]: the hunt machine among git servers of all kinds.
//! - [`net`]: many of them in a network of relays, with the sync machine between.

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

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

pub mod author;
pub mod cast;
pub mod chance;
pub mod contract;
pub mod crowd;
pub mod differential;
pub mod git;
pub mod house;
pub mod hunt;
pub mod memory;
pub mod net;

//! The hunt in a world of strange git servers: a real [`Hunter`](grasp_core::fetch::Hunter), a virtual clock, one seed.
//!
//! - [`cast`]: what a life begins with; [`birth`]: how a seed becomes that.
//! - [`server`]: what git servers do when they are asked; [`registrar`]: a model of who holds, releases and expires events.
//! - [`world`]: time, the hands and restarts; [`law`]: what must never happen; [`life`]: a whole life, and whether
//!   everything was found in the end.

pub mod admission;
pub mod fixtures;
pub mod invariants;
pub mod run;
pub mod server;
pub mod world;
pub mod world_gen;

//! Simulation of the fetch machine: a real [`FetchMachine`](grasp_core::fetch::FetchMachine) with a virtual clock and
//! misbehaving git servers, all derived from one seed.
//!
//! - [`fixtures`]: the initial state of a world; [`world_gen`]: generates it from a seed.
//! - [`server`]: the behaviour of git servers; [`admission`]: a model of which events are held, released and expired.
//! - [`world`]: the clock, the driver and restarts; [`invariants`]: what must never happen; [`run`]: a whole run, and
//!   whether everything was fetched in the end.

pub mod admission;
pub mod fixtures;
pub mod invariants;
pub mod run;
pub mod server;
pub mod world;
pub mod world_gen;

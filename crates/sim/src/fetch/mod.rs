//! Simulation of the fetch machine: a real [`FetchMachine`](grasp_core::fetch::FetchMachine) with a virtual clock and
//! misbehaving git servers, all derived from one seed.
//!
//! - `fixtures`: the initial state of a world; `world_gen`: generates it from a seed.
//! - `server`: the behaviour of git servers; `admission`: a model of which events are held, released and expired.
//! - `world`: the driver, restarts, and whether everything was fetched in the end; `invariants`: what must never
//!   happen.

mod admission;
mod fixtures;
mod invariants;
mod server;
mod world;
mod world_gen;

pub use self::admission::HoldStatus;
pub use self::fixtures::{EventFixture, RepoFixture, ServerBehavior, ServerFixture, UrlFixture, WorldFixture};
pub use self::world::FetchWorld;

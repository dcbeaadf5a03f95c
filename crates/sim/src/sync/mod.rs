//! Simulation of the sync machine: relays with various behaviours and graspd nodes without sockets, with a virtual
//! clock, all derived from one seed.
//!
//! - `repo_history` and `corpus`: the events of all worlds, signed once per process; `event_set`: sets of them.
//! - `text`: inputs, outputs and steps as lines of the trace.
//! - `relay`: a remote relay with its `relay_store` and `relay_profile`; `connection` and `wire`: websockets
//!   and messages.
//! - `node`: one graspd; `driver`, `local_events` and `tables`: what connects its state machines to each other,
//!   to the store and to the relays.
//! - `world`: relays, nodes and the connections between them; `world_gen`: generates a world from a seed;
//!   `incidents`: crashes, outages and other incidents.
//! - `invariants`: what must never happen; `expected` and `expected_targets`: what must have happened in the end.

mod connection;
mod corpus;
mod driver;
mod event_set;
mod expected;
mod expected_targets;
mod incidents;
mod invariants;
mod local_events;
mod node;
mod relay;
mod relay_profile;
mod relay_store;
mod repo_history;
mod tables;
mod text;
mod wire;
mod world;
mod world_gen;

pub use self::repo_history::service;
pub use self::text::{describe_output, format_filter};
pub use self::world::SyncWorld;

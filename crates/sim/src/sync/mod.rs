//! Simulation of the sync machine: relays with various behaviours and graspd nodes without sockets, with a virtual
//! clock, all derived from one seed.
//!
//! - [`repo_history`] and [`corpus`]: the events of all worlds, signed once per process; [`event_set`]: sets of them.
//! - [`queue`]: virtual time; [`trace`] and [`text`]: what happened.
//! - [`relay`]: a remote relay with its [`relay_store`] and [`relay_profile`]; [`connection`] and [`wire`]: websockets
//!   and messages.
//! - [`node`]: one graspd; [`driver`], [`local_events`] and [`tables`]: what connects its state machines to each other,
//!   to the store and to the relays.
//! - [`world`]: relays, nodes and the clock; [`world_gen`]: generates a world from a seed; [`incidents`]:
//!   crashes, outages and other incidents; [`run`]: a whole run.
//! - [`invariants`]: what must never happen; [`expected`] and [`expected_targets`]: what must have happened in the end.

pub mod connection;
pub mod corpus;
pub mod driver;
pub mod event_set;
pub mod expected;
pub mod expected_targets;
pub mod incidents;
pub mod invariants;
pub mod local_events;
pub mod node;
pub mod queue;
pub mod relay;
pub mod relay_profile;
pub mod relay_store;
pub mod repo_history;
pub mod run;
pub mod tables;
pub mod text;
pub mod trace;
pub mod wire;
pub mod world;
pub mod world_gen;

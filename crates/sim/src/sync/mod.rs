//! The simulated network: relays with habits, full nodes without sockets, one clock and one seed.
//!
//! - [`tale`] and [`corpus`]: all events of all worlds, signed once per process; [`bits`]: sets of them.
//! - [`queue`]: virtual time; [`trace`] and [`text`]: what happened.
//! - [`relay`]: a foreign relay with a [`book`] and a [`persona`]; [`conn`] and [`wire`]: what lies between.
//! - [`node`]: one graspd; [`hands`], [`interest`] and [`rows`]: what joins its machines.
//! - [`world`]: all of it; [`birth`]: how it begins; [`fault`]: what goes wrong; [`life`]: from one end to the other.
//! - [`law`]: what must never happen; [`wish`] and [`model`]: what must have happened in the end.

pub mod connection;
pub mod corpus;
pub mod driver;
pub mod event_set;
pub mod expected;
pub mod expected_targets;
pub mod fault_injection;
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

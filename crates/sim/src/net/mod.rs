//! The simulated network: relays with habits, full nodes without sockets, one clock and one seed.
//!
//! - [`tale`] and [`corpus`]: all events of all worlds, signed once per process; [`bits`]: sets of them.
//! - [`queue`]: virtual time; [`trace`] and [`text`]: what happened.
//! - [`relay`]: a foreign relay with a [`book`] and a [`persona`]; [`conn`] and [`wire`]: what lies between.
//! - [`node`]: one graspd; [`hands`], [`interest`] and [`rows`]: what joins its machines.
//! - [`world`]: all of it; [`birth`]: how it begins; [`fault`]: what goes wrong; [`life`]: from one end to the other.
//! - [`law`]: what must never happen; [`wish`] and [`model`]: what must have happened in the end.

pub mod birth;
pub mod bits;
pub mod book;
pub mod conn;
pub mod corpus;
pub mod fault;
pub mod hands;
pub mod interest;
pub mod law;
pub mod life;
pub mod model;
pub mod node;
pub mod persona;
pub mod queue;
pub mod relay;
pub mod rows;
pub mod tale;
pub mod text;
pub mod trace;
pub mod wire;
pub mod wish;
pub mod world;

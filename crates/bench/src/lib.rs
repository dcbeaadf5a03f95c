//! Load generator for nostr relays and git servers, with comparisons between them.
//!
//! - [`corpus`]: the generated events, identical for identical seeds ([`repository`], [`event`], [`sample_text`],
//!   [`random`]).
//! - [`connection`] and [`message`]: a websocket client and a minimal parser of relay messages.
//! - [`load`], [`req`], [`live`], [`neg`], [`idle`], [`verify`]: one measurement each, of a [`target`].
//! - [`process_usage`] ([`process`], [`machine`]) and [`latency`]: what is measured. [`report`] and [`progress`]:
//!   output.
//! - `server`: server processes that this program starts.
//! - `compare` (feature `compare`): all measurements of graspd and of an independent relay.
//! - [`git`]: git over HTTP, of graspd and of `git http-backend`.
//! - [`sync`]: how graspd syncs from other relays.
//!
//! Everything expensive (signing, serialising) happens before the measured time starts, because the load generator
//! shares the machine with the server under test.

pub mod cli;
#[cfg(feature = "compare")]
pub mod compare;
pub mod connection;
pub mod corpus;
pub mod event;
pub mod git;
pub mod idle;
pub mod latency;
pub mod live;
pub mod load;
pub mod machine;
pub mod message;
pub mod neg;
pub mod process;
pub mod process_usage;
pub mod progress;
pub mod random;
mod ratio;
pub mod report;
pub mod repository;
pub mod req;
pub mod sample_text;
mod server;
pub mod sync;
pub mod target;
pub mod verify;

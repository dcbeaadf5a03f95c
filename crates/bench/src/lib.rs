//! Load generator and comparer for nostr relays that carry git repositories.
//!
//! - [`corpus`]: the generated events, the same for the same seed ([`repository`], [`event`], [`prose`], [`random`]).
//! - [`connection`] and [`message`]: a websocket client and the little of the protocol it must understand.
//! - [`load`], [`req`], [`live`], [`neg`], [`idle`], [`verify`]: one measurement each, of a [`target`].
//! - [`meter`] ([`process`], [`machine`]) and [`latency`]: what is measured; [`report`] and [`progress`]: how it is shown.
//! - `compare` (feature `compare`): all of it against two relays in turn.
//! - [`git`]: the git side of graspd, beside `git http-backend`.
//! - [`sync`]: how graspd follows other relays.
//!
//! Everything expensive (signing, serialising) happens before the clock starts: the generator shares the machine with
//! the relay, and what it does not do cannot disturb.

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
pub mod sync;
pub mod target;
pub mod verify;

//! The decisions of graspd.
//!
//! Nothing in this crate reaches a socket, a file, a process, a thread or a clock. It is told facts and answers what
//! should be done about them, so that every decision can be tested in a table and replayed from a seed.
//!
//! - [`machine`]: the contract of a decision-maker; [`time`]: the two clocks; [`limits`]: every bound, with its reason;
//!   [`manners`]: token buckets.
//! - [`nostr`]: events, filters, messages, negentropy.
//! - [`outbound`]: whom strangers may make us call.
//! - [`repo`]: repositories: announcements, states, pull requests, maintainers, and the [`repo::Catalog`] of them all.
//! - [`storage`]: marks of the disk budget, and quotas.
//! - [`registrar`]: the first machine: what may enter, and when it may be served.
//! - [`sync`]: the second machine: whom to listen to, and how to catch up.
//! - [`hunt`]: the third machine: where to look for missing git data.

pub mod admission;
pub mod disk_budget;
pub mod fetch;
pub mod limits;
pub mod net;
pub mod nostr;
pub mod remote_limits;
pub mod repo;
pub mod state_machine;
pub mod sync;
pub mod time;

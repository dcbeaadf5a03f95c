//! Decisions and domain types of graspd.
//!
//! This crate is pure: it uses no sockets, files, processes, threads or clocks. It receives inputs and returns what to
//! do, so that every decision can be tested with a table and replayed from a random seed. `graspd` runs the three
//! machines; `grasp-sim` runs them against simulated relays, git servers and stores.
//!
//! - [`admission`]: machine 1: which events are accepted, held in purgatory or served, and which pushes are authorised.
//! - [`sync`]: machine 2: which relays to follow, live and historic sync.
//! - [`fetch`]: machine 3: where to fetch missing git data, and when.
//! - [`nostr`]: events, filters, messages, negentropy.
//! - [`repo`]: announcements, states, pull requests, maintainer sets, and the [`repo::Catalog`] of all repositories.
//! - [`net`]: which addresses may be dialled.
//! - [`limits`]: every bound with its reason; [`token_bucket`]: token buckets; [`disk_budget`]: disk budget and
//!   quotas.
//! - [`label_table!`]: labels of enums in metrics, logs and JSON.
//! - [`state_machine`]: the interface of the machines; [`time`]: wall clock and monotonic time; [`random`]:
//!   pseudo-random numbers.

pub mod admission;
pub mod disk_budget;
pub mod fetch;
mod label_table;
pub mod limits;
pub mod net;
pub mod nostr;
pub mod random;
pub mod repo;
pub mod state_machine;
pub mod sync;
pub mod time;
pub mod token_bucket;

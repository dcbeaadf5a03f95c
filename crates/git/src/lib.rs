//! Git repositories on disk, and the words git speaks over HTTP.
//!
//! - [`layout`]: where things lie.
//! - [`pktline`]: the framing of git's protocols.
//! - [`refs`]: the refs of one repository, which are one file and one snapshot in memory.
//! - [`child`]: the real git, started cleanly and bounded.
//! - [`receive`]: a push, from its first line to its answer.
//! - [`fetch`]: asking other servers for objects.
//! - [`serve`]: what clients are told and sent.
//! - [`objects`]: which objects are in which pools.
//! - [`keeper`]: carries out what the registrar orders.
//! - [`maintain`]: keeps pools in good order.
//! - [`vault`]: everything at one moment, and whether a copy of it is whole.
//!
//! Blocking: no call here that touches the disk or waits for a child belongs on an async worker.

pub mod apply;
pub mod backup;
pub mod crash_point;
pub mod fetch;
pub mod layout;
pub mod maintenance;
pub mod objects;
pub mod pktline;
pub mod process;
pub mod receive;
pub mod refs;
mod repo_lock;
pub mod serve;

//! Server side of pushes: parses the request, receives and checks the pack, and writes the report.
//!
//! - [`commands`]: the beginning of the request: commands, capabilities of the client, and push options.
//! - [`quarantine`]: the pack that follows, kept apart from everything that is served.
//! - [`check`]: checks whether the pack is valid and complete, in this process or with git.
//! - [`pack_error`]: the reasons why a pack is rejected.
//! - [`report`]: the bytes of the response.
//!
//! Called by the push handler of graspd, and by its fetch client, which checks fetched packs in the same way. Nothing
//! here changes a ref or a pool; a git job does ([`apply`](crate::apply)).

pub mod check;
pub mod commands;
mod declared_sizes;
mod in_process;
mod object_walk;
mod pack_contents;
pub mod pack_error;
pub mod quarantine;
pub mod report;

pub use check::{Connectivity, PackChecker, VisibleObjects};
pub use commands::{ClientCapabilities, PushLimits, PushParseProgress, PushParser, PushRequest, PushRequestError};
pub use in_process::InProcessLimits;
pub use object_walk::{RequiredTips, is_oid};
pub use pack_error::PackError;
pub use quarantine::{PackData, PackLimits, PackSink, Quarantine, UncheckedPack};

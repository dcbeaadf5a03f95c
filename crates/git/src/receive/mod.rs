//! Receiving a push: what it asks for, what it brings, whether that is whole, and what the client is told.
//!
//! - [`commands`]: the beginning of the request: the commands, what the client can do, and its options.
//! - [`incoming`]: the pack that follows, kept apart from everything that is served.
//! - [`check`]: the real git says whether the pack is sound and whether anything is missing.
//! - [`problem`]: why a pack is not taken.
//! - [`report`]: the bytes of the answer.
//!
//! Nothing here moves a ref or reaches a pool; that is an order of the registrar's.

pub mod check;
pub mod commands;
mod object_walk;
mod pack_contents;
pub mod pack_error;
pub mod quarantine;
pub mod report;

pub use check::{Checker, Connected, Kind, Peeled, View};
pub use commands::{BadPush, Capabilities, Progress, PushLimits, PushParser, PushRequest};
pub use object_walk::Tips;
pub use pack_error::PackProblem;
pub use quarantine::{Incoming, Pack, PackLimits, PackSink, Received};

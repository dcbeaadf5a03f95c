//! Receiving a push: what it asks for, what it brings, whether that is whole, and what the client is told.
//!
//! - [`commands`]: the beginning of the request: the commands, what the client can do, and its options.
//! - [`incoming`]: the pack that follows, kept apart from everything that is served.
//! - [`check`]: the real git says whether the pack is sound and whether anything is missing.
//! - [`problem`]: why a pack is not taken.
//! - [`report`]: the bytes of the answer.
//!
//! Nothing here moves a ref or reaches a pool; that is an order of the registrar's.

mod carried;
pub mod check;
pub mod commands;
pub mod incoming;
pub mod problem;
pub mod report;
mod walk;

pub use check::{Checker, Connected, Kind, Peeled, View};
pub use commands::{BadPush, Capabilities, Progress, PushLimits, PushParser, PushRequest};
pub use incoming::{Incoming, Pack, PackLimits, PackSink, Received};
pub use problem::PackProblem;
pub use walk::Tips;
